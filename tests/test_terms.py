"""Laws of the terms of recalibration: matrices worked out by hand, symmetries, and what few rows leave."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from atypicality import AtypicalityAwareRecalibration, TemperatureScaling
from atypicality.arrays import namespace
from atypicality.datasets import make_world
from atypicality.formula import Neighbours, Rank, Rows, SimilarLogits, SimilarProbabilities, Top, recalibration
from atypicality.formula.rows import below_top
from atypicality.metrics import nll
from atypicality.recalibration import aware, terms
from atypicality.recalibration.terms import TERMS, ClassSimilarity


def matrix_of(field, logits):
    z = np.asarray(logits, np.float64)
    hidden = np.isneginf(z) if np.isneginf(z).any() else None
    xp = namespace(z)
    return field(xp, Rows(z), below_top(xp, z, hidden), hidden)


def related(n, k, seed):
    """Logits of classes that come in pairs: one of a pair is likely where the other is."""
    rng = np.random.default_rng(seed)
    common = np.repeat(rng.normal(size=(n, -(-k // 2))), 2, axis=1)[:, :k]
    logits = 2 * common + rng.normal(size=(n, k))
    truth = np.exp(0.5 * logits + 0.5 * np.roll(logits, 1, axis=1))
    truth /= truth.sum(axis=1, keepdims=True)
    labels = (truth.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return logits, np.minimum(labels, k - 1), rng.random(n)


def test_rank_by_hand():
    # places 1, 1 (tied), 3, 4, 5: rounded down to powers of 2 they are 1, 1, 2, 4, 4
    found = matrix_of(Rank((1, 3)), [[1.0, 5.0, 0.0, 5.0, -2.0]])
    np.testing.assert_allclose(found, -np.log([[2, 1, 4, 1, 4]]), atol=1e-15)


def test_rank_leaves_masked_classes_behind():
    found = matrix_of(Rank((1, 3)), [[-np.inf, 5.0, 0.0, 1.0]])
    np.testing.assert_allclose(found[0, 1:], -np.log([1, 2, 2]), atol=1e-15)


def test_top_by_hand():
    np.testing.assert_allclose(matrix_of(Top(2.0), [[1.0, 3.0, 2.5]]), np.exp([[-4.0, 0.0, -1.0]]), rtol=1e-15)


def test_similar_classes_by_hand():
    whole = np.array([[0.0, 0.5, 1.0], [0.25, 0.0, 0.0], [0.75, 0.5, 0.0]])  # means are columns
    z = np.array([[4.0, 0.0, 2.0]])
    below = z - 4
    np.testing.assert_allclose(matrix_of(SimilarLogits(Neighbours(whole)), z), below @ whole - below, rtol=1e-15)
    p = np.exp(0.5 * below) / np.exp(0.5 * below).sum()
    found = matrix_of(SimilarProbabilities(Neighbours(whole), 0.5, 0.01), z)
    np.testing.assert_allclose(found, np.log(p @ whole + 0.01), rtol=1e-14)


def test_masked_classes_are_left_out_of_the_mean():
    whole = np.array([[0.0, 0.5, 1.0], [0.25, 0.0, 0.0], [0.75, 0.5, 0.0]])
    found = matrix_of(SimilarLogits(Neighbours(whole)), [[4.0, -np.inf, 2.0]])
    # class 0 resembles class 2 alone now, whose logit is 2 less; class 2 resembles class 0 alone
    np.testing.assert_allclose(found[0, [0, 2]], [-2.0, 2.0], rtol=1e-15)


def test_similarity_knows_pairs_and_has_rows_of_sum_one(seed):
    logits, _, _ = related(2000, 8, seed)
    found = ClassSimilarity.of(logits)
    np.testing.assert_allclose(found.weights.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(np.diag(found.weights), 0.0)
    np.testing.assert_array_equal(found.weights.argmax(axis=1), np.arange(8) ^ 1)
    order = np.random.default_rng(seed).permutation(8)
    np.testing.assert_allclose(ClassSimilarity.of(logits[:, order]).weights, found.weights[order][:, order], rtol=1e-9)
    np.testing.assert_allclose(ClassSimilarity.of(logits + logits[:, :1]).weights, found.weights, rtol=1e-9)


def test_a_weight_of_two_is_a_repeated_row(seed):
    logits, _, _ = related(300, 6, seed)
    twice = ClassSimilarity.of(np.concatenate([logits, logits[:100]]))
    weights = np.where(np.arange(300) < 100, 2.0, 1.0)
    np.testing.assert_allclose(ClassSimilarity.of(logits, weights).weights, twice.weights, rtol=1e-10)


def test_nearest_classes_are_a_sparse_product_and_a_sum_alike(seed, monkeypatch):
    monkeypatch.setattr(terms, "DENSE_UP_TO", 4)
    monkeypatch.setattr(terms, "NEAREST", 3)
    logits, _, _ = related(450, 12, seed)
    similarity = ClassSimilarity.of(logits)
    assert similarity.weights.shape == (12, 3)
    for one, weights, columns in (
        (similarity.forward(), similarity.weights, similarity.columns),
        (similarity.backward(), similarity.back_weights, similarity.back_columns),
    ):
        expected = np.einsum("nkm,km->nk", logits[:, columns], weights)
        np.testing.assert_allclose(one(np, logits), expected, rtol=1e-12, atol=1e-12)
        gathered = Neighbours(columns=one.columns, weights=one.weights)
        np.testing.assert_allclose(gathered(np, logits), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("strength", ["auto", 0.01])
def test_permuting_classes_permutes_probabilities(seed, strength):
    logits, labels, a = related(600, 6, seed)
    prior = np.log(np.arange(1.0, 7.0))
    order = np.random.default_rng(seed + 1).permutation(6)
    one = AtypicalityAwareRecalibration(strength=strength)
    first = one.fit(logits, labels, atypicality=a, class_log_prior=prior).predict_proba(logits, atypicality=a)
    place = np.argsort(order)
    second = one.fit(logits[:, order], place[labels], atypicality=a, class_log_prior=prior[order])
    # both end within the certificate of one optimum: probabilities agree to its square root
    np.testing.assert_allclose(second.predict_proba(logits[:, order], atypicality=a), first[:, order], atol=1e-4)
    assert set(second.terms_) >= set(TERMS)


def test_terms_that_are_true_are_found_and_help(seed):
    logits, labels, a = related(3000, 8, seed)
    rows, rest = slice(0, 1500), slice(1500, None)
    found = AtypicalityAwareRecalibration().fit(logits[rows], labels[rows], atypicality=a[rows])
    assert {"similar_logits", "similar_probabilities", "class_mixing"} & set(found.strength_)
    plain = TemperatureScaling().fit(logits[rows], labels[rows])

    def loss(probs):
        return -np.log(probs[np.arange(1500), labels[rest]]).mean()

    assert loss(found.predict_proba(logits[rest], atypicality=a[rest])) < loss(plain.predict_proba(logits[rest])) - 0.05


def test_few_noisy_rows_cost_little_beside_temperature_scaling(seed):
    """20 rows of 10 classes, three in ten labels drawn at random: in 240 worlds .011 nats, with a deviation of .031."""
    behind = []
    for number in range(20 * seed, 20 * seed + 20):
        few, others = (make_world(n, 10, temperature=2.0, random_state=number) for n in (20, 3020))
        rng = np.random.default_rng(number)
        labels = np.where(rng.random(20) < 0.3, rng.integers(0, 10, 20), few.labels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # classes without rows
            found = AtypicalityAwareRecalibration().fit(few.logits, labels, atypicality=few.atypicality)
            plain = TemperatureScaling().fit(few.logits, labels)
        ours = found.predict_proba(others.logits, atypicality=others.atypicality)
        behind.append(nll(ours, others.labels) - nll(plain.predict_proba(others.logits), others.labels))
        if not found.strength_:
            assert all("left out" in found.terms_[name] for name in ("multiplier", "rank", "top", "class_scores"))
            # all that is left of the default beside the temperature is a share of the uniform distribution
            mixed = (1 - 10 * found.floor_) * plain.predict_proba(few.logits) + found.floor_
            ours = found.predict_proba(few.logits, atypicality=few.atypicality)
            np.testing.assert_allclose(ours, mixed, atol=1e-4)
    assert np.mean(behind) < 0.011 + 4 * 0.031 / np.sqrt(20)
    assert max(behind) < 0.3  # .16 among those worlds


def test_the_prior_has_no_constant_and_a_class_without_rows_counts_as_half_the_rarest():
    world = make_world(400, 3, class_imbalance=5.0)
    fit = AtypicalityAwareRecalibration(strength=0.01).fit
    columns = {"atypicality": world.atypicality}
    one, other = (
        fit(world.logits, world.labels, class_log_prior=np.log([0.6, 0.3, 0.1]) + c, **columns).class_log_prior_
        for c in (0.0, 7.0)
    )
    np.testing.assert_allclose(one, other, atol=1e-12)
    missing = fit(world.logits, world.labels, class_log_prior=[np.log(3.0), 0.0, -np.inf], **columns).class_log_prior_
    assert np.exp(missing[1] - missing[2]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        ([0.0, 0.0], "one entry per class, 3; got 2"),
        ([np.nan, 0.0, 0.0], "a number; row 0 holds NaN"),
        ([np.inf, 0.0, 0.0], "logarithms of shares"),
        ([-np.inf] * 3, "logarithms of shares"),
    ],
)
def test_bad_priors_are_refused(prior, words):
    world = make_world(60, 3)
    with pytest.raises(ValueError, match=f"class_log_prior must .*{words}"):
        AtypicalityAwareRecalibration().fit(
            world.logits, world.labels, atypicality=world.atypicality, class_log_prior=prior
        )


def test_an_unknown_term_is_refused():
    world = make_world(60, 3)
    with pytest.raises(ValueError, match="terms must be"):
        AtypicalityAwareRecalibration(terms=("ranks",)).fit(world.logits, world.labels, atypicality=world.atypicality)


def test_strengths_of_some_rows_serve_all_of_them(seed, monkeypatch):
    logits, labels, a = related(4000, 6, seed)
    whole = AtypicalityAwareRecalibration().fit(logits, labels, atypicality=a)
    monkeypatch.setattr(aware, "CHOICE", 6 * 2000)
    part = AtypicalityAwareRecalibration().fit(logits, labels, atypicality=a)
    assert part.strength_ != whole.strength_
    assert part.loss_ == pytest.approx(whole.loss_, abs=0.005)  # a few parameters more or less, of 4000 rows


def test_the_term_of_the_page_works(monkeypatch, tmp_path):
    """The code of docs/adding-terms.md, put where the page says."""
    page = (Path(__file__).parents[1] / "docs" / "adding-terms.md").read_text("utf-8")
    code, names, _ = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    space, known = dict(vars(recalibration)), {}
    exec(code, space)
    exec(names, known)
    own = terms.fields_of

    def fields_of(names, n_classes, *, multiplier, **others):
        found = dict(own(names, n_classes, multiplier=multiplier, **others))
        return [(name, found.get(name) or space["Entropy"](multiplier)) for name in names if name != "class_prior"]

    monkeypatch.setattr(aware, "fields_of", fields_of)
    monkeypatch.setattr(aware, "TERMS", known["TERMS"])
    logits, labels, a = related(400, 5, 0)
    found = AtypicalityAwareRecalibration(terms=("rank", "entropy"), strength=0.1).fit(logits, labels, atypicality=a)
    assert found.terms_["entropy"] == "used"
    probs = found.predict_proba(logits, atypicality=a)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0)
