"""Indexes and column names of tables: rows and columns go by position, and what names another order is refused."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["check_column_order", "check_index", "check_same_index", "counts_from_0"]


def check_index(first: Any, column: Any, name: str, whose: str = "X") -> None:
    """Refuse a column whose index names other rows than that of the `first` table, or the same in another order.

    A count from 0 names no rows, unless the other index has the same numbers in another order.
    """
    ours, theirs = getattr(first, "index", ()), getattr(column, "index", ())
    if callable(ours) or callable(theirs) or len(ours) != len(theirs):
        return
    if (counts_from_0(ours) or counts_from_0(theirs)) and not all(
        counts_from_0(index, np.sort) for index in (ours, theirs)
    ):
        return
    if not np.array_equal(np.asarray(ours), np.asarray(theirs)):
        raise ValueError(
            f"{name} must have the index of {whose}, in its order, since rows go by position; it has another. Pass "
            f"{name}.loc[{whose}.index], or {name}.to_numpy() where the order is right."
        )


def check_same_index(parts: Mapping[str, Any]) -> None:
    """Refuse parts of outputs, some of them tables or columns of tables, whose indexes name rows in other orders."""
    indexed = [name for name, part in parts.items() if not callable(getattr(part, "index", len))]
    for name in indexed[1:]:
        check_index(parts[indexed[0]], parts[name], name, indexed[0])


def check_column_order(logits: Any, class_names: NDArray[Any] | None) -> None:
    """Refuse a table of logits whose columns are called like the classes, in another order."""
    columns = getattr(logits, "columns", None)
    if columns is None or callable(columns) or class_names is None:
        return
    found, wanted = [str(name) for name in columns], class_names.tolist()
    if found != wanted and sorted(found) == sorted(wanted):
        place = next(place for place, name in enumerate(found) if name != wanted[place])
        raise ValueError(
            f"class_names must be in the order of the columns of logits; column {place} is {found[place]!r}, and "
            f"class_names has {wanted[place]!r} there. Pass logits[class_names], or class_names=logits.columns."
        )


def counts_from_0(index: Any, order: Callable[[Any], Any] = np.asarray) -> bool:
    """Whether an index is a count from 0, once it is put in some order."""
    values = np.asarray(index)
    return values.dtype.kind in "iu" and np.array_equal(order(values), np.arange(values.size))
