"""Why a sample has its advice, in words: the first row of the table of advice that applies to it."""

from atypicality.formula import ADVICE, longest_choice
from atypicality.formula.advice import EVEN
from atypicality.groups import QUADRANTS
from atypicality.terminal import number

__all__ = ["reason"]

UNTRUSTWORTHY = QUADRANTS[-1]
JUST_BELOW = 0.4999  # what a confidence that rounding would make one half is printed as


def reason(
    word: str,
    confidence: float,
    size: int,
    n_classes: int,
    quadrant: str | None = None,
    quantile: float | None = None,
    accepted: bool | None = None,
    beyond: tuple[bool, bool] = (False, False),
) -> str:
    """The reason for the advice `word`, from what an answer holds of the sample; see `atypicality.formula.advice`.

    `beyond` says by which scores the sample is more atypical than every held-out row: the head's own, and the one that
    recalibration uses where it is another.

    >>> reason("choose among 2", 0.71, 1, 10)
    'confidence 0.71 is too low for the one class of its set alone'
    >>> reason("ask a person", 0.4996, 3, 10)
    'confidence 0.4996 is below one half'
    >>> reason("ask a person", 0.97, 1, 10, "reliable", 0.242, beyond=(False, True))
    "more atypical than every held-out row by recalibration's score (quantile 1; 0.242 by the head's own)"
    """
    sure = f"confidence {number(confidence)}"
    if word == ADVICE[0]:
        return f"{sure}, one class in its set" + ("" if quadrant is None else ", and typical")
    if word == ADVICE[1]:
        return f"{sure} and one class in its set, but atypical, as few held-out rows are{_rank(quantile)}"
    if word != ADVICE[-1]:
        return f"its set holds {size} classes" if size > 1 else f"{sure} is too low for the one class of its set alone"
    if any(beyond):
        return f"more atypical than every held-out row{_decisive(beyond, quantile)}"
    if accepted is not None and not accepted:
        return f"not accepted at this max_risk: {sure}" + _rank(quantile)
    return _doubt(confidence, size, n_classes, quadrant, quantile)


def _decisive(beyond: tuple[bool, bool], quantile: float | None) -> str:
    """The score that is beyond all held-out rows, with its quantile, which is 1."""
    own, other = beyond
    if own:
        return f" (quantile 1{', by both scores' if other else ''})"
    return f" by recalibration's score (quantile 1; {number(quantile or 0.0)} by the head's own)"


def _doubt(confidence: float, size: int, n_classes: int, quadrant: str | None, quantile: float | None) -> str:
    if size == 0:
        return "its set is empty"
    if size > longest_choice(n_classes):
        return f"its set holds {size} classes, too many to choose among"
    if confidence < EVEN:
        return f"confidence {number(min(confidence, JUST_BELOW))} is below one half"
    if quadrant == UNTRUSTWORTHY:
        return f"confidence {number(confidence)} is low, and it is atypical{_rank(quantile)}"
    return f"confidence {number(confidence)} is low, and two classes are all there are"


def _rank(quantile: float | None) -> str:
    return "" if quantile is None else f" (quantile {number(quantile)})"
