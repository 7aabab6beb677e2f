"""Vector scaling: a scale and a bias for every class (Guo et al. 2017)."""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from atypicality.formula import ClassMixing, Constant, LogitModel
from atypicality.recalibration.base import ConvexRecalibrator
from atypicality.recalibration.solver import Problem, Ridge, solve
from atypicality.stored import Record, kinds, need
from atypicality.validation import check_choice, check_number

__all__ = ["VectorScaling"]


class VectorScaling(ConvexRecalibrator):
    """Scale and shift every class: ``softmax(v_j z_ij + b_j)``, z centred by the row mean of its finite entries.

    Guo et al. 2017; without scales it is bias-corrected temperature scaling (Alexandari et al. 2020). The prior of
    `TemperatureScaling` keeps the optimum finite where scales and biases can separate the labels.

    Parameters
    ----------
    scale : bool, default=True
        Whether every class has its own scale; if not, they share one, as in temperature scaling.
    bias : bool, default=True
        Whether every class has a bias.
    strength : float, default=0.0
        Ridge strength on the biases and on the scales' differences from their mean (standardised logits, mean loss):
        a large strength gives temperature scaling.

    Attributes
    ----------
    scale_ : ndarray of shape (k,)
    class_scores_ : ndarray of shape (k,)
        The biases, with mean 0.
    absent_classes_ : ndarray of int
        Classes without calibration rows: without a ridge their scale and bias are the means of the others.
    loss_, certificate_, errors_, n_iter_
        As in `TemperatureScaling`; the loss is without the penalty.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.array([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    >>> scaling = VectorScaling(scale=False).fit(logits, [0, 0, 1, 1, 0])
    >>> scaling.predict_proba(logits[2:4]).round(4)
    array([[0.619, 0.381],
           [0.5  , 0.5  ]])
    """

    scale_: Annotated[NDArray[np.float64], kinds.Array("K", kinds.FINITE)]

    _scan = False

    def __init__(self, *, scale: bool = True, bias: bool = True, strength: float = 0.0) -> None:
        self.scale = scale
        self.bias = bias
        self.strength = strength

    def _terms(self, n_classes: int) -> dict[str, Any]:
        strength = check_number(self.strength, "strength", low=0)
        return {
            "mixing": "diagonal" if check_choice(self.scale, "scale", (True, False)) else None,
            "class_scores": check_choice(self.bias, "bias", (True, False)),
            "ridge": Ridge(mixing=strength, scores=strength),
            "pseudo_rows": True,
        }

    def _fit_problem(self, problem: Problem, n_rows: int) -> None:
        solution = solve(problem)
        self._keep(solution)
        self._keep_errors(problem.n_errors, n_rows)
        self.scale_ = solution.coefficients[0] + (
            np.zeros_like(solution.scores) if solution.mixing is None else solution.mixing
        )

    def _restore(self) -> None:
        super()._restore()
        self.class_scores_ = self.solution_.scores

    def _check_stored(self) -> None:
        need(self.solution_.coefficients.size == 1, "there must be one coefficient.")
        mixing = self.solution_.mixing
        need((0 if mixing is None else mixing.ndim) == self.scale, "there must be scales of classes if scale.")

    _stored = Record(check=_check_stored, restore=_restore, strength=kinds.Number(0))

    def formula(self) -> LogitModel:
        """The parameters of a prediction; see `atypicality.formula`."""
        solution = self.solution_
        mixing = None if solution.mixing is None else ClassMixing(solution.mixing, 1.0)
        return LogitModel(Constant((float(solution.coefficients[0]),)), mixing=mixing, scores=solution.scores)
