"""What changed between two methods: paired tests by hand, their false alarms and power, and one verdict everywhere."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from report_cases import TEST, Opened, evaluation_and_head, needs_chromium, world_outputs
from scipy.stats import binom, binomtest

import atypicality as aty
from atypicality import metrics
from atypicality.evaluation.beside import beside
from atypicality.evaluation.changes import (
    RowLosses,
    _area_parts,
    change_rows,
    changed,
    decided,
    holm,
    mcnemar_p,
)
from atypicality.evaluation.cuts import Axis
from atypicality.evaluation.paired import compared
from atypicality.evaluation.statistics import _largest_gap
from atypicality.metrics.rows import Pairs
from atypicality.report.changed import summarise


def two_methods(counts, lost, gained, **parts):
    """Two methods on classes of so many rows each: of every class 10 are wrong in both, and so many lost and gained."""
    labels = np.repeat(np.arange(len(counts)), counts)
    place = np.concatenate([np.arange(count) for count in counts])
    lose, gain = np.repeat(lost, counts), np.repeat(gained, counts)
    wrong = [(place < 10 + gain), (place < 10) | ((place >= 10 + gain) & (place < 10 + gain + lose))]
    k = len(counts)
    probs = [np.where(np.eye(k)[np.where(miss, (labels + 1) % k, labels)] > 0, 0.9, 0.1 / (k - 1)) for miss in wrong]
    return {"old": probs[0], "new": probs[1]}, aty.ModelOutputs(labels=labels, **parts)


CASE = ([510, 462, 495, 480, 500], [18, 11, 0, 3, 0], [0, 0, 45, 4, 0])  # classes of one report, by hand


def test_lost_and_gained_predictions_decide_and_are_named():
    """18 of 510 lost: p = 2 * 2**-18, the second smallest of three, so times 2.

    Of the smallest p that classes could show, 2**-6 among them, four are at most .05 / 3, and three at most .05 / 4.
    """
    evaluation = aty.evaluate(*two_methods(*CASE))
    rows = evaluation.table("changes", axis="class")
    assert [(row["lost"], row["gained"]) for row in rows] == list(zip(*CASE[1:], strict=True))
    assert [row["verdict"] for row in rows] == ["worse", "worse", "better", "unclear", "unclear"]
    assert {row["comparisons"] for row in rows} == {3}
    assert rows[0]["adjusted"] == pytest.approx(2 * 2 * 2.0**-18)
    assert rows[0]["value"] == pytest.approx(-18 / 510)
    worse = ["".join(p if isinstance(p, str) else p.text for p in s) for s in summarise(evaluation, "old", "new").worse]
    assert "Accuracy of 0 fell from 98.0% to 94.5%: 18 lost, 0 gained of 510 (p < 0.0001)." in worse
    assert "accuracy of 0 -0.035 (18 lost, 0 gained of 510)" in str(evaluation)


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (34, 12), (8, 1), (20, 20)])
def test_mcnemar_is_the_sign_test_and_its_interval_agrees(lost, gained):
    n = lost + gained
    expected = binomtest(gained, n).pvalue if n else 1.0
    assert mcnemar_p(lost, gained) == pytest.approx(expected)
    [row] = aty.evaluate(*two_methods([200, 200], [lost, 0], [gained, 0])).table("changes", axis="class", class_index=0)
    assert (row["low"] <= 0 <= row["high"]) == (expected > 0.05)


def test_comparisons_that_could_show_nothing_are_not_corrected_for():
    assert holm([], [])[0] == 0
    number, adjusted = holm([0.9] * 1000 + [0.001, 0.02, 0.01], [1.0] * 1000 + [0.0] * 3)
    assert number == 3
    assert adjusted[-3:].tolist() == pytest.approx([0.003, 0.02, 0.02])
    assert set(adjusted[:1000]) == {1.0}
    assert holm([0.5] * 40, [0.0] * 40)[0] == 40


def group_row(group, lost, gained):
    named = {"method": "b", "reference": "a", "axis": "class", "class_index": group, "metric": "accuracy"}
    found = {"lost": int(lost), "gained": int(gained), "p_value": float(mcnemar_p(lost, gained))}
    return named | found | {"count": 500, "value": (int(gained) - int(lost)) / 500}


def test_false_alarms_of_all_groups_and_power_follow_their_law(seed):
    """No change in 19 groups, with 2 to 40 predictions that changed: a false alarm in at most 5 % of the reports.

    The group of the report that was read, 18 of 510 lost, is found: where each of 18 is lost with chance .95, at least
    15 of 18 lost shows it (p = 2 P(B(18, .5) <= 3) = .0075 is not enough at .05 / 20, 2 P(<= 2) = .0013 is).
    """
    rng, repeats = np.random.default_rng(seed), 800
    moved = np.r_[rng.integers(2, 41, 19), 18]
    chance = np.r_[np.full(19, 0.5), 0.95]
    lost = rng.binomial(moved, chance, (repeats, 20))
    false = found = 0
    for one in lost:
        rows = decided(group_row(*row) for row in zip(range(20), one, moved - one, strict=True))
        false += any(row["verdict"] != "unclear" for row in rows[:19])
        found += rows[19]["verdict"] == "worse"
    assert false <= binom(repeats, 0.05).ppf(0.999)
    power = binom(18, 0.95).sf(15)  # 16 or more
    assert abs(found / repeats - power) < 4 * math.sqrt(power * (1 - power) / repeats)


def kept(name, confidence, correct, loss):
    return RowLosses(name, Pairs(confidence, correct, np.dtype(float)), loss, loss**2)


def rows_of(one):
    """The measured rows of a method over all rows, as an evaluation has them."""
    pairs = {"confidence": one.pairs.confidence, "correct": one.pairs.correct}
    found = {
        "ece": metrics.by_group(metrics.ece, groups=np.zeros(one.nll.size, int), names=1, random_state=0, **pairs),
        "accuracy": None,
    }
    ends = {name: getattr(found["ece"], name)[0] for name in ("value", "low", "high")}
    area = metrics.risk_coverage(**pairs).area
    values = {
        "ece": ends,
        "accuracy": {"value": one.pairs.correct.mean()},
        "nll": {"value": one.nll.mean()},
        "brier": {"value": one.brier.mean()},
        "risk_coverage_area": {"value": area},
    }
    return [{"method": one.name, "metric": metric, "count": one.nll.size} | own for metric, own in values.items()]


def test_methods_that_differ_by_chance_are_seldom_told_apart(seed):
    """Confidence with noise of its own in each of two methods: no metric differs but by chance."""
    rng, repeats, n = np.random.default_rng(seed), 120, 300
    alarms = dict.fromkeys(("nll", "brier", "ece", "risk_coverage_area"), 0)
    for _ in range(repeats):
        chance = rng.uniform(0.3, 1, n)
        correct = rng.random(n) < chance
        said = [np.clip(chance + rng.normal(0, 0.1, n), 0.05, 0.99) for _ in range(2)]
        methods = [
            kept(name, p, correct, -np.log(np.where(correct, p, 1 - p))) for name, p in zip("ab", said, strict=True)
        ]
        measured = {"overall": [row for one in methods for row in rows_of(one)]}
        empty = {table: [] for table in ("atypicality_groups", "class_groups", "classes", "subgroups")}
        axes = [Axis("overall", [{}], np.zeros(n, int))]
        for row in decided(change_rows(methods, axes, measured | empty, 10)):
            if row["metric"] in alarms:
                alarms[row["metric"]] += row["verdict"] != "unclear"
    assert max(alarms.values()) <= binom(repeats, 0.05).ppf(0.9995)


def test_what_rows_add_to_the_area_is_its_derivative():
    """Influence of a row against the area without it, n times the difference; ties apart."""
    rng = np.random.default_rng(0)
    confidence, n = rng.permutation(400) / 400, 400
    correct = rng.random(n) < confidence
    parts = _area_parts(Pairs(confidence, correct, np.dtype(float)))
    whole = metrics.risk_coverage(confidence=confidence, correct=correct).area
    without = np.array(
        [
            metrics.risk_coverage(confidence=np.delete(confidence, row), correct=np.delete(correct, row)).area
            for row in range(100)
        ]
    )
    slope, _ = np.polyfit((n - 1) * (whole - without), parts[:100], 1)
    assert np.corrcoef(parts[:100], whole - without)[0, 1] > 0.999
    assert slope == pytest.approx(1.0, abs=0.03)  # of order 1 / n with its logarithm


def test_the_other_direction_is_the_opposite_and_other_rows_are_apart():
    evaluation = aty.evaluate(*two_methods(*CASE))
    there, back = changed(evaluation, "old", "new"), changed(evaluation, "new", "old")
    opposite = {"better": "worse", "worse": "better", "unclear": "unclear"}
    assert [row["verdict"] for row in back] == [opposite[row["verdict"]] for row in there]
    assert [row["lost"] for row in back] == [row["gained"] for row in there]
    texts = ["".join(map(str, part)) for part in summarise(evaluation, "new", "old").improved]
    assert len(texts) >= 2
    methods, outputs = two_methods(*CASE)
    days = [aty.evaluate({"m": methods[name]}, outputs) for name in methods]
    apart = changed(beside(*days, ("monday", "tuesday")), "m, monday", "m, tuesday")
    assert all(row["apart"] and row.get("lost") is None for row in apart)
    verdicts = {row["class_index"]: row["verdict"] for row in apart if row["axis"] == "class"}
    assert verdicts[2] == "better"  # 45 of 495, from 10 to 55 wrong, even without pairs


def test_the_page_the_text_and_the_comparison_of_two_heads_have_one_verdict():
    _, good = evaluation_and_head()
    bad = SimpleNamespace(**vars(good))
    bad.predict = lambda outputs, **risk: good.predict(outputs._replaced(logits=outputs.logits / 3))
    test = world_outputs()[TEST]
    evaluation = aty.evaluate({"good": good, "bad": bad}, test)
    [row] = evaluation.table("changes", axis="overall", metric="nll")
    told = compared(good, bad, test, ("good", "bad"))
    assert (row["value"], row["low"], row["high"]) == pytest.approx((told.difference, told.low, told.high))
    assert (row["verdict"], told.better) == ("worse", "good")
    worse = summarise(evaluation, "good", "bad").worse
    assert any(sentence[0].startswith("The log loss rose") for sentence in worse)
    assert "Worse on the same rows, bad than good: " in str(evaluation)
    assert "log loss +" in str(evaluation).partition("Worse on the same rows")[2]


def test_the_gap_between_two_subgroups_is_newcombes(seed):
    """56 of 70 against 48 of 80 (Newcombe 1998, method 10): 0.0524 to 0.3339; of equal ones it starts at 0."""
    low, high = _largest_gap(np.array([56 / 70, 48 / 80]), np.array([70.0, 80.0]))
    assert (low, high) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    rng = np.random.default_rng(seed)
    counts = np.array([60.0, 300.0, 500.0, 90.0])
    starts = [_largest_gap(rng.binomial(counts.astype(int), 0.8) / counts, counts)[0] for _ in range(400)]
    assert np.count_nonzero(starts) <= binom(400, 0.05).ppf(0.999)


class Accepts:
    """A head that predicts class 0, and accepts the first three quarters of the rows."""

    abstention_ = SimpleNamespace(kept=np.array([10, 700]), why_none=lambda max_risk: None)

    def predict(self, outputs, max_risk):
        n = len(outputs)
        return SimpleNamespace(proba=np.tile([0.9, 0.1], (n, 1)), accepted=np.arange(n) < 0.75 * n)


def accepted_evaluation():
    labels = np.zeros(400, int)
    labels[:30] = 1
    sides = np.where(np.arange(400) < 40, "small", "large")
    sides[200:240] = "clean"
    return aty.evaluate(Accepts(), aty.ModelOutputs(labels=labels, attributes={"side": sides}), max_risk=0.1)


def test_what_is_accepted_is_counted_by_class_prediction_advice_and_subgroup():
    evaluation = accepted_evaluation()

    def found(table, **where):
        [row] = evaluation.table(table, method="head", metric="accepted_risk", **where)
        return row["count"], row["value"]

    assert found("classes", class_index=1) == (30, 1.0)
    assert found("classes", class_index=0) == (270, 0.0)
    assert found("predicted_classes", class_index=0) == (300, 0.1)
    assert found("subgroups", attribute="side", subgroup="small") == (40, 0.75)
    assert sum(row["count"] for row in evaluation.table("advice", metric="accepted_risk")) == 300
    text = str(evaluation)
    assert "0.000 (0.000 to 0.088)" in text  # 0 of 40: z^2 / (40 + z^2)
    assert "Guaranteed with 95 % confidence from 700 held-out rows, for rows like these" in text


@needs_chromium
def test_the_page_shows_what_is_accepted_with_counts_and_intervals(browser, tmp_path):
    accepted_evaluation().report(tmp_path / "page.html")
    with Opened(browser, tmp_path / "page.html") as opened:
        rows = [row.inner_text().split() for row in opened.page.locator("#accepted-subgroups tbody tr").all()]
        assert [row[0] for row in rows] == ["clean", "large", "small"]
        assert " ".join(rows[0]) == "clean 100.0% of 40 91.2% to 100.0% 0.0% of 40 0.0% to 8.8%"
        assert opened.page.locator("#accepted-subgroups strong").count() == 1  # the small one
        assert "from 700 held-out samples" in opened.page.inner_text("#summary")
        gaps = opened.page.inner_text("#gap-of-subgroups")
        assert "share of the accepted that is wrong" in gaps
