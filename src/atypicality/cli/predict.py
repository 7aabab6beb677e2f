"""`atypicality predict`: one row per sample, in the format of the file's ending."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from atypicality.cli.codes import LOOKS_WRONG, NEWS
from atypicality.cli.files import (
    ClassNames,
    Names,
    Sha256,
    file_names,
    is_answer_head,
    load_head,
    load_rows,
    looks_wrong,
)
from atypicality.cli.options import Memory, Scratch, large_work
from atypicality.cli.printing import say, say_json

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality predict head new.npz --out answers.csv
atypicality predict head new.npz --max-risk 0.05 --out answers.parquet
atypicality predict head new.npz --exit-code --json --out answers.npz
atypicality predict answer-head new.jsonl --max-risk 0.1 --out said.csv
"""


def command(
    head: Annotated[Path, typer.Argument(help="Folder of a saved head.")],
    file: Annotated[
        Path, typer.Argument(help="Outputs to judge: logits, and embeddings or atypicality; or answers (.jsonl).")
    ],
    out: Annotated[Path, typer.Option(help="File to write: .csv, .jsonl, .parquet or .npz.")],
    max_risk: Annotated[
        float | None,
        typer.Option(
            help="Also write which predictions to keep so that at most this share is wrong, with 95 % confidence."
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
            help="End with code 3 where the rows' atypicality has drifted, or where answers lack a field far more "
            "often than the held-out ones, or have signals with other values than these.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as one JSON object.")] = False,
) -> None:
    """Judge outputs with a saved head and write one answer per row.

    An answer is the label, its confidence, the atypicality, the quadrant and the prediction set. The confidence of an
    answer head is P(correct), and it writes no label, quadrant and set.

    The exit code is 4 where the file looks wrong, and its answers are not to be used before somebody has looked: logits
    that look like probabilities, do not fit the embeddings or are on another scale, or a table that may be cut.
    """
    from atypicality.blocks.progress import stage
    from atypicality.head.reliability import check_place

    check_place(out)
    with large_work("predicting", memory, scratch):
        fitted = load_head(head, sha256)
        outputs = load_rows(fitted, file, names, class_names)
        answer = fitted.predict(outputs, max_risk=max_risk)
        wrong = _wrong(fitted, answer) + looks_wrong(outputs, file, fitted)
        findings = wrong + _drifted(fitted, answer)
        stage("writing")
        answer.save(out)
    if as_json:
        drift = {} if answer.drift is None else {"drift": answer.drift.to_dict()}
        told = answer.summary() | drift
        said = {"findings": findings, "looks_wrong": bool(wrong), "out": str(out)}
        say_json(json.dumps(told | said, indent=2))
    else:
        say(f"{answer!r}\nwritten to {out}")
        if is_answer_head(fitted) and answer.accepted is not None:
            shown = int(answer.accepted.sum())
            say(f"act on `accepted`: show {shown:,}, send {len(answer) - shown:,} to a person")
    if exit_code and answer.drift is None:
        tested = "only missing fields and values of signals" if is_answer_head(fitted) else "no drift of it"
        say(f"atypicality: this head was fitted without atypicality: --exit-code tests {tested}.", err=True)
    if wrong:
        say(
            f"atypicality: {file_names(file)!r} looks wrong: do not use {out} before somebody has looked at it.",
            err=True,
        )
        raise typer.Exit(LOOKS_WRONG)
    if exit_code and findings:
        raise typer.Exit(NEWS)


def _wrong(head: Any, answer: Any) -> list[str]:
    """What looks wrong about the outputs, in words."""
    if not is_answer_head(head):
        return list(answer.doubts)
    return [f"{name} is on another scale than in the held-out answers." for name in answer.outside]


def _drifted(head: Any, answer: Any) -> list[str]:
    """What has changed about the rows, in words."""
    drifted = [answer.drift.message()] if answer.drift is not None and answer.drift.significant else []
    if not is_answer_head(head):
        return drifted
    lacking = [f"{field} is missing far more often than in the held-out answers." for field in answer.lacking]
    moved = [f"{name} has other values than in the held-out answers: it has drifted." for name in answer.moved]
    return drifted + lacking + moved
