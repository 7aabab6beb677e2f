"""Charts of prediction sets: coverage by group, target, achieved coverage and size in one picture, the Pareto curve."""

from collections.abc import Mapping, Sequence
from typing import Any

from atypicality.charts import style
from atypicality.charts.groups import quality_by_group
from atypicality.charts.saving import public_chart
from atypicality.charts.style import METRICS, Chart, altair, base, filled, methods_of, tips
from atypicality.evaluation import Evaluation
from atypicality.metrics import ParetoCurve
from atypicality.validation import check_choice

__all__ = ["coverage_against_size", "coverage_at_levels", "coverage_by_group", "pareto_curves"]

COVERED = {
    "coverage": "all inputs",
    "worst_sixth_coverage": "worst sixth of atypicality",
    "worst_cell_coverage": "worst of 3 x 3 cells",
}


@public_chart
def coverage_by_group(
    evaluation: Evaluation,
    metric: str = "coverage",
    *,
    by: str = "atypicality",
    methods: Sequence[str] | str | None = None,
) -> Chart:
    """Coverage or size of prediction sets along one axis, with the target coverage dashed (figures 5, 8 and 9).

    {parameters}
    metric : {"coverage", "set_size"}
    by : {"atypicality", "confidence", "class"}
    {methods}

    {returns}
    {evaluation}
    >>> type(coverage_by_group(evaluation, "set_size")).__name__
    'LayerChart'
    """
    check_choice(metric, "metric", ("coverage", "set_size"))
    chart = quality_by_group(evaluation, metric, by=by, methods=methods)
    return style.above_targets(chart, evaluation) if metric == "coverage" else chart


@public_chart
def coverage_at_levels(
    evaluations: Mapping[float, Evaluation], metric: str = "coverage", *, by: str = "atypicality"
) -> Chart:
    """`coverage_by_group` at several alphas, side by side.

    Parameters
    ----------
    evaluations : mapping of alpha to Evaluation
    metric : {"coverage", "set_size"}
    by : {"atypicality", "confidence", "class"}

    {returns}
    {evaluation}
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


@public_chart
def coverage_against_size(evaluation: Evaluation, *, methods: Sequence[str] | str | None = None) -> Chart:
    """Coverage of all inputs and of the worst groups against mean set size, with the target dashed.

    {parameters}
    methods : str or sequence of str, optional
        All with prediction sets by default.

    {returns}
    {evaluation}
    >>> type(coverage_against_size(evaluation)).__name__
    'LayerChart'
    """
    names = methods_of(evaluation, methods)
    size = {row["method"]: row["value"] for row in filled(evaluation, "overall", names, metric="set_size")}
    rows = [
        row | {"size": size[row["method"]], "whose": words}
        for metric, words in COVERED.items()
        for row in filled(evaluation, "overall", names, metric=metric)
    ]
    drawn = [name for name in names if name in size]
    alt, chart = altair(), base(rows, "coverage and size of prediction sets")
    x = alt.X("size:Q", title=METRICS["set_size"], scale=alt.Scale(zero=False, padding=20))
    y = alt.Y("value:Q", title=METRICS["coverage"], scale=alt.Scale(zero=False))
    colour = style.method_colour(evaluation, drawn)
    shape = alt.Shape("whose:N", title="Coverage of", scale=alt.Scale(domain=list(COVERED.values())))
    tip = tips(("method:N", "Method"), ("whose:N", "Coverage of"), *style.measured_tips(METRICS["coverage"]))
    bars = chart.mark_rule(strokeWidth=1.5, opacity=0.4).encode(x, *style.interval_of(METRICS["coverage"]), colour)
    lines = chart.mark_line(opacity=0.6).encode(x, y, colour)
    marks = chart.mark_point(filled=True, size=70, opacity=1).encode(x, y, colour, shape, tooltip=tip)
    return style.above_targets(bars + lines + marks, evaluation)


@public_chart
def pareto_curves(curves: Mapping[str, ParetoCurve]) -> Chart:
    """Mean set size against the coverage of the worst group as alpha moves, one curve for each method.

    Parameters
    ----------
    curves : mapping of str to ParetoCurve
        From `atypicality.metrics.pareto_curve`, by the name of the method.

    {returns}
    >>> import numpy as np
    >>> from atypicality.metrics import pareto_curve
    >>> same = np.zeros(100, int)
    >>> curve = pareto_curve(lambda alpha: np.ones((100, 3), bool), same, same, alphas=(0.1,))
    >>> type(pareto_curves({"all classes": curve})).__name__
    'LayerChart'
    """
    rows: list[dict[str, Any]] = [row | {"method": name} for name, curve in curves.items() for row in curve.rows()]
    alt, chart = altair(), base(rows, "the Pareto curve")
    x = alt.X("size:Q", title=METRICS["set_size"], scale=alt.Scale(zero=False))
    worst = "Coverage of the worst group"
    y = alt.Y("worst:Q", title=worst, scale=alt.Scale(zero=False))
    colour = alt.Color("method:N", title="Method", scale=style.scale_of(list(curves)))
    numbers = ("size:Q", "Mean set size", ".3f"), ("worst:Q", "Worst group", ".3f"), ("coverage:Q", "Coverage", ".3f")
    tip = tips(("method:N", "Method"), ("alpha:Q", "alpha"), *numbers)
    lines = chart.mark_line().encode(x, y, colour, alt.Order("alpha:Q"))
    bars = chart.mark_rule(strokeWidth=1.5, opacity=0.4).encode(x, *style.interval_of(worst), colour)
    return bars + lines + chart.mark_point(filled=True, size=60, opacity=1).encode(x, y, colour, tooltip=tip)
