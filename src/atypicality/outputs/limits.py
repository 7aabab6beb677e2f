"""What files and memory limits allow: how much a file may unpack to, and what work needs in memory in any case."""

from pathlib import Path

from atypicality import blocks
from atypicality.blocks.spill import MINIMUM, words

__all__ = ["DEFAULT_LIMIT", "UnreadableFileError", "check_room", "default_limit", "refuse_size"]

DEFAULT_LIMIT = 16 * 2**30
"""Most bytes that an archive, a safetensors or a Parquet file may unpack to, unless the caller says otherwise."""
HONEST_RATIO = 4  # times its own size that a large file may unpack to where it goes to the disk: a bomb is small
ROW_BYTES = 320  # numbers of one row that stay in memory while a head is fitted or evaluated, measured


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


def check_room(n_rows: int, n_classes: int, n_columns: int) -> None:
    """Refuse a memory limit below what the work needs beside its large arrays: an estimate, on the low side.

    Numbers per row, classes by columns and columns by columns stay in memory; nothing is checked without a ceiling.

    >>> with blocks.settings(memory="200MB"):
    ...     check_room(1000, 10, 4096)
    Traceback (most recent call last):
    ValueError: memory must be at least 1.2 GB for 1,000 rows, 10 classes and 4,096 columns, ...; got 200 MB.
    """
    ceiling = blocks.ceiling()
    need = MINIMUM + ROW_BYTES * n_rows + 8 * (8 * n_columns**2 + 4 * n_classes * n_columns)
    if ceiling is not None and ceiling < need:
        raise ValueError(
            f"memory must be at least {words(need)} for {n_rows:,} rows, {n_classes:,} classes and {n_columns:,} "
            f"columns, because numbers per row and the covariance stay in memory; got {words(ceiling)}."
        )
