"""Charts of what was fitted: temperature by atypicality, the multiplier phi, class scores, and the two theorems."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from atypicality.charts import style
from atypicality.charts.saving import public_chart
from atypicality.charts.style import PALETTE, RARITY, SAMPLES, Chart, altair, base, methods_of, tips
from atypicality.evaluation import Evaluation
from atypicality.validation import check_vector

__all__ = ["class_scores", "multiplier", "temperatures", "theorem_1_curves", "theorem_2_curves"]

_DRAWS = ("draws:Q", "Training draws")
_ERRORS = {
    "error_uncalibrated": "uncalibrated",
    "error_single_squared": "one temperature",
    "error_aware_squared": "temperature by atypicality",
}


@public_chart
def temperatures(evaluation: Evaluation) -> Chart:
    """The temperature fitted to each group of input atypicality, with its interval (appendix figure).

    {parameters}

    {returns}
    {evaluation}
    >>> type(temperatures(evaluation)).__name__
    'LayerChart'
    """
    rows = [row | {"group": row["group"] + 1} for row in evaluation.table("temperatures") if row["count"] > 0]
    return style.error_lines(
        base(rows, "temperatures by group"),
        style.group_axis(),
        "Temperature fitted to the group",
        scale=altair().Scale(zero=False),
        tooltip=tips(("group:O", "Group"), *style.measured_tips("Temperature", ".3f")),
        size=60,
        color=PALETTE[0],
    )


@public_chart
def multiplier(recalibration: Any, atypicality: ArrayLike, *, n_points: int = 200) -> Chart:
    r"""What :math:`\phi` multiplies the logits by, over the range of these samples, the middle 90% of them shaded.

    Parameters
    ----------
    recalibration : AtypicalityAwareRecalibration
        Fitted, with atypicality among its covariates; margins are held at their mean.
    atypicality : array-like of shape (n,)
        Of the samples that it is meant for, such as the held-out ones.
    n_points : int, default=200

    {returns}
    >>> from atypicality.datasets import make_world
    >>> from atypicality.recalibration import AtypicalityAwareRecalibration
    >>> world = make_world(600, temperature=2.0)
    >>> aware = AtypicalityAwareRecalibration.paper().fit(world.logits, world.labels, atypicality=world.atypicality)
    >>> type(multiplier(aware, world.atypicality)).__name__
    'LayerChart'
    """
    values = check_vector(atypicality, "atypicality")
    low, high = np.quantile(values, [0.05, 0.95])
    places = np.linspace(values.min(), values.max(), n_points)
    curve = np.asarray(recalibration.multiplier(places), float)
    rows = [{"atypicality": float(a), "multiplier": float(phi)} for a, phi in zip(places, curve, strict=True)]
    alt, chart = altair(), base(rows, "the multiplier")
    shown = {"low": float(low), "high": float(high), "count": int(values.size)}
    tip = tips(
        ("low:Q", "5% of the samples are below", ".2f"),
        ("high:Q", "5% of the samples are above", ".2f"),
        ("count:Q", "Samples"),
    )
    band = base([shown], "the range", size=None).mark_rect(opacity=0.15, color=PALETTE[0])
    band = band.encode(alt.X("low:Q", title=RARITY), alt.X2("high:Q"), tooltip=tip)
    y = alt.Y("multiplier:Q", title="Multiplier of the logits (phi)", scale=alt.Scale(zero=False))
    return band + chart.mark_line(color=PALETTE[0]).encode(style.atypicality_axis(), y)


@public_chart
def class_scores(evaluation: Evaluation, *, method: str | None = None) -> Chart:
    """What a method adds to each class's logit, against the class's atypicality (appendix figure).

    {parameters}
    method : str, optional
        All that have class scores by default.

    {returns}
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(600, temperature=2.0)
    >>> scaling = aty.VectorScaling(scale=False).fit(world.logits, world.labels)
    >>> evaluation = aty.evaluate({"biases": scaling}, world.outputs(), train=world.outputs())
    >>> type(class_scores(evaluation, method="biases")).__name__
    'LayerChart'
    """
    chosen = methods_of(evaluation, method)
    info = {row["class_index"]: row for row in evaluation.table("class_info")}
    rows = [
        row | {"name": info[row["class_index"]]["name"], "atypicality": info[row["class_index"]]["class_atypicality"]}
        for row in evaluation.table("class_scores")
        if row["method"] in chosen
    ]
    names = [name for name in chosen if any(row["method"] == name for row in rows)]
    alt, chart = altair(), base(rows, "class scores")
    x = style.atypicality_axis("Class atypicality (right = rarer)")
    y = alt.Y("value:Q", title="Score added to the class's logit")
    scores = ("atypicality:Q", "Class atypicality", ".3f"), ("value:Q", "Score", ".3f")
    zero = chart.mark_rule(strokeDash=[5, 4], color="#777").encode(y=alt.datum(0))
    return zero + chart.mark_point(filled=True, size=70, opacity=1).encode(
        x, y, style.method_colour(evaluation, names), tooltip=tips(("name:N", "Class"), *scores, SAMPLES)
    )


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
        base(rows, "theorem 3.1"),
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
    chart = base(rows, "theorem G.2").properties(title=f"True coefficients of norm {result.norm:g}")
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
