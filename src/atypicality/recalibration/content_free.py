"""Content-free calibration for language models: what the prompt says about a label before any content is given."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from atypicality.arrays import returns_like_input
from atypicality.validation import check_logits

__all__ = ["ContentFreeCalibration"]


class ContentFreeCalibration(BaseEstimator):
    """Divide label probabilities by those of content-free inputs."""

    def fit(self, content_free_logits: Any, labels: Any = None, **ignored: Any) -> Self:
        """Learn the label probabilities of content-free inputs."""
        logits = check_logits(content_free_logits, "content_free_logits")
        self.content_free_probs_ = softmax(logits.astype(np.float64), axis=1).mean(axis=0)
        return self

    @returns_like_input
    def predict_proba(self, logits: Any, **ignored: Any) -> NDArray[np.float64]:
        """Softmax(W p)."""
        check_is_fitted(self)
        logits = check_logits(logits, n_classes=self.content_free_probs_.size)
        probs = softmax(logits.astype(np.float64), axis=1)
        return np.asarray(softmax(probs / self.content_free_probs_, axis=1))
