"""The kinds of values that a bundle holds: each writes a value as JSON or as a tensor, and reads it back, checked.

Every kind checks the same rules in both directions, so that a head that could not be loaded is refused when it is
saved. A broken rule is a `ValueError` or `TypeError` that names the place; `load` makes a `BundleError` of it.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from atypicality.validation import check_alpha, check_choice, check_integer, check_number

__all__ = [
    "Alpha",
    "Choice",
    "Either",
    "Integer",
    "Kind",
    "ListOf",
    "MappingOf",
    "Number",
    "Place",
    "ScalarOr",
    "Size",
    "Text",
    "TupleOf",
    "need",
    "optional",
]

LONGEST_TEXT = 4096
LONGEST_LIST = 1_000_000


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
        """Learn a size, or check it against what is known."""
        known = (self.shared if name.isupper() else self.own).setdefault(name, found)
        need(known == found, f"{self.path} has size {found} where other parts of the head have {known}.")


class Kind(Protocol):
    """A kind of value."""

    def write(self, value: Any, place: Place) -> Any:
        """The value as JSON; arrays go into the tensors of the place."""
        ...

    def read(self, stored: Any, place: Place) -> Any:
        """The value from JSON that may be anything."""
        ...


@dataclass(frozen=True)
class Number:
    """A real number in a range; with `infinite` also plus infinity, which JSON lacks and which is stored as text."""

    low: float = -math.inf
    high: float = math.inf
    infinite: bool = False

    def write(self, value: Any, place: Place) -> Any:
        """A float."""
        if self.infinite and not isinstance(value, str) and value == math.inf:
            return "inf"
        return check_number(value, place.path, low=self.low, high=self.high)

    def read(self, stored: Any, place: Place) -> float:
        """A float."""
        if self.infinite and isinstance(stored, str) and stored == "inf":
            return math.inf
        return check_number(stored, place.path, low=self.low, high=self.high)


@dataclass(frozen=True)
class Alpha:
    """An allowed miscoverage: a float, or an exact fraction, which is stored as text, "1/10"."""

    def write(self, value: Any, place: Place) -> Any:
        """A float or text."""
        check_alpha(value, place.path)
        return f"{value.numerator}/{value.denominator}" if isinstance(value, Fraction) else float(value)

    def read(self, stored: Any, place: Place) -> float | Fraction:
        """A float or a fraction."""
        if isinstance(stored, str):
            need(re.fullmatch(r"[1-9]\d{0,30}/[1-9]\d{0,30}", stored), f"{place.path} must be a fraction.")
            stored = Fraction(stored)
        check_alpha(stored, place.path)
        return stored  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Integer:
    """A whole number in a range."""

    low: int = 0
    high: int = 2**63 - 1

    def write(self, value: Any, place: Place) -> int:
        """An int."""
        return check_integer(value, place.path, low=self.low, high=self.high)

    read = write


@dataclass(frozen=True)
class Size:
    """A whole number that is also the size of arrays elsewhere."""

    name: str
    low: int = 1
    high: int = 10_000_000

    def write(self, value: Any, place: Place) -> int:
        """An int."""
        number = check_integer(value, place.path, low=self.low, high=self.high)
        place.fix_size(self.name, number)
        return number

    read = write


class Choice:
    """One of a closed list of JSON scalars; True is not 1."""

    def __init__(self, *choices: Any) -> None:
        self.choices = choices

    def write(self, value: Any, place: Place) -> Any:
        """The value itself."""
        plain = value.item() if isinstance(value, np.generic) else value
        return check_choice(plain, place.path, self.choices)

    read = write


@dataclass(frozen=True)
class Text:
    """A string that matches a pattern."""

    pattern: str = r"[\s\S]*"
    longest: int = LONGEST_TEXT

    def write(self, value: Any, place: Place) -> str:
        """A plain string."""
        need(isinstance(value, str), f"{place.path} must be text; got a {type(value).__name__}.")
        need(len(value) <= self.longest, f"{place.path} must have at most {self.longest} letters; got {len(value)}.")
        need(re.fullmatch(self.pattern, value), f"{place.path} must match {self.pattern}.")
        return str(value)

    read = write


class Either:
    """One of a few scalars (None, "auto"), or a value of another kind."""

    def __init__(self, *choices: Any, otherwise: Kind) -> None:
        self.choices, self.otherwise = choices, otherwise

    def _is_choice(self, value: Any) -> bool:
        return any(value is choice or (type(value) is type(choice) and value == choice) for choice in self.choices)

    def write(self, value: Any, place: Place) -> Any:
        """The scalar, or what the other kind writes."""
        return value if self._is_choice(value) else self.otherwise.write(value, place)

    def read(self, stored: Any, place: Place) -> Any:
        """The scalar, or what the other kind reads."""
        return stored if self._is_choice(stored) else self.otherwise.read(stored, place)


def optional(kind: Kind) -> Either:
    """A value that may be None."""
    return Either(None, otherwise=kind)


class ScalarOr:
    """A scalar of one kind, or an array or mapping of another."""

    def __init__(self, scalar: Kind, other: Kind) -> None:
        self.scalar, self.other = scalar, other

    def write(self, value: Any, place: Place) -> Any:
        """What the kind of the value writes."""
        return (self.other if isinstance(value, (Mapping, np.ndarray)) else self.scalar).write(value, place)

    def read(self, stored: Any, place: Place) -> Any:
        """What the kind of the value reads."""
        return (self.other if isinstance(stored, dict) else self.scalar).read(stored, place)


class ListOf:
    """Values of one kind, as a list."""

    make: Callable[[list[Any]], Any] = list

    def __init__(self, kind: Kind, *, size: str | None = None) -> None:
        self.kind, self.size = kind, size

    def write(self, value: Any, place: Place) -> list[Any]:
        """A JSON list."""
        need(isinstance(value, (list, tuple)), f"{place.path} must be a list; got a {type(value).__name__}.")
        self._check_size(len(value), place)
        return [self.kind.write(item, place.at(index)) for index, item in enumerate(value)]

    def read(self, stored: Any, place: Place) -> Any:
        """A list or tuple."""
        need(isinstance(stored, list), f"{place.path} must be a list; got a {type(stored).__name__}.")
        self._check_size(len(stored), place)
        return type(self).make([self.kind.read(item, place.at(index)) for index, item in enumerate(stored)])

    def _check_size(self, found: int, place: Place) -> None:
        need(found <= LONGEST_LIST, f"{place.path} must have at most {LONGEST_LIST} entries; got {found}.")
        if self.size is not None:
            place.fix_size(self.size, found)


class TupleOf(ListOf):
    """Values of one kind, as a tuple."""

    make = tuple


class MappingOf:
    """Names to values of one kind."""

    def __init__(self, kind: Kind, *, keys: str = r"[a-z_]{1,40}") -> None:
        self.kind, self.key = kind, Text(keys, longest=200)

    def write(self, value: Any, place: Place) -> dict[str, Any]:
        """A JSON object."""
        need(isinstance(value, Mapping), f"{place.path} must map names to values; got a {type(value).__name__}.")
        return {self.key.write(name, place): self.kind.write(item, place.at(name)) for name, item in value.items()}

    def read(self, stored: Any, place: Place) -> dict[str, Any]:
        """A dict."""
        need(isinstance(stored, dict), f"{place.path} must be an object; got a {type(stored).__name__}.")
        return {self.key.read(name, place): self.kind.read(item, place.at(name)) for name, item in stored.items()}
