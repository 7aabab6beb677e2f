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
    read = _Reading(matrix, labels, logits)
    check(read.top, 0)
    return read.statistics()


class _Reading:
    """One reading of a matrix on the host, in which blocks hold long calls alone; numbers of all rows come after it."""

    def __init__(self, matrix: FloatArray, labels: NDArray[np.intp], logits: RowStatistics | None) -> None:
        (n, k), dtype = matrix.shape, matrix.dtype
        self.matrix, self.labels, self.workspace = matrix, labels, blocks.Workspace()
        self.top, self.at_label, self.at_best, self.second, self.sums, self.squares = np.empty((6, n), dtype)
        self.alone = logits is None
        self.best, self.runner_up = np.empty((2, n), np.intp) if logits is None else (logits.best, logits.runner_up)
        self.ones = np.ones(k, dtype)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            self._each_block(self._read)

    def statistics(self) -> RowStatistics:
        """What was found, with moments read again where plain sums lose too many digits."""
        top, width = self.top.astype(np.float64), self.matrix.shape[1]
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            mean, square = self.sums.astype(np.float64) / width, self.squares.astype(np.float64) / width
            variance, least = square - mean**2, np.finfo(self.matrix.dtype).tiny * 1e6
            if (far := ~(variance > 0.1 * square)).any():
                variance[far] = square[far] = self._centred(mean, far)[far]
            safe = np.isfinite(square) & (square > least) & (variance > 1e-6 * mean**2)
            mean, deviation, masked = mean - top, np.sqrt(np.maximum(variance, 0.0)), np.zeros(top.size, bool)
        if not safe.all():
            self._careful(~safe, mean, deviation, masked)
        pair = np.stack([self.at_best - top, self.second - top], axis=1)
        return RowStatistics(self.top, mean, deviation, self.at_label - top, masked, self.best, self.runner_up, pair)

    def _each_block(self, function: Callable[[slice], None], chosen: NDArray[np.bool_] | None = None) -> None:
        """Run a function for every block, or for those that have one of the chosen rows."""

        def block(rows: slice) -> None:
            if chosen is None or chosen[rows].any():
                function(rows)

        blocks.for_rows(block, self.top.size, block=blocks.block_rows(self.matrix.shape[1] * self.matrix.itemsize))

    def _read(self, rows: slice) -> None:
        values = self.matrix[rows]
        each, best = np.arange(values.shape[0]), self.best[rows]
        largest = values.argmax(axis=1, out=best if self.alone else None)
        self.top[rows] = values[each, largest]
        if self.alone:
            with self.workspace.borrow() as buffers:
                _runner_up(values, best, buffers("others", values.shape, values.dtype), self.runner_up[rows])
        for out, column in (
            (self.at_label, self.labels[rows]), (self.at_best, best), (self.second, self.runner_up[rows]),
        ):  # fmt: skip
            out[rows] = values[each, column]
        np.matmul(values, self.ones, out=self.sums[rows])
        np.vecdot(values, values, out=self.squares[rows])

    def _centred(self, mean: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Variances (n,) of blocks that have one of the chosen rows."""
        found = np.zeros(mean.size)

        def read(rows: slice) -> None:
            with self.workspace.borrow() as buffers:
                values, shift = self.matrix[rows], mean[rows, None].astype(self.matrix.dtype)
                centred = np.subtract(values, shift, out=buffers("others", values.shape, values.dtype))
                found[rows] = np.vecdot(centred, centred)

        self._each_block(read, chosen)
        return np.asarray(found / self.matrix.shape[1])

    def _careful(self, chosen: NDArray[np.bool_], mean: Any, deviation: Any, masked: Any) -> None:
        """Moments of blocks that have one of the chosen rows, and which of their rows have masked entries."""

        def read(rows: slice) -> None:
            with self.workspace.borrow() as buffers:
                values = self.matrix[rows]
                shifted = buffers("others", values.shape, values.dtype)
                np.subtract(values, self.top[rows, None], out=shifted)
                mean[rows], deviation[rows], masked[rows] = _careful_moments(shifted)

        self._each_block(read, chosen)


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


def _runner_up(values: FloatArray, best: NDArray[np.intp], others: FloatArray, out: NDArray[np.intp]) -> None:
    """Column of the largest entry but for column `best`; that one again where all others are masked."""
    each = np.arange(values.shape[0])
    np.copyto(others, values)
    others[each, best] = -np.inf
    others.argmax(axis=1, out=out)
    if others.shape[1] and not np.isfinite(left := others[each, out]).all():
        np.copyto(out, best, where=np.isneginf(left))


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
