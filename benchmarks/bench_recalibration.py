"""Recalibration on 25,000 x 1000 float32 logits, against scikit-learn, torch as the paper runs it, and plain passes."""

import time
import tracemalloc

import numpy as np

from atypicality import blocks
from atypicality.recalibration.solver import Problem, solve
from benchmarks.timing import Row, best_times, elementwise_pass

N_ROWS, N_CLASSES, FAMILY = 25_000, 1000, 10
TORCH_STEPS, PAPER_STEPS = 30, 3000


def rows() -> list[Row]:
    logits, labels, atypicality = image_logits()
    features = np.stack([np.ones_like(atypicality), atypicality, atypicality**2], axis=1)

    def temperature():
        return solve(Problem(logits, labels))

    def aware():
        return solve(Problem(logits, labels, features=features, class_scores=True))

    best = best_times({"pass": elementwise_pass(logits), "temperature": temperature, "aware": aware}, repeats=7)
    rival = best_times({"sklearn": lambda: sklearn_temperature(logits, labels)}, repeats=2)["sklearn"]
    found, peak = peak_memory(aware)
    one, steps, _ = torch_loop(logits, labels, None, stop_at=temperature().loss + 1e-4)
    many, _, reached = torch_loop(logits, labels, features, steps=TORCH_STEPS)
    many *= PAPER_STEPS / TORCH_STEPS
    return [
        Row("temperature scaling", "scikit-learn", rival / best["temperature"], ">= 12"),
        Row(
            "temperature scaling",
            "torch L-BFGS",
            one / best["temperature"],
            ">= 30",
            f"{steps} steps to our loss + 1e-4",
        ),
        Row(
            "paper AAR", "torch L-BFGS, 3000 steps", many / best["aware"], ">= 30", f"{TORCH_STEPS} steps timed, scaled"
        ),
        Row("paper AAR", "its loss less ours", reached - found.loss, ">= -1e-9", f"after those {TORCH_STEPS} steps"),
        Row("paper AAR", "elementwise passes", best["aware"] / best["pass"], "<= 20", f"{found.n_passes:.1f} by count"),
        Row("paper AAR", "MB above the input", peak / 1e6, "<= 60"),
    ]


def image_logits(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits like those of an image model: right in three rows of four, wrong within families of similar classes."""
    rng = np.random.default_rng(seed)
    labels, atypicality = rng.integers(N_CLASSES, size=N_ROWS), rng.gamma(4.0, size=N_ROWS) / 4
    logits = rng.standard_normal((N_ROWS, N_CLASSES), dtype=np.float32) * np.float32(1.9)
    logits += rng.normal(0, 0.5, N_CLASSES).astype(np.float32)
    each, family = np.arange(N_ROWS), labels[:, None] // FAMILY * FAMILY + np.arange(FAMILY)
    logits[each[:, None], family] += rng.normal(4.5, 1.8, family.shape).astype(np.float32)
    logits[each, labels] += (8.9 - 2.2 * atypicality + rng.normal(0, 1.5, N_ROWS)).astype(np.float32)
    return logits, labels, (atypicality - atypicality.mean()) / atypicality.std()


def sklearn_temperature(logits: np.ndarray, labels: np.ndarray) -> object:
    from sklearn.calibration import _TemperatureScaling

    return _TemperatureScaling().fit(logits, labels)


def torch_loop(
    logits: np.ndarray,
    labels: np.ndarray,
    features: np.ndarray | None,
    *,
    stop_at: float = -np.inf,
    steps: int = PAPER_STEPS,
) -> tuple[float, int, float]:
    """Seconds, steps and last loss of the authors' loop: L-BFGS by autograd, lr 0.1, strong Wolfe, c = 0 and S = 1."""
    import torch

    torch.set_num_threads(1)
    z, y = torch.from_numpy(logits), torch.from_numpy(labels)
    columns = torch.ones(len(z), 1) if features is None else torch.from_numpy(features.astype(np.float32))
    coefficients = torch.zeros(columns.shape[1], requires_grad=True)
    scores = torch.ones(z.shape[1], requires_grad=features is not None)
    parameters = [parameter for parameter in (coefficients, scores) if parameter.requires_grad]
    optimiser = torch.optim.LBFGS(parameters, lr=0.1, max_iter=1, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        predicted = z * (columns @ coefficients)[:, None]
        loss = torch.nn.functional.cross_entropy(predicted if features is None else predicted + scores, y)
        loss.backward()
        return loss

    start, step, loss = time.perf_counter(), 0, np.inf
    while step < steps and loss > stop_at:
        loss, step = optimiser.step(closure).item(), step + 1  # one step and its line search; the state is kept
    return time.perf_counter() - start, step, loss


def peak_memory(function) -> tuple[object, float]:
    """What a call returns, and the most bytes that it held beside its input."""
    with blocks.settings(n_threads=1):
        tracemalloc.start()
        result = function()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return result, float(peak)
