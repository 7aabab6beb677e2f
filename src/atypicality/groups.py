"""The one place that cuts samples into groups: quantile groups, the four quadrants, groups of classes, and a grid.

Edges and thresholds are learnt once, on held-out data, and reused everywhere. Every cut follows one rule: a value
equal to an edge belongs to the lower group.
"""

from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.arrays import returns_like_input
from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.formula import Quadrant
from atypicality.stored import Part, Record, kinds, need
from atypicality.validation import check_confidence, check_integer, check_labels, check_number, check_vector, warn

__all__ = ["QUADRANTS", "ClassGroups", "GridGroups", "Quadrants", "QuantileGroups", "cut", "quantile_edges"]

QUADRANTS = ("reliable", "extrapolation", "ambiguous", "untrustworthy")
"""Typical and confident; atypical and confident; typical and low-confidence; atypical and low-confidence."""
MANY_VALUES, FEW_EDGES = 4096, 32
"""Values from which on, and edges up to which, comparing with every edge is quicker than a search: a tenth of its time
for 50,000 values and 9 edges, because nothing hangs on what a comparison says."""


def quantile_edges(values: NDArray[np.float64], n_groups: int) -> NDArray[np.float64]:
    """Distinct inner edges of `n_groups` equally populated groups of `values`; see `QuantileGroups`.

    >>> quantile_edges(np.array([1.0, 2.0, 3.0, 4.0]), 2)
    array([2.5])
    """
    edges = np.unique(_quantile(values, np.arange(1, n_groups) / n_groups))
    return edges[edges < np.inf]


def cut(edges: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.intp]:
    """Group of every value between sorted `edges`; a value equal to an edge stays below it.

    >>> cut(np.array([2.5]), np.array([2.5, 2.6]))
    array([0, 1])
    """
    if values.size < MANY_VALUES or edges.size > FEW_EDGES:
        return np.searchsorted(edges, values)
    within = np.zeros(values.shape, np.uint8)
    for edge in edges:
        within += values <= edge
    return np.subtract(edges.size, within, dtype=np.intp)


class QuantileGroups(BaseEstimator):
    """Cut samples into equally populated groups of one number, usually atypicality.

    Parameters
    ----------
    n_groups : int, default=5
        Group 0 is the most typical. Repeated edges merge, and a group without samples stays; both with a warning
        that names the counts.

    Attributes
    ----------
    edges_ : ndarray of shape (n_edges,)
        Strictly increasing quantiles (linear interpolation). A sample equal to an edge belongs to the lower group.
    counts_ : ndarray of shape (n_edges + 1,)
        Samples of `fit` in each group, empty groups included.

    Notes
    -----
    Infinite values are legal (a class never seen has atypicality `+inf`) and NaN is not. An edge that would fall
    between a finite value and `+inf` is put on the finite value, and an edge at `+inf`, above which nothing can
    lie, is dropped like a repeated one.

    Examples
    --------
    >>> QuantileGroups(2).fit([0.1, 0.2, 0.3, 0.4]).assign([0.0, 9.0])
    array([0, 1])
    """

    edges_: Annotated[NDArray[np.float64], kinds.Array("e", kinds.FINITE, kinds.INCREASING)]
    counts_: Annotated[NDArray[np.intp], kinds.Counts("*", kinds.NOT_NEGATIVE)]

    def __init__(self, n_groups: int = 5) -> None:
        self.n_groups = n_groups

    def fit(self, values: ArrayLike, y: object = None) -> Self:
        """Learn the edges from `values` of shape (n_samples,); `y` is ignored."""
        n_groups = check_integer(self.n_groups, "n_groups", low=1)
        vector = _check_sample(values, "values")
        self.edges_ = quantile_edges(vector, n_groups)
        self.counts_ = np.bincount(cut(self.edges_, vector), minlength=self.edges_.size + 1)
        if self.edges_.size < n_groups - 1:
            warn(
                f"values has ties: n_groups={n_groups} became groups of {self.counts_.tolist()} samples. "
                "Use fewer groups, or a continuous atypicality."
            )
        elif not self.counts_.all():
            warn(
                f"n_groups={n_groups} is too many for these {vector.size} values: groups of {self.counts_.tolist()} "
                "samples. Use fewer groups."
            )
        return self

    @classmethod
    def from_edges(cls, edges: ArrayLike, counts: ArrayLike | None = None) -> Self:
        """Groups with edges learnt elsewhere, strictly increasing, and the counts that came with them.

        >>> QuantileGroups.from_edges([0.5, 2.0]).assign([0.5, 0.6, 3.0])
        array([0, 1, 2])
        """
        vector = check_vector(edges, "edges")
        if (np.diff(vector) <= 0).any():
            raise ValueError("edges must be strictly increasing; merge repeated edges first, with np.unique(edges).")
        groups = cls(n_groups=vector.size + 1)
        groups.edges_ = vector.copy()
        groups.counts_ = np.zeros(vector.size + 1, np.intp)
        if counts is not None:
            groups.counts_[:] = check_vector(counts, "counts", n_rows=vector.size + 1)
        return groups

    @property
    def n_groups_(self) -> int:
        """Number of groups after repeated edges have merged."""
        check_is_fitted(self, "edges_")
        return int(self.edges_.size + 1)

    @returns_like_input
    def assign(self, values: ArrayLike) -> NDArray[np.intp]:
        """Group of each of the `values` (n_samples,), counted from 0."""
        check_is_fitted(self, "edges_")
        return cut(self.edges_, check_vector(values, "values", finite=False))

    def _check_stored(self) -> None:
        need(self.counts_.size == self.edges_.size + 1, "there must be one count more than edges.")

    _stored = Record(check=_check_stored, n_groups=kinds.Integer(1))


class Quadrants(BaseEstimator):
    """The four kinds of prediction, from recalibrated confidence, as it is, and atypicality, among held-out rows.

    ===============  =========  ==============
    name             input      confidence
    ===============  =========  ==============
    reliable         typical    confident
    extrapolation    atypical   confident
    ambiguous        typical    low-confidence
    untrustworthy    atypical   low-confidence
    ===============  =========  ==============

    Parameters
    ----------
    confidence : float in [0, 1], default=0.9
        Confident from here on. A head takes 1 - alpha.
    atypicality_quantile : float in [0, 1], default=0.8
        The most atypical fifth of the calibration set is atypical.

    Attributes
    ----------
    confidence_threshold_, atypicality_threshold_ : float
        A value equal to a threshold counts as confident, or as typical.
    counts_ : ndarray of shape (4,)
        Samples of `fit` in each quadrant, in the order of `QUADRANTS`.

    Notes
    -----
    In the paper confident means more so than a fifth of the calibration set: ``paper.RelativeQuadrants``.

    Examples
    --------
    >>> quadrants = Quadrants(confidence=0.8, atypicality_quantile=0.5).fit([0.6, 0.7, 0.8], [1.0, 2.0, 3.0])
    >>> quadrants.assign([0.9, 0.9, 0.5, 0.5], [1.0, 5.0, 1.0, 5.0]).tolist()
    ['reliable', 'extrapolation', 'ambiguous', 'untrustworthy']
    """

    confidence_threshold_: Annotated[float, kinds.Number(0, 1)]
    atypicality_threshold_: Annotated[float, kinds.Number()]
    counts_: Annotated[NDArray[np.intp], kinds.Counts("4", kinds.NOT_NEGATIVE)]
    _stored = Record(
        former=("confidence_quantile",),  # what older files give as a quantile is the threshold it came to
        confidence=kinds.Later(kinds.Number(0, 1), absent=lambda made: made.confidence_threshold_),
        atypicality_quantile=kinds.Number(0, 1),
    )

    def __init__(self, *, confidence: float = 0.9, atypicality_quantile: float = 0.8) -> None:
        self.confidence = confidence
        self.atypicality_quantile = atypicality_quantile

    def fit(self, confidence: ArrayLike, atypicality: ArrayLike) -> Self:
        """Learn what is atypical from a calibration set: `confidence` and `atypicality` of shape (n_samples,)."""
        confident = check_number(self.confidence, "confidence", low=0, high=1)
        atypical = check_number(self.atypicality_quantile, "atypicality_quantile", low=0, high=1)
        _check_sample(confidence, "confidence")
        values, rarity = _check_pair(confidence, atypicality)
        self.confidence_threshold_ = confident
        self.atypicality_threshold_ = float(_quantile(rarity, atypical))
        self.counts_ = np.bincount(self._index(values, rarity), minlength=len(QUADRANTS))
        return self

    def assign(self, confidence: ArrayLike, atypicality: ArrayLike) -> NDArray[np.str_]:
        """Name of the quadrant of every sample, of shape (n_samples,), from its `confidence` and `atypicality`."""
        check_is_fitted(self, "counts_")
        return np.array(QUADRANTS)[self._index(*_check_pair(confidence, atypicality))]

    def _index(self, confidence: NDArray[np.float64], atypicality: NDArray[np.float64]) -> NDArray[np.intp]:
        found: NDArray[np.intp] = self.formula().index(np, confidence, atypicality)
        return found

    def formula(self) -> Quadrant:
        """The parameters of a quadrant; see `atypicality.formula`."""
        return Quadrant(self.confidence_threshold_, self.atypicality_threshold_)


class ClassGroups(BaseEstimator):
    """Cut the sorted list of classes into groups of class atypicality: each class counts once, however many samples.

    Parameters
    ----------
    n_groups : int, default=5
        Group 0 holds the most common classes. With fewer classes than groups some groups hold none (a warning).

    Attributes
    ----------
    class_groups_ : ndarray of shape (n_classes,)
        Group of every class. Classes of equal atypicality are ordered by their index, so a tie may be cut.
    counts_ : ndarray of shape (n_groups,)
        Classes in each group; they differ by at most one.

    Examples
    --------
    >>> ClassGroups(2).fit([0.3, 2.0, 1.0, float("inf")]).assign([0, 1, 2, 3, 0])
    array([0, 1, 0, 1, 0])
    """

    class_groups_: NDArray[np.intp]
    counts_: NDArray[np.intp]

    def __init__(self, n_groups: int = 5) -> None:
        self.n_groups = n_groups

    def fit(self, class_atypicality: ArrayLike, y: object = None) -> Self:
        """Cut the classes by `class_atypicality` of shape (n_classes,), which may be `+inf`; `y` is ignored."""
        n_groups = check_integer(self.n_groups, "n_groups", low=1)
        rarity = _check_sample(class_atypicality, "class_atypicality", what="class")
        self.class_groups_ = np.empty(rarity.size, np.intp)
        self.class_groups_[np.argsort(rarity, kind="stable")] = np.arange(rarity.size) * n_groups // rarity.size
        self.counts_ = np.bincount(self.class_groups_, minlength=n_groups)
        if n_groups > rarity.size:
            warn(f"n_groups={n_groups} for {rarity.size} classes: groups of {self.counts_.tolist()} classes.")
        return self

    @returns_like_input
    def assign(self, labels: ArrayLike) -> NDArray[np.intp]:
        """Group of every sample, by its class; labels of shape (n_samples,) are column indices."""
        check_is_fitted(self, "class_groups_")
        return self.class_groups_[check_labels(labels, n_classes=self.class_groups_.size)]


class GridGroups(BaseEstimator):
    """Cells of a grid: quantile groups of atypicality crossed with quantile groups of confidence.

    Parameters
    ----------
    n_groups : tuple of two ints, default=(6, 6)
        Groups of atypicality and groups of confidence, each cut on its own (see `QuantileGroups`).

    Attributes
    ----------
    atypicality_groups_, confidence_groups_ : QuantileGroups
    shape_ : tuple of two ints
        Groups of either kind after repeated edges have merged; `divmod(cell, shape_[1])` gives a cell's two groups.
    counts_ : ndarray of shape `shape_`
        Samples of `fit` in each cell, empty cells included.

    Examples
    --------
    >>> grid = GridGroups((2, 2)).fit([0.9, 0.6, 0.8, 0.5], [0.0, 1.0, 2.0, 3.0])
    >>> grid.assign([0.9, 0.9], [0.0, 9.0]).tolist(), grid.counts_.tolist()
    ([1, 3], [[1, 1], [1, 1]])
    """

    atypicality_groups_: Annotated[QuantileGroups, Part(QuantileGroups)]
    confidence_groups_: Annotated[QuantileGroups, Part(QuantileGroups)]
    shape_: Annotated[tuple[int, int], kinds.TupleOf(kinds.Integer(1), size="2")]
    counts_: Annotated[NDArray[np.intp], kinds.Counts("* *", kinds.NOT_NEGATIVE)]

    def __init__(self, n_groups: tuple[int, int] = (6, 6)) -> None:
        self.n_groups = n_groups

    def fit(self, confidence: ArrayLike, atypicality: ArrayLike) -> Self:
        """Learn the edges of both from `confidence` and `atypicality` of shape (n_samples,)."""
        if not isinstance(self.n_groups, (tuple, list)) or len(self.n_groups) != 2:
            raise ValueError(f"n_groups must be a pair, (atypicality, confidence); got {self.n_groups!r}.")
        confident, rarity = _check_pair(confidence, atypicality)
        self.atypicality_groups_ = QuantileGroups(self.n_groups[0]).fit(rarity)
        self.confidence_groups_ = QuantileGroups(self.n_groups[1]).fit(confident)
        self.shape_ = (self.atypicality_groups_.n_groups_, self.confidence_groups_.n_groups_)
        cells = self.assign(confident, rarity)
        self.counts_ = np.bincount(cells, minlength=self.shape_[0] * self.shape_[1]).reshape(self.shape_)
        return self

    @returns_like_input
    def assign(self, confidence: ArrayLike, atypicality: ArrayLike) -> NDArray[np.intp]:
        """Cell of every sample, of shape (n_samples,): atypicality group times `shape_[1]` plus confidence group."""
        check_is_fitted(self, "shape_")
        confident, rarity = _check_pair(confidence, atypicality)
        return self.atypicality_groups_.assign(rarity) * self.shape_[1] + self.confidence_groups_.assign(confident)

    def _check_stored(self) -> None:
        shape = self.atypicality_groups_.n_groups_, self.confidence_groups_.n_groups_
        need(tuple(self.shape_) == shape == self.counts_.shape, f"the grid must have shape {shape}, that of its edges.")

    _stored = Record(check=_check_stored, n_groups=kinds.TupleOf(kinds.Integer(1), size="2"))


def _quantile(values: NDArray[np.float64], levels: Any) -> NDArray[np.float64]:
    """Quantiles by linear interpolation; beside an infinity, where that is undefined, the lower neighbour."""
    with np.errstate(invalid="ignore"):
        quantiles = np.asarray(np.quantile(values, levels))
    if not np.isfinite(quantiles).all():
        quantiles = np.where(np.isfinite(quantiles), quantiles, np.quantile(values, levels, method="lower"))
    return quantiles


def _check_sample(values: ArrayLike, name: str, what: str = "sample") -> NDArray[np.float64]:
    vector = check_vector(values, name, finite=False)
    if vector.size == 0:
        raise ValueError(f"{name} must hold at least one {what}; got none. Fit on a calibration set.")
    return vector


def _check_pair(confidence: ArrayLike, atypicality: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    confident = check_confidence(confidence)
    return confident, check_vector(atypicality, "atypicality", n_rows=confident.size, finite=False)
