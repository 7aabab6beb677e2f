"""Whether the words of advice hold, on held-out rows that set no threshold."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.conformal import AtypicalityAwareConformal, ConditionalConformal
from atypicality.conformal.chance import Seeds, split_rows
from atypicality.formula import ADVICE, ASK, CHOOSE
from atypicality.validation import warn

__all__ = ["checked_words", "right_if_followed", "unthresholded_rows"]

ENOUGH = 20
"""Rows of a word below which nothing is said of it."""
DOUBT = 0.01
"""Chance of as many errors as there are, below which a word does not hold: it is tested in every fit."""


def right_if_followed(number: NDArray[Any], correct: NDArray[Any], covered: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each advice (n,) was right: the set held the label where a person was to choose, else the prediction.

    >>> right_if_followed(np.array([0, 2]), np.array([True, False]), np.array([True, True])).tolist()
    [True, True]
    """
    return np.where(number == CHOOSE, covered, correct).astype(bool)


def checked_words(number: NDArray[Any], right: NDArray[np.bool_], allowed: float) -> dict[str, dict[str, int]]:
    """Rows of each word, and on how many it was right; warns where clearly fewer than 1 - `allowed` are."""
    from scipy.stats import binom

    counts = {
        word: {"count": int((number == code).sum()), "right": int(right[number == code].sum())}
        for code, word in enumerate(ADVICE)
    }
    for word, row in counts.items():
        wrong = row["count"] - row["right"]
        if word != ADVICE[ASK] and row["count"] >= ENOUGH and binom.sf(wrong - 1, row["count"], allowed) < DOUBT:
            warn(
                f"the advice {word!r} was right for {row['right']} of {row['count']} held-out rows, less than the "
                f"{1 - allowed:.3g} that it stands for. Give more calibration rows, another recalibration, or sets "
                "that depend on atypicality; evaluate() shows each word on your own rows."
            )
    return counts


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
