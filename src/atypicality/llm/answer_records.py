"""Records of answers, as lines of a file or parts of a request hold them, to columns; each value is checked."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.llm.scorers import TokenScores
from atypicality.outputs.reading import ATTRIBUTE
from atypicality.terminal import listed
from atypicality.validation import ODD_TEXT, check_length, name_rows

__all__ = [
    "FIELDS", "MOST_SCORES", "RecordTable", "check_sampled", "check_score_name", "check_texts", "correct_meant",
    "token_scores",
]  # fmt: skip

TEXTS, EMBEDDINGS = ("prompt", "answer"), ("prompt_embedding", "answer_embedding")
SIGNALS = ("logprobs", "scores", *EMBEDDINGS)  # fields that say something of an answer whose texts were not kept
FIELDS = ("id", *TEXTS, "logprobs", "samples", "scores", "correct", *EMBEDDINGS, "attributes")
SCORES = "scores."  # before the name of a score, where fields are named
INSIDE = {SCORES: "scores", ATTRIBUTE: "attributes"}  # fields that hold several values, by what is before their names
NOT_GIVEN = "not given"  # the attribute of a record without it
SYNONYMS = {
    "prompt": ("question", "query", "input", "instruction"),
    "answer": ("response", "output", "completion", "reply", "prediction", "text"),
    "id": ("request_id", "uuid", "trace_id", "question_id"),
    "logprobs": ("token_logprobs", "log_probs", "logprob", "token_log_probs"),
    "correct": ("is_correct", "label", "human", "right", "accepted"),
    "scores.judge": ("judge", "judge_score", "rating", "grade"),
    "scores.verbalised": ("verbalised", "verbalized", "confidence"),
}
"""What logs call our fields."""
MOST_SCORES = 100
"""Names of scores in one table: a misread file, where every line brings a name of its own, is refused early."""
MOST_NAMED = 8  # fields of a record that an error names

Vector = NDArray[np.float64]


class RecordTable:
    """Records of one table, each checked beside the first, and the names of all their scores.

    `names` are the table's own by ours.
    """

    def __init__(self, names: Mapping[str, str] | None) -> None:
        self.names = _check_names(names or {})
        self.fields = (*FIELDS, *self.names.values())
        self.rows: list[dict[str, Any]] = []
        self.scores: dict[str, None] = {}
        self.widths: dict[str, int] = {}
        self.others: dict[str, None] = {}
        self.found: set[str] = set()

    def read(self, record: Mapping[str, Any]) -> bool:
        """Check and take a record; a ValueError says what is wrong with it."""
        row = _parse(_in_our_names(record, self.names), self.names)
        self.scores |= dict.fromkeys(row["scores"])
        if len(self.scores) > MOST_SCORES:
            raise ValueError(f"scores must have at most {MOST_SCORES} names in one file; this is one more")
        if self.rows and ("id" in self.rows[0]) != ("id" in row):
            raise ValueError("'id' must be in every line or in none")
        for name in EMBEDDINGS:
            if (values := row[name]) is not None and len(values) != (
                width := self.widths.setdefault(name, len(values))
            ):
                raise ValueError(f"{name!r} must have {width} numbers, as in a line before; it has {len(values)}")
        self.rows.append(row)
        self.found |= record.keys() & self.names.values()
        self.others |= dict.fromkeys(str(name) for name in record if name not in self.fields)
        return True

    def columns(self) -> dict[str, Any]:
        """The arguments of `Answers`."""
        return _columns(self.rows, list(self.scores))


def _check_names(names: Mapping[str, str]) -> dict[str, str]:
    for ours in names:
        if ours not in FIELDS and (not ours.startswith(tuple(INSIDE)) or ours in INSIDE):
            raise ValueError(f"names must be of {listed(FIELDS)}, scores.NAME or attribute.NAME; got {ours!r:.60}.")
    return dict(names)


def _in_our_names(record: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """A record with our names of its fields; scores and attributes that are fields of their own are among these."""
    if not names:
        return record
    found = {name: value for name, value in record.items() if name not in names.values()}
    for ours, theirs in ((ours, theirs) for ours, theirs in names.items() if theirs in record):
        if (prefix := next(filter(ours.startswith, INSIDE), None)) is None:
            found[ours] = record[theirs]
        elif isinstance(several := found.get(INSIDE[prefix]) or {}, dict):
            found[INSIDE[prefix]] = several | {ours.removeprefix(prefix): record[theirs]}
    return found


def _no_field(name: str, record: Mapping[str, Any]) -> str:
    """What a record has in the place of a text that it must have, and which of its fields may be meant by ours."""
    there = [str(other) for other in record if other not in FIELDS]
    close = get_close_matches(name, there, 1)
    meant = {ours: next((other for other in theirs if other in there), None) for ours, theirs in SYNONYMS.items()}
    meant[name] = meant[name] or (close[0] if close else None)
    pairs = {ours: theirs[:40] for ours, theirs in meant.items() if theirs and ours not in record}
    found = f"; the fields are {listed(f'{other:.40}' for other in list(record)[:MOST_NAMED])}" if record else ""
    if name in record:
        return f"{name!r} is null, and must be a text"
    if name not in pairs and record.keys().isdisjoint((*TEXTS, "samples", *SIGNALS)):
        return f"an answer needs logprobs, scores or an embedding, or prompt and answer{found}"
    if name not in pairs:
        return f"{name!r} is missing{found}"
    shell = ",".join(f"{ours}={theirs}" for ours, theirs in pairs.items())
    return f"{name!r} is missing{found}. Name it: names={pairs}, in a shell --names {shell}"


def _not_correct(value: Any, theirs: str) -> str:
    """What is wrong with a `correct`, `theirs` by name, and how to make one of words."""
    hint = f". {_of_words(theirs)}"
    hint += f"; and leave correct={theirs} out of the names" if theirs != "correct" else ""
    return f"{theirs!r} must be true or false; got {value!r:.40}{hint if isinstance(value, str) else ''}"


def correct_meant(record: Mapping[str, Any]) -> str:
    """Which field of a record without `correct` may be meant by it, in words; empty where none is.

    >>> correct_meant({"prompt": "2 + 2 =", "human": True})
    "Is it 'human'? Give --names correct=human"
    """
    name = next((other for other in SYNONYMS["correct"] if record.get(other) is not None), "")
    if isinstance(record.get(name), str):
        return f"Is it {name!r}? {_of_words(name)}"
    return f"Is it {name!r}? Give --names correct={name}" if name else ""


def _of_words(theirs: str) -> str:
    return f'Of words make it before: if "{theirs}" in record: record["correct"] = record.pop("{theirs}") == "right"'


def _parse(record: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """One line's fields, checked; a ValueError says what is wrong with them, by the table's own `names`."""
    known = {name: value for name, value in record.items() if name in FIELDS and value is not None}
    if known.keys().isdisjoint((*TEXTS, "samples")) and not known.keys().isdisjoint(SIGNALS):
        known |= dict.fromkeys(TEXTS, "")
    for name in TEXTS:
        if name not in known:
            raise ValueError(_no_field(name, record))
        if not isinstance(known[name], str) or ODD_TEXT.search(known[name]):
            raise ValueError(f"{name!r} must be a text without NUL and lone surrogates")
    if not isinstance(known.get("correct", True), (bool, int)) or known.get("correct", 0) not in (0, 1):
        raise ValueError(_not_correct(known["correct"], names.get("correct", "correct")))
    own: Any = known.get("id", "")
    if not isinstance(own, (str, int)) or isinstance(own, bool) or (isinstance(own, int) and abs(own) >= 2**63):
        raise ValueError("'id' must be a text or a whole number of at most 63 bits")
    known["logprobs"] = token_scores(_chat_log_probs(known["logprobs"])) if "logprobs" in known else None
    known["samples"] = check_sampled(_list(known["samples"], "samples", str)) if "samples" in known else None
    known["scores"] = {
        check_score_name(name): _number(value, names.get(f"{SCORES}{name}", name))
        for name, value in _several(known, "scores", "numbers").items()
    }
    known["attributes"] = {
        check_score_name(name): _word(value, names.get(f"{ATTRIBUTE}{name}", name))
        for name, value in _several(known, "attributes", "words").items()
    }
    for name in EMBEDDINGS:
        known[name] = [_number(value, name) for value in _list(known[name], name)] if name in known else None
        if known[name] == []:
            raise ValueError(f"{name!r} must not be empty; leave it out where there is none")
    return known


def _several(known: Mapping[str, Any], field: str, kind: str) -> dict[str, Any]:
    """Values of `scores` or `attributes` that are given, by name."""
    found = known.get(field, {})
    if not isinstance(found, dict):
        raise ValueError(f"{field!r} must be an object of {kind}")
    return {name: value for name, value in found.items() if value is not None}


def _word(value: Any, name: str) -> str:
    if not isinstance(value, (str, int)) or ODD_TEXT.search(str(value)):
        raise ValueError(f"{name!r:.60} must hold texts, whole numbers, or true and false; got {value!r:.40}")
    return str(value)


def _list(values: Any, name: str, kind: type = object) -> list[Any]:
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise ValueError(f"{name!r} must be a list" + (" of texts" if kind is str else ""))
    return values


def _chat_log_probs(given: Any) -> list[float]:
    """Numbers from a list of them, or from the `logprobs` of a chat completion's choice."""
    if isinstance(given, dict):
        if "content" not in given:
            raise ValueError(f"'logprobs' must have 'content', or be a list of numbers; it has {listed(given):.60}")
        content = given["content"]
        entries = _list([] if content is None else content, "logprobs.content", dict)
        return [_number(entry.get("logprob"), "logprob") for entry in entries]
    return [_number(value, "logprobs") for value in _list(given, "logprobs")]


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(number := float(value)):
        hint = ". Write it as a number" if isinstance(value, str) else ""
        hint = ". Leave out what is not known, or write null" if isinstance(value, float) and np.isnan(value) else hint
        raise ValueError(f"{name!r:.60} must hold finite numbers; got {value!r:.40}{hint}")
    return number


def _columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """The arguments of `Answers` from checked lines."""
    given: dict[str, Any] = {"prompts": [row["prompt"] for row in rows], "answers": [row["answer"] for row in rows]}
    for name, field in (("log_probs", "logprobs"), ("samples", "samples")):
        known = [row[field] for row in rows]
        given[name] = known if any(value is not None for value in known) else None
    given["scores"] = {name: [row["scores"].get(name, np.nan) for row in rows] for name in names}
    kinds = dict.fromkeys(name for row in rows for name in row["attributes"])
    given["attributes"] = {name: [row["attributes"].get(name, NOT_GIVEN) for row in rows] for name in kinds}
    given["correct"] = [row.get("correct") for row in rows] if any("correct" in row for row in rows) else None
    given["ids"] = [row["id"] for row in rows] if rows and "id" in rows[0] else None
    if given["ids"] is not None and any(isinstance(value, str) for value in given["ids"]):
        given["ids"] = list(map(str, given["ids"]))
    for field in EMBEDDINGS:
        given[f"{field}s"] = _matrix([row[field] for row in rows])
    return given


def _matrix(rows: Sequence[list[float] | None]) -> Vector | None:
    if (width := next((len(row) for row in rows if row is not None), None)) is None:
        return None
    return np.array([[np.nan] * width if row is None else row for row in rows], np.float64)


def check_texts(values: Sequence[str], name: str, n_rows: int | None = None) -> NDArray[np.object_]:
    """Texts as an array of objects (n,): one of fixed width would make all as long as the longest."""
    if isinstance(values, str):
        raise TypeError(f"{name} must be a sequence of texts; got one text. Pass [text].")
    array = np.empty(len(values), object)
    array[:] = list(values)
    bad = np.flatnonzero([not isinstance(text, str) or ODD_TEXT.search(text) is not None for text in array])
    if bad.size:
        raise ValueError(f"{name} must be text without NUL characters and lone surrogates; {name_rows(bad)} another.")
    if n_rows is not None:
        check_length(array, name, n_rows)
    return array


def token_scores(values: ArrayLike) -> Vector | None:
    """Checked log-probabilities (t,); None of an answer without tokens."""
    found = TokenScores.checked(values).log_probs
    return found if found.size else None


def check_sampled(texts: Any) -> tuple[str, ...] | None:
    """Checked samples of an answer; None where there are none."""
    return tuple(check_texts(texts, "samples")) or None


def check_score_name(name: Any) -> str:
    """A name that a score may have."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 80:
        raise ValueError(f"scores must have names of 1 to 80 printable characters; got {name!r:.60}")
    return name
