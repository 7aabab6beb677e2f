"""ClassAtypicality and the classes behind every density: shares by hand, labels of any kind, bad labels by name."""

import numpy as np
import pytest
from conftest import needs
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from atypicality import ClassAtypicality
from atypicality.density.classes import encode_labels, merge_classes


def test_shares_by_hand():
    fitted = ClassAtypicality().fit([5, 5, 5, 2])
    assert fitted.classes_.tolist() == [2, 5]
    assert fitted.counts_.tolist() == [1, 3]
    np.testing.assert_allclose(fitted.atypicality([5, 2, 2]), -np.log([0.75, 0.25, 0.25]))
    assert fitted.atypicality([5]).dtype == np.float64


def test_a_class_never_seen_is_infinite_unless_smoothed():
    labels, asked = ["a", "a", "b"], ["a", "b", "zebra"]
    assert ClassAtypicality().fit(labels).atypicality(asked)[2] == np.inf
    # one more of each of the two classes: 3/5, 2/5, and 1/5 for a class seen 0 times
    smoothed = ClassAtypicality(smoothing=1.0).fit(labels).atypicality(asked)
    np.testing.assert_allclose(smoothed, -np.log([0.6, 0.4, 0.2]))


def test_one_class_is_not_atypical():
    np.testing.assert_array_equal(ClassAtypicality().fit([7, 7]).atypicality([7, 7]), [0.0, 0.0])


@given(st.lists(st.integers(-300, 300), min_size=1, max_size=50), st.sampled_from(["int8", "uint16", "int64", "str"]))
def test_shares_sum_to_one_whatever_the_type(labels, dtype):
    labels = np.array(labels).astype(dtype)
    fitted = ClassAtypicality().fit(labels)
    assert np.exp(-fitted.atypicality(fitted.classes_)).sum() == pytest.approx(1.0)
    classes, codes = encode_labels(labels)
    assert classes.dtype == labels.dtype
    assert classes.tolist() == sorted(set(labels.tolist()))
    np.testing.assert_array_equal(classes[codes], labels)


@pytest.mark.parametrize("labels", [[2**62, -(2**62)], np.array([2**64 - 1, 2**64 - 3], np.uint64), [0, 10**9]])
def test_labels_far_apart_are_encoded_without_a_table(labels):
    classes, codes = encode_labels(labels)
    assert classes.tolist() == sorted(np.asarray(labels).tolist())
    np.testing.assert_array_equal(classes[codes], labels)


def test_merged_classes_are_a_sorted_union():
    union, at_first, at_second = merge_classes(np.array(["b", "d"]), np.array(["a", "dog"]))
    assert union.tolist() == ["a", "b", "d", "dog"]
    assert at_first.tolist() == [1, 2]
    assert at_second.tolist() == [0, 3]


def test_objects_of_one_kind_are_fine():
    assert ClassAtypicality().fit(np.array(["x", "yy"], object)).classes_.tolist() == ["x", "yy"]
    assert ClassAtypicality().fit(np.array([3, 1], object)).classes_.tolist() == [1, 3]
    assert ClassAtypicality().fit([True, False]).classes_.tolist() == [False, True]


def test_scikit_learn_rules():
    estimator = ClassAtypicality(smoothing=0.5)
    with pytest.raises(NotFittedError):
        estimator.atypicality([1])
    assert estimator.fit([1, 2]) is estimator
    assert clone(estimator).get_params() == {"smoothing": 0.5}
    assert estimator.atypicality([]).shape == (0,)


@needs("torch")
def test_torch_in_torch_out():
    import torch

    scores = ClassAtypicality().fit(torch.tensor([0, 0, 1])).atypicality(torch.tensor([1]))
    assert isinstance(scores, torch.Tensor)
    assert scores.item() == pytest.approx(np.log(3))


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ([], ValueError, "labels must hold at least one label to fit on; got none"),
        ([0.5, 1.5], TypeError, r"labels must be all integers, all booleans or all strings; got dtype .*astype"),
        (np.array([1.0, 2.0]), TypeError, "got dtype float64"),
        ([1, "a"], TypeError, "got dtype object"),
        ([None, "a"], TypeError, "got dtype object"),
        ([[1, 0], [0, 1]], ValueError, r"one-dimensional.*got shape \(2, 2\).*argmax"),
        (3, ValueError, "one-dimensional"),
        (np.ma.array([1, 2]), TypeError, "masked"),
    ],
)
def test_bad_labels(labels, error, message):
    with pytest.raises(error, match=message):
        ClassAtypicality().fit(labels)


def test_bad_smoothing_and_labels_of_another_kind():
    with pytest.raises(ValueError, match=r"smoothing must be a finite number in \[0, inf\]; got -1"):
        ClassAtypicality(smoothing=-1).fit([0])
    with pytest.raises(TypeError, match="smoothing must be a number"):
        ClassAtypicality(smoothing="a").fit([0])
    with pytest.raises(TypeError, match=r"classes are numbers \(int64\), labels are text"):
        ClassAtypicality().fit([0, 1]).atypicality(["0"])
