"""Coarse matrix products with a bound on their rounding, and the largest entries of rows.

What the array API standard lacks is looked up in the namespace by name, with a way round it in standard functions.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from atypicality.arrays import Device, namespace

__all__ = ["DOUBLE", "HALF", "Grain", "largest", "product"]

_FOLD = 64  # entries whose maximum stands for them


@dataclass(frozen=True)
class Grain:
    """How coarse the operands of a product are, and so how far a product can be from the truth.

    Parameters
    ----------
    name : {"float16", "float64"}
        Type that operands are rounded to, or as if.
    unit, tiny : float
        A rounded entry is off by at most `unit` times itself plus `tiny`.
    sums : float
        Every addition is off by at most this share of the sum of absolute values.
    longest : float
        A row of this length, or shorter, does not overflow.
    """

    name: str
    unit: float
    tiny: float
    sums: float
    longest: float

    def rounded(self, rows: Device) -> Device:
        """Rows as an operand: rounded to this grain, in the type that the product is taken in.

        Half precision keeps 11 bits, as the TF32 of tensor cores does, so that a float32 product of rows rounded here
        is the same whether the library takes it in float32 or in TF32.
        """
        xp = namespace(rows)
        if self.name == "float64":
            return xp.astype(rows, xp.float64, copy=False)
        if not hasattr(xp, "float16"):
            return xp.astype(rows, xp.float32)  # finer than requested
        half = xp.astype(rows, xp.float16)
        return half if hasattr(xp, "mm") and _widens(xp, rows.device) else xp.astype(half, xp.float32)

    def error(self, width: int, query: Any, row: Any) -> Any:
        """Bound on the error of q . t - |t|^2 / 2 for lengths |q| and |t| of rows of `width` columns.

        Rounding of the operands, of the sum, and of |t|^2 / 2, which enters the product in two columns of its own.
        """
        sums = 1.01 * (width + 16) * self.sums
        relative = (2 * self.unit + self.unit**2 + sums) * query * row + (self.unit**2 + sums) * 0.5 * row * row
        absolute = self.tiny * (1.01 * width**0.5 * (query + row) + width * self.tiny + 4)
        return 1.01 * (relative + absolute)


HALF = Grain("float16", unit=1.01 * 2.0**-11, tiny=2.0**-14, sums=2.0**-23, longest=2.0**14)
"""Tensor cores: products of halves are exact, sums are cut off after 24 bits (Fasi and others, PeerJ Computer Science
7:e330, 2021), and subnormal halves are taken to count as 0."""
DOUBLE = Grain("float64", unit=2.0**-51, tiny=1e-300, sums=2.0**-52, longest=1e140)


def product(queries: Device, rows: Device) -> Device:
    """Queries (n, w) times rows (m, w), transposed: (n, m) in float32 or float64."""
    xp = namespace(rows)
    if "float16" in str(rows.dtype):
        return xp.mm(queries, xp.matrix_transpose(rows), out_dtype=xp.float32)
    return queries @ xp.matrix_transpose(rows)


def largest(values: Device, count: int) -> tuple[Device, Device]:
    """The `count` largest entries of every row (n, w), in descending order, and their positions: both (n, count).

    Wide rows are folded first: the largest entries lie in the folds with the largest maxima.
    """
    xp, (n, width) = namespace(values), values.shape
    if width <= 2 * _FOLD * count:
        return _largest(values, count)
    stride = -(-width // _FOLD)
    short = _FOLD * stride - width
    padding = [xp.full((n, short), -xp.inf, dtype=values.dtype, device=values.device)] if short else []
    padded = xp.concat([values, *padding], axis=1) if padding else values
    _, folds = _largest(xp.max(xp.reshape(padded, (n, _FOLD, stride)), axis=1), count)
    steps = stride * xp.arange(_FOLD, dtype=folds.dtype, device=values.device)
    places = xp.reshape(folds[:, :, None] + steps[None, None, :], (n, count * _FOLD))
    found, positions = _largest(xp.take_along_axis(padded, places, axis=1), count)
    return found, xp.take_along_axis(places, positions, axis=1)


def _largest(values: Device, count: int) -> tuple[Device, Device]:
    xp = namespace(values)
    if hasattr(xp, "topk"):
        found = xp.topk(values, count, dim=1)
        return found[0], found[1]
    order = xp.argsort(values, axis=1, descending=True)[:, :count]
    return xp.take_along_axis(values, order, axis=1), order


@cache
def _widens(xp: Any, device: Any) -> bool:
    """Whether a library that has `mm` multiplies halves into float32 on a device, as torch does on CUDA."""
    try:
        one = xp.zeros((16, 16), dtype=xp.float16, device=device)
        return bool(xp.mm(one, one, out_dtype=xp.float32).dtype == xp.float32)
    except (TypeError, NotImplementedError, RuntimeError):  # an older torch, or a device without it
        return False
