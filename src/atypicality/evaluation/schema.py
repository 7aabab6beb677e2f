"""The tables of an `Evaluation`: names, columns and types. These keys are what reports and other programs rely on."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "LATER", "SCHEMA_VERSION", "STATISTICS", "TABLES", "WHERE_KNOWN", "Columns", "Row", "decode", "encode",
    "keys_of", "measured_rows", "records", "to_columns",
]  # fmt: skip

SCHEMA_VERSION = 1
"""Rises when a table or column is renamed, removed or changes its meaning; a new method or metric does not raise it."""

Row = dict[str, Any]
Columns = Mapping[str, tuple[Any, ...]]

_KINDS = {
    "string": "method metric quadrant advice attribute subgroup axis worst name id subgroups members reference verdict "
    "highest lowest",
    "integer": "group class_index confidence_group bin percent size row label suggested train_row grid_group "
    "class_group prediction set_size lost gained comparisons",
    "number": "count value standard_error low high target gap class_atypicality atypicality score distance weight "
    "confidence p_value adjusted",
    "boolean": "same_label covered accepted",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def _columns(names: str) -> dict[str, str]:
    """Columns and the kind of their values: a name means the same in every table."""
    return {name: _KIND_OF[name] for name in names.split()}


STATISTICS = _columns("count value standard_error low high")
"""The end of every measured row: how many samples, the value, its standard error and its 95 % interval."""

TABLES: dict[str, dict[str, str]] = {
    "overall": _columns("method metric") | STATISTICS,
    "atypicality_groups": _columns("method group metric") | STATISTICS,
    "confidence_groups": _columns("method group metric") | STATISTICS,
    "class_groups": _columns("method group metric") | STATISTICS,
    "classes": _columns("method class_index metric") | STATISTICS,
    "predicted_classes": _columns("method class_index metric") | STATISTICS,
    "grid": _columns("method group confidence_group metric") | STATISTICS,
    "class_grid": _columns("method group confidence_group metric") | STATISTICS,
    "quadrants": _columns("method quadrant metric") | STATISTICS,
    "advice": _columns("method advice metric") | STATISTICS,
    "subgroups": _columns("method attribute subgroup metric") | STATISTICS,
    "calibration_curve": _columns("method bin metric") | STATISTICS,
    "risk_coverage": _columns("method percent metric") | STATISTICS,
    "temperatures": _columns("group") | STATISTICS,
    "class_scores": _columns("method class_index") | STATISTICS,
    "set_sizes": _columns("method size metric") | STATISTICS,
    "coverage_gaps": _columns("method axis worst") | STATISTICS | _columns("target gap"),
    "changes": _columns("method reference axis group class_index attribute subgroup metric")
    | STATISTICS
    | _columns("lost gained p_value comparisons adjusted verdict"),
    "subgroup_gaps": _columns("method attribute metric highest lowest") | STATISTICS,
    "signals": _columns("method name metric") | STATISTICS,
    "group_ranges": _columns("axis method group count low high"),
    "class_info": _columns("class_index name class_atypicality group"),
    "suspects": _columns("row label suggested score"),
    "duplicates": _columns("row train_row distance same_label"),
    "samples": _columns("row id label atypicality group grid_group class_group weight subgroups"),
    "predictions": _columns(
        "method row prediction confidence confidence_group quadrant set_size covered advice members accepted"
    ),
}
WHERE_KNOWN = (
    "coverage", "set_size", "atypicality_gain", "atypicality_auroc", "accepted_share", "accepted_risk",
    "coverage_gap_class", "coverage_gap_size", "worst_sixth_coverage", "worst_cell_coverage",
    "worst_size_coverage", "coverage_shortfall_class",
)  # fmt: skip
"""Metrics that a table lacks where no method has sets, atypicality or acceptance; others it has always, or never."""
LATER: dict[str, tuple[str, ...] | None] = {
    "advice": None,
    "predicted_classes": None,
    "changes": None,
    "subgroup_gaps": None,
    "signals": None,
    "suspects": None,
    "duplicates": None,
    "samples": ("weight", "subgroups"),
    "predictions": ("advice", "members", "accepted"),
}
"""Tables, and columns of a table, that documents of earlier versions lack; they are empty there."""

_PLAIN = {"string": str, "integer": int, "number": float, "boolean": bool}
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def keys_of(table: str) -> tuple[str, ...]:
    """The columns that name a row of a measured table, in order: those before its statistics."""
    return tuple(itertools.takewhile(lambda name: name not in STATISTICS, TABLES[table]))


def records(columns: Mapping[str, ArrayLike]) -> list[Row]:
    """Rows as dictionaries of plain values, from a column (n,) for each name."""
    values = (np.asarray(column).tolist() for column in columns.values())
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def measured_rows(keys: Iterable[Row], columns: Iterable[ArrayLike]) -> list[Row]:
    """Rows of a measured table from their keys and the columns of `STATISTICS`, one entry per row."""
    rows = records(dict(zip(STATISTICS, columns, strict=True)))
    return [key | row for key, row in zip(keys, rows, strict=True)]


def to_columns(table: str, rows: Iterable[Row]) -> Columns:
    """Rows as columns of plain Python values; a column that a row lacks holds None there."""
    listed, kinds = list(rows), {name: _PLAIN[kind] for name, kind in TABLES[table].items()}
    return {
        name: tuple([None if (value := row.get(name)) is None else plain(value) for row in listed])
        for name, plain in kinds.items()
    }


def encode(table: str, columns: Columns) -> dict[str, list[Any]]:
    """Columns as JSON values: in a column of numbers what JSON has no word for is "NaN", "Infinity" or "-Infinity"."""
    return {
        name: [_word(value) for value in columns[name]] if kind == "number" else list(columns[name])
        for name, kind in TABLES[table].items()
    }


def decode(table: str, columns: Any) -> Columns:
    """The inverse of `encode`; a missing column or a value of another type is an error that names it."""
    if isinstance(columns, dict) and table in LATER and columns.keys() <= TABLES[table].keys():
        length = next((len(values) for values in columns.values() if isinstance(values, list)), 0)
        columns = {name: [None] * length for name in LATER[table] or TABLES[table]} | columns
    if not isinstance(columns, dict) or set(columns) != set(TABLES[table]):
        raise ValueError(f"table {table!r} must have the columns {', '.join(TABLES[table])}.")
    lengths = {len(values) for values in columns.values() if isinstance(values, list)}
    if len(lengths) != 1 or not all(isinstance(values, list) for values in columns.values()):
        raise ValueError(f"table {table!r} must have columns that are lists of one length.")
    return {
        name: tuple(_value(value, kind, f"{table}.{name}") for value in columns[name])
        for name, kind in TABLES[table].items()
    }


def _word(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _value(value: Any, kind: str, where: str) -> Any:
    if value is None:
        return None
    if kind == "number" and isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if kind == "number" and type(value) is int:
        return float(value)
    if type(value) is not _PLAIN[kind]:
        raise ValueError(f"{where} must hold values of type {kind}; got {value!r:.60}.")
    return value
