"""CV+ sets follow their definition, fall back to split conformal where the models agree, and state their level."""

import numpy as np
import pytest
from scipy.special import softmax

from atypicality import SplitConformal
from atypicality.conformal.cross import CrossConformal, cross_conformal_level
from atypicality.conformal.threshold import conformal_rank


def rows(seed, n=57, k=4, folds=5):
    rng = np.random.default_rng(seed)
    probs = softmax(2 * rng.standard_normal((folds, n, k)), axis=2)
    return probs, rng.integers(0, k, n), rng.permutation(np.arange(n) % folds)


def test_the_stated_level_by_hand():
    # 1 - .2 - min(2 * .8 / 201, (1 - .005) / 6), and 1 - .4 - min(2 * .9 / 3, .5 / 11) for ten folds of two rows
    assert cross_conformal_level(1000, 5, 0.1) == pytest.approx(0.8 - 1.6 / 201)
    assert cross_conformal_level(20, 10, 0.2) == pytest.approx(0.6 - 0.5 / 11)
    assert cross_conformal_level(30, 30, 0.1) == pytest.approx(0.8)  # the jackknife+
    assert cross_conformal_level(20, 2, 0.49) == 0.0


@pytest.mark.parametrize("alpha", [0.1, 0.35])
def test_sets_are_their_definition(alpha, seed):
    probs, labels, folds = rows(seed)
    held_out = probs[folds, np.arange(57)]
    sets = CrossConformal(alpha).fit(held_out, labels, folds=folds).predict_set(probs[:, :20])
    for i in range(20):
        for y in range(4):
            worse = sum(1 - held_out[j, labels[j]] < 1 - probs[folds[j], i, y] for j in range(57))
            assert sets[i, y] == (worse < conformal_rank(57, alpha))


def test_equal_models_are_split_conformal(seed):
    probs, labels, folds = rows(seed)
    found = CrossConformal(0.2).fit(probs[0], labels, folds=folds).predict_set([probs[1]] * 5)
    split = SplitConformal("lac", 0.2, nonempty=None).fit(probs[0], labels)
    np.testing.assert_array_equal(found, split.predict_set(probs[1]))


def test_few_rows_make_full_sets():
    probs, labels, folds = rows(0, n=8, folds=2)  # 1 / .1 - 1 = 9 would be needed
    held_out = probs[folds, np.arange(8)]
    assert CrossConformal(0.1).fit(held_out, labels, folds=folds).predict_set(probs).all()


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        (np.zeros(57, int), r"at least 2 folds .* got rows \[57\]"),
        (np.arange(57) % 3 * 2, r"got rows \[19, 0, 19, 0, 19\]"),
        (np.minimum(np.arange(57) // 10, 3), r"as many rows, give or take one; got rows \[10, 10, 10, 27\]"),
        (np.arange(57) % 3 - 1, "folds must number"),
        (np.arange(50) % 5, "folds must have"),
    ],
)
def test_bad_folds_are_named(folds, message):
    probs, labels, _ = rows(0)
    with pytest.raises(ValueError, match=message):
        CrossConformal().fit(probs[0], labels, folds=folds)


def test_every_fold_needs_its_model():
    probs, labels, folds = rows(0)
    fitted = CrossConformal().fit(probs[0], labels, folds=folds)
    with pytest.raises(ValueError, match="probs must come from 5 models, one per fold; got 4"):
        fitted.predict_set(probs[:4])
