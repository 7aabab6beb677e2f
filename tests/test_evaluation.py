"""`evaluate`: its tables agree with the metrics they come from, and with each other."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from evaluation_cases import FakeHead, column, outputs_of, sets_of, train_of, world_of
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

import atypicality as aty
from atypicality import ModelOutputs, metrics
from atypicality.datasets import make_world
from atypicality.evaluation.schema import STATISTICS, TABLES
from atypicality.groups import QUADRANTS, QuantileGroups
from atypicality.head import ReliabilityHead
from atypicality.metrics.intervals import exact_interval
from atypicality.report import render_report

GROUPED = ("atypicality_groups", "confidence_groups", "class_groups", "classes", "grid", "class_grid", "quadrants")
MEASURED = [name for name, columns in TABLES.items() if set(STATISTICS) <= set(columns)]


@pytest.fixture
def world(seed):
    return world_of(seed)


@pytest.fixture
def train(seed):
    return train_of(seed)


@pytest.fixture
def outputs(world):
    return outputs_of(world)


def test_counts_of_every_axis_sum_to_the_number_of_rows(outputs, world, train):
    methods = {"model": world.probs, "sets": (world.probs, sets_of(world.probs))}
    evaluation = aty.evaluate(methods, outputs, train=train)
    for table in (*GROUPED, "subgroups", "calibration_curve"):
        for method in methods:
            assert column(evaluation, table, "count", method=method, metric="accuracy").sum() == len(world), table
    assert column(evaluation, "set_sizes", "count", metric="coverage").sum() == len(world)
    assert column(evaluation, "quadrants", method="model", metric="share").sum() == pytest.approx(1)
    assert column(evaluation, "temperatures", "count").sum() == len(world)


def test_a_perfect_predictor(outputs, world, train):
    certain = np.eye(4)[world.labels]
    with_sets = aty.evaluate({"truth": (certain, certain.astype(bool))}, outputs, train=train)
    best = {"accuracy": 1, "confidence": 1, "coverage": 1, "set_size": 1}
    best |= {f"worst_{group}_coverage": 1 for group in ("sixth", "cell", "size")}
    for table in ("overall", "atypicality_groups", "class_groups", "subgroups"):
        for row in (row for row in with_sets.table(table) if row["count"]):
            assert row["value"] == best.get(row["metric"], 0), (table, row)
    assert set(column(with_sets, "risk_coverage", metric="risk")) == {0.0}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_probabilities_are_measured_as_the_metrics_measure_them(outputs, world, train, dtype):
    probs, labels = world.probs.astype(dtype), world.labels
    evaluation = aty.evaluate({"model": probs}, outputs, train=train)
    overall = {row["metric"]: row for row in evaluation.table("overall")}
    for name, value in metrics.summary(probs, labels).items():
        assert overall[name]["value"] == pytest.approx(value, abs=1e-12), name
    assert overall["risk_coverage_area"]["value"] == pytest.approx(metrics.risk_coverage(probs, labels).area)

    rarity = aty.GaussianAtypicality().fit(train.embeddings, train.labels).atypicality(world.embeddings)
    groups = QuantileGroups(5).fit(rarity).assign(rarity)
    for metric in (metrics.ece, metrics.accuracy, metrics.rmsce, metrics.overconfidence, metrics.nll, metrics.brier):
        table = metrics.by_group(metric, probs, labels, groups=groups)
        found = evaluation.table("atypicality_groups", metric=table.metric)
        for name in STATISTICS:
            np.testing.assert_allclose([row[name] for row in found], getattr(table, name), atol=1e-12)


def test_the_calibration_curve_is_that_of_the_metrics(outputs, world):
    evaluation = aty.evaluate({"model": world.probs}, outputs)
    curve = metrics.calibration_curve(world.probs, world.labels)
    np.testing.assert_array_equal(column(evaluation, "calibration_curve", "count", metric="accuracy"), curve.count)
    for metric, name, expected in (
        ("accuracy", "value", curve.accuracy),
        ("accuracy", "low", curve.low),
        ("accuracy", "high", curve.high),
        ("confidence", "value", curve.confidence),
    ):
        np.testing.assert_allclose(column(evaluation, "calibration_curve", name, metric=metric), expected)


def test_risk_is_read_off_the_curve_at_every_percent(outputs, world):
    evaluation = aty.evaluate({"model": world.probs}, outputs)
    risk = column(evaluation, "risk_coverage", metric="risk")
    threshold = column(evaluation, "risk_coverage", metric="threshold")
    confidence, wrong = world.probs.max(axis=1), world.probs.argmax(axis=1) != world.labels
    for percent in (1, 37, 100):
        answered = confidence >= threshold[percent - 1]
        assert answered.mean() >= percent / 100
        assert (confidence > threshold[percent - 1]).mean() < percent / 100  # the next stricter threshold is too strict
        assert risk[percent - 1] == pytest.approx(wrong[answered].mean())


def test_the_order_of_the_rows_changes_nothing(outputs, world, train, rng):
    order = rng.permutation(len(world))
    given_order = aty.evaluate({"sets": (world.probs, sets_of(world.probs))}, outputs, train=train)
    shuffled = aty.evaluate(
        {"sets": (world.probs[order], sets_of(world.probs[order]))}, outputs[order], train=train, keep_samples=0
    )
    for table in MEASURED:
        if table == "overall":  # the area's interval is a bootstrap, which draws rows by their place
            continue
        first, second = given_order.table(table), shuffled.table(table)
        for row, same in zip(first, second, strict=True):
            for name, value in row.items():
                number = isinstance(value, float)
                expected = pytest.approx(value, rel=1e-7, abs=1e-9, nan_ok=True) if number else value
                assert same[name] == expected, (table, row)


def test_empty_groups_have_rows_of_count_zero(outputs, world, train):
    far = aty.evaluate("uncalibrated", outputs, train=train, grid=(6, 6))
    cells = far.table("grid", metric="accuracy")
    assert len(cells) == 36
    head = FakeHead().fit(
        train=aty.GaussianAtypicality().fit(train.embeddings, train.labels), calibration=outputs[:200]
    )
    head.atypicality_groups_ = QuantileGroups.from_edges([-1e6, 0.0, 1e6, 2e6])
    rows = aty.evaluate(head, outputs).table("atypicality_groups", metric="coverage")
    assert [row["count"] for row in rows] == [0, 0, len(world), 0, 0]
    assert np.isnan(rows[0]["value"])
    assert (rows[0]["low"], rows[0]["high"]) == (0, 1)


def test_a_class_without_rows_keeps_its_row(train):
    outputs = aty.ModelOutputs(np.zeros((3, 4)), labels=[0, 1, 1], class_atypicality=[0.5, 1.0, np.inf, 2.0])
    evaluation = aty.evaluate("uncalibrated", outputs, n_groups=2)
    assert column(evaluation, "classes", "count", metric="accuracy").tolist() == [1, 2, 0, 0]
    assert column(evaluation, "class_info", "class_atypicality").tolist() == [0.5, 1.0, np.inf, 2.0]
    assert column(evaluation, "class_info", "group").tolist() == [0, 0, 1, 1]
    more = aty.evaluate("uncalibrated", outputs)  # five groups of four classes are four
    assert column(more, "class_groups", "count", metric="accuracy").tolist() == [1, 2, 0, 0]
    assert not any("classes" in note and "groups of" in note for note in more.notes)
    assert aty.Evaluation.from_json(evaluation.to_json()) == evaluation


def test_groups_edges_and_samples_tell_the_same_story(outputs, world, train):
    evaluation = aty.evaluate({"model": world.probs}, outputs, train=train)
    samples, predictions = evaluation.table("samples"), evaluation.table("predictions")
    assert [row["row"] for row in samples] == [row["row"] for row in predictions] == list(range(len(world)))
    for group in evaluation.table("group_ranges", axis="atypicality"):
        inside = [row for row in samples if group["low"] < row["atypicality"] <= group["high"]]
        assert len(inside) == group["count"] == sum(row["group"] == group["group"] for row in samples)
    for group in evaluation.table("group_ranges", axis="confidence", method="model"):
        assert sum(row["confidence_group"] == group["group"] for row in predictions) == group["count"]
    shares = {row["quadrant"]: row["count"] for row in evaluation.table("quadrants", metric="share")}
    assert shares == {name: sum(row["quadrant"] == name for row in predictions) for name in QUADRANTS}
    cells = {
        (row["group"], row["confidence_group"]): row["count"] for row in evaluation.table("grid", metric="accuracy")
    }
    for sample, prediction in zip(samples, predictions, strict=True):
        cells[sample["grid_group"], prediction["confidence_group"]] -= 1
    assert not any(cells.values())


def test_only_some_samples_are_kept_when_there_are_many(outputs):
    few, again = (aty.evaluate("uncalibrated", outputs, keep_samples=50, random_state=3) for _ in range(2))
    rows = [row["row"] for row in few.table("samples")]
    assert sum(row["weight"] > 1 for row in few.table("samples")) == 50  # besides what is wrong or for a person
    assert rows == sorted(set(rows))
    assert few == again
    assert few != aty.evaluate("uncalibrated", outputs, keep_samples=50, random_state=4)


def test_temperature_of_every_group_with_an_honest_error(seed):
    # Without noise 2 mends every group. Beyond 4 standard errors in one of 5 groups: 3e-4 false alarms.
    world = make_world(6000, temperature=2.0, random_state=seed)
    outputs = aty.ModelOutputs(world.logits, labels=world.labels, atypicality=world.atypicality)
    for row in aty.evaluate("uncalibrated", outputs).table("temperatures"):
        assert abs(row["value"] - 2) < 4 * row["standard_error"]
        assert 0 < row["standard_error"] < 0.3


def test_a_temperature_that_rests_on_no_error_is_noted_and_has_no_standard_error():
    logits = np.tile([[3.0, 0.0]], (40, 1))
    labels = np.r_[np.zeros(20, int), np.arange(20) % 4 == 0]  # the typical half is always right
    outputs = aty.ModelOutputs(logits, labels=labels, atypicality=np.arange(40.0))
    evaluation = aty.evaluate("uncalibrated", outputs, n_groups=2)
    right, fitted = evaluation.table("temperatures")
    assert np.isnan(right["standard_error"])
    assert right["value"] == pytest.approx(3 / np.log(21))  # right in 20 of 20 rows, with the prior in 21 of 22
    assert fitted["value"] == pytest.approx(3 / np.log(16 / 6))  # right in 15 of 20 rows, with the prior in 16 of 22
    assert sum("logits in group 1 of atypicality rests on no error" in note for note in evaluation.notes) == 1


def test_training_outputs_leave_the_atypicality_of_a_head_as_it_is(outputs, train):
    head = ReliabilityHead().fit(train=train, calibration=outputs[:700])
    alone = aty.evaluate(head, outputs[700:], suspects=5)
    beside = aty.evaluate(head, outputs[700:], train=train, suspects=5)
    assert beside.settings["atypicality"] == alone.settings["atypicality"] == "measured by head"
    for name in ("atypicality_groups", "quadrants", "classes"):
        assert str(beside.table(name)) == str(alone.table(name))  # NaN, as an error of one row, is not equal to itself
    known = ModelOutputs(embeddings=outputs[700:].embeddings, labels=outputs[700:].labels)
    assert len(aty.evaluate(head, outputs[700:], train=known, suspects=5).table("duplicates")) == 5


def test_attributes_become_subgroups_numbers_in_quantile_groups(world):
    brightness = np.linspace(0.0, 1.0, len(world))
    brightness[:100] = np.nan
    numbers = np.arange(len(world))
    attributes = {"site": numbers % 3, "brightness": brightness, "patient": numbers, "months": numbers % 24}
    outputs = aty.ModelOutputs(labels=world.labels, attributes=attributes)
    evaluation = aty.evaluate({"model": world.probs}, outputs, n_groups=4)
    sites = evaluation.table("subgroups", attribute="site", metric="accuracy")
    assert [row["subgroup"] for row in sites] == ["0", "1", "2"]
    for site, row in enumerate(sites):
        members = np.arange(len(world)) % 3 == site
        assert row["value"] == pytest.approx(metrics.accuracy(world.probs[members], world.labels[members]))
    counts = {
        row["subgroup"]: row["count"] for row in evaluation.table("subgroups", attribute="brightness", metric="ece")
    }
    edges = np.quantile(brightness[100:], [0.25, 0.5, 0.75])
    low, middle, high = (f"{edge:.4g}" for edge in edges)
    names = (f"up to {low}", f"{low} to {middle}", f"{middle} to {high}", f"above {high}")
    assert counts == {"missing": 100} | {f"group {i} ({name})": 275 for i, name in enumerate(names, start=1)}
    months = evaluation.table("subgroups", attribute="months", metric="accuracy")
    assert [row["count"] for row in months] == [300] * 4  # 24 values: a quantity, not 24 subgroups
    assert "patient" not in evaluation.tables["subgroups"]["attribute"]
    assert any("attribute patient has 1200 values" in note for note in evaluation.notes)


def test_a_bare_head_is_measured_on_its_own_edges(outputs, train):
    density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
    head = FakeHead().fit(train=density, calibration=outputs[:400])
    rest = outputs[400:]
    evaluation = aty.evaluate(head, rest)
    assert evaluation.methods == ("head",)
    assert evaluation.settings["alpha"] == {"head": 0.2}
    assert evaluation.settings["stored_edges"] is True
    expected = np.bincount(head.atypicality_groups_.assign(density.atypicality(rest.embeddings)), minlength=5)
    assert column(evaluation, "atypicality_groups", "count", metric="ece").tolist() == expected.tolist()
    said = head.predict(rest)
    names = head.quadrants_.assign(said.proba.max(axis=1), said.atypicality)
    shares = column(evaluation, "quadrants", "count", metric="share")
    assert shares.tolist() == [np.sum(names == name) for name in QUADRANTS]
    assert evaluation.table("class_groups")  # the head's density has counted the classes
    fresh = aty.evaluate(head, rest, train=density)  # asked for explicitly: quantiles of these rows
    assert set(column(fresh, "atypicality_groups", "count", metric="ece")) == {len(rest) / 5}


def given_atypicality(outputs, rng):
    return aty.ModelOutputs(
        outputs.logits, embeddings=outputs.embeddings, labels=outputs.labels, atypicality=rng.random(len(outputs))
    )


def test_given_atypicality_is_never_cut_at_the_edges_of_a_density(outputs, train, rng):
    head = ReliabilityHead().fit(train=train, calibration=outputs[:700])
    rest = given_atypicality(outputs[700:], rng)
    evaluation = aty.evaluate({"head": head, "model": "uncalibrated"}, rest)
    assert evaluation.settings["atypicality"] == "given with the outputs"
    assert evaluation.settings["stored_edges"] is False
    assert any("the edges that head stores belong to other values" in note for note in evaluation.notes)
    for method in ("head", "model"):
        assert set(column(evaluation, "atypicality_groups", "count", metric="ece", method=method)) == {100.0}
        quadrants = column(evaluation, "quadrants", "count", metric="share", method=method)
        assert quadrants[1] + quadrants[3] == 100  # the most atypical fifth of these very rows
    grid = np.reshape(column(evaluation, "grid", "count", metric="accuracy", method="model"), (6, 6))
    assert grid.sum(axis=1).max() - grid.sum(axis=1).min() <= 1


def test_a_head_of_given_atypicality_is_cut_at_its_own_edges(outputs, rng):
    head = ReliabilityHead().fit(calibration=given_atypicality(outputs[:700], rng))
    rest = given_atypicality(outputs[700:], rng)
    evaluation = aty.evaluate({"head": head}, rest)
    assert evaluation.settings["stored_edges"] is True
    groups = np.maximum(np.ceil(head.quantiles_(rest.atypicality) * 5), 1)
    expected = np.bincount(groups.astype(int) - 1, minlength=5)
    assert column(evaluation, "atypicality_groups", "count", metric="ece").tolist() == expected.tolist()


def test_two_heads_are_cut_by_the_atypicality_of_the_first(outputs, train):
    first = ReliabilityHead().fit(train=train, calibration=outputs[:700])
    second = ReliabilityHead(aty.NeighborAtypicality(3)).fit(train=train, calibration=outputs[:700])
    rest = outputs[700:]
    evaluation = aty.evaluate({"first": first, "second": second}, rest)
    assert evaluation.settings["atypicality"] == "measured by first"
    alone = aty.evaluate({"first": first}, rest)
    found, own = (one.table("quadrants", method="first") for one in (evaluation, alone))
    assert str(found) == str(own)  # NaN, as an error of one row, is not equal to itself
    said, rarity = second.predict(rest), first.predict(rest).atypicality
    names = aty.Quadrants().fit(said.confidence, rarity).assign(said.confidence, rarity)
    shares = column(evaluation, "quadrants", "count", metric="share", method="second")
    assert shares.tolist() == [np.sum(names == name) for name in QUADRANTS]
    same = aty.evaluate({"first": first, "again": first}, rest)  # one density, one scale: nothing is dropped
    assert not any("are not used" in note for note in same.notes)


def test_the_scale_of_train_is_named_and_no_stored_edges_are_used_on_it(outputs, train):
    head = ReliabilityHead().fit(train=train, calibration=outputs[:700])
    rest, other = outputs[700:], aty.NeighborAtypicality(3).fit(train.embeddings)
    evaluation = aty.evaluate({"head": head}, rest, train=other)
    assert evaluation.settings["atypicality"] == "estimated from train"
    assert evaluation.settings["stored_edges"] is False
    quadrants = column(evaluation, "quadrants", "count", metric="share")
    assert quadrants[1] + quadrants[3] == 100
    assert aty.compare("ts", rest, train=other, n_splits=1).settings["atypicality"] == "estimated from train"
    assert aty.compare("ts", rest, n_splits=1).settings["atypicality"] is None


def test_a_reliability_head_is_cut_at_the_quantiles_it_reports(outputs, train):
    head = ReliabilityHead().fit(train=train, calibration=outputs[:800])
    rest = outputs[800:]
    evaluation = aty.evaluate({"head": head, "uncalibrated": "uncalibrated"}, rest, n_groups=4)
    said = head.predict(rest)
    groups = np.maximum(np.ceil(said.atypicality_quantile * 4), 1).astype(int) - 1
    for method in ("head", "uncalibrated"):
        counts = column(evaluation, "atypicality_groups", "count", method=method, metric="ece")
        assert counts.tolist() == np.bincount(groups, minlength=4).tolist()
    found = [row["quadrant"] for row in evaluation.table("predictions", method="head")]
    assert found == list(said.quadrant)
    assert column(evaluation, "overall", method="head", metric="coverage") == pytest.approx(
        metrics.coverage(said.prediction_set, rest.labels)
    )


def test_a_head_without_a_density_lends_its_atypicality(outputs, train):
    head = FakeHead().fit(
        train=aty.GaussianAtypicality().fit(train.embeddings, train.labels), calibration=outputs[:400]
    )
    duck = SimpleNamespace(predict=head.predict)
    evaluation = aty.evaluate({"duck": duck}, outputs)
    assert column(evaluation, "atypicality_groups", "count", metric="ece").sum() == len(outputs)


def test_calibration_data_is_noticed(outputs, train):
    density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
    head = FakeHead().fit(train=density, calibration=outputs)
    with pytest.warns(UserWarning, match=r"calibration data of 'mine'.*rows that it has not seen"):
        aty.evaluate({"mine": head}, outputs)
    head.fingerprint_ = "another"
    aty.evaluate({"mine": head}, outputs)


def test_fitted_recalibrators_are_asked_with_what_they_need(outputs, train):
    density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
    rarity = density.atypicality(outputs.embeddings)
    scaling = aty.GroupTemperatureScaling().fit(outputs.logits, outputs.labels, atypicality=rarity)
    evaluation = aty.evaluate({"group-ts": scaling}, outputs, train=density)
    probs = scaling.predict_proba(outputs.logits, atypicality=rarity)
    assert column(evaluation, "overall", metric="nll") == pytest.approx(metrics.nll(probs, outputs.labels))
    by_side = aty.GroupTemperatureScaling().fit(outputs.logits, outputs.labels, groups=outputs.attributes["side"])
    evaluation = aty.evaluate({"by side": by_side}, outputs, groups="side")
    probs = by_side.predict_proba(outputs.logits, groups=outputs.attributes["side"])
    assert column(evaluation, "overall", metric="nll") == pytest.approx(metrics.nll(probs, outputs.labels))


def test_classes_are_listed_by_name():
    outputs = aty.ModelOutputs(np.eye(3), labels=[0, 1, 2], class_names=["ok", "late", "lost"])
    rows = aty.evaluate("uncalibrated", outputs).table("classes", metric="accuracy", class_name="late")
    assert [(row["class_index"], row["count"]) for row in rows] == [(1, 1)]


def test_a_classifier_of_rows_is_told_to_bring_its_probabilities(outputs):
    rows = LogisticRegression().fit(outputs.embeddings, outputs.labels)
    with pytest.raises(
        TypeError, match=r"method 'own': LogisticRegression is a classifier of rows X.*predict_proba\(X\)"
    ):
        aty.evaluate({"own": rows}, outputs)


def test_coverage_has_exact_binomial_intervals(outputs, world, train):
    sets = sets_of(world.probs)
    evaluation = aty.evaluate({"sets": (None, sets)}, outputs, train=train)
    for table in ("overall", "atypicality_groups", "confidence_groups", "grid", "classes", "set_sizes"):
        for row in evaluation.table(table, metric="coverage"):
            if row["count"]:
                hits = round(row["value"] * row["count"])
                exact = scipy.stats.binomtest(hits, int(row["count"])).proportion_ci(method="exact")
                assert (row["low"], row["high"]) == pytest.approx(tuple(exact), abs=1e-9)
    overall = {row["metric"]: row["value"] for row in evaluation.table("overall")}
    assert overall["coverage"] == pytest.approx(metrics.coverage(sets, world.labels))
    assert overall["set_size"] == pytest.approx(metrics.set_size(sets))
    assert "coverage_gap_class" not in overall  # bare sets do not say what they promised


@given(hits=st.integers(0, 300), misses=st.integers(0, 300))
@settings(deadline=None, max_examples=50)
def test_exact_interval_is_clopper_and_pearsons(hits, misses):
    low, high = exact_interval(hits, hits + misses)
    if hits + misses == 0:
        assert (low, high) == (0, 1)
    else:
        exact = scipy.stats.binomtest(hits, hits + misses).proportion_ci(method="exact")
        assert (float(low), float(high)) == pytest.approx(tuple(exact), abs=1e-9)


def test_the_worst_group_and_the_gap(outputs, world, train):
    conformal = aty.SplitConformal("aps", alpha=0.2).fit(world.probs, world.labels)
    evaluation = aty.evaluate({"aps": (world.probs, conformal)}, outputs, train=train)
    sets = conformal.predict_set(world.probs)
    gaps = {row["axis"]: row for row in evaluation.table("coverage_gaps")}
    assert set(gaps) == {
        "atypicality", "confidence", "grid", "class_atypicality", "class", "set_size", "quadrant", "subgroup",
    }  # fmt: skip
    cells = [row for row in evaluation.table("grid", metric="coverage") if row["count"]]
    worst = min(cells, key=lambda row: row["value"])
    assert gaps["grid"]["worst"] == f"{worst['group']}, {worst['confidence_group']}"
    assert {name: gaps["grid"][name] for name in STATISTICS} == {name: worst[name] for name in STATISTICS}
    assert gaps["grid"]["target"] == pytest.approx(0.8)
    assert gaps["grid"]["gap"] == pytest.approx(max(abs(row["value"] - 0.8) for row in cells))
    overall = {row["metric"]: row["value"] for row in evaluation.table("overall")}
    assert overall["coverage_gap_class"] == pytest.approx(metrics.coverage_gap(sets, world.labels, 0.2, by="class"))
    assert overall["coverage_gap_size"] == pytest.approx(metrics.coverage_gap(sets, world.labels, 0.2, by="size"))


def test_worst_groups_are_those_of_the_metrics():
    world = make_world(1200, atypical_noise=1.0)
    conformal = aty.SplitConformal("lac", 0.2).fit(world.probs[:600], world.labels[:600])
    test = world.take(slice(600, None))
    outputs = aty.ModelOutputs(test.logits, labels=test.labels, atypicality=test.atypicality)
    evaluation = aty.evaluate({"sets": (test.probs, conformal)}, outputs)
    sets = conformal.predict_set(test.probs)
    rare, confidence = test.atypicality, test.probs.max(axis=1)
    groups = {
        "worst_sixth_coverage": QuantileGroups(6).fit(rare).assign(rare),
        "worst_cell_coverage": aty.groups.GridGroups((3, 3)).fit(confidence, rare).assign(confidence, rare),
        "worst_size_coverage": np.minimum(sets.sum(axis=1) // 2, 2),  # of five classes: 0-1, 2-3, 4-5
    }
    for metric, codes in groups.items():
        [row] = evaluation.table("overall", metric=metric)
        worst = metrics.worst_coverage(sets, test.labels, codes)
        assert [row[name] for name in ("count", "value", "low", "high")] == pytest.approx(
            [worst.count, worst.value, worst.low, worst.high]
        )
    assert worst.value == min(metrics.size_stratified_coverage(sets, test.labels).value[:3])


@pytest.mark.parametrize("sign", [1, -1])
def test_atypicality_that_ranks_errors_backwards_is_said_in_words(sign, world):
    wrong = world.probs.argmax(axis=1) != world.labels
    rarity = sign * (wrong + np.random.default_rng(0).normal(size=len(world)))
    outputs = aty.ModelOutputs(world.logits, labels=world.labels, atypicality=rarity)
    evaluation = aty.evaluate({"model": world.probs}, outputs)
    [row] = evaluation.table("overall", metric="atypicality_auroc")
    said = [note for note in evaluation.notes if "backwards" in note]
    assert (row["high"] < 0.5) == bool(said) == (sign < 0)
    assert (
        ("ranks errors backwards" in str(evaluation))
        == ("That is backwards" in render_report(evaluation))
        == (sign < 0)
    )
    assert not said or f"AUROC {row['value']:.3f}" in said[0]
