"""Charts of the two theorems, from the results of `atypicality.paper.theory`."""

from collections.abc import Sequence
from typing import Any

from atypicality.charts import style
from atypicality.charts.saving import public_chart
from atypicality.charts.style import PALETTE, Chart, altair, base, tips

__all__ = ["theorem_1_curves", "theorem_2_curves"]

_DRAWS = ("draws:Q", "Training draws")
_ERRORS = {
    "error_uncalibrated": "uncalibrated",
    "error_single_squared": "one temperature",
    "error_aware_squared": "temperature by atypicality",
}


@public_chart
def theorem_1_curves(result: Any) -> Chart:
    """Overconfidence by group of atypicality, one curve for each number of training rows, two standard errors wide.

    Parameters
    ----------
    result : Theorem1
        From `atypicality.paper.theory.theorem_1`.

    {returns}
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
    title = "Confidence minus accuracy"
    return style.error_lines(
        base(rows, "theorem 1"),
        style.group_axis(),
        title,
        altair().Color("train:N", title="Training rows", scale=style.scale_of(names)),
        tooltip=tips(("train:N", "Training rows"), ("value:Q", title, ".4f"), _DRAWS),
        size=50,
    )


@public_chart
def theorem_2_curves(results: Any) -> Chart:
    """Calibration error by confidence level: no temperature, one for all, and one that follows atypicality.

    Temperatures are those that minimise the squared error, the paper's setting.

    Parameters
    ----------
    results : Theorem2 or sequence of Theorem2
        From `atypicality.paper.theory.theorem_2`; several are drawn side by side.

    {returns}
    >>> from atypicality.paper.theory import theorem_2
    >>> type(theorem_2_curves(theorem_2(n_draws=10))).__name__
    'HConcatChart'
    """
    shown = list(results) if isinstance(results, Sequence) else [results]
    return altair().hconcat(*(_errors(result) for result in shown))


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
    alt, names = altair(), list(_ERRORS.values())
    chart = base(rows, "theorem 2").properties(title=f"True coefficients of norm {result.norm:g}")
    y = alt.Y(
        "error:Q",
        title="Mean squared calibration error",
        scale=alt.Scale(type="log"),
        axis=alt.Axis(format="~e", tickCount=5),
    )
    colour = alt.Color("temperature:N", title="Temperature", scale=alt.Scale(domain=names, range=list(PALETTE[:3])))
    tip = tips(("level:Q", "Level"), ("temperature:N", "Temperature"), ("error:Q", "Error", ".3g"), _DRAWS)
    channels = (style.atypicality_axis(), y, colour)
    marks = chart.mark_point(filled=True, size=45, opacity=1).encode(*channels, tooltip=tip)
    return chart.mark_line().encode(*channels) + marks
