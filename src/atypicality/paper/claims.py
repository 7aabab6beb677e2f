"""The paper's claims as statements with a margin: above 0 where our numbers say what the paper says."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.evaluation import Evaluation
from atypicality.paper.jobs import ALPHA, Result
from atypicality.paper.readings import GROUP_TABLES, by_group, class_correlation, subgroup_values

__all__ = ["CLAIMS", "HOLDS", "Verdict", "judge"]

CLAIMS = {
    1: "ECE rises and accuracy falls with atypicality",
    2: "Inside one range of confidence, atypical points are more overconfident",
    3: "The temperature fitted per quantile of atypicality rises with atypicality",
    4: "AAR has a lower ECE than temperature scaling, most of all for the most atypical group",
    5: "On long-tailed data AAR raises accuracy, above all for the rarest classes; class scores rise with rarity",
    6: "AAR is more accurate and better calibrated than the language model itself and content-free calibration",
    7: "AAR narrows gaps between subgroups without group labels, even against a temperature per group",
    8: "APS and RAPS under-cover atypical, unconfident inputs while covering on average; aware sets repair it",
    9: "Theorems 1 and 2, in simulation",
}
HOLDS, PARTLY, FAILS, UNKNOWN = "holds", "not for every seed", "does not hold", "cannot be judged"


@dataclass(frozen=True)
class Verdict:
    """One statement of a claim, judged over the seeds.

    Attributes
    ----------
    claim : int
    statement : str
    where : str
        Model, data set and estimator.
    margin, standard_error : float
        Mean over the seeds of how far the numbers lie on the paper's side, and its standard error.
    n_true, n_seeds : int
        In how many seeds the statement is true.
    """

    claim: int
    statement: str
    where: str
    margin: float
    standard_error: float
    n_true: int
    n_seeds: int

    @property
    def verdict(self) -> str:
        """What our numbers say: a statement holds when it is true for every seed."""
        if np.isnan(self.margin):
            return UNKNOWN
        if self.n_true == self.n_seeds:
            return HOLDS
        return PARTLY if self.margin > 0 else FAILS


Margins = dict[tuple[int, str], float]


def judge(experiment: str, claims: Iterable[int], results: Sequence[Result], where: str) -> list[Verdict]:
    """Every statement of the claims, over the results of the seeds."""
    wanted = set(claims)
    seeds = [margins(experiment, result) for result in results]
    return [
        _verdict(claim, statement, where, np.array([seed[claim, statement] for seed in seeds]))
        for claim, statement in seeds[0]
        if claim in wanted
    ]


def margins(experiment: str, result: Result) -> Margins:
    """The margins of every statement that an experiment can judge, for one seed; NaN where it cannot be told."""
    if isinstance(result, dict):
        return _theory(result)
    makers: dict[str, Sequence[Callable[[Evaluation], Margins]]] = {
        "balanced": (_quality, _same_confidence, _recalibrated),
        "imbalanced": (
            partial(_quality, table=GROUP_TABLES["imbalanced"]),
            partial(_same_confidence, table="class_grid"),
            partial(_recalibrated, table=GROUP_TABLES["imbalanced"]),
            _long_tail,
        ),
        "llm": (_quality, _language),
        "conformal": (_sets,),
        "subgroups": (_subgroups,),
        "temperatures": (_temperatures,),
        "class-scores": (_class_scores,),
    }
    return dict(item for maker in makers[experiment] for item in maker(result).items())


def _verdict(claim: int, statement: str, where: str, values: NDArray[np.float64]) -> Verdict:
    error = values.std(ddof=1) / values.size**0.5 if values.size > 1 else np.nan
    n_true = int((values > 0).sum())
    return Verdict(claim, statement, where, float(values.mean()), float(error), n_true, values.size)


def _quality(result: Evaluation, table: str = "atypicality_groups") -> Margins:
    error, accuracy = (by_group(result, table, "uncalibrated", metric) for metric in ("ece", "accuracy"))
    if not error.size:
        return {}
    return {
        (1, "ECE is higher in the most atypical group than in the most typical"): error[-1] - error[0],
        (1, "ECE rises at every step"): np.diff(error).min(),
        (1, "accuracy is lower in the most atypical group than in the most typical"): accuracy[0] - accuracy[-1],
        (1, "accuracy falls at every step"): -np.diff(accuracy).max(),
    }


def _same_confidence(result: Evaluation, table: str = "grid") -> Margins:
    """Overconfidence of the atypical half minus the typical half, averaged over ranges of confidence by their rows."""
    rows = result.table(table, method="uncalibrated", metric="overconfidence")
    if not rows:
        return {}
    middle = (max(row["group"] for row in rows) + 1) / 2
    gaps, weights = [], []
    for level in {row["confidence_group"] for row in rows}:
        cells = [row for row in rows if row["confidence_group"] == level and row["count"] > 0]
        halves = [[row for row in cells if (row["group"] >= middle) == atypical] for atypical in (False, True)]
        if all(halves):
            typical, atypical = (_mean(half) for half in halves)
            gaps.append(atypical - typical)
            weights.append(min(sum(row["count"] for row in half) for half in halves))
    margin = float(np.average(gaps, weights=weights)) if gaps else float("nan")
    return {(2, "at equal confidence the atypical half is more overconfident"): margin}


def _mean(cells: Sequence[dict[str, Any]]) -> float:
    return float(np.average([row["value"] for row in cells], weights=[row["count"] for row in cells]))


def _recalibrated(result: Evaluation, table: str = "atypicality_groups") -> Margins:
    single, aware = (by_group(result, table, method, "ece") for method in ("ts", "aar"))
    if not single.size or not aware.size:
        return {}
    gain = single - aware
    return {
        (4, "mean ECE over the groups is lower with AAR"): gain.mean(),
        (4, "ECE of the most atypical group is lower with AAR"): gain[-1],
        (4, "the gain is largest in the most atypical group"): gain[-1] - gain[:-1].max(),
    }


def _long_tail(result: Evaluation) -> Margins:
    table = GROUP_TABLES["imbalanced"]
    before, after = (by_group(result, table, method, "accuracy") for method in ("uncalibrated", "aar"))
    if not before.size or not after.size:
        return {}
    gain = after - before
    return {
        (5, "accuracy is higher with AAR"): _gain(result, "uncalibrated", "accuracy"),
        (5, "accuracy of the rarest classes is higher with AAR"): gain[-1],
        (5, "the gain is largest in the rarest classes"): gain[-1] - gain[:-1].max(),
    }


def _class_scores(result: Evaluation) -> Margins:
    return {(5, "class scores correlate with class atypicality"): class_correlation(result)}


def _temperatures(result: Evaluation) -> Margins:
    fitted = np.array([row["value"] for row in result.table("temperatures")])
    return {
        (3, "the temperature of the most atypical group is above that of the most typical"): fitted[-1] - fitted[0],
        (3, "the temperature rises at every step"): np.diff(fitted).min(),
    }


def _language(result: Evaluation) -> Margins:
    found: Margins = {}
    for other in ("uncalibrated", "content-free"):
        if other in result.methods:
            found[6, f"AAR is more accurate than {other}"] = _gain(result, other, "accuracy")
            found[6, f"AAR has a lower ECE than {other}"] = -_gain(result, other, "ece")
    return found


def _subgroups(result: Evaluation) -> Margins:
    values = subgroup_values(result)

    def change(metric: str, row: str) -> float:
        return values[metric, (row,), "aar"] - values[metric, (row,), "group-ts"]

    return {
        (7, "the worst group is more accurate with AAR"): change("accuracy", "worst"),
        (7, "the worst group has a lower ECE with AAR"): -change("ece", "worst"),
        (7, "the gap in accuracy is smaller with AAR"): -change("accuracy", "gap"),
        (7, "the gap in ECE is smaller with AAR"): -change("ece", "gap"),
    }


def _sets(result: Evaluation) -> Margins:
    """In the third of the grid's levels with the lowest confidence and the highest atypicality."""
    found: Margins = {}
    for score in ("aps", "raps"):
        plain, aware = (_corner(result, method) for method in (score, f"aa-{score}"))
        name = score.upper()
        found[8, f"{name} covers on average"] = _overall(result, score, "coverage") - (1 - ALPHA)
        found[8, f"{name} under-covers atypical, unconfident inputs"] = (1 - ALPHA) - plain
        repaired = abs(plain - (1 - ALPHA)) - abs(aware - (1 - ALPHA))
        found[8, f"AA-{name} is nearer to its promise there"] = repaired
    return found


def _corner(result: Evaluation, method: str) -> float:
    n_rarity, n_confidence = result.settings["grid"]
    rows = result.table("grid", method=method, metric="coverage")
    inside = [row for row in rows if row["group"] >= 2 * n_rarity / 3 and row["confidence_group"] < n_confidence / 3]
    inside = [row for row in inside if row["count"] > 0]
    return _mean(inside) if inside else float("nan")


def _gain(result: Evaluation, other: str, metric: str) -> float:
    return _overall(result, "aar", metric) - _overall(result, other, metric)


def _overall(result: Evaluation, method: str, metric: str) -> float:
    [row] = result.table("overall", method=method, metric=metric)
    return float(row["value"])


def _theory(result: dict[str, Any]) -> Margins:
    rows = result["theorem_1"]["rows"]  # from the largest training set to the smallest
    curves = np.array([row["overconfidence"] for row in rows])
    found: Margins = {
        (9, "theorem 1: overconfidence rises at every step of atypicality"): np.diff(curves, axis=1).min(),
        (9, "theorem 1: it rises more for smaller training sets"): np.diff([row["rise"] for row in rows]).min(),
    }
    for theorem in result["theorem_2"]:
        for loss in ("squared", "cross_entropy"):
            excess = max(row[f"excess_{loss}"] for row in theorem["rows"])
            text = f"theorem 2, norm {theorem['norm']:g}, {loss.replace('_', '-')}: an aware temperature is never worse"
            found[9, text] = np.finfo(float).eps - excess  # "never worse" allows equality
    return found
