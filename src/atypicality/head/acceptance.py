"""Acceptance: a score of which predictions to keep, from confidence and the ambiguity of the prediction."""

from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from atypicality.metrics.signal import FOLDS, clipped_logits, logistic_coefficients
from atypicality.stored import Record, kinds

__all__ = ["AcceptanceScore"]

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class AcceptanceScore:
    """Chance of being right, from the logits of confidence and of ambiguity (see `NeighborRatio`).

    Any score fixed before the held-out rows are counted keeps the guarantee of `AbstentionRule`: this one is fitted on
    recalibration rows.

    Parameters
    ----------
    intercept, confidence, ambiguity : float
        Of a logistic regression.

    Examples
    --------
    >>> score = AcceptanceScore(0.0, 1.0, -1.0)
    >>> score(np.array([0.8, 0.8]), np.array([0.2, 0.5])).round(2)  # 0.8 and 0.2 have logits of opposite sign
    array([0.94, 0.8 ])
    """

    intercept: Annotated[float, kinds.Number()]
    confidence: Annotated[float, kinds.Number()]
    ambiguity: Annotated[float, kinds.Number()]
    _stored = Record()

    @classmethod
    def from_rows(cls, confidence: Float64, ambiguity: Float64, correct: NDArray[np.bool_]) -> Self:
        """Fit to rows (n,); confidence alone where fewer than 5 predictions are right, or wrong."""
        if min(correct.sum(), (~correct).sum()) < FOLDS:
            return cls(0.0, 1.0, 0.0)
        columns = [np.ones(correct.size), clipped_logits(confidence), clipped_logits(ambiguity)]
        return cls(*map(float, logistic_coefficients(np.stack(columns, axis=1), correct)))

    def __call__(self, confidence: Float64, ambiguity: Float64) -> Float64:
        """Scores (n,) in [0, 1]."""
        logits = self.confidence * clipped_logits(confidence) + self.ambiguity * clipped_logits(ambiguity)
        return np.asarray(expit(self.intercept + logits))
