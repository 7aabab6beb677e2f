"""Options that several commands have, with one name and one meaning, their former names, and work under them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["FORMER", "Memory", "Scratch", "Seed", "current", "examples", "large_work"]

Memory = Annotated[
    str | None,
    typer.Option(help="Memory limit, such as 1GB: larger arrays are spilled to disk while they are worked on."),
]
Scratch = Annotated[
    Path | None, typer.Option(help="Folder for those files; by default the system's for temporary files.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]

FORMER = {"--onnx": "--out", "--html": "--out", "--random-state": "--seed"}
"""Names of options before they were the same in every command: still understood, no longer shown."""


def current(arguments: list[str]) -> list[str]:
    """The same arguments with the present names of options.

    >>> current(["export", "head", "--onnx", "head.onnx", "--html=page.html"])
    ['export', 'head', '--out', 'head.onnx', '--out=page.html']
    """
    parts = [argument.partition("=") for argument in arguments]
    return [FORMER.get(name, name) + sign + value for name, sign, value in parts]


def examples(lines: str) -> str:
    """Commands to show under a help, each on a line of its own.

    >>> examples("atypicality demo").splitlines()[2:]
    ['  atypicality demo']
    """
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines.split("\n") if line)])


@contextlib.contextmanager
def large_work(description: str, memory: str | None, scratch: Path | None) -> Iterator[None]:
    """Work under a memory limit, where one is given, with a bar for every long pass over rows on a terminal."""
    from atypicality import blocks
    from atypicality.blocks.progress import working

    with blocks.settings(memory=memory, scratch=scratch), working(description):
        yield
