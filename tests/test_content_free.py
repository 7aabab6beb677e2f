import numpy as np
import pytest
from conftest import needs
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from atypicality.recalibration.content_free import ContentFreeCalibration


def test_by_hand():
    # Content-free rows [.8, .1, .1] and [.4, .3, .3]: p_cf = [.6, .2, .2].
    calibration = ContentFreeCalibration().fit(np.log([[0.8, 0.1, 0.1], [0.4, 0.3, 0.3]]))
    np.testing.assert_allclose(calibration.content_free_probs_, [0.6, 0.2, 0.2])
    # p = [.6, .3, .1]: W p = [1, 1.5, .5], and the softmax of that, not W p / 3.
    expected = np.exp([1, 1.5, 0.5]) / np.exp([1, 1.5, 0.5]).sum()
    probs = calibration.predict_proba(np.log([[0.6, 0.3, 0.1]]))
    np.testing.assert_allclose(probs, [expected])
    assert abs(probs - [[1 / 3, 1.5 / 3, 0.5 / 3]]).max() > 0.005
    assert calibration.predict(np.log([[0.6, 0.3, 0.1]])).tolist() == [1]


def test_a_content_free_input_becomes_uniform(rng):
    logits = rng.standard_normal((1, 6))
    np.testing.assert_allclose(ContentFreeCalibration().fit(logits).predict_proba(logits), np.full((1, 6), 1 / 6))


logit_rows = arrays(np.float64, (3, 4), elements=st.floats(-20, 20))


@given(logit_rows, logit_rows)
def test_rows_are_distributions_and_shifts_change_nothing(content_free, logits):
    calibration = ContentFreeCalibration().fit(content_free)
    probs = calibration.predict_proba(logits)
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    shifted = ContentFreeCalibration().fit(content_free + 3.0).predict_proba(logits - 5.0)
    # A probability is divided by p_cf >= exp(-40) / 4, so rounding of p may grow by that much inside the softmax.
    scale = 1 / calibration.content_free_probs_.min()
    np.testing.assert_allclose(shifted, probs, rtol=1e-12 * scale, atol=1e-12)


@given(logit_rows, logit_rows, st.permutations(range(4)))
def test_permuting_classes_permutes_the_result(content_free, logits, order):
    probs = ContentFreeCalibration().fit(content_free).predict_proba(logits)
    permuted = ContentFreeCalibration().fit(content_free[:, order]).predict_proba(logits[:, order])
    np.testing.assert_allclose(permuted, probs[:, order], rtol=1e-6, atol=1e-12)


def test_a_masked_class_keeps_probability_zero():
    calibration = ContentFreeCalibration().fit([[0.0, 0.0, 0.0]])
    probs = calibration.predict_proba([[1.0, -np.inf, 0.0]])
    assert probs[0, 1] == 0
    assert probs.sum() == pytest.approx(1)


def test_kinds_of_arrays_are_kept():
    calibration = ContentFreeCalibration().fit(np.zeros((1, 3), np.float32))
    assert calibration.predict_proba(np.zeros((2, 3), np.float32)).dtype == np.float32
    assert not hasattr(clone(calibration), "content_free_probs_")


@needs("torch")
def test_tensors_come_back_as_tensors():
    import torch

    calibration = ContentFreeCalibration().fit(torch.zeros(1, 3))
    assert isinstance(calibration.predict_proba(torch.zeros(2, 3)), torch.Tensor)


@pytest.mark.parametrize(
    ("logits", "match"),
    [
        (np.zeros((0, 3)), "content_free_logits must have at least one row"),
        ([0.0, 1.0], "content_free_logits must be two-dimensional"),
        ([[0.0, np.nan]], "content_free_logits must be finite"),
        ([[0.0, -np.inf, 0.0]], r"class 1 has none \(1 of 3 classes lack one\)"),
        ([[0.0, -1000.0]], "class 1 has none"),
    ],
)
def test_bad_content_free_logits_are_named(logits, match):
    with pytest.raises(ValueError, match=match):
        ContentFreeCalibration().fit(logits)


def test_labels_are_refused():
    with pytest.raises(ValueError, match="labels must not be given: content-free inputs have none"):
        ContentFreeCalibration().fit([[0.0, 1.0]], [1])


def test_prediction_is_checked():
    with pytest.raises(NotFittedError):
        ContentFreeCalibration().predict_proba([[0.0, 1.0]])
    calibration = ContentFreeCalibration().fit([[0.0, 1.0]])
    with pytest.raises(ValueError, match="logits must have 2 columns"):
        calibration.predict_proba([[0.0, 1.0, 2.0]])
    with pytest.raises(ValueError, match="row 0 holds NaN"):
        calibration.predict_proba([[np.nan, 1.0]])
