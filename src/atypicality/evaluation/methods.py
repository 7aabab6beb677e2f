"""Methods by name or as objects: how each is fitted on calibration rows and asked about other rows."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import to_numpy
from atypicality.conformal import AtypicalityAwareConformal, ConditionalConformal, SplitConformal
from atypicality.estimators import clone
from atypicality.evaluation.context import Context
from atypicality.formula import advice_numbers
from atypicality.head.parts import call_with_known
from atypicality.outputs import ModelOutputs
from atypicality.outputs.class_names import class_order
from atypicality.recalibration import (
    AdaptiveTemperatureScaling,
    AtypicalityAwareRecalibration,
    EnsembleTemperatureScaling,
    GroupTemperatureScaling,
    TemperatureScaling,
    VectorScaling,
)
from atypicality.recalibration.prediction import softmax_rows
from atypicality.validation import caught_warnings, check_length, check_probs, warn

__all__ = ["KNOWN", "Answer", "ask", "by_name", "fit", "is_head", "named_methods", "naming"]

SCORES = ("lac", "aps", "raps", "saps")
UNCALIBRATED = "uncalibrated"
CONTENT_FREE = "content-free"
CONDITIONAL = "conditional"
RECALIBRATORS: dict[str, Callable[[], Any]] = {
    UNCALIBRATED: lambda: None,
    "ts": TemperatureScaling,
    "group-ts": GroupTemperatureScaling,
    "vector": VectorScaling,
    "ensemble": EnsembleTemperatureScaling,
    "adats": AdaptiveTemperatureScaling,
    "aar": AtypicalityAwareRecalibration.paper,
    "aware": AtypicalityAwareRecalibration,
}
KNOWN = (*RECALIBRATORS, CONTENT_FREE, *SCORES, *(f"aa-{score}" for score in SCORES), CONDITIONAL)
"""Names that `compare` knows. Conformal names recalibrate with one temperature first, as the paper does."""


@dataclass(frozen=True)
class Answer:
    """What a method says of n rows: probabilities (n, k), and sets, bool (n, k), and advice (n,) where it has them.

    `predicted` (n,) is the class whose probability is the confidence, where that is not the most probable one, and
    `accepted` (n,) whether a head that is asked for a risk keeps the prediction. `guaranteed` is the coverage of sets
    that are guaranteed less than 1 - `alpha`, as CV+ is.
    """

    probs: NDArray[np.floating[Any]]
    sets: NDArray[np.bool_] | None = None
    alpha: float | None = None
    atypicality: NDArray[np.float64] | None = None
    class_scores: NDArray[np.float64] | None = None
    advice: NDArray[np.intp] | None = None
    predicted: NDArray[np.intp] | None = None
    accepted: NDArray[np.bool_] | None = None
    guaranteed: float | None = None


def named_methods(methods: Any) -> dict[str, Any]:
    """Methods under their names: from a name, a sequence of names, a mapping of names to things, or one thing."""
    if isinstance(methods, str):
        methods = [methods]
    if isinstance(methods, Mapping):
        named = dict(methods)
    elif isinstance(methods, (list, tuple)) and all(isinstance(name, str) for name in methods):
        named = {name: name for name in methods}
    else:
        named = {"head" if is_head(methods) else "model": methods}
    if not named:
        raise ValueError(f"methods must hold at least one method; got none. Known names: {', '.join(KNOWN)}.")
    for name in named:
        if not isinstance(name, str) or not name:
            raise TypeError(f"methods must be named by text that is not empty; got {name!r}.")
    return named


def by_name(method: Any, alpha: float) -> Any:
    """The unfitted object that a known name stands for; anything but a name is returned as it is."""
    if isinstance(method, tuple) and method and isinstance(method[0], str):
        return (by_name(method[0], alpha), *method[1:])
    if not isinstance(method, str):
        return method
    if method in RECALIBRATORS:
        return RECALIBRATORS[method]()
    if (score := method.removeprefix("aa-")) in SCORES:
        conformal = SplitConformal if method == score else AtypicalityAwareConformal
        return TemperatureScaling(), conformal(score, alpha)
    if method == CONDITIONAL:
        return TemperatureScaling(), ConditionalConformal(alpha)
    if method == CONTENT_FREE:
        raise ValueError(
            "content-free calibration learns from content-free prompts, not from these rows; pass "
            '{"content-free": ContentFreeCalibration().fit(content_free_logits)}.'
        )
    raise ValueError(f"methods must be objects or known names ({', '.join(KNOWN)}); got {method!r}.")


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Let an error, and a warning, say which method it is about."""
    try:
        with caught_warnings() as caught:
            yield
        for message in caught:
            warn(f"method {name!r}: {message}")
    except (ValueError, TypeError) as error:
        if type(error) not in (ValueError, TypeError):  # another constructor, perhaps
            raise
        raise type(error)(f"method {name!r}: {error}") from error


def ask(method: Any, context: Context) -> Answer:
    """The answer of something fitted: None for the model itself, probabilities, a recalibrator, a head, or a pair."""
    with context.outputs._numbered():
        return _ask(method, context)


def _ask(method: Any, context: Context) -> Answer:
    if isinstance(method, tuple):
        return _ask_pair(method, context)
    if method is None:
        return Answer(softmax_rows(context.outputs.need("logits")))
    if hasattr(method, "predict_proba"):
        if next(iter(inspect.signature(method.predict_proba).parameters), None) == "X":
            raise TypeError(
                f"{type(method).__name__} is a classifier of rows X, which outputs do not hold. Pass the probabilities "
                "that it gives them, predict_proba(X), with columns in the order of the outputs' classes."
            )
        probs = call_with_known(method.predict_proba, context.outputs.need("logits"), **context.extras())
        return Answer(_check_answer(probs, context), class_scores=_class_scores(method))
    if hasattr(method, "predict_set"):
        raise TypeError(
            f"{type(method).__name__} makes sets from probabilities; pass a pair, "
            "(probabilities or a recalibrator or None, sets or a conformal predictor)."
        )
    if hasattr(method, "predict"):
        return _ask_head(method, context)
    return Answer(_check_answer(method, context))


def fit(method: Any, context: Context, random_state: int) -> Any:
    """A fresh copy of a method fitted on calibration rows.

    A pair recalibrates on half of the rows and conformalises on the other half. Objects without `fit`, and those
    whose `fit` takes something else than labelled logits (content-free calibration), are used as they are.
    """
    if isinstance(method, tuple):
        return _fit_pair(method, context, random_state)
    if method is None or not hasattr(method, "fit"):
        return _check_fixed(method)
    fresh = clone(method, safe=False)
    if is_head(method):
        return fresh.fit(train=context.train, calibration=context.outputs)
    if next(iter(inspect.signature(method.fit).parameters)) != "logits":
        return method
    logits, labels = context.outputs.need("logits", "labels")
    with context.outputs._numbered():
        return call_with_known(fresh.fit, logits, labels, **context.extras())


def is_head(method: Any) -> bool:
    """A head answers outputs with `predict`, has no `predict_proba`, and makes its own parts in `fit`."""
    return hasattr(method, "predict") and not hasattr(method, "predict_proba")


def _fit_pair(method: tuple[Any, Any], context: Context, random_state: int) -> tuple[Any, Any]:
    recalibrator, conformal = _check_pair(method)
    if context.outputs.stratified:
        raise ValueError("outputs are of a stratified split and cannot carry a guarantee; split with stratify=False.")
    rest = context
    if recalibrator is not None:
        first, rest = context.split(0.5, random_state)
        recalibrator = fit(recalibrator, first, random_state)
    probs = ask(recalibrator, rest).probs
    fresh = clone(conformal, safe=False)
    labels = rest.outputs.need("labels")
    with rest.outputs._numbered():
        return recalibrator, call_with_known(fresh.fit, probs, labels, **_set_extras(rest))


def _ask_pair(method: tuple[Any, ...], context: Context) -> Answer:
    source, sets = _check_pair(method)
    first, alpha = ask(source, context), _alpha(sets)
    if hasattr(sets, "predict_set"):
        sets = call_with_known(sets.predict_set, first.probs, **_set_extras(context))
    sets = to_numpy(sets, "sets")
    if sets.dtype != np.bool_ or sets.shape != first.probs.shape:
        raise ValueError(
            f"sets must be boolean of shape {first.probs.shape}, like the probabilities; got {sets.dtype} {sets.shape}."
        )
    return Answer(first.probs, sets, alpha, class_scores=first.class_scores)


def _set_extras(context: Context) -> dict[str, Any]:
    """What prediction sets may ask for beside probabilities and labels."""
    rarity = context.class_atypicality
    return {
        "atypicality": context.atypicality,
        "attributes": context.outputs.attributes,
        "class_names": context.outputs.class_names,
        "class_share": None if rarity is None else np.exp(rarity.min() - rarity),
    }


def _check_fixed(method: Any) -> Any:
    if method is not None and not hasattr(method, "predict_proba") and not hasattr(method, "predict"):
        raise TypeError(
            f"compare fits methods on halves of the rows, and cannot fit {type(method).__name__}. "
            "Pass an estimator, or give probabilities to evaluate."
        )
    return method


def _check_pair(method: tuple[Any, ...]) -> tuple[Any, Any]:
    if len(method) != 2:
        raise ValueError(f"a tuple among methods must be a pair, (probabilities, sets); got {len(method)} entries.")
    return method[0], method[1]


def _ask_head(head: Any, context: Context) -> Answer:
    risk = {} if context.max_risk is None else {"max_risk": context.max_risk}
    said = head.predict(context.outputs, **risk)
    sets = getattr(said, "prediction_set", None)
    conformal = getattr(head, "prediction_sets_", getattr(head, "prediction_sets", None))
    return Answer(
        _check_answer(said.proba, context),
        None if sets is None else to_numpy(sets, "prediction_set"),
        _alpha(conformal),
        getattr(said, "atypicality", None),
        _in_order_of(context.outputs, head, _class_scores(getattr(head, "recalibration_", None))),
        None if getattr(said, "advice", None) is None else advice_numbers(said.advice),
        None if getattr(said, "label", None) is None else to_numpy(said.label, "label"),
        None if getattr(said, "accepted", None) is None else to_numpy(said.accepted, "accepted"),
        getattr(conformal, "level_", None),
    )


def _in_order_of(outputs: ModelOutputs, head: Any, scores: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    """Scores of a head's classes (k,) in the order of the outputs, as its answers are."""
    order = class_order(getattr(head, "class_names_", None), outputs.class_names)
    return scores if scores is None or order is None else scores[order]


def _check_answer(probs: Any, context: Context) -> NDArray[np.floating[Any]]:
    given = to_numpy(probs, "probs")
    array = check_probs(given, n_classes=context.outputs.n_classes, scan=False)  # metrics check the rows they read
    check_length(array, "probs", len(context.outputs))
    return given if given.dtype == np.float16 else array  # whose rows sum to 1 less exactly, as metrics know


def _alpha(conformal: Any) -> float | None:
    alpha = getattr(conformal, "alpha", None)
    return None if alpha is None else float(alpha)


def _class_scores(method: Any) -> NDArray[np.float64] | None:
    scores = getattr(method, "class_scores_", None)
    return None if scores is None else np.asarray(scores, np.float64)
