"""Text for a terminal or a notebook: that of others with escapes, and tables in aligned columns or as HTML."""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from html import escape

__all__ = ["aligned", "few", "html_table", "listed", "number", "printable", "reporting"]

reporting: ContextVar[bool] = ContextVar("atypicality_reporting", default=False)
"""Whether long work may write lines to stderr where that is no terminal: in commands, not in the library."""


def printable(text: object) -> str:
    r"""The text with an escape, as in its `repr`, for each character that a terminal would obey instead of showing.

    These are control characters (C0, DEL, C1), line separators, invisible and bidirectional format characters, and
    surrogates, which no terminal can be sent.

    >>> print(printable("\x1b[31mred\x07, caf\u00e9, \u202egnp.exe\n"))
    \x1b[31mred\x07, café, \u202egnp.exe\n
    """
    shown = str(text)
    return shown if shown.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


def number(value: float) -> str:
    """Four significant digits: one number of one sample reads alike in every line.

    >>> number(0.71484), number(0.7)
    ('0.7148', '0.7')
    """
    return f"{value:.4g}"


def listed(names: Iterable[object]) -> str:
    r"""Names with commas between them, each `printable`.

    >>> print(listed(["cat", "\x1b[2J"]))
    cat, \x1b[2J
    """
    return ", ".join(map(printable, names))


def few(words: Sequence[str], most: int = 10) -> str:
    """The first words with commas between them, and how many more there are.

    >>> few(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def aligned(
    lines: Sequence[Sequence[str]], over: Sequence[tuple[str, int]] = (), justify: Callable[[str, int], str] = str.ljust
) -> list[str]:
    r"""Lines of cells in columns, two spaces apart; names in a line `over` them each span a number of columns.

    >>> print("\n".join(aligned([("group", "ours", "paper"), ("1", "0.05", "0.04")], [("", 1), ("ECE", 2)])))
           ECE
    group  ours  paper
    1      0.05  0.04
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    names, end = [], 0
    for name, span in over:
        first, end = end, end + span
        room = sum(widths[first:end]) + 2 * (span - 1)
        widths[end - 1] += max(0, len(name) - room)  # a long name needs room
        names.append(name.ljust(room))
    cells = [[justify(cell, width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return ["  ".join(line).rstrip() for line in ([names, *cells] if over else cells)]


def html_table(title: str, header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table for a notebook, with a title above it; names and texts are shown as they are.

    >>> html_table("One", ["a"], [["<b>"]])
    '<table><caption>One</caption><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    top = "".join(f"<th>{escape(printable(name))}</th>" for name in header)
    cells = ("".join(f"<td>{escape(printable(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in cells)
    head = f"<thead><tr>{top}</tr></thead>" if top else ""
    return f"<table><caption>{escape(printable(title))}</caption>{head}<tbody>{body}</tbody></table>"
