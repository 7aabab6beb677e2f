"""Requests that end at their deadline, whatever the other side does.

httpx limits the time of each read, and a server that sends a byte now and then, interim answers or extensions of a
chunk never exceeds that. Here a request is a task of an event loop, which is cancelled at its deadline whatever it is
doing: finding the address, connecting, agreeing on TLS, sending, or reading any part of the answer.
"""

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["ExchangeLoop"]

T = TypeVar("T")
GRACE = 5.0
"""Seconds that a loop has to cancel a task or to end; one whose thread is gone, as after a fork, needs them all."""


class ExchangeLoop:
    """An event loop in a thread of its own, with an asynchronous client that lives as long; tasks come from any thread.

    >>> loop = ExchangeLoop(asyncio.Lock())
    >>> loop.run(asyncio.sleep(0.01, "done"), 60.0)
    'done'
    >>> loop.run(asyncio.sleep(60), 0.01)
    Traceback (most recent call last):
    TimeoutError
    >>> loop.close()
    """

    def __init__(self, client: Any) -> None:
        ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(_serve(client, ready)), name="atypicality-exchanges", daemon=True
        )
        self._thread.start()
        self._loop, stop = ready.result()
        self._stop = weakref.finalize(self, self._loop.call_soon_threadsafe, stop.set)
        self._stop.atexit = False  # the thread ends with the interpreter, which can start no more of what asyncio needs

    def run(self, exchange: Coroutine[Any, Any, T], timeout: float) -> T:
        """The result of a coroutine, or TimeoutError once `timeout` seconds have passed."""
        task = asyncio.run_coroutine_threadsafe(asyncio.wait_for(exchange, timeout), self._loop)
        try:
            return task.result(timeout + GRACE)
        finally:
            task.cancel()  # nothing, unless the wait was interrupted

    def close(self) -> None:
        """Cancel what is under way, leave the client and end the thread."""
        self._stop()
        self._thread.join(GRACE)


async def _serve(client: Any, ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    stop = asyncio.Event()
    async with client:
        ready.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
