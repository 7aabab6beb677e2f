"""Calibration outputs on their way into a head: checked, with classes in one order, and cut into parts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import concatenate, to_host, to_numpy
from atypicality.density.columns import class_positions, in_columns
from atypicality.metrics.laws import at_most
from atypicality.outputs import ModelOutputs, Parts, check_outputs
from atypicality.outputs.class_names import class_order, refuse_two_readings
from atypicality.outputs.marks import telling_column
from atypicality.outputs.packing import CLEARLY, ENOUGH_ROWS
from atypicality.recalibration.prediction import softmax_rows
from atypicality.validation import PROBED, look_like_probabilities, name_classes, numbered, warn

__all__ = [
    "agreement", "check_calibration", "check_order", "cut", "disagreement", "exchanged", "first_and_rest",
    "in_one_order", "looked_at", "probabilities_instead", "some_rows", "unlike", "warn_of_other_labels",
    "warn_of_other_rows", "warn_of_training_rows",
]  # fmt: skip

RECALIBRATION_SHARE = 0.5
FEWEST = 4  # calibration rows, of which half recalibrate
SOUGHT = 32  # held-out rows that are looked for among the training rows
LOOKED_AT = 2000
"""Rows at most, evenly spaced: of recalibration, whose labels and embeddings are compared with the logits and which say
where abstention begins to test."""
EXCHANGED = 3e-5  # chance, over all pairs of classes, to take some for exchanged that are not: as rare as CLEARLY
ASKED = 300  # rows at most, evenly spaced, of new outputs whose embeddings are compared with the logits

CALIBRATION = ("logits", "embeddings", "labels", "atypicality")  # what calibration reads of every row


def check_calibration(calibration: Any) -> str:
    """The fingerprint of calibration outputs, after a check that they have what calibration needs."""
    given = calibration if isinstance(calibration, Parts) else (calibration,)
    for part in given:
        check_outputs(part, "calibration")._as("the calibration outputs").need("logits", "labels")
    return str(given[0].fingerprint())


def in_one_order(train: Any, calibration: Any, names: NDArray[Any] | None) -> tuple[Any, Any, NDArray[Any] | None]:
    """Training and calibration outputs with classes in one order, and its names: those given, or the first found."""
    parts = calibration if isinstance(calibration, Parts) else (calibration,)
    trained, own = isinstance(train, ModelOutputs), names is not None
    whose = "those of the head" if own else "those of the calibration outputs"
    found = [part.class_names for part in (*parts, *([train] if trained else []))]
    names = next((part for part in (names, *found) if part is not None), None)
    n_classes = parts[0].need("logits").shape[1]
    if names is not None and len(names) != n_classes:
        raise ValueError(f"train must have the {n_classes} classes of the calibration logits; it names {len(names)}.")
    classes = to_numpy(getattr(train, "classes_", None), "classes_")
    if not own and names is not None and classes.dtype.kind in "iu":
        refuse_two_readings(classes, names, "labels that a density was fitted with")
    ordered = [part.with_classes(names, whose=whose)._as("the calibration outputs") for part in parts]
    if trained:
        train = train.with_classes(names, whose=whose)._as("the training outputs")
        _warn_of_untrained_classes(train, ordered)
    return train, Parts(*ordered) if isinstance(calibration, Parts) else ordered[0], names


def _warn_of_untrained_classes(train: ModelOutputs, calibration: Sequence[ModelOutputs]) -> None:
    """Warn of classes that calibration rows have and no training row."""
    if train.labels is None or train.embeddings is None:
        return
    held_out = np.unique(np.concatenate([part.need("labels") for part in calibration]))
    missing = np.setdiff1d(held_out, train.labels)
    if missing.size:
        with calibration[0]._numbered():
            words = name_classes(missing)
        warn(
            f"train holds no row of class {words}, which calibration rows have: inputs of such a class look atypical. "
            "Give training rows of every class that can occur."
        )


def cut(calibration: ModelOutputs | Parts, seed: int) -> tuple[ModelOutputs, ModelOutputs, NDArray[np.bool_] | None]:
    """Recalibration rows, the others, and which of these draw edges where that was given."""
    if isinstance(calibration, Parts):
        first, rest = first_and_rest(calibration)
        return first, rest, np.arange(len(rest)) < len(calibration.edges)
    if calibration.stratified:
        raise ValueError(
            "calibration comes from a stratified split, which breaks the coverage guarantee; split plainly."
        )
    if len(calibration) < FEWEST:
        raise ValueError(
            f"calibration must have at least {FEWEST} rows, and 500 are better; got {len(calibration)}. Give more."
        )
    chosen = calibration._chosen(RECALIBRATION_SHARE, seed)
    return calibration._part(chosen), calibration._part(~chosen), None


def some_rows(outputs: ModelOutputs, scored: Any) -> tuple[ModelOutputs, Any]:
    """Evenly spaced rows of which there are at most `LOOKED_AT`, and their scores where those of all are known."""
    step = -(-len(outputs) // LOOKED_AT)
    some = outputs._part(np.arange(0, len(outputs), step))
    known = None if scored is None else tuple(None if part is None else part[::step, ...] for part in scored)
    return some, known


def first_and_rest(parts: Parts) -> tuple[ModelOutputs, ModelOutputs]:
    """The recalibration rows, and the edge rows with the threshold rows behind them; errors say which part."""
    edges, thresholds = parts.edges, parts.thresholds
    both = {name: (getattr(edges, name), getattr(thresholds, name)) for name in CALIBRATION}
    joined = {
        name: concatenate(*pair) if all(part is not None for part in pair) else None for name, pair in both.items()
    }

    def number(row: int) -> str:
        return f"{row} of edges" if row < len(edges) else f"{row - len(edges)} of thresholds"

    first = parts.recalibration._replaced(_number=lambda row: f"{row} of recalibration")
    shared = [name for name in edges.attributes if name in thresholds.attributes]
    attributes = {name: np.concatenate([part.attributes[name] for part in (edges, thresholds)]) for name in shared}
    return first, edges._replaced(**joined, ids=None, attributes=attributes, _number=number)


def agreement(probs: NDArray[Any], classes: NDArray[np.intp]) -> float:
    """How far the probabilities (n, k) of classes (n,) are above those of shuffled classes, in standard deviations.

    Mean and deviation over all orders of the rows are exact (Hoeffding 1951); infinite where every order is the same.

    >>> agreement(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), np.array([0, 0, 1, 1]))
    1.73205...
    """
    n, k = probs.shape
    shares, mean = np.bincount(classes, minlength=k) / n, probs.mean(axis=0)

    def sums(rows: slice) -> NDArray[np.float64]:
        above = probs[rows] - mean
        above -= (above @ shares)[:, None]
        return np.array([above[np.arange(len(above)), classes[rows]].sum(), (above**2 @ shares).sum()])

    agreed, squares = blocks.reduce_rows(sums, n, block=blocks.block_rows(8 * k), columns=k)
    variance = float(n / (n - 1) * squares)
    return float(agreed / variance**0.5) if variance > 1e-12 * n else np.inf


def check_order(
    outputs: ModelOutputs, scored: Any, sources: NDArray[np.intp] | None, *, aligned: bool = False
) -> float | None:
    """Warn where labels or embeddings of some rows seem to be those of others, unless they are `aligned` for sure.

    `scored` are the scores of all rows. Returns the agreement of logits and embeddings for one row: n rows have
    `sqrt(n)` times that. None without class densities.
    """
    (some, known), densities = some_rows(outputs, scored), None
    if known is not None and known[2] is not None:
        densities = to_host(in_columns(known[2], sources))
    logits, labels = to_host(some.need("logits")), to_host(some.need("labels"))
    if not aligned:
        with outputs._numbered():
            warn_of_other_rows(logits, labels, densities)
    return None if densities is None else _for_one_row(logits, densities)


def _for_one_row(logits: Any, densities: NDArray[np.float64]) -> float:
    probs = softmax_rows(blocks.astype(logits, np.float64))
    return min(agreement(probs, densities.argmax(axis=1)), 1e6) / len(probs) ** 0.5 if len(probs) > 1 else 0.0


def unlike(logits: NDArray[Any], classes: NDArray[np.intp]) -> bool:
    """Whether classes (n,) fit logits (n, k) as shuffled ones would.

    Shuffled ones are below `CLEARLY` deviations, and so found, all but once in 30,000 times. Rows that belong together
    are taken for shuffled as rarely where their agreement is twice that. Where half of the rows agree, and fewer by
    chance, they are not shuffled; nor can it be told where all but `ENOUGH_ROWS` agree by chance, as of one class.

    >>> logits, rows = 9 * np.eye(2)[np.arange(200) % 2], np.arange(200)
    >>> unlike(logits, rows % 2), unlike(logits, rows // 100)
    (False, True)
    """
    (n, k), top = logits.shape, logits.argmax(axis=1)
    by_chance = float(np.bincount(top, minlength=k) @ np.bincount(classes, minlength=k)) / n
    if 2 * np.count_nonzero(top == classes) >= n and not n / 2 <= by_chance <= n - ENOUGH_ROWS:
        return False
    return agreement(softmax_rows(blocks.astype(logits, np.float64)), classes) < CLEARLY


def exchanged(top: NDArray[np.intp], classes: NDArray[np.intp], k: int) -> NDArray[np.intp]:
    """Columns (m,) that stand in each other's places: for each the model's class `top` (n,) is clearly another's.

    Clearly: of the rows whose class in `classes` (n,) is a, the model says b more often than a, by a binomial test of
    one half at a level that is corrected for all pairs; and the same of b, on to where it comes back to a. A class that
    the model never predicts has no way back, and is not exchanged. Of ten classes, 22 rows of each
    are enough where all agree.

    >>> turned, rows = np.array([1, 0, 2]), np.arange(90) % 3
    >>> exchanged(turned[rows], rows, 3), exchanged(np.where(rows == 1, 0, rows), rows, 3)
    (array([0, 1]), array([], dtype=int64))
    """
    same = np.bincount(classes[top == classes], minlength=k)
    pairs, counts = np.unique((classes * k + top)[top != classes], return_counts=True)
    own, other = np.divmod(pairs, k)
    kept = at_most(same[own], same[own] + counts, 0.5) * k * (k - 1) <= EXCHANGED
    own, other = own[kept], other[kept]
    while not (kept := np.isin(own, other) & np.isin(other, own)).all():
        own, other = own[kept], other[kept]
    return np.unique(own)


def _places(found: NDArray[np.intp], by: str) -> str:
    return (
        f"columns {name_classes(found)} of the logits seem to stand in each other's places: by {by}, the largest logit "
        "of most rows of one of these classes is another's."
    )


def warn_of_other_rows(
    logits: Any, labels: NDArray[np.intp], densities: NDArray[np.float64] | None, whose: str = "calibration labels"
) -> None:
    """Warn where labels (n,), or the largest class log-densities (n, k), are `unlike` logits (n, k) or `exchanged`."""
    if len(labels) < ENOUGH_ROWS:
        return
    top = logits.argmax(axis=1)
    if unlike(logits, labels):
        right = np.mean(top == labels)
        warn(
            f"{whose} fit the logits no better than shuffled ones would; the largest logit is the label's in "
            f"{right:.1%} of {len(labels):,} rows. Give labels in the order of the rows and logits in that of the "
            "classes; if they are, this model is no better than chance."
        )
    elif (found := exchanged(top, labels, logits.shape[1])).size:
        warn(f"{_places(found, whose)} Give labels that are numbers of the columns.")
    elif densities is not None and unlike(logits, densities.argmax(axis=1)):
        warn(
            "embeddings fit the logits no better than those of other rows would, while labels do: the class whose "
            "density is largest has no more of the model's probability. Give embeddings in the order of logits and "
            "labels, and of one model and layer for training and calibration; if they are, class densities are of no "
            "use here."
        )
    elif densities is not None and (found := exchanged(top, densities.argmax(axis=1), logits.shape[1])).size:
        warn(f"{_places(found, 'the density')} Give labels of train that are numbers of the columns.")


def warn_of_other_labels(outputs: ModelOutputs) -> None:
    """Warn where the labels of outputs fit their logits as those of other rows or classes would."""
    if len(outputs) >= ENOUGH_ROWS and outputs.logits is not None and outputs.labels is not None:
        logits, labels = map(to_host, some_rows(outputs, None)[0].need("logits", "labels"))
        called = (outputs._called or "the outputs").removeprefix("the outputs of ")
        with outputs._numbered():
            warn_of_other_rows(logits, labels, None, f"labels of {called}")


def looked_at(head: Any, n_rows: int) -> int | None:
    """Every how many of new rows their embeddings are to be compared with the logits; None where nothing can be told.

    That is of fewer than `ENOUGH_ROWS`, without class densities, or where those of the held-out rows fit the logits so
    weakly that these rows, too, would be taken for shuffled.
    """
    if n_rows < ENOUGH_ROWS or not hasattr(head.density_, "class_log_density"):
        return None
    step = -(-n_rows // ASKED)
    expected = np.inf if head.agreement_ is None else head.agreement_ * (n_rows // step) ** 0.5
    return step if expected >= 2 * CLEARLY else None


def disagreement(
    head: Any,
    outputs: ModelOutputs,
    nearest: NDArray[np.intp] | None = None,
    within: NDArray[np.bool_] | None = None,
) -> str | None:
    """What is wrong where the logits of new rows fit their embeddings as those of other classes or rows would.

    None where they fit, or it cannot be told; see `unlike`, `exchanged` and `looked_at`. Rows beyond every held-out
    row are left out, and where most are there is nothing to compare: their nearest class means little. Of the rows
    looked at, `nearest` are the density's columns with the largest log-density, and `within` those that are not beyond.
    """
    step, density = looked_at(head, len(outputs)), head.density_
    if step is None or outputs.embeddings is None:
        return None
    order = class_order(outputs.class_names, head.class_names_, "those of the head")
    logits = to_host(outputs.need("logits")[::step, ...])
    logits = logits if order is None else logits[:, order]
    if nearest is None:
        some = outputs.embeddings[::step, ...]
        nearest = to_host(density.class_log_density(some)).argmax(axis=1)
        within = ~head.quantiles_.beyond(to_host(density.atypicality(some)))
    classes = class_positions(density.classes_, head.n_classes_, head.class_names_)[nearest]
    if within is not None:
        logits, classes = logits[within], classes[within]
    few = len(logits) < max(ENOUGH_ROWS, len(nearest) / 2)
    with numbered(None, head.class_names_):
        return None if few else _misfit(logits, classes)


def _misfit(logits: NDArray[Any], classes: NDArray[np.intp]) -> str | None:
    """What is wrong where the columns of logits (n, k) are not those of the classes (n,) by density; else None."""
    if not unlike(logits, classes):
        found = exchanged(logits.argmax(axis=1), classes, logits.shape[1])
        remedy = " Are they in the head's order? Give class_names in that of the columns, by which these are reordered."
        return _places(found, "the density") + remedy if found.size else None
    same = float(np.mean(logits.argmax(axis=1) == classes))
    return (
        f"logits fit the embeddings no better than those of other classes or rows would: the class whose density is "
        f"largest is the model's in {same:.1%} of {len(logits):,} rows looked at. Are the columns in the head's order "
        "(give class_names, by which they are put in order), and logits and embeddings of the same rows?"
    )


def probabilities_instead(outputs: ModelOutputs) -> str | None:
    """What is wrong where the first logits are all distributions, which logits never are by chance."""
    if outputs.logits is None:
        return None
    some = to_host(outputs.logits[: min(PROBED, len(outputs)), ...])
    return look_like_probabilities(some, (outputs._called or "").removeprefix("the outputs of "))


def warn_of_training_rows(train: Any, held_out: Any) -> None:
    """Warn where most held-out embeddings (n, d) are, number for number, those of training rows (m, d).

    Some rows are looked at, along the column that tells them apart best. Columns of few values, where equal rows are no
    surprise, and training rows in files, which another pass would cost too much, are not looked at.
    """
    if (
        isinstance(train, np.memmap)
        or not isinstance(train, np.ndarray)
        or not isinstance(held_out, np.ndarray)
        or train.shape[1] != held_out.shape[1]
        or not len(held_out)
    ):
        return
    sample = np.asarray(held_out[np.linspace(0, len(held_out) - 1, min(len(held_out), SOUGHT)).astype(int)])
    if (column := telling_column(sample)) is None or len(sample) < SOUGHT // 2:
        return
    alike = train[np.isin(train[:, column], sample[:, column])].astype(sample.dtype, copy=False)
    known = {row.tobytes() for row in alike}
    share = float(np.mean([row.tobytes() in known for row in sample]))
    if share > 0.5:
        warn(
            f"calibration should hold rows that the model never trained on; {share:.0%} of {len(sample)} looked at are "
            "rows of train too. Confidence and coverage will be too high for new rows. Give held-out rows."
        )
