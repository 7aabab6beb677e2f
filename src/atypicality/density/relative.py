"""Relative atypicality: how much nearer a row is to the background of all training rows than to any one class."""

from dataclasses import replace

from atypicality.density.covariance import Factorise, triangular_whitening
from atypicality.density.gaussian import GaussianAtypicality
from atypicality.density.logdensity import RelativeGaussians, TiedGaussians
from atypicality.density.solution import GaussianSolution
from atypicality.density.statistics import ClassStatistics
from atypicality.stored import Record, kinds, need

__all__ = ["RelativeAtypicality"]


class RelativeAtypicality(GaussianAtypicality):
    """Atypicality of a row: half its squared distance to the nearest class, less half that to all training rows.

    The relative Mahalanobis distance (Ren, Fort, Liu, Roy, Padhy and Lakshminarayanan 2021, "A simple fix to
    Mahalanobis distance for improving near-OOD detection"): class means m_y with one covariance S, against one
    background Gaussian with the mean m and covariance T = S + (covariance of the class means) of all rows,
    `a(x) = min_y (x - m_y)' S^-1 (x - m_y) / 2 - (x - m)' T^-1 (x - m) / 2`. What moves a row away from every class
    and from the background alike, such as the length of its embedding, drops out.

    Class log-densities are those of `GaussianAtypicality`, and so are `fit`, `partial_fit`, `merge` and every
    attribute: the background follows from the same sums.

    Parameters
    ----------
    shrinkage : None, "ledoit-wolf", "oas", "columns" or float in [0, 1], default=None
        Of S, as in `GaussianAtypicality`; T is then the shrunk S and the covariance of the class means.
    n_components : int, optional
        Project the rows on that many principal components of the training rows first.
    precision : {"float64", "float32"}, default="float64"
        Of the matrix products.
    normalize : None or "l2", default=None
        "l2" divides rows by their Euclidean length first. Rows of zeros have none and are refused.
    residual : bool, default=False
        Count what lies outside the directions in which rows of a class vary, as in `GaussianAtypicality`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; at least two.
    counts_ : ndarray of shape (n_classes,)
        Training rows of each class.
    statistics_ : ClassStatistics
        The sums that everything comes from.

    Notes
    -----
    Where S is not of full rank, both distances are those of the row in the directions in which rows of a class vary,
    with a warning, unless `residual` counts the others.

    Examples
    --------
    >>> import numpy as np
    >>> square = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])  # about (1, 1), covariance I
    >>> two = np.concatenate([square, square + [6.0, 0.0]])  # all rows: about (4, 1), variances 1 + 9 and 1
    >>> relative = RelativeAtypicality().fit(two, ["a"] * 4 + ["b"] * 4)
    >>> relative.atypicality([[1.0, 1.0], [4.0, 1.0], [1.0, 99.0]])  # -9 / 10 / 2; 9 / 2; the second column cancels
    array([-0.45,  4.5 , -0.45])
    """

    covariance = "tied"
    marginal = False

    def __init__(
        self,
        *,
        shrinkage: str | float | None = None,
        n_components: int | None = None,
        precision: str = "float64",
        normalize: str | None = None,
        residual: bool = False,
    ) -> None:
        self.shrinkage = shrinkage
        self.n_components = n_components
        self.precision = precision
        self.normalize = normalize
        self.residual = residual

    def _solve(self, statistics: ClassStatistics, factorise: Factorise = triangular_whitening) -> GaussianSolution:
        return self._against_background(super()._solve(statistics, factorise), statistics)

    def _against_background(self, solution: GaussianSolution, statistics: ClassStatistics) -> GaussianSolution:
        """The solution of `GaussianAtypicality` for the same parameters, with a background."""
        if statistics.classes.size < 2:
            raise ValueError(
                "labels must have at least two classes for RelativeAtypicality; got one, which is its own background. "
                "Use GaussianAtypicality."
            )
        assert isinstance(solution.gaussians, TiedGaussians)
        return replace(solution, gaussians=RelativeGaussians.beside(solution.gaussians, statistics.counts))

    def _check_stored(self) -> None:
        super()._check_stored()
        need(isinstance(self._solved().gaussians, RelativeGaussians), "there must be a background.")

    _stored = Record(
        check=_check_stored,
        restore=GaussianAtypicality._restore,
        ready=GaussianAtypicality._solved,
        shrinkage=kinds.Either(None, "ledoit-wolf", "oas", "columns", otherwise=kinds.Number(0, 1)),
        n_components=kinds.optional(kinds.Integer(1)),
        precision=kinds.Choice("float64", "float32"),
        normalize=kinds.Choice(None, "l2"),
        residual=kinds.Later(kinds.FLAG, absent=False),
    )
