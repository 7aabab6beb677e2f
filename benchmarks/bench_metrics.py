"""Calibration metrics: the same numbers as the peers, and not more time."""

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from sklearn import config_context
from sklearn.metrics import brier_score_loss, log_loss

from atypicality import metrics
from benchmarks import authors
from benchmarks.data import softmax, text_of
from benchmarks.rows import AUTHORS, Peer, Row, contest
from benchmarks.timing import elementwise_pass

BINS = 10


def rows(quick: bool = False) -> list[Row]:
    n_rows, n_classes = (1000, 20) if quick else (50_000, 1000)
    logits, probs, labels = world(n_rows, n_classes)
    size = text_of(n_rows, n_classes, "float32")
    everything = contest(
        "all calibration metrics",
        size,
        lambda: metrics.summary(probs, labels),
        [],
        bare=elementwise_pass(logits),
        bare_of="one pass",
        targets=["bare <= 2.5"],
        repeats=7,
        note="no peer has them all",
    )
    return [*everything, *ece_rows(probs, labels, size), *loss_rows(probs, labels, size), agreement_row()]


def ece_rows(probs: np.ndarray, labels: np.ndarray, size: str) -> list[Row]:
    import torch

    tensors = torch.from_numpy(probs), torch.from_numpy(labels)
    exact = exact_ece(probs, labels)

    def torchmetrics() -> float:
        from torchmetrics.functional.classification import multiclass_calibration_error

        options = {"num_classes": probs.shape[1], "n_bins": BINS, "validate_args": False}  # "for faster computations"
        return float(multiclass_calibration_error(*tensors, **options))

    def probmetrics() -> float:
        from probmetrics.metrics import CalibrationError

        found = CalibrationError(BINS).compute_all_from_labels_probs(tensors[1], tensors[0])
        return float(found[f"ece-{BINS}"])

    return contest(
        f"ECE, {BINS} bins",
        size,
        lambda: metrics.ece(probs, labels, n_bins=BINS),
        [
            Peer(
                AUTHORS,
                "a mask for every bin",
                lambda: authors.expected_calibration_error(probs, labels, BINS),
                if_slower="it trusts its input; ours also finds rows that are no probabilities, at twice the reading",
            ),
            Peer("netcal", "ECE.measure", lambda: netcal()(probs, labels), target="ratio >= 1"),
            Peer("torchmetrics", "multiclass_calibration_error(validate_args=False)", torchmetrics),
            Peer("probmetrics", "CalibrationError", probmetrics),
        ],
        bare=lambda: probs.max(axis=1) is None,
        bare_of="reading once for the row maxima",
        accuracy="error of ECE",
        error=lambda value: abs(value - exact),
        slack=1e-12,
        plain=True,
        repeats=2,
    )


def loss_rows(probs: np.ndarray, labels: np.ndarray, size: str) -> list[Row]:
    """Logarithmic and Brier score; scikit-learn's are given all classes, as some may miss among the labels."""
    exact = probs.astype(np.float64)
    exact /= exact.sum(axis=1, keepdims=True)
    own = exact[np.arange(len(labels)), labels]
    log, brier = float(-np.log(own).mean()), float(((exact**2).sum(axis=1) - 2 * own + 1).mean())
    del exact
    classes = np.arange(probs.shape[1])
    return [
        *score_rows("log loss", metrics.nll, "log_loss", partial(log_loss, labels=classes), log, probs, labels, size),
        *score_rows(
            "Brier score",
            metrics.brier,
            "brier_score_loss",
            partial(brier_score_loss, labels=classes, scale_by_half=False),
            brier,
            probs,
            labels,
            size,
        ),
    ]


def score_rows(stage: str, ours, call: str, theirs, exact: float, probs, labels, size: str) -> list[Row]:
    return contest(
        stage,
        size,
        lambda: ours(probs, labels),
        [Peer("scikit-learn", f"{call}, assume_finite=True", quietly(lambda: theirs(labels, probs)))],
        bare=lambda: probs.max(axis=1) is None,
        bare_of="reading once for the row maxima",
        accuracy="error of the score",
        error=lambda value: abs(value - exact),
        slack=1e-7,  # float32 rows sum to 1 within 1e-7, and whether one divides by the sum makes that difference
        plain=True,
    )


def agreement_row() -> Row:
    """Largest difference from the peers on float64 probabilities; none of them lies on the edge of a bin.

    torchmetrics' multiclass form computes in float32 whatever it gets; its binary form, given confidence and
    correctness, is the same sum in float64.
    """
    import torch

    try:
        from torchmetrics.functional.classification import binary_calibration_error

        netcal()
    except ModuleNotFoundError:
        return Row("agreement of ECE, RMSCE, Brier and log loss", "peers are not installed")

    def torch_error(values: np.ndarray, hits: np.ndarray, norm: str = "l1") -> float:
        tensors = torch.from_numpy(values.copy()), torch.from_numpy(hits.astype(int))
        return float(binary_calibration_error(*tensors, n_bins=BINS, norm=norm))

    _, probs, labels = world(5000, 10, np.float64)
    top = probs.max(axis=1), probs.argmax(axis=1) == labels
    classwise = [torch_error(probs[:, j], labels == j) for j in range(10)]
    pairs = [
        (metrics.ece(probs, labels), netcal()(probs, labels)),
        (metrics.ece(probs, labels), torch_error(*top)),
        (metrics.rmsce(probs, labels), torch_error(*top, norm="l2")),
        (metrics.classwise_ece(probs, labels), float(np.mean(classwise))),
        (metrics.nll(probs, labels), log_loss(labels, probs)),
        (metrics.brier(probs, labels), brier_score_loss(labels, probs, scale_by_half=False)),
    ]
    return Row(
        "agreement of ECE, RMSCE, Brier and log loss",
        "5,000 x 10, float64",
        accuracy="largest difference from netcal, torchmetrics and scikit-learn",
        error=max(abs(ours - theirs) for ours, theirs in pairs),
        target="error <= 1e-9",
    )


def netcal() -> Callable[[np.ndarray, np.ndarray], float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # netcal warns about its optional plots on import
        from netcal.metrics import ECE
    return ECE(BINS).measure


def quietly(run: Callable[[], float]) -> Callable[[], float]:
    """Without the warning that float32 rows sum to 1 only to float32's precision; with scikit-learn's fast setting."""

    def quiet() -> float:
        with warnings.catch_warnings(), config_context(assume_finite=True):
            warnings.simplefilter("ignore")
            return run()

    return quiet


def exact_ece(probs: np.ndarray, labels: np.ndarray) -> float:
    """The definition in float64: bins closed on the right, confidences as they are."""
    confidence, correct = probs.max(axis=1).astype(np.float64), probs.argmax(axis=1) == labels
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    return float(np.abs(np.bincount(bins, correct - confidence, BINS)).sum() / len(labels))


def world(n_rows: int, n_classes: int, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((n_rows, n_classes))).astype(dtype)
    labels = (logits / 1.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, softmax(logits), labels
