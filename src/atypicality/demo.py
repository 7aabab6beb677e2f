"""The whole pipeline on bundled real outputs: how rare, better probabilities, prediction sets, and what to trust."""

import json
import warnings
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from atypicality.conformal import AtypicalityAwareConformal, SplitConformal
from atypicality.datasets import Splits, load_fashion_mnist_lt
from atypicality.density import GaussianAtypicality
from atypicality.evaluation import Evaluation, evaluate
from atypicality.groups import QUADRANTS, Quadrants
from atypicality.outputs import ModelOutputs as Outputs
from atypicality.recalibration import AtypicalityAwareRecalibration, TemperatureScaling
from atypicality.validation import check_alpha

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
    """One of the four kinds of prediction: how many, how sure, and how often right."""

    quadrant: str
    count: int
    confidence: float
    accuracy: float
    set_size: float


@dataclass(frozen=True)
class Demo:
    """What the demonstration measured.

    Attributes
    ----------
    sizes : dict
        Rows used for each purpose.
    class_counts : dict
        Training rows of each class among those that the density was fitted on.
    alpha : float
        Allowed miscoverage of the prediction sets.
    evaluation : Evaluation
        Of the model, of temperature scaling with split conformal sets, and of the atypicality-aware pair.
    quadrants : tuple of QuadrantRow
    examples : tuple of Example
        From each quadrant the test row nearest to its median.
    """

    sizes: dict[str, int]
    class_counts: dict[str, int]
    alpha: float
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

    Parameters
    ----------
    splits : Splits, optional
        Training, calibration and test outputs; by default those of a small network on long-tailed Fashion-MNIST.
    alpha : float, default=0.1
        Allowed miscoverage of the prediction sets.
    random_state : int, default=0
        Cuts the calibration rows into a half that recalibrates and a half that conformalises.

    Returns
    -------
    Demo

    Examples
    --------
    >>> [example.quadrant for example in run_demo().examples]
    ['reliable', 'extrapolation', 'ambiguous', 'untrustworthy']
    """
    check_alpha(alpha)
    train, calibration, test = load_fashion_mnist_lt() if splits is None else splits
    recalibration, conformal = calibration.split(0.5, random_state)
    head = _Head.fitted(train, recalibration, conformal, alpha, random_state)
    answers = head.answers(test)
    methods = {MODEL: "uncalibrated", SINGLE: (head.single, head.split), AWARE: (head.aware, head.sets)}
    return Demo(
        sizes={"density": len(train), "recalibration": len(recalibration), "sets": len(conformal), "test": len(test)},
        class_counts=_class_counts(train, test),
        alpha=alpha,
        evaluation=evaluate(methods, test, train=head.density, keep_samples=0),
        quadrants=tuple(_quadrant_row(answers, name) for name in QUADRANTS),
        examples=tuple(_example(answers, name) for name in QUADRANTS if (answers["quadrant"] == name).any()),
    )


@dataclass(frozen=True)
class _Head:
    """Everything that was fitted, and the held-out rows' atypicality, sorted."""

    density: GaussianAtypicality
    single: TemperatureScaling
    aware: AtypicalityAwareRecalibration
    split: SplitConformal
    sets: AtypicalityAwareConformal
    quadrants: Quadrants
    held_out: NDArray[np.float64]

    @classmethod
    def fitted(cls, train: Outputs, recalibration: Outputs, conformal: Outputs, alpha: float, state: int) -> Self:
        with warnings.catch_warnings():  # of units that never fire: nothing is lost without them
            warnings.filterwarnings("ignore", "the covariance has rank", UserWarning)
            density = GaussianAtypicality().fit(*train.need("embeddings", "labels"))
        logits, labels = recalibration.need("logits", "labels")
        single = TemperatureScaling().fit(logits, labels)
        aware = AtypicalityAwareRecalibration(random_state=state).fit(logits, labels, **_rarity(density, recalibration))
        logits, labels = conformal.need("logits", "labels")
        rarity = _rarity(density, conformal)
        probs, atypicality = aware.predict_proba(logits, **rarity), rarity["atypicality"]
        split = SplitConformal(alpha=alpha, random_state=state).fit(single.predict_proba(logits), labels)
        sets = AtypicalityAwareConformal(alpha=alpha, n_groups=(4, 2), random_state=state)
        sets.fit(probs, labels, atypicality=atypicality)
        quadrants = Quadrants().fit(probs.max(axis=1), atypicality)
        return cls(density, single, aware, split, sets, quadrants, np.sort(atypicality))

    def answers(self, test: Outputs) -> dict[str, NDArray[Any]]:
        """What is said of every test row, one array each, and the row's true class."""
        rarity = _rarity(self.density, test)
        atypicality = rarity["atypicality"]
        logits, labels = test.need("logits", "labels")
        probs = self.aware.predict_proba(logits, **rarity)
        confidence, names = probs.max(axis=1), _names(test)
        return {
            "names": names,
            "true_class": names[labels],
            "predicted_class": names[probs.argmax(axis=1)],
            "model_class": names[logits.argmax(axis=1)],
            "model_confidence": softmax(logits, axis=1).max(axis=1),
            "confidence": confidence,
            "atypicality_quantile": np.searchsorted(self.held_out, atypicality, side="right") / self.held_out.size,
            "quadrant": self.quadrants.assign(confidence, atypicality),
            "sets": self.sets.predict_set(probs, atypicality=atypicality),
        }


def _rarity(density: GaussianAtypicality, outputs: Outputs) -> dict[str, NDArray[np.float64]]:
    embeddings = outputs.need("embeddings")
    return {
        "atypicality": density.atypicality(embeddings),
        "class_log_density": density.class_log_density(embeddings),
    }


def _names(outputs: Outputs) -> NDArray[np.str_]:
    n_classes = outputs.need("logits").shape[1]
    return np.arange(n_classes).astype(str) if outputs.class_names is None else outputs.class_names.astype(str)


def _class_counts(train: Outputs, test: Outputs) -> dict[str, int]:
    names = _names(test)
    return dict(zip(names.tolist(), np.bincount(train.need("labels"), minlength=names.size).tolist(), strict=True))


def _quadrant_row(answers: dict[str, NDArray[Any]], quadrant: str) -> QuadrantRow:
    members = answers["quadrant"] == quadrant
    right = answers["predicted_class"][members] == answers["true_class"][members]
    means = (answers["confidence"][members].mean(), right.mean(), answers["sets"][members].sum(axis=1).mean())
    return QuadrantRow(quadrant, int(members.sum()), *map(float, means))


def _example(answers: dict[str, NDArray[Any]], quadrant: str) -> Example:
    """The row of a quadrant that is nearest to its median confidence and atypicality: none is picked by hand."""
    members = np.flatnonzero(answers["quadrant"] == quadrant)
    places = np.stack([answers["confidence"][members], answers["atypicality_quantile"][members]])
    row = int(members[np.abs(places - np.median(places, axis=1, keepdims=True)).sum(axis=0).argmin()])
    texts = {name: str(answers[name][row]) for name in ("true_class", "model_class", "predicted_class")}
    parts = ("model_confidence", "confidence", "atypicality_quantile")
    numbers = {name: float(answers[name][row]) for name in parts}
    members_of_set = tuple(answers["names"][answers["sets"][row]].tolist())
    return Example(quadrant=quadrant, row=row, prediction_set=members_of_set, **texts, **numbers)  # type: ignore[arg-type]
