"""What every pass needs to know about each row of a matrix, learnt in one reading: extremes, mean, spread, label."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks

__all__ = ["FloatArray", "RowStatistics", "read_rows", "weighted_median"]

FloatArray = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class RowStatistics:
    """Per row (n,): maximum; lowest and mean finite entry, standard deviation and label's entry less the maximum."""

    top: FloatArray
    low: FloatArray
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    gap: NDArray[np.float64]
    masked: NDArray[np.bool_]

    def take(self, rows: slice | NDArray[np.intp]) -> "RowStatistics":
        """Some of the rows."""
        return RowStatistics(*(getattr(self, field.name)[rows] for field in fields(self)))


def read_rows(matrix: FloatArray, labels: NDArray[np.intp], check: Callable[[FloatArray, int], None]) -> RowStatistics:
    """Read a matrix (n, k) once, block by block; `check(maxima, first_row)` refuses bad rows by their maximum."""
    n, workspace = matrix.shape[0], blocks.Workspace()
    found = RowStatistics(
        np.empty(n, matrix.dtype), np.empty(n, matrix.dtype), np.empty(n), np.empty(n), np.empty(n), np.zeros(n, bool)
    )

    def block(rows: slice) -> None:
        values = matrix[rows]
        top = values.max(axis=1)
        check(top, rows.start)
        with workspace.borrow() as buffers:
            shifted = np.subtract(values, top[:, None], out=buffers("shifted", values.shape, values.dtype))
            found.top[rows] = top
            found.gap[rows] = shifted[np.arange(values.shape[0]), labels[rows]]
            found.low[rows], found.mean[rows], found.deviation[rows], found.masked[rows] = _spread(shifted, buffers)

    blocks.for_rows(block, n, block=blocks.block_rows(matrix.shape[1] * matrix.itemsize))
    return found


def weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Smallest value with at least half of the weight at or below it: a weight of 2 is the same as a repeated row."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    half = 0.5 * below[-1] * (1 - 1e-12)  # a sum that reaches one half up to rounding has reached it
    return float(values[order[np.searchsorted(below, half)]])


def _spread(
    shifted: FloatArray, buffers: Callable[..., NDArray[Any]]
) -> tuple[FloatArray, NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Lowest, mean and standard deviation of the finite entries of rows whose maximum is 0; overwrites -inf with 0.

    Rows are divided by their range first: the squares of huge logits would overflow, those of tiny ones vanish.
    """
    low, count = shifted.min(axis=1), np.full(shifted.shape[0], shifted.shape[1])
    masked = np.isneginf(low)
    if masked.any():
        hidden = np.isneginf(shifted)
        shifted[hidden] = 0
        low, count = shifted.min(axis=1), shifted.shape[1] - hidden.sum(axis=1)
    spread = np.where(low < 0, -low, 1).astype(shifted.dtype)
    unit = np.divide(shifted, spread[:, None], out=buffers("unit", shifted.shape, shifted.dtype))
    mean = np.matmul(unit, np.ones(unit.shape[1], unit.dtype)).astype(np.float64) / count
    variance = np.vecdot(unit, unit).astype(np.float64) / count - mean**2
    wide = spread.astype(np.float64)
    return low, wide * mean, wide * np.sqrt(np.maximum(variance, 0)), masked
