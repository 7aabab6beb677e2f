"""Intervals that hold what they say: for shares, means, differences, and errors that cannot be negative."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri, stdtrit  # scipy.stats checks arguments for longer than it works

from atypicality.validation import check_number

__all__ = [
    "bootstrap", "check_level", "difference_interval", "exact_bounds", "exact_interval", "mean_interval",
    "norm_interval", "square_and_add", "wilson_interval", "wilson_rows",
]  # fmt: skip

FloatArray = NDArray[np.float64]


def wilson_interval(successes: ArrayLike, count: ArrayLike, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Wilson's score interval of a share; [0, 1] where nothing was counted.

    >>> [bound.round(4).item() for bound in wilson_interval(8, 10)]
    [0.4902, 0.9433]
    """
    z = float(ndtri((1 + check_level(level)) / 2))
    size = np.asarray(count, np.float64)
    share = np.asarray(successes, np.float64) / np.maximum(size, 1)
    centre = share * size + z**2 / 2
    spread = z * np.sqrt(size * share * (1 - share) + z**2 / 4)
    scale = size + z**2
    return np.clip((centre - spread) / scale, 0, 1), np.clip((centre + spread) / scale, 0, 1)


def wilson_rows(share: float, limit: float, level: float = 0.95) -> int:
    """Rows from which on Wilson's interval of an observed `share` ends at `limit`, which is above it, or below.

    >>> n = wilson_rows(0.042, 0.05)
    >>> n, [bool(wilson_interval(0.042 * rows, rows)[1] <= 0.05) for rows in (n - 1, n)]
    (2852, [False, True])
    """
    z = float(ndtri((1 + check_level(level)) / 2))  # the interval holds p with |p - share| <= z sqrt(p (1 - p) / n)
    return math.ceil(z**2 * limit * (1 - limit) / (limit - share) ** 2)


def exact_interval(successes: ArrayLike, count: ArrayLike, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Clopper and Pearson's (1934) interval of a share: it covers at least as often as it says, for every n and share.

    >>> [round(float(bound), 4) for bound in exact_interval(8, 10)]
    [0.4439, 0.9748]
    """
    return exact_bounds(successes, count, (1 - level) / 2)


def exact_bounds(successes: ArrayLike, count: ArrayLike, tail: float) -> tuple[FloatArray, FloatArray]:
    """Clopper and Pearson's bounds of a share, each missed with chance `tail` at most.

    >>> [bound.round(3).tolist() for bound in exact_bounds([0, 5, 10], 10, 0.05)]
    [[0.0, 0.222, 0.741], [0.259, 0.778, 1.0]]
    """
    hits, size = np.asarray(successes, np.float64), np.asarray(count, np.float64)
    with np.errstate(invalid="ignore"):
        low = np.where(hits > 0, betaincinv(hits, size - hits + 1, tail), 0.0)
        high = np.where(hits < size, betaincinv(hits + 1, size - hits, 1 - tail), 1.0)
    return low, high


def mean_interval(values: FloatArray, level: float = 0.95) -> tuple[float, float, float]:
    """Standard error and Student's interval of a mean; NaN for fewer than two values or an infinite one."""
    if values.size < 2 or not np.isfinite(values).all():
        return np.nan, np.nan, np.nan
    error = float(values.std(ddof=1)) / values.size**0.5
    reach = float(stdtrit(values.size - 1, (1 + check_level(level)) / 2)) * error
    mean = float(values.mean())
    return error, mean - reach, mean + reach


def difference_interval(values: FloatArray, hits: NDArray[np.bool_], level: float = 0.95) -> tuple[float, float, float]:
    """Standard error and interval of mean(values) - share(hits) over the same samples.

    Newcombe's (1998) square-and-add rule for paired data: Student's limits of the mean and Wilson's limits of the
    share, with their correlation. Student's interval of the differences is too short when nearly all are hits.
    """
    error, low, high = mean_interval(values, level)
    share, mean = float(hits.mean()), float(values.mean())
    least, most = (float(bound) for bound in wilson_interval(hits.sum(), hits.size, level))
    if np.isnan(error):
        return np.nan, np.nan, np.nan
    spread = values.std() * hits.std()
    together = float(np.mean((values - mean) * (hits - share)) / spread) if spread > 0 else 0.0
    ends = square_and_add((mean, low, high), (share, least, most), together)
    return float((values - hits).std(ddof=1)) / values.size**0.5, *ends


def square_and_add(
    one: tuple[float, float, float], other: tuple[float, float, float], together: float = 0.0
) -> tuple[float, float]:
    """Interval of a difference from the values and intervals of both and their correlation `together` (Newcombe 1998).

    >>> [round(end, 3) for end in square_and_add((0.5, 0.2, 0.8), (0.4, 0.0, 0.8))]
    [-0.4, 0.6]
    """
    down, up = (one[0] - one[1], other[2] - other[0]), (one[2] - one[0], other[0] - other[1])
    reach = [max(a * a + b * b - 2 * together * a * b, 0.0) ** 0.5 for a, b in (down, up)]
    return one[0] - other[0] - reach[0], one[0] - other[0] + reach[1]


def norm_interval(
    cells: FloatArray, noise: FloatArray, norm: Callable[[FloatArray], FloatArray], level: float = 0.95
) -> tuple[float, float, float]:
    """Standard error and interval of a norm of cell errors, of which noisy estimates were observed.

    A norm of noisy cells is too large even where the truth is 0, so its bootstrap misses the truth of a calibrated
    model. Here a test is inverted instead: a candidate truth belongs to the interval when the observed norm lies
    between the alpha/2 and 1 - alpha/2 quantiles of what the candidate would show with noise.

    Candidates for the lower end are the observed cells moved towards zero, each by the same number of its standard
    errors, and kept there; if even zero would show so much, the interval starts at 0. Candidates for the upper end
    have the same number of standard errors in every cell: of all truths with one weighted absolute sum these show
    least, because the mean of a folded normal is convex, so the upper end errs on the safe side. There an observed norm
    below the median of pure chance is taken for that median: less than chance is no evidence of a smaller truth.

    `cells` (n_cells,) are observed errors, `noise` (n_draws, n_cells) draws of their noise with mean 0, and `norm` is
    over the last axis. With `noise` shape it may weight each draw differently.
    """
    alpha, observed = 1 - check_level(level), float(norm(cells))
    scale, size, sign = noise.std(axis=0), np.abs(cells), np.where(cells < 0, -1.0, 1.0)
    chance, shown = norm(noise), np.empty_like(noise)

    def shrunk(steps: float) -> FloatArray:
        return np.asarray(sign * np.maximum(size - steps * scale, 0.0))

    def spread(steps: float) -> FloatArray:
        return np.asarray(sign * steps * scale)

    def share_below(bound: float, candidate: FloatArray) -> float:
        return np.count_nonzero(norm(np.add(candidate, noise, out=shown)) <= bound) / len(noise)

    low, bound = 0.0, max(observed, float(np.median(chance)))
    if (chance <= observed).mean() > 1 - alpha / 2:
        low = float(norm(shrunk(_crossing(lambda steps: -share_below(observed, shrunk(steps)), alpha / 2 - 1))))
    high = float(norm(spread(_crossing(lambda steps: share_below(bound, spread(steps)), alpha / 2))))
    return float(norm(cells + noise).std()), low, max(low, high)


def bootstrap(
    metric: Callable[[NDArray[np.intp]], float], n_rows: int, *, level: float, n_resamples: int, rng: Any
) -> tuple[float, float, float]:
    """Standard error and percentile interval of `metric(rows)` over resampled rows."""
    tail = (1 - check_level(level)) / 2
    values = [metric(rng.integers(0, n_rows, n_rows)) for _ in range(n_resamples)]
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(np.std(values, ddof=1)), float(low), float(high)


def _crossing(falling: Callable[[float], float], target: float) -> float:
    """Where a falling function of a positive number passes `target`, to 5 digits, by doubling and bisection."""
    low, high = 0.0, 1.0
    while falling(high) > target and high < 2.0**60:
        low, high = high, 2 * high
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > target else (low, middle)
    return high


def check_level(level: float) -> float:
    """The probability that an interval covers what it is for."""
    return check_number(level, "level", low=0, high=1, low_open=True, high_open=True)
