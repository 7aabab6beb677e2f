"""How rare held-out rows were: the quantiles that new rows are compared with."""

from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.formula import Scale
from atypicality.stored import Record, kinds, need
from atypicality.validation import check_vector

__all__ = ["GRID_SIZE", "QuantileScale"]

GRID_SIZE = 1025
"""Most values that a stored curve keeps: enough for a quantile to a thousandth, small enough for a graph."""

ROUNDING = 1e-9
"""Relative distance by which a value has to be larger than the largest to be beyond it, whoever adds up its sum."""

Vector = NDArray[np.float64]


@dataclass(eq=False, repr=False)
class QuantileScale:
    """The share of held-out rows at or below a value: their distribution at up to 1025 points, joined by lines.

    `levels` (m,) are the shares of the `n_rows` held-out rows at or below the strictly increasing `values` (m,).

    >>> scale = QuantileScale.from_rows([1.0, 2.0, 2.0, 4.0])
    >>> scale([0.5, 1.0, 2.0, 3.0, 9.0])
    array([0.   , 0.25 , 0.75 , 0.875, 1.   ])
    """

    values: Annotated[Vector, kinds.Array("v", kinds.FINITE, kinds.INCREASING)]
    levels: Annotated[Vector, kinds.Array("v", kinds.UNIT, kinds.INCREASING)]
    n_rows: Annotated[int, kinds.Integer(1)]

    @classmethod
    def from_rows(cls, values: ArrayLike) -> Self:
        """Learn from held-out values (n,), at least one."""
        ordered = np.sort(check_vector(values, "values"))
        chosen = np.round(np.linspace(0, ordered.size - 1, min(ordered.size, GRID_SIZE))).astype(np.intp)
        kept = np.unique(ordered[chosen])
        return cls(kept, np.searchsorted(ordered, kept, side="right") / ordered.size, ordered.size)

    def __call__(self, values: ArrayLike) -> Vector:
        """Quantiles (n,) in [0, 1]: 0 below every held-out value, 1 from the largest on."""
        found: Vector = self.formula().quantiles(np, check_vector(values, "values"))
        return found

    def formula(self) -> Scale:
        """The parameters of a quantile; see `atypicality.formula`."""
        return Scale.of(self.values, self.levels)

    @property
    def furthest(self) -> float:
        """The largest value that is not beyond all held-out values: a little more than the largest of them."""
        largest = float(self.values[-1])
        return largest + ROUNDING * max(1.0, abs(largest))

    def beyond(self, values: Vector) -> NDArray[np.bool_]:
        """Which values (n,) are larger than every held-out value: nothing was measured there.

        >>> QuantileScale.from_rows([1.0, 4.0]).beyond(np.array([4.0, 4.5])).tolist()
        [False, True]
        """
        return np.asarray(values > self.furthest)

    def _check_stored(self) -> None:
        need(1 <= self.values.size <= GRID_SIZE, f"there must be 1 to {GRID_SIZE} values.")
        need(self.levels[-1] == 1 and self.levels[0] > 0, "levels must rise from above 0 to 1.")
        need(self.n_rows >= self.values.size, "there must be at least as many rows as values.")

    _stored = Record(check=_check_stored)
