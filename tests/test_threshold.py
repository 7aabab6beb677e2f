import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atypicality.conformal.threshold import conformal_rank, conformal_threshold, coverage_law, minimum_rows

LAWS = [(1, 0.5), (5, 0.2), (5, 0.4), (20, 0.1), (50, 0.1), (50, 0.3), (200, 0.05)]


@given(st.integers(0, 5000), st.integers(1, 999))
def test_rank_is_the_ceiling_in_whole_numbers(n, thousandths):
    # ceil((n + 1)(1 - a)) with a = i / 1000, in integers only
    assert conformal_rank(n, thousandths / 1000) == -(-(n + 1) * (1000 - thousandths) // 1000)


@pytest.mark.parametrize(
    ("n", "alpha", "rank"), [(9, 0.7, 3), (24, 0.44, 14), (100, 0.1, 91), (5, 0.1, 6), (0, 0.5, 1)]
)
def test_rank_where_floats_go_wrong(n, alpha, rank):
    assert conformal_rank(n, alpha) == rank


@given(st.integers(1, 999))
def test_minimum_rows_is_where_the_threshold_becomes_finite(thousandths):
    alpha = Fraction(thousandths, 1000)
    least = minimum_rows(alpha)
    assert conformal_rank(least, alpha) <= least
    assert least == 0 or conformal_rank(least - 1, alpha) > least - 1


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(1, 99))
def test_threshold_is_the_order_statistic(scores, hundredths):
    rank = conformal_rank(len(scores), hundredths / 100)
    expected = sorted(scores)[rank - 1] if rank <= len(scores) else math.inf
    assert conformal_threshold(scores, hundredths / 100) == expected


def test_fewest_scores_that_keep_the_promise(rng):
    # a share of at most alpha of n + 1 exchangeable scores may lie above: no smaller order statistic has it
    scores, alpha = rng.random(137), Fraction(3, 20)
    threshold = conformal_threshold(scores, alpha)
    assert (scores <= threshold).sum() >= (1 - alpha) * (scores.size + 1) > (scores < threshold).sum()


def test_more_scores_than_float32_can_count():
    n = 2**24 + 1
    scores = np.arange(n, dtype=np.float64)[::-1]
    assert conformal_threshold(scores, 0.1) == conformal_rank(n, 0.1) - 1  # rank r of 0, 1, 2, ... is r - 1


def test_too_few_scores_give_infinity():
    assert conformal_threshold(np.zeros(8), 0.1) == math.inf
    assert conformal_threshold(np.zeros(9), 0.1) == 0.0
    assert conformal_threshold([], 0.5) == math.inf


def test_infinite_scores_are_ordered_like_any_other():
    assert conformal_threshold([1.0, math.inf, 2.0], 0.5) == 2.0
    assert conformal_threshold([1.0, math.inf, 2.0], 0.25) == math.inf


@pytest.mark.parametrize(("n", "alpha"), LAWS)
def test_thresholds_of_uniform_scores_follow_the_beta_law(n, alpha, rng):
    thresholds = [conformal_threshold(rng.random(n), alpha) for _ in range(2000)]
    law, rank = coverage_law(n, alpha), conformal_rank(n, alpha)
    assert law.mean() == pytest.approx(rank / (n + 1))
    assert stats.kstest(thresholds, law.cdf).pvalue > 1e-6
    for wrong in {max(1, rank - 1), min(n, rank + 1)} - {rank}:  # the same test has the power to see one rank
        assert stats.kstest(thresholds, stats.beta(wrong, n + 1 - wrong).cdf).pvalue < 1e-6


def test_beta_binomial_is_the_beta_law_with_test_rows():
    # E[hits] = m k / (n + 1); P(all m hit) = prod_i (k + i) / (n + 1 + i), here (9/10)(10/11)
    law = coverage_law(9, 0.1, n_test=2)
    assert law.mean() == pytest.approx(2 * 9 / 10)
    assert law.pmf(2) == pytest.approx(9 / 11)


@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        (0, r"alpha must lie strictly between 0 and 1; got 0"),
        (1.0, r"alpha must lie strictly between 0 and 1; got 1.0"),
        (5, r"got 5. For 5 percent pass 0.05"),
        (-0.1, r"alpha must lie strictly between 0 and 1; got -0.1"),
        (math.nan, r"alpha must be a finite number"),
    ],
)
def test_bad_alpha_is_named(alpha, message):
    with pytest.raises(ValueError, match=message):
        conformal_threshold([0.1, 0.2], alpha)


def test_alpha_of_another_type_is_refused():
    with pytest.raises(TypeError, match="alpha must be a number; got '5%'"):
        conformal_threshold([0.1], "5%")


def test_nan_scores_are_refused():
    with pytest.raises(ValueError, match=r"scores must be a number; row 1 holds NaN"):
        conformal_threshold([0.1, math.nan], 0.5)


def test_law_without_a_finite_threshold_is_refused():
    with pytest.raises(ValueError, match=r"n must be at least 19 for alpha=0.05 .* got 18"):
        coverage_law(18, 0.05)
