"""Probabilities on a device: checked by the rules and words of `validation`, and cut into blocks of rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import namespace, on_device
from atypicality.validation import check_prob_columns, check_prob_rows, check_probs
from atypicality.validation.device import Device, device_matrix, to_device, to_host

__all__ = ["any_probs", "confidence", "device_probs", "entries_at", "row_blocks", "take_rows"]

BLOCK_BYTES = 1 << 28
"""Bytes of a block of rows in float64: some copies of it fit beside the data, and a kernel is still busy for long."""


def any_probs(values: Any, name: str = "probs", *, n_classes: int | None = None) -> Any:
    """Checked probabilities (n, k) where they lie: `device_probs` on a device, `check_probs` elsewhere."""
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


def is_float16(values: Device) -> bool:
    """Whether the dtype is IEEE half precision, by its name: the array API standard has no such dtype."""
    return str(values.dtype).rpartition(".")[2] == "float16"


def confidence(probs: Device) -> NDArray[np.float64]:
    """Top entry of every row, on the host: (n,)."""
    return to_host(namespace(probs).max(probs, axis=1)).astype(np.float64)


def entries_at(block: Device, columns: Device) -> Device:
    """One entry of every row: (n, 1)."""
    return namespace(block).take_along_axis(block, columns[:, None], axis=1)


def take_rows(values: Any, rows: NDArray[Any]) -> Any:
    """Some rows of an array, which stays where it lies."""
    if not on_device(values):
        return blocks.take_rows(values, rows)
    return namespace(values).take(values, to_device(rows, values), axis=0)


def row_blocks(probs: Device) -> Iterator[slice]:
    """Slices of rows that a step can hold in float64: at least one, also of an array without rows."""
    height = blocks.block_rows(8 * probs.shape[1], budget=BLOCK_BYTES)
    return blocks.row_slices(probs.shape[0], height) if probs.shape[0] else iter((slice(0, 0),))
