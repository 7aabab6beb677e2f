"""The parts of a fitted head as pieces of an ONNX graph; each says beforehand why it cannot be one.

Every piece repeats the arithmetic of the Python part it stands for, in the same order, so that results differ in the
last bits of float64 and probabilities, once rounded to float32, hardly ever.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.conformal import AtypicalityAwareConformal, SplitConformal
from atypicality.density import GaussianAtypicality
from atypicality.density.columns import class_positions
from atypicality.density.logdensity import ClassGaussians, TiedGaussians
from atypicality.export_graph import Graph, Value, column_of, cut, row_any, softmax
from atypicality.recalibration import (
    AtypicalityAwareRecalibration,
    EnsembleTemperatureScaling,
    GroupTemperatureScaling,
    TemperatureScaling,
    VectorScaling,
)

__all__ = ["Rarity", "Recalibrated", "add_density", "add_recalibration", "add_sets", "refusals"]

Vector = NDArray[np.float64]
TINY = float(np.finfo(np.float64).tiny)
RECALIBRATIONS = (
    AtypicalityAwareRecalibration,
    EnsembleTemperatureScaling,
    GroupTemperatureScaling,
    TemperatureScaling,
    VectorScaling,
)


class Rarity:
    """What the density says of each row: atypicality (n, 1), and class log-densities (n, k) where there are any."""

    def __init__(self, atypicality: Value | None, densities: Value | None = None) -> None:
        self.atypicality, self.densities = atypicality, densities


class Recalibrated:
    """Probabilities (n, k) in float32, and the rows (n, 1) that have some, or None where all of them do."""

    def __init__(self, probabilities: Value, known: Value | None = None) -> None:
        self.probabilities, self.known = probabilities, known


def refusals(head: Any) -> list[str]:
    """Why a head cannot be a graph: one reason per part, none where it can."""
    density, recalibration, sets = head.density_, head.recalibration_, head.prediction_sets_
    reasons = []
    if density is not None and type(density) is not GaussianAtypicality:
        reasons.append(f"its density is {_name(density)}, and only GaussianAtypicality is a formula of fixed size")
    if type(recalibration) not in RECALIBRATIONS:
        known = ", ".join(kind.__name__ for kind in RECALIBRATIONS)
        reasons.append(f"its recalibration is {_name(recalibration)}, which is not one of {known}")
    elif type(recalibration) is GroupTemperatureScaling and recalibration.quantiles_ is None:
        reasons.append("its recalibration has a temperature for each given group, and a graph is given no groups")
    if type(sets) not in (SplitConformal, AtypicalityAwareConformal):
        reasons.append(f"its prediction_sets is {_name(sets)}, not SplitConformal or AtypicalityAwareConformal")
    elif sets.randomized:
        reasons.append("its prediction_sets has randomized=True, and the draws are those of NumPy's generator")
    return reasons


def _name(part: Any) -> str:
    return type(part).__name__


# how rare


def add_density(graph: Graph, head: Any, embeddings: Value) -> Rarity:
    """Atypicality and class log-densities of rows of float32 embeddings."""
    density = head.density_
    gaussians = density._solved().gaussians
    log_prior = np.log(density.counts_ / density.counts_.sum()) if density.marginal else None
    rows = graph.cast(embeddings, np.float64)
    if isinstance(gaussians, TiedGaussians):
        densities, atypicality = _tied(graph, gaussians, rows, log_prior)
    else:
        densities = _per_class(graph, gaussians, rows)
        atypicality = _negative_log_density(graph, densities, log_prior)
    positions = class_positions(density.classes_, head.n_classes_, head.class_names_)
    return Rarity(atypicality, _aligned(graph, densities, positions, head.n_classes_))


def _tied(graph: Graph, gaussians: TiedGaussians, rows: Value, log_prior: Vector | None) -> tuple[Value, Value]:
    """As `TiedGaussians`: one product for all classes, and the best class again from its distance."""
    means, log_peak = gaussians.means, gaussians.log_peak
    z = graph("MatMul", graph("Sub", rows, _double(gaussians.centre)), _double(gaussians.whitening))
    scores = graph("Add", graph("MatMul", z, means.T), -0.5 * np.vecdot(means, means))
    best, half = _nearest(graph, z, scores, means)
    length = graph("Mul", 0.5, _squares(graph, z))
    winner = graph("Equal", column_of(graph, best), np.arange(len(means))[None])
    densities = graph(
        "Where",
        winner,
        graph("Sub", log_peak, half),
        graph("Add", scores, graph("Sub", log_peak, length)),
    )
    if log_prior is None:
        return densities, graph("Neg", graph.reduce("ReduceMax", densities))
    weighted = graph("Add", scores, log_prior)
    best, half = _nearest(graph, z, weighted, means)
    top = graph.reduce("ReduceMax", weighted)
    total = graph.reduce("ReduceSum", graph("Exp", graph("Sub", weighted, top)))
    prior = column_of(graph, graph("Gather", log_prior, best))
    atypicality = graph("Sub", graph("Sub", half, log_peak), graph("Add", prior, graph("Log", total)))
    return densities, atypicality


def _nearest(graph: Graph, z: Value, scores: Value, means: Vector) -> tuple[Value, Value]:
    """The class of the largest score (n,), and half the squared distance to its mean (n, 1)."""
    best = graph("ArgMax", scores, axis=1, keepdims=0)
    return best, graph("Mul", 0.5, _squares(graph, graph("Sub", z, graph("Gather", means, best))))


def _squares(graph: Graph, rows: Value) -> Value:
    return graph.reduce("ReduceSum", graph("Mul", rows, rows))


def _per_class(graph: Graph, gaussians: ClassGaussians, rows: Value) -> Value:
    """As `ClassGaussians`: every class whitens the rows in its own way, one class after the other."""
    if gaussians.components is not None:
        rows = graph("MatMul", graph("Sub", rows, _double(gaussians.centre)), _double(gaussians.components).T)
    matrices = [whitening.matrix for whitening in gaussians.whitenings]
    diagonal = matrices[0].ndim == 1
    rank = max(matrix.shape[-1] for matrix in matrices)
    if not diagonal:  # columns of zeros add nothing to a squared length
        matrices = [np.pad(matrix, ((0, 0), (0, rank - matrix.shape[1]))) for matrix in matrices]
    peaks = np.array([whitening.log_peak for whitening in gaussians.whitenings])

    def one_class(mean: Value, matrix: Value, peak: Value) -> Value:
        white = graph("Mul" if diagonal else "MatMul", graph("Sub", rows, mean), matrix)
        half = graph("Mul", 0.5, graph("ReduceSum", graph("Mul", white, white), np.array([1]), keepdims=0))
        return graph("Sub", peak, half)

    return graph("Transpose", graph.scan([gaussians.means, np.stack(matrices), peaks], one_class), perm=[1, 0])


def _negative_log_density(graph: Graph, densities: Value, log_prior: Vector | None) -> Value:
    if log_prior is None:
        return graph("Neg", graph.reduce("ReduceMax", densities))
    weighted = graph("Add", densities, log_prior)
    top = graph.reduce("ReduceMax", weighted)
    total = graph.reduce("ReduceSum", graph("Exp", graph("Sub", weighted, top)))
    return graph("Neg", graph("Add", top, graph("Log", total)))


def _aligned(graph: Graph, densities: Value, positions: NDArray[np.intp], n_classes: int) -> Value:
    """As `in_columns`: columns in the order of the logits', the row minimum for a class that the density never saw."""
    if np.array_equal(positions, np.arange(n_classes)):
        return densities
    sources = np.full(n_classes, positions.size)
    sources[positions] = np.arange(positions.size)
    extended = graph("Concat", densities, graph.reduce("ReduceMin", densities), axis=1)
    return graph("Gather", extended, sources, axis=1)


def _double(array: NDArray[Any]) -> Vector:
    return np.asarray(array, np.float64)


# better probabilities


def add_recalibration(graph: Graph, head: Any, logits: Value, rarity: Rarity) -> Recalibrated:
    """Probabilities of rows of float32 logits, in which only -inf is not finite."""
    recalibration = head.recalibration_
    hidden = graph("IsInf", logits)
    z = graph.cast(logits, np.float64)
    if isinstance(recalibration, AtypicalityAwareRecalibration):
        return _aware(graph, recalibration, z, hidden, rarity)
    u = _below_top(graph, z, hidden)
    if isinstance(recalibration, EnsembleTemperatureScaling):
        return Recalibrated(_ensemble(graph, recalibration, u, hidden))
    if isinstance(recalibration, GroupTemperatureScaling):
        return _grouped(graph, recalibration, u, hidden, _needed(rarity))
    solution = recalibration.solution_
    predicted = graph("Add", graph("Mul", u, float(solution.coefficients[0])), solution.scores)
    if solution.mixing is not None:
        centred = graph("Where", hidden, 0.0, graph("Sub", u, _row_mean(graph, u, hidden)))
        predicted = graph("Add", predicted, graph("Mul", centred, solution.mixing))
    return Recalibrated(_float32(graph, softmax(graph, predicted, hidden)))


def _float32(graph: Graph, probabilities: Value) -> Value:
    return graph.cast(probabilities, np.float32)


def _needed(rarity: Rarity) -> Value:
    assert rarity.atypicality is not None, "a head whose recalibration needs atypicality has one"
    return rarity.atypicality


def _below_top(graph: Graph, z: Value, hidden: Value | None = None) -> Value:
    """Rows less their maximum; hidden entries become 0."""
    below = graph("Sub", z, graph.reduce("ReduceMax", z))
    return below if hidden is None else graph("Where", hidden, 0.0, below)


def _row_mean(graph: Graph, below: Value, hidden: Value) -> Value:
    """Mean over the entries that are not hidden (n, 1); hidden ones are 0."""
    count = graph.reduce("ReduceSum", graph.cast(graph("Not", hidden), np.float64))
    return graph("Div", graph.reduce("ReduceSum", below), count)


def _ensemble(graph: Graph, recalibration: EnsembleTemperatureScaling, u: Value, hidden: Value) -> Value:
    """The three parts and their sum in float32, as in Python."""
    mixed = ""
    for share, multiplier in zip(recalibration.weights_, (recalibration.multiplier(), 1.0, 0.0), strict=True):
        part = _float32(graph, softmax(graph, graph("Mul", u, multiplier), hidden))
        part = graph("Mul", part, np.float32(share))
        mixed = graph("Add", mixed, part) if mixed else part
    return mixed


def _grouped(
    graph: Graph, recalibration: GroupTemperatureScaling, u: Value, hidden: Value, atypicality: Value
) -> Recalibrated:
    """A multiplier by quantile group; a group without calibration rows has none, and its rows no probabilities."""
    assert recalibration.quantiles_ is not None, "refused before"
    edges = recalibration.quantiles_.edges_
    seen, multipliers = np.zeros(edges.size + 1, bool), np.zeros(edges.size + 1)
    seen[recalibration.groups_], multipliers[recalibration.groups_] = True, recalibration.multiplier()
    group = cut(graph, edges, atypicality)
    predicted = graph("Mul", u, graph("Gather", multipliers, group))
    known = None if seen.all() else graph("Gather", seen, group)
    return Recalibrated(_float32(graph, softmax(graph, predicted, hidden)), known)


def _aware(
    graph: Graph, recalibration: AtypicalityAwareRecalibration, z: Value, hidden: Value, rarity: Rarity
) -> Recalibrated:
    """As `AtypicalityAwareRecalibration._probabilities`, term by term."""
    clip = recalibration.extrapolation == "clip"
    u = _within_spread(graph, _below_top(graph, z, hidden), recalibration.largest_spread_, clip)
    scores = recalibration._scores()
    predicted = graph("Add", graph("Mul", u, _multiplier(graph, recalibration, z, rarity)), _finite(scores))
    if (mixing := recalibration.class_mixing_) is not None:
        middle = _row_mean(graph, graph("Mul", u, 0.5), hidden)
        x = graph("Where", hidden, 0.0, graph("Sub", u, middle))
        mixed = graph("Mul", x, mixing) if mixing.ndim == 1 else graph("MatMul", x, mixing.T)
        predicted = graph("Add", predicted, mixed)
    if recalibration.terms_["class_density"] == "used":
        assert rarity.densities is not None, "a head whose recalibration uses class densities has a density"
        d = _within_spread(graph, _below_top(graph, rarity.densities), recalibration.largest_density_spread_, clip)
        predicted = graph("Add", predicted, graph("Mul", d, recalibration.density_coefficient_))
    known = None
    if np.isneginf(scores).any():  # a class whose prior is 0; a row may have no other
        hidden = graph("Or", hidden, np.isneginf(scores)[None])
        known = row_any(graph, graph("Not", hidden))
    lifted = _lifted(graph, softmax(graph, predicted, hidden), hidden, recalibration.floor_)
    return Recalibrated(_float32(graph, lifted), known)


def _lifted(graph: Graph, probs: Value, hidden: Value, floor: float) -> Value:
    """``(1 - m d) p + d``, d the floor and m the classes of a row that are not hidden."""
    if not floor:
        return probs
    count = graph.reduce("ReduceSum", graph.cast(graph("Not", hidden), np.float64))
    scaled = graph("Mul", probs, graph("Sub", 1.0, graph("Mul", count, floor)))
    return graph("Add", scaled, graph("Where", hidden, 0.0, floor))


def _finite(scores: Vector) -> Vector:
    return np.where(np.isneginf(scores), 0.0, scores)


def _within_spread(graph: Graph, below: Value, largest: float, clip: bool) -> Value:
    """Rows with maximum 0, shrunk where they spread wider than the calibration rows did."""
    if not clip:
        return below
    floor = max(largest, TINY)
    spread = graph("Max", graph("Neg", graph.reduce("ReduceMin", below)), floor)
    return graph("Mul", below, graph("Div", floor, spread))


def _multiplier(graph: Graph, recalibration: AtypicalityAwareRecalibration, z: Value, rarity: Rarity) -> Value:
    """The quadratic of the covariates (n, 1), everything held to its calibration range where that is asked."""
    clip, polynomial = recalibration.extrapolation == "clip", recalibration.polynomial_
    x = []
    for j, name in enumerate(polynomial.names):
        value = _margin(graph, z) if name == "margin" else _needed(rarity)
        if clip:
            value = graph("Min", graph("Max", value, polynomial.low[j]), polynomial.high[j])
        x.append(graph("Div", graph("Sub", value, polynomial.center[j]), polynomial.scale[j]))
    total = graph.constant(np.full((1, 1), recalibration.coefficients_[0]))
    for power, coefficient in zip(polynomial.powers[1:], recalibration.coefficients_[1:], strict=True):
        term = x[power[0]] if len(power) == 1 else graph("Mul", x[power[0]], x[power[1]])
        total = graph("Add", total, graph("Mul", term, coefficient))
    if not clip:
        return total
    low, high = recalibration.multiplier_range_
    return graph("Min", graph("Max", total, low), high)


def _margin(graph: Graph, z: Value) -> Value:
    """Largest less second largest logit (n, 1); 0 where a single class is not masked."""
    best = graph("TopK", z, np.array([2]), n_outputs=2, axis=1)
    first, second = (graph("Gather", best, np.array([j]), axis=1) for j in (0, 1))
    return graph("Where", graph("IsInf", second), 0.0, graph("Sub", first, second))


# prediction sets


def add_sets(graph: Graph, head: Any, probs: Value, confidence: Value, rarity: Rarity) -> Value:
    """Prediction sets, bool (n, k), of float32 probabilities with confidence (n, 1) in float64."""
    sets = head.prediction_sets_
    threshold = _thresholds(graph, sets, confidence, rarity)
    top = graph.reduce("ReduceMax", probs)
    if sets.score == "lac":
        accepted = graph("LessOrEqual", graph("Sub", 1.0, graph.cast(probs, np.float64)), threshold)
    else:
        accepted = graph("Greater", probs, _first_rejected(graph, sets, probs, threshold))
    return accepted if sets.nonempty is None else graph("Or", accepted, graph("Equal", probs, top))


def _thresholds(graph: Graph, sets: Any, confidence: Value, rarity: Rarity) -> Value:
    """The threshold of every row (n, 1), or the one of all as a constant."""
    if isinstance(sets, SplitConformal):
        return graph.constant(np.array([[sets.threshold_]]))
    grid = sets.grid_
    rows = cut(graph, grid.atypicality_groups_.edges_, _needed(rarity))
    columns = cut(graph, grid.confidence_groups_.edges_, confidence)
    cell = graph("Add", graph("Mul", rows, np.array(grid.shape_[1])), columns)
    return graph("Gather", sets.thresholds_[sets.regions_.ravel()], cell)


def _first_rejected(graph: Graph, sets: Any, probs: Value, threshold: Value) -> Value:
    """The largest probability of each row that is not in its set (n, 1), -1 for a full set.

    As in `atypicality.conformal.scores`: each place of the sorted row is taken as the last of its ties. The score then
    never falls along the row, and where it first exceeds the threshold lies the first rejected level of probability.
    """
    k = sets.n_classes_
    ordered = graph("TopK", probs, np.array([k]), n_outputs=2, axis=1)
    rank = np.arange(1, k + 1)
    if sets.score == "saps":
        first = graph.cast(graph.reduce("ReduceMax", ordered), np.float64)
        scores = graph("Add", first, (rank - 1) * sets.penalty_)
    else:  # multiples of 2^-52, which float64 adds without error in any order
        exact = graph("Sub", graph("Add", graph.cast(ordered, np.float64), 1.0), 1.0)
        scores = graph("CumSum", exact, np.array(1))
        if sets.score == "raps":
            scores = graph("Add", scores, sets.penalty_ * np.maximum(rank - sets.k_reg_, 0))
    within = graph("LessOrEqual", scores, threshold)
    return graph.reduce("ReduceMax", graph("Where", within, np.float32(-1), ordered))
