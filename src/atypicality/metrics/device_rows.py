"""What metrics read from probabilities on a device: per-row columns and cell entries, brought to the host.

A row leaves a handful of numbers behind, so nothing of the size of the probabilities ever moves. Products and sums are
taken in float64: against the CPU only the order of the additions differs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import Device, entries_at, namespace, row_blocks, to_device, to_host

__all__ = ["pair_columns", "read_rows"]

Column = NDArray[Any]


def pair_columns(probs: Device, labels: NDArray[np.intp]) -> tuple[Column, Column]:
    """Confidence and correctness of every row of checked probabilities, both (n,)."""
    best = namespace(probs).argmax(probs, axis=1)  # the first of equal entries
    top = to_host(entries_at(probs, best)[:, 0]).astype(np.float64)
    return top, to_host(best) == labels


def read_rows(
    probs: Device, labels: NDArray[np.intp], first: float, add: Callable[[Column, Column, Column], None]
) -> tuple[Column, ...]:
    """Confidence, correctness, probability of the label and sum of squares of checked rows, each (n,).

    For every block of rows, `add` gets the sums of the columns (k,), and the columns and values of the entries above
    `first`, in row order.
    """
    target, parts = to_device(labels, probs), []
    for rows in row_blocks(probs):
        block = probs[rows, :]
        columns, cells = _read_block(block, target[rows], first)
        parts.append([to_host(column) for column in columns])
        add(*(to_host(cell) for cell in cells))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _read_block(block: Device, target: Device, first: float) -> tuple[tuple[Device, ...], tuple[Device, ...]]:
    xp = namespace(block)
    wide = xp.astype(block, xp.float64, copy=False)
    best = xp.argmax(block, axis=1)
    top, own = (entries_at(wide, columns)[:, 0] for columns in (best, target))
    row, column = xp.nonzero(block > first)
    cells = xp.sum(wide, axis=0), column, wide[row, column]
    return (top, best == target, own, xp.sum(wide * wide, axis=1)), cells
