"""Class mix without labels: what it costs not to know it, beside the least that it can cost.

``python -m benchmarks.class_mix FOLDER ROWS`` reads ``FOLDER/train.npz`` and ``FOLDER/test.npz`` (logits, embeddings,
labels), fits the default recalibration on ROWS of the test rows, draws 1,000 of the others with an exponential class
mix in random order, eight times, and prints errors of the estimated shares, accuracy, and NLL.

The least NLL is that of probabilities averaged over the posterior law of the mix, given its shares and not which class
has which: no method that knows less can be better on average where labels follow the probabilities, as drawn anew here.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import atypicality as aty

DRAWS, ROWS, SWEEPS, BURN_IN = 8, 1000, 160, 40
RATIOS = (1, 10, 100)
COLUMNS = ("none", "shares of the rows", "mix drawn from", "estimated", "least")

Matrix = NDArray[np.float64]


def main(folder: str, n_rows: str) -> int:
    """Print two lines for each mix: labels as they are, and drawn from the probabilities."""
    probs, labels, shares = recalibrated(Path(folder), int(n_rows))
    for ratio in RATIOS:
        for anew in (False, True):
            found = [one_draw(probs, labels, shares, ratio, anew, np.random.default_rng(seed)) for seed in range(DRAWS)]
            nll, l1, accuracy = (np.mean([draw[part] for draw in found], axis=0) for part in range(3))
            costs = ", ".join(f"{name} {cost:+.4f}" for name, cost in zip(COLUMNS, nll - nll[1], strict=True))
            print(f"{ratio}, labels {'drawn' if anew else 'real'}: NLL {nll[1]:.4f}; {costs}", end="; ")
            print(f"L1 {l1[0]:.3f}, counted {l1[1]:.3f}; accuracy {accuracy.round(4).tolist()}", flush=True)
    return 0


def recalibrated(folder: Path, n_rows: int) -> tuple[Matrix, NDArray[np.intp], Matrix]:
    """Recalibrated probabilities and labels of the rows that were not fitted, and the class shares of the others."""
    train, test = (dict(np.load(folder / name)) for name in ("train.npz", "test.npz"))
    density = aty.GaussianAtypicality().fit(train["embeddings"].astype(np.float32), train["labels"])
    embeddings, labels = test["embeddings"].astype(np.float32), test["labels"].astype(int)
    columns = {
        "atypicality": density.atypicality(embeddings),
        "class_log_density": density.class_log_density(embeddings),
    }
    first, rest = np.split(np.random.default_rng(0).permutation(labels.size), [n_rows])
    aware = aty.AtypicalityAwareRecalibration()
    aware.fit(test["logits"][first], labels[first], **{name: column[first] for name, column in columns.items()})
    probs = aware.predict_proba(test["logits"][rest], **{name: column[rest] for name, column in columns.items()})
    shares = np.maximum(np.bincount(labels[first], minlength=probs.shape[1]), 0.5)
    return np.maximum(np.asarray(probs, np.float64), 1e-12), labels[rest], shares / shares.sum()


def one_draw(
    probs: Matrix, labels: NDArray[Any], shares: Matrix, ratio: float, anew: bool, rng: np.random.Generator
) -> tuple[list[float], list[float], list[float]]:
    """NLL as in `COLUMNS`, L1 of estimated and of drawn shares, accuracy as in `COLUMNS`."""
    k = shares.size
    if anew:
        labels = (probs.cumsum(axis=1) > rng.random((len(probs), 1))).argmax(axis=1)
    mix = rng.permutation(ratio ** (-np.arange(k) / (k - 1)))
    mix /= mix.sum()
    weight = (mix / np.maximum(np.bincount(labels, minlength=k), 1))[labels]
    rows = rng.choice(labels.size, ROWS, p=weight / weight.sum())
    probs, labels = probs[rows], labels[rows]
    counted = np.bincount(labels, minlength=k) / ROWS
    found = aty.estimate_class_mix(probs, shares, n_bootstrap=0).shares
    answers = [under(probs, other / shares) for other in (shares, counted, mix, found)]
    answers.append(averaged(probs / shares, mix, found, rng))
    nll = [float(-np.log(answer[np.arange(ROWS), labels]).mean()) for answer in answers]
    accuracy = [float((answer.argmax(axis=1) == labels).mean()) for answer in answers]
    return nll, [float(np.abs(other - counted).sum()) for other in (found, mix)], accuracy


def under(probs: Matrix, ratio: Matrix) -> Matrix:
    """Probabilities (n, k) under another class mix, its ratio to the old one (k,)."""
    raised = probs * ratio
    return raised / raised.sum(axis=1, keepdims=True)


def averaged(ratios: Matrix, mix: Matrix, start: Matrix, rng: np.random.Generator) -> Matrix:
    """Probabilities averaged over orders of `mix`, each as often as it is probable, by Metropolis swaps."""
    k = mix.size
    current = np.empty(k)
    current[np.argsort(start)] = np.sort(mix)
    total = np.zeros_like(ratios)
    for sweep in range(SWEEPS):
        density = ratios @ current
        for i, j in rng.integers(0, k, (8 * k, 2)):
            moved = density + (ratios[:, i] - ratios[:, j]) * (current[j] - current[i])
            if np.log(moved / density).sum() > np.log(rng.random()):
                density = moved
                current[i], current[j] = current[j], current[i]
        if sweep >= BURN_IN:
            total += ratios * current / density[:, None]
    return total / (SWEEPS - BURN_IN)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
