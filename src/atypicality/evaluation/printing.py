"""An `Evaluation` for a reader: the paper's layout, groups down and methods across, as text and as HTML."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from atypicality.terminal import aligned, printable

if TYPE_CHECKING:
    from atypicality.evaluation.result import Evaluation

__all__ = ["as_html", "as_text"]

QUALITY = {"ece": "ECE", "accuracy": "accuracy"}
SETS = {"coverage": "coverage", "set_size": "set size"}
GROUPED = {
    "atypicality_groups": "input atypicality, the most typical first",
    "class_groups": "class atypicality, the most common first",
}
METHODS_ACROSS = 3  # more do not fit into a hundred characters


@dataclass(frozen=True)
class PrintedTable:
    """One printed table: a title, the methods over their columns, the columns, and the rows as text."""

    title: str
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def header(self) -> tuple[str, ...]:
        """Names of the columns."""
        return ("quantile", "count", *self.metrics * len(self.methods))


def as_text(evaluation: "Evaluation") -> str:
    """The header, the tables and the notes as plain text."""
    parts = [_headline(evaluation)] + ["\n".join(_lines(layout)) for layout in _layouts(evaluation)]
    notes = [f"Note: {printable(note)}" for note in evaluation.notes]
    more = ([printable(line) for line in (*_accepted(evaluation), *_signals(evaluation))], notes)
    return "\n\n".join(parts + ["\n".join(lines) for lines in more if lines])


def as_html(evaluation: "Evaluation") -> str:
    """The same for a notebook; every name is escaped."""
    parts = [f"<p>{escape(_headline(evaluation))}</p>"] + [_html(layout) for layout in _layouts(evaluation)]
    parts += [f"<p>{escape(line)}</p>" for line in (*_accepted(evaluation), *_signals(evaluation))]
    return "\n".join(parts + [f"<p>Note: {escape(note)}</p>" for note in evaluation.notes])


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
    for kept, wrong in zip(share, risk, strict=True):
        ends = f"(95 % interval {wrong['low']:.1%} to {wrong['high']:.1%})"
        yield (
            f"Accepted at max_risk={evaluation.settings['max_risk']:g}, {kept['method']}: {kept['value']:.1%}"
            + (f", of which {wrong['value']:.1%} are wrong {ends}." if wrong["count"] else ".")
            + (' The others count as "ask a person".' if kept["value"] < 1 else "")
        )


def _headline(evaluation: "Evaluation") -> str:
    size = f"{evaluation.n_samples} samples, {evaluation.n_classes} classes"
    if evaluation.settings.get("of") == "answers":
        size = f"{evaluation.n_samples} answers"
    if evaluation.kind == "compare":
        return f"Comparison over {evaluation.n_splits} random halves of {size} (mean ± standard error over the halves)"
    return f"Evaluation of {size} (value ± standard error)"


def _layouts(evaluation: "Evaluation") -> Iterator[PrintedTable]:
    with_sets = {row["method"] for row in evaluation.table("overall", metric="coverage")}
    chosen = [(QUALITY, evaluation.methods), (SETS, tuple(m for m in evaluation.methods if m in with_sets))]
    for metrics, methods in chosen:
        tables = [name for name in GROUPED if evaluation.tables[name]["method"]] or ["overall"]
        for table in tables:
            for first in range(0, len(methods), METHODS_ACROSS):
                yield _layout(evaluation, table, methods[first : first + METHODS_ACROSS], metrics)


def _layout(evaluation: "Evaluation", table: str, methods: tuple[str, ...], metrics: dict[str, str]) -> PrintedTable:
    cells = {
        (row["method"], row["metric"], row.get("group")): row
        for name in {table, "overall"}
        for row in evaluation.table(name)
    }
    groups = sorted({group for _, _, group in cells if group is not None})
    rows = []
    for group in [*groups, None]:
        found = [cells.get((method, metric, group)) for method in methods for metric in metrics]
        count = "/".join(dict.fromkeys(f"{row['count']:.0f}" for row in found if row))  # a method may lack rows
        label = "all" if group is None else _label(group, len(groups), evaluation)
        rows.append((label, count, *(_cell(row) for row in found)))
    by = f" by {GROUPED[table]}" if table in GROUPED else ""
    title = " and ".join(metrics.values()) + by
    return PrintedTable(title[0].upper() + title[1:], methods, tuple(metrics.values()), tuple(rows))


def _label(group: int, n_groups: int, evaluation: "Evaluation") -> str:
    """The paper names a group by its upper quantile; groups that merged have only their number."""
    asked = evaluation.settings["n_groups"]
    return f"{(group + 1) / asked:.2g}" if n_groups == asked else f"group {group + 1}"


def _cell(row: dict[str, float] | None) -> str:
    if row is None or not math.isfinite(row["value"]):
        return "-"
    error = row["standard_error"]
    return f"{row['value']:.3f}" + (f" ± {error:.3f}" if math.isfinite(error) else "")


def _lines(layout: PrintedTable) -> list[str]:
    over = [("", 1), ("", 1), *((printable(method), len(layout.metrics)) for method in layout.methods)]
    return [layout.title, *aligned([layout.header, *layout.rows], over)]


def _html(layout: PrintedTable) -> str:
    top = "".join(f"<th colspan={len(layout.metrics)}>{escape(method)}</th>" for method in layout.methods)
    header = "".join(f"<th>{name}</th>" for name in layout.header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in layout.rows)
    return f"<table><caption>{layout.title}</caption><tr><th></th><th></th>{top}</tr><tr>{header}</tr>{body}</table>"
