"""What a head remembers of held-out rows: how rare they were, and how often it erred at each confidence."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.formula import Scale
from atypicality.stored import Record, kinds, need
from atypicality.validation import check_number, check_vector, warn

__all__ = [
    "BOUND_LEVEL",
    "GRID_SIZE",
    "AbstentionRule",
    "Drift",
    "QuantileScale",
    "error_bound",
    "warn_of_training_rows",
]

GRID_SIZE = 1025
"""Most values that a stored curve keeps: enough for a quantile to a thousandth, small enough for a graph."""
TAIL = 0.99
CHANCE = 1e-6
BOUND_LEVEL = 0.95
FIRST_SHARE = 0.1
N_COUNTS = 100
"""Fixed-sequence tests of a risk: from a tenth of the rows to all of them. In worlds with known risk a tenth kept more
rows than a start at the fewest rows that can pass, which often fails by bad luck, and than a start at a third."""
LOOKED_AT = 32

Vector = NDArray[np.float64]


@dataclass(eq=False, repr=False)
class QuantileScale:
    """The share of held-out rows at or below a value: their distribution at up to 1025 points, joined by lines.

    Attributes
    ----------
    values, levels : ndarray of shape (m,), m at most 1025
        Strictly increasing values, and the share of held-out rows at or below each.
    n_rows : int

    Examples
    --------
    >>> scale = QuantileScale.from_rows([1.0, 2.0, 2.0, 4.0])
    >>> scale([0.5, 1.0, 2.0, 3.0, 9.0])
    array([0.   , 0.25 , 0.75 , 0.875, 1.   ])
    """

    values: Annotated[Vector, kinds.Array("v", kinds.FINITE, kinds.INCREASING)]
    levels: Annotated[Vector, kinds.Array("v", kinds.UNIT, kinds.INCREASING)]
    n_rows: Annotated[int, kinds.Integer(1)]

    @classmethod
    def from_rows(cls, values: ArrayLike) -> Self:
        """Learn from held-out values (n,), at least one."""
        ordered = np.sort(check_vector(values, "values"))
        chosen = np.round(np.linspace(0, ordered.size - 1, min(ordered.size, GRID_SIZE))).astype(np.intp)
        kept = np.unique(ordered[chosen])
        return cls(kept, np.searchsorted(ordered, kept, side="right") / ordered.size, ordered.size)

    def __call__(self, values: ArrayLike) -> Vector:
        """Quantiles (n,) in [0, 1]: 0 below every held-out value, 1 from the largest on."""
        found: Vector = self.formula().quantiles(np, check_vector(values, "values"))
        return found

    def formula(self) -> Scale:
        """The parameters of a quantile; see `atypicality.formula`."""
        return Scale.of(self.values, self.levels)

    def beyond(self, values: Vector) -> NDArray[np.bool_]:
        """Which values (n,) are larger than every held-out value: nothing was measured there.

        >>> QuantileScale.from_rows([1.0, 4.0]).beyond(np.array([4.0, 4.5])).tolist()
        [False, True]
        """
        return np.asarray(values > self.values[-1])

    def _check_stored(self) -> None:
        need(1 <= self.values.size <= GRID_SIZE, f"there must be 1 to {GRID_SIZE} values.")
        need(self.levels[-1] == 1 and self.levels[0] > 0, "levels must rise from above 0 to 1.")
        need(self.n_rows >= self.values.size, "there must be at least as many rows as values.")

    _stored = Record(check=_check_stored)


class Drift:
    """How new rows' atypicality sits on the scale of held-out rows; needs no labels.

    Attributes
    ----------
    share_beyond : float
        Share of new rows more atypical than every held-out row; about 1 / (n + 1) is expected.
    share_tail : float
        Share of new rows among the most atypical 1 % of the held-out distribution. Rows tied with held-out rows at its
        edge count in part: as much of each as of those held-out rows belongs to the 1 %.
    expected_tail : float
        What `share_tail` is without drift, about: 0.01, or 1 / (n + 1) for fewer than 99 held-out rows.
    distance : float
        Largest gap between the two distribution functions (Kolmogorov and Smirnov's statistic), 0 to 1. Exact up to
        1025 held-out rows, to a thousandth for more.
    chance : float
        Of counts this large in the tail without drift: a p-value, valid for continuous, tied and constant values.
    significant : bool
        Whether `chance` is below one in a million and `share_tail` at least twice `expected_tail`.

    Examples
    --------
    >>> scale = QuantileScale.from_rows(np.repeat(np.arange(10.0), 50))
    >>> usual, moved = Drift(scale, np.arange(10.0)), Drift(scale, np.full(200, 9.0))
    >>> round(usual.share_tail, 3), round(moved.share_tail, 3), moved.significant
    (0.01, 0.1, True)
    """

    def __init__(self, scale: QuantileScale, atypicality: Vector) -> None:
        values = np.sort(atypicality)
        self.n_rows = n = values.size
        place = int(np.searchsorted(scale.levels, TAIL))  # of the first held-out value with at most 1 % above it
        level, below = scale.levels[place], scale.levels[place - 1] if place else 0.0
        above, reaching = (n - int(np.searchsorted(values, scale.values[place], side)) for side in ("right", "left"))
        in_part = (level - TAIL) / (level - below)
        self.share_beyond = float(scale.beyond(values).mean()) if n else 0.0
        self.share_tail = float(above + in_part * (reaching - above)) / max(n, 1)
        self.expected_tail = max(1 - TAIL, 1 / (scale.n_rows + 1))
        self.distance = _largest_gap(scale, values) if n else 0.0
        chances = [_tail_chance(*counts, scale.n_rows) for counts in ((above, n, 1 - level), (reaching, n, 1 - below))]
        self.chance = min(1.0, 2 * min(chances))  # twice: the smaller of two
        self.significant = self.chance < CHANCE and self.share_tail >= 2 * self.expected_tail

    def message(self) -> str:
        """One sentence with the numbers."""
        return (
            f"{self.share_tail:.1%} of these {self.n_rows} rows are more atypical than {TAIL:.0%} of the held-out "
            f"calibration rows ({self.expected_tail:.1%} expected), and {self.share_beyond:.1%} more than any of them: "
            "the data has drifted. Confidence and coverage are not guaranteed there; look at those rows, or refit on "
            "newer data."
        )


def _tail_chance(count: int, n: int, held_out_share: float, n_held_out: int) -> float:
    """Chance of `count` or more of n new rows above a held-out value that a share of the held-out rows exceeds.

    That value is an order statistic, so the chance of a new row to exceed it follows a beta law, and the count a
    beta-binomial one. With ties, or for a part of the distribution that is fixed, it is an upper bound (Thatcher 1964).
    """
    from scipy.stats import betabinom

    exceeding = round(held_out_share * n_held_out)
    if count == 0 or exceeding == n_held_out:
        return 1.0
    return float(betabinom(n, exceeding + 1, n_held_out - exceeding).sf(count - 1))


def _largest_gap(scale: QuantileScale, values: Vector) -> float:
    """Between the distribution functions, at each held-out value and just before it: between them one is constant."""
    at = np.searchsorted(values, scale.values, side="right") / values.size
    before = np.searchsorted(values, scale.values, side="left") / values.size
    return float(max(np.abs(scale.levels - at).max(), np.abs(np.r_[0.0, scale.levels[:-1]] - before).max()))


def error_bound(errors: NDArray[np.intp], n: NDArray[np.intp], level: float = BOUND_LEVEL) -> Vector:
    """Upper confidence bound of an error rate after `errors` of `n` (Clopper and Pearson's, one-sided).

    >>> float(error_bound(np.array([0]), np.array([58]))[0]) < 0.051
    True
    """
    from scipy.special import betaincinv

    with np.errstate(invalid="ignore"):
        bound = betaincinv(errors + 1.0, np.maximum(n - errors, 1e-12), level)
    return np.where(errors >= n, 1.0, bound)


@dataclass(eq=False, repr=False)
class AbstentionRule:
    """Which predictions to keep so that at most a stated share of them is wrong, from held-out confidence.

    The threshold is found by fixed-sequence testing: counts of the most confident held-out rows, fixed without looking
    at labels, are tested from few rows to all of them, each at 5 %, and the first count whose 95 % upper bound of the
    error rate is above `max_risk` ends the sequence. The last count that passed is taken. The 95 % holds for the
    choice, because a wrong choice must pass the first test that should fail (Maurer, Hothorn and Lehmacher 1995; as
    risk control: Angelopoulos et al. 2021, "Learn then test"). The counts run in steps of a hundredth from a tenth of
    the rows, or from the fewest rows that could pass without an error, log 0.05 / log(1 - max_risk), where these are
    more.

    Attributes
    ----------
    confidence : ndarray of shape (m,), m at most 1025
        Decreasing thresholds: a prediction is kept when its confidence is at least the threshold.
    kept, errors : ndarray of int, of shape (m,)
        Held-out rows kept at each threshold, and how many of them were wrong.

    Notes
    -----
    Thresholds lie just above the most confident row that is left out: given that row, those above it are a sample of
    all rows above it, so that the number of errors is binomial, with ties too. The 95 % is exact where the error rate
    of the kept rows crosses `max_risk` once as more are kept, as it does where it rises.

    Examples
    --------
    >>> rule = AbstentionRule.from_rows(np.linspace(0.5, 1, 500), np.linspace(0.5, 1, 500) > 0.6)
    >>> 0.55 < rule.threshold(0.05) < 0.65
    True
    """

    confidence: Annotated[Vector, kinds.Array("a", kinds.UNIT, kinds.DECREASING)]
    kept: Annotated[NDArray[np.intp], kinds.Counts("a", kinds.POSITIVE, kinds.INCREASING)]
    errors: Annotated[NDArray[np.intp], kinds.Counts("a", kinds.NOT_NEGATIVE)]

    @classmethod
    def from_rows(cls, confidence: ArrayLike, correct: ArrayLike) -> Self:
        """Learn the risk-coverage curve from held-out confidence (n,) and whether each prediction was right (n,)."""
        values = check_vector(confidence, "confidence")
        wrong = 1 - check_vector(correct, "correct", n_rows=values.size)
        order = np.argsort(-values, kind="stable")
        ordered, errors = values[order], np.cumsum(wrong[order])
        last = np.flatnonzero(np.append(np.diff(ordered) < 0, True))  # equal confidence is kept or left together
        chosen = last[np.unique(np.round(np.linspace(0, last.size - 1, min(last.size, GRID_SIZE))).astype(np.intp))]
        left_out = np.append(ordered, -1.0)[chosen + 1]  # -1: at the last threshold, 0, nobody is
        thresholds = np.maximum(np.nextafter(left_out, 2.0), 0.0)
        return cls(thresholds, (chosen + 1).astype(np.intp), np.round(errors[chosen]).astype(np.intp))

    def _check_stored(self) -> None:
        need(1 <= self.kept.size <= GRID_SIZE, f"there must be 1 to {GRID_SIZE} thresholds.")
        among = (self.errors <= self.kept).all() and (np.diff(self.errors) >= 0).all()
        need(among, "errors must be among the rows kept.")

    _stored = Record(check=_check_stored)

    def threshold(self, max_risk: float) -> float:
        """Smallest confidence to keep for an error rate of at most `max_risk`; infinite when no count qualifies."""
        max_risk = check_number(max_risk, "max_risk", low=0, high=1, low_open=True, high_open=True)
        tested = self._tested(max_risk)
        failed = error_bound(self.errors[tested], self.kept[tested]) > max_risk
        passed = tested[: failed.argmax() if failed.any() else failed.size]
        return float(self.confidence[passed[-1]]) if passed.size else math.inf

    def _tested(self, max_risk: float) -> NDArray[np.intp]:
        """Positions of the counts to test, fewest rows first; no error enters here, or the bound would not hold."""
        n = int(self.kept[-1])
        fewest = math.log(1 - BOUND_LEVEL) / math.log1p(-max_risk)
        counts = np.ceil(np.linspace(min(max(fewest, FIRST_SHARE * n), n), n, N_COUNTS))
        return np.unique(np.searchsorted(self.kept, counts))


def warn_of_training_rows(train: Any, held_out: Any) -> None:
    """Warn where most held-out embeddings (n, d) are, number for number, those of training rows (m, d).

    Some rows are looked at, along the column that tells them apart best. Columns of few values, where equal rows are no
    surprise, and training rows in files, which another pass would cost too much, are not looked at.
    """
    if (
        isinstance(train, np.memmap)
        or not isinstance(train, np.ndarray)
        or not isinstance(held_out, np.ndarray)
        or train.shape[1] != held_out.shape[1]
        or not len(held_out)
    ):
        return
    sample = np.asarray(held_out[np.linspace(0, len(held_out) - 1, min(len(held_out), LOOKED_AT)).astype(int)])
    distinct = (np.diff(np.sort(sample, axis=0), axis=0) > 0).sum(axis=0) + 1
    column = int(distinct.argmax())
    if distinct[column] < 0.9 * len(sample) or len(sample) < LOOKED_AT // 2:
        return
    alike = train[np.isin(train[:, column], sample[:, column])].astype(sample.dtype, copy=False)
    known = {row.tobytes() for row in alike}
    share = float(np.mean([row.tobytes() in known for row in sample]))
    if share > 0.5:
        warn(
            f"calibration should hold rows that the model never trained on; {share:.0%} of {len(sample)} looked at are "
            "rows of train too. Confidence and coverage will be too high for new rows. Give held-out rows."
        )
