"""The reliability head: density, recalibration and prediction sets as one object, fitted on the right parts."""

import os
from dataclasses import replace
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks, conformal, density, recalibration
from atypicality.arrays import namespace, to_host
from atypicality.density import GaussianAtypicality
from atypicality.density.choice import DensityChoice
from atypicality.density.ratio import NeighborRatio
from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.formula import ASK, HeadFormula, Outcome, advice_texts, set_sizes
from atypicality.groups import QUADRANTS, Quadrants
from atypicality.head.abstention import AbstentionRule
from atypicality.head.acceptance import AcceptanceScore
from atypicality.head.advice import advice_of, advice_rule
from atypicality.head.calibration_fit import fit_calibration
from atypicality.head.calibration_parts import check_calibration, check_order, cut, in_one_order
from atypicality.head.consistency import check_consistent, known_reading
from atypicality.head.description import described, described_in_html
from atypicality.head.doubts import doubts_of, watched_classes
from atypicality.head.drift import Drift, drift_of
from atypicality.head.lost import warn_of_lost_accepted
from atypicality.head.moments import warn_of_backwards, warn_of_other_layer
from atypicality.head.prediction import at_estimated_mix, kept_by_score, predicted
from atypicality.head.quantiles import QuantileScale
from atypicality.head.rarity import READING, density_formula, fit_density, fitted_ratio, sources_of
from atypicality.head.reference import HeldOutCounts
from atypicality.head.reliability import Acceptance, Reliability
from atypicality.outputs import ModelOutputs, Parts, check_outputs
from atypicality.outputs.limits import check_room
from atypicality.recalibration.class_mix import ClassMix
from atypicality.stored import Part, Record, declared, kinds
from atypicality.terminal import html_table
from atypicality.validation import check_alpha, check_integer, warn

__all__ = ["ReliabilityHead"]

DENSITIES, RECALIBRATIONS, PREDICTION_SETS = declared(density), declared(recalibration), declared(conformal)
"""The classes that a saved head can be made of."""
QUADRANT_TEXTS = np.array(QUADRANTS)
ALPHA = 0.1
SAME = ("label", "confidence", "proba", "prediction_set", "atypicality", "atypicality_quantile", "accepted")
"""What an answer has as the verdict has it."""


class ReliabilityHead(BaseEstimator):
    """What to trust, prediction by prediction: rarity of the input, recalibrated probabilities, a prediction set.

    Parameters
    ----------
    density : estimator, "auto" or None, default="auto"
        "auto" takes the one of `GaussianAtypicality` and `RelativeAtypicality`, raw or normalised, that finds errors
        best on the recalibration rows, or `RelativeAtypicality(normalize="l2")` where these are fewer than 500 or have
        fewer than 20 errors; recalibration takes its atypicality from the Gaussian all the same. Outputs that bring
        their own `atypicality` (language models) need none. An estimator, such as the paper's
        `GaussianAtypicality()`, is used for everything. None does without atypicality.
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
        Share of prediction sets that may miss the label, with prediction_sets="auto". Sets of your own have theirs:
        another one here, other than the default, is refused.
    random_state : int, default=0
        Cuts the calibration rows into parts.

    Attributes
    ----------
    density_ : fitted density, or None
    density_choice_ : DensityChoice, or None
        With density="auto", the candidates and what the recalibration rows say of each.
    recalibration_density_ : GaussianAtypicality, or None
        What recalibration takes atypicality from, where `density_` was chosen and is another: minus log p(x | y) of the
        class y that is nearest by `density_`. It carries the length of the embedding, which acts like a temperature.
        Class log-densities are those of `density_`. None where recalibration uses `density_` for both.
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
    agreement_ : float, or None without class densities and in a head from an older bundle
        By how many standard deviations of shuffled rows the model's probability of the class whose density is largest
        is above that of shuffled rows, for one row; n rows have sqrt(n) times that. `predict` compares logits with
        embeddings where that is enough to tell.
    reference_ : HeldOutCounts, or None in a head from an older bundle
        Counts of the held-out rows that recalibration did not see, for `Monitor` and `estimate_accuracy`.
    metrics_ : dict
        Accuracy, NLL and ECE before and after recalibration, on the rows that recalibration did not see.
    sizes_ : dict
        Rows used for each purpose.
    cross_fitted_ : bool
        Whether this is the head of a cross-fitted classifier: no coverage is guaranteed for its own prediction sets.
    reading_ : int
        2: what recalibration reads of the densities, as under `recalibration_density_`.
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
    agreement_: Annotated[float | None, kinds.Later(kinds.optional(kinds.Number()), absent=None)]
    reference_: Annotated[HeldOutCounts | None, kinds.Later(kinds.optional(Part(HeldOutCounts)), absent=None)]
    metrics_: Annotated[dict[str, dict[str, float]], kinds.MappingOf(kinds.MappingOf(kinds.Number(infinite=True)))]
    sizes_: Annotated[dict[str, int], kinds.MappingOf(kinds.Integer())]
    cross_fitted_: Annotated[bool, kinds.Later(kinds.FLAG, absent=False)]
    reading_: Annotated[int, kinds.Later(kinds.Choice(READING), absent=known_reading)]
    fingerprint_: Annotated[str, kinds.Text("[0-9a-f]{1,64}")]

    def __init__(
        self,
        density: Any = "auto",
        recalibration: Any = "auto",
        prediction_sets: Any = "auto",
        *,
        acceptance: Any = None,
        alpha: float = ALPHA,
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
        _check_parts(self)
        _check_one_alpha(self)
        fingerprint = check_calibration(calibration)
        train, calibration, self.class_names_ = in_one_order(train, calibration, class_names)
        whole = calibration.recalibration if isinstance(calibration, Parts) else calibration
        self.n_classes_ = int(whole.need("logits").shape[1])
        scored = train if isinstance(train, ModelOutputs) else whole
        columns = 0 if scored.embeddings is None else scored.embeddings.shape[1]
        check_room(max(len(scored) // 8, len(whole)), self.n_classes_, columns)
        with blocks.single_threaded_blas(columns):
            first, rest, edge_rows = cut(calibration, seed)
            self.neighbor_ratio_ = fitted_ratio(self, train)
            known = fit_density(self, train, whole, first)
            self.fingerprint_, self.cross_fitted_, self.reading_ = fingerprint, False, READING
            train_rows = len(train) if isinstance(train, ModelOutputs) else 0
            fit_calibration(self, first, rest, edge_rows, train_rows, known)
        if not aligned and known is not None:
            warn_of_other_layer(self, train, whole)
            warn_of_backwards(self, train)
        self.agreement_ = check_order(first, known, sources_of(self), aligned=aligned)
        return self

    def refit(self, calibration: ModelOutputs | Parts) -> Self:
        """Fit recalibration and sets again on newer rows of the same model, `calibration`, keeping the density.

        This head is changed, and returned: save or copy it first if you want to compare the two. A model that was
        trained again, however little, needs a new head instead, by `fit` with its own outputs of training rows.

        >>> from atypicality.datasets import load_fashion_mnist_lt
        >>> train, calibration, test = load_fashion_mnist_lt()
        >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
        >>> head.refit(calibration[:3000]).sizes_
        {'recalibration': 1500, 'edges': 150, 'thresholds': 1350}
        """
        check_is_fitted(self, "recalibration_")
        return self._fit(self.density_, calibration, self.class_names_)

    def predict(self, outputs: ModelOutputs, *, max_risk: float | None = None, first_row: int = 0) -> Reliability:
        """Answer for every row of `outputs` (logits, and embeddings or atypicality); labels are not needed.

        Classes in another order than the head's, by `class_names`, are reordered on the way; labels, probabilities and
        sets of the answer are in the order of the outputs.

        With `max_risk` the answer also says which predictions to keep so that at most that share of them is wrong, with
        95 % confidence (see `AbstentionRule`). A row more atypical than every held-out row is not kept: no error rate
        was measured there. Warns where no threshold meets `max_risk`, so that nothing is kept, where most held-out rows
        of a class are kept as another one, when the rows' atypicality has left the range of the calibration rows, and
        of what looks wrong with the outputs (`doubts`).
        Randomised sets depend on the rows' numbers, which start at `first_row`: pass it where a long table is answered
        part by part.

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
        nearest = watched_classes(self, len(outputs))
        found = predicted(head, outputs, number, max_risk=None if scored else max_risk, nearest=nearest)
        if scored and max_risk is not None:
            found = kept_by_score(self, found, outputs, max_risk)
        if max_risk is not None:
            self.abstention_.warn_where_none(found.accepted, max_risk)
            warn_of_lost_accepted(self, max_risk)
        drift = drift_of(self, found)
        if drift is not None and drift.significant:
            warn(drift.message())
        answer = self._reliability(found, outputs, drift, mix, doubts_of(self, found, outputs, drift, nearest))
        score = "score" if scored else "confidence"
        return answer if max_risk is None else replace(answer, acceptance=Acceptance(self.abstention_, max_risk, score))

    def _advised(self, answer: Reliability, sets: NDArray[np.bool_]) -> NDArray[np.str_]:
        """The advice (n,) that follows from other sets (n, k) than the answer's own."""
        scores = answer.atypicality, answer.recalibration_atypicality
        number = advice_of(advice_rule(self), answer.confidence, scores[0], sets, scores[1])
        kept = True if answer.accepted is None else answer.accepted
        return advice_texts(np.where(kept, number, ASK), sets.sum(axis=1))

    def _reliability(
        self,
        found: Outcome,
        outputs: ModelOutputs,
        drift: Drift | None = None,
        mix: ClassMix | None = None,
        doubts: tuple[str, ...] = (),
    ) -> Reliability:
        quadrant = None if found.quadrant is None else QUADRANT_TEXTS[to_host(found.quadrant)]
        size = to_host(set_sizes(namespace(found.prediction_set), found.prediction_set))
        names = self.class_names_ if outputs.class_names is None else outputs.class_names
        parts: dict[str, Any] = {name: getattr(found, name) for name in SAME}
        parts |= {"quadrant": quadrant, "advice": advice_texts(to_host(found.advice), size)}
        parts["recalibration_atypicality"] = None if drift is None or drift.recalibration is None else found.covariate
        return Reliability(**parts, drift=drift, class_names=names, ids=outputs.ids, class_mix=mix, doubts=doubts)

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
        density = None if self.density_ is None else density_formula(self)
        scale = quadrant = None
        if self.quantiles_ is not None and self.quadrants_ is not None:
            scale, quadrant = self.quantiles_.formula(), self.quadrants_.formula()
        parts = self.recalibration_.formula(), self.prediction_sets_.formula()
        return HeadFormula(density, sources_of(self), *parts, scale, quadrant, advice_rule(self, max_risk))

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

        With `max_risk`, as in `predict`, the file also says which predictions are accepted, and its advice heeds it.
        With `network`, an ONNX file with float32 outputs called logits, in the head's order of classes, and embeddings
        where the head needs them, both are one graph, and other outputs of the network stay. The file takes its place
        whole or not at all, after onnxruntime has answered made-up and hostile rows as the head does, in a process of
        its own, or else RuntimeError. Parts that cannot be a graph (neighbours, learnt networks, randomised sets), or
        are too large for one file, are a ValueError. The page on the ONNX graph lists its inputs and outputs.

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


def _check_parts(head: ReliabilityHead) -> None:
    for name, such in (("recalibration", "TemperatureScaling"), ("prediction_sets", "SplitConformal")):
        part = getattr(head, name)
        if part != "auto" if isinstance(part, str) else not hasattr(part, "get_params"):
            raise TypeError(f'{name} must be "auto" or an estimator, such as {such}(); got {part!r:.200}.')


def _check_one_alpha(head: ReliabilityHead) -> None:
    """Refuse an alpha that was set beside that of the prediction sets, which they would use."""
    own = getattr(head.prediction_sets, "alpha", None)
    if own is not None and check_alpha(head.alpha) not in (check_alpha(ALPHA), check_alpha(own)):
        raise ValueError(
            f"alpha must be given once; got alpha={head.alpha:g} for the head and {own:g} for its "
            f"{type(head.prediction_sets).__name__}, which uses its own. Give the sets alpha={head.alpha:g}, and none "
            "to the head."
        )
