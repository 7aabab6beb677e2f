"""How commands print: tables without vertical lines, numbers to the right, made to fit 80 columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["make_table"]


def make_table(*columns: str, left: Sequence[str] = ()) -> "Table":
    """An empty table; columns named in `left` hold words, the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    return table
