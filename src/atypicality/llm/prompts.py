"""Language models as classifiers: prompts in, logits over the labels and the prompts' atypicality out."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.density.likelihood import KINDS, sequence_atypicality
from atypicality.llm.scorers import LabelScores, NoScoresError, PromptScorer, TokenScores, label_scores
from atypicality.llm.templates import CONTENT_FREE, Template
from atypicality.outputs import ModelOutputs
from atypicality.outputs.class_names import refuse_two_readings
from atypicality.validation import check_choice, check_integer, check_labels, check_length

__all__ = ["PromptClassifier"]


class PromptClassifier:
    """Classify texts by what a language model would say next, and say how rare each prompt is (section 2, B.3).

    The logits of a prompt are the log-probabilities of the labels' first tokens right after it. When two labels share
    a first token, whole label likelihoods take their place. Labels are scored with a space in front.

    Parameters
    ----------
    scorer : PromptScorer
    template : Template or str
        A text with `{input}` once.
    labels : sequence of str, optional
        Words of the classes, in the order of the columns; by default the template's.
    atypicality : {"total", "per_token", "per_byte", "input"}, default="total"
        See `sequence_atypicality`. The others are kept in the outputs' attributes, as far as the scorer allows.
    max_tokens : int, optional
        Drop inputs whose prompt is longer (the paper drops those beyond 512); a warning says how many.

    Examples
    --------
    >>> from atypicality.llm import TokenScores
    >>> class Bigram:
    ...     "Every character costs one nat; 'No' is likelier than 'Yes'."
    ...     def score(self, prompts):
    ...         return [TokenScores.checked(np.r_[-np.ones(len(p.split())), -2.0 * p.endswith("Yes")]) for p in prompts]
    ...     def count_tokens(self, prompts):
    ...         return [scores.n_tokens for scores in self.score(prompts)]
    >>> outputs = PromptClassifier(Bigram(), "{input} Good?", ["Yes", "No"]).outputs(["A fine film."], labels=["Yes"])
    >>> outputs.logits, outputs.atypicality, outputs.labels
    (array([[-2.,  0.]]), array([4.]), array([0]))
    """

    def __init__(
        self,
        scorer: PromptScorer,
        template: Template | str,
        labels: Sequence[str] | None = None,
        *,
        atypicality: str = "total",
        max_tokens: int | None = None,
    ) -> None:
        self.scorer = scorer
        self.template = template
        self.labels = labels
        self.atypicality = atypicality
        self.max_tokens = max_tokens
        self._classes: tuple[PromptScorer, list[str], NDArray[np.float64] | None] | None = None

    def outputs(
        self, inputs: Sequence[str], *, labels: ArrayLike | None = None, ids: ArrayLike | None = None
    ) -> ModelOutputs:
        """Score inputs.

        Parameters
        ----------
        inputs : sequence of n str
        labels : array-like of shape (n,), optional
            True classes: label words, the template's codes of them (texts, such as "NUM:dist" of TREC or "3" of
            AG News), or column indices. They are checked before anything is scored.
        ids : array-like of shape (n,), optional
            Names of the inputs; by default their positions, so that dropped ones can be told.

        Returns
        -------
        ModelOutputs
            `logits` (n, k) float64, `atypicality` (n,), `class_atypicality` (k,) (each label's own negative
            log-likelihood; absent, with a warning, when the scorer cannot score a label's only token),
            `class_names`, `ids`, and attributes: `atypicality_kind` and `label_rule` (what was chosen, on every row),
            the other kinds of atypicality, and `outside_mass` (n,), the probability that the answer begins with none
            of the labels. A chat endpoint that scores no prompts gives no atypicality.
        """
        template, words = self._checked()
        texts = _check_texts(inputs)
        truth = None if labels is None else _columns_of(labels, template, words, len(texts))
        names = None if ids is None else _checked_length(ids, "ids", len(texts))
        rows = self._within_context(template, texts)
        kept = [texts[row] for row in rows]
        scores = label_scores(self.scorer, [template.fill(text) for text in kept], [f" {word}" for word in words])
        return ModelOutputs(
            scores.logits,
            labels=None if truth is None else np.array(words)[truth[rows]],
            atypicality=None
            if scores.prompts is None
            else self._kind(self.atypicality, template, kept, scores.prompts),
            class_atypicality=None if scores.prompts is None else self._class_atypicality(words),
            attributes=self._attributes(template, kept, scores),
            class_names=words,
            ids=rows if names is None else names[rows],
        )

    def content_free(self, inputs: Sequence[str] = CONTENT_FREE) -> NDArray[np.float64]:
        """Logits (n, k) of inputs without content, for `ContentFreeCalibration().fit(...)`."""
        template, words = self._checked()
        prompts = [template.fill(text) for text in _check_texts(inputs)]
        return label_scores(self.scorer, prompts, [f" {word}" for word in words]).logits

    def _checked(self) -> tuple[Template, list[str]]:
        check_choice(self.atypicality, "atypicality", KINDS)
        template = self.template if isinstance(self.template, Template) else Template(self.template)
        return template, _check_words(template.labels if self.labels is None else self.labels)

    def _within_context(self, template: Template, texts: list[str]) -> NDArray[np.intp]:
        rows = np.arange(len(texts))
        if self.max_tokens is None:
            return rows
        limit = check_integer(self.max_tokens, "max_tokens", low=1)
        sizes = np.array(self.scorer.count_tokens([template.fill(text) for text in texts]))
        kept = rows[sizes <= limit]
        if not kept.size:
            raise ValueError(f"max_tokens={limit} leaves no input: the shortest prompt has {sizes.min()} tokens.")
        if kept.size < rows.size:
            dropped = f"{rows.size - kept.size} of {rows.size} inputs have prompts of more than {limit} tokens"
            warnings.warn(f"{dropped} and were dropped; ids name the rows that were kept.", stacklevel=3)
        return kept

    def _class_atypicality(self, words: list[str]) -> NDArray[np.float64] | None:
        """Scored, or warned of, once: prompts that come one at a time must not pay for it each time."""
        if self._classes is None or self._classes[0] is not self.scorer or self._classes[1] != words:
            self._classes = (self.scorer, words, self._scored_classes(words))
        return self._classes[2]

    def _scored_classes(self, words: list[str]) -> NDArray[np.float64] | None:
        try:
            scores = self.scorer.score([f" {word}" for word in words])
        except NoScoresError as error:
            reason = str(error)
        else:
            if all(score.log_probs.size for score in scores):
                return sequence_atypicality([score.log_probs for score in scores])
            reason = "the scorer puts nothing before a text, so a label of one token has no likelihood."
        warnings.warn(f"class_atypicality is left out: {reason}", stacklevel=4)
        return None

    def _attributes(self, template: Template, texts: list[str], scores: LabelScores) -> dict[str, NDArray[Any]]:
        known: dict[str, NDArray[Any]] = {"label_rule": np.full(len(texts), scores.rule)}
        if scores.prompts is not None:
            has_ends = all(score.ends is not None for score in scores.prompts)
            others = [kind for kind in KINDS if kind != self.atypicality and (kind != "input" or has_ends)]
            known |= {f"atypicality_{kind}": self._kind(kind, template, texts, scores.prompts) for kind in others}
            known["atypicality_kind"] = np.full(len(texts), self.atypicality)
        outside = scores.outside
        if outside is None and scores.rule == "first token":
            outside = np.clip(1 - np.exp(scores.logits).sum(axis=1), 0.0, 1.0)
        return known if outside is None else known | {"outside_mass": outside}

    def _kind(
        self, kind: str, template: Template, texts: list[str], prompts: Sequence[TokenScores]
    ) -> NDArray[np.float64]:
        return sequence_atypicality(
            [prompt.log_probs for prompt in prompts],
            kind,
            n_bytes=[len(template.fill(text).encode()) for text in texts],
            inside=[p.inside(template.span(t)) for p, t in zip(prompts, texts, strict=True)]
            if kind == "input"
            else None,
        )


def _check_texts(inputs: Sequence[str]) -> list[str]:
    if isinstance(inputs, str):
        raise TypeError("inputs must be a sequence of texts; got one text. Put it in a list.")
    texts = list(inputs)
    wrong = [row for row, text in enumerate(texts) if not isinstance(text, str)]
    if wrong:
        raise TypeError(f"inputs must be texts; row {wrong[0]} is of type {type(texts[wrong[0]]).__name__}.")
    if not texts:
        raise ValueError("inputs must hold at least one text; got none.")
    return texts


def _check_words(labels: Sequence[str]) -> list[str]:
    if isinstance(labels, str):
        raise TypeError("labels must be a sequence of words; got one text. Put the words in a list.")
    words = list(labels)
    if len(words) < 2:
        raise ValueError(f"labels must name at least two classes; got {words!r}.")
    for word in words:
        if not isinstance(word, str) or not word or word != word.strip():
            raise ValueError(f"labels must be words without spaces around them; got {word!r}. The space is added.")
    if len(set(words)) < len(words):
        raise ValueError("labels must be distinct words.")
    return words


def _columns_of(labels: ArrayLike, template: Template, words: list[str], n_rows: int) -> NDArray[np.intp]:
    """Columns of the true classes, before a model is asked anything: scoring is what costs."""
    array = _checked_length(labels, "labels", n_rows)
    if all(isinstance(label, str) for label in array):
        known = Template(template.text, words, {code: word for code, word in template.codes.items() if word in words})
        return np.array([words.index(known.word(str(label))) for label in array], np.intp)
    columns = check_labels(array, n_classes=len(words))
    refuse_two_readings(columns, np.array(words), "labels")
    return columns


def _checked_length(values: ArrayLike, name: str, n_rows: int) -> NDArray[Any]:
    array = np.asarray(values)
    check_length(array, name, n_rows)
    return array
