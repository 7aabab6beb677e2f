"""The report in plain language: what improved and where not to trust the model. Every number is the evaluation's own.

A sentence is a tuple of parts: our words, `Number` (with the row of the evaluation it comes from) and `Name` (text from
elsewhere). Nothing is measured here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atypicality.evaluation import Evaluation

__all__ = ["ENOUGH", "Name", "Number", "Sentence", "Summary", "summarise"]

ENOUGH = 30
"""Groups with fewer samples are not singled out in the summary: their intervals say too little."""


@dataclass(frozen=True)
class Number:
    """A number as shown, with the table, row and column of the evaluation that it is."""

    text: str
    value: float
    table: str
    where: Mapping[str, Any]
    column: str = "value"


@dataclass(frozen=True)
class Name:
    """Text from elsewhere: a method, class or subgroup."""

    text: str


Sentence = tuple[str | Number | Name, ...]


@dataclass(frozen=True)
class Summary:
    """Sentences for the top of the report."""

    improved: tuple[Sentence, ...]
    caution: tuple[Sentence, ...]


def summarise(evaluation: Evaluation, before: str | None, after: str) -> Summary:
    """What changed from the method `before` (None: there is no other) to `after`, and where `after` is weak.

    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(500, n_classes=3)
    >>> summary = summarise(aty.evaluate({"model": world.probs}, world.outputs()), None, "model")
    >>> summary.improved[0][0]
    'Accuracy is '
    """
    facts = _Facts(evaluation, before, after)
    improved = [*facts.overall(), *facts.most_atypical(), *facts.sets()]
    caution = [*facts.quadrant(), *facts.cell(), *facts.worst_class(), *facts.worst_subgroup(), *facts.gaps()]
    return Summary(tuple(improved), (*caution, _SELECTED) if caution else ())


_SELECTED: Sentence = ("Each of these is the lowest of several groups, so a part of its distance may be chance.",)
_OVERALL = {
    "accuracy": ("Accuracy", "{:.1%}"),
    "ece": ("The expected calibration error (ECE), a mean gap between confidence and accuracy,", "{:.1%}"),
    "nll": ("The log loss", "{:.3f}"),
    "risk_coverage_area": ("The share of errors, averaged over how many of the surest predictions are kept,", "{:.1%}"),
}


class _Facts:
    """Finds rows of one evaluation and puts them into sentences."""

    def __init__(self, evaluation: Evaluation, before: str | None, after: str) -> None:
        self.evaluation, self.before, self.after = evaluation, before, after
        self.class_names = dict(
            zip(
                evaluation.tables["class_info"]["class_index"],
                evaluation.tables["class_info"]["name"],
                strict=True,
            )
        )

    def rows(self, table: str, **where: Any) -> list[dict[str, Any]]:
        return self.evaluation.table(table, **where)

    def number(self, form: str, table: str, row: Mapping[str, Any], column: str = "value") -> Number:
        keys = ("method", "metric", "group", "confidence_group", "quadrant", "class_index", "attribute", "subgroup")
        where = {key: row[key] for key in (*keys, "axis") if key in row}
        return Number(form.format(row[column]), row[column], table, where, column)

    def count(self, table: str, row: Mapping[str, Any]) -> Number:
        return self.number("{:,.0f}", table, row, "count")

    def at(self, table: str, metric: str, method: str | None = None, **where: Any) -> dict[str, Any] | None:
        found = self.rows(table, method=method or self.after, metric=metric, **where)
        return found[0] if found and math.isfinite(found[0]["value"]) else None

    def overall(self) -> list[Sentence]:
        found = [self.change("overall", metric, *_OVERALL[metric]) for metric in _OVERALL]
        return [sentence for sentence in found if sentence]

    def change(self, table: str, metric: str, words: str, form: str, **where: Any) -> Sentence:
        after = self.at(table, metric, **where)
        if after is None:
            return ()
        interval = self.interval(form, table, after)
        before = None if self.before is None else self.at(table, metric, self.before, **where)
        shown = self.number(form, table, after)
        if before is None:
            return (f"{words} is ", shown, " (95% interval ", *interval, ").")
        start = self.number(form, table, before)
        first = self.interval(form, table, before)
        return (
            f"{words} {_verb(start, shown)}from ",
            start,
            " to ",
            shown,
            " (95% intervals ",
            *first,
            " and ",
            *interval,
            f"{_overlap(before, after)}).",
        )

    def interval(self, form: str, table: str, row: Mapping[str, Any]) -> Sentence:
        if not (math.isfinite(row["low"]) and math.isfinite(row["high"])):
            return ("unknown",)
        return (self.number(form, table, row, "low"), " to ", self.number(form, table, row, "high"))

    def most_atypical(self) -> list[Sentence]:
        rows = self.rows("atypicality_groups", method=self.after, metric="accuracy")
        if not rows:
            return []
        group = max(row["group"] for row in rows)
        [last] = [row for row in rows if row["group"] == group]
        words = {"accuracy": "accuracy", "ece": "the ECE"}
        found = [
            self.change(
                "atypicality_groups",
                metric,
                f"For the most atypical of {len(rows)} groups {text}",
                "{:.1%}",
                group=group,
            )
            for metric, text in words.items()
        ]
        end: Sentence = (" The group has ", self.count("atypicality_groups", last), " samples.")
        return [(*sentence, *(end if place == 0 else ())) for place, sentence in enumerate(found) if sentence]

    def sets(self) -> list[Sentence]:
        coverage, size = self.at("overall", "coverage"), self.at("overall", "set_size")
        if coverage is None or size is None:
            return []
        alpha = self.evaluation.settings["alpha"].get(self.after)
        asked = "" if alpha is None else f" (asked for: {100 * (1 - alpha):.4g}%)"
        return [
            (
                "Prediction sets hold the true class for ",
                self.number("{:.1%}", "overall", coverage),
                f" of the samples{asked}, with ",
                self.number("{:.2f}", "overall", size),
                " classes on average.",
            )
        ]

    def quadrant(self) -> list[Sentence]:
        row = self.lowest("quadrants")
        if row is None:
            return []
        confidence = self.at("quadrants", "confidence", quadrant=row["quadrant"])
        said: Sentence = (
            () if confidence is None else (", at a mean confidence of ", self.number("{:.1%}", "quadrants", confidence))
        )
        return [
            (
                f"The weakest of the four kinds of prediction is “{row['quadrant']}”: ",
                self.number("{:.1%}", "quadrants", row),
                " of its ",
                self.count("quadrants", row),
                " samples are right",
                *said,
                ".",
            )
        ]

    def cell(self) -> list[Sentence]:
        rows = self.rows("grid", method=self.after, metric="overconfidence")
        sure = [row for row in rows if row["count"] >= ENOUGH and row["low"] > 0]
        if not rows:
            return []
        if not sure:
            return [(f"No cell of the grid with at least {ENOUGH} samples is overconfident beyond its 95% interval.",)]
        worst = max(sure, key=lambda row: row["value"])
        place = {"group": worst["group"], "confidence_group": worst["confidence_group"]}
        confidence, accuracy = self.at("grid", "confidence", **place), self.at("grid", "accuracy", **place)
        if confidence is None or accuracy is None:
            return []
        return [
            (
                f"The most overconfident cell of the grid is atypicality group {worst['group'] + 1}, confidence group "
                f"{worst['confidence_group'] + 1}: mean confidence ",
                self.number("{:.1%}", "grid", confidence),
                ", and ",
                self.number("{:.1%}", "grid", accuracy),
                " right (",
                self.count("grid", worst),
                " samples).",
            )
        ]

    def worst_class(self) -> list[Sentence]:
        row = self.lowest("classes")
        if row is None:
            return []
        name = self.class_names.get(row["class_index"]) or str(row["class_index"])
        return [self.weakest("The class that is recognised least is ", name, "classes", row)]

    def worst_subgroup(self) -> list[Sentence]:
        row = self.lowest("subgroups")
        if row is None:
            return []
        name = f"{row['attribute']}: {row['subgroup']}"
        return [self.weakest("The subgroup with the lowest accuracy is ", name, "subgroups", row)]

    def weakest(self, words: str, name: str, table: str, row: Mapping[str, Any]) -> Sentence:
        share, count = self.number("{:.1%}", table, row), self.count(table, row)
        return (words, Name(name), ": ", share, " of ", count, " samples are right.")

    def lowest(self, table: str) -> dict[str, Any] | None:
        """The row of lowest accuracy among groups with enough samples."""
        rows = [row for row in self.rows(table, method=self.after, metric="accuracy") if row["count"] >= ENOUGH]
        return min(rows, key=lambda row: row["value"], default=None)

    def gaps(self) -> list[Sentence]:
        rows = [row for row in self.rows("coverage_gaps", method=self.after) if row["axis"] in _AXES]
        short = [row for row in rows if row["count"] >= ENOUGH and row["high"] < row["target"]]
        if rows and not short:
            return [("No group’s prediction sets fall short of the promise beyond their 95% interval.",)]
        return [
            (
                f"Prediction sets hold the true class less often than asked for the {_AXES[row['axis']]} ",
                Name(self.group_name(row)),
                ": ",
                self.number("{:.1%}", "coverage_gaps", row),
                " of ",
                self.count("coverage_gaps", row),
                f" samples, where {100 * row['target']:.4g}% was asked for.",
            )
            for row in short
        ]

    def group_name(self, row: Mapping[str, Any]) -> str:
        worst = str(row["worst"])
        if row["axis"] == "class":
            return self.class_names.get(int(worst)) or worst
        if row["axis"] in ("quadrant", "subgroup"):
            return worst
        return ", ".join(str(int(part) + 1) for part in worst.split(", "))


_AXES = {
    "atypicality": "atypicality group",
    "confidence": "confidence group",
    "class_atypicality": "group of classes",
    "class": "class",
    "quadrant": "quadrant",
    "subgroup": "subgroup",
}


def _verb(before: Number, after: Number) -> str:
    if before.text == after.text:
        return "hardly changed, "
    return "rose " if after.value > before.value else "fell "


def _overlap(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    parted = before["high"] < after["low"] or after["high"] < before["low"]
    return "" if parted else "; they overlap"
