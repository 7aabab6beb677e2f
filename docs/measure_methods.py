"""The tables of "Choosing a method": every method on the bundled outputs, refitted on random halves.

    .venv-bench/bin/python docs/measure_methods.py [TABLE ...]       # prints and writes docs/tables/*.md; eight minutes

TABLE is recalibration, sets, rows or equal-size; all by default. Values are means over `N_SPLITS` random halves of the
10,000 held-out rows; seconds are the best of three fits on one half, on one core of whatever machine this runs on. The
environment of `make bench` has the package `probmetrics`, whose two methods are in the table of rows.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

import atypicality as aty
from atypicality.datasets import load_fashion_mnist, load_fashion_mnist_lt

FOLDER = Path(__file__).parent / "tables"
DATA = {"fashion-mnist": load_fashion_mnist, "fashion-mnist-lt": load_fashion_mnist_lt}
N_SPLITS = 5
RECALIBRATORS = {
    "uncalibrated": "the model itself",
    "ts": "temperature scaling",
    "group-ts": "group temperature scaling",
    "ensemble": "ensemble temperature scaling",
    "adats": "adaptive temperature scaling",
    "vector": "vector scaling",
    "aar": "atypicality-aware, paper",
    "aware": "atypicality-aware, default",
}
OBJECTS = {
    "ts": aty.TemperatureScaling,
    "group-ts": aty.GroupTemperatureScaling,
    "ensemble": aty.EnsembleTemperatureScaling,
    "adats": aty.AdaptiveTemperatureScaling,
    "vector": aty.VectorScaling,
    "aar": aty.AtypicalityAwareRecalibration.paper,
    "aware": aty.AtypicalityAwareRecalibration,
}
SETS = ("lac", "aps", "raps", "saps", "aa-lac", "aa-aps", "aa-raps", "aa-saps", "conditional")
SLOW = ("adats",)
ALPHA = 0.05
ROWS = (200, 500, 1000, 5000)
PEERS = {"svs": "structured vector scaling", "sms": "structured matrix scaling"}
LOGITS = {"logits": "default form, logits alone"}


def outputs_of(name: str) -> tuple[aty.ModelOutputs, aty.ModelOutputs]:
    """Training outputs, and all held-out rows as one."""
    train, *held_out = DATA[name]()
    joined = {part: np.concatenate([one.need(part) for one in held_out]) for part in ("logits", "embeddings", "labels")}
    return train, aty.ModelOutputs(**joined)


def recalibration_rows(name: str, methods: Any = tuple(RECALIBRATORS)) -> dict[str, list[str]]:
    """Cells of the recalibration table by method, without seconds."""
    train, outputs = outputs_of(name)
    found = aty.compare(list(methods), outputs, train=train, n_splits=N_SPLITS)
    rows = {}
    for method in methods:
        overall = {row["metric"]: row["value"] for row in found.table("overall", method=method)}
        groups = [row["value"] for row in found.table("atypicality_groups", method=method, metric="ece")]
        values = (overall["accuracy"], overall["nll"], overall["brier"], overall["ece"], max(groups))
        rows[method] = [f"{value:.3f}" for value in values]
    return rows


def set_rows(name: str, methods: Any = SETS) -> dict[str, list[str]]:
    """Cells of the table of prediction sets by method, without seconds."""
    train, outputs = outputs_of(name)
    found = aty.compare(list(methods), outputs, train=train, n_splits=N_SPLITS, alpha=ALPHA)
    rows = {}
    for method in methods:
        overall = {row["metric"]: row["value"] for row in found.table("overall", method=method)}
        groups = [row["value"] for row in found.table("atypicality_groups", method=method, metric="coverage")]
        low = [row["value"] for row in found.table("confidence_groups", method=method, metric="coverage")]
        values = (overall["coverage"], min(groups), min(low), overall["worst_cell_coverage"])
        rows[method] = [f"{value:.3f}" for value in values] + [f"{overall['set_size']:.2f}"]
    return rows


def fit_seconds(name: str) -> dict[str, str]:
    """Best of three fits of each recalibrator on one half of the held-out rows; of one fit where it is slow."""
    train, outputs = outputs_of(name)
    half, _ = outputs.split(0.5)
    density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
    given = {
        "atypicality": density.atypicality(half.embeddings),
        "class_log_density": density.class_log_density(half.embeddings),
        "embeddings": half.embeddings,
    }
    taken = {}
    for method, make in OBJECTS.items():
        best = min(_seconds(make(), half, given) for _ in range(1 if method in SLOW else 3))
        taken[method] = f"{best:.3f}" if best < 1 else f"{best:.0f}"
    return taken


def _seconds(method: Any, half: aty.ModelOutputs, given: dict[str, Any]) -> float:
    start = time.perf_counter()
    method.fit(half.logits, half.labels, **given)
    return time.perf_counter() - start


def by_rows(
    name: str, methods: Any = ("ts", "vector", "svs", "sms", "aar", "logits", "aware"), sizes: Any = ROWS
) -> Any:
    """NLL, and the worst ECE of five groups in brackets, by method and number of calibration rows."""
    train, outputs = outputs_of(name)
    density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
    given = {
        "atypicality": density.atypicality(outputs.embeddings),
        "class_log_density": density.class_log_density(outputs.embeddings),
    }
    shares = np.log(density.counts_ / density.counts_.sum())
    cells: dict[str, list[str]] = {method: [] for method in methods}
    for n_rows, method in ((n_rows, method) for n_rows in sizes for method in methods):
        found = []
        for fit, test in _splits(outputs, n_rows):
            probs = _probabilities(method, outputs, given, shares, fit, test)
            groups = _fifths(given["atypicality"][test])
            worst = aty.metrics.by_group(aty.metrics.ece, probs, outputs.labels[test], groups=groups).value.max()
            found.append((aty.metrics.nll(probs, outputs.labels[test]), worst))
        loss, worst = np.mean(found, axis=0)
        cells[method].append(f"{loss:.3f} ({worst:.3f})")
    return cells


def _splits(outputs: aty.ModelOutputs, n_rows: int) -> list[tuple[Any, Any]]:
    """Rows to fit on and rows to test on: five times, the second half of a random order is the test."""
    orders = [np.random.default_rng(seed).permutation(len(outputs)) for seed in range(N_SPLITS)]
    return [(order[:n_rows], order[len(order) // 2 :]) for order in orders]


def _fifths(atypicality: Any) -> Any:
    return aty.QuantileGroups(5).fit(atypicality).assign(atypicality)


def _probabilities(method: str, outputs: Any, given: dict[str, Any], shares: Any, fit: Any, test: Any) -> Any:
    """Probabilities of the rows `test` by a method fitted on the rows `fit`."""
    if method in PEERS:
        from probmetrics.calibrators.factory import get_calibrator

        plain = softmax(outputs.logits.astype(np.float64), axis=1)
        return get_calibrator(method).fit(plain[fit], outputs.labels[fit]).predict_proba(plain[test])
    if method in LOGITS:
        alone = aty.AtypicalityAwareRecalibration(covariates=("margin",)).fit(outputs.logits[fit], outputs.labels[fit])
        return alone.predict_proba(outputs.logits[test])
    of_fit, of_test = ({name: values[rows] for name, values in given.items()} for rows in (fit, test))
    fitted = OBJECTS[method]().fit(outputs.logits[fit], outputs.labels[fit], class_log_prior=shares, **of_fit)
    return fitted.predict_proba(outputs.logits[test], **of_test)


def equal_size_rows(name: str, n_rows: int = 5000) -> dict[str, list[str]]:
    """Coverage of the head's sets at alpha=0.1, and of one LAC threshold whose sets have the same mean size.

    The threshold is chosen on the test rows themselves, which no user could do, so that sizes agree exactly.
    """
    train, outputs = outputs_of(name)
    found: dict[str, list[Any]] = {}
    for fit, test in _splits(outputs, n_rows):
        head = aty.ReliabilityHead().fit(train=train, calibration=outputs[fit])
        answer, labels = head.predict(outputs[test]), outputs.labels[test]
        vector = aty.VectorScaling().fit(outputs.logits[fit], outputs.labels[fit]).predict_proba(outputs.logits[test])
        sets = {
            "one LAC threshold, vector scaling": _sets_of_size(vector, answer.prediction_set.sum()),
            "one LAC threshold, the head's probabilities": _sets_of_size(answer.proba, answer.prediction_set.sum()),
            "the head's sets": answer.prediction_set,
        }
        for method, one in sets.items():
            found.setdefault(method, []).append(_coverage(one, labels, answer))
    return {method: _cells(np.mean(values, axis=0)) for method, values in found.items()}


def _sets_of_size(probs: Any, members: int) -> Any:
    """The `members` most probable pairs of row and class."""
    return probs >= np.sort(probs, axis=None)[-int(members)]


def _coverage(sets: Any, labels: Any, answer: aty.Reliability) -> tuple[float, ...]:
    """Mean size, coverage, and the lowest coverage of fifths of atypicality and of six groups of confidence."""
    held = sets[np.arange(len(labels)), labels]
    sixths = aty.QuantileGroups(6).fit(answer.confidence).assign(answer.confidence)
    lowest = [
        min(held[groups == g].mean() for g in np.unique(groups)) for groups in (_fifths(answer.atypicality), sixths)
    ]
    return sets.sum(axis=1).mean(), held.mean(), *lowest


def _cells(values: Any) -> list[str]:
    return [f"{values[0]:.2f}", *(f"{value:.3f}" for value in values[1:])]


def table(header: list[str], rows: dict[str, list[str]]) -> str:
    """A Markdown table; the names are the first column."""
    lines = [["", *header], ["---", *["---:"] * len(header)], *([name, *cells] for name, cells in rows.items())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def show(file: str, text: str) -> None:
    """Print a table, and write it to the folder of tables."""
    print(f"{file}\n{text}", flush=True)
    (FOLDER / file).write_text(text)


def write_recalibration(name: str) -> None:
    """The table of recalibrators."""
    seconds, rows = fit_seconds(name), recalibration_rows(name)
    named = {RECALIBRATORS[method]: [*cells, seconds.get(method, "")] for method, cells in rows.items()}
    header = ["accuracy", "NLL", "Brier", "ECE", "worst ECE of five groups", "seconds to fit"]
    show(f"{name}-recalibration.md", table(header, named))


def write_sets(name: str) -> None:
    """The table of prediction sets."""
    header = ["coverage", "lowest, by atypicality", "lowest, by confidence", "worst of 3 x 3 cells", "mean size"]
    rows = {f"`{method}`": cells for method, cells in set_rows(name).items()}
    show(f"{name}-sets.md", table(header, rows))


def write_rows(name: str) -> None:
    """The table by number of calibration rows."""
    named = {(RECALIBRATORS | PEERS | LOGITS)[method]: cells for method, cells in by_rows(name).items()}
    show(f"{name}-rows.md", table([f"{n:,} rows" for n in ROWS], named))


def write_equal_size(name: str) -> None:
    """The table of sets of equal mean size."""
    header = ["mean size", "coverage", "lowest, by atypicality", "lowest, by confidence"]
    show(f"{name}-equal-size.md", table(header, equal_size_rows(name)))


WRITERS = {
    "recalibration": write_recalibration,
    "sets": write_sets,
    "rows": write_rows,
    "equal-size": write_equal_size,
}

if __name__ == "__main__":
    os.environ.setdefault("ATYPICALITY_NUM_THREADS", "1")
    for chosen in sys.argv[1:] or WRITERS:
        for data in DATA:
            WRITERS[chosen](data)
