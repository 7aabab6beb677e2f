"""What the report's script reads: the tables it draws, and the samples for the linked views, as compact JSON."""

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

from atypicality.evaluation import Evaluation
from atypicality.formula import ASK, CHOOSE, advice_numbers
from atypicality.report.examples import Examples
from atypicality.report.pages import as_script
from atypicality.report.words import meanings_of, words_of

__all__ = ["BUDGET", "LONGEST_TEXT", "page_data", "shortened"]

BUDGET = 14_000_000
"""Most bytes of data without examples: with script and style the page stays under 15 MB. See `_fitting`."""
THINNED = {"classes": 700_000, "predicted_classes": 300_000, "subgroups": 300_000, "set_sizes": 150_000}
"""Most bytes of the tables that grow with the number of classes or subgroups; see `_thinned`."""
NAMED = 300_000  # most bytes of the names of classes that are in the samples but not in a thinned table of classes
LONGEST_TEXT = 120
MOST_NAMED = 6  # classes of a group that the page names
Table = dict[str, list[Any]]  # columns of a table

_ACCEPTED = ("accepted_share", "accepted_risk")
_TABLES = {
    "overall": None,
    "atypicality_groups": ("accuracy", "confidence", "ece", "coverage", "set_size"),
    "confidence_groups": ("accuracy", "coverage", "set_size"),
    "class_groups": ("accuracy", "ece", "coverage", "set_size"),
    "classes": ("accuracy", "confidence", "coverage", *_ACCEPTED),
    "predicted_classes": _ACCEPTED,
    "grid": None,
    "quadrants": ("share", "accuracy", "confidence", "ece", "coverage", "set_size"),
    "advice": ("share", "followed", "accuracy", *_ACCEPTED),
    "subgroups": ("accuracy", "ece", "coverage", "set_size", *_ACCEPTED),
    "subgroup_gaps": None,
    "calibration_curve": None,
    "risk_coverage": ("risk",),
    "set_sizes": ("share",),
    "coverage_gaps": None,
    "group_ranges": None,
}
"""The tables that the page draws, with their metrics where not all of them are drawn."""


def page_data(evaluation: Evaluation, before: str, after: str, examples: Examples | None = None) -> dict[str, Any]:
    """Everything the page draws, as plain values: `null` stands for what is unknown."""
    settings = evaluation.settings
    tables = {name: _table(evaluation, name, metrics) for name, metrics in _TABLES.items()}
    info = evaluation.table("class_info")
    names = shortened([str(row["class_index"]) if row["name"] is None else row["name"] for row in info])
    found = {name: _thinned(name, tables[name], after, THINNED[name]) for name in THINNED}
    data = {
        "kind": evaluation.kind,
        "words": words_of(evaluation),
        "meanings": meanings_of(evaluation),
        "classGroups": _class_groups(evaluation, names),
        "methods": list(evaluation.methods),
        "before": before,
        "after": after,
        "nSamples": evaluation.n_samples,
        "nSplits": evaluation.n_splits,
        "nBins": settings.get("n_bins"),
        "maxRisk": settings.get("max_risk"),
        "alpha": dict(settings.get("alpha") or {}),
        "tables": tables | {name: table for name, (table, _, _) in found.items()},
        "kept": {name: [kept, total] for name, (_, kept, total) in found.items() if kept < total},
        "subgroups": _subgroups(evaluation),
        "suspects": _listed(evaluation, "suspects"),
        "duplicates": _listed(evaluation, "duplicates"),
    }
    samples = _samples(evaluation)
    data["classes"] = _names(names, data, samples)
    samples = _fitting(samples, BUDGET - _size(data))
    shown = None if examples is None else examples.page_data(_by_harm(samples, evaluation.methods.index(after)))
    return data | {"samples": samples, "examples": shown}


def _class_groups(evaluation: Evaluation, names: list[str]) -> list[tuple[int, list[str], int]]:
    """Each group of class atypicality, its first classes by name, and how many more it has."""
    found: dict[int, list[str]] = {}
    for row in evaluation.table("class_info"):
        if row["group"] is not None:
            found.setdefault(row["group"], []).append(names[row["class_index"]])
    return [(group, found[group][:MOST_NAMED], len(found[group][MOST_NAMED:])) for group in sorted(found)]


def _thinned(name: str, table: Table, after: str, budget: int) -> tuple[Table, int, int]:
    """A table cut to `budget` bytes, how many of its groups are kept, and how many there were.

    Classes and subgroups stay whose accuracy under the method `after` is lowest for sure, by the upper end of its
    interval; predicted classes whose accepted predictions err most; set sizes stay that most samples have.
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
    metric = _ACCEPTED[1] if name == "predicted_classes" else "accuracy"
    for place, group in enumerate(groups):
        value = table["value"][place]
        if name == "set_sizes" and value is not None:
            scores[group] = min(scores.get(group, 0.0), -value)
        elif (table["method"][place], table["metric"][place]) == (after, metric):
            end = value if table["high"][place] is None else table["high"][place]
            scores[group] = math.inf if value is None else -table["low"][place] if metric == _ACCEPTED[1] else end
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
    """Long text without its middle: names tend to differ at their ends."""
    half = LONGEST_TEXT // 2
    return text if len(text) <= LONGEST_TEXT else f"{text[: half - 1]}…{text[-half:]}"


def _table(evaluation: Evaluation, name: str, metrics: Sequence[str] | None) -> Table:
    columns = {key: column for key, column in evaluation.tables[name].items() if key != "standard_error"}
    if metrics is not None:
        kept = [metric in metrics for metric in columns["metric"]]
        columns = {key: tuple(compress(column, kept)) for key, column in columns.items()}
    digits = 16 if name == "group_ranges" else 6  # the edges of a very confident model differ in the last digits
    return {key: [_plain(value, digits) for value in column] for key, column in columns.items()}


def _plain(value: Any, digits: int = 6) -> Any:
    if isinstance(value, str):
        return _short(value)
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else float(f"{value:.{digits}g}")


def _subgroups(evaluation: Evaluation) -> dict[str, list[str]]:
    """Names of subgroups by attribute, in the order of the codes that samples have."""
    names: dict[str, dict[str, None]] = {}
    for attribute, subgroup in zip(
        *(evaluation.tables["subgroups"][key] for key in ("attribute", "subgroup")), strict=True
    ):
        names.setdefault(attribute, {}).setdefault(subgroup)
    return {attribute: shortened(list(found)) for attribute, found in names.items()}


def _listed(evaluation: Evaluation, table: str) -> Table | None:
    columns = evaluation.tables[table]
    return {name: [_plain(value) for value in values] for name, values in columns.items()} if columns["row"] else None


def _samples(evaluation: Evaluation) -> dict[str, Any]:
    columns = evaluation.tables["samples"]
    ids, weights = columns["id"], [_plain(1.0 if value is None else value) for value in columns["weight"]]
    codes = [(text or "").split() for text in columns["subgroups"]]
    shared = {
        "row": columns["row"],
        "id": None if all(text is None for text in ids) else [text if text is None else _short(text) for text in ids],
        "label": columns["label"],
        "atypicality": [_plain(value, 5) for value in columns["atypicality"]],
        "group": columns["grid_group"],
        "weight": None if set(weights) <= {1} else weights,
        "subgroups": {
            name: [int(row[place]) for row in codes]
            for place, name in enumerate(_subgroups(evaluation))
            if codes and len(codes[0]) > place
        },
    }
    places = {row: place for place, row in enumerate(columns["row"])}
    return shared | {"methods": [_predictions(evaluation, method, places) for method in evaluation.methods]}


def _predictions(evaluation: Evaluation, method: str, places: Mapping[int, int]) -> dict[str, Any]:
    """What a method said of every sample; null where it was not asked."""
    columns = evaluation.tables["predictions"]
    own = [place for place, name in enumerate(columns["method"]) if name == method]

    def column(name: str, shown: Callable[[Any], Any] = lambda value: value) -> list[Any] | None:
        values: list[Any] = [None] * len(places)
        for place in own:
            if (value := columns[name][place]) is not None:
                values[places[columns["row"][place]]] = shown(value)
        return None if all(value is None for value in values) else values

    return {
        "prediction": column("prediction") or [None] * len(places),
        "confidence": column("confidence", _plain) or [],
        "group": column("confidence_group"),
        "quadrant": _letters(column("quadrant", lambda name: name[0])),  # four names with four first letters
        "size": column("set_size"),
        "covered": column("covered", int),
        "advice": _letters(column("advice", _advice_digit)),
        "members": column("members"),
        "accepted": column("accepted", int),
    }


@functools.cache
def _advice_digit(text: str) -> str:
    return str(advice_numbers([text])[0])


def _letters(values: list[str | None] | None) -> str | None:
    return None if values is None else "".join(value or "-" for value in values)


ALL_THAT_MATTER = "each that a method gets wrong or for which it asks for a person, and others at random"


def _matters(samples: dict[str, Any]) -> list[bool]:
    """Which samples stay as long as they fit: errors, and those for a person, of any method."""
    found = [False] * len(samples["row"])
    for method in samples["methods"]:
        advice = method["advice"] or "-" * len(found)
        for place, (said, label) in enumerate(zip(method["prediction"], samples["label"], strict=True)):
            found[place] |= (said is not None and said != label) or advice[place] == str(ASK)
    return found


def _fitting(samples: dict[str, Any], room: int) -> dict[str, Any]:
    """Samples that fit into `room` bytes: those that matter, and every so many of the others, with their weight."""
    total = len(samples["row"])
    fits = int(total * max(room, 1) / max(_size(samples), 1))
    samples = samples | {"rule": ALL_THAT_MATTER}
    if fits >= total:
        return samples
    matters = _matters(samples)
    some, others = ([place for place in range(total) if matters[place] is which] for which in (True, False))
    if len(some) > fits:
        rule = "a random part of those that a method gets wrong or for which it asks for a person"
        return _taken(samples, some, some[:: math.ceil(len(some) / max(fits, 1))]) | {"rule": rule}
    step = math.ceil(len(others) / max(fits - len(some), 1))
    return _taken(samples, others, sorted(some + others[::step]))


def _taken(samples: dict[str, Any], thinned: list[int], kept: list[int]) -> dict[str, Any]:
    """The samples at some places; those of a thinned part stand for those of it that are left out."""
    part = set(thinned)
    old = samples["weight"] or [1] * len(samples["row"])
    left = sum(place in part for place in kept)
    factor = sum(old[place] for place in thinned) / max(sum(old[place] for place in kept if place in part), 1)

    def take(values: Any) -> Any:
        if isinstance(values, dict):
            return {name: take(column) for name, column in values.items()}
        if values is None:
            return None
        some = [values[place] for place in kept]
        return "".join(some) if isinstance(values, str) else some

    methods = [take(method) for method in samples["methods"]]
    shared: dict[str, Any] = take({name: column for name, column in samples.items() if name not in ("methods", "rule")})
    shared["weight"] = [_plain(old[place] * (factor if place in part and left else 1.0)) for place in kept]
    return shared | {"methods": methods, "rule": samples["rule"]}


def _by_harm(samples: dict[str, Any], after: int) -> list[int]:
    """Row numbers of the samples, those first that the page's table lists first."""
    told = samples["methods"][after]
    advice = told["advice"] or "-" * len(samples["row"])

    def listed(place: int) -> bool:
        members = "" if told["members"] is None else str(told["members"][place])
        return bool(told["covered"][place]) or str(samples["label"][place]) in members.split()

    def harm(place: int) -> float:
        said, confidence = told["prediction"][place], told["confidence"][place] if told["confidence"] else None
        if said is None or confidence is None:
            return -1.0
        if said == samples["label"][place]:
            return 1.0 - float(confidence)
        caught = advice[place] == str(ASK) or (advice[place] == str(CHOOSE) and listed(place))
        return (1.0 if caught else 2.0) + float(confidence)

    return [samples["row"][place] for place in sorted(range(len(samples["row"])), key=harm, reverse=True)]


def shortened(names: Sequence[str]) -> list[str]:
    """Names of at most `LONGEST_TEXT` letters that still differ where they did: cut where they are alike.

    >>> shortened(["a" * 200 + "1", "a" * 200 + "2"])[0][-3:]
    'aa1'
    """
    short = [_short(text) for text in names]
    if len(set(short)) == len(set(names)):
        return short
    return [
        text if shown == text else f"{text[: LONGEST_TEXT // 2]}… ({place})"
        for place, (text, shown) in enumerate(zip(names, short, strict=True))
    ]
