"""`atypicality report`: a saved head against the bare model, as one HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from atypicality.cli.files import ClassNames, Names, load_outputs
from atypicality.cli.memory import Memory, Scratch, large_work
from atypicality.cli.printing import say

__all__ = ["command"]


def command(
    head: Annotated[Path, typer.Argument(help="Folder of a saved head.")],
    file: Annotated[Path, typer.Argument(help="Labelled outputs that the head was not fitted on.")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Reliability report",
    names: Names = None,
    class_names: ClassNames = None,
    memory: Memory = None,
    scratch: Scratch = None,
) -> None:
    """Write an interactive page about a saved head and the bare model. It needs no network."""
    from atypicality.blocks.progress import stage
    from atypicality.evaluation import evaluate
    from atypicality.outputs.paths import check_target
    from atypicality.shipping.bundle import load

    check_target(out)
    with large_work("evaluating", memory, scratch):
        fitted = load(head)
        result = evaluate({"uncalibrated": "uncalibrated", "head": fitted}, load_outputs(file, names, class_names))
        stage("drawing")
        result.report(out, head=fitted, title=title)
    say(f"wrote {out}")
