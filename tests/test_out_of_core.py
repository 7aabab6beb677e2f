"""Files larger than the memory they are given: fitted and scored within a ceiling of anonymous memory."""

import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import needs_proc

PROGRAM = """
import json, sys, threading, time
import numpy as np
import atypicality as aty

def anonymous():  # reading a memory map makes file pages resident; they can be dropped and do not count
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon"))

def watched(estimator, queries):
    estimator.fit(rows[:100], labels[:100]).atypicality(rows[:100])  # imports and pools of BLAS come first
    before, peak, done = anonymous(), [0.0], threading.Event()

    def watch():
        while not done.is_set():
            peak[0] = max(peak[0], anonymous())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with aty.blocks.settings(n_threads=2):
        scores = estimator.fit(rows, labels).atypicality(queries)
    done.set()
    watcher.join()
    return {"megabytes": peak[0] - before, "mean": float(scores.mean())}

folder = sys.argv[1]
rows, labels = np.load(f"{folder}/rows.npy", mmap_mode="r"), np.load(f"{folder}/labels.npy")
print(json.dumps({
    "gaussian": watched(aty.GaussianAtypicality(), rows),
    "gaussian float32": watched(aty.GaussianAtypicality(precision="float32"), rows),
    "neighbors": watched(aty.NeighborAtypicality(), rows[:100]),
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """192 MiB of float32 rows on disk, and their labels."""
    folder, rng = tmp_path_factory.mktemp("rows"), np.random.default_rng(0)
    rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.float32, (3 * 2**18, 64))
    labels = rng.integers(0, 20, rows.shape[0])
    labels[:100] = np.arange(100) % 2
    noise = rng.standard_normal((2**16, 64), dtype=np.float32)
    for start in range(0, rows.shape[0], 2**16):
        part = slice(start, start + 2**16)
        rows[part] = noise + labels[part, None] / np.float32(8)
    rows.flush()
    np.save(folder / "labels.npy", labels)
    return folder


@pytest.fixture(scope="module")
def results(folder):
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(folder)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@needs_proc
@pytest.mark.parametrize("name", ["gaussian", "gaussian float32", "neighbors"])
def test_memory_stays_far_below_the_size_of_the_file(name, results):
    result = results[name]
    # per thread a block of 16 MiB, its product and a copy of its labels; statistics and whitening are below 5 MiB
    assert result["megabytes"] < 110
    assert np.isfinite(result["mean"])
