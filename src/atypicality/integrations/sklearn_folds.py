"""Cross-fitting: every row trains estimators, and calibrates by what an estimator that never saw it says of it."""

import inspect
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, clone
from sklearn.utils.metaestimators import available_if

from atypicality.density import GaussianAtypicality
from atypicality.density.columns import class_sources, in_columns
from atypicality.head import ReliabilityHead
from atypicality.outputs import ModelOutputs, Parts, three_way_split
from atypicality.recalibration import AdaptiveTemperatureScaling
from atypicality.recalibration.base import Recalibrator
from atypicality.validation import caught_warnings, check_choice, check_integer

__all__ = [
    *("TABLE", "OutOfFold", "averaged", "check_crossed", "cut_folds", "density_of", "fit_crossed", "number_of_folds"),
]

Doubles = NDArray[np.float64]
Rows = NDArray[np.intp]
TABLE = GaussianAtypicality(shrinkage="columns")
"""The density of columns that may be constant or depend on each other: it notices a category that is new.

A relative density would not: what is new is as far from the background of all rows as from any class.
"""


def number_of_folds(cv: Any, ensemble: Any) -> int:
    """Folds of cross-fitting; 0 without it."""
    check_choice(ensemble, "ensemble", (True, False))
    if cv is None or isinstance(cv, str):
        check_choice(cv, "cv", (None, "prefit"))
        return 0
    if not isinstance(cv, Integral):
        raise TypeError(
            f"cv must be a number of folds, at least 2; got {type(cv).__name__}. Folds are cut at random and never "
            "stratified, as a guarantee for new rows needs: give their number."
        )
    return check_integer(cv, "cv, where it is no text,", low=2)


def cut_folds(n_rows: int, n_folds: int, seed: int) -> list[Rows]:
    """Random folds of rows, whose sizes differ by one at most, each in random order.

    Never stratified: the coverage guarantee is for rows drawn alike. Estimators meet their rows in random order, so
    that none depends on the order they came in.
    """
    if n_rows < 2 * n_folds:
        raise ValueError(f"cv={n_folds} must leave 2 rows in every fold; n_samples = {n_rows} do not.")
    return list(np.array_split(np.random.default_rng(seed).permutation(n_rows), n_folds))


def check_crossed(head: ReliabilityHead, ensemble: bool) -> None:
    """Refuse a head with sets that an ensemble does not use, or whose recalibration reads embeddings.

    Embeddings of one fold are not those of another.
    """
    if ensemble and not isinstance(head.prediction_sets, str):
        raise ValueError(
            'head must have prediction_sets="auto" where cv is a number and ensemble=True: the sets are then '
            f"cross-conformal (CV+) at the head's alpha, and {type(head.prediction_sets).__name__} would not be used. "
            "Leave cv out, so that it has rows of its own and its guarantee; or set ensemble=False, which uses it but "
            "guarantees no coverage."
        )
    part = head.recalibration
    if isinstance(part, str):
        return
    ours = isinstance(part, Recalibrator) and not isinstance(part, AdaptiveTemperatureScaling)
    if not ours and "embeddings" in inspect.signature(part.fit).parameters:
        raise ValueError(
            f"head must have a recalibration without embeddings where cv is a number; {type(part).__name__} reads "
            "them, and every fold has embeddings of its own. Leave cv out, or take another recalibration."
        )


class OutOfFold(BaseEstimator):
    """A density that holds what densities said of rows they were fitted without; a row's embedding is its number.

    Parameters
    ----------
    density : estimator
        Fitted anew for every fold.
    """

    def __init__(self, density: Any) -> None:
        self.density = density

    def fit(self, names: NDArray[Any], codes: Rows) -> Self:
        """Make room for rows with classes `codes` (n,) of these names (k,); `measure` fills it fold by fold."""
        counts, n_rows = np.bincount(codes), codes.size
        self.classes_, self.counts_, self.n_features_in_ = names, counts, 1
        self.atypicality_ = np.empty(n_rows)
        by_class = hasattr(self.density, "class_log_density")
        self.densities_: Any = np.empty((n_rows, len(names))) if by_class else None
        return self

    def measure(self, rows: Rows, embeddings: Any, train: Any, codes: Rows) -> None:
        """Fit the density on training embeddings with classes `codes`, and measure the rows of a fold."""
        with caught_warnings():  # the density of all rows will say it
            fitted = clone(self.density).fit(train, codes)
        self.atypicality_[rows] = fitted.atypicality(embeddings)
        if self.densities_ is not None:
            sources = class_sources(np.asarray(fitted.classes_, np.intp), len(self.classes_))
            self.densities_[rows] = in_columns(np.asarray(fitted.class_log_density(embeddings)), sources)

    def atypicality(self, embeddings: Any) -> Doubles:
        """Atypicality (n,) of rows by number (n, 1)."""
        found: Doubles = self.atypicality_[np.asarray(embeddings)[:, 0].astype(np.intp)]
        return found

    @available_if(lambda self: self.densities_ is not None)  # type: ignore[untyped-decorator]
    def class_log_density(self, embeddings: Any) -> Any:
        """Class log-densities (n, k) of rows by number (n, 1)."""
        return self.densities_[np.asarray(embeddings)[:, 0].astype(np.intp)]


def density_of(head: ReliabilityHead) -> Any:
    """The density that cross-fitting fits in every fold: one and the same, so that its scores can be compared."""
    return TABLE if isinstance(head.density, str) else head.density


def fit_crossed(
    head: ReliabilityHead, logits: Doubles, codes: Rows, names: NDArray[Any], measured: Any, attributes: Any
) -> Any:
    """A head fitted on out-of-fold logits (n, k) and what was `measured` of the rows, an `OutOfFold` or None.

    `attributes` are those that the head's sets read.

    Sets, abstention, quantiles and metrics are of rows that its recalibration did not see, as in any head; then
    recalibration is fitted once more, on all rows.
    """
    numbers = np.arange(float(codes.size))[:, None]
    embeddings = None if measured is None else numbers
    outputs = ModelOutputs(logits, embeddings=embeddings, attributes=attributes, class_names=names)
    outputs = outputs._replaced(labels=codes)
    parts = three_way_split(outputs, random_state=head.random_state)
    fitted = clone(head)._fit(measured, parts, aligned=True)
    with caught_warnings():  # what it would say was just said
        whole = clone(head)._fit(measured, Parts(outputs, *parts[1:]), aligned=True)
    fitted.recalibration_, fitted.cross_fitted_ = whole.recalibration_, True
    fitted.sizes_ |= {"train": codes.size, "recalibration": codes.size}
    return fitted


def averaged(logits: list[Doubles]) -> Doubles:
    """Logarithms (n, k) of the mean probabilities of several estimators."""
    each = [one - logsumexp(one, axis=1, keepdims=True) for one in logits]
    return np.asarray(logsumexp(each, axis=0) - np.log(len(logits)))
