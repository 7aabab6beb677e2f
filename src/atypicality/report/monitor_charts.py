"""Charts of a monitor as SVG: shares of windows with their intervals, beside the band of the reference."""

import datetime
import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["history_chart", "short_time", "ticks"]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 440, 190, 48, 8, 8, 42
STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # each goes into 1, so that no axis ends beyond 100 %
MOST_STEPS = 5
LETTER = 6.6  # pixels of one letter of an axis, of the width of the chart
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # in every locale

Row = Mapping[str, Any]


def history_chart(item: str, rows: Sequence[Row]) -> str:
    """Shares of an item, its caption, over windows in order, as `Monitor.history` gives them: HTML of a figure."""
    axis = ticks(*_extent(rows))
    scale = _Scale(axis[0], axis[-1], len(rows))
    marks = "".join(_mark(scale, place, row) for place, row in enumerate(rows))
    line = " ".join(f"{scale.x(place):.1f},{scale.y(row['share'])}" for place, row in enumerate(rows))
    labels, every = _labels(scale, rows)
    said = "" if every else f' <span class="n quiet">{_counts([row["rows"] for row in rows])}</span>'
    return (
        f"<figure><figcaption><bdi>{html.escape(item)}</bdi>{said}</figcaption>"
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(item)}">'
        f"{''.join(_rule(scale, share) for share in axis)}{_band(scale, rows[0])}"
        f'<g class="series m0"><polyline points="{line}"/>{marks}</g>{labels}</svg></figure>'
    )


def ticks(low: float, high: float) -> list[float]:
    """Round shares from at or below `low` to at or above `high`.

    >>> ticks(0, 0.309), ticks(0.91, 0.998)
    ([0.0, 0.1, 0.2, 0.3, 0.4], [0.9, 0.92, 0.94, 0.96, 0.98, 1.0])
    """
    step = next(step for step in STEPS if (high - low) / step <= MOST_STEPS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 4) for place in range(first, max(last, first + 1) + 1)]


def short_time(text: str) -> str:
    """A time as people write it: the date of a midnight, else date and minutes, with seconds where there are some.

    >>> short_time("2026-01-07T00:00:00Z"), short_time("2026-01-07T12:30:00Z"), short_time("2026-01-07T12:30:05Z")
    ('2026-01-07', '2026-01-07 12:30', '2026-01-07 12:30:05')
    """
    return text.removesuffix("Z").replace("T", " ").removesuffix(":00").removesuffix(" 00:00")


class _Scale:
    """From windows and shares to pixels."""

    def __init__(self, low: float, high: float, n: int) -> None:
        self.low, self.high, self.step = low, high, (WIDTH - LEFT - RIGHT) / max(n, 1)
        self.radius = 3 if self.step > 8 else 1.8  # so that marks of many windows do not touch

    def x(self, place: int) -> float:
        return LEFT + (place + 0.5) * self.step

    def y(self, share: float) -> float:
        inside = min(max((share - self.low) / (self.high - self.low), 0.0), 1.0)
        return round(TOP + (HEIGHT - BOTTOM - TOP) * (1 - inside), 1)


def _counts(rows: Sequence[int]) -> str:
    return f"n {rows[0]:,} each" if len({*rows}) == 1 else f"n {min(rows):,} to {max(rows):,}"


def _extent(rows: Sequence[Row]) -> tuple[float, float]:
    """What an axis must hold; from 0 on unless all is in the upper half."""
    low = min(min(row["low"], row.get("reference_low", 1.0)) for row in rows)
    return (low if low > 0.5 else 0.0), max(max(row["high"], row.get("reference_high", 0.0)) for row in rows)


def _rule(scale: _Scale, share: float) -> str:
    y = scale.y(share)
    return (
        f'<line class="rule" x1="{LEFT}" x2="{WIDTH}" y1="{y}" y2="{y}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * share:.4g}%</text>'
    )


def _band(scale: _Scale, row: Row) -> str:
    if "reference_low" not in row:
        return ""
    low, high = scale.y(row["reference_low"]), scale.y(row["reference_high"])
    place = f'x="{LEFT}" y="{high}" width="{WIDTH - LEFT}" height="{max(low - high, 1):.1f}"'
    return f'<rect class="band" {place}/>'


def _mark(scale: _Scale, place: int, row: Row) -> str:
    """A share and its interval, in another colour where the interval is outside the band."""
    outside = row["low"] > row.get("reference_high", 1.0) or row["high"] < row.get("reference_low", 0.0)
    x, told = f"{scale.x(place):.1f}", f"{short_time(row['window'])}: {row['share']:.2%} of {row['rows']:,} rows"
    return (
        f'<line class="interval{" beyond" if outside else ""}" x1="{x}" x2="{x}" y1="{scale.y(row["low"])}" '
        f'y2="{scale.y(row["high"])}"/><circle class="mark{" out" if outside else ""}" cx="{x}" '
        f'cy="{scale.y(row["share"])}" r="{scale.radius}"><title>{html.escape(told)}</title></circle>'
    )


def _labels(scale: _Scale, rows: Sequence[Row]) -> tuple[str, bool]:
    """Dates and rows of as many windows as have room, the first and the last among them, and whether of all."""
    dates = _dates([row["window"] for row in rows])
    counts = [f"n {row['rows']:,}" for row in rows]
    wide = LETTER * max(map(len, (*dates, *counts)))
    room = max(2, int((WIDTH - LEFT) // (wide + LETTER)))
    n = len(rows)
    places = range(n) if n <= room else sorted({round(k * (n - 1) / (room - 1)) for k in range(room)})
    return "".join(_label(scale.x(k), wide, dates[k], counts[k]) for k in places), n <= room


def _label(x: float, wide: float, date: str, count: str) -> str:
    anchor, x = ("end", WIDTH) if x + wide / 2 > WIDTH else ("middle", x)
    return "".join(
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}"{kind}>{html.escape(text)}</text>'
        for text, y, kind in ((date, HEIGHT - 24, ""), (count, HEIGHT - 8, ' class="n"'))
    )


def _dates(windows: Sequence[str]) -> list[str]:
    """Starts of windows without what all of them share: the year, midnight, seconds of 0."""
    starts = [datetime.datetime.fromisoformat(text) for text in windows]
    several = starts[0].year != starts[-1].year
    days = [f"{start.day} {MONTHS[start.month - 1]}{f' {start.year}' if several else ''}" for start in starts]
    clock = "%H:%M:%S" if any(start.second for start in starts) else "%H:%M"
    if all(start.strftime("%H:%M:%S") == "00:00:00" for start in starts):
        return days
    return [f"{day} {start.strftime(clock)}" for day, start in zip(days, starts, strict=True)]
