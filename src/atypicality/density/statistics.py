"""What a Gaussian learns from rows: class counts, means and scatter, gathered block by block and merged exactly.

Every row is taken relative to a row of its own class before anything is squared, so that neither an offset of all
embeddings nor the distance between classes costs digits. Products within a block are in the precision asked for,
sums over blocks in float64.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from atypicality import blocks
from atypicality.density.classes import encode_labels, merge_classes
from atypicality.density.unit import UnitRows
from atypicality.validation import (
    FloatArray,
    check_embeddings,
    check_finite,
    check_matrix,
    check_vector,
    name_rows,
)

__all__ = [
    "ClassStatistics",
    "Layout",
    "gather_both",
    "gather_statistics",
    "merge_statistics",
    "refuse_rows",
    "statistics_from_moments",
]

Float64 = NDArray[np.float64]
Layout = Literal["pooled", "full", "diagonal"]
Rows = FloatArray | UnitRows
Part = tuple[int, list[FloatArray]]
"""Classes and what a block of rows adds to their sums: first, scatter and, where asked for, third and fourth."""


@dataclass(frozen=True)
class ClassStatistics:
    """Sums over the rows of each class, of u = x - origin of the class: all that a Gaussian needs, and mergeable.

    Parameters
    ----------
    layout : {"pooled", "full", "diagonal"}
        Whether `scatter` is summed over the classes, kept for each, or only its diagonal is kept for each.
    epsilon : float
        Rounding unit of the products in `scatter`.
    classes : ndarray of shape (k,)
        Sorted labels.
    counts : ndarray of shape (k,)
        Rows of each class.
    origins, first : ndarray of shape (k, d)
        The origins, and the sums of u: 0 up to rounding where the origins are the class means.
    scatter : ndarray of shape (d, d), (k, d, d) or (k, d)
        Sums of u u^T.
    third, fourth : ndarray of shape (k, d) and (k,), or None
        Sums of |u|^2 u and |u|^4, which Ledoit-Wolf needs beside the scatter of each class.
    """

    layout: Layout
    epsilon: float
    classes: NDArray[Any]
    counts: NDArray[np.int64]
    origins: Float64
    first: Float64
    scatter: Float64
    third: Float64 | None = None
    fourth: Float64 | None = None

    @property
    def means(self) -> Float64:
        """Class means (k, d)."""
        return self.origins + self.first / self.counts[:, None]

    @property
    def spread(self) -> float:
        """Sum of |u|^2 over all rows."""
        diagonal = self.layout == "diagonal"
        with np.errstate(over="ignore"):
            return float(np.sum(self.scatter if diagonal else np.trace(self.scatter, axis1=-2, axis2=-1)))

    def about(self, origins: Float64) -> "ClassStatistics":
        """The same sums about other origins (k, d): u becomes u - step."""
        step, counts = origins - self.origins, self.counts[:, None]
        lean = self.first - 0.5 * counts * step
        if self.layout == "diagonal":
            scatter = self.scatter - 2.0 * lean * step
        else:
            mixed = lean.T @ step if self.layout == "pooled" else lean[:, :, None] * step[:, None, :]
            scatter = self.scatter - mixed - np.swapaxes(mixed, -2, -1)
        third, fourth = self._moments_after(step)
        first = self.first - counts * step
        return replace(self, origins=origins, first=first, scatter=scatter, third=third, fourth=fourth)

    def _moments_after(self, step: Float64) -> tuple[Float64 | None, Float64 | None]:
        """Expand |u - step|^2 (u - step) and |u - step|^4 and sum each term over the rows of a class."""
        if self.third is None or self.fourth is None:
            return None, None
        with np.errstate(over="ignore", invalid="ignore"):  # whoever needs powers that overflow refuses them
            turned = np.matvec(self.scatter, step)
            trace, length = np.trace(self.scatter, axis1=1, axis2=2), np.vecdot(step, step)
            along = np.vecdot(self.first, step)
            third = self.third - 2.0 * turned + length[:, None] * self.first
            third -= (trace - 2.0 * along + self.counts * length)[:, None] * step
            fourth = self.fourth + 4.0 * np.vecdot(step, turned) - 4.0 * np.vecdot(self.third, step)
            fourth += length * (self.counts * length + 2.0 * trace - 4.0 * along)
        return third, fourth


def gather_statistics(
    embeddings: Any,
    labels: Any,
    *,
    layout: Layout,
    precision: str,
    moments: bool = False,
    width: int | None = None,
    normalize: str | None = None,
) -> ClassStatistics:
    """Statistics, about the class means, of rows (n, d) of any float type and their labels (n,).

    Rows may be mapped from a file: the layout "full" reads them class by class, the others in their order. `moments`
    asks for the third and fourth too, and needs the layout "full". `width` is the d that came before, if any did.
    With `normalize` rows are divided by their length as they are read.
    """
    rows = check_embeddings(embeddings, width=width)
    views: list[Rows] = [rows if normalize is None else UnitRows(rows)]
    return _gather(views, labels, layout=layout, precision=precision, moments=moments)[0]


def gather_both(embeddings: Any, labels: Any) -> tuple[ClassStatistics, ClassStatistics | None]:
    """As `gather_statistics` in the layout "pooled", of rows (n, d) as they are and divided by their length.

    Every row is read once. The second is None where a row of zeros has no direction.
    """
    rows = check_embeddings(embeddings)
    raw, unit = _gather([rows, UnitRows(rows)], labels, layout="pooled", precision="float64", moments=False)
    return raw, unit if np.isfinite(unit.spread) else None


def _gather(views: list[Rows], labels: Any, *, layout: Layout, precision: str, moments: bool) -> list[ClassStatistics]:
    """Statistics of the same rows, seen in one or two ways."""
    x = views[0]
    classes, codes = encode_labels(labels, n_rows=x.shape[0])
    if not x.shape[0]:
        raise ValueError(f"embeddings must have at least one row to fit on; got shape {x.shape}.")

    def about(origins: list[FloatArray]) -> tuple[list[ClassStatistics], list[ClassStatistics]]:
        raw = _gather_about(origins, views, classes, codes, layout, moments)
        return raw, [one.about(one.means) for one in raw]

    with blocks.single_threaded_blas(x.shape[1]):
        raw, centred = about([_origins(view, codes, classes.size, precision) for view in views])
        if any(one.spread > 64 * own.spread for one, own in zip(raw, centred, strict=True)):
            # origins far from their class cost digits: once more, about its mean
            raw, centred = about([own.origins.astype(precision) for own in centred])
    if not np.isfinite(centred[0].spread):
        raise ValueError("embeddings must have squares whose sum fits into float64. Rescale the embeddings.")
    return centred


def merge_statistics(a: ClassStatistics, b: ClassStatistics) -> ClassStatistics:
    """Statistics of the rows of both, which may have seen different classes (Chan, Golub and LeVeque 1983)."""
    classes, at_a, at_b = merge_classes(a.classes, b.classes)
    a, b = _spread_over(classes, at_a, a), _spread_over(classes, at_b, b)
    ours, theirs = a.counts[:, None] > 0, b.counts[:, None] > 0
    share = (b.counts / (a.counts + b.counts))[:, None]
    step = np.where(ours & theirs, b.origins - a.origins, 0.0)
    means = np.where(ours, a.origins, b.origins) + share * step
    a, b = a.about(np.where(ours, means, 0.0)), b.about(np.where(theirs, means, 0.0))
    moments = a.third is not None and b.third is not None and a.fourth is not None and b.fourth is not None
    return replace(
        a,
        epsilon=max(a.epsilon, b.epsilon),
        counts=a.counts + b.counts,
        origins=means,
        first=a.first + b.first,
        scatter=a.scatter + b.scatter,
        third=a.third + b.third if moments else None,  # type: ignore[operator]
        fourth=a.fourth + b.fourth if moments else None,  # type: ignore[operator]
    )


def statistics_from_moments(counts: Any, means: Any, covariance: Any, classes: Any = None) -> ClassStatistics:
    """Statistics from counts (k,), class means (k, d) and maximum-likelihood covariance, whose shape is its layout."""
    centres = check_matrix(means, "means")
    check_finite(centres, "means")
    k, d = centres.shape
    sizes = check_vector(counts, "counts", n_rows=k)
    bad = np.flatnonzero((sizes < 1) | (sizes != np.floor(sizes)))
    if bad.size:
        raise ValueError(f"counts must be whole numbers of at least 1; {name_rows(bad)} {sizes[bad[0]]:g}.")
    labels, order = encode_labels(np.arange(k) if classes is None else classes, "classes", n_rows=k)
    if labels.size < k or (np.diff(order) < 0).any():
        raise ValueError("classes must be sorted and without repeats, in the order of counts and means.")
    layout, matrix = _check_covariance(covariance, k, d)
    weights = sizes.sum() if layout == "pooled" else sizes.reshape(-1, *[1] * (matrix.ndim - 1))
    epsilon, zeros = float(np.finfo(matrix.dtype).eps), np.zeros((k, d))
    scatter = weights * matrix.astype(np.float64)
    return ClassStatistics(layout, epsilon, labels, sizes.astype(np.int64), centres.astype(np.float64), zeros, scatter)


def _check_covariance(covariance: Any, k: int, d: int) -> tuple[Layout, FloatArray]:
    array = np.asarray(covariance)
    flat = check_matrix(array.reshape(-1, array.shape[-1]) if array.ndim == 3 else array, "covariance")
    shapes: dict[tuple[int, ...], Layout] = {(k, d): "diagonal", (k, d, d): "full", (d, d): "pooled"}
    if array.shape not in shapes:
        raise ValueError(f"covariance must have shape {' or '.join(map(str, shapes))}; got {array.shape}.")
    check_finite(flat, "covariance")
    matrix, layout = flat.reshape(array.shape), shapes[array.shape]
    largest = np.abs(matrix).max()
    tolerance = 1e3 * d * np.finfo(matrix.dtype).eps * largest  # of an eigenvalue that should be 0 or more
    if layout != "diagonal" and (np.abs(matrix - np.swapaxes(matrix, -2, -1)) > tolerance).any():
        raise ValueError("covariance must be symmetric. Pass the covariance matrix itself, not a factor of it.")
    lowest = matrix.min() if layout == "diagonal" else np.linalg.eigvalsh(matrix.astype(np.float64)).min()
    if lowest < -tolerance:
        raise ValueError(f"covariance must have no negative eigenvalue; its lowest is {lowest:.3g}.")
    return layout, matrix


def refuse_rows(rows: FloatArray, dtype: np.dtype[Any], *, first_row: int) -> None:
    """Say what is wrong with rows whose result was not finite: NaN, infinity, or squares that overflow."""
    check_finite(rows, "embeddings", first_row=first_row)
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(~np.isfinite(np.square(rows.astype(dtype)).sum(axis=1)))
    bad = bad if bad.size else np.arange(1)  # finite alone, and not beside the others
    told = name_rows(bad + first_row, "overflows", "overflow", of="embeddings")
    raise ValueError(
        f"embeddings must have squares that fit into {dtype}; {told}. Rescale the embeddings, or use "
        "precision='float64'."
    )


def _gather_about(
    origins: list[FloatArray],
    views: list[Rows],
    classes: NDArray[Any],
    codes: NDArray[np.intp],
    layout: Layout,
    moments: bool,
) -> list[ClassStatistics]:
    """Sums about origins, of the rows of each view; those of the first must be finite."""
    if layout == "full":
        totals = [_sums_by_class(origins[0], views[0], codes, moments)]
    else:
        totals = [sums.whole() for sums in _sums_in_order(origins, views, codes, layout)]
    if not (np.isfinite(totals[0][0]).all() and np.isfinite(totals[0][1]).all()):
        _refuse(views[0], origins[0].dtype)
    counts, epsilon = np.bincount(codes, minlength=len(origins[0])), float(np.finfo(origins[0].dtype).eps)
    return [
        ClassStatistics(layout, epsilon, classes, counts, points.astype(np.float64), *own)
        for points, own in zip(origins, totals, strict=True)
    ]


def _refuse(x: Rows, dtype: np.dtype[Any]) -> None:
    """Say what is wrong with rows whose sums are not finite."""
    if isinstance(x, UnitRows):
        x.refuse()
    block = _block(x.shape[1], x.dtype)
    blocks.for_rows(lambda rows: check_finite(x[rows], "embeddings", first_row=rows.start), len(x), block=block)
    refuse_rows(x[:1], dtype, first_row=0)


def _origins(x: Rows, codes: NDArray[np.intp], k: int, precision: str) -> FloatArray:
    """A point near each class mean (k, d): the mean of its first rows, few enough to cost next to nothing."""
    order = _sorted_by_class(codes, k)
    starts = np.searchsorted(codes[order], np.arange(k))
    place = np.arange(codes.size) - starts[codes[order]]
    sample = order[place < min(64, 1 + 2048 // k)]
    first = x[order[starts]].astype(np.float64)
    _, members = _members(codes[sample], np.dtype(np.float64))
    with np.errstate(invalid="ignore", over="ignore"):  # relative to the first row: equal rows have it as their mean
        away = members @ (x[sample] - first[codes[sample]])
        return np.asarray((first + away / members.sum(axis=1)[:, None]).astype(precision))


@dataclass
class _Sums:
    """What some rows add: sums of the classes among them, each with all its columns, and of all rows if `pooled`."""

    n_classes: int
    present: NDArray[np.intp]  # sorted
    classwise: list[Any]
    pooled: Any = None

    def add(self, other: "_Sums") -> "_Sums":
        """Both, in float64, in the arrays of this one where they have room."""
        self._widen(other.present)
        everywhere = other.present.size == self.present.size
        where = slice(None) if everywhere else np.searchsorted(self.present, other.present)  # the first is far faster
        for own, more in zip(self.classwise, other.classwise, strict=True):
            own[where] += more
        if self.pooled is not None and other.pooled is not None:
            self.pooled = self.pooled.astype(np.float64, copy=False)
            self.pooled += other.pooled
        return self

    def whole(self) -> list[Float64]:
        """Those of all classes, in float64."""
        self._widen(np.arange(self.n_classes))
        return [*self.classwise, *([] if self.pooled is None else [self.pooled.astype(np.float64, copy=False)])]

    def _widen(self, others: NDArray[np.intp]) -> None:
        """Make room for the classes of other rows."""
        full = self.present.size == self.n_classes
        together = self.present if full else np.union1d(self.present, others)
        if together.size == self.present.size:
            self.classwise = [own.astype(np.float64, copy=False) for own in self.classwise]
            return
        where, held = np.searchsorted(together, self.present), self.classwise
        self.present, self.classwise = together, [np.zeros((together.size, own.shape[1])) for own in held]
        for own, before in zip(self.classwise, held, strict=True):
            own[where] = before


def _sums_in_order(
    origins: list[FloatArray], views: list[Rows], codes: NDArray[np.intp], layout: Layout
) -> list[_Sums]:
    """Sums over all rows, as each view sees them; the rows are read once."""
    workspace, (n, d), dtype = blocks.Workspace(), views[0].shape, origins[0].dtype
    source = views[0].rows if isinstance(views[0], UnitRows) else views[0]

    def parts(rows: slice) -> list[_Sums]:
        x, found = source[rows], []
        present, members = _members(codes[rows], dtype)
        with np.errstate(invalid="ignore", over="ignore"), workspace.borrow() as buffers:
            for view, points in zip(views, origins, strict=True):
                seen = UnitRows.of(x, buffers) if isinstance(view, UnitRows) else x
                u = buffers("u", x.shape, dtype)
                np.take(points, codes[rows], axis=0, out=u, mode="clip")  # "raise" would buffer
                np.subtract(seen, u, out=u, casting="same_kind")
                first, pooled = members @ u, u.T @ u if layout == "pooled" else None
                second = [] if layout == "pooled" else [members @ np.square(u, out=u)]
                found.append(_Sums(len(points), present, [first, *second], pooled))
        return found

    def merge(left: list[_Sums], right: list[_Sums]) -> list[_Sums]:
        with np.errstate(invalid="ignore", over="ignore"):
            return [one.add(other) for one, other in zip(left, right, strict=True)]

    height = _block(d, dtype, len(origins[0]))
    each = (height + 2 * (d if layout == "pooled" else 0)) * d * dtype.itemsize
    work = blocks.SCATTER if layout == "pooled" else blocks.ENTRIES
    return blocks.reduce_rows(parts, n, merge, block=height, threads=blocks.n_threads(each, work=work), work=work)


def _sums_by_class(origins: FloatArray, x: Rows, codes: NDArray[np.intp], moments: bool) -> list[Float64]:
    """Sums of each class, with the scatter matrix of each, over all rows."""
    (k, d), order = origins.shape, _sorted_by_class(codes, origins.shape[0])
    totals = [np.zeros(shape) for shape in [(k, d), (k, d, d), *([(k, d), (k,)] if moments else [])]]

    def parts(rows: slice) -> list[Part]:
        chosen = order[rows]
        ends = np.flatnonzero(np.diff(codes[chosen])) + 1
        with np.errstate(invalid="ignore", over="ignore"):
            return [_part_of_class(origins, x, codes[group[0]], group) for group in np.split(chosen, ends)]

    for found in blocks.map_rows(parts, x.shape[0], block=_block(d, origins.dtype), work=blocks.SCATTER):
        for code, sums in found:
            for total, part in zip(totals, sums, strict=False):
                total[code] += part
    return totals


def _part_of_class(origins: FloatArray, x: Rows, code: np.intp, rows: NDArray[np.intp]) -> Part:
    u = np.subtract(x[rows], origins[code], dtype=np.result_type(x.dtype, origins)).astype(origins.dtype, copy=False)
    lengths = np.vecdot(u, u).astype(np.float64)
    return int(code), [u.sum(axis=0, dtype=np.float64), u.T @ u, lengths @ u, lengths @ lengths]


def _sorted_by_class(codes: NDArray[np.intp], k: int) -> NDArray[np.intp]:
    small = (
        codes.astype(np.uint16) if k <= 2**16 else codes
    )  # NumPy sorts 16-bit integers by radix: several times faster
    return np.argsort(small, kind="stable")


def _members(codes: NDArray[np.intp], dtype: np.dtype[Any]) -> tuple[NDArray[np.intp], Any]:
    """The classes among `codes`, and the sparse 0/1 matrix (classes, rows) whose product with rows sums each class."""
    order = np.argsort(codes, kind="stable")
    in_order = codes[order]
    starts = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]])
    entries = (np.ones(codes.size, dtype), order, np.r_[starts, codes.size])
    return in_order[starts], csr_array(entries, shape=(starts.size, codes.size))


def _spread_over(classes: NDArray[Any], at: NDArray[np.intp], statistics: ClassStatistics) -> ClassStatistics:
    """The same statistics over more classes, those not seen with zeros."""

    def spread(array: Any) -> Any:
        if array is None:
            return None
        out = np.zeros((classes.size, *array.shape[1:]), array.dtype)
        out[at] = array
        return out

    names = ["counts", "origins", "first", "third", "fourth"] + (["scatter"] if statistics.layout != "pooled" else [])
    return replace(statistics, classes=classes, **{name: spread(getattr(statistics, name)) for name in names})


def _block(width: int, dtype: np.dtype[Any], classes: int = 1) -> int:
    """Rows of a block: sums that wait to be added should not be larger than the block they came from."""
    row = width * dtype.itemsize
    budget = min(max(4 * classes * row, blocks.GEMM_BYTES // 2), 2 * blocks.GEMM_BYTES)
    return blocks.block_rows(row, budget=budget, minimum=2 * width)
