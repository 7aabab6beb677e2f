"""Lost classes: those whose held-out rows are, for the most part, used without the class, on confident predictions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import take_rows, to_host
from atypicality.formula import ASK, EVEN
from atypicality.head.abstention import LOST_SHARE, clear_majority, lost_at
from atypicality.head.advice import advice_of, advice_rule, choices
from atypicality.head.parts import sets_of
from atypicality.head.prediction import known_formula
from atypicality.outputs import ModelOutputs
from atypicality.validation import name_classes, numbered, warn

__all__ = ["lost_accepted", "warn_of_lost_accepted", "warn_of_lost_advised"]

MOST_LISTED = 5  # classes in a warning
REMEDY = (
    'Give the head prediction_sets=ConditionalConformal(groups="class rarity") (a classifier without cv=), whose sets '
    "hold such a class as often as any other, and follow its advice; or decide by the probability of the class."
)
COVERED = "Follow the advice instead: the prediction sets of this head are valid for groups of classes."
ALONE = "Put the class into a group of its own, groups={name: group, ...}, or decide by its probability."

Vector = NDArray[np.float64]
Classes = NDArray[np.intp]


def warn_of_lost_advised(
    head: Any, probs: Any, confidence: Vector, predicted: Classes, atypicality: Any, outputs: ModelOutputs
) -> None:
    """Warn of classes without which most of their held-out rows are advised: trusted, or put to a choice."""
    labels = to_host(outputs.need("labels"))
    lost = lost_at(confidence, predicted, labels, head.n_classes_) >= EVEN  # with less a person is asked
    rows = np.flatnonzero(lost[labels] & (predicted != labels) & (confidence >= EVEN))
    if not rows.size:
        return
    rarity = None if atypicality is None else take_rows(atypicality, rows)
    without = _without(head, take_rows(probs, rows), confidence[rows], rarity, outputs._part(rows))
    counts, among = (np.bincount(part, minlength=head.n_classes_) for part in (labels, labels[rows[without]]))
    found = np.flatnonzero(among >= clear_majority(counts))
    if found.size:
        shares = {one: f"{among[one]:,} of {counts[one]:,} rows" for one in found.tolist()}
        warn(
            f"the advice is to trust another class, or to choose among others, in most held-out rows of "
            f"{_listed(head, shares)}, which coverage and accuracy over all rows do not show. "
            f"{ALONE if _by_class(head) else REMEDY}"
        )


def _without(head: Any, probs: Any, confidence: Vector, atypicality: Any, outputs: ModelOutputs) -> NDArray[np.bool_]:
    """Whether the advice of rows that are predicted wrong leaves out the label, and asks no person."""
    sets, labels = to_host(sets_of(head, probs, atypicality, outputs.attributes)), to_host(outputs.need("labels"))
    advice = advice_of(advice_rule(head), confidence, atypicality, sets)
    listed = choices(advice, to_host(probs), sets)[np.arange(len(labels)), labels]
    return np.asarray((advice != ASK) & ~listed)


def warn_of_lost_accepted(head: Any, max_risk: float) -> None:
    """Warn of classes most of whose held-out rows would be accepted as another class, at a risk that excludes it."""
    told = lost_accepted(head, max_risk, partial(_known_threshold, head))
    if told is not None:
        warn(told)


def _known_threshold(head: Any, max_risk: float) -> float:
    """The head's own threshold, found once and not at every prediction where it has a formula."""
    formula: Any = None if head.acceptance_ is not None else known_formula(head, max_risk)
    return float(head.abstention_.threshold(max_risk) if formula is None else formula.advice.keep_from)


def lost_accepted(head: Any, max_risk: float, threshold: Callable[[float], float] | None = None) -> str | None:
    """What is said of such classes; None where there are none, or where nothing is known of them."""
    rule: Any = getattr(head, "abstention_", None)
    lost, held_out = getattr(rule, "lost_at", None), getattr(head, "reference_", None)
    if lost is None or held_out is None or max_risk >= LOST_SHARE or lost.max() < 0:
        return None
    found = np.flatnonzero(lost >= (threshold or rule.threshold)(max_risk))
    if not found.size:
        return None
    sizes = {one: f"{held_out.labels[one]:,} rows" for one in found.tolist()}
    return (
        f"at max_risk={max_risk:g} another class is accepted in most held-out rows of {_listed(head, sizes)}: the "
        f"risk is that of all accepted rows together. {COVERED if _by_class(head) else REMEDY}"
    )


def _by_class(head: Any) -> bool:
    return bool(getattr(head.prediction_sets_, "class_group_names_", ()))


def _listed(head: Any, words: dict[int, str]) -> str:
    """Classes by name, each with what is to be said of its rows."""
    with numbered(None, head.class_names_):
        found = [f"class {name_classes([one])}, {said}" for one, said in words.items()]
    return "; ".join(found[:MOST_LISTED]) + (f"; and {len(found) - MOST_LISTED} more" if found[MOST_LISTED:] else "")
