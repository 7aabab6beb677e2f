"""Figures of the documentation, drawn by the package's own charts from the bundled outputs, for light and dark pages.

The site's build calls `write`; `python docs/figures.py FOLDER` does the same by hand.
"""

import json
import sys
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

import atypicality as aty
from atypicality import charts
from atypicality.datasets import load_fashion_mnist, load_fashion_mnist_lt

INK = {"light": "#222832", "dark": "#ced6dd"}
PAPER = {"light": "#ffffff", "dark": "#14181e"}
"""Of the site. Half-transparent marks on a transparent picture come out in other colours."""
LINES = {"light": "#d1d5da", "dark": "#48566b"}
BRIGHTER = {"#0072B2": "#56B4E9", "#555": "#aaa", "#7A5195": "#b794d6"}
"""Colours that are too dark for a dark page, and what takes their place there."""
ROOT = Path(__file__).parents[1]
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#7A5195", "#8C6D31", "#555", "#DA3B46"]
STAR = "M0,-1L.25,-.33L.95,-.31L.4,.12L.59,.81L0,.42L-.59,.81L-.4,.12L-.95,-.31L-.25,-.33Z"
SHAPES = ["circle", "square", "cross", "diamond", *(f"triangle-{way}" for way in ("up", "down", "right", "left")), STAR]
"""As many as colours: no two peers look alike."""
SCALE = 2
"""Pixels per point; pages show figures at half their size. In SVG, a browser's own fonts overflow the legends."""


def write(folder: Path) -> list[Path]:
    """Draw every figure into `folder`, as NAME-light and NAME-dark."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, chart in figures().items():
        for mode in INK:
            written.append(folder / f"{name}-{mode}.png")
            written[-1].write_bytes(_drawn(chart.to_dict(), mode))
    return written


def figures() -> dict[str, Any]:
    """Charts by name."""
    train, calibration, test = load_fashion_mnist_lt()
    head = aty.ReliabilityHead().fit(train=train, calibration=calibration)
    first, second = calibration.split(0.5)
    one = aty.TemperatureScaling().fit(first.logits, first.labels)
    sets = aty.SplitConformal(alpha=0.1).fit(one.predict_proba(second.logits), second.labels)
    methods = {"model": "uncalibrated", "temperature scaling": one, "head": head}
    evaluation = aty.evaluate(methods, test, train=train)
    covered = aty.evaluate({"one threshold": (one, sets), "head": head}, test, train=train)
    balanced = load_fashion_mnist()
    plain = aty.evaluate({"model": "uncalibrated"}, balanced.test, train=balanced.train)
    rare = head.density_.atypicality(calibration.embeddings)
    paper = aty.AtypicalityAwareRecalibration.paper().fit(calibration.logits, calibration.labels, atypicality=rare)
    return {
        "quadrants": charts.quadrant_scatter(evaluation, method="head"),
        "distribution": charts.atypicality_distribution(plain),
        "ece": charts.quality_by_group(evaluation, "ece"),
        "accuracy": charts.quality_by_group(evaluation, "accuracy"),
        "accuracy-class": charts.quality_by_group(evaluation, "accuracy", by="class"),
        "grid": charts.confidence_grid(evaluation, "overconfidence", methods=["model", "head"]),
        "coverage": charts.coverage_by_group(covered, "coverage"),
        "reliability": charts.reliability_diagram(evaluation),
        "temperatures": charts.temperatures(plain),
        "multiplier": charts.multiplier(paper, head.density_.atypicality(test.embeddings)),
        "class-scores": charts.class_scores(evaluation, method="head"),
        "speed": speed(),
        "growth": growth(),
        "rows": by_rows(),
    }


def speed() -> alt.LayerChart:
    """How many times faster each stage is than each peer, from the file that `make bench` writes."""
    found = [
        {"stage": row["stage"], "times faster": float(row["times faster"]), "peer": _library(row["against"])}
        for row in _benchmark("peers")
        if row["times faster"]
    ]
    stages = list(dict.fromkeys(row["stage"] for row in found))
    x = alt.X("times faster:Q").scale(type="log", nice=False, padding=12)
    x = x.axis(values=[0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000])
    x = x.title("times faster than the peer; left of the line: slower")
    y = alt.Y("stage:N").sort(stages).title(None).axis(labelLimit=260)
    colour = alt.Color("peer:N").scale(range=PALETTE).title(None).legend(orient="top", columns=4, labelLimit=200)
    marks = alt.Chart(alt.Data(values=found)).mark_point(filled=True, size=70, opacity=1)
    marks = marks.encode(x=x, y=y, color=colour, shape=alt.Shape("peer:N").scale(range=SHAPES).title(None))
    draw = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeDash=[4, 3], color="#777").encode(x="one:Q")
    return alt.layer(draw, marks).properties(width=520, height=22 * len(stages))


def growth() -> alt.FacetChart:
    """Fitted exponents as points on bars from 0 to the arithmetic's, one panel for each axis."""
    found = [
        {
            "stage": row["stage"],
            "axis": f"with {row['doubled']}",
            "arithmetic": float(row["exponent of the arithmetic"]),
            "fitted": float(row["fitted exponent"]),
        }
        for row in _benchmark("growth")
    ]
    stages, axes = (list(dict.fromkeys(row[name] for row in found)) for name in ("stage", "axis"))
    y = alt.Y("stage:N").sort(stages).title(None).axis(labelLimit=260)
    base = alt.Chart(alt.Data(values=found)).encode(y)
    bars = base.mark_bar(color="#56B4E9", opacity=0.5).encode(alt.X("arithmetic:Q").title("exponent"))
    points = base.mark_point(filled=True, color="#D55E00", size=60, opacity=1).encode(alt.X("fitted:Q"))
    panel = alt.layer(bars, points).properties(width=170, height=18 * len(stages))
    title = "Exponent of time (points) and of the arithmetic (bars)"
    return panel.facet(column=alt.Column("axis:N").title(None).sort(axes), title=title)


def _benchmark(name: str) -> list[dict[str, str]]:
    document = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return [dict(zip(document["columns"], row, strict=True)) for row in document["rows"]]


def _library(against: str) -> str:
    name = against.partition(":")[0]
    return name if name == "paper's algorithm" else name.split()[0]


def by_rows() -> alt.HConcatChart:
    """NLL by number of calibration rows, from the tables that docs/measure_methods.py writes."""
    return alt.hconcat(_by_rows("fashion-mnist", "Fashion-MNIST"), _by_rows("fashion-mnist-lt", "long-tailed"))


def _by_rows(name: str, title: str) -> alt.LayerChart:
    header, _, *lines = (ROOT / "docs" / "tables" / f"{name}-rows.md").read_text().splitlines()
    sizes = [int(cell.replace(",", "").split()[0]) for cell in header.strip("| ").split("|")]
    found = []
    for line in lines:
        method, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        losses = [float(cell.split()[0]) for cell in cells]
        found += [
            {"rows": n, "NLL": loss, "method": method}
            for n, loss in zip(sizes, losses, strict=True)
            if loss < float("inf")
        ]
    methods = list(dict.fromkeys(row["method"] for row in found))
    colour = alt.Color("method:N").sort(methods).scale(range=PALETTE).title(None).legend(labelLimit=240)
    base = alt.Chart(alt.Data(values=found)).encode(
        x=alt.X("rows:Q").scale(type="log").axis(values=sizes).title("calibration rows"),
        y=alt.Y("NLL:Q").scale(zero=False),
        color=colour,
    )
    marks = base.mark_point(filled=True, size=50, opacity=1).encode(
        shape=alt.Shape("method:N").sort(methods).scale(range=SHAPES).legend(None)
    )
    return (base.mark_line(strokeWidth=1.5) + marks).properties(width=230, height=220, title=title)


def _drawn(spec: dict[str, Any], mode: str) -> bytes:
    config = {
        "background": PAPER[mode],
        "style": {
            "guide-label": {"fill": INK[mode], "fontSize": 12},
            "guide-title": {"fill": INK[mode], "fontSize": 13},
        },
        "title": {"color": INK[mode]},
        "header": {"labelColor": INK[mode], "titleColor": INK[mode], "labelFontSize": 13},
        "axis": {"gridColor": LINES[mode], "domainColor": LINES[mode], "tickColor": LINES[mode], "gridOpacity": 0.6},
        "legend": {"symbolOpacity": 1},
        "view": {"stroke": LINES[mode]},
    }
    text = json.dumps(spec | {"config": spec.get("config", {}) | config})
    for colour, brighter in BRIGHTER.items() if mode == "dark" else ():
        text = text.replace(f'"{colour}"', f'"{brighter}"')
    return bytes(vl_convert.vegalite_to_png(json.loads(text), scale=SCALE))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
