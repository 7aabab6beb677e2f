"""The parameters of RAPS and SAPS, chosen on rows that then carry no guarantee."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.conformal.scores import LabelStatistics, ScoreRule, label_scores, total_sizes
from atypicality.conformal.threshold import conformal_rank

__all__ = ["PENALTIES", "tune"]

PENALTIES = {
    "raps": (0.001, 0.01, 0.1, 0.2, 0.5),
    "saps": (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6),
}
"""Penalties that are tried: for RAPS the grid of the paper, for SAPS one on the scale of its rank steps."""


def tune(rule: ScoreRule, probs: Any, found: LabelStatistics, alpha: Fraction, draws: Any = 1.0) -> ScoreRule:
    """The rule with the parameters it lacks: `k_reg` first, then the penalty given it.

    `k_reg` is the rank within which a share 1 - alpha of the labels lie (Angelopoulos et al. 2020, Algorithm 4); the
    penalty is the largest of `PENALTIES` that gives the smallest sets on these rows,
    whose probabilities (n, k), label statistics and draws, (n,) or 1, are given.

    >>> from atypicality.conformal.scores import label_statistics
    >>> probs, labels = np.array([[0.6, 0.3, 0.1]] * 4), np.array([0, 0, 1, 0])
    >>> tune(ScoreRule("raps"), probs, label_statistics(probs, labels), Fraction(1, 4)).k_reg
    2
    """
    if not rule.needs_tuning:
        return rule
    k_reg = rule.k_reg
    if rule.name == "raps" and k_reg is None:
        k_reg = int(_order_statistic(found.rank, alpha))
    if rule.penalty is not None:
        return replace(rule, k_reg=k_reg)
    tried = [replace(rule, k_reg=k_reg, penalty=penalty) for penalty in PENALTIES[rule.name]]
    thresholds = [_order_statistic(label_scores(found, one, draws), alpha) for one in tried]
    candidates = [(one, np.full(found.rank.size, threshold)) for one, threshold in zip(tried, thresholds, strict=True)]
    sizes = total_sizes(probs, candidates, 1.0 if rule.crossing else draws)
    return tried[int(np.flatnonzero(sizes == sizes.min())[-1])]  # penalties ascend: the last is the largest


def _order_statistic(values: NDArray[Any], alpha: Fraction) -> float:
    """The conformal rank's value, or the largest where there are too few: these rows carry no guarantee."""
    rank = min(conformal_rank(values.size, alpha), values.size)
    return float(np.partition(values, rank - 1)[rank - 1])
