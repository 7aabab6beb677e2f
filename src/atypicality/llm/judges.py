"""Pairwise judges: judgements in both orders combined into answers, whose head gives P(first better)."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.head.reliability import Reliability
from atypicality.llm.answers import Answers
from atypicality.metrics.rows import check_correct
from atypicality.metrics.signal import clipped_logits
from atypicality.validation import check_length, name_rows, warn

__all__ = ["CONSISTENT", "FIRST", "MARGIN", "POSITION", "SECOND", "first_better", "judgements"]

FIRST, SECOND = "first", "second"
"""The two judgements, as the answers of a judge."""
MARGIN, POSITION, CONSISTENT = "judge_margin", "position_bias", "consistent"
OPPOSED = 4.0  # standard errors below zero at which the correlation of the two orders says that one is turned round

Vector = NDArray[np.float64]


def judgements(
    prompts: Sequence[str],
    forward: ArrayLike,
    backward: ArrayLike | None = None,
    *,
    better: ArrayLike | None = None,
    scores: Mapping[str, ArrayLike] | None = None,
    ids: ArrayLike | None = None,
) -> Answers:
    """Judgements of pairs in both orders as answers "first" and "second", for `AnswerHead`.

    The log-odds of the first being better are half the difference of those of the two orders, so that a judge's
    preference for a position cancels. Half their sum is that preference. Exchanging the two candidates of a pair
    changes "first" into "second" and none of the signals.

    Parameters
    ----------
    prompts : sequence of n str
    forward : array-like of shape (n,)
        The judge's probability that the candidate shown first is better, with the first candidate shown first. NaN
        where it was not asked.
    backward : array-like of shape (n,), optional
        The same with the second candidate shown first: again of the candidate shown first.
    better : array-like of bool, of shape (n,), optional
        Whether the first candidate is truly better.
    scores : mapping of str to array of shape (n,), optional
        Further signals, which must not depend on the order of the candidates.
    ids : array of shape (n,), optional

    Returns
    -------
    Answers
        With scores `judge_margin` (absolute log-odds), `position_bias` (absolute, NaN where one order is known) and
        `consistent` (1 where both orders prefer the same candidate). An exact tie is "first".

    Warns
    -----
    UserWarning
        Where the orders contradict each other more than by chance, as they can where `backward` is of the first
        candidate instead of the one shown first; and where, with `better`, 1 - backward makes more judgements right,
        by more than chance.

    Examples
    --------
    >>> found = judgements(["Which is kinder?"] * 2, forward=[0.9, 0.8], backward=[0.3, 0.9], better=[True, True])
    >>> found.answers.tolist(), found.scores["consistent"].tolist(), found.correct.tolist()
    (['first', 'second'], [1.0, 0.0], [True, False])
    """
    there, back = _log_odds(forward, "forward", len(prompts)), np.full(len(prompts), np.nan)
    if backward is not None:
        back = -_log_odds(backward, "backward", len(prompts))  # of the first candidate, who is shown second
    if (bad := np.flatnonzero(np.isnan(there) & np.isnan(back))).size:
        raise ValueError(f"forward or backward must be given of every pair; {name_rows(bad, 'has', 'have')} neither.")
    margin = np.nanmean(np.stack([there, back]), axis=0)
    both = ~np.isnan(there) & ~np.isnan(back)
    _warn_of_opposed(there[both], back[both])
    own = {
        MARGIN: np.abs(margin),
        POSITION: np.where(both, np.abs(there - back) / 2, np.nan),
        CONSISTENT: np.where(both, np.sign(there) == np.sign(back), np.nan),
    }
    if taken := sorted(set(own) & set(scores or {})):
        raise ValueError(f"scores must not be called {', '.join(taken)}: these follow from forward and backward.")
    preferred = margin >= 0
    right = None if better is None else check_correct(better, len(prompts)) == preferred
    if right is not None:
        _warn_of_turned(right[both], (there - back >= 0)[both] == (right == preferred)[both])
    words = np.where(preferred, FIRST, SECOND).tolist()
    return Answers(prompts, words, scores=own | dict(scores or {}), correct=right, ids=ids)


def first_better(judged: Answers, said: Reliability) -> Vector:
    """P(first better) (n,): P(correct) of the judgement "first", and one less it of the judgement "second".

    Parameters
    ----------
    judged : Answers
        What `judgements` made.
    said : Reliability
        What an `AnswerHead` says of them.

    Returns
    -------
    ndarray of shape (n,)

    Examples
    --------
    >>> from atypicality.llm import AnswerHead
    >>> rng = np.random.default_rng(0)
    >>> odds, bias = rng.normal(size=(2, 2000))
    >>> forward, backward = 1 / (1 + np.exp(-odds - bias)), 1 / (1 + np.exp(odds - bias))
    >>> judged = judgements(["..."] * 2000, forward, backward, better=rng.random(2000) < 1 / (1 + np.exp(-3 * odds)))
    >>> head = AnswerHead().fit(judged[:1000])
    >>> said = head.predict(judged[1000:], max_risk=0.1)
    >>> chance = first_better(judged[1000:], said)
    >>> bool(((chance > 0.5) == (odds[1000:] > 0))[said.accepted].all()), bool(said.accepted.mean() > 0.3)
    (True, True)
    """
    check_length(said.confidence, "said", len(judged))
    if bad := sorted(set(judged.answers) - {FIRST, SECOND}):
        raise ValueError(f"judged must be what judgements made, answers 'first' and 'second'; got {bad[0]!r:.60}.")
    return np.where(judged.answers == FIRST, said.confidence, 1 - said.confidence)


def _warn_of_opposed(there: Vector, back: Vector) -> None:
    """Warn where log-odds (n,) of the first candidate are large in one order where they are small in the other.

    A preference for a position, however strong, leaves the correlation as it is. Over random pairings its variance is
    1 / (n - 1), whatever the values.
    """
    spread = there.std() * back.std() if there.size > 1 else 0.0
    if not spread > 0:
        return
    correlation = float(np.mean((there - there.mean()) * (back - back.mean())) / spread)
    if correlation < -OPPOSED / np.sqrt(there.size - 1):
        warn(
            f"forward and backward contradict each other: the log-odds of the first candidate have a correlation of "
            f"{correlation:.2f} between the two orders, over {there.size} pairs. Each must be the probability that the "
            "candidate shown first is better: give 1 - backward if yours is of the same candidate in both."
        )


def _warn_of_turned(right: NDArray[np.bool_], turned: NDArray[np.bool_]) -> None:
    """Warn where judgements (n,) of 1 - backward are right more often than chance allows, by a sign test."""
    wins, losses = int((turned & ~right).sum()), int((right & ~turned).sum())
    if wins - losses > OPPOSED * np.sqrt(wins + losses):
        warn(
            f"backward looks turned round: {right.mean():.1%} of the {right.size:,} judgements are right, and with "
            f"1 - backward {turned.mean():.1%}. It must be the probability that the candidate shown first is better: "
            "give 1 - backward if yours is of the same candidate in both orders."
        )


def _log_odds(values: ArrayLike, name: str, n_rows: int) -> Vector:
    """Log-odds (n,) of probabilities, NaN where there is none."""
    chances = np.asarray(values, np.float64)
    if chances.ndim != 1:
        raise ValueError(f"{name} must be one probability per pair; got shape {chances.shape}.")
    check_length(chances, name, n_rows)
    if (bad := np.flatnonzero((chances < 0) | (chances > 1))).size:
        raise ValueError(f"{name} must be probabilities, in [0, 1], or NaN; {name_rows(bad)} another value.")
    return clipped_logits(chances)
