"""Accuracy without labels: what recalibrated probabilities say of it, how far that can be off, and when not to say."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

from atypicality.arrays import to_host
from atypicality.head.reference import HeldOutCounts, Ranks
from atypicality.metrics.intervals import check_level
from atypicality.outputs import ModelOutputs, check_outputs
from atypicality.recalibration.class_mix import ClassMix, estimate_class_mix
from atypicality.recalibration.class_prior import check_class_prior, is_estimated
from atypicality.validation import caught_warnings, check_integer

__all__ = [
    "AccuracyEstimate", "Profile", "calibrated_mix", "doubting", "estimate_accuracy", "estimated", "moved_rows",
    "need_reference", "tilted",
]  # fmt: skip

LARGEST_SPREAD = 0.1  # points of accuracy by which estimates may differ before none is given
LARGEST_TAIL = 0.5  # share of rows that may be more atypical than 99 % of the held-out rows
LARGEST_MOVE = 0.5  # largest distance of an estimated class mix from the held-out one, in total variation
MOST_ROWS = 4000
"""Rows that the class mix is estimated from: more narrow its interval below what the probabilities are good for."""
TAIL = 0.99
FLOOR = 1e-12
LOST = 0.1  # share of the changed rows that confidence takes for right and that are wrong
ERRORS = {"estimated": (0.35, 1.0), "known": (0.15, 1.5)}
"""Standard deviation of an estimate's log-odds by how the class mix came: of rows like the held-out ones, and what all
rows add if they changed."""
PLAIN = ("accuracy", "low", "high", "level", "refusal", "advice", "n_rows")
NEAREST = 0.01  # how near to 0 and to 1 log-odds of an accuracy are taken

LABEL_ROWS = "Label some rows."
LABEL_ROWS_OR_MIX = "Label some rows, or give class_mix= in Python if you know it."

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class AccuracyEstimate:
    """Estimated accuracy of unlabelled rows.

    Attributes
    ----------
    accuracy : float or None
        None where the estimate is refused.
    low, high : float or None
        Interval around it.
    level : float
    refusal : str or None
        Why there is no estimate.
    advice : str or None
        What to do about a refusal, where the rows have no labels.
    estimates : dict of str to float
        What each estimator gives: "confidence" is the mean recalibrated confidence, "class mix" the same under the
        estimated or the given class mix, "transport" that of probabilities tilted to the given mix, "reference" the
        accuracy of the held-out rows, and "combined" what `accuracy` is where it is not refused.
    class_mix : ClassMix, ndarray of shape (k,), or None
        As estimated, with its interval; as given; or None where it could not be estimated.
    n_rows : int
        Unlabelled rows.

    Examples
    --------
    >>> from atypicality.datasets import load_fashion_mnist
    >>> from atypicality.head import ReliabilityHead
    >>> train, calibration, test = load_fashion_mnist()
    >>> found = estimate_accuracy(ReliabilityHead().fit(train=train, calibration=calibration), test)
    >>> found.low < 0.93 < found.high, found.refusal is None
    (True, True)
    """

    accuracy: float | None
    low: float | None
    high: float | None
    level: float
    refusal: str | None
    estimates: dict[str, float]
    class_mix: Any
    n_rows: int
    advice: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        mix = self.class_mix
        shares: Any = {"shares": None if mix is None else np.asarray(mix).tolist()}
        if isinstance(mix, ClassMix):
            shares = {"shares": mix.shares.tolist(), "low": _finite(mix.low), "high": _finite(mix.high)}
        plain = {name: getattr(self, name) for name in PLAIN}
        return plain | {"estimates": self.estimates, "class_mix": shares}

    def __str__(self) -> str:
        if self.accuracy is None:
            return f"no estimate of accuracy: {self.refusal} {self.advice}"
        return f"accuracy about {self.accuracy:.3f}, {self.level:.0%} interval {self.low:.3f} to {self.high:.3f}"


@dataclass(frozen=True, eq=False)
class Profile:
    """Probabilities (m, k) of rows, or of groups of rows alike, as the estimators need them."""

    probs: Vector
    label: NDArray[np.intp]  # predicted column (m,)
    weight: Vector  # share of the rows (m,)
    n_rows: int
    tail: float  # share of rows more atypical than 99 % of the held-out rows
    changed: float = 0.0  # smallest share that must have changed for atypicality, or else classes, to be spread so

    def confidence(self, probs: Vector) -> float:
        """Mean probability of the predicted labels."""
        return float(self.weight @ probs[np.arange(len(probs)), self.label])

    def sample(self) -> Vector:
        """At most `MOST_ROWS` rows (n, k) with the shares of the profile, as equally spaced quantiles of it."""
        n = min(self.n_rows, MOST_ROWS)
        places = np.searchsorted(np.cumsum(self.weight), (np.arange(n) + 0.5) / n)
        return self.probs[np.minimum(places, len(self.probs) - 1)]


def estimate_accuracy(
    head: Any, outputs: ModelOutputs, class_mix: Any = None, *, level: float = 0.9, n_bootstrap: int = 100
) -> AccuracyEstimate:
    """Estimate the accuracy of a head's labels for rows without labels.

    Without `class_mix` the estimate is the mean recalibrated confidence, or that under the class mix that EM finds if
    it is lower, since confidence falls less than accuracy under a shift (Garg et al. 2022). It is moved by as much as
    the held-out rows are more often right than their confidence says (Guillory et al. 2021), and lowered by a tenth of
    the rows that must have changed for their atypicality to be spread as it is. With `class_mix`, probabilities are
    tilted, by one factor for each class, until they have that mix: the entropic optimal transport from the rows to the
    classes. The interval is one of log-odds: sampling errors, and an error of the method that grows with the share of
    changed rows, half as fast upwards. Its constants come from nine models under corruption; it is not proved.

    There is no estimate where the estimators disagree by more than 0.1, where half of the rows are more atypical than
    99 % of the held-out rows, or where the class mix that EM finds is further than 0.5 in total variation from the
    held-out one, since corrupted inputs then look like another mix.

    Parameters
    ----------
    head : ReliabilityHead
    outputs : ModelOutputs
        Logits, and embeddings or atypicality; labels are not read.
    class_mix : array-like of shape (k,), or mapping of int to float, optional
        Class shares of these rows, where they are known.
    level : float, default=0.9
        Of the interval.
    n_bootstrap : int, default=100
        Resamples behind the interval of the class mix; 0 makes none.

    Returns
    -------
    AccuracyEstimate
        The estimate with its interval, or the reason why there is none.

    Examples
    --------
    >>> from atypicality.datasets import load_fashion_mnist
    >>> from atypicality.head import ReliabilityHead
    >>> train, calibration, test = load_fashion_mnist()
    >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
    >>> found = estimate_accuracy(head, test, class_mix=[0.1] * 10)
    >>> found.low < 0.93 < found.high, sorted(found.estimates)
    (True, ['class mix', 'combined', 'confidence', 'reference', 'transport'])
    """
    reference = need_reference(head)
    ordered = check_outputs(outputs).with_classes(head.class_names_, whose="those of the head")
    if not len(ordered):
        raise ValueError("outputs must have at least one row to estimate an accuracy from.")
    with caught_warnings():  # of drift, which is what the estimate is about
        answer = head.predict(ordered).on_host()
    probs, label = np.asarray(answer.proba, np.float64), to_host(answer.label)
    cells, ranks = None, reference.atypicality
    if ranks is not None:
        cells = np.bincount(ranks.cells(answer.atypicality), minlength=2 * ranks.edges.size + 1)
    moved = moved_rows(reference, np.bincount(label, minlength=probs.shape[1]), cells)
    profile = Profile(probs, label, np.full(len(probs), 1 / len(probs)), len(probs), *moved)
    own = None if answer.class_mix is None else answer.class_mix.shares
    calibrated = calibrated_mix(head, reference) if own is None else own
    return estimated(profile, reference, class_mix, calibrated=calibrated, level=level, n_bootstrap=n_bootstrap)


def _finite(ends: Vector) -> list[float] | None:
    """Plain numbers; None without resamples, for JSON has no NaN."""
    return ends.tolist() if np.isfinite(ends).all() else None


def need_reference(head: Any) -> HeldOutCounts:
    """What a fitted head stores of its held-out rows."""
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(head, "recalibration_")
    if getattr(head, "reference_", None) is None:
        raise ValueError("head has no counts of its held-out rows: an older version fitted it. Fit or refit it.")
    found: HeldOutCounts = head.reference_
    return found


def moved_rows(reference: HeldOutCounts, predicted: NDArray[Any], cells: NDArray[Any] | None) -> tuple[float, float]:
    """`Profile.tail` and `Profile.changed` of rows, from their counts by predicted class (k,) and cell of atypicality.

    Changing a share of the rows moves the probability of any event by at most that share: the largest step between the
    distributions of atypicality, or the total variation of the predicted classes, bounds it from below. What sampling
    alone explains on average is taken off.
    """
    if reference.atypicality is None or cells is None:
        return 0.0, _changed_classes(predicted, reference.predicted)
    return float(cells[-1] / max(cells.sum(), 1)), _changed_ranks(cells, reference.atypicality)


def _changed_classes(new: NDArray[Any], old: NDArray[Any]) -> float:
    """Total variation between shares, less the mean of what two samples of the same law show."""
    pooled = (new + old) / (new + old).sum()
    errors = np.sqrt(pooled * (1 - pooled) * (1 / new.sum() + 1 / old.sum()))
    distance = np.abs(new / new.sum() - old / old.sum()).sum() / 2
    return max(0.0, float(distance - errors.sum() / math.sqrt(2 * math.pi)))


def _changed_ranks(cells: NDArray[Any], ranks: Ranks) -> float:
    """Largest difference of distribution functions at the edges, less one standard error; ties count for no change."""
    n, total = ranks.n_rows, cells.sum()
    below, up_to = (np.cumsum(cells)[start:-1:2] / total for start in (0, 1))
    low, high = ranks.low / n, ranks.high / n
    errors = np.sqrt(low * (1 - low) * (1 / total + 1 / n))
    return max(0.0, float((np.maximum(high - up_to, below - low) - errors).max()))


def calibrated_mix(head: Any, reference: HeldOutCounts) -> Vector:
    """Class shares (k,) under which a head's probabilities are calibrated: its class prior, or the held-out labels'."""
    prior = getattr(head.recalibration_, "class_prior", None)
    if prior is None or is_estimated(prior):
        return _held_out_mix(reference)
    shares = np.maximum(check_class_prior(prior, reference.labels.size), FLOOR)
    return np.asarray(shares / shares.sum())


def _held_out_mix(reference: HeldOutCounts) -> Vector:
    counts = np.maximum(reference.labels, 0.5)  # a class without rows counts as half a row
    return np.asarray(counts / counts.sum())


def estimated(
    profile: Profile,
    reference: HeldOutCounts,
    class_mix: Any,
    *,
    calibrated: Vector,
    level: float = 0.9,
    n_bootstrap: int = 100,
) -> AccuracyEstimate:
    """As `estimate_accuracy`, from a profile, of probabilities that are calibrated under the mix `calibrated`."""
    check_level(level)
    check_integer(n_bootstrap, "n_bootstrap", low=0)
    known = None if class_mix is None else check_class_prior(class_mix, profile.probs.shape[1], "class_mix")
    found = {"confidence": profile.confidence(profile.probs)}
    mix: Any = known
    if known is None:
        mix, moved = _estimated_mix(profile, calibrated, n_bootstrap)
    else:
        moved = 0.0
        found["transport"] = profile.confidence(tilted(profile.probs, profile.weight, known))
    if mix is not None:
        shares = mix.shares if isinstance(mix, ClassMix) else mix
        found["class mix"] = profile.confidence(_under_mix(profile.probs, shares / calibrated))
    first = found["confidence" if known is None else "transport"]
    second = found.get("class mix", first)
    centre = first if known is not None else _lowered(min(first, second), profile, reference, calibrated)
    found |= {"reference": reference.accuracy, "combined": centre}
    if refusal := _refusal(abs(second - first), profile.tail, moved):
        advice = LABEL_ROWS_OR_MIX if known is None and profile.tail <= LARGEST_TAIL else LABEL_ROWS
        return AccuracyEstimate(None, None, None, level, refusal, found, mix, profile.n_rows, advice)
    low, high = _interval(centre, ERRORS["estimated" if known is None else "known"], profile, reference, level)
    return AccuracyEstimate(centre, low, high, level, None, found, mix, profile.n_rows)


def doubting(found: AccuracyEstimate, n_doubted: int) -> AccuracyEstimate:
    """An estimate of rows of which some came with logits that look wrong, and may all be wrong; none where many did."""
    share = n_doubted / found.n_rows
    if not n_doubted or found.accuracy is None or found.low is None:
        return found
    if share <= LARGEST_SPREAD:
        return replace(found, low=max(0.0, found.low - share))
    refusal = f"{share:.0%} of the rows came with logits that do not fit their embeddings, or look like probabilities."
    return replace(found, accuracy=None, low=None, high=None, refusal=refusal, advice=LABEL_ROWS)


def _lowered(confidence: float, profile: Profile, reference: HeldOutCounts, calibrated: Vector) -> float:
    """Mean confidence, moved by its error on the held-out rows, less a share of the rows that changed."""
    known = reference.mean_confidence
    if known is None or not np.allclose(calibrated, _held_out_mix(reference)):  # confidence under another mix
        known = reference.accuracy
    return min(max(confidence * (1 - LOST * profile.changed) + (reference.accuracy - known), 0.0), 1.0)


def tilted(probs: Vector, weight: Vector, mix: Vector) -> Vector:
    r"""Probabilities (m, k) times one factor for each class, with rows that sum to 1 and the mean `mix`.

    Of all joint laws of row and class with these margins it is the nearest to the given probabilities in
    Kullback-Leibler divergence: the entropic optimal transport of cost :math:`-\log p` (Cuturi 2013). The logarithms of
    the factors minimise a convex function of k numbers.

    >>> probs = np.array([[0.9, 0.1], [0.6, 0.4]])
    >>> tilted(probs, np.array([0.5, 0.5]), np.array([0.5, 0.5])).mean(axis=0).round(4)
    array([0.5, 0.5])
    """
    from scipy.optimize import minimize  # loaded where it is needed: a head that predicts starts sooner

    target = np.maximum(mix, FLOOR) / np.maximum(mix, FLOOR).sum()
    logs = np.log(np.maximum(probs, FLOOR))

    def objective(factors: Vector) -> tuple[float, Vector]:
        raised = logs + factors
        top = raised.max(axis=1, keepdims=True)
        mass = np.exp(raised - top)
        total = mass.sum(axis=1, keepdims=True)
        value = weight @ (top + np.log(total))[:, 0] - target @ factors
        return float(value), weight @ (mass / total) - target

    start = np.log(target) - np.log(np.maximum(weight @ probs, FLOOR))
    best = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000, "gtol": 1e-7}).x
    return _under_mix(probs, np.exp(best - best.max()))


def _under_mix(probs: Vector, ratio: Vector) -> Vector:
    raised = np.maximum(probs, FLOOR) * ratio
    return np.asarray(raised / np.maximum(raised.sum(axis=1, keepdims=True), np.finfo(float).tiny))


def _estimated_mix(profile: Profile, calibrated: Vector, n_bootstrap: int) -> tuple[ClassMix | None, float]:
    """The class mix by EM and its distance from the calibrated one; None where EM itself refuses."""
    try:
        mix = estimate_class_mix(profile.sample(), calibrated, n_bootstrap=n_bootstrap)
    except ValueError:  # classes are confused too much, or rows too few: the mean confidence needs no mix
        return None, 0.0
    return mix, float(np.abs(mix.shares - calibrated).sum() / 2)


def _refusal(spread: float, tail: float, moved: float) -> str | None:
    if tail > LARGEST_TAIL:
        return (
            f"{tail:.0%} of the rows are more atypical than {TAIL:.0%} of the held-out rows: none were seen like them."
        )
    if spread > LARGEST_SPREAD:
        return f"two estimates differ by {spread:.2f}, more than {LARGEST_SPREAD}."
    if moved > LARGEST_MOVE:
        return (
            f"the predictions look like another class mix, which differs in the class of {moved:.0%} of the rows from "
            "the one that the head is calibrated for, or like corrupted inputs, and nothing tells which."
        )
    return None


def _interval(
    centre: float, errors: tuple[float, float], profile: Profile, reference: HeldOutCounts, level: float
) -> tuple[float, float]:
    """Ends around the log-odds of the estimate: sampling errors, and an error that grows with the rows that changed."""
    variance = max(centre * (1 - centre), reference.accuracy * (1 - reference.accuracy))
    smallest = 0.25 / min(profile.n_rows, reference.n_rows)  # of an accuracy of 0 or 1, which few rows may show
    sampling = math.sqrt(max(variance, smallest) * (1 / profile.n_rows + 1 / reference.n_rows))
    inside = min(max(centre, NEAREST), 1 - NEAREST)
    deviates = float(ndtri((1 + level) / 2))
    below, above = (
        deviates * math.hypot(sampling / (inside * (1 - inside)), errors[0] + side * errors[1] * profile.changed)
        for side in (1.0, 0.5)
    )
    odds = float(logit(inside))
    return min(centre, float(expit(odds - below))), max(centre, float(expit(odds + above)))
