"""Rows divided by their Euclidean length, read as they are needed; rows of zeros, which have none, are refused."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.formula.rows import Buffers, unit_rows
from atypicality.validation import FloatArray, check_finite, name_rows

__all__ = ["UnitRows", "refuse_zeros"]

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class UnitRows:
    """Rows (n, d), perhaps of a memory map, that are divided by their length when some of them are read."""

    rows: FloatArray

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the rows."""
        return self.rows.shape

    @property
    def dtype(self) -> np.dtype[np.float64]:
        """Of what is read."""
        return np.dtype(np.float64)

    def __len__(self) -> int:
        """How many rows."""
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> Float64:
        """Some rows of length 1; NaN where a row is zero."""
        return self.of(self.rows[chosen])

    @staticmethod
    def of(rows: FloatArray, buffers: Buffers | None = None) -> Float64:
        """Rows (m, d) of length 1, those of float32 rows in a buffer if there are some; NaN where a row is zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Float64 = unit_rows(np, rows, buffers)[0]
        return found

    def refuse(self, first_row: int = 0) -> None:
        """Say which rows are not finite or zero, if any are; their numbers start at `first_row`."""

        def check(part: slice) -> None:
            check_finite(self.rows[part], "embeddings", first_row=first_row + part.start)
            refuse_zeros((self.rows[part] == 0).all(axis=1), "normalize='l2'", first_row=first_row + part.start)

        blocks.for_rows(check, len(self), block=blocks.block_rows(8 * self.shape[1]))


def refuse_zeros(zero: NDArray[np.bool_], option: str, *, first_row: int) -> None:
    """Refuse rows of zeros, which have no direction, where `zero` is true; `option` asked for it."""
    rows = np.flatnonzero(zero)
    if rows.size:
        raise ValueError(
            f"embeddings must have no row of zeros with {option}; "
            f"{name_rows(rows + first_row, 'is', 'are', of='embeddings')} zero. Drop those rows, or leave {option} out."
        )
