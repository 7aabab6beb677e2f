"""Servers that speak the OpenAI protocol: one on loopback that can misbehave in every way that has been seen."""

import contextlib
import json
import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import numpy as np
import pytest
from conftest import needs
from hypothesis import given
from hypothesis import strategies as st

from atypicality.llm import AG_NEWS, OpenAICompatibleScorer, PromptClassifier, TokenScores
from atypicality.llm.client import ServerFaultError
from atypicality.llm.handshake import CONTINUED, SENTENCE, SHUFFLED
from atypicality.llm.openai import parse_answer
from atypicality.llm.precomputed import to_record
from atypicality.llm.scorers import label_scores

pytestmark = needs("httpx")

KEY = "sk-not-a-real-key-0123456789"
BIGRAMS = set(pairwise(SENTENCE.split()))
TRIAL = {SENTENCE, SHUFFLED, CONTINUED}


def pieces(text):
    """Words with the space before them, as tokenizers cut text."""
    return re.findall(r"\s*\S+|\s+$", text)


def log_probs(text):
    """A language model of one rule: words that follow each other in the known sentence are likely."""
    words = [piece.strip() for piece in pieces(text)]
    return [None, *(-0.5 if pair in BIGRAMS else -1.0 - len(pair[1]) / 8 for pair in pairwise(words))]


def echo(text):
    tokens = [*pieces(text), " next"]
    logprobs = {"tokens": tokens, "token_logprobs": [*log_probs(text), -0.3], "text_offset": [0] * len(tokens)}
    return {"choices": [{"logprobs": logprobs}], "usage": {"prompt_tokens": len(tokens) - 1, "completion_tokens": 1}}


def prompt_logprobs(text):
    entries = [
        None if value is None else {str(hash(piece)): {"logprob": value, "decoded_token": piece}}
        for piece, value in zip(pieces(text), log_probs(text), strict=True)
    ]
    return {"choices": [{"text": " next", "prompt_logprobs": entries}], "usage": {"prompt_tokens": len(entries)}}


def answer(body):
    return echo(body["prompt"]) if body.get("echo") else prompt_logprobs(body["prompt"])


class Server:
    """A completions server whose `behave(body, times_asked)` gives (status, headers, bytes)."""

    def __init__(self):
        self.asked, self.keys, self.lock = Counter(), set(), threading.Lock()
        self.behave = lambda body, times: ok(answer(body))
        self.under_way = self.most_under_way = 0
        self.piece, self.pause = 10**9, 0.0

    def handle(self, request):
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        asked = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        with self.lock:
            self.asked[asked] += 1
            self.keys.add(request.headers.get("Authorization"))
            times = self.asked[asked]
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            status, headers, data = self.behave(body, times)
        finally:
            with self.lock:
                self.under_way -= 1
        request.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            request.send_header(name, value)
        request.end_headers()
        for place in range(0, len(data), self.piece):
            request.wfile.write(data[place : place + self.piece])
            request.wfile.flush()
            time.sleep(self.pause)


def ok(payload):
    return 200, {}, json.dumps(payload).encode()


@pytest.fixture
def server():
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # which would hold every answer back for 40 ms

        def do_POST(self):
            with contextlib.suppress(ConnectionError):
                made.handle(self)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        made.url = f"http://127.0.0.1:{http.server_port}/v1"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        http.shutdown()
        thread.join()


@pytest.fixture
def connect(server):
    made = []

    def opened(**options):
        settings = {"backoff": 0.001, "timeout": 5.0, "concurrency": 4, "mode": "echo"} | options
        made.append(OpenAICompatibleScorer(server.url, "tiny", **settings))
        return made[-1]

    yield opened
    for scorer in made:
        scorer.close()


PROMPTS = [f"Question number {i} is about things" for i in range(12)]


def expected(prompt):
    return log_probs(prompt)[1:]


def check_all(scorer, server):
    for prompt, scores in zip(PROMPTS, scorer.score(PROMPTS), strict=True):
        assert scores.log_probs.tolist() == expected(prompt)
    return {prompt: server.asked[prompt] for prompt in PROMPTS}


@pytest.mark.parametrize("mode", ["echo", "prompt_logprobs"])
def test_both_ways_of_asking_give_tokens_scores_and_places(mode, server, connect):
    found = connect(mode=mode).score([PROMPTS[0], "Hello"])
    assert found[0].log_probs.tolist() == expected(PROMPTS[0])
    assert found[0].n_tokens == 6
    assert [PROMPTS[0][:end] for end in found[0].ends][-2:] == ["Question number 0 is about", PROMPTS[0]]
    assert found[1].log_probs.size == 0
    assert found[1].n_tokens == 1


def test_auto_takes_the_way_that_the_server_knows(server, connect):
    server.behave = lambda body, times: ok(echo(body["prompt"]))  # ignores prompt_logprobs
    assert connect(mode="auto").handshake() == "echo"


def test_prompts_become_outputs(server, connect):
    articles = ["Stocks fall sharply", "Cup final tonight"]
    with pytest.warns(UserWarning, match="class_atypicality is left out"):
        made = PromptClassifier(connect(), AG_NEWS).outputs(articles, labels=["Business", "Sports"])
    assert made.logits.shape == (2, 4)
    assert made.attributes["label_rule"].tolist() == ["first token"] * 2
    np.testing.assert_allclose(made.logits[0], [-1 - len(word) / 8 for word in AG_NEWS.labels])
    np.testing.assert_allclose(made.atypicality, [-sum(expected(AG_NEWS.fill(text))) for text in articles])
    assert made.class_atypicality is None  # one token each, and the server puts nothing before them


def test_repeated_prompts_are_asked_once_and_requests_are_bounded(server, connect):
    def slowly(body, times):
        time.sleep(0.1)
        return ok(answer(body))

    server.behave = slowly
    scorer = connect(concurrency=3)
    first = scorer.score(PROMPTS + PROMPTS[::-1])
    assert [s.log_probs.tolist() for s in first] == [expected(p) for p in PROMPTS + PROMPTS[::-1]]
    scorer.score(PROMPTS)
    assert max(server.asked[prompt] for prompt in PROMPTS) == 1
    assert server.most_under_way == 3


PASSING = {
    "overload": (503, {}, b"busy"),
    "rate limit": (429, {"Retry-After": "0.01"}, b"slow down"),
    "malformed": (200, {}, b'{"choices": [{"logp'),
    "cut short": (200, {"Content-Length": "1000", "Connection": "close"}, b'{"choices"'),
}


@pytest.mark.parametrize("fault", PASSING, ids=str)
def test_passing_faults_are_survived_and_no_prompt_is_lost(fault, server, connect):
    def failing_first(body, times):
        return PASSING[fault] if times == 1 and body["prompt"] not in TRIAL else ok(answer(body))

    server.behave = failing_first
    assert set(check_all(connect(timeout=60.0), server).values()) == {2}  # no stall of the machine adds a request


def test_a_slow_server_is_waited_for_and_asked_again(server, connect):
    def slow_first(body, times):
        if times == 1 and body["prompt"] in PROMPTS[:2]:
            time.sleep(1.0)
        return ok(answer(body))

    server.behave = slow_first
    asked = check_all(connect(timeout=0.5), server)
    assert min(asked[prompt] for prompt in PROMPTS[:2]) >= 2  # once more where the machine itself was slow


LASTING = {
    "down": (PASSING["overload"], "answered with status 503: busy .tried 3 times."),
    "malformed": (PASSING["malformed"], "malformed JSON: .*tried 3 times"),
    "not an object": ((200, {}, b"[1]"), "a JSON list, not an object"),
    "no choices": (ok({"error": "x"}), "the answer has no choices"),
    "no such model": ((404, {}, b'{"error": "no model tiny"}'), "status 404: .*no model tiny"),
    "too long": ((400, {}, b"maximum context length is 16 tokens"), "status 400: maximum context length"),
    "redirect": ((307, {"Location": "http://example.org/v1"}, b""), "redirects .status 307., which is not followed"),
    "redirect to no address": ((307, {"Location": "hn: http://example.org"}, b""), "redirects to what is no address"),
    "no access": ((401, {}, b"bad key"), "refuses access .status 401.; the key is read from .* OPENAI_API_KEY"),
    "huge": ((200, {}, b" " * 3000), "more than 2000 bytes"),
    "terminal codes": ((400, {}, b"\x1b[31mred\x07"), r"status 400: \\x1b\[31mred\\x07\. Ask"),
}


@pytest.mark.parametrize("fault", LASTING, ids=str)
def test_lasting_faults_are_named(fault, server, connect):
    given, message = LASTING[fault]
    server.behave = lambda body, times: given
    with pytest.raises(ServerFaultError, match=message):
        connect(max_retries=2, max_bytes=2000).score(PROMPTS)


def changed(**values):
    def behave(body, times):
        payload = echo(body["prompt"])
        logprobs = payload["choices"][0]["logprobs"]
        for name, change in values.items():
            logprobs[name] = change(logprobs[name])
        return ok(payload)

    return behave


def noisy(body, times):
    payload = echo(body["prompt"])
    values = payload["choices"][0]["logprobs"]["token_logprobs"]
    payload["choices"][0]["logprobs"]["token_logprobs"] = [v and v - times / 2 for v in values]
    return ok(payload)


def shifted_when_long(body, times):
    """What prefix caches have done: values of a prompt that was seen before move by one place."""
    payload = echo(body["prompt"])
    values = payload["choices"][0]["logprobs"]["token_logprobs"]
    if body["prompt"] == CONTINUED:
        payload["choices"][0]["logprobs"]["token_logprobs"] = [None, -3.0, *values[1:-1]]
    return ok(payload)


LIARS = {
    "all zero": (changed(token_logprobs=lambda v: [0.0 * (x or 0) for x in v]), "every log-probability is zero"),
    "positive": (changed(token_logprobs=lambda v: [x and -x for x in v]), "must not be positive"),
    "not numbers": (changed(token_logprobs=lambda v: [str(x) for x in v]), "is 'None', not a number"),
    "NaN": (changed(token_logprobs=lambda v: [x and float("nan") for x in v]), "must not be positive; .* nan"),
    "infinite": (changed(token_logprobs=lambda v: [x and float("-inf") for x in v]), "must be finite"),
    "too few": (
        changed(token_logprobs=lambda v: v[:4], tokens=lambda v: v[:4]),
        "4 log-probabilities came for a prompt of 14 tokens",
    ),
    "lists differ": (changed(tokens=lambda v: v[:4]), "must be lists of one length"),
    "one word": (lambda body, times: ok(echo("One two")), "sentence of fourteen words came back as 1 scored"),
    "shuffled is as good": (changed(token_logprobs=lambda v: [x and -2.0 for x in v]), "shuffled scores no lower"),
    "never the same": (noisy, "the same prompt, sent twice, got different"),
    "shifted": (shifted_when_long, "score differently when more text follows: values are shifted"),
}


@pytest.mark.parametrize("lie", LIARS, ids=str)
def test_a_server_that_cannot_be_trusted_is_refused_before_any_prompt_is_sent(lie, server, connect):
    server.behave, message = LIARS[lie]
    with pytest.raises(ServerFaultError, match=message):
        connect().score(PROMPTS)
    assert set(server.asked) <= TRIAL


def test_a_lie_after_the_trial_is_found_too(server, connect):
    lying = LIARS["all zero"][0]
    server.behave = lambda body, times: ok(answer(body)) if body["prompt"] in TRIAL else lying(body, times)
    with pytest.raises(ServerFaultError, match="every log-probability is zero"):
        connect().score(PROMPTS)


def test_no_server_at_all(connect, server, tmp_path):
    scorer = connect(max_retries=1)
    scorer.url = "http://127.0.0.1:1/v1"
    with pytest.raises(ServerFaultError, match=r"127\.0\.0\.1:1/v1/completions cannot be reached: .*tried 2 times"):
        scorer.score(PROMPTS)


@pytest.mark.parametrize(("key", "state"), [("", "OPENAI_API_KEY, which is not set"), (KEY, "OPENAI_API_KEY[.]")])
def test_a_refusal_says_whether_there_was_a_key_and_is_no_matter_of_trust(key, state, server, connect, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    server.behave = lambda body, times: (401, {}, b"No key, no answer")
    with pytest.raises(ServerFaultError, match=f"{state}.*says: No key, no answer$") as refused:
        connect(mode="auto").score(PROMPTS)
    assert "trusted" not in str(refused.value)
    assert server.asked.total() == 1


def test_a_fault_that_is_the_same_in_every_mode_is_told_once(server, connect):
    server.behave = lambda body, times: (404, {}, b"no model tiny")
    with pytest.raises(ServerFaultError, match=r"^\S*completions answered with status 404: no model tiny$"):
        connect(mode="auto").score(PROMPTS)


def test_a_server_that_ignores_echo_is_named_with_what_to_use_instead(server, connect):
    logprobs = {"tokens": [" next"], "token_logprobs": [-0.3]}
    server.behave = lambda body, times: ok({"choices": [{"logprobs": logprobs}]})
    message = "with prompt_logprobs: .*no prompt_logprobs; with echo: .*no tokens of the prompt.*TransformersScorer"
    with pytest.raises(ServerFaultError, match=message):
        connect(mode="auto").score(PROMPTS)


def test_a_server_that_never_answers_is_given_up(server, connect):
    release = threading.Event()

    def never(body, times):
        release.wait(5.0)
        return ok(answer(body))

    server.behave = never
    started = time.monotonic()
    with pytest.raises(ServerFaultError, match=r"gave no whole answer within 0\.2 s .tried 1 times"):
        connect(timeout=0.2, max_retries=0).score(PROMPTS)
    release.set()
    assert time.monotonic() - started < 4.0


def test_a_server_that_drips_is_given_up(server, connect):
    server.piece, server.pause = 1, 0.01  # every byte in time, the whole answer never
    with pytest.raises(ServerFaultError, match=r"gave no whole answer within 0\.6 s"):
        connect(timeout=0.6, max_retries=0).score(PROMPTS)


# the cache


def test_an_interrupted_run_resumes_where_it_stopped(server, connect, tmp_path):
    path = tmp_path / "folder" / "scores.jsonl"

    def dies_at_seven(body, times):
        return (400, {}, b"gone") if body["prompt"] == PROMPTS[7] else ok(answer(body))

    server.behave = dies_at_seven
    with pytest.raises(ServerFaultError, match="gone"):
        connect(cache=path, concurrency=2).score(PROMPTS)
    server.behave = lambda body, times: ok(answer(body))
    with open(path, "a") as file:
        file.write('{"key": "cut sho')  # what a crash leaves behind
    asked = check_all(connect(cache=path), server)
    assert asked[PROMPTS[7]] == 2
    assert all(times == 1 for prompt, times in asked.items() if prompt != PROMPTS[7])
    assert check_all(connect(cache=path), server) == asked  # a third run asks nothing


def test_a_full_cache_needs_no_server(server, connect, tmp_path):
    path = tmp_path / "scores.jsonl"
    connect(cache=path).score(PROMPTS)
    server.behave = lambda body, times: (500, {}, b"down")
    assert len(connect(cache=path, max_retries=0).score(PROMPTS)) == len(PROMPTS)


@pytest.mark.parametrize("change", ["model", "mode", "prompt"])
def test_cache_keys_hold_what_decides_a_score(change, server, connect, tmp_path):
    path = tmp_path / "scores.jsonl"
    connect(cache=path).score(PROMPTS[:1])
    again = connect(cache=path, mode="prompt_logprobs" if change == "mode" else "echo")
    if change == "model":
        again.model = "other"
    prompt = PROMPTS[0] + "?" if change == "prompt" else PROMPTS[0]
    again.score([prompt])
    assert server.asked[prompt] == (1 if change == "prompt" else 2)


def test_damaged_cache_lines_are_asked_for_again(server, connect, tmp_path):
    path = tmp_path / "scores.jsonl"
    connect(cache=path).score(PROMPTS)
    lines = path.read_text().splitlines()
    damaged = json.loads(lines[0])
    damaged["log_probs"] = [5.0] * len(damaged["log_probs"])
    path.write_text("\n".join([json.dumps(damaged), "[]", "\x00", *lines[1:]]))
    check_all(connect(cache=path), server)
    assert sorted(server.asked[prompt] for prompt in PROMPTS) == [1] * 11 + [2]


def label_logits(scorer):
    return label_scores(scorer, PROMPTS[:3], [" yes", " no"])


def test_the_cache_file_holds_no_text_and_is_its_owners_alone(server, connect, tmp_path):
    path = tmp_path / "new" / "folder" / "scores.jsonl"
    label_logits(connect(cache=path))
    assert not [word for word in {*" ".join(PROMPTS).split(), "yes"} if len(word) > 3 and word in path.read_text()]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("mode", ["echo", "prompt_logprobs"])
def test_labels_score_the_same_without_a_cache_with_one_and_from_one(mode, server, connect, tmp_path):
    path = tmp_path / "scores.jsonl"
    plain, fresh, kept = (label_logits(connect(mode=mode, cache=cache)) for cache in (None, path, path))
    assert plain.rule == fresh.rule == kept.rule == "first token"
    np.testing.assert_array_equal(plain.logits, fresh.logits)
    np.testing.assert_array_equal(plain.logits, kept.logits)


def test_a_cache_file_of_an_earlier_version_is_read_with_new_answers_beside_it(server, connect, tmp_path):
    path = tmp_path / "scores.jsonl"
    asked = connect()
    lines = [
        {"key": asked._key("echo", prompt), **to_record(scores)}  # with the tokens as texts
        for prompt, scores in zip(PROMPTS, asked.score(PROMPTS), strict=True)
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    before, plain = server.asked.copy(), label_logits(connect())
    server.asked = before.copy()
    found = label_logits(connect(cache=path))
    assert {prompt: server.asked[prompt] for prompt in PROMPTS} == {prompt: before[prompt] for prompt in PROMPTS}
    assert found.rule == "first token"
    np.testing.assert_array_equal(found.logits, plain.logits)


# the key


def test_the_key_goes_to_the_server_and_nowhere_else(server, connect, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    path = tmp_path / "scores.jsonl"
    scorer = connect(cache=path, max_retries=0)
    scorer.score(PROMPTS)
    assert server.keys == {f"Bearer {KEY}"}
    server.behave = lambda body, times: (400, {}, f"wrong key {KEY}!".encode())
    with pytest.raises(ServerFaultError, match=r"wrong key \*\*\*!") as caught:
        scorer.score(["New prompt here"])
    shown = "".join(map(str, [caught.value, caught.value.__cause__, caught.value.__context__, *capfd.readouterr()]))
    assert KEY not in shown + path.read_text() + repr(vars(scorer)) + repr(vars(scorer._client))


def test_a_proxy_of_the_environment_does_not_get_to_read_it(server, connect, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert len(connect(max_retries=0).score(PROMPTS[:1])) == 1


def test_no_key_no_header(server, connect, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    connect().score(PROMPTS[:1])
    assert server.keys == {None}


def test_redirects_do_not_carry_the_key_away(server, connect, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    other = server.url.replace("127.0.0.1", "localhost") + "/elsewhere/completions"
    server.behave = lambda body, times: (302, {"Location": other}, b"")
    with pytest.raises(ServerFaultError, match="redirects"):
        connect().score(PROMPTS)
    assert sum(server.asked.values()) == 1


def test_keys_do_not_travel_in_the_clear(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with (
        OpenAICompatibleScorer("http://192.0.2.1/v1", "m", mode="echo") as scorer,
        pytest.raises(ServerFaultError, match="plain http to another machine") as caught,
    ):
        scorer.score(["Hello"])
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000", "must start with http"),
        ("ftp://host/v1", "must start with http"),
        (f"https://host:{KEY}/v1", "must start with http"),
        (f"https://user:{KEY}\u2100@host/v1", "must start with http"),
        (f"https://user:{KEY}@[::1/v1", "must start with http"),
        (f"https://{KEY}\x1b[31m/v1", "must start with http"),
        (f"https://user:{KEY}@host/v1", "must hold no user name, password or query"),
        (f"https://host/v1?key={KEY}", "must hold no user name, password or query"),
    ],
)
def test_addresses_are_checked_and_not_repeated(url, message):
    with pytest.raises(ValueError, match=message) as caught:
        OpenAICompatibleScorer(url, "m").score(["Hello"])
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "chat"}, "mode must be one of 'auto', 'prompt_logprobs', 'echo'; got 'chat'"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"timeout": 0}, "timeout must be a finite number"),
        ({"max_retries": -1}, "max_retries must be at least 0"),
        ({"max_bytes": 0}, "max_bytes must be at least 1"),
    ],
)
def test_options_are_checked(options, message, connect):
    with pytest.raises(ValueError, match=message):
        connect(**options).score(["Hello"])


def test_token_scores_say_what_is_wrong():
    with pytest.raises(ValueError, match="3 log-probabilities came for 2 tokens"):
        TokenScores.checked([-1.0] * 3, 2)
    with pytest.raises(ValueError, match="ends must be as many as the log-probabilities, 2"):
        TokenScores.checked([-1.0, -2.0], ends=[1])


# answers of any shape

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
ENTRIES = st.lists(st.none() | st.dictionaries(st.text(max_size=2), st.fixed_dictionaries({"logprob": JSON}) | JSON))
LOGPROBS = st.fixed_dictionaries({"tokens": st.lists(JSON) | JSON, "token_logprobs": st.lists(JSON) | JSON})
CHOICES = st.fixed_dictionaries({"logprobs": LOGPROBS | JSON, "prompt_logprobs": ENTRIES | JSON})
ANSWERS = st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, max_size=2) | JSON, "usage": st.fixed_dictionaries({"prompt_tokens": JSON}) | JSON}
)


@given(answer=ANSWERS, mode=st.sampled_from(["echo", "prompt_logprobs"]), prompt=st.text(max_size=8))
def test_any_answer_is_understood_or_refused_in_words(answer, mode, prompt):
    try:
        scores = parse_answer(answer, mode, prompt)
    except ValueError as error:
        assert str(error)
    else:
        assert scores.n_tokens >= scores.log_probs.size
        assert (scores.log_probs <= 0).all()
