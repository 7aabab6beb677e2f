"""Rows that lie elsewhere: chunks of Dask arrays and parts of files, cut alike and opened by the task that reads them.

Files are opened by the workers, under the paths as given: every worker must see the same file system. A .npy file and
the files of an outputs folder are mapped, part by part, so that no worker ever holds a whole file.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from atypicality.arrays import to_numpy
from atypicality.integrations.dask_cluster import PartPlace, compute, task
from atypicality.outputs import ModelOutputs
from atypicality.outputs.class_names import class_order
from atypicality.outputs.paths import check_source
from atypicality.validation import check_matrix_shape, check_real

__all__ = ["DaskRows", "FileRows", "aligned", "is_dask", "is_paths", "read", "rows_of"]

Described = tuple[tuple[int, ...], np.dtype[Any], tuple[str, ...] | None]

PART_BYTES = 512 * 1024 * 1024  # rows of a mapped file that one task reads
MAPPED_FROM = 1024 * 1024
"""Bytes from which on a .npy file is mapped: a small one is read, and an empty one cannot be mapped."""


class FileRows(NamedTuple):
    """Rows start to stop of an array in a file: a .npy file, or the array of that name in a file of outputs.

    Classes of outputs are in the order of `class_names`, where both have names.
    """

    path: str
    name: str
    start: int
    stop: int
    class_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class DaskRows:
    """Rows cut into parts; `values` are what a task reads each from: lazy chunks of a Dask array, or `FileRows`.

    `dtype` is that of the widest part, `paths` are the files in their order: none for a Dask array.
    """

    values: list[Any]
    lengths: list[int]
    places: list[PartPlace]
    width: int
    dtype: np.dtype[Any]
    paths: Sequence[str] = ()

    @property
    def lazy(self) -> bool:
        """Whether they came as a Dask array."""
        return not self.paths

    @property
    def n_rows(self) -> int:
        """Rows of all parts."""
        return sum(self.lengths)

    @property
    def outputs(self) -> bool:
        """Whether they lie in files of outputs, which may hold other arrays of the same rows."""
        return bool(self.paths) and not any(path.endswith(".npy") for path in self.paths)


def is_dask(values: Any) -> bool:
    """Whether values are a Dask array."""
    return isinstance(values, da.Array)


def is_paths(values: Any) -> bool:
    """Whether values are a list of paths."""
    return isinstance(values, (list, tuple)) and all(isinstance(value, (str, os.PathLike)) for value in values)


def rows_of(values: Any, name: str, client: Any, *, width: int | None = None, minimum: int = 1) -> DaskRows:
    """A Dask array (n, d) or a list of files as parts of rows, in order; empty parts are left out.

    `minimum` is the number of rows up to which neighbouring chunks of a Dask array are joined.
    """
    if is_dask(values):
        found = _array_rows(values, name, minimum)
    else:
        found = _file_rows(_check_paths(values, name), name, client)
    if not found.n_rows:
        raise ValueError(f"{name} must have at least one row; got none.")
    check_matrix_shape((found.n_rows, found.width), name, width=width)
    return found


def aligned(values: Any, name: str, rows: DaskRows, client: Any, *, wanted: bool = True) -> list[Any]:
    """Another array, cut like `rows`: a Dask array, a list of files, an array on this machine, or None.

    None stands for the array of that name in the files of `rows`, which must then be files of outputs. What is not
    `wanted` is None for every part.
    """
    if not wanted:
        return [None] * len(rows.values)
    if values is None:
        return _beside(name, rows)
    if is_dask(values):
        _check_known(values, name)
        _check_rows(values.shape[0], name, rows)
        return _blocks(values.rechunk({0: tuple(rows.lengths), **dict.fromkeys(range(1, values.ndim), -1)}))
    if _is_file_list(values):
        return _same_cuts(_check_paths(values, name), name, rows, client)
    array = to_numpy(values, name)
    if array.ndim == 0:
        raise ValueError(f"{name} must have one entry per row; got a single value.")
    _check_rows(array.shape[0], name, rows)
    return [array[place.first_row : place.first_row + n] for place, n in zip(rows.places, rows.lengths, strict=True)]


def read(value: Any) -> Any:
    """The rows of a part, mapped from their file."""
    if not isinstance(value, FileRows):
        return value
    rows = slice(value.start, value.stop)
    if value.path.endswith(".npy"):
        return _open(value.path, value.name)[rows]
    return _load(value.path, value.name)[rows].with_classes(value.class_names).need(value.name)


def _array_rows(array: Any, name: str, minimum: int) -> DaskRows:
    check_matrix_shape(array.shape, name)
    _check_known(array, name)
    check_real(array.dtype, name)
    if array.numblocks[1] > 1:
        array = array.rechunk({0: "auto", 1: -1})
    lengths = _joined(array.chunks[0], minimum)
    array = array.rechunk({0: tuple(lengths)}) if lengths else array
    places = [PartPlace(first) for first in np.cumsum([0, *lengths[:-1]]).tolist()]
    return DaskRows(_blocks(array)[: len(lengths)], lengths, places, int(array.shape[1]), array.dtype)


def _joined(chunks: Sequence[int], minimum: int) -> list[int]:
    """Lengths of at least `minimum` rows, by joining neighbours."""
    lengths: list[int] = []
    for chunk in filter(None, chunks):
        if lengths and lengths[-1] < minimum:
            lengths[-1] += int(chunk)
        else:
            lengths.append(int(chunk))
    if len(lengths) > 1 and lengths[-1] < minimum:
        lengths[-2:] = [sum(lengths[-2:])]
    return lengths


def _blocks(array: Any) -> list[Any]:
    return list(array.to_delayed().ravel())


def _check_known(array: Any, name: str) -> None:
    if any(np.isnan(length) for lengths in array.chunks for length in lengths):
        raise ValueError(
            f"{name} must have chunks of known size, so that rows can be counted; got {array.chunks[0][:3]}... . "
            f"Call {name}.compute_chunk_sizes() first."
        )


def _file_rows(paths: list[str], name: str, client: Any) -> DaskRows:
    shapes = _shapes(paths, name, client)
    names = next((found for _, _, found in shapes if found is not None), None)
    values, places, first = [], [], 0
    for path, (shape, dtype, found) in zip(paths, shapes, strict=True):
        if found is not None:
            class_order(np.array(found), np.array(names), f"those of the other files ({path!r} differs)")
        if len(shape) != 2:
            raise ValueError(f"{name} must be two-dimensional, one row per sample; {path!r} has shape {shape}.")
        check_real(dtype, f"{name} in {path!r}")
        if shape[1] != shapes[0][0][1]:
            raise ValueError(
                f"{name} must have the same columns in every file; {paths[0]!r} has {shapes[0][0][1]}, {path!r} has "
                f"{shape[1]}. Use the same model and layer."
            )
        for start, stop in _cuts(path, shape[0], shape[1] * dtype.itemsize):
            values.append(FileRows(path, name, start, stop, names))
            places.append(PartPlace(first + start, os.path.basename(path), start))
        first += shape[0]
    lengths = [value.stop - value.start for value in values]
    dtype = np.result_type(*(dtype for _, dtype, _ in shapes))
    return DaskRows(values, lengths, places, int(shapes[0][0][1]), dtype, paths)


def _cuts(path: str, n_rows: int, row_bytes: int) -> list[tuple[int, int]]:
    """Parts of a file; an archive is read whole by whoever opens it, and is one part."""
    mapped = path.endswith(".npy") or not os.path.splitext(path)[1]
    step = max(1, PART_BYTES // max(1, row_bytes)) if mapped else max(1, n_rows)
    return [(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def _same_cuts(paths: list[str], name: str, rows: DaskRows, client: Any) -> list[Any]:
    ends = np.cumsum([0, *(shape[0] for shape, *_ in _shapes(paths, name, client))]).tolist()
    _check_rows(ends[-1], name, rows)
    cut = []
    for place, n in zip(rows.places, rows.lengths, strict=True):
        file = int(np.searchsorted(ends, place.first_row, side="right")) - 1
        start = place.first_row - ends[file]
        if place.first_row + n > ends[file + 1]:
            raise ValueError(
                f"{name} must be cut into files like the rows they belong to; {paths[file]!r} ends at row "
                f"{ends[file + 1]}, inside the part that begins at row {place.first_row}. Write them again, or pass "
                "one array."
            )
        cut.append(FileRows(paths[file], name, start, start + n))
    return cut


def _beside(name: str, rows: DaskRows) -> list[Any]:
    if not rows.outputs:
        raise ValueError(
            f"{name} must be given with a Dask array or with .npy files; got None. Only files of outputs "
            "(ModelOutputs.save) hold their own."
        )
    return [value._replace(name=name) for value in rows.values]


def _check_rows(n_rows: int, name: str, rows: DaskRows) -> None:
    if n_rows != rows.n_rows:
        raise ValueError(f"{name} must have one entry per row; got {n_rows} for {rows.n_rows} rows.")


def _is_file_list(values: Any) -> bool:
    """Paths, and strings only where they end in .npy: a list of other strings is a list of labels."""
    named = isinstance(values, (list, tuple)) and len(values) > 0
    return named and all(isinstance(v, os.PathLike) or (isinstance(v, str) and v.endswith(".npy")) for v in values)


def _check_paths(values: Any, name: str) -> list[str]:
    if isinstance(values, (list, tuple)) and not values:
        raise ValueError(f"{name} must name at least one file; got an empty list.")
    if not is_paths(values):
        raise TypeError(
            f"{name} must be a dask.array or a list of paths; got {type(values).__name__}. "
            "For an array in memory use the estimator's own methods, or dask.array.from_array."
        )
    return [os.path.abspath(os.fspath(value)) for value in values]


def _shapes(paths: list[str], name: str, client: Any) -> list[Described]:
    """Shape and type of the array in each file, as the workers see it, and the names of its classes."""
    return compute(client, [_shape.later(path, name) for path in paths])  # type: ignore[no-any-return]


@task
def _shape(path: str, name: str) -> Described:
    if path.endswith(".npy"):
        array = _open(path, name)
        return array.shape, array.dtype, None
    outputs = _load(path, name)
    array = outputs.need(name)
    names = outputs.class_names
    return array.shape, array.dtype, None if names is None else tuple(names.tolist())


def _load(path: str, name: str) -> ModelOutputs:
    return ModelOutputs.load(_there(path, name))


def _there(path: str, name: str) -> str:
    if not os.path.exists(path):
        raise FileNotFoundError(f"{name}: no file or folder at {path!r}. Every worker must see it under that path.")
    return path


def _open(path: str, name: str) -> Any:
    _there(path, name)
    try:
        mapped = check_source(path).stat().st_size >= MAPPED_FROM
        return np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{name}: {path!r} is not a readable .npy file: {error}") from error
