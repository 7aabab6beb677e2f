"""`atypicality serve`: a saved head as an HTTP service."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from atypicality.cli.files import Sha256
from atypicality.cli.printing import say

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality serve head
atypicality serve head --host 0.0.0.0 --port 8080 --max-risk 0.05
atypicality serve head --watch 60 --control
atypicality serve answer-head --max-risk 0.1
"""


def command(
    head: Annotated[Path, typer.Argument(help="Folder of a saved head.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all of the machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    name: Annotated[str | None, typer.Option(help="Name of the model; by default that of the folder or link.")] = None,
    max_risk: Annotated[
        float | None,
        typer.Option(help="Also say which predictions to keep so that at most this share is wrong, as in predict."),
    ] = None,
    sha256: Sha256 = None,
    watch: Annotated[float, typer.Option(help="Seconds between looks for a new bundle; 0 never looks.", min=0)] = 0.0,
    control: Annotated[bool, typer.Option("--control", help="Let clients ask for a reload.")] = False,
    max_bytes: Annotated[int, typer.Option(help="Most bytes of a request's body.", min=1)] = 16 * 2**20,
    max_rows: Annotated[int, typer.Option(help="Most rows of a request.", min=1)] = 10_000,
    max_waiting: Annotated[int, typer.Option(help="Most rows of all requests that wait.", min=1)] = 100_000,
    timeout: Annotated[
        float, typer.Option(help="Seconds for a header, for a body, and for an answer.", min=0.1)
    ] = 10.0,
) -> None:
    """Serve a saved head over HTTP.

    It speaks the Open Inference Protocol v2 and has a plain /predict, which alone takes records of answers for an
    answer head; SIGHUP reloads the head.
    """
    from atypicality.validation import require

    for module in ("uvicorn", "starlette", "httptools", "prometheus_client"):
        require(module, extra="serve", feature="the service")
    from atypicality.serving.server import run_app
    from atypicality.serving.service import Limits, make_app

    limits = Limits(max_bytes=max_bytes, max_rows=max_rows, max_waiting=max_waiting, seconds=timeout)
    app = make_app(head, name=name, max_risk=max_risk, sha256=sha256, limits=limits, watch=watch, control=control)
    with _log_lines():
        told = f"serving {app.state.model()} on {{}}; stop with Ctrl+C"
        run_app(app, host=host, port=port, header_seconds=timeout, started=lambda address: say(told.format(address)))


@contextlib.contextmanager
def _log_lines() -> Iterator[None]:
    """What the service logs, such as a reload, as lines on stderr."""
    log, handler = logging.getLogger("atypicality.serving"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("atypicality: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
