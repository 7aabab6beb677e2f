"""Memory that need not be memory: sizes in words, and arrays in nameless files that the system can write out.

A scratch array is mapped from a file without a name, so that nothing stays behind however the process ends. Its pages
belong to the file: they are never anonymous memory, and the system may write them out and drop them.
"""

import math
import mmap
import os
import re
import shutil
import tempfile
import warnings
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["MINIMUM", "ScratchError", "map_scratch", "parse_bytes", "scratch_folder", "trim", "words"]

MINIMUM = 128 * 10**6
"""Smallest ceiling: what Python, NumPy, SciPy and scikit-learn take before any data, and a little room."""
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{letter}I": 2 ** (10 * power) for power, letter in enumerate("KMGT", start=1)}
IN_MEMORY = ("tmpfs", "ramfs")
"""File systems whose files are memory."""
LARGER_DISK = "/var/tmp"
"""Where systems that keep /tmp in memory put what is too large for it."""


class ScratchError(OSError):
    """A scratch file that cannot be made."""


def parse_bytes(value: Any, name: str = "memory") -> int:
    """A number of bytes, from a whole number or from words: "1GB", "500MB", "1.5 GiB".

    >>> parse_bytes("1GB"), parse_bytes("2GiB"), parse_bytes(5)
    (1000000000, 2147483648, 5)
    """
    text = str(value).strip().upper()
    found = re.fullmatch(r"(\d+|\d*\.\d+)\s*([KMGT]?I?)B?", text)
    if isinstance(value, bool) or found is None or found[2] not in UNITS:
        raise ValueError(f'{name} must be a number of bytes, such as "1GB", "500MB" or "2GiB"; got {value!r}.')
    return int(float(found[1]) * UNITS[found[2]])


def words(size: float) -> str:
    """A number of bytes in words.

    >>> words(1_500_000_000)
    '1.5 GB'
    """
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6)):
        if size >= 10**power:
            return f"{size / 10**power:.3g} {unit}"
    return f"{size / 1000:.3g} kB"


def map_scratch(shape: tuple[int, ...], dtype: DTypeLike, folder: str) -> NDArray[Any]:
    """An array of zeros in a nameless file of `folder`, whose room on the disk is reserved."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    with tempfile.TemporaryFile(prefix="atypicality-", dir=folder) as file:
        _reserve(file.fileno(), size, folder)
        return np.frombuffer(mmap.mmap(file.fileno(), size), kind).reshape(shape)


def scratch_folder(chosen: str | os.PathLike[str] | None) -> str:
    """The folder for scratch files: the one chosen, else the system's for temporary files, if possible on a disk."""
    folder = tempfile.gettempdir() if chosen is None else os.fspath(chosen)
    if not os.path.isdir(folder):
        raise NotADirectoryError(f"scratch must be a folder that exists; got {folder!r}.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"scratch must be a folder that can be written to; got {folder!r}.")
    if chosen is None and in_memory(folder) and os.access(LARGER_DISK, os.W_OK):
        folder = LARGER_DISK
    if in_memory(folder):
        warnings.warn(
            f"the scratch folder {folder!r} is itself kept in memory, so that a memory limit saves nothing. "
            "Choose a folder on a disk: scratch= in Python, --scratch or TMPDIR on the command line.",
            stacklevel=4,
        )
    return folder


@cache
def _trimmer() -> Any:
    """The `malloc_trim` of glibc, or a function that does nothing where there is none."""
    import ctypes

    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return lambda _: None


def trim() -> None:
    """Give freed memory back to the system: threads each keep a heap, and holes in those would count."""
    _trimmer()(0)


@cache
def in_memory(folder: str) -> bool:
    """Whether the files of a folder are kept in memory; False where the system does not say."""
    try:
        device = os.stat(folder).st_dev
        with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
            for fields in map(str.split, mounts):
                if fields[2] == f"{os.major(device)}:{os.minor(device)}":
                    return fields[fields.index("-") + 1] in IN_MEMORY
    except OSError:
        pass
    return False


def _reserve(file: int, size: int, folder: str) -> None:
    """Claim the room on the disk now: a map of a file that cannot grow would end the process with a signal."""
    free = shutil.disk_usage(folder).free
    try:
        if free < size:
            raise OSError
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.ftruncate(file, size)
    except OSError as error:
        raise ScratchError(
            f"the scratch folder {folder!r} has no room for an array of {words(size)} ({words(free)} are free). "
            "Choose a folder on a larger disk (scratch=, --scratch or TMPDIR), or a higher memory limit."
        ) from error
