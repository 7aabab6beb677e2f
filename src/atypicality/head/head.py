"""The reliability head: density, recalibration and prediction sets as one object, fitted on the right parts."""

import inspect
import math
import os
from dataclasses import replace
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from atypicality import conformal, density, recalibration
from atypicality.arrays import like, on_device, to_host
from atypicality.blocks import progress
from atypicality.conformal import AtypicalityAwareConformal, SplitConformal
from atypicality.density import GaussianAtypicality
from atypicality.density.choice import DensityChoice, choose_density, fit_family
from atypicality.density.columns import class_positions, class_sources, in_columns
from atypicality.formula import HeadFormula, Outcome
from atypicality.groups import QUADRANTS, Quadrants
from atypicality.head.abstention import AbstentionRule
from atypicality.head.calibration_parts import check_calibration, first_and_rest, in_one_order, warn_of_training_rows
from atypicality.head.drift import Drift
from atypicality.head.keywords import call_with_known
from atypicality.head.prediction import at_class_prior, at_estimated_mix, predicted
from atypicality.head.quantiles import QuantileScale
from atypicality.head.reliability import Reliability
from atypicality.metrics import accuracy, ece, nll
from atypicality.metrics.rows import read_pairs
from atypicality.outputs import ModelOutputs, Parts, check_outputs
from atypicality.outputs.limits import check_room
from atypicality.recalibration import AtypicalityAwareRecalibration
from atypicality.recalibration.base import error_free
from atypicality.recalibration.class_prior import is_estimated
from atypicality.recalibration.prediction import softmax_rows
from atypicality.stored import Part, Record, declared, kinds, need
from atypicality.validation import FloatArray, check_alpha, check_integer, warn

__all__ = ["ReliabilityHead"]

RECALIBRATION_SHARE = 0.5
PURPOSES = ("train", "recalibration", "edges", "thresholds")
REPORTED = {"accuracy": accuracy, "nll": nll, "ece": ece}
DENSITIES, RECALIBRATIONS, PREDICTION_SETS = declared(density), declared(recalibration), declared(conformal)
"""The classes that a saved head can be made of."""
ROWS_PER_GROUP = 2  # times 1 / alpha: a region that expects fewer threshold rows has wide coverage


class ReliabilityHead(BaseEstimator):
    """What to trust, prediction by prediction: rarity of the input, recalibrated probabilities, a prediction set.

    Parameters
    ----------
    density : estimator, "auto", "choose" or None, default="auto"
        "auto" is `GaussianAtypicality()` where there are embeddings; outputs that bring their own `atypicality`
        (language models) need none. "choose" takes the one of `GaussianAtypicality` and `RelativeAtypicality`, raw or
        normalised, that finds errors best on the recalibration rows; see `density_choice_`. None does without
        atypicality.
    recalibration : estimator or "auto", default="auto"
        "auto" is `AtypicalityAwareRecalibration()`.
    prediction_sets : estimator or "auto", default="auto"
        "auto" is `AtypicalityAwareConformal` with as many groups as the rows support, or `SplitConformal` without
        atypicality.
    alpha : float in (0, 1), default=0.1
        Share of prediction sets that may miss the label, with prediction_sets="auto".
    random_state : int, default=0
        Cuts the calibration rows into parts.

    Attributes
    ----------
    density_ : fitted density, or None
    density_choice_ : DensityChoice, or None
        With density="choose", the candidates and what the recalibration rows say of each.
    recalibration_, prediction_sets_ : fitted estimators
    quadrants_ : Quadrants, or None without atypicality
    quantiles_ : QuantileScale, or None without atypicality
        Of the held-out calibration rows, never of training rows.
    abstention_ : AbstentionRule
    metrics_ : dict
        Accuracy, NLL and ECE before and after recalibration, on the rows that recalibration did not see.
    sizes_ : dict
        Rows used for each purpose.
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
    {'train': 10000, 'recalibration': 2500, 'edges': 833, 'thresholds': 1667}
    >>> answer = head.predict(test)
    >>> answer.prediction_set.shape
    (5000, 10)
    """

    n_classes_: Annotated[int, kinds.Size("K")]
    class_names_: Annotated[NDArray[Any] | None, kinds.optional(kinds.Labels("K", ordered=False))]
    density_: Annotated[Any, kinds.optional(Part(*DENSITIES))]
    density_choice_: Annotated[DensityChoice | None, kinds.Later(kinds.optional(Part(DensityChoice)), absent=None)]
    recalibration_: Annotated[Any, Part(*RECALIBRATIONS)]
    prediction_sets_: Annotated[Any, Part(*PREDICTION_SETS)]
    quadrants_: Annotated[Quadrants | None, kinds.optional(Part(Quadrants))]
    quantiles_: Annotated[QuantileScale | None, kinds.optional(Part(QuantileScale))]
    abstention_: Annotated[AbstentionRule, Part(AbstentionRule)]
    metrics_: Annotated[dict[str, dict[str, float]], kinds.MappingOf(kinds.MappingOf(kinds.Number(infinite=True)))]
    sizes_: Annotated[dict[str, int], kinds.MappingOf(kinds.Integer())]
    fingerprint_: Annotated[str, kinds.Text("[0-9a-f]{1,64}")]

    def __init__(
        self,
        density: Any = "auto",
        recalibration: Any = "auto",
        prediction_sets: Any = "auto",
        *,
        alpha: float = 0.1,
        random_state: int = 0,
    ) -> None:
        self.density = density
        self.recalibration = recalibration
        self.prediction_sets = prediction_sets
        self.alpha = alpha
        self.random_state = random_state

    def fit(self, train: Any = None, calibration: ModelOutputs | Parts | None = None) -> Self:
        """Fit the density on `train`, then recalibration and sets on disjoint parts of `calibration`.

        Parameters
        ----------
        train : ModelOutputs with embeddings and labels, or a fitted density, optional
            Left out where `calibration` brings its own `atypicality`.
        calibration : ModelOutputs with logits and labels, or Parts
            Rows that neither trained the model nor `train` holds. One set is cut at random: half recalibrates, a
            third of the rest draws group edges, the remainder is the threshold set. `Parts` (see `three_way_split`)
            are taken as they are.

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
        return self._fit(train, calibration, None)

    def _fit(self, train: Any, calibration: ModelOutputs | Parts, class_names: NDArray[Any] | None) -> Self:
        """As `fit`, with classes in the order of `class_names` or else of the first outputs that name theirs."""
        seed = check_integer(self.random_state, "random_state", low=0)
        fingerprint = check_calibration(calibration)
        train, calibration, self.class_names_ = in_one_order(train, calibration, class_names)
        whole = calibration.recalibration if isinstance(calibration, Parts) else calibration
        self.n_classes_ = int(whole.need("logits").shape[1])
        scored = train if isinstance(train, ModelOutputs) else whole
        columns = 0 if scored.embeddings is None else scored.embeddings.shape[1]
        check_room(max(len(scored) // 8, len(whole)), self.n_classes_, columns)
        first, rest, edge_rows = _cut(calibration, seed)
        self.density_ = self._fit_density(train, whole, first)
        self.fingerprint_ = fingerprint
        train_rows = len(train) if isinstance(train, ModelOutputs) else 0
        return self._fit_calibration(first, rest, edge_rows, train_rows)

    def refit(self, calibration: ModelOutputs | Parts) -> Self:
        """Fit recalibration and sets again on newer rows, `calibration`, keeping the density.

        >>> from atypicality.datasets import load_fashion_mnist_lt
        >>> train, calibration, test = load_fashion_mnist_lt()
        >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
        >>> head.refit(calibration[:3000]).sizes_
        {'recalibration': 1500, 'edges': 500, 'thresholds': 1000}
        """
        check_is_fitted(self, "recalibration_")
        return self._fit(self.density_, calibration, self.class_names_)

    def _fit_density(self, train: Any, calibration: ModelOutputs, first: ModelOutputs) -> Any:
        """The density fitted on training rows, chosen where it is to be by the `first` rows, those of recalibration."""
        if train is None or train is not getattr(self, "density_", None):
            self.density_choice_ = None
        if self.density is None or (train is None and calibration.atypicality is not None):
            if self.density is None:
                _warn_without_atypicality("density=None")
            return None
        if train is None:
            _warn_without_atypicality("no train= and no atypicality in the calibration outputs")
            return None
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
        with train._numbered():
            if isinstance(self.density, str) and self.density == "choose":
                family = fit_family(embeddings, labels)
            else:
                auto = isinstance(self.density, str) and self.density == "auto"
                return (GaussianAtypicality() if auto else clone(self.density)).fit(embeddings, labels)
        progress.stage("choosing the density")
        with first._numbered():
            self.density_choice_ = choose_density(
                family,
                first.need("embeddings"),
                softmax_rows(first.need("logits")),
                first.need("labels"),
                random_state=self.random_state,
            )
        return family[self.density_choice_.name]

    def _fit_calibration(
        self, first: ModelOutputs, rest: ModelOutputs, edge_rows: NDArray[np.bool_] | None, train_rows: int
    ) -> Self:
        progress.stage("fitting the recalibration")
        with first._numbered():
            self._fit_recalibration(first)
        progress.stage("fitting the prediction sets")
        with rest._numbered():
            probs, labels = self._fit_thresholds(rest, edge_rows)
        self.metrics_ = _before_and_after(rest.need("logits"), probs, labels)
        thresholds = getattr(self.prediction_sets_, "n_calibration_", len(rest))
        edges = getattr(self.prediction_sets_, "n_edge_", len(rest) - thresholds)
        self.sizes_ = {"train": train_rows} if train_rows else {}
        self.sizes_ |= {
            "recalibration": len(first),
            "edges": int(edges),
            "thresholds": int(thresholds),
        }
        return self

    def _fit_thresholds(self, outputs: ModelOutputs, edge_rows: NDArray[np.bool_] | None) -> tuple[Any, Any]:
        """Sets, abstention and quantiles; the probabilities and labels of the rows."""
        estimates = is_estimated(getattr(self.recalibration_, "class_prior", None))
        head = at_class_prior(self, None) if estimates else self  # these rows have the mix that calibrated
        probs, atypicality = head._probabilities(outputs)
        labels = outputs.need("labels")
        self._fit_sets(probs, labels, atypicality, edge_rows)
        self._remember(probs, labels, atypicality)
        return probs, labels

    def _fit_recalibration(self, outputs: ModelOutputs) -> None:
        logits, labels = outputs.need("logits", "labels")
        atypicality, densities = self._rarity(outputs)
        recalibration = self.recalibration
        if isinstance(recalibration, str) and recalibration == "auto":
            covariates = ("margin",) if atypicality is None else ("atypicality", "margin")
            recalibration = AtypicalityAwareRecalibration(covariates=covariates)
        offered = {
            "atypicality": atypicality,
            "class_log_density": densities,
            "embeddings": outputs.embeddings,
            "class_log_prior": self._class_log_prior(outputs),
        }
        self.recalibration_ = call_with_known(clone(recalibration).fit, logits, labels, **offered)

    def _class_log_prior(self, outputs: ModelOutputs) -> NDArray[np.float64] | None:
        """Logarithms of the class shares in training (k,): as the outputs have them, or of the density's rows."""
        if outputs.class_atypicality is not None:
            return -outputs.class_atypicality
        if not hasattr(self.density_, "counts_"):
            return None
        counts = np.zeros(self.n_classes_)
        counts[class_positions(self.density_.classes_, self.n_classes_, self.class_names_)] = self.density_.counts_
        with np.errstate(divide="ignore"):
            return np.log(counts)

    def _fit_sets(self, probs: FloatArray, labels: Any, atypicality: Any, edge_rows: NDArray[np.bool_] | None) -> None:
        sets = self.prediction_sets
        if isinstance(sets, str) and sets == "auto":
            sets = SplitConformal(alpha=self.alpha) if atypicality is None else _aware_sets(probs.shape[0], self.alpha)
        sets = clone(sets)
        if atypicality is None and "atypicality" in inspect.signature(sets.fit).parameters:
            raise ValueError(f"prediction_sets={type(sets).__name__} needs atypicality: give train= or a density.")
        offered = {"atypicality": atypicality, "edge_rows": edge_rows}
        self.prediction_sets_ = call_with_known(sets.fit, probs, labels, **offered)

    def _remember(self, probs: FloatArray, labels: Any, atypicality: Any) -> None:
        pairs = read_pairs(probs, labels, None, None)
        confidence, correct = np.minimum(pairs.confidence, 1.0), pairs.correct
        atypicality = None if atypicality is None else to_host(atypicality)
        self.abstention_ = AbstentionRule.from_rows(confidence, correct)
        self.quadrants_ = self.quantiles_ = None
        if atypicality is not None:
            self.quadrants_ = Quadrants().fit(confidence, atypicality)
            self.quantiles_ = QuantileScale.from_rows(atypicality)

    def predict(self, outputs: ModelOutputs, *, max_risk: float | None = None, first_row: int = 0) -> Reliability:
        """Answer for every row of `outputs` (logits, and embeddings or atypicality); labels are not needed.

        Classes in another order than the head's, by `class_names`, are reordered on the way; labels, probabilities and
        sets of the answer are in the order of the outputs.

        With `max_risk` the answer also says which predictions to keep so that at most that share of them is wrong, with
        95 % confidence (see `AbstentionRule`). A row more atypical than every held-out row is not kept: no error rate
        was measured there. Warns when the rows' atypicality has left the range of the calibration rows. Randomised sets
        depend on the rows' numbers, which start at `first_row`: pass it where a long table is answered part by part.

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
        keep_from = None if max_risk is None else self.abstention_.threshold(max_risk)
        head, mix = at_estimated_mix(self, outputs, number)
        found = predicted(head, outputs, number)
        return replace(self._reliability(found, outputs, keep_from), class_mix=mix)

    def _reliability(self, found: Outcome, outputs: ModelOutputs, keep_from: float | None) -> Reliability:
        accepted = None if keep_from is None else found.confidence >= keep_from
        quadrant = drift = None
        if self.quantiles_ is not None and found.atypicality is not None:
            rarity = to_host(found.atypicality)
            quadrant = np.array(QUADRANTS)[to_host(found.quadrant)]
            drift = Drift(self.quantiles_, rarity)
            if accepted is not None:
                accepted = accepted & like(~self.quantiles_.beyond(rarity), accepted)
            if drift.significant:
                warn(drift.message())
        return Reliability(
            label=found.label,
            confidence=found.confidence,
            proba=found.proba,
            prediction_set=found.prediction_set,
            atypicality=found.atypicality,
            atypicality_quantile=found.atypicality_quantile,
            quadrant=quadrant,
            accepted=accepted,
            drift=drift,
            class_names=self.class_names_ if outputs.class_names is None else outputs.class_names,
            ids=outputs.ids,
        )

    def _sets(self, probs: FloatArray, atypicality: Any, first_row: int = 0) -> NDArray[np.bool_]:
        offered = {"first_row": first_row, "atypicality": atypicality}
        found = call_with_known(self.prediction_sets_.predict_set, probs, **offered)
        return found if on_device(probs) else np.asarray(found, bool)

    def _probabilities(self, outputs: ModelOutputs) -> tuple[FloatArray, NDArray[np.float64] | None]:
        atypicality, densities = self._rarity(outputs)
        offered = {"atypicality": atypicality, "class_log_density": densities, "embeddings": outputs.embeddings}
        return call_with_known(self.recalibration_.predict_proba, outputs.need("logits"), **offered), atypicality

    def _rarity(self, outputs: ModelOutputs) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
        """Atypicality (n,) and class log-densities (n, k) in the order of the logits' columns, where there are any."""
        if self.density_ is None:
            return (None if self.density is None else outputs.atypicality), None
        embeddings = outputs.need("embeddings")
        if not hasattr(self.density_, "class_log_density"):
            return self.density_.atypicality(embeddings), None
        densities = self.density_.class_log_density(embeddings)
        return self.density_.atypicality(embeddings), in_columns(densities, self._sources())

    def formula(self) -> HeadFormula:
        """The parameters of a prediction, where every part of the head has a formula; see `atypicality.formula`.

        >>> from atypicality.datasets import load_fashion_mnist_lt
        >>> train, calibration, test = load_fashion_mnist_lt()
        >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
        >>> type(head.formula().density).__name__
        'TiedDensity'
        """
        check_is_fitted(self, "recalibration_")
        density = None if self.density_ is None else self.density_.formula()
        scale = quadrant = None
        if self.quantiles_ is not None and self.quadrants_ is not None:
            scale, quadrant = self.quantiles_.formula(), self.quadrants_.formula()
        return HeadFormula(
            density, self._sources(), self.recalibration_.formula(), self.prediction_sets_.formula(), scale, quadrant
        )

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
          rows            train 10,000, recalibration 2,500, edges 833, thresholds 1,667
        ...
        """
        check_is_fitted(self, "recalibration_")
        sizes = ", ".join(f"{name} {self.sizes_[name]:,}" for name in PURPOSES if name in self.sizes_)
        sets = self.prediction_sets_
        lines = [
            f"ReliabilityHead for {self.n_classes_} classes",
            f"  rows            {sizes}",
            f"  density         {'none' if self.density_ is None else type(self.density_).__name__}",
            f"  recalibration   {type(self.recalibration_).__name__}",
            f"  prediction sets {type(sets).__name__}"
            + (f", {1 - float(sets.alpha):.4g} coverage" if hasattr(sets, "alpha") else ""),
            "  held-out rows   before -> after recalibration",
        ]
        if unseen := error_free(self.recalibration_):
            lines.insert(4, f"                  {unseen}")
        if self.density_choice_ is not None:
            lines.insert(3, f"                  {self.density_choice_}")
        before, after = self.metrics_["before"], self.metrics_["after"]
        return "\n".join([*lines, *(f"    {name:<13} {before[name]:.4f} -> {after[name]:.4f}" for name in REPORTED)])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the head to `folder` as a bundle: one safetensors file, one JSON file, one model card; see `load`.

        >>> from atypicality.datasets import load_fashion_mnist_lt
        >>> train, calibration, test = load_fashion_mnist_lt()
        >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     head.save(folder)
        ...     sorted(os.listdir(folder))
        ['README.md', 'head.json', 'tensors-...safetensors']
        """
        from atypicality import save

        save(self, folder)

    def export_onnx(self, path: str | os.PathLike[str], *, verify: bool = True) -> None:
        """Write the head to `path` as one ONNX file (extra `onnx`), compared with the head first if `verify`.

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

        export_onnx(self, path, verify=verify)

    def _check_stored(self) -> None:
        """The parts have what they need from each other."""
        names, rare = self.class_names_, self.quantiles_ is not None
        need(names is None or names.dtype.kind == "U", "class names must be text.")
        need((self.quadrants_ is None) == (self.quantiles_ is None), "quadrants and quantiles come together.")
        need(rare or self.density_ is None, "a head with a density must have quantiles.")
        need(self.density is not None or not rare, "density=None must go without quantiles.")
        need(rare or not self._needs_atypicality(), "the head must have atypicality, which a part of it needs.")
        both = self.metrics_.keys() == {"before", "after"}
        need(both and len(set(map(frozenset, self.metrics_.values()))) == 1, "metrics must be before and after.")
        used = getattr(self.recalibration_, "terms_", {}).get("class_density") == "used"
        given = hasattr(self.density_, "class_log_density")
        need(given or not used, "the density must have what recalibration needs.")
        self._sources()  # an error of its own where classes do not fit

    def _needs_atypicality(self) -> bool:
        recalibration, sets = self.recalibration_, self.prediction_sets_
        return (
            "atypicality" in inspect.signature(sets.predict_set).parameters
            or getattr(recalibration, "quantiles_", None) is not None
            or "atypicality" in getattr(getattr(recalibration, "polynomial_", None), "names", ())
        )

    _stored = Record(
        check=_check_stored,
        density=kinds.Either(None, "auto", "choose", otherwise=Part(*DENSITIES, fitted=False)),
        recalibration=kinds.Either("auto", otherwise=Part(*RECALIBRATIONS, fitted=False)),
        prediction_sets=kinds.Either("auto", otherwise=Part(*PREDICTION_SETS, fitted=False)),
        alpha=kinds.Later(kinds.Alpha(), absent=lambda head: head.prediction_sets_.alpha),
        random_state=kinds.SEED,
    )


def _cut(calibration: ModelOutputs | Parts, seed: int) -> tuple[ModelOutputs, ModelOutputs, NDArray[np.bool_] | None]:
    """Recalibration rows, the others, and which of these draw edges where that was given."""
    if isinstance(calibration, Parts):
        first, rest = first_and_rest(calibration)
        return first, rest, np.arange(len(rest)) < len(calibration.edges)
    if calibration.stratified:
        raise ValueError("calibration comes from a stratified split, which breaks the promise; split plainly.")
    chosen = calibration._chosen(RECALIBRATION_SHARE, seed)
    return calibration._part(chosen), calibration._part(~chosen), None


def _aware_sets(n_rows: int, alpha: float) -> AtypicalityAwareConformal:
    """As many groups, up to the paper's six by six, as leave every cell 2 / alpha threshold rows on average."""
    sets = AtypicalityAwareConformal(alpha=alpha)
    needed = math.ceil(ROWS_PER_GROUP / check_alpha(alpha))
    thresholds = n_rows * (1 - sets.edge_fraction)
    largest = max(sets.n_groups)
    groups = max([g for g in range(1, largest + 1) if thresholds / g**2 >= needed], default=1)
    return AtypicalityAwareConformal(alpha=alpha, n_groups=(groups, groups))


def _before_and_after(logits: FloatArray, probs: FloatArray, labels: NDArray[np.intp]) -> dict[str, dict[str, float]]:
    before = softmax_rows(logits)
    return {
        when: {name: float(metric(values, labels)) for name, metric in REPORTED.items()}
        for when, values in (("before", before), ("after", probs))
    }


def _warn_without_atypicality(reason: str) -> None:
    warn(
        f"{reason}: the head works without atypicality, so there are no quadrants and no drift warning, and the sets "
        "are valid on average only, not for rare inputs."
    )
