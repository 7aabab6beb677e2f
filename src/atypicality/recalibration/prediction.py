"""Recalibrated probabilities of all rows, by a formula: block by block, on the device of the logits."""

from collections.abc import Callable
from typing import Any

import numpy as np

from atypicality import blocks
from atypicality.arrays import BLOCK_BYTES, namespace, to_device, to_host
from atypicality.formula import Rows, moved, softmax
from atypicality.formula.rows import below_top, row_maxima
from atypicality.validation import check_finite, check_logit_maxima, check_normalisers, name_rows
from atypicality.validation.device import any_logits, refuse_rows

__all__ = ["any_masked", "check_known", "predicted_rows", "softmax_rows"]


def predicted_rows(
    formula: Any,
    logits: Any,
    *,
    atypicality: Any = None,
    densities: Any = None,
    multiplier: Any = None,
    ambiguity: Any = None,
) -> Any:
    """Probabilities (n, k) of checked logits, in their dtype and on their device.

    The formula is one of `formula.recalibration`; densities are (n, k), beside the logits, and the others (n,).
    """
    xp, host = namespace(logits), isinstance(logits, np.ndarray)
    columns: dict[str, Any] = {"atypicality": atypicality, "multiplier": multiplier, "ambiguity": ambiguity}
    if not host:
        formula = moved(formula, lambda array: to_device(array, logits))
        columns = {name: None if part is None else to_device(part, logits) for name, part in columns.items()}

    def predict(rows: slice) -> list[tuple[Any]]:
        z = logits[rows, :]
        top = row_maxima(xp, z)
        check_logit_maxima(to_host(top)[:, 0], first_row=rows.start)
        d = None if densities is None else densities[rows, :]
        if d is not None:
            _check_densities(xp, d, rows)
        cut: dict[str, Any] = {name: None if p is None else p[rows, None] for name, p in columns.items()}
        with np.errstate(over="ignore", invalid="ignore"):  # what does not fit shows in the result
            probs, known = formula(xp, Rows(z, densities=d, masked=any_masked(z), top=top, **cut))
        if known is not None:
            check_known(to_host(known), first_row=rows.start)
        check_normalisers(to_host(probs[:, 0]), first_row=rows.start)  # a total that is not finite shows in all entries
        return [(probs,)]

    return _probabilities(predict, logits)


def softmax_rows(logits: Any) -> Any:
    """The model's own probabilities: softmax of logits (n, k) in float64; `-inf` masks a class.

    In float32 the confidence of many rows would round to 1, and quantile groups of it would collapse.

    >>> softmax_rows([[0.0, np.log(3.0)]])
    array([[0.25, 0.75]])
    """
    z = any_logits(logits, scan=False)
    xp = namespace(z)

    def predict(rows: slice) -> list[tuple[Any]]:
        block = z[rows, :]
        top = row_maxima(xp, block)
        check_logit_maxima(to_host(top)[:, 0], first_row=rows.start)
        hidden = xp.isinf(block) if any_masked(block) else None
        return [(softmax(xp, below_top(xp, block, hidden, top), hidden),)]

    return _probabilities(predict, z)


def _probabilities(predict: Callable[[slice], list[tuple[Any]]], logits: Any) -> Any:
    """Those of all rows, in blocks that the cache holds beside what they are made of, or that keep a device busy."""
    (n, k), host = logits.shape, isinstance(logits, np.ndarray)
    height = blocks.block_rows(8 * k, budget=blocks.CACHE_BYTES // 2 if host else BLOCK_BYTES)
    return blocks.compute(predict, n, block=height, host=host, work=blocks.SOFTMAX, columns=k)[0]


def any_masked(logits: Any) -> bool:
    """Whether a class is masked in a block of checked logits; on a device, where a look costs a wait, True."""
    return not isinstance(logits, np.ndarray) or not logits.size or bool(np.isneginf(logits.min()))


def check_known(known: Any, *, first_row: int = 0) -> None:
    """Refuse rows that the recalibration has no probabilities for, marked by False in a column (n, 1)."""
    bad = np.flatnonzero(~known)
    if bad.size:
        raise ValueError(
            f"{name_rows(bad + first_row, 'has', 'have')} no probabilities: every class that is not masked has a prior "
            "of 0, or the row's group had no calibration rows. Give such classes a prior, or leave those rows out."
        )


def _check_densities(xp: Any, densities: Any, rows: slice) -> None:
    if isinstance(densities, np.ndarray):
        check_finite(densities, "class_log_density", first_row=rows.start)
    else:
        refuse_rows(~xp.all(xp.isfinite(densities), axis=1), "class_log_density", first_row=rows.start)
