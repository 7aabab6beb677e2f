"""Objects in a file: a class states which of its attributes are stored, of which kind, and what must hold of them."""

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from atypicality.stored.kinds import FLAG, Kind, Later, Place, need
from atypicality.terminal import listed

__all__ = ["Part", "Record", "declared"]

READERS = {"AnswerHead": "atypicality.llm.AnswerHead.load", "MonitorState": "atypicality.Monitor.load"}
"""Who reads a bundle whose outermost part is of that class."""


class Record:
    """How objects of a class are stored: the class attribute `_stored` of a class that can be in a bundle.

    Its fields are the attributes that the class and its bases annotate with a kind, in that order. An estimator is made
    from its parameters and then given its fields; another object is made from its fields, as a dataclass is.

    `name` is what files call the class, where that is not its name; `check` raises where fields contradict each other;
    `restore` sets what follows from the fields of an estimator; `ready` does work that was put off, before writing;
    ``upgrade(fitted, place)`` turns the fields of an older file, as they were stored, into those of today; `former` are
    parameters of older files that mean nothing any more. `parameters` are the kinds of an estimator's constructor
    parameters; one whose default is True or False is a flag without being named.

    >>> from dataclasses import dataclass
    >>> from typing import Annotated
    >>> from atypicality.stored.kinds import Number
    >>> @dataclass
    ... class Point:
    ...     x: Annotated[float, Number(0, 1)]
    ...     _stored = Record()
    >>> Part(Point).write(Point(0.5), Place.start({}))
    {'class': 'Point', 'fitted': {'x': 0.5}}
    """

    cls: type
    name: str
    fields: dict[str, Kind]
    parameters: dict[str, Kind] | None

    def __init__(
        self,
        name: str = "",
        /,
        *,
        check: Callable[[Any], None] | None = None,
        restore: Callable[[Any], None] | None = None,
        ready: Callable[[Any], Any] | None = None,
        upgrade: Callable[[dict[str, Any], Place], None] | None = None,
        former: tuple[str, ...] = (),
        **parameters: Kind,
    ) -> None:
        self.check_fields, self.restore, self.ready, self.upgrade = check, restore, ready, upgrade
        self._name, self._given, self.former = name, parameters, former

    def __set_name__(self, owner: type, name: str) -> None:
        self.cls, self.name = owner, self._name or owner.__name__
        self.fields = _annotated(owner)
        self.parameters = self._parameters() if hasattr(owner, "get_params") else None

    def _parameters(self) -> dict[str, Kind]:
        defaults = {name: p.default for name, p in inspect.signature(self.cls).parameters.items()}
        kinds = {name: FLAG for name, default in defaults.items() if isinstance(default, bool)} | self._given
        odd = sorted(kinds.keys() ^ defaults.keys())
        need(not odd, f"{self.cls.__name__} must state the kind of each of its parameters; it differs in {odd}.")
        return kinds

    def sections(self, fitted: bool) -> dict[str, dict[str, Kind]]:
        """What is stored, by the key it is stored under."""
        found = {} if self.parameters is None else {"parameters": self.parameters}
        return found | {"fitted": self.fields} if fitted else found

    def write_as(self, value: Any, place: Place, *, fitted: bool) -> dict[str, Any]:
        """A JSON object with the name of the class."""
        if fitted and self.ready is not None:
            self.ready(value)
        inside = self._inside(place)
        stored: dict[str, Any] = {"class": self.name}
        for section, kinds in self.sections(fitted).items():
            stored[section] = {name: kind.write(getattr(value, name), inside.at(name)) for name, kind in kinds.items()}
        self._check(value, place, fitted)
        return stored

    def read_as(self, stored: dict[str, Any], place: Place, *, fitted: bool) -> Any:
        """The object, from JSON that names its class and may otherwise be anything."""
        sections = self.sections(fitted)
        _check_keys(stored, dict.fromkeys(("class", *sections)), place)
        inside, found = self._inside(place), {}
        if fitted and self.upgrade is not None and isinstance(stored["fitted"], dict):
            self.upgrade(stored["fitted"], inside)
        for section, kinds in sections.items():
            _check_keys(stored[section], kinds, place, self.former if section == "parameters" else ())
            known = {name: kind for name, kind in kinds.items() if name in stored[section]}
            found[section] = {name: kind.read(stored[section][name], inside.at(name)) for name, kind in known.items()}
        made = self._make(found)
        self._check(made, place, fitted)
        return made

    def _make(self, found: Mapping[str, Mapping[str, Any]]) -> Any:
        if self.parameters is None:
            return self.cls(**found["fitted"])
        made = self.cls(**found["parameters"])
        for name, value in found.get("fitted", {}).items():
            setattr(made, name, value)
        for section, kinds in self.sections("fitted" in found).items():
            for name, kind in kinds.items():
                if isinstance(kind, Later) and name not in found[section]:
                    setattr(made, name, kind.meaning(made))
        if "fitted" in found and self.restore is not None:
            self.restore(made)
        return made

    def _inside(self, place: Place) -> Place:
        return place if self.parameters is None else place.with_own_sizes()

    def _check(self, value: Any, place: Place, fitted: bool) -> None:
        if fitted and self.check_fields is not None:
            try:
                self.check_fields(value)
            except ValueError as error:
                raise ValueError(f"{place.path}: {error}") from error


class Part(Kind):
    """An object of one of a few classes, never of a subclass; with `fitted=False` an estimator's parameters alone."""

    def __init__(self, *classes: Any, fitted: bool = True) -> None:
        self.records: dict[str, Record] = {cls._stored.name: cls._stored for cls in classes}
        self.fitted = fitted

    def _write(self, value: Any, place: Place) -> dict[str, Any]:
        record = next((one for one in self.records.values() if type(value) is one.cls), None)
        if record is None:
            raise TypeError(
                f"{place.path} is a {type(value).__name__}, which a bundle cannot hold; it can hold "
                f"{', '.join(self.records)}."
            )
        return record.write_as(value, place, fitted=self.fitted)

    def _read(self, stored: Any, place: Place) -> Any:
        name = stored.get("class") if isinstance(stored, dict) else None
        if not isinstance(name, str) or name not in self.records:
            other = f" Read it with {READERS[name]}." if isinstance(name, str) and name in READERS else ""
            raise ValueError(
                f"{place.path} must be of class {' or '.join(self.records)}; got {str(name)[:80]!r}.{other}"
            )
        return self.records[name].read_as(stored, place, fitted=self.fitted)


def declared(room: ModuleType) -> list[type]:
    """The classes of `room.__all__` that have a record of their own: all that can stand in one place of a head.

    >>> from atypicality import conformal
    >>> [cls.__name__ for cls in declared(conformal)]
    ['AtypicalityAwareConformal', 'ConditionalConformal', 'SplitConformal']
    """
    exported = [getattr(room, name) for name in room.__all__]
    return [thing for thing in exported if isinstance(vars(thing).get("_stored"), Record)]


def _annotated(owner: type) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for cls in reversed(owner.__mro__):
        for name, annotation in inspect.get_annotations(cls).items():
            kind = next((part for part in getattr(annotation, "__metadata__", ()) if isinstance(part, Kind)), None)
            if kind is not None:
                found[name] = kind
    return found


def _check_keys(stored: Any, kinds: Mapping[str, Kind | None], place: Place, former: tuple[str, ...] = ()) -> None:
    need(isinstance(stored, dict), f"{place.path} must be an object; got a {type(stored).__name__}.")
    strange = (kinds.keys() ^ stored.keys()) - set(former)
    odd = sorted(key for key in strange if not isinstance(kinds.get(key), Later))
    need(not odd, f"{place.path} must have exactly its own keys; missing or unknown: {listed(odd)[:200]}.")
