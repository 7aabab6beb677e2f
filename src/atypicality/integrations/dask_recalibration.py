"""Recalibration of logits that lie on a cluster: the ordinary solver here, its sums on the workers.

Every step asks the workers for loss, gradient and Hessian at a point, reduced by a tree: what travels is the point out
and P + P^2 numbers back, for P parameters. The certificate is that of the ordinary solver, on all rows.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atypicality.estimators import clone
from atypicality.integrations import dask_parts as parts
from atypicality.integrations.dask_cluster import compute, persist, tree
from atypicality.integrations.dask_parts import ColumnMoments, Model, Shape, Summary
from atypicality.integrations.dask_rows import DaskRows, aligned, rows_of
from atypicality.recalibration.aware import AtypicalityAwareRecalibration
from atypicality.recalibration.base import Recalibrator
from atypicality.recalibration.covariates import Polynomial, standardise
from atypicality.recalibration.newton import Derivatives
from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import PSEUDO_REACH, PSEUDO_ROWS, SMALL, WILD, Problem, Term, Units, check_units
from atypicality.recalibration.row_statistics import RowStatistics
from atypicality.recalibration.strength import temperature_start
from atypicality.recalibration.temperature import TemperatureScaling
from atypicality.recalibration.terms import SIMILAR_ROWS, is_linear
from atypicality.recalibration.vector import VectorScaling

__all__ = ["fit_recalibrator"]

FITTED = (TemperatureScaling, VectorScaling, AtypicalityAwareRecalibration)
MOST_PARAMETERS = 8192  # parameters up to which a Hessian, of their number squared, is reasonable to send
SENT = 2**parts.DIGIT
"""Rows up to which the values themselves are sent to find an order statistic: no more than the counts of a digit."""
ONE = Polynomial((), (), *np.zeros((4, 0)))  # the multiplier without covariates: a column of ones


def fit_recalibrator(
    recalibrator: Recalibrator, logits: Any, labels: Any, extra: Mapping[str, Any], client: Any
) -> Recalibrator:
    """A fitted copy of a recalibrator; see `atypicality.integrations.dask.fit`."""
    if type(recalibrator) not in FITTED:
        raise TypeError(
            f"{type(recalibrator).__name__} cannot be fitted across workers; "
            f"{', '.join(kind.__name__ for kind in FITTED)} can. Fit it on rows that fit on one machine."
        )
    fitted: Any = clone(recalibrator)
    rows = rows_of(logits, "logits", client)
    fitted.n_classes_ = max(2, rows.width)  # a single column of a binary model stands for two
    options = fitted._terms(fitted.n_classes_)
    if isinstance(fitted, AtypicalityAwareRecalibration):
        uses_density = fitted._uses_density(extra["class_log_density"])
        model = Model(options, tuple(fitted.covariates), uses_density, fitted.extrapolation == "clip")
        fitted._learn_prior(extra.get("class_log_prior"), fitted.n_classes_)
        _fit_aware(fitted, _begin(model, rows, labels, extra, client))
    else:
        begun, _ = _with_features(_begin(Model(options), rows, labels, extra, client), ONE)
        fitted._fit_problem(_whole(begun, 1), begun.n_rows)
    return fitted  # type: ignore[no-any-return]


def _fit_aware(aware: AtypicalityAwareRecalibration, begun: "_Begun") -> None:
    aware.n_effective_ = float(begun.n_rows)
    aware.polynomial_ = _polynomial(begun, aware._tail(begun.n_rows))
    begun, back = _with_features(begun, aware.polynomial_)
    n_features, n_linear = back.shape[1], 1 + len(aware.polynomial_.names)
    start = aware._learn_top(temperature_start(_whole(begun, n_features)))
    aware._learn_similarity(begun.sampled(SIMILAR_ROWS))
    names = aware._available()
    prior = aware.class_log_prior_ if "class_prior" in names else None
    fields = aware._fields(names, aware.n_classes_)
    begun = begun.advanced(parts.with_terms, fields, prior, n_linear)
    begun = dataclasses.replace(begun, terms=_sizes(begun, fields, prior, n_linear))
    aware._fit_problem(_whole(begun, n_features), begun.n_rows, back, start)
    high, low = begun.reduced(parts.multiplier_extremes, np.maximum, aware.polynomial_, aware.coefficients_)
    aware.multiplier_range_ = -float(low), float(high)
    aware.largest_spread_, aware.largest_density_spread_ = begun.summary.spread, begun.summary.density_spread


@dataclasses.dataclass(frozen=True)
class _Begun:
    """Rows that have been read once, and what they say together."""

    client: Any
    model: Model
    rows: DaskRows
    densities: list[Any]
    states: list[Any]
    summary: Summary
    terms: Mapping[str, int] = dataclasses.field(default_factory=dict)
    medians: dict[str, float] = dataclasses.field(default_factory=dict)  # those found so far, also by later stages

    def advanced(self, function: Any, *args: Any) -> "_Begun":
        """The same rows after `function(state, logits, density, *args)` of every part."""
        later = [function.later(*part, *args) for part in self.each()]
        return dataclasses.replace(self, states=persist(self.client, later))

    def sampled(self, most: int) -> Any:
        """At most so many rows of the logits, evenly spaced."""
        step = -(-self.n_rows // most)
        each = zip(self.states, self.rows.values, strict=True)
        return compute(self.client, tree([parts.sample.later(*part, step) for part in each], parts.stacked))

    @property
    def n_rows(self) -> int:
        """Rows of all parts."""
        return self.rows.n_rows

    def reduced(self, function: Any, merge: Callable[[Any, Any], Any], *args: Any) -> Any:
        """One result from `function(state, *args)` of every part."""
        return compute(self.client, tree([function.later(state, *args) for state in self.states], merge))

    def each(self) -> Any:
        """States of the parts with what their matrices are read from."""
        return zip(self.states, self.rows.values, self.densities, strict=True)

    def median(self, number: str) -> float:
        """Exact lower median of the rows' positive values of a number; 0 where there is none."""
        if number not in self.medians:
            self.medians[number] = next(iter(self.at_ranks(number, lambda n: [(n + 1) // 2] if n else [])), 0.0)
        return self.medians[number]

    def tails(self, number: str, tail: float) -> list[float]:
        """As `covariates.tails`, of a number of all rows."""
        rank = max(1, math.ceil(tail * (1 - 1e-12) * self.n_rows))
        return self.at_ranks(number, lambda n: [rank, n + 1 - rank])

    def at_ranks(self, number: str, ranks_of: Callable[[int], list[int]]) -> list[float]:
        """Exact order statistics of a number at ranks that depend on how many values there are.

        Of more than `SENT` rows they are found digit by digit.
        """
        if self.n_rows <= SENT:
            values = np.sort(self.reduced(parts.numbers, parts.stacked, number))
            return [float(values[rank - 1]) for rank in ranks_of(values.size)]
        counts = self.reduced(parts.digits, operator.add, number, (0,), 0)
        ranks = ranks_of(int(counts.sum()))
        prefixes, counts = [0] * len(ranks), np.repeat(counts, len(ranks), axis=0)
        for depth in range(1, 64 // parts.DIGIT + 1) if ranks else ():
            for place, found in enumerate(counts):
                digit = int(np.searchsorted(np.cumsum(found), ranks[place]))
                ranks[place] -= int(found[:digit].sum())
                prefixes[place] = (prefixes[place] << parts.DIGIT) | digit
            if depth < 64 // parts.DIGIT:
                counts = self.reduced(parts.digits, operator.add, number, tuple(prefixes), depth)
        return [parts.value_of_bits(prefix) for prefix in prefixes]


class _Whole(Problem):
    """The problem that parts add up to. A row for every class stands for all rows with that label."""

    def __init__(self, begun: _Begun, units: Units, n_features: int) -> None:
        counts = begun.summary.counts
        nothing = np.broadcast_to(0.0, (counts.size, counts.size))
        columns = {size: np.tile(np.eye(1, size), (counts.size, 1)) for size in (n_features, *begun.terms.values())}
        super().__init__(
            nothing,
            np.arange(counts.size),
            features=columns[n_features],
            terms=[Term(name, nothing, columns[size]) for name, size in begun.terms.items()],
            sample_weight=counts,
            units=units,
            **begun.model.options,
        )
        self.begun = begun

    @functools.cached_property
    def prior_mean(self) -> Vector:
        """That of all parts."""
        shares = [parts.prior_mean.later(*part, Shape.read(self)) for part in self.begun.each()]
        found: Vector = compute(self.begun.client, tree(shares, operator.add))
        return found

    @property
    def n_errors(self) -> int:
        """Those of all parts."""
        return self.begun.summary.errors

    @property
    def widest(self) -> float:
        """That of all parts."""
        return self.begun.summary.deviation

    def remote(self, theta: Vector, curvature: Any) -> Derivatives:
        """Sums of the parts."""
        shares = [parts.sums.later(*part, Shape.read(self), theta, curvature) for part in self.begun.each()]
        found: Derivatives = compute(self.begun.client, tree(shares, parts.add_derivatives))
        return found

    def remote_losses(self, theta: Vector, most: int) -> Vector:
        """Those of evenly spaced rows of every part."""
        shape, step = Shape.read(self), -(-self.begun.n_rows // most)
        found = [parts.some_losses.later(*part, shape, theta, step) for part in self.begun.each()]
        losses: Vector = compute(self.begun.client, tree(found, parts.stacked))
        return losses

    def _read_logits(self) -> RowStatistics:
        nothing: list[Any] = [np.zeros(self.n_classes)] * 7 + [np.zeros((self.n_classes, 2))]
        return RowStatistics(*nothing)

    def _read_term(self, term: Term) -> Term:
        return dataclasses.replace(term, rows=self._read_logits())


def _begin(model: Model, rows: DaskRows, labels: Any, extra: Mapping[str, Any], client: Any) -> _Begun:
    """Let the workers read every part once."""
    known = aligned(labels, "labels", rows, client)
    wanted = {"atypicality": "atypicality" in model.covariates, "class_log_density": model.densities}
    beside = [aligned(extra[name], name, rows, client, wanted=wanted[name]) for name in wanted]
    if rows.lazy:  # every step reads the logits: they are computed once
        rows = dataclasses.replace(rows, values=persist(client, rows.values))
    each = zip(rows.values, known, *beside, rows.places, strict=True)
    states = persist(client, [parts.begin.later(model, *part) for part in each])
    found = compute(client, tree([parts.summary_of.later(state) for state in states], Summary.merge))
    return _Begun(client, model, rows, beside[1], states, found, {"class_density": 1} if model.densities else {})


def _with_features(begun: _Begun, polynomial: Polynomial) -> tuple[_Begun, Vector]:
    """Every part with features in standard units, and the map back to the columns."""
    back = _back(begun.reduced(parts.column_moments, ColumnMoments.merge, polynomial))
    return begun.advanced(parts.with_features, polynomial, back), back


def _sizes(begun: _Begun, fields: Mapping[str, Any], class_prior: Any, n_linear: int) -> dict[str, int]:
    """Columns of every term, in the order of `terms_of`."""
    sizes = {**begun.terms} | ({} if class_prior is None else {"class_prior": 1})
    return sizes | {name: n_linear if is_linear(name) else 1 for name in fields}


def _whole(begun: _Begun, n_features: int) -> _Whole:
    """The whole, with every part in its units."""
    units = _units(begun)
    whole = _Whole(begun.advanced(parts.in_units, units, begun.n_rows), units, n_features)
    if whole.n_parameters > MOST_PARAMETERS:
        raise ValueError(
            f"the model has {whole.n_parameters} parameters, and {MOST_PARAMETERS} are the most across workers, since "
            "their Hessian is sent. Use fewer terms (class_mixing=False), or fit on rows that fit on one machine."
        )
    return whole


def _back(moments: ColumnMoments) -> Vector:
    """The matrix that standardises columns from the right, and takes coefficients back from the left.

    Two rows, one deviation to either side of the mean, have the mean and the deviation of all of them.
    """
    both = np.stack([moments.mean - moments.deviation, moments.mean + moments.deviation])
    columns, back = standardise(both, np.array([0.5, 0.5]))
    back[:, ~columns.any(axis=0)] = 0.0  # a column that does not vary is 0, not its rounding
    return back


def _units(begun: _Begun) -> Units:
    """As a `Problem` of all rows would learn them."""
    scale, summary, n_rows = begun.median("deviation"), begun.summary, begun.n_rows
    check_units(scale, "a row spreads" if summary.deviation > WILD * scale else "")
    small = n_rows * summary.counts.size <= SMALL or not 1e-25 < scale < 1e25
    return Units(
        np.dtype(np.float64 if small or summary.wide else np.float32),
        scale,
        {name: begun.median(name) or 1.0 for name in begun.terms},
        1 / (n_rows + PSEUDO_ROWS) if begun.model.options["pseudo_rows"] else 0.0,
        PSEUDO_REACH * begun.median("positive margin") or 1.0,
    )


def _polynomial(begun: _Begun, tail: float) -> Polynomial:
    """As `Polynomial.of`, from moments of the covariates as they are, within their limits."""
    names = begun.model.covariates
    limits = np.array([begun.tails(name, tail) for name in names]).reshape(-1, 2).T
    plain = Polynomial(names, (), np.zeros(len(names)), np.ones(len(names)), *limits)
    found = begun.reduced(parts.column_moments, ColumnMoments.merge, plain)
    table = np.stack([found.mean[1 : len(names) + 1], found.deviation[1 : len(names) + 1], *limits], axis=1)
    return Polynomial.from_moments(dict(zip(names, map(tuple, table.tolist()), strict=True)))
