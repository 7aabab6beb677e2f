"""Scores of labels, larger = less conforming, and the sets of all labels whose score stays within a threshold.

Every score is a function of what stands at or above a label in its row: the rank o(y), the number of classes j with
p_j >= p_y, and the mass above and tied with p_y. Ties are symmetric: classes with equal probability have equal scores.

Two things make this exact. Masses are sums of probabilities rounded to multiples of 2^-52, which float64 adds
without error in any order: the score of a known label in `fit` and the one found along a sorted row in prediction are
equal to the last bit, and no comparison needs a tolerance. And scores never fall along a row sorted by probability,
so that a set is everything above the first rejected probability: no label is ever ranked by its index.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import BLOCK_BYTES, namespace, on_device, to_device, to_host
from atypicality.conformal import device_scores
from atypicality.formula import GridSets, ScoreRule, moved, scores_along
from atypicality.formula.rows import row_maxima
from atypicality.formula.sets import exact
from atypicality.validation import FloatArray, check_choice, check_integer, check_number

__all__ = [
    "LabelStatistics", "ScoreRule", "Selection", "checked_score", "confidences", "grid_sets", "label_scores",
    "label_statistics", "prediction_sets", "total_sizes",
]  # fmt: skip

Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]

SCORES = ("lac", "aps", "raps", "saps")
NONEMPTY = ("score", "after", None)
PILOT_ROWS = 128
"""Rows that are sorted in full to learn how small a probability can still matter."""
DEEPER = 4
"""How many times as many of its largest entries a row gets that needs more than most rows, again and again."""
NARROW = 64
"""Up to this many classes a full sort of a row is as quick as a selection."""


def checked_score(score: Any, *, nonempty: Any, k_reg: Any, penalty: Any, randomized: Any) -> ScoreRule:
    """A rule from a user's options; None stands for a parameter that is left to tuning, or does not exist."""
    name = check_choice(score, "score", SCORES)
    check_choice(randomized, "randomized", (False, True))
    if randomized and name == "lac":
        raise ValueError("randomized must be False for score='lac', which has nothing to randomise; got True.")
    _refuse_unused(name, "k_reg", k_reg, ("raps",))
    _refuse_unused(name, "penalty", penalty, ("raps", "saps"))
    return ScoreRule(
        name,
        check_choice(nonempty, "nonempty", NONEMPTY),
        None if isinstance(k_reg, str) else check_integer(k_reg, "k_reg", low=0),
        None if isinstance(penalty, str) else check_number(penalty, "penalty", low=0),
    )


Candidate = tuple[ScoreRule, Doubles]


@dataclass(frozen=True)
class LabelStatistics:
    """What the scores of the true labels depend on, each of shape (n,): no parameter of a score enters here."""

    prob: Doubles
    top: Doubles
    above: Doubles
    tied: Doubles
    rank: NDArray[np.intp]

    def take(self, rows: NDArray[np.intp]) -> Self:
        """The statistics of some rows."""
        return type(self)(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def confidences(probs: Any) -> Doubles:
    """Top probabilities (n,), at most 1: rounding may have put them a little above.

    >>> confidences(np.array([[0.25, 0.75], [1.0 + 1e-15, 0.0]]))
    array([0.75, 1.  ])
    """
    if on_device(probs):
        return np.minimum(to_host(namespace(probs).max(probs, axis=1)).astype(np.float64), 1.0)
    top = np.empty(len(probs))

    def one_block(rows: slice) -> None:
        np.minimum(probs[rows].max(axis=1), 1.0, out=top[rows])

    blocks.for_rows(one_block, len(probs), block=_block(probs), work=blocks.LIGHT)
    return top


def label_statistics(probs: Any, labels: NDArray[np.intp]) -> LabelStatistics:
    """Rank, masses and probabilities of the labels: one comparison per entry, no sort.

    >>> found = label_statistics(np.array([[0.5, 0.25, 0.25]]), np.array([1]))
    >>> found.rank.tolist(), found.above.tolist(), found.tied.tolist()
    ([3], [0.5], [0.5])
    """
    if on_device(probs):
        return LabelStatistics(*device_scores.label_columns(probs, labels))
    n, k = probs.shape
    found = LabelStatistics(np.empty(n), np.empty(n), np.empty(n), np.empty(n), np.empty(n, np.intp))

    def one_block(rows: slice) -> None:
        block, size = np.asarray(probs[rows]), rows.stop - rows.start
        own = block[np.arange(size), labels[rows]]
        which, column = np.divmod(np.flatnonzero(block >= own[:, None]), k)
        values = block[which, column]
        found.prob[rows], found.top[rows] = own, block.max(axis=1)
        found.rank[rows] = np.bincount(which, minlength=size)
        found.tied[rows] = np.bincount(which[values == own[which]], minlength=size) * exact(np, own)
        found.above[rows] = np.bincount(which, exact(np, values), size) - found.tied[rows]

    blocks.for_rows(one_block, n, block=_block(probs), work=blocks.LIGHT, columns=k)
    return found


def label_scores(found: LabelStatistics, rule: ScoreRule, draws: Any = 1.0) -> Doubles:
    """Scores (n,) of the labels behind `found`; `draws` (n,) lie in [0, 1), or are 1 for a deterministic score.

    >>> found = label_statistics(np.array([[0.5, 0.375, 0.125]]), np.array([1]))
    >>> label_scores(found, ScoreRule("raps", k_reg=1, penalty=0.1)).tolist()
    [0.975]
    """
    if rule.name == "lac":
        scores = 1.0 - found.prob
    else:
        own = exact(np, found.prob) if rule.crossing else found.tied
        scores = rule.values(np, found.above + found.tied - own, own, found.rank, found.top, draws)
    return np.where(found.prob == found.top, 0.0, scores) if rule.nonempty == "score" else scores


def prediction_sets(probs: Any, thresholds: Doubles, rule: ScoreRule, draws: Any = 1.0) -> Any:
    """All labels whose score is at most their row's threshold: bool (n, k), on the device of the probabilities.

    >>> rule = ScoreRule("aps", nonempty=None)
    >>> prediction_sets(np.array([[0.5, 0.375, 0.125]] * 2), np.array([0.875, 0.4]), rule)
    array([[ True,  True, False],
           [False, False, False]])
    """
    if on_device(probs):
        return device_scores.prediction_sets(probs, thresholds, rule, draws)
    sets = blocks.empty(probs.shape, np.bool_)
    accept = _accepter(probs, [(rule, thresholds)], draws)

    def one_block(rows: slice) -> None:
        np.copyto(sets[rows], next(accept(rows)))

    blocks.for_rows(one_block, len(probs), block=_block(probs), work=blocks.LIGHT, columns=probs.shape[1])
    return sets


def grid_sets(sets: GridSets, probs: Any, atypicality: Doubles, draws: Any = None, row_starts: Any = None) -> Any:
    """The sets of checked rows by their formula, block by block: bool (n, k), on the device of the probabilities.

    `atypicality` is (n,), as are `draws` and the starts of each row's tables where the formula has them.

    >>> sets = GridSets(ScoreRule("lac", None), np.array([0.4, 0.7]), np.arange(1.0, 4.0), np.array([1.0]), np.empty(0))
    >>> grid_sets(sets, np.array([[0.625, 0.375, 0.0]] * 2), np.array([0.0, 2.0]))
    array([[ True, False, False],
           [ True,  True, False]])
    """
    xp, host, columns = namespace(probs), isinstance(probs, np.ndarray), [atypicality, draws, row_starts]
    if not host:
        sets = moved(sets, lambda array: to_device(array, probs))
        columns = [None if column is None else to_device(column, probs) for column in columns]

    def one_block(rows: slice) -> list[tuple[Any]]:
        block = np.asarray(probs[rows]) if host else probs[rows, :]
        top = row_maxima(xp, block)
        wide = xp.astype(top, xp.float64)
        own = [None if column is None else column[rows, None] for column in columns]
        return [(sets(xp, block, xp.where(wide < 1.0, wide, 1.0), own[0], own[1], own[2], top),)]

    height = _block(probs) if host else blocks.block_rows(8 * probs.shape[1], budget=BLOCK_BYTES)
    return blocks.compute(one_block, probs.shape[0], block=height, host=host, columns=probs.shape[1])[0]


def total_sizes(probs: Any, candidates: Sequence[Candidate], draws: Any = 1.0) -> NDArray[np.intp]:
    """Sum of the sizes of all sets, for each of several rules with their thresholds (n,): one selection serves all.

    >>> probs, thresholds = np.array([[0.5, 0.375, 0.125]] * 2), np.array([0.875, 0.4])
    >>> total_sizes(probs, [(ScoreRule("aps", None), thresholds), (ScoreRule("aps", "after"), thresholds)])
    array([2, 3])
    """
    if on_device(probs):
        return device_scores.total_sizes(probs, candidates, draws)
    accept = _accepter(probs, candidates, draws)
    return blocks.reduce_rows(
        lambda rows: np.array([np.count_nonzero(accepted) for accepted in accept(rows)]),
        len(probs),
        block=_block(probs),
        columns=probs.shape[1],
    )


def _accepter(probs: FloatArray, candidates: Sequence[Candidate], draws: Any) -> Callable[[slice], Iterator[Bools]]:
    """A function of a block of rows that yields the sets of each candidate."""
    draws = np.broadcast_to(np.asarray(draws, np.float64), (len(probs),))
    depths = _pilot_depths(probs, candidates, draws)

    def accept(rows: slice) -> Iterator[Bools]:
        block = np.asarray(probs[rows])
        ordered = _largest(block, max(depths))
        for (rule, thresholds), depth in zip(candidates, depths, strict=True):
            if rule.name == "lac":
                yield _accepted_by_lac(block, thresholds[rows, None], rule)
            else:
                rejected = _first_rejected(block, ordered[:, :depth], thresholds[rows], rule, draws[rows])
                yield block > rejected[:, None]

    return accept


class Selection:
    """The sets of a `formula.GridSets` for blocks of NumPy rows, by a selection of the largest entries.

    The same sets in a third of the time at 1000 classes. How many entries are selected is learnt from the first block;
    a row that needs more of them gets four times as many, until they are enough. Scores that need no sort are one
    comparison.
    """

    def __init__(self, sets: GridSets) -> None:
        self.sets, self.depth = sets, 0

    @classmethod
    def of(cls, sets: Any, n_classes: int) -> Self | None:
        """Where a selection is quicker than the formula itself: many classes, which have no thresholds of their own."""
        narrow = n_classes <= NARROW or not isinstance(sets, GridSets)
        return None if narrow or sets.class_groups is not None else cls(sets)

    def __call__(
        self, xp: Any, probs: FloatArray, confidence: Doubles, atypicality: Any, draws: Any = None, top: Any = None
    ) -> Bools:
        """Sets, bool (n, k), of one block of rows."""
        rule, (n, k) = self.sets.rule, probs.shape
        if not n:
            return np.asarray(self.sets(xp, probs, confidence, atypicality, draws))
        found = self.sets.row_thresholds(xp, confidence, atypicality, draws)
        if rule.name == "lac":
            return _accepted_by_lac(probs, np.reshape(found, (-1, 1)), rule, top)
        thresholds = np.broadcast_to(found, (n, 1))[:, 0]
        drawn = np.ones(n) if draws is None else draws[:, 0]
        if not self.depth:
            within = _scores_along(_largest(probs, k), rule, drawn) <= thresholds[:, None]
            self.depth = _usual_depth(within.sum(axis=1), k)
        rejected = _first_rejected(probs, _largest(probs, self.depth), thresholds, rule, drawn)
        return np.asarray(probs > rejected[:, None])


def _usual_depth(within: NDArray[np.intp], k: int) -> int:
    """How many of the largest entries decide nearly every row. It says what is sorted, never how it comes out."""
    return min(k, 1 + int(np.quantile(within, 0.95, method="higher")))


def _block(probs: FloatArray) -> int:
    return blocks.block_rows(probs.shape[1] * probs.itemsize)


def _accepted_by_lac(block: FloatArray, thresholds: Doubles, rule: ScoreRule, top: Any = None) -> Bools:
    """Labels whose probability is at least one less the threshold (n, 1); with the largest entries (n, 1), if known."""
    least = _least_accepted(thresholds, block.dtype)
    if rule.nonempty is not None:
        top = row_maxima(np, block) if top is None else top
    if least is not None:
        return block >= (least if rule.nonempty is None else np.minimum(least, top))
    accepted = 1.0 - block.astype(np.float64) <= thresholds
    return accepted if rule.nonempty is None else accepted | (block == top)


def _least_accepted(thresholds: Doubles, dtype: np.dtype[Any]) -> FloatArray | None:
    """The smallest float32 number p with ``1 - p <= threshold`` in float64; None where p may be of another type.

    Differences from 1 of float32 numbers above 2^-29 are exact, so that the rounded ``1 - threshold`` or one of its
    neighbours is that number; None also where a threshold is so near to 1 that smaller ones count.
    """
    exactly = 1.0 - thresholds
    if dtype != np.float32 or ((exactly > 0) & (exactly < 2.0**-28)).any():
        return None
    near = exactly.astype(np.float32)
    below = np.nextafter(near, np.float32(-np.inf))
    fits, still = (1.0 - one.astype(np.float64) <= thresholds for one in (near, below))
    above = np.nextafter(near, np.float32(np.inf))
    return np.where(still, below, np.where(fits, near, above))


def _pilot_depths(probs: FloatArray, candidates: Sequence[Candidate], draws: Doubles) -> list[int]:
    """As `_usual_depth`, of some of the rows, which are sorted once for all candidates.

    Scores are taken of as many of their largest entries as it comes to: sums along whole rows take longest.
    """
    n, k = len(probs), int(probs.shape[1])
    if k <= NARROW or n <= 2 * PILOT_ROWS or all(rule.name == "lac" for rule, _ in candidates):
        return [0 if rule.name == "lac" else k for rule, _ in candidates]
    pilot = np.linspace(0, n - 1, PILOT_ROWS).astype(np.intp)
    ordered = _largest(np.asarray(probs[pilot]), k)

    def depth(rule: ScoreRule, thresholds: Doubles, width: int = NARROW) -> int:
        scores = _scores_along(ordered[:, :width], rule, draws[pilot])
        found = _usual_depth((scores <= thresholds[pilot, None]).sum(axis=1), k)
        return found if found <= width or width >= k else depth(rule, thresholds, 4 * width)

    return [0 if rule.name == "lac" else depth(rule, thresholds) for rule, thresholds in candidates]


def _first_rejected(
    block: FloatArray, ordered: FloatArray, thresholds: Doubles, rule: ScoreRule, draws: Doubles
) -> FloatArray:
    """The largest probability of each row that is not in its set, from its largest entries; -1 for a full set.

    Scores are taken along the row as if each position were the last of its ties: never above the true score of its
    level, and equal to it at the level's end. So the first position above the threshold lies in the first
    rejected level, also where `ordered` ends inside that level.
    """
    n, depth = ordered.shape
    within = (_scores_along(ordered, rule, draws) <= thresholds[:, None]).sum(axis=1)
    closed = within < depth
    rejected = np.where(closed, ordered[np.arange(n), np.minimum(within, depth - 1)], block.dtype.type(-1))
    if rule.nonempty is not None:
        rejected = np.where(closed & (rejected == ordered[:, 0]), np.nextafter(rejected, -np.inf), rejected)
    unsettled = np.flatnonzero(~closed)
    if unsettled.size and depth < block.shape[1]:
        rest = block[unsettled]
        deeper = _largest(rest, min(DEEPER * depth, block.shape[1]))
        rejected[unsettled] = _first_rejected(rest, deeper, thresholds[unsettled], rule, draws[unsettled])
    return rejected


def _largest(block: FloatArray, depth: int) -> FloatArray:
    """The `depth` largest entries of each row, largest first."""
    cut = block.shape[1] - depth
    chosen = block if cut == 0 else np.partition(block, cut, axis=1)[:, cut:] if depth else block[:, :0]
    return np.sort(chosen, axis=1)[:, ::-1]


def _scores_along(ordered: FloatArray, rule: ScoreRule, draws: Doubles) -> Doubles:
    """Scores (n, w) along descending rows, each position taken as the last of its ties."""
    rank = np.arange(1.0, ordered.shape[1] + 1)
    randomised = bool((draws < 1).any())
    found: Doubles = scores_along(namespace(ordered), rule, ordered, rank, draws[:, None] if randomised else None)
    return found


def _refuse_unused(score: str, name: str, value: Any, users: tuple[str, ...]) -> None:
    if isinstance(value, str):
        check_choice(value, name, ("auto",))
    elif score not in users:
        raise ValueError(
            f"{name} is a parameter of {' and '.join(map(repr, users))}, not of score={score!r}; got {value!r}. "
            f"Leave {name}='auto', or choose another score."
        )
