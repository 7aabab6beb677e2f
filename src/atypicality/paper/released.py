"""What the paper and its released code compute where the library does otherwise: `rmse`, sets, temperatures, quadrants.

The text writes deterministic scores and mentions randomisation; the released code draws them, puts the crossing class
into every set and has a switch, off by default, for the quantile 1 - alpha of a cell. `AtypicalityAwareConformal` in
mode "paper" does the first two; rank and penalty grid are those of the text, ties are ours. Temperatures are those of
cross-entropy alone, without the prior that the library's own carry.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.conformal import AtypicalityAwareConformal, ConditionalConformal
from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.evaluation import Evaluation
from atypicality.evaluation.methods import KNOWN, by_name, named_methods
from atypicality.evaluation.scored import Options
from atypicality.evaluation.splits import compare_objects
from atypicality.groups import Quadrants
from atypicality.outputs import ModelOutputs
from atypicality.recalibration import AdaptiveTemperatureScaling, TemperatureScaling
from atypicality.validation import check_alpha, check_choice, check_confidence, check_number, warn

__all__ = [
    "RELEASED_RANK", "SETS", "PriorFreeGroupTemperature", "PriorFreeTemperature", "RelativeQuadrants", "authors_rmse",
    "compare", "method_of",
]  # fmt: skip

ROWS_PER_BIN = 100
RELEASED_RANK = (
    ", quantile 1 - alpha"  # end of the name of a method whose thresholds have the rank of the released `aa_sub`
)
SETS = ("aps", "aa-aps", "raps", "aa-raps", "conditional", f"aa-aps{RELEASED_RANK}", f"aa-raps{RELEASED_RANK}")
NAMES = tuple(name for name in KNOWN if name not in ("lac", "aa-lac", "saps", "aa-saps"))
"""Methods of `compare` that the paper has a form of, or that are ours alone."""


def authors_rmse(confidence: ArrayLike, correct: ArrayLike) -> float:
    """The paper's `rmse` columns: bins of equal mass, near 100 rows each, weighted twice, and the root taken twice.

    The fourth root of the sum over bins of (share of the rows x gap of accuracy and confidence) squared. It is not the
    root mean squared calibration error of the paper's formula, which is `atypicality.metrics.rmsce`. One bin with a gap
    of 0.16 gives its root, not the gap:

    >>> round(authors_rmse([0.66] * 10, [1, 0] * 5), 6)
    0.4
    """
    sure, right = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    n_bins = max(sure.size // ROWS_PER_BIN, 1)
    starts = np.round(np.linspace(0, sure.size, n_bins, endpoint=False)).astype(int)
    bins = np.digitize(sure, np.sort(sure)[starts][1:])
    gaps = np.bincount(bins, right - sure, n_bins) / sure.size
    return float(math.sqrt(math.sqrt((gaps**2).sum())))


class PriorFreeTemperature(TemperatureScaling):
    """`TemperatureScaling` without pseudo-rows. Rows without an error have no finite optimum, and it warns.

    >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    >>> bool(np.isclose(PriorFreeTemperature().fit(logits, [0, 0, 1, 0]).temperature_, 4 / np.log(3)))  # 3 of 4 right
    True
    """

    pseudo_rows = False

    def _terms(self, n_classes: int) -> dict[str, Any]:
        return {"pseudo_rows": self.pseudo_rows}

    def _keep_errors(self, errors: int, n_rows: int) -> None:
        super()._keep_errors(errors, n_rows)
        if errors == 0:
            warn(f"all {n_rows} labels have the largest logit: no temperature is the best, the lower the better.")


class PriorFreeGroupTemperature(BaseEstimator):
    """One `PriorFreeTemperature` for every given group: the paper's skin-tone conditional scaling."""

    def fit(self, logits: ArrayLike, labels: ArrayLike, *, groups: ArrayLike) -> Self:
        """Fit to logits (n, k), labels (n,) and groups (n,)."""
        z, y, names = np.asarray(logits), np.asarray(labels), np.asarray(groups)
        self.scalings_ = {name: PriorFreeTemperature().fit(z[names == name], y[names == name]) for name in set(names)}
        return self

    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike) -> NDArray[np.floating[Any]]:
        """Probabilities (n, k) of rows whose groups (n,) `fit` has seen."""
        z, names = np.asarray(logits), np.asarray(groups)
        if unseen := set(names) - set(self.scalings_):
            raise ValueError(f"groups must have been seen in fit; got {sorted(map(str, unseen))[0]!r} too.")
        probs = np.empty(z.shape)
        for name in set(names):
            probs[names == name] = self.scalings_[name].predict_proba(z[names == name])
        return probs


class _ReleasedRank(AtypicalityAwareConformal):
    """Mode "paper" with the rank of the released switch `aa_sub`: the quantile 1 - alpha, the next higher score."""

    @staticmethod
    def _paper_threshold(scores: NDArray[np.float64], alpha: Fraction) -> float:
        return float(np.quantile(scores, float(1 - alpha), method="higher")) if scores.size else math.inf


def compare(
    methods: Any,
    outputs: ModelOutputs,
    *,
    train: Any = None,
    n_splits: int = 10,
    random_state: int = 0,
    alpha: float = 0.05,
    n_groups: int = 5,
    groups: str | None = None,
) -> Evaluation:
    """As `atypicality.compare`, with every method in the paper's own form.

    Temperatures, those of the groups of atypicality among them, have no prior, and sets are those of the released
    code.

    Parameters
    ----------
    methods : name, sequence of names, or mapping of names to names or objects
        As in `atypicality.compare`, without "lac", "saps" and their atypicality-aware forms, which the paper lacks.
    outputs, train, n_splits, random_state, n_groups, groups : as in `atypicality.compare`
    alpha : float, default=0.05
        Allowed miscoverage of the sets, the paper's.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> from atypicality.datasets import make_world
    >>> found = compare(["uncalibrated", "ts"], make_world(2000, temperature=2.0).outputs(), n_splits=3)
    >>> [row["metric"] for row in found.table("changes", axis="overall") if row["high"] < 0]
    ['nll', 'ece', 'brier']
    """
    check_alpha(alpha)
    named = named_methods(methods)
    for name, method in named.items():
        known, *sets = method if isinstance(method, tuple) and method else (method,)
        if isinstance(known, str):
            own = method_of(check_choice(known, "methods", NAMES), alpha, random_state)
            named[name] = (own, *sets) if sets else own
    options = Options.checked(n_groups, (6, 6), 10, intervals=False, temperature=PriorFreeTemperature)
    return compare_objects(named, outputs, train, n_splits, random_state, options, groups)


def method_of(name: str, alpha: float, seed: int) -> Any:
    """A method of `compare` as the paper has it, unfitted."""
    if name in SETS:
        return set_method(name, alpha, seed)
    own: dict[str, Callable[[], Any]] = {
        "ts": PriorFreeTemperature,
        "group-ts": PriorFreeGroupTemperature,
        "adats": lambda: AdaptiveTemperatureScaling(random_state=seed),
    }
    return own[name]() if name in own else by_name(name, alpha)


def set_method(name: str, alpha: float, seed: int) -> tuple[Any, Any]:
    """A pair for `compare`: one temperature, as in the paper, and sets by their name in `SETS`."""
    if name == "conditional":
        return PriorFreeTemperature(), ConditionalConformal(alpha, random_state=seed)
    kind = _ReleasedRank if name.endswith(RELEASED_RANK) else AtypicalityAwareConformal
    plain = name.removesuffix(RELEASED_RANK)
    cells = (6, 6) if plain.startswith("aa-") else (1, 1)
    score = plain.removeprefix("aa-")
    return PriorFreeTemperature(), kind(score, alpha, n_groups=cells, mode="paper", random_state=seed)


class RelativeQuadrants(BaseEstimator):
    """Four kinds of prediction, each relative to the calibration rows of one model.

    Of a model that is right in three cases of ten, the "reliable" predictions are the better ones, not good ones.

    Parameters
    ----------
    confidence_quantile : float in [0, 1], default=0.2
        The least confident fifth of the calibration set is low-confidence.
    atypicality_quantile : float in [0, 1], default=0.8
        The most atypical fifth of the calibration set is atypical.

    Attributes
    ----------
    quadrants_ : Quadrants
        With the thresholds that the quantiles came to.

    Examples
    --------
    >>> quadrants = RelativeQuadrants(0.5, 0.5).fit([0.1, 0.2, 0.3], [1.0, 2.0, 3.0])
    >>> quadrants.quadrants_.confidence_threshold_, quadrants.assign([0.2, 0.1], [1.0, 5.0]).tolist()
    (0.2, ['reliable', 'untrustworthy'])
    """

    quadrants_: Quadrants

    def __init__(self, confidence_quantile: float = 0.2, atypicality_quantile: float = 0.8) -> None:
        self.confidence_quantile = confidence_quantile
        self.atypicality_quantile = atypicality_quantile

    def fit(self, confidence: ArrayLike, atypicality: ArrayLike) -> Self:
        """Learn both thresholds from a calibration set: `confidence` and `atypicality` of shape (n_samples,)."""
        level = check_number(self.confidence_quantile, "confidence_quantile", low=0, high=1)
        threshold = float(np.quantile(check_confidence(confidence), level))
        self.quadrants_ = Quadrants(confidence=threshold, atypicality_quantile=self.atypicality_quantile)
        self.quadrants_.fit(confidence, atypicality)
        return self

    def assign(self, confidence: ArrayLike, atypicality: ArrayLike) -> NDArray[np.str_]:
        """Name of the quadrant of every sample, of shape (n_samples,), from its `confidence` and `atypicality`."""
        check_is_fitted(self, "quadrants_")
        return self.quadrants_.assign(confidence, atypicality)
