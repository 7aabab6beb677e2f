"""Blocks on threads: a team that takes one after the other, while BLAS is held to one thread.

Three things decide whether threads pay. Every NumPy call gives up the interpreter's lock and takes it back: where one
takes 20 microseconds (a block of 512 KiB), two threads lose more by handing the lock over than they save, and passes of
many short calls took up to 1.7 times as long as on one thread. With blocks of 3 MiB two threads are 1.6 to 2 times
faster than one where the work is arithmetic, and one thread is no slower than with small blocks.

What reads more than the cache holds gains 1.2 to 1.55: one core reads memory nearly as fast as two (100 MB in 3.4 and
3.2 ms). Recalibration fits also have parts that are not cut into blocks, factorisations and the choice of strengths on
a quadratic picture of the loss: 8 % of the processor time with 25,000 rows and 1000 classes, and 20 % with 5,000 rows
and 100 classes, where two threads are 1.4 times faster at most.

And the threads of a BLAS library spin for some 25 ms after each call that used them, on the cores that the blocks need:
BLAS is therefore held to one thread for the whole of a fit that is made of passes over blocks, not for each pass alone
(`single_threaded_blas`). A whole head of 50,000 rows took .79 s on two cores where that was not so between its parts,
and .57 s where it was. The caller's own thread works too, and an array of one block starts no thread at all.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any, Generic, TypeVar

__all__ = ["Team", "single_threaded_blas"]

T = TypeVar("T")
WIDE = 2048
"""Columns from which on BLAS keeps its threads in a fit: factorisations of columns by columns then pay for them.

Two threads take eigenvalues, the longest of them, 1.5 to 1.7 times faster from here on, and 1.0 to 1.2 up to 1,024.
"""


class Team(Generic[T]):
    """Threads that take one block after the other, the caller's among them; results come in the order of the blocks.

    At most `ahead` blocks are begun whose results were not given out yet. A lock is taken only by a thread that has to
    wait and by the one that it waits for: steps of an iterator over a list and of a dictionary are whole by themselves.
    """

    def __init__(self, function: Callable[[slice], T], slices: Iterator[slice], threads: int) -> None:
        jobs = list(enumerate(slices))
        self.function, self.jobs, self.total, self.helpers, self.ahead = (
            function, iter(jobs), len(jobs), threads - 1, 2 * threads,
        )  # fmt: skip
        self.given, self.waiting, self.stopped = 0, 0, False
        self.done: dict[int, tuple[T | None, BaseException | None]] = {}
        self.changed = threading.Condition()

    def results(self) -> Iterator[T]:
        """Every result; an error in a block is raised in its turn. Running blocks are waited for, but after Ctrl-C.

        One of them may wait for a server for minutes.
        """
        contexts = [copy_context() for _ in range(self.helpers)]  # `settings` hold on threads too
        team = [threading.Thread(target=one.run, args=(self._help,), name="atypicality") for one in contexts]
        job = next(self.jobs, None)  # the first block is the caller's: its result is the first to be waited for
        for thread in team:
            thread.start()
        try:
            while self.given < self.total:
                if job is not None and self._may_begin(job[0]):
                    self._run(*job)
                    job = next(self.jobs, None)
                else:
                    self._wait(lambda: self.given in self.done)
                while (found := self.done.pop(self.given, None)) is not None:
                    if found[1] is not None:
                        raise found[1]
                    yield found[0]  # type: ignore[misc]
                    self.given += 1
                    self._tell()
        except KeyboardInterrupt:
            team = []
            raise
        finally:
            self.stopped = True
            self._tell()
            for thread in team:
                thread.join()

    def _help(self) -> None:
        for number, rows in self.jobs:
            self._wait(lambda number=number: self.stopped or self._may_begin(number))  # type: ignore[misc]
            if self.stopped:
                return
            self._run(number, rows)
            self._tell()

    def _run(self, number: int, rows: slice) -> None:
        try:
            self.done[number] = self.function(rows), None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.done[number] = None, error

    def _may_begin(self, number: int) -> bool:
        return number - self.given < self.ahead

    def _wait(self, ready: Callable[[], bool]) -> None:
        if ready():
            return
        with self.changed:
            self.waiting += 1  # before another look: who changes something after that sees it
            self.changed.wait_for(ready)
            self.waiting -= 1

    def _tell(self) -> None:
        if self.waiting:
            with self.changed:
                self.changed.notify_all()


_blas_lock = threading.Lock()
_blas_users = 0
_blas_limit: Any = None
_blas_controller: Any = None


@contextlib.contextmanager
def single_threaded_blas(columns: int = 0) -> Iterator[None]:
    """Hold BLAS to one thread. Counts its users: the first sets the limit, the last restores what was before.

    Nothing is held where matrices of so many `columns` by columns are factorised on the way that threads pay for them.
    """
    global _blas_users, _blas_limit, _blas_controller
    if columns >= WIDE:
        yield
        return
    with _blas_lock:
        _blas_users += 1
        if _blas_users == 1:
            loaded = "scipy.linalg" in sys.modules  # it brings a BLAS of its own
            if _blas_controller is None or _blas_controller[0] != loaded:
                from threadpoolctl import ThreadpoolController

                _blas_controller = loaded, ThreadpoolController()
            _blas_limit = _blas_controller[1].limit(limits=1, user_api="blas")
            _blas_limit.__enter__()
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            if _blas_users == 0:
                _blas_limit.__exit__(None, None, None)
                _blas_limit = None


def _reset_after_fork() -> None:
    """A forked child has none of the parent's threads: forget a lock or a count that one of them held."""
    global _blas_lock, _blas_users, _blas_limit
    _blas_lock, _blas_users, _blas_limit = threading.Lock(), 0, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
