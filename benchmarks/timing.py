"""How every benchmark measures: contestants take turns on the same arrays, and the best of several turns counts."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atypicality import blocks

__all__ = ["Row", "best_times", "elementwise_pass"]


@dataclass(frozen=True)
class Row:
    """One line of the table: `ratio` is what was measured, `target` what it should be ("<= 1.5" or ">= 100")."""

    stage: str
    against: str
    ratio: float
    target: str
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the ratio keeps its target."""
        relation, bound = self.target.split()
        return self.ratio <= float(bound) if relation == "<=" else self.ratio >= float(bound)


def best_times(contestants: dict[str, Callable[[], object]], *, repeats: int = 5, threads: int = 1) -> dict[str, float]:
    """Best seconds of each contestant; they take turns, on one thread each (BLAS and ours) unless told otherwise."""
    from threadpoolctl import threadpool_limits

    best = dict.fromkeys(contestants, float("inf"))
    with threadpool_limits(threads), blocks.settings(n_threads=threads):
        for _ in range(repeats):
            for name, run in contestants.items():
                gc.collect()
                start = time.perf_counter()
                run()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def elementwise_pass(z: np.ndarray) -> Callable[[], object]:
    """The unit of memory-bound work: subtract the row maximum and exponentiate into a buffer that already exists."""
    buffer, maxima = np.empty_like(z), z.max(axis=1, keepdims=True)

    def run() -> object:
        np.subtract(z, maxima, out=buffer)
        return np.exp(buffer, out=buffer)

    run()
    return run
