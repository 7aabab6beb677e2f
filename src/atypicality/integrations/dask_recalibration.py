"""Recalibration of logits that lie on a cluster: Newton's method here, its sums on the workers.

Every step asks the workers for loss, gradient and Hessian at a point, reduced by a tree: what travels is the point out
and P + P^2 numbers back, for P parameters. The certificate is that of the ordinary solver, on all rows.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.base import clone

from atypicality.integrations import dask_parts as parts
from atypicality.integrations.dask_cluster import compute, persist, tree
from atypicality.integrations.dask_parts import Common, MidpointWhole, Model, Moments, Summary, Whole
from atypicality.integrations.dask_rows import DaskRows, aligned, rows_of
from atypicality.recalibration import strength
from atypicality.recalibration.aware import AtypicalityAwareRecalibration
from atypicality.recalibration.base import ConvexRecalibrator, Recalibrator
from atypicality.recalibration.covariates import Polynomial, standardise
from atypicality.recalibration.mixing import choose_mixing
from atypicality.recalibration.newton import Cholesky, Derivatives, Optimum, Oracle, minimise
from atypicality.recalibration.parameters import Ridge, Solution, Vector
from atypicality.recalibration.problem import PSEUDO_REACH, PSEUDO_ROWS, SMALL, WILD, Problem
from atypicality.recalibration.quadratic import WholePicture
from atypicality.recalibration.solver import TOLERANCE, projected_hessian, solution_at
from atypicality.recalibration.temperature import TemperatureScaling, within_limits
from atypicality.recalibration.vector import VectorScaling
from atypicality.validation import check_choice, check_number, warn

__all__ = ["fit_recalibrator"]

MOST_PARAMETERS = 8192
"""Parameters up to which a Hessian, of their number squared, is reasonable to send."""
ONE = Polynomial((), (), *np.zeros((4, 0)))
"""The multiplier without covariates: a column of ones."""


def fit_recalibrator(
    recalibrator: Recalibrator, logits: Any, labels: Any, extra: Mapping[str, Any], client: Any
) -> Recalibrator:
    """A fitted copy of a recalibrator; see `atypicality.integrations.dask.fit`."""
    for kind, fit in _FITS.items():
        if type(recalibrator) is kind:
            fitted = clone(recalibrator)
            fit(fitted, _Given(rows_of(logits, "logits", client), labels, extra, client))
            return fitted  # type: ignore[no-any-return]
    raise TypeError(
        f"{type(recalibrator).__name__} cannot be fitted across workers; {', '.join(k.__name__ for k in _FITS)} can. "
        "Fit it on rows that fit on one machine."
    )


@dataclasses.dataclass(frozen=True)
class _Given:
    """What the caller gave."""

    rows: DaskRows
    labels: Any
    extra: Mapping[str, Any]
    client: Any

    @property
    def n_classes(self) -> int:
        """A single column of a binary model stands for two."""
        return max(2, self.rows.width)

    def cut(self, name: str, wanted: bool) -> list[Any]:
        """An extra array cut like the rows, or nothing for every part."""
        if not wanted:
            return [None] * len(self.rows.values)
        return aligned(self.extra[name], name, self.rows, self.client)


@dataclasses.dataclass(frozen=True)
class _Begun:
    """Rows that have been read once, and what they say together."""

    client: Any
    model: Model
    rows: DaskRows
    densities: list[Any]
    states: list[Any]
    summary: Summary

    def reduced(self, function: Any, merge: Any, *args: Any) -> Any:
        """One result from `function(state, *args)` of every part."""
        return compute(self.client, tree([function.later(state, *args) for state in self.states], merge))

    def median(self, number: str) -> float:
        """Exact lower median of the rows' positive values of a number; 0 where there is none."""
        return next(iter(self.at_ranks(number, lambda n: [(n + 1) // 2] if n else [])), 0.0)

    def tails(self, number: str, tail: float) -> list[float]:
        """As `covariates.tails`, of a number of all rows."""
        rank = max(1, math.ceil(tail * (1 - 1e-12) * self.summary.covariates.n))
        return self.at_ranks(number, lambda n: [rank, n + 1 - rank])

    def at_ranks(self, number: str, ranks_of: Callable[[int], list[int]]) -> list[float]:
        """Exact order statistics of a number, digit by digit, at ranks that depend on how many values there are."""
        counts = self.reduced(parts.digits, parts.add, number, (0,), 0)
        ranks = ranks_of(int(counts.sum()))
        prefixes, counts = [0] * len(ranks), np.repeat(counts, len(ranks), axis=0)
        for depth in range(1, 64 // parts.DIGIT + 1) if ranks else ():
            for place, found in enumerate(counts):
                digit = int(np.searchsorted(np.cumsum(found), ranks[place]))
                ranks[place] -= int(found[:digit].sum())
                prefixes[place] = (prefixes[place] << parts.DIGIT) | digit
            if depth < 64 // parts.DIGIT:
                counts = self.reduced(parts.digits, parts.add, number, tuple(prefixes), depth)
        return [parts.value_of_bits(prefix) for prefix in prefixes]


@dataclasses.dataclass(frozen=True)
class _Ready:
    """Parts in common units, the whole that they are parts of, and the map from its coefficients to the columns'."""

    begun: _Begun
    states: list[Any]
    whole: Whole
    back: Vector

    def evaluate(self, problem: Problem, theta: Vector, curvature: bool) -> Derivatives:
        """Objective, gradient and Hessian of the whole, penalty and projection included."""
        begun = self.begun
        each = zip(self.states, begun.rows.values, begun.densities, strict=True)
        shares = [parts.sums.later(*part, theta, curvature) for part in each]
        total = compute(begun.client, tree(shares, parts.add_evaluations))
        penalised, second = problem.penalty * theta, total.curvature
        if second is not None:
            second = second + np.diag(problem.penalty)
        objective = total.objective + 0.5 * float(penalised @ theta)
        return Derivatives(objective, problem.project(total.gradient + penalised), second)

    def solve(self, problem: Problem, *, start: Solution | None = None, tolerance: float = TOLERANCE) -> Solution:
        """As `solver.solve`, of a problem of the whole: Newton steps on all rows, from 0 unless a start is given."""
        theta = np.zeros(problem.n_parameters) if start is None else problem.project(problem.standardise(start))
        return solution_at(problem, self._minimise(problem, theta, tolerance))

    def loss(self, problem: Problem, solution: Solution) -> float:
        """Mean cross-entropy of the labels under a solution."""
        theta = problem.standardise(solution)
        return self.evaluate(problem, theta, False).objective + float(problem.prior_mean @ theta)

    def picture(self, problem: Problem, theta: Vector) -> WholePicture:
        """The quadratic picture of the loss, from a Hessian of all rows."""
        return WholePicture(problem, theta, self.evaluate(problem, theta, True).curvature)

    def _minimise(self, problem: Problem, start: Vector, tolerance: float) -> Optimum:
        noise = float(np.finfo(problem.dtype).eps)
        oracle = Oracle(
            evaluate=lambda theta, curvature: self.evaluate(problem, theta, curvature),
            metric=lambda second: Cholesky(projected_hessian(problem, second), noise),
            product=None,
            noise=16 * noise,
        )
        return minimise(oracle, start, tolerance=tolerance)


def _begin(model: Model, given: _Given) -> _Begun:
    """Let the workers read every part once."""
    rows, client = given.rows, given.client
    known = aligned(given.labels, "labels", rows, client)
    atypicality = given.cut("atypicality", "atypicality" in model.covariates)
    densities = given.cut("class_log_density", model.densities)
    if rows.lazy:  # every step reads the logits: they are computed once
        rows = dataclasses.replace(rows, values=persist(client, rows.values))
    each = zip(rows.values, known, atypicality, densities, rows.places, strict=True)
    states = persist(client, [parts.begin.later(model, *part) for part in each])
    found = compute(client, tree([parts.summary_of.later(state) for state in states], parts.merge_objects))
    return _Begun(client, model, rows, densities, states, found)


def _ready(begun: _Begun, polynomial: Polynomial = ONE) -> _Ready:
    """Put every part in the units of the whole, and the features in standard units."""
    moments = begun.reduced(parts.column_moments, parts.merge_objects, polynomial)
    back = _back(moments)
    common, summary = _common(begun), begun.summary
    each = zip(begun.states, begun.rows.values, begun.densities, strict=True)
    states = persist(begun.client, [parts.prepare.later(*part, polynomial, back, common) for part in each])
    whole = _whole(begun.model, summary, common, back.shape[1])
    shares = [parts.prior_mean.later(state) for state in states]
    whole.summed_prior = compute(begun.client, tree(shares, parts.add))
    if whole.n_parameters > MOST_PARAMETERS:
        raise ValueError(
            f"the model has {whole.n_parameters} parameters, and {MOST_PARAMETERS} are the most across workers, since "
            "their Hessian is sent. Use fewer terms (class_mixing=False), or fit on rows that fit on one machine."
        )
    return _Ready(begun, states, whole, back)


def _back(moments: Moments) -> Vector:
    """The matrix that standardises columns from the right, and takes coefficients back from the left.

    Two rows, one deviation to either side of the mean, have the mean and the deviation of all of them.
    """
    both = np.stack([moments.mean - moments.deviation, moments.mean + moments.deviation])
    columns, back = standardise(both, np.array([0.5, 0.5]))
    back[:, ~columns.any(axis=0)] = 0.0  # a column that does not vary is 0, not its rounding
    return back


def _common(begun: _Begun) -> Common:
    scale, n_rows = begun.median("deviation"), begun.summary.covariates.n
    if not 0 < scale < np.inf:
        raise ValueError(
            "logits must differ between classes in some row, and by less than 1e300; the median standard deviation of "
            f"a row is {scale:g}. Constant rows say nothing about the class."
        )
    if begun.summary.deviation > WILD * scale:
        raise ValueError(
            f"logits must be of comparable size; a row spreads more than {WILD:g} times as far as the median row, and "
            "no multiplier can serve both. Drop or repair such rows."
        )
    density_scale = begun.median("density deviation") if begun.model.densities else 1.0
    small = n_rows * begun.summary.counts.size <= SMALL or not 1e-25 < scale < 1e25
    return Common(
        n_rows,
        scale,
        density_scale or 1.0,
        np.dtype(np.float64 if small or begun.summary.wide else np.float32),
        1 / (n_rows + PSEUDO_ROWS) if begun.model.pseudo_rows else 0.0,
        PSEUDO_REACH * begun.median("positive margin") or 1.0,
    )


def _whole(model: Model, summary: Summary, common: Common, n_features: int) -> Whole:
    """The problem that the parts add up to, without their rows; its labels are one per class, weighted by its share."""
    whole: Whole = object.__new__(MidpointWhole if model.midpoint else Whole)
    k = summary.counts.size
    whole.logits, whole.labels, whole.weights = np.zeros((1, k)), np.arange(k), summary.counts / summary.counts.sum()
    whole.features = np.ones((1, n_features))
    whole.densities = np.zeros((1, k)) if model.densities else None
    whole.density_features = np.ones((1, int(model.densities)))
    whole.density_rows = None
    whole.mixing, whole.class_scores = model.mixing, model.class_scores
    whole.scale, whole.density_scale, whole.dtype = common.scale, common.density_scale, common.dtype
    whole._set_ridge(Ridge())
    return whole


def _fit_temperature(scaling: TemperatureScaling, given: _Given) -> None:
    ready = _ready(_begin(Model(), given))
    problem = ready.whole
    solution, limit = within_limits(
        ready.solve(problem),
        ready.begun.summary.deviation,
        lambda flat: ready.loss(problem, flat),
    )
    if limit:
        warn(limit)
    _keep(scaling, solution, ready)
    scaling.temperature_ = 1 / float(solution.coefficients[0])


def _fit_vector(scaling: VectorScaling, given: _Given) -> None:
    shrink = check_number(scaling.strength, "strength", low=0)
    mixing = "diagonal" if check_choice(scaling.scale, "scale", (True, False)) else None
    model = Model(class_scores=check_choice(scaling.bias, "bias", (True, False)), mixing=mixing)
    ready = _ready(_begin(model, given))
    problem = ready.whole.with_ridge(Ridge(mixing=shrink, scores=shrink))
    solution = ready.solve(problem, start=strength.temperature_start(problem, ready.solve))
    _keep(scaling, solution, ready)
    own = np.zeros_like(solution.scores) if solution.mixing is None else solution.mixing
    scaling.scale_ = solution.coefficients[0] + own


def _fit_aware(aware: AtypicalityAwareRecalibration, given: _Given) -> None:
    aware._check_options(given.n_classes)
    if isinstance(aware.strength, str):
        check_choice(aware.strength, "strength", ("auto",))
    begun = _begin(_aware_model(aware, given), given)
    n = begun.summary.covariates.n
    aware.polynomial_ = _polynomial(begun, aware._tail(n))
    aware.n_effective_, aware.effective_parameters_ = float(n), {}
    ready = _ready(begun, aware.polynomial_)
    solution = _solve_aware(aware, ready)
    solution = dataclasses.replace(solution, coefficients=ready.back @ solution.coefficients)
    aware._warn(n)
    _keep(aware, solution, ready)
    aware._describe(ready.whole, solution)
    low, high = begun.reduced(parts.multiplier_range, parts.widest, aware.polynomial_, aware.coefficients_)
    aware.multiplier_range_ = float(low), float(high)
    aware.floor_ = aware._floor(n, given.n_classes)
    aware.largest_spread_, aware.largest_density_spread_ = begun.summary.spread, begun.summary.density_spread


def _solve_aware(aware: AtypicalityAwareRecalibration, ready: _Ready) -> Solution:
    """The optimum under the strengths that were given, or that the rows choose."""
    whole, groups = ready.whole, strength.groups_of(ready.whole)
    if isinstance(aware.strength, str):
        n = aware._n_objective()
        chosen = strength.choose_strengths(whole, groups, n, solve=ready.solve, picture=ready.picture)
        aware.strength_, aware.effective_parameters_, start = chosen.strengths, chosen.effective, chosen.solution
    else:
        aware.strength_ = strength.given_strengths(aware.strength, groups)
        start = strength.temperature_start(whole, ready.solve)
    return ready.solve(whole.with_ridge(strength.ridge_of(whole, groups, aware.strength_)), start=start)


def _aware_model(aware: AtypicalityAwareRecalibration, given: _Given) -> Model:
    known = given.extra["class_log_density"] is not None
    return Model(
        covariates=tuple(aware.covariates),
        class_scores=aware.class_scores,
        mixing=choose_mixing(aware.class_mixing, given.n_classes)[0],
        midpoint=True,
        densities=aware.class_density is True or (aware.class_density == "auto" and known),
        pseudo_rows=aware.pseudo_rows,
        clip=aware.extrapolation == "clip",
    )


def _polynomial(begun: _Begun, tail: float) -> Polynomial:
    """As `Polynomial.of`: covariates that do not vary within their limits have no columns."""
    names, moments = begun.model.covariates, begun.summary.covariates
    if tail:
        limits = np.array([begun.tails(name, tail) for name in names]).reshape(-1, 2)
        moments = begun.reduced(parts.held_moments, parts.merge_objects, limits)
        moments = dataclasses.replace(moments, low=np.r_[1.0, limits[:, 0]], high=np.r_[1.0, limits[:, 1]])
    low, high, scale = moments.low[1:], moments.high[1:], moments.deviation[1:]
    varies = scale > 1e-12 * np.maximum(np.abs(low), np.abs(high))
    kept = [name for name, found in zip(names, varies, strict=True) if found]
    constant = [name for name in names if name not in kept]
    return Polynomial(tuple(kept), tuple(constant), moments.mean[1:][varies], scale[varies], low[varies], high[varies])


def _keep(recalibrator: ConvexRecalibrator, solution: Solution, ready: _Ready) -> None:
    recalibrator._keep(solution)
    recalibrator._keep_errors(ready.begun.summary.errors, ready.begun.summary.covariates.n)
    recalibrator.n_classes_ = solution.scores.size


_FITS: dict[type, Any] = {
    TemperatureScaling: _fit_temperature,
    VectorScaling: _fit_vector,
    AtypicalityAwareRecalibration: _fit_aware,
}
