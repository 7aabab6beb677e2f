"""How good probabilities are: accuracy, proper losses and calibration errors, each a number.

Every metric here takes probabilities (n, k) and labels (n,); where the top class is all that matters, `confidence=`
and `correct=`, both (n,), will do instead. Any float dtype comes in, float64 goes out, and the rows are read once, in
blocks.
The prediction of a row is the first of its largest entries.

Bins of confidence are `(lo, hi]`: 1.0 lies in the last, 0.0 in the first. An edge is rounded to the dtype of the
probabilities, so that 0.3 lies on it in float32 as in float64.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.metrics.intervals import wilson_interval
from atypicality.metrics.rows import Given, read_all, read_pairs, row_brier, row_nll
from atypicality.metrics.smooth import smooth_calibration_error
from atypicality.validation import check_integer

__all__ = [
    "CalibrationCurve", "accuracy", "adaptive_ece", "brier", "calibration_curve", "classwise_ece",
    "debiased_calibration_error", "ece", "nll", "overconfidence", "rmsce", "smooth_ece", "summary",
]  # fmt: skip


def accuracy(probs: Given = None, labels: Given = None, *, confidence: Given = None, correct: Given = None) -> float:
    """Share of samples whose top class is the label.

    Parameters
    ----------
    probs : array-like of shape (n_samples, n_classes)
        Rows that sum to 1.
    labels : array-like of shape (n_samples,)
        Column indices.
    confidence, correct : array-like of shape (n_samples,)
        Instead of both: the probability of the top class, and whether it is the label.

    Examples
    --------
    >>> accuracy([[0.9, 0.1], [0.4, 0.6]], [0, 0])
    0.5
    >>> accuracy(confidence=[0.9, 0.6], correct=[True, False])
    0.5
    """
    return float(read_pairs(probs, labels, confidence, correct).correct.mean())


def overconfidence(
    probs: Given = None, labels: Given = None, *, confidence: Given = None, correct: Given = None
) -> float:
    """Mean confidence minus accuracy: above 0 the model is overconfident, below 0 underconfident.

    Parameters
    ----------
    probs, labels, confidence, correct : as in `accuracy`

    Examples
    --------
    >>> overconfidence(confidence=[0.75, 0.75], correct=[1, 0])
    0.25
    """
    pairs = read_pairs(probs, labels, confidence, correct)
    return float(pairs.confidence.mean() - pairs.correct.mean())


def nll(probs: ArrayLike, labels: ArrayLike) -> float:
    r"""Mean negative log-probability of the label, in nats.

    .. math:: -\frac{1}{n} \sum_i \log p_{i, y_i}

    A label with probability 0 makes it infinite. `sklearn.metrics.log_loss` agrees elsewhere, but clips
    probabilities at the machine epsilon of their dtype first.

    Parameters
    ----------
    probs, labels : as in `accuracy`

    Examples
    --------
    >>> round(nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 6)
    0.490415
    """
    return float(row_nll(probs, labels).mean())


def brier(probs: ArrayLike, labels: ArrayLike) -> float:
    r"""Mean squared distance between the probabilities and the one-hot label, summed over the classes: 0 to 2.

    .. math:: \frac{1}{n} \sum_i \sum_j (p_{ij} - 1[y_i = j])^2

    Brier 1950. Twice `sklearn.metrics.brier_score_loss` of a binary problem, whose default sums over one of the two
    classes.

    Parameters
    ----------
    probs, labels : as in `accuracy`

    Examples
    --------
    >>> brier([[1.0, 0.0], [0.5, 0.5]], [1, 0])
    1.25
    """
    return float(row_brier(probs, labels).mean())


def ece(
    probs: Given = None, labels: Given = None, *, confidence: Given = None, correct: Given = None, n_bins: int = 10
) -> float:
    r"""Expected calibration error over equal bins of confidence.

    .. math:: \sum_m \frac{|B_m|}{n} \, |\mathrm{acc}(B_m) - \mathrm{conf}(B_m)|

    The paper's appendix C with its 10 bins; Naeini et al. 2015, Guo et al. 2017. netcal and torchmetrics agree
    wherever no confidence lies on an edge: netcal's bins are `[lo, hi)`, and so are torchmetrics'.

    Parameters
    ----------
    probs, labels, confidence, correct : as in `accuracy`
    n_bins : int, default=10

    Examples
    --------
    >>> round(ece(confidence=[0.2, 0.8, 0.8], correct=[0, 1, 0], n_bins=2), 6)   # (1 * 0.2 + 2 * 0.3) / 3
    0.266667
    """
    bins = read_pairs(probs, labels, confidence, correct).bins(_check_bins(n_bins))
    return float(bins.expected_error())


def rmsce(
    probs: Given = None, labels: Given = None, *, confidence: Given = None, correct: Given = None, n_bins: int = 10
) -> float:
    r"""Root mean squared calibration error over equal bins of confidence; never below `ece` of the same bins.

    .. math:: \Big( \sum_m \frac{|B_m|}{n} \, (\mathrm{acc}(B_m) - \mathrm{conf}(B_m))^2 \Big)^{1/2}

    The paper's appendix C. Hendrycks et al. 2019 use the same formula over equally populated bins.

    Parameters
    ----------
    probs, labels, confidence, correct, n_bins : as in `ece`

    Examples
    --------
    >>> round(rmsce(confidence=[0.2, 0.8, 0.8], correct=[0, 1, 0], n_bins=2), 6)   # sqrt((0.04 + 2 * 0.09) / 3)
    0.270801
    """
    bins = read_pairs(probs, labels, confidence, correct).bins(_check_bins(n_bins))
    return math.sqrt(bins.squared_error())


def debiased_calibration_error(
    probs: Given = None, labels: Given = None, *, confidence: Given = None, correct: Given = None, n_bins: int = 10
) -> float:
    r"""Squared calibration error over equal bins, less what chance alone adds to it; may be negative.

    .. math:: \sum_m \frac{|B_m|}{n} \Big( (\mathrm{acc}_m - \mathrm{conf}_m)^2
              - \frac{\mathrm{acc}_m (1 - \mathrm{acc}_m)}{|B_m| - 1} \Big)

    The estimator of Kumar, Liang and Ma 2019 (Verified Uncertainty Calibration, section 5). Its square root is
    comparable to `rmsce`. A bin of one sample carries no information about its own noise and counts 0.
    The correction treats confidence as constant within a bin: it takes off too much by at most a quarter of the
    squared bin width for each bin, over n.

    Parameters
    ----------
    probs, labels, confidence, correct, n_bins : as in `ece`

    Examples
    --------
    >>> round(debiased_calibration_error(confidence=[0.8, 0.8], correct=[1, 0]), 6)   # 0.3 ** 2 - 0.25 / 1
    -0.16
    """
    return read_pairs(probs, labels, confidence, correct).bins(_check_bins(n_bins)).debiased_squared_error()


def adaptive_ece(
    probs: Given = None, labels: Given = None, *, confidence: Given = None, correct: Given = None, n_bins: int = 10
) -> float:
    """Expected calibration error over equally populated bins of confidence.

    The bins are quantile groups (see `atypicality.QuantileGroups`): equal confidences are never parted, whatever the
    order of the samples, so repeated ones merge bins. Nguyen and O'Connor 2015; Nixon et al. 2019.

    Parameters
    ----------
    probs, labels, confidence, correct, n_bins : as in `ece`

    Examples
    --------
    >>> round(adaptive_ece(confidence=[0.6, 0.7, 0.8, 0.9], correct=[1, 1, 1, 0], n_bins=2), 6)   # 0.35, 0.35
    0.35
    """
    return float(read_pairs(probs, labels, confidence, correct).adaptive_bins(_check_bins(n_bins)).expected_error())


def classwise_ece(probs: ArrayLike, labels: ArrayLike, *, n_bins: int = 10) -> float:
    r"""Mean over the classes of the calibration error of "is it this class?", over equal bins of its probability.

    .. math:: \frac{1}{k} \sum_j \sum_m \frac{|B_{jm}|}{n} \, |\mathrm{share}_j(B_{jm}) - \mathrm{prob}_j(B_{jm})|

    Kull et al. 2019. Every column counts, also a class that no label names.

    Parameters
    ----------
    probs, labels, n_bins : as in `ece`

    Examples
    --------
    >>> round(classwise_ece([[0.9, 0.1], [0.4, 0.6]], [0, 0], n_bins=2), 6)   # each class: 0.1 / 2 + 0.6 / 2
    0.35
    """
    return float(read_all(probs, labels, _check_bins(n_bins)).class_bins.expected_error().mean())


def smooth_ece(probs: Given = None, labels: Given = None, *, confidence: Given = None, correct: Given = None) -> float:
    r"""Calibration error of residuals smoothed by a Gaussian, with the bandwidth that equals the error itself.

    .. math:: \mathrm{smECE}_\sigma = \int_0^1 \Big| \frac{1}{n} \sum_i K_\sigma(t, c_i) (y_i - c_i) \Big| dt,
              \qquad \mathrm{smECE} = \sigma^* \text{ with } \mathrm{smECE}_{\sigma^*} = \sigma^*

    `K` is the Gaussian kernel reflected at 0 and 1. Blasiok and Nakkiran 2023 (Smooth ECE: principled reliability
    diagrams via kernel smoothing), without bins and continuous in the predictions. Computed by a cosine transform
    on a grid; the stated error is in `atypicality.metrics.smooth`.

    Parameters
    ----------
    probs, labels, confidence, correct : as in `accuracy`

    Examples
    --------
    >>> round(smooth_ece(confidence=[0.75, 0.75, 0.75, 0.75], correct=[1, 1, 0, 0]), 6)   # one point: its gap
    0.25
    """
    pairs = read_pairs(probs, labels, confidence, correct)
    return smooth_calibration_error(pairs.confidence, pairs.correct)


def summary(probs: ArrayLike, labels: ArrayLike, *, n_bins: int = 10) -> dict[str, float]:
    """All calibration metrics of one model from one pass over its probabilities, by the names of this module.

    Parameters
    ----------
    probs, labels, n_bins : as in `ece`

    Returns
    -------
    dict of str to float

    Examples
    --------
    >>> sorted(summary([[0.9, 0.1], [0.4, 0.6]], [0, 0]))[:3]
    ['accuracy', 'adaptive_ece', 'brier']
    """
    rows = read_all(probs, labels, _check_bins(n_bins))
    pairs, bins = rows.pairs, rows.pairs.bins(n_bins)
    return {
        "accuracy": float(pairs.correct.mean()),
        "nll": float(rows.nll.mean()),
        "brier": float(rows.brier.mean()),
        "ece": float(bins.expected_error()),
        "rmsce": math.sqrt(bins.squared_error()),
        "adaptive_ece": float(pairs.adaptive_bins(n_bins).expected_error()),
        "classwise_ece": float(rows.class_bins.expected_error().mean()),
        "debiased_calibration_error": bins.debiased_squared_error(),
        "smooth_ece": smooth_calibration_error(pairs.confidence, pairs.correct),
        "overconfidence": float(pairs.confidence.mean() - pairs.correct.mean()),
    }


@dataclass(frozen=True)
class CalibrationCurve:
    """A reliability diagram as columns, one entry per bin, empty bins included; made by `calibration_curve`.

    Attributes
    ----------
    lower, upper : ndarray of shape (n_bins,)
        The bin is `(lower, upper]`.
    count : ndarray of shape (n_bins,)
    confidence, accuracy : ndarray of shape (n_bins,)
        Means of the bin; NaN when it is empty.
    low, high : ndarray of shape (n_bins,)
        Wilson interval of the accuracy; [0, 1] when the bin is empty.

    Examples
    --------
    >>> curve = calibration_curve(confidence=[0.2, 0.8, 0.8], correct=[0, 1, 0], n_bins=2)
    >>> curve.count, curve.upper
    (array([1, 2]), array([0.5, 1. ]))
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    count: NDArray[np.intp]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def calibration_curve(
    probs: Given = None,
    labels: Given = None,
    *,
    confidence: Given = None,
    correct: Given = None,
    n_bins: int = 10,
    level: float = 0.95,
) -> CalibrationCurve:
    """Count, mean confidence and accuracy with its interval, for each equal bin of confidence.

    Parameters
    ----------
    probs, labels, confidence, correct, n_bins : as in `ece`
    level : float in (0, 1), default=0.95
        Of the intervals of the accuracy (Wilson 1927).

    Returns
    -------
    CalibrationCurve

    Examples
    --------
    >>> calibration_curve(confidence=[0.2, 0.8, 0.8], correct=[0, 1, 0], n_bins=2).accuracy
    array([0. , 0.5])
    """
    bins = read_pairs(probs, labels, confidence, correct).bins(_check_bins(n_bins))
    empty, size = bins.count == 0, np.maximum(bins.count, 1)
    low, high = wilson_interval(bins.correct, bins.count, level)
    edges = np.arange(n_bins + 1) / n_bins
    return CalibrationCurve(
        lower=edges[:-1],
        upper=edges[1:],
        count=bins.count.astype(np.intp),
        confidence=np.where(empty, np.nan, bins.confidence / size),
        accuracy=np.where(empty, np.nan, bins.accuracy),
        low=low,
        high=high,
    )


def _check_bins(n_bins: int) -> int:
    return check_integer(n_bins, "n_bins", low=1)
