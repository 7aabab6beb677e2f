"""One metric over the groups of an axis: count, value, standard error and interval, all from `atypicality.metrics`.

What is here and not there: means of a number per row go straight to Student's interval, and the coverage of prediction
sets gets the exact binomial interval. At the end stand the tables that are no metric over groups: the worst group of
sets, risk against coverage, scores of classes, a temperature per group.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from atypicality import blocks, metrics
from atypicality.evaluation.context import Context
from atypicality.evaluation.cuts import Axis
from atypicality.evaluation.schema import Row, measured_rows
from atypicality.evaluation.scored import UNKNOWN, Options, Scored
from atypicality.groups import cut, quantile_edges
from atypicality.metrics.intervals import exact_interval, mean_interval, wilson_interval
from atypicality.metrics.rows import Pairs, inner_edges
from atypicality.metrics.selective import area_under_risk
from atypicality.metrics.sets import size_strata
from atypicality.metrics.signal import FOLDS, auroc_and_error, error_signal
from atypicality.metrics.tables import each_group
from atypicality.metrics.worst_groups import worst_share
from atypicality.recalibration import TemperatureScaling
from atypicality.validation import caught_warnings

__all__ = [
    "Column", "accepted_rows", "class_score_rows", "grouped", "risk_rows", "signal_rows", "subgroup_gap_rows",
    "temperature_rows", "worst_rows",
]  # fmt: skip

FloatArray = NDArray[np.float64]


PAIRED: dict[str, Callable[..., float]] = {
    "accuracy": metrics.accuracy,
    "overconfidence": metrics.overconfidence,
    "ece": metrics.ece,
    "rmsce": metrics.rmsce,
    "adaptive_ece": metrics.adaptive_ece,
    "debiased_calibration_error": metrics.debiased_calibration_error,
    "smooth_ece": metrics.smooth_ece,
    "risk_coverage_area": area_under_risk,
}
"""Metrics of (confidence, correct)."""
BINNED = ("ece", "rmsce", "adaptive_ece", "debiased_calibration_error")

Column = tuple[NDArray[Any], ...]
"""Count, value, standard error, low and high of one metric, each of shape (n_groups,): the order of STATISTICS."""


def grouped(metric: str, scored: Scored, codes: NDArray[np.intp], n_groups: int, options: Options) -> Column:
    """A metric by name over the groups 0 .. n_groups - 1 of the rows; without intervals only its values."""
    if metric in PAIRED:
        return _paired(metric, scored, codes, n_groups, options)
    count = np.bincount(codes, minlength=n_groups)
    if metric == "share":
        return _binomial(count, count, np.full(n_groups, codes.size), wilson_interval)
    values = scored.column(metric)
    if metric in ("coverage", "followed"):
        return _binomial(count, np.bincount(codes, values, minlength=n_groups), count, exact_interval)
    if not options.intervals:
        return _means(values, codes, n_groups)
    return each_group(lambda _, part: (values[part].mean(), *mean_interval(values[part])), codes, n_groups)


def _paired(metric: str, scored: Scored, codes: NDArray[np.intp], n_groups: int, options: Options) -> Column:
    pairs = scored.losses.pairs
    confidence, correct = pairs.confidence.astype(pairs.dtype), pairs.correct  # edges round as dtype does
    measured: Callable[..., float] = (
        partial(PAIRED[metric], n_bins=options.n_bins) if metric in BINNED else PAIRED[metric]
    )
    if options.intervals:
        cut: dict[str, Any] = {"groups": codes, "names": n_groups}
        table = metrics.by_group(measured, confidence=confidence, correct=correct, random_state=options.seed, **cut)
        return table.count, table.value, table.standard_error, table.low, table.high
    if metric == "accuracy":
        return _means(correct, codes, n_groups)
    if metric == "overconfidence":
        return _means(pairs.confidence - correct, codes, n_groups)
    if metric in ("ece", "rmsce"):
        return _equal_bins(metric, pairs, options.n_bins, codes, n_groups)

    def value(group: int, part: NDArray[np.intp]) -> tuple[float, ...]:
        return measured(confidence=confidence[part], correct=correct[part]), *UNKNOWN

    return each_group(value, codes, n_groups)


def _means(values: NDArray[Any], codes: NDArray[np.intp], n_groups: int) -> Column:
    """Counts and means over the groups, NaN in an empty one, without intervals: one pass for all groups."""
    count, total = np.bincount(codes, minlength=n_groups), np.bincount(codes, values, minlength=n_groups)
    mean = np.divide(total, count, out=np.full(n_groups, np.nan), where=count > 0)
    return count, mean, *np.full((3, n_groups), np.nan)


def _equal_bins(metric: str, pairs: Pairs, n_bins: int, codes: NDArray[np.intp], n_groups: int) -> Column:
    """Counts and calibration errors of the groups, without intervals: one pass for all groups and bins."""
    cell = codes * n_bins + cut(inner_edges(n_bins, pairs.dtype), pairs.confidence)
    weights = (None, pairs.confidence, pairs.correct)
    size, sums, hits = (np.bincount(cell, one, n_groups * n_bins).reshape(n_groups, n_bins) for one in weights)
    count, gap = size.sum(axis=1), np.abs(sums - hits)
    total = gap.sum(axis=1) if metric == "ece" else (gap**2 / np.maximum(size, 1)).sum(axis=1)
    mean = np.divide(total, count, out=np.full(n_groups, np.nan), where=count > 0)
    return count, mean if metric == "ece" else np.sqrt(mean), *np.full((3, n_groups), np.nan)


def _binomial(count: NDArray[np.intp], hits: NDArray[Any], size: NDArray[Any], interval: Callable[..., Any]) -> Column:
    share = np.divide(hits, size, out=np.full(hits.shape, np.nan), where=size > 0)
    error = np.sqrt(share * (1 - share) / np.maximum(size, 1))
    return count, share, error, *interval(hits, size)


def worst_rows(scored: Scored, atypicality: NDArray[np.float64] | None, labels: NDArray[np.intp]) -> list[Row]:
    """Coverage of the sixth of atypicality, of the cell of 3 x 3 and of the stratum of set sizes covered least.

    Of the class covered least, how far it is below the target; 0 where no class is.
    """
    if scored.covered is None or scored.sizes is None:
        return []
    codes = {"worst_size_coverage": size_strata(scored.sizes)}
    if atypicality is not None:
        thirds = [cut(quantile_edges(values, 3), values) for values in (atypicality, scored.confidence)]
        codes["worst_sixth_coverage"] = cut(quantile_edges(atypicality, 6), atypicality)
        codes["worst_cell_coverage"] = 3 * thirds[0] + thirds[1]
    found = {metric: worst_share(scored.covered, groups) for metric, groups in codes.items()}
    lowest = worst_share(scored.covered, labels)
    if lowest is not None and scored.alpha is not None:
        short = [max(1 - scored.alpha - end, 0.0) for end in (lowest[0], lowest[2], lowest[1])]
        found["coverage_shortfall_class"] = (short[0], short[1], short[2], *lowest[3:])
    return [
        {"method": scored.name, "metric": metric, "count": worst[4], "value": worst[0]}
        | {"standard_error": np.nan, "low": worst[1], "high": worst[2]}
        for metric, worst in found.items()
        if worst is not None
    ]


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


def accepted_rows(scored: Scored, axis: Axis) -> list[Row]:
    """Share of each group that a method accepts at the risk asked for, and share of the accepted that is wrong."""
    if scored.accepted is None:
        return []
    wrong = scored.accepted & ~scored.losses.pairs.correct
    size, kept, missed = (
        np.bincount(axis.codes, weights, len(axis.keys)).astype(np.intp) for weights in (None, scored.accepted, wrong)
    )
    found = {"accepted_share": (size, kept, size), "accepted_risk": (kept, missed, kept)}
    rows: list[Row] = []
    for metric, counts in found.items():
        keys = ({"method": scored.name, **key, "metric": metric} for key in axis.keys)
        rows += measured_rows(keys, _binomial(*counts, wilson_interval))
    return rows


GAP_METRICS = ("accuracy", "coverage", "accepted_share", "accepted_risk")
FEWEST = 30  # rows of a subgroup that is compared with others


def subgroup_gap_rows(rows: list[Row]) -> Iterator[Row]:
    """For every attribute the distance between the subgroups with the highest and the lowest share, with an interval.

    All pairs of subgroups have intervals of their difference (Newcombe 1998) that hold together (Bonferroni), so that
    the interval of the largest difference allows for its choice.
    """
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["metric"] in GAP_METRICS and row["count"] >= FEWEST:
            found.setdefault((row["method"], row["attribute"], row["metric"]), []).append(row)
    for key, cells in found.items():
        if len(cells) > 1:
            top, bottom = (choose(cells, key=lambda row: row["value"]) for choose in (max, min))
            named = dict(zip(("method", "attribute", "metric"), key, strict=True))
            ends = _largest_gap(np.array([row["value"] for row in cells]), np.array([row["count"] for row in cells]))
            plain = {"count": top["count"] + bottom["count"], "value": top["value"] - bottom["value"]}
            named |= {"highest": top["subgroup"], "lowest": bottom["subgroup"]}
            yield named | plain | {"standard_error": np.nan, "low": ends[0], "high": ends[1]}


def _largest_gap(share: FloatArray, count: FloatArray) -> tuple[float, float]:
    """Ends of the interval of max(share) - min(share), from those of all pairs together."""
    pairs = share.size * (share.size - 1) // 2
    low, high = wilson_interval(share * count, count, 1 - 0.05 / pairs)
    apart = share[:, None] - share
    least = apart - np.sqrt(np.add.outer((share - low) ** 2, (high - share) ** 2))
    most = apart + np.sqrt(np.add.outer((high - share) ** 2, (share - low) ** 2))
    np.fill_diagonal(least, 0.0)
    np.fill_diagonal(most, 0.0)
    return float(max(least.max(), 0.0)), float(min(most.max(), 1.0))


def class_score_rows(scored: Scored, labels: NDArray[np.intp]) -> list[Row]:
    """The score that a method adds to the logit of every class, for methods that have such scores."""
    if scored.class_scores is None:
        return []
    keys = ({"method": scored.name, "class_index": index} for index in range(scored.n_classes))
    counts = np.bincount(labels, minlength=scored.n_classes)
    return measured_rows(keys, (counts, scored.class_scores, *np.full((3, scored.n_classes), np.nan)))


def signal_rows(scored: Scored, atypicality: NDArray[np.float64] | None, options: Options) -> list[Row]:
    """What confidence says of a method's errors, and atypicality (n,), alone and beside it; none with too few."""
    correct = scored.losses.pairs.correct
    if not options.intervals or min(correct.sum(), (~correct).sum()) < FOLDS:
        return []
    if atypicality is None:
        measured = {"confidence_auroc": auroc_and_error(-scored.confidence, ~correct)}
    else:
        found = error_signal(atypicality, confidence=scored.confidence, correct=correct)
        measured = {
            "atypicality_gain": (found.gain, found.standard_error),
            "atypicality_auroc": (found.auroc, found.auroc_error),
            "confidence_auroc": (found.confidence_auroc, found.confidence_auroc_error),
        }
    value, error = np.array(list(measured.values())).T
    reach = ndtri(0.975) * error
    bounds = [(-np.inf, np.inf) if metric == "atypicality_gain" else (0.0, 1.0) for metric in measured]
    low, high = np.clip(value - reach, *np.transpose(bounds)), np.clip(value + reach, *np.transpose(bounds))
    keys = ({"method": scored.name, "metric": metric} for metric in measured)
    return measured_rows(keys, (np.full(value.size, correct.size), value, error, low, high))


def temperature_rows(
    context: Context, axis: Axis, temperature: Callable[[], TemperatureScaling]
) -> tuple[list[Row], list[str]]:
    """One temperature fitted to the rows of every group of atypicality (the paper's section 4.1), and notes."""
    unused = dict.fromkeys(("embeddings", "atypicality", "ids"))
    whole = context.outputs._replaced(**unused, attributes={})

    def fitted(group: int, members: NDArray[np.intp]) -> tuple[float, float]:
        part = whole._part(members)
        with part._numbered():
            logits, labels = part.need("logits", "labels")
            return _temperature(logits, labels, temperature())

    count, value, error = each_group(fitted, axis.codes, len(axis.keys), (np.nan, np.nan))
    loose = ", ".join(str(group + 1) for group in np.flatnonzero((count > 0) & np.isnan(error)))
    notes = [
        f"table temperatures: the best temperature of the model's logits in group {loose} of atypicality rests on no "
        "error, or is a limit."
    ] * bool(loose)
    reach = ndtri(0.975) * error
    return measured_rows(axis.keys, (count, value, error, value - reach, value + reach)), notes


def _temperature(logits: NDArray[Any], labels: NDArray[np.intp], scaling: TemperatureScaling) -> tuple[float, float]:
    """The best temperature and its standard error, NaN where the fit warns: no error among the rows, or a limit."""
    with caught_warnings() as caught:
        scaling.fit(logits, labels)
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
