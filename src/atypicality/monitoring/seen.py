"""Which rows were counted: hashes of the newest rows' ids and logits, in a state whose size has a bound."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import to_host
from atypicality.outputs import ModelOutputs
from atypicality.outputs.marks import are_known, marks_of, numbers_of
from atypicality.stored import Record, kinds
from atypicality.validation import warn

__all__ = ["Hashes", "Seen", "new_labels", "new_rows", "row_hashes"]

GENERATION = 2**20
"""Rows of a generation: the newest million are remembered, and at most two, in 8 bytes each."""

Hashes = NDArray[np.int64]


def _none() -> Hashes:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Seen:
    """Hashes of rows in two generations, each sorted. A full newer one becomes the older one, which is forgotten.

    >>> few = Seen().joined(np.array([5, 3, 5]))
    >>> few.has(np.array([3, 4])).tolist(), few.size
    ([True, False], 2)
    """

    newer: Annotated[Hashes, kinds.Counts("*", kinds.INCREASING)] = field(default_factory=_none)
    older: Annotated[Hashes, kinds.Counts("*", kinds.INCREASING)] = field(default_factory=_none)

    @property
    def size(self) -> int:
        """Hashes that are remembered."""
        return int(self.newer.size + self.older.size)

    def has(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Whether each of some hashes (n,) is remembered."""
        return are_known(hashes, self.newer) | are_known(hashes, self.older)

    def joined(self, hashes: Hashes) -> Self:
        """With more hashes; of more than a generation the last."""
        new = np.unique(hashes[-GENERATION:])
        new = new[~self.has(new)]
        if self.newer.size and self.newer.size + new.size > GENERATION:
            return type(self)(new, self.newer)
        return type(self)(np.union1d(self.newer, new), self.older)

    def merged(self, other: Self) -> Self:
        """With the hashes of another monitor."""
        older = np.setdiff1d(np.union1d(self.older, other.older)[:GENERATION], np.union1d(self.newer, other.newer))
        return type(self)(self.newer, older).joined(other.newer)

    _stored = Record()


def row_hashes(outputs: ModelOutputs) -> Hashes | None:
    """A hash (n,) of each row's id and logits, these as float32 and in the head's order; None without ids.

    The id alone would not do: many number the rows of each day from 0.

    >>> rows = ModelOutputs([[2.0, 0.0], [2.0, 0.0]], ids=["a", "b"])
    >>> len(set(row_hashes(rows).tolist())), row_hashes(rows[1:]).tolist() == row_hashes(rows).tolist()[1:]
    (2, True)
    """
    if outputs.ids is None:
        return None
    names, logits = to_host(outputs.ids).astype(str).tolist(), numbers_of(to_host(outputs.need("logits")))
    return marks_of(name.encode() + b"\0" + row for name, row in zip(names, logits, strict=True)).view(np.int64)


def new_rows(seen: Seen, hashes: Hashes | None, outputs: ModelOutputs) -> NDArray[np.bool_]:
    """Which rows (n,) of outputs were not counted before, with a warning where some were; all without hashes."""
    if hashes is None or not (known := seen.has(hashes)).any():
        return np.ones(len(outputs), bool)
    warn(
        f"{known.sum():,} of {known.size:,} rows of {outputs._called or 'the outputs'} were counted before, with the "
        "same ids and logits, and are not counted again."
    )
    return ~known


def new_labels(labelled: Seen, hashes: Hashes, outputs: Any, rows: Seen | None) -> NDArray[np.bool_]:
    """Which labels of rows with these hashes (m,) were not counted before, with a warning where some were.

    Also warns of labels of rows that were never counted, where all `rows` that were are known.
    """
    known, whose = labelled.has(hashes), outputs._called or "the outputs"
    if known.any():
        warn(f"{known.sum():,} of {known.size:,} labels of {whose} were counted before and are not counted again.")
    if rows is not None and (never := int(np.count_nonzero(~rows.has(hashes)))):
        warn(
            f"{never:,} of {known.size:,} labels of {whose} are for rows that were never counted: count the rows too, "
            "or the labels are of other rows than the monitor's."
        )
    return ~known
