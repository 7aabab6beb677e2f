"""Prediction sets on a device: the same thresholds and the same sets as on the CPU, to the last bit."""

import numpy as np
import pytest
from conftest import imported
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from atypicality import (
    AtypicalityAwareConformal,
    ConditionalConformal,
    Quadrants,
    QuantileGroups,
    SplitConformal,
    blocks,
)
from atypicality.arrays import to_host
from atypicality.conformal.scores import ScoreRule, label_statistics, prediction_sets, total_sizes

RULES = [
    ScoreRule(name, nonempty, k_reg, penalty)
    for nonempty in ("score", "after", None)
    for name, k_reg, penalty in (("lac", None, None), ("aps", None, None), ("raps", 2, 0.1), ("saps", None, 0.2))
]
pytestmark = pytest.mark.usefixtures("as_device")


def softmax(n, k, rng, dtype=np.float32):
    logits = rng.normal(0, 2, (n, k)).astype(dtype)
    logits[np.arange(n), rng.integers(0, k, n)] += rng.gamma(4.0, 2.0, n).astype(dtype)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    return probs / probs.sum(axis=1, keepdims=True, dtype=dtype)


def with_ties(n, k, rng, dtype):
    """Rows with many ties and zeros beside rows without."""
    weights = np.concatenate([rng.integers(0, 4, (n // 2, k)) + (np.arange(k) == 0), rng.gamma(0.3, size=(n // 2, k))])
    return (weights / weights.sum(axis=1, keepdims=True)).astype(dtype)


def labels_of(probs, rng):
    return np.array([rng.choice(row.size, p=row / row.sum()) for row in probs.astype(np.float64)])


def same_library(result, template):
    return type(result) is type(template)


# ---------------------------------------------------------------- scores and sets


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_statistics_of_labels_are_those_of_the_cpu(put, dtype, rng):
    probs, labels = with_ties(60, 30, rng, dtype), rng.integers(0, 30, 60)
    expected, found = label_statistics(probs, labels), label_statistics(put(probs), labels)
    for name in ("prob", "top", "above", "tied", "rank"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("randomised", [False, True])
def test_sets_are_those_of_the_cpu(put, rule, dtype, randomised, rng):
    probs = with_ties(60, 30, rng, dtype)
    thresholds = rng.uniform(-0.1, 1.5, 60)
    thresholds[:3] = np.inf, 0.0, 1.0
    draws = rng.random(60) if randomised and rule.name != "lac" else 1.0
    sets = prediction_sets(put(probs), thresholds, rule, draws)
    np.testing.assert_array_equal(to_host(sets), prediction_sets(probs, thresholds, rule, draws))
    assert same_library(sets, put(probs))


def test_a_threshold_on_a_score_decides_the_same(put, rng):
    # every score of a row is tried as the threshold: one bit of difference would move a label
    probs = softmax(40, 200, rng)
    for randomised in (False, True):
        draws = rng.random(40) if randomised else np.ones(40)
        for rule in (ScoreRule("aps", None), ScoreRule("raps", None, 3, 0.01)):
            for _ in range(5):
                found = label_statistics(probs, rng.integers(0, 200, 40))
                thresholds = rule.values(np, found.above, found.tied, found.rank, found.top, draws)
                sets = prediction_sets(put(probs), thresholds, rule, draws)
                np.testing.assert_array_equal(to_host(sets), prediction_sets(probs, thresholds, rule, draws))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    weights=arrays(np.int64, (7, 6), elements=st.integers(0, 3)),
    thresholds=arrays(np.float64, 7, elements=st.floats(0, 1.5)),
    draw=st.floats(0, 1),
)
def test_small_rows_with_every_kind_of_tie(as_device, weights, thresholds, draw):
    torch = imported("torch")
    probs = (weights + 1e-3) / (weights + 1e-3).sum(axis=1, keepdims=True)
    rule, draws = ScoreRule("raps", None, 1, 0.125), np.full(7, draw)
    sets = prediction_sets(torch.asarray(probs), thresholds, rule, draws)
    np.testing.assert_array_equal(sets.numpy(), prediction_sets(probs, thresholds, rule, draws))


def test_sizes_of_several_rules_share_one_sort(put, rng):
    probs = with_ties(40, 20, rng, np.float32)
    candidates = [(rule, rng.uniform(0, 1.5, 40)) for rule in RULES]
    np.testing.assert_array_equal(total_sizes(put(probs), candidates), total_sizes(probs, candidates))


@pytest.mark.parametrize("height", [1, 7, 1000])
def test_the_height_of_a_block_changes_nothing(put, height, rng):
    probs, labels, rule = (
        with_ties(40, 20, rng, np.float32),
        rng.integers(0, 20, 40),
        ScoreRule("raps", "score", 2, 0.1),
    )
    thresholds, draws = rng.uniform(0, 1.5, 40), rng.random(40)
    with blocks.settings(block_rows=height):
        found, sets = label_statistics(put(probs), labels), prediction_sets(put(probs), thresholds, rule, draws)
        sizes = total_sizes(put(probs), [(rule, thresholds)], draws)
    np.testing.assert_array_equal(found.above, label_statistics(probs, labels).above)
    expected = prediction_sets(probs, thresholds, rule, draws)
    np.testing.assert_array_equal(to_host(sets), expected)
    assert sizes.tolist() == [expected.sum()]


# ---------------------------------------------------------------- estimators


@pytest.mark.parametrize("score", ["lac", "aps", "raps", "saps"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("randomized", [False, True])
def test_split_conformal_fits_and_predicts_the_same(put, score, dtype, randomized, rng):
    randomized = randomized and score != "lac"
    probs = softmax(500, 100, rng, dtype)
    labels = labels_of(probs, rng)
    conformal = SplitConformal(score, alpha=0.1, randomized=randomized)
    expected = conformal.fit(probs[:300], labels[:300]).predict_set(probs[300:])
    learnt = conformal.threshold_, conformal.k_reg_, conformal.penalty_
    sets = conformal.fit(put(probs[:300]), put(labels[:300])).predict_set(put(probs[300:]))
    assert (conformal.threshold_, conformal.k_reg_, conformal.penalty_) == learnt
    np.testing.assert_array_equal(to_host(sets), expected)
    assert same_library(sets, put(probs))


@pytest.mark.parametrize("where", ["device", "host"])
def test_aware_conformal_fits_and_predicts_the_same(put, where, rng):
    probs, rarity = softmax(900, 20, rng), rng.gamma(2.0, size=900)
    labels, place = labels_of(probs, rng), put if where == "device" else np.asarray
    conformal = AtypicalityAwareConformal(alpha=0.1, n_groups=(3, 2))
    conformal.fit(probs[:600], labels[:600], atypicality=rarity[:600])
    thresholds, regions = conformal.thresholds_, conformal.assign(probs[600:], atypicality=rarity[600:])
    expected = conformal.predict_set(probs[600:], atypicality=rarity[600:])

    conformal.fit(put(probs[:600]), place(labels[:600]), atypicality=place(rarity[:600]))
    np.testing.assert_array_equal(conformal.thresholds_, thresholds)
    test = put(probs[600:])
    np.testing.assert_array_equal(to_host(conformal.assign(test, atypicality=place(rarity[600:]))), regions)
    sets = conformal.predict_set(test, atypicality=place(rarity[600:]))
    np.testing.assert_array_equal(to_host(sets), expected)
    assert same_library(sets, test)


@pytest.mark.parametrize("options", [{}, {"groups": {i: i % 3 for i in range(20)}}, {"randomized": True}], ids=str)
@pytest.mark.parametrize("where", ["device", "host"])
def test_conditional_conformal_fits_and_predicts_the_same(put, where, options, rng):
    probs, rarity = softmax(900, 20, rng), rng.gamma(2.0, size=900)
    labels, place = labels_of(probs, rng), put if where == "device" else np.asarray
    conformal = ConditionalConformal(**options).fit(probs[:600], labels[:600], atypicality=rarity[:600])
    thresholds, expected = conformal.thresholds_, conformal.predict_set(probs[600:], atypicality=rarity[600:])

    conformal.fit(put(probs[:600]), place(labels[:600]), atypicality=place(rarity[:600]))
    np.testing.assert_array_equal(conformal.thresholds_, thresholds)
    sets = conformal.predict_set(put(probs[600:]), atypicality=place(rarity[600:]))
    np.testing.assert_array_equal(to_host(sets), expected)
    assert same_library(sets, put(probs[600:]))


def test_vectors_may_lie_on_a_device_beside_probabilities_on_the_host(put, rng):
    probs, rarity = softmax(300, 10, rng), rng.random(300)
    labels = labels_of(probs, rng)
    expected = SplitConformal("aps").fit(probs, labels).threshold_
    assert SplitConformal("aps").fit(probs, put(labels)).threshold_ == expected
    conformal = AtypicalityAwareConformal("aps", n_groups=(2, 2)).fit(probs, labels, atypicality=put(rarity))
    sets = conformal.predict_set(probs, atypicality=put(rarity))
    np.testing.assert_array_equal(sets, conformal.predict_set(probs, atypicality=rarity))
    assert isinstance(sets, np.ndarray)


def test_half_precision_and_gradients(rng):
    torch = imported("torch")
    probs = softmax(200, 10, rng).astype(np.float16)
    labels = labels_of(probs, rng)
    conformal = SplitConformal("aps").fit(torch.asarray(probs).requires_grad_(), torch.asarray(labels))
    assert conformal.threshold_ == SplitConformal("aps").fit(probs, labels).threshold_
    sets = conformal.predict_set(torch.asarray(probs).requires_grad_())
    assert sets.dtype == torch.bool
    assert not sets.requires_grad
    np.testing.assert_array_equal(sets.numpy(), conformal.predict_set(probs))


def test_no_rows_give_no_sets(put, rng):
    probs = softmax(100, 5, rng)
    conformal = SplitConformal().fit(probs, labels_of(probs, rng))
    assert tuple(conformal.predict_set(put(probs[:0])).shape) == (0, 5)


def test_too_few_rows_warn_and_give_full_sets(put, rng):
    probs = softmax(5, 4, rng)
    with pytest.warns(UserWarning, match="needs at least 9 calibration rows; got 5"):
        conformal = SplitConformal("aps").fit(put(probs), put(np.zeros(5, np.int64)))
    assert to_host(conformal.predict_set(put(probs))).all()


# ---------------------------------------------------------------- hostile input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.__setitem__((7, 1), np.nan), r"probs must be finite; row 7 holds NaN or infinity"),
        (lambda p: p.__setitem__((8, 0), np.inf), r"probs must be finite; row 8 holds NaN or infinity"),
        (lambda p: p.__setitem__((9, 0), p[9, 0] + 0.5), r"probs must have rows summing to 1; row 9 sums to 1\.5"),
        (lambda p: p.__setitem__(3, [-0.5, 0.5, 0.5, 0.5]), r"probs must lie between 0 and 1; row 3 holds -0\.5"),
    ],
)
def test_rows_that_are_no_distributions_are_named(put, change, message, rng):
    probs, labels = softmax(20, 4, rng, np.float64), rng.integers(0, 4, 20)
    fitted = SplitConformal("aps").fit(probs, labels)
    change(probs)
    with pytest.raises(ValueError, match=message):
        SplitConformal("aps").fit(put(probs), put(labels))
    with pytest.raises(ValueError, match=message):
        fitted.predict_set(put(probs))


def test_the_host_has_the_last_word_on_a_sum_at_the_edge_of_the_tolerance(put, rng):
    probs, labels = softmax(20, 4, rng, np.float64), rng.integers(0, 4, 20)
    probs[5] *= 1.0001 / probs[5].sum()  # the sum may round to either side: both machines must agree with one of them
    try:
        expected = SplitConformal("aps").fit(probs, labels).threshold_
    except ValueError:
        with pytest.raises(ValueError, match="row 5 sums to"):
            SplitConformal("aps").fit(put(probs), labels)
    else:
        assert SplitConformal("aps").fit(put(probs), labels).threshold_ == expected


def test_shapes_and_labels_are_checked(put, rng):
    probs, labels = softmax(20, 4, rng), rng.integers(0, 4, 20)
    conformal = SplitConformal("aps").fit(put(probs), labels)
    with pytest.raises(ValueError, match=r"probs must have 4 columns, one per class as when it was fitted; got 3"):
        conformal.predict_set(put(softmax(5, 3, rng)))
    with pytest.raises(ValueError, match=r"probs must be two-dimensional, one row per sample; got shape \(20,\)"):
        conformal.predict_set(put(probs[:, 0]))
    with pytest.raises(ValueError, match="got a single column"):
        conformal.fit(put(np.ones((20, 1))), labels)
    with pytest.raises(ValueError, match=r"labels must lie in 0 \.\. 3, the columns; row 2 is outside \(row 2 is 4\)"):
        conformal.fit(put(probs), put(np.where(np.arange(20) == 2, 4, labels)))
    with pytest.raises(ValueError, match="labels must have one entry per row; got 19 for 20 rows"):
        conformal.fit(put(probs), put(labels[:19]))
    with pytest.raises(TypeError, match="labels must be integer column indices"):
        conformal.fit(put(probs), put(labels.astype(np.float64)))
    with pytest.raises(ValueError, match="labels must be one-dimensional"):
        conformal.fit(put(probs), np.eye(4)[labels])
    with pytest.raises(ValueError, match="probs must have at least 1 row to fit on; got 0"):
        conformal.fit(put(probs[:0]), labels[:0])
    with pytest.raises(ValueError, match="atypicality must be finite; row 3 holds NaN"):
        AtypicalityAwareConformal().fit(put(probs), labels, atypicality=put(np.where(np.arange(20) == 3, np.nan, 1.0)))


def test_a_matrix_of_labels_on_a_device_is_refused(put, rng):
    probs = softmax(20, 4, rng)
    with pytest.raises(TypeError, match="labels is on an accelerator, where this step cannot be done"):
        SplitConformal("aps").fit(put(probs), put(np.eye(4)[rng.integers(0, 4, 20)]))


# ---------------------------------------------------------------- groups


def test_groups_answer_in_the_callers_kind(put, rng):
    values, confidence = rng.gamma(2.0, size=100), rng.random(100)
    groups = QuantileGroups(4).fit(put(values))
    expected = QuantileGroups(4).fit(values)
    np.testing.assert_array_equal(groups.edges_, expected.edges_)
    found = groups.assign(put(values))
    np.testing.assert_array_equal(to_host(found), expected.assign(values))
    assert same_library(found, put(values))
    quadrants = Quadrants().fit(put(confidence), put(values))
    names = quadrants.assign(put(confidence), values)  # tensors hold no strings: the names are NumPy's
    np.testing.assert_array_equal(names, Quadrants().fit(confidence, values).assign(confidence, values))
    with pytest.raises(ValueError, match="values must be a number; row 2 holds NaN"):
        groups.assign(put(np.array([1.0, 2.0, np.nan])))
