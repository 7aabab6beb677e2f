"""What a head remembers: quantiles that are shares, a bound that holds, drift that is noticed and not imagined."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from atypicality.head.held_out import GRID_SIZE, AbstentionRule, Drift, QuantileScale, error_bound


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=60))
def test_at_a_held_out_value_the_quantile_is_the_share_at_or_below(values):
    values = np.array(values, float)
    scale = QuantileScale.from_rows(values)
    expected = (values[:, None] >= values[None, :]).mean(axis=1)
    np.testing.assert_allclose(scale(values), expected)
    assert scale([values.max() + 1.0, values.min() - 1e-9]).tolist() == [1, 0]


def test_a_long_sample_is_kept_to_a_grid_and_loses_less_than_a_step(rng):
    values = rng.normal(size=30_000)
    scale = QuantileScale.from_rows(values)
    assert scale.values.size == scale.levels.size == GRID_SIZE
    probes = rng.normal(size=1000)
    exact = np.searchsorted(np.sort(values), probes, side="right") / values.size
    assert np.abs(scale(probes) - exact).max() <= 1 / (GRID_SIZE - 1) + 1 / values.size


@pytest.mark.parametrize(("errors", "n"), [(0, 10), (3, 40), (20, 400), (5, 5)])
def test_error_bound_is_clopper_and_pearsons(errors, n):
    bound = float(error_bound(np.array([errors]), np.array([n]))[0])
    if errors == n:
        assert bound == 1
    else:  # at the bound, seeing this few errors has a chance of exactly 5 %
        assert binom.cdf(errors, n, bound) == pytest.approx(0.05)


def test_kept_predictions_err_at_most_as_often_as_asked(seed):
    # correctness is drawn with the stated confidence, so the risk of a kept share is known exactly
    rng = np.random.default_rng(seed)
    misses = 0
    for _ in range(100):
        confidence = rng.uniform(0.5, 1, 2000)
        threshold = AbstentionRule.from_rows(confidence, rng.random(2000) < confidence).threshold(0.1)
        misses += 1 - (1 + threshold) / 2 > 0.1  # mean error of uniform confidence above the threshold
    # the bound holds at each threshold with 95 %; choosing the last that passes among many costs some of it
    assert misses <= 20


def test_no_share_qualifies_then_nothing_is_kept():
    assert AbstentionRule.from_rows([0.9, 0.8], [0, 0]).threshold(0.05) == np.inf
    with pytest.raises(ValueError, match=r"max_risk must be a finite number in \(0, 1\); got 5"):
        AbstentionRule.from_rows([0.9], [1]).threshold(5)


def test_equal_confidence_is_kept_or_left_together():
    rule = AbstentionRule.from_rows([0.9, 0.9, 0.5], [1, 0, 1])
    np.testing.assert_array_equal(rule.kept, [2, 3])
    np.testing.assert_array_equal(rule.errors, [1, 1])


def test_drift_is_noticed_and_not_imagined(rng):
    scale = QuantileScale.from_rows(rng.normal(size=2000))
    same, moved = Drift(scale, rng.normal(size=1000)), Drift(scale, rng.normal(1.5, size=1000))
    assert not same.significant
    assert same.distance < 0.1
    assert moved.significant
    assert moved.distance > 0.4
    assert "the data has drifted" in moved.message()


def test_drift_of_nothing_is_nothing():
    empty = Drift(QuantileScale.from_rows([1.0, 2.0]), np.empty(0))
    assert not empty.significant
    assert (empty.share_tail, empty.distance) == (0, 0)


def test_drift_alarms_are_rare():
    # the stated chance is one in a million per look; 300 looks at undrifted data must raise none
    rng = np.random.default_rng(0)
    assert not any(
        Drift(QuantileScale.from_rows(rng.normal(size=300)), rng.normal(size=200)).significant for _ in range(300)
    )
