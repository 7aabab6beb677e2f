"""What a person is to choose among, and whether the words of advice hold, on held-out rows that set no threshold."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.conformal import AtypicalityAwareConformal, ConditionalConformal
from atypicality.conformal.chance import Seeds, split_rows
from atypicality.formula import ADVICE, ASK, CHOOSE, AdviceRule, longest_choice
from atypicality.validation import warn

__all__ = ["advice_rule", "checked_words", "choices", "right_if_followed", "unthresholded_rows"]

ENOUGH = 20
"""Rows of a word below which nothing is said of it."""
DOUBT = 0.01
"""Chance of as many errors as there are, below which a word does not hold: it is tested in every fit."""
APART = 2.326
"""Standard errors by which a word may be right more often than the one before it: by chance as seldom as `DOUBT`."""
ROUNDING = 1e-9
REMEDY = "give more calibration rows, another density or recalibration, or sets that depend on atypicality"


def advice_rule(
    confident: float, n_classes: int, quadrants: Any, quantiles: Any, keep_from: float | None, other: Any = None
) -> AdviceRule:
    """The rule of a head: confident from `confident` on, atypical by its quadrants, never beyond its held-out rows.

    Without atypicality, `quadrants` and `quantiles` are None; `keep_from` is as in `AdviceRule`, and `other` are
    quantiles of the atypicality that recalibration uses, where it is another.
    """
    longest = longest_choice(n_classes)
    if quadrants is None or quantiles is None:
        return AdviceRule(confident, longest, keep_from=keep_from)
    confident = max(confident, quadrants.confidence_threshold_)  # those of older heads are relative
    furthest = [None if scale is None else _beyond(float(scale.values[-1])) for scale in (quantiles, other)]
    return AdviceRule(confident, longest, quadrants.atypicality_threshold_, furthest[0], keep_from, furthest[1])


def _beyond(furthest: float) -> float:
    """A little more than the furthest row, which itself is not beyond, whoever adds up its sum."""
    return furthest + ROUNDING * max(1.0, abs(furthest))


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
    number: NDArray[Any],
    correct: NDArray[np.bool_],
    listed: NDArray[np.bool_],
    allowed: float,
    remedy: str = REMEDY,
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
    from scipy.stats import binom

    for word, row in counts.items():
        wrong = row["count"] - row["right"]
        if word != ADVICE[ASK] and row["count"] >= ENOUGH and binom.sf(wrong - 1, row["count"], allowed) < DOUBT:
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
