"""Gaussian and relative atypicality, of rows as they are and of normalised rows, from one pass over training rows."""

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.arrays import entries_at, namespace, on_device, to_host
from atypicality.density.covariance import Factorise, triangular_whitening
from atypicality.density.gaussian import GaussianAtypicality
from atypicality.density.logdensity import score_together
from atypicality.density.relative import RelativeAtypicality
from atypicality.density.solution import GaussianSolution, solve
from atypicality.density.statistics import ClassStatistics, gather_both, merge_statistics
from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.formula.rows import row_tops, squared_lengths
from atypicality.validation import warn
from atypicality.validation.device import any_matrix

__all__ = ["Both", "DensityFamily", "MemberScores", "cost", "joined"]

Float64 = NDArray[np.float64]
Both = tuple[ClassStatistics, ClassStatistics | None]
"""Of rows as they are and, unless one of them is zero, of rows divided by their length."""

CONCERNS = (
    "For embeddings of a network this is usual and can stay; for a table write "
    "ReliabilityHead(density=GaussianAtypicality(shrinkage='columns'))."
)
"""What a covariance that is not of full rank means for a head, and what to do."""


class MemberScores(NamedTuple):
    """What a member says of rows.

    `covariate` is what recalibration reads: atypicality by the Gaussian of rows as they are, of the class that the
    member finds nearest. Log-densities are known up to a constant of each row.
    """

    atypicality: Any  # (n, 1)
    covariate: Any  # (n, 1)
    class_log_density: Any  # (n, m)


class DensityFamily(BaseEstimator):
    """The densities that a head chooses among: `GaussianAtypicality` and `RelativeAtypicality`, raw and normalised.

    A relative density has the sums and the whitening of the Gaussian, and rows are divided by their length as they are
    read, so that all four come from one pass. One class has no relative density. Rows of zeros, which have no
    direction, leave no normalised one, with a warning; nor do directions that vary less than the rows (one column).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted labels.
    n_features_in_ : int
    members_ : dict of str to fitted density
        By how to make them; cheapest to score first.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> family = DensityFamily().fit(rng.normal(size=(60, 3)), np.arange(60) % 2)
    >>> list(family.members_)[:2]
    ['GaussianAtypicality()', "GaussianAtypicality(normalize='l2')"]
    """

    statistics_: Both
    _members: dict[str, GaussianAtypicality] | None

    def fit(self, embeddings: ArrayLike, labels: ArrayLike) -> Self:
        """Learn from training rows.

        Parameters
        ----------
        embeddings : array-like of shape (n_samples, n_features)
            A memory map is read once, block by block. Rows on an accelerator are summed there, once for each
            normalisation.
        labels : array-like of shape (n_samples,)
        """
        factorise: Factorise = triangular_whitening
        if on_device(embeddings):
            from atypicality.density.device_gaussian import whitening_on

            factorise = whitening_on(embeddings)
        self._store(_gathered(embeddings, labels))
        self._members = _solved(self.statistics_, factorise)
        return self

    def partial_fit(self, embeddings: ArrayLike, labels: ArrayLike) -> Self:
        """Learn from more `embeddings` and `labels`; the result is that of one `fit` on all rows."""
        gathered = _gathered(embeddings, labels)
        return self._store(joined(self.statistics_, gathered) if hasattr(self, "statistics_") else gathered)

    def merge(self, other: "DensityFamily") -> "DensityFamily":
        """A new family, as if fitted on the rows of this one and of the `other`."""
        check_is_fitted(self, "statistics_")
        check_is_fitted(other, "statistics_")
        return DensityFamily()._store(joined(self.statistics_, other.statistics_))

    def scores(self, embeddings: ArrayLike) -> dict[str, Float64]:
        """Atypicality (n,) of `embeddings` (n, d) by every member, on the host; a family is no density itself.

        Rows are whitened once for each normalisation, and distances are expanded squares, which lose some of sixteen
        digits for rows far from all classes. Where a row is zero, normalised members are left out.
        """
        return {name: to_host(scored.atypicality)[:, 0] for name, scored in self.scored(embeddings).items()}

    def scored(self, embeddings: ArrayLike) -> dict[str, MemberScores]:
        """As `scores`, with what a head reads beside them, on the device of the rows."""
        x = any_matrix(embeddings, "embeddings", width=self.n_features_in_)
        with_zero = "l2" in [member.normalize for member in self.members_.values()] and _any_zero(x, "calibration")
        names = [
            sorted(name for name, member in self.members_.items() if member.normalize == normalize)
            for normalize in ((None,) if with_zero else (None, "l2"))
        ]
        names = [own for own in names if own]  # the Gaussian, and the relative density behind it, which knows both

        def said(xp: Any, formulas: tuple[Any, ...], products: list[tuple[Any, ...]]) -> tuple[Any, ...]:
            found: list[Any] = []
            (z, scores), raw = products[0][:2], formulas[0]
            whole = 0.5 * squared_lengths(xp, z) - raw.log_peak
            for own, formula, product in zip(names, formulas, products, strict=True):
                nearest, top = row_tops(xp, product[1])
                found += [whole - entries_at(scores, nearest[:, 0]), product[1]]
                found += [
                    getattr(formula, rough)(xp, product, top) for rough in ("rough_gaussian", "rough")[: len(own)]
                ]
            return tuple(found)

        found = iter(score_together(tuple(self.members_[own[-1]].formula() for own in names), x, said))
        known: dict[str, MemberScores] = {}
        for own in names:
            beside = next(found), next(found)
            known |= {name: MemberScores(next(found), *beside) for name in own}
        return {name: known[name] for name in self.members_ if name in known}

    @property
    def members_(self) -> dict[str, GaussianAtypicality]:
        """Fitted densities by their names, cheapest first."""
        check_is_fitted(self, "statistics_")
        if self._members is None:
            self._members = _solved(self.statistics_, triangular_whitening)
        return self._members

    def _store(self, statistics: Both) -> Self:
        self.statistics_, self.classes_ = statistics, statistics[0].classes
        self.n_features_in_ = statistics[0].origins.shape[1]
        self._members = None
        return self


def cost(density: GaussianAtypicality) -> int:
    """Multiply-adds to score a row."""
    formula = density.formula()
    matrices = ("whitening", "targets", "spread")
    sizes = [getattr(formula, name).size for name in matrices if hasattr(formula, name)]
    return int(sum(sizes)) + (0 if density.normalize is None else density.n_features_in_)


def _gathered(embeddings: Any, labels: Any) -> Both:
    if not on_device(embeddings):
        return gather_both(embeddings, labels)
    from atypicality.density.device_gaussian import gather_on_device

    raw = gather_on_device(embeddings, labels, layout="pooled", precision="float64")
    xp = namespace(embeddings)
    if bool(xp.any(xp.all(embeddings == 0, axis=1))):
        return raw, None
    return raw, gather_on_device(embeddings, labels, layout="pooled", precision="float64", normalize="l2")


def joined(ours: Both, theirs: Both) -> Both:
    """Statistics of the rows of both."""
    widths = [both[0].origins.shape[1] for both in (ours, theirs)]
    if widths[0] != widths[1]:
        raise ValueError(
            f"other must have seen {widths[0]} columns too; it saw {widths[1]}. Use the same model and layer."
        )
    unit = None if ours[1] is None or theirs[1] is None else merge_statistics(ours[1], theirs[1])
    return merge_statistics(ours[0], theirs[0]), unit


def _solved(statistics: Both, factorise: Factorise) -> dict[str, GaussianAtypicality]:
    raw, unit = statistics
    solution = _solution(raw, factorise)
    if solution.weakness:
        warn(f"{solution.weakness} {CONCERNS}")
    members = _pair(None, raw, solution)
    if unit is None:
        _warn_of_zeros("train")
    elif raw.origins.shape[1] > 1:  # a single column has nothing but a sign left
        normalized = _solution(unit, factorise)
        members |= _pair("l2", unit, normalized) if normalized.rank == solution.rank else {}
    return dict(sorted(members.items(), key=lambda member: cost(member[1])))


def _solution(statistics: ClassStatistics, factorise: Factorise) -> GaussianSolution:
    how: dict[str, Any] = {"covariance": "tied", "shrinkage": None, "n_components": None, "precision": "float64"}
    with blocks.single_threaded_blas(statistics.origins.shape[1]):
        return solve(statistics, **how, factorise=factorise)


def _pair(
    normalize: str | None, statistics: ClassStatistics, solution: GaussianSolution
) -> dict[str, GaussianAtypicality]:
    """The Gaussian and, with two classes or more, the relative density of the same rows."""
    gaussian = GaussianAtypicality(normalize=normalize)._store(statistics, solution)
    if statistics.classes.size < 2:
        return {str(gaussian): gaussian}
    relative = RelativeAtypicality(normalize=normalize)
    relative._store(statistics, relative._against_background(solution, statistics))
    return {str(gaussian): gaussian, str(relative): relative}


def _any_zero(x: Any, whose: str) -> bool:
    """Whether a row (n, d) is all zeros, with a warning if so."""
    xp, n = namespace(x), x.shape[0]
    block = blocks.block_rows(8 * x.shape[1], budget=blocks.GEMM_BYTES) if isinstance(x, np.ndarray) else max(n, 1)

    def zero(rows: slice) -> bool:
        return bool(xp.any(xp.all(x[rows, :] == 0, axis=1)))

    found = any(blocks.map_rows(zero, n, block=block))
    if found:
        _warn_of_zeros(whose)
    return found


def _warn_of_zeros(whose: str) -> None:
    warn(
        f"{whose} has rows of zeros, which have no direction: densities of normalised rows are left out of the choice. "
        "Nothing need be done, unless you want them: then drop those rows."
    )
