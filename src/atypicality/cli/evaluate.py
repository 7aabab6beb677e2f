"""`atypicality evaluate`: a saved head against the bare model, on labelled outputs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atypicality.cli.files import (
    ClassNames,
    Names,
    Sha256,
    is_answer_head,
    load_answers,
    load_head,
    load_outputs,
)
from atypicality.cli.options import Memory, Scratch, large_work
from atypicality.cli.printing import say, say_json
from atypicality.terminal import aligned

if TYPE_CHECKING:
    from atypicality.evaluation import Evaluation

__all__ = ["EXAMPLES", "command"]

ENDS = ("value", "low", "high")
EXAMPLES = """
atypicality evaluate head test.npz
atypicality evaluate head test.npz --max-risk 0.05
atypicality evaluate head test.npz --json > evaluation.json
atypicality evaluate answer-head test.jsonl --max-risk 0.1
"""


def command(
    head: Annotated[Path, typer.Argument(help="Folder of a saved head.")],
    file: Annotated[Path, typer.Argument(help="Labelled outputs, or answers (.jsonl), not those of the fit.")],
    max_risk: Annotated[
        float | None,
        typer.Option(help="Also measure the predictions that predict keeps at this risk: how many, and how many err."),
    ] = None,
    names: Names = None,
    class_names: ClassNames = None,
    sha256: Sha256 = None,
    memory: Memory = None,
    scratch: Scratch = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every table as one JSON object.")] = False,
) -> None:
    """Measure a saved head and the bare model on labelled outputs.

    Tables by atypicality, confidence, class, subgroup and advice.
    """
    from atypicality.evaluation import evaluate

    with large_work("evaluating", memory, scratch):
        fitted = load_head(head, sha256)
        if is_answer_head(fitted):
            result = fitted.evaluate(
                load_answers(file, names, class_names, fitted, checked=True), max_risk=max_risk, keep_samples=0
            )
        else:
            outputs = load_outputs(file, names, class_names, fitted)
            methods = {"model": "uncalibrated", "head": fitted}
            result = evaluate(methods, outputs, max_risk=max_risk, keep_samples=0)  # tables of groups, none of rows
    if as_json:
        say_json(result.to_json())
        return
    if is_answer_head(fitted) and max_risk is not None:
        say("\n".join([f"{result}\n", *_accepted_table(result)]))
        return
    given = [row for row in result.table("advice", method="head", metric="followed") if row["count"]]
    cells = [[row["advice"], f"{row['count']:.0f}", *(f"{row[name]:.3f}" for name in ENDS)] for row in given]
    titles = ["advice", "count", "right", "low", "high"]
    if max_risk is not None:
        kept = {row["advice"]: row for row in result.table("advice", method="head", metric="accepted_risk")}
        titles += ["accepted", "wrong of them"]
        for cell in cells:
            wrong = kept[cell[0]]
            cell += [f"{wrong['count']:.0f}", f"{wrong['value']:.3f}" if wrong["count"] else "-"]
    table = aligned([titles, *cells])
    say("\n".join([f"{result}\n", "Advice of the head", *table]))


def _accepted_table(result: "Evaluation") -> list[str]:
    """How many answers are accepted and how many of them right, and the same of the others."""
    from atypicality.metrics.intervals import wilson_interval

    share, wrong, right = (
        result.table("overall", method="head", metric=name)[0]
        for name in ("accepted_share", "accepted_risk", "accuracy")
    )
    n, kept = round(share["count"]), round(wrong["count"])
    good = kept - round(wrong["value"] * kept) if kept else 0
    rows = {"accepted": (good, kept), "not accepted": (round(right["value"] * n) - good, n - kept)}
    cells = [
        [name, f"{of:,}", *(f"{value:.3f}" for value in (count / of, *wilson_interval(count, of)))]
        for name, (count, of) in rows.items()
        if of
    ]
    return aligned([["answers", "count", "right", "low", "high"], *cells])
