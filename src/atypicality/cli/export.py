"""`atypicality export`: a saved head as an ONNX graph."""

from pathlib import Path
from typing import Annotated

import typer

from atypicality.cli.files import Sha256, load_head, refuse_answer_head
from atypicality.cli.printing import say

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality export head --out head.onnx
atypicality export head --network network.onnx --out whole.onnx
atypicality export head --max-risk 0.05 --no-verify --out head.onnx
"""


def command(
    head: Annotated[Path, typer.Argument(help="Folder of a saved head.")],
    out: Annotated[Path, typer.Option(help="ONNX file to write.")],
    max_risk: Annotated[
        float | None,
        typer.Option(help="Also give which predictions to keep so that at most this share is wrong, as in predict."),
    ] = None,
    network: Annotated[
        Path | None,
        typer.Option(help="ONNX file of the network, with outputs logits and embeddings, to put the head behind."),
    ] = None,
    verify: Annotated[bool, typer.Option(help="Compare the graph with the head in onnxruntime.")] = True,
    sha256: Sha256 = None,
) -> None:
    """Write a saved head as an ONNX graph that needs no Python."""
    from atypicality.blocks.progress import working
    from atypicality.outputs.paths import check_target

    check_target(out)
    if out.suffix.lower() != ".onnx":
        raise ValueError(f"--out is an ONNX file and must end in .onnx; got {out.name!r}.")
    refuse_answer_head(head, "has no graph: its signals come from texts")
    with working("exporting"):
        load_head(head, sha256).export_onnx(out, max_risk=max_risk, network=network, verify=verify)
    say(f"written to {out}" + (", and its answers equal the head's" if verify else ""))
