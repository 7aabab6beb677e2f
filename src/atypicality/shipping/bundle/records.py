"""Objects in a bundle: which attributes of a class are stored, of which kind, and how the object is made again."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from atypicality.shipping.bundle.kinds import Kind, Place, need
from atypicality.terminal import listed

__all__ = ["Part", "Record", "ScoringOnly"]


@dataclass(frozen=True)
class Record:
    """One class of the closed list.

    Parameters
    ----------
    cls : type
    fields : mapping of str to Kind
        Attributes that are stored.
    parameters : mapping of str to Kind, optional
        Constructor parameters of an estimator, all that `get_params` names. Without them the object is made from its
        fields, as a dataclass is.
    derived : mapping of str to callable
        Attributes that follow from the others: functions of the object made so far.
    check : callable, optional
        Raises `ValueError` where fields contradict each other.
    ready : callable, optional
        Called before writing: work that was put off until it is needed.
    later : mapping of str to callable
        Parameters and fields that older bundles lack, with what their absence means: functions of the object made
        without them.
    stored_as : str, optional
        What the file calls the class where that is not its name.
    """

    cls: type
    fields: Mapping[str, Kind] = field(default_factory=dict)
    parameters: Mapping[str, Kind] | None = None
    derived: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    check: Callable[[Any], None] | None = None
    ready: Callable[[Any], Any] | None = None
    later: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    stored_as: str = ""

    @property
    def name(self) -> str:
        """Name of the class, as it stands in the file."""
        return self.stored_as or self.cls.__name__

    def sections(self, fitted: bool) -> dict[str, Mapping[str, Kind]]:
        """What is stored, by the key it is stored under."""
        found = {} if self.parameters is None else {"parameters": self.parameters}
        return found | {"fitted": self.fields} if fitted else found

    def values(self, value: Any) -> dict[str, Any]:
        """Everything of an object that is stored, by name: what `get_params` gives, and the fields."""
        fields = {name: getattr(value, name) for name in self.fields if hasattr(value, name)}
        if self.parameters is None:
            return fields
        parameters: dict[str, Any] = value.get_params(deep=False)
        unknown = sorted(set(parameters) ^ set(self.parameters))
        need(not unknown, f"{self.name} has parameters that the closed list does not: {', '.join(unknown)}.")
        return fields | parameters

    def make(self, sections: Mapping[str, Mapping[str, Any]]) -> Any:
        """The object from what was read."""
        fitted = sections.get("fitted", {})
        if self.parameters is None:
            return self.cls(**fitted)
        made = self.cls(**sections["parameters"])
        for name, value in fitted.items():
            setattr(made, name, value)
        read = set().union(*sections.values())
        for name, meaning in self.later.items():
            if name not in read and (name in self.parameters or "fitted" in sections):
                setattr(made, name, meaning(made))
        for name, rule in self.derived.items() if "fitted" in sections else ():
            setattr(made, name, rule(made))
        return made


class Part:
    """An object of one of a few classes; with `fitted=False` an estimator's parameters alone."""

    def __init__(self, *records: Record, fitted: bool = True) -> None:
        self.records, self.fitted = {record.name: record for record in records}, fitted

    def write(self, value: Any, place: Place) -> dict[str, Any]:
        """A JSON object with the name of the class."""
        record = next((record for record in self.records.values() if type(value) is record.cls), None)
        if record is None:
            raise TypeError(
                f"{place.path} is a {type(value).__name__}, which a bundle cannot hold; it can hold "
                f"{', '.join(self.records)}."
            )
        if self.fitted and record.ready is not None:
            record.ready(value)
        inside = place.with_own_sizes() if record.parameters is not None else place
        stored: dict[str, Any] = {"class": record.name}
        values = record.values(value)
        for section, kinds in record.sections(self.fitted).items():
            stored[section] = {name: kind.write(values[name], inside.at(name)) for name, kind in kinds.items()}
        self._check(record, value, place)
        return stored

    def read(self, stored: Any, place: Place) -> Any:
        """An object of the class that is named, which must be one of the few."""
        name = stored.get("class") if isinstance(stored, dict) else None
        if not isinstance(name, str) or name not in self.records:
            raise ValueError(f"{place.path} must be of class {' or '.join(self.records)}; got {str(name)[:80]!r}.")
        record = self.records[name]
        sections = record.sections(self.fitted)
        _check_keys(stored, {"class", *sections}, place)
        inside = place.with_own_sizes() if record.parameters is not None else place
        found = {}
        for section, kinds in sections.items():
            _check_keys(stored[section], set(kinds), place, may_lack=set(record.later))
            known = {key: kind for key, kind in kinds.items() if key in stored[section]}
            found[section] = {key: kind.read(stored[section][key], inside.at(key)) for key, kind in known.items()}
        made = record.make(found)
        self._check(record, made, place)
        return made

    def _check(self, record: Record, value: Any, place: Place) -> None:
        if self.fitted and record.check is not None:
            try:
                record.check(value)
            except ValueError as error:
                raise ValueError(f"{place.path}: {error}") from error


def _check_keys(stored: Any, wanted: set[str], place: Place, may_lack: Set[str] = frozenset()) -> None:
    need(isinstance(stored, dict), f"{place.path} must be an object; got a {type(stored).__name__}.")
    odd = sorted((wanted ^ set(stored)) - (may_lack & wanted))
    need(not odd, f"{place.path} must have exactly its own keys; missing or unknown: {listed(odd)[:200]}.")


class ScoringOnly:
    """What stands in a loaded density for the sums over its training rows: it says that they were not stored."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and printing ask for these
            raise AttributeError(name)
        raise ValueError(
            "this density was loaded from a bundle, which keeps what scoring needs and not the sums over the training "
            "rows, so partial_fit and merge cannot go on from it. Fit a new density on the training rows."
        )
