"""The share of the uniform distribution: exact posteriors, and what it is for."""

import numpy as np
import pytest

from atypicality import AtypicalityAwareRecalibration
from atypicality.recalibration.solver import Problem, label_losses, row_losses, solve
from atypicality.recalibration.uniform import PRIOR, uniform_share


@pytest.mark.parametrize("n", [1, 20, 200, 5000])
@pytest.mark.parametrize("missed", [0, 1, 7])
def test_share_is_the_mean_of_a_beta_where_rows_are_clear(n, missed):
    # certain labels have the likelihood 1 - w, ruled-out ones w: with the prior Beta(a, 1), Beta(a + m, n - m + 1)
    missed = min(missed, n)
    losses = np.r_[np.full(missed, 600.0), np.zeros(n - missed)]
    expected = (PRIOR + missed) / (PRIOR + n + 1)
    assert uniform_share(losses, np.ones(n), 10**9) == pytest.approx(expected, rel=0.01)


def test_rows_that_say_nothing_leave_the_prior():
    # a label with probability 1 / k is as likely under the uniform distribution: the mean of Beta(a, 1) is a / (a + 1)
    found = uniform_share(np.full(50, np.log(8.0)), np.ones(50), 8)
    assert found == pytest.approx(PRIOR / (PRIOR + 1), rel=1e-3)


def test_a_count_of_two_is_a_repeated_row(rng):
    losses, counts = rng.exponential(3.0, 60), rng.integers(1, 4, 60).astype(float)
    repeated = np.repeat(losses, counts.astype(int))
    assert uniform_share(losses, counts, 20) == pytest.approx(uniform_share(repeated, np.ones(repeated.size), 20))


def test_losses_beyond_the_range_of_float64_count_as_ruled_out():
    assert uniform_share(np.array([0.0, 1e6]), np.ones(2), 5) == uniform_share(np.array([0.0, 800.0]), np.ones(2), 5)


@pytest.mark.parametrize("weighted", [False, True])
def test_evenly_spaced_rows_stand_for_all(rng, weighted):
    logits, labels = rng.normal(size=(500, 4)), rng.integers(0, 4, 500)
    weight = np.where(np.arange(500) % 2, 0.0, 3.0) if weighted else None
    problem = Problem(logits, labels, sample_weight=weight)
    solution = solve(problem)
    losses, counts = label_losses(problem, solution, 100)
    used = np.flatnonzero(problem.weights > 0)[:: 3 if weighted else 5]
    np.testing.assert_allclose(losses, row_losses(problem, solution)[used], rtol=1e-12)
    np.testing.assert_allclose(counts, 3.0 if weighted else 1.0)


def test_labels_that_nothing_predicts_are_counted_and_cost_less(seed):
    rng = np.random.default_rng(seed)
    n, k, share = 4000, 50, 0.01
    labels = rng.integers(0, k, n)
    logits = 12.0 * np.eye(k)[labels] + rng.normal(size=(n, k))  # nearly certain
    labels = np.where(rng.random(n) < share, rng.integers(0, k, n), labels)
    rows, rest = slice(0, 2000), slice(2000, None)
    found = AtypicalityAwareRecalibration(covariates=("margin",)).fit(logits[rows], labels[rows])

    def loss():
        return -np.log(found.predict_proba(logits[rest])[np.arange(2000), labels[rest]]).mean()

    with_share, learnt = loss(), k * found.floor_
    found.floor_ = 0.0
    assert 0.01 / 2000 < learnt < 2 * share  # the temperature takes part of them up
    assert with_share < loss() + 1 / 2000
