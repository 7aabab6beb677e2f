"""Truths that every convex recalibrator shares: one list, and a new class joins all of them."""

import warnings

import numpy as np
import pytest
from conftest import needs
from recalibration_cases import CONVEX_CALIBRATORS, rows_like
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from atypicality import blocks
from atypicality.datasets.worlds import make_world


def all_but(*names):
    chosen = {name: calibrator for name, calibrator in CONVEX_CALIBRATORS.items() if name not in names}
    return pytest.mark.parametrize("calibrator", chosen.values(), ids=chosen)


every_calibrator = all_but()


def fit(calibrator, logits, labels, atypicality, **options):
    return clone(calibrator).fit(logits, labels, atypicality=atypicality, **options)


def fit_predict(calibrator, logits, labels, atypicality, **options):
    return fit(calibrator, logits, labels, atypicality, **options).predict_proba(logits, atypicality=atypicality)


def log_loss(probs, labels):
    return -np.log(probs[np.arange(labels.size), labels]).mean()


@every_calibrator
def test_log_loss_does_not_rise_where_it_was_fitted(calibrator, seed):  # holds: each family contains the identity
    world = make_world(1500, temperature=2.0, random_state=seed)
    probs = fit_predict(calibrator, world.logits, world.labels, world.atypicality)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-12)
    assert probs.min() >= 0
    assert log_loss(probs, world.labels) <= log_loss(world.probs, world.labels) + 1e-9


def error_free_rows(n, k, seed):
    """Logits of a model that is right on all n rows, by margins of very different sizes."""
    logits, _, atypicality = rows_like(n, k, seed)
    return logits, logits.argmax(axis=1), atypicality


@all_but("paper")  # literal: it has no prior
@pytest.mark.parametrize("n", [15, 60, 400])
def test_n_rows_without_an_error_leave_one_in_n_plus_two_for_errors(calibrator, n, seed):
    logits, labels, atypicality = error_free_rows(n, 5, seed)
    groups = np.arange(n) % 2  # two groups of n / 2 rows where groups are asked for
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        found = fit(calibrator, logits, labels, atypicality, groups=groups)
    assert any("labels all have the largest logit in" in str(warning.message) for warning in raised)
    assert not np.any(found.errors_)
    assert found.certificate_ <= 1e-9  # an optimum, not a stop on the way to infinity
    probs = found.predict_proba(logits, atypicality=atypicality, groups=groups)
    # exact for two classes with one margin; where margins differ, narrow rows take most of the pseudo-row's error
    assert (1 - probs.max(axis=1)).mean() >= 1 / (n + 2)


@all_but("paper", "vector", "bias")  # free parameters for every class need more rows than 15, with and without errors
def test_few_rows_do_not_make_it_much_worse_than_the_model(calibrator, seed):
    # a model that is right in 19 of 20 rows, and calibrated: about half of the draws of 15 rows hold no error
    rng = np.random.default_rng(seed)
    logits, atypicality = 15 * rng.normal(size=(4000, 5)), rng.normal(size=4000)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    labels = np.minimum((probs.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1), 4)
    raw, losses = log_loss(probs, labels), []
    for rows in np.arange(20 * 15).reshape(20, 15):
        groups = np.zeros(4000, int)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # absent classes, no errors
            found = fit(calibrator, logits[rows], labels[rows], atypicality[rows], groups=groups[rows])
        losses.append(log_loss(found.predict_proba(logits, atypicality=atypicality, groups=groups), labels))
    assert max(losses) < 4 * raw  # one temperature from 15 rows; without the prior up to a hundred times as much


@every_calibrator
def test_loss_is_that_of_the_probabilities(calibrator):
    logits, labels, atypicality = rows_like(400, 5)
    found = fit(calibrator, logits, labels, atypicality)
    probs = found.predict_proba(logits, atypicality=atypicality)
    floor = getattr(found, "floor_", 0.0)  # it costs m d of every label, and gives d / p back
    own = probs[np.arange(400), labels]
    assert found.loss_ == pytest.approx(log_loss(probs, labels), abs=1e-8 + floor * (5 + (1 / own).mean()))
    assert 0 <= found.certificate_ <= 1e-9
    assert found.n_iter_ >= 1


@every_calibrator
def test_a_constant_per_row_changes_nothing(calibrator, rng):
    logits, labels, atypicality = rows_like(300, 4)
    shifted = logits + 100 * rng.normal(size=(300, 1))
    plain, moved = (fit_predict(calibrator, z, labels, atypicality) for z in (logits, shifted))
    np.testing.assert_allclose(moved, plain, atol=2e-5)  # what a certificate of 2e-10 leaves to the probabilities


@every_calibrator
def test_classes_have_no_order(calibrator, rng):
    logits, labels, atypicality = rows_like(300, 4)
    order = rng.permutation(4)
    plain = fit_predict(calibrator, logits, labels, atypicality)
    permuted = fit_predict(calibrator, logits[:, order], np.argsort(order)[labels], atypicality)
    np.testing.assert_allclose(permuted, plain[:, order], atol=2e-5)


@every_calibrator
def test_rows_have_no_order(calibrator, rng):
    logits, labels, atypicality = rows_like(300, 4)
    order = rng.permutation(300)
    plain = fit_predict(calibrator, logits, labels, atypicality)
    permuted = fit_predict(calibrator, logits[order], labels[order], atypicality[order])
    np.testing.assert_allclose(permuted, plain[order], atol=2e-5)


@all_but("ensemble")  # the model as it is forms one of its parts, so it depends on the scale
@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_scale_of_the_logits_changes_nothing(calibrator, factor):
    logits, labels, atypicality = rows_like(300, 4)
    plain, scaled = (fit_predict(calibrator, z, labels, atypicality) for z in (logits, factor * logits))
    np.testing.assert_allclose(scaled, plain, atol=2e-5)


@all_but("aware")  # chooses strengths by how many rows there are; a weight does not make a row independent
def test_weights_are_repetitions(calibrator, rng):
    logits, labels, atypicality = rows_like(200, 4)
    counts = rng.integers(1, 4, size=200)
    again = np.repeat(np.arange(200), counts)
    groups = rng.integers(3, size=200)  # given groups: quantiles count rows, whatever their weight
    data = {"atypicality": atypicality, "groups": groups}
    more = {"atypicality": atypicality[again], "groups": groups[again]}
    weighted = clone(calibrator).fit(logits, labels, sample_weight=counts, **data)
    repeated = clone(calibrator).fit(logits[again], labels[again], **more)
    first, second = (found.predict_proba(logits, **data) for found in (weighted, repeated))
    np.testing.assert_allclose(first, second, atol=2e-4)  # standardised atypicality: n against n - 1 plays no part


@every_calibrator
def test_masked_classes_keep_probability_zero(calibrator):
    logits, labels, atypicality = rows_like(300, 5)
    hidden = np.random.default_rng(1).random(logits.shape) < 0.3
    rows = np.arange(300)
    hidden[rows, labels] = hidden[rows, (labels + 1) % 5] = False
    probs = fit_predict(calibrator, np.where(hidden, -np.inf, logits), labels, atypicality)
    assert (probs[hidden] == 0).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-12)


@every_calibrator
def test_float32_stays_float32_and_agrees(calibrator):
    logits, labels, atypicality = rows_like(300, 4, dtype=np.float32)
    single = fit_predict(calibrator, logits, labels, atypicality)
    assert single.dtype == np.float32
    double = fit_predict(calibrator, logits.astype(np.float64), labels, atypicality)
    np.testing.assert_allclose(single, double, atol=1e-4)


@needs("torch")
@every_calibrator
def test_torch_in_torch_out(calibrator):
    import torch

    logits, labels, atypicality = rows_like(200, 4)
    expected = fit(calibrator, logits, labels, atypicality)
    tensors = torch.from_numpy(logits), torch.from_numpy(labels), torch.from_numpy(atypicality)
    found = fit(calibrator, *tensors)
    probs = found.predict_proba(tensors[0], atypicality=tensors[2])
    assert isinstance(probs, torch.Tensor)
    np.testing.assert_allclose(probs.numpy(), expected.predict_proba(logits, atypicality=atypicality), atol=1e-12)
    chosen = found.predict(tensors[0], atypicality=tensors[2])
    assert isinstance(chosen, torch.Tensor)
    np.testing.assert_array_equal(chosen.numpy(), probs.numpy().argmax(axis=1))


@every_calibrator
def test_estimator_rules(calibrator):
    logits, labels, atypicality = rows_like(200, 4)
    fresh = clone(calibrator)
    assert fresh.get_params() == calibrator.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict_proba(logits, atypicality=atypicality)
    assert fresh.fit(logits, labels, atypicality=atypicality) is fresh
    first = fresh.predict_proba(logits, atypicality=atypicality)
    fresh.fit(logits[:, ::-1], 3 - labels, atypicality=atypicality)  # a second fit forgets the first
    np.testing.assert_allclose(fresh.predict_proba(logits[:, ::-1], atypicality=atypicality), first[:, ::-1], atol=2e-5)
    assert clone(fresh).get_params() == calibrator.get_params()


@every_calibrator
def test_inputs_are_left_alone_in_any_layout(calibrator):
    logits, labels, atypicality = rows_like(200, 4)
    expected = fit_predict(calibrator, logits, labels, atypicality)
    for layout in (np.asfortranarray(logits), np.repeat(logits, 2, axis=0)[::2], np.repeat(logits, 2, axis=1)[:, ::2]):
        layout.flags.writeable = False
        kept = layout.copy()
        np.testing.assert_allclose(fit_predict(calibrator, layout, labels, atypicality), expected, atol=1e-9)
        np.testing.assert_array_equal(layout, kept)


@every_calibrator
def test_blocks_do_not_matter(calibrator):
    logits, labels, atypicality = rows_like(200, 4)
    expected = fit_predict(calibrator, logits, labels, atypicality)
    with blocks.settings(block_rows=7, n_threads=3):
        np.testing.assert_allclose(fit_predict(calibrator, logits, labels, atypicality), expected, atol=1e-8)


@every_calibrator
def test_a_single_column_is_a_binary_model(calibrator):
    logits, labels, atypicality = rows_like(200, 2)
    gap = logits[:, 1:] - logits[:, :1]
    both = fit_predict(calibrator, np.c_[np.zeros(200), gap], labels, atypicality)
    np.testing.assert_allclose(fit_predict(calibrator, gap, labels, atypicality), both, atol=1e-12)


@every_calibrator
def test_bad_input_is_named(calibrator):
    logits, labels, atypicality = rows_like(60, 3)

    def trying(logits=logits, labels=labels, atypicality=atypicality, **options):
        return fit(calibrator, logits, labels, atypicality, **options)

    with pytest.raises(ValueError, match=r"logits must be finite, .* row 7 holds NaN, \+inf"):
        trying(np.where(np.arange(60)[:, None] == 7, np.nan, logits))
    with pytest.raises(ValueError, match=r"labels must lie in 0 \.\. 2, the columns; row 0 is outside \(row 0 is 9\)"):
        trying(labels=np.r_[9, labels[1:]])
    with pytest.raises(ValueError, match="labels must have one entry per row; got 59 for 60 rows"):
        trying(labels=labels[:-1])
    with pytest.raises(TypeError, match="labels must be integer column indices; got dtype"):
        trying(labels=labels.astype(str))
    with pytest.raises(ValueError, match="logits must have at least one row to fit"):
        trying(logits[:0], labels[:0], atypicality[:0])
    with pytest.raises(ValueError, match="logits must be two-dimensional"):
        trying(logits[0])
    with pytest.raises(ValueError, match="sample_weight must not be negative; row 2 holds"):
        trying(sample_weight=np.where(np.arange(60) == 2, -1.0, 1.0))
    masked = logits.copy()
    masked[4, labels[4]] = -np.inf
    with pytest.raises(ValueError, match="labels must not point at a masked class; row 4 has"):
        trying(masked)
    found = trying()
    with pytest.raises(ValueError, match="logits must have 3 columns, one per class as when it was fitted; got 2"):
        found.predict_proba(logits[:, :2], atypicality=atypicality)
    with pytest.raises(ValueError, match=r"logits must be finite, .* row 1 holds"):
        found.predict_proba(np.where(np.arange(60)[:, None] == 1, np.inf, logits), atypicality=atypicality)


@every_calibrator
def test_a_row_without_a_finite_logit_is_named(calibrator):
    logits, labels, atypicality = rows_like(60, 3)
    logits[7] = -np.inf
    with pytest.raises(ValueError, match=r"logits must be finite, .* row 7 holds .* no finite entry"):
        fit(calibrator, logits, labels, atypicality)


@every_calibrator
def test_a_class_absent_from_the_calibration_rows(calibrator):
    logits, labels, atypicality = rows_like(300, 5)
    labels = np.where(labels == 3, 0, labels)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        probs = fit_predict(calibrator, logits, labels, atypicality)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-12)
    assert np.isfinite(probs).all()
    if any(word in str(calibrator) for word in ("Vector", "Aware")):  # those with parameters for every class
        assert any("no row of class 3" in str(warning.message) for warning in raised)
    else:
        assert not raised
