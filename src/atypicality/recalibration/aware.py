"""Atypicality-aware recalibration: the paper's form to the letter, and a safer form as the default."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.estimators import check_is_fitted
from atypicality.formula import ClassMixing, LogitModel, Quadratic
from atypicality.recalibration.base import ConvexRecalibrator, Inputs
from atypicality.recalibration.class_mix import at_prior, estimated
from atypicality.recalibration.class_prior import ClassPrior, check_class_prior, is_estimated, prior_scores
from atypicality.recalibration.covariates import (
    COVARIATES,
    USUAL,
    Polynomial,
    Vector,
    covariates_of,
    spreads,
    standardise,
    usual_tail,
)
from atypicality.recalibration.device_rows import some_rows
from atypicality.recalibration.problem import PSEUDO_ROWS, Problem, Term, effective_rows
from atypicality.recalibration.solver import Solution, label_losses, solve, spaced_rows
from atypicality.recalibration.strength import (
    ChosenStrengths,
    choose_strengths,
    given_strengths,
    groups_of,
    loosened,
    penalty_of,
    solve_chosen,
    temperature_start,
)
from atypicality.recalibration.terms import (
    MIDDLE,
    SIMILAR_UP_TO,
    TERMS,
    ClassSimilarity,
    choose_mixing,
    fields_of,
    is_linear,
    log_prior,
    terms_of,
)
from atypicality.recalibration.uniform import MOST_ROWS, uniform_share
from atypicality.stored import Part, Record, kinds, need
from atypicality.validation import check_choice, check_vector, warn
from atypicality.validation.device import any_logits

__all__ = ["AtypicalityAwareRecalibration"]

CHOICE = 2**22
"""Logits up to which all rows have a say in the strengths; of more, evenly spaced ones."""
MARGIN_ROWS = 100  # below which a constant margin is not told of: few confident rows have it
MARGIN = "It is the gap of the two largest logits: zeros and ones for classes are no logits."


class AtypicalityAwareRecalibration(ConvexRecalibrator):
    r"""Make confidence depend on how rare an input and its class are (AAR).

    The probabilities of row i are

    .. math:: \mathrm{softmax}\Big(\phi(a_i, m_i)\, z_i + \sum_t w_t(a_i, m_i)\, M_t(z_i) + W (z_i - o_i) + S\Big)

    with logits z, atypicality a, logit margin m (largest less second largest), :math:`\phi` a quadratic with
    interaction, and terms :math:`M_t`: class log-densities, class shares in training, the rank of each class in its
    row, the largest logit, and the logits and probabilities of similar classes (see `terms`). o is the midpoint of the
    row's mean and maximum. The mean cross-entropy is convex in all parameters and is solved to a certified optimum.
    Temperature scaling is the special case of a constant :math:`\phi` and nothing else; every other term is shrunk
    toward it with a strength of its own, chosen on the calibration rows by their likelihood. What has little evidence
    is left out, class-wise parameters below 2 nats and other terms below 0.1, or kept in part: of terms at least a
    third, with fewer than 200 rows less. With few rows the result is temperature scaling but for that part and for a
    small share of the uniform distribution (see `floor_`). Terms may
    change the order of classes. The loss has the weak prior of `TemperatureScaling`, one right and one wrong
    pseudo-row, so that few rows without an error do not make it certain. `paper` gives the form of the paper:
    :math:`\phi(a)` quadratic, free class scores, no shrinkage, no prior, no clipping.

    Class scores move probability toward the class mix of the calibration rows. Where deployment has another mix
    (say, a balanced calibration set and long-tailed traffic) they hurt: give the mix as `class_prior`, or have it
    estimated.

    Parameters
    ----------
    covariates : tuple of {"atypicality", "margin", "ambiguity"}, default=("atypicality", "margin")
        What :math:`\phi` depends on. "ambiguity" is that of the model's prediction by `NeighborRatio`: a search among
        training rows, which a head stores and no graph has.
    class_scores : bool, default=True
        Whether there are scores S.
    class_density : {"auto", True, False}, default="auto"
        Whether class log-densities are used: where they are given, always (and they are needed), never.
    class_mixing : {"auto", "full", "diagonal", False}, default="auto"
        The form of W; by default a full matrix up to 24 classes, its diagonal up to 256, then none (see `terms_`).
    terms : "auto" or tuple of str, default="auto"
        Further terms, by default all that can be had. "class_prior": logarithm of the class's share in the training
        rows, where `fit` is given shares that differ. "rank": minus the logarithm of the class's place in its row, in
        octaves up to 64. "top": ``exp(b (z - max z))``, b the multiplier of temperature scaling, weighed linearly in
        the covariates. "similar_logits", "similar_probabilities": the mean logit, and the logarithm of the mean
        probability, of classes whose calibration logits are correlated with the class's (the 16 most similar of more
        than 256 classes).
    strength : "auto", float or mapping of str to float, default="auto"
        Half of it times the squared standardised parameters is added to the mean loss. By default one for each of
        the groups ``multiplier``, ``class_density``, those named in `terms`, ``class_scaling`` (the diagonal of W),
        ``class_mixing`` (the rest of it) and ``class_scores``, of maximal evidence. The temperature is never shrunk.
    extrapolation : {"clip", "none"}, default="clip"
        "clip": covariates are held between limits that 1 % of the calibration rows (at least 10) reach on either side,
        in the fit too, :math:`\phi` to its range on those rows, and the spread of a row of logits or log-densities
        across classes to its calibration maximum. No class that is not masked gets a probability below `floor_`.
    pseudo_rows : bool, default=True
        Whether the loss has the prior; without it, rows that can be separated have no finite optimum.
    class_prior : array-like of shape (k,), mapping of int to float, or "estimate", optional
        Class shares at deployment: the logarithm of their ratio to the calibration shares is added to the scores
        when predicting. "estimate" takes them from all rows of the call that predicts (`estimate_class_mix`), without
        labels; it has no formula, since a row's probabilities then depend on the others.
    random_state : int, default=0
        Accepted like everywhere; nothing is drawn.

    Attributes
    ----------
    coefficients_ : ndarray of shape (p,)
        Of :math:`\phi`, for the columns `columns_` of standardised covariates.
    columns_ : list of str
        "1", "atypicality", "margin", "atypicality*atypicality", ...
    class_scores_ : ndarray of shape (k,)
        What is added to the logits of each class in every row: S and the term of the training shares, with mean 0.
    density_coefficient_ : float
        e; 0 without class log-densities.
    class_mixing_ : ndarray of shape (k, k) or (k,), or None
        W.
    terms_ : dict of str to str
        The form each term took, and why where it is not the fullest.
    term_coefficients_ : dict of str to ndarray
        Coefficients of each term that is used: one, or of "top" one for 1 and each covariate.
    strength_ : dict of str to float
        The strength of every group that is used.
    effective_parameters_, evidence_ : dict of str to float
        How many parameters of each group the calibration rows determine, and the nats by which it makes their labels
        more probable, also of groups left out; only with ``strength="auto"``.
    calibration_shares_ : ndarray of shape (k,)
        Class shares of the calibration rows.
    class_log_prior_ : ndarray of shape (k,) or None
        Logarithms of the class shares in the training rows, with mean 0, where `fit` was given them.
    similarity_ : ClassSimilarity or None
        Similarity of classes, where a term uses it.
    absent_classes_ : ndarray of int
        Classes without a calibration row.
    errors_ : int
        Calibration rows whose label has not the largest logit.
    floor_ : float
        The smallest probability; 0 with ``extrapolation="none"``. Times k it is the share of the uniform distribution
        that every row gets: about 0.05 / n for n calibration rows, and 1 / n more for each of their labels that
        nothing predicts.
    loss_, certificate_, n_iter_
        Mean cross-entropy of the calibration rows, before the floor; how far the penalised one may lie above its
        minimum; steps.

    Notes
    -----
    ``sample_weight`` counts rows: a weight of 2 is a repeated row, also for the choice of strengths, so importance
    weights should have mean 1.

    References
    ----------
    Yuksekgonul, Zhang, Zou, Guestrin (2023). Beyond Confidence: Reliable Models Should Also Consider Atypicality.
    NeurIPS. Section 4 and appendix D.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> atypicality, labels = rng.random(2000), rng.integers(0, 3, 2000)
    >>> logits = np.eye(3)[labels] * 4 + rng.normal(size=(2000, 3)) * (1 + 4 * atypicality[:, None])
    >>> aware = AtypicalityAwareRecalibration().fit(logits, labels, atypicality=atypicality)
    >>> low, high = aware.multiplier([0.1, 0.9])     # the more atypical, the flatter
    >>> bool(low > 2 * high)
    True
    >>> aware.predict_proba(logits[:5], atypicality=atypicality[:5]).shape
    (5, 3)
    """

    polynomial_: Annotated[Polynomial, Part(Polynomial)]
    density_coefficient_: Annotated[float, kinds.Number()]
    terms_: Annotated[dict[str, str], kinds.MappingOf(kinds.Text())]
    strength_: Annotated[dict[str, float], kinds.MappingOf(kinds.Number(0))]
    effective_parameters_: Annotated[dict[str, float], kinds.MappingOf(kinds.Number(0))]
    n_effective_: Annotated[float, kinds.Number(0)]
    calibration_shares_: Annotated[Vector, kinds.Array("K", kinds.FINITE, kinds.SHARES)]
    class_log_prior_: Annotated[Vector | None, kinds.Later(kinds.optional(kinds.Array("K", kinds.FINITE)), absent=None)]
    similarity_: Annotated[ClassSimilarity | None, kinds.Later(kinds.optional(Part(ClassSimilarity)), absent=None)]
    top_multiplier_: Annotated[float, kinds.Later(kinds.Number(), absent=1.0)]
    evidence_: Annotated[dict[str, float], kinds.Later(kinds.MappingOf(kinds.Number()), absent=lambda made: {})]
    multiplier_range_: Annotated[tuple[float, float], kinds.TupleOf(kinds.Number(), size="2")]
    largest_spread_: Annotated[float, kinds.Number(0)]
    largest_density_spread_: Annotated[float, kinds.Number(0)]
    floor_: Annotated[float, kinds.Later(kinds.Number(0, 1), absent=0.0)]

    _scan = False

    def __init__(
        self,
        *,
        covariates: tuple[str, ...] = USUAL,
        class_scores: bool = True,
        class_density: bool | str = "auto",
        class_mixing: bool | str = "auto",
        terms: tuple[str, ...] | str = "auto",
        strength: float | str | Mapping[str, float] = "auto",
        extrapolation: str = "clip",
        pseudo_rows: bool = True,
        class_prior: ArrayLike | Mapping[int, float] | str | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.covariates = covariates
        self.class_scores = class_scores
        self.class_density = class_density
        self.class_mixing = class_mixing
        self.terms = terms
        self.strength = strength
        self.extrapolation = extrapolation
        self.pseudo_rows = pseudo_rows
        self.class_prior = class_prior
        self.random_state = random_state

    @classmethod
    def paper(cls) -> Self:
        """The paper's method to the letter: k + 3 parameters for k classes, no penalty, no prior, no clipping."""
        return cls(
            covariates=("atypicality",),
            class_density=False,
            class_mixing=False,
            terms=(),
            strength=0.0,
            extrapolation="none",
            pseudo_rows=False,
        )

    def multiplier(self, atypicality: ArrayLike | None = None, logits: ArrayLike | None = None) -> Vector:
        r"""What :math:`\phi` multiplies the logits by (n,).

        Parameters
        ----------
        atypicality : array-like of shape (n,), optional
            Needed when it is one of the covariates.
        logits : array-like of shape (n, k), optional
            For their margins; without them every margin is the mean of the calibration rows.
        """
        check_is_fitted(self)
        known = None if logits is None else any_logits(logits, n_classes=self.n_classes_)
        given = None if atypicality is None else check_vector(atypicality, "atypicality")
        n_rows = known.shape[0] if known is not None else 1 if given is None else given.size
        inputs = Inputs(np.empty((n_rows, 0)) if known is None else known, given, owner="multiplier")
        here = {"atypicality"} if known is None else {"atypicality", "margin"}
        names = [name for name in self.polynomial_.names if name in here]
        means = dict(zip(self.polynomial_.names, np.outer(self.polynomial_.center, np.ones(n_rows)), strict=True))
        values = {**means, **covariates_of(names, inputs)}
        found = self._weighing(()).at(np, {name: value[:, None] for name, value in values.items()})[0]
        return np.broadcast_to(np.asarray(found, np.float64).ravel(), (n_rows,)).copy()

    def _fit(self, inputs: Inputs, labels: NDArray[np.intp], weight: Vector | None) -> None:
        options = self._terms(inputs.logits.shape[1])
        shares = np.full(labels.size, 1 / labels.size) if weight is None else weight / weight.sum()
        problem = Problem(inputs.logits, labels, sample_weight=weight, **options)
        values = covariates_of(self.covariates, inputs, margin=-problem.rows.pair[:, 1])
        self.n_effective_ = float(labels.size if weight is None else weight.sum())
        self.polynomial_ = Polynomial.of(values, shares, self._tail(effective_rows(self.n_effective_, shares)))
        columns = self.polynomial_.columns(values, n_rows=labels.size, clip=self.extrapolation == "clip")
        features, back = standardise(columns, shares)
        density = inputs.need_class_log_density() if self._uses_density(inputs.class_log_density) else None
        problem = problem.with_features(features)
        self._learn_prior(inputs.class_log_prior, problem.n_classes)
        plain = self.strength == "auto" or problem.mixing is not None or bool(self._requested())
        start = self._learn_top(temperature_start(problem) if plain else None)
        self._learn_similarity(problem.logits, None if weight is None else problem.weights)
        chosen = None
        if self.strength == "auto" and inputs.logits.shape[0] * inputs.logits.shape[1] > CHOICE:
            chosen = self._choose_on_some(problem, density, start)
        problem = self._with_terms(problem, density)
        self._fit_problem(problem, labels.size, back, start, chosen)
        self._learn_limits(problem, columns, density)

    def _choose_on_some(self, problem: Problem, density: Any, start: Solution | None) -> ChosenStrengths:
        """Strengths from evenly spaced rows where all of them are many, and the optimum of those rows.

        A strength times the number of rows is the precision of a prior, which does not depend on that number.
        """
        rows = spaced_rows(problem, max(1, CHOICE // problem.n_classes))
        part = problem.take(rows)
        part = self._with_terms(part, None if density is None else some_rows(density, rows))
        part_rows, all_rows = (one.total + PSEUDO_ROWS * self.pseudo_rows for one in (part, problem))
        chosen = self._choose(part, start, part_rows)
        self.strength_ = {name: value * part_rows / all_rows for name, value in self.strength_.items()}
        problem.term_scales = part.term_scales  # strengths belong to these units
        return dataclasses.replace(chosen, strengths=self.strength_)

    def _learn_prior(self, given: Any, n_classes: int) -> None:
        """The class shares of the training rows, where they are known."""
        self.class_log_prior_ = None
        if given is not None:
            self.class_log_prior_ = log_prior(given, n_classes)

    def _learn_top(self, start: Solution | None) -> Solution | None:
        """Begin a fit: the multiplier of temperature scaling, where that was solved for, and nothing of strengths."""
        self.top_multiplier_ = 1.0 if start is None else float(start.coefficients[0])
        self.strength_, self.effective_parameters_, self.evidence_ = {}, {}, {}
        return start

    def _learn_similarity(self, logits: Any, weights: Vector | None = None) -> None:
        """Similarity of the classes of some logits, where a term may use it."""
        comparable = 2 < logits.shape[1] <= SIMILAR_UP_TO
        wanted = {"similar_logits", "similar_probabilities"} & set(self._requested())
        self.similarity_ = ClassSimilarity.of(logits, weights) if wanted and comparable else None

    def _requested(self) -> tuple[str, ...]:
        return TERMS if self.terms == "auto" else tuple(self.terms)

    def _available(self) -> tuple[str, ...]:
        """The requested terms that can be had."""
        prior = self.class_log_prior_  # equal shares move no probability
        missing = set() if prior is not None and np.ptp(prior) > 0 else {"class_prior"}
        missing |= set() if self.similarity_ is not None else {"similar_logits", "similar_probabilities"}
        return tuple(name for name in self._requested() if name not in missing)

    def _fields(self, names: tuple[str, ...], n_classes: int, density_reach: float | None = None) -> dict[str, Any]:
        known: dict[str, Any] = {"multiplier": self.top_multiplier_, "similarity": self.similarity_}
        return dict(fields_of(names, n_classes, **known, density_reach=density_reach))

    def _with_terms(self, problem: Problem, density: Any) -> Problem:
        """The problem with every term that can be had, or with those of which strengths are known."""
        names = tuple(name for name in self._available() if name in self.strength_ or not self.evidence_)
        if self.evidence_ and "class_density" not in self.strength_:
            density = None
        prior = self.class_log_prior_ if "class_prior" in names else None
        terms = [] if density is None else [Term("class_density", density)]
        terms += terms_of(problem, self._fields(names, problem.n_classes), prior, 1 + len(self.polynomial_.names))
        return problem.with_terms(terms, class_scores=problem.class_scores, mixing=problem.mixing)

    def _fit_problem(
        self,
        problem: Problem,
        n_rows: int,
        back: Vector | None = None,
        start: Solution | None = None,
        chosen: ChosenStrengths | None = None,
    ) -> None:
        """As in `ConvexRecalibrator`; `back` takes coefficients of the features to those of the columns."""
        solution = self._solve(problem, start, chosen)
        back = np.eye(problem.features.shape[1]) if back is None else back
        columns = np.zeros(back.shape[1])
        columns[: solution.coefficients.size] = solution.coefficients
        terms = {
            name: back[: one.size, : one.size] @ one if one.size > 1 else one for name, one in solution.terms.items()
        }
        solution = dataclasses.replace(solution, coefficients=back @ columns, terms=terms)
        self._warn(int((problem.weights > 0).sum()))
        self._keep(solution)
        self._keep_errors(problem.n_errors, n_rows)
        self._describe(problem, solution)

    def _check_options(self, n_classes: int) -> None:
        for name in self.covariates:
            check_choice(name, "covariates", COVARIATES)
        check_choice(self.class_scores, "class_scores", (True, False))
        check_choice(self.class_density, "class_density", ("auto", True, False))
        check_choice(self.class_mixing, "class_mixing", ("auto", "full", "diagonal", False))
        if self.terms != "auto":
            for name in self.terms:
                check_choice(name, "terms", TERMS)
        check_choice(self.extrapolation, "extrapolation", ("clip", "none"))
        check_choice(self.pseudo_rows, "pseudo_rows", (True, False))
        if isinstance(self.strength, str):
            check_choice(self.strength, "strength", ("auto",))
        if self.class_prior is not None and not is_estimated(self.class_prior):
            check_class_prior(self.class_prior, n_classes)

    def _terms(self, n_classes: int) -> dict[str, Any]:
        self._check_options(n_classes)
        mixing, _ = choose_mixing(self.class_mixing, n_classes)
        return {"class_scores": self.class_scores, "mixing": mixing, "middle": MIDDLE, "pseudo_rows": self.pseudo_rows}

    def _uses_density(self, class_log_density: Any) -> bool:
        return self.class_density is True or (self.class_density == "auto" and class_log_density is not None)

    def _choose(self, problem: Problem, start: Solution | None, n_rows: float) -> ChosenStrengths:
        """Strengths of maximal evidence of an objective that is the mean of `n_rows` rows, and the optimum there."""
        start = temperature_start(problem) if start is None else start
        chosen = choose_strengths(problem, groups_of(problem), n_rows, start=start)
        chosen = loosened(chosen, problem, n_rows, start)
        self.strength_, self.effective_parameters_ = chosen.strengths, chosen.effective
        self.evidence_ = chosen.evidence
        return chosen

    def _solve(self, problem: Problem, start: Solution | None, chosen: ChosenStrengths | None) -> Solution:
        """The optimum under the strengths that were given, or of maximal evidence."""
        if isinstance(self.strength, str):
            whole = self.n_effective_ + PSEUDO_ROWS * self.pseudo_rows
            problem, solution = solve_chosen(problem, chosen or self._choose(problem, start, whole))
        else:
            self.strength_ = given_strengths(self.strength, groups_of(problem))
            start = start if problem.terms or problem.mixing is not None else None
            solution = solve(problem.with_penalty(penalty_of(problem, groups_of(problem), self.strength_)), start=start)
        self.floor_ = self._floor(problem, solution)
        return solution

    def _warn(self, n_rows: int) -> None:
        if self.strength == "auto" and self.n_effective_ < 0.1 * n_rows:
            warn(
                f"sample_weight sums to {self.n_effective_:.4g} over {n_rows} rows: strength='auto' reads weights as "
                "numbers of rows and shrinks accordingly. Scale importance weights to mean 1."
            )
        for name in self.polynomial_.constant:
            if name == "margin" and n_rows < MARGIN_ROWS:
                continue
            what = f"Give {name} that varies, or leave it out of covariates."
            warn(
                f"{name} is constant over the calibration rows, or over all but its tails: its columns are dropped and "
                f"the other terms stay. {MARGIN if name == 'margin' else what}"
            )

    def _describe(self, problem: Problem, solution: Solution) -> None:
        self.density_coefficient_ = float(solution.terms.get("class_density", np.zeros(1)).sum())
        if not {"similar_logits", "similar_probabilities"} & set(solution.terms):
            self.similarity_ = None
        shares = np.bincount(problem.labels, problem.weights, minlength=problem.n_classes)
        self.calibration_shares_ = shares.astype(np.float64)
        forms = {
            "multiplier": ", ".join(self.columns_),
            "class_density": "off" if self.class_density is False else "not given",
            **{name: "off" if name not in self._requested() else "not available" for name in TERMS},
            "class_mixing": choose_mixing(self.class_mixing, problem.n_classes)[1],
            "class_scores": f"{int(problem.seen.sum())} classes" if self.class_scores else "off",
        }
        forms |= dict.fromkeys(solution.terms, "used")
        for name, worth in self.evidence_.items():
            if name not in self.strength_ and name in forms:
                forms[name] = f"left out: {worth:.2f} nats of evidence"
        self.terms_ = forms

    def _restore(self) -> None:
        super()._restore()
        self.columns_ = self.polynomial_.column_names
        self.coefficients_: Vector = self.solution_.coefficients
        self.class_mixing_ = self.solution_.mixing
        self.term_coefficients_ = self.solution_.terms
        self.class_scores_: Vector = self.solution_.scores
        prior = self.term_coefficients_.get("class_prior")
        if prior is not None and self.class_log_prior_ is not None:
            self.class_scores_ = self.class_scores_ + float(prior[0]) * self.class_log_prior_

    def _check_stored(self) -> None:
        self._check_options(self.n_classes_)
        need(set(self.polynomial_.names) <= set(self.covariates), "the polynomial must be one of the covariates.")
        need(len(self.columns_) == self.coefficients_.size, "there must be one coefficient per column.")
        low, high = self.multiplier_range_
        need(low <= high, "the range of the multiplier must be in order.")
        need(self.floor_ * self.n_classes_ < 1, "the floor must leave room for probabilities that sum to 1.")
        found = self.term_coefficients_
        unknown = set(found) - {"class_density", *TERMS}
        need(not unknown, "terms must be known ones.")
        used = {name for name in ("class_density", *TERMS) if self.terms_.get(name) == "used"}
        need(used == set(found), "terms are used if they have coefficients.")
        same = self.density_coefficient_ == float(found.get("class_density", np.zeros(1)).sum())
        need(same, "the coefficient of the class densities must be the solution's.")
        for name, one in found.items():
            size = 1 + len(self.polynomial_.names) if is_linear(name) else 1
            need(one.size == size, f"the term {name} must have {size} coefficients.")
        need("class_prior" not in found or self.class_log_prior_ is not None, "class_prior needs class shares.")
        similar = {"similar_logits", "similar_probabilities"} & set(found)
        need(not similar or self.similarity_ is not None, "similar classes must be stated where a term uses them.")

    _stored = Record(
        check=_check_stored,
        restore=_restore,
        covariates=kinds.TupleOf(kinds.Choice(*COVARIATES)),
        class_density=kinds.Choice("auto", True, False),
        class_mixing=kinds.Choice("auto", "full", "diagonal", False),
        terms=kinds.Later(kinds.Either("auto", otherwise=kinds.TupleOf(kinds.Choice(*TERMS))), absent=()),
        strength=kinds.Either("auto", otherwise=kinds.ScalarOr(kinds.Number(0), kinds.MappingOf(kinds.Number(0)))),
        extrapolation=kinds.Choice("clip", "none"),
        pseudo_rows=kinds.Later(kinds.FLAG, absent=False),
        class_prior=kinds.Either(None, "estimate", otherwise=ClassPrior()),
        random_state=kinds.optional(kinds.SEED),
    )

    def _tail(self, n_rows: float) -> float:
        """Share of the calibration rows that a covariate leaves beyond its limit, on either side."""
        return usual_tail(n_rows) if self.extrapolation == "clip" else 0.0

    def _floor(self, problem: Problem, solution: Solution) -> float:
        """The smallest probability, a number that float32 holds: rounded to it, none falls below."""
        if self.extrapolation != "clip":
            return 0.0
        wanted = uniform_share(*label_losses(problem, solution, MOST_ROWS), problem.n_classes) / problem.n_classes
        return float(np.nextafter(np.float32(wanted), np.float32(1)))

    def _learn_limits(self, problem: Problem, columns: Vector, density: Any) -> None:
        """How far the calibration rows reach: beyond it, `extrapolation` decides."""
        used = problem.weights > 0
        multipliers = columns[used] @ self.coefficients_
        self.multiplier_range_ = float(multipliers.min()), float(multipliers.max())
        self.largest_spread_ = float(spreads(problem.logits, problem.rows.top)[used].max())
        self.largest_density_spread_ = 0.0 if density is None else float(spreads(density)[used].max())

    def _weighing(self, names: Iterable[str]) -> Quadratic:
        limits = self.multiplier_range_ if self.extrapolation == "clip" else None
        coefficients = [self.coefficients_, *(self.term_coefficients_[name] for name in names)]
        return self.polynomial_.formula(coefficients, limits, self.n_classes_)

    def formula(self) -> LogitModel:
        """The parameters of a prediction; see `atypicality.formula`."""
        clip, scores, mixing = self.extrapolation == "clip", self._scores(), self.class_mixing_
        terms = self._fields(self._used(), self.n_classes_, self.largest_density_spread_ if clip else None)
        excluded = np.isneginf(scores)
        return LogitModel(
            self._weighing(terms),
            tuple(terms.values()),
            None if mixing is None else ClassMixing(np.ascontiguousarray(mixing.T), MIDDLE),
            np.where(excluded, 0.0, scores),
            excluded if excluded.any() else None,
            self.largest_spread_ if clip else None,
            self.floor_,
        )

    def _used(self) -> tuple[str, ...]:
        """Terms with coefficients, in one order wherever the object came from: sums depend on it in the last bit."""
        return tuple(name for name in ("class_density", *TERMS) if name in self.term_coefficients_)

    def _predicted(self, logits: Any, columns: dict[str, Any]) -> Any:
        if not is_estimated(self.class_prior):
            return super()._predicted(logits, columns)
        before = at_prior(self, None)._predicted(logits, columns)
        return estimated(self, before, n_bootstrap=0)[0]._predicted(logits, columns)

    def _columns(self, inputs: Inputs) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in {"atypicality", "ambiguity"} & set(self.polynomial_.names):
            found[name] = inputs.need_vector(name)
        if "class_density" in self.term_coefficients_:
            found["densities"] = inputs.need_class_log_density()
        return found

    def _scores(self) -> Vector:
        """Class scores, moved to the stated class mix."""
        if self.class_prior is None:
            return self.class_scores_
        if is_estimated(self.class_prior):
            raise ValueError(
                'class_prior="estimate" has no formula: the probabilities of a row depend on all rows of a call. To '
                "export or to predict in parts, state a mix: set_params(class_prior=estimate_class_mix(...).shares)."
            )
        prior = check_class_prior(self.class_prior, self.n_classes_)
        moved: Vector = self.class_scores_ + prior_scores(prior, self.calibration_shares_, self.n_effective_)
        return moved
