"""The report in plain language: facts of one evaluation as sentences; numbers are the evaluation's.

A sentence is a tuple of parts: our words, `SourcedNumber` (with the row of the evaluation it comes from) and `Name`
(text from elsewhere). Nothing is measured here.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from atypicality.evaluation import Evaluation
from atypicality.report.words import words_of
from atypicality.terminal import few

__all__ = [
    "AXES", "ENOUGH", "MOST_NAMED", "OVERALL", "PREFIX", "SHORT", "Facts", "Name", "Sentence", "SourcedNumber", "finer",
]  # fmt: skip

ENOUGH = 30  # groups with fewer samples are not singled out in the summary: their intervals say too little


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


OVERALL = {
    "accuracy": ("{Accuracy}", "{:.1%}"),
    "ece": ("The expected calibration error (ECE), a mean gap between {confidence} and accuracy,", "{:.1%}"),
    "nll": ("The log loss", "{:.3f}"),
    "risk_coverage_area": (
        "The share of errors, averaged over how many of the most confident {predictions} are kept,",
        "{:.1%}",
    ),
}
MOST_NAMED = 3  # classes, and changes that are not shown, that are named
SHORT = {"accuracy": "accuracy", "ece": "the ECE"}


class Facts:
    """Finds rows of one evaluation and puts them into sentences."""

    def __init__(self, evaluation: Evaluation, before: str | None, after: str) -> None:
        self.evaluation, self.before, self.after = evaluation, before, after
        self.rows, info = evaluation.table, evaluation.tables["class_info"]
        self.class_names = dict(zip(info["class_index"], info["name"], strict=True))
        self.wording = words_of(evaluation)

    def say(self, words: str, **parts: "str | SourcedNumber | Name | Sentence") -> Sentence:
        """Our words with parts, and words of the report's table, in the place of their names in braces."""
        found: list[str | SourcedNumber | Name] = [""]
        known = self.wording | parts
        for text, name, _, _ in Formatter().parse(words):
            part = known[name] if name else ()
            for one in (text, *(part if isinstance(part, tuple) else (part,))):
                if isinstance(one, str) and isinstance(found[-1], str):
                    found[-1] += one
                else:
                    found.append(one)
        return tuple(part for part in found if part)

    def number(self, form: str, table: str, row: Mapping[str, Any], column: str = "value") -> SourcedNumber:
        """A number of a row as text, with its source."""
        keys = ("method", "metric", "group", "confidence_group", "quadrant", "advice", "class_index", "attribute")
        where = {key: row[key] for key in (*keys, "subgroup", "axis", "percent", "reference", "bin") if key in row}
        return SourcedNumber(form.format(row[column]).replace("-", "−"), row[column], table, where, column)

    def setting(self, key: str) -> Any:
        """What the settings hold of the method `after` under a key; None where nothing."""
        return self.evaluation.settings.get(key, {}).get(self.after)

    def share(self, table: str, row: Mapping[str, Any]) -> SourcedNumber:
        """The value of a row in percent."""
        return self.number("{:.1%}", table, row)

    def count(self, table: str, row: Mapping[str, Any]) -> SourcedNumber:
        """How many samples a row rests on."""
        return self.number("{:,.0f}", table, row, "count")

    def at(self, table: str, metric: str, method: str | None = None, **where: Any) -> dict[str, Any] | None:
        """The row of a metric, where its value is known."""
        found = self.rows(table, method=method or self.after, metric=metric, **where)
        return found[0] if found and math.isfinite(found[0]["value"]) else None

    def overall(self) -> list[Sentence]:
        """Metrics over all samples, where there is no other method to compare them with."""
        wanted = {} if self.before is not None else OVERALL
        return [said for metric, words in wanted.items() if (said := self.level("overall", metric, *words))]

    def level(self, table: str, metric: str, words: str, form: str, **where: Any) -> Sentence:
        """A metric of the method after, with its interval."""
        row = self.at(table, metric, **where)
        if row is None:
            return ()
        form = finer(form, [row["value"]])
        end, ends = self.number(form, table, row), self.interval(form, table, row)
        return self.say(f"{words} is {{end}} (95% interval {{ends}}).", end=end, ends=ends)

    def place_name(self, table: str, row: Mapping[str, Any]) -> str:
        """The group of a row in words."""
        if table in ("classes", "predicted_classes"):
            return self.class_names.get(row["class_index"]) or str(row["class_index"])
        if table == "subgroups":
            return f"{row['attribute']}: {row['subgroup']}"
        if table == "quadrants":
            return str(row["quadrant"])
        name = f"{AXES[table].format_map(self.wording)} {row['group'] + 1}"
        return f"{name} ({self.members(row['group'])})" if table == "class_groups" else name

    def judged(self, table: str, metric: str) -> list[dict[str, Any]]:
        """Rows of a metric by group, without groups of one class: that class has a row of its own."""
        rows = self.rows(table, method=self.after, metric=metric)
        if table != "class_groups":
            return rows
        sizes = Counter(self.evaluation.tables["class_info"]["group"])
        return [row for row in rows if sizes[row["group"]] > 1]

    def members(self, group: int) -> str:
        """Classes of a group of classes, the first by name."""
        info = self.evaluation.table("class_info", group=group)
        names = [self.class_names.get(row["class_index"]) or str(row["class_index"]) for row in info]
        return few(names, MOST_NAMED)

    def words(self) -> list[Sentence]:
        """Advice that does not hold: right for fewer than the target, beyond the interval."""
        alpha = self.setting("alpha")
        rows = self.rows("advice", method=self.after, metric="followed")
        short = [
            row for row in rows
            if alpha is not None and row["advice"] != "ask a person" and row["count"] > 0 and row["high"] < 1 - alpha
        ]  # fmt: skip
        return [
            self.say(
                f"The advice “{row['advice']}” is {{right}} for {{share}} of {{count}} {{samples}} (95% interval "
                f"{{ends}}), less than the {100 * (1 - alpha):.4g}% that it stands for.",
                **self.judgement("advice", row),
            )
            for row in short
        ]

    def judgement(self, table: str, row: Mapping[str, Any]) -> dict[str, "SourcedNumber | Sentence"]:
        """Share, count and interval of a row, for a sentence."""
        ends = self.interval("{:.1%}", table, row)
        return {"share": self.share(table, row), "count": self.count(table, row), "ends": ends}

    def interval(self, form: str, table: str, row: Mapping[str, Any]) -> Sentence:
        """The ends of a row's interval."""
        if not (math.isfinite(row["low"]) and math.isfinite(row["high"])):
            return ("unknown",)
        return (self.number(form, table, row, "low"), " to ", self.number(form, table, row, "high"))

    def most_atypical(self) -> list[Sentence]:
        """Accuracy and ECE of the most atypical group, where there is no other method to compare them with."""
        rows = self.rows("atypicality_groups", method=self.after, metric="accuracy")
        if not rows or self.before is not None:
            return []
        last = max(rows, key=lambda row: row["group"])
        start = f"For the most atypical of {len(rows)} groups"
        found = [
            self.level("atypicality_groups", metric, f"{start} {text}", "{:.1%}", group=last["group"])
            for metric, text in SHORT.items()
        ]
        end = self.say(" The group has {count} {samples}.", count=self.count("atypicality_groups", last))
        return [(*sentence, *(end if place == 0 else ())) for place, sentence in enumerate(found) if sentence]

    def signal(self) -> list[Sentence]:
        """How much atypicality adds to confidence, or that these samples do not show that it does."""
        gain, alone = self.at("overall", "atypicality_gain"), self.at("overall", "atypicality_auroc")
        if gain is None or alone is None:
            return []
        adds = "adds to what it tells" if gain["low"] > 0 else "adds nothing more that these {samples} show"
        said = self.say(
            f"Beside the {{confidence}} of {{name}}, atypicality {adds} about errors: a gain of {{gain}} in log "
            "likelihood per {sample} (95% interval {ends}). Alone, it ranks a wrong {prediction} above a {right} one "
            "with a chance of {alone}.",
            gain=self.number("{:.4f}", "overall", gain),
            ends=self.interval("{:.4f}", "overall", gain),
            name=Name(self.after),
            alone=self.share("overall", alone),
        )
        if alone["high"] < 0.5:
            said = (*said, f" That is backwards: {self.wording['backwards']}.")
        return [said]

    def sets(self) -> list[Sentence]:
        """Coverage and size of the prediction sets, beside the target, and those of the method before."""
        coverage, size = self.at("overall", "coverage"), self.at("overall", "set_size")
        if coverage is None or size is None:
            return []
        alpha, level = self.setting("alpha"), self.setting("guaranteed")
        proved = "" if level is None else f"; guaranteed: {100 * level:.4g}%"
        asked = "" if alpha is None else f"; target: {100 * (1 - alpha):.4g}%{proved}"
        verdict = "" if alpha is None else _against(1 - alpha, coverage)
        said = self.say(
            f"Prediction sets hold the true class for {{coverage}} of the {{samples}} (95% interval {{ends}}{asked}), "
            f"with {{size}} classes on average{verdict}.",
            coverage=self.share("overall", coverage),
            ends=self.interval("{:.1%}", "overall", coverage),
            size=self.number("{:.2f}", "overall", size),
        )
        return [(*said, *self._sets_before())]

    def _sets_before(self) -> Sentence:
        rows = [self.at("overall", metric, self.before) if self.before else None for metric in ("coverage", "set_size")]
        if rows[0] is None or rows[1] is None:
            return ()
        held, size = self.share("overall", rows[0]), self.number("{:.2f}", "overall", rows[1])
        name = Name(self.before or "")
        return self.say(" Those of {name}: {held}, with {size} classes.", name=name, held=held, size=size)

    def quadrant(self) -> list[Sentence]:
        """The weakest of the four kinds of prediction."""
        row = self.lowest("quadrants")
        if row is None:
            return []
        confidence = self.at("quadrants", "confidence", quadrant=row["quadrant"])
        said = self.say(
            f"The weakest of the four kinds of {{prediction}} is “{row['quadrant']}”: {{share}} of its {{count}} "
            "{samples} are {right} (95% interval {ends})",
            **self.judgement("quadrants", row),
        )
        if confidence is not None:
            said += self.say(", at a mean {confidence} of {share}", share=self.share("quadrants", confidence))
        return [(*said, ".")]

    def cell(self) -> list[Sentence]:
        """The most overconfident cell of the grid."""
        rows = self.rows("grid", method=self.after, metric="overconfidence")
        certain = [row for row in rows if row["count"] >= ENOUGH and row["low"] > 0]
        if not rows:
            return []
        grid = " × ".join(map(str, self.evaluation.settings["grid"]))
        if not certain:
            few = f"No cell of the {grid} grid with at least {ENOUGH} {{samples}} is overconfident beyond its "
            return [self.say(few + "95% interval.")]
        worst = max(certain, key=lambda row: row["value"])
        place = {"group": worst["group"], "confidence_group": worst["confidence_group"]}
        confidence, accuracy = self.at("grid", "confidence", **place), self.at("grid", "accuracy", **place)
        if confidence is None or accuracy is None:
            return []
        said = self.say(
            f"The most overconfident cell of the {grid} grid is atypicality group {worst['group'] + 1}, {{confidence}} "
            f"group {worst['confidence_group'] + 1}: mean {{confidence}} {{said}}, and {{share}} of {{count}} "
            "{samples} {right} (95% interval {ends}).",
            said=self.share("grid", confidence),
            **self.judgement("grid", accuracy),
        )
        return [said]

    def bands(self) -> list[Sentence]:
        """Where no rarity is known: bands of confidence, the lowest and the most overconfident."""
        if self.rows("grid", method=self.after, metric="overconfidence"):
            return []
        bins = self.rows("calibration_curve", method=self.after, metric="accuracy")
        known = [row for row in bins if row["count"] >= ENOUGH]
        if not known:
            return []
        rows = self.rows("calibration_curve", method=self.after, metric="confidence")
        means = {row["bin"]: row["value"] for row in rows}
        over = [row for row in known if means[row["bin"]] > row["high"]]
        worst = max(over, key=lambda row: means[row["bin"]] - row["value"], default=None)
        named = {"least confident": known[0]} | ({} if worst in (None, known[0]) else {"most overconfident": worst})
        none = f"No band of {{confidence}} of at least {ENOUGH} {{samples}} is overconfident beyond its 95% interval."
        said = [self._band(kind, row, len(bins)) for kind, row in named.items()]
        return said if over else [*said, self.say(none)]

    def accepted(self) -> list[Sentence]:
        """Errors among what is accepted, and that rare inputs are not told apart, where nothing is known of rarity."""
        if self.rows("grid", method=self.after, metric="overconfidence"):
            return []
        risk = self.at("overall", "accepted_risk")
        words = "Of the {count} accepted {predictions} {share} are wrong (95% interval {ends})."
        said = [] if risk is None else [self.say(words, **self.judgement("overall", risk))]
        return [*said, self.say("How rare {samples} are is not known: that needs embeddings, or atypicality.")]

    def _band(self, kind: str, row: Mapping[str, Any], n_bins: int) -> Sentence:
        low, high = (f"{100 * edge / n_bins:.4g}%" for edge in (row["bin"], row["bin"] + 1))
        return self.say(
            f"The {kind} band of at least {ENOUGH} {{samples}} has a {{confidence}} of {low} to {high}: {{share}} of "
            "{count} {samples} are {right} (95% interval {ends}).",
            **self.judgement("calibration_curve", row),
        )

    def weakest(self) -> list[Sentence]:
        """The class and the subgroup with the lowest accuracy."""
        said = {
            "classes": f"The class of at least {ENOUGH} {{samples}} that is recognised least",
            "subgroups": f"The subgroup of at least {ENOUGH} {{samples}} with the lowest accuracy",
        }
        found = {table: row for table in said if (row := self.lowest(table)) is not None}
        return [
            self.say(
                f"{said[table]} is {{name}}: {{share}} of {{count}} {{samples}} are {{right}} (95% interval {{ends}}).",
                name=Name(self.place_name(table, row)),
                **self.judgement(table, row),
            )
            for table, row in found.items()
        ]

    def lowest(self, table: str) -> dict[str, Any] | None:
        """The row of lowest accuracy among groups with enough samples."""
        rows = [row for row in self.rows(table, method=self.after, metric="accuracy") if row["count"] >= ENOUGH]
        return min(rows, key=lambda row: row["value"], default=None)

    def unjudged(self) -> list[Sentence]:
        """Classes with too few samples for the sentences above: what little is known of them."""
        rows = self.rows("classes", method=self.after, metric="accuracy")
        few = sorted((row for row in rows if 0 < row["count"] < ENOUGH), key=lambda row: row["value"])
        if not few:
            return []
        parts: list[str | SourcedNumber | Name] = [
            *self.say(f"Classes of fewer than {ENOUGH} {{samples}} are not judged above: ")
        ]
        for place, row in enumerate(few[:MOST_NAMED]):
            held = self.at("classes", "coverage", class_index=row["class_index"])
            parts += ["; " if place else "", Name(self.place_name("classes", row)), ", "]
            parts += self.say("{share} of {count} {right} ({ends})", **self.judgement("classes", row))
            parts += [] if held is None else [", ", self.share("classes", held), " in their prediction sets"]
        return [(*parts, f"; and {len(few) - MOST_NAMED} more." if len(few) > MOST_NAMED else ".")]

    def short(self, table: str) -> list[dict[str, Any]]:
        """Groups with enough samples whose sets cover less than the target beyond the interval, the lowest first."""
        alpha = self.setting("alpha")
        rows = [] if alpha is None else self.judged(table, "coverage")
        found = [row for row in rows if row["count"] >= ENOUGH and row["high"] < 1 - alpha]
        return sorted(found, key=lambda row: row["value"])

    def gaps(self) -> list[Sentence]:
        """The group of every kind whose sets cover least, where that is less than the target."""
        alpha = self.setting("alpha")
        known = [table for table in AXES if self.judged(table, "coverage")]
        if alpha is None or not known:
            return []
        short = {table: rows for table in known if (rows := self.short(table))}
        if not short:
            names = [AXES[table] for table in known]
            kinds = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
            none = f"No {kinds} of at least {ENOUGH} {{samples}} has prediction sets that fall short of the target "
            return [self.say(none + "beyond their 95% interval.")]
        return [
            self.say(
                f"Prediction sets hold the true class less often than the target for the {PREFIX.get(table, '')}"
                f"{{name}}: {{share}} of {{count}} {{samples}} (95% interval {{ends}}), where the target is "
                f"{100 * (1 - alpha):.4g}%" + (f"; and for {len(rows) - 1} more." if len(rows) > 1 else "."),
                name=Name(self.place_name(table, rows[0])),
                **self.judgement(table, rows[0]),
            )
            for table, rows in short.items()
        ]


AXES = {
    "atypicality_groups": "atypicality group",
    "confidence_groups": "{confidence} group",
    "class_groups": "group of classes",
    "classes": "class",
    "quadrants": "quadrant",
    "subgroups": "subgroup",
}
PREFIX = {table: f"{AXES[table]} " for table in ("classes", "quadrants", "subgroups")}


def _against(target: float, coverage: Mapping[str, Any]) -> str:
    """What an interval of coverage says of its target."""
    if coverage["low"] > target:
        return ": more than the target, so the sets are larger than it asks for"
    return ": less than the target" if coverage["high"] < target else ""


def finer(form: str, values: list[float]) -> str:
    """A form with as many digits as make small numbers and small changes visible, at most two more than it has."""
    digits, kind = int(form[3]), form[4]
    for more in range(digits, digits + 3):
        texts = {f"{value:.{more}{kind}}" for value in values}
        if len(texts) == len({round(value, 6) for value in values}) and all(float(text.rstrip("%")) for text in texts):
            return f"{{:.{more}{kind}}}"
    return form
