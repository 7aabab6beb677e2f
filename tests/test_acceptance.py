"""The neighbour ratio and acceptance by it: equal to distances taken directly, valid, stored, and refused by name."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from scipy.special import expit
from sklearn.base import clone

import atypicality as aty
from atypicality import ModelOutputs, NeighborRatio
from atypicality.head.abstention import AbstentionRule, never_accepted
from atypicality.head.acceptance import AcceptanceScore
from atypicality.head.rarity import rarity_of
from atypicality.head.reliability import Acceptance, Reliability


def by_distances(x, labels, new, predicted, normalize):
    if normalize:
        x, new = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, new))
    distances = cdist(new, x)
    mine = labels[None, :] == predicted[:, None]
    own, other = (np.where(chosen, distances, np.inf).min(axis=1) for chosen in (mine, ~mine))
    return own / (own + other)


@pytest.mark.parametrize("normalize", [None, "l2"])
def test_ambiguity_is_that_of_distances_taken_directly(normalize, rng):
    x, labels = rng.normal(size=(300, 5)), rng.integers(0, 4, 300)
    labels[7] = 4  # a class of one row
    new, predicted = rng.normal(size=(200, 5)), rng.integers(0, 5, 200)
    ratio = NeighborRatio(normalize=normalize).fit(x, labels)
    expected = by_distances(x, labels, new, predicted, normalize)
    assert_allclose(ratio.ambiguity(new, predicted), expected, rtol=1e-12)
    order = rng.permutation(200)
    assert_allclose(ratio.ambiguity(new[order], predicted[order]), expected[order], rtol=1e-12)


def test_ambiguity_at_training_rows_and_of_unseen_classes():
    ratio = NeighborRatio(normalize=None).fit([[0.0], [0.0], [3.0]], [0, 1, 1])
    # on rows of both classes, on a row of the other class, and of a class without a training row
    assert_array_equal(ratio.ambiguity([[0.0], [3.0], [1.0]], [0, 0, -1]), [0.5, 1.0, 1.0])


def test_bad_input_is_named(rng):
    x = rng.normal(size=(20, 3))
    with pytest.raises(ValueError, match="labels must have at least two classes: a ratio compares one with the others"):
        NeighborRatio().fit(x, np.zeros(20, int))
    ratio = NeighborRatio().fit(x, np.arange(20) % 2)
    with pytest.raises(ValueError, match="predicted must be positions in classes_, -1 to 1"):
        ratio.ambiguity(x, np.full(20, 2))
    with pytest.raises(ValueError, match="no row of zeros with normalize='l2'; row 4 is zero"):
        ratio.ambiguity(np.where(np.arange(20)[:, None] == 4, 0.0, x), np.zeros(20, int))


def test_a_score_learns_what_ambiguity_adds(rng):
    logit, ambiguity = rng.normal(1, 1, 4000), rng.random(4000)
    other = np.log(ambiguity / (1 - ambiguity))
    right = rng.random(4000) < expit(0.3 + logit - 0.7 * other)
    found = AcceptanceScore.from_rows(expit(logit), ambiguity, right)
    # standard errors are about 1 / sqrt(n Var(p)) = 0.04; 4 of them
    assert_allclose([found.intercept, found.confidence, found.ambiguity], [0.3, 1.0, -0.7], atol=0.16)
    plain = AcceptanceScore.from_rows(expit(logit), ambiguity, np.ones(4000, bool))
    assert_allclose(plain(expit(logit), ambiguity), expit(logit), rtol=1e-9)


def outputs_of(rng, n, names=None):
    """A model that is right where a row is near its class, with a confidence that does not say so."""
    labels, noise = rng.integers(0, 3, n), rng.uniform(0.1, 1.5, n)
    x = 2 * np.eye(4)[labels] + noise[:, None] * rng.standard_normal((n, 4))
    predicted = np.where(rng.random(n) < expit(4 - 3 * noise), labels, (labels + 1) % 3)
    logits = 2 * np.eye(3)[predicted] + 0.5 * rng.standard_normal((n, 3))
    return ModelOutputs(logits, embeddings=x, labels=labels, class_names=names)


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    train, calibration, test = (outputs_of(rng, n, ["a", "b", "c"]) for n in (600, 4000, 4000))
    plain = aty.ReliabilityHead(recalibration=aty.TemperatureScaling())
    head = clone(plain).set_params(acceptance=NeighborRatio())
    return head.fit(train, calibration), plain.fit(train, calibration), train, calibration, test


@pytest.mark.filterwarnings("ignore:nothing is accepted")
def test_acceptance_keeps_more_rows_at_the_same_risk_and_changes_nothing_else(fitted):
    head, plain, _, _, test = fitted
    more, fewer = head.predict(test, max_risk=0.06), plain.predict(test, max_risk=0.06)
    assert_array_equal(more.proba, fewer.proba)
    assert_array_equal(more.prediction_set, fewer.prediction_set)
    assert more.accepted.mean() > fewer.accepted.mean() + 0.1
    wrong = (more.label != test.labels)[more.accepted]
    assert wrong.mean() < 0.06 + 3 * np.sqrt(
        0.06 * 0.94 / wrong.size
    )  # the risk is below 0.06, its estimate may not be


def test_the_threshold_is_that_of_rows_that_fitted_nothing(fitted):
    head, _, _, calibration, test = fitted
    rest = calibration._part(~calibration._chosen(0.5, 0))
    said = head.predict(rest)
    score = head.acceptance_(said.confidence, head.neighbor_ratio_.ambiguity(rest.embeddings, said.label))
    rule = AbstentionRule.from_rows(score, said.label == rest.labels)
    assert_array_equal(rule.confidence, head.abstention_.confidence)
    assert_array_equal(rule.errors, head.abstention_.errors)
    answer = head.predict(test, max_risk=0.06)
    score = head.acceptance_(answer.confidence, head.neighbor_ratio_.ambiguity(test.embeddings, answer.label))
    kept = (score >= rule.threshold(0.06)) & ~head.quantiles_.beyond(answer.atypicality)
    assert_array_equal(answer.accepted, kept)


def test_acceptance_follows_class_names_bundles_and_refits(fitted, tmp_path):
    head, _, _, calibration, test = fitted
    turned = ModelOutputs(test.logits[:, [2, 0, 1]], embeddings=test.embeddings, class_names=["c", "a", "b"])
    expected = head.predict(test, max_risk=0.06).accepted
    assert_array_equal(head.predict(turned, max_risk=0.06).accepted, expected)
    head.save(tmp_path / "head")
    again = aty.load(tmp_path / "head")
    assert again.acceptance.get_params() == head.acceptance.get_params()
    assert_array_equal(again.predict(test, max_risk=0.06).accepted, expected)
    assert "600 training embeddings themselves" in (tmp_path / "head" / "README.md").read_text("utf-8")
    ratio = again.neighbor_ratio_
    assert again.refit(calibration[:2000]).neighbor_ratio_ is ratio


def test_acceptance_without_training_rows_is_refused(fitted):
    _, plain, _, calibration, _ = fitted
    with pytest.raises(ValueError, match="acceptance and a recalibration with ambiguity need train= with embeddings"):
        aty.ReliabilityHead(acceptance=NeighborRatio()).fit(plain.density_, calibration)


def test_ambiguity_recalibrates_where_a_recalibration_reads_it(fitted, tmp_path):
    _, _, train, calibration, test = fitted
    plain = aty.AtypicalityAwareRecalibration(covariates=("margin",), class_density=False)
    aware = clone(plain).set_params(covariates=("margin", "ambiguity"))
    head = aty.ReliabilityHead(recalibration=aware).fit(train, calibration)
    without = aty.ReliabilityHead(recalibration=plain).fit(train, calibration)
    said = head.predict(test, max_risk=0.1)
    assert aty.metrics.nll(said.proba, test.labels) < aty.metrics.nll(without.predict(test).proba, test.labels) - 0.01
    # by hand: the fitted recalibration, given what the ratio says of the model's predictions
    given = rarity_of(head, test)[1]
    ratio = NeighborRatio().fit(train.embeddings, train.labels)
    assert_array_equal(given["ambiguity"], ratio.ambiguity(test.embeddings, test.logits.argmax(axis=1)))
    by_hand = head.recalibration_.predict_proba(
        test.logits, **{name: given[name] for name in ("atypicality", "class_log_density", "ambiguity")}
    )
    assert_array_equal(said.proba, by_hand)
    assert_array_equal(said.atypicality, without.predict(test).atypicality)  # never the atypicality
    turned = ModelOutputs(test.logits[:, [2, 0, 1]], embeddings=test.embeddings, class_names=["c", "a", "b"])
    assert_allclose(head.predict(turned).proba[:, [1, 2, 0]], said.proba, atol=1e-12)
    head.save(tmp_path / "head")
    again = aty.load(tmp_path / "head")
    assert_array_equal(again.predict(test).proba, said.proba)
    assert again.refit(calibration[:2000]).acceptance_ is None


def test_ambiguity_that_is_not_there_is_named(fitted):
    _, plain, train, calibration, _ = fitted
    aware = aty.AtypicalityAwareRecalibration(covariates=("ambiguity",))
    with pytest.raises(ValueError, match="needs ambiguity=, one entry per row of logits"):
        aware.fit(calibration.logits, calibration.labels)
    head = aty.ReliabilityHead(recalibration=aware)
    with pytest.raises(ValueError, match="a recalibration with ambiguity need train= with embeddings and labels"):
        head.fit(plain.density_, calibration)
    with pytest.raises(ValueError, match="with ambiguity, and a search is of no fixed size"):
        aty.export_onnx(head.fit(train, calibration), "never.onnx")


def test_an_answer_says_what_stands_behind_its_limit_and_what_is_never_accepted():
    label, confidence = np.repeat([0, 1, 2], [60, 30, 10]), np.repeat([0.95, 0.9, 0.4], [60, 30, 10])
    right = np.ones(400, bool)
    right[210] = False
    rule = AbstentionRule.from_rows(
        np.repeat([0.95, 0.85, 0.5], [200, 180, 20]), np.r_[right[:380], np.zeros(20, bool)]
    )
    limit = rule.threshold(0.02)
    assert 0.5 < limit <= 0.85  # 380 rows with one error pass at 2 %, and the 20 wrong ones behind them do not
    accepted = confidence >= limit
    answer = Reliability(
        label,
        confidence,
        np.full((100, 3), 1 / 3),
        np.eye(3, dtype=bool)[label],
        accepted=accepted,
        class_names=np.array(["a", "b", "<c>"]),
        acceptance=Acceptance(rule, 0.02),
    )
    evidence, never = str(answer).splitlines()[-2:]
    assert evidence.startswith(
        "accepted from confidence 0.5 on: 1 of 380 held-out rows there are wrong, so at most 2% "
    )
    assert never == "never accepted: <c> (10 rows)"  # a tenth is left out: 10 of one class by chance with .1^10
    assert "<p>never accepted: &lt;c&gt; (10 rows)</p>" in answer._repr_html_()
    assert "accepted from" not in str(answer[0])
    assert not str(Acceptance(rule, 0.001))  # no threshold: `predict` warns instead
    assert not never_accepted(np.repeat([0, 1], [97, 3]), np.repeat([True, False, False], [50, 47, 3]), 2).size
