"""The calibration of a head: recalibration on some rows, then sets, abstention and all that is counted on others."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import namespace, take_rows, to_host
from atypicality.blocks import progress
from atypicality.conformal import ConditionalConformal, SplitConformal
from atypicality.conformal.conditional import GROUP_ROWS
from atypicality.conformal.soft_groups import FINE_FROM
from atypicality.estimators import clone
from atypicality.groups import Quadrants
from atypicality.head.acceptance import fitted_abstention, fitted_score
from atypicality.head.advice import measured_advice, trusted_from, unthresholded_rows
from atypicality.head.calibration_parts import some_rows
from atypicality.head.description import before_and_after
from atypicality.head.lost import warn_of_lost_advised
from atypicality.head.parts import call_with_known, probabilities_of
from atypicality.head.prediction import at_class_prior
from atypicality.head.quantiles import QuantileScale
from atypicality.head.rarity import Scores, rarity_of, training_shares
from atypicality.head.reference import HeldOutCounts
from atypicality.metrics.rows import read_pairs
from atypicality.outputs import ModelOutputs
from atypicality.recalibration import AtypicalityAwareRecalibration
from atypicality.recalibration.class_prior import is_estimated
from atypicality.validation import FloatArray, check_alpha

__all__ = ["fit_calibration", "remember"]

Vector = NDArray[np.float64]
Classes = NDArray[np.intp]
EdgeRows = NDArray[np.bool_] | None
SIXTHS = 6


def fit_calibration(
    head: Any, first: ModelOutputs, rest: ModelOutputs, edge_rows: EdgeRows, train_rows: int, scored: Scores | None
) -> None:
    """Fit what follows the density: recalibration on the `first` rows, which are `scored`, and sets on the rest."""
    progress.stage("fitting the recalibration")
    with first._numbered():
        head.recalibration_ = _recalibration(head, first, scored)
        probs = None if head.acceptance is None else probabilities_of(_at_own_mix(head), first, scored)[0]
        head.acceptance_ = None if probs is None else fitted_score(head, probs, first)
    progress.stage("fitting the prediction sets")
    with rest._numbered():
        probs, labels = _fit_thresholds(head, first, rest, edge_rows, scored)
    head.metrics_ = before_and_after(rest.need("logits"), probs, labels)
    thresholds = getattr(head.prediction_sets_, "n_calibration_", len(rest))
    edges = getattr(head.prediction_sets_, "n_edge_", len(rest) - thresholds)
    head.sizes_ = {"train": train_rows} if train_rows else {}
    head.sizes_ |= {"recalibration": len(first), "edges": int(edges), "thresholds": int(thresholds)}


def _at_own_mix(head: Any) -> Any:
    """The head for calibration rows, which have the class mix that calibrated."""
    estimates = is_estimated(getattr(head.recalibration_, "class_prior", None))
    return at_class_prior(head, None) if estimates else head


def _recalibration(head: Any, outputs: ModelOutputs, scored: Scores | None) -> Any:
    logits, labels = outputs.need("logits", "labels")
    atypicality, offered = rarity_of(head, outputs, scored)
    recalibration = head.recalibration
    if isinstance(recalibration, str) and recalibration == "auto":
        covariates = ("margin",) if atypicality is None else ("atypicality", "margin")
        recalibration = AtypicalityAwareRecalibration(covariates=covariates)
    offered["class_log_prior"] = _class_log_prior(head, outputs)
    return call_with_known(clone(recalibration).fit, logits, labels, **offered)


def _class_log_prior(head: Any, outputs: ModelOutputs) -> NDArray[np.float64] | None:
    """Logarithms of the class shares in training (k,): as the outputs have them, or of the density's rows."""
    if outputs.class_atypicality is not None:
        return -outputs.class_atypicality
    shares = training_shares(head)
    with np.errstate(divide="ignore"):
        return None if shares is None else np.log(shares)


def _fit_thresholds(
    head: Any, first: ModelOutputs, rest: ModelOutputs, edge_rows: EdgeRows, scored: Scores | None
) -> tuple[Any, Any]:
    """Sets, abstention and quantiles from the `rest`; its probabilities and labels. `first` has been `scored`."""
    own = _at_own_mix(head)
    probs, atypicality, covariate = probabilities_of(own, rest)
    head.recalibration_quantiles_ = None if covariate is None else QuantileScale.from_rows(to_host(covariate))
    labels = rest.need("labels")
    head.prediction_sets_ = _sets(head, probs, labels, rest, {"atypicality": atypicality, "edge_rows": edge_rows})
    some, known = some_rows(first, scored)
    head.abstention_ = fitted_abstention(head, probs, rest, probabilities_of(own, some, known)[0], some)
    confidence = np.minimum(read_pairs(probs, labels, None, None).confidence, 1.0)
    predicted = to_host(namespace(probs).argmax(probs, axis=1))
    remember(head, confidence, predicted, to_host(labels), None if atypicality is None else to_host(atypicality))
    warn_of_lost_advised(head, probs, confidence, predicted, atypicality, rest)
    chosen = unthresholded_rows(head.prediction_sets_, len(rest), edge_rows)
    if chosen is None:
        recalibrated, rarity, _ = probabilities_of(own, first, scored)
        head.advice_ = measured_advice(head, recalibrated, rarity, first)
    else:
        rarity = None if atypicality is None else take_rows(atypicality, chosen)
        head.advice_ = measured_advice(head, take_rows(probs, chosen), rarity, rest[chosen])
    return probs, labels


def _sets(head: Any, probs: FloatArray, labels: Any, outputs: ModelOutputs, offered: dict[str, Any]) -> Any:
    sets, atypicality = head.prediction_sets, offered["atypicality"]
    if isinstance(sets, str) and sets == "auto":
        edges = offered["edge_rows"]
        sets = _default_sets(head.alpha, atypicality is not None, len(outputs), None if edges is None else edges.sum())
    sets = clone(sets)
    if atypicality is None and "atypicality" in inspect.signature(sets.fit).parameters:
        raise ValueError(f"prediction_sets={type(sets).__name__} needs atypicality: give train= or a density.")
    offered |= {"attributes": outputs.attributes, "class_names": head.class_names_}
    offered |= {"class_share": training_shares(head)}
    return call_with_known(sets.fit, probs, labels, **offered)


def _default_sets(alpha: float, rare: bool, n_rows: int, n_edges: int | None) -> Any:
    """Sets of a head whose user says nothing of them; sixths of atypicality need rows to set their thresholds."""
    if not rare:
        return SplitConformal(alpha=alpha)
    sets = ConditionalConformal(alpha=alpha)
    n_thresholds = n_rows - (round(sets.edge_fraction * n_rows) if n_edges is None else n_edges)
    enough = n_thresholds >= max(FINE_FROM, SIXTHS * GROUP_ROWS / float(check_alpha(alpha)))
    return sets.set_params(groups="atypicality") if enough else sets


def remember(
    head: Any,
    confidence: Vector,
    predicted: Classes,
    labels: Classes,
    atypicality: Vector | None,
    words: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Counts, quadrants and quantiles of held-out rows (n,), in a head whose prediction sets are fitted."""
    head.reference_ = HeldOutCounts.from_rows(
        confidence, predicted, labels, n_classes=head.n_classes_, atypicality=atypicality, words=words
    )
    head.quadrants_ = head.quantiles_ = None
    if atypicality is not None:
        head.quadrants_ = Quadrants(confidence=trusted_from(head)).fit(confidence, atypicality)
        head.quantiles_ = QuantileScale.from_rows(atypicality)
