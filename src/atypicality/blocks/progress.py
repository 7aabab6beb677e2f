"""Progress: the one place that shows it. On a terminal one bar on stderr; off one, in a command, a line now and then.

The library does not draw by itself, and writes nothing into a pipe or a log; a command says there what it does every
`QUIET` seconds. Inside `working` every pass over rows that lasts is seen through
`blocks.watching`: how many rows are done, how many a second, and how long the rest of the pass will take.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sized
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

from atypicality import blocks
from atypicality.terminal import printable, reporting

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["stage", "track", "working"]

T = TypeVar("T")

PATIENCE = 0.3
"""Seconds before a pass is worth a bar."""
REDRAW = 0.1
"""Seconds between two looks at the rows."""
QUIET = 25.0
"""Seconds between two lines off a terminal, so that a log that is read every 30 has a new one."""

_drawing = threading.Lock()


def track(items: Iterable[T], description: str, *, total: int | None = None, unit: str = "steps") -> Iterator[T]:
    """Yield `items`, with a bar while they last if stderr is a terminal.

    Only the outermost loop draws: a loop inside another one, or on another thread, stays silent. The bar
    disappears when the loop ends. Off a terminal a command prints a line every `QUIET` seconds. The `total` is by
    default the length of the items, where they have one; `unit` is what they are, in the plural.

    >>> list(track([1, 2, 3], "Counting", unit="sheep"))
    [1, 2, 3]
    """
    if not _shown() or not _drawing.acquire(blocking=False):
        yield from items
        return
    try:
        with _display() as progress:
            total = total if total is not None else len(items) if isinstance(items, Sized) else None
            task, start = progress.add_task(description, total=total, note=""), time.monotonic()
            for done, item in enumerate(items, start=1):
                yield item
                progress.update(task, completed=done, note=note(done, total, time.monotonic() - start, f" {unit}"))
    finally:
        _drawing.release()


@contextlib.contextmanager
def working(description: str) -> Iterator[None]:
    """A sign of life while the block runs: on a terminal a bar for every pass over rows that lasts, off one a line."""
    if not _shown() or not _drawing.acquire(blocking=False):
        yield
        return
    try:
        with _display() as progress:
            bar = _RowBar(progress, description)
            token = _bar.set(bar)
            try:
                with blocks.watching(bar.watch):
                    yield
            finally:
                _bar.reset(token)
    finally:
        _drawing.release()


def stage(description: str) -> None:
    """Say what is being done now, where somebody is `working`; elsewhere nothing happens."""
    if (bar := _bar.get()) is not None:
        bar.describe(printable(description))


class _RowBar:
    """The bar of the pass that is under way; passes inside it, and on its threads, stay silent."""

    def __init__(self, progress: "Progress | _Lines", description: str) -> None:
        self._progress, self._busy = progress, threading.Lock()
        self._task = progress.add_task(description, total=None, note="")

    def describe(self, description: str) -> None:
        self._progress.update(self._task, description=description)

    def watch(self, results: Iterator[T], n_rows: int, block: int) -> Iterator[T]:
        """Pass on the results of blocks of rows, and draw how far they are."""
        if not self._busy.acquire(blocking=False):
            yield from results
            return
        try:
            start = drawn = time.monotonic()
            for index, result in enumerate(results, start=1):
                yield result
                now = time.monotonic()
                if now - start > PATIENCE and now - drawn > REDRAW:
                    done, drawn = min(index * block, n_rows), now
                    words = note(done, n_rows, now - start, " rows")
                    self._progress.update(self._task, total=n_rows, completed=done, note=words)
        finally:
            self._progress.update(self._task, total=None, completed=0, note="")
            self._busy.release()


_bar: ContextVar[_RowBar | None] = ContextVar("atypicality_bar", default=None)


def note(done: int, total: int | None, seconds: float, unit: str = "") -> str:
    """How far a loop is, in words; how long is left is known where the total is.

    >>> note(250_000, 1_000_000, 10.0, " rows")
    '250,000 of 1,000,000 rows, 25,000 rows/s, 0:00:30 left'
    """
    rate = done / max(seconds, 1e-9)
    speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
    if total is None:
        return f"{done:,}{unit}, {speed}{unit}/s"
    left = timedelta(seconds=round(max(total - done, 0) / max(rate, 1e-9)))
    return f"{done:,} of {total:,}{unit}, {speed}{unit}/s, {left} left"


class _Lines:
    """What a bar would show, as a line on stderr every `QUIET` seconds; short work prints none."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._start, self._end = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def add_task(self, description: str, **fields: Any) -> Any:
        self._fields = {"description": description, **fields}

    def update(self, _task: Any, **fields: Any) -> None:
        self._fields = self._fields | fields

    def _print(self) -> None:
        while not self._end.wait(QUIET):
            fields, seconds = self._fields, timedelta(seconds=round(time.monotonic() - self._start))
            far = ", ".join(part for part in (fields.get("note"), f"{seconds} so far") if part)
            print(f"atypicality: {printable(fields.get('description', 'working'))}: {far}", file=sys.stderr, flush=True)


def _shown() -> bool:
    return reporting.get() or sys.stderr.isatty()


def _display() -> "Progress | _Lines":
    if not sys.stderr.isatty():
        return _Lines()
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # a pipe should not pay for the import

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),  # names of methods are among it
        BarColumn(24),
        TextColumn("{task.fields[note]}", markup=False),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
