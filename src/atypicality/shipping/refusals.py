"""Why a head cannot leave Python as a formula of tensors: one reason per part, none where it can."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.head.prediction import missing_formulas

__all__ = ["refusals", "wide"]


def refusals(head: Any, *, searched: bool) -> list[str]:
    """Reasons; neighbours are none where they can be `searched`."""
    reasons = missing_formulas(head, searched=searched)
    if getattr(head.prediction_sets_, "randomized", False):
        reasons.append("its prediction_sets has randomized=True, and the draws are those of NumPy's generator")
    return reasons


def wide(array: NDArray[Any]) -> NDArray[Any]:
    """Floating-point parameters in float64: products elsewhere are taken in it, whatever the density's precision."""
    return array.astype(np.float64, copy=False) if array.dtype.kind == "f" else array
