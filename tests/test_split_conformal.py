import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from conftest import needs
from scipy import stats
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from atypicality import blocks
from atypicality.conformal import SplitConformal
from atypicality.conformal.chance import Seeds
from atypicality.conformal.scores import ScoreRule, label_scores, label_statistics
from atypicality.conformal.threshold import conformal_rank, conformal_threshold, coverage_law
from atypicality.conformal.tuning import PENALTIES, tune
from atypicality.datasets import make_world

SCORES = ["lac", "aps", "raps", "saps"]
LAWS = [(1, 0.5, 300), (5, 0.2, 300), (20, 0.1, 300), (50, 0.1, 600), (200, 0.05, 1000)]
"""Rows, alpha, and repetitions that show one rank more or less: the more rows, the closer its law."""


def hits(sets, labels):
    return sets[np.arange(len(labels)), labels]


def two_classes(scores):
    """Probabilities whose first class has the given LAC scores."""
    return np.stack([1 - scores, scores], axis=1)


def ranks_in_law(counts, law, rng):
    """Randomised probability integral transform: uniform exactly when the counts follow the law."""
    first, last = law.support()
    chance, place = law.pmf(np.arange(first, last + 1)), np.asarray(counts) - first  # a sum for each count takes long
    return (np.cumsum(chance) - chance)[place] + rng.random(len(counts)) * chance[place]


# ---------------------------------------------------------------- the exact law


@pytest.mark.parametrize(("n", "alpha", "repeats"), LAWS)
def test_hits_follow_the_beta_binomial(n, alpha, repeats, rng):
    n_test, zeros, counts = 1000, np.zeros(n, int), []
    conformal = SplitConformal("lac", alpha, nonempty=None)
    for _ in range(repeats):
        conformal.fit(two_classes(rng.random(n)), zeros)
        counts.append(conformal.predict_set(two_classes(rng.random(n_test)))[:, 0].sum())
    law, rank = coverage_law(n, alpha, n_test=n_test), conformal_rank(n, alpha)
    assert stats.kstest(ranks_in_law(counts, law, rng), "uniform").pvalue > 1e-6
    assert abs(np.mean(counts) - law.mean()) < 4.5 * law.std() / math.sqrt(repeats)
    for wrong in {max(1, rank - 1), min(n, rank + 1)} - {rank}:  # one rank away is seen
        other = stats.betabinom(n_test, wrong, n + 1 - wrong)
        assert stats.kstest(ranks_in_law(counts, other, rng), "uniform").pvalue < 1e-6


@pytest.mark.parametrize("score", ["aps", "raps", "saps"])
def test_randomised_scores_follow_the_law_too(score, seed):
    n, n_test, alpha, repeats, rng = 30, 100, 0.2, 600, np.random.default_rng(seed)
    world = make_world(repeats * (n + n_test), 4, random_state=seed)
    options = {"raps": {"k_reg": 1, "penalty": 0.1}, "saps": {"penalty": 0.1}}.get(score, {})
    counts = []
    for repeat in range(repeats):
        rows = slice(repeat * (n + n_test), (repeat + 1) * (n + n_test))
        probs, labels = softmax(world.logits[rows], axis=1), world.labels[rows]
        conformal = SplitConformal(score, alpha, nonempty=None, randomized=True, random_state=repeat, **options)
        conformal.fit(probs[:n], labels[:n])
        counts.append(hits(conformal.predict_set(probs[n:]), labels[n:]).sum())
    law = coverage_law(n, alpha, n_test=n_test)
    assert stats.kstest(ranks_in_law(counts, law, rng), "uniform").pvalue > 1e-6
    assert abs(np.mean(counts) - law.mean()) < 4.5 * law.std() / math.sqrt(repeats)


@pytest.mark.parametrize("nonempty", ["score", "after"])
@pytest.mark.parametrize("score", SCORES)
def test_with_the_top_class_inside_coverage_is_never_below_the_law(score, nonempty, seed):
    n, n_test, alpha, repeats, rng = 30, 100, 0.2, 300, np.random.default_rng(seed)
    world = make_world(repeats * (n + n_test), 6, atypical_noise=1.0, random_state=seed)
    options = {"raps": {"k_reg": 1, "penalty": 0.1}, "saps": {"penalty": 0.1}}.get(score, {})
    conformal, counts = SplitConformal(score, alpha, nonempty=nonempty, **options), []
    for repeat in range(repeats):
        rows = slice(repeat * (n + n_test), (repeat + 1) * (n + n_test))
        probs, labels = softmax(world.logits[rows], axis=1), world.labels[rows]
        sets = conformal.fit(probs[:n], labels[:n]).predict_set(probs[n:])
        assert sets.any(axis=1).all()
        counts.append(hits(sets, labels[n:]).sum())
    ranks = ranks_in_law(counts, coverage_law(n, alpha, n_test=n_test), rng)
    assert stats.kstest(ranks, "uniform", alternative="greater").pvalue > 1e-6  # one-sided: too few hits


# ---------------------------------------------------------------- ties, zeros and saturation


def test_certain_rows_do_not_drag_all_classes_in(rng):
    # always right and sure: a set holds the top class and nothing else
    labels = rng.integers(0, 5, 200)
    sets = SplitConformal("aps", 0.1).fit(np.eye(5)[labels], labels).predict_set(np.eye(5)[labels])
    np.testing.assert_array_equal(sets, np.eye(5, dtype=bool)[labels])


def test_sets_may_be_empty_only_when_allowed(rng):
    scores = rng.random(100)
    probs, labels = two_classes(scores), np.zeros(100, int)
    strict = SplitConformal("lac", 0.7, nonempty=None).fit(probs, labels)
    assert not strict.predict_set([[0.5, 0.5]]).any()
    for nonempty in ("score", "after"):
        kind = SplitConformal("lac", 0.7, nonempty=nonempty).fit(probs, labels)
        assert kind.predict_set([[0.4, 0.6]]).tolist() == [[False, True]]


def test_adding_the_top_class_afterwards_wastes_alpha(seed):
    # deterministic APS gives sure rows scores near 1, which set the threshold; scored 0 they do not
    world = make_world(6000, 10, temperature=1.0, random_state=seed)
    sizes = {}
    for nonempty in ("score", "after"):
        conformal = SplitConformal("aps", 0.1, nonempty=nonempty).fit(world.probs[:3000], world.labels[:3000])
        sizes[nonempty] = conformal.predict_set(world.probs[3000:]).sum(axis=1).mean()
    assert sizes["score"] < 0.9 * sizes["after"]


# ---------------------------------------------------------------- few rows


@pytest.mark.parametrize("score", SCORES)
def test_too_few_rows_give_full_sets_and_say_so(score):
    world = make_world(5)
    conformal = SplitConformal(score, 0.05)
    with pytest.warns(UserWarning, match=r"alpha=0.05 needs at least 19 calibration rows; got [45], so every set"):
        conformal.fit(world.probs, world.labels)
    assert conformal.too_few_
    assert conformal.threshold_ == math.inf
    assert conformal.predict_set(world.probs).all()


@pytest.mark.parametrize("n", range(1, 21))
def test_tiny_calibration_sets_are_finite_exactly_when_they_can_be(n, rng):
    conformal = SplitConformal("lac", 0.1, nonempty=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        conformal.fit(two_classes(rng.random(n)), np.zeros(n, int))
    assert math.isfinite(conformal.threshold_) == (n >= 9) == (not conformal.too_few_)


def test_a_class_absent_from_calibration_is_no_obstacle():
    world = make_world(400)
    rows = world.labels != 2
    sets = SplitConformal("aps", 0.1).fit(world.probs[rows], world.labels[rows]).predict_set(world.probs)
    assert sets[:, 2].any()


# ---------------------------------------------------------------- parameters


def test_k_reg_is_the_rank_that_holds_most_labels():
    # ranks of 9 labels: 1 x 5, 2 x 3, 3 x 1; at alpha = .2 the ceil(10 * .8) = 8th smallest is 2
    probs = np.array([[0.6, 0.3, 0.1]] * 9)
    found = label_statistics(probs, np.array([0] * 5 + [1] * 3 + [2]))
    assert tune(ScoreRule("raps"), probs, found, Fraction(1, 5)).k_reg == 2
    assert tune(ScoreRule("raps"), probs, found, Fraction(1, 20)).k_reg == 3  # too few rows: the largest seen


@pytest.mark.parametrize("score", ["raps", "saps"])
def test_penalty_is_the_largest_of_those_with_the_smallest_sets(score, seed):
    alpha, world = Fraction(1, 10), make_world(600, 8, atypical_noise=0.5, random_state=seed)
    found = label_statistics(world.probs, world.labels)
    chosen = tune(ScoreRule(score), world.probs, found, alpha)
    sizes = {}
    for penalty in PENALTIES[score]:
        rule = ScoreRule(score, "score", chosen.k_reg, penalty)
        threshold = conformal_threshold(label_scores(found, rule), alpha)
        every = np.stack(
            [label_scores(label_statistics(world.probs, np.full(600, label)), rule) for label in range(8)], axis=1
        )
        sizes[penalty] = (every <= threshold).sum()
    assert chosen.penalty == max(penalty for penalty, size in sizes.items() if size == min(sizes.values()))


def test_tuning_rows_carry_no_threshold(seed):
    world = make_world(500, random_state=seed)
    conformal = SplitConformal("raps", 0.1, tuning_fraction=0.3, random_state=seed).fit(world.probs, world.labels)
    assert (conformal.n_tuning_, conformal.n_calibration_) == (150, 350)
    given = SplitConformal("raps", 0.1, k_reg=conformal.k_reg_, penalty=conformal.penalty_)
    given.fit(world.probs, world.labels)
    assert (given.n_tuning_, given.n_calibration_) == (0, 500)
    assert (given.k_reg_, given.penalty_) == (conformal.k_reg_, conformal.penalty_)


def test_one_given_parameter_is_kept_and_the_other_tuned():
    world = make_world(500)
    kept = SplitConformal("raps", k_reg=3).fit(world.probs, world.labels)
    assert kept.k_reg_ == 3
    assert kept.penalty_ in PENALTIES["raps"]
    kept = SplitConformal("raps", penalty=0.07).fit(world.probs, world.labels)
    assert kept.penalty_ == 0.07
    assert kept.k_reg_ >= 1


def test_scores_without_parameters_use_every_row():
    world = make_world(100)
    conformal = SplitConformal("aps").fit(world.probs, world.labels)
    assert (conformal.n_calibration_, conformal.k_reg_, conformal.penalty_) == (100, None, None)


# ---------------------------------------------------------------- chance


def test_draws_of_fit_and_prediction_differ_and_repeat():
    seeds = Seeds(7)
    first, second = seeds.draws("fit", 1000), seeds.draws("predict", 1000)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.15  # 4.7 standard errors of independent draws
    np.testing.assert_array_equal(second[:10], Seeds(7).draws("predict", 10))


@pytest.mark.parametrize("first_row", [0, 1, 6, 999_983])
def test_a_rows_draw_depends_on_its_number_alone(first_row):
    whole = Seeds(7).draws("predict", first_row + 20)
    np.testing.assert_array_equal(Seeds(7).draws("predict", 20, first_row=first_row), whole[first_row:])


def test_draws_are_those_of_earlier_versions():
    # sets of bundles in use must not change: the stream of the third child of SeedSequence(7)
    expected = np.random.default_rng(np.random.SeedSequence(7).spawn(3)[2]).random(100)
    np.testing.assert_array_equal(Seeds(7).draws("predict", 100), expected)


def test_a_part_has_the_sets_that_it_has_in_the_whole():
    world = make_world(1000)
    conformal = SplitConformal("aps", randomized=True).fit(world.probs, world.labels)
    whole = conformal.predict_set(world.probs)
    np.testing.assert_array_equal(conformal.predict_set(world.probs[350:700], first_row=350), whole[350:700])
    assert (conformal.predict_set(world.probs[350:700]) != whole[350:700]).any()  # or the test could not fail
    with pytest.raises(ValueError, match=r"first_row must be .*; got -1"):
        conformal.predict_set(world.probs, first_row=-1)


def test_same_seed_same_sets_and_other_seed_other_sets():
    world = make_world(1000)

    def sets(seed):
        conformal = SplitConformal("aps", randomized=True, random_state=seed).fit(world.probs, world.labels)
        np.testing.assert_array_equal(conformal.predict_set(world.probs), conformal.predict_set(world.probs))
        return conformal.predict_set(world.probs)

    np.testing.assert_array_equal(sets(1), sets(1))
    assert (sets(1) != sets(2)).any()


def test_without_a_seed_a_fitted_object_still_repeats_itself():
    world = make_world(300)
    conformal = SplitConformal("aps", randomized=True, random_state=None).fit(world.probs, world.labels)
    np.testing.assert_array_equal(conformal.predict_set(world.probs), conformal.predict_set(world.probs))


def test_the_global_generator_is_left_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    world = make_world(200)
    SplitConformal("raps", randomized=True).fit(world.probs, world.labels).predict_set(world.probs)
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("score", SCORES)
def test_blocks_and_threads_change_nothing(score):
    world = make_world(700, 80, n_features=20)
    conformal = SplitConformal(score, randomized=score != "lac")
    expected = conformal.fit(world.probs, world.labels).predict_set(world.probs)
    for rows, threads in ((1, 2), (13, 3)):
        with blocks.settings(block_rows=rows, n_threads=threads):
            sets = clone(conformal).fit(world.probs, world.labels).predict_set(world.probs)
        np.testing.assert_array_equal(sets, expected)


# ---------------------------------------------------------------- arrays and estimator rules


def test_constructor_stores_and_clone_copies():
    conformal = SplitConformal("nonsense", 7, k_reg=None)
    assert clone(conformal).get_params() == conformal.get_params()


def test_refitting_forgets():
    world = make_world(400)
    conformal = SplitConformal("aps", 0.2).fit(world.probs[:50], world.labels[:50])
    conformal.fit(world.probs, world.labels)
    assert conformal.threshold_ == SplitConformal("aps", 0.2).fit(world.probs, world.labels).threshold_


def test_no_rows_give_no_sets():
    world = make_world(100)
    conformal = SplitConformal("aps").fit(world.probs, world.labels)
    assert conformal.predict_set(np.empty((0, 5))).shape == (0, 5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
def test_any_float_dtype(dtype):
    world = make_world(400)
    probs = world.probs.astype(dtype)
    sets = SplitConformal("aps").fit(probs[:200], world.labels[:200]).predict_set(probs[200:])
    assert hits(sets, world.labels[200:]).mean() > 0.8


def test_memory_map(tmp_path):
    world = make_world(300)
    np.save(tmp_path / "probs.npy", world.probs)
    probs = np.load(tmp_path / "probs.npy", mmap_mode="r")
    sets = SplitConformal("raps").fit(probs, world.labels).predict_set(probs)
    np.testing.assert_array_equal(sets, SplitConformal("raps").fit(world.probs, world.labels).predict_set(world.probs))


@needs("torch")
def test_torch_in_torch_out():
    import torch

    world = make_world(300)
    probs = torch.from_numpy(world.probs)
    conformal = SplitConformal("raps").fit(probs, torch.from_numpy(world.labels))
    sets = conformal.predict_set(probs)
    assert isinstance(sets, torch.Tensor)
    np.testing.assert_array_equal(sets.numpy(), conformal.predict_set(world.probs))


# ---------------------------------------------------------------- bad input

GOOD = make_world(50)


@pytest.mark.parametrize(
    ("options", "probs", "labels", "message"),
    [
        (
            {"alpha": 5},
            GOOD.probs,
            GOOD.labels,
            r"alpha must lie strictly between 0 and 1; got 5. For 5 percent pass 0.05",
        ),
        ({"alpha": 0.0}, GOOD.probs, GOOD.labels, "alpha must lie strictly between 0 and 1; got 0"),
        ({"score": "tops"}, GOOD.probs, GOOD.labels, "score must be one of"),
        (
            {"score": "raps", "tuning_fraction": 1.0},
            GOOD.probs,
            GOOD.labels,
            r"tuning_fraction must be a finite number in \(0, 1\)",
        ),
        ({"random_state": -1}, GOOD.probs, GOOD.labels, "random_state must be at least 0; got -1"),
        ({}, GOOD.logits, GOOD.labels, "probs must lie between 0 and 1; row 0 .* Are these logits"),
        ({}, GOOD.probs * 0.9, GOOD.labels, r"probs must have rows summing to 1; row 0 sums to 0\.9"),
        ({}, np.where(np.arange(50)[:, None] == 7, np.nan, GOOD.probs), GOOD.labels, "probs must be finite; row 7"),
        ({}, GOOD.probs, GOOD.labels + 5, r"labels must lie in 0 .. 4, the columns"),
        ({}, GOOD.probs, GOOD.labels[:10], "labels must have one entry per row; got 10 for 50"),
        ({"score": "raps"}, GOOD.probs[:0], GOOD.labels[:0], "probs must have at least 2 rows to fit on; got 0"),
        (
            {"score": "raps"},
            GOOD.probs[:1],
            GOOD.labels[:1],
            "at least 2 rows .* got 1. Give more rows, or give k_reg and penalty",
        ),
        ({}, GOOD.probs[:0], GOOD.labels[:0], "probs must have at least 1 row to fit on; got 0"),
        ({}, GOOD.probs[0], GOOD.labels, "probs must be two-dimensional"),
    ],
    ids=lambda value: str(value)[:25] if not isinstance(value, np.ndarray) else "",
)
def test_bad_input_is_named(options, probs, labels, message):
    with pytest.raises(ValueError, match=message):
        SplitConformal(**options).fit(probs, labels)


def test_labels_of_another_type_are_refused():
    with pytest.raises(TypeError, match="labels must be integer column indices; got dtype float64"):
        SplitConformal().fit(GOOD.probs, GOOD.labels.astype(float))


def test_another_number_of_classes_is_refused():
    conformal = SplitConformal("aps").fit(GOOD.probs, GOOD.labels)
    with pytest.raises(ValueError, match="probs must have 5 columns, one per class as when it was fitted; got 4"):
        conformal.predict_set(np.full((1, 4), 0.25))


def test_prediction_before_fit_is_refused():
    with pytest.raises(NotFittedError):
        SplitConformal().predict_set(GOOD.probs)
