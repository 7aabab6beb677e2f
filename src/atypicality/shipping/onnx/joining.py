"""A network and the head behind it as one ONNX graph."""

import os
from typing import Any

from atypicality.outputs.paths import check_source
from atypicality.shipping.onnx.graph import IR_VERSION, OPSET
from atypicality.validation import require

__all__ = ["joined", "network_before", "opset_of"]


def network_before(head: Any, path: str | os.PathLike[str]) -> Any:
    """The model of a network whose outputs are what a head reads, with operators that are as new as the head's."""
    onnx = require("onnx", extra="onnx", feature="ONNX export")
    source = check_source(path)
    try:
        model = onnx.load(os.fspath(source))
    except Exception as error:  # what protobuf raises has no class of ours, or of Python's
        raise ValueError(f"network must be an ONNX file; {source.name!r} is none: {error}.") from error
    needs = {"logits": head.n_classes_}
    if head.density_ is not None:
        needs["embeddings"] = head.density_.n_features_in_
    outputs = {output.name: output.type.tensor_type for output in model.graph.output}
    for name, width in needs.items():
        if name not in outputs:
            raise ValueError(f"network must have an output called {name!r}; its outputs are {', '.join(outputs)}.")
        found, last = outputs[name], outputs[name].shape.dim[-1:]
        wide = any(dim.HasField("dim_value") and dim.dim_value != width for dim in last)
        if found.elem_type != onnx.TensorProto.FLOAT or wide:
            raise ValueError(
                f"network must give {name} as float32 (batch, {width}), as the head was fitted; it gives another type "
                "or another number of columns. Export the network in float32, in evaluation mode."
            )
    if opset_of(model) < OPSET:
        model = onnx.version_converter.convert_version(model, OPSET)
    model.ir_version = max(model.ir_version, IR_VERSION)
    return model


def opset_of(model: Any) -> int:
    """Version of the standard operators of a model."""
    return int(next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx")))


def joined(front: Any, back: Any, doc: str) -> Any:
    """One model of a network and the graph of a head, with all outputs but those that the head reads."""
    onnx = require("onnx", extra="onnx", feature="ONNX export")
    back.ir_version = front.ir_version
    links = [(one.name, one.name) for one in back.graph.input if one.name != "atypicality"]
    try:
        return onnx.compose.merge_models(front, back, links, doc_string=doc, producer_name="atypicality")
    except ValueError as error:
        raise ValueError(
            f"network cannot be put before the head: {error}. Names of its tensors must not be those of the head's "
            "outputs; export it with others, or run two files."
        ) from error
