"""Prior shift: scores that move probabilities from the calibration rows' class mix to a stated one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.stored import kinds
from atypicality.validation import check_choice, check_vector

__all__ = ["ClassPrior", "check_class_prior", "is_estimated", "prior_scores"]

Vector = NDArray[np.float64]


class ClassPrior(kinds.Kind):
    """Class shares: a mapping or a sequence is stored as the vector (k,) that it stands for."""

    _vector = kinds.Array("*", kinds.SHARES)

    def _write(self, value: Any, place: kinds.Place) -> Any:
        return self._vector.write(check_class_prior(value, len(value)), place)

    def _read(self, stored: Any, place: kinds.Place) -> Any:
        return self._vector.read(stored, place)


def is_estimated(prior: Any) -> bool:
    """Whether a `class_prior` is to be estimated from the rows of each prediction."""
    return isinstance(prior, str) and check_choice(prior, "class_prior", ("estimate",)) == "estimate"


def check_class_prior(values: Any, n_classes: int, name: str = "class_prior") -> Vector:
    """Class shares (k,) from an array or a mapping of column index to share: not negative, summing to 1."""
    if isinstance(values, Mapping):
        if sorted(values) != list(range(n_classes)):
            raise ValueError(
                f"{name} must name every class 0 .. {n_classes - 1} once; got the {len(values)} keys "
                f"{sorted(values)[:5]}{' ...' if len(values) > 5 else ''}. Give 0 for a class that cannot occur."
            )
        values = [values[j] for j in range(n_classes)]
    shares = check_vector(values, name)
    if shares.size != n_classes:
        raise ValueError(f"{name} must have one share per class, {n_classes}; got {shares.size}.")
    if (shares < 0).any() or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(
            f"{name} must hold shares: not negative, summing to 1; the smallest is {shares.min():.6g} and their "
            f"sum {shares.sum():.6g}. Divide counts by their sum."
        )
    return shares


def prior_scores(prior: Vector, shares: Vector, n_rows: float) -> Vector:
    """``log(prior / shares)`` (k,); a class without calibration rows counts as half a row, one without prior as -inf.

    With p(x given y) unchanged, probabilities under the new mix are proportional to the old ones times that ratio
    (Saerens, Latinne, Decaestecker 2002, equation 4).

    >>> prior_scores(np.array([0.5, 0.5]), np.array([0.8, 0.2]), 100).round(3)
    array([-0.47 ,  0.916])
    """
    with np.errstate(divide="ignore"):
        scores: Vector = np.log(prior) - np.log(np.maximum(shares, 0.5 / n_rows))
    return scores
