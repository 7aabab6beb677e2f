"""Minimisation of a convex function from its passes: exact Newton steps, or L-BFGS in a fixed metric.

Both share one loop, one line search and one way to end: the Newton decrement falls below the tolerance, or the
objective itself does (it is a sum of cross-entropies and squares, so it cannot fall below 0).
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.passes import Evaluation

__all__ = ["Cholesky", "Metric", "NotConvergedError", "Optimum", "lbfgs_directions", "minimise", "newton_directions"]

Directions = Callable[[Vector, Evaluation], Vector]


class NotConvergedError(RuntimeError):
    """The optimum could not be certified; the message says how far the solver came and why it stopped."""


class Metric(Protocol):
    """An approximate Hessian that can be solved with."""

    def solve(self, gradient: Vector) -> Vector:
        """The metric's inverse times a gradient."""


@dataclass(frozen=True)
class Optimum:
    """Where the loop ended: one last step beyond the point that the certificate was measured at."""

    theta: Vector
    objective: float
    certificate: float
    n_iter: int
    n_evaluations: int


def minimise(
    evaluate: Callable[[Vector], Evaluation],
    start: Vector,
    directions: Directions,
    *,
    tolerance: float,
    noise: float,
    max_iter: int = 200,
) -> Optimum:
    """Follow `directions` with a line search until half of the squared Newton decrement is below `tolerance`.

    `noise` is the relative rounding error of the objective: within it a step is judged by its slope alone.
    """
    theta, current, n_evaluations = start, evaluate(start), 1
    for n_iter in range(max_iter):
        step = directions(theta, current)
        slope = float(current.gradient @ step)
        certificate = max(0.0, min(-0.5 * slope, current.objective))
        if current.objective <= tolerance:  # a last step could run away: there may be no finite optimum
            return Optimum(theta, current.objective, certificate, n_iter, n_evaluations)
        if certificate <= tolerance:
            return Optimum(theta + step, current.objective + 0.5 * slope, certificate, n_iter, n_evaluations)
        found = _search(evaluate, theta, current, step, slope, noise * (1 + abs(current.objective)))
        if found is None:
            raise NotConvergedError(
                f"no step lowers the objective at iteration {n_iter}: half of the squared Newton decrement is "
                f"{certificate:.3g}, asked was {tolerance:.3g}. Give float64 logits, or a positive ridge strength."
            )
        theta, current, tries = found
        n_evaluations += tries
    raise NotConvergedError(
        f"{max_iter} iterations were not enough: half of the squared Newton decrement is {certificate:.3g}, asked was "
        f"{tolerance:.3g}. A positive ridge strength makes the problem easier."
    )


def newton_directions(project_hessian: Callable[[Vector], Vector], relative_noise: float) -> Directions:
    """Exact Newton steps from the Hessian of each evaluation."""

    def direction(theta: Vector, current: Evaluation) -> Vector:
        assert current.hessian is not None
        return -Cholesky(project_hessian(current.hessian), relative_noise).solve(current.gradient)

    return direction


def lbfgs_directions(metric: Metric, *, memory: int = 12) -> Directions:
    """L-BFGS (Nocedal and Wright, algorithm 7.4) that starts from `metric` instead of a multiple of the identity."""
    pairs: deque[tuple[Vector, Vector, float]] = deque(maxlen=memory)
    last: list[tuple[Vector, Vector]] = []

    def direction(theta: Vector, current: Evaluation) -> Vector:
        if last:
            moved, turned = theta - last[0][0], current.gradient - last[0][1]
            if (product := float(moved @ turned)) > 0:
                pairs.append((moved, turned, product))
        last[:] = [(theta, current.gradient)]
        return -_two_loops(current.gradient, pairs, metric)

    return direction


class Cholesky:
    """A positive semidefinite matrix, scaled to a unit diagonal and lifted by its rounding error, factored.

    Lifting makes directions without curvature harmless: a consistent gradient has nothing along them.
    """

    def __init__(self, matrix: Vector, relative_noise: float) -> None:
        diagonal = np.diag(matrix)
        self._unit = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        scaled = matrix * self._unit[:, None] * self._unit
        lift = 8 * relative_noise
        scaled[np.diag_indices_from(scaled)] = 1.0
        while True:
            try:
                scaled[np.diag_indices_from(scaled)] = 1.0 + lift
                self._factor = cho_factor(scaled, lower=True)
            except LinAlgError:
                lift *= 100
            else:
                return

    def solve(self, gradient: Vector) -> Vector:
        """The matrix's inverse times a gradient."""
        return self._unit * cho_solve(self._factor, self._unit * gradient)


def _two_loops(gradient: Vector, pairs: deque[tuple[Vector, Vector, float]], metric: Metric) -> Vector:
    residual, shares = gradient.copy(), []
    for moved, turned, product in reversed(pairs):
        share = float(moved @ residual) / product
        residual -= share * turned
        shares.append(share)
    step = metric.solve(residual)
    for (moved, turned, product), share in zip(pairs, reversed(shares), strict=True):
        step += (share - float(turned @ step) / product) * moved
    return step


def _search(
    evaluate: Callable[[Vector], Evaluation],
    theta: Vector,
    current: Evaluation,
    step: Vector,
    slope: float,
    slack: float,
    max_tries: int = 40,
) -> tuple[Vector, Evaluation, int] | None:
    """Shorten the step until the objective falls and the slope has not turned steeply upward.

    The slope's condition makes progress sure where the objective's rounding error hides its decrease (the
    approximate Wolfe conditions of Hager and Zhang 2005).
    """
    length = 1.0
    for tries in range(1, max_tries + 1):
        trial = evaluate(theta + length * step)
        end = float(trial.gradient @ step)
        falls = trial.objective <= current.objective + 1e-4 * length * slope + slack
        if math.isfinite(trial.objective) and falls and end <= -0.9 * slope:
            return theta + length * step, trial, tries
        secant = slope / (slope - end) if math.isfinite(end) and end > 0 else 0.3
        length *= min(max(secant, 0.1), 0.7)
    return None
