"""Gaussian atypicality: how far a row lies from the class-conditional densities of the training embeddings."""

from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.arrays import on_device, returns_like_input
from atypicality.density.covariance import Factorise, triangular_whitening
from atypicality.density.logdensity import score_rows
from atypicality.density.solution import GaussianSolution, solve
from atypicality.density.statistics import (
    ClassStatistics,
    Layout,
    gather_statistics,
    merge_statistics,
    statistics_from_moments,
)
from atypicality.estimators import BaseEstimator, check_is_fitted, clone
from atypicality.formula import ClassDensity, TiedDensity
from atypicality.stored import Part, Record, kinds, need
from atypicality.validation import check_choice, check_integer, check_number, warn
from atypicality.validation.device import any_matrix

__all__ = ["GaussianAtypicality"]

Float64 = NDArray[np.float64]
SHRINKAGES = (None, "ledoit-wolf", "oas", "columns")


class GaussianAtypicality(BaseEstimator):
    """Atypicality of a row: minus its largest class-conditional log-density, each class a Gaussian.

    The paper's estimate (section 2 and appendix A): class means and one covariance for all classes, both by maximum
    likelihood on the embeddings of the training rows, and a(x) = -max_y log N(x; m_y, S).

    Parameters
    ----------
    covariance : {"tied", "full", "diagonal"}, default="tied"
        One covariance for all classes, one for each, or variances alone for each. Those of "full" are learnt class by
        class: rows of a file are then not read in their order.
    shrinkage : None, "ledoit-wolf", "oas", "columns" or float in [0, 1], default=None
        Share of a multiple of the identity that is mixed into the covariance. Rules by name need full matrices.
        "ledoit-wolf" keeps one scatter matrix per class so that parts can still be merged exactly; "oas" does not.
        "columns", for tables, adds one row that has the variances of the columns, 1 where a column is constant, and no
        covariance: what moves where no training row does, such as a new category, is then far from every class,
        whatever the units of the columns.
    n_components : int, optional
        Project the rows on that many principal components of the training rows first.
    marginal : bool, default=False
        Take the density p(x), classes weighted by their share of the training rows, instead of the largest p(x | y).
    precision : {"float64", "float32"}, default="float64"
        Of the matrix products. Sums are always float64 and rows are centred first. Float32 keeps scores to 1e-6 of
        max(abs(score), d) while the largest eigenvalue of the covariance is up to about 100 times the smallest, and
        loses digits in proportion beyond.
    normalize : None or "l2", default=None
        "l2" divides rows by their Euclidean length first, in `fit` and in scoring, so that densities are those of
        directions. Rows of zeros have none and are refused.
    residual : bool, default=False
        Count what lies outside the directions in which training rows vary (constant columns, fewer rows than columns),
        with the smallest variance inside, and outside of `n_components`, which are then not projected on, with the mean
        of what is left there. Otherwise it is ignored.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted labels: the order of classes everywhere else.
    counts_ : ndarray of shape (n_classes,)
        Training rows of each class.
    means_ : ndarray of shape (n_classes, n_features)
        Class means; of the projected rows where `n_components` is set.
    covariance_ : ndarray of shape (d, d), (n_classes, d, d) or (n_classes, d)
        After shrinkage, in the space of `means_`.
    rank_ : int, or ndarray of shape (n_classes,) unless the covariance is tied
        Directions in which the training rows vary. Where it is below d, densities are those on that subspace
        (pseudo-inverse, pseudo-determinant, rank x log 2 pi), and what lies across it is ignored, with a warning. With
        `residual` it is d.
    components_ : ndarray of shape (n_components, n_features) or None
        Rows to project on.
    statistics_ : ClassStatistics
        The sums that everything above comes from.

    Notes
    -----
    Rows are taken as exact numbers, whatever their type: rank is lost only where the arithmetic cannot tell an
    eigenvalue from 0 (see `atypicality.density.covariance.whiten`).

    Examples
    --------
    >>> import numpy as np
    >>> square = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])  # about (1, 1), covariance I
    >>> gaussian = GaussianAtypicality().fit(np.concatenate([square, square + 9.0]), ["a"] * 4 + ["b"] * 4)
    >>> gaussian.atypicality([[1.0, 1.0], [1.0, 3.0]]).round(3)  # log 2 pi, and half a squared distance of 4 more
    array([1.838, 3.838])
    """

    statistics_: ClassStatistics
    classes_: Annotated[NDArray[Any], kinds.Labels("c")]
    counts_: Annotated[NDArray[np.intp], kinds.Counts("c", kinds.POSITIVE)]
    n_features_in_: Annotated[int, kinds.Size("D")]
    _solution: Annotated[GaussianSolution | None, Part(GaussianSolution)]

    def __init__(
        self,
        covariance: str = "tied",
        *,
        shrinkage: str | float | None = None,
        n_components: int | None = None,
        marginal: bool = False,
        precision: str = "float64",
        normalize: str | None = None,
        residual: bool = False,
    ) -> None:
        self.covariance = covariance
        self.shrinkage = shrinkage
        self.n_components = n_components
        self.marginal = marginal
        self.precision = precision
        self.normalize = normalize
        self.residual = residual

    def fit(self, embeddings: ArrayLike, labels: ArrayLike) -> Self:
        """Learn class means and covariance.

        Parameters
        ----------
        embeddings : array-like of shape (n_samples, n_features)
            Any float type; a memory map is read block by block. Rows on an accelerator are summed there, and what is
            learnt from them is kept on the host.
        labels : array-like of shape (n_samples,)
            Integers, booleans or strings, on the host or beside the rows.
        """
        statistics = self._gather(embeddings, labels)
        if not on_device(embeddings):
            return self._store(statistics, self._solve(statistics))
        from atypicality.density.device_gaussian import whitening_on

        return self._store(statistics, self._solve(statistics, whitening_on(embeddings)))

    def partial_fit(self, embeddings: ArrayLike, labels: ArrayLike) -> Self:
        """Learn from more `embeddings` and `labels`; the result is that of one `fit` on all rows, in whatever order.

        Covariances are worked out when they are next needed, and a warning about their rank is given then.
        """
        if not hasattr(self, "statistics_"):
            return self._store(self._gather(embeddings, labels), None)
        gathered = self._gather(embeddings, labels, width=self.statistics_.origins.shape[1])
        return self._store(self._joined(gathered), None)

    def merge(self, other: "GaussianAtypicality") -> "GaussianAtypicality":
        """A new estimator, as if fitted on the rows of this one and of the `other`, whose classes may be others."""
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}; got {type(other).__name__}.")
        check_is_fitted(self, "statistics_")
        check_is_fitted(other, "statistics_")
        for name in ("covariance", "shrinkage", "n_components", "normalize", "residual"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                raise ValueError(
                    f"other must have the same {name}; got {theirs!r} against {ours!r}. Refit one of them."
                )
        merged: GaussianAtypicality = clone(self)
        return merged._store(self._joined(other.statistics_), None)

    @classmethod
    def from_statistics(
        cls,
        counts: ArrayLike,
        means: ArrayLike,
        covariance: ArrayLike,
        *,
        classes: ArrayLike | None = None,
        shrinkage: str | float | None = None,
        n_components: int | None = None,
        marginal: bool = False,
        precision: str = "float64",
        normalize: str | None = None,
        residual: bool = False,
    ) -> Self:
        """A fitted estimator from what it would have learnt.

        Parameters
        ----------
        counts : array-like of shape (n_classes,)
            Training rows of each class.
        means : array-like of shape (n_classes, d)
        covariance : array-like of shape (d, d), (n_classes, d, d) or (n_classes, d)
            By maximum likelihood about the class means: tied, full, or diagonal. A square one is tied.
        classes : array-like of shape (n_classes,), optional
            Sorted labels, 0 to n_classes - 1 by default.
        shrinkage, n_components, marginal, precision, normalize, residual
            As in the constructor; with `normalize` the statistics are those of normalised rows.
        """
        statistics = statistics_from_moments(counts, means, covariance, classes)
        options: dict[str, Any] = {
            "covariance": _COVARIANCE_OF[statistics.layout],
            "shrinkage": shrinkage,
            "n_components": n_components,
            "marginal": marginal,
            "precision": precision,
            "normalize": normalize,
            "residual": residual,
        }
        made = cls(**{name: options[name] for name in cls._get_param_names()})
        for name, value in options.items():
            if getattr(made, name) != value:
                raise ValueError(f"{name} must be {getattr(made, name)!r} for {cls.__name__}; got {value!r}.")
        if made._check_parameters() != (statistics.layout, False):
            raise ValueError(
                f"shrinkage={shrinkage!r} with n_components={n_components!r} needs more than these statistics. "
                "Fit on the embeddings, or use shrinkage='oas' and a full or tied covariance."
            )
        return made._store(statistics, made._solve(statistics))

    @returns_like_input
    def atypicality(self, embeddings: ArrayLike) -> Float64:
        """Atypicality (n_samples,) of `embeddings` (n_samples, n_features), larger is rarer."""
        found: Float64 = self._scored(embeddings, "atypicality")[:, 0]
        return found

    @returns_like_input
    def class_log_density(self, embeddings: ArrayLike) -> Float64:
        """Log-density (n_samples, n_classes) of `embeddings` under each class, columns in the order of `classes_`."""
        found: Float64 = self._scored(embeddings, "class_log_density")
        return found

    def formula(self) -> TiedDensity | ClassDensity:
        """The parameters of a score; see `atypicality.formula`."""
        gaussians = self._solved().gaussians
        log_prior = np.log(self.counts_ / self.counts_.sum()) if self.marginal else None
        return gaussians.formula(log_prior, self.normalize)

    def _scored(self, embeddings: Any, what: str) -> Any:
        formula = self.formula()
        return score_rows(formula, any_matrix(embeddings, "embeddings", width=self.n_features_in_), what)[0]

    @property
    def means_(self) -> Float64:
        """Class means (n_classes, d)."""
        return self._solved().means

    @property
    def covariance_(self) -> Float64:
        """Covariance after shrinkage."""
        return self._solved().covariance

    @property
    def components_(self) -> Float64 | None:
        """Rows to project on (n_components, n_features), or None."""
        return self._solved().components

    @property
    def rank_(self) -> int | NDArray[np.intp]:
        """Rank of the covariance: a number if tied, else one for each class."""
        return self._solved().rank

    def _check_parameters(self) -> tuple[Layout, bool]:
        """Refuse what cannot be, and say which statistics are needed: the layout, and whether fourth moments are."""
        check_choice(self.covariance, "covariance", tuple(_COVARIANCE_OF.values()))
        check_choice(self.precision, "precision", ("float64", "float32"))
        check_choice(self.marginal, "marginal", (False, True))
        check_choice(self.normalize, "normalize", (None, "l2"))
        check_choice(self.residual, "residual", (False, True))
        if self.n_components is not None:
            check_integer(self.n_components, "n_components", low=1)
        if self.shrinkage is not None and not isinstance(self.shrinkage, str):
            check_number(self.shrinkage, "shrinkage", low=0.0, high=1.0)
        elif check_choice(self.shrinkage, "shrinkage", SHRINKAGES) and self.covariance == "diagonal":
            raise ValueError(
                f"shrinkage must be None or a number with covariance='diagonal'; got {self.shrinkage!r}, "
                "whose rule is about full matrices."
            )
        if self.residual and self.n_components is not None and self.covariance == "diagonal":
            raise ValueError(
                "residual=True with n_components needs covariance='tied' or 'full': variances of components are no "
                "variances of columns. Leave one of the two out."
            )
        moments = self.shrinkage == "ledoit-wolf"
        if self.shrinkage in ("ledoit-wolf", "columns") and self.n_components is not None:
            why = (
                "its fourth moments are those of rows before the projection" if moments else "components are no columns"
            )
            raise ValueError(
                f"shrinkage={self.shrinkage!r} cannot be combined with n_components: {why}. Use shrinkage='oas', or "
                "project the embeddings yourself."
            )
        if moments or self.covariance == "full" or (self.covariance == "diagonal" and self.n_components is not None):
            return "full", moments
        return ("pooled" if self.covariance == "tied" else "diagonal"), moments

    def _gather(self, embeddings: Any, labels: Any, width: int | None = None) -> ClassStatistics:
        layout, moments = self._check_parameters()
        gather = gather_statistics
        if on_device(embeddings):
            from atypicality.density.device_gaussian import gather_on_device as gather
        how: dict[str, Any] = {"layout": layout, "moments": moments, "normalize": self.normalize}
        return gather(embeddings, labels, precision=self.precision, width=width, **how)

    def _joined(self, other: ClassStatistics) -> ClassStatistics:
        ours, theirs = self.statistics_.origins.shape[1], other.origins.shape[1]
        if ours != theirs:
            raise ValueError(f"other must have seen {ours} columns too; it saw {theirs}. Use the same model and layer.")
        return merge_statistics(self.statistics_, other)

    def _solve(self, statistics: ClassStatistics, factorise: Factorise = triangular_whitening) -> GaussianSolution:
        with blocks.single_threaded_blas(statistics.origins.shape[1]):
            solution = solve(
                statistics,
                covariance=self.covariance,
                shrinkage=self.shrinkage,
                n_components=self.n_components,
                precision=self.precision,
                residual=self.residual,
                factorise=factorise,
            )
        if solution.weakness:
            warn(
                f"{solution.weakness} To count them, set shrinkage='oas' for embeddings of a network, "
                "shrinkage='columns' for a table, or residual=True; or set n_components of at most "
                f"{np.min(solution.rank)}, or fit on more rows."
            )
        return solution

    def _solved(self) -> GaussianSolution:
        check_is_fitted(self, "statistics_")
        if self._solution is None:  # two threads may both get here: they store the same
            self._solution = self._solve(self.statistics_)
        return self._solution

    def _store(self, statistics: ClassStatistics, solution: GaussianSolution | None) -> Self:
        self.statistics_ = statistics
        self.classes_, self.counts_ = statistics.classes, statistics.counts
        self.n_features_in_ = statistics.origins.shape[1]
        self._solution = solution
        return self

    def _check_stored(self) -> None:
        self._check_parameters()
        solution = self._solved()
        solution.check(self.covariance, self.precision)
        whole = self.n_components is None or self.residual
        width = self.n_features_in_ if whole else self.n_components
        need(solution.means.shape[1] == width, f"the means must have {width} columns.")
        need((solution.components is None) == whole, "there must be components if rows are projected.")

    def _restore(self) -> None:
        self.statistics_ = ScoringOnly()  # type: ignore[assignment]

    _stored = Record(
        check=_check_stored,
        restore=_restore,
        ready=_solved,
        covariance=kinds.Choice("tied", "full", "diagonal"),
        shrinkage=kinds.Either(None, "ledoit-wolf", "oas", "columns", otherwise=kinds.Number(0, 1)),
        n_components=kinds.optional(kinds.Integer(1)),
        precision=kinds.Choice("float64", "float32"),
        normalize=kinds.Later(kinds.Choice(None, "l2"), absent=None),
        residual=kinds.Later(kinds.FLAG, absent=False),
    )


class ScoringOnly:
    """What stands in a loaded density for the sums over its training rows: it says that they were not stored."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and printing ask for these
            raise AttributeError(name)
        raise ValueError(
            "this density was loaded from a bundle, which keeps what scoring needs and not the sums over the training "
            "rows, so partial_fit and merge cannot go on from it. Fit a new density on the training rows."
        )


_COVARIANCE_OF: dict[Layout, str] = {"pooled": "tied", "full": "full", "diagonal": "diagonal"}
