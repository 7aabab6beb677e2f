"""Charts of single samples: the quadrant scatter with examples, the distribution of atypicality, the extremes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.charts import style
from atypicality.charts.saving import public_chart
from atypicality.charts.style import PALETTE, Chart, altair, base, methods_of, tips
from atypicality.evaluation import Evaluation
from atypicality.groups import QUADRANTS
from atypicality.report.examples import checked_pixels, png_url
from atypicality.validation import check_integer

__all__ = ["atypicality_distribution", "extreme_samples", "quadrant_scatter"]

Example = str | NDArray[np.uint8]


@public_chart
def quadrant_scatter(
    evaluation: Evaluation, *, method: str | None = None, examples: Mapping[int, Example] | None = None
) -> Chart:
    """Confidence against atypicality, coloured by quadrant, with example inputs in place (figure 1).

    {samples}
    method : str, optional
        Whose confidence; the last by default.
    examples : mapping of row to str or uint8 array, optional
        Texts, or images of shape (height, width) or (height, width, 3), to show at their samples.

    {returns}
    {evaluation}
    >>> type(quadrant_scatter(evaluation, examples={0: "the first row"})).__name__
    'LayerChart'
    """
    [name] = methods_of(evaluation, evaluation.methods[-1] if method is None else method)
    rows = _placed(evaluation, name)
    alt, chart = altair(), base(rows, "single samples (kept by `evaluate` only)", size=(480, 360))
    x = style.atypicality_axis()
    y = alt.Y("confidence:Q", title="Confidence", scale=alt.Scale(zero=False))
    colour = alt.Color(
        "quadrant:N", title="Kind of prediction", scale=alt.Scale(domain=list(QUADRANTS), range=list(PALETTE[:4]))
    )
    tip = tips(
        ("row:Q", "Row"),
        ("quadrant:N", "Kind of prediction"),
        ("atypicality:Q", "Atypicality", ".2f"),
        ("confidence:Q", "Confidence", ".3f"),
        ("right:N", "Right"),
        ("of_quadrant:Q", "Samples of this kind", ",.0f"),
    )
    points = chart.mark_point(filled=True, size=14, opacity=0.45).encode(x, y, colour, tooltip=tip)
    if not examples:
        return alt.layer(points)
    return alt.layer(points, *_examples({row["row"]: row for row in rows}, examples, x, y))


def _placed(evaluation: Evaluation, method: str) -> list[dict[str, Any]]:
    samples = {row["row"]: row for row in evaluation.table("samples")}
    rows = [
        {
            "row": row["row"],
            "atypicality": samples[row["row"]]["atypicality"],
            "confidence": row["confidence"],
            "quadrant": row["quadrant"],
            "right": "yes" if row["prediction"] == samples[row["row"]]["label"] else "no",
        }
        for row in evaluation.table("predictions", method=method)
        if row["quadrant"] is not None
    ]
    counts = {name: sum(row["quadrant"] == name for row in rows) for name in QUADRANTS}
    return [row | {"of_quadrant": counts[row["quadrant"]]} for row in rows]


def _examples(placed: Mapping[int, dict[str, Any]], examples: Mapping[int, Example], x: Any, y: Any) -> list[Any]:
    unknown = [row for row in examples if row not in placed]
    if unknown:
        raise ValueError(f"examples must be of rows that the evaluation keeps; row {unknown[0]} is not kept.")
    texts = [placed[row] | {"text": value} for row, value in examples.items() if isinstance(value, str)]
    images = [
        placed[row] | {"url": png_url(checked_pixels(value))}
        for row, value in examples.items()
        if not isinstance(value, str)
    ]
    layers = []
    if texts:
        label = base(texts, "texts", size=None).mark_text(align="left", dx=7, fontSize=12, fontWeight="bold", limit=180)
        layers += [
            base(texts, "texts", size=None).mark_point(size=90, color="black").encode(x, y),
            label.encode(x, y, text="text:N"),
        ]
    if images:
        layers.append(base(images, "images", size=None).mark_image(width=42, height=42).encode(x, y, url="url:N"))
    return layers


@public_chart
def atypicality_distribution(evaluation: Evaluation, *, method: str | None = None, n_bins: int = 40) -> Chart:
    """How many samples have which atypicality, those that are right apart from those that are wrong.

    {samples}
    method : str, optional
        Whose predictions; the last by default.
    n_bins : int, default=40

    {returns}
    {evaluation}
    >>> type(atypicality_distribution(evaluation, n_bins=20)).__name__
    'Chart'
    """
    check_integer(n_bins, "n_bins", low=1)
    [name] = methods_of(evaluation, evaluation.methods[-1] if method is None else method)
    alt, chart = altair(), base(_placed(evaluation, name), "single samples (kept by `evaluate` only)")
    binned = {"bin": alt.Bin(maxbins=n_bins), "title": style.RARITY}
    place = alt.X("atypicality:Q", **binned)
    tip = [alt.Tooltip("atypicality:Q", **binned), *tips(("right:N", "Right"), ("count()", "Samples"))]
    colour = alt.Color("right:N", title="Right", scale=alt.Scale(domain=["yes", "no"], range=list(PALETTE[:2])))
    return chart.mark_bar().encode(place, alt.Y("count()", title="Number of samples"), colour, tooltip=tip)


@public_chart
def extreme_samples(evaluation: Evaluation, texts: Sequence[str], *, n_shown: int = 3) -> Chart:
    """The most typical and the most atypical texts with their percentiles: the paper's box of prompts.

    {samples}
    texts : sequence of str
        One for each row of the outputs.
    n_shown : int, default=3
        From each end.

    {returns}
    {evaluation}
    >>> type(extreme_samples(evaluation, [f"text {i}" for i in range(600)])).__name__
    'LayerChart'
    """
    check_integer(n_shown, "n_shown", low=1)
    if len(texts) != evaluation.n_samples:
        raise ValueError(f"texts must have one entry a sample, {evaluation.n_samples}; got {len(texts)}.")
    samples = [row for row in evaluation.table("samples") if row["atypicality"] is not None]
    order = sorted(samples, key=lambda row: row["atypicality"])
    ends = [*order[:n_shown], *order[n_shown:][-n_shown:]]
    rows = [
        {
            "row": row["row"],
            "place": place,
            "text": str(texts[row["row"]]),
            "atypicality": row["atypicality"],
            "percentile": 100 * sum(other["atypicality"] <= row["atypicality"] for other in order) / len(order),
            "end": "most typical" if place < n_shown else "most atypical",
        }
        for place, row in enumerate(ends)
    ]
    alt = altair()
    chart = base(rows, "single samples (kept by `evaluate` only)", size=(620, 26 * len(rows)))
    y = alt.Y("place:O", axis=None)
    colour = alt.Color(
        "end:N", title=None, scale=alt.Scale(domain=["most typical", "most atypical"], range=list(PALETTE[:2]))
    )
    tip = tips(("text:N", "Text"), ("atypicality:Q", "Atypicality", ".2f"), ("row:Q", "Row"))
    share = chart.mark_text(align="right", x=70, fontWeight="bold").encode(
        y, colour, text=alt.Text("percentile:Q", format=".2f")
    )
    words = chart.mark_text(align="left", x=84, limit=530).encode(y, text="text:N", tooltip=tip)
    return alt.layer(share, words).properties(title="Percentile of atypicality, and the text")
