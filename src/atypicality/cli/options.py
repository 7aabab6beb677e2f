"""Options that several commands have, with one name and one meaning, and their former names."""

from typing import Annotated

import typer

__all__ = ["FORMER", "Seed", "current", "examples"]

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
