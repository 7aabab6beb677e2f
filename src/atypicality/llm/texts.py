"""Texts and their labels from files: JSON Lines, CSV, TSV, Parquet, or lines of plain text; objects from JSON Lines."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from atypicality.outputs.paths import check_source
from atypicality.terminal import listed, printable
from atypicality.validation import require, warn

__all__ = ["FIRST_WORD", "READERS", "Texts", "read_objects", "read_texts", "warn_of_fields"]

FIRST_WORD = "first-word"
PARQUET_ROWS = 1024
MOST_NAMED = 8  # fields that are not read, of which a warning names no more
T = TypeVar("T")
Records = Iterator[dict[str, Any]]


class Texts(NamedTuple):
    """Inputs, and the classes as the file names them, or None."""

    inputs: list[str]
    labels: list[str] | None


def read_texts(
    path: str | os.PathLike[str], *, text: Sequence[str] = ("text",), label: str | None = None, encoding: str = "utf-8"
) -> Texts:
    """Read a file by its ending: `.jsonl`, `.csv`, `.tsv` (with a header), `.parquet`, or `.txt` (one text per line).

    The columns `text` are joined by a space. The column `label` is the class; "first-word" takes it off the front of
    the text, as the TREC files write it.
    """
    path = Path(path)
    if path.suffix.lower() not in READERS:
        raise ValueError(f"{path.name!r} has no known ending: use {', '.join(READERS)}.")
    check_source(path)
    try:
        return _columns(READERS[path.suffix.lower()](path, encoding), tuple(text), label)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name!r} is not {encoding} at byte {error.start}; give its encoding.") from None
    except (ModuleNotFoundError, MemoryError, PermissionError):
        raise
    except Exception as error:  # damaged bytes make the libraries below raise almost anything
        raise ValueError(f"{path.name!r}: {printable(error)}") from error


def read_objects(
    path: str | os.PathLike[str], read: Callable[[Mapping[str, Any]], T], fields: Sequence[str] | None = None
) -> list[T]:
    """What `read` makes of the object in each line of a JSON Lines file (UTF-8); errors name the file and the line.

    Where `fields` are given, one warning names all others that the file has.
    """
    name, found, others = repr(Path(path).name), list[T](), dict[str, None]()
    with open(check_source(Path(path)), "rb") as file:
        for number, line in ((number, line) for number, line in enumerate(file, start=1) if line.strip()):
            try:
                record = json.loads(line.decode("utf-8-sig").strip(), parse_constant=_refuse_constant)
                if not isinstance(record, dict):
                    raise ValueError(f"must be an object of named values; got a {type(record).__name__}")
                found.append(read(record))
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                reason = "is nested too deeply" if isinstance(error, RecursionError) else printable(error)
                if isinstance(error, json.JSONDecodeError):
                    reason = _no_json(error)
                raise ValueError(f"{name}, line {number}: {reason.rstrip('.')}.") from None
            others |= dict.fromkeys(record.keys() - (fields or record))
    warn_of_fields(name, others, fields or ())
    return found


def warn_of_fields(source: str, others: Mapping[str, None], fields: Sequence[str]) -> None:
    """Warn of fields that are not read, where there are any, beside those that are."""
    if others:
        shown = listed(f"{other:.40}" for other in sorted(others)[:MOST_NAMED]) + ", ..." * (len(others) > MOST_NAMED)
        warn(f"{source} has fields that are not read: {shown}. Those that are: {listed(fields)}.")


def _no_json(error: json.JSONDecodeError) -> str:
    """What is wrong with a line, and where in it; one that ends too early is cut off."""
    cut = error.msg.startswith("Unterminated") or error.pos >= len(error.doc)
    reason = (
        f"is no JSON at character {error.colno}: {printable(error.msg).removesuffix(' at').removesuffix(' starting')}"
    )
    return reason + ("; the line is cut off" if cut else "")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON; leave out or write null for a number that is not known")


def _columns(records: Records, text: tuple[str, ...], label: str | None) -> Texts:
    inputs, labels = [], []
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise ValueError(f"record {number} must be an object")
        words = " ".join(_cell(record, name, number) for name in text)
        if label == FIRST_WORD:
            code, _, words = words.partition(" ")
            labels.append(code)
        elif label is not None:
            labels.append(_cell(record, label, number))
        inputs.append(words)
    return Texts(inputs, None if label is None else labels)


def _cell(record: dict[str, Any], name: str, number: int) -> str:
    value = record.get(name)
    if value is None:
        raise ValueError(f"record {number} has no {name!r}; it has {listed(record)}. Name its columns: text=, label=.")
    return str(value)


def _read_lines(path: Path, encoding: str) -> Records:
    with open(path, encoding=encoding) as file:
        yield from ({"text": line.rstrip("\r\n")} for line in file if line.strip())


def _read_jsonl(path: Path, encoding: str) -> Records:
    with open(path, encoding=encoding) as file:
        yield from (json.loads(line) for line in file if line.strip())


def _read_table(path: Path, encoding: str) -> Records:
    with open(path, encoding=encoding, newline="") as file:
        yield from csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")


def _read_parquet(path: Path, encoding: str) -> Records:
    pq = require("pyarrow.parquet", extra="parquet", feature="reading Parquet files")
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(PARQUET_ROWS):
            yield from batch.to_pylist()


READERS: dict[str, Callable[[Path, str], Records]] = {
    ".jsonl": _read_jsonl,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".parquet": _read_parquet,
    ".txt": _read_lines,
}
