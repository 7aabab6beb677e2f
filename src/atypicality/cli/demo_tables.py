"""The whole pipeline on bundled real outputs: how rare, better probabilities, prediction sets, and what to trust."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import softmax

from atypicality.conformal import SplitConformal
from atypicality.datasets import Splits, load_fashion_mnist_lt
from atypicality.evaluation import Evaluation, evaluate
from atypicality.groups import QUADRANTS
from atypicality.head import ReliabilityHead
from atypicality.head.reliability import Reliability
from atypicality.outputs import ModelOutputs
from atypicality.recalibration import TemperatureScaling
from atypicality.validation import caught_warnings

__all__ = ["AWARE", "MODEL", "SINGLE", "Demo", "Example", "QuadrantRow", "run_demo"]

MODEL, SINGLE, AWARE = "model", "temperature scaling", "atypicality-aware"


@dataclass(frozen=True)
class Example:
    """One prediction as a user of the model would see it."""

    quadrant: str
    row: int
    true_class: str
    model_class: str
    model_confidence: float
    predicted_class: str
    confidence: float
    atypicality_quantile: float
    prediction_set: tuple[str, ...]


@dataclass(frozen=True)
class QuadrantRow:
    """One of the four kinds of prediction: how many, how confident, and how often right."""

    quadrant: str
    count: int
    confidence: float
    accuracy: float
    set_size: float


@dataclass(frozen=True)
class Demo:
    """What the demonstration measured.

    `sizes` are rows for each purpose, `class_counts` training rows of each class; the evaluation is of the model, of
    temperature scaling with split conformal sets, and of the head; the examples are the test rows nearest to the
    median of each quadrant.
    """

    sizes: dict[str, int]
    class_counts: dict[str, int]
    alpha: float
    head: ReliabilityHead
    evaluation: Evaluation
    quadrants: tuple[QuadrantRow, ...]
    examples: tuple[Example, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, texts, lists and dictionaries."""
        plain = {name: getattr(self, name) for name in ("sizes", "class_counts", "alpha")}
        tables = {name: [asdict(row) for row in getattr(self, name)] for name in ("quadrants", "examples")}
        return plain | tables | {"evaluation": json.loads(self.evaluation.to_json())}


def run_demo(splits: Splits | None = None, *, alpha: float = 0.1, random_state: int = 0) -> Demo:
    """Run everything once: density, recalibration, prediction sets, quadrants.

    The splits are by default those of a small network on long-tailed Fashion-MNIST.

    >>> few = tuple(part[:1000] for part in load_fashion_mnist_lt())
    >>> [example.quadrant for example in run_demo(few).examples]
    ['reliable', 'extrapolation', 'ambiguous', 'untrustworthy']
    """
    train, calibration, test = load_fashion_mnist_lt() if splits is None else splits
    head = ReliabilityHead(alpha=alpha, random_state=random_state).fit(train=train, calibration=calibration)
    plain = ReliabilityHead(
        recalibration=TemperatureScaling(),
        prediction_sets=SplitConformal(alpha=alpha, random_state=random_state),
        random_state=random_state,
    )
    with caught_warnings():  # that its advice does not hold is what the tables show
        plain.fit(train=head.density_, calibration=calibration)
    answer = head.predict(test)
    methods = {MODEL: "uncalibrated", SINGLE: plain, AWARE: head}
    counts = np.bincount(train.need("labels"), minlength=head.n_classes_)
    return Demo(
        sizes=head.sizes_ | {"test": len(test)},
        class_counts=dict(zip(answer.names().tolist(), counts.tolist(), strict=True)),
        alpha=alpha,
        head=head,
        evaluation=evaluate(methods, test),
        quadrants=tuple(_quadrant_row(answer, test, name) for name in QUADRANTS),
        examples=tuple(_example(answer, test, name) for name, share in answer.quadrant_shares().items() if share),
    )


def _quadrant_row(answer: Reliability, test: ModelOutputs, quadrant: str) -> QuadrantRow:
    members = np.asarray(answer.quadrant) == quadrant
    right = answer.label[members] == test.need("labels")[members]
    means = (answer.confidence[members].mean(), right.mean(), answer.prediction_set[members].sum(axis=1).mean())
    return QuadrantRow(quadrant, int(members.sum()), *map(float, means))


def _example(answer: Reliability, test: ModelOutputs, quadrant: str) -> Example:
    """The row of a quadrant that is nearest to its median confidence and atypicality: none is picked by hand."""
    members, quantile = np.flatnonzero(answer.quadrant == quadrant), np.asarray(answer.atypicality_quantile)
    places = np.stack([answer.confidence[members], quantile[members]])
    row = int(members[np.abs(places - np.median(places, axis=1, keepdims=True)).sum(axis=0).argmin()])
    names, model = answer.names(), softmax(test.need("logits")[row].astype(np.float64))
    return Example(
        quadrant=quadrant,
        row=row,
        true_class=str(names[test.need("labels")[row]]),
        model_class=str(names[model.argmax()]),
        model_confidence=float(model.max()),
        predicted_class=str(names[answer.label[row]]),
        confidence=float(answer.confidence[row]),
        atypicality_quantile=float(quantile[row]),
        prediction_set=tuple(names[answer.prediction_set[row]].tolist()),
    )
