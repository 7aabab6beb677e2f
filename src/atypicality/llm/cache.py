"""Scores that were paid for, kept on disk: an interrupted run takes up where it stopped.

One JSON object per line, appended and flushed as each score arrives: a hash of model, endpoint, options and prompt, the
log-probabilities of the prompt's tokens, where they end, and a hash of each. No text is written, and no key of an
account. Who has the model can still find a prompt by its log-probabilities, so a new file is readable by its owner
alone. A line cut short by a crash is passed over.
"""

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from atypicality.llm.precomputed import from_record, to_record
from atypicality.llm.scorers import TokenScores
from atypicality.outputs.paths import check_target

__all__ = ["ScoreCache"]

HASHES = "token_hashes"


class ScoreCache:
    """Scores by key, in memory and, where a path is given, in a file that several threads may append to.

    With a file, the tokens of scores are named by hashes, which are equal for equal tokens: that is all that label
    scoring needs of them, and the same whether a score was just asked for or read.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._scores: dict[str, TokenScores] = {}
        if self._path is not None:
            check_target(self._path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._scores = _read(self._path)

    def __contains__(self, key: str) -> bool:
        return key in self._scores

    def __getitem__(self, key: str) -> TokenScores:
        return self._scores[key]

    def add(self, key: str, scores: TokenScores) -> None:
        """Keep scores under a key, on disk before this returns."""
        with self._lock:
            if self._path is not None:
                scores = _hashed(scores)
                with open(self._path, "a", encoding="utf-8", opener=_private) as file:
                    file.write(json.dumps(_to_line(key, scores)) + "\n")
            self._scores[key] = scores


def cache_key(model: str, endpoint: str, options: Mapping[str, Any], prompt: str) -> str:
    """A hash of everything that decides a score.

    >>> cache_key("m", "http://localhost/v1", {"echo": True}, "a") == cache_key("m", "http://localhost/v1", {}, "a")
    False
    """
    identity = json.dumps([model, endpoint, sorted(options.items()), prompt])
    return hashlib.sha256(identity.encode()).hexdigest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _hashed(scores: TokenScores) -> TokenScores:
    if scores.tokens is None:
        return scores
    digests = (hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=6) for token in scores.tokens)
    return replace(scores, tokens=tuple(digest.hexdigest() for digest in digests))


def _to_line(key: str, scores: TokenScores) -> dict[str, Any]:
    record = to_record(scores)
    return {"key": key} | {HASHES if name == "tokens" else name: value for name, value in record.items()}


def _from_line(record: Mapping[str, Any]) -> TokenScores:
    if HASHES in record:
        return from_record({**record, "tokens": record[HASHES]})
    return _hashed(from_record(record))  # as version 0.1 wrote it, with the tokens themselves


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
            found[str(record["key"])] = _from_line(record)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
    return found
