"""Exact nearest neighbours by float32 products: a bound on their rounding says which rows need a second look.

With rows shifted and scaled, s = q . t - |t|^2 / 2 orders the training rows t of a query q by distance, and a matrix
product gives all of them. Rounding moves s by at most gamma (|q| |t| + |t|^2 / 2), so a row whose s lies further below
the k-th best than twice that cannot be among the k nearest. The few others are measured directly, in float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.density.statistics import refuse_rows
from atypicality.density.unit import refuse_zeros
from atypicality.formula.rows import unit_rows
from atypicality.stored import Record, kinds
from atypicality.validation import FloatArray

__all__ = ["METRICS", "Reduction", "Reference", "Search"]

METRICS = {"euclidean": "", "cosine": "metric='cosine'", "chord": "normalize='l2'"}
"""Distances that rows can be measured by, and the option that asks for rows of length 1; a chord is the Euclidean
distance between such rows."""

Float64 = NDArray[np.float64]
Index = NDArray[np.intp]
Reduction = Callable[[Float64], Float64]
"""Distances (n, k) of each query, ascending, to one number (n,): never smaller where no distance is."""

_TILE_BYTES = 4 * 1024 * 1024  # of training rows in one product
_GROUP = 16  # scores whose maximum stands for all of them
_PENDING = 256  # candidates per query that may wait for their exact distance
_LONGEST = 1e18  # a longer query would overflow a float32 product; training rows have length 1 at most
_TINY = 1e-30  # more than products lose by underflow
_SCALES = 2.0**-100, 2.0**100  # beyond them rows are no float32 numbers before they are scaled
_MODERATE = 2.0**-30, 2.0**30  # within them products of rows as they are fit into float32


@dataclass(frozen=True)
class Reference:
    """Training rows (n, d) on their device, and how a row is shifted and scaled before it enters a product."""

    rows: Annotated[FloatArray, kinds.Array("n D", kinds.FINITE, dtypes=("float16", *kinds.ANY_FLOAT))]
    metric: Annotated[str, kinds.Choice(*METRICS)]
    shift: Annotated[NDArray[np.float32], kinds.Array("D", kinds.FINITE, dtypes=("float32",))]
    scale: Annotated[float, kinds.Number(0, low_open=True)]
    half_squares: Annotated[
        NDArray[np.float32], kinds.Array("n", kinds.FINITE, kinds.NOT_NEGATIVE, dtypes=("float32",))
    ]
    _stored = Record()

    @classmethod
    def of(cls, rows: FloatArray, metric: str) -> "Reference":
        """Read the rows once: check them, and measure their lengths about a rough centre."""
        shift, squares = _rough_centre(rows, metric), np.empty(rows.shape[0])

        def measure(part: slice) -> None:
            squares[part] = _squares_about(shift, rows[part], metric, part.start)

        blocks.for_rows(measure, rows.shape[0], block=blocks.block_rows(rows.shape[1] * 8))
        largest = float(squares.max())
        scale = 2.0 ** -np.ceil(0.5 * np.log2(largest)) if largest > 0 else 1.0  # a power of two is exact
        return cls(rows, metric, shift, scale, (squares * scale * scale * 0.5).astype(np.float32))

    def prepared(self, rows: FloatArray, out: NDArray[np.float32], *, queries: bool = False) -> NDArray[np.float32]:
        """Rows shifted and scaled, in a float32 buffer.

        Where a product cannot overflow by it, queries are scaled for both: a power of two changes no digit.
        """
        rows = rows if self.metric == "euclidean" else exact_rows(rows, self.metric)
        if not _SCALES[0] < self.scale < _SCALES[1]:
            gap = np.subtract(rows, self.shift, dtype=np.float64)
            return np.multiply(gap, self.scale, out=out, casting="same_kind")
        np.subtract(rows, self.shift, out=out, casting="same_kind")
        if not _MODERATE[0] < self.scale < _MODERATE[1]:
            return np.multiply(out, np.float32(self.scale), out=out)
        return np.multiply(out, np.float32(self.scale**2), out=out) if queries else out

    def squared_distances(self, queries: Float64, rows: Index) -> Float64:
        """Squared distance of each query (n, d) to its training row, directly."""
        gap = exact_rows(self.rows[rows], self.metric)
        np.subtract(queries, gap, out=gap)
        return np.asarray(np.vecdot(gap, gap))


def exact_rows(rows: FloatArray, metric: str, *, first_row: int = 0) -> Float64:
    """Rows in float64 for a Euclidean distance: as they are, or scaled to length 1."""
    if metric == "euclidean":
        return rows.astype(np.float64)
    refuse_zeros((rows == 0).all(axis=1), METRICS[metric], first_row=first_row)
    with np.errstate(invalid="ignore"):
        exact: Float64 = unit_rows(np, rows)[0]
    return exact


def _squares_about(shift: FloatArray, rows: FloatArray, metric: str, first_row: int) -> Float64:
    with np.errstate(invalid="ignore", over="ignore"):
        exact = rows if metric == "euclidean" else exact_rows(rows, metric, first_row=first_row)
        gap = exact.astype(np.float64, copy=exact is rows)
        gap -= shift
        squares = np.vecdot(gap, gap)
    if not np.isfinite(squares).all():
        refuse_rows(rows, gap.dtype, first_row=first_row)
    return np.asarray(squares)


def _rough_centre(rows: FloatArray, metric: str) -> NDArray[np.float32]:
    """Mean of some rows: a better one would only make the search faster."""
    sample = rows[:: 1 + rows.shape[0] // 1000].astype(np.float64)
    if metric != "euclidean":
        sample = exact_rows(sample[sample.any(axis=1)], metric)
    with np.errstate(invalid="ignore", over="ignore"):
        centre = (sample.sum(axis=0) / max(1, sample.shape[0])).astype(np.float32)
    return np.where(np.isfinite(centre), centre, np.float32(0.0))


class Search:
    """The k nearest training rows of a block of queries (n, d), found tile by tile.

    Parameters
    ----------
    reference : Reference
    queries : ndarray of shape (n, d)
    first_row : int
        Number of the first query in the whole array.
    exclude_self : bool
        Query i does not meet training row `first_row + i`.
    """

    def __init__(self, reference: Reference, queries: FloatArray, *, first_row: int, exclude_self: bool) -> None:
        self.reference = reference
        self.own_row = first_row if exclude_self else None
        self.exact = exact_rows(queries, reference.metric, first_row=first_row)
        squares = _squares_about(reference.shift, queries, reference.metric, first_row)
        with np.errstate(over="ignore"):
            self.squares = squares * reference.scale * reference.scale
            self.rounded = np.ones((queries.shape[0], queries.shape[1] + 1), np.float32)
            reference.prepared(queries, self.rounded[:, :-1], queries=True)
        self.rounded[self.squares > _LONGEST**2] = 0.0

    def nearest(self, members: Index | slice, k: int) -> Float64:
        """Distances (n, k) to the nearest of the training rows `members`, ascending."""
        return self._found(members, k).distances()

    def reduced(self, members: Index | slice, k: int, reduce: Reduction, ceiling: Float64) -> Float64:
        """Reduce the distances (n, k) to the nearest of the training rows `members` to (n,).

        Infinite where the result is sure to be above the `ceiling` (n,), so that it need not be measured.
        """
        found = self._found(members, k)
        found.drop_above(ceiling, reduce)
        return found.reduced(reduce)

    def _found(self, members: Index | slice, k: int) -> "_Found":
        n_members = members.size if isinstance(members, np.ndarray) else members.stop - members.start
        n, d = self.exact.shape
        tile = min(n_members, blocks.block_rows(4 * d, budget=_TILE_BYTES))
        group = min(_GROUP, max(1, tile // (8 * k)))
        found = _Found(self, k, wanted=min(k + (self.own_row is not None), n_members), single=group == 1)
        scores = np.empty((-(-tile // group) * group, n), np.float32)
        prepared = np.empty((tile, d + 1), np.float32)  # the last column makes the product subtract half squares
        for part in blocks.row_slices(n_members, tile):
            chosen, size = members[part] if isinstance(members, np.ndarray) else part, part.stop - part.start
            self.reference.prepared(self.reference.rows[chosen], prepared[:size, :-1])
            np.negative(self.reference.half_squares[chosen], out=prepared[:size, -1])
            np.matmul(prepared[:size], self.rounded.T, out=scores[:size])
            scores[size:] = -np.inf  # where the last tile falls short
            numbers = members[part] if isinstance(members, np.ndarray) else np.arange(part.start, part.stop)
            found.add(scores.reshape(group, -1, n), numbers)
        return found


class _Found:
    """Candidates for the k nearest training rows of each query, kept few by what is known so far.

    `single` says that a group is a single score.
    """

    def __init__(self, search: Search, k: int, *, wanted: int, single: bool) -> None:
        n, d = search.exact.shape
        self.search, self.k, self.single = search, k, single
        self.best = np.full((n, wanted), -np.inf, np.float32)  # the largest group maxima so far
        self.bound = np.full(n, -np.inf, np.float32)
        self.gamma = (d + 9) * 2.0**-24  # d + 1 products and sums, and the roundings of q, t and |t|^2
        self.tiles = 0
        self.pending = _Pairs.none()
        self.settled = _Pairs.none()
        self.slack = np.full(n, np.inf)  # twice the rounding of a score
        self.done = np.zeros(n, bool)  # k rows at distance 0: nothing is nearer
        self.dropped = np.zeros(n, bool)

    def add(self, scores: NDArray[np.float32], columns: Index) -> None:
        """Take in scores (group, n_groups, n) of the training rows `columns`; row g + n_groups * i is in group g.

        Queries come last: maxima of whole rows of memory take a third of the time of maxima along them.
        """
        peaks = scores.max(axis=0)
        self.tiles += 1
        if self.single or self.tiles & (self.tiles - 1) == 0:  # a bound of half the rows lets in twice the candidates
            self._raise_bound(peaks)
        group, row = _places(peaks >= self.bound)
        near = scores[:, group, row]
        depth, which = _places(near >= self.bound[row])
        row, place = row[which], depth * peaks.shape[0] + group[which]
        column = columns[np.minimum(place, columns.size - 1)]
        counts = place < columns.size
        if self.search.own_row is not None:
            counts &= column != row + self.search.own_row
        value = near[depth, which].astype(np.float64)
        self.pending = self.pending.joined(_Pairs(row[counts], column[counts], value[counts]))
        if self.pending.row.size > _PENDING * self.bound.size:
            self._settle()

    def drop_above(self, ceiling: Float64, reduce: Reduction) -> None:
        """Drop queries whose result is sure to be above a ceiling; maxima of several scores do not tell."""
        if not self.single:
            return
        largest = np.sort(self.best, axis=1)[:, : -self.k - 1 : -1]
        squares = self.search.squares[:, None] - 2.0 * largest - self.slack[:, None]
        scale = self.search.reference.scale
        at_least = reduce(self._distances(np.maximum(squares, 0.0) / scale / scale))
        self.dropped = at_least > ceiling
        self.bound[self.dropped] = np.inf

    def reduced(self, reduce: Reduction) -> Float64:
        """The result of each query, infinite for those dropped."""
        out = np.full(self.dropped.size, np.inf)
        out[~self.dropped] = reduce(self.distances())
        return out

    def distances(self) -> Float64:
        """Distances (n, k) of the queries that were not dropped, ascending."""
        self._settle()
        kept = self.settled.value[~self.dropped[self.settled.row]]
        return self._distances(kept.reshape(-1, self.k))

    def _distances(self, squares: Float64) -> Float64:
        return np.asarray(0.5 * squares if self.search.reference.metric == "cosine" else np.sqrt(squares))

    def _raise_bound(self, peaks: NDArray[np.float32]) -> None:
        """The k-th largest group maximum bounds the k-th largest score from below; allow for twice the rounding."""
        rows = np.flatnonzero(~self.done & (peaks.max(axis=0) > self.best[:, 0]))
        if not rows.size:
            return
        wanted = self.best.shape[1]
        both = np.concatenate([self.best[rows], peaks.T[rows]], axis=1)
        both.partition(both.shape[1] - wanted, axis=1)
        self.best[rows] = both[:, -wanted:]
        score, square = both[:, -wanted].astype(np.float64), self.search.squares[rows]
        with np.errstate(invalid="ignore"):
            length = np.sqrt(square)
            reach = 1.01 * (length + np.sqrt(np.maximum(square - 2.0 * score, 0.0)))  # no longer row can be so near
            slack = 2.0 * self.gamma * (length * reach + 0.5 * reach**2) + _TINY
        self.slack[rows] = np.where((score == -np.inf) | (square > _LONGEST**2), np.inf, slack)
        bound = np.where(self.slack[rows] == np.inf, -np.inf, score - slack)
        self.bound[rows] = np.nextafter(bound.astype(np.float32), np.float32(-np.inf))

    def _settle(self) -> None:
        """Measure the candidates that can still be among the nearest, and keep the k nearest of each query."""
        likely = self.pending.value >= self.bound[self.pending.row]
        pairs = _Pairs(self.pending.row[likely], self.pending.column[likely], np.empty(int(likely.sum())))

        def measure(part: slice) -> None:
            queries = self.search.exact[pairs.row[part]]
            pairs.value[part] = self.search.reference.squared_distances(queries, pairs.column[part])

        block = blocks.block_rows(16 * self.search.exact.shape[1], budget=blocks.GEMM_BYTES)
        blocks.for_rows(measure, pairs.row.size, block=block, threads=1)
        self.pending, self.settled = _Pairs.none(), self.settled.joined(pairs).nearest(self.k)
        full = np.bincount(self.settled.row, self.settled.value, minlength=self.done.size) == 0
        full &= np.bincount(self.settled.row, minlength=self.done.size) == self.k
        self.done |= full
        self.bound[self.done] = np.inf


def _places(chosen: NDArray[np.bool_]) -> tuple[Index, Index]:
    """Rows and columns of what is true, which `nonzero` of two dimensions finds in four times the time."""
    row, column = np.divmod(np.flatnonzero(chosen), max(1, chosen.shape[1]))
    return row, column


@dataclass(frozen=True)
class _Pairs:
    """Queries and training rows that may be neighbours, each with a number: a score or a squared distance."""

    row: Index
    column: Index
    value: Float64

    @classmethod
    def none(cls) -> "_Pairs":
        return cls(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0))

    def joined(self, other: "_Pairs") -> "_Pairs":
        return _Pairs(*(np.concatenate(both) for both in zip(vars(self).values(), vars(other).values(), strict=True)))

    def nearest(self, k: int) -> "_Pairs":
        """The k smallest values of each row, in ascending order."""
        order = np.lexsort((self.column, self.value, self.row))
        row = self.row[order]
        place = np.arange(row.size) - np.searchsorted(row, row)
        order = order[place < k]
        return _Pairs(self.row[order], self.column[order], self.value[order])
