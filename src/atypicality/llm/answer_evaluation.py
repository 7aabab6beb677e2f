"""What is told of answers: tables of a prediction, each signal alone, and a head against token probability."""

import copy
import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.evaluation import Evaluation, evaluate
from atypicality.evaluation.beside import with_part
from atypicality.evaluation.cuts import NO_ATYPICALITY, NO_CLASSES
from atypicality.head.reliability import Reliability
from atypicality.metrics.signal import auroc
from atypicality.outputs import ModelOutputs
from atypicality.validation import caught_warnings

__all__ = ["ANSWERS", "TOKEN_PROBABILITY", "AnswerReliability", "each_alone", "evaluate_answers"]

ANSWERS = {"of": "answers"}  # the setting by which a report knows an evaluation of answers
TOKEN_PROBABILITY = "token probability"
NOTES = {
    NO_ATYPICALITY: "no atypicality is known, so nothing is shown by it; fit with embeddings of the prompts, or with "
    "the score prompt_log_likelihood.",
    NO_CLASSES: None,
}
"""What an evaluation of answers says instead of notes that are for classifiers."""
MERGED = re.compile("confidence of .*: (values has ties: )?n_groups=")
"""Notes of groups of confidence that merged: P(correct) often has ties, and nobody has chosen these groups."""
COLUMNS = ("id", "confidence", "atypicality", "atypicality_quantile", "accepted", "advice")
TOLD = ("proba", "label", "atypicality", "accepted", "advice")

Vector = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class AnswerReliability(Reliability):
    """A `Reliability` whose table leaves out what says nothing of answers: label, quadrant, sets and choices.

    With `accepted` there is no column of advice: what to do then is in `accepted` alone.

    Attributes
    ----------
    lacking : tuple of str
        Fields that these answers lack far more often than the held-out ones.
    """

    lacking: tuple[str, ...] = ()

    def columns(self) -> dict[str, NDArray[Any]]:
        """One array (n,) per column: id, P(correct) as `confidence`, atypicality and quantile, accepted or advice."""
        found = super().columns()
        if "accepted" in found:
            found.pop("advice", None)
        return {name: found[name] for name in COLUMNS if name in found}

    def summary(self) -> dict[str, Any]:
        """Counts and means over all answers, without those of sets."""
        found = super().summary() | ({"lacking": list(self.lacking)} if self.lacking else {})
        dropped = ("mean_set_size", "quadrants", *(("advice",) if self.accepted is not None else ()))
        return {name: value for name, value in found.items() if name not in dropped}

    def _headline(self) -> str:
        """As of a classifier, in words for answers; of one answer alone, what to do and why."""
        found = self.summary()
        if not len(self):
            return "0 answers"
        if len(self) == 1:
            parts = [f"1 answer, P(correct) {found['mean_confidence']:.3f}"]
            if self.accepted is not None:
                return f"{parts[0]}, {'accepted' if self.accepted[0] else 'not accepted'}"
            return parts[0] + ("" if self.advice is None else f"; {self.advice[0]}: {self.reasons()[0]}")
        parts = [f"{len(self)} answers", f"mean P(correct) {found['mean_confidence']:.3f}"]
        if self.accepted is not None:
            parts.append(f"{found['accepted']:.1%} accepted")
        shares = {name: share for name, share in found.get("advice", {}).items() if share}
        return ", ".join(parts) + "".join(f"; {name} {share:.1%}" for name, share in shares.items())


def each_alone(signals: dict[str, Vector], correct: NDArray[np.bool_]) -> dict[str, float]:
    """AUROC of each signal on the rows that have it."""
    found = {
        name: auroc(values[there], correct[there])
        for name, values in signals.items()
        if (there := ~np.isnan(values)).any()
    }
    return {name: value for name, value in found.items() if not np.isnan(value)}


def evaluate_answers(head: Any, outputs: ModelOutputs, mean_log_prob: Vector, **options: Any) -> Evaluation:
    """Measure a head on its labelled `outputs`, beside token probability where that is known.

    `mean_log_prob` (n,) is NaN of answers without log-probabilities; `options` are those of `atypicality.evaluate`. The
    evaluation has no tables by class, and its `settings["of"]` is "answers".

    >>> from atypicality.llm import AnswerHead, Answers
    >>> rng = np.random.default_rng(0)
    >>> texts, score = ["..."] * 500, rng.random(500)
    >>> answers = Answers(texts, texts, scores={"judge": score}, correct=rng.random(500) < score)
    >>> head = AnswerHead().fit(answers)
    >>> mean = np.where(np.arange(500) < 200, np.log(score), np.nan)
    >>> found = evaluate_answers(head, head.outputs(answers)[:400], mean[:400])
    >>> {row["method"]: row["count"] for row in found.table("overall", metric="ece")}
    {'token probability': 200.0, 'head': 400.0}
    """
    outputs = outputs._replaced(attributes={})  # which say what is missing, for monitors
    rows, asked = np.flatnonzero(~np.isnan(mean_log_prob)), _asked(head)
    both = {TOKEN_PROBABILITY: _fixed(np.exp(mean_log_prob[rows])), "head": asked}
    if rows.size == len(outputs):
        return _of_answers(evaluate(both, outputs, **options))
    whole = evaluate({"head": asked}, outputs, **options)
    if not rows.size:
        return _of_answers(whole)
    with caught_warnings():  # of rows that were warned of just now
        part = evaluate(both, outputs[rows], **options)
    known = f"{rows.size:,} of {len(outputs):,} answers"
    note = f"{TOKEN_PROBABILITY} is measured on the {known} that have log-probabilities, the head on all."
    return _of_answers(with_part(whole, part, TOKEN_PROBABILITY, rows.tolist()), note)


def _asked(head: Any) -> Any:
    """The same head without its sets: of "wrong" and "correct" they say nothing beside P(correct)."""
    asked = copy.copy(head)

    def predict(outputs: ModelOutputs, **risk: Any) -> SimpleNamespace:
        said = head.predict(outputs, **risk)
        return SimpleNamespace(**{name: getattr(said, name) for name in TOLD})

    vars(asked)["predict"] = predict
    return asked


def _fixed(chance: Vector) -> Any:
    """A method of `evaluate` that gives each answer this chance of being correct."""
    said = SimpleNamespace(proba=np.stack([1 - chance, chance], axis=1), label=np.ones(chance.size, np.intp))
    return SimpleNamespace(predict=lambda outputs, **_: said)


def _of_answers(evaluation: Evaluation, *notes: str) -> Evaluation:
    """The evaluation without what is measured by class, and with notes for answers."""
    told = [NOTES.get(note, note) for note in (*evaluation.notes, *notes)]
    overall = [row for row in evaluation.table("overall") if row["metric"] != "classwise_ece"]
    tables = {"classes": dict.fromkeys(evaluation.tables["classes"], ())}
    tables["overall"] = {name: tuple(row[name] for row in overall) for name in evaluation.tables["overall"]}
    return replace(
        evaluation,
        settings=dict(evaluation.settings) | ANSWERS,
        notes=tuple(note for note in told if note and not MERGED.match(note)),
        tables=dict(evaluation.tables) | tables,
    )
