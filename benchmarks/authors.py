"""The paper's algorithms, written from its description as plainly as most people would write them.

Appendix "Input Atypicality Estimation", "Temperature Scaling", "Atypicality-Aware Recalibration" and "Conformal
Prediction": maximum likelihood means and one covariance, log-densities class by class; all distances, the five
smallest; L-BFGS of PyTorch with strong Wolfe line search, learning rate 0.1 and at most 3000 iterations; sets as the
released code computes them, by cumulative sums along the order of `argsort`. Arrays keep the type they come in.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "Recalibration",
    "aware_sets",
    "conformal_sets",
    "expected_calibration_error",
    "gaussian_fit",
    "gaussian_scores",
    "neighbor_distances",
    "recalibrate",
    "standardised",
    "vector_scaling",
]

ITERATIONS, RATE = 3000, 0.1


def gaussian_fit(x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Class means (k, d), the covariance around them (d, d) and its inverse."""
    means = np.stack([x[labels == label].mean(axis=0) for label in range(labels.max() + 1)])
    centred = x - means[labels]
    covariance = centred.T @ centred / len(x)
    return means, covariance, np.linalg.inv(covariance)


def gaussian_scores(x: np.ndarray, means: np.ndarray, covariance: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Minus the largest log-density of every row (n,): one quadratic form for every class."""
    constant = x.shape[1] * math.log(2 * math.pi) + np.linalg.slogdet(covariance)[1]
    best = np.full(len(x), -np.inf)
    for mean in means:
        centred = x - mean
        np.maximum(best, -0.5 * (((centred @ inverse) * centred).sum(axis=1) + constant), out=best)
    return -best


def neighbor_distances(queries: np.ndarray, train: np.ndarray, n_neighbors: int = 5) -> np.ndarray:
    """Mean distance to the nearest training rows (n,), from the matrix of all distances."""
    import torch

    distances = torch.cdist(torch.from_numpy(queries), torch.from_numpy(train))
    return distances.topk(n_neighbors, largest=False).values.mean(dim=1).numpy()


@dataclass(frozen=True)
class Recalibration:
    """What a loop of PyTorch found: parameters, and whether it ended by itself."""

    coefficients: np.ndarray
    scores: np.ndarray
    iterations: int
    finished: bool


def recalibrate(
    logits: np.ndarray, labels: np.ndarray, atypicality: np.ndarray | None = None, *, budget: float = math.inf
) -> Recalibration:
    """Temperature scaling, or with atypicality (standardised) the paper's recalibration with its k + 3 parameters.

    A loop that is not done after `budget` seconds is stopped where it is.
    """
    import torch

    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    if atypicality is None:
        temperature = torch.ones(1, requires_grad=True)
        steps, finished = _minimise(
            lambda: torch.nn.functional.cross_entropy(z / temperature, y), [temperature], budget=budget
        )
        return Recalibration(1 / temperature.detach().numpy(), np.zeros(z.shape[1]), steps, finished)
    a = torch.from_numpy(atypicality.astype(logits.dtype))
    c = torch.zeros(3, dtype=z.dtype, requires_grad=True)
    scores = torch.ones(z.shape[1], dtype=z.dtype, requires_grad=True)

    def loss() -> Any:
        multiplier = c[0] + c[1] * a + c[2] * a**2
        return torch.nn.functional.cross_entropy(multiplier[:, None] * z + scores, y)

    steps, finished = _minimise(loss, [c, scores], budget=budget)
    return Recalibration(c.detach().numpy(), scores.detach().numpy(), steps, finished)


def vector_scaling(logits: np.ndarray, labels: np.ndarray) -> Recalibration:
    """A scale and a bias for every class, in the same loop."""
    import torch

    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    scale = torch.ones(z.shape[1], dtype=z.dtype, requires_grad=True)
    bias = torch.zeros(z.shape[1], dtype=z.dtype, requires_grad=True)
    found = _minimise(lambda: torch.nn.functional.cross_entropy(scale * z + bias, y), [scale, bias])
    return Recalibration(scale.detach().numpy(), bias.detach().numpy(), *found)


def standardised(atypicality: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1 over the calibration rows."""
    return (atypicality - atypicality.mean()) / atypicality.std()


def _minimise(loss: Any, parameters: list[Any], *, budget: float = math.inf) -> tuple[int, bool]:
    """Iterations, and whether the optimiser stopped by itself rather than at the budget."""
    import torch

    options = {"lr": RATE, "line_search_fn": "strong_wolfe"}
    end = time.process_time() + budget

    def closure() -> Any:
        if time.process_time() > end:
            raise TimeoutError
        optimiser.zero_grad()
        value = loss()
        value.backward()
        return value

    optimiser = torch.optim.LBFGS(parameters, max_iter=ITERATIONS, **options)
    try:
        optimiser.step(closure)
    except TimeoutError:
        return _iterations(optimiser), False
    return _iterations(optimiser), True


def _iterations(optimiser: Any) -> int:
    return int(next(iter(optimiser.state.values()))["n_iter"])


def conformal_sets(
    probs: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    alpha: float,
    *,
    k_reg: int = 0,
    penalty: float = 0.0,
    seed: int = 0,
) -> np.ndarray:
    """APS, or RAPS with a penalty, as the released code has them: bool (n, k).

    A draw per calibration row; a set holds every class whose mass before it is within the threshold, and the top class.
    """
    scores = _label_scores(probs, labels, k_reg, penalty, seed)
    return _sets_within(test, _quantile(scores, alpha), k_reg, penalty)


def aware_sets(
    probs: np.ndarray,
    labels: np.ndarray,
    atypicality: np.ndarray,
    test: np.ndarray,
    test_atypicality: np.ndarray,
    alpha: float,
    *,
    k_reg: int = 0,
    penalty: float = 0.0,
    n_groups: int = 6,
    seed: int = 0,
) -> np.ndarray:
    """AA-APS or AA-RAPS: one threshold for every pair of a group of confidence and a group of atypicality."""
    edges = [np.quantile(v, np.arange(1, n_groups) / n_groups) for v in (probs.max(axis=1), atypicality)]
    found = _label_scores(probs, labels, k_reg, penalty, seed)
    group = _cells(edges, probs, atypicality, n_groups)
    thresholds = np.array(
        [_quantile(found[group == g], alpha) if (group == g).any() else np.inf for g in range(n_groups**2)]
    )
    group = _cells(edges, test, test_atypicality, n_groups)
    return _sets_within(test, thresholds[group][:, None], k_reg, penalty)


def _regularised(probs: np.ndarray, k_reg: int, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-probs, axis=1)
    charge = np.where(np.arange(probs.shape[1]) < k_reg, 0.0, penalty)
    return order, np.take_along_axis(probs, order, axis=1) + charge


def _label_scores(probs: np.ndarray, labels: np.ndarray, k_reg: int, penalty: float, seed: int) -> np.ndarray:
    order, values = _regularised(probs, k_reg, penalty)
    place = np.arange(len(labels)), (order == labels[:, None]).argmax(axis=1)
    return values.cumsum(axis=1)[place] - np.random.default_rng(seed).random(len(labels)) * values[place]


def _quantile(scores: np.ndarray, alpha: float) -> float:
    """The finite-sample rank, at most the largest score."""
    return float(np.sort(scores)[min(math.ceil((scores.size + 1) * (1 - alpha)), scores.size) - 1])


def _sets_within(probs: np.ndarray, threshold: Any, k_reg: int, penalty: float) -> np.ndarray:
    order, values = _regularised(probs, k_reg, penalty)
    accepted = values.cumsum(axis=1) - values <= threshold
    accepted[:, 0] = True
    sets = np.empty_like(accepted)
    np.put_along_axis(sets, order, accepted, axis=1)
    return sets


def _cells(edges: list[np.ndarray], probs: np.ndarray, atypicality: np.ndarray, n_groups: int) -> np.ndarray:
    confidence = np.searchsorted(edges[0], probs.max(axis=1))
    return confidence * n_groups + np.searchsorted(edges[1], atypicality)


def expected_calibration_error(probs: np.ndarray, labels: np.ndarray, n_bins: int = 10) -> float:
    """Share of rows times the gap of accuracy and confidence, bin by bin."""
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    total = 0.0
    for low in np.arange(n_bins) / n_bins:
        inside = (confidence > low) & (confidence <= low + 1 / n_bins)
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return float(total)
