"""Calibration metrics against their peers: the same numbers, and not more time."""

import warnings

import numpy as np

from atypicality import metrics
from benchmarks.timing import Row, best_times, elementwise_pass

ROWS, CLASSES = 50_000, 1000


def rows() -> list[Row]:
    logits, probs, labels = _world(ROWS, CLASSES)
    netcal_ece = _netcal()
    times = best_times(
        {
            "pass": elementwise_pass(logits),
            "all": lambda: metrics.summary(probs, labels),
            "ece": lambda: metrics.ece(probs, labels),
            "netcal": lambda: netcal_ece(probs, labels),
        },
        repeats=7,
    )
    size = f"{ROWS:,} x {CLASSES} float32"
    return [
        Row("all calibration metrics", "one elementwise pass", times["all"] / times["pass"], "<= 2.5", size),
        Row("ECE", "netcal", times["ece"] / times["netcal"], "<= 1", size),
        Row(
            "agreement of ECE, Brier, NLL", "netcal, torchmetrics, scikit-learn", _disagreement(), "<= 1e-9", "largest"
        ),
    ]


def _disagreement() -> float:
    """Largest difference from the peers on float64 probabilities; none of them lies on the edge of a bin.

    torchmetrics' multiclass form computes in float32 whatever it gets; its binary form, given confidence and
    correctness, is the same sum in float64.
    """
    import torch
    from sklearn.metrics import brier_score_loss, log_loss
    from torchmetrics.functional.classification import binary_calibration_error

    def torch_error(values: np.ndarray, hits: np.ndarray, norm: str = "l1") -> float:
        tensors = torch.from_numpy(values.copy()), torch.from_numpy(hits.astype(int))
        return float(binary_calibration_error(*tensors, n_bins=10, norm=norm))

    _, probs, labels = _world(5_000, 10, np.float64)
    top = probs.max(axis=1), probs.argmax(axis=1) == labels
    classwise = [torch_error(probs[:, j], labels == j) for j in range(10)]
    pairs = [
        (metrics.ece(probs, labels), _netcal()(probs, labels)),
        (metrics.ece(probs, labels), torch_error(*top)),
        (metrics.rmsce(probs, labels), torch_error(*top, norm="l2")),
        (metrics.classwise_ece(probs, labels), float(np.mean(classwise))),
        (metrics.nll(probs, labels), log_loss(labels, probs)),
        (metrics.brier(probs, labels), brier_score_loss(labels, probs, scale_by_half=False)),
    ]
    return max(abs(ours - theirs) for ours, theirs in pairs)


def _netcal():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # netcal warns about its optional plots on import
        from netcal.metrics import ECE
    return ECE(10).measure


def _world(n_rows: int, n_classes: int, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((n_rows, n_classes))).astype(dtype)
    labels = (logits / 1.5 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    return logits, probs / probs.sum(axis=1, keepdims=True), labels
