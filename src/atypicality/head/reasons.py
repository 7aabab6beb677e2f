"""Why a sample has its advice, in words: a row of the table of advice that applies to it."""

import math

from atypicality.formula import ADVICE, longest_choice
from atypicality.formula.advice import EVEN
from atypicality.groups import QUADRANTS

__all__ = ["reason"]

_, _, AMBIGUOUS, UNTRUSTWORTHY = QUADRANTS


def reason(
    word: str,
    confidence: float,
    size: int,
    n_classes: int,
    quadrant: str | None = None,
    quantile: float | None = None,
    accepted: bool | None = None,
) -> str:
    """A reason for the advice `word`, from what an answer holds of the sample; see `atypicality.formula.advice`.

    >>> reason("choose among 2", 0.71, 1, 10)
    'confidence 0.710 is too low for the one class of its set alone'
    >>> reason("ask a person", 0.4996, 3, 10)
    'confidence 0.499 is below one half'
    """
    sure = f"confidence {_below(confidence)}"
    if word == ADVICE[0]:
        return f"{sure}, one class in its set" + ("" if quadrant is None else ", and typical")
    if word == ADVICE[1]:
        return f"{sure} and one class in its set, but atypical, as few held-out rows are{_rank(quantile)}"
    if word != ADVICE[-1]:
        return f"its set holds {size} classes" if size > 1 else f"{sure} is too low for the one class of its set alone"
    return _refusal(sure, confidence, size, n_classes, quadrant, quantile, accepted)


def _refusal(
    sure: str,
    confidence: float,
    size: int,
    n_classes: int,
    quadrant: str | None,
    quantile: float | None,
    accepted: bool | None,
) -> str:
    if accepted is not None and not accepted:
        return f"not accepted at this max_risk: {sure}" + _rank(quantile)
    if confidence < EVEN:
        return f"{sure} is below one half"
    if quadrant == UNTRUSTWORTHY:
        return f"{sure} is low, and it is atypical{_rank(quantile)}"
    if n_classes == 2 and quadrant == AMBIGUOUS:
        return f"{sure} is low, and two classes are all there are"
    if size == 0:
        return "its set is empty"
    if size > longest_choice(n_classes):
        return f"its set holds {size} classes, too many to choose among"
    if quadrant is None:
        return f"{sure} is low, and two classes are all there are"
    return f"more atypical than every held-out row, by one of the head's scores{_rank(quantile)}"


def _rank(quantile: float | None) -> str:
    return "" if quantile is None else f" (quantile {_below(quantile)})"


def _below(value: float) -> str:
    """Three digits, never rounded up: 0.4996 is below one half."""
    return f"{math.floor(1000 * value + 1e-9) / 1000:.3f}"
