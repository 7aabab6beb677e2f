"""Rows of requests that wait at the same time are answered together, by one thread; no more wait than is allowed."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from atypicality.outputs import ModelOutputs

__all__ = ["Batcher", "BusyError"]

BATCH_ROWS = 1024
"""Rows of several requests that are answered at once: enough for the full rate, few enough to wait little."""


class BusyError(Exception):
    """More rows wait than the service allows."""


class Batcher:
    """A queue of requests before one thread, in which at most `max_waiting` rows wait.

    `answer` is called in the thread with a list of outputs and returns as many results, an exception for a failure.
    """

    def __init__(self, answer: Callable[[Sequence[ModelOutputs]], list[Any]], max_waiting: int) -> None:
        self._answer, self._max_waiting = answer, max_waiting
        self._waiting: deque[tuple[ModelOutputs, asyncio.Future[Any]]] = deque()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._work: asyncio.Task[None] | None = None
        self.rows = 0

    async def submit(self, outputs: ModelOutputs) -> Any:
        """The result for these outputs; raises the exception that stands in its place."""
        if self.rows and self.rows + len(outputs) > self._max_waiting:
            raise BusyError(f"{self.rows} rows wait already, and at most {self._max_waiting} may. Try again later.")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((outputs, future))
        self.rows += len(outputs)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._empty())
        result = await future
        if isinstance(result, Exception):
            raise result
        return result

    async def _empty(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            requests = [outputs for outputs, _ in batch]
            try:
                results = await asyncio.get_running_loop().run_in_executor(self._pool, self._answer, requests)
            except Exception as error:
                results = [error] * len(batch)
            self.rows -= sum(map(len, requests))
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():  # its client may have gone
                    future.set_result(result)

    def _next_batch(self) -> list[tuple[ModelOutputs, asyncio.Future[Any]]]:
        batch = [self._waiting.popleft()]
        rows = len(batch[0][0])
        while self._waiting and rows + len(self._waiting[0][0]) <= BATCH_ROWS:
            batch.append(self._waiting.popleft())
            rows += len(batch[-1][0])
        return batch

    def close(self) -> None:
        """End the thread when what waits is answered."""
        self._pool.shutdown(wait=True)
