"""Estimators of ours beside scikit-learn's: the same parameters, clones and errors."""

import numpy as np
import pytest
import sklearn.base
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted as their_check

import atypicality as aty
from atypicality.estimators import BaseEstimator, check_is_fitted, clone


def twin(base):
    class Twin(base):
        def __init__(self, b=1, a="x", *, part=None):
            self.a, self.b, self.part = a, b, part

        def fit(self):
            self.found_ = 3
            return self

    return Twin


OURS, THEIRS = twin(BaseEstimator), twin(sklearn.base.BaseEstimator)


@pytest.mark.parametrize("deep", [True, False])
def test_parameters_are_those_that_scikit_learn_finds(deep):
    ours, theirs = (kind(2, part=kind(5)).get_params(deep) for kind in (OURS, THEIRS))
    own = {name: value for name, value in ours.items() if name != "part"}
    assert own == {name: value for name, value in theirs.items() if name != "part"}
    assert sorted(ours) == sorted(theirs)


@pytest.mark.parametrize("settings", [{}, {"b": 2}, {"a": "y", "b": 7}])
def test_the_text_is_that_of_scikit_learn(settings):
    assert repr(OURS(**settings)) == repr(THEIRS(**settings))


def test_parameters_are_set_by_name_also_inside_others():
    outer = OURS(part=OURS()).set_params(b=4, part__a="z")
    assert (outer.b, outer.part.a) == (4, "z")
    with pytest.raises(ValueError, match=r"Twin has no parameter 'c'; it has: a, b, part\."):
        outer.set_params(c=1)


def test_clones_share_parameters_and_nothing_learnt():
    fitted = OURS(2, part=OURS(5)).fit()
    for made in (clone(fitted), sklearn.base.clone(fitted)):
        assert made.part is not fitted.part
        assert repr(made) == repr(fitted)
        assert not hasattr(made, "found_")


PARTS = [None, "x", (1, OURS(2)), [THEIRS(3)], {"a": OURS()}, np.arange(3), THEIRS(4), {5}, OURS]


@pytest.mark.parametrize("part", PARTS)
def test_parameters_are_cloned_and_copied_as_by_scikit_learn(part):
    ours, theirs = clone(OURS(part=part)).part, sklearn.base.clone(THEIRS(part=part)).part
    assert repr(ours) == repr(theirs)
    assert (ours is part) == (theirs is part)


def test_what_changes_its_parameters_is_not_cloned_in_silence():
    class Changed(OURS):
        def __init__(self, a=1.0):
            self.a = float(a) + 0.5

    for copied in (clone, sklearn.base.clone):
        with pytest.raises(RuntimeError, match=r"parameter '?a"):
            copied(Changed())
    for copied in (clone, sklearn.base.clone):
        with pytest.raises(TypeError, match="estimator"):
            copied("aware")


@pytest.mark.parametrize("check", [check_is_fitted, their_check])
def test_both_checks_know_what_is_fitted(check):
    check(OURS().fit())
    check(OURS().fit(), "found_")
    for attribute in (None, "other_"):
        with pytest.raises(NotFittedError, match="Twin instance is not fitted yet"):
            check(OURS(), attribute)
    with pytest.raises(TypeError, match="class, not an instance"):
        check(OURS)


def test_scikit_learn_takes_an_estimator_of_ours_for_one_of_its_own():
    assert get_tags(aty.TemperatureScaling()) == get_tags(THEIRS())
    assert "temperaturescaling" in make_pipeline(aty.TemperatureScaling()).get_params()
