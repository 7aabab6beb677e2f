"""Binomial laws and ranks from `scipy.special`: to import `scipy.stats` takes longer than to fit a small head."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, betaln, ndtri

__all__ = ["at_least_beta_binomial", "at_most", "quantile", "ranks"]


def at_most(count: Any, n: Any, chance: Any) -> NDArray[np.float64]:
    """Chance of `count` or fewer of `n` rows, each with the same `chance`; 0 of a negative count.

    >>> at_most([-1, 0, 1, 2], 2, 0.5).tolist()
    [0.0, 0.25, 0.75, 1.0]
    """
    found = np.asarray(count, np.float64)
    return np.where(found < 0, 0.0, bdtr(np.maximum(found, 0.0), n, chance))


def quantile(level: float, n: Any, chance: Any) -> NDArray[np.float64]:
    """The smallest count that `at_most` gives at least `level`.

    >>> quantile(0.5, [1, 2, 59], [0.4, 0.5, 0.05]).tolist()
    [0.0, 1.0, 3.0]
    """
    chance, z = np.asarray(chance), ndtri(level)
    mean, bend = np.multiply(n, chance), (z * z - 1) * (1 - 2 * chance) / 6
    # the Cornish-Fisher expansion, which is seldom off by more than one
    found = np.clip(np.ceil(mean + z * np.sqrt(mean * (1 - chance)) + bend - 0.5), 0.0, n)
    while (above := at_most(found - 1, n, chance) >= level).any():
        found = found - above
    while (below := at_most(found, n, chance) < level).any():
        found = found + below
    return np.asarray(found)


def at_least_beta_binomial(count: int, n: int, a: float, b: float) -> float:
    """Chance of `count` or more of `n` rows whose common chance follows Beta(a, b).

    >>> round(at_least_beta_binomial(1, 2, 1, 1), 12)  # uniform: 0, 1 and 2 rows are equally likely
    0.666666666667
    """
    if count <= 0:
        return 1.0
    if count > n:
        return 0.0
    first = betaln(count + a, n - count + b) - betaln(a, b) - betaln(n - count + 1, count + 1) - np.log(n + 1)
    more = np.arange(count, n)  # each chance over the one before it is a ratio of small numbers
    steps = np.log((n - more) / (more + 1) * (more + a) / (n - more - 1 + b))
    return min(1.0, float(np.exp(first + np.concatenate([[0.0], np.cumsum(steps)])).sum()))


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Rank of each value (n,) from 1 on, the mean of their ranks for equal ones.

    >>> ranks([0.3, 0.1, 0.3]).tolist()
    [2.5, 1.0, 2.5]
    """
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]
