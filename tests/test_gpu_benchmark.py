"""The benchmark of the ImageNet-size problem, rehearsed in small on the CPU, and its table in the documentation."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from conftest import needs

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def script():
    """The script as a module, which imports no framework before it measures."""
    spec = importlib.util.spec_from_file_location("gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    paths = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = paths
    return module


@needs("torch")
def test_every_stage_runs_on_the_device_and_agrees_with_the_cpu(tmp_path, script, as_device, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code = script.main(["--scale", "0.001", "--out", str(tmp_path)])
    results = json.loads((tmp_path / "gpu-cpu.json").read_text())
    assert [row["stage"] for row in results["rows"] if not row["met"]] == []
    assert code == 0
    assert len(results["rows"]) == 13
    assert {"fp64", "fp32", "copy"} <= set(results["rates"])
    assert script.page_of(results) in capsys.readouterr().out


def test_the_whole_problem_needs_a_device(script, capsys, monkeypatch):
    class Elsewhere:
        name, cuda = "torch", False

    monkeypatch.setattr(script, "library", lambda name: Elsewhere)
    assert script.main([]) == 2
    assert "finds no CUDA device here. Rehearse on the CPU with --scale 0.01." in capsys.readouterr().err


def test_a_stage_that_fails_is_a_line_of_the_table(script):
    class Quiet:
        name = "torch"
        free = staticmethod(lambda: None)

    def fail():
        raise RuntimeError("out of | memory\nhere")

    stage = script.Stage("neighbours", "2 x 2", fail, lambda _: 1.0, "fp32", lambda _: None, 1.5)
    row = script.line(Quiet, stage, {"fp32": 1.0}, 1.0)
    assert not row["met"]
    assert script.cells(row) == ["neighbours", "2 x 2", "failed", "1.5", "", "RuntimeError: out of / memory here"]


def test_the_page_shows_the_results_that_are_kept(script, tmp_path):
    page = tmp_path / "gpu.md"
    script.write_page(script.RESULTS, page)
    assert page.read_text() == script.PAGE.read_text(), "run python benchmarks/gpu.py --tables"
