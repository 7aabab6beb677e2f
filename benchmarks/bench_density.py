"""How rare: fitting and scoring against the bare matrix products, the authors' way and scikit-learn; and a big file."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from atypicality import GaussianAtypicality, NeighborAtypicality
from benchmarks.timing import Row, best_times

N_CLASSES, WIDTH = 1000, 512


def rows() -> list[Row]:
    rng = np.random.default_rng(0)
    labels = np.r_[np.arange(N_CLASSES), rng.integers(0, N_CLASSES, 100_000 - N_CLASSES)]
    centres = rng.standard_normal((N_CLASSES, WIDTH), dtype=np.float32)
    train = centres[labels] + rng.standard_normal((labels.size, WIDTH), dtype=np.float32)
    queries = centres[labels[:2000]] + rng.standard_normal((2000, WIDTH), dtype=np.float32)
    found = [row for precision in ("float64", "float32") for row in gaussian_rows(train, labels, queries, precision)]
    return [*found, neighbor_row(train, queries), memory_row()]


def gaussian_rows(train, labels, queries, precision: str) -> list[Row]:
    train, queries = train.astype(precision), queries.astype(precision)
    estimator = GaussianAtypicality(precision=precision)
    fit = best_times({"ours": lambda: estimator.fit(train, labels), "bare": lambda: train.T @ train}, repeats=5)
    whitening = np.linalg.inv(np.linalg.cholesky(estimator.covariance_)).T.astype(precision)
    means = (estimator.means_ @ whitening).T.astype(precision)
    inverse = np.linalg.inv(estimator.covariance_).astype(precision)

    def authors_way() -> object:
        """One full quadratic form for a class; a hundredth of the classes, because all would take minutes."""
        chosen = estimator.means_[: N_CLASSES // 100].astype(precision)
        return [np.einsum("ij,jk,ik->i", queries - m, inverse, queries - m, optimize=True) for m in chosen]

    score = best_times(
        {
            "ours": lambda: estimator.atypicality(queries),
            "bare": lambda: (queries @ whitening) @ means,
            "authors": authors_way,
        },
        repeats=9,
    )
    shape = f"{N_CLASSES} classes, {WIDTH} dimensions, {precision}"
    note = f"{2000 / score['ours']:,.0f} rows/s"
    return [
        Row(f"Gaussian fit, 100,000 rows, {shape}", "bare scatter product", fit["ours"] / fit["bare"], "<= 2"),
        Row(
            f"Gaussian scores, 2,000 rows, {shape}", "two bare products", score["ours"] / score["bare"], "<= 1.5", note
        ),
        Row(
            f"Gaussian scores, 2,000 rows, {shape}",
            "a quadratic form per class",
            100 * score["authors"] / score["ours"],
            ">= 100",
            "measured on 10 classes, times 100",
        ),
    ]


def neighbor_row(train, queries) -> Row:
    from sklearn.neighbors import NearestNeighbors

    ours = NeighborAtypicality(5).fit(train)
    theirs = NearestNeighbors(n_neighbors=5, algorithm="brute").fit(train)
    answers = {}

    def run_ours() -> None:
        answers["ours"] = ours.atypicality(queries)

    def run_theirs() -> None:
        answers["theirs"] = theirs.kneighbors(queries)[0].mean(axis=1)

    seconds = best_times({"ours": run_ours, "theirs": run_theirs}, repeats=3)
    apart = np.max(np.abs(answers["ours"] / answers["theirs"] - 1))
    assert apart < 1e-6, f"distances differ from scikit-learn's by {apart:.1e}"
    note = f"same distances to {apart:.0e}"
    ratio = seconds["theirs"] / seconds["ours"]
    return Row("5 nearest, 2,000 x 100,000 x 512", "sklearn.neighbors brute", ratio, ">= 1.5", note)


PROGRAM = """
import json, sys, threading, time
import numpy as np
import atypicality as aty

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon"))

rows = np.load(sys.argv[1], mmap_mode="r")
labels = np.arange(len(rows)) % 1000
before, peak, done = anonymous(), [0.0], threading.Event()

def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.005)

watcher = threading.Thread(target=watch)
watcher.start()
start = time.perf_counter()
scores = aty.GaussianAtypicality().fit(rows, labels).atypicality(rows)
seconds = time.perf_counter() - start
done.set()
watcher.join()
assert np.isfinite(scores).all() and scores.shape == (len(rows),)
print(json.dumps({"megabytes": peak[0] - before, "seconds": seconds}))
"""


def memory_row(n_rows: int = 1_000_000) -> Row:
    """Peak anonymous memory above the interpreter while a file of two gigabytes is fitted and scored."""
    with tempfile.TemporaryDirectory() as folder:
        path, rng = Path(folder) / "rows.npy", np.random.default_rng(0)
        mapped = np.lib.format.open_memmap(path, "w+", np.float32, (n_rows, WIDTH))
        for start in range(0, n_rows, 20_000):
            mapped[start : start + 20_000] = rng.standard_normal((20_000, WIDTH), dtype=np.float32)
        del mapped
        command = [sys.executable, "-c", PROGRAM, str(path)]
        result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    note = f"{result['megabytes']:.0f} MB, {result['seconds']:.0f} s"
    return Row("Gaussian fit + scores, 1,000,000 x 512 file", "600 MB", result["megabytes"] / 600, "<= 1", note)
