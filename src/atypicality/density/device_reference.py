"""Training rows and queries on a device, shifted and scaled for coarse products, and their exact distances."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from atypicality import blocks
from atypicality.arrays import Device, namespace, to_host
from atypicality.density.device_gaussian import refuse_embeddings
from atypicality.density.device_products import Grain
from atypicality.density.search import METRICS
from atypicality.density.unit import refuse_zeros
from atypicality.formula.rows import unit_rows

__all__ = ["DeviceReference", "Queries"]

_BLOCK_BYTES = 2**29  # of rows in float64
_SHORTEST = -1000  # power of two of the longest row, below which its scale would overflow
_LONGEST = 2.0**8  # of a training row after scaling: far above the tiny of half precision, and its square fits


@dataclass(frozen=True)
class DeviceReference:
    """Training rows (n, d) on their device, and how a row is shifted and scaled before it enters a product.

    Parameters
    ----------
    rows : device array of shape (n, d)
    metric : {"euclidean", "cosine", "chord"}
    shift : device array of shape (d,)
        Float64 of float32 numbers.
    scale : float
        A power of two.
    half_squares : device array of shape (n,)
        Half the squared lengths of shifted and scaled rows.
    longest : float
        The largest of these lengths.
    """

    rows: Device
    metric: str
    shift: Device
    scale: float
    half_squares: Device
    longest: float

    @classmethod
    def of(cls, rows: Device, metric: str) -> "DeviceReference":
        """Read the rows once: check them, and measure their lengths about a rough centre."""
        xp, shift = namespace(rows), _rough_centre(rows, metric)
        cuts = blocks.row_slices(rows.shape[0], blocks.block_rows(8 * rows.shape[1], budget=_BLOCK_BYTES))
        lengths = xp.concat([_lengths(exact_rows(rows[part, :], metric, part.start) - shift) for part in cuts])
        _check_lengths(lengths, rows)
        largest = float(xp.max(lengths))
        scale = _LONGEST * float(2.0 ** -max(np.ceil(np.log2(largest)), _SHORTEST)) if largest > 0 else 1.0
        return cls(rows, metric, shift, scale, 0.5 * (lengths * scale) ** 2, largest * scale)

    def operand(self, numbers: Any, grain: Grain) -> Device:
        """Training rows, a slice or positions (m,), as an operand (m, w) that meets that of `Queries`."""
        xp = namespace(self.rows)
        rows, halves = _rows(self.rows, numbers), _rows(self.half_squares, numbers)
        if self.metric != "euclidean":
            rows = exact_rows(rows, self.metric)
        elif grain.name == "float64" or not 2.0**-100 < self.scale < 2.0**100:  # else float32 rows cost half as much
            rows = xp.astype(rows, xp.float64, copy=False)
        first = grain.rounded(halves)
        second = grain.rounded(halves - xp.astype(first, xp.float64))
        shifted = (rows - xp.astype(self.shift, rows.dtype, copy=False)) * self.scale
        return _side_by_side(grain.rounded(shifted), [first, second])

    def distances(self, queries: Device, numbers: Device) -> Device:
        """Distances (p, g) of queries (p, d) to training rows of these positions (p, g), directly in float64."""
        xp, (p, g) = namespace(self.rows), numbers.shape
        rows = exact_rows(xp.take(self.rows, xp.reshape(numbers, (-1,)), axis=0), self.metric, wide=False)
        return self.as_distance(_lengths(xp.reshape(rows, (p, g, rows.shape[1])) - queries[:, None, :]))

    def as_distance(self, lengths: Device) -> Device:
        """Distances from lengths of differences: for unit rows, 1 less the cosine is half the square."""
        return 0.5 * lengths**2 if self.metric == "cosine" else lengths


@dataclass(frozen=True)
class Queries:
    """Rows that look for their nearest training rows.

    Parameters
    ----------
    exact : device array of shape (n, d)
        In float64; of length 1 unless the metric is Euclidean.
    lengths : device array of shape (n,)
        After shift and scale.
    own : device array of shape (n,) or None
        The training row that each query is, and does not meet.
    """

    exact: Device
    lengths: Device
    own: Device | None

    @classmethod
    def of(cls, reference: DeviceReference, rows: Device, *, first_row: int, exclude_self: bool) -> "Queries":
        """Some consecutive rows of all queries."""
        xp = namespace(rows)
        exact = exact_rows(rows, reference.metric, first_row)
        lengths = _lengths(exact - reference.shift)
        _check_lengths(lengths, rows, first_row)
        own = xp.arange(first_row, first_row + rows.shape[0], device=rows.device) if exclude_self else None
        return cls(exact, lengths * reference.scale, own)

    def at(self, positions: Device) -> "Queries":
        """Some of them."""
        xp = namespace(self.exact)
        own = None if self.own is None else xp.take(self.own, positions, axis=0)
        return Queries(xp.take(self.exact, positions, axis=0), xp.take(self.lengths, positions, axis=0), own)

    def operand(self, reference: DeviceReference, grain: Grain) -> Device:
        """Queries as an operand (n, w)."""
        shifted = (self.exact - reference.shift) * reference.scale
        minus = -namespace(shifted).ones_like(shifted[:, 0])
        return _side_by_side(grain.rounded(shifted), [grain.rounded(minus)] * 2)


def exact_rows(rows: Device, metric: str, first_row: int = 0, *, wide: bool = True) -> Device:
    """Rows for a Euclidean distance: as they are, in float64 if `wide`, or scaled to length 1."""
    xp = namespace(rows)
    if metric == "euclidean":
        return xp.astype(rows, xp.float64, copy=False) if wide else rows
    refuse_zeros(to_host(xp.all(rows == 0, axis=1)), METRICS[metric], first_row=first_row)
    return unit_rows(xp, rows)[0]


def _lengths(rows: Device) -> Device:
    return namespace(rows).linalg.vector_norm(rows, axis=-1)


def _check_lengths(lengths: Device, rows: Device, first_row: int = 0) -> None:
    xp = namespace(rows)
    if not bool(xp.all(xp.isfinite(lengths * lengths))):  # a library may find a length whose square overflows
        refuse_embeddings(rows, np.float64, first_row)


def _rough_centre(rows: Device, metric: str) -> Device:
    """Mean of some rows: a better one would only make the search faster."""
    xp = namespace(rows)
    sample = xp.astype(rows[:: 1 + rows.shape[0] // 1000, :], xp.float64)
    if metric != "euclidean":
        kept = xp.nonzero(xp.any(sample != 0, axis=1))[0]
        sample = exact_rows(xp.take(sample, kept, axis=0), metric)
    centre = xp.sum(sample, axis=0) / max(1, sample.shape[0])
    kept = xp.abs(centre) < float(np.finfo(np.float32).max)
    return xp.astype(xp.astype(xp.where(kept, centre, 0.0), xp.float32), xp.float64)


def _rows(values: Device, numbers: Any) -> Device:
    return values[numbers, ...] if isinstance(numbers, slice) else namespace(values).take(values, numbers, axis=0)


def _side_by_side(rows: Device, columns: list[Device]) -> Device:
    """Rows and further columns, filled up to a multiple of 16 columns, for which products are fastest."""
    xp, (n, width) = namespace(rows), rows.shape
    missing = -(width + len(columns)) % 16
    parts = [rows, *(column[:, None] for column in columns)]
    if missing:
        parts.append(xp.zeros((n, missing), dtype=rows.dtype, device=rows.device))
    return xp.concat(parts, axis=1)
