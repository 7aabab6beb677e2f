"""`atypicality report`: saved heads against the bare model, or one head on two files, as one HTML page."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from atypicality.cli.files import (
    ANSWERS,
    ClassNames,
    Names,
    check_page,
    is_answer_head,
    load_answers,
    load_head,
    load_together,
    warn_of_other_labels,
)
from atypicality.cli.options import Memory, Scratch, large_work
from atypicality.cli.printing import say

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality report head test.npz --out report.html
atypicality report old-head new-head test.npz --title "Before and after"
atypicality report head january.npz february.npz --examples texts.txt
atypicality report answer-head test.jsonl --max-risk 0.1
"""

LISTED = 200  # labels and duplicates that a page lists for a person to look at


def command(
    places: Annotated[
        list[Path],
        typer.Argument(
            help="A saved head and labelled outputs, or answers (.jsonl), that it was not fitted on. Two heads (of "
            "a classifier, not of answers), or two files, are shown beside each other.",
            metavar="HEAD [HEAD] FILE [FILE]",
        ),
    ],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Reliability report",
    max_risk: Annotated[
        float | None, typer.Option(help="Also show what is accepted at this risk, and how many of it err.")
    ] = None,
    train: Annotated[
        Path | None, typer.Option(help="Training outputs, to look for near-duplicates of their rows.")
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(
            help="The samples, one per row: images (.npy, uint8), texts (.txt, a line each) or a table (.csv)."
        ),
    ] = None,
    names: Names = None,
    class_names: ClassNames = None,
    memory: Memory = None,
    scratch: Scratch = None,
) -> None:
    """Write an interactive page about saved heads and the bare model.

    It is one HTML file that needs no network.
    """
    from atypicality.blocks.progress import stage

    check_page(out)
    with large_work("evaluating", memory, scratch):
        heads, files = _sorted(places)
        shown = None if examples is None else _examples(examples)
        if any(file.suffix.lower() == ANSWERS for file in files):
            result, fitted, sides, texts = _of_answers(heads, files, train, max_risk)
            shown = texts if shown is None else shown
        else:
            paths = {str(file): file for file in files} | ({} if train is None else {"train": train})
            saved = [load_head(head) for head in heads]
            outputs = load_together(paths, names, class_names, saved[0])
            options = {"train": outputs.get("train"), "suspects": LISTED, "max_risk": max_risk}
            measured = [warn_of_other_labels(outputs[str(file)]) for file in files]
            result, fitted, sides = _evaluated(heads, saved, measured, files, options)
        stage("drawing")
        result.report(out, head=fitted, title=title, examples=shown, before=sides[0], after=sides[1])
    say("\n".join([*(note for note in result.notes if note.startswith("log-loss of ")), f"wrote {out}"]))


def _sorted(places: list[Path]) -> tuple[list[Path], list[Path]]:
    """Heads and files: a head is a folder that holds a head.json."""
    heads = [place for place in places if (place / "head.json").is_file()]
    files = [place for place in places if place not in heads]
    if (len(heads), len(files)) not in ((1, 1), (2, 1), (1, 2)):
        raise ValueError(
            "give one saved head and one file of outputs, or two heads and one file, or one head and two files; got "
            f"{len(heads)} heads (folders with a head.json) and {len(files)} files."
        )
    return heads, files


def _evaluated(
    heads: list[Path], fitted: list[Any], outputs: list[Any], files: list[Path], options: dict[str, Any]
) -> tuple[Any, Any, tuple[str, str]]:
    """The evaluation, the head whose card is shown, and the methods to show side by side."""
    from atypicality.evaluation import evaluate
    from atypicality.evaluation.beside import beside
    from atypicality.evaluation.paired import compared

    names = _names(heads if len(heads) == 2 else files)
    if any(map(is_answer_head, fitted)):
        raise ValueError(f"an answer head takes answers in a {ANSWERS} file; got {files[0].name!r}.")
    if len(heads) == 2:
        methods = {"model": "uncalibrated"} | dict(zip(names, fitted, strict=True))
        result = evaluate(methods, outputs[0], **options)
        note = compared(fitted[0], fitted[1], outputs[0], (names[0], names[1]))
        return replace(result, notes=(note, *result.notes)), fitted[-1], (names[0], names[1])
    methods = {"model": "uncalibrated", "head": fitted[0]}
    found = [evaluate(methods, part, **options) for part in outputs]
    if len(files) == 1:
        return found[0], fitted[0], ("model", "head")
    return beside(found[0], found[1], (names[0], names[1])), fitted[0], (f"head, {names[0]}", f"head, {names[1]}")


def _of_answers(
    heads: list[Path], files: list[Path], train: Path | None, max_risk: float | None
) -> tuple[Any, Any, tuple[str, str], dict[str, Any]]:
    """As `_evaluated`, of an answer head; and the texts of the answers."""
    import numpy as np

    from atypicality.evaluation.beside import beside
    from atypicality.llm import AnswerHead

    if len(heads) > 1 or train is not None:
        raise ValueError("answers take one saved answer head, and no --train. Write a report for each head.")
    head, tables = AnswerHead.load(heads[0]), [load_answers(file, checked=True) for file in files]
    found = [head.evaluate(table, max_risk=max_risk) for table in tables]
    texts = {name: np.concatenate([table.texts()[name] for table in tables]) for name in tables[0].texts()}
    if len(files) == 1:
        return found[0], head, (found[0].methods[0], "head"), texts
    names = _names(files)
    return beside(found[0], found[1], (names[0], names[1])), head, (f"head, {names[0]}", f"head, {names[1]}"), texts


def _names(places: list[Path]) -> list[str]:
    """Short names that differ: that of the file or folder, with the folder above it where those are the same."""
    short = [place.resolve().stem for place in places]
    if len(set(short)) == len(short):
        return short
    long = [str(place) for place in places]
    return long if len(set(long)) == len(long) else [f"{name} ({place})" for place, name in enumerate(long, start=1)]


def _examples(path: Path) -> Any:
    import csv

    import numpy as np

    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r", allow_pickle=False)
    if path.suffix == ".txt":
        return path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".csv":
        with open(path, newline="", encoding="utf-8") as stream:
            names, *rows = list(csv.reader(stream))
        return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    raise ValueError(f"--examples must end in .npy, .txt or .csv; got {path.name!r}.")
