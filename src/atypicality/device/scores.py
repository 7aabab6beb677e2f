"""Conformal scores and sets where the probabilities lie: the same rules as `conformal.scores`, bit for bit.

Masses are sums of multiples of 2^-52 that stay below 2, which float64 adds without error in any order. So a device,
whatever the order in which it adds, finds the masses of the CPU; everything else is one rounded operation per entry,
or a comparison. Scores of labels come to the host, where the threshold is an order statistic; sets stay.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import namespace
from atypicality.device.checks import Device, to_device, to_host
from atypicality.device.probabilities import entries_at, row_blocks

__all__ = ["label_columns", "prediction_sets", "total_sizes"]

Doubles = NDArray[np.float64]
Candidate = tuple[Any, Doubles]
"""A rule of `conformal.scores` with its thresholds (n,)."""


def label_columns(probs: Device, labels: NDArray[np.intp]) -> tuple[NDArray[Any], ...]:
    """Probability, top, mass above, mass tied and rank of the labels, each (n,) on the host: see `LabelStatistics`."""
    target = to_device(labels, probs)
    parts = [_label_block(probs[rows, :], target[rows]) for rows in row_blocks(probs)]
    return tuple(np.concatenate([to_host(part) for part in column]) for column in zip(*parts, strict=True))


def prediction_sets(probs: Device, thresholds: Doubles, rule: Any, draws: Any = 1.0) -> Device:
    """All labels whose score is at most their row's threshold: bool (n, k), beside `probs`."""
    candidates = [(rule, thresholds)]
    sets = [next(_accepted(probs, rows, candidates, draws)) for rows in row_blocks(probs)]
    return sets[0] if len(sets) == 1 else namespace(probs).concat(sets, axis=0)


def total_sizes(probs: Device, candidates: Sequence[Candidate], draws: Any = 1.0) -> NDArray[np.intp]:
    """Sum of the sizes of all sets, for each of several rules with their thresholds: one sort serves all."""
    xp, totals = namespace(probs), np.zeros(len(candidates), np.intp)
    for rows in row_blocks(probs):
        totals += np.array([int(xp.count_nonzero(sets)) for sets in _accepted(probs, rows, candidates, draws)])
    return totals


def _label_block(block: Device, target: Device) -> tuple[Device, ...]:
    xp = namespace(block)
    own = entries_at(block, target)
    at_least = block >= own
    tied = xp.astype(xp.count_nonzero(block == own, axis=1), xp.float64) * _rounded(own)[:, 0]
    above = xp.sum(xp.where(at_least, _rounded(block), 0.0), axis=1) - tied
    wide = (xp.astype(column, xp.float64) for column in (own[:, 0], xp.max(block, axis=1)))
    return *wide, above, tied, xp.count_nonzero(at_least, axis=1)


def _accepted(probs: Device, rows: slice, candidates: Sequence[Candidate], draws: Any) -> Iterator[Device]:
    """The sets of a block of rows, for one candidate after the other."""
    xp, block = namespace(probs), probs[rows, :]
    top = xp.max(block, axis=1, keepdims=True)
    if any(rule.name != "lac" for rule, _ in candidates):
        ordered = xp.sort(block, axis=1, descending=True, stable=False)
        along = _Along(ordered, draws if np.ndim(draws) == 0 else draws[rows])
    for rule, thresholds in candidates:
        limit = to_device(thresholds[rows, None], block)
        if rule.name == "lac":
            accepted = 1.0 - xp.astype(block, xp.float64) <= limit
        else:
            accepted = block > _first_rejected(ordered, along.scores(rule), limit)
        yield accepted if rule.nonempty is None else accepted | (block == top)


class _Along:
    """What scores along descending rows (n, k) are made of, each position taken as the last of its ties."""

    def __init__(self, ordered: Device, draws: Any) -> None:
        from array_api_compat import device

        self.xp = xp = namespace(ordered)
        values = _rounded(ordered)
        self.above: Any = 0.0
        self.tied = xp.cumulative_sum(values, axis=1)
        self.top = xp.astype(ordered[:, :1], xp.float64)
        self.rank = xp.arange(1, ordered.shape[1] + 1, dtype=xp.float64, device=device(ordered))
        self.draws = float(draws) if np.ndim(draws) == 0 else to_device(draws[:, None], ordered)
        if np.any(draws < 1):  # u = 1 needs the sum alone
            follows = ordered[:, 1:] == ordered[:, :-1]
            repeats = xp.concat([xp.zeros_like(follows[:, :1]), follows], axis=1)
            self.above = _running_maximum(xp.where(repeats, 0.0, self.tied - values))
            self.tied = self.tied - self.above

    def scores(self, rule: Any) -> Device:
        """Scores (n, k) by a rule."""
        return rule.values(self.above, self.tied, self.rank, self.top, self.draws, xp=self.xp)


def _first_rejected(ordered: Device, scores: Device, limit: Device) -> Device:
    """The largest probability of each row that is not in its set, (n, 1); -1 for a full set."""
    xp, k = namespace(ordered), ordered.shape[1]
    within = xp.count_nonzero(scores <= limit, axis=1)[:, None]  # scores never fall along a row
    return xp.where(within < k, xp.take_along_axis(ordered, xp.clip(within, max=k - 1), axis=1), -1.0)


def _running_maximum(values: Device) -> Device:
    """Maximum of everything up to each position of a row, by doubling: the standard has no cumulative maximum."""
    xp, reach = namespace(values), 1
    while reach < values.shape[1]:
        values = xp.concat([values[:, :reach], xp.maximum(values[:, reach:], values[:, :-reach])], axis=1)
        reach *= 2
    return values


def _rounded(values: Device) -> Device:
    """Probabilities as the nearest multiples of 2^-52, in float64."""
    xp = namespace(values)
    return (xp.astype(values, xp.float64) + 1.0) - 1.0
