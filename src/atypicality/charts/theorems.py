"""Charts of the two theorems, from the results of `atypicality.paper.theory`."""

from collections.abc import Sequence
from typing import Any

from atypicality.charts.saving import saved_safely
from atypicality.charts.style import PALETTE, Chart, altair, base, scale_of

__all__ = ["theorem_1_curves", "theorem_2_curves"]


@saved_safely
def theorem_1_curves(result: Any) -> Chart:
    """Overconfidence by group of atypicality, one curve for each number of training rows, two standard errors wide.

    Parameters
    ----------
    result : Theorem1
        From `atypicality.paper.theory.theorem_1`.

    Returns
    -------
    altair chart

    Examples
    --------
    >>> from atypicality.paper.theory import theorem_1
    >>> type(theorem_1_curves(theorem_1(500, n_draws=10))).__name__
    'LayerChart'
    """
    rows = [
        {
            "group": group + 1,
            "value": value,
            "low": value - 2 * error,
            "high": value + 2 * error,
            "train": f"{row.n_train:,}",
            "draws": result.n_draws,
        }
        for row in result.rows
        for group, (value, error) in enumerate(zip(row.overconfidence, row.standard_error, strict=True))
    ]
    names = list(dict.fromkeys(str(row["train"]) for row in rows))
    alt, chart = altair(), base(rows, "theorem 1")
    title = "Confidence minus accuracy"
    x = alt.X("group:O", title="Input atypicality group (1 = most typical)", axis=alt.Axis(labelAngle=0))
    colour = alt.Color("train:N", title="Training rows", scale=scale_of(names))
    y = alt.Y("value:Q", title=title)
    tip = [
        alt.Tooltip("train:N", title="Training rows"),
        alt.Tooltip("value:Q", title=title, format=".4f"),
        alt.Tooltip("draws:Q", title="Training draws"),
    ]
    bars = chart.mark_rule(strokeWidth=1.5).encode(x, alt.Y("low:Q", title=title), alt.Y2("high:Q"), colour)
    marks = chart.mark_point(filled=True, size=50, opacity=1).encode(x, y, colour, tooltip=tip)
    return chart.mark_line().encode(x, y, colour) + bars + marks


_ERRORS = {
    "error_uncalibrated": "uncalibrated",
    "error_single_squared": "one temperature",
    "error_aware_squared": "temperature by atypicality",
}


@saved_safely
def theorem_2_curves(results: Any) -> Chart:
    """Calibration error by confidence level: no temperature, one for all, and one that follows atypicality.

    Temperatures are those that minimise the squared error, the paper's setting.

    Parameters
    ----------
    results : Theorem2 or sequence of Theorem2
        From `atypicality.paper.theory.theorem_2`; several are drawn side by side.

    Returns
    -------
    altair chart

    Examples
    --------
    >>> from atypicality.paper.theory import theorem_2
    >>> type(theorem_2_curves(theorem_2(n_draws=10))).__name__
    'HConcatChart'
    """
    shown = list(results) if isinstance(results, Sequence) else [results]
    alt = altair()
    return alt.hconcat(*(_errors(result) for result in shown))


def _errors(result: Any) -> Chart:
    rows = [
        {
            "level": row.level,
            "atypicality": row.atypicality,
            "error": getattr(row, name),
            "temperature": words,
            "draws": result.n_draws,
        }
        for row in result.rows
        for name, words in _ERRORS.items()
    ]
    alt = altair()
    chart = base(rows, "theorem 2").properties(title=f"True coefficients of norm {result.norm:g}")
    names = list(_ERRORS.values())
    x = alt.X("atypicality:Q", title="Input atypicality (right = rarer)", scale=alt.Scale(zero=False))
    y = alt.Y(
        "error:Q",
        title="Mean squared calibration error",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~e", tickCount=5),
    )
    colour = alt.Color("temperature:N", title="Temperature", scale=alt.Scale(domain=names, range=list(PALETTE[:3])))
    tip = [
        alt.Tooltip("level:Q", title="Level"),
        alt.Tooltip("temperature:N", title="Temperature"),
        alt.Tooltip("error:Q", title="Error", format=".3g"),
        alt.Tooltip("draws:Q", title="Training draws"),
    ]
    marks = chart.mark_point(filled=True, size=45, opacity=1).encode(x, y, colour, tooltip=tip)
    return chart.mark_line().encode(x, y, colour) + marks
