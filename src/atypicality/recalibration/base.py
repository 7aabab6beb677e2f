"""The shell that every recalibrator shares: arrays in, checked once; probabilities out, as the caller's kind."""

from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.arrays import namespace, on_device, returns_like_input, to_numpy
from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.recalibration.device_rows import device_densities
from atypicality.recalibration.prediction import predicted_rows
from atypicality.recalibration.solver import TOLERANCE, Problem, Solution
from atypicality.stored import Part, kinds
from atypicality.validation import (
    check_embeddings,
    check_groups,
    check_labels,
    check_length,
    check_logits,
    check_matrix,
    check_sample_weight,
    check_vector,
    name_classes,
    warn,
    warn_of_probabilities,
)
from atypicality.validation.device import any_logits

__all__ = ["ConvexRecalibrator", "Errors", "Inputs", "Recalibrator", "error_free"]

Errors = Annotated[int | None, kinds.Later(kinds.optional(kinds.Integer()), absent=None)]
"""Misclassified recalibration rows; bundles of 0.1 do not say how many."""
MANY = 100  # rows of which none is misclassified that raise the question whether the model was trained on them


@dataclass(frozen=True)
class Inputs:
    """What a caller gave: logits (n, k), NumPy or on a device, and arrays that are checked only when asked for."""

    logits: Any
    atypicality: Any = None
    class_log_density: Any = None
    embeddings: Any = None
    groups: Any = None
    class_log_prior: Any = None
    ambiguity: Any = None
    owner: str = "This recalibrator"

    @property
    def n_rows(self) -> int:
        """Number of rows of the logits."""
        return int(self.logits.shape[0])

    def need_vector(self, name: str) -> NDArray[np.float64]:
        """One number per row (n,), by its name, or an error that names who needs it."""
        return check_vector(self._need(name), name, n_rows=self.n_rows)

    def need_class_log_density(self) -> Any:
        """Class log-densities (n, k), on the device of the logits."""
        if not isinstance(self.logits, np.ndarray):
            return device_densities(self._need("class_log_density"), self.logits)
        values = check_matrix(self._need("class_log_density"), "class_log_density", width=self.logits.shape[1])
        check_length(values, "class_log_density", self.n_rows)
        return values

    def need_embeddings(self, width: int | None = None) -> NDArray[Any]:
        """Embeddings (n, d)."""
        values = check_embeddings(self._need("embeddings"), width=width)
        check_length(values, "embeddings", self.n_rows)
        return values

    def need_groups(self) -> NDArray[Any]:
        """Groups (n,)."""
        return check_groups(self._need("groups"), n_rows=self.n_rows)

    def _need(self, name: str) -> Any:
        if (value := getattr(self, name)) is None:
            raise ValueError(
                f"{self.owner} needs {name}=, one entry per row of logits, in fit and in prediction; got None. "
                "`evaluate` and `compare` estimate it where they are given train=, or take it from the outputs."
            )
        return value


class Recalibrator(BaseEstimator):
    """Logits in, probabilities out.

    Subclasses give `_fit(inputs, labels, weight)` and `formula()`, and in `_columns(inputs)` what their formula reads
    of the rows beside the logits.
    """

    n_classes_: Annotated[int, kinds.Size("K")]
    errors_: Any

    _scan = True  # False where the solver is the first to read the rows: it checks them on the way
    _device = True  # False where logits on a device are refused

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        atypicality: ArrayLike | None = None,
        class_log_density: ArrayLike | None = None,
        embeddings: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        class_log_prior: ArrayLike | None = None,
        ambiguity: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn from held-out rows; arrays that this method does not need are ignored.

        Parameters
        ----------
        logits : array-like of shape (n, k)
            On an accelerator (torch, CuPy) they stay there; the fitted object is on the host all the same.
        labels : array-like of shape (n,)
            Column indices of the logits.
        atypicality : array-like of shape (n,), optional
        class_log_density : array-like of shape (n, k), optional
        embeddings : array-like of shape (n, d), optional
        groups : array-like of shape (n,), optional
        class_log_prior : array-like of shape (k,), optional
            Logarithms of the class shares in the training rows; an additive constant does not matter.
        ambiguity : array-like of shape (n,), optional
            Of the model's prediction, by `NeighborRatio`.
        sample_weight : array-like of shape (n,), optional
            A weight of 2 is the same as a repeated row.
        """
        given = atypicality, class_log_density, embeddings, groups, class_log_prior, ambiguity
        inputs = Inputs(self._logits(logits, scan=self._scan), *given, type(self).__name__)
        n, k = inputs.logits.shape
        if n == 0:
            raise ValueError("logits must have at least one row to fit; got none.")
        known = check_labels(labels, n_classes=k, n_rows=n)
        if isinstance(inputs.logits, np.ndarray):
            warn_of_probabilities(inputs.logits)
        with blocks.single_threaded_blas():  # its threads would spin on the cores that passes over blocks need
            self._fit(inputs, known, check_sample_weight(sample_weight, n))
        self.n_classes_ = k
        return self

    @returns_like_input
    def predict_proba(
        self,
        logits: ArrayLike,
        *,
        atypicality: ArrayLike | None = None,
        class_log_density: ArrayLike | None = None,
        embeddings: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        ambiguity: ArrayLike | None = None,
    ) -> Any:
        """Recalibrated probabilities (n, k) of `logits` (n, k), on their device.

        `atypicality`, `class_log_density`, `embeddings`, `groups` and `ambiguity` are needed where `fit` needed them.
        """
        check_is_fitted(self)
        known = self._logits(logits, n_classes=self.n_classes_, scan=False)
        given = atypicality, class_log_density, embeddings, groups, None, ambiguity
        return self._predicted(known, self._columns(Inputs(known, *given, type(self).__name__)))

    @returns_like_input
    def predict(self, logits: ArrayLike, **given: ArrayLike | None) -> Any:
        """Column index (n,) of the largest probability of `logits`; more is `given` as to `predict_proba`."""
        rows = logits if self._device and on_device(logits) else to_numpy(logits, "logits")
        probs = self.predict_proba(rows, **given)
        return namespace(probs).argmax(probs, axis=1)

    def _predicted(self, logits: Any, columns: dict[str, Any]) -> Any:
        return predicted_rows(self.formula(), logits, **columns)

    def formula(self) -> Any:
        """The parameters of a prediction; see `atypicality.formula`."""
        raise NotImplementedError

    def _keep_errors(self, errors: int, n_rows: int) -> None:
        """Store how many calibration rows were misclassified, and warn where none was."""
        self.errors_ = errors
        if errors == 0 and getattr(self, "pseudo_rows", True):
            warn(error_free_message(n_rows))

    def _fit(self, inputs: Inputs, labels: NDArray[np.intp], weight: NDArray[np.float64] | None) -> None:
        raise NotImplementedError

    def _columns(self, inputs: Inputs) -> dict[str, Any]:
        """Checked `atypicality`, `densities` or `multiplier` of the rows, as far as the formula reads them."""
        return {}

    def _logits(self, logits: Any, *, n_classes: int | None = None, scan: bool = True) -> Any:
        check = any_logits if self._device else check_logits
        return check(logits, n_classes=n_classes, scan=scan)


class ConvexRecalibrator(Recalibrator):
    """A recalibrator whose fit is one solved problem: it carries the loss, the certificate and what is absent."""

    solution_: Annotated[Solution, Part(Solution)]
    errors_: Errors

    def _fit(self, inputs: Inputs, labels: NDArray[np.intp], weight: NDArray[np.float64] | None) -> None:
        terms = self._terms(inputs.logits.shape[1])
        self._fit_problem(Problem(inputs.logits, labels, sample_weight=weight, **terms), labels.size)

    def _terms(self, n_classes: int) -> dict[str, Any]:
        """Checked arguments of the problem beside its rows."""
        return {"pseudo_rows": True}

    def _fit_problem(self, problem: Problem, n_rows: int) -> None:
        """Solve a problem on `n_rows` rows and keep the answer."""
        raise NotImplementedError

    def _restore(self) -> None:
        """Set the attributes that follow from the others."""
        solution = self.solution_
        self.loss_, self.certificate_, self.n_iter_ = solution.loss, solution.certificate, solution.n_iter
        self.absent_classes_ = solution.absent

    def _keep(self, solution: Solution) -> None:
        """Store what every fitted object tells, and warn where the result is valid but weaker than requested."""
        self.solution_ = solution
        self._restore()
        classwise = solution.mixing is not None or solution.scores.any()
        if solution.absent.size and classwise:
            warn(absent_message(solution.absent))
        if solution.loss <= TOLERANCE and classwise:
            warn(
                "labels are separable: every row can be given its label with certainty, so no finite optimum exists; "
                f"the fit stopped where its mean loss is {solution.loss:.2g}. Give more rows."
            )


def error_free(recalibration: Any) -> str:
    """That no recalibration row was misclassified, all of them or those of a group; empty where some were.

    >>> from atypicality import TemperatureScaling
    >>> error_free(TemperatureScaling().fit([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]], [0, 0, 1, 0]))
    ''
    """
    errors = getattr(recalibration, "errors_", None)
    if errors is None or np.all(errors):
        return ""
    groups = "" if np.ndim(errors) == 0 else f" of {np.count_nonzero(errors == 0)} of {errors.size} groups"
    prior = "nothing" if getattr(recalibration, "pseudo_rows", True) is False else "only the prior"
    return f"no error among the recalibration rows{groups}: {prior} limits the confidence"


def error_free_message(n_rows: int) -> str:
    """What to say about a fit to rows of which none was misclassified."""
    return (
        f"labels all have the largest logit in {n_rows} rows: with no error to learn from, only the prior of one right "
        f"and one wrong row limits the confidence, to about {1 - 1 / (n_rows + 2):.4g}. "
        + ("Has the model been trained on these rows? Then give others. If not, give" if n_rows >= MANY else "Give")
        + " more rows."
    )


def absent_message(absent: NDArray[np.intp]) -> str:
    """What to say about classes that no calibration row carries."""
    whose = "its score rests" if absent.size == 1 else "their scores rest"
    return (
        f"labels hold no row of class {name_classes(absent)}: {whose} on the ridge alone, and without one on the mean "
        "of the seen classes. Give rows of every class that can occur."
    )
