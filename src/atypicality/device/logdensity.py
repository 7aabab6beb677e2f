"""Log-densities of rows on a device: the products of `density.logdensity`, in the namespace of the rows.

An estimator keeps its parameters on the host, and they move to the device at every call: some tens of megabytes at
2048 columns and 1000 classes, whose way takes a few milliseconds. Nothing is kept there.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks
from atypicality.arrays import namespace
from atypicality.density.logdensity import ClassGaussians, Gaussians, TiedGaussians
from atypicality.device.checks import Device, device_matrix, refuse_embeddings, to_device, to_host

__all__ = ["atypicality_on_device", "class_log_density_on_device"]

Float64 = NDArray[np.float64]

_BLOCK_BYTES = 2**30  # of what a block of rows is turned into


def class_log_density_on_device(gaussians: Gaussians, embeddings: Device) -> Device:
    """Log p(x | y) of rows (n, d) as (n, k), float64 beside the rows."""
    return _score(gaussians, embeddings, None, lambda model, rows: model.class_log_density(rows))


def atypicality_on_device(gaussians: Gaussians, embeddings: Device, log_prior: Float64 | None) -> Device:
    """`-max_y log p(x | y)` of rows (n, d), or `-log p(x)` where log priors (k,) are given: (n,) beside the rows."""
    return _score(gaussians, embeddings, log_prior, lambda model, rows: model.atypicality(rows))


def _score(
    gaussians: Any, embeddings: Device, log_prior: Float64 | None, score: Callable[[Any, Device], Device]
) -> Device:
    x = device_matrix(embeddings, "embeddings", width=gaussians.centre.size)
    model = (_Tied if isinstance(gaussians, TiedGaussians) else _Each)(gaussians, x, log_prior)
    height = blocks.block_rows(8 * (2 * x.shape[1] + gaussians.means.shape[0]), budget=_BLOCK_BYTES)
    cuts = list(blocks.row_slices(x.shape[0], height)) or [slice(0, 0)]
    xp = namespace(x)
    result = xp.concat([score(model, x[rows, :]) for rows in cuts], axis=0)
    if not bool(xp.all(xp.isfinite(result))):
        first = int(np.argwhere(~np.isfinite(to_host(result)))[0, 0])
        refuse_embeddings(x[first:, :], gaussians.centre.dtype, first)
    return result


class _Tied:
    """`TiedGaussians` on the device of some rows."""

    def __init__(self, gaussians: TiedGaussians, x: Device, log_prior: Float64 | None) -> None:
        self.xp, self.log_peak = namespace(x), gaussians.log_peak
        prior = np.zeros(gaussians.means.shape[0]) if log_prior is None else log_prior
        bias = prior - 0.5 * np.vecdot(gaussians.means, gaussians.means)
        self.centre, self.whitening = to_device(gaussians.centre, x), to_device(gaussians.whitening, x)
        self.means, self.bias = to_device(gaussians.means, x), to_device(bias, x, self.centre.dtype)
        self.log_prior = None if log_prior is None else to_device(log_prior, x)

    def atypicality(self, rows: Device) -> Device:
        """One number per row (n,)."""
        xp, (_, scores, best, half) = self.xp, self._scored(rows)
        if self.log_prior is None:
            return half - self.log_peak
        top = xp.max(scores, axis=1, keepdims=True)
        others = xp.log(xp.sum(xp.exp(scores - top), axis=1, dtype=xp.float64))
        return half - self.log_peak - xp.take(self.log_prior, best, axis=0) - others

    def class_log_density(self, rows: Device) -> Device:
        """One number per row and class (n, k)."""
        xp, (z, scores, best, half) = self.xp, self._scored(rows)
        length = xp.sum(z * z, axis=1)
        densities = xp.astype(scores, xp.float64) + (self.log_peak - 0.5 * length)[:, None]
        winner = xp.arange(scores.shape[1], device=scores.device)[None, :] == best[:, None]
        return xp.where(winner, (self.log_peak - half)[:, None], densities)

    def _scored(self, rows: Device) -> tuple[Device, Device, Device, Device]:
        """Whitened rows, scores of all classes, the best class, and half its squared distance taken directly."""
        xp = self.xp
        u = xp.astype(rows - self.centre, self.centre.dtype, copy=False)
        z = u @ self.whitening
        scores = z @ xp.astype(xp.matrix_transpose(self.means), z.dtype, copy=False) + self.bias
        best, z = xp.argmax(scores, axis=1), xp.astype(z, xp.float64, copy=False)
        gap = z - xp.take(self.means, best, axis=0)
        return z, scores, best, 0.5 * xp.sum(gap * gap, axis=1)


class _Each:
    """`ClassGaussians` on the device of some rows."""

    def __init__(self, gaussians: ClassGaussians, x: Device, log_prior: Float64 | None) -> None:
        self.xp, components = namespace(x), gaussians.components
        self.centre, self.means = to_device(gaussians.centre, x), to_device(gaussians.means, x)
        self.components = None if components is None else to_device(components.T, x)
        dtype = self.centre.dtype
        self.classes = [(to_device(w.matrix, x, dtype), w.log_peak) for w in gaussians.whitenings]
        self.log_prior = None if log_prior is None else to_device(log_prior, x)

    def atypicality(self, rows: Device) -> Device:
        """One number per row (n,)."""
        xp, scores = self.xp, self.class_log_density(rows)
        if self.log_prior is None:
            return -xp.max(scores, axis=1)
        scores = scores + self.log_prior
        top = xp.max(scores, axis=1, keepdims=True)
        return -top[:, 0] - xp.log(xp.sum(xp.exp(scores - top), axis=1))

    def class_log_density(self, rows: Device) -> Device:
        """One number per row and class (n, k)."""
        xp, dtype, columns = self.xp, self.centre.dtype, []
        z = rows if self.components is None else xp.astype(rows - self.centre, dtype, copy=False) @ self.components
        for y, (matrix, log_peak) in enumerate(self.classes):
            u = xp.astype(z - self.means[y : y + 1, :], dtype, copy=False)
            v = u * matrix if matrix.ndim == 1 else u @ matrix
            columns.append(log_peak - 0.5 * xp.sum(v * v, axis=1, dtype=xp.float64))
        return xp.stack(columns, axis=1)
