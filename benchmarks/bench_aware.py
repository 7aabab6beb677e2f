"""Atypicality-aware recalibration by default, choice of strengths included, in elementwise passes over the logits."""

import numpy as np
from scipy.special import softmax

from atypicality import AtypicalityAwareRecalibration
from benchmarks.timing import Row, best_times, elementwise_pass


def rows() -> list[Row]:
    return [_row(25000, 1000, 400, densities=True), _row(25000, 1000, 400, densities=False), _row(5000, 10, None)]


def _row(n: int, k: int, target: int | None, *, densities: bool = True) -> Row:
    logits, labels, atypicality, d = _outputs(n, k)
    method = AtypicalityAwareRecalibration()

    def fit() -> object:
        return method.fit(logits, labels, atypicality=atypicality, class_log_density=d if densities else None)

    times = best_times({"fit": fit, "pass": elementwise_pass(logits)}, repeats=2 if k > 100 else 5)
    terms = "with" if densities else "without"
    note = f"{times['fit']:.2f} s, {terms} class log-densities; class mixing {method.terms_['class_mixing']}"
    stage = f"default AAR with strengths, {n} x {k}"
    if target is None:
        return Row(stage, "seconds", times["fit"], "<= 3", note)
    return Row(stage, "elementwise passes", times["fit"] / times["pass"], f"<= {target}", note)


def _outputs(n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """An overconfident model, the more so the more atypical; log-densities see the class through other noise."""
    rng = np.random.default_rng(0)
    atypicality = rng.random(n)
    logits = 3 * rng.standard_normal((n, k), np.float32)
    logits[np.arange(n), rng.integers(0, k, n)] += 8
    truth = softmax(logits * (1 - 0.6 * atypicality[:, None]) + 0.5 * rng.standard_normal(k), axis=1)
    labels = np.minimum((truth.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1), k - 1)
    d = rng.standard_normal((n, k), np.float32)
    d[np.arange(n), labels] += 1
    return logits.astype(np.float32), labels, atypicality, 50 * d
