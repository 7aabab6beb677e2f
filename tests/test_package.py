"""The package as a whole: what it exports, what importing it costs, and the direction its arrows point."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import atypicality

SOURCE = Path(atypicality.__file__).parent
PUBLIC = [
    "AdaptiveTemperatureScaling",
    "AtypicalityAwareClassifier",
    "AtypicalityAwareConformal",
    "AtypicalityAwareRecalibration",
    "BundleError",
    "ClassAtypicality",
    "ClassGroups",
    "ContentFreeCalibration",
    "EnsembleTemperatureScaling",
    "Evaluation",
    "GaussianAtypicality",
    "GroupTemperatureScaling",
    "ModelOutputs",
    "NeighborAtypicality",
    "Quadrants",
    "QuantileGroups",
    "Reliability",
    "ReliabilityHead",
    "SplitConformal",
    "TemperatureScaling",
    "VectorScaling",
    "__version__",
    "blocks",
    "charts",
    "collect",
    "compare",
    "datasets",
    "evaluate",
    "llm",
    "load",
    "metrics",
    "theory",
    "three_way_split",
]
HEAVY = ["numpy", "scipy", "sklearn", "torch", "altair", "pandas", "rich", "typer", "pyarrow"]
FRAMEWORKS = {"torch", "transformers", "dask", "cupy"}


def test_public_names_are_the_written_list():
    assert atypicality.__all__ == PUBLIC
    assert dir(atypicality) == sorted([*PUBLIC, "ReliabilityModule"])  # found by completion, and torch stays unloaded
    for name in PUBLIC:
        assert getattr(atypicality, name) is not None


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="has no attribute 'Typicality'"):
        _ = atypicality.Typicality


def test_importing_costs_next_to_nothing():
    code = f"import sys, atypicality; print([m for m in {HEAVY} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_public_name_loads_without_a_framework():
    code = (
        "import sys\n"
        "import atypicality as aty\n"
        "for name in aty.__all__: getattr(aty, name)\n"
        "print([m for m in ('torch', 'altair', 'transformers', 'dask', 'typer') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def imports_of(path):
    """Top-level and nested imports of a module, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_frameworks_are_imported_only_where_they_may_be():
    allowed = {SOURCE / "recalibration" / "adaptive.py"} | set((SOURCE / "integrations").rglob("*.py"))
    for path in set(SOURCE.rglob("*.py")) - allowed:
        assert not {name.partition(".")[0] for name in imports_of(path)} & FRAMEWORKS, path


def test_arrows_never_point_back():
    def ours(folder):
        return {(path, name) for path in (SOURCE / folder).rglob("*.py") for name in imports_of(path)}

    estimators = ("atypicality.density", "atypicality.recalibration", "atypicality.conformal", "atypicality.evaluation")
    assert not [(p, n) for p, n in ours("metrics") if n.startswith(estimators)]
    for folder in ("density", "metrics", "recalibration", "conformal"):
        assert not [(p, n) for p, n in ours(folder) if n.startswith(("atypicality.cli", "atypicality.evaluation"))]


def test_no_pickle_is_ever_loaded():
    for path in SOURCE.rglob("*.py"):
        assert not {"pickle", "joblib", "dill", "cloudpickle"} & set(imports_of(path)), path
        assert "allow_pickle=True" not in path.read_text(), path
