"""Exact cutoffs of conditional conformal prediction: small linear programs over soft groups, solved by vertex steps.

For soft groups phi, constant on cells, and a test row in cell k whose score is +infinity, the coefficients are

    b_k = argmin_b  sum_i rho_tau(S_i - phi_i . b) - tau phi_k . b

with the pinball loss rho (Gibbs, Cherian and Candes 2023), and the cutoff of the cell is phi_k . b_k. The objective is
convex and piecewise linear; its vertices pass through as many rows as there are groups. A step leaves a vertex along
its steepest edge and goes on to the weighted median of the rows it meets. The optimum for one cell is near that of the
next, so a few steps each are enough.
"""

import copy
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

__all__ = ["cutoff_steps", "cutoffs"]

Doubles = NDArray[np.float64]
Integers = NDArray[np.intp]

EPS = float(np.finfo(np.float64).eps)
RANK_TOLERANCE = 1e-10
FLAT = 1e-13
"""A slope below this share of the weights it is a sum of is rounding."""
NUDGE = 1e-9
"""The test row pulls this much harder than tau, so that of several optima the one with the largest cutoff is found."""
FEW_CROSSINGS = 8
"""Rows of each cell that a step may meet, where the nearest of all is not enough."""
MAX_STEPS = 100_000
SMALLEST_SLOPE = 1e-300
"""Of an edge that is just about to fall: the first row met ends it."""
DEGENERATE = f"no optimum after {MAX_STEPS} steps: the scores are degenerate. Give distinct scores."


def cutoffs(groups: Doubles, cells: Integers, scores: Doubles, tau: float, *, width: int = 1) -> Doubles:
    """The cutoff of every cell, rounded outward; +inf where the program is unbounded: there are too few rows.

    `groups` (n_cells, d) is phi of each cell, `cells` (n,) the cell of each row. Scores (n,) are finite, and distinct
    or nearly so: equal rows of one cell are merged, other ties may take more steps. Cells that are rows of a grid, so
    many in each (`width`), are gone through there and back: the next one is a neighbour then.

    With one group the cutoff is an order statistic: of nine scores the eighth, as 0.75 (9 + 1) rounds up to 8.

    >>> cutoffs(np.ones((2, 1)), np.zeros(9, int), np.arange(9.0), 0.75).round(9)
    array([7., 7.])
    >>> cutoffs(np.ones((1, 1)), np.zeros(2, int), np.arange(2.0), 0.75)
    array([inf])
    """
    found = np.full(len(groups), math.inf)
    if not cells.size:
        return found
    columns, spanned = _independent(groups, np.unique(cells))
    vertex = _Vertex(np.ascontiguousarray(groups[:, columns]), cells, scores, tau)
    row, place = np.divmod(spanned, width)
    for cell in spanned[np.lexsort((np.where(row % 2, -place, place), row))]:
        found[cell] = vertex.cutoff(cell)
    return found


def cutoff_steps(groups: Doubles, cells: Integers, scores: Doubles, tau: float) -> tuple[Doubles, Doubles]:
    """The cutoff of every cell as a step function of a uniform draw, for randomised sets with exact coverage.

    With the draw u the test row pulls by tau - 1 + u in place of tau: the cutoff is the score at which its dual
    variable has that value (Gibbs, Cherian and Candes 2023). It grows with u, to that of `cutoffs`,
    whose arguments these are. Levels (n_steps, n_cells) are the draws at which the cutoff rises, in increasing order, 1
    where a cell has fewer steps than another; cutoffs (n_steps + 1, n_cells) are those before the first and after each.

    Of nine scores the seventh or the eighth: 0.75 of ten rows is 7.5.

    >>> levels, found = cutoff_steps(np.ones((1, 1)), np.zeros(9, int), np.arange(9.0), 0.75)
    >>> levels.round(9).tolist(), found.tolist()
    ([[0.5]], [[6.0], [7.0]])
    """
    paths: list[tuple[list[float], list[float]]] = [([], [math.inf])] * len(groups)
    if cells.size:
        columns, spanned = _independent(groups, np.unique(cells))
        vertex = _Vertex(np.ascontiguousarray(groups[:, columns]), cells, scores, tau)
        vertex._optimum(0.0 * vertex.groups[0])  # without the test row, where every program is bounded
        for cell in spanned:
            paths[cell] = vertex.path(cell)
    longest = max(len(levels) for levels, _ in paths)
    levels = np.array([levels + [1.0] * (longest - len(levels)) for levels, _ in paths]).reshape(len(paths), longest)
    found = np.array([values + values[-1:] * (longest + 1 - len(values)) for _, values in paths])
    return np.ascontiguousarray(levels.T), np.ascontiguousarray(found.T)


def _independent(groups: Doubles, present: Integers) -> tuple[Integers, Integers]:
    """Columns that are independent on the cells that have rows, and the cells where the others depend on them too.

    Elsewhere phi is not in the span of the rows' phi, and the program is unbounded.
    """
    triangle, order = qr(groups[present], mode="r", pivoting=True)
    diagonal = np.abs(np.diag(triangle))
    rank = int((diagonal > RANK_TOLERANCE * diagonal[0]).sum())
    columns: Integers = np.sort(order[:rank])
    others = order[rank:]
    relation = np.linalg.lstsq(groups[np.ix_(present, columns)], groups[np.ix_(present, others)], rcond=None)[0]
    gap = np.abs(groups[:, columns] @ relation - groups[:, others])
    spanned: Integers = np.flatnonzero((gap < math.sqrt(RANK_TOLERANCE)).all(axis=1))
    return columns, spanned


class _Vertex:
    """A vertex of the objective: the rows that it passes through, and on which side of it the others are.

    Rows of a cell have one phi, so that a vertex has one value there and at most one of them in its basis: sorted by
    their scores, the first of them, up to `split`, are below, then comes that of the basis, then those above. What is
    met on the way to another vertex are the next ones of each cell.
    """

    def __init__(self, groups: Doubles, cells: Integers, scores: Doubles, tau: float) -> None:
        order = np.lexsort((scores, cells))
        cells, scores = cells[order], scores[order]
        first = np.flatnonzero(np.r_[True, (np.diff(cells) != 0) | (np.diff(scores) != 0)])
        self.groups, self.tau = groups, tau
        self.cells, self.scores = cells[first], scores[first]
        self.weights = np.diff(np.r_[first, cells.size]).astype(np.float64)
        self.total = np.r_[0.0, np.cumsum(self.weights)]  # whole numbers: sums are exact
        ends = np.searchsorted(self.cells, np.arange(len(groups)), side="right")
        self.first, self.end = np.r_[0, ends[:-1]], ends
        self.per_cell = self.total[self.end] - self.total[self.first]
        self.basis = self._start()
        self._move_to_basis()
        below = np.bincount(self.cells, self.scores < self.values[self.cells], len(groups))
        self.split = self.first + below.astype(np.intp)
        self.split[self.cells[self.basis]] = self.basis
        self._weigh()

    def _start(self) -> Integers:
        """One row from each of d cells whose phi are independent, near the tau-quantile of its cell."""
        present = np.unique(self.cells)
        order = qr(self.groups[present].T, mode="r", pivoting=True)[1][: self.groups.shape[1]]
        starts = np.searchsorted(self.cells, present[order])
        sizes = np.searchsorted(self.cells, present[order], side="right") - starts
        return np.asarray(starts + (self.tau * sizes).astype(np.intp))

    def _move_to_basis(self) -> None:
        """The coefficients that pass through the basis, refined to the precision of each row's own terms."""
        rows, target = self.groups[self.cells[self.basis]], self.scores[self.basis]
        self.inverse = np.linalg.inv(rows)
        self.coefficients = self.inverse @ target
        for _ in range(2):
            self.coefficients += self.inverse @ (target - rows @ self.coefficients)
        self.values = self.groups @ self.coefficients
        self.values[self.cells[self.basis]] = target

    def _weigh(self) -> None:
        """What slopes at this vertex are made of, whatever pulls: most cells have the optimum of the one before."""
        own = self.weights[self.basis]
        counts = self.tau * self.per_cell - (self.total[self.split] - self.total[self.first])
        counts[self.cells[self.basis]] -= self.tau * own
        self.balance, self.above, self.beneath = counts @ self.groups, self.tau * own, (1 - self.tau) * own
        self.flat = FLAT * self.per_cell @ np.abs(self.groups @ self.inverse)
        self.lengths = np.sqrt(np.square(self.inverse).sum(axis=0))

    def cutoff(self, cell: int) -> float:
        """The cutoff of a cell: steps from where the last one ended."""
        bounded = self._optimum(self.tau * (1 + NUDGE) * self.groups[cell])
        return self._rounded_up(self.groups[cell]) if bounded else math.inf

    def path(self, cell: int) -> tuple[list[float], list[float]]:
        """Draws at which the cutoff of a cell rises, and the cutoffs before and after them, from the optimum at 0."""
        group = self.groups[cell]
        middle = float(group @ self.coefficients)
        down, up = (
            list(copy.copy(self)._way(group, sign, end)) for sign, end in ((-1.0, 1 - self.tau), (1.0, self.tau))
        )
        levels = [1 - self.tau - pull for pull, _ in reversed(down)] + [1 - self.tau + pull for pull, _ in up]
        return levels, [value for _, value in reversed(down)] + [middle] + [value for _, value in up]

    def _way(self, group: Doubles, sign: float, end: float) -> Iterator[tuple[float, float]]:
        """Pulls up to `end` at which the optimum moves, and the cutoff beyond each, from the optimum without a pull."""
        pull, self.split, self.basis = 0.0, self.split.copy(), self.basis.copy()
        for _ in range(MAX_STEPS):
            slopes, pace = self._slopes(sign * pull * group), sign * (group @ self.inverse)
            paces = np.array((pace, -pace))
            falling = paces > RANK_TOLERANCE * np.abs(pace).max()
            room = np.divide(np.maximum(slopes, 0.0), paces, out=np.full(paces.shape, math.inf), where=falling)
            side, place = divmod(int(room.argmin()), room.shape[1])
            pull += float(room[side, place])
            if pull >= end:
                return
            if not self._step(place, 1.0 - 2.0 * side, -SMALLEST_SLOPE):
                yield pull, sign * math.inf
                return
            yield pull, float(group @ self.coefficients)
        raise RuntimeError(DEGENERATE)

    def _optimum(self, pull: Doubles) -> bool:
        """Steps to the optimum under a pull (d,) of the test row; False where there is none."""
        for _ in range(MAX_STEPS):
            edge = self._steepest(pull)
            if edge is None:
                return True
            if not self._step(*edge):
                return False
        raise RuntimeError(DEGENERATE)

    def _slopes(self, pull: Doubles) -> Doubles:
        """Slopes (2, d) of the edges that leave the vertex.

        On the first side, 1, the row that leaves the basis comes to be below the vertex, on the other, -1, above.
        """
        gradient = -(self.balance + pull) @ self.inverse
        return np.array((gradient + self.beneath, self.above - gradient))

    def _steepest(self, pull: Doubles) -> tuple[int, float, float] | None:
        """Place in the basis, side and slope of the edge that falls fastest; None at the optimum."""
        slopes = self._slopes(pull)
        falls = np.where(slopes < -self.flat, slopes / self.lengths, 0.0)
        side, place = divmod(int(falls.argmin()), falls.shape[1])
        slope = float(slopes[side, place])
        return None if slope >= -self.flat[place] else (place, 1.0 - 2.0 * side, slope)

    def _step(self, place: int, side: float, slope: float) -> bool:
        """Along an edge to the row at which the objective stops falling; False where it falls for ever."""
        pace = side * (self.groups @ self.inverse[:, place])
        pace[np.abs(pace) < RANK_TOLERANCE * np.abs(pace).max()] = 0.0
        held = self.cells[self.basis]
        pace[held] = 0.0
        pace[held[place]] = side
        self.split[held[place]] += side > 0  # the row that leaves the basis is below from now on, or above
        crossed = self._crossed(pace, -slope)
        if crossed is None:
            self.split[held[place]] -= side > 0
            return False
        passed, entered = self.cells[crossed[:-1]], crossed[-1]
        np.add.at(self.split, passed, np.where(pace[passed] > 0, 1, -1))
        self.split[self.cells[entered]] = self.basis[place] = entered
        self._move_to_basis()
        self._weigh()
        return True

    def _crossed(self, pace: Doubles, slope: float) -> Integers | None:
        """Rows met, in order of time, up to the one at which their gains reach the slope; None: never.

        Of each cell the next few are looked at, and more where one further away could come before the last.
        """
        moving = np.flatnonzero(pace)
        pace, split, value = pace[moving], self.split[moving], self.values[moving]
        up = pace > 0
        left = np.where(up, self.end[moving] - split, split - self.first[moving])
        there, start, gain = left > 0, split - ~up, np.abs(pace)
        next_row = np.where(there, start, 0)
        times = np.where(there, np.maximum((self.scores[next_row] - value) / pace, 0.0), math.inf)
        nearest = int(times.argmin())
        if there[nearest] and self.weights[next_row[nearest]] * gain[nearest] >= slope:
            return next_row[nearest : nearest + 1]
        onward, count, most = np.where(up, 1, -1), FEW_CROSSINGS, int(left.max())
        while True:
            steps = np.arange(count)[:, None]  # the next row of every cell, the one behind it, and so on
            there = steps < left
            near = np.where(there, start + steps * onward, 0)
            times = np.where(there, np.maximum((self.scores[near] - value) / pace, 0.0), math.inf)
            order = np.argsort(times, axis=None, kind="stable")[: np.count_nonzero(there)]
            rows, gains = near.ravel()[order], (self.weights[near] * gain).ravel()[order]
            reached, whole = int(np.searchsorted(np.cumsum(gains), slope)), count >= most
            if reached < rows.size and (whole or (times[-1, left > count] >= times.ravel()[order[reached]]).all()):
                return np.asarray(rows[: reached + 1])
            if whole:  # the same sum in another order may fall short by a rounding
                return np.asarray(rows) if gains.sum() >= slope else None
            count = min(8 * count, most)

    def _rounded_up(self, groups: Doubles) -> float:
        """The cutoff plus a bound of its rounding error."""
        shares = np.abs(groups @ self.inverse) @ np.abs(self.scores[self.basis])
        return float(groups @ self.coefficients + 8 * EPS * self.basis.size * shares)
