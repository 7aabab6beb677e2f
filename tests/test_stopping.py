"""Solvers that cannot go on say why and what to do; what is cut or approximated to save time changes no answer."""

from collections import deque

import numpy as np
import pytest

from atypicality import AtypicalityAwareConformal, AtypicalityAwareRecalibration, estimate_class_mix
from atypicality.conformal import pinball
from atypicality.datasets import make_world
from atypicality.recalibration import class_mix, metric, newton, quadratic
from atypicality.recalibration.prediction import check_known


def test_scores_that_need_too_many_steps_are_called_degenerate(monkeypatch):
    monkeypatch.setattr(pinball, "MAX_STEPS", 0)
    rows = np.ones((1, 1)), np.zeros(9, int), np.arange(9.0), 0.75
    with pytest.raises(RuntimeError, match=r"the scores are degenerate\. Give distinct scores"):
        pinball.cutoffs(*rows)
    monkeypatch.setattr(pinball._Vertex, "_optimum", lambda *_: True)  # found, and then the path has no end
    with pytest.raises(RuntimeError, match=r"the scores are degenerate\. Give distinct scores"):
        pinball.cutoff_steps(*rows)


def test_without_a_row_every_cutoff_is_infinite_at_every_draw():
    levels, found = pinball.cutoff_steps(np.ones((3, 1)), np.zeros(0, int), np.zeros(0), 0.9)
    assert levels.shape == (0, 3)
    assert found.tolist() == [[np.inf] * 3]
    assert pinball.cutoffs(np.ones((3, 1)), np.zeros(0, int), np.zeros(0), 0.9).tolist() == [np.inf] * 3


def test_a_class_mix_that_is_not_reached_in_time_is_an_error(monkeypatch, rng):
    monkeypatch.setattr(class_mix, "MAX_STEPS", 1)
    with pytest.raises(ValueError, match="EM did not come near its maximum in 1 steps"):
        estimate_class_mix(rng.dirichlet([0.3, 0.5, 0.2], 200), [0.2, 0.3, 0.5])


def test_a_point_that_no_step_improves_ends_with_what_to_give():
    def walled(theta, _):  # falls to the right, and is infinite there
        return newton.Derivatives(np.inf if theta.any() else 1.0, -np.ones(1), np.eye(1))

    oracle = newton.Oracle(walled, lambda curvature: newton.Cholesky.of(curvature, 0.0), None, 0.0)
    with pytest.raises(
        newton.NotConvergedError, match=r"no step lowers the objective at iteration 0: .*float64 logits"
    ):
        newton.minimise(oracle, np.zeros(1), tolerance=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_factored_matrix_solves_for_a_gradient(rng, dtype):
    root = rng.standard_normal((80, 50)) * np.geomspace(1e-3, 1e3, 50)  # scaled to a unit diagonal, all are alike
    matrix, truth = root.T @ root, rng.standard_normal(50) / np.geomspace(1e-3, 1e3, 50)
    gradient = matrix @ truth
    before, found = gradient.copy(), newton.Cholesky.of(matrix.astype(dtype), 0.0).solve(gradient)
    unit = np.sqrt(np.diag(matrix))
    lost = np.linalg.cond(matrix / unit / unit[:, None]) * np.finfo(dtype).eps  # of the digits, a few times
    np.testing.assert_allclose(found * unit, truth * unit, rtol=0, atol=20 * lost * np.abs(truth * unit).max())
    assert (gradient == before).all()


def test_only_pairs_that_curve_upward_are_remembered():
    pairs = deque()
    for turned in ([0.0, 0.0], [-1.0, 0.0], [2.0, 5.0]):  # products with the move: 0, -1, 2
        newton._remember(pairs, np.array([1.0, 0.0]), np.array(turned))
    assert [product for _, _, product in pairs] == [2.0]


def test_chunks_hold_the_same_entries_in_order_and_part_no_row(monkeypatch, rng):
    monkeypatch.setattr(metric, "CHUNK", 8)
    row = np.repeat(np.arange(60), rng.integers(1, 6, 60))
    parts = [
        metric.Kept(row[rows], rng.integers(0, 9, rows.sum()), rng.normal(size=(2, rows.sum())))
        for rows in (row < 20, (row >= 20) & (row < 23), row >= 23)
    ]
    chunks = list(metric._chunks(parts))
    for field in range(2):
        np.testing.assert_array_equal(
            np.concatenate([chunk[field] for chunk in chunks]), np.concatenate([part[field] for part in parts])
        )
    np.testing.assert_array_equal(
        np.concatenate([chunk.values for chunk in chunks], axis=1),
        np.concatenate([part.values for part in parts], axis=1),
    )
    assert sum(len(set(chunk.row)) for chunk in chunks) == 60
    assert min(chunk.row.size for chunk in chunks[:-1]) >= 8


def test_strengths_by_blocks_cost_less_than_one_parameter(monkeypatch, seed):
    # An estimate of q parameters costs about q / (2 n) in mean loss; the blocks leave out how parameters interact.
    world = make_world(6000, 8, temperature=2.0, class_imbalance=10.0, random_state=seed)
    rows, test = world.take(slice(0, 2000)), world.take(slice(2000, None))

    def loss():
        found = AtypicalityAwareRecalibration(class_mixing="diagonal", terms=()).fit(
            rows.logits, rows.labels, atypicality=rows.atypicality
        )
        probs = found.predict_proba(test.logits, atypicality=test.atypicality)
        return -np.log(probs[np.arange(len(test)), test.labels]).mean()

    whole = loss()
    monkeypatch.setattr(quadratic, "EXACT_UP_TO", 0)
    assert abs(loss() - whole) < 1 / (2 * 2000)


def test_rows_that_no_class_is_left_for_are_named_by_their_number_in_the_whole():
    check_known(np.array([[True], [True]]))
    with pytest.raises(ValueError, match=r"row 11 has no probabilities: every class .* Give such classes a prior"):
        check_known(np.array([[True], [False]]), first_row=10)


def test_the_papers_grid_takes_no_edge_set_and_claims_only_approximate_coverage(rng):
    probs, labels, atypicality = rng.dirichlet(np.ones(3), 300), rng.integers(0, 3, 300), rng.random(300)
    paper, valid = (AtypicalityAwareConformal(n_groups=(2, 2), mode=mode) for mode in ("paper", "valid"))
    with pytest.raises(ValueError, match=r'edge_rows needs mode="valid"; got mode=\'paper\''):
        paper.fit(probs, labels, atypicality=atypicality, edge_rows=np.arange(300) < 100)
    assert paper.fit(probs, labels, atypicality=atypicality)._guarantee().startswith("only approximately")
    assert valid.fit(probs, labels, atypicality=atypicality)._guarantee().startswith("in each of")


def bowl(theta, _):
    """Sum of log(2 cosh(theta - 1)): minimal at 1, with curvature from 1 there to 0 far away."""
    away = theta - 1
    curvature = np.diag(1 - np.tanh(away) ** 2)
    return newton.Derivatives(np.logaddexp(away, -away).sum() - theta.size * np.log(2.0), np.tanh(away), curvature)


@pytest.mark.parametrize("start", [-1.5, 0.5, 0.99, 4.0])
def test_a_hessian_from_before_certifies_as_well(start):
    gathered = []

    def evaluate(theta, curvature):
        gathered.append(curvature)
        found = bowl(theta, None)
        return found if curvature else newton.Derivatives(found.objective, found.gradient)

    oracle = newton.Oracle(evaluate, lambda curvature: newton.Cholesky.of(curvature, 0.0), None, 1e-15)
    found = newton.minimise(oracle, np.full(3, start), tolerance=1e-12)
    assert found.n_passes == len(gathered)
    assert not gathered[-1] or start == 0.99  # the last pass had no need of one
    np.testing.assert_allclose(found.theta, 1.0, atol=1e-6)
    assert bowl(found.at, None).objective <= 2 * found.certificate  # of the quadratic model: 1 + O(certificate)


def test_a_hessian_that_fades_is_gathered_again():
    # log(1 + exp(-t)) has no minimum: a Hessian from before is too large by any factor, and steps would come to a halt
    def evaluate(theta, curvature):
        chance = 1 / (1 + np.exp(theta[0]))
        second = np.array([[chance * (1 - chance)]]) if curvature else None
        return newton.Derivatives(np.log1p(np.exp(-theta[0])), np.array([-chance]), second)

    oracle = newton.Oracle(evaluate, lambda curvature: newton.Cholesky.of(curvature, 0.0), None, 1e-15)
    found = newton.minimise(oracle, np.zeros(1), tolerance=1e-9)
    assert found.objective <= 1e-9
    assert found.n_passes < 50  # Newton's steps have length 1, and 21 are needed
