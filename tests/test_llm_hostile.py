"""Servers that mean harm: raw sockets on loopback that never finish, answers that blow up, and keys sent back."""

import base64
import contextlib
import gzip
import html
import json
import socket
import threading
import time
import tracemalloc
from urllib.parse import quote

import pytest
from conftest import needs

from atypicality.llm import OpenAICompatibleScorer
from atypicality.llm.client import JsonClient, ServerFaultError

pytestmark = needs("httpx")

KEY = "sk-not/a+real=key&0123\\4567'89"
TIMEOUT = 0.15
PATIENCE = 15.0
"""Seconds within which such a deadline has passed, however slow the machine. The servers never stop."""
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


class RawServer:
    """Answers everyone with `first`, then with `again` and a pause for ever; where `first` is None it only listens."""

    def __init__(self):
        self.first, self.again, self.pause = b"", b"", 0.02
        self.received = b""
        self.stopped = threading.Event()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while not self.stopped.is_set():
                connection, _ = self.socket.accept()
                self.threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self.threads[-1].start()

    def _serve(self, connection):
        with connection, contextlib.suppress(OSError):
            if self.first is not None:
                self.received += connection.recv(65536)
                connection.sendall(self.first)
            while self.again and not self.stopped.wait(self.pause):
                connection.sendall(self.again)
            self.stopped.wait()

    def stop(self):
        self.stopped.set()
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def server():
    made = RawServer()
    yield made
    made.stop()


def client(port, *, scheme="http", timeout=TIMEOUT, max_bytes=2**20, host="127.0.0.1", key=None, max_retries=0):
    return JsonClient(
        f"{scheme}://{host}:{port}/v1",
        api_key_env=key,
        timeout=timeout,
        max_retries=max_retries,
        backoff=0.0,
        max_bytes=max_bytes,
        connections=2,
    )


def seconds_until_given_up(port, body=None, **options):
    made, started = client(port, **options), time.monotonic()
    try:
        with pytest.raises(ServerFaultError, match=r"gave no whole answer within 0\.15 s .tried 1 times"):
            made.post(body or {"prompt": "Hi"})
        return time.monotonic() - started
    finally:
        made.close()


NEVER_DONE = {
    "no answer": (b"", b""),
    "request not read": (None, b""),
    "status line by bytes": (b"HTTP/1.1 ", b"2"),
    "headers by bytes": (HEAD + b"X-Slow: ", b"a"),
    "headers without end": (HEAD, b"X: y\r\n"),
    "interim answers": (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "early hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
    "body by bytes": (HEAD + b"Content-Length: 100000\r\n\r\n", b" "),
    "chunks": (CHUNKED, b"1\r\n \r\n"),
    "a chunk's extension": (CHUNKED + b"1;", b"x"),
    "chunks with extensions": (CHUNKED, b"1;" + b"x" * 1000 + b"\r\n \r\n"),
    "trailers": (CHUNKED + b"0\r\n", b"X: y\r\n"),
    "body until the end": (HEAD + b"\r\n", b" "),
    "an error's body": (b"HTTP/1.1 503 Busy\r\nContent-Length: 9999\r\n\r\n", b"x"),
}


@pytest.mark.parametrize("name", NEVER_DONE)
def test_no_exchange_outlives_its_timeout(name, server):
    server.first, server.again = NEVER_DONE[name]
    body = {"prompt": "x" * 10**7} if name == "request not read" else None  # more than sockets hold
    assert TIMEOUT <= seconds_until_given_up(server.port, body) < PATIENCE


@pytest.mark.parametrize("name", ["interim answers", "early hints", "chunks with extensions"])
def test_no_flood_outlives_the_timeout(name, server):
    server.first, again = NEVER_DONE[name]
    server.again, server.pause = again * 100, 0.0
    assert TIMEOUT <= seconds_until_given_up(server.port, max_bytes=2**30) < PATIENCE


@pytest.mark.parametrize("again", [b"", b"\x16"], ids=["silent", "by bytes"])
def test_no_tls_handshake_outlives_the_timeout(again, server):
    server.first, server.again = (None, b"") if not again else (b"\x16\x03\x03\x40\x00", again)
    assert TIMEOUT <= seconds_until_given_up(server.port, scheme="https") < PATIENCE


def test_no_connection_attempt_outlives_the_timeout():
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1))
        for _ in range(4):  # nobody accepts: further attempts get no reply
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        assert TIMEOUT <= seconds_until_given_up(full.getsockname()[1]) < PATIENCE


def test_no_search_for_an_address_outlives_the_timeout(monkeypatch):
    found, real = threading.Event(), socket.getaddrinfo

    def slow(host, *more, **options):
        if "slow" in str(host):
            found.wait(PATIENCE + 5)
        return real("127.0.0.1", *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    started = time.monotonic()
    made = client(1, host="slow.localhost")
    try:
        with pytest.raises(ServerFaultError, match=r"gave no whole answer within 0\.15 s"):
            made.post({"prompt": "Hi"})
        assert time.monotonic() - started < PATIENCE
    finally:
        found.set()
        made.close()


def test_all_tries_together_end_when_the_documentation_says(server, monkeypatch):
    waits = []
    monkeypatch.setattr("atypicality.llm.client.time.sleep", waits.append)
    server.first = b"HTTP/1.1 503 Busy\r\nRetry-After: 1e300\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    made = client(server.port, timeout=60.0, max_retries=3)
    with contextlib.closing(made), pytest.raises(ServerFaultError, match="tried 4 times"):
        made.post({"prompt": "Hi"})
    assert waits == [60.0] * 3


def test_what_is_under_way_ends_with_the_client(server):
    server.first = None
    made, ended = client(server.port, timeout=600.0), []

    def ask():
        try:
            made.post({"prompt": "Hi"})
        except Exception as error:
            ended.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while len(server.threads) < 2:  # until it is connected
        time.sleep(0.01)
    made.close()
    asking.join(PATIENCE)
    assert len(ended) == 1


# answers that grow


def answered(data, *headers):
    lines = b"".join(header.encode() + b"\r\n" for header in headers)
    return HEAD + lines + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(data) + data


BOMB = gzip.compress(gzip.compress(bytes(2**26)))
CODINGS = [
    "gzip, gzip",
    "gzip",
    "deflate",
    "br",
    "zstd",
    "GZIP",
    "identity, gzip",
    "gzip,identity",
    "x-gzip",
    "unknown",
]


@pytest.mark.parametrize("coding", CODINGS)
def test_compressed_answers_are_refused_before_they_are_unpacked(coding, server):
    server.first = answered(BOMB, f"Content-Encoding: {coding}")
    made = client(server.port, timeout=60.0)
    tracemalloc.start()
    try:
        with contextlib.closing(made), pytest.raises(ServerFaultError, match=f"Content-Encoding {coding}, though"):
            made.post({"prompt": "Hi"})
        assert tracemalloc.get_traced_memory()[1] < 2**22  # 64 MiB unpacked
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("headers", [(), ("Content-Encoding: identity",), ("Content-Encoding: ",)], ids=str)
def test_plain_answers_are_read(headers, server):
    server.first = answered(b'{"a": 1}', *headers)
    with contextlib.closing(client(server.port, timeout=60.0)) as made:
        assert made.post({"prompt": "Hi"}) == {"a": 1}
    assert b"Accept-Encoding: identity\r\n" in server.received


def test_a_flood_is_read_up_to_the_limit(server):
    server.first, server.again, server.pause = CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n", 0.0
    with (
        contextlib.closing(client(server.port, timeout=60.0)) as made,
        pytest.raises(ServerFaultError, match="more than 1048576 bytes; not read further"),
    ):
        made.post({"prompt": "Hi"})


# keys that come back


def every(form):
    return "".join(form.format(ord(c)) for c in KEY)


def encoded(prefix=""):
    return base64.b64encode((prefix + KEY).encode()).decode()


SPELLINGS = {
    "plain": KEY,
    "upper case": KEY.upper(),
    "first half": KEY[: len(KEY) // 2],
    "second half": KEY[len(KEY) // 2 :],
    "percent": quote(KEY, safe=""),
    "percent, small digits": quote(KEY, safe="").lower(),
    "percent, every character": every("%{:02X}"),
    "repr": repr(KEY)[1:-1],
    "repr of bytes": repr(KEY.encode())[2:-1],
    "repr, every character": every("\\x{:02x}"),
    "JSON": json.dumps(KEY)[1:-1],
    "JSON, as PHP writes it": json.dumps(KEY)[1:-1].replace("/", "\\/"),
    "JSON, every character": every("\\u{:04X}"),
    "HTML": html.escape(KEY),
    "HTML, every character": every("&#{};"),
    "hexadecimal": KEY.encode().hex(),
    "base64": encoded(),
    "base64 after one character": encoded(":"),
    "base64 of the header": encoded("Bearer "),
    "base64 of a login": encoded("me:"),
    "base64 for addresses": base64.urlsafe_b64encode(KEY.encode()).decode(),
}


def shown_parts(spelling, message):
    return [spelling[i : i + 8] for i in range(len(spelling) - 7) if spelling[i : i + 8] in message]


@pytest.mark.parametrize("how", SPELLINGS)
@pytest.mark.parametrize("where", ["error", "refusal", "malformed", "status", "value", "coding"])
def test_no_spelling_of_the_key_comes_back_in_a_message(how, where, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    spelling = SPELLINGS[how]
    data = f"You sent {spelling} to us".encode()
    value = {"choices": [{"logprobs": {"tokens": ["a"] * 3, "token_logprobs": [None, spelling, -1]}}]}
    server.first = {
        "error": b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data),
        "refusal": b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data),
        "malformed": answered(data),
        "status": f"HTTP/1.1 {spelling}\r\n\r\n".encode(),
        "value": answered(json.dumps(value).encode()),
        "coding": answered(b"", f"Content-Encoding: {spelling}"),
    }[where]
    with (
        OpenAICompatibleScorer(
            f"http://127.0.0.1:{server.port}", "m", mode="echo", max_retries=0, timeout=60
        ) as scorer,
        pytest.raises(ServerFaultError, match=r"127\.0\.0\.1") as caught,
    ):
        scorer.score(["Hello"])
    assert KEY.encode() in server.received
    message = str(caught.value)
    begun = len(encoded("Bearer ")) - len(encoded()) if how.startswith("base64") else 0
    assert shown_parts(spelling[begun:], message) == []
    if where in ("error", "refusal", "malformed"):
        assert "You sent" in message


@pytest.mark.parametrize("length", [4000 - 12, 3990, 3999])
def test_a_key_that_is_cut_off_is_hidden_too(length, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    data = b" " * length + KEY.encode() + b"."
    server.first = b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
    with (
        contextlib.closing(client(server.port, timeout=60.0, key="OPENAI_API_KEY")) as made,
        pytest.raises(ServerFaultError, match="status 400") as caught,
    ):
        made.post({"prompt": "Hi"})
    assert shown_parts(KEY, str(caught.value)) == []


@pytest.mark.parametrize("bad", ["sk-one\ntwo-secret", "sk-one\rtwo-secret", "sk-one two-secret", "sk-\x7f-secret"])
@pytest.mark.parametrize("more", ["", "é", "\u202e", "\udcff"])
def test_what_cannot_be_a_key_is_refused_unseen_and_unsent(bad, more, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", bad + more)
    with (
        OpenAICompatibleScorer(f"http://127.0.0.1:{server.port}", "m", max_retries=0) as scorer,
        pytest.raises(ValueError, match="OPENAI_API_KEY must hold a key of printable ASCII") as caught,
    ):
        scorer.score(["Hello"])
    assert "secret" not in str(caught.value) + str(caught.value.__context__)
    assert server.received == b""


@pytest.mark.parametrize("name", [KEY, "", "A=B", "MY KEY", "\n"])
def test_a_key_given_as_the_name_of_its_variable_is_not_repeated(name):
    with pytest.raises(ValueError, match="api_key_env must be the name of an environment variable") as caught:
        OpenAICompatibleScorer("http://127.0.0.1:1", "m", api_key_env=name).score(["Hello"])
    assert not name.strip() or name not in str(caught.value)


@pytest.mark.parametrize("key", ["EMPTY", "x"])
def test_short_keys_are_hidden_whole(key, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    server.first = answered(f"<{key}>".encode())
    with (
        contextlib.closing(client(server.port, timeout=60.0, key="OPENAI_API_KEY")) as made,
        pytest.raises(ServerFaultError, match=r"malformed JSON: <\*\*\*>"),
    ):
        made.post({"prompt": "Hi"})
