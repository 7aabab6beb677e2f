"""One method on labelled rows, reduced once to a number per row and metric; every table is read off these columns."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import metrics
from atypicality.evaluation.methods import Answer
from atypicality.metrics.errors import classwise_interval
from atypicality.metrics.rows import Losses, read_all
from atypicality.metrics.sets import covered, sizes

__all__ = ["Scored", "score"]


@dataclass(frozen=True)
class Scored:
    """What one method did on n rows.

    Attributes
    ----------
    name : str
    losses : Losses
        Confidence, correctness, negative log-likelihood and Brier score of every row, and class-wise bins.
    predicted : ndarray of shape (n,)
    sizes, covered : ndarray of shape (n,), or None without prediction sets
    alpha : float or None
    class_scores : ndarray of shape (k,) or None
    n_classes : int
    whole : dict of str to tuple of four floats
        Value, standard error, low and high of metrics that need whole matrices, and so are known for all rows only.
    """

    name: str
    losses: Losses
    predicted: NDArray[np.intp]
    sizes: NDArray[np.intp] | None
    covered: NDArray[np.bool_] | None
    alpha: float | None
    class_scores: NDArray[np.float64] | None
    n_classes: int
    whole: dict[str, tuple[float, ...]]

    def column(self, metric: str) -> NDArray[np.float64]:
        """The number per row whose mean is the metric."""
        columns = {
            "confidence": self.confidence,
            "nll": self.losses.nll,
            "brier": self.losses.brier,
            "set_size": self.sizes,
            "coverage": self.covered,
        }
        return np.asarray(columns[metric], np.float64)

    @property
    def confidence(self) -> NDArray[np.float64]:
        """Top probability of every row, at most 1."""
        return np.minimum(self.losses.pairs.confidence, 1.0)


def score(name: str, answer: Answer, labels: NDArray[np.intp], *, n_bins: int, intervals: bool, seed: int) -> Scored:
    """Read a method's probabilities and sets once."""
    probs, sets = answer.probs, answer.sets
    losses = read_all(probs, labels, n_bins)
    whole = _classwise(probs, losses, seed) if intervals else _classwise_value(losses)
    return Scored(
        name,
        losses,
        probs.argmax(axis=1),
        None if sets is None else sizes(sets),
        None if sets is None else covered(sets, labels),
        answer.alpha,
        answer.class_scores,
        probs.shape[1],
        whole | _coverage_gaps(answer, labels),
    )


def _classwise(probs: NDArray[np.floating[Any]], losses: Losses, seed: int) -> dict[str, tuple[float, ...]]:
    """As `by_group` would, from what has been read already."""
    (stream,) = np.random.default_rng(seed).spawn(1)
    value = float(losses.class_bins.expected_error().mean())
    return {"classwise_ece": (value, *classwise_interval(probs, losses, stream, level=0.95))}


def _classwise_value(losses: Losses) -> dict[str, tuple[float, ...]]:
    return {"classwise_ece": _bare(float(losses.class_bins.expected_error().mean()))}


def _coverage_gaps(answer: Answer, labels: NDArray[np.intp]) -> dict[str, tuple[float, ...]]:
    if answer.sets is None or answer.alpha is None:
        return {}
    return {
        "coverage_gap_class": _bare(metrics.coverage_gap(answer.sets, labels, answer.alpha, by="class")),
        "coverage_gap_size": _bare(metrics.coverage_gap(answer.sets, labels, answer.alpha, by="size")),
    }


def _bare(value: float) -> tuple[float, ...]:
    return value, np.nan, np.nan, np.nan
