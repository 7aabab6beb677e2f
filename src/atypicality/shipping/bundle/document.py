"""The JSON file of a bundle: read strictly, written canonically, sealed by a hash of itself.

The hash finds damage. It is no signature: whoever can write the folder can also write a new hash. `load` therefore
accepts the hash that the user expects, which came by another way.
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from atypicality._version import __version__

__all__ = ["FORMAT", "NAME", "STATE", "BundleError", "Document", "compose", "parse"]

FORMAT = 1  # number of the format that is written, and the newest that is read
NAME = "head.json"
STATE = "monitor.json"  # of a monitor, which nobody is to take for a head
KEYS = {"format", "library_version", "tensors_sha256", "tensors_bytes", "head", "sha256"}
DEEPEST = 40  # nesting that is read: the deepest value of a head lies at about 20

_LONGEST = 600  # what a hostile file makes a message quote must not fill a log
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9A-Za-z.+!-]{1,64}")
_STRINGS_AND_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)  # an open string ends with the text


class BundleError(ValueError):
    """A bundle that is damaged, hostile or from a newer format: the message says which file, which rule, what to do.

    Parameters
    ----------
    message : str
        Shortened where a hostile file would fill a log with it.

    Examples
    --------
    >>> import tempfile
    >>> from atypicality.shipping.bundle import load
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         load(folder)
    ...     except BundleError as error:
    ...         print("refused")
    refused
    """

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= _LONGEST else message[:_LONGEST] + " ...")


@dataclass(frozen=True)
class Document:
    """What the JSON file says: the head without its tensors, and which tensors belong to it."""

    head: Any
    tensors_sha256: str
    tensors_bytes: int
    sha256: str


def compose(head: Any, tensors_sha256: str, tensors_bytes: int) -> tuple[bytes, str]:
    """The bytes of the JSON file for a head, and the hash that seals them."""
    content = {
        "format": FORMAT,
        "library_version": __version__,
        "tensors_sha256": tensors_sha256,
        "tensors_bytes": tensors_bytes,
        "head": head,
    }
    sealed = content | {"sha256": _digest(content)}
    text = json.dumps(sealed, indent=1, sort_keys=True, allow_nan=False)
    return text.encode("ascii") + b"\n", sealed["sha256"]


def parse(data: bytes, name: str = NAME) -> Document:
    """The document in bytes that may be anything at all, of a file with this name."""
    try:
        return _parsed(data)
    except BundleError as error:
        raise BundleError(str(error).replace(NAME, name)) from error.__cause__


def _parsed(data: bytes) -> Document:
    content = _strict(data)
    if not isinstance(content, dict):
        raise BundleError(f"{NAME} must hold one JSON object; got a {type(content).__name__}.")
    _check_format(content.get("format"))
    if set(content) != KEYS:
        raise BundleError(f"{NAME} must have the keys {', '.join(sorted(KEYS))}; got {_listed(content)}.")
    sealed = content.pop("sha256")
    if sealed != _digest(content):
        raise BundleError(
            f"{NAME} does not match its own sha256: it is damaged or was edited. Copy it again, or restore a backup."
        )
    _check_text(content["tensors_sha256"], _SHA256, "tensors_sha256")
    _check_text(content["library_version"], _VERSION, "library_version")
    if type(content["tensors_bytes"]) is not int or content["tensors_bytes"] < 0:
        raise BundleError(f"{NAME}: tensors_bytes must be a whole number from 0 on.")
    return Document(content["head"], content["tensors_sha256"], content["tensors_bytes"], sealed)


def _check_format(number: Any) -> None:
    if type(number) is not int or number < 1:
        raise BundleError(f"{NAME} must state its format as a number; it is not a bundle, or it is damaged.")
    if number > FORMAT:
        raise BundleError(
            f"{NAME} has format {number}, newer than {FORMAT}, the newest that atypicality {__version__} reads. "
            "Upgrade atypicality."
        )


def _check_text(value: Any, pattern: re.Pattern[str], name: str) -> None:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise BundleError(f"{NAME}: {name} must match {pattern.pattern}.")


def _digest(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _strict(data: bytes) -> Any:
    """JSON in UTF-8 without repeated keys, NaN, infinities or deep nesting."""
    try:
        text = data.decode("utf-8")
        _check_depth(text)
        return json.loads(
            text, object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=_finite, parse_int=_whole
        )
    except BundleError:
        raise
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{NAME} is not JSON: {error}.") from error


def _check_depth(text: str) -> None:
    depth = 0
    for token in _STRINGS_AND_BRACKETS.finditer(text):
        opening = text[token.start()]
        depth += (opening in "[{") - (opening in "]}")
        if depth > DEEPEST:
            raise BundleError(f"{NAME} is nested deeper than {DEEPEST} levels, as no head is.")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BundleError(f"{NAME} has an object with a repeated key, among {_listed(found)}.")
    return found


def _no_constant(text: str) -> Any:
    raise BundleError(f"{NAME} holds the constant {text}, which JSON does not have.")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BundleError(f"{NAME} holds the number {text[:20]}, too large for a float.")
    return number


def _whole(text: str) -> int:
    if len(text) > 100:
        raise BundleError(f"{NAME} holds a whole number of {len(text)} digits.")
    return int(text)


def _listed(keys: Any) -> str:
    shown = ", ".join(repr(key[:40]) for key in sorted(keys)[:10])
    return shown + (", ..." if len(keys) > 10 else "")
