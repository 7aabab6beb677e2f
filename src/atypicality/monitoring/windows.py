"""Time in windows: calendar hours, days, weeks and months of UTC, or any number of seconds."""

import contextlib
import datetime
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.validation import check_choice, check_number

__all__ = ["as_text", "check_window", "first_second", "times", "window_keys"]

SECONDS = {"hour": 3600, "day": 86400, "week": 7 * 86400}
MONDAY = 3 * 86400  # from the first Monday before 1970, a Thursday, to 1970
LAST = 253402300800.0  # first second of the year 10000, which no calendar here writes

Vector = NDArray[np.float64]


def check_window(window: Any) -> str | float:
    """A window that can be used: "hour", "day", "week", "month", or its seconds."""
    if isinstance(window, str):
        return str(check_choice(window, "window", (*SECONDS, "month")))
    return check_number(window, "window", low=1e-3, high=LAST)


def times(at: Any, n_rows: int) -> Vector:
    """Seconds since 1970 (n,) of rows that came at one time or each at its own; None is now, a date its midnight.

    >>> times("1970-01-02T00:00:00+00:00", 2).tolist()
    [86400.0, 86400.0]
    >>> times("1970-01-02", 1).tolist()
    [86400.0]
    """
    several = isinstance(at, (list, tuple, np.ndarray)) and np.ndim(at) > 0
    found = np.array([_seconds(one) for one in at] if several else [_seconds(at)] * n_rows, np.float64)
    if found.size != n_rows:
        raise ValueError(f"at must be one time, or one for each row; got {found.size} for {n_rows} rows.")
    bad = np.flatnonzero(~((found >= 0) & (found < LAST)))
    if bad.size:
        raise ValueError(f"at must be a time from 1970 to 9999; row {bad[0]} has {found[bad[0]]!r}.")
    if (back := np.flatnonzero(np.diff(found) < 0)).size:
        raise ValueError(f"at must not go backwards; row {back[0] + 1} is earlier than the one before. Sort the rows.")
    return found


def _seconds(at: Any) -> float:
    if at is None or (isinstance(at, str) and at == "now"):
        return time.time()
    if isinstance(at, np.datetime64):
        return float(at.astype("datetime64[us]").astype(np.int64) / 1e6)
    if isinstance(at, str):
        at = _read(at)
    if isinstance(at, datetime.datetime):
        if at.tzinfo is None:
            raise ValueError(f"at must have a time zone; got {at.isoformat()}. Add +00:00 if it is UTC.")
        return at.timestamp()
    if isinstance(at, datetime.date):
        return datetime.datetime(at.year, at.month, at.day, tzinfo=datetime.UTC).timestamp()
    return check_number(at, "at")


def _read(text: str) -> datetime.date:
    """A date, or a date and time."""
    for kind in (datetime.date, datetime.datetime):
        with contextlib.suppress(ValueError):
            return kind.fromisoformat(text)
    raise ValueError(f"at must be now, a date of UTC, or a time such as 2026-01-31T12:00:00+00:00; got {text!r}.")


def window_keys(at: Vector, window: str | float) -> NDArray[np.int64]:
    """Number of the window of each time (n,): consecutive windows have consecutive numbers.

    >>> window_keys(np.array([0.0, 86399.0, 86400.0]), "day").tolist()
    [0, 0, 1]
    """
    if window == "month":
        return at.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)
    width = SECONDS[window] if isinstance(window, str) else window
    return np.floor((at + (MONDAY if window == "week" else 0)) / width).astype(np.int64)


def first_second(key: int, window: str | float) -> float:
    """When a window begins.

    >>> as_text(first_second(1, "month")), as_text(first_second(1, "week"))
    ('1970-02-01T00:00:00Z', '1970-01-05T00:00:00Z')
    """
    if window == "month":
        return float(np.datetime64(key, "M").astype("datetime64[s]").astype(np.int64))
    width = SECONDS[window] if isinstance(window, str) else window
    return max(0.0, float(key * width - (MONDAY if window == "week" else 0)))


def as_text(at: float) -> str:
    """A time as ISO 8601 in UTC, to the second.

    >>> as_text(86400.5)
    '1970-01-02T00:00:00Z'
    """
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
