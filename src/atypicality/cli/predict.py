"""`atypicality predict`: one row per sample, in the format of the file's ending."""

import json
from pathlib import Path
from typing import Annotated

import typer

from atypicality.cli.memory import Memory, Scratch, large_work
from atypicality.cli.printing import say, say_json

__all__ = ["command"]


def command(
    head: Annotated[Path, typer.Argument(help="Folder of a saved head.")],
    file: Annotated[Path, typer.Argument(help="Outputs to judge: logits, and embeddings or atypicality.")],
    out: Annotated[Path, typer.Option(help="File to write: .csv, .jsonl, .parquet or .npz.")],
    max_risk: Annotated[
        float | None,
        typer.Option(
            help="Also write which predictions to keep so that at most this share is wrong, with 95 % confidence."
        ),
    ] = None,
    memory: Memory = None,
    scratch: Scratch = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as one JSON object.")] = False,
) -> None:
    """Judge a model's outputs with a saved head and write label, confidence, atypicality, quadrant and set."""
    from atypicality.blocks.progress import stage
    from atypicality.head.reliability import check_place
    from atypicality.outputs import ModelOutputs
    from atypicality.shipping.bundle import load

    check_place(out)
    with large_work("predicting", memory, scratch):
        answer = load(head).predict(ModelOutputs.load(file), max_risk=max_risk)
        stage("writing")
        answer.save(out)
    if as_json:
        say_json(json.dumps(answer.summary() | {"out": str(out)}, indent=2))
        return
    say(f"{answer!r}\nwritten to {out}")
