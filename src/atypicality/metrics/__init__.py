"""How good predictions are: metrics, each a number, and `by_group`, which turns any of them into a table."""

from atypicality.metrics.calibration import (
    CalibrationCurve,
    accuracy,
    adaptive_ece,
    brier,
    calibration_curve,
    classwise_ece,
    debiased_calibration_error,
    ece,
    nll,
    overconfidence,
    rmsce,
    smooth_ece,
    summary,
)
from atypicality.metrics.selective import RiskCoverage, risk_coverage
from atypicality.metrics.sets import coverage, coverage_gap, set_size
from atypicality.metrics.tables import GroupTable, by_group
from atypicality.metrics.worst_groups import (
    ParetoCurve,
    WorstCoverage,
    pareto_curve,
    size_stratified_coverage,
    worst_coverage,
)

__all__ = [
    "CalibrationCurve", "GroupTable", "ParetoCurve", "RiskCoverage", "WorstCoverage", "accuracy", "adaptive_ece",
    "brier", "by_group", "calibration_curve", "classwise_ece", "coverage", "coverage_gap", "debiased_calibration_error",
    "ece", "nll", "overconfidence", "pareto_curve", "risk_coverage", "rmsce", "set_size", "size_stratified_coverage",
    "smooth_ece", "summary", "worst_coverage",
]  # fmt: skip
