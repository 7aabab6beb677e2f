"""Made-up arrays that look like what models say, real ones made longer, and what is measured on answers."""

import os

import numpy as np
from scipy.special import logsumexp

from benchmarks.image_outputs import kept_crops

__all__ = [
    "OUTPUTS_VARIABLE",
    "clusters",
    "cross_entropy",
    "flat_logits",
    "head_outputs",
    "image_logits",
    "softmax",
    "text_of",
    "tiled_logits",
]

FAMILY, SURE = 10, 0.8
OUTPUTS_VARIABLE = "ATYPICALITY_BENCH_OUTPUTS"
"""Names a file of real outputs, with logits and labels, that stands in for crops of photographs."""


def clusters(
    n_train: int, n_queries: int, width: int, n_classes: int, dtype: type = np.float32
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training rows around class centres, their labels (every class has one), and rows to score."""
    rng = np.random.default_rng(0)
    labels = np.r_[np.arange(n_classes), rng.integers(0, n_classes, n_train - n_classes)]
    centres = rng.standard_normal((n_classes, width), dtype=np.float32)
    train = centres[labels] + rng.standard_normal((n_train, width), dtype=np.float32)
    queries = centres[rng.integers(0, n_classes, n_queries)] + rng.standard_normal((n_queries, width), dtype=np.float32)
    return train.astype(dtype, copy=False), labels, queries.astype(dtype, copy=False)


def image_logits(n_rows: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits like those of an image model: right in three rows of four, wrong within families of similar classes.

    Also labels, every class as often as the others, and an atypicality that lowers the logit of the label.
    """
    rng = np.random.default_rng(seed)
    labels, atypicality = rng.permutation(np.arange(n_rows) % n_classes), rng.gamma(4.0, size=n_rows) / 4
    logits = rng.standard_normal((n_rows, n_classes), dtype=np.float32) * np.float32(1.9)
    logits += np.random.default_rng(1).normal(0, 0.5, n_classes).astype(np.float32)
    each = np.arange(n_rows)
    family = (labels[:, None] // FAMILY * FAMILY + np.arange(min(FAMILY, n_classes))) % n_classes
    logits[each[:, None], family] += rng.normal(4.5, 1.8, family.shape).astype(np.float32)
    logits[each, labels] += (8.9 - 2.2 * atypicality + rng.normal(0, 1.5, n_rows)).astype(np.float32)
    return logits, labels, (atypicality - atypicality.mean()) / atypicality.std()


def flat_logits(n_rows: int, n_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of a model that is sure of little (mean confidence about a half), labels drawn from it, atypicality."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((n_rows, n_classes), np.float32)
    logits[np.arange(n_rows), rng.integers(0, n_classes, n_rows)] += 1.5 + np.log(n_classes)
    below = softmax(logits).cumsum(axis=1) < rng.random((n_rows, 1))
    return logits, np.minimum(below.sum(axis=1), n_classes - 1), rng.standard_normal(n_rows)


def tiled_logits(n_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Real logits, each row as often as needed with a little noise, labels and atypicality; None where there are none.

    They are those of the file that is named, with its labels, or of crops of photographs where the packages for them
    are installed. Nobody labelled the crops: labels are drawn for each repetition from a softmax that is less sure.
    """
    from atypicality import ModelOutputs

    rng, labels = np.random.default_rng(0), None
    if path := os.environ.get(OUTPUTS_VARIABLE):
        outputs = ModelOutputs.load(path)
        found, labels = np.asarray(outputs.logits, np.float32), np.asarray(outputs.labels)
    elif (found := kept_crops()) is None:
        return None
    rows = np.arange(n_rows) % len(found)
    logits = found[rows]
    logits += np.float32(0.05) * logits.std(axis=1, keepdims=True) * rng.standard_normal(logits.shape, np.float32)
    if labels is None:
        return logits, np.argmax(SURE * logits + rng.gumbel(size=logits.shape), axis=1), rng.standard_normal(n_rows)
    return logits, labels[rows], rng.standard_normal(n_rows)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities in the type of the logits."""
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    return probs


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean cross-entropy of softmax(logits), in float64 and in blocks."""
    total = 0.0
    for start in range(0, len(labels), 2000):
        part = np.asarray(logits[start : start + 2000], np.float64)
        total += float((logsumexp(part, axis=1) - part[np.arange(len(part)), labels[start : start + 2000]]).sum())
    return total / len(labels)


def head_outputs(n_rows: int, means: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of a linear layer, embeddings around class means, and labels: about three in four are right."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n_rows) % len(means))
    embeddings = means[labels] + rng.standard_normal((n_rows, means.shape[1]), dtype=np.float32)
    return embeddings @ (means.T * np.float32(1.5)), embeddings, labels


def text_of(n_rows: int, *more: int | str) -> str:
    """A size as the table writes it.

    >>> text_of(25000, 1000, "float32")
    '25,000 x 1,000, float32'
    """
    numbers = [f"{value:,}" for value in (n_rows, *more) if isinstance(value, int)]
    return ", ".join([" x ".join(numbers), *(word for word in more if isinstance(word, str))])
