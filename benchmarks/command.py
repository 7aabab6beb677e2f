"""Measure every stage against its peers, and how cost grows: `python -m benchmarks [stage ...] [--quick]`."""

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import STAGES, growth, page, results, small, timing
from benchmarks.rows import COLUMNS, Row

__all__ = ["OTHERS", "main", "parsed", "peers_document"]

OTHERS = {"small": small, "growth": growth}
"""Tables of their own: modules with `run(quick, out) -> bool`, whether something is too slow."""

PEERS = (
    *("netcal", "probmetrics", "mapie", "crepes", "torchmetrics", "faiss-cpu"),
    *("torchcp", "torch-uncertainty", "conditionalconformal"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit code 1 when a row misses its target, or is behind a peer without a reason."""
    options = parsed(arguments)
    stages = options.stages or [*STAGES, *OTHERS]
    if not options.quick:
        timing.touch_memory()
        timing.wait_for_quiet(options.load)
    rows = [row for stage in STAGES if stage in stages for row in measured(stage, options.quick)]
    if rows:
        show(rows)
    failed = not options.quick and not all(row.ok for row in rows)  # tiny sizes say nothing about speed
    if options.out and rows:
        results.write(options.out / "peers.json", peers_document(rows))
    for name, other in OTHERS.items():
        if name in stages:
            failed |= other.run(options.quick, options.out)
    if options.out == results.RESULTS:
        page.write_tables()
    return int(failed)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options; results are kept by default only when everything was measured at full size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("stages", nargs="*", help=f"some of {', '.join([*STAGES, *OTHERS])}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that everything runs, measures nothing")
    parser.add_argument(
        "--out",
        type=lambda text: Path(text).resolve(),
        help="folder for the results; by default kept only from a full run",
    )
    parser.add_argument(
        "--load", type=float, default=0.3, help="wait for a load of the machine below this; 0 measures at once"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.stages) - {*STAGES, *OTHERS}:
        parser.error(f"unknown stage {sorted(unknown)[0]!r}; choose from {', '.join([*STAGES, *OTHERS])}")
    if options.out is None and not options.stages and not options.quick:
        options.out = results.RESULTS
    return options


def measured(stage: str, quick: bool) -> list[Row]:
    """The rows of one stage, with the time it took on stderr."""
    start = time.perf_counter()
    found = importlib.import_module(f"benchmarks.bench_{stage}").rows(quick)
    print(f"[{stage}: {time.perf_counter() - start:.0f} s]", file=sys.stderr, flush=True)
    return found


def show(rows: Sequence[Row]) -> None:
    """Print the rows as one table."""
    table = Table(*COLUMNS, title="Against the peers, on the same arrays", show_lines=True)
    for row in rows:
        table.add_row(*row.cells(), style="" if row.ok else "bold red")
    Console(width=None if sys.stdout.isatty() else 220).print(table)


def peers_document(rows: Sequence[Row]) -> dict[str, object]:
    """The table, and behind it everything measured."""
    return results.document(
        "Against the peers, on the same arrays",
        COLUMNS,
        [row.cells() for row in rows],
        packages=PEERS,
        records=[row.record() for row in rows],
    )
