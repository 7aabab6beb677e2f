"""The model's own probabilities: the softmax of its logits, in float64."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.validation import check_logit_maxima, check_logits

__all__ = ["softmax_rows"]


def softmax_rows(logits: Any) -> NDArray[np.float64]:
    """Softmax of logits (n, k), block by block; `-inf` masks a class.

    In float32 the confidence of many rows would round to 1, and quantile groups of it would collapse.

    >>> softmax_rows([[0.0, np.log(3.0)]])
    array([[0.25, 0.75]])
    """
    scores = check_logits(logits, scan=False)
    probs = blocks.empty(scores.shape)

    def one_block(rows: slice) -> None:
        top = scores[rows].max(axis=1, keepdims=True)
        check_logit_maxima(top[:, 0], first_row=rows.start)
        out = probs[rows]
        np.subtract(scores[rows], top, out=out, dtype=np.float64)
        np.exp(out, out=out)
        out /= out.sum(axis=1, keepdims=True)

    blocks.for_rows(one_block, len(scores), block=blocks.block_rows(scores.shape[1] * 8))
    return probs
