"""Marks by which rows are known again: hashes of 8 bytes, from which nothing of a row can be read back."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Marks", "are_known", "marks_of", "numbers_of", "telling_column"]

Marks = NDArray[np.uint64]


def marks_of(rows: Iterable[bytes]) -> Marks:
    """The mark (n,) of each row, given as what tells it from others; one of a million others has it once in 10^13.

    >>> marks = marks_of(numbers_of([[0.0, 1.0], [-0.0, 1.0], [0.0, 2.0]]))
    >>> marks[1:] == marks[:-1]
    array([ True, False])
    """
    return np.frombuffer(b"".join(blake2b(row, digest_size=8).digest() for row in rows), "<u8").astype(np.uint64)


def numbers_of(rows: ArrayLike) -> Iterator[bytes]:
    """The numbers of each row of an array (n, d) as float32, which outputs in files often are; -0 is 0."""
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(rows, np.float32) + np.float32(0)
    return (row.tobytes() for row in narrow)


def are_known(marks: NDArray[Any], known: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each of some marks (n,) is among known ones (m,), which increase.

    >>> are_known(np.array([3, 4]), np.array([1, 3]))
    array([ True, False])
    """
    if not known.size:
        return np.zeros(marks.shape, bool)
    return np.asarray(known[np.minimum(np.searchsorted(known, marks), known.size - 1)] == marks)


def telling_column(rows: NDArray[Any]) -> int | None:
    """The column of rows (n, d) that tells most of them apart; None where it is less than 90 %: equal rows are chance.

    >>> telling_column(np.array([[0, 7.0], [0, 8.0], [1, 9.0]])), telling_column(np.zeros((3, 2)))
    (1, None)
    """
    distinct = (np.diff(np.sort(rows, axis=0), axis=0) > 0).sum(axis=0) + 1
    column = int(distinct.argmax())
    return column if distinct[column] >= 0.9 * len(rows) else None
