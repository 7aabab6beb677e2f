"""The model on one block of rows: inputs, predictor, softmax, and sums weighted by it.

With X_ij the inputs of the parameters at class j, the predictor is ``X_ij . theta``. Every function works on a block
that lies in cache, in buffers that are borrowed, in the problem's dtype; sums over rows leave it as float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import Problem, Term
from atypicality.recalibration.row_statistics import FloatArray

__all__ = [
    "Buffers",
    "Fields",
    "SharedInputs",
    "contract",
    "expected_inputs",
    "exponentials",
    "predictor",
    "read_fields",
    "shared_inputs",
    "shared_means",
    "shared_terms",
    "softmax",
    "thin_product",
]

Buffers = Callable[..., NDArray[Any]]
SCORE_RANGE = 40.0
"""How far a row's maximum may be from what is subtracted from it, most often nothing: exp(40) and exp(-40) leave
float32 room for the rest."""
SMALL_PRODUCT = 1_000_000
"""Multiplications up to which OpenBLAS takes matrices as they are: to pack them takes as long as a product of few rows.
"""


@dataclass(frozen=True)
class Fields:
    """The inputs of a block: u (maximum 0), x (centred, for mixing), terms (maximum 0), masked entries.

    Of these x is standardised; the others are left to be divided by `Problem.unit_left`.
    """

    u: FloatArray
    x: FloatArray | None
    terms: list[FloatArray]
    hidden: NDArray[np.bool_] | None


def read_fields(problem: Problem, rows: slice, buffers: Buffers, dtype: np.dtype[Any] | None = None) -> Fields:
    """Inputs of a block of rows; masked entries become 0 and are marked in `hidden`."""
    z, dtype = problem.logits[rows], dtype or problem.dtype
    u = np.subtract(z, problem.rows.top[rows, None], out=buffers("u", z.shape, dtype))
    left = problem.unit_left()
    if left != problem.scale:
        u *= dtype.type(1 / problem.scale)
    hidden = np.isneginf(u) if problem.rows.masked[rows].any() else None
    if hidden is not None:
        u[hidden] = 0
    x = None
    if problem.mixing is not None:
        offset = -problem.rows.mean[rows] / problem.scale
        x = np.multiply(u, dtype.type(1 / left), out=buffers("x", z.shape, dtype))
        x += offset[:, None].astype(dtype)
        if hidden is not None:
            x[hidden] = 0
    return Fields(u, x, [_read_term(problem, term, rows, buffers, dtype) for term in problem.terms], hidden)


def _read_term(problem: Problem, term: Term, rows: slice, buffers: Buffers, dtype: np.dtype[Any]) -> FloatArray:
    """The matrix of a term in a block, with maximum 0: as it lies where it has that already."""
    values, scale = term.matrix[rows], problem.term_scales[term.name]
    as_it_is = problem.unit_left(term.name) == scale
    if as_it_is and values.dtype == dtype and not term.rows.top[rows].any():
        return np.asarray(values)
    out = buffers(f"field {term.name}", values.shape, dtype)  # a name alone could be one of the others
    np.subtract(values, term.rows.top[rows, None], out=out)
    return out if as_it_is else np.multiply(out, dtype.type(1 / scale), out=out)


def predictor(
    problem: Problem, fields: Fields, rows: slice, theta: Vector, out: FloatArray, buffers: Buffers
) -> FloatArray:
    """``X_ij . theta`` of a block (b, k), up to a constant per row; masked entries are meaningless."""
    c, unknowns, w, s = problem.parts(theta)
    dtype = out.dtype
    np.multiply(fields.u, (problem.features[rows] @ c / problem.unit_left())[:, None].astype(dtype), out=out)
    for term, field in zip(problem.terms, fields.terms, strict=True):
        features = term.features[:1] if term.is_even else term.features[rows]
        weight = (features @ unknowns[term.name] / problem.unit_left(term.name))[:, None].astype(dtype)
        factor = weight[0, 0] if term.is_even else weight
        out += np.multiply(field, factor, out=buffers("term", out.shape, dtype))
    if w is not None and fields.x is not None:
        w, mixed = w.astype(dtype), buffers("term", out.shape, dtype)
        out += np.multiply(fields.x, w, out=mixed) if w.ndim == 1 else np.matmul(fields.x, w.T, out=mixed)
    if s is not None:
        out += s.astype(dtype)
    return out


def softmax(
    problem: Problem, fields: Fields, rows: slice, theta: Vector, buffers: Buffers
) -> tuple[FloatArray, Vector, Vector]:
    """Exponentials (b, k), of at most `SCORE_RANGE`, their row sums, and what was subtracted from each row before."""
    out = predictor(problem, fields, rows, theta, buffers("e", fields.u.shape, fields.u.dtype), buffers)
    return exponentials(problem, fields, rows, theta, out)


def exponentials(
    problem: Problem, fields: Fields, rows: slice, theta: Vector, out: FloatArray
) -> tuple[FloatArray, Vector, Vector]:
    """As `softmax`, from the predictor (b, k), which is overwritten."""
    if fields.hidden is not None:
        out[fields.hidden] = -np.inf
    bounds = _bounds(problem, rows, theta, out)
    if np.abs(bounds).max(initial=0.0) > SCORE_RANGE:
        out -= bounds[:, None]
    else:
        bounds = np.zeros_like(bounds)
    if out.max(initial=-np.inf) > SCORE_RANGE:
        further = out.max(axis=1)
        out -= further[:, None]
        bounds += further
    np.exp(out, out=out)
    totals = np.matmul(out, np.ones(out.shape[1], out.dtype)).astype(np.float64)
    return out, totals, bounds.astype(np.float64)


def _bounds(problem: Problem, rows: slice, theta: Vector, predicted: FloatArray) -> FloatArray:
    """What to subtract from each row of the predictor, if it is large: a bound of its terms, else one of its entries.

    That of its largest logit is rarely far below the row's maximum, which takes ten times as long to find.
    """
    c, _, w, s = problem.parts(theta)
    spread = 0.0 if s is None else float(np.ptp(s))
    if w is not None or problem.terms or spread > SCORE_RANGE or (problem.features[rows] @ c < 0).any():
        return np.asarray(predicted[np.arange(predicted.shape[0]), problem.rows.best[rows]])
    return np.full(predicted.shape[0], 0.0 if s is None else s.max(), predicted.dtype)


def contract(
    problem: Problem,
    fields: Fields,
    rows: slice,
    e: FloatArray,
    row_weights: Vector,
    buffers: Buffers,
    means: list[FloatArray] | None = None,
) -> Vector:
    """Sum over rows and classes of ``row_weights_i e_ij X_ij`` (P,); `means` are those of `shared_means`, if known."""
    layout, sums = problem.layout, np.empty(problem.layout.size)
    terms = shared_terms(problem, fields, rows)
    for (where, features, _), mean in zip(terms, means or shared_means(e, terms), strict=True):
        sums[where] = (row_weights * mean) @ features
    weights = row_weights.astype(e.dtype)
    if fields.x is not None and problem.mixing == "diagonal":
        sums[layout.mixing] = weights @ np.multiply(e, fields.x, out=buffers("term", e.shape, e.dtype))
    elif fields.x is not None:
        weighted = np.multiply(fields.x, weights[:, None], out=buffers("term", e.shape, e.dtype))
        sums[layout.mixing] = (e.T @ weighted).ravel()
    if problem.class_scores:
        sums[layout.scores] = weights @ e
    return sums


def expected_inputs(
    problem: Problem, fields: Fields, shared: "SharedInputs", p: FloatArray, out: FloatArray
) -> FloatArray:
    """``sum_j p_ij X_ij`` of every row, written into `out` (b, P)."""
    layout, k = problem.layout, problem.n_classes
    out[:, : shared.size] = shared.times(p, len(shared.fields)).T
    if fields.x is not None and problem.mixing == "diagonal":
        np.multiply(p, fields.x, out=out[:, layout.mixing])
    elif fields.x is not None:
        np.multiply(p[:, :, None], fields.x[:, None, :], out=out[:, layout.mixing].reshape(-1, k, k))
    if problem.class_scores:
        out[:, layout.scores] = p
    return out


def thin_product(few: FloatArray, values: FloatArray) -> FloatArray:
    """``few @ values`` of a few rows (q, b) and a block (b, k), in parts that are not packed: half of the time."""
    parts = -(-few.shape[0] * values.size // SMALL_PRODUCT)
    if parts <= 1 or few.shape[0] == 1:
        return few @ values
    step = -(-values.shape[0] // parts)
    total = few[:, :step] @ values[:step]
    for start in range(step, values.shape[0], step):
        total += few[:, start : start + step] @ values[start : start + step]
    return total


@dataclass(frozen=True)
class SharedInputs:
    """Terms whose parameters are the same for all classes, which are the first ones: fields and features of a block."""

    spans: list[slice]
    fields: list[FloatArray]
    features: Vector  # (s, b), of all terms
    owner: NDArray[np.intp]  # (s,), the term of each

    @property
    def size(self) -> int:
        """Parameters of all terms."""
        return self.owner.size

    def times(self, p: FloatArray, count: int) -> Vector:
        """``sum_j p_ij X_ij`` of the parameters (s, b) of the first terms, so many."""
        sums = np.stack([np.vecdot(p, field) for field in self.fields[:count]])
        stop = self.spans[count - 1].stop
        return np.asarray(self.features[:stop] * sums[self.owner[:stop]])


def shared_inputs(problem: Problem, fields: Fields, rows: slice) -> SharedInputs:
    """Those of a block of rows."""
    spans, features, own = zip(*shared_terms(problem, fields, rows), strict=True)
    owner = np.repeat(np.arange(len(spans)), [where.stop - where.start for where in spans])
    return SharedInputs(list(spans), list(own), np.concatenate([one.T for one in features]), owner)


def shared_terms(problem: Problem, fields: Fields, rows: slice) -> list[tuple[slice, Vector, FloatArray]]:
    """Terms whose parameters are the same for all classes: (where, features, field)."""
    layout = problem.layout
    others = zip(problem.terms, fields.terms, strict=True)
    return [
        (layout.features, problem.features[rows] / problem.unit_left(), fields.u),
        *(
            (layout.terms[term.name], term.features[rows] / problem.unit_left(term.name), field)
            for term, field in others
        ),
    ]


def shared_means(p: FloatArray, terms: list[tuple[slice, Vector, FloatArray]]) -> list[FloatArray]:
    """``sum_j p_ij F_ij`` of the field of every term (b,)."""
    return [np.vecdot(p, field) for _, _, field in terms]
