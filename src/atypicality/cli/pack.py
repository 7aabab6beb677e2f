"""`atypicality pack`: arrays in whatever files they are, checked and put into one."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from atypicality.cli.files import ClassNames, Names, parse_names
from atypicality.cli.options import Memory, Scratch, large_work
from atypicality.cli.printing import say, say_json

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality pack logits.npy embeddings.npy labels.csv --out calibration.npz
atypicality pack dump.npz --names logits=scores,labels=y --out test.parquet
atypicality pack softmax.npz labels.csv --names logits=softmax --probabilities \\
    --class-names classes.txt --out test.npz
"""


def command(
    files: Annotated[
        list[Path], typer.Argument(help="Files (.npy, .npz, .safetensors, .parquet, .csv, .tsv) or folders of arrays.")
    ],
    out: Annotated[Path, typer.Option(help="File to write: .npz, .safetensors or .parquet, or a new folder.")],
    names: Names = None,
    class_names: ClassNames = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="What is given as logits are probabilities: store their logarithms.")
    ] = False,
    memory: Memory = None,
    scratch: Scratch = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as one JSON object.")] = False,
) -> None:
    """Put the arrays of several files into one, and describe them."""
    from atypicality.outputs import ModelOutputs
    from atypicality.outputs.files import check_place
    from atypicality.outputs.packing import describe, findings, from_probabilities
    from atypicality.outputs.reading import read_class_names

    check_place(out)
    with large_work("packing", memory, scratch):
        classes = None if class_names is None else read_class_names(class_names)
        outputs = ModelOutputs.load(files, names=parse_names(names), class_names=classes)
        outputs = from_probabilities(outputs) if probabilities else outputs
        found = describe(outputs)
        outputs.save(out)
        if ModelOutputs.load(out).fingerprint() != outputs.fingerprint():
            raise OSError(f"{str(out)!r} does not hold what was written to it. Is the disk in order?")
    mistakes = findings(found)
    if as_json:
        say_json(json.dumps(found | {"findings": mistakes, "out": str(out)}, indent=2))
        return
    say("\n".join(_lines(found)))
    for mistake in mistakes:
        say(f"look at this: {mistake}")
    say(f"written to {out}")


def _lines(found: dict[str, Any]) -> list[str]:
    classes = "" if found["classes"] is None else f", {found['classes']:,} classes"
    lines = [f"{found['rows']:,} rows{classes}"]
    lines += [f"  {name:<20} {kind} {tuple(shape)}" for name, (kind, shape) in found["arrays"].items()]
    if counts := [count for count in found.get("label_counts", []) if count]:
        lines.append(f"labels: {len(counts):,} classes with {min(counts):,} to {max(counts):,} rows")
    if "accuracy" in found:
        lines.append(f"the largest logit is the label's in {found['accuracy']:.1%} of the rows")
    return lines
