"""Every guarantee of docs/guarantees.md, in its words, measured over repetitions with new data each time.

`make guarantees` runs `python tests/guarantee_cases.py --repetitions 500`, which prints the table; the suite measures a
few repetitions of each (tests/test_guarantees.py).
"""

import argparse
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from answer_cases import answer_world
from monitor_cases import false_alarm
from scipy.special import softmax
from scipy.stats import binom, norm
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier

import atypicality as aty
from atypicality import blocks, metrics
from atypicality.conformal import AtypicalityAwareConformal, ConditionalConformal, SplitConformal
from atypicality.conformal.cross import cross_conformal_level
from atypicality.conformal.threshold import conformal_rank
from atypicality.datasets import make_world
from atypicality.head.abstention import AbstentionRule
from atypicality.head.drift import Drift
from atypicality.head.quantiles import QuantileScale
from atypicality.metrics import by_group
from atypicality.metrics.signal import error_signal

COVERAGE = "The sets of `SplitConformal` hold the label with probability at least 1 - alpha."
EXACT = (
    "With `randomized=True` and `nonempty=None` the sets of APS, RAPS and SAPS hold the label with probability "
    "ceil((n + 1)(1 - alpha)) / (n + 1)."
)
REGIONS = "In every region of `AtypicalityAwareConformal` the sets hold the label with probability at least 1 - alpha."
SOFT = (
    "Weighted by any soft group of `ConditionalConformal`, the sets hold the label with probability at least 1 - alpha."
)
GROUPS = (
    "In every group that `groups=` of `ConditionalConformal` asks for, the sets hold the label with probability "
    "at least 1 - alpha."
)
EXACT_GROUPS = (
    "With `randomized=True` the sets of `ConditionalConformal` hold the label with probability 1 - alpha, weighted "
    "by any soft group and in every group asked for."
)
CROSS = (
    "With `cv=K` and `ensemble=True` the sets of `AtypicalityAwareClassifier` hold the label with probability at least "
    "1 - 2 alpha - min{2 (1 - 1/K) / (n/K + 1), (1 - K/n) / (K + 1)}."
)
CROSS_MEASURED = "Measured in these worlds, they hold the label with probability at least 1 - alpha."
HEAD = "The sets of a head hold the label with probability at least 1 - alpha."
RISK = "Rows kept with `max_risk` err more often than `max_risk` with probability at most 5 %."
CHANCE = "Without drift, `drift.chance` is at most p with probability at most p."
ALARM = "Without drift, `predict` warns of drift with probability at most one in a million."
LIFE = "Without a change, a monitor ever raises an alarm with probability at most alpha."
SHARES = (
    "The 95 % interval of an accuracy or a coverage holds the true share with probability 95 %, on average over shares."
)
MEANS = "The 95 % interval of a mean (NLL, Brier score, set size) holds the true mean with probability 95 %."
WORST = (
    "The 95 % interval of `worst_coverage` holds the coverage of the truly worst group with probability at least 95 %."
)
ERRORS = (
    "The 95 % interval of a calibration error or of overconfidence holds the true value with probability at least 94 %."
)
NOISE = "Atypicality that is noise is reported as adding nothing to confidence with probability at least 92 %."
MIXES = "The 95 % interval of an estimated class share holds the true share with probability at least 90 %."


WIDTH = 50


@dataclass(frozen=True)
class Guarantee:
    """A statement of the documentation in one world.

    `one_repetition(seed)` returns a bool, whether the event happened, or the share of rows for which it did. The mean
    over repetitions is on the stated `side` of `level`, or at most `z_limit` standard errors off.
    """

    words: str
    case: str
    one_repetition: Callable[[int], float | bool]
    level: float
    side: str
    z_limit: float = 4.0

    def measure(self, repetitions: int, seed: int = 0) -> "Measured":
        outcomes = np.array([self.one_repetition(seed * 1_000_003 + i) for i in range(repetitions)])
        return Measured(self, repetitions, float(outcomes.mean()), _z(self, outcomes))


@dataclass(frozen=True)
class Measured:
    """The mean outcome, and by how many standard errors it is on the wrong side."""

    guarantee: Guarantee
    repetitions: int
    mean: float
    z: float

    @property
    def holds(self) -> bool:
        return self.z <= self.guarantee.z_limit

    def line(self) -> str:
        stated = f"{self.guarantee.side} {self.guarantee.level:.6g}"
        verdict = "holds" if self.holds else "FAILS"
        return f"  {self.guarantee.case:<{WIDTH}}{stated:>18}{self.mean:>10.4f}{max(self.z, -99.9):>8.1f}  {verdict}"


def _z(guarantee: Guarantee, outcomes: np.ndarray) -> float:
    """Of an event the normal quantile of its binomial tail at the stated level; of shares by their spread."""
    if outcomes.dtype == bool:
        law, count = binom(outcomes.size, guarantee.level), outcomes.sum()
        few, many = law.cdf(count), law.sf(count - 1)
        tail = {"at least": few, "at most": many, "equal": min(few, many, 0.5)}[guarantee.side]
        return float(norm.isf(np.clip(tail, 1e-300, 1 - 1e-9)))
    excess = float(outcomes.mean()) - guarantee.level
    excess = {"at least": -excess, "at most": excess, "equal": abs(excess)}[guarantee.side]
    spread = float(outcomes.std(ddof=1)) / math.sqrt(outcomes.size)
    return excess / max(spread, 1e-12)


# ---------------------------------------------------------------- coverage


def continuous(rng, n):
    world = make_world(n, 6, temperature=1.5, atypical_noise=1.0, random_state=rng)
    return world.probs, world.labels


def tied(rng, n):
    probs, labels = continuous(rng, n)
    return rng.multinomial(50, probs) / 50, labels


def one_hot(rng, n):
    """A model that is right in 3 of 4 cases and always certain: zeros decide which labels are covered."""
    labels = rng.integers(0, 10, n)
    return np.eye(10)[np.where(rng.random(n) < 0.75, labels, rng.integers(0, 10, n))], labels


def saturated(rng, n):
    probs, labels = one_hot(rng, n)
    return softmax((90 * probs + rng.standard_normal(probs.shape)).astype(np.float32), axis=1), labels


def covered(sets, labels):
    return float(sets[np.arange(len(labels)), labels].mean())


def split_coverage(score, world):
    """With every option in turn, and new draws."""
    options = list(product(("score", "after", None), (False,) if score == "lac" else (False, True)))

    def one_repetition(seed):
        probs, labels = world(np.random.default_rng(seed), 300)
        nonempty, randomized = options[seed % len(options)]
        sets = SplitConformal(score, 0.1, nonempty=nonempty, randomized=randomized, random_state=seed)
        return covered(sets.fit(probs[:150], labels[:150]).predict_set(probs[150:]), labels[150:])

    return one_repetition


def exact_coverage(score, n, alpha):
    options = {"raps": {"k_reg": 1, "penalty": 0.1}, "saps": {"penalty": 0.1}}.get(score, {})

    def one_repetition(seed):
        probs, labels = continuous(np.random.default_rng(seed), n + 200)
        sets = SplitConformal(score, alpha, nonempty=None, randomized=True, random_state=seed, **options)
        return covered(sets.fit(probs[:n], labels[:n]).predict_set(probs[n:]), labels[n:])

    return one_repetition


def region_coverage(region, score="raps"):
    def one_repetition(seed):
        world = make_world(1200, 5, atypical_noise=1.0, random_state=seed)
        old, new = world.take(slice(0, 600)), world.take(slice(600, None))
        sets = AtypicalityAwareConformal(score, 0.2, n_groups=(3, 1), random_state=seed)
        sets.fit(old.probs, old.labels, atypicality=old.atypicality)
        rows = sets.assign(new.probs, atypicality=new.atypicality) == region
        return covered(sets.predict_set(new.probs, atypicality=new.atypicality)[rows], new.labels[rows])

    return one_repetition


def miscalibrated(rng, n):
    """A model that is far too certain, most of all where it is wrong."""
    world = make_world(n, 6, temperature=4.0, atypical_noise=1.0, random_state=rng)
    return world.probs, world.labels


def soft_coverage(world, n, whole=False):
    """Coverage weighted by the soft group of atypical (and low-confidence) inputs, or by all of them.

    For a weight f the statement is E[f (hit - level)] >= 0: its mean over new rows, moved to the level.
    """

    def one_repetition(seed):
        rng = np.random.default_rng(seed)
        probs, labels = world(rng, n + 400)
        rarity = rng.standard_normal(n + 400) + 2.0 * (probs.argmax(axis=1) != labels)
        sets = ConditionalConformal(0.1, knots=2, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of corners with too few rows, whose sets are full
            sets.fit(probs[:n], labels[:n], atypicality=rarity[:n])
        new = probs[n:]
        found = sets.predict_set(new, atypicality=rarity[n:])[np.arange(400), labels[n:]]
        rows = np.searchsorted(sets.atypicality_edges_, rarity[n:])
        columns = np.searchsorted(sets.confidence_edges_, np.minimum(new.max(axis=1), 1.0))
        weight = 1.0 if whole else sets.soft_groups_[rows, columns, sets.knots_[1]]
        return float(0.9 + np.mean(weight * (found - 0.9)))

    return one_repetition


def group_coverage(groups, member, world=continuous, **options):
    """As `soft_coverage`, of the rows that a function of (labels, attribute) marks."""

    def one_repetition(seed):
        rng, n = np.random.default_rng(seed), 500
        probs, labels = world(rng, n + 400)
        biased = probs * np.array([1.0, 1.0, 1.0, 0.3, 0.3, 0.3])  # the model knows half of the classes too little
        probs, rarity = biased / biased.sum(axis=1, keepdims=True), rng.standard_normal(n + 400)
        age = np.where(probs.argmax(axis=1) == labels, rng.choice(["young", "old"], n + 400), "old")
        sets = ConditionalConformal(0.1, groups=groups, cells=3, knots=2, random_state=seed, **options)
        extras = {"atypicality": rarity, "attributes": {"age": age}}
        old, new = ({k: v[part] if k != "attributes" else {"age": age[part]} for k, v in extras.items()}
                    for part in (slice(0, n), slice(n, None)))  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of corners with too few rows
            sets.fit(probs[:n], labels[:n], class_share=[6, 5, 4, 3, 2, 1], **old)
        hits = sets.predict_set(probs[n:], **new)[np.arange(400), labels[n:]]
        return float(0.9 + np.mean(member(labels[n:], age[n:]) * (hits - 0.9)))

    return one_repetition


def fitted_head(seed, n_new, **options):
    """A head fitted on 200 training and 1000 calibration rows of a world, and its new rows."""
    world = make_world(1200 + n_new, 4, temperature=2.0, atypical_noise=0.5, random_state=seed)
    outputs = world.outputs()
    head = aty.ReliabilityHead(alpha=0.2, recalibration=aty.AtypicalityAwareRecalibration.paper(), **options)
    return head.fit(train=outputs[:200], calibration=outputs[200:1200]), world.take(slice(1200, None))


@cache
def default_head(seed):
    """Two statements are made of each."""
    return fitted_head(seed, 1000)


def head_coverage(rare=False, **options):
    def one_repetition(seed):
        head, new = fitted_head(seed, 400, **options) if options else default_head(seed)
        with blocks.settings(block_rows=64):
            answer = head.predict(new.outputs())
        rows = slice(None)
        if rare:
            regions = head.prediction_sets_.assign(answer.proba, atypicality=answer.atypicality)
            rows = regions == head.prediction_sets_.regions_[-1, 0]
        return covered(answer.prediction_set[rows], new.labels[rows])

    return one_repetition


def cross_coverage(estimator, n, n_folds, alpha):
    """A classifier that overfits, on few rows of classes that overlap; two statements are made of each repetition."""

    @cache
    def one_repetition(seed):
        world = make_world(n + 200, 4, n_features=4, atypical_noise=1.0, random_state=seed)
        head = aty.ReliabilityHead(None, aty.TemperatureScaling(), alpha=alpha)
        model = aty.AtypicalityAwareClassifier(estimator, head=head, cv=n_folds, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a head without a density
            model.fit(world.embeddings[:n], world.labels[:n])
        codes = np.searchsorted(model.classes_, world.labels[n:])
        codes = np.where(model.classes_[codes % model.classes_.size] == world.labels[n:], codes, -1)
        sets = np.c_[model.predict_set(world.embeddings[n:]), np.zeros(200, bool)]  # a class that no row had: missed
        return covered(sets, codes)

    return one_repetition


def coverage_guarantees() -> Iterator[Guarantee]:
    for score in ("lac", "aps", "raps", "saps"):
        for world in (continuous, tied, one_hot, saturated):
            case = f"{score}, {world.__name__.replace('_', ' ')}"
            yield Guarantee(COVERAGE, case, split_coverage(score, world), 0.9, "at least")
    for score, n, alpha in (("aps", 30, 0.2), ("raps", 30, 0.2), ("saps", 19, 0.1)):
        level = conformal_rank(n, alpha) / (n + 1)
        yield Guarantee(EXACT, f"{score}, n = {n}", exact_coverage(score, n, alpha), level, "equal")
    for region, name in enumerate(("typical", "middle", "atypical")):
        yield Guarantee(REGIONS, f"{name} third", region_coverage(region), 0.8, "at least")
    regions = AtypicalityAwareConformal(alpha=0.2, n_groups=(4, 4))
    rare = head_coverage(rare=True, prediction_sets=regions)
    yield Guarantee(REGIONS, "atypical and low-confidence, in a head", rare, 0.8, "at least")
    for world in (continuous, tied, one_hot, saturated, miscalibrated):
        for n in (120, 500, 2000):
            case = f"atypical, {world.__name__.replace('_', ' ')}, n = {n}"
            yield Guarantee(SOFT, case, soft_coverage(world, n), 0.9, "at least")
    yield Guarantee(SOFT, "all inputs, tied, n = 120", soft_coverage(tied, 120, whole=True), 0.9, "at least")
    rarest, old = (lambda labels, age: labels == 5), (lambda labels, age: age == "old")
    halves = dict(enumerate(("known", "known", "known", "less", "less", "less")))
    less, everyone = (lambda labels, age: labels >= 3), (lambda labels, age: np.ones(labels.size))
    for case, asked, member in (
        ("rarest fifth of classes", "class rarity", rarest),
        ("a group of classes", halves, less),
        ("an attribute", ("age", halves), old),
    ):
        yield Guarantee(GROUPS, case, group_coverage(asked, member), 0.9, "at least")
        yield Guarantee(EXACT_GROUPS, case, group_coverage(asked, member, randomized=True), 0.9, "equal")
    yield Guarantee(GROUPS, "a group of classes, tied", group_coverage(halves, less, tied), 0.9, "at least")
    yield Guarantee(EXACT_GROUPS, "all inputs", group_coverage(halves, everyone, randomized=True), 0.9, "equal")
    tree = DecisionTreeClassifier(min_samples_leaf=4, random_state=0)
    crossed = [
        ("naive Bayes, n = 60, K = 5", cross_coverage(GaussianNB(), 60, 5, 0.2), (60, 5)),
        ("a tree, n = 80, K = 2", cross_coverage(tree, 80, 2, 0.2), (80, 2)),
    ]
    for case, one_repetition, sizes in crossed:
        yield Guarantee(CROSS, case, one_repetition, cross_conformal_level(*sizes, 0.2), "at least")
    for case, one_repetition, _ in crossed:
        yield Guarantee(CROSS_MEASURED, case, one_repetition, 0.8, "at least")
    yield Guarantee(HEAD, "default sets, in chunks", head_coverage(), 0.8, "at least")
    one = SplitConformal(alpha=0.2)
    yield Guarantee(HEAD, "one threshold, in chunks", head_coverage(prediction_sets=one), 0.8, "at least")
    randomised = SplitConformal("aps", 0.2, randomized=True)
    yield Guarantee(HEAD, "randomised sets, in chunks", head_coverage(prediction_sets=randomised), 0.8, "at least")


# ---------------------------------------------------------------- risk


def rising(confidence):
    return 0.3 * (1 - confidence) ** 2


def slightly_too_risky(confidence):
    return np.full_like(confidence, 0.0205)


def waves(confidence):
    return 0.02 * (1 + 0.9 * np.sign(np.sin(5 * np.pi * (1 - confidence))))


def kept_too_risky(risk, n=2500, steps=None, others=None):
    """Whether a share of rows was kept whose risk is above 2 %; `steps` makes that many tied confidences.

    `others(rng)` is the confidence of rows that say where the tests begin.
    """
    place = (np.arange(20_000) + 0.5) / 20_000
    everywhere = place if steps is None else np.ceil(place * steps) / steps

    def one_repetition(seed):
        rng = np.random.default_rng(seed)
        confidence = rng.choice(everywhere, n) if steps else rng.random(n)
        guide, correct = None if others is None else others(rng), rng.random(n) >= risk(confidence)
        threshold = AbstentionRule.from_rows(confidence, correct, others=guide).threshold(0.02)
        kept = everywhere >= threshold
        return bool(kept.any() and risk(everywhere[kept]).mean() > 0.02)

    return one_repetition


def head_keeps_too_risky(seed):
    head, new = default_head(seed)
    answer = head.predict(new.outputs(), max_risk=0.1)
    wrong = 1 - new.true_probs[np.arange(len(new)), answer.label]
    return bool(answer.accepted.any() and wrong[answer.accepted].mean() > 0.1)


def answers_accepted_too_risky(*risks, n=500, copies=1, **world):
    """Whether an answer head accepts answers of which more than a risk are wrong, by their true chances."""

    def one_repetition(seed):
        risk = risks[seed % len(risks)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of words of advice, each tested at 1 %
            head = aty.llm.AnswerHead().fit(answer_world(n, seed, **world)[0][np.repeat(np.arange(n), copies)])
        new, chance = answer_world(n, [seed, 1], **world)
        accepted = head.predict(new, max_risk=risk).accepted
        return bool(accepted.any() and (1 - chance)[accepted].mean() > risk)

    return one_repetition


def risk_guarantees() -> Iterator[Guarantee]:
    useless = {"useful": False, "rate": 0.89, "scores_alone": True}
    worlds = {
        "2.05 % wrong at every confidence, 2 % allowed": kept_too_risky(slightly_too_risky),
        "2.05 % wrong, 2 % allowed, 500 rows": kept_too_risky(slightly_too_risky, n=500),
        "2.05 % wrong, 2 % allowed, 20 tied confidences": kept_too_risky(slightly_too_risky, steps=20),
        "2.05 % wrong, 2 % allowed, begun where others say": kept_too_risky(
            slightly_too_risky, others=lambda rng: rng.beta(rng.uniform(5, 200), 2, 300)
        ),
        "risk falls with confidence": kept_too_risky(rising),
        "risk falls with confidence, begun where others say": kept_too_risky(
            rising, n=500, others=lambda rng: 1 - rising(rng.random(500))
        ),
        "risk falls with confidence, 20 tied confidences": kept_too_risky(rising, steps=20),
        "risk rises and falls with confidence": kept_too_risky(waves),
        "a head, 10 % allowed": head_keeps_too_risky,
        "answers, 10 % and 20 % allowed in turn": answers_accepted_too_risky(0.1, 0.2),
        "answers, useless signals, 11 % wrong, 10 % allowed": answers_accepted_too_risky(0.1, **useless),
        "answers, eight copies of each, 11 % wrong, 10 % allowed": answers_accepted_too_risky(
            0.1, n=200, copies=8, **useless
        ),
    }
    for case, one_repetition in worlds.items():
        yield Guarantee(RISK, case, one_repetition, 0.05, "at most")


# ---------------------------------------------------------------- drift


def drift_without(draw, n_held_out, n_new):
    def one_repetition(seed):
        rng = np.random.default_rng(seed)
        return Drift(QuantileScale.from_rows(draw(rng, n_held_out)), draw(rng, n_new))

    return one_repetition


def two_drifts_without(seed):
    """Of two scores of the same rows, the second as large where the first is small, with ties."""
    rng = np.random.default_rng(seed)
    held_out, new = rng.standard_normal(300), rng.standard_normal(1000)
    other = Drift(QuantileScale.from_rows(np.round(-2 * held_out)), np.round(-2 * new))
    return Drift(QuantileScale.from_rows(held_out), new, recalibration=other)


def drift_guarantees() -> Iterator[Guarantee]:
    normal = np.random.Generator.standard_normal
    worlds = {
        "continuous": (normal, 300, 200),
        "continuous, 20 held-out rows": (normal, 20, 500),
        "continuous, 2000 held-out rows": (normal, 2000, 1000),
        "integers 0 to 9": (lambda rng, n: rng.integers(0, 10, n).astype(float), 2000, 1000),
        "counts": (lambda rng, n: rng.poisson(3, n).astype(float), 300, 1000),
        "one value in twenty is larger": (lambda rng, n: (rng.random(n) < 0.05).astype(float), 300, 1000),
        "constant": (lambda rng, n: np.full(n, 3.0), 300, 200),
    }
    drifts = {case: drift_without(*world) for case, world in worlds.items()} | {"two scores": two_drifts_without}
    for case, drift in drifts.items():
        yield Guarantee(CHANCE, f"p = 0.05, {case}", lambda seed, d=drift: d(seed).chance <= 0.05, 0.05, "at most")
    for case, drift in drifts.items():
        yield Guarantee(ALARM, case, lambda seed, d=drift: bool(d(seed).significant), 1e-6, "at most")


# ---------------------------------------------------------------- intervals


def interval_holds(metric, truth, *arrays, **named):
    n_rows = len(next(iter((*arrays, *named.values()))))
    table = by_group(metric, *arrays, groups=np.zeros(n_rows, int), **named)
    return bool(table.low[0] <= truth + 1e-9 and truth <= table.high[0])


def share_interval(seed):
    rng = np.random.default_rng(seed)
    share = rng.random()
    return interval_holds(metrics.accuracy, share, confidence=np.full(150, 0.5), correct=rng.random(150) < share)


def mean_interval(seed):
    # sizes 1 to 4 with shares .4 .3 .2 .1
    sizes = np.random.default_rng(seed).choice(4, 150, p=(0.4, 0.3, 0.2, 0.1))
    return interval_holds(metrics.set_size, 2.0, np.arange(4) <= sizes[:, None])


def worst_interval(shares):
    def one_repetition(seed):
        groups = np.arange(600) % len(shares)
        hits = np.random.default_rng(seed).random(600) < np.asarray(shares)[groups]
        found = metrics.worst_coverage(np.column_stack([hits, ~hits]), np.zeros(600, int), groups)
        return bool(found.low <= min(shares) <= found.high)

    return one_repetition


def overconfidence_interval(accuracy):
    def one_repetition(seed):
        rng = np.random.default_rng(seed)
        confidence = accuracy + rng.uniform(0.0, 0.006, 200)
        correct = rng.random(200) < confidence - 0.003
        return interval_holds(metrics.overconfidence, 0.003, confidence=confidence, correct=correct)

    return one_repetition


def calibrated_interval(metric, n_rows=400, n_classes=4):
    """Labels drawn from the probabilities: the true error is 0."""

    def one_repetition(seed):
        rng = np.random.default_rng(seed)
        probs = softmax(2 * rng.standard_normal((n_rows, n_classes)), axis=1)
        labels = (np.cumsum(probs, axis=1)[:, :-1] < rng.random((n_rows, 1))).sum(axis=1)
        return interval_holds(metric, 0.0, probs, labels)

    return one_repetition


MISCALIBRATED = {
    "overconfident": lambda confidence: confidence - 0.05,
    "one bin off": lambda confidence: np.where((confidence > 0.7) & (confidence <= 0.8), confidence - 0.2, confidence),
    "waves": lambda confidence: confidence + 0.08 * np.sin(12 * confidence),
}


def true_error(metric, accuracy):
    """Of uniform confidence in (0.2, 0.95), over ten bins."""
    grid = 0.2 + 0.75 * (np.arange(200_000) + 0.5) / 200_000
    bins = np.ceil(10 * grid).astype(int)
    share = np.bincount(bins) / grid.size
    gap = np.bincount(bins, grid - accuracy(grid)) / np.maximum(np.bincount(bins), 1)
    return float(np.sum(share * (np.abs(gap) if metric is metrics.ece else gap**2)))


def error_interval(metric, accuracy):
    truth = true_error(metric, accuracy)

    def one_repetition(seed):
        rng = np.random.default_rng(seed)
        confidence = rng.uniform(0.2, 0.95, 500)
        return interval_holds(metric, truth, confidence=confidence, correct=rng.random(500) < accuracy(confidence))

    return one_repetition


def noise_adds_nothing(n):
    def one_repetition(seed):
        rng = np.random.default_rng(seed)
        confidence = rng.uniform(0.5, 1.0, n)
        return not error_signal(rng.random(n), confidence=confidence, correct=rng.random(n) < confidence).adds

    return one_repetition


def mix_interval(n_rows, n_classes, imbalance):
    """Rows of a long tail under probabilities that are calibrated for equal classes; the share of classes held."""

    def one_repetition(seed):
        world = make_world(n_rows, n_classes, class_imbalance=imbalance, random_state=seed)
        probs = world.true_probs / world.class_shares
        equal = np.full(n_classes, 1 / n_classes)
        mix = aty.estimate_class_mix(probs / probs.sum(axis=1, keepdims=True), equal, random_state=seed)
        return float(((mix.low <= world.class_shares) & (world.class_shares <= mix.high)).mean())

    return one_repetition


def interval_guarantees() -> Iterator[Guarantee]:
    for n in (200, 1000):
        yield Guarantee(NOISE, f"{n} rows", noise_adds_nothing(n), 0.92, "at least")
    yield Guarantee(SHARES, "150 rows", share_interval, 0.95, "equal")
    for case, shares in {"six alike": (0.9,) * 6, "one worse": (0.95, 0.95, 0.95, 0.8)}.items():
        yield Guarantee(WORST, case, worst_interval(shares), 0.95, "at least")
    yield Guarantee(MEANS, "set size, 150 rows", mean_interval, 0.95, "equal")
    for n_rows, n_classes, imbalance in ((200, 3, 5.0), (1000, 10, 100.0), (1000, 10, 1.0), (1000, 20, 50.0)):
        case = f"{n_rows} rows, {n_classes} classes, 1 : {imbalance:.0f}"
        yield Guarantee(MIXES, case, mix_interval(n_rows, n_classes, imbalance), 0.9, "at least")
    errors = {
        "overconfidence, accuracy 0.7": overconfidence_interval(0.7),
        "overconfidence, accuracy 0.994": overconfidence_interval(0.994),
        "classwise_ece, calibrated, 50 classes, 100 rows": calibrated_interval(metrics.classwise_ece, 100, 50),
    }
    calibrated = ("ece", "rmsce", "adaptive_ece", "smooth_ece", "classwise_ece", "debiased_calibration_error")
    errors |= {f"{name}, calibrated": calibrated_interval(getattr(metrics, name)) for name in calibrated}
    for metric in (metrics.ece, metrics.debiased_calibration_error):
        errors |= {f"{metric.__name__}, {name}": error_interval(metric, world) for name, world in MISCALIBRATED.items()}
    for case, one_repetition in errors.items():
        yield Guarantee(ERRORS, case, one_repetition, 0.94, "at least")


def monitor_guarantees() -> Iterator[Guarantee]:
    for n_reference, ties in ((30, True), (300, False), (3000, True)):
        case = f"10,000 looks, {n_reference} reference rows{', ties' if ties else ''}"
        yield Guarantee(LIFE, case, false_alarm(n_reference, ties=ties), 0.01, "at most")


GUARANTEES = [
    *coverage_guarantees(),
    *risk_guarantees(),
    *drift_guarantees(),
    *monitor_guarantees(),
    *interval_guarantees(),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(f"{given.repetitions} repetitions; z: standard errors beyond the stated level\n")
    failed, words = 0, ""
    for guarantee in GUARANTEES:
        if guarantee.words != words:
            words = guarantee.words
            print(f"{words}\n  {'world':<{WIDTH}}{'stated':>18}{'measured':>10}{'z':>8}")
        measured = guarantee.measure(given.repetitions, given.seed)
        failed += not measured.holds
        print(measured.line(), flush=True)
    print(f"\n{len(GUARANTEES) - failed} of {len(GUARANTEES)} hold.")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
