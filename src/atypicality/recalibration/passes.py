"""Passes over the rows of a problem: loss, gradient, curvature, Hessian-vector product, per-row quantities.

A block of rows is read once, and everything that is wanted of it is computed while it lies in cache.
"""

from typing import Any, Literal

import numpy as np

from atypicality import blocks
from atypicality.recalibration import device_solver
from atypicality.recalibration.curvature import exact_derivatives
from atypicality.recalibration.kernels import (
    Buffers,
    contract,
    expected_inputs,
    exponentials,
    predictor,
    read_fields,
    shared_inputs,
    softmax,
)
from atypicality.recalibration.metric import sparse_derivatives
from atypicality.recalibration.newton import Derivatives
from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.plain import plain_model
from atypicality.recalibration.problem import Problem

__all__ = ["evaluate", "hessian_product", "row_gradients", "row_losses", "sums"]

WIDE = np.dtype(np.float64)
ALONE = 2**19
"""Numbers of a pass up to which one thread has it: two take as long, and a core more."""
MANY = 400
"""Parameters from which on an exact Hessian is most of its pass: two threads gain 1.7 with 401 to 612 of them, 1.26 to
1.58 with 116 to 212."""
HESSIANS = 8
"""Matrices of all parameters that a thread may have at a time: of blocks that wait, and those that one is made of."""


def evaluate(problem: Problem, theta: Vector, curvature: Literal["exact", "sparse"] | None = None) -> Derivatives:
    """Objective and gradient, and with `curvature` second derivatives, at standardised parameters, in one pass."""
    found = sums(problem, theta, curvature)
    second, penalised = found.curvature, problem.penalty * theta
    if isinstance(second, np.ndarray):
        second[np.diag_indices_from(second)] += problem.penalty
    elif curvature == "exact":
        second = device_solver.add_diagonal(second, problem.penalty)
    objective = found.objective + 0.5 * float(penalised @ theta)
    return Derivatives(objective, problem.project(found.gradient + penalised), second)


def sums(problem: Problem, theta: Vector, curvature: Literal["exact", "sparse"] | None = None) -> Derivatives:
    """As `evaluate`, without penalty and projection: those of the parts of a problem add up to its own."""
    if problem.remote is not None:
        return problem.remote(theta, curvature)  # type: ignore[no-any-return]
    plain = None if problem.on_device else plain_model(problem, theta)
    found = None if plain is None else plain.sums(curvature)
    run = device_solver.all_sums if problem.on_device else _all_sums
    total, mean = run(problem, theta, curvature) if found is None else Derivatives(*found), problem.label_mean
    return Derivatives(total.objective - float(mean @ theta), total.gradient - mean, total.curvature)


def hessian_product(problem: Problem, theta: Vector, direction: Vector) -> Vector:
    """Projected Hessian of the objective at `theta` times a projected `direction`, in one pass."""
    plain = None if problem.on_device else plain_model(problem, theta)
    run = device_solver.hessian_product if problem.on_device else _all_products
    found = run(problem, theta, direction) if plain is None else plain.product(direction)
    return problem.project(found + problem.penalty * direction)


def _all_products(problem: Problem, theta: Vector, direction: Vector) -> Vector:
    def block(rows: slice) -> Vector:
        with problem.workspace.borrow() as buffers:
            fields = read_fields(problem, rows, buffers)
            e, totals, _ = softmax(problem, fields, rows, theta, buffers)
            change = predictor(problem, fields, rows, direction, buffers("change", e.shape, e.dtype), buffers)
            e /= totals[:, None].astype(e.dtype)
            change -= np.vecdot(e, change)[:, None]
            e *= change
            return contract(problem, fields, rows, e, problem.weights[rows], buffers)

    return blocks.reduce_rows(block, problem.n_rows, **_cut(problem))


def row_losses(problem: Problem, theta: Vector) -> Vector:
    """Cross-entropy of every row (n,), in float64."""
    if problem.on_device:
        return device_solver.row_losses(problem, theta)
    losses = np.empty(problem.n_rows)

    def block(rows: slice) -> None:
        with problem.workspace.borrow() as buffers:
            fields = read_fields(problem, rows, buffers, WIDE)
            chosen = (np.arange(rows.stop - rows.start), problem.labels[rows])
            out = predictor(problem, fields, rows, theta, buffers("e", fields.u.shape), buffers)
            at_label = out[chosen]
            _, totals, bounds = exponentials(problem, fields, rows, theta, out)
            losses[rows] = np.log(totals) + bounds - at_label

    blocks.for_rows(block, problem.n_rows, **_cut(problem))
    return losses


def row_gradients(problem: Problem, theta: Vector) -> Any:
    """Projected gradient of every row's own cross-entropy (n, P), standardised parameters, penalty left out."""
    if problem.on_device:
        return device_solver.row_gradients(problem, theta)
    gradients = blocks.empty((problem.n_rows, problem.layout.size))

    def block(rows: slice) -> None:
        with problem.workspace.borrow() as buffers:
            fields = read_fields(problem, rows, buffers, WIDE)
            e, totals, _ = softmax(problem, fields, rows, theta, buffers)
            e /= totals[:, None]
            e[np.arange(e.shape[0]), problem.labels[rows]] -= 1
            inputs = buffers("inputs", (e.shape[0], problem.layout.size))
            expected_inputs(problem, fields, shared_inputs(problem, fields, rows), e, inputs)
            gradients[rows] = problem.project(inputs)

    blocks.for_rows(block, problem.n_rows, **_cut(problem, True))
    return gradients


def _all_sums(problem: Problem, theta: Vector, curvature: str | None) -> Derivatives:
    def block(rows: slice) -> Derivatives:
        with problem.workspace.borrow() as buffers:
            return _block_sums(problem, rows, theta, curvature, buffers)

    exact = curvature == "exact"
    work = blocks.SCATTER if exact and problem.layout.size >= MANY else blocks.ENTRIES
    return blocks.reduce_rows(block, problem.n_rows, _added, **_cut(problem, exact, work))


def _added(total: Derivatives, other: Derivatives) -> Derivatives:
    """Both, in the arrays of the first."""
    gradient, curvature = total.gradient, total.curvature
    gradient += other.gradient
    if curvature is not None:
        curvature += other.curvature
    return Derivatives(total.objective + other.objective, gradient, curvature)


def _block_sums(problem: Problem, rows: slice, theta: Vector, curvature: str | None, buffers: Buffers) -> Derivatives:
    fields, weights = read_fields(problem, rows, buffers), problem.weights[rows]
    e, totals, bounds = softmax(problem, fields, rows, theta, buffers)
    log_norm = float(weights @ (np.log(totals) + bounds))
    if curvature is None:
        return Derivatives(log_norm, contract(problem, fields, rows, e, weights / totals, buffers))
    e /= totals[:, None].astype(e.dtype)
    derivatives = exact_derivatives if curvature == "exact" else sparse_derivatives
    return Derivatives(log_norm, *derivatives(problem, fields, rows, e, buffers))


def _cut(problem: Problem, wide: bool = False, work: blocks.Work = blocks.ENTRIES) -> dict[str, Any]:
    """Rows that stay in cache, and threads; `wide` where there is a number for every parameter beside the classes'.

    Those have many short calls, for which blocks are larger, and so they are on threads, which pass a lock between two.
    """
    width = max(problem.n_classes, problem.layout.size if wide else 0)
    each = max(blocks.THREAD_BYTES, HESSIANS * 8 * problem.layout.size**2 if wide else 0)
    threads = 1 if problem.n_rows * width <= ALONE else blocks.n_threads(each, work=work)
    budget = (1 + wide + (threads > 1)) * blocks.CACHE_BYTES // 3
    height = blocks.block_rows(width * problem.dtype.itemsize, budget=budget)
    return {"block": height, "threads": threads, "work": work, "columns": problem.n_classes}
