"""Temperature scaling by group: one temperature for every quantile of atypicality, or for every given group."""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from atypicality.formula import ByGroup, Given, LogitModel
from atypicality.groups import QuantileGroups
from atypicality.recalibration.base import Inputs, Recalibrator, error_free_message
from atypicality.recalibration.solver import Problem, Solution
from atypicality.recalibration.temperature import fit_temperature
from atypicality.stored import Part, Record, kinds, need
from atypicality.terminal import printable
from atypicality.validation import first_of, warn

__all__ = ["GroupTemperatureScaling"]


class GroupTemperatureScaling(Recalibrator):
    """One temperature per group of rows.

    In group g, ``softmax(z / T_g)``, each T fitted as in `TemperatureScaling`, with a prior of its own: the paper's
    temperatures by atypicality group (its section on parametric recalibration) and, with groups of skin tone, its
    skin-tone conditional scaling.

    With `groups=` the groups are the caller's; otherwise rows are cut at the quantiles of `atypicality=`. What `fit`
    was given, prediction needs too. A group that `fit` has not seen is an error: no temperature was learnt for it.

    Parameters
    ----------
    n_groups : int, default=5
        Quantile groups of atypicality; ignored when `groups=` is given.

    Attributes
    ----------
    groups_ : ndarray of shape (n_groups,)
        The groups, sorted; of quantile groups, 0 is the most typical.
    temperatures_ : ndarray of shape (n_groups,)
    counts_, errors_ : ndarray of shape (n_groups,)
        Calibration rows of each group, and how many of them have another label than their largest logit.
    quantiles_ : QuantileGroups or None
        How atypicality is cut, unless the groups were given.
    loss_ : float
        Mean cross-entropy of the calibration rows.
    certificate_ : float
        How far the penalised loss may lie above its minimum.
    n_iter_ : int
        The most iterations that a group took.

    Examples
    --------
    >>> import numpy as np
    >>> logits = np.tile([[2.0, 0.0]], (7, 1))
    >>> scaling = GroupTemperatureScaling().fit(logits, [0, 0, 0, 1, 0, 0, 1], groups=[0, 0, 0, 0, 1, 1, 1])
    >>> scaling.predict_proba(logits[:2], groups=[0, 1])[:, 0].round(4)     # with the prior 4 of 6 and 3 of 5 are right
    array([0.6667, 0.6   ])
    """

    groups_: Annotated[NDArray[Any], kinds.Labels("g")]
    temperatures_: Annotated[NDArray[np.float64], kinds.Array("g", kinds.POSITIVE)]
    counts_: Annotated[NDArray[np.intp], kinds.Counts("g", kinds.POSITIVE)]
    errors_: Annotated[Any, kinds.Later(kinds.optional(kinds.Counts("g", kinds.NOT_NEGATIVE)), absent=None)]
    quantiles_: Annotated[QuantileGroups | None, kinds.optional(Part(QuantileGroups))]
    loss_: Annotated[float, kinds.Number()]
    certificate_: Annotated[float, kinds.Number()]
    n_iter_: Annotated[int, kinds.Integer()]

    _scan = False

    def __init__(self, n_groups: int = 5) -> None:
        self.n_groups = n_groups

    def multiplier(self) -> NDArray[np.float64]:
        """What the logits of each group are multiplied by: 1 / `temperatures_`."""
        return 1 / self.temperatures_

    def _fit(self, inputs: Inputs, labels: NDArray[np.intp], weight: NDArray[np.float64] | None) -> None:
        self.quantiles_ = None
        if inputs.groups is None:
            self.quantiles_ = QuantileGroups(self.n_groups).fit(inputs.need_vector("atypicality"))
        assigned = self._assign(inputs)
        self.groups_, index, self.counts_ = np.unique(assigned, return_inverse=True, return_counts=True)
        problem = Problem(inputs.logits, labels, sample_weight=weight, pseudo_rows=True)
        wrong = (problem.rows.gap < 0) & (problem.weights > 0)
        self.errors_ = np.bincount(index, wrong).astype(np.intp)
        fits = []
        for g, name in enumerate(self.groups_.tolist()):
            fits.append(self._fit_group(problem, index == g, name))  # not in a list: warnings count frames
        shares = np.bincount(index, problem.weights)
        self.temperatures_ = np.array([1 / fit.coefficients[0] for fit in fits])
        self.loss_ = float(shares @ [fit.loss for fit in fits])
        self.certificate_ = float(shares @ [fit.certificate for fit in fits])
        self.n_iter_ = max(fit.n_iter for fit in fits)

    def _fit_group(self, problem: Problem, members: NDArray[np.bool_], name: Any) -> Solution:
        if not problem.weights[members].any():
            raise ValueError(f"sample_weight must not be zero in a whole group; group {name!r} has no weight. Drop it.")
        part = problem.take(np.flatnonzero(members))
        solution = fit_temperature(part, f"group {printable(name)} of {members.sum()} rows: ")
        if not part.n_errors:
            warn(f"group {printable(name)}: {error_free_message(part.n_rows)}")
        return solution

    def _assign(self, inputs: Inputs) -> NDArray[Any]:
        if self.quantiles_ is None:
            return inputs.need_groups()
        return self.quantiles_.assign(inputs.need_vector("atypicality"))

    def formula(self) -> LogitModel:
        """The parameters of a prediction; see `atypicality.formula`."""
        if self.quantiles_ is None:
            return LogitModel(Given())
        edges = self.quantiles_.edges_
        seen, multipliers = np.zeros(edges.size + 1, bool), np.zeros(edges.size + 1)
        seen[self.groups_], multipliers[self.groups_] = True, self.multiplier()
        return LogitModel(ByGroup(edges, multipliers, seen))

    def _columns(self, inputs: Inputs) -> dict[str, Any]:
        assigned = self._assign(inputs)
        index = np.minimum(np.searchsorted(self.groups_, assigned), self.groups_.size - 1)
        unseen = np.unique(assigned[self.groups_[index] != assigned])
        if unseen.size:
            raise ValueError(
                f"groups must have been seen in fit, which saw {first_of(self.groups_)}; got {first_of(unseen)} too. "
                "Fit with rows of every group, or map new groups to known ones."
            )
        if self.quantiles_ is None:
            return {"multiplier": self.multiplier()[index]}
        return {"atypicality": inputs.need_vector("atypicality")}

    def _check_stored(self) -> None:
        if self.quantiles_ is not None:
            groups, last = self.groups_, self.quantiles_.edges_.size
            need(groups.dtype.kind in "iu", "quantile groups must be numbered.")
            need(groups[0] >= 0 and groups[-1] <= last, "groups must be those between the edges.")

    _stored = Record(check=_check_stored, n_groups=kinds.Integer(1))
