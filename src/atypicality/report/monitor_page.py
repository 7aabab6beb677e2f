"""The page of a monitor: alarms, the estimate of accuracy, and every share over time beside its reference band."""

import html
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from atypicality.monitoring.state import QUANTILE
from atypicality.report.pages import asset, html_page, write_page

__all__ = ["render_monitor", "write_monitor"]

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 440, 170, 48, 8, 24
MOST_CHARTS = 24  # items of a stream that are drawn, those furthest from their band first
HEADINGS = {
    "error": "Errors",
    "risk": "Errors among accepted rows",
    "miss": "Sets that miss the label",
    "atypicality": "Atypicality",
    "confidence": "Confidence",
    "class": "Predicted classes",
    "advice": "Advice",
    "quadrant": "Kinds of prediction",
    "missing": "Missing values",
    "input": "Inputs",
}
"""Of streams, in the order of the page: what a label shows first, inputs last, attributes before these."""
ESTIMATES = {
    "confidence": "mean confidence",
    "class mix": "under the class mix that the predictions look like",
    "transport": "under the class mix that was given",
    "reference": "accuracy on the reference rows",
}

BELOW = dict.fromkeys(("atypicality", "confidence"), " at or below a quantile of the reference") | {
    "input": " at or below the reference's median"
}
"""Of which rows the shares of a stream are, where they are not those of its items."""


def write_monitor(data: Mapping[str, Any], path: str | os.PathLike[str], *, title: str = "Monitor") -> None:
    """Write `render_monitor` to a file, whole or not at all.

    Parameters
    ----------
    data : mapping
        What `Monitor.to_dict` gives.
    path : path of the HTML file
    title : str

    Examples
    --------
    >>> import pathlib, tempfile
    >>> empty = {"rows": 0, "labelled": 0, "alpha": 0.01, "reference_rows": 9, "alarms": [], "history": []}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "monitor.html")
    ...     write_monitor(empty | {"last": None, "estimated_accuracy": None, "newest_accuracy": None}, path)
    ...     path.read_text()[:15]
    '<!doctype html>'
    """
    write_page(path, lambda: render_monitor(data, title=title))


def render_monitor(data: Mapping[str, Any], *, title: str = "Monitor") -> str:
    """One self-contained page without a script.

    Parameters
    ----------
    data : mapping
        What `Monitor.to_dict` gives.
    title : str

    Returns
    -------
    str
        HTML, the same for the same data.

    Examples
    --------
    >>> empty = {"rows": 0, "labelled": 0, "alpha": 0.01, "reference_rows": 9, "alarms": [], "history": []}
    >>> "No alarm" in render_monitor(empty | {"last": None, "estimated_accuracy": None, "newest_accuracy": None})
    True
    """
    parts = [_header(data, title), _cards(data), _alarms(data["alarms"]), *_accepted(data), *_sections(data["history"])]
    return html_page(title=title, style=asset("report.css"), body="\n".join(parts), data=None, script="")


def _text(value: object) -> str:
    return html.escape(str(value))


def _header(data: Mapping[str, Any], title: str) -> str:
    until = f", the newest of {_text(data['last'])}" if data["last"] else ""
    return (
        f"<header><h1>{_text(title)}</h1>\n<p>{data['rows']:,} rows and {data['labelled']:,} labels{until}; "
        f"{data['reference_rows']:,} reference rows. Without a change the chance of any alarm over the whole life "
        f"is at most {data['alpha']:.2%}.</p></header>"
    )


def _cards(data: Mapping[str, Any]) -> str:
    n = len(data["alarms"])
    hint = "<p>Something has moved, so this may be too high: label some rows.</p>" if data.get("moved") else ""
    said = f"{n} alarm{'s' if n > 1 else ''}, listed below." if n else "No alarm."
    newest = _estimate(data["newest_accuracy"], hint) + _measured(data["history"])
    return (
        f'<section class="cards three">\n<div class="card {"warn" if n else "good"}"><h2>Alarms</h2><p>{said}</p>'
        f'</div>\n<div class="card"><h2>Accuracy without labels, newest</h2>{newest}</div>\n'
        f'<div class="card"><h2>Accuracy without labels, all</h2>{_estimate(data["estimated_accuracy"], hint)}</div>\n'
        "</section>"
    )


def _measured(history: Sequence[Mapping[str, Any]]) -> str:
    """The accuracy of the labels that came in the newest window, where some did."""
    found = [row for row in history if row["stream"] == "error" and row["window"] == history[-1]["window"]]
    return "".join(
        f"<p>Measured on {row['rows']:,} labels that came in it: <b>{1 - row['share']:.3f}</b></p>" for row in found
    )


def _alarms(alarms: Sequence[Mapping[str, Any]]) -> str:
    """The alarms as a table."""
    names = ("What", "Since", "Interval of the share", "Raised")
    rows = "".join(
        f"<tr><td><bdi>{_text(one['text'])}</bdi></td><td>{_text(one['since'])}</td>"
        f"<td>{one['low']:.1%} to {one['high']:.1%}</td><td>{_text(one['at'])}</td></tr>"
        for one in alarms
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<section><h2>Alarms</h2><div class="prose scroll alarms">{table}</div></section>' if alarms else ""


def _estimate(found: Mapping[str, Any] | None, hint: str) -> str:
    if found is None:
        return "<p>No rows.</p>"
    if found["refusal"] is not None:
        said = f"<p>No estimate: {_text(found['refusal'])}</p>"
    else:
        said = (
            f"<p><b>{found['accuracy']:.3f}</b>, {found['level']:.0%} interval {found['low']:.3f} to "
            f"{found['high']:.3f}</p>{hint}"
        )
    others = {ESTIMATES.get(name, name): value for name, value in found["estimates"].items() if name != "combined"}
    return said + "<ul>" + "".join(f"<li>{_text(name)}: {value:.3f}</li>" for name, value in others.items()) + "</ul>"


def _sections(history: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    streams: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in history:
        streams.setdefault(row["stream"], {}).setdefault(row["item"], []).append(row)
    for name, items in sorted(streams.items(), key=lambda stream: _order(stream[0])):
        chosen = sorted(items, key=lambda item: -_distance(items[item]))[:MOST_CHARTS]
        charts = "".join(_chart(_item(item), items[item]) for item in items if item in chosen)
        left_out = (
            f" {len(items) - len(chosen)} items nearest to their band are left out." if len(items) > len(chosen) else ""
        )
        heading = _text(HEADINGS.get(name) or name[:1].upper() + name[1:])
        yield (
            f"<section><h2><bdi>{heading}</bdi></h2><p class=quiet>Share of the rows of each "
            f"window{BELOW.get(name, '')}, with its interval; shaded: the reference.{left_out}</p>"
            f"<div class=pair>{charts}</div></section>"
        )


def _order(stream: str) -> int:
    known = list(HEADINGS)
    return known.index(stream) if stream in known else known.index("input") - 1


def _item(name: str) -> str:
    """An item in words: of a quantile, its value and the share of the reference rows that are at or below it."""
    if (found := QUANTILE.fullmatch(name)) is None:
        return name
    share, value = found.groups()
    return f"at or below {float(value):.4g}: {float(share):.0%} of the reference"


def _accepted(data: Mapping[str, Any]) -> Iterable[str]:
    """What was accepted in each window, where the monitor was given a risk."""
    found = data.get("accepted") or []
    if not (drawn := [row for row in found if row["rows"]]):
        return
    newest = next((row for row in reversed(found) if row["labelled"]), None)  # windows taken together overlap: no sums
    told = ""
    if newest is not None:
        share = f"{newest['wrong'] / newest['labelled']:.1%}"
        told = f" In the newest with labels, {share} of {newest['labelled']:,} accepted rows are wrong."
    yield (
        f"<section><h2>Accepted at a risk of at most {data['max_risk']:g}</h2><p class=quiet>Share of the rows of each "
        f"window that are accepted, with its interval.{told}</p>"
        f"<div class=pair>{_chart('accepted', drawn)}</div></section>"
    )


def _distance(rows: Sequence[Mapping[str, Any]]) -> float:
    return float(max(max(row["reference_low"] - row["share"], row["share"] - row["reference_high"]) for row in rows))


def _chart(item: str, rows: Sequence[Mapping[str, Any]]) -> str:
    top = min(1.0, 1.1 * max(max(row["high"], row.get("reference_high", 0.0)) for row in rows)) or 1.0
    step = (WIDTH - LEFT) / max(len(rows), 1)

    def x(place: int) -> str:
        return f"{LEFT + (place + 0.5) * step:.1f}"

    def y(share: float) -> float:
        return round(TOP + (HEIGHT - BOTTOM - TOP) * (1 - share / top), 1)

    band = ""
    if "reference_low" in rows[0]:
        low, high = y(rows[0]["reference_low"]), y(rows[0]["reference_high"])
        place = f'x="{LEFT}" y="{high}" width="{WIDTH - LEFT}" height="{max(low - high, 1):.1f}"'
        band = f'<rect {place} fill="#999" fill-opacity="0.3"/>'
    bars = "".join(
        f'<line class="interval" x1="{x(i)}" x2="{x(i)}" y1="{y(row["low"])}" y2="{y(row["high"])}"/>'
        f'<circle class="mark" cx="{x(i)}" cy="{y(row["share"])}" r="3"><title>{_text(row["window"])}: '
        f"{row['share']:.2%} of {row['rows']:,} rows</title></circle>"
        for i, row in enumerate(rows)
    )
    axis = "".join(
        f'<line class="rule" x1="{LEFT}" x2="{WIDTH}" y1="{y(share)}" y2="{y(share)}"/>'
        f'<text x="{LEFT - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{100 * share:.3g}%</text>'
        for share in (0.0, top)
    )
    letters = 10 if all(row["window"].endswith("T00:00:00Z") for row in rows) else 16  # of days, or of minutes
    first, last = (_text(row["window"][:letters]) for row in (rows[0], rows[-1]))
    line = " ".join(f"{x(i)},{y(row['share'])}" for i, row in enumerate(rows))
    return (
        f'<figure><figcaption><bdi>{_text(item)}</bdi></figcaption><svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{_text(item)}">{band}<g class="series m0">'
        f'<polyline points="{line}"/>{bars}</g>{axis}'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{first}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{last}</text></svg></figure>'
    )
