import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from atypicality import metrics
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


def test_worst_coverage_by_hand():
    # groups of 60 (54 held), 60 (45 held) and 10 (none held, too few to count)
    groups = np.repeat([0, 1, 2], [60, 60, 10])
    hits = np.r_[np.arange(60) < 54, np.arange(60) < 45, np.zeros(10, bool)]
    found = metrics.worst_coverage(np.column_stack([hits, ~hits]), np.zeros(130, int), groups)
    assert (found.value, found.group, found.count) == (0.75, 1, 60)
    # Clopper and Pearson at 1 - .05 / 2: beta quantiles of (45, 16) and (46, 15)
    assert found.low == pytest.approx(beta.ppf(0.0125, 45, 16))
    assert found.high == pytest.approx(beta.ppf(0.9875, 46, 15))
    few = metrics.worst_coverage(np.column_stack([hits, ~hits]), np.zeros(130, int), groups, least=10)
    assert (few.value, few.low, few.group) == (0.0, 0.0, 2)
    with pytest.raises(ValueError, match="least must be at most the rows of the largest group, 60; got 61"):
        metrics.worst_coverage(np.column_stack([hits, ~hits]), np.zeros(130, int), groups, least=61)


def test_size_strata_by_hand():
    # ten sets of each of the sizes 1, 2, 4 of 12 classes; the label is class 2, which sets of at least 3 hold
    sets = np.arange(12) < np.repeat([1, 2, 4], 10)[:, None]
    table = metrics.size_stratified_coverage(sets, np.full(30, 2))
    assert table.group == ("0-1", "2-3", "4-10", "11-100")
    assert table.count.tolist() == [10, 10, 10, 0]
    np.testing.assert_array_equal(table.value, [0, 0, 1, np.nan])


def curve_of(size, worst):
    unused = np.zeros(len(size))
    return metrics.ParetoCurve(unused, np.array(size), unused, np.array(worst), unused, unused)


def test_efficient_points_by_hand():
    # the third has larger sets than the second and covers less; the last is a double of the first
    curve = curve_of([1.0, 2.0, 3.0, 4.0, 1.0], [0.7, 0.9, 0.8, 0.95, 0.7])
    assert curve.efficient.tolist() == [True, True, False, True, True]
    assert curve.size_at(0.8) == pytest.approx(1.5)
    assert curve.size_at(0.925) == pytest.approx(3.0)
    assert curve.size_at(0.5) == 1.0
    assert curve.size_at(0.96) == np.inf


def test_pareto_curve_measures_every_alpha():
    labels, groups = np.arange(120) % 4, np.arange(120) % 2
    curve = metrics.pareto_curve(
        lambda alpha: np.tile(np.arange(4) < (1 if alpha > 0.1 else 3), (120, 1)), labels, groups, alphas=(0.05, 0.2)
    )
    assert curve.alpha.tolist() == [0.05, 0.2]
    assert curve.size.tolist() == [3.0, 1.0]
    assert curve.coverage.tolist() == [0.75, 0.25]
    assert curve.worst.tolist() == [0.5, 0.0]  # odd classes 1 and 3, of which 1 is held; and neither
    assert [row["alpha"] for row in curve.rows()] == [0.05, 0.2]
    assert "worst group" in str(curve)
    with pytest.raises(ValueError, match="at least one alpha"):
        metrics.pareto_curve(lambda alpha: None, labels, groups, alphas=())
    with pytest.raises(ValueError, match="alpha"):
        metrics.pareto_curve(lambda alpha: None, labels, groups, alphas=(2.0,))
