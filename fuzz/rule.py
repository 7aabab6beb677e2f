"""The rule: whatever the bytes, a reader gives a result that passes its checks, or an error of ours.

An error is ours if it is of a documented type and a `raise` in the package gave it: what a library below says
of damaged bytes helps nobody. Everything else is a finding: other exceptions, warnings that are not ours, time, memory.
"""

import contextlib
import functools
import importlib.util
import linecache
import re
import resource
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Finding", "Target", "attempt", "run"]

DOCUMENTED = (ValueError, TypeError, OSError)
ALLOWED_WARNINGS = re.compile(
    r".* also has .*, ignored\.|logits are used as they are"
    r"|.* ends in .* without a line end: its last number may be cut"
    r"|Reading `\.npy` or `\.npz` file required additional header parsing",  # NumPy's, about files of Python 2
    re.DOTALL,
)
SECONDS = 5.0
MEGABYTES = 1000
PACKAGE = str(Path(importlib.util.find_spec("atypicality").origin or "").parent)  # type: ignore[union-attr]
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class Finding(Exception):  # noqa: N818
    """Bytes that broke the rule."""


@dataclass(frozen=True)
class Target:
    """A reader under test.

    `read` makes a result of bytes, with an empty folder to put files in; it raises an error, or gives one that it has
    put through `attempt` itself. `check` asserts what must hold of a result.
    """

    read: Callable[[bytes, Path], Any]
    check: Callable[[Any], None]


def run(target: Target, data: bytes) -> bool:
    """Whether the reader took the bytes; a Finding where it broke the rule."""
    start, peak = time.process_time(), _peak()
    with _empty_folder() as folder, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = attempt(target.read, data, folder)
        taken = not isinstance(result, Exception)
        if taken:
            target.check(result)
        del result  # maps of files in the folder
    foreign = [warning for warning in said if not ALLOWED_WARNINGS.match(str(warning.message))]
    if foreign:
        raise Finding(f"a warning that is not allowed: {foreign[0].category.__name__}: {foreign[0].message}")
    if time.process_time() - start > SECONDS:
        raise Finding(f"{time.process_time() - start:.1f} s for {len(data)} bytes")
    if _peak() - peak > MEGABYTES:
        raise Finding(f"{_peak() - peak:.0f} MB for {len(data)} bytes")
    return taken


@contextlib.contextmanager
def _empty_folder() -> Iterator[Path]:
    """The one folder of this process, emptied afterwards: to make one each time takes longer than to read."""
    folder = Path(_made_folder().name)
    try:
        yield folder
    finally:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@functools.cache
def _made_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory()


def attempt(call: Callable[..., Any], *args: Any) -> Any:
    """The result, or the error if it is one of ours; others pass."""
    try:
        return call(*args)
    except DOCUMENTED as error:
        if not _is_ours(error):
            raise Finding(f"an error that is not ours: {type(error).__name__}: {error!s:.200}") from error
        return error.with_traceback(None)  # whose frames would keep files mapped


def _is_ours(error: Exception) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not trace.tb_frame.f_code.co_filename.startswith(PACKAGE):
        return False
    return linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).lstrip().startswith("raise")


def _peak() -> float:
    """The most memory that the process ever had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT / 1e6
