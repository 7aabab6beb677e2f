"""Chat endpoints of servers that speak the OpenAI protocol: answers with log-probabilities, and labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atypicality.llm.client import NoAccessError, ServerFaultError
from atypicality.llm.generation import Decoding, Reply, added_up
from atypicality.llm.handshake import check_chat
from atypicality.llm.openai import choices_of, is_number, read_prompt_logprobs, without_first
from atypicality.llm.scorers import LabelScores, NoScoresError, TokenScores
from atypicality.llm.served import ServedModel

__all__ = ["OpenAICompatibleChat"]

GREEDY = {"temperature": 0, "logprobs": True, "top_logprobs": 20}  # 20 is the most that the protocol allows
PROMPT = {"prompt_logprobs": 0}
MASS_TOLERANCE = 1e-3  # by which probabilities may sum to more than one: half-precision servers round
REASONING = ("reasoning_content", "reasoning")
"""Fields of a message in which servers put what a model writes before its answer."""


@dataclass(eq=False, repr=False)
class OpenAICompatibleChat(ServedModel):
    """Ask a server's chat endpoint. It is tried on a known question before anything it says is believed.

    It needs no more than `logprobs` and `top_logprobs`. Log-probabilities of prompts are used where the server gives
    them (vLLM does).

    Parameters
    ----------
    url, model : str
        These and the rest are as for `OpenAICompatibleScorer`.
    api_key_env : str or None, default="OPENAI_API_KEY"
    concurrency : int, default=8
    timeout : float, default=60
    max_retries : int, default=5
    backoff : float, default=0.5
    max_bytes : int, default=32 MiB

    Examples
    --------
    >>> chat = OpenAICompatibleChat("http://localhost:8000/v1", "my-model")
    >>> chat.url  # nothing is sent before the first question
    'http://localhost:8000/v1'
    """

    endpoint: ClassVar[str] = "chat/completions"
    _options: dict[str, Any] | None = field(default=None, init=False)

    def reply(self, conversations: Sequence[Sequence[Mapping[str, str]]], how: Decoding) -> list[Reply]:
        """The most likely answer to each of the `conversations`, in order, and samples; `how` has the options.

        Embeddings are refused.
        """
        if how.embeddings:
            raise ValueError("embeddings must be False: a chat endpoint has none. Use a local model.")
        self.handshake(how.max_tokens)

        def one(row: int) -> Reply:
            body = {"messages": list(conversations[row]), "max_tokens": how.max_tokens}
            drawn = {"temperature": how.temperature, "seed": how.random_state + row * (how.n_samples + 1)}
            reply, _ = self._ask(body | GREEDY | (self._options or {}))
            return replace(reply, samples=tuple(self._samples(body | drawn, how.n_samples)))

        return self._each(one, len(conversations))

    def score(self, prompts: Sequence[str]) -> list[TokenScores]:
        """Log-probabilities of the tokens of each of the `prompts`, as user messages; NoScoresError if it has none."""
        found = [reply.prompt for reply in self.reply([_user(prompt) for prompt in prompts], Decoding(1))]
        known = [scores for scores in found if scores is not None]
        if len(known) < len(found):
            raise NoScoresError("the chat endpoint gives no log-probabilities of prompts.")
        return known

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Tokens of each of the `prompts`, which the endpoint tells only where it scores them."""
        return [scores.n_tokens for scores in self.score(prompts)]

    def score_labels(self, prompts: Sequence[str], labels: Sequence[str]) -> LabelScores:
        """Scores of each of the `prompts` and of the `labels` as the first word of the answer; see `label_masses`."""
        replies = self.reply([_user(prompt) for prompt in prompts], Decoding(1))
        if bare := [row for row, reply in enumerate(replies) if not reply.first]:
            raise ServerFaultError(f"the answer to prompt {bare[0]} has no top_logprobs, which labels are read from.")
        found = [label_masses(reply.first, [label.strip() for label in labels]) for reply in replies]
        known = [reply.prompt for reply in replies if reply.prompt is not None]
        return LabelScores(
            known if len(known) == len(replies) else None,
            np.array([logits for logits, _ in found]),
            "top tokens",
            np.array([outside for _, outside in found]),
        )

    def handshake(self, max_tokens: int = 8) -> None:
        """Try the server on a known question, once; ServerFaultError if it fails. A reasoning needs `max_tokens`."""
        if self._options is None:
            body = {"max_tokens": max(max_tokens, 8)} | GREEDY
            check_chat(lambda text: self._ask({"messages": _user(text)} | body))
            try:
                reply, _ = self._ask({"messages": _user("Hello there, my friend.")} | body | PROMPT)
            except NoAccessError:
                raise
            except ServerFaultError:  # a server that knows no such option, and says so
                self._options = {}
            else:
                self._options = PROMPT if reply.prompt is not None else {}

    def _ask(self, body: Mapping[str, Any]) -> tuple[Reply, str]:
        return self._asked(body, lambda answer: parse_chat(answer, body["messages"][-1]["content"]))

    def _samples(self, body: Mapping[str, Any], n_samples: int) -> list[str]:
        """Drawn answers, each with a request and a seed of its own: servers limit the choices of one request."""
        seeds = range(body["seed"], body["seed"] + n_samples)
        return [self._asked(dict(body) | {"seed": seed}, lambda answer: _text(choices_of(answer)[0])) for seed in seeds]


def parse_chat(answer: Mapping[str, Any], prompt: str) -> tuple[Reply, str]:
    """A reply from a chat completion, and the texts of its tokens; or ValueError with the server's fault.

    >>> token = {"token": "4", "logprob": -0.1, "top_logprobs": [{"token": "4", "logprob": -0.1}]}
    >>> reply, _ = parse_chat({"choices": [{"message": {"content": "4"}, "logprobs": {"content": [token]}}]}, "2 + 2?")
    >>> reply.text, reply.log_probs, reply.first
    ('4', array([-0.1]), {'4': -0.1})
    """
    choice = choices_of(answer)[0]
    said = _text(choice)
    tokens = _tokens(choice, said)
    values, left = without_first([token.get("logprob") for token in tokens])
    if left:
        raise ValueError("the log-probability of token 0 is null, not a number")
    scores = TokenScores.checked(values)
    if values.size > 2 and np.ptp(values) == 0:
        raise ValueError(f"every log-probability is {values[0]:g}: the server ignores the request for them")
    text = "".join(str(token.get("token")) for token in tokens)
    first = _first(tokens[0]) if tokens else {}
    return Reply(said, scores.log_probs, (), _prompt_scores(answer, choice, prompt), first), text


def label_masses(first: Mapping[str, float], labels: Sequence[str]) -> tuple[NDArray[np.float64], float]:
    """Log-probability of each label from the likeliest first tokens, and the probability outside the labels.

    A token belongs to a label that begins with it, whatever their case; one that begins several labels belongs to
    none. A label without any token gets the most that it can have: the smallest listed probability, or what is left.

    >>> logits, outside = label_masses({"Yes": -0.5, " yes": -3.0, "The": -2.0, "No": -2.5}, ["Yes", "No"])
    >>> np.exp(logits).round(3), round(outside, 3)
    (array([0.656, 0.082]), 0.262)
    """
    mass = np.zeros(len(labels))
    for token, value in first.items():
        owners = [j for j, label in enumerate(labels) if label.casefold().startswith(token.strip().casefold())]
        if token.strip() and len(owners) == 1:
            mass[owners[0]] += np.exp(value)
    outside = float(np.clip(1 - mass.sum(), 0.0, 1.0))
    left = max(1 - sum(np.exp(value) for value in first.values()), np.finfo(float).tiny)
    most = min(left, *(np.exp(value) for value in first.values()), 1.0)
    return np.log(np.where(mass > 0, mass, max(most, np.finfo(float).tiny))), outside


def _tokens(choice: Mapping[str, Any], said: str) -> list[dict[str, Any]]:
    """The tokens of the answer, or of the refusal to give one, without those of a reasoning before it."""
    logprobs = choice.get("logprobs")
    given = logprobs if isinstance(logprobs, dict) else {}
    tokens = given.get("content") or given.get("refusal") or []
    if not isinstance(tokens, list) or not all(isinstance(token, dict) for token in tokens) or (said and not tokens):
        raise ValueError("the answer has no logprobs.content: the server ignores the request for log-probabilities")
    if not _reasoning(choice["message"]):
        return tokens
    pieces = [_bytes(token) for token in tokens]
    start = b"".join(pieces).rfind(said.encode())
    if start < 0:
        raise ValueError("the tokens that have log-probabilities are not those of the answer after its reasoning")
    ends = np.cumsum([len(piece) for piece in pieces])
    return [token for token, end in zip(tokens, ends, strict=True) if end > start]


def _bytes(token: Mapping[str, Any]) -> bytes:
    """Of a token, whose text alone does not tell them where it is a part of a character."""
    given = token.get("bytes")
    known = isinstance(given, list) and all(isinstance(one, int) and 0 <= one < 256 for one in given)
    return bytes(given) if known else str(token.get("token")).encode()  # type: ignore[arg-type]


def _first(token: Mapping[str, Any]) -> dict[str, float]:
    """Texts and log-probabilities of the likeliest first tokens, the chosen one among them; equal texts are added up.

    Tokens of probability 0, whose logarithm JSON writes as null, are left out.
    """
    entries = token.get("top_logprobs") or []
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("token"), str) for entry in entries
    ):
        raise ValueError("top_logprobs must be a list of objects with a token and a logprob")
    if entries and token.get("token") not in [entry["token"] for entry in entries]:
        entries = [*entries, {"token": str(token.get("token")), "logprob": token["logprob"]}]
    known = [entry for entry in entries if entry.get("logprob") not in (None, -np.inf)]
    if not all(is_number(entry["logprob"]) for entry in known):
        raise ValueError("top_logprobs must have a number, or null, as each logprob")
    values = TokenScores.checked([entry["logprob"] for entry in known]).log_probs
    if np.exp(values).sum() > 1 + MASS_TOLERANCE:
        raise ValueError(f"the probabilities of the first tokens sum to {np.exp(values).sum():.3g}, more than 1")
    return added_up([entry["token"] for entry in known], values)


def _prompt_scores(answer: Mapping[str, Any], choice: Mapping[str, Any], prompt: str) -> TokenScores | None:
    """Of the tokens of the last message; None where the server gives none, or does not write them out."""
    source = next((part for part in (answer, choice) if part.get("prompt_logprobs") is not None), None)
    if source is None:
        return None
    values, _, pieces = read_prompt_logprobs(source)
    scored, first = without_first(values)
    start = "".join(pieces).rfind(prompt.strip())
    scores = TokenScores.checked(scored, ends=np.cumsum([len(piece) for piece in pieces], dtype=np.intp)[first:])
    if start < 0 or scored.size != len(pieces) - first:
        return None
    kept = scores.inside((start, start + len(prompt.strip())))
    return TokenScores(scores.log_probs[kept], int(kept.sum())) if kept.any() else None


def _text(choice: Mapping[str, Any]) -> str:
    """The answer, or the refusal to give one; a ValueError says what came in place of a text."""
    given = choice.get("message")
    message = given if isinstance(given, dict) else {}
    content = message.get("refusal") if message.get("content") is None else message["content"]
    if isinstance(content, str) and content.lstrip().startswith("<think>"):
        raise ValueError("the answer begins with <think>: turn reasoning off, or let the server separate it")
    if isinstance(content, str) and (content.strip() or not _reasoning(message)):
        return content.strip()
    came = "tool calls" if message.get("tool_calls") else f"finish_reason {choice.get('finish_reason')!r:.40}"
    if _reasoning(message):
        came = "its reasoning alone: give it more max_tokens, or turn reasoning off"
    raise ValueError(f"the answer has no message.content but {came}")


def _reasoning(message: Mapping[str, Any]) -> bool:
    return any(message.get(name) for name in REASONING)


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
