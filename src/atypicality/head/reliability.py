"""What a head says about each sample, as plain arrays, a table, a file, or a line a person can read."""

import csv
import html
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import namespace, take_rows, to_host
from atypicality.formula import ADVICE, advice_numbers
from atypicality.groups import QUADRANTS
from atypicality.head.abstention import AbstentionRule, never_accepted
from atypicality.head.advice import choices
from atypicality.head.drift import Drift
from atypicality.head.reasons import reason
from atypicality.outputs.files import write_npz
from atypicality.outputs.parquet import write_pieces
from atypicality.outputs.paths import check_target, replacing
from atypicality.recalibration.class_mix import ClassMix
from atypicality.terminal import aligned, few, html_table, number, printable
from atypicality.validation import check_rows, require

__all__ = ["Acceptance", "Reliability", "check_place"]

SHOWN = 5
LEFT_OUT = ("quadrant", "set_size")  # columns that the text preview has no room for; advice and sets say the same
WIDTH = 88
MAKES_WAY = ("atypicality", "atypicality_quantile")
"""Columns that make way, in this order, where `choices` would make a line wider than `WIDTH`."""
TEXT_BYTES = 32  # of the name of a class in a set: eight characters
ENDINGS = (".csv", ".jsonl", ".parquet", ".npz")
PER_SAMPLE = (
    *("label", "confidence", "proba", "prediction_set"),
    *("atypicality", "atypicality_quantile", "quadrant", "accepted", "advice", "ids"),
)
CARRIED = (*PER_SAMPLE, "recalibration_atypicality")  # in no file: a reason needs it


@dataclass(frozen=True)
class Acceptance:
    """What decided which predictions are accepted, as text: the limit of a score, and the held-out rows behind it.

    >>> rule = AbstentionRule.from_rows(np.linspace(0.5, 1, 100), np.ones(100))
    >>> print(Acceptance(rule, 0.05))
    accepted from confidence 0 on: 0 of 100 held-out rows there are wrong, so at most 5% of new ones, ...
    """

    rule: AbstentionRule
    max_risk: float
    score: str = "confidence"

    def __str__(self) -> str:
        return self.rule.evidence(self.max_risk, self.score)


@dataclass(frozen=True, repr=False)
class Reliability:
    """Per-sample answers of a `ReliabilityHead` for n samples and k classes.

    Outputs on an accelerator have answers there: arrays are then of their library, on their device, all but `quadrant`,
    `advice` and `ids`, which are text. Tables and files come from the host.

    Attributes
    ----------
    label : ndarray of int, of shape (n,)
        Predicted column; `label_names()` has its name, which text labels are compared with.
    confidence : ndarray of shape (n,)
        Recalibrated probability of `label`.
    proba : ndarray of shape (n, k)
    atypicality, atypicality_quantile : ndarray of shape (n,), or None without a density
        Larger is rarer; the quantile is the share of held-out calibration rows at or below it.
    quadrant : ndarray of str, of shape (n,), or None without a density
        "reliable", "extrapolation", "ambiguous" or "untrustworthy".
    prediction_set : ndarray of bool, of shape (n, k)
    accepted : ndarray of bool, of shape (n,), or None
        With `max_risk`: whether the prediction is kept; never for a row more atypical than every held-out row.
    advice : ndarray of str, of shape (n,), or None
        "trust", "trust, but rare", "choose among 2" (or more; see `choices`) or "ask a person"; see
        `atypicality.formula.advice`. None in an answer that no head made.
    drift : Drift or None
        How far the samples' atypicality has moved from that of the held-out rows.
    class_names, ids : ndarray of str, or None
    ids_name : str or None
        What the ids are called: the name of a DataFrame's index.
    recalibration_atypicality : ndarray of shape (n,), or None
        The atypicality that recalibration uses, where it is another than `atypicality`; a row beyond all held-out rows
        by either is for a person.
    class_mix : ClassMix or None
        With ``class_prior="estimate"``: the class shares that were estimated from these rows, and their interval.
    acceptance : Acceptance or None
        With `max_risk`: as text, from which confidence on predictions are accepted, and the held-out rows behind it.
    doubts : tuple of str
        What looks wrong with the outputs, each of which `predict` warned of: logits that look like probabilities, or
        that fit the embeddings as those of other classes or rows would; rows that are nearly all more typical than the
        held-out ones.

    Examples
    --------
    >>> from atypicality.datasets import load_fashion_mnist
    >>> from atypicality.head import ReliabilityHead
    >>> train, calibration, test = load_fashion_mnist()
    >>> answer = ReliabilityHead().fit(train=train, calibration=calibration).predict(test)
    >>> answer.proba.shape, answer.prediction_set.shape, len(answer)
    ((5000, 10), (5000, 10), 5000)
    >>> list(answer.columns())[:3]
    ['label', 'confidence', 'atypicality']
    """

    label: NDArray[np.intp]
    confidence: NDArray[np.float64]
    proba: Any
    prediction_set: Any
    atypicality: NDArray[np.float64] | None = None
    atypicality_quantile: NDArray[np.float64] | None = None
    quadrant: NDArray[Any] | None = None
    accepted: NDArray[np.bool_] | None = None
    drift: Drift | None = None
    class_names: NDArray[Any] | None = None
    ids: NDArray[Any] | None = None
    advice: NDArray[Any] | None = None
    class_mix: ClassMix | None = None
    ids_name: str | None = None
    recalibration_atypicality: NDArray[np.float64] | None = None
    doubts: tuple[str, ...] = ()
    acceptance: Acceptance | None = None

    def __len__(self) -> int:
        return int(self.label.shape[0])

    def on_host(self) -> "Reliability":
        """The same with NumPy arrays; this object itself where they are NumPy's already.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> answer.on_host() is answer
        True
        """
        if isinstance(self.proba, np.ndarray):
            return self
        parts: dict[str, Any] = {name: to_host(part) for name in CARRIED if (part := getattr(self, name)) is not None}
        return replace(self, **parts)

    def names(self) -> NDArray[Any]:
        """Name of each class (k,): `class_names`, or the column indices as text.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> answer.names().tolist()
        ['0', '1']
        """
        return np.arange(self.proba.shape[1]).astype(str) if self.class_names is None else self.class_names

    def label_names(self) -> NDArray[Any]:
        """Name of the predicted class of each sample (n,): `names()[label]`, to compare with labels that are text.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> replace(answer, class_names=np.array(["stay", "leave"])).label_names().tolist()
        ['leave']
        """
        return np.asarray(self.names()[to_host(self.label)])

    def columns(self) -> dict[str, NDArray[Any]]:
        """One array (n,) per column of the table; sets as text (dtype object), names separated by " | ".

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> answer.columns()["prediction_set"].tolist()
        ['1']
        """
        here = self.on_host()
        parts = {
            "id": here.ids,
            "label": here.label_names(),
            "confidence": here.confidence,
            "atypicality": here.atypicality,
            "atypicality_quantile": here.atypicality_quantile,
            "quadrant": here.quadrant,
            "prediction_set": here._texts(here.prediction_set),
            "set_size": here.prediction_set.sum(axis=1),
            "accepted": here.accepted,
            "advice": here.advice,
            "choices": None if here.advice is None else here._texts(here.choices()),
        }
        return {name: values for name, values in parts.items() if values is not None}

    def choices(self) -> NDArray[np.bool_]:
        """Classes (n, k) that a person is to choose among: the set, and the runner-up where it holds one class.

        Other rows, whose advice is none of "choose among k", have none.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> replace(answer, advice=np.array(["choose among 2"])).choices().tolist()
        [[True, True]]
        """
        here = self.on_host()
        number = np.full(len(self), -1) if here.advice is None else advice_numbers(here.advice)
        return choices(number, here.proba, here.prediction_set)

    def reasons(self) -> list[str]:
        """Why each of n samples has its advice: the first row of `atypicality.formula.advice`'s table that applies.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[True, True]]))
        >>> replace(answer, advice=np.array(["ask a person"])).reasons()
        ['its set holds 2 classes, too many to choose among']
        """
        here, k = self.on_host(), self.proba.shape[1]
        if here.advice is None:
            return [""] * len(self)
        known = (here.quadrant, here.atypicality_quantile, here.accepted)
        more = [[None] * len(self) if column is None else column.tolist() for column in known]
        sizes = here.prediction_set.sum(axis=1).tolist()
        rows = zip(here.advice.tolist(), here.confidence.tolist(), sizes, *more, here._beyond(), strict=True)
        return [reason(word, top, size, k, *rest) for word, top, size, *rest in rows]

    def _beyond(self) -> list[tuple[bool, bool]]:
        """Whether each sample is beyond all held-out rows by `atypicality`, and by that of recalibration."""
        drifts = self.drift, None if self.drift is None else self.drift.recalibration
        columns = zip(drifts, (self.atypicality, self.recalibration_atypicality), strict=True)
        found = [
            np.zeros(len(self), bool) if drift is None or values is None else drift.scale.beyond(values)
            for drift, values in columns
        ]
        return list(zip(*(part.tolist() for part in found), strict=True))

    def _texts(self, sets: NDArray[np.bool_]) -> NDArray[np.object_]:
        """Each set as a text of its own length: an array of fixed width would make all as wide as the largest set."""
        names = self.names().tolist()
        texts = np.full(len(self), "", object)
        for place in np.flatnonzero(sets.any(axis=1)):  # no copy of the sets: they may be most of the memory
            texts[place] = " | ".join(names[index] for index in np.flatnonzero(sets[place]))
        return texts

    def rows(self) -> Iterator[dict[str, Any]]:
        """The table row by row, as plain Python values.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> list(answer.rows())
        [{'label': '1', 'confidence': 0.8, 'prediction_set': '1', 'set_size': 1}]
        """
        for part in self._parts():
            columns = {name: values.tolist() for name, values in part.columns().items()}
            yield from (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))

    def records(self) -> Iterator[dict[str, Any]]:
        """The table row by row with the set as a list of names, and the probabilities by column.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> next(answer.records())["proba"]
        [0.2, 0.8]
        """
        names, here = self.names(), self.on_host()
        for row, members, listed, proba in zip(
            self.rows(), here.prediction_set, here.choices(), here.proba, strict=True
        ):
            lists = {name: part for name, part in (("prediction_set", members), ("choices", listed)) if name in row}
            yield row | {name: names[part].tolist() for name, part in lists.items()} | {"proba": proba.tolist()}

    def __getitem__(self, rows: int | slice | NDArray[Any]) -> "Reliability":
        """The answers for some samples: a slice, positions, a boolean mask, or one position for an answer of one row.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> len(answer[0]), answer[-1].confidence
        (1, array([0.8]))
        """
        if isinstance(rows, (int, np.integer)) and not isinstance(rows, bool):
            place = int(rows) + (len(self) if rows < 0 else 0)
            if not 0 <= place < len(self):  # an IndexError also ends a loop over the answers
                raise IndexError(f"rows must be a position in {len(self)} samples, from 0 on; got {rows}.")
            rows = slice(place, place + 1)
        return self._take(check_rows(rows))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a Reliability is a table, not one array; take a part of it, such as .proba, or .to_frame().")

    def _take(self, rows: slice | NDArray[Any]) -> "Reliability":
        known = {name: part for name in CARRIED if (part := getattr(self, name)) is not None}
        parts: dict[str, Any] = {name: take_rows(part, rows) for name, part in known.items()}
        return replace(self, **parts)

    def _parts(self) -> Iterator["Reliability"]:
        """Consecutive parts whose sets are short as text, too: the whole table may be larger than memory."""
        height = blocks.block_rows(TEXT_BYTES * self.proba.shape[1], budget=blocks.GEMM_BYTES)
        return (self._take(rows).on_host() for rows in blocks.watched(len(self), height))

    def to_frame(self) -> Any:
        """The table as a pandas DataFrame, whose index are the ids where there are any, called `ids_name` or "id".

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> answer.to_frame().shape
        (1, 4)
        """
        pandas = require("pandas", feature="to_frame")
        columns = self.columns()
        ids = columns.pop("id", None)
        return pandas.DataFrame(columns, index=ids).rename_axis(None if ids is None else self.ids_name or "id")

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the table to `path` as CSV; text that a spreadsheet would run as a formula gets a leading quote.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "answers.csv"
        ...     answer.to_csv(path)
        ...     path.read_text().split()
        ['label,confidence,prediction_set,set_size', '1,0.8,1,1']
        """
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(self._take(slice(0, 0)).columns())
            writer.writerows([_defuse(value) for value in row.values()] for row in self.rows())

    def to_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Write one JSON object per sample to `path`; the set is a list of names, `proba` one of numbers by column.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "answers.jsonl"
        ...     answer.to_jsonl(path)
        ...     json.loads(path.read_text())["prediction_set"]
        ['1']
        """
        with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in self.records())

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the table and the probabilities to `path` as Parquet, which needs the extra `parquet`.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "answers.parquet"
        ...     answer.to_parquet(path)
        ...     path.read_bytes()[:4]
        b'PAR1'
        """
        parts = self._parts() if len(self) else iter([self.on_host()])
        with replacing(path) as temporary:
            write_pieces(temporary, (part.columns() | {"proba": part.proba} for part in parts))

    def to_npz(self, path: str | os.PathLike[str]) -> None:
        """Write every array to `path`, sets as bool (n, k); `label_name` has the names of labels where there are any.

        Labels, and columns of sets and probabilities, are in the order of `class_names`: that of the outputs.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "answers.npz"
        ...     answer.to_npz(path)
        ...     np.load(path)["prediction_set"]
        array([[False,  True]])
        """
        here = self.on_host()
        arrays = {name: getattr(here, name) for name in (*PER_SAMPLE, "class_names")}
        if here.class_names is not None:
            arrays["label_name"] = blocks.take_rows(here.class_names, here.label)
        with replacing(path) as temporary:
            write_npz(temporary, {name: part for name, part in arrays.items() if part is not None})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to `path` in the format of its ending: .csv, .jsonl, .parquet or .npz.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "answers.csv"
        ...     answer.save(path)
        ...     path.stat().st_size > 0
        True
        """
        getattr(self, f"to_{_ending(path)[1:]}")(path)

    def quadrant_shares(self) -> dict[str, float]:
        """Share of the samples in each quadrant; empty without a density.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> replace(answer, quadrant=np.array(["ambiguous"])).quadrant_shares()["ambiguous"]
        1.0
        """
        if self.quadrant is None or not len(self):
            return {}
        return {name: float(np.mean(self.quadrant == name)) for name in QUADRANTS}

    def advice_shares(self) -> dict[str, float]:
        """Share of the samples with each advice, all sizes of a choice together; empty where there is none.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> replace(answer, advice=np.array(["choose among 3"])).advice_shares()["choose among k"]
        1.0
        """
        if self.advice is None or not len(self):
            return {}
        counts = np.bincount(advice_numbers(self.advice), minlength=len(ADVICE))
        return dict(zip(ADVICE, (counts / len(self)).tolist(), strict=True))

    def summary(self) -> dict[str, Any]:
        """Counts and means over all samples: confidence, set size, shares of advice, quadrants and kept rows.

        The mean confidence is no estimate of accuracy under drift, which `atypicality.estimate_accuracy` gives.

        >>> answer = Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))
        >>> answer.summary()
        {'samples': 1, 'mean_confidence': 0.8, 'mean_set_size': 1.0}
        """
        if not len(self):
            return {"samples": 0}
        xp = namespace(self.proba)
        found: dict[str, Any] = {
            "samples": len(self),
            "mean_confidence": float(xp.mean(self.confidence)),
            "mean_set_size": float(xp.count_nonzero(self.prediction_set)) / len(self),
        }
        if self.accepted is not None:
            kept = to_host(self.accepted)
            found["accepted"] = float(kept.mean())
            if kept.any():
                found["mean_confidence_of_accepted"] = float(to_host(self.confidence)[kept].mean())
        if self.quadrant is not None:
            found["quadrants"] = self.quadrant_shares()
        if self.advice is not None:
            found["advice"] = self.advice_shares()
        return found

    def _headline(self) -> str:
        found = self.summary()
        if not len(self):
            return "0 samples"
        if len(self) == 1:
            return self._one()
        parts = [f"{len(self)} samples", f"mean confidence {found['mean_confidence']:.3f}"]
        parts += [f"mean set size {found['mean_set_size']:.2f}"]
        if self.accepted is not None:
            parts.append(f"{found['accepted']:.1%} accepted")
        shares = self.advice_shares() or self.quadrant_shares()
        return ", ".join(parts) + "".join(f"; {name} {share:.1%}" for name, share in shares.items())

    def _one(self) -> str:
        """The headline of a single sample: its advice and the reason in the place of means and shares."""
        here = self.on_host()
        size = int(here.prediction_set.sum())
        parts = [f"1 sample, confidence {number(here.confidence[0])}", f"{size} class{'es' * (size != 1)} in its set"]
        if here.accepted is not None:
            parts.append("accepted" if here.accepted[0] else "not accepted")
        why = "" if here.advice is None else f"; {here.advice[0]}: {self.reasons()[0]}"
        return ", ".join(parts) + why

    def _chooses_beyond_sets(self) -> bool:
        """Whether a set of one class is put to a choice, with the runner-up."""
        here = self.on_host()
        chosen = False if here.advice is None else np.char.startswith(here.advice, "choose")
        return bool(np.any(chosen & (here.prediction_set.sum(axis=1) == 1)))

    def _acceptance(self) -> list[str]:
        """What stands behind `accepted`, and predicted classes of which nothing is; empty of a single sample."""
        if self.accepted is None or len(self) == 1:
            return []
        label, accepted = to_host(self.label), to_host(self.accepted)
        counts, names = np.bincount(label, minlength=self.proba.shape[1]), self.names()
        never = never_accepted(label, accepted, counts.size)
        listed = few([f"{printable(names[one])} ({counts[one]:,} rows)" for one in never], SHOWN)
        found = [str(self.acceptance or ""), f"never accepted: {listed}" if listed else ""]
        return [text for text in found if text]

    def _preview(self) -> tuple[list[str], list[list[str]]]:
        head = self._take(slice(0, SHOWN))
        rows, columns = list(head.rows()), list(head.columns())
        if all(row.get("choices", "") in ("", row.get("prediction_set")) for row in rows):
            columns = [name for name in columns if name != "choices"]  # the set, which is there
        return list(map(printable, columns)), [[_short(row[name]) for name in columns] for row in rows]

    def __repr__(self) -> str:
        header, rows = self._preview()
        left_out: tuple[str, ...] = LEFT_OUT
        lines = _text(header, rows, left_out)
        for name in MAKES_WAY:
            if "choices" in header and max(map(len, lines)) > WIDTH:
                left_out = (*left_out, name)
                lines = _text(header, rows, left_out)
        rest = [f"{len(self) - SHOWN} more"] if len(self) > SHOWN else []
        gone = [name for name in header if name in left_out]
        gone += ["choices"] if "choices" not in header and self._chooses_beyond_sets() else []
        rest += [f"not shown: {', '.join(gone)}"] if gone else []
        title = f"Reliability: {self._headline()}".replace("; ", "\n", 1)
        return "\n".join([title, *lines, *(["... " + "; ".join(rest)] if rest else []), *self._acceptance()])

    def _repr_html_(self) -> str:
        more = f"<p>... {len(self) - SHOWN} more</p>" if len(self) > SHOWN else ""
        last = "".join(f"<p>{html.escape(text)}</p>" for text in self._acceptance())
        return html_table(f"Reliability: {self._headline()}", *self._preview()) + more + last


def check_place(path: str | os.PathLike[str]) -> None:
    """Refuse, before any work, a path that `Reliability.save` could not write to."""
    if _ending(path) == ".parquet":
        require("pyarrow.parquet", extra="parquet", feature="writing Parquet files")
    check_target(path)


def _ending(path: str | os.PathLike[str]) -> str:
    if (ending := Path(path).suffix.lower()) not in ENDINGS:
        raise ValueError(f"{os.fspath(path)!r} must end in one of {', '.join(ENDINGS)}.")
    return ending


def _defuse(value: Any) -> Any:
    """Text that opens with a formula's first character, behind a quote: a spreadsheet then shows it as it is."""
    return "'" + value if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _text(header: list[str], rows: list[list[str]], left_out: Sequence[str]) -> list[str]:
    """The table as aligned lines, without some columns."""
    kept = [column for column, name in enumerate(header) if name not in left_out]
    return aligned([[row[column] for column in kept] for row in (header, *rows)])


def _short(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    text = printable(value)
    return text if len(text) <= 40 else text[:37] + "..."
