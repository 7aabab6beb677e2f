"""How rare a class is: labels of any kind as sorted classes, and minus the log of each class's share."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.arrays import returns_like_input, to_numpy
from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.validation import check_length, check_number

__all__ = ["ClassAtypicality", "check_classes", "encode_labels", "merge_classes"]


class ClassAtypicality(BaseEstimator):
    """Minus the log of a class's share of the training labels: rare classes are atypical.

    With n labels of k classes and n_y of class y, the paper's class atypicality (section 2) is
    `-log((n_y + s) / (n + s k))`, where s is the smoothing, 0 by default.

    Parameters
    ----------
    smoothing : float, default=0.0
        Added to every count (Laplace smoothing). At 0 a class that was never seen is infinitely atypical; above 0 it
        counts as a class seen 0 times.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels seen, sorted.
    counts_ : ndarray of shape (n_classes,)
        How often each was seen.

    Examples
    --------
    >>> import numpy as np
    >>> ClassAtypicality().fit(["cat", "cat", "cat", "dog"]).atypicality(["cat", "dog", "emu"]).round(3)
    array([0.288, 1.386,   inf])
    """

    def __init__(self, *, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing

    def fit(self, labels: ArrayLike, y: object = None) -> Self:
        """Count the classes.

        Parameters
        ----------
        labels : array-like of shape (n_samples,)
            Integers, booleans or strings.
        """
        check_number(self.smoothing, "smoothing", low=0.0)
        classes, codes = encode_labels(labels)
        if not codes.size:
            raise ValueError("labels must hold at least one label to fit on; got none.")
        self.classes_, self.counts_ = classes, np.bincount(codes)
        return self

    @returns_like_input
    def atypicality(self, labels: ArrayLike) -> NDArray[np.float64]:
        """Atypicality (n_samples,) of the classes of `labels`, larger is rarer; infinite for a class never seen."""
        check_is_fitted(self)
        asked = check_classes(labels)
        if not asked.size:
            return np.empty(0)
        _check_same_kind(asked, self.classes_)
        total = self.counts_.sum() + self.smoothing * self.classes_.size
        with np.errstate(divide="ignore"):
            values = np.log(total) - np.log(np.append(self.counts_, 0) + self.smoothing)  # the last: never seen
        out = np.empty(asked.size)

        def look_up(rows: slice) -> None:
            position = np.searchsorted(self.classes_, asked[rows]).clip(max=self.classes_.size - 1)
            known = self.classes_[position] == asked[rows]
            out[rows] = np.where(known, values[position], values[-1])

        blocks.for_rows(look_up, asked.size, block=blocks.block_rows(asked.itemsize + 16))
        return out


def check_classes(labels: Any, name: str = "labels", *, n_rows: int | None = None) -> NDArray[Any]:
    """Labels (n,) of any kind that has an order and exact equality: integers, booleans or strings."""
    boxed = isinstance(labels, (list, tuple))  # as they are: NumPy would make strings of a mixture without a word
    array = np.array(labels, dtype=object) if boxed else to_numpy(labels, name)
    if array.ndim != 1:
        raise ValueError(
            f"{name} must be one-dimensional, one class per sample; got shape {array.shape}. "
            "Multi-label targets are not supported; for one-hot rows pass .argmax(axis=1)."
        )
    if array.dtype.kind == "O":
        array = _unbox(array)
    if array.dtype.kind not in "iubU" and array.size:
        raise TypeError(
            f"{name} must be all integers, all booleans or all strings; got dtype {array.dtype}. "
            "Convert them, for example with .astype(int) or .astype(str)."
        )
    if n_rows is not None:
        check_length(array, name, n_rows)
    return array


def encode_labels(
    labels: Any, name: str = "labels", *, n_rows: int | None = None
) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The sorted classes (k,) among the labels, and each label as its position there (n,).

    >>> encode_labels(["b", "a", "b"])
    (array(['a', 'b'], dtype='<U1'), array([1, 0, 1]))
    """
    array = check_classes(labels, name, n_rows=n_rows)
    if array.dtype.kind in "iu" and array.size:
        wide = array if array.dtype == np.uint64 else array.astype(np.int64, copy=False)
        span = int(wide.max()) - int(wide.min()) + 1
        if span <= 2 * array.size + 1024:  # a table instead of a sort
            return _encode_by_table(array, (wide - wide.min()).astype(np.intp, copy=False), span)
    classes, codes = np.unique(array, return_inverse=True)
    return classes, codes.astype(np.intp, copy=False)


def merge_classes(first: NDArray[Any], second: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp], NDArray[np.intp]]:
    """The sorted union of two sorted sets of classes, and where the members of each stand in it."""
    _check_same_kind(second, first)
    union = np.union1d(first, second)
    return union, np.searchsorted(union, first), np.searchsorted(union, second)


def _encode_by_table(
    array: NDArray[Any], offsets: NDArray[np.intp], span: int
) -> tuple[NDArray[Any], NDArray[np.intp]]:
    labels = np.empty(span, array.dtype)
    labels[offsets] = array
    present = np.flatnonzero(np.bincount(offsets, minlength=span))
    table = np.empty(span, np.intp)
    table[present] = np.arange(present.size)
    return labels[present], table[offsets]


def _check_same_kind(labels: NDArray[Any], classes: NDArray[Any]) -> None:
    kinds = [("text" if array.dtype.kind == "U" else "numbers") for array in (labels, classes)]
    if kinds[0] != kinds[1]:
        raise TypeError(
            f"labels must be of the kind seen before: classes are {kinds[1]} ({classes.dtype}), "
            f"labels are {kinds[0]} ({labels.dtype}). Convert the labels."
        )


def _unbox(array: NDArray[Any]) -> NDArray[Any]:
    for kind in (str, (bool, np.bool_), (int, np.integer)):
        if all(isinstance(label, kind) for label in array):
            return np.array(array.tolist())
    return array
