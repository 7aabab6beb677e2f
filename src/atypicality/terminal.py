"""Text of others made fit for a terminal: control characters and marks that reorder text are written as escapes."""

from collections.abc import Iterable

__all__ = ["listed", "printable"]


def printable(text: object) -> str:
    r"""The text with an escape, as in its `repr`, for each character that a terminal would obey instead of showing.

    These are control characters (C0, DEL, C1), line separators, invisible and bidirectional format characters, and
    surrogates, which no terminal can be sent.

    >>> print(printable("\x1b[31mred\x07, caf\u00e9, \u202egnp.exe\n"))
    \x1b[31mred\x07, café, \u202egnp.exe\n
    """
    shown = str(text)
    return shown if shown.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)


def listed(names: Iterable[object]) -> str:
    r"""Names with commas between them, each `printable`.

    >>> print(listed(["cat", "\x1b[2J"]))
    cat, \x1b[2J
    """
    return ", ".join(map(printable, names))
