"""Conformal prediction by atypicality and confidence: a threshold, and valid coverage, for every region of a grid."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.arrays import returns_like_input, take_rows
from atypicality.conformal.chance import Seeds, marked_rows, split_rows
from atypicality.conformal.regions import merge_cells, rows_to_expect
from atypicality.conformal.scores import ScoreRule, confidences, label_scores, label_statistics
from atypicality.conformal.split import ScoredSets, checked_rows, checked_rule, fitted_rule, fitted_sets
from atypicality.conformal.threshold import conformal_threshold, minimum_rows
from atypicality.conformal.tuning import tune
from atypicality.estimators import check_is_fitted
from atypicality.formula import GridSets
from atypicality.groups import GridGroups
from atypicality.stored import Part, Record, kinds, need
from atypicality.validation import check_alpha, check_choice, check_vector, warn
from atypicality.validation.device import any_probs

__all__ = ["AtypicalityAwareConformal"]

Integers = NDArray[np.intp]


class AtypicalityAwareConformal(ScoredSets):
    r"""Prediction sets that keep 1 - alpha in every region of atypicality and confidence, rare inputs included.

    Rows are cut into a grid of atypicality and confidence quantile groups; every cell has a threshold of its own, found
    as in `SplitConformal` (Yuksekgonul et al. 2023, section 5). Cells that would be too small for alpha are merged with
    neighbours into regions, and the guarantee is :math:`P(Y \in C(X) \mid X \in \text{region}) \ge 1 - \alpha`.

    Parameters
    ----------
    score : {"lac", "aps", "raps", "saps"}, default="raps"
    alpha : float in (0, 1), default=0.1
    n_groups : pair of int, default=(6, 6)
        Groups of atypicality and of confidence; 1 leaves one of them out.
    mode : {"valid", "paper"}, default="valid"
        "valid": the edge set chooses edges, regions, `k_reg` and `penalty`, the threshold set carries the guarantee.
        "paper": the procedure that the paper's authors released, see Notes; coverage is approximate.
    edge_fraction : float in (0, 1), default=1/3
        Share of the rows in the edge set, in mode "valid".
    nonempty, k_reg, penalty, randomized, random_state : str, int, float, bool
        As in `SplitConformal`. In mode "paper" the top class is in every set whatever `nonempty` says, and sets are
        not randomised.

    Attributes
    ----------
    grid_ : GridGroups
        The cells: edges of both quantities, from the edge set.
    regions_ : ndarray of int, of the grid's shape
        Region of every cell. A test point beyond the outermost edges belongs to the outer cells.
    counts_ : ndarray of shape (n_regions,)
        Threshold rows in each region: its coverage given them follows `coverage_law(counts_[r], alpha)`.
    thresholds_ : ndarray of shape (n_regions,)
    too_few_ : ndarray of bool, of shape (n_regions,)
        Regions that got fewer rows than alpha needs: their threshold is infinite, their sets are full, and `fit` has
        warned. In mode "paper" only cells without rows.
    crossing_ : bool
        Whether sets hold the class that crosses the threshold: in mode "paper", except for "lac".
    k_reg_, penalty_ : as in `SplitConformal`
    n_edge_, n_calibration_ : int
        Rows of the edge set and of the threshold set.
    n_classes_, seed_ : int

    Notes
    -----
    Regions are decided by the edge rows alone (see `merge_cells`): merging by the counts of the threshold
    rows would break the guarantee, because a region's rows would then know that they are few.

    Mode "paper" scores every label with one uniform draw u of its row: the mass up to the label less u times what the
    label itself adds, penalty included. All rows set edges, thresholds, `k_reg` and `penalty`; no cells are merged. A
    set holds every class whose mass before it is at most the threshold, so that it covers more than 1 - alpha:
    scores are randomised and sets are not. The rank is that of the paper's text, exact by `conformal_rank` and at most
    the largest score; the released code has it too, and the quantile 1 - alpha behind a switch, `aa_sub`, off by
    default. Classes tied in a row share the score of the last of them, where the released code ranks them by index.

    Examples
    --------
    >>> from atypicality.datasets import make_world
    >>> world = make_world(4000, atypical_noise=1.0)
    >>> conformal = AtypicalityAwareConformal(alpha=0.1, n_groups=(3, 2))
    >>> conformal = conformal.fit(world.probs[:3000], world.labels[:3000], atypicality=world.atypicality[:3000])
    >>> conformal.regions_
    array([[0, 1],
           [2, 3],
           [4, 5]])
    >>> conformal.predict_set(world.probs[3000:], atypicality=world.atypicality[3000:]).shape
    (1000, 5)
    """

    grid_: Annotated[GridGroups, Part(GridGroups)]
    regions_: Annotated[Integers, kinds.Counts("* *")]
    counts_: Annotated[Integers, kinds.Counts("r", kinds.NOT_NEGATIVE)]
    thresholds_: Annotated[NDArray[np.float64], kinds.Array("r", kinds.NOT_NAN)]
    too_few_: Annotated[NDArray[np.bool_], kinds.Array("r", dtypes=("bool",))]
    n_edge_: Annotated[int, kinds.Integer(1)]
    crossing_: Annotated[bool, kinds.Later(kinds.FLAG, absent=False)]

    def __init__(
        self,
        score: str = "raps",
        alpha: float = 0.1,
        *,
        n_groups: tuple[int, int] = (6, 6),
        mode: str = "valid",
        edge_fraction: float = 1 / 3,
        nonempty: str | None = "score",
        k_reg: int | str = "auto",
        penalty: float | str = "auto",
        randomized: bool = False,
        random_state: int | None = 0,
    ) -> None:
        self.score = score
        self.alpha = alpha
        self.n_groups = n_groups
        self.mode = mode
        self.edge_fraction = edge_fraction
        self.nonempty = nonempty
        self.k_reg = k_reg
        self.penalty = penalty
        self.randomized = randomized
        self.random_state = random_state

    def fit(
        self, probs: ArrayLike, labels: ArrayLike, *, atypicality: ArrayLike, edge_rows: ArrayLike | None = None
    ) -> Self:
        """Learn regions and thresholds from a conformal set: `probs` (n, k), `labels` (n,) and `atypicality` (n,).

        In mode "valid" the edge set is drawn at random, unless `edge_rows`, bool (n,), marks them: rows that
        were set apart beforehand, as by `three_way_split`.
        """
        alpha, rule, seeds = check_alpha(self.alpha), checked_rule(self), Seeds(self.random_state)
        valid = check_choice(self.mode, "mode", ("valid", "paper")) == "valid"
        if not valid:
            rule = self._paper_rule(rule)
        rows, classes = checked_rows(probs, labels, least=2 if valid else 1)
        n = classes.size
        rarity = check_vector(atypicality, "atypicality", n_rows=n)
        edge = calibration = np.arange(n)
        if edge_rows is not None:
            if not valid:
                raise ValueError(f'edge_rows needs mode="valid"; got mode={self.mode!r}, where all rows set edges.')
            edge, calibration = marked_rows(edge_rows, n)
        elif valid:
            edge, calibration = split_rows(n, self.edge_fraction, "edge_fraction", seeds.generator("split"))
        found = label_statistics(rows, classes)
        draws = seeds.draws("fit", n) if self.randomized or rule.crossing else np.ones(n)

        rule = tune(rule, take_rows(rows, edge), found.take(edge), alpha, draws[edge])
        top = np.minimum(found.top, 1.0)
        self.grid_ = GridGroups(self.n_groups).fit(top[edge], rarity[edge])
        counts = self.grid_.counts_
        own = np.arange(counts.size).reshape(counts.shape)  # every cell its own region
        self.regions_ = _regions(counts, alpha, calibration.size) if valid else own
        cells = self.grid_.assign(top[calibration], rarity[calibration])
        scores = label_scores(found.take(calibration), rule, draws[calibration])
        self._set_thresholds(scores, self.regions_.ravel()[cells], alpha)

        self.k_reg_, self.penalty_, self.seed_, self.crossing_ = rule.k_reg, rule.penalty, seeds.seed, rule.crossing
        self.n_edge_, self.n_calibration_, self.n_classes_ = edge.size, calibration.size, rows.shape[1]
        return self

    @returns_like_input
    def assign(self, probs: ArrayLike, *, atypicality: ArrayLike) -> Integers:
        """Region (n,) of every row of `probs` and `atypicality`: the part of the grid with a guarantee of its own."""
        check_is_fitted(self, "thresholds_")
        rows = any_probs(probs, n_classes=self.n_classes_)
        return self._assign(rows, atypicality)

    def formula(self) -> GridSets:
        """The parameters of a prediction; see `atypicality.formula`."""
        check_is_fitted(self, "thresholds_")
        cells, rank = self.thresholds_[self.regions_.ravel()], np.arange(1.0, self.n_classes_ + 1)
        grid = self.grid_
        edges = grid.atypicality_groups_.edges_, grid.confidence_groups_.edges_
        return GridSets(fitted_rule(self), cells, rank, *edges)

    @returns_like_input
    def predict_set(self, probs: ArrayLike, *, atypicality: ArrayLike, first_row: int = 0) -> NDArray[np.bool_]:
        """The sets of `probs` (n, k) with `atypicality` (n,), as bool (n, k); `first_row` as in `SplitConformal`."""
        check_is_fitted(self, "thresholds_")
        rows = any_probs(probs, n_classes=self.n_classes_)
        thresholds = self.thresholds_[self._assign(rows, atypicality)]
        return fitted_sets(self, rows, thresholds, first_row)

    def _assign(self, rows: Any, atypicality: ArrayLike) -> Integers:
        rarity = check_vector(atypicality, "atypicality", n_rows=rows.shape[0])
        return self.regions_.ravel()[self.grid_.assign(confidences(rows), rarity)]

    def _paper_rule(self, rule: ScoreRule) -> ScoreRule:
        if self.randomized:
            raise ValueError('randomized must be False in mode="paper", whose scores are drawn and sets are not.')
        return rule if rule.name == "lac" else replace(rule, nonempty="after", crossing=True)

    def _set_thresholds(self, scores: NDArray[np.float64], regions: Integers, alpha: Fraction) -> None:
        n_regions = int(self.regions_.max()) + 1
        self.counts_ = np.bincount(regions, minlength=n_regions)
        threshold = conformal_threshold if self.mode == "valid" else self._paper_threshold
        self.thresholds_ = np.array([threshold(scores[regions == r], alpha) for r in range(n_regions)])
        self.too_few_ = np.isinf(self.thresholds_)
        short = np.flatnonzero(self.counts_ < minimum_rows(alpha))
        if short.size:
            counts = ", ".join(f"{self.counts_[region]} in region {region}" for region in short)
            then = ", whose sets hold all classes"
            if self.mode == "paper":
                then = ": a cell without rows has sets of all classes, any other its largest score as threshold"
            warn(
                f"alpha={float(alpha):g} needs at least {minimum_rows(alpha)} threshold rows in every region; "
                f"got {counts}{then}. Give more rows, fewer groups or a larger alpha."
            )

    @staticmethod
    def _paper_threshold(scores: NDArray[np.float64], alpha: Fraction) -> float:
        """The score of the conformal rank, the largest where there are too few; infinite without any."""
        return min(conformal_threshold(scores, alpha), float(scores.max())) if scores.size else math.inf

    def _guarantee(self) -> str:
        """Where the coverage holds, for the model card."""
        least, most = int(self.counts_.min()), int(self.counts_.max())
        rows = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        where = f"{self.thresholds_.size} regions of atypicality and confidence"
        if self.mode == "paper":
            return f"only approximately, in each of {where}: the {rows} rows of each also set the edges."
        return f"in each of {where}, whose thresholds rest on {rows} rows each; not in every subgroup."

    def _check_stored(self) -> None:
        self._check_score()
        n_regions, thresholds = self.thresholds_.size, self.thresholds_
        used = np.array_equal(np.unique(self.regions_), np.arange(n_regions))
        need(self.regions_.shape == self.grid_.shape_, "there must be a region for every cell of the grid.")
        need(used, "regions must be numbered from 0, all used.")
        need((thresholds > -math.inf).all(), "thresholds must not be minus infinity.")
        need((self.too_few_ == np.isinf(thresholds)).all(), "thresholds must be infinite where rows were too few.")
        need(self.counts_.sum() == self.n_calibration_, "the regions' rows must sum to n_calibration_.")

    _stored = Record(
        check=_check_stored,
        **ScoredSets._kinds,
        n_groups=kinds.TupleOf(kinds.Integer(1), size="2"),
        mode=kinds.Choice("valid", "paper"),
        edge_fraction=kinds.Number(0, 1),
    )


def _regions(counts: Integers, alpha: Fraction, n_calibration: int) -> Integers:
    """Regions from the cells' counts of edge rows."""
    ratio = n_calibration / counts.sum()
    return merge_cells(counts * ratio, rows_to_expect(alpha, ratio))
