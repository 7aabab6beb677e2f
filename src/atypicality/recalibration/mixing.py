"""Class mixing measured from the middle: how the default of atypicality-aware recalibration uses ``W z``.

The solver's own mixing multiplies logits less their row mean: an entry then acts where its class is predicted. Less
their row maximum, like log-probabilities, it acts where its class is not. Which one needs fewer rows to learn depends
on the model; the midpoint of mean and maximum was near the better of the two on every model tried.
"""

import dataclasses
from typing import Any

from atypicality.recalibration.parameters import Vector
from atypicality.recalibration.problem import Mixing, Problem
from atypicality.recalibration.row_statistics import RowStatistics

__all__ = ["DIAGONAL_UP_TO", "FULL_UP_TO", "MIDDLE", "MidpointMixing", "choose_mixing"]

FULL_UP_TO = 24
"""Classes up to which mixing is a full matrix: its curvature has the fourth power of the classes as entries."""
DIAGONAL_UP_TO = 256
"""Classes up to which there is a diagonal at least: with 1000 it won 0.001 of the loss for three times the work."""


MIDDLE = 0.5
"""How far from a row's maximum toward its mean the logits are measured from."""


class MidpointMixing(Problem):
    """A `Problem` whose mixing multiplies logits less the midpoint of their row's mean and maximum.

    A full matrix with a ridge keeps all of its entries (the ridge alone makes the optimum unique, and diagonal and
    other entries may be shrunk differently); without one, columns have mean 0 over classes as in `Problem`.
    """

    @property
    def centres_mixing(self) -> bool:
        """Not a full matrix with a ridge."""
        return not (self.mixing == "full" and (self.penalty[self.layout.mixing] > 0).all())

    def project(self, theta: Vector) -> Vector:
        """As in `Problem`, but a penalised full matrix is only set to 0 in the rows of absent classes."""
        projected = super().project(theta)
        where = self.layout.mixing
        if not self.centres_mixing:
            kept = theta[..., where].reshape(*theta.shape[:-1], self.n_classes, -1) * self.seen[:, None]
            projected[..., where] = kept.reshape(*theta.shape[:-1], -1)
        return projected

    def _read_logits(self) -> RowStatistics:
        found = super()._read_logits()
        return dataclasses.replace(found, mean=MIDDLE * found.mean)


def choose_mixing(asked: Any, n_classes: int) -> tuple[Mixing | None, str]:
    """The form of mixing for what the user asked, and that form in words."""
    if asked is False:
        return None, "off"
    if asked == "auto":
        if n_classes <= FULL_UP_TO:
            return "full", "full"
        if n_classes <= DIAGONAL_UP_TO:
            return "diagonal", f"diagonal: {n_classes} classes are too many for a full matrix (limit {FULL_UP_TO})"
        return None, f"dropped: {n_classes} classes are too many (limit {DIAGONAL_UP_TO})"
    return asked, str(asked)
