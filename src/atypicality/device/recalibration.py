"""Recalibrators' arrays on a device: checked logits, what each row says, and recalibrated probabilities.

Logits and class log-densities stay where they lie; labels, atypicality, groups and weights (one number per row) may
come from either side and are read on the host. Refused there, with a word on what to do: `AdaptiveTemperatureScaling`
(its network is fitted on the CPU) and `ContentFreeCalibration` (a few rows of a language model's labels).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import namespace, on_device
from atypicality.device.checks import Device, beside, device_matrix, refuse_rows, to_device, to_host
from atypicality.device.probabilities import entries_at, row_blocks, take_rows
from atypicality.validation import (
    check_length,
    check_logit_maxima,
    check_logits,
    check_matrix,
    check_normalisers,
    check_prob_columns,
)

__all__ = [
    "any_logits",
    "below_top",
    "device_densities",
    "device_logits",
    "device_margins",
    "device_probabilities",
    "device_spreads",
    "read_device_rows",
    "some_rows",
]

Vector = NDArray[np.float64]


def any_logits(values: Any, *, n_classes: int | None = None, scan: bool = True) -> Any:
    """Checked logits (n, k) where they lie: `device_logits` on a device, `check_logits` elsewhere."""
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


def device_densities(values: Any, logits: Device, name: str = "class_log_density") -> Device:
    """Class log-densities (n, k) beside the logits: copied from the host, refused on another device."""
    if not on_device(values):
        array = to_device(check_matrix(values, name, width=logits.shape[1]), logits)
    elif not beside(values, logits):
        from array_api_compat import device

        raise ValueError(
            f"{name} must lie where the logits lie, on {device(logits)}; got {type(values).__name__} on "
            f"{device(values)}. Move one of them, or pass {name} as a NumPy array."
        )
    else:
        array = device_matrix(values, name, width=logits.shape[1])
    check_length(array, name, logits.shape[0])
    return array


def some_rows(values: Device, rows: slice | NDArray[np.intp]) -> Device:
    """Some rows of a matrix, which stays where it lies."""
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


def device_margins(logits: Device) -> Vector:
    """Largest less second largest logit of each row (n,), on the host; 0 where a single class is not masked."""
    return _by_blocks(logits, _block_margins)


def _block_margins(block: Device) -> Device:
    xp = namespace(block)
    below, hidden = below_top(block)
    columns = to_device(np.arange(block.shape[1]), block)
    others = xp.where(hidden | (columns[None, :] == xp.argmax(block, axis=1)[:, None]), -xp.inf, below)
    second = xp.max(others, axis=1)
    return xp.where(xp.isinf(second), 0.0, -second)


def device_spreads(matrix: Device) -> Vector:
    """Largest less smallest finite entry of each row (n,), on the host."""
    return _by_blocks(matrix, lambda block: -namespace(block).min(below_top(block)[0], axis=1))


def _by_blocks(matrix: Device, function: Callable[[Device], Device]) -> Vector:
    found = np.empty(matrix.shape[0])
    for rows in row_blocks(matrix):
        found[rows] = to_host(function(matrix[rows, :]))
    return found


def device_probabilities(
    logits: Device,
    multiplier: Vector,
    scores: Vector,
    *,
    mixing: Vector | None = None,
    middle: float = 1.0,
    reach: float | None = None,
    densities: Device | None = None,
    density_weights: Vector | None = None,
    density_reach: float | None = None,
    floor: float = 0.0,
) -> Device:
    """``softmax(m_i z_i + v_i d_i + W (z_i - o_i) + S)`` (n, k) on the device, in the dtype of the logits.

    Parameters
    ----------
    logits : device array of shape (n, k)
    multiplier : ndarray of shape (n,)
    scores : ndarray of shape (k,)
    mixing : ndarray of shape (k, k) or (k,), optional
        W; o lies from the row's maximum toward its mean by the part `middle`.
    middle : float, default=1.0
    reach, density_reach : float, optional
        Largest spread of a row of logits or densities; a wider one is shrunk to it.
    densities : device array of shape (n, k), optional
    density_weights : ndarray of shape (n,), optional
        v.
    floor : float, default=0.0
        d: of m classes that are not masked, p becomes ``(1 - m d) p + d``.
    """
    xp = namespace(logits)
    check_logit_maxima(to_host(xp.max(logits, axis=1)))
    if densities is not None:
        refuse_rows(~xp.all(xp.isfinite(densities), axis=1), "class_log_density")
    slopes, shift = to_device(multiplier, logits), to_device(scores, logits)
    weights = None if density_weights is None else to_device(density_weights, logits)
    mixed = None if mixing is None else to_device(mixing, logits)
    out = xp.empty_like(logits)
    for rows in row_blocks(logits):
        below, hidden = below_top(logits[rows, :])
        below = _within(below, reach)
        predicted = below * slopes[rows, None] + shift
        if mixed is not None:
            predicted = predicted + _mixed(below, hidden, mixed, middle)
        if densities is not None and weights is not None:
            predicted = predicted + _within(below_top(densities[rows, :])[0], density_reach) * weights[rows, None]
        probs = _softmax(xp.where(hidden, -xp.inf, predicted))
        masked = hidden | xp.isinf(shift)[None, :]
        out[rows, :] = xp.astype(_lifted(probs, masked, floor) if floor else probs, logits.dtype)
    check_normalisers(to_host(out[:, 0]))  # a total that is not finite makes its whole row so
    return out


def _lifted(probs: Device, masked: Device, floor: float) -> Device:
    xp = namespace(probs)
    count = xp.sum(xp.astype(~masked, xp.float64), axis=1, keepdims=True)
    return probs * (1 - count * floor) + xp.where(masked, 0.0, xp.full_like(probs, floor))


def _within(below: Device, reach: float | None) -> Device:
    """Rows with maximum 0, shrunk where they spread wider than `reach`."""
    if reach is None:
        return below
    xp, floor = namespace(below), max(reach, float(np.finfo(np.float64).tiny))  # no row divides by a spread of 0
    spread = -xp.min(below, axis=1, keepdims=True)
    return below * (floor / xp.where(spread > floor, spread, floor))


def _mixed(below: Device, hidden: Device, mixing: Device, middle: float) -> Device:
    xp = namespace(below)
    count = below.shape[1] - xp.sum(xp.astype(hidden, xp.float64), axis=1, keepdims=True)
    centred = xp.where(hidden, 0.0, below - middle * xp.sum(below, axis=1, keepdims=True) / count)
    return centred * mixing if mixing.ndim == 1 else centred @ mixing.T


def _softmax(predicted: Device) -> Device:
    xp = namespace(predicted)
    e = xp.exp(predicted - xp.max(predicted, axis=1, keepdims=True))
    return e / xp.sum(e, axis=1, keepdims=True)
