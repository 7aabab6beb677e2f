"""A choice among Gaussian and relative atypicality, of rows as they are or divided by their length."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.density.family import DensityFamily, cost
from atypicality.density.gaussian import GaussianAtypicality
from atypicality.density.relative import RelativeAtypicality
from atypicality.metrics.rows import read_pairs
from atypicality.metrics.signal import Likelihoods, auroc, held_out_likelihoods, mean_and_error
from atypicality.stored import Part, Record, kinds, need
from atypicality.validation import check_choice

__all__ = ["FEWEST_ERRORS", "FEWEST_ROWS", "Candidate", "DensityChoice", "choose_density"]

FEWEST_ROWS, FEWEST_ERRORS = 500, 20
"""With fewer, likelihoods differ by chance alone, and `DEFAULT` is taken."""
DEFAULT = str(RelativeAtypicality(normalize="l2"))
"""Highest in mean AUROC for errors on the outputs of the method page."""
GAUSSIAN = str(GaussianAtypicality())
"""The paper's."""
Float64 = NDArray[np.float64]
CRITERIA = ("alone", "added")
CLEARLY = 4  # standard errors of an AUROC below one half that are no chance: one in 30,000
NAME = kinds.Text(r"[A-Za-z]+\([a-z0-9_='., ]*\)", longest=100)  # nothing that a card would take for Markdown
UNKNOWN = kinds.optional(kinds.Number())


@dataclass(frozen=True)
class Candidate:
    """One density of the family, by what held-out rows say of it; None where there were too few.

    Parameters
    ----------
    name : str
        How to make it.
    cost : int
        Multiply-adds to score a row.
    auroc : float or None
        For errors.
    log_likelihood : float or None
        Mean held-out log-likelihood of being right, by the criterion: nats per row.
    behind, behind_error : float or None
        How far that is behind the best, and the standard error of the difference.
    gain, gain_error : float or None
        What the score adds to confidence, as in `metrics.signal.Signal`, and its standard error.
    """

    name: Annotated[str, NAME]
    cost: Annotated[int, kinds.Integer(1)]
    auroc: Annotated[float | None, kinds.optional(kinds.Number(0, 1))] = None
    log_likelihood: Annotated[float | None, UNKNOWN] = None
    behind: Annotated[float | None, UNKNOWN] = None
    behind_error: Annotated[float | None, UNKNOWN] = None
    gain: Annotated[float | None, UNKNOWN] = None
    gain_error: Annotated[float | None, UNKNOWN] = None
    _stored = Record()


@dataclass(frozen=True)
class DensityChoice:
    """Which density was chosen, and the table it was chosen by.

    Parameters
    ----------
    name : str
        Of the candidate chosen.
    candidates : tuple of Candidate
        Cheapest first.
    criterion : {"alone", "added"}
    n_rows, n_errors : int
        Of the rows that chose.
    """

    name: Annotated[str, NAME]
    candidates: Annotated[tuple[Candidate, ...], kinds.TupleOf(Part(Candidate))]
    criterion: Annotated[str, kinds.Choice(*CRITERIA)]
    n_rows: Annotated[int, kinds.Integer(1)]
    n_errors: Annotated[int, kinds.Integer()]

    def _check_stored(self) -> None:
        chosen = [candidate for candidate in self.candidates if candidate.name == self.name]
        need(len(chosen) == 1, "the density chosen must be one of the candidates.")
        chosen += [candidate for candidate in self.candidates if candidate.name == GAUSSIAN]
        numbers = [number for one in chosen for number in (one.gain, one.gain_error, one.auroc)]
        known = None not in numbers or not self.enough
        need(known and self.n_errors <= self.n_rows, "a choice must have its numbers, and no more errors than rows.")

    _stored = Record(check=_check_stored)

    @property
    def enough(self) -> bool:
        """Whether there were rows, errors and right predictions enough to choose by."""
        fewer = min(self.n_errors, self.n_rows - self.n_errors)
        return self.n_rows >= FEWEST_ROWS and fewer >= FEWEST_ERRORS

    @property
    def backwards(self) -> bool:
        """Whether errors are clearly more typical than right predictions by the density chosen.

        The standard error is that of Mann and Whitney's statistic where errors are as typical as other rows.
        """
        found = next(one.auroc for one in self.candidates if one.name == self.name)
        if found is None or not self.enough:
            return False
        pairs = self.n_errors * (self.n_rows - self.n_errors)
        return 0.5 - found > CLEARLY * math.sqrt((self.n_rows + 1) / (12 * pairs))

    def __str__(self) -> str:
        """One sentence."""
        rows = f"{self.n_rows:,} rows with {self.n_errors:,} errors"
        if not self.enough:
            return f"{self.name} by default, not chosen: {rows} are too few to choose by"
        table = {candidate.name: candidate for candidate in self.candidates}
        found, gaussian = table[self.name], table.get(GAUSSIAN)
        against = "" if gaussian is None or gaussian is found else f" ({GAUSSIAN} {gaussian.auroc:.3f})"
        clear = (found.gain or 0.0) > 2 * (found.gain_error or 0.0)
        more = "" if clear else ", no clear gain; drift, groups and sets use it all the same"
        return (
            f"{self.name}, best of {len(self.candidates)} candidates by {rows}: AUROC for errors {found.auroc:.3f}"
            f"{against}{', below one half: it ranks errors backwards' * self.backwards}, adds {found.gain:.4f} nats "
            f"per row (log-likelihood of being right, standard error {found.gain_error:.4f}) to the model's own "
            f"confidence{more}"
        )


def choose_density(
    family: DensityFamily,
    embeddings: ArrayLike,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
    criterion: str = "alone",
    scores: Mapping[str, Float64] | None = None,
) -> DensityChoice:
    """The density whose quantile says best, on held-out rows, which predictions are right.

    Candidates are compared by the cross-validated log-likelihood of being right. Of all that are within one standard
    error of the best, the cheapest wins. With fewer than 500 rows or 20 errors it is `RelativeAtypicality` of
    normalised rows, the best on average. The rows must carry no guarantee afterwards.

    Parameters
    ----------
    family : DensityFamily
        Fitted.
    embeddings : array-like of shape (n, d)
        Rows that no density was fitted on.
    probs, labels, confidence, correct : array-like
        As in `metrics.accuracy`.
    criterion : {"alone", "added"}, default="alone"
        Likelihood from the quantile alone, as quadrants, groups and drift use it, or from the quantile and confidence.
        The second prefers what confidence lacks, which may be a score that finds few errors by itself.
    scores : mapping of str to ndarray of shape (n,), optional
        What ``family.scores(embeddings)`` gives, where it is known.

    Returns
    -------
    DensityChoice

    Examples
    --------
    >>> from atypicality.datasets import load_fashion_mnist_lt
    >>> from atypicality.recalibration.prediction import softmax_rows
    >>> train, calibration, test = load_fashion_mnist_lt()
    >>> family = DensityFamily().fit(train.embeddings, train.labels)
    >>> choose_density(family, calibration.embeddings, softmax_rows(calibration.logits), calibration.labels).name
    'RelativeAtypicality()'
    """
    check_choice(criterion, "criterion", CRITERIA)
    pairs = read_pairs(probs, labels, confidence, correct)
    wrong = ~pairs.correct
    scores = family.scores(embeddings) if scores is None else scores
    sizes: dict[str, Any] = {"criterion": criterion, "n_rows": wrong.size, "n_errors": int(wrong.sum())}
    plain = [
        Candidate(name, cost(family.members_[name]), _known(auroc(score, wrong))) for name, score in scores.items()
    ]
    fallback = DensityChoice(DEFAULT if DEFAULT in scores else plain[-1].name, tuple(plain), **sizes)
    if not fallback.enough:
        return fallback
    found = held_out_likelihoods(list(scores.values()), pairs.confidence, pairs.correct)
    table = _compared(plain, found, criterion)
    chosen = next(row.name for row in table if (row.behind or 0.0) <= (row.behind_error or 0.0))
    return DensityChoice(chosen, table, **sizes)


def _compared(plain: list[Candidate], found: list[Likelihoods], criterion: str) -> tuple[Candidate, ...]:
    """Candidates with their likelihoods, and how far each is behind the best."""
    values = [part.alone if criterion == "alone" else part.both for part in found]
    best = max(values, key=lambda value: float(value.mean()))
    table = []
    for candidate, value, part in zip(plain, values, found, strict=True):
        behind, gain = mean_and_error(best - value), mean_and_error(part.both - part.confidence)
        table.append(
            Candidate(candidate.name, candidate.cost, candidate.auroc, float(value.mean()), *behind, *gain),
        )
    return tuple(table)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
