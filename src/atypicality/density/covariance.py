"""Covariance matrices: shrinkage, principal directions, and the rank and whitening of what may be singular."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.linalg.lapack import dpotrf, dtrtri

from atypicality.stored import Record, kinds

__all__ = ["Factorise", "Whitening", "principal_directions", "shrink", "triangular_whitening", "whiten"]

Float64 = NDArray[np.float64]
Factorise = Callable[[Float64, float], tuple[Float64, Float64] | None]
"""What `triangular_whitening` does, here or on a device."""


@dataclass(frozen=True)
class Whitening:
    """A covariance turned into the identity on its support.

    Parameters
    ----------
    matrix : ndarray of shape (d, rank), or (d,) for a diagonal covariance
        |x @ matrix|^2 = x^T pinv(covariance) x; a vector multiplies column by column.
    log_determinant : float
        Log of the product of the eigenvalues that count: the pseudo-determinant.
    rank : int
        How many count.
    """

    matrix: Annotated[Float64, kinds.Array("m * | m", kinds.FINITE)]
    log_determinant: Annotated[float, kinds.Number()]
    rank: Annotated[int, kinds.Integer(1)]
    _stored = Record()

    @property
    def log_peak(self) -> float:
        """Log-density at the mean: -(rank log 2 pi + log pseudo-determinant) / 2, as in `scipy.stats`."""
        return -0.5 * (self.rank * math.log(2 * math.pi) + self.log_determinant)


def triangular_whitening(covariance: Float64, shift: float) -> tuple[Float64, Float64] | None:
    """The inverse transpose of Cholesky's factor (d, d) of a covariance, and the diagonal (d,) of that factor.

    None unless the covariance less `shift` times the identity has a factor too.

    >>> matrix, diagonal = triangular_whitening(np.diag([4.0, 1.0]), 0.5)
    >>> np.diagonal(matrix), diagonal
    (array([0.5, 1. ]), array([2., 1.]))
    >>> triangular_whitening(np.diag([4.0, 1.0]), 1.5) is None
    True
    """
    shifted = covariance.copy()
    np.einsum("ii->i", shifted)[:] -= shift
    if dpotrf(shifted.T, lower=1, overwrite_a=1)[1] != 0:  # the transpose lies as Fortran wants it, and is equal
        return None
    np.copyto(shifted, covariance)
    factor, failed = dpotrf(shifted.T, lower=1, clean=1, overwrite_a=1)
    if failed:
        return None
    diagonal = np.diagonal(factor).copy()
    return dtrtri(factor, lower=1, overwrite_c=1)[0].T, diagonal


def whiten(
    covariance: Float64,
    n_samples: int,
    *,
    epsilon: float,
    factorise: Factorise = triangular_whitening,
    residual: bool = False,
    by_column: bool = False,
) -> Whitening:
    """Whitening of a covariance (d, d), or of a diagonal one (d,), estimated from `n_samples` rows.

    An eigenvalue counts when it is above what rounding alone can produce: max(n, d) float64 roundings of the largest
    eigenvalue, from summing and decomposing, and one rounding `epsilon` of the trace, from products in that precision
    (an error of epsilon |c_ij| in each entry moves no eigenvalue by more than epsilon times the trace).

    Where Cholesky's factorisation shows that all of them count, its factor is the whitening, and no eigenvalue is
    computed. That it runs through would show nothing, since rounding lets it on many singular matrices: it has to run
    through once the floor and its own rounding have been taken off the diagonal. Otherwise eigenvalues decide.

    With `residual` those that do not count are replaced by the smallest that does: no direction varies more than that
    where the rows do not vary at all.

    With `by_column` the correlations are whitened, so that the units of the columns, none of which has variance 0, do
    not enter what counts.

    >>> whiten(np.diag([4.0, 1.0, 0.0]), 10, epsilon=2.2e-16).rank
    2
    >>> np.abs(whiten(np.diag([4.0, 1.0, 0.0]), 10, epsilon=2.2e-16, residual=True).matrix).max(axis=1)
    array([0.5, 1. , 1. ])
    """
    if by_column:
        scale = np.sqrt(np.diagonal(covariance))
        inner = whiten(covariance / scale / scale[:, None], n_samples, epsilon=epsilon, factorise=factorise)
        log_determinant = inner.log_determinant + 2.0 * float(np.log(scale).sum())
        return Whitening(inner.matrix / scale[:, None], log_determinant, inner.rank)
    if covariance.ndim == 1:
        counts = covariance > _floor(covariance, n_samples, epsilon)
        if residual and counts.any():
            covariance, counts = np.where(counts, covariance, covariance[counts].min()), np.ones_like(counts)
        scale = np.zeros_like(covariance)
        scale[counts] = 1.0 / np.sqrt(covariance[counts])
        return Whitening(scale, float(np.log(covariance[counts]).sum()), int(counts.sum()))
    factors = factorise(covariance, _sure_floor(covariance, n_samples, epsilon))
    if factors is not None:
        return Whitening(factors[0], 2.0 * float(np.log(factors[1]).sum()), covariance.shape[0])
    values, vectors = eigh(covariance, driver="evd")
    counts = values > _floor(values, n_samples, epsilon)
    if residual and counts.any():
        values, counts = np.where(counts, values, values[counts].min()), np.ones_like(counts)
    values = values[counts]
    return Whitening(vectors[:, counts] / np.sqrt(values), float(np.log(values).sum()), values.size)


def _floor(eigenvalues: Float64, n_samples: int, epsilon: float) -> float:
    size = max(n_samples, eigenvalues.size)
    largest, trace = max(float(eigenvalues.max()), 0.0), max(float(eigenvalues.sum()), 0.0)
    return max(size * float(np.finfo(np.float64).eps) * largest, epsilon * trace)


def _sure_floor(covariance: Float64, n_samples: int, epsilon: float) -> float:
    """At least the floor of `_floor`, without eigenvalues, and what a factorisation rounds.

    The largest eigenvalue is at most the Frobenius norm. A computed factor L of A has L L^T = A + E with
    |E| <= (d + 1) u trace(A), u half of float64's epsilon (Higham 2002, theorem 10.3); twice that is allowed for.
    """
    d, rounding = int(covariance.shape[0]), float(np.finfo(np.float64).eps)
    trace = max(float(np.trace(covariance)), 0.0)
    largest = trace * float(np.linalg.norm(covariance / trace)) if trace > 0 else 0.0  # squares of 1e200 overflow
    floor = max(max(n_samples, d) * rounding * largest, epsilon * trace)
    return floor + (d + 2) * rounding * trace


def principal_directions(covariance: Float64, n_components: int) -> Float64:
    """The leading eigenvectors as rows (n_components, d), each with its largest entry positive."""
    d = covariance.shape[0]
    _, vectors = eigh(covariance, subset_by_index=(d - n_components, d - 1))
    directions = vectors[:, ::-1].T
    largest = np.abs(directions).argmax(axis=1)
    return np.ascontiguousarray(directions * np.sign(directions[np.arange(n_components), largest])[:, None])


def shrink(
    covariance: Float64,
    n_samples: int,
    shrinkage: str | float,
    fourth: float | None = None,
    rounding: Float64 | float = 0.0,
) -> Float64:
    """Move a covariance (d, d), or a diagonal one (d,), towards a multiple of the identity with the same trace.

    Parameters
    ----------
    covariance : ndarray of shape (d, d) or (d,)
        The maximum-likelihood estimate S.
    n_samples : int
    shrinkage : {"ledoit-wolf", "oas", "columns"} or float
        The share a of the target in (1 - a) S + a trace(S)/d I: by Ledoit and Wolf (2004), by the oracle
        approximation of Chen and others (2010), or as given. "columns" adds one row to the n that there are, with the
        variances of the columns and no covariance; a column without variance counts as one of variance 1.
    fourth : float, optional
        Sum of |x - mean|^4 over the samples; only Ledoit-Wolf needs it.
    rounding : ndarray of shape (d,), optional
        Variances that rounding alone can produce, for "columns".

    >>> shrink(np.diag([3.0, 1.0]), 10, 0.5)
    array([[2.5, 0. ],
           [0. , 1.5]])
    """
    diagonal = covariance.ndim == 1
    if shrinkage == "columns":
        variances = np.diagonal(covariance)
        added = np.diag(np.where(variances > rounding, variances, 1.0))
        return np.asarray((n_samples * covariance + added) / (n_samples + 1))
    trace = float(covariance.sum() if diagonal else np.trace(covariance))
    if shrinkage == "ledoit-wolf":
        assert fourth is not None
        share = _ledoit_wolf_share(covariance, trace, n_samples, fourth)
    elif shrinkage == "oas":
        share = _oas_share(covariance, trace, n_samples)
    else:
        share = float(shrinkage)
    target = trace / covariance.shape[0]
    identity = np.ones(covariance.shape[0]) if diagonal else np.eye(covariance.shape[0])
    return np.asarray((1 - share) * covariance + share * target * identity)


def _ledoit_wolf_share(covariance: Float64, trace: float, n_samples: int, fourth: float) -> float:
    if trace <= 0:
        return 0.0
    if not math.isfinite(fourth) or trace < math.sqrt(np.finfo(np.float64).tiny):
        raise ValueError(
            "embeddings must have fourth powers that fit into float64 with shrinkage='ledoit-wolf'; theirs are too "
            f"{'small' if math.isfinite(fourth) else 'large'}. Rescale the embeddings, or use shrinkage='oas'."
        )
    square = float(np.square(covariance / trace).sum())  # in units of the trace: no scale overflows
    noise = (fourth / trace / trace / n_samples - square) / n_samples
    distance = square - 1 / covariance.shape[0]  # squared distance of S from its target
    return 0.0 if noise <= 0 or distance <= 0 else min(noise / distance, 1.0)


def _oas_share(covariance: Float64, trace: float, n_samples: int) -> float:
    if trace <= 0:
        return 1.0
    d = covariance.shape[0]
    mean_square, target_square = float(np.square(covariance / trace).mean()), 1 / d**2
    distance = (n_samples + 1) * (mean_square - target_square / d)
    return 1.0 if distance <= 0 else min((mean_square + target_square) / distance, 1.0)
