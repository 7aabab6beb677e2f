"""ImageNet-size embeddings in a file: the Gaussian fit beside reading the file once and the bare products.

    python -m benchmarks.large                       1,280,000 x 2048 float32, 10.5 GB, made on the spot and deleted
    python -m benchmarks.large --rows 64000          a twentieth of it

The file leaves the system's cache before every reading. Prints and writes benchmarks/results/large.json: seconds,
gigabytes a second, the ratio of the fit to reading plus products, and the peak of anonymous memory during the fit.
"""

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from atypicality import GaussianAtypicality, blocks
from atypicality.density.statistics import _block
from benchmarks import results

CLASSES = 1000
PIECE_ROWS = 4096
SAMPLE = 4
"""The bare products are timed on one block in so many: they do not differ from each other."""
LIMITS = {"ratio": 1.5, "anonymous megabytes": 1000.0}
COLUMNS = ["precision", "fit s", "read s", "products s", "ratio", "fit GB/s", "read GB/s", "peak anonymous MB"]


def main() -> int:
    """Make the file, measure both precisions, write the results."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="atypicality-large-", dir=options.folder) as folder:
        size = options.rows * options.columns * 4
        if (free := shutil.disk_usage(folder).free) < 1.05 * size:
            print(f"{folder} has room for {free / 1e9:.1f} GB and {size / 1e9:.1f} GB are needed; choose --folder,")
            print(f"or --rows {options.rows // 2}.")
            return 2
        path, labels = make_file(Path(folder), options.rows, options.columns)
        rows = [measure(path, labels, precision, options.memory) for precision in ("float64", "float32")]
    shape = f"{options.rows:,} x {options.columns} float32, {CLASSES} classes, {size / 1e9:.1f} GB in one file"
    more = {"shape": shape, "memory": options.memory, "asked": LIMITS, "threads": blocks.n_threads(work=blocks.SCATTER)}
    title = "Gaussian fit of embeddings in a file, beside reading it once and the bare products"
    results.write(Path(options.out), results.document(title, COLUMNS, rows, **more))
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in zip(COLUMNS, row, strict=True)))
    return 0


def make_file(folder: Path, n_rows: int, n_columns: int) -> tuple[Path, np.ndarray]:
    """Rows about class means in one .npy file, and their labels."""
    rng, path = np.random.default_rng(0), folder / "embeddings.npy"
    centres = rng.standard_normal((CLASSES, n_columns), dtype=np.float32)
    noise = rng.standard_normal((4 * PIECE_ROWS, n_columns), dtype=np.float32)
    labels = rng.integers(0, CLASSES, n_rows)
    with open(path, "wb") as file:
        claims = {"descr": "<f4", "fortran_order": False, "shape": (n_rows, n_columns)}
        np.lib.format.write_array_header_1_0(file, claims)
        for start in range(0, n_rows, PIECE_ROWS):
            codes = labels[start : start + PIECE_ROWS]
            first = int(rng.integers(0, 3 * PIECE_ROWS))  # a fresh window of the noise, with signs and scale of its own
            piece = noise[first : first + codes.size] * rng.normal(size=n_columns).astype(np.float32)
            file.write((piece + centres[codes]).data)
        file.flush()
        os.fsync(file.fileno())
    return path, labels


def measure(path: Path, labels: np.ndarray, precision: str, memory: str) -> list[Any]:
    """One row of the table."""
    x = np.load(path, mmap_mode="r")
    size = x.nbytes / 1e9
    read = _cold(path, lambda: read_once(path))
    bare = products(x.shape, precision)
    with Peak() as peak, blocks.settings(memory=memory):
        fit = _cold(path, lambda: GaussianAtypicality(precision=precision).fit(x, labels))
    row = [precision, fit, read, bare, fit / (read + bare), size / fit, size / read, peak.megabytes]
    return [value if isinstance(value, str) else round(value, 3) for value in row]


def read_once(path: Path) -> None:
    """The file from its first byte to its last, into one buffer."""
    buffer = bytearray(16 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def products(shape: tuple[int, int], precision: str) -> float:
    """Seconds that the scatter of all blocks takes, of rows that lie in memory in the right precision."""
    n, d = shape
    height = _block(d, np.dtype(precision))
    block = np.random.default_rng(0).standard_normal((height, d)).astype(precision)
    part = max(height, n // SAMPLE)

    def run() -> None:
        blocks.for_rows(
            lambda rows: block[: rows.stop - rows.start].T @ block[: rows.stop - rows.start],
            part,
            block=height,
            work=blocks.SCATTER,
        )

    return _seconds(run) * n / part


class Peak:
    """The largest anonymous memory of this process while a `with` lasts, in megabytes."""

    def __enter__(self) -> "Peak":
        self.megabytes, self._done = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.megabytes = max(self.megabytes, anonymous_megabytes())


def anonymous_megabytes() -> float:
    """What `RssAnon` says; reading a map makes file pages resident, which the system can drop, and do not count."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 / 1e6 for line in status if line.startswith("RssAnon"))


def _cold(path: Path, run: Callable[[], object]) -> float:
    """Seconds of `run` after the file has left the cache."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return _seconds(run)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_280_000)
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--memory", default="1GB", help="ceiling during the fit")
    parser.add_argument("--folder", default=None, help="where to make the file; the system's temporary folder")
    parser.add_argument("--out", default=str(results.RESULTS / "large.json"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
