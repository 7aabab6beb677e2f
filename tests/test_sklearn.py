"""The meta-estimator obeys scikit-learn's rules, and its sets and answers are those of the head."""

import ast
import re

import joblib
import numpy as np
import pytest
from conftest import imported, needs
from scipy import sparse
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC, NuSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import has_fit_parameter

import atypicality as aty
from atypicality.conformal.cross import cross_conformal_level
from atypicality.head import ReliabilityHead
from atypicality.integrations.sklearn import AtypicalityAwareClassifier
from atypicality.integrations.sklearn_checks import log_probs
from atypicality.integrations.sklearn_rows import row_marks, warn_of_seen_rows
from atypicality.integrations.sklearn_tables import TableEmbedder
from atypicality.report import render_report
from atypicality.shipping.card import model_card

QUICK = ReliabilityHead(recalibration=aty.TemperatureScaling())


# A few rows for a density, a recalibration and sets: warnings that say so are right, and not what is checked here.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [
        AtypicalityAwareClassifier(LogisticRegression(max_iter=1000)),
        AtypicalityAwareClassifier(GaussianNB(), head=QUICK, cv=2),  # as many folds as make it cross-fitted
    ]
)
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
    model = AtypicalityAwareClassifier(LogisticRegression(max_iter=200), head=QUICK, embedder=PCA(10))
    with pytest.warns(UserWarning, match="one row of class 'z': it trains or calibrates"):
        model.fit(X, y)
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
        ({"cv": 1}, "cv, where it is no text, must be at least 2; got 1"),
        ({"cv": 1000}, "cv=1000 must leave 2 rows in every fold; n_samples = 1797 do not"),
        ({"cv": 5, "ensemble": "no"}, "ensemble must be one of True, False; got 'no'"),
        ({"calibration_fraction": 0}, r"calibration_fraction must be a finite number in \(0, 1\); got 0"),
        ({"random_state": -1}, "random_state must be at least 0; got -1"),
    ],
)
def test_mistakes_are_explained(options, message, digits):
    with pytest.raises(ValueError, match=message):
        AtypicalityAwareClassifier(LogisticRegression(), **options).fit(*digits)


@pytest.fixture(scope="module")
def table():
    """Rows as people have them: a DataFrame with text, gaps and a shuffled index, and text as labels."""
    pandas = imported("pandas")
    X, y = make_classification(2000, 6, n_informative=5, n_redundant=0, n_classes=3, weights=[0.7, 0.2], random_state=0)
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    rng = np.random.default_rng(0)
    frame["city"] = rng.choice(["Oslo", "Rome"], len(frame))
    frame.loc[::50, "a"] = np.nan
    rows = rng.permutation(len(frame))
    return frame.iloc[rows], pandas.Series(np.array(["ok", "late", "lost"])[y], name="status").iloc[rows]


def prepared(classifier):
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = make_column_transformer((numbers, list("abcdef")), (OneHotEncoder(drop="first"), ["city"]))
    return make_pipeline(columns, classifier)


def test_a_pipeline_brings_its_embedder(table):
    X, y = table
    model = AtypicalityAwareClassifier(prepared(LogisticRegression()), head=QUICK).fit(X[:1500], y[:1500])
    expected = model.estimator_[:-1].transform(X[1500:])
    np.testing.assert_array_equal(model.outputs(X[1500:]).embeddings, expected)
    np.testing.assert_array_equal(
        model.atypicality(X[1500:]), model.head_.density_.atypicality(np.asarray(expected, float))
    )


def test_zero_votes_are_not_certainty(table):
    """A forest of 20 trees gives exact zeros to classes that are the label: accuracy and log loss survive them."""
    X, y = table
    forest = RandomForestClassifier(20, random_state=0)
    model = AtypicalityAwareClassifier(prepared(forest), head=ReliabilityHead()).fit(X[:1500], y[:1500])
    probs = model.estimator_.predict_proba(X[1500:])
    own = probs[np.arange(500), np.searchsorted(model.classes_, y[1500:])]
    assert (own == 0).any()  # the case at hand
    bare = np.mean(model.estimator_.predict(X[1500:]) == y[1500:])
    assert model.score(X[1500:], y[1500:]) > bare - 0.03
    assert log_loss(y[1500:], model.predict_proba(X[1500:])) < 0.9 * log_loss(y[1500:], probs)


RECALIBRATORS = {
    "temperature": aty.TemperatureScaling(),
    "grouped": aty.GroupTemperatureScaling(3),
    "vector": aty.VectorScaling(strength=0.01),
    "bias": aty.VectorScaling(scale=False),
    "ensemble": aty.EnsembleTemperatureScaling(),
    "adaptive": aty.AdaptiveTemperatureScaling(hidden=(16,), latent_dim=4, head=(8,), epochs=3),
    "paper": aty.AtypicalityAwareRecalibration.paper(),
    "aware": aty.AtypicalityAwareRecalibration(),
}
VOTERS = {
    "forest": RandomForestClassifier(20, random_state=0),
    "neighbours": KNeighborsClassifier(5),
    "tree": DecisionTreeClassifier(min_samples_leaf=5, random_state=0),
}


@pytest.fixture(scope="module")
def votes():
    X, y = make_classification(
        3000,
        8,
        n_informative=8,
        n_redundant=0,
        n_classes=4,
        flip_y=0.1,
        class_sep=1.2,
        n_clusters_per_class=1,
        random_state=0,
    )
    return X, y


@pytest.mark.filterwarnings("ignore:the advice 'choose")  # one threshold covers low-confidence rows less often
@pytest.mark.parametrize("voter", VOTERS)
@pytest.mark.parametrize("name", RECALIBRATORS)
def test_exact_zeros_are_recalibrated_by_every_recalibrator(votes, name, voter):
    """One label in ten is drawn at random, so that classes without a vote are the label again and again."""
    if name == "adaptive":
        imported("torch")
    (X, y), sets = votes, aty.SplitConformal()  # votes tie, and confidence cannot be cut into groups
    head = ReliabilityHead(recalibration=RECALIBRATORS[name], prediction_sets=sets)
    model = AtypicalityAwareClassifier(VOTERS[voter], head=head).fit(X[:2000], y[:2000])
    bare, probs = model.estimator_.predict_proba(X[2000:]), model.predict_proba(X[2000:])
    assert (bare[np.arange(1000), y[2000:]] == 0).sum() > 10  # the case at hand
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    assert probs[np.arange(1000), y[2000:]].min() > 1e-6  # a tenth of the labels is noise: none is ruled out
    # neither ruined by the labels without a vote, as the bare probabilities are, nor flattened to get by with them
    assert log_loss(y[2000:], probs) < min(0.75 * log_loss(y[2000:], bare), 0.75 * np.log(4))
    assert (probs.argmax(axis=1) == y[2000:]).mean() > (bare.argmax(axis=1) == y[2000:]).mean() - 0.03


def test_a_zero_ranks_below_what_the_row_holds():
    probs = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1.0, 1e-300, 0.0], [0.7, 0.2, 0.1]])
    expected = np.log([[1.0, 0.001, 0.001], [0.5, 0.5, 0.001], [1.0, 1e-300, 5e-301], [0.7, 0.2, 0.1]])
    np.testing.assert_allclose(log_probs(probs, 0.001), expected, rtol=1e-12)


def test_answers_have_names_and_the_index_of_the_frame(table):
    X, y = table
    model = AtypicalityAwareClassifier(prepared(LogisticRegression()), head=QUICK).fit(X[:1500], y[:1500])
    frame = model.reliability(X[1500:].rename_axis("order")).to_frame()
    assert frame.index.name == "order"
    assert frame.index.tolist() == X.index[1500:].tolist()
    assert "id" not in frame  # it is the index
    assert frame["label"].tolist() == model.reliability(X[1500:]).label_names().tolist()
    assert model.reliability(X[1500:]).to_frame().index.name == "id"
    assert frame["label"].tolist() == model.predict(X[1500:]).tolist()
    assert X[1500:].join(frame["quadrant"])["quadrant"].notna().all()
    assert model.reliability(X[1500:].reset_index(drop=True)).ids is None


def test_outputs_lead_to_tables_by_subgroup(table):
    X, y = table
    model = AtypicalityAwareClassifier(prepared(LogisticRegression()), head=QUICK).fit(X[:1500], y[:1500])
    outputs = model.outputs(X[1500:], y[1500:], attributes=X[1500:][["city"]])
    evaluation = aty.evaluate(model.head_, outputs)
    rows = evaluation.table("subgroups", attribute="city", metric="accuracy")
    right = model.predict(X[1500:]) == y[1500:]
    for row in rows:
        assert row["value"] == pytest.approx(right[X[1500:]["city"] == row["subgroup"]].mean())
    assert [row["subgroup"] for row in rows] == ["Oslo", "Rome"]
    assert aty.evaluate({"head": model}, outputs) == evaluation  # the classifier stands for its head
    with pytest.raises(TypeError, match=r"outputs must be ModelOutputs; got DataFrame.*outputs\(X, y\)"):
        aty.evaluate(model, X)
    with pytest.raises(ValueError, match=r"it holds 'new' in 1 row\. The classes are 'late', 'lost', 'ok'"):
        model.outputs(X[:2], ["ok", "new"])


def test_what_cannot_be_measured_names_the_embedder(table):
    X, y = table
    whole, numbers = HistGradientBoostingClassifier(max_iter=5), X[list("abcdef")]
    with pytest.raises(ValueError, match=r"embedder must give dense.*output of FunctionTransformer.*contains NaN"):
        AtypicalityAwareClassifier(whole, embedder=FunctionTransformer()).fit(numbers, y)
    with pytest.raises(TypeError, match=r"embedder must be given where X holds datetime64.*column 'day' does"):
        AtypicalityAwareClassifier(Days()).fit(numbers.assign(day=np.datetime64("2026-01-01", "s")), y)


class Days(ClassifierMixin, BaseEstimator):
    """Answers whatever the columns are."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        return np.full((len(X), self.classes_.size), 1 / self.classes_.size)

    def predict(self, X):
        return np.repeat(self.classes_[0], len(X))


def test_missing_labels_are_named(table):
    X, y = table
    y = y.to_numpy(dtype=object, copy=True)
    y[[3, 5]] = np.nan
    with pytest.raises(ValueError, match="y must hold labels of one kind; rows 3, 5 do not hold text"):
        AtypicalityAwareClassifier(prepared(LogisticRegression())).fit(X, y)


def overlapping(n_classes):
    """Rows of classes that overlap, with names."""
    options = {"n_informative": 5, "n_redundant": 0, "class_sep": 1.0, "flip_y": 0.05, "random_state": 0}
    X, y = make_classification(1200, 6, n_classes=n_classes, **options)
    return X, np.array(list("abcd"))[y]


@pytest.fixture(scope="module")
def three():
    return overlapping(3)


class Wrapped(ClassifierMixin, BaseEstimator):
    """Answers with the scores of pairs of classes, and says nothing of it."""

    def fit(self, X, y):
        self.inner_ = clone(PAIRS).fit(X, y)
        self.classes_, self.decision_function = self.inner_.classes_, self.inner_.decision_function
        return self

    def predict(self, X):
        return self.inner_.predict(X)


PAIRS = SVC(decision_function_shape="ovo")
SEARCH = GridSearchCV(SVC(), {"decision_function_shape": ["ovo"]}, cv=2)


@pytest.mark.parametrize(
    "estimator",
    [PAIRS, NuSVC(nu=0.2, decision_function_shape="ovo"), make_pipeline(StandardScaler(), PAIRS), SEARCH, Wrapped()],
    ids=["SVC", "NuSVC", "pipeline", "search", "wrapped"],
)
def test_scores_of_pairs_are_never_taken_for_scores_of_classes(estimator, three):
    # Three classes have three pairs: the shape does not tell them apart.
    with pytest.raises(ValueError, match=r"ovo.*Set it to .ovr|largest column .* in \d+% of"):
        AtypicalityAwareClassifier(estimator, head=QUICK).fit(*three)


def test_four_classes_have_six_pairs():
    with pytest.raises(ValueError, match=r"one column per class.* shape \(\d+, 6\) for 4 classes"):
        AtypicalityAwareClassifier(Wrapped(), head=QUICK).fit(*overlapping(4))


@pytest.mark.parametrize(
    "estimator", [SVC(), NuSVC(nu=0.2), OneVsOneClassifier(LinearSVC()), OneVsRestClassifier(PAIRS)], ids=repr
)
def test_scores_of_classes_keep_the_estimators_accuracy(estimator, three):
    X, y = three
    model = AtypicalityAwareClassifier(estimator, head=QUICK).fit(X[:800], y[:800])
    alone = np.mean(model.estimator_.predict(X[800:]) == y[800:])
    assert model.score(X[800:], y[800:]) >= alone - 2 / len(y[800:])  # ties of votes aside


def test_pairs_of_two_classes_are_one_score(three):
    X, y = three[0], np.where(three[1] == "a", "a", "b")
    model = AtypicalityAwareClassifier(PAIRS, head=QUICK).fit(X[:800], y[:800])
    alone = np.mean(model.estimator_.predict(X[800:]) == y[800:])
    assert model.score(X[800:], y[800:]) == alone


def test_several_labels_per_row_are_refused(three):
    X, y = three
    both = np.c_[y == "a", y == "b"].astype(int)
    for several in (
        MultiOutputClassifier(LogisticRegression()).fit(X, both),
        OneVsRestClassifier(LogisticRegression()).fit(X, both),
    ):
        with pytest.raises(ValueError, match="one label per row"):
            AtypicalityAwareClassifier(several, cv="prefit").fit(X, y)


def test_an_estimator_without_scores_is_refused(three):
    hard = VotingClassifier([("one", LogisticRegression()), ("two", LinearSVC())])
    with pytest.raises(TypeError, match="VotingClassifier has neither"):
        AtypicalityAwareClassifier(hard).fit(*three)


def test_a_frozen_estimator_is_asked_for_its_columns(three):
    X, y = three
    with pytest.raises(ValueError, match="scores pairs"):
        AtypicalityAwareClassifier(FrozenEstimator(clone(PAIRS).fit(X, y)), cv="prefit").fit(X, y)


@pytest.mark.filterwarnings("ignore:density=None")
def test_atypicality_without_a_density_is_explained(three):
    X, y = three
    model = AtypicalityAwareClassifier(head=ReliabilityHead(density=None, recalibration=aty.TemperatureScaling()))
    with pytest.raises(ValueError, match=r"atypicality needs a head with a density.*density='auto'"):
        model.fit(X, y).atypicality(X)


# -- tables ------------------------------------------------------------------------------------------------------------


TABLES = {
    "boosting": HistGradientBoostingClassifier(max_iter=8, categorical_features="from_dtype"),
    "pipeline": make_pipeline(
        make_column_transformer((OneHotEncoder(drop="first"), ["city"]), remainder="passthrough"),
        HistGradientBoostingClassifier(max_iter=8),
    ),
}
TABLES["search"] = GridSearchCV(TABLES["pipeline"], {"histgradientboostingclassifier__max_depth": [2, 4]}, cv=2)


@pytest.mark.parametrize("cv", [None, 3])
@pytest.mark.parametrize("name", TABLES)
def test_categories_and_gaps_need_no_embedder(name, cv, table):
    X, y = table[0].assign(city=table[0]["city"].astype("category")), table[1]
    head = ReliabilityHead(aty.GaussianAtypicality(shrinkage="columns"), aty.TemperatureScaling())
    model = AtypicalityAwareClassifier(TABLES[name], head=head, cv=cv).fit(X[:600], y[:600])
    rows = X[600:900]
    assert np.isfinite(model.atypicality(rows)).all()
    cities = 1 if name != "boosting" else 2
    assert model.outputs(rows).embeddings.shape[1] == 6 + 1 + cities  # numbers, where `a` has gaps, cities
    assert model.score(rows, y[600:900]) > 0.7
    far = rows.assign(b=rows["b"] + 20)
    assert np.median(model.atypicality(far)) > model.atypicality(rows).max()


def test_gaps_and_categories_that_fit_has_not_seen(table):
    X, y = table[0].drop(columns="a"), table[1]
    model = AtypicalityAwareClassifier(TABLES["boosting"], head=QUICK).fit(X.drop(columns="city")[:600], y[:600])
    gap = X.drop(columns="city")[600:605].assign(b=np.nan)
    median = gap.assign(b=X["b"][model_rows(600)].median())
    np.testing.assert_allclose(model.atypicality(gap), model.atypicality(median))
    words = TableEmbedder().fit(X[["city"]])
    np.testing.assert_array_equal(words.transform(X[["city"]][:1].assign(city="Bonn")), [[0, 0]])


@pytest.mark.parametrize("cv", [None, 3])
@pytest.mark.parametrize("name", ["pipeline", "boosting"])
def test_a_new_category_is_more_atypical_than_any_row(name, cv, table):
    """In whatever units the numbers are: one column has a variance 1e10 times that of the others."""
    X = table[0].assign(b=1e5 * table[0]["b"], flag=1.0, city=table[0]["city"].astype("category"))
    one_hot = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["city"]), remainder=SimpleImputer())
    estimator = TABLES[name] if name == "boosting" else make_pipeline(one_hot, DecisionTreeClassifier(max_depth=4))
    model = AtypicalityAwareClassifier(estimator, head=QUICK, cv=cv).fit(X[:900], table[1][:900])
    assert repr(model.head_.density_) == "GaussianAtypicality(shrinkage='columns')"
    rows, largest = X[900:1000], model.head_.quantiles_.values[-1]
    assert np.mean(model.atypicality(rows) > largest) < 0.1
    for new in ({"city": np.array(["Bonn"] * 100, object)}, {"flag": 2.0}):
        assert model.atypicality(rows.assign(**new)).min() > largest
        with pytest.warns(UserWarning, match="100.0% more than any of them: the data has drifted"):
            assert set(model.reliability(rows.assign(**new)).advice) == {"ask a person"}


def test_columns_that_do_not_depend_on_each_other_leave_the_choice_to_the_head(three):
    X, y = three
    model = AtypicalityAwareClassifier(LogisticRegression(), head=QUICK).fit(X, y)
    assert model.head_.density == "auto"


def model_rows(n):
    """Rows, of the first n, that the plain cut trains on."""
    order = np.random.default_rng(0).permutation(n)
    return np.isin(np.arange(2000), order[: n - round(0.4 * n)])


def test_sparse_columns_become_dense_or_are_projected(three):
    X, y = three
    narrow = AtypicalityAwareClassifier(LogisticRegression(), head=QUICK).fit(sparse.csr_array(X), y)
    dense = AtypicalityAwareClassifier(LogisticRegression(), head=QUICK).fit(X, y)
    np.testing.assert_allclose(narrow.atypicality(sparse.csr_array(X)), dense.atypicality(X))
    wide = sparse.random_array((60, 150), density=0.1, rng=np.random.default_rng(0), format="csr")
    assert TableEmbedder().fit(wide).transform(wide).shape == (60, 50)


# -- cross-fitting -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:y fits what the estimator says")
def test_every_row_is_judged_by_an_estimator_that_never_saw_it():
    """One neighbour knows its own rows by heart: with noise for labels, recalibration learns that it knows nothing."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((600, 3)), rng.integers(0, 3, 600)
    model = AtypicalityAwareClassifier(KNeighborsClassifier(1), head=QUICK, cv=5).fit(X, y)
    assert model.predict_proba(X).max() < 0.6  # 1 / 3, and what chance gives 600 rows
    assert len(model.estimators_) == 5
    assert all(len(each._fit_X) == 480 for each in model.estimators_)


def test_probabilities_are_the_recalibrated_mean(three):
    X, y = three
    model = AtypicalityAwareClassifier(GaussianNB(), head=QUICK, cv=4).fit(X[:800], y[:800])
    mean = np.mean([each.predict_proba(X[800:]) for each in model.estimators_], axis=0)
    expected = softmax(np.log(mean) / model.head_.recalibration_.temperature_, axis=1)
    np.testing.assert_allclose(model.predict_proba(X[800:]), expected, rtol=1e-6)
    assert model.head_.sizes_["recalibration"] == 800
    with pytest.raises(AttributeError, match="there are several, estimators_"):
        _ = model.estimator_


@pytest.mark.parametrize("max_risk", [None, 0.2])
def test_advice_follows_the_cross_conformal_sets(three, max_risk):
    X, y = three
    model = AtypicalityAwareClassifier(GaussianNB(), head=ReliabilityHead(alpha=0.2), cv=5).fit(X[:800], y[:800])
    answer = model.reliability(X[800:], max_risk=max_risk)
    size, words = answer.prediction_set.sum(axis=1), answer.advice
    assert not (np.char.startswith(words, "trust") & (size != 1)).any()
    for chosen in np.flatnonzero(np.char.startswith(words, "choose")):
        assert words[chosen] == f"choose among {max(size[chosen], 2)}"  # with the runner-up
    assert (words[size == 3] == "ask a person").all()  # every class is no choice
    if max_risk is not None:
        assert (words[~answer.accepted] == "ask a person").all()


def test_sets_are_cross_conformal_with_the_top_class(three):
    X, y = three
    model = AtypicalityAwareClassifier(GaussianNB(), head=ReliabilityHead(alpha=0.2), cv=5).fit(X[:800], y[:800])
    answer = model.reliability(X[800:])
    assert model.coverage_guarantee_ == cross_conformal_level(800, 5, 0.2)
    expected = model.cross_conformal_.predict_set([each.predict_proba(X[800:]) for each in model.estimators_])
    expected[np.arange(400), answer.label] = True
    np.testing.assert_array_equal(answer.prediction_set, expected)
    covered = answer.prediction_set[np.arange(400), np.searchsorted(model.classes_, y[800:])].mean()
    assert covered > 0.8 - 4 * np.sqrt(0.16 / 400 + 0.16 / 800)
    size = expected.sum(axis=1)  # the advice follows from these sets, not from the head's
    assert (size[np.isin(answer.advice, ["trust", "trust, but rare"])] == 1).all()
    chosen = np.char.startswith(answer.advice.astype(str), "choose")
    assert (answer.choices().sum(axis=1) == np.where(chosen, np.maximum(size, 2), 0)).all()


def test_one_estimator_fitted_again_has_no_guarantee(three):
    X, y = three
    model = AtypicalityAwareClassifier(GaussianNB(), head=QUICK, cv=5, ensemble=False).fit(X[:800], y[:800])
    np.testing.assert_allclose(model.estimator_.theta_, GaussianNB().fit(X[:800], y[:800]).theta_)
    assert model.coverage_guarantee_ is None
    np.testing.assert_array_equal(
        model.predict_set(X[800:]), model.head_.predict(model.outputs(X[800:])).prediction_set
    )


@pytest.mark.filterwarnings("ignore:density=None")
def test_heads_without_a_density_and_by_neighbours_are_cross_fitted(three):
    X, y = three
    blind = ReliabilityHead(density=None, recalibration=aty.TemperatureScaling())
    assert AtypicalityAwareClassifier(GaussianNB(), head=blind, cv=3).fit(X, y).reliability(X).atypicality is None
    near = ReliabilityHead(density=aty.NeighborAtypicality(), recalibration=aty.AtypicalityAwareRecalibration())
    model = AtypicalityAwareClassifier(GaussianNB(), head=near, cv=3).fit(X, y)
    assert model.head_.recalibration_.terms_["class_density"] == "not given"
    assert model.head_.density_.n_features_in_ == 6


def test_names_of_classes_may_be_numbers_in_another_order(three):
    X, y = three
    names = np.where(y == "a", "10", np.where(y == "b", "2", "1"))
    model = AtypicalityAwareClassifier(GaussianNB(), cv=3).fit(X, names)
    assert model.classes_.tolist() == ["1", "10", "2"]
    assert model.score(X, names) > 0.6


@pytest.mark.parametrize(
    ("estimator", "head", "message"),
    [
        (FrozenEstimator(LogisticRegression()), QUICK, 'cv must be "prefit" for a FrozenEstimator'),
        (GaussianNB(), ReliabilityHead(recalibration=aty.AdaptiveTemperatureScaling()), "AdaptiveTemp.* reads them"),
    ],
    ids=["frozen", "adaptive"],
)
def test_what_cannot_be_cross_fitted_is_refused(estimator, head, message, three):
    with pytest.raises(ValueError, match=message):
        AtypicalityAwareClassifier(estimator, head=head, cv=3).fit(*three)


@pytest.mark.parametrize("max_risk", [0.25, 0.3])
def test_a_cross_fitted_classifier_is_evaluated_at_a_risk(max_risk, three):
    X, y = three
    model = AtypicalityAwareClassifier(GaussianNB(), head=QUICK, cv=5).fit(X[:800], y[:800])
    evaluation = model.evaluate(X[800:], y[800:], max_risk=max_risk)
    kept = model.reliability(X[800:], max_risk=max_risk).accepted
    wrong = (model.predict(X[800:]) != y[800:])[kept]
    for metric, value in (("accepted_share", kept.mean()), ("accepted_risk", wrong.mean())):
        assert evaluation.table("overall", method="classifier", metric=metric)[0]["value"] == pytest.approx(value)


def test_sets_that_folds_would_not_use_are_refused(three):
    X, y = three
    asked = ReliabilityHead(prediction_sets=aty.ConditionalConformal(groups="class rarity"))
    with pytest.raises(ValueError, match=r"ConditionalConformal would not be used\. Leave cv out.*ensemble=False"):
        AtypicalityAwareClassifier(GaussianNB(), head=asked, cv=3).fit(X, y)
    used = AtypicalityAwareClassifier(GaussianNB(), head=asked, cv=3, ensemble=False).fit(X, y)
    assert used.head_.prediction_sets_.class_group_names_[0] == "class rarity 1 of 3"


@pytest.mark.filterwarnings("ignore:logits are no better than chance")
@pytest.mark.parametrize("options", [{}, {"cv": "prefit"}, {"cv": 4}, {"cv": 4, "ensemble": False}], ids=str)
def test_labels_in_another_order_are_noticed(options, three):
    """A shuffle passes for the right order in 2 % of fits, and with "prefit" in 0.003 %; the seed is none of these."""
    X, y = three
    base = GaussianNB().fit(X[800:], y[800:]) if options.get("cv") == "prefit" else GaussianNB()
    model = AtypicalityAwareClassifier(base, head=QUICK, **options)
    model.fit(X[:800], y[:800])
    with pytest.warns(UserWarning, match=r"y fits .* no better than shuffled labels would; it is right in \d+\.\d% of"):
        model.fit(X[:800], np.random.default_rng(1).permutation(y[:800]))


@pytest.mark.parametrize("cv", [None, "prefit", 3])
def test_fit_refuses_labels_with_the_index_of_other_rows(cv, table):
    X, y = table
    base = prepared(GaussianNB())
    model = AtypicalityAwareClassifier(base.fit(X, y) if cv == "prefit" else base, head=QUICK, cv=cv)
    counted = X[:900].reset_index(drop=True), y[:900].reset_index(drop=True)
    for rows, labels in ((X, y.sort_index()), (X[:900], y[900:1800]), (counted[0], counted[1].sample(frac=1))):
        with pytest.raises(ValueError, match=r"y must have the index of X.*y\.to_numpy\(\) where the order is right"):
            model.fit(rows, labels)


@pytest.mark.parametrize("options", [{}, {"cv": 3, "ensemble": False}], ids=str)
def test_groups_by_a_column_are_taken_from_the_frame(options, table):
    X, y = table
    head = ReliabilityHead(
        recalibration=aty.TemperatureScaling(), prediction_sets=aty.ConditionalConformal(groups="city")
    )
    model = AtypicalityAwareClassifier(prepared(GaussianNB()), head=head, **options).fit(X[:1500], y[:1500])
    assert model.head_.prediction_sets_.attribute_values_.tolist() == ["Oslo", "Rome"]
    new, truth = X[1500:], y[1500:]
    given = model.outputs(new, truth, attributes={"city": new["city"], "d": new["d"]})
    np.testing.assert_array_equal(model.predict_set(new), model.head_.predict(given).prediction_set)
    assert {row["attribute"] for row in model.evaluate(new, truth).table("subgroups")} == {"city"}
    with pytest.raises(ValueError, match=r"groups='city' .* must be a column of a DataFrame X"):
        AtypicalityAwareClassifier(GaussianNB(), head=head, **options).fit(X[list("bcdef")], y)


def test_the_guarantee_is_stated_where_there_is_one(three):
    X, y = three
    own = aty.AtypicalityAwareConformal(alpha=0.2, n_groups=(2, 2), mode="paper")
    for sets, expected in (("auto", 0.8), (aty.SplitConformal(alpha=0.05), 0.95), (own, None)):
        alpha = {"alpha": 0.2} if sets == "auto" else {}
        head = ReliabilityHead(recalibration=aty.TemperatureScaling(), prediction_sets=sets, **alpha)
        assert AtypicalityAwareClassifier(GaussianNB(), head=head).fit(X, y).coverage_guarantee_ == expected


def test_few_calibration_rows_are_warned_of(three):
    X, y = three
    model = AtypicalityAwareClassifier(GaussianNB(), head=QUICK)
    with pytest.warns(UserWarning, match="60 rows calibrate, where 500 are better.*Set cv=5"):
        model.fit(X[:150], y[:150])
    model.fit(X[:250], y[:250])  # 100


def test_few_rows_of_folds_are_warned_of(three):
    X, y = three
    folds = AtypicalityAwareClassifier(GaussianNB(), head=QUICK, cv=2)
    with pytest.warns(UserWarning, match="60 rows calibrate, .* Give more rows"):
        folds.fit(X[:60], y[:60])


def test_classes_that_a_fitted_estimator_does_not_know_are_named(three):
    X, y = three
    fitted = AtypicalityAwareClassifier(GaussianNB().fit(X[:600], y[:600]), head=QUICK, cv="prefit")
    strange = np.where(np.arange(600) < 21, "alien", y[600:])
    with pytest.warns(UserWarning, match="y holds 'alien' in 21 rows, which the estimator was not fitted with"):
        fitted.fit(X[600:], strange)
    numbers = np.unique(y, return_inverse=True)[1]
    with pytest.raises(
        ValueError, match=r"that the estimator was fitted with; it holds 0 in \d+ rows.*are 'a', 'b', 'c'"
    ):
        fitted.fit(X[600:], numbers[600:])
    fitted.fit(X[600:], y[600:])
    with pytest.raises(ValueError, match=r"classes that were there in fit; it holds 0 in \d+ rows"):
        fitted.evaluate(X, numbers)


def test_parameters_of_the_default_head_and_estimator_can_be_set(three):
    model = AtypicalityAwareClassifier()
    model.set_params(head__alpha=0.2, estimator__C=0.5)
    assert (model.head.alpha, model.estimator.C) == (0.2, 0.5)
    assert clone(model).set_params(head=None).head is None
    search = GridSearchCV(AtypicalityAwareClassifier(GaussianNB()), {"head__alpha": [0.2, 0.3]}, cv=2)
    assert search.fit(*three).best_estimator_.head_.prediction_sets_.alpha in (0.2, 0.3)


@needs("pandas")
def test_tables_are_named_by_columns_and_one_row_must_be_a_table(three):
    import pandas as pd

    X = pd.DataFrame(three[0], columns=list("abcdef")).assign(city=np.where(three[0][:, 0] > 0, "Oslo", "Rome"))
    rows = make_column_transformer(("passthrough", list("abcdef")))
    model = AtypicalityAwareClassifier(make_pipeline(rows, GaussianNB()), head=QUICK).fit(X, three[1])
    named = model.outputs(X, attributes="city")
    np.testing.assert_array_equal(named.attributes["city"], model.outputs(X, attributes=X[["city"]]).attributes["city"])
    with pytest.raises(ValueError, match=r"attributes must be columns .* it has no 'town'"):
        model.outputs(X, attributes=["city", "town"])
    with pytest.raises(ValueError, match=r"7 columns of fit; got a Series of 7 values. One row .* X.iloc\[\[0\]\]"):
        model.reliability(X.iloc[0])
    with pytest.raises(ValueError, match="X must have at least one row; got none"):
        model.predict(X[:0])


def test_training_rows_that_calibrate_are_asked_about(three):
    """A tree that knows its training rows by heart, calibrated with them, and with others."""
    X, y = three
    tree = DecisionTreeClassifier(min_samples_leaf=2, random_state=0).fit(X[:500], y[:500])
    for rows, asked in ((slice(0, 500), True), (slice(500, 900), False)):
        model = AtypicalityAwareClassifier(tree, head=QUICK, cv="prefit")
        evaluation = model.fit(X[rows], y[rows]).evaluate(X[900:], y[900:])
        found = [note for note in evaluation.notes if "Were the calibration rows used to train the model?" in note]
        assert len(found) == asked
        row = evaluation.table("overall", method="classifier", metric="coverage")[0]
        assert f"Coverage, classifier: {row['value']:.1%} (95 % interval " in str(evaluation)
        assert ", target 90%." in str(evaluation)


def test_rows_of_fit_are_recognised_when_they_are_evaluated(three):
    X, y = three
    model = AtypicalityAwareClassifier(GaussianNB(), head=QUICK, embedder=PCA(4)).fit(X[:800], y[:800])
    with pytest.warns(UserWarning, match="rows that fit has not seen; 2[0-9] of 100 rows of fit that were looked for"):
        model.evaluate(X[600:], y[600:], max_risk=0.3)  # the last quarter of the rows of fit, and others
    folds = AtypicalityAwareClassifier(GaussianNB(), head=QUICK, cv=2).fit(X[:800], y[:800])
    for one in (model, folds):
        warn_of_seen_rows(one._marks, one.outputs(X[800:]).embeddings)
    with pytest.warns(UserWarning, match="100 of 100 rows of fit"):
        warn_of_seen_rows(folds._marks, folds.outputs(X).embeddings)
    assert not row_marks(np.round(X[:100, :2])).size  # rows that are equal without being the same


def covertype_like(n, seed):
    """Seven classes of very unequal shares, ten numbers of several scales, and a soil of twelve kinds, one-hot."""
    world, rng = np.random.default_rng(1), np.random.default_rng(seed)
    means, soils = world.normal(size=(7, 10)), world.dirichlet(np.full(12, 0.3), 7)
    y = rng.choice(7, n, p=[0.36, 0.49, 0.03, 0.03, 0.03, 0.03, 0.03])
    X = means[y] + rng.normal(size=(n, 10)) * np.exp(0.3 * rng.normal(size=(n, 1)))
    X[:, 3] = np.exp(X[:, 3])
    soil = (rng.random((n, 1)) > soils[y].cumsum(axis=1)[:, :-1]).sum(axis=1)
    return np.c_[X, np.eye(12)[soil]], y


CALIBRATED = {
    "digits": lambda seed: load_digits(return_X_y=True),
    "covertype-like": lambda seed: covertype_like(1800, seed),
    "breast cancer": lambda seed: load_breast_cancer(return_X_y=True),
}


def label_losses(model, X, y):
    return -np.log(model.predict_proba(X)[np.arange(y.size), np.searchsorted(model.classes_, y)])


@pytest.mark.filterwarnings("ignore::UserWarning")  # of classes with few rows, by both
def test_forests_are_calibrated_at_least_as_well_as_by_scikit_learn():
    """Never worse by more than two standard errors of paired losses, better in sum; isotonic is worse by far."""
    gains = []
    for name, rows in CALIBRATED.items():
        X, y = rows(0)
        order = np.random.default_rng(0).permutation(y.size)
        train, test = order[:380], order[380:]
        forest = RandomForestClassifier(25, random_state=0)
        ours = AtypicalityAwareClassifier(forest, cv=5).fit(X[train], y[train])
        theirs = [
            CalibratedClassifierCV(forest, method=method, cv=5).fit(X[train], y[train])
            for method in ("sigmoid", "temperature")
        ]
        best = min((label_losses(each, X[test], y[test]) for each in theirs), key=np.mean)
        gain = best - label_losses(ours, X[test], y[test])
        assert gain.mean() > -2 * gain.std() / np.sqrt(test.size), name
        codes = np.searchsorted(ours.classes_, y[test])
        assert ours.predict_set(X[test])[np.arange(test.size), codes].mean() >= 0.9, name
        gains.append(gain.mean())
    assert sum(gains) > 0


@needs("skops")
def test_a_classifier_is_saved_without_pickle(three, tmp_path):
    X, y = three
    for cv in (None, 3):
        model = AtypicalityAwareClassifier(prepared_numbers(), head=QUICK, cv=cv).fit(X, y)
        model.save(tmp_path)
        loaded = AtypicalityAwareClassifier.load(tmp_path)
        np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
        np.testing.assert_array_equal(loaded.predict_set(X), model.predict_set(X))
        assert loaded.coverage_guarantee_ == model.coverage_guarantee_
        assert repr(clone(loaded)) == repr(clone(model))
        cards = [(tmp_path / place / "README.md").read_text() for place in ("", "head")]
        assert "AtypicalityAwareClassifier.load(" in cards[0]
        assert f"at least {model.coverage_guarantee_ or 0.9:.4g} " in cards[0]
        assert ("no coverage is guaranteed for its own prediction sets" in cards[1]) == bool(cv)
        assert ("at least 0.9 " in cards[1]) != bool(cv)
        assert loaded.head_.cross_fitted_ == bool(cv)
        assert loaded.classes_.tolist() == model.classes_.tolist()


def test_a_classifier_passes_through_joblib(three, tmp_path):
    X, y = three
    model = AtypicalityAwareClassifier(prepared_numbers(), head=QUICK, cv=3).fit(X, y)
    joblib.dump(model, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(again.predict_set(X), model.predict_set(X))


def test_weights_are_refused_with_what_to_do(three):
    X, y = three
    model = AtypicalityAwareClassifier(GaussianNB(), head=QUICK)
    with pytest.raises(TypeError, match=r'X and y alone; got sample_weight too.*then wrap it with cv="prefit"'):
        model.fit(X, y, sample_weight=np.ones(len(y)))
    assert not has_fit_parameter(model, "sample_weight")  # tools of scikit-learn do not offer it


@pytest.mark.parametrize(
    ("estimator", "labels", "message"),
    [
        (GaussianNB(), ["mild"] * 60, "y must hold at least two classes; got one class, 'mild'"),
        (Ridge(), ["a", "b"] * 30, "must be a classifier; Ridge is a regressor"),
        (make_pipeline(StandardScaler()), ["a", "b"] * 30, "must be a classifier; StandardScaler has no predict"),
    ],
    ids=["one class", "regressor", "transformer"],
)
def test_what_cannot_be_fitted_is_refused_before_the_fit(estimator, labels, message):
    with pytest.raises(ValueError, match=message):
        AtypicalityAwareClassifier(estimator).fit(np.array([["text"]] * 60), labels)


def test_folds_of_others_are_refused_with_the_reason(three):
    with pytest.raises(TypeError, match=r"a number of folds, at least 2; got StratifiedKFold\. .* never stratified"):
        AtypicalityAwareClassifier(GaussianNB(), cv=StratifiedKFold(3)).fit(*three)


@pytest.mark.parametrize(("cv", "message"), [(None, "at least 4 rows"), (5, "cv=5 must leave 2 rows")])
def test_too_few_rows_are_refused_without_a_warning_before(cv, message):
    with pytest.raises(ValueError, match=message):
        AtypicalityAwareClassifier(GaussianNB(), cv=cv).fit(np.arange(6.0)[:, None], list("aaabbb"))


def test_few_rows_are_told_of_without_what_nobody_set(three):
    X, y = three
    with pytest.warns(UserWarning, match="rows") as told:
        AtypicalityAwareClassifier(GaussianNB()).fit(X[:40], y[:40])
    said = " ".join(str(warning.message) for warning in told)
    assert "16 rows calibrate" in said
    assert not {"margin", "knots"} & set(re.findall(r"\w+", said))


def test_rows_that_trained_a_forest_are_asked_about(three):
    X, y = three
    forest = RandomForestClassifier(20, random_state=0).fit(X, y)
    with pytest.warns(UserWarning, match=r"Has the model been trained on these rows\? Then give others"):
        AtypicalityAwareClassifier(forest, head=QUICK, cv="prefit").fit(X, y)


def test_in_a_head_temperatures_by_group_are_of_fifths_of_atypicality(three):
    X, y = three
    head = ReliabilityHead(recalibration=aty.GroupTemperatureScaling())
    scaling = AtypicalityAwareClassifier(GaussianNB(), head=head).fit(X, y).head_.recalibration_
    assert scaling.quantiles_ is not None
    assert scaling.groups_.tolist() == [0, 1, 2, 3, 4]


def prepared_numbers():
    return make_pipeline(StandardScaler(), LogisticRegression())


@needs("skops")
def test_what_cannot_be_saved_or_trusted_is_refused(three, tmp_path):
    X, y = three
    odd = make_pipeline(FunctionTransformer(lambda rows: rows), LogisticRegression())
    with pytest.raises(TypeError, match=r"cannot be saved without pickle.*save head_ alone"):
        (odd := AtypicalityAwareClassifier(odd, head=QUICK).fit(X, y)).save(tmp_path / "odd")
    assert not (tmp_path / "odd").exists()
    trees = AtypicalityAwareClassifier(RandomForestClassifier(3, random_state=0), head=QUICK).fit(X, y)
    trees.save(tmp_path / "trees")
    with pytest.raises(TypeError, match=r"skops does not trust.*pass trusted=\[") as error:
        AtypicalityAwareClassifier.load(tmp_path / "trees")
    trusted = ast.literal_eval(str(error.value).partition("pass trusted=")[2].rstrip("."))
    assert sorted(trusted) == ["numpy.dtype", "sklearn.tree._tree.Tree"]
    loaded = AtypicalityAwareClassifier.load(tmp_path / "trees", trusted=trusted)
    card = (tmp_path / "trees" / "README.md").read_text()
    assert all(f"        {name!r},\n" in card for name in trusted)
    assert model_card(trees) == card
    assert "trusted=[],  # the types that the error names" in model_card(odd)
    np.testing.assert_array_equal(loaded.predict_proba(X), trees.predict_proba(X))
    other = AtypicalityAwareClassifier(prepared_numbers(), head=QUICK).fit(X, y)
    other.head_.save(tmp_path / "trees" / "head")  # a head of another classifier
    with pytest.raises(aty.BundleError, match="sha256"):
        AtypicalityAwareClassifier.load(tmp_path / "trees", trusted=["sklearn.tree._tree.Tree", "numpy.dtype"])


def test_an_evaluation_has_the_classifiers_own_sets(three):
    X, y = three
    model = AtypicalityAwareClassifier(GaussianNB(), cv=5, head=QUICK).fit(X[:400], y[:400])
    evaluation = model.evaluate(X[400:], y[400:])
    sets, codes = model.predict_set(X[400:]), np.searchsorted(model.classes_, y[400:])
    measured = {
        name: evaluation.table("overall", method="classifier", metric=name)[0]["value"]
        for name in ("coverage", "set_size")
    }
    assert measured["coverage"] == pytest.approx(aty.metrics.coverage(sets, codes))
    assert measured["set_size"] == pytest.approx(sets.sum(axis=1).mean())
    advice = [row["advice"] for row in evaluation.table("predictions", method="classifier")]
    assert advice == model.reliability(X[400:]).advice.tolist()
    assert evaluation.settings["alpha"]["classifier"] == 0.1  # the target; what is guaranteed stands beside it
    assert evaluation.settings["guaranteed"] == {"classifier": model.coverage_guarantee_}
    assert evaluation.settings["cross_fitted"] == {"classifier": True}
    target = {row["target"] for row in evaluation.table("coverage_gaps", method="classifier")}
    assert target == {0.9}
    page = render_report(evaluation, head=model)
    assert f"at least {model.coverage_guarantee_:.4g}" in page
    assert "at least 0.9 " not in page


def test_outputs_are_not_enough_for_cross_conformal_sets(three):
    X, y = three
    model = AtypicalityAwareClassifier(GaussianNB(), cv=5, head=QUICK).fit(X[:400], y[:400])
    with pytest.raises(ValueError, match=r"evaluate\(X, y\)"):
        aty.evaluate(model, model.outputs(X[400:], y[400:]))
    alone = aty.evaluate({"h": model.head_}, model.outputs(X[400:], y[400:]))
    assert any("h is the head of a cross-fitted classifier: no coverage" in note for note in alone.notes)
    assert not any("cross-fitted" in note for note in model.evaluate(X[400:], y[400:]).notes)
    assert "ConditionalConformal, no coverage guaranteed" in str(model.head_)


@pytest.mark.parametrize("options", [{}, {"cv": 5, "ensemble": False}], ids=str)
def test_without_folds_a_classifier_is_evaluated_like_its_head(options, three):
    X, y = three
    model = AtypicalityAwareClassifier(GaussianNB(), head=QUICK, **options).fit(X[:400], y[:400])
    evaluation = model.evaluate(X[400:], y[400:])
    own = evaluation.table("overall", method="classifier", metric="coverage")
    heads = aty.evaluate(model, model.outputs(X[400:], y[400:])).table("overall", metric="coverage")
    assert own[0]["value"] == heads[0]["value"]
    no_claim = "no coverage is guaranteed" in render_report(evaluation, head=model)
    assert no_claim == bool(options)


def test_labels_and_attributes_belong_to_the_rows(table):
    X, y = table
    model = AtypicalityAwareClassifier(prepared(LogisticRegression()), head=QUICK).fit(X[:1500], y[:1500])
    new, labels = X[1500:], y[1500:]
    with pytest.raises(ValueError, match="one label per row of X; got 497 for 500 rows"):
        model.outputs(new, labels[:497])
    with pytest.raises(ValueError, match="y must have the index of X"):
        model.outputs(new, labels.sort_index())
    for attributes in (new[["city"]].sort_index(), {"city": new["city"].sort_index()}):
        with pytest.raises(ValueError, match=r"attributes\['city'\] must have the index of X"):
            model.outputs(new, labels, attributes=attributes)
    expected = model.outputs(new, labels, attributes=new[["city"]]).fingerprint()
    plain = labels.reset_index(drop=True)  # a count from 0 names no rows
    assert model.outputs(new, plain, attributes={"city": new["city"].to_numpy()}).fingerprint() == expected
    assert model.outputs(new, labels, attributes=["city"]).fingerprint() == expected
    with pytest.raises(TypeError, match="a mapping of names to columns, or a DataFrame; got Series"):
        model.outputs(new, labels, attributes=new["city"])


@pytest.mark.parametrize("gap", [None, float("nan")], ids=str)
def test_missing_text_is_a_subgroup(gap):
    outputs = aty.ModelOutputs(np.eye(4, 2), labels=[0, 1, 0, 1], attributes={"city": ["Oslo", gap, "Rome", gap]})
    rows = aty.evaluate("uncalibrated", outputs).table("subgroups", metric="accuracy")
    assert [(row["subgroup"], row["count"]) for row in rows] == [("Oslo", 1), ("Rome", 1), ("missing", 2)]


@needs("skops")
def test_a_saved_classifier_names_its_reader(three, tmp_path):
    X, y = three
    AtypicalityAwareClassifier(prepared_numbers(), head=QUICK).fit(X, y).save(tmp_path)
    with pytest.raises(aty.BundleError, match=r"AtypicalityAwareClassifier\.load"):
        aty.load(tmp_path)
    for trusted in (True, "sklearn.tree._tree.Tree"):
        with pytest.raises(TypeError, match="trusted must be a list of names"):
            AtypicalityAwareClassifier.load(tmp_path, trusted=trusted)
