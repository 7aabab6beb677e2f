"""The parameters of the convex model: their strengths, their places in one flat vector, and the optimum."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.stored import Record, kinds, need

__all__ = ["Layout", "Ridge", "Solution", "Vector", "solution_of_multiplier"]

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Ridge:
    """Strengths of the penalty, half of strength times the squared standardised parameter, added to the mean loss.

    Parameters are standardised: `coefficients` and `mixing` belong to logits divided by `Problem.scale`, those of a
    term to its matrix divided by the term's own scale; scores are what they are.

    Parameters
    ----------
    features : float or array-like of shape (p,), default=0.0
        One strength for all columns, or one per column.
    terms : mapping of str to float or array-like of shape (q,), optional
        The same for the features of every term; 0 for a term that is not named.
    mixing, scores : float, default=0.0
    """

    features: float | ArrayLike = 0.0
    terms: Mapping[str, float | ArrayLike] = field(default_factory=dict)
    mixing: float = 0.0
    scores: float = 0.0


def _terms_of_format_1(fitted: dict[str, Any], place: kinds.Place) -> None:
    """Version 0.1 knew one term, and called its coefficients `density_coefficients`."""
    if "density_coefficients" not in fitted or "terms" in fitted:
        return
    stored, fitted["terms"] = fitted.pop("density_coefficients"), {}
    tensor = place.tensors.pop(place.at("density_coefficients").path, None)
    if tensor is None or tensor.size:  # an empty one stood for no term
        fitted["terms"]["class_density"] = stored
        if tensor is not None:
            place.tensors[place.at("terms").at("class_density").path] = tensor


@dataclass(frozen=True)
class Solution:
    """The optimum, in the units of the logits as they were given.

    Attributes
    ----------
    coefficients : ndarray of shape (p,)
        The multiplier of a row's logits is ``features @ coefficients``.
    terms : dict of str to ndarray of shape (q,)
        Coefficients of the features of each term.
    mixing : ndarray of shape (k, k) or (k,), or None
        Added to the multiplier. Without a ridge the mean over the seen classes (of every column) is 0, and absent
        classes have 0.
    scores : ndarray of shape (k,)
        Mean 0; without a ridge absent classes have 0, the mean of the seen ones.
    absent : ndarray of int
        Classes without weight among the labels: without a ridge, optimality is claimed with their score and mixing
        fixed.
    loss : float
        Weighted mean of the labels' cross-entropy, without penalty and prior.
    objective : float
        `loss` plus what penalty and pseudo-rows add.
    certificate : float
        Half of the squared Newton decrement: how far `objective` may lie above its minimum.
    n_iter : int
    n_passes : float
        Passes over all rows, those over a part of the rows counted as that part.
    """

    coefficients: Annotated[Vector, kinds.Array("p", kinds.FINITE)]
    terms: Annotated[dict[str, Vector], kinds.MappingOf(kinds.Array("*", kinds.FINITE))]
    mixing: Annotated[Vector | None, kinds.optional(kinds.Array("K K | K", kinds.FINITE))]
    scores: Annotated[Vector, kinds.Array("K", kinds.FINITE)]
    absent: Annotated[NDArray[np.intp], kinds.Counts("*", kinds.INCREASING)] = field(repr=False)
    loss: Annotated[float, kinds.Number()]
    objective: Annotated[float, kinds.Number()]
    certificate: Annotated[float, kinds.Number()]
    n_iter: Annotated[int, kinds.Integer()]
    n_passes: Annotated[float, kinds.Number(0)]

    def _check_stored(self) -> None:
        columns = (self.absent >= 0) & (self.absent < self.scores.size)
        need(columns.all(), "absent classes must be columns.")

    _stored = Record(check=_check_stored, upgrade=_terms_of_format_1)


def solution_of_multiplier(multiplier: float, n_classes: int) -> Solution:
    """The model ``softmax(multiplier * z)`` as a solution of no problem: it has no loss and no certificate."""
    return Solution(
        coefficients=np.array([multiplier]),
        terms={},
        mixing=None,
        scores=np.zeros(n_classes),
        absent=np.zeros(0, np.intp),
        loss=math.nan,
        objective=math.nan,
        certificate=math.nan,
        n_iter=0,
        n_passes=0.0,
    )


@dataclass(frozen=True)
class Layout:
    """The place of each group of parameters in the flat vector: features, those of the terms, mixing, scores."""

    features: slice
    terms: dict[str, slice]
    mixing: slice
    scores: slice
    size: int

    @classmethod
    def of(cls, features: int, terms: Mapping[str, int], mixing: int, scores: int) -> Self:
        """Consecutive slices of the given sizes."""
        ends = np.cumsum((0, features, *terms.values(), mixing, scores)).tolist()
        first, *others, mixed, scored = (slice(a, b) for a, b in itertools.pairwise(ends))
        return cls(first, dict(zip(terms, others, strict=True)), mixed, scored, ends[-1])
