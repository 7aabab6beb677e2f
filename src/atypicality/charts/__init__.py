"""One function per figure of the paper: an `Evaluation` in, an Altair chart out; needs the extra `report`.

A chart is shown in a notebook as it is, and saved with `chart.save("figure.png")`, also as SVG, PDF or HTML. HTML is a
self-contained page under the report's policy, in which class names and ids are text whatever they hold. Colours are
Okabe and Ito's, which the colour-blind can tell apart; counts are on hover. Nothing is measured here: every number
drawn is in a table of the evaluation::

    evaluation = aty.evaluate({"model": "uncalibrated", "head": head}, test)
    charts.quality_by_group(evaluation, "ece").save("ece.png")
    charts.confidence_grid(evaluation, "overconfidence", methods="head")
"""

from atypicality.charts.fitted import class_scores, multiplier, temperatures, theorem_1_curves, theorem_2_curves
from atypicality.charts.groups import (
    confidence_grid,
    monitor_history,
    quality_by_group,
    reliability_diagram,
    risk_coverage,
    subgroup_bars,
)
from atypicality.charts.samples import atypicality_distribution, extreme_samples, quadrant_scatter
from atypicality.charts.sets import coverage_against_size, coverage_at_levels, coverage_by_group, pareto_curves

__all__ = [
    "atypicality_distribution", "class_scores", "confidence_grid", "coverage_against_size", "coverage_at_levels",
    "coverage_by_group", "extreme_samples", "monitor_history", "multiplier", "pareto_curves", "quadrant_scatter",
    "quality_by_group", "reliability_diagram", "risk_coverage", "subgroup_bars", "temperatures", "theorem_1_curves",
    "theorem_2_curves",
]  # fmt: skip
