"""Small work: one, ten and a hundred rows through every call that a service makes: `python -m benchmarks small`.

Milliseconds are those of a clock, with default threads: the best of many plain calls, one after the other.
"""

import itertools
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from atypicality import ModelOutputs, Monitor, ReliabilityHead, SplitConformal, TemperatureScaling, metrics
from atypicality.density import GaussianAtypicality, NeighborAtypicality
from benchmarks import results
from benchmarks.bench_head import Data
from benchmarks.timing import best_call

__all__ = ["COLUMNS", "SHAPES", "Call", "Small", "calls_of", "measured", "run"]

SHAPES = {(10, 48): 0.3, (100, 640): 0.4, (1000, 512): 0.8}
"""Classes and dimensions, and the milliseconds in which a head is to answer for one row."""
ROWS = (1, 10, 100)
COLUMNS = ("call", "classes x dimensions", *(f"ms for {n} row{'s' * (n > 1)}" for n in ROWS), "target", "outcome")
Call = Callable[[], object]


@dataclass(frozen=True)
class Small:
    """One call at one shape: milliseconds by number of rows, and the most that one row may take."""

    call: str
    shape: str
    milliseconds: tuple[float, ...]
    limit: float | None = None

    @property
    def ok(self) -> bool:
        """Whether one row is within its limit."""
        return self.limit is None or self.milliseconds[0] <= self.limit

    def cells(self) -> list[str]:
        """Its line of the table."""
        target = "" if self.limit is None else f"one row <= {self.limit:g}"
        outcome = "" if self.limit is None else "target kept" if self.ok else "MISSES ITS TARGET"
        return [self.call, self.shape, *(f"{value:.3g}" for value in self.milliseconds), target, outcome]


def run(quick: bool = False, out: Path | None = None) -> bool:
    """Measure, print the table, keep it in `out`; whether one row takes longer than it may."""
    shapes = [(10, 16)] if quick else list(SHAPES)
    found = [line for k, d in shapes for line in measured(k, d, quick=quick)]
    table = Table(*COLUMNS, title="Small work")
    for line in found:
        table.add_row(*line.cells(), style="" if line.ok else "bold red")
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if out is not None:
        results.write(out / "small.json", document(found))
    return not quick and not all(line.ok for line in found)


def measured(n_classes: int, width: int, *, quick: bool = False) -> list[Small]:
    """Every call at one shape."""
    print(f"small work, {n_classes} x {width}", file=sys.stderr, flush=True)
    calls = calls_of(n_classes, width, 400 if quick else max(3000, 20 * n_classes))
    limits = {"head.predict": SHAPES.get((n_classes, width))}
    return [
        Small(name, f"{n_classes:,} x {width:,}", tuple(_milliseconds(one, quick) for one in each), limits.get(name))
        for name, each in calls.items()
    ]


def calls_of(n_classes: int, width: int, n_fitted: int) -> dict[str, list[Call]]:
    """By name, the call for each number of rows; everything is fitted before."""
    data = Data.of(n_fitted, n_fitted, max(ROWS), width, n_classes)
    train, calibration = data.outputs("train"), data.outputs("calibration")
    logits, _, labels = data.calibration
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = ReliabilityHead().fit(train=train, calibration=calibration)
    gaussian = GaussianAtypicality().fit(train.embeddings, train.labels)
    neighbors = NeighborAtypicality().fit(train.embeddings, train.labels)
    scaling = TemperatureScaling().fit(logits, labels)
    raps = SplitConformal("raps", k_reg=2, penalty=0.01).fit(scaling.predict_proba(logits), labels)
    shipped = _shipped(head, data.test[1])

    def of(n: int) -> dict[str, Call]:
        z, x, y = (part[:n] for part in data.test)
        monitor, batches = Monitor(head), _drawn(calibration, n)
        outputs = ModelOutputs(z, embeddings=x)
        answer, probs = head.predict(outputs), scaling.predict_proba(z)
        rarity = head.density_.atypicality(x)
        given: dict[str, Any] = {"atypicality": gaussian.atypicality(x)}
        given["class_log_density"] = gaussian.class_log_density(x)
        return {
            "ModelOutputs": lambda: ModelOutputs(z, embeddings=x),
            "head.predict": lambda: head.predict(outputs),
            "head.predict(max_risk=0.05)": lambda: head.predict(outputs, max_risk=0.05),
            "Reliability.columns": answer.columns,
            **{name: partial(call, z, x) for name, call in shipped.items()},
            "Monitor.add": lambda: monitor.add(next(batches)),
            "density chosen by the head, atypicality": lambda: head.density_.atypicality(x),
            "GaussianAtypicality.atypicality": lambda: gaussian.atypicality(x),
            "GaussianAtypicality.class_log_density": lambda: gaussian.class_log_density(x),
            "NeighborAtypicality.atypicality": lambda: neighbors.atypicality(x),
            "AtypicalityAwareRecalibration.predict_proba": lambda: head.recalibration_.predict_proba(z, **given),
            "TemperatureScaling.predict_proba": lambda: scaling.predict_proba(z),
            "ConditionalConformal.predict_set": lambda: head.prediction_sets_.predict_set(probs, atypicality=rarity),
            "SplitConformal('raps').predict_set": lambda: raps.predict_set(probs),
            "metrics.ece": lambda: metrics.ece(probs, y),
            "metrics.nll": lambda: metrics.nll(probs, y),
            "metrics.coverage": lambda: metrics.coverage(answer.prediction_set, y),
        }

    each = [of(n) for n in ROWS]
    return {name: [one[name] for one in each] for name in each[0]}


def _drawn(rows: ModelOutputs, n: int) -> Iterator[ModelOutputs]:
    """Batches of n rows without labels, drawn anew: one batch again and again is drift, and an alarm takes longer."""
    plain, rng = ModelOutputs(rows.logits, embeddings=rows.embeddings), np.random.default_rng(0)
    return itertools.cycle([plain[rng.integers(0, len(plain), n)] for _ in range(200)])


def _shipped(head: ReliabilityHead, rows: NDArray[Any]) -> dict[str, Callable[[Any, Any], object]]:
    """A head as it is shipped, by name: called with logits and embeddings, of which a network takes the latter.

    Left out where a package is missing.
    """
    if not all(map(find_spec, ("torch", "onnx", "onnxruntime"))):
        return {}
    import onnxruntime
    import torch
    from torch import nn

    from atypicality import ReliabilityModule

    d, k = rows.shape[1], head.n_classes_
    network = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, k)).eval()
    module, example = ReliabilityModule.from_head(head), torch.from_numpy(rows[:2])
    whole = module.behind(network, layer="2").eval()
    program = torch.export.export(whole, (example,), dynamic_shapes=(({0: torch.export.Dim("n")},),)).module()
    with tempfile.TemporaryDirectory() as folder:
        head.export_onnx(path := Path(folder) / "head.onnx", verify=False)
        session = onnxruntime.InferenceSession(path)

    def alone(z: Any, x: Any) -> object:
        with torch.no_grad():
            return network(torch.from_numpy(x))

    return {
        "ONNX graph of the head": lambda z, x: session.run(None, {"logits": z, "embeddings": x}),
        "ReliabilityModule": lambda z, x: module(torch.from_numpy(z), torch.from_numpy(x)),
        "network of two layers alone": alone,
        "network and head": lambda z, x: whole(torch.from_numpy(x)),
        "network and head, exported program": lambda z, x: program(torch.from_numpy(x)),
    }


def document(found: Sequence[Small]) -> dict[str, Any]:
    """The table, and behind it every time."""
    title = "Small work: milliseconds of the best of many calls, default threads"
    return results.document(title, COLUMNS, [one.cells() for one in found], records=[vars(one) for one in found])


def _milliseconds(run: Call, quick: bool) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of drift: the same rows come again and again
        run()
        calls, budget = (2, 0.0) if quick else (400, 0.25)
        return 1e3 * best_call(run, calls=calls, budget=budget, clock=time.perf_counter)
