"""Why a head cannot leave Python as a formula of tensors: one reason per part, none where it can."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.formula import Given, speaks_for

__all__ = ["refusals", "wide"]


def refusals(head: Any, *, searched: bool) -> list[str]:
    """Reasons; neighbours are no reason where they can be `searched`."""
    density, recalibration, sets = head.density_, head.recalibration_, head.prediction_sets_
    reasons = []
    if density is not None:
        if not speaks_for(density, "atypicality"):
            reasons.append(f"its density is {_name(density)}, which has no formula of its own")
        elif not searched and getattr(density, "searches", False):
            reasons.append(f"its density is {_name(density)}, and a search among training rows is of no fixed size")
    if not speaks_for(recalibration, "predict_proba"):
        reasons.append(f"its recalibration is {_name(recalibration)}, which has no formula of its own")
    elif isinstance(getattr(recalibration.formula(), "multiplier", None), Given):
        reasons.append(
            f"its recalibration is {_name(recalibration)}, whose temperatures follow from given groups or from a "
            "network, and not from logits and atypicality alone"
        )
    if not speaks_for(sets, "predict_set"):
        reasons.append(f"its prediction_sets is {_name(sets)}, which has no formula of its own")
    elif getattr(sets, "randomized", False):
        reasons.append("its prediction_sets has randomized=True, and the draws are those of NumPy's generator")
    return reasons


def wide(array: NDArray[Any]) -> NDArray[Any]:
    """Floating-point parameters in float64: products elsewhere are taken in it, whatever the density's precision."""
    return array.astype(np.float64, copy=False) if array.dtype.kind == "f" else array


def _name(part: Any) -> str:
    return type(part).__name__
