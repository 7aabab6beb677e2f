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

from atypicality.evaluation import Evaluation
from atypicality.evaluation.schema import Row
from atypicality.paper.jobs import Result
from atypicality.paper.settings import Setting

__all__ = [
    "NOT_COMPARABLE",
    "ROW_NAMES",
    "Key",
    "Printed",
    "by_group",
    "class_correlation",
    "paper_values",
    "read_values",
    "subgroup_values",
]

Key = tuple[str, tuple[str, ...], str]
"""Metric, row of the table, method."""
Printed = dict[Key, tuple[float, float | None]]
"""Value and standard error, where one is printed."""

NOT_COMPARABLE = ("rmsce",)
"""The paper's `rmse` columns do not follow its formula: some are below the ECE of the same bins, which a root mean
square over bins cannot be. They are shown, and no difference is taken."""

_METRICS = {"rmse": "rmsce"}
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

ROW_NAMES: dict[str, tuple[str, ...]] = {
    "balanced": ("quantile",),
    "imbalanced": ("quantile",),
    "llm": ("quantile",),
    "conformal": ("confidence", "atypicality"),
    "subgroups": ("group",),
    "temperatures": ("quantile",),
    "class-scores": ("class",),
    "theory": ("row",),
}
"""What the rows of each table are named by."""

GROUP_TABLES = {"imbalanced": "class_groups"}
"""Long-tailed settings are grouped by class atypicality, all others by input atypicality."""
QUALITY = ("ece", "accuracy", "rmsce")
ALL = "all"


def read_values(experiment: str, result: Result) -> Values:
    """Everything that an experiment's table shows, for one seed."""
    if isinstance(result, dict):
        return _theory_values(result)
    readers = {
        "conformal": _set_values,
        "subgroups": subgroup_values,
        "temperatures": _temperature_values,
        "class-scores": _class_score_values,
    }
    if experiment in readers:
        return readers[experiment](result)
    return _group_values(result, GROUP_TABLES.get(experiment, "atypicality_groups"))


def by_group(result: Evaluation, table: str, method: str, metric: str) -> np.ndarray[Any, Any]:
    """One metric over the groups of a table, the most typical first, (n_groups,)."""
    return np.array([row["value"] for row in result.table(table, method=method, metric=metric)])


def class_correlation(result: Evaluation, method: str = "aar") -> float:
    """Correlation of the class scores with the atypicality of the classes; NaN where one of them is constant."""
    scores = np.array([row["value"] for row in result.table("class_scores", method=method)])
    rarity = np.array([row["class_atypicality"] for row in result.table("class_info")], np.float64)
    if scores.size < 2 or not np.isfinite(rarity).all() or np.ptp(rarity) == 0 or np.ptp(scores) == 0:
        return float("nan")
    return float(np.corrcoef(scores, rarity)[0, 1])


def subgroup_values(result: Evaluation) -> Values:
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
    values = _read(result, table, QUALITY, lambda row: (_quantile(result, row),))
    return values | _overall(result, QUALITY, (ALL,))


def _set_values(result: Evaluation) -> Values:
    """Groups from 1, the least confident and the most typical first, as the paper counts."""
    metrics = ("coverage", "set_size")
    values = _read(result, "grid", metrics, lambda row: (str(row["confidence_group"] + 1), str(row["group"] + 1)))
    return dict(sorted(values.items(), key=lambda item: item[0][:2])) | _overall(result, metrics, (ALL, ALL))


def _temperature_values(result: Evaluation) -> Values:
    rows = result.table("temperatures")
    return {("temperature", (_quantile(result, row),), "fitted"): row["value"] for row in rows}


def _quantile(result: Evaluation, row: Row) -> str:
    """A group by its upper quantile, as the paper names it."""
    return f"{(row['group'] + 1) / result.settings['n_groups']:g}"


def _class_score_values(result: Evaluation) -> Values:
    names = {row["class_index"]: row for row in result.table("class_info")}
    values: Values = {}
    for row in result.table("class_scores"):
        info = names[row["class_index"]]
        place = (str(info["name"]),)
        values["class score", place, row["method"]] = row["value"]
        values["class score", place, "class atypicality"] = info["class_atypicality"]
    for method in dict.fromkeys(row["method"] for row in result.table("class_scores")):
        values["class score", ("correlation with class atypicality",), method] = class_correlation(result, method)
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
    "one temperature": "error_single_squared",
    "aware, squared": "error_aware_squared",
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
    printed = {
        _key(row): (float(row["mean"]), float(row["stderr"]))
        for row in _rows(experiment)
        if (row["model"], row["dataset"]) == (setting.model, setting.dataset)
        and row.get("atypicality", "GMM") in (estimator, "LLM")
    }
    return printed | text[0] | text[1]


def _key(row: dict[str, str]) -> Key:
    # The header of the conformal table has its two groups the wrong way round: sets of size 1 at 99 % coverage in
    # group 6 of the first column are those of confident predictions.
    place = (f"{float(row['quantile']):g}",) if "quantile" in row else (row["group_1"], row["group_2"])
    return _METRICS.get(row["metric"], row["metric"]), place, row["method"].replace("_", "-")


@cache
def _rows(experiment: str) -> tuple[dict[str, str], ...]:
    file = files("atypicality.paper") / "data" / f"{experiment}.csv"
    if not file.is_file():
        return ()
    return tuple(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
