"""Ensemble temperature scaling: weights on the simplex, exact to the duality gap."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recalibration_cases import rows_like
from scipy.optimize import minimize
from scipy.special import softmax

from atypicality import EnsembleTemperatureScaling, TemperatureScaling
from atypicality.recalibration.ensemble import mixture_weights
from atypicality.recalibration.newton import NotConvergedError


def test_mixture_is_what_it_says():
    logits, labels, _ = rows_like(400, 4, scale=5.0)
    found = EnsembleTemperatureScaling().fit(logits, labels)
    assert found.temperature_ == pytest.approx(TemperatureScaling().fit(logits, labels).temperature_)
    assert found.weights_.sum() == pytest.approx(1, abs=1e-12)
    assert (found.weights_ >= 0).all()
    parts = [softmax(logits * found.multiplier(), axis=1), softmax(logits, axis=1), np.full_like(logits, 0.25)]
    np.testing.assert_allclose(found.predict_proba(logits), np.tensordot(found.weights_, parts, 1), atol=1e-12)


def test_loss_is_at_most_that_of_temperature_scaling(seed):
    logits, labels, _ = rows_like(400, 4, seed, scale=5.0)
    found = EnsembleTemperatureScaling().fit(logits, labels)
    # both minimise over all of n + 2 rows; the pseudo-rows' part of that differs by less than a nat
    assert found.loss_ <= TemperatureScaling().fit(logits, labels).loss_ + 1 / 400


def test_two_parts_by_hand():
    # likelihoods (1, 0) in one row and (0, 1) in three: -log w1 / 4 - 3 log w2 / 4 is least at (1/4, 3/4)
    likelihoods = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    weights, gap, _ = mixture_weights(likelihoods, np.full(4, 0.25))
    np.testing.assert_allclose(weights, [0.25, 0.75], atol=1e-9)
    assert gap <= 1e-9


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(2, 4))
def test_weights_are_the_optimum(seed, n, parts):
    rng = np.random.default_rng(seed)
    likelihoods = rng.random((n, parts)) ** 3 + 1e-3
    shares = rng.random(n) + 0.1
    shares /= shares.sum()
    weights, gap, _ = mixture_weights(likelihoods, shares)
    assert gap <= 2e-10
    assert (weights >= 0).all()
    loss = -shares @ np.log(likelihoods @ weights)
    rivals = [*np.eye(parts), *rng.dirichlet(np.ones(parts), 50)]
    found = minimize(
        lambda t: -shares @ np.log(likelihoods @ softmax(t)), np.zeros(parts), method="BFGS", options={"gtol": 1e-9}
    )
    rivals.append(softmax(found.x))
    assert loss <= min(-shares @ np.log(likelihoods @ rival) for rival in rivals) + 1e-9


@pytest.mark.parametrize("small", [2e-4, 2e-6, 2e-8])
def test_a_tiny_weight_is_found_to_all_its_digits(small):
    # likelihoods (p, u) with the share s and (1, u) otherwise: (1 - s) log(1 - a w) + s log(p + b w), a = 1 - u and
    # b = u - p, is largest at w = s / a - (1 - s) p / b
    u, p = 1 / 150, 1e-12
    likelihoods, shares = np.array([[p, u], [1.0, u]]), np.array([small, 1 - small])
    weights, gap, _ = mixture_weights(likelihoods, shares)
    assert gap <= 2e-10
    assert weights[1] == pytest.approx(small / (1 - u) - (1 - small) * p / (u - p), rel=1e-9)


def test_equal_parts_have_an_optimum_all_the_same():
    weights, gap, _ = mixture_weights(np.tile([[0.3, 0.3, 0.2]], (5, 1)), np.full(5, 0.2))
    assert gap <= 1e-9
    assert weights[2] == pytest.approx(0, abs=1e-9)


def test_uniform_part_leaves_masked_classes_out():
    logits, labels, _ = rows_like(300, 4)
    wrong = np.random.default_rng(0).permutation(labels)  # labels at random: the uniform part takes all
    logits[:, 3] = np.where((wrong == 3) | (np.arange(300) % 2 == 0), logits[:, 3], -np.inf)
    found = EnsembleTemperatureScaling().fit(logits, wrong)
    probs = found.predict_proba(logits)
    assert (probs[np.isneginf(logits)] == 0).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize("scale", [2.0, 20.0])
def test_rows_without_an_error_do_not_choose_the_most_confident_part(scale):
    # at scale 20 the plain part is certain and has no loss; the pseudo-rows want one row of 32 wrong
    labels = np.arange(30) % 3
    logits = scale * np.eye(3)[labels]
    with pytest.warns(UserWarning, match="labels all have the largest logit in 30 rows"):
        found = EnsembleTemperatureScaling().fit(logits, labels)
    assert found.errors_ == 0
    np.testing.assert_allclose(found.predict_proba(logits).max(axis=1), 1 - 1 / 32, rtol=1e-4)


def test_no_certificate_is_an_error_with_its_reason():
    with pytest.raises(
        NotConvergedError, match=r"1 iterations were not enough for the mixture weights: the duality gap"
    ):
        mixture_weights(np.array([[1.0, 0.5], [0.1, 0.5]]), np.array([0.3, 0.7]), max_iter=1)
