"""What is measured on a device: each stage with its work, its target, and how far its answer lies from the CPU's."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from sklearn.base import clone

import atypicality as aty
from atypicality import metrics
from atypicality.arrays import to_host
from atypicality.head.parts import call_with_known
from benchmarks.gpu_data import Embeddings, Outputs, Size, embeddings, outputs
from benchmarks.gpu_library import best_seconds

__all__ = ["Agreement", "Stage", "stages"]

ALPHA, NEIGHBOURS, CERTIFICATE = 0.1, 5, 1e-8
CHECKED_ROWS, CHECKED_QUERIES = 20_000, 16
"""Rows of the comparison with the CPU where the whole would take it minutes."""


@dataclass(frozen=True)
class Agreement:
    """What was compared, how far it was off, and how far it may be."""

    what: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        """Whether the difference keeps its limit."""
        return bool(self.value <= self.limit)


@dataclass(frozen=True)
class Stage:
    """One measured call; `work` is operations, or bytes for the rate "copy", that it cannot avoid."""

    name: str
    size: str
    run: Callable[[], Any]
    work: Callable[[Any], float]
    rate: str
    agree: Callable[[Any], Agreement]
    target: float | None = None


def stages(lib: Any, size: Size) -> Iterator[Stage]:
    """All stages in order; data are made when they are first needed and let go when they no longer are."""
    data = embeddings(lib, size)
    yield from gaussian_stages(lib, data, size)
    yield from neighbour_stages(lib, data, size)
    yield from head_stages(lib, data, size)
    del data
    lib.free()
    yield from recalibration_stages(outputs(lib, size.calibration, size.classes, 2))
    halves = [outputs(lib, size.calibration, size.classes, seed) for seed in (3, 4)]
    yield from set_stages(*halves)
    del halves
    yield from metric_stages(outputs(lib, size.queries, size.classes, 5))


def gaussian_stages(lib: Any, data: Embeddings, size: Size) -> Iterator[Stage]:
    """Fit in both precisions, and the scores of the queries by what was fitted in the call that does not count."""
    n, d, k = size.train, size.features, size.classes
    rows = min(CHECKED_ROWS, n)
    part = Embeddings(data.train[:rows, :], data.labels[:rows], None)
    truth = cache(lambda: _few_rows("float64", to_host(part.train), to_host(part.labels)))
    for precision, rate in (("float64", "fp64"), ("float32", "fp32")):
        yield Stage(
            f"Gaussian fit, {precision}",
            f"{n:,} x {d}, {k} classes",
            lambda precision=precision: _gaussian(precision).fit(data.train, data.labels),
            lambda _: 2.0 * n * d * d,
            rate,
            lambda _, precision=precision: _covariances(part, precision, truth),
            target=0.35,
        )
    fitted = cache(lambda: _gaussian("float64").fit(data.train, data.labels))
    yield Stage(
        "Gaussian score, float64",
        f"{size.queries:,} x {d}, {k} classes",
        lambda: fitted().atypicality(data.queries),
        lambda _: 2.0 * size.queries * d * (d + k),
        "fp64",
        lambda found: _scores(found, lambda: fitted().atypicality(to_host(data.queries[:2000, :]))),
    )


def neighbour_stages(lib: Any, data: Embeddings, size: Size) -> Iterator[Stage]:
    """Exact neighbours: the work is one product of all queries with all training rows, as coarse as there is."""
    fitted = cache(lambda: aty.NeighborAtypicality(NEIGHBOURS).fit(data.train))
    yield Stage(
        "exact neighbours",
        f"{size.queries:,} against {size.train:,} x {size.features}",
        lambda: fitted().atypicality(data.queries),
        lambda _: 2.0 * size.queries * size.train * size.features,
        "half" if lib.half_product else "fp32",
        lambda found: _neighbours(lib, data, found),
        target=1.5,
    )


def head_stages(lib: Any, data: Embeddings, size: Size) -> Iterator[Stage]:
    """A head end to end: the fit with its density, and answers whose least work is two products and a softmax."""
    n, d, k, held_out = size.queries, size.features, size.classes, size.queries // 2
    answers = outputs(lib, n, k, 6)
    train = aty.ModelOutputs(embeddings=data.train, labels=to_host(data.labels))
    rows = aty.ModelOutputs(answers.logits, embeddings=data.queries, labels=to_host(answers.labels))
    fitted = cache(lambda: _head(train, rows[:held_out]))
    yield Stage(
        "head fit",
        f"{size.train:,} x {d} training rows, {held_out:,} x {k} held-out rows",
        lambda: _head(train, rows[:held_out]),
        lambda _: 2.0 * size.train * d * d,
        "fp64",
        lambda found: _answers(found, rows[:2000]),
    )
    bare = best_seconds(lib, lambda: _bare(lib, fitted(), data.queries, answers.logits))[1]
    yield Stage(
        "head predict",
        f"{n:,} x {k} with {d} columns; bare products and softmax {bare:.3g} s",
        lambda: _predicted(fitted(), rows),
        lambda _: 2.0 * n * d * (d + k),
        "fp64",
        lambda _: _answers(fitted(), rows[:2000]),
        target=3 * bare,
    )


def _head(train: Any, calibration: Any) -> aty.ReliabilityHead:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # logits and embeddings of different rows know nothing of each other
        return aty.ReliabilityHead().fit(train=train, calibration=calibration)


def _predicted(head: aty.ReliabilityHead, rows: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return head.predict(rows)


def _bare(lib: Any, head: aty.ReliabilityHead, embeddings: Any, logits: Any) -> Any:
    """The two products of the density and a softmax, all rows at once, with nothing around them."""
    xp, density = lib.xp, head.recalibration_density_ or head.density_  # the Gaussian
    formula = density.formula()
    centre, whitening, targets = (
        lib.xp.asarray(part, device=lib.device) for part in (formula.centre, formula.whitening, formula.targets)
    )
    scores = ((embeddings - centre) @ whitening) @ targets
    exponentials = xp.exp(logits - xp.max(logits, axis=1, keepdims=True))
    return scores, exponentials / xp.sum(exponentials, axis=1, keepdims=True)


def _answers(head: aty.ReliabilityHead, rows: Any) -> Agreement:
    """Entries of the sets that differ from those of the CPU, and how far probabilities are apart."""
    there = _predicted(head, rows).on_host()
    here = _predicted(head, aty.ModelOutputs(to_host(rows.logits), embeddings=to_host(rows.embeddings)))
    differing = int((there.prediction_set != here.prediction_set).sum())
    apart = float(np.abs(there.proba - here.proba).max())
    return Agreement(f"entries of {len(rows):,} sets that differ; probabilities are {apart:.1e} apart", differing, 0.0)


def recalibration_stages(data: Outputs) -> Iterator[Stage]:
    """Temperature, the paper's AAR and the default: each iteration cannot avoid reading the logits once."""
    n, k = data.logits.shape
    makers: dict[str, tuple[Callable[[], Any], int, float | None]] = {
        "temperature scaling fit": (aty.TemperatureScaling, n, None),
        "paper AAR fit": (aty.AtypicalityAwareRecalibration.paper, n, 0.1),
        "default AAR fit": (aty.AtypicalityAwareRecalibration, min(n, 4000), None),
    }
    for name, (make, checked, target) in makers.items():
        yield Stage(
            name,
            f"{n:,} x {k}",
            lambda make=make: _recalibrated(make, data, n),
            lambda found: 4.0 * n * k * getattr(found, "n_iter_", 1),
            "copy",
            lambda found, make=make, checked=checked: _probabilities(make, data, found, checked),
            target,
        )


def set_stages(calibration: Outputs, test: Outputs) -> Iterator[Stage]:
    """RAPS with tuning, and conditional sets: the work is to read both halves once and to write the sets."""
    n, k = test.probs.shape
    methods = {
        "RAPS": aty.SplitConformal("raps", ALPHA),
        "conditional": aty.ConditionalConformal(ALPHA),
        "conditional, class rarity": aty.ConditionalConformal(ALPHA, groups="class rarity"),
    }
    for name, method in methods.items():
        yield Stage(
            f"{name} fit and sets",
            f"{n:,} + {n:,} x {k}",
            lambda method=method: _fitted_sets(method, calibration, test),
            lambda _: 9.0 * n * k,
            "copy",
            lambda found, method=method: _sets(method, calibration, test, *found),
        )


def metric_stages(data: Outputs) -> Iterator[Stage]:
    """All calibration metrics from one call: the work is to read the probabilities once."""
    n, k = data.probs.shape
    yield Stage(
        "all calibration metrics",
        f"{n:,} x {k}",
        lambda: metrics.summary(data.probs, data.labels, n_bins=15),
        lambda _: 4.0 * n * k,
        "copy",
        lambda found: _metrics(data, found),
    )


def _gaussian(precision: str) -> aty.GaussianAtypicality:
    return aty.GaussianAtypicality(precision=precision)


def _covariances(part: Embeddings, precision: str, truth: Callable[[], np.ndarray]) -> Agreement:
    """Both machines fit the same part of the rows: the covariance of float64 products on the CPU is the truth."""
    here = _few_rows(precision, part.train, part.labels)
    limit = 1e-12 if precision == "float64" else 1e-5
    return Agreement(f"covariance of {part.labels.shape[0]:,} rows", _relative(here, truth()), limit)


def _few_rows(precision: str, train: Any, labels: Any) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer rows than the whole may have a lower rank
        return _gaussian(precision).fit(train, labels).covariance_


def _scores(found: Any, on_the_cpu: Callable[[], Any]) -> Agreement:
    truth = on_the_cpu()
    return Agreement(f"scores of {truth.size:,} rows", _relative(to_host(found[: truth.size]), truth), 1e-9)


def _neighbours(lib: Any, data: Embeddings, found: Any) -> Agreement:
    """Distances of a few queries to every training row, by differences in float64."""
    xp, worst = lib.xp, 0.0
    chosen = np.linspace(0, data.queries.shape[0] - 1, CHECKED_QUERIES).astype(int).tolist()
    for query in chosen:
        row, squares = xp.astype(data.queries[query, :], xp.float64), []
        for start in range(0, data.train.shape[0], 1 << 17):
            part = data.train[start : min(start + (1 << 17), data.train.shape[0]), :]
            squares.append(xp.sum((xp.astype(part, xp.float64) - row) ** 2, axis=1))
        nearest = xp.sort(xp.concat(squares))[:NEIGHBOURS]
        worst = max(worst, _relative(float(found[query]), np.sqrt(to_host(nearest)).mean()))
    return Agreement(f"direct float64 distances of {len(chosen)} queries", worst, 1e-9)


def _recalibrated(make: Callable[[], Any], data: Outputs, n: int, *, host: bool = False) -> Any:
    arrays = [data.logits[:n, :], data.labels[:n], data.atypicality[:n]]
    logits, labels, rarity = (to_host(array) for array in arrays) if host else arrays
    return make().fit(logits, labels, atypicality=rarity)


def _probabilities(make: Callable[[], Any], data: Outputs, found: Any, checked: int) -> Agreement:
    """Probabilities of the same fit on the CPU, by the mean over its rows of the sum of absolute differences.

    Both fits end at most `CERTIFICATE` above the least loss. That excess is the mean divergence from the best
    probabilities, so by Pinsker's inequality each lies within sqrt(2 CERTIFICATE) of them.
    """
    if checked < data.logits.shape[0]:
        found = _recalibrated(make, data, checked)
    cpu = _recalibrated(make, data, checked, host=True)
    rows, rarity = to_host(data.logits[:checked, :]), to_host(data.atypicality[:checked])
    ours, theirs = (fitted.predict_proba(rows, atypicality=rarity) for fitted in (found, cpu))
    difference = float(np.abs(ours - theirs).sum(axis=1, dtype=np.float64).mean())
    return Agreement(f"probabilities after a fit on {checked:,} rows", difference, 2 * (2 * CERTIFICATE) ** 0.5)


def _fitted_sets(method: Any, calibration: Outputs, test: Outputs, convert: Callable[[Any], Any] = lambda a: a) -> Any:
    """A fitted method and its sets, from the arrays as they are or converted."""
    shares = np.arange(1.0, calibration.probs.shape[1] + 1)
    offered = {"atypicality": convert(calibration.atypicality), "class_share": shares}
    fitted = call_with_known(clone(method).fit, convert(calibration.probs), convert(calibration.labels), **offered)
    own = {"atypicality": convert(test.atypicality)}
    return fitted, call_with_known(fitted.predict_set, convert(test.probs), **own)


def _sets(method: Any, calibration: Outputs, test: Outputs, fitted: Any, sets: Any) -> Agreement:
    cpu, expected = _fitted_sets(method, calibration, test, to_host)
    differing = int((expected != to_host(sets)).sum())
    what = f"entries of the sets that differ, of {sets.shape[0] * sets.shape[1]:,}; thresholds"
    return Agreement(f"{what} {'equal' if _thresholds(cpu) == _thresholds(fitted) else 'differ'}", differing, 0.0)


def _thresholds(fitted: Any) -> list[float]:
    return np.ravel(fitted.threshold_ if hasattr(fitted, "threshold_") else fitted.thresholds_).tolist()


def _metrics(data: Outputs, found: dict[str, float]) -> Agreement:
    cpu = metrics.summary(to_host(data.probs), to_host(data.labels), n_bins=15)
    worst = max(_relative(found[name], cpu[name]) for name in cpu)
    return Agreement(f"{len(cpu)} metrics", worst, 1e-9)  # the root of smooth_ece is found to 1e-9


def _relative(value: Any, truth: Any) -> float:
    """Largest difference over the largest magnitude."""
    return float(np.abs(np.asarray(value) - truth).max() / np.abs(truth).max())
