"""What a monitor shows: shares of every window beside their bands, as rows of a table."""

from typing import Any

import numpy as np

from atypicality.monitoring.sequences import sequence_interval
from atypicality.monitoring.state import MonitorState
from atypicality.monitoring.streams import ShareTests
from atypicality.monitoring.windows import as_text, first_second

__all__ = ["window_rows"]


def window_rows(tests: ShareTests, state: MonitorState, rolling: int) -> list[dict[str, Any]]:
    """One row for each item of each stream that has rows in a window, or in the `rolling` windows that end in it."""
    found = []
    for key in state.keys.tolist():
        cells = state.cells[(state.keys > key - rolling) & (state.keys <= key)].sum(axis=0)
        start = as_text(first_second(key, state.window))
        found += [{"window": start} | row for row in _item_rows(tests, cells)]
    return found


def _item_rows(tests: ShareTests, cells: Any) -> list[dict[str, Any]]:
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
