"""`atypicality demo`: the whole pipeline on bundled real outputs, explained as it goes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atypicality.cli.options import Seed
from atypicality.cli.printing import make_table, say_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from atypicality.cli.demo_tables import Demo
    from atypicality.datasets import Splits

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality demo
atypicality demo --alpha 0.05 --seed 1 --out demo-95
atypicality demo --json > demo.json
"""

_METRICS = {"accuracy": "accuracy", "ece": "ECE", "coverage": "coverage", "set_size": "set size"}
_SHORT = {"model": "model", "temperature scaling": "TS", "atypicality-aware": "aware"}
_MEANING = {
    "reliable": ("typical", "high"),
    "extrapolation": ("atypical", "high"),
    "ambiguous": ("typical", "low"),
    "untrustworthy": ("atypical", "low"),
}
_NEXT = """\
Open {out}/report.html to look closer; the head is saved in {out}/head, and the outputs it was made from beside it.
Next, there or with your own model's outputs (`atypicality pack` puts your arrays into such files):

  cd {out}
  atypicality fit --train train.npz --calibration calibration.npz --out my-head
  atypicality predict my-head new.npz --out answers.csv

or in Python:

  import atypicality as aty
  head = aty.ReliabilityHead().fit(train=aty.ModelOutputs(embeddings=..., labels=...),
                                   calibration=aty.ModelOutputs(logits, embeddings=..., labels=...))
  print(head.predict(aty.ModelOutputs(new_logits, embeddings=new_embeddings)))

`atypicality theory` shows why confidence and rarity belong together."""


def command(
    alpha: Annotated[float, typer.Option(help="Share of prediction sets that may miss the label.")] = 0.1,
    random_state: Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder for the fitted head, the report and the outputs.")] = Path(
        "demo-output"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Run the whole pipeline on bundled real outputs."""
    from atypicality.blocks.progress import working
    from atypicality.cli.demo_tables import run_demo
    from atypicality.datasets import load_fashion_mnist_lt
    from atypicality.outputs.paths import check_target
    from atypicality.shipping.bundle.folder import check_place

    check_place(out / "head")
    check_target(out / "report.html")
    with working("fitting and measuring"):
        splits = load_fashion_mnist_lt()
        demo = run_demo(splits=splits, alpha=alpha, random_state=random_state)
        demo.head.save(out / "head")
        _save_outputs(splits, out)
        demo.evaluation.report(out / "report.html", head=demo.head, title="Fashion-MNIST, long-tailed")
    if as_json:
        say_json(json.dumps(demo.to_dict(), indent=2, allow_nan=False))
        return
    from rich.console import Console

    _print(Console(highlight=False), demo, out)


def _save_outputs(splits: "Splits", out: Path) -> None:
    """The files of the commands to try next; of new rows the labels are not known."""
    from atypicality.outputs import ModelOutputs

    new = ModelOutputs(splits.test.logits, embeddings=splits.test.embeddings, class_names=splits.test.class_names)
    for name, part in (splits._asdict() | {"new": new}).items():
        part.save(out / f"{name}.npz")


def _print(console: "Console", demo: "Demo", out: Path) -> None:
    from atypicality.cli.demo_tables import AWARE, MODEL, SINGLE

    (common, most), *_, (rare, fewest) = demo.class_counts.items()
    sizes = demo.sizes
    console.print("[bold]Which predictions can be trusted?[/]")
    console.print(
        f"A small network has learnt {len(demo.class_counts)} kinds of clothing, some from few images: of "
        f"{sizes['train']:,} training rows {most:,} are {common} and {fewest} {rare}. From its embeddings we learn "
        f"how rare an input is; {sizes['recalibration']:,} held-out rows recalibrate the probabilities, and "
        f"{sizes['edges'] + sizes['thresholds']:,} others decide how large a prediction set must be to "
        f"hold the label {1 - demo.alpha:.0%} of the time. All numbers below come from {sizes['test']:,} test "
        "rows that nothing was fitted on.\n"
    )
    console.print("[bold]1. Overall[/]  (ECE: gap between confidence and accuracy, smaller is better)")
    console.print(_overall(demo))
    console.print("[bold]2. Probabilities, from typical (1) to atypical inputs (5)[/]")
    console.print(_groups(demo, {"accuracy": (MODEL, AWARE), "ece": (MODEL, SINGLE, AWARE)}))
    console.print(_trend(demo))
    console.print("[bold]3. Prediction sets, from typical (1) to atypical inputs (5)[/]")
    console.print(_groups(demo, {"coverage": (SINGLE, AWARE), "set_size": (SINGLE, AWARE)}))
    console.print(_covered(demo))
    console.print("[bold]4. What to trust[/]  (high confidence: from 90 %; atypical: the last fifth of held-out rows)")
    console.print(_quadrants(demo))
    console.print("[bold]5. One prediction of each kind[/]  (the row nearest to the middle of its kind)")
    console.print(_examples(demo))
    console.print(_NEXT.format(out=out), soft_wrap=True)


def _overall(demo: "Demo") -> "Table":
    table = make_table("", "accuracy", "NLL", "ECE", "coverage", "set size", left=("",))
    for method in demo.evaluation.methods:
        values = {row["metric"]: row["value"] for row in demo.evaluation.table("overall", method=method)}
        cells = [f"{values['accuracy']:.1%}", f"{values['nll']:.3f}", f"{values['ece']:.1%}"]
        sets = [f"{values['coverage']:.1%}", f"{values['set_size']:.2f}"] if "coverage" in values else ["-", "-"]
        table.add_row(method, *cells, *sets)
    return table


def _groups(demo: "Demo", shown: "dict[str, tuple[str, ...]]") -> "Table":
    pairs = [(metric, method) for metric, methods in shown.items() for method in methods]
    names = [f"{_METRICS[metric]}\n{_SHORT[method]}" for metric, method in pairs]
    rows = demo.evaluation.table("atypicality_groups")
    found = {(row["group"], row["metric"], row["method"]): row for row in rows}
    table = make_table("fifth", "rows", *names)
    for group in sorted({row["group"] for row in rows}):
        cells = [(metric, found[group, metric, method]["value"]) for metric, method in pairs]
        texts = [f"{value:.2f}" if metric == "set_size" else f"{value:.1%}" for metric, value in cells]
        table.add_row(str(group + 1), f"{found[group, *pairs[0]]['count']:,.0f}", *texts)
    return table


def _quadrants(demo: "Demo") -> "Table":
    words = ("kind", "input", "level")
    table = make_table(*words, "rows", "confidence", "accuracy", "set size", left=words)
    for row in demo.quadrants:
        numbers = (f"{row.count:,}", f"{row.confidence:.1%}", f"{row.accuracy:.1%}", f"{row.set_size:.2f}")
        table.add_row(row.quadrant, *_MEANING[row.quadrant], *numbers)
    return table


def _examples(demo: "Demo") -> "Table":
    words = ("kind", "model says", "aware says", "truth", "prediction set")
    table = make_table(words[0], "rarer\nthan", *words[1:], left=words)
    for row in demo.examples:
        model = f"{row.model_class} {row.model_confidence:.0%}"
        aware = f"{row.predicted_class} {row.confidence:.0%}"
        quantile = f"{row.atypicality_quantile:.0%}"
        table.add_row(row.quadrant, quantile, model, aware, row.true_class, ", ".join(row.prediction_set))
    return table


def _trend(demo: "Demo") -> str:
    from atypicality.cli.demo_tables import AWARE, MODEL

    (model_first, model_last), (first, last) = (
        (values[0], values[-1]) for values in (_values(demo, "ece", method) for method in (MODEL, AWARE))
    )
    return (
        f"From typical to atypical inputs the model's ECE goes from {model_first:.1%} to {model_last:.1%}, "
        f"the atypicality-aware one's from {first:.1%} to {last:.1%}.\n"
    )


def _covered(demo: "Demo") -> str:
    from atypicality.cli.demo_tables import AWARE, SINGLE

    single, aware = (min(_values(demo, "coverage", method)) for method in (SINGLE, AWARE))
    return (
        f"Target: {1 - demo.alpha:.0%}. The fifth that is covered worst: {single:.1%} with temperature scaling and one "
        f"threshold for all, {aware:.1%} with the head.\n"
    )


def _values(demo: "Demo", metric: str, method: str) -> list[float]:
    return [row["value"] for row in demo.evaluation.table("atypicality_groups", method=method, metric=metric)]
