"""The whole head: against the paper's pipeline, against scikit-learn with MAPIE, and against its own arithmetic."""

from dataclasses import dataclass

import numpy as np

from atypicality import ModelOutputs, ReliabilityHead
from atypicality.metrics import nll
from benchmarks import authors
from benchmarks.data import head_outputs, softmax, text_of
from benchmarks.models import LogitsAreInputs
from benchmarks.rows import AUTHORS, Peer, Row, contest

ALPHA, K_REG, PENALTY = 0.1, 5, 0.01


def rows(quick: bool = False) -> list[Row]:
    return [
        *pipeline_rows(*((600, 400, 400, 16, 10) if quick else (20_000, 10_000, 20_000, 256, 100))),
        *predict_rows(*((500, 16, 10) if quick else (50_000, 512, 1000))),
    ]


@dataclass(frozen=True)
class Data:
    """Logits, embeddings and labels of the three parts."""

    train: tuple[np.ndarray, ...]
    calibration: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, n_train: int, n_calibration: int, n_test: int, width: int, n_classes: int) -> "Data":
        """Three parts from the same class means."""
        scale = 0.19 * np.sqrt(512 / width)
        means = (scale * np.random.default_rng(0).standard_normal((n_classes, width))).astype(np.float32)
        return cls(*(head_outputs(n, means, seed) for n, seed in ((n_train, 1), (n_calibration, 2), (n_test, 3))))

    def outputs(self, part: str) -> ModelOutputs:
        """One part as the library takes it."""
        logits, embeddings, labels = getattr(self, part)
        return ModelOutputs(logits, embeddings=embeddings, labels=labels)


def pipeline_rows(n_train: int, n_calibration: int, n_test: int, width: int, n_classes: int) -> list[Row]:
    """Fit on training and calibration rows, answer for the test rows: probabilities, atypicality and sets."""
    data = Data.of(n_train, n_calibration, n_test, width, n_classes)
    labels = data.test[2]
    parts = {part: data.outputs(part) for part in ("train", "calibration", "test")}

    def ours() -> tuple[np.ndarray, np.ndarray]:
        head = ReliabilityHead(alpha=ALPHA).fit(train=parts["train"], calibration=parts["calibration"])
        answer = head.predict(parts["test"])
        return answer.proba, answer.prediction_set

    rng = np.random.default_rng(0)
    whitening, targets = rng.standard_normal((width, width)), rng.standard_normal((width, n_classes))

    def bare() -> None:
        x = data.train[1].astype(np.float64)
        np.matmul(x.T, x)
        for logits, embeddings, _ in (data.calibration, data.test):
            np.matmul(embeddings.astype(np.float64) @ whitening, targets)
            softmax(logits)

    sizes = f"{n_train:,} + {n_calibration:,} + {n_test:,} rows, {width} dimensions, {n_classes} classes"
    return contest(
        "whole head, fit and predict",
        sizes,
        ours,
        [
            Peer(AUTHORS, "Gaussian, AAR in torch, AA-RAPS by argsort", lambda: authors_pipeline(data)),
            Peer(
                "mapie",
                "scikit-learn's temperature scaling, then MAPIE's RAPS; no atypicality",
                lambda: library_pipeline(data),
                if_slower="it learns one temperature, one threshold and no atypicality; its loss is the price",
            ),
        ],
        bare=bare,
        bare_of="products and softmax",
        accuracy="held-out loss",
        error=lambda answer: judged(*answer, labels),
        slack=1e-3,
        targets=["bare <= 3"],
        repeats=10,  # the bare cost is short, and its best of five still moved by some per cent
    )


def judged(probs: np.ndarray, sets: np.ndarray, labels: np.ndarray) -> float:
    """Held-out loss, or infinity where the sets cover less than asked."""
    coverage = sets[np.arange(len(labels)), labels].mean()
    return float(nll(probs, labels)) if coverage >= 1 - ALPHA - 0.02 else np.inf


def authors_pipeline(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """The paper's experiment: half of the calibration rows recalibrate, the other half gives thresholds."""
    logits, embeddings, labels = data.calibration
    gaussian = authors.gaussian_fit(data.train[1], data.train[2])
    a, b = authors.gaussian_scores(embeddings, *gaussian), authors.gaussian_scores(data.test[1], *gaussian)
    half = len(labels) // 2
    centre, spread = a[:half].mean(), a[:half].std()
    a, b = (a - centre) / spread, (b - centre) / spread
    found = authors.recalibrate(logits[:half], labels[:half], a[:half])

    def probabilities(z: np.ndarray, values: np.ndarray) -> np.ndarray:
        multiplier = np.stack([np.ones_like(values), values, values**2], axis=1) @ found.coefficients
        return softmax(multiplier[:, None] * z + found.scores)

    conformal, test = probabilities(logits[half:], a[half:]), probabilities(data.test[0], b)
    sets = authors.aware_sets(conformal, labels[half:], a[half:], test, b, ALPHA, k_reg=K_REG, penalty=PENALTY)
    return test, sets


def library_pipeline(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """What two libraries give a user who has logits only."""
    from mapie.classification import SplitConformalClassifier
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    logits, _, labels = data.calibration
    half = len(labels) // 2
    model = FrozenEstimator(LogitsAreInputs(logits.shape[1]))
    calibrated = CalibratedClassifierCV(model, method="temperature").fit(logits[:half], labels[:half])
    sets = SplitConformalClassifier(
        calibrated, confidence_level=1 - ALPHA, conformity_score="raps", random_state=0
    ).conformalize(logits[half:], labels[half:])
    return calibrated.predict_proba(data.test[0]), sets.predict_set(data.test[0])[1][:, :, 0]


def predict_rows(n_rows: int, width: int, n_classes: int) -> list[Row]:
    """`predict` alone against its two products and one softmax, in blocks, into an array that is new in each call."""
    data = Data.of(2 * n_rows // 5, 2 * n_rows // 5, n_rows, width, n_classes)
    head = ReliabilityHead().fit(train=data.outputs("train"), calibration=data.outputs("calibration"))
    test, logits, embeddings = data.outputs("test"), data.test[0], data.test[1]
    rng = np.random.default_rng(0)
    whitening, targets = rng.standard_normal((width, width)), rng.standard_normal((width, n_classes))

    def bare() -> np.ndarray:
        probs = np.empty_like(logits)
        for start in range(0, n_rows, 4096):
            part = slice(start, start + 4096)
            np.matmul(embeddings[part].astype(np.float64) @ whitening, targets)
            out = probs[part]
            np.subtract(logits[part], logits[part].max(axis=1, keepdims=True), out=out)
            np.exp(out, out=out)
            out /= out.sum(axis=1, keepdims=True)
        return probs

    return contest(
        "whole head, predict",
        text_of(n_rows, n_classes, f"{width} dimensions, float64 density"),
        lambda: head.predict(test),
        [],
        bare=bare,
        bare_of="products and softmax",
        targets=["bare <= 1.6"],
    )
