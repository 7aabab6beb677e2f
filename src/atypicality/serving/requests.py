"""Bodies of requests as outputs, and answers as bodies: JSON of /predict, tensors of the Open Inference Protocol."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.head.reliability import PER_SAMPLE, Reliability
from atypicality.outputs import ModelOutputs
from atypicality.validation import check_names

__all__ = ["Inference", "datatype", "output_tensors", "read_inference", "read_records", "read_rows", "write_inference"]

FLOATS = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
NUMERIC = ("logits", "embeddings", "atypicality")
COLUMNS = (*NUMERIC, "ids", "class_names")
ROW_KEYS = {"logits": "logits", "embeddings": "embeddings", "atypicality": "atypicality", "id": "ids"}
TENSOR_NAMES = {"proba": "probabilities"}
"""Names of fields of `Reliability` among the tensors, where they differ: as in the ONNX file."""


# JSON of /predict


def read_rows(body: bytes, max_rows: int) -> ModelOutputs:
    """Outputs of {"rows": [{"id": ..., "logits": [...], ...}, ...]}, or of {"logits": [[...], ...], ...}.

    >>> read_rows(b'{"rows": [{"id": "a", "logits": [2, 0]}, {"id": "b", "logits": [0, 1]}]}', 10).ids.tolist()
    ['a', 'b']
    """
    document = _object(body, "the body")
    if "rows" in document:
        document = _columns(document.pop("rows"), max_rows) | document
    _known(document, COLUMNS, "the body")
    if isinstance(logits := document.get("logits"), list):
        _refuse_many(len(logits), max_rows)
    arrays: dict[str, Any] = {name: _numbers(document[name], name) for name in NUMERIC if name in document}
    arrays |= {name: _texts(document[name], name) for name in ("ids", "class_names") if name in document}
    return ModelOutputs(**arrays)


def read_records(body: bytes, max_rows: int) -> list[dict[str, Any]]:
    """Records of answers of {"rows": [{"prompt": ..., "answer": ..., "scores": {...}}, ...]}; a head reads them.

    >>> read_records(b'{"rows": [{"scores": {"judge": 4}}]}', 10)
    [{'scores': {'judge': 4}}]
    """
    document = _object(body, "the body")
    _known(document, ("rows",), "the body")
    return _check_rows(document.get("rows"), max_rows, '{"prompt": "2 + 2 =", "answer": "4", "scores": {"judge": 4}}')


def _check_rows(rows: Any, max_rows: int, example: str) -> list[dict[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows) or not rows:
        raise ValueError(f"rows must be a list of objects, at least one, such as {example}.")
    _refuse_many(len(rows), max_rows)
    return rows


def _columns(rows: Any, max_rows: int) -> dict[str, list[Any]]:
    rows = _check_rows(rows, max_rows, '{"id": "a", "logits": [2.0, 0.0]}')
    for place, row in enumerate(rows):
        _known(row, tuple(ROW_KEYS), f"row {place}")
        if row.keys() != rows[0].keys():
            raise ValueError(f"all rows must have the same keys; row {place} has {sorted(row)}, not {sorted(rows[0])}.")
    return {ROW_KEYS[key]: [row[key] for row in rows] for key in rows[0]}


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} must be JSON in UTF-8: {str(error) or 'it is nested too deeply'}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{what} must be a JSON object; got {type(found).__name__}.")
    return found


def _known(found: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    if unknown := sorted(found.keys() - set(names)):
        raise ValueError(f"{where} may hold {', '.join(names)}; got {unknown[0][:40]!r} too.")


def _refuse_many(n_rows: int, max_rows: int) -> None:
    if n_rows > max_rows:
        raise ValueError(f"a request may hold at most {max_rows} rows; got {n_rows}. Send several.")


def _numbers(values: Any, name: str, dtype: Any = np.float64) -> NDArray[Any]:
    try:
        found = np.array(values)
    except (ValueError, OverflowError):
        found = np.array(None)
    if found.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be numbers, in rows of equal length{_first_odd(values)}.")
    return found.astype(dtype)


def _first_odd(values: Any) -> str:
    """Which row of several is not as the first, or holds what is no number."""
    if not isinstance(values, list) or not all(isinstance(row, list) for row in values):
        return ""
    for place, row in enumerate(values):
        if len(row) != len(values[0]):
            return f"; row {place} has {len(row)}, and row 0 {len(values[0])}"
        if not all(type(value) in (int, float) for value in row):
            return f"; row {place} holds something else"
    return ""


def _texts(values: Any, name: str) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, (str, int)) for value in values):
        raise ValueError(f"{name} must be a list of texts.")
    return [str(value) for value in values]


# Tensors


@dataclass(frozen=True)
class Inference:
    """A request for inference: its id, its inputs, and which outputs it wants, by name, as binary or not."""

    id: str | None
    outputs: ModelOutputs
    wanted: dict[str, bool] | None
    binary: bool


def read_inference(body: bytes, header_length: str | None, max_rows: int) -> Inference:
    """A request of the protocol, in JSON or, after as many bytes of JSON as the header says, with binary tensors.

    >>> body = b'{"inputs": [{"name": "logits", "shape": [1, 2], "datatype": "FP32", "data": [2.0, 0.5]}]}'
    >>> read_inference(body, None, 10).outputs
    ModelOutputs(1 rows, 2 classes; logits float32 (1, 2))
    """
    size = _header_size(header_length, len(body))
    document, tail = _object(body[:size], "the request"), memoryview(body)[size:]
    arrays: dict[str, Any] = {}
    for tensor in _listed(document.get("inputs"), "inputs"):
        name = tensor.get("name")
        if name not in (*NUMERIC, "class_names"):
            known = ", ".join((*NUMERIC, "class_names"))
            raise ValueError(f"an input must be one of {known}; got {str(name)[:40]!r}.")
        if name in arrays:
            raise ValueError(f"input {name!r} stands there twice.")
        arrays[name], tail = _tensor(name, tensor, tail, max_rows)
    if len(tail):
        raise ValueError(f"the binary tensors must fill the body; {len(tail)} bytes are left over.")
    wanted, binary = _wanted(document)
    id = document.get("id")
    return Inference(None if id is None else str(id), ModelOutputs(**arrays), wanted, binary)


def _header_size(text: str | None, length: int) -> int:
    if text is None:
        return length
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) > length:
        raise ValueError(f"Inference-Header-Content-Length must be a number up to the body's {length} bytes.")
    return int(text)


def _listed(found: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(part, dict) for part in found) or not found:
        raise ValueError(f"{name} must be a list of objects, at least one.")
    return found


def _tensor(name: str, tensor: dict[str, Any], tail: memoryview, max_rows: int) -> tuple[NDArray[Any], memoryview]:
    """The array of one input, and what of the binary tail is left for the next."""
    shape, kind = tensor.get("shape"), tensor.get("datatype")
    if not isinstance(shape, list) or not all(type(length) is int and 0 <= length < 2**40 for length in shape):
        raise ValueError(f"the shape of {name} must be a list of lengths.")
    if name != "class_names":
        _refuse_many(shape[0] if shape else 1, max_rows)
    kinds = ["BYTES"] if name == "class_names" else list(FLOATS)
    if kind not in kinds:
        raise ValueError(f"the datatype of {name} must be {' or '.join(kinds)}; got {str(kind)[:40]!r}.")
    size = _parameters(tensor).get("binary_data_size")
    if size is not None:
        if type(size) is not int or not 0 <= size <= len(tail):
            raise ValueError(f"binary_data_size of {name} must be at most the {len(tail)} bytes that are left.")
        return _from_bytes(name, tail[:size], kind, shape), tail[size:]
    data = tensor.get("data")
    texts = kind == "BYTES"
    found = check_names(_texts(data, name), name) if texts else _numbers(data, name, FLOATS[kind])
    return _shaped(found, name, shape), tail


def _from_bytes(name: str, data: memoryview, kind: str, shape: list[int]) -> NDArray[Any]:
    if kind == "BYTES":
        return _shaped(check_names(list(_strings(name, data)), name), name, shape)
    width = np.dtype(FLOATS[kind]).itemsize
    if len(data) != width * math.prod(shape):
        raise ValueError(f"{name} must have {width * math.prod(shape)} bytes for its shape {shape}; got {len(data)}.")
    return np.frombuffer(data, FLOATS[kind]).reshape(shape)


def _strings(name: str, data: memoryview) -> Iterator[str]:
    while len(data):
        end = 4 + int.from_bytes(data[:4], "little")
        if end > len(data):
            raise ValueError(f"{name} must be texts with their lengths before them; the last one is cut short.")
        try:
            yield bytes(data[4:end]).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} must be texts in UTF-8.") from error
        data = data[end:]


def _shaped(values: NDArray[Any], name: str, shape: list[int]) -> NDArray[Any]:
    if values.size != math.prod(shape) or (values.ndim > 1 and list(values.shape) != shape):
        raise ValueError(f"{name} must have the shape {shape} that it claims; got {list(values.shape)}.")
    return values.reshape(shape)


def _parameters(found: dict[str, Any]) -> dict[str, Any]:
    parameters = found.get("parameters", {})
    if not isinstance(parameters, dict):
        raise ValueError("parameters must be an object.")
    return parameters


def _wanted(document: dict[str, Any]) -> tuple[dict[str, bool] | None, bool]:
    binary = _parameters(document).get("binary_data_output") is True
    if document.get("outputs") is None:
        return None, binary
    listed = _listed(document["outputs"], "outputs")
    return {str(part.get("name")): _parameters(part).get("binary_data", binary) is True for part in listed}, binary


def output_tensors(answer: Reliability) -> dict[str, NDArray[Any]]:
    """Every field per row of an answer, ids aside, by its name among the tensors."""
    fields = {TENSOR_NAMES.get(name, name): getattr(answer, name) for name in PER_SAMPLE if name != "ids"}
    return {name: np.asarray(array) for name, array in fields.items() if array is not None}


def datatype(array: NDArray[Any]) -> str:
    """The protocol's name of a type.

    >>> datatype(np.zeros(1, np.float32)), datatype(np.array(["text"])), datatype(np.array([True]))
    ('FP32', 'BYTES', 'BOOL')
    """
    return {"f": f"FP{8 * array.itemsize}", "i": f"INT{8 * array.itemsize}", "b": "BOOL"}.get(array.dtype.kind, "BYTES")


def write_inference(answer: Reliability, request: Inference, name: str, version: str) -> tuple[bytes, int | None]:
    """The body of a response, and the length of its JSON where binary tensors follow it."""
    tensors = output_tensors(answer)
    wanted = dict.fromkeys(tensors, request.binary) if request.wanted is None else request.wanted
    if unknown := sorted(wanted.keys() - tensors.keys()):
        raise ValueError(f"outputs may be {', '.join(tensors)}; got {unknown[0][:40]!r}.")
    outputs, tail = [], []
    for output, binary in wanted.items():
        array = tensors[output]
        described: dict[str, Any] = {"name": output, "datatype": datatype(array), "shape": list(array.shape)}
        if binary:
            tail.append(_to_bytes(array))
            described["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            described["data"] = array.reshape(-1).tolist()
        outputs.append(described)
    head = {"model_name": name, "model_version": version, "outputs": outputs}
    text = json.dumps(head if request.id is None else head | {"id": request.id}).encode()
    return (text + b"".join(tail), len(text)) if tail else (text, None)


def _to_bytes(array: NDArray[Any]) -> bytes:
    if array.dtype.kind != "U":
        return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
    texts = [text.encode() for text in array.reshape(-1).tolist()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
