"""Exact nearest neighbours on a device: coarse products say which training rows can be near, and those are measured.

As in `density.search`, s = q . t - |t|^2 / 2 orders the training rows t of a query q by distance, and a product gives
it up to an error e. Here the product is one of half precision, the fastest that tensor cores have, with |t|^2 / 2 in
two columns of its own. Of 16 rows only the largest s is kept; the k-th largest of these maxima, less 2 e, is a
threshold below which no group holds a near row. With |q| = |t| = r and 2048 columns e is at most r^2 / 750, while the s
of Gaussian rows spread by r^2 / 37 about their mean: so few groups beyond k are above the threshold. Their rows are
measured directly, in float64. A query for which more groups are above it than are kept is searched again with products
in float64, and one that stays open even then, being equally far from many rows, is measured against all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import Device, namespace, to_device, to_host
from atypicality.density.device_products import DOUBLE, HALF, Grain, largest, product
from atypicality.density.device_reference import DeviceReference, Queries

__all__ = ["differing_rows", "neighbor_atypicality"]

Members = NDArray[np.intp] | slice

_PEAKS_BYTES = 2**32  # of maxima of groups
_ROWS_BYTES = 2**30  # of rows that become an operand, or are measured
_QUERIES, _TILE = 2**14, 2**15  # at most so many rows enter one product: 2 GB of scores
_GROUP = 16  # scores whose maximum stands for all of them
_SINGLE = 4096  # training rows that are few enough to keep every score


def neighbor_atypicality(
    reference: DeviceReference, x: Device, members: Sequence[Members], k: int, reduction: str, *, exclude_self: bool
) -> Device:
    """Smallest over the parts `members` of the reduced distances of rows (n, d) to the k nearest rows of that part."""
    xp = namespace(x)
    largest_part = max(_size(part) for part in members)
    bytes_per_query = 4 * min(largest_part, max(_SINGLE, largest_part // _GROUP)) + 32 * x.shape[1]
    height = min(blocks.block_rows(bytes_per_query, budget=_PEAKS_BYTES), _QUERIES)
    cuts, found = list(blocks.row_slices(x.shape[0], height)), []
    for rows in cuts or [slice(0, 0)]:
        queries = Queries.of(reference, x[rows, :], first_row=rows.start, exclude_self=exclude_self)
        best = xp.full((rows.stop - rows.start,), xp.inf, dtype=xp.float64, device=x.device)
        operand = queries.operand(reference, HALF)
        for part in members if rows.stop > rows.start else ():
            best = xp.minimum(best, _Search(reference, part, k).reduced(queries, operand, reduction, best))
        found.append(best)
    return xp.concat(found)


def differing_rows(x: Device, own: Device) -> NDArray[np.intp]:
    """Positions at which two arrays (n, d) do not have the same row, on the host."""
    xp = namespace(own)
    cuts = blocks.row_slices(x.shape[0], blocks.block_rows(8 * x.shape[1], budget=_ROWS_BYTES))
    return np.flatnonzero(to_host(xp.concat([xp.any(x[rows, :] != own[rows, :], axis=1) for rows in cuts])))


@dataclass(frozen=True)
class _Coarse:
    """What products say of each query: its largest group maxima (n, m), where they are, and which can be near.

    `sure` (n,) means that no other group holds one of the k nearest rows, `error` (n,) bounds that of any score.
    """

    peaks: Device
    groups: Device
    near: Device
    sure: Device
    error: Device

    def at(self, positions: Device) -> "_Coarse":
        xp = namespace(self.peaks)
        return _Coarse(*(xp.take(values, positions, axis=0) for values in vars(self).values()))


class _Search:
    """The k nearest of some training rows: all, as a slice, or those at some positions."""

    def __init__(self, reference: DeviceReference, members: Members, k: int) -> None:
        self.reference, self.k, self.size = reference, k, _size(members)
        self.members = members if isinstance(members, slice) else to_device(members, reference.rows)
        self.xp = namespace(reference.rows)

    def reduced(self, queries: Queries, operand: Device, reduction: str, ceiling: Device) -> Device:
        """Reduced distances (n,) of queries with their `operand`; infinite where surely above the `ceiling` (n,)."""
        xp, coarse = self.xp, self._coarse(queries, operand, HALF)
        open_ = ~(self._at_least(queries, coarse, reduction) > ceiling) | (queries.lengths > HALF.longest)
        positions = xp.nonzero(open_)[0]
        if positions.shape[0] < open_.shape[0]:
            queries, coarse = queries.at(positions), coarse.at(positions)
        if not positions.shape[0]:
            return xp.full_like(ceiling, xp.inf)
        nearest = self._nearest(queries, coarse, [DOUBLE])
        return _placed(xp.full_like(ceiling, xp.inf), open_, _reduced(nearest, reduction))

    def _at_least(self, queries: Queries, coarse: _Coarse, reduction: str) -> Device:
        """A bound from below on the reduced distances (n,): the first maximum bounds all scores, single ones each."""
        xp, single = self.xp, self._group(queries) == 1
        squares = (queries.lengths**2 - 2 * coarse.error)[:, None] - 2 * coarse.peaks[:, : self.k if single else 1]
        shortest = xp.sqrt(xp.where(squares > 0, squares, 0.0)) / self.reference.scale
        return _reduced(self.reference.as_distance(shortest), reduction)

    def _nearest(self, queries: Queries, coarse: _Coarse, finer: list[Grain]) -> Device:
        """Distances (n, k) to the nearest rows, ascending."""
        distances = self._measured(queries, coarse)
        sure = coarse.sure | (distances[:, -1] == 0)  # nothing is nearer
        positions = self.xp.nonzero(~sure)[0]
        if not positions.shape[0]:
            return distances
        left = queries.at(positions)
        if finer:
            coarse = self._coarse(left, left.operand(self.reference, finer[0]), finer[0])
            return _placed(distances, ~sure, self._nearest(left, coarse, finer[1:]))
        return _placed(distances, ~sure, self._all_measured(left))

    def _coarse(self, queries: Queries, operand: Device, grain: Grain) -> _Coarse:
        """Group maxima of all scores, and the threshold above which a group can hold a near row."""
        xp, wanted, width = self.xp, self._wanted(queries), self.reference.rows.shape[1]
        maxima = self._maxima(operand, grain, self._group(queries))
        kept = min(maxima.shape[1], 2 * wanted + 24)
        peaks, groups = largest(maxima, kept)
        peaks = xp.astype(peaks, xp.float64, copy=False)
        score, length = peaks[:, wanted - 1], queries.lengths
        farthest = self.reference.longest
        error = grain.error(width, length, farthest)
        square = length**2 - 2 * (score - error)  # of the k-th nearest row: at most that far
        reach = length + xp.sqrt(xp.where(square > 0, square, 0.0))  # so no near row is longer
        threshold = score - 2 * grain.error(width, length, xp.where(reach < farthest, reach, farthest))
        near = peaks >= threshold[:, None]
        sure = (peaks[:, -1] < threshold) & (length <= grain.longest)
        if kept == maxima.shape[1]:
            near, sure = xp.ones_like(near), xp.ones_like(sure)
        return _Coarse(peaks, groups, near, sure, error)

    def _maxima(self, operand: Device, grain: Grain, group: int) -> Device:
        """Largest score of each group of training rows (n, n_groups), in float32 or float64."""
        xp, n, found = self.xp, operand.shape[0], []
        for part in blocks.row_slices(self.size, self._tile):
            scores = product(operand, self.reference.operand(self._numbers(part), grain))
            short = -scores.shape[1] % group
            if short:
                padding = xp.full((n, short), -xp.inf, dtype=scores.dtype, device=scores.device)
                scores = xp.concat([scores, padding], axis=1)
            found.append(xp.max(xp.reshape(scores, (n, group, -1)), axis=1) if group > 1 else scores)
        return found[0] if len(found) == 1 else xp.concat(found, axis=1)

    def _measured(self, queries: Queries, coarse: _Coarse) -> Device:
        """Distances (n, k) to the nearest rows of the groups that can be near, ascending."""
        xp, (n, kept), group = self.xp, coarse.near.shape, self._group(queries)
        flat = xp.reshape(coarse.near, (-1,))
        pairs = xp.nonzero(flat)[0]
        groups = xp.take(xp.reshape(coarse.groups, (-1,)), pairs, axis=0)
        height = blocks.block_rows(8 * group * self.reference.rows.shape[1], budget=_ROWS_BYTES)
        found = [
            self._group_distances(queries.at(pairs[part] // kept), groups[part], group)
            for part in blocks.row_slices(pairs.shape[0], height)
        ]
        nowhere = xp.full((1, group), xp.inf, dtype=xp.float64, device=flat.device)
        slots = xp.where(flat, xp.cumulative_sum(xp.astype(flat, pairs.dtype)) - 1, pairs.shape[0])
        spread = xp.take(xp.concat([*found, nowhere], axis=0), slots, axis=0)
        return -largest(-xp.reshape(spread, (n, kept * group)), self.k)[0]

    def _group_distances(self, queries: Queries, groups: Device, group: int) -> Device:
        """Distances (p, group) of each query to the rows of its group: every `stride`-th of a tile of rows."""
        xp, tile = self.xp, self._tile
        which = groups // -(-tile // group)
        start = which * tile
        stop = xp.where(start + tile < self.size, start + tile, self.size)
        stride = (stop - start + group - 1) // group
        steps = xp.arange(group, dtype=groups.dtype, device=groups.device)
        first = start + groups - which * -(-tile // group)
        places = first[:, None] + stride[:, None] * steps[None, :]
        inside = places < stop[:, None]
        places = xp.where(inside, places, 0)
        if isinstance(self.members, slice):
            numbers = places
        else:
            numbers = xp.reshape(xp.take(self.members, xp.reshape(places, (-1,)), axis=0), places.shape)
        if queries.own is not None:
            inside = inside & (numbers != queries.own[:, None])
        return xp.where(inside, self.reference.distances(queries.exact, numbers), xp.inf)

    def _all_measured(self, queries: Queries) -> Device:
        """Distances (n, k) to the nearest rows, ascending, from all rows: one query after the other."""
        found = [self._one_measured(queries, i) for i in range(queries.lengths.shape[0])]
        return self.xp.concat(found, axis=0)

    def _one_measured(self, queries: Queries, i: int) -> Device:
        xp, reference = self.xp, self.reference
        best = xp.full((1, self.k), xp.inf, dtype=xp.float64, device=reference.rows.device)
        query = queries.exact[i : i + 1, :]
        for part in blocks.row_slices(self.size, self._tile):
            numbers = self._numbers(part)
            if isinstance(numbers, slice):
                numbers = xp.arange(numbers.start, numbers.stop, device=best.device)
            distances = reference.distances(query, numbers[None, :])
            if queries.own is not None:
                distances = xp.where(numbers[None, :] == queries.own[i], xp.inf, distances)
            best = -largest(-xp.concat([best, distances], axis=1), self.k)[0]
        return best

    def _numbers(self, part: slice) -> Any:
        return part if isinstance(self.members, slice) else self.members[part]

    def _wanted(self, queries: Queries) -> int:
        """Rows that a query must meet: one more where it meets itself."""
        return self.k + (queries.own is not None)

    def _group(self, queries: Queries) -> int:
        return 1 if self.size <= max(_SINGLE, 8 * _GROUP * self._wanted(queries)) else _GROUP

    @property
    def _tile(self) -> int:
        """Training rows of one product."""
        return min(_TILE, blocks.block_rows(8 * self.reference.rows.shape[1], budget=_ROWS_BYTES))


def _reduced(distances: Device, reduction: str) -> Device:
    """Distances (n, k), ascending, to one number (n,)."""
    if reduction == "mean":
        return namespace(distances).mean(distances, axis=1)
    return distances[:, -1 if reduction == "kth" else 0]


def _placed(values: Device, where: Device, others: Device) -> Device:
    """`values` with its rows at the mask `where` (n,) replaced by `others`, in their order."""
    xp = namespace(values)
    steps = xp.cumulative_sum(xp.astype(where, xp.int64)) - 1
    spread = xp.take(others, xp.where(steps > 0, steps, 0), axis=0)
    return xp.where(where if values.ndim == 1 else where[:, None], spread, values)


def _size(members: Members) -> int:
    return int(members.size if isinstance(members, np.ndarray) else members.stop)
