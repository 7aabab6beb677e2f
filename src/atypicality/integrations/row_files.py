"""A folder of .npy files that grows row by row and survives being killed at any moment.

Rows go to `NAME.npy.part`. Which rows count is said by `progress.json` alone, replaced as a whole after the rows have
reached the disk, so that a run that starts again writes the next row where the last counted one ended. The files get
their final header and name when all rows are there: an unfinished folder is never mistaken for a finished one.
"""

import contextlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.outputs.paths import fcntl, is_empty, replacing

__all__ = ["RowFolder", "check_names", "only_writer"]

PROGRESS = "progress.json"
STATES = ("collecting", "finishing", "complete")


class RowFolder:
    """Named arrays with a common number of rows, in a folder that `ModelOutputs.load` reads once it is complete.

    The folder is new, empty, or was begun by an earlier run with the same `note`, which says what the rows are;
    `rows` of them are safely there.

    >>> import tempfile
    >>> path = tempfile.mkdtemp()
    >>> RowFolder(path, "scores").append({"labels": np.arange(3)})
    >>> folder = RowFolder(path, "scores")  # the process was killed, and starts again
    >>> folder.append({"labels": np.arange(2)})
    >>> folder.finish()
    >>> np.load(Path(path) / "labels.npy")
    array([0, 1, 2, 0, 1])
    """

    def __init__(self, path: str | os.PathLike[str], note: str) -> None:
        self.path = Path(path)
        self.note = note
        self.rows, self.state = 0, STATES[0]
        self._kinds: dict[str, np.dtype[Any]] = {}  # type and shape of a row
        if (self.path / PROGRESS).exists():
            self._resume()
        elif self.path.exists() and not is_empty(self.path):
            raise FileExistsError(
                f"the folder {str(self.path)!r} is not empty and no earlier run began it; choose another name."
            )
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            self._commit()

    @property
    def complete(self) -> bool:
        """Whether all rows are there and the files have their final names."""
        return self.state == "complete"

    def append(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Add rows to every array; they count once all of them are on the disk."""
        (n_rows,) = {array.shape[0] for array in arrays.values()}
        kinds = {name: np.dtype((array.dtype, array.shape[1:])) for name, array in arrays.items()}
        self._kinds = self._kinds or kinds
        self._check(kinds)
        for name, array in arrays.items():
            self._write(name, array)
        self.rows += n_rows
        self._commit()

    def finish(self) -> None:
        """Give every file its final header and name; safe to be killed in, and to be called again."""
        self.state = "finishing"
        self._commit()
        for name in self._kinds:
            if (part := self._part(name)).exists():
                header = self._header(name, self.rows)
                with open(part, "r+b") as file:
                    file.truncate(len(header) + self.rows * self._kinds[name].itemsize)
                    file.write(header)
                    _to_disk(file)
                os.replace(part, self.path / f"{name}.npy")
        self.state = "complete"
        self._commit()

    def first(self, name: str, n_rows: int) -> NDArray[Any]:
        """The first rows of an array that is there already."""
        if name not in self._kinds:
            raise ValueError(f"the folder {str(self.path)!r} was begun without {name}; choose another.")
        n_rows, offset = min(n_rows, self.rows), len(self._header(name, 0))
        return np.fromfile(self._file(name), self._kinds[name], n_rows, offset=offset)

    def __contains__(self, name: str) -> bool:
        return name in self._kinds

    def _check(self, kinds: Mapping[str, np.dtype[Any]]) -> None:
        check_names(self._kinds, kinds)
        for name, kind in kinds.items():
            old = self._kinds[name]
            if kind != old:
                raise ValueError(
                    f"{name} must stay {old.base} with rows of shape {old.shape}; row {self.rows} on brings "
                    f"{kind.base} with rows of shape {kind.shape}."
                )

    def _write(self, name: str, array: NDArray[Any]) -> None:
        header = self._header(name, 0)
        with open(self._part(name), "r+b" if self.rows else "wb") as file:
            if not self.rows:
                file.write(header)
            file.seek(len(header) + self.rows * self._kinds[name].itemsize)
            file.truncate()  # rows of a batch that was never counted
            file.write(np.ascontiguousarray(array).data)
            _to_disk(file)

    def _header(self, name: str, n_rows: int) -> bytes:
        """NumPy pads headers so that their length does not depend on the number of rows."""
        kind, stream = self._kinds[name], io.BytesIO()
        claims = {"descr": kind.base.str, "fortran_order": False, "shape": (n_rows, *kind.shape)}
        np.lib.format.write_array_header_1_0(stream, claims)
        return stream.getvalue()

    def _part(self, name: str) -> Path:
        return self.path / f"{name}.npy.part"

    def _file(self, name: str) -> Path:
        part = self._part(name)
        return part if part.exists() else self.path / f"{name}.npy"

    def _commit(self) -> None:
        arrays = {name: [kind.base.str, list(kind.shape)] for name, kind in self._kinds.items()}
        content = {"state": self.state, "note": self.note, "rows": self.rows, "arrays": arrays if self.rows else {}}
        with replacing(self.path / PROGRESS) as temporary, open(temporary, "w", encoding="utf-8") as file:
            json.dump(content, file)
            _to_disk(file)

    def _resume(self) -> None:
        note = self._read_progress()
        if note != self.note:
            raise ValueError(
                f"the folder {str(self.path)!r} was begun for {note}, not for {self.note}; choose another."
            )
        for name in self._kinds:
            needed = len(self._header(name, 0)) + self.rows * self._kinds[name].itemsize
            file = self._file(name)
            if not file.exists() or file.stat().st_size < needed:
                raise ValueError(
                    f"{file.name!r} in {str(self.path)!r} is shorter than the {self.rows} rows it should hold; "
                    "remove the folder and collect again."
                )
        if self.state == "finishing":
            self.finish()

    def _read_progress(self) -> str:
        try:
            content = json.loads((self.path / PROGRESS).read_text(encoding="utf-8"))
            self.state = STATES[STATES.index(content["state"])]
            self.rows = int(content["rows"])
            rows = content["arrays"].items()
            self._kinds = {name: np.dtype((str(base), tuple(map(int, shape)))) for name, (base, shape) in rows}
            return str(content["note"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{PROGRESS!r} in {str(self.path)!r} is damaged ({error}); remove the folder and collect again."
            ) from error


@contextlib.contextmanager
def only_writer(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make the folder, and refuse to go on while another process writes to it; a killed one does not count.

    Systems without such locks (Windows) are not guarded.
    """
    Path(path).mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is writing to {os.fspath(path)!r}; wait for it, or choose another."
            ) from None
        yield
    finally:
        os.close(handle)


def check_names(first: Iterable[str], given: Iterable[str]) -> None:
    """Refuse a batch with other arrays than the first."""
    if set(first) != set(given):
        raise ValueError(f"every batch must give {', '.join(first)}; this one gave {', '.join(given)}.")


def _to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
