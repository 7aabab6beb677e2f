"""Signals of answers, one number each, and the chance that an answer is correct as a function of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from atypicality.llm.answers import Answers
from atypicality.llm.shifts import LEVEL, beyond_range, level_words, missing_columns
from atypicality.recalibration.covariates import TAIL_ROWS, tails, usual_tail
from atypicality.recalibration.parameters import solution_of_multiplier
from atypicality.recalibration.problem import PSEUDO_ROWS, Problem, Term
from atypicality.recalibration.strength import CLASSWISE, choose_strengths, groups_of, solve_chosen
from atypicality.stored import Part, Record, kinds, need
from atypicality.terminal import listed
from atypicality.validation import warn

__all__ = ["AGREEMENT", "TOKENS", "SignalColumns", "SignalModel", "agreement", "signals_of"]

TOKENS: dict[str, Any] = {
    "log_prob_sum": np.sum,
    "log_prob_mean": np.mean,
    "log_prob_min": np.min,
    "log_prob_first": lambda values: values[0],
}
AGREEMENT = "agreement"
FIELDS = dict.fromkeys(TOKENS, "logprobs") | {AGREEMENT: "samples"}
FIELDS |= {f"{part}_atypicality": f"{part}_embedding" for part in ("prompt", "answer")}
"""Fields of a file of answers, by the signals that follow from them; all others are scores."""
RESERVED = (*TOKENS, AGREEMENT, "prompt_atypicality", "answer_atypicality", "multiplier", *CLASSWISE)
"""Names of signals and of groups of parameters, which no score may have."""
ODDS = " (odds)"  # what follows the name of a log-probability in that of the part by its log-odds
SHAPE = " (shape)"  # what follows the name of a signal in that of its bent part
ALONE = " (alone)"
"""What follows it in that of the part for rows that lack another signal, which it must then stand in for."""
MOST_LACKING = 4  # kinds of rows, by what they lack, that such parts are for: the commonest
KNOTS = (1 / 3, 2 / 3)  # quantiles at which a signal's effect may bend
EDGES = (0.1, 0.25, 0.5, 0.75, 0.9)  # quantiles at which shares of new rows are compared with those of held-out ones
FEWEST = TAIL_ROWS  # rows that a column needs
LARGEST_LOG_PROB = -1e-4  # whose log-odds are still taken: what is nearer to 0 is rounding of servers
REFINED = 3.0  # nats of evidence that other parts of a signal need than the straight one, which needs 0.1

Vector = NDArray[np.float64]
Signals = Mapping[str, Vector]


def signals_of(answers: Answers) -> dict[str, Vector]:
    """Every signal (n,) that follows from the answers alone, by name; NaN where an answer has none.

    >>> answers = Answers(["2 + 2 ="], ["4"], log_probs=[[-0.1, -0.3]], samples=[["4", "5"]])
    >>> {name: round(float(values[0]), 2) for name, values in signals_of(answers).items()}
    {'log_prob_sum': -0.4, 'log_prob_mean': -0.2, 'log_prob_min': -0.3, 'log_prob_first': -0.1, 'agreement': 0.5}
    """
    if taken := [name for name in answers.scores if name in RESERVED or name.endswith((ODDS, SHAPE, ALONE))]:
        raise ValueError(f"scores must not be called {listed(taken)}: these names have a meaning. Rename them.")
    found: dict[str, Vector] = {}
    if answers.log_probs is not None:
        for name, reduce in TOKENS.items():
            found[name] = np.array([np.nan if row is None else float(reduce(row)) for row in answers.log_probs])
    if answers.samples is not None:
        pairs = zip(answers.answers, answers.samples, strict=True)
        found[AGREEMENT] = np.array([np.nan if some is None else agreement(text, some) for text, some in pairs])
    return found | answers.scores


def agreement(answer: str, samples: tuple[str, ...]) -> float:
    """Share of samples equal to the answer, without regard to case, spaces and a last full stop.

    >>> agreement("Paris.", ("paris", "Lyon"))
    0.5
    """
    own = _plain(answer)
    return sum(_plain(sample) == own for sample in samples) / len(samples)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


@dataclass(frozen=True)
class SignalColumns:
    """The columns of one signal: standardised within limits, bent at two quantiles, and whether it is missing.

    Bent columns are orthogonal to the straight one on the rows that were fitted. A missing value counts as the mean. A
    log-probability also has its log-odds: of a model whose token probabilities need no more than Platt scaling, the
    log-odds of being correct are straight in these.

    A signal of fewer than 10 rows, or missing in fewer, makes no column.
    """

    name: Annotated[str, kinds.Text(r"[\s\S]{1,80}")]
    low: Annotated[float, kinds.Number()]  # with `high`: limits that 1 % of the rows (at least 10) reach on either side
    high: Annotated[float, kinds.Number()]
    center: Annotated[float, kinds.Number()]  # mean, and as `scale` standard deviation, within the limits
    scale: Annotated[float, kinds.Number()]
    missing: Annotated[float, kinds.Number(0, 1)]  # share of the rows; 0 where that makes no column
    knots: Annotated[Vector, kinds.Array("*", kinds.FINITE)]  # (h,) of each bent column, in units of the straight one
    offsets: Annotated[Vector, kinds.Array("*", kinds.FINITE)]
    slopes: Annotated[Vector, kinds.Array("*", kinds.FINITE)]
    spreads: Annotated[Vector, kinds.Array("*", kinds.POSITIVE)]
    without: Annotated[tuple[str, ...], kinds.Later(kinds.TupleOf(kinds.Text(r"[\s\S]{1,80}")), absent=())] = ()
    """Other signals: rows that lack one have a column of this signal of their own."""
    least: Annotated[float | None, kinds.Later(kinds.optional(kinds.Number()), absent=None)] = None
    most: Annotated[float | None, kinds.Later(kinds.optional(kinds.Number()), absent=None)] = None
    """Smallest and largest value; None in a head from an older bundle."""
    n_known: Annotated[int, kinds.Later(kinds.Integer(), absent=0)] = 0  # rows with the signal
    odds_center: Annotated[float, kinds.Later(kinds.Number(), absent=0.0)] = 0.0
    odds_scale: Annotated[float, kinds.Later(kinds.Number(0), absent=0.0)] = 0.0
    """Mean and standard deviation of a log-probability's log-odds; both 0 of other signals."""
    edges: Annotated[
        Vector | None, kinds.Later(kinds.optional(kinds.Array("*", kinds.FINITE, kinds.INCREASING)), absent=None)
    ] = None
    """Values (m,) at up to five quantiles, at which new rows are compared with held-out ones; None as `least` is."""

    def _check_stored(self) -> None:
        need(self.low <= self.center <= self.high and self.scale > 0, "the center must lie within the limits.")
        need(self.missing < 1, "a signal must not be missing in every row.")
        sizes = {part.size for part in (self.knots, self.offsets, self.slopes, self.spreads)}
        need(len(sizes) == 1, "there must be one offset, slope and spread for each knot.")

    _stored = Record(check=_check_stored)

    @classmethod
    def of(cls, name: str, values: Vector) -> Self | None:
        """Learn from values (n,), NaN where missing; None of a signal that is constant or known of too few rows."""
        known = values[~np.isnan(values)]
        if known.size < FEWEST:
            return None
        weights = np.full(known.size, 1 / known.size)
        low, high = tails(known, weights, usual_tail(known.size))
        unit = max(abs(low), abs(high)) or 1.0  # squares of huge values would overflow
        held = np.clip(known, low, high) / unit
        center, scale = float(held.mean()) * unit, float(held.std()) * unit
        if not scale > 1e-12 * unit:
            return None
        n_missing = values.size - known.size
        bends = _bends((held - center / unit) / (scale / unit))
        missing = n_missing / values.size if n_missing >= FEWEST else 0.0
        span = float(known.min()), float(known.max()), known.size
        odds = _log_odds(np.clip(known, low, high)) if name in TOKENS else np.zeros(1)
        both = float(odds.mean()), float(odds.std())
        edges = np.unique(np.quantile(known, EDGES, method="inverted_cdf"))
        return cls(name, low, high, center, scale, missing, *bends, (), *span, *both, edges)

    def straight(self, values: Vector) -> Vector:
        """Columns (n, 1), or (n, 2) with the one that says whether the signal is missing."""
        return self._beside_missing(*self._standardised(values))

    def odds(self, values: Vector) -> Vector:
        """As `straight`, of the log-odds."""
        held, gone = self._held(values)
        return self._beside_missing(np.where(gone, 0.0, (_log_odds(held) - self.odds_center) / self.odds_scale), gone)

    def bent(self, values: Vector) -> Vector:
        """Columns (n, h)."""
        x, gone = self._standardised(values)
        found = (np.maximum(x[:, None] - self.knots, 0.0) - self.offsets - self.slopes * x[:, None]) / self.spreads
        return np.where(gone[:, None], 0.0, found)

    def alone(self, signals: Signals) -> Vector:
        """Columns (n, len(without)) that are 0 but where another signal is missing."""
        gone = np.stack([np.isnan(signals[name]) for name in self.without], axis=1)
        x, _ = self._standardised(signals[self.name])
        return np.where(gone, x[:, None], 0.0)

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """Names of the straight parts, of the bent one and of that for rows without another signal."""
        return self.name, self.name + ODDS, self.name + SHAPE, self.name + ALONE

    def _beside_missing(self, x: Vector, gone: NDArray[np.bool_]) -> Vector:
        if not self.missing:
            return x[:, None]
        spread = np.sqrt(self.missing * (1 - self.missing))
        return np.stack([x, (gone - self.missing) / spread], axis=1)

    def _standardised(self, values: Vector) -> tuple[Vector, NDArray[np.bool_]]:
        held, gone = self._held(values)
        return (held - self.center) / self.scale, gone

    def _held(self, values: Vector) -> tuple[Vector, NDArray[np.bool_]]:
        """Values within the limits, the mean where there is none, and where that is."""
        gone = np.isnan(values)
        return np.clip(np.where(gone, self.center, values), self.low, self.high), gone


def _log_odds(log_probs: Vector) -> Vector:
    """Log-odds of probabilities whose logarithms these are."""
    held = np.minimum(log_probs, LARGEST_LOG_PROB)
    found: Vector = held - np.log(-np.expm1(held))
    return found


def _standing_in(columns: list[SignalColumns], signals: Signals) -> list[SignalColumns]:
    """The same columns, with those for rows that lack another signal."""
    masks = {name: np.isnan(values) for name, values in signals.items()}
    lacking = {masks[one.name].tobytes(): one.name for one in reversed(columns) if one.missing}
    commonest = sorted(lacking.values(), key=lambda name: -masks[name].sum())[:MOST_LACKING]
    return [
        replace(one, without=tuple(name for name in commonest if (masks[name] & ~masks[one.name]).sum() >= FEWEST))
        for one in columns
    ]


def _bends(x: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    """Knots, offsets, slopes and spreads of hinges of a standardised signal, less what is straight in them."""
    knots = np.unique(np.quantile(x, KNOTS))
    hinges = np.maximum(x[:, None] - knots, 0.0)
    offsets, slopes = hinges.mean(axis=0), x @ hinges / x.size
    spreads = (hinges - offsets - slopes * x[:, None]).std(axis=0)
    kept = spreads > 1e-6
    return knots[kept], offsets[kept], slopes[kept], spreads[kept]


@dataclass(frozen=True)
class SignalModel:
    """Log-odds of being correct: an intercept and, for each signal, a straight and a bent part.

    A log-probability has two straight parts, itself and its log-odds. In rows that lack another signal a signal has one
    more: there it stands in for what the other would have told.

    The mean cross-entropy is one convex problem of two classes. Each part of each signal is shrunk with a strength of
    its own, of maximal evidence, and left out where it has little: below 0.1 nats for all together or a straight part,
    and 3 for another. Little more evidence keeps a part of them.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x, noise = rng.normal(size=(2, 1000))
    >>> model = SignalModel.fit({"margin": x, "noise": noise}, rng.random(1000) < 1 / (1 + np.exp(-2 * x)))
    >>> model.evidence["margin"] > 100, "noise" in model.coefficients
    (True, False)
    """

    signals: Annotated[list[SignalColumns], kinds.ListOf(Part(SignalColumns))]  # those that vary
    intercept: Annotated[float, kinds.Number()]
    coefficients: Annotated[dict[str, Vector], kinds.MappingOf(kinds.Array("*", kinds.FINITE), keys=r"[\s\S]{1,88}")]
    """By part, as `SignalColumns.parts` names it; parts left out are not there."""
    evidence: Annotated[dict[str, float], kinds.MappingOf(kinds.Number(), keys=r"[\s\S]{1,88}")]
    """Nats by which each part makes the labels more probable, also of parts left out."""
    loss: Annotated[float, kinds.Number(0)]  # mean cross-entropy
    certificate: Annotated[float, kinds.Number()]  # how far the penalised one may be above its minimum

    def _check_stored(self) -> None:
        names = [signal.name for signal in self.signals]
        need(len(set(names)) == len(names), "signals must be distinct.")
        sizes = {signal.name: 1 + (signal.missing > 0) for signal in self.signals}
        sizes |= {signal.name + ODDS: sizes[signal.name] for signal in self.signals if signal.odds_scale}
        sizes |= {signal.name + SHAPE: signal.knots.size for signal in self.signals}
        sizes |= {signal.name + ALONE: len(signal.without) for signal in self.signals}
        lacking = {name for signal in self.signals for name in signal.without}
        need(lacking <= set(names), "signals that rows lack must be signals.")
        for name, one in self.coefficients.items():
            need(sizes.get(name) == one.size, f"{name} must be a part of a signal, with its coefficients.")
            need(name in self.evidence, f"{name} must have its evidence.")

    _stored = Record(check=_check_stored)

    @classmethod
    def fit(cls, signals: Signals, correct: NDArray[np.bool_]) -> Self:
        """The optimum for signals (n,) and whether each answer is correct (n,)."""
        columns = [one for name, values in signals.items() if (one := SignalColumns.of(name, values)) is not None]
        columns = _standing_in(columns, signals)
        base = np.tile([0.0, 1.0], (correct.size, 1))  # its multiplier, which is not shrunk, is the intercept
        terms = [Term(name, base, part) for name, part in _parts(columns, signals)]
        problem = Problem(base, correct.astype(np.intp), terms=terms, pseudo_rows=True)
        start = solution_of_multiplier(2.0, 2)  # strengths are in units of one logit, whatever the intercept
        chosen = choose_strengths(
            problem,
            groups_of(problem),
            correct.size + PSEUDO_ROWS,
            start=start,
            least={name: REFINED for one in columns for name in one.parts[2:]},
        )
        _, found = solve_chosen(problem, chosen)
        intercept = float(found.coefficients[0])
        return cls(columns, intercept, dict(found.terms), dict(chosen.evidence), found.loss, found.certificate)

    def log_odds(self, signals: Signals, n_rows: int) -> Vector:
        """Log-odds of being correct (n,), from the signals that were fitted."""
        known = {one.name: signals.get(one.name, np.full(n_rows, np.nan)) for one in self.signals}
        self._warn_of_missing(known)
        for one in self._used():
            if one.name not in FIELDS and (told := beyond_range(one, known[one.name])):
                warn(told)
        total = np.full(n_rows, self.intercept)
        for name, part in _parts(self.signals, known):
            if name in self.coefficients:
                total += part @ self.coefficients[name]
        return total

    def _warn_of_missing(self, signals: Signals) -> None:
        """Warn of rows without a signal that nearly all fitted rows had, once for each field of a file of answers."""
        used = [one.name for one in self._used() if not one.missing]
        for field, names in _by_field(used).items():
            if gone := int(np.isnan(signals[names[0]]).sum()):
                warn(
                    f"{field} is missing in {gone:,} row{'s' * (gone > 1)}, and in fewer than {FEWEST} of those that "
                    f"fit P(correct), too few to learn from: the mean is used as {listed(names)}, and with max_risk "
                    "such answers are not accepted."
                )

    def missing(self, signals: Signals, n_rows: int) -> dict[str, NDArray[Any]]:
        """Which rows lack each field that the signals come from, or have it outside its range, as attributes."""
        fields = {field: names[0] for field, names in _by_field([one.name for one in self.signals]).items()}
        unknown = np.full(n_rows, np.nan)
        ranges = {_field(one.name): one for one in self._used() if one.name not in FIELDS}
        return missing_columns({name: signals.get(name, unknown) for name in fields.values()}, fields, ranges)

    def levels(self, signals: Signals, n_rows: int) -> dict[str, NDArray[Any]]:
        """At or below which of its edges the signal of each field with most evidence is, as attributes.

        Embeddings have a test of their own, by atypicality.
        """
        fields = {_field(name): name for name in reversed(self.signal_evidence)}
        edges = {one.name: one.edges for one in self.signals if one.edges is not None}
        unknown = np.full(n_rows, np.nan)
        return {
            LEVEL + (name if name in FIELDS else field): level_words(signals.get(name, unknown), edges[name])
            for field, name in fields.items()
            if name in edges and not field.endswith("_embedding")
        }

    def after_drift(self, name: str) -> str:
        """What a drift of a signal of `levels` means, in words."""
        if name in {one.name if one.name in FIELDS else _field(one.name) for one in self._used()}:
            return "P(correct) and max_risk are not guaranteed there; find out why, or fit again on such answers."
        return "P(correct) does not depend on it, and yet something has changed: find out why."

    @property
    def used_fields(self) -> dict[str, bool]:
        """Fields of a file of answers that P(correct) depends on, and whether it was learnt what their absence says."""
        found: dict[str, bool] = {}
        for one in self._used():
            found[_field(one.name)] = found.get(_field(one.name), True) and one.missing > 0
        return found

    def _used(self) -> list[SignalColumns]:
        return [one for one in self.signals if set(one.parts) & set(self.coefficients)]

    @property
    def signal_evidence(self) -> dict[str, float]:
        """Nats of each signal, its parts that are used together, most first; 0 of a signal that is left out."""
        worths = {}
        for one in self.signals:
            used = [name for name in one.parts if name in self.coefficients]
            worths[one.name] = sum(self.evidence[name] for name in used) + 0.0
        return dict(sorted(worths.items(), key=lambda item: -item[1]))


def _by_field(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of signals by the field of a file of answers that they come from."""
    fields: dict[str, list[str]] = {}
    for name in names:
        fields.setdefault(_field(name), []).append(name)
    return fields


def _field(name: str) -> str:
    return FIELDS.get(name, f"scores[{name!r}]")


def _parts(columns: list[SignalColumns], signals: Signals) -> list[tuple[str, Vector]]:
    """Matrices of the parts of every signal, by name."""
    found = []
    for one in columns:
        found.append((one.name, one.straight(signals[one.name])))
        if one.odds_scale:
            found.append((one.name + ODDS, one.odds(signals[one.name])))
        if one.knots.size:
            found.append((one.name + SHAPE, one.bent(signals[one.name])))
        if one.without:
            found.append((one.name + ALONE, one.alone(signals)))
    return found
