"""What is told of answers: tables of a prediction, each signal alone, and a head against token probability."""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.evaluation import Evaluation, evaluate
from atypicality.evaluation.beside import with_part
from atypicality.evaluation.cuts import NO_ATYPICALITY, NO_CLASSES
from atypicality.evaluation.schema import Row, measured_rows, to_columns
from atypicality.head.reliability import Reliability
from atypicality.llm.answers import Answers
from atypicality.llm.signals import signals_of
from atypicality.metrics.intervals import mean_interval
from atypicality.metrics.signal import auroc
from atypicality.outputs import ModelOutputs
from atypicality.terminal import listed
from atypicality.validation import caught_warnings, warn

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
    outside : tuple of str
        Scores outside their fitted range in more answers than chance explains, or far outside in one.
    moved : tuple of str
        Signals that are larger or smaller than in the held-out answers.
    """

    lacking: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()

    def columns(self) -> dict[str, NDArray[Any]]:
        """One array (n,) per column: id, P(correct) as `confidence`, atypicality and quantile, accepted or advice."""
        found = super().columns()
        if "accepted" in found:
            found.pop("advice", None)
        return {name: found[name] for name in COLUMNS if name in found}

    def summary(self) -> dict[str, Any]:
        """Counts and means over all answers, without those of sets."""
        changed = {name: list(getattr(self, name)) for name in ("lacking", "outside", "moved")}
        found = super().summary() | {name: fields for name, fields in changed.items() if fields}
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


def evaluate_answers(heads: Mapping[str, Any], answers: Answers, correct: ArrayLike, **options: Any) -> Evaluation:
    """Measure heads on the same answers, beside token probability where that is known.

    `correct` (n,) says which answers are; `options` are those of `atypicality.evaluate`. Rows are cut by the
    atypicality of the first head that has one, and by the `attributes` of the answers. The evaluation has no tables by
    class, and its `settings["of"]` is "answers".

    >>> from atypicality.llm import AnswerHead
    >>> rng = np.random.default_rng(0)
    >>> texts, score = ["..."] * 800, rng.random(800)
    >>> tokens = [[value] if row % 2 else [] for row, value in enumerate(np.log(score))]
    >>> answers = Answers(texts, texts, scores={"judge": score}, log_probs=tokens, correct=rng.random(800) < score)
    >>> heads = {f"seed {seed}": AnswerHead(random_state=seed).fit(answers[400:]) for seed in (0, 1)}
    >>> found = evaluate_answers(heads, answers[:400], answers.correct[:400])
    >>> {row["method"]: row["count"] for row in found.table("overall", metric="ece")}
    {'token probability': 200.0, 'seed 0': 400.0, 'seed 1': 400.0}
    """
    made = {name: head.outputs(answers, correct) for name, head in heads.items()}
    own = {name: outputs._replaced(attributes=answers.attributes) for name, outputs in made.items()}
    cut_by = next((name for name, outputs in own.items() if outputs.atypicality is not None), next(iter(own)))
    mean = signals_of(answers).get("log_prob_mean", np.full(len(answers), np.nan))
    rows = np.flatnonzero(~np.isnan(mean))

    def measured(methods: dict[str, Any], chosen: Any) -> Evaluation:
        asked = {name: _asked(head, made[name][chosen], own[cut_by][chosen]) for name, head in heads.items()}
        return evaluate(methods | asked, own[cut_by][chosen], **options)

    _warn_of_seen(heads, answers)
    losses = {name: _losses_alone(head, answers, own[cut_by].need("labels")) for name, head in heads.items()}
    notes, signals = [*_notes_of_scales(own, cut_by), *_notes_of_best(losses, made)], _alone(losses)
    notes += _notes_of_kinds(heads) if options.get("max_risk") is not None else []
    token = {TOKEN_PROBABILITY: _fixed(np.exp(mean[rows]))}
    if rows.size == len(answers):
        return _of_answers(measured(token, slice(None)), signals, *notes)
    whole = measured({}, slice(None))
    if not rows.size:
        return _of_answers(whole, signals, *notes)
    with caught_warnings():  # of rows that were warned of just now
        part = measured(token, rows)
    known = f"{rows.size:,} of {len(answers):,} answers"
    notes += [f"{TOKEN_PROBABILITY} is measured on the {known} that have log-probabilities, {listed(heads)} on all."]
    return _of_answers(with_part(whole, part, TOKEN_PROBABILITY, rows.tolist()), signals, *notes)


def _warn_of_seen(heads: Mapping[str, Any], answers: Answers) -> None:
    for name, head in heads.items():
        if head.seen_ is not None and (share := head.seen_.share(answers)):
            warn(
                f"{share:.1%} of these answers are among those that {name!r} was fitted on: it will look better than "
                "it is. Evaluate on answers that it has not seen."
            )


def _losses_alone(head: Any, answers: Answers, labels: Any) -> dict[str, Vector]:
    """Negative log-likelihood (n,) of each signal alone, the one with the smallest mean first."""
    sign = 1 - 2 * np.asarray(labels, np.float64)
    with caught_warnings():  # `outputs` has given them
        signals = head._signals(answers)
        odds = {name: model.log_odds(signals, len(answers)) for name, model in head.alone_.items()}
    losses = {name: np.logaddexp(0.0, sign * value) for name, value in odds.items()}
    return dict(sorted(losses.items(), key=lambda item: item[1].mean()))


def _alone(losses: Mapping[str, Mapping[str, Vector]]) -> list[Row]:
    """Rows of the table `signals`: negative log-likelihood of each signal alone, by head."""
    found = [(method, name, loss) for method, some in losses.items() for name, loss in some.items()]
    keys = ({"method": method, "name": name, "metric": "nll"} for method, name, _ in found)
    columns = [(loss.size, loss.mean(), *mean_interval(loss)) for *_, loss in found]
    return measured_rows(keys, zip(*columns, strict=True)) if found else []


def _notes_of_best(losses: Mapping[str, Mapping[str, Vector]], made: Mapping[str, ModelOutputs]) -> Iterator[str]:
    """What to say of heads that are behind one of their signals alone."""
    for method, some in losses.items():
        odds, labels = (np.asarray(part, np.float64) for part in made[method].need("logits", "labels"))
        whole = np.logaddexp(0.0, (1 - 2 * labels) * (odds @ [-1.0, 1.0]))
        name, least = next(iter(some.items()), ("", whole))
        if (less := whole - least).mean() > 0:
            _, low, high = mean_interval(less)
            clear = "fit again with more checked answers like these" if low > 0 else "which may be chance"
            yield (
                f"{name} alone has a smaller NLL than {method}, by {less.mean():.3f} (95 % interval {low:.3f} to "
                f"{high:.3f}): {clear}."
            )


def _notes_of_kinds(heads: Mapping[str, Any]) -> Iterator[str]:
    """What to say of heads whose guarantee is from fewer rows than were held out."""
    for name, head in heads.items():
        known, n = int(head.abstention_.kept[-1]), head.reference_.n_rows
        if known < n:
            yield (
                f"{n - known:,} of the {n:,} held-out answers of {name} are of kinds that it never accepts, such as "
                f"without any signal that it uses: the guarantee is from the other {known:,}."
            )


def _asked(head: Any, own: ModelOutputs, outputs: ModelOutputs) -> Any:
    """The same head with what it makes of the answers (`own`) in the place of the `outputs` that all are given.

    It has no sets: of "wrong" and "correct" they say nothing beside P(correct). Edges of another atypicality than that
    of the outputs are left out.
    """
    asked = copy.copy(head)

    def predict(_: ModelOutputs, **risk: Any) -> SimpleNamespace:
        said = head.predict(own, **risk)
        return SimpleNamespace(**{name: getattr(said, name) for name in TOLD})

    seen = head.seen_ is None and own.fingerprint() == head.fingerprint_  # of others `_warn_of_seen` has told
    vars(asked).update(predict=predict, fingerprint_=outputs.fingerprint() if seen else None)
    if not _same_scale(own, outputs):
        vars(asked).update(quantiles_=None, quadrants_=None)
    return asked


def _same_scale(one: ModelOutputs, other: ModelOutputs) -> bool:
    if one.atypicality is None or other.atypicality is None:
        return one.atypicality is other.atypicality
    return np.array_equal(one.atypicality, other.atypicality)


def _notes_of_scales(own: Mapping[str, ModelOutputs], cut_by: str) -> list[str]:
    return [
        f"groups of atypicality are those of {cut_by}; {name} has another atypicality, or none, and no say in them."
        for name, outputs in own.items()
        if not _same_scale(outputs, own[cut_by])
    ]


def _fixed(chance: Vector) -> Any:
    """A method of `evaluate` that gives each answer this chance of being correct."""
    said = SimpleNamespace(proba=np.stack([1 - chance, chance], axis=1), label=np.ones(chance.size, np.intp))
    return SimpleNamespace(predict=lambda outputs, **_: said)


def _of_answers(evaluation: Evaluation, signals: list[Row], *notes: str) -> Evaluation:
    """The evaluation without what is measured by class, with each signal alone and notes for answers."""
    told = [NOTES.get(note, note) for note in (*evaluation.notes, *notes)]
    overall = [row for row in evaluation.table("overall") if row["metric"] != "classwise_ece"]
    by_class = {name: dict.fromkeys(evaluation.tables[name], ()) for name in ("classes", "predicted_classes")}
    changes = [row for row in evaluation.table("changes") if row["axis"] != "class"]
    tables = by_class | {"signals": to_columns("signals", signals), "changes": to_columns("changes", changes)}
    tables["overall"] = {name: tuple(row[name] for row in overall) for name in evaluation.tables["overall"]}
    return replace(
        evaluation,
        settings=dict(evaluation.settings) | ANSWERS,
        notes=tuple(note for note in told if note and not MERGED.match(note)),
        tables=dict(evaluation.tables) | tables,
    )
