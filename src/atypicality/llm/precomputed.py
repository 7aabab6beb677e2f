"""Token log-probabilities that were computed elsewhere, kept in JSON Lines or Parquet files."""

import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from atypicality.llm.scorers import LabelScores, NoScoresError, TokenScores, joined_label_scores
from atypicality.llm.texts import READERS
from atypicality.outputs.paths import check_source, replacing
from atypicality.terminal import listed, printable

__all__ = ["PrecomputedScorer", "write_scores"]

FIELDS = ("log_probs", "n_tokens", "ends", "tokens")


class PrecomputedScorer:
    """Look scores up in a file instead of asking a model.

    Every record has `prompt` (the whole text), `log_probs` (one number per scored token; the first may be null, as
    servers write a token that nothing stands before) and optionally `n_tokens` (default: as many as `log_probs`),
    `ends` (where each scored token ends, in characters), `tokens` (their names) and `label_log_probs` (label word to
    log-probability after the prompt). Without the last, every prompt + " " + label must be a record too. Records of
    " " + label alone give the atypicality of the classes.

    Parameters
    ----------
    path : path
        `.jsonl` (one object per line, UTF-8) or `.parquet`.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "scores.jsonl"
    >>> _ = path.write_text('{"prompt": "Hello there", "log_probs": [-3.0, -1.5]}')
    >>> PrecomputedScorer(path).score(["Hello there"])[0].log_probs
    array([-3. , -1.5])
    >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._records: dict[str, tuple[TokenScores, Mapping[str, float] | None]] | None = None

    def score(self, prompts: Sequence[str]) -> list[TokenScores]:
        """Scores of each of the `prompts`, in order."""
        return [scores for scores, _ in self._find(prompts)]

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Tokens of each of the `prompts`."""
        return [scores.n_tokens for scores, _ in self._find(prompts)]

    def score_labels(self, prompts: Sequence[str], labels: Sequence[str]) -> LabelScores:
        """Scores of prompts and labels, from `label_log_probs` or from the records of prompt + label."""
        found = self._find(prompts)
        given = [known for _, known in found if known is not None]
        if not given:
            return joined_label_scores(self, prompts, labels)
        words = [label.removeprefix(" ") for label in labels]
        for prompt, (_, known) in zip(prompts, found, strict=True):
            missing = [word for word in words if known is None or word not in known]
            if missing:
                there = listed(known or {}) or "none"
                raise ValueError(
                    f"{self._name} has no label_log_probs for {missing[0]!r} after {_short(prompt)}; it has: {there}."
                )
        logits = np.array([[known[word] for word in words] for known in given], np.float64)
        return LabelScores([scores for scores, _ in found], logits, "given")

    @property
    def _name(self) -> str:
        return repr(Path(self.path).name)

    def _find(self, prompts: Sequence[str]) -> list[tuple[TokenScores, Mapping[str, float] | None]]:
        if self._records is None:
            self._records = dict(self._read())
        for prompt in prompts:
            if prompt not in self._records:
                raise NoScoresError(f"{self._name} has no scores for the prompt {_short(prompt)}. Score it and add it.")
        return [self._records[prompt] for prompt in prompts]

    def _read(self) -> Iterator[tuple[str, tuple[TokenScores, Mapping[str, float] | None]]]:
        path = Path(self.path)
        if path.suffix.lower() not in (".jsonl", ".parquet"):
            raise ValueError(f"{self._name} must end in .jsonl or .parquet.")
        records = READERS[path.suffix.lower()](check_source(path), "utf-8")
        for number in itertools.count(1):
            try:
                found = [_parse(record) for record in itertools.islice(records, 1)]
            except (ModuleNotFoundError, MemoryError, PermissionError):
                raise
            except Exception as error:  # damaged bytes make the libraries below raise almost anything
                reason = printable(f"{error} is missing" if isinstance(error, KeyError) else error)
                raise ValueError(f"{self._name}, record {number}: {reason}.") from error
            if not found:
                return
            yield found[0]


def write_scores(path: str | os.PathLike[str], prompts: Sequence[str], scores: Sequence[TokenScores]) -> None:
    """Write scores as JSON Lines, for `PrecomputedScorer`.

    Parameters
    ----------
    path : path of the .jsonl file
    prompts : sequence of n str
    scores : sequence of n TokenScores

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "scores.jsonl"
    ...     write_scores(path, ["Hello there"], [TokenScores.checked([-3.0, -1.5])])
    ...     PrecomputedScorer(path).count_tokens(["Hello there"])
    [2]
    """
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for prompt, score in zip(prompts, scores, strict=True):
            file.write(json.dumps({"prompt": prompt} | to_record(score)) + "\n")


def to_record(score: TokenScores) -> dict[str, Any]:
    """Scores as plain lists and numbers, without what is not known."""
    values = {
        "log_probs": score.log_probs.tolist(),
        "n_tokens": score.n_tokens,
        "ends": None if score.ends is None else score.ends.tolist(),
        "tokens": None if score.tokens is None else list(score.tokens),
    }
    return {name: value for name, value in values.items() if value is not None}


def from_record(record: Mapping[str, Any]) -> TokenScores:
    """The reverse of `to_record`, for values that are not trusted."""
    values = {"log_probs": record["log_probs"]} | {name: record.get(name) for name in FIELDS[1:]}
    if isinstance(values["log_probs"], list) and values["log_probs"][:1] == [None]:  # nothing stood before the first
        size = len(values["log_probs"])
        values = {n: v[1:] if isinstance(v, list) and len(v) == size else v for n, v in values.items()}
        values["n_tokens"] = values["n_tokens"] or size
    return TokenScores.checked(**values)


def _parse(record: Any) -> tuple[str, tuple[TokenScores, Mapping[str, float] | None]]:
    if not isinstance(record, Mapping) or not isinstance(record.get("prompt"), str):
        raise ValueError("must be an object with a text named 'prompt'")
    if "log_probs" not in record:
        raise ValueError(f"has no 'log_probs'; it has: {listed(record)}")
    labels = record.get("label_log_probs")
    return record["prompt"], (from_record(record), None if labels is None else _label_scores(labels))


def _label_scores(given: Any) -> dict[str, float]:
    known = {str(word): float(value) for word, value in dict(given).items() if value is not None}  # a gap in Parquet
    wrong = [word for word, value in known.items() if not value < math.inf]
    if wrong:
        raise ValueError(f"label_log_probs must be numbers; that of {wrong[0]!r:.60} is {known[wrong[0]]}")
    return known


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
