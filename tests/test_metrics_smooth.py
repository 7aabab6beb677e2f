import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats

from atypicality.metrics import smooth_ece
from atypicality.metrics.smooth import cosine_moments, smoothed, spread_on_grid


def reflected_kernel(t, x, sigma):
    """The definition: a Gaussian at every mirror image of x, 2m + x and 2m - x."""
    images = np.concatenate([2.0 * m + s * np.atleast_1d(x)[:, None] for m in range(-3, 4) for s in (-1, 1)], axis=1)
    return scipy.stats.norm.pdf(np.asarray(t)[:, None, None], images[None], sigma).sum(axis=2)


def direct_smooth_ece(confidence, correct):
    """Direct sum over all samples and mirror images on a fine grid; bandwidth by bisection."""
    t = (np.arange(2000) + 0.5) / 2000
    residual = (correct - confidence) / confidence.size

    def error(sigma):
        return np.abs(reflected_kernel(t, confidence, sigma) @ residual).mean()

    return scipy.optimize.brentq(lambda sigma: error(sigma) - sigma, 1e-3, 1.0, xtol=1e-10)


def test_one_confidence_is_its_gap():
    # the kernel integrates to 1, so smECE_sigma = |acc - conf| for every sigma
    assert smooth_ece(confidence=np.full(8, 0.75), correct=np.arange(8) < 2) == pytest.approx(0.5, abs=1e-12)
    assert smooth_ece(confidence=[0.0, 0.0], correct=[1, 0]) == pytest.approx(0.5, abs=1e-12)


def test_residuals_of_one_sign_are_their_mean():
    # nothing cancels: the integral of the sum is the sum of the integrals
    confidence = np.array([0.3, 0.5, 0.9])
    assert smooth_ece(confidence=confidence, correct=[0, 0, 0]) == pytest.approx(confidence.mean(), abs=1e-9)


def test_calibrated_in_one_point_is_zero():
    assert smooth_ece(confidence=[0.5, 0.5], correct=[0, 1]) == pytest.approx(0, abs=1e-9)


def test_two_ends_by_hand():
    # Residuals +1 at 0 and -1 at 1: (K(t, 0) - K(t, 1)) / 2 changes sign at t = 1/2 only, so
    # smECE_sigma = P(F < 1/2) - P(F > 1/2) for F the fold of N(0, sigma^2) into [0, 1].
    def difference(sigma):
        below = sum(
            scipy.stats.norm.cdf(2 * m + 0.5, scale=sigma) - scipy.stats.norm.cdf(2 * m - 0.5, scale=sigma)
            for m in range(-20, 21)
        )
        return 2 * below - 1

    expected = scipy.optimize.brentq(lambda sigma: difference(sigma) - sigma, 0.01, 1)
    assert smooth_ece(confidence=[0.0, 1.0], correct=[1, 0]) == pytest.approx(expected, abs=1e-6)


def test_agrees_with_the_direct_sum(rng):
    confidence = rng.beta(4, 1.5, 40)
    correct = rng.random(40) < confidence**1.5
    # the direct sum's midpoint rule errs by about (1/2000)^2 / sigma^2 near its few sign changes
    expected = direct_smooth_ece(confidence, correct)
    assert smooth_ece(confidence=confidence, correct=correct) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("sigma", [0.5, 0.05, 0.01])
def test_cosine_series_is_the_reflected_kernel(sigma):
    curve = smoothed(cosine_moments(spread_on_grid(np.array([0.3]), np.array([1.0]))), sigma)
    t = np.linspace(0, 1, curve.size)
    # sharing the weight between two grid points: h^2 / 8 times the second derivative, at most 0.4 / sigma^3
    bound = 2.0**-32 / 8 * 0.4 / sigma**3 + 1e-9
    np.testing.assert_allclose(curve, reflected_kernel(t, 0.3, sigma)[:, 0], atol=bound)
    assert scipy.integrate.trapezoid(curve, t) == pytest.approx(1, abs=1e-9)


def test_continuous_where_binned_errors_jump(rng):
    correct = np.arange(400) % 2 == 0
    near = [smooth_ece(confidence=0.5 + shift * np.where(correct, 1, -1), correct=correct) for shift in (-1e-6, 1e-6)]
    assert near[0] == pytest.approx(near[1], abs=1e-5)  # ECE is 0.5 for one and 0 for the other


def test_shrinks_to_zero_for_a_calibrated_model(rng):
    sizes = (1_000, 100_000)
    values = []
    for size in sizes:
        confidence = rng.random(size)
        values.append(smooth_ece(confidence=confidence, correct=rng.random(size) < confidence))
    assert values[1] < values[0] / 3  # about n ** -(1/3) as the bandwidth falls along: 4.6 expected
