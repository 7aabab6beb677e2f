"""The convex problem of every parametric recalibrator: its arrays, its parameters, its ridge and its answer."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.recalibration.device_passes import Resident, column_logits, resident
from atypicality.recalibration.device_rows import device_densities, some_rows
from atypicality.recalibration.parameters import Layout, Ridge, Solution, Vector
from atypicality.recalibration.row_statistics import FloatArray, RowStatistics, read_rows, weighted_median
from atypicality.validation import (
    check_choice,
    check_finite,
    check_labels,
    check_length,
    check_logit_maxima,
    check_matrix,
    check_sample_weight,
    name_rows,
)
from atypicality.validation.device import any_logits

__all__ = [
    "PSEUDO_REACH", "PSEUDO_ROWS", "Mixing", "Near", "Problem", "Term", "Units", "check_units", "effective_rows",
]  # fmt: skip

Mixing = Literal["diagonal", "full"]
Rows = slice | NDArray[np.intp]

PSEUDO_ROWS = 2
"""Rows that the prior is worth: one whose label is its largest logit, one whose label is its second largest."""
PSEUDO_REACH = 10.0
"""Median margins that a pseudo-row counts for at most: a single huge row would otherwise outweigh all others."""
SMALL = 2**21
"""Up to this many logits a pass works in float64 whatever the input: it costs milliseconds and carries no noise."""
MANY = 2**18
"""Numbers of a pass, of all classes or parameters, from which on one that only needs some digits works in the type of
the logits: in two thirds of the time."""
MODERATE = 1e6
"""Scale of a term or of the logits up to which, and down to whose inverse, they are read as they are."""
WILD = 1e8
"""Spread of a row over that of the median row from which on its curvature hides that of all others."""


class Near(NamedTuple):
    """Entries of the logits that can hold a noticeable probability; found once, by the first pass that needs them."""

    row: NDArray[np.intp]
    column: NDArray[np.intp]
    logit: FloatArray


@dataclass(frozen=True)
class Term:
    """A matrix that is added to every row's logits, times unknowns that are linear in features of the row.

    Parameters
    ----------
    name : str
        What its strength and its coefficients are called.
    matrix : array of shape (n, k)
        Finite, or -inf where the logits are; on the device of the logits.
    features : array of shape (n, q), optional
        A column of ones by default.
    rows : RowStatistics, optional
        Learnt when a problem reads the matrix.
    """

    name: str
    matrix: Any
    features: Any = None
    rows: Any = None

    @cached_property
    def is_even(self) -> bool:
        """Whether all rows have the same features: one number is a faster factor than one per row."""
        return bool((self.features == self.features[:1]).all())

    def take(self, rows: Rows, matrix: Any) -> "Term":
        """The same term of some rows, with their matrix."""
        known = None if self.rows is None else self.rows.take(rows)
        return replace(self, matrix=matrix, features=blocks.take_rows(self.features, rows), rows=known)

    def rounded(self, dtype: np.dtype[Any]) -> "Term":
        """The same term with a matrix of another type, less the maximum of each row, so that no pass converts it."""
        if self.matrix.dtype == dtype:
            return self
        matrix = blocks.empty(self.matrix.shape, dtype)
        np.subtract(self.matrix, self.rows.top[:, None], out=matrix, dtype=dtype, casting="same_kind")
        return replace(self, matrix=matrix, rows=replace(self.rows, top=np.zeros(len(matrix), dtype)))


@dataclass(frozen=True)
class Units:
    """Standard units and prior of a problem: its attributes of these names."""

    dtype: np.dtype[Any]
    scale: float = 1.0
    term_scales: Mapping[str, float] = field(default_factory=dict)
    pseudo_share: float = 0.0
    pseudo_reach: float = 1.0


class Problem:
    r"""Minimise the mean cross-entropy of ``softmax((F_i . c) z_i + sum_t (F_ti . c_t) M_ti + W z_i + S)`` and a ridge.

    Everything but the first is optional. In ``W z_i`` the logits are measured from a point between their row's maximum
    and the mean of its finite entries, so a constant added to a row changes nothing; a masked class (`-inf`) keeps
    probability 0 and contributes nothing else. Nothing is copied: memory maps are read block by block in every pass,
    and logits on a device stay there (then so do the matrices of the terms; all other arrays are on the host).

    With `pseudo_rows` the objective has a prior: one right and one wrong row, spread evenly over all n rows, so that
    each of these carries 1 / (n + 2) of its largest and of its second largest class in its target beside the label.
    Only the linear part of the objective changes; n rows without an error then have a finite optimum, at which they are
    wrong with a chance of about 1 / (n + 2).

    Parameters
    ----------
    logits : array-like of shape (n, k)
        z; float32 and float64 are kept, a single column of a binary model becomes [0, z].
    labels : array-like of shape (n,)
        Column indices.
    features : array-like of shape (n, p), optional
        F; a column of ones by default.
    terms : sequence of Term, optional
        Matrices M_t and their features F_t.
    class_scores : bool, default=False
        Whether there are scores S.
    mixing : {None, "diagonal", "full"}, default=None
        The form of W.
    middle : float, default=1.0
        How far from a row's maximum toward its mean the point is that W measures from.
    ridge : Ridge, optional
    sample_weight : array-like of shape (n,), optional
    pseudo_rows : bool, default=False
    units : Units, optional
        Those of a problem that these rows are a part of; learnt from the rows by default.

    Attributes
    ----------
    n_rows, n_classes, n_parameters, n_errors : int
    scale : float
        Weighted median over rows of the standard deviation of z_i across classes, constant rows aside.
    term_scales : dict of str to float
        The same of each term's matrix.
    seen : ndarray of shape (k,), bool
        Classes with weight among the labels.
    """

    remote: Callable[[Vector, Any], Any] | None = None
    """What gives `passes.sums` where the rows are elsewhere."""
    remote_losses: Callable[[Vector, int], Vector] | None = None
    """What gives `passes.row_losses` of evenly spaced rows there, and how many at most."""

    def __init__(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        terms: Sequence[Term] = (),
        class_scores: bool = False,
        mixing: Mixing | None = None,
        middle: float = 1.0,
        ridge: Ridge | None = None,
        sample_weight: ArrayLike | None = None,
        pseudo_rows: bool = False,
        units: Units | None = None,
    ) -> None:
        self.logits = any_logits(logits, scan=False)
        n, k = self.logits.shape
        if n == 0:
            raise ValueError("logits must have at least one row to fit; got none.")
        self.labels = check_labels(labels, n_classes=k, n_rows=n)
        weight = check_sample_weight(sample_weight, n)
        self.total = float(n if weight is None else weight.sum())
        self.weights = np.full(n, 1 / n) if weight is None else weight / weight.sum()
        self.features = _columns(features, "features", n)
        self.middle = middle
        self.mixing = check_choice(mixing, "mixing", (None, "diagonal", "full"))
        self.class_scores = class_scores
        self.rows = self._read_logits()
        self.terms = tuple(self._read_term(term) for term in terms)
        self.near: Near | None = None
        if units is None:
            self._learn_units(pseudo_rows)
        else:
            vars(self).update(vars(units))
        self._set_ridge(ridge or Ridge())

    @property
    def on_device(self) -> bool:
        """Whether the logits lie on a device, so that passes run there."""
        return not isinstance(self.logits, np.ndarray)

    @property
    def n_rows(self) -> int:
        """Rows of the logits."""
        return int(self.logits.shape[0])

    @property
    def n_classes(self) -> int:
        """Columns of the logits."""
        return int(self.logits.shape[1])

    @property
    def n_effective(self) -> float:
        """Rows that the weights are worth."""
        return effective_rows(self.total, self.weights)

    @property
    def n_errors(self) -> int:
        """Rows with weight whose label has not the largest logit."""
        return int(np.count_nonzero((self.rows.gap < 0) & (self.weights > 0)))

    @property
    def widest(self) -> float:
        """Largest standard deviation of a row of the logits."""
        return float(self.rows.deviation.max())

    @property
    def n_parameters(self) -> int:
        """All parameters, those fixed by the projection included."""
        return self.layout.size

    @cached_property
    def layout(self) -> Layout:
        """The place of each group of parameters in the flat vector."""
        k = self.n_classes
        mixing = {None: 0, "diagonal": k, "full": k * k}[self.mixing]
        terms = {term.name: term.features.shape[1] for term in self.terms}
        return Layout.of(self.features.shape[1], terms, mixing, k if self.class_scores else 0)

    @cached_property
    def seen(self) -> NDArray[np.bool_]:
        """Classes with weight among the labels."""
        return np.bincount(self.labels, self.weights, minlength=self.n_classes) > 0

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """What a pass computes in; sums over rows are float64 always."""
        wide = self.on_device or self.logits.size <= SMALL or not 1e-25 < self.scale < 1e25
        return np.dtype(np.float64) if wide else self.logits.dtype

    @cached_property
    def workspace(self) -> blocks.Workspace:
        """Buffers of all passes, also of those over parts of the rows: fresh memory costs as much as a pass."""
        return blocks.Workspace()

    @cached_property
    def resident(self) -> Resident:
        """Columns of the rows on the device of the logits."""
        return resident(self)

    def is_pinned(self, where: slice) -> bool:
        """Whether the projection fixes class-wise parameters: those without a ridge, which alone would fix them."""
        return not (self.penalty[where] > 0).all()

    @cached_property
    def units(self) -> Vector:
        """What a standardised parameter is divided by to belong to the logits as given."""
        layout, units = self.layout, np.ones(self.layout.size)
        units[layout.features] = units[layout.mixing] = self.scale
        for name, where in layout.terms.items():
            units[where] = self.term_scales[name]
        return units

    def unit_left(self, name: str | None = None) -> float:
        """What the matrix of a term, or the logits, are still to be divided by where a pass reads them: a scale, or 1.

        A number for every row is divided instead of the matrix where squares of the latter fit as well.
        """
        scale = self.scale if name is None else self.term_scales[name]
        return scale if MODERATE > scale > 1 / MODERATE else 1.0

    def with_ridge(self, ridge: Ridge) -> "Problem":
        """The same rows with other strengths; nothing is read again."""
        other = copy.copy(self)
        other._set_ridge(ridge)
        return other

    def with_penalty(self, penalty: Vector) -> "Problem":
        """The same rows with one strength for each standardised parameter (P,); nothing is read again."""
        other = copy.copy(self)
        other.penalty = penalty
        return other

    def rounded(self) -> "Problem":
        """The same rows with passes in the type of the logits where these are many: enough to come near an optimum."""
        many = self.n_rows * max(self.n_classes, self.n_parameters) > MANY and 1e-25 < self.scale < 1e25
        if not many or self.on_device or self.remote is not None:
            return self
        other = copy.copy(self)
        other.dtype = self.logits.dtype
        other.terms = tuple(term.rounded(other.dtype) for term in self.terms)
        return other

    def widened(self) -> "Problem":
        """The same rows with passes in float64, for sums that cancel in the type of the logits."""
        if self.dtype == np.float64:
            return self
        other = copy.copy(self)
        other.dtype = np.dtype(np.float64)
        return other

    def with_terms(
        self, terms: Sequence[Term] = (), *, class_scores: bool = False, mixing: Mixing | None = None
    ) -> "Problem":
        """The same rows with other terms and no penalty; only what is new is read."""
        other = self._forget("layout", "units", "label_mean", "prior_mean", "resident")
        other.class_scores, other.mixing = class_scores, mixing
        other.terms = tuple(term if term.rows is not None else self._read_term(term) for term in terms)
        if new := [term for term in other.terms if term.name not in self.term_scales]:
            other.term_scales = {**self.term_scales, **self._scales_of(new)}
        other._set_ridge(Ridge())
        return other

    def with_features(self, features: ArrayLike) -> "Problem":
        """The same rows with other features and no penalty."""
        other = self._forget("layout", "units", "label_mean", "prior_mean", "resident")
        other.features = _columns(features, "features", self.n_rows)
        other._set_ridge(Ridge())
        return other

    def take(self, rows: Rows) -> "Problem":
        """Some of the rows, in the same standard units: strengths mean the same and solutions carry over."""
        other = self._forget("seen", "label_mean", "prior_mean", "pseudo_weights", "resident")
        take = some_rows if self.on_device else blocks.take_rows
        other.dtype = self.dtype  # a part of a large problem is read like the whole
        other.logits = take(self.logits, rows)
        for name in ("labels", "features"):
            setattr(other, name, blocks.take_rows(getattr(self, name), rows))
        other.rows, other.near = self.rows.take(rows), None
        other.terms = tuple(term.take(rows, take(term.matrix, rows)) for term in self.terms)
        weights = self.weights[rows]
        if not weights.sum() > 0:
            raise ValueError("rows must carry weight; the chosen rows have none.")
        other.weights, other.total = weights / weights.sum(), self.total * float(weights.sum())
        other._set_prior(self.pseudo_share > 0)
        return other

    def standardise(self, solution: Solution) -> Vector:
        """A solution as the flat vector of standardised parameters of this problem; missing groups are 0."""
        theta, layout = np.zeros(self.layout.size), self.layout
        for where, values in (
            (layout.features, solution.coefficients),
            *((where, solution.terms.get(name)) for name, where in layout.terms.items()),
            (layout.mixing, solution.mixing),
            (layout.scores, solution.scores),
        ):
            if values is not None and values.size == where.stop - where.start:
                theta[where] = np.ravel(values)
        return theta * self.units

    def parts(self, theta: Vector) -> tuple[Vector, dict[str, Vector], Vector | None, Vector | None]:
        """The flat vector as (c, those of the terms, W, S), the last two None where they are absent."""
        layout, k = self.layout, self.n_classes
        w = theta[layout.mixing]
        return (
            theta[layout.features],
            {name: theta[where] for name, where in layout.terms.items()},
            None if self.mixing is None else w.reshape(k, k) if self.mixing == "full" else w,
            theta[layout.scores] if self.class_scores else None,
        )

    def project(self, theta: Vector) -> Vector:
        """Fix what the loss cannot see: class-wise parameters get mean 0 over seen classes and 0 on absent ones.

        Only those without a ridge. Acts on the last axis; an orthogonal projection, so it serves gradients and Hessians
        too.
        """
        layout, k, theta = self.layout, self.n_classes, theta.copy()
        for where in (layout.mixing, layout.scores):
            if where.stop > where.start and self.is_pinned(where):
                block = theta[..., where].reshape(*theta.shape[:-1], k, -1)
                block = block - block[..., self.seen, :].mean(axis=-2, keepdims=True)
                block[..., ~self.seen, :] = 0
                theta[..., where] = block.reshape(*theta.shape[:-1], -1)
        return theta

    @cached_property
    def label_mean(self) -> Vector:
        """Weighted mean over rows of the parameters' inputs at the target: the linear part of the objective."""
        return self._inputs_at(self.labels, self.weights, lambda rows: rows.gap) + self.prior_mean

    @cached_property
    def prior_mean(self) -> Vector:
        """What the pseudo-rows add to `label_mean`, and to the loss of the labels with the opposite sign."""
        if not self.pseudo_share:
            return np.zeros(self.layout.size)
        weights = self.pseudo_weights
        mean = self._inputs_at(self.labels, -2 * weights, lambda rows: rows.gap)
        mean += self._inputs_at(self.rows.best, weights, lambda rows: rows.pair[:, 0])
        mean += self._inputs_at(self.rows.runner_up, weights, lambda rows: rows.pair[:, 1])
        return mean

    @cached_property
    def pseudo_weights(self) -> Vector:
        """What each row's target gives to its largest, and as much to its second largest class (n,)."""
        margin = np.maximum(-self.rows.pair[:, 1], self.pseudo_reach)
        return self.weights * (self.pseudo_share * self.pseudo_reach / margin)

    def _inputs_at(
        self, columns: NDArray[np.intp], weights: Vector, entries: Callable[[RowStatistics], Vector]
    ) -> Vector:
        """Weighted sum of the parameters' inputs at one column of every row; `entries` less the maximum are known."""
        layout, k, sums, gap = self.layout, self.n_classes, np.zeros(self.layout.size), entries(self.rows)
        sums[layout.features] = (weights * (gap / self.scale)) @ self.features
        for term in self.terms:
            scaled = entries(term.rows) / self.term_scales[term.name]
            sums[layout.terms[term.name]] = (weights * scaled) @ term.features
        if self.mixing == "diagonal":
            sums[layout.mixing] = np.bincount(columns, weights * ((gap - self.rows.mean) / self.scale), minlength=k)
        if self.mixing == "full":
            found = column_logits(self, columns, weights) if self.on_device else self._logits_at(columns, weights)
            sums[layout.mixing] = found.ravel()
        if self.class_scores:
            sums[layout.scores] = np.bincount(columns, weights, minlength=k)
        return sums

    def _logits_at(self, columns: NDArray[np.intp], weights: Vector) -> Vector:
        """Weighted sum of standardised centred logits over the rows that have each class as their column (k, k)."""

        def block(rows: slice) -> Vector:
            z = self.logits[rows]
            x = z - self.rows.top[rows, None].astype(np.float64) - self.rows.mean[rows, None]
            x[np.isneginf(z)] = 0
            chosen = np.zeros(z.shape)
            chosen[np.arange(z.shape[0]), columns[rows]] = weights[rows]
            return np.asarray(chosen.T @ (x / self.scale))

        return blocks.reduce_rows(block, self.n_rows, block=blocks.block_rows(8 * self.n_classes))

    def _forget(self, *names: str) -> "Problem":
        other = copy.copy(self)
        for name in names:
            other.__dict__.pop(name, None)
        return other

    def _learn_units(self, pseudo_rows: bool) -> None:
        self.scale = weighted_median(self.rows.deviation, self.weights)
        wild = np.flatnonzero(self.rows.deviation > WILD * self.scale)
        check_units(self.scale, name_rows(wild, "spreads", "spread") if wild.size else "")
        self.term_scales = self._scales_of(self.terms)
        self._set_prior(pseudo_rows)

    def _scales_of(self, terms: Iterable[Term]) -> dict[str, float]:
        scales = {term.name: weighted_median(term.rows.deviation, self.weights) for term in terms}
        return {name: scale or 1.0 for name, scale in scales.items()}  # a constant matrix has no effect

    def _set_prior(self, pseudo_rows: bool) -> None:
        self.pseudo_share = 1 / (self.n_effective + PSEUDO_ROWS) if pseudo_rows else 0.0
        median = weighted_median(-self.rows.pair[:, 1], self.weights)
        self.pseudo_reach = PSEUDO_REACH * median or 1.0  # without a margin there is nothing to limit

    def _set_ridge(self, ridge: Ridge) -> None:
        layout, penalty = self.layout, np.zeros(self.layout.size)
        for where, strength, name in (
            (layout.features, ridge.features, "features"),
            *((layout.terms[name], ridge.terms.get(name, 0.0), f"terms[{name!r}]") for name in layout.terms),
            (layout.mixing, ridge.mixing, "mixing"),
            (layout.scores, ridge.scores, "scores"),
        ):
            values = np.asarray(strength, dtype=np.float64)
            size = where.stop - where.start
            if values.ndim and values.shape != (size,):
                raise ValueError(
                    f"ridge.{name} must be one strength or {size}, one per column; got shape {values.shape}."
                )
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise ValueError(f"ridge.{name} must be finite and not negative; got {strength!r}.")
            penalty[where] = values
        self.penalty = penalty

    def _read_logits(self) -> RowStatistics:
        found = read_rows(self.logits, self.labels, lambda top, first: check_logit_maxima(top, first_row=first))
        bad = np.flatnonzero(np.isneginf(found.gap))
        if bad.size:
            raise ValueError(
                f"labels must not point at a masked class; {name_rows(bad, 'has', 'have', of='labels')} the label of a "
                "class whose logit is -inf. Unmask the class or drop those rows."
            )
        return replace(found, mean=self.middle * found.mean)

    def _read_term(self, term: Term) -> Term:
        """The term with its matrix beside the logits, its features, and what is known of each row."""
        name = term.name
        if self.on_device:
            matrix = device_densities(term.matrix, self.logits, name)
        else:
            matrix = check_matrix(term.matrix, name, width=self.n_classes)
        check_length(matrix, name, self.n_rows)
        features = _columns(term.features, f"features of {name}", self.n_rows)
        return replace(term, matrix=matrix, features=features, rows=self._rows_of(matrix, name))

    def _rows_of(self, matrix: Any, name: str) -> RowStatistics:
        found = read_rows(
            matrix, self.labels, lambda top, first: check_finite(top, name, first_row=first), logits=self.rows
        )
        bad = np.flatnonzero(found.masked)
        if bad.size:
            raise ValueError(
                f"{name} must be finite; {name_rows(bad)} -inf. A class that a density has not seen "
                "can be given the smallest log-density of its row."
            )
        return found


def check_units(scale: float, wild: str) -> None:
    """Refuse logits without a unit, and those of which some rows, named by `wild`, are of another size."""
    if not 0 < scale < np.inf:
        raise ValueError(
            "logits must differ between classes in some row with weight, and by less than 1e300; the median "
            f"standard deviation of a row is {scale:g}. Constant rows say nothing about the class."
        )
    if wild:
        raise ValueError(
            f"logits must be of comparable size; {wild} more than {WILD:g} times as far as the median row, and no "
            "multiplier can serve both. Drop or repair those rows."
        )


def effective_rows(total: float, weights: Vector) -> float:
    """Rows that weights with sum `total` are worth: that sum, or Kish's effective number where it is larger.

    `weights` are those that sum to 1. A weight of 2 is a repeated row; weights on a smaller scale are not fewer rows.
    """
    return max(total, 1 / float(weights @ weights))


def _columns(values: ArrayLike | None, name: str, n_rows: int) -> Vector:
    if values is None:
        return np.ones((n_rows, 1))
    columns = check_matrix(values, name).astype(np.float64, copy=False)
    check_length(columns, name, n_rows)
    check_finite(columns, name)
    return columns
