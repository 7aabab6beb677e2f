"""Metrics of probabilities on a device: the columns come from there, the numbers are those of the CPU."""

import numpy as np
import pytest
from conftest import imported

from atypicality import ClassGroups, blocks, metrics
from atypicality.arrays import namespace, to_host
from atypicality.metrics.rows import read_all, read_pairs

PLAIN = [metrics.nll, metrics.brier, metrics.classwise_ece]
PAIRED = [
    metrics.accuracy,
    metrics.overconfidence,
    metrics.ece,
    metrics.rmsce,
    metrics.adaptive_ece,
    metrics.debiased_calibration_error,
    metrics.smooth_ece,
]
# Sums of n * k <= 1e5 positive float64 terms in another order: each addition errs by 2^-53 at most, and far fewer than
# 4000 of them lie on the path to any one term, so 4e3 * 1e-16 is generous. Differences (overconfidence) lose little.
CLOSE = dict(rtol=1e-12, atol=1e-14)
pytestmark = pytest.mark.usefixtures("as_device")


def outputs(n, k, rng, dtype=np.float32):
    """Softmax probabilities, some rows with ties and zeros, and labels."""
    logits = rng.normal(0, 2, (n, k))
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs[: n // 4] = rng.integers(0, 3, (n // 4, k)) + (np.arange(k) == k - 1)
    probs /= probs.sum(axis=1, keepdims=True)
    return probs.astype(dtype), np.where(rng.random(n) < 0.6, probs.argmax(axis=1), rng.integers(0, k, n))


def random_sets(n, k, rng):
    return rng.random((n, k)) < 0.4, rng.integers(0, k, n)


# ---------------------------------------------------------------- agreement


@pytest.mark.parametrize("metric", PLAIN + PAIRED, ids=lambda metric: metric.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_metrics_agree_with_the_cpu(put, metric, dtype, rng):
    probs, labels = outputs(400, 12, rng, dtype)
    labels = np.where(probs[np.arange(400), labels] > 0, labels, probs.argmax(axis=1))  # a finite log-likelihood
    expected = metric(probs, labels)
    np.testing.assert_allclose(metric(put(probs), put(labels)), expected, **CLOSE)
    np.testing.assert_allclose(metric(put(probs), labels), expected, **CLOSE)
    assert isinstance(metric(put(probs), labels), float)


@pytest.mark.parametrize("n_bins", [1, 7, 300])
def test_one_pass_reads_the_same_columns_and_cells(put, n_bins, rng):
    probs, labels = outputs(300, 9, rng)
    expected, found = read_all(probs, labels, n_bins), read_all(put(probs), labels, n_bins)
    np.testing.assert_array_equal(found.pairs.confidence, expected.pairs.confidence)
    np.testing.assert_array_equal(found.pairs.correct, expected.pairs.correct)
    np.testing.assert_array_equal(found.label_prob, expected.label_prob)
    np.testing.assert_array_equal(found.class_bins.count, expected.class_bins.count)
    np.testing.assert_array_equal(found.class_bins.correct, expected.class_bins.correct)
    np.testing.assert_allclose(found.squares, expected.squares, rtol=1e-14)
    np.testing.assert_allclose(found.class_bins.confidence, expected.class_bins.confidence, rtol=1e-12, atol=1e-12)
    assert found.pairs.dtype == expected.pairs.dtype


def test_one_summary_reads_what_the_metrics_read(put, rng):
    probs, labels = outputs(400, 12, rng)
    labels = probs.argmax(axis=1)
    expected, found = metrics.summary(probs, labels), metrics.summary(put(probs), put(labels))
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), **CLOSE)


@pytest.mark.parametrize("height", [1, 7, 1000])
def test_the_height_of_a_block_changes_nothing(put, height, rng):
    probs, labels = outputs(100, 9, rng)
    labels = probs.argmax(axis=1)
    expected = metrics.summary(probs, labels)
    with blocks.settings(block_rows=height):
        found = metrics.summary(put(probs), labels)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), **CLOSE)


def test_the_first_of_equal_entries_is_the_prediction(put):
    probs = np.array([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]])
    assert read_pairs(put(probs), np.array([0, 1]), None, None).correct.tolist() == [True, True]
    assert read_pairs(put(probs), np.array([1, 2]), None, None).correct.tolist() == [False, False]


def test_a_label_without_probability_is_infinitely_bad(put):
    assert metrics.nll(put(np.array([[1.0, 0.0]])), [1]) == np.inf


def test_edges_are_rounded_to_the_dtype_that_came(rng):
    # 0.3 lies on an edge of ten bins in each dtype, so it belongs to the bin below in each
    torch = imported("torch")
    for dtype in (torch.float16, torch.float32, torch.float64):
        probs = torch.tensor([[0.3, 0.3, 0.3, 0.1]], dtype=dtype)
        count = read_pairs(probs, torch.tensor([0]), None, None).bins(10).count
        assert np.flatnonzero(count).tolist() == [2]


def test_bfloat16_is_read_as_float32(rng):
    torch = imported("torch")
    probs = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]], dtype=torch.bfloat16)
    assert metrics.nll(probs, torch.tensor([0, 1])) == pytest.approx(-np.log([0.5, 0.75]).mean(), rel=1e-12)


def test_curves_agree(put, rng):
    probs, labels = outputs(300, 9, rng)
    for curve in (metrics.calibration_curve, metrics.risk_coverage):
        expected, found = curve(probs, labels), curve(put(probs), put(labels))
        for name, column in vars(expected).items():
            np.testing.assert_allclose(getattr(found, name), column, **CLOSE)


@pytest.mark.parametrize("metric", PAIRED, ids=lambda metric: metric.__name__)
def test_confidence_and_correctness_may_lie_anywhere(put, metric, rng):
    confidence, correct = rng.random(200).astype(np.float32), rng.random(200) < 0.5
    expected = metric(confidence=confidence, correct=correct)
    assert metric(confidence=put(confidence), correct=put(correct)) == expected
    assert metric(confidence=confidence, correct=put(correct)) == expected


def test_sets_agree(put, rng):
    sets, labels = random_sets(200, 15, rng)
    assert metrics.coverage(put(sets), put(labels)) == metrics.coverage(sets, labels)
    assert metrics.set_size(put(sets)) == metrics.set_size(sets)
    for by in ("class", "size"):
        assert metrics.coverage_gap(put(sets), labels, by=by) == metrics.coverage_gap(sets, labels, by=by)


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("metric", PLAIN + PAIRED, ids=lambda metric: metric.__name__)
def test_tables_by_group_agree(put, metric, rng):
    probs, _ = outputs(200, 6, rng)
    groups, labels = rng.integers(0, 3, 200), probs.argmax(axis=1)
    expected = metrics.by_group(metric, probs, labels, groups=groups)
    found = metrics.by_group(metric, put(probs), put(labels), groups=put(groups))
    assert found.count.tolist() == expected.count.tolist()
    for name in ("value", "standard_error", "low", "high"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-12)


def test_tables_of_sets_agree(put, rng):
    sets, labels = random_sets(100, 5, rng)
    groups = ClassGroups(2).fit(np.arange(5.0)).assign(put(labels))
    for metric, arrays in ((metrics.coverage, (sets, labels)), (metrics.set_size, (sets,))):
        expected = metrics.by_group(metric, *arrays, groups=to_host(groups))
        found = metrics.by_group(metric, *map(put, arrays), groups=groups)
        assert found.to_dict() == expected.to_dict()


def test_a_function_of_the_users_own_gets_arrays_on_the_device(put, rng):
    probs, labels = outputs(60, 4, rng, np.float64)
    kind = type(put(probs))

    def mass_of_the_first_class(probs, labels):
        assert isinstance(probs, kind)
        assert isinstance(labels, kind)
        return namespace(probs).mean(probs[:, 0])  # a number that is still on the device

    groups = np.arange(60) % 2
    found = metrics.by_group(mass_of_the_first_class, put(probs), put(labels), groups=groups, n_resamples=10)
    np.testing.assert_allclose(found.value, [probs[::2, 0].mean(), probs[1::2, 0].mean()], rtol=1e-12)


# ---------------------------------------------------------------- hostile input


@pytest.mark.parametrize("metric", PLAIN + PAIRED, ids=lambda metric: metric.__name__)
def test_bad_rows_are_named(put, metric, rng):
    probs, labels = outputs(20, 4, rng)
    for row, entry, message in (
        (7, np.nan, "probs must be finite; row 7 holds NaN or infinity"),
        (11, 2.5, "probs must have rows summing to 1; row 11 sums to"),
        (3, -0.5, r"probs must lie between 0 and 1; row 3 holds -0\.5"),
    ):
        bad = probs.copy()
        bad[row, 1] = entry
        with pytest.raises(ValueError, match=message):
            metric(put(bad), put(labels))
        with pytest.raises(ValueError, match=message):
            metrics.by_group(metric, put(bad), put(labels), groups=labels)


def test_shapes_kinds_and_labels_are_checked(put, rng):
    probs, labels = outputs(20, 4, rng)
    with pytest.raises(ValueError, match=r"labels must lie in 0 \.\. 3, the columns; row 5 is outside"):
        metrics.nll(put(probs), put(np.where(np.arange(20) == 5, -1, labels)))
    with pytest.raises(ValueError, match="labels must have one entry per row; got 19 for 20 rows"):
        metrics.ece(put(probs), labels[:19])
    with pytest.raises(ValueError, match="probs must be two-dimensional"):
        metrics.ece(put(probs[:, 0]), labels)
    with pytest.raises(ValueError, match="probs must hold at least one sample; got none"):
        metrics.ece(put(probs[:0]), labels[:0])
    with pytest.raises(TypeError, match="sets must be boolean, True where a class is in the set"):
        metrics.coverage(put(probs), labels)
    with pytest.raises(ValueError, match=r"sets must have shape \(n_samples, n_classes\), one row per set; got shape"):
        metrics.set_size(put(labels))
    with pytest.raises(ValueError, match="sets must hold at least one set; got none"):
        metrics.set_size(put(np.ones((0, 3), bool)))
    with pytest.raises(TypeError, match="confidence is on an accelerator, where this step cannot be done"):
        metrics.ece(confidence=put(probs), correct=labels)
    with pytest.raises(ValueError, match="array 1 must have one entry per row; got 19 for 20 rows"):
        metrics.by_group(metrics.nll, put(probs), put(labels[:19]), groups=labels)
    with pytest.raises(TypeError, match="array 1 must be an array with one entry per sample; got 3"):
        metrics.by_group(metrics.nll, put(probs), put(np.array([3]))[0], groups=labels)


def test_probabilities_stay_where_they_are(put, rng, monkeypatch):
    """No step brings an array of n x k entries to the host: at most two numbers per row and bin leave the device."""
    from atypicality import arrays as checks

    probs, labels = outputs(300, 40, rng)
    moved, bring = [], checks.to_host

    def watched(values):
        result = bring(values)
        moved.append(result.size)
        return result

    for module in ("metrics.device_rows", "validation.device"):
        monkeypatch.setattr(f"atypicality.{module}.to_host", watched)
    metrics.summary(put(probs), put(labels))
    metrics.ece(put(probs), put(labels))
    assert moved
    assert max(moved) <= 3 * 300
