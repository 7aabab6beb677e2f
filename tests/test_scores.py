from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from atypicality import blocks
from atypicality.conformal.scores import (
    PILOT_ROWS,
    ScoreRule,
    Selection,
    _least_accepted,
    _pilot_depths,
    checked_score,
    label_scores,
    label_statistics,
    prediction_sets,
    total_sizes,
)
from atypicality.formula import GridSets

RULES = [
    ScoreRule(name, nonempty, k_reg, penalty)
    for nonempty in ("score", "after", None)
    for name, k_reg, penalty in (("lac", None, None), ("aps", None, None), ("raps", 2, 0.1), ("saps", None, 0.2))
]


def scores_of_all(probs, rule, draws=1.0):
    """Scores (n, k) of every label, each as `fit` would compute it."""
    columns = [np.full(len(probs), label) for label in range(probs.shape[1])]
    return np.stack([label_scores(label_statistics(probs, column), rule, draws) for column in columns], axis=1)


def expected_sets(probs, thresholds, rule, draws=1.0):
    sets = scores_of_all(probs, rule, draws) <= thresholds[:, None]
    return sets | (probs == probs.max(axis=1, keepdims=True)) if rule.nonempty == "after" else sets


def distributions(n, k, rng, dtype=np.float64):
    """Rows with many ties and zeros, confident rows, and rows without either."""
    weights = np.concatenate(
        [rng.integers(0, 4, (n // 2, k)) + (np.arange(k) == 0), rng.gamma(0.3, size=(n - n // 2, k))]
    )
    return (weights / weights.sum(axis=1, keepdims=True)).astype(dtype)


# ---------------------------------------------------------------- values worked by hand


@pytest.mark.parametrize(
    ("rule", "draws", "expected"),
    [
        # p = (.5, .25, .25): o = (1, 3, 3)
        (ScoreRule("lac", None), 1.0, [0.5, 0.75, 0.75]),
        (ScoreRule("aps", None), 1.0, [0.5, 1.0, 1.0]),
        (ScoreRule("aps", None), 0.5, [0.25, 0.75, 0.75]),  # 1 - (1 - .5) * .5 for the tied pair
        (ScoreRule("raps", None, 1, 0.25), 1.0, [0.5, 1.5, 1.5]),  # 1 + .25 * (3 - 1)
        (ScoreRule("raps", None, 1, 0.25), 0.5, [0.25, 1.25, 1.25]),  # the penalty is not multiplied by u
        (ScoreRule("saps", None, None, 0.25), 1.0, [0.5, 1.0, 1.0]),  # .5 + (3 - 2 + 1) * .25
        (ScoreRule("saps", None, None, 0.25), 0.5, [0.25, 0.875, 0.875]),  # .5 + (3 - 2 + .5) * .25
        (ScoreRule("raps", "score", 1, 0.25), 1.0, [0.0, 1.5, 1.5]),
        (ScoreRule("lac", "score"), 1.0, [0.0, 0.75, 0.75]),
    ],
    ids=str,
)
def test_scores_by_hand(rule, draws, expected):
    np.testing.assert_array_equal(scores_of_all(np.array([[0.5, 0.25, 0.25]]), rule, draws)[0], expected)


def test_classes_tied_for_the_top_are_all_the_top():
    probs = np.array([[0.375, 0.375, 0.25]])
    np.testing.assert_array_equal(scores_of_all(probs, ScoreRule("aps", "score"))[0], [0.0, 0.0, 1.0])
    np.testing.assert_array_equal(scores_of_all(probs, ScoreRule("saps", None, None, 0.5))[0], [0.875, 0.875, 1.375])
    for rule in (ScoreRule("aps", "score"), ScoreRule("aps", "after")):
        assert prediction_sets(probs, np.array([0.0]), rule).tolist() == [[True, True, False]]


# ---------------------------------------------------------------- exactness


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_masses_are_exact_sums(dtype, rng):
    probs, labels = distributions(40, 30, rng, dtype), rng.integers(0, 30, 40)
    found = label_statistics(probs, labels)
    for row in range(40):
        own = probs[row, labels[row]]
        rounded = [Fraction(round(Fraction(float(p)) * 2**52), 2**52) for p in probs[row]]  # half to even, as floats do
        tied = sum(r for r, p in zip(rounded, probs[row], strict=True) if p == own)
        above = sum(r for r, p in zip(rounded, probs[row], strict=True) if p > own)
        assert (Fraction(found.tied[row]), Fraction(found.above[row])) == (tied, above)
        assert found.rank[row] == (probs[row] >= own).sum()


@pytest.mark.parametrize("randomized", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(("n", "k", "dtype"), [(60, 7, np.float64), (300, 80, np.float32)])
def test_a_label_is_in_its_set_exactly_when_its_score_is_within(n, k, dtype, rule, randomized, rng):
    if randomized and rule.name == "lac":
        randomized = False
    probs = distributions(n, k, rng, dtype)
    draws = rng.random(n) if randomized else 1.0
    scores = scores_of_all(probs, rule, draws)
    # thresholds that are scores of the same row: one rounding apart would change a set
    thresholds = scores[np.arange(n), rng.integers(0, k, n)]
    thresholds[::10] = np.inf
    sets = prediction_sets(probs, thresholds, rule, draws)
    np.testing.assert_array_equal(sets, expected_sets(probs, thresholds, rule, draws))
    assert total_sizes(probs, [(rule, thresholds)], draws).tolist() == [sets.sum()]


@settings(max_examples=60)
@given(
    arrays(np.int64, (5, 6), elements=st.integers(0, 3)), st.sampled_from(RULES), st.floats(0, 0.999), st.integers(0, 5)
)
def test_sets_agree_with_scores_for_any_pattern_of_ties(weights, rule, draw, label):
    weights = weights + (weights.sum(axis=1, keepdims=True) == 0)
    probs = weights / weights.sum(axis=1, keepdims=True)
    draws = np.full(5, 1.0 if rule.name == "lac" else draw)
    thresholds = scores_of_all(probs, rule, draws)[:, label]
    sets = prediction_sets(probs, thresholds, rule, draws)
    np.testing.assert_array_equal(sets, expected_sets(probs, thresholds, rule, draws))
    assert sets[:, label].all()


def test_one_comparison_decides_least_ambiguous_sets_as_the_difference_from_one_does(rng):
    probs = np.concatenate([rng.random(2000), 2.0 ** rng.uniform(-40, 0, 2000), [0.0, 1.0, 0.5]]).astype(np.float32)
    near = np.concatenate([np.nextafter(probs, np.float32(-1)), probs, np.nextafter(probs, np.float32(2))])
    exactly = 1.0 - near.astype(np.float64)
    thresholds = np.concatenate([exactly, np.nextafter(exactly, -1), np.nextafter(exactly, 2), [-1.0, 0.0, 1.0, 2.0]])
    thresholds = np.concatenate([thresholds, [np.inf, -np.inf]])
    far = thresholds[(thresholds >= 1) | (thresholds <= 1 - 2.0**-28)]
    least = _least_accepted(far[:, None], probs.dtype)[:, 0]
    below, above = np.nextafter(least, np.float32(-np.inf)), np.nextafter(least, np.float32(np.inf))
    for one, inside in ((least, True), (above, True), (below, False)):
        possible = (one >= 0) & (one <= 1)  # a probability
        np.testing.assert_array_equal((1.0 - one.astype(np.float64) <= far)[possible], inside)
    assert (least[far >= 1] <= 0).all()
    assert (least[far < 0] > 1).all()
    assert _least_accepted(np.array([[0.5], [1 - 2.0**-40]]), probs.dtype) is None  # smaller numbers are rounded
    assert _least_accepted(np.array([[0.5]]), np.dtype(np.float64)) is None


@pytest.mark.parametrize("nonempty", [None, "score", "after"])
@pytest.mark.parametrize("threshold", [0.3, 1 - 2.0**-40, 1.0, np.inf, -0.5])
def test_sets_of_many_classes_are_those_of_the_formula(nonempty, threshold, rng):
    probs = distributions(50, 80, rng, np.float32)
    sets = GridSets(ScoreRule("lac", nonempty), np.array([threshold]), np.arange(1.0, 81.0))
    confidence = probs.max(axis=1, keepdims=True).astype(np.float64)
    found = Selection.of(sets, 80)(np, probs, confidence, None, None, probs.max(axis=1, keepdims=True))
    np.testing.assert_array_equal(found, sets(np, probs, confidence, None))


def test_sizes_of_several_rules_at_once(rng):
    probs, rules = distributions(300, 80, rng, np.float32), RULES[:4]  # four scores of very different depths
    candidates = [(rule, rng.random(300) * (index + 1) / 2) for index, rule in enumerate(rules)]
    sizes = [prediction_sets(probs, thresholds, rule).sum() for rule, thresholds in candidates]
    assert total_sizes(probs, candidates).tolist() == sizes


def test_selection_and_full_sort_agree_where_the_pilot_is_wrong(rng):
    # the pilot's evenly spaced rows are confident, all others are flat: nearly every row has to be sorted in full
    n, k = 600, 100
    probs = rng.dirichlet(np.ones(k), n).astype(np.float32)
    pilot = np.linspace(0, n - 1, 128).astype(int)
    probs[pilot] = np.eye(k, dtype=np.float32)[0] * 0.9 + 0.1 / k
    rule, thresholds = ScoreRule("aps", None), np.full(n, 0.95)
    np.testing.assert_array_equal(prediction_sets(probs, thresholds, rule), expected_sets(probs, thresholds, rule))


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.name != "lac"], ids=str)
def test_rows_of_every_depth_get_the_sets_of_a_full_sort(rule, rng):
    # most rows need three entries, some of those that the pilot does not see need from 4 to all of 200
    n, k = 1000, 200
    kept = np.where(rng.random(n) < 0.9, 3, rng.integers(4, k + 1, n))
    kept[np.linspace(0, n - 1, PILOT_ROWS).astype(int)] = 3
    weights = np.where(np.arange(k) < kept[:, None], 1 + rng.random((n, k)), 0.001 * rng.random((n, k)))
    probs = rng.permuted(weights / weights.sum(axis=1, keepdims=True), axis=1).astype(np.float32)
    draws = rng.random(n)
    scores = scores_of_all(probs, rule, draws)
    thresholds = np.sort(scores, axis=1)[np.arange(n), kept - 1]
    assert _pilot_depths(probs, [(rule, thresholds)], draws) == [4]
    sets = prediction_sets(probs, thresholds, rule, draws)
    np.testing.assert_array_equal(sets, expected_sets(probs, thresholds, rule, draws))
    assert len(np.unique(sets.sum(axis=1))) > 30


@pytest.mark.parametrize("mass", [0.02, 0.2, 0.9, 2.0])
def test_the_usual_depth_is_that_of_whole_rows(mass, rng):
    n, k = 400, 1100
    probs, rule = rng.dirichlet(np.ones(k), n), ScoreRule("aps", None)
    pilot = np.linspace(0, n - 1, PILOT_ROWS).astype(int)
    ordered = np.sort(probs[pilot], axis=1)[:, ::-1]
    within = (np.cumsum(ordered, axis=1) <= mass).sum(axis=1)  # no sum is within rounding of the mass
    expected = min(k, 1 + int(np.quantile(within, 0.95, method="higher")))
    assert _pilot_depths(probs, [(rule, np.full(n, mass))], np.ones(n)) == [expected]


# ---------------------------------------------------------------- symmetries


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_permuting_classes_permutes_scores_and_sets(rule, rng):
    probs, order = distributions(100, 90, rng, np.float32), rng.permutation(90)
    labels, thresholds = rng.integers(0, 90, 100), rng.random(100)
    moved = np.argsort(order)[labels]
    np.testing.assert_array_equal(
        label_scores(label_statistics(probs, labels), rule),
        label_scores(label_statistics(np.ascontiguousarray(probs[:, order]), moved), rule),
    )
    sets = prediction_sets(probs, thresholds, rule)
    np.testing.assert_array_equal(
        prediction_sets(np.ascontiguousarray(probs[:, order]), thresholds, rule), sets[:, order]
    )


def test_float32_and_its_float64_copy_score_alike(rng):
    probs, labels = distributions(200, 50, rng, np.float32), rng.integers(0, 50, 200)
    rule = ScoreRule("raps", "score", 3, 0.01)
    single = label_scores(label_statistics(probs, labels), rule)
    double = label_scores(label_statistics(probs.astype(np.float64), labels), rule)
    np.testing.assert_array_equal(single, double)


@pytest.mark.parametrize("rule", RULES[:4], ids=str)
def test_blocks_and_threads_change_nothing(rule, rng):
    probs, labels = distributions(500, 80, rng, np.float32), rng.integers(0, 80, 500)
    draws, thresholds = rng.random(500), rng.random(500)
    plain = label_scores(label_statistics(probs, labels), rule, draws), prediction_sets(probs, thresholds, rule, draws)
    for rows, threads in ((1, 1), (7, 3), (1000, 2)):
        with blocks.settings(block_rows=rows, n_threads=threads):
            np.testing.assert_array_equal(label_scores(label_statistics(probs, labels), rule, draws), plain[0])
            np.testing.assert_array_equal(prediction_sets(probs, thresholds, rule, draws), plain[1])


@pytest.mark.parametrize("layout", ["fortran", "strided", "read-only"])
def test_any_memory_layout(layout, rng):
    probs, labels = distributions(30, 9, rng), rng.integers(0, 9, 30)
    other = {
        "fortran": np.asfortranarray(probs),
        "strided": np.repeat(probs, 2, axis=1)[:, ::2],
        "read-only": probs.copy(),
    }
    other[layout].flags.writeable = False
    rule = ScoreRule("aps")
    np.testing.assert_array_equal(
        label_scores(label_statistics(other[layout], labels), rule), label_scores(label_statistics(probs, labels), rule)
    )
    np.testing.assert_array_equal(
        prediction_sets(other[layout], np.full(30, 0.8), rule), prediction_sets(probs, np.full(30, 0.8), rule)
    )


# ---------------------------------------------------------------- options


def checked(score="raps", **options):
    return checked_score(
        score, **{"nonempty": "score", "k_reg": "auto", "penalty": "auto", "randomized": False} | options
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "RAPS"}, "score must be one of 'lac', 'aps', 'raps', 'saps'; got 'RAPS'"),
        ({"nonempty": True}, "nonempty must be one of 'score', 'after', None; got True"),
        ({"score": "lac", "randomized": True}, "randomized must be False for score='lac'"),
        (
            {"score": "aps", "k_reg": 3},
            r"k_reg is a parameter of 'raps', not of score='aps'; got 3. Leave k_reg='auto'",
        ),
        ({"score": "saps", "k_reg": 3}, "k_reg is a parameter of 'raps', not of score='saps'"),
        ({"score": "lac", "penalty": 0.1}, "penalty is a parameter of 'raps' and 'saps', not of score='lac'"),
        ({"k_reg": "automatic"}, "k_reg must be one of 'auto'; got 'automatic'"),
        ({"k_reg": -1}, "k_reg must be at least 0; got -1"),
        ({"penalty": -0.5}, r"penalty must be a finite number in \[0"),
        ({"randomized": "yes"}, "randomized must be one of False, True; got 'yes'"),
    ],
    ids=str,
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        checked(**options)


def test_k_reg_of_another_type_is_refused():
    with pytest.raises(TypeError, match=r"k_reg must be a whole number; got 2\.5"):
        checked(k_reg=2.5)
