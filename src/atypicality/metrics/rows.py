"""What every metric reads: one pass over probabilities and labels, in blocks, and the sums over bins of confidence.

Rows are checked while they are read.
Probabilities on a device are read there, by `device_rows`; from the columns on, everything is the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.arrays import is_float16, on_device, to_host, to_numpy
from atypicality.groups import cut, quantile_edges
from atypicality.metrics import device_rows
from atypicality.validation import check_confidence, check_labels, check_length, check_prob_rows, check_probs, own_row
from atypicality.validation.device import device_probs

__all__ = [
    "BinSums",
    "Given",
    "Losses",
    "Pairs",
    "check_correct",
    "inner_edges",
    "read_all",
    "read_pairs",
    "row_brier",
    "row_nll",
]

Given = ArrayLike | None  # one of the arrays of a metric that may be given in two forms; see `read_pairs`

_ENTRIES = 1 << 16  # entries that wait before they are added to their cells: enough to make the addition cheap


@dataclass(frozen=True)
class BinSums:
    """Count, sum of confidence and number of correct predictions per bin; the last axis is the bin.

    >>> sums = BinSums.of(np.array([0.2, 0.8, 0.8]), np.array([0, 1, 0]), np.array([0.5]))
    >>> sums.count.tolist(), sums.gap.round(3).tolist()
    ([1.0, 2.0], [0.2, 0.3])
    """

    count: NDArray[np.float64]
    confidence: NDArray[np.float64]
    correct: NDArray[np.float64]

    @classmethod
    def of(cls, confidence: NDArray[np.float64], correct: NDArray[Any], edges: NDArray[np.float64]) -> Self:
        """Sums over the bins between the inner `edges`: (lo, hi], the first bin with its lower end."""
        index, n_bins = cut(edges, confidence), edges.size + 1
        weights = (None, confidence, correct)
        count, sums, hits = (np.bincount(index, weight, minlength=n_bins).astype(np.float64) for weight in weights)
        return cls(count, sums, hits)

    @property
    def total(self) -> float:
        """Number of samples in one set of bins."""
        return float(self.count.sum(axis=-1).flat[0])

    @property
    def share(self) -> NDArray[np.float64]:
        """Share of the samples in each bin."""
        return self.count / self.total

    @property
    def gap(self) -> NDArray[np.float64]:
        """Mean confidence minus accuracy of each bin, 0 in an empty one."""
        return (self.confidence - self.correct) / np.maximum(self.count, 1)

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Share of correct predictions of each bin, 0 in an empty one."""
        return self.correct / np.maximum(self.count, 1)

    def expected_error(self) -> NDArray[np.float64]:
        """Mean absolute gap, each bin weighted by its share of the samples."""
        return np.asarray(np.abs(self.confidence - self.correct).sum(axis=-1) / self.total)

    def squared_error(self) -> float:
        """Mean squared gap, each bin weighted by its share of the samples."""
        return float((self.share * self.gap**2).sum())

    def debiased_squared_error(self) -> float:
        """`squared_error` less its expectation from chance alone; a bin of one sample says nothing and counts 0."""
        noise = self.accuracy * (1 - self.accuracy) / np.maximum(self.count - 1, 1)
        return float((self.share * (self.gap**2 - noise))[self.count > 1].sum())


def inner_edges(n_bins: int, dtype: Any = np.float64) -> NDArray[np.float64]:
    """The edges between `n_bins` equal bins of [0, 1], each rounded to `dtype` as a number of that kind would be.

    The float32 number nearest to 0.3 lies above the float64 one. Rounding the edge the same way puts both on it.

    >>> bool(float(np.float32(0.3)) > 0.3), bool(np.float32(0.3) > inner_edges(10, np.float32)[2])
    (True, False)
    """
    return (np.arange(1, n_bins) / n_bins).astype(dtype).astype(np.float64)


@dataclass(frozen=True)
class Pairs:
    """Confidence and correctness of every sample (n,), and the dtype in which the confidence came."""

    confidence: NDArray[np.float64]
    correct: NDArray[np.bool_]
    dtype: np.dtype[Any]

    def bins(self, n_bins: int) -> BinSums:
        """Sums over equal bins of confidence."""
        return BinSums.of(self.confidence, self.correct, inner_edges(n_bins, self.dtype))

    def adaptive_bins(self, n_bins: int) -> BinSums:
        """Sums over equally populated bins; equal confidences are never parted, so bins may merge."""
        return BinSums.of(self.confidence, self.correct, quantile_edges(self.confidence, n_bins))

    def take(self, rows: NDArray[Any]) -> "Pairs":
        """The same for some of the rows."""
        return Pairs(self.confidence[rows], self.correct[rows], self.dtype)


@dataclass(frozen=True)
class Losses:
    """Everything one pass can say: pairs, probability of the label (n,), sum of squares (n,), and class-wise bins."""

    pairs: Pairs
    label_prob: NDArray[np.float64]
    squares: NDArray[np.float64]
    class_bins: BinSums

    @property
    def nll(self) -> NDArray[np.float64]:
        """Negative log-probability of the label, (n,)."""
        return _nll(self.label_prob)

    @property
    def brier(self) -> NDArray[np.float64]:
        """Squared distance between the probabilities and the one-hot label, (n,)."""
        return _brier(self.label_prob, self.squares)


def _nll(label_prob: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):  # a label with probability 0 has an infinite loss
        return -np.log(label_prob)


def _brier(label_prob: NDArray[np.float64], squares: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(squares - 2 * label_prob + 1, 0.0)


def read_pairs(probs: Given, labels: Given, confidence: Given, correct: Given) -> Pairs:
    """The pairs of a metric, from (probs, labels) or from (confidence, correct), whichever was given."""
    if probs is not None and labels is not None and confidence is None and correct is None:
        return _pairs_of(probs, labels)
    if confidence is not None and correct is not None and probs is None and labels is None:
        given = to_numpy(confidence, "confidence")
        vector = check_confidence(given)
        _check_rows(vector, "confidence")
        dtype = given.dtype if given.dtype.kind == "f" else np.dtype(np.float64)
        return Pairs(vector, check_correct(correct, vector.size), dtype)
    arrays = {"probs": probs, "labels": labels, "confidence": confidence, "correct": correct}
    came = ", ".join(name for name, array in arrays.items() if array is not None) or "nothing"
    raise TypeError(f"A metric needs probs and labels, or confidence= and correct=; got {came}.")


def read_all(probs: ArrayLike, labels: ArrayLike, n_bins: int) -> Losses:
    """One pass for all calibration metrics together. Products are taken in float64, whatever the input."""
    array, target, dtype = _check_probs_labels(probs, labels)
    n_rows, n_classes = array.shape
    edges = inner_edges(n_bins, dtype)
    cells = _CellSums(n_classes, edges)
    if on_device(array):
        first = float(edges[0]) if edges.size else np.inf
        top, hit, label_prob, squares = device_rows.read_rows(array, target, first, cells.add_entries)
    else:
        top, hit, label_prob, squares = _read_blocks(array, target, cells, _RowCheck(array, dtype))
    place = target * cells.n_bins + cut(edges, label_prob)
    correct = np.bincount(place, minlength=n_classes * cells.n_bins)
    return Losses(Pairs(top, hit, dtype), label_prob, squares, cells.bins(n_rows, correct))


def row_nll(probs: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """`Losses.nll` alone, in a fifth of the time."""
    return _nll(_read_labels(probs, labels, squared=False)[0])


def row_brier(probs: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """`Losses.brier` alone, in half of the time."""
    return _brier(*_read_labels(probs, labels, squared=True))


def _read_labels(
    probs: ArrayLike, labels: ArrayLike, *, squared: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Probability of the label (n,), and the sum of squares (n,) in float64 where it is `squared`."""
    array, target, dtype = _check_probs_labels(probs, labels)
    if on_device(array):
        *_, of_label, lengths = device_rows.read_rows(array, target, np.inf, lambda *_: None)
        return of_label, lengths
    (label_prob, squares), workspace = np.empty((2, array.shape[0])), blocks.Workspace()
    check = _RowCheck(array, dtype)

    def read(rows: slice) -> None:
        block = array[rows]
        check.look(block, rows)
        label_prob[rows] = _entries(block, target[rows])
        if squared:
            with workspace.borrow() as buffers:
                wide = _widen(block, buffers)
                np.vecdot(wide, wide, out=squares[rows])

    threads = None if squared else 1  # one core reads as fast as two, and there is little more to do
    blocks.for_rows(read, array.shape[0], block=_block(array), threads=threads, work=blocks.LIGHT)
    check.judge()
    return label_prob, squares


def check_correct(values: ArrayLike, n_rows: int, name: str = "correct") -> NDArray[np.bool_]:
    """Whether each prediction was right: booleans, or the numbers 0 and 1."""
    array = to_numpy(values, name)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, one truth value per sample; got shape {array.shape}.")
    check_length(array, name, n_rows)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be booleans or 0 and 1; got dtype {array.dtype}.")
    bad = np.flatnonzero((array != 0) & (array != 1))
    if bad.size:
        raise ValueError(
            f"{name} must be booleans or 0 and 1; row {own_row(bad[0])} is {array[bad[0]]}. Pass predictions == labels."
        )
    return array.astype(bool)


class _CellSums:
    """Sums of probabilities per class and bin.

    A row sums to 1, so few of its entries exceed the first edge: only those are binned, and the first bin is what
    remains of the column sums.
    """

    def __init__(self, n_classes: int, edges: NDArray[np.float64]) -> None:
        self.n_bins, self.edges = edges.size + 1, edges
        self.columns = np.zeros(n_classes)
        self.count, self.sums = np.zeros(n_classes * self.n_bins), np.zeros(n_classes * self.n_bins)
        self.waiting: list[tuple[NDArray[np.intp], NDArray[np.float64]]] = []
        self.n_waiting = 0

    def cells(self, columns: NDArray[np.intp], values: NDArray[np.float64]) -> NDArray[np.intp]:
        """Class and bin of some entries, as one number each."""
        return np.asarray(columns * self.n_bins + cut(self.edges, values))

    def add_entries(self, sums: NDArray[np.float64], columns: NDArray[np.intp], values: NDArray[np.float64]) -> None:
        self.add(sums, self.cells(columns, values), values)

    def add(self, sums: NDArray[np.float64], cells: NDArray[np.intp], values: NDArray[np.float64]) -> None:
        self.columns += sums
        self.waiting.append((cells, values))
        self.n_waiting += values.size
        if self.n_waiting >= _ENTRIES:
            self.flush()

    def flush(self) -> None:
        cells, values = (np.concatenate(parts) for parts in zip(*self.waiting, strict=True))
        self.count += np.bincount(cells, minlength=self.count.size)
        self.sums += np.bincount(cells, values, minlength=self.count.size)
        self.waiting, self.n_waiting = [], 0

    def bins(self, n_rows: int, correct: NDArray[np.intp]) -> BinSums:
        self.flush()
        count, sums = self.count.reshape(-1, self.n_bins), self.sums.reshape(-1, self.n_bins)
        count[:, 0] = n_rows - count[:, 1:].sum(axis=1)
        sums[:, 0] = self.columns - sums[:, 1:].sum(axis=1)
        return BinSums(count, sums, correct.reshape(-1, self.n_bins).astype(np.float64))


def _read_blocks(
    array: NDArray[Any], target: NDArray[np.intp], cells: _CellSums, check: "_RowCheck"
) -> tuple[NDArray[Any], ...]:
    """Confidence, correctness, probability of the label and sum of squares, each (n,); `cells` get what they need."""
    n_rows, n_classes = array.shape
    (top, label_prob, squares), best = np.empty((3, n_rows)), np.empty(n_rows, np.intp)
    first = array.dtype.type(cells.edges[0]) if cells.edges.size else np.inf
    workspace = blocks.Workspace()

    def read(rows: slice) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.float64]]:
        block, size = array[rows], rows.stop - rows.start
        check.look(block, rows)
        block.argmax(axis=1, out=best[rows])  # the first of equal entries
        top[rows], label_prob[rows] = _entries(block, best[rows]), _entries(block, target[rows])
        with workspace.borrow() as buffers:
            high = np.flatnonzero(np.greater(block, first, out=buffers("high", block.shape, bool)))
            wide = _widen(block, buffers)
            np.vecdot(wide, wide, out=squares[rows])
            values = wide.reshape(-1)[high]
            return np.ones(size) @ wide, cells.cells(high % n_classes, values), values

    for found in blocks.map_rows(read, n_rows, block=_block(array), work=blocks.LIGHT):
        cells.add(*found)
    check.judge()
    return top, best == target, label_prob, squares


def _pairs_of(probs: ArrayLike, labels: ArrayLike) -> Pairs:
    array, target, dtype = _check_probs_labels(probs, labels)
    if on_device(array):
        return Pairs(*device_rows.pair_columns(array, target), dtype)
    confidence, best, check = np.empty(array.shape[0]), np.empty(array.shape[0], np.intp), _RowCheck(array, dtype)

    def read(rows: slice) -> None:
        block = array[rows]
        check.look(block, rows)
        confidence[rows] = _entries(block, block.argmax(axis=1, out=best[rows]))  # the first of equal entries

    blocks.for_rows(read, array.shape[0], block=_block(array), work=blocks.LIGHT)
    check.judge()
    return Pairs(confidence, best == target, dtype)


def _check_probs_labels(probs: Any, labels: ArrayLike) -> tuple[Any, NDArray[np.intp], np.dtype[Any]]:
    """Probabilities on their device, labels, and the dtype in which the probabilities came.

    Rows on the host are left to be checked while they are read; those on a device are checked here.
    """
    if on_device(probs):
        array = device_probs(probs)
        dtype = np.dtype(np.float16) if is_float16(probs) else to_host(array[:0, :]).dtype
    else:
        given = to_numpy(probs, "probs")
        array = check_probs(given, scan=False)
        dtype = given.dtype if given.dtype == np.float16 else array.dtype
    _check_rows(array, "probs")
    return array, check_labels(labels, n_classes=array.shape[1], n_rows=array.shape[0]), dtype


def _check_rows(array: NDArray[Any], name: str) -> None:
    if array.shape[0] == 0:
        raise ValueError(f"{name} must hold at least one sample; got none. A metric of nothing is undefined.")


class _RowCheck:
    """Whether rows are probabilities, judged when all were read: blocks hold no more than a few long calls.

    The smallest entry is found first: nothing reads faster what is not in the cache yet.
    """

    def __init__(self, array: NDArray[Any], dtype: np.dtype[Any]) -> None:
        self.array, self.tolerance = array, 5e-3 if dtype == np.float16 else 1e-4  # those of check_probs
        self.sums, self.ones = np.empty(array.shape[0], array.dtype), np.ones(array.shape[1], array.dtype)
        self.lowest: list[Any] = []

    def look(self, block: NDArray[Any], rows: slice) -> None:
        """Add a block, and bring it into the cache."""
        self.lowest.append(np.minimum.reduce(block, axis=None))
        with np.errstate(invalid="ignore"):  # some BLAS libraries say so of finite numbers, by what lies behind them
            np.matmul(block, self.ones, out=self.sums[rows])

    def judge(self) -> None:
        """Refuse rows that are no probabilities; `check_prob_rows` finds them and words the error."""
        if np.min(self.lowest) >= 0 and (np.abs(self.sums - 1) <= self.tolerance).all():
            return
        for rows in blocks.row_slices(self.array.shape[0], _block(self.array)):
            check_prob_rows(self.array[rows], first_row=rows.start, tolerance=self.tolerance)


def _entries(block: NDArray[Any], columns: NDArray[np.intp]) -> NDArray[Any]:
    return np.asarray(block[np.arange(columns.size), columns])


def _widen(block: NDArray[Any], buffers: Callable[..., NDArray[Any]]) -> NDArray[np.float64]:
    if block.dtype == np.float64 and block.flags.c_contiguous:
        return block
    wide = buffers("wide", block.shape)
    np.copyto(wide, block)
    return wide


def _block(array: NDArray[Any]) -> int:
    return blocks.block_rows(array.shape[1] * array.itemsize, budget=blocks.CACHE_BYTES * 2 // 3)
