"""How rare a sequence is under an autoregressive model: negative log-likelihoods, whole or in part, by name."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.validation import check_choice

__all__ = ["KINDS", "sequence_atypicality"]

KINDS = ("total", "per_token", "per_byte", "input")
"""Ways to make one number of a prompt's token log-probabilities; "total" is the paper's."""


def sequence_atypicality(
    log_probs: Sequence[NDArray[np.float64]],
    kind: str = "total",
    *,
    n_bytes: Sequence[int] | None = None,
    inside: Sequence[NDArray[np.bool_]] | None = None,
) -> NDArray[np.float64]:
    """Negative log-likelihood of each sequence, `-log P(x) = -sum_t log p(x_t | x_<t)` (section 2), larger is rarer.

    Parameters
    ----------
    log_probs : sequence of n arrays of shape (t_i,)
        Log-probability of every scored token given the ones before it.
    kind : {"total", "per_token", "per_byte", "input"}
        The whole sum (the paper), divided by the scored tokens or by the bytes of the text, or the sum over the
        tokens of the input alone, given the template before them. The total grows with the length of a text; the
        averages do not, and bytes compare models with different tokenizers.
    n_bytes : sequence of n int, for "per_byte"
    inside : sequence of n bool arrays of shape (t_i,), for "input"
        Which tokens belong to the input.

    Returns
    -------
    ndarray of shape (n,)
        0 where no token counts.

    Examples
    --------
    >>> tokens = [np.log([0.5, 0.25]), np.log([0.5])]
    >>> np.exp2(sequence_atypicality(tokens) / np.log(2))
    array([8., 2.])
    >>> sequence_atypicality(tokens, "per_token") / np.log(2)
    array([1.5, 1. ])
    """
    check_choice(kind, "kind", KINDS)
    if kind == "input":
        parts = zip(log_probs, _given(inside, "inside", kind), strict=True)
        return _negative_sums([values[mask] for values, mask in parts])
    totals = _negative_sums(log_probs)
    if kind == "per_token":
        return _divided(totals, [values.size for values in log_probs])
    return _divided(totals, _given(n_bytes, "n_bytes", kind)) if kind == "per_byte" else totals


def _negative_sums(sequences: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    sums = np.array([values.sum(dtype=np.float64) for values in sequences], np.float64)
    return 0.0 - sums  # not -sums: an empty sum would become -0.0


def _divided(totals: NDArray[np.float64], sizes: Sequence[int]) -> NDArray[np.float64]:
    return np.asarray(totals / np.maximum(sizes, 1))


def _given(values: Any, name: str, kind: str) -> Any:
    if values is None:
        raise ValueError(f"{name} must be given for kind={kind!r}.")
    return values
