"""Rows of a table and their labels on their way into a classifier: kinds of labels, and names and order of rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite

from atypicality.conformal.guaranteed import Asked
from atypicality.head import ReliabilityHead
from atypicality.head.calibration_parts import agreement
from atypicality.outputs.packing import CLEARLY, ENOUGH_ROWS
from atypicality.outputs.table_index import counts_from_0
from atypicality.recalibration.prediction import softmax_rows
from atypicality.validation import name_rows, warn

__all__ = [
    "check_kind",
    "check_no_others",
    "few",
    "group_column",
    "index_name",
    "index_of",
    "warn_of_few_rows",
    "warn_of_other_labels",
]

MOST_WORDS = 10
"""Classes that an error lists."""
ABOVE_CHANCE = 2
"""Standard deviations above shuffled labels that an estimator needs which `fit` fits itself.

Labels in another order leave it at chance, as is then seen in all but 2 % of fits; at `CLEARLY` many weak estimators
would be warned of too.
"""


def check_kind(targets: NDArray[Any]) -> None:
    """Refuse missing labels, and text beside other kinds, which cannot be sorted."""
    if targets.dtype.kind == "f":
        assert_all_finite(targets, input_name="y")
    if targets.dtype.kind == "O":
        text = np.array([isinstance(value, str) for value in targets], bool)
        if text.any() and not text.all():
            rows = name_rows(np.flatnonzero(~text), "does", "do")
            raise ValueError(f"y must hold labels of one kind; {rows} not hold text, as others do. Drop or name them.")


def check_no_others(others: Mapping[str, Any]) -> None:
    """Refuse what `fit` does not take beside X and y."""
    if others:
        raise TypeError(
            f"fit takes X and y alone; got {few(list(others))} too. Calibration counts every row alike, as its "
            'guarantees need: fit the estimator with weights yourself, then wrap it with cv="prefit".'
        )


def few(words: list[str]) -> str:
    """The first words, and how many more there are."""
    return ", ".join(words[:MOST_WORDS]) + (f" and {len(words) - MOST_WORDS} more" if len(words) > MOST_WORDS else "")


def index_of(X: Any) -> Any:
    """Whole numbers or text that name the rows of a DataFrame, where they are more than a count from 0."""
    index = getattr(X, "index", None)
    if callable(index) or index is None or getattr(index, "nlevels", 1) > 1:
        return None
    values = np.asarray(index)
    if values.dtype.kind == "O" and not all(isinstance(value, str) for value in values):
        return None
    return None if counts_from_0(index) or values.dtype.kind not in "iuUO" else values


def index_name(X: Any) -> str | None:
    """What the index of a DataFrame is called."""
    name = getattr(getattr(X, "index", None), "name", None)
    return name if isinstance(name, str) else None


def group_column(head: ReliabilityHead, X: Any) -> Mapping[str, Any]:
    """The column of a DataFrame X that `groups=` of the head's prediction sets names; empty where none is named."""
    sets = getattr(head, "prediction_sets_", head.prediction_sets)
    if not getattr(sets, "reads_attributes", False):
        return {}
    named = str(Asked.of(sets.groups).attribute)
    if named not in getattr(X, "columns", ()):
        raise ValueError(
            f"groups={named!r} of the prediction sets must be a column of a DataFrame X, in fit and in predictions; "
            f"X has no such column. Give it, or use outputs(X, y, attributes=...) and a ReliabilityHead of your own."
        )
    return {named: X[named]}


def warn_of_few_rows(n_calibration: int, prefit: bool) -> None:
    """Warn where fewer rows calibrate than an accuracy is told from chance by."""
    if n_calibration < ENOUGH_ROWS:
        warn(
            f"{n_calibration} rows calibrate, where 500 are better and fewer than {ENOUGH_ROWS} are few: probabilities "
            "are hardly recalibrated, and coverage varies much from one calibration set to another. "
            + ("Give more rows." if prefit else "Set cv=5, where every row calibrates, or give more rows.")
        )


def warn_of_other_labels(logits: NDArray[np.float64], codes: NDArray[np.intp], prefit: bool) -> None:
    """Warn where classes (n,) fit the logits (n, k) of an estimator that has not seen them as shuffled ones would."""
    if len(codes) < ENOUGH_ROWS:
        return
    probs = softmax_rows(logits)
    if agreement(probs, codes) < (CLEARLY if prefit else ABOVE_CHANCE):
        warn(
            "y fits what the estimator says of rows that it was not fitted on no better than shuffled labels would; it "
            f"is right in {np.mean(probs.argmax(axis=1) == codes):.1%} of {len(codes):,} rows. Give y in the order of "
            "X; if it is, this estimator is no better than chance."
        )
