"""What the multiplier of a row's logits depends on: atypicality, margin, ambiguity, clipped, and their polynomial."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import BLOCK_BYTES, namespace, to_device, to_host
from atypicality.formula import Quadratic
from atypicality.formula.rows import margins as formula_margins
from atypicality.stored import Record, kinds, need

__all__ = [
    "COVARIATES", "USUAL", "Polynomial", "Vector", "covariates_of", "margins", "spreads", "standardise", "tails",
    "usual_tail",
]  # fmt: skip

Vector = NDArray[np.float64]
COVARIATES = ("atypicality", "margin", "ambiguity")
USUAL = ("atypicality", "margin")
"""Those of the default; ambiguity needs a search among training rows."""
TAIL, TAIL_ROWS, WIDEST_TAIL = 0.01, 10, 0.25


@dataclass(frozen=True)
class Polynomial:
    """Quadratic with interaction of standardised covariates: columns 1, x_j, x_j x_l.

    Attributes
    ----------
    names : tuple of str
        Covariates (q of them) that vary over the calibration rows.
    constant : tuple of str
        Covariates that do not: they have no columns.
    center, scale, low, high : ndarray of shape (q,)
        Weighted mean and standard deviation of each covariate within the limits that it is held to, and those.
    """

    names: Annotated[tuple[str, ...], kinds.TupleOf(kinds.Choice(*COVARIATES), size="q")]
    constant: Annotated[tuple[str, ...], kinds.TupleOf(kinds.Choice(*COVARIATES))]
    center: Annotated[Vector, kinds.Array("q", kinds.FINITE)]
    scale: Annotated[Vector, kinds.Array("q", kinds.POSITIVE)]
    low: Annotated[Vector, kinds.Array("q", kinds.FINITE)]
    high: Annotated[Vector, kinds.Array("q", kinds.FINITE)]

    def _check_stored(self) -> None:
        named = (*self.names, *self.constant)
        need(len(set(named)) == len(named), "covariates must be distinct.")
        need((self.low <= self.high).all(), "the ranges of covariates must not be empty.")

    _stored = Record(check=_check_stored)

    @classmethod
    def of(cls, values: Mapping[str, Vector], weights: Vector, tail: float = 0.0) -> Self:
        """Learn limits that leave the share `tail` of the rows beyond on either side, and center and scale within.

        Weights (n,) sum to 1.
        """
        return cls.from_moments({name: _moments(value, weights, tail) for name, value in values.items()})

    @classmethod
    def from_moments(cls, moments: Mapping[str, tuple[float, float, float, float]]) -> Self:
        """The polynomial of covariates whose mean, standard deviation and limits are known."""
        kept = tuple(
            name for name, (_, scale, low, high) in moments.items() if scale > 1e-12 * max(abs(low), abs(high))
        )
        table = np.array([moments[name] for name in kept]).reshape(-1, 4)
        return cls(kept, tuple(name for name in moments if name not in kept), *table.T.copy())

    @property
    def powers(self) -> list[tuple[int, ...]]:
        """Covariates that each column multiplies: (), (0,), (1,), (0, 0), (0, 1), (1, 1)."""
        index = range(len(self.names))
        return [c for degree in range(3) for c in itertools.combinations_with_replacement(index, degree)]

    @property
    def column_names(self) -> list[str]:
        """Columns in words: '1', 'atypicality', 'atypicality*margin'."""
        return ["*".join(self.names[i] for i in power) or "1" for power in self.powers]

    def columns(self, values: Mapping[str, Vector], *, n_rows: int, clip: bool) -> Vector:
        """The design (n, p) of rows, each covariate first clipped to its limits when asked."""
        x = np.empty((n_rows, len(self.names)))
        for j, name in enumerate(self.names):
            value = np.clip(values[name], self.low[j], self.high[j]) if clip else values[name]
            x[:, j] = (value - self.center[j]) / self.scale[j]
        return np.stack([x[:, list(power)].prod(axis=1) for power in self.powers], axis=1)

    def formula(self, coefficients: list[Vector], limits: tuple[float, float] | None, n_classes: int) -> Quadratic:
        """Weights of the logits and of each term, of at most p columns, on one block of rows, held to their limits."""
        return Quadratic(
            self.names,
            tuple(self.powers),
            tuple(tuple(one.tolist()) for one in coefficients),
            tuple(self.center.tolist()),
            tuple(self.scale.tolist()),
            None if limits is None else tuple(self.low.tolist()),
            None if limits is None else tuple(self.high.tolist()),
            limits,
            np.arange(n_classes),
        )


def standardise(columns: Vector, weights: Vector) -> tuple[Vector, Vector]:
    """Columns with weighted mean 0 and variance 1 behind a first column of ones, and the map back.

    A column that does not vary becomes 0. Returns the new columns (n, p) and a matrix (p, p): coefficients of the new
    columns, multiplied by it from the left, are coefficients of the old ones.
    """
    center = weights @ columns
    scale = np.sqrt(weights @ (columns - center) ** 2)
    flat = scale <= 1e-12 * np.abs(columns).max(axis=0)  # a square or product may be constant where its factors vary
    flat[0], center[0], scale[0] = False, 0.0, 1.0
    columns, scale = np.where(flat, center, columns), np.where(flat, 1.0, scale)
    back = np.diag(1 / scale)
    back[0, 1:] = -(center / scale)[1:]
    return (columns - center) / scale, back


def margins(logits: Any) -> Vector:
    """Largest less second largest logit of each row (n,), on the host; 0 where a single class is not masked."""
    numbers = to_device(np.arange(logits.shape[1]), logits)
    return _column(lambda xp, values, _: formula_margins(xp, values, numbers), logits)


def covariates_of(names: Iterable[str], inputs: Any, margin: Vector | None = None) -> dict[str, Vector]:
    """Covariates (n,) of rows by name; `margin` is that of the logits, where it is known."""
    found: dict[str, Vector] = {}
    for name in names:
        if name != "margin":
            found[name] = inputs.need_vector(name)
        else:
            found[name] = margins(inputs.logits) if margin is None else margin
    return found


def spreads(matrix: Any, top: Any = None) -> Vector:
    """Largest less smallest finite entry of each row (n,), on the host; `top` (n,) are the largest, where known."""
    known = top if isinstance(matrix, np.ndarray) else None  # those of rows on a device are found there

    def spread(xp: Any, values: Any, rows: slice) -> Any:
        largest = xp.max(values, axis=1, keepdims=True) if known is None else known[rows, None]
        low = xp.min(values, axis=1, keepdims=True)
        if bool(xp.any(xp.isinf(low))):
            low = xp.min(xp.where(xp.isinf(values), largest, values), axis=1, keepdims=True)
        return xp.astype(largest, xp.float64) - xp.astype(low, xp.float64)

    return _column(spread, matrix)


def _column(function: Callable[[Any, Any, slice], Any], matrix: Any) -> Vector:
    """One number per row (n,), on the host, from a function of a namespace, a block of checked rows and its place."""
    xp, host = namespace(matrix), isinstance(matrix, np.ndarray)
    height = blocks.block_rows(8 * matrix.shape[1], budget=blocks.CACHE_BYTES if host else BLOCK_BYTES)
    found = blocks.compute(
        lambda rows: [(function(xp, matrix[rows, :], rows),)], matrix.shape[0], block=height, host=host
    )
    return to_host(found[0])[:, 0]


def tails(values: Vector, weights: Vector, tail: float) -> tuple[float, float]:
    """Values with the share `tail` of the weight at or below, and at or above them; the extremes where it is 0.

    >>> tails(np.arange(10.0), np.full(10, 0.1), 0.2)
    (1.0, 8.0)
    """
    order = np.argsort(values, kind="stable")
    order = order[weights[order] > 0]
    needed = tail * (1 - 1e-12)  # a sum that reaches the share up to rounding has reached it
    below, above = np.cumsum(weights[order]), np.cumsum(weights[order[::-1]])
    first, last = np.searchsorted(below, needed), np.searchsorted(above, needed)
    return float(values[order[first]]), float(values[order[-1 - last]])


def usual_tail(n_rows: float) -> float:
    """Share of rows that reach the limit of a covariate, on either side: what fewer rows say is not extrapolated."""
    return min(max(TAIL, TAIL_ROWS / n_rows), WIDEST_TAIL)


def _moments(value: Vector, weights: Vector, tail: float) -> tuple[float, float, float, float]:
    low, high = tails(value, weights, tail)
    held = np.clip(value, low, high)
    mean = float(weights @ held)
    return mean, float(np.sqrt(weights @ (held - mean) ** 2)), low, high
