"""An `Evaluation` for a reader: the paper's layout, groups and subgroups down, methods across; text and HTML."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from atypicality.evaluation.changes import BETTER, WORSE, changed
from atypicality.evaluation.schema import Row
from atypicality.terminal import aligned, printable

if TYPE_CHECKING:
    from atypicality.evaluation.result import Evaluation

__all__ = ["as_html", "as_text", "each_signal"]

QUALITY = {"ece": "ECE", "accuracy": "accuracy"}
SETS = {"coverage": "coverage", "set_size": "set size"}
GROUPED = {
    "atypicality_groups": "input atypicality, the most typical first",
    "class_groups": "class atypicality, the most common first",
}
ACCEPTED = {"accepted_share": "accepted", "accepted_risk": "error rate"}
BY_CLASS = {"classes": "true class", "predicted_classes": "predicted class"}
METRICS = {"nll": "log loss", "brier": "Brier score", "ece": "ECE", "risk_coverage_area": "risk-coverage area"}
MOST_CHANGED = 6  # groups that a line of changes names
MORE_THAN_ALLOWED = (
    "That is more than max_risk allows: it happens to one head in 20, or these rows differ from the calibration rows. "
    "Fit again with more and newer rows."
)
METHODS_ACROSS = 3  # more do not fit into a hundred characters
MOST_ATTRIBUTES, MOST_SUBGROUPS = 3, 12  # that are printed, and subgroups of each
Cells = dict[tuple[str, str], Row]
"""Rows of one group by method and metric."""


@dataclass(frozen=True)
class PrintedCut:
    """Groups to print: what they are cut by, the name of their column, and the cells of every group by its label."""

    by: str
    first: str
    groups: dict[str, Cells]


@dataclass(frozen=True)
class PrintedTable:
    """One printed table: a title, the methods over their columns, the columns, and the rows as text."""

    title: str
    first: str
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def header(self) -> tuple[str, ...]:
        """Names of the columns."""
        return (self.first, "count", *self.metrics * len(self.methods))


def as_text(evaluation: "Evaluation") -> str:
    """The header, the tables and the notes as plain text."""
    parts = [_headline(evaluation)] + ["\n".join(_lines(layout)) for layout in _layouts(evaluation)]
    notes = [f"Note: {printable(note)}" for note in evaluation.notes]
    more = ([printable(line) for line in _sentences(evaluation)], notes)
    return "\n\n".join(parts + ["\n".join(lines) for lines in more if lines])


def as_html(evaluation: "Evaluation") -> str:
    """The same for a notebook; every name is escaped."""
    parts = [f"<p>{escape(_headline(evaluation))}</p>"] + [_html(layout) for layout in _layouts(evaluation)]
    parts += [f"<p>{escape(line)}</p>" for line in _sentences(evaluation)]
    return "\n".join(parts + [f"<p>Note: {escape(note)}</p>" for note in evaluation.notes])


def _sentences(evaluation: "Evaluation") -> Iterator[str]:
    """What no table shows: the log loss, coverage and its target, what is accepted, what atypicality tells."""
    told = set(evaluation.tables["signals"]["method"])  # beside each of their signals
    rows = [row for row in evaluation.table("overall", metric="nll") if row["method"] not in told]
    losses = [f"{row['method']} {_cell(row)}" for row in rows]
    if losses:
        yield f"Log loss (NLL): {'; '.join(losses)}."
    if evaluation.kind == "compare":
        yield from _differences(evaluation)
    if evaluation.kind == "evaluate" and len(evaluation.methods) > 1:
        yield from _changes(evaluation, evaluation.methods[0], evaluation.methods[-1])
    yield from _covered(evaluation)
    yield from _accepted(evaluation)
    yield from _signals(evaluation)
    yield from each_signal(evaluation)


def _differences(evaluation: "Evaluation") -> Iterator[str]:
    """The log loss of every method less that of the first, over the splits of a comparison, a line for each."""
    for row in evaluation.table("changes", axis="overall", metric="nll"):
        if row["reference"] == evaluation.methods[0] and math.isfinite(row["low"]):
            ends = f"{row['low']:.4f} to {row['high']:.4f}"
            said = f"Log loss, {row['method']} less {row['reference']}, paired"
            yield f"{said}: {row['value']:.4f} (95 % interval {ends})."


def _changes(evaluation: "Evaluation", before: str, after: str) -> Iterator[str]:
    """What is shown to be better and worse on the same rows, a line for each; none where rows are not the same."""
    rows = [row for row in changed(evaluation, before, after) if not row.get("apart")]
    for verdict in (BETTER, WORSE) if rows else ():
        found = [row for row in rows if row["verdict"] == verdict]
        groups = sorted((row for row in found if row["axis"] != "overall"), key=lambda row: -abs(row["value"]))
        said = [row for row in found if row["axis"] == "overall"] + groups[:MOST_CHANGED]
        left = f"; and {len(groups) - MOST_CHANGED} more groups" if len(groups) > MOST_CHANGED else ""
        yield (
            f"{verdict.capitalize()} on the same rows, {after} than {before}: "
            + ("; ".join(map(_change, said)) or "nothing that is shown")
            + f"{left}."
        )


def _change(row: Row) -> str:
    """One change: its name, and what shows it."""
    group = row["class_name"]
    if row["subgroup"] is not None:
        group = f"{row['attribute']} {row['subgroup']}"
    elif row["group"] is not None:
        group = f"{row['axis'].replace('_', ' ')} group {row['group'] + 1}"
    name = str(METRICS.get(row["metric"], row["metric"])) + ("" if group is None else f" of {group}")
    if row["lost"] is not None:
        return f"{name} {row['value']:+.3f} ({row['lost']} lost, {row['gained']} gained of {row['count']:.0f})"
    return f"{name} {row['value']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"


def _covered(evaluation: "Evaluation") -> Iterator[str]:
    """How many rows the sets of each method cover, and how many they should, a line for each."""
    for row in evaluation.table("overall", metric="coverage"):
        if (alpha := evaluation.settings["alpha"].get(row["method"])) is not None:
            ends = f" (95 % interval {row['low']:.1%} to {row['high']:.1%})" if math.isfinite(row["low"]) else ""
            yield f"Coverage, {row['method']}: {row['value']:.1%}{ends}, target {100 * (1 - alpha):.4g}%."


def each_signal(evaluation: "Evaluation") -> Iterator[str]:
    """Negative log-likelihood of an answer head, and that of each of its signals alone, a line for each head."""
    for method in dict.fromkeys(evaluation.tables["signals"]["method"]):
        whole = evaluation.table("overall", method=method, metric="nll")[0]
        alone = evaluation.table("signals", method=method, metric="nll")
        yield (
            f"NLL, {method}: {_cell(whole)}. Each signal alone: "
            + ", ".join(f"{row['name']} {_cell(row)}" for row in alone)
            + "."
        )


def _signals(evaluation: "Evaluation") -> Iterator[str]:
    """What atypicality says of each method's errors, a line for each."""
    for row in evaluation.table("overall", metric="atypicality_gain"):
        adds = "adds to confidence" if row["low"] > 0 else "adds nothing to confidence that these rows show"
        alone, other = (
            _cell(evaluation.table("overall", method=row["method"], metric=metric)[0])
            for metric in ("atypicality_auroc", "confidence_auroc")
        )
        yield (
            f"Atypicality {adds}, {row['method']}: {row['value']:.4f} nats per row (95 % interval {row['low']:.4f} to "
            f"{row['high']:.4f}). AUROC for errors: {alone}; of confidence: {other}."
        )


def _accepted(evaluation: "Evaluation") -> Iterator[str]:
    """What each head accepts at the risk that was asked for, a line for each."""
    share, risk = (evaluation.table("overall", metric=f"accepted_{name}") for name in ("share", "risk"))
    others = "are for a person" if evaluation.settings.get("of") == "answers" else 'count as "ask a person"'
    for kept, wrong in zip(share, risk, strict=True):
        ends = f"(95 % interval {wrong['low']:.1%} to {wrong['high']:.1%})"
        yield (
            f"Accepted at max_risk={evaluation.settings['max_risk']:g}, {kept['method']}: {kept['value']:.1%}"
            + (f", of which {wrong['value']:.1%} are wrong {ends}." if wrong["count"] else ".")
            + (f" The others {others}." if kept["value"] < 1 else "")
            + _guaranteed(evaluation, kept["method"])
            + (f" {MORE_THAN_ALLOWED}" if wrong["low"] > evaluation.settings["max_risk"] else "")
        )


def _guaranteed(evaluation: "Evaluation", method: str) -> str:
    """With what confidence, from how many rows and for what the risk is guaranteed; nothing where that is not known."""
    n, lost = (evaluation.settings.get(key, {}).get(method) for key in ("accepted_rows", "lost_accepted"))
    if n is None:
        return ""
    told = f" Guaranteed with 95 % confidence from {n:,} held-out rows, for rows like these, all accepted together."
    return told if lost is None else f"{told} {lost[0].upper()}{lost[1:]}"


def _headline(evaluation: "Evaluation") -> str:
    size = f"{evaluation.n_samples} samples, {evaluation.n_classes} classes"
    if evaluation.settings.get("of") == "answers":
        size = f"{evaluation.n_samples} answers"
    if evaluation.kind == "compare":
        return f"Comparison over {evaluation.n_splits} random halves of {size} (mean ± standard error over the halves)"
    return f"Evaluation of {size} (value ± standard error)"


def _layouts(evaluation: "Evaluation") -> Iterator[PrintedTable]:
    groups = list(_grouped(evaluation)) or [PrintedCut("", "quantile", {})]
    attributes = list(_subgrouped(evaluation))
    accepted = list(_by_class(evaluation)) + attributes
    for metrics, cuts in ((QUALITY, groups + attributes), (SETS, groups + attributes), (ACCEPTED, accepted)):
        having = {row["method"] for row in evaluation.table("overall", metric=next(iter(metrics)))}
        methods = tuple(method for method in evaluation.methods if method in having)
        for cut in cuts:
            for first in range(0, len(methods), METHODS_ACROSS):
                yield _layout(evaluation, cut, methods[first : first + METHODS_ACROSS], metrics)


def _grouped(evaluation: "Evaluation") -> Iterator[PrintedCut]:
    for table, by in GROUPED.items():
        cells = _cells(evaluation.table(table), "group")
        if cells:
            yield PrintedCut(by, "quantile", {_label(group, len(cells), evaluation): cells[group] for group in cells})


def _subgrouped(evaluation: "Evaluation") -> Iterator[PrintedCut]:
    """Attributes with their largest subgroups, in the order of the table."""
    rows = evaluation.table("subgroups")
    for attribute in list(dict.fromkeys(row["attribute"] for row in rows))[:MOST_ATTRIBUTES]:
        yield _largest(attribute, _cells([row for row in rows if row["attribute"] == attribute], "subgroup"))


def _by_class(evaluation: "Evaluation") -> Iterator[PrintedCut]:
    """The largest classes, by the label and by the prediction."""
    for table, by in BY_CLASS.items():
        if cells := _cells(evaluation.table(table), "class_name"):
            yield _largest(by, cells)


def _largest(by: str, cells: dict[Any, Cells]) -> PrintedCut:
    largest = sorted(cells, key=lambda name: -max(row["count"] for row in cells[name].values()))[:MOST_SUBGROUPS]
    shown: dict[str, Cells] = {name: cells[name] for name in cells if name in largest}
    left = len(cells) - len(shown)
    return PrintedCut(by, by, shown | ({f"({left} smaller)": {}} if left else {}))


def _cells(rows: list[Row], key: str) -> dict[Any, Cells]:
    """Rows of a table by the name of their group, then by method and metric."""
    found: dict[Any, Cells] = {}
    for row in rows:
        found.setdefault(row[key], {})[row["method"], row["metric"]] = row
    return found


def _layout(
    evaluation: "Evaluation", cut: PrintedCut, methods: tuple[str, ...], metrics: dict[str, str]
) -> PrintedTable:
    rows = []
    whole: Cells = {(row["method"], row["metric"]): row for row in evaluation.table("overall")}
    for label, cells in [*cut.groups.items(), ("all", whole)]:
        found = [cells.get((method, metric)) for method in methods for metric in metrics]
        count = "/".join(dict.fromkeys(f"{row['count']:.0f}" for row in found if row))  # a method may lack rows
        rows.append((printable(label), count, *(_cell(row) for row in found)))
    title = " and ".join(metrics.values()) + (f" by {printable(cut.by)}" if cut.by else "")
    title += ", with 95 % intervals" if metrics is ACCEPTED else ""
    first = printable(cut.first)
    return PrintedTable(title[0].upper() + title[1:], first, methods, tuple(metrics.values()), tuple(rows))


def _label(group: int, n_groups: int, evaluation: "Evaluation") -> str:
    """The paper names a group by its upper quantile; groups that merged have only their number."""
    asked = evaluation.settings["n_groups"]
    return f"{(group + 1) / asked:.2g}" if n_groups == asked else f"group {group + 1}"


def _cell(row: dict[str, Any] | None) -> str:
    """A value with its standard error, or with its 95 % interval where that would say too little."""
    if row is None or not math.isfinite(row["value"]):
        return "-"
    error = row["standard_error"]
    if row.get("metric") in ACCEPTED or (error == 0 and row["low"] < row["high"]):  # 0 of 40 is no certainty
        return f"{row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
    return f"{row['value']:.3f}" + (f" ± {error:.3f}" if math.isfinite(error) else "")


def _lines(layout: PrintedTable) -> list[str]:
    over = [("", 1), ("", 1), *((printable(method), len(layout.metrics)) for method in layout.methods)]
    return [layout.title, *aligned([layout.header, *layout.rows], over)]


def _html(layout: PrintedTable) -> str:
    top = "".join(f"<th colspan={len(layout.metrics)}>{escape(method)}</th>" for method in layout.methods)
    header = "".join(f"<th>{escape(name)}</th>" for name in layout.header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in layout.rows)
    head = f"<caption>{escape(layout.title)}</caption><tr><th></th><th></th>{top}</tr><tr>{header}</tr>"
    return f"<table>{head}{body}</table>"
