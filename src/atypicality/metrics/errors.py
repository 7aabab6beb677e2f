"""Standard errors and intervals of calibration errors: for the population value over the same bins, or the same kernel.

All of them put the noise of the cells into `intervals.norm_interval`. The plain value of such a metric is biased
upwards, so it may lie above its own interval; the interval starts at 0 when the data do not speak against it. The page
on calibration metrics has their measured coverage.
"""

import math

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.groups import cut
from atypicality.metrics.intervals import norm_interval
from atypicality.metrics.rows import BinSums, Losses, Pairs, inner_edges
from atypicality.metrics.smooth import cosine_moments, smoothed, spread_on_grid

__all__ = ["binned_interval", "classwise_interval", "smooth_interval"]

FloatArray = NDArray[np.float64]
Interval = tuple[float, float, float]

_DRAWS = 1000
_WIDE_DRAWS = 200  # draws where a cell costs more: a quantile of a sum over many cells needs fewer
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
    noise, drawn = np.asfortranarray(noise), np.asfortranarray(drawn)  # the few bins of many draws are added up fast

    def norm(gaps: FloatArray) -> FloatArray:
        size = np.abs(gaps) if power == 1 else gaps * gaps
        size *= weights if gaps.ndim == 1 else drawn
        return np.asarray(size.sum(axis=-1) ** (1 / power))

    return norm_interval(bins.gap[filled], noise, norm, level)


def classwise_interval(
    probs: NDArray[np.floating], rows: Losses, rng: np.random.Generator, *, level: float
) -> Interval:
    """Interval of the class-wise calibration error.

    Many of its cells hold a sample or two, where no normal law helps. The noise is that of labels drawn from the
    probabilities (consistency resampling, Broecker and Smith 2007), exact for a calibrated model, times the ratio of
    observed to expected standard deviation in each bin. A model without errors may still err in -log(alpha/2) / n of
    all cases, and each error costs two cells: the interval ends no lower than that.
    """
    bins = rows.class_bins
    (n_classes, n_bins), filled = bins.count.shape, np.flatnonzero(bins.count)
    edges = inner_edges(n_bins, rows.pairs.dtype)
    confidence, correct = bins.confidence.reshape(-1)[filled], bins.correct.reshape(-1)[filled]
    noise = (confidence - _drawn_labels(probs, edges, bins.count > 0, rng)) / bins.total
    noise *= _excess_deviation(probs, rows, edges)[filled % n_bins]

    def norm(gaps: FloatArray) -> FloatArray:
        return np.asarray(np.abs(gaps).sum(axis=-1) / n_classes)

    error, low, high = norm_interval((confidence - correct) / bins.total, noise, norm, level)
    value = float(bins.expected_error().mean())  # biased upwards, so it may lie above: the interval holds it too
    least = -2 * math.log((1 - level) / 2) / (bins.total * n_classes)
    return error, min(low, value), max(high, value, least)


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


def _drawn_labels(
    probs: NDArray[np.floating], edges: FloatArray, filled: NDArray[np.bool_], rng: np.random.Generator
) -> FloatArray:
    """Labels drawn from the rows of `probs`, counted per draw and cell of a class and bin that is filled.

    Of many classes most cells are empty, and no label is ever drawn there.
    """
    (n_rows, n_classes), n_bins = probs.shape, edges.size + 1
    place, n_cells = np.cumsum(filled.reshape(-1)) - 1, int(filled.sum())
    counts = np.zeros(_WIDE_DRAWS * n_cells)
    offsets = np.arange(_WIDE_DRAWS) * n_cells

    def add(rows: slice) -> None:
        block = probs[rows].astype(np.float64)
        row = np.arange(len(block))[:, None]
        ladder = np.cumsum(block, axis=1)
        ladder /= ladder[:, -1:]
        # One sorted ladder for all rows: row r climbs from r to r + 1.
        label = np.searchsorted((ladder + row).reshape(-1), rng.random((len(block), _WIDE_DRAWS)) + row, side="right")
        label = np.minimum(label - row * n_classes, n_classes - 1)
        cell = offsets + place[label * n_bins + cut(edges, block[row, label])]
        np.add.at(counts, cell.reshape(-1), 1.0)

    block = blocks.block_rows(n_classes * 8)
    blocks.for_rows(add, n_rows, block=block, threads=1)  # in order: the draws must not depend on the blocks
    return counts.reshape(_WIDE_DRAWS, -1)


def _excess_deviation(probs: NDArray[np.floating], rows: Losses, edges: FloatArray) -> FloatArray:
    """Observed over expected standard deviation of the residuals in each bin, all classes together: (n_bins,)."""
    bins, n_bins = rows.class_bins, edges.size + 1

    def high_squares(part: slice) -> FloatArray:
        high = probs[part][probs[part] > (edges[0] if edges.size else np.inf)].astype(np.float64)
        return np.bincount(cut(edges, high), high**2, minlength=n_bins).astype(np.float64)

    block = blocks.block_rows(probs.shape[1] * probs.itemsize)
    squares = blocks.reduce_rows(high_squares, len(probs), block=block)
    squares[0] = rows.squares.sum() - squares[1:].sum()
    named = np.bincount(cut(edges, rows.label_prob), rows.label_prob, minlength=n_bins)
    expected = bins.confidence.sum(axis=0) - squares
    observed = squares - 2 * named + bins.correct.sum(axis=0)
    return np.asarray(np.sqrt(np.maximum(observed, 0) / np.maximum(expected, 1e-300)).clip(max=1e3))
