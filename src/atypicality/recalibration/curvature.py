"""The exact Hessian, block by block: ``mean_i (sum_j p_ij X_ij X_ij' - m_i m_i')`` with ``m_i = sum_j p_ij X_ij``.

The first part is zero between the parameters of different classes; the second is one product of two matrices.
"""

import numpy as np

from atypicality.recalibration.kernels import Fields, expected_inputs, shared_terms
from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import Problem
from atypicality.recalibration.row_statistics import FloatArray

__all__ = ["exact_curvature"]


def exact_curvature(problem: Problem, fields: Fields, rows: slice, e: FloatArray) -> Vector:
    """The block's share of the Hessian (P, P) at probabilities `e` (b, k)."""
    weights, layout = problem.weights[rows], problem.layout
    means = expected_inputs(problem, fields, rows, e)
    means *= np.sqrt(weights)[:, None].astype(e.dtype)
    hessian = -(means.T @ means).astype(np.float64)
    if layout.mixing.start < layout.size:
        _add_classwise(problem, fields, e, weights, hessian)
    shared, moved = shared_terms(problem, fields, rows), np.empty_like(e)
    for place, (where, features, field) in enumerate(shared):
        np.multiply(e, field, out=moved)
        weighted = features * weights[:, None]
        _add_shared(shared[: place + 1], where, weighted, moved, hessian)
        if layout.mixing.start < layout.size:
            _add_crossed(problem, fields, where, weighted.astype(e.dtype), moved, hessian)
    return hessian


def _add_shared(
    others: list[tuple[slice, Vector, FloatArray]], where: slice, weighted: Vector, moved: FloatArray, hessian: Vector
) -> None:
    """Second moments of one shared term with those up to itself, from its probabilities times its field, `moved`."""
    for other, features, field in others:
        share = (weighted * np.vecdot(moved, field)[:, None]).T @ features
        hessian[where, other] += share
        if other != where:
            hessian[other, where] += share.T


def _add_classwise(problem: Problem, fields: Fields, p: FloatArray, weights: Vector, hessian: Vector) -> None:
    """Second moments of parameters that belong to one class."""
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
    problem: Problem, fields: Fields, where: slice, scaled: FloatArray, moved: FloatArray, hessian: Vector
) -> None:
    """Second moments between one shared term and class-wise parameters."""
    layout, crossed = problem.layout, []
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
