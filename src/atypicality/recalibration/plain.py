"""A shorter way through plain problems: features and scores only, no masked class, logits of moderate size.

Large problems spend their time here. The logits z are multiplied and exponentiated as they are, without first being
shifted or standardised, and the exponentials t of the scores stay outside: with ``e_ij = exp(m_i z_ij)`` the
probabilities are ``e_ij t_j / sum_j e_ij t_j``, so that sums over classes and over rows are products with a vector.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from atypicality import blocks
from atypicality.recalibration.kernels import Buffers, thin_product
from atypicality.recalibration.metric import KEPT, Kept, SparseCurvature
from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import Near, Problem
from atypicality.recalibration.row_statistics import FloatArray

__all__ = ["PlainModel", "plain_model"]

LARGEST, LARGEST_SCORE = 60.0, 10.0
"""Bounds on the largest product of a row and on the scores: exp of their sum, and squares beside it, fit float32."""


def plain_model(problem: Problem, theta: Vector) -> "PlainModel | None":
    """The model at `theta`, or None where the problem must go the long way."""
    if problem.mixing is not None or problem.terms or problem.logits.dtype != problem.dtype:
        return None
    if not 1e-12 < problem.scale < 1e12:  # squares of logits must fit, too
        return None
    c, _, _, s = problem.parts(theta)
    multiplier = (problem.features @ c) / problem.scale
    largest = multiplier * problem.rows.top
    moderate = np.abs(largest).max() <= LARGEST and (s is None or np.abs(s).max() <= LARGEST_SCORE)
    if not moderate or multiplier.min() < 0 or problem.rows.masked.any():
        return None
    factor = np.ones(problem.n_classes) if s is None else np.exp(s)
    return PlainModel(problem, multiplier, factor.astype(problem.dtype))


class PlainModel:
    """Multipliers m (n,) of the raw logits and factors t (k,), with per-row sums that the blocks of a pass fill in.

    The largest entry of a row is kept apart from the sums over its classes: it would swallow the small ones, and what
    is lost then is multiplied by their distance from it.
    """

    def __init__(self, problem: Problem, multiplier: Vector, factor: FloatArray) -> None:
        n, dtype = problem.n_rows, problem.dtype
        self.problem, self.factor = problem, factor
        self.weights, self.features = problem.weights.astype(dtype), problem.features.astype(dtype)
        same = bool(np.ptp(multiplier) == 0)  # one number for all rows is a faster product than one per row
        self._step = multiplier[0].astype(dtype) if same else multiplier[:, None].astype(dtype)
        self.multiplier = multiplier.astype(dtype).astype(np.float64)  # what is multiplied with, rounding included
        self.top_factor = factor[problem.rows.best]
        self.largest, self.rest, self.first, self.second = (np.empty(n, dtype) for _ in range(4))

    def sums(self, curvature: str | None) -> tuple[float, Vector, Vector | SparseCurvature | None] | None:
        """Log-normaliser, gradient sums, and curvature: exact for features alone, else sparse; None for the other."""
        problem = self.problem
        if curvature == ("exact" if problem.class_scores else "sparse"):
            return None
        columns = self._reduce(lambda rows, buffers: self._column_sums(rows, curvature, buffers), curvature is not None)
        top, rest = problem.rows.top.astype(np.float64), self.rest.astype(np.float64)
        totals = rest + self.largest * self.top_factor
        mean = (self.first - top * rest) / totals
        gradient = np.empty(problem.layout.size)
        gradient[problem.layout.features] = (problem.weights * mean / problem.scale) @ problem.features
        log_norm = float(problem.weights @ (np.log(totals) - self.multiplier * top))
        likely = problem.weights * self.largest * self.top_factor / totals
        if problem.class_scores:
            gradient[problem.layout.scores] = columns.sums[0] + self._at_top(likely)
        if curvature is None:
            return log_norm, gradient, None
        second = (self.second - 2 * top * self.first + top**2 * rest) / totals
        spread = problem.weights * (second - mean**2) / problem.scale**2
        shared = (problem.features * spread[:, None]).T @ problem.features
        if curvature == "exact":
            return log_norm, gradient, shared
        crossed = columns.sums[1:] - [self._at_top(likely * mean / problem.scale * f) for f in problem.features.T]
        return log_norm, gradient, self._sparse(shared, crossed, gradient[problem.layout.scores], totals, columns.near)

    def product(self, direction: Vector) -> Vector:
        """Sums of the Hessian times a direction over all rows."""
        problem = self.problem
        change, _, _, scores = problem.parts(direction)
        slope = (problem.features @ change) / problem.scale
        shift = np.zeros(problem.n_classes) if scores is None else scores
        turned = np.empty(problem.n_rows)
        columns = self._reduce(lambda rows, buffers: self._product_sums(rows, slope, shift, turned, buffers), True)
        product = np.empty(problem.layout.size)
        product[problem.layout.features] = (problem.weights * turned / problem.scale) @ problem.features
        product[problem.layout.scores] = columns.sums[0] if problem.class_scores else 0.0
        return product

    def _at_top(self, values: Vector) -> Vector:
        """Sums (k,) of a number per row over the rows that have their largest entry in each class."""
        return np.bincount(self.problem.rows.best, values, minlength=self.problem.n_classes).astype(np.float64)

    def _reduce(self, function: Callable[[slice, Buffers], "_Columns"], second: bool) -> "_Columns":
        """Sums over blocks of rows, of two thirds as many where scores are multiplied with two buffers."""

        def block(rows: slice) -> _Columns:
            with self.problem.workspace.borrow() as buffers:
                return function(rows, buffers)

        budget = blocks.CACHE_BYTES * 2 // 3 if second and self.problem.class_scores else blocks.CACHE_BYTES
        columns = self.problem.n_classes
        height = blocks.block_rows(columns * self.problem.dtype.itemsize, budget=budget)
        return blocks.reduce_rows(block, self.problem.n_rows, _Columns.merge, block=height, columns=columns)

    def _exponentials(self, rows: slice, buffers: Buffers, *, apart: bool) -> FloatArray:
        """``e_ij`` of a block, the largest of each row set to 0 if `apart`; fills the rows' sums of ``e_ij t_j``."""
        z = self.problem.logits[rows]
        step = self._step if self._step.ndim == 0 else self._step[rows]
        e: FloatArray = buffers("plain", z.shape, z.dtype)
        np.exp(np.multiply(z, step, out=e), out=e)
        if apart:
            flat, places = e.reshape(-1), np.arange(z.shape[0]) * z.shape[1] + self.problem.rows.best[rows]
            self.largest[rows] = flat.take(places)
            flat[places] = 0
        np.matmul(e, self.factor, out=self.rest[rows])
        return e

    def _moved(self, rows: slice, e: FloatArray, buffers: Buffers) -> FloatArray:
        """``e_ij z_ij`` of a block; fills the rows' sums of ``e_ij t_j z_ij``. Without scores it overwrites e."""
        moved: FloatArray = buffers("moved", e.shape, e.dtype) if self.problem.class_scores else e
        np.matmul(np.multiply(e, self.problem.logits[rows], out=moved), self.factor, out=self.first[rows])
        return moved

    def _fill_second(self, rows: slice, moved: FloatArray) -> None:
        """The rows' sums of ``e_ij t_j z_ij^2``; `moved` is overwritten where there are scores."""
        z = self.problem.logits[rows]
        if self.problem.class_scores:
            np.matmul(np.multiply(moved, z, out=moved), self.factor, out=self.second[rows])
        else:
            np.vecdot(moved, z, out=self.second[rows])

    def _column_sums(self, rows: slice, curvature: str | None, buffers: Buffers) -> "_Columns":
        e, z = self._exponentials(rows, buffers, apart=True), self.problem.logits[rows]
        if not self.problem.class_scores:
            if curvature is None:
                np.vecdot(e, z, out=self.first[rows])
            else:
                self._fill_second(rows, self._moved(rows, e, buffers))
            return _Columns(np.zeros((1, 0)))
        totals = self.rest[rows] + self.largest[rows] * self.top_factor[rows]
        share = self.weights[rows] / totals
        if curvature is None:
            own = share @ e
            np.matmul(np.multiply(e, z, out=e), self.factor, out=self.first[rows])
            return _Columns((own * self.factor)[None].astype(np.float64))
        moved, scaled = self._moved(rows, e, buffers), (self.features[rows] * share[:, None]).T
        mean = (self.first[rows] - self.problem.rows.top[rows] * self.rest[rows]) / totals + self.problem.rows.top[rows]
        own = thin_product(np.concatenate([share[None], scaled * mean]), e)
        own[1:] = (thin_product(scaled, moved) - own[1:]) / self.problem.scale
        self._fill_second(rows, moved)
        near = [self._scan(rows, np.multiply(e, self.factor, out=e), totals)] if self.problem.near is None else []
        return _Columns((own * self.factor).astype(np.float64), near)

    def _scan(self, rows: slice, e: FloatArray, totals: FloatArray) -> Near:
        """Entries of a block with a probability above `KEPT`, and the largest of every row."""
        row, column = np.divmod(np.flatnonzero(e > (KEPT * totals)[:, None]), e.shape[1])
        row = np.r_[row, np.arange(e.shape[0])]
        column = np.r_[column, self.problem.rows.best[rows]]
        order = np.argsort(row, kind="stable")
        row, column = row[order] + rows.start, column[order]
        return Near(row, column, self.problem.logits[row, column])

    def _sparse(
        self, shared: Vector, crossed: Vector, expected: Vector, totals: Vector, found: list[Near]
    ) -> SparseCurvature:
        if self.problem.near is None:
            self.problem.near = Near(*(np.concatenate(part) for part in zip(*found, strict=True)))
        near = self.problem.near
        p = np.exp(self.multiplier[near.row] * near.logit) * self.factor[near.column] / totals[near.row]
        kept = Kept(near.row, near.column, (np.sqrt(self.problem.weights[near.row]) * p)[None])
        return SparseCurvature(shared, crossed[:, None], expected[None, None].copy(), [kept])

    def _product_sums(self, rows: slice, slope: Vector, shift: Vector, turned: Vector, buffers: Buffers) -> "_Columns":
        e = self._exponentials(rows, buffers, apart=False)
        scores, totals, a = self.problem.class_scores, self.rest[rows], slope[rows]
        shifted = (shift * self.factor).astype(e.dtype)
        along = e @ shifted if scores else 0.0
        moved = self._moved(rows, e, buffers)
        share, change = self.weights[rows] / totals, (a * self.first[rows] + along) / totals
        both, across = (moved @ shifted, (share * a).astype(e.dtype) @ moved) if scores else (0.0, None)
        self._fill_second(rows, moved)
        turned[rows] = (a * self.second[rows] + both - change * self.first[rows]) / totals
        if across is None:
            return _Columns(np.zeros((1, 0)))
        own = thin_product(np.stack([share, share * change]).astype(e.dtype), e)
        return _Columns(((across + shift * own[0] - own[1]) * self.factor)[None].astype(np.float64))


@dataclass
class _Columns:
    """Sums over rows for every class (m, k), and entries found on the way."""

    sums: Vector
    near: list[Near] = field(default_factory=list)

    def merge(self, other: "_Columns") -> "_Columns":
        self.sums += other.sums
        self.near += other.near
        return self
