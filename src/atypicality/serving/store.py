"""The head that is served: loaded from its folder, and replaced as a whole when a new bundle is there."""

import os
from pathlib import Path
from typing import NamedTuple

from atypicality.serving.judge import Judge
from atypicality.shipping.bundle import MAX_JSON_BYTES, BundleError, load
from atypicality.shipping.bundle.document import NAME, parse
from atypicality.shipping.bundle.folder import read_regular

__all__ = ["HeadStore", "Served"]

ATTEMPTS = 10
VERSION_LENGTH = 12


class Served(NamedTuple):
    """A head that answers, and its version: the first digits of the sha256 that `save` gave."""

    judge: Judge
    version: str


class HeadStore:
    """The folder of a bundle and the head that was last loaded from it.

    With `sha256` every other head is refused, as in `load`; a reload then changes nothing. `current` is replaced in one
    step; whoever took it before keeps what it took.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, max_risk: float | None = None, sha256: str | None = None
    ) -> None:
        self.folder, self._max_risk, self._sha256 = Path(folder), max_risk, sha256
        self._seen = self._stamp()
        self.current = self.load()

    def load(self) -> Served:
        """The head that is in the folder now, ready to answer; `current` stays as it is."""
        for attempt in range(ATTEMPTS):
            seal = self._seal()
            try:
                head = load(self.folder, sha256=self._sha256 or seal)
            except BundleError:  # perhaps a writer put another bundle there between two looks
                if self._sha256 is not None or attempt + 1 == ATTEMPTS or self._seal() == seal:
                    raise
                continue
            return Served(Judge(head, self._max_risk), seal[:VERSION_LENGTH])
        raise AssertionError("the last attempt raises")

    def _seal(self) -> str:
        return parse(read_regular(self.folder, NAME, max_bytes=MAX_JSON_BYTES, option="max_json_bytes")).sha256

    def changed(self) -> bool:
        """Whether the folder's bundle was replaced since the last call, or since the start."""
        before, self._seen = self._seen, self._stamp()
        return self._seen not in (before, None)

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.folder / NAME)
        except OSError:  # between the steps of somebody's copying
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size
