"""Accuracy without labels: exact where its assumptions hold, intervals that cover, reasons where it is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

import atypicality as aty
from atypicality.datasets import load_fashion_mnist
from atypicality.head.reference import HeldOutCounts
from atypicality.monitoring.accuracy import Profile, estimated, moved_rows, tilted
from atypicality.recalibration.class_mix import ClassMix

SIGNS = np.array([[0.8, 0.15, 0.05], [0.1, 0.8, 0.1], [0.05, 0.2, 0.75]])
"""Chance of each of three signs (columns) given the class (rows): a model that knows it is calibrated exactly."""
HELD_OUT = np.array([0.5, 0.3, 0.2])


def posterior(mix):
    """Probabilities of the classes given each sign, and how often each sign is seen."""
    joint = mix[:, None] * SIGNS
    return (joint / joint.sum(axis=0)).T, joint.sum(axis=0)


def profile_under(mix, *, n_rows=100_000, tail=0.0):
    """What a model calibrated under `HELD_OUT` says of rows of another mix, and how often it is right."""
    probs, _ = posterior(HELD_OUT)
    label = probs.argmax(axis=1)
    _, weight = posterior(mix)
    accuracy = float(sum(mix[label[sign]] * SIGNS[label[sign], sign] for sign in range(3)))
    return Profile(probs, label, weight, n_rows, tail), accuracy


def held_out(n_rows=100_000):
    """Counts with exactly the shares and the accuracy of the held-out mix."""
    _, accuracy = profile_under(HELD_OUT)
    counts = np.round(HELD_OUT * n_rows).astype(np.int64)
    return HeldOutCounts(None, counts, counts, round((1 - accuracy) * n_rows))


@pytest.fixture(scope="module")
def data():
    train, calibration, test = load_fashion_mnist()
    return aty.ReliabilityHead().fit(train=train[:3000], calibration=calibration[:2000]), test


@pytest.mark.parametrize("mix", [HELD_OUT, np.array([0.2, 0.2, 0.6]), np.array([0.05, 0.9, 0.05])])
class TestLabelShift:
    def test_probabilities_tilted_to_the_true_mix_are_the_posterior(self, mix):
        profile, _ = profile_under(mix)
        expected, _ = posterior(mix)
        np.testing.assert_allclose(tilted(profile.probs, profile.weight, mix), expected, atol=2e-5)  # gtol 1e-7

    def test_with_the_mix_the_estimate_is_exact(self, mix):
        profile, accuracy = profile_under(mix)
        found = estimated(profile, held_out(), mix, calibrated=HELD_OUT)
        assert found.estimates["transport"] == pytest.approx(accuracy, abs=2e-5)
        assert found.estimates["class mix"] == pytest.approx(accuracy, abs=1e-9)
        assert found.refusal is None
        assert found.low <= accuracy <= found.high

    def test_without_it_em_finds_the_mix(self, mix):
        profile, accuracy = profile_under(mix)
        found = estimated(profile, held_out(), None, calibrated=HELD_OUT, n_bootstrap=20)
        assert isinstance(found.class_mix, ClassMix)
        # of 4,000 rows at equally spaced places of the profile; pseudo-rows pull a little towards the held-out mix
        np.testing.assert_allclose(found.class_mix.shares, mix, atol=0.03)
        assert found.estimates["class mix"] == pytest.approx(accuracy, abs=0.01)
        if found.refusal is None:
            assert found.accuracy == min(found.estimates["confidence"], found.estimates["class mix"])
        assert (found.class_mix.low <= found.class_mix.shares).all()


def test_tilting_has_both_margins_and_keeps_the_odds_of_rows(rng):
    probs, weight = rng.dirichlet(np.ones(4), 200), rng.dirichlet(np.ones(200))
    mix = np.array([0.1, 0.2, 0.3, 0.4])
    found = tilted(probs, weight, mix)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(weight @ found, mix, atol=1e-5)
    ratio = np.log(found / probs)
    np.testing.assert_allclose(ratio - ratio[:, :1], np.broadcast_to((ratio - ratio[:, :1])[0], ratio.shape), atol=1e-9)
    same = tilted(probs, weight, weight @ probs)
    np.testing.assert_allclose(same, probs, atol=1e-6)


def test_a_class_that_cannot_occur_gets_nothing(rng):
    probs = rng.dirichlet(np.ones(3), 50)
    found = tilted(probs, np.full(50, 0.02), np.array([0.5, 0.5, 0.0]))
    assert found[:, 2].max() < 1e-6


def test_the_interval_covers_where_nothing_changed(seed):
    # independent draws of held-out and of new rows: 90 % intervals miss 40 of 400, and each tail is binomial
    rng, misses = np.random.default_rng(seed), 0
    _, truth = profile_under(HELD_OUT)
    probs, weight = posterior(HELD_OUT)
    for _ in range(400):
        counts = rng.multinomial(2000, weight)
        errors = int(rng.binomial(1500, 1 - truth))
        new = Profile(probs, probs.argmax(axis=1), counts / 2000, 2000, 0.0)
        labels = np.round(HELD_OUT * 1500).astype(np.int64)
        found = estimated(new, HeldOutCounts(None, labels, labels, errors), HELD_OUT, calibrated=HELD_OUT)
        right = rng.binomial(2000, truth) / 2000
        misses += not found.low <= right <= found.high
    assert misses <= 40 + 4 * 6


class TestChangedRows:
    @pytest.fixture
    def reference(self, rng):
        labels = np.repeat([0, 1], 10_000)
        return HeldOutCounts.from_rows(
            rng.random(20_000), labels, labels, n_classes=2, atypicality=rng.permutation(20_000) / 20_000
        )

    @pytest.mark.parametrize("share", [0.0, 0.3])
    def test_no_more_than_did_change(self, reference, rng, share):
        # of 20,000 rows some get class 0 and the largest atypicality: at the 99 % edge .99 * share of them crossed it
        atypicality, label = rng.random(20_000), rng.integers(0, 2, 20_000)
        atypicality[: int(share * 20_000)], label[: int(share * 20_000)] = 2.0, 0
        cells = np.bincount(reference.atypicality.cells(atypicality), minlength=17)
        tail, changed = moved_rows(reference, np.bincount(label), cells)
        error = 0.005  # of a share of .5 in two samples of 20,000 rows
        assert tail == pytest.approx(share + 0.01 * (1 - share), abs=4 * error)
        assert max(0.0, 0.99 * share - 2 * error) <= changed <= share + 4 * error
        assert moved_rows(reference, np.bincount(label), None) == (0.0, pytest.approx(share / 2, abs=4 * error))

    def test_ties_are_no_change(self):
        reference = HeldOutCounts.from_rows(
            np.ones(9), np.zeros(9, int), np.zeros(9, int), n_classes=1, atypicality=np.ones(9)
        )
        cells = np.bincount(reference.atypicality.cells(np.ones(50)), minlength=3)
        assert moved_rows(reference, np.array([50]), cells) == (0.0, 0.0)

    def test_a_tenth_of_them_is_wrong_where_the_mix_is_not_known(self):
        profile, _ = profile_under(HELD_OUT)
        options = {"calibrated": HELD_OUT, "n_bootstrap": 0}
        plain = estimated(profile, held_out(), None, **options)
        found = estimated(replace(profile, changed=0.3), held_out(), None, **options)
        assert found.accuracy == pytest.approx(0.97 * plain.accuracy)
        known = [estimated(replace(profile, changed=share), held_out(), HELD_OUT, **options) for share in (0.0, 0.3)]
        assert known[0].accuracy == known[1].accuracy

    @pytest.mark.parametrize(("mix", "start", "slope"), [(None, 0.35, 1.0), (HELD_OUT, 0.15, 1.5)])
    @pytest.mark.parametrize("level", [0.5, 0.9])
    def test_they_widen_the_log_odds_half_as_fast_upwards(self, mix, start, slope, level):
        profile = replace(profile_under(HELD_OUT, n_rows=10**12)[0], changed=0.2)
        found = estimated(profile, held_out(10**12), mix, calibrated=HELD_OUT, level=level, n_bootstrap=0)
        centre, low, high = (np.log(end / (1 - end)) for end in (found.accuracy, found.low, found.high))
        deviates = norm.ppf((1 + level) / 2)  # rows without end have no sampling error
        assert centre - low == pytest.approx(deviates * (start + 0.2 * slope), rel=1e-6)
        assert high - centre == pytest.approx(deviates * (start + 0.1 * slope), rel=1e-6)


def test_confidence_is_moved_by_its_error_on_the_held_out_rows():
    profile, accuracy = profile_under(HELD_OUT)
    found = []
    for known, calibrated in ((None, HELD_OUT), (accuracy + 0.02, HELD_OUT), (accuracy + 0.02, [0.2, 0.3, 0.5])):
        reference = replace(held_out(), mean_confidence=known)
        found.append(estimated(profile, reference, None, calibrated=np.array(calibrated), n_bootstrap=0).estimates)
    assert found[1]["combined"] == pytest.approx(found[0]["combined"] - 0.02, abs=1e-5)  # whole rows are wrong
    plain = min(found[2]["confidence"], found[2].get("class mix", 1.0))
    assert found[2]["combined"] == plain  # the mean held-out confidence is not that of the mix
    counted = HeldOutCounts.from_rows([0.5, 0.9], np.array([0, 1]), np.array([0, 0]), n_classes=2)
    assert counted.mean_confidence == pytest.approx(0.7)


def test_an_accuracy_of_all_has_an_interval_that_holds_it():
    labels = np.array([60, 0])
    profile = Profile(np.array([[1.0, 0.0]]), np.zeros(1, np.intp), np.ones(1), 60, 0.0)
    found = estimated(profile, HeldOutCounts(None, labels, labels, 0), [1.0, 0.0], calibrated=np.array([0.99, 0.01]))
    assert 0 < found.low < found.accuracy == found.high == pytest.approx(1)


class TestRefusals:
    def test_rows_unlike_any_held_out_row(self):
        profile, _ = profile_under(HELD_OUT, tail=0.6)
        found = estimated(profile, held_out(), None, calibrated=HELD_OUT, n_bootstrap=0)
        assert (found.accuracy, found.low, found.high) == (None, None, None)
        assert "60% of the rows are more atypical" in found.refusal
        assert "no estimate of accuracy: 60%" in str(found)
        assert found.estimates["confidence"] > 0

    def test_estimators_that_disagree(self):
        profile, _ = profile_under(HELD_OUT)
        confident = Profile(np.eye(3) * 0.97 + 0.01, np.arange(3), np.array([1.0, 0.0, 0.0]), 1000, 0.0)
        found = estimated(
            confident, held_out(), [0.2, 0.4, 0.4], calibrated=HELD_OUT
        )  # all rows look like a class that is one in five
        assert "two estimates differ by 0.72" in found.refusal
        assert str(found).endswith("more than 0.1. Label some rows.")
        assert found.estimates["transport"] < 0.4 < found.estimates["class mix"]
        assert profile.confidence(profile.probs) < found.estimates["confidence"]

    def test_predictions_that_look_like_another_mix(self):
        sure = Profile(np.eye(3) * 0.97 + 0.01, np.arange(3), np.array([0.02, 0.02, 0.96]), 1000, 0.0)
        found = estimated(sure, held_out(), None, calibrated=HELD_OUT, n_bootstrap=0)
        assert "look like another class mix" in found.refusal
        assert estimated(sure, held_out(), [0.02, 0.02, 0.96], calibrated=HELD_OUT).refusal is None  # where it is known


class TestHead:
    def test_the_estimate_of_a_head_is_near_the_truth(self, data):
        head, test = data
        accuracy = float((head.predict(test).label == test.labels).mean())
        for mix in (None, [0.1] * 10):
            found = aty.estimate_accuracy(head, test, mix)
            assert found.low <= accuracy <= found.high
            assert abs(found.accuracy - accuracy) < 0.02
            json.dumps(found.to_dict(), allow_nan=False)
        assert json.dumps(aty.estimate_accuracy(head, test, n_bootstrap=0).to_dict(), allow_nan=False)

    def test_a_monitor_estimates_from_counts_what_rows_give(self, data):
        head, test = data
        monitor = aty.Monitor(head)
        monitor.add(test, at=0)
        rows, counts = aty.estimate_accuracy(head, test), monitor.estimated_accuracy()
        assert counts.estimates["confidence"] == pytest.approx(rows.estimates["confidence"], abs=2**-29)
        assert counts.estimates["class mix"] == pytest.approx(rows.estimates["class mix"], abs=0.01)
        answer, ranks = head.predict(test), head.reference_.atypicality
        cells = np.bincount(ranks.cells(answer.atypicality), minlength=2 * ranks.edges.size + 1)
        seen = moved_rows(head.reference_, np.bincount(answer.label, minlength=10), cells)
        assert monitor._moved_rows(None) == seen
        mix = np.array([0.19, *[0.09] * 9])
        known = monitor.estimated_accuracy(class_mix=mix).estimates["transport"]
        assert known == pytest.approx(aty.estimate_accuracy(head, test, mix).estimates["transport"], abs=0.01)

    def test_classes_in_another_order_give_the_same(self, data):
        head, test = data
        turned = test.with_classes(test.class_names[::-1])
        expected = aty.estimate_accuracy(head, test[:500], n_bootstrap=0).estimates
        assert aty.estimate_accuracy(head, turned[:500], n_bootstrap=0).estimates == pytest.approx(expected, abs=1e-12)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"class_mix": [0.5, 0.5]}, "class_mix must have one share per class, 10; got 2"),
            ({"class_mix": [0.2] * 10}, "class_mix must hold shares"),
            ({"level": 1.0}, "level"),
            ({"n_bootstrap": -1}, "n_bootstrap"),
        ],
    )
    def test_arguments_are_checked(self, data, options, message):
        with pytest.raises(ValueError, match=message):
            aty.estimate_accuracy(data[0], data[1][:50], **options)
        with pytest.raises(ValueError, match="at least one row"):
            aty.estimate_accuracy(data[0], data[1][:0])

    def test_a_head_with_a_class_prior_is_calibrated_under_it(self, data):
        train, calibration, _ = load_fashion_mnist()
        prior = np.array([0.37, *[0.07] * 9])
        told = aty.AtypicalityAwareRecalibration(class_prior=prior)
        head = aty.ReliabilityHead(recalibration=told).fit(train=train[:3000], calibration=calibration[:2000])
        found = aty.estimate_accuracy(head, data[1], class_mix=prior)
        assert found.estimates["class mix"] == pytest.approx(found.estimates["confidence"], abs=1e-6)  # rows of float32
        monitor = aty.Monitor(head)
        monitor.add(data[1][:300], at=0)
        again = monitor.estimated_accuracy(class_mix=prior)
        assert again.estimates["class mix"] == pytest.approx(again.estimates["confidence"], abs=1e-6)

    def test_a_head_that_estimates_its_prior_cannot_be_monitored(self, data):
        train, calibration, _ = load_fashion_mnist()
        told = aty.AtypicalityAwareRecalibration(class_prior="estimate")
        head = aty.ReliabilityHead(recalibration=told).fit(train=train[:3000], calibration=calibration[:2000])
        with pytest.raises(ValueError, match="must judge each row by itself"):
            aty.Monitor(head)
        found = aty.estimate_accuracy(head, data[1])
        assert found.low <= (head.predict(data[1]).label == data[1].labels).mean() <= found.high

    def test_many_classes_have_their_mean_confidence_alone(self, rng):
        labels = rng.integers(0, 80, 900)
        logits = rng.standard_normal((900, 80)) + 4 * np.eye(80)[labels]
        outputs = aty.ModelOutputs(logits, labels=labels, atypicality=rng.random(900))
        head = aty.ReliabilityHead(recalibration=aty.TemperatureScaling(), prediction_sets=aty.SplitConformal()).fit(
            calibration=outputs[:600]
        )
        monitor = aty.Monitor(head)
        monitor.add(outputs[600:], at=0)
        found = monitor.estimated_accuracy()
        expected = head.predict(outputs[600:]).confidence.mean()
        assert found.estimates["confidence"] == pytest.approx(expected, abs=2**-29)
        assert monitor._state.profile.shape == (1, 2)
        with pytest.raises(ValueError, match="Pass the rows to estimate_accuracy"):
            monitor.estimated_accuracy(class_mix=np.full(80, 1 / 80))
