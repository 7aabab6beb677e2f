"""Prediction sets, threshold included: APS, RAPS, the atypicality-aware ones, and least ambiguous sets."""

from collections.abc import Callable

import numpy as np

from atypicality import AtypicalityAwareConformal, SplitConformal
from benchmarks import authors
from benchmarks.data import softmax, text_of
from benchmarks.models import ProbabilitiesAreInputs
from benchmarks.rows import AUTHORS, Peer, Row, contest

ALPHA, K_REG, PENALTY = 0.1, 5, 0.01


def rows(quick: bool = False) -> list[Row]:
    half, n_classes = (400, 20) if quick else (12_500, 1000)
    problem = Problem(half, n_classes)
    few = Problem(300 if quick else 2000, n_classes)
    given, test = problem.given, problem.test
    fixed = {"k_reg": K_REG, "penalty": PENALTY}
    aware_given = {"atypicality": problem.atypicality[:half]}
    aware_test = {"atypicality": problem.atypicality[half:]}

    def ours(score: str, **options: object) -> Callable[[], np.ndarray]:
        return lambda: SplitConformal(score, ALPHA, **options).fit(*given).predict_set(test)

    def aware() -> np.ndarray:
        method = AtypicalityAwareConformal(alpha=ALPHA, **fixed)
        return method.fit(*given, **aware_given).predict_set(test, **aware_test)

    return [
        *problem.contest(
            "APS",
            ours("aps"),
            [
                Peer(AUTHORS, "argsort", lambda: authors.conformal_sets(*given, test, ALPHA)),
                Peer("mapie", 'SplitConformalClassifier(conformity_score="aps")', mapie("aps", *given, test)),
            ],
        ),
        *problem.contest(
            "RAPS, given penalty",
            ours("raps", **fixed),
            [
                Peer(
                    AUTHORS,
                    "argsort",
                    lambda: authors.conformal_sets(*given, test, ALPHA, **fixed),
                    target="ratio >= 5",
                ),
                Peer(
                    "mapie",
                    'SplitConformalClassifier(conformity_score="aps")',
                    mapie("aps", *given, test),
                    target="ratio >= 12",
                ),
            ],
        ),
        *problem.contest(
            "RAPS, penalty tuned",
            ours("raps"),
            [Peer("mapie", 'SplitConformalClassifier(conformity_score="raps")', mapie("raps", *given, test))],
        ),
        *problem.contest(
            "aware RAPS, 6 x 6 groups",
            aware,
            [
                Peer(
                    AUTHORS,
                    "argsort, a quantile for every group",
                    lambda: authors.aware_sets(
                        *given, aware_given["atypicality"], test, aware_test["atypicality"], ALPHA, **fixed
                    ),
                    target="ratio >= 5",
                )
            ],
        ),
        *few.contest(
            "least ambiguous sets",
            lambda: SplitConformal("lac", ALPHA, nonempty=None).fit(*few.given).predict_set(few.test),
            [Peer("crepes", "ConformalClassifier, hinge", crepes(*few.given, few.test))],
        ),
    ]


class Problem:
    """Probabilities and labels for a threshold and for sets, and how answers are judged."""

    def __init__(self, half: int, n_classes: int) -> None:
        self.size = f"{half:,} + {text_of(half, n_classes, 'float32')}"
        probs, self.labels, self.atypicality = _outputs(2 * half, n_classes)
        self.given, self.test, self.half = (probs[:half], self.labels[:half]), probs[half:], half
        self.inside = np.empty(probs.shape, bool)

    def contest(self, stage: str, ours: Callable[[], np.ndarray], peers: list[Peer]) -> list[Row]:
        """Sets that cover at least 1 - alpha, less four standard deviations, are judged by their mean size."""
        return contest(
            stage,
            self.size,
            ours,
            peers,
            bare=self._bare,
            bare_of="one comparison of every probability",
            accuracy="mean set size (inf if it covers less than asked)",
            error=self.judged,
            slack=1e-9,
        )

    def _bare(self) -> None:
        np.greater(self.given[0], 0.5, out=self.inside[: self.half])
        np.greater(self.test, 0.5, out=self.inside[self.half :])

    def judged(self, sets: np.ndarray) -> float:
        """Mean size, or infinity where coverage is below what a valid method reaches."""
        sets = np.asarray(sets, bool).reshape(self.test.shape)
        coverage = sets[np.arange(self.half), self.labels[self.half :]].mean()
        noise = np.sqrt(2 * ALPHA * (1 - ALPHA) / self.half)  # of the threshold and of the rows counted
        return float(sets.sum(axis=1).mean()) if coverage >= 1 - ALPHA - 4 * noise else np.inf


def mapie(score: str, probs: np.ndarray, labels: np.ndarray, test: np.ndarray):
    def run() -> np.ndarray:
        from mapie.classification import SplitConformalClassifier

        model = ProbabilitiesAreInputs(probs.shape[1])
        peer = SplitConformalClassifier(model, confidence_level=1 - ALPHA, conformity_score=score, random_state=0)
        return peer.conformalize(probs, labels).predict_set(test)[1]

    return run


def crepes(probs: np.ndarray, labels: np.ndarray, test: np.ndarray):
    def run() -> np.ndarray:
        from crepes import ConformalClassifier
        from crepes.extras import hinge

        fitted = ConformalClassifier().fit(hinge(probs, np.arange(probs.shape[1]), labels))
        return fitted.predict_set(hinge(test), confidence=1 - ALPHA, smoothing=False)

    return run


def _outputs(n_rows: int, n_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Float32 probabilities of a model with an accuracy near 0.75, labels drawn from them, and an atypicality."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((n_rows, n_classes)).astype(np.float32)
    logits[np.arange(n_rows), rng.integers(0, n_classes, n_rows)] += rng.gamma(6.0, 2.5, n_rows).astype(np.float32)
    probs = softmax(logits)
    below = np.cumsum(probs, axis=1, dtype=np.float64) <= rng.random((n_rows, 1))
    return probs, np.minimum(below.sum(axis=1), n_classes - 1), np.random.default_rng(1).random(n_rows)
