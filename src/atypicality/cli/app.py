"""The `atypicality` command: its list of commands, and what becomes of errors.

A user's mistake is one line on stderr and exit code 2; a warning is one line too; a bug is a traceback.
"""

import contextlib
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from typer.main import get_command

from atypicality._version import __version__
from atypicality.cli import demo, evaluate, export, fit, llm, predict, report, reproduce, theory
from atypicality.cli.printing import one_line

__all__ = ["app", "main"]

_UsageMistake: type[Exception] = typer.BadParameter.__mro__[2]  # click's own or typer's copy of it, by version
_CHECKS = ("atypicality.validation", "atypicality.arrays")

app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})
app.command("demo")(demo.command)
app.command("fit")(fit.command)
app.command("predict")(predict.command)
app.command("evaluate")(evaluate.command)
app.command("report")(report.command)
app.command("export")(export.command)
app.command("llm")(llm.command)
app.command("reproduce")(reproduce.command)
app.command("theory")(theory.command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (default: those of the process) and return the exit code.

    >>> main(["--version"])
    atypicality ...
    0
    """
    try:
        arguments = None if argv is None else list(argv)
        with _plain_warnings():
            return get_command(app).main(arguments, prog_name="atypicality", standalone_mode=False) or 0
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stdout = None  # or the interpreter would complain when it flushes
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return _report("interrupted", 130)
    except Exception as error:
        if not _is_mistake(error):
            raise
        return _report(_message(error), 2)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Reliability for any trained classifier: how rare is an input, and which predictions can be trusted."""
    if version:
        typer.echo(f"atypicality {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings without the place in our code that they come from."""
    own = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"atypicality: warning: {one_line(message)}\n"
    try:
        yield
    finally:
        warnings.formatwarning = own


def _is_mistake(error: Exception) -> bool:
    """Whether the user can mend it: bad usage, a missing file or package, or values that a check refused."""
    if isinstance(error, (_UsageMistake, OSError)):
        return True
    if isinstance(error, ModuleNotFoundError):  # an optional package, with what to install; others are our own fault
        return "pip install" in str(error)
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    module = str(frame.f_globals.get("__name__"))
    if isinstance(error, TypeError):  # elsewhere a TypeError is a bug of ours
        return module in _CHECKS
    return isinstance(error, ValueError) and module.partition(".")[0] == "atypicality"


def _message(error: Exception) -> str:
    if isinstance(error, _UsageMistake):
        return f"{error.format_message().rstrip('.')}. Try --help."  # type: ignore[attr-defined]
    return str(error)


def _report(message: str, code: int) -> int:
    typer.echo(f"atypicality: {one_line(message)}", err=True)
    return code
