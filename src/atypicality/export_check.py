"""Whether an ONNX file answers as the head does: made-up rows, hostile ones among them, through both."""

import copy
import dataclasses
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.density.logdensity import TiedGaussians
from atypicality.files import read_arrays, write_arrays
from atypicality.groups import QUADRANTS
from atypicality.outputs import ModelOutputs
from atypicality.recalibration import AtypicalityAwareRecalibration, GroupTemperatureScaling
from atypicality.validation import require

__all__ = ["check_file", "expected_answers", "hostile_rows", "sample_rows"]

Arrays = dict[str, NDArray[Any]]

N_ROWS = 500
TOLERANCES = {"probabilities": (0.0, 1e-5), "atypicality": (1e-6, 1e-6), "atypicality_quantile": (0.0, 1e-5)}
"""Relative and absolute; everything else must be equal. Sums in another order stay many digits below these."""
PATIENCE = 600.0


def check_file(head: Any, path: Path) -> None:
    """Refuse a file that onnxruntime does not answer as `head` does, or on which it crashes."""
    rows, good = sample_rows(head)
    expected = expected_answers(head, rows, good)
    names, answers = _run(path, rows, [good.size, 1, 0])
    if head.class_names_ is not None and not np.array_equal(names, head.class_names_):
        raise RuntimeError("the ONNX file does not name the classes as the head does. Nothing was written.")
    for size, found in answers.items():
        trouble = _difference(found, {name: array[:size] for name, array in expected.items()})
        if trouble:
            raise RuntimeError(
                f"the ONNX graph does not answer as the head does, in a batch of {size}: {trouble}. "
                "Nothing was written. Please report it with the versions of onnx and onnxruntime."
            )


def sample_rows(head: Any) -> tuple[Arrays, NDArray[np.bool_]]:
    """Inputs of the graph, made up to reach every region that the head knows, and which of their rows are good."""
    rng = np.random.default_rng(0)
    rows: Arrays = {"logits": _logits(rng, head.n_classes_)}
    if head.density_ is not None:
        rows["embeddings"] = _embeddings(rng, head.density_)
    elif head.quantiles_ is not None:
        rows["atypicality"] = _atypicality(rng, head)
    hostile = hostile_rows({name: array[:1] for name, array in rows.items()})
    count = len(hostile["logits"])
    joined = {name: np.concatenate([array, hostile[name]]) for name, array in rows.items()}
    return joined, np.arange(N_ROWS + count) < N_ROWS


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


def expected_answers(head: Any, rows: Arrays, good: NDArray[np.bool_]) -> Arrays:
    """What the graph should say, from the head itself where rows are good and it has an answer."""
    head = _in_float64(head)
    kept: dict[str, Any] = {name: array[good] for name, array in rows.items()}
    outputs = ModelOutputs(**kept)
    answered = _answered(head, outputs)
    good = _spread(answered, good, False)
    with np.errstate(over="ignore"):  # a row of equal logits has no spread to divide by
        probs, atypicality = head._probabilities(outputs[answered])
    answers = {
        "probabilities": _spread(probs, good, np.nan),
        "prediction_set": _spread(head._sets(probs, atypicality), good, True),
        "valid": good,
    }
    if head.quantiles_ is None:
        return answers
    given = atypicality if head.density_ is not None else rows["atypicality"][good]
    quadrant = head.quadrants_.assign(np.minimum(probs.max(axis=1), 1.0), given)
    answers["atypicality"] = _spread(given, good, np.nan) if head.density_ is not None else rows["atypicality"]
    answers["atypicality_quantile"] = _spread(head.quantiles_(given), good, np.nan)
    index = np.array([QUADRANTS.index(name) for name in quadrant], np.int64)
    answers["quadrant"] = _spread(index, good, len(QUADRANTS) - 1)
    return answers


def _answered(head: Any, outputs: ModelOutputs) -> NDArray[np.bool_]:
    """Good rows that the head has probabilities for: a class of positive prior is left, the group was seen in fit."""
    recalibration, logits = head.recalibration_, outputs.need("logits")
    if isinstance(recalibration, AtypicalityAwareRecalibration):
        return np.asarray((np.isfinite(logits) & np.isfinite(recalibration._scores())).any(axis=1))
    if isinstance(recalibration, GroupTemperatureScaling) and recalibration.quantiles_ is not None:
        return np.isin(recalibration.quantiles_.assign(head._rarity(outputs)[0]), recalibration.groups_)
    return np.ones(len(logits), bool)


def _in_float64(head: Any) -> Any:
    """The head with products in float64, as the graph has them, where its density asks for float32."""
    if head.density_ is None or head.density_.precision == "float64":
        return head
    wide, solution = copy.copy(head), head.density_._solved()
    names = ("centre", "whitening") if isinstance(solution.gaussians, TiedGaussians) else ("centre", "components")
    parts = {name: getattr(solution.gaussians, name) for name in names}
    wider = {name: part.astype(np.float64) for name, part in parts.items() if part is not None}
    gaussians = dataclasses.replace(solution.gaussians, **wider)
    wide.density_ = copy.copy(head.density_)
    wide.density_._solution = dataclasses.replace(solution, gaussians=gaussians)
    return wide


def _spread(values: NDArray[Any], good: NDArray[np.bool_], other: Any) -> NDArray[Any]:
    """Values of the good rows at their places, and something else in the others."""
    whole = np.full((good.size, *values.shape[1:]), other, values.dtype)
    whole[good] = values
    return whole


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
    if hasattr(head.prediction_sets_, "grid_"):
        special.append(head.prediction_sets_.grid_.atypicality_groups_.edges_)
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
        command = [sys.executable, "-m", "atypicality.export_run", *map(str, (path, inputs, outputs, *sizes))]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(
                f"onnxruntime did not finish within {PATIENCE:g} seconds. Nothing was written."
            ) from error
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
