"""What the parts of a head answer by their methods, which need not take every keyword that is offered."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from atypicality.arrays import on_device
from atypicality.head.rarity import Scores, rarity_of
from atypicality.outputs import ModelOutputs

__all__ = ["call_with_known", "probabilities_of", "sets_of"]


def call_with_known(function: Callable[..., Any], *args: Any, **offered: Any) -> Any:
    """Call with those of the offered keywords that the function takes.

    >>> call_with_known(sorted, [2, 1, 3], reverse=True, seed=7)
    [3, 2, 1]
    """
    parameters = inspect.signature(function).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        offered = {name: value for name, value in offered.items() if name in parameters}
    return function(*args, **offered)


def probabilities_of(head: Any, outputs: ModelOutputs, scored: Scores | None = None) -> tuple[Any, Any, Any]:
    """Probabilities (n, k), atypicality (n,), and that of recalibration where it is another."""
    atypicality, offered = rarity_of(head, outputs, scored)
    probs = call_with_known(head.recalibration_.predict_proba, outputs.need("logits"), **offered)
    return probs, atypicality, None if head.recalibration_density_ is None else offered["atypicality"]


def sets_of(head: Any, probs: Any, atypicality: Any, attributes: Any, first_row: int = 0) -> Any:
    """Prediction sets, bool (n, k)."""
    offered = {"first_row": first_row, "atypicality": atypicality, "attributes": attributes}
    found = call_with_known(head.prediction_sets_.predict_set, probs, **offered)
    return found if on_device(probs) else np.asarray(found, bool)
