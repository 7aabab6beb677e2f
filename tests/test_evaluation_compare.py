"""`compare`: the paper's protocol, for methods by name and for any object that keeps the contract."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.special
import scipy.stats
from conftest import load_outputs
from evaluation_cases import FakeHead, column, outputs_of, train_of, world_of

import atypicality as aty
from atypicality import metrics
from atypicality.datasets import make_world
from atypicality.evaluation.splits import average
from atypicality.groups import QuantileGroups


@pytest.fixture
def world(seed):
    return world_of(seed)


@pytest.fixture
def train(seed):
    return train_of(seed)


@pytest.fixture
def outputs(world):
    return outputs_of(world)


def test_compare_is_the_papers_protocol(outputs, world):
    comparison = aty.compare(["uncalibrated", "ts"], outputs, n_splits=4)
    values = []
    for seed in range(4):
        calibration, test = outputs.split(0.5, seed)
        probs = aty.TemperatureScaling().fit(calibration.logits, calibration.labels).predict_proba(test.logits)
        values.append(metrics.ece(probs, test.labels))
    [row] = comparison.table("overall", method="ts", metric="ece")
    assert row["count"] == len(world) / 2
    assert row["value"] == pytest.approx(np.mean(values))
    assert row["standard_error"] == pytest.approx(np.std(values, ddof=1) / 2)
    reach = scipy.stats.t.ppf(0.975, 3) * row["standard_error"]
    assert row["low"] == pytest.approx(max(row["value"] - reach, 0))
    assert row["high"] == pytest.approx(row["value"] + reach)


def test_differences_are_paired_by_split_with_nadeau_and_bengios_interval(outputs):
    comparison = aty.compare(["ts", "uncalibrated"], outputs, n_splits=4)
    gaps = []
    for seed in range(4):
        calibration, test = outputs.split(0.5, seed)
        probs = aty.TemperatureScaling().fit(calibration.logits, calibration.labels).predict_proba(test.logits)
        raw = scipy.special.softmax(test.logits, axis=1)
        gaps.append(metrics.nll(raw, test.labels) - metrics.nll(probs, test.labels))
    [row] = comparison.table("changes", axis="overall", metric="nll")
    assert (row["method"], row["reference"]) == ("uncalibrated", "ts")
    assert row["value"] == pytest.approx(np.mean(gaps))
    assert row["standard_error"] == pytest.approx(np.std(gaps, ddof=1) * (1 / 4 + 1) ** 0.5)
    reach = scipy.stats.t.ppf(0.975, 3) * row["standard_error"]
    assert (row["low"], row["high"]) == pytest.approx((row["value"] - reach, row["value"] + reach))
    assert f"Log loss, uncalibrated less ts, paired: {row['value']:.4f}" in str(comparison)
    one = aty.compare(["ts", "uncalibrated"], outputs, n_splits=1)
    assert "paired" not in str(one)
    assert {row["verdict"] for row in one.table("changes")} == {"unclear"}


@pytest.mark.filterwarnings("ignore:method 'aa-aps'. alpha=0.3 needs at least 3 threshold rows in every region")
def test_the_papers_forms_have_no_prior_and_the_released_sets(outputs, train):
    density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
    asked = ["ts", "aa-aps"]
    found = aty.paper.compare(asked, outputs, train=density, n_splits=1, alpha=0.3, n_groups=2)
    calibration, test = outputs.split(0.5, 0)
    free = aty.paper.PriorFreeTemperature().fit(calibration.logits, calibration.labels)
    [row] = found.table("overall", method="ts", metric="nll")
    assert row["value"] == pytest.approx(metrics.nll(free.predict_proba(test.logits), test.labels))
    rarity = density.atypicality(test.embeddings)
    rare = rarity > np.median(rarity)
    halves = [aty.paper.PriorFreeTemperature().fit(test.logits[rows], test.labels[rows]) for rows in (~rare, rare)]
    assert column(found, "temperatures") == pytest.approx([half.temperature_ for half in halves])
    ours = aty.compare(asked, outputs, train=density, n_splits=1, alpha=0.3, n_groups=2)
    sizes = [column(one, "overall", method="aa-aps", metric="set_size") for one in (found, ours)]
    assert sizes[0] != sizes[1]  # the paper's cells are not merged, and hold the class that crosses
    pairs = {"named": ("ts", aty.SplitConformal()), "made": (aty.paper.PriorFreeTemperature(), aty.SplitConformal())}
    both = aty.paper.compare(pairs, outputs, n_splits=1)
    assert column(both, "overall", method="named", metric="set_size") == column(
        both, "overall", method="made", metric="set_size"
    )
    with pytest.raises(ValueError, match="methods must be one of"):
        aty.paper.compare("lac", outputs)


def test_compare_cuts_the_test_half_at_its_own_quantiles(outputs, train):
    density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
    comparison = aty.compare("uncalibrated", outputs, train=density, n_splits=2)
    found = column(comparison, "atypicality_groups", metric="accuracy")
    each = []
    for seed in range(2):
        _, test = outputs.split(0.5, seed)
        rarity = density.atypicality(test.embeddings)
        groups = QuantileGroups(5).fit(rarity).assign(rarity)
        correct = test.logits.argmax(axis=1) == test.labels
        each.append([correct[groups == group].mean() for group in range(5)])
    np.testing.assert_allclose(found, np.mean(each, axis=0))
    assert set(column(comparison, "atypicality_groups", "count", metric="accuracy")) == {len(outputs) / 10}


def test_compare_takes_names_objects_pairs_heads_and_fixed_things(outputs, train):
    density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
    content_free = aty.ContentFreeCalibration().fit(np.zeros((3, 4)))
    methods = {
        "ts": "ts",
        "bias": aty.VectorScaling(scale=False),
        "raw raps": (None, aty.SplitConformal("aps", alpha=0.1)),
        "aa": ("ts", aty.AtypicalityAwareConformal("aps", alpha=0.2, n_groups=(2, 2))),
        "head": FakeHead(),
        "content-free": content_free,
        "duck": SimpleNamespace(predict_proba=lambda logits: scipy.special.softmax(logits, axis=1)),
    }
    comparison = aty.compare(methods, outputs, train=density, n_splits=2)
    assert comparison.methods == tuple(methods)
    assert comparison.settings["alpha"] == {"raw raps": 0.1, "aa": 0.2, "head": 0.2}
    assert {row["method"] for row in comparison.table("coverage_gaps")} == {"raw raps", "aa", "head"}
    assert {row["method"] for row in comparison.table("overall")} == set(methods)
    assert not comparison.table("samples")
    assert not hasattr(methods["bias"], "n_classes_")  # copies are fitted, never the caller's objects
    probs = [content_free.predict_proba(outputs.split(0.5, seed)[1].logits) for seed in range(2)]
    losses = [metrics.nll(p, outputs.split(0.5, seed)[1].labels) for seed, p in enumerate(probs)]
    assert column(comparison, "overall", method="content-free", metric="nll") == pytest.approx(np.mean(losses))


@pytest.mark.parametrize("name", ["lac", "aps", "raps", "saps", "aa-aps", "conditional"])
def test_conformal_names_have_valid_coverage_on_average(name, seed):
    world = make_world(4000, 4, random_state=seed)
    outputs = aty.ModelOutputs(world.logits, labels=world.labels, atypicality=world.atypicality)
    comparison = aty.compare(name, outputs, n_splits=2, alpha=0.2)
    # Coverage of one split has sd below sqrt(.16 (1/600 + 1/2000)) = .019; means of 2 dependent splits no more.
    assert column(comparison, "overall", metric="coverage")[0] > 0.8 - 4 * 0.019


def test_given_atypicality_needs_no_embeddings(world):
    outputs = aty.ModelOutputs(
        world.logits, labels=world.labels, atypicality=world.atypicality, class_atypicality=[0.1, 0.2, 0.3, 0.4]
    )
    comparison = aty.compare(["group-ts"], outputs, n_splits=2)
    assert len(comparison.table("atypicality_groups", metric="ece")) == 5
    assert comparison.table("class_grid", metric="accuracy")
    labels_alone = aty.ModelOutputs(labels=np.arange(4).repeat([50, 20, 5, 1]))
    evaluation = aty.evaluate(
        "uncalibrated",
        aty.ModelOutputs(world.logits, labels=world.labels, atypicality=world.atypicality),
        train=labels_alone,
    )
    np.testing.assert_allclose(
        column(evaluation, "class_info", "class_atypicality"), -np.log(np.array([50, 20, 5, 1]) / 76)
    )


def test_methods_are_given_the_training_mix_as_in_a_head(outputs, train):
    class Prior(aty.TemperatureScaling):
        def fit(self, logits, labels, *, class_log_prior=None):
            seen.append(class_log_prior)
            return super().fit(logits, labels)

    seen = []
    aty.compare({"prior": Prior()}, outputs, train=train, n_splits=1)
    np.testing.assert_allclose(np.exp(seen[0]), np.bincount(train.labels) / len(train), rtol=1e-12)


def test_class_scores_reach_their_table(outputs):
    duck = SimpleNamespace(
        predict_proba=lambda logits: scipy.special.softmax(logits, axis=1), class_scores_=[0.5, -0.5, 0.25, -0.25]
    )
    for evaluation in (aty.evaluate({"duck": duck}, outputs), aty.compare({"duck": duck}, outputs, n_splits=2)):
        assert column(evaluation, "class_scores").tolist() == [0.5, -0.5, 0.25, -0.25]
        assert column(evaluation, "class_scores", "class_index").tolist() == [0, 1, 2, 3]


def test_a_difference_of_shares_may_be_negative_with_all_of_its_interval():
    row = {"method": "m", "reference": "r", "axis": "overall", "metric": "accuracy", "count": 10}
    [mean] = average("changes", [[row | {"value": -0.29}], [row | {"value": -0.31}], [row | {"value": -0.3}]])
    error = 0.01 * (1 / 3 + 1) ** 0.5
    assert (mean["value"], mean["standard_error"]) == pytest.approx((-0.3, error))
    assert (mean["low"], mean["high"]) == pytest.approx((-0.3 - 4.302653 * error, -0.3 + 4.302653 * error))


def test_averages_leave_out_what_a_split_lacks():
    row = {"method": "m", "group": 0, "metric": "ece", "count": 10, "standard_error": np.nan, "low": 0, "high": 1}
    parts = [[row | {"value": 1.0}], [row | {"value": np.nan, "count": 0}], [row | {"value": 3.0, "count": 20}], []]
    [mean] = average("atypicality_groups", parts)
    assert (mean["count"], mean["value"], mean["standard_error"]) == (10, 2.0, 1.0)


def test_compare_repeats_itself(outputs, train):
    first, second = (aty.compare(["ts", "raps"], outputs, train=train, n_splits=2) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    other = aty.compare(["ts", "raps"], outputs, train=train, n_splits=2, random_state=7)
    assert first != other


def real(name):
    parts = {part: load_outputs(name, part) for part in ("test", "train_statistics")}
    return aty.ModelOutputs(**parts["test"]), aty.GaussianAtypicality.from_statistics(**parts["train_statistics"])


def test_cifar10_rows_are_the_papers():
    outputs, density = real("cifar10-wrn28-10")
    comparison = aty.compare(["uncalibrated", "ts", "aar"], outputs, train=density, n_splits=3)
    # The paper trained another WideResNet28 on CIFAR-10: its rows (ECE per quintile) within 0.03 of ours.
    paper = {
        "uncalibrated": [0.003, 0.005, 0.004, 0.009, 0.142],
        "ts": [0.009, 0.007, 0.008, 0.004, 0.073],
        "aar": [0.001, 0.002, 0.002, 0.002, 0.041],
    }
    for method, row in paper.items():
        np.testing.assert_allclose(
            column(comparison, "atypicality_groups", method=method, metric="ece"), row, atol=0.03
        )
    last = {row["method"]: row["value"] for row in comparison.table("atypicality_groups", metric="ece", group=4)}
    assert last["uncalibrated"] > last["ts"] > last["aar"]  # claim 4


@pytest.mark.parametrize("name", ["cifar10-wrn28-10", "cifar10lt-wrn28-4"])
def test_one_call_prints_what_the_documentation_shows(name):
    test, train = (aty.ModelOutputs(**load_outputs(name, part)) for part in ("test", "train"))
    page = Path(__file__).parents[1] / "docs" / "evaluation.md"
    printed, shown = str(aty.evaluate("uncalibrated", test, train=train)), page.read_text(encoding="utf-8")
    assert " ".join(printed.split()) in " ".join(shown.split())  # long lines are wrapped there


def test_cifar10lt_accuracy_falls_with_class_atypicality():
    outputs, density = real("cifar10lt-wrn28-4")
    evaluation = aty.evaluate("uncalibrated", outputs, train=density)
    accuracy = column(evaluation, "class_groups", metric="accuracy")
    ece = column(evaluation, "class_groups", metric="ece")
    assert (np.diff(accuracy) < 0).all()  # claim 1
    assert (np.diff(ece) > 0).all()
