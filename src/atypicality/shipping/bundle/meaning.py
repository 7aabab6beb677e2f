"""What must hold between the fields of one object, and between the parts of a head: checked in saving and loading."""

import itertools
import math
from typing import Any

import numpy as np

from atypicality.conformal.scores import ScoreRule
from atypicality.conformal.split import checked_rule
from atypicality.density.logdensity import TiedGaussians
from atypicality.head.held_out import GRID_SIZE
from atypicality.shipping.bundle.kinds import need

__all__ = [
    "check_abstention",
    "check_aware",
    "check_aware_sets",
    "check_conditional_sets",
    "check_gaussian",
    "check_grid",
    "check_groups",
    "check_head",
    "check_neighbors",
    "check_network",
    "check_polynomial",
    "check_positive_temperature",
    "check_quantile_groups",
    "check_scale",
    "check_solution",
    "check_split_sets",
    "check_temperature",
    "check_vector_scaling",
]


def check_gaussian(density: Any) -> None:
    """Shapes follow from the parameters, and ranks from the whitenings."""
    density._check_parameters()
    solution, gaussians = density._solution, density._solution.gaussians
    c, m = solution.means.shape
    shape = {"tied": (m, m), "full": (c, m, m), "diagonal": (c, m)}[density.covariance]
    need(solution.covariance.shape == shape, f"the covariance must have shape {shape}.")
    need(isinstance(gaussians, TiedGaussians) == (density.covariance == "tied"), "the Gaussians must suit covariance=.")
    need(gaussians.centre.dtype.name == density.precision, "the centre must have the type that precision= names.")
    width = density.n_features_in_ if density.n_components is None else density.n_components
    need(m == width, f"the means must have {width} columns.")
    need((solution.components is None) == (density.n_components is None), "there must be components if n_components.")
    if isinstance(gaussians, TiedGaussians):
        need(solution.rank == gaussians.whitening.shape[1], "the rank must be that of the whitening.")
    else:
        _check_class_gaussians(density.covariance, solution, gaussians)


def _check_class_gaussians(covariance: str, solution: Any, gaussians: Any) -> None:
    need((gaussians.components is None) == (solution.components is None), "both must have components, or neither.")
    need(
        gaussians.components is None or gaussians.components.dtype == gaussians.centre.dtype,
        "the components must have the type of the centre.",
    )
    ranks = [whitening.rank for whitening in gaussians.whitenings]
    need(np.array_equal(solution.rank, ranks), "the ranks must be those of the whitenings.")
    for whitening in gaussians.whitenings:
        shape = (solution.means.shape[1],) + ((whitening.rank,) if covariance == "full" else ())
        need(whitening.matrix.shape == shape, f"a whitening of rank {whitening.rank} must have shape {shape}.")


def check_neighbors(density: Any) -> None:
    """Enough training rows in every class, and one metric."""
    density._check_parameters()
    need(density._reference.metric == density.metric, "the metric must be the same everywhere.")
    need((density.classes_ is None) == (not density.per_class), "there must be classes if per_class.")
    need(isinstance(density._members[0], slice) == (not density.per_class), "there must be members if per_class.")
    need(not density.per_class or len(density._members) == density.classes_.size, "every class must have members.")
    sizes = [m.stop if isinstance(m, slice) else m.size for m in density._members]
    need(density._reference.scale > 0, "the scale of the rows must be positive.")
    need(min(sizes) >= density.n_neighbors, "there must be n_neighbors training rows, of every class if per_class.")


def check_solution(solution: Any) -> None:
    """Absent classes are classes."""
    absent = solution.absent
    need(absent.size == 0 or (absent[0] >= 0 and absent[-1] < solution.scores.size), "absent classes must be columns.")


def check_temperature(scaling: Any) -> None:
    """The temperature is the inverse of the one coefficient."""
    coefficients = scaling.solution_.coefficients
    need(coefficients.size == 1 and coefficients[0] > 0, "there must be one positive coefficient.")
    need(scaling.temperature_ == 1 / float(coefficients[0]), "the temperature must be the inverse of the coefficient.")


def check_positive_temperature(scaling: Any) -> None:
    """Logits can be divided by the temperature."""
    need(scaling.temperature_ > 0, "the temperature must be positive.")


def check_vector_scaling(scaling: Any) -> None:
    """One coefficient, and scales of classes where they were asked for."""
    need(scaling.solution_.coefficients.size == 1, "there must be one coefficient.")
    mixing = scaling.solution_.mixing
    need(scaling.scale == (mixing is not None) and (mixing is None or mixing.ndim == 1), "scales must be as asked for.")


def check_quantile_groups(groups: Any) -> None:
    """One group more than edges."""
    need(groups.counts_.size == groups.edges_.size + 1, "there must be one count more than edges.")


def check_groups(scaling: Any) -> None:
    """Quantile groups are numbered from 0."""
    if scaling.quantiles_ is not None:
        groups = scaling.groups_
        need(groups.dtype.kind in "iu", "quantile groups must be numbered.")
        need(groups[0] >= 0 and groups[-1] <= scaling.quantiles_.edges_.size, "groups must be those between the edges.")


def check_polynomial(polynomial: Any) -> None:
    """Distinct covariates with a range."""
    named = (*polynomial.names, *polynomial.constant)
    need(len(set(named)) == len(named), "covariates must be distinct.")
    need((polynomial.low <= polynomial.high).all(), "the ranges of covariates must not be empty.")


def check_aware(aware: Any) -> None:
    """One coefficient per column, a range of multipliers, a term for the densities if they have a coefficient."""
    aware._check_options(aware.n_classes_)
    need(set(aware.polynomial_.names) <= set(aware.covariates), "the polynomial must be one of the covariates.")
    need(len(aware.columns_) == aware.coefficients_.size, "there must be one coefficient per column.")
    low, high = aware.multiplier_range_ if len(aware.multiplier_range_) == 2 else (1.0, 0.0)
    need(low <= high, "the range of the multiplier must be a pair, in order.")
    need(aware.floor_ * aware.n_classes_ < 1, "the floor must leave room for probabilities that sum to 1.")
    used = aware.terms_.get("class_density") == "used"
    need(used == (aware.solution_.density_coefficients.size > 0), "class densities are used if they have coefficients.")
    need(
        aware.density_coefficient_ == float(aware.solution_.density_coefficients.sum()),
        "the coefficient of the class densities must be the solution's.",
    )


def check_network(network: Any) -> None:
    """Each layer takes what the one before gives; the code is a mean and a spread; one temperature comes out."""
    for layers in (network.encoder, network.head):
        need(layers, "there must be layers.")
        for layer in layers:
            need(len(layer) == 2 and [part.ndim for part in layer] == [2, 1], "a layer is a matrix and a vector.")
            need(layer[0].shape[0] == layer[1].size, "a layer's matrix and vector must agree.")
        for first, second in itertools.pairwise(layers):
            need(second[0].shape[1] == first[1].size, "a layer must take what the one before gives.")
    need(network.encoder[0][0].shape[1] == network.mean.size, "the encoder must take embeddings.")
    need(network.encoder[-1][1].size == 2 * network.head[0][0].shape[1], "the code must be a mean and a spread.")
    need(network.head[-1][1].size == 1, "one temperature must come out.")


def check_grid(grid: Any) -> None:
    """The shape is that of the edges."""
    shape = grid.atypicality_groups_.n_groups_, grid.confidence_groups_.n_groups_
    need(len(grid.n_groups) == 2, "n_groups must be a pair.")
    need(tuple(grid.shape_) == shape == grid.counts_.shape, f"the grid must have shape {shape}, that of its edges.")


def check_split_sets(sets: Any) -> None:
    """A score with all of its parameters, and an infinite threshold exactly where there were too few rows."""
    _check_score(sets)
    need(sets.too_few_ == math.isinf(sets.threshold_), "the threshold must be infinite if there were too few rows.")


def check_aware_sets(sets: Any) -> None:
    """Every cell has a region, and every region a cell, rows and a threshold."""
    _check_score(sets)
    n_regions = sets.thresholds_.size
    need(sets.regions_.shape == sets.grid_.shape_, "there must be a region for every cell of the grid.")
    need(len(sets.n_groups) == 2, "n_groups must be a pair.")
    need(np.array_equal(np.unique(sets.regions_), np.arange(n_regions)), "regions must be numbered from 0, all used.")
    need((sets.thresholds_ > -math.inf).all(), "thresholds must not be minus infinity.")
    need((sets.too_few_ == np.isinf(sets.thresholds_)).all(), "thresholds must be infinite where rows were too few.")
    need(sets.counts_.sum() == sets.n_calibration_, "the regions' rows must sum to n_calibration_.")


def check_conditional_sets(sets: Any) -> None:
    """A threshold for every cell between the edges, and an expected coverage for every soft group."""
    shape = sets.atypicality_edges_.size + 1, sets.confidence_edges_.size + 1
    need(
        sets.thresholds_.shape == shape, f"there must be thresholds of shape {shape}, for the cells between the edges."
    )
    need(len(sets.knots_) == 2, "knots must be a pair.")
    need(all(np.less_equal(sets.knots_, shape)), "there must be no more knots than cells.")
    need(sets.expected_coverage_.size == sets.knots_[0] * sets.knots_[1], "every soft group must expect a coverage.")
    need(np.isinf(sets.thresholds_[sets.too_few_]).all(), "thresholds must be infinite where rows were too few.")
    need(sets.bandwidth_ > 0, "the bandwidth must be positive.")


def _check_score(sets: Any) -> None:
    checked_rule(sets)
    rule = ScoreRule(sets.score, sets.nonempty, sets.k_reg_, sets.penalty_)
    need(not rule.needs_tuning, f"score {sets.score!r} must have its parameters.")


def check_scale(scale: Any) -> None:
    """Levels rise to 1, and there are as many rows as values or more."""
    need(1 <= scale.values.size <= GRID_SIZE, f"there must be 1 to {GRID_SIZE} values.")
    need(scale.levels[-1] == 1 and scale.levels[0] > 0, "levels must rise from above 0 to 1.")
    need(scale.n_rows >= scale.values.size, "there must be at least as many rows as values.")


def check_abstention(rule: Any) -> None:
    """Errors are among what is kept."""
    need(1 <= rule.kept.size <= GRID_SIZE, f"there must be 1 to {GRID_SIZE} thresholds.")
    need((rule.errors <= rule.kept).all() and (np.diff(rule.errors) >= 0).all(), "errors must be among the rows kept.")


def check_head(head: Any) -> None:
    """The parts have what they need from each other."""
    names, rare = head.class_names_, head.quantiles_ is not None
    need(names is None or names.dtype.kind == "U", "class names must be text.")
    need((head.quadrants_ is None) == (head.quantiles_ is None), "quadrants and quantiles come together.")
    need(rare or head.density_ is None, "a head with a density must have quantiles.")
    need(head.density is not None or not rare, "density=None must go without quantiles.")
    need(rare or not _needs_atypicality(head), "the head must have atypicality, which a part of it needs.")
    before, after = head.metrics_.get("before", {}), head.metrics_.get("after", {})
    need(set(head.metrics_) == {"before", "after"} and set(before) == set(after), "metrics must be before and after.")
    has_densities = hasattr(head.density_, "class_log_density")
    terms = getattr(head.recalibration_, "terms_", {})
    need(has_densities or terms.get("class_density") != "used", "the density must have what recalibration needs.")
    if has_densities:
        head._sources()  # the head's own words where classes do not fit


def _needs_atypicality(head: Any) -> bool:
    recalibration, sets = head.recalibration_, head.prediction_sets_
    return (
        hasattr(sets, "regions_")
        or hasattr(sets, "soft_groups_")
        or getattr(recalibration, "quantiles_", None) is not None
        or "atypicality" in getattr(getattr(recalibration, "polynomial_", None), "names", ())
    )
