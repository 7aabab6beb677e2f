"""What held-out rows looked like, in counts: the reference that rows in use are compared with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.stored import Part, Record, kinds, need
from atypicality.validation import check_vector

__all__ = ["LEVELS", "HeldOutCounts", "Ranks"]

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""Quantiles of atypicality and confidence whose shares are compared."""
MOST_WORDS = 100  # different words of an attribute that is compared; names of samples have more

Vector = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(eq=False, repr=False)
class Ranks:
    """Values at ranks of n held-out rows that were fixed without looking at them.

    The share of new rows at or below the k-th smallest of n values is at least a Beta(k, n + 1 - k) variable, and the
    share strictly below it at most that variable; without ties both are equal to it (David and Nagaraja 2003, section
    2.1). The `edges` (m,) are strictly increasing; `low` and `high` (m,) are the smallest and the largest of the fixed
    ranks that have each value.

    >>> ranks = Ranks.from_rows([4.0, 1.0, 1.0, 3.0], (0.25, 0.5, 0.75))
    >>> ranks.edges.tolist(), ranks.low.tolist(), ranks.high.tolist()
    ([1.0, 3.0], [1, 3], [2, 3])
    >>> ranks.cells([0.0, 1.0, 2.0, 3.0, 9.0]).tolist()
    [0, 1, 2, 3, 4]
    """

    edges: Annotated[Vector, kinds.Array("*", kinds.FINITE, kinds.INCREASING)]
    low: Annotated[Counts, kinds.Counts("*", kinds.POSITIVE)]
    high: Annotated[Counts, kinds.Counts("*", kinds.POSITIVE)]
    n_rows: Annotated[int, kinds.Integer(1)]

    @classmethod
    def from_rows(cls, values: ArrayLike, levels: ArrayLike = LEVELS) -> Self:
        """Learn from held-out values (n,), at least one."""
        ordered = np.sort(check_vector(values, "values"))
        wanted = np.round(np.asarray(levels, np.float64) * ordered.size).astype(np.int64)
        ranks = np.unique(np.clip(wanted, 1, ordered.size))
        edges, first, number = np.unique(ordered[ranks - 1], return_index=True, return_counts=True)
        return cls(edges, ranks[first], ranks[first + number - 1], ordered.size)

    def cells(self, values: ArrayLike) -> NDArray[np.intp]:
        """Cell of each value (n,): 2 j + 1 at edge j, and the even numbers between edges."""
        array = np.asarray(values, np.float64)
        return np.searchsorted(self.edges, array, "left") + np.searchsorted(self.edges, array, "right")

    def _check_stored(self) -> None:
        sizes = {self.edges.size, self.low.size, self.high.size}  # of one Ranks: another part may have another
        need(len(sizes) == 1 and self.edges.size >= 1, "there must be one pair of ranks for each edge, at least one.")
        in_order = (self.low <= self.high).all() and (self.high[:-1] < self.low[1:]).all()
        need(in_order and self.high[-1] <= self.n_rows, "ranks must rise with the edges, up to the number of rows.")

    _stored = Record(check=_check_stored)


@dataclass(eq=False, repr=False)
class HeldOutCounts:
    """Counts over held-out rows: no row can be told from them.

    Examples
    --------
    >>> held_out = HeldOutCounts.from_rows([0.9, 0.6, 0.8], np.array([0, 1, 1]), np.array([0, 1, 0]), n_classes=2)
    >>> held_out.n_rows, held_out.errors, held_out.predicted.tolist(), held_out.labels.tolist()
    (3, 1, [1, 2], [2, 1])
    """

    confidence: Annotated[Ranks, Part(Ranks)]
    predicted: Annotated[Counts, kinds.Counts("K", kinds.NOT_NEGATIVE)]  # rows of each predicted class (k,)
    labels: Annotated[Counts, kinds.Counts("K", kinds.NOT_NEGATIVE)]  # rows of each true class (k,)
    errors: Annotated[int, kinds.Integer()]  # wrong predictions
    atypicality: Annotated[Ranks | None, kinds.optional(Part(Ranks))] = None  # None without a density
    missed: Annotated[int | None, kinds.optional(kinds.Integer())] = None
    """Rows whose prediction set lacks the label; None where the same rows set the thresholds."""
    words: Annotated[
        dict[str, dict[str, int]],
        kinds.MappingOf(kinds.MappingOf(kinds.Integer(), keys=r"[\s\S]{0,200}"), keys=r"[\s\S]{1,200}"),
    ] = field(default_factory=dict)
    """Rows of each value of each field that holds words, such as the quadrant; none where they set its thresholds."""
    medians: Annotated[Vector | None, kinds.optional(kinds.Array("*", kinds.FINITE))] = None
    median_rank: Annotated[int | None, kinds.optional(kinds.Integer(1))] = None
    """Of each column of the embeddings (d,)."""
    mean_confidence: Annotated[float | None, kinds.Later(kinds.optional(kinds.Number(0, 1)), absent=None)] = None

    @property
    def n_rows(self) -> int:
        """Held-out rows."""
        return int(self.labels.sum())

    @property
    def accuracy(self) -> float:
        """Share of held-out rows that were predicted right."""
        return 1 - self.errors / self.n_rows

    @classmethod
    def from_rows(
        cls,
        confidence: ArrayLike,
        predicted: NDArray[Any],
        labels: NDArray[Any],
        *,
        n_classes: int,
        atypicality: ArrayLike | None = None,
        missed: int | None = None,
        words: Mapping[str, NDArray[Any]] | None = None,
        embeddings: NDArray[Any] | None = None,
    ) -> Self:
        """Count held-out rows: their confidence, predicted and true columns (n,), and what else is known of them."""
        medians, rank = (None, None) if embeddings is None else _medians(embeddings)
        return cls(
            Ranks.from_rows(confidence),
            np.bincount(predicted, minlength=n_classes).astype(np.int64),
            np.bincount(labels, minlength=n_classes).astype(np.int64),
            int(np.count_nonzero(predicted != labels)),
            None if atypicality is None else Ranks.from_rows(atypicality),
            missed,
            {name: found for name, column in (words or {}).items() if (found := _word_counts(column)) is not None},
            medians,
            rank,
            min(1.0, float(np.asarray(confidence, np.float64).mean())),
        )

    def _check_stored(self) -> None:
        n = self.n_rows
        need(n >= 1 and self.predicted.sum() == n and self.confidence.n_rows == n, "counts must be of the same rows.")
        need(self.errors <= n and (self.missed or 0) <= n, "errors must be among the rows.")
        need((self.medians is None) == (self.median_rank is None), "medians come with their rank.")

    _stored = Record(check=_check_stored)


def _word_counts(column: NDArray[Any]) -> dict[str, int] | None:
    """Rows of each word; None where there are too many for a field of words."""
    found, counts = np.unique(np.asarray(column).astype(str), return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True)) if found.size <= MOST_WORDS else None


def _medians(embeddings: NDArray[Any]) -> tuple[Vector, int]:
    """The value at the middle rank of each column (d,), a few columns at a time, and that rank."""
    n, d = embeddings.shape
    rank, found = max(1, n // 2), np.empty(d)
    for columns in blocks.row_slices(d, blocks.block_rows(8 * n)):
        part = np.array(embeddings[:, columns], np.float64)
        found[columns] = np.partition(part, rank - 1, axis=0)[rank - 1]
    return found, rank
