"""Rows of a device in the order of their classes: sorted once, so that a class is a run of consecutive places."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import Device, beside, namespace, on_device, to_device, to_host
from atypicality.density.classes import encode_labels
from atypicality.formula.density import prepared
from atypicality.validation import check_length

__all__ = ["ClassOrder", "order_by_class"]


@dataclass(frozen=True)
class ClassOrder:
    """Where the rows of each class are.

    Parameters
    ----------
    classes : ndarray of shape (k,)
        Sorted labels, on the host.
    bounds : ndarray of shape (k + 1,)
        Class y takes the places `bounds[y]` to `bounds[y + 1]`, on the host.
    rows : device array of shape (n,)
        Number of the row at each place.
    codes : device array of shape (n,)
        Class at each place, as its position in `classes`: ascending.
    normalize : {None, "l2"}
        Whether rows are divided by their length when they are taken.
    """

    classes: NDArray[Any]
    bounds: NDArray[np.int64]
    rows: Device
    codes: Device
    normalize: str | None = None

    @property
    def counts(self) -> NDArray[np.int64]:
        """Rows of each class (k,)."""
        return np.diff(self.bounds)

    def take(self, x: Device, rows: Device) -> Device:
        """Rows (m, d) of `x` by their numbers (m,)."""
        xp = namespace(x)
        return prepared(xp, xp.take(x, rows, axis=0), self.normalize)

    def span(self, places: slice) -> slice:
        """The classes among some consecutive places."""
        first, last = np.searchsorted(self.bounds, [places.start, places.stop - 1], side="right")
        return slice(int(first) - 1, int(last))


def order_by_class(labels: Any, x: Device, normalize: str | None = None) -> ClassOrder:
    """Sort rows (n, d) of a device by labels (n,) there or elsewhere; at least one row."""
    xp = namespace(x)
    classes, numbers = _numbers(labels, x)
    rows = xp.argsort(numbers, stable=True)
    ranked = xp.take(numbers, rows, axis=0)
    changes = ranked[1:] != ranked[:-1]
    bounds = np.concatenate([[0], to_host(xp.nonzero(changes)[0]) + 1, [x.shape[0]]]).astype(np.int64)
    if classes is None:
        classes = to_host(xp.take(ranked, to_device(bounds[:-1], x), axis=0))
        classes = classes.astype(bool) if xp.isdtype(labels.dtype, "bool") else classes
    steps = xp.concat([xp.zeros_like(rows[:1]), xp.astype(changes, rows.dtype)])
    return ClassOrder(classes, bounds, rows, xp.cumulative_sum(steps), normalize)


def _numbers(labels: Any, x: Device) -> tuple[NDArray[Any] | None, Device]:
    """Labels as numbers that sort like them; their classes only where the host had to find them."""
    if on_device(labels) and labels.ndim == 1 and beside(labels, x):
        xp = namespace(labels)
        check_length(labels, "labels", x.shape[0])
        if xp.isdtype(labels.dtype, "signed integer"):
            return None, labels
        if xp.isdtype(labels.dtype, "bool"):
            return None, xp.astype(labels, xp.int8)
    classes, codes = encode_labels(to_host(labels) if on_device(labels) else labels, n_rows=x.shape[0])
    return classes, to_device(codes, x)
