"""What an estimator, its labels and the index of its table must be, and its scores as logits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils import assert_all_finite

from atypicality.integrations.sklearn_tables import inner_estimator
from atypicality.validation import name_rows

__all__ = [
    "check_answers", "check_index", "check_kind", "decisions", "few", "index_name", "index_of", "log_probs",
]  # fmt: skip

SMALLEST = np.finfo(np.float64).tiny
MOST_WORDS = 10  # classes that an error lists


def check_answers(estimator: Any, X: Any) -> None:
    """Refuse an estimator whose columns are not one score per class, as its own words and predictions on X tell."""
    name, classes = type(estimator).__name__, getattr(estimator, "classes_", None)
    if classes is None:
        raise ValueError(f"estimator must be a classifier; {name} has no classes_ when fitted.")
    if isinstance(classes, list) or np.ndim(classes) != 1 or np.ndim(said := estimator.predict(X)) != 1:
        raise ValueError(f"estimator must give one label per row; {name} gives several. Fit one estimator per output.")
    if hasattr(estimator, "predict_proba"):
        return
    if not hasattr(estimator, "decision_function"):
        raise TypeError(f"estimator must have predict_proba or decision_function; {name} has neither. Calibrate it.")
    if len(classes) < 3:
        return
    if getattr(_last(estimator), "decision_function_shape", None) == "ovo":
        raise ValueError(
            'estimator must score classes; decision_function_shape="ovo" scores pairs of them. Set it to "ovr".'
        )
    agreement = np.mean(np.asarray(classes)[decisions(estimator, X).argmax(axis=1)] == said)
    if agreement < 0.5:  # scores of classes agree with predict but for ties; of pairs hardly more than by chance
        raise ValueError(
            f"estimator must have one column per class in decision_function, in the order of classes_; the largest "
            f"column of {name} is the predicted class in {agreement:.0%} of {len(said)} rows only."
        )


def decisions(estimator: Any, X: Any) -> NDArray[np.float64]:
    """Decision values (n, k); those of a binary estimator become [0, z]."""
    values, k = np.asarray(estimator.decision_function(X), np.float64), len(estimator.classes_)
    if k == 2 and values.size == len(values):
        values = np.c_[np.zeros(len(values)), values.reshape(-1)]
    if values.ndim != 2 or values.shape[1] != k:
        raise ValueError(
            f"estimator must have one column per class in decision_function; {type(estimator).__name__} has shape "
            f"{values.shape} for {k} classes. Pairs of classes are not classes: use one-versus-rest scores."
        )
    return values


def _last(estimator: Any) -> Any:
    """What answers in the end, behind searches, pipelines and frozen estimators."""
    while True:
        inner = inner_estimator(estimator)
        if not isinstance(inner, Pipeline):
            return inner
        estimator = inner[-1]


def check_kind(targets: NDArray[Any]) -> None:
    """Refuse missing labels, and text beside other kinds, which cannot be sorted."""
    if targets.dtype.kind == "f":
        assert_all_finite(targets, input_name="y")
    if targets.dtype.kind == "O":
        text = np.array([isinstance(value, str) for value in targets], bool)
        if text.any() and not text.all():
            rows = name_rows(np.flatnonzero(~text), "does", "do")
            raise ValueError(f"y must hold labels of one kind; {rows} not hold text, as others do. Drop or name them.")


def few(words: list[str]) -> str:
    """The first of some words, and how many more there are."""
    return ", ".join(words[:MOST_WORDS]) + (f" and {len(words) - MOST_WORDS} more" if len(words) > MOST_WORDS else "")


def check_index(X: Any, column: Any, name: str) -> None:
    """Refuse a column whose index names other rows than that of X, or the same in another order."""
    ours, theirs = getattr(X, "index", ()), getattr(column, "index", ())
    if any(callable(index) or _counts(index) for index in (ours, theirs)) or len(ours) != len(theirs):
        return
    if not np.array_equal(np.asarray(ours), np.asarray(theirs)):
        raise ValueError(
            f"{name} must have the index of X, in its order, since rows go by position; it has another. Pass "
            "column.loc[X.index], or column.to_numpy() where the order is right."
        )


def _counts(index: Any) -> bool:
    """Whether an index is a count from 0."""
    values = np.asarray(index)
    return values.dtype.kind in "iu" and np.array_equal(values, np.arange(values.size))


def index_of(X: Any) -> Any:
    """Whole numbers or text that name the rows of a DataFrame, where they are more than a count from 0."""
    index = getattr(X, "index", None)
    if callable(index) or index is None or getattr(index, "nlevels", 1) > 1:
        return None
    values = np.asarray(index)
    if values.dtype.kind == "O" and not all(isinstance(value, str) for value in values):
        return None
    return None if _counts(index) or values.dtype.kind not in "iuUO" else values


def index_name(X: Any) -> str | None:
    """What the index of a DataFrame is called."""
    name = getattr(getattr(X, "index", None), "name", None)
    return name if isinstance(name, str) else None


def log_probs(probs: NDArray[np.float64], zero: float) -> NDArray[np.float64]:
    """Logarithms (n, k) of probabilities, with `zero` or half of the row's smallest positive one instead of 0."""
    ruled_out = probs <= 0
    if ruled_out.any():
        smallest = np.where(ruled_out, 1.0, probs).min(axis=1, keepdims=True)
        probs = np.where(ruled_out, np.minimum(zero, smallest / 2), probs)
    return np.log(np.maximum(probs, SMALLEST))
