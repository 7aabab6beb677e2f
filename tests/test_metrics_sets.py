import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atypicality.metrics import coverage, coverage_gap, risk_coverage, set_size

SETS = np.array([[1, 0, 0], [0, 0, 0], [1, 1, 0], [1, 1, 1]], bool)


def test_coverage_and_size_by_hand():
    assert coverage(SETS, [0, 0, 2, 2]) == 0.5
    assert set_size(SETS) == 6 / 4
    assert coverage(np.ones((3, 2), bool), [0, 1, 0]) == 1.0
    assert set_size(np.zeros((3, 2), bool)) == 0.0


def test_coverage_gaps_by_hand():
    # class 0: one of two covered; class 2: one of two; class 1 has no label and does not count
    assert coverage_gap(SETS, [0, 0, 2, 2], 0.1) == pytest.approx(0.4)
    # sizes 0 and 1 together: one of two; 2 and 3 together: one of two
    assert coverage_gap(SETS, [0, 0, 2, 2], 0.1, by="size") == pytest.approx(0.4)
    # the worst stratum counts: sizes 0-1 cover none, sizes 2-3 both
    assert coverage_gap(SETS, [1, 0, 0, 2], 0.25, by="size") == pytest.approx(0.75)


def test_size_strata_are_the_published_ones():
    n_classes = 150
    sizes = [1, 3, 10, 100, 101]
    sets = np.arange(n_classes) < np.array(sizes)[:, None]
    # one set in each stratum; only the set of 101 misses its label
    assert coverage_gap(sets, [0, 0, 0, 0, 149], 0.5, by="size") == 0.5
    together = np.arange(n_classes) < np.array([4, 10])[:, None]  # one stratum: half covered, no gap at alpha = 0.5
    assert coverage_gap(together, [0, 149], 0.5, by="size") == 0.0


@pytest.mark.parametrize(
    ("sets", "labels", "error", "match"),
    [
        (
            SETS.astype(float),
            [0, 0, 2, 2],
            TypeError,
            "sets must be boolean, .*; got dtype float64. Pass what predict_set",
        ),
        (SETS[0], [0], ValueError, r"sets must have shape \(n_samples, n_classes\)"),
        (np.empty((0, 3), bool), [], ValueError, "sets must hold at least one set"),
        (SETS, [0, 0, 2], ValueError, "labels must have one entry per row; got 3 for 4 rows"),
        (SETS, [0, 0, 2, 3], ValueError, r"labels must lie in 0 .. 2, the columns; row 3 is outside"),
    ],
)
def test_bad_sets_are_named(sets, labels, error, match):
    for metric in (coverage, coverage_gap):
        with pytest.raises(error, match=match):
            metric(sets, labels)


def test_bad_gap_options_are_named():
    with pytest.raises(ValueError, match="alpha must lie strictly between 0 and 1; got 10"):
        coverage_gap(SETS, [0, 0, 2, 2], 10)
    with pytest.raises(ValueError, match="by must be one of 'class', 'size'; got 'classes'"):
        coverage_gap(SETS, [0, 0, 2, 2], 0.1, by="classes")


def test_risk_coverage_by_hand():
    curve = risk_coverage(confidence=[0.9, 0.8, 0.7, 0.7], correct=[1, 0, 1, 1])
    assert curve.threshold.tolist() == [0.9, 0.8, 0.7]
    assert curve.coverage.tolist() == [0.25, 0.5, 1.0]
    assert curve.risk.tolist() == [0.0, 0.5, 0.25]
    assert curve.area == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.9]), st.booleans()), min_size=1, max_size=5))
def test_area_is_the_mean_over_all_orders_of_the_ties(pairs):
    def area(order):
        wrong = np.cumsum([not correct for _, correct in order])
        return np.mean(wrong / np.arange(1, len(order) + 1))

    orders = [o for o in itertools.permutations(pairs) if all(a[0] >= b[0] for a, b in itertools.pairwise(o))]
    confidence, correct = zip(*pairs, strict=True)
    found = risk_coverage(confidence=confidence, correct=correct)
    assert found.area == pytest.approx(np.mean([area(order) for order in orders]))
    assert found.risk[-1] == pytest.approx(1 - np.mean(correct))
    assert found.coverage[-1] == 1


def test_confidence_that_ranks_errors_last_is_best(rng):
    correct = rng.random(200) < 0.7
    confidence = rng.random(200)
    ideal = np.where(correct, 0.5 + confidence / 2, confidence / 2)
    areas = [risk_coverage(confidence=c, correct=correct).area for c in (ideal, confidence, 1 - ideal)]
    assert areas == sorted(areas)
    n, wrong = 200, int((~correct).sum())  # the ideal order errs only in the last places
    assert areas[0] == pytest.approx(math.fsum((j - n + wrong) / j for j in range(n - wrong + 1, n + 1)) / n)


def test_probabilities_rank_by_their_top_class():
    assert risk_coverage([[0.9, 0.1], [0.4, 0.6]], [0, 0]).risk.tolist() == [0.0, 0.5]
    with pytest.raises(ValueError, match="probs must hold at least one sample"):
        risk_coverage(np.empty((0, 2)), [])
