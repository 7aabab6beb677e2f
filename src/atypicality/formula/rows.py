"""Row by row: maxima, softmax, cuts, quantiles and quadrants, which every part of a prediction is made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

__all__ = [
    "TINY", "Buffers", "Quadrant", "Scale", "Xp", "below_top", "largest_of", "margins", "mean_of_shown", "placed",
    "row_maxima", "row_minima", "row_tops", "softmax", "squared_lengths", "unit_rows", "within",
]  # fmt: skip

Xp = Any
"""A namespace of the array API: that of NumPy, torch, CuPy, or one that writes an ONNX graph."""
Buffers = Callable[..., Any]
"""Uninitialised NumPy memory by name, shape and type, as `blocks.Buffers` gives."""
TINY = float(np.finfo(np.float64).tiny)
PLACE_UP_TO = 2048
"""Columns up to which NumPy finds the place of a maximum or minimum sooner than itself: in a third of the time of ten.
"""


def unit_rows(xp: Xp, rows: Any, buffers: Buffers | None = None) -> tuple[Any, Any]:
    """Rows (n, d) divided by their Euclidean length, NaN where a row is zero, and that length (n, 1), in float64."""
    single, scale = rows.dtype == xp.float32, None
    if single and buffers is not None:
        given, rows = rows, buffers("unit", rows.shape, np.float64)
        np.copyto(rows, given)
    else:
        rows = xp.astype(rows, xp.float64, copy=False)
    if not single:  # squares of float32 numbers fit into float64; others might overflow or vanish
        scale = xp.max(xp.abs(rows), axis=1, keepdims=True)
        rows = rows / scale
    length = xp.sqrt(squared_lengths(xp, rows))
    rows *= 1.0 / length  # to divide takes twice as long
    return rows, length if scale is None else scale * length


def squared_lengths(xp: Xp, rows: Any) -> Any:
    """Sum of squares of each row (n, 1), without an array of the squares where a library can."""
    return xp.vecdot(rows, rows)[:, None] if hasattr(xp, "vecdot") else xp.sum(rows * rows, axis=1, keepdims=True)


def row_maxima(xp: Xp, values: Any) -> Any:
    """The largest entry of each row (n, 1)."""
    if isinstance(values, np.ndarray) and values.shape[1] <= PLACE_UP_TO:
        return row_tops(xp, values)[1]
    return xp.max(values, axis=1, keepdims=True)


def row_minima(xp: Xp, values: Any) -> Any:
    """The smallest entry of each row (n, 1)."""
    if isinstance(values, np.ndarray) and values.shape[1] <= PLACE_UP_TO:
        return values[np.arange(len(values))[:, None], values.argmin(axis=1, keepdims=True)]
    return xp.min(values, axis=1, keepdims=True)


def row_tops(xp: Xp, values: Any) -> tuple[Any, Any]:
    """Place and value of the largest entry of each row, (n, 1) each; the first of equal ones."""
    best = xp.argmax(values, axis=1, keepdims=True)
    if not isinstance(values, np.ndarray):
        return best, xp.max(values, axis=1, keepdims=True)
    return best, values[np.arange(len(values))[:, None], best]


def placed(xp: Xp, values: Any, numbers: Any, places: Any, column: Any) -> Any:
    """Values (n, k) with the column (n, 1) or number at one place (n,) of each row; NumPy's are overwritten.

    `numbers` are 0 to k - 1.
    """
    if not isinstance(values, np.ndarray):
        return xp.where(numbers == places[:, None], column, values)
    values[np.arange(len(values)), places] = column if isinstance(column, float) else column[:, 0]
    return values


def below_top(xp: Xp, values: Any, hidden: Any = None, top: Any = None) -> Any:
    """Rows (n, k) less their maximum (n, 1), in float64; hidden entries, which are -inf, become 0."""
    top = row_maxima(xp, values) if top is None else top
    if isinstance(values, np.ndarray) and values.dtype != np.float64:
        below = np.empty(values.shape)
        np.copyto(below, values)  # two passes are quicker than one where two types meet
        below -= top.astype(np.float64)
    else:
        below = xp.astype(values, xp.float64, copy=False) - xp.astype(top, xp.float64, copy=False)
    return below if hidden is None else xp.where(hidden, 0.0, below)


def within(xp: Xp, below: Any, reach: float | None) -> Any:
    """Rows with maximum 0, shrunk where they spread wider than `reach`, the widest of the calibration rows."""
    if reach is None:
        return below
    floor = max(reach, TINY)  # no row divides by a spread of 0
    if isinstance(below, np.ndarray) and below.min(initial=0.0) >= -floor:  # of all rows at once: a fourth of the time
        return below
    spread = -row_minima(xp, below)
    return below * (floor / xp.where(spread > floor, spread, floor))


def margins(xp: Xp, logits: Any, numbers: Any) -> Any:
    """Largest less second largest logit of each row (n, 1), in float64; 0 where a single class is not masked."""
    best, top = row_tops(xp, logits)
    others = logits.copy() if isinstance(logits, np.ndarray) else logits
    second = row_maxima(xp, placed(xp, others, numbers, best[:, 0], -xp.inf))
    first, second = (xp.astype(one, xp.float64) for one in (top, second))
    return xp.where(xp.isinf(second), 0.0, first - second)


def largest_of(xp: Xp, values: Any, count: int) -> Any:
    """The largest entries of each row (n, count), in falling order, without sorting the others where a library can."""
    if hasattr(xp, "topk"):
        return xp.topk(values, count, dim=1)[0]
    if hasattr(xp, "partition") and 2 * count < values.shape[1]:  # else a sort of all is as quick
        values = xp.partition(values, values.shape[1] - count, axis=1)[:, -count:]
    return xp.sort(values, axis=1, descending=True, stable=False)[:, :count]


def mean_of_shown(xp: Xp, below: Any, hidden: Any) -> Any:
    """Mean of the entries of each row that are not hidden (n, 1); hidden ones must be 0."""
    if hidden is None:
        return xp.mean(below, axis=1, keepdims=True)
    return xp.sum(below, axis=1, keepdims=True) / xp.sum(_shown(xp, hidden), axis=1, keepdims=True)


def softmax(xp: Xp, scores: Any, hidden: Any, floor: float = 0.0) -> Any:
    """Softmax (n, k) over the entries of each row that are not hidden; those get 0.

    With a `floor` d, p becomes ``(1 - m d) p + d`` on the m entries that are not hidden: order and sum stay, and none
    of them is below d. `scores` are overwritten where no entry is hidden (None).
    """
    if hidden is not None:
        scores = xp.where(hidden, -xp.inf, scores)
    scores -= row_maxima(xp, scores)
    weights = np.exp(scores, out=scores) if isinstance(scores, np.ndarray) else xp.exp(scores)
    total = xp.sum(weights, axis=1, keepdims=True)
    if not floor:
        weights /= total
        return weights
    if hidden is None:
        weights *= (1.0 - floor * scores.shape[1]) / total
        weights += floor
        return weights
    shown = _shown(xp, hidden)
    weights *= (1.0 - floor * xp.sum(shown, axis=1, keepdims=True)) / total
    shown *= floor
    weights += shown
    return weights


def _shown(xp: Xp, hidden: Any) -> Any:
    """1 where an entry is not hidden, 0 where it is."""
    return xp.astype(~hidden, xp.float64)


@dataclass(frozen=True)
class Scale:
    """Quantiles of held-out values: lines through the points (values, levels)."""

    values: Any  # (m,), strictly increasing
    slopes: Any  # (m + 1,), with starts and levels, of the line left of each value: 0 before the first, then constant
    starts: Any
    levels: Any

    @classmethod
    def of(cls, values: Any, levels: Any) -> Self:
        """From the share of held-out rows, `levels` (m,), at or below each of the `values` (m,)."""
        slopes = np.concatenate([[0.0], np.diff(levels) / np.diff(values), [0.0]])
        return cls(values, slopes, np.concatenate([values[:1], values]), np.concatenate([[0.0], levels]))

    def quantiles(self, xp: Xp, at: Any) -> Any:
        """Quantiles (n, 1) of values (n, 1)."""
        place = xp.searchsorted(self.values, at, side="right")
        return self.slopes[place] * (at - self.starts[place]) + self.levels[place]


@dataclass(frozen=True)
class Quadrant:
    """Thresholds of confidence and atypicality; a value equal to one counts as confident, or as typical."""

    confidence: float
    atypicality: float

    def index(self, xp: Xp, confidence: Any, atypicality: Any) -> Any:
        """Number of each row's quadrant (n, 1), in the order of `groups.QUADRANTS`."""
        doubtful = xp.astype(confidence < self.confidence, xp.int64, copy=False)
        return 2 * doubtful + xp.astype(atypicality > self.atypicality, xp.int64, copy=False)
