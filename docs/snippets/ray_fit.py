"""Fit a GaussianAtypicality with Ray: one task per file, statistics merged pair by pair in further tasks."""

import tempfile
from pathlib import Path

import numpy as np
import ray

from atypicality import GaussianAtypicality
from atypicality.density.distributed import finish, merge, part_statistics


def write_files(folder):
    """Eight pairs of small files: (embeddings, labels)."""
    rng, pairs = np.random.default_rng(0), []
    for i in range(8):
        labels = rng.integers(0, 10, 5000)
        pairs.append((folder / f"embeddings-{i:05d}.npy", folder / f"labels-{i:05d}.npy"))
        np.save(pairs[-1][0], rng.normal(size=(5000, 32)) + labels[:, None])
        np.save(pairs[-1][1], labels)
    return pairs


@ray.remote
def read_part(estimator, embeddings, labels):
    """Statistics of one pair of files."""
    return part_statistics(estimator, np.load(embeddings, mmap_mode="r"), np.load(labels))


def tree(parts):
    """Merge neighbours until one is left: a fixed order, so that every run gives the same digits."""
    join = ray.remote(merge)
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [join.remote(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


if __name__ == "__main__":
    files = write_files(Path(tempfile.mkdtemp()))
    estimator = GaussianAtypicality()

    ray.init(num_cpus=2, include_dashboard=False)
    statistics = ray.get(tree([read_part.remote(estimator, *pair) for pair in files]))
    ray.shutdown()
    gaussian = finish(estimator, statistics)

    x, y = (np.concatenate([np.load(file) for file in column]) for column in zip(*files, strict=True))
    alone = GaussianAtypicality().fit(x, y)
    print(f"{gaussian.counts_.sum()} rows, {gaussian.classes_.size} classes")
    print(f"same covariance: {np.allclose(gaussian.covariance_, alone.covariance_, rtol=1e-10, atol=1e-12)}")
    print(f"same scores: {np.allclose(gaussian.atypicality(x), alone.atypicality(x), rtol=1e-10)}")
