"""`atypicality monitor`: outputs of a model in use are counted, and alarms and an estimate of accuracy come out."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from atypicality.cli.files import ClassNames, Names, load_head, load_rows
from atypicality.cli.printing import say, say_json

__all__ = ["ALARMED", "EXAMPLES", "command"]

EXAMPLES = """
atypicality monitor head watch --reference test.npz --alpha 0.01 --window day
atypicality monitor head watch monday.npz --at 2026-01-05 --out monitor.html
atypicality monitor head watch late.npz --labels-only --names labels=y --json
atypicality monitor answer-head watch monday.jsonl
"""

ALARMED = 3  # exit code where these rows raised an alarm, and as long as anything is outside its band


def command(
    head: Annotated[Path, typer.Argument(help="Folder of a saved head.")],
    state: Annotated[Path, typer.Argument(help="Folder of the monitor; made if it is not there.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Outputs, or answers (.jsonl), to count, in the order of time.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Labelled outputs that the head was not fitted on, for a new monitor.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Chance of any false alarm over the life, for a new monitor (0.01).")
    ] = None,
    window: Annotated[
        str | None, typer.Option(help="hour, day, week, month, or seconds, for a new monitor (day).")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="When all these rows came: 2026-01-31T12:00:00+00:00, a date of UTC, or now (now)."),
    ] = None,
    labels_only: Annotated[
        bool, typer.Option("--labels-only", help="Count labels that came late, of rows counted before.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="HTML page to write.")] = None,
    rolling: Annotated[int, typer.Option(help="Windows taken together in history and newest estimate.", min=1)] = 1,
    names: Names = None,
    class_names: ClassNames = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Count a model's outputs over time and report what moved.

    The exit code is 3 where these rows raised an alarm, and as long as anything is outside its band.
    """
    from atypicality.blocks.progress import working
    from atypicality.outputs.paths import check_target
    from atypicality.shipping.bundle.folder import check_place

    check_place(state)
    if out is not None:
        check_target(out)
    fitted = load_head(head)
    rows = partial(load_rows, fitted, names=names, class_names=class_names)
    monitor = _monitor(fitted, state, None if reference is None else rows(reference), alpha, window)
    raised = []
    with working("counting"):
        for file in files or []:
            raised += (monitor.add_labels if labels_only else monitor.add)(rows(file), at=at)
    monitor.save(state)  # once: a call that failed has changed nothing and can be repeated
    if out is not None:
        monitor.to_html(out, rolling=rolling)
    if as_json:
        say_json(monitor.to_json(rolling=rolling))
    else:
        say(monitor.summary())
    if raised or monitor.moved():
        raise typer.Exit(ALARMED)


def _monitor(head: Any, state: Path, reference: Any, alpha: float | None, window: str | None) -> Any:
    """The monitor in the folder, or a new one with these settings."""
    from atypicality.monitoring import Monitor
    from atypicality.shipping.bundle.document import NAME

    options = {"alpha": alpha, "window": window, "reference": reference}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if (state / NAME).exists():
        if given:
            raise ValueError(f"--{next(iter(given))} is for a new monitor, and {str(state)!r} holds one. Leave it out.")
        return Monitor.load(state, head)
    if window is not None:
        with contextlib.suppress(ValueError):
            given["window"] = float(window)
    return Monitor(head, **given)
