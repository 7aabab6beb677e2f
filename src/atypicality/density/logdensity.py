"""Log-densities of rows under the Gaussians of all classes, and the atypicality that follows from them."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from atypicality import blocks
from atypicality.density.covariance import Whitening
from atypicality.density.statistics import refuse_rows
from atypicality.validation import FloatArray

__all__ = ["ClassGaussians", "Gaussians", "TiedGaussians"]

Float64 = NDArray[np.float64]


class Gaussians(Protocol):
    """One Gaussian per class."""

    def class_log_density(self, x: FloatArray) -> Float64:
        """Log p(x | y) of rows (n, d) as (n, k)."""
        ...

    def atypicality(self, x: FloatArray, log_prior: Float64 | None) -> Float64:
        """`-max_y log p(x | y)` of rows (n, d), or `-log p(x)` where log priors (k,) are given."""
        ...


@dataclass(frozen=True)
class TiedGaussians:
    """Gaussians that share a covariance: rows are whitened once, then one product reaches all means.

    In whitened space log p(x | y) is `log_peak - |z - m_y|^2 / 2`, and only `z . m_y - |m_y|^2 / 2` differs between
    classes. The winner's distance is then taken directly, in float64, because the expanded square loses digits.

    Parameters
    ----------
    centre : ndarray of shape (d,)
        Subtracted from the rows first.
    whitening : ndarray of shape (d, r)
    means : ndarray of shape (k, r)
        Class means, centred and whitened, in float64.
    log_peak : float
    """

    centre: FloatArray
    whitening: FloatArray
    means: Float64
    log_peak: float

    @classmethod
    def of(
        cls, means: Float64, whitening: Whitening, components: Float64 | None, centre: FloatArray
    ) -> "TiedGaussians":
        """From means (k, d) and the whitening of the covariance, of the components where rows are projected first."""
        matrix = whitening.matrix if components is None else components.T @ whitening.matrix
        matrix = np.ascontiguousarray(matrix, centre.dtype)  # the rounded one is used for means and rows alike
        return cls(centre, matrix, (means - centre) @ matrix.astype(np.float64, copy=False), whitening.log_peak)

    def class_log_density(self, x: FloatArray) -> Float64:
        """Log p(x | y) of rows (n, d) as (n, k)."""
        out = blocks.empty((x.shape[0], self.means.shape[0]))

        def write(rows: slice, z: FloatArray, scores: FloatArray, best: NDArray[np.intp], half: Float64) -> None:
            length = np.vecdot(z, z, dtype=np.float64)[:, None]
            np.add(scores, self.log_peak - 0.5 * length, out=out[rows])
            np.put_along_axis(out[rows], best[:, None], (self.log_peak - half)[:, None], axis=1)

        self._for_blocks(x, out, write, None)
        return out

    def atypicality(self, x: FloatArray, log_prior: Float64 | None) -> Float64:
        """`-max_y log p(x | y)` of rows (n, d), or `-log p(x)` where log priors (k,) are given."""
        out = np.empty(x.shape[0])

        def write(rows: slice, z: FloatArray, scores: FloatArray, best: NDArray[np.intp], half: Float64) -> None:
            out[rows] = half - self.log_peak
            if log_prior is not None:
                scores -= np.take_along_axis(scores, best[:, None], axis=1)
                np.exp(scores, out=scores)
                out[rows] -= log_prior[best] + np.log(scores.sum(axis=1, dtype=np.float64))

        self._for_blocks(x, out, write, log_prior)
        return out

    def _for_blocks(self, x: FloatArray, out: Float64, write: Any, log_prior: Float64 | None) -> None:
        """Call `write` with every block of rows: whitened, scored for each class, with the best class and its score."""
        dtype, (d, r), k = self.centre.dtype, self.whitening.shape, self.means.shape[0]
        targets = np.ascontiguousarray(self.means.T, dtype)
        bias = -0.5 * np.vecdot(self.means, self.means) + (0.0 if log_prior is None else log_prior)
        workspace, bias = blocks.Workspace(), bias.astype(dtype)

        def run(rows: slice) -> None:
            n = rows.stop - rows.start
            with workspace.borrow() as buffers, np.errstate(invalid="ignore", over="ignore"):
                u = np.subtract(x[rows], self.centre, out=buffers("u", (n, d), dtype), casting="same_kind")
                z = np.matmul(u, self.whitening, out=buffers("z", (n, r), dtype))
                scores = np.matmul(z, targets, out=buffers("scores", (n, k), dtype))
                scores += bias
                best = scores.argmax(axis=1)
                gap = np.take(self.means, best, axis=0, out=buffers("gap", (n, r)), mode="clip")
                np.subtract(z, gap, out=gap)
                write(rows, z, scores, best, 0.5 * np.vecdot(gap, gap))
            if not np.isfinite(out[rows]).all():
                refuse_rows(x[rows], dtype, first_row=rows.start)

        block = blocks.block_rows((d + r + k) * dtype.itemsize, budget=blocks.GEMM_BYTES)
        blocks.for_rows(run, x.shape[0], block=block)


@dataclass(frozen=True)
class ClassGaussians:
    """Gaussians with a covariance each: every class whitens the rows in its own way.

    Parameters
    ----------
    centre : ndarray of shape (d,)
        Subtracted from the rows before they are projected; its type is that of the products.
    components : ndarray of shape (m, d), or None
        Rows to project on first.
    means : ndarray of shape (k, m)
        Class means in the space of the components, centred there, or as they are.
    whitenings : list of Whitening, one per class
    """

    centre: FloatArray
    components: FloatArray | None
    means: Float64
    whitenings: list[Whitening]

    @classmethod
    def of(
        cls, means: Float64, whitenings: list[Whitening], components: Float64 | None, centre: FloatArray
    ) -> "ClassGaussians":
        """From means (k, d) and whitenings, those of the components where rows are projected first."""
        if components is None:
            return cls(centre, None, means, whitenings)
        rounded = components.astype(centre.dtype)
        return cls(centre, rounded, (means - centre) @ rounded.T.astype(np.float64), whitenings)

    def class_log_density(self, x: FloatArray) -> Float64:
        """Log p(x | y) of rows (n, d) as (n, k)."""
        out = blocks.empty((x.shape[0], self.means.shape[0]))

        def write(rows: slice, scores: Float64) -> None:
            out[rows] = scores

        self._for_blocks(x, write)
        return out

    def atypicality(self, x: FloatArray, log_prior: Float64 | None) -> Float64:
        """`-max_y log p(x | y)` of rows (n, d), or `-log p(x)` where log priors (k,) are given."""
        out = np.empty(x.shape[0])

        def write(rows: slice, scores: Float64) -> None:
            out[rows] = -scores.max(axis=1) if log_prior is None else -logsumexp(scores + log_prior, axis=1)

        self._for_blocks(x, write)
        return out

    def _for_blocks(self, x: FloatArray, write: Any) -> None:
        dtype, k = self.centre.dtype, self.means.shape[0]
        matrices = [whitening.matrix.astype(dtype) for whitening in self.whitenings]

        def run(rows: slice) -> None:
            with np.errstate(invalid="ignore", over="ignore"):
                z = self._projected(x[rows])
                scores = np.empty((rows.stop - rows.start, k))
                for y, (matrix, whitening) in enumerate(zip(matrices, self.whitenings, strict=True)):
                    u = np.subtract(z, self.means[y]).astype(dtype, copy=False)
                    v = u * matrix if matrix.ndim == 1 else u @ matrix
                    scores[:, y] = whitening.log_peak - 0.5 * np.vecdot(v, v)
            if not np.isfinite(scores).all():
                refuse_rows(x[rows], dtype, first_row=rows.start)
            write(rows, scores)

        block = blocks.block_rows((x.shape[1] + k) * dtype.itemsize, budget=blocks.GEMM_BYTES)
        blocks.for_rows(run, x.shape[0], block=block)

    def _projected(self, rows: FloatArray) -> FloatArray:
        if self.components is None:
            return rows
        u = np.subtract(rows, self.centre, dtype=np.result_type(rows, self.centre)).astype(
            self.centre.dtype, copy=False
        )
        return u @ self.components.T
