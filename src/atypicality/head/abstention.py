"""Abstention: which predictions to keep so that at most a stated share of them is wrong."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.arrays import to_host
from atypicality.head.quantiles import GRID_SIZE
from atypicality.metrics.laws import at_most, quantile
from atypicality.stored import Record, kinds, need
from atypicality.validation import check_number, check_vector, warn

__all__ = ["LOST_SHARE", "AbstentionRule", "clear_majority", "lost_at", "most_errors"]

LEVEL = 0.05  # chance that more than the allowed share of the kept rows is wrong
LOST_SHARE, LOST_LEVEL = 0.25, 0.05  # of a class that is not called lost but with that chance, by bad luck
FIRST_SHARE = 0.1  # of the rows, where the sequence of tests begins if nothing is known of the risk to expect
N_COUNTS = 100  # tests at most, from the first count to all rows
OFF = (2 / 3, 1.0, 3 / 2, 9 / 4)
"""Multiples of the error rates to expect: the first count is the most likely to pass on average over them."""

Vector = NDArray[np.float64]
Counts = NDArray[np.intp]


def most_errors(n: Counts, max_risk: float, level: float = LEVEL) -> Counts:
    """Most errors among `n` rows at which an error rate above `max_risk` is rejected at `level`; -1 where none are.

    The upper confidence bound of the error rate (Clopper and Pearson's, one-sided) is then at most `max_risk`.

    >>> most_errors(np.array([58, 59, 100]), 0.05).tolist()
    [-1, 0, 1]
    """
    most = quantile(level, n, max_risk)
    return np.where(at_most(most, n, max_risk) <= level, most, most - 1).astype(np.intp)


def clear_majority(counts: Counts) -> Counts:
    """Fewest rows of each class (k,) that are more than half of its `counts` (k,), and more than chance; or one more.

    If a quarter of every class is meant, that many rows of any of the k classes have a chance of at most 5 %.

    >>> clear_majority(np.array([2, 3, 7, 24])).tolist()
    [3, 4, 6, 13]
    """
    likely = quantile(1 - LOST_LEVEL / len(counts), np.maximum(counts, 1), LOST_SHARE)
    return np.maximum(likely, np.asarray(counts) // 2).astype(np.intp) + 1


def lost_at(score: Vector, predicted: Counts, labels: Counts, n_classes: int) -> Vector:
    """The largest threshold of the score (n,) at which each class (k,) is lost; -1 where it is at none.

    A class is lost where a clear majority of its rows is kept, with a score of at least the threshold, and predicted as
    another class.

    >>> score, labels = np.linspace(0.99, 0.9, 10), np.repeat([1, 0], [8, 2])
    >>> lost_at(score, np.zeros(10, int), labels, 2).round(2)
    array([-1.  ,  0.94])
    """
    wrong = np.flatnonzero(predicted != labels)
    order = wrong[np.lexsort((-score[wrong], labels[wrong]))]
    needed, found = clear_majority(np.bincount(labels, minlength=n_classes)), np.full(n_classes, -1.0)
    lost = np.flatnonzero(np.bincount(labels[wrong], minlength=n_classes) >= needed)
    first = np.searchsorted(labels[order], lost)
    found[lost] = score[order[first + needed[lost] - 1]]
    return found


@dataclass(eq=False, repr=False)
class AbstentionRule:
    """Which predictions to keep so that at most a stated share of them is wrong, from held-out confidence.

    The threshold is found by fixed-sequence testing: counts of the most confident held-out rows, fixed without looking
    at their labels, are tested from few rows to all of them, each at 5 %, and the first count whose 95 % upper bound of
    the error rate is above `max_risk` ends the sequence. The last count that passed is taken. The 95 % holds for the
    choice, because a wrong choice must pass the first test that should fail (Maurer, Hothorn and Lehmacher 1995; as
    risk control: Angelopoulos et al. 2021, "Learn then test").

    The sequence begins at the count that is most likely to pass by the error rates to expect, which the confidence of
    recalibration rows tells, or without them at a tenth of the rows: a start with few rows fails by one error
    of bad luck, and one with many by their risk. It goes on at the fewest rows that allow one error more.

    Attributes
    ----------
    confidence : ndarray of shape (m,), m at most 1025
        Decreasing thresholds: a prediction is kept when its confidence is at least the threshold.
    kept, errors : ndarray of int, of shape (m,)
        Held-out rows kept at each threshold, and how many of them were wrong.
    expected : ndarray of shape (m,), or None
        Error rate to expect where as large a share of the rows is kept.
    lost_at : ndarray of shape (k,), or None
        Largest threshold at which most held-out rows of each class are kept as another class, -1 where there is none.

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
    expected: Annotated[Vector | None, kinds.Later(kinds.optional(kinds.Array("a", kinds.UNIT)), absent=None)] = None
    lost_at: Annotated[Vector | None, kinds.Later(kinds.optional(kinds.Array("K", kinds.FINITE)), absent=None)] = None

    @classmethod
    def from_rows(cls, confidence: ArrayLike, correct: ArrayLike, *, others: ArrayLike | None = None) -> Self:
        """Learn the risk-coverage curve from held-out confidence (n,) and whether each prediction was right (n,).

        Confidence of `others` (k,), rows that are not held out, tells where the tests should begin. It may be anything:
        the guarantee is of the held-out rows.
        """
        values = check_vector(confidence, "confidence")
        wrong = 1 - check_vector(correct, "correct", n_rows=values.size)
        order = np.argsort(-values, kind="stable")
        ordered, errors = values[order], np.cumsum(wrong[order])
        last = np.flatnonzero(np.append(np.diff(ordered) < 0, True))  # equal confidence is kept or left together
        chosen = last[np.unique(np.round(np.linspace(0, last.size - 1, min(last.size, GRID_SIZE))).astype(np.intp))]
        left_out = np.append(ordered, -1.0)[chosen + 1]  # -1: at the last threshold, 0, nobody is
        thresholds = np.maximum(np.nextafter(left_out, 2.0), 0.0)
        kept = (chosen + 1).astype(np.intp)
        expected = None if others is None else _expected(check_vector(others, "others"), kept / values.size)
        return cls(thresholds, kept, np.round(errors[chosen]).astype(np.intp), expected)

    def _check_stored(self) -> None:
        need(1 <= self.kept.size <= GRID_SIZE, f"there must be 1 to {GRID_SIZE} thresholds.")
        among = (self.errors <= self.kept).all() and (np.diff(self.errors) >= 0).all()
        need(among, "errors must be among the rows kept.")

    _stored = Record(check=_check_stored)

    def threshold(self, max_risk: float) -> float:
        """Smallest confidence to keep for an error rate of at most `max_risk`; infinite when no count qualifies."""
        max_risk = check_number(max_risk, "max_risk", low=0, high=1, low_open=True, high_open=True)
        tested = self._tested(max_risk)
        failed = ~self._pass(max_risk, tested)
        passed = tested[: failed.argmax() if failed.any() else failed.size]
        return float(self.confidence[passed[-1]]) if passed.size else math.inf

    def warn_where_none(self, accepted: Any, max_risk: float) -> None:
        """Say why where no row (n,) is accepted because no threshold meets `max_risk`."""
        if accepted is None or to_host(accepted).any() or (why := self.why_none(max_risk)) is None:
            return
        warn(f"nothing is accepted: {why}")

    def why_none(self, max_risk: float) -> str | None:
        """Why no threshold meets `max_risk`, and which risk, or about how many rows, would do; None where one does."""
        if self.threshold(max_risk) < math.inf:
            return None
        n, fewest = int(self.kept[-1]), math.ceil(_fewest(max_risk))
        why = f"no threshold meets max_risk={max_risk:g} with {n:,} held-out rows. "
        if n < fewest:
            return f"{why}That takes at least {fewest:,} rows without an error; {self._enough(max_risk)}"
        first = self._first(max_risk)
        why += f"Of the {self.kept[first]:,} most confident {self._wrong(first)} wrong; {self._enough(max_risk)}"
        needed = _needed(int(self.kept[first]), int(self.errors[first]), max_risk)
        if needed is None:
            return f"{why} More are enough only where a smaller share than {max_risk:g} of the most confident is wrong."
        return (
            why + f" About {_round_up(needed * n / self.kept[first]):,} held-out rows are enough if they err as rarely."
        )

    def least_risk(self, above: float = 0.0) -> float | None:
        """Smallest risk above that given, in whole percent, at which something is kept; None where nothing is."""
        percents = range(math.floor(100 * above) + 1, 100)
        some = bisect_left(percents, True, key=lambda one: bool(self._pass(one / 100).any()))  # at a larger risk too
        risks = (one / 100 for one in percents[some:])
        return next((risk for risk in risks if self._pass(risk, self._first(risk))), None)

    def _pass(self, max_risk: float, places: Any = slice(None)) -> NDArray[np.bool_]:
        """Whether the upper bound of the error rate at these counts is at most `max_risk`."""
        return np.asarray(at_most(self.errors[places], self.kept[places], max_risk) <= LEVEL)

    def _wrong(self, place: int) -> str:
        count = int(self.errors[place])
        return f"{count:,} {'is' if count == 1 else 'are'}"

    def _enough(self, max_risk: float) -> str:
        """What to do, with the smallest risk, in whole percent, at which something is accepted."""
        found = self.least_risk(max_risk)
        risk = "" if found is None else f", or allow more risk, at least {found:g}"
        return f"calibrate with more rows{risk}."

    def _tested(self, max_risk: float) -> Counts:
        """Positions of the counts to test, fewest rows first; no error enters here, or the bound would not hold."""
        allowed, last = most_errors(self.kept, max_risk), self.kept.size - 1
        first = self._first(max_risk, allowed)
        more = first + 1 + np.flatnonzero(np.diff(allowed[first:]) > 0)  # the fewest rows with one error more
        step, tested = (self.kept[-1] - self.kept[first]) / N_COUNTS, [first]
        for place in more.tolist():
            if self.kept[place] - self.kept[tested[-1]] >= step:
                tested.append(place)
        return np.array(tested if tested[-1] == last else [*tested, last], np.intp)

    def _first(self, max_risk: float, allowed: Counts | None = None) -> int:
        if self.expected is not None and self.kept[-1] >= _fewest(max_risk):
            allowed = most_errors(self.kept, max_risk) if allowed is None else allowed
            rates = np.minimum(np.multiply.outer(OFF, self.expected), 1.0)
            return int(np.argmax(np.sum(at_most(allowed, self.kept, rates), axis=0)))
        n = int(self.kept[-1])
        return int(np.searchsorted(self.kept, math.ceil(min(max(_fewest(max_risk), FIRST_SHARE * n), n))))


def _expected(confidence: Vector, shares: Vector) -> Vector:
    """Mean of one less the confidence among the most confident `shares` of the rows (m,)."""
    missing = 1 - np.sort(np.clip(confidence, 0, 1))[::-1]
    place = np.arange(1, missing.size + 1)
    return np.interp(shares, place / missing.size, np.cumsum(missing) / place).clip(0, 1)


def _fewest(max_risk: float) -> float:
    """Rows that could pass without an error."""
    return math.log(LEVEL) / math.log1p(-max_risk)


def _needed(n: int, errors: int, max_risk: float) -> int | None:
    """Fewest rows, of those tried, that pass with the error rate of these `n`; None where no number of them does."""
    if errors >= max_risk * n:
        return None
    tried = np.unique(np.geomspace(n, 1e7, 2000).astype(np.intp))
    passed = at_most(np.ceil(tried * (errors / n)), tried, max_risk) <= LEVEL
    return int(tried[passed.argmax()]) if passed.any() else None


def _round_up(number: float) -> int:
    """To two digits, upwards."""
    unit: int = 10 ** max(math.floor(math.log10(number)) - 1, 0)
    return math.ceil(number / unit) * unit
