"""The stages whose growth is measured: what is timed, from which size on, and the arithmetic it should follow.

First sizes are large enough for fixed costs to be small, and such that one algorithm serves all sizes: solvers take
exact Newton steps for small problems and a cheaper way for large ones, and a switch between them is no growth.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from atypicality import (
    AtypicalityAwareRecalibration,
    ClassAtypicality,
    GaussianAtypicality,
    ModelOutputs,
    NeighborAtypicality,
    ReliabilityHead,
    SplitConformal,
    TemperatureScaling,
    VectorScaling,
    evaluate,
    metrics,
)
from benchmarks.data import clusters, head_outputs, image_logits, softmax

__all__ = ["DOUBLINGS", "STAGES", "Size", "Stage", "Work"]

DOUBLINGS = 4
QUERIES = 500
"""Rows whose neighbours are searched; the doubled rows are the training rows."""
NEWTON_STEPS, STRENGTH_ROUNDS = 5, 6
"""Typical numbers, which weigh products against passes in the formulas of recalibration."""

PREDICT_PASSES = 30
"""Elementwise work of an answer in passes over float32 logits: recalibration is float64, and sets are sorted."""


class Size(NamedTuple):
    """Rows, dimensions and classes."""

    n: int
    d: int = 0
    k: int = 0


@dataclass(frozen=True)
class Work:
    """Operations of float64 and of float32 products, and entries that elementwise passes touch."""

    double: float = 0.0
    single: float = 0.0
    entries: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.double + other.double, self.single + other.single, self.entries + other.entries)


@dataclass(frozen=True)
class Stage:
    """One stage: `make` prepares arrays of a size and returns the call that is timed; `work` counts its arithmetic."""

    name: str
    formula: str
    make: Callable[[Size], Callable[[], Any]]
    work: Callable[[Size], Work]
    starts: Mapping[str, Size]


def _gaussian(size: Size) -> tuple[np.ndarray, np.ndarray, GaussianAtypicality]:
    rows, labels, _ = clusters(max(size.n, 2 * size.k, 4 * size.d), 1, size.d, size.k)
    return rows, labels, GaussianAtypicality()


def gaussian_fit(size: Size) -> Callable[[], Any]:
    rows, labels, estimator = _gaussian(size)
    return lambda: estimator.fit(rows, labels)


def gaussian_score(size: Size) -> Callable[[], Any]:
    train, labels, _ = clusters(max(2000, 4 * size.d, 2 * size.k), 1, size.d, size.k)
    estimator, rows = GaussianAtypicality().fit(train, labels), clusters(size.n, 1, size.d, min(size.k, size.n))[0]
    return lambda: estimator.atypicality(rows)


def neighbors_fit(size: Size) -> Callable[[], Any]:
    rows = clusters(size.n, 1, size.d, 10)[0]
    return lambda: NeighborAtypicality().fit(rows)


def neighbors_score(size: Size) -> Callable[[], Any]:
    rows, _, queries = clusters(size.n, QUERIES, size.d, 10)
    estimator = NeighborAtypicality().fit(rows)
    return lambda: estimator.atypicality(queries)


def class_atypicality(size: Size) -> Callable[[], Any]:
    labels = np.random.default_rng(0).integers(0, size.k, size.n)
    return lambda: ClassAtypicality().fit(labels).atypicality(labels)


def temperature(size: Size) -> Callable[[], Any]:
    logits, labels, _ = image_logits(size.n, size.k)
    return lambda: TemperatureScaling().fit(logits, labels)


def paper_aware(size: Size) -> Callable[[], Any]:
    logits, labels, atypicality = image_logits(size.n, size.k)
    return lambda: AtypicalityAwareRecalibration.paper().fit(logits, labels, atypicality=atypicality)


def default_aware(size: Size) -> Callable[[], Any]:
    logits, labels, atypicality = image_logits(size.n, size.k)
    method = AtypicalityAwareRecalibration(class_mixing="diagonal")
    return lambda: method.fit(logits, labels, atypicality=atypicality)


def vector(size: Size) -> Callable[[], Any]:
    logits, labels, _ = image_logits(size.n, size.k)
    return lambda: VectorScaling().fit(logits, labels)


def _probs(size: Size) -> tuple[np.ndarray, np.ndarray]:
    logits, labels, _ = image_logits(size.n, size.k)
    return softmax(logits), labels


def expected_error(size: Size) -> Callable[[], Any]:
    probs, labels = _probs(size)
    return lambda: metrics.ece(probs, labels)


def all_metrics(size: Size) -> Callable[[], Any]:
    probs, labels = _probs(size)
    return lambda: metrics.summary(probs, labels)


def raps_fit(size: Size) -> Callable[[], Any]:
    probs, labels = _probs(size)
    return lambda: SplitConformal("raps").fit(probs, labels)


def raps_sets(size: Size) -> Callable[[], Any]:
    probs, labels = _probs(size)
    fitted = SplitConformal("raps", k_reg=3, penalty=0.5).fit(probs[:2000], labels[:2000])
    return lambda: fitted.predict_set(probs)


def _outputs(size: Size, seed: int) -> ModelOutputs:
    scale = 0.19 * np.sqrt(512 / size.d)
    means = (scale * np.random.default_rng(0).standard_normal((size.k, size.d))).astype(np.float32)
    logits, embeddings, labels = head_outputs(size.n, means, seed)
    return ModelOutputs(logits, embeddings=embeddings, labels=labels)


def _head() -> ReliabilityHead:
    return ReliabilityHead(recalibration=AtypicalityAwareRecalibration(class_mixing="diagonal"))


def head_fit(size: Size) -> Callable[[], Any]:
    train, calibration = _outputs(size, 1), _outputs(size, 2)
    return lambda: _head().fit(train=train, calibration=calibration)


def _fitted(size: Size) -> tuple[ReliabilityHead, ModelOutputs]:
    small = size._replace(n=max(1000, 10 * size.k, 4 * size.d))
    return _head().fit(train=_outputs(small, 1), calibration=_outputs(small, 2)), _outputs(size, 3)


def head_predict(size: Size) -> Callable[[], Any]:
    head, test = _fitted(size)
    return lambda: head.predict(test)


def evaluation(size: Size) -> Callable[[], Any]:
    head, test = _fitted(size)
    return lambda: evaluate(head, test)


def _fit_work(s: Size) -> Work:
    return Work(double=s.n * s.d**2 + 2 * s.d**3, entries=2 * s.n * s.d + s.k * s.d)


def _score_work(s: Size) -> Work:
    return Work(double=2 * s.n * s.d**2 + 2 * s.n * s.d * s.k, entries=s.n * s.k)


def _newton_work(s: Size, steps: int = NEWTON_STEPS) -> Work:
    """Exact Newton steps on a scale and a score for every class and a few shared parameters."""
    p = 2 * s.k + 6
    return Work(double=steps * p**3, single=steps * 2 * s.n * p**2, entries=steps * 10 * s.n * s.k)


def _default_work(s: Size) -> Work:
    """For every change of the strengths an optimum, its Hessian once more, and inverses of it."""
    p, optima = 2 * s.k + 6, _newton_work(s, STRENGTH_ROUNDS * NEWTON_STEPS)
    return optima + Work(double=STRENGTH_ROUNDS * 10 * p**3, single=STRENGTH_ROUNDS * 2 * s.n * p**2)


def _predict_work(s: Size) -> Work:
    return _score_work(s) + Work(entries=PREDICT_PASSES * s.n * s.k)


def _head_work(s: Size) -> Work:
    half = s._replace(n=s.n // 2)
    return _fit_work(s) + _score_work(s) + _default_work(half) + Work(entries=PREDICT_PASSES * s.n * s.k)


def _entries(passes: float) -> Callable[[Size], Work]:
    """So many passes over n x k entries."""
    return lambda s: Work(entries=passes * s.n * s.k)


ROWS_BY_CLASSES = {"n": Size(16_000, k=200), "k": Size(16_000, k=250)}
HEAD = {"n": Size(2000, 64, 20), "d": Size(4000, 32, 20), "k": Size(6000, 64, 15)}
PREDICT = {"n": Size(4000, 128, 100), "d": Size(8000, 32, 100), "k": Size(8000, 64, 20)}
STAGES = (
    Stage(
        "Gaussian fit",
        "n d² + 2 d³ + passes over n d",
        gaussian_fit,
        _fit_work,
        {"n": Size(16_000, 128, 200), "d": Size(20_000, 32, 200), "k": Size(50_000, 64, 50)},
    ),
    Stage(
        "Gaussian score",
        "2 n d² + 2 n d k + a pass over n k",
        gaussian_score,
        _score_work,
        {"n": Size(4000, 128, 200), "d": Size(4000, 32, 200), "k": Size(4000, 128, 100)},
    ),
    Stage(
        "neighbours, fit",
        "passes over n d",
        neighbors_fit,
        lambda s: Work(entries=s.n * s.d),
        {"n": Size(16_000, 128), "d": Size(50_000, 32)},
    ),
    Stage(
        "neighbours, score",
        f"2 q n d + two passes over q n, q = {QUERIES}",
        neighbors_score,
        lambda s: Work(single=2 * QUERIES * s.n * s.d, entries=2 * QUERIES * s.n),
        {"n": Size(8000, 128), "d": Size(30_000, 32)},
    ),
    Stage(
        "class atypicality",
        "n log k: a search among sorted classes",
        class_atypicality,
        lambda s: Work(entries=s.n * np.log2(s.k)),
        {"n": Size(100_000, k=100), "k": Size(1_000_000, k=100)},
    ),
    Stage("temperature scaling, fit", "passes over n k", temperature, _entries(4), ROWS_BY_CLASSES),
    Stage(
        "paper AAR, fit",
        "passes over n k + k³ / 3",
        paper_aware,
        lambda s: Work(double=s.k**3 / 3, entries=12 * s.n * s.k),
        {"n": Size(6400, k=400), "k": Size(16_000, k=250)},
    ),
    Stage(
        "default AAR, fit",
        "Newton: 2 n p² + p³, p = 2 k + 6, passes over n k",
        default_aware,
        _default_work,
        {"n": Size(1000, k=20), "k": Size(4000, k=15)},
    ),
    Stage(
        "vector scaling, fit",
        "Newton: 2 n p² + p³, p = 2 k, passes over n k",
        vector,
        _newton_work,
        {"n": Size(4000, k=20), "k": Size(4000, k=15)},
    ),
    Stage("ECE", "reading n k", expected_error, _entries(1), ROWS_BY_CLASSES),
    Stage("all calibration metrics", "passes over n k", all_metrics, _entries(2), ROWS_BY_CLASSES),
    Stage("RAPS, fit", "passes over n k", raps_fit, _entries(1), ROWS_BY_CLASSES),
    Stage(
        "RAPS, sets",
        "passes over n k, and 128 rows sorted",
        raps_sets,
        lambda s: Work(entries=2 * s.n * s.k + 3 * 128 * s.k * np.log2(s.k)),
        {"n": Size(16_000, k=200), "k": Size(6000, k=600)},  # NumPy sorts up to 512 entries in registers
    ),
    Stage("whole head, fit", "sum of its stages", head_fit, _head_work, HEAD),
    Stage(
        "whole head, predict",
        "2 n d² + 2 n d k + passes over n k",
        head_predict,
        _predict_work,
        PREDICT,
    ),
    Stage(
        "evaluate",
        "predict, and passes over n k",
        evaluation,
        _predict_work,
        {axis: size for axis, size in PREDICT.items() if axis != "d"},
    ),
)
