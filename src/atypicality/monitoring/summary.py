"""A monitor in a few lines of text: what is outside its band now, and the accuracy, measured and estimated."""

from collections.abc import Iterator
from typing import Any

from atypicality.monitoring.overview import overview, window_name
from atypicality.monitoring.state import MonitorState, percent
from atypicality.monitoring.streams import ShareTests

__all__ = ["DOUBTED", "advised", "summarised"]

DOUBTED = "logits that do not fit their embeddings, or that look like probabilities"
MOVED = "something has moved, so this may be too high: "
LABEL, GO_BY_LABELS = "label some rows", "go by what was measured"


def summarised(monitor: Any, state: MonitorState, tests: ShareTests, rolling: int) -> str:
    """As `Monitor.summary`."""
    told, windows = overview(monitor, state, tests, rolling), window_name(state.window, rolling)
    lines = [
        f"Monitor: {monitor.n_rows:,} rows, {monitor.n_labelled:,} labels, {state.keys.size} "
        f"window{'' if state.keys.size == 1 else 's'}; false alarms over its life: at most {state.alpha:.2%}",
        f"  reference {state.reference.n_rows:,} rows",
        *(f"  alarm {group['raised']} {group['text']}{_newest(group, windows)}" for group in told["outside"]),
    ]
    if monitor.n_doubted:
        lines.append(f"  {monitor.n_doubted:,} rows came with {DOUBTED}")
    if over := told["over"]:
        lines.append(f"  {over} alarm{'s are' if over > 1 else ' is'} over, inside again: the page and JSON list them")
    if not state.alarms:
        lines.append("  no alarm")
    moved, measured = bool(told["outside"]), told["measured"]
    if state.keys.size > 1:
        came = f" that came in {'this' if rolling == 1 else 'these'} {windows}"
        lines += _period(monitor, measured["newest"], moved, rolling, f"newest {windows}", came)
    if state.keys.size:
        lines += _period(monitor, measured["all"], moved, None, "all rows", "")
    return "\n".join(lines)


def advised(estimate: dict[str, Any], n_labels: int, moved: bool) -> str | None:
    """What to do about an estimate of rows of which so many labels came, where something may have moved.

    >>> advised({"accuracy": 0.9, "advice": None}, 0, moved=True)
    'something has moved, so this may be too high: label some rows'
    >>> advised({"accuracy": 0.9, "advice": None}, 100, moved=True)
    'something has moved, so this may be too high: go by what was measured'
    """
    if estimate["accuracy"] is None:
        return None if n_labels else estimate["advice"]
    return MOVED + (GO_BY_LABELS if n_labels else LABEL) if moved else None


def _newest(group: dict[str, Any], windows: str) -> str:
    return "" if group["newest"] is None else f"; newest {windows} {group['newest']}"


def _period(
    monitor: Any, measured: dict[str, Any], moved: bool, last: int | None, name: str, came: str
) -> Iterator[str]:
    """Lines on the newest windows or on all rows: what labels show, what was accepted, the estimate."""
    level = f"{measured['level']:.0%} interval (Wilson)"
    if right := measured["accuracy"]:
        ends = f"{right['share']:.3f}, {level} {right['low']:.3f} to {right['high']:.3f}"
        yield f"  {name}: measured on {right['of']:,} labels{came}: accuracy {ends}"
    if (risk := monitor._state.max_risk) is not None:
        yield f"  {name}: accepted at a risk of at most {percent(risk)}: {_accepted(measured, level)}"
    if not measured["rows"]:
        yield f"  {name}: no rows to estimate the accuracy of"
        return
    estimate = monitor.estimated_accuracy(last=last)
    advice = advised(estimate.to_dict(), measured["labelled"], moved)
    text = f"no estimate of accuracy: {estimate.refusal}" if estimate.accuracy is None else str(estimate)
    yield f"  {name}: {text}" + (f" ({advice})" if advice else "")


def _accepted(measured: dict[str, Any], level: str) -> str:
    """The share that is accepted, and how much of it is wrong."""
    kept, wrong = measured["accepted"], measured["accepted_errors"]
    said = f"{kept['share']:.1%} of {kept['of']:,} rows" if kept else "no rows"
    if wrong is None:
        return f"{said}; none of them with a label yet"
    ends = f"{level} {wrong['low']:.1%} to {wrong['high']:.1%}"
    return f"{said}; of {wrong['of']:,} with a label {wrong['share']:.1%} are wrong, {ends}"
