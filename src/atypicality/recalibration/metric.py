"""An approximate Hessian of all rows for many parameters, cheap to gather and to solve with.

In the Hessian ``mean_i (sum_j p_ij X_ij X_ij' - m_i m_i')`` the part of the shared parameters is kept exactly, and so
is the class-wise first part. In the class-wise second part only probabilities above `KEPT` enter, a few per row: a
sparse product. A full mixing matrix gets the Kronecker product of its two mean factors (as in K-FAC, Martens and
Grosse 2015), and its coupling to the other parameters is left to L-BFGS.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atypicality.recalibration.kernels import Buffers, Fields, contract, shared_means, shared_terms, thin_product
from atypicality.recalibration.newton import Cholesky, Metric
from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import Problem
from atypicality.recalibration.row_statistics import FloatArray

__all__ = ["SparseCurvature", "sparse_derivatives", "sparse_metric"]

KEPT = 0.03
"""Probability above which an entry enters the sparse product: at most 33 in a row, and usually two or three.

Vector scaling, 100 to 1000 classes, five values from .01 to .2 on seven sets of logits: with .01 there are up to 1.7
times as many passes, each with up to ten times the pairs; with .05 and more some fits do not end.
"""
SINGLE = float(np.finfo(np.float32).eps)
CHUNK = 1 << 16
"""Kept entries that are worked on together."""
DENSE = 4000
"""Class-wise parameters up to which they are solved for together; beyond, each on its own."""


class Kept(NamedTuple):
    """Entries ``sqrt(w_i) p_ij x_ij`` of the sparse second part, one row of values per class-wise input."""

    row: NDArray[np.intp]
    column: NDArray[np.signedinteger[Any]]
    values: FloatArray


@dataclass
class SparseCurvature:
    """Sums over rows; s shared parameters, r class-wise inputs (the logit of the class, one, or both).

    Attributes
    ----------
    shared : ndarray of shape (s, s)
    crossed : ndarray of shape (s, r, k)
    moments : ndarray of shape (r, r, k)
    kept : list of Kept
    outputs, inputs : ndarray of shape (k, k), or None
        Means of ``A_i = diag(p) - p p'`` and of ``trace(A_i) x x'``, for a full mixing matrix.
    """

    shared: Vector
    crossed: Vector
    moments: Vector
    kept: list[Kept] = field(repr=False)
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


def sparse_derivatives(
    problem: Problem, fields: Fields, rows: slice, p: FloatArray, buffers: Buffers
) -> tuple[Vector, SparseCurvature]:
    """The block's share of the gradient (P,), labels left out, and of the approximate Hessian, at p (b, k)."""
    weights, inputs = problem.weights[rows], _classwise_inputs(problem, fields)
    moments = np.zeros((len(inputs), len(inputs), problem.n_classes))
    for a, left in enumerate(inputs):
        for b, right in enumerate(inputs[: a + 1]):
            moments[a, b] = moments[b, a] = weights.astype(p.dtype) @ _times(_times(p, left, buffers), right, buffers)
    terms = shared_terms(problem, fields, rows)
    means = shared_means(p, terms)
    shared, crossed = _shared_sums(problem, rows, p, inputs, terms, means, buffers)
    gradient = contract(problem, fields, rows, p, weights, buffers, means)
    found = SparseCurvature(shared, crossed, moments, [_kept_entries(p, inputs, weights, rows.start)])
    if problem.mixing == "full" and fields.x is not None:
        doubt = weights * (1 - np.vecdot(p, p))
        found.outputs = np.diag(weights @ p) - p.T @ (p * weights[:, None])
        found.inputs = fields.x.T @ (fields.x * doubt[:, None])
    return gradient, found


def sparse_metric(problem: Problem, sums: SparseCurvature) -> Metric:
    """The approximate Hessian, penalty included, ready to be solved with."""
    layout, n_shared = problem.layout, problem.layout.mixing.start
    start = layout.scores.start if problem.mixing == "full" else layout.mixing.start
    places = np.r_[np.arange(n_shared), np.arange(start, layout.size)]
    dense = _SparseHessian(problem, sums, problem.penalty[places])
    parts: list[tuple[NDArray[np.intp], Metric]] = []
    if places.size <= max(DENSE, n_shared):
        parts.append((places, Cholesky(dense.scaled, dense.unit, SINGLE)))
    else:
        parts.append((places[:n_shared], Cholesky.of(dense.shared, SINGLE)))
        parts.append((places[n_shared:], _Diagonal(dense.unit[n_shared:] ** -2)))
    if sums.outputs is not None and sums.inputs is not None:
        mixing = np.arange(layout.mixing.start, layout.mixing.stop)
        parts.append((mixing, _Kronecker(sums.outputs, sums.inputs, float(np.median(problem.penalty[mixing])))))
    return _BlockMetric(problem, parts)


class _SparseHessian:
    """Shared and class-wise parameters together, scaled to a unit diagonal, in float32: a metric needs no more."""

    def __init__(self, problem: Problem, sums: SparseCurvature, penalty: Vector) -> None:
        self._sums, self._n_shared = sums, (n_shared := sums.crossed.shape[0])
        self.shared = sums.shared + np.diag(penalty[:n_shared])
        own = np.einsum("aak->ak", sums.moments).ravel() + penalty[n_shared:]
        kept = np.zeros(penalty.size)
        for _, place, value in self._entries():
            kept += np.bincount(place, value**2, minlength=penalty.size)
        diagonal = np.r_[np.diag(self.shared), np.maximum(own - kept[n_shared:], SINGLE * own)]
        self.unit = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))

    def scaled(self) -> FloatArray:
        """The upper triangle; its diagonal is one."""
        unit, n_shared, size = self.unit, self._n_shared, self.unit.size
        n_inputs, k = self._sums.moments.shape[1:]
        matrix = np.zeros((size, size), np.float32)
        matrix[:n_shared, :n_shared] = self.shared * unit[:n_shared, None] * unit[:n_shared]
        crossed = self._sums.crossed.reshape(n_shared, -1)
        matrix[:n_shared, n_shared:] = crossed * unit[:n_shared, None] * unit[n_shared:]
        own = np.arange(k) + n_shared
        for a in range(n_inputs):
            for b in range(a):
                left, right = own + a * k, own + b * k
                matrix[right, left] = self._sums.moments[a, b] * unit[left] * unit[right]
        for row, place, value in self._entries():
            value = value * unit[place]
            for first, second in _pairs(row):
                left, right = place[first], place[second]
                places = np.minimum(left, right) * size + np.maximum(left, right)
                np.subtract.at(matrix.reshape(-1), places, (value[first] * value[second]).astype(np.float32))
        return matrix

    def _entries(self) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], FloatArray]]:
        """Row, parameter and value of the kept entries, one for every input, in chunks of whole rows."""
        n_inputs, k = self._sums.moments.shape[1:]
        for row, column, values in _chunks(self._sums.kept):
            place = self._n_shared + column.astype(np.intp, copy=False)[:, None] + k * np.arange(n_inputs)
            yield np.repeat(row, n_inputs), place.ravel(), values.T.ravel()


def _chunks(parts: list[Kept]) -> Iterator[Kept]:
    """The same entries in chunks that stay in cache; those of a row, which lie beside each other, stay together."""
    if sum(part.row.size for part in parts) <= 4 * CHUNK:
        yield _joined(parts)
        return
    waiting: list[Kept] = []
    for row, column, values in parts:
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        wanted = np.searchsorted(starts, np.arange(0, row.size, CHUNK))
        ends = np.unique(np.r_[starts[wanted[wanted < starts.size]], row.size])
        for first, last in pairwise(ends.tolist()):
            waiting.append(Kept(row[first:last], column[first:last], values[:, first:last]))
            if sum(part.row.size for part in waiting) >= CHUNK:
                yield _joined(waiting)
                waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[Kept]) -> Kept:
    if len(parts) == 1:
        return parts[0]
    row, column, values = zip(*parts, strict=True)
    return Kept(np.concatenate(row), np.concatenate(column), np.concatenate(values, axis=1))


def _pairs(row: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """All pairs of different entries of the same row, `row` being sorted: by their distance."""
    for distance in range(1, row.size):
        second = np.flatnonzero(row[distance:] == row[:-distance])
        if not second.size:
            return
        yield second + distance, second


class _BlockMetric:
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


def _times(p: FloatArray, values: FloatArray | None, buffers: Buffers) -> FloatArray:
    return p if values is None else np.multiply(p, values, out=buffers("term", p.shape, p.dtype))


def _shared_sums(
    problem: Problem,
    rows: slice,
    p: FloatArray,
    inputs: list[FloatArray | None],
    terms: list[tuple[slice, Vector, FloatArray]],
    means: list[FloatArray],
    buffers: Buffers,
) -> tuple[Vector, Vector]:
    weights, n_shared = problem.weights[rows], problem.layout.mixing.start
    shared, crossed = np.empty((n_shared, n_shared)), np.empty((n_shared, len(inputs), problem.n_classes))
    scaled = np.concatenate([features * weights[:, None] for _, features, _ in terms], axis=1).astype(p.dtype)
    shifted = scaled * np.repeat(np.stack(means, axis=1), [features.shape[1] for _, features, _ in terms], axis=1)
    for a, own in enumerate(inputs):
        crossed[:, a] = -thin_product(shifted.T, _times(p, own, buffers))
    moved = buffers("moved", p.shape, p.dtype)
    for place, ((where, features, values), mean) in enumerate(zip(terms, means, strict=True)):
        np.multiply(p, values, out=moved)
        spreads = [
            np.vecdot(moved, right) - mean * other
            for (_, _, right), other in zip(terms, means[: place + 1], strict=False)
        ]
        others = [one * spread[:, None] for (_, one, _), spread in zip(terms, spreads, strict=False)]
        shared[where, : where.stop] = (features * weights[:, None]).T @ np.concatenate(others, axis=1)
        shared[: where.start, where] = shared[where, : where.start].T
        for a, own in enumerate(inputs):
            crossed[where, a] += thin_product(scaled[:, where].T, _times(moved, own, buffers))
    return shared, crossed


def _kept_entries(p: FloatArray, inputs: list[FloatArray | None], weights: Vector, first_row: int) -> Kept:
    chosen = np.flatnonzero(p > KEPT)
    row, column = np.divmod(chosen, p.shape[1])
    values = np.sqrt(weights).astype(p.dtype)[row] * p.ravel()[chosen]
    kept = [values if own is None else values * own.ravel()[chosen] for own in inputs]
    small = np.asarray(column, np.int32)  # these are kept for all rows at once
    return Kept(row + first_row, small, np.stack(kept) if kept else np.empty((0, row.size)))
