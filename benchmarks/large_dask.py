"""ImageNet-size embeddings in files: a local Dask cluster of two workers beside one process, in numbers and seconds.

    python -m benchmarks.large_dask --rows 1280000

Files are `embeddings-00000.npy, ...` (float32) and `labels-00000.npy, ...`; those that a folder already holds are used,
others are made. Writes benchmarks/results/large-dask.json.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distributed as dd
import numpy as np

from atypicality import GaussianAtypicality
from atypicality.integrations import dask as cluster
from benchmarks import results

CLASSES = 1000
SHARD_ROWS = 64_000
ASKED = 1e-10


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        written = _timed(lambda: write_shards(folder, options.rows, options.columns))[1]
        embeddings, labels = sorted(folder.glob("embeddings-*.npy")), sorted(folder.glob("labels-*.npy"))
        many, cluster_seconds, peaks = _on_cluster(embeddings, labels, options.workers)
        alone, alone_seconds = _timed(lambda: _in_one_process(embeddings, labels))
    gaps = {name: _gap(getattr(many, name), getattr(alone, name)) for name in ("means_", "covariance_")}
    rows = [
        ["local cluster", options.workers, round(cluster_seconds, 1), round(max(peaks))],
        ["one process", 1, round(alone_seconds, 1), None],
    ]
    more = {
        "shape": f"{many.counts_.sum()} x {options.columns} float32 in {len(embeddings)} files",
        "seconds to write the files": round(written, 1),
        "largest difference, relative to the largest entry": gaps,
        "peak anonymous megabytes of each worker": {str(i): round(peak) for i, peak in enumerate(peaks)},
        "same to 1e-10": max(gaps.values()) <= ASKED,
    }
    columns = ["run", "workers", "seconds", "peak anonymous MB"]
    title = "Gaussian fit of embeddings in files, on a local Dask cluster and in one process"
    found = results.document(title, columns, rows, packages=("dask", "distributed"), **more)
    results.write(results.RESULTS / "large-dask.json", found)
    print("\n".join(f"{name}: {value}" for name, value in [*more.items(), *((row[0], row[1:]) for row in rows)]))


def write_shards(folder: Path, n_rows: int, n_columns: int) -> None:
    """Rows about 1000 class means, in shards; files that exist are left as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    centres = np.random.default_rng(0).standard_normal((CLASSES, n_columns), dtype=np.float32)
    for shard, start in enumerate(range(0, n_rows, SHARD_ROWS)):
        x, y = folder / f"embeddings-{shard:05d}.npy", folder / f"labels-{shard:05d}.npy"
        if x.exists() and y.exists():
            continue
        rng, n = np.random.default_rng([1, shard]), min(SHARD_ROWS, n_rows - start)
        labels = rng.integers(0, CLASSES, n)
        rows = rng.standard_normal((n, n_columns), dtype=np.float32)
        for part in np.array_split(np.arange(n), max(1, n // 4096)):
            rows[part] += centres[labels[part]]
        np.save(x, rows)
        np.save(y, labels)


def _on_cluster(embeddings: list[Path], labels: list[Path], n_workers: int) -> tuple[Any, float, list[float]]:
    made = dict(n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0")
    with dd.LocalCluster(**made) as workers, dd.Client(workers, set_as_default=False) as client:
        pids = sorted(client.run(os.getpid).values())
        client.run(lambda: __import__("atypicality").GaussianAtypicality)  # loaded before the clock starts
        with _Watch(pids) as watch:
            fitted, seconds = _timed(lambda: cluster.fit(GaussianAtypicality(), embeddings, labels, client=client))
    return fitted, seconds, [watch.peaks[pid] for pid in pids]


def _in_one_process(embeddings: list[Path], labels: list[Path]) -> Any:
    """All files one after the other, each on all cores."""
    gaussian = GaussianAtypicality()
    for x, y in zip(embeddings, labels, strict=True):
        gaussian.partial_fit(np.load(x, mmap_mode="r"), np.load(y))
    assert gaussian.rank_
    return gaussian


class _Watch:
    """The most anonymous memory of processes, in megabytes, sampled while a `with` runs."""

    def __init__(self, pids: list[int], every: float = 0.05) -> None:
        self.peaks, self._every, self._done = dict.fromkeys(pids, 0.0), every, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(self._every):
            for pid in self.peaks:
                self.peaks[pid] = max(self.peaks[pid], _anonymous(pid))


def _anonymous(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0.0)


def _gap(found: Any, expected: Any) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    found = run()
    return found, time.perf_counter() - start


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_280_000)
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", help="where the files are, or are to be; by default a temporary one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
