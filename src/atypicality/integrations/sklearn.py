"""A scikit-learn meta-estimator: any classifier, with recalibrated probabilities, prediction sets and atypicality."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples, check_array, check_is_fitted, column_or_1d

from atypicality.conformal.cross import CrossConformal
from atypicality.density import GaussianAtypicality
from atypicality.evaluation import Evaluation
from atypicality.head import ReliabilityHead
from atypicality.head.reliability import Reliability
from atypicality.integrations.sklearn_checks import check_answers, check_predicts, decisions, log_probs
from atypicality.integrations.sklearn_evaluation import classifier_card, evaluate_classifier, guaranteed_coverage
from atypicality.integrations.sklearn_files import load_classifier, save_classifier, untrusted_types
from atypicality.integrations.sklearn_folds import (
    TABLE,
    OutOfFold,
    averaged,
    check_crossed,
    cut_folds,
    density_of,
    fit_crossed,
    number_of_folds,
)
from atypicality.integrations.sklearn_rows import (
    MARKED,
    check_classes,
    check_kind,
    check_known,
    check_no_others,
    check_table,
    codes_of,
    group_column,
    index_name,
    index_of,
    named_columns,
    row_marks,
    warn_of_few_rows,
    warn_of_other_labels,
    warn_of_seen_rows,
    warn_of_single_rows,
)
from atypicality.integrations.sklearn_tables import default_embedder
from atypicality.outputs import ModelOutputs
from atypicality.outputs.class_names import check_class_names
from atypicality.outputs.model_outputs import check_attributes
from atypicality.outputs.table_index import check_index
from atypicality.validation import caught_warnings, check_integer, check_number

__all__ = ["AtypicalityAwareClassifier"]

PROBED = 1000  # rows on which the scores of an estimator are compared with its predictions


class AtypicalityAwareClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Any classifier with a `ReliabilityHead` behind it: `fit(X, y)`, then probabilities and sets to rely on.

    What the sets, the recalibration and the density are is set in the head: ``head=ReliabilityHead(alpha=0.05)``.
    `fit` cuts the rows at random: one part trains the estimator and the density, the other calibrates the head. With
    ``cv=5`` every row does both: five estimators, each fitted without a fold, calibrate by the fold they left out.

    Parameters
    ----------
    estimator : classifier, default=None
        With `predict_proba`, or a `decision_function` with one score per class (an SVC with
        decision_function_shape="ovr"), for one label per row. None is `LogisticRegression()`.
    embedder : transformer, default=None
        What atypicality is measured on is `embedder.transform(X)`: dense, finite numbers. None takes what enters the
        last step of a `Pipeline`, also of the best one of a search, and X itself with any other estimator. Missing
        values, categories and sparse columns of either then become numbers by `TableEmbedder`.
    head : ReliabilityHead, default=None
        None is `ReliabilityHead()`. `ReliabilityHead(alpha=0.05)` makes sets that miss the label more rarely.
    calibration_fraction : float in (0, 1), default=0.4
        Share of the rows that calibrate, without folds; the others train the estimator and the density, or the density
        alone with "prefit". Half of those that calibrate recalibrate, the others set the thresholds of sets.
    cv : int, "prefit" or None, default=None
        A number of folds, at least 2, to cross-fit. "prefit": the estimator and the embedder are fitted and stay as
        they are; give rows they have not seen.
    ensemble : bool, default=True
        Of cross-fitting. True: probabilities are the mean of the folds' estimators, recalibrated, and sets are
        `CrossConformal` (CV+), whose coverage is at least `coverage_guarantee_`. False: one estimator is fitted again
        on all rows, predicts faster, and has the head's own sets, for which no coverage is guaranteed.
    random_state : int, default=0
        Of the cut.

    Attributes
    ----------
    classes_ : ndarray of shape (k,)
    estimators_ : list of fitted estimators
        Whose mean is recalibrated: one per fold with ``ensemble=True``, else one.
    embedder_, head_ : fitted parts
        Where the head leaves the density open, it is ``GaussianAtypicality(shrinkage="columns")`` with folds, and
        without where columns are constant or depend on each other, as all one-hot ones do: new categories are noticed.
        With folds it is that of all rows.
    estimator_ : fitted estimator
        The only one of `estimators_`.
    cross_conformal_ : CrossConformal or None
    coverage_guarantee_ : float or None
        Least probability that a set holds the label of a new row drawn like the others, over the rows of `fit` too:
        1 - alpha without folds, less with them. None where none is guaranteed: with ``ensemble=False``, and for
        prediction sets that state no guarantee.
    zero_proba_ : float
        What a probability of 0 counts as, 1 / rows that trained the estimator (that were given, with "prefit"), or half
        of the row's smallest probability if that is less. Forests and neighbours give 0 to classes without a vote among
        few; its logarithm would rule them out for good, and one such label would flatten all probabilities.

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

    def __init__(
        self,
        estimator: Any = None,
        *,
        embedder: Any = None,
        head: ReliabilityHead | None = None,
        calibration_fraction: float = 0.4,
        cv: int | str | None = None,
        ensemble: bool = True,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.embedder = embedder
        self.head = head
        self.calibration_fraction = calibration_fraction
        self.cv = cv
        self.ensemble = ensemble
        self.random_state = random_state

    def set_params(self, **params: Any) -> Self:
        """Set `params` by name, those of the default head and estimator too: ``head__alpha``, ``estimator__C``."""
        for name, default in (("head", ReliabilityHead), ("estimator", LogisticRegression)):
            inner = any(key.startswith(f"{name}__") for key in params)
            if inner and params.get(name, getattr(self, name)) is None:
                params[name] = default()
        found: Self = super().set_params(**params)
        return found

    def fit(self, X: Any, y: ArrayLike, **others: Any) -> Self:
        """Fit the estimator, the density and the head on rows X (n, ...) with labels y (n,) of any kind.

        There are no `others`: a weight of rows, say, is refused with what to do instead.
        """
        check_no_others(others)
        n_folds = number_of_folds(self.cv, self.ensemble)
        fraction = check_number(
            self.calibration_fraction, "calibration_fraction", low=0, high=1, low_open=True, high_open=True
        )
        if y is None:
            raise ValueError("y must be given: requires y to be passed, but the target y is None.")
        check_index(X, y, "y")
        X, y = indexable(X, y)
        targets = column_or_1d(y, warn=True)
        check_kind(targets)
        check_classification_targets(targets)
        if self.cv != "prefit":
            check_classes(targets)
            check_predicts(LogisticRegression() if self.estimator is None else self.estimator)
        warn_of_single_rows(targets)
        self.cross_conformal_: CrossConformal | None = None
        if n_folds:
            self._fit_folds(X, targets, n_folds)
        else:
            self._fit_cut(X, targets, *self._cut(_num_samples(X), fraction))
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimators_[0], name):
                setattr(self, name, getattr(self.estimators_[0], name))
        some = np.unique(np.linspace(0, targets.size - 1, MARKED).astype(np.intp))
        self._marks = row_marks(self._features(_safe_indexing(X, some)))
        return self

    def _fit_cut(self, X: Any, targets: NDArray[Any], first: NDArray[np.intp], second: NDArray[np.intp]) -> None:
        """Train on the `first` rows, or take what is trained, and calibrate on the `second` ones."""
        train_rows, prefit = _safe_indexing(X, first), self.cv == "prefit"
        if prefit:
            check_is_fitted(self.estimator)
        estimator = self.estimator if prefit else self._unfitted().fit(train_rows, targets[first])
        embedder = self.embedder
        if embedder is not None and not prefit:
            embedder = clone(embedder).fit(train_rows, targets[first])
        self.zero_proba_ = 1 / (targets if prefit else first).size
        check_answers(estimator, _safe_indexing(X, second[:PROBED]))
        self.estimators_ = [estimator]
        self.embedder_ = default_embedder(estimator, train_rows) if embedder is None else embedder
        if prefit:
            check_known(targets, np.asarray(estimator.classes_))
        self.classes_, codes = np.unique(np.r_[targets, estimator.classes_], return_inverse=True)
        codes = codes[: targets.size]
        train = ModelOutputs(embeddings=self._features(train_rows), class_names=self.classes_)
        head = self._head()
        rows = _safe_indexing(X, second)
        calibration = self._outputs(rows, codes[second], group_column(head, rows))
        warn_of_few_rows(second.size, whole=prefit)
        if isinstance(head.density, str) and _dependent(train.need("embeddings"), codes[first]):
            head.set_params(density=clone(TABLE))
        self.head_ = head._fit(  # errors name the rows of X
            train._replaced(labels=codes[first], _number=first.__getitem__),
            calibration._replaced(_number=second.__getitem__),
            aligned=True,
        )
        warn_of_other_labels(calibration.need("logits"), codes[second], prefit)

    def _fit_folds(self, X: Any, targets: NDArray[Any], n_folds: int) -> None:
        """Fit an estimator without each fold, and the head on what they say of the folds they left out."""
        head = self._head()
        check_crossed(head, self.ensemble)
        folds = cut_folds(targets.size, n_folds, check_integer(self.random_state, "random_state", low=0))
        warn_of_few_rows(targets.size, whole=True)
        self.classes_, codes = np.unique(targets, return_inverse=True)
        self.zero_proba_ = 1 / (targets.size - len(folds[0]))
        names = np.asarray(check_class_names(self.classes_))
        density = density_of(head)
        measured = None if density is None else OutOfFold(density).fit(names, codes)
        logits, fold_of = np.empty((targets.size, self.classes_.size)), np.empty(targets.size, np.intp)
        self.estimators_ = []
        for k, held_out in enumerate(folds):
            train = np.concatenate([rows for j, rows in enumerate(folds) if j != k])
            self._fit_member(_safe_indexing(X, train), targets[train], _safe_indexing(X, held_out[:PROBED]))
            rows, fold_of[held_out] = _safe_indexing(X, held_out), k
            logits[held_out] = self._logits_by(self.estimators_[-1], rows)
            if measured is not None:
                features = self._features(_safe_indexing(X, train))
                measured.measure(held_out, self._features(rows), features, codes[train])
        self.head_ = fit_crossed(head, logits, codes, self.classes_, measured, group_column(head, X))
        warn_of_other_labels(logits, codes, prefit=False)
        if self.ensemble:
            sets = CrossConformal(head.alpha).fit(softmax(logits, axis=1), codes, folds=fold_of)
            self.cross_conformal_ = sets
        else:
            self.zero_proba_, self.estimators_ = 1 / targets.size, []
            self._fit_member(X, targets, _safe_indexing(X, folds[0][:PROBED]))
        if density is not None:
            self.embedder_ = None if self.embedder_ is None else clone(self.embedder_).fit(X, targets)
            self.head_.density_ = clone(density).fit(self._features(X), codes)

    def _fit_member(self, X: Any, targets: NDArray[Any], probed: Any) -> None:
        """One more of `estimators_`, and the embedder of its rows, of the same kind for all of them."""
        estimator = self._unfitted()
        if isinstance(estimator, FrozenEstimator):
            raise ValueError(
                'cv must be "prefit" for a FrozenEstimator: one that is fitted already has seen every fold.'
            )
        self.estimators_.append(estimator.fit(X, targets))
        if len(self.estimators_) > 1:
            self.embedder_ = None if self.embedder_ is None else clone(self.embedder_).fit(X, targets)
            return
        check_answers(estimator, probed)
        own = self.embedder
        self.embedder_ = default_embedder(estimator, X) if own is None else clone(own).fit(X, targets)

    def _unfitted(self) -> Any:
        return LogisticRegression() if self.estimator is None else clone(self.estimator)

    def _head(self) -> ReliabilityHead:
        return ReliabilityHead() if self.head is None else clone(self.head)

    @property
    def estimator_(self) -> Any:
        """The only estimator."""
        if len(getattr(self, "estimators_", ())) != 1:
            raise AttributeError("estimator_ is one estimator; with folds there are several, estimators_.")
        return self.estimators_[0]

    @property
    def coverage_guarantee_(self) -> float | None:
        """Least probability that a set holds the label, where one is guaranteed."""
        return guaranteed_coverage(self)

    def _cut(self, n_rows: int, fraction: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Plain random parts: stratifying would make the calibration rows unlike new ones."""
        order = np.random.default_rng(check_integer(self.random_state, "random_state", low=0)).permutation(n_rows)
        kept = n_rows - round(fraction * n_rows)
        if not 0 < kept < n_rows:
            raise ValueError(
                f"calibration_fraction must leave rows on both sides; {fraction:g} of n_samples = {n_rows} does not."
            )
        return np.sort(order[:kept]), np.sort(order[kept:])

    def _features(self, X: Any) -> NDArray[Any]:
        rows = X if self.embedder_ is None else self.embedder_.transform(X)
        try:
            return np.asarray(check_array(rows))
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            what = "X" if self.embedder_ is None else f"the output of {type(self.embedder_).__name__}"
            raise kind(
                f"embedder must give dense, finite numbers; atypicality is measured on {what} here: "
                f"{str(error).rstrip('.')}. Pass embedder=, such as make_pipeline(SimpleImputer(), StandardScaler()) "
                "for missing values or TruncatedSVD(50) for sparse columns."
            ) from error

    def _outputs(
        self,
        X: Any,
        labels: NDArray[np.intp] | None = None,
        attributes: Any = None,
        logits: NDArray[np.float64] | None = None,
    ) -> ModelOutputs:
        if attributes is None:
            attributes = group_column(self.head_, X)
        outputs = ModelOutputs(
            self._logits(X) if logits is None else logits,
            embeddings=self._features(X),
            attributes=attributes,
            class_names=self.classes_,
            ids=index_of(X),
        )
        return outputs._replaced(labels=labels)

    def _logits(self, X: Any) -> NDArray[np.float64]:
        """Logits (n, k) in the order of `classes_`: logarithms of probabilities, or decision values."""
        each = [self._logits_by(estimator, X) for estimator in self.estimators_]
        return each[0] if len(each) == 1 else averaged(each)

    def _logits_by(self, estimator: Any, X: Any) -> NDArray[np.float64]:
        if hasattr(estimator, "predict_proba"):
            known = log_probs(np.asarray(estimator.predict_proba(X), np.float64), self.zero_proba_)
        else:
            known = decisions(estimator, X)
        columns = np.searchsorted(self.classes_, estimator.classes_)
        if columns.size == self.classes_.size:
            return known
        logits = np.repeat(known.min(axis=1, keepdims=True), self.classes_.size, axis=1)
        logits[:, columns] = known
        return logits

    def outputs(
        self, X: Any, y: ArrayLike | None = None, *, attributes: Mapping[str, Any] | Sequence[str] | None = None
    ) -> ModelOutputs:
        """What the estimator says about rows `X`, for `evaluate`, a report or a file; labels `y` (n,) as in `fit`.

        `attributes` are columns for tables by subgroup: a mapping of names to arrays (n,), a DataFrame, or the names of
        columns of a DataFrame X.

        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> model = AtypicalityAwareClassifier(LogisticRegression(C=0.01, max_iter=500)).fit(X[:1500, 10:14], y[:1500])
        >>> model.outputs(X[1500:, 10:14], y[1500:])
        ModelOutputs(297 rows, 10 classes; logits float64 (297, 10), embeddings float64 (297, 4), labels)
        """
        check_is_fitted(self, "head_")
        check_table(X, getattr(self, "n_features_in_", None))
        check_index(X, y, "y")
        attributes = named_columns(X, attributes)
        for name, column in check_attributes(attributes).items():
            check_index(X, column, f"attributes[{name!r}]")
        labels = None if y is None else codes_of(column_or_1d(y), self.classes_)
        if labels is not None and labels.size != _num_samples(X):
            raise ValueError(f"y must have one label per row of X; got {labels.size} for {_num_samples(X)} rows.")
        return self._outputs(X, labels, {**group_column(self.head_, X), **check_attributes(attributes)})

    def reliability(self, X: Any, *, max_risk: float | None = None, first_row: int = 0) -> Reliability:
        """What the head predicts for rows `X`; labels are positions in `classes_`, `max_risk` and `first_row` its own.

        The index of a DataFrame becomes the `ids`, and the index of `to_frame()`.
        """
        check_is_fitted(self, "head_")
        check_table(X, getattr(self, "n_features_in_", None))
        if self.cross_conformal_ is None:
            answer = self.head_.predict(self._outputs(X), max_risk=max_risk, first_row=first_row)
            return replace(answer, ids_name=index_name(X))
        each = [self._logits_by(estimator, X) for estimator in self.estimators_]
        outputs = self._outputs(X, logits=averaged(each))
        answer = self.head_.predict(outputs, max_risk=max_risk, first_row=first_row)
        sets = self.cross_conformal_.predict_set([softmax(logits, axis=1) for logits in each])
        sets[np.arange(len(sets)), answer.label] = True  # a larger set covers no less
        advice = self.head_._advised(answer, sets)
        return replace(answer, prediction_set=sets, advice=advice, ids_name=index_name(X))

    def evaluate(
        self, X: Any, y: ArrayLike, *, attributes: Mapping[str, Any] | Sequence[str] | None = None, **options: Any
    ) -> Evaluation:
        """Measure "uncalibrated", the estimator alone, and "classifier" on labelled rows that `fit` has not seen.

        Sets and advice are those of `reliability`. `attributes` are as in `outputs`, `options` those of
        `atypicality.evaluate`. Warns where rows of `fit` are among them, unless the classifier was loaded.

        >>> from sklearn.datasets import load_digits
        >>> X, y = load_digits(return_X_y=True)
        >>> model = AtypicalityAwareClassifier(LogisticRegression(C=0.01, max_iter=500)).fit(X[:1500, 10:14], y[:1500])
        >>> model.evaluate(X[1500:, 10:14], y[1500:]).methods
        ('uncalibrated', 'classifier')
        """
        outputs, answer = self.outputs(X, y, attributes=attributes), None
        warn_of_seen_rows(getattr(self, "_marks", np.zeros(0, np.uint64)), outputs.need("embeddings"))
        if self.cross_conformal_ is not None:  # whose sets no outputs tell
            answer = self.reliability(X, max_risk=options.get("max_risk"))
        return evaluate_classifier(self, outputs, answer, options)

    def _card(self) -> str:
        return classifier_card(self, untrusted_types(self))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Recalibrated probabilities (n, k) of rows `X`, columns in the order of `classes_`."""
        return np.asarray(self.reliability(X).proba)

    def predict(self, X: Any) -> NDArray[Any]:
        """Most probable class (n,) of rows `X` after recalibration."""
        label = self.reliability(X).label
        return np.asarray(self.classes_[label])

    def predict_set(self, X: Any, *, first_row: int = 0) -> NDArray[np.bool_]:
        """Prediction sets of rows `X`, bool (n, k), columns in the order of `classes_`; `first_row` as in the head."""
        return np.asarray(self.reliability(X, first_row=first_row).prediction_set)

    def atypicality(self, X: Any) -> NDArray[np.float64]:
        """How rare each row of `X` is (n,): larger is rarer. Needs a head with a density."""
        check_is_fitted(self, "head_")
        if self.head_.density_ is None:
            raise ValueError(
                "atypicality needs a head with a density; this one has density=None. Fit with density='auto'."
            )
        return np.asarray(self.head_.density_.atypicality(self._features(X)))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the classifier to `folder`: the head as a bundle, the estimators with skops (extra `sklearn`).

        A classifier that is there already is replaced; other files in the folder stay. Nothing is pickled. Refused
        where a part cannot be read back, such as an estimator with a function of your own. See `load`.
        """
        save_classifier(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, trusted: Iterable[str] = ()) -> Self:
        """Read what `save` wrote to `folder`, under the same version of scikit-learn.

        skops makes no object of a type that it does not trust: an error lists them as `trusted` takes them, and so does
        the README.md in the folder. Trees are among them, since a forged one can crash the process: trust files that
        you wrote yourself.
        """
        found: Self = load_classifier(cls(), folder, trusted)
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        given = get_tags(LogisticRegression() if self.estimator is None else self.estimator).input_tags
        tags.input_tags.string = given.string
        tags.input_tags.sparse = given.sparse and self.embedder is None  # an embedder may take less than the estimator
        tags.input_tags.allow_nan = given.allow_nan and self.embedder is None
        tags.classifier_tags.multi_label = False
        tags.classifier_tags.poor_score = True  # few rows of scikit-learn's checks are left to train on
        return tags


def _dependent(rows: NDArray[Any], codes: NDArray[np.intp]) -> bool:
    """Whether columns of rows (n, d), fewer than these, are constant or depend on each other within the classes."""
    n, d = rows.shape
    if d >= n:
        return False
    with caught_warnings():
        return bool(np.any(GaussianAtypicality().fit(rows, codes).rank_ < d))
