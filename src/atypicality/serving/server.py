"""The service in a process of its own: a socket, signals, a stop that answers what was asked, connections with limits.

uvicorn's own protocol would wait forever for what comes before a body.
"""

import asyncio
import contextlib
import http
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["run_app"]

HEADER_BYTES = 64 * 1024
MAX_CONNECTIONS = 1000
STOP_SECONDS = 30


class LimitedProtocol(HttpToolsProtocol):
    """A connection whose request line and headers must come soon and be short, and that may be closed on one side.

    A client that closes its side after a whole request is answered; one that does so in the middle is told.
    """

    header_seconds = 10.0
    _header_timer: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _in_header = False

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait_for_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Begin to count the header of the next request."""
        super().on_message_begin()
        self._in_header, self._header_bytes = True, 0
        self._wait_for_header()

    def on_headers_complete(self) -> None:
        """Hand the request on."""
        self._in_header = False
        self._stop_waiting()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Take in bytes; refuse a header that does not end."""
        super().data_received(data)
        self._header_bytes += len(data)
        if self._in_header and self._header_bytes > HEADER_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the header of a request may have {HEADER_BYTES} bytes.")

    def eof_received(self) -> bool:
        """Answer what is whole; say so where a request was cut short."""
        waiting = self.cycle is not None and not self.cycle.response_complete
        if self._in_header or (waiting and self.cycle.more_body):
            self._refuse(400, "the request ended before its body did: the connection was closed on one side.")
        elif waiting:
            self.cycle.keep_alive = False
            return True
        return False

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP."""
        self._refuse(400, "this is not a request in HTTP/1.1.")

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that is idle, also one that does not take its answer."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _wait_for_header(self) -> None:
        self._stop_waiting()
        self._header_timer = self.loop.call_later(self.header_seconds, self._header_is_late)

    def _stop_waiting(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _header_is_late(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, f"the header of a request must come within {self.header_seconds:g} seconds.")

    def _refuse(self, status: int, message: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json.dumps({"error": message}).encode()
        head = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()


class _Server(uvicorn.Server):
    """A server that ends without an error when it is asked to end, and reloads when it is asked to."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if os.name != "posix":
            with super().capture_signals():
                yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        reload = self.config.app.state.reload
        tasks: set[asyncio.Task[None]] = set()
        loop.add_signal_handler(signal.SIGHUP, lambda: tasks.add(loop.create_task(reload())))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # one that came since the start is heard now
        yield


def run_app(app: Starlette, *, host: str, port: int, header_seconds: float, started: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then answer what was asked and return; SIGHUP reads the bundle anew.

    Port 0 takes a free one; `started` is called with the address once connections are taken. The header of a request
    must come within `header_seconds`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=2048) as listening:
        address = listening.getsockname()[:2]
        config = uvicorn.Config(
            app,
            http=type("Protocol", (LimitedProtocol,), {"header_seconds": header_seconds}),
            ws="none",
            log_config=None,
            log_level="error",  # a bad request is the client's, and is counted
            access_log=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        started(f"http://{address[0] if ':' not in address[0] else f'[{address[0]}]'}:{address[1]}")
        _Server(config).run(sockets=[listening])
