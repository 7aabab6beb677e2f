"""Conditional conformal prediction: thresholds that vary smoothly with atypicality and confidence."""

import math
from fractions import Fraction
from typing import Annotated, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.arrays import returns_like_input
from atypicality.conformal.chance import Seeds, marked_rows, split_rows
from atypicality.conformal.pinball import cutoffs
from atypicality.conformal.scores import ScoreRule, confidences, label_statistics, prediction_sets
from atypicality.conformal.soft_groups import chosen_knots, group_name, local_quantiles, soft_groups
from atypicality.conformal.split import checked_rows
from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.formula import GridSets
from atypicality.groups import cut, quantile_edges
from atypicality.stored import Record, kinds, need
from atypicality.validation import check_alpha, check_choice, check_integer, check_number, check_vector, warn
from atypicality.validation.device import any_probs

__all__ = ["ConditionalConformal"]

Doubles = NDArray[np.float64]
Integers = NDArray[np.intp]

SMALLEST = 1e-12
"""Probabilities below count as this one."""
JITTER = 1e-9
"""Relative, and upward alone: centred jitter loses coverage where probabilities are tied."""
OUTWARD = 1e-14
GROUP_ROWS = 2
"""Times 1 / alpha: threshold rows that a soft group expects. With fewer than 1 / alpha there is no finite threshold."""
RULE = ScoreRule("lac", nonempty="after")


class ConditionalConformal(BaseEstimator):
    r"""Prediction sets that cover every soft group of atypicality and confidence with probability at least 1 - alpha.

    The set of x is the top class and every class y with :math:`-\log p_y \le T(x)`. The threshold T varies smoothly
    over the plane of atypicality and confidence, as the conditional conformal method of Gibbs, Cherian and Candes
    (2023) finds it for the span of a few soft groups :math:`\varphi_j`. The coverage guarantee is
    :math:`E[f(X) 1\{Y \in C(X)\}] \ge (1 - \alpha) E[f(X)]` for every non-negative f in that span: marginal coverage,
    and coverage weighted by each soft group.

    Parameters
    ----------
    alpha : float in (0, 1), default=0.1
        Allowed miscoverage.
    cells : int, default=12
        Cells of atypicality and of confidence, cut at quantiles of the edge rows; thresholds are constant in a cell.
    knots : int or "auto", default="auto"
        Soft groups of either quantity: 2 are the two ends, 3 the ends and the middle. "auto" is 3 from 2,000
        threshold rows on, else 2, and fewer where a soft group would expect fewer than 2 / alpha of them.
    bandwidth : float or "auto", default="auto"
        Of the kernel behind the local thresholds, in ranks (0 to 1). "auto" is 0.2 (2000 / n)^(1/4), within 0.1 and
        0.35.
    edge_fraction : float in (0, 1), default=0.1
        Share of the rows that set the cells and knots. Their labels are not used.
    random_state : int or None, default=0

    Attributes
    ----------
    atypicality_edges_, confidence_edges_ : ndarray of shape (n_edges,)
        Of the cells; a value equal to an edge belongs to the lower cell.
    knots_ : tuple of int
        Soft groups of atypicality and of confidence.
    soft_groups_ : ndarray of shape (n_atypicality, n_confidence, d)
        Weight of each soft group in each cell: not negative, and 1 in sum.
    bandwidth_ : float
    thresholds_ : ndarray of shape (n_atypicality, n_confidence)
        T of each cell.
    too_few_ : ndarray of bool, of shape (n_atypicality, n_confidence)
        Cells near which there are fewer threshold rows than alpha needs: their threshold is infinite, their sets are
        full, and `fit` has warned.
    expected_coverage_ : ndarray of shape (d,)
        Coverage of each soft group to expect, estimated from the threshold rows; 1 where a group has none.
    n_edge_, n_calibration_ : int
        Edge rows, and threshold rows.
    n_classes_, seed_ : int

    See Also
    --------
    AtypicalityAwareConformal : the paper's grid, with coverage in each region and larger sets.

    Examples
    --------
    >>> from atypicality.datasets import make_world
    >>> world = make_world(4000, atypical_noise=1.0)
    >>> sets = ConditionalConformal(alpha=0.1)
    >>> sets = sets.fit(world.probs[:3000], world.labels[:3000], atypicality=world.atypicality[:3000])
    >>> sets.soft_groups_.shape, sets.n_edge_, sets.n_calibration_
    ((12, 12, 9), 300, 2700)
    >>> sets.predict_set(world.probs[3000:], atypicality=world.atypicality[3000:]).shape
    (1000, 5)
    """

    n_classes_: Annotated[int, kinds.Size("K")]
    atypicality_edges_: Annotated[Doubles, kinds.Array("*", kinds.FINITE, kinds.INCREASING)]
    confidence_edges_: Annotated[Doubles, kinds.Array("*", kinds.UNIT, kinds.INCREASING)]
    knots_: Annotated[tuple[int, int], kinds.TupleOf(kinds.Integer(1), size="2")]
    bandwidth_: Annotated[float, kinds.Number(0, low_open=True)]
    thresholds_: Annotated[Doubles, kinds.Array("a c", kinds.NOT_NAN, kinds.NOT_NEGATIVE)]
    too_few_: Annotated[NDArray[np.bool_], kinds.Array("a c", dtypes=("bool",))]
    expected_coverage_: Annotated[Doubles, kinds.Array("*", kinds.UNIT)]
    n_edge_: Annotated[int, kinds.Integer(1)]
    n_calibration_: Annotated[int, kinds.Integer(1)]
    seed_: Annotated[int, kinds.SEED]

    def __init__(
        self,
        alpha: float = 0.1,
        *,
        cells: int = 12,
        knots: int | str = "auto",
        bandwidth: float | str = "auto",
        edge_fraction: float = 0.1,
        random_state: int | None = 0,
    ) -> None:
        self.alpha = alpha
        self.cells = cells
        self.knots = knots
        self.bandwidth = bandwidth
        self.edge_fraction = edge_fraction
        self.random_state = random_state

    def fit(
        self, probs: ArrayLike, labels: ArrayLike, *, atypicality: ArrayLike, edge_rows: ArrayLike | None = None
    ) -> Self:
        """Learn the thresholds from a conformal set: `probs` (n, k), `labels` (n,) and `atypicality` (n,).

        The edge rows are drawn at random, unless `edge_rows`, bool (n,), marks them: rows that were set apart
        beforehand, as by `three_way_split`.
        """
        alpha, seeds = self._check_options(), Seeds(self.random_state)
        rows, classes = checked_rows(probs, labels, least=2)
        n = classes.size
        rarity = check_vector(atypicality, "atypicality", n_rows=n)
        if edge_rows is None:
            edge, own = split_rows(n, self.edge_fraction, "edge_fraction", seeds.generator("split"))
        else:
            edge, own = marked_rows(edge_rows, n)
        found = label_statistics(rows, classes)
        top = np.minimum(found.top, 1.0)

        self.n_edge_, self.n_calibration_, self.n_classes_, self.seed_ = edge.size, own.size, rows.shape[1], seeds.seed
        self._set_groups(rarity[edge], top[edge], alpha)
        self.bandwidth_ = _bandwidth(self.bandwidth, own.size)
        scores = 1 / np.clip(found.prob[own], SMALLEST, 1.0)
        cells = self._cells(rarity[own], top[own])
        self._set_thresholds(scores, cells, seeds.draws("fit", n)[own], alpha)
        accepted = 1.0 - found.prob[own] <= _as_lac(self.thresholds_).ravel()[cells]
        covered = accepted | (found.prob[own] == found.top[own])
        self.expected_coverage_ = _expected_coverage(self._weights(cells), covered)
        return self

    def formula(self) -> GridSets:
        """The parameters of a prediction; see `atypicality.formula`."""
        check_is_fitted(self, "thresholds_")
        rank = np.arange(1.0, self.n_classes_ + 1)
        return GridSets(RULE, _as_lac(self.thresholds_).ravel(), rank, self.atypicality_edges_, self.confidence_edges_)

    @property
    def soft_groups_(self) -> Doubles:
        """Weight of each soft group in each cell."""
        return soft_groups((self.atypicality_edges_.size + 1, self.confidence_edges_.size + 1), self.knots_)

    @returns_like_input
    def predict_set(self, probs: ArrayLike, *, atypicality: ArrayLike, first_row: int = 0) -> NDArray[np.bool_]:
        """The sets of `probs` (n, k) with `atypicality` (n,), as bool (n, k); `first_row` is not used."""
        check_is_fitted(self, "thresholds_")
        check_integer(first_row, "first_row", low=0)
        rows = any_probs(probs, n_classes=self.n_classes_)
        rarity = check_vector(atypicality, "atypicality", n_rows=rows.shape[0])
        thresholds = _as_lac(self.thresholds_).ravel()[self._cells(rarity, confidences(rows))]
        sets: NDArray[np.bool_] = prediction_sets(rows, thresholds, RULE)
        return sets

    def _check_options(self) -> Fraction:
        check_integer(self.cells, "cells", low=1)
        if isinstance(self.knots, str):
            check_choice(self.knots, "knots", ("auto",))
        else:
            check_integer(self.knots, "knots", low=1, high=self.cells)
        return check_alpha(self.alpha)

    def _set_groups(self, rarity: Doubles, confidence: Doubles, alpha: Fraction) -> None:
        """Cells and soft groups, from the atypicality and confidence of the edge rows."""
        self.atypicality_edges_, self.confidence_edges_ = (_edges(part, self.cells) for part in (rarity, confidence))
        shape = self.atypicality_edges_.size + 1, self.confidence_edges_.size + 1
        counts = np.bincount(self._cells(rarity, confidence), minlength=shape[0] * shape[1]).reshape(shape)
        expected = counts.astype(np.float64) * (self.n_calibration_ / self.n_edge_)
        self.knots_ = chosen_knots(expected, self.knots, GROUP_ROWS / float(alpha), self.n_calibration_)
        if self.n_edge_ > 1 and rarity.min() == rarity.max():
            warn(
                f"atypicality is {rarity[0]:g} in all {self.n_edge_} edge rows, so the sets depend on confidence "
                "alone. Give an atypicality that varies."
            )

    def _cells(self, rarity: Doubles, confidence: Doubles) -> Integers:
        width = self.confidence_edges_.size + 1
        return cut(self.atypicality_edges_, rarity) * width + cut(self.confidence_edges_, confidence)

    def _weights(self, cells: Integers) -> Doubles:
        """Weights (n, d) of the soft groups in some cells."""
        groups = self.soft_groups_
        return np.asarray(groups.reshape(-1, groups.shape[2])[cells])

    def _set_thresholds(self, scores: Doubles, cells: Integers, draws: Doubles, alpha: Fraction) -> None:
        tau, groups = float(1 - alpha) + JITTER, self.soft_groups_
        shape = groups.shape[0], groups.shape[1]
        exact = cutoffs(groups.reshape(-1, groups.shape[2]), cells, scores * (1 + JITTER * draws), tau)
        local = local_quantiles(shape, cells, scores, tau, self.bandwidth_)
        self.too_few_ = np.isinf(exact).reshape(shape)
        self.thresholds_ = _thresholds(np.maximum(exact, local)).reshape(shape)
        if self.too_few_.any():
            self._warn_of_few_rows(self._weights(cells).sum(axis=0), alpha)

    def _warn_of_few_rows(self, rows: Doubles, alpha: Fraction) -> None:
        nearest = np.unique(self.soft_groups_[self.too_few_].argmax(axis=1))
        short = (f"{rows[group]:.1f} in that of {group_name(self.knots_, int(group))}" for group in nearest)
        warn(
            f"alpha={float(alpha):g} needs at least {math.ceil(1 / alpha)} threshold rows in every soft group; got "
            f"{', '.join(short)}, near whose ends sets hold all classes. Give more rows, fewer knots or a larger alpha."
        )

    def _guarantee(self) -> str:
        """Where the coverage holds, for the model card."""
        groups = f"each of {self.soft_groups_.shape[2]} soft groups of atypicality and confidence"
        rows = f"from {self.n_calibration_:,} rows"
        return f"on average over all inputs and weighted by {groups}, {rows}; not in every subgroup."

    def _check_stored(self) -> None:
        shape = self.atypicality_edges_.size + 1, self.confidence_edges_.size + 1
        need(self.thresholds_.shape == shape, f"there must be thresholds of shape {shape}, for the cells.")
        need(all(np.less_equal(self.knots_, shape)), "there must be no more knots than cells.")
        groups = self.knots_[0] * self.knots_[1]
        need(self.expected_coverage_.size == groups, "every soft group must expect a coverage.")
        need(np.isinf(self.thresholds_[self.too_few_]).all(), "thresholds must be infinite where rows were too few.")

    _stored = Record(
        check=_check_stored,
        alpha=kinds.Alpha(),
        cells=kinds.Integer(1),
        knots=kinds.Either("auto", otherwise=kinds.Integer(1)),
        bandwidth=kinds.Either("auto", otherwise=kinds.Number(0)),
        edge_fraction=kinds.Number(0, 1),
        random_state=kinds.optional(kinds.SEED),
    )


def _edges(values: Doubles, n_cells: int) -> Doubles:
    """Quantiles of the edge rows; none at their maximum, above which there is no edge row."""
    edges = quantile_edges(values, n_cells)
    return np.asarray(edges[edges < values.max()])


def _bandwidth(given: float | str, n_rows: int) -> float:
    if isinstance(given, str):
        check_choice(given, "bandwidth", ("auto",))
        return float(np.clip(0.2 * (2000 / n_rows) ** 0.25, 0.1, 0.35))
    return check_number(given, "bandwidth", low=0, low_open=True)


def _thresholds(cutoff: Doubles) -> Doubles:
    """Thresholds of -log p from cutoffs of 1 / p; no probability scores more than the smallest that counts."""
    return np.where(cutoff >= 1 / SMALLEST, math.inf, np.log(np.clip(cutoff, 1.0, 1 / SMALLEST)))


def _as_lac(thresholds: Doubles) -> Doubles:
    """Thresholds of 1 - p from those of -log p, rounded outward: a logarithm and an exponential lie between."""
    return 1.0 - np.exp(-thresholds) * (1 - OUTWARD)


def _expected_coverage(phi: Doubles, covered: NDArray[np.bool_]) -> Doubles:
    """Share of covered rows by soft group, one row more in the denominator: with one group it is k / (n + 1)."""
    rows = phi.sum(axis=0) * (len(phi) + 1) / len(phi)
    return np.where(rows > 0, covered @ phi / np.where(rows > 0, rows, 1.0), 1.0)
