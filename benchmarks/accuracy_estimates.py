"""Accuracy without labels, beside what others compute, over corruptions and label shifts of trained classifiers.

    python -m benchmarks.accuracy_estimates --clothes FOLDER --news FILE --questions FOLDER --banking FOLDER
        --letters FILE --emotions FOLDER --domains FOLDER --pens FILE [--out FILE]

Every case is a corruption of one strength with the classes as they are, or drawn anew with shares from a Dirichlet law
of 3 or of 1. An estimate is compared with the accuracy of the labels that it is of: those of the head for ours, those
of the model for the others.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedShuffleSplit

import atypicality as aty
from benchmarks import results
from benchmarks.accuracy_models import Bed, beds

CONCENTRATIONS = (None, 3.0, 1.0)
MILD = 0.1
OTHERS = ("CBPE", "ATC", "DoC", "COT, held-out mix", "COT, known mix")
OURS = ("estimate", "transport")

Matrix = NDArray[np.float64]


class Cbpe:
    """Confidence-based performance estimation as NannyML 0.13 computes the accuracy of several classes.

    Each class against the rest has an isotonic regression, if that lowers its calibration error over ten shuffled
    tenths; rows are then scaled to sum to 1, and the estimate is the mean probability of the predicted class.
    """

    def __init__(self, probs: Matrix, labels: NDArray[Any]) -> None:
        self.curves = [_isotonic(probs[:, j], (labels == j).astype(int)) for j in range(probs.shape[1])]

    def __call__(self, probs: Matrix) -> float:
        """The estimate for rows (n, k)."""
        found = np.column_stack(
            [probs[:, j] if curve is None else curve.predict(probs[:, j]) for j, curve in enumerate(self.curves)]
        )
        total = found.sum(axis=1, keepdims=True)
        found = np.where(total > 0, found / np.where(total > 0, total, 1), 1 / probs.shape[1])
        return float(found[np.arange(len(probs)), probs.argmax(axis=1)].mean())


def _isotonic(scores: Matrix, hits: NDArray[Any]) -> IsotonicRegression | None:
    if np.unique(hits).size == 1 or roc_auc_score(hits, scores) > 0.999:
        return None
    parts: list[list[Matrix]] = [[], [], []]
    for train, test in StratifiedShuffleSplit(10, test_size=0.1, random_state=42).split(scores, hits):
        curve = IsotonicRegression(out_of_bounds="clip").fit(scores[train], hits[train])
        for part, values in zip(parts, (hits[test], scores[test], curve.predict(scores[test])), strict=True):
            part.append(values)
    truth, before, after = map(np.concatenate, parts)
    if _binned_error(truth, before) <= _binned_error(truth, after):
        return None
    return IsotonicRegression(out_of_bounds="clip").fit(scores, hits)


def _binned_error(truth: Matrix, scores: Matrix, n_bins: int = 10) -> float:
    """Calibration error of equally populated bins, the last with what is left over, as NannyML has it."""
    order = np.argsort(scores)
    edges = np.arange(0, scores.size + 1, scores.size // n_bins)
    edges[-1] = scores.size
    pairs = [(order[a:b], (b - a) / scores.size) for a, b in pairwise(edges)]
    return float(sum(weight * abs(scores[rows].mean() - truth[rows].mean()) for rows, weight in pairs))


def transported(probs: Matrix, mix: Matrix) -> float:
    """1 - the transport cost 1 - p between rows and classes with shares `mix` (Lu et al. 2023), from its dual.

    The dual is smoothed, then taken at the point found: it is an upper bound, off by less than 0.002 log k.
    """
    duals = np.zeros(mix.size)
    for smoothing in (0.05, 0.01, 0.002):

        def objective(g: Matrix, s: float = smoothing) -> tuple[float, Matrix]:
            z = (probs - g) / s
            top = z.max(axis=1, keepdims=True)
            mass = np.exp(z - top)
            total = mass.sum(axis=1, keepdims=True)
            return mix @ g + s * float((top + np.log(total)).mean()), mix - (mass / total).mean(axis=0)

        duals = minimize(objective, duals, jac=True, method="L-BFGS-B", options={"maxiter": 300}).x
    return float(mix @ duals + (probs - duals).max(axis=1).mean())


@dataclass
class Judges:
    """All estimators, fitted on the held-out rows of one bed."""

    bed: Bed

    def __post_init__(self) -> None:
        held_out = self.bed.held_out
        logits, self.labels = np.asarray(held_out.logits, np.float64), held_out.labels
        self.head = aty.ReliabilityHead().fit(train=self.bed.train, calibration=held_out)
        self.scaling = aty.TemperatureScaling().fit(logits, self.labels)
        self.cbpe = Cbpe(softmax(logits, axis=1), self.labels)
        probs = self.scaling.predict_proba(logits)
        self.accuracy = float((probs.argmax(axis=1) == self.labels).mean())
        self.confidence = probs.max(axis=1)
        self.threshold = np.quantile(self.confidence, 1 - self.accuracy)
        self.shares = np.bincount(self.labels, minlength=logits.shape[1]) / self.labels.size

    def others(self, outputs: aty.ModelOutputs, mix: Matrix) -> dict[str, float]:
        """Errors of the estimates of the model's accuracy."""
        logits = np.asarray(outputs.logits, np.float64)
        probs = self.scaling.predict_proba(logits)
        top = probs.max(axis=1)
        found = (
            self.cbpe(softmax(logits, axis=1)),
            float((top > self.threshold).mean()),
            self.accuracy - float(self.confidence.mean() - top.mean()),
            transported(probs, self.shares),
            transported(probs, mix),
        )
        truth = float((logits.argmax(axis=1) == outputs.labels).mean())
        return dict(zip(OTHERS, np.array(found) - truth, strict=True))

    def ours(self, outputs: aty.ModelOutputs, mix: Matrix) -> dict[str, Any]:
        """Errors of our estimates, whether intervals cover, and whether there was a refusal."""
        label = self.head.predict(outputs).label
        truth = float((label == outputs.labels).mean())
        found: dict[str, Any] = {"mild": abs(truth - self.head.reference_.accuracy) <= MILD}
        for name, known in zip(OURS, (None, mix), strict=True):
            estimate = aty.estimate_accuracy(self.head, outputs, known, n_bootstrap=0)
            found[name] = estimate.estimates["combined"] - truth  # what the estimate would be, refused or not
            found[f"{name} refused"] = estimate.refusal is not None
            if estimate.refusal is None:
                found[f"{name} covers"] = estimate.low <= truth <= estimate.high
                found[f"{name} width"] = estimate.high - estimate.low
        return found


def cases(bed: Bed) -> Iterator[tuple[str, float | None, aty.ModelOutputs]]:
    """Corrupted rows with their classes as they are, and drawn anew."""
    rng = np.random.default_rng(0)
    for name, outputs in bed.corrupted.items():
        counts = np.bincount(outputs.labels)
        for concentration in CONCENTRATIONS:
            rows = np.arange(len(outputs))
            if concentration is not None:
                weight = (rng.dirichlet(np.full(counts.size, concentration)) / counts)[outputs.labels]
                rows = rng.choice(rows, rows.size, p=weight / weight.sum())
            yield name, concentration, outputs[rows]


def measured(bed: Bed) -> list[dict[str, Any]]:
    """What every estimator is off by in every case."""
    judges, found = Judges(bed), []
    for name, concentration, outputs in cases(bed):
        mix = np.bincount(outputs.labels, minlength=judges.shares.size) / len(outputs)
        case = {"bed": bed.name, "corruption": name, "label shift": concentration}
        found.append(case | judges.others(outputs, mix) | judges.ours(outputs, mix))
    return found


def summary(rows: Sequence[dict[str, Any]]) -> list[Any]:
    """One line of the table."""

    def mean(key: str, chosen: Callable[[dict[str, Any]], Any] = lambda row: True) -> float:
        values = [abs(float(row[key])) for row in rows if key in row and chosen(row)]
        return float(np.mean(values)) if values else np.nan

    errors = [mean(name) for name in (*OTHERS, *OURS)]
    ratio = [mean(name) / errors[0] for name in OURS]
    rest = []
    for name in OURS:
        rest += [mean(f"{name} covers"), mean(f"{name} width"), mean(f"{name} refused")]
        rest.append(mean(f"{name} refused", lambda row: row["mild"]))
    return [rows[0]["bed"], len(rows), *(round(value, 3) for value in (*errors, *ratio, *rest))]


COLUMNS = [
    *("test bed", "cases", *OTHERS, "ours", "ours, known mix", "ours / CBPE", "known / CBPE"),
    *(f"{name}{words}" for words in ("", ", known mix") for name in ("covers", "width", "refused", "refused if mild")),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every bed, print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("clothes", "news", "questions", "banking", "letters", "emotions", "domains", "pens"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--out", type=Path, default=results.RESULTS / "accuracy-estimates.json")
    options = parser.parse_args(arguments)
    lines, records = [], []
    given = {name: path for name, path in vars(options).items() if name != "out" and path is not None}
    for bed in beds(given):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of drift, in every case
            rows = measured(bed)
        lines.append(summary(rows))
        records += rows
        print(dict(zip(COLUMNS, lines[-1], strict=True)), flush=True)
    title = "Mean absolute error of estimated accuracy over corruptions and label shifts, without labels"
    plain = [
        {key: value.item() if isinstance(value, np.generic) else value for key, value in row.items()} for row in records
    ]
    results.write(options.out, results.document(title, COLUMNS, lines, records=plain))
    return 0


if __name__ == "__main__":
    sys.exit(main())
