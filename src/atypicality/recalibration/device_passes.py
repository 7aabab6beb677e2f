"""A convex problem's rows on its device: the inputs of a block, the model at a point, and sums weighted by it.

With X_ij the inputs of the parameters at class j, the predictor is ``X_ij . theta``; `recalibration.kernels` says the
same for the host. Everything is float64: an accelerator has the rate for it, and no rounding has to be bounded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from atypicality import blocks
from atypicality.arrays import BLOCK_BYTES, Device, namespace, to_device, to_host

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atypicality.recalibration.parameters import Vector
    from atypicality.recalibration.problem import Problem

__all__ = [
    "Block",
    "Resident",
    "classwise",
    "column_logits",
    "predictor",
    "read_block",
    "resident",
    "row_slices",
    "shared_terms",
    "softmax",
    "weighted_sums",
]


@dataclass(frozen=True)
class Resident:
    """One number per row, or a few, that every pass reads: on the device, sent once."""

    weights: Device
    top: Device
    mean: Device
    features: Device
    term_tops: list[Device]
    term_features: list[Device]


@dataclass(frozen=True)
class Block:
    """Standardised inputs of some rows: u (maximum 0), x (centred, for mixing), terms (maximum 0), masked entries."""

    u: Device
    x: Device | None
    terms: list[Device]
    hidden: Device | None
    weights: Device
    features: Device
    term_features: list[Device]


def resident(problem: "Problem") -> Resident:
    """The columns of a problem's rows, in one transfer."""
    terms = problem.terms
    parts = [problem.weights, problem.rows.top, problem.rows.mean, *(term.rows.top for term in terms)]
    parts = [part[:, None] for part in parts] + [problem.features, *(term.features for term in terms)]
    table = to_device(np.concatenate(parts, axis=1), problem.logits)
    ends = np.cumsum([0, *(part.shape[1] for part in parts)]).tolist()
    columns = [table[:, first:last] for first, last in pairwise(ends)]
    single = [column[:, 0] for column in columns[: 3 + len(terms)]]
    features, *others = columns[3 + len(terms) :]
    weights, top, mean, *tops = single
    return Resident(weights, top, mean, features, tops, others)


def row_slices(problem: "Problem", width: int) -> Iterator[slice]:
    """Slices of rows so that `width` numbers of each, in float64, are a block."""
    return blocks.row_slices(problem.n_rows, blocks.block_rows(8 * width, budget=BLOCK_BYTES))


def read_block(problem: "Problem", rows: slice) -> Block:
    """Standardised inputs of a block of rows; masked entries become 0 and are marked in `hidden`."""
    held, xp = problem.resident, namespace(problem.logits)
    u = _below(problem.logits[rows, :], held.top[rows], problem.scale)
    hidden = xp.isinf(u) if problem.rows.masked[rows].any() else None
    u = u if hidden is None else xp.where(hidden, 0.0, u)
    x = None
    if problem.mixing is not None:
        x = u - (held.mean[rows] / problem.scale)[:, None]
        x = x if hidden is None else xp.where(hidden, 0.0, x)
    terms = [
        _below(term.matrix[rows, :], top[rows], problem.term_scales[term.name])
        for term, top in zip(problem.terms, held.term_tops, strict=True)
    ]
    others = [features[rows, :] for features in held.term_features]
    return Block(u, x, terms, hidden, held.weights[rows], held.features[rows, :], others)


def _below(block: Device, top: Device, scale: float) -> Device:
    xp = namespace(block)
    return (xp.astype(block, xp.float64) - top[:, None]) * (1 / scale)


def shared_terms(problem: "Problem", block: Block) -> list[tuple[slice, Device, Device]]:
    """Terms whose parameters are the same for all classes: (where, features, field)."""
    layout = problem.layout
    others = zip(layout.terms.values(), block.term_features, block.terms, strict=True)
    return [(layout.features, block.features, block.u), *others]


def predictor(problem: "Problem", block: Block, theta: Device) -> Device:
    """``X_ij . theta`` of a block (b, k), up to a constant per row; masked entries are meaningless."""
    first, *others = shared_terms(problem, block)
    layout, k = problem.layout, problem.n_classes
    out = first[2] * (first[1] @ theta[first[0]])[:, None]
    for where, features, field in others:
        out = out + field * (features @ theta[where])[:, None]
    if block.x is not None and problem.mixing == "diagonal":
        out = out + block.x * theta[layout.mixing]
    elif block.x is not None:
        out = out + block.x @ namespace(theta).reshape(theta[layout.mixing], (k, k)).T
    return out + theta[layout.scores] if problem.class_scores else out


def softmax(problem: "Problem", block: Block, theta: Device) -> tuple[Device, Device]:
    """Probabilities of a block (b, k), and the logarithms of what they were divided by (b,)."""
    xp, out = namespace(theta), predictor(problem, block, theta)
    if block.hidden is not None:
        out = xp.where(block.hidden, -xp.inf, out)
    top = xp.max(out, axis=1)
    e = xp.exp(out - top[:, None])
    totals = xp.sum(e, axis=1)
    return e / totals[:, None], xp.log(totals) + top


def classwise(problem: "Problem", block: Block, values: Device) -> Device:
    """``values_ij`` times the inputs of the class-wise parameters: (b, C), of mixing, then of scores."""
    xp, columns = namespace(values), []
    if block.x is not None and problem.mixing == "diagonal":
        columns.append(values * block.x)
    elif block.x is not None:
        columns.append(xp.reshape(values[:, :, None] * block.x[:, None, :], (values.shape[0], -1)))
    if problem.class_scores:
        columns.append(values)
    return columns[0] if len(columns) == 1 else xp.concat(columns, axis=1)


def weighted_sums(problem: "Problem", block: Block, values: Device) -> Device:
    """Sum over rows and classes of ``w_i values_ij X_ij`` (P,)."""
    xp, weights = namespace(values), block.weights
    sums = [
        (weights * xp.sum(values * field, axis=1)) @ features for _, features, field in shared_terms(problem, block)
    ]
    if block.x is not None and problem.mixing == "diagonal":
        sums.append(weights @ (values * block.x))
    elif block.x is not None:
        sums.append(xp.reshape(values.T @ (block.x * weights[:, None]), (-1,)))
    if problem.class_scores:
        sums.append(weights @ values)
    return xp.concat(sums)


def column_logits(problem: "Problem", columns: "NDArray[np.intp]", weights: "Vector") -> "Vector":
    """Weighted sum of standardised centred logits over the rows that have each class as their column, on the host."""
    xp, total = namespace(problem.logits), np.zeros((problem.n_classes, problem.n_classes))
    classes = to_device(np.arange(problem.n_classes), problem.logits)
    for rows in row_slices(problem, problem.n_classes):
        block = read_block(problem, rows)
        chosen = to_device(columns[rows], problem.logits)[:, None] == classes[None, :]
        total += to_host(
            (xp.astype(chosen, xp.float64) * to_device(weights[rows], problem.logits)[:, None]).T @ block.x
        )
    return total
