"""What a language model says of a text, token by token, and what every scorer must offer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "LabelScorer", "LabelScores", "NoScoresError", "PromptScorer", "TokenScores", "joined_label_scores", "label_scores",
]  # fmt: skip


class NoScoresError(ValueError):
    """A text that a scorer has no scores for, and cannot get any."""


@dataclass(frozen=True)
class TokenScores:
    """Log-probabilities of the tokens of one text, each given the ones before it.

    Attributes
    ----------
    log_probs : ndarray of shape (t,)
        float64, none positive. A first token without anything before it has no probability: it is not among them.
    n_tokens : int
        Tokens of the text, the unscored first one included.
    ends : ndarray of shape (t,), or None
        Where each scored token ends in the text, in characters.
    tokens : tuple of t str, or None
        Names of the scored tokens: texts, numbers or hashes, equal for equal tokens.

    Examples
    --------
    >>> TokenScores.checked([-3.0, -0.5], ends=[5, 11]).inside((6, 11))
    array([False,  True])
    """

    log_probs: NDArray[np.float64]
    n_tokens: int
    ends: NDArray[np.intp] | None = None
    tokens: tuple[str, ...] | None = None

    @classmethod
    def checked(
        cls,
        log_probs: ArrayLike,
        n_tokens: int | None = None,
        ends: ArrayLike | None = None,
        tokens: Sequence[Any] | None = None,
    ) -> "TokenScores":
        """From `log_probs`, `n_tokens`, `ends` and `tokens` that somebody else made.

        A ValueError says what is wrong with them.

        >>> TokenScores.checked([-1.5, 0.5])
        Traceback (most recent call last):
        ValueError: log-probabilities must not be positive; token 1 has 0.5
        """
        values = np.asarray(log_probs, np.float64).reshape(-1)
        bad = np.flatnonzero(~(values <= 1e-6))  # servers round to float32, where log 1 can come out as 1e-7
        if bad.size:
            raise ValueError(f"log-probabilities must not be positive; token {bad[0]} has {values[bad[0]]:g}")
        if not np.isfinite(values).all():
            raise ValueError("log-probabilities must be finite; a token of probability 0 cannot stand in a text")
        n_tokens = values.size if n_tokens is None else int(n_tokens)
        if n_tokens < values.size:
            raise ValueError(f"{values.size} log-probabilities came for {n_tokens} tokens")
        for name, given in (("ends", ends), ("tokens", tokens)):
            if given is not None and len(given) != values.size:  # type: ignore[arg-type]
                raise ValueError(f"{name} must be as many as the log-probabilities, {values.size}")
        places = None if ends is None else np.asarray(ends, np.intp)
        if places is not None and places.shape != values.shape:
            raise ValueError(f"ends must be whole numbers, one per log-probability; got shape {places.shape}")
        return cls(np.minimum(values, 0.0), n_tokens, places, None if tokens is None else tuple(map(str, tokens)))

    def inside(self, span: tuple[int, int]) -> NDArray[np.bool_]:
        """Which scored tokens (t,) hold a character of the span; a token that straddles its edge counts."""
        if self.ends is None:
            raise ValueError(
                "this scorer does not say where tokens end, which kind='input' needs. "
                "Choose 'total', 'per_token' or 'per_byte'."
            )
        starts = np.r_[0, self.ends][:-1]
        touches: NDArray[np.bool_] = (self.ends > span[0]) & (starts < span[1]) & (span[0] < span[1])
        return touches


@dataclass(frozen=True)
class LabelScores:
    """Prompts and the labels that may follow them.

    Attributes
    ----------
    prompts : list of n TokenScores, or None
        None where the model does not tell how likely a prompt is, as most chat endpoints.
    logits : ndarray of shape (n, k)
        Log-probability of each label after each prompt; the next-token logits up to a constant per row.
    rule : {"first token", "all tokens", "top tokens", "given"}
        What of a label was scored: all its tokens when two labels share their first one or the scorer does not name
        its tokens; "top tokens" when only the likeliest first tokens are known; "given" when the logits came
        ready-made.
    outside : ndarray of shape (n,), or None
        Probability that the answer begins with none of the labels, where it is known.

    Examples
    --------
    >>> prompt = TokenScores.checked([-3.0, -0.5])
    >>> LabelScores([prompt], np.array([[-0.1, -2.3]]), "first token").logits.argmax(axis=1)
    array([0])
    """

    prompts: list[TokenScores] | None
    logits: NDArray[np.float64]
    rule: str
    outside: NDArray[np.float64] | None = None


@runtime_checkable
class PromptScorer(Protocol):
    """Anything that gives per-token log-probabilities for a list of prompts.

    Examples
    --------
    >>> class Even:
    ...     "Every word is a token, and costs two nats."
    ...     def score(self, prompts):
    ...         return [TokenScores.checked([-2.0] * len(prompt.split())) for prompt in prompts]
    ...     def count_tokens(self, prompts):
    ...         return [len(prompt.split()) for prompt in prompts]
    >>> isinstance(Even(), PromptScorer), Even().count_tokens(["The cat sat."])
    (True, [3])
    """

    def score(self, prompts: Sequence[str]) -> list[TokenScores]:
        """Scores of each prompt, in order; a prompt's scores never depend on the other prompts."""

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Tokens of each of the `prompts`."""


@runtime_checkable
class LabelScorer(PromptScorer, Protocol):
    """A scorer that finds the labels' log-probabilities in the pass that scores the prompts.

    Examples
    --------
    >>> from atypicality.llm import PrecomputedScorer
    >>> isinstance(PrecomputedScorer("scores.jsonl"), LabelScorer)
    True
    """

    def score_labels(self, prompts: Sequence[str], labels: Sequence[str]) -> LabelScores:
        """Scores of each of the `prompts` and of each label after it; `labels` carry their leading space."""


def label_scores(scorer: PromptScorer, prompts: Sequence[str], labels: Sequence[str]) -> LabelScores:
    """Scores of prompts and labels, by the scorer's own way where it has one."""
    if isinstance(scorer, LabelScorer):
        return scorer.score_labels(prompts, labels)
    return joined_label_scores(scorer, prompts, labels)


def joined_label_scores(scorer: PromptScorer, prompts: Sequence[str], labels: Sequence[str]) -> LabelScores:
    """Scores of prompts and labels from those of the prompts and of every prompt + label as texts of their own."""
    texts = [prompt + label for prompt in prompts for label in labels]
    scores = scorer.score([*prompts, *texts])
    alone, joined = scores[: len(prompts)], scores[len(prompts) :]
    tails = [
        [tail(alone[i], joined[i * len(labels) + j], label) for j, label in enumerate(labels)]
        for i in range(len(prompts))
    ]
    if all(distinct([label.tokens for label in row]) for row in tails):
        return LabelScores(alone, np.array([[label.log_probs[0] for label in row] for row in tails]), "first token")
    return LabelScores(alone, np.array([[label.log_probs.sum() for label in row] for row in tails]), "all tokens")


def tail(prompt: TokenScores, joined: TokenScores, label: str) -> TokenScores:
    """The scores of the label alone out of those of prompt + label: its last tokens."""
    added = joined.n_tokens - prompt.n_tokens
    merged = prompt.tokens is not None and joined.tokens is not None and joined.tokens[:-added] != prompt.tokens
    refuse_joined(added < 1 or merged, label)
    return TokenScores(
        joined.log_probs[-added:], added, tokens=None if joined.tokens is None else joined.tokens[-added:]
    )


def refuse_joined(joined: bool, label: str) -> None:
    """Refuse a label that shares a token with the prompt before it."""
    if joined:
        raise ValueError(
            f"the tokenizer joins the end of the prompt with the label {label!r}, so the label has no tokens of its "
            "own. End the template at a word or a punctuation mark."
        )


def distinct(tokens: Sequence[Sequence[Any] | None]) -> bool:
    """Whether all first tokens are known and no two are equal.

    >>> distinct([["Number"], ["Loc", "ation"]]), distinct([["New", " York"], ["New", " Jersey"]]), distinct([None])
    (True, False, False)
    """
    first = [label[0] for label in tokens if label]
    return len(set(first)) == len(tokens)
