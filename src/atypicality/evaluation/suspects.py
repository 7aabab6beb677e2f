"""Labels that may be wrong, and samples that are nearly training rows: both ranked, for a person to look at.

A label is the less credible the smaller its probability is, given the sample. Under labels that are wrong at random
nothing else about a row matters, so the ranking is by the best probabilities at hand: those of a recalibrated model
and the shares of classes among the nearest rows, ``softmax(a log p + b log q)``, mixed with a share of random labels.
The weights a and b and that share maximise the likelihood of the labels: neighbours count as far as they help.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from atypicality import blocks
from atypicality.evaluation.context import Context
from atypicality.evaluation.schema import Row, records
from atypicality.outputs import ModelOutputs

__all__ = ["duplicate_rows", "label_credibility", "near_duplicates", "suspect_tables"]

N_NEIGHBORS = 10
FITTED_ENTRIES = 200_000  # probabilities from which the three numbers are estimated
SEARCHED = 1000  # rows besides the suspects whose neighbours are looked up
PROJECTED = 16
NEAR = 0.1  # of the usual distance of a sample to its nearest training row: what is nearer is a near-duplicate
SMALLEST = 1e-300

Floats = NDArray[np.float64]


def suspect_tables(context: Context, probs: Any, most: int, seed: int) -> dict[str, list[Row]]:
    """Rows of the tables `suspects` and `duplicates`, at most `most` of each."""
    if not most:
        return {}
    outputs = context.outputs
    labels = outputs.need("labels")
    rows, score, suggested = label_credibility(probs, labels, outputs.embeddings, most=most, random_state=seed)
    wrong = suggested != labels[rows]
    rows, score, suggested = rows[wrong], score[wrong], suggested[wrong]
    suspects = records({"row": rows, "label": labels[rows], "suggested": suggested, "score": score})
    return {"suspects": suspects, "duplicates": duplicate_rows(outputs, context.train, most, seed)}


def label_credibility(
    probs: Any, labels: NDArray[np.intp], embeddings: Any = None, *, most: int = 500, random_state: int = 0
) -> tuple[NDArray[np.intp], Floats, NDArray[np.intp]]:
    """The labels that are least credible: their rows, how credible each is, and the most credible class of the row.

    Parameters
    ----------
    probs : ndarray of shape (n, k)
        Probabilities, recalibrated if they can be, of a model that was not trained on these labels.
    labels : ndarray of int, of shape (n,)
    embeddings : ndarray of shape (n, d), optional
        Where neighbours are looked for.
    most : int, default=500
    random_state : int, default=0

    Returns
    -------
    rows, credibility, suggested : ndarray of shape (m,), m at most `most`
        The least credible first; credibility is the probability of the label.

    Examples
    --------
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8]])
    >>> rows, _, suggested = label_credibility(probs, np.array([0, 1, 1, 1]), most=1)
    >>> rows.tolist(), suggested.tolist()
    ([1], [0])
    """
    n, k = probs.shape
    rng = np.random.default_rng(random_state)
    drawn = rng.permutation(n)[: max(200, min(n, FITTED_ENTRIES // k))]
    own = np.asarray(probs[np.arange(n), labels], np.float64)
    chosen = np.argsort(own, kind="stable")[: min(n, 2 * most if embeddings is not None else most)]
    if embeddings is None or n <= N_NEIGHBORS:
        found = _log(probs[chosen])
        scale = _weights(_log(probs[drawn]), None, labels[drawn])[0]
        credible = softmax(scale * found, axis=1)
    else:
        drawn = drawn[:SEARCHED]
        near = [_neighbor_shares(embeddings, labels, rows, k) for rows in (drawn, chosen)]
        a, b = _weights(_log(probs[drawn]), _log(near[0]), labels[drawn])
        credible = softmax(a * _log(probs[chosen]) + b * _log(near[1]), axis=1)
    score = credible[np.arange(len(chosen)), labels[chosen]]
    order = np.argsort(score, kind="stable")[:most]
    return chosen[order], score[order], credible[order].argmax(axis=1)


def _log(probs: Any) -> Floats:
    return np.log(np.maximum(np.asarray(probs, np.float64), SMALLEST))


def _weights(model: Floats, near: Floats | None, labels: NDArray[np.intp]) -> tuple[float, float]:
    """The weights of the log-probabilities of the model and of the neighbours that make the labels likeliest."""
    from scipy.optimize import minimize  # loaded where it is needed: a head that predicts starts sooner

    rows, k = np.arange(len(labels)), model.shape[1]

    def loss(v: Floats) -> float:
        scores = np.exp(v[0]) * model + (0.0 if near is None else np.exp(v[2]) * near)
        noise = expit(v[1])
        return float(-np.log((1 - noise) * softmax(scores, axis=1)[rows, labels] + noise / k).mean())

    start = [0.0, -4.0] + ([] if near is None else [-2.0])
    best = minimize(loss, start, method="Nelder-Mead", options={"maxfev": 150, "xatol": 1e-2, "fatol": 1e-6}).x
    return float(np.exp(best[0])), 0.0 if near is None else float(np.exp(best[2]))


def _neighbor_shares(embeddings: Any, labels: NDArray[np.intp], rows: NDArray[np.intp], k: int) -> Floats:
    """Shares of the classes (m, k) among the nearest other rows by direction, with half a row added to each class."""
    unit = np.asarray(embeddings, np.float32)
    unit = unit / np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-30)
    shares = np.empty((rows.size, k))

    def fill(part: slice) -> None:
        alike = unit[rows[part]] @ unit.T
        alike[np.arange(alike.shape[0]), rows[part]] = -np.inf
        nearest = np.argpartition(-alike, N_NEIGHBORS, axis=1)[:, :N_NEIGHBORS]
        cells = np.arange(alike.shape[0])[:, None] * k + labels[nearest]
        counts = np.bincount(cells.ravel(), minlength=alike.shape[0] * k).reshape(-1, k)
        shares[part] = (counts + 0.5) / (N_NEIGHBORS + 0.5 * k)

    blocks.for_rows(
        fill, rows.size, block=blocks.block_rows(8 * len(labels), budget=blocks.GEMM_BYTES), work=blocks.PRODUCTS
    )
    return shares


def near_duplicates(
    embeddings: Any, train: Any, *, most: int = 500, random_state: int = 0
) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """Rows that lie much nearer to a training row than rows usually do: both numbers, and the ratio of the distances.

    Candidates are the nearest in a random projection, which moves equal rows to one place; distances are then exact.

    Parameters
    ----------
    embeddings : ndarray of shape (n, d)
    train : ndarray of shape (m, d)
    most : int, default=500
    random_state : int, default=0

    Returns
    -------
    rows, train_rows, ratio : ndarray of shape (l,), l at most `most`
        The nearest first; a ratio of 0 is an equal row, one of 1 the usual distance.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> train = rng.normal(size=(200, 5))
    >>> rows, train_rows, ratio = near_duplicates(np.r_[rng.normal(size=(50, 5)), train[7:8]], train)
    >>> rows.tolist(), train_rows.tolist(), ratio.tolist()
    ([50], [7], [0.0])
    """
    queries, known = np.asarray(embeddings, np.float32), np.asarray(train, np.float32)
    width = queries.shape[1]
    rng = np.random.default_rng(random_state)
    turn = np.eye(width, dtype=np.float32)
    if width > PROJECTED:
        turn = rng.normal(size=(width, PROJECTED)).astype(np.float32) / PROJECTED**0.5
    centre = known.mean(axis=0)
    low, seen = (queries - centre) @ turn, (known - centre) @ turn
    lengths = 0.5 * np.vecdot(seen, seen)
    nearest = np.empty(len(queries), np.intp)

    def fill(part: slice) -> None:
        nearest[part] = (low[part] @ seen.T - lengths).argmax(axis=1)

    blocks.for_rows(fill, len(queries), block=blocks.block_rows(8 * len(known), budget=blocks.GEMM_BYTES))
    distance = np.linalg.norm(queries.astype(np.float64) - known[nearest], axis=1)
    usual = float(np.median(distance))
    ratio = distance / usual if usual > 0 else np.zeros(len(distance))
    order = np.argsort(ratio, kind="stable")[: min(most, int((ratio <= NEAR).sum()))]
    return order, nearest[order], ratio[order]


def duplicate_rows(outputs: ModelOutputs, train: Any, most: int, seed: int = 0) -> list[Row]:
    """Rows of the table `duplicates`, where both the outputs and `train` have embeddings and labels."""
    rows = outputs.embeddings
    if not isinstance(train, ModelOutputs) or train.embeddings is None or rows is None:
        return []
    if rows.shape[1] != train.embeddings.shape[1] or train.labels is None:
        return []
    found, partners, ratio = near_duplicates(rows, train.embeddings, most=most, random_state=seed)
    same = outputs.need("labels")[found] == np.asarray(train.labels)[partners]
    return records({"row": found, "train_row": partners, "distance": ratio, "same_label": same})
