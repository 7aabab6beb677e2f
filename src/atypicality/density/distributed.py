"""The fit of Gaussians as three functions, for any engine that can run one function per part and merge two results.

A part is a file, a partition or a block of rows. `part_statistics` reads one, `merge` joins two results in any order
and grouping, `finish` makes the fitted estimator. What travels is statistics, never rows: for k classes and d columns
2 k d + d^2 numbers with a tied covariance. Each is a pure function, so that an engine may run it again.

>>> import functools
>>> import numpy as np
>>> rng = np.random.default_rng(0)
>>> parts = [(rng.normal(size=(50, 3)), rng.integers(0, 2, 50)) for _ in range(4)]
>>> gaussian = GaussianAtypicality()
>>> total = functools.reduce(merge, [part_statistics(gaussian, x, y) for x, y in parts])
>>> whole = GaussianAtypicality().fit(*(np.concatenate(both) for both in zip(*parts)))
>>> bool(np.allclose(finish(gaussian, total).covariance_, whole.covariance_, rtol=1e-12))
True
"""

from typing import Any

from numpy.typing import ArrayLike

from atypicality.density.family import Both, DensityFamily, joined
from atypicality.density.gaussian import GaussianAtypicality
from atypicality.density.statistics import ClassStatistics, merge_statistics
from atypicality.estimators import clone

__all__ = ["finish", "merge", "part_statistics"]

Estimator = GaussianAtypicality | DensityFamily
Statistics = ClassStatistics | Both
"""Two of them, of rows as they are and normalised, for a `DensityFamily`."""


def part_statistics(estimator: Estimator, embeddings: ArrayLike, labels: ArrayLike) -> Statistics:
    """What an estimator needs to know of some rows: counts, means and scatter of their classes.

    Parameters
    ----------
    estimator : GaussianAtypicality or DensityFamily
        Says which statistics its parameters need; it is not changed, and need not be fitted.
    embeddings : array-like of shape (n, d)
        A memory map is read block by block.
    labels : array-like of shape (n,)

    Returns
    -------
    ClassStatistics, or a pair of them for a family
        To be merged with those of other parts. It can be pickled, and weighs as much as its arrays.

    Examples
    --------
    >>> part_statistics(GaussianAtypicality(), [[0.0], [2.0], [5.0]], ["a", "a", "b"]).counts
    array([2, 1])
    """
    part: Estimator = clone(estimator).partial_fit(embeddings, labels)
    return part.statistics_


def merge(first: Statistics, second: Statistics) -> Statistics:
    """Statistics of the rows of both; the parts may hold different classes (Chan, Golub and LeVeque 1983).

    Merging in another order or grouping changes the last digits only: fix the order where results must agree to the
    last bit.

    Parameters
    ----------
    first, second : ClassStatistics, or pairs of them

    Returns
    -------
    as the arguments

    Examples
    --------
    >>> gaussian = GaussianAtypicality()
    >>> one, two = part_statistics(gaussian, [[0.0]], ["a"]), part_statistics(gaussian, [[2.0]], ["a"])
    >>> merge(one, two).means
    array([[1.]])
    """
    if isinstance(first, tuple) or isinstance(second, tuple):
        assert isinstance(first, tuple)
        assert isinstance(second, tuple)
        return joined(first, second)
    ours, theirs = first.origins.shape[1], second.origins.shape[1]
    if ours != theirs:
        raise ValueError(
            f"parts must have the same columns; one has {ours}, another {theirs}. Use the same model and layer."
        )
    return merge_statistics(first, second)


def finish(estimator: Estimator, statistics: Statistics) -> Estimator:
    """A fitted copy of an estimator from the statistics of all parts.

    Parameters
    ----------
    estimator : GaussianAtypicality or DensityFamily
        With the parameters that the statistics were gathered for; it is not changed.
    statistics : ClassStatistics, or a pair of them

    Returns
    -------
    estimator

    Examples
    --------
    >>> gaussian = GaussianAtypicality()
    >>> statistics = part_statistics(gaussian, [[0.0], [2.0]], ["a", "a"])
    >>> finish(gaussian, statistics).covariance_
    array([[1.]])
    """
    fitted: Any = clone(estimator)
    found: Estimator
    if isinstance(fitted, DensityFamily):
        assert isinstance(statistics, tuple)
        found = fitted._store(statistics)
    else:
        assert isinstance(statistics, ClassStatistics)
        found = fitted._store(statistics, fitted._solve(statistics))
    return found
