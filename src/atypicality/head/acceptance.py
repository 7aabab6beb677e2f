"""Acceptance: a score of which predictions to keep, from confidence and the ambiguity of the prediction."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from atypicality.arrays import namespace, to_host
from atypicality.density.columns import class_positions
from atypicality.head.abstention import AbstentionRule, lost_at
from atypicality.metrics.rows import read_pairs
from atypicality.metrics.signal import FOLDS, clipped_logits, logistic_coefficients
from atypicality.outputs import ModelOutputs
from atypicality.stored import Record, kinds

__all__ = ["AcceptanceScore", "ambiguity_of", "fitted_abstention", "fitted_score", "reads_ambiguity"]

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class AcceptanceScore:
    """Chance of being right, by logistic regression on the logits of confidence and of ambiguity (see `NeighborRatio`).

    Any score fixed before the held-out rows are counted keeps the guarantee of `AbstentionRule`: this one is fitted on
    recalibration rows.

    >>> score = AcceptanceScore(0.0, 1.0, -1.0)
    >>> score(np.array([0.8, 0.8]), np.array([0.2, 0.5])).round(2)  # 0.8 and 0.2 have logits of opposite sign
    array([0.94, 0.8 ])
    """

    intercept: Annotated[float, kinds.Number()]
    confidence: Annotated[float, kinds.Number()]
    ambiguity: Annotated[float, kinds.Number()]
    _stored = Record()

    @classmethod
    def from_rows(cls, confidence: Float64, ambiguity: Float64, correct: NDArray[np.bool_]) -> Self:
        """Fit to rows (n,); confidence alone where fewer than 5 predictions are right, or wrong."""
        if min(correct.sum(), (~correct).sum()) < FOLDS:
            return cls(0.0, 1.0, 0.0)
        columns = [np.ones(correct.size), clipped_logits(confidence), clipped_logits(ambiguity)]
        return cls(*map(float, logistic_coefficients(np.stack(columns, axis=1), correct)))

    def __call__(self, confidence: Float64, ambiguity: Float64) -> Float64:
        """Scores (n,) in [0, 1]."""
        logits = self.confidence * clipped_logits(confidence) + self.ambiguity * clipped_logits(ambiguity)
        return np.asarray(expit(self.intercept + logits))


def reads_ambiguity(recalibration: Any) -> bool:
    """Whether a recalibration searches among the training rows."""
    return "ambiguity" in getattr(recalibration, "covariates", ())


def ambiguity_of(head: Any, embeddings: Any, label: NDArray[np.intp]) -> Float64:
    """Ambiguity (n,) of predicted classes, in the head's order."""
    places, ratio = np.full(head.n_classes_, -1), head.neighbor_ratio_
    places[class_positions(ratio.classes_, head.n_classes_, head.class_names_)] = np.arange(ratio.classes_.size)
    found: Float64 = ratio.ambiguity(embeddings, places[label])
    return found


def fitted_score(head: Any, probs: Any, outputs: ModelOutputs) -> AcceptanceScore:
    """The score of a head with `acceptance`, from the probabilities (n, k) and labels of recalibration rows."""
    confidence, correct, ambiguity = _read(head, probs, outputs)
    return AcceptanceScore.from_rows(confidence, ambiguity, correct)


def fitted_abstention(head: Any, probs: Any, rest: ModelOutputs, others: Any, some: ModelOutputs) -> AbstentionRule:
    """From the `rest`; probabilities of `some` of the other rows say where the tests begin."""
    kept_by, correct = _scores_and_correct(head, probs, rest)
    guide, _ = _scores_and_correct(head, others, some)
    predicted, labels = to_host(namespace(probs).argmax(probs, axis=1)), to_host(rest.need("labels"))
    rule = AbstentionRule.from_rows(kept_by, correct, others=guide)
    return replace(rule, lost_at=lost_at(kept_by, predicted, labels, head.n_classes_))


def _scores_and_correct(head: Any, probs: Any, outputs: ModelOutputs) -> tuple[Any, Any]:
    """What predictions are kept by (n,), confidence or the score of acceptance, and which are right (n,)."""
    confidence, correct, ambiguity = _read(head, probs, outputs)
    return confidence if head.acceptance_ is None else head.acceptance_(confidence, ambiguity), correct


def _read(head: Any, probs: Any, outputs: ModelOutputs) -> tuple[Any, Any, Any]:
    """Confidence and correctness of rows (n,), and with `acceptance` their ambiguity."""
    pairs, ambiguity = read_pairs(probs, outputs.need("labels"), None, None), None
    if head.acceptance is not None:
        ambiguity = ambiguity_of(head, outputs.need("embeddings"), to_host(probs).argmax(axis=1))
    return np.minimum(pairs.confidence, 1.0), pairs.correct, ambiguity
