r"""How strongly to shrink: one strength per group of parameters, chosen on the rows that are fitted.

A ridge is the logarithm of a Gaussian prior. The strengths are those under which the calibration labels are most
probable once the parameters are integrated out (the evidence, by Laplace's method), found with MacKay's fixed point:
with :math:`\theta_g` the parameters of group g at the optimum, H the Hessian of the penalised mean loss and n rows,

.. math:: \gamma_g = p_g - \lambda_g \mathrm{tr}[H^{-1}]_{gg}, \qquad
          \lambda_g \leftarrow \frac{\gamma_g}{n \lVert \theta_g \rVert^2}.

:math:`\gamma_g` counts the parameters that the data determine. Where it is small the strength is itself uncertain, by
about :math:`\sqrt{2 / \gamma_g}` in its logarithm; one such standard error is added, so that with few rows a group
shrinks further, and one that the data do not support vanishes.

References
----------
MacKay (1992). Bayesian interpolation. Neural Computation 4.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atypicality.recalibration.parameters import Ridge, Solution
from atypicality.recalibration.problem import Problem
from atypicality.recalibration.quadratic import Picture, picture_at
from atypicality.recalibration.solver import ROUGH, solve
from atypicality.validation import check_number

__all__ = ["ChosenStrengths", "choose_strengths", "given_strengths", "groups_of", "ridge_of", "temperature_start"]

Groups = Mapping[str, NDArray[np.intp]]

FIRST = 10.0
"""Where every group's precision starts, in units in which temperature scaling's multiplier is 1: a weak prior."""
CAUTION = 1.0
"""Standard errors that are added to the logarithm of a strength."""
UNSUPPORTED = 1e-3
"""Share of a group's parameters below which the data determine none of them: its strength is left where it is."""
LARGEST = 1e8
"""Precision, in units of `FIRST`, at which a parameter is 0 to all digits that matter."""
REACH = 10.0
"""Factor by which strengths may move before the loss is pictured anew: the picture fades with the distance."""
INNER = 30
"""Updates of the strengths on one quadratic picture of the loss."""


@dataclass(frozen=True)
class ChosenStrengths:
    """Strengths by group, in the units of `Ridge`; parameters that the data determine; the optimum reached."""

    strengths: dict[str, float]
    effective: dict[str, float]
    solution: Solution


def groups_of(problem: Problem) -> dict[str, NDArray[np.intp]]:
    """Indices of the parameters that share a strength; the first feature, the temperature, has none."""
    layout, k, groups = problem.layout, problem.n_classes, {}
    spans = {"multiplier": slice(layout.features.start + 1, layout.features.stop), "class_density": layout.densities}
    for name, where in spans.items():
        groups[name] = np.arange(where.start, where.stop)
    mixing = np.arange(layout.mixing.start, layout.mixing.stop)
    groups["class_scaling"] = np.diag(mixing.reshape(k, k)) if problem.mixing == "full" else mixing
    if problem.mixing == "full":
        groups["class_mixing"] = np.setdiff1d(mixing, groups["class_scaling"])
    groups["class_scores"] = np.arange(layout.scores.start, layout.scores.stop)
    return {name: index for name, index in groups.items() if index.size}


def ridge_of(problem: Problem, groups: Groups, strengths: Mapping[str, float]) -> Ridge:
    """The strengths of groups as the solver's ridge."""
    layout, penalty = problem.layout, np.zeros(problem.n_parameters)
    for name, index in groups.items():
        penalty[index] = strengths[name]
    return Ridge(
        features=penalty[layout.features],
        densities=penalty[layout.densities],
        mixing=penalty[layout.mixing],  # type: ignore[arg-type]  # one strength per entry
        scores=penalty[layout.scores].max(initial=0.0),
    )


def given_strengths(strength: float | Mapping[str, float], groups: Groups) -> dict[str, float]:
    """One strength for every group, from one number or from a mapping that names each group."""
    if not isinstance(strength, Mapping):
        return dict.fromkeys(groups, check_number(strength, "strength", low=0.0))
    if missing := sorted(set(groups) - set(strength)):
        raise ValueError(
            f"strength must name every group of parameters; missing are {', '.join(missing)}. "
            f"Name {', '.join(groups)}, or give one number, or 'auto'."
        )
    return {name: check_number(strength[name], f"strength[{name!r}]", low=0.0) for name in groups}


def choose_strengths(
    problem: Problem, groups: Groups, n_effective: float, *, tolerance: float = 0.02, max_iter: int = 20
) -> ChosenStrengths:
    """Strengths of maximal evidence, one standard error to the safe side.

    Parameters
    ----------
    problem : Problem
        Its own ridge is not used.
    groups : mapping of str to ndarray of int
    n_effective : float
        How many rows the objective is the mean of: their number or the sum of their weights, pseudo-rows included.
    tolerance : float, default=0.02
        Change of the logarithm of every strength at which the fixed point has been reached; groups of which the
        data determine less than one parameter count by that part.
    max_iter : int, default=20
        Optima that are solved for on the way.
    """
    solution = temperature_start(problem)
    unit = n_effective * max(1e-3, abs(float(problem.standardise(solution)[0]))) ** 2
    largest = LARGEST / unit
    if solution.loss <= ROUGH:  # no error, and no prior: there is nothing to learn but the temperature
        return ChosenStrengths(dict.fromkeys(groups, largest), dict.fromkeys(groups, 0.0), solution)
    strengths = dict.fromkeys(groups, FIRST / unit)
    for _ in range(max_iter):
        penalised = problem.with_ridge(ridge_of(problem, groups, strengths))
        solution = solve(penalised, start=solution, tolerance=ROUGH)
        around, before = picture_at(penalised, penalised.standardise(solution)), strengths
        strengths, effective = _fixed_point(around, groups, strengths, n_effective, largest)
        if _change(before, strengths, effective) < tolerance:
            break
    strengths = {name: min(largest, value * _caution(effective[name])) for name, value in strengths.items()}
    return ChosenStrengths(strengths, effective, solution)


def temperature_start(problem: Problem) -> Solution:
    """Temperature scaling as a start for `problem`, whose first feature is 1: all other parameters are 0."""
    plain = problem.with_terms().with_features(np.ones((problem.n_rows, 1)))
    found = solve(plain, tolerance=ROUGH)
    others = np.zeros(problem.features.shape[1] - 1)
    return dataclasses.replace(found, coefficients=np.concatenate([found.coefficients, others]))


def _fixed_point(
    picture: Picture, groups: Groups, strengths: Mapping[str, float], n_effective: float, largest: float
) -> tuple[dict[str, float], dict[str, float]]:
    """MacKay's updates to their end on a quadratic picture of the loss; also the parameters that are determined."""
    current, effective = dict(strengths), dict.fromkeys(groups, 0.0)
    for _ in range(INNER):
        penalty = np.zeros(picture.free.size)
        for name, index in groups.items():
            penalty[index] = current[name]
        theta, spread = picture.move(penalty)
        before = dict(current)
        for name, index in groups.items():
            effective[name] = max(0.0, float(picture.free[index].sum() - current[name] * spread[index].sum()))
            if effective[name] < UNSUPPORTED * index.size or current[name] >= largest:
                continue
            ratio = effective[name] / (n_effective * float(theta[index] @ theta[index])) / current[name]
            step = current[name] * ratio
            current[name] = min(max(step, strengths[name] / REACH), strengths[name] * REACH, largest)
        if _change(before, current, effective) < 0.01:
            break
    return current, effective


def _change(before: Mapping[str, float], after: Mapping[str, float], effective: Mapping[str, float]) -> float:
    """Largest change of the logarithm of a strength; a group with less than one determined parameter counts by that."""
    return max((abs(np.log(after[name] / before[name])) * min(1.0, effective[name]) for name in after), default=0.0)


def _caution(effective: float) -> float:
    return float(np.exp(min(CAUTION * np.sqrt(2 / max(effective, 1e-9)), 50.0)))
