"""Temperature scaling on the logits of an image model."""

import warnings

import numpy as np

from atypicality import TemperatureScaling
from benchmarks import authors
from benchmarks.data import cross_entropy, image_logits, softmax, text_of
from benchmarks.rows import AUTHORS, Peer, Row, contest
from benchmarks.timing import elementwise_pass

PRIOR = "ours has a prior of two pseudo-rows, which costs a little on the very rows that it is fitted to"
IN_FLOAT64 = "given float64: with float32 its optimiser stops where it starts, at a temperature of 1"


def rows(quick: bool = False) -> list[Row]:
    n_rows, n_classes = (1000, 20) if quick else (25_000, 1000)
    logits, labels, _ = image_logits(n_rows, n_classes)
    return [*fit_rows(logits, labels), *predict_rows(logits, labels)]


def fit_rows(logits: np.ndarray, labels: np.ndarray) -> list[Row]:
    probs = softmax(logits)
    return contest(
        "temperature scaling, fit",
        text_of(*logits.shape, "float32"),
        lambda: TemperatureScaling().fit(logits, labels).multiplier(),
        [
            Peer(
                "scikit-learn",
                'CalibratedClassifierCV(FrozenEstimator(model), method="temperature")',
                scikit(logits, labels),
                target="ratio >= 12",
                if_worse=PRIOR,
            ),
            Peer(
                AUTHORS,
                "torch L-BFGS, strong Wolfe",
                lambda: authors.recalibrate(logits, labels).coefficients[0],
                target="ratio >= 30",
                if_worse=PRIOR,
            ),
            Peer("probmetrics", "TemperatureScalingCalibrator", probmetrics(probs, labels), if_worse=PRIOR),
            Peer(
                "netcal",
                "TemperatureScaling, float64",
                netcal(probs.astype(np.float64), labels),
                if_worse=PRIOR,
                note=IN_FLOAT64,
            ),
            Peer(
                "torch-uncertainty", "TemperatureScaler, one batch", torch_uncertainty(logits, labels), if_worse=PRIOR
            ),
        ],
        bare=elementwise_pass(logits),
        bare_of="one pass",
        accuracy="calibration loss",
        error=lambda multiplier: cross_entropy(np.float64(multiplier) * logits, labels),
        slack=1e-9,
        repeats=2,
    )


def predict_rows(logits: np.ndarray, labels: np.ndarray) -> list[Row]:
    ours, theirs = TemperatureScaling().fit(logits, labels), calibrated(logits, labels)
    return contest(
        "temperature scaling, predict_proba",
        text_of(*logits.shape, "float32"),
        lambda: ours.predict_proba(logits),
        [Peer("scikit-learn", "CalibratedClassifierCV.predict_proba", lambda: theirs.predict_proba(logits))],
        bare=elementwise_pass(logits),
        bare_of="one pass",
        accuracy="calibration loss",
        error=lambda probs: -float(np.log(probs[np.arange(len(labels)), labels].astype(np.float64)).mean()),
        slack=1e-6,  # probabilities are rounded to float32
    )


def calibrated(logits: np.ndarray, labels: np.ndarray):
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    from benchmarks.models import LogitsAreInputs

    model = FrozenEstimator(LogitsAreInputs(logits.shape[1]))
    return CalibratedClassifierCV(model, method="temperature").fit(logits, labels)


def scikit(logits: np.ndarray, labels: np.ndarray):
    return lambda: calibrated(logits, labels).calibrated_classifiers_[0].calibrators[0].beta_


def probmetrics(probs: np.ndarray, labels: np.ndarray):
    def run() -> float:
        from probmetrics.calibrators import TemperatureScalingCalibrator

        return TemperatureScalingCalibrator().fit(probs, labels).invtemp_

    return run


def netcal(probs: np.ndarray, labels: np.ndarray):
    def run() -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from netcal.scaling import TemperatureScaling as Theirs

            method = Theirs()
            method.fit(probs, labels, tensorboard=False)
        return float(method.weights[0])

    return run


def torch_uncertainty(logits: np.ndarray, labels: np.ndarray):
    def run() -> float:
        import torch
        from torch_uncertainty.post_processing import TemperatureScaler

        method = TemperatureScaler(model=torch.nn.Identity())
        batch = [(torch.from_numpy(logits), torch.from_numpy(labels))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            method.fit(batch, progress=False)
        return 1 / float(method.temperature[0].detach())

    return run
