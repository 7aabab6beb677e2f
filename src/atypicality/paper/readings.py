"""The numbers of the paper's tables: what it printed, and ours from the result of one seed, under one key.

The key is (metric, row, method). The four tables that the paper printed ship with the package; the numbers that stand
only in its text are here.
"""

import csv
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr

from atypicality.evaluation import Evaluation
from atypicality.evaluation.schema import Row
from atypicality.paper.jobs import Result
from atypicality.paper.released import RELEASED_RANK
from atypicality.paper.settings import Setting

__all__ = [
    "ALL", "CORNER", "Key", "Printed", "Values", "curve", "paper_values", "read_values", "row_names", "weighted_mean",
]  # fmt: skip

Vector = NDArray[np.float64]
Key = tuple[str, tuple[str, ...], str]  # metric, row of the table, method
Printed = dict[Key, tuple[float, float | None]]  # value and standard error, where one is printed

_TEXT: dict[tuple[str, str, str], Printed] = {
    ("conformal", "ImageNet", "ResNet50"): {
        ("set_size", ("all", "all"), method): (size, None)
        for method, size in {"aps": 21.3, "aa-aps": 15.6, "raps": 4.2, "aa-raps": 9.1}.items()
    },
    ("subgroups", "Fitzpatrick17k", ""): {
        ("accuracy", ("worst",), "aar"): (0.69, None),
        ("ece", ("worst",), "aar"): (0.072, None),
        ("accuracy", ("best",), "ts"): (0.63, None),
        ("accuracy", ("best",), "group-ts"): (0.63, None),
        ("ece", ("best",), "ts"): (0.062, None),
        ("ece", ("best",), "group-ts"): (0.062, None),
    },
}
"""Sections 4.3 and 5. Of Fitzpatrick17k the text does not say which of the two networks it means."""

Values = dict[Key, float]

_ROW_NAMES: dict[str, tuple[str, ...]] = {
    "conformal": ("confidence", "atypicality"),
    "subgroups": ("group",),
    "class-scores": ("class",),
    "theory": ("row",),
}
BY_RANK = ", by the rank of the thresholds"
"""End of the metrics that compare our finite-sample rank with the released quantile."""

GROUP_TABLES = {"imbalanced": "class_groups"}
"""Long-tailed settings are grouped by class atypicality, all others by input atypicality."""
QUALITY = ("ece", "accuracy", "rmsce", "rmse")
ALL = "all"
CORNER = ("1-2", "5-6")  # the third of the levels with the lowest confidence and the highest atypicality


def row_names(experiment: str, metric: str) -> tuple[str, ...]:
    """What the rows of a table are named by: of most experiments by a quantile of atypicality."""
    return ("sets",) if metric.endswith(BY_RANK) else _ROW_NAMES.get(experiment, ("quantile",))


def read_values(experiment: str, result: Result) -> Values:
    """Everything that an experiment's table shows, for one seed."""
    if isinstance(result, dict):
        return _theory_values(result)
    readers = {
        "conformal": _set_values,
        "subgroups": _subgroup_values,
        "temperatures": _temperature_values,
        "class-scores": _class_score_values,
    }
    if experiment in readers:
        return readers[experiment](result)
    return _group_values(result, GROUP_TABLES.get(experiment, "atypicality_groups"))


def curve(values: Values, metric: str, method: str) -> Vector:
    """One metric over the groups of atypicality, the most typical first, (n_groups,); empty where there are none."""
    rows = {row: value for (name, row, who), value in values.items() if (name, who) == (metric, method)}
    groups = sorted((row for row in rows if row != (ALL,)), key=lambda row: float(row[0]))
    return np.array([rows[row] for row in groups])


def _subgroup_values(result: Evaluation) -> Values:
    """Accuracy and ECE of every subgroup of the first attribute, of the worst and the best, and the gap between."""
    rows = result.table("subgroups", attribute=result.settings["groups"])
    values: Values = {}
    for metric in ("accuracy", "ece"):
        for method in result.methods:
            cells = {
                row["subgroup"]: row["value"] for row in rows if (row["method"], row["metric"]) == (method, metric)
            }
            ordered = sorted(cells.values(), reverse=metric == "ece")
            extremes = {"worst": ordered[0], "best": ordered[-1], "gap": abs(ordered[-1] - ordered[0])}
            values |= {(metric, (name,), method): value for name, value in (cells | extremes).items()}
    return values | _overall(result, ("accuracy", "ece"), (ALL,))


def _group_values(result: Evaluation, table: str) -> Values:
    n_groups = 1 + max((row["group"] for row in result.table(table)), default=0)  # as many as classes, if these are few
    values = _read(result, table, QUALITY, lambda row: (_quantile(n_groups, row),))
    return values | _overall(result, QUALITY, (ALL,))


def _set_values(result: Evaluation) -> Values:
    """Cells from 1, the least confident and the most typical first, as the paper counts; then both alone, and all."""
    values: Values = {}
    shown = [method for method in result.methods if not method.endswith(RELEASED_RANK)]
    for method in shown:
        for metric in ("coverage", "set_size"):
            cells = [row for row in result.table("grid", method=method, metric=metric) if row["count"] > 0]
            for place, inside in _places(result).items():
                members = [row for row in cells if inside(row)]
                values[metric, place, method] = weighted_mean(members) if members else np.nan
    values |= {key: value for key, value in _overall(result, ("coverage", "set_size"), (ALL, ALL)).items()
               if key[2] in shown}  # fmt: skip
    return values | _rank_values(result)


def _places(result: Evaluation) -> dict[tuple[str, str], Callable[[Row], bool]]:
    """Rows of the conformal table with the cells that each holds; confidence first."""
    rarity, sure = (range(n) for n in result.settings["grid"])
    single = {(str(c + 1), str(a + 1)): _cell_test({c}, {a}) for c in sure for a in rarity}
    by_one = {(str(c + 1), ALL): _cell_test({c}, {*rarity}) for c in sure}
    by_other = {(ALL, str(a + 1)): _cell_test({*sure}, {a}) for a in rarity}
    low, high = {*sure[: len(sure) // 3]}, {*rarity[-(len(rarity) // 3) :]}
    return single | by_one | by_other | {CORNER: _cell_test(low, high)}


def _cell_test(sure: set[int], rarity: set[int]) -> Callable[[Row], bool]:
    return lambda row: row["confidence_group"] in sure and row["group"] in rarity


def weighted_mean(rows: list[Row]) -> float:
    """Mean value of some rows, each by its count."""
    return float(np.average([row["value"] for row in rows], weights=[row["count"] for row in rows]))


def _rank_values(result: Evaluation) -> Values:
    """Our finite-sample rank beside the released quantile, on average over all rows."""
    found = _overall(result, ("coverage", "set_size"), (ALL,))
    pairs = [m for m in result.methods if f"{m}{RELEASED_RANK}" in result.methods]
    ranks = {"finite-sample rank": "", "quantile 1 - alpha": RELEASED_RANK}
    return {
        (f"{metric.replace('_', ' ')}{BY_RANK}", (method,), rank): found[metric, (ALL,), method + end]
        for metric in ("coverage", "set_size")
        for method in pairs
        for rank, end in ranks.items()
    }


def _temperature_values(result: Evaluation) -> Values:
    rows = result.table("temperatures")
    n_groups = result.settings["n_groups"]
    return {("temperature", (_quantile(n_groups, row),), "fitted"): row["value"] for row in rows}


def _quantile(n_groups: int, row: Row) -> str:
    """A group by its upper quantile, as the paper names it."""
    return f"{(row['group'] + 1) / n_groups:g}"


def _class_score_values(result: Evaluation) -> Values:
    info = {row["class_index"]: row for row in result.table("class_info")}
    values: Values = {}
    for method in dict.fromkeys(row["method"] for row in result.table("class_scores")):
        rows = result.table("class_scores", method=method)
        rarity = [info[row["class_index"]]["class_atypicality"] for row in rows]
        for row, rare in zip(rows, rarity, strict=True):
            place = (str(info[row["class_index"]]["name"]),)
            values["class score", place, method] = row["value"]
            values["class score", place, "class atypicality"] = np.nan if rare is None else rare
        pair = np.array([[row["value"] for row in rows], rarity], np.float64)
        known = np.isfinite(pair).all() and pair.shape[1] > 1 and (np.ptp(pair, axis=1) > 0).all()
        values["class score", ("correlation",), method] = float(pearsonr(*pair).statistic) if known else np.nan
        ranks = spearmanr(*pair).statistic if known else np.nan
        values["class score", ("rank correlation",), method] = float(ranks)
    return values


def _overall(result: Evaluation, metrics: Iterable[str], place: tuple[str, ...]) -> Values:
    return _read(result, "overall", metrics, lambda row: place)


def _read(result: Evaluation, table: str, metrics: Iterable[str], place: Callable[[Row], tuple[str, ...]]) -> Values:
    rows = (row for row in result.table(table) if row["metric"] in metrics)
    return {(row["metric"], place(row), row["method"]): row["value"] for row in rows}


def _theory_values(result: dict[str, Any]) -> Values:
    """Overconfidence in percentage points over groups of atypicality; calibration errors in millionths at levels."""
    values: Values = {}
    for row in result["theorem_1"]["rows"]:
        for group, value in enumerate(row["overconfidence"], 1):
            values["overconfidence, percentage points", (f"n = {row['n_train']}",), f"group {group}"] = 100 * value
    for theorem in result["theorem_2"]:
        for row in theorem["rows"]:
            place = (f"norm {theorem['norm']:g}, level {row['level']:g}",)
            for name, column in _ERRORS.items():
                values["calibration error, millionths", place, name] = 1e6 * row[column]
    return values


_ERRORS = {
    "none": "error_uncalibrated",
    "one temperature, squared": "error_single_squared",
    "aware, squared": "error_aware_squared",
    "one temperature, cross-entropy": "error_single_cross_entropy",
    "aware, cross-entropy": "error_aware_cross_entropy",
}


def paper_values(experiment: str, setting: Setting | None, estimator: str) -> Printed:
    """Everything the paper prints of one setting; empty where it prints nothing.

    >>> from atypicality.paper.settings import match_folder
    >>> paper_values("balanced", match_folder("cifar10-wrn28-10").setting, "GMM")["ece", ("1",), "aar"]
    (0.041, 0.002)
    """
    if setting is None:
        return {}
    text = [_TEXT.get((experiment, setting.dataset, model), {}) for model in (setting.model, "")]
    column = {"total": "LLM"}.get(estimator, estimator)
    printed = {
        _key(row): (float(row["mean"]), float(row["stderr"]))
        for row in _rows(experiment)
        if (row["model"], row["dataset"]) == (setting.model, setting.dataset)
        and row.get("atypicality", "GMM") == column
    }
    return printed | text[0] | text[1]


def _key(row: dict[str, str]) -> Key:
    # The header of the conformal table has its two groups the wrong way round: sets of size 1 at 99 % coverage in
    # group 6 of the first column are those of confident predictions.
    place = (f"{float(row['quantile']):g}",) if "quantile" in row else (row["group_1"], row["group_2"])
    return row["metric"], place, row["method"].replace("_", "-")


@cache
def _rows(experiment: str) -> tuple[dict[str, str], ...]:
    file = files("atypicality.paper") / "data" / f"{experiment}.csv"
    if not file.is_file():
        return ()
    return tuple(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
