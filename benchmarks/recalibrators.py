"""The default recalibration beside other methods on the same splits of real outputs.

    python -m benchmarks.recalibrators [FOLDER ...] [--out FILE]

The bundled outputs and those of every model in the folders, which are laid out as `atypicality reproduce` reads them.
Half of the test rows are fitted on, or fewer of them, and the other half measures; five times. A method's distance to
the default is its log loss less the default's on the same split: above 0 the default is ahead.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import atypicality as aty
from atypicality.paper.sources import Data, Source, find_sources
from benchmarks import page, results
from benchmarks.data import softmax

SIZES, N_SPLITS = (200, 1000, 5000), 5
LIBRARY: dict[str, Callable[[], Any]] = {
    "atypicality-aware": aty.AtypicalityAwareRecalibration,
    "temperature scaling": aty.TemperatureScaling,
    "ensemble": aty.EnsembleTemperatureScaling,
    "vector scaling": aty.VectorScaling,
    "paper AAR": aty.AtypicalityAwareRecalibration.paper,
}
PEERS = {"SVS (probmetrics)": "svs", "SMS (probmetrics)": "sms"}
DEFAULT, *OTHERS = [*LIBRARY, *PEERS]
COLUMNS = ("outputs", "rows", "NLL", "worst ECE of five groups", *OTHERS)


class Problem:
    """One model's test rows, with the atypicality of a Gaussian fitted to its training rows."""

    def __init__(self, data: Data) -> None:
        density = data.density("GMM")
        self.logits, self.labels, embeddings = data.test.need("logits", "labels", "embeddings")
        self.given = {
            "atypicality": density.atypicality(embeddings),
            "class_log_density": density.class_log_density(embeddings),
        }
        self.prior = -np.asarray(data.class_atypicality())
        self.probs = softmax(self.logits.astype(np.float64))

    def splits(self, n_rows: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Rows to fit on and rows to measure."""
        for seed in range(N_SPLITS):
            order = np.random.default_rng(seed).permutation(self.labels.size)
            yield order[:n_rows], order[order.size // 2 :]

    def probabilities(self, method: str, fit: NDArray[np.intp], test: NDArray[np.intp]) -> NDArray[Any]:
        """Of the rows `test`, by a method fitted on the rows `fit` with all that it can use."""
        if method in PEERS:
            from probmetrics.calibrators.factory import get_calibrator

            peer = get_calibrator(PEERS[method]).fit(self.probs[fit], self.labels[fit])
            return np.asarray(peer.predict_proba(self.probs[test]))
        before, after = ({name: part[rows] for name, part in self.given.items()} for rows in (fit, test))
        prior = {"class_log_prior": self.prior} if method == DEFAULT else {}
        fitted = LIBRARY[method]().fit(self.logits[fit], self.labels[fit], **before, **prior)
        return np.asarray(fitted.predict_proba(self.logits[test], **after))

    def judged(self, probs: NDArray[Any], test: NDArray[np.intp]) -> tuple[float, float]:
        """Log loss, and the worst calibration error of five groups of atypicality."""
        rarity, labels = self.given["atypicality"][test], self.labels[test]
        groups = aty.QuantileGroups(5).fit(rarity).assign(rarity)
        worst = aty.metrics.by_group(aty.metrics.ece, probs, labels, groups=groups).value.max()
        return float(aty.metrics.nll(probs, labels)), float(worst)


def measured(source: Source) -> Iterator[dict[str, Any]]:
    """A record for every number of rows: what each split gave, by method."""
    problem = Problem(source.data)
    most = problem.labels.size // 2000 * 1000
    for n_rows in dict.fromkeys(min(size, most) for size in SIZES):
        splits = list(problem.splits(n_rows))
        found = {
            method: [problem.judged(problem.probabilities(method, *split), split[1]) for split in splits]
            for method in (DEFAULT, *OTHERS)
        }
        yield {"outputs": source.dataset, "rows": n_rows, "nll_and_worst_ece": found}


def summary(record: dict[str, Any]) -> list[str]:
    """A line of the table: the default's means, and how far each other method is from it."""
    found = {method: np.array(values) for method, values in record["nll_and_worst_ece"].items()}
    loss, worst = found[DEFAULT].mean(axis=0)
    distances = [distance(found[method][:, 0], found[DEFAULT][:, 0]) for method in OTHERS]
    return [record["outputs"], f"{record['rows']:,}", f"{loss:.3f}", f"{worst:.3f}", *distances]


def distance(other: NDArray[np.float64], ours: NDArray[np.float64]) -> str:
    """Mean difference with its standard error over the splits; infinite where a label had probability 0.

    >>> distance(np.array([0.5, 0.7]), np.array([0.4, 0.4]))
    '+0.200 ± 0.100'
    """
    if not np.isfinite(other).all():
        return "inf"
    paired = other - ours
    return f"{paired.mean():+.3f} ± {paired.std(ddof=1) / paired.size**0.5:.3f}"


def finite(found: dict[str, list[tuple[float, float]]]) -> dict[str, list[list[float | None]]]:
    """The same with None for infinity, which JSON does not have, to six digits."""
    return {
        method: [[round(value, 6) if np.isfinite(value) else None for value in pair] for pair in pairs]
        for method, pairs in found.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every model, print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=results.RESULTS / "recalibrators.json")
    options = parser.parse_args(arguments)
    records = []
    for source in [source for folder in (None, *options.folders) for source in find_sources(folder)]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of absent classes and rows without errors, in every small split
            for record in measured(source):
                records.append(record)
                print(*summary(record), sep=" | ", flush=True)
    title = "Log loss less that of the default, by number of calibration rows (mean ± standard error, five splits)"
    kept = [record | {"nll_and_worst_ece": finite(record["nll_and_worst_ece"])} for record in records]
    document = results.document(title, COLUMNS, map(summary, records), packages=["probmetrics"], records=kept)
    results.write(options.out, document)
    if options.out.parent == results.RESULTS:
        page.write_tables()
    return 0


if __name__ == "__main__":
    sys.exit(main())
