"""Content-free calibration for language models: what a prompt says of each label before it has any content."""

from typing import Annotated, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from atypicality.formula import ContentFree
from atypicality.recalibration.base import Recalibrator
from atypicality.stored import Record, kinds
from atypicality.validation import check_logits

__all__ = ["ContentFreeCalibration"]


class ContentFreeCalibration(Recalibrator):
    r"""Weigh label probabilities by those of content-free inputs: ``softmax(W p)`` with ``W = diag(p_cf)^-1``.

    The prompt is filled with inputs that say nothing, such as "N/A", "[MASK]" and the empty string. The mean of their
    label probabilities, `p_cf`, is the bias of the prompt; a label's probability is divided by it.

    The softmax is applied to ``W p`` itself, as in the papers below. It is not a renormalisation of ``W p``: weighted
    probabilities of 1 and 0 become 0.73 and 0.27, never 1 and 0. A masked class (logit -inf) keeps probability 0.

    Attributes
    ----------
    content_free_probs_ : ndarray of shape (k,)
        `p_cf`, all positive.

    References
    ----------
    Zhao, Wallace, Feng, Klein, Singh (2021). Calibrate before use: improving few-shot performance of language models.
    ICML. The paper on atypicality uses it as a baseline for language models (appendix, on Alpaca-7B).

    Examples
    --------
    The prompt favours label 0 by 3 to 1; two inputs get 0.75 and 0.6 for it:

    >>> import numpy as np
    >>> calibration = ContentFreeCalibration().fit(np.log([[0.75, 0.25]]))
    >>> calibration.predict_proba(np.log([[0.75, 0.25], [0.6, 0.4]])).round(4)    # W p = [1, 1] and [0.8, 1.6]
    array([[0.5 , 0.5 ],
           [0.31, 0.69]])
    """

    content_free_probs_: Annotated[NDArray[np.float64], kinds.Array("K", kinds.POSITIVE)]
    _stored = Record()

    _device = False

    def fit(self, content_free_logits: ArrayLike, labels: None = None) -> Self:  # type: ignore[override]
        """Learn the label probabilities of content-free inputs.

        Parameters
        ----------
        content_free_logits : array-like of shape (m, k)
            Logits of the labels, one row per content-free input.
        labels : None
            Content-free inputs have none. To pass labels is an error: rows with labels are not content-free.
        """
        if labels is not None:
            raise ValueError(
                "labels must not be given: content-free inputs have none. Pass only the logits that the model gives "
                "to prompts filled with inputs such as 'N/A', '[MASK]' and ''."
            )
        logits = check_logits(content_free_logits, "content_free_logits")
        if logits.shape[0] == 0:
            raise ValueError("content_free_logits must have at least one row, one per content-free input; got none.")
        probs = softmax(logits.astype(np.float64), axis=1).mean(axis=0)
        missing = np.flatnonzero(probs < np.finfo(np.float64).tiny)  # its inverse would be infinite
        if missing.size:
            raise ValueError(
                f"content_free_logits must give every class a positive probability; class {missing[0]} has none "
                f"({missing.size} of {probs.size} classes lack one). Drop such classes."
            )
        self.content_free_probs_ = probs
        self.n_classes_ = probs.size
        return self

    def formula(self) -> ContentFree:
        """The parameters of a prediction; see `atypicality.formula`."""
        return ContentFree(self.content_free_probs_)
