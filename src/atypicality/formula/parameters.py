"""Parameters of a formula: on their way to another library or device, by name, and whether a part's can be trusted."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["moved", "named_arrays", "speaks_for"]

P = TypeVar("P")


def moved(parameters: P, convert: Callable[[Any], Any]) -> P:
    """The same parameters with every array in them converted; numbers, names and None stay.

    >>> from atypicality.formula.rows import Scale
    >>> moved(Scale.of(np.array([1.0, 2.0]), np.array([0.5, 1.0])), np.float32).values.dtype
    dtype('float32')
    """
    value: Any = parameters
    if isinstance(value, np.ndarray):
        return convert(value)  # type: ignore[no-any-return]
    if isinstance(value, tuple):
        return type(value)(moved(part, convert) for part in value)  # type: ignore[return-value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: moved(getattr(value, field.name), convert) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **parts)  # type: ignore[return-value]
    return parameters


def named_arrays(parameters: Any, name: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Every array in the order of `moved`, with its place as a name.

    >>> from atypicality.formula.rows import Scale
    >>> [name for name, _ in named_arrays(Scale.of(np.array([1.0, 2.0]), np.array([0.5, 1.0])))]
    ['values', 'slopes', 'starts', 'levels']
    """
    if isinstance(parameters, np.ndarray):
        yield name, parameters
    elif isinstance(parameters, tuple):
        for place, part in enumerate(parameters):
            yield from named_arrays(part, f"{name}_{place}")
    elif dataclasses.is_dataclass(parameters):
        for field in dataclasses.fields(parameters):
            yield from named_arrays(getattr(parameters, field.name), f"{name}_{field.name}".lstrip("_"))


def speaks_for(part: Any, *methods: str) -> bool:
    """Whether a part has a formula that its methods follow: none of them was overridden without it.

    >>> class Whole:
    ...     def formula(self): ...
    ...     def predict_set(self): ...
    >>> class Changed(Whole):
    ...     def predict_set(self): ...
    >>> speaks_for(Whole(), "predict_set"), speaks_for(Changed(), "predict_set"), speaks_for("no part", "predict_set")
    (True, False, False)
    """
    places = [_defined(type(part), name) for name in ("formula", *methods)]
    return all(places[0] <= place for place in places) and hasattr(part, "formula")


def _defined(cls: type, name: str) -> int:
    """Place in the order of inheritance of the class that defines a name; the end where none does."""
    found = [place for place, owner in enumerate(cls.__mro__) if name in vars(owner)]
    return found[0] if found else len(cls.__mro__)
