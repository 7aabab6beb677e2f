"""What a recalibrated logit is made of: terms, each a matrix from `formula` and the features that multiply it.

A new term is a class in `formula.recalibration` that gives its matrix from a block of rows, and an entry in `fields_of`
here. The solver, the choice of strengths, prediction, bundles and graphs go over the list.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import BLOCK_BYTES, namespace, to_device, to_host
from atypicality.formula import LogDensity, Neighbours, Rank, Rows, SimilarLogits, SimilarProbabilities, Top, moved
from atypicality.formula.rows import below_top, mean_of_shown, row_maxima
from atypicality.outputs.limits import COMPARED_UP_TO
from atypicality.recalibration.device_rows import some_rows
from atypicality.recalibration.prediction import any_masked
from atypicality.recalibration.problem import Mixing, Problem, Term
from atypicality.stored import Record, kinds, need
from atypicality.validation import check_vector

__all__ = ["MIDDLE", "TERMS", "ClassSimilarity", "choose_mixing", "fields_of", "is_linear", "log_prior", "terms_of"]

Vector = NDArray[np.float64]

TERMS = ("class_prior", "rank", "top", "similar_logits", "similar_probabilities")
"""Terms that need nothing of a row but its logits."""
LINEAR = ("top",)
"""Terms whose weight is linear in the covariates; that of the others is one number."""
PLACES = (1, 3, 7, 15, 31, 63)
"""Places in a row after which `rank` takes another power of 2: classes further down than 64 share one."""
FULL_UP_TO = 24
"""Classes up to which mixing is a full matrix: its curvature has the fourth power of the classes as entries."""
DIAGONAL_UP_TO = 256
"""Classes up to which there is a diagonal at least: with 1000 it won 0.001 of the loss for three times the work."""
MIDDLE = 0.5
"""How far from a row's maximum toward its mean class mixing measures from.

Less their row's mean, an entry of the matrix acts where its class is predicted; less the maximum, where it is not.
Which one needs fewer rows depends on the model; the midpoint was near the better of the two on every model tried.
"""
WIDTH = 0.2
"""Correlation over which the similarity of two classes changes by a factor of e."""
LEAST = 0.01
"""Added to the probability of similar classes, over the number of classes: its logarithm stays finite."""
DENSE_UP_TO = 256
"""Classes up to which each is compared with all others; beyond, with the `NEAREST` most similar."""
NEAREST = 16
SIMILAR_UP_TO = COMPARED_UP_TO
"""Classes up to which they are compared at all: their correlations are a matrix."""
MATRICES = 3
"""Products of blocks that a thread has at a time: one that waits, one that is summed and one that is made."""
SIMILAR_ROWS = 4096
"""Evenly spaced rows that correlations of classes are estimated from."""


@dataclass(frozen=True)
class ClassSimilarity:
    """How similar classes are: rows of weights that sum to 1, of all other classes or of the most similar ones.

    Attributes
    ----------
    weights : ndarray of shape (k, k) or (k, m)
    columns : ndarray of int, of shape (k, m), or None
        The m most similar classes of each; None where all are.
    back_weights, back_columns : ndarray of shape (k, m), or None
        The largest entries of each column of the whole matrix.
    """

    weights: Annotated[Vector, kinds.Array("K K | K m", kinds.FINITE, kinds.NOT_NEGATIVE)]
    columns: Annotated[Any, kinds.optional(kinds.Counts("K m", kinds.NOT_NEGATIVE))] = None
    back_weights: Annotated[Any, kinds.optional(kinds.Array("K m", kinds.FINITE, kinds.NOT_NEGATIVE))] = None
    back_columns: Annotated[Any, kinds.optional(kinds.Counts("K m", kinds.NOT_NEGATIVE))] = None

    def _check_stored(self) -> None:
        parts = (self.columns, self.back_weights, self.back_columns)
        need(len({part is None for part in parts}) == 1, "similar classes must be stated both ways, or not at all.")
        for columns in (self.columns, self.back_columns):
            need(columns is None or (columns < len(self.weights)).all(), "similar classes must be columns.")
        need(self.columns is not None or self.weights.shape[0] == self.weights.shape[1], "weights must be square.")

    _stored = Record(check=_check_stored)

    @classmethod
    def of(cls, logits: Any, weights: Vector | None = None) -> Self:
        """From the weighted correlation of classes over rows of logits (n, k), each less its mean; without labels."""
        whole = _correlations(logits, weights)  # overwritten: of thousands of classes it is most of the memory
        whole /= WIDTH
        np.exp(whole, out=whole)
        np.fill_diagonal(whole, 0.0)
        whole /= whole.sum(axis=1, keepdims=True)
        if whole.shape[0] <= DENSE_UP_TO:
            return cls(whole)
        columns, weights = _largest(whole)
        back_columns, back = _largest(whole.T)
        return cls(weights / weights.sum(axis=1, keepdims=True), columns, back, back_columns)

    def forward(self) -> Neighbours:
        """``K``, for `formula`."""
        if self.columns is None:
            return Neighbours(np.ascontiguousarray(self.weights.T))
        return _nearest(self.columns, self.weights)

    def backward(self) -> Neighbours:
        """``K'``."""
        if self.columns is None:
            return Neighbours(self.weights)
        return _nearest(self.back_columns, self.back_weights)


def _nearest(columns: NDArray[np.intp], weights: Vector) -> Neighbours:
    """Means over some classes of each, in both forms."""
    from scipy.sparse import csr_array

    k, m = weights.shape
    sparse = csr_array((weights.ravel(), columns.ravel(), np.arange(0, k * m + 1, m)), shape=(k, k))
    places, shares = (tuple(np.ascontiguousarray(array.T)) for array in (columns, weights))
    return Neighbours(columns=places, weights=shares, sparse=sparse)


def _correlations(logits: Any, weights: Vector | None) -> Vector:
    """Correlations of columns (k, k) over evenly spaced rows, each less its mean; 0 with a constant column."""
    xp, step = namespace(logits), -(-logits.shape[0] // SIMILAR_ROWS)
    rows = some_rows(logits, slice(None, None, step))
    n, k = rows.shape
    shares = np.full(n, 1 / n) if weights is None else weights[::step] / weights[::step].sum()
    share, masked = to_device(shares, logits)[:, None], any_masked(rows)
    host = isinstance(rows, np.ndarray)

    def total(values: Callable[[slice], Any], work: blocks.Work = blocks.ENTRIES) -> Any:
        height = blocks.block_rows(8 * k, budget=blocks.GEMM_BYTES)
        threads = blocks.n_threads(MATRICES * 8 * k * k, work=work) if host else 1  # a device has its own
        return blocks.reduce_rows(values, n, block=height, threads=threads, work=work, columns=k)

    def centred(part: slice) -> Any:
        values = rows[part, :]
        hidden = xp.isinf(values) if masked else None
        below = below_top(xp, values, hidden)
        below = below - mean_of_shown(xp, below, hidden)
        return below if hidden is None else xp.where(hidden, 0.0, below)

    mean = total(lambda part: xp.sum(share[part, :] * centred(part), axis=0))
    length = xp.sqrt(total(lambda part: xp.sum(share[part, :] * (centred(part) - mean) ** 2, axis=0)))
    unit = xp.where(length > 1e-12 * xp.max(length), length, xp.inf)

    def product(part: slice) -> Any:
        values = xp.astype(xp.sqrt(share[part, :]) * (centred(part) - mean) / unit, logits.dtype, copy=False)
        return values.T @ values

    return to_host(total(product, blocks.SCATTER)).astype(np.float64)


def _largest(matrix: Vector) -> tuple[NDArray[np.intp], Vector]:
    """Columns of the largest entries of every row (k, m), in rising order, and those entries."""
    k = len(matrix)
    columns, entries = np.empty((k, NEAREST), np.intp), np.empty((k, NEAREST))

    def choose(rows: slice) -> None:
        columns[rows] = np.sort(np.argpartition(matrix[rows], -NEAREST, axis=1)[:, -NEAREST:], axis=1)
        entries[rows] = np.take_along_axis(matrix[rows], columns[rows], axis=1)

    blocks.for_rows(choose, k, block=blocks.block_rows(8 * k))
    return columns, entries


def fields_of(
    names: tuple[str, ...],
    n_classes: int,
    *,
    multiplier: float,
    similarity: ClassSimilarity | None,
    density_reach: float | None,
) -> Iterator[tuple[str, Any]]:
    """The matrix of each term as a formula; of `class_prior`, which is part of the scores, none.

    `multiplier` is that of temperature scaling, `density_reach` the largest spread of a row of class log-densities.
    """
    for name in names:
        if name == "class_density":
            yield name, LogDensity(density_reach)
        elif name == "rank":
            yield name, Rank(tuple(place for place in PLACES if place < n_classes))
        elif name == "top":
            yield name, Top(multiplier)
        elif name == "similar_logits" and similarity is not None:
            yield name, SimilarLogits(similarity.forward())
        elif name == "similar_probabilities" and similarity is not None:
            yield name, SimilarProbabilities(similarity.backward(), multiplier, LEAST / n_classes)


def is_linear(name: str) -> bool:
    """Whether the weight of a term is linear in the covariates."""
    return name in LINEAR


def terms_of(problem: Problem, fields: Mapping[str, Any], class_prior: Vector | None, n_linear: int) -> list[Term]:
    """Terms of a problem, each with its matrix read once from the logits.

    Their formulas are those of `fields_of`, and the class prior (k,) is in logarithms; the matrix of a class density
    is given apart. `n_linear` columns of the problem's features are constant or linear in a covariate.
    """
    found = []
    if class_prior is not None:
        row = to_device(class_prior - class_prior.max(), problem.logits)
        row = namespace(row).astype(row, problem.logits.dtype, copy=False)
        found.append(Term("class_prior", namespace(row).broadcast_to(row, problem.logits.shape)))
    for name, matrix in zip(fields, _matrices(list(fields.values()), problem.logits), strict=True):
        found.append(Term(name, matrix, problem.features[:, :n_linear] if is_linear(name) else None))
    return found


def _matrices(fields: list[Any], logits: Any) -> tuple[Any, ...]:
    """Matrices (n, k) of terms, with maximum 0 in every row, in the type of the logits, which are read once.

    On the host they are computed in that type, too: a fit sums over rows, and half as many bytes are moved.
    """
    if not fields:
        return ()
    xp, host = namespace(logits), isinstance(logits, np.ndarray)
    fields = [moved(field, lambda array: _beside(array, logits)) for field in fields]

    def block(rows: slice) -> list[tuple[Any, ...]]:
        z = logits[rows, :]
        hidden = xp.isinf(z) if any_masked(z) else None
        hidden = hidden if hidden is not None and bool(xp.any(hidden)) else None
        below, known = below_top(xp, z, hidden) if not host or hidden is not None else _below(z), Rows(z)
        found = [xp.astype(field(xp, known, below, hidden), z.dtype, copy=False) for field in fields]
        return [tuple(one - row_maxima(xp, one) for one in found)]

    n, k = logits.shape
    height = blocks.block_rows(8 * k, budget=blocks.CACHE_BYTES if host else BLOCK_BYTES)
    return blocks.compute(block, n, block=height, host=host, columns=k)


def _below(logits: NDArray[Any]) -> NDArray[Any]:
    """`below_top` in the type of the logits, none of which is hidden."""
    return np.asarray(logits - row_maxima(np, logits))


def _beside(array: NDArray[Any], logits: Any) -> Any:
    """An array of a formula where the logits are; on the host real numbers take their type."""
    if not isinstance(logits, np.ndarray):
        return to_device(array, logits)
    return array.astype(logits.dtype, copy=False) if array.dtype.kind == "f" else array


def log_prior(values: Any, n_classes: int) -> Vector:
    """Logarithms of class shares (k,), less their mean; -inf, a class without training rows, counts as half the rarest.

    >>> log_prior(np.log([0.5, 0.5]), 2)
    array([0., 0.])
    """
    logs = check_vector(values, "class_log_prior", finite=False)
    if logs.size != n_classes:
        raise ValueError(f"class_log_prior must have one entry per class, {n_classes}; got {logs.size}.")
    if np.isposinf(logs).any() or np.isneginf(logs).all():
        raise ValueError("class_log_prior must hold logarithms of shares, -inf for a class without training rows.")
    shares = np.exp(logs - logs.max())
    least = shares[shares > 0].min() / 2
    logs = np.log(np.maximum(shares, least))
    return np.asarray(logs - logs.mean())


def choose_mixing(requested: Any, n_classes: int) -> tuple[Mixing | None, str]:
    """The form of mixing for what was requested, and that form in words."""
    if requested is False:
        return None, "off"
    if requested == "auto":
        if n_classes <= FULL_UP_TO:
            return "full", "full"
        if n_classes <= DIAGONAL_UP_TO:
            return "diagonal", f"diagonal: {n_classes} classes are too many for a full matrix (limit {FULL_UP_TO})"
        return None, f"dropped: {n_classes} classes are too many (limit {DIAGONAL_UP_TO})"
    return requested, str(requested)
