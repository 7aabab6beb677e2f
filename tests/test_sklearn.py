"""The meta-estimator obeys scikit-learn's rules and keeps the head's promises."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import atypicality as aty
from atypicality.head import ReliabilityHead
from atypicality.integrations.sklearn import AtypicalityAwareClassifier

QUICK = ReliabilityHead(recalibration=aty.TemperatureScaling())


# A few rows for a density, a recalibration and sets: warnings that say so are right, and not what is checked here.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([AtypicalityAwareClassifier(LogisticRegression(max_iter=1000))])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order] / 16, np.array(list("abcdefghij"))[y[order]]


@pytest.fixture(scope="module")
def model(digits):
    X, y = digits
    base = LogisticRegression(max_iter=200, C=100)
    return AtypicalityAwareClassifier(base, embedder=PCA(20), head=QUICK).fit(X[:1300], y[:1300])


def test_answers_have_the_classes_of_y(model, digits):
    X, y = digits
    assert model.classes_.tolist() == list("abcdefghij")
    assert set(model.predict(X[1300:])) <= set("abcdefghij")
    assert model.score(X[1300:], y[1300:]) > 0.9
    np.testing.assert_allclose(model.predict_proba(X[1300:]).sum(axis=1), 1)


def test_sets_cover(model, digits):
    X, y = digits
    codes = np.searchsorted(model.classes_, y[1300:])
    covered = model.predict_set(X[1300:])[np.arange(codes.size), codes]
    # 497 rows; the beta-binomial law of the thresholds has a sd of about .025 around .9
    assert covered.mean() > 0.9 - 4 * 0.025


def test_atypicality_rises_away_from_the_data(model, digits):
    X, _ = digits
    far = X[1300:] + np.random.default_rng(0).normal(size=X[1300:].shape)
    assert np.median(model.atypicality(far)) > np.quantile(model.atypicality(X[1300:]), 0.9)


def test_prefit_keeps_the_estimator(digits):
    X, y = digits
    base = LogisticRegression(max_iter=200).fit(X[:700], y[:700])
    model = AtypicalityAwareClassifier(base, head=QUICK, cv="prefit", embedder=PCA(10).fit(X[:700]))
    assert model.fit(X[700:], y[700:]).estimator_ is base
    with pytest.raises(NotFittedError):
        AtypicalityAwareClassifier(LogisticRegression(), cv="prefit").fit(X, y)


def test_decision_values_serve_as_logits(digits):
    X, y = digits
    model = AtypicalityAwareClassifier(LinearSVC(), head=QUICK, embedder=PCA(10)).fit(X[:900], y[:900])
    assert model.score(X[900:], y[900:]) > 0.85
    two = np.isin(y, ["b", "i"])
    noisy = X[two] + np.random.default_rng(0).normal(size=X[two].shape)  # apart enough to learn, not to separate
    binary = AtypicalityAwareClassifier(LinearSVC(), head=QUICK, embedder=PCA(5)).fit(noisy, y[two])
    assert binary.predict_proba(noisy).shape == (two.sum(), 2)


def test_a_class_the_training_part_missed_is_still_a_column(digits):
    X, y = digits
    y = np.where(np.arange(y.size) == 5, "z", y)  # one row of its own: in one part only
    model = AtypicalityAwareClassifier(LogisticRegression(max_iter=200), head=QUICK, embedder=PCA(10)).fit(X, y)
    assert "z" in model.classes_
    assert model.predict_proba(X).shape == (y.size, 11)


def test_works_in_pipelines_and_searches(digits):
    X, y = digits
    model = AtypicalityAwareClassifier(LogisticRegression(max_iter=500), head=QUICK, embedder=PCA(10))
    assert cross_val_score(make_pipeline(StandardScaler(), model), X[:900], y[:900], cv=2).min() > 0.8
    search = GridSearchCV(model, {"estimator__C": [0.01, 1.0]}, cv=2).fit(X[:600], y[:600])
    assert set(search.best_params_) == {"estimator__C"}
    assert clone(model).get_params()["embedder__n_components"] == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cv": "folds"}, "cv must be one of None, 'prefit'; got 'folds'"),
        ({"calibration_fraction": 0}, r"calibration_fraction must be a finite number in \(0, 1\); got 0"),
        ({"random_state": -1}, "random_state must be at least 0; got -1"),
    ],
)
def test_mistakes_are_explained(options, message, digits):
    with pytest.raises(ValueError, match=message):
        AtypicalityAwareClassifier(LogisticRegression(), **options).fit(*digits)
