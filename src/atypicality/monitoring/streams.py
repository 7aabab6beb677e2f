"""What is counted of rows in use: cells of atypicality, confidence, classes, words, inputs, errors, misses, risk.

A stream cuts rows into cells whose counts add up over windows and over monitors. It tests shares of cells against a
band that its reference rows give, from below and from above.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import to_host
from atypicality.conformal.threshold import conformal_rank
from atypicality.head.reference import HeldOutCounts, Ranks
from atypicality.metrics.intervals import exact_bounds
from atypicality.monitoring.sequences import one_sided, rank_band, sequence_interval
from atypicality.monitoring.state import LEVEL, Alarm, MonitorState
from atypicality.monitoring.windows import as_text, first_second, window_keys

__all__ = [
    "CATEGORICAL", "MISSING", "ShareTests", "Stream", "accepted_rows", "make_streams", "outside", "window_rows",
]  # fmt: skip

CATEGORICAL = ("quadrant", "advice")
"""Fields of `Reliability` that hold one of a few words; one that the reference lacks is counted in the last cell."""

MISSING = "attribute missing "
"""What the names of words begin with that say which answers lack a field: "yes" or "no"."""

OVER = np.log(20)
"""Log evidence below which an alarm ends: that of one test at the level 5 %."""

Counts = NDArray[np.int64]
Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stream:
    """Cells of one quantity, and the shares of them that are tested.

    `count` makes cells of a column of rows. `shares` gives, of cells (..., n_cells), successes whose share may be too
    small, those whose share may be too large, and trials; each (..., items). `band` gives the bounds (items,) below and
    above which a share is not the reference's, each of which fails with the chance it is given.
    """

    name: str
    items: tuple[str, ...]  # what the shares are of: quantiles, classes, words, columns
    n_cells: int
    count: Callable[[Any], NDArray[Any]]
    shares: Callable[[Counts], tuple[Counts, Counts, Counts]]
    band: Callable[[float], tuple[Vector, Vector]]
    of_smaller: bool = False  # whether the shares are of rows with smaller values
    parts: int = 4  # of the level of an item: for the band and for the sequence, below and above

    def direction(self, above: bool) -> str:
        """What has happened where a share has left the band on this side."""
        return "rose" if above != self.of_smaller else "fell"


def _quantiles(name: str, ranks: Ranks) -> Stream:
    """Shares of rows at or below, and below, quantiles of the reference; cells are between and at them."""
    n_cells, levels = 2 * ranks.edges.size + 1, (ranks.low + ranks.high) / 2 / ranks.n_rows
    items = [f"quantile {level:.2g} ({edge:.6g})" for edge, level in zip(ranks.edges, levels, strict=True)]

    def count(values: Any) -> NDArray[Any]:
        return np.bincount(ranks.cells(values), minlength=n_cells)

    def shares(cells: Counts) -> tuple[Counts, Counts, Counts]:
        total = np.cumsum(cells, axis=-1)
        return total[..., 1::2], total[..., :-1:2], np.broadcast_to(total[..., -1:], total[..., 1::2].shape)

    band = partial(rank_band, ranks.low, ranks.high, ranks.n_rows)
    return Stream(name, tuple(items), n_cells, count, shares, band, of_smaller=True)


def _kinds(name: str, counts: Mapping[str, int], n: int, code: Callable[[Any], Any]) -> Stream:
    """Shares of classes or of words, which `code` numbers; the last cell is for words without a share."""

    def count(column: Any) -> NDArray[Any]:
        return np.bincount(code(column), minlength=len(counts) + 1)

    def shares(cells: Counts) -> tuple[Counts, Counts, Counts]:
        items = cells[..., :-1]
        return items, items, np.broadcast_to(cells.sum(axis=-1, keepdims=True), items.shape)

    band = partial(exact_bounds, list(counts.values()), n)
    return Stream(name, tuple(counts), len(counts) + 1, count, shares, band)


def _medians(medians: Vector, rank: int, n: int) -> Stream:
    """Shares of rows at or below, and below, the reference's median of each column of the embeddings."""
    width = medians.size

    def count(embeddings: Any) -> NDArray[Any]:
        rows = to_host(embeddings)
        return np.concatenate([(rows <= medians).sum(axis=0), (rows < medians).sum(axis=0), [len(rows)]])

    def shares(cells: Counts) -> tuple[Counts, Counts, Counts]:
        reached, below = cells[..., :width], cells[..., width : 2 * width]
        return reached, below, np.broadcast_to(cells[..., -1:], reached.shape)

    def band(delta: float) -> tuple[Vector, Vector]:
        low, high = rank_band(rank, rank, n, delta)
        return np.full(width, low), np.full(width, high)

    names = tuple(f"embedding {column}" for column in range(width))
    return Stream("input", names, 2 * width + 1, count, shares, band, of_smaller=True)


def _levels(name: str, counts: Mapping[str, int]) -> Stream:
    """Shares of rows at or below each edge of a signal of answers, of those that have it; words are the edges."""
    known = {level: number for word, number in counts.items() if not np.isnan(level := float(word))}
    edges, n = np.array(sorted(level for level in known if np.isfinite(level))), sum(known.values())
    reached = [sum(number for level, number in known.items() if level <= edge) for edge in edges]
    items = [f"quantile {number / n:.2g} ({edge:.6g})" for edge, number in zip(edges, reached, strict=True)]

    def count(words: Any) -> NDArray[Any]:
        levels = np.asarray(words).astype(np.float64)
        return np.append((levels[:, None] <= edges).sum(axis=0), np.count_nonzero(~np.isnan(levels)))

    band = partial(exact_bounds, reached, n)
    return Stream(name, tuple(items), edges.size + 1, count, _of_last, band, of_smaller=True)


def _of_last(cells: Counts) -> tuple[Counts, Counts, Counts]:
    """Shares of the rows that the last cell counts."""
    items = cells[..., :-1]
    return items, items, np.broadcast_to(cells[..., -1:], items.shape)


def _missing(counts: Mapping[str, int], n: int) -> Stream:
    """Shares of rows without each of some fields."""

    def count(columns: Mapping[str, Any]) -> NDArray[Any]:
        if not counts.keys() <= columns.keys():
            return np.zeros(len(counts) + 1, np.int64)
        return np.array(
            [*(np.count_nonzero(columns[name] == "yes") for name in counts), len(columns[next(iter(counts))])]
        )

    band = partial(exact_bounds, list(counts.values()), n)
    return Stream("missing", tuple(counts), len(counts) + 1, count, _of_last, band)


def _rate(name: str, item: str, band: Callable[[float], tuple[Any, Any]]) -> Stream:
    """A share of labelled rows that should not rise above its band: errors, or sets that miss the label."""

    def count(wrong: Any) -> NDArray[Any]:
        return np.array([np.count_nonzero(wrong), np.count_nonzero(~wrong)])

    def shares(cells: Counts) -> tuple[Counts, Counts, Counts]:
        return cells[..., :1], cells[..., :1], cells[..., :2].sum(axis=-1, keepdims=True)

    return Stream(name, (item,), 2, count, shares, lambda delta: (np.zeros(1), np.array([float(band(delta)[1])])))


def _risk(max_risk: float) -> Stream:
    """The share of wrong rows among labelled ones that are accepted, which is allowed up to a bound that is given.

    The whole level is the sequence's: no band is estimated, and a smaller share is no alarm. A third cell counts the
    accepted rows, with and without labels, of which nothing is tested.
    """

    def count(accepted: Any) -> NDArray[Any]:
        return np.array([0, 0, np.count_nonzero(accepted)])

    return replace(_rate("risk", "wrong", lambda _: (0.0, max_risk)), n_cells=3, count=count, parts=1)


def make_streams(
    reference: HeldOutCounts, names: Sequence[str], sets: Any, n_thresholds: int, max_risk: float | None = None
) -> list[Stream]:
    """The streams of a reference, in a fixed order."""
    n = reference.n_rows
    found = [_quantiles("confidence", reference.confidence)]
    if reference.atypicality is not None:
        found.append(_quantiles("atypicality", reference.atypicality))
    found.append(_kinds("class", dict(zip(names, reference.predicted.tolist(), strict=True)), n, to_host))
    lacking = {name: words for name, words in sorted(reference.words.items()) if name.startswith(MISSING)}
    for name in sorted(reference.words.keys() - lacking.keys()):
        counted = dict(sorted(reference.words[name].items()))
        if not name.startswith(LEVEL):
            found.append(_kinds(name, counted, n, partial(_placed, list(counted))))
        elif any(np.isfinite(float(word)) for word in counted):
            found.append(_levels(name, counted))
    if reference.medians is not None and reference.median_rank is not None:
        found.append(_medians(reference.medians, reference.median_rank, n))
    found.append(_rate("error", "wrong", partial(exact_bounds, reference.errors, n)))
    if lacking:  # of answers, which have no sets
        found.append(_missing({name.removeprefix(MISSING): words.get("yes", 0) for name, words in lacking.items()}, n))
    elif reference.missed is not None:
        found.append(_rate("miss", "missed", partial(exact_bounds, reference.missed, n)))
    elif hasattr(sets, "alpha") and (rank := conformal_rank(n_thresholds, sets.alpha)) <= n_thresholds:
        place = n_thresholds + 1 - rank  # the share of scores above the threshold, one of fixed rank
        found.append(_rate("miss", "missed", partial(rank_band, place, place, n_thresholds)))
    return found if max_risk is None else [*found, _risk(max_risk)]


def _placed(known: Sequence[str], words: NDArray[np.str_]) -> list[int]:
    """Places of words among those known, behind them for others."""
    places = {word: place for place, word in enumerate(known)}
    return [places.get(word, len(places)) for word in words.tolist()]


class ShareTests:
    """All tests of some streams, whose levels sum to `alpha`: half for the bands, half for the sequences.

    Every stream gets the same level, and every test of a stream the same part of it. A bound that is given needs no
    band, and its one test has the whole level of the stream.
    """

    def __init__(self, streams: Sequence[Stream], alpha: float) -> None:
        self.streams = list(streams)
        ends = np.cumsum([stream.n_cells for stream in streams]).tolist()
        self.places = [slice(end - stream.n_cells, end) for stream, end in zip(streams, ends, strict=True)]
        sizes = [len(stream.items) for stream in streams]
        deltas = [alpha / len(sizes) / (stream.parts * len(stream.items)) for stream in streams]
        bands = [stream.band(delta) for stream, delta in zip(streams, deltas, strict=True)]
        self.low, self.high = (np.concatenate(side) for side in zip(*bands, strict=True))
        self.delta = np.repeat(deltas, sizes)
        self.tested = [(stream, item) for stream in streams for item in stream.items]
        self.place_of = {(stream.name, item): place for place, (stream, item) in enumerate(self.tested)}

    @property
    def n_cells(self) -> int:
        """Cells of all streams."""
        return int(self.places[-1].stop)

    def shares(self, cells: Counts) -> tuple[Counts, Counts, Counts]:
        """As `Stream.shares`, of all streams: cells (..., n_cells) to (..., items of all)."""
        parts = [stream.shares(cells[..., place]) for stream, place in zip(self.streams, self.places, strict=True)]
        below, above, trials = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
        return below, above, trials

    def excess(self, cells: Counts) -> NDArray[np.float64]:
        """Log evidence beyond what the level asks for (2, ..., items): shares too small, and shares too large."""
        below, above, trials = self.shares(cells)
        found = [one_sided(below, trials, self.low, False), one_sided(above, trials, self.high, True)]
        return np.asarray(np.stack(found) + np.log(self.delta))


def _raised(tests: ShareTests, state: MonitorState) -> Iterator[Alarm]:
    """Every share that is now disjoint from its band, with the window from which the evidence is largest.

    Evidence from the j-th window of the life on has the level of its test divided by j (j + 1): these sum to it.
    """
    since = np.cumsum(state.cells[::-1], axis=0)[::-1]
    ordinal = (state.keys - state.first + 1).astype(np.float64)
    if not state.keys.size:
        return
    excess = tests.excess(since) - np.log(ordinal * (ordinal + 1))[None, :, None]
    found = np.argwhere(excess.max(axis=1) >= 0)
    shares = tests.shares(since) if found.size else ()
    for side, item in found:
        window = int(excess[side, :, item].argmax())
        below, above, trials = (part[:, item] for part in shares)
        yield _alarm(tests, state, bool(side), int(item), window, above if side else below, trials)


def outside(tests: ShareTests, state: MonitorState) -> list[Alarm]:
    """What is outside its band now, and alarms of before that are not over, as they were raised.

    An alarm is over when it is not raised any more and the rows since its start would raise none at one look either:
    evidence that has just passed the level of a whole life falls short of it again by chance.
    """
    now = list(_raised(tests, state))
    known = {alarm.what for alarm in now}
    latest = {alarm.what: alarm for alarm in state.alarms}
    return now + [alarm for what, alarm in latest.items() if what not in known and not _is_over(tests, state, alarm)]


def _is_over(tests: ShareTests, state: MonitorState, alarm: Alarm) -> bool:
    """Whether the rows since an alarm's start fell short of `OVER` at the end of a window from its own on."""
    if (place := tests.place_of.get((alarm.stream, alarm.item))) is None:
        return True
    start, own = window_keys(np.array([alarm.since, alarm.at]), state.window)
    above = (alarm.direction == "rose") != alarm.of_smaller
    kept = state.keys >= start
    *counts, trials = (part[:, place] for part in tests.shares(np.cumsum(state.cells[kept], axis=0)))
    bound = (tests.high if above else tests.low)[place]
    evidence = one_sided(counts[above], trials, bound, above)[state.keys[kept] >= own]
    return bool((evidence < OVER).any())


def _alarm(
    tests: ShareTests, state: MonitorState, above: bool, item: int, window: int, counts: Counts, every: Counts
) -> Alarm:
    """The alarm of an item whose `counts`, of `every` row from each window on (w,), say most from this window on."""
    count, trials = counts[window], every[window]
    start = int(np.flatnonzero(every == trials)[-1])  # a window without such rows, as one of labels alone, is no start
    ordinal = float(state.keys[window] - state.first + 1)
    low, high = sequence_interval(count, trials, tests.delta[item] / (ordinal * (ordinal + 1)))
    stream, name = tests.tested[item]
    return Alarm(
        stream.name,
        name,
        stream.direction(above),
        state.last,
        first_second(int(state.keys[start]), state.window),
        float(count / trials),
        float(low),
        float(high),
        float(tests.low[item]),
        float(tests.high[item]),
        int(trials),
    )


def window_rows(tests: ShareTests, state: MonitorState, rolling: int) -> list[dict[str, Any]]:
    """One row for each item of each stream that has rows in a window, or in the `rolling` windows that end in it."""
    found = []
    for key in state.keys.tolist():
        cells = state.cells[(state.keys > key - rolling) & (state.keys <= key)].sum(axis=0)
        start = as_text(first_second(key, state.window))
        found += [{"window": start} | row for row in _item_rows(tests, cells)]
    return found


def accepted_rows(state: MonitorState, place: slice | None, rolling: int) -> list[dict[str, Any]]:
    """What was accepted in each window, or in the `rolling` windows that end in it.

    `place` is that of the stream "risk" among the cells; None where no risk was given, and nothing accepted.
    """
    found = []
    for key in state.keys.tolist() if place is not None else ():
        windows = (state.keys > key - rolling) & (state.keys <= key)
        rows = int(state.profile[windows, 0].sum())
        wrong, right, kept = state.cells[windows].sum(axis=0)[place].tolist()
        low, high = sequence_interval(kept, rows, state.alpha)
        known = {"window": as_text(first_second(key, state.window)), "rows": rows, "accepted": kept}
        shares = {"share": kept / rows, "low": float(low), "high": float(high)} if rows else {}
        found.append(known | shares | {"labelled": wrong + right, "wrong": wrong})
    return found


def _item_rows(tests: ShareTests, cells: Counts) -> list[dict[str, Any]]:
    below, above, trials = tests.shares(cells)
    low, _ = sequence_interval(below, trials, tests.delta)
    _, high = sequence_interval(above, trials, tests.delta)
    return [
        {
            "stream": tests.tested[item][0].name,
            "item": tests.tested[item][1],
            "rows": int(trials[item]),
            "share": float(below[item] / trials[item]),
            "low": float(low[item]),
            "high": float(high[item]),
            "reference_low": float(tests.low[item]),
            "reference_high": float(tests.high[item]),
        }
        for item in np.flatnonzero(trials)
    ]
