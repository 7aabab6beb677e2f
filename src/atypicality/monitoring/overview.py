"""What a monitor tells first, in text, page and JSON: what is outside now, ranked and grouped, and what labels show."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from atypicality.metrics.intervals import wilson_interval
from atypicality.monitoring.state import Alarm, MonitorState, percent
from atypicality.monitoring.streams import ShareTests
from atypicality.monitoring.windows import as_text, first_second

__all__ = ["LEVEL", "ORDER", "overview", "rank_of", "window_name"]

ORDER = ("risk", "error", "miss", "atypicality", "confidence", "class", "advice", "quadrant", "missing", "input")
"""Streams by what they mean to who uses the predictions: errors of what was used, other errors, then what has changed
about the predictions, then about the inputs; attributes come beside missing values."""
APART = 3
"""Items of one stream that are told one by one; of more, the furthest speaks for all."""
ITEMS = {"input": "embedding columns", "class": "classes"}
LEVEL = 0.95  # of intervals of what labels show, each for one look


def overview(monitor: Any, state: MonitorState, tests: ShareTests, rolling: int) -> dict[str, Any]:
    """What is outside now and what was measured, as plain values; `rolling` windows are the newest."""
    now = [alarm for found in monitor.moved().values() for alarm in found]
    since = {alarm.what: alarm.at for alarm in state.alarms}  # of those raised again, the last time
    return {
        "outside": _groups(now, since, tests, _Newest(tests, state, rolling)),
        "over": len(state.alarms) - len(since.keys() & {alarm.what for alarm in now}),
        "measured": {"newest": _measured(monitor, state, rolling), "all": _measured(monitor, state, None)},
    }


def rank_of(stream: str) -> int:
    """The place of a stream in the order of what is told first.

    >>> sorted(["input", "attribute site", "error", "risk"], key=rank_of)
    ['risk', 'error', 'attribute site', 'input']
    """
    return ORDER.index(stream) if stream in ORDER else ORDER.index("missing")


def window_name(window: str | float, n_windows: int = 1) -> str:
    """Windows in words.

    >>> window_name("day"), window_name("day", 7), window_name(90.0)
    ('day', '7 days', 'window')
    """
    name = window if isinstance(window, str) else "window"
    return name if n_windows == 1 else f"{n_windows} {name}s"


class _Newest:
    """The share of an alarm in the newest of several windows alone."""

    def __init__(self, tests: ShareTests, state: MonitorState, rolling: int) -> None:
        self._shares = tests.shares(state.recent("cells", rolling)) if state.keys.size > 1 else None
        self._tests = tests

    def __call__(self, alarm: Alarm) -> str | None:
        if self._shares is None:
            return None
        place = self._tests.place_of[alarm.stream, alarm.item]
        side = self._tests.tested[place][0].direction(True)
        count, trials = self._shares[alarm.direction == side][place], self._shares[2][place]
        return f"{percent(replace(alarm, share=count / trials).told().share)} of {trials:,}" if trials else "none"


def _groups(
    now: list[Alarm], raised: Mapping[tuple[str, str, str], float], tests: ShareTests, newest: _Newest
) -> list[dict[str, Any]]:
    """Groups of alarms, those first that matter most; quantiles of a stream, and many items of one, are a group."""
    sizes = {stream.name: len(stream.items) for stream in tests.streams}
    found = []
    for alarms in _together(now):
        most = max(alarms, key=lambda alarm: alarm.gap)
        told = most.told()
        found.append(
            {
                "stream": most.stream,
                "items": [alarm.item for alarm in alarms],
                "text": _text(most, alarms, sizes[most.stream]),
                "newest": newest(most),
                "since": as_text(most.since),
                "raised": as_text(min(raised.get(alarm.what, alarm.at) for alarm in alarms)),
                "share": told.share,
                "low": told.low,
                "high": told.high,
                "gap": most.gap,
            }
        )
    return sorted(found, key=lambda group: (rank_of(group["stream"]), group["stream"], -group["gap"]))


def _together(now: list[Alarm]) -> Iterator[list[Alarm]]:
    streams: dict[tuple[str, ...], list[Alarm]] = {}
    for alarm in now:
        together = (alarm.stream, alarm.direction) if _is_quantile(alarm) else (alarm.stream,)
        streams.setdefault(together, []).append(alarm)
    for alarms in streams.values():
        yield from [alarms] if _is_quantile(alarms[0]) or len(alarms) > APART else [[alarm] for alarm in alarms]


def _is_quantile(alarm: Alarm) -> bool:
    return alarm.item.startswith("quantile ")


def _text(most: Alarm, alarms: list[Alarm], n_items: int) -> str:
    if len(alarms) == 1:
        return str(most)
    if _is_quantile(most):
        return f"{most}; and {len(alarms) - 1} more of its quantiles"
    items = ITEMS.get(most.stream, f"values of {most.stream}")
    return f"{len({alarm.item for alarm in alarms})} of {n_items} {items} moved, most: {most}"


def _measured(monitor: Any, state: MonitorState, last: int | None) -> dict[str, Any] | None:
    """Rows, labels, and shares of right and accepted rows of the newest `last` windows, or of all; None of none."""
    if not state.keys.size:
        return None
    cells, rows = state.recent("cells", last), int(state.recent("profile", last)[0])
    first = state.first if last is None else max(state.first, int(state.keys[-1]) - last + 1)
    wrong, right = cells[monitor._place("error")].tolist()
    found = {"since": as_text(first_second(first, state.window)), "rows": rows, "labelled": wrong + right}
    found |= {"level": LEVEL, "accuracy": _share(right, wrong + right), "accepted": None, "accepted_errors": None}
    if (place := monitor._place("risk")) is not None:
        wrong, right, kept = cells[place].tolist()
        found |= {"accepted": _share(kept, rows), "accepted_errors": _share(wrong, wrong + right)}
    return found


def _share(count: int, of: int) -> dict[str, Any] | None:
    """A share with Wilson's interval; None of no rows."""
    if not of:
        return None
    low, high = wilson_interval(count, of, LEVEL)
    return {"count": count, "of": of, "share": count / of, "low": float(low), "high": float(high)}
