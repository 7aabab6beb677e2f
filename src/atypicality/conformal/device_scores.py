"""Conformal scores and sets on the device of the probabilities: the same rules as `conformal.scores`, bit for bit.

Masses are sums of multiples of 2^-52 that stay below 2, which float64 adds without error in any order. So a device,
whatever the order in which it adds, finds the masses of the CPU; everything else is one rounded operation per entry,
or a comparison. Scores of labels come to the host, where the threshold is an order statistic; sets stay.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import Device, entries_at, namespace, row_blocks, to_device, to_host
from atypicality.formula.sets import accepted, exact, in_order

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
    sets = [next(_accepted(probs, rows, [(rule, thresholds)], draws)) for rows in row_blocks(probs)]
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
    tied = xp.astype(xp.count_nonzero(block == own, axis=1), xp.float64) * exact(xp, own)[:, 0]
    above = xp.sum(xp.where(at_least, exact(xp, block), 0.0), axis=1) - tied
    wide = (xp.astype(column, xp.float64) for column in (own[:, 0], xp.max(block, axis=1)))
    return *wide, above, tied, xp.count_nonzero(at_least, axis=1)


def _accepted(probs: Device, rows: slice, candidates: Sequence[Candidate], draws: Any) -> Iterator[Device]:
    """The sets of a block of rows, for one candidate after the other."""
    xp, block = namespace(probs), probs[rows, :]
    ordered = in_order(xp, block) if any(rule.name != "lac" for rule, _ in candidates) else None
    rank = to_device(np.arange(1.0, block.shape[1] + 1), block)
    drawn = None if np.ndim(draws) == 0 else to_device(draws[rows, None], block)
    for rule, thresholds in candidates:
        yield accepted(xp, rule, block, to_device(thresholds[rows, None], block), rank, drawn, ordered)
