"""Paths that are read and written: what may be opened, and files that are written whole, exactly where asked.

A file is written under a temporary name beside its place, `.atypicality-<16 hexadecimal digits>.tmp`, and then renamed.
Its writer holds a lock on it. Readers pass over hidden files; the next writer into the folder removes what killed
writers left: temporary files with such a name that no process holds.
"""

import contextlib
import errno
import importlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "check_new_folder", "check_source", "check_target", "held", "is_empty", "members", "new_folder",
    "remove_leftovers", "replacing", "temporary_file", "told_when_full",
]  # fmt: skip

fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None  # Windows has no such locks
msvcrt: Any = importlib.import_module("msvcrt") if os.name == "nt" else None

AnyPath = str | os.PathLike[str]

TEMPORARY = re.compile(r"\.atypicality-[0-9a-f]{16}\.tmp")
FILE, FOLDER = "a regular file", "a folder"
KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
STREAM = re.compile(r"/dev/fd/|/proc/.*/fd/")
FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))  # of a disk, or of a user's share of it
STALE_SECONDS = 24 * 3600  # age from which on a temporary file counts as left behind, where the system has no locks


def check_source(path: AnyPath, *, folder: bool = False) -> Path:
    """The path of a regular file, or with `folder` also of a folder; links are followed.

    A pipe or a device is refused: it may block forever, and gives other bytes each time.
    """
    kind, wanted = _kind(path), f"{FILE} or {FOLDER}" if folder else FILE
    if kind is None:
        raise FileNotFoundError(f"no file{' or folder' if folder else ''} at {os.fspath(path)!r}.")
    if kind not in (FILE, FOLDER if folder else FILE):
        raise ValueError(f"{os.fspath(path)!r} must be {wanted}; it is {kind}. Copy what it gives to a file first.")
    return Path(path)


def check_target(path: AnyPath, *, folder: bool = False) -> Path:
    """The real path of a file, or with `folder` of a folder, after making sure that it can be written.

    Called before long work, so that a bad path costs nothing. Nothing is made yet: folders above `path` that are
    missing are made when it is written.
    """
    target = _place(path, folder=folder)
    parent = target if folder else target.parent
    while not os.path.lexists(parent):
        parent = parent.parent
    try:
        with temporary_file(parent):
            return target
    except OSError as error:
        raise type(error)(f"{os.fspath(path)!r} cannot be written: {str(parent)!r}: {error.strerror}.") from error


def check_new_folder(path: AnyPath) -> Path:
    """Like `check_target` for a folder that is new or empty, and takes its place by a rename."""
    target = check_target(path, folder=True)
    if target.exists() and not is_empty(target):
        raise FileExistsError(f"the folder {os.fspath(path)!r} is not empty; choose another name or remove it first.")
    if os.path.ismount(target):
        raise FileExistsError(f"the folder {os.fspath(path)!r} is a mount point; choose a new folder in it.")
    check_target(target.parent, folder=True)
    return target


def members(folder: Path, ending: str) -> list[Path]:
    """The files of a folder with this ending, in order; hidden ones are left out."""
    found = (path for path in folder.iterdir() if path.suffix.lower() == ending and not path.name.startswith("."))
    return sorted(found)


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing but what killed writers left, which is removed."""
    remove_leftovers(folder)
    return not any(folder.iterdir())


@contextlib.contextmanager
def replacing(path: AnyPath) -> Iterator[Path]:
    """A temporary file that takes the place of `path` when the block ends without an error.

    A link stays, and the file that it leads to is replaced. The new file is never open to more users than the old.
    """
    target = _place(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent)
    with told_when_full(target), temporary_file(target.parent, mode=_mode(target, 0o666)) as new:
        yield new
        os.replace(new, target)


@contextlib.contextmanager
def new_folder(path: AnyPath) -> Iterator[Path]:
    """A temporary folder that becomes the folder `path`, new or empty, when the block ends without an error."""
    target = check_new_folder(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent)
    with told_when_full(target), _temporary(target.parent, _make_folder, _mode(target, 0o777)) as new:
        yield new
        os.replace(new, target)  # replaces an empty folder, fails on any other


@contextlib.contextmanager
def told_when_full(target: Path) -> Iterator[None]:
    """Let an error of a full disk say what was being written, and where; nothing of it is left."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OSError(
            f"{str(target)!r} was not written: {error.strerror} in {str(target.parent)!r}. Free some, or choose "
            "another folder."
        ) from error


@contextlib.contextmanager
def held(path: Path, *, seconds: float) -> Iterator[None]:
    """A lock on the file `path`, which is made and stays; it ends with the block, or with the process however it ends.

    Waits up to `seconds` for another process that holds it. A folder that was made for it goes with a block that fails
    and has left nothing there.
    """
    new, handle = not path.parent.exists(), _locked(path, seconds)
    try:
        yield
    except BaseException:
        if new and os.listdir(path.parent) == [path.name]:
            with contextlib.suppress(OSError):  # somebody's file, or Windows, where an open one stays
                path.unlink()
                path.parent.rmdir()
        raise
    finally:
        os.close(handle)  # which unlocks it


def _locked(path: Path, seconds: float) -> int:
    """A handle that holds the lock on the file at `path`, and not on one that was removed meanwhile."""
    last = time.monotonic() + seconds
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the folder was removed between two steps
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                while not _taken(handle):
                    if time.monotonic() > last:
                        raise TimeoutError(
                            f"{str(path.parent)!r} is in use by another process; waited {seconds:g} seconds. Try again."
                        )
                    time.sleep(0.05)
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)


def _taken(handle: int) -> bool:
    try:
        if fcntl is None:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # on Windows the second
        return False
    return True


@contextlib.contextmanager
def temporary_file(folder: Path, *, mode: int = 0o666) -> Iterator[Path]:
    """A new, empty file in `folder`, removed in the end unless it was given another name."""
    with _temporary(folder, _make_file, mode) as path:
        yield path


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders of writers that were killed, never those of writers at work."""
    for name in filter(TEMPORARY.fullmatch, os.listdir(folder)):
        with contextlib.suppress(OSError):  # held by its writer, somebody else's, or gone by now
            _remove_stale(folder / name)


def _remove_stale(path: Path) -> None:
    found = os.lstat(path)
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return
    if fcntl is None:
        if time.time() - found.st_mtime > STALE_SECONDS:
            _remove(path)
        return
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _temporary(folder: Path, make: Callable[[Path, int], int | None], mode: int) -> Iterator[Path]:
    """Something new under a temporary name, locked until the end of the block or of the process, then removed."""
    while True:
        path = folder / f".atypicality-{secrets.token_hex(8)}.tmp"
        handle = None
        try:
            handle = make(path, mode)
            if _lock(handle, path):
                yield path
                return
        finally:
            if handle is not None:
                os.close(handle)
            _remove(path)


def _lock(handle: int | None, path: Path) -> bool:
    """Lock a new temporary file; False where another writer took it for a leftover before the lock was there."""
    if fcntl is None or handle is None:
        return True
    with contextlib.suppress(OSError):  # a file system without locks, where nothing counts as left behind either
        fcntl.flock(handle, fcntl.LOCK_EX)
    return path.exists()


def _make_file(path: Path, mode: int) -> int | None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)  # the kernel applies the umask
    if fcntl is not None:
        return handle
    os.close(handle)  # on Windows an open file could not be renamed
    return None


def _make_folder(path: Path, mode: int) -> int | None:
    os.mkdir(path, mode)
    return None if fcntl is None else os.open(path, os.O_RDONLY)


def _place(path: AnyPath, *, folder: bool = False) -> Path:
    """Where a link leads; refuses what is neither absent nor what is to be written."""
    kind, wanted = _kind(path), FOLDER if folder else FILE
    if _is_descriptor(os.fspath(path)):
        kind = "an open stream of a process"
    if kind not in (None, wanted):
        raise FileExistsError(f"{os.fspath(path)!r} is {kind}, which is not replaced. Give {wanted}, or a new path.")
    return Path(os.path.realpath(path))


def _kind(path: AnyPath) -> str | None:
    """What is there, behind links, in words; None where nothing is."""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path).st_mode), "something else")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_descriptor(path: str) -> bool:
    """Whether a path such as /dev/stdout names an open stream: behind it may be a file that a shell appends to."""
    for _ in range(40):  # as many links as Linux follows
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if STREAM.match(path):
            return True
        if not os.path.islink(path):
            return False
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return False


def _mode(path: Path, default: int) -> int:
    try:
        return stat.S_IMODE(os.stat(path).st_mode) & 0o777
    except FileNotFoundError:
        return default
