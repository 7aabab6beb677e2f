"""Recalibrators' arrays on a device: checked logits, what each row says, and recalibrated probabilities.

Logits and class log-densities stay on their device; labels, atypicality, groups and weights (one number per row) may
come from either side and are read on the host. Refused there, with a word on what to do: `AdaptiveTemperatureScaling`
(its network is fitted on the CPU) and `ContentFreeCalibration` (a few rows of a language model's labels).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import (
    Device,
    beside,
    entries_at,
    namespace,
    on_device,
    row_blocks,
    take_rows,
    to_device,
    to_host,
)
from atypicality.validation import check_length, check_matrix
from atypicality.validation.device import device_matrix

__all__ = ["below_top", "device_densities", "read_device_rows", "some_rows"]

Vector = NDArray[np.float64]


def device_densities(values: Any, logits: Device, name: str = "class_log_density") -> Device:
    """Class log-densities (n, k) beside the logits: copied from the host, refused on another device."""
    if not on_device(values):
        array = to_device(check_matrix(values, name, width=logits.shape[1]), logits)
    elif not beside(values, logits):
        from array_api_compat import device

        raise ValueError(
            f"{name} must be on the device of the logits, {device(logits)}; got {type(values).__name__} on "
            f"{device(values)}. Move one of them, or pass {name} as a NumPy array."
        )
    else:
        array = device_matrix(values, name, width=logits.shape[1])
    check_length(array, name, logits.shape[0])
    return array


def some_rows(values: Device, rows: slice | NDArray[np.intp]) -> Device:
    """Some rows of a matrix, on its device."""
    return values[rows, :] if isinstance(rows, slice) else take_rows(values, rows)


def below_top(block: Device) -> tuple[Device, Device]:
    """Rows less their maximum, in float64, masked entries (-inf) as 0, and where those are."""
    xp = namespace(block)
    values = xp.astype(block, xp.float64)
    values = values - xp.max(values, axis=1, keepdims=True)
    hidden = xp.isinf(values)
    return xp.where(hidden, 0.0, values), hidden


def read_device_rows(
    matrix: Device,
    labels: NDArray[np.intp],
    check: Callable[[Vector, int], None],
    columns: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None,
) -> tuple[NDArray[Any], ...]:
    """Per row, on the host: the fields of `recalibration.row_statistics.RowStatistics`, in their order.

    The two columns are those of the largest entries, unless they are given.
    """
    xp, n = namespace(matrix), matrix.shape[0]
    top = to_host(xp.max(matrix, axis=1)).astype(np.float64)
    check(top, 0)
    known, found = to_device(labels, matrix), np.empty((8, n))
    given = None if columns is None else [to_device(column, matrix) for column in columns]
    for rows in row_blocks(matrix):
        pair = _two_largest(matrix[rows, :]) if given is None else [column[rows] for column in given]
        found[:, rows] = to_host(_row_moments(matrix[rows, :], known[rows], *pair))
    mean, deviation, gap, masked, best, runner_up, *entries = found
    return top, mean, deviation, gap, masked > 0, best.astype(np.intp), runner_up.astype(np.intp), np.stack(entries, 1)


def _two_largest(block: Device) -> tuple[Device, Device]:
    """Columns of the largest entry and of the next; the same again where all others are masked."""
    xp = namespace(block)
    best = xp.argmax(block, axis=1)
    others = xp.where(to_device(np.arange(block.shape[1]), block)[None, :] == best[:, None], -xp.inf, block)
    runner_up = xp.argmax(others, axis=1)
    return best, xp.where(xp.isinf(entries_at(others, runner_up)[:, 0]), best, runner_up)


def _row_moments(block: Device, labels: Device, best: Device, runner_up: Device) -> Device:
    """Mean, standard deviation, label's entry, masked or not, two columns, and the entries there: (8, b).

    Rows are divided by their range first: the squares of huge logits would overflow, those of tiny ones vanish.
    """
    xp = namespace(block)
    below, hidden = below_top(block)
    any_hidden = xp.astype(xp.any(hidden, axis=1), xp.float64)
    count = block.shape[1] - xp.sum(xp.astype(hidden, xp.float64), axis=1)
    low = xp.min(below, axis=1)
    spread = xp.where(low < 0, -low, 1.0)
    gap = xp.where(entries_at(hidden, labels), -xp.inf, entries_at(below, labels))[:, 0]
    unit = below / spread[:, None]
    mean = xp.sum(unit, axis=1) / count
    variance = xp.sum(unit * unit, axis=1) / count - mean**2
    deviation = spread * xp.sqrt(xp.where(variance > 0, variance, 0.0))
    columns = [xp.astype(column, xp.float64) for column in (best, runner_up)]
    entries = [entries_at(below, column)[:, 0] for column in (best, runner_up)]
    return xp.stack([spread * mean, deviation, gap, any_hidden, *columns, *entries])
