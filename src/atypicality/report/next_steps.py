"""The report's last card: what to do next, from the evaluation's tables. Every number is the evaluation's own."""

from typing import Any

from atypicality.conformal.guaranteed import RARITY
from atypicality.evaluation import Evaluation
from atypicality.metrics.intervals import wilson_rows
from atypicality.report.summary import AXES, ENOUGH, PREFIX, Facts, Name, Sentence, SourcedNumber

__all__ = ["in_code", "next_steps"]

DOUBTFUL = 0.01  # probability of a label, given the sample, below which it is looked at first
RISK = 0.05  # the share of errors among kept predictions that the next steps are told for


def next_steps(evaluation: Evaluation, after: str) -> tuple[Sentence, ...]:
    """What a person can do next about the method `after`, the most useful first."""
    facts = Facts(evaluation, None, after)
    return (*_for_a_person(facts), *_labels(facts), *_collect(facts), *_cover(facts), *_refit(facts))


def _for_a_person(facts: Facts) -> list[Sentence]:
    """How many of the least confident predictions to hand over for a stated share of errors among the rest."""
    if (share := facts.at("overall", "accepted_share")) is not None:
        why, lost = (_sentence(facts.setting(key)) for key in ("nothing_accepted", "lost_accepted"))
        first = [(lost,)] if lost else []
        return [*first, (*_accepted(facts, share), *((f" {why}",) if why else ())), *_accepted_groups(facts)]
    rows = facts.rows("risk_coverage", method=facts.after, metric="risk")
    kept = [row for row in rows if row["high"] <= RISK]
    if not rows or rows[-1]["high"] <= RISK:
        return [facts.say("All {predictions} can be kept at an error rate of 5%.")] if rows else []
    if not kept:
        return [_too_few(facts, min(rows, key=lambda row: row["high"]))]
    best = max(kept, key=lambda row: row["percent"])
    return [
        facts.say(
            f"For an error rate of at most {RISK:.0%}, send the least confident {100 - best['percent']}% of the "
            "{predictions} to a person: of the other {count}, {share} are wrong (95% interval {ends}).",
            **facts.judgement("risk_coverage", best),
        )
    ]


def _sentence(told: str | None) -> str:
    return f"{told[0].upper()}{told[1:]}" if told else ""


def _too_few(facts: Facts, best: dict[str, Any]) -> Sentence:
    """Why no share can be kept, from the share whose interval ends lowest, and how many rows would be enough."""
    enough = "Send all to a person."
    if best["value"] < RISK:
        needed = 100 * wilson_rows(best["value"], RISK) // best["percent"]
        enough = (
            f"If they go on to err as rarely, about {needed:,} {{labelled}} show it; until then send all to a person."
        )
    return facts.say(
        f"No share of the {{predictions}} is shown to err at a rate below {RISK:.0%}: of the most confident "
        f"{best['percent']}%, which are {{count}}, {{share}} are wrong (95% interval {{ends}}). {enough}",
        **facts.judgement("risk_coverage", best),
    )


def _accepted(facts: Facts, share: dict[str, Any]) -> Sentence:
    """What the head accepts at the risk that the evaluation asked for."""
    allowed = f"at a risk of at most {_allowed(facts)}"
    risk = facts.at("overall", "accepted_risk")
    if risk is None:
        return facts.say(f"Nothing is accepted {allowed}: give more {{calibration_rows}}, or allow more risk.")
    use, others = "Use the {share} of the {predictions} that are accepted", "Send the others to a person."
    if facts.setting("lost_accepted"):
        use = "{share} of the {predictions} are accepted"
        others = "Use those of them with the advice to trust, and send the others to a person."
    words = (
        f"{use} {allowed}: of these {{count}}, {{risk}} are wrong (95% interval {{ends}}). {others}{_guarantee(facts)}"
    )
    if risk["low"] > facts.evaluation.settings["max_risk"]:
        words = (
            f"Of the {{share}} of the {{predictions}} that are accepted {allowed}, {{count}}, {{risk}} are wrong (95% "
            "interval {ends}), more than allowed. That happens to one head in 20, or these {samples} differ from those "
            "that it was fitted on: fit again with more {calibration_rows} before accepting any."
        )
    told = facts.judgement("overall", risk)
    return facts.say(words, **told | {"share": facts.share("overall", share), "risk": told["share"]})


def _allowed(facts: Facts) -> str:
    return f"{100 * facts.evaluation.settings['max_risk']:.4g}%"


def _guarantee(facts: Facts) -> str:
    """With what confidence, from how many rows and for what the risk is guaranteed."""
    n = facts.setting("accepted_rows")
    rows = "" if n is None else f", from {n:,} held-out {{samples}}"
    return f" The risk is guaranteed with 95% confidence{rows}, for {{samples}} like those, all accepted ones together."


_ACCEPTED = {
    "subgroups": ("of the subgroup {name}", "subgroups", "Send these to a person too, or fit a head for them alone."),
    "classes": (
        "whose true class is {name}",
        "classes",
        "Look at what they are taken for; the true class is not known where a {prediction} is used.",
    ),
    "predicted_classes": ("predicted as {name}", "predicted classes", "Send these to a person too."),
}
"""Groups whose accepted predictions are looked at: how one is named, what they are called, and what to do."""


def _accepted_groups(facts: Facts) -> list[Sentence]:
    """Of each kind the group whose accepted predictions err most, where its interval is above what is allowed."""
    allowed = facts.evaluation.settings["max_risk"]
    said: list[Sentence] = []
    for table, (which, kinds, what) in _ACCEPTED.items():
        rows = facts.rows(table, method=facts.after, metric="accepted_risk")
        above = [row for row in rows if row["count"] >= ENOUGH and row["low"] > allowed]
        if above:
            worst = max(above, key=lambda row: row["value"])
            more = f" So are those of {len(above) - 1} more of the {kinds}." if len(above) > 1 else ""
            said.append(
                facts.say(
                    f"Of the {{count}} accepted {{samples}} {which} {{share}} are wrong (95% interval {{ends}}), more "
                    f"than {_allowed(facts)}: the risk is guaranteed for all {{samples}} together. {what}{more}",
                    name=Name(facts.place_name(table, worst)),
                    **facts.judgement(table, worst),
                )
            )
    return said


def _labels(facts: Facts) -> list[Sentence]:
    """Samples whose label is not the most credible class: errors of the model, and of labels among the first."""
    suspects, twins = facts.evaluation.table("suspects"), facts.evaluation.table("duplicates")
    said: list[Sentence] = []
    if suspects:
        classes = [row["label"] for row in suspects]
        most = max(dict.fromkeys(classes), key=classes.count)
        doubtful = sum(row["score"] < DOUBTFUL for row in suspects)
        look = f"no label among them has a probability below {DOUBTFUL:.0%}, so they are rather errors of the model"
        if doubtful:
            look = f"look first at the {doubtful:,} whose label has a probability below {DOUBTFUL:.0%} and may be wrong"
        words = (
            f"In the {len(suspects):,} {{samples}} listed below another class is more credible than the label, the "
            f"least credible label first: {look}. The commonest label of the {len(suspects):,} is {{name}} "
            f"({classes.count(most):,})."
        )
        said.append(facts.say(words, name=Name(facts.class_names.get(most) or str(most))))
    if twins:
        known = f"{len(twins):,} {{samples}} are nearly training rows, listed below: evaluate without them."
        said.append(facts.say(known))
    return said


def _collect(facts: Facts) -> list[Sentence]:
    """Classes that are recognised badly: of rare ones more rows help, of common ones a look at their labels."""
    accuracy = [row for row in facts.rows("classes", method=facts.after, metric="accuracy") if row["count"] >= ENOUGH]
    overall = facts.at("overall", "accuracy")
    weak = [row for row in accuracy if overall is not None and row["high"] < overall["value"]]
    if not weak:
        return []
    groups = {row["class_index"]: row["group"] for row in facts.evaluation.table("class_info")}
    last = max((group for group in groups.values() if group is not None), default=None)
    weak.sort(key=lambda row: row["value"])
    rare = [row for row in weak if last is not None and groups[row["class_index"]] == last]
    common = [row for row in weak if row not in rare]
    return [
        *_named(facts, "Collect training rows of classes that are rare and recognised least: ", rare),
        *_named(facts, "Look at labels and confusions of classes that are recognised least: ", common),
    ]


def _named(facts: Facts, words: str, rows: list[dict[str, Any]]) -> list[Sentence]:
    found = [("classes", row) for row in rows]
    return [(words, *_listed(facts, found, f" {facts.wording['right']}"), ".")] if rows else []


def _listed(facts: Facts, rows: list[tuple[str, dict[str, Any]]], what: str = "", kinds: bool = False) -> Sentence:
    """Three groups by name, and by their kind too, each with the value of its row in brackets."""
    parts: list[str | SourcedNumber | Name] = []
    for place, (table, row) in enumerate(rows[:3]):
        before = (", " if place else "") + (PREFIX.get(table, "") if kinds else "")
        parts += [before, Name(facts.place_name(table, row)), " (", facts.share(table, row), f"{what})"]
    return tuple(parts)


def _uncovered(facts: Facts) -> dict[str, dict[str, Any]]:
    """What prediction sets can be asked to cover, with the group that is covered least: classes, and attributes."""
    asked = (facts.setting("covered_groups") or "").split(", ")
    classes = dict(zip([RARITY], facts.short("classes"), strict=False))
    found = classes | {row["attribute"]: row for row in facts.short("subgroups")[::-1]}
    return {name: row for name, row in found.items() if name not in asked}


def _cover(facts: Facts) -> list[Sentence]:
    """What guarantees coverage by class and by subgroup, where these are covered too rarely."""
    without = ", without cv" if facts.setting("cross_fitted") else ""
    classes = (
        "Coverage is guaranteed over all classes together. For coverage of rare ones too, fit a head with prediction "
        f"sets by class rarity, or by groups of classes{without} (in code: see About)."
    )
    attributes = (
        "For coverage of each value of {name}{cut}, fit a head with prediction sets by {name}{without} (in code: see "
        "About)."
    )
    said: list[Sentence] = []
    for name, row in _uncovered(facts).items():
        cut = ", cut into a few values" if str(row.get("subgroup")).startswith("group ") else ""
        words = classes if "class_index" in row else attributes
        said.append(facts.say(words, name=Name(name), cut=cut, without=without))
    return said


def in_code(evaluation: Evaluation, after: str) -> list[str]:
    """How a head is made that the next steps speak of."""
    found = _uncovered(Facts(evaluation, None, after))
    return [f"ReliabilityHead(prediction_sets=ConditionalConformal(groups={name!r}))" for name in found]


def _refit(facts: Facts) -> list[Sentence]:
    """Whether the head should be fitted again, or on more rows."""
    coverage, alpha = facts.at("overall", "coverage"), facts.setting("alpha")
    over, said = facts.at("overall", "overconfidence"), None
    if coverage is not None and alpha is not None and coverage["high"] < 1 - alpha:
        said = (
            "Refit on rows like these that the model was not trained on: prediction sets hold the label too rarely, "
            "beyond the interval, as they do where {calibration_rows} are training rows, or older ones."
        )
    elif facts.words():
        said = "Give more {calibration_rows}, or newer ones: a word of advice does not hold on these {samples}."
    elif over is not None and over["low"] > 0.01:
        said = "Recalibrate: {confidence} is above accuracy beyond its interval."
    elif coverage is not None:
        return [_holds(facts)]
    return [] if said is None else [facts.say(said)]


def _holds(facts: Facts) -> Sentence:
    """Coverage of all samples holds: no refit is called for, unless groups fall short or nothing is accepted."""
    short = [(table, row) for table in AXES for row in facts.short(table)]
    short.sort(key=lambda one: one[1]["value"])
    if short:
        more = f", and {len(short) - 3} more." if len(short) > 3 else "."
        return ("Overall coverage holds; these groups fall short: ", *_listed(facts, short, kinds=True), more)
    if facts.at("overall", "accepted_share") is not None and facts.at("overall", "accepted_risk") is None:
        return facts.say("Coverage over all {samples} and advice hold.")
    return facts.say("No refit is called for: coverage over all {samples} and advice hold.")
