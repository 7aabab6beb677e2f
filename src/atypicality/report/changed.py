"""The report's first cards: what improved, what got worse, what is not shown to have changed, and where to be careful.

Which change is shown is decided in `atypicality.evaluation.changes`; here it is put into sentences.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from atypicality.evaluation import Evaluation
from atypicality.evaluation.changes import AXES, BETTER, KEYS, RISES, UNCLEAR, WORSE, changed
from atypicality.report.summary import ENOUGH, MOST_NAMED, OVERALL, SHORT, Facts, Name, Sentence, finer

__all__ = ["ReportSummary", "summarise"]

MORE = {"brier": ("The Brier score", "{:.3f}")}  # told only where it got worse
MOST_CHANGED = {BETTER: 3, WORSE: 6}  # groups that are named
LEAST_P = 1e-4  # of a smaller p no more is said


@dataclass(frozen=True)
class ReportSummary:
    """Sentences for the top of the report, a card each.

    `improved` and `worse` are changes that the table `changes` shows, `unclear` those that it does not. `levels` say
    how good the method after is, where that is no change.
    """

    improved: tuple[Sentence, ...]
    worse: tuple[Sentence, ...]
    caution: tuple[Sentence, ...]
    unclear: tuple[Sentence, ...] = ()
    levels: tuple[Sentence, ...] = ()


def summarise(evaluation: Evaluation, before: str | None, after: str) -> ReportSummary:
    """What changed from the method `before` (None: there is no other) to `after`, and where `after` is weak."""
    facts = Facts(evaluation, before, after)
    levels = (*facts.overall(), *facts.most_atypical(), *facts.signal(), *facts.sets())
    found = [Changes(facts, verdict).sentences() for verdict in (BETTER, WORSE, UNCLEAR)] if before else [()] * 3
    caution = [*facts.words(), *facts.quadrant(), *facts.cell(), *facts.bands(), *facts.weakest(), *facts.gaps()]
    selected = (*caution, _SELECTED, *facts.accepted()) if caution else ()
    return ReportSummary(found[0], found[1], (*selected, *facts.unjudged()), found[2], levels)


_SELECTED: Sentence = ("Each of these is the lowest of several groups, so a part of its distance may be chance.",)


class Changes:
    """Sentences about changes of one verdict, all in the order in which a reader needs them."""

    def __init__(self, facts: Facts, verdict: str) -> None:
        self.facts, self.verdict = facts, verdict
        rows = changed(facts.evaluation, facts.before or "", facts.after)
        self.whole = {row["metric"]: row for row in rows if row["axis"] == "overall"}
        self.groups = [row for row in rows if row["axis"] != "overall"]
        self.last = max((row["group"] for row in rows if row["axis"] == "atypicality"), default=None)

    def sentences(self) -> tuple[Sentence, ...]:
        """Numbers over all samples, the most atypical group, then other groups."""
        forms = OVERALL | (MORE if self.verdict == WORSE else {})
        known = [(self.whole[metric], *words) for metric, words in forms.items() if metric in self.whole]
        found = [self.told(row, *words) for row, *words in known if self._is(row)]
        groups = self._groups()
        number = next((row["comparisons"] for row in self.groups if row["comparisons"]), 1)
        corrected = [(f"The p of groups is corrected for {number} comparisons.",)] if groups and number > 1 else []
        return (*filter(None, found), *groups, *corrected)

    def _groups(self) -> list[Sentence]:
        mine = [row for row in self.groups if self._is(row)]
        first = [row for row in mine if row["axis"] == "atypicality" and row["group"] == self.last]
        rest = [row for row in mine if row not in first]
        if self.verdict == UNCLEAR:
            rest = [row for row in rest if self._fell(row) and row["count"] >= ENOUGH]
            rest.sort(key=lambda row: row["p_value"])
            return [self._of_group(row) for row in (*first, *rest[:MOST_NAMED])]
        rest.sort(key=lambda row: -abs(row["value"]))
        most = MOST_CHANGED[self.verdict]
        said, more = [self._of_group(row) for row in (*first, *rest[:most])], len(rest) - most
        return said + ([(f"So did {more} more, all in the table of changes of the evaluation.",)] if more > 0 else [])

    def _is(self, row: Mapping[str, Any]) -> bool:
        return bool(row["verdict"] == self.verdict)

    def _fell(self, row: Mapping[str, Any]) -> bool:
        """Whether a change that is not shown is for the worse, by as much as can be seen."""
        return bool((-row["value"] if row["metric"] in RISES else row["value"]) > 5e-4)

    def _of_group(self, row: dict[str, Any]) -> Sentence:
        words = f"{SHORT[row['metric']][0].upper()}{SHORT[row['metric']][1:]} of {{name}}"
        name = self.facts.place_name(AXES[row["axis"]], row)
        if row["axis"] == "atypicality" and row["group"] == self.last:
            words, name = words.replace("{name}", f"the most atypical of {self.last + 1} groups"), ""
        return self.told(row, words, "{:.1%}", name)

    def told(self, row: dict[str, Any], words: str, form: str, named: str = "") -> Sentence:
        """How a metric changed, and what shows it."""
        facts, table = self.facts, AXES[row["axis"]]
        where = {key: row[key] for key in KEYS if row[key] is not None}
        before, after = (facts.at(table, row["metric"], method, **where) for method in (facts.before, facts.after))
        if before is None or after is None:
            return ()
        form = finer(form, [before["value"], after["value"]])
        start, end = facts.number(form, table, before), facts.number(form, table, after)
        moved = f"{'rose' if end.value > start.value else 'fell'} from {{start}} to {{end}}"
        if start.text == end.text:
            moved = ("{accuracy_stayed}" if row["metric"] == "accuracy" else "stayed at") + " {end}"
        said = facts.say(f"{words} {moved}", name=Name(named), start=start, end=end)
        return (*said, *self._shown(row, form, (before, after), table), ".")

    def _shown(self, row: dict[str, Any], form: str, ends: tuple[Any, Any], table: str) -> Sentence:
        facts, kind = self.facts, form[4]
        if row.get("lost") is not None:
            lost, gained = ("gained", "lost") if row.get("turned") else ("lost", "gained")
            return facts.say(
                ": {lost} lost, {gained} gained of {count} ({p})",
                lost=replace(facts.number("{:,}", "changes", row, "lost"), column=lost),
                gained=replace(facts.number("{:,}", "changes", row, "gained"), column=gained),
                count=facts.count(table, ends[1]),
                p=self._p(row),
            )
        if not row.get("turned") and not row.get("apart") and math.isfinite(row["low"]):
            wide = f"{{:.{2 if kind == '%' else 4}{kind}}}"
            return facts.say(
                " (difference on the same {samples} {value}, 95% interval {ends}{more})",
                value=facts.number(wide, "changes", row),
                ends=facts.interval(wide, "changes", row),
                more="" if row["axis"] == "overall" else ("; ", *self._p(row)),
            )
        first, second = (facts.interval(form, table, one) for one in ends)
        return facts.say(" (95% intervals {first} and {second})", first=first, second=second)

    def _p(self, row: dict[str, Any]) -> Sentence:
        """The p of a change, corrected where it is that of one of several groups."""
        if row["adjusted"] < LEAST_P:
            return (f"p < {LEAST_P:.4f}",)
        return ("p = ", self.facts.number("{:.2g}", "changes", row, "adjusted"))
