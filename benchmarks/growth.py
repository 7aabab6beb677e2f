"""How cost grows: rows, dimensions and classes doubled four times for every stage: `python -m benchmarks growth`.

The exponent of a stage is the slope of log seconds over log size. Beside it stands the exponent of its arithmetic:
the same slope for a formula that counts floating-point operations of products and entries of elementwise passes, each
priced at the rate that this machine reaches in the same run. A stage may grow more slowly than that (fixed costs,
and products that run nearer to their full rate when they are larger), but not faster by more than `LIMIT`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.growth_stages import DOUBLINGS, STAGES, Size, Stage, Work
from benchmarks.timing import best_times, elementwise_pass

__all__ = ["LIMIT", "Growth", "Prices", "exponent", "measure_growth", "measured_prices", "run"]

LIMIT = 0.15
"""By how much a fitted exponent may exceed that of the arithmetic."""
FITTED = 4
"""Largest sizes that enter the fit: fixed costs weigh most in the smallest."""
AXES = {"n": "rows", "d": "dimensions", "k": "classes"}
COLUMNS = (
    "stage",
    "doubled",
    "sizes",
    "arithmetic",
    "exponent of the arithmetic",
    "fitted exponent",
    "seconds on one thread, smallest to largest",
    "fitted exponent, wall",
    "wall seconds, default threads",
    "outcome",
)


@dataclass(frozen=True)
class Prices:
    """Seconds of one operation in a float64 product, in a float32 product, and of one entry in a pass."""

    double: float
    single: float
    entry: float

    def seconds(self, work: Work) -> float:
        """What the arithmetic would take at these rates."""
        return work.double * self.double + work.single * self.single + work.entries * self.entry


@dataclass(frozen=True)
class Growth:
    """One stage along one axis."""

    stage: str
    axis: str
    sizes: tuple[int, ...]
    formula: str
    theory: float
    fitted: float
    seconds: tuple[float, ...]
    wall: tuple[float, ...]

    @property
    def ok(self) -> bool:
        """Whether it grows no faster than its arithmetic."""
        return self.fitted <= self.theory + LIMIT

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        if not self.ok:
            return f"GROWS FASTER by {self.fitted - self.theory:.2f}"
        slower = self.theory - self.fitted > LIMIT
        return (
            "more slowly: fixed costs, and products below full rate, weigh on the smaller sizes"
            if slower
            else "as its arithmetic"
        )

    def cells(self) -> list[str]:
        """Its line of the table."""
        sizes = f"{self.sizes[0]:,} to {self.sizes[-1]:,}"
        times, walls = (f"{taken[0]:.2g} to {taken[-1]:.2g}" for taken in (self.seconds, self.wall))
        numbers = [f"{self.theory:.2f}", f"{self.fitted:.2f}", times, f"{exponent(self.sizes, self.wall):.2f}", walls]
        return [self.stage, AXES[self.axis], sizes, self.formula, *numbers, self.outcome]


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of log seconds over log size, by least squares over the largest sizes.

    >>> round(exponent([1, 2, 4, 8, 16], [3.0, 12.0, 48.0, 192.0, 768.0]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes[-FITTED:]), np.log(seconds[-FITTED:]), 1)[0])


def run(quick: bool = False, out: Path | None = None) -> bool:
    """Measure all stages, print the table, keep it in `out`; whether some stage grows faster than its arithmetic."""
    prices = measured_prices(quick)
    found = [measure_growth(stage, axis, prices, quick=quick) for stage in STAGES for axis in stage.starts]
    table = Table(*COLUMNS, title="How cost grows", show_lines=False)
    for growth in found:
        table.add_row(*growth.cells(), style="" if growth.ok else "bold red")
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    if out is not None:
        results.write(out / "growth.json", document(found))
    return not quick and not all(growth.ok for growth in found)


def measured_prices(quick: bool = False) -> Prices:
    """Rates of this machine now, on one thread."""
    side = 128 if quick else 1024
    double = np.random.default_rng(0).standard_normal((side, side))
    single = double.astype(np.float32)
    taken = best_times(
        {"double": lambda: double @ double, "single": lambda: single @ single, "entry": elementwise_pass(single)}
    )
    return Prices(taken["double"] / (2 * side**3), taken["single"] / (2 * side**3), taken["entry"] / side**2)


def measure_growth(stage: Stage, axis: str, prices: Prices, *, quick: bool = False, repeats: int = 3) -> Growth:
    """Time one stage at all sizes of an axis, turn by turn, so that noise meets every size alike."""
    print(f"growth of {stage.name} with {AXES[axis]}", file=sys.stderr, flush=True)
    sizes = sizes_along(stage.starts[axis], axis, quick=quick)
    runs: dict[str, Callable[[], Any]] = {str(getattr(size, axis)): stage.make(size) for size in sizes}
    taken, walls = (tuple(best_times(runs, repeats=1 if quick else repeats, wall=w).values()) for w in (False, True))
    along = tuple(getattr(size, axis) for size in sizes)
    theory = exponent(along, [prices.seconds(stage.work(size)) for size in sizes])
    found = Growth(stage.name, axis, along, stage.formula, theory, exponent(along, taken), taken, walls)
    print(f"  exponent {found.fitted:.2f}, arithmetic {theory:.2f}: {found.outcome}", file=sys.stderr, flush=True)
    return found


def sizes_along(start: Size, axis: str, *, quick: bool = False) -> list[Size]:
    """The sizes of one axis: the first, and each twice the one before. Quick ones have a tenth of the rows."""
    start = start._replace(n=max(start.n // 20, 3 * start.k, 60)) if quick else start
    doublings = 1 if quick else DOUBLINGS
    return [start._replace(**{axis: getattr(start, axis) * 2**step}) for step in range(doublings + 1)]


def document(found: Sequence[Growth]) -> dict[str, Any]:
    """The table, and behind it every time."""
    return results.document(
        "How cost grows: fitted exponents beside those of the arithmetic",
        COLUMNS,
        [growth.cells() for growth in found],
        records=[
            {"stage": g.stage, "axis": g.axis, "sizes": g.sizes, "seconds": g.seconds, "wall": g.wall} for g in found
        ],
    )
