"""Selective prediction: how the error falls when the least confident samples are left to someone else."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atypicality.metrics.intervals import bootstrap
from atypicality.metrics.rows import Given, Pairs, read_pairs

__all__ = ["RiskCoverage", "area_interval", "area_under_risk", "risk_coverage"]

_RESAMPLES = 100


@dataclass(frozen=True)
class RiskCoverage:
    """The operating points of a selective classifier, from the strictest threshold to full coverage.

    Attributes
    ----------
    threshold : ndarray of shape (n_points,)
        Distinct confidences, falling: samples at or above the threshold are answered.
    coverage : ndarray of shape (n_points,)
        Share of the samples answered.
    risk : ndarray of shape (n_points,)
        Share of wrong answers among them.
    area : float
        Mean risk over the coverages 1/n, 2/n, ..., 1; smaller is better. Equally confident samples enter in the average
        over all their orders, so the order of the samples does not matter.

    Examples
    --------
    >>> curve = risk_coverage(confidence=[0.9, 0.8, 0.7, 0.7], correct=[1, 0, 1, 1])
    >>> curve.threshold, curve.coverage
    (array([0.9, 0.8, 0.7]), array([0.25, 0.5 , 1.  ]))
    """

    threshold: NDArray[np.float64]
    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]
    area: float


def risk_coverage(
    probs: Given = None, labels: Given = None, *, confidence: Given = None, correct: Given = None
) -> RiskCoverage:
    """Risk-coverage curve and its area (Geifman and El-Yaniv 2017; AURC of Geifman, Uziel and El-Yaniv 2019).

    Parameters
    ----------
    probs, labels, confidence, correct : as in `accuracy`

    Returns
    -------
    RiskCoverage

    Examples
    --------
    >>> risk_coverage(confidence=[0.9, 0.8, 0.7, 0.7], correct=[1, 0, 1, 1]).risk.round(3).tolist()
    [0.0, 0.5, 0.25]
    """
    pairs = read_pairs(probs, labels, confidence, correct)
    values, index = np.unique(-pairs.confidence, return_inverse=True)
    answered, errors = _counted(index, ~pairs.correct)
    return RiskCoverage(-values, answered / index.size, errors / answered, _area(answered, errors))


def area_under_risk(confidence: Given = None, correct: Given = None) -> float:
    """The area of `risk_coverage`."""
    return risk_coverage(confidence=confidence, correct=correct).area


def area_interval(pairs: Pairs, rng: np.random.Generator, *, level: float) -> tuple[float, float, float]:
    """Standard error and percentile interval of `area_under_risk` over resampled rows, which are ranked only once."""
    _, index = np.unique(-pairs.confidence, return_inverse=True)
    wrong = ~pairs.correct

    def area(rows: NDArray[np.intp]) -> float:
        answered, errors = _counted(index[rows], wrong[rows])
        there = np.diff(answered, prepend=0) > 0
        return _area(answered[there], errors[there])

    return bootstrap(area, index.size, level=level, n_resamples=_RESAMPLES, rng=rng)


def _counted(index: NDArray[np.intp], wrong: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Samples, and wrong ones, whose confidence is among the first, the first two, ... of those that differ."""
    return np.cumsum(np.bincount(index)), np.cumsum(np.bincount(index, wrong))


def _area(answered: NDArray[np.intp], errors: NDArray[np.float64]) -> float:
    places = np.arange(1, answered[-1] + 1)
    # Inside a tie, j further samples hold on average j / size of its errors, in whatever order they come.
    expected = np.interp(places, np.r_[0, answered], np.r_[0.0, errors])
    return float((expected / places).mean())
