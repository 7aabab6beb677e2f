"""Fitting Gaussians where the rows lie: class statistics and the solve on a device, their results on the host.

Rows are taken in the order of their classes, block by block. A block is centred by the origins of its classes, which
are consecutive, so that a product with a small 0/1 matrix sums each class, and a product of the block with itself gives
the scatter. Products are in the precision asked for, sums over blocks in float64, and nothing waits for the host inside
the loop. Float32 products are what the library of the arrays makes of them: torch's TF32 is never switched on here, and
where the user has switched it on, precision="float32" keeps about three digits.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import Device, namespace, to_device, to_host
from atypicality.density.covariance import Factorise
from atypicality.density.device_classes import ClassOrder, order_by_class
from atypicality.density.statistics import ClassStatistics, Layout
from atypicality.density.statistics import refuse_rows as refuse_overflow
from atypicality.density.unit import refuse_zeros
from atypicality.validation.device import device_matrix, refuse_rows

__all__ = ["gather_on_device", "refuse_embeddings", "whitening_on"]

Float64 = NDArray[np.float64]

_BLOCK_BYTES = {"float64": 2**29, "float32": 2**26}  # float32 sums should stay short
_CLASSES = 1024  # rows of a 0/1 matrix at most


def gather_on_device(
    embeddings: Device,
    labels: Any,
    *,
    layout: Layout,
    precision: str,
    moments: bool = False,
    width: int | None = None,
    normalize: str | None = None,
) -> ClassStatistics:
    """As `density.statistics.gather_statistics`, of rows (n, d) on a device; only the sums come to the host."""
    x = device_matrix(embeddings, "embeddings", width=width)
    if not x.shape[0]:
        raise ValueError(f"embeddings must have at least one row to fit on; got shape {tuple(x.shape)}.")
    order = order_by_class(labels, x, normalize)
    origins = _origins(x, order, precision)
    raw = _sums_about(origins, x, order, layout, moments)
    means, scatter = _centred(raw, origins, order, layout)
    if _spread(raw[1], layout) > 64 * _spread(scatter, layout):  # origins far from their class cost digits
        origins = namespace(x).astype(means, origins.dtype)
        raw = _sums_about(origins, x, order, layout, moments)
        means, scatter = _centred(raw, origins, order, layout)
    about = (layout, float(np.finfo(precision).eps), order.classes, order.counts)
    if not moments:
        return ClassStatistics(*about, to_host(means), np.zeros(tuple(means.shape)), to_host(scatter))
    plain = ClassStatistics(*about, to_host(origins).astype(np.float64), *map(to_host, raw))
    return plain.about(plain.means)


def whitening_on(like: Device) -> Factorise:
    """`density.covariance.triangular_whitening` on the device of `like`."""
    return partial(_triangular_whitening, like=like)


def _triangular_whitening(covariance: Float64, shift: float, *, like: Device) -> tuple[Float64, Float64] | None:
    xp, matrix = namespace(like), to_device(covariance, like)
    identity = xp.eye(covariance.shape[0], dtype=matrix.dtype, device=matrix.device)
    try:
        if not _is_factor(xp.linalg.cholesky(matrix - shift * identity), matrix - shift * identity):
            return None
        factor = xp.linalg.cholesky(matrix)
    except (np.linalg.LinAlgError, RuntimeError):  # torch's LinAlgError is a RuntimeError; the host decides then
        return None
    inverse = to_host(_inverse_transpose(factor))
    return np.ascontiguousarray(inverse), to_host(xp.linalg.diagonal(factor))


def _is_factor(factor: Device, matrix: Device) -> bool:
    """Whether a matrix was factorised up to the rounding that `covariance.whiten` allows for: CuPy does not say."""
    xp, d = namespace(matrix), matrix.shape[0]
    residual = xp.linalg.matrix_norm(factor @ xp.matrix_transpose(factor) - matrix)
    return bool(residual <= (d + 2) * float(np.finfo(np.float64).eps) * xp.linalg.trace(matrix))


def _inverse_transpose(factor: Device) -> Device:
    """L^-T of a lower triangular L; the standard has no triangular solve, and a general one finds nothing to pivot."""
    xp = namespace(factor)
    identity = xp.eye(factor.shape[0], dtype=factor.dtype, device=factor.device)
    upper, triangular = xp.matrix_transpose(factor), getattr(xp.linalg, "solve_triangular", None)
    return xp.linalg.solve(upper, identity) if triangular is None else triangular(upper, identity, upper=True)


def _origins(x: Device, order: ClassOrder, precision: str) -> Device:
    """A point near each class mean (k, d): the mean of its first rows, few enough to cost next to nothing."""
    xp, k = namespace(x), order.classes.size
    few = np.minimum(np.arange(min(64, 1 + 2048 // k)), order.counts[:, None] - 1)  # of a small class, the last again
    places = to_device((order.bounds[:-1, None] + few).ravel(), x)
    sample = xp.astype(order.take(x, xp.take(order.rows, places, axis=0)), xp.float64)
    sample = xp.reshape(sample, (k, few.shape[1], x.shape[1]))
    first = sample[:, 0, :]  # relative to it: equal rows have it as their mean
    return xp.astype(first + xp.mean(sample - first[:, None, :], axis=1), getattr(xp, precision))


def _sums_about(origins: Device, x: Device, order: ClassOrder, layout: Layout, moments: bool) -> list[Device]:
    """First, scatter and, where asked for, third and fourth of `ClassStatistics`, on the device in float64."""
    xp = namespace(x)
    if layout == "full":
        totals = _sums_by_class(origins, x, order, moments)
    else:
        totals = _sums_in_order(origins, x, order, layout)
    if not bool(xp.all(xp.isfinite(totals[0]))) or not bool(xp.all(xp.isfinite(totals[1]))):
        refuse_embeddings(x, np.dtype(str(origins.dtype).rpartition(".")[2]), normalize=order.normalize)
    return totals


def _sums_in_order(origins: Device, x: Device, order: ClassOrder, layout: Layout) -> list[Device]:
    first = _zeros(x, tuple(origins.shape))
    if layout == "diagonal":
        squares = _zeros(x, tuple(origins.shape))
        for places, u in _centred_blocks(origins, x, order):
            _add_class_sums(first, u, order, places)
            _add_class_sums(squares, u * u, order, places)
        return [first, squares]
    scatter = _Scatter(x)
    for places, u in _centred_blocks(origins, x, order):
        scatter.add(u)
        _add_class_sums(first, u, order, places)
    return [first, scatter.total()]


def _sums_by_class(origins: Device, x: Device, order: ClassOrder, moments: bool) -> list[Device]:
    xp, (k, d) = namespace(x), origins.shape
    totals = [_zeros(x, shape) for shape in [(k, d), (k, d, d)] + ([(k, d), (k,)] if moments else [])]
    for y, (start, stop) in enumerate(zip(order.bounds[:-1].tolist(), order.bounds[1:].tolist(), strict=True)):
        for part in blocks.row_slices(stop - start, _block(origins)):
            rows = order.rows[start + part.start : start + part.stop]
            u = xp.astype(order.take(x, rows) - origins[y : y + 1, :], origins.dtype, copy=False)
            wide = xp.astype(u, xp.float64, copy=False)
            totals[0][y, :] += xp.sum(wide, axis=0)
            totals[1][y, :, :] += xp.astype(xp.matrix_transpose(u) @ u, xp.float64, copy=False)
            if moments:
                lengths = xp.sum(wide * wide, axis=1)
                totals[2][y, :] += lengths @ wide
                totals[3][y] += xp.sum(lengths * lengths)
    return totals


def _centred_blocks(origins: Device, x: Device, order: ClassOrder) -> Iterator[tuple[slice, Device]]:
    """Places, and the rows there less the origins of their classes."""
    xp = namespace(x)
    for places in blocks.row_slices(x.shape[0], _block(origins)):
        rows = order.take(x, order.rows[places]) - xp.take(origins, order.codes[places], axis=0)
        yield places, xp.astype(rows, origins.dtype, copy=False)


def _add_class_sums(totals: Device, u: Device, order: ClassOrder, places: slice) -> None:
    """Add the sum of the rows of each class: a product with a 0/1 matrix for some classes, which are consecutive."""
    xp, span = namespace(u), order.span(places)
    for part in blocks.row_slices(span.stop - span.start, _CLASSES):
        classes = slice(span.start + part.start, span.start + part.stop)
        start, stop = max(places.start, order.bounds[classes.start]), min(places.stop, order.bounds[classes.stop])
        numbers = xp.arange(classes.start, classes.stop, dtype=order.codes.dtype, device=u.device)
        members = xp.astype(order.codes[None, start:stop] == numbers[:, None], u.dtype)
        sums = members @ u[start - places.start : stop - places.start, :]
        totals[classes, :] += xp.astype(sums, totals.dtype, copy=False)


class _Scatter:
    """Sum of u^T u in float64 from three quarters of each product: one corner is the mirror image of another."""

    def __init__(self, x: Device) -> None:
        self.half, d = x.shape[1] // 2, x.shape[1]
        shapes = [(self.half, self.half), (self.half, d - self.half), (d - self.half, d - self.half)]
        self.corners = [_zeros(x, shape) for shape in shapes]

    def add(self, u: Device) -> None:
        """Take in a block of rows."""
        xp, (left, right) = namespace(u), (u[:, : self.half], u[:, self.half :])
        for corner, (a, b) in zip(self.corners, [(left, left), (left, right), (right, right)], strict=True):
            corner += xp.astype(xp.matrix_transpose(a) @ b, corner.dtype, copy=False)

    def total(self) -> Device:
        """The sum (d, d)."""
        xp, (first, mixed, last) = namespace(*self.corners), self.corners
        upper, lower = xp.concat([first, mixed], axis=1), xp.concat([xp.matrix_transpose(mixed), last], axis=1)
        return xp.concat([upper, lower], axis=0)


def _centred(raw: list[Device], origins: Device, order: ClassOrder, layout: Layout) -> tuple[Device, Device]:
    """Class means (k, d), and the scatter about them."""
    xp, (first, scatter) = namespace(origins), raw[:2]
    step = first / to_device(order.counts.astype(np.float64), origins)[:, None]
    means = xp.astype(origins, xp.float64) + step
    if layout == "diagonal":
        return means, scatter - first * step
    moved = xp.matrix_transpose(first) @ step if layout == "pooled" else first[:, :, None] * step[:, None, :]
    scatter = scatter - moved
    return means, 0.5 * (scatter + xp.matrix_transpose(scatter))


def _spread(scatter: Device, layout: Layout) -> float:
    """Sum of |u|^2 over all rows."""
    xp = namespace(scatter)
    return float(xp.sum(scatter if layout == "diagonal" else xp.linalg.diagonal(scatter)))


def _zeros(x: Device, shape: tuple[int, ...]) -> Device:
    xp = namespace(x)
    return xp.zeros(shape, dtype=xp.float64, device=x.device)


def _block(origins: Device) -> int:
    """Rows of a block."""
    precision = str(origins.dtype).rpartition(".")[2]
    return blocks.block_rows(origins.shape[1] * int(precision[-2:]) // 8, budget=_BLOCK_BYTES[precision])


def refuse_embeddings(rows: Device, dtype: Any, first_row: int = 0, normalize: str | None = None) -> None:
    """Say what is wrong with rows (n, d) whose result was not finite: not finite, zeros, or an overflow."""
    xp = namespace(rows)
    refuse_rows(~xp.all(xp.isfinite(rows), axis=1), "embeddings", first_row=first_row)
    if normalize is not None:
        refuse_zeros(to_host(xp.all(rows == 0, axis=1)), "normalize='l2'", first_row=first_row)
    refuse_overflow(np.zeros((1, 1)), np.dtype(dtype), first_row=first_row)
