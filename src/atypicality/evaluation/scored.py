"""One method on labelled rows, reduced once to a number per row and metric; every table is read off these columns."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks, metrics
from atypicality.evaluation.methods import Answer
from atypicality.formula import CHOOSE, advice, longest_choice
from atypicality.head.advice import choices, right_if_followed
from atypicality.metrics.errors import classwise_interval
from atypicality.metrics.rows import Losses, Pairs, read_all
from atypicality.metrics.sets import covered, sizes
from atypicality.recalibration import TemperatureScaling
from atypicality.validation import check_integer

__all__ = ["UNKNOWN", "Options", "Scored", "score"]

LISTED = 10  # members of a set that are kept of every sample
UNKNOWN = (np.nan, np.nan, np.nan)  # standard error, low and high of a value without an interval


@dataclass(frozen=True)
class Options:
    """How to cut and what to work out."""

    n_groups: int = 5
    grid: tuple[int, int] = (6, 6)
    n_bins: int = 10
    intervals: bool = True
    keep_samples: int = 0
    seed: int = 0
    temperature: Callable[[], TemperatureScaling] = TemperatureScaling  # what is fitted to the groups of atypicality

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
    """What one method did on n rows; None stands for what it does not have."""

    name: str
    losses: Losses
    predicted: NDArray[np.intp]
    sizes: NDArray[np.intp] | None
    covered: NDArray[np.bool_] | None
    alpha: float | None
    class_scores: NDArray[np.float64] | None  # (k,)
    n_classes: int
    whole: dict[str, tuple[float, ...]]  # value, error, low and high of metrics of whole matrices, for all rows only
    advice: NDArray[np.intp] | None = None  # numbers in the order of `formula.ADVICE`
    members: NDArray[np.int32] | None = None  # (n, 10): see `_members`
    listed: NDArray[np.bool_] | None = None  # see `_listed`
    accepted: NDArray[np.bool_] | None = None
    guaranteed: float | None = None

    def column(self, metric: str) -> NDArray[np.float64]:
        """The number per row whose mean is the metric."""
        columns = {
            "confidence": self.confidence,
            "nll": self.losses.nll,
            "brier": self.losses.brier,
            "set_size": self.sizes,
            "coverage": self.covered,
            "followed": self._followed(),
        }
        return np.asarray(columns[metric], np.float64)

    def _followed(self) -> NDArray[np.bool_] | None:
        """Whether the advice of every row was right."""
        correct = self.losses.pairs.correct
        if self.advice is None:
            return None
        return right_if_followed(self.advice, correct, correct if self.listed is None else self.listed)

    def advised(self, atypical: NDArray[np.bool_] | None) -> "Scored":
        """The same with the advice that follows from confidence, sets and who is atypical, unless there is one."""
        if self.advice is not None:
            return self
        longest = longest_choice(self.n_classes)
        found = advice(np, self.confidence, self.trusted, atypical=atypical, size=self.sizes, longest=longest)
        return replace(self, advice=found)

    @property
    def trusted(self) -> float:
        """The confidence that an advice to trust needs: 1 - alpha, or 0.9 of a method without sets."""
        return 0.9 if self.alpha is None else 1 - self.alpha

    @property
    def confidence(self) -> NDArray[np.float64]:
        """Top probability of every row, at most 1."""
        return np.minimum(self.losses.pairs.confidence, 1.0)


def score(name: str, answer: Answer, labels: NDArray[np.intp], options: Options) -> Scored:
    """Read a method's probabilities and sets once."""
    probs, sets = answer.probs, answer.sets
    losses = read_all(probs, labels, options.n_bins)
    predicted = probs.argmax(axis=1)
    if answer.predicted is not None and (answer.predicted != predicted).any():
        predicted = answer.predicted
        chance = probs[np.arange(labels.size), predicted].astype(np.float64)
        losses = replace(losses, pairs=Pairs(chance, predicted == labels, losses.pairs.dtype))
    return Scored(
        name,
        losses,
        predicted,
        None if sets is None else sizes(sets),
        None if sets is None else covered(sets, labels),
        answer.alpha,
        answer.class_scores,
        probs.shape[1],
        {"classwise_ece": _classwise(probs, losses, options)} | _coverage_gaps(answer, labels),
        answer.advice,
        None if sets is None or not options.keep_samples else _members(probs, sets),
        None if sets is None else _listed(probs, sets, labels),
        answer.accepted,
        answer.guaranteed,
    )


def _listed(probs: NDArray[Any], sets: NDArray[np.bool_], labels: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether a choice would hold the label (n,): a set, or the runner-up where it holds one class."""
    found = covered(sets, labels).astype(bool)
    missed = np.flatnonzero(~found)
    some = choices(np.full(missed.size, CHOOSE), probs[missed], sets[missed])
    found[missed] = some[np.arange(missed.size), labels[missed]]
    return found


def _members(probs: NDArray[np.floating[Any]], sets: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Classes in each set (n, 10), the most probable first, then the runner-up of one alone, and -1 behind the last."""
    found = np.full((len(sets), LISTED), -1, np.int32)

    def fill(rows: slice) -> None:
        inside = np.where(sets[rows], probs[rows], -1.0)
        width = min(LISTED, inside.shape[1])
        best = np.argpartition(-inside, width - 1, axis=1)[:, :width]
        values = np.take_along_axis(inside, best, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        best, values = (np.take_along_axis(part, order, axis=1) for part in (best, values))
        found[rows, :width] = np.where(values < 0, -1, best)
        alone = np.flatnonzero(np.count_nonzero(sets[rows], axis=1) == 1)
        found[rows][alone, 1] = np.where(inside[alone] < 0, probs[rows][alone], -1.0).argmax(axis=1)

    blocks.for_rows(fill, len(sets), block=blocks.block_rows(16 * sets.shape[1]))
    return found


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
