"""`atypicality evaluate`: a saved head against the bare model, on labelled outputs."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from atypicality.cli.files import ClassNames, Names, load_outputs
from atypicality.cli.memory import Memory, Scratch, large_work
from atypicality.cli.printing import say, say_json
from atypicality.terminal import aligned

__all__ = ["EXAMPLES", "command"]

ENDS = ("value", "low", "high")
EXAMPLES = """
atypicality evaluate head test.npz
atypicality evaluate head test.npz --max-risk 0.05
atypicality evaluate head test.npz --json > evaluation.json
"""


def command(
    head: Annotated[Path, typer.Argument(help="Folder of a saved head.")],
    file: Annotated[Path, typer.Argument(help="Labelled outputs that the head was not fitted on.")],
    max_risk: Annotated[
        float | None,
        typer.Option(help="Also measure the predictions that predict keeps at this risk: how many, and how many err."),
    ] = None,
    names: Names = None,
    class_names: ClassNames = None,
    memory: Memory = None,
    scratch: Scratch = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every table as one JSON object.")] = False,
) -> None:
    """Measure a saved head and the bare model on labelled outputs.

    Tables by atypicality, confidence, class, subgroup and advice.
    """
    from atypicality.evaluation import evaluate
    from atypicality.shipping.bundle import load

    with large_work("evaluating", memory, scratch):
        fitted, outputs = load(head), load_outputs(file, names, class_names)
        result = evaluate({"model": "uncalibrated", "head": fitted}, outputs)
        kept = {} if max_risk is None else _kept(fitted, outputs, max_risk)
    if as_json:
        say_json(json.dumps(json.loads(result.to_json()) | {"max_risk": kept}) if kept else result.to_json())
        return
    given = [row for row in result.table("advice", method="head", metric="followed") if row["count"]]
    given += [kept | {"advice": f"kept at a risk of {max_risk:g}"}] if kept else []
    cells = [[row["advice"], f"{row['count']:.0f}", *map(_cell, (row[name] for name in ENDS))] for row in given]
    say(
        "\n".join(
            [f"{result}\n", "Advice of the head", *aligned([("advice", "count", "right", "low", "high"), *cells])]
        )
    )


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _kept(head: Any, outputs: Any, max_risk: float) -> dict[str, float | None]:
    """How many predictions the head keeps at a risk, and the share that is right, with its interval."""
    from atypicality.metrics.intervals import wilson_interval
    from atypicality.validation import caught_warnings

    with caught_warnings():  # of drift, of which evaluate has warned
        answer = head.predict(outputs, max_risk=max_risk).on_host()
    right = (answer.label == outputs.labels)[answer.accepted]
    found = {"requested": max_risk, "count": right.size, "value": None, "low": None, "high": None}
    if right.size:
        found |= zip(ENDS, map(float, (right.mean(), *wilson_interval(right.sum(), right.size))), strict=True)
    return found
