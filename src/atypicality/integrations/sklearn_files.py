"""A fitted classifier in a folder: the head as a bundle, scikit-learn's estimators as a skops file, no pickle."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from atypicality.conformal.cross import CrossConformal, cross_conformal_level
from atypicality.integrations.sklearn_evaluation import classifier_card
from atypicality.outputs.paths import check_source, check_target, replacing
from atypicality.shipping.bundle import load as load_head
from atypicality.shipping.bundle import save as save_head
from atypicality.validation import require

__all__ = ["load_classifier", "save_classifier", "untrusted_types"]

AnyPath = str | os.PathLike[str]
FILE, HEAD, CARD, FORMAT = "classifier.skops", "head", "README.md", 1
OURS = ["atypicality.integrations.sklearn_tables.TableEmbedder"]
"""Types that a file may hold though skops does not know them."""
OPTIONS = ("estimator", "embedder", "calibration_fraction", "cv", "ensemble", "random_state")
FITTED = ("estimators_", "embedder_", "classes_", "zero_proba_")
PERHAPS = ("n_features_in_", "feature_names_in_")


def save_classifier(model: Any, folder: AnyPath) -> None:
    """Write a fitted `AtypicalityAwareClassifier`; refused where a part cannot be read back."""
    check_is_fitted(model, "head_")
    skops = require("skops.io", extra="sklearn", feature="save of a classifier")
    target, state = check_target(folder, folder=True), _state(model)
    untrusted = _check_readable(skops, state)
    state["head"] = save_head(model.head_, target / HEAD)
    with replacing(target / FILE) as temporary:
        Path(temporary).write_bytes(skops.dumps(state))
    with replacing(target / CARD) as temporary:
        Path(temporary).write_text(classifier_card(model, untrusted), encoding="utf-8")


def untrusted_types(model: Any) -> list[str] | None:
    """The types that the file of a fitted classifier must be trusted with; None where it cannot be saved here."""
    try:
        return _check_readable(require("skops.io", extra="sklearn", feature="save of a classifier"), _state(model))
    except (ModuleNotFoundError, TypeError):
        return None


def _state(model: Any) -> dict[str, Any]:
    """What the file holds; the fingerprint of the head's bundle comes when that is written."""
    state = {name: getattr(model, name) for name in (*OPTIONS, *FITTED)}
    state |= {name: getattr(model, name) for name in PERHAPS if hasattr(model, name)}
    crossed = model.cross_conformal_
    state["scores"] = None if crossed is None else crossed.scores_
    return state | {"format": FORMAT, "own_head": model.head is not None, "head": ""}


def _check_readable(skops: Any, state: dict[str, Any]) -> list[str]:
    """The types that must be trusted to read the file."""
    try:
        data = skops.dumps(state)
        untrusted = skops.get_untrusted_types(data=data)
        skops.loads(data, trusted=untrusted)
    except Exception as error:
        raise TypeError(
            f"the estimators cannot be saved without pickle, which this library does not use: {error}. Replace what "
            "skops cannot hold (functions of your own, say), or save head_ alone and keep the estimator as you do."
        ) from error
    return [name for name in untrusted if name not in OURS]


def load_classifier(model: Any, folder: AnyPath, trusted: Iterable[str]) -> Any:
    """Fill an empty classifier from a folder."""
    if isinstance(trusted, str) or not isinstance(trusted, Iterable):
        raise TypeError(f"trusted must be a list of names of types, as the error without it lists; got {trusted!r}.")
    trusted = [*trusted]
    skops = require("skops.io", extra="sklearn", feature="load of a classifier")
    place = Path(folder)
    data = check_source(place / FILE).read_bytes()
    unknown = [name for name in skops.get_untrusted_types(data=data) if name not in {*OURS, *trusted}]
    if unknown:
        raise TypeError(
            f"{os.fspath(place / FILE)!r} holds types that skops does not trust: they are parts of the estimators, "
            "trees say, and a forged file could run code or crash the process with them. If you wrote the file "
            f"yourself, pass trusted={unknown!r}."
        )
    state = skops.loads(data, trusted=[*OURS, *trusted])
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{os.fspath(place / FILE)!r} is no classifier that this version reads.")
    head = load_head(place / HEAD, sha256=state["head"])
    for name in (*OPTIONS, *FITTED, *(name for name in PERHAPS if name in state)):
        setattr(model, name, state[name])
    model.head_, model.head = head, clone(head) if state["own_head"] else None
    model.cross_conformal_ = _crossed(state["scores"], head)
    return model


def _crossed(scores: Any, head: Any) -> CrossConformal | None:
    if scores is None:
        return None
    crossed = CrossConformal(head.prediction_sets_.alpha)
    crossed.scores_, crossed.n_classes_ = scores, head.n_classes_
    crossed.n_calibration_ = sum(map(len, scores))
    crossed.level_ = cross_conformal_level(crossed.n_calibration_, len(scores), crossed.alpha)
    return crossed
