"""Confidence sequences of shares: intervals that hold at every look at a growing count, and bands of a reference.

A confidence sequence inverts a test martingale. For a share p and S successes in t trials the mixture of likelihoods
over Beta(1/2, 1/2), divided by the likelihood of p, has expectation 1 at every t if p is the share; by Ville's
inequality it ever reaches 1 / delta with probability at most delta (Robbins 1970; Howard, Ramdas, McAuliffe and Sekhon
2021). The mixture is that of Krichevsky and Trofimov (1981): it lags the best share in hindsight by at most
log(t) / 2 + log(2).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, betaln, xlog1py, xlogy

__all__ = ["log_evidence", "one_sided", "rank_band", "sequence_interval"]

PRIOR = 0.5
HALVINGS = 50

Vector = NDArray[np.float64]


def log_evidence(successes: ArrayLike, trials: ArrayLike, share: ArrayLike) -> Vector:
    """Logarithm of the test martingale against a share; the arguments broadcast.

    >>> log_evidence(0, 0, 0.3).item(), round(log_evidence(90, 100, 0.5).item(), 1)
    (0.0, 34.3)
    """
    s, t, p = (np.asarray(part, np.float64) for part in (successes, trials, share))
    mixture = betaln(s + PRIOR, t - s + PRIOR) - betaln(PRIOR, PRIOR)
    return np.asarray(mixture - xlogy(s, p) - xlog1py(t - s, -p))


def one_sided(successes: ArrayLike, trials: ArrayLike, bound: ArrayLike, above: ArrayLike) -> Vector:
    """As `log_evidence` where the share seen is beyond the bound, above or below it as stated; else 0.

    The martingale is convex in the share, with its minimum at the share seen. Beyond the bound it is therefore smaller
    there than at every share on the other side: what it reaches there, it reaches for all of them.

    >>> one_sided(90, 100, 0.5, [True, False]).round(1).tolist()
    [34.3, 0.0]
    """
    s, t, p, side = np.broadcast_arrays(successes, trials, bound, above)
    mean = p * t
    beyond = np.where(side, s > mean, s < mean)
    found = np.zeros(beyond.shape)
    found[beyond] = log_evidence(s[beyond], t[beyond], p[beyond])
    return found


def sequence_interval(successes: ArrayLike, trials: ArrayLike, delta: ArrayLike) -> tuple[Vector, Vector]:
    """Both ends of the confidence sequence of a share: 1 - `delta` at all looks together; [0, 1] without trials.

    >>> [round(end.item(), 3) for end in sequence_interval(50, 100, 0.05)]
    [0.338, 0.662]
    """
    s, t, target = np.broadcast_arrays(
        np.asarray(successes, np.float64), np.asarray(trials, np.float64), -np.log(np.asarray(delta, np.float64))
    )
    seen = np.where(t > 0, s / np.maximum(t, 1), 0.5)
    return _end(s, t, target, seen, np.zeros_like(seen)), _end(s, t, target, seen, np.ones_like(seen))


def _end(s: Any, t: Any, target: Any, inside: Vector, outside: Vector) -> Vector:
    """Where the evidence passes the target on the way from the share seen to 0 or 1, by bisection; else that end."""
    end = outside
    with np.errstate(divide="ignore"):
        reached = log_evidence(s, t, end) >= target
        for _ in range(HALVINGS):
            middle = (inside + outside) / 2
            rejected = log_evidence(s, t, middle) >= target
            inside, outside = np.where(rejected, inside, middle), np.where(rejected, middle, outside)
    return np.where(reached, outside, end)


def rank_band(low: ArrayLike, high: ArrayLike, n_rows: int, delta: float) -> tuple[Vector, Vector]:
    """Bounds of the share at or below, and of the share below, a value at fixed ranks; each fails with chance `delta`.

    See `atypicality.head.reference.Ranks`.

    >>> [bound.round(3).item() for bound in rank_band(500, 500, 1000, 0.01)]
    [0.463, 0.536]
    """
    first, last = np.asarray(low, np.float64), np.asarray(high, np.float64)
    ends = betaincinv(last, n_rows + 1 - last, delta), betaincinv(first, n_rows + 1 - first, 1 - delta)
    return np.asarray(ends[0], np.float64), np.asarray(ends[1], np.float64)
