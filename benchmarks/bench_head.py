"""The whole head at prediction, against the products and the softmax that it cannot avoid."""

import numpy as np

from atypicality.head import ReliabilityHead
from atypicality.outputs import ModelOutputs
from benchmarks.timing import Row, best_times

N_ROWS, N_CLASSES, WIDTH = 50_000, 1000, 512


def make_outputs(n_rows: int, means: np.ndarray, weights: np.ndarray, seed: int) -> ModelOutputs:
    """Rows around class means, and the logits of a linear layer on them: about three in four are right."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, N_CLASSES, n_rows)
    embeddings = means[labels] + rng.normal(size=(n_rows, WIDTH)).astype(np.float32)
    return ModelOutputs(embeddings @ weights, embeddings=embeddings, labels=labels)


def rows() -> list[Row]:
    """Time `predict` on 50,000 rows against its two products and one softmax, in float32 blocks of the same rows."""
    rng = np.random.default_rng(0)
    means = (0.19 * rng.normal(size=(N_CLASSES, WIDTH))).astype(np.float32)
    weights = np.ascontiguousarray(means.T) * np.float32(1.5)
    head = ReliabilityHead().fit(
        train=make_outputs(20_000, means, weights, 1), calibration=make_outputs(10_000, means, weights, 2)
    )
    test = make_outputs(N_ROWS, means, weights, 3)
    whitening = rng.normal(size=(WIDTH, WIDTH))
    targets = np.ascontiguousarray(means.T, np.float64)
    probs = np.empty_like(test.logits)

    def bare() -> None:
        for start in range(0, N_ROWS, 4096):
            part = slice(start, start + 4096)
            np.matmul(test.embeddings[part].astype(np.float64) @ whitening, targets)
            out = probs[part]
            np.subtract(test.logits[part], test.logits[part].max(axis=1, keepdims=True), out=out)
            np.exp(out, out=out)
            out /= out.sum(axis=1, keepdims=True)

    best = best_times({"head": lambda: head.predict(test), "bare": bare}, repeats=3)
    note = f"{N_ROWS:,} x {N_CLASSES}, {WIDTH} dimensions, float64 density; {best['head']:.2f} s"
    return [Row("head: predict", "bare products and softmax", best["head"] / best["bare"], "<= 2", note)]
