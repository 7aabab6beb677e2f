"""Soft groups: overlapping weight functions on the cells of a grid of atypicality and confidence."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.validation import check_choice, check_number

__all__ = ["checked_bandwidth", "chosen_knots", "expected_coverage", "group_name", "local_quantiles", "soft_groups"]

Doubles = NDArray[np.float64]
Shape = tuple[int, int]

FINE_FROM = 2000
"""Threshold rows from which three knots are worth their larger thresholds."""
NAMES = {
    1: (("",), ("",)),
    2: (("typical", "atypical"), ("low-confidence", "confident")),
    3: (("typical", "medium-typical", "atypical"), ("low-confidence", "medium-confident", "confident")),
}


def soft_groups(shape: Shape, knots: Shape) -> Doubles:
    """Weights (n_atypicality, n_confidence, d) of d = product of `knots` groups in every cell of a grid.

    They are products of piecewise-linear hat functions: not negative, and 1 in sum in every cell.

    >>> soft_groups((3, 1), (2, 1))[:, 0]
    array([[1. , 0. ],
           [0.5, 0.5],
           [0. , 1. ]])
    """
    first, second = (_hats(m, k) for m, k in zip(shape, knots, strict=True))
    return (first[:, None, :, None] * second[:, None, :]).reshape(*shape, -1)


def _hats(m: int, knots: int) -> Doubles:
    """Hat functions (m, knots) at m evenly spaced positions from 0 to 1, and as many knots."""
    if knots == 1:
        return np.ones((m, 1))
    position = np.arange(m) * (knots - 1) / (m - 1)
    return np.maximum(0.0, 1.0 - np.abs(position[:, None] - np.arange(knots)))


def chosen_knots(expected: Doubles, knots: int | str, least: float, n_rows: int) -> Shape:
    """Knots of either axis: as asked for, or as many as the rows support.

    Of the `n_rows` threshold rows, the edge rows say how many to expect in every cell (n_atypicality, n_confidence);
    "auto" wants to expect `least` in every soft group.

    >>> chosen_knots(np.full((12, 12), 2.0), "auto", 5.0, 288)
    (2, 2)
    """
    shape: Any = expected.shape
    if not isinstance(knots, str):
        return min(knots, shape[0]), min(knots, shape[1])
    fine = 3 if n_rows >= FINE_FROM else 2
    for pair in ((fine, fine), (2, 2), (2, 1), (1, 2)):
        if pair[0] <= shape[0] and pair[1] <= shape[1] and _supported(expected, pair, least):
            return pair
    return 1, 1


def _supported(expected: Doubles, knots: Shape, least: float) -> bool:
    """Whether every soft group expects enough rows, and none follows from the others where rows are expected."""
    shape: Any = expected.shape
    groups = soft_groups(shape, knots)
    rows = np.einsum("ij,ijd->d", expected, groups)
    return bool(rows.min() >= least and np.linalg.matrix_rank(groups[expected > 0]) == rows.size)


def checked_bandwidth(given: float | str, n_rows: int) -> float:
    """The bandwidth of `local_quantiles`: as given, or "auto" by the number of threshold rows.

    >>> checked_bandwidth("auto", 2000), checked_bandwidth("auto", 10)
    (0.2, 0.35)
    """
    if isinstance(given, str):
        check_choice(given, "bandwidth", ("auto",))
        return float(np.clip(0.2 * (2000 / n_rows) ** 0.25, 0.1, 0.35))
    return check_number(given, "bandwidth", low=0, low_open=True)


def group_name(knots: Shape, group: int) -> str:
    """A soft group in words.

    >>> group_name((2, 2), 2), group_name((1, 1), 0), group_name((2, 1), 1)
    ('atypical, low-confidence inputs', 'all inputs', 'atypical inputs')
    """
    words = []
    for axis, place in enumerate(divmod(group, knots[1])):
        known = NAMES.get(knots[axis])
        words.append(known[axis][place] if known else f"{('atypicality', 'confidence')[axis]} knot {place}")
    return f"{', '.join(filter(None, words)) or 'all'} inputs"


def local_quantiles(shape: Shape, cells: NDArray[np.intp], scores: Doubles, tau: float, bandwidth: float) -> Doubles:
    """Kernel-weighted tau-quantile of the scores around every cell (n_cells,).

    The kernel is Gaussian in the distance of the cells' centres, in ranks; the test row has the weight of its own cell
    and the score +inf. Where the rows near a cell weigh too little for tau it is -inf: they say nothing.

    >>> local_quantiles((1, 1), np.zeros(9, int), np.arange(9.0), 0.75, 0.2)
    array([7.])
    """
    place = np.stack([(axis.ravel() + 0.5) / size for axis, size in zip(np.indices(shape), shape, strict=True)])
    distances = ((place[:, :, None] - place[:, None, :]) ** 2).sum(axis=0)
    kernel = np.exp(-distances / (2 * bandwidth**2))
    order = np.argsort(scores)
    ordered, cells, found = scores[order], cells[order], np.full(len(kernel), -np.inf)
    for cell, weights in enumerate(kernel):
        total = np.cumsum(weights[cells])
        rank = int(np.searchsorted(total, tau * (total[-1] + 1.0)))
        if rank < scores.size:
            found[cell] = ordered[rank]
    return found


def expected_coverage(phi: Doubles, covered: NDArray[np.bool_]) -> Doubles:
    """Share of covered rows by soft group, one row more in the denominator: with one group it is k / (n + 1).

    >>> expected_coverage(np.ones((9, 1)), np.arange(9) < 8)
    array([0.8])
    """
    rows = phi.sum(axis=0) * (len(phi) + 1) / len(phi)
    return np.where(rows > 0, covered @ phi / np.where(rows > 0, rows, 1.0), 1.0)
