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
Breiman (1995). Better subset regression using the nonnegative garrote. Technometrics 37.
"""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.recalibration.parameters import Solution, Vector
from atypicality.recalibration.problem import Problem
from atypicality.recalibration.quadratic import Picture, picture_at
from atypicality.recalibration.solver import ROUGH, NotConvergedError, find_optimum, solve, start_at
from atypicality.validation import check_number

__all__ = [
    "ChosenStrengths", "choose_strengths", "given_strengths", "groups_of", "loosened", "penalty_of", "solve_chosen",
    "temperature_start", "with_groups",
]  # fmt: skip

Groups = Mapping[str, NDArray[np.intp]]

FIRST, FIRST_ROWS, MOST_FIRST = 10.0, 500, 10.0
"""Where every group's precision starts, in units in which temperature scaling's multiplier is 1, for so many rows or
fewer; of more rows it grows with them, at most that many times.

It must be weak beside what the rows say: a group that it hides at first can stay hidden. Many rows say more, and from
the weakest prior their first optimum is far away, overfitted, and takes half of all passes.
"""
CAUTION = 1.0
"""Standard errors that are added to the logarithm of a strength."""
UNSUPPORTED = 1e-3
"""Share of a group's parameters below which the data determine none of them: its strength is left where it is."""
LARGEST = 1e8
"""Precision, in units of `FIRST`, at which a parameter is 0 to all digits that matter."""
FALL, RISE = 10.0, 1000.0
"""Factors by which strengths may change before the loss is pictured anew: the picture fades with the distance that
parameters move, and a larger strength moves them to 0 at most.
"""
NEAR, THERE = 1.0, 0.01
"""Nats, of all rows together, that the loss may lie above its minimum while strengths still change, and at the end.

The picture takes the Newton step that is left itself, and an optimum that the next strengths move needs no more digits.
"""
INNER = 30
"""Updates of the strengths on one quadratic picture of the loss."""
AHEAD, FURTHEST = 9.0, 50.0
"""Times its own length that every second update goes further at most, as far as a geometric series would, and the
largest rise of a logarithm: every limit is nearer.
"""


USED, SUPPORTED = 0.1, 2.0
"""Nats of evidence below which groups are left out: all but the class-wise ones or one of them, and these together.

Class-wise parameters are many: with little evidence few rows would gain less from them than they cost where they should
be 0. Of the other groups a part is kept instead, see `FEW`.
"""
FEW, CHANCE, LEAST = 200, 3.0, 1 / 3
"""Rows up to which groups judged together keep the share 1 - (`CHANCE` / E)^1.5 of themselves, E their evidence.

The share s of a parameter has 2 s - s^2 of its gain where it is real and s^2 of its cost where it is chance: a third,
five ninths and one ninth, is kept whatever the evidence, of fewer rows in proportion to them. A parameter three
standard errors from 0 by chance has 3 nats and costs all rows together 4: .02 a row of 200, .004 of 1,000, hence less
is taken off where rows are more. Much evidence of many class-wise parameters is hardly chance: they keep
1 - (`SUPPORTED` / E)^2.
"""
CLASSWISE = ("class_scaling", "class_mixing", "class_scores")
ROWS_PER_ENTRY = 5
"""Rows for each entry of a full mixing matrix from which on terms of one parameter do not stand in for it."""


@dataclass(frozen=True)
class ChosenStrengths:
    """Strengths of the groups that are kept, in the units of `Ridge`, and what was found on the way.

    `effective` counts the parameters that the data determine of each, `evidence` has the nats of every group, of one
    left out when it was, and `solution` is where the optimum under these strengths is expected: a start. `curvature`
    (P, P) is that of the mean loss near it, by the parameters of `groups`, where it was gathered as a whole.
    """

    strengths: dict[str, float]
    effective: dict[str, float]
    evidence: dict[str, float]
    solution: Solution
    groups: Groups = dataclasses.field(default_factory=dict)
    curvature: Vector | None = None


def groups_of(problem: Problem) -> dict[str, NDArray[np.intp]]:
    """Indices of the parameters that share a strength; the first feature, the temperature, has none."""
    layout, k, groups = problem.layout, problem.n_classes, {}
    spans = {"multiplier": slice(layout.features.start + 1, layout.features.stop)} | layout.terms
    for name, where in spans.items():
        groups[name] = np.arange(where.start, where.stop)
    mixing = np.arange(layout.mixing.start, layout.mixing.stop)
    groups["class_scaling"] = np.diag(mixing.reshape(k, k)) if problem.mixing == "full" else mixing
    if problem.mixing == "full":
        groups["class_mixing"] = np.setdiff1d(mixing, groups["class_scaling"])
    groups["class_scores"] = np.arange(layout.scores.start, layout.scores.stop)
    return {name: index for name, index in groups.items() if index.size}


def penalty_of(problem: Problem, groups: Groups, strengths: Mapping[str, float]) -> Vector:
    """The strengths of groups as one for each parameter (P,)."""
    penalty = np.zeros(problem.n_parameters)
    for name, index in groups.items():
        penalty[index] = strengths[name]
    return penalty


def with_groups(problem: Problem, kept: Collection[str]) -> Problem:
    """The same rows with the groups of parameters in `kept` alone, beside the temperature."""
    mixing = problem.mixing
    if mixing is not None and not {"class_scaling", "class_mixing"} & set(kept):
        mixing = None
    terms = [term for term in problem.terms if term.name in kept]
    fewer = problem.with_terms(terms, class_scores="class_scores" in kept, mixing=mixing)
    return fewer if "multiplier" in kept else fewer.with_features(problem.features[:, :1])


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
    problem: Problem,
    groups: Groups,
    n_effective: float,
    *,
    start: Solution | None = None,
    near: Solution | None = None,
    tolerance: float = 0.05,
    max_iter: int = 20,
    least: Mapping[str, float] | None = None,
) -> ChosenStrengths:
    """Strengths of maximal evidence, one standard error to the safe side, of the groups that the data support.

    The objective of the problem, whose own penalty is not used, is the mean of `n_effective` rows: their number or the
    sum of their weights, pseudo-rows included. `start` is temperature scaling, where it has been solved for, and `near`
    what the first optimum is nearer to, if that is known. The fixed point is reached where the logarithm of no strength
    changes by more than `tolerance`, groups of which the data determine less than one parameter counting by that part;
    at most `max_iter` optima are solved for on the way. `least` are the nats of evidence below which one group alone is
    left out, 0.1 of a group that is not named.
    """
    solution = temperature_start(problem) if start is None else start
    unit = n_effective * max(1e-3, abs(float(problem.standardise(solution)[0]))) ** 2
    if solution.loss <= ROUGH:  # no error, and no prior: there is nothing to learn but the temperature
        return ChosenStrengths({}, {}, dict.fromkeys(groups, 0.0), solution)
    sought = partial(
        _fixed_strengths, groups=groups, n_effective=n_effective, unit=unit, tolerance=tolerance, max_iter=max_iter,
        least={} if least is None else least,
    )  # fmt: skip
    read, theta = problem.rounded(), problem.standardise(near or solution)
    if read.dtype != np.float64:
        try:
            return sought(read, theta)
        except (NotConvergedError, np.linalg.LinAlgError):
            pass  # few rows weigh or spread so much more than all others that sums over them cancel
    return sought(problem.widened(), theta)


def _fixed_strengths(
    problem: Problem,
    theta: Vector,
    *,
    groups: Groups,
    n_effective: float,
    unit: float,
    tolerance: float,
    max_iter: int,
    least: Mapping[str, float],
) -> ChosenStrengths:
    """As `choose_strengths`, in the type of the problem, from parameters (P,)."""
    largest = LARGEST / unit
    strengths = dict.fromkeys(groups, FIRST * min(max(n_effective / FIRST_ROWS, 1.0), MOST_FIRST) / unit)
    enough, there = (max(ROUGH, nats / n_effective) for nats in (NEAR, THERE))
    for _ in range(max_iter):
        penalised = problem.with_penalty(penalty_of(problem, groups, strengths))
        found = find_optimum(penalised, penalised.project(theta), enough)
        around, before = picture_at(penalised, found.at, found.gradient, found.curvature), strengths
        strengths, effective = _fixed_point(around, groups, strengths, n_effective, largest)
        if _change(before, strengths, effective) < tolerance:
            if found.certificate <= there:
                break
            enough = there  # what is left is judged at the optimum itself
        theta, _ = around.move(penalty_of(problem, groups, strengths))  # one Newton step, and no pass for it
    gate = _Gate(around, groups, n_effective, largest)
    kept, evidence = gate.kept(strengths, least)
    if len(kept) < len(groups):
        strengths = {name: strengths[name] if name in kept else largest for name in groups}
        strengths, effective = _fixed_point(around, groups, strengths, n_effective, largest)
    factors = {name: _caution(effective[name], groups[name].size, gate.share_left(name)) for name in kept}
    strengths = {name: min(largest, strengths[name] * factors[name]) for name in kept}
    penalty = penalty_of(problem, groups, dict.fromkeys(groups, largest) | strengths)
    start, effective = start_at(problem, around.move(penalty)[0]), {name: effective[name] for name in kept}
    return ChosenStrengths(strengths, effective, evidence, start, groups, around.hessian)


def solve_chosen(problem: Problem, chosen: ChosenStrengths) -> tuple[Problem, Solution]:
    """The problem with the groups that were chosen on it or on some of its rows, and its optimum under their strengths.

    It begins where the choice ended, with the curvature that was found there.
    """
    kept = with_groups(problem, chosen.strengths)
    groups = groups_of(kept)
    penalised = kept.with_penalty(penalty_of(kept, groups, chosen.strengths))
    cut = chosen.solution.coefficients[: kept.features.shape[1]]
    start, curvature = dataclasses.replace(chosen.solution, coefficients=cut), None
    if chosen.curvature is not None:
        places = np.zeros(kept.n_parameters, np.intp)  # the temperature, which is in no group, is the first
        for name, index in groups.items():
            places[index] = chosen.groups[name]
        curvature = chosen.curvature[np.ix_(places, places)] + np.diag(penalised.penalty)
    return kept, solve(penalised, start=start, curvature=curvature)


def loosened(chosen: ChosenStrengths, problem: Problem, n_rows: float, start: Solution) -> ChosenStrengths:
    """Class-wise strengths no larger than without the terms: what one parameter says first, a matrix says finer.

    That holds of a full matrix, where rows are many; others stay as they were chosen.
    """
    if problem.mixing != "full" or not problem.terms or n_rows < ROWS_PER_ENTRY * problem.n_classes**2:
        return chosen
    plain = with_groups(problem, ["multiplier", "class_density", *CLASSWISE])
    found = choose_strengths(plain, groups_of(plain), n_rows, start=start, near=chosen.solution)
    lower = [name for name in CLASSWISE if found.strengths.get(name, np.inf) < chosen.strengths.get(name, np.inf)]
    both = ((part, getattr(chosen, part), getattr(found, part)) for part in ("strengths", "effective", "evidence"))
    parts: dict[str, Any] = {part: ours | {name: theirs[name] for name in lower} for part, ours, theirs in both}
    return dataclasses.replace(chosen, **parts)


class _Gate:
    """What every group is worth on a quadratic picture of the loss: no pass over the rows is needed."""

    def __init__(self, picture: Picture, groups: Groups, n_effective: float, largest: float) -> None:
        self._picture, self._groups, self._n, self._largest = picture, groups, n_effective, largest
        self._together: dict[str, float] = {}

    def kept(self, strengths: Mapping[str, float], least: Mapping[str, float]) -> tuple[list[str], dict[str, float]]:
        """Groups that stay, and the evidence of each: given those that stay, or when it was left out."""
        kept: list[str] = list(self._groups)
        evidence: dict[str, float] = {}
        classwise = [name for name in kept if name in CLASSWISE]
        others = [name for name in kept if name not in CLASSWISE]
        for together, needed in ((others, USED), (classwise, SUPPORTED)):
            if together and (worth := self._worth(strengths, kept, together)) < needed:
                kept = [name for name in kept if name not in together]
                evidence |= dict.fromkeys(together, worth)
            elif together:
                self._together |= dict.fromkeys(together, worth)
        while kept:
            worths = {name: self._worth(strengths, kept, [name]) for name in kept}
            spare = {name: worths[name] - least.get(name, USED) for name in kept if name in others}
            weakest = min(spare, key=spare.__getitem__, default=None)
            if weakest is None or spare[weakest] >= 0:
                return kept, evidence | worths
            kept.remove(weakest)
            evidence[weakest] = worths[weakest]
        return kept, evidence

    def share_left(self, name: str) -> float:
        """Share of its parameters that a group keeps."""
        few, worth = min(1.0, FEW / self._n), self._together[name]
        if name in CLASSWISE:
            return 1 - few * (SUPPORTED / worth) ** 2
        return max(LEAST * min(1.0, self._n / FEW), 1 - few * float((CHANCE / worth) ** 1.5))

    def _worth(self, strengths: Mapping[str, float], kept: list[str], removed: list[str]) -> float:
        """By how much the logarithm of the evidence falls without some of the groups that are kept."""
        left = [name for name in kept if name not in removed]
        return self._evidence(strengths, kept) - self._evidence(strengths, left)

    def _evidence(self, strengths: Mapping[str, float], kept: Collection[str]) -> float:
        penalty = np.zeros(self._picture.free.size)
        for name, index in self._groups.items():
            penalty[index] = strengths[name] if name in kept else self._largest
        return self._picture.evidence(penalty, self._n)


def temperature_start(problem: Problem) -> Solution:
    """Temperature scaling as a start for `problem`, whose first feature is 1: all other parameters are 0."""
    plain = with_groups(problem, ()).rounded()
    found = solve(plain, tolerance=ROUGH)
    others = np.zeros(problem.features.shape[1] - 1)
    return dataclasses.replace(found, coefficients=np.concatenate([found.coefficients, others]))


def _fixed_point(
    picture: Picture, groups: Groups, strengths: Mapping[str, float], n_effective: float, largest: float
) -> tuple[dict[str, float], dict[str, float]]:
    """MacKay's updates to their end on a quadratic picture of the loss; also the parameters that are determined.

    Logarithms converge like geometric series, whose limit follows from two updates in a row (Aitken).
    """
    current, effective, last = dict(strengths), dict.fromkeys(groups, 0.0), dict.fromkeys(groups, 0.0)
    for turn in range(INNER):
        penalty = np.zeros(picture.free.size)
        for name, index in groups.items():
            penalty[index] = current[name]
        theta, spread = picture.move(penalty)
        before = dict(current)
        for name, index in groups.items():
            effective[name] = max(0.0, float(picture.free[index].sum() - current[name] * spread[index].sum()))
            if effective[name] < UNSUPPORTED * index.size or current[name] >= largest:
                continue
            found = np.log(effective[name] / (n_effective * float(theta[index] @ theta[index])) / current[name])
            step, ratio = float(found), float(found) / last[name] if last[name] else 0.0
            if turn % 2 and 0 < ratio < 1:
                step += step * min(ratio / (1 - ratio), AHEAD)
            last[name], reached = float(found), current[name] * float(np.exp(min(step, FURTHEST)))
            current[name] = min(max(reached, strengths[name] / FALL), strengths[name] * RISE, largest)
        if _change(before, current, effective) < 0.01:
            break
    return current, effective


def _change(before: Mapping[str, float], after: Mapping[str, float], effective: Mapping[str, float]) -> float:
    """Largest change of the logarithm of a strength; a group with less than one determined parameter counts by that."""
    return max((abs(np.log(after[name] / before[name])) * min(1.0, effective[name]) for name in after), default=0.0)


def _caution(effective: float, size: int, left: float) -> float:
    """Factor of a strength: one standard error up, and then what leaves the share `left` of the parameters."""
    data = effective / max(size - effective, 1e-9)  # curvature of the loss, in units of the strength
    factor = float(np.exp(min(CAUTION * np.sqrt(2 / max(effective, 1e-9)), 50.0)))
    return (factor + data * (1 - left)) / max(left, 1e-9)
