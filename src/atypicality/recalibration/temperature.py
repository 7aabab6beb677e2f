"""Temperature scaling: one number for all logits (Guo et al. 2017)."""

import dataclasses
from typing import Annotated

import numpy as np

from atypicality.formula import Constant, LogitModel
from atypicality.recalibration.base import ConvexRecalibrator
from atypicality.recalibration.solver import Problem, Solution, mean_loss, solve
from atypicality.stored import Record, kinds, need
from atypicality.validation import warn

__all__ = ["TemperatureScaling"]

FLATTEST = 1e-6
"""Smallest multiplier of the most spread row, standardised: every probability within about 1e-6 of uniform."""


class TemperatureScaling(ConvexRecalibrator):
    r"""Divide the logits by one temperature: ``softmax(z / T)``.

    The cross-entropy is convex in 1/T, which is solved for to a certified optimum. A weak prior, one right and one
    wrong pseudo-row spread over the n calibration rows, keeps it finite: n rows without an error get a mean confidence
    of about 1 - 1 / (n + 2), and a warning. Where the logits are no better than chance, T stops where probabilities are
    uniform to about six digits, and warns.

    Attributes
    ----------
    temperature_ : float
    loss_ : float
        Mean cross-entropy of the calibration rows.
    certificate_ : float
        Half of the squared Newton decrement: to second order, how far the penalised loss is above its minimum.
    errors_ : int
        Calibration rows whose label has not the largest logit.
    n_iter_ : int

    References
    ----------
    Guo, Pleiss, Sun, Weinberger (2017). On calibration of modern neural networks. ICML.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    >>> scaling = TemperatureScaling().fit(logits, [0, 0, 1, 0])   # right in 3 of 4 rows, with the prior in 4 of 6
    >>> bool(np.isclose(scaling.temperature_, 4 / np.log(2)))
    True
    """

    temperature_: Annotated[float, kinds.Number(0, low_open=True)]

    _scan = False

    def multiplier(self) -> float:
        """What the logits are multiplied by: 1 / `temperature_`."""
        return 1 / self.temperature_

    def _fit_problem(self, problem: Problem, n_rows: int) -> None:
        solution = fit_temperature(problem)
        self._keep(solution)
        self._keep_errors(problem.n_errors, n_rows)
        self.temperature_ = 1 / float(solution.coefficients[0])

    def formula(self) -> LogitModel:
        """The parameters of a prediction; see `atypicality.formula`."""
        return LogitModel(Constant((self.multiplier(),)))

    def _check_stored(self) -> None:
        found = self.solution_.coefficients
        need(found.size == 1 and found[0] > 0, "there must be one positive coefficient.")
        need(self.temperature_ == 1 / float(found[0]), "the temperature must be the inverse of the coefficient.")

    _stored = Record(check=_check_stored, restore=ConvexRecalibrator._restore)


def fit_temperature(problem: Problem, group: str = "") -> Solution:
    """The best multiplier of a problem without other terms; warns, about a `group` of rows, where it hits its limit."""
    solution, lowest = solve(problem), FLATTEST / problem.widest
    if solution.coefficients[0] >= lowest:
        return solution
    warn(
        f"{group}logits are no better than chance: the temperature has hit its upper limit, {1 / lowest:.4g}. "
        "Check that labels are column indices of the logits."
    )
    flat = dataclasses.replace(solution, coefficients=np.array([lowest]))
    loss = mean_loss(problem, flat)
    return dataclasses.replace(flat, loss=loss, objective=loss, certificate=0.0)
