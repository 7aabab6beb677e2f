"""One metric over the groups of an axis: count, value, standard error and interval, all from `atypicality.metrics`.

What is here and not there: means of a number per row go straight to Student's interval, and the coverage of prediction
sets gets the exact binomial interval.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta

from atypicality import metrics
from atypicality.evaluation.scored import Options, Scored
from atypicality.metrics.intervals import mean_interval, wilson_interval
from atypicality.metrics.tables import filled_groups

__all__ = ["Column", "area_under_risk", "exact_interval", "grouped"]

FloatArray = NDArray[np.float64]


def area_under_risk(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk-coverage curve; see `atypicality.metrics.risk_coverage`."""
    return metrics.risk_coverage(confidence=confidence, correct=correct).area


PAIRED: dict[str, Callable[..., float]] = {
    "accuracy": metrics.accuracy,
    "overconfidence": metrics.overconfidence,
    "ece": metrics.ece,
    "rmsce": metrics.rmsce,
    "adaptive_ece": metrics.adaptive_ece,
    "debiased_calibration_error": metrics.debiased_calibration_error,
    "smooth_ece": metrics.smooth_ece,
    "risk_coverage_area": area_under_risk,
}
"""Metrics of (confidence, correct)."""
BINNED = ("ece", "rmsce", "adaptive_ece", "debiased_calibration_error")
N_RESAMPLES = 100
"""Of the bootstrap, which only the area under the risk-coverage curve needs."""


Column = tuple[NDArray[Any], ...]
"""Count, value, standard error, low and high of one metric, each of shape (n_groups,): the order of STATISTICS."""


def grouped(metric: str, scored: Scored, codes: NDArray[np.intp], n_groups: int, options: Options) -> Column:
    """A metric by name over the groups 0 .. n_groups - 1 of the rows; without intervals only its values."""
    if metric == "share":
        return _share(codes, n_groups)
    if metric == "coverage":
        return _coverage(scored, codes, n_groups)
    if metric in PAIRED:
        return _paired(metric, scored, codes, n_groups, options)
    return _means(scored.column(metric), codes, n_groups)


def exact_interval(successes: ArrayLike, count: ArrayLike, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Clopper and Pearson's (1934) interval of a share: it covers at least as often as it says, for every n and share.

    >>> [round(float(bound), 4) for bound in exact_interval(8, 10)]
    [0.4439, 0.9748]
    """
    hits, size = np.asarray(successes, np.float64), np.asarray(count, np.float64)
    tail = (1 - level) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(hits > 0, beta.ppf(tail, hits, size - hits + 1), 0.0)
        high = np.where(hits < size, beta.ppf(1 - tail, hits + 1, size - hits), 1.0)
    return low, high


def _paired(metric: str, scored: Scored, codes: NDArray[np.intp], n_groups: int, options: Options) -> Column:
    pairs = scored.losses.pairs
    confidence, correct = pairs.confidence.astype(pairs.dtype), pairs.correct  # edges round as dtype does
    measured: Callable[..., float] = (
        partial(PAIRED[metric], n_bins=options.n_bins) if metric in BINNED else PAIRED[metric]
    )
    if options.intervals:
        cut: dict[str, Any] = {"groups": codes, "names": n_groups, "n_resamples": N_RESAMPLES}
        table = metrics.by_group(measured, confidence=confidence, correct=correct, random_state=options.seed, **cut)
        return table.count, table.value, table.standard_error, table.low, table.high
    count, value = np.bincount(codes, minlength=n_groups), np.full(n_groups, np.nan)
    for group, part in filled_groups(codes, count):
        value[group] = measured(confidence=confidence[part], correct=correct[part])
    return count, value, *np.full((3, n_groups), np.nan)


def _means(values: NDArray[Any], codes: NDArray[np.intp], n_groups: int) -> Column:
    count, table = np.bincount(codes, minlength=n_groups), np.full((n_groups, 4), np.nan)
    for group, part in filled_groups(codes, count):
        table[group] = values[part].mean(), *mean_interval(values[part])
    return count, *table.T


def _share(codes: NDArray[np.intp], n_groups: int) -> Column:
    count = np.bincount(codes, minlength=n_groups)
    return _binomial(count, count, np.full(n_groups, codes.size), wilson_interval)


def _coverage(scored: Scored, codes: NDArray[np.intp], n_groups: int) -> Column:
    count = np.bincount(codes, minlength=n_groups)
    return _binomial(count, np.bincount(codes, scored.column("coverage"), minlength=n_groups), count, exact_interval)


def _binomial(
    count: NDArray[np.intp], hits: NDArray[Any], size: NDArray[np.intp], interval: Callable[..., Any]
) -> Column:
    share = np.divide(hits, size, out=np.full(hits.shape, np.nan), where=size > 0)
    error = np.sqrt(share * (1 - share) / np.maximum(size, 1))
    return count, share, error, *interval(hits, size)
