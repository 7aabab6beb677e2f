"""The chance that an answer of a language model is correct, and which answers to accept at a stated risk."""

import os
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from atypicality.conformal import SplitConformal
from atypicality.estimators import BaseEstimator, check_is_fitted
from atypicality.evaluation import Evaluation
from atypicality.formula import ASK, advice_texts
from atypicality.groups import QUADRANTS, Quadrants
from atypicality.head.abstention import AbstentionRule
from atypicality.head.advice import advice_of, advice_rule, checked_words, trusted_from
from atypicality.head.calibration_fit import remember
from atypicality.head.calibration_parts import RECALIBRATION_SHARE
from atypicality.head.drift import Drift
from atypicality.head.head import DENSITIES
from atypicality.head.quantiles import QuantileScale
from atypicality.head.reference import HeldOutCounts
from atypicality.head.reliability import Reliability
from atypicality.llm.answer_densities import EMBEDDED, fit_densities, scored
from atypicality.llm.answer_description import described, model_card
from atypicality.llm.answer_evaluation import AnswerReliability, each_alone, evaluate_answers
from atypicality.llm.answers import Answers, check_answers, only_checked
from atypicality.llm.known_rows import SeenRows, warn_of_labels, warn_of_scales, warn_of_unused, without_copies
from atypicality.llm.shifts import EMPTY, MISSING, empty_words, lacking_words, moved_words, outside_words, untried
from atypicality.llm.signals import SignalModel, signals_of
from atypicality.metrics import ece, nll
from atypicality.metrics.rows import check_correct
from atypicality.metrics.signal import auroc
from atypicality.outputs import ModelOutputs
from atypicality.shipping.bundle import read_part, write_part
from atypicality.stored import Part, Record, kinds, need
from atypicality.terminal import listed
from atypicality.validation import caught_warnings, check_choice, check_integer, warn

__all__ = ["CLASSES", "AnswerHead"]

CLASSES = ("wrong", "correct")  # the two classes, in the order of the columns
LIKELIHOOD = "prompt_log_likelihood"  # the score whose negative is atypicality where there are no embeddings of prompts
RARITIES = ("prompt_atypicality", LIKELIHOOD, "answer_atypicality")

HALF = " Half of the checked answers are held out: that takes twice as many of them, and is a rough guess."
REMEDY = "give more answers that somebody has checked, or other signals"

Vector = NDArray[np.float64]


class AnswerHead(BaseEstimator):
    """P(correct) of each answer of a language model, and which answers to accept at a stated risk.

    Whatever is known of the answers is a signal: the sum, mean, minimum and first of the token log-probabilities, the
    share of samples that agree, every score, and the atypicality of the embeddings of prompt and answer. Each is
    optional, and may be missing in some rows: these have its mean and a column of their own. The log-odds are a sum of
    a straight and a bent part of every signal, one convex problem with strengths by evidence (see `SignalModel`).

    Parameters
    ----------
    density : estimator, "auto" or None, default="auto"
        Of the embeddings; "auto" is a Gaussian of their directions with Ledoit and Wolf's shrinkage. None leaves
        embeddings out.
    atypicality : {"auto", "prompt_atypicality", "prompt_log_likelihood", "answer_atypicality"} or None, default="auto"
        The signal that quantiles, advice and drift go by, of the score `prompt_log_likelihood` its negative; "auto"
        takes the first of these that there is. It is the mean in rows without.
    alpha : float in (0, 1), default=0.1
        An answer with a P(correct) of at least 1 - alpha is one to trust.
    random_state : int, default=0
        Cuts the rows into those that fit and those that carry the guarantee.

    Attributes
    ----------
    recalibration_ : SignalModel
    evidence_ : dict of str to float
        Nats by which each signal makes correctness more probable beyond all others, most first.
    auroc_alone_ : dict of str to float
        Of each signal by itself, on the held-out rows that have it: the chance that a correct answer has the larger
        value. Below 0.5, smaller values are those of correct answers.
    alone_ : dict of str to SignalModel
        P(correct) from each signal by itself, which `evaluate` measures beside the head.
    prompt_density_, answer_density_ : fitted densities, or None
    atypicality_ : str or None
        The signal that was taken.
    abstention_ : AbstentionRule
        Of P(correct), from rows that fitted nothing.
    prediction_sets_ : SplitConformal
        Of the two classes "wrong" and "correct".
    quantiles_, quadrants_ : QuantileScale and Quadrants, or None without atypicality
    advice_ : dict
        By word, held-out rows ("count") and how many of these were "right".
    reference_ : HeldOutCounts
        For `Monitor`.
    metrics_ : dict
        Negative log-likelihood, ECE and AUROC of the base rate and of the head, on rows that fitted nothing.
    sizes_ : dict
        Rows that fitted ("recalibration") and that carry the guarantee ("thresholds"), copies not counted.
    names_ : dict of str to str
        The `names` by which the fitted answers were read, by default those of files to judge in the shell.
    seen_ : SeenRows, or None in a head from an older bundle
        Marks of the fitted rows, by which `evaluate` notices them.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> mean = -rng.exponential(size=2000)
    >>> texts, correct = ["..."] * 2000, rng.random(2000) < np.exp(mean / 3)
    >>> answers = Answers(texts, texts, log_probs=[[value] for value in mean], correct=correct)
    >>> head = AnswerHead().fit(answers[:1000])
    >>> said = head.predict(answers[1000:], max_risk=0.2)
    >>> bool((~correct[1000:])[said.accepted].mean() <= 0.2), bool(said.accepted.mean() > 0.3)
    (True, True)
    """

    recalibration_: Annotated[SignalModel, Part(SignalModel)]
    auroc_alone_: Annotated[
        dict[str, float], kinds.Later(kinds.MappingOf(kinds.Number(0, 1), keys=r"[\s\S]{1,80}"), absent={})
    ]
    alone_: Annotated[
        dict[str, SignalModel], kinds.Later(kinds.MappingOf(Part(SignalModel), keys=r"[\s\S]{1,80}"), absent={})
    ]
    score_names_: Annotated[tuple[str, ...], kinds.TupleOf(kinds.Text(r"[\s\S]{1,80}"))]
    prompt_density_: Annotated[Any, kinds.optional(Part(*DENSITIES))]
    answer_density_: Annotated[Any, kinds.optional(Part(*DENSITIES))]
    atypicality_: Annotated[str | None, kinds.optional(kinds.Choice(*RARITIES))]
    usual_atypicality_: Annotated[float, kinds.Number()]
    abstention_: Annotated[AbstentionRule, Part(AbstentionRule)]
    prediction_sets_: Annotated[SplitConformal, Part(SplitConformal)]
    quantiles_: Annotated[QuantileScale | None, kinds.optional(Part(QuantileScale))]
    quadrants_: Annotated[Quadrants | None, kinds.optional(Part(Quadrants))]
    advice_: Annotated[
        dict[str, dict[str, int]], kinds.MappingOf(kinds.MappingOf(kinds.Integer()), keys="[a-z, ]{1,40}")
    ]
    reference_: Annotated[HeldOutCounts, Part(HeldOutCounts)]
    metrics_: Annotated[
        dict[str, dict[str, float]], kinds.MappingOf(kinds.MappingOf(kinds.Number(infinite=True)), keys="[a-z ]{1,40}")
    ]
    sizes_: Annotated[dict[str, int], kinds.MappingOf(kinds.Integer())]
    n_classes_: Annotated[int, kinds.Size("K")]
    fingerprint_: Annotated[str, kinds.Text("[0-9a-f]{1,64}")]
    names_: Annotated[
        dict[str, str], kinds.Later(kinds.MappingOf(kinds.Text(r"[\s\S]{1,200}"), keys=r"[\s\S]{1,88}"), absent={})
    ]
    seen_: Annotated[SeenRows | None, kinds.Later(kinds.optional(Part(SeenRows)), absent=None)]

    def __init__(
        self, density: Any = "auto", *, atypicality: str | None = "auto", alpha: float = 0.1, random_state: int = 0
    ) -> None:
        self.density = density
        self.atypicality = atypicality
        self.alpha = alpha
        self.random_state = random_state

    @property
    def class_names_(self) -> NDArray[Any]:
        """The names of the two columns, `CLASSES`."""
        return np.array(CLASSES)

    @property
    def evidence_(self) -> dict[str, float]:
        """Nats by which each signal makes correctness more probable."""
        return self.recalibration_.signal_evidence

    def fit(self, answers: Answers, correct: ArrayLike | None = None, *, train: Answers | None = None) -> Self:
        """Fit on a random half of the `answers`; the other half carries the guarantee of `max_risk`.

        Parameters
        ----------
        answers : Answers
            With at least one signal.
        correct : array-like of bool, of shape (n,), optional
            By default that of the answers; where only some are checked, these are used, and a warning says how many.
        train : Answers, optional
            Whose embeddings densities are fitted on. By default those of the first half, each row of which is then
            scored by a density of other rows.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> texts, score = ["..."] * 500, rng.random(500)
        >>> AnswerHead().fit(Answers(texts, texts, scores={"judge": score}), rng.random(500) < score).sizes_
        {'recalibration': 250, 'thresholds': 250}
        """
        answers, known = _need_correct(answers, correct)
        if known.all() or not known.any():
            raise ValueError(
                f"correct must hold right and wrong answers; all {known.size} are {bool(known.all())}. Nothing can be "
                "learnt from one kind: judge more answers."
            )
        answers, known = without_copies(answers, known)
        check_choice(self.atypicality, "atypicality", ("auto", None, *RARITIES))
        seed = check_integer(self.random_state, "random_state", low=0)
        chosen = ModelOutputs(labels=known.astype(np.intp))._chosen(RECALIBRATION_SHARE, seed)
        self.score_names_, self.n_classes_ = tuple(answers.scores), len(CLASSES)
        fitted, signals = fit_densities(self.density, answers[chosen], train, seed)
        self.prompt_density_, self.answer_density_ = fitted
        signals |= signals_of(answers[chosen])
        if not signals:
            raise ValueError(
                "answers must have at least one signal: log_probs, samples, scores or embeddings; got texts alone."
            )
        self.recalibration_ = SignalModel.fit(signals, known[chosen])
        used = {name: signals[name] for name in self.evidence_}
        warn_of_unused(signals, used)
        warn_of_scales(answers.scores)
        warn_of_labels(used, known[chosen])
        self.alone_ = {name: SignalModel.fit({name: values}, known[chosen]) for name, values in used.items()}
        self._choose_atypicality(signals)
        found = self._signals(answers)
        self.auroc_alone_ = each_alone({name: found[name][~chosen] for name in used}, known[~chosen])
        outputs = self._outputs(answers, known, watched=True, signals=found)
        rate = float((known[chosen].sum() + 1) / (chosen.sum() + 2))  # with the pseudo-rows of a `SignalModel`
        self._fit_thresholds(outputs[~chosen], rate, _proba(outputs[chosen])[:, 1])
        self.sizes_ = {"recalibration": int(chosen.sum()), "thresholds": int((~chosen).sum())}
        self.fingerprint_, self.names_, self.seen_ = outputs.fingerprint(), answers.names, SeenRows.of(answers)
        return self

    def _signals(self, answers: Answers) -> dict[str, Vector]:
        """All signals of answers to judge."""
        if unknown := [name for name in answers.scores if name not in self.score_names_]:
            warn(
                f"scores that the head was not fitted with are not used: {listed(unknown)}. It was fitted with "
                f"{listed(self.score_names_) or 'none'}; fit again to use others."
            )
        densities = (self.prompt_density_, self.answer_density_)
        found = {
            signal: scored(density, rows)
            for (signal, part), density in zip(EMBEDDED.items(), densities, strict=True)
            if density is not None and (rows := getattr(answers, part)) is not None
        }
        return found | signals_of(answers)

    def _choose_atypicality(self, signals: dict[str, Vector]) -> None:
        there = [name for name in RARITIES if name in signals and not np.isnan(signals[name]).all()]
        if self.atypicality not in ("auto", None) and self.atypicality not in there:
            raise ValueError(f"atypicality={self.atypicality!r} must be a signal of the answers; these have none.")
        wanted = there[:1] if self.atypicality == "auto" else [self.atypicality]
        self.atypicality_ = wanted[0] if wanted else None
        self.usual_atypicality_ = 0.0
        if self.atypicality_ is not None:
            self.usual_atypicality_ = float(np.nanmean(_rarity(signals, self.atypicality_)))

    def outputs(self, answers: Answers, correct: ArrayLike | None = None) -> ModelOutputs:
        """The answers as outputs of two classes, "wrong" and "correct": for `evaluate` and `Monitor`.

        Parameters
        ----------
        answers : Answers
        correct : array-like of bool, of shape (n,), optional
            By default that of the answers; no labels where these are not all checked.

        Returns
        -------
        ModelOutputs
            Logits 0 and the log-odds of being correct, and atypicality.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> texts, score = ["..."] * 500, rng.random(500)
        >>> answers = Answers(texts, texts, scores={"judge": score})
        >>> AnswerHead().fit(answers, rng.random(500) < score).outputs(answers).logits.shape
        (500, 2)
        """
        check_is_fitted(self, "recalibration_")
        given = check_correct(correct, len(answers)) if correct is not None else None
        if correct is None and isinstance(answers, Answers) and answers.checked.all():
            given = answers.correct
        return self._outputs(answers, given, watched=bool(self.reference_.words))

    def _outputs(
        self,
        answers: Answers,
        correct: NDArray[np.bool_] | None,
        *,
        watched: bool,
        signals: dict[str, Vector] | None = None,
    ) -> ModelOutputs:
        """Outputs of answers; `watched` ones say which fields they lack, as monitors of older heads cannot use."""
        check_answers(answers)
        signals = self._signals(answers) if signals is None else signals
        odds = self.recalibration_.log_odds(signals, len(answers))
        rarity = None
        if self.atypicality_ is not None:
            given = _rarity(signals, self.atypicality_) if self.atypicality_ in signals else np.full(len(odds), np.nan)
            rarity = np.where(np.isnan(given), self.usual_atypicality_, given)
        lacking = empty_words(answers) | self.recalibration_.missing(signals, len(answers))
        lacking |= self.recalibration_.levels(signals, len(answers))
        return ModelOutputs(
            np.stack([np.zeros_like(odds), odds], axis=1),
            labels=None if correct is None else correct.astype(np.intp),
            atypicality=rarity,
            class_names=CLASSES,
            ids=answers.ids,
            attributes=lacking if watched else None,
        )

    def _fit_thresholds(self, rest: ModelOutputs, rate: float, others: Vector) -> None:
        """Everything that is counted on rows that fitted nothing.

        `rate` is the share of correct ones in the others, whose P(correct) is `others`.
        """
        proba, labels = _proba(rest), rest.need("labels")
        confidence, correct = proba[:, 1], labels == 1
        with caught_warnings():  # of too few rows for sets, which answers have no use for
            self.prediction_sets_ = SplitConformal(alpha=self.alpha).fit(proba, labels)
        lacking = {f"attribute {name}": words for name, words in rest.attributes.items()}
        remember(self, confidence, np.ones(labels.size, np.intp), labels, rest.atypicality, lacking)
        tried = ~self._untried(rest)  # those alone are accepted, so that the risk is theirs
        tried |= not tried.any()
        self.abstention_ = AbstentionRule.from_rows(confidence[tried], correct[tried], others=others)
        sets = self.prediction_sets_.predict_set(proba)
        number = advice_of(advice_rule(self), confidence, rest.atypicality, sets)
        number[~tried] = ASK
        covered = sets[np.arange(labels.size), labels]
        self.advice_ = checked_words(number, correct, covered, 1 - trusted_from(self), REMEDY)
        flat = np.tile([1 - rate, rate], (labels.size, 1))
        self.metrics_ = {"base rate": _measured(flat, correct), "head": _measured(proba, correct)}

    def _untried(self, outputs: ModelOutputs) -> NDArray[np.bool_]:
        """Answers (n,) that are not accepted, because nothing of their kind was fitted: see `untried`."""
        fields = self.recalibration_.used_fields
        words = self.reference_.words.get(f"attribute {MISSING}{EMPTY}", {})
        texts = [EMPTY] if 2 * words.get("yes", 0) <= sum(words.values()) else []  # else the texts were not kept
        empty = np.count_nonzero(outputs.attributes.get(MISSING + EMPTY, np.zeros(0)) == "yes")
        if texts and empty:
            warn(f"{empty:,} of {len(outputs):,} answers are empty: with max_risk such answers are not accepted.")
        found = untried(outputs.attributes, [*texts, *(name for name, learnt in fields.items() if not learnt)], fields)
        return np.zeros(len(outputs), bool) if found is None else found

    def predict(
        self, answers: Answers | ModelOutputs, *, max_risk: float | None = None, first_row: int = 0
    ) -> Reliability:
        """P(correct) of each answer as its `confidence`, with its quantile of atypicality and advice.

        Parameters
        ----------
        answers : Answers, or ModelOutputs that `outputs` made
        max_risk : float in (0, 1), optional
            `accepted` then says which answers to use so that at most that share of them is wrong, with 95 % confidence
            (see `AbstentionRule`). Not accepted is an answer that is empty, or more atypical than every held-out one,
            or that no fitted one is like: it lacks a signal that P(correct) depends on and that fewer than ten of the
            fitted rows lacked, or every one of those it depends on, or has a score further outside its fitted range
            than that is wide.
        first_row : int, default=0
            Taken like everywhere; nothing is drawn.

        Returns
        -------
        Reliability
            `label` is "correct" for every row: what is judged is the answer that was given. `proba` has a column for
            "wrong" and one for "correct". Its tables and text files have no columns for label, quadrant and sets.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> texts, score = ["..."] * 500, rng.random(500)
        >>> answers = Answers(texts, texts, scores={"judge": score})
        >>> AnswerHead().fit(answers, rng.random(500) < score).predict(answers[:2]).confidence.shape
        (2,)
        """
        check_is_fitted(self, "recalibration_")
        if not isinstance(answers, ModelOutputs):
            answers = self._outputs(answers, None, watched=True)
        outputs = answers.with_classes(CLASSES, whose="those of the head")
        proba = _proba(outputs)
        sets = self.prediction_sets_.predict_set(proba)
        rarity = None if self.quantiles_ is None else outputs.need("atypicality")
        rule = advice_rule(self, max_risk)
        number, accepted = advice_of(rule, proba[:, 1], rarity, sets), rule.accepted(proba[:, 1], rarity)
        if (refused := self._untried(outputs)).any():
            number = np.where(refused, ASK, number)
            accepted = None if accepted is None else accepted & ~refused
        if max_risk is not None:
            self.abstention_.warn_where_none(accepted, max_risk, HALF)
        drift = quantile = quadrant = None
        if self.quantiles_ is not None and self.quadrants_ is not None and rarity is not None:
            drift, quantile = Drift(self.quantiles_, rarity), self.quantiles_(rarity)
            quadrant = np.array(QUADRANTS)[self.quadrants_.formula().index(np, proba[:, 1], rarity)]
            if drift.significant:
                warn(drift.message())
        lacking = lacking_words(outputs.attributes, self.reference_.words)
        for field, (share, expected) in lacking.items():
            warn(
                f"{field} is missing in {share:.1%} of these {len(proba):,} answers, and in {expected:.1%} of the "
                "held-out ones: the data has drifted. P(correct) and max_risk are not guaranteed there; find out why, "
                "or fit again on such answers."
            )
        outside = tuple(outside_words(outputs.attributes, self.reference_.words))
        moved = moved_words(outputs.attributes, self.reference_.words)
        moved = {name: how for name, how in moved.items() if name not in outside}  # of which reading has warned
        for name, how in moved.items():
            warn(f"{name} is {how}: the data has drifted. {self.recalibration_.after_drift(name)}")
        return AnswerReliability(
            label=np.ones(len(proba), np.intp),
            confidence=proba[:, 1],
            proba=proba,
            prediction_set=sets,
            atypicality=rarity,
            atypicality_quantile=quantile,
            quadrant=quadrant,
            accepted=accepted,
            drift=drift,
            class_names=np.array(CLASSES),
            ids=outputs.ids,
            advice=advice_texts(number, sets.sum(axis=1)),
            lacking=tuple(lacking),
            outside=outside,
            moved=tuple(moved),
        )

    def evaluate(self, answers: Answers, correct: ArrayLike | None = None, **options: Any) -> Evaluation:
        """Accuracy of the answers, and calibration of P(correct), over all and by quantile of atypicality.

        Parameters
        ----------
        answers : Answers
            That the head was not fitted on.
        correct : array-like of bool, of shape (n,), optional
            By default that of the answers.
        **options
            Of `atypicality.evaluate`: with `max_risk` it also says how many answers are accepted, and how many of these
            are wrong.

        Returns
        -------
        Evaluation
            Of "head" and, where there are log-probabilities, of "token probability", the exponential of their mean, on
            the answers that have them. The table `signals` has the negative log-likelihood of each signal alone. Its
            `report` shows texts beside rows with ``examples=answers.texts()``.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> texts, score = ["..."] * 1000, rng.random(1000)
        >>> answers = Answers(texts, texts, scores={"judge": score}, correct=rng.random(1000) < score)
        >>> evaluation = AnswerHead().fit(answers[:500]).evaluate(answers[500:])
        >>> evaluation.table("overall", metric="accuracy")[0]["value"] == float(answers.correct[500:].mean())
        True
        """
        check_is_fitted(self, "recalibration_")
        return evaluate_answers({"head": self}, *_need_correct(answers, correct), **options)

    def summary(self) -> str:
        """What was fitted, on how much, and how good it is on rows that fitted nothing, as a few lines of text.

        >>> rng = np.random.default_rng(0)
        >>> texts, score = ["..."] * 500, rng.random(500)
        >>> head = AnswerHead().fit(Answers(texts, texts, scores={"judge": score}), rng.random(500) < score)
        >>> print(head.summary())
        AnswerHead
          rows      recalibration 250, thresholds 250
        ...
        """
        check_is_fitted(self, "recalibration_")
        return described(self)

    def save(self, folder: str | os.PathLike[str]) -> str:
        """Write the head to `folder` as a bundle, as `ReliabilityHead.save` does; returns its sha256.

        Parameters
        ----------
        folder : path

        Examples
        --------
        >>> import tempfile
        >>> rng = np.random.default_rng(0)
        >>> texts, score = ["..."] * 500, rng.random(500)
        >>> answers = Answers(texts, texts, scores={"judge": score}, correct=rng.random(500) < score)
        >>> head = AnswerHead().fit(answers)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = AnswerHead.load(folder, sha256=head.save(folder))
        >>> bool((again.predict(answers).confidence == head.predict(answers).confidence).all())
        True
        """
        check_is_fitted(self, "recalibration_")
        return write_part(self, AnswerHead, folder, card=model_card(self))

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, sha256: str | None = None) -> Self:
        """Read a head that `save` wrote to `folder`, with the checks of `atypicality.load`; `sha256` is its seal."""
        found: Self = read_part(AnswerHead, folder, sha256=sha256)
        return found

    def _card(self) -> str:
        return model_card(self)

    def _check_stored(self) -> None:
        need(self.n_classes_ == len(CLASSES), "there must be two classes.")
        both = (self.quantiles_ is None) == (self.quadrants_ is None) == (self.atypicality_ is None)
        need(both, "atypicality comes with its quantiles and quadrants.")
        need(self.metrics_.keys() == {"base rate", "head"}, "metrics must be of the base rate and of the head.")
        need(self.metrics_["base rate"].keys() == self.metrics_["head"].keys(), "metrics must be the same of both.")

    _stored = Record(
        check=_check_stored,
        density=kinds.Either(None, "auto", otherwise=Part(*DENSITIES, fitted=False)),
        atypicality=kinds.Either("auto", None, otherwise=kinds.Choice(*RARITIES)),
        alpha=kinds.Alpha(),
        random_state=kinds.SEED,
    )


def _need_correct(answers: Answers, correct: ArrayLike | None) -> tuple[Answers, NDArray[np.bool_]]:
    """The answers, or those of them that are checked, and which are correct."""
    check_answers(answers)
    answers = only_checked(answers) if correct is None else answers
    if (given := answers.correct if correct is None else correct) is None:
        raise ValueError("correct must be given, or be in the answers: whether each answer is right.")
    return answers, check_correct(given, len(answers))


def _rarity(signals: dict[str, Vector], name: str) -> Vector:
    return -signals[name] if name == LIKELIHOOD else signals[name]


def _proba(outputs: ModelOutputs) -> Vector:
    odds = np.asarray(outputs.need("logits"), np.float64) @ [-1.0, 1.0]
    return np.stack([expit(-odds), expit(odds)], axis=1)


def _measured(proba: Vector, correct: NDArray[np.bool_]) -> dict[str, float]:
    confidence = proba[:, 1]
    return {
        "nll": float(nll(proba, correct.astype(np.intp))),
        "ece": float(ece(confidence=confidence, correct=correct)),
        "auroc": auroc(confidence, correct),
    }
