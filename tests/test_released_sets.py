"""Mode "paper" against the released procedure, transcribed here from its description without the package.

One uniform draw per calibration row; a label's score is the sum of the regularised probabilities up to it less the draw
times its own; a set holds every class whose sum before it is at most the threshold, and the top class.
"""

import math

import numpy as np
import pytest
from conftest import load_outputs
from scipy.special import softmax

import atypicality as aty
from atypicality.conformal import AtypicalityAwareConformal
from atypicality.conformal.chance import Seeds
from atypicality.conformal.scores import ScoreRule, label_scores, label_statistics, prediction_sets
from atypicality.datasets import make_world

GRID = (0.001, 0.01, 0.1, 0.2, 0.5)


def regularised(probs, k_reg, penalty):
    order = np.argsort(-probs, axis=1, kind="stable")
    charge = np.where(np.arange(probs.shape[1]) < k_reg, 0.0, penalty)
    return order, np.take_along_axis(probs, order, axis=1) + charge


def score(probs, labels, draws, k_reg, penalty):
    order, values = regularised(probs, k_reg, penalty)
    place = np.nonzero(order == labels[:, None])
    return values.cumsum(axis=1)[place] - draws * values[place]


def threshold(scores, alpha):
    """The exact rank; the largest score where there are too few."""
    return np.sort(scores)[min(math.ceil((scores.size + 1) * (1 - alpha) - 1e-9), scores.size) - 1]


def sets(probs, thresholds, k_reg, penalty):
    order, values = regularised(probs, k_reg, penalty)
    inside = values.cumsum(axis=1) - values <= np.broadcast_to(thresholds, len(probs))[:, None]
    inside[:, 0] = True
    found = np.empty_like(inside)
    np.put_along_axis(found, order, inside, axis=1)
    return found


def tuned(probs, labels, draws, alpha):
    """The rank that holds a share 1 - alpha of the labels; the largest penalty of those with the smallest sets."""
    order = np.argsort(-probs, axis=1, kind="stable")
    k_reg = int(threshold(np.nonzero(order == labels[:, None])[1] + 1, alpha))
    sizes = [sets(probs, threshold(score(probs, labels, draws, k_reg, lam), alpha), k_reg, lam).sum() for lam in GRID]
    return k_reg, GRID[np.flatnonzero(np.array(sizes) == min(sizes))[-1]]


def released(probs, labels, rarity, new, new_rarity, draws, alpha, *, regularise, n_groups):
    k_reg, penalty = tuned(probs, labels, draws, alpha) if regularise else (0, 0.0)
    found = score(probs, labels, draws, k_reg, penalty)
    pairs = [(rarity, new_rarity), (probs.max(axis=1), new.max(axis=1))]
    edges = [np.quantile(old, np.arange(1, n) / n) for (old, _), n in zip(pairs, n_groups, strict=True)]
    old, fresh = (
        np.searchsorted(edges[0], pairs[0][part]) * n_groups[1] + np.searchsorted(edges[1], pairs[1][part])
        for part in (0, 1)
    )
    limits = np.full(math.prod(n_groups), np.inf)
    for cell in np.unique(old):
        limits[cell] = threshold(found[old == cell], alpha)
    return sets(new, limits[fresh], k_reg, penalty)


def parts(seed, dtype=np.float64):
    world = make_world(3200, 12, atypical_noise=1.0, temperature=1.5, random_state=seed)
    probs = world.probs.astype(dtype)
    old, new = slice(0, 1600), slice(1600, None)
    return probs[old], world.labels[old], world.atypicality[old], probs[new], world.atypicality[new]


@pytest.mark.parametrize("alpha", [0.05, 0.1])
@pytest.mark.parametrize("n_groups", [(1, 1), (6, 6), (6, 1)], ids=str)
@pytest.mark.parametrize("name", ["aps", "raps"])
@pytest.mark.filterwarnings("ignore:alpha")  # small cells, which are part of the procedure
def test_paper_mode_agrees_set_by_set_with_the_released_procedure(name, n_groups, alpha, seed):
    probs, labels, rarity, new, new_rarity = parts(seed)
    draws = 1 - Seeds(seed).draws("fit", len(labels))
    conformal = AtypicalityAwareConformal(name, alpha, n_groups=n_groups, mode="paper", random_state=seed)
    ours = conformal.fit(probs, labels, atypicality=rarity).predict_set(new, atypicality=new_rarity)
    theirs = released(
        probs, labels, rarity, new, new_rarity, draws, alpha, regularise=name == "raps", n_groups=n_groups
    )
    np.testing.assert_array_equal(ours, theirs)
    assert len(conformal.thresholds_) == math.prod(n_groups)  # no cell is merged
    assert conformal.n_edge_ == conformal.n_calibration_ == conformal.counts_.sum() == 1600


def test_the_crossing_class_and_its_penalty_by_hand():
    # label second of (.5, .3, .2), k_reg 1, penalty .1: up to it .5 + .3 + .1, own part .4; drawn (1 - u) = d
    probs, labels = np.array([[0.5, 0.3, 0.2]] * 2), np.array([1, 1])
    conformal = AtypicalityAwareConformal("raps", 0.5, n_groups=(1, 1), mode="paper", k_reg=1, penalty=0.1)
    conformal.fit(probs, labels, atypicality=[0.0, 1.0])
    drawn = np.sort(Seeds(0).draws("fit", 2))
    assert conformal.thresholds_ == pytest.approx(0.5 + 0.4 * drawn[1])  # rank 2 of 2
    # before the second class .5, which is within; before the third .5 + .3 + .1 = .9, which is not unless drawn is 1
    assert conformal.predict_set(probs, atypicality=[0.0, 1.0]).tolist() == [[True, True, False]] * 2


def test_aware_raps_reuses_the_parameters_of_plain_raps(seed):
    probs, labels, rarity, _, _ = parts(seed)
    plain, aware = (
        AtypicalityAwareConformal("raps", 0.1, n_groups=cells, mode="paper").fit(probs, labels, atypicality=rarity)
        for cells in ((1, 1), (2, 2))
    )
    assert (plain.k_reg_, plain.penalty_) == (aware.k_reg_, aware.penalty_)


def test_small_cells_take_their_largest_score_and_empty_ones_are_full(seed):
    world = make_world(200, random_state=seed)
    rarity = -world.probs.max(axis=1)  # atypicality falls as confidence rises: the confident atypical corner is empty
    conformal = AtypicalityAwareConformal("aps", 0.05, n_groups=(2, 8), mode="paper")
    with pytest.warns(
        UserWarning, match=r"needs at least 19 threshold rows .* any other its largest score as threshold"
    ):
        conformal.fit(world.probs, world.labels, atypicality=rarity)
    assert conformal.counts_.tolist() == [0] * 4 + [25] * 8 + [0] * 4
    np.testing.assert_array_equal(conformal.too_few_, conformal.counts_ == 0)
    assert conformal.predict_set(np.eye(5)[:1], atypicality=[9.0]).all()
    small = AtypicalityAwareConformal("aps", 0.05, n_groups=(1, 20), mode="paper")
    with pytest.warns(UserWarning, match="10 in region 0"):
        small.fit(world.probs, world.labels, atypicality=rarity)
    assert np.isfinite(small.thresholds_).all()


def test_paper_mode_refuses_randomised_sets():
    with pytest.raises(ValueError, match='randomized must be False in mode="paper"'):
        AtypicalityAwareConformal("aps", mode="paper", randomized=True).fit([[0.5, 0.5]], [0], atypicality=[0.0])


@pytest.mark.filterwarnings("ignore:alpha")  # a dozen cells have fewer rows than 95 % needs
def test_cifar100_sets_are_those_of_the_released_procedure():
    """Stated for the released procedure over four halves: 13.6 at .975, 10.8 at .976, near 1.1 where confident."""
    test, train = (load_outputs("cifar100-wrn28-10", part) for part in ("test", "train_statistics"))
    density = aty.GaussianAtypicality.from_statistics(train["counts"], train["means"], train["covariance"])
    rarity = density.atypicality(test["embeddings"])
    logits, labels = test["logits"].astype(np.float64), test["labels"].astype(int)
    rows = []
    for seed in range(4):
        scale, fit, new = np.split(np.random.default_rng(seed).permutation(10_000), [2500, 5000])
        probs = softmax(logits * aty.TemperatureScaling().fit(logits[scale], labels[scale]).multiplier(), axis=1)
        found = []
        for cells in ((1, 1), (6, 6)):
            conformal = AtypicalityAwareConformal("aps", 0.05, n_groups=cells, mode="paper", random_state=seed)
            conformal.fit(probs[fit], labels[fit], atypicality=rarity[fit])
            held = conformal.predict_set(probs[new], atypicality=rarity[new])
            confident = probs[new].max(axis=1) > np.quantile(probs[fit].max(axis=1), 5 / 6)
            covered = held[np.arange(5000), labels[new]].mean()
            found += [held.sum(axis=1).mean(), covered, held[confident].sum(axis=1).mean()]
        rows.append(found)
    plain, cover, _, aware, aware_cover, confident = np.mean(rows, axis=0)
    # the sizes of single halves spread by 1.0 and coverages by .003 (standard deviations); four of them by half of that
    assert plain == pytest.approx(13.6, abs=1.5)
    assert aware == pytest.approx(10.8, abs=1.5)
    assert (cover, aware_cover) == pytest.approx((0.975, 0.976), abs=0.005)
    assert confident < 1.2


def test_tied_classes_share_the_score_of_the_last_of_them():
    # before the last of the tied pair .5 + .25 = .75; a threshold of .75 takes both, one below takes neither
    probs = np.array([[0.5, 0.25, 0.25]])
    rule = ScoreRule("aps", "after", crossing=True)
    for limit, expected in ((0.75, [True, True, True]), (0.74, [True, False, False])):
        assert prediction_sets(probs, np.array([limit]), rule)[0].tolist() == expected
    found = label_statistics(probs, np.array([2]))
    assert label_scores(found, rule, np.array([0.5])).tolist() == [0.875]  # .75 + half of .25


def test_sets_of_a_file_that_knows_no_crossing_class_are_those_it_had():
    world = make_world(400)
    conformal = AtypicalityAwareConformal("aps", n_groups=(1, 1), mode="paper")
    conformal.fit(world.probs, world.labels, atypicality=world.atypicality)
    conformal.crossing_ = False  # what a file from before has
    expected = prediction_sets(world.probs, np.full(400, conformal.thresholds_[0]), ScoreRule("aps", "score"))
    np.testing.assert_array_equal(conformal.predict_set(world.probs, atypicality=world.atypicality), expected)
