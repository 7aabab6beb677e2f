"""The trial before a server is trusted: what it calls log-probabilities must behave like them.

Servers have been seen to ignore the request and answer 0.0 for every token (evaluations then run at chance), to shift
values by one place when part of a prompt was cached, and to leave tokens out. Each would pass for a number.
"""

from collections.abc import Callable

import numpy as np

from atypicality.llm.client import ServerFaultError
from atypicality.llm.generation import Reply
from atypicality.llm.scorers import TokenScores

__all__ = ["check_chat", "check_server"]

SENTENCE = "The children walked to school in the morning and came home in the afternoon."
SHUFFLED = "afternoon. the in morning school and came walked in to The home children the"
CONTINUED = f"{SENTENCE} Their parents were waiting for them at the door."
COUNTING = "Count from one to ten in words."
TOLERANCE = 0.1
"""Nats by which a token's log-probability may differ between two answers: half-precision servers are not exact."""


def check_server(ask: Callable[[str], TokenScores]) -> None:
    """Refuse a server, with ServerFaultError, unless it passes; `ask` gives the scores of one text.

    That there are as many log-probabilities as tokens, that none is positive and that they are not all zero is checked
    on every answer, where it is read.
    """
    first, again = ask(SENTENCE), ask(SENTENCE)
    if first.log_probs.size < 2:
        raise ServerFaultError(
            f"a sentence of fourteen words came back as {first.log_probs.size} scored tokens: the server ignores the "
            "request for those of the prompt"
        )
    if not _agree(first, again):
        raise ServerFaultError("the same prompt, sent twice, got different log-probabilities")
    if ask(SHUFFLED).log_probs.sum() >= first.log_probs.sum():
        raise ServerFaultError("a sentence with its words shuffled scores no lower than the sentence itself")
    if not _agree(first, ask(CONTINUED)):
        raise ServerFaultError("the tokens of a prompt score differently when more text follows: values are shifted")


def check_chat(ask: Callable[[str], tuple[Reply, str]]) -> None:
    """Refuse a chat endpoint, with ServerFaultError, unless it passes; `ask` gives a reply and its tokens' joint text.

    That log-probabilities are there, not positive, not all alike, and that the likeliest tokens have no more than all
    the probability is checked of every answer, where it is read.
    """
    (first, tokens), (again, _) = ask(COUNTING), ask(COUNTING)
    if not first.first:
        raise ServerFaultError("the answer has no top_logprobs: the server ignores the request for them")
    if "".join(first.text.split()) not in "".join(tokens.split()):
        raise ServerFaultError("the tokens that have log-probabilities are not those of the answer: values are shifted")
    if first.log_probs[0] < max(first.first.values()) - TOLERANCE:
        raise ServerFaultError(
            "at temperature 0 the first token is not the likeliest one: the log-probabilities are of another "
            "distribution, or the server ignores the temperature"
        )
    if not np.isclose(first.log_probs[0], again.log_probs[0], rtol=0.01, atol=TOLERANCE):
        raise ServerFaultError("the same question, sent twice, got different log-probabilities")


def _agree(first: TokenScores, second: TokenScores) -> bool:
    """Whether the tokens of the first text score the same in the second, which begins with it."""
    size = first.log_probs.size
    return second.log_probs.size >= size and np.allclose(
        first.log_probs, second.log_probs[:size], rtol=0.01, atol=TOLERANCE
    )
