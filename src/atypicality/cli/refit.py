"""`atypicality refit`: newer labelled outputs for a saved head whose model stayed the same."""

import json
from pathlib import Path
from typing import Annotated

import typer

from atypicality.cli.files import ClassNames, Names, Sha256, is_answer_head, load_head, load_outputs
from atypicality.cli.options import Memory, Scratch, large_work
from atypicality.cli.printing import say, say_json
from atypicality.cli.show import in_short

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality refit head labelled.npz --out new-head
atypicality refit head logits.npz,labels.csv --json --out new-head
"""


def command(
    head: Annotated[Path, typer.Argument(help="Folder of a saved head.")],
    file: Annotated[Path, typer.Argument(help="Newer outputs with logits, labels, and embeddings or atypicality.")],
    out: Annotated[Path, typer.Option(help="Folder to save the new head in.")],
    names: Names = None,
    class_names: ClassNames = None,
    sha256: Sha256 = None,
    memory: Memory = None,
    scratch: Scratch = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Fit a saved head again on newer labelled outputs.

    They must be of the same model: one that was trained again needs a new head, by atypicality fit. Recalibration and
    prediction sets are fitted on these rows alone; the density of the training rows stays.
    """
    from atypicality.shipping.bundle.folder import check_place

    check_place(out)
    with large_work("fitting", memory, scratch):
        fitted = load_head(head, sha256)
        if is_answer_head(fitted):
            raise ValueError("an answer head has no part that stays: use `atypicality fit --calibration FILE`.")
        seal = fitted.refit(load_outputs(file, names, class_names, fitted)).save(out)
    if as_json:
        told = {"sizes": fitted.sizes_, "metrics": fitted.metrics_, "out": str(out), "sha256": seal}
        say_json(json.dumps(told, indent=2))
        return
    say(in_short(fitted))
    say(fitted.summary())
    if fitted.density_choice_ is not None:
        say("the density and its choice are kept from the first fit")
    say(f"sha256 {seal}\nsaved in {out}; compare: atypicality report {head} {out} FILE")
