"""Two versions of the library on the rows of the benchmark, taking turns: `python -m benchmarks.compare OLD NEW`.

OLD and NEW are folders that hold the package, such as `src` of two checkouts. Each round starts one process for each of
them, which calls every stage once to warm up and then a few times; peers are left out, and so is what one of the
versions lacks. Medians over the rounds are compared: a stage is slower where its median exceeds the old one by more
than 5 % and more than both spreads.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.results import document, write

__all__ = ["COLUMNS", "STAGES", "best_of_few", "both_clocks", "compared", "main", "measured"]

STAGES = ("gaussian", "neighbors", "temperature", "aware", "vector", "metrics", "conformal", "head")
COLUMNS = ("stage", "size", "seconds", "old: median", "new: median", "spread", "new / old", "outcome")
TITLE = "Two versions on the same rows"
SLACK = 0.05
Times = dict[str, dict[str, float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit code 1 where a stage is slower."""
    options = parser().parse_args(arguments)
    if options.once:
        json.dump(measured(options.stages or STAGES), sys.stdout)
        return 0
    rounds: list[tuple[Times, Times]] = []
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        old, new = (_process(folder, options.stages) for folder in (options.old, options.new))
        rounds.append((old, new))
    lines = compared(rounds)
    if options.out:
        write(options.out, document(f"{TITLE}, {options.rounds} rounds in turns", COLUMNS, lines))
    table = Table(*COLUMNS, title=f"{options.rounds} rounds in turns, old {options.old}, new {options.new}")
    for line in lines:
        table.add_row(*line, style="bold red" if line[-1] == "SLOWER" else "")
    Console(width=None if sys.stdout.isatty() else 170).print(table)
    return int(any(line[-1] == "SLOWER" for line in lines))


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    made.add_argument("old", type=Path, help="folder that holds the old package")
    made.add_argument("new", type=Path, help="folder that holds the new package")
    made.add_argument("stages", nargs="*", choices=[[], *STAGES], help="all if none is named")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--out", type=Path, help="JSON file to write; those in benchmarks/results become tables")
    made.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    return made


def compared(rounds: Sequence[tuple[Times, Times]]) -> list[list[str]]:
    """A line for each stage and clock: medians, the larger spread of the two, and which is faster.

    >>> rounds = [({"a, 10": {"wall": old}}, {"a, 10": {"wall": new}}) for old, new in ((1.0, 2.0), (1.1, 2.1))]
    >>> compared(rounds)[0][-2:]
    ['1.95', 'SLOWER']
    """
    lines = []
    for name, clocks in rounds[0][0].items():
        for clock in clocks if name in rounds[0][1] else ():
            each = [[found[version][name][clock] for found in rounds] for version in (0, 1)]
            old, new = map(statistics.median, each)
            spread = max((max(times) - min(times)) / statistics.median(times) for times in each)
            slack = max(SLACK, spread)
            outcome = "SLOWER" if new > old * (1 + slack) else "faster" if new < old * (1 - slack) else "as before"
            stage, _, size = name.partition(", ")
            lines.append([stage, size, clock, f"{old:.3g}", f"{new:.3g}", f"{spread:.0%}", f"{new / old:.2f}", outcome])
    return lines


def measured(stages: Sequence[str], measure: Callable[[Callable[[], Any]], dict[str, float]] | None = None) -> Times:
    """What `measure` says of our own call of every row: by default `both_clocks`."""
    from benchmarks import rows

    found, began = Times(), time.perf_counter()

    def alone(stage: str, size: str, ours: Callable[[], Any], peers: Sequence[Any], **options: Any) -> list[rows.Row]:
        print(f"  {time.perf_counter() - began:.0f} s: {stage}, {size}", file=sys.stderr, flush=True)
        try:
            found[f"{stage}, {size}"] = (measure or both_clocks)(ours)
        except (AttributeError, TypeError, ValueError) as error:
            print(f"  left out, this version lacks it: {error}", file=sys.stderr, flush=True)
        return [rows.Row(stage, size)] * (len(options.get("targets") or ()) + len(peers) or 1)

    rows.contest = alone
    gaussian: Any = importlib.import_module("benchmarks.bench_gaussian")
    gaussian.file_row = lambda *_: rows.Row("file", "")  # a process of its own, for a minute
    for stage in stages:
        _stage(stage).rows(False)
    return found


def both_clocks(run: Callable[[], Any]) -> dict[str, float]:
    """Best processor seconds on one thread, and wall seconds with default threads."""
    from benchmarks.timing import one_thread

    with one_thread():
        once = best_of_few(run, time.process_time)
    return {"one thread": once, "wall": best_of_few(run, time.perf_counter)}


def _stage(name: str) -> Any:
    """The module of a stage; a class that this version of the library lacks is None there."""
    import atypicality

    known: Callable[[str], Any] = atypicality.__getattr__

    def lenient(name: str) -> Any:
        return known(name) if name in atypicality.__all__ or not name[0].isupper() else None

    vars(atypicality)["__getattr__"] = lenient
    return importlib.import_module(f"benchmarks.bench_{name}")


def best_of_few(run: Callable[[], Any], clock: Callable[[], float], budget: float = 0.5) -> float:
    """Best of up to six calls within a budget of seconds; the first counts only where it is the last."""
    times: list[float] = []
    while not times or (len(times) < 6 and sum(times) < budget):
        start = clock()
        run()
        times.append(clock() - start)
    return min(times[1:] or times)


def _process(folder: Path, stages: Sequence[str]) -> Times:
    home = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-m", "benchmarks.compare", ".", ".", *stages, "--once"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder.resolve()), str(home)])}
    done = subprocess.run(command, cwd=home, env=environment, stdout=subprocess.PIPE, check=True)
    times: Times = json.loads(done.stdout.decode().splitlines()[-1])
    return times


if __name__ == "__main__":
    sys.exit(main())
