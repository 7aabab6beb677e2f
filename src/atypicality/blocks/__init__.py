"""Rows in blocks: the one place that cuts arrays, runs threads and merges partial results.

Every fit and every score of the library is a function of one block of rows. This module decides how tall a
block is (it should stay in cache), runs the blocks on threads, and hands the results back in row order, so that
the outcome does not depend on which thread was faster. While blocks run on threads, BLAS is held to one thread:
two pools on the same cores only fight.

It also decides where arrays of all rows live. Under `settings(memory="1GB")` every large one (`empty`, `take_rows`,
`astype`, `concatenate`) lies in a scratch file, and blocks and threads are few enough, so that the process's anonymous
memory stays below the ceiling; without it they are plain arrays.

>>> import numpy as np
>>> x = np.arange(10.0).reshape(5, 2)
>>> reduce_rows(lambda rows: x[rows].sum(axis=0), 5, operator.add, block=2)
array([20., 25.])
"""

import contextlib
import functools
import math
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from atypicality.blocks import spill as scratch_files
from atypicality.blocks.threads import MergeTree, Team, single_threaded_blas

__all__ = [
    "CACHE_BYTES", "ENTRIES", "GEMM_BYTES", "LIGHT", "PRODUCTS", "SCATTER", "SOFTMAX", "Buffers", "Work", "Workspace",
    "astype", "block_rows", "ceiling", "compute", "concatenate", "empty", "for_rows", "is_large", "map_rows",
    "n_threads", "reduce_rows", "row_slices", "seen", "settings", "single_threaded_blas", "take_columns",
    "take_rows", "watched", "watching",
]  # fmt: skip

T = TypeVar("T")

CACHE_BYTES = 3 * 1024 * 1024
"""Size of a block for elementwise passes: some of them fit the last level of a cache, and one operation on one of them
takes long beside what passing the interpreter's lock takes (`blocks.threads`). Passes with more buffers take less."""
GEMM_BYTES = 8 * 1024 * 1024
"""Size of a block that enters a matrix product: tall enough for BLAS to run at its full rate."""

CACHE_LINE = 64
"""Bytes. Long vector instructions take up to twice as long where what they read or write lies across two lines, and
NumPy begins an array at any multiple of 16."""
LONG_ROW, ROW_BUFFER = 256, 256
"""Columns from which on rows are worked on in place, and numbers that NumPy's buffer holds then: it copies shorter rows
into it, where an operation takes a number for each row or column, which takes two to four times as long."""
LARGE_SHARE = 128
"""An array of more than this part of the ceiling lives in a scratch file."""
THREAD_BYTES = 32 * 1024 * 1024
"""What a thread takes in most passes: its buffers, and the results of its blocks that wait for their turn."""


class Work(NamedTuple):
    """What a pass is made of, which decides how many threads it has by default.

    Passes of a kind have threads from as many cores on as make most of them 1.6 times as fast as one thread, else one;
    `blocks.threads` has the measured gains.

    Parameters
    ----------
    cores : int
        With fewer of them there is one thread.
    most : int
        Threads at most.
    blocks : int, default=1
        Blocks that each thread must have.
    products : bool, default=False
        Whether BLAS keeps its own threads where the pass has one.

    Examples
    --------
    >>> SCATTER.cores, SCATTER.most
    (2, 8)
    """

    cores: int
    most: int
    blocks: int = 1
    products: bool = False


PRODUCTS = Work(cores=2, most=1024, products=True)
"""Matrix products: 1.5 to 2.1 times as fast on two cores, 2.3 to 6 times on 16."""
SCATTER = PRODUCTS._replace(most=8)
"""Products that are summed over the blocks, each as large as its block: more than eight threads wait for memory."""
SOFTMAX = Work(cores=2, most=8)
"""Probabilities of rows that are not summed: 1.5 to 1.85 times as fast on two cores."""
ENTRIES = Work(cores=3, most=8)
"""Something for every entry: 1.2 to 1.8 times as fast on two cores, 1.2 to 2.7 on three. Of more than eight threads
most wait for the interpreter's lock."""
LIGHT = Work(cores=3, most=4, blocks=4)
"""A few short calls for each block; fewer than four blocks are done before another thread has started."""

Watch = Callable[[Iterator[T], int, int], Iterator[T]]
"""Passes on the results of a pass over so many rows in blocks of so many, and may tell somebody how far it is."""

_threads: ContextVar[int | None] = ContextVar("atypicality_threads", default=None)
_rows: ContextVar[int | None] = ContextVar("atypicality_block_rows", default=None)
_memory: ContextVar[int | None] = ContextVar("atypicality_memory", default=None)
_scratch: ContextVar[str | None] = ContextVar("atypicality_scratch", default=None)
_watch: ContextVar[Watch[Any] | None] = ContextVar("atypicality_watch", default=None)


@contextlib.contextmanager
def settings(
    *,
    n_threads: int | None = None,
    block_rows: int | None = None,
    memory: int | str | None = None,
    scratch: str | os.PathLike[str] | None = None,
) -> Iterator[None]:
    """Fix threads, rows of a block or a memory limit inside a `with`; results do not depend on any of them.

    Parameters
    ----------
    n_threads : int, optional
        Threads of a pass, on any number of cores: eight at most where the pass is no product or sums products, four
        where its blocks are a few short calls.
    block_rows : int, optional
    memory : int or str, optional
        Ceiling of the process's anonymous memory: bytes, or "1GB", "500MB", "2GiB". Arrays of all rows by all classes
        or columns then live in scratch files. What has no place in a file is not moved: arrays of one number per row,
        of classes by columns and of columns by columns, and what the caller holds.
    scratch : path, optional
        Folder for scratch files; by default that of the system for temporary files.

    Examples
    --------
    >>> with settings(n_threads=2, memory="1GB"):
    ...     n_threads(), ceiling()
    (2, 1000000000)
    """
    chosen: list[tuple[ContextVar[Any], Any]] = []
    if n_threads is not None:
        chosen.append((_threads, _positive(n_threads, "n_threads")))
    if block_rows is not None:
        chosen.append((_rows, _positive(block_rows, "block_rows")))
    if memory is not None:
        chosen.append((_memory, _check_memory(memory)))
    if memory is not None or scratch is not None:
        chosen.append((_scratch, scratch_files.scratch_folder(scratch if scratch is not None else _scratch.get())))
    with contextlib.ExitStack() as stack:
        for variable, value in chosen:
            stack.callback(variable.reset, variable.set(value))
        yield


def ceiling() -> int | None:
    """The ceiling of anonymous memory in bytes, or None where there is none; see `settings`.

    >>> ceiling() is None
    True
    """
    return _memory.get()


def n_threads(each: int = THREAD_BYTES, *, work: Work = ENTRIES) -> int:
    """Threads that a pass may use: `settings`, else `ATYPICALITY_NUM_THREADS`, else the cores from which on they pay.

    Parameters
    ----------
    each : int
        Bytes that a thread needs: under a memory limit, threads by default are no more than half of it holds.
    work : Work
        What the pass is made of: `PRODUCTS`, `SCATTER`, `SOFTMAX`, `ENTRIES` or `LIGHT`. It never has more than
        `work.most` threads.

    Examples
    --------
    >>> with settings(n_threads=20):
    ...     n_threads(), n_threads(work=PRODUCTS)
    (8, 20)
    """
    if (chosen := _threads.get()) is not None:
        return min(chosen, work.most)
    if (given := os.environ.get("ATYPICALITY_NUM_THREADS")) is not None:
        return min(_positive(given, "ATYPICALITY_NUM_THREADS"), work.most)
    cores, memory = _cores(), _memory.get()
    threads = min(cores, work.most) if cores >= work.cores else 1
    return threads if memory is None else max(1, min(threads, memory // 2 // each))


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_large(size: int) -> bool:
    """Whether an array of `size` bytes belongs into a scratch file; never without a ceiling."""
    memory = _memory.get()
    return memory is not None and size > memory // LARGE_SHARE


def empty(shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """An array to be filled: plain memory, or under a memory limit a scratch file where it is large.

    >>> with settings(memory="200MB"):
    ...     empty((1000, 1000)).shape
    (1000, 1000)
    """
    shape = (shape,) if isinstance(shape, int) else shape
    if not is_large(math.prod(shape) * np.dtype(dtype).itemsize):
        return np.empty(shape, dtype)
    return scratch_files.map_scratch(shape, dtype, _scratch.get() or scratch_files.scratch_folder(None))


def take_rows(array: NDArray[Any], rows: slice | NDArray[Any]) -> NDArray[Any]:
    """``array[rows]`` for a slice, positions or a mask; what is copied is copied block by block into `empty`."""
    if isinstance(rows, slice) or _memory.get() is None or (rows.dtype == bool and rows.size != len(array)):
        return array[rows]
    places = np.flatnonzero(rows) if rows.dtype == bool else rows
    return _copied(lambda part: array[places[part]], (places.size, *array.shape[1:]), array.dtype)


def take_columns(array: NDArray[Any], columns: NDArray[np.intp]) -> NDArray[Any]:
    """``array[:, columns]``, copied block by block into `empty`."""
    return _copied(lambda rows: array[rows][:, columns], (len(array), columns.size), array.dtype)


def astype(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """The array in another type, or itself where it has that type."""
    if array.dtype == dtype or not is_large(array.size * np.dtype(dtype).itemsize):
        return array.astype(dtype, copy=False)
    return _copied(array.__getitem__, array.shape, dtype)


def concatenate(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """The rows of one array and of another behind them."""
    dtype, n = np.result_type(first, second), len(first)
    shape = (n + len(second), *first.shape[1:])
    if not is_large(math.prod(shape) * dtype.itemsize):
        return np.concatenate([first, second])
    out = empty(shape, dtype)
    for array, where in ((first, slice(0, n)), (second, slice(n, None))):
        _fill(out[where], array.__getitem__)
    return out


def _copied(read: Callable[[slice], NDArray[Any]], shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    out = empty(shape, dtype)
    _fill(out, read)
    return out


def _fill(out: NDArray[Any], read: Callable[[slice], NDArray[Any]]) -> None:
    """Write `read(rows)` into the rows of `out`, on one thread: copying is not what takes time."""

    def write(rows: slice) -> None:
        out[rows] = read(rows)

    width = max(1, math.prod(out.shape[1:]) * out.itemsize)
    for_rows(write, len(out), block=block_rows(width, budget=GEMM_BYTES), threads=1)


def block_rows(row_bytes: int, *, budget: int = CACHE_BYTES, minimum: int = 1) -> int:
    """Rows of `row_bytes` each that fit into `budget` bytes: at least `minimum`, whatever the width.

    >>> block_rows(4000)
    786
    """
    if (chosen := _rows.get()) is not None:
        return chosen
    if (memory := _memory.get()) is not None:
        several = 4 if budget <= CACHE_BYTES else 1  # an elementwise pass has as many buffers
        budget = min(budget, memory // (several * LARGE_SHARE))
    return max(minimum, budget // max(1, row_bytes))


def row_slices(n_rows: int, block: int) -> Iterator[slice]:
    """Consecutive slices of at most `block` rows.

    >>> [(s.start, s.stop) for s in row_slices(5, 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    return (slice(start, min(start + block, n_rows)) for start in range(0, n_rows, block))


def map_rows(
    function: Callable[[slice], T],
    n_rows: int,
    *,
    block: int,
    threads: int | None = None,
    work: Work = ENTRIES,
    columns: int = 0,
) -> Iterator[T]:
    """Yield `function(rows)` for every block, in row order, computed on `threads` threads.

    By default they are as many as `n_threads` says of this `work`. Blocks have at most `block` rows, on one thread
    exactly; on several every thread has about as many rows, unless `settings` says how many. At most two blocks per
    thread are in flight, so the results that wait for their turn stay few. An exception in one block is raised here,
    and no further block is started. BLAS is held to one thread while a pass has several, and where a pass of
    several blocks is not made of products. Arrays of so many `columns` are worked on without copies
    where rows are long (`LONG_ROW`).

    >>> list(map_rows(lambda rows: rows.stop - rows.start, 10, block=4, threads=1))
    [4, 4, 2]
    """
    threads, block = _cut(n_rows, block, threads, work)
    function = function if columns < LONG_ROW else functools.partial(_in_place, function)
    held = threads > 1 or (n_rows > block and not work.products)
    results = seen(_run(function, row_slices(n_rows, block), threads, held), n_rows, block)
    return results if _memory.get() is None else _trimmed(results)


def _in_place(function: Callable[[slice], T], rows: slice) -> T:
    """The function of some rows, computed with NumPy's small buffer (see `LONG_ROW`), which is this thread's own."""
    before = np.setbufsize(ROW_BUFFER)
    try:
        return function(rows)
    finally:
        np.setbufsize(before)


def _trimmed(results: Iterator[T]) -> Iterator[T]:
    """Results, and at their end what was freed on the way goes back to the system."""
    yield from results
    scratch_files.trim()


def _cut(n_rows: int, block: int, threads: int | None, work: Work) -> tuple[int, int]:
    """Threads of a pass and rows of its blocks: as many blocks for every thread, of about equal size.

    What comes out stays as it is when it is cut again.
    """
    n_blocks = -(-n_rows // block)
    if (most := n_blocks // work.blocks) <= 1:
        return 1, block
    threads = min(threads or n_threads(work=work), most)
    if threads > 1 and _rows.get() is None:
        block = -(-n_rows // (threads * -(-n_blocks // threads)))
    return threads, block


def _run(function: Callable[[slice], T], slices: Iterator[slice], threads: int, held: bool) -> Iterator[T]:
    """Results of all slices, in order, with BLAS `held` to one thread or not."""
    with single_threaded_blas() if held else contextlib.nullcontext():
        yield from map(function, slices) if threads <= 1 else Team(function, slices, threads).results()


def watched(n_rows: int, block: int) -> Iterator[slice]:
    """`row_slices` for a loop that is a pass itself: whoever watches sees its rows, not those of passes inside."""
    return seen(row_slices(n_rows, block), n_rows, block)


@contextlib.contextmanager
def watching(watch: Watch[Any]) -> Iterator[None]:
    """Let `watch` see the results of every pass inside a `with`, one by one, as they come."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def seen(results: Iterator[T], n_rows: int, block: int) -> Iterator[T]:
    """Results that come one per block of rows, seen by whoever watches; see `watching`."""
    watch = _watch.get()
    return results if watch is None else watch(results, n_rows, block)


def for_rows(
    function: Callable[[slice], object],
    n_rows: int,
    *,
    block: int,
    threads: int | None = None,
    work: Work = ENTRIES,
    columns: int = 0,
) -> None:
    """Run `function(rows)` for every block, for what it writes into arrays made beforehand; see `map_rows`.

    >>> squares = np.arange(5)
    >>> for_rows(lambda rows: np.square(squares[rows], out=squares[rows]), 5, block=2)
    >>> squares
    array([ 0,  1,  4,  9, 16])
    """
    for _ in map_rows(function, n_rows, block=block, threads=threads, work=work, columns=columns):
        pass


def reduce_rows(
    function: Callable[[slice], T],
    n_rows: int,
    merge: Callable[[T, T], T] = operator.add,
    *,
    block: int,
    threads: int | None = None,
    work: Work = ENTRIES,
    columns: int = 0,
) -> T:
    """Fold `function(rows)` over all blocks with `merge`, in row order; needs at least one row.

    On several threads neighbours are merged first, then those pairs, and so on, by whichever thread has the second of
    two: the outcome does not depend on which was faster, and no thread adds up what all the others have made.

    >>> values = np.arange(10.0)
    >>> float(reduce_rows(lambda rows: values[rows].sum(), 10, block=3))
    45.0
    """
    threads, block = _cut(n_rows, block, threads, work)
    if threads <= 1:
        return functools.reduce(merge, map_rows(function, n_rows, block=block, threads=1, work=work, columns=columns))
    tree = MergeTree(merge, -(-n_rows // block))

    def add(rows: slice) -> None:
        tree.add(rows.start // block, function(rows))

    for_rows(add, n_rows, block=block, threads=threads, work=work, columns=columns)
    return tree.whole()


def compute(
    pieces: Callable[[slice], Iterable[tuple[Any, ...]]],
    n_rows: int,
    *,
    block: int,
    host: bool = True,
    threads: int | None = None,
    work: Work = ENTRIES,
    columns: int = 0,
) -> tuple[Any, ...]:
    """Arrays of all rows from a function that makes those of one block of rows, piece by piece.

    Parameters
    ----------
    pieces : callable
        Gives, for a slice of rows, tuples of arrays of consecutive parts of these rows; at least one.
    n_rows : int
    block : int
        Rows of a slice.
    host : bool, default=True
        NumPy arrays are computed on threads and written into `empty` arrays. Arrays of another library (False) stay on
        their device, where one block comes after the other.
    threads, work, columns : optional
        As in `map_rows`.

    Returns
    -------
    tuple of arrays
        With all rows each; None where a piece has None.

    Examples
    --------
    >>> compute(lambda rows: [(np.arange(rows.start, rows.stop) ** 2, None)], 5, block=2)
    (array([ 0,  1,  4,  9, 16]), None)
    """
    if not host:
        return _joined_on_device(pieces, n_rows, block)
    if not n_rows:
        return tuple(next(iter(pieces(slice(0, 0)))))
    if n_rows <= block:
        found = map_rows(lambda rows: list(pieces(rows)), n_rows, block=block, threads=1, work=work, columns=columns)
        return _joined_on_host(next(found))
    whole: list[NDArray[Any] | None] = []
    lock = threading.Lock()

    def write(rows: slice) -> None:
        start = rows.start
        for piece in pieces(rows):
            with lock:
                if not whole:
                    whole.extend(
                        None if part is None else empty((n_rows, *part.shape[1:]), part.dtype) for part in piece
                    )
            for out, part in zip(whole, piece, strict=True):
                if out is not None:
                    out[start : start + len(part)] = part
            start += len(piece[0])

    for_rows(write, n_rows, block=block, threads=threads, work=work, columns=columns)
    return tuple(whole)


def _joined_on_host(found: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """One piece as it is, views copied; several behind each other."""
    if len(found) == 1:
        return tuple(part if part is None or part.base is None else part.copy() for part in found[0])
    return tuple(None if parts[0] is None else np.concatenate(parts) for parts in zip(*found, strict=True))


def _joined_on_device(pieces: Callable[[slice], Iterable[tuple[Any, ...]]], n_rows: int, block: int) -> tuple[Any, ...]:
    from array_api_compat import array_namespace

    cuts = list(row_slices(n_rows, block)) or [slice(0, 0)]
    found = [piece for rows in cuts for piece in pieces(rows)]
    if len(found) == 1:
        return tuple(found[0])
    columns = zip(*found, strict=True)
    return tuple(None if parts[0] is None else array_namespace(parts[0]).concat(parts, axis=0) for parts in columns)


class Buffers:
    """One set of named buffers, for one block at a time: `buffers(name, shape, dtype)` is uninitialised memory."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, DTypeLike], NDArray[Any]] = {}

    def __call__(self, name: str, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """The buffer of this name, grown if need be."""
        size = shape if isinstance(shape, int) else math.prod(shape)
        held = self._held.get((name, dtype))
        if held is None or held.size < size:
            held = self._held[name, dtype] = _aligned(size, np.dtype(dtype))
        return held[:size].reshape(shape)


def _aligned(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Uninitialised memory for so many numbers that begins with a line of the cache."""
    memory = np.empty(size * dtype.itemsize + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size * dtype.itemsize].view(dtype)


class Workspace:
    """Buffers that a pass borrows block after block, so that no block pays for fresh memory.

    >>> workspace = Workspace()
    >>> with workspace.borrow() as buffers:
    ...     buffers("z", (2, 3), np.float32).shape
    (2, 3)
    """

    def __init__(self) -> None:
        self._free: list[Buffers] = []

    def __reduce__(self) -> tuple[type["Workspace"], tuple[()]]:
        return Workspace, ()  # no other process needs what is in the buffers

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Buffers]:
        """Lend one set of named buffers to the calling thread."""
        try:
            held = self._free.pop()  # atomic: no lock is needed
        except IndexError:
            held = Buffers()
        try:
            yield held
        finally:
            self._free.append(held)


def _check_memory(memory: int | str) -> int:
    size = scratch_files.parse_bytes(memory)
    if size < scratch_files.MINIMUM:
        raise ValueError(
            f"memory must be at least {scratch_files.words(scratch_files.MINIMUM)}, which the libraries alone take; "
            f"got {memory!r}."
        )
    return size


def _positive(value: int | str, name: str) -> int:
    try:
        number = operator.index(value) if not isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}.")
    return number
