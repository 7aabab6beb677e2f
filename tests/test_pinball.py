"""The cutoffs of conditional conformal prediction against scipy's HiGHS on the same linear programs."""

import math

import numpy as np
import pytest
from scipy.optimize import linprog

from atypicality.conformal.pinball import EPS, NUDGE, _independent, _Vertex, cutoffs
from atypicality.conformal.threshold import conformal_threshold

TAU = 0.9 + 1e-9


def hats(m, knots):
    """Products of piecewise-linear functions on an m x m grid, (m * m, knots * knots)."""
    one = np.maximum(0.0, 1 - np.abs(np.arange(m)[:, None] / (m - 1) - np.linspace(0, 1, knots)) * (knots - 1))
    return np.einsum("ia,jb->ijab", one, one).reshape(m * m, knots * knots)


def reference(groups, cells, scores, tau, cell):
    """Cutoff and objective by HiGHS: residuals are split into what is above and what is below; inf if unbounded."""
    n, d = cells.size, groups.shape[1]
    costs = np.r_[-tau * (1 + NUDGE) * groups[cell], np.full(n, tau), np.full(n, 1 - tau)]
    rows = np.hstack([groups[cells], np.eye(n), -np.eye(n)])
    bounds = [(None, None)] * d + [(0, None)] * (2 * n)
    options = {"dual_feasibility_tolerance": 1e-10, "primal_feasibility_tolerance": 1e-10}
    found = linprog(costs, A_eq=rows, b_eq=scores, bounds=bounds, method="highs-ds", options=options)
    if found.status in (2, 3, 4):  # its presolve may not tell unbounded from infeasible; b = 0 is feasible
        return math.inf, -math.inf
    assert found.status == 0, found.message
    return float(groups[cell] @ found.x[:d]), float(found.fun)


def objective(groups, cells, scores, tau, cell, coefficients):
    left = scores - groups[cells] @ coefficients
    pull = tau * (1 + NUDGE) * groups[cell] @ coefficients
    return np.maximum(tau * left, (tau - 1) * left).sum() - pull


def jittered(rng, scores):
    return scores * (1 + 1e-9 * rng.random(scores.size))


def random_rows(rng, n, m):
    cells = rng.integers(0, m * m, n)
    return cells, jittered(rng, 1 / rng.random(n))


def correlated(rng, n, m):
    """Cells along one diagonal: two corners have hardly any row."""
    first = rng.integers(0, m, n)
    second = np.clip(m - 1 - first + rng.integers(-1, 2, n), 0, m - 1)
    return first * m + second, jittered(rng, 1 / rng.random(n) ** (1 + first))


def tied(rng, n, m):
    return rng.integers(0, m * m, n), jittered(rng, 20.0 / rng.integers(1, 21, n))


def one_hot(rng, n, m):
    return rng.integers(0, m * m, n), jittered(rng, np.where(rng.random(n) < 0.8, 1.0, 1e6))


def saturated(rng, n, m):
    return rng.integers(0, m * m, n), jittered(rng, np.where(rng.random(n) < 0.93, 1 + 1e-7 * rng.random(n), 1e5))


def constant(rng, n, m):
    return rng.integers(0, m * m, n), jittered(rng, np.ones(n))


WORLDS = (random_rows, correlated, tied, one_hot, saturated, constant)


@pytest.mark.parametrize("shape", [(150, 5, 2), (300, 4, 3), (12, 3, 2), (45, 4, 3), (1, 2, 1), (60, 3, 1)], ids=str)
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_cutoffs_and_objectives_are_those_of_highs(world, shape, seed):
    n, m, knots = shape
    rng = np.random.default_rng([seed, n])
    groups = hats(m, knots)
    cells, scores = world(rng, n, m)
    found = cutoffs(groups, cells, scores, TAU)
    assert found.shape == (m * m,)
    for cell in range(0, m * m, 2):
        expected, value = reference(groups, cells, scores, TAU, cell)
        assert math.isinf(expected) == math.isinf(found[cell]), (cell, expected, found[cell])
        if math.isinf(expected):
            continue
        # HiGHS leaves rows infeasible by up to 1e-10 times its own scaling; jitter separates vertices by more
        scale = np.abs(scores).max()
        assert found[cell] == pytest.approx(expected, rel=1e-9, abs=1e-9 * scale)
        vertex = _Vertex(groups, cells, scores, TAU) if np.linalg.matrix_rank(groups[cells]) == knots**2 else None
        if vertex is not None:
            vertex.cutoff(cell)
            ours = objective(groups, cells, scores, TAU, cell, vertex.coefficients)
            assert ours == pytest.approx(value, rel=1e-9, abs=1e-9 * scale)


@pytest.mark.parametrize("n", [8, 9, 10, 57, 400])
def test_one_group_is_the_conformal_order_statistic(n, rng):
    scores = rng.random(n)
    found = cutoffs(np.ones((3, 1)), rng.integers(0, 3, n), scores, 0.85 + 1e-9)
    expected = conformal_threshold(scores, 0.15)
    assert found == pytest.approx(np.full(3, expected), rel=1e-12)
    assert (found >= expected).all()  # rounded outward


def test_separate_groups_have_their_own_order_statistics(rng):
    cells, scores = rng.integers(0, 4, 200), rng.random(200)
    found = cutoffs(np.eye(4), cells, scores, 0.85 + 1e-9)
    assert found == pytest.approx([conformal_threshold(scores[cells == c], 0.15 - 1e-9) for c in range(4)], rel=1e-12)


def test_a_step_may_meet_thousands_of_rows_of_one_cell(rng):
    # the first vertex goes through the cell that has few rows, far below all others
    cells, scores = np.repeat([0, 1], [20, 6000]), np.r_[rng.random(20), 5 + rng.random(6000)]
    found = cutoffs(np.ones((2, 1)), cells, scores, 0.85 + 1e-9)
    assert found == pytest.approx(np.full(2, conformal_threshold(scores, 0.15)), rel=1e-12)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_rows_of_a_cell_are_below_the_vertex_up_to_its_split(world, rng):
    cells, scores = world(rng, 700, 5)
    columns, spanned = _independent(hats(5, 3), np.unique(cells))
    groups = hats(5, 3)[:, columns]
    vertex = _Vertex(groups, cells, scores, TAU)
    rows = np.arange(vertex.scores.size)
    for cell in spanned:
        assert math.isfinite(vertex.cutoff(cell))
        values = (groups @ vertex.coefficients)[vertex.cells]
        rounding = np.abs(groups @ vertex.inverse) @ np.abs(vertex.scores[vertex.basis]) * 8 * EPS * vertex.basis.size
        clear = np.abs(vertex.scores - values) > rounding[vertex.cells]  # the others may be on either side
        below = rows < vertex.split[vertex.cells]
        assert clear.mean() > 0.5
        np.testing.assert_array_equal(below[clear], (vertex.scores < values)[clear])
        np.testing.assert_array_equal(vertex.split[vertex.cells[vertex.basis]], vertex.basis)


def test_first_order_conditions_hold_in_every_cell(rng):
    # of all rows with the test row, weighted by a soft group, at most tau lie below the vertex, and tau at or below
    groups, (cells, scores) = hats(6, 3), random_rows(rng, 800, 6)
    vertex = _Vertex(groups, cells, scores, TAU)
    for cell in range(36):
        vertex.cutoff(cell)
        values = (groups @ vertex.coefficients)[vertex.cells]
        rows = np.arange(vertex.scores.size)
        on = np.isin(rows, vertex.basis)
        phi = groups[vertex.cells]
        below, at_most = (
            phi[(vertex.scores < values) & ~on].sum(axis=0),
            phi[(vertex.scores <= values) | on].sum(axis=0),
        )
        total = phi.sum(axis=0) + groups[cell]
        assert (below <= TAU * total + 1e-6).all()
        assert (at_most >= TAU * total - 1e-6).all()


@pytest.mark.parametrize("n", [60, 200])
def test_coverage_of_every_soft_group_follows_its_bounds(n, rng):
    """E[phi (hit - tau)] of a new row is at least 0, and at most what the d rows on the vertex weigh: d / (n + 1)."""
    groups, repeats, new, tau = hats(6, 2), 120, 400, 0.8 + 1e-9
    excess = np.empty((repeats, 4))
    for repeat in range(repeats):
        cells = rng.integers(0, 36, n + new)
        scores = rng.gamma(1 + cells // 6, size=n + new)
        found = cutoffs(groups, cells[:n], scores[:n], tau)
        hits = scores[n:] <= found[cells[n:]]
        excess[repeat] = (groups[cells[n:]] * (hits - 0.8)[:, None]).mean(axis=0)
    error = excess.std(axis=0) / math.sqrt(repeats)
    assert (excess.mean(axis=0) > -4 * error).all()
    assert (excess.mean(axis=0) < 4 / (n + 1) + 4 * error).all()
    assert (4 * error < 0.015).all()  # small enough to see one row in sixty


def test_of_several_optima_the_largest_cutoff_is_taken():
    # tau (4 + 1) = 2 exactly: every value between the second and the third score is an optimum
    scores = np.array([1.0, 2.0, 3.0, 4.0])
    found = cutoffs(np.ones((1, 1)), np.zeros(4, int), scores, 0.4)
    assert found == pytest.approx(3.0)


def test_equal_rows_count_as_many():
    scores = np.repeat([1.0, 5.0, 9.0], [70, 20, 10])
    found = cutoffs(np.ones((1, 1)), np.zeros(100, int), scores, 0.85 + 1e-9)
    assert found == pytest.approx(conformal_threshold(scores, 0.15))


def test_groups_without_rows_have_no_cutoff(rng):
    groups = hats(5, 2)
    cells = rng.integers(0, 5, 300)  # one edge of the grid
    found = cutoffs(groups, cells, 1 + rng.random(300), TAU).reshape(5, 5)
    assert np.isfinite(found[0]).all()
    assert np.isinf(found[1:]).all()
    assert np.isinf(cutoffs(groups, cells[:0], np.empty(0), TAU)).all()


def test_order_of_rows_and_of_groups_does_not_matter(rng):
    groups, (cells, scores) = hats(5, 3), correlated(rng, 500, 5)
    order = rng.permutation(500)
    expected = cutoffs(groups, cells, scores, TAU)
    np.testing.assert_allclose(cutoffs(groups, cells[order], scores[order], TAU), expected, rtol=1e-10)
    np.testing.assert_allclose(cutoffs(groups[:, rng.permutation(9)], cells, scores, TAU), expected, rtol=1e-10)


def test_indicators_beside_hats_are_reduced_to_full_rank(rng):
    hat, cells, scores = hats(4, 2), rng.integers(0, 16, 600), 1 / rng.random(600)
    halves = np.eye(2)[np.arange(16) // 8]
    found = cutoffs(np.hstack([hat, halves]), cells, scores, TAU)
    np.testing.assert_allclose(found, cutoffs(np.hstack([hat, halves[:, 1:]]), cells, scores, TAU), rtol=1e-9)


def test_the_order_of_the_cells_changes_no_cutoff(rng):
    """There and back through the rows of a grid, or one cell after the other: the same optima."""
    grid = np.stack(np.meshgrid(np.linspace(0, 1, 4), np.linspace(0, 1, 5), indexing="ij"), axis=-1).reshape(-1, 2)
    groups = np.c_[np.ones(20), grid]
    cells, scores = rng.integers(0, 20, 600), rng.random(600)
    one_by_one, turning = (cutoffs(groups, cells, scores, 0.9, width=width) for width in (1, 5))
    np.testing.assert_allclose(turning, one_by_one, rtol=1e-12)
