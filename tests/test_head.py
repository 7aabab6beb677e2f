"""The head: disjoint parts, answers that equal its parts called by hand, and plain words where something is lost."""

import copy
import json
import sys
import tracemalloc
import warnings
from itertools import permutations

import numpy as np
import pytest
from conftest import needs, world_part
from numpy.testing import assert_allclose, assert_array_equal

import atypicality as aty
from atypicality import blocks, metrics
from atypicality.conformal import AtypicalityAwareConformal, SplitConformal
from atypicality.datasets import load_fashion_mnist_lt, make_world
from atypicality.head import ReliabilityHead
from atypicality.head.calibration_parts import CLEARLY, agreement, warn_of_training_rows
from atypicality.head.drift import Drift
from atypicality.head.prediction import known_formula
from atypicality.head.quantiles import QuantileScale
from atypicality.head.rarity import rarity_of
from atypicality.head.reliability import Reliability
from atypicality.outputs import ModelOutputs, Parts, three_way_split
from atypicality.report import render_report
from atypicality.report.next_steps import next_steps


def world_outputs(n, part=0, **options):
    world = world_part(part, n, atypical_noise=1.0, **options)
    return ModelOutputs(world.logits, embeddings=world.embeddings, labels=world.labels)


def quick_head(**options):
    options.setdefault("recalibration", aty.AtypicalityAwareRecalibration.paper())
    return ReliabilityHead(**options)


@pytest.fixture(scope="module")
def bundled():
    train, calibration, test = load_fashion_mnist_lt()
    return quick_head().fit(train=train, calibration=calibration), calibration, test


def test_parts_are_disjoint_complete_and_told(bundled):
    head, calibration, _ = bundled
    assert head.sizes_ == {"train": 10_000, "recalibration": 2500, "edges": 250, "thresholds": 2250}
    assert sum(head.sizes_.values()) - 10_000 == len(calibration)
    for size in ("2,500", "250", "2,250"):
        assert size in head.summary()
    assert "few rows" not in head.summary()
    small = copy.copy(head)
    small.sizes_ = {"train": 10_000, "recalibration": 250, "edges": 25, "thresholds": 224}
    assert "few rows for calibration, 500 are better" in small.summary()


def test_training_shares_are_known(bundled):
    head, *_ = bundled
    counts = np.bincount(load_fashion_mnist_lt().train.labels)
    assert_allclose(head.recalibration_.class_log_prior_, np.log(counts) - np.log(counts).mean())


def beside(head, embeddings):
    """Minus log p(x | y) by recalibration's Gaussian, of the class y that is nearest by the head's density."""
    nearest = head.density_.class_log_density(embeddings).argmax(axis=1)
    return -head.recalibration_density_.class_log_density(embeddings)[np.arange(len(nearest)), nearest]


def test_answers_equal_the_parts_called_by_hand(bundled):
    head, _, test = bundled
    answer = head.predict(test)
    given = {"atypicality": beside(head, test.embeddings)}
    given["class_log_density"] = head.density_.class_log_density(test.embeddings)
    rarity = head.density_.atypicality(test.embeddings)
    probs = head.recalibration_.predict_proba(test.logits, **given)
    assert_allclose(answer.atypicality, rarity, rtol=1e-12, atol=1e-11)  # differences of larger numbers
    assert_allclose(answer.proba, probs, atol=1e-6)
    assert_array_equal(answer.label, answer.proba.argmax(axis=1))
    assert_allclose(answer.confidence, answer.proba.max(axis=1), atol=1e-7)
    assert_array_equal(
        answer.prediction_set, head.prediction_sets_.predict_set(answer.proba, atypicality=answer.atypicality)
    )
    assert_array_equal(answer.quadrant, head.quadrants_.assign(answer.confidence, answer.atypicality))


def test_a_formula_is_built_once_and_again_after_a_part_was_replaced(bundled):
    head, _, test = bundled
    before, formula = head.predict(test[:1]), known_formula(head, None)
    assert known_formula(head, None) is formula
    assert known_formula(head, 0.05).advice.keep_from is not None
    other = copy.deepcopy(head)
    other.recalibration_.coefficients_ = 0.5 * head.recalibration_.coefficients_
    assert not np.array_equal(other.predict(test[:1]).proba, before.proba)
    assert_array_equal(head.predict(test[:1]).proba, before.proba)


def test_recalibration_that_reads_no_density_leaves_the_scores_as_they_are(bundled):
    _, calibration, test = bundled
    train = load_fashion_mnist_lt().train
    plain = quick_head(recalibration=aty.TemperatureScaling()).fit(train=train, calibration=calibration)
    assert plain.recalibration_density_ is not None
    assert_allclose(plain.predict(test).proba, plain.recalibration_.predict_proba(test.logits), atol=1e-7)
    assert_allclose(
        plain.predict(test).atypicality, plain.density_.atypicality(test.embeddings), rtol=1e-10, atol=1e-12
    )


def test_the_head_repairs_the_model(bundled):
    head, _, test = bundled
    answer = head.predict(test)
    raw = np.exp(test.logits - test.logits.max(axis=1, keepdims=True))
    raw /= raw.sum(axis=1, keepdims=True)
    assert metrics.nll(answer.proba, test.labels) < metrics.nll(raw, test.labels) - 0.1
    assert metrics.accuracy(answer.proba, test.labels) > metrics.accuracy(raw, test.labels) + 0.02
    # coverage of 5,000 rows at .9: the law given the calibration rows has sd below .01
    assert metrics.coverage(answer.prediction_set, test.labels) > 0.88


def test_quantiles_are_of_held_out_rows(bundled):
    head, calibration, test = bundled
    held_out = head.density_.atypicality(calibration.embeddings)
    answer = head.predict(test)
    exact = (held_out[None, :] <= answer.atypicality[:, None]).mean(axis=1)
    # the scale knows one half of the calibration rows: Dvoretzky-Kiefer-Wolfowitz at 1e-6 for 2,500 rows is .054
    assert np.abs(answer.atypicality_quantile - exact).max() < 0.054


def test_max_risk_keeps_predictions_that_err_rarely(bundled):
    head, _, test = bundled
    answer = head.predict(test, max_risk=0.05)
    wrong = answer.label != test.labels
    assert wrong.mean() > 0.1
    assert answer.accepted.mean() > 0.5
    assert wrong[answer.accepted].mean() < 0.05
    assert head.predict(test).accepted is None


def test_block_size_and_threads_change_nothing(bundled):
    head, _, test = bundled
    whole = head.predict(test[:500])
    with blocks.settings(n_threads=2, block_rows=77):
        pieces = head.predict(test[:500])
    assert_allclose(pieces.proba, whole.proba, atol=1e-6)
    assert_array_equal(pieces.prediction_set, whole.prediction_set)


def test_empty_in_empty_out(bundled):
    head, _, test = bundled
    answer = head.predict(test[:0])
    assert len(answer) == 0
    assert answer.prediction_set.shape == (0, 10)
    assert "0 samples" in repr(answer)


def test_rows_more_atypical_than_every_held_out_row_are_not_kept(bundled):
    head, _, test = bundled
    embeddings = np.array(test.embeddings)
    embeddings[:, 0] += 100 * embeddings[:, 0].std()
    with pytest.warns(UserWarning, match="the data has drifted"):
        answer = head.predict(ModelOutputs(test.logits, embeddings=embeddings), max_risk=0.05)
    assert answer.drift.share_beyond == 1
    assert "drifted, unless another model, layer, preprocessing or scale made these rows" in answer.drift.message()
    assert not answer.accepted.any()
    plain = head.predict(test, max_risk=0.05)
    beyond = plain.atypicality > head.quantiles_.values[-1]
    assert_array_equal(plain.accepted, (plain.confidence >= head.abstention_.threshold(0.05)) & ~beyond)


def test_drift_is_told(bundled):
    head, _, test = bundled
    moved = ModelOutputs(test.logits, embeddings=test.embeddings.astype("f4") * 3)
    with pytest.warns(UserWarning, match="the data has drifted"):
        answer = head.predict(moved)
    assert answer.drift.share_tail > 0.1


def test_three_rows_are_no_drift_wherever_they_are_and_four_can_be():
    scale = QuantileScale.from_rows(np.arange(1e6))
    three, four = (Drift(scale, np.full(n, 1e9)) for n in (3, 4))
    assert three.chance > 1e-6 > four.chance
    assert not three.significant
    assert four.significant


def test_rows_that_all_moved_up_have_drifted_even_if_none_is_in_the_tail():
    scale = QuantileScale.from_rows(np.arange(1000.0))
    moved = Drift(scale, np.linspace(700, 980, 300))
    assert (moved.share_tail, moved.share_above_median) == (0, 1)
    assert moved.significant
    assert "100.0% than half of them" in moved.message()
    assert not Drift(scale, np.linspace(300, 980, 300)).significant  # 0.71 above the median: not as a whole
    four = Drift(
        scale, np.full(4, 600.0)
    )  # four of four above the 500th of 1000 values: (501 ... 504) / (1001 ... 1004)
    expected = np.prod(np.arange(500, 504) / np.arange(1001, 1005))
    assert four.chance == pytest.approx(4 * expected, rel=0.02)  # the smaller of two sides, and of tail and middle


def test_drift_looks_at_the_score_of_recalibration_too(bundled, tmp_path):
    """A constant added to all embeddings cancels in the relative score, not in the Gaussian's."""
    head, _, test = bundled
    usual = head.predict(test).drift
    assert not usual.significant
    head.save(tmp_path / "head")
    moved = ModelOutputs(test.logits, embeddings=test.embeddings.astype("f4") + 1)
    with pytest.warns(UserWarning, match="more atypical, by the score that recalibration uses, than 99%"):
        drift = aty.load(tmp_path / "head").predict(moved).drift
    assert drift.share_tail < 2 * drift.expected_tail
    other = Drift(head.recalibration_quantiles_, beside(head, moved.embeddings))
    assert other.to_dict() == pytest.approx(drift.recalibration.to_dict())
    assert drift.chance == 2 * other.chance < 1e-6
    alone = Drift(head.quantiles_, head.predict(test).atypicality)
    assert usual.chance == min(1, 2 * min(alone.chance, usual.recalibration.chance))


def test_drift_looks_at_the_gaussian_where_recalibration_reads_nothing_of_it():
    outputs = world_outputs(1200)
    train, calibration, test = outputs[:500], outputs[500:900], outputs[900:]
    head = ReliabilityHead(recalibration=aty.TemperatureScaling()).fit(train=train, calibration=calibration)
    expected = Drift(head.recalibration_quantiles_, beside(head, test.embeddings))
    assert head.predict(test).drift.recalibration.to_dict() == pytest.approx(expected.to_dict())


@pytest.mark.parametrize("recalibration", ["auto", aty.TemperatureScaling()])
def test_what_is_beyond_the_held_out_rows_by_either_score_is_for_a_person(recalibration):
    """A row made longer is as before by a score of normalised rows; the Gaussian sees how far away it is."""
    train, calibration, test = load_fashion_mnist_lt()
    test, calibration = test[:500], calibration[:700]
    head = ReliabilityHead(recalibration=recalibration).fit(train=train, calibration=calibration)
    assert head.density_.normalize == "l2"
    long = ModelOutputs(test.logits, embeddings=100 * test.embeddings.astype("f4"))
    with pytest.warns(UserWarning, match="by the score that recalibration uses"):
        far = head.predict(long, max_risk=0.5)
    assert head.quantiles_.beyond(far.atypicality).mean() < 0.02
    assert (far.advice == "ask a person").all()
    assert not far.accepted.any()
    part = far[1::2]
    decided = np.where(
        head.quantiles_.beyond(part.atypicality),
        " (quantile 1, by both scores)",
        [f" by recalibration's score (quantile 1; {q:.4g} by the head's own)" for q in part.atypicality_quantile],
    )
    assert part.reasons() == [f"more atypical than every held-out row{by}" for by in decided]
    assert (head.predict(test).advice == "trust").any()
    beyond = beside(head, calibration.embeddings) > head.recalibration_quantiles_.values[-1]
    assert beyond.mean() < 0.02  # of the rows that recalibrate; none of those that set the limit


def test_agreement_has_mean_0_and_variance_1_over_all_orders(rng):
    probs, classes = rng.dirichlet(np.ones(3), size=6), np.array([0, 1, 1, 2, 2, 2])
    found = [agreement(probs, classes[list(order)]) for order in permutations(range(6))]
    assert_allclose([np.mean(found), np.var(found)], [0, 1], atol=1e-12)
    assert agreement(probs, np.zeros(6, int)) == np.inf  # every order is the same


@pytest.mark.parametrize(
    ("shuffled", "message"),
    [
        ("labels", "labels fit the logits no better"),
        ("embeddings", "embeddings fit the logits no better"),
        (None, None),
    ],
)
@pytest.mark.parametrize("part", ["train", "calibration"])
def test_rows_in_another_order_are_warned_of(part, shuffled, message, seed):
    """In eight worlds: by chance classes of shuffled training rows resemble their own in a sixth of such worlds."""
    if (shuffled, part) == ("labels", "train"):
        message = None  # logits and labels of training rows are not compared
    found = []
    for number in range(8 * seed, 8 * seed + 8):
        world = make_world(1100, random_state=number, atypical_noise=1.0).outputs()
        outputs = {"train": world[:600], "calibration": world[600:]}
        order = np.random.default_rng(number).permutation(len(outputs[part]))
        if message is not None:
            outputs[part] = outputs[part]._replaced(**{shuffled: getattr(outputs[part], shuffled)[order]})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ReliabilityHead(recalibration=aty.TemperatureScaling()).fit(**outputs)
        found += [str(one.message) for one in caught if "fit the logits no better" in str(one.message)]
    if message and part == "train":
        assert 3 <= len(found) <= 8
    else:
        assert len(found) == (8 if message else 0)
    assert all(message in one for one in found)


def test_rows_that_belong_together_and_others_are_told_apart_as_stated(rng):
    """500 rows with a correlation of 0.36 agree by 0.36 sqrt(499) = 8 deviations, give or take one; others by 0."""
    n, together, apart = 500, [], []
    for _ in range(400):
        hidden = rng.integers(0, 2, n)
        noisy = np.where(rng.random(n) < 0.36, hidden, rng.integers(0, 2, n))
        together.append(agreement(np.eye(2)[noisy], hidden))
        apart.append(agreement(np.eye(2)[noisy], rng.permutation(hidden)))
    assert min(together) > CLEARLY > max(apart)
    error = 4 / np.sqrt(400)
    assert_allclose([np.mean(together), np.mean(apart)], [0.36 * np.sqrt(n - 1), 0], atol=error)


def test_a_fitted_head_prints_what_was_chosen(bundled):
    head, *_ = bundled
    shown = str(head)
    assert shown == head.summary()
    for part in ("train 10,000", str(head.density_), "terms: ", "ConditionalConformal, 0.9 coverage"):
        assert part in shown
    assert str(ReliabilityHead()) == "ReliabilityHead()"


def test_given_parts_are_taken_as_they_are():
    outputs = world_outputs(3000)
    parts = three_way_split(outputs, recalibration=0.4, edges=0.2)
    head = quick_head().fit(train=world_outputs(2000, part=1), calibration=parts)
    assert head.sizes_ == {"train": 2000, "recalibration": 1200, "edges": 600, "thresholds": 1200}


def test_sets_are_conditional_where_there_is_atypicality_and_one_threshold_where_there_is_none():
    calibration = world_outputs(600)
    sets = quick_head(alpha=0.2).fit(train=world_outputs(1000, part=1), calibration=calibration).prediction_sets_
    assert (type(sets), sets.alpha) == (aty.ConditionalConformal, 0.2)
    with pytest.warns(UserWarning, match="works without atypicality"):
        plain = ReliabilityHead(density=None, alpha=0.2).fit(calibration=calibration).prediction_sets_
    assert (type(plain), plain.score, plain.alpha) == (aty.SplitConformal, "lac", 0.2)


def test_a_fitted_density_may_be_given_and_kept():
    train = world_outputs(2000, part=1)
    density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
    head = quick_head().fit(train=density, calibration=world_outputs(2000))
    assert head.density_ is density
    before = head.recalibration_
    head.refit(world_outputs(2000, part=5))
    assert head.density_ is density
    assert head.recalibration_ is not before


def test_given_atypicality_needs_no_embeddings(rng):
    outputs = world_outputs(2000)
    given = ModelOutputs(outputs.logits, labels=outputs.labels, atypicality=rng.normal(size=2000))
    answer = quick_head().fit(calibration=given).predict(given[:50])
    assert_array_equal(answer.atypicality, given.atypicality[:50])
    with pytest.raises(ValueError, match="atypicality"):
        quick_head().fit(calibration=given).predict(ModelOutputs(outputs.logits[:3]))


@pytest.mark.filterwarnings("ignore:the advice")
def test_without_a_density_it_says_what_is_lost():
    outputs = world_outputs(2000)
    bare = ModelOutputs(outputs.logits, labels=outputs.labels)
    with pytest.warns(UserWarning, match="no quadrants and no drift warning"):
        head = ReliabilityHead(recalibration=aty.TemperatureScaling()).fit(calibration=bare)
    answer = head.predict(bare[:20])
    assert answer.quadrant is None
    assert answer.prediction_set.any(axis=1).all()


def test_classes_the_density_never_saw_get_the_row_minimum():
    outputs = world_outputs(3000, n_classes=4)
    train = world_outputs(2000, part=1, n_classes=4)
    seen = train[np.flatnonzero(train.labels != 2)]
    with pytest.warns(UserWarning, match="train holds no row of class 2, which calibration rows have"):
        head = quick_head().fit(train=seen, calibration=outputs)
    densities = rarity_of(head, outputs[:30])[1]["class_log_density"]
    assert densities.shape == (30, 4)
    assert_array_equal(densities[:, 2], np.delete(densities, 2, axis=1).min(axis=1))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda o: quick_head().fit(train=o), ValueError, "calibration must be given"),
        (lambda o: quick_head().fit(train=o, calibration=ModelOutputs(o.logits)), ValueError, "must have labels"),
        (
            lambda o: quick_head().fit(train=ModelOutputs(labels=[0, 1]), calibration=o),
            ValueError,
            "must have embeddings",
        ),
        (lambda o: quick_head().fit(*o.split(0.5, stratify=True)), ValueError, "stratified"),
        (lambda o: quick_head().predict(o), Exception, "not fitted"),
        (lambda o: quick_head().fit(o, o.logits), TypeError, "calibration must be ModelOutputs; got ndarray"),
        (lambda o: quick_head().fit(o.embeddings, o), TypeError, "train, where it is not a fitted.*got ndarray"),
        (
            lambda o: quick_head().fit(o[:700], o[700:]).predict(o.logits),
            TypeError,
            r"outputs must be ModelOutputs; got ndarray. Pass ModelOutputs\(logits, embeddings=",
        ),
        (
            lambda o: quick_head().fit(o[:700], o[700:]).predict(ModelOutputs(o.logits)),
            ValueError,
            "must have embeddings; they have only logits",
        ),
        (
            lambda o: (
                quick_head().fit(o[:700], o[700:]).predict(ModelOutputs(o.logits, embeddings=o.embeddings[:, :3]))
            ),
            ValueError,
            "embeddings must have 8 columns",
        ),
    ],
)
def test_mistakes_are_explained(call, error, message):
    with pytest.raises(error, match=message):
        call(world_outputs(1500))


def test_training_rows_as_calibration_are_noticed(bundled, recwarn):
    head, train, test = bundled[0], *load_fashion_mnist_lt()[::2]
    quick = ReliabilityHead(recalibration=aty.TemperatureScaling())
    labelled = ModelOutputs(test.logits, embeddings=train.embeddings[: len(test)], labels=test.labels)
    with pytest.warns(UserWarning, match="100% of 32 looked at are rows of train too") as caught:
        quick.fit(train=train, calibration=labelled)
    assert caught[0].filename == __file__
    mixed = train.embeddings[: len(test)] + (np.arange(len(test)) % 4 > 0)[:, None]  # a fourth are: duplicates happen
    quick.fit(train=train, calibration=ModelOutputs(test.logits, embeddings=mixed, labels=test.labels))
    assert head.sizes_  # fitted on the bundled parts, which are disjoint: no warning there
    assert not [one for one in recwarn if "rows of train" in str(one.message)]


def test_equal_rows_of_few_values_are_no_suspicion(rng):
    train = rng.integers(2, size=(500, 3)).astype(float)
    warn_of_training_rows(train, train[:100])
    with pytest.warns(UserWarning, match="rows of train too"):
        warn_of_training_rows(train + np.arange(500)[:, None], train[:100] + np.arange(100)[:, None])


# chance


@pytest.fixture(scope="module")
def randomised():
    outputs = make_world(3000, 20, temperature=2.0).outputs()
    sets = AtypicalityAwareConformal("aps", n_groups=(2, 2), randomized=True)
    head = ReliabilityHead(prediction_sets=sets).fit(train=outputs[:700], calibration=outputs[700:2000])
    return head, outputs[2000:]


@pytest.mark.parametrize("setting", [{"block_rows": 7}, {"block_rows": 64}, {"memory": "200MB"}], ids=str)
def test_randomised_sets_do_not_depend_on_chunks(randomised, setting):
    head, test = randomised
    expected = head.predict(test)
    with blocks.settings(**setting):
        answer = head.predict(test)
    assert_array_equal(answer.prediction_set, expected.prediction_set)
    whole = head.prediction_sets_.predict_set(expected.proba, atypicality=expected.atypicality)
    assert_array_equal(answer.prediction_set, whole)


def test_randomised_sets_of_a_part_are_those_of_the_whole_by_row_number(randomised):
    head, test = randomised
    expected = head.predict(test).prediction_set
    for start, stop in ((0, 300), (300, 301), (301, 1000)):
        assert_array_equal(head.predict(test[start:stop], first_row=start).prediction_set, expected[start:stop])
    assert (head.predict(test[300:]).prediction_set != expected[300:]).any()  # or the test could not fail


def test_evaluation_measures_the_randomised_sets_of_predict(randomised):
    head, test = randomised
    covered = head.predict(test).prediction_set[np.arange(len(test)), test.labels]
    with blocks.settings(block_rows=7):
        rows = aty.evaluate(head, test).table("overall", metric="coverage")
    assert rows[0]["value"] == covered.mean()


class TopTwo(SplitConformal):
    """A user's own sets: no `first_row`, and nothing random."""

    def predict_set(self, probs):
        return probs >= np.sort(probs, axis=1)[:, -2:-1]


def test_a_set_class_without_row_numbers_works_in_the_head():
    outputs = make_world(1500, 6).outputs()
    head = ReliabilityHead(prediction_sets=TopTwo()).fit(train=outputs[:500], calibration=outputs[500:1000])
    with blocks.settings(block_rows=7):
        assert (head.predict(outputs[1000:], first_row=5).prediction_set.sum(axis=1) == 2).all()


# what a Reliability shows and writes


@pytest.fixture(scope="module")
def answer(bundled):
    head, _, test = bundled
    part = test[:6]
    part.ids = np.array(["=1+1", "b", "c", "d", "e", "f"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # six rows are no drift, and no test of it
        return head.predict(part, max_risk=0.1)


def test_repr_is_readable(answer):
    text = repr(answer)
    assert text.startswith("Reliability: 6 samples, mean confidence ")
    assert "... 1 more" in text
    assert "<table>" in answer._repr_html_()


def test_answers_are_cut_like_outputs(answer):
    part = answer[answer.confidence > np.median(answer.confidence)]
    assert len(part) == 3
    assert_array_equal(part.ids, answer.ids[answer.confidence > np.median(answer.confidence)])
    assert_array_equal(answer[[5, 0]].proba, answer.proba[[5, 0]])
    assert repr(answer[:2]).startswith("Reliability: 2 samples")
    assert_array_equal(answer[-3].ids, answer.ids[3:4])
    assert [len(row) for row in answer] == [1] * 6
    with pytest.raises(IndexError, match="position in 6 samples, from 0 on; got -7"):
        answer[-7]
    with pytest.raises(TypeError, match="slice, an array of positions"):
        answer[True]
    with pytest.raises(TypeError, match=r"a table, not one array; take a part of it, such as \.proba"):
        np.asarray(answer)


def test_to_frame_names_what_to_install(answer, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"to_frame needs pandas: pip install pandas$"):
        answer.to_frame()


def test_the_text_of_sets_takes_no_more_than_its_characters():
    """2000 rows of two names and one of all 500: fixed-width text would take 2000 * 6497 * 4 bytes, 52 MB."""
    n_rows, n_classes = 2000, 500
    sets = np.zeros((n_rows, n_classes), bool)
    sets[:, :2] = sets[7] = True
    probs = np.broadcast_to(1 / n_classes, sets.shape)
    names = np.array([f"class {index:04d}" for index in range(n_classes)])
    wide = Reliability(np.zeros(n_rows, int), probs[:, 0], probs, sets, class_names=names)
    tracemalloc.start()
    texts = wide.columns()["prediction_set"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert texts[0] == "class 0000 | class 0001"
    assert len(texts[7]) == 500 * 10 + 499 * 3
    assert peak < 2 * sum(map(sys.getsizeof, texts)) + 100 * n_rows  # a list, pointers, and the other columns


@needs("pyarrow")
def test_answers_for_no_rows_have_the_columns_of_others(answer, tmp_path):
    import pyarrow.parquet as pq

    answer.to_parquet(tmp_path / "some.parquet")
    answer[:0].to_parquet(tmp_path / "none.parquet")
    assert pq.read_schema(tmp_path / "none.parquet").equals(pq.read_schema(tmp_path / "some.parquet"))


def test_csv_defuses_formulas(answer, tmp_path):
    answer.to_csv(tmp_path / "a.csv")
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0].startswith("id,label,confidence,atypicality,atypicality_quantile,quadrant,prediction_set")
    assert lines[1].startswith("'=1+1,")
    assert len(lines) == 7


def test_jsonl_holds_sets_as_lists(answer, tmp_path):
    answer.save(tmp_path / "a.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == answer.ids.tolist()
    assert [len(row["prediction_set"]) for row in rows] == answer.prediction_set.sum(axis=1).tolist()


def test_npz_holds_every_array(answer, tmp_path):
    answer.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as arrays:
        assert_array_equal(arrays["prediction_set"], answer.prediction_set)
        assert_array_equal(arrays["proba"], answer.proba)


@needs("pyarrow", "pandas")
def test_parquet_and_frame(answer, tmp_path):
    import pandas as pd

    answer.save(tmp_path / "a.parquet")
    assert_array_equal(pd.read_parquet(tmp_path / "a.parquet")["label"], answer.to_frame()["label"])


def test_unknown_ending_is_refused(answer, tmp_path):
    with pytest.raises(ValueError, match=r"must end in one of \.csv, \.jsonl, \.parquet, \.npz"):
        answer.save(tmp_path / "a.xlsx")


def test_parts_keep_their_names():
    assert Parts._fields == ("recalibration", "edges", "thresholds")


def test_outputs_with_their_own_atypicality_need_no_training_rows(rng):
    given = aty.ModelOutputs(rng.normal(size=(60, 3)), labels=np.arange(60) % 3, atypicality=rng.gamma(2.0, size=60))
    with pytest.raises(ValueError, match="train must have embeddings; it has atypicality instead"):
        aty.ReliabilityHead().fit(train=given, calibration=given)


def test_two_alphas_that_differ_are_refused():
    sets, calibration = aty.SplitConformal(alpha=0.2), world_outputs(400)
    with pytest.raises(
        ValueError, match=r"alpha must be given once; got alpha=0.05 for the head and 0.2 for its Split"
    ):
        quick_head(prediction_sets=sets, alpha=0.05).fit(world_outputs(600, part=1), calibration)
    for alpha in (0.1, 0.2):  # the default, and the same
        head = quick_head(prediction_sets=sets, alpha=alpha).fit(world_outputs(600, part=1), calibration)
        assert head.prediction_sets_.alpha == 0.2


def rare_positives(n, seed):
    """Two classes, 3 % of them positive, with their true logits: hardly a positive is the likelier class."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.03).astype(int)
    X = rng.normal(size=(n, 2)) + 0.8 * labels[:, None]
    logits = np.c_[np.zeros(n), 0.8 * X.sum(axis=1) - 0.64 + np.log(0.03 / 0.97)]
    return ModelOutputs(logits, embeddings=X, labels=labels, class_names=["fine", "fraud"])


def test_a_rare_class_that_is_trusted_or_accepted_as_another_is_named(tmp_path):
    train, calibration, new = (rare_positives(n, seed) for seed, n in enumerate((1000, 5000, 3000)))
    plain = {"density": aty.GaussianAtypicality(), "recalibration": aty.TemperatureScaling()}
    with pytest.warns(UserWarning, match=r"trust another class, .* rows of class 1 \('fraud'\), \d+ of"):
        head = ReliabilityHead(**plain).fit(train, calibration)
    head.save(tmp_path)
    for one in (head, aty.load(tmp_path)):
        with pytest.warns(UserWarning, match=r"at max_risk=0.1 .* most held-out rows of class 1 \('fraud'\), \d+ rows"):
            answer = one.predict(new, max_risk=0.1)
    positive = new.labels == 1
    assert (answer.accepted & (answer.label == 0))[positive].mean() > 0.5
    head.predict(new, max_risk=0.3)  # so many errors are allowed
    by_class = aty.ConditionalConformal(groups={"fine": "fine", "fraud": "fraud"})
    covering = ReliabilityHead(**plain, prediction_sets=by_class).fit(train, calibration)
    trusted = np.char.startswith(covering.predict(new).advice, "trust")[positive].mean()
    assert trusted < 0.1 + 3 * np.sqrt(0.1 * 0.9 * (1 / positive.sum() + 1 / 70))  # of rows, and of thresholds
    with pytest.warns(UserWarning, match="Follow the advice instead") as told:
        evaluation = aty.evaluate(covering, new, max_risk=0.1)
    (first,), accepted, *_ = next_steps(evaluation, "head")
    assert f"method 'head': {first[0].lower()}{first[1:]}" == str(told[0].message)
    assert "with the advice to trust, and send the others to a person" in accepted[-1]
    assert first in str(evaluation)
    page = render_report(evaluation)
    assert ("The advice decides" in page, "Whether a prediction is accepted decides" in page) == (True, False)


def test_choices_without_a_class_are_counted_with_what_is_trusted():
    """Three classes, 4 % of them the last, whose log-odds are known: the counts of the warning are those of predict."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 6000, p=[0.75, 0.21, 0.04])
    X = rng.normal(size=(6000, 2)) + np.array([[0.0, 0.0], [1.2, 0.0], [0.6, 0.6]])[labels]
    logits = X @ np.array([[0.0, 1.2, 0.6], [0.0, 0.0, 0.6]]) + np.log([0.75, 0.21, 0.04]) - [0, 0.72, 0.36]
    rows = ModelOutputs(logits, embeddings=X, labels=labels)
    parts = three_way_split(rows[:4000], random_state=0)
    plain = {"density": aty.GaussianAtypicality(), "recalibration": aty.TemperatureScaling()}
    with pytest.warns(UserWarning, match="trust another class, or to choose among others") as told:
        head = ReliabilityHead(**plain).fit(rows[4000:], parts)
    handed = rare = chosen = 0
    for part in parts[1:]:
        answer, last = head.predict(part), part.labels == 2
        choose = np.char.startswith(answer.advice, "choose") & last
        trust = np.char.startswith(answer.advice, "trust") & last & (answer.label != 2)
        without = choose & ~answer.choices()[:, 2]
        handed, rare, chosen = handed + (trust | without).sum(), rare + last.sum(), chosen + without.sum()
    assert f"most held-out rows of class 2, {handed} of {rare} rows, which" in str(told[0].message)
    assert chosen > handed / 2  # which counting what is trusted would not have found
