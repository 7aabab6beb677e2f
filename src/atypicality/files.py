"""Named arrays in files: .npz, a folder of .npy, .safetensors and .parquet, read without trusting what they claim.

No pickle is ever loaded. Archives and Parquet files are read under a limit that counts the bytes as they come,
because a few kilobytes can claim, or unpack to, more than the machine has.
"""

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from atypicality.validation import require

__all__ = ["DEFAULT_LIMIT", "UnreadableFileError", "read_arrays", "replacing", "write_arrays"]

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")

DEFAULT_LIMIT = 16 * 2**30
"""Most bytes that an archive, a safetensors or a Parquet file may unpack to, unless the caller says otherwise."""
CHUNK_BYTES = 1 << 20
PARQUET_ROWS = 4096


class UnreadableFileError(ValueError):
    """A file that is damaged, hostile or not what its ending says."""


def read_arrays(path: str | os.PathLike[str], *, max_bytes: int = DEFAULT_LIMIT) -> Arrays:
    """All arrays of a file by name; a folder gives memory maps, which are never read whole."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no file or folder at {str(path)!r}.")
    if path.is_dir():
        return _read_folder(path)
    reader = _by_suffix(path, READERS)
    try:
        return reader(path, max_bytes)
    except (UnreadableFileError, ModuleNotFoundError, MemoryError, PermissionError):
        raise
    except Exception as error:  # damaged bytes make the libraries below raise almost anything
        raise UnreadableFileError(f"{path.name!r} is not a readable {path.suffix} file: {error}.") from error


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays whole or not at all; the ending chooses the format, and no ending means a folder."""
    path = Path(path)
    for name, array in arrays.items():
        _refuse_pickle(array.dtype, path, name)
        if Path(name).name != name or name.startswith("."):
            raise ValueError(f"array names must be plain file names; got {name!r}.")
    if path.is_dir() or not path.suffix:
        _write_folder(path, arrays)
        return
    writer = _by_suffix(path, WRITERS)
    with replacing(path) as temporary:
        writer(temporary, arrays)


def _by_suffix(path: Path, table: Mapping[str, T]) -> T:
    try:
        return table[path.suffix.lower()]
    except KeyError:
        raise ValueError(
            f"{path.name!r} has no known ending: use {', '.join(table)}, or a folder of .npy files."
        ) from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block ends without an error."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


# .npy files and archives of them


def _refuse_pickle(dtype: np.dtype[Any], path: Path, name: str) -> None:
    if dtype.hasobject:
        raise UnreadableFileError(
            f"{path.name!r}: array {name!r} holds Python objects, which need pickle, and pickles can run code. "
            "Convert it to numbers or strings (for example with .astype(str))."
        )


def _read_folder(path: Path) -> Arrays:
    arrays = {}
    for file in sorted(path.glob("*.npy")):
        with open(file, "rb") as stream:
            dtype, shape, _ = _read_npy_header(stream, path, file.stem)
            claimed, held = int(np.prod(shape)) * dtype.itemsize, file.stat().st_size - stream.tell()
        if claimed > held:
            raise UnreadableFileError(
                f"{file.name!r} claims {claimed} bytes of data and holds {held}: the file is cut short."
            )
        mapped = claimed > 0 and dtype.kind not in "U"  # an empty map is an error of the system; strings are few
        arrays[file.stem] = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    return arrays


def _write_folder(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    if path.exists() and any(path.iterdir()):
        raise FileExistsError(f"the folder {str(path)!r} is not empty; choose another name or remove it first.")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        os.chmod(temporary, 0o777 & ~_umask())
        os.replace(temporary, path)  # replaces an empty folder, fails on any other
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _read_npz(path: Path, max_bytes: int) -> Arrays:
    arrays: Arrays = {}
    left = max_bytes
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if member.endswith(".npy"):
                with archive.open(member) as stream:
                    name = member.removesuffix(".npy")
                    arrays[name] = _read_npy(stream, path, name, left, max_bytes)
                left -= arrays[name].nbytes
    return arrays


def _read_npy_header(stream: IO[bytes], path: Path, name: str) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream, max_header_size=10_000)
    except ValueError as error:
        raise UnreadableFileError(f"{path.name!r}: {name!r} is not a NumPy array: {error}") from error
    _refuse_pickle(dtype, path, name)
    if any(length < 0 for length in shape):
        raise UnreadableFileError(f"{path.name!r}: {name!r} claims the shape {shape}.")
    return dtype, shape, fortran


def _read_npy(stream: IO[bytes], path: Path, name: str, left: int, max_bytes: int) -> NDArray[Any]:
    dtype, shape, fortran = _read_npy_header(stream, path, name)
    size = dtype.itemsize
    for length in shape:  # Python integers: a hostile shape cannot overflow
        size *= length
    _refuse_size(size, left, path, name, max_bytes)
    data = bytearray()
    while len(data) < size and (piece := stream.read(min(CHUNK_BYTES, size - len(data)))):
        data += piece
    if len(data) < size:
        raise UnreadableFileError(
            f"{path.name!r}: array {name!r} claims {size} bytes and holds {len(data)}: it is cut short."
        )
    array = np.frombuffer(data, dtype)
    return array.reshape(shape, order="F" if fortran else "C")


def _write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    np.savez_compressed(path, allow_pickle=False, **arrays)


def _refuse_size(size: int, left: int, path: Path, name: str, max_bytes: int) -> None:
    if size > left:
        raise UnreadableFileError(
            f"{path.name!r}: array {name!r} needs {size} bytes, and the limit for the file is {max_bytes} bytes. "
            "Raise max_bytes if you trust the file, or store it as a folder of .npy files, which is read in pieces."
        )


# safetensors: strings travel as their code points, which are plain numbers


def _read_safetensors(path: Path, max_bytes: int) -> Arrays:
    from safetensors import safe_open

    _refuse_size(path.stat().st_size, max_bytes, path, "the whole file", max_bytes)
    with safe_open(path, framework="numpy") as file:
        strings = json.loads((file.metadata() or {}).get("strings", "[]"))
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    return {name: _from_code_points(array) if name in strings else array for name, array in arrays.items()}


def _write_safetensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    from safetensors.numpy import save_file

    strings = [name for name, array in arrays.items() if array.dtype.kind == "U"]
    tensors = {name: _to_code_points(array) if name in strings else array for name, array in arrays.items()}
    plain = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(plain, path, metadata={"strings": json.dumps(strings)})


def _to_code_points(array: NDArray[Any]) -> NDArray[np.uint32]:
    width = max(1, array.dtype.itemsize // 4)
    return np.ascontiguousarray(array.astype(f"<U{width}")).view("<u4").reshape(*array.shape, width)


def _from_code_points(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array.astype("<u4")).view(f"<U{array.shape[-1]}").reshape(array.shape[:-1])


# Parquet: one column per array, fixed-size lists for matrices; what is not one value per row sits in the schema


def _read_parquet(path: Path, max_bytes: int) -> Arrays:
    pq = require("pyarrow.parquet", extra="parquet", feature="reading Parquet files")
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        arrays = _read_columns(file, schema, path, max_bytes)
        extra = json.loads((schema.metadata or {}).get(b"atypicality", b"{}"))
    return arrays | {name: np.array(values) for name, values in extra.items()}


def _read_columns(file: Any, schema: Any, path: Path, max_bytes: int) -> Arrays:
    left = max_bytes
    pieces: dict[str, list[NDArray[Any]]] = {name: [] for name in schema.names}
    widths = [getattr(field.type, "list_size", 1) * 8 for field in schema]
    _refuse_size(PARQUET_ROWS * sum(widths), left, path, "one batch", max_bytes)
    for batch in file.iter_batches(PARQUET_ROWS):
        left -= batch.nbytes
        _refuse_size(0 if left >= 0 else max_bytes - left, max_bytes, path, "all columns", max_bytes)
        for name, column in zip(schema.names, batch.columns, strict=True):
            pieces[name].append(_column_to_numpy(column, name, path))
    return {name: np.concatenate(parts) if parts else np.empty(0) for name, parts in pieces.items()}


def _column_to_numpy(column: Any, name: str, path: Path) -> NDArray[Any]:
    if column.null_count:
        raise UnreadableFileError(
            f"{path.name!r}: column {name!r} has {column.null_count} missing values. Drop those rows."
        )
    if not hasattr(column.type, "value_type") or hasattr(column.type, "index_type"):
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values.astype(str) if values.dtype.kind == "O" else values
    values = column.flatten().to_numpy(zero_copy_only=False)
    if len(column) and values.size % len(column):
        raise UnreadableFileError(
            f"{path.name!r}: the lists of column {name!r} differ in length; every row needs as many."
        )
    lengths = np.unique(column.value_lengths().to_numpy()) if hasattr(column, "value_lengths") else np.empty(0)
    if lengths.size > 1:
        raise UnreadableFileError(
            f"{path.name!r}: the lists of column {name!r} differ in length; every row needs as many."
        )
    return values.reshape(len(column), -1)


def _write_parquet(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    pa = require("pyarrow", extra="parquet", feature="writing Parquet files")
    pq = require("pyarrow.parquet", extra="parquet", feature="writing Parquet files")
    per_class = {name: arrays[name].tolist() for name in ("class_names", "class_atypicality") if name in arrays}
    rows = {name: array for name, array in arrays.items() if name not in per_class}
    columns = {name: _to_column(array, pa) for name, array in rows.items()}
    schema = pa.schema([(name, column.type) for name, column in columns.items()])
    table = pa.table(columns, schema=schema.with_metadata({"atypicality": json.dumps(per_class)}))
    pq.write_table(table, path)


def _to_column(array: NDArray[Any], pa: Any) -> Any:
    if array.ndim == 1:
        return pa.array(array)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])


READERS: dict[str, Callable[[Path, int], Arrays]] = {
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".parquet": _read_parquet,
}
WRITERS: dict[str, Callable[[Path, Mapping[str, NDArray[Any]]], None]] = {
    ".npz": _write_npz,
    ".safetensors": _write_safetensors,
    ".parquet": _write_parquet,
}
