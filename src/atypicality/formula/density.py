"""How rare rows are: log-densities under the Gaussians of all classes, and distances to training rows.

All kinds work in two steps: `products`, matrix products that want many rows at once, and what is made of these, which
wants rows that fit into the cache. On the host products may lie in buffers of the caller, who has to be done with them
before the next ones: new memory for each block takes as long as a tenth of the products.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from atypicality.formula.rows import Buffers, Xp, placed, row_maxima, row_tops, squared_lengths, unit_rows

__all__ = [
    "ClassDensity", "LinearDensity", "NeighborDensity", "RelativeDensity", "TiedDensity", "TwoDensities", "aligned",
]  # fmt: skip

TILE = 4096
"""Training rows that queries are compared with at a time."""
CLOSE = 1e-10
"""Relative difference that turned axes may make to a squared length."""
STEP, WIDE, MANY = 64, 128, 4096
"""Columns of a triangular whitening that are multiplied at a time; its columns and entries of rows from which on that
is quicker than all at once."""
SPARE = 8
"""Neighbours beyond those asked for that are measured directly: products may order near ones wrongly."""


def aligned(xp: Xp, densities: Any, sources: Any) -> Any:
    """Columns of class log-densities (n, m) by their number (k,); one beyond the last is the row minimum."""
    return xp.take(xp.concat([densities, xp.min(densities, axis=1, keepdims=True)], axis=1), sources, axis=1)


def prepared(xp: Xp, rows: Any, normalize: str | None, buffers: Buffers | None = None) -> Any:
    """Rows (n, d) as a density reads them."""
    return rows if normalize is None else unit_rows(xp, rows, buffers)[0]


def centred(xp: Xp, rows: Any, centre: Any, buffers: Buffers | None = None, *, own: bool = False) -> Any:
    """Rows (n, d) less a centre (d,), in the type of the centre; those in buffers, the `own` ones, are overwritten."""
    if buffers is None:
        return xp.astype(rows - centre, centre.dtype, copy=False)
    if own and rows.dtype == centre.dtype:
        rows -= centre
        return rows
    out = buffers("centred", rows.shape, centre.dtype)
    if rows.itemsize > centre.itemsize:
        return np.subtract(rows, centre, out=out, casting="same_kind")
    np.copyto(out, rows)  # two passes are quicker than one where two types meet
    out -= centre
    return out


def product(first: Any, second: Any, name: str, buffers: Buffers | None = None) -> Any:
    """``first @ second``, in the buffer of this name where there are buffers."""
    if buffers is None:
        return first @ second
    return np.matmul(first, second, out=buffers(name, (first.shape[0], second.shape[1]), second.dtype))


def is_triangular(matrix: Any) -> bool:
    """Whether a matrix (d, d) is zero below its diagonal, and so wide that this saves time."""
    return matrix.shape[0] == matrix.shape[1] >= WIDE and not np.tril(matrix, -1).any()


def whitened(xp: Xp, rows: Any, whitening: Any, triangular: bool, buffers: Buffers | None = None) -> Any:
    """Rows (n, d) times a whitening (d, r); two thirds of the work where that is `triangular` and rows are NumPy's."""
    if not triangular or not isinstance(rows, np.ndarray) or rows.size < MANY:
        return product(rows, whitening, "whitened", buffers)
    out = (buffers or _fresh)("whitened", rows.shape, whitening.dtype)
    for start in range(0, out.shape[1], STEP):
        stop = min(start + STEP, out.shape[1])
        np.matmul(rows[:, :stop], whitening[:stop, start:stop], out=out[:, start:stop])
    return out


def _fresh(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    return np.empty(shape, dtype)


@dataclass(frozen=True)
class TiedDensity:
    """Gaussians that share a covariance: rows are whitened once, then one product reaches all means.

    In whitened space log p(x | y) is `log_peak - |z - m_y|^2 / 2`, and only `z . m_y - |m_y|^2 / 2` differs between
    classes. The winner's distance is then taken directly, in float64, because the expanded square loses digits.
    """

    centre: Any  # (d,), subtracted from the rows first; its type is that of the products
    whitening: Any  # (d, r)
    targets: Any  # (r, k), the means below, transposed, in the type of the products
    bias: Any  # (k,), minus half the squared length of each mean
    means: Any  # (k, r), of classes, centred and whitened, in float64
    numbers: Any  # int (k,)
    log_peak: float
    log_prior: Any = None  # (k,), where atypicality is of the marginal density
    normalize: str | None = None  # "l2": rows are divided by their length first; those of zeros then score NaN
    triangular: bool = False  # of the whitening

    @classmethod
    def of(
        cls,
        centre: Any,
        whitening: Any,
        means: Any,
        log_peak: float,
        log_prior: Any = None,
        normalize: str | None = None,
    ) -> Self:
        """From centre (d,), whitening (d, r), and centred and whitened means (k, r)."""
        dtype = centre.dtype
        bias = (-0.5 * np.vecdot(means, means)).astype(dtype)
        targets = np.ascontiguousarray(means.T, dtype)
        numbers, triangular = np.arange(len(means)), is_triangular(whitening)
        return cls(centre, whitening, targets, bias, means, numbers, float(log_peak), log_prior, normalize, triangular)

    @property
    def n_classes(self) -> int:
        """Columns of class log-densities."""
        return int(self.bias.shape[0])

    def products(self, xp: Xp, rows: Any, buffers: Buffers | None = None) -> tuple[Any, ...]:
        """Whitened rows (n, r), and `z . m_y - |m_y|^2 / 2` (n, k)."""
        rows = prepared(xp, rows, self.normalize, buffers)
        rows = centred(xp, rows, self.centre, buffers, own=self.normalize is not None)
        z = whitened(xp, rows, self.whitening, self.triangular, buffers)
        scores = product(z, self.targets, "scores", buffers)
        scores += self.bias
        return z, scores

    def class_log_density(self, xp: Xp, products: tuple[Any, ...]) -> Any:
        """Log p(x | y) (n, k)."""
        z, scores = products
        best = xp.argmax(scores, axis=1)
        length = squared_lengths(xp, xp.astype(z, xp.float64, copy=False))
        densities = xp.astype(scores, xp.float64, copy=False) + (self.log_peak - 0.5 * length)
        return placed(xp, densities, self.numbers, best, self.log_peak - self.half_distance(xp, z, best))

    def atypicality(self, xp: Xp, products: tuple[Any, ...]) -> Any:
        """`-max_y log p(x | y)` (n, 1), or `-log p(x)` where there are log priors."""
        z, scores = products
        if self.log_prior is None:
            return self.half_distance(xp, z, xp.argmax(scores, axis=1)) - self.log_peak
        weighted = scores + xp.astype(self.log_prior, scores.dtype, copy=False)
        best = xp.argmax(weighted, axis=1)
        others = xp.exp(weighted - row_maxima(xp, weighted))
        others = xp.log(xp.sum(xp.astype(others, xp.float64, copy=False), axis=1, keepdims=True))
        return self.half_distance(xp, z, best) - self.log_peak - (self.log_prior[best][:, None] + others)

    def rough_gaussian(self, xp: Xp, products: tuple[Any, ...], top: Any) -> Any:
        """Atypicality (n, 1) of the Gaussians alone, by expanded squares in a third of the time: to rank rows by.

        `top` is the largest score of each row (n, 1).
        """
        return 0.5 * squared_lengths(xp, products[0]) - top - self.log_peak

    def linear(self) -> "LinearDensity":
        """The same atypicality from products that are linear in the row; without log priors and in float64."""
        targets, none = self.whitening @ self.targets, np.zeros(self.whitening.shape[1])
        return LinearDensity(
            self.centre, targets, self.bias, self.whitening, None, none, -self.log_peak, self.normalize
        )

    def half_distance(self, xp: Xp, z: Any, best: Any) -> Any:
        """Half the squared distance (n, 1) of whitened rows to the mean of one class each."""
        gap = xp.take(self.means, best, axis=0)
        gap -= z
        return 0.5 * squared_lengths(xp, gap)


@dataclass(frozen=True)
class RelativeDensity(TiedDensity):
    """Distance to the nearest class less that to the background: all rows as one Gaussian, in the same whitened space.

    There the classes have covariance I and the background I + B, B that of the class means m_y about their mean. With
    rows z and means about that mean, and V V^T = I - (I + B)^-1, the squared length of z drops out:
    `|z - m_y|^2 / 2 - z^T (I + B)^-1 z / 2 = |m_y|^2 / 2 - z . m_y + |z V|^2 / 2`.
    """

    mean: Any = None  # (r,) of all training rows, centred and whitened: 0 but for the rounding of the centre
    spread: Any = None  # (r, q), V in the type of the products
    mixing: Any = None
    """E (k, p) with V V^T = M^T E E^T M, M the class means about that mean, whose columns sum to 0: |z V| then follows
    from the scores of the classes, of which there are no more than columns."""
    offset: Any = None  # (p,), what the scores hold of the biases and of the mean of all rows, times E

    @classmethod
    def against(cls, classes: TiedDensity, mean: Any, spread: Any, mixing: Any) -> Self:
        """From the Gaussians of the classes."""
        offset = None if mixing is None else (classes.bias + mean @ classes.targets) @ mixing
        return cls(**vars(classes), mean=mean, spread=spread, mixing=mixing, offset=offset)

    def products(self, xp: Xp, rows: Any, buffers: Buffers | None = None) -> tuple[Any, ...]:
        """Whitened rows (n, r), `z . m_y - |m_y|^2 / 2` (n, k), and rows times V (n, q)."""
        z, scores = super().products(xp, rows, buffers)
        if self.mixing is None:
            about = xp.astype(z - self.mean, z.dtype, copy=False)
            return z, scores, product(about, self.spread, "along", buffers)
        along = product(scores, self.mixing, "along", buffers)
        along -= self.offset
        return z, scores, along

    def class_log_density(self, xp: Xp, products: tuple[Any, ...]) -> Any:
        """Log p(x | y) (n, k)."""
        return super().class_log_density(xp, products[:2])

    def atypicality(self, xp: Xp, products: tuple[Any, ...]) -> Any:
        """Half the squared distance to the nearest class less half that to the background (n, 1)."""
        z, scores, along = products
        mean = xp.take(self.means, xp.argmax(scores, axis=1), axis=0) - self.mean
        along = xp.astype(along, xp.float64, copy=False)
        class_part = xp.sum(mean * (0.5 * mean - (z - self.mean)), axis=1, keepdims=True)
        return class_part + 0.5 * squared_lengths(xp, along)

    def rough(self, xp: Xp, products: tuple[Any, ...], top: Any) -> Any:
        """As `atypicality`, by expanded squares: to rank rows by; `top` as in `rough_gaussian`."""
        z, _, along = products
        about = xp.matmul(z, self.mean)[:, None] - 0.5 * (self.mean @ self.mean)
        return 0.5 * squared_lengths(xp, along) - top + about

    def linear(self) -> "LinearDensity":
        """The same atypicality from products that are linear in the row, in float64."""
        about, bias = self.targets - self.mean[:, None], self.bias + 0.5 * float(self.mean @ self.mean)
        if self.mixing is None:
            spread, offset = self.whitening @ self.spread, self.mean @ self.spread
        else:
            spread, offset = None, (bias + self.mean @ about) @ self.mixing
        return LinearDensity(
            self.centre, self.whitening @ about, bias, spread, self.mixing, offset, 0.0, self.normalize
        )


@dataclass(frozen=True)
class LinearDensity:
    """A `TiedDensity` or `RelativeDensity` whose whitening is multiplied into the rest: no row is whitened.

    With m the means and z the rows in whitened space, atypicality is
    `0.5 |z V|^2 - max_y (z . m_y - |m_y|^2 / 2)` and a constant, both about the mean of all rows where there is a
    background, and V the identity where there is none. Both products are linear in the row as it came.
    """

    centre: Any  # (d,)
    targets: Any  # (d, k)
    bias: Any  # (k,)
    spread: Any  # (d, q), what rows are multiplied by, where `mixing` is None
    mixing: Any  # (k, p), what scores are multiplied by instead
    offset: Any  # (q,) of the mean of all rows, which the centre is up to rounding, or (p,) of the bias
    constant: float  # added to atypicality
    normalize: str | None = None

    @property
    def n_classes(self) -> int:
        """Columns of class log-densities."""
        return int(self.bias.shape[0])

    def products(self, xp: Xp, rows: Any, buffers: Buffers | None = None) -> tuple[Any, ...]:
        """`z . m_y - |m_y|^2 / 2` (n, k), and rows times V (n, q) unless there is neither spread nor mixing."""
        return self.products_of(xp, prepared(xp, rows, self.normalize, buffers), buffers)

    def products_of(self, xp: Xp, rows: Any, buffers: Buffers | None = None) -> tuple[Any, ...]:
        """The same of rows that are prepared already."""
        rows = centred(xp, rows, self.centre, buffers, own=self.normalize is not None)
        scores = product(rows, self.targets, "scores", buffers)
        scores += self.bias
        if self.spread is None and self.mixing is None:
            return (scores,)
        factors = (rows, self.spread) if self.mixing is None else (scores, self.mixing)
        along = product(*factors, "along", buffers)
        along -= self.offset
        return scores, along

    def class_log_density(self, xp: Xp, products: tuple[Any, ...]) -> Any:
        """Log p(x | y) (n, k), up to a constant of each row."""
        return products[0]

    def atypicality(self, xp: Xp, products: tuple[Any, ...], top: Any = None) -> Any:
        """As that of the density it comes from (n, 1); `top` is the largest score of each row, where that is known."""
        scores, along = products
        return 0.5 * squared_lengths(xp, along) + self.constant - (row_maxima(xp, scores) if top is None else top)


@dataclass(frozen=True)
class TwoDensities:
    """One density for all else, and beside it how far rows as they came are from the class that it finds nearest.

    That distance is in the whitened space of the Gaussian of rows as they came. Where `chosen` needs a squared length
    of its own and no more than `whitening`, its axes are turned so that this length is a weighted sum of the squares of
    the same whitened row: one product for both.
    """

    chosen: LinearDensity
    centre: Any  # (d,)
    whitening: Any  # (d, r)
    means: Any  # (k, r)
    log_peak: float  # of the Gaussian
    triangular: bool = False  # of the whitening
    roots: Any = None
    start: Any = None
    end: Any = None
    """With z the whitened row and s the length by which `chosen` divides rows, its squared length is that of
    `roots ((z + start) / s - end)`, (r,) each. None where `chosen` has a product of its own."""

    @classmethod
    def of(cls, chosen: LinearDensity, gaussian: TiedDensity) -> Self:
        """From the density chosen and the Gaussian of rows as they came."""
        whitening, spread = gaussian.whitening, chosen.spread
        plain = cls(chosen, gaussian.centre, whitening, gaussian.means, gaussian.log_peak, gaussian.triangular)
        if spread is None or whitening.shape[0] != whitening.shape[1]:
            return plain
        inner = np.linalg.solve(whitening, spread)
        squares, turn = np.linalg.eigh(inner @ inner.T)
        squares, turned = np.maximum(squares, 0.0), whitening @ turn
        lengths = np.vecdot(spread, spread)
        if np.abs((turned * turned) @ squares - lengths).max() > CLOSE * lengths.max():
            return plain
        roots, along = np.sqrt(squares), turn.T @ (inner @ chosen.offset)
        shift = np.divide(along, squares, out=np.zeros_like(along), where=squares > CLOSE * squares[-1])
        return replace(
            plain,
            chosen=replace(chosen, spread=None, offset=None),
            whitening=turned,
            triangular=False,
            means=gaussian.means @ turn,
            roots=roots,
            start=gaussian.centre @ turned,
            end=chosen.centre @ turned + shift,
        )

    @property
    def n_classes(self) -> int:
        """Columns of class log-densities."""
        return self.chosen.n_classes

    @property
    def normalize(self) -> str | None:
        """That of the density chosen."""
        return self.chosen.normalize

    def products(self, xp: Xp, rows: Any, buffers: Buffers | None = None) -> tuple[Any, ...]:
        """Whitened rows (n, r), the products of the density chosen, or its scores and lengths of rows (n, 1).

        The last two are the place and the value of its largest score, (n, 1) each.
        """
        about = centred(xp, rows, self.centre, buffers)
        z = whitened(xp, about, self.whitening, self.triangular, buffers)
        if self.roots is None or self.normalize is None:
            found = self.chosen.products(xp, rows, buffers)
        else:
            unit, lengths = unit_rows(xp, rows, buffers)
            found = *self.chosen.products_of(xp, unit, buffers), lengths
        return z, *found, *row_tops(xp, found[0])

    def atypicality(self, xp: Xp, products: tuple[Any, ...]) -> Any:
        """Atypicality (n, 1) by the density chosen."""
        z, *found, _, top = products
        if self.roots is None:
            return self.chosen.atypicality(xp, tuple(found), top)
        scores, *lengths = found
        along = z + self.start
        for length in lengths:
            along *= 1.0 / length  # to divide takes twice as long
        along -= self.end
        along *= self.roots
        return self.chosen.atypicality(xp, (scores, along), top)

    def class_log_density(self, xp: Xp, products: tuple[Any, ...]) -> Any:
        """Log p(x | y) (n, k) by the density chosen, up to a constant of each row."""
        return self.chosen.class_log_density(xp, products[1:])

    def top(self, products: tuple[Any, ...]) -> Any:
        """The largest of these in each row (n, 1)."""
        return products[-1]

    def covariate(self, xp: Xp, products: tuple[Any, ...]) -> Any:
        """Minus log p(x | y) (n, 1) by the Gaussian, of the class y that is nearest by the density chosen."""
        nearest = xp.take(self.means, products[-2][:, 0], axis=0)
        nearest -= products[0]
        return 0.5 * squared_lengths(xp, nearest) - self.log_peak


@dataclass(frozen=True)
class ClassDensity:
    """Gaussians with a covariance each: every class whitens the rows in its own way."""

    centre: Any  # (d,) or None, subtracted from the rows before they are projected
    components: Any  # (d, m) or None, to project on first
    means: Any  # (k, m) of classes in the space of the components, centred there, or as they are
    whitenings: Any  # (k, m, r), zeros for what a class does not vary in; or (k, m) where variances alone are known
    log_peaks: Any  # (k,)
    log_prior: Any = None  # (k,)
    normalize: str | None = None

    @property
    def n_classes(self) -> int:
        """Columns of class log-densities."""
        return int(self.log_peaks.shape[0])

    def products(self, xp: Xp, rows: Any, buffers: Buffers | None = None) -> tuple[Any]:
        """Log p(x | y) (n, k); buffers are not used."""
        rows, dtype = prepared(xp, rows, self.normalize), self.whitenings.dtype
        if self.components is not None:
            rows = xp.astype(rows - self.centre, dtype, copy=False) @ self.components
        diagonal = self.whitenings.ndim == 2

        def half(mean: Any, whitening: Any) -> Any:
            u = xp.astype(rows - mean, dtype, copy=False)
            white = xp.astype(u * whitening if diagonal else u @ whitening, xp.float64, copy=False)
            return 0.5 * xp.sum(white * white, axis=1)

        if hasattr(xp, "each"):  # a graph has a loop of its own
            halves = xp.each(half, self.means, self.whitenings)
        else:
            pairs = ((self.means[y, ...], self.whitenings[y, ...]) for y in range(self.means.shape[0]))
            halves = xp.stack([half(*pair) for pair in pairs], axis=1)
        return (self.log_peaks - halves,)

    def class_log_density(self, xp: Xp, products: tuple[Any]) -> Any:
        """Log p(x | y) (n, k)."""
        return products[0]

    def atypicality(self, xp: Xp, products: tuple[Any]) -> Any:
        """`-max_y log p(x | y)` (n, 1), or `-log p(x)` where there are log priors."""
        scores = products[0] if self.log_prior is None else products[0] + self.log_prior
        top = row_maxima(xp, scores)
        if self.log_prior is None:
            return -top
        return -(top + xp.log(xp.sum(xp.exp(scores - top), axis=1, keepdims=True)))


@dataclass(frozen=True)
class NeighborDensity:
    """Distances to the nearest training rows.

    Products in float64 say which rows can be near, and `SPARE` more than are asked for are measured directly.
    `NeighborAtypicality` has a search of its own for NumPy and for devices, which measures every row that can be near.
    """

    parts: tuple[Any, ...]  # training rows (m, d), of all classes or of one each
    n_neighbors: int
    reduction: str  # "mean", "kth" or "min"
    metric: str  # "euclidean", "cosine" or "chord", the Euclidean distance between rows of length 1

    def products(self, xp: Xp, rows: Any, buffers: Buffers | None = None) -> tuple[Any]:
        """Atypicality (n, 1); NaN for rows of zeros where only their direction counts. Buffers are not used."""
        queries = self._exact(xp, rows)
        found = [self._reduced(xp, queries, part) for part in self.parts]
        return (xp.min(xp.concat(found, axis=1), axis=1, keepdims=True),)

    def class_log_density(self, xp: Xp, products: tuple[Any]) -> None:
        """Distances are no densities of classes."""
        return

    def atypicality(self, xp: Xp, products: tuple[Any]) -> Any:
        """Atypicality (n, 1)."""
        return products[0]

    def _reduced(self, xp: Xp, queries: Any, part: Any) -> Any:
        nearest: Any = None
        for start in range(0, part.shape[0], TILE):
            found = self._near(xp, queries, self._exact(xp, part[start : start + TILE, :]))
            nearest = found if nearest is None else xp.concat([nearest, found], axis=1)
            nearest = xp.sort(nearest, axis=1)[:, : self.n_neighbors]
        if self.metric == "cosine":
            nearest = 0.5 * nearest**2
        if self.reduction == "mean":
            return xp.mean(nearest, axis=1, keepdims=True)
        return nearest[:, -1:] if self.reduction == "kth" else nearest[:, :1]

    def _near(self, xp: Xp, queries: Any, rows: Any) -> Any:
        """Distances (n, c) of queries to the few rows of a tile that can be nearest."""
        count = min(self.n_neighbors + SPARE, rows.shape[0])
        closeness = (queries - rows[:1, :]) @ xp.matrix_transpose(rows - rows[:1, :])
        closeness -= 0.5 * xp.sum((rows - rows[:1, :]) ** 2, axis=1)
        places = xp.argsort(closeness, axis=1, descending=True, stable=False)[:, :count]
        near = xp.reshape(xp.take(rows, xp.reshape(places, (-1,)), axis=0), (-1, count, rows.shape[1]))
        return xp.sqrt(xp.sum((queries[:, None, :] - near) ** 2, axis=2))

    def _exact(self, xp: Xp, rows: Any) -> Any:
        """Rows in float64 as they are, or of length 1."""
        return xp.astype(rows, xp.float64, copy=False) if self.metric == "euclidean" else unit_rows(xp, rows)[0]
