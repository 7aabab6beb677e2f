"""How soon a monitor notices a shift, beside a Kolmogorov-Smirnov test of a fixed window at one false-alarm rate.

    python -m benchmarks.monitor_delays [--lives 300] [--out FILE]

Atypicality is standard normal, and moves up by some standard deviations after a tenth of the life. A life has 10,000
looks, one after every ten rows; the monitor starts a window every thousand looks and has the five streams of a head
with labels, of which this is one. The threshold of the Kolmogorov-Smirnov test is the 99th percentile of its largest
value over lives without a shift, since a threshold for one look would raise an alarm in every life.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from atypicality.head.reference import HeldOutCounts
from atypicality.monitoring.streams import ShareTests, make_streams
from benchmarks import results

LOOKS, ROWS, WINDOW, CHANGE = 10_000, 10, 1000, 1000
ALPHA = 0.01
CELLS = 200
SHIFTS = (0.1, 0.2, 0.5)
REFERENCES = (1000, 5000, 20_000)
KS_ROWS = (1000, 5000)


def tests_of(reference: np.ndarray) -> ShareTests:
    """The test of atypicality at the level that it has in a monitor of five streams."""
    ones = np.zeros(reference.size, np.intp)
    counts = HeldOutCounts.from_rows(reference, ones, ones, n_classes=2, atypicality=reference, missed=0)
    streams = make_streams(counts, ["a", "b"], None, 0)
    atypicality = next(stream for stream in streams if stream.name == "atypicality")
    return ShareTests([atypicality], ALPHA / len(streams))


def monitor_alarm(tests: ShareTests, values: np.ndarray) -> float:
    """The first look at which the monitor raises an alarm, or infinity; values are (looks, rows)."""
    (stream,) = tests.streams
    cells = np.stack([stream.count(row) for row in values])
    total, first = np.cumsum(cells, axis=0), np.inf
    for ordinal, start in enumerate(range(0, len(values), WINDOW), 1):
        since = total[start:] - (total[start - 1] if start else 0)
        alarmed = np.flatnonzero(tests.excess(since).max(axis=(0, 2)) >= np.log(ordinal * (ordinal + 1)))
        first = min(first, start + alarmed[0] if alarmed.size else np.inf)
    return first


def ks_path(reference: np.ndarray, values: np.ndarray, n_rows: int) -> np.ndarray:
    """The largest gap of the distribution functions, of the reference and of the newest rows, at every look."""
    edges = np.quantile(reference, np.arange(1, CELLS) / CELLS)
    known = np.searchsorted(np.sort(reference), edges, side="right") / reference.size
    cells = np.stack([np.bincount(row, minlength=CELLS) for row in np.searchsorted(edges, values)])
    total = np.cumsum(np.cumsum(cells, axis=1)[:, :-1], axis=0)
    back = n_rows // ROWS
    newest = total.copy()
    newest[back:] -= total[:-back]
    gaps = np.abs(newest / n_rows - known).max(axis=1)
    gaps[: back - 1] = 0.0  # the window is not yet full
    return gaps


def lives(n: int, n_reference: int, shift: float, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Reference and values of lives, one at a time."""
    for life in range(n):
        rng = np.random.default_rng([seed, life, n_reference])
        values = rng.standard_normal((LOOKS, ROWS))
        values[CHANGE:] += shift
        yield rng.standard_normal(n_reference), values


def delay(looks: Sequence[float]) -> str:
    """Median rows from the change to the alarm, and the share of lives with an alarm after it."""
    after = np.array([look - CHANGE + 1 for look in looks], float) * ROWS
    found = np.isfinite(after) & (after > 0)
    early = np.isfinite(after) & (after <= 0)
    middle = np.median(np.where(found, after, np.inf))
    said = f"{middle:,.0f}" if np.isfinite(middle) else "-"
    return f"{said} ({found.mean():.0%})" + (f", {early.sum()} early" if early.any() else "")


def measured(n_reference: int, n_lives: int) -> list[list[str]]:
    """One row for no shift, and one for each shift."""
    null = [(tests_of(r), r, v) for r, v in lives(n_lives, n_reference, 0.0, 0)]
    alarmed = sum(np.isfinite(monitor_alarm(tests, v)) for tests, _, v in null)
    largest = {n: [ks_path(r, v, n).max() for _, r, v in null] for n in KS_ROWS}
    limits = {n: float(np.quantile(found, 1 - ALPHA, method="higher")) for n, found in largest.items()}
    rows = [[f"{n_reference:,}", "none", f"{alarmed} of {n_lives} lives", *("1 % by design" for _ in KS_ROWS)]]
    for shift in SHIFTS:
        ours, theirs = [], {n: [] for n in KS_ROWS}
        for reference, values in lives(max(20, n_lives // 10), n_reference, shift, 1):
            ours.append(monitor_alarm(tests_of(reference), values))
            for n in KS_ROWS:
                over = np.flatnonzero(ks_path(reference, values, n) > limits[n])
                theirs[n].append(over[0] if over.size else np.inf)
        rows.append([f"{n_reference:,}", f"{shift} sd", delay(ours), *(delay(theirs[n]) for n in KS_ROWS)])
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lives", type=int, default=300)
    parser.add_argument("--out", type=Path, default=results.RESULTS / "monitor-delays.json")
    options = parser.parse_args(arguments)
    rows = []
    for n_reference in REFERENCES:
        rows += measured(n_reference, options.lives)
        print(*rows[-4:], sep="\n", flush=True)
    columns = ["reference rows", "shift", "monitor", *(f"KS of {n:,} rows" for n in KS_ROWS)]
    title = "Median rows from a shift to the alarm, and the share of lives with one; 1 % false alarms over 10,000 looks"
    results.write(options.out, results.document(title, columns, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
