"""One method on labelled rows, reduced once to a number per row and metric; every table is read off these columns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atypicality import metrics
from atypicality.evaluation.methods import Answer
from atypicality.metrics.errors import classwise_interval
from atypicality.metrics.rows import Losses, read_all
from atypicality.metrics.sets import covered, sizes
from atypicality.recalibration import TemperatureScaling
from atypicality.validation import check_integer

__all__ = ["UNKNOWN", "Options", "Scored", "score"]

UNKNOWN = (np.nan, np.nan, np.nan)
"""Standard error, low and high of a value without an interval."""


@dataclass(frozen=True)
class Options:
    """How to cut and what to work out."""

    n_groups: int = 5
    grid: tuple[int, int] = (6, 6)
    n_bins: int = 10
    intervals: bool = True
    keep_samples: int = 0
    seed: int = 0
    temperature: Callable[[], TemperatureScaling] = TemperatureScaling
    """What is fitted to the groups of atypicality."""

    @classmethod
    def checked(cls, n_groups: Any, grid: Any, n_bins: Any, **others: Any) -> "Options":
        """Options from arguments, or an error that names the bad one."""
        if not isinstance(grid, (tuple, list)) or len(grid) != 2:
            raise ValueError(f"grid must be a pair, (atypicality groups, confidence groups); got {grid!r}.")
        cells = tuple(check_integer(size, "grid", low=1) for size in grid)
        groups, bins = check_integer(n_groups, "n_groups", low=1), check_integer(n_bins, "n_bins", low=1)
        return cls(groups, (cells[0], cells[1]), bins, **others)


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


def score(name: str, answer: Answer, labels: NDArray[np.intp], options: Options) -> Scored:
    """Read a method's probabilities and sets once."""
    probs, sets = answer.probs, answer.sets
    losses = read_all(probs, labels, options.n_bins)
    return Scored(
        name,
        losses,
        probs.argmax(axis=1),
        None if sets is None else sizes(sets),
        None if sets is None else covered(sets, labels),
        answer.alpha,
        answer.class_scores,
        probs.shape[1],
        {"classwise_ece": _classwise(probs, losses, options)} | _coverage_gaps(answer, labels),
    )


def _classwise(probs: NDArray[np.floating[Any]], losses: Losses, options: Options) -> tuple[float, ...]:
    """As `by_group` would, from what has been read already."""
    value = float(losses.class_bins.expected_error().mean())
    if not options.intervals:
        return value, *UNKNOWN
    (stream,) = np.random.default_rng(options.seed).spawn(1)
    return value, *classwise_interval(probs, losses, stream, level=0.95)


def _coverage_gaps(answer: Answer, labels: NDArray[np.intp]) -> dict[str, tuple[float, ...]]:
    if answer.sets is None or answer.alpha is None:
        return {}
    parts: tuple[Literal["class", "size"], ...] = ("class", "size")
    gaps = {by: metrics.coverage_gap(answer.sets, labels, answer.alpha, by=by) for by in parts}
    return {f"coverage_gap_{by}": (gap, *UNKNOWN) for by, gap in gaps.items()}
