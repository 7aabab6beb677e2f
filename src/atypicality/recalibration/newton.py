"""Minimisation of a convex function from its passes: Newton steps, or L-BFGS between renewals of the metric.

It ends when half of the squared Newton decrement falls below the tolerance, or when the objective itself does: it is a
sum of cross-entropies and squares, so it cannot lie further above its minimum than that.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, get_blas_funcs

from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.row_statistics import FloatArray

__all__ = ["RENEW_ABOVE", "Cholesky", "Derivatives", "Metric", "NotConvergedError", "Optimum", "Oracle", "minimise"]

RENEW_ABOVE, RENEW_ROUGH_ABOVE = 1e-4, 1e-3
"""Certificates above which the Hessian, and a metric that is not quite the Hessian, are gathered anew with every
evaluation: it is far from the optimum.

Below it the Hessian changes by some percent at most up to the optimum, and a pass without it costs a third. A rough
metric differs from the Hessian anyhow; to gather it takes a third of a pass, and to factor it as long again.
"""
RENEW_AFTER = 10
"""Steps after which a metric is gathered anew in any case."""
TRUSTED = 0.1
"""Contraction of the certificate by the last step up to which a metric that is not the Hessian here is believed.

A step in a metric B leaves ``(1 - H B) g`` of the gradient g: where the certificate falls by a factor r, B differs from
the inverse of the Hessian H by about sqrt(r), and the certificate is enlarged accordingly. Else H is multiplied with,
or gathered where it is the metric itself.
"""
LONGER = 2.0
"""Times the last step's length that the next one tries first, up to a whole one: a try that fails costs a pass."""
MEMORY = 12
"""Pairs of steps and gradient changes that L-BFGS keeps."""
Pairs = deque[tuple[Vector, Vector, float]]


class NotConvergedError(RuntimeError):
    """The optimum could not be certified; the message says how far the solver came and why it stopped.

    It stopped at `theta`, where that is one vector, after `n_iter` steps and `n_passes` passes.
    """

    def __init__(self, message: str, theta: Vector | None = None, n_iter: int = 0, n_passes: int = 0) -> None:
        super().__init__(message)
        self.theta, self.n_iter, self.n_passes = theta, n_iter, n_passes


class Metric(Protocol):
    """An approximate Hessian that can be solved with."""

    def solve(self, gradient: Vector) -> Vector:
        """The metric's inverse times a gradient."""


@dataclass(frozen=True)
class Derivatives:
    """What a pass returns: the objective, its gradient, and second derivatives of whatever kind was asked for."""

    objective: float
    gradient: Vector
    curvature: Any = None


@dataclass(frozen=True)
class Oracle:
    """The function to minimise.

    Attributes
    ----------
    evaluate : callable
        ``evaluate(theta, curvature: bool) -> Derivatives``.
    metric : callable
        ``metric(evaluation.curvature) -> Metric``.
    product : callable or None
        ``product(theta, direction)``, the Hessian times a direction; None when the metric is the Hessian itself.
    noise : float
        Relative rounding error of the objective: within it a step is judged by its slope.
    """

    evaluate: Callable[[Vector, bool], Derivatives]
    metric: Callable[[Any], Metric]
    product: Callable[[Vector, Vector], Vector] | None
    noise: float


@dataclass(frozen=True)
class Optimum:
    """Where the loop ended: one last step beyond the point that the certificate was measured at.

    `at` is that point, with the gradient there, and `curvature` the last that was gathered, there or a little before.
    """

    theta: Vector
    objective: float
    certificate: float
    n_iter: int
    n_passes: int
    at: Vector
    gradient: Vector
    curvature: Any


def minimise(oracle: Oracle, start: Vector, *, tolerance: float, max_iter: int = 200, curvature: Any = None) -> Optimum:
    """Step with a line search until half of the squared Newton decrement is certified to be below `tolerance`.

    `curvature` is what was gathered near the start, where it is known.
    """
    theta, current, n_passes = start, oracle.evaluate(start, curvature is None), 1
    pairs: Pairs = deque(maxlen=MEMORY)
    since, last, length, exact = 1, math.inf, 1.0, oracle.product is None
    if curvature is not None:
        metric = oracle.metric(curvature)
    for n_iter in range(max_iter):
        if current.curvature is not None:
            curvature, metric, since = current.curvature, oracle.metric(current.curvature), 0
            pairs.clear()
        step = -_two_loops(current.gradient, pairs, metric)
        certificate = -0.5 * float(current.gradient @ step)
        contraction, last = certificate / last, certificate
        if certificate <= tolerance and not (exact and since == 0):
            if contraction <= TRUSTED and n_iter:  # the first step shows nothing of its metric
                certificate /= 1 - math.sqrt(contraction)
            elif oracle.product is None:
                current, n_passes = oracle.evaluate(theta, True), n_passes + 1
                continue
            else:
                step, certificate = _refine(oracle.product, theta, current.gradient, step, pairs, metric)
                n_passes += 1
        passed = n_iter, n_passes, theta, current.gradient, curvature
        if current.objective <= tolerance:  # a last step could run away: there may be no finite optimum
            return Optimum(theta, current.objective, min(certificate, current.objective), *passed)
        if certificate <= tolerance:
            return Optimum(theta + step, current.objective - certificate, certificate, *passed)
        renew = (
            certificate > (RENEW_ABOVE if exact else RENEW_ROUGH_ABOVE)
            or since >= RENEW_AFTER
            or (exact and contraction > TRUSTED)
        )
        longest = min(1.0, LONGER * length)
        found = _search(lambda point: oracle.evaluate(point, renew), theta, current, step, oracle.noise, longest)  # noqa: B023
        if found is None:
            raise NotConvergedError(
                f"no step lowers the objective at iteration {n_iter}: half of the squared Newton decrement is "
                f"{certificate:.3g}, asked was {tolerance:.3g}. Give float64 logits, or a positive ridge strength.",
                theta,
                n_iter,
                n_passes,
            )
        length, following, tries = found
        _remember(pairs, length * step, following.gradient - current.gradient)
        theta, current = theta + length * step, following
        n_passes, since = n_passes + tries, since + 1
    raise NotConvergedError(
        f"{max_iter} iterations were not enough: half of the squared Newton decrement is {certificate:.3g}, asked was "
        f"{tolerance:.3g}. A positive ridge strength makes the problem easier.",
        theta,
        max_iter,
        n_passes,
    )


class Cholesky:
    """A positive semidefinite matrix, scaled to a unit diagonal and lifted by its rounding error, factored.

    Lifting makes directions without curvature harmless: a consistent gradient has nothing along them. `scaled` gives
    the matrix with ones on its diagonal, whose upper triangle is read and overwritten; `unit` (P,) is what the rows and
    columns of the one to solve with were multiplied by.
    """

    def __init__(self, scaled: Callable[[], FloatArray], unit: Vector, relative_noise: float) -> None:
        self._unit, lift = unit, 8 * relative_noise
        while True:
            matrix = scaled()
            np.einsum("ii->i", matrix)[:] = 1.0 + lift
            try:  # its transpose lies as Fortran wants it: nothing is copied
                self._factor = cho_factor(matrix.T, lower=True, overwrite_a=True, check_finite=False)[0]
            except LinAlgError:
                lift *= 30
            else:
                self._solve = get_blas_funcs("trsv", (self._factor,))
                return

    @classmethod
    def of(cls, matrix: FloatArray, relative_noise: float) -> "Cholesky":
        """From the matrix as it is."""
        diagonal = np.diag(matrix)
        unit = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        return cls(lambda: np.multiply(scaled := matrix * unit[:, None], unit, out=scaled), unit, relative_noise)

    def solve(self, gradient: Vector) -> Vector:
        """The matrix's inverse times a gradient."""
        scaled = (self._unit * gradient).astype(self._factor.dtype)
        half = self._solve(self._factor, scaled, lower=1, overwrite_x=1)  # a fifth of the time of LAPACK's solver
        return np.asarray(self._unit * self._solve(self._factor, half, lower=1, trans=1, overwrite_x=1))


def _two_loops(gradient: Vector, pairs: Pairs, metric: Metric) -> Vector:
    """L-BFGS (Nocedal and Wright, algorithm 7.4) that starts from a metric; without pairs, the metric's own step."""
    residual, shares = gradient.copy(), []
    for moved, turned, product in reversed(pairs):
        share = float(moved @ residual) / product
        residual -= share * turned
        shares.append(share)
    step = metric.solve(residual)
    for (moved, turned, product), share in zip(pairs, reversed(shares), strict=True):
        step += (share - float(turned @ step) / product) * moved
    return step


def _remember(pairs: Pairs, moved: Vector, turned: Vector) -> None:
    if (product := float(moved @ turned)) > 0:  # convexity, but for rounding
        pairs.append((moved, turned, product))


def _refine(
    product: Callable[[Vector, Vector], Vector],
    theta: Vector,
    gradient: Vector,
    step: Vector,
    pairs: Pairs,
    metric: Metric,
) -> tuple[Vector, float]:
    """The step of best length along an approximate Newton step, and the certificate with the true Hessian.

    With r the gradient that the quadratic model leaves, the squared decrement is that of the step taken plus that
    of r, and the latter is small enough to be measured in the metric.
    """
    curved = product(theta, step)
    slope = float(gradient @ step)
    length = -slope / float(step @ curved)
    left = gradient + length * curved
    return length * step, 0.5 * (-slope * length + float(left @ _two_loops(left, pairs, metric)))


def _search(
    evaluate: Callable[[Vector], Derivatives],
    theta: Vector,
    current: Derivatives,
    step: Vector,
    noise: float,
    length: float,
) -> tuple[float, Derivatives, int] | None:
    """Shorten the step until the objective falls and the slope has not turned steeply upward.

    The slope's condition makes progress sure where rounding hides the decrease of the objective (the approximate
    Wolfe conditions of Hager and Zhang 2005).
    """
    slope = float(current.gradient @ step)
    slack = noise * (1 + abs(current.objective))
    for tries in range(1, 41):
        trial = evaluate(theta + length * step)
        end = float(trial.gradient @ step)
        falls = trial.objective <= current.objective + 1e-4 * length * slope + slack
        if math.isfinite(trial.objective) and falls and end <= -0.9 * slope:
            return length, trial, tries
        secant = slope / (slope - end) if math.isfinite(end) and end > 0 else 0.3
        length *= min(max(secant, 0.1), 0.7)
    return None
