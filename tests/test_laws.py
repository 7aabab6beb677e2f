"""Binomial laws and ranks agree with scipy.stats, which no fit and no evaluation loads."""

import subprocess
import sys

import numpy as np
from scipy import stats

from atypicality.metrics.laws import at_least_beta_binomial, at_most, quantile, ranks

FIT_AND_EVALUATE = """
import sys
import atypicality as aty
rows = aty.datasets.make_world(2000).outputs()
head = aty.ReliabilityHead().fit(rows[:500], rows[500:1500])
head.predict(rows[1500:], max_risk=0.3)
aty.evaluate(head, rows[1500:], max_risk=0.3)
print(sorted({"scipy.stats", "sklearn", "pandas"} & set(sys.modules)))
"""


def test_binomial_laws_are_those_of_scipy_stats(rng):
    n, chance = rng.integers(1, 5000, 2000), rng.uniform(0.001, 0.7, 2000)
    count = rng.integers(-1, n + 1)
    np.testing.assert_allclose(at_most(count, n, chance), stats.binom.cdf(count, n, chance), rtol=1e-9, atol=1e-250)
    for level in (1e-4, 0.05, 0.5, 0.95, 0.999):
        np.testing.assert_array_equal(quantile(level, n, chance), stats.binom.ppf(level, n, chance))


def test_the_beta_binomial_law_is_that_of_scipy_stats(rng):
    for _ in range(50):
        n, a, b = (int(number) for number in rng.integers(1, 300, 3))
        count = int(rng.integers(0, n + 2))
        expected = stats.betabinom.sf(count - 1, n, a, b)
        found = at_least_beta_binomial(count, n, a, b)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-11)  # sf is 1 less a sum there: its rounding


def test_ranks_are_those_of_scipy_stats(rng):
    values = rng.integers(0, 50, 400) / 7
    np.testing.assert_array_equal(ranks(values), stats.rankdata(values))


def test_fitting_and_evaluating_a_head_load_no_package_that_takes_long():
    found = subprocess.run([sys.executable, "-c", FIT_AND_EVALUATE], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
