"""The paper's quadrants: confident and atypical both mean more so than most of the calibration rows."""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.groups import Quadrants
from atypicality.validation import check_confidence, check_number

__all__ = ["RelativeQuadrants"]


class RelativeQuadrants(BaseEstimator):
    """Four kinds of prediction, each relative to the calibration rows of one model.

    Of a model that is right in three cases of ten, the "reliable" predictions are the better ones, not good ones.

    Parameters
    ----------
    confidence_quantile : float in [0, 1], default=0.2
        The least confident fifth of the calibration set is low-confidence.
    atypicality_quantile : float in [0, 1], default=0.8
        The most atypical fifth of the calibration set is atypical.

    Attributes
    ----------
    quadrants_ : Quadrants
        With the thresholds that the quantiles came to.

    Examples
    --------
    >>> quadrants = RelativeQuadrants(0.5, 0.5).fit([0.1, 0.2, 0.3], [1.0, 2.0, 3.0])
    >>> quadrants.quadrants_.confidence_threshold_, quadrants.assign([0.2, 0.1], [1.0, 5.0]).tolist()
    (0.2, ['reliable', 'untrustworthy'])
    """

    quadrants_: Quadrants

    def __init__(self, confidence_quantile: float = 0.2, atypicality_quantile: float = 0.8) -> None:
        self.confidence_quantile = confidence_quantile
        self.atypicality_quantile = atypicality_quantile

    def fit(self, confidence: ArrayLike, atypicality: ArrayLike) -> Self:
        """Learn both thresholds from a calibration set: `confidence` and `atypicality` of shape (n_samples,)."""
        level = check_number(self.confidence_quantile, "confidence_quantile", low=0, high=1)
        threshold = float(np.quantile(check_confidence(confidence), level))
        self.quadrants_ = Quadrants(confidence=threshold, atypicality_quantile=self.atypicality_quantile)
        self.quadrants_.fit(confidence, atypicality)
        return self

    def assign(self, confidence: ArrayLike, atypicality: ArrayLike) -> NDArray[np.str_]:
        """Name of the quadrant of every sample, of shape (n_samples,), from its `confidence` and `atypicality`."""
        check_is_fitted(self, "quadrants_")
        return self.quadrants_.assign(confidence, atypicality)
