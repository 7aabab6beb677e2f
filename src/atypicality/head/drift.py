"""Drift: whether the atypicality of new rows has left that of the held-out rows."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import to_host
from atypicality.formula import Outcome
from atypicality.head.quantiles import QuantileScale
from atypicality.metrics.laws import at_least_beta_binomial
from atypicality.outputs.packing import ENOUGH_ROWS
from atypicality.terminal import aligned, html_table

__all__ = ["Drift", "drift_of"]

TAIL, MIDDLE = 0.99, 0.5
MOVED = 0.75  # share of rows above the held-out median from which on these have moved as a whole
CHANCE = 1e-6
NEARLY_ALL = 0.9  # rows beyond all held-out ones, from which on these are hardly of the same kind
FEWEST_MOVED = 4
"""Fewer are no significant drift, wherever they are: three in the last hundredth have a chance of one in a million."""

Vector = NDArray[np.float64]


class Drift:
    """How new rows' atypicality sits on the scale of held-out rows; needs no labels.

    Rows that are rarer than the held-out ones are tested for, and not rows that are more typical.

    Attributes
    ----------
    scale : QuantileScale
        The held-out rows.
    recalibration : Drift or None
        The same of the atypicality that recalibration uses, where it is another: what moves all embeddings alike may
        show in it alone.
    share_beyond : float
        Share of new rows more atypical than every held-out row; about 1 / (n + 1) is expected.
    share_tail : float
        Share of new rows among the most atypical 1 % of the held-out distribution. Rows tied with held-out rows at its
        edge count in part: as much of each as of those held-out rows belongs to the 1 %.
    expected_tail : float
        What `share_tail` is without drift, about: 0.01, or 1 / (n + 1) for fewer than 99 held-out rows.
    share_above_median : float
        Share of new rows more atypical than the median of the held-out ones, ties in part; 0.5 is expected.
    distance : float
        Largest gap between the two distribution functions (Kolmogorov and Smirnov's statistic), 0 to 1. Exact up to
        1025 held-out rows, to a thousandth for more.
    chance : float
        Of counts this large in the tail, or above the median where that is three quarters of the rows, without drift: a
        p-value, valid for continuous, tied and constant values. Twice the smaller of both and, with `recalibration`,
        of both scores (Bonferroni).
    significant : bool
        Whether `chance` is below one in a million, by a score whose `share_tail` is at least twice `expected_tail`, or
        whose `share_above_median` is at least 0.75.

    Examples
    --------
    >>> scale = QuantileScale.from_rows(np.repeat(np.arange(10.0), 50))
    >>> usual, moved = Drift(scale, np.arange(10.0)), Drift(scale, np.full(200, 9.0))
    >>> round(usual.share_tail, 3), round(moved.share_tail, 3), moved.significant
    (0.01, 0.1, True)
    """

    def __init__(self, scale: QuantileScale, atypicality: Vector, *, recalibration: "Drift | None" = None) -> None:
        self.n_rows, self.recalibration = atypicality.size, recalibration
        self.expected_tail = max(1 - TAIL, 1 / (scale.n_rows + 1))
        self.scale, self._given = scale, atypicality

    @cached_property
    def _values(self) -> Vector:
        return np.sort(self._given)

    @cached_property
    def share_beyond(self) -> float:
        """Share of rows more atypical than every held-out row."""
        return float(self.scale.beyond(self._given).mean()) if self.n_rows else 0.0

    @cached_property
    def _tail(self) -> tuple[float, float]:
        return _above(self.scale, self._values, TAIL)

    @cached_property
    def _middle(self) -> tuple[float, float]:
        return _above(self.scale, self._values, MIDDLE, MOVED)

    @property
    def share_tail(self) -> float:
        """Share of rows among the most atypical 1 % of the held-out distribution."""
        return self._tail[0]

    @property
    def share_above_median(self) -> float:
        """Share of rows more atypical than the held-out median."""
        return self._middle[0]

    @cached_property
    def _tests(self) -> list[tuple[float, bool, "Drift"]]:
        """Chance of each test of each score, whether what it counts is large, and the score."""
        scores = [self] if self.recalibration is None else [self, self.recalibration]
        return [
            (min(1.0, 2 * len(scores) * chance), large, one)
            for one in scores
            for chance, large in ((one._tail[1], one.share_tail >= 2 * one.expected_tail), (one._middle[1], True))
        ]

    @property
    def chance(self) -> float:
        """A p-value of no drift."""
        return min(chance for chance, _, _ in self._tests)

    @cached_property
    def _found(self) -> list["Drift"]:
        """Scores that have moved, the one with the strongest evidence first."""
        if self.n_rows < FEWEST_MOVED:
            return []
        moved = [(chance, one) for chance, large, one in self._tests if chance < CHANCE and large]
        return [one for _, one in sorted(moved, key=lambda found: (found[0], -found[1].share_beyond))]

    @property
    def significant(self) -> bool:
        """Whether the rows have drifted."""
        return bool(self._found)

    @cached_property
    def distance(self) -> float:
        """Largest gap between the two distribution functions."""
        return _largest_gap(self.scale, self._values) if self.n_rows else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, as plain values.

        >>> Drift(QuantileScale.from_rows([1.0, 2.0]), np.array([1.0])).to_dict()["n_rows"]
        1
        """
        shares = ("share_beyond", "share_tail", "expected_tail", "share_above_median")
        names = ("n_rows", *shares, "distance", "chance", "significant")
        other = {} if self.recalibration is None else {"recalibration": self.recalibration.to_dict()}
        return {name: getattr(self, name) for name in names} | other

    def __repr__(self) -> str:
        return "\n".join(["Drift of atypicality:", *aligned([(name, text) for name, text in self._rows()])])

    def _repr_html_(self) -> str:
        return html_table("Drift of atypicality", (), self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        first = [("rows", f"{self.n_rows:,}"), ("significantly rarer", "yes" if self.significant else "no")]
        other = [] if self.recalibration is None else self.recalibration._numbers()
        second = [(f"{name}, by recalibration's score", value) for name, value in other]
        return [*first, *self._numbers(), *second, ("p-value of no drift", f"{self.chance:.2g}")]

    def _numbers(self) -> list[tuple[str, str]]:
        return [
            (f"above {TAIL:.0%} of held-out rows", f"{self.share_tail:.1%} (expected {self.expected_tail:.1%})"),
            ("above the held-out median", f"{self.share_above_median:.1%} (expected {MIDDLE:.1%})"),
            ("above all held-out rows", f"{self.share_beyond:.1%}"),
            ("largest gap of distributions", f"{self.distance:.3f}"),
        ]

    def message(self) -> str:
        """One sentence with the numbers."""
        one = (self._found or [self])[0]
        score = "" if one is self else ", by the score that recalibration uses,"
        else_made = ", unless another model, layer, preprocessing or scale made these rows: see to that first"
        return (
            f"{one.share_tail:.1%} of these {one.n_rows} rows are more atypical{score} than {TAIL:.0%} of the held-out "
            f"calibration rows ({one.expected_tail:.1%} expected), {one.share_above_median:.1%} than half of them, "
            f"and {one.share_beyond:.1%} more than any of them: the data has drifted"
            f"{else_made * (one.share_beyond > NEARLY_ALL)}. Confidence and coverage are not guaranteed there; look at "
            "those rows, and refit on newer ones; if the model was trained again, fit a new head."
        )

    def too_typical(self) -> str | None:
        """What is wrong where nearly all rows are more typical than the held-out ones, which is no drift; else None.

        Of fewer than 100 rows it is not asked: the same input may have come many times.
        """
        scores = [self] if self.recalibration is None else [self, self.recalibration]
        share = max(one._share_below(1 - TAIL) for one in scores) if self.n_rows >= ENOUGH_ROWS else 0.0
        if share <= NEARLY_ALL:
            return None
        return (
            f"{share:.1%} of these {self.n_rows} rows are more typical than {TAIL:.0%} of the held-out calibration "
            f"rows ({1 - TAIL:.1%} expected): are they of the same model and layer, with inputs "
            "prepared and scaled as for the fit? Or did the density learn from these very rows?"
        )

    def _share_below(self, level: float) -> float:
        place = int(np.searchsorted(self.scale.levels, level))
        return float(np.searchsorted(self._values, self.scale.values[place], "left")) / max(self.n_rows, 1)


def drift_of(head: Any, found: Outcome) -> Drift | None:
    """Drift of the rows that a head gave this verdict on; None where it was fitted without atypicality."""
    if head.quantiles_ is None:
        return None
    other = None
    if head.recalibration_quantiles_ is not None and found.covariate is not None:
        other = Drift(head.recalibration_quantiles_, to_host(found.covariate))
    return Drift(head.quantiles_, to_host(found.atypicality), recalibration=other)


def _above(scale: QuantileScale, values: Vector, level: float, least: float = 0.0) -> tuple[float, float]:
    """Share of sorted values above a level of the held-out ones, ties in part, and the chance of as many without drift.

    The chance is 1 where the share is below `least`.
    """
    n, place = values.size, int(np.searchsorted(scale.levels, level))  # the first value with at most that share above
    upper, lower = scale.levels[place], scale.levels[place - 1] if place else 0.0
    above, reaching = (n - int(np.searchsorted(values, scale.values[place], side)) for side in ("right", "left"))
    share = float(above + (upper - level) / (upper - lower) * (reaching - above)) / max(n, 1)
    if share < least:
        return share, 1.0
    chances = [_tail_chance(*counts, scale.n_rows) for counts in ((above, n, 1 - upper), (reaching, n, 1 - lower))]
    return share, min(1.0, 2 * min(chances))  # twice: the smaller of two


def _tail_chance(count: int, n: int, held_out_share: float, n_held_out: int) -> float:
    """Chance of `count` or more of n new rows above a held-out value that a share of the held-out rows exceeds.

    That value is an order statistic, so the chance of a new row to exceed it follows a beta law, and the count a
    beta-binomial one. With ties, or for a part of the distribution that is fixed, it is an upper bound (Thatcher 1964).
    """
    exceeding = round(held_out_share * n_held_out)
    if exceeding == n_held_out:
        return 1.0
    return at_least_beta_binomial(count, n, exceeding + 1, n_held_out - exceeding)


def _largest_gap(scale: QuantileScale, values: Vector) -> float:
    """Between the distribution functions, at each held-out value and just before it: between them one is constant."""
    at = np.searchsorted(values, scale.values, side="right") / values.size
    before = np.searchsorted(values, scale.values, side="left") / values.size
    return float(max(np.abs(scale.levels - at).max(), np.abs(np.r_[0.0, scale.levels[:-1]] - before).max()))
