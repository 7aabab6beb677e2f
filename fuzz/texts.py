"""What surrounds language models: precomputed scores, the cache, servers' answers, templates and texts."""

import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from atypicality.llm import LabelScores, OpenAICompatibleScorer, PrecomputedScorer, Template, TokenScores, load_template
from atypicality.llm.cache import ScoreCache
from atypicality.llm.openai import MODES
from atypicality.llm.texts import READERS, Texts, read_texts
from fuzz.rule import Target

__all__ = ["LABELS", "PROMPT", "TARGETS"]

PROMPT = "Hi you"
LABELS = (" good", " bad")
STATUSES = (200, 200, 200, 200, 400, 401, 429, 302)
CODINGS = ("identity", "gzip", "deflate", "unknown")


def read_scores(data: bytes, folder: Path) -> LabelScores:
    """A file of precomputed scores: JSON Lines, or Parquet if it begins as such files do."""
    path = folder / ("scores.parquet" if data[:4] == b"PAR1" else "scores.jsonl")
    path.write_bytes(data)
    return PrecomputedScorer(path).score_labels([PROMPT], LABELS)


def check_scores(scores: LabelScores) -> None:
    """One row of numbers, one number per label."""
    assert scores.logits.shape == (1, len(LABELS))
    assert not np.isnan(scores.logits).any()
    check_tokens(scores.prompts[0])


def read_cache(data: bytes, folder: Path) -> ScoreCache:
    """A cache of scores, which passes over what it cannot read, and after that can be added to."""
    path = folder / "cache.jsonl"
    path.write_bytes(data)
    ScoreCache(path).add("new", TokenScores.checked([-1.0]))
    return ScoreCache(path)


def check_cache(cache: ScoreCache) -> None:
    """The score that was added is there, and so is nothing that is no score."""
    assert "new" in cache
    for scores in cache._scores.values():
        check_tokens(scores)


def read_answer(data: bytes, folder: Path) -> TokenScores:
    """A server's answer; its first byte says how it was asked, the status and the coding."""
    first, body = data[:1] or b"\0", data[1:]
    mode, status = list(MODES)[first[0] & 1], STATUSES[first[0] >> 1 & 7]
    return _ask(mode, status, CODINGS[first[0] >> 4 & 3], body)


def read_http(data: bytes, folder: Path) -> dict[str, Any]:
    """All that a server sends on a connection: interim answers, status, headers, chunks and body."""
    import httpcore
    import httpx

    client = _client()
    transport = httpx.AsyncHTTPTransport(verify=False)  # nothing is connected to, and loading certificates takes long
    transport._pool = httpcore.AsyncConnectionPool(network_backend=httpcore.AsyncMockBackend([data]))
    client._client = httpx.AsyncClient(transport=transport, timeout=None)
    return client.post({"prompt": PROMPT})


def check_object(parsed: dict[str, Any]) -> None:
    """A JSON object."""
    assert isinstance(parsed, dict)


def check_tokens(scores: TokenScores) -> None:
    """Log-probabilities, with ends and names for each if there are any."""
    assert scores.log_probs.ndim == 1
    assert np.isfinite(scores.log_probs).all()
    assert (scores.log_probs <= 0).all()
    assert scores.n_tokens >= scores.log_probs.size
    for given in (scores.ends, scores.tokens):
        assert given is None or np.shape(given) == scores.log_probs.shape


def read_template(data: bytes, folder: Path) -> Template:
    """A template in a file."""
    path = folder / "template.txt"
    path.write_bytes(data)
    return load_template(str(path), ["good", "bad"])


def check_template(template: Template) -> None:
    """The input stands where the template says."""
    start, stop = template.span("the input")
    assert template.fill("the input")[start:stop] == "the input"


def read_inputs(data: bytes, folder: Path) -> Texts:
    """A file of texts, whose first byte chooses the ending."""
    endings = list(READERS)
    path = folder / f"texts{endings[(data[:1] or b'0')[0] % len(endings)]}"
    path.write_bytes(data[1:])
    return read_texts(path, text=["text"], label="label" if data[:1] < b"\x80" else None)


def check_inputs(texts: Texts) -> None:
    """As many labels as texts, all of them text."""
    assert texts.labels is None or len(texts.labels) == len(texts.inputs)
    assert all(isinstance(text, str) for text in [*texts.inputs, *(texts.labels or [])])


@functools.cache
def _scorer() -> OpenAICompatibleScorer:
    """A scorer whose client is open and can be given another connection."""
    scorer = OpenAICompatibleScorer("http://localhost/v1", "model", api_key_env=None, max_retries=0)
    scorer._opened()
    return scorer


def _client() -> Any:
    return _scorer()._client


def _ask(mode: str, status: int, coding: str, body: bytes) -> TokenScores:
    import httpx

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    headers = {"Content-Encoding": coding}
    transport = httpx.MockTransport(lambda _: httpx.Response(status, headers=headers, content=pieces()))
    _client()._client = httpx.AsyncClient(transport=transport)
    return _scorer()._ask(mode, PROMPT)


TARGETS = {
    "scores": Target(read_scores, check_scores),
    "cache": Target(read_cache, check_cache),
    "server": Target(read_answer, check_tokens),
    "http": Target(read_http, check_object),
    "template": Target(read_template, check_template),
    "texts": Target(read_inputs, check_inputs),
}
