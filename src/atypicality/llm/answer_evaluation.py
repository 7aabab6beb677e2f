"""What is told of answers: tables of a prediction, each signal alone, and a head against token probability."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atypicality.evaluation import Evaluation, evaluate
from atypicality.evaluation.beside import with_part
from atypicality.evaluation.cuts import NO_ATYPICALITY, NO_CLASSES
from atypicality.evaluation.schema import Row, measured_rows, to_columns
from atypicality.head.reliability import Reliability
from atypicality.metrics.intervals import mean_interval
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
COLUMNS = ("id", "confidence", "atypicality", "atypicality_quantile", "accepted", "advice")
TOLD = ("proba", "label", "atypicality", "accepted", "advice")

Vector = NDArray[np.float64]


class AnswerReliability(Reliability):
    """A `Reliability` whose table leaves out what says nothing of answers: label, quadrant, sets and choices."""

    _tells_sets: ClassVar[bool] = False

    def columns(self) -> dict[str, NDArray[Any]]:
        """One array (n,) per column: id, P(correct) as `confidence`, atypicality and quantile, accepted, advice."""
        found = super().columns()
        return {name: found[name] for name in COLUMNS if name in found}


def each_alone(signals: dict[str, Vector], correct: NDArray[np.bool_]) -> dict[str, float]:
    """AUROC of each signal on the rows that have it."""
    found = {
        name: auroc(values[there], correct[there])
        for name, values in signals.items()
        if (there := ~np.isnan(values)).any()
    }
    return {name: value for name, value in found.items() if not np.isnan(value)}


def evaluate_answers(
    head: Any, outputs: ModelOutputs, mean_log_prob: Vector, alone: Mapping[str, Vector], **options: Any
) -> Evaluation:
    """Measure a head on its labelled `outputs`, beside token probability where that is known, and each signal alone.

    `mean_log_prob` (n,) is NaN of answers without log-probabilities, `alone` has log-odds (n,) by name of the signal
    that they are from, and `options` are those of `atypicality.evaluate`. The evaluation has no tables by class, and
    its `settings["of"]` is "answers".

    >>> from atypicality.llm import AnswerHead, Answers
    >>> rng = np.random.default_rng(0)
    >>> texts, score = ["..."] * 500, rng.random(500)
    >>> answers = Answers(texts, texts, scores={"judge": score}, correct=rng.random(500) < score)
    >>> head = AnswerHead().fit(answers)
    >>> mean = np.where(np.arange(500) < 200, np.log(score), np.nan)
    >>> found = evaluate_answers(head, head.outputs(answers)[:400], mean[:400], {})
    >>> {row["method"]: row["count"] for row in found.table("overall", metric="ece")}
    {'token probability': 200.0, 'head': 400.0}
    """
    rows, asked = np.flatnonzero(~np.isnan(mean_log_prob)), _asked(head)
    both, signals = {TOKEN_PROBABILITY: _fixed(np.exp(mean_log_prob[rows])), "head": asked}, _alone(alone, outputs)
    if rows.size == len(outputs):
        return _of_answers(evaluate(both, outputs, **options), signals)
    whole = evaluate({"head": asked}, outputs, **options)
    if not rows.size:
        return _of_answers(whole, signals)
    with caught_warnings():  # of rows that were warned of just now
        part = evaluate(both, outputs[rows], **options)
    known = f"{rows.size:,} of {len(outputs):,} answers"
    note = f"{TOKEN_PROBABILITY} is measured on the {known} that have log-probabilities, the head on all."
    return _of_answers(with_part(whole, part, TOKEN_PROBABILITY, rows.tolist()), signals, note)


def _alone(log_odds: Mapping[str, Vector], outputs: ModelOutputs) -> list[Row]:
    """Rows of the table `signals`: negative log-likelihood of each signal alone, the smallest first."""
    sign = 1 - 2 * np.asarray(outputs.need("labels"), np.float64)
    losses = {name: np.logaddexp(0.0, sign * odds) for name, odds in log_odds.items()}
    found = sorted(losses, key=lambda name: losses[name].mean())
    keys = ({"method": "head", "name": name, "metric": "nll"} for name in found)
    columns = [(losses[name].size, losses[name].mean(), *mean_interval(losses[name])) for name in found]
    return measured_rows(keys, zip(*columns, strict=True)) if found else []


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


def _of_answers(evaluation: Evaluation, signals: list[Row], *notes: str) -> Evaluation:
    """The evaluation without what is measured by class, with each signal alone and notes for answers."""
    told = [NOTES.get(note, note) for note in (*evaluation.notes, *notes)]
    overall = [row for row in evaluation.table("overall") if row["metric"] != "classwise_ece"]
    tables = {"classes": dict.fromkeys(evaluation.tables["classes"], ()), "signals": to_columns("signals", signals)}
    tables["overall"] = {name: tuple(row[name] for row in overall) for name in evaluation.tables["overall"]}
    return replace(
        evaluation,
        settings=dict(evaluation.settings) | ANSWERS,
        notes=tuple(note for note in told if note),
        tables=dict(evaluation.tables) | tables,
    )
