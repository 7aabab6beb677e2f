"""K-fold cross-conformal prediction (CV+): sets from models that each left a fold out, without a threshold set."""

from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from atypicality.conformal.threshold import conformal_rank
from atypicality.validation import check_alpha, check_groups, check_integer, check_labels, check_probs

__all__ = ["CrossConformal", "cross_conformal_level"]


def cross_conformal_level(n: int, n_folds: int, alpha: float | Fraction) -> float:
    r"""The coverage that CV+ guarantees, :math:`1 - 2\alpha` less a term that vanishes with the rows.

    The term is :math:`\min\{2 (1 - 1/K) / (m + 1),\ (1 - K/n) / (K + 1)\}` for n rows in K folds of m or m + 1 rows
    (Vovk, Nouretdinov, Manokhin, Gammerman 2018; Barber, Candes, Ramdas, Tibshirani 2021, theorem 4, for folds of
    equal size). What is measured is close to :math:`1 - \alpha` or above.

    Parameters
    ----------
    n : int
        Rows.
    n_folds : int
    alpha : float in (0, 1), or Fraction

    Returns
    -------
    float
        At least 0.

    Examples
    --------
    >>> round(cross_conformal_level(1000, 5, 0.1), 3), round(cross_conformal_level(50, 5, 0.1), 3)
    (0.792, 0.655)
    """
    folds = check_integer(n_folds, "n_folds", low=2)
    rows = check_integer(n, "n", low=folds)
    loss = min(2 * (1 - 1 / folds) / (rows // folds + 1), (1 - folds / rows) / (folds + 1))
    return max(float(1 - 2 * check_alpha(alpha)) - loss, 0.0)


class CrossConformal(BaseEstimator):
    r"""Prediction sets from K models, each fitted without one fold of the rows (CV+).

    The score of a label is 1 less the probability of the model that left its row out. A label y of a new x is in the
    set unless its score by model k exceeds those of too many rows of fold k, over all folds:

    .. math:: C(x) = \Big\{y : \sum_k \#\{i \in \text{fold } k : s_i < s_k(x, y)\} <
              \lceil (n + 1)(1 - \alpha) \rceil\Big\}

    Every row trains models and carries the guarantee. Whatever made the probabilities of fold k may depend on the rows
    outside of fold k alone: a recalibration fitted on all rows may not enter.

    Parameters
    ----------
    alpha : float in (0, 1), default=0.1
        Allowed miscoverage; `level_` says what is guaranteed.

    Attributes
    ----------
    scores_ : list of K ndarrays
        Sorted scores of the rows of each fold.
    level_ : float
        Guaranteed coverage; see `cross_conformal_level`.
    n_calibration_, n_classes_ : int

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels, folds = rng.integers(0, 3, 90), np.arange(90) % 5
    >>> out_of_fold = np.full((90, 3), 0.1) + 0.7 * np.eye(3)[np.where(rng.random(90) < 0.8, labels, 0)]
    >>> sets = CrossConformal(0.1).fit(out_of_fold, labels, folds=folds)
    >>> sets.predict_set(np.full((5, 1, 3), [0.8, 0.1, 0.1]))                # of five models, for one row
    array([[ True,  True,  True]])
    """

    def __init__(self, alpha: float | Fraction = 0.1) -> None:
        self.alpha = alpha

    def fit(self, probs: ArrayLike, labels: ArrayLike, *, folds: ArrayLike) -> Self:
        """Learn from out-of-fold probabilities.

        Parameters
        ----------
        probs : array-like of shape (n, k)
            Row i by the model that was fitted without fold `folds[i]`.
        labels : array-like of shape (n,)
            Column indices.
        folds : array-like of int, of shape (n,)
            0 to K - 1; sizes may differ by one.
        """
        rows = np.asarray(check_probs(probs), np.float64)
        known = check_labels(labels, n_classes=rows.shape[1], n_rows=len(rows))
        fold = check_groups(folds, "folds", n_rows=len(rows))
        sizes = np.bincount(fold) if fold.dtype.kind in "iu" and fold.min() >= 0 else np.zeros(1)
        if sizes.size < 2 or sizes.min() == 0 or np.ptp(sizes) > 1:
            raise ValueError(
                "folds must number at least 2 folds 0, 1, ... of as many rows, give or take one; got rows "
                f"{sizes.astype(int).tolist()[:10]}."
            )
        scores = -rows[np.arange(len(rows)), known]
        self.scores_ = [np.sort(scores[fold == k]) for k in range(sizes.size)]
        self.n_calibration_, self.n_classes_ = rows.shape
        self.level_ = cross_conformal_level(len(rows), sizes.size, self.alpha)
        return self

    def predict_set(self, probs: Any) -> NDArray[np.bool_]:
        """Sets (n, k) from the probabilities (K, n, k) that each of the K models gives new rows."""
        check_is_fitted(self, "scores_")
        if len(probs) != len(self.scores_):
            raise ValueError(f"probs must come from {len(self.scores_)} models, one per fold; got {len(probs)}.")
        models = [np.asarray(check_probs(each, n_classes=self.n_classes_), np.float64) for each in probs]
        below = np.zeros(models[0].shape, np.intp)
        for scores, each in zip(self.scores_, models, strict=True):
            below += np.searchsorted(scores, -each)
        return below < conformal_rank(self.n_calibration_, self.alpha)
