"""Split conformal prediction: one threshold for all, from rows that chose nothing else."""

import math
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.arrays import returns_like_input, take_rows
from atypicality.conformal.chance import Seeds, split_rows
from atypicality.conformal.scores import (
    NONEMPTY,
    SCORES,
    ScoreRule,
    checked_score,
    label_scores,
    label_statistics,
    prediction_sets,
)
from atypicality.conformal.threshold import conformal_threshold, minimum_rows
from atypicality.conformal.tuning import tune
from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.formula import GridSets
from atypicality.stored import Record, kinds, need
from atypicality.validation import check_alpha, check_integer, check_labels, warn
from atypicality.validation.device import any_probs

__all__ = ["ScoredSets", "SplitConformal"]


class ScoredSets(BaseEstimator):
    """What sets by a score have in common: the score's parameters, given and tuned, and the seed of its draws."""

    k_reg_: Annotated[int | None, kinds.optional(kinds.Integer())]
    penalty_: Annotated[float | None, kinds.optional(kinds.Number(0))]
    n_calibration_: Annotated[int, kinds.Integer(1)]
    n_classes_: Annotated[int, kinds.Size("K")]
    seed_: Annotated[int, kinds.SEED]

    _kinds: ClassVar[dict[str, Any]] = {
        "score": kinds.Choice(*SCORES),
        "alpha": kinds.Alpha(),
        "nonempty": kinds.Choice(*NONEMPTY),
        "k_reg": kinds.Either("auto", otherwise=kinds.Integer()),
        "penalty": kinds.Either("auto", otherwise=kinds.Number(0)),
        "random_state": kinds.optional(kinds.SEED),
    }

    def _check_score(self) -> None:
        checked_rule(self)
        rule = fitted_rule(self)
        need(not rule.needs_tuning, f"score {rule.name!r} must have its parameters.")


class SplitConformal(ScoredSets):
    r"""Prediction sets that hold the label with a chance of at least 1 - alpha, on average over all inputs.

    The set of x is all labels y with :math:`s(x, y) \le \hat q`, where the threshold is the
    :math:`\lceil (n + 1)(1 - \alpha) \rceil`-th smallest score of n calibration rows (Vovk et al. 2005; see
    `conformal_threshold` for the rank and `ScoreRule` for the scores).

    Parameters
    ----------
    score : {"lac", "aps", "raps", "saps"}, default="lac"
        "lac" gives the smallest sets for a coverage on average.
    alpha : float in (0, 1), default=0.1
        Allowed miscoverage, read as the decimal it is written as.
    nonempty : {"score", "after", None}, default="score"
        "score": the top class scores 0 in fit and in prediction, so no set is empty and coverage stays exact.
        "after": the top class is added to the sets afterwards, which covers more than 1 - alpha. None: sets may be
        empty. Classes tied for the top are all the top class.
    k_reg : int or "auto", default="auto"
        Rank up to which RAPS charges nothing.
    penalty : float or "auto", default="auto"
        What RAPS charges per rank beyond `k_reg`, and SAPS per rank.
    tuning_fraction : float in (0, 1), default=0.2
        Share of the rows that tune `k_reg` and `penalty` where these are "auto"; they carry no guarantee.
    randomized : bool, default=False
        Draw one u per row, which makes the coverage of APS, RAPS and SAPS exact instead of conservative. The draws of
        `fit` and `predict_set` are independent. The u of a row depends on the seed and the row's number alone: every
        call of `predict_set` draws the same for row 0, the same for row 1, and so on.
    random_state : int or None, default=0

    Attributes
    ----------
    threshold_ : float
        Infinite when there were fewer calibration rows than alpha needs.
    too_few_ : bool
        Whether that happened: every set is then full, and `fit` has warned.
    k_reg_ : int or None
    penalty_ : float or None
    n_calibration_ : int
        Rows behind the threshold: the coverage given them follows `coverage_law(n_calibration_, alpha)`.
    n_tuning_ : int
    n_classes_ : int
    seed_ : int
        `random_state`, or what the machine gave for None.

    Notes
    -----
    Coverage is valid for rows exchangeable with the calibration rows. The same inputs and seed give the same sets,
    whatever the block size and number of threads.

    Examples
    --------
    >>> from atypicality.datasets import make_world
    >>> world = make_world(2000)
    >>> conformal = SplitConformal("aps", alpha=0.1).fit(world.probs[:1000], world.labels[:1000])
    >>> sets = conformal.predict_set(world.probs[1000:])
    >>> sets.shape, bool(sets.any(axis=1).all())
    ((1000, 5), True)
    >>> bool(sets[np.arange(1000), world.labels[1000:]].mean() > 0.87)
    True
    """

    threshold_: Annotated[float, kinds.Number(infinite=True)]
    too_few_: Annotated[bool, kinds.FLAG]
    n_tuning_: Annotated[int, kinds.Integer()]

    def __init__(
        self,
        score: str = "lac",
        alpha: float = 0.1,
        *,
        nonempty: str | None = "score",
        k_reg: int | str = "auto",
        penalty: float | str = "auto",
        tuning_fraction: float = 0.2,
        randomized: bool = False,
        random_state: int | None = 0,
    ) -> None:
        self.score = score
        self.alpha = alpha
        self.nonempty = nonempty
        self.k_reg = k_reg
        self.penalty = penalty
        self.tuning_fraction = tuning_fraction
        self.randomized = randomized
        self.random_state = random_state

    def fit(self, probs: ArrayLike, labels: ArrayLike) -> Self:
        """Learn the threshold from a conformal set: `probs` (n, k) and `labels` (n,), column indices."""
        alpha, rule, seeds = check_alpha(self.alpha), checked_rule(self), Seeds(self.random_state)
        tuned = ", or give k_reg and penalty, which are tuned on a part of the rows" if rule.needs_tuning else ""
        rows, classes = checked_rows(probs, labels, least=2 if tuned else 1, remedy=f"Give more rows{tuned}.")
        n = classes.size
        found = label_statistics(rows, classes)
        draws = seeds.draws("fit", n) if self.randomized else np.ones(n)
        tuning, calibration = np.arange(0), np.arange(n)
        if rule.needs_tuning:
            generator = seeds.generator("split")
            tuning, calibration = split_rows(n, self.tuning_fraction, "tuning_fraction", generator)
            rule = tune(rule, take_rows(rows, tuning), found.take(tuning), alpha, draws[tuning])
        scores = label_scores(found.take(calibration), rule, draws[calibration])
        self.threshold_ = conformal_threshold(scores, alpha)
        self.n_calibration_, self.n_tuning_, self.n_classes_ = calibration.size, tuning.size, rows.shape[1]
        self.k_reg_, self.penalty_ = rule.k_reg, rule.penalty
        self.seed_ = seeds.seed
        self.too_few_ = math.isinf(self.threshold_)
        if self.too_few_:
            warn(
                f"alpha={float(alpha):g} needs at least {minimum_rows(alpha)} calibration rows; got "
                f"{calibration.size}, so every set holds all classes. Give more rows or a larger alpha."
            )
        return self

    def formula(self) -> GridSets:
        """The parameters of a prediction; see `atypicality.formula`."""
        check_is_fitted(self, "threshold_")
        return GridSets(fitted_rule(self), np.array([self.threshold_]), np.arange(1.0, self.n_classes_ + 1))

    @returns_like_input
    def predict_set(self, probs: ArrayLike, *, first_row: int = 0) -> NDArray[np.bool_]:
        """The sets of `probs` (n, k), as bool (n, k): row i holds class j where [i, j] is True.

        Randomised sets depend on the rows' numbers, which start at `first_row`: pass the number of a part's first row,
        and the part gets the sets that it has in the whole.
        """
        check_is_fitted(self, "threshold_")
        rows = any_probs(probs, n_classes=self.n_classes_)
        return fitted_sets(self, rows, np.full(rows.shape[0], self.threshold_), first_row)

    def _guarantee(self) -> str:
        """Where the coverage holds, for the model card."""
        return f"on average over all inputs, from {self.n_calibration_:,} rows; not for rare inputs in particular."

    def _check_stored(self) -> None:
        self._check_score()
        need(self.too_few_ == math.isinf(self.threshold_), "the threshold must be infinite if there were too few rows.")

    _stored = Record(check=_check_stored, **ScoredSets._kinds, tuning_fraction=kinds.Number(0, 1))


def fitted_rule(estimator: Any) -> ScoreRule:
    """The score of a fitted estimator, its parameters tuned."""
    crossing = getattr(estimator, "crossing_", False)
    nonempty = "after" if crossing else estimator.nonempty
    return ScoreRule(estimator.score, nonempty, estimator.k_reg_, estimator.penalty_, crossing)


def row_draws(estimator: Any, n_rows: int, first_row: int) -> NDArray[np.float64] | None:
    """The draws (n,) of a randomised estimator for rows with numbers from `first_row` on; None for another."""
    number = check_integer(first_row, "first_row", low=0)
    if not getattr(estimator, "randomized", False):
        return None
    return Seeds(estimator.seed_).draws("predict", n_rows, first_row=number)


def fitted_sets(estimator: Any, probs: Any, thresholds: NDArray[np.float64], first_row: int) -> NDArray[np.bool_]:
    """The sets of checked rows with their thresholds, by an estimator's fitted score and seed, on their device."""
    rule, drawn = fitted_rule(estimator), row_draws(estimator, thresholds.size, first_row)
    draws: Any = 1.0 if drawn is None else drawn
    sets: NDArray[np.bool_] = prediction_sets(probs, thresholds, rule, draws)
    return sets


def checked_rule(estimator: Any) -> ScoreRule:
    """The score that an estimator's options describe."""
    options = ("nonempty", "k_reg", "penalty", "randomized")
    return checked_score(estimator.score, **{name: getattr(estimator, name) for name in options})


def checked_rows(
    probs: ArrayLike, labels: ArrayLike, *, least: int, remedy: str = "Give more rows."
) -> tuple[Any, NDArray[np.intp]]:
    """Probabilities, on their device, and labels of at least `least` rows."""
    rows = any_probs(probs)
    n = rows.shape[0]
    if n < least:
        raise ValueError(f"probs must have at least {least} row{'s' * (least > 1)} to fit on; got {n}. {remedy}")
    return rows, check_labels(labels, n_classes=rows.shape[1], n_rows=n)
