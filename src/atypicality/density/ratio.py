"""The neighbour ratio: how ambiguous a prediction is, by the nearest training rows of its class and of the others."""

from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.arrays import on_device, to_host
from atypicality.density.neighbors import NeighborAtypicality
from atypicality.density.search import Search
from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.stored import Part, Record, kinds, need
from atypicality.validation import check_embeddings, check_vector

__all__ = ["NeighborRatio"]

Float64 = NDArray[np.float64]


class NeighborRatio(BaseEstimator):
    """Ambiguity of a prediction: its distance to the nearest training row of its class, against that of any other.

    The trust score (Jiang, Kim, Guan and Gupta 2018, "To trust or not to trust a classifier") is the ratio of the two
    distances; here it is the share ``own / (own + other)``, which has the same order and no infinite value. It says how
    ambiguous a prediction is, not how rare an input: it serves acceptance (`ReliabilityHead(acceptance=...)`), and is
    no atypicality. Distances are exact, by the search of `NeighborAtypicality`.

    Parameters
    ----------
    normalize : None or "l2", default="l2"
        "l2" divides rows by their Euclidean length first; rows of zeros are refused.

    Attributes
    ----------
    neighbors_ : NeighborAtypicality
        The training rows, by class.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; at least two.

    Examples
    --------
    >>> ratio = NeighborRatio(normalize=None).fit([[0.0], [4.0]], [0, 1])
    >>> ratio.ambiguity([[1.0], [2.0], [3.0]], [0, 0, 0])
    array([0.25, 0.5 , 0.75])
    """

    neighbors_: Annotated[NeighborAtypicality, Part(NeighborAtypicality)]

    def __init__(self, *, normalize: str | None = "l2") -> None:
        self.normalize = normalize

    def fit(self, embeddings: ArrayLike, labels: ArrayLike) -> Self:
        """Keep the training rows, those of each class by themselves.

        Parameters
        ----------
        embeddings : array-like of shape (n_samples, n_features)
            Rows on an accelerator are copied to the host.
        labels : array-like of shape (n_samples,)
        """
        own = to_host(embeddings) if on_device(embeddings) else embeddings
        neighbors = NeighborAtypicality(1, reduction="min", per_class=True, normalize=self.normalize)
        neighbors.fit(own, to_host(labels) if on_device(labels) else labels)
        assert neighbors.classes_ is not None
        if neighbors.classes_.size < 2:
            raise ValueError("labels must have at least two classes: a ratio compares one with the others; got one.")
        self.neighbors_ = neighbors
        return self

    @property
    def classes_(self) -> NDArray[Any]:
        """Sorted labels."""
        check_is_fitted(self, "neighbors_")
        assert self.neighbors_.classes_ is not None
        return self.neighbors_.classes_

    def ambiguity(self, embeddings: ArrayLike, predicted: ArrayLike) -> Float64:
        """Ambiguity (n,) of predictions: 0.5 where both distances are equal, larger where another class is nearer.

        Parameters
        ----------
        embeddings : array-like of shape (n, n_features)
        predicted : array-like of int, of shape (n,)
            Positions in `classes_`; -1 stands for a class without a training row, whose ambiguity is 1.
        """
        width = self.neighbors_.n_features_in_
        x = check_embeddings(to_host(embeddings) if on_device(embeddings) else embeddings, width=width)
        places = check_vector(predicted, "predicted", n_rows=x.shape[0]).astype(np.intp)
        if places.size and not -1 <= places.min() <= places.max() < self.classes_.size:
            raise ValueError(f"predicted must be positions in classes_, -1 to {self.classes_.size - 1}.")
        out = np.empty(x.shape[0])

        def score(rows: slice) -> None:
            search = Search(self.neighbors_._reference, x[rows], first_row=rows.start, exclude_self=False)
            out[rows] = self._shares(search, places[rows])

        block = blocks.block_rows(8 * 1024, budget=blocks.GEMM_BYTES)
        blocks.for_rows(score, x.shape[0], block=block, work=blocks.PRODUCTS)
        return out

    def _shares(self, search: Search, places: NDArray[np.intp]) -> Float64:
        own, other = np.full(places.size, np.inf), np.full(places.size, np.inf)
        for place, members in enumerate(self.neighbors_._members):
            mine = places == place
            found = search.reduced(members, 1, _nearest, np.where(mine, np.inf, other))
            own[mine] = found[mine]
            other = np.where(mine, other, np.minimum(other, found))
        with np.errstate(invalid="ignore"):
            shares = own / (own + other)
        return np.where(np.isinf(own), 1.0, np.where((own == 0) & (other == 0), 0.5, shares))

    def _check_stored(self) -> None:
        own = self.neighbors_
        fits = (own.n_neighbors, own.reduction, own.per_class, own.normalize) == (1, "min", True, self.normalize)
        need(fits and self.classes_.size > 1, "neighbours must be the nearest of each of two classes or more.")

    _stored = Record(check=_check_stored, normalize=kinds.Choice(None, "l2"))


def _nearest(distances: Float64) -> Float64:
    return distances[:, 0]
