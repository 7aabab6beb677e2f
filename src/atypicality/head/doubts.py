"""What looks wrong with the outputs that a head answers for, in words."""

from typing import Any

from atypicality.arrays import to_host
from atypicality.formula import Outcome
from atypicality.head.advice import advice_rule
from atypicality.head.calibration_parts import disagreement, looked_at, probabilities_instead
from atypicality.head.drift import Drift
from atypicality.head.prediction import Nearest
from atypicality.outputs import ModelOutputs
from atypicality.validation import warn

__all__ = ["doubts_of", "watched_classes"]


def watched_classes(head: Any, n_rows: int) -> Nearest | None:
    """What a prediction of n rows is to collect for `doubts_of`; None where it would not be enough to tell."""
    step = looked_at(head, n_rows)
    return None if step is None else Nearest(step)


def doubts_of(
    head: Any, found: Outcome, outputs: ModelOutputs, drift: Drift | None, nearest: Nearest | None
) -> tuple[str, ...]:
    """What looks wrong with outputs that have this verdict; each is warned of."""
    wrong = [probabilities_instead(outputs), None if drift is None else drift.too_typical()]
    if nearest is not None:
        within = advice_rule(head).within(found.confidence, found.atypicality, found.covariate)
        within = None if within is None else to_host(within[:: nearest.step])
        wrong.append(disagreement(head, outputs, nearest.classes(), within))
    doubts = tuple(text for text in wrong if text)
    for text in doubts:
        warn(text)
    return doubts
