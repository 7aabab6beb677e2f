"""What more cores bring to the library's own rows: `python -m benchmarks.cores [stage ...]`, for 1, 2, 3, 4, ... cores.

Every call may use so many cores of this machine, with default settings otherwise: what a machine with that many would
do. `--out benchmarks/results/cores.json` keeps what was measured.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from benchmarks.compare import STAGES, best_of_few, measured
from benchmarks.results import document, write

__all__ = ["columns", "lines", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    options = parser().parse_args(arguments)
    counts = options.cores or [count for count in (1, 2, 3, 4, 8, 16, 32, 64) if count <= len(os.sched_getaffinity(0))]
    found = measured(options.stages or STAGES, lambda run: by_cores(run, counts))
    title, rows = "Wall seconds with default settings, by cores", lines(found)
    if options.out:
        write(options.out, document(title, columns(counts), rows))
    table = Table(*columns(counts), title=title)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 170).print(table)
    return 0


def by_cores(run: Callable[[], Any], counts: Sequence[int]) -> dict[str, float]:
    """Best wall seconds for each number of cores, which all threads of the process share."""
    own, found = sorted(os.sched_getaffinity(0)), {}
    run()  # starts the threads that later calls find waiting
    for count in counts:
        _share(own[:count])
        try:
            with threadpool_limits(count):
                found[str(count)] = best_of_few(run, time.perf_counter)
        finally:
            _share(own)
    return found


def _share(cores: Sequence[int]) -> None:
    """Keep every thread of this process on these cores, those that wait for work too."""
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(thread, cores)


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.cores", description=__doc__)
    made.add_argument("stages", nargs="*", choices=[[], *STAGES], help="all if none is named")
    made.add_argument("--cores", type=int, nargs="+", help="how many; 1, 2, 3, 4, 8, ... if not given")
    made.add_argument("--out", type=Path, help="JSON file to write; those in benchmarks/results become tables")
    return made


def columns(counts: Sequence[int]) -> list[str]:
    """Headings of the table."""
    first, *others = counts
    return ["stage", "size", f"seconds, {first} core{'s' * (first > 1)}", *(f"{count} cores" for count in others)]


def lines(found: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """A line for each stage: seconds with the fewest cores, and how many times faster it is with more of them.

    >>> lines({"a, 10": {"1": 2.0, "4": 0.8}})
    [['a', '10', '2', '2.50']]
    """
    made = []
    for name, seconds in found.items():
        stage, _, size = name.partition(", ")
        first, *others = seconds.values()
        made.append([stage, size, f"{first:.3g}", *(f"{first / other:.2f}" for other in others)])
    return made


if __name__ == "__main__":
    sys.exit(main())
