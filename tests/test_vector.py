"""Vector scaling: biases by hand, its optimum, shrinkage, and what happens to absent or separable classes."""

import numpy as np
import pytest
from recalibration_cases import Reference, rows_like
from scipy.special import logsumexp

from atypicality import TemperatureScaling, VectorScaling


def test_biases_by_hand():
    # two kinds of rows and a free bias and multiplier: both empirical frequencies are met exactly, and each class has
    # 1 / (9 + 2) of every row beside: 3/4 * 9/11 + 1/11 and 4/5 * 9/11 + 1/11
    logits = np.repeat([[1.0, 0.0], [0.0, 1.0]], [4, 5], axis=0)
    found = VectorScaling(scale=False).fit(logits, [0, 0, 0, 1, 0, 1, 1, 1, 1])
    np.testing.assert_allclose(found.predict_proba(logits[[0, 4]]), [[31 / 44, 13 / 44], [14 / 55, 41 / 55]], atol=1e-8)
    assert found.class_scores_.sum() == pytest.approx(0, abs=1e-12)
    assert found.scale_[0] == found.scale_[1]


@pytest.mark.parametrize("options", [{}, {"scale": False}, {"bias": False}], ids=["both", "bias", "scale"])
def test_optimum_is_that_of_a_general_purpose_minimiser(options, seed):
    logits, labels, _ = rows_like(600, 6, seed)
    found = VectorScaling(**options).fit(logits, labels)
    mixing = "diagonal" if options.get("scale", True) else None
    reference = Reference(logits, labels, mixing=mixing, class_scores=options.get("bias", True), pseudo_rows=True)
    centred = logits - logits.mean(axis=1, keepdims=True)
    scores = centred * found.scale_ + found.class_scores_
    norms = logsumexp(scores, axis=1)
    assert (norms - (reference.y * scores).sum(axis=1)).mean() <= reference.minimum() + 1e-9
    assert found.loss_ == pytest.approx((norms - scores[np.arange(600), labels]).mean(), abs=1e-9)


def test_neither_is_temperature_scaling():
    logits, labels, _ = rows_like(300, 4)
    found = VectorScaling(scale=False, bias=False).fit(logits, labels)
    np.testing.assert_allclose(found.scale_, TemperatureScaling().fit(logits, labels).multiplier(), rtol=1e-5)
    assert not found.class_scores_.any()


def test_strength_leads_to_temperature_scaling():
    logits, labels, _ = rows_like(300, 4)
    temperature = TemperatureScaling().fit(logits, labels).predict_proba(logits)
    gaps = [
        np.abs(VectorScaling(strength=s).fit(logits, labels).predict_proba(logits) - temperature).max()
        for s in (0.0, 1e-2, 1.0, 1e6)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-5


def test_prior_shift_is_undone(seed):
    # labels of class 0 dropped by half: its score falls by log 2 against the others, whatever the model
    logits, labels, _ = rows_like(20000, 4, seed)
    kept = (labels > 0) | (np.random.default_rng(seed).random(20000) < 0.5)
    before, after = (VectorScaling(scale=False).fit(logits[r], labels[r]).class_scores_ for r in (slice(None), kept))
    shift = (after - before) - (after - before)[1:].mean()
    assert shift[0] == pytest.approx(-np.log(2), abs=0.15)  # the standard error of a score is about 0.03
    np.testing.assert_allclose(shift[1:], 0, atol=0.15)


def test_absent_class_gets_the_mean_of_the_others_and_it_is_reported():
    logits, labels, _ = rows_like(300, 5)
    labels = np.where(labels == 2, 0, labels)
    with pytest.warns(
        UserWarning,
        match=r"labels hold no row of class 2: its score rests on the ridge alone, and without one on the mean",
    ):
        found = VectorScaling().fit(logits, labels)
    np.testing.assert_array_equal(found.absent_classes_, [2])
    others = [0, 1, 3, 4]
    assert found.class_scores_[2] == pytest.approx(found.class_scores_[others].mean(), abs=1e-12)
    assert found.scale_[2] == pytest.approx(found.scale_[others].mean(), rel=1e-12)


def test_many_absent_classes_are_counted():
    logits, labels, _ = rows_like(20, 60)
    with pytest.warns(UserWarning, match=r"no row of class .* \(40 in all\)"):
        found = VectorScaling(strength=0.1).fit(logits, labels)
    assert found.absent_classes_.size == 40


@pytest.mark.parametrize("strength", [0.0, 1e-3])
def test_separable_labels_give_a_finite_answer_and_a_warning(strength):
    labels = np.arange(40) % 4
    logits = 3 * np.eye(4)[labels] + np.random.default_rng(0).random((40, 4))
    with pytest.warns(UserWarning, match="labels all have the largest logit in 40 rows"):
        found = VectorScaling(strength=strength).fit(logits, labels)
    assert np.abs(found.scale_).max() < 100
    assert found.predict_proba(logits).max(axis=1).mean() < 1 - 0.5 / 42


def test_bad_options_are_named():
    logits, labels, _ = rows_like(30, 3)
    with pytest.raises(ValueError, match=r"strength must be a finite number in \[0, inf\]; got -1"):
        VectorScaling(strength=-1).fit(logits, labels)
    with pytest.raises(ValueError, match="scale must be one of True, False; got 'yes'"):
        VectorScaling(scale="yes").fit(logits, labels)
    with pytest.raises(ValueError, match="bias must be one of True, False; got None"):
        VectorScaling(bias=None).fit(logits, labels)


def test_a_mask_that_is_not_infinite_and_overflows_is_named():
    logits, labels, _ = rows_like(200, 4, 0)
    fitted, masked = VectorScaling().fit(logits, labels), logits.astype(np.float64)
    masked[[3, 7], :2] = -np.inf
    assert (fitted.predict_proba(masked)[[3, 7], :2] == 0).all()
    masked[[3, 7], :2] = np.finfo(np.float64).min
    with pytest.raises(
        ValueError, match=r"must spread less than 1e300 .*; rows 3, 7 spread further. Mask .* with -inf"
    ):
        fitted.predict_proba(masked)
