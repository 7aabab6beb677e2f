"""Columns of .csv and .tsv files, as arrays: labels, ids and attributes, or a matrix as columns name_0, name_1, ..."""

import csv
import re
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.outputs.limits import UnreadableFileError, refuse_size
from atypicality.validation import warn

__all__ = ["TABLES", "cut_warning", "place_in", "read_table", "refuse_answers", "repeated"]

TABLES = {".csv": ",", ".tsv": "\t"}
"""Endings of tables, and what separates their columns."""

BATCH_ROWS = 4096
LONGEST_NUMBERS = 100  # characters of two of them
INTEGER = re.compile(r"-?(0|[1-9]\d{0,17})")
NUMBER = re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?|nan", re.IGNORECASE)
"""Digits behind a zero, as in 007, are no number: they are somebody's name."""
NUMBERED = re.compile(r"(?P<name>.+?)(?:[._](?P<plain>\d+)|\[(?P<index>\d+)\])")


def read_table(path: Path, max_bytes: int) -> dict[str, NDArray[Any]]:
    """One array (n,) per column: whole numbers, numbers or text; numeric columns name_0, name_1, ... are one matrix.

    The first line names the columns. A cell without a value is refused.
    """
    with open(path, newline="", encoding="utf-8-sig") as stream:
        cells = csv.reader(stream, delimiter=TABLES.get(path.suffix.lower(), ","), strict=True)
        header = _checked_header(next(cells, []), path)
        pieces, left, rows = [], max_bytes, _checked_rows(cells, header, path)
        while batch := list(islice(rows, BATCH_ROWS)):
            pieces.append(np.array(batch, str))
            left -= pieces[-1].nbytes
            refuse_size(0 if left >= 0 else max_bytes - left, max_bytes, path, "all columns", max_bytes)
    if message := cut_warning(path):
        warn(message)
    whole = np.concatenate(pieces) if pieces else np.empty((0, len(header)), str)
    return _joined({name: _typed(column) for name, column in zip(header, whole.T, strict=True)})


def cut_warning(path: Path) -> str | None:
    """What to say of a table that ends in a number without a line end, which may be a part of one; None else.

    Numbers are with decimals, there or in the cell before: labels and ids may well be written without a last line end.
    """
    with open(path, "rb") as stream:
        stream.seek(max(0, path.stat().st_size - LONGEST_NUMBERS))
        end = stream.read().decode("utf-8", "replace")
    *_, before, last = ["", *re.split(rf"[\r\n{TABLES[path.suffix.lower()]}]", end)]
    numbers = [cell for cell in (before, last) if NUMBER.fullmatch(cell.strip())]
    if last not in numbers or not any(sign in "".join(numbers) for sign in ".eE"):
        return None
    return (
        f"{path.name!r} ends in {last} without a line end: its last number may be cut, and rows may be missing. Copy "
        "it again, or end its last line."
    )


def place_in(file: str, row: int) -> str:
    """Where a row is for a person who looks into a file: its line in a table, whose first one names the columns.

    >>> place_in("day.csv", 0), place_in("said.jsonl", 0), place_in("day.npz", 0)
    ('line 2', 'line 1', 'row 0')
    """
    endings = {part.rpartition(".")[2].lower() for part in file.split(",")}
    if endings <= {"csv", "tsv"}:
        return f"line {row + 2}"
    return f"line {row + 1}" if endings == {"jsonl"} else f"row {row}"


def repeated(names: Iterable[str], among: Container[str] | None = None) -> tuple[str, int, int] | None:
    """The first name, or of those `among` some, that stands there twice, and its two rows; None where all differ.

    >>> repeated(["a", "b", "a", "b"]), repeated(["a", "b"])
    (('a', 0, 2), None)
    """
    seen: dict[str, int] = {}
    for row, name in enumerate(names):
        if (first := seen.setdefault(name, row)) != row and (among is None or name in among):
            return name, first, row
    return None


def refuse_answers(names: Iterable[str], file: str) -> None:
    """Refuse columns that are answers of a head, which `predict` writes, and no outputs of a model."""
    if {"confidence", "advice"} <= set(names):
        raise UnreadableFileError(
            f"{file!r} holds answers, as `predict` writes them; give the model's outputs: logits, and embeddings or "
            "atypicality."
        )


def _checked_header(header: list[str], path: Path) -> list[str]:
    names = [name.strip() for name in header]
    if not names or all(NUMBER.fullmatch(name) or not name for name in names):
        raise UnreadableFileError(
            f"{path.name!r}: the first line must name the columns, such as labels; it holds "
            f"{'no name' if names else 'nothing'}. Write a line of names above the values."
        )
    if len(names) == 1 and (other := next((sign for sign in ";\t|" if sign in names[0]), None)):
        raise UnreadableFileError(
            f"{path.name!r}: the first line names one column, {names[0]!r:.60}, with {other!r} in it. Separate columns "
            "by commas, or by tabs in a .tsv file."
        )
    if odd := sorted({name for name in names if names.count(name) > 1}):
        raise UnreadableFileError(f"{path.name!r}: two columns have the name {odd[0]!r}. Rename one.")
    return names


def _checked_rows(cells: Any, header: list[str], path: Path) -> Iterator[list[str]]:
    """The rows that a CSV reader gives; blank lines may end the file, and stand nowhere else."""
    blank, width = 0, len(header)
    for row in cells:
        filled = sum(bool(cell.strip()) for cell in row)
        if blank or (row and not filled == len(row) == width):
            refuse_answers(header, path.name)
            if not blank and next(cells, None) is None and not _ends_a_line(path):
                raise UnreadableFileError(
                    f"{path.name!r}: its last line, {cells.line_num}, has {filled} of {width} values: it is cut, or "
                    "still being written. Copy it again."
                )
            raise UnreadableFileError(
                f"{path.name!r}: every row needs a value in each of the {width} columns; line "
                f"{blank or cells.line_num} has {0 if blank else filled} values in {0 if blank else len(row)} cells. "
                "Drop such rows, in the other arrays too."
            )
        if row:
            yield row
        else:
            blank = cells.line_num


def _ends_a_line(path: Path) -> bool:
    with open(path, "rb") as stream:
        stream.seek(-1, 2)
        return stream.read() in b"\r\n"


def _typed(column: NDArray[Any]) -> NDArray[Any]:
    cells = [cell.strip() for cell in column.tolist()]
    if all(map(INTEGER.fullmatch, cells)):
        return np.array(cells, str).astype(np.int64)
    if all(map(NUMBER.fullmatch, cells)):
        return np.array(cells, str).astype(np.float64)
    return np.array(cells, str)


def _joined(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Numeric columns that count from 0 under one name, two or more, as one matrix in the place of the first."""
    parts: dict[str, dict[int, str]] = {}
    for column, values in columns.items():
        if (found := NUMBERED.fullmatch(column)) and values.dtype.kind in "if":
            parts.setdefault(found["name"], {})[int(found["plain"] or found["index"])] = column
    for name, places in parts.items():
        if len(places) > 1 and sorted(places) == list(range(len(places))) and name not in columns:
            columns[name] = np.stack([columns.pop(places[place]) for place in range(len(places))], axis=1)
    return columns
