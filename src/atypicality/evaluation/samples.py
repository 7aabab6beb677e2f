"""Samples one by one: which rows are kept, and what every method said of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.evaluation.context import Context
from atypicality.evaluation.cuts import Axis, Cuts
from atypicality.evaluation.schema import Row, records
from atypicality.evaluation.scored import Options, Scored
from atypicality.formula import ASK, CHOOSE, advice_texts
from atypicality.groups import QUADRANTS

__all__ = ["MOST_KEPT", "Told", "kept_rows", "sample_rows", "told_by"]

MOST_KEPT = 200_000  # rows kept at most, errors included: each is a row of Python values for every method

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Told:
    """What one method said of all rows, in columns (n,) as narrow as they can be."""

    method: str
    columns: Mapping[str, NDArray[Any] | None]

    def rows(self, kept: Rows) -> list[Row]:
        """Rows of the table `predictions`."""
        some = {name: None if column is None else column[kept] for name, column in self.columns.items()}
        quadrant, advice, members = some["quadrant"], some["advice"], some["members"]
        some["quadrant"] = None if quadrant is None else np.array(QUADRANTS)[quadrant]
        some["advice"] = None if advice is None else advice_texts(advice, some["set_size"])
        if members is not None:
            members[:, 1][(some["set_size"] == 1) & (advice != CHOOSE)] = -1  # a runner-up that nobody chooses
            some["members"] = np.array([" ".join(map(str, row[row >= 0])) for row in members], dtype=object)
        return [{"method": self.method} | row for row in _records(some, kept)]


def told_by(scored: Scored, axes: list[Axis]) -> Told:
    """What is kept of one method until it is known which rows are."""
    codes = {axis.table: axis.codes for axis in axes}
    columns: dict[str, NDArray[Any] | None] = {
        "prediction": scored.predicted.astype(np.int32),
        "confidence": scored.confidence,
        "confidence_group": codes["confidence_groups"].astype(np.int16),
        "quadrant": codes["quadrants"].astype(np.int8) if "quadrants" in codes else None,
        "set_size": None if scored.sizes is None else scored.sizes.astype(np.int32),
        "covered": scored.covered,
        "advice": None if scored.advice is None else scored.advice.astype(np.int8),
        "members": scored.members,
        "accepted": scored.accepted,
    }
    return Told(scored.name, columns)


def kept_rows(told: list[Told], labels: Rows, options: Options) -> tuple[Rows, NDArray[np.float64]]:
    """The rows shown one by one, in their order, and how many rows each stands for.

    All of them where they fit; else every row on which a method errs or asks for a person, and others at random. Of
    more than `MOST_KEPT` such rows, that many at random.
    """
    n, rng = labels.size, np.random.default_rng(options.seed)
    if n <= options.keep_samples:
        return np.arange(n), np.ones(n)
    matters = np.zeros(n, bool)
    for one in told:
        advice = one.columns["advice"]
        matters |= (one.columns["prediction"] != labels) | (False if advice is None else advice == ASK)
    weight = np.zeros(n)
    for rows, most in ((np.flatnonzero(matters), MOST_KEPT), (np.flatnonzero(~matters), options.keep_samples)):
        most = min(rows.size, most)
        weight[rng.choice(rows, most, replace=False)] = rows.size / max(most, 1)
    kept = np.flatnonzero(weight)
    return kept, weight[kept]


def sample_rows(context: Context, cuts: Cuts, kept: Rows, weight: NDArray[np.float64]) -> list[Row]:
    """Rows of the table `samples`."""
    codes = [axis.codes[kept].tolist() for axis in cuts.subgroups]
    columns = {
        "id": context.outputs.ids,
        "label": context.outputs.labels,
        "atypicality": context.atypicality,
        "group": None if cuts.atypicality is None else cuts.atypicality.codes,
        "grid_group": None if cuts.grid_atypicality is None else cuts.grid_atypicality.codes,
        "class_group": None if cuts.classes is None else cuts.classes.codes,
    }
    some = {name: None if column is None else column[kept] for name, column in columns.items()}
    some["weight"] = weight
    if codes:
        some["subgroups"] = np.array([" ".join(map(str, row)) for row in zip(*codes, strict=True)], dtype=object)
    return _records(some, kept)


def _records(columns: Mapping[str, NDArray[Any] | None], kept: Rows) -> list[Row]:
    """Columns of the kept rows as dictionaries; what is not known is left out."""
    return records({"row": kept} | {name: column for name, column in columns.items() if column is not None})
