"""Named arrays in files: .npz, .npy or a folder of them, .safetensors, .parquet and .csv, read without trust.

No pickle is ever loaded. Archives and Parquet files are read under a limit that counts the bytes as they come,
because a few kilobytes can claim, or unpack to, more than the machine has.
"""

import io
import json
import math
import os
import re
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.blocks.spill import ScratchError
from atypicality.outputs.limits import CUT, DEFAULT_LIMIT, UnreadableFileError, default_limit, refuse_size
from atypicality.outputs.parquet import read_parquet, write_parquet
from atypicality.outputs.paths import check_new_folder, check_source, check_target, members, new_folder, replacing
from atypicality.outputs.tables import read_table
from atypicality.terminal import printable
from atypicality.validation import require

__all__ = ["DEFAULT_LIMIT", "UnreadableFileError", "check_place", "read_arrays", "write_arrays", "write_npz"]

Arrays = dict[str, NDArray[Any]]
T = TypeVar("T")

CHUNK_BYTES = 1 << 20
STRING_BYTES = 1 << 20  # text up to this size is read rather than mapped: it is looked at often
TENSOR_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "BOOL": "?"}
"""Types of safetensors that can be mapped as they are."""
HEADER_BYTES = 10_000
HEADER = re.compile(rb"(?:'[^'\\]*'|True|False|\d+L?(?!\w)|[\s,:()\[\]{}])*")
"""What NumPy writes before an array. Escapes and glued tokens would make Python's parser warn."""


def read_arrays(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> Arrays:
    """All arrays of a file by name; a folder of .npy files gives memory maps, which are never read whole.

    Under a memory limit (`blocks.settings`) large arrays of the other formats become maps too: those of
    safetensors of the file itself, those of archives and Parquet of scratch files. `max_bytes` is by default
    `default_limit` of the file.
    """
    path = check_source(path, folder=True)
    if path.is_file() and not path.stat().st_size:
        raise UnreadableFileError(f"{path.name!r} is empty: it has 0 bytes. Was it written to its end?")
    reader = _read_folder if path.is_dir() else _by_suffix(path, READERS)
    try:
        arrays = reader(path, default_limit(path) if max_bytes is None else max_bytes)
        _refuse_odd_text(arrays, path)
        return arrays
    except (UnreadableFileError, ModuleNotFoundError, MemoryError, PermissionError, ScratchError):
        raise
    except Exception as error:  # damaged bytes make the libraries below raise almost anything
        kind = "folder of arrays" if path.is_dir() else f"{path.suffix} file"
        raise UnreadableFileError(f"{path.name!r} is not a readable {kind}: {printable(error)}. {CUT}") from error


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays whole or not at all; the ending chooses the format, and no ending means a folder."""
    path = Path(path)
    for name, array in arrays.items():
        _refuse_pickle(array.dtype, path, name)
        if Path(name).name != name or name.startswith(".") or "\0" in name:
            raise ValueError(f"array names must be plain file names; got {name!r}.")
    if _is_folder(path):
        with new_folder(path) as folder:
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array, allow_pickle=False)
        return
    writer = _by_suffix(path, WRITERS)
    with replacing(path) as temporary:
        writer(temporary, arrays)


def check_place(path: str | os.PathLike[str]) -> None:
    """Refuse, before any work, a path that `write_arrays` could not write to."""
    path = Path(path)
    if _is_folder(path):
        check_new_folder(path)
        return
    if _by_suffix(path, WRITERS) is write_parquet:
        require("pyarrow.parquet", extra="parquet", feature="writing Parquet files")
    check_target(path)


def _is_folder(path: Path) -> bool:
    return path.is_dir() or not path.suffix


def _by_suffix(path: Path, table: Mapping[str, T]) -> T:
    try:
        return table[path.suffix.lower()]
    except KeyError:
        raise ValueError(f"{path.name!r} has no known ending: use {', '.join(table)}, or a folder of .npy.") from None


# .npy files and archives of them


def _refuse_pickle(dtype: np.dtype[Any], path: Path, name: str) -> None:
    if dtype.hasobject:
        raise UnreadableFileError(
            f"{path.name!r}: array {name!r} holds Python objects, which need pickle, and pickles can run code. "
            "Convert it to numbers or strings (for example with .astype(str))."
        )


def _refuse_odd_text(arrays: Arrays, path: Path) -> None:
    """Refuse text with numbers that are no characters: Python fails on it wherever it is first looked at."""
    for name, array in arrays.items():
        if array.dtype.kind == "U" and array.nbytes:
            points = array.ravel(order="K").view(np.dtype("u4").newbyteorder(array.dtype.byteorder))
            if points.max() > sys.maxunicode:
                raise UnreadableFileError(f"{path.name!r}: array {name!r} holds text that is not Unicode.")


def _read_folder(path: Path, max_bytes: int) -> Arrays:
    """Rows of all Parquet files where there are any; else the arrays as maps, which no limit concerns."""
    if shards := members(path, ".parquet"):
        return read_parquet(shards, max_bytes)
    return {file.stem: _map_npy(file, path) for file in members(path, ".npy")}


def _map_npy(file: Path, path: Path) -> NDArray[Any]:
    """The array of a file, alone or in the folder `path`, as a map."""
    with open(check_source(file), "rb") as stream:
        dtype, shape, _ = _read_npy_header(stream, path, file.stem)
        claimed, held = math.prod(shape) * dtype.itemsize, file.stat().st_size - stream.tell()
    if claimed > held:
        raise UnreadableFileError(f"{file.name!r} claims {claimed} bytes of data and holds {held}: it is cut short.")
    mapped = claimed > (STRING_BYTES if dtype.kind == "U" else 0)  # an empty map is an error of the system
    return np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)  # type: ignore[no-any-return]


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
        first = np.lib.format.read_magic(stream) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        claimed = stream.read(2 if first else 4)
        header = stream.read(min(int.from_bytes(claimed, "little"), HEADER_BYTES + 1))
        if len(header) <= HEADER_BYTES and not HEADER.fullmatch(header):
            raise ValueError("its header holds more than names, numbers and brackets")
        shape, fortran, dtype = read(io.BytesIO(claimed + header), max_header_size=HEADER_BYTES)
    except Exception as error:  # headers are Python's words: its parser has errors of many types
        raise UnreadableFileError(f"{path.name!r}: {name!r} is not a NumPy array: {printable(error)}") from error
    _refuse_pickle(dtype, path, name)
    if any(length < 0 for length in shape):
        raise UnreadableFileError(f"{path.name!r}: {name!r} claims the shape {shape}.")
    return dtype, shape, fortran


def _read_npy(stream: IO[bytes], path: Path, name: str, left: int, max_bytes: int) -> NDArray[Any]:
    dtype, shape, fortran = _read_npy_header(stream, path, name)
    size = dtype.itemsize
    for length in shape:  # Python integers: a hostile shape cannot overflow
        size *= length
    refuse_size(size, left, path, name, max_bytes)
    data, held = _read_bytes(stream, size)
    if held < size:
        raise UnreadableFileError(f"{path.name!r}: array {name!r} claims {size} bytes and holds {held}: it was cut.")
    array = np.frombuffer(data, dtype)
    return array.reshape(shape, order="F" if fortran else "C")


def _read_bytes(stream: IO[bytes], size: int) -> tuple[Any, int]:
    """The next `size` bytes, in memory or, under a memory limit, spilled to disk; and how many there were."""
    held = 0
    if blocks.is_large(size):
        scratch = blocks.empty(size, np.uint8)
        while held < size and (piece := stream.read(min(CHUNK_BYTES, size - held))):
            scratch[held : held + len(piece)] = np.frombuffer(piece, np.uint8)
            held += len(piece)
        return scratch, held
    data = bytearray()
    while len(data) < size and (piece := stream.read(min(CHUNK_BYTES, size - len(data)))):
        data += piece
    return data, len(data)


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an archive at exactly this path: NumPy would add its ending to a path that has another."""
    with open(path, "wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


# safetensors: strings travel as their code points, which are plain numbers


def _read_safetensors(path: Path, max_bytes: int) -> Arrays:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:  # which also checks every claim of the header
        strings = json.loads((file.metadata() or {}).get("strings", "[]"))
        arrays = _mapped_tensors(path, strings)
        unmapped = path.stat().st_size - sum(array.nbytes for array in arrays.values())
        refuse_size(unmapped, max_bytes, path, "the whole file", max_bytes)
        arrays |= {name: file.get_tensor(name) for name in file.keys() if name not in arrays}  # noqa: SIM118
    return {name: _from_code_points(array) if name in strings else array for name, array in arrays.items()}


def _mapped_tensors(path: Path, strings: list[str]) -> Arrays:
    """Tensors that are too large to be read, mapped from the file; only under a memory limit."""
    if not blocks.is_large(path.stat().st_size):
        return {}
    with open(path, "rb") as stream:
        start = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(start))
    found: Arrays = {}
    for name, claim in header.items():
        if name == "__metadata__" or name in strings or claim["dtype"] not in TENSOR_TYPES:
            continue
        first, last = claim["data_offsets"]
        if blocks.is_large(last - first):
            kind, shape = TENSOR_TYPES[claim["dtype"]], tuple(claim["shape"])
            found[name] = np.memmap(path, kind, "r", offset=8 + start + first, shape=shape)
    return found


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


READERS: dict[str, Callable[[Path, int], Arrays]] = {
    ".npz": _read_npz,
    ".npy": lambda path, _: {path.stem: _map_npy(path, path)},
    ".safetensors": _read_safetensors,
    ".parquet": lambda path, limit: read_parquet([path], limit),
    ".csv": read_table,
    ".tsv": read_table,
}
WRITERS: dict[str, Callable[[Path, Mapping[str, NDArray[Any]]], None]] = {
    ".npz": write_npz,
    ".safetensors": _write_safetensors,
    ".parquet": write_parquet,
}
