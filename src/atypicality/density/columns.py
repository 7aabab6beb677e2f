"""From the classes of a density to the columns of the logits: the one place that matches them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import namespace, to_device, to_numpy
from atypicality.formula.density import aligned

__all__ = ["class_positions", "class_sources", "in_columns"]


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
        bad = names[(names < 0) | (names >= n_classes)].tolist()
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


def class_sources(positions: NDArray[np.intp], n_classes: int) -> NDArray[np.intp] | None:
    """For each of the logits' columns the density's, or one beyond its last; None where the two agree.

    >>> class_sources(np.array([2, 0]), 3)
    array([1, 2, 0])
    """
    sources = np.full(n_classes, positions.size)
    sources[positions] = np.arange(positions.size)
    agree = positions.size == n_classes and np.array_equal(sources, np.arange(n_classes))
    return None if agree else sources


def in_columns(values: Any, sources: NDArray[np.intp] | None) -> Any:
    """Class log-densities (n, m) in the order of the logits (n, k); a class the density never saw gets the row minimum.

    >>> in_columns(np.array([[1.0, 2.0]]), np.array([1, 2, 0]))
    array([[2., 1., 1.]])
    """
    if sources is None:
        return values
    xp, places = namespace(values), to_device(sources, values)
    block = blocks.block_rows(8 * sources.size, budget=blocks.GEMM_BYTES)
    return blocks.compute(
        lambda rows: [(aligned(xp, values[rows, :], places),)],
        values.shape[0],
        block=block,
        host=isinstance(values, np.ndarray),
    )[0]
