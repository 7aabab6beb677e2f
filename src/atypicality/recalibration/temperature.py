"""Temperature scaling: one number for all logits (Guo et al. 2017)."""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from atypicality.formula import Constant, LogitModel
from atypicality.recalibration.base import ConvexRecalibrator, Inputs
from atypicality.recalibration.solver import TOLERANCE, Problem, Solution, mean_loss, solve
from atypicality.validation import warn

__all__ = ["TemperatureScaling"]

FLATTEST = 1e-6
"""Smallest multiplier of the most spread row, standardised: every probability within about 1e-6 of uniform."""


class TemperatureScaling(ConvexRecalibrator):
    r"""Divide the logits by one temperature: ``softmax(z / T)``.

    The cross-entropy is convex in 1/T, which is solved for to a certified optimum. T is limited on both sides:
    where every label has the largest logit, T stops at a mean loss of 2e-10 (no finite optimum exists); where the
    logits are no better than chance, T stops where probabilities are uniform to about six digits. Both warn.

    Attributes
    ----------
    temperature_ : float
    loss_ : float
        Mean cross-entropy of the calibration rows.
    certificate_ : float
        How far `loss_` may lie above its minimum (half of the squared Newton decrement).
    n_iter_ : int

    References
    ----------
    Guo, Pleiss, Sun, Weinberger (2017). On calibration of modern neural networks. ICML.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    >>> scaling = TemperatureScaling().fit(logits, [0, 0, 1, 0])   # right in 3 of 4 rows: z / T = log 3
    >>> bool(np.isclose(scaling.temperature_, 4 / np.log(3)))
    True
    """

    _scan = False

    def multiplier(self) -> float:
        """What the logits are multiplied by: 1 / `temperature_`."""
        return 1 / self.temperature_

    def _fit(self, inputs: Inputs, labels: NDArray[np.intp], weight: NDArray[np.float64] | None) -> None:
        solution, limit = fit_temperature(Problem(inputs.logits, labels, sample_weight=weight))
        if limit:
            warn(limit)
        self._keep(solution)
        self.temperature_ = 1 / float(solution.coefficients[0])

    def formula(self) -> LogitModel:
        """The parameters of a prediction; see `atypicality.formula`."""
        return LogitModel(Constant(self.multiplier()))


def fit_temperature(problem: Problem) -> tuple[Solution, str]:
    """The best multiplier of a problem without other terms, and what to warn of when it has hit its limit."""
    return within_limits(solve(problem), float(problem.rows.deviation.max()), lambda flat: mean_loss(problem, flat))


def within_limits(solution: Solution, widest: float, loss_of: Callable[[Solution], float]) -> tuple[Solution, str]:
    """The best multiplier, or the limit that it has hit and what to warn of then.

    Parameters
    ----------
    solution : Solution
        The optimum of a problem without other terms.
    widest : float
        Largest standard deviation of a row of its logits.
    loss_of : callable
        The mean loss of another solution on the same rows.
    """
    lowest = FLATTEST / widest
    if solution.coefficients[0] < lowest:
        flat = dataclasses.replace(solution, coefficients=np.array([lowest]))
        loss = loss_of(flat)
        return dataclasses.replace(flat, loss=loss, objective=loss, certificate=0.0), (
            f"logits are no better than chance: the temperature has hit its upper limit, {1 / lowest:.4g}. "
            "Check that labels are column indices of the logits."
        )
    if solution.loss <= TOLERANCE:
        return solution, (
            f"every label has the largest logit: the temperature has hit its lower limit, "
            f"{1 / solution.coefficients[0]:.4g}, where the mean loss is {solution.loss:.2g}. Give more rows."
        )
    return solution, ""
