"""A fitted head as an ONNX graph: logits and embeddings in, probabilities, atypicality and prediction sets out."""

import json
import os
from typing import Any

import numpy as np

from atypicality._version import __version__
from atypicality.estimators import check_is_fitted
from atypicality.formula import ADVICE, guarded, moved
from atypicality.groups import QUADRANTS
from atypicality.outputs.paths import check_target, replacing
from atypicality.shipping.onnx.check import MATRICES, OUTPUTS, check_file, check_loads
from atypicality.shipping.onnx.graph import Graph
from atypicality.shipping.onnx.joining import joined, network_before, opset_of
from atypicality.shipping.onnx.namespace import GraphNamespace
from atypicality.shipping.refusals import refusals, wide
from atypicality.validation import check_choice, require

__all__ = ["export_onnx"]

DOC = (
    "Reliability head. Rows whose valid is false had NaN, +inf, no finite logit, or a non-finite embedding or "
    "atypicality: their set is full, their label is -1, their numbers are NaN, their quadrant and their "
    "advice are 3. "
    f"quadrant: {', '.join(f'{i} {name}' for i, name in enumerate(QUADRANTS))}. "
    f"advice: {'; '.join(f'{i} {name}' for i, name in enumerate(ADVICE))}, k the size of the set, at least 2."
)


def export_onnx(
    head: Any,
    path: str | os.PathLike[str],
    *,
    max_risk: float | None = None,
    network: str | os.PathLike[str] | None = None,
    verify: bool = True,
) -> None:
    """As `ReliabilityHead.export_onnx`: nothing but standard operators, and a batch of any size."""
    check_choice(verify, "verify", (True, False))
    check_is_fitted(head, "recalibration_")
    if reasons := refusals(head, searched=False):
        raise ValueError(f"this head cannot be an ONNX graph: {'; '.join(reasons)}. Save it as a bundle instead.")
    check_target(path)
    front = None if network is None else network_before(head, network)
    model = _build(head, max_risk, None if front is None else opset_of(front))
    require("onnx", extra="onnx", feature="ONNX export").checker.check_model(model, full_check=True)
    with replacing(path) as temporary:
        temporary.write_bytes(model.SerializeToString(deterministic=True))
        if verify:
            check_file(head, temporary, max_risk)
        if front is not None:
            temporary.write_bytes(joined(front, model, DOC).SerializeToString(deterministic=True))
            if verify:
                check_loads(temporary)


def _build(head: Any, max_risk: float | None, opset: int | None = None) -> Any:
    """The graph of a head; behind a network it has the operators of `opset`, and names that are its own."""
    graph = Graph() if opset is None else Graph(opset, "head/")
    xp = GraphNamespace(graph, head.n_classes_)
    formula = moved(head.formula(max_risk), lambda array: xp.asarray(wide(array)))
    logits = xp.input("logits", np.float32, head.n_classes_)
    embeddings = atypicality = None
    if formula.density is not None:
        embeddings = xp.astype(xp.input("embeddings", np.float32, head.density_.n_features_in_), xp.float64)
    elif formula.scale is not None:
        atypicality = xp.input("atypicality", np.float64, None)
    found = guarded(xp, formula, logits, embeddings, atypicality)
    for name, value in found._asdict().items():
        if name == "atypicality" and atypicality is not None:
            graph.pass_through(name)
        elif value is not None:
            xp.output(OUTPUTS[name], value, head.n_classes_ if name in MATRICES else None)
    return graph.model("reliability_head", doc=DOC, metadata=_metadata(head, max_risk))


def _metadata(head: Any, max_risk: float | None) -> dict[str, str]:
    sets = head.prediction_sets_
    names = range(head.n_classes_) if head.class_names_ is None else head.class_names_.tolist()
    return {
        "atypicality_version": __version__,
        "alpha": str(sets.alpha),
        **({} if max_risk is None else {"max_risk": str(max_risk)}),
        "class_names": json.dumps([str(name) for name in names], ensure_ascii=False),
        "quadrants": json.dumps(QUADRANTS),
        "advice": json.dumps(ADVICE),
        "density": "none" if head.density_ is None else type(head.density_).__name__,
        "recalibration": type(head.recalibration_).__name__,
        "prediction_sets": f"{type(head.prediction_sets_).__name__} {head.prediction_sets_.formula().rule.name}",
    }
