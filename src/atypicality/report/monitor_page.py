"""The page of a monitor: alarms, the estimate of accuracy, and every share over time beside its reference band."""

import html
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from atypicality.report.pages import asset, html_page, write_page

__all__ = ["render_monitor", "write_monitor"]

WIDTH, HEIGHT, LEFT, BOTTOM = 340, 150, 44, 24
MOST_CHARTS = 24  # items of a stream that are drawn, those furthest from their band first
HEADINGS = {
    "atypicality": "Atypicality",
    "confidence": "Confidence",
    "class": "Predicted classes",
    "error": "Errors",
    "miss": "Sets that miss the label",
    "input": "Inputs",
}

BELOW = dict.fromkeys(("atypicality", "confidence"), " at or below each quantile of the reference") | {
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
    return (
        f'<section class="cards">\n<div class="card {"warn" if n else "good"}"><h2>Alarms</h2><p>{said}</p></div>\n'
        f'<div class="card"><h2>Accuracy without labels, newest</h2>{_estimate(data["newest_accuracy"], hint)}</div>\n'
        f'<div class="card"><h2>Accuracy without labels, all</h2>{_estimate(data["estimated_accuracy"], hint)}</div>\n'
        "</section>"
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
    return f'<section><h2>Alarms</h2><div class="prose scroll">{table}</div></section>' if alarms else ""


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
    return said + "<ul>" + "".join(f"<li>{_text(k)}: {v:.3f}</li>" for k, v in found["estimates"].items()) + "</ul>"


def _sections(history: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    streams: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for row in history:
        streams.setdefault(row["stream"], {}).setdefault(row["item"], []).append(row)
    for name, items in streams.items():
        chosen = sorted(items, key=lambda item: -_distance(items[item]))[:MOST_CHARTS]
        charts = "".join(_chart(item, items[item]) for item in items if item in chosen)
        left_out = (
            f" {len(items) - len(chosen)} items nearest to their band are left out." if len(items) > len(chosen) else ""
        )
        yield (
            f"<section><h2><bdi>{_text(HEADINGS.get(name, name))}</bdi></h2><p class=quiet>Share of the rows of each "
            f"window{BELOW.get(name, '')}, with its interval; shaded: the reference.{left_out}</p>"
            f"<div class=pair>{charts}</div></section>"
        )


def _accepted(data: Mapping[str, Any]) -> Iterable[str]:
    """What was accepted in each window, where the monitor was given a risk."""
    found = data.get("accepted") or []
    if not (drawn := [row for row in found if row["rows"]]):
        return
    labelled, wrong = (sum(row[name] for row in found) for name in ("labelled", "wrong"))
    told = f" Of {labelled:,} accepted rows with a label {wrong / labelled:.1%} are wrong." if labelled else ""
    yield (
        f"<section><h2>Accepted at a risk of at most {data['max_risk']:g}</h2><p class=quiet>Share of the rows of each "
        f"window that are accepted, with its interval. It raises no alarm.{told}</p>"
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
        return round((HEIGHT - BOTTOM) * (1 - share / top), 1)

    band = ""
    if "reference_low" in rows[0]:
        low, high = y(rows[0]["reference_low"]), y(rows[0]["reference_high"])
        place = f'x="{LEFT}" y="{high}" width="{WIDTH - LEFT}" height="{max(low - high, 1):.1f}"'
        band = f'<rect {place} fill="#999" fill-opacity="0.3"/>'
    bars = "".join(
        f'<line class="interval" x1="{x(i)}" x2="{x(i)}" y1="{y(row["low"])}" y2="{y(row["high"])}"/>'
        f'<circle class="mark" cx="{x(i)}" cy="{y(row["share"])}" r="3"><title>{_text(row["window"])}: '
        f"{row['share']:.4f} of {row['rows']} rows</title></circle>"
        for i, row in enumerate(rows)
    )
    line = " ".join(f"{x(i)},{y(row['share'])}" for i, row in enumerate(rows))
    return (
        f'<figure><figcaption><bdi>{_text(item)}</bdi></figcaption><svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{_text(item)}">{band}<g class="series m0">'
        f'<polyline points="{line}"/>{bars}</g><text x="0" y="10">{top:.3g}</text>'
        f'<text x="0" y="{HEIGHT - BOTTOM}">0</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{_text(rows[0]["window"][:10])}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{_text(rows[-1]["window"][:10])}</text></svg></figure>'
    )
