"""Recalibrated probabilities of one block of rows: a multiplier of the logits, terms that are added, and a softmax."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from atypicality.formula.rows import Xp, below_top, largest_of, margins, mean_of_shown, softmax, within

__all__ = [
    "ByGroup", "ClassMixing", "Constant", "ContentFree", "Given", "LogDensity", "LogitModel", "Mixture",
    "Neighbours", "Quadratic", "Rank", "Recalibrated", "Rows", "SimilarLogits", "SimilarProbabilities", "Top",
]  # fmt: skip

SPARSE_ROWS = 100
"""Rows that a sparse product takes at a time: 1000 classes of them stay in cache. Powers of 2 near it take a tenth
longer."""
Recalibrated = tuple[Any, Any]
"""Probabilities (n, k) in the type of the logits, and the rows (n, 1) that have some, or None where all of them do."""


@dataclass(frozen=True)
class Rows:
    """One block of rows, as formulas read it."""

    logits: Any  # (n, k), float32 or float64; -inf masks a class
    atypicality: Any = None  # (n, 1)
    densities: Any = None  # (n, k), class log-densities in the order of the logits' columns
    multiplier: Any = None  # (n, 1), where each row's multiplier was worked out before
    ambiguity: Any = None  # (n, 1)
    masked: bool = True  # False where a runner on the host has seen no masked class: a third of the passes less
    top: Any = None  # (n, 1), the largest logit of each row, where a runner has looked for it
    nearest: Any = None  # (n, 1), the largest of the densities, likewise

    def hidden(self, xp: Xp) -> Any:
        """Masked entries, bool (n, k), or None where there are none."""
        return xp.isinf(self.logits) if self.masked else None


Weights = tuple[list[Any], Any]
"""What a row's logits and each of its terms are multiplied by, (n, 1) or a number each, and the rows that have some."""


class Weighing(Protocol):
    """What the logits and the terms of each row are multiplied by."""

    @property
    def reads(self) -> frozenset[str]:
        """What of a row it reads: "atypicality", "margin"."""
        ...

    def __call__(self, xp: Xp, rows: Rows) -> Weights:
        """Weights of the logits and of every term, and the rows (n, 1) that have them, or None."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same weights for all rows; one alone is temperature scaling."""

    values: tuple[float, ...]
    reads = frozenset[str]()

    def __call__(self, xp: Xp, rows: Rows) -> Weights:
        """The numbers."""
        return list(self.values), None


@dataclass(frozen=True)
class Given:
    """Multipliers that came with the rows."""

    reads = frozenset[str]()

    def __call__(self, xp: Xp, rows: Rows) -> Weights:
        """Multipliers (n, 1)."""
        return [rows.multiplier], None


@dataclass(frozen=True)
class ByGroup:
    """A multiplier by quantile group of atypicality; a group without calibration rows has none."""

    edges: Any  # (m,)
    multipliers: Any  # (m + 1,)
    seen: Any  # bool (m + 1,)
    reads = frozenset({"atypicality"})

    def __call__(self, xp: Xp, rows: Rows) -> Weights:
        """Multipliers (n, 1), and the rows whose group was seen."""
        group = xp.searchsorted(self.edges, rows.atypicality)
        return [self.multipliers[group]], self.seen[group]


@dataclass(frozen=True)
class Quadratic:
    """Quadratics with interaction of standardised covariates, in the calibration rows' range where `limits` say."""

    names: tuple[str, ...]  # of "atypicality", "margin" and "ambiguity"
    powers: tuple[tuple[int, ...], ...]  # covariates that each column multiplies: (), (0,), (1,), (0, 0), ...
    coefficients: tuple[tuple[float, ...], ...]  # of the logits, then of each term: of its columns, the first of all
    centers: tuple[float, ...]
    scales: tuple[float, ...]
    lows: tuple[float, ...] | None  # with `highs` the range of each covariate
    highs: tuple[float, ...] | None
    limits: tuple[float, float] | None  # range of the logits' weight
    numbers: Any  # int (k,)

    reads = frozenset[str]()
    """Names of the covariates that a coefficient other than 0 multiplies; without any all weights are numbers."""
    _used: ClassVar[tuple[Any, ...]] = ()
    """The first of each coefficients, and the others but for zeros with what they multiply."""

    def __post_init__(self) -> None:
        """Work out once what every block of rows asks for."""
        pairs = ((one[0], zip(self.powers[1:], one[1:], strict=False)) for one in self.coefficients)
        used = tuple((first, [(power, weight) for power, weight in others if weight]) for first, others in pairs)
        read = frozenset(self.names[j] for _, others in used for power, _ in others for j in power)
        object.__setattr__(self, "_used", used)
        object.__setattr__(self, "reads", read)

    def __call__(self, xp: Xp, rows: Rows) -> Weights:
        """Weights (n, 1)."""
        read = self.reads
        return self.at(xp, {name: self._covariate(xp, name, rows) for name in self.names if name in read}), None

    def at(self, xp: Xp, values: Mapping[str, Any]) -> list[Any]:
        """Weights (n, 1) of covariates (n, 1) by name; numbers where they have none."""
        x = {j: self._standardised(xp, j, values[name]) for j, name in enumerate(self.names) if name in values}
        first, *others = (self._polynomial(x, *one) for one in self._used)
        if self.limits is not None and not isinstance(first, float):
            first = _held(xp, first, *self.limits)
        return [first, *others]

    def _polynomial(self, x: Mapping[int, Any], first: Any, others: list[tuple[tuple[int, ...], float]]) -> Any:
        for power, coefficient in others:
            first = first + coefficient * (x[power[0]] if len(power) == 1 else x[power[0]] * x[power[1]])
        return first

    def _covariate(self, xp: Xp, name: str, rows: Rows) -> Any:
        return margins(xp, rows.logits, self.numbers) if name == "margin" else getattr(rows, name)

    def _standardised(self, xp: Xp, j: int, value: Any) -> Any:
        if self.lows is not None and self.highs is not None:
            value = _held(xp, value, self.lows[j], self.highs[j])
        return (value - self.centers[j]) / self.scales[j]


def _held(xp: Xp, values: Any, low: float, high: float) -> Any:
    values = xp.where(values > low, values, low)
    return xp.where(values < high, values, high)


class Field(Protocol):
    """The matrix of a term: what is added to a row's multiplied logits, times a weight.

    One that reads more than logits has an attribute `reads`, such as ``frozenset({"densities"})``.
    """

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Any:
        """A matrix (n, k) from logits less their row's maximum, in which hidden entries are 0."""
        ...


@dataclass(frozen=True)
class LogDensity:
    """Class log-densities, their spread held to that of the calibration rows."""

    reach: float | None
    reads = frozenset({"densities"})

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Any:
        """The matrix (n, k)."""
        return within(xp, below_top(xp, rows.densities, top=rows.nearest), self.reach)


@dataclass(frozen=True)
class Rank:
    """Minus the logarithm of a class's place in its row, 1 for the largest logit, rounded down to a power of 2.

    Classes with equal logits share the first of their places.
    """

    places: tuple[int, ...]  # after which the power rises: 1, 3, 7, ..., less than the number of classes

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Any:
        """The matrix (n, k)."""
        largest = largest_of(xp, rows.logits, self.places[-1])
        reached = sum(_counts(xp, rows.logits < largest[:, m - 1 : m]) for m in self.places)
        return -math.log(2.0) * xp.astype(reached, xp.float64)


def _counts(xp: Xp, mask: Any) -> Any:
    """1 where a mask is true; a byte each where bytes can be summed: six masks in .6 of the time."""
    return mask.view(np.int8) if isinstance(mask, np.ndarray) else xp.astype(mask, xp.int32)


@dataclass(frozen=True)
class Top:
    """``exp(multiplier (z - max z))``: 1 at the largest logit, small elsewhere."""

    multiplier: float

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Any:
        """The matrix (n, k)."""
        return xp.exp(self.multiplier * below)


@dataclass(frozen=True)
class Neighbours:
    """Weighted means over similar classes."""

    whole: Any = None  # (k, k), with the weights of each class's mean in a column
    columns: tuple[Any, ...] = ()  # otherwise int (k,) each: the most similar class of each, the next one, and so on
    weights: tuple[Any, ...] = ()  # (k,) each: theirs
    sparse: Any = None  # csr_array (k, k), the same for NumPy: of 1000 classes a product takes a sixth of the time

    def __call__(self, xp: Xp, values: Any) -> Any:
        """Means (n, k) of values (n, k)."""
        if self.whole is not None:
            return values @ self.whole
        if self.sparse is not None and isinstance(values, np.ndarray):
            weights, means = self.sparse.astype(values.dtype, copy=False), np.empty_like(values)
            for start in range(0, len(values), SPARSE_ROWS):
                means[start : start + SPARSE_ROWS] = (weights @ values[start : start + SPARSE_ROWS].T).T
            return means
        return sum(
            xp.take(values, one, axis=1) * weight for one, weight in zip(self.columns, self.weights, strict=True)
        )


@dataclass(frozen=True)
class SimilarLogits:
    """``K z - z``: the mean logit of similar classes, less a class's own; masked classes are left out of the mean."""

    similar: Neighbours

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Any:
        """The matrix (n, k)."""
        if hidden is None:
            mean = self.similar(xp, below)
            mean -= below
            return mean
        share = self.similar(xp, xp.astype(~hidden, below.dtype))
        mean = self.similar(xp, below) / xp.where(share > 0, share, 1.0)
        return xp.where(share > 0, mean - below, 0.0)


@dataclass(frozen=True)
class SimilarProbabilities:
    """``log(K' p + e)``, p the softmax of the multiplied logits: how probable the classes are that resemble a class."""

    similar: Neighbours
    multiplier: float
    floor: float

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Any:
        """The matrix (n, k)."""
        return xp.log(self.similar(xp, softmax(xp, self.multiplier * below, hidden)) + self.floor)


@dataclass(frozen=True)
class ClassMixing:
    """``W (z - o)``, o a point between a row's maximum and its mean, at the part `middle` of the way."""

    weights: Any  # the diagonal of W (k,), or W transposed (k, k)
    middle: float

    def __call__(self, xp: Xp, below: Any, hidden: Any) -> Any:
        """The matrix (n, k)."""
        centred = below - self.middle * mean_of_shown(xp, below, hidden)
        if hidden is not None:
            centred = xp.where(hidden, 0.0, centred)
        return centred * self.weights if self.weights.ndim == 1 else centred @ self.weights


@dataclass(frozen=True)
class LogitModel:
    """``softmax(w_0 z + sum_t w_t M_t + W (z - o) + S)``: every parametric recalibrator."""

    weighing: Weighing
    terms: tuple[Field, ...] = ()
    mixing: ClassMixing | None = None
    scores: Any = None  # (k,)
    excluded: Any = None  # bool (k,), classes whose prior is 0; a row may have no other
    reach: float | None = None  # largest spread of a row of logits; a wider one is shrunk to it
    floor: float = 0.0  # smallest probability of a class that is not masked

    reads = frozenset[str]()
    """What of a row it reads beside the logits: "atypicality" and "densities" are the costly ones."""

    def __post_init__(self) -> None:
        """Work out once what every block of rows asks for."""
        read = self.weighing.reads.union(*(getattr(term, "reads", ()) for term in self.terms))
        object.__setattr__(self, "reads", frozenset(read))

    def __call__(self, xp: Xp, rows: Rows) -> Recalibrated:
        """Probabilities of a block of rows."""
        hidden = rows.hidden(xp)
        below = within(xp, below_top(xp, rows.logits, hidden, rows.top), self.reach)
        (multiplier, *weights), known = self.weighing(xp, rows)
        predicted = below * multiplier
        if self.scores is not None:
            predicted += self.scores
        for term, weight in zip(self.terms, weights, strict=True):
            predicted += weight * term(xp, rows, below, hidden)
        if self.mixing is not None:
            predicted += self.mixing(xp, below, hidden)
        if self.excluded is not None:
            hidden = xp.isinf(rows.logits) | self.excluded
            known = xp.any(~hidden, axis=1, keepdims=True)
        return xp.astype(softmax(xp, predicted, hidden, self.floor), rows.logits.dtype, copy=False), known


@dataclass(frozen=True)
class Mixture:
    """Shares of several temperatures, added in the type of the logits: ensemble temperature scaling."""

    multipliers: tuple[float, ...]
    shares: tuple[float, ...]
    reads = frozenset[str]()

    def __call__(self, xp: Xp, rows: Rows) -> Recalibrated:
        """Probabilities of a block of rows."""
        hidden = rows.hidden(xp)
        below, mixed = below_top(xp, rows.logits, hidden, rows.top), None
        for multiplier, share in zip(self.multipliers, self.shares, strict=True):
            part = xp.astype(softmax(xp, below * multiplier, hidden), rows.logits.dtype, copy=False) * share
            mixed = part if mixed is None else mixed + part
        return mixed, None


@dataclass(frozen=True)
class ContentFree:
    """Softmax of probabilities divided by those of content-free inputs (k,)."""

    probabilities: Any
    reads = frozenset[str]()

    def __call__(self, xp: Xp, rows: Rows) -> Recalibrated:
        """Probabilities of a block of rows."""
        hidden = rows.hidden(xp)
        probs = softmax(xp, below_top(xp, rows.logits, hidden, rows.top), hidden)
        return xp.astype(softmax(xp, probs / self.probabilities, hidden), rows.logits.dtype, copy=False), None
