"""Tables that are no metric over groups: risk against coverage, a temperature per group, scores of classes."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from atypicality import blocks, metrics
from atypicality.evaluation.context import Context
from atypicality.evaluation.cuts import Axis
from atypicality.evaluation.schema import Row, measured_rows
from atypicality.evaluation.scored import Scored
from atypicality.metrics.intervals import wilson_interval
from atypicality.metrics.tables import filled_groups
from atypicality.recalibration import TemperatureScaling
from atypicality.validation import caught_warnings

__all__ = ["class_score_rows", "risk_rows", "temperature_rows"]


def risk_rows(scored: Scored) -> list[Row]:
    """Risk and threshold where at least 1, 2, ..., 100 percent of the rows are answered, the most confident first."""
    curve = metrics.risk_coverage(confidence=scored.confidence, correct=scored.losses.pairs.correct)
    percent = np.arange(1, 101)
    point = np.searchsorted(curve.coverage, percent / 100 * (1 - 1e-12))  # k / n may round to just below percent / 100
    answered = np.rint(curve.coverage[point] * scored.predicted.size)
    risk, nothing = curve.risk[point], np.full(percent.size, np.nan)
    low, high = wilson_interval(risk * answered, answered)
    columns = {
        "risk": (answered, risk, np.sqrt(risk * (1 - risk) / answered), low, high),
        "threshold": (answered, curve.threshold[point], nothing, nothing, nothing),
    }
    rows: list[Row] = []
    for metric, column in columns.items():
        keys = ({"method": scored.name, "percent": place, "metric": metric} for place in percent.tolist())
        rows += measured_rows(keys, column)
    return rows


def class_score_rows(scored: Scored, labels: NDArray[np.intp]) -> list[Row]:
    """The score that a method adds to the logit of every class, for methods that have such scores."""
    if scored.class_scores is None:
        return []
    keys = ({"method": scored.name, "class_index": index} for index in range(scored.n_classes))
    counts = np.bincount(labels, minlength=scored.n_classes)
    return measured_rows(keys, (counts, scored.class_scores, *np.full((3, scored.n_classes), np.nan)))


def temperature_rows(context: Context, axis: Axis) -> tuple[list[Row], list[str]]:
    """One temperature fitted to the rows of every group of atypicality (the paper's section 4.1), and notes."""
    unused = dict.fromkeys(("embeddings", "atypicality", "ids"))
    whole = context.outputs._replaced(**unused, attributes={})
    n_groups = len(axis.keys)
    count, (value, error) = np.bincount(axis.codes, minlength=n_groups), np.full((2, n_groups), np.nan)
    for group, members in filled_groups(axis.codes, count):
        part = whole._part(members)
        with part._numbered():
            value[group], error[group] = _temperature(*part.need("logits", "labels"))
    notes = [
        f"the temperature of group {group + 1} of atypicality rests on no error, or is a limit: see TemperatureScaling."
        for group in np.flatnonzero((count > 0) & np.isnan(error))
    ]
    reach = norm.ppf(0.975) * error
    return measured_rows(axis.keys, (count, value, error, value - reach, value + reach)), notes


def _temperature(logits: NDArray[np.floating], labels: NDArray[np.intp]) -> tuple[float, float]:
    """The best temperature and its standard error, NaN where the fit warns: no error among the rows, or a limit."""
    with caught_warnings() as caught:
        scaling = TemperatureScaling().fit(logits, labels)
    return scaling.temperature_, np.nan if caught else _temperature_error(logits, labels, scaling)


def _temperature_error(logits: NDArray[np.floating], labels: NDArray[np.intp], scaling: TemperatureScaling) -> float:
    """Standard error of T = 1 / b by the sandwich rule (White 1982), sd(b) = sqrt(sum of squared slopes) / curvature.

    The slope of row i is z_label - E[z] and its curvature Var[z], both under the fitted probabilities.
    """

    def sums(rows: slice) -> NDArray[np.float64]:
        probs = np.asarray(scaling.predict_proba(logits[rows]), np.float64)
        scores = np.where(np.isfinite(logits[rows]), logits[rows], 0.0).astype(np.float64)  # masked: probability 0
        mean = np.vecdot(probs, scores)
        slopes = scores[np.arange(mean.size), labels[rows]] - mean
        scores -= mean[:, None]
        return np.array([np.vecdot(probs, np.square(scores, out=scores)).sum(), (slopes**2).sum()])

    curvature, squares = blocks.reduce_rows(sums, labels.size, block=blocks.block_rows(8 * logits.shape[1]))
    return float(np.sqrt(squares) / curvature * scaling.temperature_**2)
