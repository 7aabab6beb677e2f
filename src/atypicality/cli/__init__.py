"""The command line: one file per command, each a thin caller of a public function."""

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main", "run"]

INTERRUPTED = 130  # exit code after Ctrl-C: 128 and the number of the signal, as shells have it


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (default: those of the process) and return the exit code.

    Ctrl-C at any moment, also while modules are imported, is one line on stderr.

    >>> main(["--version"])
    atypicality ...
    0
    """
    try:
        from atypicality.cli.app import execute

        return execute(sys.argv[1:] if argv is None else list(argv))
    except KeyboardInterrupt:
        print("atypicality: interrupted", file=sys.stderr)
        return INTERRUPTED


def run() -> NoReturn:
    """Be the process of the command: run it and exit."""
    if sys.argv[1:2] == ["serve"] and hasattr(signal, "SIGHUP"):  # it means a reload, which waits until there is a head
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    code = main()
    if code == INTERRUPTED:  # not by way of threads that still wait, for example for a server's answer
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
