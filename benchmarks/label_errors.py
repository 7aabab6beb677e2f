"""Flipped labels found: ours beside cleanlab's, from the same probabilities.

``python -m benchmarks.label_errors FOLDER`` reads the logits, embeddings and labels of ``FOLDER/test.npz``, flips one
label in twenty at random, ranks the labels, and prints how many of the first 500 were flipped, for six draws.
"""

import sys
from pathlib import Path

import numpy as np
from cleanlab.rank import get_label_quality_scores
from scipy.special import softmax

from atypicality.evaluation.suspects import label_credibility

SHARE, LISTED, DRAWS = 0.05, 500, 6


def main(folder: str) -> int:
    """Print one line per draw; the exit status says whether ours found at least as many every time."""
    with np.load(Path(folder, "test.npz")) as stored:
        logits, labels = stored["logits"].astype(np.float64), stored["labels"].astype(int)
        embeddings = stored["embeddings"].astype(np.float32)
    probs, k = softmax(logits, axis=1), logits.shape[1]
    behind = 0
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        flipped = rng.choice(labels.size, int(SHARE * labels.size), replace=False)
        noisy = labels.copy()
        noisy[flipped] = (labels[flipped] + rng.integers(1, k, flipped.size)) % k
        bad = np.isin(np.arange(labels.size), flipped)
        ours, _, _ = label_credibility(probs, noisy, embeddings, most=LISTED)
        theirs = np.argsort(get_label_quality_scores(noisy, probs), kind="stable")[:LISTED]
        print(f"draw {seed}: ours {bad[ours].mean():.3f}, cleanlab {bad[theirs].mean():.3f}")
        behind += bad[ours].sum() < bad[theirs].sum()
    return int(behind > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
