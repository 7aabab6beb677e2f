"""The report in plain language: what improved and where not to trust the model. Every number is the evaluation's own.

A sentence is a tuple of parts: our words, `SourcedNumber` (with the row of the evaluation it comes from) and `Name`
(text from elsewhere). Nothing is measured here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from atypicality.evaluation import Evaluation

__all__ = ["ENOUGH", "Name", "ReportSummary", "Sentence", "SourcedNumber", "summarise"]

ENOUGH = 30
"""Groups with fewer samples are not singled out in the summary: their intervals say too little."""


@dataclass(frozen=True)
class SourcedNumber:
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


Sentence = tuple[str | SourcedNumber | Name, ...]


@dataclass(frozen=True)
class ReportSummary:
    """Sentences for the top of the report."""

    improved: tuple[Sentence, ...]
    caution: tuple[Sentence, ...]


def summarise(evaluation: Evaluation, before: str | None, after: str) -> ReportSummary:
    """What changed from the method `before` (None: there is no other) to `after`, and where `after` is weak.

    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(500, n_classes=3)
    >>> summary = summarise(aty.evaluate({"model": world.probs}, world.outputs()), None, "model")
    >>> summary.improved[0][0]
    'Accuracy is '
    """
    facts = _Facts(evaluation, before, after)
    improved = [*facts.overall(), *facts.most_atypical(), *facts.signal(), *facts.sets()]
    caution = [*facts.quadrant(), *facts.cell(), *facts.worst_class(), *facts.worst_subgroup(), *facts.gaps()]
    return ReportSummary(tuple(improved), (*caution, _SELECTED) if caution else ())


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
        self.rows, info = evaluation.table, evaluation.tables["class_info"]
        self.class_names = dict(zip(info["class_index"], info["name"], strict=True))

    def number(self, form: str, table: str, row: Mapping[str, Any], column: str = "value") -> SourcedNumber:
        keys = ("method", "metric", "group", "confidence_group", "quadrant", "class_index", "attribute", "subgroup")
        where = {key: row[key] for key in (*keys, "axis") if key in row}
        return SourcedNumber(form.format(row[column]), row[column], table, where, column)

    def share(self, table: str, row: Mapping[str, Any]) -> SourcedNumber:
        return self.number("{:.1%}", table, row)

    def count(self, table: str, row: Mapping[str, Any]) -> SourcedNumber:
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
        before = None if self.before is None else self.at(table, metric, self.before, **where)
        end, ends = self.number(form, table, after), self.interval(form, table, after)
        if before is None:
            return _say(f"{words} is {{end}} (95% interval {{ends}}).", end=end, ends=ends)
        start, starts = self.number(form, table, before), self.interval(form, table, before)
        return _say(
            f"{words} {_verb(start, end)}from {{start}} to {{end}} "
            f"(95% intervals {{starts}} and {{ends}}{_overlap(before, after)}).",
            start=start,
            end=end,
            starts=starts,
            ends=ends,
        )

    def interval(self, form: str, table: str, row: Mapping[str, Any]) -> Sentence:
        if not (math.isfinite(row["low"]) and math.isfinite(row["high"])):
            return ("unknown",)
        return (self.number(form, table, row, "low"), " to ", self.number(form, table, row, "high"))

    def most_atypical(self) -> list[Sentence]:
        rows = self.rows("atypicality_groups", method=self.after, metric="accuracy")
        if not rows:
            return []
        last = max(rows, key=lambda row: row["group"])
        start = f"For the most atypical of {len(rows)} groups"
        found = [
            self.change("atypicality_groups", metric, f"{start} {text}", "{:.1%}", group=last["group"])
            for metric, text in {"accuracy": "accuracy", "ece": "the ECE"}.items()
        ]
        end = _say(" The group has {count} samples.", count=self.count("atypicality_groups", last))
        return [(*sentence, *(end if place == 0 else ())) for place, sentence in enumerate(found) if sentence]

    def signal(self) -> list[Sentence]:
        gain, alone = self.at("overall", "atypicality_gain"), self.at("overall", "atypicality_auroc")
        if gain is None or alone is None:
            return []
        adds = "adds to" if gain["low"] > 0 else "adds nothing that these samples show to"
        said = _say(
            f"Atypicality {adds} what confidence says of errors: {{gain}} nats per sample (95% interval {{ends}}). "
            "Alone, it ranks a wrong prediction above a right one with a chance of {alone}.",
            gain=self.number("{:.4f}", "overall", gain),
            ends=self.interval("{:.4f}", "overall", gain),
            alone=self.share("overall", alone),
        )
        chosen = self.evaluation.settings.get("density", {}).get(self.after)
        return [said if chosen is None else (*said, " It was chosen: ", Name(chosen), ".")]

    def sets(self) -> list[Sentence]:
        coverage, size = self.at("overall", "coverage"), self.at("overall", "set_size")
        if coverage is None or size is None:
            return []
        alpha = self.evaluation.settings["alpha"].get(self.after)
        asked = "" if alpha is None else f" (asked for: {100 * (1 - alpha):.4g}%)"
        words = f"Prediction sets hold the true class for {{coverage}} of the samples{asked}, "
        size_text = self.number("{:.2f}", "overall", size)
        return [
            _say(words + "with {size} classes on average.", coverage=self.share("overall", coverage), size=size_text)
        ]

    def quadrant(self) -> list[Sentence]:
        row = self.lowest("quadrants")
        if row is None:
            return []
        confidence = self.at("quadrants", "confidence", quadrant=row["quadrant"])
        said = _say(
            f"The weakest of the four kinds of prediction is “{row['quadrant']}”: {{share}} of its {{count}} samples "
            "are right",
            share=self.share("quadrants", row),
            count=self.count("quadrants", row),
        )
        known = () if confidence is None else (", at a mean confidence of ", self.share("quadrants", confidence))
        return [(*said, *known, ".")]

    def cell(self) -> list[Sentence]:
        rows = self.rows("grid", method=self.after, metric="overconfidence")
        certain = [row for row in rows if row["count"] >= ENOUGH and row["low"] > 0]
        if not rows:
            return []
        if not certain:
            return [(f"No cell of the grid with at least {ENOUGH} samples is overconfident beyond its 95% interval.",)]
        worst = max(certain, key=lambda row: row["value"])
        place = {"group": worst["group"], "confidence_group": worst["confidence_group"]}
        confidence, accuracy = self.at("grid", "confidence", **place), self.at("grid", "accuracy", **place)
        if confidence is None or accuracy is None:
            return []
        said = _say(
            f"The most overconfident cell of the grid is atypicality group {worst['group'] + 1}, confidence group "
            f"{worst['confidence_group'] + 1}: mean confidence {{confidence}}, and {{accuracy}} right "
            "({count} samples).",
            confidence=self.share("grid", confidence),
            accuracy=self.share("grid", accuracy),
            count=self.count("grid", worst),
        )
        return [said]

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
        return (words, Name(name), ": ", self.share(table, row), " of ", self.count(table, row), " samples are right.")

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
            _say(
                f"Prediction sets hold the true class less often than asked for the {_AXES[row['axis']]} {{name}}: "
                f"{{share}} of {{count}} samples, where {100 * row['target']:.4g}% was asked for.",
                name=Name(self.group_name(row)),
                share=self.share("coverage_gaps", row),
                count=self.count("coverage_gaps", row),
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


def _say(words: str, **parts: SourcedNumber | Name | Sentence) -> Sentence:
    """Our words with parts in the place of their names in braces."""
    found: list[str | SourcedNumber | Name] = []
    for text, name, _, _ in Formatter().parse(words):
        part = parts[name] if name else ()
        found += [*([text] if text else []), *(part if isinstance(part, tuple) else (part,))]
    return tuple(found)


def _verb(before: SourcedNumber, after: SourcedNumber) -> str:
    if before.text == after.text:
        return "hardly changed, "
    return "rose " if after.value > before.value else "fell "


def _overlap(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    parted = before["high"] < after["low"] or after["high"] < before["low"]
    return "" if parted else "; they overlap"
