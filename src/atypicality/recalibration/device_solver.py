"""Passes of the convex solver over rows on a device, and Newton steps solved for there.

`recalibration.passes` and `recalibration.solver` call these when a problem's logits lie on a device. Parameters, the
objective and its gradient are on the host, where the one loop of `recalibration.newton` runs; logits, probabilities and
a Hessian of many parameters never leave the device. An iteration waits for the device three times: for the objective
with its gradient, for the factor, and for the step.
"""

from typing import Any, Literal

import numpy as np

from atypicality.arrays import Device, entries_at, namespace, to_device, to_host
from atypicality.recalibration import device_curvature
from atypicality.recalibration.device_passes import (
    Block,
    classwise,
    predictor,
    read_block,
    row_slices,
    shared_terms,
    softmax,
    weighted_sums,
)
from atypicality.recalibration.newton import Derivatives
from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import Problem

__all__ = ["DeviceCholesky", "add_diagonal", "all_sums", "hessian_product", "is_exact", "row_gradients", "row_losses"]

HOST_UP_TO = 256
"""Parameters up to which the Hessian is factored on the host: it comes over with the gradient, and that is faster."""
EXACT_UP_TO = 16384
"""Parameters up to which steps are exact Newton steps: their Hessian takes 2 GiB, and a step some copies of it."""


def is_exact(problem: Problem) -> bool:
    """Whether every step is an exact Newton step."""
    return problem.n_parameters <= EXACT_UP_TO


def all_sums(problem: Problem, point: Vector, curvature: Literal["exact", "sparse"] | None) -> Derivatives:
    """Log-normaliser and gradient before the labels, and curvature: an exact one of many parameters on the device."""
    theta = to_device(point, problem.logits)
    xp, total, second, size = namespace(theta), None, None, problem.n_parameters
    for rows in row_slices(problem, _width(problem, curvature == "exact")):
        block = read_block(problem, rows)
        p, log_norms = softmax(problem, block, theta)
        sums = xp.concat([xp.reshape(block.weights @ log_norms, (1,)), weighted_sums(problem, block, p)])
        total = sums if total is None else total + sums
        if curvature is not None:
            found = (
                device_curvature.exact_curvature(problem, block, p)
                if curvature == "exact"
                else device_curvature.sparse_curvature(problem, block, p, rows.start)
            )
            second = found if second is None else _added(second, found)
    if curvature == "exact" and size <= HOST_UP_TO:  # one vector comes over, not two
        numbers = to_host(xp.concat([total, xp.reshape(second, (-1,))])).astype(np.float64)
        return Derivatives(float(numbers[0]), numbers[1 : 1 + size], numbers[1 + size :].reshape(size, size))
    numbers = to_host(total).astype(np.float64)
    return Derivatives(float(numbers[0]), numbers[1:], second)


def _added(total: Any, found: Any) -> Any:
    total += found
    return total


def hessian_product(problem: Problem, theta: Vector, direction: Vector) -> Vector:
    """Hessian of the mean loss at `theta` times a `direction`, in one pass."""
    point, change = to_device(theta, problem.logits), to_device(direction, problem.logits)
    xp, total = namespace(point), 0.0
    for rows in row_slices(problem, problem.n_classes):
        block = read_block(problem, rows)
        p, _ = softmax(problem, block, point)
        moved = predictor(problem, block, change)
        total = total + weighted_sums(problem, block, p * (moved - xp.sum(p * moved, axis=1, keepdims=True)))
    return to_host(total).astype(np.float64)


def row_losses(problem: Problem, theta: Vector) -> Vector:
    """Cross-entropy of every row (n,), on the host."""
    point, losses = to_device(theta, problem.logits), np.empty(problem.n_rows)
    for rows in row_slices(problem, problem.n_classes):
        block = read_block(problem, rows)
        at_label = entries_at(predictor(problem, block, point), to_device(problem.labels[rows], problem.logits))
        losses[rows] = to_host(softmax(problem, block, point)[1] - at_label[:, 0])
    return losses


def row_gradients(problem: Problem, theta: Vector) -> Device:
    """Projected gradient of every row's own cross-entropy (n, P), on the device."""
    point, parts = to_device(theta, problem.logits), []
    xp = namespace(point)
    classes = to_device(np.arange(problem.n_classes), problem.logits)
    for rows in row_slices(problem, _width(problem, True)):
        block = read_block(problem, rows)
        labels = to_device(problem.labels[rows], problem.logits)
        chosen = xp.astype(labels[:, None] == classes[None, :], xp.float64)
        parts.append(project(problem, _inputs(problem, block, softmax(problem, block, point)[0] - chosen)))
    return xp.concat(parts, axis=0)


def _inputs(problem: Problem, block: Block, values: Device) -> Device:
    """``sum_j values_ij X_ij`` of every row (b, P)."""
    xp, layout = namespace(values), problem.layout
    columns = [
        xp.sum(values * field, axis=1, keepdims=True) * features for _, features, field in shared_terms(problem, block)
    ]
    if layout.mixing.start < layout.size:
        columns.append(classwise(problem, block, values))
    return xp.concat(columns, axis=1)


def _width(problem: Problem, wide: bool) -> int:
    """Numbers of a row in the largest array of a pass."""
    return max(problem.n_classes, problem.n_parameters if wide else 0)


def project(problem: Problem, matrix: Device) -> Device:
    """`Problem.project` of the rows of a matrix (r, P) on the device."""
    xp, layout, k = namespace(matrix), problem.layout, problem.n_classes
    seen = to_device(problem.seen.astype(np.float64), matrix)[:, None]
    parts = [matrix[:, : layout.mixing.start]]
    for where in (layout.mixing, layout.scores):
        if where.stop > where.start:
            part = matrix[:, where]
            if problem.is_pinned(where):
                part = xp.reshape(part, (matrix.shape[0], k, -1))
                part = (part - xp.sum(part * seen, axis=1, keepdims=True) / float(problem.seen.sum())) * seen
            parts.append(xp.reshape(part, (matrix.shape[0], -1)))
    return xp.concat(parts, axis=1)


class DeviceCholesky:
    """The projected Hessian, factored on its device: `recalibration.newton.Cholesky` for many parameters."""

    def __init__(self, problem: Problem, matrix: Device, relative_noise: float) -> None:
        xp = namespace(matrix)
        matrix = _projected_hessian(problem, matrix)
        diagonal = xp.linalg.diagonal(matrix)
        self._unit = 1 / xp.sqrt(xp.where(diagonal > 0, diagonal, 1.0))
        scaled = matrix * self._unit[:, None] * self._unit
        lift = 8 * relative_noise
        while True:
            self._scaled = add_diagonal(scaled, 1 + lift - xp.linalg.diagonal(scaled))
            self._factor = _factor(self._scaled)
            if self._factor is not None:
                return
            lift *= 30

    def solve(self, gradient: Vector) -> Vector:
        """The matrix's inverse times a gradient, on the host."""
        scaled = self._unit * to_device(gradient, self._unit)
        return to_host(self._unit * _solve(self._scaled, self._factor, scaled)).astype(np.float64)


def _projected_hessian(problem: Problem, matrix: Device) -> Device:
    """A Hessian seen by projected parameters, made invertible along what the projection removes."""
    xp = namespace(matrix)
    identity = add_diagonal(xp.zeros_like(matrix), np.ones(problem.n_parameters))
    level = xp.sum(xp.linalg.diagonal(matrix)) / problem.n_parameters
    removed = (identity - project(problem, identity)) * xp.where(level > 0, level, 1.0)
    return project(problem, project(problem, matrix).T) + removed


def add_diagonal(matrix: Any, values: Any) -> Any:
    """A matrix plus a diagonal, wherever it lies."""
    from array_api_compat import device

    xp = namespace(matrix)
    return matrix + xp.eye(matrix.shape[0], dtype=matrix.dtype, device=device(matrix)) * to_device(values, matrix)


def _factor(matrix: Device) -> Device | None:
    """The lower Cholesky factor, or None where the matrix is not positive definite; libraries differ in saying so."""
    xp = namespace(matrix)
    try:
        factor = xp.linalg.cholesky(matrix)
    except Exception as error:
        if "LinAlgError" not in type(error).__name__:
            raise
        return None
    return factor if bool(xp.all(xp.isfinite(xp.linalg.diagonal(factor)))) else None


def _solve(matrix: Device, factor: Device, vector: Device) -> Device:
    """Triangular solves where the library has them; the standard has only a general one."""
    xp = namespace(matrix)
    solve_triangular = getattr(xp.linalg, "solve_triangular", None)
    if solve_triangular is None:
        return xp.linalg.solve(matrix, vector)
    half = solve_triangular(factor, vector[:, None], upper=False)
    return solve_triangular(factor.T, half, upper=True)[:, 0]
