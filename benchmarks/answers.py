"""P(correct) of generated answers by AnswerHead, beside each single signal calibrated by Platt scaling.

    python -m benchmarks.answers FOLDER [--samples]

FOLDER holds a file NAME.jsonl for each task, which `atypicality llm answers --samples 4 --verbalised --embeddings`
wrote; "all" is their union. Ten random halves measure NLL and AUROC; head and Platt scaling are fitted on the same half
of the answers. For the accepted answers, another 300 thresholds are chosen from rows drawn with replacement among those
that fitted nothing, 30 for each of ten fits: the law of these rows is known, so the risk of a threshold is exact. With
--samples another table shows what the agreement among samples and the verbalised score add to all other signals.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from atypicality.head.abstention import AbstentionRule
from atypicality.llm import AnswerHead, Answers
from atypicality.llm.answer_densities import fit_densities
from atypicality.llm.signals import SignalModel, signals_of
from atypicality.metrics import nll
from atypicality.metrics.signal import auroc
from benchmarks import results

SPLITS, DRAWS = 10, 30
RISKS = (0.1, 0.2)
TOLD = ("agreement", "verbalised")
RARITIES = ("prompt_log_likelihood", "prompt_atypicality", "answer_atypicality")
LEFT_OUT = {"head": (), "without atypicality": RARITIES, "without samples and score": TOLD}
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

TOLD_COLUMNS = (
    "task",
    "answers",
    "with samples",
    "with a score",
    "NLL",
    "NLL without both",
    "both add, nats",
    "95 %",
    "AUROC",
    "AUROC without both",
    *(f"AUROC, {name} alone" for name in TOLD),
    *(f"evidence of {name}, nats" for name in TOLD),
)

Vector = NDArray[np.float64]
Signals = dict[str, Vector]
Halves = list[tuple[dict[str, Vector], NDArray[np.bool_], dict[str, float]]]


def tasks(folder: Path) -> Iterator[tuple[str, Answers]]:
    """Every file, and all of them together."""
    paths = sorted(folder.glob("*.jsonl"))
    found = [Answers.read(path) for path in paths]
    yield from zip([path.stem for path in paths], found, strict=True)
    if len(found) > 1:
        with tempfile.TemporaryDirectory() as other:
            joined = Path(other, "all.jsonl")
            joined.write_bytes(b"".join(path.read_bytes() for path in paths))
            union = Answers.read(joined)
        for name in union.scores.keys() - set.intersection(*(set(one.scores) for one in found)):
            del union.scores[name]  # that it is missing would tell the task
        yield "all", union


def signals_by_head(answers: Answers, chosen: NDArray[np.bool_], seed: int) -> tuple[Signals, Signals]:
    """All signals of the rows that fit and of the others, densities fitted on the former."""
    head = AnswerHead(random_state=seed)
    (head.prompt_density_, head.answer_density_), fitted = fit_densities("auto", answers[chosen], None, seed)
    head.score_names_ = tuple(answers.scores)
    return fitted | signals_of(answers[chosen]), head._signals(answers[~chosen])


def platt(fitted: Vector, correct: NDArray[np.bool_], other: Vector) -> Vector:
    """P(correct) of the others by a logistic regression on one signal, its mean where it is missing."""
    fitted, other = (np.where(np.isnan(values), np.nanmean(fitted), values) for values in (fitted, other))
    center, scale = fitted.mean(), fitted.std() or 1.0
    model = LogisticRegression(C=np.inf).fit((fitted[:, None] - center) / scale, correct)
    return model.predict_proba((other[:, None] - center) / scale)[:, 1]


def split(answers: Answers, seed: int) -> tuple[dict[str, Vector], NDArray[np.bool_], dict[str, float]]:
    """P(correct) of the rows that fitted nothing by every method, their truth, and the evidence of every signal."""
    correct = np.asarray(answers.correct)
    chosen = np.random.default_rng(seed).permutation(len(answers)) < len(answers) // 2
    fitted, other = signals_by_head(answers, chosen, seed)
    fitted = {name: values for name, values in fitted.items() if not np.isnan(values).all()}
    models = {
        method: SignalModel.fit({name: fitted[name] for name in fitted if name not in left_out}, correct[chosen])
        for method, left_out in LEFT_OUT.items()
    }
    found = {method: expit(model.log_odds(other, int((~chosen).sum()))) for method, model in models.items()}
    found |= {name: platt(values, correct[chosen], other[name]) for name, values in fitted.items()}
    return found, correct[~chosen], models["head"].signal_evidence


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


def measured(name: str, answers: Answers, halves: Halves) -> list[Any]:
    """One line of the table."""
    losses, ranks = scores_of(halves)
    single = [m for m in losses if m not in LEFT_OUT]
    best, sharpest = min(single, key=lambda m: losses[m].mean()), max(single, key=lambda m: ranks[m].mean())
    gap = losses["head"] - losses[best]
    line = [name, len(answers), round(float(np.mean(answers.correct)), 3)]
    line += [spread(losses["head"]), spread(losses[best]), spread(gap), spread(ranks["head"]), spread(ranks[sharpest])]
    line += [best, *interval(losses["without atypicality"] - losses["head"])]
    drawn = {
        m: [
            accepted(found[m], right, np.random.default_rng((seed, draw)))
            for seed, (found, right, _) in enumerate(halves)
            for draw in range(DRAWS)
        ]
        for m in ("head", best)
    }
    for risk in RISKS:
        line += [f"{np.mean([one[risk][0] for one in drawn[m]]):.3f}" for m in ("head", best)]
        line.append(f"{np.mean([one[risk][1] > risk for one in drawn['head']]):.3f}")
    return line


def told(name: str, answers: Answers, halves: Halves) -> list[Any]:
    """One line of the table on samples and the verbalised score."""
    losses, ranks = scores_of(halves)
    bare = "without samples and score"
    known = [sum(one is not None for one in answers.samples), int(np.isfinite(answers.scores.get(TOLD[1], [])).sum())]
    line = [name, len(answers), *known, spread(losses["head"]), spread(losses[bare])]
    line += [*interval(losses[bare] - losses["head"]), spread(ranks["head"]), spread(ranks[bare])]
    line += [spread(ranks[one]) if one in ranks else "" for one in TOLD]
    worths = {one: [worth[one] for *_, worth in halves if one in worth] for one in TOLD}
    return line + [f"{np.mean(values):.1f}" if values else "" for values in worths.values()]


def scores_of(halves: Halves) -> tuple[Signals, Signals]:
    """NLL and AUROC on every half, by method."""
    methods = [method for method in halves[0][0] if all(method in found for found, *_ in halves)]
    losses = {m: np.array([nll(two(found[m]), right.astype(int)) for found, right, _ in halves]) for m in methods}
    return losses, {m: np.array([auroc(found[m], right) for found, right, _ in halves]) for m in methods}


def interval(adds: Vector) -> tuple[str, str]:
    """Mean and 95 % interval over halves that share rows (Nadeau and Bengio 2003)."""
    reach = 2.262 * adds.std(ddof=1) * (1 / SPLITS + 1) ** 0.5
    return f"{adds.mean():.4f}", f"[{adds.mean() - reach:.4f}, {adds.mean() + reach:.4f}]"


def spread(values: Vector) -> str:
    return f"{values.mean():.3f} ± {values.std(ddof=1) / values.size**0.5:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", action="store_true")
    parser.add_argument("--out", type=Path, default=results.RESULTS)
    given = parser.parse_args()
    name, title, columns, line = "answers", "P(correct) of answers of SmolLM2-135M-Instruct", COLUMNS, measured
    if given.samples:
        name, title, columns, line = f"{name}-samples", f"{title}: samples and verbalised score", TOLD_COLUMNS, told
    rows = []
    for task, answers in tasks(given.folder):
        rows.append(line(task, answers, [split(answers, seed) for seed in range(SPLITS)]))
        print(rows[-1], flush=True)
    results.write(given.out / f"{name}.json", results.document(title, columns, rows))


if __name__ == "__main__":
    main()
