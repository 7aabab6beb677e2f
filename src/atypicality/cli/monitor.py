"""`atypicality monitor`: outputs of a model in use are counted, and alarms and an estimate of accuracy come out."""

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atypicality.cli.files import (
    ClassNames,
    Names,
    Sha256,
    check_page,
    is_answer_head,
    load_correct,
    load_head,
    load_rows,
    load_together,
    load_with_checked,
)
from atypicality.cli.printing import say, say_json
from atypicality.terminal import listed

if TYPE_CHECKING:
    from atypicality.outputs import ModelOutputs

__all__ = ["ALARMED", "EXAMPLES", "command"]

EXAMPLES = """
atypicality monitor head watch --reference test.npz --alpha 0.01 --window day
atypicality monitor head watch monday.npz --at 2026-01-05 --out monitor.html
atypicality monitor head watch monday.npz --late-labels late.csv --at 2026-01-09
atypicality monitor head watch late.npz --labels-only --names labels=y --json
atypicality monitor answer-head watch monday.jsonl --max-risk 0.1
"""

ALARMED = 3  # exit code where these rows raised an alarm, and as long as anything is outside its band
DAY = 86400.0
WAIT = 60.0  # seconds that a call waits for another one that counts into the same folder


def command(
    head: Annotated[Path, typer.Argument(help="Folder of a saved head.")],
    state: Annotated[Path, typer.Argument(help="Folder of the monitor; made if it is not there.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Outputs, or for an answer head answers (.jsonl), to count, in the order of time."),
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
    max_risk: Annotated[
        float | None,
        typer.Option(
            help="Risk that predict is asked with, for a new monitor: accepted rows are counted, their errors tested."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="When all these rows came: 2026-01-31T12:00:00+00:00, a date of UTC, or now (now)."),
    ] = None,
    late_labels: Annotated[
        Path | None,
        typer.Option(
            help="Labels that came late, as columns ids and labels (of answers: ids and correct), for these files: "
            "rows counted before."
        ),
    ] = None,
    labels_only: Annotated[
        bool, typer.Option("--labels-only", help="Count only the labels in these files, of rows counted before.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="HTML page to write.")] = None,
    rolling: Annotated[int, typer.Option(help="Windows taken together in history and newest estimate.", min=1)] = 1,
    names: Names = None,
    class_names: ClassNames = None,
    sha256: Sha256 = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Count a model's outputs over time and report what moved.

    The exit code is 3 where these rows raised an alarm, and as long as anything is outside its band.
    """
    from atypicality.blocks.progress import working
    from atypicality.outputs.paths import held
    from atypicality.shipping.bundle.document import STATE
    from atypicality.shipping.bundle.folder import check_place

    check_place(state, STATE)
    if out is not None:
        check_page(out)
    fitted = load_head(head, sha256)
    rows = partial(load_with_checked, fitted, names=names, class_names=class_names)
    given: dict[str, Any] = {"alpha": alpha, "window": window, "max_risk": max_risk, "reference": reference}
    settings = {name: value for name, value in given.items() if value is not None}
    _check_settings(state, settings, files)
    if reference is not None:
        settings["reference"] = load_rows(fitted, reference, names, class_names, checked=True)
    _warn_of_future(at)
    with held(state / ".lock", seconds=WAIT):  # from reading to saving: rows of calls at the same time all count
        monitor = _monitor(fitted, state, settings)
        with working("counting"):
            if late_labels is None:
                raised, again = _count(monitor, files or [], rows, labels_only, at)
            else:
                late = _late(fitted, late_labels, files or [], names, class_names)
                raised, again = _count_late(monitor, *late, late_labels, at)
        monitor.save(state)  # once: a call that failed has counted nothing and can be repeated
    for told in again:
        say(f"atypicality: {told}", err=True)
    if out is not None:
        monitor.to_html(out, title=f"Monitor of {head.resolve().name}", rolling=rolling)
    if as_json:
        say_json(monitor.to_json(rolling=rolling))
    else:
        say(monitor.summary(rolling=rolling))
    if raised or monitor.moved():
        raise typer.Exit(ALARMED)


def _check_settings(state: Path, settings: dict[str, Any], files: list[Path] | None) -> None:
    """Refuse a call that neither counts, nor looks at a monitor, nor makes one; a number of seconds becomes one."""
    from atypicality.monitoring.state import saved_file

    if "window" in settings:
        with contextlib.suppress(ValueError):
            settings["window"] = float(settings["window"])
    if saved_file(state) is None and not (settings or files):
        raise ValueError(
            f"{str(state)!r} holds no monitor to look at. Give files to count, or --reference, --alpha, --window "
            "or --max-risk to make a new one."
        )


def _warn_of_future(at: str | None) -> None:
    """Warn of a time that this machine's clock has not reached: its window is the newest until then."""
    import time

    from atypicality.monitoring.windows import as_text, times
    from atypicality.validation import warn

    given = 0.0 if at is None else float(times(at, 1)[0])
    if given > time.time() + DAY:
        warn(
            f"--at {as_text(given)} is more than a day after this machine's clock, and its window stays the newest one "
            "until then. Is the year right?"
        )


def _monitor(head: Any, state: Path, settings: dict[str, Any]) -> Any:
    """The monitor in the folder, which must have these settings, or a new one with them."""
    from atypicality.monitoring import Monitor
    from atypicality.monitoring.state import saved_file

    if saved_file(state) is None:
        return Monitor(head, **settings)
    monitor = Monitor.load(state, head)
    for name, had in monitor.differing(**settings).items() if settings else ():
        option, place = name.replace("_", "-"), f"the monitor in {str(state)!r} was made with"
        told = f"is {settings[name]}, and {place} {'none' if had is None else had}"
        said = f"holds other rows than {place}" if name == "reference" else told
        raise ValueError(f"--{option} {said}. Leave it out to go on, or give another folder for a new monitor.")
    return monitor


def _count(
    monitor: Any, files: list[Path], rows: Any, labels_only: bool, at: str | None
) -> tuple[list[Any], list[str]]:
    """New alarms, and what was counted before, in words."""
    raised, again = [], []
    for file in files:
        outputs, checked = rows(file)
        if not len(outputs):  # of which reading has warned: an hour without rows is no mistake
            continue
        if labels_only and checked is not None:
            outputs, checked = checked, None
        key = outputs.fingerprint()
        if key in monitor.counted:
            again.append(_told(monitor, file, key))
            continue
        raised += (monitor.add_labels if labels_only else monitor.add)(outputs, at=at, key=key)
        if checked is not None:
            raised += monitor.add_labels(checked, at=at)
    return raised, again


def _late(
    head: Any, labels: Path, files: list[Path], names: list[str] | None, class_names: Path | None
) -> "tuple[ModelOutputs, dict[str, ModelOutputs]]":
    """Late labels, and the rows of the files by path."""
    if is_answer_head(head):
        return load_correct(labels, head), {str(file): load_rows(head, file, names, class_names) for file in files}
    found = load_together({"--late-labels": labels} | {str(file): file for file in files}, names, class_names, head)
    return found.pop("--late-labels"), found


def _count_late(
    monitor: Any, late: "ModelOutputs", batches: "dict[str, ModelOutputs]", file: Path, at: str | None
) -> tuple[list[Any], list[str]]:
    """As `_count`, of labels with ids: each is for the row of that name in one of the batches."""
    import numpy as np

    from atypicality.outputs.tables import place_in

    codes, ids = (np.asarray(part) for part in late.need("labels", "ids"))
    given, ids = codes if late.class_names is None else late.class_names[codes], ids.astype(str)
    key = late.fingerprint()
    if f"{key} 0" in monitor.counted:
        return [], [_told(monitor, file, f"{key} 0")]
    _refuse_repeated(ids, file)
    raised: list[Any] = []
    found, n_parts = np.zeros(ids.size, bool), 0
    for path, outputs in batches.items():
        own = np.asarray(outputs.need("ids")).astype(str)
        here = np.isin(ids, own)
        if (both := here & found).any():
            raise ValueError(
                f"ids must be distinct over the files; {listed(ids[both][:1])} is in two of them, the second "
                f"is {path!r}."
            )
        _refuse_repeated(own, Path(path), among=set(ids[here].tolist()))
        if here.any():
            raised += monitor.add_labels(outputs, given[here], ids=ids[here], at=at, key=f"{key} {n_parts}")
            found, n_parts = found | here, n_parts + 1
    if not found.all():
        row = int(np.flatnonzero(~found)[0])
        raise ValueError(
            f"--late-labels must be of rows in the files: {(~found).sum():,} of {ids.size:,} ids are in none, such as "
            f"{listed(ids[[row]])} in {place_in(file.name, row)} of {file.name!r}. Give the files of outputs that hold "
            "these rows."
        )
    return raised, []


def _refuse_repeated(ids: Any, file: Path, among: Any = None) -> None:
    from atypicality.outputs.tables import place_in, repeated

    if twice := repeated(ids.tolist(), among):
        name, *rows = twice
        first, second = (place_in(file.name, row) for row in rows)
        raise ValueError(
            f"ids must be distinct, or a label would count for several rows; {listed([name])} stands in {first} and "
            f"{second} of {file.name!r}. Drop one of them."
        )


def _told(monitor: Any, file: Path, key: str) -> str:
    from atypicality.monitoring.windows import as_text

    return f"{file} was counted before, at {as_text(monitor.counted[key])}, and is not counted again."
