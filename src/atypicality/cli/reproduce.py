"""`atypicality reproduce`: the paper's experiments, its numbers beside ours."""

from pathlib import Path
from typing import Annotated

import typer

from atypicality.cli.printing import say, say_json

__all__ = ["command"]


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
    names: Annotated[
        str | None, typer.Option(help="The files' names of arrays, with commas between: logits=scores,labels=y.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Only data sets whose name holds this text; of one model, which data set it is.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only models whose name holds this text.")] = None,
    seeds: Annotated[int, typer.Option(help="Random halves, with the seeds from 0 on.", min=1)] = 10,
    methods: Annotated[
        str | None, typer.Option(help="More methods, with commas between: aware, vector, ensemble.")
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
    """Run an experiment of the paper. Prints and writes ours, the paper's and the difference; judges its claims."""
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
            names_of=_renamed(names),
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


def _renamed(text: str | None) -> dict[str, str]:
    """Our names of arrays to the files', from OURS=THEIRS with commas between."""
    pairs = [part.partition("=") for part in _listed(text)]
    if wrong := [ours for ours, mark, theirs in pairs if not mark or not theirs.strip()]:
        raise typer.BadParameter(f"--names must be OURS=THEIRS with commas between; got {wrong[0]!r}")
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}
