"""Answers of a language model with what is known of each: token log-probabilities, samples, scores, correctness."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.llm.answer_records import (
    FIELDS,
    MOST_SCORES,
    RecordTable,
    check_sampled,
    check_score_name,
    check_texts,
    token_scores,
)
from atypicality.llm.texts import read_objects, warn_of_fields
from atypicality.metrics.rows import check_correct
from atypicality.outputs.paths import replacing
from atypicality.terminal import listed
from atypicality.validation import check_groups, check_length, check_matrix, check_rows, name_rows, warn

__all__ = ["Answers", "check_answers", "only_checked", "warn_of_one_kind"]

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
        Any other numbers: a verbalised score, a judge's margin, the prompt's log-likelihood. NaN or None where there is
        none.
    correct : array of bool, of shape (n,), optional
        None for answers that nobody has checked; see `checked`.
    ids : array of shape (n,), optional
    prompt_embeddings, answer_embeddings : array of shape (n, d), optional
        A row of NaN where there is none.
    attributes : mapping of str to array of shape (n,), optional
        Words to measure by, such as the topic of each prompt: `evaluate` and `report` have a table for each. They are
        no signals.

    Examples
    --------
    >>> answers = Answers(["2 + 2 ="], ["4"], log_probs=[[-0.1]], scores={"verbalised": [0.9]}, correct=[True])
    >>> answers
    Answers(1 row; log_probs, scores verbalised, correct)
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
        attributes: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        self.prompts = check_texts(prompts, "prompts")
        n_rows = self.prompts.size
        self.answers = check_texts(answers, "answers", n_rows)
        self.log_probs = None if log_probs is None else _log_probs(log_probs, n_rows)
        self.samples = None if samples is None else _per_row(samples, "samples", n_rows, check_sampled)
        self.scores = {
            check_score_name(name): _score(values, name, n_rows) for name, values in dict(scores or {}).items()
        }
        if len(self.scores) > MOST_SCORES:
            raise ValueError(f"scores must have at most {MOST_SCORES} names; got {len(self.scores)}.")
        self.correct = None if correct is None else _correct(correct, n_rows)
        self.ids = None if ids is None else check_groups(ids, "ids", n_rows=n_rows)
        self.prompt_embeddings = _embeddings(prompt_embeddings, "prompt_embeddings", n_rows)
        self.answer_embeddings = _embeddings(answer_embeddings, "answer_embeddings", n_rows)
        self.attributes = {
            name: check_groups(values, f"attributes[{name!r}]", n_rows=n_rows)
            for name, values in dict(attributes or {}).items()
        }
        self.names: dict[str, str] = {}  # those of `read` and `from_records`, which a head keeps

    def __len__(self) -> int:
        return int(self.prompts.size)

    def __getitem__(self, rows: slice | NDArray[Any]) -> "Answers":
        """The answers of some rows: a slice, positions or a boolean mask."""
        rows = check_rows(rows)
        some = object.__new__(Answers)
        some.names = self.names
        for name, part in ((name, part) for name, part in vars(self).items() if name != "names"):
            columns = {key: values[rows] for key, values in part.items()} if isinstance(part, dict) else None
            setattr(some, name, columns if columns is not None else None if part is None else part[rows])
        some.correct = None if some.correct is None else _correct(some.correct, len(some))
        return some

    def __repr__(self) -> str:
        parts = [name for name in ("log_probs", "samples") if getattr(self, name) is not None]
        parts += [f"scores {listed(self.scores)}"] if self.scores else []
        others = ("correct", "ids", "prompt_embeddings", "answer_embeddings")
        parts += [name for name in others if getattr(self, name) is not None]
        parts += [f"attributes {listed(self.attributes)}"] if self.attributes else []
        known, n_rows = int(self.checked.sum()), len(self)
        parts = [f"correct of {known}" if name == "correct" and known < n_rows else name for name in parts]
        return f"Answers({n_rows} row{'s' * (n_rows != 1)}; {', '.join(parts) or 'texts alone'})"

    @property
    def checked(self) -> NDArray[np.bool_]:
        """Which answers (n,) somebody has checked: those whose `correct` is known.

        Where these are some, `correct` is an array of True, False and None; of ``answers[answers.checked]`` it is one
        of booleans.

        >>> Answers(["2 + 2 =", "3 + 3 ="], ["4", "7"], correct=[True, None]).checked
        array([ True, False])
        """
        if self.correct is None:
            return np.zeros(len(self), bool)
        return np.array([value is not None for value in self.correct], bool)

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]], *, names: Mapping[str, str] | None = None) -> Self:
        """Answers from mappings as the lines of `read` are, such as those of a request; the opposite of `records`.

        Parameters
        ----------
        records : iterable of mappings
            Each with `prompt` and `answer`, and what else `read` takes.
        names : mapping of str to str, optional
            As in `read`.

        Returns
        -------
        Answers

        Examples
        --------
        >>> Answers.from_records([{"prompt": "2 + 2 =", "answer": "4", "scores": {"judge": 0.9}}])
        Answers(1 row; scores judge)
        """
        if isinstance(records, (str, Mapping)):
            raise TypeError(f"records must be several mappings; got one {type(records).__name__}. Pass [record].")
        table = RecordTable(names)
        for number, record in enumerate(records):
            if not isinstance(record, Mapping):
                raise TypeError(f"records must be mappings; record {number} is a {type(record).__name__}.")
            try:
                table.read(record)
            except (ValueError, TypeError) as error:
                raise ValueError(f"record {number}: {str(error).rstrip('.')}.") from None
        warn_of_fields("a record", table.others, table.fields)
        return cls(**table.columns())._named(table)

    def _named(self, table: RecordTable) -> Self:
        self.names = table.names
        return self

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, names: Mapping[str, str] | None = None) -> Self:
        """Read a JSON Lines file (UTF-8), one object for each answer.

        Parameters
        ----------
        path : path of the .jsonl file
            Every line has `prompt` and `answer` and may have `logprobs` (as chat completions give them, an object with
            a list `content` of objects with a `logprob`; or a list of numbers), `samples` (a list of texts), `scores`
            (an object of numbers), `correct`, `id`, `prompt_embedding` and `answer_embedding` (lists of numbers), and
            `attributes` (an object of words). Null is the same as left out; `id` is in every line or in none. A line
            with log-probabilities, scores or embeddings and without samples needs no texts. A warning names other
            fields, which are not read.
        names : mapping of str to str, optional
            The file's name of a field by ours, where they differ, and of scores and attributes that are fields of their
            own: ``{"prompt": "question", "scores.judge": "judge", "attribute.topic": "topic"}``.

        Examples
        --------
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = Path(folder.name) / "answers.jsonl"
        >>> _ = path.write_text('{"prompt": "2 + 2 =", "answer": "4", "logprobs": {"content": [{"logprob": -0.1}]}}')
        >>> Answers.read(path)
        Answers(1 row; log_probs)
        >>> folder.cleanup()
        """
        return cls._read(path, names, strict=True)

    @classmethod
    def _read(cls, path: str | os.PathLike[str], names: Mapping[str, str] | None, *, strict: bool) -> Self:
        """As `read`; where not `strict`, names need not be in the file, such as those of a head's fitted answers."""
        name, table = repr(Path(path).name), RecordTable(names)
        if not read_objects(path, table.read, table.fields):
            raise ValueError(f"{name} must have at least one line with an answer; it has none.")
        if strict and (nowhere := [theirs for theirs in table.names.values() if theirs not in table.found]):
            raise ValueError(f"names must give fields of the file; {nowhere[0]!r:.60} is in no line of {name}.")
        found = warn_of_one_kind(cls(**table.columns()), name)._named(table)
        if found.ids is not None and len(again := _repeated(found.ids)):
            more = f" and {len(again) - 1:,} more" if len(again) > 1 else ""
            warn(
                f"{name} has the same 'id' in several lines, {listed(again[:1])!r:.60}{more}: no late label can be "
                "joined to these answers, and if lines are repeated, measured intervals are too narrow. Give each "
                "answer an id of its own, once."
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
            found.append({name: _plain(values[row]) for name, values in self.attributes.items()} or None)
            yield {name: _plain(value) for name, value in zip(FIELDS, found, strict=True) if value is not None}


def warn_of_one_kind(answers: Some, source: str) -> Some:
    """The answers, with a warning where those that are checked are many and all correct or all wrong."""
    known = [bool(value) for value in answers.correct[answers.checked]] if answers.correct is not None else []
    if len(known) >= FEW and len(set(known)) == 1:
        warn(
            f"{source} has 'correct': {str(known[0]).lower()} in all {len(known)} rows: nothing can be learnt or "
            "measured from one kind. Add answers of the other, or look at how 'correct' was made."
        )
    return answers


def check_answers(answers: Any) -> None:
    """Refuse anything but answers where these are asked for."""
    if not isinstance(answers, Answers):
        raise TypeError(f"answers must be Answers; got {type(answers).__name__}. Read a file with Answers.read.")


def only_checked(answers: Answers) -> Answers:
    """Those of the answers that are checked, where some are, with a warning of how many; else the same answers."""
    known = answers.checked
    if known.all() or not known.any():
        return answers
    warn(f"'correct' is known of {known.sum():,} of {known.size:,} answers: the others are left out.")
    return answers[known]


def _repeated(ids: NDArray[Any]) -> NDArray[Any]:
    names, counts = np.unique(ids, return_counts=True)
    return names[counts > 1]


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
    found = _per_row(values, "log_probs", n_rows, token_scores)
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


def _correct(values: Any, n_rows: int) -> NDArray[Any] | None:
    """Booleans (n,), with None where it is not known of some; None where it is known of none."""
    array = np.asarray(values)
    if array.dtype.kind != "O" or array.ndim != 1:
        return check_correct(values, n_rows)
    check_length(array, "correct", n_rows)
    known = np.array([value is not None for value in array], bool)
    found = check_correct(array[known].tolist(), int(known.sum())) if known.any() else np.zeros(0, bool)
    if known.all():
        return found
    some = np.full(n_rows, None, object)
    some[known] = found.tolist()
    return some if known.any() else None


def _score(values: ArrayLike, name: str, n_rows: int) -> Vector:
    array = np.asarray(values)
    if array.dtype.kind == "O" and array.ndim == 1:  # None is a number that is not known, as null is in a file
        array = np.asarray([np.nan if value is None else value for value in array.tolist()])
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
