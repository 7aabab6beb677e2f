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


LOADING = """
import sys, time
import atypicality as aty

def loaded(*names):
    return sorted(set(names) & set(sys.modules))

print(loaded(*{heavy}))
answer = aty.load({head!r}).predict(aty.ModelOutputs.load({rows!r}))
print(len(answer), loaded("sklearn", "pandas", "torch", "onnx", "scipy.stats", "scipy.optimize"))
print(time.process_time())
aty.ReliabilityHead().fit(calibration=aty.datasets.make_world(300).outputs())
print(loaded("sklearn", "pandas"))
for name in aty.__all__:
    getattr(aty, name)
aty.AdaptiveTemperatureScaling()
print(loaded("torch", "altair", "transformers", "dask", "typer", "httpx"))
"""
"""What a process has loaded once it has imported the package, answered, fitted a head and looked up every name."""


def test_a_process_loads_no_package_before_it_needs_it_and_is_quick_to_answer(tmp_path):
    from atypicality.datasets import load_fashion_mnist_lt

    train, calibration, test = load_fashion_mnist_lt()
    atypicality.ReliabilityHead().fit(train=train[:2000], calibration=calibration[:1000]).save(tmp_path / "head")
    test[:20].save(tmp_path / "rows.npz")
    code = LOADING.format(heavy=HEAVY, head=str(tmp_path / "head"), rows=str(tmp_path / "rows.npz"))
    best, tries = float("inf"), 3
    while best >= 1 and (tries := tries - 1) >= 0:  # processor time, best of three: the machine may be busy
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
        imported, answered, seconds, fitted, looked_up = done.stdout.splitlines()
        assert (imported, answered, fitted, looked_up) == ("[]", "20 []", "[]", "[]")
        best = min(best, float(seconds))
    assert best < 1


@cache
def statements_of(path):
    """Imports, classes and functions of a module, nested ones too."""
    kinds = ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef
    found = [node for node in nested(ast.parse(path.read_text()).body) if isinstance(node, kinds)]
    for node in found:
        vars(node).pop("body", None)  # collections of garbage would look at every expression again and again
    return found


def nested(statements):
    """Statements and those inside them, without their expressions."""
    for statement in statements:
        yield statement
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from nested(getattr(statement, part, ()))


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
