"""`atypicality evaluate`: a saved head against the bare model, on labelled outputs."""

from pathlib import Path
from typing import Annotated

import typer

from atypicality.cli.files import ClassNames, Names, load_outputs
from atypicality.cli.memory import Memory, Scratch, large_work
from atypicality.cli.printing import say, say_json

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality evaluate head test.npz
atypicality evaluate head test.npz --json > evaluation.json
"""


def command(
    head: Annotated[Path, typer.Argument(help="Folder of a saved head.")],
    file: Annotated[Path, typer.Argument(help="Labelled outputs that the head was not fitted on.")],
    names: Names = None,
    class_names: ClassNames = None,
    memory: Memory = None,
    scratch: Scratch = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every table as one JSON object.")] = False,
) -> None:
    """Measure a saved head and the bare model on labelled outputs.

    Tables by atypicality, confidence, class and subgroup.
    """
    from atypicality.evaluation import evaluate
    from atypicality.shipping.bundle import load

    with large_work("evaluating", memory, scratch):
        result = evaluate({"model": "uncalibrated", "head": load(head)}, load_outputs(file, names, class_names))
    if as_json:
        say_json(result.to_json())
    else:
        say(str(result))
