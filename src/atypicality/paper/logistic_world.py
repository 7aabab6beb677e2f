"""The logistic world with Gaussian inputs: maximum-likelihood fits, and integration over what they leave open.

`atypicality.paper.theory` explains the symbols. A fit is drawn at random; everything after it is Gaussian quadrature.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import chi2

from atypicality import blocks
from atypicality.blocks.progress import track
from atypicality.metrics.signal import logistic_coefficients

__all__ = ["FittedWorld", "Nodes", "group_nodes", "training_draws", "truth_along"]

Array = NDArray[np.float64]

_RADII, _ANGLES, _NORMALS = 24, 40, 40  # doubling them moves no result by more than 1e-9


def training_draws(n_train: int, n_features: int, norm: float, n_draws: int, random_state: int) -> Array:
    """Norm and cosine of the fitted coefficients for every training draw, (draws, 2)."""
    seeds = np.random.SeedSequence([random_state, n_train]).spawn(n_draws)

    def draw(rows: slice) -> list[tuple[float, float]]:
        return [_one_draw(n_train, n_features, norm, np.random.default_rng(seed)) for seed in seeds[rows]]

    steps = blocks.map_rows(draw, n_draws, block=1, threads=1)  # short calls: two threads take 1.4 times as long
    return np.concatenate(list(track(steps, f"Fitting on {n_train} rows", total=n_draws, unit="draws")))


def _one_draw(n_train: int, n_features: int, norm: float, rng: np.random.Generator) -> tuple[float, float]:
    inputs = rng.standard_normal((n_train, n_features))
    labels = rng.random(n_train) < expit(norm * inputs[:, 0])  # by symmetry the truth may point along the first axis
    coefficients = _fit_logistic(inputs, labels)
    fitted_norm = float(np.linalg.norm(coefficients))
    return fitted_norm, float(coefficients[0]) / fitted_norm


def _fit_logistic(inputs: Array, labels: NDArray[np.bool_]) -> Array:
    """Maximum likelihood, where it is finite."""
    coefficients = logistic_coefficients(inputs, labels, strength=0.0)
    if ((inputs @ coefficients > 0) == labels).all():
        raise ValueError(
            f"n_train={labels.size} is too small for n_features={inputs.shape[1]}: some training draw can be separated "
            "without error, and its maximum likelihood is infinite. Use more rows or a smaller norm."
        )
    return coefficients


def truth_along(coordinate: Array, norm: float, cosine: float) -> Array:
    """P(Y = 1) given the input's coordinate along the fitted direction, whatever its radius."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NORMALS)
    noise = norm * math.sqrt(1 - cosine**2) * nodes
    return np.asarray(expit(norm * cosine * coordinate[..., None] + noise) @ (weights / weights.sum()))


def group_nodes(n_features: int, n_groups: int) -> tuple[Array, Array]:
    """Coordinates along the fitted direction above 0 in every group, (groups, radii, angles), and their weights."""
    inside, radius_weights = _level_nodes(_RADII)
    radii = np.sqrt(chi2.ppf((np.arange(n_groups)[:, None] + inside) / n_groups, n_features))
    sphere, sphere_weights = _sphere_nodes(n_features, positive=True)
    return radii[:, :, None] * sphere, radius_weights[:, None] * sphere_weights


@dataclass(frozen=True)
class FittedWorld:
    """A fitted linear classifier in the logistic world: its norm, and its cosine to the true coefficients."""

    n_features: int
    norm: float
    fitted_norm: float
    cosine: float

    @property
    def scale(self) -> float:
        """Multiplier of the logits that undoes the excess norm; the best one is below it, but of its order."""
        return self.norm * self.cosine / self.fitted_norm

    def everywhere(self) -> "Nodes":
        """Nodes over all levels of atypicality."""
        levels, weights = _level_nodes(4 * _RADII)
        return self._nodes(levels, weights)

    def at(self, level: float) -> "Nodes":
        """Nodes at one quantile level of atypicality."""
        return self._nodes(np.array([level]), np.ones(1))

    def _nodes(self, levels: Array, level_weights: Array) -> "Nodes":
        radius = np.sqrt(chi2.ppf(levels, self.n_features))[:, None]
        sphere, weights = _sphere_nodes(self.n_features)
        along = radius * sphere
        across = np.sqrt(radius**2 - along**2)  # the rest is uniform on a sphere of one dimension less
        rest, rest_weights = _sphere_nodes(self.n_features - 1)
        shift = self.norm * math.sqrt(1 - self.cosine**2) * across[..., None] * rest
        truth = np.asarray(expit(self.norm * self.cosine * along[..., None] + shift) @ rest_weights)
        return Nodes(self.fitted_norm * along, truth, level_weights[:, None] * weights)


@dataclass(frozen=True)
class Nodes:
    """Logits of the classifier, P(Y = 1 | logit, atypicality), and weights that sum to 1."""

    logits: Array
    truth: Array
    weights: Array


def _unit_nodes(n_nodes: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    return (nodes + 1) / 2, weights / 2


def _level_nodes(n_nodes: int) -> tuple[Array, Array]:
    """Nodes and weights on (0, 1) for functions of a quantile, whose slope is infinite at 0 and 1.

    With p = v^3 (10 - 15 v + 6 v^2), dp = 30 v^2 (1 - v)^2 dv vanishes at both ends faster than the slope grows.
    """
    nodes, weights = _unit_nodes(n_nodes)
    return nodes**3 * (10 - 15 * nodes + 6 * nodes**2), weights * 30 * nodes**2 * (1 - nodes) ** 2


def _sphere_nodes(dimension: int, *, positive: bool = False) -> tuple[Array, Array]:
    """Nodes and weights for one coordinate of a uniform point on the unit sphere.

    With s = sin(phi) the density (1 - s^2)^((d - 3) / 2) ds becomes cos(phi)^(d - 2) dphi, smooth for every d >= 2.
    """
    nodes, weights = _unit_nodes(_ANGLES)
    angles = nodes * math.pi / 2 if positive else (nodes - 0.5) * math.pi
    weights = weights * np.cos(angles) ** (dimension - 2)
    return np.sin(angles), weights / weights.sum()
