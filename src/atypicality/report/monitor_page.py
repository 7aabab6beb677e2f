"""The page of a monitor: what is outside now, accuracy measured and estimated, and every share over time."""

import html
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from atypicality.monitoring.overview import LEVEL, rank_of, window_name
from atypicality.monitoring.state import QUANTILE, percent
from atypicality.monitoring.summary import DOUBTED, advised
from atypicality.report.monitor_charts import history_chart, short_time
from atypicality.report.pages import asset, html_page, write_page

__all__ = ["render_monitor", "write_monitor"]

MOST_CHARTS = 24  # items of a stream that are drawn, those furthest from their band first
HEADINGS = {
    "error": "Errors",
    "miss": "Sets that miss the label",
    "quadrant": "Kinds of prediction",
    "class": "Predicted classes",
    "missing": "Missing values",
    "input": "Inputs",
}
"""Of streams whose name is not enough."""
ESTIMATES = {
    "confidence": "mean confidence",
    "class mix": "under the class mix that the predictions look like",
    "transport": "under the class mix that was given",
    "reference": "accuracy on the reference rows",
}
OF = dict.fromkeys(("error", "miss"), "labelled rows of each window") | dict.fromkeys(
    ("atypicality", "confidence"), "rows of each window at or below a quantile of the reference"
)
OF |= {"input": "rows of each window at or below the reference's median"}
"""Of which rows the shares of a stream are, where they are not those of its items."""
Data = Mapping[str, Any]


def write_monitor(data: Data, path: str | os.PathLike[str], *, title: str = "Monitor") -> None:
    """Write `render_monitor` to a file, whole or not at all.

    Parameters
    ----------
    data : mapping
        What `Monitor.to_dict` gives.
    path : path of the HTML file
    title : str

    Examples
    --------
    >>> import atypicality as aty, pathlib, tempfile
    >>> world = aty.datasets.make_world(2000).outputs()
    >>> head = aty.ReliabilityHead().fit(train=world[:1000], calibration=world[1000:])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "monitor.html")
    ...     write_monitor(aty.Monitor(head).to_dict(), path)
    ...     path.read_text()[:15]
    '<!doctype html>'
    """
    write_page(path, lambda: render_monitor(data, title=title))


def render_monitor(data: Data, *, title: str = "Monitor") -> str:
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
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(2000).outputs()
    >>> head = aty.ReliabilityHead().fit(train=world[:1000], calibration=world[1000:])
    >>> "No alarm" in render_monitor(aty.Monitor(head).to_dict())
    True
    """
    tables = [_outside(data), _every(data["alarms"]), _reading(data)]
    parts = [_header(data, title), _cards(data), *tables, *_accepted(data), *_sections(data["history"])]
    style = asset("report.css") + asset("monitor.css")
    return html_page(title=title, style=style, body="\n".join(parts), data=None, script="")


def _text(value: object) -> str:
    return html.escape(str(value))


def _header(data: Data, title: str) -> str:
    facts = {"Head": f"calibration rows <code>{_text(data['head'])}</code>, as <code>atypicality show</code> prints"}
    ends = dict.fromkeys(short_time(data[name]) for name in ("first", "last") if data[name])
    when = f", {' to '.join(ends)} UTC" if ends else ""
    windows = f"{data['windows']:,} {window_name(data['window'])}{'' if data['windows'] == 1 else 's'}"
    facts["Rows"] = f"{data['rows']:,} in {windows}{when}"
    facts["Labels"] = f"{data['labelled']:,}"
    facts["Reference"] = f"{data['reference_rows']:,} held-out rows"
    if data["max_risk"] is not None:
        facts["Accepted"] = f"at a risk of at most {percent(data['max_risk'])}"
    facts["Alarms"] = f"without a change, the chance of any over the whole life is at most {percent(data['alpha'])}"
    listed = "".join(f"<dt>{name}</dt><dd>{fact}</dd>" for name, fact in facts.items())
    return f'<header><h1>{_text(title)}</h1>\n<dl class="facts">{listed}</dl></header>'


def _cards(data: Data) -> str:
    newest = window_name(data["window"], data["rolling"])
    kind = "bad" if data["outside"] else "warn" if data["doubted"] else "good"
    cards = [(kind, "What is outside its band now", _first(data))]
    measured = data["measured"]
    if data["windows"] > 1:
        said = _period(data, measured["newest"], data["newest_accuracy"], " that came in it")
        since = f"{'from ' if data['rolling'] > 1 else ''}{short_time(measured['newest']['since'])}"
        cards.append(("", f"Newest {newest}, {since}", said))
    if data["windows"]:
        cards.append(("", "All rows", _period(data, measured["all"], data["estimated_accuracy"], "")))
    body = "\n".join(f'<div class="card {kind}"><h2>{_text(name)}</h2>{said}</div>' for kind, name, said in cards)
    return f'<section class="cards three">\n{body}\n</section>'


def _first(data: Data) -> str:
    """What matters most of what is outside, and how much more there is."""
    groups, over = data["outside"], data["over"]
    past = f"<p>{data['doubted']:,} rows came with {DOUBTED}.</p>" if data["doubted"] else ""
    past += f"<p>{over} alarm{'s are' if over > 1 else ' is'} over: inside again.</p>" if over else ""
    if not groups:
        return f"<p>{'Nothing.' if over else 'No alarm.'}</p>{past}"
    more = f"<p>{len(groups) - 1} more below, what matters most first.</p>" if len(groups) > 1 else ""
    return f"<p><b><bdi>{_text(groups[0]['text'])}</bdi></b></p>{more}{past}"


def _period(data: Data, measured: Data, estimate: Data | None, came: str) -> str:
    """What labels show, what was accepted, and the estimate, of the newest windows or of all rows."""
    level = f"{measured['level']:.0%} interval"
    said = []
    if right := measured["accuracy"]:
        ends = f"{level} {right['low']:.3f} to {right['high']:.3f}"
        said.append(f"Accuracy measured on {right['of']:,} labels{came}: <b>{right['share']:.3f}</b>, {ends}.")
    if wrong := measured["accepted_errors"]:
        ends = f"{level} {wrong['low']:.1%} to {wrong['high']:.1%}; at most {percent(data['max_risk'])} allowed"
        said.append(f"Of {wrong['of']:,} accepted rows with a label <b>{wrong['share']:.1%}</b> are wrong, {ends}.")
    if kept := measured["accepted"]:
        said.append(f"Accepted: {kept['share']:.1%} of {kept['of']:,} rows.")
    return "".join(f"<p>{line}</p>" for line in said) + _estimate(estimate, measured["labelled"], bool(data["outside"]))


def _estimate(found: Data | None, n_labels: int, moved: bool) -> str:
    if found is None:
        return "<p>No rows to estimate the accuracy of.</p>"
    advice = advised(dict(found), n_labels, moved)
    hint = f" {_text(advice[:1].upper() + advice[1:].removesuffix('.'))}." if advice else ""
    if found["refusal"] is not None:
        said = f"<p>No estimate without labels: {_text(found['refusal'])}{hint}</p>"
    else:
        ends = f"{found['level']:.0%} interval {found['low']:.3f} to {found['high']:.3f}"
        said = f"<p>Accuracy estimated without labels: <b>{found['accuracy']:.3f}</b>, {ends}.{hint}</p>"
    others = {ESTIMATES.get(name, name): value for name, value in found["estimates"].items() if name != "combined"}
    items = "".join(f"<li>{_text(name)}: {value:.3f}</li>" for name, value in others.items())
    return f'{said}<ul class="quiet">{items}</ul>'


def _outside(data: Data) -> str:
    """What is outside now as a table, a group of alarms in a row."""
    if not (groups := data["outside"]):
        return ""
    name = f"Newest {window_name(data['window'], data['rolling'])}"
    now = [{} if group["newest"] is None else {name: group["newest"]} for group in groups]
    rows = [_row(group, group["raised"], more) for group, more in zip(groups, now, strict=True)]
    return f"<section><h2>Outside now, what matters most first</h2>{_table(rows)}</section>"


def _every(alarms: Sequence[Data]) -> str:
    """All alarms so far as a table that opens, each as it was first raised."""
    rows = [_row(one, one["at"], {}) for one in alarms]
    told = f"All {len(rows)} alarms so far" if len(rows) > 1 else "The alarm"
    return f"<details><summary>{told}, as first raised</summary>{_table(rows)}</details>" if rows else ""


def _row(alarm: Data, raised: str, more: Mapping[str, str]) -> dict[str, str]:
    interval = {"Time-uniform interval": f"{alarm['low']:.1%} to {alarm['high']:.1%}"}
    times = {"Rows since": short_time(alarm["since"]), "Raised": short_time(raised)}
    return {"What": alarm["text"], **interval, **more, **times}


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of the same columns; on a narrow screen every cell but the first names its column."""
    names = [_text(name) for name in rows[0]]
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    named = ["", *(f' data-name="{name}"' for name in names[1:])]
    lines = [zip(named, row.values(), strict=True) for row in rows]
    cells = ["".join(f"<td{name}><bdi>{_text(cell)}</bdi></td>" for name, cell in line) for line in lines]
    body = "".join(f"<tr>{line}</tr>" for line in cells)
    table = f'<table class="alarms"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="prose scroll">{table}</div>'


def _reading(data: Data) -> str:
    """What intervals and bands mean, once."""
    if not data["history"]:
        return ""
    together = f"together with probability {percent(1 - data['alpha'])} at least"
    lines = [
        "The band, shaded, holds the share that the reference rows show, as far as their number tells it. Of errors "
        "among accepted rows it is what the risk allows. There is an alarm when a time-uniform interval is outside its "
        "band.",
        f"A time-uniform interval holds at every look, however often one looks: those of all alarms {together}, "
        f"and those of the charts in one window {together}. It is wider than an interval for one look.",
        "Intervals of measured accuracy, and of errors among accepted rows beside it, are for one look "
        f"(Wilson, {LEVEL:.0%}). The interval of an accuracy that is estimated without labels comes from experience "
        "with other data and is not proved.",
        "In charts, what is outside its band in a single window has another colour; in a long life that alone need not "
        "be an alarm, which allows for every window that it could begin with. n counts the rows of a window. All times "
        "are UTC.",
    ]
    items = "".join(f"<li>{line}</li>" for line in lines)
    return f"<section><h2>How to read it</h2><ul class=quiet>{items}</ul></section>"


def _accepted(data: Data) -> Iterator[str]:
    """What was accepted in each window and how much of it is wrong, where the monitor was given a risk."""
    if not (drawn := [row for row in data["accepted"] if row["rows"]]):
        return
    wrong = [row for row in data["history"] if row["stream"] == "risk"]
    charts = history_chart("Errors among accepted rows with a label", wrong) if wrong else ""
    level = percent(1 - data["alpha"])
    yield (
        f"<section><h2>Accepted at a risk of at most {percent(data['max_risk'])}</h2><p class=quiet>Shares of each "
        f"window with time-uniform intervals; that of the accepted rows holds by itself, at {level}.</p>"
        f"<div class=pair>{charts}{history_chart('Accepted of all rows', drawn)}</div></section>"
    )


def _sections(history: Sequence[Data]) -> Iterable[str]:
    streams: dict[str, dict[str, list[Data]]] = {}
    for row in history:
        streams.setdefault(row["stream"], {}).setdefault(row["item"], []).append(row)
    streams.pop("risk", None)  # beside what is accepted
    for name, items in sorted(streams.items(), key=lambda stream: rank_of(stream[0])):
        chosen = sorted(items, key=lambda item: -_distance(items[item]))[:MOST_CHARTS]
        charts = "".join(history_chart(_item(item), items[item]) for item in items if item in chosen)
        left_out = (
            f" {len(items) - len(chosen)} items nearest to their band are left out." if len(items) > len(chosen) else ""
        )
        heading = _text(HEADINGS.get(name) or name[:1].upper() + name[1:])
        yield (
            f"<section><h2><bdi>{heading}</bdi></h2><p class=quiet>Share of the {OF.get(name, 'rows of each window')}, "
            f"with its time-uniform interval; shaded: the band of the reference.{left_out}</p>"
            f"<div class=pair>{charts}</div></section>"
        )


def _item(name: str) -> str:
    """An item in words: of a quantile, its value and the share of the reference rows that are at or below it."""
    if (found := QUANTILE.fullmatch(name)) is None:
        return name
    share, value = found.groups()
    return f"at or below {float(value):.4g}: {float(share):.0%} of the reference"


def _distance(rows: Sequence[Data]) -> float:
    return float(max(max(row["reference_low"] - row["share"], row["share"] - row["reference_high"]) for row in rows))
