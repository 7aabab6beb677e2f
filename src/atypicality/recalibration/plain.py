"""A shorter way through blocks of plain problems: features and scores only, no masked class, moderate logits.

Large problems spend their time here. The logits are multiplied and exponentiated as they are, without first being
shifted or standardised, and the exponentials of the scores stay outside, so that sums over classes and over rows are
products with a vector.
"""

import numpy as np

from atypicality.recalibration.kernels import Buffers
from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import Problem

__all__ = ["plain_sums"]

LARGEST = 30.0
"""Bound on the largest predictor of a row, and on a score: exp of their sums and differences fits float32."""


def plain_sums(
    problem: Problem, rows: slice, theta: Vector, curvature: str | None, buffers: Buffers
) -> tuple[float, Vector, Vector | None] | None:
    """Log-normaliser, gradient sums and (features only) Hessian of a block, or None where it must go the long way."""
    c, _, _, s = problem.parts(theta)
    multiplier = (problem.features[rows] @ c) / problem.scale
    top = problem.rows.top[rows]
    if not _suits(problem, rows, multiplier * top, multiplier, s, curvature):
        return None
    z, weights = problem.logits[rows], problem.weights[rows]
    factor = np.ones(z.shape[1], z.dtype) if s is None else np.exp(s).astype(z.dtype)
    same = multiplier[0] if problem.features.shape[1] == 1 and np.ptp(multiplier) == 0 else multiplier[:, None]
    e = np.multiply(z, same.astype(z.dtype), out=buffers("e", z.shape, z.dtype))
    np.exp(e, out=e)
    totals = (e @ factor).astype(np.float64)
    moved = np.multiply(e, z, out=buffers("moved", z.shape, z.dtype))
    mean = (moved @ factor) / totals
    gradient = np.empty(problem.layout.size)
    gradient[problem.layout.features] = (weights * (mean - top) / problem.scale) @ problem.features[rows]
    if s is not None:
        gradient[problem.layout.scores] = factor * ((weights / totals).astype(z.dtype) @ e)
    log_norm = float(weights @ (np.log(totals) - multiplier * top))
    if curvature is None:
        return log_norm, gradient, None
    spread = (np.vecdot(moved, z) / totals - mean**2) / problem.scale**2
    return log_norm, gradient, (problem.features[rows] * (weights * spread)[:, None]).T @ problem.features[rows]


def _suits(
    problem: Problem, rows: slice, largest: Vector, multiplier: Vector, scores: Vector | None, curvature: str | None
) -> bool:
    if problem.mixing is not None or problem.densities is not None or problem.logits.dtype != problem.dtype:
        return False
    if curvature is not None and (scores is not None or curvature == "sparse"):
        return False
    moderate = np.abs(largest).max() <= LARGEST and (scores is None or np.abs(scores).max() <= LARGEST / 2)
    return bool(moderate and (multiplier >= 0).all() and not problem.rows.masked[rows].any())
