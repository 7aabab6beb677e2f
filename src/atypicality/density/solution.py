"""From class statistics to Gaussians that can score: projection, shrinkage, rank and whitening."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from atypicality.density.covariance import Factorise, principal_directions, shrink, triangular_whitening, whiten
from atypicality.density.logdensity import ClassGaussians, Gaussians, RelativeGaussians, TiedGaussians
from atypicality.density.statistics import ClassStatistics
from atypicality.stored import Part, Record, kinds, need
from atypicality.validation import first_of

__all__ = ["GaussianSolution", "solve"]

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class GaussianSolution:
    """What statistics say: see the attributes of `GaussianAtypicality`.

    Parameters
    ----------
    means : ndarray of shape (k, d)
    covariance : ndarray of shape (d, d), (k, d, d) or (k, d)
    rank : int or ndarray of shape (k,)
    components : ndarray of shape (d, n_features) or None
    gaussians : Gaussians
        What scores rows.
    weakness : str
        Why the densities are weaker than asked for, and what to do; empty if they are not.
    """

    means: Annotated[Float64, kinds.Array("c m", kinds.FINITE)]
    covariance: Annotated[Float64, kinds.Array("* * | * * *", kinds.FINITE)]
    rank: Annotated[int | NDArray[np.intp], kinds.ScalarOr(kinds.Integer(1), kinds.Counts("c", kinds.POSITIVE))]
    components: Annotated[Float64 | None, kinds.optional(kinds.Array("m D", kinds.FINITE))]
    gaussians: Annotated[Gaussians, Part(TiedGaussians, ClassGaussians, RelativeGaussians)]
    weakness: Annotated[str, kinds.Text()]
    _stored = Record("Solution")

    def check(self, covariance: str, precision: str) -> None:
        """Raise where shapes, ranks and types contradict each other or these parameters."""
        gaussians = self.gaussians
        c, m = self.means.shape
        shape = {"tied": (m, m), "full": (c, m, m), "diagonal": (c, m)}[covariance]
        need(self.covariance.shape == shape, f"the covariance must have shape {shape}.")
        need(isinstance(gaussians, TiedGaussians) == (covariance == "tied"), "the Gaussians must suit covariance=.")
        need(gaussians.centre.dtype.name == precision, "the centre must have the type that precision= names.")
        if isinstance(gaussians, RelativeGaussians):
            need(gaussians.spread.dtype == gaussians.centre.dtype, "the spread must have the type of the centre.")
        if isinstance(gaussians, TiedGaussians):
            need(self.rank == gaussians.whitening.shape[1], "the rank must be that of the whitening.")
        else:
            self._check_classes(covariance, gaussians)

    def _check_classes(self, covariance: str, gaussians: ClassGaussians) -> None:
        components, whitenings = gaussians.components, gaussians.whitenings
        need((components is None) == (self.components is None), "both must have components, or neither.")
        need(
            components is None or components.dtype == gaussians.centre.dtype,
            "the components must have the type of the centre.",
        )
        need(np.array_equal(self.rank, [w.rank for w in whitenings]), "the ranks must be those of the whitenings.")
        for w in whitenings:
            shape = (self.means.shape[1],) + ((w.rank,) if covariance == "full" else ())
            need(w.matrix.shape == shape, f"a whitening of rank {w.rank} must have shape {shape}.")


def solve(
    statistics: ClassStatistics,
    *,
    covariance: str,
    shrinkage: str | float | None,
    n_components: int | None,
    precision: str,
    residual: bool = False,
    factorise: Factorise = triangular_whitening,
) -> GaussianSolution:
    """Gaussians from statistics whose layout suits these parameters of `GaussianAtypicality`."""
    tied = covariance == "tied"
    _check_counts(statistics, tied)
    components = None if n_components is None else _components(statistics, n_components)
    sizes = np.array([statistics.counts.sum()]) if tied else statistics.counts
    matrices = _matrices(statistics, covariance, components, sizes, shrinkage)
    if residual and components is not None:
        matrices = _completed(matrices, _matrices(statistics, covariance, None, sizes, None), components)
        components = None
    whitenings = [
        whiten(
            matrix,
            int(n),
            epsilon=statistics.epsilon,
            factorise=factorise,
            residual=residual,
            by_column=shrinkage == "columns",
        )
        for matrix, n in zip(matrices, sizes, strict=True)
    ]
    ranks = np.array([whitening.rank for whitening in whitenings])
    _check_ranks(ranks, statistics, tied)
    weakness = _weakness(ranks, matrices.shape[1], tied)
    means = statistics.means
    centre = (statistics.counts @ means / statistics.counts.sum()).astype(precision)
    shown = means if components is None else means @ components.T
    if tied:
        one = TiedGaussians.of(means, whitenings[0], components, centre)
        return GaussianSolution(shown, matrices[0], int(ranks[0]), components, one, weakness)
    each = ClassGaussians.of(means, whitenings, components, centre)
    return GaussianSolution(shown, matrices, ranks, components, each, weakness)


def _matrices(
    statistics: ClassStatistics,
    covariance: str,
    components: Float64 | None,
    sizes: NDArray[np.int64],
    shrinkage: str | float | None,
) -> Float64:
    """Covariances to decompose, after shrinkage: (1, d, d) if tied, else (k, d, d) or (k, d)."""
    scatter, fourth = statistics.scatter, statistics.fourth
    if covariance == "tied":
        scatter = scatter[None] if statistics.layout == "pooled" else scatter.sum(axis=0, keepdims=True)
        fourth = None if fourth is None else fourth.sum(keepdims=True)
    if components is not None:
        scatter = components @ scatter @ components.T
    if covariance == "diagonal" and scatter.ndim == 3:
        scatter = np.diagonal(scatter, axis1=1, axis2=2)
    matrices = scatter / sizes.reshape(-1, *[1] * (scatter.ndim - 1))
    if shrinkage is None:
        return np.asarray(matrices)
    powers = [None] * sizes.size if fourth is None else fourth
    off = (8 * statistics.epsilon * np.abs(statistics.means).max(axis=0)) ** 2  # a constant, less its mean
    return np.stack([shrink(m, int(n), shrinkage, f, off) for m, n, f in zip(matrices, sizes, powers, strict=True)])


def _completed(inside: Float64, whole: Float64, components: Float64) -> Float64:
    """Covariances (k, d, d): those of components (k, m, m), and across them the mean of the variance that is left.

    That is probabilistic principal component analysis (Tipping and Bishop 1999), about each class mean.
    """
    m, d = components.shape
    left = np.trace(whole, axis1=1, axis2=2) - np.trace(components @ whole @ components.T, axis1=1, axis2=2)
    left = np.maximum(left, 0.0) / max(d - m, 1)
    across = np.eye(d) - components.T @ components
    return np.asarray(components.T @ inside @ components + left[:, None, None] * across)


def _components(statistics: ClassStatistics, n_components: int) -> Float64:
    """Principal directions of all rows: scatter within the classes plus scatter of the class means."""
    d = statistics.origins.shape[1]
    if n_components > d:
        raise ValueError(f"n_components must be at most the {d} columns of the embeddings; got {n_components}.")
    counts, means = statistics.counts, statistics.means
    away = (means - np.average(means, axis=0, weights=counts)) * np.sqrt(counts)[:, None]
    within = statistics.scatter if statistics.layout == "pooled" else statistics.scatter.sum(axis=0)
    return principal_directions((within + away.T @ away) / counts.sum(), n_components)


def _check_counts(statistics: ClassStatistics, tied: bool) -> None:
    counts, classes = statistics.counts, statistics.classes
    if counts.sum() < 2:
        raise ValueError("embeddings must have at least two rows to estimate a covariance; got 1.")
    if not tied and counts.min() < 2:
        raise ValueError(
            "every class must have at least two rows for a covariance of its own; class "
            f"{first_of(classes[counts < 2])} has one. Use covariance='tied', or leave such classes out."
        )


def _check_ranks(ranks: NDArray[np.intp], statistics: ClassStatistics, tied: bool) -> None:
    if ranks.all():
        return
    who = "each class" if tied else f"class {first_of(statistics.classes[ranks == 0])}"
    raise ValueError(
        f"embeddings must vary within a class; all rows of {who} are equal, so that there is no density. "
        "Check that these are embeddings of different inputs."
    )


def _weakness(ranks: NDArray[np.intp], d: int, tied: bool) -> str:
    low = np.flatnonzero(ranks < d)
    if not low.size:
        return ""
    whose = "the covariance" if tied else f"the covariance of {low.size} of {ranks.size} classes"
    advice = "" if tied else " Densities of different rank are not comparable: consider covariance='tied'."
    return (
        f"{whose} has rank {ranks[low].min()} of {d} (constant or dependent columns, units that never fire, or few "
        f"rows): what is new only in directions in which no training row varies is not noticed.{advice}"
    )
