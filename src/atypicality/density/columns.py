"""From the classes of a density to the columns of the logits: the one place that matches them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import to_numpy

__all__ = ["class_positions", "in_columns"]


def class_positions(
    classes: Any, n_classes: int, class_names: NDArray[Any] | None = None, fitted_names: NDArray[Any] | None = None
) -> NDArray[np.intp]:
    """Column of each class of a density: integers are columns, names are looked up in `class_names`.

    With `fitted_names` integers are columns of other outputs, those that the density was fitted with, which had these
    names.

    >>> class_positions(np.array(["cat", "dog"]), 3, np.array(["dog", "ant", "cat"]))
    array([2, 0])
    >>> class_positions(np.array([0, 1]), 2, np.array(["dog", "cat"]), np.array(["cat", "dog"]))
    array([1, 0])
    """
    names = to_numpy(classes, "classes_")
    if names.dtype.kind in "iu":
        bad = [int(name) for name in names if not 0 <= name < n_classes]
        if bad:
            raise ValueError(f"the density has classes outside the {n_classes} columns of the logits: {bad[:5]}.")
        if fitted_names is None or class_names is None:
            return names.astype(np.intp)
        names = fitted_names[names]
    if class_names is None:
        raise ValueError("a density with named classes needs class_names in the outputs, in the order of the columns.")
    known = {str(name): column for column, name in enumerate(class_names)}
    missing = [str(name) for name in names if str(name) not in known]
    if missing:
        raise ValueError(f"the density has classes that class_names of the outputs does not list: {missing[:5]}.")
    return np.array([known[str(name)] for name in names], np.intp)


def in_columns(values: NDArray[np.float64], positions: NDArray[np.intp], n_classes: int) -> NDArray[np.float64]:
    """Class log-densities (n, m) in the order of the logits (n, k); a class the density never saw gets the row minimum.

    >>> in_columns(np.array([[1.0, 2.0]]), np.array([2, 0]), 3)
    array([[2., 1., 1.]])
    """
    if positions.size == n_classes and (positions == np.arange(n_classes)).all():
        return values
    wide = blocks.empty((len(values), n_classes))

    def block(rows: slice) -> None:
        wide[rows] = values[rows].min(axis=1, keepdims=True)
        wide[rows, positions] = values[rows]

    blocks.for_rows(block, len(values), block=blocks.block_rows(8 * n_classes))
    return wide
