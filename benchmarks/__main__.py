"""Run every benchmark of this folder and print one table: `python -m benchmarks [name ...]`."""

import importlib
import pkgutil
import sys

from rich.console import Console
from rich.table import Table

import benchmarks
from benchmarks.timing import Row


def main(chosen: list[str]) -> int:
    """Print the table of all `bench_*` modules, or of those named; exit code 1 when a row misses its target."""
    names = [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name.startswith("bench_")]
    rows: list[Row] = []
    for name in names:
        if not chosen or name.removeprefix("bench_") in chosen:
            rows += importlib.import_module(f"benchmarks.{name}").rows()
    table = Table("stage", "against", "ratio", "target", "met", "note", title="Ratios measured in this run")
    for row in rows:
        table.add_row(row.stage, row.against, f"{row.ratio:.3g}", row.target, "yes" if row.met else "NO", row.note)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
