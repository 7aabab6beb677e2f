"""Groups that `groups=` adds to the soft groups: of the row, and of the candidate label."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from atypicality.groups import ClassGroups
from atypicality.stored import kinds, need
from atypicality.validation import check_groups, check_vector, name_classes, numbered, warn

__all__ = [
    "Asked", "GroupsKind", "class_groups", "distinct_values", "group_names", "indicators", "places_among",
    "row_values",
]  # fmt: skip

Integers = NDArray[np.intp]

AXES = ("atypicality", "confidence")
RARITY = "class rarity"
ROW_GROUPS, CLASS_GROUPS = 6, 5
"""Sixths of an axis, fifths of the classes."""
MOST_VALUES = 100
"""An attribute with more values is a name or a number, not a group."""


@dataclass(frozen=True)
class Asked:
    """What `groups=` asks for: axes to cut into sixths, an attribute of the row, groups of the candidate label."""

    axes: tuple[str, ...] = ()
    attribute: str | None = None
    classes: Mapping[Any, Any] | str | None = None

    @classmethod
    def of(cls, groups: Any) -> Self:
        """From the parameter: None, a name, a mapping of classes to groups, or several of them.

        >>> Asked.of(("confidence", "class rarity"))
        Asked(axes=('confidence',), attribute=None, classes='class rarity')
        """
        given = () if groups is None else tuple(groups) if isinstance(groups, (tuple, list)) else (groups,)
        odd = [one for one in given if not isinstance(one, (str, Mapping))]
        if odd:
            raise TypeError(
                f"groups must be {_OPTIONS}, or a tuple of these; got a {type(odd[0]).__name__}. Leave it None to "
                "guarantee the soft groups alone."
            )
        axes = tuple(one for one in given if one in AXES)
        classes = [one for one in given if isinstance(one, Mapping) or one == RARITY]
        names = [one for one in given if isinstance(one, str) and one not in (*AXES, RARITY)]
        if len(set(axes)) < len(axes) or len(classes) > 1 or len(names) > 1:
            raise ValueError(
                "groups must name an axis at most once, and hold at most one attribute and one grouping of the "
                "classes. Cross two attributes in one column of pairs of values."
            )
        return cls(axes, names[0] if names else None, classes[0] if classes else None)

    def __str__(self) -> str:
        classes = "groups of true classes" if isinstance(self.classes, Mapping) else self.classes
        return ", ".join(filter(None, (*self.axes, self.attribute, classes)))


_OPTIONS = '"atypicality", "confidence", "class rarity", the name of an attribute, a mapping of classes to groups'


def class_groups(asked: Asked, n_classes: int, shares: Any, names: Any) -> tuple[Integers, tuple[str, ...]]:
    """Group of each class (k,), and the names of the groups: none where no grouping is asked for.

    `shares` (k,), or counts, of the classes in the training rows are for "class rarity"; a mapping may call the classes
    by their `names`.

    >>> class_groups(Asked.of({0: "animals", 1: "vehicles", 2: "animals"}), 3, None, None)
    (array([0, 1, 0]), ('animals', 'vehicles'))
    """
    if asked.classes is None:
        return np.zeros(n_classes, np.intp), ()
    if isinstance(asked.classes, Mapping):
        return _mapped(asked.classes, n_classes, names)
    if shares is None:
        raise ValueError(
            f'groups="{RARITY}" needs class_share=, the share of each class in the training rows; got none. A head '
            "takes it from its density. Pass it to fit, or a mapping of classes to groups."
        )
    share = check_vector(shares, "class_share")
    if share.size != n_classes:
        raise ValueError(f"class_share must have one entry per class, {n_classes}; got {share.size}.")
    if (share < 0).any() or not share.any():
        raise ValueError("class_share must be shares or counts, none negative and some positive.")
    if (share == share[0]).all():
        warn("class_share is the same for all classes, so their fifths follow the order of the columns.")
    count = min(CLASS_GROUPS, n_classes)
    return ClassGroups(count).fit(-share).class_groups_, tuple(f"{RARITY} {i + 1} of {count}" for i in range(count))


def _mapped(mapping: Mapping[Any, Any], n_classes: int, names: Any) -> tuple[Integers, tuple[str, ...]]:
    places = {} if names is None else {str(name): place for place, name in enumerate(names)}
    found: dict[int, str] = {}
    for key, group in mapping.items():
        place = places.get(key, -1) if isinstance(key, str) else int(key)
        if not 0 <= place < n_classes:
            raise ValueError(
                f"groups maps {key!r}, which is no class: give columns from 0 to {n_classes - 1}, or class names "
                "where the outputs have them."
            )
        found[place] = str(group)
    missing = sorted(set(range(n_classes)) - found.keys())
    if missing:
        with numbered(None, names):
            raise ValueError(f"groups must map every class to a group; missing are {name_classes(missing)}.")
    known = tuple(dict.fromkeys(found[place] for place in range(n_classes)))
    return np.array([known.index(found[place]) for place in range(n_classes)], np.intp), known


def row_values(asked: Asked, attributes: Any, n_rows: int) -> NDArray[Any] | None:
    """The asked attribute's value in every row (n,); None where none is asked for."""
    if asked.attribute is None:
        return None
    given = {} if attributes is None else attributes
    if asked.attribute not in given:
        known = ", ".join(map(repr, given)) or "none"
        raise ValueError(
            f"groups={asked.attribute!r} is none of {_OPTIONS}: attributes= has {known}. Give "
            f"attributes={{{asked.attribute!r}: one value per row}} to fit and to predict_set."
        )
    return check_groups(given[asked.attribute], f"attributes[{asked.attribute!r}]", n_rows=n_rows)


def distinct_values(values: NDArray[Any], name: str | None) -> NDArray[Any]:
    """The values of an attribute, sorted."""
    found = np.unique(values)
    if found.size > MOST_VALUES:
        raise ValueError(
            f"attributes[{name!r}] has {found.size} values, too many for groups; at most {MOST_VALUES}. Join some."
        )
    return found


def places_among(known: NDArray[Any], values: NDArray[Any]) -> Integers:
    """Place of each value (n,) among the sorted `known` ones; one beyond the last, with a warning, where it is new.

    >>> places_among(np.array(["a", "c"]), np.array(["c", "a"]))
    array([1, 0])
    """
    place = np.minimum(np.searchsorted(known, values), known.size - 1)
    unseen = known[place] != values
    if unseen.any():
        warn(
            f"{int(unseen.sum())} of {values.size} rows have a value of the attribute that no calibration row had, as "
            f"{values[unseen].tolist()[0]!r} in row {int(unseen.argmax())}: their sets hold all classes."
        )
    return np.where(unseen, known.size, place)


def indicators(shape: tuple[int, int, int, int], asked: Asked) -> NDArray[np.float64]:
    """1 where a cell belongs to a group, of shape (*shape, n_groups).

    The axes of `shape` are values of the attribute, groups of labels, cells of atypicality and of confidence.

    >>> indicators((1, 2, 1, 1), Asked(classes={0: "a", 1: "b"}))[0, :, 0, 0]
    array([[1., 0.],
           [0., 1.]])
    """
    place = np.indices(shape)
    parts = [np.eye(size)[place[axis] * size // shape[axis]] for axis, size in _axes(shape, asked)]
    return np.concatenate(parts, axis=-1) if parts else np.empty((*shape, 0))


def _axes(shape: tuple[int, ...], asked: Asked) -> Iterator[tuple[int, int]]:
    """Axis and number of groups of every grouping."""
    for name in asked.axes:
        axis = 2 + AXES.index(name)
        yield axis, min(ROW_GROUPS, shape[axis])
    if asked.attribute is not None:
        yield 0, shape[0]
    if asked.classes is not None:
        yield 1, shape[1]


def group_names(
    shape: tuple[int, ...], asked: Asked, values: NDArray[Any] | None, labels: tuple[str, ...]
) -> list[str]:
    """Names of the columns of `indicators`.

    >>> group_names((2, 1, 3, 1), Asked(("atypicality",), "sex"), np.array(["f", "m"]), ())
    ['atypicality 1 of 3', 'atypicality 2 of 3', 'atypicality 3 of 3', 'sex = f', 'sex = m']
    """
    found: list[str] = []
    for axis, size in _axes(shape, asked):
        if axis == 0:
            found += [f"{asked.attribute} = {value}" for value in (() if values is None else values.tolist())]
        else:
            found += list(labels) if axis == 1 else [f"{AXES[axis - 2]} {i + 1} of {size}" for i in range(size)]
    return found


class GroupsKind(kinds.Kind):
    """The parameter `groups=` in a file: a mapping becomes a list of pairs, whose keys keep their type."""

    def _write(self, value: Any, place: kinds.Place) -> Any:
        Asked.of(value)
        if isinstance(value, (tuple, list)):
            return [self._write(one, place) for one in value]
        if not isinstance(value, Mapping):
            return value
        return {"classes": [[_scalar(key, place), _scalar(group, place)] for key, group in value.items()]}

    def _read(self, stored: Any, place: kinds.Place) -> Any:
        found = tuple(map(self._one, stored, [place] * len(stored))) if isinstance(stored, list) else None
        found = self._one(stored, place) if found is None else found
        Asked.of(found)
        return found

    def _one(self, stored: Any, place: kinds.Place) -> Any:
        if stored is None or isinstance(stored, str):
            return stored
        pairs = stored.get("classes") if isinstance(stored, dict) and len(stored) == 1 else None
        need(isinstance(pairs, list), f"{place.path} must be a name or pairs of classes and groups.")
        listed: list[Any] = pairs  # type: ignore[assignment]
        need(all(isinstance(pair, list) and len(pair) == 2 for pair in listed), f"{place.path} must hold pairs.")
        return {_scalar(key, place): _scalar(group, place) for key, group in listed}


def _scalar(value: Any, place: kinds.Place) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    need(type(plain) in (int, str), f"{place.path} must map integers or text to integers or text.")
    return plain
