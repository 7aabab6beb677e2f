"""`atypicality theory`: the paper's two theorems in simulation, and where they stop holding."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atypicality.cli.options import Seed
from atypicality.cli.printing import make_table, say_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from atypicality.paper.theory import OverconfidenceRow, Theorem1, Theorem2

__all__ = ["EXAMPLES", "command"]

EXAMPLES = """
atypicality theory
atypicality theory --n-draws 1000 --seed 1 --json
"""

_NORMS = (0.25, 0.5, 1.0, 1.5, 2.0)


def command(
    n_draws: Annotated[int, typer.Option(help="Training draws to average over.")] = 200,
    random_state: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Simulate the paper's two theorems, and where they stop holding."""
    from atypicality.paper.theory import theorem_1, theorem_2

    settings = {"n_draws": n_draws, "random_state": random_state}
    rise = theorem_1(**settings)
    norms = [theorem_1(1000, norm=norm, **settings) for norm in _NORMS]
    temperatures = [theorem_2(norm=norm, **settings) for norm in (0.5, 2.0)]
    if as_json:
        say_json(json.dumps(_plain(rise, norms, temperatures), indent=2))
        return
    from rich.console import Console

    console = Console()
    _print_theorem_1(console, rise, norms)
    for result in temperatures:
        _print_theorem_2(console, result)


def _plain(rise: "Theorem1", norms: "list[Theorem1]", temperatures: "list[Theorem2]") -> dict[str, Any]:
    return {
        "theorem_1": rise.to_dict(),
        "theorem_1_norms": [result.to_dict() for result in norms],
        "theorem_2": [result.to_dict() for result in temperatures],
    }


def _print_theorem_1(console: "Console", rise: "Theorem1", norms: "list[Theorem1]") -> None:
    console.print("[bold]Theorem 3.1: overconfidence grows with atypicality, and more with less data[/]")
    console.print(
        f"Logistic regression on d = {rise.n_features} Gaussian features, true coefficients of norm {rise.norm:g}. "
        "Confidence minus accuracy, in percentage points, in five equally likely groups from the most typical inputs "
        f"(1) to the most atypical (5). Means over {rise.n_draws} training sets; 's.e.' is the largest standard error."
    )
    rows = [(f"{row.n_train}", f"{row.kappa:g}", row) for row in rise.rows]
    console.print(_overconfidence_table(("n", "d/n"), rows))
    console.print("Where it stops holding: the norm of the true coefficients must be small (n = 1000 here).")
    rows = [(f"{result.norm:g}", f"{row.estimator_norm:.2f}", row) for result in norms for row in result.rows]
    console.print(_overconfidence_table(("norm", "fitted"), rows))


def _overconfidence_table(first: tuple[str, str], rows: "list[tuple[str, str, OverconfidenceRow]]") -> "Table":
    table = make_table(*first, "1", "2", "3", "4", "5", "s.e.", "rise", "at every\nstep")
    for a, b, row in rows:
        means = [f"{100 * value:.2f}" for value in row.overconfidence]
        verdict = "rises" if row.rises else "[bold]no[/]"
        table.add_row(a, b, *means, f"{100 * max(row.standard_error):.2f}", f"{100 * row.rise:+.2f}", verdict)
    return table


def _print_theorem_2(console: "Console", result: "Theorem2") -> None:
    from atypicality.paper.theory import OUTSIDE, SMALL_NORM

    norm = f"norm {result.norm:g}" + f", {OUTSIDE}" * (result.norm > SMALL_NORM)
    console.print(f"[bold]Theorem G.2: a temperature that follows atypicality ({norm})[/]")
    console.print(
        f"Conditional calibration error, in millionths, at quantile levels of atypicality (n = {result.n_train}): "
        "with no temperature, with one for all inputs, and with one per level ('aware'). Temperatures are fitted by "
        "squared loss, which the proof needs, and by cross-entropy, as the paper words it; 'excess' is that of aware "
        "over the better of one and none."
    )
    columns = ("one\nsquared", "aware\nsquared", "one\ncross-ent.", "aware\ncross-ent.", "excess\ncross-ent.")
    table = make_table("level", "none", *columns)
    for row in result.rows:
        squared = (row.error_single_squared, row.error_aware_squared)
        cross_entropy = (row.error_single_cross_entropy, row.error_aware_cross_entropy)
        excess = f"{row.excess_cross_entropy:+.1%}"
        table.add_row(
            f"{row.level:g}",
            f"{1e6 * row.error_uncalibrated:,.0f}",
            *(f"{1e6 * error:.3g}" for error in squared + cross_entropy),
            f"[bold]{excess}[/]" if row.excess_cross_entropy > 0 else excess,
        )
    console.print(table)
    console.print(_verdict(result) + "\n")


def _verdict(result: "Theorem2") -> str:
    held = "never above the other two, as it must be" if result.holds_squared else "above another one"
    failing = ", ".join(f"{level:g}" for level in result.fails_cross_entropy)
    failed = f"above the better of them at level {failing}" if failing else "not above them at these levels"
    return f"Squared loss: the aware temperature is {held}. Cross-entropy: {failed}."
