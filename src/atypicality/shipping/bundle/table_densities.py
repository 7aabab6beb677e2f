"""The closed list, densities and groups: see `table`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from atypicality.density import GaussianAtypicality, NeighborAtypicality, RelativeAtypicality
from atypicality.density.choice import CRITERIA, Candidate, DensityChoice
from atypicality.density.covariance import Whitening
from atypicality.density.logdensity import ClassGaussians, RelativeGaussians, TiedGaussians
from atypicality.density.search import METRICS, Reference
from atypicality.density.solution import Solution
from atypicality.groups import GridGroups, Quadrants, QuantileGroups
from atypicality.shipping.bundle import meaning
from atypicality.shipping.bundle.kinds import (
    Choice,
    Either,
    Integer,
    Kind,
    ListOf,
    Number,
    ScalarOr,
    Size,
    Text,
    TupleOf,
    optional,
)
from atypicality.shipping.bundle.records import Part, Record, ScoringOnly
from atypicality.shipping.bundle.tensors import (
    ANY_FLOAT,
    COUNTS,
    FINITE,
    INCREASING,
    NOT_NEGATIVE,
    POSITIVE,
    Array,
    Labels,
    Members,
)

__all__ = ["CHOICE", "GAUSSIAN", "GRID", "NEIGHBORS", "QUADRANTS", "QUANTILE_GROUPS", "RELATIVE"]

METRIC = Choice("euclidean", "cosine")
NORMALIZE = Choice(None, "l2")
AS_THEY_ARE: dict[str, Callable[[Any], Any]] = {"normalize": lambda _: None}
"""Bundles of 0.1 know no normalised rows."""

# Densities

WHITENING = Record(Whitening, {"matrix": Array("m * | m", FINITE), "log_determinant": Number(), "rank": Integer(1)})
TIED = Record(
    TiedGaussians,
    {
        "centre": Array("D", FINITE, dtypes=ANY_FLOAT),
        "whitening": Array("D r", FINITE, dtypes=ANY_FLOAT),
        "means": Array("c r", FINITE),
        "log_peak": Number(),
    },
)
AGAINST_BACKGROUND = Record(
    RelativeGaussians,
    TIED.fields | {"mean": Array("r", FINITE), "spread": Array("r *", FINITE, dtypes=ANY_FLOAT)},  # type: ignore[operator]
)
EACH = Record(
    ClassGaussians,
    {
        "centre": Array("D", FINITE, dtypes=ANY_FLOAT),
        "components": optional(Array("m D", FINITE, dtypes=ANY_FLOAT)),
        "means": Array("c m", FINITE),
        "whitenings": ListOf(Part(WHITENING), size="c"),
    },
)
GAUSSIAN_SOLUTION = Record(
    Solution,
    {
        "means": Array("c m", FINITE),
        "covariance": Array("* * | * * *", FINITE),
        "rank": ScalarOr(Integer(1), Array("c", POSITIVE, dtypes=COUNTS)),
        "components": optional(Array("m D", FINITE)),
        "gaussians": Part(TIED, EACH, AGAINST_BACKGROUND),
        "weakness": Text(),
    },
)
SHARED: dict[str, Kind] = {
    "shrinkage": Either(None, "ledoit-wolf", "oas", otherwise=Number(0, 1)),
    "n_components": optional(Integer(1)),
    "precision": Choice("float64", "float32"),
    "normalize": NORMALIZE,
}
GAUSSIAN = Record(
    GaussianAtypicality,
    parameters=SHARED | {"covariance": Choice("tied", "full", "diagonal"), "marginal": Choice(True, False)},
    fields={
        "classes_": Labels("c"),
        "counts_": Array("c", POSITIVE, dtypes=COUNTS),
        "n_features_in_": Size("D"),
        "_solution": Part(GAUSSIAN_SOLUTION),
    },
    derived={"statistics_": lambda _: ScoringOnly()},
    check=meaning.check_gaussian,
    ready=GaussianAtypicality._solved,
    later=AS_THEY_ARE,
)
RELATIVE = replace(GAUSSIAN, cls=RelativeAtypicality, parameters=SHARED, later={})
REFERENCE = Record(
    Reference,
    {
        "rows": Array("n D", FINITE, dtypes=("float16", *ANY_FLOAT)),
        "metric": Choice(*METRICS),
        "shift": Array("D", FINITE, dtypes=("float32",)),
        "scale": Number(0),
        "half_squares": Array("n", FINITE, NOT_NEGATIVE, dtypes=("float32",)),
    },
)
NEIGHBORS = Record(
    NeighborAtypicality,
    parameters={
        "n_neighbors": Integer(1),
        "reduction": Choice("mean", "kth", "min"),
        "metric": METRIC,
        "per_class": Choice(True, False),
        "normalize": NORMALIZE,
    },
    fields={
        "n_features_in_": Size("D"),
        "classes_": optional(Labels("c")),
        "_reference": Part(REFERENCE),
        "_members": Members(),
    },
    derived={"embeddings_": lambda density: density._reference.rows},
    check=meaning.check_neighbors,
    ready=NeighborAtypicality._check_storable,
    later=AS_THEY_ARE,
)

NAME = Text(r"[A-Za-z]+\([a-z0-9_='., ]*\)", longest=100)  # nothing that a card would take for Markdown
UNKNOWN = optional(Number())
CANDIDATE = Record(
    Candidate,
    {
        "name": NAME,
        "cost": Integer(1),
        "auroc": optional(Number(0, 1)),
        "log_likelihood": UNKNOWN,
        "behind": UNKNOWN,
        "behind_error": UNKNOWN,
        "gain": UNKNOWN,
        "gain_error": UNKNOWN,
    },
)
CHOICE = Record(
    DensityChoice,
    {
        "name": NAME,
        "candidates": TupleOf(Part(CANDIDATE)),
        "criterion": Choice(*CRITERIA),
        "n_rows": Integer(1),
        "n_errors": Integer(),
    },
    check=meaning.check_choice,
)

# Groups

QUANTILE_GROUPS = Record(
    QuantileGroups,
    parameters={"n_groups": Integer(1)},
    fields={"edges_": Array("e", FINITE, INCREASING), "counts_": Array("*", NOT_NEGATIVE, dtypes=COUNTS)},
    check=meaning.check_quantile_groups,
)
GRID = Record(
    GridGroups,
    parameters={"n_groups": TupleOf(Integer(1))},
    fields={
        "atypicality_groups_": Part(QUANTILE_GROUPS),
        "confidence_groups_": Part(QUANTILE_GROUPS),
        "shape_": TupleOf(Integer(1)),
        "counts_": Array("* *", NOT_NEGATIVE, dtypes=COUNTS),
    },
    check=meaning.check_grid,
)
QUADRANTS = Record(
    Quadrants,
    parameters={"confidence_quantile": Number(0, 1), "atypicality_quantile": Number(0, 1)},
    fields={
        "confidence_threshold_": Number(0, 1),
        "atypicality_threshold_": Number(),
        "counts_": Array("4", NOT_NEGATIVE, dtypes=COUNTS),
    },
)
