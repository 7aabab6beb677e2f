"""The paper's experiment on generated answers: accuracy and calibration by prompt atypicality, before and after.

A task is a file of JSON Lines: answers that `atypicality llm answers` wrote, with `correct`; or judgements in the
layout of JudgeBench (`question`, `label` "A>B" or "B>A", and `judgments`, one or two objects with a `decision`, the
second with the candidates exchanged).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from atypicality.blocks.progress import track
from atypicality.groups import QuantileGroups
from atypicality.llm import AnswerHead, Answers, judgements
from atypicality.llm.judges import MARGIN
from atypicality.llm.signals import signals_of
from atypicality.llm.texts import read_objects
from atypicality.metrics import ece, nll
from atypicality.outputs.paths import check_source
from atypicality.paper.claims import Statement, Verdict, verdict_on
from atypicality.paper.readings import ALL, Values
from atypicality.paper.runner import Reproduction
from atypicality.paper.settings import SEEDS
from atypicality.paper.tables import Table, make_tables
from atypicality.terminal import printable
from atypicality.validation import check_integer

__all__ = ["read_judgebench", "read_task", "reproduce_answers"]

NAME, LIKELIHOOD = "answers", "prompt_log_likelihood"
N_GROUPS = 4
FEWEST = 100  # answers of a task: half of them fit, and half of those carry thresholds
DECISIONS = {"A>B": 1.0, "B>A": 0.0, "A=B": 0.5}
BEFORE, AFTER = "model's own", "head"
ATYPICALITY_LOWERS = "atypicality lowers"
LEFT_OUT = {
    ATYPICALITY_LOWERS: (LIKELIHOOD, "prompt_embeddings", "answer_embeddings"),
    "samples and a verbalised score lower": ("samples", "verbalised"),
}
"""Signals that are left out together to see what they add to the others."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Half:
    """What one random half gave: a value for every metric, group and method, and nats that `LEFT_OUT` add."""

    values: Values
    adds: dict[str, float]
    n_rows: int


def reproduce_answers(outputs: Path, *, seeds: Iterable[int] = SEEDS) -> Reproduction:
    """Accuracy of answers and ECE of P(correct) by quarter of prompt atypicality, and verdicts, for every task.

    `outputs` is a file of JSON Lines or a folder of them (see the module); one random half fits `AnswerHead`, the other
    is measured. The verdicts are on four statements for each task, and a fifth where it has samples or a verbalised
    score.
    """
    wanted = [check_integer(seed, "seeds", low=0) for seed in seeds]
    files = sorted(Path(outputs).glob("*.jsonl")) if Path(outputs).is_dir() else [Path(outputs)]
    if not files or not wanted:
        raise ValueError(f"outputs must be a .jsonl file or a folder of them, and seeds at least one; got {outputs!s}.")
    found = Reproduction({NAME: []}, {NAME: []}, {NAME: []}, {NAME: []})
    for file in track(files, "Reproducing"):
        task = read_task(file)
        halves = [_half(task, seed) for seed in wanted]
        rarity = AnswerHead().fit(task).atypicality_ if LIKELIHOOD not in task.scores else LIKELIHOOD
        found.tables[NAME] += _tables(file.stem, rarity or "", halves)
        found.verdicts[NAME] += _verdicts(f"{file.stem}, {rarity or 'no atypicality'}", halves)
    return found


def read_task(path: Path) -> Answers:
    """Answers with `correct` from a file of either layout."""
    with open(check_source(path), encoding="utf-8-sig") as file:
        judged = '"judgments"' in file.readline()
    task = read_judgebench(path) if judged else Answers.read(path)
    if task.correct is None:
        raise ValueError(f"{path.name!r} must say which answers are correct. Ask questions with 'expected' answers.")
    if len(task) < FEWEST:
        raise ValueError(f"{path.name!r} must have at least {FEWEST} answers; it has {len(task)}.")
    return task


def read_judgebench(path: Path) -> Answers:
    """Judgements of pairs in the layout of JudgeBench; a decision that is missing counts as not asked."""
    records = read_objects(path, _pair)
    known = [record for record in records if not np.isnan(record[1:3]).all()]
    if not known:
        raise ValueError(f"{path.name!r} must have at least one judgement with a decision; it has none.")
    questions, forward, backward, better = zip(*known, strict=True)
    return judgements(questions, forward, backward, better=better)


def _pair(record: Mapping[str, Any]) -> tuple[str, float, float, bool]:
    try:
        judged = [*record["judgments"], None, None][:2]
        said = [DECISIONS.get(str((one or {}).get("decision")), np.nan) for one in judged]
        return str(record["question"]), said[0], said[1], DECISIONS[record["label"]] == 1.0
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not JudgeBench's layout ({printable(error)})") from None


def _half(task: Answers, seed: int) -> Half:
    """Fit on a random half, measure on the other."""
    chosen = np.random.default_rng(seed).permutation(len(task)) < len(task) // 2
    fitted, rest = task[chosen], task[~chosen]
    head = AnswerHead(atypicality=LIKELIHOOD if LIKELIHOOD in task.scores else "auto", random_state=seed).fit(fitted)
    outputs, correct = head.outputs(rest), np.asarray(rest.correct)
    own = _own(rest)
    methods = ({} if own is None else {BEFORE: own}) | {AFTER: expit(outputs.need("logits")[:, 1])}
    groups = {ALL: np.ones(len(rest), bool)}
    if outputs.atypicality is not None:
        place = QuantileGroups(N_GROUPS).fit(head.outputs(fitted).need("atypicality")).assign(outputs.atypicality)
        groups = {f"{(g + 1) / N_GROUPS:g}": place == g for g in range(N_GROUPS)} | groups
    values: Values = {
        (metric, (group,), method): value
        for group, rows in groups.items()
        for method, confidence in methods.items()
        for metric, value in _measured(confidence[rows], correct[rows]).items()
    }
    there = {*task.scores, *(name for name, part in vars(task).items() if part is not None)}
    adds = {}
    for what, names in LEFT_OUT.items():
        if there & {*names} and signals_of(_without(task, names)):
            fresh = AnswerHead(atypicality=None, random_state=seed).fit(_without(fitted, names))
            adds[what] = _loss(fresh, _without(rest, names)) - _loss(head, rest)
    return Half(values, adds, len(rest))


def _loss(head: AnswerHead, answers: Answers) -> float:
    chance = expit(head.outputs(answers).need("logits")[:, 1])
    return float(nll(np.stack([1 - chance, chance], axis=1), np.asarray(answers.correct, np.intp)))


def _own(answers: Answers) -> Vector | None:
    """The model's own confidence: the mean probability of a token, or a judge's margin."""
    signals = signals_of(answers)
    if "log_prob_mean" in signals:
        return np.exp(np.nan_to_num(signals["log_prob_mean"], nan=-np.inf))
    return expit(signals[MARGIN]) if MARGIN in signals else None


def _without(answers: Answers, names: Iterable[str]) -> Answers:
    """The answers without some scores, samples or embeddings."""
    found = answers[:]
    for name in names:
        found.scores.pop(name, None)
        if hasattr(found, name):
            setattr(found, name, None)
    return found


def _measured(confidence: Vector, correct: NDArray[np.bool_]) -> dict[str, float]:
    if not correct.size:
        return {"ece": np.nan, "accuracy": np.nan}
    return {"ece": float(ece(confidence=confidence, correct=correct)), "accuracy": float(correct.mean())}


def _tables(task: str, rarity: str, halves: Sequence[Half]) -> list[Table]:
    names = {"experiment": NAME, "atypicality": rarity, "model": "language model", "dataset": task}
    return make_tables(names | {"title": f"{task}, {rarity}"}, [half.values for half in halves], {})


def _verdicts(where: str, halves: Sequence[Half]) -> list[Verdict]:
    seeds = [_statistics(half) for half in halves]
    values = {statement: np.array([seed[statement] for seed in seeds]) for statement in seeds[0]}
    found = [
        verdict_on(statement, one, where, spread="halves", n_rows=halves[0].n_rows) for statement, one in values.items()
    ]
    lacking = "prompt likelihoods or embeddings, and a confidence of the model's own"
    return [
        replace(
            verdict,
            missing=lacking if np.isnan(verdict.value) else "",
            aside="" if "atypical" in verdict.statement else "not about atypicality",
        )
        for verdict in found
    ]


def _statistics(half: Half) -> Mapping[Statement, float]:
    """Of four statements or five, each above 0 where it holds."""

    def value(group: str, method: str, metric: str) -> float:
        return half.values.get((metric, (group,), method), np.nan)

    first, last = f"{1 / N_GROUPS:g}", "1"
    falls, rises = "accuracy, first less last quarter", "ECE, last less first quarter"
    return {
        Statement(1, "accuracy falls with prompt atypicality", falls): (
            value(first, AFTER, "accuracy") - value(last, AFTER, "accuracy")
        ),
        Statement(1, "the ECE of the model's own confidence rises with prompt atypicality", rises): (
            value(last, BEFORE, "ece") - value(first, BEFORE, "ece")
        ),
        Statement(6, "the head lowers the ECE of the most atypical quarter", "ECE, before less after"): (
            value(last, BEFORE, "ece") - value(last, AFTER, "ece")
        ),
    } | {
        Statement(6, f"{what} the NLL of P(correct) beyond all other signals", "NLL, without less with"): (
            half.adds.get(what, np.nan)
        )
        for what in dict.fromkeys([ATYPICALITY_LOWERS, *half.adds])
    }
