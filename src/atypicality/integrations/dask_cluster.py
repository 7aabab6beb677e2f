"""Work on a Dask cluster: who runs it, how partial results meet, and how a refused input comes back.

Every task is a pure function of its inputs, so that Dask may run it again elsewhere when a worker is lost. A task that
refuses its input returns the error instead of raising it: it travels up the tree like a result, the one of the first
rows wins whichever worker was faster, and it is raised here as the error that the same call on one machine gives.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from atypicality import blocks
from atypicality.validation import numbered, require

dask = require("dask", extra="dask", feature="atypicality.integrations.dask")
require("dask.array", extra="dask", feature="atypicality.integrations.dask")
distributed = require("distributed", extra="dask", feature="atypicality.integrations.dask")

__all__ = ["PartPlace", "compute", "connected", "known_client", "lazy_array", "persist", "shared", "task", "tree"]

REFUSED = (FileNotFoundError, TypeError, ValueError)
"""Errors about input, built-in ones that every machine can read back."""

FAN_IN = 4  # partial results that one task merges: few, since a worker holds all of them at once
RETRIES = 2  # times that a task is run again after an error that is not about its input, such as a file system's
PATIENCE = 30.0  # seconds to wait for the first worker of a cluster
LARGE_GRAPH = "4GB"
"""Estimators and labels travel with the graph on purpose: they can then be sent again when a worker is lost."""


@dataclass(frozen=True)
class PartPlace:
    """Where a part of the rows lies: the number of its first row in the whole, and its file, if it has one."""

    first_row: int
    file: str = ""
    first_in_file: int = 0

    @contextlib.contextmanager
    def named(self, skipped: int = 0) -> Iterator[None]:
        """Let errors count rows from the start of the whole, and name the file; `skipped` rows of the part are left."""
        try:
            with numbered(lambda row: row + self.first_row + skipped):
                yield
        except (TypeError, ValueError) as error:
            where = f" Row {self.first_row} is row {self.first_in_file} of {self.file!r}." if self.file else ""
            raise _refusal(error, where) from None


def task(function: Callable[..., Any]) -> Any:
    """A function as a task: refusals pass through it, errors about input become refusals, and it uses one thread.

    Dask runs as many tasks at once as a worker has threads, so that a task that used more would fight the others.
    `later(*args)` of a task is a lazy call, of which some arguments may be lazy.
    """

    @functools.wraps(function)
    def guarded(*args: Any) -> Any:
        if (refused := _first_refusal(args)) is not None:
            return refused
        with blocks.settings(n_threads=1), blocks.single_threaded_blas():
            try:
                return function(*args)
            except REFUSED as error:
                return _refusal(error)

    vars(guarded)["later"] = dask.delayed(guarded, pure=False)  # a key for every call: a file may have changed
    return guarded


def tree(values: Sequence[Any], merge: Callable[[Any, Any], Any]) -> Any:
    """One lazy value from many by a fixed tree of `merge(one, next)`: who finishes first does not matter."""
    level = list(values)
    while len(level) > 1:
        level = [_fold.later(merge, level[i : i + FAN_IN]) for i in range(0, len(level), FAN_IN)]
    return level[0]


@task
def _fold(merge: Callable[[Any, Any], Any], values: list[Any]) -> Any:
    total = values.pop(0)
    while values:  # each is let go as soon as it has been added
        total = merge(total, values.pop(0))
    return total


def compute(client: Any, values: Any) -> Any:
    """The result of a lazy value, or of a list of them, from the cluster; refusals are raised."""
    with _quiet_graphs():
        futures = client.compute(values, retries=RETRIES)
    try:
        results = client.gather(futures)
    except distributed.KilledWorker as error:
        raise RuntimeError(
            f"workers died again and again: {error} Their memory is the first thing to check: give them more, or the "
            "rows in smaller chunks."
        ) from error
    settled(_first_refusal([results]))
    return results


def persist(client: Any, values: Any) -> Any:
    """Lazy values that are computed once and kept on the workers, as long as something here refers to them."""
    with _quiet_graphs():
        return client.persist(values, retries=RETRIES)


def settled(value: Any) -> Any:
    """The value itself, unless it is a refusal: that is raised."""
    if isinstance(value, REFUSED):
        raise _refusal(value)
    return value


def lazy_array(parts: Sequence[Any], lengths: Sequence[int], shape: tuple[int, ...] = (), dtype: Any = float) -> Any:
    """A lazy Dask array (n, *shape) from lazy parts of its rows; a refusal is raised when it is computed."""
    raised = dask.delayed(settled, pure=False)
    made = [dask.array.from_delayed(raised(part), (n, *shape), dtype) for part, n in zip(parts, lengths, strict=True)]
    return dask.array.concatenate(made)


def known_client(client: Any = None) -> Any:
    """The client that was given, or the one that is current, or None."""
    if client is not None:
        if not isinstance(client, distributed.Client):
            raise TypeError(f"client must be a distributed.Client; got {type(client).__name__}.")
        if client.asynchronous:
            raise TypeError(
                "client must not be asynchronous: its results could not be waited for here. Make one with "
                "Client(address), or run this call in a thread."
            )
        return client
    try:
        return distributed.default_client()
    except ValueError:
        return None


@contextlib.contextmanager
def connected(client: Any = None) -> Iterator[Any]:
    """A client with at least one worker: that of the user, or of a local cluster that ends with the block."""
    known = known_client(client)
    if known is not None:
        _wait_for_workers(known)
        yield known
        return
    # threads, not processes: a script needs no guard around its main part, and rows are not copied
    made = dict(
        n_workers=1,
        threads_per_worker=blocks.n_threads(work=blocks.PRODUCTS),
        processes=False,
        dashboard_address="127.0.0.1:0",
    )
    with distributed.LocalCluster(**made) as cluster, distributed.Client(cluster, set_as_default=False) as own:
        yield own


def shared(client: Any, value: Any) -> Any:
    """A large value that many tasks read, as one node of the graph; sent to the cluster once where there is one."""
    if client is None:
        return dask.delayed(value, traverse=False)
    with _quiet_graphs():  # not scattered: a submitted value is sent again when the worker that holds it is lost
        return dask.delayed(client.submit(_itself, value, pure=False, retries=RETRIES))


def _quiet_graphs() -> Any:
    """No advice from Dask about large graphs while one of ours is sent."""
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": LARGE_GRAPH})


def _itself(value: Any) -> Any:
    return value


def _refusal(error: Exception, more: str = "") -> Exception:
    kind = next(kind for kind in REFUSED if isinstance(error, kind))
    return kind(f"{error}{more}")


def _first_refusal(values: Sequence[Any]) -> Exception | None:
    for value in values:
        if isinstance(value, REFUSED):
            return value
        if isinstance(value, list) and (found := _first_refusal(value)) is not None:
            return found
    return None


def _wait_for_workers(client: Any) -> None:
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError as error:
        raise TimeoutError(
            f"client has no workers after {PATIENCE:g} seconds. Start some (dask worker ADDRESS, or cluster.scale(2)), "
            "or leave client out for a local cluster."
        ) from error
