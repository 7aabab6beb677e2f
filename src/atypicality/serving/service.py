"""The routes of the service: health, metadata, inference, /predict, reload and metrics, each under its limits."""

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from atypicality._version import __version__
from atypicality.head.reliability import Reliability
from atypicality.outputs import ModelOutputs
from atypicality.serving.batching import Batcher, BusyError
from atypicality.serving.metrics import Metrics
from atypicality.serving.requests import datatype, output_tensors, read_inference, write_inference
from atypicality.serving.store import HeadStore, Served
from atypicality.validation.refusals import is_refusal

__all__ = ["Limits", "make_app"]

LARGE_BYTES = 64 * 1024  # bodies from here on are read in a thread: other requests do not wait for it
LINGER_SECONDS = 2.0
"""How long the rest of a body that is too large is taken in and dropped: a client that still sends hears no answer."""
MISSED = 2  # looks in a row at which there is no bundle that count as a failed reload: a copy takes a moment
DISCONNECTED = 499  # the status in the metrics of a request whose client went away, as other servers write it
PLAIN, INFER = "/predict", "/infer"
MODELS = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
ROW_ROUTES = (PLAIN, *(path + INFER for path in MODELS))
log = logging.getLogger("atypicality.serving")

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Limits:
    """What a request may cost.

    Parameters
    ----------
    max_bytes : int, default=16 MiB
        Of a body.
    max_rows : int, default=10,000
        Of a request.
    max_waiting : int, default=100,000
        Rows of all requests that wait; others are told to come back.
    seconds : float, default=10
        To send a body, and again for an answer to it.

    Examples
    --------
    >>> Limits(max_rows=100).max_rows
    100
    """

    max_bytes: int = 16 * 2**20
    max_rows: int = 10_000
    max_waiting: int = 100_000
    seconds: float = 10.0


def make_app(
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    max_risk: float | None = None,
    sha256: str | None = None,
    limits: Limits | None = None,
    watch: float = 0.0,
    control: bool = False,
) -> Starlette:
    """The ASGI application that serves a saved head; any ASGI server can run it.

    Parameters
    ----------
    folder : path
        Of a bundle.
    name : str, optional
        Of the model in the protocol; by default that of the folder, as it is given: of a link its own.
    max_risk : float, optional
        As in `ReliabilityHead.predict`: answers then say which predictions are accepted.
    sha256 : str, optional
        As in `load`: serves this head and no other.
    limits : Limits, optional
    watch : float, default=0
        Seconds between two looks for a new bundle in the folder; 0 never looks.
    control : bool, default=False
        Whether clients may ask for a reload, by the protocol's `repository/models/NAME/load`.

    Returns
    -------
    starlette.applications.Starlette

    Examples
    --------
    >>> import tempfile
    >>> from starlette.testclient import TestClient
    >>> from atypicality.datasets import load_fashion_mnist
    >>> from atypicality.head import ReliabilityHead
    >>> train, calibration, test = load_fashion_mnist()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sha256 = ReliabilityHead().fit(train=train, calibration=calibration).save(folder)
    ...     with TestClient(make_app(folder, name="clothes")) as client:
    ...         row = {"logits": test.logits[0].tolist(), "embeddings": test.embeddings[0].tolist()}
    ...         client.post("/predict", json={"rows": [row]}).json()["rows"][0]["label"]
    'Ankle boot'
    """
    store = HeadStore(folder, max_risk=max_risk, sha256=sha256)
    name = name or Path(os.path.abspath(folder)).name  # links stay: what clients call must not change with a new head
    return _Service(store, name, limits or Limits(), watch, control).app()


class _RefusedError(Exception):
    """A request that is answered with a status and a sentence; the rest of its body may still be on its way."""

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status, self.close = status, close


class _Service:
    """A head, its queue and its counters."""

    def __init__(self, store: HeadStore, name: str, limits: Limits, watch: float, control: bool) -> None:
        self.store, self.name, self.limits, self.watch, self.control = store, name, limits, watch, control
        self.batcher = Batcher(self._answers, limits.max_waiting)
        self.metrics = Metrics(lambda: self.batcher.rows, ROW_ROUTES)
        self._say_which(store.current)
        self._reloading = asyncio.Lock()

    def app(self) -> Starlette:
        handlers: list[tuple[str, str, Handler]] = [
            ("GET", "/v2/health/live", self.live),
            ("GET", "/v2/health/ready", self.live),
            ("GET", "/v2", self.server),
            ("GET", "/metrics", self.counted),
            ("POST", PLAIN, self.predict),
            ("POST", "/v2/repository/models/{name}/load", self.reload_on_request),
        ]
        for path in MODELS:
            handlers.append(("GET", path, self.model))
            handlers.append(("GET", path + "/ready", self.model_ready))
            handlers.append(("POST", path + INFER, self.infer))
        routes = [Route(path, self._measured(path, handler), methods=[method]) for method, path, handler in handlers]
        app = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={HTTPException: _no_route})
        app.state.reload = self.reload
        app.state.model = lambda: f"{self.name} {self.store.current.version}"
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(self._watch()) if self.watch else None
        yield
        if watching is not None:
            watching.cancel()
        self.batcher.close()

    def _measured(self, route: str, handler: Handler) -> Handler:
        """A handler whose every end is a response and is counted."""

        async def measured(request: Request) -> Response:
            start = time.perf_counter()
            response = await self._answered(handler, request)
            self.metrics.request(route, response.status_code, time.perf_counter() - start)
            return response

        return measured

    async def _answered(self, handler: Handler, request: Request) -> Response:
        try:
            return await handler(request)
        except _RefusedError as error:
            return _error(error.status, str(error), close=error.close)
        except BusyError as error:
            return _error(429, str(error), headers={"retry-after": "1"})
        except ClientDisconnect:
            return Response(status_code=DISCONNECTED)
        except Exception as error:
            if is_refusal(error):
                return _error(400, str(error))
            log.exception("%s failed", request.url.path)
            return _error(500, "the service failed on this request; its log says why.")

    # Answers

    def _answers(self, requests: Any) -> list[Any]:
        """The answers to several requests by the head that is served now, each with its version; in a thread."""
        served = self.store.current
        found = served.judge.answers(requests, seen=self.metrics.answer)
        return [answer if isinstance(answer, Exception) else (answer, served) for answer in found]

    async def _judged(self, outputs: Any) -> tuple[Reliability, Served]:
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await self.batcher.submit(outputs)  # type: ignore[no-any-return]
        except TimeoutError:
            message = f"no answer within {self.limits.seconds:g} seconds. Try again later."
            raise _RefusedError(503, message) from None

    async def predict(self, request: Request) -> Response:
        """Plain JSON: rows in, rows out."""
        body = await self._body(request)
        rows = await _aside(len(body), self.store.current.judge.read, body, self.limits.max_rows)
        answer, served = await self._judged(rows)
        if isinstance(rows, ModelOutputs):  # whose answers have no ids: rows of several requests went together
            answer = Reliability(**vars(answer) | {"ids": rows.ids})
        return _raw_json(await _aside(len(body), _rows_text, answer, self.name, served.version))

    async def infer(self, request: Request) -> Response:
        """The protocol's inference."""
        self._check_model(request)
        length = request.headers.get("inference-header-content-length")
        body = await self._body(request)
        wanted = await _aside(len(body), read_inference, body, length, self.limits.max_rows)
        answer, served = await self._judged(wanted.outputs)
        content, size = await _aside(len(body), write_inference, answer, wanted, self.name, served.version)
        if size is None:
            return _raw_json(content)
        headers = {"inference-header-content-length": str(size)}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def _body(self, request: Request) -> bytes:
        """The body, refused as soon as it is known to be too large or too slow."""
        limit, length = self.limits.max_bytes, request.headers.get("content-length", "0")
        if "content-encoding" in request.headers:
            raise _RefusedError(415, "a body must not be compressed.", close=True)
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                if int(length) > limit:
                    raise _too_large(limit)
                async for part in request.stream():
                    size += len(part)
                    if size > limit:
                        raise _too_large(limit)
                    parts.append(part)
        except TimeoutError:
            message = f"a body must come within {self.limits.seconds:g} seconds."
            raise _RefusedError(408, message, close=True) from None
        except _RefusedError:
            await _drop_rest(request)
            raise
        return b"".join(parts)

    # The protocol's other routes

    async def live(self, request: Request) -> Response:
        """Whether the service runs: it starts after its head is loaded, so it is ready too."""
        return Response()

    async def server(self, request: Request) -> Response:
        """What the service is."""
        extensions = ["binary_tensor_data"] + (["model_repository"] if self.control else [])
        return _json({"name": "atypicality", "version": __version__, "extensions": extensions})

    async def model(self, request: Request) -> Response:
        """What the head takes and gives."""
        served = self._check_model(request)
        head, sample = served.judge.head, output_tensors(served.judge.sample)
        inputs = [
            {"name": name, "datatype": "FP32" if width else "FP64", "shape": [-1, width] if width else [-1]}
            for name, width in served.judge.inputs.items()
        ]
        outputs = [
            {"name": name, "datatype": datatype(array), "shape": [-1, *array.shape[1:]]}
            for name, array in sample.items()
        ]
        found = {"name": self.name, "versions": [served.version], "platform": "atypicality", "inputs": inputs}
        names = None if head.class_names_ is None else head.class_names_.tolist()
        parameters = {"class_names": names, "alpha": float(getattr(head.prediction_sets_, "alpha", head.alpha))}
        return _json(found | {"outputs": outputs, "parameters": parameters})

    async def model_ready(self, request: Request) -> Response:
        """Whether the head answers."""
        self._check_model(request)
        return Response()

    async def counted(self, request: Request) -> Response:
        """Counters for Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _check_model(self, request: Request) -> Served:
        served, asked = self.store.current, request.path_params
        if asked["name"] != self.name:
            raise _RefusedError(404, f"there is no model {asked['name'][:80]!r} here; there is {self.name!r}.")
        if asked.get("version", served.version) != served.version:
            raise _RefusedError(404, f"there is no version {asked['version'][:80]!r}; there is {served.version!r}.")
        return served

    # Reload

    async def reload_on_request(self, request: Request) -> Response:
        """Read the bundle anew, where clients may ask for it."""
        if not self.control:
            raise _RefusedError(403, "clients may not reload this service; it was started without --control.")
        if request.path_params["name"] != self.name:
            raise _RefusedError(404, f"there is no model {request.path_params['name'][:80]!r} here.")
        if trouble := await self.reload():
            raise _RefusedError(409, f"the head that was there goes on answering: {trouble}")
        return _json({})

    async def reload(self) -> str | None:
        """Read the bundle anew while the old head answers, then take its place; what went wrong, where something did.

        No request is dropped: those that the old head has taken are answered by it.
        """
        async with self._reloading:
            try:
                served = await asyncio.to_thread(self.store.load)
            except Exception as error:  # whatever it is, the old head goes on
                self.metrics.reloaded("failed")
                log.warning("the bundle was not reloaded: %s", error)
                return str(error)
            before, self.store.current = self.store.current.version, served
            self.metrics.reloaded("done")
            self._say_which(served)
            log.info("reloaded %s: %s -> %s", self.name, before, served.version)
            return None

    def _say_which(self, served: Served) -> None:
        self.metrics.serving(self.name, served.version, served.judge.sample)

    async def _watch(self) -> None:
        missing = 0
        while True:
            await asyncio.sleep(self.watch)
            changed = self.store.changed()
            missing = missing + 1 if self.store.missing else 0
            if changed or missing == MISSED:
                await self.reload()


async def _aside(size: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call at once where little is to be done, else in a thread."""
    return function(*arguments) if size < LARGE_BYTES else await asyncio.to_thread(function, *arguments)


async def _drop_rest(request: Request) -> None:
    if request.headers.get("expect", "").lower() == "100-continue":
        return  # it waits for a word before it sends
    with contextlib.suppress(TimeoutError, RuntimeError):  # the stream may have been read in part
        async with asyncio.timeout(LINGER_SECONDS):
            while (await request.receive()).get("more_body"):
                pass


def _too_large(limit: int) -> _RefusedError:
    return _RefusedError(413, f"a body may have {limit} bytes. Send several requests, or binary tensors.", close=True)


def _rows_text(answer: Reliability, name: str, version: str) -> bytes:
    return json.dumps({"model_name": name, "model_version": version, "rows": list(answer.records())}).encode()


def _raw_json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _json(found: dict[str, Any]) -> Response:
    return _raw_json(json.dumps(found).encode())


def _error(status: int, message: str, *, close: bool = False, headers: dict[str, str] | None = None) -> Response:
    extra = (headers or {}) | ({"connection": "close"} if close else {})
    return Response(json.dumps({"error": message}), status, extra, "application/json")


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    taken = (getattr(error, "headers", None) or {}).get("Allow")
    message = f"this route takes {taken}, not" if taken else "there is nothing here:"
    return _error(status, f"{message} {request.method} {request.url.path[:80]}.")
