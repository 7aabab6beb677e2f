"""Second derivatives of the loss on a device: ``mean_i (sum_j p_ij X_ij X_ij' - m_i m_i')`` as a few large products.

The exact Hessian stays there. The approximate one, as on the host, is small: sums per class, and the few entries of a
row that hold a noticeable probability.
"""

from typing import Any

import numpy as np

from atypicality.arrays import Device, namespace, to_host
from atypicality.recalibration.device_passes import Block, classwise, shared_terms
from atypicality.recalibration.metric import KEPT, Kept, SparseCurvature
from atypicality.recalibration.problem import Problem

__all__ = ["exact_curvature", "sparse_curvature"]


def exact_curvature(problem: Problem, block: Block, p: Device) -> Device:
    """The block's share of the Hessian (P, P) at probabilities `p` (b, k), on the device."""
    xp, layout = namespace(p), problem.layout
    shared, centred = _shared(problem, block, p)
    if layout.mixing.start == layout.size:
        return shared
    own = classwise(problem, block, p)
    second = _own_moments(problem, block, p) - (own * block.weights[:, None]).T @ own
    crossed = _crossed(block, [(features, classwise(problem, block, field)) for features, field in centred])
    return xp.concat([xp.concat([shared, crossed], axis=1), xp.concat([crossed.T, second], axis=1)], axis=0)


def sparse_curvature(problem: Problem, block: Block, p: Device, first_row: int) -> SparseCurvature:
    """The block's share of `recalibration.metric.SparseCurvature`, on the host."""
    xp = namespace(p)
    shared, centred = _shared(problem, block, p)
    inputs = [block.x] if problem.mixing == "diagonal" else []
    inputs = [*inputs, None] if problem.class_scores else inputs
    crossed = [_crossed(block, [(features, _times(field, own)) for features, field in centred]) for own in inputs]
    empty = np.zeros((problem.layout.mixing.start, 0, problem.n_classes))
    found = SparseCurvature(
        to_host(shared),
        to_host(xp.stack(crossed, axis=1)) if inputs else empty,
        to_host(_diagonal_moments(block, p, inputs)) if inputs else empty[:0],
        [_kept(block, p, inputs, first_row)],
    )
    if problem.mixing == "full":
        found.outputs, found.inputs = (to_host(factor) for factor in _factors(block, p))
    return found


def _shared(problem: Problem, block: Block, p: Device) -> tuple[Device, list[tuple[Device, Device]]]:
    """The Hessian of the parameters that all classes share, and their fields less the mean, times p, with features."""
    xp, terms, rows = namespace(p), shared_terms(problem, block), []
    centred = [p * (field - xp.sum(p * field, axis=1, keepdims=True)) for _, _, field in terms]
    for (_, left, _), moved in zip(terms, centred, strict=True):
        spreads = [block.weights * xp.sum(moved * field, axis=1) for _, _, field in terms]
        row = [(left * spread[:, None]).T @ right for (_, right, _), spread in zip(terms, spreads, strict=True)]
        rows.append(xp.concat(row, axis=1))
    features = [features for _, features, _ in terms]
    return xp.concat(rows, axis=0), list(zip(features, centred, strict=True))


def _crossed(block: Block, terms: list[tuple[Device, Device]]) -> Device:
    """Between shared parameters and whatever the given fields (b, C) belong to: (s, C)."""
    xp = namespace(block.u)
    return xp.concat([(features * block.weights[:, None]).T @ field for features, field in terms], axis=0)


def _times(values: Device, own: Device | None) -> Device:
    return values if own is None else values * own


def _diagonal_moments(block: Block, p: Device, inputs: list[Any]) -> Device:
    """``sum_i w_i p_ij a_ij b_ij`` for every pair of inputs (r, r, k)."""
    xp = namespace(p)
    moved = [_times(p, own) for own in inputs]
    return xp.stack([xp.stack([block.weights @ _times(left, own) for own in inputs]) for left in moved])


def _own_moments(problem: Problem, block: Block, p: Device) -> Device:
    """Second moments of class-wise parameters (C, C): zero between different classes."""
    xp, k = namespace(p), problem.n_classes
    if problem.mixing == "full":
        return _full_moments(problem, block, p)
    inputs = [block.x, None] if problem.mixing == "diagonal" else [None]
    moments = _diagonal_moments(block, p, inputs if problem.class_scores else inputs[:1])
    size = moments.shape[0] * k
    spaced = xp.permute_dims(moments, (0, 2, 1))[:, :, :, None] * _identity(p, k)[None, :, None, :]
    return xp.reshape(spaced, (size, size))


def _full_moments(problem: Problem, block: Block, p: Device) -> Device:
    xp, k, x = namespace(p), problem.n_classes, block.x
    weighted, identity = (p * block.weights[:, None]).T, _identity(p, k)
    pairs = xp.reshape(x[:, :, None] * x[:, None, :], (x.shape[0], k * k))  # type: ignore[index, union-attr]
    second = xp.reshape(weighted @ pairs, (k, k, 1, k)) * identity[:, None, :, None]
    second = xp.reshape(second, (k * k, k * k))
    if not problem.class_scores:
        return second
    first = xp.reshape((weighted @ x)[:, :, None] * identity[:, None, :], (k * k, k))
    zeroth = xp.sum(weighted, axis=1) * identity
    return xp.concat([xp.concat([second, first], axis=1), xp.concat([first.T, zeroth], axis=1)], axis=0)


def _factors(block: Block, p: Device) -> tuple[Device, Device]:
    """Mean of ``A_i = diag(p) - p p'`` and of ``trace(A_i) x x'``."""
    xp, weighted = namespace(p), p * block.weights[:, None]
    outputs = xp.sum(weighted, axis=0) * _identity(p, p.shape[1]) - weighted.T @ p
    doubt = block.weights * (1 - xp.sum(p * p, axis=1))
    return outputs, (block.x * doubt[:, None]).T @ block.x


def _kept(block: Block, p: Device, inputs: list[Any], first_row: int) -> Kept:
    """Entries with a probability above `KEPT`: a few per row, and all that leaves the device of them."""
    xp, k = namespace(p), p.shape[1]
    (places,) = xp.nonzero(xp.reshape(p, (-1,)) > KEPT)
    found = to_host(places)
    row, column = np.divmod(found, k)
    values = xp.sqrt(block.weights)[:, None] * p
    chosen = [to_host(xp.take(xp.reshape(_times(values, own), (-1,)), places, axis=0)) for own in inputs]
    return Kept(row + first_row, column, np.stack(chosen) if chosen else np.empty((0, row.size)))


def _identity(like: Device, size: int) -> Device:
    from array_api_compat import device

    xp = namespace(like)
    return xp.eye(size, dtype=xp.float64, device=device(like))
