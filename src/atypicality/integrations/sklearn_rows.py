"""Rows of a table and their labels on their way into a classifier: kinds of labels, and names and order of rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite

from atypicality.conformal.guaranteed import Asked
from atypicality.head import ReliabilityHead
from atypicality.head.calibration_parts import FEWEST, agreement
from atypicality.outputs.marks import Marks, are_known, marks_of, numbers_of, telling_column
from atypicality.outputs.packing import CLEARLY, ENOUGH_ROWS
from atypicality.outputs.table_index import counts_from_0
from atypicality.recalibration.prediction import softmax_rows
from atypicality.terminal import few
from atypicality.validation import name_rows, warn

__all__ = [
    "MARKED", "check_classes", "check_kind", "check_known", "check_no_others", "check_table", "codes_of",
    "group_column", "index_name", "index_of", "named_columns", "row_marks", "warn_of_few_rows",
    "warn_of_other_labels", "warn_of_seen_rows", "warn_of_single_rows",
]  # fmt: skip

MARKED, SEEN_SHARE = 100, 0.1
"""Rows of `fit` at most that are recognised when they are evaluated, and the share of them that is told of."""
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


def codes_of(targets: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.intp]:
    """Positions of labels (n,) in the sorted classes (k,) of `fit`; others are refused by name."""
    check_kind(targets)
    if _is_text(targets) != _is_text(classes):
        raise ValueError(_unknown(targets, classes, "were there in fit"))
    codes = np.minimum(np.searchsorted(classes, targets), classes.size - 1)
    unknown = targets[classes[codes] != targets]
    if unknown.size:
        raise ValueError(_unknown(unknown, classes, "were there in fit"))
    return codes


def check_known(targets: NDArray[Any], classes: NDArray[Any]) -> None:
    """Refuse labels (n,) of another kind than the classes (k,) of a fitted estimator, and warn of other labels."""
    if _is_text(targets) != _is_text(classes):
        raise ValueError(_unknown(targets, classes, "the estimator was fitted with"))
    unknown = targets[~np.isin(targets, classes)]
    if unknown.size:
        warn(
            f"y holds {_held(unknown)}, which the estimator was not fitted with: it cannot predict such a class, whose "
            "probability and place in sets come from the calibration rows alone. Leave these rows out, or fit the "
            "estimator with them."
        )


def _is_text(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "US" or (values.dtype.kind == "O" and isinstance(next(iter(values), None), str))


def _held(values: NDArray[Any]) -> str:
    """Labels with their rows."""
    words, counts = np.unique(values, return_counts=True)
    pairs = zip(words.tolist(), counts, strict=True)
    return few([f"{word!r} in {count} row{'' if count == 1 else 's'}" for word, count in pairs])


def _unknown(values: NDArray[Any], classes: NDArray[Any], which: str) -> str:
    known = few([repr(name) for name in classes.tolist()])
    return f"y must hold classes that {which}; it holds {_held(values)}. The classes are {known}."


def check_table(X: Any, columns: int | None) -> None:
    """Refuse rows of new data that are none, or one row as a Series where `fit` had a table of some columns."""
    if columns is not None and hasattr(X, "to_frame"):
        raise ValueError(
            f"X must be a table with the {columns} columns of fit; got a {type(X).__name__} of {len(X)} values. One "
            "row of a DataFrame is X.iloc[[0]], not X.iloc[0]."
        )
    if hasattr(X, "columns") and not len(X):
        raise ValueError("X must have at least one row; got none.")


def named_columns(X: Any, attributes: Any) -> Any:
    """Attributes as they are given, or the columns of a DataFrame X that they name."""
    names = [attributes] if isinstance(attributes, str) else attributes
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        return attributes
    missing = [repr(name) for name in names if name not in getattr(X, "columns", ())]
    if missing:
        raise ValueError(
            f"attributes must be columns of a DataFrame X where they are names; it has no {few(missing)}. Give a "
            "mapping of names to arrays."
        )
    return {name: X[name] for name in names}


def check_classes(targets: NDArray[Any]) -> None:
    """Refuse labels (n,) of one class, from which no classifier is fitted."""
    if np.unique(targets).size == 1:
        raise ValueError(f"y must hold at least two classes; got one class, {targets.tolist()[0]!r}.")


def check_no_others(others: Mapping[str, Any]) -> None:
    """Refuse what `fit` does not take beside X and y."""
    if others:
        raise TypeError(
            f"fit takes X and y alone; got {few(list(others))} too. Calibration counts every row alike, as its "
            'guarantees need: fit the estimator with weights yourself, then wrap it with cv="prefit".'
        )


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


def row_marks(features: NDArray[Any]) -> Marks:
    """Marks of rows (n, d), increasing; none where equal rows are no surprise."""
    rows = np.asarray(features, np.float32)
    return np.unique(marks_of(numbers_of(rows[:0] if telling_column(rows) is None else rows)))


def warn_of_seen_rows(marks: Marks, features: NDArray[Any]) -> None:
    """Warn where rows (n, d) are evaluated that `fit` has seen: a tenth of those it has marked, or more."""
    if not marks.size:
        return
    again = int(are_known(marks, np.unique(marks_of(numbers_of(features)))).sum())
    if again >= max(2, SEEN_SHARE * marks.size):
        warn(
            f"X should hold rows that fit has not seen; {again} of {marks.size} rows of fit that were looked for are "
            "among them. The classifier will look better than it is. Give other rows."
        )


def warn_of_few_rows(n_calibration: int, whole: bool) -> None:
    """Warn where fewer rows calibrate than an accuracy is told from chance by; `whole` where no more of them can."""
    if FEWEST <= n_calibration < ENOUGH_ROWS:  # fewer are refused
        warn(
            f"{n_calibration} row{' calibrates' if n_calibration == 1 else 's calibrate'}, where 500 are better and "
            f"fewer than {ENOUGH_ROWS} are few: probabilities are hardly recalibrated, and coverage varies much from "
            "one calibration set to another. "
            + ("Give more rows." if whole else "Set cv=5, where every row calibrates, or give more rows.")
        )


def warn_of_single_rows(targets: NDArray[Any]) -> None:
    """Warn of classes of which there is one row, which cannot both train and calibrate."""
    words, counts = np.unique(targets, return_counts=True)
    if (counts == 1).any():
        single = few([repr(word) for word in words[counts == 1].tolist()])
        warn(
            f"y holds one row of class {single}: it trains or calibrates, and nothing is known of how such rows are "
            "predicted. Give more rows of it, or leave it out."
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
