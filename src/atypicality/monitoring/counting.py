"""Rows to counts: what a head says of a batch, as cells of streams, sums of probabilities and words."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.arrays import to_host
from atypicality.head.reference import HeldOutCounts
from atypicality.head.reliability import Reliability
from atypicality.monitoring.accuracy import Profile
from atypicality.monitoring.state import Counted
from atypicality.monitoring.streams import CATEGORICAL, MISSING, ShareTests
from atypicality.outputs import ModelOutputs, check_outputs
from atypicality.outputs.tables import repeated
from atypicality.terminal import listed
from atypicality.validation import caught_warnings

__all__ = [
    "N_BINS", "cells_of", "count_rows", "judged", "n_bins", "profile_of", "profile_size",
    "reference_of", "rows_of", "words_of",
]  # fmt: skip

N_BINS = 5
LARGEST_PROFILE = 5000
"""Sums of probabilities that a window may hold; with more than 70 classes it holds the mean confidence alone."""
UNIT = 2**30  # probabilities are added as whole multiples of 2^-30, so that sums do not depend on their order

Counts = NDArray[np.int64]


def n_bins(n_classes: int) -> int:
    """Bins of confidence within a predicted class in which probabilities are summed."""
    return N_BINS if N_BINS * n_classes**2 <= LARGEST_PROFILE else 1 if n_classes**2 <= LARGEST_PROFILE else 0


def profile_size(n_classes: int) -> int:
    """Numbers in a profile: rows, their confidence, and rows and probabilities of each cell."""
    return 2 + n_bins(n_classes) * n_classes * (n_classes + 1)


def words_of(answer: Reliability, outputs: ModelOutputs | None) -> dict[str, NDArray[Any]]:
    """Columns (n,) that hold words: fields of the answer, and attributes."""
    fields = {name: column for name in CATEGORICAL if (column := getattr(answer, name, None)) is not None}
    attributes = {} if outputs is None else {f"attribute {name}": found for name, found in outputs.attributes.items()}
    return {name: np.asarray(column).astype(str) for name, column in (fields | attributes).items()}


def reference_of(answer: Reliability, outputs: ModelOutputs) -> HeldOutCounts:
    """Counts of labelled rows that the head was not fitted on, in the head's order of classes."""
    labels, predicted = to_host(outputs.need("labels")), to_host(answer.label)
    covered = answer.prediction_set[np.arange(len(labels)), labels]
    return HeldOutCounts.from_rows(
        answer.confidence,
        predicted,
        labels,
        n_classes=answer.proba.shape[1],
        atypicality=answer.atypicality,
        missed=int(np.count_nonzero(~covered)),
        words=words_of(answer, outputs),
        embeddings=None if outputs.embeddings is None else to_host(outputs.embeddings),
    )


def count_rows(tests: ShareTests, answer: Reliability, outputs: ModelOutputs, key: int) -> Counted:
    """Counts of a batch of one window, without labels."""
    words = words_of(answer, None)
    counted = {name: np.unique(column, return_counts=True) for name, column in words.items()}
    plain = {name: dict(zip(map(str, found), map(int, n), strict=True)) for name, (found, n) in counted.items()}
    return Counted(key, cells_of(tests, answer, outputs), _profile(answer), plain)


def cells_of(tests: ShareTests, answer: Reliability, outputs: ModelOutputs) -> Counts:
    """Counts of the streams' cells; of streams whose column is not there, none."""
    measured = {"confidence": answer.confidence, "atypicality": answer.atypicality, "class": answer.label}
    words = words_of(answer, outputs)
    lacking = {name.removeprefix(MISSING): column for name, column in words.items() if name.startswith(MISSING)}
    others = {"input": outputs.embeddings, "missing": lacking, "risk": answer.accepted}
    columns: dict[str, Any] = words | measured | others
    found = np.zeros(tests.n_cells, np.int64)
    for stream, place in zip(tests.streams, tests.places, strict=True):
        if (column := columns.get(stream.name)) is not None:
            found[place] = stream.count(column)
    return found


def _profile(answer: Reliability) -> Counts:
    """Sums of rows, confidence and probabilities, by predicted class and bin of confidence."""
    n, k = answer.proba.shape
    bins, label = n_bins(k), to_host(answer.label)
    fixed = np.rint(np.asarray(answer.proba, np.float64) * UNIT).astype(np.int64)
    whole = np.array([n, fixed[np.arange(n), label].sum()], np.int64)
    if not bins:
        return whole
    share = (np.asarray(answer.confidence, np.float64) - 1 / k) / max(1 - 1 / k, 1e-9)  # 0 to 1 between k classes
    cell = label * bins + np.clip(share * bins, 0, bins - 1).astype(np.intp)
    sums = np.zeros((k * bins, k + 1), np.int64)
    np.add.at(sums, cell, np.column_stack([np.ones(n, np.int64), fixed]))
    return np.concatenate([whole, sums.ravel()])


def profile_of(sums: Counts, n_classes: int, tail: float, changed: float) -> Profile:
    """The profile that summed counts describe: one row for each cell, or one for all where there are many classes."""
    bins, n = n_bins(n_classes), int(sums[0])
    if not bins:
        confidence = sums[1] / UNIT / n
        probs = np.full((1, n_classes), (1 - confidence) / max(n_classes - 1, 1))
        probs[0, 0] = confidence
        return Profile(probs, np.zeros(1, np.intp), np.ones(1), n, tail, changed)
    cells = sums[2:].reshape(n_classes * bins, n_classes + 1)
    rows = np.flatnonzero(cells[:, 0])
    probs = cells[rows, 1:] / cells[rows, 1:].sum(axis=1, keepdims=True)
    return Profile(probs, rows // bins, cells[rows, 0] / n, n, tail, changed)


def judged(
    head: Any, outputs: ModelOutputs, first_row: int = 0, max_risk: float | None = None
) -> tuple[Reliability, ModelOutputs]:
    """What the head says of rows, and the rows, both in its order of classes; randomised sets draw by row number."""
    ordered = check_outputs(outputs).with_classes(head.class_names_, whose="those of the head")
    if not len(ordered):
        raise ValueError("outputs must have at least one row.")
    with caught_warnings():  # of drift at one look: alarms are what a monitor is for
        return head.predict(ordered, first_row=first_row, max_risk=max_risk).on_host(), ordered


def rows_of(answer: Reliability, ids: ArrayLike | None, n_labels: int) -> NDArray[np.intp]:
    """Rows of the answer that labels are for."""
    if ids is None:
        if n_labels != len(answer):
            raise ValueError(f"labels must be one for each row, or have ids; got {n_labels} for {len(answer)} rows.")
        return np.arange(n_labels)
    wanted = np.asarray(ids).astype(str)
    if answer.ids is None:
        raise ValueError("ids cannot be looked up: outputs have no ids. Give ModelOutputs(..., ids=).")
    if wanted.ndim != 1 or wanted.size != n_labels:
        raise ValueError(f"ids must be one for each label; got shape {wanted.shape} for {n_labels} labels.")
    own = answer.ids.astype(str).tolist()
    known = {name: row for row, name in enumerate(own)}
    if unknown := [name for name in wanted.tolist() if name not in known]:
        raise ValueError(
            f"ids must be among those of outputs; {listed(unknown[:5])} {'is' if len(unknown) == 1 else 'are'} not."
        )
    for names, what in ((wanted.tolist(), "labels"), (own, "rows of outputs")):
        if twice := repeated(names, among=set(wanted.tolist())):
            name, first, second = twice
            raise ValueError(
                f"ids must be distinct, or a label would count for several rows; {listed([name])} is that of {what} "
                f"{first} and {second}."
            )
    return np.array([known[name] for name in wanted.tolist()], np.intp)
