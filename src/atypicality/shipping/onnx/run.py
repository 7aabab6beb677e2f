"""Run an ONNX file on stored rows, in a process of its own: a runtime that crashes then takes nothing else along."""

import json
import sys
from typing import Any

import numpy as np

from atypicality.outputs.files import read_arrays, write_arrays
from atypicality.validation import require

__all__ = ["main"]


def main(model: str, inputs: str, outputs: str, *sizes: str) -> int:
    """Answer the first rows of `inputs`, for each of the batch sizes, as arrays "size.name" of `outputs`.

    The class names in the file's metadata are the array "class_names".
    """
    runtime = require("onnxruntime", extra="onnx", feature="checking an ONNX file")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    names_of_classes = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
    answers: dict[str, Any] = {"class_names": np.array(names_of_classes)}
    rows = read_arrays(inputs)
    for size in sizes:
        found = session.run(names, {name: array[: int(size)] for name, array in rows.items()})
        answers |= {f"{size}.{name}": array for name, array in zip(names, found, strict=True)}
    write_arrays(outputs, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
