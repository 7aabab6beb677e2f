"""The tables of an `Evaluation`: names, columns and types. These keys are what reports and other programs rely on."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

__all__ = [
    "LATER", "SCHEMA_VERSION", "STATISTICS", "TABLES", "Columns", "Row", "decode", "encode", "keys_of",
    "measured_rows", "to_columns",
]  # fmt: skip

SCHEMA_VERSION = 1
"""Rises when a table or column is renamed, removed or changes its meaning; a new method or metric does not raise it."""

Row = dict[str, Any]
Columns = Mapping[str, tuple[Any, ...]]

STATISTICS = {"count": "number", "value": "number", "standard_error": "number", "low": "number", "high": "number"}
"""The end of every measured row: how many samples, the value, its standard error and its 95 % interval."""


def _measured(**keys: str) -> dict[str, str]:
    return keys | STATISTICS


TABLES: dict[str, dict[str, str]] = {
    "overall": _measured(method="string", metric="string"),
    "atypicality_groups": _measured(method="string", group="integer", metric="string"),
    "confidence_groups": _measured(method="string", group="integer", metric="string"),
    "class_groups": _measured(method="string", group="integer", metric="string"),
    "classes": _measured(method="string", class_index="integer", metric="string"),
    "grid": _measured(method="string", group="integer", confidence_group="integer", metric="string"),
    "class_grid": _measured(method="string", group="integer", confidence_group="integer", metric="string"),
    "quadrants": _measured(method="string", quadrant="string", metric="string"),
    "advice": _measured(method="string", advice="string", metric="string"),
    "subgroups": _measured(method="string", attribute="string", subgroup="string", metric="string"),
    "calibration_curve": _measured(method="string", bin="integer", metric="string"),
    "risk_coverage": _measured(method="string", percent="integer", metric="string"),
    "temperatures": _measured(group="integer"),
    "class_scores": _measured(method="string", class_index="integer"),
    "set_sizes": _measured(method="string", size="integer", metric="string"),
    "coverage_gaps": _measured(method="string", axis="string", worst="string") | {"target": "number", "gap": "number"},
    "group_ranges": {"axis": "string", "method": "string", "group": "integer"}
    | {"count": "number", "low": "number", "high": "number"},
    "class_info": {"class_index": "integer", "name": "string", "class_atypicality": "number", "group": "integer"},
    "suspects": {"row": "integer", "label": "integer", "suggested": "integer", "score": "number"},
    "duplicates": {"row": "integer", "train_row": "integer", "distance": "number", "same_label": "boolean"},
    "samples": {
        "row": "integer",
        "id": "string",
        "label": "integer",
        "atypicality": "number",
        "group": "integer",
        "grid_group": "integer",
        "class_group": "integer",
        "weight": "number",
        "subgroups": "string",
    },
    "predictions": {
        "method": "string",
        "row": "integer",
        "prediction": "integer",
        "confidence": "number",
        "confidence_group": "integer",
        "quadrant": "string",
        "set_size": "integer",
        "covered": "boolean",
        "advice": "string",
        "members": "string",
    },
}
LATER: dict[str, tuple[str, ...] | None] = {
    "advice": None,
    "suspects": None,
    "duplicates": None,
    "samples": ("weight", "subgroups"),
    "predictions": ("advice", "members"),
}
"""Tables, and columns of a table, that documents of earlier versions lack; they are empty there."""

_PLAIN = {"string": str, "integer": int, "number": float, "boolean": bool}
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def keys_of(table: str) -> tuple[str, ...]:
    """The columns that name a row of a measured table, in order."""
    return tuple(name for name in TABLES[table] if name not in STATISTICS)


def measured_rows(keys: Iterable[Row], columns: Iterable[ArrayLike]) -> list[Row]:
    """Rows of a measured table from their keys and the columns of `STATISTICS`, one entry per row."""
    values = zip(*(np.asarray(column).tolist() for column in columns), strict=True)
    return [key | dict(zip(STATISTICS, row, strict=True)) for key, row in zip(keys, values, strict=True)]


def to_columns(table: str, rows: Iterable[Row]) -> Columns:
    """Rows as columns of plain Python values; a column that a row lacks holds None there."""
    listed = list(rows)
    columns = {name: [row.get(name) for row in listed] for name in TABLES[table]}
    return {
        name: tuple([None if value is None else _PLAIN[kind](value) for value in columns[name]])
        for name, kind in TABLES[table].items()
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
