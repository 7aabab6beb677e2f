"""Selective prediction: how the error falls when the least confident samples are left to someone else."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.metrics.rows import Given, read_pairs

__all__ = ["RiskCoverage", "area_by_rank", "risk_coverage"]


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
    size = np.bincount(index)
    wrong = np.bincount(index, ~pairs.correct)
    answered, errors = np.cumsum(size), np.cumsum(wrong)
    return RiskCoverage(-values, answered / index.size, errors / answered, _area(answered, errors))


def area_by_rank(rank: NDArray[np.intp], wrong: NDArray[np.bool_]) -> float:
    """Area under the risk-coverage curve of rows (n,) by rank of confidence, 0 the largest: for one order, often asked.

    >>> area_by_rank(np.array([0, 1, 2, 2]), np.array([False, True, False, False])) == risk_coverage(
    ...     confidence=[0.9, 0.8, 0.7, 0.7], correct=[1, 0, 1, 1]).area
    True
    """
    size = np.bincount(rank)
    there = size > 0
    return _area(np.cumsum(size[there]), np.cumsum(np.bincount(rank, wrong)[there]))


def _area(answered: NDArray[Any], errors: NDArray[Any]) -> float:
    """Mean risk where 1, 2, ... rows are answered, from the rows and errors up to the end of each tie."""
    # Inside a tie, j further samples hold on average j / size of its errors, in whatever order they come.
    count = np.arange(1, answered[-1] + 1)
    return float((np.interp(count, np.append(0, answered), np.append(0.0, errors)) / count).mean())
