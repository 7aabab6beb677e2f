"""Answers of a language model with what is known of each: token log-probabilities, samples, scores, correctness."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.llm.scorers import TokenScores
from atypicality.llm.texts import read_objects
from atypicality.metrics.rows import check_correct
from atypicality.outputs.paths import replacing
from atypicality.terminal import listed
from atypicality.validation import ODD_TEXT, check_groups, check_length, check_matrix, check_rows, name_rows, warn

__all__ = ["Answers", "warn_of_one_kind"]

TEXTS, EMBEDDINGS = ("prompt", "answer"), ("prompt_embedding", "answer_embedding")
SIGNALS = ("logprobs", "scores", *EMBEDDINGS)  # fields that say something of an answer whose texts were not kept
FIELDS = ("id", *TEXTS, "logprobs", "samples", "scores", "correct", *EMBEDDINGS)
MOST_SCORES = 100
"""Names of scores in one table: a misread file, where every line brings a name of its own, is refused early."""
UNKNOWN_LOG_PROB = -9999.0  # what servers give of a token that is not among the likeliest they have looked at
ZERO_SHARE = 0.1  # of the answers with log-probabilities that may have zeros alone: a likely token can have 0.0
FEW = 20  # rows from which on answers that are all correct, or all wrong, are worth a warning

Vector = NDArray[np.float64]
Some = TypeVar("Some", bound="Answers")


class Answers:
    """Prompts, the answers of a language model, and what is known of each; all but the texts is optional.

    Parameters
    ----------
    prompts, answers : sequence of n str
    log_probs : sequence of n arrays of floats, or None for an answer without, optional
        Log-probability of each token of the answer; none positive. An answer with a token of -9999 or less, by which
        servers say that they do not know it, counts as one without; a warning says how many do.
    samples : sequence of n sequences of str, or None for an answer without, optional
        Further answers to the same prompt, to see how many agree.
    scores : mapping of str to array of shape (n,), optional
        Any other numbers: a verbalised score, a judge's margin, the prompt's log-likelihood. NaN where there is none.
    correct : array of bool, of shape (n,), optional
    ids : array of shape (n,), optional
    prompt_embeddings, answer_embeddings : array of shape (n, d), optional
        A row of NaN where there is none.

    Examples
    --------
    >>> answers = Answers(["2 + 2 ="], ["4"], log_probs=[[-0.1]], scores={"verbalised": [0.9]}, correct=[True])
    >>> answers
    Answers(1 rows; log_probs, scores verbalised, correct)
    >>> answers.log_probs[0]
    array([-0.1])
    """

    def __init__(
        self,
        prompts: Sequence[str],
        answers: Sequence[str],
        *,
        log_probs: Sequence[ArrayLike | None] | None = None,
        samples: Sequence[Sequence[str] | None] | None = None,
        scores: Mapping[str, ArrayLike] | None = None,
        correct: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        prompt_embeddings: ArrayLike | None = None,
        answer_embeddings: ArrayLike | None = None,
    ) -> None:
        self.prompts = _texts(prompts, "prompts")
        n_rows = self.prompts.size
        self.answers = _texts(answers, "answers", n_rows)
        self.log_probs = None if log_probs is None else _log_probs(log_probs, n_rows)
        self.samples = None if samples is None else _per_row(samples, "samples", n_rows, _sampled)
        self.scores = {_name(name): _score(values, name, n_rows) for name, values in dict(scores or {}).items()}
        if len(self.scores) > MOST_SCORES:
            raise ValueError(f"scores must have at most {MOST_SCORES} names; got {len(self.scores)}.")
        self.correct = None if correct is None else check_correct(correct, n_rows)
        self.ids = None if ids is None else check_groups(ids, "ids", n_rows=n_rows)
        self.prompt_embeddings = _embeddings(prompt_embeddings, "prompt_embeddings", n_rows)
        self.answer_embeddings = _embeddings(answer_embeddings, "answer_embeddings", n_rows)

    def __len__(self) -> int:
        return int(self.prompts.size)

    def __getitem__(self, rows: slice | NDArray[Any]) -> "Answers":
        """The answers of some rows: a slice, positions or a boolean mask."""
        rows = check_rows(rows)
        some = object.__new__(Answers)
        for name, part in vars(self).items():
            columns = {key: values[rows] for key, values in part.items()} if name == "scores" else None
            setattr(some, name, columns if columns is not None else None if part is None else part[rows])
        return some

    def __repr__(self) -> str:
        parts = [name for name in ("log_probs", "samples") if getattr(self, name) is not None]
        parts += [f"scores {listed(self.scores)}"] if self.scores else []
        others = ("correct", "ids", "prompt_embeddings", "answer_embeddings")
        parts += [name for name in others if getattr(self, name) is not None]
        return f"Answers({len(self)} rows; {', '.join(parts) or 'texts alone'})"

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read a JSON Lines file (UTF-8), one object for each answer.

        Parameters
        ----------
        path : path of the .jsonl file
            Every line has `prompt` and `answer` and may have `logprobs` (as chat completions give them, an object with
            a list `content` of objects with a `logprob`; or a list of numbers), `samples` (a list of texts), `scores`
            (an object of numbers), `correct`, `id`, `prompt_embedding` and `answer_embedding` (lists of numbers). Null
            is the same as left out; `correct` and `id` are in every line or in none. A line with log-probabilities,
            scores or embeddings and without samples needs no texts. A warning names other fields, which are not read.

        Examples
        --------
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name) / "answers.jsonl"
        >>> _ = path.write_text('{"prompt": "2 + 2 =", "answer": "4", "logprobs": {"content": [{"logprob": -0.1}]}}')
        >>> Answers.read(path)
        Answers(1 rows; log_probs)
        >>> folder.cleanup()
        """
        name, lines = repr(Path(path).name), _OneFile()
        rows = read_objects(path, lines.read, FIELDS)
        if not rows:
            raise ValueError(f"{name} must have at least one line with an answer; it has none.")
        found = warn_of_one_kind(cls(**_columns(rows, list(lines.scores))), name)
        if found.ids is not None and len(again := _repeated(found.ids)):
            warn(
                f"{name} has the same 'id' in several lines, {listed(again[:1])!r:.60} and {len(again) - 1:,} more: "
                "late labels cannot tell these answers apart."
            )
        return found

    def write(self, path: str | os.PathLike[str]) -> None:
        r"""Write JSON Lines to `path`, for `Answers.read`; log-probabilities as lists of numbers.

        Parameters
        ----------
        path : path of the .jsonl file

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "answers.jsonl"
        ...     Answers(["2 + 2 ="], ["4"], log_probs=[[-0.1]], correct=[True]).write(path)
        ...     path.read_text()
        '{"prompt": "2 + 2 =", "answer": "4", "logprobs": [-0.1], "correct": true}\n'
        """
        with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in self.records())

    def texts(self) -> dict[str, NDArray[np.object_]]:
        """Prompts and answers by name, as a report takes its `examples`.

        >>> list(Answers(["2 + 2 ="], ["4"]).texts())
        ['prompt', 'answer']
        """
        return {"prompt": self.prompts, "answer": self.answers}

    def records(self) -> Iterator[dict[str, Any]]:
        """Each answer as plain values, without what is not known: the lines of `write`.

        >>> next(Answers(["2 + 2 ="], ["4"], samples=[["4", "5"]]).records())
        {'prompt': '2 + 2 =', 'answer': '4', 'samples': ['4', '5']}
        """
        for row in range(len(self)):
            scores = {name: float(values[row]) for name, values in self.scores.items() if not np.isnan(values[row])}
            columns = (self.ids, self.prompts, self.answers, self.log_probs, self.samples)
            found = [None if column is None else column[row] for column in columns]
            found += [scores or None, None if self.correct is None else self.correct[row]]
            embeddings = (self.prompt_embeddings, self.answer_embeddings)
            found += [None if part is None or np.isnan(part[row, 0]) else part[row] for part in embeddings]
            yield {name: _plain(value) for name, value in zip(FIELDS, found, strict=True) if value is not None}


def warn_of_one_kind(answers: Some, source: str) -> Some:
    """The answers, with a warning where they are many and all correct or all wrong."""
    if answers.correct is not None and len(answers) >= FEW and answers.correct.mean() in (0, 1):
        warn(
            f"{source} has 'correct': {str(answers.correct[0]).lower()} in all {len(answers)} rows: nothing can be "
            "learnt or measured from one kind. Add answers of the other, or look at how 'correct' was made."
        )
    return answers


def _repeated(ids: NDArray[Any]) -> NDArray[Any]:
    names, counts = np.unique(ids, return_counts=True)
    return names[counts > 1]


def _texts(values: Sequence[str], name: str, n_rows: int | None = None) -> NDArray[np.object_]:
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


def _per_row(values: Sequence[Any], name: str, n_rows: int, read: Any) -> NDArray[np.object_]:
    found = np.empty(len(values), object)
    check_length(found, name, n_rows)
    for row, value in enumerate(values):
        try:
            found[row] = None if value is None else read(value)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name} of row {row}: {error}.") from None
    return found


def _log_probs(values: Sequence[ArrayLike | None], n_rows: int) -> NDArray[np.object_]:
    """Log-probabilities of each answer, None where they are not known, with warnings of what servers get wrong."""
    found = _per_row(values, "log_probs", n_rows, _token_scores)
    unknown = np.flatnonzero([row is not None and bool((row <= UNKNOWN_LOG_PROB).any()) for row in found])
    if unknown.size:
        found[unknown] = None
        warn(
            f"{name_rows(unknown, 'has', 'have')} a log-probability of {UNKNOWN_LOG_PROB:.0f} or less, which marks "
            "tokens that the server did not score: counted as answers without log-probabilities."
        )
    known = [row for row in found if row is not None]
    zero = [row.size for row in known if not row.any()]
    if sum(zero) > 1 and len(zero) >= ZERO_SHARE * len(known):
        warn(
            f"every log-probability is 0.0 in {len(zero):,} of {len(known):,} answers that have them, as of servers "
            "that compute none: P(correct) of such answers means nothing. Look at the server's settings, or leave "
            "these log-probabilities out."
        )
    return found


def _token_scores(values: ArrayLike) -> Vector | None:
    """Checked log-probabilities (t,); None of an answer without tokens."""
    found = TokenScores.checked(values).log_probs
    return found if found.size else None


def _sampled(texts: Any) -> tuple[str, ...] | None:
    return tuple(_texts(texts, "samples")) or None


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 80:
        raise ValueError(f"scores must have names of 1 to 80 printable characters; got {name!r:.60}")
    return name


def _score(values: ArrayLike, name: str, n_rows: int) -> Vector:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"scores[{name!r}] must be one number per answer, NaN where there is none.")
    check_length(array, f"scores[{name!r}]", n_rows)
    if (bad := np.flatnonzero(np.isinf(array))).size:
        raise ValueError(f"scores[{name!r}] must be finite, or NaN where there is none; {name_rows(bad)} infinity.")
    return array.astype(np.float64)


def _embeddings(values: ArrayLike | None, name: str, n_rows: int) -> NDArray[np.floating[Any]] | None:
    if values is None:
        return None
    matrix = check_matrix(values, name)
    check_length(matrix, name, n_rows)
    odd = ~np.isfinite(matrix)
    if (bad := np.flatnonzero(odd.any(axis=1) & ~np.isnan(matrix).all(axis=1))).size:
        raise ValueError(f"{name} must be finite, or NaN throughout a row that has none; {name_rows(bad)} a part.")
    return matrix


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


class _OneFile:
    """Lines of one file, each checked beside the first, and the names of all their scores."""

    def __init__(self) -> None:
        self.first: dict[str, Any] | None = None
        self.scores: dict[str, None] = {}
        self.widths: dict[str, int] = {}

    def read(self, record: Mapping[str, Any]) -> dict[str, Any]:
        row = _parse(record)
        self.first = self.first or row
        self.scores |= dict.fromkeys(row["scores"])
        if len(self.scores) > MOST_SCORES:
            raise ValueError(f"scores must have at most {MOST_SCORES} names in one file; this is one more")
        for name in ("correct", "id"):
            if (name in self.first) != (name in row):
                raise ValueError(f"{name!r} must be in every line or in none")
        for name in EMBEDDINGS:
            if (values := row[name]) is not None and len(values) != (
                width := self.widths.setdefault(name, len(values))
            ):
                raise ValueError(f"{name!r} must have {width} numbers, as in a line before; it has {len(values)}")
        return row


def _parse(record: Mapping[str, Any]) -> dict[str, Any]:
    """One line's fields, checked; a ValueError says what is wrong with them."""
    known = {name: value for name, value in record.items() if name in FIELDS and value is not None}
    if known.keys().isdisjoint((*TEXTS, "samples")) and not known.keys().isdisjoint(SIGNALS):
        known |= dict.fromkeys(TEXTS, "")
    for name in TEXTS:
        if name not in known:
            bare = known.keys().isdisjoint((*TEXTS, "samples", *SIGNALS))
            raise ValueError(f"a signal is missing, such as {listed(SIGNALS[:2])}" if bare else f"{name!r} is missing")
        if not isinstance(known[name], str) or ODD_TEXT.search(known[name]):
            raise ValueError(f"{name!r} must be a text without NUL and lone surrogates")
    if not isinstance(known.get("correct", True), (bool, int)) or known.get("correct", 0) not in (0, 1):
        raise ValueError("'correct' must be true or false")
    own: Any = known.get("id", "")
    if not isinstance(own, (str, int)) or isinstance(own, bool) or (isinstance(own, int) and abs(own) >= 2**63):
        raise ValueError("'id' must be a text or a whole number of at most 63 bits")
    known["logprobs"] = _token_scores(_chat_log_probs(known["logprobs"])) if "logprobs" in known else None
    known["samples"] = _sampled(_list(known["samples"], "samples", str)) if "samples" in known else None
    known["scores"] = {_name(name): _number(value, name) for name, value in _scores_of(known).items()}
    for name in EMBEDDINGS:
        known[name] = [_number(value, name) for value in _list(known[name], name)] if name in known else None
        if known[name] == []:
            raise ValueError(f"{name!r} must not be empty; leave it out where there is none")
    return known


def _scores_of(known: Mapping[str, Any]) -> dict[str, Any]:
    scores = known.get("scores", {})
    if not isinstance(scores, dict):
        raise ValueError("'scores' must be an object of numbers")
    return {name: value for name, value in scores.items() if value is not None}


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
        raise ValueError(f"{name!r:.60} must hold finite numbers; got {value!r:.40}")
    return number


def _columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """The arguments of `Answers` from checked lines."""
    given: dict[str, Any] = {"prompts": [row["prompt"] for row in rows], "answers": [row["answer"] for row in rows]}
    for name, field in (("log_probs", "logprobs"), ("samples", "samples")):
        known = [row[field] for row in rows]
        given[name] = known if any(value is not None for value in known) else None
    given["scores"] = {name: [row["scores"].get(name, np.nan) for row in rows] for name in names}
    for name, field in (("correct", "correct"), ("ids", "id")):
        given[name] = [row[field] for row in rows] if rows and field in rows[0] else None
    if given["ids"] is not None and any(isinstance(value, str) for value in given["ids"]):
        given["ids"] = list(map(str, given["ids"]))
    for field in EMBEDDINGS:
        given[f"{field}s"] = _matrix([row[field] for row in rows])
    return given


def _matrix(rows: Sequence[list[float] | None]) -> Vector | None:
    if (width := next((len(row) for row in rows if row is not None), None)) is None:
        return None
    return np.array([[np.nan] * width if row is None else row for row in rows], np.float64)
