"""What all charts share: colours, words for metrics, and rows of a table as Altair's data."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from atypicality.evaluation import Evaluation
from atypicality.validation import check_choice, require

__all__ = [
    "GROUPINGS", "METRICS", "PALETTE", "RARITY", "SAMPLES", "Chart", "altair", "atypicality_axis", "base",
    "error_lines", "filled", "group_axis", "interval_of", "measured_tips", "method_colour", "methods_of", "scale_of",
    "tips",
]  # fmt: skip

Chart: TypeAlias = Any  # an Altair chart. Altair is optional, so its own types are not named in signatures.

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito's colours, darker ones first."""

METRICS = {
    "accuracy": "Accuracy",
    "confidence": "Mean confidence",
    "overconfidence": "Confidence minus accuracy",
    "ece": "Expected calibration error",
    "rmsce": "Root mean square calibration error",
    "nll": "Log loss",
    "brier": "Brier score",
    "coverage": "Coverage of prediction sets",
    "set_size": "Mean size of prediction sets",
}

GROUPINGS = {
    "atypicality": ("atypicality_groups", "Input atypicality group (1 = most typical)"),
    "confidence": ("confidence_groups", "Confidence group (1 = least confident)"),
    "class": ("class_groups", "Class atypicality group (1 = most common)"),
}
RARITY = "Input atypicality (right = rarer)"
SAMPLES = ("count:Q", "Samples", ",.0f")  # for `tips`: the count of a row


def altair() -> Any:
    """The package, or an error that says how to install it."""
    return require("altair", extra="charts", feature="atypicality.charts")


def base(
    rows: Iterable[dict[str, Any]], what: str, *, size: tuple[int, int] | None = (360, 260), of: str = "evaluation"
) -> Chart:
    """A chart of these rows, NaN and infinity as null; no rows are an error that says what is missing `of` what."""
    values = [
        {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
        for row in rows
    ]
    if not values:
        why = ": its notes say why a table is empty" if of == "evaluation" else ""
        raise ValueError(f"{of} has no rows for {what}{why}.")
    alt = altair()
    with alt.utils.schemapi.debug_mode(False):  # nothing but JSON: to check each value takes longer than to draw it
        data = alt.Data(values=tuple(values))  # which charts made of this one share: Altair copies lists
    chart = alt.Chart(data)
    return chart if size is None else chart.properties(width=size[0], height=size[1])


def filled(evaluation: Evaluation, table: str, methods: Sequence[str], **where: Any) -> list[dict[str, Any]]:
    """Rows of a table that have samples, with groups counted from 1, in the order of the methods."""
    rows = [row for method in methods for row in evaluation.table(table, method=method, **where) if row["count"] > 0]
    numbered = ("group", "confidence_group", "bin")
    return [{key: value + 1 if key in numbered else value for key, value in row.items()} for row in rows]


def methods_of(evaluation: Evaluation, methods: Sequence[str] | str | None) -> tuple[str, ...]:
    """The methods to draw, checked; None means all."""
    if methods is None:
        return evaluation.methods
    chosen = (methods,) if isinstance(methods, str) else tuple(methods)
    for method in chosen:
        check_choice(method, "methods", evaluation.methods)
    return chosen


def scale_of(names: Sequence[str], among: Sequence[str] | None = None) -> Any:
    """Colours by place `among` all names, so that a method keeps its colour where others are left out."""
    everything = list(names if among is None else among)
    colours = [PALETTE[everything.index(name) % len(PALETTE)] for name in names]
    return altair().Scale(domain=list(names), range=colours)


def method_colour(evaluation: Evaluation, names: Sequence[str], **options: Any) -> Any:
    """The colours of methods, with a legend."""
    return altair().Color("method:N", scale=scale_of(names, evaluation.methods), **({"title": "Method"} | options))


def group_axis(title: str = GROUPINGS["atypicality"][1]) -> Any:
    """Groups along x, counted from 1."""
    alt = altair()
    return alt.X("group:O", title=title, axis=alt.Axis(labelAngle=0))


def atypicality_axis(title: str = RARITY) -> Any:
    """Atypicality along x, over its own range."""
    alt = altair()
    return alt.X("atypicality:Q", title=title, scale=alt.Scale(zero=False))


def tips(*shown: tuple[str, ...]) -> list[Any]:
    """What hovering shows: for each number or name its field, its title, and a format where it has one."""
    alt = altair()
    return [alt.Tooltip(field, title=title, format=form[0] if form else alt.Undefined) for field, title, *form in shown]


def measured_tips(title: str, form: str = ".4f") -> tuple[tuple[str, ...], ...]:
    """For `tips`: the value of a measured row, its interval and its count."""
    return ("value:Q", title, form), ("low:Q", "Interval from", form), ("high:Q", "Interval to", form), SAMPLES


def error_lines(
    chart: Chart,
    x: Any,
    title: str,
    *channels: Any,
    tooltip: list[Any],
    size: int,
    scale: Any = None,
    shape: tuple[Any, ...] = (),
    below: Chart = None,
    **mark: Any,
) -> Chart:
    """Lines with marks and intervals of `value` over `x`, each with its own `channels`; `below` is drawn first."""
    alt = altair()
    y = alt.Y("value:Q", title=title, scale=alt.Undefined if scale is None else scale)
    lines = chart.mark_line(**mark).encode(x, y, *channels)
    bars = chart.mark_rule(strokeWidth=1.5, **mark).encode(x, *interval_of(title), *channels)
    marks = chart.mark_point(filled=True, size=size, opacity=1, **mark).encode(x, y, *channels, *shape, tooltip=tooltip)
    return (lines if below is None else below + lines) + bars + marks


def above_targets(chart: Chart, evaluation: Evaluation) -> Chart:
    """The chart with dashed lines below it at the target coverages, where there are any."""
    alt, alphas = altair(), evaluation.settings["alpha"].values()
    levels = [{"target": level} for level in sorted({1 - alpha for alpha in alphas if alpha is not None})]
    rule = alt.Chart(alt.Data(values=levels)).mark_rule(strokeDash=[5, 4], color="#555")
    y = alt.Y("target:Q", title=METRICS["coverage"])
    return rule.encode(y, tooltip=tips(("target:Q", "Target"))) + chart if levels else chart


def interval_of(title: str) -> tuple[Any, Any]:
    """From the lower to the upper end of an interval along y."""
    alt = altair()
    return alt.Y("low:Q", title=title), alt.Y2("high:Q")
