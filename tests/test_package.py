"""The package as a whole: what it exports, what importing it costs, and the direction its arrows point."""

import ast
import re
import subprocess
import sys
from functools import cache
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
    "ConditionalConformal",
    "ContentFreeCalibration",
    "EnsembleTemperatureScaling",
    "Evaluation",
    "GaussianAtypicality",
    "GroupTemperatureScaling",
    "ModelOutputs",
    "Monitor",
    "NeighborAtypicality",
    "NeighborRatio",
    "Quadrants",
    "QuantileGroups",
    "RelativeAtypicality",
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
    "estimate_accuracy",
    "estimate_class_mix",
    "evaluate",
    "llm",
    "load",
    "metrics",
    "paper",
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


def test_importing_costs_next_to_nothing_and_every_public_name_loads_without_a_framework():
    code = (
        "import sys\n"
        "import atypicality as aty\n"
        f"print([m for m in {HEAVY} if m in sys.modules])\n"
        "for name in aty.__all__: getattr(aty, name)\n"
        "aty.AdaptiveTemperatureScaling()\n"
        "print([m for m in ('torch', 'altair', 'transformers', 'dask', 'typer', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"


def test_a_saved_head_answers_and_a_new_one_is_fitted_without_the_packages_that_load_slowly(tmp_path):
    from atypicality.datasets import load_fashion_mnist_lt

    train, calibration, test = load_fashion_mnist_lt()
    atypicality.ReliabilityHead().fit(train=train[:2000], calibration=calibration[:1000]).save(tmp_path / "head")
    test[:20].save(tmp_path / "rows.npz")
    code = (
        "import sys, time; import atypicality as aty;"
        f"answer = aty.load({str(tmp_path / 'head')!r}).predict(aty.ModelOutputs.load({str(tmp_path / 'rows.npz')!r}));"
        "slow = {'sklearn', 'pandas', 'torch', 'onnx'} & set(sys.modules) | {'scipy.stats'} & set(sys.modules);"
        "seconds = time.process_time();"
        "aty.ReliabilityHead().fit(calibration=aty.datasets.make_world(300).outputs());"
        "print(len(answer), seconds, *slow, *{'sklearn', 'pandas'} & set(sys.modules))"
    )
    best, tries = float("inf"), 3
    while best >= 1 and (tries := tries - 1) >= 0:  # processor time, best of three: the machine may be busy
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
        rows, seconds, *slow = done.stdout.split()
        best = min(best, float(seconds))
        assert (rows, slow) == ("20", [])
    assert best < 1


@cache
def statements_of(path):
    """Imports, classes and functions of a module, nested ones too."""
    kinds = ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


def imports_of(path):
    """Top-level and nested imports of a module, as dotted names."""
    for node in statements_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_frameworks_are_imported_only_where_they_may_be():
    allowed = {SOURCE / "recalibration" / "adaptive.py"} | set((SOURCE / "integrations").rglob("*.py"))
    for path in set(SOURCE.rglob("*.py")) - allowed:
        assert not {name.partition(".")[0] for name in imports_of(path)} & FRAMEWORKS, path


def rooms_of(path):
    """Rooms of the package that a module imports, at its top or inside a function."""
    for node in statements_of(path):
        if isinstance(node, ast.ImportFrom) and node.module == "atypicality":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("atypicality."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("atypicality."))


def test_a_room_imports_only_rooms_above_it_in_the_architecture_page():
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    order = {room: place for place, room in enumerate(["_version", *listed])}
    rooms = {path.stem if path.is_file() else path.name for path in SOURCE.iterdir() if "__" not in path.name}
    assert rooms - {"py"} == set(order)
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        later = {other for other in rooms_of(path) if order.get(other, -1) > order.get(room, len(order))}
        assert not later, (path, later)


def test_no_two_classes_have_one_name():
    found = {}
    for path in SOURCE.rglob("*.py"):
        for node in statements_of(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_confidence_comes_before_atypicality_in_every_signature():
    for path in SOURCE.rglob("*.py"):
        for node in statements_of(path):
            if isinstance(node, ast.FunctionDef):
                order = [argument.arg for argument in node.args.args if argument.arg in ("confidence", "atypicality")]
                assert order != ["atypicality", "confidence"], f"{path}:{node.lineno}"


def test_no_pickle_is_ever_loaded():
    for path in SOURCE.rglob("*.py"):
        assert not {"pickle", "joblib", "dill", "cloudpickle"} & set(imports_of(path)), path
        assert "allow_pickle=True" not in path.read_text(), path
