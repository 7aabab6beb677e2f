"""Passes over the rows of a problem: loss, gradient, Hessian, Hessian-vector product, per-row quantities.

A block of rows is read once and everything wanted of it is computed while it lies in cache, in buffers made once.
With p_ij the probabilities and X_ij the inputs of the parameters at class j (the predictor is linear: X_ij . theta),

    gradient = mean_i (m_i - X_iy),   Hessian = mean_i (sum_j p_ij X_ij X_ij' - m_i m_i'),   m_i = sum_j p_ij X_ij.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import Problem
from atypicality.recalibration.row_statistics import FloatArray

__all__ = ["Evaluation", "evaluate", "hessian_product", "row_gradients", "row_losses"]

Buffers = Callable[..., NDArray[Any]]


@dataclass(frozen=True)
class Evaluation:
    """What a pass returns: the loss without penalty, the objective with it, and the objective's derivatives."""

    loss: float
    objective: float
    gradient: Vector
    hessian: Vector | None = None


@dataclass(frozen=True)
class Fields:
    """The inputs of a block of rows, standardised: u (maximum 0), x (mean 0, for mixing), d (maximum 0)."""

    u: FloatArray
    x: FloatArray | None
    d: FloatArray | None
    hidden: NDArray[np.bool_] | None


def evaluate(problem: Problem, theta: Vector, *, order: int = 1) -> Evaluation:
    """Loss and gradient (and with ``order=2`` the Hessian) at standardised parameters, in one pass."""
    workspace = blocks.Workspace()

    def block(rows: slice) -> _Sums:
        with workspace.borrow() as buffers:
            fields = read_fields(problem, rows, buffers)
            e, totals, bounds = softmax_block(problem, fields, rows, theta, buffers)
            log_norm = float(problem.weights[rows] @ (np.log(totals) + bounds))
            gradient = contract(problem, fields, rows, e, problem.weights[rows] / totals, buffers)
            if order == 1:
                return _Sums(log_norm, gradient, None)
            return _Sums(log_norm, gradient, curvature(problem, fields, rows, e, totals, buffers))

    sums = blocks.reduce_rows(block, problem.n_rows, _Sums.merge, block=rows_per_block(problem, order))
    loss = sums.log_norm - float(problem.label_mean @ theta)
    penalised = problem.penalty * theta
    hessian = sums.hessian
    if hessian is not None:
        hessian[np.diag_indices_from(hessian)] += problem.penalty
    return Evaluation(
        loss, loss + 0.5 * float(penalised @ theta), sums.gradient - problem.label_mean + penalised, hessian
    )


def hessian_product(problem: Problem, theta: Vector, direction: Vector) -> Vector:
    """Hessian of the objective at `theta` times `direction`, in one pass."""
    workspace = blocks.Workspace()

    def block(rows: slice) -> Vector:
        with workspace.borrow() as buffers:
            fields = read_fields(problem, rows, buffers)
            e, totals, _ = softmax_block(problem, fields, rows, theta, buffers)
            change = predictor(problem, fields, rows, direction, buffers("change", e.shape, e.dtype), buffers)
            e /= totals[:, None].astype(e.dtype)
            change -= np.vecdot(e, change)[:, None]
            e *= change
            return contract(problem, fields, rows, e, problem.weights[rows], buffers)

    product = blocks.reduce_rows(block, problem.n_rows, block=rows_per_block(problem, 1))
    return product + problem.penalty * direction


def row_losses(problem: Problem, theta: Vector) -> Vector:
    """Cross-entropy of every row (n,), in float64."""
    losses = np.empty(problem.n_rows)
    workspace = blocks.Workspace()

    def block(rows: slice) -> None:
        with workspace.borrow() as buffers:
            fields = read_fields(problem, rows, buffers, np.dtype(np.float64))
            chosen = (np.arange(rows.stop - rows.start), problem.labels[rows])
            out = buffers("predictor", fields.u.shape, np.float64)
            at_label = predictor(problem, fields, rows, theta, out, buffers)[chosen]
            _, totals, bounds = softmax_block(problem, fields, rows, theta, buffers)
            losses[rows] = np.log(totals) + bounds - at_label

    blocks.for_rows(block, problem.n_rows, block=rows_per_block(problem, 1))
    return losses


def row_gradients(problem: Problem, theta: Vector) -> Vector:
    """Gradient of every row's own cross-entropy (n, P), standardised parameters, without penalty and projection."""
    gradients = np.empty((problem.n_rows, problem.layout.size))
    workspace = blocks.Workspace()

    def block(rows: slice) -> None:
        with workspace.borrow() as buffers:
            fields = read_fields(problem, rows, buffers, np.dtype(np.float64))
            e, totals, _ = softmax_block(problem, fields, rows, theta, buffers)
            e /= totals[:, None]
            e[np.arange(e.shape[0]), problem.labels[rows]] -= 1
            gradients[rows] = expected_inputs(problem, fields, rows, e)

    blocks.for_rows(block, problem.n_rows, block=rows_per_block(problem, 2))
    return gradients


@dataclass
class _Sums:
    log_norm: float
    gradient: Vector
    hessian: Vector | None

    def merge(self, other: "_Sums") -> "_Sums":
        self.log_norm += other.log_norm
        self.gradient += other.gradient
        if self.hessian is not None and other.hessian is not None:
            self.hessian += other.hessian
        return self


def rows_per_block(problem: Problem, order: int) -> int:
    """Rows that stay in cache; with class-wise second derivatives, rows that let matrix products run at full rate."""
    if order == 1 or problem.layout.mixing.start == problem.layout.size:
        return blocks.block_rows(problem.n_classes * problem.dtype.itemsize)
    return blocks.block_rows(
        max(problem.n_classes, problem.layout.size) * problem.dtype.itemsize, budget=blocks.GEMM_BYTES
    )


def read_fields(problem: Problem, rows: slice, buffers: Buffers, dtype: np.dtype[Any] | None = None) -> Fields:
    """Standardised inputs of a block of rows; masked entries become 0 and are marked in `hidden`."""
    z, dtype = problem.logits[rows], dtype or problem.dtype
    u = np.subtract(z, problem.rows.top[rows, None], out=buffers("u", z.shape, dtype))
    u *= dtype.type(1 / problem.scale)
    hidden = np.isneginf(u) if problem.rows.masked[rows].any() else None
    if hidden is not None:
        u[hidden] = 0
    x = d = None
    if problem.mixing is not None:
        offset = -problem.rows.mean[rows] / problem.scale
        x = np.add(u, offset[:, None].astype(dtype), out=buffers("x", z.shape, dtype))
        if hidden is not None:
            x[hidden] = 0
    if problem.densities is not None and problem.density_rows is not None:
        top = problem.density_rows.top[rows, None]
        d = np.subtract(problem.densities[rows], top, out=buffers("d", z.shape, dtype))
        d *= dtype.type(1 / problem.density_scale)
    return Fields(u, x, d, hidden)


def predictor(
    problem: Problem, fields: Fields, rows: slice, theta: Vector, out: FloatArray, buffers: Buffers
) -> FloatArray:
    """X theta of a block (b, k), up to a constant per row; masked entries are meaningless."""
    c, e, w, s = problem.parts(theta)
    dtype = out.dtype
    np.multiply(fields.u, (problem.features[rows] @ c)[:, None].astype(dtype), out=out)
    if fields.d is not None:
        weight = (problem.density_features[rows] @ e)[:, None].astype(dtype)
        out += np.multiply(fields.d, weight, out=buffers("term", out.shape, dtype))
    if w is not None and fields.x is not None:
        w, term = w.astype(dtype), buffers("term", out.shape, dtype)
        out += np.multiply(fields.x, w, out=term) if w.ndim == 1 else np.matmul(fields.x, w.T, out=term)
    if s is not None:
        out += s.astype(dtype)
    return out


def softmax_block(
    problem: Problem, fields: Fields, rows: slice, theta: Vector, buffers: Buffers
) -> tuple[FloatArray, Vector, Vector]:
    """Exponentials below 1 (b, k), their row sums, and what was subtracted from each row before."""
    out = predictor(problem, fields, rows, theta, buffers("e", fields.u.shape, fields.u.dtype), buffers)
    if fields.hidden is not None:
        out[fields.hidden] = -np.inf
    bounds = _upper_bounds(problem, rows, theta, out)
    out -= bounds[:, None]
    np.exp(out, out=out)
    totals = np.matmul(out, np.ones(out.shape[1], out.dtype)).astype(np.float64)
    return out, totals, bounds.astype(np.float64)


def _upper_bounds(problem: Problem, rows: slice, theta: Vector, predicted: FloatArray) -> FloatArray:
    """A bound on each row of the predictor, from the row's extremes where the terms allow it, else its maximum."""
    c, _, w, s = problem.parts(theta)
    spread = 0.0 if s is None else float(np.ptp(s))
    if w is not None or problem.densities is not None or spread > 40:  # exp(-40) leaves float32 room for the rest
        return np.asarray(predicted.max(axis=1))
    lowest = (problem.features[rows] @ c) * (problem.rows.low[rows] / problem.scale)
    bounds: FloatArray = np.maximum(lowest, 0) + (0.0 if s is None else s.max())
    return bounds.astype(predicted.dtype)


def contract(
    problem: Problem, fields: Fields, rows: slice, e: FloatArray, row_weights: Vector, buffers: Buffers
) -> Vector:
    """Sum over rows and classes of ``row_weights_i e_ij X_ij`` (P,), in float64 across rows."""
    layout, sums = problem.layout, np.empty(problem.layout.size)
    sums[layout.features] = (row_weights * np.vecdot(e, fields.u)) @ problem.features[rows]
    if fields.d is not None:
        sums[layout.densities] = (row_weights * np.vecdot(e, fields.d)) @ problem.density_features[rows]
    weights = row_weights.astype(e.dtype)
    if fields.x is not None and problem.mixing == "diagonal":
        sums[layout.mixing] = weights @ np.multiply(e, fields.x, out=buffers("term", e.shape, e.dtype))
    elif fields.x is not None:
        weighted = np.multiply(fields.x, weights[:, None], out=buffers("term", e.shape, e.dtype))
        sums[layout.mixing] = (e.T @ weighted).ravel()
    if problem.class_scores:
        sums[layout.scores] = weights @ e
    return sums


def expected_inputs(problem: Problem, fields: Fields, rows: slice, p: FloatArray) -> FloatArray:
    """``sum_j p_ij X_ij`` of every row (b, P)."""
    columns = [np.vecdot(p, fields.u)[:, None] * problem.features[rows]]
    if fields.d is not None:
        columns.append(np.vecdot(p, fields.d)[:, None] * problem.density_features[rows])
    if fields.x is not None and problem.mixing == "diagonal":
        columns.append(p * fields.x)
    elif fields.x is not None:
        columns.append((p[:, :, None] * fields.x[:, None, :]).reshape(p.shape[0], -1))
    if problem.class_scores:
        columns.append(p)
    return np.concatenate(columns, axis=1, dtype=p.dtype)


def curvature(problem: Problem, fields: Fields, rows: slice, e: FloatArray, totals: Vector, buffers: Buffers) -> Vector:
    """The block's share of the Hessian (P, P); turns `e` into probabilities."""
    e /= totals[:, None].astype(e.dtype)
    weights, layout = problem.weights[rows], problem.layout
    means = expected_inputs(problem, fields, rows, e)
    means *= np.sqrt(weights)[:, None].astype(e.dtype)
    hessian = -(means.T @ means).astype(np.float64)
    _add_shared(problem, fields, rows, e, weights, hessian)
    if layout.mixing.start < layout.size:
        _add_classwise(problem, fields, e, weights, hessian)
        _add_crossed(problem, fields, rows, e, weights, hessian)
    return hessian


def _shared(problem: Problem, fields: Fields, rows: slice) -> list[tuple[slice, Vector, FloatArray]]:
    """Terms whose parameters are the same for all classes: (where, features, field)."""
    terms = [(problem.layout.features, problem.features[rows], fields.u)]
    if fields.d is not None:
        terms.append((problem.layout.densities, problem.density_features[rows], fields.d))
    return terms


def _add_shared(problem: Problem, fields: Fields, rows: slice, p: FloatArray, weights: Vector, hessian: Vector) -> None:
    for a, left, field in _shared(problem, fields, rows):
        for b, right, other in _shared(problem, fields, rows):
            second = weights * np.vecdot(p * field, other)
            hessian[a, b] += (left * second[:, None]).T @ right


def _add_classwise(problem: Problem, fields: Fields, p: FloatArray, weights: Vector, hessian: Vector) -> None:
    """Second moments of parameters that belong to one class: zero between different classes."""
    k, layout, weighted = problem.n_classes, problem.layout, p * weights[:, None].astype(p.dtype)
    mixing, scores = (np.arange(where.start, where.stop) for where in (layout.mixing, layout.scores))
    if problem.class_scores:
        hessian[scores, scores] += weighted.sum(axis=0, dtype=np.float64)
    if fields.x is None:
        return
    if problem.mixing == "diagonal":
        first, second = (np.sum(weighted * fields.x**power, axis=0, dtype=np.float64) for power in (1, 2))
        hessian[mixing, mixing] += second
        pairs = [(mixing, first)] if problem.class_scores else []
    else:
        for own, share in zip(mixing.reshape(k, k), weighted.T, strict=True):
            hessian[own[:, None], own] += (fields.x * share[:, None]).T @ fields.x
        sums = (weighted.T @ fields.x).astype(np.float64)
        pairs = list(zip(mixing.reshape(k, k).T, sums.T, strict=True)) if problem.class_scores else []
    for columns, values in pairs:
        hessian[scores, columns] += values
        hessian[columns, scores] += values


def _add_crossed(
    problem: Problem, fields: Fields, rows: slice, p: FloatArray, weights: Vector, hessian: Vector
) -> None:
    """Second moments between shared and class-wise parameters."""
    layout = problem.layout
    for where, features, field in _shared(problem, fields, rows):
        scaled = (features * weights[:, None]).astype(p.dtype)
        moved = p * field
        crossed = []
        if fields.x is not None and problem.mixing == "diagonal":
            crossed.append((layout.mixing, scaled.T @ (moved * fields.x)))
        elif fields.x is not None:
            products = [((moved * column[:, None]).T @ fields.x).ravel() for column in scaled.T]
            crossed.append((layout.mixing, np.stack(products)))
        if problem.class_scores:
            crossed.append((layout.scores, scaled.T @ moved))
        for columns, values in crossed:
            hessian[where, columns] += values
            hessian[columns, where] += values.T
