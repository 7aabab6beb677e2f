"""Selective prediction: how the error falls when the least confident samples are left to someone else."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atypicality.metrics.rows import Given, read_pairs

__all__ = ["RiskCoverage", "risk_coverage"]


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
    n_rows = pairs.correct.size
    # Inside a tie, j further samples hold on average j / size of its errors, in whatever order they come.
    expected = np.interp(np.arange(1, n_rows + 1), np.r_[0, answered], np.r_[0.0, errors])
    area = float((expected / np.arange(1, n_rows + 1)).mean())
    return RiskCoverage(-values, answered / n_rows, errors / answered, area)
