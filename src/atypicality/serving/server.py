"""The service in a process of its own: a socket, signals, and a stop that answers what was asked."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from atypicality.serving.connection import LimitedProtocol

__all__ = ["run_app"]

MAX_CONNECTIONS = 1000
STOP_SECONDS = 30


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
