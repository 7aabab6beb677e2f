"""Neighbour atypicality: the distance of a row to its nearest training rows, exact at the cost of a float32 product."""

from collections.abc import Sequence
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.arrays import on_device, returns_like_input, to_device, to_host
from atypicality.density.classes import encode_labels
from atypicality.density.search import Reference, Search
from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.formula import NeighborDensity
from atypicality.stored import Part, Record, kinds, need
from atypicality.validation import FloatArray, check_choice, check_integer, name_rows
from atypicality.validation.device import any_matrix

__all__ = ["NeighborAtypicality", "rows_by_code"]

Float64 = NDArray[np.float64]


class Members(kinds.Kind):
    """Training rows to search in: all n of them (null), or those of each class as positions and sizes."""

    _rows = kinds.Counts("n")
    _sizes = kinds.Counts("c", kinds.POSITIVE)

    def _write(self, value: Any, place: kinds.Place) -> Any:
        if isinstance(value[0], slice):
            place.fix_size("n", value[0].stop)
            return None
        sizes = np.array([part.size for part in value], np.int64)
        return [self._rows.write(np.concatenate(value), place.at("rows")), self._sizes.write(sizes, place.at("sizes"))]

    def _read(self, stored: Any, place: kinds.Place) -> list[slice | NDArray[np.intp]]:
        if stored is None:
            return [slice(0, place.own["n"])]
        need(isinstance(stored, list) and len(stored) == 2, f"{place.path} must be null or a pair.")
        rows = self._rows.read(stored[0], place.at("rows"))
        sizes = self._sizes.read(stored[1], place.at("sizes"))
        need(sizes.max() <= rows.size and sizes.sum() == rows.size, f"{place.path} must have the sizes of its classes.")
        need(np.array_equal(np.sort(rows), np.arange(rows.size)), f"{place.path} must name every training row once.")
        return list(np.split(rows, np.cumsum(sizes)[:-1]))


class NeighborAtypicality(BaseEstimator):
    """Atypicality of a row: its distance to the nearest training rows.

    The paper's second estimate (appendix A): the mean distance to the 5 nearest training embeddings. Distances are
    exact, whatever the scale of the rows: candidates are found with float32 products under a bound on their rounding,
    and the distances of those that are left are taken directly, in float64.

    Parameters
    ----------
    n_neighbors : int, default=5
        How many training rows count.
    reduction : {"mean", "kth", "min"}, default="mean"
        Mean of their distances, the largest, or the smallest.
    metric : {"euclidean", "cosine"}, default="euclidean"
        "cosine" is 1 minus the cosine of the angle; rows of zeros have none and are refused.
    per_class : bool, default=False
        Reduce over the `n_neighbors` nearest rows of each class, then take the smallest value over the classes, as the
        authors' code does (with reduction="kth"). Needs labels, and `n_neighbors` rows of every class.
    normalize : None or "l2", default=None
        "l2" divides rows by their Euclidean length first, so that only directions count; rows of zeros are refused.
        The cosine does so anyway.

    Attributes
    ----------
    embeddings_ : ndarray or device array of shape (n_samples, n_features)
        The training rows themselves, not a copy: a memory map stays one and is read tile by tile, and rows on an
        accelerator stay there.
    classes_ : ndarray of shape (n_classes,) or None
        Sorted labels; only with `per_class`.

    Notes
    -----
    Distances are measured where the training rows lie: other rows go there, and their scores come back. An estimator
    whose training rows are on an accelerator cannot be saved in a bundle; fit it on rows on the CPU for that.

    Examples
    --------
    >>> import numpy as np
    >>> NeighborAtypicality(n_neighbors=2).fit([[0.0], [1.0], [2.0], [10.0]]).atypicality([[1.5], [20.0]])
    array([ 0.5, 14. ])
    """

    embeddings_: Any
    n_features_in_: Annotated[int, kinds.Size("D")]
    classes_: Annotated[NDArray[Any] | None, kinds.optional(kinds.Labels("c"))]
    _reference: Annotated[Any, Part(Reference)]
    _members: Annotated[Sequence[slice | NDArray[np.intp]], Members()]

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        reduction: str = "mean",
        metric: str = "euclidean",
        per_class: bool = False,
        normalize: str | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.reduction = reduction
        self.metric = metric
        self.per_class = per_class
        self.normalize = normalize

    def fit(self, embeddings: ArrayLike, labels: ArrayLike | None = None) -> Self:
        """Keep the training rows and measure their lengths.

        Parameters
        ----------
        embeddings : array-like of shape (n_samples, n_features)
            Any float type, on the CPU or on an accelerator. Changing the array afterwards changes the estimator.
        labels : array-like of shape (n_samples,), optional
            Integers, booleans or strings; used only with `per_class`.
        """
        self._check_parameters()
        x = any_matrix(embeddings, "embeddings")
        self._check_n_rows(x.shape[0])
        classes, members = self._grouped(labels, x.shape[0])
        reference = _reference(x, self._measure)
        self.embeddings_, self.n_features_in_, self.classes_ = x, x.shape[1], classes
        self._reference, self._members = reference, members
        return self

    @returns_like_input
    def atypicality(self, embeddings: ArrayLike, *, exclude_self: bool = False) -> Float64:
        """Atypicality (n_samples,) of rows (n_samples, n_features), larger is rarer.

        Parameters
        ----------
        embeddings : array-like of shape (n_samples, n_features)
        exclude_self : bool, default=False
            For scoring the training rows themselves, all of them and in their order: row i then does not count as a
            neighbour of itself. Another row with the same values does, at distance 0.
        """
        check_is_fitted(self)
        x = _moved(any_matrix(embeddings, "embeddings", width=self.n_features_in_), self.embeddings_)
        if exclude_self:
            self._check_own_rows(x)
        if isinstance(self._reference, Reference):
            return self._scores(x, exclude_self)
        from atypicality.density.device_neighbors import neighbor_atypicality

        found: Float64 = neighbor_atypicality(
            self._reference, x, self._members, self.n_neighbors, self.reduction, exclude_self=exclude_self
        )
        return found if on_device(embeddings) else to_host(found)

    searches = True
    """A search of its own is better than the formula wherever it can run."""

    def formula(self) -> NeighborDensity:
        """The parameters of a score where there is no search, as in a torch module; see `atypicality.formula`."""
        check_is_fitted(self)
        rows = to_host(self.embeddings_)
        parts = tuple(np.ascontiguousarray(rows[members]) for members in self._members)
        return NeighborDensity(parts, self.n_neighbors, self.reduction, self._measure)

    def _scores(self, x: FloatArray, exclude_self: bool) -> Float64:
        reference, out = self._reference, np.empty(x.shape[0])

        def score(rows: slice) -> None:
            search = Search(reference, x[rows], first_row=rows.start, exclude_self=exclude_self)
            best = np.full(rows.stop - rows.start, np.inf)
            for members in self._members:
                np.minimum(best, search.reduced(members, self.n_neighbors, self._reduced, best), out=best)
            out[rows] = best

        block = blocks.block_rows(_SCORES_BYTES_PER_QUERY, budget=blocks.GEMM_BYTES)
        blocks.for_rows(score, x.shape[0], block=block, work=blocks.PRODUCTS)
        return out

    def _reduced(self, distances: Float64) -> Float64:
        if self.reduction == "mean":
            return np.asarray(distances.mean(axis=1))
        return distances[:, -1 if self.reduction == "kth" else 0]

    def _check_parameters(self) -> None:
        check_integer(self.n_neighbors, "n_neighbors", low=1)
        check_choice(self.reduction, "reduction", ("mean", "kth", "min"))
        check_choice(self.metric, "metric", ("euclidean", "cosine"))
        check_choice(self.per_class, "per_class", (False, True))
        check_choice(self.normalize, "normalize", (None, "l2"))

    @property
    def _measure(self) -> str:
        """The distance between rows as they are; see `search.METRICS`."""
        return "chord" if self.normalize == "l2" and self.metric == "euclidean" else self.metric

    def _check_n_rows(self, n_rows: int) -> None:
        if n_rows < self.n_neighbors:
            raise ValueError(
                f"n_neighbors must be at most the number of training rows; got {self.n_neighbors} for {n_rows}. "
                "Lower n_neighbors, or fit on more rows."
            )

    def _check_counts(self, classes: NDArray[Any], counts: NDArray[np.intp]) -> None:
        few = np.flatnonzero(counts < self.n_neighbors)
        if few.size:
            raise ValueError(
                f"per_class=True needs at least n_neighbors={self.n_neighbors} rows of every class; class "
                f"{classes[few[0]].item()!r} has {counts[few[0]]}. Lower n_neighbors, or leave that class out."
            )

    def _check_storable(self) -> None:
        """Refuse to be written where the training rows are on an accelerator."""
        if not isinstance(self.embeddings_, np.ndarray):
            raise TypeError(
                "density holds its training rows on an accelerator, which a bundle cannot store. Fit the "
                "NeighborAtypicality on rows on the CPU, for example on embeddings.cpu()."
            )

    def _check_stored(self) -> None:
        classes, members = self.classes_, self._members
        need(self._reference.metric == self._measure, "the metric must be the same everywhere.")
        need((classes is None) == (not self.per_class), "there must be classes if per_class.")
        need(isinstance(members[0], slice) == (not self.per_class), "there must be members if per_class.")
        need(classes is None or len(members) == classes.size, "every class must have members.")
        enough = min(map(_size, members)) >= self.n_neighbors
        need(enough, "there must be n_neighbors training rows, of every class if per_class.")

    def _restore(self) -> None:
        self.embeddings_ = self._reference.rows

    _stored = Record(
        check=_check_stored,
        restore=_restore,
        ready=_check_storable,
        n_neighbors=kinds.Integer(1),
        reduction=kinds.Choice("mean", "kth", "min"),
        metric=kinds.Choice("euclidean", "cosine"),
        normalize=kinds.Later(kinds.Choice(None, "l2"), absent=None),
    )

    def _check_own_rows(self, x: Any) -> None:
        own = self.embeddings_
        if x.shape[0] != own.shape[0]:
            raise ValueError(
                f"exclude_self=True scores the training rows themselves, {own.shape[0]} of them; "
                f"got {x.shape[0]} rows. Pass all of them in their order, or leave exclude_self out."
            )
        smallest = min(_size(members) for members in self._members)
        if smallest <= self.n_neighbors:
            raise ValueError(
                f"exclude_self=True needs more than n_neighbors={self.n_neighbors} training rows"
                f"{' of every class' if self.per_class else ''}; got {smallest}. Lower n_neighbors."
            )

        if on_device(own):
            from atypicality.density.device_neighbors import differing_rows

            _refuse_others(differing_rows(x, own))
            return

        def compare(rows: slice) -> None:
            _refuse_others(np.flatnonzero((x[rows] != own[rows]).any(axis=1)) + rows.start)

        blocks.for_rows(compare, x.shape[0], block=blocks.block_rows(x.shape[1] * 8))

    def _grouped(self, labels: Any, n_rows: int) -> tuple[NDArray[Any] | None, Sequence[slice | NDArray[np.intp]]]:
        """The classes, and the training rows to search in: all at once, or those of each class."""
        if not self.per_class:
            if labels is not None:
                encode_labels(labels, n_rows=n_rows)
            return None, [slice(0, n_rows)]
        if labels is None:
            raise ValueError("per_class=True needs labels: pass them to fit.")
        classes, codes = encode_labels(labels, n_rows=n_rows)
        self._check_counts(classes, np.bincount(codes))
        return classes, rows_by_code(codes, classes.size)


def rows_by_code(codes: NDArray[np.intp], n_codes: int) -> list[NDArray[np.intp]]:
    """For every code the rows that have it, ascending.

    >>> rows_by_code(np.array([1, 0, 1]), 3)
    [array([1]), array([0, 2]), array([], dtype=int64)]
    """
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes, minlength=n_codes))[:-1])


_SCORES_BYTES_PER_QUERY = 8 * 1024  # a row of float32 scores against one tile of training rows


def _reference(x: Any, metric: str) -> Any:
    """What is known of the training rows, on their device."""
    if not on_device(x):
        return Reference.of(x, metric)
    from atypicality.density.device_reference import DeviceReference

    return DeviceReference.of(x, metric)


def _moved(x: Any, own: Any) -> Any:
    """Rows moved to where the training rows lie."""
    if on_device(x) == on_device(own):
        return x
    return to_device(x.astype(np.float32) if x.dtype == np.float16 else x, own) if on_device(own) else to_host(x)


def _refuse_others(rows: NDArray[np.intp]) -> None:
    if rows.size:
        raise ValueError(
            f"exclude_self=True scores the training rows themselves, in their order; "
            f"{name_rows(rows, 'differs', 'differ')} from the training row of that number."
        )


def _size(members: slice | NDArray[np.intp]) -> int:
    return int(members.size if isinstance(members, np.ndarray) else members.stop)
