"""P(correct) of generated answers by AnswerHead, beside each single signal calibrated by Platt scaling.

    python -m benchmarks.answers FOLDER [--out FILE]

FOLDER holds a file NAME.jsonl for each task, which `atypicality llm answers` wrote; "all" is their union. Ten random
halves measure NLL and AUROC; head and Platt scaling are fitted on the same half of the answers. For the accepted
answers, another 300 thresholds are chosen from rows drawn with replacement among those that fitted nothing, 30 for each
of ten fits: the law of these rows is known, so the risk of a threshold is exact.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from atypicality.head.abstention import AbstentionRule
from atypicality.llm import AnswerHead, Answers
from atypicality.llm.signals import SignalModel, signals_of
from atypicality.metrics import nll
from atypicality.metrics.signal import auroc
from benchmarks import results

SPLITS, DRAWS = 10, 30
RISKS = (0.1, 0.2)
RARITIES = ("prompt_log_likelihood", "prompt_atypicality", "answer_atypicality")
COLUMNS = (
    "task",
    "answers",
    "correct",
    "NLL, head",
    "NLL, best signal",
    "head less best",
    "AUROC, head",
    "AUROC, best signal",
    "best signal",
    "atypicality adds, nats",
    "95 %",
    *(f"{what} at {risk:g}" for risk in RISKS for what in ("accepted", "by the signal", "risk too high")),
)

Vector = NDArray[np.float64]
Signals = dict[str, Vector]


def tasks(folder: Path) -> Iterator[tuple[str, Answers]]:
    """Every file, and all of them together."""
    found = {path.stem: Answers.read(path) for path in sorted(folder.glob("*.jsonl"))}
    yield from found.items()
    if len(found) > 1:
        joined: dict[str, Any] = {
            name: [row for one in found.values() for row in getattr(one, name)]
            for name in ("log_probs", "correct", "prompt_embeddings", "answer_embeddings")
            if all(getattr(one, name) is not None for one in found.values())
        }
        names = set.intersection(*(set(one.scores) for one in found.values()))
        joined["scores"] = {name: np.concatenate([one.scores[name] for one in found.values()]) for name in names}
        texts = [[text for one in found.values() for text in getattr(one, name)] for name in ("prompts", "answers")]
        yield "all", Answers(*texts, **joined)


def signals_by_head(answers: Answers, chosen: NDArray[np.bool_], seed: int) -> tuple[Signals, Signals]:
    """All signals of the rows that fit and of the others, densities fitted on the former."""
    head = AnswerHead(random_state=seed)
    fitted = head._fit_densities(answers[chosen], None) | signals_of(answers[chosen])
    head.score_names_ = tuple(answers.scores)
    return fitted, head._signals(answers[~chosen])


def platt(fitted: Vector, correct: NDArray[np.bool_], other: Vector) -> Vector:
    """P(correct) of the others by a logistic regression on one signal."""
    center, scale = fitted.mean(), fitted.std() or 1.0
    model = LogisticRegression(C=np.inf).fit((fitted[:, None] - center) / scale, correct)
    return model.predict_proba((other[:, None] - center) / scale)[:, 1]


def split(answers: Answers, seed: int) -> tuple[dict[str, Vector], NDArray[np.bool_]]:
    """P(correct) of the rows that fitted nothing by every method, and their truth."""
    correct = np.asarray(answers.correct)
    chosen = np.random.default_rng(seed).permutation(len(answers)) < len(answers) // 2
    fitted, other = signals_by_head(answers, chosen, seed)
    n_other = int((~chosen).sum())
    bare = {name: values for name, values in fitted.items() if name not in RARITIES}
    found = {
        "head": expit(SignalModel.fit(fitted, correct[chosen]).log_odds(other, n_other)),
        "without atypicality": expit(SignalModel.fit(bare, correct[chosen]).log_odds(other, n_other)),
    }
    return found | {
        name: platt(values, correct[chosen], other[name])
        for name, values in fitted.items()
        if not np.isnan(values).any()
    }, correct[~chosen]


def two(confidence: Vector) -> Vector:
    return np.stack([1 - confidence, confidence], axis=1)


def accepted(
    confidence: Vector, correct: NDArray[np.bool_], rng: np.random.Generator
) -> dict[float, tuple[float, float]]:
    """Share accepted and risk, exact for the law of these rows, of a threshold from rows drawn among them."""
    rows = rng.integers(correct.size, size=correct.size)
    rule = AbstentionRule.from_rows(confidence[rows], correct[rows])
    found = {}
    for risk in RISKS:
        kept = confidence >= rule.threshold(risk)
        found[risk] = float(kept.mean()), float((~correct[kept]).mean()) if kept.any() else 0.0
    return found


def measured(name: str, answers: Answers) -> list[Any]:
    """One line of the table."""
    halves = [split(answers, seed) for seed in range(SPLITS)]
    methods = [method for method in halves[0][0] if all(method in found for found, _ in halves)]
    losses = {m: np.array([nll(two(found[m]), right.astype(int)) for found, right in halves]) for m in methods}
    ranks = {m: np.array([auroc(found[m], right) for found, right in halves]) for m in methods}
    single = [m for m in methods if m not in ("head", "without atypicality")]
    best, sharpest = min(single, key=lambda m: losses[m].mean()), max(single, key=lambda m: ranks[m].mean())
    gap = losses["head"] - losses[best]
    adds = losses["without atypicality"] - losses["head"]
    reach = 2.262 * adds.std(ddof=1) * (1 / SPLITS + 1) ** 0.5  # halves share rows: Nadeau and Bengio 2003
    line = [name, len(answers), round(float(np.mean(answers.correct)), 3)]
    line += [spread(losses["head"]), spread(losses[best]), spread(gap), spread(ranks["head"]), spread(ranks[sharpest])]
    line += [best, f"{adds.mean():.4f}", f"[{adds.mean() - reach:.4f}, {adds.mean() + reach:.4f}]"]
    drawn = {
        m: [
            accepted(found[m], right, np.random.default_rng((seed, draw)))
            for seed, (found, right) in enumerate(halves)
            for draw in range(DRAWS)
        ]
        for m in ("head", best)
    }
    for risk in RISKS:
        line += [f"{np.mean([one[risk][0] for one in drawn[m]]):.3f}" for m in ("head", best)]
        line.append(f"{np.mean([one[risk][1] > risk for one in drawn['head']]):.3f}")
    return line


def spread(values: Vector) -> str:
    return f"{values.mean():.3f} ± {values.std(ddof=1) / values.size**0.5:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=results.RESULTS / "answers.json")
    given = parser.parse_args()
    rows = []
    for name, answers in tasks(given.folder):
        rows.append(measured(name, answers))
        print(rows[-1], flush=True)
    results.write(given.out, results.document("P(correct) of answers of SmolLM2-135M-Instruct", COLUMNS, rows))


if __name__ == "__main__":
    main()
