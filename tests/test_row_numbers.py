"""Errors about rows name the user's own rows, however the rows were cut on the way."""

import re

import numpy as np
import pytest
from conftest import world_part
from sklearn.base import BaseEstimator, ClassifierMixin

import atypicality as aty
from atypicality import blocks
from atypicality.datasets import make_world
from atypicality.head import ReliabilityHead
from atypicality.outputs import ModelOutputs, three_way_split
from atypicality.validation import name_rows, numbered

BAD = 701
QUICK = ReliabilityHead(recalibration=aty.TemperatureScaling(), prediction_sets=aty.SplitConformal())


def outputs_of(part, n=900):
    return world_part(part, n, n_classes=4, temperature=2.0).outputs()


def spoilt(outputs, name, row=BAD, value=np.nan):
    parts = {key: np.array(getattr(outputs, key)) for key in ("logits", "embeddings", "labels")}
    parts[name][row] = value
    return ModelOutputs(**parts)


@pytest.fixture(scope="module")
def train():
    return outputs_of(1, 300)


@pytest.fixture(scope="module")
def head(train):
    return ReliabilityHead(**QUICK.get_params(deep=False)).fit(train=train, calibration=outputs_of(2))


def named_row(call):
    with pytest.raises(ValueError, match=r"\brow \d+") as caught:
        call()
    return re.search(r"\brow (\d+(?: of \w+)?)", str(caught.value)).group(1)


def test_a_part_of_a_part_names_rows_of_the_whole():
    part = outputs_of(1)._part(np.arange(0, 900, 2))._part(slice(10, 40))._part(np.arange(30) % 3 == 2)
    with part._numbered():
        assert name_rows(np.array([0, 1])) == "rows 24, 30 hold"  # 2 * (10 + 2), 2 * (10 + 5)
    assert name_rows(np.array([0])) == "row 0 holds"
    with part[:3]._numbered():  # what a user cut is a whole of its own
        assert name_rows(np.array([0])) == "row 0 holds"
    with numbered(lambda row: -row), numbered(None):
        assert name_rows(np.array([7])) == "row 7 holds"


@pytest.mark.parametrize("name", ["logits", "embeddings"])
@pytest.mark.parametrize("row", [0, 4, 350, 899])
def test_fit_names_the_row_of_the_calibration_outputs(train, name, row):
    calibration = spoilt(outputs_of(2), name, row)
    assert named_row(lambda: ReliabilityHead().fit(train=train, calibration=calibration)) == str(row)


def test_fit_names_the_row_of_train(train):
    bad = spoilt(train, "embeddings", 250)
    assert named_row(lambda: ReliabilityHead().fit(train=bad, calibration=outputs_of(2))) == "250"


@pytest.mark.parametrize("part", ["recalibration", "edges", "thresholds"])
def test_fit_names_the_part_and_its_row(train, part):
    parts = three_way_split(outputs_of(2))
    parts = parts._replace(**{part: spoilt(getattr(parts, part), "logits", 7)})
    assert named_row(lambda: ReliabilityHead().fit(train=train, calibration=parts)) == f"7 of {part}"


@pytest.mark.parametrize("name", ["logits", "embeddings"])
def test_predict_names_the_row_in_any_chunk(head, name):
    bad = spoilt(outputs_of(3), name)
    with blocks.settings(block_rows=64):
        assert named_row(lambda: head.predict(bad)) == str(BAD)


def test_rows_that_no_check_at_the_door_would_find_are_named_too(train):
    calibration = spoilt(outputs_of(2), "embeddings", value=0.0)  # no direction: found by the search for neighbours
    cosine = ReliabilityHead(aty.NeighborAtypicality(3, metric="cosine"))
    assert named_row(lambda: cosine.fit(train=train, calibration=calibration)) == str(BAD)
    calibration = spoilt(outputs_of(2), "logits", (BAD, calibration.labels[BAD]), -np.inf)  # the label is masked
    assert named_row(lambda: ReliabilityHead().fit(train=train, calibration=calibration)) == str(BAD)


@pytest.mark.parametrize("method", ["ts", "aware", "aa-raps", QUICK])
@pytest.mark.parametrize("split", range(4))
def test_compare_names_the_row_whichever_half_it_is_in(train, method, split):
    bad = spoilt(outputs_of(3), "logits")
    options = {"train": train, "n_splits": 1, "random_state": split}
    assert named_row(lambda: aty.compare({"method": method}, bad, **options)) == str(BAD)


def test_compare_names_the_row_that_is_only_measured(train):
    bad = spoilt(outputs_of(3), "logits")
    assert named_row(lambda: aty.compare("uncalibrated", bad, train=train, n_splits=8)) == str(BAD)


def test_evaluate_names_the_row_in_every_group(train, head):
    test = outputs_of(3)
    bad, probs = spoilt(test, "logits"), make_world(900, 4, random_state=3).probs
    assert named_row(lambda: aty.evaluate({"model": probs}, bad, train=train)) == str(BAD)  # a group's temperature
    for method in ("uncalibrated", head, head.recalibration_):
        assert named_row(lambda method=method: aty.evaluate({"it": method}, bad, train=train)) == str(BAD)
    wrong = np.array(probs)
    wrong[BAD] = 0.5
    assert named_row(lambda: aty.evaluate({"model": wrong}, test, train=train)) == str(BAD)


class Spoilt(ClassifierMixin, BaseEstimator):
    """Gives NaN for the row whose first feature is 99."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return self.classes_[np.zeros(len(X), int)]

    def predict_proba(self, X):
        return np.where(X[:, :1] == 99, np.nan, np.abs(X) / np.abs(X).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("place", [0, 1, 60, 119])
def test_the_scikit_learn_classifier_names_the_row_of_its_input(place, rng):
    X = rng.normal(size=(300, 3))
    y = np.where(rng.random(300) < 0.3, rng.integers(0, 3, 300), np.abs(X).argmax(axis=1))
    model = aty.AtypicalityAwareClassifier(Spoilt(), head=QUICK)
    row = model._cut(300, model.calibration_fraction)[1][place]
    X[row, 0] = 99
    assert named_row(lambda: model.fit(X, y)) == str(row)
