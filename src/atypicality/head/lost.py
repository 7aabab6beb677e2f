"""Lost classes: those whose held-out rows are, for the most part, predicted as another class with confidence."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import take_rows, to_host
from atypicality.formula import ADVICE
from atypicality.head.abstention import LOST_SHARE, clear_majority, lost_at
from atypicality.head.advice import advice_of, advice_rule, trusted_from
from atypicality.head.parts import sets_of
from atypicality.head.prediction import known_formula
from atypicality.outputs import ModelOutputs
from atypicality.validation import name_classes, numbered, warn

__all__ = ["warn_of_lost_accepted", "warn_of_lost_trusted"]

MOST_LISTED = 5  # classes in a warning
TRUSTED = [number for number, word in enumerate(ADVICE) if word.startswith("trust")]
REMEDY = (
    'Give the head prediction_sets=ConditionalConformal(groups="class rarity"), whose sets hold such a class as often '
    "as any other, and follow its advice; or decide by the probability of the class."
)
COVERED = "Follow the advice instead: the prediction sets of this head are valid for groups of classes."

Vector = NDArray[np.float64]
Classes = NDArray[np.intp]


def warn_of_lost_trusted(
    head: Any, probs: Any, confidence: Vector, predicted: Classes, atypicality: Any, outputs: ModelOutputs
) -> None:
    """Warn of classes most of whose held-out rows have the advice to trust another class."""
    labels, trusted = to_host(outputs.need("labels")), trusted_from(head)
    lost = lost_at(confidence, predicted, labels, head.n_classes_) >= trusted
    rows = np.flatnonzero(lost[labels] & (predicted != labels) & (confidence >= trusted))
    if not rows.size:
        return
    rarity = None if atypicality is None else take_rows(atypicality, rows)
    sets = to_host(sets_of(head, take_rows(probs, rows), rarity, outputs._part(rows).attributes))
    advice = advice_of(advice_rule(head), confidence[rows], rarity, sets)
    counts, among = (
        np.bincount(part, minlength=head.n_classes_) for part in (labels, labels[rows[np.isin(advice, TRUSTED)]])
    )
    found = np.flatnonzero(among >= clear_majority(counts))
    if found.size:
        shares = {one: f"{among[one]:,} of {counts[one]:,} rows" for one in found.tolist()}
        warn(
            f"the advice is to trust another class in most held-out rows of {_listed(head, shares)}, which coverage "
            f"and accuracy over all rows do not show. {REMEDY}"
        )


def warn_of_lost_accepted(head: Any, max_risk: float) -> None:
    """Warn of classes most of whose held-out rows would be accepted as another class, at a risk that excludes it."""
    rule = head.abstention_
    known = rule.lost_at is not None and head.reference_ is not None
    if not known or max_risk >= LOST_SHARE or rule.lost_at.max() < 0:
        return
    formula = None if head.acceptance_ is not None else known_formula(head, max_risk)
    threshold = rule.threshold(max_risk) if formula is None else formula.advice.keep_from  # found once, not every time
    found = np.flatnonzero(rule.lost_at >= threshold)
    if found.size:
        sizes = {one: f"{head.reference_.labels[one]:,} rows" for one in found.tolist()}
        covered = getattr(head.prediction_sets_, "class_group_names_", ())
        warn(
            f"at max_risk={max_risk:g} another class is accepted in most held-out rows of {_listed(head, sizes)}: the "
            f"risk is that of all accepted rows together. {COVERED if covered else REMEDY}"
        )


def _listed(head: Any, words: dict[int, str]) -> str:
    """Classes by name, each with what is to be said of its rows."""
    with numbered(None, head.class_names_):
        found = [f"class {name_classes([one])}, {said}" for one, said in words.items()]
    return "; ".join(found[:MOST_LISTED]) + (f"; and {len(found) - MOST_LISTED} more" if found[MOST_LISTED:] else "")
