"""Lives of a monitor without its head: rows of known distributions, counted and looked at after each of them."""

import numpy as np

from atypicality.head.reference import HeldOutCounts
from atypicality.monitoring.streams import ShareTests, make_streams

CLASSES = ("a", "b", "c", "d")
SHARES = (0.55, 0.3, 0.1, 0.05)
WINDOWS = 2
ALPHA = 0.01


def draw(rng, n, *, ties, shift=0.0):
    """Atypicality, confidence, predicted and true classes of n rows."""
    atypicality, confidence = rng.standard_normal(n) + shift, rng.beta(8, 2, n)
    if ties:
        atypicality, confidence = np.round(atypicality), np.round(confidence, 1)
    labels = rng.choice(4, n, p=SHARES)
    predicted = np.where(rng.random(n) < 0.85, labels, rng.integers(0, 4, n))
    return atypicality, confidence, predicted, labels


def share_tests(rng, n_reference, *, ties):
    atypicality, confidence, predicted, labels = draw(rng, n_reference, ties=ties)
    counts = HeldOutCounts.from_rows(confidence, predicted, labels, n_classes=4, atypicality=atypicality)
    return ShareTests(make_streams(counts, CLASSES, None, 0), ALPHA), counts


def largest_excess(made, rows):
    """Of evidence over what an alarm needs, at each look after one more row, from the start of each window."""
    (tests, reference), (atypicality, confidence, predicted, labels) = made, rows
    columns = {"class": predicted, "error": (predicted == labels).astype(int)}
    columns |= {
        "confidence": reference.confidence.cells(confidence),
        "atypicality": reference.atypicality.cells(atypicality),
    }
    cells = np.zeros((labels.size, tests.n_cells), np.int64)
    for stream, place in zip(tests.streams, tests.places, strict=True):
        cells[np.arange(labels.size), place.start + columns[stream.name]] = 1
    total, found = np.cumsum(cells, axis=0), []
    for window in range(WINDOWS):
        start = window * labels.size // WINDOWS
        since = total[start:] - (total[start - 1] if start else 0)
        excess = tests.excess(since).max(axis=(0, 2)) - np.log((window + 1) * (window + 2))
        found.append(np.r_[np.full(start, -np.inf), excess])
    return np.max(found, axis=0)


def false_alarm(n_reference, *, ties, looks=10_000):
    """One life without a change: whether there is ever an alarm."""

    def one_repetition(seed):
        rng = np.random.default_rng(seed)
        tests = share_tests(rng, n_reference, ties=ties)
        return bool(largest_excess(tests, draw(rng, looks, ties=ties)).max() >= 0)

    return one_repetition
