import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.stats import multivariate_normal

from atypicality.datasets import make_world
from atypicality.groups import QuantileGroups


def nll(logits, labels):
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean()


@pytest.mark.parametrize(
    "options", [{}, {"atypical_noise": 1.0}, {"class_imbalance": 20.0, "temperature": 3.0}], ids=str
)
def test_labels_follow_the_truth_in_every_group(options, seed):
    world = make_world(20_000, random_state=seed, **options)
    np.testing.assert_allclose(world.true_probs.sum(axis=1), 1.0, rtol=1e-12)
    groups = QuantileGroups(4).fit(world.atypicality).assign(world.atypicality)
    for group in range(4):
        rows = groups == group
        truth, counts = world.true_probs[rows], np.bincount(world.labels[rows], minlength=5)
        deviation = np.sqrt((truth * (1 - truth)).sum(axis=0))
        assert np.all(np.abs(counts - truth.sum(axis=0)) < 5 * deviation)  # 20 normal counts: 5 deviations never happen


def test_without_faults_the_model_is_the_truth(seed):
    world = make_world(500, random_state=seed)
    np.testing.assert_allclose(world.probs, world.true_probs, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_mends_the_model(temperature, seed):
    world = make_world(20_000, temperature=temperature, random_state=seed)
    best = minimize_scalar(lambda t: nll(world.logits / np.exp(t), world.labels), bounds=(-3, 3), method="bounded").x
    assert np.exp(best) == pytest.approx(temperature, rel=0.08)  # the standard error of log T is near 0.012


def test_atypicality_is_the_smallest_class_conditional_one(seed):
    world = make_world(50, 3, n_features=2, random_state=seed)
    densities = [multivariate_normal(mean).logpdf(world.embeddings) for mean in world.class_means]
    np.testing.assert_allclose(world.atypicality, -np.max(densities, axis=0), rtol=1e-12)


def test_noise_spares_typical_samples_and_the_model_does_not_see_it(seed):
    clean, noisy = (make_world(20_000, atypical_noise=noise, random_state=seed) for noise in (0.0, 1.0))
    np.testing.assert_array_equal(clean.logits, noisy.logits)
    groups = QuantileGroups(6).fit(noisy.atypicality).assign(noisy.atypicality)
    excess = noisy.probs.max(axis=1) - (noisy.probs.argmax(axis=1) == noisy.labels)
    assert abs(excess[groups == 0].mean()) < 0.05
    assert excess[groups == 5].mean() > 0.3


def test_shares_fall_from_first_to_last(seed):
    world = make_world(50_000, class_imbalance=10.0, random_state=seed)
    assert world.class_shares[0] / world.class_shares[-1] == pytest.approx(10.0)
    shares = np.bincount(world.labels) / len(world)
    np.testing.assert_allclose(shares, world.class_shares, atol=5 * np.sqrt(0.25 / len(world)))


def test_seeds_repeat_and_differ():
    first, again, other = (make_world(20, random_state=state) for state in (3, 3, 4))
    np.testing.assert_array_equal(first.embeddings, again.embeddings)
    np.testing.assert_array_equal(first.labels, again.labels)
    assert not np.array_equal(first.embeddings, other.embeddings)


def test_take_keeps_rows_together():
    world = make_world(100)
    part = world.take(np.arange(10, 20))
    np.testing.assert_array_equal(part.logits, world.logits[10:20])
    np.testing.assert_array_equal(part.atypicality, world.atypicality[10:20])
    assert part.class_names == world.class_names
    assert len(part) == 10


def test_outputs_are_what_a_user_would_have():
    world = make_world(30)
    outputs = world.outputs()
    np.testing.assert_array_equal(outputs.logits, world.logits)
    np.testing.assert_array_equal(outputs.labels, world.labels)
    assert outputs.atypicality is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_samples": 0}, "n_samples must be at least 1; got 0"),
        ({"n_classes": 1}, "n_classes must be at least 2; got 1"),
        ({"n_features": 0}, "n_features must be at least 1; got 0"),
        ({"temperature": 0.0}, r"temperature must be a finite number in \(0, inf"),
        ({"class_imbalance": 0.5}, r"class_imbalance must be a finite number in \[1"),
        ({"atypical_noise": 1.5}, r"atypical_noise must be a finite number in \[0, 1\]; got 1.5"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make_world(**options)
