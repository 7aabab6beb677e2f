"""Bodies of requests to the service."""

from pathlib import Path

from atypicality.outputs import ModelOutputs
from atypicality.serving.requests import read_inference, read_rows
from fuzz.outputs import check
from fuzz.pieces import split
from fuzz.rule import Target

__all__ = ["TARGETS"]

MAX_ROWS = 100


def read_predict(data: bytes, folder: Path) -> ModelOutputs:
    """A body of /predict."""
    return read_rows(data, MAX_ROWS)


def read_infer(data: bytes, folder: Path) -> ModelOutputs:
    """A body of the protocol: JSON alone, or after a zero byte JSON and the binary tensors behind it."""
    if data[:1] != b"\0":
        return read_inference(data, None, MAX_ROWS).outputs
    head, tensors = split(data[1:], 2)
    return read_inference(head + tensors, str(len(head)), MAX_ROWS).outputs


TARGETS = {"predict": Target(read_predict, check), "infer": Target(read_infer, check)}
