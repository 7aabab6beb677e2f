"""The convex solver against an independent optimum, and the laws that its answer obeys."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import load_outputs
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from recalibration_cases import Reference, rows_like
from scipy.special import logsumexp, softmax

from atypicality import blocks
from atypicality.recalibration import VectorScaling, passes, problem, solver
from atypicality.recalibration.kernels import thin_product
from atypicality.recalibration.problem import Term
from atypicality.recalibration.row_statistics import read_rows, weighted_median
from atypicality.recalibration.solver import (
    TOLERANCE,
    NotConvergedError,
    Problem,
    Ridge,
    hessian,
    mean_loss,
    row_gradients,
    row_losses,
    solution_of_multiplier,
    solve,
)

PROMISED = 1e-9


def quadratic(atypicality):
    return np.stack([np.ones_like(atypicality), atypicality, atypicality**2], axis=1)


def mask_some(logits, labels, seed=0):
    """Mask entries at random, never a label and never the class after it: two are left in every row."""
    hidden = np.random.default_rng(seed).random(logits.shape) < 0.3
    rows = np.arange(labels.size)
    hidden[rows, labels] = hidden[rows, (labels + 1) % logits.shape[1]] = False
    return np.where(hidden, -np.inf, logits)


TERMS = {
    "temperature": {},
    "features": {"features": True},
    "scores": {"class_scores": True},
    "paper": {"features": True, "class_scores": True},
    "diagonal": {"mixing": "diagonal", "class_scores": True},
    "shrunk diagonal": {"features": True, "mixing": "diagonal", "class_scores": True, "ridge": (0.1, 0.0, 0.02, 0.03)},
    "densities": {"features": True, "densities": True, "class_scores": True, "ridge": (0.1, 0.2, 0.0, 0.01)},
    "all": {
        "features": True, "densities": True, "mixing": "full", "class_scores": True, "ridge": (0.1, 0.2, 0.05, 0.01),
    },
}  # fmt: skip


def build(terms, logits, labels, atypicality, *, sample_weight=None):
    """A problem and its reference: the ridge leaves the first feature alone, as recalibrators do."""
    f, d, w, s = terms.get("ridge", (0.0,) * 4)
    features = quadratic(atypicality) if terms.get("features") else None
    p = 1 if features is None else features.shape[1]
    k = logits.shape[1]
    rng = np.random.default_rng(1)
    others = []
    if terms.get("densities"):
        matrix = 3 * rng.normal(size=logits.shape) + 2 * np.eye(k)[labels]
        others = [Term("class_density", matrix, quadratic(atypicality)[:, :2])]
        others += [Term("constant", np.broadcast_to(rng.normal(size=k), logits.shape))]  # a row for all
    shared = {
        "features": features,
        "terms": others,
        "class_scores": terms.get("class_scores", False),
        "mixing": terms.get("mixing"),
    }
    strengths = dict.fromkeys((term.name for term in others), d)
    ridge = Ridge(features=np.r_[0.0, np.full(p - 1, f)], terms=strengths, mixing=w, scores=s)
    built = Problem(logits, labels, ridge=ridge, sample_weight=sample_weight, **shared)
    weights = None if sample_weight is None else np.asarray(sample_weight)
    scales = {"scale": built.scale, "term_scales": built.term_scales}
    return built, Reference(logits, labels, ridge=built.penalty, weights=weights, **scales, **shared)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_optimum_is_that_of_a_general_purpose_minimiser(terms, masked, seed):
    logits, labels, atypicality = rows_like(400, 5, seed)
    built, reference = build(terms, mask_some(logits, labels) if masked else logits, labels, atypicality)
    found = solve(built)
    lowest = reference.minimum()
    assert reference(built.standardise(found))[0] <= lowest + PROMISED
    assert found.objective == pytest.approx(lowest, abs=PROMISED)
    assert found.certificate <= TOLERANCE


@pytest.mark.parametrize("name", ["cifar10-wrn28-10", "cifar10lt-wrn28-4"])
def test_optimum_on_real_outputs(name):
    outputs = load_outputs(name, "test")
    logits, labels = outputs["logits"][:5000].astype(np.float32), outputs["labels"][:5000]
    atypicality = np.linalg.norm(outputs["embeddings"][:5000].astype(np.float64), axis=1)
    atypicality = (atypicality - atypicality.mean()) / atypicality.std()
    for terms in (TERMS["temperature"], TERMS["diagonal"], TERMS["paper"]):
        built, reference = build(terms, logits, labels, atypicality)
        assert reference(built.standardise(solve(built)))[0] <= reference.minimum() + PROMISED


@pytest.mark.parametrize("terms", [TERMS["scores"], TERMS["paper"], TERMS["diagonal"], TERMS["all"]])
def test_many_parameters_reach_the_same_optimum(terms, monkeypatch, seed):
    # as if there were too many parameters for exact Newton steps: approximate metric, L-BFGS, Hessian products
    logits, labels, atypicality = rows_like(600, 8, seed)
    built, _ = build(terms, logits, labels, atypicality)
    exact = solve(built)
    monkeypatch.setattr("atypicality.recalibration.solver.NEWTON_WORK", 0)
    monkeypatch.setattr("atypicality.recalibration.solver.FEW", 0)
    monkeypatch.setattr("atypicality.recalibration.newton.TRUSTED", 0.0)
    found = solve(built)
    assert found.certificate <= TOLERANCE
    assert found.objective <= exact.objective + PROMISED
    monkeypatch.setattr("atypicality.recalibration.newton.TRUSTED", 0.5)
    assert solve(built).objective <= exact.objective + PROMISED
    monkeypatch.setattr("atypicality.recalibration.solver.PATIENCE", 1)
    found = solve(built)  # what the approximate Hessian does not finish, exact steps do
    assert found.certificate <= TOLERANCE
    assert found.objective <= exact.objective + PROMISED
    monkeypatch.setattr("atypicality.recalibration.solver.RESCUE_WORK", 0)  # it goes on where they cannot be afforded
    assert solve(built).objective <= exact.objective + PROMISED
    monkeypatch.setattr("atypicality.recalibration.metric.DENSE", 0)
    assert solve(built).objective <= exact.objective + PROMISED


@pytest.mark.parametrize("exact", [True, False])
def test_vector_scaling_of_nearly_separable_labels_converges(exact, monkeypatch):
    monkeypatch.setattr(solver, "FREE_WORK", 4e9 if exact else 1e9)  # 1.08e9 rows times squared parameters
    rng, n, k = np.random.default_rng(0), 3000, 300
    labels = np.arange(n) % k
    logits = 2 * rng.normal(size=(n, k)).astype(np.float32)
    logits[np.arange(n), labels] += rng.normal(12, 2, n).astype(np.float32)
    found = VectorScaling().fit(logits, labels)
    assert found.certificate_ <= TOLERANCE
    assert (found.solution_.n_iter > 60) != exact  # the approximate Hessian does not end in 60


def large_problem(seed=0, n=3000, k=800, **options):
    """Float32 logits beyond the size up to which passes work in float64, classes confused in families of four."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % k)
    logits = rng.normal(size=(n, k)).astype(np.float32)
    logits += rng.normal(size=k).astype(np.float32) / 2
    family = labels[:, None] // 4 * 4 + np.arange(4)
    logits[np.arange(n)[:, None], family] += (4 + 1.5 * rng.normal(size=(n, 4))).astype(np.float32)
    logits[np.arange(n), labels] += (2 + rng.normal(size=n)).astype(np.float32)
    assert logits.size > problem.SMALL
    return Problem(logits, labels, **options)


def test_float32_passes_reach_the_float64_optimum():
    features = quadratic(np.random.default_rng(5).normal(size=3000))
    found = solve(built := large_problem(features=features, class_scores=True))
    assert built.dtype == np.float32
    wide = Problem(built.logits.astype(np.float64), built.labels, features=features, class_scores=True)
    best = solve(wide, start=found, tolerance=1e-14)
    assert mean_loss(wide, found) <= best.loss + PROMISED
    assert found.loss == pytest.approx(best.loss, abs=1e-7)  # float32 rounding of single losses, averaged
    assert found.certificate <= TOLERANCE


def test_temperature_of_many_float32_rows_is_that_of_float64():
    found = solve(built := large_problem())
    wide = Problem(built.logits.astype(np.float64), built.labels)
    best = solve(wide, tolerance=1e-14)
    assert mean_loss(wide, found) <= best.loss + PROMISED
    assert found.coefficients == pytest.approx(best.coefficients, rel=1e-5)
    assert found.loss == pytest.approx(best.loss, abs=1e-7)


@pytest.mark.parametrize("terms", [{}, {"class_scores": True}])
def test_the_short_way_agrees_with_the_long_way(terms, monkeypatch):
    built = large_problem(features=quadratic(np.random.default_rng(5).normal(size=3000)), **terms)
    rng = np.random.default_rng(2)
    theta = np.r_[2.0, 0.1, 0.05, 0.3 * rng.normal(size=built.n_parameters - 3)]
    direction = built.project(rng.normal(size=theta.size))
    kinds = (None, "sparse" if terms else "exact")
    short = [passes.evaluate(built, theta, kind) for kind in kinds], passes.hessian_product(built, theta, direction)
    monkeypatch.setattr("atypicality.recalibration.plain.LARGEST", -1.0)
    long = [passes.evaluate(built, theta, kind) for kind in kinds], passes.hessian_product(built, theta, direction)
    for one, other in zip(short[0], long[0], strict=True):  # float32: 1e-7 of logits of size 10, averaged over rows
        assert one.objective == pytest.approx(other.objective, abs=1e-6)
        np.testing.assert_allclose(one.gradient, other.gradient, atol=1e-7)
    np.testing.assert_allclose(short[1], long[1], rtol=1e-4, atol=1e-6)
    one, other = short[0][1].curvature, long[0][1].curvature
    if not terms:
        np.testing.assert_allclose(one, other, rtol=1e-4)
        return
    np.testing.assert_allclose(one.shared, other.shared, rtol=1e-4)
    np.testing.assert_allclose(one.moments, other.moments, rtol=1e-4)
    np.testing.assert_allclose(one.crossed, other.crossed, atol=1e-6)
    assert sum(kept.row.size for kept in one.kept) == pytest.approx(sum(kept.row.size for kept in other.kept), rel=1e-3)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_derivatives_are_those_of_differences(terms):
    logits, labels, atypicality = rows_like(60, 4)
    built, reference = build(terms, mask_some(logits, labels), labels, atypicality)
    rng = np.random.default_rng(3)
    theta = built.project(0.3 * rng.normal(size=built.n_parameters))
    direction = built.project(rng.normal(size=built.n_parameters))
    value, gradient = reference(theta)
    found = passes.evaluate(built, theta, "exact")
    assert found.objective == pytest.approx(value, abs=1e-12)
    np.testing.assert_allclose(found.gradient, built.project(gradient), atol=1e-12)
    step = 1e-5  # central differences: the error is of third order
    change = (reference(theta + step * direction)[1] - reference(theta - step * direction)[1]) / (2 * step)
    np.testing.assert_allclose(built.project(found.curvature @ direction), built.project(change), atol=1e-7)
    np.testing.assert_allclose(passes.hessian_product(built, theta, direction), built.project(change), atol=1e-7)


def test_rows_losses_and_gradients_add_up():
    logits, labels, atypicality = rows_like(80, 4)
    built, _ = build(TERMS["all"], logits, labels, atypicality, sample_weight=np.random.default_rng(4).random(80))
    found = solve(built)
    theta = built.standardise(found)
    assert built.weights @ row_losses(built, found) == pytest.approx(found.loss, abs=1e-9)
    gradient = built.weights @ row_gradients(built, found) + built.penalty * theta
    np.testing.assert_allclose(gradient, 0, atol=1e-6)  # at the optimum, the certificate bounds it
    second = hessian(built, found)
    assert np.linalg.eigvalsh(second).min() > 0
    np.testing.assert_allclose(second, second.T, atol=1e-12)


def test_losses_are_those_of_the_softmax_of_the_model():
    logits, labels, atypicality = rows_like(50, 4)
    masked = mask_some(logits, labels)
    built, reference = build(TERMS["all"], masked, labels, atypicality)
    found = solve(built)
    expected = softmax(reference.predictor(built.standardise(found)), axis=1)[np.arange(50), labels]
    np.testing.assert_allclose(np.exp(-row_losses(built, found)), expected, atol=1e-12)


@pytest.mark.parametrize("factor", [1e-30, 1e-6, 1e6, 1e30])
@pytest.mark.parametrize("terms", [TERMS["paper"], TERMS["shrunk diagonal"]], ids=["paper", "shrunk"])
def test_scale_of_the_logits_changes_nothing_but_the_coefficients(terms, factor):
    logits, labels, atypicality = rows_like(300, 4)
    plain, scaled = (solve(build(terms, z, labels, atypicality)[0]) for z in (logits, factor * logits))
    np.testing.assert_allclose(factor * scaled.coefficients, plain.coefficients, rtol=1e-6)
    np.testing.assert_allclose(scaled.scores, plain.scores, atol=1e-6)
    assert scaled.loss == pytest.approx(plain.loss, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 6), st.integers(10, 80))
def test_weights_are_repetitions_and_rows_have_no_order(seed, k, n):
    rng = np.random.default_rng(seed)
    logits, labels, atypicality = rows_like(n, k, seed)
    counts = rng.integers(1, 4, size=n)
    order = rng.permutation(np.repeat(np.arange(n), counts))
    weighted = solve(build(TERMS["shrunk diagonal"], logits, labels, atypicality, sample_weight=counts)[0])
    repeated = solve(build(TERMS["shrunk diagonal"], logits[order], labels[order], atypicality[order])[0])
    assert weighted.objective == pytest.approx(repeated.objective, abs=PROMISED)  # the loss alone is not at its minimum
    assume(weighted.loss > 0.01)  # separable rows have no optimum to agree on
    np.testing.assert_allclose(weighted.scores, repeated.scores, atol=1e-5)  # the certificate leaves about this
    np.testing.assert_allclose(weighted.coefficients, repeated.coefficients, atol=1e-4)


def test_blocks_and_threads_change_only_the_last_digits():
    logits, labels, atypicality = rows_like(500, 6)
    built, _ = build(TERMS["all"], logits, labels, atypicality)
    answers = []
    for height, threads in ((None, 1), (7, 1), (64, 3)):
        with blocks.settings(block_rows=height, n_threads=threads):
            answers.append(solve(built))
    for other in answers[1:]:
        np.testing.assert_allclose(other.mixing, answers[0].mixing, atol=1e-9)
        np.testing.assert_allclose(other.scores, answers[0].scores, atol=1e-9)


def test_same_input_same_answer():
    built = large_problem(class_scores=True)
    first, second = solve(built), solve(Problem(built.logits, built.labels, class_scores=True))
    np.testing.assert_array_equal(first.scores, second.scores)
    np.testing.assert_array_equal(first.coefficients, second.coefficients)


def test_a_warm_start_saves_passes_and_changes_nothing():
    logits, labels, atypicality = rows_like(500, 6)
    built, _ = build(TERMS["all"], logits, labels, atypicality)
    first = solve(built)
    stronger = built.with_ridge(Ridge(features=0.1, terms={"class_density": 0.2}, mixing=0.06, scores=0.02))
    cold, warm = solve(stronger), solve(stronger, start=first)
    assert warm.n_passes < cold.n_passes
    assert warm.objective == pytest.approx(cold.objective, abs=PROMISED)
    assert solve(built, start=first).n_iter == 0


def test_scores_of_a_model_that_predicts_few_classes_start_at_its_mean_probabilities():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3000, 60)) + np.where(np.arange(60) < 5, 2.0, 0.0)  # nearly all predictions are of five
    labels = (softmax(logits - 0.5 * logits.mean(axis=0), axis=1).cumsum(axis=1) < rng.random((3000, 1))).sum(axis=1)
    whole = Problem(logits, labels, class_scores=True)
    theta = np.zeros(whole.n_parameters)
    theta[0] = 1.0
    scores, passed = solver._score_start(whole, theta)
    counted = np.log((np.bincount(labels, minlength=60) + 5) / (np.bincount(logits.argmax(axis=1), minlength=60) + 5))
    found = solve(whole)
    assert passed == pytest.approx(3 * solver.SCORE_ROWS / 3000)
    assert (
        np.abs(scores - scores.mean() - found.scores).max()
        < 0.5 * np.abs(counted - counted.mean() - found.scores).max()
    )


def test_rows_that_repeat_with_a_period_are_met_alike():
    for period in (2, 5, 25, 125):
        met = np.bincount(solver._spread_rows(np.ones(25_000), 1024) % period, minlength=period)
        assert met.min() >= 0.5 * met.mean()  # evenly spaced rows, every 25th, would all be one of 25
    assert (np.diff(solver._spread_rows(np.ones(10_000), 1000)) > 0).all()
    assert solver._spread_rows(np.array([1.0, 0.0, 2.0]), 1000).tolist() == [0, 2]


def test_few_rows_with_weight_among_many_without(rng):
    logits, labels, weights = rng.normal(size=(5000, 4)), rng.integers(0, 4, 5000), np.zeros(5000)
    some = rng.choice(np.arange(1, 5000, 2), 30, replace=False)  # none of them is met by an even step
    weights[some] = 1.0
    found = solve(Problem(logits, labels, sample_weight=weights, class_scores=True))
    alone = solve(Problem(logits[some], labels[some], class_scores=True))
    assert found.objective == pytest.approx(alone.objective, abs=2 * TOLERANCE)


def test_fewer_rows_keep_the_standard_units():
    logits, labels, atypicality = rows_like(300, 5)
    built, _ = build(TERMS["all"], logits, labels, atypicality)
    rows = np.flatnonzero(np.arange(300) % 3)
    part = built.take(rows)
    assert (part.scale, part.term_scales) == (built.scale, built.term_scales)
    found = solve(part)
    held_out = built.take(np.flatnonzero(np.arange(300) % 3 == 0))
    assert mean_loss(held_out, found) == pytest.approx(np.mean(row_losses(built, found)[::3]), abs=1e-12)


def test_a_memory_map_is_read_by_block(tmp_path):
    logits, labels, _ = rows_like(400, 5, dtype=np.float32)
    np.save(tmp_path / "logits.npy", logits)
    mapped = np.load(tmp_path / "logits.npy", mmap_mode="r")
    built = Problem(mapped, labels, class_scores=True)
    assert isinstance(built.logits, np.memmap)
    np.testing.assert_array_equal(solve(built).scores, solve(Problem(logits, labels, class_scores=True)).scores)


@pytest.mark.parametrize("mixing", [None, "diagonal", "full"])
def test_absent_classes_are_fixed_and_the_rest_is_optimal(mixing):
    logits, labels, _ = rows_like(300, 5)
    labels = np.where(labels == 3, 0, labels)
    ridge = 0.05 if mixing == "full" else 0.0
    found = solve(Problem(logits, labels, class_scores=True, mixing=mixing, ridge=Ridge(mixing=ridge)))
    np.testing.assert_array_equal(found.absent, [3])
    assert found.scores[3] == pytest.approx(0, abs=1e-12)
    assert found.scores.sum() == pytest.approx(0, abs=1e-12)
    built = Problem(logits, labels, class_scores=True, mixing=mixing, ridge=Ridge(mixing=ridge))
    # the constraint written out: what has no ridge, a score or an entry of W, is the mean of those of the seen classes
    tie = np.eye(5)
    tie[3] = [0.25, 0.25, 0.25, 0.0, 0.25]
    tie -= tie.mean(axis=0)
    blocks_ = {None: [], "diagonal": [tie], "full": [np.eye(25)]}[mixing]
    free = np.eye(built.n_parameters)
    start = 1
    for block in [*blocks_, tie]:
        free[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    options = {"scale": built.scale, "ridge": built.penalty, "class_scores": True, "mixing": mixing}
    lowest = Reference(logits, labels, **options).minimum(free)
    assert found.objective == pytest.approx(lowest, abs=PROMISED)


def test_fewer_rows_than_classes():
    logits, labels, _ = rows_like(30, 60)
    found = solve(Problem(logits, labels, class_scores=True, ridge=Ridge(scores=0.01)))
    assert found.absent.size == 30
    assert found.certificate <= TOLERANCE


@pytest.mark.parametrize("terms", [TERMS["temperature"], TERMS["paper"], TERMS["diagonal"]])
def test_separable_labels_stop_at_a_loss_of_nearly_zero(terms):
    _, labels, atypicality = rows_like(100, 4)
    logits = 3 * np.eye(4)[labels] + np.random.default_rng(0).random((100, 4))
    found = solve(build(terms, logits, labels, atypicality)[0])
    assert 0 < found.loss <= TOLERANCE
    assert found.certificate <= found.loss
    assert all(np.isfinite(part).all() for part in (found.coefficients, found.scores))


def test_collinear_features_have_an_optimum_all_the_same():
    logits, labels, atypicality = rows_like(300, 4)
    single = np.stack([np.ones(300), atypicality], axis=1)
    double = np.stack([np.ones(300), atypicality, 2 * atypicality], axis=1)
    one, two = (solve(Problem(logits, labels, features=f, class_scores=True)) for f in (single, double))
    assert two.loss == pytest.approx(one.loss, abs=PROMISED)


def test_no_certificate_is_an_error_with_its_reason():
    logits, labels, _ = rows_like(300, 4)
    with pytest.raises(NotConvergedError, match=r"1 iterations were not enough: .* decrement is .*, asked was 1e-12"):
        solve(Problem(logits, labels, class_scores=True), tolerance=1e-12, max_iter=1)


def test_bad_problems_are_refused():
    logits, labels, _ = rows_like(6, 3)
    masked = logits.copy()
    masked[[1, 4], labels[[1, 4]]] = -np.inf
    with pytest.raises(ValueError, match=r"labels must not point at a masked class; rows 1, 4 have .* Unmask"):
        Problem(masked, labels)
    with pytest.raises(ValueError, match="logits must differ between classes"):
        Problem(np.ones((6, 3)), labels)
    with pytest.raises(ValueError, match="logits must have at least one row to fit"):
        Problem(np.empty((0, 3)), [])
    with pytest.raises(ValueError, match=r"logits must be finite, .* row 2 holds NaN"):
        Problem(np.where(np.arange(6)[:, None] == 2, np.nan, logits), labels)
    with pytest.raises(ValueError, match="mixing must be one of None, 'diagonal', 'full'; got 'ful'"):
        Problem(logits, labels, mixing="ful")
    with pytest.raises(ValueError, match="features must have one entry per row; got 5 for 6 rows"):
        Problem(logits, labels, features=np.ones((5, 1)))
    with pytest.raises(ValueError, match=r"features must be finite; row 0 holds NaN"):
        Problem(logits, labels, features=np.where(np.arange(6)[:, None] == 0, np.nan, 1.0))
    with pytest.raises(ValueError, match=r"given must be finite; rows 0, 1, .* -inf"):
        Problem(logits, labels, terms=[Term("given", np.where(np.arange(3) == 0, -np.inf, logits))])
    with pytest.raises(ValueError, match="given must have one entry per row"):
        Problem(logits, labels, terms=[Term("given", logits[:4])])
    with pytest.raises(ValueError, match=r"ridge.scores must be finite and not negative; got -1.0"):
        Problem(logits, labels, ridge=Ridge(scores=-1.0))
    with pytest.raises(ValueError, match=r"ridge.features must be one strength or 1, one per column; got shape \(2,\)"):
        Problem(logits, labels, ridge=Ridge(features=[1.0, 2.0]))
    with pytest.raises(ValueError, match="rows must carry weight"):
        Problem(logits, labels, sample_weight=[1, 1, 1, 0, 0, 0]).take(np.array([3, 4]))


@pytest.mark.parametrize("name", ["u", "x", "e", "term", "moved", "inputs", "change"])
def test_a_term_may_have_any_name(name):
    logits, labels, _ = rows_like(200, 4)
    matrix, ridge = np.random.default_rng(0).normal(size=logits.shape), {"mixing": 0.1, "scores": 0.1}
    found, expected = (
        solve(
            Problem(
                logits, labels, terms=[Term(one, matrix)], class_scores=True, mixing="diagonal",
                ridge=Ridge(terms={one: 0.1}, **ridge),
            )
        )
        for one in (name, "another")
    )  # fmt: skip
    assert found.objective == pytest.approx(expected.objective, abs=1e-14)


def test_how_a_term_is_read_changes_no_derivative(rng):
    """As it lies, less its rows' maxima, or divided by its scale: the scale decides, and the type."""
    logits, matrix = (rng.normal(size=(60, 5)).astype(np.float32) for _ in range(2))
    matrix, labels = matrix - matrix.max(axis=1, keepdims=True), rng.integers(0, 5, 60)
    theta, found = np.array([0.8, -0.6]), []
    for other in (matrix, matrix + np.float32(2.0), matrix * np.float32(2.0**40), matrix.astype(np.float64)):
        built = Problem(logits, labels, terms=[Term("one", other)])
        built.dtype = np.dtype(np.float32)
        found.append(passes.evaluate(built, theta, "exact"))
    for one in found[1:]:  # adding 2 rounds the matrix in the seventh digit
        assert one.objective == pytest.approx(found[0].objective, abs=2e-6)
        np.testing.assert_allclose(one.gradient, found[0].gradient, atol=2e-6)
        np.testing.assert_allclose(one.curvature, found[0].curvature, atol=2e-6)


def test_the_median_of_equal_weights_is_that_of_weights_nearly_equal(rng):
    for n in range(1, 40):
        values, weights = rng.integers(-3, 9, n).astype(float), np.full(n, 0.3)
        nearly = np.r_[np.nextafter(0.3, 1), weights[1:]]
        assert weighted_median(values, weights) == weighted_median(values, nearly)


def test_moments_of_rows_far_from_zero_are_those_of_float64(rng):
    for matrix in (rng.normal(-30, 1, (50, 40)), np.exp(-rng.gamma(4, 4, (50, 40))) - 1, rng.normal(1e5, 1, (50, 40))):
        matrix = matrix.astype(np.float32)
        rows, wide = read_rows(matrix, np.zeros(50, int), lambda *_: None), matrix.astype(np.float64)
        np.testing.assert_allclose(rows.deviation, wide.std(axis=1), rtol=1e-4)
        # 40 rounded sums of entries as large as the mean
        np.testing.assert_allclose(
            rows.mean, (wide - wide.max(axis=1, keepdims=True)).mean(axis=1), atol=40 * 6e-8 * 40
        )


def test_rows_whose_largest_logit_is_far_from_their_maximum_have_their_loss(rng):
    logits = rng.normal(size=(40, 5))
    term = np.zeros((40, 5))
    term[np.arange(40), logits.argmin(axis=1)] = 300.0  # beyond what float32 and a sum of exponentials hold
    for dtype in (np.float32, np.float64):
        problem = Problem(logits.astype(dtype), np.zeros(40, int), terms=[Term("far", term.astype(dtype))])
        solution = replace(solution_of_multiplier(1.0, 5), terms={"far": np.ones(1)})
        expected = logsumexp(logits.astype(dtype).astype(float) + term, axis=1) - (logits[:, 0] + term[:, 0])
        np.testing.assert_allclose(row_losses(problem, solution), expected, rtol=1e-6, atol=1e-6)  # float32 logits
        theta = problem.standardise(solution)
        found = passes.evaluate(problem, theta)
        assert np.isfinite(found.gradient).all()
        assert found.objective == pytest.approx(expected.mean(), rel=1e-6)


@pytest.mark.parametrize("shape", [(1, 900, 1000), (4, 900, 1000), (3, 251, 1000), (6, 10, 7), (2, 0, 5)])
def test_thin_products_are_products(shape, rng):
    q, b, k = shape
    few, values = rng.normal(size=(q, b)), rng.normal(size=(b, k))
    np.testing.assert_allclose(thin_product(few, values), few @ values, rtol=0, atol=1e-15 * b * 10)


@pytest.mark.parametrize("mixing", [None, "diagonal", "full"])
@pytest.mark.parametrize("kind", ["sparse", "exact"])
def test_the_gradient_beside_a_curvature_is_that_without(mixing, kind, rng):
    logits, labels, atypicality = rows_like(300, 6, 1)
    term = Term("term", rng.normal(size=logits.shape), np.stack([np.ones(300), atypicality], axis=1))
    built = Problem(logits, labels, features=quadratic(atypicality), terms=[term], class_scores=True, mixing=mixing)
    theta = built.project(0.3 * rng.normal(size=built.n_parameters))
    alone, beside = (passes.evaluate(built, theta, curvature).gradient for curvature in (None, kind))
    np.testing.assert_allclose(beside, alone, rtol=0, atol=1e-14 * built.n_rows)  # sums of so many, in another order


def many_rows(seed, n=30_000, k=10):
    """Rows whose passes work in float64, of float32 logits that are many enough to be read as they are on the way."""
    logits, labels, atypicality = rows_like(n, k, seed)
    return logits.astype(np.float32), labels, atypicality


@pytest.fixture
def passed(monkeypatch):
    """The type and the curvature of every pass."""
    seen, evaluate = [], passes.evaluate

    def watch(problem, theta, curvature=None):
        seen.append((problem.n_rows, problem.dtype.name, curvature))
        return evaluate(problem, theta, curvature)

    monkeypatch.setattr(passes, "evaluate", watch)
    return seen


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_float32_logits_give_the_optimum_of_the_same_logits_in_float64(terms, passed, seed):
    logits, labels, atypicality = many_rows(seed)
    single, _ = build(terms, logits, labels, atypicality)
    double, _ = build(terms, logits.astype(np.float64), labels, atypicality)
    assert single.dtype == double.dtype == np.float64
    found = solve(single)
    of_all_rows = [(kind, curvature) for rows, kind, curvature in passed if rows == labels.size]
    assert of_all_rows.count(("float32", "exact")) >= 1
    assert of_all_rows.count(("float64", "exact")) <= 1  # where the first step would be the last, it is confirmed
    assert of_all_rows[-1][0] == "float64"  # the certificate
    expected = solve(double)
    assert found.certificate <= TOLERANCE
    # both lie above the minimum by at most their certificates, on objectives whose units were rounded differently
    assert found.objective == pytest.approx(expected.objective, abs=2 * TOLERANCE + 1e-7)
    assert mean_loss(double, found) == pytest.approx(mean_loss(double, expected), abs=1e-7)


def test_where_rounded_steps_lead_nowhere_all_steps_are_wide(passed, monkeypatch, seed):
    logits, labels, atypicality = many_rows(seed)
    built, _ = build(TERMS["paper"], logits, labels, atypicality)
    expected, find = solve(built), solver.find_optimum

    def refuse(problem, *args):
        if problem.dtype == np.float32 and problem.n_rows == labels.size:
            raise NotConvergedError("no step lowers the objective")
        return find(problem, *args)

    monkeypatch.setattr(solver, "find_optimum", refuse)
    passed.clear()
    found = solve(built)
    assert {kind for rows, kind, _ in passed if rows == labels.size} == {"float64"}
    assert found.objective == pytest.approx(expected.objective, abs=2 * TOLERANCE)


def test_where_passes_in_float32_lead_nowhere_those_in_float64_go_on(monkeypatch, seed):
    logits, labels, atypicality = rows_like(5000, 5, seed, dtype=np.float32)  # a start has fewer
    built, _ = build(TERMS["paper"], logits, labels, atypicality)
    expected, find = solve(built), solver.find_optimum
    built.dtype = np.dtype(np.float32)  # as of many rows

    def refuse(problem, *args):
        if problem.dtype == np.float32 and problem.n_rows == labels.size:
            raise NotConvergedError("no step lowers the objective")
        return find(problem, *args)

    monkeypatch.setattr(solver, "find_optimum", refuse)
    found = solve(built)
    assert found.certificate <= TOLERANCE
    assert found.objective == pytest.approx(expected.objective, abs=2 * TOLERANCE)
    monkeypatch.setattr(Problem, "widened", lambda problem: problem)
    with pytest.raises(NotConvergedError, match="no step lowers"):
        solve(built)


def test_nearly_separable_rows_end_with_a_certificate_in_float32_too(seed):
    rng = np.random.default_rng(seed)
    n = 30_000
    labels = rng.integers(0, 10, n)
    logits = rng.normal(size=(n, 10)).astype(np.float32)
    logits[np.arange(n), labels] += 7  # few rows are wrong
    assert solve(Problem(logits, labels, features=quadratic(rng.normal(size=n)))).certificate <= TOLERANCE


@pytest.mark.parametrize(("rows", "threads"), [(5000, 1), (6000, 2)])
def test_short_passes_have_one_thread(rows, threads, monkeypatch):
    logits, labels, _ = rows_like(rows, 100, 0)
    built, used, reduce = Problem(logits, labels, class_scores=True), [], blocks.reduce_rows

    def watch(*args, **options):
        used.append(options["threads"])
        return reduce(*args, **options)

    monkeypatch.setattr(blocks, "reduce_rows", watch)
    with blocks.settings(n_threads=2):
        passes.evaluate(built, np.zeros(built.n_parameters), "exact")
    assert used == [threads]  # 101 parameters: 505,000 and 606,000 numbers


def test_exact_steps_and_others_end_at_the_same_scales_of_classes(passed, monkeypatch, seed):
    logits, labels, _ = rows_like(6000, 205, seed)  # 410 parameters: 1.008e9 rows times squared parameters
    built, found = Problem(logits, labels, mixing="diagonal", class_scores=True), []
    for most, kind in ((solver.FREE_WORK, "exact"), (solver.NEWTON_WORK, "sparse")):
        monkeypatch.setattr(solver, "FREE_WORK", most)
        passed.clear()
        found.append(solve(built))
        assert next(curvature for rows, _, curvature in passed if rows == labels.size) == kind
    assert found[0].objective == pytest.approx(found[1].objective, abs=2 * TOLERANCE)  # the certificates of both
    held = built.with_ridge(Ridge(mixing=0.01))  # which the approximate Hessian knows well
    passed.clear()
    solve(held)
    assert "exact" not in {curvature for rows, _, curvature in passed if rows == labels.size}
