"""What the authors' released code computes and the paper's text does not say: its `rmse`, and its sets.

The text writes deterministic scores and mentions randomisation; the code that made the tables draws them, puts the
crossing class into every set and takes the quantile 1 - alpha of a cell. `AtypicalityAwareConformal(mode="paper")` does
the first two; rank, ties and penalty grid are ours.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.conformal import AtypicalityAwareConformal, ConditionalConformal
from atypicality.paper.temperatures import PriorFreeTemperature

__all__ = ["RELEASED_RANK", "SETS", "authors_rmse", "set_method"]

ROWS_PER_BIN = 100
RELEASED_RANK = ", quantile 1 - alpha"
"""End of the name of a method whose thresholds have the released rank."""
SETS = ("aps", "aa-aps", "raps", "aa-raps", "conditional", f"aa-aps{RELEASED_RANK}", f"aa-raps{RELEASED_RANK}")


def authors_rmse(confidence: ArrayLike, correct: ArrayLike) -> float:
    """The paper's `rmse` columns: bins of equal mass, near 100 rows each, weighted twice, and the root taken twice.

    The fourth root of the sum over bins of (share of the rows x gap of accuracy and confidence) squared. It is not the
    root mean squared calibration error of the paper's formula, which is `atypicality.metrics.rmsce`.

    Parameters
    ----------
    confidence : array-like of shape (n,)
    correct : array-like of shape (n,)

    Examples
    --------
    One bin with a gap of 0.16 gives its root, not the gap:

    >>> round(authors_rmse([0.66] * 10, [1, 0] * 5), 6)
    0.4
    """
    sure, right = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    n_bins = max(sure.size // ROWS_PER_BIN, 1)
    starts = np.round(np.linspace(0, sure.size, n_bins, endpoint=False)).astype(int)
    bins = np.digitize(sure, np.sort(sure)[starts][1:])
    gaps = np.bincount(bins, right - sure, n_bins) / sure.size
    return float(math.sqrt(math.sqrt((gaps**2).sum())))


class _ReleasedRank(AtypicalityAwareConformal):
    """Mode "paper" with the released rank: the quantile 1 - alpha of a cell, the next higher score."""

    @staticmethod
    def _paper_threshold(scores: NDArray[np.float64], alpha: Fraction) -> float:
        return float(np.quantile(scores, float(1 - alpha), method="higher")) if scores.size else math.inf


def set_method(name: str, alpha: float, seed: int) -> tuple[Any, Any]:
    """A pair for `compare`: one temperature, as in the paper, and sets by their name in `SETS`."""
    if name == "conditional":
        return PriorFreeTemperature(), ConditionalConformal(alpha, random_state=seed)
    kind = _ReleasedRank if name.endswith(RELEASED_RANK) else AtypicalityAwareConformal
    plain = name.removesuffix(RELEASED_RANK)
    cells = (6, 6) if plain.startswith("aa-") else (1, 1)
    score = plain.removeprefix("aa-")
    return PriorFreeTemperature(), kind(score, alpha, n_groups=cells, mode="paper", random_state=seed)
