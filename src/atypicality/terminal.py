"""Text for a terminal: that of others with control characters as escapes, and tables in aligned columns."""

from collections.abc import Callable, Iterable, Sequence

__all__ = ["aligned", "listed", "printable"]


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


def aligned(
    lines: Sequence[Sequence[str]],
    over: Sequence[tuple[str, int]] = (),
    justify: Callable[[str, int], str] = str.ljust,
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
