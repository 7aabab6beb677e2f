"""Temperature scaling: values by hand, known truth, and its two limits."""

import numpy as np
import pytest
from recalibration_cases import Reference, rows_like

from atypicality import TemperatureScaling
from atypicality.datasets.worlds import make_world


def test_two_classes_by_hand():
    # right in 3 of 4 rows with a gap of 4, and in 4 of 6 with the prior: the best probability is 2/3, so 4 / T = log 2
    found = TemperatureScaling().fit([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]], [0, 0, 1, 0])
    assert found.temperature_ == pytest.approx(4 / np.log(2), rel=1e-9)
    assert found.multiplier() == pytest.approx(np.log(2) / 4, rel=1e-9)
    assert found.loss_ == pytest.approx(-0.75 * np.log(2 / 3) - 0.25 * np.log(1 / 3), abs=1e-9)
    assert found.errors_ == 1


def test_three_classes_by_hand():
    # gap g to both others, right in half of the rows, pseudo-rows included: 1 / (1 + 2 exp(-g / T)) = 1/2
    found = TemperatureScaling().fit([[3.0, 0.0, 0.0], [3.0, 0.0, 0.0]], [0, 1])
    assert found.temperature_ == pytest.approx(3 / np.log(2), rel=1e-9)


def test_weights_by_hand():
    # 9 rows against 1, with the prior 10 against 2
    found = TemperatureScaling().fit([[1.0, 0.0], [1.0, 0.0]], [0, 1], sample_weight=[9, 1])
    assert found.multiplier() == pytest.approx(np.log(5), rel=1e-9)


@pytest.mark.parametrize("total", [1.0, 0.01])
def test_weights_that_count_no_rows_do_not_strengthen_the_prior(total):
    # importance weights are often normalised to sum to 1: the prior stays that of 4 rows
    given = [[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]], [0, 0, 1, 0]
    found = TemperatureScaling().fit(*given, sample_weight=np.full(4, total / 4))
    assert found.temperature_ == pytest.approx(TemperatureScaling().fit(*given).temperature_, rel=1e-9)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_true_temperature_is_found(temperature, seed):
    world = make_world(20000, temperature=temperature, random_state=seed)
    found = TemperatureScaling().fit(world.logits, world.labels)
    # the standard error of log T is about 1 / sqrt(n * curvature); with 20,000 rows well below 0.02
    assert np.log(found.temperature_) == pytest.approx(np.log(temperature), abs=0.08)


def test_accuracy_never_changes(rng):
    logits, labels, _ = rows_like(500, 6)
    found = TemperatureScaling().fit(logits, labels)
    np.testing.assert_array_equal(found.predict(logits), logits.argmax(axis=1))


def test_optimum_is_that_of_a_general_purpose_minimiser(seed):
    logits, labels, _ = rows_like(1000, 7, seed)
    found = TemperatureScaling().fit(logits, labels)
    reference = Reference(logits, labels, pseudo_rows=True)
    assert reference(np.array([found.multiplier()]))[0] <= reference.minimum() + 1e-9


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_any_float(dtype):
    logits, labels, _ = rows_like(300, 4)
    found = TemperatureScaling().fit(logits.astype(dtype), labels)
    assert found.temperature_ == pytest.approx(TemperatureScaling().fit(logits, labels).temperature_, rel=1e-2)


@pytest.mark.parametrize("factor", [1e-38, 1e-6, 1e6, 1e30, 1e37])
def test_float32_logits_of_any_scale(factor):
    logits, labels, _ = rows_like(300, 4)
    expected = factor * TemperatureScaling().fit(logits, labels).temperature_
    with np.errstate(under="ignore"):
        scaled = (factor * logits).astype(np.float32)
    found = TemperatureScaling().fit(scaled, labels)
    assert found.temperature_ == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("n", [1, 5, 30, 1000])
def test_rows_without_an_error_are_wrong_with_the_chance_of_one_row_in_n_plus_two(n):
    labels = np.arange(n) % 2
    with pytest.warns(UserWarning, match=rf"labels all have the largest logit in {n} rows: .* only the prior"):
        found = TemperatureScaling().fit(3.0 * np.eye(2)[labels], labels)
    assert found.errors_ == 0
    confidence = found.predict_proba(3.0 * np.eye(2)[labels]).max(axis=1)
    np.testing.assert_allclose(confidence, 1 - 1 / (n + 2), rtol=1e-4)  # the certificate leaves 2e-10 of the loss


def test_worse_than_chance_hits_the_upper_limit_and_says_so():
    logits, labels, _ = rows_like(300, 4)
    with pytest.warns(UserWarning, match=r"no better than chance: the temperature has hit its upper limit"):
        found = TemperatureScaling().fit(-logits, labels)
    assert np.isfinite(found.temperature_)
    assert found.loss_ == pytest.approx(np.log(4), abs=1e-5)
    np.testing.assert_allclose(found.predict_proba(-logits), 0.25, atol=1e-5)


@pytest.mark.parametrize("factor", [1e3, 1e6])
def test_one_huge_row_does_not_blind_the_solver(factor):
    logits, labels, _ = rows_like(300, 4)
    logits[0] = factor * np.eye(4)[labels[0]]  # right, and with certainty: it should change next to nothing
    expected = TemperatureScaling().fit(logits[1:], labels[1:]).temperature_
    # its margin counts as ten medians in the prior, which moves by 10 / n of the two rows in n that it is worth
    assert TemperatureScaling().fit(logits, labels).temperature_ == pytest.approx(expected, rel=20 / 300**2)


def test_a_row_of_another_world_is_refused():
    logits, labels, _ = rows_like(300, 4)
    logits[[5, 9]] *= 1e30
    with pytest.raises(ValueError, match=r"logits must be of comparable size; rows 5, 9 spread more than 1e\+08 times"):
        TemperatureScaling().fit(logits, labels)


def test_constant_logits_are_refused():
    with pytest.raises(ValueError, match=r"logits must differ between classes .* Constant rows say nothing"):
        TemperatureScaling().fit(np.full((5, 3), 2.0), [0, 1, 2, 0, 1])


def test_more_classes_than_rows():
    logits, labels, _ = rows_like(40, 300)
    found = TemperatureScaling().fit(logits, labels)
    assert found.certificate_ <= 1e-9
