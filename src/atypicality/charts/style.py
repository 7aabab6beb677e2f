"""What all charts share: colours, words for metrics, and rows of a table as Altair's data."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from atypicality.evaluation import Evaluation
from atypicality.validation import check_choice, require

__all__ = [
    "GROUPINGS",
    "METRICS",
    "PALETTE",
    "Chart",
    "altair",
    "base",
    "error_lines",
    "filled",
    "methods_of",
    "scale_of",
]

Chart: TypeAlias = Any
"""An Altair chart. Altair is optional, so its own types are not named in signatures."""

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


def altair() -> Any:
    """The package, or an error that says how to install it."""
    return require("altair", extra="report", feature="atypicality.charts")


def base(rows: Iterable[dict[str, Any]], what: str, *, size: tuple[int, int] | None = (360, 260)) -> Chart:
    """A chart of these rows, NaN and infinity as null; no rows are an error that says what is missing."""
    values = [{key: _plain(value) for key, value in row.items()} for row in rows]
    if not values:
        raise ValueError(f"evaluation has no rows for {what}: its notes say why a table is empty.")
    alt = altair()
    chart = alt.Chart(alt.Data(values=values))
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


def error_lines(chart: Any, x: Any, title: str, scale: Any, *, zero: bool = False) -> Any:
    """Lines with marks and intervals, one colour and shape for each method; counts on hover."""
    alt = altair()
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=zero))
    colour = alt.Color("method:N", title="Method", scale=scale)
    shift = alt.XOffset("method:N", sort=scale.domain, scale=alt.Scale(paddingOuter=1))
    tip = [
        alt.Tooltip("method:N", title="Method"),
        alt.Tooltip("value:Q", title=title, format=".4f"),
        alt.Tooltip("low:Q", title="Interval from", format=".4f"),
        alt.Tooltip("high:Q", title="Interval to", format=".4f"),
        alt.Tooltip("count:Q", title="Samples", format=",.0f"),
    ]
    bars = chart.mark_rule(strokeWidth=1.5).encode(x, alt.Y("low:Q", title=title), alt.Y2("high:Q"), colour, shift)
    lines = chart.mark_line().encode(x, y, colour, shift)
    marks = chart.mark_point(filled=True, size=55, opacity=1).encode(
        x, y, colour, shift, alt.Shape("method:N", title="Method", scale=alt.Scale(domain=scale.domain)), tooltip=tip
    )
    return lines + bars + marks


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
