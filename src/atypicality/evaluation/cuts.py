"""How an evaluation cuts its rows: axes of groups, with edges that a method has stored or that the rows give."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.evaluation.context import Context
from atypicality.evaluation.schema import Row
from atypicality.groups import QUADRANTS, ClassGroups, Quadrants, QuantileGroups
from atypicality.validation import caught_warnings

__all__ = ["NO_ATYPICALITY", "NO_CLASSES", "Axis", "Cuts", "Edges", "first_known", "stored_edges"]

Codes = NDArray[np.intp]

MOST_WHOLE = 20  # values of an attribute of whole numbers that are subgroups as they are
MOST_SUBGROUPS = 200  # an attribute with more values is a name or a number, not a subgroup
NO_ATYPICALITY = "no atypicality is known, so nothing is shown by it; give train=, or outputs with atypicality."
NO_CLASSES = "the atypicality of the classes is not known, so nothing is shown by it."


@dataclass(frozen=True)
class Axis:
    """One way to cut the rows: the table it fills, the key columns of every group, and the group of every row (n,)."""

    table: str
    keys: list[Row]
    codes: Codes


@dataclass(frozen=True)
class Edges:
    """Edges that a fitted method learnt on its own calibration rows; None where it has none."""

    atypicality: QuantileGroups | None = None
    grid_atypicality: QuantileGroups | None = None
    confidence: QuantileGroups | None = None
    quadrants: Quadrants | None = None


def stored_edges(method: Any, n_groups: int, n_grid: int) -> Edges:
    """The edges of a head, or of the conformal predictor in a pair.

    Quantiles of atypicality come from `atypicality_groups_`, or at any number of groups from `quantiles_`, the scale
    of a head's held-out rows; the grid from `grid_`, and quadrants from `quadrants_`.
    """
    owners = [method[1]] if isinstance(method, tuple) else [method, getattr(method, "prediction_sets_", None)]
    grid = first_known(getattr(owner, "grid_", None) for owner in owners)
    scale = getattr(method, "quantiles_", None)
    return Edges(
        first_known([getattr(method, "atypicality_groups_", None), _edges_on(scale, n_groups)]),
        first_known([getattr(grid, "atypicality_groups_", None), _edges_on(scale, n_grid)]),
        getattr(grid, "confidence_groups_", None),
        getattr(method, "quadrants_", None),
    )


def _edges_on(scale: Any, n_groups: int) -> QuantileGroups | None:
    """Groups between the values of a scale at equal steps of its levels."""
    if not hasattr(scale, "levels"):  # none, or the groups of a recalibrator
        return None
    steps = np.arange(1, n_groups) / n_groups
    return QuantileGroups.from_edges(np.unique(np.interp(steps, scale.levels, scale.values)))


@dataclass
class Cuts:
    """The groups of one evaluation. What does not depend on the method is cut once, for all methods alike.

    `notes` gathers what a reader should know: groups that merged, axes that do not exist.
    """

    context: Context
    n_groups: int
    grid: tuple[int, int]
    edges: Edges = field(default_factory=Edges)
    notes: list[str] = field(default_factory=list)
    ranges: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.atypicality = self._rarity("atypicality", self.n_groups, self.edges.atypicality)
        self.grid_atypicality = self._rarity("grid_atypicality", self.grid[0], self.edges.grid_atypicality)
        self.class_group_of: Codes | None = None
        self.classes = self._class_groups()
        self.subgroups = list(self._subgroups())

    def axes(self, method: str, confidence: NDArray[np.float64], edges: Edges, trusted: float) -> list[Axis]:
        """Every way to cut the rows for one method, from its confidence (n,) and its own stored edges.

        Quadrants that are not stored have `trusted` as the confidence that counts as confident.
        """
        sure = self._groups("confidence", confidence, self.grid[1], edges.confidence, method)
        axes = [Axis("overall", [{}], np.zeros(confidence.size, np.intp)), sure, *self.subgroups]
        rarity = self.context.atypicality
        if rarity is not None and self.atypicality is not None and self.grid_atypicality is not None:
            axes += [self.atypicality, _crossed("grid", self.grid_atypicality, sure)]
            quadrants = edges.quadrants or Quadrants(confidence=trusted).fit(confidence, rarity)
            axes.append(_quadrant_axis(quadrants, confidence, rarity))
        if self.classes is not None:
            axes += [self.classes, _crossed("class_grid", self.classes, sure)]
        return axes

    def _rarity(self, axis: str, n_groups: int, stored: QuantileGroups | None) -> Axis | None:
        if self.context.atypicality is None:
            self._note(NO_ATYPICALITY)
            return None
        return self._groups(axis, self.context.atypicality, n_groups, stored)

    def _groups(
        self, axis: str, values: NDArray[np.float64], n_groups: int, stored: QuantileGroups | None, method: str = ""
    ) -> Axis:
        groups = stored
        if groups is None:
            with caught_warnings() as caught:
                groups = QuantileGroups(n_groups).fit(values)
            for warning in caught:
                self._note(f"{axis}{f' of {method}' if method else ''}: {warning}")
        codes = groups.assign(values)
        self._add_ranges(axis, method, np.r_[-np.inf, groups.edges_, np.inf], codes)
        return Axis(f"{axis}_groups", _numbered(groups.n_groups_), codes)

    def _class_groups(self) -> Axis | None:
        rarity = self.context.class_atypicality
        if rarity is None or (rarity == rarity[0]).all():
            self._note(NO_CLASSES if rarity is None else NO_CLASSES.replace("not known", "the same for all"))
            return None
        n_groups = min(self.n_groups, rarity.size)
        groups = ClassGroups(n_groups).fit(rarity)
        self.class_group_of = groups.class_groups_
        codes = groups.assign(self.context.outputs.need("labels"))
        tops = [rarity[groups.class_groups_ <= group].max(initial=-np.inf) for group in range(n_groups)]
        self._add_ranges("class", "", np.r_[-np.inf, tops], codes)
        return Axis("class_groups", _numbered(n_groups), codes)

    def _subgroups(self) -> Iterator[Axis]:
        for attribute, values in self.context.outputs.attributes.items():
            names = self._cut_numbers(attribute, values) if _is_measured(values) else values.astype(str)
            found, codes = np.unique(names, return_inverse=True)
            if found.size > MOST_SUBGROUPS:
                self._note(f"attribute {attribute} has {found.size} values, too many for subgroups.")
                continue
            yield Axis("subgroups", [{"attribute": attribute, "subgroup": name} for name in found.tolist()], codes)

    def _cut_numbers(self, attribute: str, values: NDArray[Any]) -> NDArray[np.str_]:
        """Numbers as named quantile groups, those that are missing apart."""
        names = np.full(values.size, "missing", dtype="<U64")
        known = ~np.isnan(values)
        if known.any():
            axis = self._groups(f"attribute {attribute}", values[known].astype(np.float64), self.n_groups, None)
            bounds = [(row["low"], row["high"]) for row in self.ranges[-len(axis.keys) :]]
            names[known] = np.array([f"group {i} ({_between(*pair)})" for i, pair in enumerate(bounds, 1)])[axis.codes]
        return names

    def _add_ranges(self, axis: str, method: str, edges: NDArray[np.float64], codes: Codes) -> None:
        counts = np.bincount(codes, minlength=edges.size - 1)
        self.ranges += [
            {"axis": axis, "method": method or None, "group": group, "count": count, "low": low, "high": high}
            for group, (count, low, high) in enumerate(zip(counts, edges[:-1], edges[1:], strict=True))
        ]

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _quadrant_axis(quadrants: Quadrants, confidence: NDArray[np.float64], rarity: NDArray[np.float64]) -> Axis:
    names = quadrants.assign(confidence, rarity)
    codes = np.argmax(names[:, None] == np.array(QUADRANTS), axis=1)
    return Axis("quadrants", [{"quadrant": name} for name in QUADRANTS], codes)


def _crossed(table: str, rows: Axis, columns: Axis) -> Axis:
    keys = [row | {"confidence_group": column["group"]} for row in rows.keys for column in columns.keys]
    return Axis(table, keys, rows.codes * len(columns.keys) + columns.codes)


def _numbered(n_groups: int) -> list[Row]:
    return [{"group": group} for group in range(n_groups)]


def _is_measured(values: NDArray[Any]) -> bool:
    """Whether an attribute is a quantity: floats, or whole numbers of many values that are no row's own."""
    return values.dtype.kind == "f" or (values.dtype.kind in "iu" and MOST_WHOLE < np.unique(values).size < values.size)


def _between(low: float, high: float) -> str:
    """The values of a group in words: above `low` and up to `high`.

    >>> [_between(-np.inf, 0.5), _between(0.5, 12345.0), _between(12345.0, np.inf)]
    ['up to 0.5', '0.5 to 1.234e+04', 'above 1.234e+04']
    """
    if np.isinf(low):
        return "all" if np.isinf(high) else f"up to {high:.4g}"
    return f"above {low:.4g}" if np.isinf(high) else f"{low:.4g} to {high:.4g}"


def first_known(values: Iterable[Any]) -> Any:
    """The first of them that is not None."""
    return next((value for value in values if value is not None), None)
