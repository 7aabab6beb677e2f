"""One part of the rows of a recalibration: what the solver needs of it, and its share of every sum.

Logits stay where they are. What a worker keeps of a part between passes is a `Problem` without its matrices: labels,
features and a few numbers per row. Sums of parts are sums over all rows: weights are one over the number of all rows,
and penalty and projection, which belong to the whole, are left to the client.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atypicality.integrations.dask_cluster import PartPlace, task
from atypicality.integrations.dask_rows import read
from atypicality.recalibration import passes
from atypicality.recalibration.covariates import Polynomial, margins, spreads
from atypicality.recalibration.mixing import MidpointMixing
from atypicality.recalibration.newton import Derivatives
from atypicality.recalibration.parameters import Ridge, Vector
from atypicality.recalibration.problem import Problem
from atypicality.validation import (
    check_labels,
    check_length,
    check_logit_maxima,
    check_logits,
    check_matrix,
    check_vector,
)

__all__ = ["Common", "MidpointWhole", "Model", "Moments", "Summary", "Whole", "check_maxima"]

DIGIT = 16
"""Bits of a number that one round of `digits` counts: four rounds find any order statistic exactly."""
SIGN = np.uint64(1 << 63)


@dataclass(frozen=True)
class Model:
    """The terms of a model: the multiplier's covariates (held to limits or not), scores, mixing, densities, prior."""

    covariates: tuple[str, ...] = ()
    class_scores: bool = False
    mixing: Any = None
    midpoint: bool = False
    densities: bool = False
    pseudo_rows: bool = True
    clip: bool = False


@dataclass(frozen=True)
class Common:
    """What the parts of a problem share."""

    n_rows: int
    scale: float
    density_scale: float
    dtype: Any
    pseudo_share: float
    pseudo_reach: float


@dataclass(frozen=True)
class Moments:
    """Rows, mean, sum of squares about it, lowest and highest of columns (p,); mergeable."""

    n: int
    mean: Vector
    squares: Vector
    low: Vector
    high: Vector

    @classmethod
    def of(cls, columns: Vector) -> "Moments":
        """Of columns (n, p)."""
        mean = columns.mean(axis=0)
        squares = np.square(columns - mean).sum(axis=0)
        return cls(columns.shape[0], mean, squares, columns.min(axis=0), columns.max(axis=0))

    def merge(self, other: "Moments") -> "Moments":
        """Of the rows of both (Chan, Golub and LeVeque 1983)."""
        n, step = self.n + other.n, other.mean - self.mean
        mean = self.mean + step * (other.n / n)
        squares = self.squares + other.squares + step**2 * (self.n * other.n / n)
        return Moments(n, mean, squares, np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    @property
    def deviation(self) -> Vector:
        """Standard deviations (p,)."""
        return np.asarray(np.sqrt(self.squares / self.n))


@dataclass(frozen=True)
class Summary:
    """What the client must know of all rows before the first pass."""

    counts: Vector
    errors: int
    covariates: Moments
    deviation: float
    spread: float
    density_spread: float
    wide: bool

    def merge(self, other: "Summary") -> "Summary":
        """Of the rows of both."""
        return Summary(
            self.counts + other.counts,
            self.errors + other.errors,
            self.covariates.merge(other.covariates),
            max(self.deviation, other.deviation),
            max(self.spread, other.spread),
            max(self.density_spread, other.density_spread),
            self.wide or other.wide,
        )


class Whole(Problem):
    """The problem that parts add up to, without their rows: what needs these was summed before."""

    @property
    def prior_mean(self) -> Vector:
        """That of all parts; of the temperature alone, its first entry."""
        return self.summed_prior[: self.layout.size]

    summed_prior: Vector


class MidpointWhole(MidpointMixing, Whole):
    """The same with mixing measured from the middle."""


class _Part(Problem):
    def project(self, theta: Vector) -> Vector:
        """The whole projects."""
        return theta


class _MidpointPart(MidpointMixing):
    def project(self, theta: Vector) -> Vector:
        """The whole projects."""
        return theta


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
        rows, density = self.problem.rows, self.problem.density_rows
        if name in self.covariates:
            return self.covariates[name]
        values = rows.deviation if name == "deviation" else -rows.pair[:, 1]
        if name == "density deviation" and density is not None:
            values = density.deviation
        return values[values > 0]


@task
def begin(model: Model, logits: Any, labels: Any, atypicality: Any, density: Any, place: PartPlace) -> State:
    """Read a part once: check it, and learn what is known of each row."""
    matrix = read(logits)
    try:
        z = check_logits(matrix, scan=False)
        known = check_labels(read(labels), n_classes=z.shape[1], n_rows=z.shape[0])
        given = {"atypicality": atypicality}
        values = {
            name: margins(z) if name == "margin" else check_vector(read(given[name]), name, n_rows=z.shape[0])
            for name in model.covariates
        }
        densities = _densities(density, z) if model.densities else None
        problem = _problem(model, z, known, densities)
    except (ValueError, TypeError) as error:
        raise place.explain(error, "logits", matrix, check=check_maxima) from None
    summary = Summary(
        np.bincount(known, minlength=z.shape[1]).astype(np.float64),
        problem.n_errors,
        Moments.of(np.stack([np.ones(known.size), *values.values()], axis=1)),
        float(problem.rows.deviation.max()),
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
def held_moments(state: State, limits: Vector) -> Moments:
    """Moments of a column of ones and of the covariates, held to limits (q, 2)."""
    held = [np.clip(values, *limit) for values, limit in zip(state.covariates.values(), limits, strict=True)]
    return Moments.of(np.stack([np.ones(state.problem.labels.size), *held], axis=1))


@task
def column_moments(state: State, polynomial: Polynomial) -> Moments:
    """Moments of the columns of the multiplier."""
    return Moments.of(state.columns(polynomial))


@task
def prepare(state: State, logits: Any, density: Any, polynomial: Polynomial, turn: Vector, common: Common) -> State:
    """A part in the units of the whole, with standardised features ``columns @ turn``."""
    problem = _with_matrices(state.problem, logits, density).with_features(state.columns(polynomial) @ turn)
    problem.scale, problem.density_scale, problem.dtype = common.scale, common.density_scale, common.dtype
    problem.weights = np.full(problem.labels.size, 1 / common.n_rows)
    problem.pseudo_share, problem.pseudo_reach = common.pseudo_share, common.pseudo_reach
    _ = problem.label_mean  # kept with the part: it does not change from pass to pass
    return State(_without_matrices(problem), state.covariates, state.summary, state.clip)


@task
def prior_mean(state: State) -> Any:
    """A part's share of what the pseudo-rows add to the linear part of the objective."""
    return state.problem.prior_mean


@task
def sums(state: State, logits: Any, density: Any, theta: Vector, curvature: bool) -> Derivatives:
    """A part's share of loss, gradient and Hessian, without penalty; of the temperature alone if `theta` is that."""
    problem = _with_matrices(state.problem, logits, density)
    if theta.size < problem.n_parameters:
        problem = problem.with_terms().with_features(problem.features[:, :1])
    return passes.evaluate(problem, theta, "exact" if curvature else None)


@task
def multiplier_range(state: State, polynomial: Polynomial, coefficients: Vector) -> Any:
    """Smallest and largest multiplier of a part."""
    multipliers = state.columns(polynomial) @ coefficients
    return np.array([multipliers.min(), multipliers.max()])


@task
def merge_objects(parts: list[Any]) -> Any:
    """Join what can merge itself."""
    total = parts[0]
    for part in parts[1:]:
        total = total.merge(part)
    return total


@task
def add(parts: list[Any]) -> Any:
    """Sum of arrays, in order."""
    return sum(parts[1:], start=parts[0])


@task
def add_evaluations(parts: list[Derivatives]) -> Derivatives:
    """Sum of losses, gradients and Hessians, in order."""
    curvatures = [part.curvature for part in parts]
    return Derivatives(
        sum(part.objective for part in parts),
        np.sum([part.gradient for part in parts], axis=0),
        None if curvatures[0] is None else sum(curvatures[1:], start=curvatures[0]),
    )


@task
def widest(parts: list[Any]) -> Any:
    """Smallest of the first and largest of the second entries."""
    table = np.stack(parts)
    return np.array([table[:, 0].min(), table[:, 1].max()])


def check_maxima(matrix: Any, name: str, *, first_row: int) -> None:
    """Refuse rows of logits by their maxima."""
    check_logit_maxima(np.asarray(matrix).max(axis=1), name, first_row=first_row)


def _densities(density: Any, z: Any) -> Any:
    values = check_matrix(read(density), "class_log_density", width=z.shape[1])
    check_length(values, "class_log_density", z.shape[0])
    return values


def _problem(model: Model, z: Any, labels: Any, densities: Any) -> Problem:
    """A problem on a part, in units yet to be set: `Problem` itself would take them from these rows alone."""
    problem: Problem = object.__new__(_MidpointPart if model.midpoint else _Part)
    n = z.shape[0]
    problem.logits, problem.labels, problem.weights = z, labels, np.full(n, 1 / n)
    problem.features = np.ones((n, 1))
    problem.densities, problem.density_features = densities, np.ones((n, 0 if densities is None else 1))
    problem.mixing, problem.class_scores = model.mixing, model.class_scores
    problem.rows = problem._read_logits()
    problem.density_rows, problem.density_scale = problem._read_densities()
    problem.scale, problem.near = 1.0, None
    problem.dtype, problem.total = z.dtype, float(n)
    problem._set_ridge(Ridge())
    problem._set_prior(False)
    return problem


def _without_matrices(problem: Problem) -> Problem:
    other = copy.copy(problem)
    other.logits = problem.logits[:0].copy()
    other.densities = None if problem.densities is None else problem.densities[:0].copy()
    return other


def _with_matrices(problem: Problem, logits: Any, density: Any) -> Problem:
    other = copy.copy(problem)
    other.logits = check_logits(read(logits), scan=False)
    if problem.densities is not None:
        other.densities = check_matrix(read(density), "class_log_density")
    return other
