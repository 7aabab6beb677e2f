"""Progress bars: the one place that draws them. On a terminal one bar on stderr, in a pipe or a log nothing."""

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["track", "working"]

T = TypeVar("T")

_drawing = threading.Lock()


def track(items: Iterable[T], description: str, *, total: int | None = None) -> Iterator[T]:
    """Yield `items`, with a bar while they last if stderr is a terminal.

    Only the outermost loop draws: a loop inside another one, or on another thread, stays silent. The bar
    disappears when the loop ends.

    Parameters
    ----------
    items : iterable
    description : str
        What is being done, in a few words.
    total : int, optional
        How many items there will be; by default their length where they have one.

    >>> list(track([1, 2, 3], "Counting"))
    [1, 2, 3]
    """
    if not sys.stderr.isatty() or not _drawing.acquire(blocking=False):
        yield from items
        return
    try:
        yield from _drawn(items, description, total)
    finally:
        _drawing.release()


def _drawn(items: Iterable[T], description: str, total: int | None) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import Progress  # here, because a pipe should not pay for the import

    with Progress(console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(items, total=total, description=description)


@contextlib.contextmanager
def working(description: str) -> Iterator[None]:
    """A sign of life while the block runs, if stderr is a terminal; for work whose length nobody knows."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(description):
        yield
