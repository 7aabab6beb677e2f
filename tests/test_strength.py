"""The choice of strengths: maximal evidence, checked against a direct search, simulated priors and exact algebra."""

import numpy as np
import pytest
from scipy.special import softmax

from atypicality.datasets.worlds import make_world
from atypicality.recalibration import AtypicalityAwareRecalibration, passes
from atypicality.recalibration import strength as chosen
from atypicality.recalibration.quadratic import EXACT_UP_TO, _Blocks, picture_at
from atypicality.recalibration.solver import Problem, hessian, solve
from atypicality.recalibration.strength import (
    choose_strengths,
    given_strengths,
    groups_of,
    penalty_of,
    temperature_start,
)


def scored_world(rng, n=3000, k=40, deviation=0.7):
    """Logits whose labels follow ``softmax(z + S)``, the scores S drawn from a Gaussian."""
    logits = 2 * rng.standard_normal((n, k))
    scores = deviation * rng.standard_normal(k)
    truth = softmax(logits + scores, axis=1)
    labels = (truth.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return logits, np.minimum(labels, k - 1), scores


def mixed_problem(rng, mixing, n=600, k=4):
    world = make_world(n, k, temperature=2.0, atypical_noise=0.8, random_state=rng)
    a = (world.atypicality - world.atypicality.mean()) / world.atypicality.std()
    return Problem(
        world.logits, world.labels, features=np.stack([np.ones(n), a, a**2], axis=1), class_scores=True, mixing=mixing,
        middle=0.5,
    )  # fmt: skip


def keep_all(monkeypatch):
    """No group is left out, however little it is supported."""
    for name, value in (("SUPPORTED", -1e9), ("USED", -1e9), ("FEW", 1e-300)):
        monkeypatch.setattr(chosen, name, value)


def log_evidence(problem, groups, strengths):
    """Laplace's approximation of the log of the integrated likelihood, from its definition."""
    penalised = problem.with_penalty(penalty_of(problem, groups, strengths))
    solution = solve(penalised, start=temperature_start(problem))
    eye = np.eye(problem.n_parameters)
    kept = np.linalg.eigh(penalised.project(eye))
    basis = kept[1][:, kept[0] > 0.5]  # of the parameters that the projection leaves
    n = problem.n_rows
    determinant = np.linalg.slogdet(n * basis.T @ hessian(penalised, solution) @ basis)[1]
    free = np.diag(penalised.project(eye))
    prior = sum(free[index].sum() * np.log(n * strengths[name]) for name, index in groups.items())
    return -n * solution.objective + 0.5 * prior - 0.5 * determinant


# -- the fixed point ---------------------------------------------------------------------------------------------------


def test_the_fixed_point_of_a_picture_is_where_plain_updates_end(rng):
    problem = mixed_problem(rng, "diagonal")
    groups, n = groups_of(problem), float(problem.n_rows)
    first = dict.fromkeys(groups, 1e-3)
    penalised = problem.with_penalty(penalty_of(problem, groups, first))
    solution = solve(penalised, start=temperature_start(problem))
    picture = picture_at(penalised, penalised.standardise(solution))
    plain = dict(first)
    for _ in range(3000):  # MacKay's updates, one after the other, within the same limits
        theta, spread = picture.move(penalty_of(problem, groups, plain))
        for name, index in groups.items():
            effective = float(picture.free[index].sum() - plain[name] * spread[index].sum())
            step = effective / (n * float(theta[index] @ theta[index]))
            plain[name] = min(max(step, first[name] / chosen.FALL), first[name] * chosen.RISE)
    found, _ = chosen._fixed_point(picture, groups, first, n, 1e8)
    for name in groups:  # updates end where the next would change a logarithm by 0.01 at most
        assert abs(np.log(found[name] / plain[name])) < 0.05


def test_an_optimum_with_the_curvature_of_the_choice_is_the_optimum(rng, monkeypatch):
    problem = mixed_problem(rng, "diagonal")
    found = choose_strengths(problem, groups_of(problem), problem.n_rows)
    assert found.curvature is not None
    gathered = []
    evaluate = passes.evaluate
    monkeypatch.setattr(passes, "evaluate", lambda *args: gathered.append(args[2]) or evaluate(*args))
    kept, warm = chosen.solve_chosen(problem, found)
    assert gathered.count("exact") <= 1  # that of the choice serves
    groups = groups_of(kept)
    assert set(groups) == set(found.strengths)
    cold = solve(kept.with_penalty(penalty_of(kept, groups, found.strengths)))
    assert max(warm.certificate, cold.certificate) <= 2e-10
    assert warm.objective == pytest.approx(cold.objective, abs=4e-10)


def test_strength_of_scores_is_that_of_their_prior(seed, monkeypatch):
    # k scores of standard deviation 0.7 are seen almost exactly: log of their precision has deviation sqrt(2 / k)
    monkeypatch.setattr(chosen, "CAUTION", 0.0)
    logits, labels, scores = scored_world(np.random.default_rng(seed))
    problem = Problem(logits, labels, class_scores=True)
    found = choose_strengths(problem, groups_of(problem), labels.size)
    assert abs(np.log(found.strengths["class_scores"] * labels.size * 0.7**2)) < 4 * np.sqrt(2 / scores.size)
    assert 30 < found.effective["class_scores"] <= 39


@pytest.mark.parametrize("mixing", ["diagonal", "full"])
def test_evidence_is_maximal_at_the_chosen_strengths(rng, monkeypatch, mixing):
    monkeypatch.setattr(chosen, "CAUTION", 0.0)
    keep_all(monkeypatch)
    problem = mixed_problem(rng, mixing)
    groups = groups_of(problem)
    found = choose_strengths(problem, groups, problem.n_rows, tolerance=1e-3, max_iter=60)
    best = log_evidence(problem, groups, found.strengths)
    for name in groups:
        if found.effective[name] < 0.3:  # on its way out: the evidence has no maximum, only a limit
            continue
        for factor in (0.5, 2.0):
            moved = {**found.strengths, name: factor * found.strengths[name]}
            # MacKay's update leaves out how the Hessian itself changes with the strength: a small part of a nat
            assert log_evidence(problem, groups, moved) < best + 0.05, (name, factor)


def test_caution_adds_one_standard_error_of_the_log_strength(rng, monkeypatch):
    keep_all(monkeypatch)
    problem = mixed_problem(rng, "diagonal")
    groups = groups_of(problem)
    cautious = choose_strengths(problem, groups, problem.n_rows)
    monkeypatch.setattr(chosen, "CAUTION", 0.0)
    plain = choose_strengths(problem, groups, problem.n_rows)
    for name in groups:
        ratio = cautious.strengths[name] / plain.strengths[name]
        if cautious.strengths[name] < 1:  # not at the largest strength
            assert np.log(ratio) == pytest.approx(np.sqrt(2 / plain.effective[name]), rel=1e-6)
        assert ratio >= 1


@pytest.mark.parametrize("left", [1.0, 0.6, 0.1])
def test_a_term_keeps_the_share_that_it_is_left(rng, monkeypatch, left):
    monkeypatch.setattr(chosen, "CAUTION", 0.0)
    problem = mixed_problem(rng, None).with_terms([], class_scores=False, mixing=None)
    problem = problem.with_features(problem.features[:, :2])
    strength = np.array([0.0, 0.01])
    penalised = problem.with_penalty(strength)
    picture = picture_at(penalised, penalised.standardise(solve(penalised)))
    before, spread = picture.move(strength)
    after, _ = picture.move(strength * chosen._caution(1 - 0.01 * spread[1], 1, left))
    assert after[1] == pytest.approx(left * before[1], rel=1e-6)


@pytest.mark.parametrize(
    ("n", "much", "little"), [(50, 0.875, 1 / 12), (200, 0.875, 1 / 3), (400, 0.9375, 1 / 3), (2000, 0.9875, 0.480385)]
)
def test_less_is_kept_of_what_little_evidence_supports(n, much, little):
    gate = chosen._Gate(None, {}, n, 1.0)
    gate._together = {"rank": 12.0, "top": 1.0, "class_scores": 16.0}
    assert gate.share_left("rank") == pytest.approx(much)
    assert gate.share_left("top") == pytest.approx(little, abs=1e-6)
    assert gate.share_left("class_scores") == pytest.approx(1 - (1 - much) / 8)


def test_groups_without_support_vanish(seed):
    world = make_world(500, 4, temperature=2.0, random_state=seed)  # temperature scaling is the truth
    a = np.random.default_rng(seed + 1000).standard_normal(500)
    problem = Problem(world.logits, world.labels, features=np.stack([np.ones(500), a], axis=1), class_scores=True)
    groups = groups_of(problem)
    found = choose_strengths(problem, groups, 500)
    assert found.strengths == {}
    assert set(found.evidence) == set(groups)


def test_more_rows_loosen_the_ridge(rng):
    logits, labels, _ = scored_world(rng, n=8000, k=5)
    strengths = []
    for n in (500, 8000):
        problem = Problem(logits[:n], labels[:n], class_scores=True)
        strengths.append(choose_strengths(problem, groups_of(problem), n).strengths["class_scores"])
    assert strengths[1] < strengths[0] / 4  # of the mean loss: the prior is worth fewer and fewer rows


def test_separable_rows_leave_only_the_temperature():
    logits, labels = 5 * np.eye(3)[np.arange(30) % 3], np.arange(30) % 3
    problem = Problem(logits, labels, class_scores=True, mixing="full")
    found = choose_strengths(problem, groups_of(problem), 30)
    assert found.strengths == {}


# -- groups and strengths ----------------------------------------------------------------------------------------------


def test_groups_part_the_penalised_parameters(rng):
    problem = mixed_problem(rng, "full")
    groups = groups_of(problem)
    assert list(groups) == ["multiplier", "class_scaling", "class_mixing", "class_scores"]
    assert sorted(np.concatenate(list(groups.values()))) == list(range(1, problem.n_parameters))
    assert groups["class_scaling"].size == 4
    assert groups["class_mixing"].size == 12
    strengths = {name: float(i + 1) for i, name in enumerate(groups)}
    penalty = problem.with_penalty(penalty_of(problem, groups, strengths)).penalty
    assert penalty[0] == 0
    for name, index in groups.items():
        assert (penalty[index] == strengths[name]).all()


def test_given_strengths():
    groups = {"multiplier": np.array([1]), "class_scores": np.array([2, 3])}
    assert given_strengths(0.5, groups) == {"multiplier": 0.5, "class_scores": 0.5}
    assert given_strengths({"multiplier": 1, "class_scores": 0, "class_density": 3}, groups) == {
        "multiplier": 1.0,
        "class_scores": 0.0,
    }
    with pytest.raises(ValueError, match="missing are class_scores"):
        given_strengths({"multiplier": 1}, groups)
    with pytest.raises(TypeError, match=r"strength\['class_scores'\] must be a number"):
        given_strengths({"multiplier": 1, "class_scores": "much"}, groups)


# -- mixing from the middle --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixing", ["diagonal", "full"])
def test_mixing_is_its_formula(rng, mixing):
    problem = mixed_problem(rng, mixing)
    groups = groups_of(problem)
    strengths = dict.fromkeys(groups, 0.01)
    found = solve(problem.with_penalty(penalty_of(problem, groups, strengths)), start=temperature_start(problem))
    u = problem.logits - problem.logits.max(axis=1, keepdims=True)
    x = problem.logits - 0.5 * (problem.logits.max(axis=1, keepdims=True) + problem.logits.mean(axis=1, keepdims=True))
    mixed = x * found.mixing if mixing == "diagonal" else x @ found.mixing.T
    scores = u * (problem.features @ found.coefficients)[:, None] + mixed + found.scores
    probs = softmax(scores, axis=1)
    assert found.loss == pytest.approx(-np.log(probs[np.arange(problem.n_rows), problem.labels]).mean(), abs=1e-9)
    penalised = problem.with_penalty(penalty_of(problem, groups, strengths))
    theta = penalised.standardise(found)
    assert found.objective == pytest.approx(found.loss + 0.005 * (theta[1:] @ theta[1:]), abs=1e-9)


def test_strong_mixing_leaves_the_diagonal_alone(rng):
    """With the rest of the matrix shrunk to nothing, a full matrix is a diagonal one."""
    full, diagonal = (
        mixed_problem(np.random.default_rng(3), "full"),
        mixed_problem(np.random.default_rng(3), "diagonal"),
    )
    strengths = {"multiplier": 0.1, "class_scaling": 0.01, "class_mixing": 1e6, "class_scores": 0.1}
    start = temperature_start(full)
    a = solve(full.with_penalty(penalty_of(full, groups_of(full), strengths)), start=start)
    b = solve(
        diagonal.with_penalty(penalty_of(diagonal, groups_of(diagonal), strengths)), start=temperature_start(diagonal)
    )
    # the diagonal has mean 0 in the diagonal problem only: its mean is shrunk in the full one, where the free
    # temperature takes it over, up to the little that the penalty leaves
    np.testing.assert_allclose(np.diag(a.mixing) - np.diag(a.mixing).mean(), b.mixing, atol=1e-3)


# -- the quadratic picture ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixing", ["diagonal", "full"])
def test_picture_is_exact_where_it_was_taken(rng, mixing):
    problem = mixed_problem(rng, mixing)
    groups = groups_of(problem)
    penalised = problem.with_penalty(penalty_of(problem, groups, dict.fromkeys(groups, 0.02)))
    solution = solve(penalised, start=temperature_start(problem))
    theta = penalised.standardise(solution)
    moved, spread = picture_at(penalised, theta).move(penalised.penalty)
    np.testing.assert_allclose(moved, theta, atol=1e-6)
    inverse = penalised.project(np.linalg.inv(hessian(penalised, solution)))
    np.testing.assert_allclose(spread, np.diag(inverse), rtol=1e-6, atol=1e-9)


def test_picture_follows_the_optimum_to_near_strengths(rng):
    problem = mixed_problem(rng, "diagonal")
    groups = groups_of(problem)
    near, far = (
        problem.with_penalty(penalty_of(problem, groups, dict.fromkeys(groups, strength))) for strength in (0.02, 0.03)
    )
    start = temperature_start(problem)
    theta = near.standardise(solve(near, start=start))
    truth = far.standardise(solve(far, start=start))
    moved, _ = picture_at(near, theta).move(far.penalty)
    assert np.linalg.norm(moved - truth) < 0.1 * np.linalg.norm(theta - truth)


def test_blocks_agree_with_the_whole_for_many_classes(rng):
    logits, labels, _ = scored_world(rng, n=4000, k=120)
    problem = Problem(logits, labels, class_scores=True, mixing="diagonal")
    groups = groups_of(problem)
    strengths = dict.fromkeys(groups, 0.003)
    penalised = problem.with_penalty(penalty_of(problem, groups, strengths))
    theta = penalised.standardise(solve(penalised, start=temperature_start(problem)))
    counts = []
    assert penalised.n_parameters <= EXACT_UP_TO
    for picture in (picture_at(penalised, theta), _Blocks(penalised, theta, np.zeros(theta.size), None)):
        _, spread = picture.move(penalised.penalty)
        counts.append([picture.free[i].sum() - strengths[name] * spread[i].sum() for name, i in groups.items()])
    np.testing.assert_allclose(counts[1], counts[0], rtol=0.1)


def test_a_picture_from_before_the_optimum_moves_by_a_newton_step(rng):
    problem = mixed_problem(rng, "diagonal")
    groups = groups_of(problem)
    penalised = problem.with_penalty(penalty_of(problem, groups, dict.fromkeys(groups, 0.02)))
    theta = penalised.standardise(temperature_start(problem))
    found = passes.evaluate(penalised, theta, "exact")
    expected = theta - np.linalg.solve(found.curvature, found.gradient)
    moved, _ = picture_at(penalised, theta, found.gradient, found.curvature).move(penalised.penalty)
    np.testing.assert_allclose(moved, expected, rtol=1e-7, atol=1e-9)


def test_the_expected_optimum_is_a_better_start_than_temperature_scaling(rng):
    problem = mixed_problem(rng, "full")
    found = choose_strengths(problem, groups_of(problem), problem.n_rows)
    kept = chosen.with_groups(problem, found.strengths)
    kept = kept.with_penalty(penalty_of(kept, groups_of(kept), found.strengths))
    warm, cold = solve(kept, start=found.solution), solve(kept, start=temperature_start(problem))
    assert warm.n_passes < cold.n_passes
    assert warm.objective == pytest.approx(cold.objective, abs=4e-10)  # the certificates of both


def test_rounded_passes_lead_to_the_same_strengths(seed):
    logits, labels, _ = scored_world(np.random.default_rng(seed), n=6000, k=50)
    wide = Problem(logits.astype(np.float32), labels, class_scores=True, pseudo_rows=True)
    assert wide.dtype == np.float64
    assert wide.rounded().dtype == np.float32
    found, expected = (
        choose_strengths(one, groups_of(one), labels.size).strengths["class_scores"]
        for one in (wide, Problem(wide.logits.astype(np.float64), labels, class_scores=True, pseudo_rows=True))
    )
    assert abs(np.log(found / expected)) < 0.1  # each ends where its logarithm changes by less than 0.05


def test_a_full_matrix_of_few_classes_is_read_rounded_and_gets_the_same_strengths(seed):
    world = make_world(4000, 10, temperature=2.0, atypical_noise=0.8, random_state=seed)
    terms = {"class_scores": True, "mixing": "full", "pseudo_rows": True}
    wide = Problem(world.logits.astype(np.float32), world.labels, **terms)
    assert wide.rounded().dtype == np.float32  # 111 parameters: 444,000 numbers, of 40,000 logits
    single, double = (
        choose_strengths(one, groups_of(one), world.labels.size)
        for one in (wide, Problem(wide.logits.astype(np.float64), world.labels, **terms))
    )
    assert set(single.strengths) == set(double.strengths)
    for name, found in single.strengths.items():  # each ends where its logarithm changes by less than 0.05
        assert abs(np.log(found / double.strengths[name])) < 0.1 * max(1.0, 1 / double.effective[name])


@pytest.mark.filterwarnings("ignore:labels all have the largest logit")
@pytest.mark.parametrize("kind", ["no errors", "three errors", "heavy weights"])
def test_where_rounded_sums_cancel_the_choice_is_made_in_float64(kind, seed):
    world, rng = make_world(12_000, 3, temperature=2.0, random_state=seed), np.random.default_rng(seed)
    logits, labels, weights = world.logits.astype(np.float32), world.labels, None
    if kind == "heavy weights":
        weights = rng.exponential(size=labels.size) ** 4
    else:
        labels = logits.argmax(axis=1)
    if kind == "three errors":
        labels[:3] = (labels[:3] + 1) % 3
    single, double = (
        AtypicalityAwareRecalibration()
        .fit(logits.astype(dtype), labels, atypicality=world.atypicality, sample_weight=weights)
        .predict_proba(logits[:500], atypicality=world.atypicality[:500])
        for dtype in (np.float32, np.float64)
    )
    np.testing.assert_allclose(single, double, rtol=0, atol=2e-3)  # strengths end within 0.05 of their logarithm


def test_where_the_first_optimum_is_sought_decides_over_passes_and_not_over_strengths(rng, monkeypatch):
    problem, counted, evaluate = mixed_problem(rng, "full"), [], passes.evaluate
    groups, found = groups_of(problem), []
    keep_all(monkeypatch)
    monkeypatch.setattr(passes, "evaluate", lambda *args: counted.append(args) or evaluate(*args))
    start = temperature_start(problem)
    for near in (None, choose_strengths(problem, groups, problem.n_rows, start=start).solution):
        counted.clear()
        found.append((choose_strengths(problem, groups, problem.n_rows, start=start, near=near), len(counted)))
    (cold, most), (warm, fewer) = found
    assert fewer < most
    for name in groups:
        logs = np.log([cold.strengths[name], warm.strengths[name]])
        assert np.ptp(logs) < 0.1 * max(1.0, 1 / cold.effective[name])


def test_where_precisions_start_does_not_decide_where_they_end(rng, monkeypatch):
    problem = mixed_problem(rng, "diagonal")
    groups, found = groups_of(problem), []
    keep_all(monkeypatch)
    for first in (1.0, 10.0, 100.0):
        monkeypatch.setattr(chosen, "FIRST", first)
        found.append(choose_strengths(problem, groups, problem.n_rows))
    for name in ("multiplier", "class_scaling"):
        logs = np.log([one.strengths[name] for one in found])
        assert np.ptp(logs) < 0.1 * max(1.0, 1 / found[0].effective[name])  # each ends where it changes by 0.05
