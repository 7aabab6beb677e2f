"""Fixed metrics: an approximate Hessian from some of the rows, cheap to make and to solve with."""

import numpy as np

from atypicality.recalibration import passes
from atypicality.recalibration.newton import Cholesky, Metric
from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import Problem

__all__ = ["fixed_metric"]


def fixed_metric(problem: Problem, theta: Vector, n_rows: int) -> tuple[Metric, float]:
    """The Hessian of about `n_rows` rows at `theta`, factored, and the passes that it cost."""
    part = problem.take(slice(None, None, -(-problem.n_rows // n_rows)))
    found = passes.evaluate(part, theta, order=2).hessian
    assert found is not None
    removed = np.eye(problem.layout.size) - problem.project(np.eye(problem.layout.size))
    level = float(np.trace(found)) / found.shape[0]
    matrix = problem.project(problem.project(found).T) + level * removed
    return Cholesky(matrix, float(np.finfo(np.float32).eps)), part.n_rows / problem.n_rows
