"""Charts of measured groups: grids, quality by group and subgroup, reliability, risk-coverage, a monitor's shares."""

from collections.abc import Sequence
from typing import Any

from atypicality.charts import style
from atypicality.charts.saving import public_chart
from atypicality.charts.style import GROUPINGS, METRICS, PALETTE, SAMPLES, Chart, altair, base, filled, methods_of, tips
from atypicality.evaluation import Evaluation
from atypicality.validation import check_choice

__all__ = [
    "confidence_grid", "monitor_history", "quality_by_group", "reliability_diagram", "risk_coverage", "subgroup_bars",
]  # fmt: skip

_GRID_METRICS = ("accuracy", "confidence", "overconfidence", "coverage", "set_size")


@public_chart
def confidence_grid(
    evaluation: Evaluation,
    metric: str = "overconfidence",
    *,
    by: str = "atypicality",
    methods: Sequence[str] | str | None = None,
) -> Chart:
    """One metric over groups of confidence and of atypicality (figures 2a and 6), one grid for each method.

    {parameters}
    metric : {"accuracy", "confidence", "overconfidence", "coverage", "set_size"}
    by : {"atypicality", "class"}
        Input or class atypicality.
    {methods}

    {returns}
    {evaluation}
    >>> type(confidence_grid(evaluation, "accuracy")).__name__
    'FacetChart'
    """
    check_choice(metric, "metric", _GRID_METRICS)
    table = {"atypicality": "grid", "class": "class_grid"}[check_choice(by, "by", ("atypicality", "class"))]
    title = GROUPINGS[by][1]
    names = methods_of(evaluation, methods)
    rows = filled(evaluation, table, names, metric=metric)
    alt, chart = altair(), base(rows, f"the grid of {metric}")
    x = style.group_axis(title)
    y = alt.Y("confidence_group:O", title=GROUPINGS["confidence"][1], sort="descending")
    colour = alt.Color("value:Q", title=METRICS[metric], scale=_grid_scale(metric, rows))
    place = ("group:O", title), ("confidence_group:O", "Confidence group")
    cells = chart.mark_rect().encode(x, y, colour, tooltip=tips(*place, *style.measured_tips(METRICS[metric], ".3f")))
    ink = alt.condition(_is_dark(metric, rows), alt.value("white"), alt.value("black"))
    text = chart.mark_text(fontSize=10).encode(x, y, color=ink, text=alt.Text("value:Q", format=".2f"))
    return (cells + text).facet(alt.Column("method:N", title=None, sort=list(names)))


def _grid_scale(metric: str, rows: list[dict[str, Any]]) -> Any:
    alt = altair()
    if metric == "overconfidence":
        most = _largest_gap(rows)
        return alt.Scale(scheme="blueorange", domain=[-most, most], domainMid=0, clamp=True)
    return alt.Scale(scheme="cividis")


def _largest_gap(rows: list[dict[str, Any]]) -> float:
    """Over cells of at least 30 samples: a few samples shall not set the scale of colours."""
    gaps = [abs(float(row["value"])) for row in rows if row["count"] >= 30]
    return max([0.05, *gaps])


def _is_dark(metric: str, rows: list[dict[str, Any]]) -> Any:
    """Where the colours are dark: at both ends for differences, at the low end for amounts."""
    value = altair().datum.value
    if metric == "overconfidence":
        most = 0.7 * _largest_gap(rows)
        return (value > most) | (value < -most)
    values = [row["value"] for row in rows]
    return value < (min(values) + max(values)) / 2


@public_chart
def quality_by_group(
    evaluation: Evaluation, metric: str = "ece", *, by: str = "atypicality", methods: Sequence[str] | str | None = None
) -> Chart:
    """A metric by group for each method, with intervals (figures 2b, 3 and 7).

    {parameters}
    metric : str
        "ece", "accuracy" or another metric of the table.
    by : {"atypicality", "confidence", "class"}
    methods : str or sequence of str, optional

    {returns}
    {evaluation}
    >>> type(quality_by_group(evaluation, "ece")).__name__
    'LayerChart'
    """
    check_choice(metric, "metric", tuple(METRICS))
    table, title = GROUPINGS[check_choice(by, "by", tuple(GROUPINGS))]
    names = methods_of(evaluation, methods)
    rows = filled(evaluation, table, names, metric=metric)
    alt, chart = altair(), base(rows, f"{metric} by {by}")
    drawn = [name for name in names if any(row["method"] == name for row in rows)]
    return style.error_lines(
        chart,
        style.group_axis(title),
        METRICS[metric],
        style.method_colour(evaluation, drawn),
        alt.XOffset("method:N", sort=drawn, scale=alt.Scale(paddingOuter=1)),
        shape=(alt.Shape("method:N", title="Method", scale=alt.Scale(domain=drawn)),),
        scale=alt.Scale(zero=metric not in ("accuracy", "confidence", "coverage")),
        tooltip=tips(("method:N", "Method"), *style.measured_tips(METRICS[metric])),
        size=55,
    )


@public_chart
def subgroup_bars(
    evaluation: Evaluation,
    metric: str = "accuracy",
    *,
    attribute: str | None = None,
    methods: Sequence[str] | str | None = None,
) -> Chart:
    """A metric by subgroup and method, with intervals (figure 4).

    {parameters}
    metric : str
        "accuracy", "ece" or another metric of the table.
    attribute : str, optional
        Which of the outputs' attributes; the first by default.
    {methods}

    {returns}
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(600, temperature=2.0)
    >>> outputs = aty.ModelOutputs(world.logits, labels=world.labels, attributes={"age": world.embeddings[:, 0]})
    >>> evaluation = aty.evaluate({"model": world.probs}, outputs)
    >>> type(subgroup_bars(evaluation, "ece", attribute="age")).__name__
    'FacetChart'
    """
    check_choice(metric, "metric", tuple(METRICS))
    known = tuple(dict.fromkeys(evaluation.tables["subgroups"]["attribute"]))
    chosen = (known[0] if known else "") if attribute is None else check_choice(attribute, "attribute", known)
    names = methods_of(evaluation, methods)
    rows = filled(evaluation, "subgroups", names, attribute=chosen, metric=metric)
    alt, chart = altair(), base(rows, "subgroups")
    x = alt.X("method:N", title=None, sort=list(names), axis=alt.Axis(labels=False, ticks=False))
    y, colour = alt.Y("value:Q", title=METRICS[metric]), style.method_colour(evaluation, names)
    tip = tips(("subgroup:N", chosen), ("method:N", "Method"), ("value:Q", METRICS[metric], ".4f"), SAMPLES)
    bars = chart.mark_bar().encode(x, y, colour, tooltip=tip)
    whiskers = chart.mark_rule(strokeWidth=1.5).encode(x, *style.interval_of(METRICS[metric]))
    return (bars + whiskers).properties(width=26 * len(names)).facet(alt.Column("subgroup:N", title=chosen))


@public_chart
def reliability_diagram(evaluation: Evaluation, *, methods: Sequence[str] | str | None = None) -> Chart:
    """Accuracy against mean confidence by bin, with intervals, one diagram for each method.

    {parameters}
    {methods}

    {returns}
    {evaluation}
    >>> type(reliability_diagram(evaluation)).__name__
    'FacetChart'
    """
    names = methods_of(evaluation, methods)
    accuracy = filled(evaluation, "calibration_curve", names, metric="accuracy")
    confidence = filled(evaluation, "calibration_curve", names, metric="confidence")
    rows = [row | {"confidence": other["value"]} for row, other in zip(accuracy, confidence, strict=True)]
    alt, chart = altair(), base(rows, "the reliability diagram", size=(230, 230))
    x = alt.X("confidence:Q", title="Mean confidence", scale=alt.Scale(domain=[0, 1]))
    honest = chart.mark_rule(strokeDash=[5, 4], color="#777").encode(
        x=alt.datum(0), y=alt.datum(0), x2=alt.datum(1), y2=alt.datum(1)
    )
    layers = style.error_lines(
        chart,
        x,
        "Accuracy",
        style.method_colour(evaluation, names, title=None, legend=None),
        scale=alt.Scale(domain=[0, 1]),
        tooltip=tips(("confidence:Q", "Mean confidence", ".3f"), ("value:Q", "Accuracy", ".3f"), SAMPLES),
        size=50,
        below=honest,
    )
    return layers.facet(alt.Column("method:N", title=None, sort=list(names)))


@public_chart
def risk_coverage(evaluation: Evaluation, *, methods: Sequence[str] | str | None = None) -> Chart:
    """Share of errors among the most confident predictions against how many are kept, with interval bands.

    {parameters}
    {methods}

    {returns}
    {evaluation}
    >>> type(risk_coverage(evaluation)).__name__
    'LayerChart'
    """
    names = methods_of(evaluation, methods)
    rows = filled(evaluation, "risk_coverage", names, metric="risk")
    alt, chart = altair(), base(rows, "risk and coverage")
    x = alt.X("percent:Q", title="Predictions kept, the most confident first (percent)")
    colour, title = style.method_colour(evaluation, names), "Share of the kept that are wrong"
    shown = ("method:N", "Method"), ("percent:Q", "Percent kept"), ("value:Q", "Share wrong", ".4f")
    tip = tips(*shown, SAMPLES)
    band = chart.mark_area(opacity=0.18).encode(x, *style.interval_of(title), colour)
    return band + chart.mark_line().encode(x, alt.Y("value:Q", title=title), colour, tooltip=tip)


@public_chart
def monitor_history(monitor: Any, stream: str = "atypicality", *, rolling: int = 1) -> Chart:
    """Shares of one stream of a monitor over time, with their intervals, beside the shaded band of the reference.

    Parameters
    ----------
    monitor : Monitor
    stream : str, default="atypicality"
        Also "confidence", "class", "error", "miss", "input", or the name of a field of words.
    rolling : int, default=1
        Windows that are taken together.

    {returns}
    >>> from atypicality.datasets import load_fashion_mnist
    >>> from atypicality.head import ReliabilityHead
    >>> from atypicality.monitoring import Monitor
    >>> train, calibration, test = load_fashion_mnist()
    >>> monitor = Monitor(ReliabilityHead().fit(train=train[:1000], calibration=calibration[:500]))
    >>> alarms = monitor.add(test[:200], at=0)
    >>> type(monitor_history(monitor, "error")).__name__
    'FacetChart'
    """
    alt = altair()
    rows = [row for row in monitor.history(rolling=rolling) if row["stream"] == stream]
    chart = base(rows, f"the stream {stream!r}", size=(260, 120), of="monitor")
    x = alt.X("window:T", title="Window")
    shown = tips(("window:T", "Window"), ("share:Q", "Share", ".4f"), ("rows:Q", "Rows", ",.0f"))
    band = chart.mark_area(color=PALETTE[-1], opacity=0.3).encode(
        x, alt.Y("reference_low:Q", title="Share"), alt.Y2("reference_high:Q")
    )
    bars = chart.mark_rule(color=PALETTE[0]).encode(x, *style.interval_of("Share"))
    marks = chart.mark_line(point=True, color=PALETTE[0]).encode(x, alt.Y("share:Q", title="Share"), tooltip=shown)
    layers = alt.layer(band, bars, marks, data=chart.data)
    return layers.facet(facet=alt.Facet("item:N", title=None), columns=3)
