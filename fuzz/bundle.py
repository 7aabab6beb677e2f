"""Bundles: with right hashes over wrong contents, as somebody writes who knows the format, and with wrong hashes."""

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import atypicality as aty
from atypicality.datasets import make_world
from atypicality.shipping.bundle.document import NAME, compose
from atypicality.shipping.bundle.folder import tensors_name
from fuzz.pieces import split
from fuzz.rule import Target, attempt

__all__ = ["SIZES", "TARGETS"]

SIZES = {"n_classes": 3, "n_features": 2}
ROWS = make_world(6, **SIZES, random_state=5).outputs()
LIMITS: dict[str, Any] = {"max_bytes": 16_000_000, "max_json_bytes": 1_000_000}


def read(data: bytes, folder: Path) -> Any:
    """After a first byte two parts: JSON and tensors. The byte zero means that their hashes are made right."""
    text, tensors = split(data[1:], 2)
    sha256 = hashlib.sha256(tensors).hexdigest()
    if data[:1] == b"\0":
        text = _sealed(text, sha256, len(tensors))
    (folder / NAME).write_bytes(text)
    (folder / tensors_name(sha256)).write_bytes(tensors)
    return aty.load(folder, **LIMITS)


def check(head: Any) -> None:
    """A head answers, or says why it cannot; a stranger's may answer nonsense, with the warnings of arithmetic."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = attempt(head.predict, ROWS)
    if not isinstance(answer, Exception):
        assert answer.proba.shape == answer.prediction_set.shape == (len(ROWS), SIZES["n_classes"])


def _sealed(text: bytes, sha256: str, size: int) -> bytes:
    """The JSON file of the head in `text`; the text itself where it is no JSON that could be in one."""
    try:
        return compose(json.loads(text), sha256, size)[0]
    except (ValueError, RecursionError):
        return text


TARGETS = {"bundle": Target(read, check)}
