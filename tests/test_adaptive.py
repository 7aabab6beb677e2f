import sys

import numpy as np
import pytest
from conftest import needs
from scipy.special import softmax
from sklearn.base import clone

from atypicality.recalibration.adaptive import AdaptiveTemperatureScaling
from atypicality.recalibration.adaptive_network import Network
from atypicality.recalibration.temperature import TemperatureScaling

pytestmark = needs("torch")


@pytest.fixture(autouse=True)
def one_thread():
    """Networks as small as these only lose by threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SMALL = {"hidden": (64,), "latent_dim": 8, "head": (16,), "learning_rate": 5e-3}
BRIEF = SMALL | {"epochs": 2, "validation_fraction": 0.0}


def make_rows(rng, n, *, n_classes=4):
    """Labels drawn at temperature 1 or 6, by the sign of the first embedding: no single temperature is right."""
    embeddings = rng.standard_normal((n, 5))
    logits = 3 * rng.standard_normal((n, n_classes))
    temperature = np.where(embeddings[:, 0] > 0, 6.0, 1.0)
    probs = softmax(logits / temperature[:, None], axis=1)
    labels = (probs.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return embeddings, logits, labels


def nll(probs, labels):
    return -np.log(probs[np.arange(len(labels)), labels]).mean()


def test_beats_one_temperature_where_temperature_depends_on_the_embedding(rng, seed):
    embeddings, logits, labels = make_rows(rng, 2000)
    test_embeddings, test_logits, test_labels = make_rows(rng, 4000)
    adaptive = AdaptiveTemperatureScaling(epochs=30, random_state=seed, **SMALL)
    probs = adaptive.fit(logits, labels, embeddings=embeddings).predict_proba(test_logits, embeddings=test_embeddings)
    single = TemperatureScaling().fit(logits, labels).predict_proba(test_logits)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    np.testing.assert_array_equal(probs.argmax(axis=1), test_logits.argmax(axis=1))
    best = nll(softmax(test_logits / np.where(test_embeddings[:, :1] > 0, 6, 1), axis=1), test_labels)
    gained = nll(single, test_labels) - nll(probs, test_labels)
    assert gained > 0.5 * (nll(single, test_labels) - best)
    temperatures = adaptive.temperature(test_embeddings)
    assert temperatures.min() > 0
    low, high = (np.median(temperatures[test_embeddings[:, 0] * sign > 0.3]) for sign in (-1, 1))
    assert 2 * low < high


def test_rows_without_an_error_do_not_make_it_certain(rng):
    embeddings, logits, _ = make_rows(rng, 60)
    adaptive = AdaptiveTemperatureScaling(**SMALL | {"epochs": 40, "validation_fraction": 0.0})
    with pytest.warns(UserWarning, match="labels all have the largest logit in 60 rows"):
        adaptive.fit(logits, logits.argmax(axis=1), embeddings=embeddings)
    assert adaptive.errors_ == 0
    assert (1 - adaptive.predict_proba(logits, embeddings=embeddings).max(axis=1)).mean() > 0.5 / 62  # no certificate


def test_same_state_same_numbers_and_nobody_elses_generator_moves(rng):
    import torch

    embeddings, logits, labels = make_rows(rng, 300)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    fits = []
    for state in (7, 7, 8):
        adaptive = AdaptiveTemperatureScaling(random_state=state, **BRIEF)
        with torch.no_grad():  # a caller's mode neither breaks the fit nor is changed by it
            fits.append(adaptive.fit(logits, labels, embeddings=embeddings).temperature(embeddings))
            assert not torch.is_grad_enabled()
    np.testing.assert_array_equal(fits[0], fits[1])
    assert np.abs(fits[0] - fits[2]).max() > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    with torch.inference_mode():
        again = AdaptiveTemperatureScaling(random_state=7, **BRIEF)
        np.testing.assert_array_equal(again.fit(logits, labels, embeddings=embeddings).temperature(embeddings), fits[0])


def test_numpy_prediction_agrees_with_torch(rng):
    import torch

    layers = [
        (rng.standard_normal((6, 5)), rng.standard_normal(6)),
        (rng.standard_normal((4, 6)), rng.standard_normal(4)),
    ]
    head = [(rng.standard_normal((1, 2)), rng.standard_normal(1))]
    embeddings = rng.standard_normal((7, 5))
    network = Network(np.full(5, 0.5, np.float32), np.full(5, 2, np.float32), *map(_float32, (layers, head)), 1)
    values = torch.from_numpy((embeddings - 0.5) / 2)
    (w0, b0), (w1, b1) = ((torch.from_numpy(w), torch.from_numpy(b)) for w, b in layers)
    code = torch.nn.functional.linear(torch.relu(torch.nn.functional.linear(values, w0, b0)), w1, b1)[:, :2]
    expected = torch.nn.functional.softplus(torch.nn.functional.linear(code, *map(torch.from_numpy, head[0])))[:, 0]
    # Sums of at most 6 products of order 10 in float32: 6 * 10 * 6e-8, twice.
    np.testing.assert_allclose(network.factor(embeddings), expected.numpy(), rtol=1e-4, atol=1e-5)


def _float32(layers):
    return [(weight.astype(np.float32), bias.astype(np.float32)) for weight, bias in layers]


def test_scale_of_the_logits_does_not_matter(rng):
    embeddings, logits, labels = make_rows(rng, 300)
    fits = [
        AdaptiveTemperatureScaling(**BRIEF).fit(scale * logits, labels, embeddings=embeddings) for scale in (1.0, 1e6)
    ]
    probs = [
        fit.predict_proba(scale * logits, embeddings=embeddings) for fit, scale in zip(fits, (1.0, 1e6), strict=True)
    ]
    np.testing.assert_allclose(*probs, rtol=1e-3)  # two temperatures certified to 1e-10 in loss: 1e-5 in scale


def test_masked_classes_stay_masked(rng):
    embeddings, logits, labels = make_rows(rng, 300)
    logits = np.c_[logits, np.full(300, -np.inf)]
    probs = (
        AdaptiveTemperatureScaling(**BRIEF)
        .fit(logits, labels, embeddings=embeddings)
        .predict_proba(logits, embeddings=embeddings)
    )
    assert np.isfinite(probs).all()
    assert (probs[:, 4] == 0).all()


def test_weights_count(rng):
    embeddings, logits, labels = make_rows(rng, 2000)
    cold = embeddings[:, 0] < 0
    fits = [
        AdaptiveTemperatureScaling(**BRIEF).fit(
            logits, labels, embeddings=embeddings, sample_weight=np.where(cold, weight, 1.0)
        )
        for weight in (0.0, 1.0)
    ]
    without, within = (fit.temperature(embeddings[cold]).mean() for fit in fits)
    assert without > within  # without the cold rows only those of temperature 6 are left


def test_the_best_epoch_counts(rng):
    # Embeddings that say nothing: whatever the network learns is noise, and the rows kept apart show it.
    _, logits, labels = make_rows(rng, 200)
    noise = rng.standard_normal((200, 20))
    eager = SMALL | {"learning_rate": 2e-2, "epochs": 150}
    stopped, last = (
        AdaptiveTemperatureScaling(validation_fraction=fraction, **eager).fit(logits, labels, embeddings=noise)
        for fraction in (0.3, 0.0)
    )
    assert stopped.n_iter_ < last.n_iter_ == 150
    _, test_logits, test_labels = make_rows(rng, 2000)
    test_noise = rng.standard_normal((2000, 20))
    losses = [nll(fit.predict_proba(test_logits, embeddings=test_noise), test_labels) for fit in (stopped, last)]
    assert losses[0] < losses[1]


def test_constant_columns_and_float32_are_fine(rng):
    embeddings, logits, labels = make_rows(rng, 200)
    embeddings = np.c_[embeddings, np.ones(200)].astype(np.float32)
    adaptive = AdaptiveTemperatureScaling(**BRIEF).fit(logits.astype(np.float32), labels, embeddings=embeddings)
    assert np.isfinite(adaptive.temperature(embeddings)).all()


def test_clone_and_parameters():
    adaptive = AdaptiveTemperatureScaling(epochs=3, hidden=(8,))
    assert clone(adaptive).get_params() == adaptive.get_params()


def test_missing_embeddings_are_named(rng):
    embeddings, logits, labels = make_rows(rng, 50)
    adaptive = AdaptiveTemperatureScaling(**BRIEF)
    with pytest.raises(ValueError, match="AdaptiveTemperatureScaling needs embeddings="):
        adaptive.fit(logits, labels)
    adaptive.fit(logits, labels, embeddings=embeddings)
    with pytest.raises(ValueError, match="AdaptiveTemperatureScaling needs embeddings="):
        adaptive.predict_proba(logits)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda e: np.where(np.arange(50)[:, None] == 3, np.nan, e), "embeddings must be finite; row 3 holds NaN"),
        (lambda e: e[:40], "embeddings must have one entry per row; got 40 for 50 rows"),
        (lambda e: e[:, 0], "embeddings must be two-dimensional"),
    ],
)
def test_bad_embeddings_are_named(rng, change, match):
    embeddings, logits, labels = make_rows(rng, 50)
    with pytest.raises(ValueError, match=match):
        AdaptiveTemperatureScaling(**BRIEF).fit(logits, labels, embeddings=change(embeddings))


def test_bad_prediction_input_is_named(rng):
    embeddings, logits, labels = make_rows(rng, 50)
    adaptive = AdaptiveTemperatureScaling(**BRIEF).fit(logits, labels, embeddings=embeddings)
    with pytest.raises(ValueError, match="embeddings must have 5 columns"):
        adaptive.predict_proba(logits, embeddings=embeddings[:, :4])
    embeddings[7, 0] = np.inf
    with pytest.raises(ValueError, match="row 7 holds NaN or infinity"):
        adaptive.temperature(embeddings)


@pytest.mark.parametrize(
    ("parameter", "value", "error", "match"),
    [
        ("epochs", 0, ValueError, "epochs must be at least 1"),
        ("hidden", (8, 0), ValueError, "hidden must be at least 1"),
        ("latent_dim", 2.5, TypeError, "latent_dim must be a whole number"),
        ("learning_rate", 0.0, ValueError, "learning_rate must be a finite number"),
        ("batch_size", -1, ValueError, "batch_size must be at least 1"),
        ("validation_fraction", 1.0, ValueError, r"validation_fraction must be a finite number in \[0, 1\)"),
        ("random_state", -1, ValueError, "random_state must be at least 0"),
    ],
)
def test_bad_parameters_are_named(rng, parameter, value, error, match):
    embeddings, logits, labels = make_rows(rng, 20)
    with pytest.raises(error, match=match):
        AdaptiveTemperatureScaling(**{parameter: value}).fit(logits, labels, embeddings=embeddings)


def test_without_torch_the_message_says_what_to_install(rng, monkeypatch):
    embeddings, logits, labels = make_rows(rng, 20)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=r"AdaptiveTemperatureScaling needs torch: .*atypicality\[torch\]"):
        AdaptiveTemperatureScaling(epochs=1).fit(logits, labels, embeddings=embeddings)


def test_divergence_agrees_with_torch(rng):
    import torch

    from atypicality.recalibration.adaptive_network import Training, _Parts

    parts = _Parts(torch, 3, 2, Training((4,), 2, (3,), 1, 1e-3, 8, 0.1, 0))
    mean, log_scale = torch.tensor([[1.0, -1.0]]), torch.tensor([[0.5, -0.5]])
    with torch.no_grad():
        parts.prior_mean.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
        parts.prior_log_scale.copy_(torch.tensor([[0.0, 0.0], [0.3, 0.3]]))
    q = torch.distributions.Normal(mean, log_scale.exp())
    for label in (0, 1):
        p = torch.distributions.Normal(parts.prior_mean[label], parts.prior_log_scale[label].exp())
        expected = torch.distributions.kl_divergence(q, p).sum()
        ours = parts._divergence(mean, log_scale, torch.tensor([label]))
        assert ours.item() == pytest.approx(expected.item(), rel=1e-5)


def test_an_untrained_head_changes_nothing(rng):
    import torch

    from atypicality.recalibration.adaptive_network import Training, _Parts, _plain

    parts = _Parts(torch, 5, 3, Training((6,), 2, (4,), 1, 1e-3, 8, 0.1, 0))
    network = Network(np.zeros(5, np.float32), np.ones(5, np.float32), _plain(parts.encoder), _plain(parts.head), 0)
    np.testing.assert_allclose(network.factor(rng.standard_normal((9, 5))), 1, rtol=1e-6)
