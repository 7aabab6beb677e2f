"""What a head remembers: quantiles that are shares, a bound that holds, drift that is noticed and not imagined."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import comb
from scipy.stats import binom, ks_2samp

from atypicality.head.abstention import AbstentionRule, _needed, _round_up, clear_majority, lost_at, most_errors
from atypicality.head.drift import Drift
from atypicality.head.quantiles import GRID_SIZE, QuantileScale

FAQ = Path(__file__).parents[1] / "docs" / "faq.md"


@settings(deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=60))
def test_at_a_held_out_value_the_quantile_is_the_share_at_or_below(values):
    values = np.array(values, float)
    scale = QuantileScale.from_rows(values)
    expected = (values[:, None] >= values[None, :]).mean(axis=1)
    np.testing.assert_allclose(scale(values), expected)
    assert scale([values.max() + 1.0, values.min() - 1e-9]).tolist() == [1, 0]


def test_a_long_sample_is_kept_to_a_grid_and_loses_less_than_a_step(rng):
    values = rng.normal(size=30_000)
    scale = QuantileScale.from_rows(values)
    assert scale.values.size == scale.levels.size == GRID_SIZE
    probes = rng.normal(size=1000)
    exact = np.searchsorted(np.sort(values), probes, side="right") / values.size
    assert np.abs(scale(probes) - exact).max() <= 1 / (GRID_SIZE - 1) + 1 / values.size


@pytest.mark.parametrize("risk", [0.02, 0.1, 0.5])
def test_as_many_errors_pass_as_clopper_and_pearsons_bound_allows(risk):
    n = np.arange(1, 400)
    most = most_errors(n, risk)

    def high(errors):  # the bound is below the risk where this is below 5 %
        return binom.cdf(errors, n, risk)

    assert (high(most) <= 0.05).all()
    assert (high(most + 1) > 0.05).all()


def test_a_clear_majority_is_more_than_half_and_seldom_by_chance_of_a_quarter():
    counts = np.arange(1, 101)
    needed = clear_majority(counts)
    assert (2 * needed > counts).all()
    assert binom.sf(needed - 1, counts, 0.25).sum() <= 0.05
    fewer = needed - 1  # half or less, or more likely than one class in 2000
    assert ((2 * fewer <= counts) | (binom.sf(fewer - 1, counts, 0.25) > 0.05 / 100)).all()


def test_a_class_is_lost_where_counting_says_so(rng):
    """Of 40, 20, 6 and no rows none, 15 and 6 are predicted as another class; ties among the scores."""
    labels = np.repeat([0, 1, 2], [40, 20, 6])
    predicted = np.repeat([0, 1, 0], [40, 5, 21])
    score = rng.integers(0, 20, 66) / 20
    needed, found = clear_majority(np.bincount(labels, minlength=4)), lost_at(score, predicted, labels, 4)
    for threshold in np.unique(score):
        kept = labels[(score >= threshold) & (predicted != labels)]
        np.testing.assert_array_equal(found >= threshold, np.bincount(kept, minlength=4) >= needed)
    assert (found[[0, 3]] == -1).all()
    assert (found[[1, 2]] >= 0).all()


def test_the_first_count_that_fails_ends_the_sequence():
    # 12 errors among the most confident 96, none after: all 1000 rows err at 1.2 %, bounded by 2 %, but the first 103,
    # the fewest that allow 5 errors at 10 %, do not pass, and nothing after a failure counts
    wrong = np.arange(1000) % 8 == 0
    wrong[96:] = False
    confidence = np.linspace(0.9, 0.5, 1000)
    assert AbstentionRule.from_rows(confidence, ~wrong).threshold(0.1) == np.inf
    assert AbstentionRule.from_rows(confidence, ~wrong[::-1]).threshold(0.1) == 0


def test_the_sequence_starts_where_it_is_most_likely_to_pass(rng):
    confidence, correct = rng.random(2000), rng.random(2000) < 0.9
    for others, expected in ((np.full(50, 0.99), 1.0), (np.r_[np.ones(100), np.full(900, 0.3)], 0.1)):
        rule = AbstentionRule.from_rows(confidence, correct, others=others)
        first = rule._tested(0.05)[0]
        rates = [rule.expected * factor for factor in (2 / 3, 1, 3 / 2, 9 / 4)]
        passes = sum(binom.cdf(most_errors(rule.kept, 0.05), rule.kept, np.minimum(rate, 1)) for rate in rates)
        assert passes[first] == passes.max()
        assert rule.kept[first] / 2000 <= expected
    np.testing.assert_allclose(rule.expected[-1], 1 - others.mean())  # of all rows, the mean


def test_where_the_sequence_starts_is_no_matter_of_held_out_labels_and_never_of_validity(rng):
    confidence, others = rng.random(1000), rng.random(300)
    rules = [AbstentionRule.from_rows(confidence, rng.random(1000) > risk, others=others) for risk in (0.0, 0.3)]
    np.testing.assert_array_equal(rules[0]._tested(0.1), rules[1]._tested(0.1))
    counts = rules[0].kept[rules[0]._tested(0.1)]
    assert (
        np.diff(most_errors(counts, 0.1)[:-1]) > 0
    ).all()  # each but the last allows more errors than the one before
    assert counts[-1] == 1000


def test_where_nothing_is_accepted_the_risk_that_would_do_is_named(rng):
    rule = AbstentionRule.from_rows(rng.random(700), rng.random(700) > 0.15)  # 15 % are wrong, wherever they are
    with pytest.warns(UserWarning, match=r"nothing is accepted.*allow more risk, at least 0\.\d+\.") as caught:
        rule.warn_where_none(np.zeros(5, bool), 0.1)
    least = float(re.search(r"at least (0\.\d+)", str(caught[0].message))[1])
    assert rule.threshold(least) < np.inf
    assert all(rule.threshold(percent / 100) == np.inf for percent in range(10, round(100 * least)))


def test_rows_that_would_be_enough_are_told():
    # 1 of 60 wrong: 1, 2, 3 errors pass at 5 % from 93, 124, 153 rows on, and at this rate 60, 120, 180 rows have them
    assert 153 <= _needed(60, 1, 0.05) <= 154
    assert _needed(60, 3, 0.05) is None  # as often as allowed
    wrong = np.isin(np.arange(600), [10, 20, *range(100, 600, 3)])
    rule = AbstentionRule.from_rows(np.linspace(1, 0.4, 600), ~wrong)  # 2 of the first 60, where one passes from 93 on
    said = rule.why_none(0.05)
    enough = _round_up(10 * _needed(60, 2, 0.05))
    assert "Of the 60 most confident 2 are wrong" in said
    assert said.endswith(f"About {enough:,} held-out rows are enough if they err as rarely.")
    assert rule.why_none(0.5) is None
    assert "at least 59 rows without an error; calibrate with more rows, or allow more risk, at least 0.0" in (
        AbstentionRule.from_rows(np.linspace(1, 0.5, 40), np.ones(40)).why_none(0.05)
    )


def test_the_sequence_starts_where_rows_without_an_error_can_pass():
    # 0.95^58 > 0.05 >= 0.95^59: 58 rows without an error bound nothing by 5 %, 59 do
    for n, expected in ((58, np.inf), (59, 0.0)):
        assert AbstentionRule.from_rows(np.linspace(0.9, 0.5, n), np.ones(n)).threshold(0.05) == expected


def test_the_counts_that_are_tested_do_not_depend_on_errors(rng):
    confidence = rng.random(3000).round(2)
    rules = [AbstentionRule.from_rows(confidence, rng.random(3000) > risk) for risk in (0.01, 0.1)]
    assert (rules[0].errors != rules[1].errors).any()
    np.testing.assert_array_equal(rules[0]._tested(0.05), rules[1]._tested(0.05))


def test_no_share_qualifies_then_nothing_is_kept():
    rule = AbstentionRule.from_rows([0.9, 0.8], [0, 0])
    assert rule.threshold(0.05) == np.inf
    with pytest.warns(UserWarning, match="max_risk=0.05 with 2 held-out rows. That takes at least 59 rows without"):
        rule.warn_where_none(np.zeros(3, bool), 0.05)
    wrong = AbstentionRule.from_rows(np.linspace(0.9, 0.5, 1000), np.arange(1000) >= 100)
    with pytest.warns(UserWarning, match=r"with 1,000 held-out rows. Of the 1\d\d most confident 100 are wrong"):
        wrong.warn_where_none(np.zeros(3, bool), 0.05)
    once = AbstentionRule.from_rows(np.linspace(0.9, 0.5, 60), np.arange(60) > 0)
    with pytest.warns(UserWarning, match=r"Of the \d+ most confident 1 is wrong;"):
        once.warn_where_none(np.zeros(3, bool), 0.05)
    right = AbstentionRule.from_rows(np.linspace(0.9, 0.5, 1000), np.ones(1000))
    right.warn_where_none(np.zeros(3, bool), 0.05)  # a threshold is met, and these rows are below it: no warning
    with pytest.raises(ValueError, match=r"max_risk must be a finite number in \(0, 1\); got 5"):
        AbstentionRule.from_rows([0.9], [1]).threshold(5)


def test_the_tables_of_the_faq_are_what_the_rule_needs_and_does(rng):
    rows = [line.strip("| ").split(" | ") for line in FAQ.read_text("utf-8").splitlines() if line.startswith("| ")]
    allowed = {int(cells[0].replace(",", "")): cells[1:] for cells in rows[1:7]}
    risks = (0.01, 0.02, 0.05, 0.1, 0.2)
    for n, cells in allowed.items():
        assert [int(cell.replace("-", "-1")) for cell in cells] == [
            most_errors(np.array([n]), risk)[0] for risk in risks
        ]
    fewest = [np.argmax(most_errors(np.arange(1, 400), risk) == 0) + 1 for risk in risks]
    assert "below {}, {}, {}, {} and {} rows not even".format(*fewest) in FAQ.read_text("utf-8")
    n, fits, power = 600, 100, np.array([1, 2, 5])  # confidence .4 + .6 U^(1 / power): accuracy .7, .8, .9
    [stated] = [cells[1:] for cells in rows if cells[0] == "600"]
    for share, a in zip((int(cell.partition(" ")[0]) / 100 for cell in stated), power, strict=True):
        drawn = 0.4 + 0.6 * rng.random((2, fits, n)) ** (1 / a)
        correct = rng.random((fits, n)) < drawn[0]
        cut = zip(drawn[0], correct, drawn[1], strict=True)
        none = np.mean([AbstentionRule.from_rows(c, r, others=o).threshold(0.05) == np.inf for c, r, o in cut])
        assert abs(none - share) < 4 * np.sqrt(share * (1 - share) * (1 / fits + 1 / 1000)) + 0.005  # of rounding


def test_equal_confidence_is_kept_or_left_together():
    rule = AbstentionRule.from_rows([0.9, 0.9, 0.5], [1, 0, 1])
    np.testing.assert_array_equal(rule.kept, [2, 3])
    np.testing.assert_array_equal(rule.errors, [1, 1])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=60))
def test_a_threshold_keeps_the_rows_it_counted(rows):
    confidence, correct = np.array([value for value, _ in rows]) / 20, np.array([right for _, right in rows])
    rule = AbstentionRule.from_rows(confidence, correct)
    for threshold, kept, errors in zip(rule.confidence, rule.kept, rule.errors, strict=True):
        assert (confidence >= threshold).sum() == kept
        assert (~correct[confidence >= threshold]).sum() == errors


def test_curves_of_earlier_versions_are_tested_in_sequence_too():
    # thresholds were the confidence of the last kept row, and every count up to 1025 was stored
    kept = np.arange(1, 1001)
    rule = AbstentionRule(np.linspace(0.9, 0.5, 1000), kept, np.minimum(kept // 8, 12))
    assert rule.threshold(0.1) == np.inf


def test_drift_is_noticed_and_not_imagined(rng):
    scale = QuantileScale.from_rows(rng.normal(size=2000))
    same, moved = Drift(scale, rng.normal(size=1000)), Drift(scale, rng.normal(1.5, size=1000))
    assert not same.significant
    assert same.distance < 0.1
    assert moved.significant
    assert moved.distance > 0.4
    assert "the data has drifted" in moved.message()


def test_a_warning_of_drift_quotes_the_score_with_the_stronger_evidence(rng):
    scale = QuantileScale.from_rows(rng.normal(size=2000))
    some, all_of_them = rng.normal(2.0, size=1000), rng.normal(20.0, size=1000)
    first = Drift(scale, some, recalibration=Drift(scale, all_of_them))
    assert "by the score that recalibration uses" in first.message()
    assert "100.0% more than any" in first.message()
    second = Drift(scale, all_of_them, recalibration=Drift(scale, some))
    assert second.message().startswith("100.0% of these 1000 rows are more atypical than 99%")


def test_drift_of_nothing_is_nothing():
    empty = Drift(QuantileScale.from_rows([1.0, 2.0]), np.empty(0))
    assert not empty.significant
    assert (empty.share_tail, empty.distance) == (0, 0)


@pytest.mark.parametrize("n_held_out", [1, 7, 300, 1025])
def test_distance_is_kolmogorov_and_smirnovs_with_ties_too(rng, n_held_out):
    for held_out, new in (
        (rng.normal(size=n_held_out), rng.normal(0.3, size=200)),
        (rng.integers(0, 10, n_held_out), rng.integers(3, 12, 200)),
        (np.full(n_held_out, 3), np.full(200, 3)),
        (np.full(n_held_out, 3), np.full(200, 2)),
    ):
        drift = Drift(QuantileScale.from_rows(held_out), new.astype(float))
        assert drift.distance == pytest.approx(ks_2samp(held_out, new).statistic, abs=1e-12)


def test_distance_loses_at_most_a_step_of_a_long_scale(rng):
    held_out, new = rng.normal(size=20_000), rng.normal(size=5000)
    drift = Drift(QuantileScale.from_rows(held_out), new)
    assert drift.distance == pytest.approx(ks_2samp(held_out, new).statistic, abs=1 / (GRID_SIZE - 1) + 1 / 20_000)


@pytest.mark.parametrize(
    "values", [np.arange(10.0), np.zeros(1), np.array([0.0] * 19 + [1.0])], ids=["0..9", "0", "5%"]
)
def test_the_tail_is_one_percent_of_equal_tied_rows(values):
    # each atom of new rows is as large as that of the held-out rows, so their tails are too
    drift = Drift(QuantileScale.from_rows(np.tile(values, 100)), np.tile(values, 30))
    assert drift.share_tail == pytest.approx(0.01)
    assert drift.share_beyond == drift.distance == 0
    assert not drift.significant


def test_drift_is_noticed_among_ties():
    scale = QuantileScale.from_rows(np.tile(np.arange(10.0), 100))
    piled = Drift(scale, np.full(200, 9.0))  # a tenth of the held-out rows are 9, and a tenth of these in the tail
    assert piled.significant
    assert piled.share_tail == pytest.approx(0.1)
    assert (piled.share_beyond, piled.distance) == (0, pytest.approx(0.9))
    beyond = Drift(scale, np.r_[np.tile(np.arange(10.0), 20), np.full(20, 10.0)])
    assert beyond.significant
    assert beyond.share_beyond == pytest.approx(20 / 220)


def test_rows_above_a_constant_are_drift_and_rows_below_it_are_none():
    scale = QuantileScale.from_rows(np.full(500, 3.0))
    assert Drift(scale, np.full(300, 4.0)).significant
    assert not Drift(scale, np.full(300, 2.0)).significant
    assert Drift(scale, np.full(300, 2.0)).share_tail == 0


@pytest.mark.parametrize("n_held_out", [3, 300, 3000])
def test_a_few_rows_are_significant_where_their_chance_is_small(n_held_out):
    # no chance is below that of n rows beyond every held-out one, 1 / C(N + n, n), four times for two tests of two
    scale = QuantileScale.from_rows(np.arange(float(n_held_out)))
    for n in range(1, 7):
        drift = Drift(scale, np.full(n, 1.0 + n_held_out))
        assert drift.significant == (drift.chance < 1e-6)
        assert drift.chance >= min(1.0, 4 / comb(n_held_out + n, n, exact=True)) * (1 - 1e-9)


def test_the_chance_of_a_heavy_tail_counts_ranks():
    # 2 of 299 held-out rows are above the edge, 296: one new row joins them in 3 of the 300 places among all, a second
    # one in 4 of 301. Four times, because ties are looked at in two ways, and the tail and the median.
    scale = QuantileScale.from_rows(np.arange(299.0))
    assert Drift(scale, np.array([296.5])).chance == pytest.approx(4 * 3 / 300)
    assert Drift(scale, np.array([296.5, 400.0])).chance == pytest.approx(4 * 3 / 300 * 4 / 301)
