import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from conftest import load_outputs, needs
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import ndimage, stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import atypicality as aty
from atypicality import blocks
from atypicality.conformal import AtypicalityAwareConformal, SplitConformal
from atypicality.conformal.chance import Seeds, split_rows
from atypicality.conformal.regions import merge_cells, rows_to_expect
from atypicality.conformal.threshold import conformal_rank, coverage_law, minimum_rows
from atypicality.datasets import make_world
from atypicality.groups import QuantileGroups
from atypicality.metrics import coverage, set_size


def fit(conformal, world):
    return conformal.fit(world.probs, world.labels, atypicality=world.atypicality)


def predict(conformal, world):
    return conformal.predict_set(world.probs, atypicality=world.atypicality)


def covered(sets, labels):
    return sets[np.arange(len(labels)), labels]


# ---------------------------------------------------------------- regions


@given(
    arrays(np.float64, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=7), elements=st.integers(0, 30)),
    st.integers(0, 80),
)
def test_regions_are_connected_numbered_and_large_enough(expected, needed):
    regions = merge_cells(expected, needed)
    assert regions.shape == expected.shape
    names, first = np.unique(regions, return_index=True)
    np.testing.assert_array_equal(names, np.arange(names.size))
    assert (np.diff(first) > 0).all()
    assert all(ndimage.label(regions == name)[1] == 1 for name in names)  # sides, not corners
    totals = np.bincount(regions.ravel(), expected.ravel())
    assert names.size == 1 or (totals >= needed).all()


def test_regions_by_hand():
    # 1 is the smallest and joins 3, the smaller of its neighbours 5 and 3; all regions then have at least 4
    np.testing.assert_array_equal(merge_cells(np.array([[5.0, 1.0, 3.0]]), 4), [[0, 1, 1]])
    # the empty cell in the corner joins the cell beside it, and cells that are large enough stay apart
    np.testing.assert_array_equal(merge_cells(np.array([[9.0, 8.0], [9.0, 0.0]]), 5), [[0, 1], [2, 1]])


@pytest.mark.parametrize("alpha", [Fraction(1, 100), Fraction(1, 20), Fraction(1, 10), Fraction(1, 2)])
@pytest.mark.parametrize("ratio", [0.5, 2.0, 4.0])
def test_a_region_that_expects_enough_rarely_falls_short(alpha, ratio, rng):
    # edge counts c ~ Poisson(m / r) that promise c r >= m; then threshold counts ~ Poisson of the true rate
    expected = rows_to_expect(alpha, ratio)
    assert expected > minimum_rows(alpha)
    share = 1.0 - stats.norm.cdf((expected - minimum_rows(alpha)) / math.sqrt(expected * (1 + ratio)))
    assert share == pytest.approx(0.01, abs=2e-4)
    edge = rng.poisson(expected / ratio, 100_000)
    arrived = rng.poisson(expected, 100_000)
    lucky = edge * ratio >= expected
    assert (arrived[lucky] < minimum_rows(alpha)).mean() < 0.01


def test_regions_are_decided_by_the_edge_rows_alone(rng):
    world = make_world(600)
    edge, calibration = split_rows(600, 1 / 3, "edge_fraction", Seeds(0).generator("split"))
    first = fit(AtypicalityAwareConformal("aps", 0.1), world)
    labels, moved = world.labels.copy(), world.atypicality.copy()
    labels[calibration], moved[calibration] = rng.permutation(labels[calibration]), 1e6
    other = clone(first)
    with pytest.warns(UserWarning, match="threshold rows in every region; got 0 in region 0, 0 in region 1"):
        other.fit(world.probs, labels, atypicality=moved)
    np.testing.assert_array_equal(first.regions_, other.regions_)
    np.testing.assert_array_equal(first.grid_.atypicality_groups_.edges_, other.grid_.atypicality_groups_.edges_)
    assert (first.n_edge_, first.n_calibration_) == (edge.size, calibration.size) == (200, 400)
    # regions without rows have full sets, the others do not
    np.testing.assert_array_equal(other.too_few_, other.counts_ < minimum_rows(0.1))
    full = predict(other, world).all(axis=1)
    short = other.too_few_[other.assign(world.probs, atypicality=world.atypicality)]
    assert full[short].all()
    assert not predict(other, replace(world, atypicality=moved))[calibration].all(axis=1).all()


# ---------------------------------------------------------------- the exact law, in every region


def test_every_region_follows_its_law(rng):
    # two classes, label 0, LAC: the score is 1 - p_0, continuous, and its law depends on the atypicality
    alpha, n, n_test, repeats = 0.2, 240, 400, 200
    ranks, ranks_of_wrong = [], []
    conformal = AtypicalityAwareConformal("lac", alpha, n_groups=(2, 2), nonempty=None)
    for _ in range(repeats):
        rarity = rng.random(n + n_test)
        scores = rng.random(n + n_test) ** (1 / (1 + 3 * rarity))
        probs = np.stack([1 - scores, scores], axis=1)
        conformal.fit(probs[:n], np.zeros(n, int), atypicality=rarity[:n])
        hits = conformal.predict_set(probs[n:], atypicality=rarity[n:])[:, 0]
        regions = conformal.assign(probs[n:], atypicality=rarity[n:])
        for region, count in enumerate(conformal.counts_):
            rows, rank, draw = regions == region, conformal_rank(int(count), alpha), rng.random()
            for k, into in ((rank, ranks), (rank + 1, ranks_of_wrong)):
                law = stats.betabinom(int(rows.sum()), k, count + 1 - k)
                into.append(law.cdf(hits[rows].sum() - 1) + draw * law.pmf(hits[rows].sum()))
    assert stats.kstest(ranks, "uniform").pvalue > 1e-6
    assert stats.kstest(ranks_of_wrong, "uniform").pvalue < 1e-6  # one rank away is seen


def test_one_group_of_each_is_split_conformal():
    world = make_world(800)
    rows = np.arange(800) < 100
    aware = AtypicalityAwareConformal("raps", 0.1, n_groups=(1, 1), k_reg=1, penalty=0.1)
    aware.fit(world.probs, world.labels, atypicality=world.atypicality, edge_rows=rows)
    split = SplitConformal("raps", 0.1, k_reg=1, penalty=0.1).fit(world.probs[~rows], world.labels[~rows])
    assert aware.thresholds_.tolist() == [split.threshold_]
    np.testing.assert_array_equal(predict(aware, world), split.predict_set(world.probs))


def test_sets_use_the_threshold_of_their_region(rng):
    world = make_world(3000, atypical_noise=1.0)
    conformal = fit(AtypicalityAwareConformal("lac", 0.1, nonempty=None), world)
    regions = conformal.assign(world.probs, atypicality=world.atypicality)
    expected = 1 - world.probs <= conformal.thresholds_[regions][:, None]
    np.testing.assert_array_equal(predict(conformal, world), expected)
    assert conformal.counts_.sum() == conformal.n_calibration_
    assert conformal.regions_.shape == (6, 6)
    assert len(conformal.thresholds_) == len(conformal.counts_) == conformal.regions_.max() + 1


# ---------------------------------------------------------------- what it is for


def test_rare_inputs_are_covered_where_split_conformal_fails_them(seed):
    # atypical inputs are noisier than the model says: one threshold for all cannot know it
    alpha, world = 0.1, make_world(16_000, 10, atypical_noise=1.0, random_state=seed)
    calibration, test = world.take(slice(0, 8000)), world.take(slice(8000, None))
    groups = QuantileGroups(6).fit(calibration.atypicality).assign(test.atypicality)
    rare = groups == 5
    split = SplitConformal("raps", alpha, random_state=seed).fit(calibration.probs, calibration.labels)
    hits = covered(split.predict_set(test.probs), test.labels)
    law = coverage_law(split.n_calibration_, alpha, n_test=len(test))
    assert law.cdf(hits.sum()) > 1e-6  # covers on average
    assert hits[rare].mean() < 1 - alpha - 0.05  # and not where it matters
    hits = covered(
        predict(fit(AtypicalityAwareConformal("raps", alpha, random_state=seed), calibration), test), test.labels
    )
    deviation = math.sqrt(alpha * (1 - alpha) * (1 / rare.sum() + 6 / split.n_calibration_))
    assert hits[rare].mean() > 1 - alpha - 4 * deviation


@pytest.fixture(scope="module")
def long_tail():
    """CIFAR-10-LT: logits, labels and tied-Gaussian atypicality of the 10,000 balanced test rows."""
    test, train = (load_outputs("cifar10lt-wrn28-4", part) for part in ("test", "train_statistics"))
    density = aty.GaussianAtypicality.from_statistics(train["counts"], train["means"], train["covariance"])
    return test["logits"].astype(float), test["labels"].astype(int), density.atypicality(test["embeddings"])


def partitions(long_tail, seed, repeats=10):
    """Temperature-scaled probabilities of 4,500 conformal and 3,000 test rows, ten times over."""
    logits, labels, atypicality = long_tail
    for repeat in range(repeats):
        scaling, conformal, test = np.split(np.random.default_rng([seed, repeat]).permutation(10_000), [2500, 7000])
        probs = aty.TemperatureScaling().fit(logits[scaling], labels[scaling]).predict_proba(logits)
        yield tuple((probs[rows], labels[rows], atypicality[rows]) for rows in (conformal, test))


def test_long_tail_worst_sixth_is_lifted_at_little_cost(long_tail, seed):
    sixths, sizes = {"split": [], "aware": []}, {"split": [], "aware": []}
    for (probs, labels, rarity), (new, truth, new_rarity) in partitions(long_tail, seed):
        split = SplitConformal("raps", 0.05).fit(probs, labels)
        aware = AtypicalityAwareConformal(alpha=0.05).fit(probs, labels, atypicality=rarity)
        assert (aware.n_edge_, aware.n_calibration_) == (1500, 3000)
        groups = QuantileGroups(6).fit(new_rarity).assign(new_rarity)
        both = {"split": split.predict_set(new), "aware": aware.predict_set(new, atypicality=new_rarity)}
        for name, sets in both.items():
            sixths[name].append([coverage(sets[groups == g], truth[groups == g]) for g in range(6)])
            sizes[name].append(set_size(sets))
        regions, hits = aware.assign(new, atypicality=new_rarity), covered(both["aware"], truth)
        for region in np.flatnonzero(~aware.too_few_):
            law = coverage_law(int(aware.counts_[region]), 0.05, n_test=int((regions == region).sum()))
            assert law.cdf(hits[regions == region].sum()) > 1e-3 / len(aware.counts_) / 10  # of ten partitions
    worst = {name: np.min(found, axis=1).mean() for name, found in sixths.items()}
    assert np.mean(sixths["aware"], axis=0).min() >= 0.945
    assert worst["aware"] >= 0.934  # the mean of ten minima of six is .943 with a deviation of .0025
    assert worst["aware"] > worst["split"]
    assert np.mean(sizes["aware"]) <= 1.2 * np.mean(sizes["split"])


def test_long_tail_aware_aps_is_smaller_where_the_top_class_is_added_afterwards(long_tail, seed):
    sizes = {"split": [], "aware": []}
    for (probs, labels, rarity), (new, _, new_rarity) in partitions(long_tail, seed, repeats=3):
        aware = AtypicalityAwareConformal("aps", 0.05, nonempty="after").fit(probs, labels, atypicality=rarity)
        split = SplitConformal("aps", 0.05, nonempty="after").fit(probs, labels)
        sizes["aware"].append(set_size(aware.predict_set(new, atypicality=new_rarity)))
        sizes["split"].append(set_size(split.predict_set(new)))
    assert np.mean(sizes["aware"]) < 0.8 * np.mean(sizes["split"])


# ---------------------------------------------------------------- points and cells off the beaten track


def test_points_beyond_the_edges_belong_to_the_outer_cells():
    world = make_world(3000)
    conformal = fit(AtypicalityAwareConformal("aps", 0.1), world)
    sure, unsure = np.eye(5)[:1], np.full((1, 5), 0.2)
    cells = [(sure, -1e9, (0, -1)), (sure, 1e9, (-1, -1)), (unsure, -1e9, (0, 0)), (unsure, 1e9, (-1, 0))]
    for probs, rarity, cell in cells:
        assert conformal.assign(probs, atypicality=[rarity])[0] == conformal.regions_[cell]


def test_a_cell_never_seen_has_the_region_it_was_merged_into():
    # atypicality falls as confidence rises: the sure and atypical corner is empty
    world = make_world(3000)
    conformal = AtypicalityAwareConformal("aps", 0.1)
    conformal.fit(world.probs, world.labels, atypicality=-world.probs.max(axis=1))
    assert conformal.grid_.counts_[5, 5] == 0
    region = conformal.assign(np.eye(5)[:1], atypicality=[9.0])[0]
    assert region == conformal.regions_[5, 5]
    assert conformal.counts_[region] >= minimum_rows(0.1)
    assert np.isfinite(conformal.thresholds_[region])


def test_constant_atypicality_is_one_group_and_says_so():
    world = make_world(2000)
    conformal = AtypicalityAwareConformal("aps", 0.1)
    with pytest.warns(UserWarning, match=r"n_groups=6 became groups of \[667, 0\] samples"):
        conformal.fit(world.probs, world.labels, atypicality=np.ones(2000))
    np.testing.assert_array_equal(conformal.regions_[0], np.arange(6))  # only confidence is left
    assert conformal.counts_.sum() == conformal.n_calibration_


def test_more_groups_than_rows_is_said_and_keeps_the_promise():
    world = make_world(60)
    conformal = AtypicalityAwareConformal("aps", 0.1, n_groups=(30, 1))
    with pytest.warns(UserWarning, match="n_groups=30 is too many for these 20 values"):
        fit(conformal, world)
    assert conformal.regions_.shape == (30, 1)
    assert (conformal.counts_ >= minimum_rows(0.1)).all()


def test_fewer_rows_than_any_group_needs_give_full_sets_and_say_so():
    world = make_world(24)
    conformal = AtypicalityAwareConformal("aps", 0.05, n_groups=(2, 2))
    with pytest.warns(UserWarning, match=r"needs at least 19 threshold rows in every region; got 16 in region 0"):
        fit(conformal, world)
    assert conformal.too_few_.all()
    assert predict(conformal, world).all()


# ---------------------------------------------------------------- repeatability and arrays


@pytest.mark.parametrize("score", ["lac", "aps", "raps", "saps"])
def test_blocks_and_threads_change_nothing(score):
    world = make_world(900, 70, n_features=20)
    conformal = AtypicalityAwareConformal(score, n_groups=(2, 2), randomized=score != "lac")
    expected = predict(fit(conformal, world), world)
    for rows, threads in ((1, 2), (17, 3)):
        with blocks.settings(block_rows=rows, n_threads=threads):
            np.testing.assert_array_equal(predict(fit(clone(conformal), world), world), expected)


def test_row_order_of_new_rows_does_not_matter(rng):
    world, order = make_world(1000), rng.permutation(1000)
    conformal = fit(AtypicalityAwareConformal("raps"), world)
    np.testing.assert_array_equal(predict(conformal, world.take(order)), predict(conformal, world)[order])


@needs("torch")
def test_torch_in_torch_out():
    import torch

    world = make_world(600)
    conformal = fit(AtypicalityAwareConformal("aps", n_groups=(2, 2)), world)
    sets = conformal.predict_set(torch.from_numpy(world.probs), atypicality=torch.from_numpy(world.atypicality))
    assert isinstance(sets, torch.Tensor)
    np.testing.assert_array_equal(sets.numpy(), predict(conformal, world))


def test_half_precision_whose_rows_sum_to_more_than_one():
    world = make_world(600)
    probs = world.probs.astype(np.float16)
    probs[:50] = np.eye(5, dtype=np.float16)[world.labels[:50]] * np.float16(1.002)
    conformal = AtypicalityAwareConformal("aps", n_groups=(2, 2))
    conformal.fit(probs, world.labels, atypicality=world.atypicality)
    assert conformal.predict_set(probs, atypicality=world.atypicality).any(axis=1).all()


def test_constructor_stores_and_clone_copies():
    conformal = AtypicalityAwareConformal("nonsense", 7, n_groups="six", mode=None)
    assert clone(conformal).get_params() == conformal.get_params()


# ---------------------------------------------------------------- bad input

GOOD = make_world(60)


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({"alpha": 10}, {}, r"alpha must lie strictly between 0 and 1; got 10. For 10 percent pass 0.1"),
        ({"mode": "Valid"}, {}, "mode must be one of 'valid', 'paper'; got 'Valid'"),
        ({"n_groups": 6}, {}, r"n_groups must be a pair, \(atypicality, confidence\); got 6"),
        ({"n_groups": (0, 6)}, {}, "n_groups must be at least 1; got 0"),
        ({"edge_fraction": 1.5}, {}, r"edge_fraction must be a finite number in \(0, 1\); got 1.5"),
        ({"score": "aps", "penalty": 0.1}, {}, "penalty is a parameter of 'raps' and 'saps', not of score='aps'"),
        ({}, {"labels": GOOD.labels - 5}, r"labels must lie in 0 .. 4, the columns"),
        ({}, {"atypicality": GOOD.atypicality[:3]}, "atypicality must have one entry per row; got 3 for 60 rows"),
        ({}, {"atypicality": np.full(60, np.nan)}, "atypicality must be finite; rows 0, 1, 2, 3, 4, ... .* hold NaN"),
        ({}, {"probs": GOOD.probs / 2}, r"probs must have rows summing to 1; row 0 sums to 0\.5"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_input_is_named(options, changes, message):
    given = {"probs": GOOD.probs, "labels": GOOD.labels, "atypicality": GOOD.atypicality} | changes
    with pytest.raises(ValueError, match=message):
        AtypicalityAwareConformal(**options).fit(given.pop("probs"), given.pop("labels"), **given)


def test_one_row_cannot_both_choose_and_promise():
    with pytest.raises(ValueError, match="probs must have at least 2 rows to fit on; got 1"):
        fit(AtypicalityAwareConformal("aps"), GOOD.take(slice(0, 1)))


def test_prediction_before_fit_is_refused():
    with pytest.raises(NotFittedError):
        predict(AtypicalityAwareConformal(), GOOD)
