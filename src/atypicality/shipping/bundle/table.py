"""The closed list: every class that a bundle can hold, with its attributes, their kinds and their rules.

A class that gains or loses a fitted attribute changes one line here; a test compares each with what `fit` sets.
"""

from collections.abc import Callable
from typing import Any

from atypicality.conformal import AtypicalityAwareConformal, ConditionalConformal, SplitConformal
from atypicality.conformal.scores import NONEMPTY, SCORES
from atypicality.head import ReliabilityHead
from atypicality.head.held_out import AbstentionRule, QuantileScale
from atypicality.recalibration import (
    AdaptiveTemperatureScaling,
    AtypicalityAwareRecalibration,
    ContentFreeCalibration,
    EnsembleTemperatureScaling,
    GroupTemperatureScaling,
    TemperatureScaling,
    VectorScaling,
)
from atypicality.recalibration.adaptive_network import Network
from atypicality.recalibration.aware import COVARIATES
from atypicality.recalibration.covariates import Polynomial
from atypicality.recalibration.parameters import Solution
from atypicality.shipping.bundle import meaning
from atypicality.shipping.bundle.kinds import (
    Alpha,
    Choice,
    Either,
    Integer,
    Kind,
    ListOf,
    MappingOf,
    Number,
    ScalarOr,
    Size,
    Text,
    TupleOf,
    optional,
)
from atypicality.shipping.bundle.records import Part, Record
from atypicality.shipping.bundle.table_densities import GAUSSIAN, GRID, NEIGHBORS, QUADRANTS, QUANTILE_GROUPS
from atypicality.shipping.bundle.tensors import (
    COUNTS,
    DECREASING,
    FINITE,
    INCREASING,
    NOT_NAN,
    NOT_NEGATIVE,
    POSITIVE,
    SHARES,
    UNIT,
    Array,
    ClassPrior,
    Labels,
)

__all__ = ["DENSITIES", "HEAD", "PREDICTION_SETS", "RECALIBRATIONS"]

FLAG = Choice(True, False)
SEED = Integer(0, 2**128 - 1)

# Recalibration

SOLUTION = Record(
    Solution,
    {
        "coefficients": Array("p", FINITE),
        "density_coefficients": Array("*", FINITE),
        "mixing": optional(Array("K K | K", FINITE)),
        "scores": Array("K", FINITE),
        "absent": Array("*", INCREASING, dtypes=COUNTS),
        "loss": Number(),
        "objective": Number(),
        "certificate": Number(),
        "n_iter": Integer(),
        "n_passes": Number(0),
    },
    check=meaning.check_solution,
)
CONVEX = {
    "loss_": lambda fitted: fitted.solution_.loss,
    "certificate_": lambda fitted: fitted.solution_.certificate,
    "n_iter_": lambda fitted: fitted.solution_.n_iter,
    "absent_classes_": lambda fitted: fitted.solution_.absent,
}
"""What every fitted convex recalibrator copies from its solution."""
FIT: dict[str, Kind] = {"loss_": Number(), "certificate_": Number(), "n_iter_": Integer()}
ERRORS: dict[str, Kind] = {"errors_": optional(Integer())}
UNKNOWN_ERRORS: dict[str, Callable[[Any], Any]] = {"errors_": lambda _: None}
"""Bundles of 0.1 do not say how many recalibration rows were misclassified."""
TEMPERATURE = Record(
    TemperatureScaling,
    parameters={},
    fields={"n_classes_": Size("K"), "solution_": Part(SOLUTION), "temperature_": Number(0), **ERRORS},
    derived=CONVEX,
    check=meaning.check_temperature,
    later=UNKNOWN_ERRORS,
)
VECTOR = Record(
    VectorScaling,
    parameters={"scale": FLAG, "bias": FLAG, "strength": Number(0)},
    fields={"n_classes_": Size("K"), "solution_": Part(SOLUTION), "scale_": Array("K", FINITE), **ERRORS},
    derived=CONVEX | {"class_scores_": lambda fitted: fitted.solution_.scores},
    check=meaning.check_vector_scaling,
    later=UNKNOWN_ERRORS,
)
GROUPED = Record(
    GroupTemperatureScaling,
    parameters={"n_groups": Integer(1)},
    fields={
        "n_classes_": Size("K"),
        "groups_": Labels("g"),
        "temperatures_": Array("g", POSITIVE),
        "counts_": Array("g", POSITIVE, dtypes=COUNTS),
        "errors_": optional(Array("g", NOT_NEGATIVE, dtypes=COUNTS)),
        "quantiles_": optional(Part(QUANTILE_GROUPS)),
        **FIT,
    },
    check=meaning.check_groups,
    later=UNKNOWN_ERRORS,
)
ENSEMBLE = Record(
    EnsembleTemperatureScaling,
    parameters={},
    fields={
        "n_classes_": Size("K"),
        "temperature_": Number(0),
        "weights_": Array("3", FINITE, SHARES),
        **FIT,
        **ERRORS,
    },
    check=meaning.check_positive_temperature,
    later=UNKNOWN_ERRORS,
)
POLYNOMIAL = Record(
    Polynomial,
    {
        "names": TupleOf(Choice(*COVARIATES), size="q"),
        "constant": TupleOf(Choice(*COVARIATES)),
        "center": Array("q", FINITE),
        "scale": Array("q", POSITIVE),
        "low": Array("q", FINITE),
        "high": Array("q", FINITE),
    },
    check=meaning.check_polynomial,
)
AWARE = Record(
    AtypicalityAwareRecalibration,
    parameters={
        "covariates": TupleOf(Choice(*COVARIATES)),
        "class_scores": FLAG,
        "class_density": Choice("auto", True, False),
        "class_mixing": Choice("auto", "full", "diagonal", False),
        "strength": Either("auto", otherwise=ScalarOr(Number(0), MappingOf(Number(0)))),
        "extrapolation": Choice("clip", "none"),
        "pseudo_rows": FLAG,
        "class_prior": optional(ClassPrior()),
        "random_state": optional(SEED),
    },
    fields={
        "n_classes_": Size("K"),
        "solution_": Part(SOLUTION),
        "polynomial_": Part(POLYNOMIAL),
        "density_coefficient_": Number(),
        "terms_": MappingOf(Text()),
        "strength_": MappingOf(Number(0)),
        "effective_parameters_": MappingOf(Number(0)),
        "n_effective_": Number(0),
        "calibration_shares_": Array("K", FINITE, SHARES),
        "training_shares_": optional(Array("K", FINITE, SHARES)),
        "multiplier_range_": TupleOf(Number()),
        "largest_spread_": Number(0),
        "largest_density_spread_": Number(0),
        "floor_": Number(0, 1),
        **ERRORS,
    },
    derived=CONVEX
    | {
        "columns_": lambda fitted: fitted.polynomial_.column_names,
        "coefficients_": lambda fitted: fitted.solution_.coefficients,
        "class_scores_": lambda fitted: fitted.solution_.scores,
        "class_mixing_": lambda fitted: fitted.solution_.mixing,
    },
    check=meaning.check_aware,
    later=UNKNOWN_ERRORS | {"pseudo_rows": lambda _: False, "floor_": lambda _: 0.0},
)
CONTENT_FREE = Record(
    ContentFreeCalibration,
    parameters={},
    fields={"n_classes_": Size("K"), "content_free_probs_": Array("K", POSITIVE)},
)
LAYERS = ListOf(TupleOf(Array("* * | *", FINITE, dtypes=("float32",))))
NETWORK = Record(
    Network,
    {
        "mean": Array("D", FINITE, dtypes=("float32",)),
        "scale": Array("D", POSITIVE, dtypes=("float32",)),
        "encoder": LAYERS,
        "head": LAYERS,
        "n_epochs": Integer(),
    },
    check=meaning.check_network,
)
ADAPTIVE = Record(
    AdaptiveTemperatureScaling,
    parameters={
        "hidden": TupleOf(Integer(1)),
        "latent_dim": Integer(1),
        "head": TupleOf(Integer(1)),
        "epochs": Integer(1),
        "learning_rate": Number(0),
        "batch_size": Integer(1),
        "validation_fraction": Number(0, 1),
        "random_state": SEED,
    },
    fields={"n_classes_": Size("K"), "temperature_": Number(0), "network_": Part(NETWORK), **ERRORS},
    derived={"n_iter_": lambda fitted: fitted.network_.n_epochs},
    check=meaning.check_positive_temperature,
    later=UNKNOWN_ERRORS,
)

# Prediction sets

SCORE: dict[str, Kind] = {
    "score": Choice(*SCORES),
    "alpha": Alpha(),
    "nonempty": Choice(*NONEMPTY),
    "k_reg": Either("auto", otherwise=Integer()),
    "penalty": Either("auto", otherwise=Number(0)),
    "randomized": FLAG,
    "random_state": optional(SEED),
}
TUNED: dict[str, Kind] = {
    "k_reg_": optional(Integer()),
    "penalty_": optional(Number(0)),
    "n_calibration_": Integer(1),
    "n_classes_": Size("K"),
    "seed_": SEED,
}
SPLIT = Record(
    SplitConformal,
    parameters=SCORE | {"tuning_fraction": Number(0, 1)},
    fields=TUNED | {"threshold_": Number(infinite=True), "too_few_": FLAG, "n_tuning_": Integer()},
    check=meaning.check_split_sets,
)
AWARE_SETS = Record(
    AtypicalityAwareConformal,
    parameters=SCORE
    | {"n_groups": TupleOf(Integer(1)), "mode": Choice("valid", "paper"), "edge_fraction": Number(0, 1)},
    fields=TUNED
    | {
        "grid_": Part(GRID),
        "regions_": Array("* *", dtypes=COUNTS),
        "counts_": Array("r", NOT_NEGATIVE, dtypes=COUNTS),
        "thresholds_": Array("r", NOT_NAN),
        "too_few_": Array("r", dtypes=("bool",)),
        "n_edge_": Integer(1),
    },
    check=meaning.check_aware_sets,
)
CONDITIONAL_SETS = Record(
    ConditionalConformal,
    parameters={
        "alpha": Alpha(),
        "cells": Integer(1),
        "knots": Either("auto", otherwise=Integer(1)),
        "bandwidth": Either("auto", otherwise=Number(0)),
        "edge_fraction": Number(0, 1),
        "random_state": optional(SEED),
    },
    fields={
        "n_classes_": Size("K"),
        "atypicality_edges_": Array("*", FINITE, INCREASING),
        "confidence_edges_": Array("*", UNIT, INCREASING),
        "knots_": TupleOf(Integer(1)),
        "bandwidth_": Number(0),
        "thresholds_": Array("a c", NOT_NAN, NOT_NEGATIVE),
        "too_few_": Array("a c", dtypes=("bool",)),
        "expected_coverage_": Array("*", UNIT),
        "n_edge_": Integer(1),
        "n_calibration_": Integer(1),
        "seed_": SEED,
    },
    check=meaning.check_conditional_sets,
)

# The head

SCALE = Record(
    QuantileScale,
    {"values": Array("v", FINITE, INCREASING), "levels": Array("v", UNIT, INCREASING), "n_rows": Integer(1)},
    check=meaning.check_scale,
)
ABSTENTION = Record(
    AbstentionRule,
    {
        "confidence": Array("a", UNIT, DECREASING),
        "kept": Array("a", POSITIVE, INCREASING, dtypes=COUNTS),
        "errors": Array("a", NOT_NEGATIVE, dtypes=COUNTS),
    },
    check=meaning.check_abstention,
)
DENSITIES = (GAUSSIAN, NEIGHBORS)
RECALIBRATIONS = (TEMPERATURE, VECTOR, GROUPED, ENSEMBLE, AWARE, CONTENT_FREE, ADAPTIVE)
PREDICTION_SETS = (SPLIT, AWARE_SETS, CONDITIONAL_SETS)
HEAD = Part(
    Record(
        ReliabilityHead,
        parameters={
            "density": Either(None, "auto", otherwise=Part(*DENSITIES, fitted=False)),
            "recalibration": Either("auto", otherwise=Part(*RECALIBRATIONS, fitted=False)),
            "prediction_sets": Either("auto", otherwise=Part(*PREDICTION_SETS, fitted=False)),
            "alpha": Alpha(),
            "random_state": SEED,
        },
        fields={
            "n_classes_": Size("K"),
            "class_names_": optional(Labels("K", ordered=False)),
            "density_": optional(Part(*DENSITIES)),
            "recalibration_": Part(*RECALIBRATIONS),
            "prediction_sets_": Part(*PREDICTION_SETS),
            "quadrants_": optional(Part(QUADRANTS)),
            "quantiles_": optional(Part(SCALE)),
            "abstention_": Part(ABSTENTION),
            "metrics_": MappingOf(MappingOf(Number(infinite=True))),
            "sizes_": MappingOf(Integer()),
            "fingerprint_": Text("[0-9a-f]{1,64}"),
        },
        check=meaning.check_head,
        later={"alpha": lambda head: head.prediction_sets_.alpha},
    )
)
