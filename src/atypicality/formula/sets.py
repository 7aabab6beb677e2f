"""Scores along a row, larger = less conforming, and the set of all labels whose score stays within a threshold.

Every score is a function of what stands at or above a label in its row: the rank o(y), the number of classes j with
p_j >= p_y, and the mass above and tied with p_y. Ties are symmetric: classes with equal probability have equal scores.

Two things make this exact. Masses are sums of probabilities rounded to multiples of 2^-52, which float64 adds without
error in any order: the score of a known label in `fit` and the one found along a sorted row in prediction are equal to
the last bit, on every device, and no comparison needs a tolerance. And scores never fall along a row sorted by
probability, so that a set is everything above the first rejected probability: no label is ever ranked by its index.
"""

from dataclasses import dataclass
from typing import Any

from atypicality.formula.rows import Xp

__all__ = ["GridSets", "ScoreRule", "accepted", "exact", "in_order", "scores_along"]


@dataclass(frozen=True)
class ScoreRule:
    r"""Which score, with which parameters.

    ====  ==========================================================================================
    lac   :math:`1 - p_y` (Sadinle, Lei and Wasserman 2019)
    aps   :math:`\sum_{p_j > p_y} p_j + u \sum_{p_j = p_y} p_j` (Romano, Sesia and Candes 2020)
    raps  aps plus :math:`\lambda (o(y) - k_{reg})_+` (Angelopoulos, Bates, Malik and Jordan 2020)
    saps  :math:`u p_{max}` if o(y) = 1, else :math:`p_{max} + (o(y) - 2 + u) \lambda` (Huang et al. 2024)
    ====  ==========================================================================================

    Here y is the label, u a uniform draw of its row (1 unless randomised) and lambda the penalty. With
    ``nonempty="score"`` the top class, or every class tied for the top, scores 0 instead; with "after" it is added to
    the set, which comes to the same there.

    With ``crossing``, the paper's released procedure, a label is the last of those tied with it, u multiplies all that
    it adds by itself, penalty included, and sets are made with u = 0: they hold every class whose mass *before* it is
    at most the threshold, the class that crosses it too.
    """

    name: str
    nonempty: str | None = "score"
    k_reg: int | None = None
    penalty: float | None = None
    crossing: bool = False

    @property
    def needs_tuning(self) -> bool:
        """Whether a parameter of this score is not known yet."""
        return self.name in ("raps", "saps") and (self.penalty is None or (self.name == "raps" and self.k_reg is None))

    def values(self, xp: Xp, above: Any, tied: Any, rank: Any, top: Any, draws: Any) -> Any:
        """Scores from masses, ranks and top probabilities, all broadcast; monotone in each of the first three."""
        if self.name == "saps":
            return xp.where(rank == 1, draws * top, top + (rank - 2 + draws) * self.penalty)
        mass = above + draws * tied
        if self.name == "aps":
            return mass
        beyond = rank - self.k_reg - (1 - draws) if self.crossing else rank - self.k_reg
        return mass + self.penalty * xp.where(beyond > 0, beyond, xp.zeros_like(beyond))


def exact(xp: Xp, values: Any) -> Any:
    """Probabilities as the nearest multiples of 2^-52, in float64: sums below 2 of such numbers are exact."""
    return (xp.astype(values, xp.float64, copy=False) + 1.0) - 1.0


def scores_along(xp: Xp, rule: ScoreRule, ordered: Any, rank: Any, draws: Any = None) -> Any:
    """Scores (n, w) along descending rows, each position taken as the last of its ties.

    That is never above the true score of its level, and equal to it at the level's end: the first position above a
    threshold lies in the first rejected level. `ordered` (n, w) has the largest probabilities
    of each row, largest first; `rank` (w,) counts them from 1, in float64; draws are (n, 1).
    """
    top = xp.astype(ordered[:, :1], xp.float64, copy=False)
    values = exact(xp, ordered)
    tied = xp.cumulative_sum(values, axis=1) if rule.name != "saps" else values
    if rule.crossing:
        return rule.values(xp, tied - values, 0.0, rank, top, 0.0)
    if draws is None:  # u = 1 needs the sum alone
        return rule.values(xp, 0.0, tied, rank, top, 1.0)
    follows = ordered[:, 1:] == ordered[:, :-1]
    begins = xp.concat([xp.ones_like(follows[:, :1]), ~follows], axis=1)
    above = _running_maximum(xp, xp.where(begins, tied - values, 0.0))
    return rule.values(xp, above, tied - above, rank, top, draws)


def _running_maximum(xp: Xp, values: Any) -> Any:
    """Maximum of everything up to each position of a row, by doubling: the standard has no cumulative maximum."""
    reach = 1
    while reach < values.shape[1]:
        values = xp.concat([values[:, :reach], xp.maximum(values[:, reach:], values[:, :-reach])], axis=1)
        reach *= 2
    return values


def in_order(xp: Xp, probs: Any) -> Any:
    """Rows with their largest entries first."""
    return xp.sort(probs, axis=1, descending=True, stable=False)


def accepted(
    xp: Xp,
    rule: ScoreRule,
    probs: Any,
    threshold: Any,
    rank: Any,
    draws: Any = None,
    ordered: Any = None,
    top: Any = None,
) -> Any:
    """All labels whose score is at most their row's threshold (n, 1): bool (n, k).

    `ordered` are the same rows `in_order`, and `top` (n, 1) their largest entries, where somebody has them already.
    """
    if rule.name == "lac":
        found = 1.0 - xp.astype(probs, xp.float64, copy=False) <= threshold
    else:
        ordered = in_order(xp, probs) if ordered is None else ordered
        within = scores_along(xp, rule, ordered, rank, draws) <= threshold
        rejected = xp.max(xp.where(within, -xp.ones_like(ordered), ordered), axis=1, keepdims=True)
        found = probs > rejected
    if rule.nonempty is None:
        return found
    return found | (probs == (xp.max(probs, axis=1, keepdims=True) if top is None else top))


@dataclass(frozen=True)
class GridSets:
    """Sets by one threshold for each cell of a grid of atypicality and confidence, or one for all."""

    rule: ScoreRule
    thresholds: Any  # (n_cells,), by atypicality group, then confidence group; several such tables one after the other
    rank: Any  # float64 (k,), 1 to k
    atypicality_edges: Any = None  # None, like confidence_edges, where there is one threshold
    confidence_edges: Any = None
    group_starts: Any = None  # int (n_groups,), where the table of each group of classes begins ("lac" alone)
    class_groups: Any = None  # int (k,), where classes have thresholds by group
    steps: tuple[tuple[Any, Any], ...] = ()  # draws above which a cell has a larger threshold, and that; increasing

    def row_thresholds(
        self, xp: Xp, confidence: Any, atypicality: Any, draws: Any = None, row_starts: Any = None
    ) -> Any:
        """Threshold of each row (n, 1) or of each of its classes (n, k), or the one of all (1,).

        `row_starts` (n, 1) are where the tables of each row begin.
        """
        if self.atypicality_edges is None:
            return self.thresholds
        row = xp.searchsorted(self.atypicality_edges, atypicality)
        place = row * (self.confidence_edges.shape[0] + 1) + xp.searchsorted(self.confidence_edges, confidence)
        for starts in (row_starts, self.group_starts):
            place = place if starts is None else place + starts
        found = self.thresholds[place]
        for levels, thresholds in self.steps:
            found = xp.where(levels[place] < draws, thresholds[place], found)
        return found if self.class_groups is None else xp.take(found, self.class_groups, axis=1)

    def __call__(
        self,
        xp: Xp,
        probs: Any,
        confidence: Any,
        atypicality: Any,
        draws: Any = None,
        row_starts: Any = None,
        top: Any = None,
    ) -> Any:
        """Sets, bool (n, k)."""
        threshold = self.row_thresholds(xp, confidence, atypicality, draws, row_starts)
        return accepted(xp, self.rule, probs, threshold, self.rank, draws, top=top)
