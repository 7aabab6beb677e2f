"""NeighborAtypicality: exact distances under every offset, scale, tile and thread; bad input by name."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import load_outputs, needs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from atypicality import NeighborAtypicality, blocks
from atypicality.density import search

REDUCTIONS = {"mean": lambda d: d.mean(axis=1), "kth": lambda d: d[:, -1], "min": lambda d: d[:, 0]}


def distances(queries, rows, metric):
    """All distances in float64, directly; 1 - cos as half a squared distance of unit rows, which keeps its digits."""
    queries, rows = np.asarray(queries, np.float64), np.asarray(rows, np.float64)
    if metric == "euclidean":
        return cdist(queries, rows)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, rows)]
    return 0.5 * cdist(*unit, "sqeuclidean")


def test_a_line_by_hand():
    rows = [[0.0], [1.0], [3.0], [10.0]]
    # from 4: 1, 3, 4, 6
    for reduction, expected in (("mean", 8 / 3), ("kth", 4.0), ("min", 1.0)):
        fitted = NeighborAtypicality(3, reduction=reduction).fit(rows)
        np.testing.assert_allclose(fitted.atypicality([[4.0]]), [expected])
    # per class, two neighbours: {0, 1} gives 3 and 4, {3, 10} gives 1 and 6
    for reduction, expected in (("mean", 3.5), ("kth", 4.0), ("min", 1.0)):
        fitted = NeighborAtypicality(2, reduction=reduction, per_class=True).fit(rows, ["a", "a", "b", "b"])
        np.testing.assert_allclose(fitted.atypicality([[4.0]]), [expected])
        assert fitted.classes_.tolist() == ["a", "b"]


def test_cosine_by_hand():
    fitted = NeighborAtypicality(1, metric="cosine").fit([[2.0, 0.0], [0.0, 5.0]])
    np.testing.assert_allclose(fitted.atypicality([[3.0, 3.0], [-1.0, 0.0]]), [1 - np.sqrt(0.5), 1.0])


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize(
    ("dtype", "scale", "offset"),
    [
        ("float64", 1.0, 0.0),
        ("float64", 1.0, 1e4),
        ("float32", 1.0, 1e4),
        ("float16", 50.0, 1e4),
        ("float32", 1e-20, 0.0),
        ("float64", 1e30, 0.0),
        ("float64", 1e-30, 0.0),
        ("float64", 1e150, 0.0),
        ("float64", 1e-150, 0.0),
        ("float32", 1e37, 0.0),
    ],
)
def test_distances_are_exact(metric, dtype, scale, offset, rng):
    rows, queries = ((offset + scale * rng.standard_normal((n, 12))).astype(dtype) for n in (3000, 70))
    exact = np.sort(distances(queries, rows, metric), axis=1)[:, :5]
    # offset rows make unit vectors that differ in their eighth digit, where the reference itself keeps 1e-8
    rtol = 1e-6 if metric == "cosine" and offset else 1e-10
    for reduction, reduce in REDUCTIONS.items():
        found = NeighborAtypicality(reduction=reduction, metric=metric).fit(rows).atypicality(queries)
        np.testing.assert_allclose(found, reduce(exact), rtol=rtol)
    looked = search.Search(search.Reference.of(rows, metric), queries, first_row=0, exclude_self=False)
    np.testing.assert_allclose(looked.nearest(slice(0, 3000), 5), exact, rtol=rtol)


WORLDS = ["clusters far apart", "one far row", "a row beyond float32", "a far query", "few distinct rows", "sorted"]


def hard_world(make, rng, n_rows, n_queries):
    """Training rows and queries on which products alone would rank wrongly, or slowly."""
    rows, queries = rng.standard_normal((n_rows, 8)), rng.standard_normal((n_queries, 8))
    if make == "clusters far apart":
        centres = 1e5 * rng.standard_normal((20, 8))
        rows, queries = rows + centres[rng.integers(0, 20, n_rows)], queries + centres[rng.integers(0, 20, n_queries)]
    elif make == "one far row":
        rows[17] = 1e9
    elif make == "a row beyond float32":
        rows[17] = 1e100
        queries[3] = 1e101
    elif make == "a far query":
        queries[3], queries[4] = 1e12, 1e30
    elif make == "few distinct rows":
        rows = rows[rng.integers(0, 7, n_rows)]
        queries[:7] = rows[:7]
    elif make == "wide":
        rows, queries = rng.standard_normal((n_rows, 200)), rng.standard_normal((n_queries, 200))
    else:
        rows = rows[np.argsort(-cdist(queries[:1], rows)[0])]  # every tile brings nearer rows than all before
    return rows, queries


@pytest.mark.parametrize("make", WORLDS)
def test_hard_worlds_stay_exact(make, rng):
    rows, queries = hard_world(make, rng, 4000, 50)
    exact = np.sort(distances(queries, rows, "euclidean"), axis=1)[:, :5]
    found = NeighborAtypicality().fit(rows).atypicality(queries)
    np.testing.assert_allclose(found, exact.mean(axis=1), rtol=1e-10, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    n_rows=st.integers(1, 60),
    n_queries=st.integers(0, 9),
    width=st.integers(1, 4),
    data=st.data(),
    per_class=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_small_worlds_with_ties(n_rows, n_queries, width, data, per_class, seed):
    rng = np.random.default_rng(seed)
    rows, queries = (rng.integers(-2, 3, (n, width)).astype(float) for n in (n_rows, n_queries))
    labels = rng.integers(0, 2, n_rows)
    smallest = np.unique(labels, return_counts=True)[1].min() if per_class else n_rows
    k = data.draw(st.integers(1, int(smallest)))
    block = data.draw(st.sampled_from([None, 1, 3, 7]))
    with blocks.settings(block_rows=block, n_threads=2):
        fitted = NeighborAtypicality(k, per_class=per_class).fit(rows, labels)
        found = fitted.atypicality(queries)
    groups = [rows[labels == y] for y in np.unique(labels)] if per_class else [rows]
    each = [np.sort(distances(queries, group, "euclidean"), axis=1)[:, :k].mean(axis=1) for group in groups]
    np.testing.assert_allclose(found, np.min(each, axis=0), rtol=1e-12)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_blocks_and_threads_change_nothing(metric, rng):
    rows, queries, labels = rng.standard_normal((900, 6)), rng.standard_normal((80, 6)), rng.integers(0, 3, 900)
    for per_class in (False, True):
        fitted = NeighborAtypicality(metric=metric, per_class=per_class).fit(rows, labels)
        expected = fitted.atypicality(queries)
        for n_threads, block_rows in ((1, 19), (3, 47), (2, 1000)):
            with blocks.settings(n_threads=n_threads, block_rows=block_rows):
                again = NeighborAtypicality(metric=metric, per_class=per_class).fit(rows, labels)
                np.testing.assert_allclose(again.atypicality(queries), expected, rtol=1e-12)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: fitted.atypicality(queries), range(8)):
            np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_many_small_classes(metric, rng):
    # most classes are dropped without being measured: their neighbours are sure to be further than those of another
    rows, queries, labels = rng.standard_normal((1200, 6)), rng.standard_normal((60, 6)), np.arange(1200) % 80
    queries[0] *= 1e30
    full = distances(queries, rows, metric)
    for reduction, reduce in REDUCTIONS.items():
        each = [reduce(np.sort(full[:, labels == y], axis=1)[:, :4]) for y in range(80)]
        found = NeighborAtypicality(4, reduction=reduction, metric=metric, per_class=True).fit(rows, labels)
        np.testing.assert_allclose(found.atypicality(queries), np.min(each, axis=0), rtol=1e-10)
        own = distances(rows, rows, metric)
        np.fill_diagonal(own, np.inf)
        each = [reduce(np.sort(own[:, labels == y], axis=1)[:, :4]) for y in range(80)]
        np.testing.assert_allclose(found.atypicality(rows, exclude_self=True), np.min(each, axis=0), rtol=1e-10)


def test_candidates_are_measured_early_when_there_are_many(rng, monkeypatch):
    monkeypatch.setattr(search, "_PENDING", 2)
    monkeypatch.setattr(search, "_TILE_BYTES", 4 * 5 * 50)
    rows, queries = rng.standard_normal((700, 5)), rng.standard_normal((30, 5))
    rows[350:] = rows[0]
    queries[0] = rows[0]
    exact = np.sort(distances(queries, rows, "euclidean"), axis=1)[:, :5].mean(axis=1)
    np.testing.assert_allclose(NeighborAtypicality().fit(rows).atypicality(queries), exact, rtol=1e-12)


@pytest.mark.parametrize("per_class", [False, True])
def test_training_rows_can_leave_themselves_out(per_class, rng):
    rows, labels = rng.standard_normal((200, 3)), np.arange(200) % 2
    rows[1] = rows[5]  # the same values in two rows of one class: each is the other's neighbour at distance 0
    fitted = NeighborAtypicality(1, per_class=per_class).fit(rows, labels)
    np.testing.assert_array_equal(fitted.atypicality(rows), 0.0)
    full = distances(rows, rows, "euclidean")
    np.fill_diagonal(full, np.inf)
    with blocks.settings(block_rows=13):
        found = fitted.atypicality(rows, exclude_self=True)
    np.testing.assert_allclose(found, full.min(axis=1), rtol=1e-10)
    assert found[1] == found[5] == 0.0


def test_a_memory_map_is_read_where_it_lies(rng, tmp_path):
    rows = rng.standard_normal((500, 4)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    fitted = NeighborAtypicality().fit(mapped)
    assert isinstance(fitted.embeddings_, np.memmap)
    np.testing.assert_array_equal(
        fitted.atypicality(mapped[:50]), NeighborAtypicality().fit(rows).atypicality(rows[:50])
    )
    fortran = NeighborAtypicality().fit(np.asfortranarray(rows)).atypicality(np.asfortranarray(rows[:50]))
    np.testing.assert_allclose(fortran, fitted.atypicality(rows[:50]), rtol=1e-12)


def test_accuracy_falls_with_neighbour_distance_on_cifar10():
    train, test = (load_outputs("cifar10-wrn28-10", part) for part in ("train", "test"))
    chosen = slice(0, 4000)
    correct = (test["logits"].argmax(axis=1) == test["labels"])[chosen]
    scores = NeighborAtypicality().fit(train["embeddings"]).atypicality(test["embeddings"][chosen])
    fifths = [correct[part].mean() for part in np.array_split(scores.argsort(), 5)]
    assert fifths[0] > 0.99
    assert fifths[-1] < 0.85


def test_scikit_learn_rules(rng):
    rows = rng.standard_normal((30, 3))
    estimator = NeighborAtypicality(2, reduction="kth", metric="cosine", per_class=True)
    with pytest.raises(NotFittedError):
        estimator.atypicality(rows)
    assert clone(estimator).get_params() == estimator.get_params()
    fitted = NeighborAtypicality(2).fit(rows)
    before = fitted.atypicality(rows)
    with pytest.raises(ValueError, match="NaN"):
        fitted.fit(rows * np.nan)
    np.testing.assert_array_equal(fitted.atypicality(rows), before)
    assert fitted.atypicality(np.empty((0, 3))).shape == (0,)


@needs("torch")
def test_torch_in_torch_out(rng):
    import torch

    rows = rng.standard_normal((30, 3))
    fitted = NeighborAtypicality().fit(torch.tensor(rows))
    scores = fitted.atypicality(torch.tensor(rows), exclude_self=True)
    assert isinstance(scores, torch.Tensor)
    np.testing.assert_array_equal(scores.numpy(), fitted.atypicality(rows, exclude_self=True))


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_their_rows(metric, value, rng):
    rows = rng.standard_normal((30, 3))
    fitted = NeighborAtypicality(metric=metric).fit(rows)
    bad = rows.copy()
    bad[[4, 20], 1] = value
    for call in (NeighborAtypicality(metric=metric).fit, fitted.atypicality):
        with pytest.raises(ValueError, match="embeddings must be finite; rows 4, 20 hold NaN or infinity"):
            call(bad)
        with pytest.raises(ValueError, match="row 20 holds NaN"), blocks.settings(block_rows=6, n_threads=3):
            call(np.where(np.arange(30)[:, None] == 4, rows, bad))


def test_rows_of_zeros_have_no_angle(rng):
    rows = rng.standard_normal((30, 3))
    fitted = NeighborAtypicality(metric="cosine").fit(rows)
    rows[[2, 9]] = 0.0
    for call in (NeighborAtypicality(metric="cosine").fit, fitted.atypicality):
        with pytest.raises(ValueError, match=r"no row of zeros with metric='cosine'; rows 2, 9 are zero"):
            call(rows)


def test_squares_that_overflow_are_refused(rng):
    rows = rng.standard_normal((30, 3))
    for call in (NeighborAtypicality().fit, NeighborAtypicality().fit(rows).atypicality):
        with pytest.raises(ValueError, match="squares that fit into float64"):
            call(1e200 * rows)


@pytest.mark.parametrize(
    ("parameters", "rows", "labels", "error", "message"),
    [
        ({"n_neighbors": 7}, np.ones((6, 2)), None, ValueError, "number of training rows; got 7 for 6"),
        ({"n_neighbors": 0}, np.ones((6, 2)), None, ValueError, "n_neighbors must be at least 1"),
        ({"n_neighbors": 2.0}, np.ones((6, 2)), None, TypeError, "n_neighbors must be a whole number"),
        ({"reduction": "median"}, np.ones((6, 2)), None, ValueError, "reduction must be one of 'mean', 'kth', 'min'"),
        ({"metric": "l1"}, np.ones((6, 2)), None, ValueError, "metric must be one of 'euclidean', 'cosine'"),
        ({"per_class": 1}, np.ones((6, 2)), None, ValueError, "per_class must be one of"),
        ({"per_class": True}, np.ones((6, 2)), None, ValueError, "per_class=True needs labels"),
        ({"per_class": True}, np.ones((6, 2)), list("aaaaab"), ValueError, "every class; class 'b' has 1"),
        ({}, np.ones((6, 2)), [0, 1], ValueError, "labels must have one entry per row; got 2 for 6"),
        ({}, np.empty((0, 2)), None, ValueError, "number of training rows; got 5 for 0"),
        ({}, np.ones(6), None, ValueError, "two-dimensional"),
        ({}, np.full((6, 2), "a"), None, TypeError, "real numbers"),
        ({}, np.full((6, 2), None), None, TypeError, "real numbers"),
    ],
)
def test_bad_fits(parameters, rows, labels, error, message):
    with pytest.raises(error, match=message):
        NeighborAtypicality(**parameters).fit(rows, labels)


def test_bad_scoring(rng):
    from scipy.sparse import csr_array

    rows = rng.standard_normal((10, 3))
    fitted = NeighborAtypicality(9).fit(rows)
    with pytest.raises(ValueError, match="must have 3 columns, as many as when it was fitted; got 2"):
        fitted.atypicality(rows[:, :2])
    with pytest.raises(TypeError, match="sparse"):
        fitted.atypicality(csr_array(rows))
    with pytest.raises(ValueError, match="training rows themselves, 10 of them; got 9 rows"):
        fitted.atypicality(rows[:9], exclude_self=True)
    with pytest.raises(ValueError, match="row 4 differs from the training row"):
        fitted.atypicality(rows + (np.arange(10) == 4)[:, None], exclude_self=True)
    with pytest.raises(ValueError, match="more than n_neighbors=10 training rows; got 10"):
        NeighborAtypicality(10).fit(rows).atypicality(rows, exclude_self=True)
    with pytest.raises(ValueError, match="n_neighbors=5 training rows of every class; got 5"):
        NeighborAtypicality(5, per_class=True).fit(rows, [0, 1] * 5).atypicality(rows, exclude_self=True)
