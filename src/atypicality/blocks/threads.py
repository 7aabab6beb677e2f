"""Blocks on threads: a team that takes one after the other, while BLAS is held to one thread.

The rule: passes of a kind have threads from the number of cores on where these make most of them at least 1.6 times as
fast as one thread; with fewer cores they have one. `blocks.Work` is the table of kinds. Gains of stages over one
thread, by cores, in several runs on two machines (one with two cores, whose host is busy; one with 16):

===============================================  =========  ===========  ==========
passes                                           2 busy     2 of 16      3 of 16
===============================================  =========  ===========  ==========
matrix products (`PRODUCTS`, `SCATTER`)          1.5-2.1    1.4-2.2      1.7-3.2
probabilities (`SOFTMAX`)                        1.5-1.85   1.8-1.9      2.4-2.7
metrics, sets (`LIGHT`)                          1.0-1.75   1.3-2.0      1.7-3.4
recalibration (`ENTRIES`)                        1.2-1.7    1.25-1.8     1.2-2.7
===============================================  =========  ===========  ==========

So products and probabilities have threads from two cores on, other passes from three. Why two threads are not twice as
fast:

The interpreter's lock. Every NumPy call gives it up and takes it back. Two threads that hold it for 4 microseconds
between calls of 25 are twice as fast as one; where they hold it for 20 in a row, they are 1.75 times as fast with calls
of 25 and slower than one (.84) with calls of 13: a thread that waits for it sleeps, and takes 30 microseconds to wake.
NumPy keeps it throughout `bincount`, and throughout products of matrices or rows and running sums along rows that have
at most 500 results or rows: in blocks of 480 rows instead of 524 the default recalibration of 1,000 classes takes 1.06
to 1.11 times as long on two threads, and no longer on one. So blocks are 2 to 3 MiB, in which a call takes 50 to 350
microseconds; they consist of a few long calls; no lock is taken between two of them; and one number per row is worked
on after the pass, for all rows at once. The more threads, the more of them wait: in one run ECE was 2.7, 2.1 and 1.5
times as fast with 4, 8 and 16 as with one, temperature scaling 2.4, 3.1 and 2.9 times, a head's answers, which are
matrix products, 3.5, 5.8 and 6.9 times. So `ENTRIES` stop at eight threads and `LIGHT` at four. On a free-threaded
build of Python 3.13, which has no lock, paper AAR of 25,000 x 1,000 gains 1.66 from two threads instead of 1.54, the
default 1.69 instead of 1.57.

Memory and caches. One core reads 200 MB in 6.6 ms, two together in 6.0. Beside another thread a multiplication of a
block takes 1.06 to 1.33 times as long, gathering single entries 1.3 to 1.6, an exponential 1.03 to 1.06. Log loss,
which reads and does little more, gains nothing, and has one thread everywhere.

What comes after the blocks. If one thread adds up what all others have made, they wait for it; so all of them merge
(`MergeTree`). Factorisations, the choice of strengths on a quadratic model of the loss and the vertex steps of
conditional sets are not cut into blocks at all: a sixth of paper AAR, a fifth of a head.

Starting. A new thread takes 90 microseconds to start: a pass of 1.3 ms gains 1.5 with new threads, and 1.75 with
threads that wait for it, as they do here. The caller's own thread works too, and an array of one block starts none.

The threads of a BLAS library spin for some 25 ms after each call that used them, on the cores that the blocks need.
BLAS is therefore held to one thread for the whole of a fit that is made of passes over blocks, not for each pass
alone (`single_threaded_blas`). A whole head of 50,000 rows took .79 s on two cores where that was not so between its
parts, and .57 s where it was; a Gaussian fit took longer on 16 cores than on one.
"""

import contextlib
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

__all__ = ["MergeTree", "Team", "single_threaded_blas"]

T = TypeVar("T")
HAS_LOCK: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether the interpreter has a lock: free-threaded builds of Python, from 3.13 on, have none."""
IDLE = 64
"""Threads that are kept for later passes: requests to a server may have had more."""
WIDE = 2048
"""Columns from which on BLAS keeps its threads in a fit: factorisations of columns by columns then pay for them.

Two threads take eigenvalues, the longest of them, 1.5 to 1.7 times faster from here on, and 1.0 to 1.2 up to 1,024.
"""


class Team(Generic[T]):
    """Threads that take one block after the other, the caller's among them; results come in the order of the blocks.

    At most `ahead` blocks are begun whose results were not given out yet. A lock is taken only by a thread that has to
    wait and by the one that it waits for: steps of a deque and of a dictionary are whole by themselves. An interpreter
    without a lock of its own does not say in which order others see them, so that there everybody takes it.
    """

    def __init__(self, function: Callable[[slice], T], slices: Iterator[slice], threads: int) -> None:
        self.jobs = deque(enumerate(slices))
        self.function, self.total, self.helpers, self.ahead = function, len(self.jobs), threads - 1, 2 * threads
        self.given, self.waiting, self.stopped = 0, 0, False
        self.done: dict[int, tuple[T | None, BaseException | None]] = {}
        self.left: list[None] = []  # one for each helper that has gone
        self.changed = threading.Condition()

    def results(self) -> Iterator[T]:
        """Every result; an error in a block is raised in its turn. Running blocks are waited for, but after Ctrl-C.

        One of them may wait for a server for minutes.
        """
        job = self._job()  # the first block is the caller's: its result is the first to be waited for
        for _ in range(self.helpers):
            _hire(partial(copy_context().run, self._help))  # `settings` hold on threads too
        waits = True
        try:
            while self.given < self.total:
                if job is not None and self._may_begin(job[0]):
                    self._run(*job)
                    job = self._job()
                else:
                    self._wait(lambda: self.given in self.done)
                while (found := self.done.pop(self.given, None)) is not None:
                    if found[1] is not None:
                        raise found[1]
                    yield found[0]  # type: ignore[misc]
                    self.given += 1
                    self._tell()
        except KeyboardInterrupt:
            waits = False
            raise
        finally:
            self.stopped = True
            self._tell()
            if waits:
                self._wait(lambda: len(self.left) == self.helpers)

    def _help(self) -> None:
        try:
            while (job := self._job()) is not None:
                number, rows = job
                self._wait(lambda number=number: self.stopped or self._may_begin(number))  # type: ignore[misc]
                if self.stopped:
                    return
                self._run(number, rows)
                self._tell()
        finally:
            self.left.append(None)
            self._tell()

    def _job(self) -> tuple[int, slice] | None:
        try:
            return self.jobs.popleft()
        except IndexError:
            return None

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
        if self.waiting or not HAS_LOCK:
            with self.changed:
                self.changed.notify_all()


class MergeTree(Generic[T]):
    """Results of so many blocks, merged in pairs of neighbours, then pairs of these, and so on, as they come.

    >>> tree = MergeTree(lambda first, second: f"({first} {second})", 3)
    >>> for number in (2, 1, 0):
    ...     tree.add(number, number)
    >>> tree.whole()
    '((0 1) 2)'
    """

    def __init__(self, merge: Callable[[T, T], T], total: int) -> None:
        self.merge, self.total = merge, total
        self.held: dict[tuple[int, int], tuple[int, T]] = {}

    def add(self, number: int, found: T) -> None:
        """Merge the result of a block with what is there beside it; the first of two waits, the second climbs."""
        left, height = self.total, 0
        while left > 1:
            parent, height = number // 2, height + 1
            if number ^ 1 < left:  # else it has no neighbour, and climbs alone
                other = self.held.setdefault((height, parent), (number, found))  # atomic: no lock is needed
                if other[0] == number:
                    return
                del self.held[height, parent]
                found = self.merge(other[1], found) if number % 2 else self.merge(found, other[1])
            number, left = parent, -(-left // 2)
        self.held[0, 0] = 0, found

    def whole(self) -> T:
        """All of them."""
        return self.held[0, 0][1]


class _Helper:
    """A thread that does what it is given and then waits for more: to start one takes as long as a short pass."""

    def __init__(self) -> None:
        self.work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="atypicality", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self.work.get()()  # no name holds what it was: its arrays are free once it is done
            if len(_idle) >= IDLE:
                return
            _idle.append(self)


_idle: list[_Helper] = []


def _hire(work: Callable[[], object]) -> None:
    try:
        helper = _idle.pop()  # atomic: no lock is needed; the last to finish is the one whose core is warm
    except IndexError:
        helper = _Helper()
    helper.work.put(work)


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
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
