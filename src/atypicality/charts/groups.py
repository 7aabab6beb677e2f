"""Charts of measured groups: grids, quality and coverage by group, subgroups, reliability and risk-coverage."""

from collections.abc import Mapping, Sequence
from typing import Any

from atypicality.charts.saving import saved_safely
from atypicality.charts.style import GROUPINGS, METRICS, Chart, altair, base, error_lines, filled, methods_of, scale_of
from atypicality.evaluation import Evaluation
from atypicality.validation import check_choice

__all__ = [
    "confidence_grid",
    "coverage_at_levels",
    "coverage_by_group",
    "quality_by_group",
    "reliability_diagram",
    "risk_coverage",
    "subgroup_bars",
]

_GRID_METRICS = ("accuracy", "confidence", "overconfidence", "coverage", "set_size")
_SETS = ("coverage", "set_size")


@saved_safely
def confidence_grid(
    evaluation: Evaluation,
    metric: str = "overconfidence",
    *,
    by: str = "atypicality",
    methods: Sequence[str] | str | None = None,
) -> Chart:
    """One metric over groups of confidence and of atypicality (figures 2a and 6), one grid for each method.

    Parameters
    ----------
    evaluation : Evaluation
    metric : {"accuracy", "confidence", "overconfidence", "coverage", "set_size"}
    by : {"atypicality", "class"}
        Input or class atypicality.
    methods : str or sequence of str, optional
        All by default.

    Returns
    -------
    altair chart

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(600, temperature=2.0)
    >>> density = aty.GaussianAtypicality().fit(world.embeddings, world.labels)
    >>> evaluation = aty.evaluate({"model": world.probs}, world.outputs(), train=density)
    >>> type(confidence_grid(evaluation, "accuracy")).__name__
    'FacetChart'
    """
    check_choice(metric, "metric", _GRID_METRICS)
    table = {"atypicality": "grid", "class": "class_grid"}[check_choice(by, "by", ("atypicality", "class"))]
    title = GROUPINGS[by][1]
    names = methods_of(evaluation, methods)
    rows = filled(evaluation, table, names, metric=metric)
    alt, chart = altair(), base(rows, f"the grid of {metric}")
    x = alt.X("group:O", title=title, axis=alt.Axis(labelAngle=0))
    y = alt.Y("confidence_group:O", title="Confidence group (1 = least confident)", sort="descending")
    colour = alt.Color("value:Q", title=METRICS[metric], scale=_grid_scale(metric, rows))
    tip = [
        alt.Tooltip("group:O", title=title),
        alt.Tooltip("confidence_group:O", title="Confidence group"),
        alt.Tooltip("value:Q", title=METRICS[metric], format=".3f"),
        alt.Tooltip("low:Q", title="Interval from", format=".3f"),
        alt.Tooltip("high:Q", title="Interval to", format=".3f"),
        alt.Tooltip("count:Q", title="Samples", format=",.0f"),
    ]
    cells = chart.mark_rect().encode(x, y, colour, tooltip=tip)
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


@saved_safely
def quality_by_group(
    evaluation: Evaluation,
    metric: str = "ece",
    *,
    by: str = "atypicality",
    methods: Sequence[str] | str | None = None,
) -> Chart:
    """A metric by group for each method, with intervals (figures 2b, 3 and 7).

    Parameters
    ----------
    evaluation : Evaluation
    metric : str
        "ece", "accuracy" or another metric of the table.
    by : {"atypicality", "confidence", "class"}
    methods : str or sequence of str, optional

    Returns
    -------
    altair chart

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(600, temperature=2.0)
    >>> density = aty.GaussianAtypicality().fit(world.embeddings, world.labels)
    >>> evaluation = aty.evaluate({"model": world.probs}, world.outputs(), train=density)
    >>> type(quality_by_group(evaluation, "ece")).__name__
    'LayerChart'
    """
    check_choice(metric, "metric", tuple(METRICS))
    table, title = GROUPINGS[check_choice(by, "by", tuple(GROUPINGS))]
    names = methods_of(evaluation, methods)
    rows = filled(evaluation, table, names, metric=metric)
    alt, chart = altair(), base(rows, f"{metric} by {by}")
    drawn = [name for name in names if any(row["method"] == name for row in rows)]
    x = alt.X("group:O", title=title, axis=alt.Axis(labelAngle=0))
    return error_lines(
        chart,
        x,
        METRICS[metric],
        scale_of(drawn, evaluation.methods),
        zero=metric not in ("accuracy", "confidence", "coverage"),
    )


@saved_safely
def coverage_by_group(
    evaluation: Evaluation,
    metric: str = "coverage",
    *,
    by: str = "atypicality",
    methods: Sequence[str] | str | None = None,
) -> Chart:
    """Coverage or size of prediction sets along one axis, with the promised coverage dashed (figures 5, 8 and 9).

    Parameters
    ----------
    evaluation : Evaluation
    metric : {"coverage", "set_size"}
    by : {"atypicality", "confidence", "class"}
    methods : str or sequence of str, optional
        All by default.

    Returns
    -------
    altair chart

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(600, temperature=2.0)
    >>> density = aty.GaussianAtypicality().fit(world.embeddings, world.labels)
    >>> evaluation = aty.evaluate({"model": (world.probs, world.probs > 0.1)}, world.outputs(), train=density)
    >>> type(coverage_by_group(evaluation, "set_size")).__name__
    'LayerChart'
    """
    check_choice(metric, "metric", _SETS)
    chart = quality_by_group(evaluation, metric, by=by, methods=methods)
    targets = sorted({1 - alpha for alpha in evaluation.settings["alpha"].values() if alpha is not None})
    return chart + _target(targets) if metric == "coverage" and targets else chart


def _target(targets: list[float]) -> Any:
    alt = altair()
    rule = alt.Chart(alt.Data(values=[{"target": target} for target in targets]))
    return rule.mark_rule(strokeDash=[5, 4], color="#555").encode(
        alt.Y("target:Q", title=METRICS["coverage"]), tooltip=[alt.Tooltip("target:Q", title="Asked for")]
    )


@saved_safely
def coverage_at_levels(
    evaluations: Mapping[float, Evaluation], metric: str = "coverage", *, by: str = "atypicality"
) -> Chart:
    """`coverage_by_group` at several alphas, side by side.

    Parameters
    ----------
    evaluations : mapping of alpha to Evaluation
    metric : {"coverage", "set_size"}
    by : {"atypicality", "confidence", "class"}

    Returns
    -------
    altair chart

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(600, temperature=2.0)
    >>> density = aty.GaussianAtypicality().fit(world.embeddings, world.labels)
    >>> evaluation = aty.evaluate({"model": (world.probs, world.probs > 0.1)}, world.outputs(), train=density)
    >>> type(coverage_at_levels({0.1: evaluation})).__name__
    'HConcatChart'
    """
    if not evaluations:
        raise ValueError("evaluations must hold at least one evaluation, keyed by alpha.")
    charts = [
        coverage_by_group(evaluation, metric, by=by).properties(title=f"{1 - alpha:.4g} asked for", width=220)
        for alpha, evaluation in sorted(evaluations.items())
    ]
    return altair().hconcat(*charts)


@saved_safely
def subgroup_bars(
    evaluation: Evaluation,
    metric: str = "accuracy",
    *,
    attribute: str | None = None,
    methods: Sequence[str] | str | None = None,
) -> Chart:
    """A metric by subgroup and method, with intervals (figure 4).

    Parameters
    ----------
    evaluation : Evaluation
    metric : str
        "accuracy", "ece" or another metric of the table.
    attribute : str, optional
        Which of the outputs' attributes; the first by default.
    methods : str or sequence of str, optional
        All by default.

    Returns
    -------
    altair chart

    Examples
    --------
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
    tip = [
        alt.Tooltip("subgroup:N", title=chosen),
        alt.Tooltip("method:N", title="Method"),
        alt.Tooltip("value:Q", title=METRICS[metric], format=".4f"),
        alt.Tooltip("count:Q", title="Samples", format=",.0f"),
    ]
    bars = chart.mark_bar().encode(
        x,
        alt.Y("value:Q", title=METRICS[metric]),
        alt.Color("method:N", title="Method", scale=scale_of(names, evaluation.methods)),
        tooltip=tip,
    )
    whiskers = chart.mark_rule(strokeWidth=1.5).encode(x, alt.Y("low:Q", title=METRICS[metric]), alt.Y2("high:Q"))
    return (bars + whiskers).properties(width=26 * len(names)).facet(alt.Column("subgroup:N", title=chosen))


@saved_safely
def reliability_diagram(evaluation: Evaluation, *, methods: Sequence[str] | str | None = None) -> Chart:
    """Accuracy against mean confidence by bin, with intervals, one diagram for each method.

    Parameters
    ----------
    evaluation : Evaluation
    methods : str or sequence of str, optional
        All by default.

    Returns
    -------
    altair chart

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(600, temperature=2.0)
    >>> density = aty.GaussianAtypicality().fit(world.embeddings, world.labels)
    >>> evaluation = aty.evaluate({"model": world.probs}, world.outputs(), train=density)
    >>> type(reliability_diagram(evaluation)).__name__
    'FacetChart'
    """
    names = methods_of(evaluation, methods)
    accuracy = filled(evaluation, "calibration_curve", names, metric="accuracy")
    confidence = filled(evaluation, "calibration_curve", names, metric="confidence")
    rows = [row | {"confidence": other["value"]} for row, other in zip(accuracy, confidence, strict=True)]
    alt, chart = altair(), base(rows, "the reliability diagram", size=(230, 230))
    x = alt.X("confidence:Q", title="Mean confidence", scale=alt.Scale(domain=[0, 1]))
    y = alt.Y("value:Q", title="Accuracy", scale=alt.Scale(domain=[0, 1]))
    tip = [
        alt.Tooltip("confidence:Q", title="Mean confidence", format=".3f"),
        alt.Tooltip("value:Q", title="Accuracy", format=".3f"),
        alt.Tooltip("count:Q", title="Samples", format=",.0f"),
    ]
    colour = alt.Color("method:N", title=None, scale=scale_of(names, evaluation.methods), legend=None)
    honest = chart.mark_rule(strokeDash=[5, 4], color="#777").encode(
        x=alt.datum(0), y=alt.datum(0), x2=alt.datum(1), y2=alt.datum(1)
    )
    bars = chart.mark_rule(strokeWidth=1.5).encode(x, alt.Y("low:Q", title="Accuracy"), alt.Y2("high:Q"), colour)
    marks = chart.mark_point(filled=True, size=50, opacity=1).encode(x, y, colour, tooltip=tip)
    layers = honest + chart.mark_line().encode(x, y, colour) + bars + marks
    return layers.facet(alt.Column("method:N", title=None, sort=list(names)))


@saved_safely
def risk_coverage(evaluation: Evaluation, *, methods: Sequence[str] | str | None = None) -> Chart:
    """Share of errors among the surest predictions against how many are kept, with interval bands.

    Parameters
    ----------
    evaluation : Evaluation
    methods : str or sequence of str, optional
        All by default.

    Returns
    -------
    altair chart

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(600, temperature=2.0)
    >>> density = aty.GaussianAtypicality().fit(world.embeddings, world.labels)
    >>> evaluation = aty.evaluate({"model": world.probs}, world.outputs(), train=density)
    >>> type(risk_coverage(evaluation)).__name__
    'LayerChart'
    """
    names = methods_of(evaluation, methods)
    rows = filled(evaluation, "risk_coverage", names, metric="risk")
    alt, chart = altair(), base(rows, "risk and coverage")
    x = alt.X("percent:Q", title="Predictions kept, the surest first (percent)")
    colour = alt.Color("method:N", title="Method", scale=scale_of(names, evaluation.methods))
    title = "Share of the kept that are wrong"
    tip = [
        alt.Tooltip("method:N", title="Method"),
        alt.Tooltip("percent:Q", title="Percent kept"),
        alt.Tooltip("value:Q", title="Share wrong", format=".4f"),
        alt.Tooltip("count:Q", title="Samples", format=",.0f"),
    ]
    band = chart.mark_area(opacity=0.18).encode(x, alt.Y("low:Q", title=title), alt.Y2("high:Q"), colour)
    return band + chart.mark_line().encode(x, alt.Y("value:Q", title=title), colour, tooltip=tip)
