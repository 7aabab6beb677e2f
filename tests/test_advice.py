"""Advice: the words follow from set, acceptance and quadrant, and they hold on rows that nobody fitted on."""

import itertools
import warnings
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import atypicality as aty
from atypicality.datasets import load_fashion_mnist, load_fashion_mnist_lt, make_world
from atypicality.formula import ADVICE, advice, advice_numbers, advice_texts, longest_choice, set_sizes
from atypicality.groups import QUADRANTS
from atypicality.head.advice import checked_words, unthresholded_rows
from atypicality.head.reasons import reason

ALPHA = 0.1


@pytest.mark.parametrize("k", [1, 7, 8, 9, 100])
def test_sizes_of_sets_are_counted(k, rng):
    sets = rng.random((20, k)) < 0.5
    assert_array_equal(set_sizes(np, sets), sets.sum(axis=1, keepdims=True))
    assert_array_equal(set_sizes(np, sets[:0]), np.zeros((0, 1), np.int64))


def test_every_combination_follows_the_table():
    kinds = itertools.product([0.9, 0.89, 0.5, 0.49], [True, False], [True, False], range(8))
    for confidence, atypical, refused, size in kinds:
        confident = confidence >= 0.9
        unlikely = confidence < 0.5 or (atypical and not confident)
        if refused or unlikely or size in (0, 6, 7):  # at most five to choose from
            expected = "ask a person"
        elif size > 1:
            expected = f"choose among {size}"
        else:
            expected = ("trust, but rare" if atypical else "trust") if confident else "choose among 2"
        columns = {"atypical": np.array([atypical]), "size": np.array([size]), "refused": np.array([refused])}
        found = advice(np, np.array([confidence]), 0.9, **columns, longest=5)
        assert advice_texts(found, [size]).tolist() == [expected]


def test_what_is_not_known_changes_nothing_else():
    given = np, np.array([0.95, 0.7]), 0.9
    assert advice_texts(advice(*given)).tolist() == ["trust", "ask a person"]
    assert advice_texts(advice(*given, size=np.array([1, 2])), [1, 2]).tolist() == ["trust", "choose among 2"]
    assert advice(*given, size=np.array([1, 1]), longest=longest_choice(2)).tolist() == [0, 3]  # two are all


def test_nobody_chooses_among_all_or_many():
    assert [longest_choice(k) for k in (2, 3, 10, 11, 1000)] == [1, 2, 9, 10, 10]


def test_a_reason_is_the_first_row_of_the_table_that_applies():
    seen = set()
    kinds = itertools.product([2, 6], [0.9, 0.89, 0.5, 0.49996], [True, False, None], [True, False], range(4))
    for k, confidence, atypical, refused, size in kinds:
        confident, refused = confidence >= 0.9, refused and atypical is not None
        conditions = {  # in the order of the table
            "more atypical than every held-out row": refused,
            "set is empty": size == 0,
            "too many to choose among": size > longest_choice(k),
            "confidence 0.4999 is below one half": confidence < 0.5,
            "is low, and it is atypical": atypical and not confident,
            f"set holds {size} classes": size > 1,
            "two classes are all there are": k == 2 and not confident,
            "too low for the one class": not confident,
            "but atypical": atypical,
            "one class in its set": True,
        }
        columns = {"atypical": None if atypical is None else np.array([atypical]), "size": np.array([size])}
        word = advice(
            np, np.array([confidence]), 0.9, **columns, refused=np.array([refused]), longest=longest_choice(k)
        )
        quadrant = None if atypical is None else QUADRANTS[2 * (not confident) + atypical]
        found = reason(advice_texts(word, [size])[0], confidence, size, k, quadrant, beyond=(refused, False))
        expected = next(words for words, holds in conditions.items() if holds)
        assert expected in found, (k, confidence, atypical, refused, size)
        seen.add(expected.replace("3", "2"))
    assert len(seen) == 10
    assert reason("ask a person", 0.95, 1, 6, "reliable", 0.4, False).startswith("not accepted")


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_printed_samples_say_what_is_not_shown_however_many(n):
    probs, quadrant = np.tile([0.2, 0.8], (n, 1)), np.full(n, "reliable")
    answer = aty.Reliability(np.ones(n, int), probs[:, 1], probs, probs > 0.5, quadrant=quadrant)
    more = "1 more; " if n == 6 else ""
    assert repr(answer).endswith(f"\n... {more}not shown: quadrant, set_size")
    shown = repr(answer).splitlines()[-min(n, 5) - 2].split()  # the line of the column names
    assert set(answer.columns()) - set(shown) == {"quadrant", "set_size"}


def test_choices_that_only_later_samples_have_are_said_to_be_there():
    probs, words = np.tile([0.8, 0.15, 0.05], (6, 1)), np.array(["trust"] * 5 + ["choose among 2"])
    answer = aty.Reliability(np.zeros(6, int), probs[:, 0], probs, probs > 0.5, advice=words)
    assert repr(answer).endswith("\n... 1 more; not shown: set_size, choices")
    assert repr(answer[:5]).endswith("\n... not shown: set_size")


def test_one_printed_sample_has_its_reason():
    columns = {"advice": np.array(["choose among 2"]), "quadrant": np.array(["ambiguous"])}
    probs, sets = np.array([[0.2, 0.7148, 0.0852]]), np.array([[False, True, False]])
    text = repr(aty.Reliability(np.array([1]), probs[:, 1], probs, sets, **columns))
    assert text.startswith(
        "Reliability: 1 sample, confidence 0.7148, 1 class in its set\nchoose among 2: confidence 0.7148 "
    )
    assert text.count("0.7148") == 3  # the table's too


def test_numbers_and_words_are_one_to_one():
    numbers = np.array([0, 1, 2, 3, 2])
    assert_array_equal(advice_numbers(advice_texts(numbers, [1, 1, 2, 5, 10])), numbers)


def pooled(load):
    train, calibration, test = load()
    rows = {
        name: np.concatenate([getattr(calibration, name), getattr(test, name)])
        for name in ("logits", "embeddings", "labels")
    }
    return aty.GaussianAtypicality().fit(train.embeddings, train.labels), aty.ModelOutputs(**rows)


def forest():
    """A random forest on a table of seven classes, a twentieth of whose labels are wrong."""
    from sklearn.datasets import make_classification
    from sklearn.ensemble import RandomForestClassifier

    columns = {"n_features": 12, "n_informative": 12, "n_redundant": 0, "n_classes": 7, "class_sep": 1.5}
    x, y = make_classification(8000, **columns, flip_y=0.05, random_state=0)
    model = RandomForestClassifier(60, min_samples_leaf=3, random_state=0).fit(x[:2000], y[:2000])
    logits = np.log(np.clip(model.predict_proba(x[2000:]), 1e-6, 1.0))
    rows = aty.ModelOutputs(logits, embeddings=x[2000:], labels=y[2000:])
    return aty.GaussianAtypicality().fit(x[:2000], y[:2000]), rows


SOURCES = {
    "bundled": cache(lambda: pooled(load_fashion_mnist)),
    "long-tailed": cache(lambda: pooled(load_fashion_mnist_lt)),
    "forest": cache(forest),
}


@cache
def head_and_rest(name):
    """A head fitted on the first 4,000 rows of a source, and the rows after them."""
    density, rows = SOURCES[name]()
    return aty.ReliabilityHead().fit(train=density, calibration=rows[:4000]), rows[4000:]


def measured(density, rows, seed, **options):
    chosen = rows._chosen(0.4, seed)
    head = aty.ReliabilityHead(alpha=ALPHA, **options).fit(train=density, calibration=rows[chosen])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*drifted.*")  # one random split in twenty looks like it
        said = head.predict(rows[~chosen])
    right = said.label == rows.labels[~chosen]
    return [right[advice_numbers(said.advice) == word] for word in range(4)]


def below(first, second):
    """How many standard errors of the difference, were there none, the first share is below the second."""
    if not (first.size and second.size):
        return -np.inf
    share = np.r_[first, second].mean()
    return (second.mean() - first.mean()) / (share * (1 - share) * (1 / first.size + 1 / second.size)) ** 0.5


@pytest.mark.parametrize("name", SOURCES)
def test_trust_holds_and_the_words_are_ordered(name):
    """Accuracy over random splits, up to two standard errors: "trust" at least 1 - alpha, each word at least the next.

    Two words that are right equally often are two standard errors apart in one split of forty: one of four may be.
    Test rows of two splits have six in ten in common, so that the mean of four varies hardly more than that of twenty
    would: by the square root of (0.6 + 0.4 / 4) / (0.6 + 0.4 / 20), 6 %.
    """
    density, rows = SOURCES[name]()
    disorder = []
    for seed in range(4):
        trusted, *others = measured(density, rows, seed)
        assert trusted.mean() >= 1 - ALPHA - 2 * (ALPHA * (1 - ALPHA) / trusted.size) ** 0.5
        disorder.append([below(first, second) for first, second in itertools.pairwise([trusted, *others])])
    assert (np.array(disorder) > 2).sum(axis=0).max() <= 1
    assert np.mean(disorder, axis=0).max() < 1


@pytest.mark.filterwarnings("ignore:nothing is accepted")
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("max_risk", [None, 0.05])
def test_advice_never_contradicts_what_stands_beside_it(name, max_risk):
    head, rest = head_and_rest(name)
    said = head.predict(rest, max_risk=max_risk)
    size, trusted = said.prediction_set.sum(axis=1), np.isin(said.advice, ADVICE[:2])
    assert (size[trusted] == 1).all()
    assert (said.confidence[trusted] >= 0.9).all()
    assert set(said.quadrant[said.advice == "trust"]) <= {"reliable"}
    assert set(said.quadrant[said.advice == "trust, but rare"]) <= {"extrapolation"}
    assert set(said.advice[said.quadrant == "untrustworthy"]) <= {"ask a person"}
    chosen = advice_numbers(said.advice) == 2
    assert_array_equal(said.advice[chosen], [f"choose among {k}" for k in np.maximum(size[chosen], 2)])
    assert (said.quadrant[chosen & (size == 1)] == "ambiguous").all()
    listed, runner_up = said.choices(), np.argsort(-said.proba, axis=1)[:, 1]
    assert_array_equal(listed.sum(axis=1), np.where(chosen, np.maximum(size, 2), 0))
    assert listed[chosen & (size == 1), runner_up[chosen & (size == 1)]].all()
    assert (listed >= said.prediction_set)[chosen].all()
    if max_risk is not None:
        assert set(said.advice[~said.accepted]) == {"ask a person"}


def test_a_printed_choice_names_its_classes():
    head, rest = head_and_rest("long-tailed")
    said = head.predict(rest)
    alone = (advice_numbers(said.advice) == 2) & (said.prediction_set.sum(axis=1) == 1)
    shown = said[np.flatnonzero(alone)[:5]]
    printed = repr(shown)
    for row in shown.rows():
        assert row["choices"] in printed
        assert row["choices"] in shown._repr_html_()
    assert max(map(len, printed.splitlines()[2:])) <= 88
    assert "choices" not in repr(said[~alone])  # the set names them, or there are none


def test_without_atypicality_the_words_are_those_of_confidence_and_sets():
    world = make_world(4000, n_classes=4)
    with pytest.warns(UserWarning, match="without atypicality"):
        head = aty.ReliabilityHead(density=None).fit(calibration=world.take(slice(0, 2000)).outputs())
    said = head.predict(world.take(slice(2000, 4000)).outputs())
    size = said.prediction_set.sum(axis=1)
    expected = np.where((size == 1) & (said.confidence >= 0.9), "trust", "choose among k")
    expected = np.where((size == 4) | (said.confidence < 0.5), "ask a person", expected)
    assert_array_equal(np.array(ADVICE)[advice_numbers(said.advice)], expected)


def test_words_are_measured_on_rows_that_set_no_threshold():
    density, rows = SOURCES["long-tailed"]()
    head, _ = head_and_rest("long-tailed")
    assert sum(row["count"] for row in head.advice_.values()) == head.sizes_["edges"]
    first, rest = rows[:4000].split(0.5, random_state=0)
    edges = unthresholded_rows(head.prediction_sets_, len(rest), None)
    said = head.predict(rest[edges])
    correct, labels = said.label == rest.labels[edges], rest.labels[edges]
    for word, right in (("trust", correct), ("choose among k", said.choices()[np.arange(labels.size), labels])):
        rows = np.array(ADVICE)[advice_numbers(said.advice)] == word
        counts = {"count": rows.sum(), "right": right[rows].sum(), "predicted": correct[rows].sum()}
        assert head.advice_[word] == counts
    calibration = SOURCES["long-tailed"]()[1][:4000]
    split = aty.ReliabilityHead(prediction_sets=aty.SplitConformal("aps")).fit(train=density, calibration=calibration)
    assert sum(row["count"] for row in split.advice_.values()) == len(first)


def test_a_word_that_does_not_hold_is_said():
    # 40 errors of 200 where a tenth is allowed: a chance of 2e-5; 25 of 200 has one of 15 %
    number, right = np.zeros(200, int), np.arange(200) >= 40
    with pytest.warns(
        UserWarning, match="the advice 'trust' was right for 160 of 200 held-out rows, less than the 0.9"
    ):
        checked_words(number, right, right, 0.1)
    fewer = np.arange(200) >= 25
    assert checked_words(number, fewer, fewer, 0.1)["trust"] == {"count": 200, "right": 175, "predicted": 175}


def test_words_out_of_order_are_said():
    # 60 of 100 and 80 of 100: 3.1 standard errors of the difference; 60 and 75 of 100: 2.3, which 2.326 allows
    number, listed = np.repeat([2, 3], 100), np.ones(200, bool)
    with pytest.warns(UserWarning, match="'ask a person' were right for 80 of 100 .* 'choose among k', 60 of 100"):
        checked_words(number, np.r_[np.arange(100) < 60, np.arange(100) < 80], listed, 0.1)
    checked_words(number, np.r_[np.arange(100) < 60, np.arange(100) < 75], listed, 0.1)


def test_evaluate_measures_every_word():
    density, _ = SOURCES["long-tailed"]()
    head, test = head_and_rest("long-tailed")
    said = head.predict(test)
    evaluation = aty.evaluate({"model": "uncalibrated", "head": head}, test, train=density)
    covered = said.choices()[np.arange(len(test)), test.labels]
    for number, word in enumerate(ADVICE):
        members = advice_numbers(said.advice) == number
        [row] = evaluation.table("advice", method="head", advice=word, metric="followed")
        right = covered if number == 2 else said.label == test.labels
        assert (row["count"], row["value"]) == (members.sum(), pytest.approx(right[members].mean()))
        assert row["low"] < row["value"] < row["high"]
        [row] = evaluation.table("advice", method="head", advice=word, metric="accuracy")
        assert row["value"] == pytest.approx((said.label == test.labels)[members].mean())
    predictions = evaluation.table("predictions", method="head")
    assert [row["advice"] for row in predictions] == said.advice.tolist()
    for row, members, listed in zip(predictions, said.prediction_set, said.choices(), strict=True):
        assert set(map(int, row["members"].split())) == set(np.flatnonzero(members | listed))
    # the model makes no sets: it is trusted, or a person is asked
    counts = [row["count"] for row in evaluation.table("advice", method="model", metric="share")]
    assert counts[2] == 0
    assert sum(counts) == len(test)


def test_an_evaluation_of_an_earlier_version_is_read_without_advice():
    import json

    evaluation = aty.evaluate("uncalibrated", make_world(300).outputs())
    document = json.loads(evaluation.to_json())
    del document["tables"]["advice"], document["tables"]["predictions"]["advice"]
    earlier = aty.Evaluation.from_json(json.dumps(document))
    assert earlier.table("advice") == []
    assert {row["advice"] for row in earlier.table("predictions")} == {None}
