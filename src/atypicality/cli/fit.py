"""`atypicality fit`: outputs in, a saved head out."""

import json
from pathlib import Path
from typing import Annotated

import typer

from atypicality.cli.memory import Memory, Scratch, large_work
from atypicality.cli.printing import say, say_json

__all__ = ["command"]


def command(
    calibration: Annotated[Path, typer.Option(help="Outputs with logits and labels that the model never trained on.")],
    out: Annotated[Path, typer.Option(help="Folder to save the head in.")],
    train: Annotated[
        Path | None,
        typer.Option(help="Outputs with embeddings and labels of training rows; not needed with given atypicality."),
    ] = None,
    alpha: Annotated[float, typer.Option(help="Share of prediction sets that may miss the label.")] = 0.1,
    random_state: Annotated[int, typer.Option(help="Seed of the split of the calibration rows.")] = 0,
    memory: Memory = None,
    scratch: Scratch = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Fit a reliability head on a model's outputs and save it."""
    from atypicality.head import ReliabilityHead
    from atypicality.outputs import ModelOutputs
    from atypicality.shipping.bundle.folder import check_place

    check_place(out)
    with large_work("fitting", memory, scratch):
        rows = None if train is None else ModelOutputs.load(train)
        head = ReliabilityHead(alpha=alpha, random_state=random_state)
        head.fit(train=rows, calibration=ModelOutputs.load(calibration))
        head.save(out)
    if as_json:
        say_json(json.dumps({"sizes": head.sizes_, "metrics": head.metrics_, "out": str(out)}, indent=2))
        return
    say(head.summary())
    say(f"saved in {out}; next: atypicality predict {out} FILE --out FILE")
