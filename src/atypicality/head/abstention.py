"""Abstention: which predictions to keep so that at most a stated share of them is wrong."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.arrays import to_host
from atypicality.head.quantiles import GRID_SIZE
from atypicality.stored import Record, kinds, need
from atypicality.validation import check_number, check_vector, warn

__all__ = ["AbstentionRule", "error_bound"]

BOUND_LEVEL = 0.95
FIRST_SHARE = 0.1
N_COUNTS = 100
"""Fixed-sequence tests of a risk: from a tenth of the rows to all of them. In worlds with known risk a tenth kept more
rows than a start at the fewest rows that can pass, which often fails by bad luck, and than a start at a third."""

Vector = NDArray[np.float64]


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

    def warn_where_none(self, accepted: Any, max_risk: float) -> None:
        """Say why where no row (n,) is accepted because no threshold meets `max_risk`."""
        if accepted is None or to_host(accepted).any() or self.threshold(max_risk) < math.inf:
            return
        n, fewest = int(self.kept[-1]), math.ceil(_fewest(max_risk))
        first = self._tested(max_risk)[0]
        warn(
            f"nothing is accepted: no threshold meets max_risk={max_risk:g} with {n:,} held-out rows. "
            + (
                f"That takes at least {fewest:,} rows without an error; calibrate with more."
                if n < fewest
                else f"Of the {self.kept[first]:,} most confident {self.errors[first]:,} are wrong; allow more risk."
            )
        )

    def _tested(self, max_risk: float) -> NDArray[np.intp]:
        """Positions of the counts to test, fewest rows first; no error enters here, or the bound would not hold."""
        n = int(self.kept[-1])
        counts = np.ceil(np.linspace(min(max(_fewest(max_risk), FIRST_SHARE * n), n), n, N_COUNTS))
        return np.unique(np.searchsorted(self.kept, counts))


def _fewest(max_risk: float) -> float:
    """Rows that could pass without an error."""
    return math.log(1 - BOUND_LEVEL) / math.log1p(-max_risk)
