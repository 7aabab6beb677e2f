"""A monitor in a few lines of text: what is outside its band now, and the accuracy, estimated and measured."""

from collections.abc import Iterator
from typing import Any

from atypicality.monitoring.state import Alarm, MonitorState, percent
from atypicality.monitoring.streams import ShareTests
from atypicality.monitoring.windows import as_text

__all__ = ["summarised"]

APART = 3
"""Items of one stream that have a line each; of more, the furthest speaks for all."""
CAUTION = " (something has moved, so this may be too high: label some rows)"
ITEMS = {"input": "embedding columns", "class": "classes"}


def summarised(monitor: Any, state: MonitorState, tests: ShareTests) -> str:
    """As `Monitor.summary`."""
    windows = f"{state.keys.size} window{'' if state.keys.size == 1 else 's'}"
    lines = [
        f"Monitor: {monitor.n_rows:,} rows, {monitor.n_labelled:,} labels, {windows}; "
        f"false alarms over its life: at most {state.alpha:.2%}",
        f"  reference {state.reference.n_rows:,} rows",
    ]
    outside = {alarm.what for found in monitor.moved().values() for alarm in found}
    lasting = [alarm for alarm in state.alarms if alarm.what in outside]
    name, caution = state.window if isinstance(state.window, str) else "window", CAUTION if outside else ""
    told = _Newest(tests, state, name)
    lines += [f"  alarm {line}" for line in _alarm_lines(lasting, tests, told)]
    if over := len(state.alarms) - len(lasting):
        lines.append(f"  {over} alarm{'s are' if over > 1 else ' is'} over, inside again: the page and JSON list them")
    if not state.alarms:
        lines.append("  no alarm")
    if state.keys.size > 1:
        lines += _accuracy(monitor, state, 1, caution, f"newest {name}", f" that came in this {name}")
    if state.keys.size:
        lines += _accuracy(monitor, state, None, caution, "all rows")
    if state.keys.size and state.max_risk is not None:
        lines.append(f"  accepted at a risk of at most {state.max_risk:g}: {_accepted(monitor, state, name)}")
    return "\n".join(lines)


class _Newest:
    """The share of an alarm in the newest of several windows alone, as words behind it."""

    def __init__(self, tests: ShareTests, state: MonitorState, name: str) -> None:
        self._shares = tests.shares(state.recent("cells", 1)) if state.keys.size > 1 else None
        self._places = {
            (tests.streams[stream].name, tests.streams[stream].items[item]): place
            for place, (stream, item) in enumerate(zip(tests.stream_of, tests.item_of, strict=True))
        }
        self._streams, self._name = {stream.name: stream for stream in tests.streams}, name

    def __call__(self, alarm: Alarm) -> str:
        if self._shares is None:
            return str(alarm)
        place, side = self._places[alarm.stream, alarm.item], self._streams[alarm.stream].direction(True)
        count, trials = self._shares[alarm.direction == side][place], self._shares[2][place]
        newest = f"{percent(count / trials)} of {trials:,}" if trials else "none"
        return f"{alarm}; newest {self._name} {newest}"


def _alarm_lines(alarms: list[Alarm], tests: ShareTests, told: "_Newest") -> Iterator[str]:
    """One line for an alarm; quantiles of a stream that were raised together, and many items of one, share a line."""
    together: dict[Any, list[Alarm]] = {}
    for alarm in alarms:
        quantile = alarm.item.startswith("quantile ")
        together.setdefault((alarm.stream, alarm.direction, alarm.at) if quantile else alarm.stream, []).append(alarm)
    sizes = {stream.name: len(stream.items) for stream in tests.streams}
    for group, found in together.items():
        most = max(found, key=lambda alarm: alarm.gap)
        if isinstance(group, tuple):
            rest = f"; and {len(found) - 1} more of its quantiles" if len(found) > 1 else ""
            yield f"{as_text(most.at)} {told(most)}{rest}"
        elif len(found) <= APART:
            yield from (f"{as_text(alarm.at)} {told(alarm)}" for alarm in found)
        else:
            moved = len({alarm.item for alarm in found})
            items = ITEMS.get(group, f"values of {group}")
            yield f"{as_text(found[0].at)} {moved} of {sizes[group]} {items} moved, most: {told(most)}"


def _accuracy(
    monitor: Any, state: MonitorState, last: int | None, caution: str, name: str, when: str = ""
) -> list[str]:
    """Lines on the accuracy of the newest `last` windows or of all: estimated, and measured where labels came."""
    place = monitor._place("error")
    rows, (wrong, right) = state.recent("profile", last)[0], state.recent("cells", last)[place]
    said = "no rows to estimate the accuracy of"
    if rows:
        estimate = monitor.estimated_accuracy(last=last)
        said = str(estimate) + (caution if estimate.accuracy is not None else "")
    lines = [f"  {name}: {said}"]
    if wrong + right:
        lines.append(f"  {name}: measured on {wrong + right:,} labels{when}: {right / (wrong + right):.3f}")
    return lines


def _accepted(monitor: Any, state: MonitorState, name: str) -> str:
    """The share that is accepted, of the newest window and of all rows, and how much of it is wrong."""
    shares, place = [], monitor._place("risk")
    newest = [(1, f"the newest {name}")] if state.keys.size > 1 else []
    for last, words in (*newest, (None, "all rows")):
        rows, (wrong, right, kept) = state.recent("profile", last)[0], state.recent("cells", last)[place]
        shares.append(f"{kept / rows:.1%} of {words}" if rows else f"no rows in {words}")
    labelled = wrong + right
    measured = f"of {labelled:,} with a label {wrong / labelled:.1%} are wrong" if labelled else "none with a label yet"
    return f"{', '.join(shares) if monitor.n_rows else 'no rows yet'}; {measured}"
