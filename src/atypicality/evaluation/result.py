"""`Evaluation`: every table a report or a paper needs, frozen, with its JSON form. It computes and draws nothing."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from atypicality._version import __version__
from atypicality.evaluation.schema import (
    LATER,
    SCHEMA_VERSION,
    STATISTICS,
    TABLES,
    WHERE_KNOWN,
    Columns,
    Row,
    decode,
    encode,
)
from atypicality.terminal import few
from atypicality.validation import check_choice

__all__ = ["Evaluation"]

MOST_LISTED = 30  # values that an error names


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """What was measured: plain tables, made by `evaluate` or `compare`.

    Printing one shows the paper's layout, ECE and accuracy per group of atypicality for every method, the same by
    subgroup, and the log loss. The documentation page "Evaluation" lists every table and column.

    Attributes
    ----------
    kind : {"evaluate", "compare"}
        Fitted things on one data set, with sampling intervals; or refits over random halves, with means, standard
        errors and intervals over the splits.
    methods : tuple of str
    n_samples, n_classes, n_splits : int
        Rows of the outputs; columns of the logits; 1 for `evaluate`.
    settings : mapping
        The options it was made with: `n_groups`, `grid`, `n_bins`, `random_state`, `alpha` per method with sets,
        `guaranteed` coverage per method where that is less than 1 - alpha, whose `atypicality` the rows are cut by, and
        the `fingerprint` of the outputs.
    notes : tuple of str
        What a reader should know: groups that merged, tables that could not be made and why.
    tables : mapping of str to mapping of str to tuple
        Columns by table. Every table is there; one that could not be made is empty.
    version : str
        Of the package that made it.

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(500, n_classes=3)
    >>> evaluation = aty.evaluate({"model": world.probs}, world.outputs())
    >>> [row] = evaluation.table("overall", metric="accuracy")
    >>> row["count"], 0.5 < row["value"] < 1.0
    (500.0, True)
    >>> aty.Evaluation.from_json(evaluation.to_json()) == evaluation
    True
    """

    kind: str
    methods: tuple[str, ...]
    n_samples: int
    n_classes: int
    n_splits: int
    settings: Mapping[str, Any]
    notes: tuple[str, ...]
    tables: Mapping[str, Columns] = field(repr=False)
    version: str = __version__

    def __post_init__(self) -> None:
        frozen = {name: MappingProxyType(dict(self.tables[name])) for name in TABLES}
        object.__setattr__(self, "tables", MappingProxyType(frozen))
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    def table(self, name: str, **where: Any) -> list[Row]:
        """Rows of the table `name` as dictionaries, those whose columns equal `where`; classes with their `class_name`.

        A method, metric, subgroup or other name that does not exist is refused, with those that do. What exists and was
        not measured, such as the coverage of a method without sets, has no rows.

        >>> import atypicality as aty
        >>> evaluation = aty.evaluate("uncalibrated", aty.datasets.make_world(500).outputs())
        >>> len(evaluation.table("calibration_curve", method="uncalibrated", metric="accuracy"))
        10
        """
        columns = self._columns(name)
        for key in where:
            check_choice(key, "a column", tuple(columns))
        places: Sequence[int] = range(len(next(iter(columns.values()))))
        for key, value in where.items():
            column = columns[key]
            places = [place for place in places if column[place] == value]
        if not places:
            self._check_names(columns, where)
        chosen = ([column[place] for place in places] for column in columns.values())
        return [dict(zip(columns, values, strict=True)) for values in zip(*chosen, strict=True)]

    def _check_names(self, columns: Columns, where: Mapping[str, Any]) -> None:
        """Refuse a value by which no row of a table could be named; rows of samples are not all kept."""
        closed = set(columns) - set(STATISTICS) if "value" in columns else {"method"}
        for key in closed & where.keys():
            there = tuple(dict.fromkeys(columns[key]))
            known = {"method": self.methods, "metric": WHERE_KNOWN}.get(key, ())
            if there and where[key] not in (*there, *known):
                listed = list(map(repr, self.methods if key == "method" else there))
                raise ValueError(f"{key} must be one of {few(listed, MOST_LISTED)} in this table; got {where[key]!r}.")

    def to_frame(self, name: str, **where: Any) -> Any:
        """The table `name` as a pandas DataFrame, filtered by `where` like `table`; needs pandas.

        >>> import atypicality as aty
        >>> evaluation = aty.evaluate("uncalibrated", aty.datasets.make_world(500).outputs())
        >>> evaluation.to_frame("overall", metric="accuracy")["count"].tolist()
        [500.0]
        """
        rows = self.table(name, **where)
        try:
            from pandas import DataFrame
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "Evaluation.to_frame needs pandas: pip install pandas, or use Evaluation.table.", name="pandas"
            ) from error
        return DataFrame(rows, columns=list(self._columns(name)))

    def _columns(self, name: str) -> Columns:
        """Columns of a table, in which the name of a class follows its index: it is stored once, in `class_info`."""
        columns = self.tables[check_choice(name, "name", tuple(TABLES))]
        if "class_index" not in columns or "name" in columns:
            return columns
        info = self.tables["class_info"]
        names = dict(zip(info["class_index"], info["name"], strict=True))
        found = tuple(map(names.get, columns["class_index"]))
        return {"method": columns["method"], "class_index": columns["class_index"], "class_name": found, **columns}

    def report(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write one self-contained HTML page to `path`; `options` are those of `atypicality.report.write_report`.

        >>> import atypicality as aty, pathlib, tempfile
        >>> evaluation = aty.evaluate("uncalibrated", aty.datasets.make_world(500).outputs())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     evaluation.report(pathlib.Path(folder, "report.html"), title="Reliability of my model")
        ...     pathlib.Path(folder, "report.html").read_text(encoding="utf-8")[:15]
        '<!doctype html>'
        """
        from atypicality import write_report

        write_report(self, path, **options)

    def to_json(self, *, indent: int | None = None) -> str:
        """Everything as strict JSON text with stable keys, spread over lines with an `indent`.

        >>> import atypicality as aty, json
        >>> evaluation = aty.evaluate("uncalibrated", aty.datasets.make_world(500).outputs())
        >>> json.loads(evaluation.to_json())["methods"]
        ['uncalibrated']
        """
        header = {name: kind(getattr(self, name)) for name, kind in _HEADER.items()}
        tables = {name: encode(name, columns) for name, columns in self.tables.items()}
        document = {"schema": SCHEMA_VERSION} | header | {"tables": tables}
        return json.dumps(document, indent=indent, allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the `text` that `to_json` wrote; anything else is a ValueError that says what is wrong.

        >>> import atypicality as aty
        >>> evaluation = aty.evaluate("uncalibrated", aty.datasets.make_world(500).outputs())
        >>> aty.Evaluation.from_json(evaluation.to_json()).n_samples
        500
        """
        document = _parsed(text)
        tables = {name: {} for name, columns in LATER.items() if columns is None} | document["tables"]
        if set(tables) != set(TABLES):
            raise ValueError(f"text must hold the tables {', '.join(TABLES)}.")
        header: dict[str, Any] = {
            name: tuple(document[name]) if kind is list else document[name] for name, kind in _HEADER.items()
        }
        return cls(**header, tables={name: decode(name, tables[name]) for name in TABLES})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Evaluation) and self.to_json() == other.to_json()  # NaN equals NaN in text

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __repr__(self) -> str:
        from atypicality.evaluation.printing import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from atypicality.evaluation.printing import as_html

        return as_html(self)


_HEADER: dict[str, type] = {
    "version": str,
    "kind": str,
    "methods": list,
    "n_samples": int,
    "n_classes": int,
    "n_splits": int,
    "settings": dict,
    "notes": list,
}
"""Everything but the tables, by its type in JSON."""


def _parsed(text: str | bytes) -> dict[str, Any]:
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"text must be what Evaluation.to_json wrote; it is not JSON ({error}).") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA_VERSION:
        came = document.get("schema") if isinstance(document, dict) else None
        raise ValueError(f"text must have schema {SCHEMA_VERSION}; got {came!r:.60}. It needs a newer atypicality.")
    for name, kind in (_HEADER | {"tables": dict}).items():
        if type(document.get(name)) is not kind:
            raise ValueError(f"text must have {name!r} of type {kind.__name__}; got {document.get(name)!r:.60}.")
    if not all(isinstance(word, str) for word in document["methods"] + document["notes"]):
        raise ValueError("text must have 'methods' and 'notes' that are lists of strings.")
    return document


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")
