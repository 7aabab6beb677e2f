"""Charts of what was fitted: temperature by atypicality, the multiplier phi, and class scores."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from atypicality.charts.saving import saved_safely
from atypicality.charts.style import PALETTE, Chart, altair, base, methods_of, scale_of
from atypicality.evaluation import Evaluation
from atypicality.validation import check_vector

__all__ = ["class_scores", "multiplier", "temperatures"]


@saved_safely
def temperatures(evaluation: Evaluation) -> Chart:
    """The temperature fitted to each group of input atypicality, with its interval (appendix figure).

    Parameters
    ----------
    evaluation : Evaluation

    Returns
    -------
    altair chart

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(600, temperature=2.0)
    >>> density = aty.GaussianAtypicality().fit(world.embeddings, world.labels)
    >>> evaluation = aty.evaluate({"model": world.probs}, world.outputs(), train=density)
    >>> type(temperatures(evaluation)).__name__
    'LayerChart'
    """
    rows = [row | {"group": row["group"] + 1} for row in evaluation.table("temperatures") if row["count"] > 0]
    alt, chart = altair(), base(rows, "temperatures by group")
    title = "Temperature fitted to the group"
    x = alt.X("group:O", title="Input atypicality group (1 = most typical)", axis=alt.Axis(labelAngle=0))
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False))
    tip = [
        alt.Tooltip("group:O", title="Group"),
        alt.Tooltip("value:Q", title="Temperature", format=".3f"),
        alt.Tooltip("low:Q", title="Interval from", format=".3f"),
        alt.Tooltip("high:Q", title="Interval to", format=".3f"),
        alt.Tooltip("count:Q", title="Samples", format=",.0f"),
    ]
    bars = chart.mark_rule(color=PALETTE[0], strokeWidth=1.5).encode(x, alt.Y("low:Q", title=title), alt.Y2("high:Q"))
    marks = chart.mark_point(filled=True, size=60, color=PALETTE[0], opacity=1).encode(x, y, tooltip=tip)
    return chart.mark_line(color=PALETTE[0]).encode(x, y) + bars + marks


@saved_safely
def multiplier(recalibration: Any, atypicality: ArrayLike, *, n_points: int = 200) -> Chart:
    r"""What :math:`\phi` multiplies the logits by, over the range of these samples, the middle 90% of them shaded.

    Parameters
    ----------
    recalibration : AtypicalityAwareRecalibration
        Fitted, with atypicality among its covariates; margins are held at their mean.
    atypicality : array-like of shape (n,)
        Of the samples that it is meant for, such as the held-out ones.
    n_points : int, default=200

    Returns
    -------
    altair chart

    Examples
    --------
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
    title = "Input atypicality (right = rarer)"
    shown = {"low": float(low), "high": float(high), "count": int(values.size)}
    band = base([shown], "the range", size=None).mark_rect(opacity=0.15, color=PALETTE[0])
    band = band.encode(
        alt.X("low:Q", title=title),
        alt.X2("high:Q"),
        tooltip=[
            alt.Tooltip("low:Q", title="5% of the samples are below", format=".2f"),
            alt.Tooltip("high:Q", title="5% of the samples are above", format=".2f"),
            alt.Tooltip("count:Q", title="Samples"),
        ],
    )
    line = chart.mark_line(color=PALETTE[0]).encode(
        alt.X("atypicality:Q", title=title, scale=alt.Scale(zero=False)),
        alt.Y("multiplier:Q", title="Multiplier of the logits (phi)", scale=alt.Scale(zero=False)),
    )
    return band + line


@saved_safely
def class_scores(evaluation: Evaluation, *, method: str | None = None) -> Chart:
    """What a method adds to each class's logit, against the class's atypicality (appendix figure).

    Parameters
    ----------
    evaluation : Evaluation
    method : str, optional
        All that have class scores by default.

    Returns
    -------
    altair chart

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(600, temperature=2.0)
    >>> scaling = aty.VectorScaling(scale=False).fit(world.logits, world.labels)
    >>> evaluation = aty.evaluate({"biases": scaling}, world.outputs(), train=world.outputs())
    >>> type(class_scores(evaluation, method="biases")).__name__
    'LayerChart'
    """
    chosen = evaluation.methods if method is None else methods_of(evaluation, method)
    info = {row["class_index"]: row for row in evaluation.table("class_info")}
    rows = [
        row | {"name": info[row["class_index"]]["name"], "atypicality": info[row["class_index"]]["class_atypicality"]}
        for row in evaluation.table("class_scores")
        if row["method"] in chosen
    ]
    names = [name for name in chosen if any(row["method"] == name for row in rows)]
    alt, chart = altair(), base(rows, "class scores")
    x = alt.X("atypicality:Q", title="Class atypicality (right = rarer)", scale=alt.Scale(zero=False))
    y = alt.Y("value:Q", title="Score added to the class's logit")
    tip = [
        alt.Tooltip("name:N", title="Class"),
        alt.Tooltip("atypicality:Q", title="Class atypicality", format=".3f"),
        alt.Tooltip("value:Q", title="Score", format=".3f"),
        alt.Tooltip("count:Q", title="Samples", format=",.0f"),
    ]
    colour = alt.Color("method:N", title="Method", scale=scale_of(names, evaluation.methods))
    zero = chart.mark_rule(strokeDash=[5, 4], color="#777").encode(y=alt.datum(0))
    return zero + chart.mark_point(filled=True, size=70, opacity=1).encode(x, y, colour, tooltip=tip)
