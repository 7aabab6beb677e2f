"""A fitted classifier on labelled rows: its own prediction sets and advice, where those of its head are others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sklearn.utils.validation import check_is_fitted

from atypicality.evaluation import Evaluation, evaluate
from atypicality.head.reliability import Reliability
from atypicality.outputs import ModelOutputs
from atypicality.shipping.card import model_card

__all__ = ["classifier_card", "evaluate_classifier", "guaranteed_coverage"]


def evaluate_classifier(
    model: Any, outputs: ModelOutputs, answer: Reliability | None, options: Mapping[str, Any]
) -> Evaluation:
    """`evaluate` of the estimator, "uncalibrated", and of the classifier: its head, or its `answer` for these rows."""
    judged = model.head_ if answer is None else _AsHead(model, answer)
    return evaluate({"uncalibrated": "uncalibrated", "classifier": judged}, outputs, **options)


def guaranteed_coverage(model: Any) -> float | None:
    """What is guaranteed for the prediction sets of a fitted classifier; None where nothing is."""
    if model.cross_conformal_ is not None:
        return float(model.cross_conformal_.level_)
    head = model.head_
    valid = hasattr(head.prediction_sets_, "_guarantee") and getattr(head.prediction_sets_, "mode", "valid") == "valid"
    return 1 - float(head.prediction_sets_.alpha) if valid and not head.cross_fitted_ else None


def classifier_card(model: Any, untrusted: Sequence[str] | None = None) -> str:
    """The card of the head, with how the classifier is loaded and the coverage that is guaranteed for its sets.

    `untrusted` are the types that its file holds and skops does not trust; None where they are not known.
    """
    check_is_fitted(model, "head_")
    return model_card(_AsHead(model, untrusted=untrusted))


@dataclass(frozen=True)
class _AsHead:
    """A classifier as a head: all of its `head_`, but where it is cross-fitted for the prediction sets and advice."""

    model: Any
    answer: Reliability | None = None
    untrusted: Sequence[str] | None = None
    cross_fitted_ = False  # that is said of the sets of its head alone

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model.head_, name)

    @property
    def prediction_sets_(self) -> Any:
        return self.model.cross_conformal_ or self.model.head_.prediction_sets_

    def predict(self, outputs: ModelOutputs, *, max_risk: float | None = None) -> Reliability | None:
        """What the classifier said of these rows, when it was asked for `max_risk`."""
        return self.answer

    def _usage(self) -> str:
        if self.untrusted is None:
            trusted = "    trusted=[],  # the types that the error names, if there is one: those of trees, say\n"
        else:
            trusted = "".join(f"        {name!r},\n" for name in self.untrusted)
            trusted = f"    trusted=[\n{trusted}    ],\n" if trusted else ""
        return (
            "```python\nimport atypicality as aty\n\nmodel = aty.AtypicalityAwareClassifier.load(\n"
            f'    "path/to/the/folder",\n{trusted})\n'
            "answer = model.reliability(X)\n```"
        )

    def _coverage(self) -> str:
        level = self.model.coverage_guarantee_
        if self.model.cv in (None, "prefit"):
            return ""  # the head says it
        if level is None:
            return "One estimator was fitted again on all rows: no coverage is guaranteed for prediction sets."
        return (
            f"Prediction sets are cross-conformal (CV+) and hold the label with a chance of at least {level:.4g} for "
            "one new row drawn like those of fit. The head alone makes other sets."
        )
