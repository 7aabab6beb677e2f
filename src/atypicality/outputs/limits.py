"""What files and memory limits allow: how much a file may unpack to, and what work needs in memory in any case."""

from pathlib import Path

from atypicality import blocks
from atypicality.blocks.spill import MINIMUM, words

__all__ = [
    "CUT", "DEFAULT_LIMIT", "UnreadableFileError", "check_room", "check_solver_room", "default_limit", "refuse_size",
]  # fmt: skip

DEFAULT_LIMIT = 16 * 2**30
"""Most bytes that an archive, a safetensors or a Parquet file may unpack to, unless the caller says otherwise."""
HONEST_RATIO = 4  # times its own size that a large file may unpack to where it goes to the disk: a bomb is small
COMPARED_UP_TO = 4096  # classes that are compared with each other in a fit (`recalibration.terms`)
ROW_BYTES = 320  # numbers of one row that stay in memory while a head is fitted or evaluated, measured


CUT = "Is it cut, or still being written?"


class UnreadableFileError(ValueError):
    """A file that is damaged, hostile or not what its ending says."""


def default_limit(path: Path) -> int:
    """The limit for a file: under a memory limit its arrays are spilled to disk, and a large file may be large."""
    if blocks.ceiling() is None:
        return DEFAULT_LIMIT
    files = path.rglob("*") if path.is_dir() else [path]
    return max(DEFAULT_LIMIT, HONEST_RATIO * sum(file.stat().st_size for file in files))


def refuse_size(size: int, left: int, path: Path, name: str, max_bytes: int) -> None:
    """Refuse an array of `size` bytes where `left` of the limit are left."""
    if size > left:
        raise UnreadableFileError(
            f"{path.name!r}: array {name!r} needs {size} bytes, and the limit for the file is {max_bytes} bytes. "
            "Raise max_bytes if you trust the file, or store it as a folder of .npy files, which is read in pieces."
        )


def check_room(n_rows: int, n_classes: int, n_columns: int, *, fitted: bool = True) -> None:
    """Refuse a memory limit below what the work needs beside its large arrays: an estimate, on the low side.

    Numbers per row, classes by columns and columns by columns stay in memory, and where a head is `fitted` also classes
    by classes; nothing is checked without a limit.

    >>> with blocks.settings(memory="200MB"):
    ...     check_room(1000, 10, 4096)
    Traceback (most recent call last):
    ValueError: memory must be at least 1.2 GB for 1,000 rows, 10 classes and 4,096 columns, ...; got 200 MB.
    """
    compared = n_classes if fitted and n_classes <= COMPARED_UP_TO else 0
    need = ROW_BYTES * n_rows + 8 * (8 * n_columns**2 + 4 * n_classes * n_columns + 3 * compared**2)
    _refuse_limit(
        need,
        f"{n_rows:,} rows, {n_classes:,} classes and {n_columns:,} columns, because numbers per row, the covariance "
        "and the similarity of classes stay in memory",
    )


def check_solver_room(n_parameters: int, *, exact: bool = True) -> None:
    """Refuse a memory limit below what the second derivatives of so many parameters take.

    With `exact` ones up to nine matrices of float64 are there at a time, else four of float32.

    >>> with blocks.settings(memory="200MB"):
    ...     check_solver_room(2000)
    Traceback (most recent call last):
    ValueError: memory must be at least 416 MB for a recalibration with 2,000 parameters, ...; got 200 MB...
    """
    matrix = (72 if exact else 16) * n_parameters**2
    _refuse_limit(matrix, f"a recalibration with {n_parameters:,} parameters, whose Hessian stays in memory")


def _refuse_limit(need: int, what: str) -> None:
    ceiling = blocks.ceiling()
    if ceiling is not None and ceiling < MINIMUM + need:
        raise ValueError(f"memory must be at least {words(MINIMUM + need)} for {what}; got {words(ceiling)}.")
