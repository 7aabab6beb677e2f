"""Cells of the grid merged into regions that are large enough to carry a threshold of their own."""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from atypicality.conformal.threshold import minimum_rows

__all__ = ["merge_cells", "rows_to_expect"]

SHORTFALL_DEVIATIONS = 2.33
"""A region that expects just enough rows falls short of them with a chance of 1 %: the normal quantile of 0.99."""


def rows_to_expect(alpha: Fraction, ratio: float) -> float:
    r"""How many threshold rows a region should expect, so that it rarely gets fewer than `alpha` needs.

    A region that holds c of the edge rows expects :math:`m = c r` threshold rows, r being `ratio`, the threshold rows
    per edge row. Both counts are random: what arrives varies around m with a variance of about :math:`m (1 + r)`.
    The answer is the m that lies 2.33 deviations above the :math:`\lceil 1/\alpha \rceil - 1` rows that are needed.

    >>> round(rows_to_expect(Fraction(1, 20), 2.0), 1)
    46.5
    """
    spread = SHORTFALL_DEVIATIONS * math.sqrt(1 + ratio)
    root = (spread + math.sqrt(spread**2 + 4 * minimum_rows(alpha))) / 2
    return root**2


def merge_cells(expected: NDArray[np.float64], needed: float) -> NDArray[np.intp]:
    """Regions of a grid that each expect at least `needed` rows: the number of every cell's region.

    The region that expects fewest rows joins the neighbour that expects fewest, again and again, until every region
    has enough or one is left. Neighbours share a side of a cell, so regions are connected along the grid, and
    every cell belongs to one, also a cell that expects no rows at all. Equal counts are decided by position.
    What each cell expects (n_atypicality, n_confidence) comes from rows that will not carry a guarantee. Regions are
    numbered from 0 in the order of their first cells.

    >>> merge_cells(np.array([[9.0, 1.0], [2.0, 8.0]]), 3)
    array([[0, 1],
           [0, 1]])
    """
    regions = np.arange(expected.size).reshape(expected.shape)
    while (totals := _totals(regions, expected)) and len(totals) > 1:
        smallest = min(totals, key=lambda region: (totals[region], region))
        if totals[smallest] >= needed:
            break
        joined = min(_neighbours(regions, smallest), key=lambda region: (totals[region], region))
        regions[(regions == smallest) | (regions == joined)] = min(smallest, joined)
    return np.unique(regions, return_inverse=True)[1].reshape(expected.shape)


def _totals(regions: NDArray[np.intp], expected: NDArray[np.float64]) -> dict[int, float]:
    return {int(region): float(expected[regions == region].sum()) for region in np.unique(regions)}


def _neighbours(regions: NDArray[np.intp], region: int) -> set[int]:
    """Regions that share a side of a cell with `region`."""
    found: set[int] = set()
    for first, second in ((regions[1:], regions[:-1]), (regions[:, 1:], regions[:, :-1])):
        found.update(first[second == region].tolist(), second[first == region].tolist())
    return found - {region}
