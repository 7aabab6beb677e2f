"""Gaussians of all classes as they are learnt and stored, and the scoring of rows by their formulas."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import namespace
from atypicality.density.covariance import Whitening
from atypicality.density.statistics import refuse_rows
from atypicality.density.unit import UnitRows
from atypicality.formula import ClassDensity, LinearDensity, RelativeDensity, TiedDensity, TwoDensities, moved
from atypicality.stored import Part, Record, kinds
from atypicality.validation import FloatArray

__all__ = ["ClassGaussians", "Gaussians", "RelativeGaussians", "TiedGaussians", "score_rows", "score_together"]

Float64 = NDArray[np.float64]
DEVICE_BYTES = 2**30
"""Of what a block of rows on a device is turned into."""


@dataclass(frozen=True)
class TiedGaussians:
    """Gaussians that share a covariance.

    Parameters
    ----------
    centre : ndarray of shape (d,)
        Subtracted from the rows first; its type is that of the products.
    whitening : ndarray of shape (d, r)
    means : ndarray of shape (k, r)
        Class means, centred and whitened, in float64.
    log_peak : float
    """

    centre: Annotated[FloatArray, kinds.Array("D", kinds.FINITE, dtypes=kinds.ANY_FLOAT)]
    whitening: Annotated[FloatArray, kinds.Array("D r", kinds.FINITE, dtypes=kinds.ANY_FLOAT)]
    means: Annotated[Float64, kinds.Array("c r", kinds.FINITE)]
    log_peak: Annotated[float, kinds.Number()]
    _stored = Record()

    @classmethod
    def of(
        cls, means: Float64, whitening: Whitening, components: Float64 | None, centre: FloatArray
    ) -> "TiedGaussians":
        """From means (k, d) and the whitening of the covariance, of the components where rows are projected first."""
        matrix = whitening.matrix if components is None else components.T @ whitening.matrix
        matrix = np.ascontiguousarray(matrix, centre.dtype)  # the rounded one is used for means and rows alike
        return cls(centre, matrix, (means - centre) @ matrix.astype(np.float64, copy=False), whitening.log_peak)

    def formula(self, log_prior: Float64 | None = None, normalize: str | None = None) -> TiedDensity:
        """The parameters of a score."""
        return replace(self._formula, log_prior=log_prior, normalize=normalize)

    @cached_property
    def _formula(self) -> TiedDensity:
        return TiedDensity.of(self.centre, self.whitening, self.means, self.log_peak)


@dataclass(frozen=True)
class RelativeGaussians(TiedGaussians):
    """Gaussians that share a covariance, against the one Gaussian of all rows.

    Parameters
    ----------
    centre, whitening, means, log_peak
        As in `TiedGaussians`.
    mean : ndarray of shape (r,)
        Of all rows, centred and whitened.
    spread : ndarray of shape (r, q)
        V of `formula.RelativeDensity`.
    mixing : ndarray of shape (k, p), or None
        E of `formula.RelativeDensity`, where products are in float64 and there are no more classes than columns.
    """

    mean: Annotated[Float64, kinds.Array("r", kinds.FINITE)]
    spread: Annotated[FloatArray, kinds.Array("r *", kinds.FINITE, dtypes=kinds.ANY_FLOAT)]
    mixing: Annotated[Float64 | None, kinds.Later(kinds.optional(kinds.Array("c *", kinds.FINITE)), absent=None)] = None
    _stored = Record()

    @classmethod
    def beside(cls, classes: TiedGaussians, counts: NDArray[np.int64]) -> "RelativeGaussians":
        """From the Gaussians of the classes and how many rows each has."""
        shares = counts / counts.sum()
        mean = shares @ classes.means
        weights, dtype = np.sqrt(shares)[:, None], classes.centre.dtype
        spread, mixing = _spread(weights * (classes.means - mean))
        mixing = None if mixing is None or dtype != np.float64 else np.ascontiguousarray(weights * mixing)
        spread = np.ascontiguousarray(spread, dtype)
        return cls(classes.centre, classes.whitening, classes.means, classes.log_peak, mean, spread, mixing)

    @cached_property
    def _formula(self) -> RelativeDensity:
        plain = TiedDensity.of(self.centre, self.whitening, self.means, self.log_peak)
        return RelativeDensity.against(plain, self.mean, self.spread, self.mixing)


def _spread(means: Float64) -> tuple[Float64, Float64 | None]:
    """V (r, q) with ``V V^T = I - (I + B)^-1``, where ``B = M^T M`` of weighted means M (k, r), and q is at most k.

    Also E (k, p) with ``V V^T = M^T E E^T M``, unless k is above r. By the eigenvectors of the smaller of M M^T and
    M^T M, in a third of the time of a singular value decomposition. No small eigenvalue divides, so that what rounding
    does to it does not show. E leaves out those of M M^T that are rounding alone, one at least as M^T has the weights
    in its null space, so that its columns, times the weights, sum to 0.
    """
    k, r = means.shape
    if k > r:
        squares, directions = np.linalg.eigh(means.T @ means)
        squares = np.maximum(squares, 0.0)
        return np.asarray(directions * np.sqrt(squares / (1.0 + squares))), None
    squares, directions = np.linalg.eigh(means @ means.T)
    counts = squares > k * np.finfo(np.float64).eps * squares[-1]
    directions = directions / np.sqrt(1.0 + np.maximum(squares, 0.0))
    return means.T @ directions, directions[:, counts]


@dataclass(frozen=True)
class ClassGaussians:
    """Gaussians with a covariance each.

    Parameters
    ----------
    centre : ndarray of shape (d,)
        Subtracted from the rows before they are projected; its type is that of the products.
    components : ndarray of shape (m, d), or None
        Rows to project on first.
    means : ndarray of shape (k, m)
        Class means in the space of the components, centred there, or as they are.
    whitenings : list of Whitening, one per class
    """

    centre: Annotated[FloatArray, kinds.Array("D", kinds.FINITE, dtypes=kinds.ANY_FLOAT)]
    components: Annotated[FloatArray | None, kinds.optional(kinds.Array("m D", kinds.FINITE, dtypes=kinds.ANY_FLOAT))]
    means: Annotated[Float64, kinds.Array("c m", kinds.FINITE)]
    whitenings: Annotated[list[Whitening], kinds.ListOf(Part(Whitening), size="c")]
    _stored = Record()

    @classmethod
    def of(
        cls, means: Float64, whitenings: list[Whitening], components: Float64 | None, centre: FloatArray
    ) -> "ClassGaussians":
        """From means (k, d) and whitenings, those of the components where rows are projected first."""
        if components is None:
            return cls(centre, None, means, whitenings)
        rounded = components.astype(centre.dtype)
        return cls(centre, rounded, (means - centre) @ rounded.T.astype(np.float64), whitenings)

    def formula(self, log_prior: Float64 | None = None, normalize: str | None = None) -> ClassDensity:
        """The parameters of a score."""
        return replace(self._formula, log_prior=log_prior, normalize=normalize)

    @cached_property
    def _formula(self) -> ClassDensity:
        matrices = [whitening.matrix for whitening in self.whitenings]
        if matrices[0].ndim == 2:  # columns of zeros add nothing to a squared length
            rank = max(matrix.shape[1] for matrix in matrices)
            matrices = [np.pad(matrix, ((0, 0), (0, rank - matrix.shape[1]))) for matrix in matrices]
        components = None if self.components is None else np.ascontiguousarray(self.components.T)
        peaks = np.array([whitening.log_peak for whitening in self.whitenings])
        stacked = np.stack(matrices).astype(self.centre.dtype, copy=False)
        return ClassDensity(self.centre, components, self.means, stacked, peaks)


Gaussians = TiedGaussians | ClassGaussians


def score_rows(
    formula: TiedDensity | LinearDensity | ClassDensity | TwoDensities, x: Any, *what: str
) -> tuple[Any, ...]:
    """What methods of a formula say, "atypicality" (n, 1) or "class_log_density" (n, k), of checked rows (n, d)."""
    return score_together(
        (formula,), x, lambda xp, own, products: tuple(getattr(own[0], name)(xp, products[0]) for name in what)
    )


def score_together(formulas: tuple[Any, ...], x: Any, said: Callable[..., tuple[Any, ...]]) -> tuple[Any, ...]:
    """What a function says of checked rows (n, d), block by block: arrays with finite entries, each with n rows.

    It takes the namespace of the rows, the formulas on their device, and the products of each.
    """
    xp, host = namespace(x), isinstance(x, np.ndarray)
    if not host:
        from atypicality.arrays import to_device

        formulas = tuple(moved(formula, lambda array: to_device(array, x)) for formula in formulas)
    width = x.shape[1] + sum(formula.n_classes for formula in formulas)
    block = blocks.block_rows(8 * width, budget=blocks.GEMM_BYTES if host else DEVICE_BYTES)

    spaces = [blocks.Workspace() for _ in formulas]  # one for each: the products of all are read together

    def score(rows: slice) -> Iterator[tuple[Any, ...]]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(np.errstate(divide="ignore", invalid="ignore", over="ignore"))
            held = [stack.enter_context(space.borrow()) if host else None for space in spaces]
            pairs = zip(formulas, held, strict=True)
            found = said(xp, formulas, [formula.products(xp, x[rows, :], own) for formula, own in pairs])
            for scores in found:
                check_scores(xp, scores, x, rows, formulas[-1])
            yield found  # which may lie in buffers, and is copied before the next block

    columns = max(x.shape[1], *(formula.n_classes for formula in formulas))
    return blocks.compute(score, x.shape[0], block=block, host=host, work=blocks.PRODUCTS, columns=columns)


def check_scores(xp: Any, scores: Any, x: Any, rows: slice, formula: Any) -> None:
    """Refuse rows whose scores (n, m) are not finite, and say what is wrong with them."""
    if bool(xp.all(xp.isfinite(scores))):
        return
    from atypicality.arrays import to_host

    bad = to_host(x[rows, :])
    if formula.normalize is not None:
        UnitRows(bad).refuse(rows.start)
    refuse_rows(bad, np.dtype(to_host(formula.centre[:1]).dtype), first_row=rows.start)
