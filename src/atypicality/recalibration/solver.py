"""One convex solver for every parametric recalibrator.

Build a `Problem`, `solve` it, and read the `Solution`:

>>> import numpy as np
>>> logits, labels = np.array([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 0, 1, 1])
>>> solution = solve(Problem(logits, labels))
>>> bool(solution.certificate <= 2e-10)
True

Many strengths on the same rows: ``solve(problem.with_ridge(ridge), start=previous)``. Folds: ``problem.take(rows)``
keeps the standard units; ``mean_loss(problem.take(others), solution)`` scores held-out rows. Leave-one-out by
influence: `hessian` and `row_gradients` at the optimum.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import to_host
from atypicality.outputs.limits import check_solver_room
from atypicality.recalibration import device_solver, passes
from atypicality.recalibration.metric import DENSE, sparse_metric
from atypicality.recalibration.newton import (
    RENEW_ABOVE,
    Cholesky,
    Metric,
    NotConvergedError,
    Optimum,
    Oracle,
    minimise,
)
from atypicality.recalibration.parameters import Ridge, Solution, Vector, solution_of_multiplier
from atypicality.recalibration.problem import Problem

__all__ = [
    "NotConvergedError",
    "Problem",
    "Ridge",
    "Solution",
    "find_optimum",
    "hessian",
    "label_losses",
    "mean_loss",
    "row_gradients",
    "row_losses",
    "solution_at",
    "solution_of_multiplier",
    "solve",
    "spaced_rows",
    "start_at",
]

TOLERANCE = 2e-10
"""Half of the squared Newton decrement at which a fit ends: a fifth of the stated 1e-9."""
CLOSER = 1e-3
"""Part of that tolerance to end at with a Hessian from elsewhere: steps then converge, but not as fast as Newton's."""
ROUGH = 1e-7
"""Tolerance of the optima on the way, in units of the mean loss."""
START_ROWS = (64, 512, 4096)
"""Rows that a start is made from, few for its first steps; two will do where class-wise parameters have yet to move."""
SCORE_ROWS, FEW_ROWS = 1024, 5
"""Rows that a start of the scores is judged by, and rows that are added to what is counted for it."""
GOLDEN = (5**0.5 - 1) / 2
FEW = 32
"""Parameters up to which every step is an exact Newton step, however many rows there are."""
PATIENCE, RESCUE_WORK = 60, 1e11
"""Steps with the approximate Hessian after which exact ones go on, up to so many rows times squared parameters.

Most fits take fewer than 30 steps. An exact one takes some seconds with that much work.
"""
NEWTON_WORK, FREE_WORK = 1e9, 4e9
"""Rows times squared parameters up to which every step is an exact Newton step, and where scales of classes are free.

The approximate Hessian knows those less well, as long as no ridge holds them. Vector scaling of 5,000 x 250 takes 0.17
s by exact steps and 0.49 s by others, with a ridge of .001 0.12 and 0.10; paper AAR of 2,000 x 1,000 0.95 and 0.29.
"""


def solve(
    problem: Problem,
    *,
    start: Solution | None = None,
    curvature: Vector | None = None,
    tolerance: float = TOLERANCE,
    max_iter: int = 200,
) -> Solution:
    """The minimum of a problem, with its certificate.

    Few parameters are solved for with exact Newton steps, in the type of the logits at first; many with L-BFGS in the
    metric of an approximate Hessian, and Hessian-vector products for the certificate where that metric is not good
    enough. Both begin at the temperature of a part of the rows, unless `start` is given, and the answer does not depend
    on where they begin.
    A warm `start` is the solution for other strengths, other rows or fewer terms (missing ones start at 0), and
    `curvature` (P, P) the Hessian near it, which then need not be gathered for exact steps on the host. `tolerance`
    is half of the squared Newton decrement to end at, in units of the mean loss; where it is not reached, nor with
    passes in float64, `NotConvergedError` says why.
    """
    if start is None:
        theta, n_iter, n_passes = _start(problem)
    else:
        theta, n_iter, n_passes = problem.project(problem.standardise(start)), 0, 0.0
    closer = curvature is not None and problem.dtype == np.float64
    try:
        if curvature is None and tolerance < ROUGH and _is_exact(problem):
            optimum = _rounded_first(problem, theta, tolerance, max_iter)
        else:
            optimum = find_optimum(problem, theta, tolerance * CLOSER if closer else tolerance, max_iter, curvature)
    except NotConvergedError:
        wide = problem.widened()
        if wide is problem and curvature is None:
            raise
        optimum = find_optimum(wide, theta, tolerance, max_iter)
    return solution_at(problem, optimum, n_iter=n_iter, n_passes=n_passes)


def _rounded_first(problem: Problem, theta: Vector, tolerance: float, max_iter: int) -> Optimum:
    """The optimum by exact steps in the type of the logits while the Hessian changes, and from there with that one."""
    rounded = problem.rounded()
    if rounded.dtype != problem.dtype:
        try:
            near = find_optimum(rounded, theta, RENEW_ABOVE, max_iter)
            found = find_optimum(problem, near.theta, tolerance, max_iter, near.curvature)
            return replace(found, n_iter=near.n_iter + found.n_iter, n_passes=near.n_passes + found.n_passes)
        except NotConvergedError:
            pass  # what was lost in rounding is needed: all steps are taken with it
    return find_optimum(problem, theta, tolerance, max_iter)


def mean_loss(problem: Problem, solution: Solution) -> float:
    """Weighted mean cross-entropy of a solution on the rows of `problem`, in float64, without the penalty."""
    if problem.remote is None:
        return float(problem.weights @ row_losses(problem, solution))
    theta = problem.standardise(solution)
    return passes.sums(problem, theta).objective + float(problem.prior_mean @ theta)


def row_losses(problem: Problem, solution: Solution) -> Vector:
    """Cross-entropy of a solution on every row of `problem` (n,), in float64."""
    return passes.row_losses(problem, problem.standardise(solution))


def label_losses(problem: Problem, solution: Solution, most: int) -> tuple[Vector, Vector]:
    """Cross-entropy (m,) of evenly spaced rows, at most so many, and the rows that each stands for among them."""
    if problem.remote_losses is not None:
        losses = problem.remote_losses(problem.standardise(solution), most)
        return losses, np.ones(losses.size)
    part = problem if problem.n_rows <= most else problem.take(spaced_rows(problem, most))
    return row_losses(part, solution), part.n_effective * part.weights


def row_gradients(problem: Problem, solution: Solution) -> Any:
    """Gradient of every row's own cross-entropy (n, P) by the standardised parameters, penalty left out.

    Projected like the parameters (`Problem.project`), so that it can be multiplied with the inverse of `hessian`.
    P is `Problem.n_parameters`; take some rows first where n times P is too large. On a device for logits on a device.
    """
    return passes.row_gradients(problem, problem.standardise(solution))


def hessian(problem: Problem, solution: Solution) -> Vector:
    """Hessian of the objective (mean loss plus ridge) by the standardised parameters (P, P): positive definite.

    Projected like the parameters; along the directions that the projection removes it is a multiple of the
    identity, so it can be inverted.
    """
    found = passes.evaluate(problem, problem.standardise(solution), "exact")
    return projected_hessian(problem, to_host(found.curvature))


def projected_hessian(problem: Problem, matrix: Vector) -> Vector:
    """A Hessian seen by projected parameters, made invertible along what the projection removes."""
    if not (problem.is_pinned(problem.layout.mixing) or problem.is_pinned(problem.layout.scores)):
        return matrix.T  # nothing is removed
    removed = np.eye(problem.layout.size) - problem.project(np.eye(problem.layout.size))
    level = float(np.trace(matrix)) / matrix.shape[0] or 1.0
    return problem.project(problem.project(matrix).T) + level * removed


def solution_at(problem: Problem, optimum: Optimum, *, n_iter: int = 0, n_passes: float = 0.0) -> Solution:
    """The parameters at an optimum, for the logits as given; `n_iter` and `n_passes` are what its start took."""
    c, terms, w, s = problem.parts(problem.project(optimum.theta) / problem.units)
    return Solution(
        coefficients=c,
        terms=terms,
        mixing=w,
        scores=np.zeros(problem.n_classes) if s is None else s - s.mean(),
        absent=np.flatnonzero(~problem.seen),
        loss=optimum.objective + float((problem.prior_mean - 0.5 * problem.penalty * optimum.theta) @ optimum.theta),
        objective=optimum.objective,
        certificate=optimum.certificate,
        n_iter=n_iter + optimum.n_iter,
        n_passes=n_passes + optimum.n_passes,
    )


def start_at(problem: Problem, theta: Vector) -> Solution:
    """Standardised parameters (P,), for the logits as given, as a start: without loss and certificate."""
    c, terms, w, s = problem.parts(theta / problem.units)
    begun = solution_of_multiplier(1.0, problem.n_classes)
    return replace(begun, coefficients=c, terms=terms, mixing=w, scores=begun.scores if s is None else s)


def find_optimum(
    problem: Problem, theta: Vector, tolerance: float, max_iter: int = 200, curvature: Vector | None = None
) -> Optimum:
    """As `solve`, from standardised parameters (P,) to standardised ones, with the derivatives at the end.

    Where the approximate Hessian leads nowhere, as with nearly separable labels, exact Newton steps go on from there,
    if they can be afforded.
    """
    if (exact := _is_exact(problem)) or not _can_be_exact(problem):
        known = curvature if exact and not problem.on_device else None
        return _minimise(problem, theta, tolerance, max_iter, exact=exact, curvature=known)
    try:
        return _minimise(problem, theta, tolerance, min(PATIENCE, max_iter), exact=False)
    except NotConvergedError as stuck:
        begun = theta if stuck.theta is None else stuck.theta
        found = _minimise(problem, begun, tolerance, max_iter, exact=True)
        return replace(found, n_iter=found.n_iter + stuck.n_iter, n_passes=found.n_passes + stuck.n_passes)


def _minimise(
    problem: Problem,
    theta: Vector,
    tolerance: float,
    max_iter: int,
    *,
    exact: bool,
    curvature: Vector | None = None,
) -> Optimum:
    if exact or problem.n_parameters <= DENSE:
        check_solver_room(problem.n_parameters, exact=exact)
    kind: Literal["exact", "sparse"] = "exact" if exact else "sparse"
    noise = float(np.finfo(problem.dtype).eps)
    oracle = Oracle(
        evaluate=lambda point, curvature: passes.evaluate(problem, point, kind if curvature else None),
        metric=lambda curvature: (
            _exact_metric(problem, curvature, noise) if exact else sparse_metric(problem, curvature)
        ),
        product=None if exact else lambda point, direction: passes.hessian_product(problem, point, direction),
        noise=16 * noise,
    )
    return minimise(oracle, theta, tolerance=tolerance, max_iter=max_iter, curvature=curvature)


def _is_exact(problem: Problem) -> bool:
    """Whether every step is an exact Newton step."""
    if problem.on_device:
        return device_solver.is_exact(problem)
    free = problem.mixing is not None and problem.is_pinned(problem.layout.mixing)
    most = FREE_WORK if free else NEWTON_WORK
    few = problem.n_rows * problem.n_parameters**2 <= most or problem.n_parameters <= FEW
    return few or problem.remote is not None


def _can_be_exact(problem: Problem) -> bool:
    """Whether there are time and memory for some exact Newton steps."""
    if problem.n_parameters > DENSE or problem.n_rows * problem.n_parameters**2 > RESCUE_WORK:
        return False
    try:
        check_solver_room(problem.n_parameters)
    except ValueError:
        return False
    return True


def _exact_metric(problem: Problem, curvature: Any, noise: float) -> Metric:
    if isinstance(curvature, np.ndarray):
        return Cholesky.of(projected_hessian(problem, curvature), noise)
    return device_solver.DeviceCholesky(problem, curvature, noise)


def _start(problem: Problem) -> tuple[Vector, int, float]:
    """The temperature of a few, then of more rows, and scores from counts; iterations and passes that it took."""
    multiplier, n_iter, n_passes = np.zeros(1), 0, 0.0
    single = problem.with_terms().with_features(np.ones((problem.n_rows, 1))).rounded()
    if problem.remote is not None:
        return _remote_start(problem, single)
    first, last = int(problem.n_rows <= START_ROWS[1]), 3 if problem.layout.mixing.start == problem.n_parameters else 2
    for wanted in START_ROWS[first:last]:
        stride = -(-problem.n_rows // wanted)
        part = single.take(spaced_rows(problem, wanted))
        fit = find_optimum(part, multiplier, 0.1 / part.n_rows, 200)  # what is left is less than sampling rows has cost
        multiplier, n_iter, n_passes = fit.theta, n_iter + fit.n_iter, n_passes + fit.n_passes / stride
        if stride == 1:
            break
    theta = np.zeros(problem.n_parameters)
    same = np.full(problem.n_rows, multiplier[0])
    theta[problem.layout.features] = np.linalg.lstsq(problem.features, same, rcond=None)[0]
    if problem.class_scores and not problem.penalty[problem.layout.scores].any():
        theta[problem.layout.scores], passed = _score_start(problem, theta)
        n_passes += passed
    return problem.project(theta), n_iter, n_passes


def _remote_start(problem: Problem, single: Problem) -> tuple[Vector, int, float]:
    """The temperature of all rows where there is more to find."""
    theta = np.zeros(problem.n_parameters)
    if theta.size == 1:
        return theta, 0, 0.0
    fit = find_optimum(single, theta[:1], ROUGH, 200)
    theta[0] = fit.theta[0]
    return theta, fit.n_iter, fit.n_passes


def _score_start(problem: Problem, theta: Vector) -> tuple[Vector, float]:
    """How much more often each class is the label than the model says, in logarithms, a few rows added to both.

    What it says, at the parameters (P,) without scores, are its predictions, of confident models, or its mean
    probabilities, of flat ones: that with the smaller loss in some rows. Also the passes that took.
    """
    rows, where, few = _spread_rows(problem.weights, SCORE_ROWS), problem.layout.scores, FEW_ROWS / problem.n_rows
    part = problem if rows.size == problem.n_rows else problem.take(rows)
    expected = passes.sums(part, theta).gradient[where] + part.label_mean[where]
    labels, largest = (
        np.bincount(columns, problem.weights, minlength=problem.n_classes)
        for columns in (problem.labels, problem.rows.best)
    )
    starts = [np.log((labels + few) / (said + few)) for said in (largest, np.maximum(expected, 0.0))]

    def loss(scores: Vector) -> float:
        begun = theta.copy()
        begun[where] = scores
        return passes.sums(part, problem.project(begun)).objective

    return min(starts, key=loss), 3 * rows.size / problem.n_rows


def spaced_rows(problem: Problem, most: int) -> slice | NDArray[np.intp]:
    """At most so many rows of a problem, evenly spaced among those that have weight."""
    used = np.flatnonzero(problem.weights > 0)
    step = -(-used.size // most)
    return slice(None, None, step) if used.size == problem.n_rows else used[::step]  # a slice is not copied


def _spread_rows(weights: Vector, most: int) -> NDArray[np.intp]:
    """At most so many rows with weight (n,), one anywhere in each part of equal length.

    Rows that repeat with a period are met alike.
    """
    rows = np.flatnonzero(weights > 0)
    if rows.size <= most:
        return rows
    place = np.arange(most)
    return rows[((place + place * GOLDEN % 1) * (rows.size / most)).astype(np.intp)]
