"""`atypicality report`: saved heads against the bare model, or one head on two files, as one HTML page."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from atypicality.cli.codes import NEWS
from atypicality.cli.files import (
    ANSWERS,
    ClassNames,
    Names,
    Sha256,
    check_page,
    is_answer_head,
    load_answers,
    load_head,
    load_together,
)
from atypicality.cli.options import Memory, Scratch, large_work
from atypicality.cli.printing import say, say_json

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality report head test.npz --out report.html
atypicality report old-head new-head test.npz --title "Before and after"
atypicality report old-head new-head test.npz --exit-code --json
atypicality report head test.npz --about "purpose=triage of claims"
atypicality report head january.npz february.npz --examples texts.txt
atypicality report answer-head test.jsonl --max-risk 0.1
atypicality report old-answer-head new-answer-head test.jsonl
"""

LISTED = 200  # labels and duplicates that a page lists for a person to look at


def command(
    places: Annotated[
        list[Path],
        typer.Argument(
            help="A saved head and labelled outputs, or answers (.jsonl), that it was not fitted on. Two heads, or two "
            "files, are shown beside each other.",
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
    about: Annotated[
        list[str] | None,
        typer.Option(
            help="What the header states: model, data, purpose, or anything else by its name; may be repeated.",
            metavar="NAME=TEXT",
        ),
    ] = None,
    names: Names = None,
    class_names: ClassNames = None,
    sha256: Sha256 = None,
    memory: Memory = None,
    scratch: Scratch = None,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Of two heads: end with code 3 unless the second is better, with the whole 95 % interval below 0.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as one JSON object.")] = False,
) -> None:
    """Write an interactive page about saved heads and the bare model.

    It is one HTML file that needs no network.
    """
    from atypicality.blocks.progress import stage

    check_page(out)
    with large_work("evaluating", memory, scratch):
        folders, files = _sorted(places)
        if (exit_code or as_json) and len(folders) < 2:
            raise ValueError("--json and --exit-code are for two heads, which they compare; got one.")
        heads, shown = _loaded(folders, sha256), None if examples is None else _examples(examples)
        if _are_answers(heads, files):
            first = next(iter(heads.values()))
            tables = [load_answers(file, names, class_names, first, checked=True) for file in files]
            result, sides, texts = _of_answers(heads, tables, files, train, max_risk)
            shown = texts if shown is None else shown
        else:
            paths = {str(file): file for file in files} | ({} if train is None else {"train": train})
            outputs = load_together(paths, names, class_names, next(iter(heads.values())))
            known = outputs.pop("train", None)
            measured = [outputs[str(file)] for file in files]
            result, sides = _evaluated(heads, measured, files, known, max_risk)
        stage("drawing")
        fitted = list(heads.values())[-1]
        told = _about(folders, files, about or [])
        result.report(out, head=fitted, title=title, examples=shown, before=sides[0], after=sides[1], about=told)
    comparison = result.settings.get("comparison")
    if as_json:
        say_json(json.dumps({"comparison": comparison, "out": str(out)}, indent=2))
    else:
        say("\n".join([*(note for note in result.notes if note.startswith("log-loss of ")), f"wrote {out}"]))
    if exit_code and comparison["better"] != comparison["second"]:
        raise typer.Exit(NEWS)


def _about(folders: list[Path], files: list[Path], given: list[str]) -> dict[str, str]:
    """What the page's header states: what was given, and the names of the head and of the files."""
    stated = dict(one.partition("=")[::2] for one in given)
    if wrong := [one for one in given if not all(map(str.strip, one.partition("=")))]:
        raise ValueError(f'--about must be NAME=TEXT, such as --about "purpose=triage of claims"; got {wrong[0]!r}.')
    named = {"head": folders[0].resolve().name} if len(folders) == 1 else {}
    return named | {"data": " and ".join(file.name for file in files)} | stated


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


def _loaded(folders: list[Path], sha256: str | None) -> dict[str, Any]:
    """The heads by the names that the page calls them."""
    seals: list[Any] = [None] * len(folders) if sha256 is None else sha256.split(",")
    if len(seals) != len(folders):
        raise ValueError(
            f"--sha256 must be one hash for each head, with a comma between two; got {len(seals)} for {len(folders)}."
        )
    names = _names(folders) if len(folders) > 1 else ["head"]
    return {name: load_head(folder, seal) for name, folder, seal in zip(names, folders, seals, strict=True)}


def _are_answers(heads: dict[str, Any], files: list[Path]) -> bool:
    """Whether the files are of answers; heads that do not take what they hold are refused."""
    answers = any(file.suffix.lower() == ANSWERS for file in files)
    for name, head in heads.items():
        if is_answer_head(head) and not answers:
            raise ValueError(f"an answer head takes answers in a {ANSWERS} file; got {files[0].name!r}.")
        if answers and not is_answer_head(head):
            raise ValueError(f"{ANSWERS} files hold answers, and {name!r} is the head of a classifier: give outputs.")
    return answers


def _evaluated(
    heads: dict[str, Any], outputs: list[Any], files: list[Path], train: Any, max_risk: float | None
) -> tuple[Any, tuple[str, str]]:
    """The evaluation, and the methods to show side by side."""
    from atypicality.evaluation import evaluate

    methods = {"model": "uncalibrated"} | heads
    found = [evaluate(methods, part, train=train, suspects=LISTED, max_risk=max_risk) for part in outputs]
    return _side_by_side(heads, found, outputs[0], files)


def _of_answers(
    heads: dict[str, Any], tables: list[Any], files: list[Path], train: Path | None, max_risk: float | None
) -> tuple[Any, tuple[str, str], dict[str, Any]]:
    """As `_evaluated`, of answer heads; and the texts of the answers."""
    import numpy as np

    from atypicality.llm.answer_evaluation import evaluate_answers
    from atypicality.validation import caught_warnings

    if train is not None:
        raise ValueError("--train is for outputs of a classifier; answers are not looked through. Leave it out.")
    found = [evaluate_answers(heads, table, table.correct, max_risk=max_risk) for table in tables]
    with caught_warnings():  # of scores that a head does not use, which the evaluation has told
        own = tuple(head.outputs(tables[0]) for head in heads.values())
    texts = {name: np.concatenate([table.texts()[name] for table in tables]) for name in tables[0].texts()}
    return *_side_by_side(heads, found, own, files), texts


def _side_by_side(
    heads: dict[str, Any], found: list[Any], outputs: Any, files: list[Path]
) -> tuple[Any, tuple[str, str]]:
    """One evaluation of two heads, of which a note says which is better, or of one head on one file or on two."""
    from atypicality.evaluation.beside import beside
    from atypicality.evaluation.paired import compared

    if len(heads) == 2:
        (first, one), (second, other) = heads.items()
        told = compared(one, other, outputs, (first, second))
        settings = dict(found[0].settings) | {"comparison": told.to_dict()}
        return replace(found[0], notes=(str(told), *found[0].notes), settings=settings), (first, second)
    if len(files) == 1:
        return found[0], (found[0].methods[0], "head")
    one_day, other_day = _names(files)
    return beside(found[0], found[1], (one_day, other_day)), (f"head, {one_day}", f"head, {other_day}")


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
