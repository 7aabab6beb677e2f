"""Checks of arrays on a device: the rules and words of `validation`, with the rows read on their device."""

from typing import Any

import numpy as np

from atypicality.arrays import Device, is_float16, namespace, on_device, to_host
from atypicality.validation import (
    check_logit_maxima,
    check_logits,
    check_matrix,
    check_matrix_shape,
    check_prob_columns,
    check_prob_rows,
    check_probs,
    name_rows,
)

__all__ = ["any_logits", "any_matrix", "any_probs", "device_logits", "device_matrix", "device_probs", "refuse_rows"]


def device_matrix(values: Device, name: str, *, width: int | None = None) -> Device:
    """A real matrix (n, d) on its device, without gradients; half precision becomes float32, integers float64.

    Finiteness is not checked here: a result that is not finite leads to `refuse_rows`.
    """
    values = values.detach() if getattr(values, "requires_grad", False) else values
    xp = namespace(values)
    check_matrix_shape(tuple(values.shape), name, width=width)
    if values.dtype in (xp.float32, xp.float64):
        return values
    if "complex" in str(values.dtype):
        raise TypeError(f"{name} must be real numbers; got dtype {values.dtype}.")
    return xp.astype(values, xp.float32 if "float" in str(values.dtype) else xp.float64)


def any_matrix(values: Any, name: str, *, width: int | None = None) -> Any:
    """A real matrix (n, d) on its device: `device_matrix` there, `check_matrix` on the host."""
    return (device_matrix if on_device(values) else check_matrix)(values, name, width=width)


def refuse_rows(bad: Device, name: str, *, first_row: int = 0) -> None:
    """Say that the rows where `bad` (n,) is true, if there are any, are not finite; counted from `first_row`."""
    rows = np.flatnonzero(to_host(bad))
    if rows.size:
        told = name_rows(rows + first_row, of=name)
        raise ValueError(f"{name} must be finite; {told} NaN or infinity. Drop or repair them.")


def any_probs(values: Any, name: str = "probs", *, n_classes: int | None = None) -> Any:
    """Checked probabilities (n, k) on their device: `device_probs` on a device, `check_probs` elsewhere."""
    check = device_probs if on_device(values) else check_probs
    return check(values, name, n_classes=n_classes)


def device_probs(values: Device, name: str = "probs", *, n_classes: int | None = None) -> Device:
    """Probabilities (n, k) as float32 or float64: in [0, 1], rows summing to 1 within the rounding of their dtype."""
    array = device_matrix(values, name)
    check_prob_columns(array.shape[1], name, n_classes=n_classes)
    xp, tolerance = namespace(array), 5e-3 if is_float16(values) else 1e-4  # as `check_probs`
    good = (xp.abs(xp.sum(array, axis=1) - 1) <= tolerance) & (xp.min(array, axis=1) >= 0)
    if not bool(xp.all(good)):
        for row in np.flatnonzero(~to_host(good)).tolist():
            check_prob_rows(to_host(array[row : row + 1, :]), name, first_row=row, tolerance=tolerance)
    return array


def any_logits(values: Any, *, n_classes: int | None = None, scan: bool = True) -> Any:
    """Checked logits (n, k) on their device: `device_logits` on a device, `check_logits` elsewhere."""
    check = device_logits if on_device(values) else check_logits
    return check(values, n_classes=n_classes, scan=scan)


def device_logits(values: Device, name: str = "logits", *, n_classes: int | None = None, scan: bool = True) -> Device:
    """Logits (n, k) as float32 or float64, by the rules of `check_logits`."""
    array = device_matrix(values, name)
    xp = namespace(array)
    if array.shape[1] == 1:
        array = xp.concat([xp.zeros_like(array), array], axis=1)
    check_prob_columns(array.shape[1], name, n_classes=n_classes)
    if scan:
        check_logit_maxima(to_host(xp.max(array, axis=1)), name)
    return array
