"""JSON over HTTP to a server that is not trusted: deadlines, retries, a limit on answers, and a key that never leaks.

The key is read from the environment for each request and is put into one header of requests to the address that the
user gave. Redirects are not followed, so no other host ever sees it. Answers come as they are: compressed ones, which
may unpack to any size, are refused.
"""

import asyncio
import ipaddress
import json
import re
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from atypicality.llm.exchange import ExchangeLoop
from atypicality.llm.keys import hide_key, read_key
from atypicality.terminal import printable
from atypicality.validation import require

__all__ = ["JsonClient", "NoAccessError", "ServerFaultError", "check_url"]

MAX_BACKOFF = 60.0
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
Answer = tuple[int, Mapping[str, str], bytes]  # status, headers and body


class ServerFaultError(ConnectionError):
    """A server that failed or cannot be trusted; the message names its fault."""


class NoAccessError(ServerFaultError):
    """Nobody answers, or not to us: asking in another way would not help."""


class PassingFaultError(ServerFaultError):
    """A fault that may be gone at the next try; `lasting` is what it becomes after the last one."""

    def __init__(self, message: str, *, wait: float = 0.0, lasting: type[ServerFaultError] = ServerFaultError) -> None:
        super().__init__(message)
        self.wait = wait
        self.lasting = lasting


class JsonClient:
    """Posts JSON objects to one endpoint of a server and gives back its JSON objects, from any number of threads.

    The parameters are those of `OpenAICompatibleScorer`; `connections` is its `concurrency`. Faults that pass are no
    connection, a time-out, the statuses in `RETRIED` and malformed JSON.
    """

    def __init__(
        self,
        url: str,
        endpoint: str = "completions",
        *,
        api_key_env: str | None,
        timeout: float,
        max_retries: int,
        backoff: float,
        max_bytes: int,
        connections: int,
    ) -> None:
        httpx = require("httpx", feature="asking a server (part of the extra 'atypicality[llm]')")
        self._url = check_url(url, endpoint)
        self._api_key_env = api_key_env
        self._key()  # one that cannot be a key is refused before anything is opened
        self._timeout, self._max_retries, self._backoff, self._max_bytes = timeout, max_retries, backoff, max_bytes
        self._http = httpx
        secure = self._url.startswith("https:")
        self._client = httpx.AsyncClient(
            timeout=None,  # the deadline of the whole exchange takes its place
            follow_redirects=False,
            trust_env=secure,  # a proxy for plain http would read the key
            verify=secure or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),  # trusts nobody: no certificates are read
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        )
        self._loop = ExchangeLoop(self._client)

    def close(self) -> None:
        """Close the connections."""
        self._loop.close()

    def post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The server's answer, or ServerFaultError after the last try."""
        wait = self._backoff
        for attempt in range(self._max_retries + 1):
            try:
                return self._once(body)
            except PassingFaultError as fault:
                if attempt == self._max_retries:
                    raise fault.lasting(f"{fault} (tried {attempt + 1} times)") from None
                time.sleep(min(max(wait, fault.wait), MAX_BACKOFF))
                wait *= 2
        raise AssertionError("unreachable: the last try returns or raises")

    def clean(self, text: str) -> str:
        """What a server says, fit for an error: short, printable, without the key."""
        plain = printable(hide_key(" ".join(text.split()), self._key()))
        return plain if len(plain) <= 200 else f"{plain[:197]}..."

    def _once(self, body: Mapping[str, Any]) -> dict[str, Any]:
        status, headers, data = self._exchanged(body)
        if status != 200:
            self._refuse(status, headers, data)
        try:
            parsed = json.loads(data)
        except (ValueError, RecursionError):
            raise PassingFaultError(f"{self._url} answered with malformed JSON: {self.clean(_text(data))}") from None
        if not isinstance(parsed, dict):
            raise ServerFaultError(f"{self._url} answered with a JSON {type(parsed).__name__}, not an object")
        return parsed

    def _exchanged(self, body: Mapping[str, Any]) -> Answer:
        """Status, headers and bytes of the answer; errors are cut from their causes, whose requests carry the key."""
        try:
            return self._loop.run(self._exchange(body, self._authorization()), self._timeout)
        except (TimeoutError, self._http.TimeoutException):
            raise PassingFaultError(f"{self._url} gave no whole answer within {self._timeout:g} s") from None
        except self._http.ConnectError as error:
            said = f"{self._url} cannot be reached: {self.clean(str(error))}. Is the server up, and the address right?"
            raise PassingFaultError(said, lasting=NoAccessError) from None
        except self._http.InvalidURL:  # a redirect is not followed, but read
            said = f"{self._url} redirects to what is no address, which is not followed. Give its address."
            raise NoAccessError(said) from None
        except self._http.TransportError as error:
            raise PassingFaultError(f"{self._url} broke the connection: {self.clean(str(error))}") from None

    async def _exchange(self, body: Mapping[str, Any], authorization: Mapping[str, str]) -> Answer:
        opened = []

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            if event == "connection.connect_tcp.complete":
                opened.append(info["return_value"])

        asked = {"json": body, "headers": authorization, "extensions": {"trace": trace}}
        try:
            async with self._client.stream("POST", self._url, **asked) as answer:
                return answer.status_code, answer.headers, await self._read(answer)
        except asyncio.CancelledError:
            for connection in opened:  # httpcore leaves open what is cancelled while it agrees on TLS
                await connection.aclose()
            raise

    async def _read(self, answer: Any) -> bytes:
        coding = answer.headers.get("content-encoding", "")
        if coding.strip().lower() not in ("", "identity"):
            raise ServerFaultError(
                f"{self._url} answered with the Content-Encoding {self.clean(coding)}, though the request accepts "
                "identity alone. Turn its compression off."
            )
        if answer.headers.get("content-type", "").strip().lower().startswith("text/event-stream"):
            raise ServerFaultError(f"{self._url} streams events, which was not asked for. Turn streaming off.")
        data = bytearray()
        async for piece in answer.aiter_raw():
            data += piece
            if len(data) > self._max_bytes:
                raise ServerFaultError(f"{self._url} answered with more than {self._max_bytes} bytes; not read further")
        return bytes(data)

    def _refuse(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        said = f"{self._url} answered with status {status}: {self.clean(_text(data))}"
        if 300 <= status < 400:
            raise NoAccessError(f"{self._url} redirects (status {status}), which is not followed. Give its address.")
        if status in RETRIED:
            raise PassingFaultError(said, wait=_seconds(headers.get("retry-after")))
        if status in (401, 403):
            source = f"the environment variable {self._api_key_env}" if self._api_key_env else "no variable"
            state = "" if self._key() else ", which is not set" if self._api_key_env else " (api_key_env=None)"
            raise NoAccessError(
                f"{self._url} refuses access (status {status}); the key is read from {source}{state}. "
                f"The server says: {self.clean(_text(data))}"
            )
        raise ServerFaultError(said)

    def _authorization(self) -> dict[str, str]:
        key = self._key()
        if key and not _is_private(self._url):
            raise NoAccessError(
                f"{self._url} is plain http to another machine, where {self._api_key_env} would travel in the clear. "
                "Use https, or pass api_key_env=None."
            )
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _key(self) -> str:
        return read_key(self._api_key_env)


def check_url(url: str, endpoint: str = "completions") -> str:
    """The address of an endpoint, from that of a server or of its completions; one with credentials is refused.

    >>> check_url("http://localhost:8000/v1/"), check_url("http://localhost:8000/v1/completions", "chat/completions")
    ('http://localhost:8000/v1/completions', 'http://localhost:8000/v1/chat/completions')
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of a port or an IPv6 address; its message may repeat a password
        known = False
    if not known or not re.fullmatch("[!-~]+", url):
        raise ValueError(
            "url must start with http:// or https:// and name a host, and perhaps a port, in printable ASCII "
            "characters, as in http://localhost:8000/v1."
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError(
            "url must hold no user name, password or query: keys come from the environment (see api_key_env)."
        )
    path = re.sub("(/chat)?/completions$", "", parts.path.rstrip("/"))
    return f"{parts.scheme}://{parts.netloc}{path}/{endpoint}"


def _is_private(url: str) -> bool:
    """Whether nobody on the way can read what is sent."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost" or host.endswith(".localhost")
    return parts.scheme == "https" or loopback


def _text(data: bytes) -> str:
    return data[:4000].decode("utf-8", "replace")


def _seconds(value: str | None) -> float:
    try:
        return max(0.0, float(value or 0))
    except ValueError:  # an HTTP date: fall back on our own waiting
        return 0.0
