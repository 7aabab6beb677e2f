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

__all__ = [
    "CalibrationCurve",
    "GroupTable",
    "RiskCoverage",
    "accuracy",
    "adaptive_ece",
    "brier",
    "by_group",
    "calibration_curve",
    "classwise_ece",
    "coverage",
    "coverage_gap",
    "debiased_calibration_error",
    "ece",
    "nll",
    "overconfidence",
    "risk_coverage",
    "rmsce",
    "set_size",
    "smooth_ece",
    "summary",
]
