"""`atypicality show`: what a saved head is, after its hashes were found right."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from atypicality.cli.files import Sha256, is_answer_head, load_head
from atypicality.cli.printing import say, say_json
from atypicality.terminal import listed

__all__ = ["EXAMPLES", "command", "in_short"]

EXAMPLES = """
atypicality show head
atypicality show head --sha256 "$(cat head.sha256)"
atypicality show head --json
"""

MOST_NAMES = 20


def command(
    head: Annotated[Path, typer.Argument(help="Folder of a saved head.")],
    sha256: Sha256 = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Check a saved head and describe it.

    A head that is damaged, or another than --sha256 says, is one line on stderr and the exit code 2.
    """
    from atypicality.shipping.bundle import saved_sha256

    found = saved_sha256(head)
    fitted = load_head(head, sha256 or found)
    described = _described(fitted, head) | {"sha256": found}
    if as_json:
        say_json(json.dumps(described | {"sizes": fitted.sizes_, "metrics": fitted.metrics_}, indent=2))
        return
    names = described["classes"]
    more = "" if len(names) <= MOST_NAMES else f", and {len(names) - MOST_NAMES} more"
    say(in_short(fitted))
    say(fitted.summary())
    if not is_answer_head(fitted):
        say(f"  classes         {listed(names[:MOST_NAMES])}{more}")
    if described["inputs"]:
        say(f"  inputs          {', '.join(f'{name} {width or 1}' for name, width in described['inputs'].items())}")
    for name in ("alpha", "calibration", "written", "sha256"):
        say(f"  {name:<15} {described[name]}")


def in_short(head: Any) -> str:
    """One line for who runs a head and did not make it: what it takes, and that it can be used."""
    if is_answer_head(head):
        return "Ready to use: it takes answers (.jsonl). How it was fitted:"
    from atypicality.head.prediction import input_widths

    before, after = (head.metrics_[when]["accuracy"] for when in ("before", "after"))
    takes = " and ".join(f"{name} ({width or 1} columns)" for name, width in input_widths(head).items())
    right = f"{after:.1%} of its predictions for held-out rows are right, {before:.1%} of the model's"
    return f"Ready to use: it takes {takes}; {right}. How it was fitted:"


def _described(head: Any, folder: Path) -> dict[str, Any]:
    from atypicality.head.prediction import input_widths
    from atypicality.monitoring.windows import as_text
    from atypicality.shipping.bundle.document import NAME

    names = range(head.n_classes_) if head.class_names_ is None else head.class_names_.tolist()
    return {
        "inputs": {} if is_answer_head(head) else input_widths(head),
        "classes": [str(name) for name in names],
        "alpha": float(getattr(head.prediction_sets_, "alpha", head.alpha)),
        "calibration": head.fingerprint_,
        "written": as_text((folder / NAME).stat().st_mtime),
    }
