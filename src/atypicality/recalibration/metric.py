"""An approximate Hessian of all rows for many parameters, cheap to gather and to solve with.

In the Hessian ``mean_i (sum_j p_ij X_ij X_ij' - m_i m_i')`` the part of the shared parameters is kept exactly, and so
is the class-wise first part. In the class-wise second part only probabilities above `KEPT` enter, a few per row: a
sparse product. A full mixing matrix gets the Kronecker product of its two mean factors (as in K-FAC, Martens and
Grosse 2015), and its coupling to the other parameters is left to L-BFGS.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from atypicality.recalibration.kernels import Fields, shared_terms
from atypicality.recalibration.newton import Cholesky, Metric
from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import Problem
from atypicality.recalibration.row_statistics import FloatArray

__all__ = ["SparseCurvature", "sparse_curvature", "sparse_metric"]

KEPT = 0.05
"""Probability above which an entry enters the sparse product: at most 20 in a row, and usually two."""
SINGLE = float(np.finfo(np.float32).eps)
DENSE = 4000
"""Class-wise parameters up to which they are solved for together; beyond, each on its own."""


@dataclass
class SparseCurvature:
    """Sums over rows; s shared parameters, r class-wise inputs (the logit of the class, one, or both).

    Attributes
    ----------
    shared : ndarray of shape (s, s)
    crossed : ndarray of shape (s, r, k)
    moments : ndarray of shape (r, r, k)
    kept : list of (row, column, value (r, m)) arrays
        Entries ``sqrt(w_i) p_ij x_ij`` of the second part.
    outputs, inputs : ndarray of shape (k, k), or None
        Means of ``A_i = diag(p) - p p'`` and of ``trace(A_i) x x'``, for a full mixing matrix.
    """

    shared: Vector
    crossed: Vector
    moments: Vector
    kept: list[tuple[NDArray[np.intp], NDArray[np.intp], FloatArray]] = field(repr=False)
    outputs: Vector | None = None
    inputs: Vector | None = None

    def __iadd__(self, other: "SparseCurvature") -> "SparseCurvature":
        self.shared += other.shared
        self.crossed += other.crossed
        self.moments += other.moments
        self.kept += other.kept
        if other.outputs is not None and other.inputs is not None:
            self.outputs = other.outputs if self.outputs is None else self.outputs + other.outputs
            self.inputs = other.inputs if self.inputs is None else self.inputs + other.inputs
        return self


def sparse_curvature(problem: Problem, fields: Fields, rows: slice, p: FloatArray) -> SparseCurvature:
    """The block's share of the approximate Hessian at probabilities `p` (b, k)."""
    weights, inputs = problem.weights[rows], _classwise_inputs(problem, fields)
    moments = np.zeros((len(inputs), len(inputs), problem.n_classes))
    for a, left in enumerate(inputs):
        for b, right in enumerate(inputs[: a + 1]):
            moments[a, b] = moments[b, a] = weights.astype(p.dtype) @ _times(_times(p, left), right)
    shared, crossed = _shared_sums(problem, fields, rows, p, inputs)
    found = SparseCurvature(shared, crossed, moments, [_kept_entries(p, inputs, weights, rows.start)])
    if problem.mixing == "full" and fields.x is not None:
        unsure = weights * (1 - np.vecdot(p, p))
        found.outputs = np.diag(weights @ p) - p.T @ (p * weights[:, None])
        found.inputs = fields.x.T @ (fields.x * unsure[:, None])
    return found


def sparse_metric(problem: Problem, sums: SparseCurvature) -> Metric:
    """The approximate Hessian, penalty included, ready to be solved with."""
    layout, n_shared = problem.layout, problem.layout.mixing.start
    start = layout.scores.start if problem.mixing == "full" else layout.mixing.start
    classwise = np.arange(start, layout.size)
    parts: list[tuple[NDArray[np.intp], Metric]] = []
    if classwise.size <= DENSE:
        places = np.r_[np.arange(n_shared), classwise]
        parts.append((places, Cholesky(_dense(problem, sums, problem.penalty[places]), SINGLE)))
    else:
        parts.append((np.arange(n_shared), Cholesky(sums.shared + np.diag(problem.penalty[:n_shared]), SINGLE)))
        own = np.einsum("aak->ak", sums.moments) - _kept_squares(problem, sums)
        parts.append((classwise, _Diagonal(own.ravel() + problem.penalty[classwise])))
    if sums.outputs is not None and sums.inputs is not None:
        places = np.arange(layout.mixing.start, layout.mixing.stop)
        parts.append((places, _Kronecker(sums.outputs, sums.inputs, problem.penalty[places[0]])))
    return _Blocks(problem, parts)


class _Blocks:
    """A metric of independent blocks, on projected parameters."""

    def __init__(self, problem: Problem, parts: list[tuple[NDArray[np.intp], Metric]]) -> None:
        self._problem, self._parts = problem, parts

    def solve(self, gradient: Vector) -> Vector:
        step = np.empty_like(gradient)
        for places, metric in self._parts:
            step[places] = metric.solve(gradient[places])
        return self._problem.project(step)


class _Diagonal:
    def __init__(self, values: Vector) -> None:
        self._values = np.maximum(values, SINGLE * values.max())

    def solve(self, gradient: Vector) -> Vector:
        return np.asarray(gradient / self._values)


class _Kronecker:
    """``outputs (x) inputs / trace(outputs) + strength``, solved in the eigenvectors of both."""

    def __init__(self, outputs: Vector, inputs: Vector, strength: float) -> None:
        (a, self._left), (b, self._right) = np.linalg.eigh(outputs), np.linalg.eigh(inputs)
        values = np.outer(np.maximum(a, 0), np.maximum(b, 0)) / max(float(a.sum()), SINGLE) + strength
        self._values = np.maximum(values, SINGLE * values.max())

    def solve(self, gradient: Vector) -> Vector:
        turned = self._left.T @ gradient.reshape(self._values.shape) @ self._right
        return np.ravel(self._left @ (turned / self._values) @ self._right.T)


def _classwise_inputs(problem: Problem, fields: Fields) -> list[FloatArray | None]:
    """What multiplies each class-wise parameter: the logits, and None for the one of the scores."""
    inputs: list[FloatArray | None] = [fields.x] if problem.mixing == "diagonal" else []
    return [*inputs, None] if problem.class_scores else inputs


def _times(p: FloatArray, values: FloatArray | None) -> FloatArray:
    return p if values is None else p * values


def _shared_sums(
    problem: Problem, fields: Fields, rows: slice, p: FloatArray, inputs: list[FloatArray | None]
) -> tuple[Vector, Vector]:
    weights, terms, n_shared = problem.weights[rows], shared_terms(problem, fields, rows), problem.layout.mixing.start
    shared, crossed = np.empty((n_shared, n_shared)), np.empty((n_shared, len(inputs), problem.n_classes))
    means = [np.vecdot(p, values) for _, _, values in terms]
    for (where, features, values), mean in zip(terms, means, strict=True):
        moved = p * values
        for (there, others, right), right_mean in zip(terms, means, strict=True):
            spread = weights * (np.vecdot(moved, right) - mean * right_mean)
            shared[where, there] = (features * spread[:, None]).T @ others
        scaled = (features * weights[:, None]).astype(p.dtype)
        shifted = (scaled * mean[:, None]).T
        for a, own in enumerate(inputs):
            crossed[where, a] = scaled.T @ _times(moved, own) - shifted @ _times(p, own)
    return shared, crossed


def _kept_entries(
    p: FloatArray, inputs: list[FloatArray | None], weights: Vector, first_row: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], FloatArray]:
    chosen = np.flatnonzero(p > KEPT)
    row, column = np.divmod(chosen, p.shape[1])
    values = np.sqrt(weights)[row] * p.ravel()[chosen]
    kept = [values if own is None else values * own.ravel()[chosen] for own in inputs]
    return row + first_row, column, np.stack(kept) if kept else np.empty((0, row.size))


def _kept_matrix(problem: Problem, sums: SparseCurvature) -> csr_array:
    """The second part's factor (n, r k), sparse."""
    row, column = (np.concatenate([entry[i] for entry in sums.kept]) for i in (0, 1))
    values = np.concatenate([entry[2] for entry in sums.kept], axis=1)
    n_inputs, k = values.shape[0], problem.n_classes
    columns = (np.arange(n_inputs)[:, None] * k + column).ravel()
    entries = (values.ravel().astype(np.float32), (np.tile(row, n_inputs), columns))
    return csr_array(entries, shape=(problem.n_rows, n_inputs * k))


def _kept_squares(problem: Problem, sums: SparseCurvature) -> Vector:
    squares = _kept_matrix(problem, sums).power(2).sum(axis=0)
    return np.asarray(squares, dtype=np.float64).reshape(-1, problem.n_classes)


def _dense(problem: Problem, sums: SparseCurvature, penalty: Vector) -> FloatArray:
    """Shared and class-wise parameters together, in float32: a metric needs no more."""
    n_shared, n_inputs, k = sums.crossed.shape
    matrix = np.empty((penalty.size, penalty.size), np.float32)
    matrix[:n_shared, :n_shared] = sums.shared
    matrix[:n_shared, n_shared:] = sums.crossed.reshape(n_shared, -1)
    matrix[n_shared:, :n_shared] = matrix[:n_shared, n_shared:].T
    if n_inputs:
        kept = _kept_matrix(problem, sums)
        np.negative((kept.T @ kept).toarray(), out=matrix[n_shared:, n_shared:])
    for a in range(n_inputs):
        for b in range(n_inputs):
            own = np.arange(k) + n_shared
            matrix[own + a * k, own + b * k] += sums.moments[a, b]
    matrix[np.diag_indices_from(matrix)] += penalty
    return matrix
