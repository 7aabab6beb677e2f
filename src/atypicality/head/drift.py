"""Drift: whether the atypicality of new rows has left that of the held-out rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.head.quantiles import QuantileScale
from atypicality.terminal import aligned, html_table

__all__ = ["Drift"]

TAIL = 0.99
CHANCE = 1e-6

Vector = NDArray[np.float64]


class Drift:
    """How new rows' atypicality sits on the scale of held-out rows; needs no labels.

    Attributes
    ----------
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
    distance : float
        Largest gap between the two distribution functions (Kolmogorov and Smirnov's statistic), 0 to 1. Exact up to
        1025 held-out rows, to a thousandth for more.
    chance : float
        Of counts this large in the tail without drift: a p-value, valid for continuous, tied and constant values. With
        `recalibration`, twice the smaller of both (Bonferroni).
    significant : bool
        Whether `chance` is below one in a million, by a score whose `share_tail` is at least twice `expected_tail`.

    Examples
    --------
    >>> scale = QuantileScale.from_rows(np.repeat(np.arange(10.0), 50))
    >>> usual, moved = Drift(scale, np.arange(10.0)), Drift(scale, np.full(200, 9.0))
    >>> round(usual.share_tail, 3), round(moved.share_tail, 3), moved.significant
    (0.01, 0.1, True)
    """

    chance: float

    def __init__(self, scale: QuantileScale, atypicality: Vector, *, recalibration: "Drift | None" = None) -> None:
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
        self.recalibration, own = recalibration, min(1.0, 2 * min(chances))  # twice: the smaller of two
        tests = [(self, own)] + ([] if recalibration is None else [(recalibration, recalibration.chance)])
        self.chance = min(1.0, len(tests) * min(chance for _, chance in tests))
        found = [one for one, chance in tests if len(tests) * chance < CHANCE and one._enlarged]
        self.significant, self._moved = bool(found), (found or [self])[0]

    @property
    def _enlarged(self) -> bool:
        return self.share_tail >= 2 * self.expected_tail

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, as plain values.

        >>> Drift(QuantileScale.from_rows([1.0, 2.0]), np.array([1.0])).to_dict()["n_rows"]
        1
        """
        names = ("n_rows", "share_beyond", "share_tail", "expected_tail", "distance", "chance", "significant")
        other = {} if self.recalibration is None else {"recalibration": self.recalibration.to_dict()}
        return {name: getattr(self, name) for name in names} | other

    def __repr__(self) -> str:
        return "\n".join(["Drift of atypicality:", *aligned([(name, text) for name, text in self._rows()])])

    def _repr_html_(self) -> str:
        return html_table("Drift of atypicality", (), self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        first = [("rows", f"{self.n_rows:,}"), ("significant", "yes" if self.significant else "no")]
        other = [] if self.recalibration is None else self.recalibration._numbers()
        second = [(f"{name}, by recalibration's score", value) for name, value in other]
        return [*first, *self._numbers(), *second, ("chance without drift", f"{self.chance:.2g}")]

    def _numbers(self) -> list[tuple[str, str]]:
        return [
            (f"above {TAIL:.0%} of held-out rows", f"{self.share_tail:.1%} (expected {self.expected_tail:.1%})"),
            ("above all held-out rows", f"{self.share_beyond:.1%}"),
            ("largest gap of distributions", f"{self.distance:.3f}"),
        ]

    def message(self) -> str:
        """One sentence with the numbers."""
        one, score = self._moved, "" if self._moved is self else ", by the score that recalibration uses,"
        return (
            f"{one.share_tail:.1%} of these {one.n_rows} rows are more atypical{score} than {TAIL:.0%} of the held-out "
            f"calibration rows ({one.expected_tail:.1%} expected), and {one.share_beyond:.1%} more than any of them: "
            "the data has drifted. Confidence and coverage are not guaranteed there; look at those rows, or refit on "
            "newer data."
        )


def _tail_chance(count: int, n: int, held_out_share: float, n_held_out: int) -> float:
    """Chance of `count` or more of n new rows above a held-out value that a share of the held-out rows exceeds.

    That value is an order statistic, so the chance of a new row to exceed it follows a beta law, and the count a
    beta-binomial one. With ties, or for a part of the distribution that is fixed, it is an upper bound (Thatcher 1964).
    """
    from scipy.special import betaln  # scipy.stats has this law, and takes longer to import than all else

    exceeding = round(held_out_share * n_held_out)
    if count == 0 or exceeding == n_held_out:
        return 1.0
    more, a, b = np.arange(count, n + 1), exceeding + 1, n_held_out - exceeding
    chances = betaln(more + a, n - more + b) - betaln(a, b) - betaln(n - more + 1, more + 1) - np.log(n + 1)
    return min(1.0, float(np.exp(chances).sum()))


def _largest_gap(scale: QuantileScale, values: Vector) -> float:
    """Between the distribution functions, at each held-out value and just before it: between them one is constant."""
    at = np.searchsorted(values, scale.values, side="right") / values.size
    before = np.searchsorted(values, scale.values, side="left") / values.size
    return float(max(np.abs(scale.levels - at).max(), np.abs(np.r_[0.0, scale.levels[:-1]] - before).max()))
