"""Bins of confidence: which bin a number falls into, and the three sums that every binned calibration error needs."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from atypicality.groups import cut

__all__ = ["BinSums", "inner_edges"]


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
