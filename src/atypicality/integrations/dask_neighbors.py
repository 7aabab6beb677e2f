"""Neighbours on a cluster: the nearest training rows of every part, where that part lies, merged to the nearest of all.

A task takes a block of queries and one part of the training rows and returns distances alone, (queries, n_neighbors),
so that training rows stay where they are. The distances are exact ones, so that the smallest of all parts are those of
one search through all rows, to the last bit.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from atypicality import blocks
from atypicality.arrays import to_numpy
from atypicality.density.classes import check_classes, encode_labels, merge_classes
from atypicality.density.neighbors import NeighborAtypicality
from atypicality.density.search import Reference, Search
from atypicality.integrations.dask_cluster import Place, compute, connected, lazy_array, task, tree
from atypicality.integrations.dask_rows import Rows, aligned, is_dask, is_paths, read, rows_of
from atypicality.validation import check_embeddings

__all__ = ["ClusterNeighborAtypicality"]

Float64 = NDArray[np.float64]
Members = NDArray[np.intp] | slice

QUERIES = 1024
"""Queries of one block of a search, so that its scores stay in cache."""
RESULT_BYTES = 64 * 1024 * 1024
"""Distances that one task may return."""


class Wanted(NamedTuple):
    """What a task looks for."""

    n_neighbors: int
    metric: str
    classes: NDArray[Any] | None


class ClusterNeighborAtypicality(NeighborAtypicality):
    """A `NeighborAtypicality` whose training rows stay on a cluster, or in files that its workers see.

    Made by `fit`. It scores like the ordinary one, through the cluster; what it keeps is where the rows are. A Dask
    array is computed again for every scoring unless it was persisted before the fit.

    Parameters
    ----------
    n_neighbors, reduction, metric, per_class, normalize : int, str, str, bool, str
        As in `NeighborAtypicality`.

    Attributes
    ----------
    rows_ : Rows
        Where the training rows are.
    classes_ : ndarray of shape (n_classes,) or None
    n_features_in_ : int

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> rows = da.from_array(np.array([[0.0], [1.0], [2.0], [10.0]]), chunks=(3, 1))
    >>> ClusterNeighborAtypicality(n_neighbors=2).fit(rows).atypicality([[1.5], [20.0]])
    array([ 0.5, 14. ])
    """

    def fit(self, embeddings: Any, labels: Any = None, *, client: Any = None) -> Self:
        """Read the training rows once, on the workers, to refuse what is no distance; keep where they are.

        Parameters
        ----------
        embeddings : dask.array of shape (n, d), or list of paths
        labels : dask.array or array-like of shape (n,), or list of .npy paths, optional
            Needed with `per_class`; files of outputs hold their own.
        client : distributed.Client, optional
        """
        self._check_parameters()
        with connected(client) as own:
            rows = rows_of(embeddings, "embeddings", own)
            if rows.n_rows < self.n_neighbors:
                raise ValueError(
                    f"n_neighbors must be at most the number of training rows; got {self.n_neighbors} for "
                    f"{rows.n_rows}. Lower n_neighbors, or fit on more rows."
                )
            given = labels is not None or self.per_class
            codes = aligned(labels, "labels", rows, own) if given else [None] * len(rows.values)
            classes, counts = compute(own, tree(_looked(rows, codes, self._measure), _merge_counts))
        self._check_counts(classes, counts)
        self.rows_, self._labels, self.n_features_in_ = rows, codes, rows.width
        self.classes_ = classes if self.per_class else None
        return self

    def atypicality(self, embeddings: Any, *, exclude_self: bool = False, client: Any = None) -> Any:
        """Atypicality (n,) of rows (n, d), larger is rarer.

        Parameters
        ----------
        embeddings : dask.array, list of paths or array-like of shape (n, d)
            A Dask array gives a lazy Dask array; the others give NumPy.
        exclude_self : bool, default=False
            Not possible across workers.
        client : distributed.Client, optional
        """
        check_is_fitted(self, "rows_")
        if exclude_self:
            raise ValueError("exclude_self=True needs the training rows on one machine. Use local().atypicality(...).")
        if is_dask(embeddings):
            rows = rows_of(embeddings, "embeddings", None, width=self.n_features_in_)
            return lazy_array(self._lazy_scores(rows), rows.lengths)
        with connected(client) as own:
            rows = self._query_rows(embeddings, own)
            return np.concatenate(compute(own, self._lazy_scores(rows))) if rows.values else np.empty(0)

    def local(self, *, client: Any = None) -> NeighborAtypicality:
        """The ordinary estimator, with all training rows brought here through `client`: it can be saved."""
        check_is_fitted(self, "rows_")
        with connected(client) as own:
            parts = compute(own, [_fetch.later(value) for value in self.rows_.values])
            labels = compute(own, [_fetch.later(value) for value in self._labels]) if self.per_class else None
        ordinary = NeighborAtypicality(**self.get_params())
        return ordinary.fit(np.concatenate(parts), None if labels is None else np.concatenate(labels))

    def _check_counts(self, classes: Any, counts: Any) -> None:
        if not self.per_class:
            return
        few = np.flatnonzero(counts < self.n_neighbors)
        if few.size:
            raise ValueError(
                f"per_class=True needs at least n_neighbors={self.n_neighbors} rows of every class; class "
                f"{classes[few[0]].item()!r} has {counts[few[0]]}. Lower n_neighbors, or leave that class out."
            )

    def _query_rows(self, embeddings: Any, client: Any) -> Rows:
        if is_paths(embeddings):
            return rows_of(embeddings, "embeddings", client, width=self.n_features_in_)
        x = check_embeddings(to_numpy(embeddings, "embeddings"), width=self.n_features_in_)
        cuts = list(blocks.row_slices(x.shape[0], self._queries_at_once()))
        lengths = [cut.stop - cut.start for cut in cuts]
        return Rows(
            [x[cut] for cut in cuts], lengths, [Place(cut.start) for cut in cuts], x.shape[1], x.dtype, False, []
        )

    def _queries_at_once(self) -> int:
        results = self.n_neighbors * (1 if self.classes_ is None else self.classes_.size)
        return int(np.clip(RESULT_BYTES // (8 * results), 1, 16 * QUERIES))

    def _lazy_scores(self, queries: Rows) -> list[Any]:
        """Lazy scores (n,) of every part of the queries."""
        wanted, step = Wanted(self.n_neighbors, self._measure, self.classes_), self._queries_at_once()
        each = []
        for value, n, place in zip(queries.values, queries.lengths, queries.places, strict=True):
            found = [self._nearest(value, rows, place, wanted) for rows in blocks.row_slices(n, step)]
            each.append(_reduce.later(found, NeighborAtypicality(**self.get_params())))
        return each

    def _nearest(self, value: Any, queries: slice, place: Place, wanted: Wanted) -> Any:
        parts = zip(self.rows_.values, self._labels, strict=True)
        return tree([_nearest_in.later(value, queries, place, rows, y, wanted) for rows, y in parts], _merge_nearest)


@task
def _look(value: Any, labels: Any, place: Place, metric: str) -> tuple[Any, Any]:
    """Refuse training rows as the ordinary fit would; the classes among the labels, and their counts."""
    rows = read(value)
    try:
        Reference.of(check_embeddings(rows), metric)
        if labels is None:
            return None, None
        classes, codes = encode_labels(read(labels), n_rows=rows.shape[0])
    except (ValueError, TypeError) as error:
        raise place.explain(error, "embeddings", rows) from None
    return classes, np.bincount(codes)


def _looked(rows: Rows, labels: list[Any], metric: str) -> list[Any]:
    return [_look.later(*part, metric) for part in zip(rows.values, labels, rows.places, strict=True)]


@task
def _merge_counts(found: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    classes, counts = found[0]
    for others, theirs in found[1:]:
        if others is not None:
            union, ours_at, theirs_at = merge_classes(classes, others)
            total = np.zeros(union.size, np.int64)
            total[ours_at] += counts
            total[theirs_at] += theirs
            classes, counts = union, total
    return classes, counts


@task
def _nearest_in(value: Any, queries: slice, place: Place, part: Any, labels: Any, wanted: Wanted) -> Float64:
    """Distances (groups, queries, n_neighbors) to the nearest rows of a part, ascending, then infinite."""
    asked, rows = check_embeddings(read(value)[queries]), check_embeddings(read(part))
    reference, members = Reference.of(rows, wanted.metric), _members(rows.shape[0], labels, wanted.classes)
    out = np.full((len(members), asked.shape[0], wanted.n_neighbors), np.inf)

    def search(block: slice) -> None:
        found = Search(reference, asked[block], first_row=block.start, exclude_self=False)
        for group, chosen in enumerate(members):
            k = min(wanted.n_neighbors, chosen.size if isinstance(chosen, np.ndarray) else rows.shape[0])
            if k:
                out[group, block, :k] = found.nearest(chosen, k)

    try:
        blocks.for_rows(search, asked.shape[0], block=QUERIES)
    except (ValueError, TypeError) as error:
        whole = Place(place.first_row + queries.start, place.file, place.first_in_file + queries.start)
        raise whole.explain(error, "embeddings", asked) from None
    return out


def _members(n_rows: int, labels: Any, classes: NDArray[Any] | None) -> Sequence[Members]:
    """Rows of a part to search in: all at once, or those of each class."""
    if classes is None:
        return [slice(0, n_rows)]
    codes = np.searchsorted(classes, check_classes(read(labels), n_rows=n_rows))
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes, minlength=classes.size))[:-1])


@task
def _merge_nearest(found: list[Float64]) -> Float64:
    k = found[0].shape[2]
    together = np.concatenate(found, axis=2)
    together.sort(axis=2)
    return together[:, :, :k].copy()


@task
def _reduce(found: list[Float64], estimator: NeighborAtypicality) -> Float64:
    """Scores of consecutive blocks of queries: reduced over the neighbours, the smallest over the classes."""
    each = [np.min([estimator._reduced(group) for group in distances], axis=0) for distances in found]
    return np.concatenate(each)


@task
def _fetch(value: Any) -> Any:
    return np.array(read(value))
