"""`atypicality monitor`: outputs of a model in use are counted, and alarms and an estimate of accuracy come out."""

import contextlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atypicality.cli.codes import LOOKS_WRONG, NEWS, STILL
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
    looks_wrong,
)
from atypicality.cli.printing import say, say_json
from atypicality.terminal import listed

if TYPE_CHECKING:
    from atypicality.outputs import ModelOutputs

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality monitor head watch --reference test.npz --alpha 0.01 --window day
atypicality monitor head watch monday.npz --at 2026-01-05 --out monitor.html
atypicality monitor head watch monday.npz --late-labels late.csv --at 2026-01-09
atypicality monitor head watch late.npz --labels-only --names labels=y --json
atypicality monitor answer-head watch monday.jsonl --max-risk 0.1
"""

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

    The exit code is 4 where these files look wrong, 3 where they raised an alarm, and 5 where they raised none and one
    of before is not over.
    """
    from atypicality.blocks.progress import working
    from atypicality.monitoring.state import saved_file
    from atypicality.outputs.paths import held
    from atypicality.shipping.bundle.document import STATE
    from atypicality.shipping.bundle.folder import check_place

    looking = not files and late_labels is None and saved_file(state) is not None
    if not looking:
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
    _refuse_future(at)
    readable = looking and not os.access(state, os.W_OK)  # where no lock can be made, and nobody else can save either
    lock = contextlib.nullcontext() if readable else held(state / ".lock", seconds=WAIT)
    with lock:  # from reading to saving: rows of calls at the same time all count
        call = _Call(_monitor(fitted, state, settings))
        with working("counting"):
            if late_labels is None:
                _count(call, files or [], rows, labels_only, at)
            else:
                late = _late(fitted, late_labels, files or [], names, class_names)
                _count_late(call, *late, late_labels, at)
        if not looking:
            call.monitor.save(state)  # once: a call that failed has counted nothing and can be repeated
    if out is not None:
        call.monitor.to_html(out, title=f"Monitor of {head.resolve().name}", rolling=rolling)
    if as_json:
        say_json(json.dumps(call.to_dict(rolling), indent=2, allow_nan=False))
    else:
        say(call.monitor.summary(rolling=rolling))
    if code := call.code():
        raise typer.Exit(code)


class _Call:
    """What one call counted and left out, by file, and which alarms it raised."""

    def __init__(self, monitor: Any) -> None:
        self.monitor, self._alarms, self._doubted = monitor, len(monitor.alarms), monitor.n_doubted
        self._counted: dict[str, dict[str, int]] = {}
        self._skipped: dict[str, dict[str, int]] = {}
        self.odd: list[str] = []  # what else looks wrong about files, in words

    def code(self) -> int:
        """The exit code."""
        if self._looks_wrong():
            return LOOKS_WRONG
        return NEWS if len(self.monitor.alarms) > self._alarms else STILL if self.monitor.moved() else 0

    def take(self, file: Path, rows: int, labels: int, count: Callable[[], Any]) -> None:
        """Count so many rows and labels of a file; the monitor leaves out those that it knows."""
        monitor = self.monitor
        before = monitor.n_rows, monitor.n_labelled, monitor.n_doubted
        count()
        new, known, doubted = monitor.n_rows - before[0], monitor.n_labelled - before[1], monitor.n_doubted - before[2]
        _note(self._counted, file, rows=new, labels=known, doubted=doubted)
        if (rows, labels) != (new, known):
            _note(self._skipped, file, rows=rows - new, labels=labels - known)

    def leave(self, file: Path, rows: int, labels: int, key: str) -> None:
        """Leave out a file that was counted before, and say so."""
        from atypicality.monitoring.windows import as_text

        when = as_text(self.monitor.counted[key])
        say(f"atypicality: {file} was counted before, at {when}, and is not counted again.", err=True)
        _note(self._skipped, file, rows=rows, labels=labels)

    def to_dict(self, rolling: int) -> dict[str, Any]:
        """The monitor as plain values, and what this call did with it."""
        told: dict[str, Any] = self.monitor.to_dict(rolling=rolling)
        for name, files in (("counted", self._counted), ("skipped", self._skipped)):
            told[name] = [{"file": file} | numbers for file, numbers in files.items()]
        return told | {"looks_wrong": self._looks_wrong(), "raised": told["alarms"][self._alarms :]}

    def _looks_wrong(self) -> bool:
        return bool(self.odd) or self.monitor.n_doubted > self._doubted


def _note(table: dict[str, dict[str, int]], file: Path, **numbers: int) -> None:
    known = table.setdefault(str(file), dict.fromkeys(numbers, 0))
    for name, number in numbers.items():
        known[name] += number


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


def _refuse_future(at: str | None) -> None:
    """Refuse a time that this machine's clock has not reached: its window would be the newest until then."""
    import time

    from atypicality.monitoring.windows import as_text, times

    given = 0.0 if at is None else float(times(at, 1)[0])
    if given > time.time() + DAY:
        raise ValueError(
            f"--at must not be more than a day after this machine's clock; got {as_text(given)}, whose window would "
            "be the newest until then. Is the year right? For a simulation use Monitor.add in Python."
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


def _count(call: _Call, files: list[Path], rows: Any, labels_only: bool, at: str | None) -> None:
    """Count the rows, or only the labels, of files."""
    monitor = call.monitor
    for file in files:
        outputs, checked = rows(file)
        if not len(outputs):  # of which reading has warned: an hour without rows is no mistake
            continue
        if labels_only and checked is not None:
            outputs, checked = checked, None
        key, labels = outputs.fingerprint(), 0 if outputs.labels is None else len(outputs)
        numbers = 0 if labels_only else len(outputs), labels
        if key in monitor.counted:
            call.leave(file, *numbers, key)
            continue
        call.odd += looks_wrong(outputs, file, monitor.head)
        call.take(file, *numbers, partial(monitor.add_labels if labels_only else monitor.add, outputs, at=at, key=key))
        if checked is not None:
            call.take(file, 0, len(checked), partial(monitor.add_labels, checked, at=at, key=f"{key} checked"))


def _late(
    head: Any, labels: Path, files: list[Path], names: list[str] | None, class_names: Path | None
) -> "tuple[ModelOutputs, dict[str, ModelOutputs]]":
    """Late labels, and the rows of the files by path."""
    if is_answer_head(head):
        return load_correct(labels, head), {str(file): load_rows(head, file, names, class_names) for file in files}
    found = load_together({"--late-labels": labels} | {str(file): file for file in files}, names, class_names, head)
    return found.pop("--late-labels"), found


def _count_late(
    call: _Call, late: "ModelOutputs", batches: "dict[str, ModelOutputs]", file: Path, at: str | None
) -> None:
    """Count labels with ids: each is for the row of that name in one of the batches."""
    import numpy as np

    from atypicality.outputs.tables import place_in

    codes, ids = (np.asarray(part) for part in late.need("labels", "ids"))
    given, ids = codes if late.class_names is None else late.class_names[codes], ids.astype(str)
    key = late.fingerprint()
    if f"{key} 0" in call.monitor.counted:
        call.leave(file, 0, ids.size, f"{key} 0")
        return
    _refuse_repeated(ids, file)
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
            given_here = {"labels": given[here], "ids": ids[here], "at": at, "key": f"{key} {n_parts}"}
            call.take(file, 0, int(here.sum()), partial(call.monitor.add_labels, outputs, **given_here))
            found, n_parts = found | here, n_parts + 1
    if not found.all():
        row = int(np.flatnonzero(~found)[0])
        raise ValueError(
            f"--late-labels must be of rows in the files: {(~found).sum():,} of {ids.size:,} ids are in none, such as "
            f"{listed(ids[[row]])} in {place_in(file.name, row)} of {file.name!r}. Give the files of outputs that hold "
            "these rows."
        )


def _refuse_repeated(ids: Any, file: Path, among: Any = None) -> None:
    from atypicality.outputs.tables import place_in, repeated

    if twice := repeated(ids.tolist(), among):
        name, *rows = twice
        first, second = (place_in(file.name, row) for row in rows)
        raise ValueError(
            f"ids must be distinct, or a label would count for several rows; {listed([name])} stands in {first} and "
            f"{second} of {file.name!r}. Drop one of them."
        )
