"""What an estimator must be, and its scores as logits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_regressor
from sklearn.pipeline import Pipeline

from atypicality.integrations.sklearn_tables import inner_estimator

__all__ = ["check_answers", "check_predicts", "decisions", "log_probs"]

SMALLEST = np.finfo(np.float64).tiny


def check_predicts(estimator: Any) -> None:
    """Refuse, before it is fitted, a regressor, and what predicts nothing."""
    regressor = hasattr(estimator, "__sklearn_tags__") and is_regressor(estimator)
    if regressor or not hasattr(estimator, "predict"):
        why = "is a regressor" if regressor else "has no predict"
        raise ValueError(f"estimator must be a classifier; {type(_last(estimator)).__name__} {why}.")


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


def log_probs(probs: NDArray[np.float64], zero: float) -> NDArray[np.float64]:
    """Logarithms (n, k) of probabilities, with `zero` or half of the row's smallest positive one instead of 0."""
    ruled_out = probs <= 0
    if ruled_out.any():
        smallest = np.where(ruled_out, 1.0, probs).min(axis=1, keepdims=True)
        probs = np.where(ruled_out, np.minimum(zero, smallest / 2), probs)
    return np.log(np.maximum(probs, SMALLEST))
