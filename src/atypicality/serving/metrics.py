"""What a service counts, for Prometheus: requests, rows, what was said of them, reloads and what waits."""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from atypicality.formula import ADVICE, CHOOSE, advice_texts, longest_choice
from atypicality.groups import QUADRANTS
from atypicality.head.reliability import Reliability

__all__ = ["Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
WORDS = ("quadrant", "advice", "accepted")
TENTHS = [f"{low / 10:.1f}" for low in range(10)]
RELOADS = ("done", "failed")
STATUSES = (200, 400, 408, 413, 415, 429, 499, 500, 503)
"""How a request for rows may end; 499 is that of a client that went away."""


class Metrics:
    """Counters of one service, in a registry of their own.

    Every series that can be foreseen is there from the start, at 0: one that begins at 1 has no increase there, and an
    alert on it misses the first event. `routes` are those that take rows.
    """

    def __init__(self, waiting: Callable[[], float], routes: Iterable[str] = ()) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter = partial(Counter, registry=registry)
        self._requests = counter("atypicality_requests", "Requests by route and status.", ["route", "status"])
        self._seconds = Histogram(
            "atypicality_request_seconds", "Time to an answer.", ["route"], registry=registry, buckets=SECONDS
        )
        self._rows = counter("atypicality_rows", "Rows that were answered.")
        expected = "Sum of their recalibrated confidence: over rows, the accuracy to expect."
        self._confidence = counter("atypicality_confidence", expected)
        self._words = counter("atypicality_rows_by", "Rows by what was said of them.", ["field", "value"])
        tenths = "Rows by tenth of the held-out rows' atypicality; without drift, equal."
        self._quantiles = counter("atypicality_rows_by_quantile", tenths, ["tenth"])
        for tenth in TENTHS:
            self._quantiles.labels(tenth)
        self._reloads = counter("atypicality_reloads", "Bundles read anew.", ["result"])
        for result in RELOADS:
            self._reloads.labels(result)
        for route in routes:
            self._seconds.labels(route)
            for status in STATUSES:
                self._requests.labels(route, str(status))
        self._model = Info("atypicality_model", "The head that answers.", registry=registry)
        Gauge("atypicality_waiting_rows", "Rows that wait.", registry=registry).set_function(waiting)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def answer(self, answer: Reliability) -> None:
        """Count rows, and what was said of them."""
        self._rows.inc(len(answer))
        self._confidence.inc(float(np.sum(answer.confidence)))
        for field in WORDS:
            if (column := getattr(answer, field, None)) is not None:
                for value, count in zip(*np.unique(column, return_counts=True), strict=True):
                    self._words.labels(field, str(value).lower()).inc(int(count))
        if answer.atypicality_quantile is not None:
            tenths = np.minimum((10 * np.asarray(answer.atypicality_quantile)).astype(int), 9)
            for tenth in np.unique(tenths).tolist():
                self._quantiles.labels(TENTHS[tenth]).inc(int((tenths == tenth).sum()))

    def reloaded(self, result: str) -> None:
        """Count one look at a new bundle."""
        self._reloads.labels(result).inc()

    def serving(self, name: str, version: str, sample: Reliability) -> None:
        """Say which head answers, and with which words; `sample` is an answer of it."""
        self._model.info({"name": name, "version": version})
        for field, words in _words(sample.proba.shape[1]).items():
            if getattr(sample, field, None) is not None:
                for value in words:
                    self._words.labels(field, value)

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return bytes(generate_latest(self._registry))


def _words(n_classes: int) -> dict[str, list[str]]:
    """What a head of so many classes may say of a row, by field of `WORDS`."""
    sizes = range(2, longest_choice(n_classes) + 1)
    advice = [*ADVICE[:CHOOSE], *advice_texts([CHOOSE] * len(sizes), list(sizes)).tolist(), *ADVICE[CHOOSE + 1 :]]
    return {"quadrant": list(QUADRANTS), "advice": advice, "accepted": ["false", "true"]}
