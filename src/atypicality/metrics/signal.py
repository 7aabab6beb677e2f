"""What a score says of which predictions are right, alone and beside confidence: AUROC and held-out likelihoods."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.metrics.laws import ranks
from atypicality.metrics.rows import read_pairs
from atypicality.validation import check_vector

__all__ = [
    "Likelihoods", "Signal", "auroc", "auroc_and_error", "clipped_logits", "error_signal", "held_out_likelihoods",
]  # fmt: skip

Float64 = NDArray[np.float64]
FOLDS = 5  # rows of either kind, right and wrong, that there must be at least
LOGIT_LIMIT = 14.0  # of a confidence of 1 - 1e-6: a more extreme one is no more evidence
DEVIATIONS = 1.96
SMALL_STEP = 1e-3  # nats of all rows together, as the square of a step's length, that is left of its own square, about
FOLD_STEPS = 4


@dataclass(frozen=True)
class Likelihoods:
    """Log-likelihood of each row (n,) being right or wrong as it was, by models fitted on other folds."""

    confidence: Float64
    alone: Float64  # from the quantile of the score
    both: Float64


@dataclass(frozen=True)
class Signal:
    """How much a score adds to confidence."""

    auroc: float  # chance that a wrong prediction scores above a right one, ties counted half
    auroc_error: float
    confidence_auroc: float  # the same for confidence, lower for wrong predictions
    confidence_auroc_error: float
    gain: float  # mean held-out log-likelihood of being right from both, less that from confidence: nats per row
    standard_error: float  # of the gain
    n_rows: int
    n_errors: int

    @property
    def interval(self) -> tuple[float, float]:
        """Of the gain, at 95 %."""
        reach = DEVIATIONS * self.standard_error
        return self.gain - reach, self.gain + reach

    @property
    def adds(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.interval[0] > 0

    def __str__(self) -> str:
        """One sentence."""
        low, high = self.interval
        verb = "adds to confidence" if self.adds else "adds nothing to confidence that these rows show"
        return (
            f"Atypicality {verb}: gain {self.gain:.4f} nats per row, 95 % interval {low:.4f} to {high:.4f}; "
            f"AUROC for errors {self.auroc:.3f}, of confidence {self.confidence_auroc:.3f} "
            f"({self.n_rows:,} rows, {self.n_errors:,} errors)."
        )


def auroc(scores: ArrayLike, positive: ArrayLike) -> float:
    """Chance that a positive row scores above a negative one, ties counted half; NaN without one of either.

    >>> auroc([0.1, 0.4, 0.4, 0.9], [False, False, True, True])  # 3 of 4 pairs in order and one tied
    0.875
    """
    chosen = np.asarray(positive, bool)
    n = int(chosen.sum())
    if not n or n == chosen.size:
        return float("nan")
    in_order = ranks(np.asarray(scores, np.float64))[chosen].sum() - n * (n + 1) / 2  # halves: sums are exact
    return float(in_order / n / (chosen.size - n))


def auroc_and_error(scores: Float64, positive: NDArray[np.bool_]) -> tuple[float, float]:
    """`auroc`, and its standard error by DeLong, DeLong and Clarke-Pearson (1988).

    The chance is a mean over positives, and over negatives, of the share of the others that each is in order with;
    their variances over the numbers of rows add up. NaN with fewer than two of either.
    """
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    if not n_positive or not n_negative:
        return float("nan"), float("nan")
    places = ranks(scores)
    above = (places[positive] - ranks(scores[positive])) / n_negative
    below = 1 - (places[~positive] - ranks(scores[~positive])) / n_positive
    if min(n_positive, n_negative) < 2:
        return float(above.mean()), float("nan")
    return float(above.mean()), float(np.sqrt(above.var(ddof=1) / n_positive + below.var(ddof=1) / n_negative))


def error_signal(
    atypicality: ArrayLike,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    confidence: ArrayLike | None = None,
    correct: ArrayLike | None = None,
) -> Signal:
    """How much atypicality says of which predictions are right, beyond what confidence says.

    Two logistic regressions of being right, one on the logit of confidence and one also on the quantile of the
    atypicality, are compared by their log-likelihood on rows that neither was fitted on: 5 folds, alike in confidence
    and in the share of errors.

    Parameters
    ----------
    atypicality : array-like of shape (n,)
    probs, labels, confidence, correct : array-like
        As in `accuracy`; at least 5 rows right and 5 wrong.

    Returns
    -------
    Signal

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rarity, confidence = rng.random(2000), np.full(2000, 0.8)
    >>> right = rng.random(2000) > 0.4 * rarity
    >>> error_signal(rarity, confidence=confidence, correct=right).adds
    True
    >>> error_signal(rng.random(2000), confidence=confidence, correct=right).adds
    False
    """
    pairs = read_pairs(probs, labels, confidence, correct)
    rarity = np.asarray(check_vector(atypicality, "atypicality", n_rows=pairs.correct.size), np.float64)
    found = held_out_likelihoods([rarity], pairs.confidence, pairs.correct)[0]
    gain, error = mean_and_error(found.both - found.confidence)
    wrong = ~pairs.correct
    areas = (*auroc_and_error(rarity, wrong), *auroc_and_error(-pairs.confidence.astype(np.float64), wrong))
    return Signal(*areas, gain, error, wrong.size, int(wrong.sum()))


def held_out_likelihoods(scores: list[Float64], confidence: Float64, correct: NDArray[np.bool_]) -> list[Likelihoods]:
    """Likelihoods of n rows by each of some scores (n,), all on the same folds, which the rows' order leaves alone."""
    if min(correct.sum(), (~correct).sum()) < FOLDS:
        raise ValueError(
            f"rows must have at least {FOLDS} right and {FOLDS} wrong predictions to compare likelihoods; got "
            f"{int(correct.sum())} right and {int((~correct).sum())} wrong. Use more rows."
        )
    folds = _folds(correct, _order(confidence, scores))
    given = clipped_logits(confidence)
    base = _log_likelihood([given], correct, folds)
    quantiles = [ranks(score) / score.size - 0.5 for score in scores]
    return [
        Likelihoods(base, _log_likelihood([q], correct, folds), _log_likelihood([given, q], correct, folds))
        for q in quantiles
    ]


def mean_and_error(values: Float64) -> tuple[float, float]:
    """Mean of rows (n,) and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size))


def clipped_logits(confidence: Float64) -> Float64:
    """Logits (n,) of confidence, at most `LOGIT_LIMIT` from 0."""
    with np.errstate(divide="ignore"):
        logits = np.log(confidence) - np.log1p(-np.minimum(confidence, 1.0))
    return np.asarray(np.clip(logits, -LOGIT_LIMIT, LOGIT_LIMIT))


def _order(confidence: Float64, scores: list[Float64]) -> NDArray[np.intp]:
    """Rows by confidence, and those of equal confidence by their scores, the last one first."""
    order = np.argsort(confidence, kind="stable")
    equal = np.diff(confidence[order]) == 0
    tied = np.flatnonzero(np.r_[equal, False] | np.r_[False, equal])  # few, mostly: to sort all by all takes long
    rows = order[tied]
    order[tied] = rows[np.lexsort([one[rows] for one in (*scores, confidence)])]
    return order


def _folds(correct: NDArray[np.bool_], order: NDArray[np.intp]) -> NDArray[np.intp]:
    """Fold of each row (n,): right and wrong rows are dealt out in turn, in the given order."""
    folds = np.empty(correct.size, np.intp)
    for kind in (correct, ~correct):
        rows = order[kind[order]]
        folds[rows] = np.arange(rows.size) % FOLDS
    return folds


def _log_likelihood(columns: list[Float64], correct: NDArray[np.bool_], folds: NDArray[np.intp]) -> Float64:
    given = [(one - one.mean()) / max(one.std(), np.finfo(np.float64).tiny) for one in columns]
    inputs = np.stack([np.ones(correct.size), *given])
    coefficients = _without_each_fold(inputs, correct, folds)
    scores = np.take_along_axis(coefficients @ inputs, folds[None], axis=0)[0]
    return np.asarray(-np.logaddexp(0.0, np.where(correct, -scores, scores)))


def _without_each_fold(inputs: Float64, correct: NDArray[np.bool_], folds: NDArray[np.intp]) -> Float64:
    """Coefficients (FOLDS, p) of the rows outside each fold, from the inputs (p, n) of all.

    A few Newton steps of all folds at a time from the optimum of all rows reach them: what a step leaves of the
    decrement is its square, about. Where that of the last is not small, each is sought on its own.
    """
    whole, ridge = logistic_coefficients(inputs.T, correct), np.r_[0.0, np.ones(len(inputs) - 1)]
    found, others = whole[None], (folds != np.arange(FOLDS)[:, None]).astype(np.float64)
    for _ in range(FOLD_STEPS):
        chance = 0.5 + 0.5 * np.tanh(0.5 * (found @ inputs))
        gradient = (others * (chance - correct)) @ inputs.T + ridge * found
        curved = others * (chance * (1 - chance))
        hessian = np.stack([curved @ (inputs * own).T for own in inputs], axis=2) + np.diag(ridge)
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        found = found - step  # of each fold, from one for all at first
        if np.vecdot(gradient, step).max() < SMALL_STEP:
            return found
    return np.stack([logistic_coefficients(inputs.T[own], correct[own], start=whole) for own in others > 0])


def logistic_coefficients(
    rows: Float64, positive: NDArray[np.bool_], strength: float = 1.0, start: Float64 | None = None
) -> Float64:
    """Coefficients (p,) of a logistic regression on rows (n, p) whose first column is 1, by Newton's method.

    A ridge of 1 on all but the first keeps them finite where rows are separable; with none the caller looks for
    that. That of scikit-learn is the same, and takes ten times as long for the few columns here. `start` (p,), zeros
    by default, changes the result by rounding.
    """
    sign, ridge = np.where(positive, -1.0, 1.0), np.r_[0.0, np.full(rows.shape[1] - 1, strength)]

    def at(theta: Float64) -> tuple[float, Float64, Float64]:
        """The objective, scores, and ``exp(-|score|)``, of which losses and chances are made."""
        scores = rows @ theta
        small = np.exp(-np.abs(scores))
        loss = np.log(1.0 + small).sum() + np.maximum(sign * scores, 0.0).sum()
        return float(loss + 0.5 * ridge @ theta**2), scores, small

    theta = np.zeros(rows.shape[1]) if start is None else start
    value, scores, small = at(theta)
    for _ in range(100):
        chance = np.where(scores > 0, 1.0, small) / (1.0 + small)
        gradient = rows.T @ (chance - positive) + ridge * theta
        hessian = (rows.T * (chance * (1 - chance))) @ rows + np.diag(ridge)
        step = np.linalg.solve(hessian, gradient)
        while (found := at(theta - step))[0] > value:  # ends: a step small enough changes nothing
            step = 0.5 * step
        theta, decrement = theta - step, float(gradient @ step)
        value, scores, small = found
        if decrement < 1e-7:  # that of the point reached is its square, about
            break
    return theta
