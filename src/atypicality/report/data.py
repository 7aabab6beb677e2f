"""What the report's script reads: the tables it draws, and the samples for the linked views, as compact JSON."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from atypicality.evaluation import Evaluation
from atypicality.report.pages import as_script

__all__ = ["BUDGET", "LONGEST_TEXT", "page_data"]

BUDGET = 2_400_000
"""Most bytes of data: with script and style the page stays under 3 MB. Samples are thinned out evenly to keep it."""
THINNED = {"classes": 700_000, "subgroups": 300_000, "set_sizes": 150_000}
"""Most bytes of the tables that grow with the number of classes or subgroups; see `_thinned`."""
NAMED = 300_000
"""Most bytes of the names of classes that are in the samples but not in a thinned table of classes."""
LONGEST_TEXT = 120
Table = dict[str, list[Any]]
"""Columns of a table."""

_TABLES = {
    "overall": None,
    "atypicality_groups": ("accuracy", "confidence", "ece", "coverage", "set_size"),
    "confidence_groups": ("accuracy", "coverage", "set_size"),
    "class_groups": ("accuracy", "ece", "coverage", "set_size"),
    "classes": ("accuracy", "confidence", "coverage"),
    "grid": None,
    "quadrants": ("share", "accuracy", "confidence", "ece", "coverage", "set_size"),
    "subgroups": ("accuracy", "ece", "coverage", "set_size"),
    "calibration_curve": None,
    "risk_coverage": ("risk",),
    "set_sizes": ("share",),
    "coverage_gaps": None,
    "group_ranges": None,
}
"""The tables that the page draws, with their metrics where not all of them are drawn."""


def page_data(evaluation: Evaluation, before: str, after: str) -> dict[str, Any]:
    """Everything the page draws, as plain values: `null` stands for what is unknown.

    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(500, n_classes=3)
    >>> data = page_data(aty.evaluate({"model": world.probs}, world.outputs()), "model", "model")
    >>> len(data["samples"]["row"]), data["samples"]["kept"]
    (500, 500)
    """
    settings = evaluation.settings
    tables = {name: _table(evaluation, name, metrics) for name, metrics in _TABLES.items()}
    info = evaluation.table("class_info")
    names = [_short(str(row["class_index"]) if row["name"] is None else row["name"]) for row in info]
    found = {name: _thinned(name, tables[name], after, THINNED[name]) for name in THINNED}
    data = {
        "kind": evaluation.kind,
        "methods": list(evaluation.methods),
        "before": before,
        "after": after,
        "nSamples": evaluation.n_samples,
        "nSplits": evaluation.n_splits,
        "nBins": settings.get("n_bins"),
        "alpha": dict(settings.get("alpha") or {}),
        "tables": tables | {name: table for name, (table, _, _) in found.items()},
        "kept": {name: [kept, total] for name, (_, kept, total) in found.items() if kept < total},
    }
    samples = _samples(evaluation)
    data["classes"] = _names(names, data, samples)
    room = max(1, BUDGET - _size(data))
    return data | {"samples": _every(samples, math.ceil(_size(samples) / room))}


def _thinned(name: str, table: Table, after: str, budget: int) -> tuple[Table, int, int]:
    """A table cut to `budget` bytes, how many of its groups are kept, and how many there were.

    Classes and subgroups stay whose accuracy under the method `after` is lowest for sure, by the upper end of its
    interval; set sizes stay that most samples have.
    """
    keys = [key for key in ("class_index", "attribute", "subgroup", "size") if key in table]
    groups = list(zip(*(table[key] for key in keys), strict=True))
    total, size = len(set(groups)), _size(table)
    if size <= budget:
        return table, total, total
    ranked = _ranked(name, table, groups, after)
    kept = set(ranked[: int(total * budget / size)])
    chosen = [place for place, group in enumerate(groups) if group in kept]
    return {column: [values[place] for place in chosen] for column, values in table.items()}, len(kept), total


def _ranked(name: str, table: Table, groups: list[Any], after: str) -> list[Any]:
    """Groups of a table, those first that a reader should see."""
    scores: dict[Any, float] = {}
    for place, group in enumerate(groups):
        value = table["value"][place]
        if name == "set_sizes" and value is not None:
            scores[group] = min(scores.get(group, 0.0), -value)
        elif name != "set_sizes" and (table["method"][place], table["metric"][place]) == (after, "accuracy"):
            end = value if table["high"][place] is None else table["high"][place]
            scores[group] = math.inf if value is None else end
    return sorted(dict.fromkeys(groups), key=lambda group: scores.get(group, math.inf))


def _names(names: list[str], data: dict[str, Any], samples: dict[str, Any]) -> list[str] | dict[int, str]:
    """Names by class: all of them, or those of the classes in a thinned table and of the commonest in the samples."""
    if "classes" not in data["kept"]:
        return names
    seen = Counter(samples["label"])
    for method in samples["methods"]:
        seen.update(method["prediction"] or ())
    room, found = NAMED, {index: names[index] for index in dict.fromkeys(data["tables"]["classes"]["class_index"])}
    for index, _ in seen.most_common():
        room -= 0 if index in found else _size(names[index]) + len(f'"{index}":,')
        if room < 0:
            break
        found[index] = names[index]
    return found


def _size(data: Any) -> int:
    return len(as_script(data).encode())


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def _table(evaluation: Evaluation, name: str, metrics: Sequence[str] | None) -> Table:
    rows = evaluation.table(name)
    chosen = rows if metrics is None else [row for row in rows if row["metric"] in metrics]
    columns = [column for column in evaluation.tables[name] if column != "standard_error"]
    return {column: [_plain(row[column]) for row in chosen] for column in columns}


def _plain(value: Any, digits: int = 6) -> Any:
    if isinstance(value, str):
        return _short(value)
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else float(f"{value:.{digits}g}")


def _samples(evaluation: Evaluation) -> dict[str, Any]:
    columns = evaluation.tables["samples"]
    ids = columns["id"]
    shared = {
        "row": columns["row"],
        "id": None if all(text is None for text in ids) else [text if text is None else _short(text) for text in ids],
        "label": columns["label"],
        "atypicality": [_plain(value, 5) for value in columns["atypicality"]],
        "group": columns["grid_group"],
    }
    return shared | {"methods": [_predictions(evaluation, method) for method in evaluation.methods]}


def _predictions(evaluation: Evaluation, method: str) -> dict[str, Any]:
    columns = evaluation.tables["predictions"]
    places = [place for place, name in enumerate(columns["method"]) if name == method]

    def column(name: str) -> list[Any] | None:
        values = [columns[name][place] for place in places]
        return None if all(value is None for value in values) else values

    covered, quadrants = column("covered"), column("quadrant")  # four names with four first letters
    return {
        "prediction": column("prediction"),
        "confidence": [_plain(value) for value in column("confidence") or ()],
        "group": column("confidence_group"),
        "quadrant": None if quadrants is None else "".join(name[0] if name else "-" for name in quadrants),
        "size": column("set_size"),
        "covered": None if covered is None else [int(value) for value in covered],
    }


def _every(samples: dict[str, Any], step: int) -> dict[str, Any]:
    """Every `step`-th sample, and how many there were."""

    def thin(columns: dict[str, Any]) -> dict[str, Any]:
        return {name: None if values is None else values[::step] for name, values in columns.items()}

    methods = [thin(method) for method in samples["methods"]]
    return thin(samples) | {"methods": methods, "kept": len(samples["row"])}
