"""Arrays in a bundle: numbers as tensors under the name of their place, labels as text or tensors, and their rules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.recalibration.class_prior import check_class_prior
from atypicality.shipping.bundle.kinds import LONGEST_TEXT, Place, Text, need

__all__ = [
    "ANY_FLOAT",
    "COUNTS",
    "DECREASING",
    "FINITE",
    "INCREASING",
    "NOT_NAN",
    "NOT_NEGATIVE",
    "POSITIVE",
    "SHARES",
    "UNIT",
    "Array",
    "ClassPrior",
    "Labels",
    "Members",
    "Rule",
]

TEXT_BYTES = 2**28
"""Most bytes of an array of text, which NumPy makes as wide as its longest entry."""
ANY_FLOAT = ("float32", "float64")
COUNTS = ("int64",)
INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")


@dataclass(frozen=True)
class Rule:
    """What must hold of an array, and how to say it."""

    text: str
    holds: Callable[[NDArray[Any]], Any]


FINITE = Rule("be finite", lambda a: np.isfinite(a).all())
NOT_NAN = Rule("hold no NaN", lambda a: not np.isnan(a).any())
POSITIVE = Rule("be positive and finite", lambda a: ((a > 0) & np.isfinite(a)).all())
NOT_NEGATIVE = Rule("not be negative", lambda a: (a >= 0).all())
UNIT = Rule("lie in [0, 1]", lambda a: ((a >= 0) & (a <= 1)).all())
INCREASING = Rule("be strictly increasing", lambda a: (a[1:] > a[:-1]).all())
DECREASING = Rule("be strictly decreasing", lambda a: (a[1:] < a[:-1]).all())
SHARES = Rule("be shares that sum to 1", lambda a: (a >= 0).all() and abs(a.sum() - 1) < 1e-6)


class Array:
    """An array whose axes have named sizes and whose entries keep some rules.

    The shape is written as in "c D": two axes, one of the size c and one of the size D; "*" is any size, a number is
    that size, and "K K | K" means two axes or one.
    """

    def __init__(self, shape: str, *rules: Rule, dtypes: Sequence[str] = ("float64",)) -> None:
        self.shapes = {len(axes): axes for axes in (option.split() for option in shape.split("|"))}
        self.rules, self.dtypes = rules, tuple(dtypes)

    def write(self, value: Any, place: Place) -> dict[str, str]:
        """How the tensor of this place is laid out; the layout decides the last bits of a matrix product."""
        array = np.asarray(value)
        self._check(array, place)
        columns_first = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
        place.tensors[place.path] = array.T if columns_first else array
        return {"tensor": "columns first" if columns_first else "rows first"}

    def read(self, stored: Any, place: Place) -> NDArray[Any]:
        """The tensor of this place."""
        need(
            stored in ({"tensor": "rows first"}, {"tensor": "columns first"}),
            f"{place.path} must say that it is a tensor, rows or columns first.",
        )
        need(place.path in place.tensors, f"{place.path} is not among the tensors.")
        array = place.tensors.pop(place.path)
        if stored["tensor"] == "columns first":
            need(array.ndim > 1, f"{place.path} must have two axes to be laid out by columns.")
            array = array.T
        self._check(array, place)
        return array

    def _check(self, array: NDArray[Any], place: Place) -> None:
        need(array.dtype.name in self.dtypes, f"{place.path} must be {' or '.join(self.dtypes)}; got {array.dtype}.")
        axes = self.shapes.get(array.ndim)
        need(
            axes is not None,
            f"{place.path} must have {' or '.join(map(str, self.shapes))} axes; got shape {array.shape}.",
        )
        for size, found in zip(axes or [], array.shape, strict=True):
            if size.isdigit():
                need(found == int(size), f"{place.path} must have axes {axes}; got shape {array.shape}.")
            elif size != "*":
                place.fix_size(size, found)
        if array.dtype == bool:
            need((array.view(np.uint8) <= 1).all(), f"{place.path} must be 0 or 1.")
        for rule in self.rules:
            need(rule.holds(array), f"{place.path} must {rule.text}.")


class Labels:
    """Distinct labels (n,): text in the JSON file, integers and booleans as a tensor of their type."""

    def __init__(self, size: str, *, ordered: bool = True) -> None:
        self.size, self.ordered = size, ordered
        self._numbers = Array(size, dtypes=(*INTEGERS, "bool"))

    def write(self, value: Any, place: Place) -> Any:
        """A list of strings, or where the tensor is."""
        array = np.asarray(value)
        self._check(array, place)
        return array.tolist() if array.dtype.kind == "U" else self._numbers.write(array, place)

    def read(self, stored: Any, place: Place) -> NDArray[Any]:
        """Labels (n,)."""
        array = self._text(stored, place) if isinstance(stored, list) else self._numbers.read(stored, place)
        self._check(array, place)
        return array

    def _text(self, stored: list[Any], place: Place) -> NDArray[Any]:
        text = Text(longest=LONGEST_TEXT)
        for index, label in enumerate(stored):
            text.read(label, place.at(index))
        width = max(map(len, stored), default=1)
        need(4 * width * len(stored) <= TEXT_BYTES, f"{place.path} must fit in {TEXT_BYTES} bytes of text.")
        return np.array(stored, dtype=str)

    def _check(self, array: NDArray[Any], place: Place) -> None:
        need(array.ndim == 1 and array.size > 0, f"{place.path} must be a list of labels; got shape {array.shape}.")
        if array.dtype.kind == "U":
            place.fix_size(self.size, array.size)
        unique = np.unique(array)
        need(unique.size == array.size, f"{place.path} must be distinct.")
        need(not self.ordered or (unique == array).all(), f"{place.path} must be sorted.")


class ClassPrior:
    """Class shares: a mapping or a sequence is stored as the vector (k,) that it stands for."""

    _vector = Array("*", SHARES)

    def write(self, value: Any, place: Place) -> Any:
        """Where the tensor is."""
        return self._vector.write(check_class_prior(value, len(value)), place)

    def read(self, stored: Any, place: Place) -> NDArray[Any]:
        """Shares (k,)."""
        return self._vector.read(stored, place)


class Members:
    """Training rows to search in: all n of them (null), or those of each class as positions and sizes."""

    _rows = Array("n", dtypes=("int64",))
    _sizes = Array("c", Rule("be positive", lambda a: (a > 0).all()), dtypes=("int64",))

    def write(self, value: Any, place: Place) -> Any:
        """Null, or where the two tensors are."""
        if isinstance(value[0], slice):
            place.fix_size("n", value[0].stop)
            return None
        sizes = np.array([part.size for part in value], np.int64)
        return [self._rows.write(np.concatenate(value), place.at("rows")), self._sizes.write(sizes, place.at("sizes"))]

    def read(self, stored: Any, place: Place) -> list[slice | NDArray[np.intp]]:
        """A slice, or positions of each class."""
        if stored is None:
            return [slice(0, place.own["n"])]
        need(isinstance(stored, list) and len(stored) == 2, f"{place.path} must be null or a pair.")
        rows = self._rows.read(stored[0], place.at("rows"))
        sizes = self._sizes.read(stored[1], place.at("sizes"))
        need(sizes.max() <= rows.size and sizes.sum() == rows.size, f"{place.path} must have the sizes of its classes.")
        need(np.array_equal(np.sort(rows), np.arange(rows.size)), f"{place.path} must name every training row once.")
        return list(np.split(rows, np.cumsum(sizes)[:-1]))
