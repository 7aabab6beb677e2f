"""`compare`: methods refitted on random halves, as the paper does, with means and standard errors over the halves."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from atypicality.blocks.progress import track
from atypicality.evaluation.context import Context, make_context
from atypicality.evaluation.cuts import Edges
from atypicality.evaluation.methods import Answer, ask, by_name, fit, named_methods, naming
from atypicality.evaluation.result import Evaluation
from atypicality.evaluation.schema import STATISTICS, TABLES, Row, keys_of
from atypicality.evaluation.scored import Options
from atypicality.evaluation.tables import Measured, assemble, measure
from atypicality.outputs import ModelOutputs
from atypicality.validation import check_alpha, check_integer

__all__ = ["compare", "compare_objects", "measure_split"]

WITHIN_UNIT = (
    *("accuracy", "confidence", "coverage", "followed", "share", "risk", "ece", "rmsce", "adaptive_ece"),
    *("classwise_ece", "worst_sixth_coverage", "worst_cell_coverage", "worst_size_coverage"),
)
"""Metrics that cannot leave [0, 1]; nor shall their intervals."""


def compare(
    methods: Any,
    outputs: ModelOutputs,
    *,
    train: Any = None,
    n_splits: int = 10,
    random_state: int = 0,
    alpha: float = 0.1,
    n_groups: int = 5,
    grid: tuple[int, int] = (6, 6),
    n_bins: int = 10,
    groups: str | None = None,
) -> Evaluation:
    """Refit methods on random halves of labelled outputs and measure them on the other halves.

    The paper's protocol (appendix C): split s draws one half of the rows with seed `random_state + s`; methods learn
    on it, and the other half, cut at its own quantiles of atypicality, measures them. Values are means over the
    splits, standard errors are sd / sqrt(n_splits), and intervals are Student's over the splits: they speak of the
    splits of these rows, not of new rows. Differences of two methods, in the table `changes`, are taken split by split
    and have intervals for new rows: splits share rows, so the variance of their mean is (1 / n_splits + 1) sd^2 (Nadeau
    and Bengio 2003).

    Parameters
    ----------
    methods : name, sequence of names, or mapping of names to names or objects
        Names: "uncalibrated", "ts", "group-ts", "vector", "ensemble", "adats", "aar" (the paper's), "aware" (the
        default form), and the prediction sets "lac", "aps", "raps", "saps", "aa-lac" ... "aa-saps" and "conditional",
        which use one half of the calibration rows for a temperature and the other for the sets. Objects: a
        recalibrator, a head, or a pair (recalibrator or None, conformal predictor). A copy of each is fitted on every
        half; an object that does not learn from labelled logits (content-free calibration) is used as it is.
    outputs : ModelOutputs
        Logits and labels; embeddings, unless `atypicality` is given with them.
    train : ModelOutputs or fitted density, optional
        Training embeddings and labels, or a density fitted on them; the training rows are the same for every split.
    n_splits : int, default=10
    random_state : int, default=0
    alpha : float, default=0.1
        Allowed miscoverage of the sets made by name.
    n_groups, grid, n_bins, groups : as in `evaluate`

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> import atypicality as aty
    >>> world = aty.datasets.make_world(2000, temperature=2.0)
    >>> comparison = aty.compare(["uncalibrated", "ts"], world.outputs(), n_splits=3)
    >>> before, after = (row["value"] for row in comparison.table("overall", metric="ece"))
    >>> after < before / 2
    True
    """
    check_alpha(alpha)
    named = {name: by_name(method, alpha) for name, method in named_methods(methods).items()}
    options = Options.checked(n_groups, grid, n_bins, intervals=False)
    return compare_objects(named, outputs, train, n_splits, random_state, options, groups)


def compare_objects(
    named: dict[str, Any],
    outputs: ModelOutputs,
    train: Any,
    n_splits: int,
    random_state: int,
    options: Options,
    groups: str | None,
) -> Evaluation:
    """As `compare`, of methods that are objects."""
    n_splits = check_integer(n_splits, "n_splits", low=1)
    first = check_integer(random_state, "random_state", low=0)
    context = make_context(outputs, train, groups)
    seeds = range(first, first + n_splits)
    parts = [
        measure_split(named, *context.split(0.5, seed), seed, options)
        for seed in track(seeds, "Comparing", unit="splits")
    ]
    settings = {"random_state": first, "groups": groups, "stored_edges": False, "atypicality": context.scale}
    return assemble("compare", merge(parts), outputs, list(named), options, settings, n_splits)


def measure_split(named: dict[str, Any], calibration: Context, test: Context, seed: int, options: Options) -> Measured:
    """Fit every method on the calibration rows and measure it on the test rows."""

    def answers() -> Iterator[tuple[str, Answer, Edges]]:
        for name, method in named.items():
            with naming(name):
                answer = ask(fit(method, calibration, seed), test)
            yield name, answer, Edges()  # nothing stored: the paper cuts the test half at its own quantiles

    return measure(answers(), test, options)


def merge(parts: Sequence[Measured]) -> Measured:
    """What several splits measured as one: averages of the rows, and every note once."""
    rows = {name: average(name, [part.rows[name] for part in parts]) for name in TABLES}
    notes = list(dict.fromkeys(note for part in parts for note in part.notes))
    return Measured(rows, notes, parts[0].alphas, parts[0].n_classes, parts[0].guaranteed)


def average(table: str, parts: Sequence[list[Row]]) -> list[Row]:
    """Rows of several splits as one: means of the numbers, and the spread of `value` over the splits.

    A row that some splits lack, and a value that is not a number there, is averaged over the others.
    """
    keys = keys_of(table)
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in (row for part in parts for row in part):
        found.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return [dict(zip(keys, key, strict=True)) | _averaged(table, rows) for key, rows in found.items()]


def _averaged(table: str, rows: list[Row]) -> Row:
    numbers = [name for name in TABLES[table] if name in STATISTICS]
    means = {name: _mean([row.get(name) for row in rows]) for name in numbers}
    if "value" not in means:
        return means
    values = np.array([row["value"] for row in rows], np.float64)
    values = values[np.isfinite(values)]
    paired = table == "changes"  # of two methods: these speak of new rows, and may be negative
    worth = values.size / (1 + paired * values.size)  # splits that shared no row
    error = values.std(ddof=1) / worth**0.5 if values.size > 1 else np.nan
    reach = stdtrit(max(values.size - 1, 1), 0.975) * error
    low, high = means["value"] - reach, means["value"] + reach
    if not paired and rows[0].get("metric") in WITHIN_UNIT:
        low, high = max(low, 0.0), min(high, 1.0)
    return means | {"standard_error": error, "low": low, "high": high}


def _mean(values: list[float | None]) -> float:
    array = np.array([np.nan if value is None else value for value in values], np.float64)
    array = array[~np.isnan(array)]
    return float(array.mean()) if array.size else float("nan")
