"""Advice: the rule of a head, what a person is to choose among, and whether the words hold on held-out rows."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import to_host
from atypicality.conformal import AtypicalityAwareConformal, ConditionalConformal
from atypicality.conformal.chance import Seeds, split_rows
from atypicality.formula import ADVICE, ASK, CHOOSE, AdviceRule, longest_choice
from atypicality.head.parts import sets_of
from atypicality.metrics.laws import at_most
from atypicality.metrics.rows import read_pairs
from atypicality.outputs import ModelOutputs
from atypicality.validation import check_alpha, warn

__all__ = [
    "advice_of", "advice_rule", "checked_words", "choices", "measured_advice", "right_if_followed", "trusted_from",
    "unthresholded_rows",
]  # fmt: skip

ENOUGH = 20  # rows of a word below which nothing is said of it
DOUBT = 0.01  # chance of as many errors as there are, below which a word does not hold: it is tested in every fit
APART = 2.326
"""Standard errors by which a word may be right more often than the one before it: by chance as seldom as `DOUBT`."""
REMEDY = "give more calibration rows, another density or recalibration, or sets that depend on atypicality"


def trusted_from(head: Any) -> float:
    """The confidence that an advice to trust needs: as many are right, if calibrated, as sets are to cover."""
    return float(1 - check_alpha(getattr(head.prediction_sets_, "alpha", head.alpha)))


def advice_rule(head: Any, max_risk: float | None = None) -> AdviceRule:
    """The rule of a fitted head: confident by its alpha, atypical by its quadrants, never beyond its held-out rows.

    With `max_risk` the rule also says which predictions are accepted.
    """
    if max_risk is not None and getattr(head, "acceptance_", None) is not None:
        raise ValueError("max_risk of a head with acceptance= is decided by its predict alone; leave it out here.")
    keep_from = None if max_risk is None else head.abstention_.threshold(max_risk)
    confident, longest = trusted_from(head), longest_choice(head.n_classes_)
    if head.quadrants_ is None or head.quantiles_ is None:
        return AdviceRule(confident, longest, keep_from=keep_from)
    confident = max(confident, head.quadrants_.confidence_threshold_)  # those of older heads are relative
    scales = head.quantiles_, getattr(head, "recalibration_quantiles_", None)
    own, other = (None if scale is None else scale.furthest for scale in scales)
    return AdviceRule(confident, longest, head.quadrants_.atypicality_threshold_, own, keep_from, other)


def advice_of(rule: AdviceRule, confidence: Any, atypicality: Any, sets: Any, covariate: Any = None) -> NDArray[Any]:
    """Number of each row's advice (n,), from columns (n,) of numbers and prediction sets (n, k); see `AdviceRule`."""
    columns = (None if column is None else to_host(column)[:, None] for column in (atypicality, covariate))
    rarity, other = columns
    found: NDArray[Any] = rule.index(np, to_host(confidence)[:, None], rarity, to_host(sets), other)[:, 0]
    return found


def measured_advice(head: Any, probs: Any, atypicality: Any, outputs: ModelOutputs) -> dict[str, dict[str, int]]:
    """How often each advice is right on rows that set no threshold; warns of one that does not hold."""
    sets, labels = to_host(sets_of(head, probs, atypicality, outputs.attributes)), outputs.need("labels")
    pairs, classes = read_pairs(probs, labels, None, None), to_host(labels)
    number = advice_of(advice_rule(head), np.minimum(pairs.confidence, 1.0), atypicality, sets)
    listed = choices(number, to_host(probs), sets)[np.arange(len(classes)), classes]
    return checked_words(number, pairs.correct, listed, 1 - trusted_from(head))


def choices(number: NDArray[Any], probs: NDArray[Any], sets: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Classes that a person is to choose among (n, k), none of other rows, from advice (n,), probabilities and sets.

    They are the set, and the most probable other class where it holds one.

    >>> probs, sets = np.array([[0.7, 0.1, 0.2]] * 2), np.array([[True, False, False]] * 2)
    >>> choices(np.array([2, 3]), probs, sets).tolist()
    [[True, False, True], [False, False, False]]
    """
    found = np.where((number == CHOOSE)[:, None], sets, False)
    alone = np.flatnonzero(np.count_nonzero(found, axis=1) == 1)
    found[alone, np.where(sets[alone], -1.0, probs[alone]).argmax(axis=1)] = True
    return found


def right_if_followed(number: NDArray[Any], correct: NDArray[Any], listed: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each advice (n,) was right: the label was among the choices where there were some, else predicted.

    >>> right_if_followed(np.array([0, 2]), np.array([True, False]), np.array([True, True])).tolist()
    [True, True]
    """
    return np.where(number == CHOOSE, listed, correct).astype(bool)


def checked_words(
    number: NDArray[Any], correct: NDArray[np.bool_], listed: NDArray[np.bool_], allowed: float, remedy: str = REMEDY
) -> dict[str, dict[str, int]]:
    """Rows of each word, on how many it and on how many the prediction was right; warns where a word does not hold.

    It does not where it is right for clearly fewer than 1 - `allowed`, or the prediction clearly more often than in
    rows of the word before it; `remedy` is what to do then.
    """
    right, words = right_if_followed(number, correct, listed), [number == code for code in range(len(ADVICE))]
    counts = {
        name: {"count": int(word.sum()), "right": int(right[word].sum()), "predicted": int(correct[word].sum())}
        for name, word in zip(ADVICE, words, strict=True)
    }
    _warn_of_errors(counts, allowed, remedy)
    _warn_of_disorder({word: row for word, row in counts.items() if row["count"] >= ENOUGH}, remedy)
    return counts


def _warn_of_errors(counts: dict[str, dict[str, int]], allowed: float, remedy: str) -> None:
    for word, row in counts.items():
        wrong = row["count"] - row["right"]
        if word != ADVICE[ASK] and row["count"] >= ENOUGH and 1 - at_most(wrong - 1, row["count"], allowed) < DOUBT:
            warn(
                f"the advice {word!r} was right for {row['right']} of {row['count']} held-out rows, less than the "
                f"{1 - allowed:.3g} that it stands for: {remedy}. "
                "evaluate() shows each word on your own rows."
            )


def _warn_of_disorder(counts: dict[str, dict[str, int]], remedy: str) -> None:
    for (word, row), (later, other) in pairwise(counts.items()):
        sizes, right = [one["count"] for one in (row, other)], [one["predicted"] for one in (row, other)]
        share = sum(right) / sum(sizes)
        error = (share * (1 - share) * (1 / sizes[0] + 1 / sizes[1])) ** 0.5
        if right[1] / sizes[1] - right[0] / sizes[0] > APART * error:
            warn(
                f"predictions with the advice {later!r} were right for {right[1]} of {sizes[1]} held-out rows, more "
                f"often than those with {word!r}, {right[0]} of {sizes[0]}. Confidence or atypicality misleads there: "
                f"{remedy}."
            )


def unthresholded_rows(sets: Any, n_rows: int, edge_rows: NDArray[np.bool_] | None) -> NDArray[np.intp] | None:
    """Positions of the rows that set edges and no threshold, of the `n_rows` that `sets` were fitted on.

    None where there are none: every row of split conformal prediction carries its coverage guarantee.
    """
    if edge_rows is not None and hasattr(sets, "n_edge_"):
        return np.flatnonzero(edge_rows)
    if not isinstance(sets, (AtypicalityAwareConformal, ConditionalConformal)):
        return None
    if getattr(sets, "mode", "valid") != "valid":
        return None
    edges, _ = split_rows(n_rows, sets.edge_fraction, "edge_fraction", Seeds(sets.seed_).generator("split"))
    return edges
