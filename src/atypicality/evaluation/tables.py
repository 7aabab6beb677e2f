"""The tables of an evaluation, made from answers and groups; `evaluate` and `compare` differ only in what they ask."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.blocks import progress
from atypicality.evaluation import changes, statistics
from atypicality.evaluation.context import Context
from atypicality.evaluation.cuts import Axis, Cuts, Edges
from atypicality.evaluation.methods import Answer, naming
from atypicality.evaluation.result import Evaluation
from atypicality.evaluation.samples import Told, kept_rows, sample_rows, told_by
from atypicality.evaluation.schema import STATISTICS, TABLES, Row, measured_rows, to_columns
from atypicality.evaluation.scored import Options, Scored, score
from atypicality.formula import ADVICE
from atypicality.groups import cut
from atypicality.metrics.rows import inner_edges

__all__ = ["BACKWARDS", "Measured", "assemble", "measure"]

GROUP_METRICS = ("accuracy", "confidence", "overconfidence", "ece", "rmsce", "nll", "brier")
CELL_METRICS = ("accuracy", "confidence", "overconfidence")
SET_METRICS = ("coverage", "set_size")
METRICS: dict[str, tuple[str, ...]] = {
    "overall": (*GROUP_METRICS, "adaptive_ece", "debiased_calibration_error", "smooth_ece", "risk_coverage_area"),
    "atypicality_groups": GROUP_METRICS,
    "confidence_groups": GROUP_METRICS,
    "class_groups": GROUP_METRICS,
    "classes": CELL_METRICS,
    "predicted_classes": CELL_METRICS,
    "grid": CELL_METRICS,
    "class_grid": CELL_METRICS,
    "quadrants": ("share", *GROUP_METRICS),
    "advice": ("share", "followed", "accuracy", "confidence"),
    "subgroups": GROUP_METRICS,
}
"""Metrics of each table; those of prediction sets join where there are sets."""
ONLY = {"calibration_curve": ("confidence", "accuracy"), "set_sizes": ("share", "coverage")}
"""Tables with metrics of their own, whether there are sets or not."""
ACCEPTED = ("overall", "classes", "predicted_classes", "advice", "subgroups")
"""Tables that show what is accepted at a risk, and how much of that is wrong."""
BACKWARDS = (
    "rows that look typical are wrong more often than rare ones, so low atypicality is no sign of a right prediction "
    "here. Go by confidence and prediction sets; measure atypicality on another layer or on other columns, or fit with "
    "density=None"
)
"""What to do where the AUROC of atypicality for errors is below one half, beyond its interval."""
GAP_AXES = {
    "atypicality": "atypicality_groups",
    "confidence": "confidence_groups",
    "grid": "grid",
    "class_atypicality": "class_groups",
    "class": "classes",
    "set_size": "set_sizes",
    "quadrant": "quadrants",
    "subgroup": "subgroups",
}


@dataclass
class Measured:
    """Rows of every table, the notes, and what was learnt of the methods on the way."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in TABLES})
    notes: list[str] = field(default_factory=list)
    alphas: dict[str, float] = field(default_factory=dict)
    n_classes: int = 0
    guaranteed: dict[str, float] = field(default_factory=dict)

    def add(self, rows: Iterable[tuple[str, list[Row]]], scored: Scored) -> None:
        """Take in the rows of one method."""
        for table, more in rows:
            self.rows[table] += more
        self.n_classes = scored.n_classes
        if scored.alpha is not None:
            self.alphas[scored.name] = scored.alpha
        if scored.guaranteed is not None:
            self.guaranteed[scored.name] = scored.guaranteed


def measure(
    answers: Iterable[tuple[str, Answer, Edges]], context: Context, options: Options, edges: Edges | None = None
) -> Measured:
    """Every table from the answers of methods, read one after the other, on the rows of `context`.

    `edges` are those of atypicality, one for all methods; each answer brings its own edges of confidence.
    """
    cuts = Cuts(context, options.n_groups, options.grid, edges or Edges())
    measured = Measured(notes=cuts.notes)
    labels = context.outputs.need("labels")
    told: list[Told] = []
    kept: list[changes.RowLosses] = []
    axes: list[Axis] = []
    for name, answer, own in answers:
        progress.stage(f"measuring {name}")
        with naming(name), context.outputs._numbered():
            scored = score(name, answer, labels, options)
        axes = cuts.axes(name, scored.confidence, own, scored.trusted)
        scored = scored.advised(next((axis.codes % 2 == 1 for axis in axes if axis.table == "quadrants"), None))
        axes += _more_axes(scored, labels, options.n_bins)
        measured.add(_method_rows(scored, axes, labels, options), scored)
        measured.rows["overall"] += statistics.worst_rows(scored, context.atypicality, labels)
        measured.rows["overall"] += statistics.signal_rows(scored, context.atypicality, options)
        kept.append(changes.RowLosses.of(scored))
        if options.keep_samples:
            told.append(told_by(scored, axes))
        del answer  # its matrices go before the next method is asked
    progress.stage("comparing methods")
    found = changes.change_rows(kept, axes, measured.rows, options.n_bins, options.intervals)
    measured.rows["class_info"] = _class_rows(context, cuts, measured.n_classes)
    alone = changes.groups_of_one_class(row["group"] for row in measured.rows["class_info"])
    measured.rows["changes"] = [row for row in found if row["axis"] != "class_atypicality" or row["group"] not in alone]
    progress.stage("fitting a temperature to each group")
    if cuts.atypicality is not None and context.outputs.logits is not None:
        rows, notes = statistics.temperature_rows(context, cuts.atypicality, options.temperature)
        measured.rows["temperatures"], measured.notes = rows, measured.notes + notes
    measured.rows["group_ranges"] = cuts.ranges
    if told:
        chosen, weight = kept_rows(told, labels, options)
        measured.rows["samples"] = sample_rows(context, cuts, chosen, weight)
        measured.rows["predictions"] = [row for one in told for row in one.rows(chosen)]
    return measured


def coverage_gap_rows(rows: Mapping[str, list[Row]], alphas: Mapping[str, float]) -> Iterator[Row]:
    """For every axis the group with the lowest coverage, and the largest distance of a group from the target."""
    methods = dict.fromkeys(row["method"] for row in rows["overall"] if row["metric"] == "coverage")
    for method in methods:
        target = 1 - alphas[method] if method in alphas else np.nan
        for axis, table in GAP_AXES.items():
            cells = [row for row in rows[table] if row["method"] == method and row["metric"] == "coverage"]
            cells = [row for row in cells if row["count"] > 0]
            if cells:
                worst = min(cells, key=lambda row: row["value"])
                gap = max(abs(row["value"] - target) for row in cells)
                found = {name: worst[name] for name in STATISTICS}
                words = [str(value) for name, value in worst.items() if name not in ("method", "metric", *STATISTICS)]
                named = {"method": method, "axis": axis, "worst": ", ".join(words)}
                yield named | {"target": target, "gap": gap} | found


def assemble(
    kind: str,
    measured: Measured,
    outputs: Any,
    methods: Sequence[str],
    options: Options,
    settings: Mapping[str, Any],
    n_splits: int = 1,
) -> Evaluation:
    """An `Evaluation` from rows that are ready."""
    rows = measured.rows | {
        "coverage_gaps": list(coverage_gap_rows(measured.rows, measured.alphas)),
        "changes": changes.decided(measured.rows["changes"], n_splits),
        "subgroup_gaps": list(statistics.subgroup_gap_rows(measured.rows["subgroups"])) if n_splits == 1 else [],
    }
    common = {
        "n_groups": options.n_groups,
        "grid": list(options.grid),
        "n_bins": options.n_bins,
        "level": 0.95,
        "alpha": dict(measured.alphas),
        "fingerprint": outputs.fingerprint(),
    } | ({"guaranteed": dict(measured.guaranteed)} if measured.guaranteed else {})
    return Evaluation(
        kind=kind,
        methods=tuple(methods),
        n_samples=len(outputs),
        n_classes=measured.n_classes,
        n_splits=n_splits,
        settings=common | dict(settings),
        notes=(*measured.notes, *_backwards(rows["overall"])),
        tables={name: to_columns(name, rows[name]) for name in TABLES},
    )


def _backwards(rows: list[Row]) -> list[str]:
    """A note where atypicality finds right predictions instead of errors."""
    found = [row for row in rows if row["metric"] == "atypicality_auroc" and row["high"] < 0.5]
    said = ", ".join(f"{row['value']:.3f} (95 % interval up to {row['high']:.3f}) of {row['method']}" for row in found)
    return [f"atypicality ranks errors backwards, AUROC {said}: {BACKWARDS}."] if found else []


def _method_rows(
    scored: Scored, axes: list[Axis], labels: NDArray[np.intp], options: Options
) -> Iterator[tuple[str, list[Row]]]:
    """All rows of one method, with the table that they belong to."""
    for axis in axes:
        yield axis.table, _rows(axis, scored, options)
        if axis.table in ACCEPTED:
            yield axis.table, statistics.accepted_rows(scored, axis)
    keys = ({"method": scored.name, "metric": metric} for metric in scored.whole)
    values = [(scored.predicted.size, *values) for values in scored.whole.values()]
    yield "overall", measured_rows(keys, zip(*values, strict=True))
    yield "risk_coverage", statistics.risk_rows(scored)
    yield "class_scores", statistics.class_score_rows(scored, labels)


def _rows(axis: Axis, scored: Scored, options: Options) -> list[Row]:
    rows: list[Row] = []
    of_sets = () if scored.sizes is None else SET_METRICS
    for metric in ONLY[axis.table] if axis.table in ONLY else METRICS[axis.table] + of_sets:
        keys = ({"method": scored.name, **key, "metric": metric} for key in axis.keys)
        rows += measured_rows(keys, statistics.grouped(metric, scored, axis.codes, len(axis.keys), options))
    return rows


def _more_axes(scored: Scored, labels: NDArray[np.intp], n_bins: int) -> list[Axis]:
    """Axes that need no groups: classes, bins of confidence, words of advice, sizes of sets."""
    pairs = scored.losses.pairs
    bins = cut(inner_edges(n_bins, pairs.dtype), pairs.confidence)
    every_class: list[Row] = [{"class_index": index} for index in range(scored.n_classes)]
    axes = [
        Axis("classes", every_class, labels),
        Axis("predicted_classes", every_class, scored.predicted),
        Axis("calibration_curve", [{"bin": index} for index in range(n_bins)], bins),
    ]
    if scored.advice is not None:
        axes.append(Axis("advice", [{"advice": word} for word in ADVICE], scored.advice))
    if scored.sizes is not None:
        found, codes = np.unique(scored.sizes, return_inverse=True)
        axes.append(Axis("set_sizes", [{"size": size} for size in found.tolist()], codes))
    return axes


def _class_rows(context: Context, cuts: Cuts, n_classes: int) -> list[Row]:
    names, rarity = context.outputs.class_names, context.class_atypicality
    return [
        {
            "class_index": index,
            "name": str(index) if names is None else names[index],
            "class_atypicality": None if rarity is None else rarity[index],
            "group": None if cuts.class_group_of is None else cuts.class_group_of[index],
        }
        for index in range(n_classes)
    ]
