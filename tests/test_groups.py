import numpy as np
import pytest
from conftest import needs
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from atypicality.groups import (
    FEW_EDGES,
    MANY_VALUES,
    QUADRANTS,
    ClassGroups,
    GridGroups,
    Quadrants,
    QuantileGroups,
    cut,
)
from atypicality.paper import RelativeQuadrants

finite = st.floats(-1e6, 1e6)


def test_quintiles_hold_a_fifth_each(rng):
    groups = QuantileGroups(5).fit(rng.permutation(100.0 * np.arange(50)))
    assert groups.counts_.tolist() == [10] * 5
    assert groups.edges_.size == 4
    assert groups.n_groups_ == 5


def test_value_equal_to_an_edge_goes_to_the_lower_group():
    groups = QuantileGroups(2).fit([1.0, 2.0, 3.0])  # the median, 2, is the edge
    assert groups.assign([2.0, np.nextafter(2.0, 3.0), np.nextafter(2.0, 1.0)]).tolist() == [0, 1, 0]
    assert groups.counts_.tolist() == [2, 1]


def test_ties_merge_and_say_so():
    with pytest.warns(UserWarning, match=r"n_groups=4 became groups of \[91, 9\]") as caught:
        groups = QuantileGroups(4).fit(np.r_[np.zeros(90), np.arange(10.0)])  # all three edges are 0
    assert caught[0].filename == __file__
    assert groups.edges_.tolist() == [0.0]


def test_constant_values_give_one_filled_group_and_one_reported_empty():
    with pytest.warns(UserWarning, match=r"groups of \[7, 0\]"):
        groups = QuantileGroups(5).fit(np.full(7, 3.0))
    assert groups.assign([3.0, 4.0]).tolist() == [0, 1]


def test_more_groups_than_values_reports_the_empty_ones():
    with pytest.warns(UserWarning, match=r"too many for these 3 values: groups of \[1, 0, 1, 0, 1\]"):
        QuantileGroups(5).fit([1.0, 2.0, 3.0])


def test_one_group_takes_everything():
    assert QuantileGroups(1).fit([1.0, 2.0]).assign([-9.0, 9.0, np.inf]).tolist() == [0, 0, 0]


def test_infinite_values_are_the_most_atypical():
    groups = QuantileGroups(2).fit([1.0, 2.0, np.inf])  # between 2 and infinity the edge is 2
    assert groups.assign([2.0, np.inf]).tolist() == [0, 1]
    with pytest.warns(UserWarning, match=r"groups of \[1, 1, 3\]"):  # edges 1.8, 2 and infinity, which parts nothing
        merged = QuantileGroups(5).fit([1.0, 2.0, np.inf, np.inf, np.inf])
    assert merged.edges_.tolist() == pytest.approx([1.8, 2.0])
    assert merged.assign([np.inf]).tolist() == [2]


@given(arrays(float, st.integers(1, 40), elements=finite), st.integers(1, 8))
@pytest.mark.filterwarnings("ignore:values has ties", "ignore:n_groups")
def test_groups_respect_order_and_count_everyone(values, n_groups):
    groups = QuantileGroups(n_groups).fit(values)
    assigned = groups.assign(values)
    order = np.argsort(values, kind="stable")
    assert (np.diff(assigned[order]) >= 0).all()
    assert groups.counts_.sum() == values.size
    assert np.array_equal(np.bincount(assigned, minlength=groups.n_groups_), groups.counts_)
    assert np.array_equal(QuantileGroups.from_edges(groups.edges_).assign(values), assigned)
    for value in np.unique(values):  # a tie is never cut
        assert np.unique(assigned[values == value]).size == 1


@needs("torch")
def test_float32_and_torch_agree_with_float64(rng):
    import torch

    values = rng.standard_normal(100).astype(np.float32)
    groups = QuantileGroups(4).fit(values.astype(np.float64))
    expected = groups.assign(values.astype(np.float64))
    assert np.array_equal(groups.assign(values), expected)
    answer = groups.assign(torch.from_numpy(values))
    assert isinstance(answer, torch.Tensor)
    assert answer.tolist() == expected.tolist()


def test_estimators_clone_and_refuse_to_work_unfitted():
    for estimator, arguments in (
        (QuantileGroups(3), ([1.0],)),
        (Quadrants(confidence=0.3, atypicality_quantile=0.7), ([0.5], [1.0])),
        (ClassGroups(2), ([0],)),
        (GridGroups((2, 3)), ([0.5], [1.0])),
    ):
        assert clone(estimator).get_params() == estimator.get_params()
        with pytest.raises(NotFittedError):
            estimator.assign(*arguments)


def test_fit_again_forgets_the_first():
    groups = QuantileGroups(2).fit([1.0, 2.0])
    assert groups.fit([10.0, 20.0]).edges_.tolist() == [15.0]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([], "values must hold at least one sample; got none"),
        ([1.0, np.nan], "values must be a number; row 1 holds NaN"),
        ([[1.0], [2.0]], r"values must be one-dimensional, one number per sample; got shape \(2, 1\)"),
    ],
)
def test_quantile_groups_refuse(values, match):
    with pytest.raises(ValueError, match=match):
        QuantileGroups().fit(values)


@pytest.mark.parametrize(
    ("n_groups", "error", "match"),
    [
        (0, ValueError, "n_groups must be at least 1; got 0"),
        (2.0, TypeError, "n_groups must be a whole number; got 2.0"),
    ],
)
def test_number_of_groups_is_checked_in_fit(n_groups, error, match):
    for estimator in (QuantileGroups(n_groups), ClassGroups(n_groups)):
        with pytest.raises(error, match=match):
            estimator.fit([1.0, 2.0])


def test_edges_learnt_elsewhere_must_increase():
    with pytest.raises(ValueError, match="edges must be strictly increasing"):
        QuantileGroups.from_edges([1.0, 1.0])
    with pytest.raises(ValueError, match="counts must have one entry per row; got 1 for 3 rows"):
        QuantileGroups.from_edges([1.0, 2.0], counts=[4])
    assert QuantileGroups.from_edges([], counts=[4]).counts_.tolist() == [4]


def test_quadrants_by_hand():
    # confident from 0.9 on; atypicality quantile 0.8 of 0..5 is 4
    quadrants = Quadrants().fit([0.1, 0.9, 0.91, 0.99, 0.95, 0.89], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    assert quadrants.confidence_threshold_ == 0.9
    assert quadrants.atypicality_threshold_ == pytest.approx(4.0)
    assert quadrants.counts_.tolist() == [4, 0, 1, 1]  # reliable, extrapolation, ambiguous, untrustworthy
    assert quadrants.assign([0.9, 0.9, 0.0, 0.0], [0.0, 9.0, 0.0, 9.0]).tolist() == list(QUADRANTS)


def test_a_value_equal_to_a_threshold_is_confident_and_typical():
    quadrants = Quadrants(confidence=0.5, atypicality_quantile=0.5).fit([0.5, 0.5, 0.5], [1.0, 1.0, 1.0])
    assert quadrants.assign([0.5], [1.0]).tolist() == ["reliable"]
    assert quadrants.counts_.tolist() == [3, 0, 0, 0]


def test_confidence_is_absolute_and_atypicality_relative(rng):
    confidence, atypicality = rng.random(1001), rng.standard_normal(1001)
    quadrants = Quadrants(confidence=0.25, atypicality_quantile=0.75).fit(confidence, atypicality)
    _, extrapolation, ambiguous, untrustworthy = quadrants.counts_
    assert ambiguous + untrustworthy == (confidence < 0.25).sum()
    assert extrapolation + untrustworthy == 250  # strictly above the 751st of 1001
    assert quadrants.counts_.sum() == 1001


def test_the_papers_quadrants_are_relative_in_both(rng):
    confidence, atypicality = rng.random(1001), rng.standard_normal(1001)
    quadrants = RelativeQuadrants(0.25, 0.75).fit(confidence, atypicality).quadrants_
    _, extrapolation, ambiguous, untrustworthy = quadrants.counts_
    assert ambiguous + untrustworthy == extrapolation + untrustworthy == 250  # strictly below the 251st of 1001


def test_quadrants_take_keywords_alone():
    with pytest.raises(TypeError, match="positional argument"):
        Quadrants(0.2, 0.8)


@pytest.mark.parametrize(
    ("confidence", "atypicality", "match"),
    [
        ([], [], "confidence must hold at least one sample"),
        ([0.5], [1.0, 2.0], "atypicality must have one entry per row; got 2 for 1 rows"),
        ([1.5], [1.0], r"confidence must lie between 0 and 1; row 0 holds another value \(row 0 is 1.5\)"),
        ([np.nan], [1.0], "confidence must be .*; row 0 holds NaN"),
        ([0.5], [np.nan], "atypicality must be a number; row 0 holds NaN"),
    ],
)
def test_quadrants_refuse(confidence, atypicality, match):
    with pytest.raises(ValueError, match=match):
        Quadrants().fit(confidence, atypicality)


def test_quadrant_thresholds_are_shares():
    with pytest.raises(ValueError, match=r"confidence must be a finite number in \[0, 1\]; got 20"):
        Quadrants(confidence=20).fit([0.5], [1.0])
    with pytest.raises(ValueError, match=r"confidence_quantile must be a finite number in \[0, 1\]; got 20"):
        RelativeQuadrants(20).fit([0.5], [1.0])


def test_class_groups_count_classes_never_samples():
    groups = ClassGroups(2).fit([0.1, 3.0, 0.2, 2.0])  # common: 0, 2; rare: 3, 1
    labels = np.r_[np.zeros(1000, int), [1, 2, 3]]
    assert groups.counts_.tolist() == [2, 2]
    assert np.bincount(groups.assign(labels)).tolist() == [1001, 2]


def test_class_ties_are_cut_by_index_and_infinity_is_rarest():
    assert ClassGroups(2).fit([1.0, 1.0, 1.0, 1.0]).class_groups_.tolist() == [0, 0, 1, 1]
    assert ClassGroups(3).fit([np.inf, 0.0, 1.0]).class_groups_.tolist() == [2, 0, 1]


@given(st.lists(finite, min_size=1, max_size=30), st.integers(1, 6))
@pytest.mark.filterwarnings("ignore:n_groups")
def test_class_groups_are_balanced_and_sorted(rarity, n_groups):
    groups = ClassGroups(n_groups).fit(rarity)
    assert groups.counts_.sum() == len(rarity)
    assert np.ptp(groups.counts_) <= 1
    assert (np.diff(groups.class_groups_[np.argsort(rarity, kind="stable")]) >= 0).all()


def test_class_groups_refuse():
    with pytest.warns(UserWarning, match="n_groups=5 for 2 classes: groups of"):
        groups = ClassGroups(5).fit([0.0, 1.0])
    with pytest.raises(ValueError, match=r"labels must lie in 0 .. 1, the columns; row 1 is outside \(row 1 is 2\)"):
        groups.assign([0, 2])
    with pytest.raises(ValueError, match="class_atypicality must hold at least one class; got none"):
        ClassGroups().fit([])


def test_grid_is_the_product_of_two_quantile_groups(rng):
    atypicality, confidence = rng.standard_normal(500), rng.random(500)
    grid = GridGroups((3, 4)).fit(confidence, atypicality)
    cells = grid.assign(confidence, atypicality)
    rows, columns = np.divmod(cells, grid.shape_[1])
    assert grid.shape_ == (3, 4)
    assert np.array_equal(rows, QuantileGroups(3).fit(atypicality).assign(atypicality))
    assert np.array_equal(columns, QuantileGroups(4).fit(confidence).assign(confidence))
    assert np.array_equal(np.bincount(cells, minlength=12).reshape(3, 4), grid.counts_)


def test_grid_refuses_swapped_arguments_and_a_single_number():
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1"):
        GridGroups().fit([20.0, 30.0], [0.5, 0.6])
    with pytest.raises(ValueError, match=r"n_groups must be a pair, \(atypicality, confidence\); got 6"):
        GridGroups(6).fit([0.5], [1.0])


@pytest.mark.parametrize("n_edges", [0, 1, 9, FEW_EDGES, FEW_EDGES + 1])
def test_many_values_are_cut_as_few_are(n_edges, rng):
    edges = np.sort(rng.normal(size=n_edges))
    values = np.r_[rng.normal(size=MANY_VALUES), edges, np.inf, -np.inf, np.nan]
    one_by_one = [int(np.searchsorted(edges, value)) for value in values]
    found = cut(edges, values)
    assert found.dtype == np.intp
    assert found.tolist() == one_by_one
    assert cut(edges, values.reshape(-1, 1)).ravel().tolist() == one_by_one
