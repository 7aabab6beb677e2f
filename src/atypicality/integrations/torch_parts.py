"""The parts of a fitted head as PyTorch modules: float64 buffers, tensor arithmetic, any device.

Each repeats the formula of the Python part it stands for; nothing here learns.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atypicality.conformal import SplitConformal
from atypicality.density import NeighborAtypicality
from atypicality.density.logdensity import ClassGaussians, TiedGaussians
from atypicality.device.checks import to_host
from atypicality.recalibration import (
    AtypicalityAwareRecalibration,
    EnsembleTemperatureScaling,
    GroupTemperatureScaling,
)

__all__ = ["Density", "Neighbours", "Sets", "keep", "make_recalibration"]

TINY = float(np.finfo(np.float64).tiny)
DISTANCES = 2**24
"""Distances that exist at one time, whatever the batch: 128 MB."""
Tensor = Any


def keep(module: Any, **arrays: Any) -> None:
    """Store arrays as buffers; None stays None."""
    for name, array in arrays.items():
        module.register_buffer(name, None if array is None else torch.from_numpy(np.array(array)))


def _double(array: Any) -> NDArray[np.float64]:
    return np.asarray(array, np.float64)


class Density(nn.Module):
    """Atypicality (n,) of embeddings (n, d), and class log-densities (n, k) in the order of the logits' columns."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        density = head.density_
        gaussians = density._solved().gaussians
        self.gaussians = _Tied(gaussians) if isinstance(gaussians, TiedGaussians) else _PerClass(gaussians)
        log_prior = np.log(density.counts_ / density.counts_.sum()) if density.marginal else None
        keep(self, log_prior=log_prior, sources=_sources(head))

    def forward(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Score float64 rows."""
        densities = self.gaussians(embeddings)
        if self.log_prior is None:
            atypicality = -densities.amax(dim=1)
        else:
            atypicality = -torch.logsumexp(densities + self.log_prior, dim=1)
        extended = torch.cat([densities, densities.amin(dim=1, keepdim=True)], dim=1)
        return atypicality, extended[:, self.sources]


def _sources(head: Any) -> NDArray[np.intp]:
    """For each column of the logits the density's column, or one beyond its last where the density has none.

    The head aligns two rows, one rising and one falling: only where it puts the minimum of both is a class missing.
    """
    m = head.density_.classes_.size
    rising, falling = head._align(np.stack([np.arange(m, dtype=float), -np.arange(m, dtype=float)]))
    found: NDArray[np.intp] = np.where(rising == -falling, rising, m).astype(np.intp)
    return found


class _Tied(nn.Module):
    """As `TiedGaussians`: one product reaches all means, and the best class is taken again from its distance."""

    def __init__(self, gaussians: TiedGaussians) -> None:
        super().__init__()
        self.log_peak = gaussians.log_peak
        centre, whitening = _double(gaussians.centre), _double(gaussians.whitening)
        keep(self, centre=centre, whitening=whitening, means=gaussians.means)

    def forward(self, rows: Tensor) -> Tensor:
        z = (rows - self.centre) @ self.whitening
        scores = z @ self.means.T - 0.5 * self.means.square().sum(dim=1)
        best = scores.argmax(dim=1, keepdim=True)
        half = 0.5 * (z - self.means[best[:, 0]]).square().sum(dim=1, keepdim=True)
        densities = scores + (self.log_peak - 0.5 * z.square().sum(dim=1, keepdim=True))
        return densities.scatter(1, best, self.log_peak - half)


class _PerClass(nn.Module):
    """As `ClassGaussians`: every class whitens the rows in its own way."""

    def __init__(self, gaussians: ClassGaussians) -> None:
        super().__init__()
        matrices = [_double(whitening.matrix) for whitening in gaussians.whitenings]
        self.diagonal = matrices[0].ndim == 1
        if not self.diagonal:  # columns of zeros add nothing to a squared length
            rank = max(matrix.shape[1] for matrix in matrices)
            matrices = [np.pad(matrix, ((0, 0), (0, rank - matrix.shape[1]))) for matrix in matrices]
        components = None if gaussians.components is None else _double(gaussians.components)
        peaks = np.array([whitening.log_peak for whitening in gaussians.whitenings])
        centre = _double(gaussians.centre)
        keep(
            self, centre=centre, components=components, means=gaussians.means, peaks=peaks, whitening=np.stack(matrices)
        )

    def forward(self, rows: Tensor) -> Tensor:
        if self.components is not None:
            rows = (rows - self.centre) @ self.components.T
        halves = []
        for mean, matrix in zip(self.means, self.whitening, strict=True):
            white = (rows - mean) * matrix if self.diagonal else (rows - mean) @ matrix
            halves.append(0.5 * white.square().sum(dim=1))
        return self.peaks - torch.stack(halves, dim=1)


class Neighbours(nn.Module):
    """As `NeighborAtypicality`: distances to the nearest training rows, which travel in their own type."""

    def __init__(self, density: NeighborAtypicality) -> None:
        super().__init__()
        self.k, self.reduction, self.metric = density.n_neighbors, density.reduction, density.metric
        order = [np.arange(len(density.embeddings_))[members] for members in density._members]
        self.sizes = [len(members) for members in order]
        keep(self, rows=to_host(density.embeddings_)[np.concatenate(order)])

    def forward(self, embeddings: Tensor) -> tuple[Tensor, None]:
        """Atypicality (n,) of float64 rows; NaN for rows of zeros where only their direction counts."""
        queries = self._exact(embeddings)
        found = [self._reduced(queries, rows) for rows in self.rows.split(self.sizes)]
        return torch.stack(found).amin(dim=0), None

    def _reduced(self, queries: Tensor, rows: Tensor) -> Tensor:
        nearest = queries.new_full((len(queries), self.k), torch.inf)
        for tile in rows.split(max(self.k, DISTANCES // max(1, len(queries)))):
            # differences first: the expanded square loses digits
            distances = torch.cdist(queries, self._exact(tile.double()), compute_mode="donot_use_mm_for_euclid_dist")
            nearest = torch.cat([nearest, distances], dim=1).topk(self.k, dim=1, largest=False).values
        nearest = nearest if self.metric == "euclidean" else 0.5 * nearest.square()
        return nearest.mean(dim=1) if self.reduction == "mean" else nearest[:, -1 if self.reduction == "kth" else 0]

    def _exact(self, rows: Tensor) -> Tensor:
        """Rows as they are, or of length 1 for the cosine."""
        if self.metric == "euclidean":
            return rows
        rows = rows / rows.abs().amax(dim=1, keepdim=True)  # first, so that no square overflows or vanishes
        return rows / rows.square().sum(dim=1, keepdim=True).sqrt()


# better probabilities: forward(z, hidden, atypicality, densities, dtype) -> probabilities (n, k), rows that have some


def make_recalibration(recalibration: Any) -> Any:
    """The module of a fitted recalibrator, one of those that `refusals` lets pass."""
    if isinstance(recalibration, AtypicalityAwareRecalibration):
        return _Aware(recalibration)
    if isinstance(recalibration, EnsembleTemperatureScaling):
        return _Ensemble(recalibration)
    return _Grouped(recalibration) if isinstance(recalibration, GroupTemperatureScaling) else _Scaled(recalibration)


def _below_top(z: Tensor, hidden: Tensor) -> Tensor:
    """Rows less their maximum; hidden entries become 0."""
    return torch.where(hidden, 0.0, z - z.amax(dim=1, keepdim=True))


def _softmax(scores: Tensor, hidden: Tensor, dtype: Any) -> Tensor:
    return torch.softmax(torch.where(hidden, -torch.inf, scores), dim=1).to(dtype)


class _Scaled(nn.Module):
    """One multiplier for all logits, or one for each class, and class scores."""

    def __init__(self, recalibration: Any) -> None:
        super().__init__()
        solution = recalibration.solution_
        self.multiplier = float(solution.coefficients[0])
        keep(self, scores=solution.scores, mixing=solution.mixing)

    def forward(self, z: Tensor, hidden: Tensor, _rarity: Any, _densities: Any, dtype: Any) -> tuple[Tensor, None]:
        u = _below_top(z, hidden)
        predicted = u * self.multiplier + self.scores
        if self.mixing is not None:
            mean = u.sum(dim=1, keepdim=True) / (~hidden).sum(dim=1, keepdim=True)
            predicted = predicted + (u - mean) * self.mixing
        return _softmax(predicted, hidden, dtype), None


class _Ensemble(nn.Module):
    """A mixture of three temperatures, added in the type of the logits as in Python."""

    def __init__(self, recalibration: EnsembleTemperatureScaling) -> None:
        super().__init__()
        self.multipliers = (float(recalibration.multiplier()), 1.0, 0.0)
        self.shares = tuple(map(float, recalibration.weights_))

    def forward(self, z: Tensor, hidden: Tensor, _rarity: Any, _densities: Any, dtype: Any) -> tuple[Tensor, None]:
        u = _below_top(z, hidden)
        parts = [_softmax(u * multiplier, hidden, dtype) for multiplier in self.multipliers]
        first, second, third = (part * share for part, share in zip(parts, self.shares, strict=True))
        return first + second + third, None


class _Grouped(nn.Module):
    """A multiplier by quantile group; a group without calibration rows has none, and its rows no probabilities."""

    def __init__(self, recalibration: GroupTemperatureScaling) -> None:
        super().__init__()
        assert recalibration.quantiles_ is not None, "refused before"
        edges = recalibration.quantiles_.edges_
        seen, multipliers = np.zeros(edges.size + 1, bool), np.zeros(edges.size + 1)
        seen[recalibration.groups_], multipliers[recalibration.groups_] = True, recalibration.multiplier()
        keep(self, edges=edges, seen=seen, multipliers=multipliers)

    def forward(self, z: Tensor, hidden: Tensor, rarity: Tensor, _densities: Any, dtype: Any) -> tuple[Tensor, Tensor]:
        group = torch.searchsorted(self.edges, rarity)
        predicted = _below_top(z, hidden) * self.multipliers[group][:, None]
        return _softmax(predicted, hidden, dtype), self.seen[group]


class _Aware(nn.Module):
    """As `AtypicalityAwareRecalibration`, term by term."""

    def __init__(self, recalibration: AtypicalityAwareRecalibration) -> None:
        super().__init__()
        polynomial = recalibration.polynomial_
        self.names, self.powers = polynomial.names, polynomial.powers
        self.clip = recalibration.extrapolation == "clip"
        self.range = recalibration.multiplier_range_
        self.spreads = recalibration.largest_spread_, recalibration.largest_density_spread_
        self.floor = recalibration.floor_
        used = recalibration.terms_["class_density"] == "used"
        self.density_coefficient = recalibration.density_coefficient_ if used else None
        scores, mixing = recalibration._scores(), recalibration.class_mixing_
        keep(self, scores=scores, mixing=mixing, coefficients=recalibration.coefficients_)
        keep(self, low=polynomial.low, high=polynomial.high, center=polynomial.center, scale=polynomial.scale)

    def forward(
        self, z: Tensor, hidden: Tensor, rarity: Tensor, densities: Tensor, dtype: Any
    ) -> tuple[Tensor, Tensor]:
        u = self._within(_below_top(z, hidden), self.spreads[0])
        predicted = u * self._multiplier(z, rarity)[:, None] + self.scores
        if self.mixing is not None:
            middle = 0.5 * u.sum(dim=1, keepdim=True) / (~hidden).sum(dim=1, keepdim=True)
            x = (u - middle).masked_fill(hidden, 0.0)
            predicted = predicted + (x * self.mixing if self.mixing.ndim == 1 else x @ self.mixing.T)
        if self.density_coefficient is not None:
            below = self._within(densities - densities.amax(dim=1, keepdim=True), self.spreads[1])
            predicted = predicted + self.density_coefficient * below
        hidden = hidden | torch.isneginf(self.scores)  # a class whose prior is 0; a row may have no other
        return self._lifted(_softmax(predicted, hidden, predicted.dtype), hidden).to(dtype), ~hidden.all(dim=1)

    def _lifted(self, probs: Tensor, hidden: Tensor) -> Tensor:
        """``(1 - m d) p + d``, d the floor and m the classes of a row that are not hidden."""
        if not self.floor:
            return probs
        scaled = probs * (1 - (~hidden).sum(dim=1, keepdim=True, dtype=probs.dtype) * self.floor)
        return scaled + torch.full_like(probs, self.floor).masked_fill(hidden, 0.0)

    def _within(self, below: Tensor, largest: float) -> Tensor:
        """Rows with maximum 0, shrunk where they spread wider than the calibration rows did."""
        if not self.clip:
            return below
        floor = max(largest, TINY)
        return below * (floor / (-below.amin(dim=1, keepdim=True)).clamp(min=floor))

    def _multiplier(self, z: Tensor, rarity: Tensor) -> Tensor:
        """The quadratic of the covariates (n,), everything held to its calibration range where that is asked."""
        total = self.coefficients[0].expand(z.shape[0])
        if not self.names:
            return total
        x = torch.stack([_margins(z) if name == "margin" else rarity for name in self.names], dim=1)
        x = torch.minimum(torch.maximum(x, self.low), self.high) if self.clip else x
        x = (x - self.center) / self.scale
        for power, coefficient in zip(self.powers[1:], self.coefficients[1:], strict=True):
            total = total + coefficient * x[:, list(power)].prod(dim=1)
        return total.clamp(*self.range) if self.clip else total


def _margins(z: Tensor) -> Tensor:
    """Largest less second largest logit (n,); 0 where a single class is not masked."""
    first, second = z.topk(2, dim=1).values.unbind(dim=1)
    return torch.where(torch.isneginf(second), 0.0, first - second)


class Sets(nn.Module):
    """Prediction sets, bool (n, k), of probabilities, their confidence and atypicality."""

    def __init__(self, sets: Any) -> None:
        super().__init__()
        self.score, self.nonempty, self.penalty, self.k_reg = sets.score, sets.nonempty, sets.penalty_, sets.k_reg_
        if isinstance(sets, SplitConformal):
            keep(self, rarity_edges=None, confidence_edges=np.empty(0), thresholds=np.array([sets.threshold_]))
        else:
            rarity, confidence = sets.grid_.atypicality_groups_.edges_, sets.grid_.confidence_groups_.edges_
            cells = sets.thresholds_[sets.regions_.ravel()]
            keep(self, rarity_edges=rarity, confidence_edges=confidence, thresholds=cells)

    def forward(self, probs: Tensor, confidence: Tensor, rarity: Tensor) -> Tensor:
        """Sets of rows with confidence (n,) and, where the sets are cut by it, atypicality (n,)."""
        threshold = self.thresholds[self._cells(confidence, rarity)][:, None]
        if self.score == "lac":
            accepted = 1.0 - probs.double() <= threshold
        else:  # as in `atypicality.conformal.scores`: everything above the first rejected probability
            ordered = probs.sort(dim=1, descending=True).values
            within = self._scores(ordered) <= threshold
            rejected = torch.where(within, torch.full_like(ordered, -1), ordered).amax(dim=1, keepdim=True)
            accepted = probs > rejected
        return accepted if self.nonempty is None else accepted | (probs == probs.amax(dim=1, keepdim=True))

    def _cells(self, confidence: Tensor, rarity: Tensor) -> Tensor:
        column = torch.searchsorted(self.confidence_edges, confidence)
        if self.rarity_edges is None:
            return column
        return torch.searchsorted(self.rarity_edges, rarity) * (self.confidence_edges.numel() + 1) + column

    def _scores(self, ordered: Tensor) -> Tensor:
        """Scores along descending rows, each place taken as the last of its ties."""
        rank = torch.arange(1, ordered.shape[1] + 1, device=ordered.device, dtype=torch.float64)
        if self.score == "saps":
            return ordered[:, :1].double() + (rank - 1) * self.penalty
        scores = ((ordered.double() + 1.0) - 1.0).cumsum(dim=1)  # multiples of 2^-52 add without error
        return scores if self.score == "aps" else scores + self.penalty * (rank - self.k_reg).clamp(min=0)
