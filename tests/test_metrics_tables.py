import json
import math
import tracemalloc
from functools import partial

import numpy as np
import pytest
import scipy.stats
from conftest import load_outputs
from scipy.special import softmax

from atypicality import blocks, metrics
from atypicality.groups import QUADRANTS, QuantileGroups
from atypicality.metrics import by_group
from atypicality.metrics.errors import _drawn_labels, classwise_interval
from atypicality.metrics.intervals import wilson_interval
from atypicality.metrics.rows import inner_edges, read_all

ERRORS = [
    metrics.ece,
    metrics.rmsce,
    metrics.adaptive_ece,
    metrics.debiased_calibration_error,
    metrics.smooth_ece,
    metrics.classwise_ece,
]
NUMBERS = [*ERRORS, metrics.accuracy, metrics.overconfidence, metrics.nll, metrics.brier]


def make_probs(rng, n_rows=600, n_classes=5, temperature=1.5):
    logits = 2.5 * rng.standard_normal((n_rows, n_classes))
    labels = (logits / temperature + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return softmax(logits, axis=1), labels


@pytest.mark.parametrize("metric", NUMBERS, ids=lambda metric: metric.__name__)
def test_a_row_is_the_metric_of_its_samples(metric, rng):
    probs, labels = make_probs(rng)
    groups = rng.integers(0, 3, labels.size)
    table = by_group(metric, probs, labels, groups=groups)
    assert table.metric == metric.__name__
    assert table.group == (0, 1, 2)
    for group in range(3):
        part = groups == group
        assert table.count[group] == part.sum()
        assert table.value[group] == pytest.approx(metric(probs[part], labels[part]), abs=1e-12)
    assert (table.low <= table.high).all()
    assert (table.standard_error > 0).all()


@pytest.mark.parametrize("metric", NUMBERS, ids=lambda metric: metric.__name__)
def test_groups_are_reproducible_and_do_not_touch_each_other(metric, rng):
    probs, labels = make_probs(rng)
    groups = np.repeat([0, 1], [200, 400])
    table = by_group(metric, probs, labels, groups=groups, random_state=3)
    again = by_group(metric, probs, labels, groups=groups, random_state=3)
    alone = by_group(metric, probs[:200], labels[:200], groups=groups[:200], random_state=3)
    assert table.to_dict() == again.to_dict()
    for column in ("value", "standard_error", "low", "high"):
        assert getattr(alone, column)[0] == pytest.approx(getattr(table, column)[0], rel=1e-9)


def test_options_reach_the_metric(rng):
    probs, labels = make_probs(rng)
    groups = np.zeros(labels.size, int)
    expected = metrics.ece(probs, labels, n_bins=3)
    assert by_group(metrics.ece, probs, labels, groups=groups, n_bins=3).value[0] == pytest.approx(expected)
    assert by_group(partial(metrics.ece, n_bins=3), probs, labels, groups=groups).value[0] == pytest.approx(expected)
    with pytest.raises(TypeError, match="ece has no option 'nbins'"):
        by_group(metrics.ece, probs, labels, groups=groups, nbins=3)


def test_arrays_by_name(rng):
    probs, labels = make_probs(rng)
    groups = np.zeros(labels.size, int)
    pairs = {"confidence": probs.max(axis=1), "correct": probs.argmax(axis=1) == labels}
    for metric in (metrics.ece, metrics.accuracy, metrics.smooth_ece, metrics.overconfidence):
        by_name = by_group(metric, **pairs, groups=groups)
        assert by_name.to_dict() == by_group(metric, probs, labels, groups=groups).to_dict()
        assert by_name.to_dict() == by_group(metric, probs, labels=labels, groups=groups).to_dict()


def test_prediction_sets_by_group():
    sets, labels = np.array([[1, 0], [1, 1], [0, 1], [1, 1]], bool), [0, 1, 0, 0]
    covered = by_group(metrics.coverage, sets, labels, groups=["a", "a", "b", "b"])
    size = by_group(metrics.set_size, sets, groups=["a", "a", "b", "b"])
    assert covered.value.tolist() == [1.0, 0.5]
    assert size.value.tolist() == [1.5, 1.5]
    assert size.standard_error.tolist() == [0.5, 0.5]  # standard deviation sqrt(1/2) over sqrt(2)
    gap = by_group(metrics.coverage_gap, sets, labels, groups=["a", "a", "b", "b"], alpha=0.5, n_resamples=20)
    assert gap.value.tolist() == [0.5, 0.0]


def test_empty_groups_have_their_row():
    arguments = {"confidence": [0.9, 0.8, 0.7], "correct": [1, 1, 0]}
    table = by_group(metrics.accuracy, **arguments, groups=[0, 0, 2])
    assert table.group == (0, 1, 2)
    assert table.count.tolist() == [2, 0, 1]
    assert math.isnan(table.value[1])
    assert (table.low[1], table.high[1]) == (0, 1)
    five = by_group(metrics.ece, **arguments, groups=[1, 1, 2], names=5)
    assert five.count.tolist() == [0, 2, 1, 0, 0]
    assert np.isnan(five.value[[0, 3, 4]]).all()
    assert np.isnan(five.low[[0, 3, 4]]).all()
    named = by_group(metrics.accuracy, **arguments, groups=["ambiguous", "reliable", "reliable"], names=QUADRANTS)
    assert named.group == QUADRANTS
    assert named.count.tolist() == [2, 0, 1, 0]


def test_codes_far_apart_are_not_filled():
    arguments = {"confidence": [0.9, 0.8, 0.7], "correct": [1, 1, 0]}
    assert by_group(metrics.accuracy, **arguments, groups=[10, 20, 3000]).group == (10, 20, 3000)
    assert by_group(metrics.accuracy, **arguments, groups=[True, False, True]).group == (False, True)


def test_table_is_plain_and_readable():
    table = by_group(metrics.accuracy, confidence=[0.9, 0.8], correct=[1, 0], groups=["x", "y"])
    assert json.loads(json.dumps(table.to_dict()))["value"] == [1.0, 0.0]
    assert table.rows()[0]["group"] == "x"
    assert len(table) == 2
    lines = repr(table).splitlines()
    assert lines[0].split() == ["group", "count", "accuracy", "std.", "error", "95", "%", "interval"]
    assert len({len(line) for line in lines}) == 1


def test_any_function_gets_a_bootstrap(rng):
    values = rng.exponential(size=400)
    groups = np.repeat([0, 1], 200)
    table = by_group(np.median, values, groups=groups, random_state=1)
    assert table.value[0] == np.median(values[:200])
    # the median of an exponential has standard error 1 / sqrt(n); the bootstrap's own error is near 20 %
    assert table.standard_error == pytest.approx([1 / math.sqrt(200)] * 2, rel=0.6)
    area = by_group(
        lambda c, y: metrics.risk_coverage(confidence=c, correct=y).area,
        values / values.max(),
        values > 1,
        groups=groups,
        n_resamples=20,
    )
    assert np.isfinite(area.low).all()


def test_curves_are_not_numbers():
    with pytest.raises(TypeError, match="metric must return one number; risk_coverage returned RiskCoverage"):
        by_group(metrics.risk_coverage, confidence=[0.5], correct=[1], groups=[0])


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"groups": [0, 1]}, ValueError, "groups must have one entry per row; got 2 for 3 rows"),
        ({"groups": [0.0, 1.0, 2.0]}, TypeError, "groups must be integers, booleans or strings; got dtype float64"),
        ({"groups": [0, 1, 9], "names": 5}, ValueError, "names must hold every group; 9 occurs in groups"),
        ({"names": ["a", "a"]}, ValueError, "names must not repeat a group"),
        ({"correct": [1, 0]}, ValueError, "correct must have one entry per row; got 2 for 3 rows"),
        ({"level": 95}, ValueError, r"level must be a finite number in \(0, 1\); got 95"),
        ({"random_state": "seed"}, TypeError, "random_state must be a whole number; got 'seed'"),
        ({"n_resamples": 1}, ValueError, "n_resamples must be at least 2; got 1"),
        ({"n_bins": 0}, ValueError, "n_bins must be at least 1; got 0"),
    ],
)
def test_bad_arguments_are_named(change, error, match):
    arguments = {"confidence": [0.5, 0.6, 0.7], "correct": [1, 0, 1], "groups": [0, 1, 0], **change}
    with pytest.raises(error, match=match):
        by_group(metrics.ece, **arguments)


def test_no_arrays_and_no_rows_are_refused():
    with pytest.raises(TypeError, match="by_group needs the arrays of the metric"):
        by_group(metrics.ece, groups=[0])
    with pytest.raises(TypeError, match="array 0 must be an array with one entry per sample; got 3"):
        by_group(metrics.ece, 3, groups=[0])
    with pytest.raises(ValueError, match="by_group needs at least one sample"):
        by_group(metrics.ece, confidence=[], correct=[], groups=[])


@pytest.mark.parametrize("metric", NUMBERS, ids=lambda metric: metric.__name__)
def test_bad_rows_are_counted_in_the_whole_array(metric, rng):
    probs, labels = make_probs(rng)
    probs[500] /= 2
    with pytest.raises(ValueError, match=r"probs must have rows summing to 1; row 500 sums to 0\.5"):
        by_group(metric, probs, labels, groups=np.arange(600) % 2)


def test_wilson_by_hand():
    # 8 of 10 at z = 1.96: (8 + 1.92 -+ 1.96 sqrt(10 * .16 + .96)) / 13.84
    low, high = wilson_interval(8, 10)
    z = scipy.stats.norm.ppf(0.975)
    assert low == pytest.approx((8 + z**2 / 2 - z * math.sqrt(1.6 + z**2 / 4)) / (10 + z**2))
    reference = scipy.stats.binomtest(8, 10).proportion_ci(method="wilson")
    assert (low, high) == (pytest.approx(reference.low), pytest.approx(reference.high))


def test_wilson_covers_on_average_over_shares(rng):
    # For one share the coverage of any interval of counts oscillates; over uniform shares Wilson's is close to its
    # level. Exact expectation, no simulation: within 1 % for n = 50.
    shares = (np.arange(200) + 0.5) / 200
    counts = np.arange(51)
    low, high = wilson_interval(counts, 50)
    inside = (low[:, None] <= shares) & (shares <= high[:, None])
    expected = (scipy.stats.binom.pmf(counts[:, None], 50, shares) * inside).sum(axis=0)
    assert expected.mean() == pytest.approx(0.95, abs=0.01)


def test_the_noise_of_class_cells_does_not_depend_on_blocks(rng):
    probs, labels = make_probs(rng)
    groups = np.zeros(labels.size, int)
    whole = by_group(metrics.classwise_ece, probs, labels, groups=groups)
    with blocks.settings(block_rows=17, n_threads=2):
        cut = by_group(metrics.classwise_ece, probs, labels, groups=groups)
    for column in ("value", "standard_error", "low", "high"):
        np.testing.assert_allclose(getattr(cut, column), getattr(whole, column), rtol=1e-9)


@pytest.mark.parametrize("metric", ERRORS, ids=lambda metric: metric.__name__)
def test_a_miscalibrated_model_is_found_out(metric, rng):
    probs, labels = make_probs(rng, 3000, 4, temperature=3.0)
    table = by_group(metric, probs, labels, groups=np.zeros(3000, int))
    assert table.low[0] > 0
    assert table.high[0] > table.value[0] > table.low[0]


def test_all_right_is_not_certain():
    # 200 of 200 right at confidence 1: an accuracy of 1 - 3.7 / 200 would show this in 2.5 % of samples
    table = by_group(metrics.ece, confidence=np.ones(200), correct=np.ones(200), groups=np.zeros(200, int))
    assert table.value[0] == table.low[0] == 0
    assert 0.012 < table.high[0] < 0.025
    certain = np.tile([1.0, 0.0], (200, 1))
    classwise = by_group(metrics.classwise_ece, certain, np.zeros(200, int), groups=np.zeros(200, int))
    assert classwise.low[0] == 0
    assert classwise.high[0] == pytest.approx(-math.log(0.025) / 200)


@pytest.mark.parametrize("name", ["cifar10-wrn28-10", "cifar10lt-wrn28-4"])
def test_the_papers_table_on_real_outputs(name):
    outputs, training = load_outputs(name, "test"), load_outputs(name, "train_statistics")
    probs = softmax(outputs["logits"].astype(np.float64), axis=1)
    covariance = training["covariance"] + 1e-6 * np.eye(training["covariance"].shape[0])
    factor = np.linalg.inv(np.linalg.cholesky(covariance)).T
    embedded, means = outputs["embeddings"].astype(np.float64) @ factor, training["means"] @ factor
    distance = np.min([((embedded - mean) ** 2).sum(axis=1) for mean in means], axis=0)
    groups = QuantileGroups(5).fit(distance).assign(distance)
    tables = [by_group(metric, probs, outputs["labels"], groups=groups) for metric in (metrics.ece, metrics.accuracy)]
    for table in tables:
        assert table.count.tolist() == [2000] * 5
        assert len(repr(table).splitlines()) == 6
    if name == "cifar10-wrn28-10":  # the paper's claim on balanced data: the most atypical fifth is worst
        assert tables[0].low[4] > tables[0].high[:4].max()
        assert tables[1].high[4] < tables[1].low[:4].min()


def test_the_class_wise_interval_takes_memory_for_filled_cells_only(rng):
    n_rows, n_classes, n_bins, draws = 50, 20_000, 10, 200
    probs, labels = make_probs(rng, n_rows, n_classes)
    read = read_all(probs, labels, n_bins)
    filled = int((read.class_bins.count > 0).sum())
    assert filled < 1.1 * n_classes  # almost all probabilities are in the first bin
    tracemalloc.start()
    classwise_interval(probs, read, np.random.default_rng(0), level=0.95)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    matrix = 8 * draws * filled
    assert peak < 5 * matrix < 8 * draws * n_classes * n_bins  # noise, what is shown, its absolute values, temporaries


def test_drawn_labels_are_those_of_all_cells_where_there_are_any(rng):
    probs, labels = make_probs(rng, 200, 30)
    read, edges = read_all(probs, labels, 10), inner_edges(10)
    everywhere = np.ones((30, 10), bool)
    filled = read.class_bins.count > 0
    whole, some = (_drawn_labels(probs, edges, cells, np.random.default_rng(0)) for cells in (everywhere, filled))
    np.testing.assert_array_equal(whole[:, filled.reshape(-1)], some)
    assert whole.sum() == some.sum() == 200 * 200


def test_a_group_draws_the_same_numbers_however_many_groups_are_empty(rng):
    probs, labels = make_probs(rng, 300)
    few, many = (by_group(metrics.ece, probs, labels, groups=np.zeros(300, int), names=names) for names in (1, 5000))
    assert few.low[0] == many.low[0]
    assert few.high[0] == many.high[0]
    assert np.isnan(many.value[1:]).all()
