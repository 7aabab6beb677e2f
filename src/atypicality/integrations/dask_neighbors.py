"""Neighbours on a cluster: the nearest training rows of every part, where that part lies, merged to the nearest of all.

A task takes a block of queries and one part of the training rows and returns distances alone, (queries, n_neighbors),
so that training rows stay where they are. The distances are exact ones, so that the smallest of all parts are those of
one search through all rows, to the last bit.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import to_numpy
from atypicality.density.classes import check_classes, encode_labels, merge_classes
from atypicality.density.neighbors import NeighborAtypicality, rows_by_code
from atypicality.density.search import Reference, Search
from atypicality.estimators import check_is_fitted
from atypicality.integrations.dask_cluster import PartPlace, compute, connected, known_client, lazy_array, task, tree
from atypicality.integrations.dask_rows import DaskRows, aligned, is_dask, is_paths, read, rows_of
from atypicality.validation import check_embeddings

__all__ = ["ClusterNeighborAtypicality"]

Float64 = NDArray[np.float64]
Members = NDArray[np.intp] | slice

QUERIES = 1024  # queries of one block of a search, so that its scores stay in cache
RESULT_BYTES = 64 * 1024 * 1024  # distances that one task may return


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
    rows_ : DaskRows
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
            self._check_n_rows(rows.n_rows)
            codes = aligned(labels, "labels", rows, own, wanted=labels is not None or self.per_class)
            parts = zip(rows.values, codes, rows.places, strict=True)
            classes, counts = compute(own, tree([_look.later(*part, self._measure) for part in parts], _merge_counts))
        if self.per_class:
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
        if is_dask(embeddings) or is_paths(embeddings):
            return scores_of(self._lazy_scores, embeddings, self.n_features_in_, client)
        x = check_embeddings(to_numpy(embeddings, "embeddings"), width=self.n_features_in_)
        if not x.shape[0]:
            return np.empty(0)
        cuts = list(blocks.row_slices(x.shape[0], self._queries_at_once()))
        values, places = [x[cut] for cut in cuts], [PartPlace(cut.start) for cut in cuts]
        rows = DaskRows(values, [len(value) for value in values], places, x.shape[1], x.dtype)
        with connected(client) as own:  # queries within the tasks: chunks would draw the training rows to them
            return np.concatenate(compute(own, self._lazy_scores(rows)))

    def local(self, *, client: Any = None) -> NeighborAtypicality:
        """The ordinary estimator, with all training rows brought here through `client`: it can be saved."""
        check_is_fitted(self, "rows_")
        with connected(client) as own:
            parts = compute(own, [_fetch.later(value) for value in self.rows_.values])
            labels = compute(own, [_fetch.later(value) for value in self._labels]) if self.per_class else None
        ordinary = NeighborAtypicality(**self.get_params())
        return ordinary.fit(np.concatenate(parts), None if labels is None else np.concatenate(labels))

    def _queries_at_once(self) -> int:
        results = self.n_neighbors * (1 if self.classes_ is None else self.classes_.size)
        return int(np.clip(RESULT_BYTES // (8 * results), 1, 16 * QUERIES))

    def _lazy_scores(self, queries: DaskRows, client: Any = None) -> list[Any]:
        """Lazy scores (n,) of every part of the queries."""
        plain, step = NeighborAtypicality(**self.get_params()), self._queries_at_once()

        def nearest(*asked: Any) -> Any:
            parts = zip(self.rows_.values, self._labels, strict=True)
            return tree([_nearest_in.later(*asked, *part, plain, self.classes_) for part in parts], _merge_nearest)

        each = zip(queries.values, queries.lengths, queries.places, strict=True)
        return [
            _reduce.later([nearest(value, rows, place) for rows in blocks.row_slices(n, step)], plain)
            for value, n, place in each
        ]


def scores_of(score: Callable[[DaskRows, Any], list[Any]], embeddings: Any, width: int, client: Any) -> Any:
    """Scores (n,) of a Dask array, lazy, or of files, from lazy ones of their parts: `score(rows, client)`."""
    if is_dask(embeddings):
        rows = rows_of(embeddings, "embeddings", None, width=width)
        return lazy_array(score(rows, known_client(client)), rows.lengths)
    with connected(client) as own:
        rows = rows_of(embeddings, "embeddings", own, width=width)
        return np.concatenate(compute(own, score(rows, own)))


@task
def _look(value: Any, labels: Any, place: PartPlace, metric: str) -> tuple[Any, Any]:
    """Refuse training rows as the ordinary fit would; the classes among the labels, and their counts."""
    with place.named():
        rows = check_embeddings(read(value))
        Reference.of(rows, metric)
        if labels is None:
            return None, None
        classes, codes = encode_labels(read(labels), n_rows=rows.shape[0])
    return classes, np.bincount(codes)


def _merge_counts(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
    if other[0] is None:
        return one
    classes, *places = merge_classes(one[0], other[0])
    total = np.zeros(classes.size, np.int64)
    for place, (_, counts) in zip(places, (one, other), strict=True):
        total[place] += counts
    return classes, total


@task
def _nearest_in(
    value: Any, queries: slice, place: PartPlace, part: Any, labels: Any, estimator: NeighborAtypicality, classes: Any
) -> Float64:
    """Distances (groups, queries, n_neighbors) to the nearest rows of a part, ascending, then infinite."""
    asked, rows = check_embeddings(read(value)[queries]), check_embeddings(read(part))
    reference, members = Reference.of(rows, estimator._measure), _members(rows.shape[0], labels, classes)
    out = np.full((len(members), asked.shape[0], estimator.n_neighbors), np.inf)

    def search(block: slice) -> None:
        found = Search(reference, asked[block], first_row=block.start, exclude_self=False)
        for group, chosen in enumerate(members):
            k = min(estimator.n_neighbors, chosen.size if isinstance(chosen, np.ndarray) else rows.shape[0])
            if k:
                out[group, block, :k] = found.nearest(chosen, k)

    with place.named(queries.start):
        blocks.for_rows(search, asked.shape[0], block=QUERIES, work=blocks.PRODUCTS)
    return out


def _members(n_rows: int, labels: Any, classes: NDArray[Any] | None) -> Sequence[Members]:
    """Rows of a part to search in: all at once, or those of each class."""
    if classes is None:
        return [slice(0, n_rows)]
    codes = np.searchsorted(classes, check_classes(read(labels), n_rows=n_rows))
    return rows_by_code(codes, classes.size)


def _merge_nearest(one: Float64, other: Float64) -> Float64:
    together = np.concatenate([one, other], axis=2)
    together.sort(axis=2)
    return together[:, :, : one.shape[2]].copy()


@task
def _reduce(found: list[Float64], estimator: NeighborAtypicality) -> Float64:
    """Scores of consecutive blocks of queries: reduced over the neighbours, the smallest over the classes."""
    each = [np.min([estimator._reduced(group) for group in distances], axis=0) for distances in found]
    return np.concatenate(each)


@task
def _fetch(value: Any) -> Any:
    return np.array(read(value))
