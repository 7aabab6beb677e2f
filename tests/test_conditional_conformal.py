import warnings

import numpy as np
import pytest
from conftest import needs, world_part
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import atypicality as aty
from atypicality import blocks
from atypicality.conformal import ConditionalConformal, SplitConformal
from atypicality.conformal.chance import Seeds, split_rows
from atypicality.conformal.pinball import cutoffs
from atypicality.conformal.soft_groups import chosen_knots, local_quantiles, soft_groups
from atypicality.datasets import make_world
from atypicality.groups import QuantileGroups


def fit(conformal, world):
    return conformal.fit(world.probs, world.labels, atypicality=world.atypicality)


def predict(conformal, world):
    return conformal.predict_set(world.probs, atypicality=world.atypicality)


def covered(sets, labels):
    return sets[np.arange(len(labels)), labels]


def cells_of(conformal, world):
    first = np.searchsorted(conformal.atypicality_edges_, world.atypicality)
    second = np.searchsorted(conformal.confidence_edges_, world.probs.max(axis=1))
    return first, second


# ---------------------------------------------------------------- soft groups and knots


@pytest.mark.parametrize("shape", [(12, 12), (5, 3), (2, 7), (1, 4), (1, 1)])
@pytest.mark.parametrize("knots", [1, 2, 3, 4])
def test_soft_groups_are_a_partition_of_unity(shape, knots):
    pair = min(knots, shape[0]), min(knots, shape[1])
    groups = soft_groups(shape, pair)
    assert groups.shape == (*shape, pair[0] * pair[1])
    assert (groups >= 0).all()
    np.testing.assert_allclose(groups.sum(axis=2), 1.0, rtol=1e-15)
    corners = groups[[0, 0, -1, -1], [0, -1, 0, -1]].argmax(axis=1)
    np.testing.assert_array_equal(groups.reshape(-1, groups.shape[2])[0], np.eye(groups.shape[2])[0])
    assert corners.tolist() == [0, pair[1] - 1, (pair[0] - 1) * pair[1], pair[0] * pair[1] - 1]


def test_three_hats_by_hand():
    # positions 0, 1/4, 1/2, 3/4, 1 with knots 0, 1/2, 1
    expected = [[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 0.5, 0.5], [0, 0, 1]]
    np.testing.assert_array_equal(soft_groups((5, 1), (3, 1))[:, 0], expected)


@pytest.mark.parametrize(
    ("expected", "n", "knots"),
    [
        (np.full((12, 12), 20.0), 2880, (3, 3)),
        (np.full((12, 12), 10.0), 1440, (2, 2)),
        (np.full((12, 12), 0.1), 14.4, (2, 1)),  # a corner expects 3.6, a half 7.2
        (np.eye(12)[::-1] * 30, 360, (2, 1)),  # on a diagonal two corners weigh the same everywhere
        (np.full((12, 12), 0.05), 7, (1, 1)),
        (np.full((1, 12), 20.0), 240, (1, 2)),
        (np.full((12, 1), 20.0), 240, (2, 1)),
        (np.ones((2, 2)) * 900, 3600, (2, 2)),
    ],
)
def test_knots_are_as_many_as_the_edge_rows_support(expected, n, knots):
    assert chosen_knots(expected, "auto", 5.0, n) == knots


def test_knots_that_follow_from_one_another_are_not_taken():
    on_one_line = np.zeros((3, 3))
    on_one_line[[0, 2], [0, 2]] = 100.0
    assert chosen_knots(on_one_line, "auto", 0.0, 200) == (2, 1)


def test_local_quantile_by_hand():
    # two cells whose centres are 1/2 apart: weights 1 and w = exp(-1/8 / h^2); tau (1 + 1 + 3 w) = 0.5 (2 + 3 w)
    weight = 0.5
    bandwidth = np.sqrt(1 / (8 * np.log(1 / weight)))
    scores, cells = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1, 0, 1, 1])
    # in order around cell 0: .5, 1.5, 2, 2.5 against .5 * 3.5 = 1.75; around cell 1: 1, 1.5, 2.5, 3.5 against 2.25
    np.testing.assert_array_equal(local_quantiles((2, 1), cells, scores, 0.5, bandwidth), [3.0, 3.0])
    assert np.isneginf(local_quantiles((2, 1), cells, scores, 0.9, bandwidth)).all()  # 3.15 and 4.05 are never reached


# ---------------------------------------------------------------- the algorithm


def test_fit_is_its_four_steps_written_out():
    world, alpha = make_world(3000, atypical_noise=1.0), 0.1
    conformal = fit(ConditionalConformal(alpha, random_state=3), world)
    seeds = Seeds(3)
    edge, own = split_rows(3000, 0.1, "edge_fraction", seeds.generator("split"))
    confidence = world.probs.max(axis=1)
    edges = [np.quantile(values[edge], np.arange(1, 12) / 12) for values in (world.atypicality, confidence)]
    np.testing.assert_allclose(conformal.atypicality_edges_, edges[0])
    np.testing.assert_allclose(conformal.confidence_edges_, edges[1])
    first, second = (part[own] for part in cells_of(conformal, world))
    scores = 1 / world.probs[own, world.labels[own]]
    jittered = scores * (1 + 1e-9 * seeds.draws("fit", 3000)[own])
    phi = soft_groups((12, 12), (3, 3)).reshape(144, 9)
    exact = cutoffs(phi, first * 12 + second, jittered, 0.9 + 1e-9)
    local = local_quantiles((12, 12), first * 12 + second, scores, 0.9 + 1e-9, 0.2 * (2000 / 2700) ** 0.25)
    expected = np.log(np.maximum(np.maximum(exact, local), 1.0)).reshape(12, 12)
    np.testing.assert_allclose(conformal.thresholds_, expected, rtol=1e-12)
    assert (conformal.n_edge_, conformal.n_calibration_, conformal.knots_) == (300, 2700, (3, 3))
    np.testing.assert_array_equal(conformal.soft_groups_.reshape(144, 9), phi)


def test_a_set_is_the_top_class_and_all_within_the_cells_threshold():
    world = make_world(2500, 7, atypical_noise=1.0)
    conformal = fit(ConditionalConformal(0.1), world)
    thresholds = conformal.thresholds_[cells_of(conformal, world)]
    top = world.probs == world.probs.max(axis=1, keepdims=True)
    expected = (-np.log(world.probs) <= thresholds[:, None] + 1e-12) | top
    np.testing.assert_array_equal(predict(conformal, world), expected)


def test_thresholds_are_no_smaller_without_the_local_part():
    world = make_world(2500, 7, atypical_noise=1.0)
    narrow, wide = (fit(ConditionalConformal(bandwidth=h), world) for h in (0.15, 1e6))
    assert (narrow.bandwidth_, wide.bandwidth_) == (0.15, 1e6)
    # a wide kernel is the one conformal quantile of all rows
    _, own = split_rows(2500, 0.1, "edge_fraction", Seeds(0).generator("split"))
    scores = np.sort(-np.log(world.probs[own, world.labels[own]]))
    assert wide.thresholds_.min() >= scores[int(np.ceil(0.9 * 2251)) - 1] * (1 - 1e-12)


def test_one_cell_is_split_conformal_with_lac():
    world = make_world(1000)
    edge_rows = np.arange(1000) < 100
    conformal = ConditionalConformal(0.15, cells=1)
    conformal.fit(world.probs, world.labels, atypicality=world.atypicality, edge_rows=edge_rows)
    split = SplitConformal("lac", 0.15, nonempty=None).fit(world.probs[100:], world.labels[100:])
    assert -np.expm1(-conformal.thresholds_[0, 0]) == pytest.approx(split.threshold_, rel=1e-8)
    assert conformal.soft_groups_.shape == (1, 1, 1)
    assert (conformal.n_edge_, conformal.n_calibration_) == (100, 900)
    # k / (n + 1) with k = ceil(901 * .85) = 766, and the labels that are the top class beyond the threshold
    assert conformal.expected_coverage_[0] >= 766 / 901 - 1e-12


def test_cells_and_knots_are_set_by_the_edge_rows_alone(rng):
    world = make_world(1500)
    _, own = split_rows(1500, 0.1, "edge_fraction", Seeds(0).generator("split"))
    first = fit(ConditionalConformal(), world)
    labels, rarity, probs = world.labels.copy(), world.atypicality.copy(), world.probs.copy()
    labels[own], rarity[own], probs[own] = 0, rng.random(own.size), rng.dirichlet(np.ones(5), own.size)
    second = ConditionalConformal()
    with pytest.warns(UserWarning, match="got 0 in .* 0 in atypical, confident inputs"):  # they have all moved away
        second.fit(probs, labels, atypicality=rarity)
    for name in ("atypicality_edges_", "confidence_edges_", "soft_groups_", "bandwidth_", "knots_"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
    changed = world.labels.copy()
    changed[np.setdiff1d(np.arange(1500), own)] = 0  # labels of edge rows are not used
    third = ConditionalConformal().fit(world.probs, changed, atypicality=world.atypicality)
    np.testing.assert_array_equal(first.thresholds_, third.thresholds_)


# ---------------------------------------------------------------- what it is for


def test_rare_inputs_are_covered_where_one_threshold_fails_them(seed):
    # atypical inputs are noisier than the model says: one threshold for all cannot know it
    world = make_world(16_000, 10, atypical_noise=1.0, random_state=seed)
    calibration, test = world.take(slice(0, 8000)), world.take(slice(8000, None))
    rare = QuantileGroups(6).fit(calibration.atypicality).assign(test.atypicality) == 5
    split = SplitConformal("lac").fit(calibration.probs, calibration.labels)
    assert covered(split.predict_set(test.probs), test.labels)[rare].mean() < 0.85
    hits = covered(predict(fit(ConditionalConformal(), calibration), test), test.labels)
    assert hits.mean() > 0.9 - 4 * np.sqrt(0.09 * (1 / 8000 + 1 / 7200))
    assert hits[rare].mean() > 0.9 - 4 * np.sqrt(0.09 * (1 / rare.sum() + 6 / 7200))


def test_expected_coverage_is_near_the_coverage_of_new_rows(seed):
    world = make_world(24_000, 6, temperature=1.5, atypical_noise=1.0, random_state=seed)
    calibration, test = world.take(slice(0, 4000)), world.take(slice(4000, None))
    conformal = fit(ConditionalConformal(), calibration)
    phi = conformal.soft_groups_[cells_of(conformal, test)]
    found = covered(predict(conformal, test), test.labels) @ phi / phi.sum(axis=0)
    assert (conformal.expected_coverage_ >= 0.9 - 0.01).all()  # of the threshold rows themselves
    spread = 0.3 / np.sqrt((phi.sum(axis=0) ** 2 / (phi**2).sum(axis=0)) * 0.18)
    assert (np.abs(found - conformal.expected_coverage_) < 5 * spread).all()


# ---------------------------------------------------------------- hard input


def test_too_few_rows_give_full_sets_and_name_the_group():
    world = make_world(60)
    with pytest.warns(
        UserWarning,
        match=r"needs at least 100 threshold rows in every group; got 54 in all inputs, whose sets hold all classes",
    ):
        conformal = fit(ConditionalConformal(0.01), world)
    assert conformal.too_few_.all()
    assert np.isinf(conformal.thresholds_).all()
    assert predict(conformal, world).all()


def test_a_corner_with_too_few_rows_is_named_and_only_there_sets_are_full():
    # confident, atypical inputs are missing
    world = make_world(1200)
    confidence = world.probs.max(axis=1)
    conformal = ConditionalConformal(knots=2)
    with pytest.warns(
        UserWarning, match="in atypical, confident inputs, near whose ends sets hold all classes.*fewer knots"
    ):
        conformal.fit(world.probs, world.labels, atypicality=-confidence)
    assert conformal.too_few_[-1, -1]
    assert not conformal.too_few_.all()
    sets = conformal.predict_set(world.probs, atypicality=-confidence)
    assert sets.sum(axis=1).mean() < 3


def test_knots_are_fewer_where_a_corner_is_empty():
    world = make_world(1200)
    conformal = ConditionalConformal()
    conformal.fit(world.probs, world.labels, atypicality=-world.probs.max(axis=1))
    assert not conformal.too_few_.any()


def test_constant_atypicality_leaves_confidence_and_says_so():
    world = make_world(800)
    conformal = ConditionalConformal()
    with pytest.warns(UserWarning, match="atypicality is 1 in all 80 edge rows, so the sets depend on confidence"):
        conformal.fit(world.probs, world.labels, atypicality=np.ones(800))
    assert conformal.thresholds_.shape == (1, 12)
    assert conformal.knots_ == (1, 2)
    sets = [conformal.predict_set(world.probs, atypicality=np.full(800, at)) for at in (-9.0, 1.0, 9.0)]
    np.testing.assert_array_equal(sets[0], sets[1])
    np.testing.assert_array_equal(sets[0], sets[2])


def test_tied_atypicality_has_as_many_cells_as_values():
    world = make_world(2000)
    rarity = (world.atypicality > np.quantile(world.atypicality, 0.7)).astype(float)
    conformal = ConditionalConformal().fit(world.probs, world.labels, atypicality=rarity)
    assert conformal.thresholds_.shape == (2, 12)
    assert conformal.predict_set(world.probs, atypicality=rarity).any(axis=1).all()


@pytest.mark.parametrize("alpha", [0.001, 0.5, 0.999])
def test_extreme_alpha(alpha):
    world = make_world(4000)
    conformal = fit(ConditionalConformal(alpha), world)
    assert covered(predict(conformal, world), world.labels).mean() >= 1 - alpha
    assert not conformal.too_few_.any()  # one knot at .001, where 3600 rows are 3.6 times 1 / alpha


def test_one_class_or_all_predictions_right():
    with pytest.raises(ValueError, match="one column per class; got a single column"):
        ConditionalConformal().fit(np.ones((50, 1)), np.zeros(50, int), atypicality=np.arange(50.0))
    same = np.tile([0.9, 0.1], (50, 1))
    one = ConditionalConformal().fit(same, np.zeros(50, int), atypicality=np.arange(50.0))
    np.testing.assert_array_equal(one.predict_set(same, atypicality=np.arange(50.0)), [[True, False]] * 50)
    world = make_world(500)
    right = ConditionalConformal().fit(world.probs, world.probs.argmax(axis=1), atypicality=world.atypicality)
    sets = predict(right, world)
    assert covered(sets, world.probs.argmax(axis=1)).all()
    certain = np.eye(5)[world.labels]
    right = ConditionalConformal().fit(certain, world.labels, atypicality=world.atypicality)
    np.testing.assert_array_equal(right.predict_set(certain, atypicality=world.atypicality), certain.astype(bool))


def test_labels_of_probability_zero_make_full_sets_where_they_are_common(rng):
    certain = np.eye(5)[rng.integers(0, 5, 400)]
    conformal = ConditionalConformal().fit(certain, rng.integers(0, 5, 400), atypicality=rng.random(400))
    assert conformal.predict_set(certain, atypicality=rng.random(400)).all()
    assert not conformal.too_few_.any()


@pytest.mark.parametrize("n", [2, 3, 9, 12, 30])
def test_few_rows_work(n):
    world = make_world(n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        conformal = fit(ConditionalConformal(), world)
    assert predict(conformal, world).shape == (n, 5)
    assert conformal.too_few_.all() == (conformal.n_calibration_ < 10)


# ---------------------------------------------------------------- repeatability and arrays


def test_blocks_and_threads_change_nothing():
    world = make_world(900, 70, n_features=20)
    expected = predict(fit(ConditionalConformal(), world), world)
    for rows, threads in ((1, 2), (17, 3)):
        with blocks.settings(block_rows=rows, n_threads=threads):
            np.testing.assert_array_equal(predict(fit(ConditionalConformal(), world), world), expected)


def test_order_of_new_rows_and_first_row_do_not_matter(rng):
    world, order = make_world(1000), rng.permutation(1000)
    conformal = fit(ConditionalConformal(), world)
    np.testing.assert_array_equal(predict(conformal, world.take(order)), predict(conformal, world)[order])
    late = conformal.predict_set(world.probs, atypicality=world.atypicality, first_row=10**9)
    np.testing.assert_array_equal(late, predict(conformal, world))


def test_classes_in_another_order_are_the_same_classes(rng):
    world, order = make_world(1000), rng.permutation(5)
    conformal = fit(ConditionalConformal(), world)
    again = ConditionalConformal().fit(
        world.probs[:, order], np.argsort(order)[world.labels], atypicality=world.atypicality
    )
    np.testing.assert_array_equal(again.thresholds_, conformal.thresholds_)


@needs("torch")
def test_torch_in_torch_out():
    import torch

    world = make_world(600)
    conformal = ConditionalConformal().fit(
        torch.from_numpy(world.probs), torch.from_numpy(world.labels), atypicality=torch.from_numpy(world.atypicality)
    )
    sets = conformal.predict_set(torch.from_numpy(world.probs), atypicality=torch.from_numpy(world.atypicality))
    assert isinstance(sets, torch.Tensor)
    np.testing.assert_array_equal(sets.numpy(), predict(fit(ConditionalConformal(), world), world))


def test_constructor_stores_and_clone_copies():
    conformal = ConditionalConformal(7, cells="many", knots=None, bandwidth=-1)
    assert clone(conformal).get_params() == conformal.get_params()


# ---------------------------------------------------------------- bad input

GOOD = make_world(60)


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        ({"alpha": 10}, {}, r"alpha must lie strictly between 0 and 1; got 10. For 10 percent pass 0.1"),
        ({"cells": 0}, {}, "cells must be at least 1; got 0"),
        ({"knots": "three"}, {}, "knots must be one of 'auto'; got 'three'"),
        ({"knots": 13}, {}, r"knots must be in 1 .. 12; got 13"),
        ({"bandwidth": 0}, {}, "bandwidth must be a finite number"),
        ({"bandwidth": "wide"}, {}, "bandwidth must be one of 'auto'; got 'wide'"),
        ({"edge_fraction": 1.5}, {}, r"edge_fraction must be a finite number in \(0, 1\); got 1.5"),
        ({}, {"labels": GOOD.labels - 5}, r"labels must lie in 0 .. 4, the columns"),
        ({}, {"atypicality": GOOD.atypicality[:3]}, "atypicality must have one entry per row; got 3 for 60 rows"),
        ({}, {"atypicality": np.full(60, np.nan)}, "atypicality must be finite; rows 0, 1, 2, 3, 4, ... .* hold NaN"),
        ({}, {"probs": GOOD.probs / 2}, r"probs must have rows summing to 1; row 0 sums to 0\.5"),
        ({}, {"edge_rows": np.ones(60, bool)}, "edge_rows must be a bool mask that marks some rows .* got 60 marked"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_input_is_named(options, changes, message):
    given = {"probs": GOOD.probs, "labels": GOOD.labels, "atypicality": GOOD.atypicality} | changes
    with pytest.raises(ValueError, match=message):
        ConditionalConformal(**options).fit(given.pop("probs"), given.pop("labels"), **given)


def test_one_row_cannot_set_cells_and_thresholds():
    with pytest.raises(ValueError, match="probs must have at least 2 rows to fit on; got 1"):
        fit(ConditionalConformal(), GOOD.take(slice(0, 1)))


def test_prediction_before_fit_is_refused():
    with pytest.raises(NotFittedError):
        predict(ConditionalConformal(), GOOD)


# ---------------------------------------------------------------- in a head


@pytest.fixture(scope="module")
def parts():
    return [world_part(part, n, atypical_noise=1.0).outputs() for part, n in enumerate((500, 1600, 400))]


@pytest.fixture(scope="module")
def head(parts):
    return aty.ReliabilityHead(prediction_sets=ConditionalConformal(0.1)).fit(train=parts[0], calibration=parts[1])


def test_a_head_takes_them(head, parts):
    assert head.sizes_ == {"train": 500, "recalibration": 800, "edges": 80, "thresholds": 720}
    answer = head.predict(parts[2])
    expected = head.prediction_sets_.predict_set(answer.proba, atypicality=answer.atypicality)
    np.testing.assert_array_equal(answer.prediction_set, expected)
    assert "ConditionalConformal" in repr(head)
    assert head.summary()


def test_given_edge_rows_are_the_ones_of_the_split(parts):
    three = aty.three_way_split(parts[1], random_state=0)
    head = aty.ReliabilityHead(prediction_sets=ConditionalConformal()).fit(train=parts[0], calibration=three)
    assert head.prediction_sets_.n_edge_ == len(three.edges)
    assert head.prediction_sets_.n_calibration_ == len(three.thresholds)


def test_a_head_is_evaluated_compared_and_saved_with_them(head, parts, tmp_path):
    evaluation = aty.evaluate(head, parts[2])
    assert "coverage" in str(evaluation)
    methods = {"conditional": ("ts", ConditionalConformal()), "one threshold": ("ts", SplitConformal("lac"))}
    compared = aty.compare(methods, parts[1], train=parts[0], n_splits=2)
    assert "conditional" in str(compared)
    head.save(tmp_path)
    again = aty.load(tmp_path)
    np.testing.assert_array_equal(again.predict(parts[2]).prediction_set, head.predict(parts[2]).prediction_set)
    np.testing.assert_array_equal(again.prediction_sets_.soft_groups_, head.prediction_sets_.soft_groups_)


def test_without_atypicality_a_head_says_what_is_missing(parts):
    plain = aty.ModelOutputs(parts[1].logits, labels=parts[1].labels)
    head = aty.ReliabilityHead(prediction_sets=ConditionalConformal())
    missing = pytest.raises(ValueError, match="prediction_sets=ConditionalConformal needs atypicality: give train=")
    with pytest.warns(UserWarning, match="no train="), missing:
        head.fit(calibration=plain)
