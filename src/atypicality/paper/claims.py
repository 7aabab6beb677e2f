"""The paper's claims as statements, each with a statistic that is above 0 where the numbers say what the paper says."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, t

from atypicality.evaluation import Evaluation
from atypicality.paper.jobs import ALPHA, Result
from atypicality.paper.readings import ALL, CORNER, Values, curve, weighted_mean
from atypicality.paper.theory import OUTSIDE, SMALL_NORM

__all__ = ["CLAIMS", "HOLDS", "Spread", "Statement", "Verdict", "judge", "statistics", "untested", "verdict_on"]

CLAIMS = {
    1: "ECE rises and accuracy falls with atypicality",
    2: "Inside one range of confidence, atypical points are more overconfident",
    3: "The temperature fitted per quantile of atypicality rises with atypicality",
    4: "AAR has a lower ECE than temperature scaling in all groups of atypicality",
    5: "On long-tailed data AAR raises accuracy; class scores rise with rarity",
    6: "AAR is more accurate and better calibrated than the language model itself and content-free calibration",
    7: "AAR improves the worst subgroup without group labels, even against a temperature per group",
    8: "APS and RAPS under-cover atypical, low-confidence inputs while covering on average; aware sets correct it, "
    "AA-APS with smaller sets on average, AA-RAPS with larger ones that are smaller for confident inputs",
    9: "Theorems 3.1 and G.2, in simulation, for a small norm; the proof of theorem G.2 needs squared loss",
}
ESTIMATOR_FREE = {("imbalanced", 1), ("imbalanced", 2)}
"""Claims that no estimator enters, by experiment: class groups and the model's own confidence. They count once."""
HOLDS, OPEN, FAILS, UNTESTED = "holds", "not clear", "does not hold", "not tested"
LEVEL = 0.95
RANKS = "rank correlation"
NARROWEST = 1e-12  # width of an interval up to which its values are equal but for rounding
CONFIDENT = ("4", "5", "6")  # levels of confidence of the more confident half of the rows

OURS = "our reading"  # of a statement that the paper's text does not make
NOTHING = "nothing to correct"
CORRECTIONS = {
    f"AA-{name} is nearer to 1 - alpha there": f"{name} under-covers atypical, low-confidence inputs"
    for name in ("APS", "RAPS")
}
"""Statements that say something only where another one's statistic is above 0 on average."""

Vector = NDArray[np.float64]
Spread = Literal["halves", "splits", "folds", "draws"]
"""Where an interval comes from: random halves, splits with a model each, test rows left out in turn, independent draws.
"""


class Statement(NamedTuple):
    """One statement of a claim, with what is measured for it, and why it is not the paper's where it is not."""

    claim: int
    text: str
    statistic: str
    aside: str = ""


@dataclass(frozen=True)
class Verdict:
    """One statement of a claim, judged over the seeds: the mean of its statistic, and the 95 % interval of that."""

    claim: int
    statement: str
    statistic: str  # what is measured for the statement: above 0 where our numbers say the same
    where: str  # model, data set and, where it enters, the estimator of atypicality
    n: int = 0
    n_rows: int = 0  # measured in each of the n
    spread: str = ""  # what the n are: `Spread`
    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    n_true: int = 0  # in how many of the n it is above 0
    paper: float | None = None  # the same statistic of the paper's own row, where it prints what is needed
    missing: str = ""  # what it needs and does not have, or `NOTHING`: the plain method already covers
    aside: str = ""  # why it does not count among the paper's statements

    @property
    def equal(self) -> bool:
        """Whether all values are the same inside their scale: their spread of 0 says nothing about chance."""
        end = self.statistic == RANKS and abs(self.value) >= 1 - NARROWEST
        return self.high - self.low <= NARROWEST and not end

    @property
    def verdict(self) -> str:
        """Holds where the whole interval is above 0, not where the mean is; what has no interval is not tested."""
        if self.missing or np.isnan(self.value) or np.isnan(self.low):
            return UNTESTED
        if self.equal:
            return OPEN
        return HOLDS if self.low > 0 else OPEN if self.high > 0 else FAILS


Statistics = dict[Statement, float]


def judge(
    experiment: str,
    claims: Iterable[int],
    results: Sequence[tuple[Result, Values]],
    where: str,
    *,
    spread: Spread,
    paper: Mapping[Any, tuple[float, float | None]] | None = None,
    whole: tuple[Result, Values] | None = None,
) -> list[Verdict]:
    """Every statement of the claims, over the results of the seeds with what was read from them.

    `whole` is the result without any fold left out: the value of a statement where `spread` is "folds".
    """
    wanted = set(claims)
    seeds = [statistics(experiment, *pair) for pair in results]
    single = statistics(experiment, *whole) if whole else None
    printed = statistics(experiment, None, paper_view(experiment, paper)) if paper else {}
    n_rows = results[0][0].n_samples if isinstance(results[0][0], Evaluation) else 0
    found = []
    for statement in (one for one in seeds[0] if one.claim in wanted):
        values, own = np.array([seed[statement] for seed in seeds]), printed.get(statement, np.nan)
        verdict = verdict_on(
            statement, values, where, spread=spread, n_rows=n_rows, whole=None if single is None else single[statement]
        )
        found.append(replace(verdict, paper=None if np.isnan(own) else own))
    return [_judged_where_it_matters(verdict, found) for verdict in found]


def verdict_on(
    statement: Statement, values: Vector, where: str, *, spread: Spread, n_rows: int, whole: float | None = None
) -> Verdict:
    """A statement judged by its statistic in every seed; what it lacks where that is not a number."""
    value, low, high = _interval(values, spread, whole)
    if statement.statistic == RANKS:
        low, high = max(low, -1.0), min(high, 1.0)
    measured: dict[str, Any] = {"n": values.size, "n_rows": n_rows, "n_true": int((values > 0).sum())}
    missing = MISSING.get(statement.text, "") if np.isnan(value) else ""
    measured |= {"spread": spread, "value": value, "low": low, "high": high}
    said = (statement.claim, statement.text, statement.statistic, where)
    return Verdict(*said, **measured, missing=missing, aside=statement.aside)


def _judged_where_it_matters(verdict: Verdict, others: Sequence[Verdict]) -> Verdict:
    """A correction is judged where the plain method leaves something to correct, in our numbers and in the paper's."""
    reason = CORRECTIONS.get(verdict.statement)
    for other in (other for other in others if other.statement == reason):
        paper = verdict.paper if other.paper is not None and other.paper > 0 else None
        verdict = replace(verdict, missing=NOTHING if other.value <= 0 else verdict.missing, paper=paper)
    return verdict


def untested(claim: int, where: str, missing: str) -> Verdict:
    """The verdict on a whole claim that nothing here can test."""
    return Verdict(claim, CLAIMS[claim], "", where, missing=missing)


def _interval(values: Vector, spread: Spread, whole: float | None) -> tuple[float, float, float]:
    r"""Mean and 95 % interval over the seeds.

    Random halves, or splits, share rows: their spread is that of one half, and the variance of the mean is taken as
    :math:`(1/J + 1) s^2`, one measured row to every fitted one (Nadeau and Bengio 2003). Folds are a delete-group
    jackknife around the value of all rows.
    """
    n, center = values.size, float(values.mean()) if whole is None else whole
    if n < 2 or np.isnan(center):
        return center, np.nan, np.nan
    factor = {"halves": 1 / n + 1, "splits": 1 / n + 1, "draws": 1 / n, "folds": (n - 1) ** 2 / n}[spread]
    reach = float(t.ppf((1 + LEVEL) / 2, n - 1)) * values.std(ddof=1) * factor**0.5
    return center, center - reach, center + reach


def statistics(experiment: str, result: Result | None, values: Values) -> Statistics:
    """Of every statement that an experiment can judge, for one seed; NaN where it cannot be told.

    Without a result, as for the paper's own rows, what needs more than the printed values is left out.
    """
    if isinstance(result, dict):
        return _theory(result)
    makers: dict[str, Sequence[Callable[[Values], Statistics]]] = {
        "balanced": (_quality, _recalibrated),
        "imbalanced": (_quality, _recalibrated, _long_tail),
        "llm": (_quality, _language),
        "conformal": (partial(_sets, alpha=_alpha(result)),),
        "subgroups": (_subgroups,),
        "temperatures": (lambda values: _rising(3, "the temperature", curve(values, "temperature", "fitted")),),
        "class-scores": (_class_scores,),
    }
    found = dict(item for maker in makers[experiment] for item in maker(values).items())
    grids = {"balanced": "grid", "imbalanced": "class_grid"}
    if result is not None and experiment in grids:
        found |= _same_confidence(result, grids[experiment])
    return found


def paper_view(experiment: str, printed: Mapping[Any, tuple[float, float | None]]) -> Values:
    """What the paper prints as values; of the conformal table also means over cells, each counting the same."""
    values: Values = {key: mean for key, (mean, _) in printed.items()}
    if experiment == "conformal":
        cells = dict(values)
        for metric, method in {(metric, method) for metric, _, method in cells}:
            places = {
                CORNER: [(c, a) for c in "12" for a in "56"],
                **{(c, ALL): [(c, a) for a in "123456"] for c in CONFIDENT},
                (ALL, ALL): [(c, a) for c in "123456" for a in "123456"],
            }
            for place, inside in places.items():
                mean = float(np.mean([cells.get((metric, cell, method), np.nan) for cell in inside]))
                values.setdefault((metric, place, method), mean)
    return values


def _alpha(result: Evaluation | None) -> float:
    """Of the sets: the paper's table has 95 %."""
    return next(iter((result.settings.get("alpha", {}) if result else {}).values()), ALPHA)


def _trend(values: Vector) -> float:
    """Spearman's rank correlation with the order of the groups: 1 where it is monotone; a constant has none."""
    ranks = rankdata(values)
    return 0.0 if np.ptp(ranks) == 0 else float(np.corrcoef(ranks, np.arange(ranks.size))[0, 1])


def _rising(claim: int, name: str, values: Vector, verb: str = "rises") -> Statistics:
    """Between the ends, as a rank correlation, and at every step; `values` rise where the claim is true."""
    if not values.size:
        return {}
    compared, trend = ("higher", "rise") if verb == "rises" else ("lower", "fall")
    return {
        Statement(claim, f"{name} is {compared} in the most atypical group than in the most typical", "difference"): (
            values[-1] - values[0]
        ),
        Statement(claim, f"{name} tends to {trend} with atypicality", RANKS): _trend(values),
        Statement(claim, f"{name} {verb} at every step: it is monotone", "smallest step"): np.diff(values).min(),
    }


def _quality(values: Values) -> Statistics:
    error, accuracy = (curve(values, metric, "uncalibrated") for metric in ("ece", "accuracy"))
    return _rising(1, "ECE", error) | _rising(1, "accuracy", -accuracy, "falls")


def _same_confidence(result: Evaluation, table: str) -> Statistics:
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
            typical, atypical = (weighted_mean(half) for half in halves)
            gaps.append(atypical - typical)
            weights.append(min(sum(row["count"] for row in half) for half in halves))
    margin = float(np.average(gaps, weights=weights)) if gaps else float("nan")
    text = "at equal confidence the atypical half is more overconfident"
    return {Statement(2, text, "difference of overconfidence"): margin}


def _recalibrated(values: Values) -> Statistics:
    single, aware = (curve(values, "ece", method) for method in ("ts", "aar"))
    if not single.size or not aware.size:
        return {}
    gain, what = single - aware, "difference of ECE"
    return {
        Statement(4, "mean ECE over the groups is lower with AAR", what): gain.mean(),
        Statement(4, "ECE of the most atypical group is lower with AAR", what): gain[-1],
        Statement(4, "ECE is lower with AAR in every group", "smallest gain"): gain.min(),
        Statement(4, "the gain is largest in the most atypical group", "gain less the next largest", OURS): (
            gain[-1] - gain[:-1].max()
        ),
    }


def _long_tail(values: Values) -> Statistics:
    before, after = (curve(values, "accuracy", method) for method in ("uncalibrated", "aar"))
    if not before.size or not after.size:
        return {}
    gain, what = after - before, "difference of accuracy"
    overall = [values.get(("accuracy", (ALL,), method), np.nan) for method in ("uncalibrated", "aar")]
    whole = gain.mean() if np.isnan(overall).any() else overall[1] - overall[0]  # classes are balanced in the test set
    return {
        Statement(5, "accuracy is higher with AAR", what): whole,
        Statement(5, "accuracy of the rarest classes is higher with AAR", what): gain[-1],
        Statement(5, "the gain is largest in the rarest classes", "gain less the next largest", OURS): (
            gain[-1] - gain[:-1].max()
        ),
    }


def _class_scores(values: Values) -> Statistics:
    ranks = values.get(("class score", ("rank correlation",), "aar"), np.nan)
    return {Statement(5, "class scores rise with class atypicality", RANKS): ranks}


def _language(values: Values) -> Statistics:
    """Over the quarters where the paper prints no value for all rows."""
    found: Statistics = {}
    for other in ("uncalibrated", "content-free"):
        for metric, name, text, sign in (
            ("accuracy", "accuracy", "is more accurate", 1),
            ("ece", "ECE", "has a lower ECE", -1),
        ):
            change = _overall(values, metric, "aar") - _overall(values, metric, other)
            found[Statement(6, f"AAR {text} than {other}", f"difference of {name}")] = sign * change
    return found


def _overall(values: Values, metric: str, method: str) -> float:
    groups = curve(values, metric, method)
    return values.get((metric, (ALL,), method), groups.mean() if groups.size else np.nan)


def _subgroups(values: Values) -> Statistics:
    def change(metric: str, row: str) -> float:
        before, after = (values.get((metric, (row,), method), np.nan) for method in ("group-ts", "aar"))
        return after - before

    return {
        Statement(
            7, "the worst group is more accurate with AAR than with its own temperature", "difference of accuracy"
        ): change("accuracy", "worst"),
        Statement(
            7, "the worst group has a lower ECE with AAR than with its own temperature", "difference of ECE"
        ): -change("ece", "worst"),
        Statement(7, "the gap in accuracy is smaller with AAR", "difference of gaps", OURS): -change("accuracy", "gap"),
        Statement(7, "the gap in ECE is smaller with AAR", "difference of gaps", OURS): -change("ece", "gap"),
    }


def _sets(values: Values, alpha: float) -> Statistics:
    """In the third of the grid's levels with the lowest confidence and the highest atypicality."""
    found: Statistics = {}
    for score in ("aps", "raps"):
        name, target = score.upper(), 1 - alpha
        plain, aware = (values.get(("coverage", CORNER, method), np.nan) for method in (score, f"aa-{score}"))
        average = values.get(("coverage", (ALL, ALL), score), np.nan)
        found[Statement(8, f"{name} covers on average", "coverage less 1 - alpha")] = average - target
        text = f"{name} under-covers atypical, low-confidence inputs"
        found[Statement(8, text, "1 - alpha less coverage")] = target - plain
        text = f"AA-{name} is nearer to 1 - alpha there"
        found[Statement(8, text, "difference of distances")] = abs(plain - target) - abs(aware - target)
    changes = {
        "AA-APS has smaller sets than APS on average": ((ALL,), "aps", "aa-aps"),
        "AA-RAPS has larger sets than RAPS on average": ((ALL,), "aa-raps", "raps"),
        "AA-RAPS has smaller sets than RAPS in the more confident half": (CONFIDENT, "raps", "aa-raps"),
    }
    for text, (levels, larger, smaller) in changes.items():
        first, second = (
            np.mean([values.get(("set_size", (level, ALL), method), np.nan) for level in levels])
            for method in (larger, smaller)
        )
        found[Statement(8, text, "difference of mean sizes")] = float(first - second)
    return found


def _theory(result: dict[str, Any]) -> Statistics:
    rows = result["theorem_1"]["rows"]  # from the largest training set to the smallest
    curves = np.array([row["overconfidence"] for row in rows])
    rises = [row["rise"] for row in rows]
    found: Statistics = {
        Statement(9, "theorem 3.1: overconfidence is not negative in any group", "smallest value"): curves.min(),
        Statement(9, "theorem 3.1: overconfidence rises at every step of atypicality", "smallest step"): (
            np.diff(curves, axis=1).min()
        ),
        Statement(9, "after theorem 3.1: it rises more for smaller training sets", "smallest change"): min(
            after - before for before, after in pairwise(rises)
        ),
    }
    for theorem in result["theorem_2"]:
        for loss in ("squared", "cross_entropy"):
            excess = max(row[f"excess_{loss}"] for row in theorem["rows"])
            place = f"norm {theorem['norm']:g}, {loss.replace('_', '-')}"
            text = f"theorem G.2, {place}: an aware temperature is never worse"
            aside = "" if theorem["norm"] <= SMALL_NORM else OUTSIDE
            statement = Statement(9, text, "minus the largest relative excess", aside)
            found[statement] = np.finfo(float).eps - excess  # "never worse" allows equality
    return found


MISSING = {
    "AAR is more accurate than content-free": "content_free.npz",
    "AAR has a lower ECE than content-free": "content_free.npz",
    "class scores rise with class atypicality": "training labels: how rare each class is",
}
"""What a statement needs that outputs may lack."""
