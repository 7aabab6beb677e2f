"""The reliability head: density, recalibration and prediction sets as one object, fitted on the right parts."""

import inspect
import os
from collections.abc import Set
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from atypicality import conformal, density, recalibration
from atypicality.arrays import like, namespace, on_device, take_rows, to_host
from atypicality.blocks import progress
from atypicality.conformal import ConditionalConformal, SplitConformal
from atypicality.conformal.conditional import GROUP_ROWS
from atypicality.conformal.soft_groups import FINE_FROM
from atypicality.density import GaussianAtypicality, RelativeAtypicality
from atypicality.density.choice import GAUSSIAN, DensityChoice, choose_density
from atypicality.density.columns import class_positions, class_sources, in_columns
from atypicality.density.family import DensityFamily
from atypicality.density.logdensity import score_rows
from atypicality.density.ratio import NeighborRatio
from atypicality.estimators import BaseEstimator, check_is_fitted, clone
from atypicality.formula import (
    ASK,
    HeadFormula,
    Outcome,
    RelativeDensity,
    TwoDensities,
    advice_texts,
    reads_of,
    set_sizes,
)
from atypicality.groups import QUADRANTS, Quadrants
from atypicality.head.abstention import AbstentionRule
from atypicality.head.acceptance import (
    AcceptanceScore,
    ambiguity_of,
    fitted_abstention,
    fitted_score,
    kept_by_score,
    reads_ambiguity,
)
from atypicality.head.advice import advice_of, advice_rule, measured_advice, trusted_from, unthresholded_rows
from atypicality.head.calibration_parts import (
    check_calibration,
    check_order,
    cut,
    in_one_order,
    some_rows,
    warn_of_training_rows,
)
from atypicality.head.consistency import check_consistent
from atypicality.head.description import before_and_after, described, described_in_html
from atypicality.head.drift import Drift, drift_of
from atypicality.head.keywords import call_with_known
from atypicality.head.prediction import at_class_prior, at_estimated_mix, predicted
from atypicality.head.quantiles import QuantileScale
from atypicality.head.reference import HeldOutCounts
from atypicality.head.reliability import Reliability
from atypicality.metrics.rows import read_pairs
from atypicality.outputs import ModelOutputs, Parts, check_outputs
from atypicality.outputs.limits import check_room
from atypicality.recalibration import AtypicalityAwareRecalibration
from atypicality.recalibration.class_mix import ClassMix
from atypicality.recalibration.class_prior import is_estimated
from atypicality.recalibration.prediction import softmax_rows
from atypicality.stored import Part, Record, declared, kinds
from atypicality.terminal import html_table
from atypicality.validation import FloatArray, check_alpha, check_choice, check_integer, warn
from atypicality.validation.device import any_matrix

__all__ = ["ReliabilityHead"]

DENSITIES, RECALIBRATIONS, PREDICTION_SETS = declared(density), declared(recalibration), declared(conformal)
"""The classes that a saved head can be made of."""
QUADRANT_TEXTS = np.array(QUADRANTS)
Scores = tuple[Any, Any, Any]
"""Atypicality (n,), that for recalibration, and class log-densities (n, m) in the order of the density."""
SIXTHS = 6
GAUSSIANS = (GaussianAtypicality, RelativeAtypicality)


class ReliabilityHead(BaseEstimator):
    """What to trust, prediction by prediction: rarity of the input, recalibrated probabilities, a prediction set.

    Parameters
    ----------
    density : estimator, "auto" or None, default="auto"
        "auto" takes the one of `GaussianAtypicality` and `RelativeAtypicality`, raw or normalised, that finds errors
        best on the recalibration rows, or `RelativeAtypicality(normalize="l2")` where these are fewer than 500 or have
        fewer than 20 errors; recalibration uses the Gaussian all the same. Outputs that bring their own `atypicality`
        (language models) need none. An estimator, such as the paper's `GaussianAtypicality()`, is used for everything.
        None does without atypicality.
    recalibration : estimator or "auto", default="auto"
        "auto" is `AtypicalityAwareRecalibration()`.
    prediction_sets : estimator or "auto", default="auto"
        "auto" is `ConditionalConformal`, from 2,000 threshold rows with ``groups="atypicality"`` (each sixth of it is
        then covered), or `SplitConformal` without atypicality.
    acceptance : NeighborRatio, optional
        Lets `predict(max_risk=...)` decide by confidence and the ambiguity of the prediction, a search among the
        training rows, instead of confidence alone. A recalibration with "ambiguity" among its covariates searches too,
        with this one or with `NeighborRatio()`. Nothing else uses it.
    alpha : float in (0, 1), default=0.1
        Share of prediction sets that may miss the label, with prediction_sets="auto".
    random_state : int, default=0
        Cuts the calibration rows into parts.

    Attributes
    ----------
    density_ : fitted density, or None
    density_choice_ : DensityChoice, or None
        With density="auto", the candidates and what the recalibration rows say of each.
    recalibration_density_ : GaussianAtypicality, or None
        What recalibration takes atypicality and class log-densities from, where `density_` was chosen and is another:
        it carries the length of the embedding, which acts like a temperature. None where recalibration uses `density_`.
    recalibration_, prediction_sets_ : fitted estimators
    quadrants_ : Quadrants, or None without atypicality
    quantiles_ : QuantileScale, or None without atypicality
        Of the held-out calibration rows, never of training rows.
    recalibration_quantiles_ : QuantileScale, or None
        The same of the atypicality of `recalibration_density_`, which drift looks at too.
    abstention_ : AbstentionRule
        Of confidence, or of the score of `acceptance_`.
    neighbor_ratio_ : NeighborRatio, or None
        With `acceptance`, or where recalibration reads ambiguity.
    acceptance_ : AcceptanceScore, or None
        With `acceptance`.
    advice_ : dict
        By word of `formula.ADVICE`, the number of rows ("count"), on how many of them the word was "right": the
        prediction, or for a choice one of its classes; and on how many the prediction was ("predicted"). Measured on
        the edge rows, or on the recalibration rows where the sets have no edges: never on rows that set a threshold.
        Empty in heads that were saved before version 0.2.
    reference_ : HeldOutCounts, or None in a head from an older bundle
        Counts of the held-out rows that recalibration did not see, for `Monitor` and `estimate_accuracy`.
    metrics_ : dict
        Accuracy, NLL and ECE before and after recalibration, on the rows that recalibration did not see.
    sizes_ : dict
        Rows used for each purpose.
    cross_fitted_ : bool
        Whether this is the head of a cross-fitted classifier: no coverage is guaranteed for its own prediction sets.
    class_names_ : ndarray of str, or None
        In the order of the columns it was fitted on. Outputs with the same names in another order are reordered, and
        outputs with other names are refused, in `fit`, `refit` and `predict`. Outputs without names, and any outputs
        where the head has none, are taken to be in the head's order.
    fingerprint_ : str
        Of the calibration data, to notice that it is evaluated on itself.

    Examples
    --------
    >>> from atypicality.datasets import load_fashion_mnist_lt
    >>> train, calibration, test = load_fashion_mnist_lt()
    >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
    >>> head.sizes_
    {'train': 10000, 'recalibration': 2500, 'edges': 250, 'thresholds': 2250}
    >>> answer = head.predict(test)
    >>> answer.prediction_set.shape
    (5000, 10)
    """

    n_classes_: Annotated[int, kinds.Size("K")]
    class_names_: Annotated[NDArray[Any] | None, kinds.optional(kinds.Labels("K", ordered=False))]
    density_: Annotated[Any, kinds.optional(Part(*DENSITIES))]
    density_choice_: Annotated[DensityChoice | None, kinds.Later(kinds.optional(Part(DensityChoice)), absent=None)]
    recalibration_density_: Annotated[
        GaussianAtypicality | None, kinds.Later(kinds.optional(Part(GaussianAtypicality)), absent=None)
    ]
    recalibration_: Annotated[Any, Part(*RECALIBRATIONS)]
    prediction_sets_: Annotated[Any, Part(*PREDICTION_SETS)]
    quadrants_: Annotated[Quadrants | None, kinds.optional(Part(Quadrants))]
    quantiles_: Annotated[QuantileScale | None, kinds.optional(Part(QuantileScale))]
    recalibration_quantiles_: Annotated[
        QuantileScale | None, kinds.Later(kinds.optional(Part(QuantileScale)), absent=None)
    ]
    abstention_: Annotated[AbstentionRule, Part(AbstentionRule)]
    advice_: Annotated[
        dict[str, dict[str, int]],
        kinds.Later(kinds.MappingOf(kinds.MappingOf(kinds.Integer()), keys="[a-z, ]{1,40}"), absent=lambda head: {}),
    ]
    neighbor_ratio_: Annotated[NeighborRatio | None, kinds.Later(kinds.optional(Part(NeighborRatio)), absent=None)]
    acceptance_: Annotated[AcceptanceScore | None, kinds.Later(kinds.optional(Part(AcceptanceScore)), absent=None)]
    reference_: Annotated[HeldOutCounts | None, kinds.Later(kinds.optional(Part(HeldOutCounts)), absent=None)]
    metrics_: Annotated[dict[str, dict[str, float]], kinds.MappingOf(kinds.MappingOf(kinds.Number(infinite=True)))]
    sizes_: Annotated[dict[str, int], kinds.MappingOf(kinds.Integer())]
    cross_fitted_: Annotated[bool, kinds.Later(kinds.FLAG, absent=False)]
    fingerprint_: Annotated[str, kinds.Text("[0-9a-f]{1,64}")]

    def __init__(
        self,
        density: Any = "auto",
        recalibration: Any = "auto",
        prediction_sets: Any = "auto",
        *,
        acceptance: Any = None,
        alpha: float = 0.1,
        random_state: int = 0,
    ) -> None:
        self.density = density
        self.recalibration = recalibration
        self.prediction_sets = prediction_sets
        self.acceptance = acceptance
        self.alpha = alpha
        self.random_state = random_state

    def fit(self, train: Any = None, calibration: ModelOutputs | Parts | None = None) -> Self:
        """Fit the density on `train`, then recalibration and sets on disjoint parts of `calibration`.

        Parameters
        ----------
        train : ModelOutputs with embeddings and labels, a fitted density, or a fitted DensityFamily, optional
            Left out where `calibration` brings its own `atypicality`.
        calibration : ModelOutputs with logits and labels, or Parts
            Rows that neither trained the model nor `train` holds. One set is cut at random: half recalibrates, a
            tenth of the rest is the edge set, the remainder the threshold set (`edge_fraction` of the prediction
            sets says how many). `Parts` (see `three_way_split`) are taken as they are.

        Examples
        --------
        >>> from atypicality.datasets import load_fashion_mnist_lt
        >>> train, calibration, test = load_fashion_mnist_lt()
        >>> head = ReliabilityHead(alpha=0.05).fit(train=train, calibration=calibration)
        >>> head.metrics_["after"]["nll"] < head.metrics_["before"]["nll"]
        True
        """
        if calibration is None:
            raise ValueError(
                "calibration must be given: outputs with logits and labels that the model never trained on."
            )
        return self._fit(train, calibration)

    def _fit(
        self,
        train: Any,
        calibration: ModelOutputs | Parts,
        class_names: NDArray[Any] | None = None,
        *,
        aligned: bool = False,
    ) -> Self:
        """As `fit`, with classes in the order of `class_names` or else of the first outputs that name theirs.

        Rows that are `aligned` for sure, logits and embeddings made of one table, are not looked at for their order.
        """
        seed = check_integer(self.random_state, "random_state", low=0)
        fingerprint = check_calibration(calibration)
        train, calibration, self.class_names_ = in_one_order(train, calibration, class_names)
        whole = calibration.recalibration if isinstance(calibration, Parts) else calibration
        self.n_classes_ = int(whole.need("logits").shape[1])
        scored = train if isinstance(train, ModelOutputs) else whole
        columns = 0 if scored.embeddings is None else scored.embeddings.shape[1]
        check_room(max(len(scored) // 8, len(whole)), self.n_classes_, columns)
        first, rest, edge_rows = cut(calibration, seed)
        self.neighbor_ratio_ = self._fit_ratio(train)
        self.density_, known = self._chosen(self._fit_density(train, whole), first)
        self.fingerprint_, self.cross_fitted_ = fingerprint, False
        train_rows = len(train) if isinstance(train, ModelOutputs) else 0
        if known is None and self.density_ is not None:
            with first._numbered():
                known = self._scores(first.need("embeddings"))
        self._fit_calibration(first, rest, edge_rows, train_rows, known)
        if not aligned:
            check_order(self, first, known)
        return self

    def refit(self, calibration: ModelOutputs | Parts) -> Self:
        """Fit recalibration and sets again on newer rows, `calibration`, keeping the density.

        >>> from atypicality.datasets import load_fashion_mnist_lt
        >>> train, calibration, test = load_fashion_mnist_lt()
        >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
        >>> head.refit(calibration[:3000]).sizes_
        {'recalibration': 1500, 'edges': 150, 'thresholds': 1350}
        """
        check_is_fitted(self, "recalibration_")
        return self._fit(self.density_, calibration, self.class_names_)

    def _fit_density(self, train: Any, calibration: ModelOutputs) -> Any:
        """The density fitted on training rows, or where it is to be chosen the family of those to choose among."""
        if train is None or train is not getattr(self, "density_", None):
            self.density_choice_ = self.recalibration_density_ = None
        if self.density is None or (train is None and calibration.atypicality is not None):
            if self.density is None:
                _warn_without_atypicality("density=None")
            return None
        if train is None:
            _warn_without_atypicality("no train= and no atypicality in the calibration outputs")
            return None
        if isinstance(train, DensityFamily):
            return train
        if hasattr(train, "atypicality") and not isinstance(train, ModelOutputs):
            check_is_fitted(train)
            return train
        check_outputs(train, "train, where it is not a fitted density,")
        if train.embeddings is None and train.atypicality is not None:
            raise ValueError(
                "train must have embeddings; it has atypicality instead, which needs no train=. Leave it out."
            )
        embeddings, labels = train.need("embeddings", "labels")
        warn_of_training_rows(embeddings, calibration.embeddings)
        progress.stage("fitting the density")
        auto = isinstance(self.density, str) and check_choice(self.density, "density, where it is text,", ("auto",))
        with train._numbered():
            return (DensityFamily() if auto else clone(self.density)).fit(embeddings, labels)

    def _fit_ratio(self, train: Any) -> NeighborRatio | None:
        """The training rows by class, where acceptance or recalibration looks at them."""
        if self.acceptance is None and not reads_ambiguity(self.recalibration):
            return None
        if isinstance(train, ModelOutputs):
            ratio = NeighborRatio() if self.acceptance is None else clone(self.acceptance)
            with train._numbered():
                fitted: NeighborRatio = ratio.fit(*train.need("embeddings", "labels"))
            return fitted
        known: NeighborRatio | None = getattr(self, "neighbor_ratio_", None)
        if known is None or train is not self.density_:
            raise ValueError(
                "acceptance and a recalibration with ambiguity need train= with embeddings and labels: they search "
                "among training rows, which a fitted density has not. Give the outputs, or leave both out."
            )
        return known

    def _chosen(self, density: Any, first: ModelOutputs) -> tuple[Any, Scores | None]:
        """The member of a family that finds errors best among some rows, which carry no guarantee, and their scores.

        A density that is no family is the one chosen.
        """
        if not isinstance(density, DensityFamily):
            return density, None
        progress.stage("choosing the density")
        with first._numbered():
            embeddings, labels = first.need("embeddings", "labels")
            host = isinstance(embeddings, np.ndarray)
            scores, densities = density.scored(embeddings) if host else (density.scores(embeddings), None)
            probs = softmax_rows(first.need("logits"))
            self.density_choice_ = choose_density(density, embeddings, probs, labels, scores=scores)
        chosen = self.density_choice_.name
        self.recalibration_density_ = None if chosen == GAUSSIAN else density.members_[GAUSSIAN]
        return density.members_[chosen], (scores[chosen], scores[GAUSSIAN], densities) if host else None

    def _fit_calibration(
        self,
        first: ModelOutputs,
        rest: ModelOutputs,
        edge_rows: NDArray[np.bool_] | None,
        train_rows: int,
        scored: Scores | None,
    ) -> Self:
        progress.stage("fitting the recalibration")
        with first._numbered():
            self._fit_recalibration(first, scored)
            probs = None if self.acceptance is None else self._at_own_mix()._scored(first, scored)[0]
            self.acceptance_ = None if probs is None else fitted_score(self, probs, first)
        progress.stage("fitting the prediction sets")
        with rest._numbered():
            probs, labels = self._fit_thresholds(first, rest, edge_rows, scored)
        self.metrics_ = before_and_after(rest.need("logits"), probs, labels)
        thresholds = getattr(self.prediction_sets_, "n_calibration_", len(rest))
        edges = getattr(self.prediction_sets_, "n_edge_", len(rest) - thresholds)
        self.sizes_ = {"train": train_rows} if train_rows else {}
        self.sizes_ |= {"recalibration": len(first), "edges": int(edges), "thresholds": int(thresholds)}
        return self

    def _at_own_mix(self) -> Any:
        """The head for calibration rows, which have the class mix that calibrated."""
        estimates = is_estimated(getattr(self.recalibration_, "class_prior", None))
        return at_class_prior(self, None) if estimates else self

    def _fit_thresholds(
        self, first: ModelOutputs, rest: ModelOutputs, edge_rows: NDArray[np.bool_] | None, scored: Scores | None
    ) -> tuple[Any, Any]:
        """Sets, abstention and quantiles from the `rest`; its probabilities and labels. `first` has been `scored`."""
        head = self._at_own_mix()
        probs, atypicality, covariate = head._scored(rest)
        self.recalibration_quantiles_ = None if covariate is None else QuantileScale.from_rows(to_host(covariate))
        labels = rest.need("labels")
        self._fit_sets(probs, labels, rest, {"atypicality": atypicality, "edge_rows": edge_rows})
        some, known = some_rows(first, scored)
        self.abstention_ = fitted_abstention(self, probs, rest, head._scored(some, known)[0], some)
        self._remember(probs, labels, atypicality)
        chosen = unthresholded_rows(self.prediction_sets_, len(rest), edge_rows)
        if chosen is None:
            recalibrated, rarity, _ = head._scored(first, scored)
            self.advice_ = measured_advice(self, recalibrated, rarity, first)
        else:
            rarity = None if atypicality is None else take_rows(atypicality, chosen)
            self.advice_ = measured_advice(self, take_rows(probs, chosen), rarity, rest[chosen])
        return probs, labels

    def _fit_recalibration(self, outputs: ModelOutputs, scored: Scores | None) -> None:
        logits, labels = outputs.need("logits", "labels")
        atypicality, offered = self._rarity(outputs, scored)
        recalibration = self.recalibration
        if isinstance(recalibration, str) and recalibration == "auto":
            covariates = ("margin",) if atypicality is None else ("atypicality", "margin")
            recalibration = AtypicalityAwareRecalibration(covariates=covariates)
        offered["class_log_prior"] = self._class_log_prior(outputs)
        self.recalibration_ = call_with_known(clone(recalibration).fit, logits, labels, **offered)

    def _class_log_prior(self, outputs: ModelOutputs) -> NDArray[np.float64] | None:
        """Logarithms of the class shares in training (k,): as the outputs have them, or of the density's rows."""
        if outputs.class_atypicality is not None:
            return -outputs.class_atypicality
        shares = self._training_shares()
        with np.errstate(divide="ignore"):
            return None if shares is None else np.log(shares)

    def _training_shares(self) -> NDArray[np.float64] | None:
        """Share of each class (k,) among the rows of the density; None where it does not count them."""
        if not hasattr(self.density_, "counts_"):
            return None
        shares = np.zeros(self.n_classes_)
        shares[class_positions(self.density_.classes_, self.n_classes_, self.class_names_)] = self.density_.counts_
        return np.asarray(shares / shares.sum())

    def _fit_sets(self, probs: FloatArray, labels: Any, outputs: ModelOutputs, offered: dict[str, Any]) -> None:
        sets, atypicality = self.prediction_sets, offered["atypicality"]
        if isinstance(sets, str) and sets == "auto":
            edges = offered["edge_rows"]
            sets = _default_sets(
                self.alpha, atypicality is not None, len(outputs), None if edges is None else edges.sum()
            )
        sets = clone(sets)
        if atypicality is None and "atypicality" in inspect.signature(sets.fit).parameters:
            raise ValueError(f"prediction_sets={type(sets).__name__} needs atypicality: give train= or a density.")
        offered |= {"attributes": outputs.attributes, "class_names": self.class_names_}
        offered |= {"class_share": self._training_shares()}
        self.prediction_sets_ = call_with_known(sets.fit, probs, labels, **offered)

    def _remember(self, probs: FloatArray, labels: Any, atypicality: Any) -> None:
        pairs = read_pairs(probs, labels, None, None)
        confidence = np.minimum(pairs.confidence, 1.0)
        atypicality = None if atypicality is None else to_host(atypicality)
        predicted = to_host(namespace(probs).argmax(probs, axis=1))
        self.reference_ = HeldOutCounts.from_rows(
            confidence, predicted, to_host(labels), n_classes=self.n_classes_, atypicality=atypicality
        )
        self.quadrants_ = self.quantiles_ = None
        if atypicality is not None:
            self.quadrants_ = Quadrants(confidence=trusted_from(self)).fit(confidence, atypicality)
            self.quantiles_ = QuantileScale.from_rows(atypicality)

    def predict(self, outputs: ModelOutputs, *, max_risk: float | None = None, first_row: int = 0) -> Reliability:
        """Answer for every row of `outputs` (logits, and embeddings or atypicality); labels are not needed.

        Classes in another order than the head's, by `class_names`, are reordered on the way; labels, probabilities and
        sets of the answer are in the order of the outputs.

        With `max_risk` the answer also says which predictions to keep so that at most that share of them is wrong, with
        95 % confidence (see `AbstentionRule`). A row more atypical than every held-out row is not kept: no error rate
        was measured there. Warns where no threshold meets `max_risk`, so that nothing is kept, and when the rows'
        atypicality has left the range of the calibration rows. Randomised sets depend on the rows' numbers, which start
        at `first_row`: pass it where a long table is answered part by part.

        >>> from atypicality.datasets import load_fashion_mnist_lt
        >>> train, calibration, test = load_fashion_mnist_lt()
        >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
        >>> answer = head.predict(test, max_risk=0.05)
        >>> bool((answer.label != test.labels)[answer.accepted].mean() < 0.05)
        True
        """
        check_is_fitted(self, "recalibration_")
        check_outputs(outputs).need("logits")
        number = check_integer(first_row, "first_row", low=0)
        head, mix = at_estimated_mix(self, outputs, number)
        scored = max_risk is not None and self.acceptance_ is not None
        found = predicted(head, outputs, number, max_risk=None if scored else max_risk)
        if scored and max_risk is not None:
            found = kept_by_score(self, found, outputs, max_risk)
        if max_risk is not None:
            self.abstention_.warn_where_none(found.accepted, max_risk)
        drift = drift_of(self, found)
        if drift is not None and drift.significant:
            warn(drift.message())
        return self._reliability(found, outputs, drift, mix)

    def _advised(self, answer: Reliability, outputs: ModelOutputs, sets: NDArray[np.bool_]) -> NDArray[np.str_]:
        """The advice (n,) that follows from other sets (n, k) than the answer's own."""
        gaussian = self.recalibration_density_
        covariate = None if gaussian is None else gaussian.atypicality(outputs.need("embeddings"))
        number = advice_of(advice_rule(self), answer.confidence, answer.atypicality, sets, covariate)
        kept = True if answer.accepted is None else answer.accepted
        return advice_texts(np.where(kept, number, ASK), sets.sum(axis=1))

    def _reliability(
        self, found: Outcome, outputs: ModelOutputs, drift: Drift | None = None, mix: ClassMix | None = None
    ) -> Reliability:
        quadrant = None if found.quadrant is None else QUADRANT_TEXTS[to_host(found.quadrant)]
        size = to_host(set_sizes(namespace(found.prediction_set), found.prediction_set))
        return Reliability(
            label=found.label,
            confidence=found.confidence,
            proba=found.proba,
            prediction_set=found.prediction_set,
            atypicality=found.atypicality,
            atypicality_quantile=found.atypicality_quantile,
            quadrant=quadrant,
            accepted=found.accepted,
            drift=drift,
            class_names=self.class_names_ if outputs.class_names is None else outputs.class_names,
            ids=outputs.ids,
            advice=advice_texts(to_host(found.advice), size),
            class_mix=mix,
            recalibration_atypicality=None if drift is None or drift.recalibration is None else found.covariate,
        )

    def _sets(self, probs: FloatArray, atypicality: Any, attributes: Any, first_row: int = 0) -> NDArray[np.bool_]:
        offered = {"first_row": first_row, "atypicality": atypicality, "attributes": attributes}
        found = call_with_known(self.prediction_sets_.predict_set, probs, **offered)
        return found if on_device(probs) else np.asarray(found, bool)

    def _scored(self, outputs: ModelOutputs, scored: Scores | None = None) -> tuple[FloatArray, Any, Any]:
        """Probabilities, atypicality, and that of recalibration where it is another."""
        atypicality, offered = self._rarity(outputs, scored)
        probs = call_with_known(self.recalibration_.predict_proba, outputs.need("logits"), **offered)
        return probs, atypicality, None if self.recalibration_density_ is None else offered["atypicality"]

    def _rarity(
        self, outputs: ModelOutputs, scored: Scores | None = None
    ) -> tuple[NDArray[np.float64] | None, dict[str, Any]]:
        """Atypicality (n,) for sets, quadrants and drift, and what recalibration is offered beside the logits."""
        given = None if self.density is None else outputs.atypicality
        offered = {"atypicality": given, "class_log_density": None, "embeddings": outputs.embeddings}
        if reads_ambiguity(self.recalibration) and self.neighbor_ratio_ is not None:
            label = to_host(namespace(outputs.need("logits")).argmax(outputs.need("logits"), axis=1))
            offered["ambiguity"] = ambiguity_of(self, outputs.need("embeddings"), label)
        if self.density_ is None:
            return given, offered
        embeddings = outputs.need("embeddings")
        atypicality, offered["atypicality"], densities = self._scores(embeddings) if scored is None else scored
        if densities is not None:
            offered["class_log_density"] = in_columns(densities, self._sources())
        return atypicality, offered

    def _scores(self, embeddings: Any) -> Scores:
        density = self.density_
        if type(density) not in GAUSSIANS:  # a user's own, by its methods
            atypicality, scored = density.atypicality(embeddings), hasattr(density, "class_log_density")
            return atypicality, atypicality, density.class_log_density(embeddings) if scored else None
        what = ["atypicality", "class_log_density"] + ([] if self.recalibration_density_ is None else ["covariate"])
        x = any_matrix(embeddings, "embeddings", width=density.n_features_in_)
        atypicality, densities, *covariate = (
            like(found, embeddings) for found in score_rows(self._density_formula(), x, *what)
        )
        return atypicality[:, 0], (covariate or [atypicality])[0][:, 0], densities

    def formula(self, max_risk: float | None = None) -> HeadFormula:
        """The parameters of a prediction, where every part of the head has a formula; see `atypicality.formula`.

        With `max_risk`, as in `predict`, it also says which predictions are accepted.

        >>> from atypicality.datasets import load_fashion_mnist_lt
        >>> train, calibration, test = load_fashion_mnist_lt()
        >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
        >>> type(head.formula().density).__name__
        'TwoDensities'
        """
        check_is_fitted(self, "recalibration_")
        recalibration = self.recalibration_.formula()
        read = reads_of(recalibration) | (set() if self.recalibration_quantiles_ is None else {"atypicality"})
        density = None if self.density_ is None else self._density_formula(read)
        scale = quadrant = None
        if self.quantiles_ is not None and self.quadrants_ is not None:
            scale, quadrant = self.quantiles_.formula(), self.quadrants_.formula()
        parts = recalibration, self.prediction_sets_.formula()
        return HeadFormula(density, self._sources(), *parts, scale, quadrant, advice_rule(self, max_risk))

    def _density_formula(self, read: Set[str] | None = None) -> Any:
        """Of the density, and of the Gaussian beside it; no more than what is said to be read."""
        formula, gaussian = self.density_.formula(), self.recalibration_density_
        alone = formula.alone() if type(formula) is RelativeDensity else formula
        read = {"atypicality", "densities"} if read is None else read
        if gaussian is None or not read & {"atypicality", "densities"}:
            return formula if "densities" in read else alone
        return self._both(formula if self.density_.normalize is None else alone, gaussian.formula())

    def _both(self, formula: Any, gaussian: Any) -> TwoDensities:
        shared = self.density_.normalize is None  # rows of both are whitened alike; see `_check_two_densities`
        return TwoDensities(formula, None if shared else gaussian)

    def _sources(self) -> NDArray[np.intp] | None:
        """As `class_sources`, of this head's density."""
        if not hasattr(self.density_, "class_log_density"):
            return None
        positions = class_positions(self.density_.classes_, self.n_classes_, self.class_names_)
        return class_sources(positions, self.n_classes_)

    def summary(self) -> str:
        """What was fitted, on how much, and what it changed on held-out rows, as a few lines of text.

        >>> from atypicality.datasets import load_fashion_mnist_lt
        >>> train, calibration, test = load_fashion_mnist_lt()
        >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
        >>> print(head.summary())
        ReliabilityHead for 10 classes
          rows            train 10,000, recalibration 2,500, edges 250, thresholds 2,250
        ...
        """
        check_is_fitted(self, "recalibration_")
        return described(self)

    def __str__(self) -> str:
        """The summary once it is fitted, and the parameters before."""
        return self.summary() if hasattr(self, "recalibration_") else repr(self)

    def _repr_html_(self) -> str:
        """For a notebook: what was fitted and what it changed, or the parameters before `fit`."""
        if not hasattr(self, "recalibration_"):
            return html_table(
                "ReliabilityHead, not fitted", ("parameter", "value"), self.get_params(deep=False).items()
            )
        return described_in_html(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What scikit-learn's diagram of parameters makes way for."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def save(self, folder: str | os.PathLike[str]) -> str:
        """Write the head to `folder` as a bundle: one safetensors file, one JSON file, one model card; see `load`.

        Returns the bundle's sha256, which `load(folder, sha256=...)` and `atypicality serve --sha256` compare.

        >>> from atypicality.datasets import load_fashion_mnist_lt
        >>> train, calibration, test = load_fashion_mnist_lt()
        >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sha256 = head.save(folder)
        ...     sorted(os.listdir(folder))
        ['README.md', 'head.json', 'tensors-...safetensors']
        >>> len(sha256)
        64
        """
        from atypicality import save

        return save(self, folder)

    def export_onnx(
        self,
        path: str | os.PathLike[str],
        *,
        max_risk: float | None = None,
        network: str | os.PathLike[str] | None = None,
        verify: bool = True,
    ) -> None:
        """Write the head to `path` as one ONNX file (extra `onnx`), compared with the head first if `verify`.

        With `max_risk`, as in `predict`, the file also says which predictions are accepted. With `network`, an ONNX
        file whose outputs are logits and embeddings, both are one graph.

        >>> from atypicality.datasets import load_fashion_mnist_lt
        >>> train, calibration, test = load_fashion_mnist_lt()
        >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     head.export_onnx(os.path.join(folder, "head.onnx"))
        ...     os.listdir(folder)
        ['head.onnx']
        """
        from atypicality import export_onnx

        export_onnx(self, path, max_risk=max_risk, network=network, verify=verify)

    _stored = Record(
        check=check_consistent,
        density=kinds.Either(None, "auto", otherwise=Part(*DENSITIES, fitted=False)),
        recalibration=kinds.Either("auto", otherwise=Part(*RECALIBRATIONS, fitted=False)),
        prediction_sets=kinds.Either("auto", otherwise=Part(*PREDICTION_SETS, fitted=False)),
        acceptance=kinds.Later(kinds.optional(Part(NeighborRatio, fitted=False)), absent=None),
        alpha=kinds.Later(kinds.Alpha(), absent=lambda head: head.prediction_sets_.alpha),
        random_state=kinds.SEED,
    )


def _default_sets(alpha: float, rare: bool, n_rows: int, n_edges: int | None) -> Any:
    """Sets of a head whose user says nothing of them; sixths of atypicality need rows to set their thresholds."""
    if not rare:
        return SplitConformal(alpha=alpha)
    sets = ConditionalConformal(alpha=alpha)
    n_thresholds = n_rows - (round(sets.edge_fraction * n_rows) if n_edges is None else n_edges)
    enough = n_thresholds >= max(FINE_FROM, SIXTHS * GROUP_ROWS / float(check_alpha(alpha)))
    return sets.set_params(groups="atypicality") if enough else sets


def _warn_without_atypicality(reason: str) -> None:
    warn(
        f"{reason}: the head works without atypicality, so there are no quadrants and no drift warning, and the sets "
        "are valid on average only, not for rare inputs."
    )
