"""A scikit-learn meta-estimator: any classifier, with recalibrated probabilities, prediction sets and atypicality."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils import _safe_indexing, assert_all_finite, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples, check_array, check_is_fitted, column_or_1d

from atypicality.head import ReliabilityHead
from atypicality.outputs import ModelOutputs
from atypicality.reliability import Reliability
from atypicality.validation import check_choice, check_integer, check_number

__all__ = ["AtypicalityAwareClassifier"]

SMALLEST = np.finfo(np.float64).tiny
"""Probability 0 becomes this: its logarithm is finite, so a class the estimator rules out can still be the label."""


class AtypicalityAwareClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Any classifier with a `ReliabilityHead` behind it: `fit(X, y)`, then probabilities and sets to rely on.

    `fit` cuts the rows at random: one part trains the estimator and the density, the other calibrates the head.

    Parameters
    ----------
    estimator : classifier, default=None
        With `predict_proba` or `decision_function`. None is `LogisticRegression()`.
    embedder : transformer, default=None
        What atypicality is measured on is `embedder.transform(X)`; X itself by default.
    head : ReliabilityHead, default=None
        None is `ReliabilityHead()`.
    calibration_fraction : float in (0, 1), default=0.4
        Share of the rows that calibrate.
    cv : {None, "prefit"}, default=None
        "prefit": the estimator and the embedder are fitted and stay as they are; give rows they have not seen.
    random_state : int, default=0
        Of the cut.

    Attributes
    ----------
    classes_ : ndarray of shape (k,)
    estimator_, embedder_, head_ : fitted parts

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_digits(return_X_y=True)
    >>> from sklearn.decomposition import PCA
    >>> model = AtypicalityAwareClassifier(LogisticRegression(max_iter=500), embedder=PCA(20)).fit(X[:1500], y[:1500])
    >>> model.predict_set(X[1500:]).shape
    (297, 10)
    """

    classes_: NDArray[Any]
    estimator_: Any
    embedder_: Any
    head_: ReliabilityHead

    def __init__(
        self,
        estimator: Any = None,
        *,
        embedder: Any = None,
        head: ReliabilityHead | None = None,
        calibration_fraction: float = 0.4,
        cv: str | None = None,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.embedder = embedder
        self.head = head
        self.calibration_fraction = calibration_fraction
        self.cv = cv
        self.random_state = random_state

    def fit(self, X: Any, y: ArrayLike) -> Self:
        """Fit the estimator, the density and the head on rows X (n, ...) with labels y (n,) of any kind."""
        prefit = check_choice(self.cv, "cv", (None, "prefit")) == "prefit"
        fraction = check_number(
            self.calibration_fraction, "calibration_fraction", low=0, high=1, low_open=True, high_open=True
        )
        if y is None:
            raise ValueError("y must be given: requires y to be passed, but the target y is None.")
        X, y = indexable(X, y)
        targets = column_or_1d(y, warn=True)
        if targets.dtype.kind == "f":
            assert_all_finite(targets, input_name="y")
        check_classification_targets(targets)
        first, second = self._cut(_num_samples(X), fraction)
        if prefit:
            check_is_fitted(self.estimator)
            self.estimator_, self.embedder_ = self.estimator, self.embedder
        else:
            self._fit_parts(_safe_indexing(X, first), targets[first])
        self.classes_, codes = np.unique(np.r_[targets, self.estimator_.classes_], return_inverse=True)
        codes = codes[: targets.size]
        head = ReliabilityHead() if self.head is None else clone(self.head)
        train = ModelOutputs(embeddings=self._features(_safe_indexing(X, first)), labels=codes[first])
        calibration = self._outputs(_safe_indexing(X, second), codes[second])
        self.head_ = head.fit(train=train, calibration=calibration)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def _cut(self, n_rows: int, fraction: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Plain random parts: stratifying would make the calibration rows unlike new ones."""
        order = np.random.default_rng(check_integer(self.random_state, "random_state", low=0)).permutation(n_rows)
        kept = n_rows - round(fraction * n_rows)
        if not 0 < kept < n_rows:
            raise ValueError(
                f"calibration_fraction must leave rows on both sides; {fraction:g} of n_samples = {n_rows} does not."
            )
        return np.sort(order[:kept]), np.sort(order[kept:])

    def _fit_parts(self, X: Any, targets: NDArray[Any]) -> None:
        estimator = LogisticRegression() if self.estimator is None else clone(self.estimator)
        self.estimator_ = estimator.fit(X, targets)
        self.embedder_ = None if self.embedder is None else clone(self.embedder).fit(X, targets)

    def _features(self, X: Any) -> NDArray[Any]:
        return np.asarray(check_array(X if self.embedder_ is None else self.embedder_.transform(X)))

    def _outputs(self, X: Any, labels: NDArray[np.intp] | None = None) -> ModelOutputs:
        return ModelOutputs(self._logits(X), embeddings=self._features(X), labels=labels)

    def _logits(self, X: Any) -> NDArray[np.float64]:
        """Logits (n, k) in the order of `classes_`: logarithms of probabilities, or decision values."""
        if hasattr(self.estimator_, "predict_proba"):
            known = np.log(np.maximum(np.asarray(self.estimator_.predict_proba(X), np.float64), SMALLEST))
        else:
            known = np.asarray(self.estimator_.decision_function(X), np.float64)
            known = np.c_[np.zeros_like(known), known] if known.ndim == 1 else known
        columns = np.searchsorted(self.classes_, self.estimator_.classes_)
        if columns.size == self.classes_.size:
            return known
        logits = np.repeat(known.min(axis=1, keepdims=True), self.classes_.size, axis=1)
        logits[:, columns] = known
        return logits

    def reliability(self, X: Any, *, max_risk: float | None = None) -> Reliability:
        """Everything the head says about rows `X`; labels are positions in `classes_`, `max_risk` as in the head."""
        check_is_fitted(self, "head_")
        return self.head_.predict(self._outputs(X), max_risk=max_risk)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Recalibrated probabilities (n, k) of rows `X`, columns in the order of `classes_`."""
        check_is_fitted(self, "head_")
        return self.reliability(X).proba

    def predict(self, X: Any) -> NDArray[Any]:
        """Most probable class (n,) of rows `X` after recalibration."""
        check_is_fitted(self, "head_")
        return np.asarray(self.classes_[self.reliability(X).label])

    def predict_set(self, X: Any) -> NDArray[np.bool_]:
        """Prediction sets of rows `X`, bool (n, k), columns in the order of `classes_`."""
        return self.reliability(X).prediction_set

    def atypicality(self, X: Any) -> NDArray[np.float64]:
        """How rare each row of `X` is (n,): larger is rarer."""
        check_is_fitted(self, "head_")
        return np.asarray(self.head_.density_.atypicality(self._features(X)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.estimator is not None:
            tags.input_tags.string = get_tags(self.estimator).input_tags.string
        tags.input_tags.sparse = False
        tags.classifier_tags.multi_label = False
        tags.classifier_tags.poor_score = True  # half of the few rows of scikit-learn's checks go to calibration
        return tags
