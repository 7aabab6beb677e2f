"""Rows in blocks: the one place that cuts arrays, runs threads and merges partial results.

Every fit and every score of the library is a function of one block of rows. This module decides how tall a
block is (it should stay in cache), runs the blocks on threads, and hands the results back in row order, so that
the outcome does not depend on which thread was faster. While blocks run on threads, BLAS is held to one thread:
two pools on the same cores only fight.

>>> import numpy as np
>>> x = np.arange(10.0).reshape(5, 2)
>>> reduce_rows(lambda rows: x[rows].sum(axis=0), 5, operator.add, block=2)
array([20., 25.])
"""

import contextlib
import math
import operator
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = [
    "CACHE_BYTES",
    "GEMM_BYTES",
    "Buffers",
    "Workspace",
    "block_rows",
    "for_rows",
    "map_rows",
    "n_threads",
    "reduce_rows",
    "row_slices",
    "settings",
    "single_threaded_blas",
]

T = TypeVar("T")

CACHE_BYTES = 512 * 1024
"""Size of a block for elementwise passes: half of a common second-level cache, so that a buffer fits beside it."""
GEMM_BYTES = 8 * 1024 * 1024
"""Size of a block that enters a matrix product: tall enough for BLAS to run at its full rate."""

_threads: ContextVar[int | None] = ContextVar("atypicality_threads", default=None)
_rows: ContextVar[int | None] = ContextVar("atypicality_block_rows", default=None)


@contextlib.contextmanager
def settings(*, n_threads: int | None = None, block_rows: int | None = None) -> Iterator[None]:
    """Fix the number of threads or the rows of a block inside a `with`; results do not depend on either."""
    tokens = [
        (variable, variable.set(_positive(value, name) if value is not None else variable.get()))
        for variable, value, name in ((_threads, n_threads, "n_threads"), (_rows, block_rows, "block_rows"))
    ]
    try:
        yield
    finally:
        for variable, token in tokens:
            variable.reset(token)


def n_threads() -> int:
    """Threads that a pass may use: `settings`, else `ATYPICALITY_NUM_THREADS`, else the cores of this process."""
    if (chosen := _threads.get()) is not None:
        return chosen
    if (given := os.environ.get("ATYPICALITY_NUM_THREADS")) is not None:
        return _positive(given, "ATYPICALITY_NUM_THREADS")
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def block_rows(row_bytes: int, *, budget: int = CACHE_BYTES, minimum: int = 1) -> int:
    """Rows of `row_bytes` each that fit into `budget` bytes: at least `minimum`, whatever the width.

    >>> block_rows(4000)
    131
    """
    if (chosen := _rows.get()) is not None:
        return chosen
    return max(minimum, budget // max(1, row_bytes))


def row_slices(n_rows: int, block: int) -> Iterator[slice]:
    """Consecutive slices of at most `block` rows.

    >>> [(s.start, s.stop) for s in row_slices(5, 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    return (slice(start, min(start + block, n_rows)) for start in range(0, n_rows, block))


def map_rows(function: Callable[[slice], T], n_rows: int, *, block: int, threads: int | None = None) -> Iterator[T]:
    """Yield `function(rows)` for every block, in row order, computed on `threads` threads (default: `n_threads`).

    At most two blocks per thread are in flight, so the results that wait for their turn stay few. An exception
    in one block is raised here, and no further block is started.
    """
    threads = min(threads or n_threads(), -(-n_rows // block))
    if threads <= 1:
        yield from map(function, row_slices(n_rows, block))
        return
    with single_threaded_blas(), ThreadPoolExecutor(threads, thread_name_prefix="atypicality") as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for rows in row_slices(n_rows, block):
                if len(waiting) >= 2 * threads:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(copy_context().run, function, rows))  # `settings` hold on threads too
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def for_rows(function: Callable[[slice], object], n_rows: int, *, block: int, threads: int | None = None) -> None:
    """Run `function(rows)` for every block, for what it writes into arrays made beforehand."""
    for _ in map_rows(function, n_rows, block=block, threads=threads):
        pass


def reduce_rows(
    function: Callable[[slice], T],
    n_rows: int,
    merge: Callable[[T, T], T] = operator.add,
    *,
    block: int,
    threads: int | None = None,
) -> T:
    """Fold `function(rows)` over all blocks with `merge`, in row order; needs at least one row."""
    results = map_rows(function, n_rows, block=block, threads=threads)
    total = next(results)
    for result in results:
        total = merge(total, result)
    return total


class Buffers:
    """One set of named buffers, for one block at a time: `buffers(name, shape, dtype)` is uninitialised memory."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, DTypeLike], NDArray[Any]] = {}

    def __call__(self, name: str, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """The buffer of this name, grown if need be."""
        size = shape if isinstance(shape, int) else math.prod(shape)
        held = self._held.get((name, dtype))
        if held is None or held.size < size:
            held = self._held[name, dtype] = np.empty(size, dtype)
        return held[:size].reshape(shape)


class Workspace:
    """Buffers that a pass borrows block after block, so that no block pays for fresh memory.

    >>> workspace = Workspace()
    >>> with workspace.borrow() as buffers:
    ...     buffers("z", (2, 3), np.float32).shape
    (2, 3)
    """

    def __init__(self) -> None:
        self._free: list[Buffers] = []

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


_blas_lock = threading.Lock()
_blas_users = 0
_blas_limit: Any = None
_blas_controller: Any = None


@contextlib.contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Hold BLAS to one thread. Counts its users: the first sets the limit, the last restores what was before."""
    global _blas_users, _blas_limit, _blas_controller
    with _blas_lock:
        _blas_users += 1
        if _blas_users == 1:
            if _blas_controller is None:
                from threadpoolctl import ThreadpoolController

                _blas_controller = ThreadpoolController()
            _blas_limit = _blas_controller.limit(limits=1, user_api="blas")
            _blas_limit.__enter__()
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            if _blas_users == 0:
                _blas_limit.__exit__(None, None, None)
                _blas_limit = None


def _positive(value: int | str, name: str) -> int:
    try:
        number = operator.index(value) if not isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}.")
    return number


def _reset_after_fork() -> None:
    """A forked child has none of the parent's threads: forget a lock or a count that one of them held."""
    global _blas_lock, _blas_users, _blas_limit
    _blas_lock, _blas_users, _blas_limit = threading.Lock(), 0, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
