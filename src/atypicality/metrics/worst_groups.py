"""For whom prediction sets fail: coverage of the worst group, by set size, and against the size it costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.metrics.intervals import check_level, exact_interval
from atypicality.metrics.sets import coverage, covered, set_size, size_strata, sizes
from atypicality.metrics.tables import GroupTable, by_group
from atypicality.terminal import aligned
from atypicality.validation import check_alpha, check_groups, check_integer

__all__ = ["ParetoCurve", "WorstCoverage", "pareto_curve", "size_stratified_coverage", "worst_coverage", "worst_share"]

Doubles = NDArray[np.float64]
LEAST = 50  # rows of a group that counts: the lowest share of many small groups is low by chance
ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
STRATA = ("0-1", "2-3", "4-10", "11-100", "more")


@dataclass(frozen=True)
class WorstCoverage:
    """Coverage of the group that is covered least; made by `worst_coverage`.

    Attributes
    ----------
    value : float
    low, high : float
        Interval of the true coverage of the worst group, whichever that is.
    level : float
        Of the interval.
    group : str, int or bool
    count : int
        Rows of the group.

    Examples
    --------
    >>> found = worst_coverage([[True, False]] * 4, [0, 0, 0, 1], [0, 0, 1, 1], least=2)
    >>> found.value, found.group
    (0.5, 1)
    """

    value: float
    low: float
    high: float
    level: float
    group: Any
    count: int


def worst_coverage(
    sets: ArrayLike, labels: ArrayLike, groups: ArrayLike, *, least: int = LEAST, level: float = 0.95
) -> WorstCoverage:
    """Coverage of the group that is covered least, with an interval that allows for the choice of the group.

    Parameters
    ----------
    sets : array-like of bool, of shape (n_samples, n_classes)
    labels : array-like of shape (n_samples,)
    groups : array-like of shape (n_samples,)
        Integers, booleans or strings: sixths of atypicality from `QuantileGroups(6)`, 3 x 3 cells from
        `GridGroups((3, 3))`, or your own.
    least : int, default=50
        Groups of fewer rows do not count.
    level : float, default=0.95

    Returns
    -------
    WorstCoverage

    Notes
    -----
    The exact intervals (Clopper and Pearson 1934) of g groups hold together with probability `level` at a level of
    1 - (1 - level) / g each (Bonferroni); then the smallest true coverage is between the smallest lower and the
    smallest upper end.

    Examples
    --------
    >>> sets = np.array([[True, False]] * 8)
    >>> found = worst_coverage(sets, [0, 0, 0, 0, 0, 0, 1, 1], list("aaaabbbb"), least=4)
    >>> found.value, found.group, found.count
    (0.5, 'b', 4)
    """
    hits = covered(sets, labels)
    names, codes = np.unique(check_groups(groups, n_rows=hits.size), return_inverse=True)
    found = worst_share(hits, codes, check_integer(least, "least", low=1), check_level(level))
    if found is None:
        most = int(np.bincount(codes).max())
        raise ValueError(f"least must be at most the rows of the largest group, {most}; got {least}.")
    value, low, high, place, count = found
    return WorstCoverage(value, low, high, level, names[place].item(), count)


def worst_share(
    hits: NDArray[np.bool_], codes: NDArray[np.intp], least: int = LEAST, level: float = 0.95
) -> tuple[float, float, float, int, int] | None:
    """Value, interval, place and rows of the group with the smallest share; None where all are too small.

    >>> worst_share(np.array([True, False, True]), np.array([0, 0, 1]), least=2)[3:]
    (0, 2)
    """
    count = np.bincount(codes)
    known = np.flatnonzero(count >= least)
    if not known.size:
        return None
    held = np.bincount(codes, hits)[known]
    low, high = exact_interval(held, count[known], 1 - (1 - level) / known.size)
    place = int(np.argmin(held / count[known]))
    value = float(held[place] / count[known][place])
    return value, float(low.min()), float(high.min()), int(known[place]), int(count[known][place])


def size_stratified_coverage(sets: ArrayLike, labels: ArrayLike, *, level: float = 0.95) -> GroupTable:
    """Coverage by the size of the set, in the strata of `coverage_gap(by="size")`.

    Parameters
    ----------
    sets : array-like of bool, of shape (n_samples, n_classes)
    labels : array-like of shape (n_samples,)
    level : float, default=0.95
        Of the intervals.

    Returns
    -------
    GroupTable
        A row for each stratum that a set of so many classes can reach.

    Examples
    --------
    >>> size_stratified_coverage([[True, False], [True, False], [True, True]], [0, 1, 1])
    group  count  coverage  std. error     95 % interval
      0-1      2    0.5000      0.3536  [0.0945, 0.9055]
      2-3      1    1.0000      0.0000  [0.2065, 1.0000]
    """
    strata = np.array(STRATA)[size_strata(sizes(sets))]
    names = STRATA[: int(size_strata([np.shape(sets)[1]])[0]) + 1]
    return by_group(coverage, sets, labels, groups=strata, names=names, level=level)


@dataclass(frozen=True, repr=False)
class ParetoCurve:
    """Size of prediction sets against the coverage of their worst group, one point per alpha; see `pareto_curve`.

    Attributes
    ----------
    alpha, size, coverage, worst, low, high : ndarray of shape (n_alphas,)
        Allowed miscoverage, mean set size, coverage, coverage of the worst group and its interval.

    Examples
    --------
    >>> labels = np.arange(100) % 4
    >>> curve = pareto_curve(lambda alpha: np.ones((100, 4), bool), labels, np.zeros(100, int), alphas=(0.1,))
    >>> curve
    alpha  set size  coverage  worst group   95 % interval
      0.1     4.000     1.000        1.000  [0.964, 1.000]
    """

    alpha: Doubles
    size: Doubles
    coverage: Doubles
    worst: Doubles
    low: Doubles
    high: Doubles

    @property
    def efficient(self) -> NDArray[np.bool_]:
        """Points that no other point beats: none has sets as small and its worst group covered as often, or better."""
        smaller = self.size[:, None] <= self.size
        better = self.worst[:, None] >= self.worst
        strictly = (self.size[:, None] < self.size) | (self.worst[:, None] > self.worst)
        return np.asarray(~(smaller & better & strictly).any(axis=0))

    def size_at(self, worst: float) -> float:
        """Mean set size at which the worst group is covered with this share, between efficient points; inf: never.

        Below the least coverage measured it is the smallest size measured.
        """
        order = np.argsort(self.worst[self.efficient])
        reached, size = self.worst[self.efficient][order], self.size[self.efficient][order]
        return float(np.interp(worst, reached, size, right=np.inf))

    def rows(self) -> list[dict[str, float]]:
        """One dictionary per alpha."""
        names = ("alpha", "size", "coverage", "worst", "low", "high")
        columns = (getattr(self, name).tolist() for name in names)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def __repr__(self) -> str:
        lines = [("alpha", "set size", "coverage", "worst group", "95 % interval")]
        for row in self.rows():
            interval = f"[{row['low']:.3f}, {row['high']:.3f}]"
            size, share, worst = (f"{row[name]:.3f}" for name in ("size", "coverage", "worst"))
            lines.append((f"{row['alpha']:g}", size, share, worst, interval))
        return "\n".join(aligned(lines, justify=str.rjust))


def pareto_curve(
    predict: Callable[[float], ArrayLike],
    labels: ArrayLike,
    groups: ArrayLike,
    *,
    alphas: Sequence[float] = ALPHAS,
    least: int = LEAST,
) -> ParetoCurve:
    """Mean set size against the coverage of the worst group as alpha moves: what a method's coverage costs.

    Two methods at one alpha differ in both; the curve that is further left at the same worst-group coverage needs
    smaller sets.

    Parameters
    ----------
    predict : callable
        From alpha to prediction sets of the test rows, bool (n_samples, n_classes): fits a method at that alpha.
    labels : array-like of shape (n_samples,)
        Of the test rows.
    groups : array-like of shape (n_samples,)
        As in `worst_coverage`.
    alphas : sequence of float, default=(0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
    least : int, default=50

    Returns
    -------
    ParetoCurve

    Examples
    --------
    >>> from atypicality.conformal import SplitConformal
    >>> from atypicality.datasets import make_world
    >>> from atypicality.groups import QuantileGroups
    >>> old, new = make_world(2000), make_world(2000, random_state=1)
    >>> sixths = QuantileGroups(6).fit(new.atypicality).assign(new.atypicality)
    >>> curve = pareto_curve(
    ...     lambda alpha: SplitConformal("lac", alpha).fit(old.probs, old.labels).predict_set(new.probs),
    ...     new.labels, sixths, alphas=(0.05, 0.2),
    ... )
    >>> bool(curve.size[0] > curve.size[1]), bool(curve.worst[0] > curve.worst[1])
    (True, True)
    """
    found = []
    for alpha in alphas:
        sets = predict(float(check_alpha(alpha)))
        worst = worst_coverage(sets, labels, groups, least=least)
        found.append((alpha, set_size(sets), coverage(sets, labels), worst.value, worst.low, worst.high))
    if not found:
        raise ValueError("alphas must hold at least one alpha; got none.")
    return ParetoCurve(*np.array(found, np.float64).T)
