"""Fit a GaussianAtypicality with Spark: one partition per file, treeReduce."""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

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


def read_part(pair):
    """Statistics of one pair of files."""
    return part_statistics(
        GaussianAtypicality(), np.load(pair[0], mmap_mode="r"), np.load(pair[1])
    )


if __name__ == "__main__":
    files = write_files(Path(tempfile.mkdtemp()))
    # the workers' Python must have atypicality, too
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

    builder = SparkSession.builder.master("local[2]")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    parts = spark.sparkContext.parallelize(files, len(files))
    statistics = parts.map(read_part).treeReduce(merge)
    spark.stop()
    gaussian = finish(GaussianAtypicality(), statistics)

    columns = zip(*files, strict=True)
    x, y = (np.concatenate([np.load(file) for file in column]) for column in columns)
    alone = GaussianAtypicality().fit(x, y)
    print(f"{gaussian.counts_.sum()} rows, {gaussian.classes_.size} classes")
    ours, theirs = gaussian.covariance_, alone.covariance_
    print("same covariance:", np.allclose(ours, theirs, rtol=1e-10, atol=1e-12))
    ours, theirs = gaussian.atypicality(x), alone.atypicality(x)
    print("same scores:", np.allclose(ours, theirs, rtol=1e-10))
