"""A fitted head on disk: one safetensors file, one JSON file and a model card; written whole, read without trust."""

import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from atypicality.shipping.bundle.document import NAME, STATE, BundleError, Document, compose, parse
from atypicality.shipping.bundle.folder import MissingFileError, read_regular, read_tensors, write_bundle
from atypicality.stored.kinds import Place
from atypicality.stored.records import Part
from atypicality.terminal import listed
from atypicality.validation import check_integer

__all__ = ["MAX_BYTES", "MAX_JSON_BYTES", "BundleError", "load", "save", "saved_class", "saved_sha256"]

MAX_BYTES = 2 * 2**30  # most bytes of tensors that `load` reads unless told otherwise
MAX_JSON_BYTES = 8 * 2**20  # most bytes of JSON that `load` reads unless told otherwise
_ATTEMPTS = 100


def save(head: Any, folder: str | os.PathLike[str]) -> str:
    """Write a fitted head into a folder, over an older bundle or into a new folder.

    A crash at any moment leaves the old bundle or the new one, whole. Writers of one folder wait for each other.

    Parameters
    ----------
    head : ReliabilityHead
        Fitted, with parts from the library's own classes.
    folder : path
        Made if it is not there. Files of other names in it are left alone.

    Returns
    -------
    str
        The sha256 that seals the JSON file; give it to `load` to be sure of getting this head.

    Examples
    --------
    >>> import tempfile
    >>> from atypicality.datasets import load_fashion_mnist_lt
    >>> from atypicality.head import ReliabilityHead
    >>> train, calibration, test = load_fashion_mnist_lt()
    >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sha256 = save(head, folder)
    ...     again = load(folder, sha256=sha256)
    >>> bool((again.predict(test).proba == head.predict(test).proba).all())
    True
    """
    from atypicality.estimators import check_is_fitted
    from atypicality.head import ReliabilityHead
    from atypicality.shipping.card import model_card

    check_is_fitted(head)
    return write_part(head, ReliabilityHead, folder, card=model_card(head))


def write_part(value: Any, made_as: type, folder: str | os.PathLike[str], *, card: str, name: str = NAME) -> str:
    """Write an object of a class that has a record (see `atypicality.stored`) as a head is written; its sha256.

    `card` is a page about it, in Markdown; `name` is that of the JSON file.

    >>> import tempfile
    >>> from atypicality.head.quantiles import QuantileScale
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     seal = write_part(QuantileScale.from_rows([1.0, 2.0]), QuantileScale, folder, card="A scale.")
    ...     read_part(QuantileScale, folder, sha256=seal).values
    array([1., 2.])
    """
    tensors: dict[str, Any] = {}
    described = Part(made_as).write(value, Place.start(tensors))
    return write_bundle(Path(folder), tensors, partial(_composed, described), card=card, name=name)


def _composed(head: Any, sha256: str, size: int) -> tuple[bytes, str]:
    """The JSON file; a warning where its reader will have to raise a limit."""
    text, seal = compose(head, sha256, size)
    for option, found, limit in (("max_bytes", size, MAX_BYTES), ("max_json_bytes", len(text), MAX_JSON_BYTES)):
        if found > limit:
            warnings.warn(f"the bundle is large: load it with {option}={found} or more.", stacklevel=4)
    return text, seal


def load(
    folder: str | os.PathLike[str],
    *,
    sha256: str | None = None,
    max_bytes: int = MAX_BYTES,
    max_json_bytes: int = MAX_JSON_BYTES,
) -> Any:
    """Read a head that `save` wrote; its answers are the same to the last bit.

    Nothing in the folder is run, and nothing in it names a file or a class that is not on a closed list.

    Parameters
    ----------
    folder : path
    sha256 : str, optional
        What `save` gave, kept elsewhere: refuses every other head. Without it, damage is found but a head that
        somebody else put there is not.
    max_bytes, max_json_bytes : int
        Largest sizes of the two files that are read.

    Raises
    ------
    BundleError
        If the folder holds no bundle, or one that is damaged, hostile or of a newer format.

    Returns
    -------
    ReliabilityHead

    Examples
    --------
    >>> import tempfile
    >>> from atypicality.datasets import load_fashion_mnist
    >>> from atypicality.head import ReliabilityHead
    >>> train, calibration, test = load_fashion_mnist()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sha256 = ReliabilityHead().fit(train=train, calibration=calibration).save(folder)
    ...     head = load(folder)
    >>> head.predict(test[:3]).label.shape
    (3,)
    """
    from atypicality.head import ReliabilityHead

    if Path(folder, "classifier.skops").is_file():
        raise BundleError(f"{str(folder)!r} holds a classifier: read it with AtypicalityAwareClassifier.load.")
    _refuse_state(folder)
    return read_part(ReliabilityHead, folder, sha256=sha256, max_bytes=max_bytes, max_json_bytes=max_json_bytes)


def read_part(
    made_as: type,
    folder: str | os.PathLike[str],
    *,
    what: str = "head",
    name: str = NAME,
    sha256: str | None = None,
    max_bytes: int = MAX_BYTES,
    max_json_bytes: int = MAX_JSON_BYTES,
) -> Any:
    """Read an object that `write_part` wrote, with the checks of `load`; errors call it `what`.

    Its JSON file has this `name`.
    """
    limits = {
        "max_bytes": check_integer(max_bytes, "max_bytes", low=1),
        "max_json_bytes": check_integer(max_json_bytes, "max_json_bytes", low=1),
    }
    if sha256 is not None and len(sha256) != 64:
        raise BundleError(f"sha256 must be all 64 hexadecimal digits; got {len(sha256)}. A version is its first 12.")
    document, tensors = _read_files(Path(folder), name, **limits)
    if sha256 is not None and document.sha256 != sha256.lower():
        raise BundleError(f"{name} has the sha256 {document.sha256}, not the expected {sha256}: it is another {what}.")
    try:
        found = Part(made_as).read(document.head, Place.start(tensors))
    except (ValueError, TypeError, OverflowError) as error:
        raise BundleError(f"the bundle does not describe a {what}: {error}") from error
    if tensors:
        raise BundleError(f"the bundle has tensors that belong to no part: {listed(sorted(tensors))[:200]}.")
    return found


def saved_class(folder: str | os.PathLike[str]) -> str | None:
    """Name of the class that a bundle says it holds; None where it names none.

    Parameters
    ----------
    folder : path

    Returns
    -------
    str or None

    Examples
    --------
    >>> import tempfile
    >>> from atypicality.head.quantiles import QuantileScale
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     seal = write_part(QuantileScale.from_rows([1.0, 2.0]), QuantileScale, folder, card="A scale.")
    ...     saved_class(folder)
    'QuantileScale'
    """
    head = _document(folder).head
    name = head.get("class") if isinstance(head, dict) else None
    return name if isinstance(name, str) else None


def saved_sha256(folder: str | os.PathLike[str]) -> str:
    """The hash that seals a bundle, as `save` gave it; its tensors are not read.

    Parameters
    ----------
    folder : path

    Returns
    -------
    str

    Examples
    --------
    >>> import tempfile
    >>> from atypicality.head.quantiles import QuantileScale
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     seal = write_part(QuantileScale.from_rows([1.0, 2.0]), QuantileScale, folder, card="A scale.")
    ...     saved_sha256(folder) == seal
    True
    """
    return _document(folder).sha256


def _refuse_state(folder: str | os.PathLike[str]) -> None:
    if Path(folder, STATE).is_file():
        raise BundleError(f"{str(folder)!r} holds the state of a monitor, not a head: read it with Monitor.load.")


def _document(folder: str | os.PathLike[str]) -> Document:
    _refuse_state(folder)
    return parse(read_regular(Path(folder), NAME, max_bytes=MAX_JSON_BYTES, option="max_json_bytes"))


def _read_files(folder: Path, name: str, *, max_bytes: int, max_json_bytes: int) -> tuple[Document, dict[str, Any]]:
    """The two files of one bundle; a writer that replaces them in between makes us start again."""
    seen = b""
    for _ in range(_ATTEMPTS):
        data = read_regular(folder, name, max_bytes=max_json_bytes, option="max_json_bytes")
        found = parse(data, name)
        try:
            tensors = read_tensors(
                folder, found.tensors_sha256, found.tensors_bytes, max_bytes=max_bytes, document=name
            )
        except MissingFileError:
            if data == seen:
                raise
            seen = data
            continue
        return found, tensors
    raise BundleError(f"{str(folder)!r} was written anew {_ATTEMPTS} times while it was read. Load a copy of it.")
