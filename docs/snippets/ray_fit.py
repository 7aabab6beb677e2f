"""Fit a GaussianAtypicality with Ray: one task per file, merged pair by pair."""

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
        pairs.append(
            (folder / f"embeddings-{i:05d}.npy", folder / f"labels-{i:05d}.npy")
        )
        np.save(pairs[-1][0], rng.normal(size=(5000, 32)) + labels[:, None])
        np.save(pairs[-1][1], labels)
    return pairs


@ray.remote
def read_part(estimator, embeddings, labels):
    """Statistics of one pair of files."""
    return part_statistics(
        estimator, np.load(embeddings, mmap_mode="r"), np.load(labels)
    )


def tree(parts):
    """Merge neighbours until one is left: a fixed order, the same digits each run."""
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

    columns = zip(*files, strict=True)
    x, y = (np.concatenate([np.load(file) for file in column]) for column in columns)
    alone = GaussianAtypicality().fit(x, y)
    print(f"{gaussian.counts_.sum()} rows, {gaussian.classes_.size} classes")
    ours, theirs = gaussian.covariance_, alone.covariance_
    print("same covariance:", np.allclose(ours, theirs, rtol=1e-10, atol=1e-12))
    ours, theirs = gaussian.atypicality(x), alone.atypicality(x)
    print("same scores:", np.allclose(ours, theirs, rtol=1e-10))
