"""The ImageNet-size problem, made on the device from a seed: embeddings, logits, labels."""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Embeddings", "Outputs", "Size", "embeddings", "outputs"]

ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Size:
    """How large the problem is; `scaled` is the same problem with fewer rows, columns and classes."""

    train: int = 1_280_000
    queries: int = 50_000
    calibration: int = 25_000
    features: int = 2048
    classes: int = 1000

    @classmethod
    def scaled(cls, scale: float) -> "Size":
        """Rows times `scale`, columns and classes times its root."""
        root, full = scale**0.5, cls()
        return cls(
            int(full.train * scale),
            max(100, int(full.queries * scale)),
            max(500, int(full.calibration * scale)),
            max(16, int(full.features * root)),
            max(10, int(full.classes * root)),
        )


@dataclass(frozen=True)
class Embeddings:
    """Training rows (n, d) with their labels, and rows to score; all on the device, labels on the host too."""

    train: Any
    labels: Any
    queries: Any


@dataclass(frozen=True)
class Outputs:
    """Logits (n, k) and probabilities, both float32, labels (n,) and atypicality (n,), on the device."""

    logits: Any
    probs: Any
    labels: Any
    atypicality: Any


def embeddings(lib: Any, size: Size) -> Embeddings:
    """Class means plus noise whose covariance has eigenvalues from 1 down to 1e-4, away from the origin."""
    normals, rng, d = lib.normals(1), np.random.default_rng(1), size.features
    scales = _on(lib, np.geomspace(1.0, 1e-4, d) ** 0.5)
    mixing = scales[:, None] * lib.xp.linalg.qr(normals(d, d))[0]
    means = 1.0 + normals(size.classes, d) @ mixing
    classes = np.r_[np.arange(size.classes), rng.integers(0, size.classes, size.train - size.classes)]
    labels, asked = _on(lib, classes), _on(lib, rng.integers(0, size.classes, size.queries))
    return Embeddings(_noisy(lib, normals, means, mixing, labels), labels, _noisy(lib, normals, means, mixing, asked))


def outputs(lib: Any, n: int, n_classes: int, seed: int) -> Outputs:
    """Logits of a model that is right in about three rows of four, less often and too sure where rows are atypical."""
    xp, normals, rng = lib.xp, lib.normals(seed), np.random.default_rng(seed)
    labels = np.r_[np.arange(n_classes), rng.integers(0, n_classes, n - n_classes)]  # every class has a row
    rarity = rng.gamma(4.0, size=n) / 4
    offsets = _on(lib, np.random.default_rng(0).normal(0, 0.5, n_classes))
    at_label = xp.arange(n_classes, device=lib.device)[None, :] == _on(lib, labels)[:, None]
    lift = _on(lib, 11.0 - 2.5 * rarity + rng.normal(0, 2.5, n))
    logits = 1.9 * normals(n, n_classes) + offsets + xp.where(at_label, lift[:, None], 0.0)
    shifted = xp.exp(logits - xp.max(logits, axis=1, keepdims=True))
    probs = shifted / xp.sum(shifted, axis=1, keepdims=True)
    standardised = (rarity - rarity.mean()) / rarity.std()
    return Outputs(logits, probs, _on(lib, labels), lib.xp.asarray(standardised, device=lib.device))


def _noisy(lib: Any, normals: Any, means: Any, mixing: Any, labels: Any) -> Any:
    """Rows around the means of their classes, made part by part into one array."""
    n, d = labels.shape[0], means.shape[1]
    rows = lib.xp.empty((n, d), dtype=lib.xp.float32, device=lib.device)
    for start in range(0, n, ROWS_AT_ONCE):
        part = slice(start, min(start + ROWS_AT_ONCE, n))
        rows[part, :] = lib.xp.take(means, labels[part], axis=0) + normals(part.stop - start, d) @ mixing
    return rows


def _on(lib: Any, values: np.ndarray) -> Any:
    """Host numbers on the device: floats as float32."""
    kind = np.float32 if values.dtype.kind == "f" else np.int64
    return lib.xp.asarray(values.astype(kind), device=lib.device)
