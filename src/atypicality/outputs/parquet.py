"""Parquet: one column per array, fixed-size lists for matrices; what is not one value per row sits in the schema.

Rows come and go in batches. Under a memory limit a large column goes batch by batch into a scratch array, whether
it comes from one file or from the files of a folder; what is written is written in row groups of some megabytes, so
that it can be read so.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.blocks.spill import ScratchError
from atypicality.outputs.limits import CUT, UnreadableFileError, refuse_size
from atypicality.outputs.paths import check_source
from atypicality.validation import check_names, require

__all__ = ["read_parquet", "write_parquet", "write_pieces"]

Arrays = dict[str, NDArray[Any]]

BATCH_ROWS = 4096
GROUP_BYTES = 32 << 20  # size of a row group that is written
PER_CLASS = ("class_names", "class_atypicality")


def read_parquet(paths: Sequence[Path], max_bytes: int) -> Arrays:
    """The columns of a Parquet file, or of several with the same columns, one behind the other.

    Files are mapped: the library would otherwise read a column of a whole row group, which may be all rows, at once.
    """
    pq = require("pyarrow.parquet", extra="parquet", feature="reading Parquet files")
    with contextlib.ExitStack() as stack:
        files = {path: stack.enter_context(_opened(path, pq)) for path in paths}
        schema = _common_schema({path: file.schema_arrow for path, file in files.items()})
        arrays = _read_columns(files, schema, max_bytes)
    extra = json.loads((schema.metadata or {}).get(b"atypicality", b"{}"))
    return arrays | {name: check_names(values, name) for name, values in extra.items()}


def write_parquet(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays with one entry per row, and those of `PER_CLASS`, which sit in the schema."""
    per_class = {name: arrays[name].tolist() for name in PER_CLASS if name in arrays}
    rows = {name: array for name, array in arrays.items() if name not in per_class}
    n_rows = max((len(array) for array in rows.values()), default=0)
    width = sum(array[:1].nbytes for array in rows.values())
    height = blocks.block_rows(width, budget=GROUP_BYTES)
    slices = list(blocks.row_slices(n_rows, height)) or [slice(0, 0)]
    pieces = ({name: array[part] for name, array in rows.items()} for part in slices)
    write_pieces(path, blocks.seen(pieces, n_rows, height), {"atypicality": json.dumps(per_class)})


def write_pieces(path: Path, pieces: Iterable[Arrays], metadata: Mapping[str, str] | None = None) -> None:
    """Write a table that comes in pieces of rows, at least one, as row groups of some megabytes."""
    pa = require("pyarrow", extra="parquet", feature="writing Parquet files")
    pq = require("pyarrow.parquet", extra="parquet", feature="writing Parquet files")
    tables = (pa.table({name: _to_column(array, pa) for name, array in piece.items()}) for piece in pieces)
    with contextlib.ExitStack() as stack:
        writer = None
        for table in _gathered(tables, pa):
            if writer is None:
                schema = table.schema.with_metadata(dict(metadata or {}))
                writer = stack.enter_context(pq.ParquetWriter(path, schema))
            writer.write_table(table.replace_schema_metadata(schema.metadata))


def _gathered(tables: Iterable[Any], pa: Any) -> Iterator[Any]:
    """Tables joined until they are as large as a row group."""
    waiting: list[Any] = []
    for table in tables:
        waiting.append(table)
        if sum(part.nbytes for part in waiting) >= GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say which of several files it is that cannot be read."""
    try:
        yield
    except (UnreadableFileError, MemoryError, PermissionError, ScratchError):
        raise
    except Exception as error:  # damaged bytes make the library raise almost anything
        raise UnreadableFileError(
            f"{path.name!r} is not a readable Parquet file: {str(error).strip().rstrip('.')}. {CUT}"
        ) from error


def _opened(path: Path, pq: Any) -> Any:
    with _naming(path):
        return pq.ParquetFile(check_source(path), memory_map=True)


def _batches(files: Mapping[Path, Any], height: int) -> Iterator[tuple[Path, Any]]:
    for path, file in files.items():
        batches = file.iter_batches(height)
        while True:
            with _naming(path):
                batch = next(batches, None)
            if batch is None:
                break
            yield path, batch


def _common_schema(schemas: Mapping[Path, Any]) -> Any:
    first, common = next(iter(schemas.items()))
    for path, schema in schemas.items():
        if not schema.equals(common):
            raise UnreadableFileError(
                f"the Parquet files of a folder must have the same columns; {path.name!r} differs from {first.name!r}."
            )
    return common


def _read_columns(files: Mapping[Path, Any], schema: Any, max_bytes: int) -> Arrays:
    path = next(iter(files))
    left, n_rows = max_bytes, sum(file.metadata.num_rows for file in files.values())
    columns = {name: _Column(name, n_rows, path, max_bytes) for name in schema.names}
    width = sum(getattr(field.type, "list_size", 1) * 8 for field in schema)
    height = min(BATCH_ROWS, blocks.block_rows(width, budget=blocks.GEMM_BYTES, minimum=64))
    refuse_size(height * width, left, path, "one batch", max_bytes)
    for path, batch in blocks.seen(_batches(files, height), n_rows, height):
        left -= batch.nbytes
        refuse_size(0 if left >= 0 else max_bytes - left, max_bytes, path, "all columns", max_bytes)
        with _naming(path):
            for column, values in zip(columns.values(), batch.columns, strict=True):
                column.add(_column_to_numpy(values, column.name, path))
    return {name: column.whole() for name, column in columns.items()}


class _Column:
    """A column that grows batch by batch: as pieces in memory, or in the scratch array that its claimed size needs."""

    def __init__(self, name: str, n_rows: int, path: Path, max_bytes: int) -> None:
        self.name, self._n_rows, self._path, self._limit = name, n_rows, path, max_bytes
        self._pieces: list[NDArray[Any]] = []
        self._scratch: NDArray[Any] | None = None
        self._filled = 0

    def add(self, values: NDArray[Any]) -> None:
        """Take in the next rows."""
        if not self._filled:
            self._begin(values)
        if self._scratch is None:
            self._pieces.append(values)
        elif self._filled + len(values) > self._n_rows or values.shape[1:] != self._scratch.shape[1:]:
            raise UnreadableFileError(f"{self._path.name!r}: column {self.name!r} holds more than it claims.")
        else:
            self._scratch[self._filled : self._filled + len(values)] = values
        self._filled += len(values)

    def _begin(self, values: NDArray[Any]) -> None:
        size = self._n_rows * values[:1].nbytes
        if values.dtype.kind != "U" and blocks.is_large(size):  # text has no width before all of it is read
            refuse_size(size, self._limit, self._path, self.name, self._limit)
            self._scratch = blocks.empty((self._n_rows, *values.shape[1:]), values.dtype)

    def whole(self) -> NDArray[Any]:
        """All rows."""
        if self._filled != self._n_rows:
            raise UnreadableFileError(
                f"{self._path.name!r}: column {self.name!r} claims {self._n_rows} rows and holds {self._filled}."
            )
        if self._scratch is not None:
            return self._scratch
        return np.concatenate(self._pieces) if self._pieces else np.empty(0)


def _column_to_numpy(column: Any, name: str, path: Path) -> NDArray[Any]:
    if column.null_count:
        raise UnreadableFileError(f"{path.name!r}: column {name!r} has {column.null_count} missing values. Drop them.")
    if not hasattr(column.type, "value_type") or hasattr(column.type, "index_type"):
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return check_names(values, f"column {name!r}").astype(str) if values.dtype.kind == "O" else values
    values = column.flatten().to_numpy(zero_copy_only=False)
    lengths = np.unique(column.value_lengths().to_numpy()) if hasattr(column, "value_lengths") else np.empty(0)
    if lengths.size > 1 or (len(column) and values.size % len(column)):
        raise UnreadableFileError(f"{path.name!r}: the lists of column {name!r} differ in length from row to row.")
    return values.reshape(len(column), -1)


def _to_column(array: NDArray[Any], pa: Any) -> Any:
    if array.ndim == 1:
        return pa.array(array, pa.string() if array.dtype.kind in "OU" else None)  # of no rows the type is not seen
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])
