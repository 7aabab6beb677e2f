"""Conditional conformal prediction: thresholds that vary smoothly with atypicality and confidence."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.arrays import returns_like_input
from atypicality.conformal.chance import Seeds, marked_rows, split_rows
from atypicality.conformal.guaranteed import (
    Asked,
    GroupsKind,
    class_groups,
    distinct_values,
    group_names,
    indicators,
    places_among,
    row_values,
)
from atypicality.conformal.pinball import cutoff_steps, cutoffs
from atypicality.conformal.scores import LabelStatistics, ScoreRule, grid_sets, label_statistics
from atypicality.conformal.soft_groups import (
    checked_bandwidth,
    chosen_knots,
    expected_coverage,
    group_name,
    local_quantiles,
    soft_groups,
)
from atypicality.conformal.split import checked_rows, row_draws
from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.formula import GridSets
from atypicality.groups import cut, quantile_edges
from atypicality.stored import Record, kinds, need
from atypicality.validation import check_alpha, check_choice, check_integer, check_vector, name_classes, numbered, warn
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
Shape = tuple[int, int, int, int]
"""Values of the attribute, groups of labels, cells of atypicality and of confidence."""


class ConditionalConformal(BaseEstimator):
    r"""Prediction sets that cover every soft group of atypicality and confidence with probability at least 1 - alpha.

    The set of x is the top class and every class y with :math:`-\log p_y \le T(x)`. The threshold T varies smoothly
    over the plane of atypicality and confidence, as the conditional conformal method of Gibbs, Cherian and Candes
    (2023) finds it for the span of a few soft groups :math:`\varphi_j`. The coverage guarantee is
    :math:`E[f(X) 1\{Y \in C(X)\}] \ge (1 - \alpha) E[f(X)]` for every non-negative f in that span: marginal coverage,
    and coverage weighted by each soft group. `groups` adds hard groups to the span.

    Parameters
    ----------
    alpha : float in (0, 1), default=0.1
        Allowed miscoverage.
    groups : str, mapping, tuple of these, or None, default=None
        Further groups that are covered with probability at least 1 - alpha each. Of the row: "atypicality" and
        "confidence" are sixths of that axis, any other name is an attribute given to `fit` and `predict_set`. Of the
        label: "class rarity" are fifths of the classes by their training share, a mapping of classes (columns, or
        names where the outputs have them) to groups is your own grouping; T then depends on the candidate class too.
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
    randomized : bool, default=False
        Draw one u per row, by its number as in `SplitConformal`, so that the coverage of every group is 1 - alpha and
        not more: no local thresholds, no top class added, and some sets are empty. Exact where no scores are tied.
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
    thresholds_ : ndarray of shape (..., n_atypicality, n_confidence)
        T of each cell. Before these axes stand, where `groups` asks for them, the values of the attribute and the
        groups of labels, and before these the steps of randomised thresholds.
    table_ : ndarray of shape (n_steps + 1, n_values, n_label_groups, n_atypicality, n_confidence)
        The same with all axes.
    levels_ : ndarray of shape (n_steps, n_values, n_label_groups, n_atypicality, n_confidence)
        Draws above which the next threshold holds; without steps unless randomised.
    too_few_ : ndarray of bool, of shape (..., n_atypicality, n_confidence)
        Cells near which there are fewer threshold rows than alpha needs: their threshold is infinite, their sets are
        full, and `fit` has warned.
    few_ : ndarray of bool, of shape (n_values, n_label_groups, n_atypicality, n_confidence)
        The same with all axes.
    expected_coverage_ : ndarray of shape (d + n_groups,)
        Coverage to expect of each soft group, then of each of the groups asked for, estimated from the threshold
        rows; 1 where a group has none.
    group_names_ : list of str
        Of the entries of `expected_coverage_`.
    class_groups_ : ndarray of int, of shape (k,)
        Group of each class; all 0 where no groups of labels are asked for.
    class_group_names_ : tuple of str
    attribute_values_ : ndarray, or None
        Values of the attribute in `fit`. A row with another value has the full set.
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

    Coverage of the label's own group:

    >>> sets = ConditionalConformal(alpha=0.1, groups={0: "common", 1: "common", 2: "rare", 3: "rare", 4: "rare"})
    >>> sets = sets.fit(world.probs[:3000], world.labels[:3000], atypicality=world.atypicality[:3000])
    >>> sets.group_names_[-2:], sets.thresholds_.shape
    (['common', 'rare'], (2, 12, 12))
    """

    n_classes_: Annotated[int, kinds.Size("K")]
    atypicality_edges_: Annotated[Doubles, kinds.Array("*", kinds.FINITE, kinds.INCREASING)]
    confidence_edges_: Annotated[Doubles, kinds.Array("*", kinds.UNIT, kinds.INCREASING)]
    knots_: Annotated[tuple[int, int], kinds.TupleOf(kinds.Integer(1), size="2")]
    bandwidth_: Annotated[float, kinds.Number(0, low_open=True)]
    class_groups_: Annotated[Integers, kinds.Counts("K", kinds.NOT_NEGATIVE)]
    class_group_names_: Annotated[tuple[str, ...], kinds.TupleOf(kinds.Text())]
    attribute_values_: Annotated[NDArray[Any] | None, kinds.optional(kinds.Labels("v"))]
    table_: Annotated[Doubles, kinds.Array("* v g a c", kinds.NOT_NAN)]
    levels_: Annotated[Doubles, kinds.Array("* v g a c", kinds.UNIT)]
    few_: Annotated[NDArray[np.bool_], kinds.Array("v g a c", dtypes=("bool",))]
    expected_coverage_: Annotated[Doubles, kinds.Array("*", kinds.UNIT)]
    n_edge_: Annotated[int, kinds.Integer(1)]
    n_calibration_: Annotated[int, kinds.Integer(1)]
    seed_: Annotated[int, kinds.SEED]

    def __init__(
        self,
        alpha: float = 0.1,
        *,
        groups: Any = None,
        cells: int = 12,
        knots: int | str = "auto",
        bandwidth: float | str = "auto",
        edge_fraction: float = 0.1,
        randomized: bool = False,
        random_state: int | None = 0,
    ) -> None:
        self.alpha = alpha
        self.groups = groups
        self.cells = cells
        self.knots = knots
        self.bandwidth = bandwidth
        self.edge_fraction = edge_fraction
        self.randomized = randomized
        self.random_state = random_state

    def fit(
        self,
        probs: ArrayLike,
        labels: ArrayLike,
        *,
        atypicality: ArrayLike,
        edge_rows: ArrayLike | None = None,
        attributes: Mapping[str, ArrayLike] | None = None,
        class_share: ArrayLike | None = None,
        class_names: ArrayLike | None = None,
    ) -> Self:
        """Learn the thresholds from a conformal set: `probs` (n, k), `labels` (n,) and `atypicality` (n,).

        The edge rows are drawn at random, unless `edge_rows`, bool (n,), marks them: rows that were set apart
        beforehand, as by `three_way_split`. What `groups` asks for is found in `attributes`, a mapping of names to
        values (n,), in `class_share` (k,), shares or counts of the classes in the training rows, and in `class_names`
        (k,). A head offers all three.
        """
        alpha, seeds, asked = self._check_options(), Seeds(self.random_state), Asked.of(self.groups)
        rows, classes = checked_rows(probs, labels, least=2)
        n, k = classes.size, rows.shape[1]
        rarity = check_vector(atypicality, "atypicality", n_rows=n)
        values = row_values(asked, attributes, n)
        self.class_groups_, self.class_group_names_ = class_groups(asked, k, class_share, class_names)
        self.attribute_values_ = None if values is None else distinct_values(values, asked.attribute)
        if edge_rows is None:
            edge, own = split_rows(n, self.edge_fraction, "edge_fraction", seeds.generator("split"))
        else:
            edge, own = marked_rows(edge_rows, n)
        found = label_statistics(rows, classes)
        top = np.minimum(found.top, 1.0)

        self.n_edge_, self.n_calibration_, self.n_classes_, self.seed_ = edge.size, own.size, k, seeds.seed
        self._set_groups(rarity[edge], top[edge], alpha)
        self.bandwidth_ = checked_bandwidth(self.bandwidth, own.size)
        starts = self._row_starts(values)
        cells = (
            self._cells(rarity, top)
            + self._group_starts()[self.class_groups_[classes]]
            + (0 if starts is None else starts)
        )
        with numbered(None, None if class_names is None else np.asarray(class_names)):
            self._set_thresholds(found.take(own), cells[own], seeds.draws("fit", n)[own], alpha)
        return self

    def formula(self) -> GridSets:
        """The parameters of a prediction; see `atypicality.formula`."""
        check_is_fitted(self, "table_")
        levels, tables = self._flat_tables()
        if self.attribute_values_ is not None:  # a value that was never seen comes last, with full sets
            tables, levels = (
                np.pad(part, ((0, 0), (0, self._row_size())), constant_values=fill)
                for part, fill in ((tables, 1.0), (levels, 1.0))
            )
        edges, rank = (self.atypicality_edges_, self.confidence_edges_), np.arange(1.0, self.n_classes_ + 1)
        labels = self.class_group_names_
        starts, classes = (self._group_starts(), self.class_groups_) if labels else (None, None)
        steps = tuple(zip(levels, tables[1:], strict=True))
        return GridSets(self._rule, tables[0], rank, edges[0], edges[1], starts, classes, steps)

    @property
    def _rule(self) -> ScoreRule:
        return ScoreRule("lac", nonempty=None if self.randomized else "after")

    @property
    def reads_attributes(self) -> bool:
        """Whether a prediction needs an attribute of its row beside probabilities and atypicality."""
        return Asked.of(self.groups).attribute is not None

    @property
    def soft_groups_(self) -> Doubles:
        """Weight of each soft group in each cell."""
        return soft_groups((self.atypicality_edges_.size + 1, self.confidence_edges_.size + 1), self.knots_)

    @property
    def thresholds_(self) -> Doubles:
        """T of each cell, without the axes of `table_` that `groups` and `randomized` do not ask for."""
        table = self.table_ if self.randomized else self.table_[0]
        return np.asarray(table.reshape(table.shape[:-4] + self._public_shape()))

    @property
    def too_few_(self) -> NDArray[np.bool_]:
        """Cells whose threshold is infinite for want of rows."""
        return np.asarray(self.few_.reshape(self._public_shape()))

    @property
    def group_names_(self) -> list[str]:
        """Names of the soft groups, then of the groups asked for."""
        soft = [group_name(self.knots_, group) for group in range(self.knots_[0] * self.knots_[1])]
        return soft + group_names(self._shape, Asked.of(self.groups), self.attribute_values_, self.class_group_names_)

    @returns_like_input
    def predict_set(
        self,
        probs: ArrayLike,
        *,
        atypicality: ArrayLike,
        attributes: Mapping[str, ArrayLike] | None = None,
        first_row: int = 0,
    ) -> NDArray[np.bool_]:
        """The sets of `probs` (n, k) with `atypicality` (n,), as bool (n, k).

        `attributes` are needed where `groups` names one; a value that `fit` has not seen gives full sets and a warning.
        `first_row` is the number of the first row where randomised sets are made part by part; see `SplitConformal`.
        """
        check_is_fitted(self, "table_")
        rows = any_probs(probs, n_classes=self.n_classes_)
        n = int(rows.shape[0])
        rarity = check_vector(atypicality, "atypicality", n_rows=n)
        starts = self._row_starts(row_values(Asked.of(self.groups), attributes, n))
        sets: NDArray[np.bool_] = grid_sets(self.formula(), rows, rarity, row_draws(self, n, first_row), starts)
        return sets

    def _check_options(self) -> Fraction:
        check_integer(self.cells, "cells", low=1)
        check_choice(self.randomized, "randomized", (False, True))
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

    @property
    def _shape(self) -> Shape:
        values = 1 if self.attribute_values_ is None else self.attribute_values_.size
        grid = self.atypicality_edges_.size + 1, self.confidence_edges_.size + 1
        return values, max(1, len(self.class_group_names_)), *grid

    def _public_shape(self) -> tuple[int, ...]:
        asked = (self.attribute_values_ is not None, bool(self.class_group_names_), True, True)
        return tuple(size for size, shown in zip(self._shape, asked, strict=True) if shown)

    def _row_size(self) -> int:
        """Thresholds of one value of the attribute."""
        return math.prod(self._shape[1:])

    def _cells(self, rarity: Doubles, confidence: Doubles) -> Integers:
        width = self.confidence_edges_.size + 1
        return cut(self.atypicality_edges_, rarity) * width + cut(self.confidence_edges_, confidence)

    def _group_starts(self) -> Integers:
        """Where the table of each group of classes begins."""
        return np.arange(self._shape[1]) * math.prod(self._shape[2:])

    def _row_starts(self, values: NDArray[Any] | None) -> Integers | None:
        """Where the tables of each row begin, by its value of the attribute."""
        known = self.attribute_values_
        if values is None or known is None:
            return None
        return places_among(known, values) * self._row_size()

    def _flat_tables(self) -> tuple[Doubles, Doubles]:
        """Levels, and thresholds of 1 - p, one row of entries for each step."""
        size = math.prod(self._shape)
        return self.levels_.reshape(-1, size), _as_lac(self.table_).reshape(-1, size)

    def _phi(self) -> Doubles:
        """Weights of the soft groups, then of the groups asked for, in every entry of a table."""
        soft = np.broadcast_to(self.soft_groups_, (*self._shape, self.soft_groups_.shape[2]))
        both = np.concatenate([soft, indicators(self._shape, Asked.of(self.groups))], axis=-1)
        return both.reshape(-1, both.shape[-1])

    def _set_thresholds(self, found: LabelStatistics, cells: Integers, draws: Doubles, alpha: Fraction) -> None:
        tau, phi, shape = float(1 - alpha) + JITTER, self._phi(), self._shape
        scores = 1 / np.clip(found.prob, SMALLEST, 1.0)
        jittered = scores * (1 + JITTER * draws)
        if self.randomized:
            levels, cutoff = cutoff_steps(phi, cells, jittered, tau)
            few, levels = np.isinf(cutoff[0]) & (cutoff[0] > 0), np.clip(levels, 0.0, 1.0)
        else:
            cutoff, levels = cutoffs(phi, cells, jittered, tau, width=shape[-1])[None], np.empty((0, len(phi)))
            few, grid = np.isinf(cutoff[0]), math.prod(shape[2:])
            local = local_quantiles(shape[2:], cells % grid, scores, tau, self.bandwidth_)
            cutoff = np.maximum(cutoff, np.tile(np.maximum(local, 1.0), len(phi) // grid))
        self.table_, self.levels_ = _thresholds(cutoff).reshape(-1, *shape), levels.reshape(-1, *shape)
        self.few_ = few.reshape(shape)
        if few.any():
            self._warn_of_few_rows(phi, phi[cells].sum(axis=0), alpha)
        self.expected_coverage_ = expected_coverage(phi[cells], self._covered(found, cells, draws))

    def _covered(self, found: LabelStatistics, cells: Integers, draws: Doubles) -> NDArray[np.bool_]:
        """Whether the sets of rows in some entries of the table hold their label."""
        levels, tables = self._flat_tables()
        accepted = 1.0 - found.prob <= tables[(levels[:, cells] < draws).sum(axis=0), cells]
        return np.asarray(accepted | (found.prob == found.top) if not self.randomized else accepted)

    def _warn_of_few_rows(self, phi: Doubles, rows: Doubles, alpha: Fraction) -> None:
        n_soft, flat = self.soft_groups_.shape[2], self.few_.ravel()
        soft = np.unique(phi[flat][:, :n_soft].argmax(axis=1))
        hard = n_soft + np.flatnonzero(phi[flat][:, n_soft:].any(axis=0))
        short = [found[rows[found] * alpha < 1] for found in (hard, soft)]
        named = next((found for found in short if found.size), soft).tolist()
        told = [self._told_of_few(group, rows[group], bool(flat[phi[:, group] > 0].all())) for group in named]
        warn(
            f"alpha={float(alpha):g} needs at least {math.ceil(1 / alpha)} threshold rows in every group; got "
            f"{'; '.join(told)}. Give more rows, or a larger alpha"
            + ("." if short[0].size or n_soft == 1 else ", or set fewer knots.")
        )

    def _told_of_few(self, group: int, rows: float, whole: bool) -> str:
        """A group with its number of threshold rows, and what the sets of all of it, or of a part, hold instead."""
        then, place = "all classes", group - len(self.group_names_) + len(self.class_group_names_)
        if place >= 0:
            members = np.flatnonzero(self.class_groups_ == place)
            then = f"{'class' if members.size == 1 else 'classes'} {name_classes(members)}"
        where = ("so every set holds" if place >= 0 else "whose sets hold") if whole else "near whose ends sets hold"
        return f"{rows:.0f} in {self.group_names_[group]}, {where} {then}"

    def _guarantee(self) -> str:
        """Where the coverage holds, for the model card."""
        n_soft = self.soft_groups_.shape[2]
        groups = f"each of {n_soft} soft groups of atypicality and confidence"
        if self.expected_coverage_.size > n_soft:
            groups += f", and in each of {self.expected_coverage_.size - n_soft} groups ({Asked.of(self.groups)})"
        rows = f"from {self.n_calibration_:,} rows"
        return f"on average over all inputs and weighted by {groups}, {rows}; not in every subgroup."

    def _check_stored(self) -> None:
        asked, shape = Asked.of(self.groups), self._shape
        need(self.table_.shape[1:] == shape, f"there must be thresholds of shape {shape}, for the cells.")
        need(len(self.table_) == len(self.levels_) + 1, "there must be one table more than levels.")
        need(self.randomized or len(self.table_) == 1, "there must be one table unless the sets are randomised.")
        need(self.randomized or (self.table_ >= 0).all(), "thresholds must not be negative unless randomised.")
        need(all(np.less_equal(self.knots_, shape[2:])), "there must be no more knots than cells.")
        need(self.class_groups_.max() < shape[1], "classes must be in groups that have a name.")
        asks = asked.attribute is not None, asked.classes is not None
        has = self.attribute_values_ is not None, bool(self.class_group_names_)
        need(asks == has, "there must be values and groups of labels where they are asked for, and only there.")
        groups = self.knots_[0] * self.knots_[1] + indicators(shape, asked).shape[-1]
        need(self.expected_coverage_.size == groups, "every soft group must expect a coverage.")
        need(np.isinf(self.table_[0][self.few_]).all(), "thresholds must be infinite where rows were too few.")

    _stored = Record(
        check=_check_stored,
        alpha=kinds.Alpha(),
        groups=GroupsKind(),
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


def _thresholds(cutoff: Doubles) -> Doubles:
    """Thresholds of -log p from cutoffs of 1 / p; no probability scores more than the smallest that counts."""
    inside = np.log(np.clip(cutoff, 1.0, 1 / SMALLEST))
    return np.where(cutoff >= 1 / SMALLEST, math.inf, np.where(cutoff < 1.0, -math.inf, inside))


def _as_lac(thresholds: Doubles) -> Doubles:
    """Thresholds of 1 - p from those of -log p, rounded outward: a logarithm and an exponential lie between."""
    return 1.0 - np.exp(-thresholds) * (1 - OUTWARD)
