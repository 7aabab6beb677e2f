"""The exact Hessian, block by block: ``mean_i (sum_j p_ij X_ij X_ij' - m_i m_i')`` with ``m_i = sum_j p_ij X_ij``.

The first part is zero between the parameters of different classes; the second is one product of two matrices. The
gradient is a sum of the same m_i.
"""

import numpy as np

from atypicality.recalibration.kernels import Buffers, Fields, expected_inputs, shared_inputs, thin_product
from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import Problem
from atypicality.recalibration.row_statistics import FloatArray

__all__ = ["exact_derivatives"]


def exact_derivatives(
    problem: Problem, fields: Fields, rows: slice, p: FloatArray, buffers: Buffers
) -> tuple[Vector, Vector]:
    """The block's share of the gradient (P,), labels left out, and of the Hessian (P, P), at probabilities (b, k)."""
    weights, layout = problem.weights[rows], problem.layout
    shared = shared_inputs(problem, fields, rows)
    means = expected_inputs(problem, fields, shared, p, buffers("inputs", (p.shape[0], layout.size), p.dtype))
    roots = np.sqrt(weights).astype(p.dtype)
    means *= roots[:, None]
    gradient, hessian = (roots @ means).astype(np.float64), (means.T @ means).astype(np.float64, copy=False)
    np.negative(hessian, out=hessian)
    classwise = layout.mixing.start < layout.size
    if classwise:
        _add_own_scores(problem, gradient, hessian)
    if problem.mixing == "diagonal" and fields.x is not None:
        own = np.arange(layout.mixing.start, layout.mixing.stop)
        term = buffers("term", p.shape, p.dtype)
        hessian[own, own] += roots @ np.multiply(means[:, layout.mixing], fields.x, out=term)
    elif fields.x is not None:
        _add_full_mixing(problem, means[:, layout.mixing], fields.x * roots[:, None], hessian)
    moved, weighted = buffers("moved", p.shape, p.dtype), shared.features * weights
    for place, (where, field) in enumerate(zip(shared.spans, shared.fields, strict=True)):
        np.multiply(p, field, out=moved)
        shares = weighted[where] @ shared.times(moved, place + 1).T
        hessian[where, : where.stop] += shares
        hessian[: where.start, where] += shares[:, : where.start].T
        if classwise:
            _add_crossed(problem, fields, where, weighted[where].astype(p.dtype), moved, hessian, buffers)
    return gradient, hessian


def _add_own_scores(problem: Problem, gradient: Vector, hessian: Vector) -> None:
    """Second moments of the scores, and with the mixing of their own class: first moments, as in the gradient."""
    if not problem.class_scores:
        return
    k, layout = problem.n_classes, problem.layout
    mixing, scores = (np.arange(where.start, where.stop) for where in (layout.mixing, layout.scores))
    hessian[scores, scores] += gradient[layout.scores]
    rows = np.repeat(scores, k) if problem.mixing == "full" else scores
    if mixing.size:
        hessian[rows, mixing] += gradient[layout.mixing]
        hessian[mixing, rows] += gradient[layout.mixing]


def _add_full_mixing(problem: Problem, means: FloatArray, x: FloatArray, hessian: Vector) -> None:
    """Second moments of the rows of a full mixing matrix, from expected inputs (b, k * k) and logits (b, k).

    Both have been multiplied by the roots of the weights. One product serves all classes.
    """
    k, first = problem.n_classes, problem.layout.mixing.start
    for number, moments in enumerate((means.T @ x).reshape(k, k, k)):
        own = slice(first + number * k, first + (number + 1) * k)
        hessian[own, own] += moments


def _add_crossed(
    problem: Problem,
    fields: Fields,
    where: slice,
    scaled: FloatArray,
    moved: FloatArray,
    hessian: Vector,
    buffers: Buffers,
) -> None:
    """Second moments between one shared term, whose weighted features are (q, b), and class-wise parameters."""
    layout, crossed = problem.layout, []
    if fields.x is not None and problem.mixing == "diagonal":
        term = buffers("term", moved.shape, moved.dtype)
        crossed.append((layout.mixing, thin_product(scaled, np.multiply(moved, fields.x, out=term))))
    elif fields.x is not None:
        products = [((moved * column[:, None]).T @ fields.x).ravel() for column in scaled]
        crossed.append((layout.mixing, np.stack(products)))
    if problem.class_scores:
        crossed.append((layout.scores, thin_product(scaled, moved)))
    for columns, values in crossed:
        hessian[where, columns] += values
        hessian[columns, where] += values.T
