"""From the result of one seed to the numbers of the paper's table: values under (metric, row, method)."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from atypicality.evaluation import Evaluation
from atypicality.paper.jobs import Result
from atypicality.paper.paper import Key

__all__ = ["ROW_NAMES", "by_group", "class_correlation", "read_values", "subgroup_values"]

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
    n_groups = result.settings["n_groups"]
    values = {
        (row["metric"], (f"{(row['group'] + 1) / n_groups:g}",), row["method"]): row["value"]
        for row in result.table(table)
        if row["metric"] in QUALITY
    }
    return values | _overall(result, QUALITY, (ALL,))


def _set_values(result: Evaluation) -> Values:
    """Groups from 1, the least confident and the most typical first, as the paper counts."""
    metrics = ("coverage", "set_size")
    values = {
        (row["metric"], (str(row["confidence_group"] + 1), str(row["group"] + 1)), row["method"]): row["value"]
        for row in result.table("grid")
        if row["metric"] in metrics
    }
    return dict(sorted(values.items(), key=lambda item: item[0][:2])) | _overall(result, metrics, (ALL, ALL))


def _temperature_values(result: Evaluation) -> Values:
    n_groups = result.settings["n_groups"]
    rows = result.table("temperatures")
    return {("temperature", (f"{(row['group'] + 1) / n_groups:g}",), "fitted"): row["value"] for row in rows}


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
    return {
        (row["metric"], place, row["method"]): row["value"]
        for row in result.table("overall")
        if row["metric"] in metrics
    }


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
