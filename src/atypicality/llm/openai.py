"""Servers that speak the OpenAI completions protocol (vLLM and others) as prompt scorers."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.llm.cache import ScoreCache, cache_key
from atypicality.llm.client import NoAccessError, ServerFaultError, check_url
from atypicality.llm.handshake import check_server
from atypicality.llm.scorers import TokenScores
from atypicality.llm.served import ServedModel
from atypicality.validation import check_choice

__all__ = ["OpenAICompatibleScorer"]

MODES: dict[str, dict[str, Any]] = {
    "prompt_logprobs": {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 0},
    "echo": {"max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 0},
}


@dataclass(eq=False, repr=False, kw_only=True)
class OpenAICompatibleScorer(ServedModel):
    """Score prompts with a server. A server is tried on known sentences before anything it says is believed.

    The first token has a log-probability only if the server's tokenizer puts a start token before it, as Llama's do.

    Parameters
    ----------
    url : str
        Address of the server, as in "http://localhost:8000/v1".
    model : str
        The model's name on the server.
    api_key_env : str or None, default="OPENAI_API_KEY"
        Environment variable that holds the key: printable ASCII without spaces. The key is sent only to `url`, never
        over plain http to another machine, and it is hidden where the server's words come back in an error.
    concurrency : int, default=8
        Requests under way at a time.
    timeout : float, default=60
        Seconds for one request, from finding the address to the last byte of the answer, however slowly it comes.
    max_retries : int, default=5
        Further tries after a passing fault, with doubling waits that begin at `backoff` seconds. A prompt is given up
        within `(max_retries + 1) * timeout + 60 * max_retries` seconds, since no wait is longer than 60.
    backoff : float, default=0.5
    max_bytes : int, default=32 MiB
        Largest answer that is read. Compressed answers are refused.
    mode : {"auto", "prompt_logprobs", "echo"}, default="auto"
        How to ask for the log-probabilities of a prompt: vLLM's option, or the completions protocol's. "auto" takes
        the first with which the server passes its trial.
    cache : path, optional
        File that keeps every score as it arrives; a run that was interrupted asks only for what is missing. It holds
        log-probabilities and hashes, of the prompt (with model, address and options) and of each token, but no text;
        `tokens` of the scores are then these hashes. A file that is made here is readable by its owner alone.

    Examples
    --------
    >>> scorer = OpenAICompatibleScorer("http://localhost:8000/v1", "my-model", cache="scores.jsonl")
    >>> scorer.url  # nothing is sent before the first call of `score`
    'http://localhost:8000/v1'
    """

    mode: str = "auto"
    cache: str | os.PathLike[str] | None = None
    _store: ScoreCache | None = field(default=None, init=False)
    _trusted: str | None = field(default=None, init=False)

    def score(self, prompts: Sequence[str]) -> list[TokenScores]:
        """Log-probabilities of the tokens of each of the `prompts`, in order; a repeated prompt is asked for once."""
        store = self._opened()
        mode = self._cached_mode(store, prompts)
        wanted = list(dict.fromkeys(p for p in prompts if mode is None or self._key(mode, p) not in store))
        if wanted:
            mode = self.handshake()
            wanted = [prompt for prompt in wanted if self._key(mode, prompt) not in store]
            keys = {prompt: self._key(mode, prompt) for prompt in wanted}  # each is stored when it arrives
            self._each(lambda row: store.add(keys[wanted[row]], self._ask(mode, wanted[row])), len(wanted))
        return [store[self._key(mode, prompt)] for prompt in prompts] if mode else []

    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Tokens of each of the `prompts`; the protocol has no cheaper way than to score them, and scores are kept."""
        return [scores.n_tokens for scores in self.score(prompts)]

    def handshake(self) -> str:
        """Try the server on known sentences, once; the mode that it passed with, or ServerFaultError."""
        if self._trusted is None:
            self._opened()
            modes = list(MODES) if self.mode == "auto" else [self.mode]
            faults: dict[str, str] = {}
            for mode in modes:
                try:
                    check_server(lambda text, mode=mode: self._ask(mode, text))  # type: ignore[misc]
                except NoAccessError:
                    raise
                except ServerFaultError as fault:
                    faults[mode] = str(fault)
                else:
                    self._trusted = mode
                    break
            else:
                raise ServerFaultError(_distrust(faults))
        return self._trusted

    def _opened(self) -> ScoreCache:
        check_choice(self.mode, "mode", ("auto", *MODES))
        self._connected()
        if self._store is None:
            self._store = ScoreCache(self.cache)
        return self._store

    def _cached_mode(self, store: ScoreCache, prompts: Sequence[str]) -> str | None:
        """A mode in which every prompt is known already, so that the server need not even be up."""
        modes = [self._trusted] if self._trusted else list(MODES) if self.mode == "auto" else [self.mode]
        return next((mode for mode in modes if all(self._key(mode, prompt) in store for prompt in prompts)), None)

    def _key(self, mode: str, prompt: str) -> str:
        return cache_key(self.model, check_url(self.url), MODES[mode], prompt)

    def _ask(self, mode: str, prompt: str) -> TokenScores:
        return self._asked({"prompt": prompt} | MODES[mode], lambda answer: parse_answer(answer, mode, prompt))


def _distrust(faults: Mapping[str, str]) -> str:
    """Why a server failed its trial, by mode; a fault of every mode has nothing to do with how it was asked."""
    if len(faults) > 1 and len(set(faults.values())) == 1:
        return next(iter(faults.values()))
    said = "; ".join(f"with {mode}: {fault}" for mode, fault in faults.items())
    return (
        f"the server cannot be trusted with prompt likelihoods; {said}. Ask one that gives the log-probabilities of a "
        "prompt's own tokens (vLLM does), run the model with TransformersScorer, or read scores with PrecomputedScorer."
    )


def parse_answer(answer: Mapping[str, Any], mode: str, prompt: str) -> TokenScores:
    """Scores of a prompt from a completions answer, or ValueError with the server's fault.

    >>> logprobs = {"tokens": ["Hi", " you", "!"], "token_logprobs": [None, -2.0, -0.1]}
    >>> parse_answer({"choices": [{"logprobs": logprobs}], "usage": {"prompt_tokens": 2}}, "echo", "Hi you").log_probs
    array([-2.])
    """
    read = read_prompt_logprobs if mode == "prompt_logprobs" else _read_echo
    values, names, pieces = read(choices_of(answer)[0])
    n_tokens = _prompt_tokens(answer, len(values), mode)
    if n_tokens < 1:
        raise ValueError("the answer has no tokens of the prompt")
    if len(values) < n_tokens:
        raise ValueError(f"{len(values)} log-probabilities came for a prompt of {n_tokens} tokens")
    scored, first = without_first(values[:n_tokens])
    ends = _ends(pieces[:n_tokens], prompt)
    scores = TokenScores.checked(scored, n_tokens, None if ends is None else ends[first:], names[first:n_tokens])
    if scores.log_probs.size > 1 and not scores.log_probs.any():
        raise ValueError("every log-probability is zero: the server ignores the request for those of the prompt")
    return scores


def choices_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The choices of a completion, at least one."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        raise ValueError("the answer has no choices")
    return choices


Read = tuple[list[Any], list[str], list[str]]


def read_prompt_logprobs(choice: Mapping[str, Any]) -> Read:
    """Values, names and texts of a prompt's tokens as vLLM gives them."""
    entries = choice.get("prompt_logprobs")
    if not isinstance(entries, list):
        raise ValueError("the answer has no prompt_logprobs")
    values: list[Any] = []
    names, pieces = [], []
    for place, entry in enumerate(entries):
        if entry is not None and (not isinstance(entry, dict) or len(entry) != 1):
            raise ValueError(f"prompt_logprobs of token {place} must be of that token alone")
        name, token = next(iter(entry.items())) if entry else ("", {})
        values.append(token.get("logprob") if isinstance(token, dict) else token)
        names.append(str(name))
        pieces.append(str(token.get("decoded_token") or "") if isinstance(token, dict) else "")
    return values, names, pieces


def _read_echo(choice: Mapping[str, Any]) -> Read:
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict) or not isinstance(logprobs.get("token_logprobs"), list):
        raise ValueError("the answer has no logprobs.token_logprobs")
    values, tokens = logprobs["token_logprobs"], logprobs.get("tokens")
    if not isinstance(tokens, list) or len(tokens) != len(values):
        raise ValueError("logprobs.tokens and logprobs.token_logprobs must be lists of one length")
    names = [str(token) for token in tokens]
    return values, names, names


def _prompt_tokens(answer: Mapping[str, Any], n_values: int, mode: str) -> int:
    """Tokens of the prompt: what the server counted, else all but the one that was generated after an echo."""
    usage = answer.get("usage")
    counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if isinstance(counted, int) and not isinstance(counted, bool) and counted > 0:
        return counted
    return n_values - 1 if mode == "echo" else n_values


def without_first(values: list[Any]) -> tuple[NDArray[np.float64], int]:
    """Numbers of the tokens, without a first one that has none, and how many were left out."""
    first = 1 if values and values[0] is None else 0
    wrong = [place for place, value in enumerate(values) if place >= first and not is_number(value)]
    if wrong:
        raise ValueError(f"the log-probability of token {wrong[0]} is {values[wrong[0]]!r:.40}, not a number")
    return np.array(values[first:], np.float64), first


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a number of ordinary size."""
    if isinstance(value, int):  # JSON has whole numbers of any size, and Python counts True among them
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, float)


def _ends(pieces: list[str], prompt: str) -> NDArray[np.intp] | None:
    """Where tokens end, if the texts of all but the first make up the end of the prompt; None if they do not.

    The first may be a start token, which is no part of the prompt, or one whose text the server leaves out.
    """
    rest = "".join(pieces[1:])
    before = len(prompt) - len(rest)
    known = prompt.endswith(rest) and all(pieces[1:]) and pieces[0] in ("", prompt[:before])
    return np.cumsum([before, *map(len, pieces[1:])]) if known or rest == prompt else None
