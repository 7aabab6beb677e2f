"""The conformal threshold: the k-th smallest score, k an exact integer, and the law of the coverage it gives."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from atypicality.validation import check_alpha, check_integer, check_vector

__all__ = ["conformal_rank", "conformal_threshold", "coverage_law", "minimum_rows"]


def conformal_rank(n: int, alpha: float | Fraction) -> int:
    r"""The rank :math:`k = \lceil (n + 1)(1 - \alpha) \rceil` among n scores; above n there is no such score.

    Parameters
    ----------
    n : int
    alpha : float in (0, 1), or Fraction
        A float such as 0.1 is read as the decimal it is written as, so that no rounding can move the ceiling.

    Examples
    --------
    >>> conformal_rank(9, 0.7), conformal_rank(100, 0.1), conformal_rank(5, 0.1)
    (3, 91, 6)
    """
    return math.ceil((check_integer(n, "n", low=0) + 1) * (1 - check_alpha(alpha)))


def minimum_rows(alpha: float | Fraction) -> int:
    r"""The fewest scores that give a finite threshold, :math:`\lceil 1/\alpha \rceil - 1`.

    Parameters
    ----------
    alpha : float in (0, 1), or Fraction

    Examples
    --------
    >>> minimum_rows(0.05), minimum_rows(0.1)
    (19, 9)
    """
    return math.ceil(1 / check_alpha(alpha)) - 1


def conformal_threshold(scores: ArrayLike, alpha: float | Fraction) -> float:
    r"""The smallest threshold whose sets miss the label with a chance of at most `alpha`.

    It is the k-th smallest score, :math:`k = \lceil (n + 1)(1 - \alpha) \rceil`, and infinite when k exceeds n:
    then only the full set is valid (Vovk, Gammerman and Shafer 2005, section 2.2).

    Parameters
    ----------
    scores : array-like of shape (n,)
        Scores of the true labels of the threshold set; larger = less conforming. Infinite scores are allowed.
    alpha : float in (0, 1)

    Returns
    -------
    float

    Examples
    --------
    >>> conformal_threshold([0.3, 0.1, 0.2, 0.4], 0.4)
    0.3
    >>> conformal_threshold([0.3, 0.1], 0.1)
    inf
    """
    values = check_vector(scores, "scores", finite=False)
    rank = conformal_rank(values.size, alpha)
    return math.inf if rank > values.size else float(np.partition(values, rank - 1)[rank - 1])


def coverage_law(n: int, alpha: float | Fraction, *, n_test: int | None = None) -> Any:
    r"""The law of the coverage given n calibration rows with continuous scores, as a frozen SciPy distribution.

    The coverage given the calibration rows is :math:`\mathrm{Beta}(k, n + 1 - k)`, with mean k / (n + 1); the number of
    `n_test` rows that are covered is beta-binomial with the same parameters (Vovk 2012). With ties among the scores
    the coverage is never below this law.

    Parameters
    ----------
    n : int
        Calibration rows.
    alpha : float in (0, 1), or Fraction
    n_test : int, optional

    Returns
    -------
    scipy.stats frozen distribution
        Of the coverage, or with `n_test` of the number of covered rows.

    Examples
    --------
    >>> float(coverage_law(99, 0.1).mean()), float(coverage_law(99, 0.1, n_test=1000).mean())
    (0.9, 900.0)
    """
    from scipy import stats

    rank = conformal_rank(n, alpha)
    if rank > n:
        raise ValueError(
            f"n must be at least {minimum_rows(alpha)} for alpha={float(alpha):g} to have a finite threshold; got {n}. "
            "Below it every set is full and covers always."
        )
    if n_test is None:
        return stats.beta(rank, n + 1 - rank)
    return stats.betabinom(check_integer(n_test, "n_test", low=0), rank, n + 1 - rank)
