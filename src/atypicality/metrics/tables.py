"""`by_group`: any metric as a table with one row per group, with its count and an interval that can be defended."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.arrays import on_device, take_rows, to_host, to_numpy
from atypicality.metrics import calibration, errors, rows, selective, sets
from atypicality.metrics.intervals import bootstrap, check_level, difference_interval, mean_interval, wilson_interval
from atypicality.metrics.smooth import smooth_calibration_error
from atypicality.terminal import aligned, html_table, printable
from atypicality.validation import check_groups, check_integer, check_labels, check_length
from atypicality.validation.device import any_probs, device_matrix

__all__ = ["GroupTable", "by_group", "each_group"]

Estimate = tuple[float, float, float, float]
Estimator = Callable[[NDArray[np.intp], np.random.Generator], Estimate]

_ARRAYS = ("probs", "labels", "confidence", "correct", "sets")


@dataclass(frozen=True, repr=False)
class GroupTable:
    """One row per group, as columns of equal length; made by `by_group`.

    Attributes
    ----------
    metric : str
    level : float
        Of the intervals.
    group : tuple
        Names or numbers of the groups.
    count : ndarray of shape (n_groups,)
        Samples in each group, 0 for an empty one.
    value, standard_error, low, high : ndarray of shape (n_groups,)
        NaN where a group is too small to say; the interval of an empty group's share is [0, 1].

    Examples
    --------
    >>> table = by_group(calibration.accuracy, confidence=[0.9, 0.8, 0.7], correct=[1, 1, 0], groups=["a", "a", "b"])
    >>> table.group, table.count, table.value
    (('a', 'b'), array([2, 1]), array([1., 0.]))
    >>> table.rows()[1]["value"]
    0.0
    """

    metric: str
    level: float
    group: tuple[Any, ...]
    count: NDArray[np.intp]
    value: NDArray[np.float64]
    standard_error: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain Python values, lists for columns."""
        numbers = {name: getattr(self, name).tolist() for name in ("count", "value", "standard_error", "low", "high")}
        return {"metric": self.metric, "level": self.level, "group": list(self.group)} | numbers

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per group."""
        columns = {name: column for name, column in self.to_dict().items() if isinstance(column, list)}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def __len__(self) -> int:
        return len(self.group)

    def __repr__(self) -> str:
        return "\n".join(aligned(self._lines(), justify=str.rjust))

    def _repr_html_(self) -> str:
        header, *rows = self._lines()
        return html_table(f"{self.metric} by group", header, rows)

    def _lines(self) -> list[tuple[str, ...]]:
        """The table as text, its header first."""
        interval = f"{100 * self.level:g} % interval"
        lines: list[tuple[str, ...]] = [("group", "count", printable(self.metric), "std. error", interval)]
        digits = 4 if np.nanmax(np.abs(self.value), initial=0.0) >= 0.05 else 6
        for row in self.rows():
            value, error, low, high = (f"{row[name]:.{digits}f}" for name in ("value", "standard_error", "low", "high"))
            lines.append((printable(row["group"]), str(row["count"]), value, error, f"[{low}, {high}]"))
        return lines


def by_group(
    metric: Callable[..., float],
    *arrays: ArrayLike,
    groups: ArrayLike,
    names: int | Sequence[Any] | None = None,
    level: float = 0.95,
    n_resamples: int = 500,
    random_state: int | np.random.Generator | None = 0,
    **keywords: Any,
) -> GroupTable:
    """Any metric as a table with one row per group: count, value, standard error, interval.

    Parameters
    ----------
    metric : callable
        A metric of this package, a `functools.partial` of one, or any function of the cut arrays that returns a number.
    *arrays : array-like of shape (n_samples, ...)
        What the metric takes, one entry per sample; by name too (`confidence=`, `correct=`, `labels=`, ...). Arrays on
        a device stay there, and a function of your own gets them as they are.
    groups : array-like of shape (n_samples,)
        Integers, booleans or strings: from `QuantileGroups`, `ClassGroups`, `GridGroups`, `Quadrants`, or your own.
    names : int or sequence, optional
        All groups in the order of the rows, so that an empty one gets its row too; an int g means 0 .. g - 1. By
        default the groups that occur, sorted, with the gaps between integers filled when at most half are gaps.
    level : float, default=0.95
        Of the intervals.
    n_resamples : int, default=500
        Bootstrap resamples, for metrics that are not of this package.
    random_state : int, Generator or None, default=0
    **keywords
        Options of the metric, such as `n_bins=15`.

    Returns
    -------
    GroupTable

    Notes
    -----
    Shares (`accuracy`, `coverage`) get Wilson's interval; means (`nll`, `brier`, `set_size`) Student's;
    `overconfidence` Newcombe's for a paired difference. Any other function gets a percentile bootstrap.

    The interval of a calibration error (`ece`, `rmsce`, `adaptive_ece`, `debiased_calibration_error`, `classwise_ece`,
    `smooth_ece`) is for the population value over the same bins or bandwidth, and starts at 0 unless the data speak
    against it. The value itself is the plain one, biased upwards, and may lie above the interval. The page on
    calibration metrics has the measured coverage.

    Examples
    --------
    >>> by_group(calibration.accuracy, confidence=[0.9, 0.8, 0.7], correct=[1, 1, 0], groups=[0, 0, 2])
    group  count  accuracy  std. error  95 % interval
        0      2    1.0000      0.0000  [0.3424, 1.0000]
        1      0       nan         nan  [0.0000, 1.0000]
        2      1    0.0000      0.0000  [0.0000, 0.7935]
    """
    if isinstance(metric, partial) and not metric.args:
        keywords, metric = {**metric.keywords, **keywords}, metric.func
    given = {name: keywords.pop(name) for name in _ARRAYS if name in keywords}
    check_level(level)
    check_integer(n_resamples, "n_resamples", low=2)
    n_rows = _common_length(arrays, given)
    index, labels = _indexed(check_groups(groups, n_rows=n_rows), names)
    estimate = _estimator(metric, arrays, given, keywords, level, n_resamples)
    rng, drawn = _generator(random_state), metric not in _WITHOUT_DRAWS
    streams: list[Any] = rng.spawn(len(labels)) if drawn else [None] * len(labels)
    empty = (np.nan, np.nan, 0.0, 1.0) if metric in _SHARES else (np.nan,) * 4
    columns = each_group(lambda group, part: estimate(part, streams[group]), index, len(labels), empty)
    return GroupTable(getattr(metric, "__name__", type(metric).__name__), level, labels, *columns)


def each_group(
    estimate: Callable[[int, NDArray[np.intp]], tuple[float, ...]],
    index: NDArray[np.intp],
    n_groups: int,
    empty: tuple[float, ...] = (np.nan,) * 4,
) -> tuple[NDArray[Any], ...]:
    """Counts (n_groups,), and a column for each number that `estimate` gives of a group and its rows, in their order.

    >>> each_group(lambda group, rows: (float(rows.sum()),), np.array([2, 0, 2]), 3, (np.nan,))
    (array([1, 0, 2]), array([ 1., nan,  2.]))
    """
    count, table = np.bincount(index, minlength=n_groups), np.tile(np.array(empty), (n_groups, 1))
    small = index.astype(np.int16) if n_groups < 2**15 else index  # numbers of two bytes are sorted by their digits
    order, ends = np.argsort(small, kind="stable"), np.cumsum(count)
    for group in np.flatnonzero(count).tolist():
        table[group] = estimate(group, order[ends[group] - count[group] : ends[group]])
    return count, *np.ascontiguousarray(table.T)


def _estimator(
    metric: Callable[..., Any],
    arrays: tuple[ArrayLike, ...],
    given: dict[str, ArrayLike],
    options: dict[str, Any],
    level: float,
    n_resamples: int,
) -> Estimator:
    """What to do with the rows of one group: each known metric reads its arrays once, for all groups."""
    unknown = [option for option in options if option not in signature(metric).parameters] if metric in _KNOWN else []
    if unknown:
        raise TypeError(f"{metric.__name__} has no option {unknown[0]!r}. Its arguments: {signature(metric)}.")
    if metric in _VALUES:
        values, estimate = _VALUES[metric](*arrays, **given, **options), _share if metric in _SHARES else _mean
        return lambda part, rng: estimate(values[part], level)
    if metric not in _KNOWN:

        def value(part: NDArray[np.intp]) -> float:
            cut = [take_rows(_as_given(array, "arrays"), part) for array in arrays]
            named = {name: take_rows(_as_given(array, name), part) for name, array in given.items()}
            return _number(metric(*cut, **named, **options), metric)

        return lambda part, rng: (
            value(part),
            *bootstrap(lambda index: value(part[index]), part.size, level=level, n_resamples=n_resamples, rng=rng),
        )
    named = _by_name(arrays, given)
    if metric in _PAIRED:
        pairs = rows.read_pairs(**named)
        return lambda part, rng: _PAIRED[metric](metric, pairs.take(part), options, level, rng)
    probs = any_probs(named["probs"])
    labels = check_labels(named["labels"], n_classes=probs.shape[1], n_rows=probs.shape[0])
    shown = _as_given(named["probs"], "probs")
    return lambda part, rng: _classwise(take_rows(shown, part), labels[part], options, level, rng)


def _share(values: NDArray[np.bool_], level: float) -> Estimate:
    share = float(values.mean())
    low, high = wilson_interval(values.sum(), values.size, level)
    return share, (share * (1 - share) / values.size) ** 0.5, float(low), float(high)


def _mean(values: NDArray[Any], level: float) -> Estimate:
    numbers = values.astype(np.float64)
    return float(numbers.mean()), *mean_interval(numbers, level)


def _difference(metric: object, pairs: rows.Pairs, options: object, level: float, rng: object) -> Estimate:
    difference = float(pairs.confidence.mean() - pairs.correct.mean())
    return difference, *difference_interval(pairs.confidence, pairs.correct, level)


def _binned(
    metric: Callable[..., float], pairs: rows.Pairs, options: dict[str, Any], level: float, rng: np.random.Generator
) -> Estimate:
    n_bins = _n_bins(options)
    bins = pairs.adaptive_bins(n_bins) if metric is calibration.adaptive_ece else pairs.bins(n_bins)
    squared = metric in (calibration.rmsce, calibration.debiased_calibration_error)
    error, low, high = errors.binned_interval(bins, rng, power=2 if squared else 1, level=level)
    if metric is calibration.debiased_calibration_error:
        value = bins.debiased_squared_error()
        return value, 2 * error * bins.squared_error() ** 0.5, low**2, high**2
    return bins.squared_error() ** 0.5 if squared else float(bins.expected_error()), error, low, high


def _smooth(metric: object, pairs: rows.Pairs, options: object, level: float, rng: np.random.Generator) -> Estimate:
    value = smooth_calibration_error(pairs.confidence, pairs.correct)
    return value, *errors.smooth_interval(pairs, value, rng, level=level)


def _area(metric: object, pairs: rows.Pairs, options: object, level: float, rng: np.random.Generator) -> Estimate:
    area = selective.area_under_risk(pairs.confidence, pairs.correct)
    return area, *selective.area_interval(pairs, rng, level=level)


def _classwise(
    probs: Any, labels: NDArray[np.intp], options: dict[str, Any], level: float, rng: np.random.Generator
) -> Estimate:
    read = rows.read_all(probs, labels, _n_bins(options))
    value = float(read.class_bins.expected_error().mean())
    if on_device(probs):  # the interval draws labels from its rows, with NumPy's generator
        probs = to_host(device_matrix(probs, "probs"))
    return value, *errors.classwise_interval(probs, read, rng, level=level)


def _n_bins(options: dict[str, Any]) -> int:
    return check_integer(options.get("n_bins", 10), "n_bins", low=1)


_SHARES: tuple[Any, ...] = (calibration.accuracy, sets.coverage)
_VALUES: dict[Any, Callable[..., NDArray[Any]]] = {
    calibration.accuracy: lambda *arrays, **given: rows.read_pairs(**_by_name(arrays, given)).correct,
    calibration.nll: rows.row_nll,
    calibration.brier: rows.row_brier,
    sets.coverage: sets.covered,
    sets.set_size: sets.sizes,
}
_PAIRED: dict[Any, Callable[..., Estimate]] = {
    calibration.overconfidence: _difference,
    calibration.ece: _binned,
    calibration.rmsce: _binned,
    calibration.adaptive_ece: _binned,
    calibration.debiased_calibration_error: _binned,
    calibration.smooth_ece: _smooth,
    selective.area_under_risk: _area,
}
_KNOWN = (*_VALUES, *_PAIRED, calibration.classwise_ece)
_WITHOUT_DRAWS = (*_VALUES, calibration.overconfidence)
"""Metrics whose intervals are formulas: no group needs random numbers."""


def _by_name(arrays: tuple[ArrayLike, ...], given: dict[str, ArrayLike]) -> dict[str, Any]:
    named = dict(zip(("probs", "labels"), arrays, strict=False), **given)
    return {name: named.get(name) for name in ("probs", "labels", "confidence", "correct")}


def _as_given(values: Any, name: str) -> Any:
    """An array on a device as it is, anything else as NumPy."""
    return values if on_device(values) else to_numpy(values, name)


def _common_length(arrays: tuple[ArrayLike, ...], given: dict[str, ArrayLike]) -> int:
    named = {**{f"array {i}": array for i, array in enumerate(arrays)}, **given}
    if not named:
        raise TypeError("by_group needs the arrays of the metric, one entry per sample; got none.")
    converted = {name: _as_given(array, name) for name, array in named.items()}
    for name, array in converted.items():
        if array.ndim == 0:
            raise TypeError(f"{name} must be an array with one entry per sample; got {to_host(array).item()!r}.")
    n_rows = int(next(iter(converted.values())).shape[0])
    for name, array in converted.items():
        check_length(array, name, n_rows)
    if n_rows == 0:
        raise ValueError("by_group needs at least one sample; got none.")
    return n_rows


def _indexed(groups: NDArray[Any], names: int | Sequence[Any] | None) -> tuple[NDArray[np.intp], tuple[Any, ...]]:
    """Row of the table for every sample, and the names of the rows."""
    present, index = np.unique(groups, return_inverse=True)
    labels = _default_names(present) if names is None else _given_names(names)
    position = {label: row for row, label in enumerate(labels)}
    missing = [value for value in present.tolist() if value not in position]
    if missing:
        raise ValueError(f"names must hold every group; {missing[0]!r} occurs in groups and is not among them.")
    return np.array([position[value] for value in present.tolist()], np.intp)[index], labels


def _default_names(present: NDArray[Any]) -> tuple[Any, ...]:
    if present.dtype.kind in "iu" and int(present[-1]) - int(present[0]) < 2 * present.size:
        return tuple(range(int(present[0]), int(present[-1]) + 1))
    return tuple(present.tolist())


def _given_names(names: int | Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(names, (int, np.integer)) and not isinstance(names, bool):
        return tuple(range(check_integer(names, "names", low=1)))
    labels = tuple(np.asarray(names).tolist())
    if len(set(labels)) < len(labels):
        raise ValueError("names must not repeat a group; every group gets one row.")
    return labels


def _generator(random_state: int | np.random.Generator | None) -> np.random.Generator:
    if random_state is None or isinstance(random_state, np.random.Generator):
        return np.random.default_rng(random_state)
    return np.random.default_rng(check_integer(random_state, "random_state", low=0))


def _number(value: Any, metric: Callable[..., Any]) -> float:
    value = to_host(value)[()] if on_device(value) else value
    if np.ndim(value) or not isinstance(value, (int, float, np.number, np.bool_)):
        name = getattr(metric, "__name__", type(metric).__name__)
        raise TypeError(f"metric must return one number; {name} returned {type(value).__name__}. Return one of them.")
    return float(value)
