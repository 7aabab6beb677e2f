"""The convex problem of every parametric recalibrator: its arrays, its parameters, its ridge and its answer."""

import copy
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.recalibration.device_passes import Resident, label_logits, resident
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

__all__ = ["Mixing", "Near", "Problem"]

Mixing = Literal["diagonal", "full"]
Rows = slice | NDArray[np.intp]

SMALL = 2**21
"""Up to this many logits a pass works in float64 whatever the input: it costs milliseconds and carries no noise."""


WILD = 1e8
"""Spread of a row over that of the median row from which on its curvature hides that of all others."""


class Near(NamedTuple):
    """Entries of the logits that can hold a noticeable probability; found once, by the first pass that needs them."""

    row: NDArray[np.intp]
    column: NDArray[np.intp]
    logit: FloatArray


class Problem:
    r"""Minimise the mean cross-entropy of ``softmax((F_i . c) z_i + (G_i . e) d_i + W z_i + S)`` plus a ridge.

    Every term but the first is optional. In ``W z_i`` the logits are centred by the row mean of their finite
    entries, so a constant added to a row changes nothing; a masked class (`-inf`) keeps probability 0 and
    contributes nothing else. Nothing is copied: memory maps are read block by block in every pass, and logits on a
    device stay there (then so do the densities; all other arrays are on the host).

    Parameters
    ----------
    logits : array-like of shape (n, k)
        z; float32 and float64 are kept, a single column of a binary model becomes [0, z].
    labels : array-like of shape (n,)
        Column indices.
    features : array-like of shape (n, p), optional
        F; a column of ones by default.
    densities : array-like of shape (n, k), optional
        d, class log-densities: finite.
    density_features : array-like of shape (n, q), optional
        G; a column of ones by default when there are densities.
    class_scores : bool, default=False
        Whether there are scores S.
    mixing : {None, "diagonal", "full"}, default=None
        The form of W.
    ridge : Ridge, optional
    sample_weight : array-like of shape (n,), optional

    Attributes
    ----------
    n_rows, n_classes, n_parameters : int
    scale, density_scale : float
        Weighted median over rows of the standard deviation of z_i and of d_i across classes, constant rows aside.
    seen : ndarray of shape (k,), bool
        Classes with weight among the labels.
    """

    def __init__(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        features: ArrayLike | None = None,
        densities: ArrayLike | None = None,
        density_features: ArrayLike | None = None,
        class_scores: bool = False,
        mixing: Mixing | None = None,
        ridge: Ridge | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        self.logits = any_logits(logits, scan=False)
        n, k = self.logits.shape
        if n == 0:
            raise ValueError("logits must have at least one row to fit; got none.")
        self.labels = check_labels(labels, n_classes=k, n_rows=n)
        weight = check_sample_weight(sample_weight, n)
        self.weights = np.full(n, 1 / n) if weight is None else weight / weight.sum()
        self.features = _columns(features, "features", n)
        self.densities = None if densities is None else self._beside_logits(densities)
        self.density_features = _columns(density_features, "density_features", n)
        if self.densities is None:
            self.density_features = self.density_features[:, :0]
        else:
            check_length(self.densities, "densities", n)
        self.mixing = check_choice(mixing, "mixing", (None, "diagonal", "full"))
        self.class_scores = class_scores
        self.rows = self._read_logits()
        self.scale = weighted_median(self.rows.deviation, self.weights)
        if not 0 < self.scale < np.inf:
            raise ValueError(
                "logits must differ between classes in some row with weight, and by less than 1e300; the median "
                f"standard deviation of a row is {self.scale:g}. Constant rows say nothing about the class."
            )
        wild = np.flatnonzero(self.rows.deviation > WILD * self.scale)
        if wild.size:
            raise ValueError(
                f"logits must be of comparable size; {name_rows(wild, 'spreads', 'spread')} more than {WILD:g} times "
                "as far as the median row, and no multiplier can serve both. Drop or repair those rows."
            )
        self.density_rows, self.density_scale = self._read_densities()
        self.near: Near | None = None
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
    def n_parameters(self) -> int:
        """All parameters, those fixed by the projection included."""
        return self.layout.size

    @cached_property
    def layout(self) -> Layout:
        """Where each group of parameters lies in the flat vector."""
        k = self.n_classes
        mixing = {None: 0, "diagonal": k, "full": k * k}[self.mixing]
        return Layout.of(self.features.shape[1], self.density_features.shape[1], mixing, k if self.class_scores else 0)

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
    def resident(self) -> Resident:
        """Columns of the rows on the device of the logits."""
        return resident(self)

    @property
    def centres_mixing(self) -> bool:
        """Whether the projection gives mixing mean 0 over the seen classes, as it does scores."""
        return True

    @cached_property
    def units(self) -> Vector:
        """What a standardised parameter is divided by to belong to the logits as given."""
        layout, units = self.layout, np.ones(self.layout.size)
        units[layout.features] = units[layout.mixing] = self.scale
        units[layout.densities] = self.density_scale
        return units

    def with_ridge(self, ridge: Ridge) -> "Problem":
        """The same rows with other strengths; nothing is read again."""
        other = copy.copy(self)
        other._set_ridge(ridge)
        return other

    def with_terms(
        self, *, class_scores: bool = False, mixing: Mixing | None = None, densities: bool = False
    ) -> "Problem":
        """The same rows with fewer terms; nothing is read again."""
        other = self._forget("layout", "units", "label_mean", "resident")
        other.class_scores, other.mixing = class_scores, mixing
        if not densities:
            other.densities, other.density_rows, other.density_features = None, None, self.density_features[:, :0]
        ridge = self._ridge
        other._set_ridge(Ridge(ridge.features, ridge.densities if densities else 0.0, ridge.mixing, ridge.scores))
        return other

    def with_features(self, features: ArrayLike) -> "Problem":
        """The same rows with other features and no penalty on them."""
        other = self._forget("layout", "units", "label_mean", "resident")
        other.features = _columns(features, "features", self.n_rows)
        ridge = self._ridge
        other._set_ridge(Ridge(0.0, ridge.densities, ridge.mixing, ridge.scores))
        return other

    def take(self, rows: Rows) -> "Problem":
        """Some of the rows, in the same standard units: strengths mean the same and solutions carry over."""
        other = self._forget("seen", "label_mean", "resident")
        take = some_rows if self.on_device else blocks.take_rows
        other.dtype = self.dtype  # a part of a large problem is read like the whole
        other.logits = take(self.logits, rows)
        for name in ("labels", "features", "density_features"):
            setattr(other, name, blocks.take_rows(getattr(self, name), rows))
        other.rows, other.near = self.rows.take(rows), None
        if self.densities is not None and self.density_rows is not None:
            other.densities = take(self.densities, rows)
            other.density_rows = self.density_rows.take(rows)
        weights = self.weights[rows]
        if not weights.sum() > 0:
            raise ValueError("rows must carry weight; the chosen rows have none.")
        other.weights = weights / weights.sum()
        return other

    def standardise(self, solution: Solution) -> Vector:
        """A solution as the flat vector of standardised parameters of this problem; missing groups are 0."""
        theta, layout = np.zeros(self.layout.size), self.layout
        for where, values in (
            (layout.features, solution.coefficients),
            (layout.densities, solution.density_coefficients),
            (layout.mixing, solution.mixing),
            (layout.scores, solution.scores),
        ):
            if values is not None and values.size == where.stop - where.start:
                theta[where] = np.ravel(values)
        return theta * self.units

    def parts(self, theta: Vector) -> tuple[Vector, Vector, Vector | None, Vector | None]:
        """The flat vector as (c, e, W, S), each None where the term is absent."""
        layout, k = self.layout, self.n_classes
        w = theta[layout.mixing]
        return (
            theta[layout.features],
            theta[layout.densities],
            None if self.mixing is None else w.reshape(k, k) if self.mixing == "full" else w,
            theta[layout.scores] if self.class_scores else None,
        )

    def project(self, theta: Vector) -> Vector:
        """Fix what the loss cannot see: class-wise parameters get mean 0 over seen classes and 0 on absent ones.

        Acts on the last axis; an orthogonal projection, so it serves gradients and Hessians too.
        """
        layout, k, theta = self.layout, self.n_classes, theta.copy()
        for where in (layout.mixing, layout.scores):
            if where.stop > where.start:
                block = theta[..., where].reshape(*theta.shape[:-1], k, -1)
                block = block - block[..., self.seen, :].mean(axis=-2, keepdims=True)
                block[..., ~self.seen, :] = 0
                theta[..., where] = block.reshape(*theta.shape[:-1], -1)
        return theta

    @cached_property
    def label_mean(self) -> Vector:
        """Weighted mean over rows of the parameters' inputs at the label: the linear part of the loss."""
        layout, weights, mean = self.layout, self.weights, np.zeros(self.layout.size)
        mean[layout.features] = (weights * (self.rows.gap / self.scale)) @ self.features
        if self.density_rows is not None:
            gap = self.density_rows.gap / self.density_scale
            mean[layout.densities] = (weights * gap) @ self.density_features
        if self.mixing == "diagonal":
            centred = (self.rows.gap - self.rows.mean) / self.scale
            mean[layout.mixing] = np.bincount(self.labels, weights * centred, minlength=self.n_classes)
        if self.mixing == "full":
            mean[layout.mixing] = (label_logits(self) if self.on_device else self._label_logits()).ravel()
        if self.class_scores:
            mean[layout.scores] = np.bincount(self.labels, weights, minlength=self.n_classes)
        return mean

    def _label_logits(self) -> Vector:
        """Weighted sum of standardised centred logits over the rows of each class (k, k)."""

        def block(rows: slice) -> Vector:
            z = self.logits[rows]
            x = z - self.rows.top[rows, None].astype(np.float64) - self.rows.mean[rows, None]
            x[np.isneginf(z)] = 0
            chosen = np.zeros(z.shape)
            chosen[np.arange(z.shape[0]), self.labels[rows]] = self.weights[rows]
            return np.asarray(chosen.T @ (x / self.scale))

        return blocks.reduce_rows(block, self.n_rows, block=blocks.block_rows(8 * self.n_classes))

    def _forget(self, *names: str) -> "Problem":
        other = copy.copy(self)
        for name in names:
            other.__dict__.pop(name, None)
        return other

    def _set_ridge(self, ridge: Ridge) -> None:
        layout, penalty = self.layout, np.zeros(self.layout.size)
        for where, strength, name in (
            (layout.features, ridge.features, "features"),
            (layout.densities, ridge.densities, "densities"),
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
        self._ridge, self.penalty = ridge, penalty

    def _read_logits(self) -> RowStatistics:
        found = read_rows(self.logits, self.labels, lambda top, first: check_logit_maxima(top, first_row=first))
        bad = np.flatnonzero(np.isneginf(found.gap))
        if bad.size:
            raise ValueError(
                f"labels must not point at a masked class; {name_rows(bad, 'has', 'have')} the label of a class whose "
                "logit is -inf. Unmask the class or drop those rows."
            )
        return found

    def _beside_logits(self, densities: Any) -> Any:
        if self.on_device:
            return device_densities(densities, self.logits, "densities")
        return check_matrix(densities, "densities", width=self.n_classes)

    def _read_densities(self) -> tuple[RowStatistics | None, float]:
        if self.densities is None:
            return None, 1.0
        found = read_rows(
            self.densities, self.labels, lambda top, first: check_finite(top, "densities", first_row=first)
        )
        bad = np.flatnonzero(found.masked)
        if bad.size:
            raise ValueError(
                f"densities must be finite; {name_rows(bad)} -inf. A class that the density has not seen "
                "can be given the smallest log-density of its row."
            )
        scale = weighted_median(found.deviation, self.weights)
        return found, scale or 1.0  # constant densities: their coefficients have no effect


def _columns(values: ArrayLike | None, name: str, n_rows: int) -> Vector:
    if values is None:
        return np.ones((n_rows, 1))
    columns = check_matrix(values, name).astype(np.float64, copy=False)
    check_length(columns, name, n_rows)
    check_finite(columns, name)
    return columns
