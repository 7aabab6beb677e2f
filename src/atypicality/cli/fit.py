"""`atypicality fit`: outputs in, a saved head out."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from atypicality.cli.files import ANSWERS, ClassNames, Names, load_answers, load_together
from atypicality.cli.options import Memory, Scratch, Seed, large_work
from atypicality.cli.parts import choose_part
from atypicality.cli.printing import say, say_json
from atypicality.cli.show import in_short

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality fit --train train.npz --calibration calibration.npz --out head
atypicality fit --train train.npz --calibration calibration.npz \\
    --alpha 0.05 --sets split:score=raps --out head
atypicality fit --calibration scored.npz --recalibration temperature --out head
atypicality fit --calibration answers.jsonl --out answer-head
"""


def command(
    calibration: Annotated[
        Path,
        typer.Option(
            help="Outputs with logits and labels that the model never trained on; or answers of a language model "
            "(.jsonl), each correct or not, for an answer head."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to save the head in.")],
    train: Annotated[
        Path | None,
        typer.Option(
            help="Outputs with embeddings and labels of training rows; not needed with given atypicality. For an "
            "answer head, other answers (.jsonl) to learn from which embeddings are common."
        ),
    ] = None,
    density: Annotated[
        str, typer.Option(help="How rare an input is: auto, choose, none, gaussian, relative or neighbor.")
    ] = "auto",
    recalibration: Annotated[
        str, typer.Option(help="auto, atypicality-aware, temperature, vector or another; settings follow a colon.")
    ] = "auto",
    sets: Annotated[
        str, typer.Option(help="Prediction sets: auto, conditional, atypicality-aware, split or split:score=raps.")
    ] = "auto",
    alpha: Annotated[float, typer.Option(help="Share of prediction sets that may miss the label.")] = 0.1,
    random_state: Seed = 0,
    names: Names = None,
    class_names: ClassNames = None,
    memory: Memory = None,
    scratch: Scratch = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Fit a reliability head on a model's outputs and save it."""
    from atypicality.head import ReliabilityHead
    from atypicality.shipping.bundle.folder import check_place

    check_place(out)
    parameters = _parts(density, recalibration, sets, alpha, random_state)
    parameters |= {"alpha": alpha, "random_state": random_state}
    files = {"calibration": calibration} | ({} if train is None else {"train": train})
    with large_work("fitting", memory, scratch):
        if calibration.suffix.lower() == ANSWERS:
            head = _answer_head(**parameters)
            known = load_answers(calibration, names, class_names, checked=True)
            head.fit(known, train=None if train is None else _more_answers(train, calibration, names))
        else:
            head = ReliabilityHead(**parameters).fit(**load_together(files, names, class_names))
        sha256 = head.save(out)
    if as_json:
        told = {"sizes": head.sizes_, "metrics": head.metrics_, "out": str(out), "sha256": sha256}
        say_json(json.dumps(told, indent=2))
        return
    say(in_short(head))
    say(head.summary())
    say(f"sha256 {sha256}")
    risk = " --max-risk 0.05" if calibration.suffix.lower() == ANSWERS else ""
    say(f"saved in {out}; next: atypicality predict {out} FILE{risk} --out FILE")


def _more_answers(train: Path, calibration: Path, names: list[str] | None = None) -> Any:
    from atypicality.validation import warn

    if train.exists() and train.samefile(calibration):
        warn(
            "--train and --calibration are the same file: its answers look more typical than new ones. Leave --train "
            "out, or give other answers there."
        )
    return load_answers(train, names)


def _answer_head(recalibration: Any, prediction_sets: Any, **parameters: Any) -> Any:
    from atypicality.llm import AnswerHead

    if not (recalibration == prediction_sets == "auto"):
        raise ValueError("--recalibration and --sets are for outputs of a classifier; leave them out for answers.")
    return AnswerHead(**parameters)


def _parts(density: str, recalibration: str, sets: str, alpha: float, random_state: int) -> dict[str, Any]:
    from atypicality.head.head import DENSITIES, PREDICTION_SETS, RECALIBRATIONS

    given = {"alpha": alpha, "random_state": random_state}
    auto = {"auto": "auto"}
    return {
        "density": choose_part(density, "--density", DENSITIES, auto | {"choose": "choose", "none": None}),
        "recalibration": choose_part(recalibration, "--recalibration", RECALIBRATIONS, auto, random_state=random_state),
        "prediction_sets": choose_part(sets, "--sets", PREDICTION_SETS, auto, **given),
    }
