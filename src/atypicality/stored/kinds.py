"""Kinds of values that a file can hold: each writes a value as JSON or as a tensor, and reads it back, checked.

Every kind checks the same rules in both directions, so that a head that could not be loaded is refused when it is
saved. A broken rule is a `ValueError` or `TypeError` that names the place; `load` makes a `BundleError` of it.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.validation import check_alpha, check_choice, check_integer, check_number

__all__ = [
    "ANY_FLOAT", "DECREASING", "FINITE", "FLAG", "INCREASING", "NOT_NAN", "NOT_NEGATIVE", "POSITIVE", "SEED",
    "SHARES", "UNIT", "Alpha", "Array", "Choice", "Counts", "Either", "Integer", "Kind", "Labels", "Later", "ListOf",
    "MappingOf", "Number", "Place", "Rule", "ScalarOr", "Size", "Text", "TupleOf", "need", "optional",
]  # fmt: skip

LONGEST_TEXT = 4096
LONGEST_LIST = 1_000_000
LARGEST_SIZE = 10_000_000
TEXT_BYTES = 2**28  # most bytes of an array of text, which NumPy makes as wide as its longest entry
ANY_FLOAT = ("float32", "float64")
INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")


def need(condition: Any, message: str) -> None:
    """Raise a `ValueError` with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class Place:
    """Where a value stands: its path in the head, the tensors by path, and the sizes that other values have fixed.

    Sizes with capital names (K classes, D columns of embeddings) are the same in the whole head, others in the
    estimator they belong to.
    """

    path: str
    tensors: dict[str, NDArray[Any]]
    shared: dict[str, int]
    own: dict[str, int]

    @classmethod
    def start(cls, tensors: dict[str, NDArray[Any]]) -> "Place":
        """The head itself."""
        return cls("head", tensors, {}, {})

    def at(self, name: str | int) -> "Place":
        """The place of a part of this value."""
        return Place(f"{self.path}.{name}", self.tensors, self.shared, self.own)

    def with_own_sizes(self) -> "Place":
        """The same place, where small-letter sizes are not those of the surroundings."""
        return Place(self.path, self.tensors, self.shared, {})

    def fix_size(self, name: str, found: int) -> None:
        """Learn a size, or check it against what is known; "*" is any size, a number is that size."""
        if name.isdigit():
            need(found == int(name), f"{self.path} must have {name} entries; got {found}.")
        elif name != "*":
            known = (self.shared if name.isupper() else self.own).setdefault(name, found)
            need(known == found, f"{self.path} has size {found} where other parts of the head have {known}.")


class Kind:
    """A kind of value. One that is the same in JSON gives `_check`; another `_write` and `_read`."""

    def write(self, value: Any, place: Place) -> Any:
        """The value as JSON; arrays go into the tensors of the place."""
        return self._write(value, place)

    def read(self, stored: Any, place: Place) -> Any:
        """The value from JSON that may be anything."""
        return self._read(stored, place)

    def _check(self, value: Any, place: Place) -> Any:
        raise NotImplementedError

    def _write(self, value: Any, place: Place) -> Any:
        return self._check(value, place)

    def _read(self, stored: Any, place: Place) -> Any:
        return self._check(stored, place)


@dataclass(frozen=True)
class Number(Kind):
    """A real number in a range; with `infinite` also plus infinity, which JSON lacks and which is stored as text."""

    low: float = -math.inf
    high: float = math.inf
    infinite: bool = False
    low_open: bool = False

    def _check(self, value: Any, place: Place) -> float:
        return check_number(value, place.path, low=self.low, high=self.high, low_open=self.low_open)

    def _write(self, value: Any, place: Place) -> Any:
        if self.infinite and not isinstance(value, str) and value == math.inf:
            return "inf"
        return self._check(value, place)

    def _read(self, stored: Any, place: Place) -> float:
        if self.infinite and isinstance(stored, str) and stored == "inf":
            return math.inf
        return self._check(stored, place)


class Alpha(Kind):
    """An allowed miscoverage: a float, or an exact fraction, which is stored as text, "1/10"."""

    def _write(self, value: Any, place: Place) -> Any:
        check_alpha(value, place.path)
        return f"{value.numerator}/{value.denominator}" if isinstance(value, Fraction) else float(value)

    def _read(self, stored: Any, place: Place) -> float | Fraction:
        if isinstance(stored, str):
            need(re.fullmatch(r"[1-9]\d{0,30}/[1-9]\d{0,30}", stored), f"{place.path} must be a fraction.")
            stored = Fraction(stored)
        check_alpha(stored, place.path)
        return stored  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Integer(Kind):
    """A whole number in a range."""

    low: int = 0
    high: int = 2**63 - 1

    def _check(self, value: Any, place: Place) -> int:
        return check_integer(value, place.path, low=self.low, high=self.high)


@dataclass(frozen=True)
class Size(Kind):
    """A whole number that is also the size of arrays elsewhere."""

    name: str

    def _check(self, value: Any, place: Place) -> int:
        number = check_integer(value, place.path, low=1, high=LARGEST_SIZE)
        place.fix_size(self.name, number)
        return number


class Choice(Kind):
    """One of a closed list of JSON scalars; True is not 1."""

    def __init__(self, *choices: Any) -> None:
        self.choices = choices

    def _check(self, value: Any, place: Place) -> Any:
        plain = value.item() if isinstance(value, np.generic) else value
        return check_choice(plain, place.path, self.choices)


FLAG = Choice(True, False)
SEED = Integer(0, 2**128 - 1)


@dataclass(frozen=True)
class Text(Kind):
    """A string that matches a pattern."""

    pattern: str = r"[\s\S]*"
    longest: int = LONGEST_TEXT

    def _check(self, value: Any, place: Place) -> str:
        need(isinstance(value, str), f"{place.path} must be text; got a {type(value).__name__}.")
        need(len(value) <= self.longest, f"{place.path} must have at most {self.longest} letters; got {len(value)}.")
        need(re.fullmatch(self.pattern, value), f"{place.path} must match {self.pattern}.")
        return str(value)


class Either(Kind):
    """One of a few scalars (None, "auto"), or a value of another kind."""

    def __init__(self, *choices: Any, otherwise: Kind) -> None:
        self.choices, self.otherwise = choices, otherwise

    def _is_choice(self, value: Any) -> bool:
        return any(value is choice or (type(value) is type(choice) and value == choice) for choice in self.choices)

    def _write(self, value: Any, place: Place) -> Any:
        return value if self._is_choice(value) else self.otherwise.write(value, place)

    def _read(self, stored: Any, place: Place) -> Any:
        return stored if self._is_choice(stored) else self.otherwise.read(stored, place)


def optional(kind: Kind) -> Either:
    """A value that may be None."""
    return Either(None, otherwise=kind)


class Later(Either):
    """A value that older bundles lack; what its absence means is `absent`, or `absent(made)` of the object made."""

    def __init__(self, kind: Kind, absent: Any) -> None:
        super().__init__(otherwise=kind)
        self.absent = absent

    def meaning(self, made: Any) -> Any:
        """What the value is in an object read without it."""
        return self.absent(made) if callable(self.absent) else self.absent


class ScalarOr(Kind):
    """A scalar of one kind, or an array or mapping of another."""

    def __init__(self, scalar: Kind, other: Kind) -> None:
        self.scalar, self.other = scalar, other

    def _write(self, value: Any, place: Place) -> Any:
        return (self.other if isinstance(value, (Mapping, np.ndarray)) else self.scalar).write(value, place)

    def _read(self, stored: Any, place: Place) -> Any:
        return (self.other if isinstance(stored, dict) else self.scalar).read(stored, place)


class ListOf(Kind):
    """Values of one kind, as a list."""

    make: Callable[[list[Any]], Any] = list

    def __init__(self, kind: Kind, *, size: str = "*") -> None:
        self.kind, self.size = kind, size

    def _write(self, value: Any, place: Place) -> list[Any]:
        need(isinstance(value, (list, tuple)), f"{place.path} must be a list; got a {type(value).__name__}.")
        self._check_size(len(value), place)
        return [self.kind.write(item, place.at(index)) for index, item in enumerate(value)]

    def _read(self, stored: Any, place: Place) -> Any:
        need(isinstance(stored, list), f"{place.path} must be a list; got a {type(stored).__name__}.")
        self._check_size(len(stored), place)
        return type(self).make([self.kind.read(item, place.at(index)) for index, item in enumerate(stored)])

    def _check_size(self, found: int, place: Place) -> None:
        need(found <= LONGEST_LIST, f"{place.path} must have at most {LONGEST_LIST} entries; got {found}.")
        place.fix_size(self.size, found)


class TupleOf(ListOf):
    """Values of one kind, as a tuple."""

    make = tuple


class MappingOf(Kind):
    """Names to values of one kind."""

    def __init__(self, kind: Kind, *, keys: str = r"[a-z_]{1,40}") -> None:
        self.kind, self.key = kind, Text(keys, longest=200)

    def _write(self, value: Any, place: Place) -> dict[str, Any]:
        need(isinstance(value, Mapping), f"{place.path} must map names to values; got a {type(value).__name__}.")
        return {self.key.write(name, place): self.kind.write(item, place.at(name)) for name, item in value.items()}

    def _read(self, stored: Any, place: Place) -> dict[str, Any]:
        need(isinstance(stored, dict), f"{place.path} must be an object; got a {type(stored).__name__}.")
        return {self.key.read(name, place): self.kind.read(item, place.at(name)) for name, item in stored.items()}


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


class Array(Kind):
    """An array whose axes have named sizes and whose entries keep some rules.

    The shape is written as in "c D": two axes, one of the size c and one of the size D, as in `Place.fix_size`;
    "K K | K" means two axes or one. The layout in memory is stored too: it decides the last bits of matrix products.
    """

    def __init__(self, shape: str, *rules: Rule, dtypes: Sequence[str] = ("float64",)) -> None:
        self.shapes = {len(axes): axes for axes in (option.split() for option in shape.split("|"))}
        self.rules, self.dtypes = rules, tuple(dtypes)

    def _write(self, value: Any, place: Place) -> dict[str, str]:
        array = np.asarray(value)
        self._check_array(array, place)
        columns_first = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
        place.tensors[place.path] = array.T if columns_first else array
        return {"tensor": "columns first" if columns_first else "rows first"}

    def _read(self, stored: Any, place: Place) -> NDArray[Any]:
        need(
            stored in ({"tensor": "rows first"}, {"tensor": "columns first"}),
            f"{place.path} must say that it is a tensor, rows or columns first.",
        )
        need(place.path in place.tensors, f"{place.path} is not among the tensors.")
        array = place.tensors.pop(place.path)
        if stored["tensor"] == "columns first":
            need(array.ndim > 1, f"{place.path} must have two axes to be laid out by columns.")
            array = array.T
        self._check_array(array, place)
        return array

    def _check_array(self, array: NDArray[Any], place: Place) -> None:
        need(array.dtype.name in self.dtypes, f"{place.path} must be {' or '.join(self.dtypes)}; got {array.dtype}.")
        axes = self.shapes.get(array.ndim)
        need(
            axes is not None,
            f"{place.path} must have {' or '.join(map(str, self.shapes))} axes; got shape {array.shape}.",
        )
        for size, found in zip(axes or [], array.shape, strict=True):
            place.fix_size(size, found)
        if array.dtype == bool:
            need((array.view(np.uint8) <= 1).all(), f"{place.path} must be 0 or 1.")
        for rule in self.rules:
            need(rule.holds(array), f"{place.path} must {rule.text}.")


class Counts(Array):
    """An array of int64."""

    def __init__(self, shape: str, *rules: Rule) -> None:
        super().__init__(shape, *rules, dtypes=("int64",))


class Labels(Kind):
    """Distinct labels (n,): text in the JSON file, integers and booleans as a tensor of their type."""

    def __init__(self, size: str, *, ordered: bool = True) -> None:
        self.size, self.ordered = size, ordered
        self._numbers = Array(size, dtypes=(*INTEGERS, "bool"))

    def _write(self, value: Any, place: Place) -> Any:
        array = np.asarray(value)
        self._check_array(array, place)
        return array.tolist() if array.dtype.kind == "U" else self._numbers.write(array, place)

    def _read(self, stored: Any, place: Place) -> NDArray[Any]:
        array = self._text(stored, place) if isinstance(stored, list) else self._numbers.read(stored, place)
        self._check_array(array, place)
        return array

    def _text(self, stored: list[Any], place: Place) -> NDArray[Any]:
        text = Text()
        for index, label in enumerate(stored):
            text.read(label, place.at(index))
        width = max(map(len, stored), default=1)
        need(4 * width * len(stored) <= TEXT_BYTES, f"{place.path} must fit in {TEXT_BYTES} bytes of text.")
        return np.array(stored, dtype=str)

    def _check_array(self, array: NDArray[Any], place: Place) -> None:
        need(array.ndim == 1 and array.size > 0, f"{place.path} must be a list of labels; got shape {array.shape}.")
        if array.dtype.kind == "U":
            place.fix_size(self.size, array.size)
        unique = np.unique(array)
        need(unique.size == array.size, f"{place.path} must be distinct.")
        need(not self.ordered or (unique == array).all(), f"{place.path} must be sorted.")
