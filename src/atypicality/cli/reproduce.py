"""`atypicality reproduce`: the paper's experiments, its numbers beside ours."""

from pathlib import Path
from typing import Annotated

import typer

from atypicality.cli.files import Names, parse_names
from atypicality.cli.printing import say, say_json

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality reproduce balanced
atypicality reproduce all --outputs folder --seeds 3 --without adats --out tables
atypicality reproduce conformal --alpha 0.1 --json
"""


def command(
    experiment: Annotated[
        str,
        typer.Argument(
            help="balanced, imbalanced, llm, conformal, subgroups, temperatures, class-scores, theory, all, or answers."
        ),
    ],
    outputs: Annotated[
        Path | None,
        typer.Option(help="Folder with a folder of outputs per model, one model's, or a file; default: bundled."),
    ] = None,
    names: Names = None,
    dataset: Annotated[
        str | None, typer.Option(help="Only data sets whose name holds this text; of one model, which data set it is.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only models or folders whose name holds this text.")] = None,
    seeds: Annotated[int, typer.Option(help="Random halves, with the seeds from 0 on.", min=1)] = 10,
    methods: Annotated[
        str | None,
        typer.Option(
            help="More methods, with commas between: aware, vector, ensemble, adats; of conformal lac, aa-lac, saps, "
            "aa-saps."
        ),
    ] = None,
    without: Annotated[
        str | None, typer.Option(help="Methods to leave out, such as adats, which takes most of the time.")
    ] = None,
    alpha: Annotated[float, typer.Option(help="Allowed miscoverage of prediction sets; the paper's is 0.05.")] = 0.05,
    errors: Annotated[
        bool, typer.Option("--errors", help="Print standard errors too; files have them always.")
    ] = False,
    paper: Annotated[
        bool, typer.Option("--paper", help="Also show the paper's numbers of settings without outputs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for tables and for finished results.")] = Path("reproduction"),
) -> None:
    """Run an experiment of the paper, and judge its claims.

    Prints and writes our numbers, the paper's and the difference.
    """
    from atypicality.paper import EXPERIMENTS, reproduce
    from atypicality.paper.answers import reproduce_answers
    from atypicality.validation import check_choice

    check_choice(experiment, "experiment", (*EXPERIMENTS, "answers", "all"))
    if experiment == "answers":
        if outputs is None:
            raise typer.BadParameter("answers needs --outputs, files that `atypicality llm answers` wrote")
        found = reproduce_answers(outputs, seeds=range(seeds))
    else:
        found = reproduce(
            experiment,
            outputs=outputs,
            dataset=dataset,
            model=model,
            seeds=range(seeds),
            methods=_listed(methods),
            without=_listed(without),
            alpha=alpha,
            names_of=parse_names(names),
            paper=paper,
            out=out,
        )
    if as_json:
        say_json(found.to_json(indent=2))
    else:
        say(found.to_text(errors))
    written = found.write(out)
    if written:
        say(f"written: {', '.join(map(str, written))}", err=as_json)


def _listed(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]
