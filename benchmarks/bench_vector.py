"""Vector scaling: a scale and a bias for every class."""

import warnings
from collections.abc import Callable

import numpy as np

from atypicality import VectorScaling
from atypicality.metrics import nll
from benchmarks import authors
from benchmarks.data import image_logits, softmax, text_of
from benchmarks.rows import AUTHORS, Peer, Row, contest
from benchmarks.timing import elementwise_pass

Answer = Callable[[np.ndarray], np.ndarray]


def rows(quick: bool = False) -> list[Row]:
    n_rows, n_classes = (1000, 10) if quick else (20_000, 100)
    logits, labels, _ = image_logits(n_rows, n_classes)
    held_out, held_out_labels, _ = image_logits(n_rows, n_classes, seed=5)
    probs, test = softmax(logits), softmax(held_out)
    wide = probs.astype(np.float64), labels, test.astype(np.float64)

    def theirs() -> Callable[[], np.ndarray]:
        found = authors.vector_scaling(logits, labels)
        return lambda: softmax(found.coefficients * held_out + found.scores)

    def ours() -> Callable[[], np.ndarray]:
        fitted = VectorScaling().fit(logits, labels)
        return lambda: fitted.predict_proba(held_out)

    return contest(
        "vector scaling, fit",
        text_of(n_rows, n_classes, "float32"),
        ours,
        [
            Peer(AUTHORS, "torch L-BFGS, strong Wolfe", theirs),
            Peer(
                "probmetrics",
                "VectorScalingCalibrator",
                probmetrics("VectorScalingCalibrator", probs, labels, test),
                if_slower="nearly a draw: its loop ends at a gradient of 1e-5, ours with a certificate of 2e-10",
            ),
            Peer(
                "probmetrics",
                "SVSCalibrator",
                probmetrics("SVSCalibrator", probs, labels, test),
                if_slower="its optimiser stops early and its penalty is strong, at the higher loss beside it",
            ),
            Peer("netcal", "LogisticCalibration, float64", netcal(*wide), note="given float64, where it converges"),
        ],
        bare=elementwise_pass(logits),
        bare_of="one pass",
        accuracy="held-out loss",
        error=lambda answer: nll(answer(), held_out_labels),
        slack=1e-4,
        repeats=3,
    )


def probmetrics(name: str, probs: np.ndarray, labels: np.ndarray, test: np.ndarray):
    def run() -> Callable[[], np.ndarray]:
        import probmetrics.calibrators

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = getattr(probmetrics.calibrators, name)().fit(probs, labels)
        return lambda: fitted.predict_proba(test)

    return run


def netcal(probs: np.ndarray, labels: np.ndarray, test: np.ndarray):
    def run() -> Callable[[], np.ndarray]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from netcal.scaling import LogisticCalibration

            method = LogisticCalibration()
            method.fit(probs, labels, tensorboard=False)
        return lambda: method.transform(test)

    return run
