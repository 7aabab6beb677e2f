"""Scores that were paid for, kept on disk: an interrupted run takes up where it stopped.

One JSON object per line, appended and flushed as each score arrives. The key is a hash of model, endpoint, options and
prompt; neither the prompt nor any key of an account is written. A line cut short by a crash is passed over.
"""

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atypicality.llm.precomputed import from_record, to_record
from atypicality.llm.scorers import TokenScores
from atypicality.outputs.paths import check_target

__all__ = ["ScoreCache"]


class ScoreCache:
    """Scores by key, in memory and, where a path is given, in a file that several threads may append to."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._scores: dict[str, TokenScores] = {}
        if self._path is not None:
            check_target(self._path).parent.mkdir(parents=True, exist_ok=True)
            self._scores = _read(self._path)

    def __contains__(self, key: str) -> bool:
        return key in self._scores

    def __getitem__(self, key: str) -> TokenScores:
        return self._scores[key]

    def add(self, key: str, scores: TokenScores) -> None:
        """Keep scores under a key, on disk before this returns."""
        with self._lock:
            self._scores[key] = scores
            if self._path is not None:
                with open(self._path, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key} | to_record(scores)) + "\n")


def cache_key(model: str, endpoint: str, options: Mapping[str, Any], prompt: str) -> str:
    """A hash of everything that decides a score.

    >>> cache_key("m", "http://localhost/v1", {"echo": True}, "a") == cache_key("m", "http://localhost/v1", {}, "a")
    False
    """
    identity = json.dumps([model, endpoint, sorted(options.items()), prompt])
    return hashlib.sha256(identity.encode()).hexdigest()


def _read(path: Path) -> dict[str, TokenScores]:
    if not path.exists():
        return {}
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):  # cut short: close the line, so that the next one starts afresh
        with open(path, "ab") as file:
            file.write(b"\n")
    found = {}
    for line in data.splitlines():
        try:
            record = json.loads(line)
            found[str(record["key"])] = from_record(record)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
    return found
