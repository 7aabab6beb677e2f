"""What to do with a prediction, in one of four words, from its set, its confidence and its atypicality."""

import re
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.formula.rows import Xp

__all__ = [
    *("ADVICE", "ASK", "CHOOSE", "EVEN", "AdviceRule"),
    *("advice", "advice_numbers", "advice_texts", "choice_size", "longest_choice", "set_sizes"),
]

ADVICE = ("trust", "trust, but rare", "choose among k", "ask a person")
"""The four words in the order of their numbers; k is the size of the choice, see `choice_size`."""
TEXTS = np.array(ADVICE)
CHOOSE, ASK = 2, 3
CHOICE = re.compile(r"choose among \d+")
LONGEST_CHOICE = 10
"""Most classes that a person is asked to choose among."""
EVEN = 0.5
"""Confidence below which a prediction is more likely wrong than right."""


def advice(
    xp: Xp,
    confidence: Any,
    needed: float,
    *,
    atypical: Any = None,
    size: Any = None,
    longest: int = LONGEST_CHOICE,
    refused: Any = None,
) -> Any:
    """Number of each row's advice (n, 1), in the order of `ADVICE`; the first of these rules that applies decides.

    ==========================================  ===============
    refused                                     ask a person
    a set without classes, or of too many       ask a person
    confidence below one half                   ask a person
    atypical and confidence below `needed`      ask a person
    a set of k classes, k at least 2            choose among k
    confidence below `needed`                   choose among 2
    atypical                                    trust, but rare
    otherwise                                   trust
    ==========================================  ===============

    The choice among 2 is between the class of the set and the most probable other one; where 2 are too many, and where
    there are no sets, a person is asked.

    Parameters
    ----------
    xp : namespace
    confidence : array of shape (n, 1)
    needed : float
        Confidence from which on a prediction is trusted.
    atypical : array of bool, of shape (n, 1), optional
        Without it no row is atypical.
    size : array of int, of shape (n, 1), optional
        Of the prediction sets; without it nobody chooses.
    longest : int, default=10
        Most classes that a person is asked to choose among; see `longest_choice`.
    refused : array of bool, of shape (n, 1), optional
        Rows whose prediction is not kept, or of which nothing was measured.

    Examples
    --------
    >>> confidence, size = np.array([0.97, 0.95, 0.6, 0.4]), np.array([1, 1, 3, 3])
    >>> number = advice(np, confidence, 0.9, atypical=np.array([False, True, False, False]), size=size)
    >>> advice_texts(number, size).tolist()
    ['trust', 'trust, but rare', 'choose among 3', 'ask a person']
    """
    confident = confidence >= needed
    atypical = confident & ~confident if atypical is None else atypical
    found = xp.where(confident, xp.astype(atypical, xp.int64), ASK)
    last = (confidence < EVEN) | (atypical & ~confident)
    if size is not None:
        choose = (size > 1) | ~confident
        found = xp.where(choose, CHOOSE, found)
        last = last | (size == 0) | (choose & (choice_size(xp, size) > longest))
    return xp.where(last if refused is None else last | refused, ASK, found)


def choice_size(xp: Xp, size: Any) -> Any:
    """Classes to choose among, from the sizes of sets, where a person is to choose: at least two.

    >>> choice_size(np, np.array([1, 2, 5])).tolist()
    [2, 2, 5]
    """
    return xp.where(size > 1, size, 2)


def set_sizes(xp: Xp, sets: Any) -> Any:
    """Classes in each set (n, 1), of sets (n, k); NumPy counts them eight at a time.

    >>> set_sizes(np, np.array([[True, False, True], [False, False, False]])).tolist()
    [[2], [0]]
    """
    if isinstance(sets, np.ndarray):
        return np.bitwise_count(np.packbits(sets, axis=1)).sum(axis=1, dtype=np.int64, keepdims=True)
    return xp.sum(xp.astype(sets, xp.int64), axis=1, keepdims=True)


def longest_choice(n_classes: int) -> int:
    """Most classes that a person is asked to choose among: ten, and never all of them.

    >>> longest_choice(3), longest_choice(1000)
    (2, 10)
    """
    return min(LONGEST_CHOICE, n_classes - 1)


def advice_texts(number: ArrayLike, set_size: ArrayLike | None = None) -> NDArray[np.str_]:
    """The words (n,) of advice by number, with the sizes (n,) of the sets where these are given.

    >>> advice_texts([0, 2, 2, 3], [1, 4, 1, 0]).tolist()
    ['trust', 'choose among 4', 'choose among 2', 'ask a person']
    """
    codes = np.asarray(number, np.intp).ravel()
    texts = TEXTS[codes]
    if set_size is not None:
        chosen = codes == CHOOSE
        texts[chosen] = [f"choose among {size}" for size in choice_size(np, np.asarray(set_size).ravel()[chosen])]
    return texts


def advice_numbers(texts: ArrayLike) -> NDArray[np.intp]:
    """The number (n,) of each advice in words: the inverse of `advice_texts`.

    >>> advice_numbers(["trust", "choose among 4"]).tolist()
    [0, 2]
    """
    words = [CHOICE.sub(ADVICE[CHOOSE], text) for text in np.asarray(texts, str).tolist()]
    return np.array([ADVICE.index(word) for word in words], np.intp)


@dataclass(frozen=True)
class AdviceRule:
    """What counts as confident and as atypical where a head gives advice; beyond the furthest nothing was measured."""

    confidence: float  # equal to it is confident
    longest: int  # most classes to choose among
    atypicality: float | None = None  # equal to it is typical
    furthest: float | None = None  # largest atypicality of the held-out rows
    keep_from: float | None = None  # confidence from which on a prediction is accepted; None without a risk
    furthest_covariate: float | None = None  # as `furthest`, of another atypicality that recalibration uses

    def accepted(self, confidence: Any, atypicality: Any, covariate: Any = None) -> Any:
        """Which predictions are kept (n, 1), from columns (n, 1) of each; None without `keep_from`."""
        return None if self.keep_from is None else self.within(confidence, atypicality, covariate)

    def within(self, confidence: Any, atypicality: Any, covariate: Any) -> Any:
        """Rows (n, 1) from `keep_from` on that are beyond no held-out maximum; None where there is neither."""
        conditions = [] if self.keep_from is None else [confidence >= self.keep_from]
        for score, furthest in ((atypicality, self.furthest), (covariate, self.furthest_covariate)):
            conditions += [] if score is None or furthest is None else [score <= furthest]
        return reduce(and_, conditions) if conditions else None

    def index(self, xp: Xp, confidence: Any, atypicality: Any, sets: Any, covariate: Any = None) -> Any:
        """Number of each row's advice (n, 1), from columns (n, 1) of numbers and sets (n, k).

        `covariate` is the atypicality that recalibration uses, where it is another.
        """
        size = set_sizes(xp, sets)
        kept = self.within(confidence, atypicality, covariate)
        known = self.atypicality is not None and atypicality is not None
        return advice(
            xp,
            confidence,
            self.confidence,
            atypical=atypicality > self.atypicality if known else None,
            size=size,
            longest=self.longest,
            refused=None if kept is None else ~kept,
        )
