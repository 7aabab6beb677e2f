"""Rows that an answer head is fitted on: copies among them, marks to know them by, and what is doubtful in them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from atypicality.llm.answers import Answers
from atypicality.llm.shifts import fisher_chance
from atypicality.llm.signals import AGREEMENT, FEWEST
from atypicality.metrics.signal import auroc
from atypicality.outputs.marks import Marks, are_known, marks_of
from atypicality.stored import Record, kinds, need
from atypicality.terminal import listed
from atypicality.validation import warn

__all__ = ["SeenRows", "warn_of_labels", "warn_of_scales", "warn_of_unused", "without_copies"]

MOST_MARKS = 4096
PROMPT_SHARE = 0.1  # different prompts, at least ten, of the different rows from which on prompts tell answers apart
CHANCE = 1e-3  # of as many equal rows by themselves, below which rows were seen
GIVEN_AWAY = 0.99  # AUROC at which a signal may be the label itself
CLEAR = 4.0  # standard errors of an AUROC, by chance as seldom as one in 30,000
MIXED = 0.1  # of the values, that are on each of two scales from which on a score is said to have two
NATURAL = ("log_prob_mean", AGREEMENT)  # signals of which larger values are those of correct answers

Vector = NDArray[np.float64]


def row_marks(answers: Answers) -> Marks:
    """A hash (n,) of each answer's texts and signals, without its id and correctness.

    >>> answers = Answers(["2 + 2 ="] * 3, ["4", "4", "5"], scores={"judge": [0.9, 0.9, np.nan]}, ids=[1, 2, 3])
    >>> row_marks(answers)[1:] == row_marks(answers)[:-1]
    array([ True, False])
    """
    return marks_of(_contents(answers))


def _contents(answers: Answers) -> Iterator[bytes]:
    columns = (answers.prompts, answers.answers, answers.samples)
    embeddings = (answers.prompt_embeddings, answers.answer_embeddings)
    for row in range(len(answers)):
        texts: list[Any] = [None if column is None else column[row] for column in columns]
        numbers = [None if answers.log_probs is None else answers.log_probs[row]]
        numbers += [None if part is None or np.isnan(part[row, 0]) else part[row] for part in embeddings]
        texts += [None if value is None else np.asarray(value, np.float64).tobytes() for value in numbers]
        scores = sorted((name, float(values[row])) for name, values in answers.scores.items())
        texts.append([(name, value) for name, value in scores if not np.isnan(value)])
        yield repr(texts).encode()


def without_copies(answers: Answers, correct: NDArray[np.bool_]) -> tuple[Answers, NDArray[np.bool_]]:
    """Each answer once, where prompts tell answers apart, with a warning of how many are copies.

    A copy has the same texts, signals and correctness. Rows without texts, or with the same prompt throughout, may have
    equal scores by themselves, and are all kept.
    """
    marks = row_marks(answers) ^ correct.astype(np.uint64)
    first = np.sort(np.unique(marks, return_index=True)[1])
    copies = marks.size - first.size
    if not copies or len({text for text in answers.prompts if text}) < max(FEWEST, PROMPT_SHARE * first.size):
        return answers, correct
    warn(
        f"{copies:,} of {marks.size:,} answers are copies of others, the same in texts, signals and 'correct': each "
        "counts once. Copies are no further evidence, and max_risk would not be guaranteed with them."
    )
    return answers[first], correct[first]


@dataclass(frozen=True)
class SeenRows:
    """Marks of fitted rows, by which the share of other rows that were among them is found; texts cannot be read back.

    Examples
    --------
    >>> answers = Answers([f"{row} + 2 =" for row in range(80)], ["4"] * 80)
    >>> seen = SeenRows.of(answers[:40])
    >>> seen.share(answers[:40]), seen.share(answers[20:]), seen.share(answers[40:])
    (1.0, 0.33..., 0.0)
    """

    marks: Annotated[Marks, kinds.Array("*", kinds.INCREASING, dtypes=("uint64",))]  # all, or the 4,096 smallest
    n_rows: Annotated[int, kinds.Integer(1)]  # fitted rows that have one of these marks
    n_repeated: Annotated[int, kinds.Integer()]
    """Those of them that share it with another: what is found in other rows too, where few values are possible."""

    def _check_stored(self) -> None:
        need(1 <= self.marks.size <= MOST_MARKS, f"there must be 1 to {MOST_MARKS} marks.")
        need(self.n_repeated <= self.n_rows, "repeated rows must be among the rows.")

    _stored = Record(check=_check_stored)

    @classmethod
    def of(cls, answers: Answers) -> Self:
        """Marks of these rows, at least one."""
        marks, counts = np.unique(row_marks(answers), return_counts=True)
        marks, counts = marks[:MOST_MARKS], counts[:MOST_MARKS]
        return cls(marks, int(counts.sum()), int(counts[counts > 1].sum()))

    def share(self, answers: Answers) -> float:
        """Share of the answers that are among the fitted ones; 0 where that may be chance."""
        marks = row_marks(answers)
        marks = marks[marks <= self.marks[-1]] if self.marks.size == MOST_MARKS else marks
        seen, n = int(are_known(marks, self.marks).sum()), int(marks.size)
        if not seen or fisher_chance(seen, n, self.n_repeated, self.n_rows) >= CHANCE:
            return 0.0
        return seen / n


def warn_of_unused(signals: Mapping[str, Vector], used: Mapping[str, Any]) -> None:
    """Warn of signals that no column could be made of: those that do not vary, or are known of too few rows."""
    left = {name: values[~np.isnan(values)] for name, values in signals.items() if name not in used}
    few = [name for name, values in left.items() if values.size < FEWEST]
    constant = [name for name in left if name not in few]
    if few:
        warn(f"signals known of fewer than {FEWEST} of the answers that fit P(correct) are left out: {listed(few)}.")
    if constant:
        told = [f"{name} ({np.median(left[name]):.4g})" for name in constant]
        hint = "" if AGREEMENT not in constant else (
            " Samples are compared as texts, which hardly agree where answers are free texts: give a similarity of "
            "yours as a score."
        )  # fmt: skip
        warn(f"signals that are the same in all or nearly all rows are left out: {listed(told)}.{hint}")


def warn_of_labels(signals: Mapping[str, Vector], correct: NDArray[np.bool_]) -> None:
    """Warn where a signal may be the label itself, or speaks against it although it should not."""
    for name, values in signals.items():
        known = ~np.isnan(values)
        right = int(correct[known].sum())
        wrong = int(known.sum()) - right
        if min(right, wrong) < FEWEST:
            continue
        rank = auroc(values[known], correct[known])
        if max(rank, 1 - rank) >= GIVEN_AWAY:
            warn(
                f"{name} tells correct from wrong answers almost perfectly (AUROC {rank:.3f}). Was 'correct' made from "
                "it, or it from 'correct'? P(correct) and max_risk then speak of agreement with it, not of errors: "
                "leave that signal out, or let people check the answers."
            )
        elif name in NATURAL and rank < 0.5 - CLEAR * np.sqrt((right + wrong + 1) / (12 * right * wrong)):
            warn(f"{name} is larger for wrong answers (AUROC {rank:.3f}): is 'correct' inverted?")


def warn_of_scales(scores: Mapping[str, Vector]) -> None:
    """Warn of scores that seem to be on two scales: parts of 1, and whole numbers from 2 on, with nothing between."""
    for name, values in scores.items():
        known = values[~np.isnan(values)]
        parts, whole = (known > 0) & (known < 1), known >= 2
        odd = (known[~parts] % 1).any() or (known < 0).any()
        if not odd and min(parts.sum(), whole.sum()) >= max(FEWEST, MIXED * known.size):
            warn(
                f"scores[{name!r}] may be on two scales: {parts.sum():,} values are between 0 and 1, and "
                f"{whole.sum():,} are whole numbers up to {known.max():.4g}. Bring all to one scale before the fit, or "
                "give two scores."
            )
