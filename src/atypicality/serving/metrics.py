"""What a service counts, for Prometheus: requests, rows, what was said of them, reloads and what waits."""

from collections.abc import Callable
from functools import partial

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from atypicality.head.reliability import Reliability

__all__ = ["Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
WORDS = ("quadrant", "advice", "accepted")
TENTHS = [f"{low / 10:.1f}" for low in range(10)]


class Metrics:
    """Counters of one service, in a registry of their own."""

    def __init__(self, waiting: Callable[[], float]) -> None:
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
        for tenth in TENTHS:  # a series that begins at its first row has no rate there
            self._quantiles.labels(tenth)
        self._reloads = counter("atypicality_reloads", "Bundles read anew.", ["result"])
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

    def serving(self, name: str, version: str) -> None:
        """Say which head answers."""
        self._model.info({"name": name, "version": version})

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return bytes(generate_latest(self._registry))
