"""Temperatures as the paper fits them: cross-entropy alone, without the prior that the library's own carry."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from atypicality.recalibration import TemperatureScaling
from atypicality.validation import warn

__all__ = ["PriorFreeGroupTemperature", "PriorFreeTemperature"]


class PriorFreeTemperature(TemperatureScaling):
    """`TemperatureScaling` without pseudo-rows. Rows without an error have no finite optimum, and it warns.

    >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    >>> bool(np.isclose(PriorFreeTemperature().fit(logits, [0, 0, 1, 0]).temperature_, 4 / np.log(3)))  # 3 of 4 right
    True
    """

    pseudo_rows = False

    def _terms(self, n_classes: int) -> dict[str, Any]:
        return {"pseudo_rows": self.pseudo_rows}

    def _keep_errors(self, errors: int, n_rows: int) -> None:
        super()._keep_errors(errors, n_rows)
        if errors == 0:
            warn(
                f"labels all have the largest logit in {n_rows} rows: no temperature is the best, the lower the better."
            )


class PriorFreeGroupTemperature(BaseEstimator):
    """One `PriorFreeTemperature` for every given group: the paper's skin-tone conditional scaling."""

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, groups: ArrayLike) -> Self:
        """Fit to logits (n, k), labels (n,) and groups (n,)."""
        z, y, names = np.asarray(logits), np.asarray(labels), np.asarray(groups)
        self.scalings_ = {name: PriorFreeTemperature().fit(z[names == name], y[names == name]) for name in set(names)}
        return self

    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike) -> NDArray[np.floating[Any]]:
        """Probabilities (n, k) of rows whose groups (n,) `fit` has seen."""
        z, names = np.asarray(logits), np.asarray(groups)
        if unseen := set(names) - set(self.scalings_):
            raise ValueError(f"groups must have been seen in fit; got {sorted(map(str, unseen))[0]!r} too.")
        probs = np.empty(z.shape)
        for name in set(names):
            probs[names == name] = self.scalings_[name].predict_proba(z[names == name])
        return probs
