"""The files of a bundle: written so that a crash leaves the old or the new one whole, read without trusting names.

A bundle is complete when its JSON file is: tensors are written first, under a name that is their hash, and the JSON
file then takes its place in one step. What the old JSON file named is removed afterwards.
"""

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.outputs.paths import check_target, remove_leftovers, temporary_file, told_when_full
from atypicality.shipping.bundle.document import NAME, STATE, BundleError
from atypicality.terminal import printable

__all__ = ["CARD", "MissingFileError", "check_place", "read_regular", "read_tensors", "tensors_name", "write_bundle"]

CARD = "README.md"
CARD_MARK = "<!-- written by atypicality -->"
"""First line of a card: a README.md without it is somebody's, and is not replaced."""
TENSORS = re.compile(r"tensors-[0-9a-f]{64}\.safetensors")

Tensors = dict[str, NDArray[Any]]


class MissingFileError(BundleError):
    """A file of the bundle is not there."""


def tensors_name(sha256: str) -> str:
    """Name of the tensor file with this hash of 64 hexadecimal digits."""
    return f"tensors-{sha256}.safetensors"


def read_regular(folder: Path, name: str, *, max_bytes: int, option: str) -> bytes:
    """The bytes of a regular file in the folder itself, at most `max_bytes`, which the user sets with `option`.

    A link is refused, wherever it leads, and so is whatever else could block, or give other bytes each time.
    """
    path = folder / name
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise BundleError(f"{name} must be a regular file, not a link, a folder or a device.")
        with open(os.open(path, _READ_FLAGS), "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):  # changed since the first look
                raise BundleError(f"{name} must be a regular file, not a link, a folder or a device.")
            if found.st_size > max_bytes:
                raise BundleError(
                    f"{name} has {found.st_size} bytes, and the limit is {max_bytes}. Raise {option} if you trust it."
                )
            return stream.read(found.st_size)
    except FileNotFoundError as error:
        if not os.path.lexists(folder):
            raise MissingFileError(f"no folder at {str(folder)!r}; a saved head is a folder with a {name}.") from error
        raise MissingFileError(f"{name} is missing in {str(folder)!r}: it is no bundle, or not a whole one.") from error
    except NotADirectoryError as error:
        raise BundleError(f"{str(folder)!r} is a file; a saved head is a folder with a {name}. Give that.") from error
    except OSError as error:
        raise BundleError(f"{name} in {str(folder)!r} cannot be read: {error.strerror}.") from error
    except MemoryError as error:
        raise BundleError(f"{name} needs more memory than there is. Lower {option} to refuse such files.") from error


_READ_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


def read_tensors(folder: Path, sha256: str, size: int, *, max_bytes: int, document: str = NAME) -> Tensors:
    """The tensors by name, after their size and hash were found those of the `document`."""
    from safetensors.numpy import load

    name = tensors_name(sha256)
    if size > max_bytes:
        raise BundleError(f"{name} should have {size} bytes, the limit is {max_bytes}. Raise max_bytes if trusted.")
    data = read_regular(folder, name, max_bytes=max_bytes, option="max_bytes")
    if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
        raise BundleError(
            f"{name} does not match its size and sha256 in {document}: it is damaged. Copy it again, or restore a "
            "backup."
        )
    try:
        return load(data)
    except Exception as error:  # bytes with a right hash and wrong contents make the library raise almost anything
        raise BundleError(f"{name} is not a safetensors file that NumPy can hold: {printable(error)}.") from error


def write_bundle(
    folder: Path, tensors: Tensors, compose: Callable[[str, int], tuple[bytes, str]], card: str, name: str = NAME
) -> str:
    """Write a bundle over an older one, or into a new folder; the hash of its JSON file, which has this `name`."""
    from safetensors.numpy import save

    data = save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
    sha256 = hashlib.sha256(data).hexdigest()
    text, seal = compose(sha256, len(data))
    check_place(folder, name)
    folder.mkdir(parents=True, exist_ok=True)
    with told_when_full(folder), _locked(folder), contextlib.ExitStack() as stack:
        _spare_readme(folder)
        new_tensors = stack.enter_context(_written(folder, data))
        new_document = stack.enter_context(_written(folder, text))
        new_card = stack.enter_context(_written(folder, _dated(card).encode()))
        os.replace(new_tensors, folder / tensors_name(sha256))
        _sync_folder(folder)  # the tensors' name must be on disk before the file that counts on it
        os.replace(new_document, folder / name)  # from here on the new bundle is the bundle
        _sync_folder(folder)
        os.replace(new_card, folder / CARD)
        _tidy(folder, keep=tensors_name(sha256))
    return seal


def _dated(card: str) -> str:
    """The text of the card's file: no part of what the seal covers, so that the same head has the same seal."""
    return f"{CARD_MARK}\n\n{card.rstrip()}\n\nSaved on {datetime.now(UTC):%Y-%m-%d} (UTC).\n"


def check_place(folder: Path, name: str = NAME) -> None:
    """Refuse, before any work, a folder that no bundle whose JSON file has this `name` can be written to."""
    check_target(folder, folder=True)
    _spare_readme(folder)
    if name != STATE and os.path.lexists(folder / STATE):
        raise FileExistsError(f"{str(folder)!r} holds the state of a monitor. Save into another folder.")


def _spare_readme(folder: Path) -> None:
    path = folder / CARD
    if os.path.lexists(path) and (
        not path.is_file() or path.read_bytes()[: len(CARD_MARK)] != CARD_MARK.encode("ascii")
    ):
        raise FileExistsError(
            f"{str(path)!r} is there and was not written by a bundle. Save into a folder of its own, or remove it."
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time, where the system has such locks; they end with the process, however it ends."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows: two writers at once may leave a bundle that does not load
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _written(folder: Path, data: bytes) -> Iterator[Path]:
    """A new file with these bytes, on disk, which is removed in the end unless it was given another name."""
    with temporary_file(folder) as path:
        with open(path, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        yield path


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # there a folder cannot be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _tidy(folder: Path, *, keep: str) -> None:
    """Remove tensors of older bundles and what interrupted writers left."""
    for name in filter(TENSORS.fullmatch, os.listdir(folder)):
        if name != keep:
            (folder / name).unlink(missing_ok=True)
    remove_leftovers(folder)
