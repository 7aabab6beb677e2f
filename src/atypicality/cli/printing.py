"""How commands print: lines and JSON that a terminal can be shown, and tables made to fit 80 columns."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from atypicality.terminal import printable

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["make_table", "one_line", "say", "say_json"]


def one_line(text: object) -> str:
    r"""A message as one printable line.

    >>> print(one_line("no class\n  \x1b[2J."))
    no class \x1b[2J.
    """
    return printable(" ".join(str(text).split()))


def say(text: str, *, err: bool = False) -> None:
    r"""Print lines, with escapes for what a terminal would obey.

    >>> say("class\x1b[2J\nanother")
    class\x1b[2J
    another
    """
    typer.echo("\n".join(map(printable, text.split("\n"))), err=err)


def say_json(text: str) -> None:
    r"""Print JSON, with escapes of its own for what a terminal would obey: it means the same.

    >>> say_json('{"class": "\x9b2J\u202e\x7f"}')
    {"class": "\u009b2J\u202e\u007f"}
    """
    typer.echo(re.sub(r"[^\n -~]", _escaped, text))


def _escaped(found: re.Match[str]) -> str:
    letter = found[0]
    return letter if letter.isprintable() else json.dumps(letter)[1:-1].replace("\x7f", "\\u007f")


def make_table(*columns: str, left: Sequence[str] = ()) -> "Table":
    """An empty table without vertical lines; columns named in `left` hold words, the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    return table
