"""How good prediction sets are: how often they hold the label, how large they are, and for whom they fail."""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.arrays import entries_at, namespace, on_device, to_device, to_host, to_numpy
from atypicality.groups import cut
from atypicality.validation import check_alpha, check_choice, check_labels

__all__ = ["coverage", "coverage_gap", "covered", "set_size", "size_strata", "sizes"]


def coverage(sets: ArrayLike, labels: ArrayLike) -> float:
    r"""Share of prediction sets that hold their label.

    .. math:: \frac{1}{n} \sum_i 1[y_i \in C(x_i)]

    Parameters
    ----------
    sets : array-like of bool, of shape (n_samples, n_classes)
    labels : array-like of shape (n_samples,)

    Examples
    --------
    >>> coverage([[True, False], [True, True]], [1, 1])
    0.5
    """
    return float(covered(sets, labels).mean())


def set_size(sets: ArrayLike) -> float:
    """Mean number of classes in a prediction set.

    Parameters
    ----------
    sets : array-like of bool, of shape (n_samples, n_classes)

    Examples
    --------
    >>> set_size([[True, False], [True, True]])
    1.5
    """
    return float(sizes(sets).mean())


def coverage_gap(
    sets: ArrayLike, labels: ArrayLike, alpha: float = 0.1, *, by: Literal["class", "size"] = "class"
) -> float:
    """How far coverage strays from 1 - alpha in parts of the data.

    Parameters
    ----------
    sets : array-like of shape (n_samples, n_classes)
        Prediction sets, boolean.
    labels : array-like of shape (n_samples,)
    alpha : float, default=0.1
        Allowed miscoverage.
    by : "class" or "size", default="class"
        "class": mean over the classes among the labels of the absolute gap (CovGap of Ding et al. 2023).
        "size": the largest absolute gap over strata of set size 0-1, 2-3, 4-10, 11-100 and more (SSCV of
        Angelopoulos et al. 2021, RAPS, section 4.4). Parts without samples do not count.

    Examples
    --------
    >>> sets = [[True, False], [True, False], [True, True], [True, True]]
    >>> round(coverage_gap(sets, [0, 1, 1, 1], 0.1), 6)       # class 0: 0.1; class 1: 2/3 - 0.9
    0.166667
    >>> coverage_gap(sets, [0, 1, 1, 1], 0.1, by="size")      # size 1: 0.5; size 2: 1.0
    0.4
    """
    target = float(1 - check_alpha(alpha))
    check_choice(by, "by", ("class", "size"))
    hits = covered(sets, labels)
    if by == "class":
        return float(np.abs(_shares(check_labels(labels), hits) - target).mean())
    return float(np.abs(_shares(size_strata(sizes(sets)), hits) - target).max())


def size_strata(set_sizes: ArrayLike) -> NDArray[np.intp]:
    """Stratum of each set size (n,): 0-1, 2-3, 4-10, 11-100 and more (Angelopoulos et al. 2021).

    >>> size_strata([0, 1, 3, 10, 500])
    array([0, 0, 1, 2, 4])
    """
    return cut(np.array([1.0, 3.0, 10.0, 100.0]), np.asarray(set_sizes, np.float64))


def covered(sets: ArrayLike, labels: ArrayLike) -> NDArray[np.bool_]:
    """Whether each set holds its label, (n,)."""
    array = _check_sets(sets)
    target = check_labels(labels, n_classes=array.shape[1], n_rows=array.shape[0])
    if on_device(array):
        return to_host(entries_at(array, to_device(target, array))[:, 0])
    return np.asarray(array[np.arange(target.size), target])


def sizes(sets: ArrayLike) -> NDArray[np.intp]:
    """Number of classes in each set, (n,)."""
    array = _check_sets(sets)
    if on_device(array):
        return to_host(namespace(array).count_nonzero(array, axis=1))
    return np.asarray(np.count_nonzero(array, axis=1))


def _shares(parts: NDArray[np.intp], hits: NDArray[np.bool_]) -> NDArray[np.float64]:
    count = np.bincount(parts)
    return (np.bincount(parts, hits) / np.maximum(count, 1))[count > 0]


def _check_sets(sets: Any, name: str = "sets") -> Any:
    array = sets if on_device(sets) else to_numpy(sets, name)
    if array.ndim != 2 or array.shape[1] == 0:
        shape = tuple(array.shape)
        raise ValueError(f"{name} must have shape (n_samples, n_classes), one row per set; got shape {shape}.")
    if array.shape[0] == 0:
        raise ValueError(f"{name} must hold at least one set; got none. A metric of nothing is undefined.")
    if array.dtype != (namespace(array).bool if on_device(array) else np.bool_):
        raise TypeError(
            f"{name} must be boolean, True where a class is in the set; got dtype {array.dtype}. "
            "Pass what predict_set returns, not probabilities."
        )
    return array
