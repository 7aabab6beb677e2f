"""The class mix of unlabelled rows: the maximum of its likelihood, its interval, and when it is refused."""

import numpy as np
import pytest
from conftest import needs
from scipy.optimize import minimize
from scipy.special import softmax

import atypicality as aty
from atypicality import AtypicalityAwareRecalibration, estimate_class_mix
from atypicality.datasets.worlds import make_world
from atypicality.head.rarity import rarity_of
from atypicality.recalibration.class_mix import at_prior


def signs(counts, right):
    """Rows that show one of k signs, `counts` times each, as a model calibrated on equal classes reads them."""
    k = len(counts)
    given = np.full((k, k), (1 - right) / (k - 1))
    np.fill_diagonal(given, right)
    return given[np.repeat(np.arange(k), counts)]


def test_two_classes_by_hand():
    # P(sign 0) = .1 + .8 p, seen in 700 of 1000 rows: p = .75. Variances p (1 - p) and .7 * .3 / .8**2 a row
    mix = estimate_class_mix(signs([700, 300], 0.9), [0.5, 0.5], pseudo_rows=1e-3)
    np.testing.assert_allclose(mix.shares, [0.75, 0.25], atol=1e-4)
    assert mix.worth == pytest.approx(0.75 * 0.25 * 0.64 / 0.21, rel=2e-3)  # one pseudo-row in a thousand
    assert mix.n_rows == 1000


def test_training_shares_divide_out():
    # the same model, calibrated on classes 4 : 1, p(y | sign) proportional to p(sign | y) p(y)
    shares = np.array([0.8, 0.2])
    probs = signs([700, 300], 0.9) * shares
    mix = estimate_class_mix(probs / probs.sum(axis=1, keepdims=True), shares, pseudo_rows=1e-3)
    np.testing.assert_allclose(mix.shares, [0.75, 0.25], atol=1e-4)


def test_certain_rows_are_counted_labels():
    mix = estimate_class_mix(signs([60, 30, 10], 1.0), np.full(3, 1 / 3), pseudo_rows=30)
    np.testing.assert_allclose(mix.shares, (np.array([60, 30, 10]) + 10) / 130, rtol=1e-5)
    assert mix.worth == pytest.approx(1)
    # without confusion the interval is that of counts: on the scale of square roots 1.96 / (2 sqrt(100)), shrunk
    np.testing.assert_allclose(np.sqrt(mix.high) - np.sqrt(mix.shares), 0.098, atol=1e-3)


@pytest.mark.parametrize("pseudo", [0.5, 20.0])
def test_the_maximum_is_that_of_a_general_minimiser(pseudo, seed):
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(5, 5.0))
    probs = softmax(3 * rng.standard_normal((200, 5)) + np.log(shares), axis=1)
    ratios = probs / shares

    def surprise(scores):
        mix = softmax(scores)
        return -np.log(ratios @ mix).sum() - pseudo * shares @ np.log(mix)

    expected = minimize(surprise, np.zeros(5), tol=1e-12)
    mix = estimate_class_mix(probs, shares, pseudo_rows=pseudo, n_bootstrap=0)
    assert surprise(np.log(mix.shares)) <= expected.fun + 1e-4  # the stated tolerance
    np.testing.assert_allclose(mix.shares, softmax(expected.x), atol=2e-3)
    assert np.isnan(mix.low).all()


def test_order_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    probs, classes = signs([200, 100, 50, 50], 0.8), rng.permutation(4)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    probs = probs * shares / (probs @ shares)[:, None]
    first = estimate_class_mix(probs, shares, n_bootstrap=0)
    second = estimate_class_mix(probs[rng.permutation(400)][:, classes], shares[classes], n_bootstrap=0)
    np.testing.assert_allclose(second.shares, first.shares[classes], rtol=1e-6)
    assert second.worth == pytest.approx(first.worth)


def test_pseudo_rows_follow_the_evidence():
    """As many rows as the classes' shares are alike: none of a shift of 9 : 1, all where there is no shift."""
    shifted = estimate_class_mix(signs([900, 100], 0.999), [0.5, 0.5], n_bootstrap=0)
    same = estimate_class_mix(signs([500, 500], 0.999), [0.5, 0.5], n_bootstrap=0)
    assert shifted.pseudo_rows < 10
    assert same.pseudo_rows > 1e4


BAD = {
    "constant": (np.full((500, 2), 0.5), [0.5, 0.5], r"500 rows tell as much of 2 classes as 0.998 labels, and 50 are"),
    "two of three": (
        signs([300, 200, 100], 1.0) @ np.array([[1, 0, 0], [0, 0.5, 0.5], [0, 0.5, 0.5]]),
        np.full(3, 1 / 3),
        "classes 1 and 2 are confused most",
    ),
    "few rows": (signs([2, 1, 1, 1, 1, 1, 1, 1, 1], 0.9), np.full(9, 1 / 9), "10 rows tell .* and 9 are needed"),
    "one row": (signs([1, 0], 0.9), [0.5, 0.5], "at least 2 rows to estimate a class mix; got 1"),
    "share of 0": (signs([5, 5], 0.9), [1.0, 0.0], r"training_shares must be positive; class 1 has 0\. Count"),
    "shares": (signs([5, 5], 0.9), [0.5, 0.4], r"training_shares must hold shares.*sum 0\.9"),
    "logits": (np.eye(2) * 4, [0.5, 0.5], "probabilities must"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_estimated_is_refused(case):
    probs, shares, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        estimate_class_mix(probs, shares)


@pytest.mark.parametrize(("pseudo", "message"), [("some", "one of 'auto'"), (0, "pseudo_rows must be")])
def test_bad_pseudo_rows(pseudo, message):
    with pytest.raises(ValueError, match=message):
        estimate_class_mix(signs([50, 50], 0.9), [0.5, 0.5], pseudo_rows=pseudo)


# -- class_prior="estimate" --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shifted():
    """A head fitted on classes of 1 : 8, and rows of balanced classes."""
    world = make_world(9000, 3, n_features=4, class_imbalance=8.0, random_state=0)
    old, rest = world.take(slice(0, 3000)), world.take(slice(3000, None))
    rng = np.random.default_rng(0)
    chosen = np.concatenate([rng.choice(np.flatnonzero(rest.labels == y), 300) for y in range(3)])
    recalibration = AtypicalityAwareRecalibration(class_prior="estimate")
    outputs = old.outputs()
    head = aty.ReliabilityHead(recalibration=recalibration).fit(train=outputs[:1000], calibration=outputs[1000:])
    return head, rest.take(chosen)


def nll(probs, labels):
    return -np.log(probs[np.arange(labels.size), labels]).mean()


def test_the_estimate_is_stored_and_used(shifted):
    head, new = shifted
    answer = head.predict(new.outputs())
    mix = answer.class_mix
    assert np.abs(mix.shares - 1 / 3).sum() < 0.15
    assert ((mix.low < 1 / 3) & (mix.high > 1 / 3)).all()
    aware = head.recalibration_
    offered = rarity_of(head, new.outputs())[1]
    given = {name: offered[name] for name in ("atypicality", "class_log_density")}
    fixed = at_prior(aware, mix.shares)
    np.testing.assert_allclose(answer.proba, fixed.predict_proba(new.logits, **given), rtol=1e-9)
    np.testing.assert_allclose(aware.predict_proba(new.logits, **given), answer.proba, rtol=1e-6)
    unaware = at_prior(aware, None).predict_proba(new.logits, **given)
    exact = at_prior(aware, np.full(3, 1 / 3)).predict_proba(new.logits, **given)
    assert nll(answer.proba, new.labels) < nll(unaware, new.labels) - 0.02
    assert nll(answer.proba, new.labels) < nll(exact, new.labels) + 0.005  # a mix off by a few points costs its square
    assert head.predict(new.outputs()[:400]).class_mix.n_rows == 400


def test_the_mix_is_in_the_order_of_the_outputs(shifted):
    head, new = shifted
    outputs = new.outputs()[:400]
    order = np.array([2, 0, 1])
    turned = outputs._replaced(logits=outputs.logits[:, order], labels=None, class_names=outputs.class_names[order])
    expected, found = head.predict(outputs).class_mix, head.predict(turned).class_mix
    np.testing.assert_allclose(found.shares, expected.shares[order], rtol=1e-6)
    np.testing.assert_allclose(found.high, expected.high[order], rtol=1e-4)


def test_a_stated_prior_has_no_estimate(shifted):
    _, new = shifted
    outputs = new.outputs()
    head = aty.ReliabilityHead(recalibration=aty.TemperatureScaling())
    assert head.fit(train=outputs[::3], calibration=outputs[1::3]).predict(outputs).class_mix is None


def test_few_rows_are_refused_with_the_reason(shifted):
    head, new = shifted
    with pytest.raises(ValueError, match="at least 2 rows to estimate a class mix"):
        head.predict(new.outputs()[:1])


def test_what_needs_a_formula_is_refused(shifted, tmp_path):
    head, _ = shifted
    for refused in (head.formula, lambda: head.export_onnx(tmp_path / "head.onnx")):
        with pytest.raises(ValueError, match=r"class_prior=\"estimate\" has no formula.*state a mix"):
            refused()


@needs("distributed")
def test_parts_on_a_cluster_are_refused(shifted):
    import dask.array as da

    from atypicality.integrations.dask import predict_proba

    head, new = shifted
    with pytest.raises(ValueError, match="needs all rows at once"):
        predict_proba(head.recalibration_, da.from_array(new.logits))


def test_the_wish_is_saved(shifted, tmp_path):
    head, new = shifted
    head.save(tmp_path)
    loaded = aty.load(tmp_path)
    assert loaded.recalibration_.class_prior == "estimate"
    np.testing.assert_array_equal(loaded.predict(new.outputs()).proba, head.predict(new.outputs()).proba)


def test_another_word_is_refused():
    world = make_world(200, 3)
    with pytest.raises(ValueError, match="class_prior must be one of 'estimate'; got 'guess'"):
        AtypicalityAwareRecalibration(class_prior="guess").fit(
            world.logits, world.labels, atypicality=world.atypicality
        )
