"""Ensemble temperature scaling: a mixture of scaled, plain and uniform probabilities (Zhang et al. 2020)."""

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from atypicality.formula import Mixture
from atypicality.recalibration.base import Errors, Inputs, Recalibrator
from atypicality.recalibration.newton import NotConvergedError
from atypicality.recalibration.solver import TOLERANCE, Problem, Solution, row_losses, solution_of_multiplier
from atypicality.recalibration.temperature import fit_temperature
from atypicality.stored import Record, kinds

__all__ = ["EnsembleTemperatureScaling", "mixture_weights"]

ROUNDING = 1e-15
"""Rounding error of a mean of ratios near 1."""


class EnsembleTemperatureScaling(Recalibrator):
    """Mix scaled, plain and uniform probabilities: ``w1 softmax(z/T) + w2 softmax(z) + w3 / k``.

    T is that of `TemperatureScaling`; the weights then minimise the cross-entropy, which is convex in them, over the
    simplex, with the same prior of one right and one wrong pseudo-row. In a row with masked classes the uniform part
    covers the others only.

    Attributes
    ----------
    weights_ : ndarray of shape (3,)
        Of the scaled, the plain and the uniform probabilities; they sum to 1.
    temperature_ : float
    loss_ : float
        Mean cross-entropy of the calibration rows.
    certificate_ : float
        How far the penalised loss may lie above its minimum over the weights (the duality gap).
    errors_ : int
        Calibration rows whose label has not the largest logit.
    n_iter_ : int

    References
    ----------
    Zhang, Kailkhura, Han (2020). Mix-n-Match: ensemble and compositional methods for uncertainty calibration. ICML.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    >>> mixture = EnsembleTemperatureScaling().fit(logits, [0, 0, 1, 0])
    >>> mixture.predict_proba(logits[:1]).round(4)
    array([[0.6667, 0.3333]])
    """

    temperature_: Annotated[float, kinds.Number(0, low_open=True)]
    weights_: Annotated[NDArray[np.float64], kinds.Array("3", kinds.FINITE, kinds.SHARES)]
    loss_: Annotated[float, kinds.Number()]
    certificate_: Annotated[float, kinds.Number()]
    n_iter_: Annotated[int, kinds.Integer()]
    errors_: Errors
    _stored = Record()

    _scan = False

    def multiplier(self) -> float:
        """What the logits of the scaled part are multiplied by: 1 / `temperature_`."""
        return 1 / self.temperature_

    def _fit(self, inputs: Inputs, labels: NDArray[np.intp], weight: NDArray[np.float64] | None) -> None:
        problem = Problem(inputs.logits, labels, sample_weight=weight, pseudo_rows=True)
        scaled = fit_temperature(problem)
        self._keep_errors(problem.n_errors, labels.size)
        self.temperature_ = 1 / float(scaled.coefficients[0])
        parts = [solution_of_multiplier(multiplier, problem.n_classes) for multiplier in self._multipliers()]
        losses = np.stack([_target_losses(problem, part) for part in parts], axis=2)
        likelihoods, pseudo = np.exp(-losses), problem.pseudo_weights
        shares = np.concatenate([problem.weights - 2 * pseudo, pseudo, pseudo])
        self.weights_, self.certificate_, self.n_iter_ = mixture_weights(np.concatenate(likelihoods), shares)
        self.loss_ = float(-problem.weights @ np.log(likelihoods[0] @ self.weights_))

    def _multipliers(self) -> tuple[float, float, float]:
        return self.multiplier(), 1.0, 0.0

    def formula(self) -> Mixture:
        """The parameters of a prediction; see `atypicality.formula`."""
        return Mixture(self._multipliers(), tuple(self.weights_.tolist()))


def _target_losses(problem: Problem, part: Solution) -> NDArray[np.float64]:
    """Cross-entropy of every row's label, its largest and its second largest class (3, n), under one multiplier."""
    multiplier = float(part.coefficients[0])
    of_label = row_losses(problem, part)
    of_best = of_label + multiplier * problem.rows.gap
    return np.stack([of_label, of_best, of_best - multiplier * problem.rows.pair[:, 1]])


def mixture_weights(
    likelihoods: NDArray[np.float64], shares: NDArray[np.float64], *, tolerance: float = TOLERANCE, max_iter: int = 200
) -> tuple[NDArray[np.float64], float, int]:
    """Weights w on the simplex that minimise ``-sum_i shares_i log(likelihoods_i . w)``; duality gap; iterations.

    With g the mean of ``likelihoods_i / (likelihoods_i . w)``, the loss lies at most ``max(g) - 1`` above its minimum.
    Every step minimises the quadratic model of the loss over the simplex, exactly, and is shortened until it falls.
    """
    n = likelihoods.shape[1]
    weights = np.full(n, 1 / n)
    for n_iter in range(max_iter):
        ratios = likelihoods / (likelihoods @ weights)[:, None]
        pull = shares @ ratios
        gap = float(pull.max() - 1)
        if gap <= tolerance:
            return weights, max(gap, 0.0), n_iter
        target = _simplex_minimum((ratios * shares[:, None]).T @ ratios, 2 * pull)
        weights = _shorten(likelihoods, shares, weights, target - weights)
    raise NotConvergedError(
        f"{max_iter} iterations were not enough for the mixture weights: the duality gap is {gap:.3g}, asked was "
        f"{tolerance:.3g}. Give fewer or less equal parts."
    )


def _simplex_minimum(matrix: NDArray[np.float64], linear: NDArray[np.float64]) -> NDArray[np.float64]:
    """Minimum over the simplex of ``w' matrix w / 2 - linear . w``, the best stationary point of all faces.

    The diagonal is scaled to ones: a weight of 1e-6 that single rows need is found to as many digits as the others.
    """
    n, unit = linear.size, 1 / np.sqrt(np.diag(matrix))
    scaled = matrix * unit[:, None] * unit
    best, lowest = np.zeros(n), math.inf
    for code in range(1, 2**n):
        face = np.flatnonzero([code >> j & 1 for j in range(n)])
        system = np.block([[scaled[np.ix_(face, face)], unit[face, None]], [unit[face], 0.0]])
        point = np.zeros(n)
        point[face] = unit[face] * np.linalg.lstsq(system, np.r_[(unit * linear)[face], 1.0], rcond=None)[0][:-1]
        value = float(0.5 * point @ matrix @ point - linear @ point)
        if (point >= 0).all() and value < lowest:
            best, lowest = point / point.sum(), value
    return best


def _shorten(
    likelihoods: NDArray[np.float64],
    shares: NDArray[np.float64],
    weights: NDArray[np.float64],
    step: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Halve a step until the slope at its end has not turned steeply upward."""
    change = likelihoods @ step
    allowed, length = 0.5 * float(shares @ (change / (likelihoods @ weights))) + ROUNDING, 2.0
    while length > 1e-12:
        length *= 0.5
        mixed = likelihoods @ (weights + length * step)
        if (mixed > 0).all() and -shares @ (change / mixed) <= allowed:
            break
    moved = np.maximum(weights + length * step, 0)
    return np.asarray(moved / moved.sum())
