"""A fitted head as an ONNX graph: logits and embeddings in, probabilities, atypicality and prediction sets out."""

import json
import os
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from atypicality._version import __version__
from atypicality.export_check import check_file
from atypicality.export_graph import Graph, Value, column_of, interpolate, row_any
from atypicality.export_parts import Rarity, add_density, add_recalibration, add_sets, refusals
from atypicality.groups import QUADRANTS
from atypicality.paths import check_target, replacing
from atypicality.validation import check_choice, require

__all__ = ["export_onnx"]

DOC = (
    "Reliability head. Rows whose valid is false had NaN, +inf, no finite logit, or a non-finite embedding or "
    "atypicality: their set is full, their numbers are NaN, their quadrant is 3. "
    f"quadrant: {', '.join(f'{i} {name}' for i, name in enumerate(QUADRANTS))}."
)


def export_onnx(head: Any, path: str | os.PathLike[str], *, verify: bool = True) -> None:
    """Write a fitted head as one ONNX file, with nothing but standard operators and a batch of any size.

    ======================  ========================  ==================================================
    input                   type                      when
    ======================  ========================  ==================================================
    logits                  float32 (batch, k)        always
    embeddings              float32 (batch, d)        the head has a density
    atypicality             float64 (batch,)          the head takes atypicality as given
    ======================  ========================  ==================================================

    ======================  ========================  ==================================================
    output                  type                      when
    ======================  ========================  ==================================================
    probabilities           float32 (batch, k)        always
    prediction_set          bool (batch, k)           always
    valid                   bool (batch,)             always
    atypicality             float64 (batch,)          the head has a density, or takes atypicality as given
    atypicality_quantile    float64 (batch,)          as above
    quadrant                int64 (batch,)            as above; 0 to 3 in the order of `groups.QUADRANTS`
    ======================  ========================  ==================================================

    A row with NaN, +inf, no finite logit, or a non-finite embedding or atypicality is answered with valid = false,
    the full set, NaN and the last quadrant (a given atypicality comes back as it is); other rows do not notice.

    Parameters
    ----------
    head : ReliabilityHead
        Fitted.
    path : str or path
        The file; it is replaced as a whole or not at all. Missing folders above it are made.
    verify : bool, default=True
        Run the file with onnxruntime, in a process of its own, on made-up and hostile rows, and compare with the head
        before the file takes its place.

    Raises
    ------
    ValueError
        When a part of the head cannot be a graph (neighbours, learnt networks, randomised sets), or is too large for
        one file.
    RuntimeError
        When the file does not answer as the head does, or the runtime crashes on it.

    Examples
    --------
    ::

        head = ReliabilityHead().fit(train=train, calibration=calibration)
        head.export_onnx("head.onnx")

        session = onnxruntime.InferenceSession("head.onnx")
        probabilities, sets = session.run(["probabilities", "prediction_set"], {"logits": z, "embeddings": x})
    """
    check_choice(verify, "verify", (True, False))
    check_is_fitted(head, "recalibration_")
    if reasons := refusals(head):
        raise ValueError(f"this head cannot be an ONNX graph: {'; '.join(reasons)}. Save it as a bundle instead.")
    check_target(path)
    content = _serialised(_build(head))
    with replacing(path) as temporary:
        temporary.write_bytes(content)
        if verify:
            check_file(head, temporary)


def _serialised(model: Any) -> bytes:
    require("onnx", extra="onnx", feature="ONNX export").checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


def _build(head: Any) -> Any:
    graph, k = Graph(), head.n_classes_
    logits, rarity, valid = _inputs(graph, head)
    found = add_recalibration(graph, head, logits, rarity)
    if found.known is not None:
        valid = graph("And", valid, found.known)
    top = graph.cast(graph.reduce("ReduceMax", found.probabilities), np.float64)
    confidence = graph("Min", top, 1.0)
    sets = add_sets(graph, head, found.probabilities, confidence, rarity)
    nan = np.float32(np.nan)
    graph.output("probabilities", graph("Where", valid, found.probabilities, nan), np.float32, k)
    if rarity.atypicality is not None:
        _describe_rarity(graph, head, rarity.atypicality, confidence, valid)
    graph.output("prediction_set", graph("Or", sets, graph("Not", valid)), np.bool_, k)
    graph.output("valid", valid, np.bool_, None)
    return graph.model("reliability_head", doc=DOC, metadata=_metadata(head))


def _inputs(graph: Graph, head: Any) -> tuple[Value, Rarity, Value]:
    """Declared inputs: logits and rarity with bad rows made harmless, and the rows (n, 1) that were good."""
    logits = graph.input("logits", np.float32, head.n_classes_)
    masked = graph("IsInf", logits, detect_positive=0)
    broken = graph("Or", graph("IsNaN", logits), graph("IsInf", logits, detect_negative=0))
    valid = graph("And", row_any(graph, graph("Not", masked)), graph("Not", row_any(graph, broken)))
    rarity = Rarity(None)
    if head.density_ is not None:
        embeddings = graph.input("embeddings", np.float32, head.density_.n_features_in_)
        valid = graph("And", valid, graph("Not", row_any(graph, _not_finite(graph, embeddings))))
        rarity = add_density(graph, head, graph("Where", valid, embeddings, np.float32(0)))
    elif head.quantiles_ is not None:
        rarity = Rarity(column_of(graph, graph.input("atypicality", np.float64, None)))
    if rarity.atypicality is not None:  # finite embeddings may still overflow
        valid = graph("And", valid, graph("Not", _not_finite(graph, rarity.atypicality)))
        rarity.atypicality = graph("Where", valid, rarity.atypicality, 0.0)
    return graph("Where", valid, logits, np.float32(0)), rarity, valid


def _not_finite(graph: Graph, value: Value) -> Value:
    return graph("Or", graph("IsNaN", value), graph("IsInf", value))


def _describe_rarity(graph: Graph, head: Any, atypicality: Value, confidence: Value, valid: Value) -> None:
    quantile = interpolate(graph, head.quantiles_.values, head.quantiles_.levels, atypicality)
    unsure = graph("Less", confidence, head.quadrants_.confidence_threshold_)
    atypical = graph("Greater", atypicality, head.quadrants_.atypicality_threshold_)
    index = graph("Add", graph("Mul", graph.cast(unsure, np.int64), np.array(2)), graph.cast(atypical, np.int64))
    if head.density_ is None:
        graph.pass_through("atypicality")
    else:
        graph.output("atypicality", graph("Where", valid, atypicality, np.nan), np.float64, None)
    graph.output("atypicality_quantile", graph("Where", valid, quantile, np.nan), np.float64, None)
    graph.output("quadrant", graph("Where", valid, index, np.array(len(QUADRANTS) - 1)), np.int64, None)


def _metadata(head: Any) -> dict[str, str]:
    names = range(head.n_classes_) if head.class_names_ is None else head.class_names_.tolist()
    return {
        "atypicality_version": __version__,
        "alpha": str(head.prediction_sets_.alpha),
        "class_names": json.dumps([str(name) for name in names], ensure_ascii=False),
        "quadrants": json.dumps(QUADRANTS),
        "density": "none" if head.density_ is None else type(head.density_).__name__,
        "recalibration": type(head.recalibration_).__name__,
        "prediction_sets": f"{type(head.prediction_sets_).__name__} {head.prediction_sets_.score}",
    }
