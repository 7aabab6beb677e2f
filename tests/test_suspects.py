"""Labels that may be wrong, and near-duplicates of training rows: found where they were put."""

import numpy as np
import pytest

import atypicality as aty
from atypicality.datasets import load_fashion_mnist, make_world
from atypicality.evaluation.suspects import label_credibility, near_duplicates


def flipped(labels, n_classes, share, rng):
    """Labels of which a share is another class, and which those are."""
    wrong = rng.permutation(labels.size)[: int(share * labels.size)]
    changed = labels.copy()
    changed[wrong] = (labels[wrong] + rng.integers(1, n_classes, wrong.size)) % n_classes
    return changed, np.isin(np.arange(labels.size), wrong)


def precision(rows, bad):
    return bad[rows].mean()


def test_flipped_labels_are_found_and_named_right(rng):
    """At least as well as by the probability of the label alone: neighbours count only as far as they help."""
    test = load_fashion_mnist().test
    labels, bad = flipped(test.labels, 10, 0.05, rng)
    probs = aty.TemperatureScaling().fit(test.logits, labels).predict_proba(test.logits)
    rows, score, suggested = label_credibility(probs, labels, test.embeddings, most=bad.sum())
    alone = np.argsort(probs[np.arange(labels.size), labels])[: bad.sum()]
    deviation = (0.25 / bad.sum()) ** 0.5
    assert precision(rows, bad) > precision(alone, bad) - deviation
    assert precision(rows, bad) > 0.75
    assert (suggested == test.labels[rows])[bad[rows]].mean() > 0.85
    assert (np.diff(score) >= 0).all()


def test_neighbours_help_a_model_that_knows_little(rng):
    """A model that is a coin, and embeddings that tell the classes apart: only neighbours can find wrong labels."""
    truth = rng.integers(0, 3, 1500)
    embeddings = np.eye(3)[truth] * 6 + rng.normal(size=(1500, 3))
    labels, bad = flipped(truth, 3, 0.05, rng)
    rows, _, suggested = label_credibility(np.full((1500, 3), 1 / 3), labels, embeddings, most=75)
    # half of the candidates come from the model, which here draws them at random: 150 of 1500, a tenth of the wrong
    assert precision(rows[: int(bad[rows].sum())], bad) > 0.9
    assert (suggested[: int(bad[rows].sum())] == truth[rows[: int(bad[rows].sum())]]).mean() > 0.9


def test_without_embeddings_the_least_probable_labels_are_listed():
    world = make_world(800, 4)
    rows, _, _ = label_credibility(world.probs, world.labels, most=50)
    assert set(rows) == set(np.argsort(world.probs[np.arange(800), world.labels])[:50])


@pytest.mark.parametrize("width", [3, 200])
def test_duplicates_are_found_in_few_and_in_many_columns(width, rng):
    train, rows = rng.normal(size=(900, width)), rng.normal(size=(300, width))
    rows[[5, 17]] = train[[100, 800]]
    rows[42] = train[3] + 1e-3 * rng.normal(size=width)
    found, partners, ratio = near_duplicates(rows, train)
    places = dict(zip(found.tolist(), partners.tolist(), strict=True))
    assert {row: places[row] for row in (5, 17, 42)} == {5: 100, 17: 800, 42: 3}
    assert set(found[:2].tolist()) == {5, 17}
    if width == 200:
        assert len(found) == 3
    assert ratio[:2] == pytest.approx(0, abs=1e-6)


def test_evaluate_lists_both_and_the_summary_says_so(rng):
    world = make_world(3000, 4, random_state=0)
    train, test = world.take(slice(0, 1000)), world.take(slice(1000, 3000))
    labels, bad = flipped(test.labels, 4, 0.05, rng)
    embeddings = test.embeddings.copy()
    embeddings[:20] = train.embeddings[:20]
    outputs = aty.ModelOutputs(test.logits, embeddings=embeddings, labels=labels)
    evaluation = aty.evaluate("uncalibrated", outputs, train=train.outputs(), suspects=60)
    suspects = evaluation.table("suspects")
    assert 0 < len(suspects) <= 60
    assert all(row["suggested"] != row["label"] for row in suspects)
    assert all(row["label"] == labels[row["row"]] for row in suspects)
    assert bad[[row["row"] for row in suspects]].mean() > 5 * bad.mean()
    twins = {row["row"]: row["train_row"] for row in evaluation.table("duplicates")}
    assert {row: twins[row] for row in range(20)} == {row: row for row in range(20)}
    assert aty.evaluate("uncalibrated", outputs, train=train.outputs()).table("suspects") == []
