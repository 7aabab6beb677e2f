"""Tables with ours, the paper's and the difference in every cell, as plain text, CSV, Markdown and LaTeX."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from atypicality.paper.readings import Key, Printed, row_names
from atypicality.terminal import aligned

__all__ = ["Cell", "Table", "make_tables", "to_csv", "to_latex", "to_markdown", "to_records", "to_text"]

WORDS = {
    "ece": "ECE",
    "accuracy": "accuracy",
    "coverage": "coverage",
    "set_size": "set size",
    "rmsce": "RMSCE",
    "rmse": "the authors' rmse",
}
"""Metrics in words, in the order of their tables."""
FOOTNOTES = {
    "rmse": "as the authors' code has it: bins of 100 rows, weighted twice, the root taken twice; RMSCE is the formula"
}
CSV_COLUMNS = ("experiment", "atypicality", "model", "dataset", "row", "method", "metric")
CSV_NUMBERS = ("ours", "ours_stderr", "paper", "paper_stderr", "difference")
Grid = list[list[str]]


@dataclass(frozen=True)
class Cell:
    """Our mean over the seeds with its standard error, and what the paper printed."""

    ours: float
    error: float
    paper: float | None = None
    paper_error: float | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None where there is none."""
        return None if self.paper is None else self.ours - self.paper


@dataclass(frozen=True)
class Table:
    """One metric of one model: rows of groups, a cell for every method; `row_names` are what a row is named by."""

    experiment: str
    atypicality: str
    model: str
    dataset: str
    metric: str
    title: str
    row_names: tuple[str, ...]
    methods: tuple[str, ...]
    cells: Mapping[tuple[tuple[str, ...], str], Cell]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Rows in their order."""
        return list(dict.fromkeys(row for row, _ in self.cells))

    def grid(self, errors: bool = False) -> tuple[list[tuple[str, int]], Grid]:
        """Methods, each over its number of columns, and the lines below, header first, with standard errors or not."""
        columns = [self._columns(method) for method in self.methods]
        over = [*(("", 1) for _ in self.row_names), *zip(self.methods, map(len, columns), strict=True)]
        body = [[*row, *chain(*(self._words(row, method, errors) for method in self.methods))] for row in self.rows]
        return over, [[*self.row_names, *chain(*columns)], *body]

    def _columns(self, method: str) -> list[str]:
        cells = [cell for (_, name), cell in self.cells.items() if name == method]
        if all(cell.paper is None for cell in cells):
            return ["ours"]
        if all(math.isnan(cell.ours) for cell in cells):
            return ["paper"]
        return ["ours", "paper", "diff."]

    def _words(self, row: tuple[str, ...], method: str, errors: bool) -> list[str]:
        columns, cell = self._columns(method), self.cells.get((row, method))
        if cell is None:
            return [""] * len(columns)
        ours = _number(cell.ours, cell.error if errors else None)
        paper = _number(cell.paper, cell.paper_error if errors else None, digits=3)  # as the paper prints it
        return [paper] if "ours" not in columns else [ours, paper, _signed(cell.difference)][: len(columns)]

    @property
    def footnote(self) -> str:
        """What a reader must know of this metric."""
        return FOOTNOTES.get(self.metric, "")


def make_tables(naming: Mapping[str, str], seeds: Sequence[Mapping[Key, float]], paper: Printed) -> list[Table]:
    """One table per metric, from the values of every seed and the paper's, or from the paper's alone without seeds.

    `naming` fills the texts of `Table`.
    """
    tables = []
    keys = list(dict.fromkeys(key for seed in seeds for key in seed)) or list(paper)
    order = list(WORDS)
    metrics = dict.fromkeys(metric for metric, _, _ in keys)
    for metric in sorted(metrics, key=lambda name: order.index(name) if name in order else len(order)):
        cells = {
            (row, method): _cell([seed[name, row, method] for seed in seeds if (name, row, method) in seed], paper, key)
            for key in keys
            for name, row, method in [key]
            if name == metric
        }
        methods = tuple(dict.fromkeys(method for _, method in cells))
        title = f"{WORDS.get(metric, metric)}: {naming['title']}"
        names = {name: naming[name] for name in ("experiment", "atypicality", "model", "dataset")}
        rows = row_names(naming["experiment"], metric)
        tables.append(Table(metric=metric, row_names=rows, methods=methods, cells=cells, **names, title=title))
    return tables


def to_text(table: Table, errors: bool = False) -> str:
    """Aligned columns for a terminal, with standard errors or not.

    >>> one = Table("balanced", "GMM", "net", "data", "ece", "ECE", ("quantile",), ("ts",),
    ...             {(("1",), "ts"): Cell(0.05, 0.01, 0.04, 0.01)})
    >>> print(to_text(one))
    ECE
              ts
    quantile  ours   paper  diff.
    1         0.050  0.040  +0.010
    """
    over, lines = table.grid(errors)
    return "\n".join(line for line in [table.title, *aligned(lines, over), table.footnote] if line)


def to_markdown(table: Table) -> str:
    """A Markdown table under a heading, with standard errors."""
    over, [below, *body] = table.grid(errors=True)
    above = [name for name, span in over for _ in range(span)]
    header = [f"{method} {column}".strip() for method, column in zip(above, below, strict=True)]
    rule = ["---:" if name else "---" for name in above]
    lines = ["| " + " | ".join(word.replace("|", r"\|") for word in line) + " |" for line in [header, rule, *body]]
    note = ["", table.footnote.replace("*", r"\*")] if table.footnote else []
    return "\n".join([f"### {table.title}", "", *lines, *note, ""])


def to_latex(table: Table) -> str:
    """A LaTeX table (booktabs), with standard errors."""
    over, lines = table.grid(errors=True)
    groups = [rf"\multicolumn{{{span}}}{{c}}{{{_tex(name)}}}" if name else "" for name, span in over]
    aligns = "".join("r" * span if name else "l" for name, span in over)
    rows = [" & ".join(line) + r" \\" for line in [groups, *(map(_tex, line) for line in lines)]]
    rows.insert(2, r"\midrule")
    caption = _tex(table.title + (f" ({table.footnote})" if table.footnote else ""))
    above = [r"\begin{table}", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{aligns}}}", r"\toprule"]
    return "\n".join([*above, *rows, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def to_records(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """Every cell of the tables as one tidy row; None where there is no number."""
    records = []
    for table in tables:
        names = (table.experiment, table.atypicality, table.model, table.dataset)
        for (row, method), cell in table.cells.items():
            numbers = (cell.ours, cell.error, cell.paper, cell.paper_error, cell.difference)
            known = (None if value is None or math.isnan(value) else value for value in numbers)
            words = (*names, " / ".join(row), method, table.metric)
            records.append(dict(zip((*CSV_COLUMNS, *CSV_NUMBERS), (*words, *known), strict=True)))
    return records


def to_csv(tables: Sequence[Table]) -> str:
    """The records of the tables, with a header."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*CSV_COLUMNS, *CSV_NUMBERS))
    for record in to_records(tables):
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in record.values()])
    return stream.getvalue()


def _cell(values: list[float], paper: Printed, key: Key) -> Cell:
    numbers = np.array(values, np.float64)
    numbers = numbers[~np.isnan(numbers)]
    mean = float(numbers.mean()) if numbers.size else math.nan
    error = float(numbers.std(ddof=1) / math.sqrt(numbers.size)) if numbers.size > 1 else math.nan
    printed, printed_error = paper.get(key, (None, None))
    return Cell(mean, error, printed, printed_error)


def _number(value: float | None, error: float | None = None, digits: int | None = None) -> str:
    if value is None or math.isnan(value):
        return "-"
    digits = digits or (3 if abs(value) < 100 else 0)
    spread = "" if error is None or math.isnan(error) else f" ± {error:.{digits}f}"
    return f"{value:.{digits}f}{spread}"


def _signed(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:+.3f}"


_TEX = {ord(mark): rf"\{mark}" for mark in "&%$#_{}"} | {
    ord("\\"): r"\textbackslash{}",
    ord("~"): r"\textasciitilde{}",
    ord("^"): r"\textasciicircum{}",
    ord("±"): r"$\pm$",
}


def _tex(text: str) -> str:
    return text.translate(_TEX)
