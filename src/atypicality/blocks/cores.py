"""Which cores threads run on: each has its own while a pass runs, and no two share one beside another that idles.

Threads that hand the interpreter's lock to each other were left on one core of two by Linux, for whole passes over
50,000 x 1,000 probabilities: of calls after a pause, a fourth took as long as on one thread. With a core for each, that
fourth takes three quarters of the time. On two of 16 cores it made no difference.

Where others work too, a scheduler knows better: two processes at once, on two cores, made 5 to 34 % fewer calls with
threads held apart. So they are only where as many cores are idle.
"""

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Set
from functools import cache

__all__ = ["apart", "cores", "forget", "hold"]

ALL = frozenset(range(os.cpu_count() or 1))
"""What a thread is given back that nobody had held on some cores: whatever its container may use then. With what it may
use now it would not follow when that grows."""
_held: dict[int, set[int]] = {}
"""What each thread that is held on some cores may use otherwise, by the system's number of it."""


def cores() -> set[int]:
    """Cores that the calling thread may use, those included that a pass keeps it from.

    >>> len(cores()) > 0
    True
    """
    if (own := _held.get(threading.get_native_id())) is not None:
        return own
    return set(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


@contextlib.contextmanager
def apart(others: int) -> Iterator[list[set[int]]]:
    """Hold the caller on the core that it is on; yields other cores for each of so many threads beside it.

    None of them where there are too few cores, or others work on them, the caller is held already, or the system has no
    way to choose them.
    """
    caller, every = threading.get_native_id(), cores()
    room = min(len(every), len(ALL) - _others_at_work())
    here = _current() if caller not in _held and others < room else None
    if here is None or here not in every or not _set(caller, ALL):
        yield []
        return
    after: Set[int] = every
    try:
        after = ALL if os.sched_getaffinity(caller) == every else every
        _held[caller] = every
        _set(caller, {here})
        rest = sorted(every - {here})
        yield [set(rest[place::others]) for place in range(others)]
    finally:
        _held.pop(caller, None)
        _set(caller, after) or _set(caller, ALL)  # none of what it might use before may be left


def hold(thread: int, where: set[int], every: set[int]) -> None:
    """Keep another thread on some cores, whatever it was held on before; `every` is what it may use otherwise."""
    if _set(thread, where):
        _held[thread] = every


def forget() -> None:
    """The calling thread ends: its number may be given to another."""
    _held.pop(threading.get_native_id(), None)


def _set(thread: int, where: Set[int]) -> bool:
    """Whether the system took the choice: it may be forbidden, and what was allowed may have changed meanwhile."""
    try:
        os.sched_setaffinity(thread, where)
    except (AttributeError, OSError):
        return False
    return True


def _others_at_work() -> int:
    """Threads on this system that run or wait for a core, without the caller; 0 where it does not say."""
    try:
        file = os.open("/proc/loadavg", os.O_RDONLY)
    except OSError:
        return 0
    try:
        return int(os.read(file, 128).split()[3].partition(b"/")[0]) - 1
    finally:
        os.close(file)


def _current() -> int | None:
    """The core that the caller is on."""
    read = _reader()
    return None if read is None else read()


@cache
def _reader() -> Callable[[], int] | None:
    """The C library's function, called without giving up the interpreter's lock: it takes less than a microsecond."""
    try:
        read: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu
    except (AttributeError, OSError, TypeError):
        return None
    return read


_forking: set[int] | None = None


def _before_fork() -> None:
    global _forking
    _forking = _held.get(threading.get_native_id())


def _after_fork() -> None:
    """A child is not held where its parent was."""
    _held.clear()
    if _forking is not None:
        _set(0, _forking)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
