"""One part of the rows of a recalibration: what the solver needs of it, and its share of every sum.

Logits stay where they are. What a worker keeps of a part between passes is a `Problem` without its matrices: labels,
features and a few numbers per row. Sums of parts are sums over all rows: weights are one over the number of all rows.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from atypicality.integrations.dask_cluster import PartPlace, task
from atypicality.integrations.dask_rows import read
from atypicality.recalibration import passes
from atypicality.recalibration.base import Inputs
from atypicality.recalibration.covariates import Polynomial, covariates_of, spreads
from atypicality.recalibration.newton import Derivatives
from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import Problem, Term, Units
from atypicality.recalibration.terms import terms_of
from atypicality.validation import check_labels, check_logits, check_matrix

__all__ = ["ColumnMoments", "Model", "Summary"]

DIGIT = 16  # bits of a number that one round of `digits` counts: four rounds find any order statistic exactly
SIGN = np.uint64(1 << 63)
ONES = MappingProxyType({"class_density": 1.0})  # scales of the terms while those of all rows are not known


@dataclass(frozen=True)
class Model:
    """The arguments of a problem beside its rows, and what it needs of them beside the logits."""

    options: Mapping[str, Any]
    covariates: tuple[str, ...] = ()
    densities: bool = False
    clip: bool = False


@dataclass(frozen=True)
class Shape:
    """Which parameters a problem has: its columns of features, its terms, and the class-wise ones."""

    n_features: int
    terms: tuple[str, ...]
    class_scores: bool
    mixing: Any

    @classmethod
    def read(cls, problem: Problem) -> "Shape":
        """That of a problem."""
        names = tuple(term.name for term in problem.terms)
        return cls(problem.features.shape[1], names, problem.class_scores, problem.mixing)

    def of(self, problem: Problem) -> Problem:
        """A problem with no more parameters than these."""
        if Shape.read(problem) == self:
            return problem
        terms = [term for term in problem.terms if term.name in self.terms]
        other = problem.with_terms(terms, class_scores=self.class_scores, mixing=self.mixing)
        return other.with_features(problem.features[:, : self.n_features])


@dataclass(frozen=True)
class ColumnMoments:
    """Rows, mean and sum of squares about it of columns (p,); mergeable."""

    n: int
    mean: Vector
    squares: Vector

    @classmethod
    def of(cls, columns: Vector) -> "ColumnMoments":
        """Of columns (n, p)."""
        mean = columns.mean(axis=0)
        return cls(columns.shape[0], mean, np.square(columns - mean).sum(axis=0))

    def merge(self, other: "ColumnMoments") -> "ColumnMoments":
        """Of the rows of both (Chan, Golub and LeVeque 1983)."""
        n, step = self.n + other.n, other.mean - self.mean
        squares = self.squares + other.squares + step**2 * (self.n * other.n / n)
        return ColumnMoments(n, self.mean + step * (other.n / n), squares)

    @property
    def deviation(self) -> Vector:
        """Standard deviations (p,)."""
        return np.asarray(np.sqrt(self.squares / self.n))


@dataclass(frozen=True)
class Summary:
    """What the client must know of all rows before the first pass: sums and maxima."""

    counts: Vector
    errors: int
    deviation: float
    spread: float
    density_spread: float
    wide: bool

    def merge(self, other: "Summary") -> "Summary":
        """Of the rows of both."""
        return Summary(
            self.counts + other.counts,
            self.errors + other.errors,
            max(self.deviation, other.deviation),
            max(self.spread, other.spread),
            max(self.density_spread, other.density_spread),
            self.wide or other.wide,
        )


@dataclass(frozen=True)
class State:
    """A part between passes: its problem without matrices, and its covariates (n,) by name."""

    problem: Problem
    covariates: Mapping[str, Vector]
    summary: Summary
    clip: bool

    def columns(self, polynomial: Polynomial) -> Vector:
        """Columns (n, p) of the multiplier."""
        return polynomial.columns(self.covariates, n_rows=self.problem.labels.size, clip=self.clip)

    def numbers(self, name: str) -> Vector:
        """A number of every row by its name, without rows where it says nothing."""
        if name in self.covariates:
            return self.covariates[name]
        deviations = {term.name: term.rows.deviation for term in self.problem.terms}
        deviations |= {"deviation": self.problem.rows.deviation, "positive margin": -self.problem.rows.pair[:, 1]}
        values: Vector = deviations[name]
        return values[values > 0]


@task
def begin(model: Model, logits: Any, labels: Any, atypicality: Any, density: Any, place: PartPlace) -> State:
    """Read a part once: check it, and learn what is known of each row."""
    with place.named():
        z = check_logits(read(logits), scan=False)
        known = check_labels(read(labels), n_classes=z.shape[1], n_rows=z.shape[0])
        inputs = Inputs(z, read(atypicality), read(density))
        values = covariates_of(model.covariates, inputs)
        densities = inputs.need_class_log_density() if model.densities else None
        terms = [] if densities is None else [Term("class_density", densities)]
        problem = Problem(z, known, terms=terms, units=Units(z.dtype, term_scales=ONES), **model.options)
    summary = Summary(
        np.bincount(known, minlength=z.shape[1]).astype(np.float64),
        problem.n_errors,
        problem.widest,
        float(spreads(z).max()),
        0.0 if densities is None else float(spreads(densities).max()),
        z.dtype == np.float64,
    )
    return State(_without_matrices(problem), values, summary, model.clip)


@task
def summary_of(state: State) -> Summary:
    """What the client must know of a part."""
    return state.summary


@task
def numbers(state: State, name: str) -> Vector:
    """A number of every row, by its name."""
    return state.numbers(name) + 0.0  # -0.0 becomes 0.0


@task
def digits(state: State, name: str, prefixes: tuple[int, ...], depth: int) -> Any:
    """Counts (m, 65536) of the next digit of a number of every row, for each of m beginnings of digits."""
    bits = ordered_bits(state.numbers(name))
    counts = []
    for prefix in prefixes:
        begun = bits[bits >> np.uint64(64 - DIGIT * depth) == prefix] if depth else bits
        digit = (begun >> np.uint64(64 - DIGIT * (depth + 1))) & np.uint64(2**DIGIT - 1)
        counts.append(np.bincount(digit.astype(np.intp), minlength=2**DIGIT))
    return np.stack(counts)


def ordered_bits(values: Vector) -> Any:
    """Whole numbers in the order of the values: the bits of positive ones have it, those of negative ones reversed."""
    bits = np.ascontiguousarray(values + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    return np.where(bits >> np.uint64(63) == 1, ~bits, bits | SIGN)


def value_of_bits(bits: int) -> float:
    """The value whose `ordered_bits` are given."""
    number = np.uint64(bits)
    return float((number ^ SIGN if number & SIGN else ~number).view(np.float64))


@task
def column_moments(state: State, polynomial: Polynomial) -> ColumnMoments:
    """Moments of the columns of the multiplier."""
    with np.errstate(over="ignore", invalid="ignore"):  # products of covariates that are not standardised are not read
        return ColumnMoments.of(state.columns(polynomial))


@task
def sample(state: State, logits: Any, step: int) -> Any:
    """Evenly spaced rows of a part's logits."""
    return check_logits(read(logits), scan=False)[::step]


def stacked(one: Any, other: Any) -> Any:
    """The rows of both."""
    return np.concatenate([one, other])


@task
def with_features(state: State, logits: Any, density: Any, polynomial: Polynomial, turn: Vector) -> State:
    """A part with standardised features ``columns @ turn``."""
    problem = _with_matrices(state.problem, logits, density).with_features(state.columns(polynomial) @ turn)
    return replace(state, problem=_without_matrices(problem))


@task
def with_terms(
    state: State, logits: Any, density: Any, fields: Mapping[str, Any], class_prior: Any, n_linear: int
) -> State:
    """A part with further terms, whose matrices stay with it."""
    problem = _with_matrices(state.problem, logits, density)
    terms = [*problem.terms, *terms_of(problem, fields, class_prior, n_linear)]
    problem = problem.with_terms(terms, class_scores=problem.class_scores, mixing=problem.mixing)
    return replace(state, problem=_without_matrices(problem))


@task
def in_units(state: State, logits: Any, density: Any, units: Units, n_rows: int) -> State:
    """A part in the units of the whole of `n_rows`."""
    problem = _with_matrices(state.problem, logits, density)._forget("units", "label_mean", "prior_mean")
    vars(problem).update(vars(units), weights=np.full(problem.labels.size, 1 / n_rows))
    _ = problem.label_mean  # kept with the part: it does not change from pass to pass
    return replace(state, problem=_without_matrices(problem))


@task
def prior_mean(state: State, logits: Any, density: Any, shape: Shape) -> Any:
    """A part's share of what the pseudo-rows add to the linear part of the objective."""
    return shape.of(_with_matrices(state.problem, logits, density)).prior_mean


@task
def sums(state: State, logits: Any, density: Any, shape: Shape, theta: Vector, curvature: Any) -> Derivatives:
    """A part's share of loss, gradient and Hessian of a problem of some shape."""
    return passes.sums(shape.of(_with_matrices(state.problem, logits, density)), theta, curvature)


@task
def some_losses(state: State, logits: Any, density: Any, shape: Shape, theta: Vector, step: int) -> Vector:
    """Cross-entropy of evenly spaced rows of a part."""
    problem = shape.of(_with_matrices(state.problem, logits, density))
    return passes.row_losses(problem.take(slice(None, None, step)), theta)


@task
def multiplier_extremes(state: State, polynomial: Polynomial, coefficients: Vector) -> Any:
    """Largest multiplier of a part, and the smallest with the opposite sign."""
    multipliers = state.columns(polynomial) @ coefficients
    return np.array([multipliers.max(), -multipliers.min()])


def add_derivatives(one: Derivatives, other: Derivatives) -> Derivatives:
    """Sum of losses, gradients and Hessians."""
    curvature = None if one.curvature is None else one.curvature + other.curvature
    return Derivatives(one.objective + other.objective, one.gradient + other.gradient, curvature)


def _without_matrices(problem: Problem) -> Problem:
    other = copy.copy(problem)
    other.logits = problem.logits[:0].copy()
    other.terms = tuple(
        replace(term, matrix=term.matrix[:0].copy()) if term.name == "class_density" else term for term in problem.terms
    )
    return other


def _with_matrices(problem: Problem, logits: Any, density: Any) -> Problem:
    other = copy.copy(problem)
    other.logits = check_logits(read(logits), scan=False)
    other.terms = tuple(
        replace(term, matrix=check_matrix(read(density), "class_log_density")) if term.name == "class_density" else term
        for term in problem.terms
    )
    return other
