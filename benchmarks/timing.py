"""How every benchmark measures: contestants take turns on the same arrays, and the best turn counts.

Seconds are processor seconds on one thread: other work on the machine hardly changes them. Wall seconds are those of a
clock, with as many threads as everybody takes by default: what a user waits for, on a machine that does nothing else.
"""

import ctypes
import gc
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atypicality import blocks

__all__ = [
    "Measured",
    "best_call",
    "best_times",
    "elementwise_pass",
    "measure",
    "one_thread",
    "peak_above",
    "peak_anonymous",
    "thread_turns",
    "touch_memory",
    "wait_for_quiet",
]

SLOW = 8.0
"""Seconds from which a contestant runs once only: noise is small beside them, and a run should end."""


@dataclass(frozen=True)
class Measured:
    """What one contestant needed, and what it answered the last time."""

    result: Any
    seconds: float
    megabytes: float
    wall: float = math.nan

    def better_of(self, turn: tuple[Any, float, float]) -> "Measured":
        """The best of this and another turn, with the answer of the latter."""
        result, seconds, megabytes = turn
        return replace(
            self, result=result, seconds=min(self.seconds, seconds), megabytes=min(self.megabytes, megabytes)
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold BLAS, OpenMP, torch, faiss, numba and this library to one thread, whichever of them is loaded."""
    from threadpoolctl import threadpool_limits

    restore = []
    if (torch := sys.modules.get("torch")) is not None:
        restore.append((torch.set_num_threads, torch.get_num_threads()))
        torch.set_num_threads(1)
    if (faiss := sys.modules.get("faiss")) is not None:
        restore.append((faiss.omp_set_num_threads, faiss.omp_get_max_threads()))
        faiss.omp_set_num_threads(1)
    if (numba := sys.modules.get("numba")) is not None:
        restore.append((numba.set_num_threads, numba.get_num_threads()))
        numba.set_num_threads(1)
    try:
        with threadpool_limits(1), blocks.settings(n_threads=1):
            yield
    finally:
        for function, threads in restore:
            function(threads)


def measure(contestants: dict[str, Callable[[], Any]], *, repeats: int = 3, plain: bool = False) -> dict[str, Measured]:
    """Best seconds, peak memory and answer of each contestant; they take turns.

    The first two turns measure memory too, and the smaller peak counts: the first also loads what a library loads
    once. Whoever is slow has the first turn only. With `plain` the seconds are those of the best of plain calls, made
    one after the other when the turns are over. Wall seconds come from turns of their own, after those on one thread.
    """
    found: dict[str, Measured] = {}
    with one_thread():
        for turn in range(repeats + 1):
            for name, run in contestants.items():
                held = found.get(name)
                if held is None:
                    found[name] = Measured(*peak_above(run))
                elif held.seconds < SLOW:
                    found[name] = held.better_of(peak_above(run) if turn == 1 else (*_timed(run), math.inf))
        if plain:
            found = {name: replace(held, seconds=best_call(contestants[name])) for name, held in found.items()}
    if plain:
        walls = {name: best_call(run, clock=time.perf_counter) for name, run in contestants.items()}
    else:
        once = {name: run for name, run in contestants.items() if found[name].seconds >= SLOW}
        often = {name: run for name, run in contestants.items() if name not in once}
        walls = best_times(once, repeats=1, wall=True) | best_times(often, repeats=max(repeats, 1), wall=True)
    return {name: replace(held, wall=walls[name]) for name, held in found.items()}


def best_call(
    run: Callable[[], Any], *, calls: int = 20, budget: float = 4.0, clock: Callable[[], float] = time.process_time
) -> float:
    """Seconds of the best of several calls, one after the other, within a budget of seconds and at least twice."""
    times: list[float] = []
    while len(times) < calls and (len(times) < 2 or sum(times) < budget):
        start = clock()
        run()
        times.append(clock() - start)
    return min(times)


def best_times(
    contestants: dict[str, Callable[[], object]], *, repeats: int = 5, wall: bool = False
) -> dict[str, float]:
    """Best seconds of each contestant; they take turns, on one thread each, or by the `wall` clock as they come."""
    best = dict.fromkeys(contestants, float("inf"))
    with nullcontext() if wall else one_thread():
        for _ in range(repeats):
            for name, run in contestants.items():
                best[name] = min(best[name], _timed(run, time.perf_counter if wall else time.process_time)[1])
    return best


def thread_turns(
    run: Callable[[], object], *, seconds: float = 3.0, least: int = 3, most: int = 100
) -> tuple[float, float, float]:
    """Best wall seconds of a call on one thread and with default threads, and the cores that default threads keep busy.

    Calls take turns for some `seconds`, so that both meet the same machine: cores that others use meanwhile slow two
    threads down more often than one. Cores are those of all calls together: the system may count what other threads did
    in a call of milliseconds to the next one.
    """
    alone = wall = math.inf
    waited = spent = 0.0
    turns, end = 0, time.perf_counter() + seconds
    while turns < least or (turns < most and time.perf_counter() < end):
        turns += 1
        with one_thread():
            alone = min(alone, _timed(run, time.perf_counter)[1])
        gc.collect()
        start, began = time.perf_counter(), time.process_time()
        run()
        took, used = time.perf_counter() - start, time.process_time() - began
        wall, waited, spent = min(wall, took), waited + took, spent + used
    return alone, wall, spent / waited


def wait_for_quiet(limit: float, *, every: float = 5.0, load: Callable[[], float] | None = None) -> None:
    """Wait until the load of the last minute is below `limit`; at once where that is 0, or not known here."""
    load = load or (lambda: os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0)
    told = False
    while limit and (now := load()) >= limit:
        if not told:
            print(f"waiting for a load below {limit:g}; it is {now:.2f}", file=sys.stderr, flush=True)
            told = True
        time.sleep(every)


def touch_memory(size: int = 1 << 32) -> None:
    """Write once to as many bytes, a quarter of the memory at most, and give them back.

    A virtual machine may take twenty times as long for memory that nobody has used before: whoever came first would
    pay for it.
    """
    if hasattr(os, "sysconf"):
        size = min(size, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
    np.empty(size, np.uint8).fill(1)


def peak_above(run: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a call returns, its seconds, and the most megabytes that the process held above what it held before.

    The kernel keeps the peak, so nothing is sampled and nothing is missed. Memory that the allocator kept from
    earlier calls is given back first, else it would be used again unseen. NaN where the system has no such counter.
    """
    _collect()
    _give_back()
    before = _reset_peak()
    result, seconds = _timed(run)
    return result, seconds, _resident("VmHWM") - before


def peak_anonymous(run: Callable[[], Any], *, every: float = 0.005) -> tuple[Any, float, float]:
    """Like `peak_above`, for runs that read memory maps: a thread samples the memory that no file stands behind."""
    _collect()
    before, done = _resident("RssAnon"), threading.Event()
    peak = [before]

    def watch() -> None:
        while not done.wait(every):
            peak[0] = max(peak[0], _resident("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result, seconds = _timed(run)
    finally:
        done.set()
        watcher.join()
    return result, seconds, peak[0] - before


def elementwise_pass(z: np.ndarray) -> Callable[[], object]:
    """The unit of memory-bound work: subtract the row maximum and exponentiate into a buffer that already exists."""
    buffer, maxima = np.empty_like(z), z.max(axis=1, keepdims=True)

    def run() -> object:
        np.subtract(z, maxima, out=buffer)
        np.exp(buffer, out=buffer)
        return None

    run()
    return run


def _timed(run: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[Any, float]:
    gc.collect()
    start = clock()
    result = run()
    return result, clock() - start


def _collect() -> None:
    """Collect garbage until none is found: what a later collection frees would hide as much of a peak."""
    for _ in range(5):
        if not gc.collect():
            return


def _give_back() -> None:
    if os.path.exists("/proc/self/clear_refs"):
        ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> float:
    """Forget the peak so far; megabytes held now."""
    try:
        with open("/proc/self/clear_refs", "w") as control:
            control.write("5")
    except OSError:
        return math.nan
    return _resident("VmRSS")


def _resident(name: str) -> float:
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith(name))
    except OSError:
        return math.nan
