"""What changed between two methods on the same rows, and which changes are shown: one rule for page, text and JSON.

Accuracy is judged by the predictions that were lost and gained (McNemar's exact test), log loss, Brier score and the
area under the risk-coverage curve by Student's interval of the differences row by row, of the area those of its
influence function, and ECE by Newcombe's square-and-add rule: the two intervals, with the correlation of what the rows
contribute. Every number over all rows is judged by its own 95 % interval. Groups are judged together: where nothing
changed, one is named in at most 5 % of the evaluations (Holm's rule over the comparisons in which enough predictions
changed to show anything, Tarone 1990).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, ndtr, stdtr

from atypicality.evaluation.cuts import Axis
from atypicality.evaluation.schema import Row, records
from atypicality.evaluation.scored import Scored
from atypicality.groups import cut
from atypicality.metrics.intervals import exact_interval, mean_interval, square_and_add
from atypicality.metrics.rows import Pairs, inner_edges

if TYPE_CHECKING:
    from atypicality.evaluation.result import Evaluation

__all__ = [
    "AXES", "BETTER", "KEYS", "RISES", "UNCLEAR", "WORSE", "RowLosses", "change_rows", "changed", "decided",
    "groups_of_one_class", "holm", "mcnemar_p",
]  # fmt: skip

LEVEL = 0.05  # chance of a false alarm: of one number over all rows, and of all groups together
LEAST = 30  # rows of a group whose ECE is judged: its interval is a normal one
BETTER, WORSE, UNCLEAR = "better", "worse", "unclear"
AXES = {
    "overall": "overall",
    "atypicality": "atypicality_groups",
    "class_atypicality": "class_groups",
    "class": "classes",
    "subgroup": "subgroups",
}
"""The table that the groups of an axis are in."""
COMPARED = {
    "overall": ("accuracy", "nll", "ece", "brier", "risk_coverage_area"),
    "atypicality": ("accuracy", "ece"),
    "class_atypicality": ("accuracy",),  # the ECE of rows of one label is no matter of calibration
    "class": ("accuracy",),
    "subgroup": ("accuracy", "ece"),
}
RISES = ("accuracy",)  # more is better; of the other metrics less is
KEYS = ("group", "class_index", "attribute", "subgroup")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RowLosses:
    """What is kept of a method, by row (n,), to compare it with another."""

    name: str
    pairs: Pairs
    nll: Floats
    brier: Floats

    @classmethod
    def of(cls, scored: Scored) -> "RowLosses":
        """From what was read of its probabilities."""
        return cls(scored.name, scored.losses.pairs, scored.losses.nll, scored.losses.brier)


def mcnemar_p(lost: Any, gained: Any) -> Floats:
    """Two-sided p of McNemar's exact test: lost and gained predictions are equally likely where nothing changed.

    >>> mcnemar_p([18, 11, 0], [0, 0, 0])
    array([7.62939453e-06, 9.76562500e-04, 1.00000000e+00])
    """
    lost, gained = np.asarray(lost, np.intp), np.asarray(gained, np.intp)
    return np.asarray(np.minimum(2 * bdtr(np.minimum(lost, gained), lost + gained, 0.5), 1.0))


def holm(p_values: ArrayLike, least: ArrayLike) -> tuple[int, Floats]:
    """How many comparisons could have shown something, and each p corrected for them by Holm's rule; 1 for the others.

    `least` is the smallest p that each could have shown, with as many predictions that changed. Those stay that reach
    0.05 / k, for the smallest k at which at most k do (Tarone 1990): what decides is not which way predictions changed.

    >>> number, adjusted = holm([0.01, 0.02, 0.5, 1.0], [0.0, 0.001, 0.25, 1.0])
    >>> number, adjusted.tolist()
    (2, [0.02, 0.02, 1.0, 1.0])
    """
    p, smallest = np.asarray(p_values, np.float64), np.asarray(least, np.float64)
    k = 1
    while np.count_nonzero(smallest <= LEVEL / k) > k:
        k += 1
    chosen = np.flatnonzero(smallest <= LEVEL / k)
    order = chosen[np.argsort(p[chosen], kind="stable")]
    adjusted = np.ones(p.size)
    adjusted[order] = np.minimum(np.maximum.accumulate(np.arange(order.size, 0, -1) * p[order]), 1.0)
    return order.size, adjusted


def change_rows(
    kept: Sequence[RowLosses], axes: Iterable[Axis], rows: Mapping[str, list[Row]], n_bins: int, intervals: bool = True
) -> Iterator[Row]:
    """Rows of the table `changes`, not yet judged, for every pair of methods in their order."""
    names = {table: axis for axis, table in AXES.items()}
    wanted = [axis for axis in axes if axis.table in names and np.unique(axis.codes).size > (axis.table != "overall")]
    cells = {table: _by_key(rows[table]) for table in names}
    for first, second in combinations(kept, 2):
        for axis in wanted:
            for metric in COMPARED[names[axis.table]]:
                named = {"method": second.name, "reference": first.name, "axis": names[axis.table], "metric": metric}
                pairs = [
                    [cells[axis.table][name, metric, *_place(key)] for key in axis.keys]
                    for name in (first.name, second.name)
                ]
                tested = _tested(metric, first, second, axis, pairs, n_bins) if intervals else [{}] * len(axis.keys)
                for key, one, other, found in zip(axis.keys, *pairs, tested, strict=True):
                    plain = {"count": other["count"], "value": other["value"] - one["value"]}
                    if other["count"]:
                        yield named | {name: key.get(name) for name in KEYS} | plain | found


def decided(rows: Iterable[Row], n_splits: int = 1) -> list[Row]:
    """The rows with `comparisons`, `adjusted` p and `verdict`.

    Rows without a p are means over `n_splits` splits, and are judged by their spread over these.
    """
    listed = [row if row.get("p_value") is not None else row | {"p_value": _p_of_splits(row, n_splits)} for row in rows]
    found = [row | {"comparisons": 1, "adjusted": row["p_value"]} for row in listed]
    families: dict[Any, list[Row]] = {}
    for row in found:
        if row["axis"] != "overall" and np.isfinite(row["p_value"]):
            families.setdefault((row["reference"], row["method"]), []).append(row)
    for family in families.values():
        number, adjusted = holm([row["p_value"] for row in family], [_least_p(row) for row in family])
        for row, p in zip(family, adjusted.tolist(), strict=True):
            row |= {"comparisons": number, "adjusted": p}
    return [row | {"verdict": _verdict(row)} for row in found]


def changed(evaluation: "Evaluation", before: str, after: str) -> list[Row]:
    """How the method `after` differs from `before`: rows of the table `changes`, each with a `verdict`.

    Methods that are stored in the other order are turned around (`turned`). Methods of other rows, such as those of
    two days, have no row in common: their intervals are compared as those of independent rows (`apart`).

    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(2000)
    >>> sharp = world.probs**3 / (world.probs**3).sum(axis=1, keepdims=True)
    >>> evaluation = aty.evaluate({"sharp": sharp, "model": world.probs}, world.outputs())
    >>> [row["verdict"] for row in changed(evaluation, "sharp", "model") if row["metric"] == "nll"]
    ['better']
    >>> [row["verdict"] for row in changed(evaluation, "model", "sharp") if row["metric"] == "nll"]
    ['worse']
    """
    stored = evaluation.tables["changes"]
    pairs = set(zip(stored["reference"], stored["method"], strict=True))
    if (before, after) in pairs:
        return evaluation.table("changes", reference=before, method=after)
    if (after, before) in pairs:
        return [_turned(row) for row in evaluation.table("changes", reference=after, method=before)]
    return decided(_apart(evaluation, before, after))


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(map(row.get, KEYS))


def _by_key(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    return {(row["method"], row["metric"], *_place(row)): row for row in rows}


def _tested(
    metric: str, first: RowLosses, second: RowLosses, axis: Axis, pairs: list[list[Row]], n_bins: int
) -> list[dict[str, Any]]:
    """Standard error, interval and p of a difference in every group of an axis; counts of predictions beside them."""
    if metric == "accuracy":
        return _of_predictions(first, second, axis)
    if metric in ("nll", "brier"):
        return [_of_means(getattr(second, metric) - getattr(first, metric))]
    if metric == "risk_coverage_area":
        value = pairs[1][0]["value"] - pairs[0][0]["value"]
        return [_of_means(_area_parts(second.pairs) - _area_parts(first.pairs), value)]
    shares = [_ece_parts(one.pairs, axis, n_bins) for one in (first, second)]
    together = _correlations(shares[0], shares[1], axis).tolist()
    return [_of_intervals(one, other, rho) for one, other, rho in zip(pairs[0], pairs[1], together, strict=True)]


def _of_predictions(first: RowLosses, second: RowLosses, axis: Axis) -> list[dict[str, Any]]:
    """The interval is exact given how many predictions changed, and leaves out 0 where p < 0.05, and only there."""
    before, after, size = first.pairs.correct, second.pairs.correct, len(axis.keys)
    count, lost, gained = (
        np.bincount(axis.codes, weights, size).astype(np.intp) for weights in (None, before & ~after, after & ~before)
    )
    moved, n = lost + gained, np.maximum(count, 1)
    ends = [moved / n * (2 * share - 1) + 0.0 for share in exact_interval(gained, moved)]
    error = np.sqrt(np.maximum(moved - (gained - lost) ** 2 / n, 0)) / n
    told = {"standard_error": error, "low": ends[0], "high": ends[1]}
    return records(told | {"lost": lost, "gained": gained, "p_value": mcnemar_p(lost, gained)})


def _of_means(differences: Floats, value: float | None = None) -> dict[str, Any]:
    """Student's interval of the mean difference, or of a `value` to which the rows contribute these differences."""
    error, low, high = mean_interval(differences)
    mean, n = float(differences.mean()), differences.size
    value = mean if value is None else value
    p = np.nan if np.isnan(error) else 1.0 if error == 0 else 2 * float(stdtr(n - 1, -abs(value) / error))
    return {"standard_error": error, "low": low - mean + value, "high": high - mean + value, "p_value": p}


def _of_intervals(before: Row, after: Row, rho: float) -> dict[str, Any]:
    """The difference of two values from their intervals and the correlation of what rows contribute to them."""
    if before["count"] < LEAST:
        return dict.fromkeys(("standard_error", "low", "high", "p_value"), np.nan)
    ends = [tuple(row[name] for name in ("value", "low", "high")) for row in (after, before)]
    low, high = square_and_add(ends[0], ends[1], rho)
    value = after["value"] - before["value"]
    reach = value - low if value > 0 else high - value  # of 1.96 standard errors, towards 0
    p = 1.0 if value == 0 or not reach else 2 * float(ndtr(-1.959964 * abs(value) / reach))
    return {"standard_error": np.nan, "low": low, "high": high, "p_value": p}


def _ece_parts(pairs: Pairs, axis: Axis, n_bins: int) -> Floats:
    """What every row adds to the ECE of its group (n,): its gap, with the sign of the gap of its bin."""
    bins = cut(inner_edges(n_bins, pairs.dtype), pairs.confidence)
    gap, cells = pairs.confidence - pairs.correct, axis.codes * n_bins + bins
    return np.asarray(gap * np.sign(np.bincount(cells, gap, len(axis.keys) * n_bins))[cells])


def _area_parts(pairs: Pairs) -> Floats:
    """What every row adds to the area under the risk-coverage curve (n,): its influence function.

    With the rows in order of confidence, R_k the share of errors among the first k and e the error of row r, it is
    R_r + sum over k >= r of (e - R_k) / k, but for a constant.
    """
    order = np.argsort(-pairs.confidence, kind="stable")
    wrong, place = 1.0 - pairs.correct[order], np.arange(1, order.size + 1)
    risk = np.cumsum(wrong) / place
    later = [np.cumsum(part[::-1])[::-1] for part in (1 / place, risk / place)]
    found = np.empty(order.size)
    found[order] = risk + wrong * later[0] - later[1]
    return found


def _correlations(one: Floats, other: Floats, axis: Axis) -> Floats:
    """Correlation of two numbers per row within every group; 0 where one of them is constant."""
    size = len(axis.keys)
    count = np.maximum(np.bincount(axis.codes, minlength=size), 1)
    mean = [np.bincount(axis.codes, part, size) / count for part in (one, other)]
    a, b = (part - centre[axis.codes] for part, centre in zip((one, other), mean, strict=True))
    both, *squares = (np.bincount(axis.codes, part, size) for part in (a * b, a * a, b * b))
    scale = np.sqrt(squares[0] * squares[1])
    return np.asarray(np.divide(both, scale, out=np.zeros(size), where=scale > 0))


def _p_of_splits(row: Row, n_splits: int) -> float:
    error, value = row.get("standard_error"), row["value"]
    if n_splits < 2 or error is None or not np.isfinite(error):
        return float("nan")
    return 1.0 if value == 0 else 0.0 if error == 0 else 2 * float(stdtr(n_splits - 1, -abs(value) / error))


def _least_p(row: Row) -> float:
    """The smallest p that a comparison could have shown, with as many predictions that changed."""
    return 0.0 if row.get("lost") is None else float(min(1.0, 2.0 * 0.5 ** (row["lost"] + row["gained"])))


def _verdict(row: Row) -> str:
    if not row["adjusted"] <= LEVEL or not row["value"]:
        return UNCLEAR
    return BETTER if (row["value"] > 0) == (row["metric"] in RISES) else WORSE


def _turned(row: Row) -> Row:
    """The change in the other direction; the row that it is made of is named as before."""
    other = {BETTER: WORSE, WORSE: BETTER}.get(row["verdict"], UNCLEAR)
    ends = {"value": -row["value"], "low": -row["high"], "high": -row["low"], "verdict": other}
    return row | ends | {"lost": row["gained"], "gained": row["lost"], "turned": True}


def _apart(evaluation: "Evaluation", before: str, after: str) -> Iterator[Row]:
    """Changes between methods that were measured on other rows, from the intervals of both."""
    alone = groups_of_one_class(evaluation.tables["class_info"]["group"])
    for axis, table in AXES.items():
        cells = _by_key(evaluation.table(table))
        for (method, metric, *place), row in cells.items():
            other = cells.get((before, metric, *place))
            if method != after or other is None or metric not in COMPARED[axis] or not row["count"] * other["count"]:
                continue
            if axis == "class_atypicality" and row["group"] in alone:
                continue
            named = {"method": after, "reference": before, "axis": axis, "metric": metric}
            plain = dict(zip(KEYS, place, strict=True)) | {"count": row["count"]}
            plain |= {"value": row["value"] - other["value"], "apart": True}
            yield named | plain | _of_intervals(other, row, 0.0)


def groups_of_one_class(groups: Iterable[int | None]) -> set[int | None]:
    """Of the groups of all classes (k,) those that a class is alone in: the class has a row of its own."""
    return {group for group, size in Counter(groups).items() if group is not None and size == 1}
