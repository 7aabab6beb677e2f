"""Standard errors and intervals of calibration errors: for the population value over the same bins, or the same kernel.

All of them put the noise of the cells into `intervals.norm_interval`. The plain value of such a metric is biased
upwards, so it may lie above its own interval; the interval starts at 0 when the data do not speak against it.
"""

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.metrics.bins import BinSums, inner_edges
from atypicality.metrics.intervals import norm_interval
from atypicality.metrics.rows import Losses, Pairs
from atypicality.metrics.smooth import cosine_moments, smoothed, spread_on_grid

__all__ = ["binned_interval", "classwise_interval", "smooth_interval"]

FloatArray = NDArray[np.float64]
Interval = tuple[float, float, float]

_DRAWS = 1000
_WIDE_DRAWS = 200
"""Draws where a cell costs more: a quantile of a sum over many cells needs fewer."""
_GRID = 1 << 12


def binned_interval(bins: BinSums, rng: np.random.Generator, *, power: int, level: float) -> Interval:
    """Interval of the expected (`power=1`) or root mean squared (`power=2`) calibration error over fixed bins.

    Given the counts, the gap of a bin is normal with the variance of a share. Two successes and two failures, dealt to
    the bins in equal parts, are added (Agresti and Coull 1998): bins in which all are right are not taken for certain.
    The counts are multinomial.
    """
    filled = bins.count > 0
    count, n_rows = bins.count[filled], bins.total
    share = (bins.correct[filled] + 2 / count.size) / (count + 4 / count.size)
    noise = rng.standard_normal((_DRAWS, count.size)) * np.sqrt(share * (1 - share) / count)
    weights = count / n_rows
    drawn = rng.multinomial(int(n_rows), weights, size=_DRAWS) / n_rows

    def norm(gaps: FloatArray) -> FloatArray:
        weighted = (weights if gaps.ndim == 1 else drawn) * np.abs(gaps) ** power
        return np.asarray(weighted.sum(axis=-1) ** (1 / power))

    return norm_interval(bins.gap[filled], noise, norm, level)


def classwise_interval(
    probs: NDArray[np.floating], labels: NDArray[np.intp], rows: Losses, rng: np.random.Generator, *, level: float
) -> Interval:
    """Interval of the class-wise calibration error. Classes share their samples, so the noise is drawn per sample."""
    bins = rows.class_bins
    n_classes, n_bins = bins.count.shape
    noise = _class_noise(probs, labels, inner_edges(n_bins, rows.pairs.dtype), rng)
    cells = (bins.confidence - bins.correct).reshape(-1) / bins.total

    def norm(gaps: FloatArray) -> FloatArray:
        return np.asarray(np.abs(gaps).sum(axis=-1) / n_classes)

    return norm_interval(cells, noise, norm, level)


def smooth_interval(pairs: Pairs, value: float, rng: np.random.Generator, *, level: float) -> Interval:
    """Interval of the smooth calibration error, whose `value` was observed.

    It is the interval of smECE at one fixed bandwidth s, widened to hold s: smECE_s falls with s, so a population value
    above s is at most smECE_s, and one below s is at least that. Two failures are added to the noise, as for bins.
    """
    sigma = max(value, 8 / _GRID)
    residual = (pairs.correct - pairs.confidence) / pairs.correct.size
    variance = spread_on_grid(pairs.confidence, residual**2 + 2 / pairs.correct.size**3, _GRID)
    draws = rng.standard_normal((_WIDE_DRAWS, variance.size)) * np.sqrt(variance)
    curve, noise = (
        smoothed(cosine_moments(grid), sigma, 8) for grid in (spread_on_grid(pairs.confidence, residual, _GRID), draws)
    )
    error, low, high = norm_interval(curve, noise, lambda values: np.asarray(np.abs(values).mean(axis=-1)), level)
    return error, min(low, sigma), max(high, sigma)


def _class_noise(
    probs: NDArray[np.floating], labels: NDArray[np.intp], edges: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Noise of every class's bins, (n_draws, k * n_bins): residuals times one normal number per sample and draw."""
    (n_rows, n_classes), n_bins = probs.shape, edges.size + 1
    total, high = np.zeros((_WIDE_DRAWS, n_classes)), np.zeros((_WIDE_DRAWS, n_classes * n_bins))

    def add(rows: slice) -> None:
        block = probs[rows].astype(np.float64)
        row, column = np.nonzero(block > (edges[0] if edges.size else np.inf))
        cell = column * n_bins + np.searchsorted(edges, block[row, column])
        block[np.arange(len(block)), labels[rows]] -= 1
        draws = rng.standard_normal((len(block), _WIDE_DRAWS))
        entries = scipy.sparse.csr_array((block[row, column], (cell, row)), shape=(n_classes * n_bins, len(block)))
        np.add(total, draws.T @ block, out=total)
        np.add(high, np.asarray(entries @ draws).T, out=high)

    block = blocks.block_rows(n_classes * 8, budget=blocks.GEMM_BYTES)
    blocks.for_rows(add, n_rows, block=block, threads=1)  # in order: the draws must not depend on the blocks
    noise = high.reshape(-1, n_classes, n_bins)
    noise[:, :, 0] = total - noise[:, :, 1:].sum(axis=2)
    return np.asarray(noise.reshape(_WIDE_DRAWS, -1) / n_rows)
