"""What every pass needs to know about each row of a matrix, learnt in one reading: extremes, mean, spread, label."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.recalibration.device_rows import read_device_rows

__all__ = ["FloatArray", "RowStatistics", "read_rows", "weighted_median"]

FloatArray = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class RowStatistics:
    """Per row (n,): maximum; mean, standard deviation, label's entry less the maximum; any masked; two columns.

    `best` and `runner_up` are the columns of the two largest logits, and `pair` (n, 2) the entries there less the
    maximum: 0 and less for logits themselves. A row with a single class that is not masked has it in both.
    """

    top: FloatArray
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    gap: NDArray[np.float64]
    masked: NDArray[np.bool_]
    best: NDArray[np.intp]
    runner_up: NDArray[np.intp]
    pair: NDArray[np.float64]

    def take(self, rows: slice | NDArray[np.intp]) -> "RowStatistics":
        """Some of the rows."""
        return RowStatistics(*(getattr(self, field.name)[rows] for field in fields(self)))


def read_rows(
    matrix: Any, labels: NDArray[np.intp], check: Callable[[FloatArray, int], None], logits: RowStatistics | None = None
) -> RowStatistics:
    """Read a matrix (n, k) once, block by block; `check(maxima, first_row)` refuses bad rows by their maximum.

    For another matrix than the logits, what was found of these gives the two columns.
    """
    if not isinstance(matrix, np.ndarray):
        columns = None if logits is None else (logits.best, logits.runner_up)
        return RowStatistics(*read_device_rows(matrix, labels, check, columns))
    n, workspace = matrix.shape[0], blocks.Workspace()
    found = RowStatistics(
        top=np.empty(n, matrix.dtype),
        mean=np.empty(n),
        deviation=np.empty(n),
        gap=np.empty(n),
        masked=np.zeros(n, bool),
        best=np.empty(n, np.intp) if logits is None else logits.best,
        runner_up=np.empty(n, np.intp) if logits is None else logits.runner_up,
        pair=np.empty((n, 2)),
    )

    def block(rows: slice) -> None:
        values = matrix[rows]
        each, largest = np.arange(values.shape[0]), values.argmax(axis=1)
        top = values[each, largest]
        check(top, rows.start)
        if logits is None:
            found.best[rows] = largest
            with workspace.borrow() as buffers:
                found.runner_up[rows] = _runner_up(values, largest, buffers("others", values.shape, values.dtype))
        found.top[rows] = top
        found.gap[rows] = values[each, labels[rows]].astype(np.float64) - top
        for place, column in enumerate((found.best[rows], found.runner_up[rows])):
            found.pair[rows, place] = values[each, column].astype(np.float64) - top
        moments = _quick_moments(values, top)
        if moments is not None:
            found.mean[rows], found.deviation[rows] = moments
            return
        with workspace.borrow() as buffers:
            shifted = np.subtract(values, top[:, None], out=buffers("shifted", values.shape, values.dtype))
            found.mean[rows], found.deviation[rows], found.masked[rows] = _careful_moments(shifted)

    blocks.for_rows(block, n, block=blocks.block_rows(matrix.shape[1] * matrix.itemsize))
    return found


def weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Smallest positive value with half of the positive values' weight at or below it; 0 where there is none.

    A weight of 2 is the same as a repeated row.
    """
    if weights.size and weights.min() == weights.max() > 0:  # the middle one needs no order of the others
        positive = values[values > 0]
        middle = (positive.size - 1) // 2
        return float(np.partition(positive, middle)[middle]) if positive.size else 0.0
    order = np.argsort(values, kind="stable")
    order = order[(values[order] > 0) & (weights[order] > 0)]
    if not order.size:
        return 0.0
    below = np.cumsum(weights[order])
    half = 0.5 * below[-1] * (1 - 1e-12)  # a sum that reaches one half up to rounding has reached it
    return float(values[order[np.searchsorted(below, half)]])


def _runner_up(values: FloatArray, best: NDArray[np.intp], others: FloatArray) -> NDArray[np.intp]:
    """Column of the largest entry but for column `best`; that one again where all others are masked."""
    each = np.arange(values.shape[0])
    np.copyto(others, values)
    others[each, best] = -np.inf
    found = others.argmax(axis=1)
    return np.where(np.isneginf(others[each, found]), best, found)


def _quick_moments(values: FloatArray, top: FloatArray) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Mean (less the maximum) and standard deviation from plain sums, or None where these lose too many digits."""
    width, tiny = values.shape[1], np.finfo(values.dtype).tiny * 1e6
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        mean = np.matmul(values, np.ones(width, values.dtype)).astype(np.float64) / width
        square = np.vecdot(values, values).astype(np.float64) / width
        variance = square - mean**2
        if not (variance > 0.1 * square).all():
            centred = values - mean[:, None].astype(values.dtype)
            variance = square = np.vecdot(centred, centred).astype(np.float64) / width
    safe = np.isfinite(square) & (square > tiny) & (variance > 1e-6 * mean**2)
    return (mean - top, np.sqrt(variance)) if safe.all() else None


def _careful_moments(shifted: FloatArray) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Mean and standard deviation of the finite entries of rows whose maximum is 0; overwrites -inf with 0.

    Rows are divided by their range first: the squares of huge logits would overflow, those of tiny ones vanish.
    """
    hidden = np.isneginf(shifted)
    shifted[hidden] = 0
    count = shifted.shape[1] - hidden.sum(axis=1)
    low = shifted.min(axis=1).astype(np.float64)
    spread = np.where(low < 0, -low, 1.0)
    unit = shifted / spread[:, None]
    mean = unit.sum(axis=1) / count
    variance = np.vecdot(unit, unit) / count - mean**2
    return spread * mean, spread * np.sqrt(np.maximum(variance, 0)), np.asarray(hidden.any(axis=1))
