"""Class shares of unlabelled rows: maximum likelihood by EM on calibrated probabilities, with a bootstrap interval."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from atypicality.arrays import to_host
from atypicality.recalibration.class_prior import check_class_prior
from atypicality.validation import check_choice, check_integer, check_number, check_probs, name_classes

__all__ = ["ClassMix", "at_prior", "estimate_class_mix", "estimated"]

Matrix = NDArray[np.float64]
TOLERANCE = 1e-4
"""Nats of log-likelihood that an estimate may be below the maximum: a hundredth of a standard error off."""
MAX_STEPS = 2000
SMALLEST = np.finfo(np.float64).tiny
LEAST_WORTH = 0.1
"""Smallest share of a label's information on the class mix that a row without its label must have."""
LEAST_PSEUDO_ROWS, MOST_PSEUDO_ROWS = 1e-3, 1e5
BATCH_BYTES = 2**25
"""Of counts of resampled rows that share their matrix products."""
DEVIATIONS = 1.959964
"""Standard errors on either side of a 95 % interval."""


@dataclass(frozen=True)
class ClassMix:
    """An estimated class mix of unlabelled rows.

    Attributes
    ----------
    shares : ndarray of shape (k,)
        Estimated class shares.
    low, high : ndarray of shape (k,)
        95 % interval of each share, over draws of the rows; NaN without resamples.
    training_shares : ndarray of shape (k,)
        Class mix under which the probabilities are calibrated.
    n_rows : int
        Rows of the estimate.
    worth : float in [0, 1]
        How many labelled rows tell as much about the mix as one of these rows: 1 where no classes are confused.
    pseudo_rows : float
        Rows of the training shares that were added.

    Examples
    --------
    >>> mix = estimate_class_mix(np.repeat([[0.9, 0.1], [0.1, 0.9]], [700, 300], axis=0), [0.5, 0.5])
    >>> mix.shares.round(2), bool((mix.low < mix.shares).all()), round(mix.worth, 2)
    (array([0.75, 0.25]), True, 0.57)
    """

    shares: Matrix
    low: Matrix
    high: Matrix
    training_shares: Matrix
    n_rows: int
    worth: float
    pseudo_rows: float

    def in_order(self, columns: NDArray[np.intp]) -> "ClassMix":
        """The same mix with the classes in another order: entry j is entry `columns[j]` of this one."""
        parts = {name: getattr(self, name)[columns] for name in ("shares", "low", "high", "training_shares")}
        return replace(self, **parts)


def estimate_class_mix(
    probabilities: ArrayLike,
    training_shares: Any,
    *,
    pseudo_rows: float | str = "auto",
    n_bootstrap: int = 100,
    random_state: int = 0,
) -> ClassMix:
    r"""Estimate the class shares of unlabelled rows from calibrated probabilities.

    Maximises the likelihood :math:`\prod_i \sum_j \pi_j\, p_{ij} / s_j` of the mix :math:`\pi`, times that of
    `pseudo_rows` more rows with the training shares s, by EM (Saerens, Latinne, Decaestecker 2002). The steps are
    extrapolated and end at most 1e-4 nats below the maximum. Assumes label shift: p(x given y) is that of the rows
    under which the probabilities are calibrated.

    A mix is refused with a reason where classes are too confused: where a row without its label tells less of the mix
    than a tenth of a row with one (`ClassMix.worth`), or all of them less than one labelled row per class. The smaller
    `worth`, the more a fault of the probabilities moves the estimate, whatever the number of rows.

    Parameters
    ----------
    probabilities : array-like of shape (n, k)
        Calibrated under the class mix `training_shares`.
    training_shares : array-like of shape (k,), or mapping of int to float
        All positive; count a class without rows as half a row.
    pseudo_rows : float or "auto", default="auto"
        At least 1e-3. "auto" maximises the evidence that as many counted labels as the rows are worth would give.
    n_bootstrap : int, default=100
        Resamples of the rows behind the interval; 0 makes no interval.
    random_state : int, default=0
        Of the resamples.

    Returns
    -------
    ClassMix
        Shares, their interval, and what the rows are worth.

    Examples
    --------
    A model that sees one of three signs, right in 9 of 10 cases, trained on classes of equal shares:

    >>> rng = np.random.default_rng(0)
    >>> given = np.full((3, 3), 0.05) + 0.85 * np.eye(3)
    >>> labels = rng.choice(3, 2000, p=[0.7, 0.2, 0.1])
    >>> signs = (rng.random((2000, 1)) > given[labels].cumsum(axis=1)[:, :2]).sum(axis=1)
    >>> mix = estimate_class_mix(given[signs], [1 / 3, 1 / 3, 1 / 3])
    >>> mix.shares.round(2)
    array([0.7 , 0.19, 0.11])
    """
    probs = np.asarray(check_probs(to_host(probabilities), "probabilities"), np.float64)
    shares = check_class_prior(training_shares, probs.shape[1], "training_shares")
    if not (shares > 0).all():
        raise ValueError(
            f"training_shares must be positive; class {name_classes([shares.argmin()])} has {shares.min():.6g}. Count "
            "a class without rows as half a row."
        )
    if len(probs) < 2:
        raise ValueError(f"probabilities must have at least 2 rows to estimate a class mix; got {len(probs)}.")
    draws, seed = check_integer(n_bootstrap, "n_bootstrap", low=0), check_integer(random_state, "random_state", low=0)
    ratios, once = probs / shares, np.ones((1, len(probs)))
    mix = _maximise(ratios, once, shares, shares[None])[0]
    worth, confused = _worth(ratios, mix, shares)
    _check_worth(worth, (len(ratios), shares.size), confused)
    pseudo = _pseudo_rows(pseudo_rows, worth * len(probs) * mix, shares) * shares
    mix = _maximise(ratios, once, pseudo, mix[None])[0]
    low, high = _interval(ratios, mix, pseudo, draws, seed)
    return ClassMix(mix, low, high, shares, len(probs), worth, float(pseudo.sum()))


def at_prior(recalibration: Any, prior: Any) -> Any:
    """The same fitted recalibration with another `class_prior`."""
    other = copy.copy(recalibration)
    other.class_prior = prior
    return other


def estimated(recalibration: Any, probabilities: Any, *, n_bootstrap: int = 100) -> tuple[Any, ClassMix]:
    """A recalibration at the class mix of rows, from the probabilities (n, k) that it gives without a prior."""
    shares = np.maximum(recalibration.calibration_shares_, 0.5 / recalibration.n_effective_)
    mix = estimate_class_mix(probabilities, shares / shares.sum(), n_bootstrap=n_bootstrap)
    return at_prior(recalibration, mix.shares), mix


def _maximise(ratios: Matrix, counts: Matrix, pseudo: Matrix, start: Matrix) -> Matrix:
    """Mixes (b, k) of maximal likelihood for rows counted `counts` (b, n) times, by squared extrapolation of EM steps.

    The log-likelihood is concave, so a gradient g with g . mix = 1 bounds its distance to the maximum by max(g) - 1.
    """
    mixes = start
    for _ in range(MAX_STEPS):
        first, gap = _em_step(ratios, counts, pseudo, mixes)
        if gap.max() <= TOLERANCE:
            return first
        second, _ = _em_step(ratios, counts, pseudo, first)
        change, bend = first - mixes, second - 2 * first + mixes
        length = np.sqrt((change**2).sum(axis=1) / np.maximum((bend**2).sum(axis=1), SMALLEST))
        length = np.maximum(length, 1.0)[:, None]  # 1 is `second` itself
        further = np.maximum(mixes + 2 * length * change + length**2 * bend, second / 10)
        further /= further.sum(axis=1, keepdims=True)
        better = _log_likelihood(ratios, counts, pseudo, further) > _log_likelihood(ratios, counts, pseudo, second)
        mixes = np.where(better[:, None], further, second)
    raise ValueError(f"probabilities leave the class mix open: EM did not come near its maximum in {MAX_STEPS} steps.")


def _em_step(ratios: Matrix, counts: Matrix, pseudo: Matrix, mixes: Matrix) -> tuple[Matrix, Matrix]:
    """Mean posterior probabilities (b, k) under the mixes, and nats (b,) that each may be below the maximum."""
    gradient = (counts / (mixes @ ratios.T)) @ ratios + pseudo / mixes
    n_rows = counts.sum(axis=1) + pseudo.sum()
    gradient /= n_rows[:, None]
    return mixes * gradient, n_rows * (gradient.max(axis=1) - 1)


def _log_likelihood(ratios: Matrix, counts: Matrix, pseudo: Matrix, mixes: Matrix) -> Matrix:
    total: Matrix = (counts * np.log(mixes @ ratios.T)).sum(axis=1) + np.log(mixes) @ pseudo
    return total


def _worth(ratios: Matrix, mix: Matrix, shares: Matrix) -> tuple[float, tuple[int, int]]:
    """Summed variance of the shares from labelled rows over that from these, and the two classes confused most.

    In units of the labels' standard errors the information of labelled rows is (n + 1) I. That of unlabelled ones has
    the same eigenvalue for the direction in which all shares grow alike, which their sum excludes, and smaller others.
    """
    root = np.sqrt(mix)
    posterior = ratios * root / (ratios @ mix)[:, None]
    values, vectors = np.linalg.eigh((posterior.T @ posterior + np.diag(shares / mix)) / (len(ratios) + 1))
    labelled = mix @ vectors[:, :-1] ** 2
    unlabelled = labelled / np.maximum(values[:-1], SMALLEST)
    moved = root * vectors[:, np.argmax(unlabelled)]
    return float(labelled.sum() / unlabelled.sum()), (int(moved.argmax()), int(moved.argmin()))


def _check_worth(worth: float, shape: tuple[int, int], confused: tuple[int, int]) -> None:
    n_rows, n_classes = shape
    if worth >= LEAST_WORTH and worth * n_rows >= n_classes:
        return
    raise ValueError(
        f"probabilities confuse classes too much to estimate their mix: {n_rows} rows tell as much of {n_classes} "
        f"classes as {worth * n_rows:.3g} labels, and {max(LEAST_WORTH * n_rows, n_classes):.3g} are needed; classes "
        f"{name_classes([min(confused)])} and {name_classes([max(confused)])} are confused most. Give more rows, or a "
        "mix counted from labels."
    )


def _pseudo_rows(given: float | str, counts: Matrix, shares: Matrix) -> float:
    """As given, or where counts (k,) of labels have most evidence under a Dirichlet law around the training shares."""
    if not isinstance(given, str):
        return check_number(given, "pseudo_rows", low=LEAST_PSEUDO_ROWS)
    check_choice(given, "pseudo_rows", ("auto",))
    from scipy.optimize import minimize_scalar  # loaded where it is needed: a head that predicts starts sooner

    def surprise(log_rows: float) -> float:
        rows = np.exp(log_rows)
        classes = gammaln(counts + rows * shares) - gammaln(rows * shares)
        return float(gammaln(counts.sum() + rows) - gammaln(rows) - classes.sum())

    found = minimize_scalar(surprise, bounds=(0.0, np.log(MOST_PSEUDO_ROWS)), method="bounded")
    return float(np.exp(found.x))


def _interval(ratios: Matrix, mix: Matrix, pseudo: Matrix, n_draws: int, seed: int) -> tuple[Matrix, Matrix]:
    """Limits (k,) from mixes of resampled rows, on the scale of square roots, never narrower than from counted labels.

    There the standard error of a counted share is 1 / (2 sqrt(n)) whatever the share.
    """
    if n_draws == 0:
        return np.full_like(mix, np.nan), np.full_like(mix, np.nan)
    n, rng = len(ratios), np.random.default_rng(seed)
    height = max(1, BATCH_BYTES // (8 * n))
    found = []
    for start in range(0, n_draws, height):
        size = min(height, n_draws - start)
        counts = np.stack([np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(size)])
        found.append(_maximise(ratios, counts.astype(np.float64), pseudo, np.tile(mix, (size, 1))))
    spread = np.sqrt(((np.sqrt(np.concatenate(found)) - np.sqrt(mix)) ** 2).mean(axis=0))
    reach = DEVIATIONS * np.maximum(spread, 0.5 / np.sqrt(n))
    return np.maximum(np.sqrt(mix) - reach, 0) ** 2, np.minimum(np.sqrt(mix) + reach, 1) ** 2
