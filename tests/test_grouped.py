"""Temperature scaling by group: each group on its own, and groups that were never seen."""

import numpy as np
import pytest
from recalibration_cases import rows_like

from atypicality import GroupTemperatureScaling, TemperatureScaling
from atypicality.datasets.worlds import make_world


def test_every_group_has_the_temperature_of_its_rows():
    logits, labels, _ = rows_like(300, 4)
    groups = np.array(["b", "a", "c"])[np.arange(300) % 3]
    found = GroupTemperatureScaling().fit(logits, labels, groups=groups)
    np.testing.assert_array_equal(found.groups_, ["a", "b", "c"])
    np.testing.assert_array_equal(found.counts_, [100, 100, 100])
    alone = [TemperatureScaling().fit(logits[groups == g], labels[groups == g]) for g in "abc"]
    np.testing.assert_allclose(found.temperatures_, [fit.temperature_ for fit in alone], rtol=1e-5)
    assert found.loss_ == pytest.approx(np.mean([fit.loss_ for fit in alone]), abs=1e-9)
    probs = found.predict_proba(logits, groups=groups)
    np.testing.assert_allclose(probs[groups == "c"], alone[2].predict_proba(logits[groups == "c"]), atol=1e-6)


def test_two_groups_by_hand():
    # 3 of 4 right with a gap of 2 in group 0, 2 of 3 in group 1; with a prior in each 4 of 6 and 3 of 5
    logits = np.tile([[2.0, 0.0]], (7, 1))
    found = GroupTemperatureScaling().fit(logits, [0, 0, 0, 1, 0, 0, 1], groups=[0, 0, 0, 0, 1, 1, 1])
    # the certificate of 2e-10 bounds the loss, which is quadratic in the temperature
    np.testing.assert_allclose(found.temperatures_, [2 / np.log(2), 2 / np.log(1.5)], rtol=1e-7)
    np.testing.assert_allclose(found.multiplier(), [np.log(2) / 2, np.log(1.5) / 2], rtol=1e-7)
    np.testing.assert_array_equal(found.errors_, [1, 1])


def test_quantiles_of_atypicality():
    world = make_world(4000, temperature=1.0, atypical_noise=0.9)
    found = GroupTemperatureScaling(n_groups=4).fit(world.logits, world.labels, atypicality=world.atypicality)
    np.testing.assert_array_equal(found.groups_, np.arange(4))
    assert found.temperatures_.size == found.counts_.size == 4
    assert found.temperatures_[-1] > 1.1 * found.temperatures_[0]  # the noise sits in the atypical rows
    far = found.predict_proba(world.logits[:1], atypicality=[1e9])
    last = TemperatureScaling().fit(world.logits, world.labels)
    last.temperature_ = found.temperatures_[-1]
    np.testing.assert_allclose(far, last.predict_proba(world.logits[:1]), atol=1e-12)


def test_one_group_is_temperature_scaling():
    logits, labels, atypicality = rows_like(300, 4)
    found = GroupTemperatureScaling(n_groups=1).fit(logits, labels, atypicality=atypicality)
    np.testing.assert_allclose(found.temperatures_, TemperatureScaling().fit(logits, labels).temperature_, rtol=1e-5)


def test_groups_come_before_atypicality():
    logits, labels, atypicality = rows_like(300, 4)
    groups = np.arange(300) % 2
    found = GroupTemperatureScaling().fit(logits, labels, atypicality=atypicality, groups=groups)
    assert found.quantiles_ is None
    with pytest.raises(ValueError, match="GroupTemperatureScaling needs groups=, one entry per row of logits"):
        found.predict_proba(logits, atypicality=atypicality)


def test_a_group_never_seen_is_an_error():
    logits, labels, _ = rows_like(60, 3)
    found = GroupTemperatureScaling().fit(logits, labels, groups=np.arange(60) % 2)
    with pytest.raises(ValueError, match=r"groups must have been seen in fit, which saw 0, 1; got 5, 7 too"):
        found.predict_proba(logits[:3], groups=[0, 7, 5])


def test_what_it_needs_and_lacks_is_an_error():
    logits, labels, atypicality = rows_like(60, 3)
    with pytest.raises(ValueError, match=r"GroupTemperatureScaling needs atypicality=, .* got None"):
        GroupTemperatureScaling().fit(logits, labels)
    with pytest.raises(ValueError, match="atypicality must be finite; row 3 holds"):
        GroupTemperatureScaling().fit(logits, labels, atypicality=np.where(np.arange(60) == 3, np.nan, atypicality))
    with pytest.raises(ValueError, match="n_groups must be at least 1; got 0"):
        GroupTemperatureScaling(n_groups=0).fit(logits, labels, atypicality=atypicality)
    with pytest.raises(TypeError, match="groups must be integers, booleans or strings"):
        GroupTemperatureScaling().fit(logits, labels, groups=atypicality)
    with pytest.raises(ValueError, match="sample_weight must not be zero in a whole group; group 1 has no weight"):
        GroupTemperatureScaling().fit(
            logits, labels, groups=np.arange(60) % 2, sample_weight=(np.arange(60) % 2 == 0).astype(float)
        )


def test_a_group_that_is_all_right_is_named():
    logits, labels, _ = rows_like(60, 3)
    groups = np.zeros(60, int)
    groups[:2] = 1
    logits[:2] = 3 * np.eye(3)[labels[:2]]
    with pytest.warns(UserWarning, match="group 1: labels all have the largest logit in 2 rows"):
        found = GroupTemperatureScaling().fit(logits, labels, groups=groups)
    assert found.errors_[0] > 0
    assert found.errors_[1] == 0
    # two other classes at the same distance: right with a chance of 3 in 4, as one of four rows would be wrong
    np.testing.assert_allclose(found.predict_proba(logits[:2], groups=[1, 1]).max(axis=1), 3 / 4, rtol=1e-6)


def test_constant_atypicality_merges_all_groups_and_says_so():
    logits, labels, _ = rows_like(60, 3)
    with pytest.warns(UserWarning, match=r"ties: n_groups=5 became groups of"):
        found = GroupTemperatureScaling().fit(logits, labels, atypicality=np.ones(60))
    assert found.temperatures_.size == 1
