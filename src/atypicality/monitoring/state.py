"""What a monitor remembers: counts of windows, from which no row can be told, and the alarms so far."""

import os
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from atypicality.head.reference import HeldOutCounts
from atypicality.monitoring.seen import Hashes, Seen
from atypicality.monitoring.windows import as_text, check_window
from atypicality.shipping.bundle.document import NAME, STATE
from atypicality.stored import Part, Record, kinds, need

__all__ = ["LEVEL", "Alarm", "Counted", "MonitorState", "percent", "saved_file"]

Counts = NDArray[np.int64]
QUANTILE = re.compile(r"quantile (\S+) \((\S+)\)")
"""An item of `streams.Quantiles`: the share of reference rows, and the value."""
RATES = {
    "error": ("errors", "labelled rows", " are wrong"),
    "miss": ("misses", "labelled rows", " have a set without their label"),
    "risk": ("errors among accepted rows", "labelled rows", " that are accepted are wrong"),
}
LEVEL = "attribute level of "
"""What the names of words begin with that are edges of a signal of answers: the smallest at or above its value."""
LEAST = 5e-5  # of a lower bound that is told: below, it is 0.00 %
MOST_KEYS = 10_000
"""Batches whose keys are remembered, the newest: an hourly job's of a year."""
SETTINGS = ("head", "alpha", "window", "keep", "n_thresholds", "max_risk", "reference")
SUMMED = ("cells", "profile", "doubted")  # arrays with a row of counts for each window


@dataclass(frozen=True)
class Alarm:
    """A share that has left the reference's band, with the level of the whole life of the monitor.

    Attributes
    ----------
    stream, item, direction : str
        What moved, such as "class", "cat", "rose".
    at, since : float
        Seconds since 1970: of the row that raised it, and of the first window that its evidence counts.
    share, low, high : float
        Share of the rows since then, and its confidence sequence. Of atypicality, confidence and inputs it is the share
        at or below a quantile, or below it where values fell: where values rose, `told` has the share above.
    reference_low, reference_high : float
        Band of the reference, which the sequence left.
    n_rows : int
        Rows since then.

    Examples
    --------
    >>> print(Alarm("class", "cat", "rose", 0.0, 0.0, 0.4, 0.35, 0.45, 0.1, 0.2, 500))
    class cat rose: 40% of 500 rows since 1970-01-01, 10% to 20% expected
    >>> print(Alarm("atypicality", "quantile 0.5 (-0.14)", "rose", 0.0, 0.0, 0.209, 0.17, 0.25, 0.461, 0.538, 500))
    atypicality rose: 79.1% of 500 rows since 1970-01-01 are above the reference's median, 46.2% to 53.9% expected
    >>> print(Alarm("confidence", "quantile 0.5 (0.88)", "rose", 0.0, 0.0, 0.25, 0.2, 0.3, 0.44, 0.3, 500))  # ties
    confidence rose: 75% of 500 rows since 1970-01-01 are above 0.88, at most 56% expected
    >>> print(Alarm("risk", "wrong", "rose", 0.0, 0.0, 0.25, 0.15, 0.36, 0.0, 0.1, 120))
    errors among accepted rows: 25% of 120 labelled rows since 1970-01-01 that are accepted are wrong, ...
    """

    stream: Annotated[str, kinds.Text()]
    item: Annotated[str, kinds.Text()]
    direction: Annotated[str, kinds.Choice("rose", "fell")]
    at: Annotated[float, kinds.Number(0)]
    since: Annotated[float, kinds.Number(0)]
    share: Annotated[float, kinds.Number(0, 1)]
    low: Annotated[float, kinds.Number(0, 1)]
    high: Annotated[float, kinds.Number(0, 1)]
    reference_low: Annotated[float, kinds.Number(0, 1)]
    reference_high: Annotated[float, kinds.Number(0, 1)]
    n_rows: Annotated[int, kinds.Integer(1)]

    @property
    def what(self) -> tuple[str, str, str]:
        """By which it is told from other alarms."""
        return self.stream, self.item, self.direction

    @property
    def gap(self) -> float:
        """Distance between the sequence and the band."""
        return max(self.reference_low - self.high, self.low - self.reference_high)

    @property
    def of_smaller(self) -> bool:
        """Whether the share is that of rows with smaller values than some quantile."""
        return self.stream in ("atypicality", "confidence", "input") or self.stream.startswith(LEVEL)

    def told(self) -> Self:
        """The same in the direction of the change: where values rose, shares of rows above the quantile."""
        if not self.of_smaller or self.direction == "fell":
            return self
        low, high = 1 - self.reference_high, 1 - self.reference_low
        turned = replace(self, share=1 - self.share, low=1 - self.high, high=1 - self.low)
        return replace(turned, reference_low=low, reference_high=high)

    def __str__(self) -> str:
        told, (name, rows, which) = self.told(), self._words()
        low, high = percent(told.reference_low), percent(told.reference_high)
        both = LEAST <= told.reference_low <= told.reference_high  # ties leave one end known
        expected = f"{low} to {high}" if both else f"at most {high}"
        since = as_text(self.since).removesuffix("T00:00:00Z")
        share = f"{percent(told.share)} of {self.n_rows:,} {rows} since {since}{which}, {expected}"
        if self.stream == "missing":
            return f"{self.item} missing in {share} expected"
        return f"{name}: {share} allowed" if self.stream == "risk" else f"{name} {self.direction}: {share} expected"

    def _words(self) -> tuple[str, str, str]:
        """What moved, of which rows the share is, and what it counts of them."""
        below = "at or below" if self.stream.startswith(LEVEL) else "below"
        beyond = f" are {'above' if self.direction == 'rose' else below}"
        if self.stream in RATES:
            return RATES[self.stream]
        if self.stream == "input":
            return f"{self.stream} {self.item}", "rows", f"{beyond} the reference's median"
        if (found := QUANTILE.fullmatch(self.item)) and self.of_smaller:
            share, edge = found.groups()
            known = "the reference's " + ("median" if share == "0.5" else f"quantile {share}")
            name = self.stream.removeprefix(LEVEL)
            return name, "rows", f"{beyond} {known if name == 'atypicality' else edge}"
        return f"{self.stream} {self.item}", "rows", ""

    _stored = Record()


@dataclass(frozen=True, eq=False)
class Counted:
    """Counts of rows of one window: cells of streams, sums of the profile, words of fields, and rows in doubt."""

    key: int
    cells: Counts
    profile: Counts
    words: dict[str, dict[str, int]]
    doubted: Counts = field(default_factory=lambda: np.zeros(1, np.int64))


@dataclass(eq=False, repr=False)
class MonitorState:
    """The whole state of a monitor.

    `head` is the fingerprint of the head's calibration rows, `n_thresholds` counts the rows behind the thresholds of
    its sets, and `max_risk` is what the head is asked with. `keys` are the windows with rows, `cells` the counts of the
    streams' cells in each, and `profile` the sums of probabilities in each, in units of 2^-30; `words` counts those of
    each field over the whole life, whose `first` window is -1 before there is one; `last` is the time of the newest
    row; `counted` says when batches came, by key; `doubted` counts the rows of batches whose logits look wrong, in each
    window; `seen` and `labelled` remember which rows of batches with a key, and which of their labels, were counted.
    """

    head: Annotated[str, kinds.Text("[0-9a-f]{1,64}")]
    alpha: Annotated[float, kinds.Number(0, 1, low_open=True)]
    window: Annotated[Any, kinds.Either("hour", "day", "week", "month", otherwise=kinds.Number(1e-3))]
    keep: Annotated[int, kinds.Integer(1)]
    reference: Annotated[HeldOutCounts, Part(HeldOutCounts)]
    n_thresholds: Annotated[int, kinds.Integer()]
    keys: Annotated[Counts, kinds.Counts("w", kinds.INCREASING)]
    cells: Annotated[Counts, kinds.Counts("w c", kinds.NOT_NEGATIVE)]
    profile: Annotated[Counts, kinds.Counts("w p", kinds.NOT_NEGATIVE)]
    words: Annotated[
        dict[str, dict[str, int]], kinds.MappingOf(kinds.MappingOf(kinds.Integer(), keys=r"[\s\S]{0,200}"))
    ] = field(default_factory=dict)
    first: Annotated[int, kinds.Integer(-1)] = -1
    last: Annotated[float, kinds.Number(0)] = 0.0
    alarms: Annotated[list[Alarm], kinds.ListOf(Part(Alarm))] = field(default_factory=list)
    counted: Annotated[
        dict[str, float],
        kinds.Later(kinds.MappingOf(kinds.Number(0), keys=r"[\s\S]{1,200}"), absent=lambda made: {}),
    ] = field(default_factory=dict)
    max_risk: Annotated[float | None, kinds.Later(kinds.optional(kinds.Number(0, 1, low_open=True)), absent=None)] = (
        None
    )
    doubted: Annotated[Counts, kinds.Later(kinds.Counts("w 1", kinds.NOT_NEGATIVE), absent=None)] = field(
        default_factory=lambda: np.zeros((0, 1), np.int64)
    )
    seen: Annotated[Seen, kinds.Later(Part(Seen), absent=None)] = field(default_factory=Seen)
    labelled: Annotated[Seen, kinds.Later(Part(Seen), absent=None)] = field(default_factory=Seen)

    def __post_init__(self) -> None:
        if self.keys.size and not len(self.doubted):  # a state from before they were counted
            self.doubted = np.zeros((self.keys.size, 1), np.int64)

    def with_rows(self, parts: list[Counted], last: float, key: str | None = None) -> Self:
        """The state with more rows, of a batch with this key; this one is left as it is."""
        found = self
        if parts:
            keys = np.array([part.key for part in parts], np.int64)
            counts = {name: np.stack([getattr(part, name) for part in parts]) for name in SUMMED}
            words = self.words
            for part in parts:
                words = _added(words, part.words)
            found = self._with(keys, counts, words, last)
        return found if key is None else replace(found, counted=_newest(found.counted | {key: last}))

    def remembering(self, rows: Hashes, labels: Hashes) -> Self:
        """The state that also remembers these rows, and these rows' labels."""
        return replace(self, seen=self.seen.joined(rows), labelled=self.labelled.joined(labels))

    def merged(self, other: Self) -> Self:
        """The state of a monitor that saw the rows of both; alarms of both, each from when it was first raised."""
        counts = {name: getattr(other, name) for name in SUMMED}
        found = self._with(other.keys, counts, _added(self.words, other.words), other.last)
        raised: dict[tuple[str, str, str], Alarm] = {}
        for alarm in sorted([*self.alarms, *other.alarms], key=lambda alarm: (alarm.at, alarm.what)):
            raised.setdefault(alarm.what, alarm)
        known = {name: getattr(self, name).merged(getattr(other, name)) for name in ("seen", "labelled")}
        return replace(found, alarms=list(raised.values()), counted=_newest(self.counted | other.counted), **known)

    def _with(self, keys: Counts, counts: dict[str, Counts], words: Any, last: float) -> Self:
        every = np.concatenate([self.keys, keys])
        if not every.size:
            return self
        started = every if self.first < 0 else np.append(every, self.first)
        first = int(started.min())
        # beyond the windows that are kept, all that is older is one window from the first on
        place = np.where(every <= every.max() - self.keep, first, every)
        known, where = np.unique(place, return_inverse=True)
        sums: dict[str, Any] = {name: np.zeros((known.size, new.shape[1]), np.int64) for name, new in counts.items()}
        for name, new in counts.items():
            np.add.at(sums[name], where, np.concatenate([getattr(self, name), new]))
        return replace(self, keys=known, words=words, first=first, last=max(self.last, last), **sums)

    def differing(self, other: Self) -> list[str]:
        """Settings in which two states differ, so that their counts are not of the same cells."""
        return [name for name in SETTINGS if _differ(getattr(self, name), getattr(other, name))]

    def recent(self, name: str, last: int | None) -> Counts:
        """Sum of an array over the newest `last` windows of the calendar, or over all."""
        array: Counts = getattr(self, name)
        if last is None:
            return np.asarray(array.sum(axis=0))
        return np.asarray(array[self.keys > self.keys.max(initial=0) - last].sum(axis=0))

    def _check_stored(self) -> None:
        check_window(self.window)
        need(self.alpha < 1 and (self.max_risk or 0) < 1, "alpha and max_risk must be below 1.")
        need((self.first < 0) == (self.keys.size == 0), "a life with windows has a first one.")
        need(self.keys.size == 0 or 0 <= self.first <= self.keys[0], "windows must not be before the first.")

    _stored = Record(check=_check_stored)


def saved_file(folder: str | os.PathLike[str]) -> str | None:
    """Name of the JSON file of the state in a folder, formerly that of a head; None without one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(saved_file(folder))
    None
    """
    return next((name for name in (STATE, NAME) if Path(folder, name).exists()), None)


def percent(share: float) -> str:
    """A share in words.

    >>> percent(0.0234)
    '2.34%'
    """
    return f"{100 * share:.3g}%"


def _newest(counted: dict[str, float]) -> dict[str, float]:
    return dict(sorted(counted.items(), key=lambda pair: (pair[1], pair[0]))[-MOST_KEYS:])


def _added(one: dict[str, dict[str, int]], other: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    sums = {name: Counter(one.get(name, {})) + Counter(other.get(name, {})) for name in sorted({*one, *other})}
    return {name: dict(sorted(words.items())) for name, words in sums.items()}


def _differ(one: Any, other: Any) -> bool:
    if not hasattr(one, "_stored"):
        return bool(one != other)
    written = []
    for value in (one, other):
        tensors: dict[str, Any] = {}
        written.append((Part(type(value)).write(value, kinds.Place.start(tensors)), tensors))
    (first, arrays), (second, others) = written
    return first != second or any(not np.array_equal(array, others[name]) for name, array in arrays.items())
