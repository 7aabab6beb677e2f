"""Atypicality-aware recalibration: the paper's method, and the default with its choice of strengths."""

from dataclasses import replace

import numpy as np

from atypicality import AtypicalityAwareRecalibration
from benchmarks import authors
from benchmarks.data import cross_entropy, flat_logits, image_logits, softmax, text_of, tiled_logits
from benchmarks.rows import AUTHORS, Peer, Row, contest
from benchmarks.timing import elementwise_pass

BUDGET = 45.0
"""Seconds after which the authors' loop on the large problem is stopped: its time is then a lower bound."""


def rows(quick: bool = False) -> list[Row]:
    if quick:
        return [*paper_rows(500, 10), *default_rows(500, 10, densities=True), *predict_rows(500, 10)]
    return [
        *paper_rows(5000, 100),
        *paper_rows(25_000, 1000, budget=BUDGET, targets=["bare <= 20", "megabytes <= 60"], target="ratio >= 30"),
        *default_rows(25_000, 1000, densities=True, targets=["bare <= 400"]),
        *default_rows(25_000, 1000, densities=False, targets=["bare <= 400"]),
        *default_rows(5000, 10, densities=True, targets=["seconds <= 3"]),
        *predict_rows(25_000, 1000),
        *predict_rows(50_000, 100),
        *other_rows("flat logits", *flat_logits(25_000, 1000)),
        *([] if (real := tiled_logits(25_000)) is None else other_rows("real logits, tiled with noise", *real)),
    ]


def other_rows(kind: str, logits: np.ndarray, labels: np.ndarray, atypicality: np.ndarray) -> list[Row]:
    """Both methods on other logits than those above: few tiny probabilities can be left out of flat ones."""
    methods = {
        "paper AAR, fit": AtypicalityAwareRecalibration.paper(),
        "default AAR, fit": AtypicalityAwareRecalibration(),
    }
    found = []
    for (stage, method), target in zip(methods.items(), ("bare <= 30", "bare <= 150"), strict=True):
        found += contest(
            stage,
            text_of(*logits.shape, "float32", kind),
            lambda method=method: method.fit(logits, labels, atypicality=atypicality),
            [],
            bare=elementwise_pass(logits),
            bare_of="one pass",
            targets=[target],
            repeats=3,
        )
    return found


def paper_rows(
    n_rows: int, n_classes: int, *, budget: float = np.inf, targets: list[str] | None = None, target: str = ""
) -> list[Row]:
    logits, labels, atypicality = image_logits(n_rows, n_classes)
    columns = np.stack([np.ones(n_rows), atypicality, atypicality**2], axis=1)

    def ours() -> tuple[np.ndarray, np.ndarray]:
        found = AtypicalityAwareRecalibration.paper().fit(logits, labels, atypicality=atypicality)
        return found.multiplier(atypicality), found.class_scores_

    def theirs() -> tuple[np.ndarray, np.ndarray]:
        found = authors.recalibrate(logits, labels, authors.standardised(atypicality), budget=budget)
        ended.append(f"{found.iterations} iterations" + ("" if found.finished else f", stopped at {budget:.0f} s"))
        return columns @ found.coefficients, found.scores

    ended: list[str] = []
    found = contest(
        "paper AAR, fit",
        text_of(n_rows, n_classes, "float32"),
        ours,
        [Peer(AUTHORS, "torch L-BFGS, strong Wolfe, at most 3000 iterations", theirs, target=target)],
        bare=elementwise_pass(logits),
        bare_of="one pass",
        accuracy="calibration loss",
        error=lambda answer: _loss(logits, labels, *answer),
        slack=1e-8,  # the certificate at which we stop
        targets=targets or (),
    )
    return [*found[:-1], replace(found[-1], note=ended[-1] if ended else "")]


def default_rows(
    n_rows: int, n_classes: int, *, densities: bool, targets: list[str] | None = None, repeats: int = 3
) -> list[Row]:
    logits, labels, atypicality, log_density = _outputs(n_rows, n_classes)
    method = AtypicalityAwareRecalibration()
    return contest(
        "default AAR, fit, strengths chosen",
        text_of(n_rows, n_classes, "float32", "with" if densities else "without") + " class log-densities",
        lambda: method.fit(
            logits, labels, atypicality=atypicality, class_log_density=log_density if densities else None
        ),
        [],
        bare=elementwise_pass(logits),
        bare_of="one pass",
        targets=targets or ["bare <= 400"],
        repeats=repeats,
        note="no peer offers this method",
    )


def predict_rows(n_rows: int, n_classes: int) -> list[Row]:
    logits, labels, atypicality, _ = _outputs(n_rows, n_classes)
    first = slice(0, n_rows // 5)
    method = AtypicalityAwareRecalibration().fit(logits[first], labels[first], atypicality=atypicality[first])
    return contest(
        "default AAR, predict_proba",
        text_of(n_rows, n_classes, "float32"),
        lambda: method.predict_proba(logits, atypicality=atypicality),
        [],
        bare=elementwise_pass(logits),
        bare_of="one pass",
        targets=["bare <= 20"],
        note="no peer offers this method",
    )


def _loss(logits: np.ndarray, labels: np.ndarray, multiplier: np.ndarray, scores: np.ndarray) -> float:
    """Cross-entropy of the recalibrated logits, block by block: no copy of all of them in float64."""
    total = 0.0
    for start in range(0, len(labels), 2000):
        part = slice(start, start + 2000)
        total += cross_entropy(multiplier[part, None] * logits[part] + scores, labels[part]) * len(labels[part])
    return total / len(labels)


def _outputs(n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """An overconfident model, the more so the more atypical; log-densities see the class through other noise."""
    rng = np.random.default_rng(0)
    atypicality = rng.random(n)
    logits = 3 * rng.standard_normal((n, k), np.float32)
    logits[np.arange(n), rng.integers(0, k, n)] += 8
    truth = softmax(logits * (1 - 0.6 * atypicality[:, None]) + 0.5 * rng.standard_normal(k))
    labels = np.minimum((truth.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1), k - 1)
    d = rng.standard_normal((n, k), np.float32)
    d[np.arange(n), labels] += 1
    return logits.astype(np.float32), labels, atypicality, 50 * d
