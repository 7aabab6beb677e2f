"""Whether an ONNX file answers as the head does: made-up rows, hostile ones among them, through both."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import namespace
from atypicality.formula import Outcome, guarded, moved
from atypicality.outputs.files import read_arrays, write_arrays
from atypicality.shipping.refusals import wide
from atypicality.validation import require

__all__ = ["MATRICES", "OUTPUTS", "check_file", "check_loads", "expected_answers", "hostile_rows", "sample_rows"]

Arrays = dict[str, NDArray[Any]]

OUTPUTS = {name: name for name in Outcome._fields if name != "covariate"} | {"proba": "probabilities", "known": "valid"}
"""Names in the file of what `formula.Outcome` holds."""
MATRICES = ("proba", "prediction_set")
N_ROWS = 500
TOLERANCES = {
    "probabilities": (0.0, 1e-5),
    "confidence": (0.0, 1e-5),
    "atypicality": (1e-6, 1e-6),
    "atypicality_quantile": (0.0, 1e-5),
}
"""Relative and absolute; everything else must be equal. Sums in another order stay many digits below these."""
PATIENCE = 600.0


def check_file(head: Any, path: Path, max_risk: float | None = None) -> None:
    """Refuse a file that onnxruntime does not answer as `head` does, or on which it crashes."""
    rows = sample_rows(head)
    expected = expected_answers(head, rows, max_risk)
    names, answers = _run(path, rows, [len(rows["logits"]), 1, 0])
    if head.class_names_ is not None and not np.array_equal(names, head.class_names_):
        raise RuntimeError("the ONNX file does not name the classes as the head does. Nothing was written.")
    for size, found in answers.items():
        trouble = _difference(found, {name: array[:size] for name, array in expected.items()})
        if trouble:
            raise RuntimeError(
                f"the ONNX graph does not answer as the head does, in a batch of {size}: {trouble}. "
                "Nothing was written. Please report it with the versions of onnx and onnxruntime."
            )


def check_loads(path: Path) -> None:
    """Refuse a file that onnxruntime cannot load, or on which it crashes."""
    _run(path, {"none": np.zeros(0)}, [])


def sample_rows(head: Any) -> Arrays:
    """Inputs of the graph, made up to reach every region that the head knows, and hostile rows behind them."""
    rng = np.random.default_rng(0)
    rows: Arrays = {"logits": _logits(rng, head.n_classes_)}
    if head.density_ is not None:
        raw = head.density_ if head.recalibration_density_ is None else head.recalibration_density_
        rows["embeddings"] = _embeddings(rng, raw)
    elif head.quantiles_ is not None:
        rows["atypicality"] = _atypicality(rng, head)
    hostile = hostile_rows({name: array[:1] for name, array in rows.items()})
    return {name: np.concatenate([array, hostile[name]]) for name, array in rows.items()}


def hostile_rows(row: Arrays) -> Arrays:
    """Rows that cannot be answered, each one row of good inputs with one thing spoilt."""
    changes: list[tuple[str, Any, float]] = [("logits", 0, np.nan), ("logits", -1, np.inf), ("logits", ..., -np.inf)]
    changes += [("embeddings", j, value) for j in (0, -1) for value in (np.nan, np.inf, -np.inf)]
    changes += [("atypicality", ..., value) for value in (np.nan, np.inf, -np.inf)]
    changes = [change for change in changes if change[0] in row]
    spoilt = {name: np.repeat(array, len(changes), axis=0) for name, array in row.items()}
    for i, (name, where, value) in enumerate(changes):
        spoilt[name][i, where] = value
    return spoilt


def expected_answers(head: Any, rows: Arrays, max_risk: float | None = None) -> Arrays:
    """What the graph should say: the head's formula, run by NumPy."""
    logits, embeddings, given = (rows.get(name) for name in ("logits", "embeddings", "atypicality"))
    wider = None if embeddings is None else embeddings.astype(np.float64)
    column = None if given is None else given[:, None]
    with np.errstate(all="ignore"):  # hostile rows are among them
        found = guarded(namespace(logits), moved(head.formula(max_risk), wide), logits, wider, column)
    answers = {
        OUTPUTS[name]: value if name in MATRICES else value[:, 0]
        for name, value in found._asdict().items()
        if value is not None
    }
    return answers if given is None else answers | {"atypicality": given}


def _logits(rng: np.random.Generator, k: int) -> NDArray[np.float32]:
    """Sharp and flat rows, with ties, masked classes, a single class that is not masked, and far ends."""
    scale = 10 ** rng.uniform(-1, 1.5, (N_ROWS, 1))
    logits = (scale * rng.normal(size=(N_ROWS, k))).astype(np.float32)
    logits[::5] = np.round(logits[::5])
    masked = rng.random((N_ROWS, k)) < 0.3
    masked[np.arange(N_ROWS), rng.integers(0, k, N_ROWS)] = False
    logits[1::5][masked[1::5]] = -np.inf
    logits[2], logits[3], logits[4] = 0, np.linspace(-1e4, 1e4, k), -np.inf
    logits[4, rng.integers(k)] = 1
    return logits


def _embeddings(rng: np.random.Generator, density: Any) -> NDArray[np.float32]:
    """Rows about the class means, from a tenth of the spread of a class to ten times it."""
    means, covariance = density.means_, density.covariance_
    classes = rng.integers(0, len(means), N_ROWS)
    variances = covariance if density.covariance == "diagonal" else np.diagonal(covariance, axis1=-2, axis2=-1)
    deviations = np.sqrt(np.broadcast_to(variances, means.shape))[classes]
    rows = means[classes] + 10 ** rng.uniform(-1, 1, (N_ROWS, 1)) * deviations * rng.normal(size=deviations.shape)
    components = density.components_
    return np.asarray(rows if components is None else rows @ components, np.float32)


def _atypicality(rng: np.random.Generator, head: Any) -> NDArray[np.float64]:
    """Held-out values, what lies between and beyond them, and the very thresholds."""
    known = head.quantiles_.values
    reach = known[-1] - known[0] + 1
    drawn = rng.choice(known, N_ROWS) + np.where(rng.random(N_ROWS) < 0.5, 0.0, reach * rng.normal(0, 0.3, N_ROWS))
    special = [known, [head.quadrants_.atypicality_threshold_]]
    if (edges := head.prediction_sets_.formula().atypicality_edges) is not None:
        special.append(edges)
    exact = np.concatenate(special[::-1])[: N_ROWS // 2]
    drawn[: exact.size] = exact
    return drawn


def _run(path: Path, rows: Arrays, sizes: list[int]) -> tuple[NDArray[Any], dict[int, Arrays]]:
    """The class names in the file, and its answers by batch size, from another process."""
    if importlib.util.find_spec("onnxruntime") is None:
        require("onnxruntime", extra="onnx", feature="verify=True")
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        write_arrays(inputs, rows)
        command = [sys.executable, "-m", "atypicality.shipping.onnx.run", *map(str, (path, inputs, outputs, *sizes))]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"onnxruntime did not end within {PATIENCE:g} seconds. Nothing was written.") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeError(
                f"onnxruntime ended with code {done.returncode} on the exported graph: {last}. Nothing was written."
            )
        found = read_arrays(outputs)
    answers = {
        size: {name.partition(".")[2]: found[name] for name in found if name.startswith(f"{size}.")} for size in sizes
    }
    return found["class_names"], answers


def _difference(found: Arrays, expected: Arrays) -> str:
    """What differs, in words; empty if nothing does."""
    if set(found) != set(expected):
        return f"its outputs are {sorted(found)}, not {sorted(expected)}"
    for name, right in expected.items():
        if found[name].shape != right.shape or found[name].dtype != right.dtype:
            return f"{name} is {found[name].dtype} {found[name].shape}, not {right.dtype} {right.shape}"
        wrong = ~_agree(name, found[name], right)
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            return f"{name} differs in {int(wrong.sum())} of {wrong.size} entries, first in row {row}"
    return ""


def _agree(name: str, found: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
    if name not in TOLERANCES:
        return np.asarray(found == right)
    relative, absolute = TOLERANCES[name]
    return np.asarray(np.isclose(found, right, rtol=relative, atol=absolute, equal_nan=True))
