"""Recalibrated probabilities of one block of rows: a multiplier of the logits, terms that are added, and a softmax."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from atypicality.formula.rows import Xp, below_top, margins, mean_of_shown, softmax, within

__all__ = [
    "ByGroup",
    "ClassMixing",
    "Constant",
    "ContentFree",
    "Given",
    "LogDensity",
    "LogitModel",
    "Mixture",
    "Quadratic",
    "Recalibrated",
    "Rows",
]

Recalibrated = tuple[Any, Any]
"""Probabilities (n, k) in the type of the logits, and the rows (n, 1) that have some, or None where all of them do."""


@dataclass(frozen=True)
class Rows:
    """One block of rows, as formulas read it.

    Parameters
    ----------
    logits : array of shape (n, k)
        Float32 or float64; -inf masks a class.
    atypicality : array of shape (n, 1), optional
    densities : array of shape (n, k), optional
        Class log-densities in the order of the logits' columns.
    multiplier : array of shape (n, 1), optional
        Where each row's multiplier was worked out before.
    masked : bool, default=True
        False where no class is known to be masked, which saves a third of the passes; a runner on the host looks.
    """

    logits: Any
    atypicality: Any = None
    densities: Any = None
    multiplier: Any = None
    masked: bool = True

    def hidden(self, xp: Xp) -> Any:
        """Masked entries, bool (n, k), or None where there are none."""
        return xp.isinf(self.logits) if self.masked else None


class Multiplier(Protocol):
    """What the logits of each row are multiplied by."""

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Recalibrated:
        """Multipliers (n, 1) of rows with maximum 0, and the rows that have one, or None."""
        ...


@dataclass(frozen=True)
class Constant:
    """One multiplier for all rows: temperature scaling."""

    value: float

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Recalibrated:
        """The number."""
        return self.value, None


@dataclass(frozen=True)
class Given:
    """Multipliers that came with the rows."""

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Recalibrated:
        """Multipliers (n, 1)."""
        return rows.multiplier, None


@dataclass(frozen=True)
class ByGroup:
    """A multiplier by quantile group of atypicality; a group without calibration rows has none.

    Parameters
    ----------
    edges : array of shape (m,)
    multipliers : array of shape (m + 1,)
    seen : array of bool, of shape (m + 1,)
    """

    edges: Any
    multipliers: Any
    seen: Any

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Recalibrated:
        """Multipliers (n, 1), and the rows whose group was seen."""
        group = xp.searchsorted(self.edges, rows.atypicality)
        return self.multipliers[group], self.seen[group]


@dataclass(frozen=True)
class Quadratic:
    """A quadratic with interaction of standardised covariates, held to the calibration rows' range where `limits` say.

    Parameters
    ----------
    names : tuple of {"atypicality", "margin"}
    powers : tuple of tuples of int
        Covariates that each column multiplies: (), (0,), (1,), (0, 0), ...
    coefficients : tuple of float
    centers, scales : tuple of float
    lows, highs : tuple of float, or None
        Range of each covariate.
    limits : pair of float, or None
        Range of the multiplier.
    numbers : array of int, of shape (k,)
    """

    names: tuple[str, ...]
    powers: tuple[tuple[int, ...], ...]
    coefficients: tuple[float, ...]
    centers: tuple[float, ...]
    scales: tuple[float, ...]
    lows: tuple[float, ...] | None
    highs: tuple[float, ...] | None
    limits: tuple[float, float] | None
    numbers: Any

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Recalibrated:
        """Multipliers (n, 1)."""
        values = {name: self._covariate(xp, name, rows) for name in self.names}
        return self.at(xp, values), None

    def at(self, xp: Xp, values: Mapping[str, Any]) -> Any:
        """Multipliers (n, 1) of covariates (n, 1) by name; a number where there are none."""
        x = [self._standardised(xp, j, values[name]) for j, name in enumerate(self.names)]
        total: Any = self.coefficients[0]
        for power, coefficient in zip(self.powers[1:], self.coefficients[1:], strict=True):
            term = x[power[0]] if len(power) == 1 else x[power[0]] * x[power[1]]
            total = total + coefficient * term
        return total if self.limits is None or not x else _held(xp, total, *self.limits)

    def _covariate(self, xp: Xp, name: str, rows: Rows) -> Any:
        return margins(xp, rows.logits, self.numbers) if name == "margin" else rows.atypicality

    def _standardised(self, xp: Xp, j: int, value: Any) -> Any:
        if self.lows is not None and self.highs is not None:
            value = _held(xp, value, self.lows[j], self.highs[j])
        return (value - self.centers[j]) / self.scales[j]


def _held(xp: Xp, values: Any, low: float, high: float) -> Any:
    values = xp.where(values > low, values, low)
    return xp.where(values < high, values, high)


class Term(Protocol):
    """What is added to a row's multiplied logits."""

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Any:
        """A matrix (n, k) from logits less their row's maximum, in which hidden entries are 0."""
        ...


@dataclass(frozen=True)
class LogDensity:
    """Class log-densities times a coefficient, their spread held to that of the calibration rows."""

    coefficient: float
    reach: float | None

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Any:
        """The term (n, k)."""
        return self.coefficient * within(xp, below_top(xp, rows.densities), self.reach)


@dataclass(frozen=True)
class ClassMixing:
    """``W (z - o)``, o a point between a row's maximum and its mean, at the part `middle` of the way.

    Parameters
    ----------
    weights : array of shape (k,), or (k, k)
        The diagonal of W, or W transposed.
    middle : float
    """

    weights: Any
    middle: float

    def __call__(self, xp: Xp, rows: Rows, below: Any, hidden: Any) -> Any:
        """The term (n, k)."""
        centred = below - self.middle * mean_of_shown(xp, below, hidden)
        if hidden is not None:
            centred = xp.where(hidden, 0.0, centred)
        return centred * self.weights if self.weights.ndim == 1 else centred @ self.weights


@dataclass(frozen=True)
class LogitModel:
    """``softmax(m z + terms + scores)``: temperature and vector scaling, scaling by group, atypicality-aware.

    Parameters
    ----------
    multiplier : Multiplier
    terms : tuple of Term
    scores : array of shape (k,), or None
    excluded : array of bool, of shape (k,), or None
        Classes whose prior is 0; a row may have no other.
    reach : float or None
        Largest spread of a row of logits; a wider one is shrunk to it.
    floor : float
        Smallest probability of a class that is not masked.
    """

    multiplier: Any
    terms: tuple[Any, ...] = ()
    scores: Any = None
    excluded: Any = None
    reach: float | None = None
    floor: float = 0.0

    def __call__(self, xp: Xp, rows: Rows) -> Recalibrated:
        """Probabilities of a block of rows."""
        hidden = rows.hidden(xp)
        below = below_top(xp, rows.logits, hidden)
        multiplier, known = self.multiplier(xp, rows, below, hidden)
        below = within(xp, below, self.reach)
        predicted = below * multiplier
        if self.scores is not None:
            predicted += self.scores
        for term in self.terms:
            predicted += term(xp, rows, below, hidden)
        if self.excluded is not None:
            hidden = xp.isinf(rows.logits) | self.excluded
            known = xp.any(~hidden, axis=1, keepdims=True)
        return xp.astype(softmax(xp, predicted, hidden, self.floor), rows.logits.dtype, copy=False), known


@dataclass(frozen=True)
class Mixture:
    """Shares of several temperatures, added in the type of the logits: ensemble temperature scaling."""

    multipliers: tuple[float, ...]
    shares: tuple[float, ...]

    def __call__(self, xp: Xp, rows: Rows) -> Recalibrated:
        """Probabilities of a block of rows."""
        hidden = rows.hidden(xp)
        below, mixed = below_top(xp, rows.logits, hidden), None
        for multiplier, share in zip(self.multipliers, self.shares, strict=True):
            part = xp.astype(softmax(xp, below * multiplier, hidden), rows.logits.dtype, copy=False) * share
            mixed = part if mixed is None else mixed + part
        return mixed, None


@dataclass(frozen=True)
class ContentFree:
    """Softmax of probabilities divided by those of content-free inputs (k,)."""

    probabilities: Any

    def __call__(self, xp: Xp, rows: Rows) -> Recalibrated:
        """Probabilities of a block of rows."""
        hidden = rows.hidden(xp)
        probs = softmax(xp, below_top(xp, rows.logits, hidden), hidden)
        return xp.astype(softmax(xp, probs / self.probabilities, hidden), rows.logits.dtype, copy=False), None
