"""What is counted of the rows in use: cells of atypicality, confidence, classes, words, inputs, errors and misses.

A stream cuts rows into cells whose counts add up over windows and over monitors. It tests shares of cells against a
band that its reference rows give, from below and from above.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.conformal.threshold import conformal_rank
from atypicality.head.reference import HeldOutCounts, Ranks
from atypicality.metrics.intervals import exact_bounds
from atypicality.monitoring.sequences import one_sided, rank_band, sequence_interval
from atypicality.monitoring.state import MonitorState
from atypicality.monitoring.windows import as_text, first_second

__all__ = ["CATEGORICAL", "InputMedians", "Quantiles", "ShareTests", "Shares", "Stream", "make_streams", "window_rows"]

CATEGORICAL = ("quadrant", "advice")
"""Fields of `Reliability` that hold one of a few words; one that the reference lacks is counted in the last cell."""

Counts = NDArray[np.int64]
Vector = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stream:
    """Cells and tests of one quantity; `items` are what the shares are of: quantiles, classes, words, columns."""

    name: str
    items: tuple[str, ...]

    @property
    def n_cells(self) -> int:
        """Cells that the stream counts."""
        raise NotImplementedError

    def shares(self, cells: Counts) -> tuple[Counts, Counts, Counts]:
        """Successes whose share may be too small, those whose share may be too large, and trials; (..., items)."""
        raise NotImplementedError

    def band(self, delta: float) -> tuple[Vector, Vector]:
        """Bounds (items,) below and above which a share is not the reference's; each fails with chance `delta`."""
        raise NotImplementedError

    def direction(self, above: bool) -> str:
        """What has happened where a share has left the band on this side."""
        return "rose" if above else "fell"


@dataclass(frozen=True, eq=False)
class Quantiles(Stream):
    """Shares of rows at or below quantiles of the reference."""

    ranks: Ranks

    @property
    def n_cells(self) -> int:
        """Between and at the edges."""
        return 2 * self.ranks.edges.size + 1

    def shares(self, cells: Counts) -> tuple[Counts, Counts, Counts]:
        """At or below each edge, below it, and all."""
        total = np.cumsum(cells, axis=-1)
        return total[..., 1::2], total[..., :-1:2], np.broadcast_to(total[..., -1:], total[..., 1::2].shape)

    def band(self, delta: float) -> tuple[Vector, Vector]:
        """Of order statistics."""
        return rank_band(self.ranks.low, self.ranks.high, self.ranks.n_rows, delta)

    def direction(self, above: bool) -> str:
        """Too many rows below a quantile are rows with smaller values."""
        return "fell" if above else "rose"


@dataclass(frozen=True, eq=False)
class Shares(Stream):
    """Shares of classes or of words; the last cell is for words without a share."""

    counts: Counts
    rows: int

    @property
    def n_cells(self) -> int:
        """One for each item, and one for others."""
        return len(self.items) + 1

    def shares(self, cells: Counts) -> tuple[Counts, Counts, Counts]:
        """Rows of each item, twice, and all."""
        items = cells[..., :-1]
        return items, items, np.broadcast_to(cells.sum(axis=-1, keepdims=True), items.shape)

    def band(self, delta: float) -> tuple[Vector, Vector]:
        """Of counts."""
        return exact_bounds(self.counts, self.rows, delta)


@dataclass(frozen=True, eq=False)
class InputMedians(Stream):
    """Shares of rows at or below the reference's median of each column of the embeddings."""

    medians: Vector
    rank: int
    rows: int

    @property
    def n_cells(self) -> int:
        """At or below and below, of each column, and all."""
        return 2 * self.medians.size + 1

    def shares(self, cells: Counts) -> tuple[Counts, Counts, Counts]:
        """At or below the median, below it, and all."""
        width = self.medians.size
        reached, below = cells[..., :width], cells[..., width : 2 * width]
        return reached, below, np.broadcast_to(cells[..., -1:], reached.shape)

    def band(self, delta: float) -> tuple[Vector, Vector]:
        """Of order statistics."""
        low, high = rank_band(self.rank, self.rank, self.rows, delta)
        return np.full(self.medians.size, low), np.full(self.medians.size, high)

    def direction(self, above: bool) -> str:
        """Too many rows below the median are rows with smaller values."""
        return "fell" if above else "rose"

    def counted(self, embeddings: NDArray[Any]) -> Counts:
        """Cells of rows (n, d)."""
        parts = ((embeddings <= self.medians).sum(axis=0), (embeddings < self.medians).sum(axis=0), [len(embeddings)])
        return np.concatenate(parts).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Rates(Stream):
    """A share of labelled rows that should not rise: errors, or sets that miss the label."""

    bound: Callable[[float], float]

    @property
    def n_cells(self) -> int:
        """Those that count, and the others."""
        return 2

    def shares(self, cells: Counts) -> tuple[Counts, Counts, Counts]:
        """Rows that count, and all."""
        return cells[..., :1], cells[..., :1], cells.sum(axis=-1, keepdims=True)

    def band(self, delta: float) -> tuple[Vector, Vector]:
        """From 0 to the largest share that the reference allows."""
        return np.zeros(1), np.array([self.bound(delta)])


def make_streams(reference: HeldOutCounts, names: Sequence[str], sets: Any, n_thresholds: int) -> list[Stream]:
    """The streams of a reference, in a fixed order."""
    n = reference.n_rows
    found: list[Stream] = [_quantiles("confidence", reference.confidence)]
    if reference.atypicality is not None:
        found.append(_quantiles("atypicality", reference.atypicality))
    found.append(Shares("class", tuple(names), reference.predicted, n))
    for name, words in sorted(reference.words.items()):
        counted = sorted(words.items())
        found.append(Shares(name, tuple(word for word, _ in counted), np.array([c for _, c in counted], np.int64), n))
    if reference.medians is not None and reference.median_rank is not None:
        columns = tuple(f"embedding {column}" for column in range(reference.medians.size))
        found.append(InputMedians("input", columns, reference.medians, reference.median_rank, n))
    errors, missed = reference.errors, reference.missed
    found.append(Rates("error", ("wrong",), lambda delta: float(exact_bounds(errors, n, delta)[1])))
    if missed is not None:
        found.append(Rates("miss", ("missed",), lambda delta: float(exact_bounds(missed, n, delta)[1])))
    elif hasattr(sets, "alpha") and (rank := conformal_rank(n_thresholds, sets.alpha)) <= n_thresholds:
        place = n_thresholds + 1 - rank  # the share of scores above the threshold, one of fixed rank
        found.append(Rates("miss", ("missed",), lambda delta: float(rank_band(place, place, n_thresholds, delta)[1])))
    return found


def _quantiles(name: str, ranks: Ranks) -> Quantiles:
    shares = (ranks.low + ranks.high) / 2 / ranks.n_rows
    items = [f"quantile {share:.2g} ({edge:.6g})" for edge, share in zip(ranks.edges, shares, strict=True)]
    return Quantiles(name, tuple(items), ranks)


class ShareTests:
    """All tests of some streams, whose levels sum to `alpha`: half for the bands, half for the sequences.

    Every stream gets the same level, and every test of a stream the same part of it.
    """

    def __init__(self, streams: Sequence[Stream], alpha: float) -> None:
        self.streams = list(streams)
        ends = np.cumsum([stream.n_cells for stream in streams]).tolist()
        self.places = [slice(end - stream.n_cells, end) for stream, end in zip(streams, ends, strict=True)]
        sizes = [len(stream.items) for stream in streams]
        deltas = [alpha / 2 / len(sizes) / (2 * size) for size in sizes]
        bands = [stream.band(delta) for stream, delta in zip(streams, deltas, strict=True)]
        self.low, self.high = (np.concatenate(side) for side in zip(*bands, strict=True))
        self.delta = np.repeat(deltas, sizes)
        self.stream_of = np.repeat(np.arange(len(sizes)), sizes)
        self.item_of = np.concatenate([np.arange(size) for size in sizes])

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
        return np.stack(found) + np.log(self.delta)


def window_rows(tests: ShareTests, state: MonitorState, rolling: int) -> list[dict[str, Any]]:
    """One row for each item of each stream that has rows in a window, or in the `rolling` windows that end in it."""
    found = []
    for key in state.keys.tolist():
        cells = state.cells[(state.keys > key - rolling) & (state.keys <= key)].sum(axis=0)
        start = as_text(first_second(key, state.window))
        found += [{"window": start} | row for row in _item_rows(tests, cells)]
    return found


def _item_rows(tests: ShareTests, cells: Counts) -> list[dict[str, Any]]:
    below, above, trials = tests.shares(cells)
    low, _ = sequence_interval(below, trials, tests.delta)
    _, high = sequence_interval(above, trials, tests.delta)
    streams = [tests.streams[number] for number in tests.stream_of]
    return [
        {
            "stream": streams[item].name,
            "item": streams[item].items[tests.item_of[item]],
            "rows": int(trials[item]),
            "share": float(below[item] / trials[item]),
            "low": float(low[item]),
            "high": float(high[item]),
            "reference_low": float(tests.low[item]),
            "reference_high": float(tests.high[item]),
        }
        for item in np.flatnonzero(trials)
    ]
