import math

import numpy as np
import pytest
from conftest import load_outputs, needs
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.calibration import calibration_curve as sklearn_curve
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from atypicality import blocks, metrics

TOP_CLASS = [
    metrics.accuracy,
    metrics.overconfidence,
    metrics.ece,
    metrics.rmsce,
    metrics.adaptive_ece,
    metrics.debiased_calibration_error,
    metrics.smooth_ece,
]
ALL = [*TOP_CLASS, metrics.nll, metrics.brier, metrics.classwise_ece]


def make_probs(rng, n_rows=400, n_classes=6, dtype=np.float64):
    logits = 2.5 * rng.standard_normal((n_rows, n_classes))
    labels = (logits / 1.6 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return softmax(logits, axis=1).astype(dtype), labels


def reference_ece(confidence, correct, n_bins=10, power=1):
    """Sum over bins in plain Python, edges as exact fractions of the decimal confidence."""
    bins = {}
    for c, y in zip(confidence, correct, strict=True):
        bins.setdefault(max(math.ceil(round(c * n_bins, 9)), 1), []).append((c, y))
    gaps = [(len(b), abs(math.fsum(c for c, _ in b) - sum(y for _, y in b)) / len(b)) for b in bins.values()]
    return (math.fsum(size * gap**power for size, gap in gaps) / len(confidence)) ** (1 / power)


def test_ece_two_bins_by_hand():
    # (0, .5]: conf .2, acc 0, gap .2 (1 sample); (.5, 1]: conf .8, acc .5, gap .3 (2); (1*.2 + 2*.3) / 3
    assert metrics.ece(confidence=[0.2, 0.8, 0.8], correct=[0, 1, 0], n_bins=2) == pytest.approx(0.8 / 3)


def test_hand_worked_values():
    probs, labels = [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.5, 0.4, 0.1], [0.2, 0.2, 0.6]], [0, 2, 1, 0]
    expected = {
        "accuracy": 2 / 4,
        "overconfidence": (0.7 + 0.6 + 0.5 + 0.6) / 4 - 0.5,
        "nll": -(math.log(0.7) + math.log(0.6) + math.log(0.4) + math.log(0.2)) / 4,
        # .09+.04+.01, .01+.09+.16, .25+.36+.01, .64+.04+.36
        "brier": (0.14 + 0.26 + 0.62 + 1.04) / 4,
        # .7: right, gap .3; (.5, .6]: conf .6 twice, one right, gap .1; .5 in (.4, .5]: wrong, gap .5
        "ece": (0.3 + 2 * 0.1 + 0.5) / 4,
        "rmsce": math.sqrt((0.09 + 2 * 0.01 + 0.25) / 4),
        # only the bin of two counts: 2/4 * (.01 - .25 / 1)
        "debiased_calibration_error": 0.5 * (0.01 - 0.25),
        # ten quantile bins of .5 .6 .6 .7: the three distinct values part, as above
        "adaptive_ece": (0.3 + 2 * 0.1 + 0.5) / 4,
        # class 0: .7 hit .3; .1 (first bin) .1; .5 .5; .2 hit .8.  class 1: .2 twice .2 each; .3 .3; .4 hit .6
        # class 2: .1 twice .1 each; .6 twice, one hit, gap .1 each
        "classwise_ece": (1.7 / 4 + (0.4 + 0.3 + 0.6) / 4 + (0.2 + 0.2) / 4) / 3,
    }
    found = metrics.summary(probs, labels)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name
        assert getattr(metrics, name)(probs, labels) == pytest.approx(value, abs=1e-12), name
    assert found["smooth_ece"] == metrics.smooth_ece(probs, labels)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("n_bins", [1, 3, 10, 15])
def test_a_confidence_on_an_edge_lies_in_the_lower_bin_in_every_dtype(dtype, n_bins):
    edges = (np.arange(n_bins + 1) / n_bins).astype(dtype)
    curve = metrics.calibration_curve(confidence=edges, correct=np.ones(n_bins + 1), n_bins=n_bins)
    assert curve.count.tolist() == [2] + [1] * (n_bins - 1)  # 0.0 in the first bin, 1.0 in the last
    above = np.nextafter(edges[:-1], dtype(2))
    assert metrics.calibration_curve(confidence=above, correct=above > 2, n_bins=n_bins).count.tolist() == [1] * n_bins


def test_edges_in_probabilities_of_float32_as_in_float64():
    tenths = np.arange(1, 10) / 10
    probs = np.stack([tenths, 1 - tenths], axis=1)
    labels = np.arange(9) % 2
    single = probs.astype(np.float32)
    for metric in (metrics.ece, metrics.classwise_ece):
        assert metric(single, labels) == pytest.approx(metric(probs.round(12), labels), abs=1e-7)


def test_ece_agrees_with_plain_python(rng):
    probs, labels = make_probs(rng)
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    for n_bins in (1, 2, 10, 15, 100):
        ours = metrics.ece(probs, labels, n_bins=n_bins), metrics.rmsce(probs, labels, n_bins=n_bins)
        assert ours[0] == pytest.approx(reference_ece(confidence, correct, n_bins), abs=1e-9)
        assert ours[1] == pytest.approx(reference_ece(confidence, correct, n_bins, power=2), abs=1e-9)


def test_classwise_ece_agrees_with_plain_python(rng):
    probs, labels = make_probs(rng)
    per_class = [reference_ece(probs[:, j], labels == j) for j in range(probs.shape[1])]
    assert metrics.classwise_ece(probs, labels) == pytest.approx(np.mean(per_class), abs=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_agreement_with_scikit_learn(rng, dtype):
    probs, labels = make_probs(rng, dtype=dtype)
    wide = probs.astype(np.float64)
    wide /= wide.sum(axis=1, keepdims=True)  # scikit-learn insists on exact sums; ours differs by the rounding
    slack = 1e-9 if dtype == np.float64 else 1e-6
    assert metrics.accuracy(probs, labels) == accuracy_score(labels, probs.argmax(axis=1))
    assert metrics.nll(probs, labels) == pytest.approx(log_loss(labels, wide), abs=slack)
    assert metrics.brier(probs, labels) == pytest.approx(brier_score_loss(labels, wide, scale_by_half=False), abs=slack)


def test_curve_agrees_with_scikit_learn(rng):
    probs, labels = make_probs(rng)
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    curve = metrics.calibration_curve(probs, labels)
    filled = curve.count > 0
    accuracy, mean_confidence = sklearn_curve(correct, confidence, n_bins=10)  # no confidence lies on an edge here
    np.testing.assert_allclose(curve.accuracy[filled], accuracy, atol=1e-12)
    np.testing.assert_allclose(curve.confidence[filled], mean_confidence, atol=1e-12)
    assert curve.count.sum() == labels.size
    assert np.isnan(curve.accuracy[~filled]).all()
    assert (curve.low[~filled] == 0).all()
    assert (curve.high[~filled] == 1).all()
    gap = np.abs(curve.accuracy - curve.confidence)[filled]
    assert metrics.ece(probs, labels) == pytest.approx(np.average(gap, weights=curve.count[filled]))


@pytest.mark.parametrize("metric", TOP_CLASS, ids=lambda metric: metric.__name__)
def test_confidence_and_correct_are_enough(metric, rng):
    probs, labels = make_probs(rng)
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    assert metric(confidence=confidence, correct=correct) == metric(probs, labels)
    assert metric(confidence=confidence, correct=correct.astype(float)) == metric(probs, labels)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.__name__)
def test_order_blocks_threads_and_layout_change_nothing(metric, rng):
    probs, labels = make_probs(rng)
    value, order = metric(probs, labels), rng.permutation(labels.size)
    assert isinstance(value, float)
    assert metric(probs[order], labels[order]) == pytest.approx(value, abs=1e-12)
    assert metric(np.asfortranarray(probs), labels) == pytest.approx(value, abs=1e-12)
    with blocks.settings(n_threads=2, block_rows=7):
        assert metric(probs, labels) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.__name__)
def test_permuting_the_classes_changes_nothing(metric, rng):
    probs, labels = make_probs(rng)
    order = rng.permutation(probs.shape[1])
    assert metric(probs[:, order], np.argsort(order)[labels]) == pytest.approx(metric(probs, labels), abs=1e-12)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.__name__)
def test_perfect_and_absurd_predictors(metric):
    certain, labels = np.eye(4)[[0, 1, 2, 3]], np.arange(4)
    best, worst = metric(certain, labels), metric(certain, (labels + 1) % 4)
    perfect = {"accuracy": 1.0}.get(metric.__name__, 0.0)
    absurd = {"accuracy": 0.0, "nll": math.inf, "brier": 2.0, "classwise_ece": 0.5}.get(metric.__name__, 1.0)
    assert best == pytest.approx(perfect, abs=1e-12)
    assert worst == pytest.approx(absurd, abs=1e-12)


def test_read_only_memory_maps_are_read(tmp_path, rng):
    probs, labels = make_probs(rng, dtype=np.float32)
    np.save(tmp_path / "probs.npy", probs)
    mapped = np.load(tmp_path / "probs.npy", mmap_mode="r")
    assert metrics.summary(mapped, labels) == metrics.summary(probs, labels)


@needs("torch")
def test_tensors_are_read(rng):
    import torch

    probs, labels = make_probs(rng)
    assert metrics.ece(torch.from_numpy(probs), torch.from_numpy(labels)) == metrics.ece(probs, labels)


def test_many_entries_above_the_first_edge(rng):
    # 200 bins: every entry of a row of six can lie above the first edge; the reference bins them all
    probs, labels = make_probs(rng, n_rows=3000)
    expected = np.mean([reference_ece(probs[:, j], labels == j, 200) for j in range(6)])
    assert metrics.classwise_ece(probs, labels, n_bins=200) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60), st.integers(1, 20))
def test_laws_between_calibration_errors(pairs, n_bins):
    confidence, correct = (np.array(column) for column in zip(*pairs, strict=True))
    arguments = {"confidence": confidence, "correct": correct}
    error = metrics.ece(**arguments, n_bins=n_bins)
    slack = 1e-12
    assert abs(metrics.overconfidence(**arguments)) <= error + slack  # the triangle inequality over bins
    assert error <= metrics.rmsce(**arguments, n_bins=n_bins) + slack  # Jensen
    assert (
        metrics.debiased_calibration_error(**arguments, n_bins=n_bins)
        <= metrics.rmsce(**arguments, n_bins=n_bins) ** 2 + slack
    )
    assert metrics.ece(**arguments, n_bins=1) == pytest.approx(abs(metrics.overconfidence(**arguments)), abs=slack)
    assert metrics.ece(**arguments, n_bins=2 * n_bins) >= error - slack  # bins that nest only split


def test_constant_confidence_is_one_adaptive_bin():
    # a peer's quantile bins collapse here and answer 0
    arguments = {"confidence": np.full(50, 0.8), "correct": np.arange(50) < 25}
    assert metrics.adaptive_ece(**arguments) == pytest.approx(0.3)


def test_debiased_error_of_a_calibrated_model_is_zero_on_average(rng):
    repeats, n_rows = 400, 200
    values = []
    for _ in range(repeats):
        confidence = (2 * rng.integers(0, 10, n_rows) + 1) / 20  # bin centres: the correction is exact
        values.append(
            metrics.debiased_calibration_error(confidence=confidence, correct=rng.random(n_rows) < confidence)
        )
    assert abs(np.mean(values)) < 4 * np.std(values) / math.sqrt(repeats)


@pytest.mark.parametrize("name", ["cifar10-wrn28-10", "cifar10lt-wrn28-4"])
def test_real_outputs_agree_with_plain_python(name):
    outputs = load_outputs(name, "test")
    probs = softmax(outputs["logits"].astype(np.float64), axis=1)
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == outputs["labels"]
    assert metrics.ece(probs, outputs["labels"]) == pytest.approx(reference_ece(confidence, correct), abs=1e-9)


GOOD = np.array([[0.5, 0.5], [0.2, 0.8]])


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.__name__)
@pytest.mark.parametrize(
    ("probs", "labels", "error", "match"),
    [
        ([[0.5, 0.5], [0.5, 0.32]], [0, 1], ValueError, r"probs must have rows summing to 1; row 1 sums to 0.82"),
        ([[2.0, -1.0], [0.5, 0.5]], [0, 1], ValueError, r"probs must lie between 0 and 1; row 0 holds -1.*logits"),
        ([[3.0, 1.0], [0.5, 0.5]], [0, 1], ValueError, r"row 0 sums to 4. Are these logits"),
        ([[0.5, 0.5], [np.nan, 1.0]], [0, 1], ValueError, r"probs must be finite; row 1 holds NaN or infinity"),
        ([[0.5, 0.5], [np.inf, 0.0]], [0, 1], ValueError, r"probs must be finite; row 1"),
        ([[1.0], [1.0]], [0, 0], ValueError, r"probs must have one column per class; got a single column"),
        (np.empty((0, 3)), [], ValueError, r"probs must hold at least one sample; got none"),
        ([0.5, 0.5], [0, 1], ValueError, r"probs must be two-dimensional"),
        (GOOD, [0, 2], ValueError, r"labels must lie in 0 .. 1, the columns; row 1 is outside \(row 1 is 2\)"),
        (GOOD, [0, -1], ValueError, r"row 1 is outside \(row 1 is -1\)"),
        (GOOD, [0], ValueError, r"labels must have one entry per row; got 1 for 2 rows"),
        (GOOD, [0.0, 1.0], TypeError, r"labels must be integer column indices; got dtype float64"),
        (GOOD, np.eye(2, dtype=int), ValueError, r"labels must be one-dimensional"),
    ],
)
def test_bad_probabilities_and_labels_are_named(metric, probs, labels, error, match):
    with pytest.raises(error, match=match):
        metric(probs, labels)


def test_the_bad_row_is_counted_from_the_start_of_the_array(rng):
    probs, labels = make_probs(rng)
    probs[333] *= 1.5
    with blocks.settings(block_rows=50), pytest.raises(ValueError, match=r"row 333 sums to 1\.5"):
        metrics.nll(probs, labels)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"confidence": [0.5]}, TypeError, r"needs probs and labels, or confidence= and correct=; got confidence"),
        ({"probs": GOOD, "labels": [0, 1], "correct": [1, 1]}, TypeError, "got probs, labels, correct"),
        ({}, TypeError, "got nothing"),
        ({"confidence": [1.2], "correct": [1]}, ValueError, "confidence must lie between 0 and 1; row 0"),
        ({"confidence": [0.5], "correct": [0.5]}, ValueError, "correct must be booleans or 0 and 1; row 0 is 0.5"),
        ({"confidence": [0.5], "correct": [1, 0]}, ValueError, "correct must have one entry per row; got 2 for 1"),
        ({"confidence": [0.5], "correct": ["yes"]}, TypeError, "correct must be booleans or 0 and 1; got dtype"),
        ({"confidence": [0.5], "correct": [[1]]}, ValueError, "correct must be one-dimensional"),
        ({"confidence": [], "correct": []}, ValueError, "confidence must hold at least one sample"),
        ({"confidence": [np.nan], "correct": [1]}, ValueError, "confidence must be finite; row 0"),
    ],
)
def test_bad_pairs_are_named(arguments, error, match):
    with pytest.raises(error, match=match):
        metrics.ece(**arguments)


def test_number_of_bins_is_checked():
    for metric in (metrics.ece, metrics.rmsce, metrics.adaptive_ece, metrics.classwise_ece, metrics.summary):
        with pytest.raises(ValueError, match="n_bins must be at least 1; got 0"):
            metric(GOOD, [0, 1], n_bins=0)


def test_one_row_is_enough():
    found = metrics.summary([[0.25, 0.75]], [1])
    assert found["ece"] == found["smooth_ece"] == 0.25
    assert found["debiased_calibration_error"] == 0.0
