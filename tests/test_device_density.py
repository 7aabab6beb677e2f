"""Densities on a device: Gaussians and neighbours of arrays of other libraries equal those of NumPy arrays.

The `as_device` fixture makes CPU arrays of torch and of array_api_strict, which has nothing but the standard, stand in
for arrays of an accelerator.
"""

import pickle

import numpy as np
import pytest
from conftest import imported, needs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_gaussian import COVARIANCES, make_rows
from test_neighbors import REDUCTIONS, distances, hard_world

from atypicality import GaussianAtypicality, NeighborAtypicality, blocks
from atypicality.arrays import to_host
from atypicality.density import device_neighbors
from atypicality.density import device_products as products
from atypicality.density.covariance import triangular_whitening
from atypicality.density.device_classes import order_by_class
from atypicality.density.device_gaussian import whitening_on
from atypicality.density.device_products import DOUBLE, HALF, largest, product
from atypicality.density.device_reference import DeviceReference, Queries
from atypicality.stored.kinds import Place
from atypicality.stored.records import Part


def assert_same(found, expected, *, rtol, atol=0.0, like=None):
    """Close values, in an array of the caller's library."""
    if like is not None:
        assert type(found) is type(like)
    np.testing.assert_allclose(to_host(found), expected, rtol=rtol, atol=atol)


# -- rows in the order of their classes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "where"),
    [
        ([3, -1, 3, 3, 7, -1], "device"),
        ([3, -1, 3, 3, 7, -1], "host"),
        ([True, False, True, True, False, False], "device"),
        (["b", "a", "b", "c", "a", "a"], "host"),
    ],
)
def test_order_of_classes(labels, where, put):
    x, host = put(np.zeros((6, 1))), np.array(labels)
    order = order_by_class(put(host) if where == "device" else labels, x)
    classes, codes, counts = np.unique(host, return_inverse=True, return_counts=True)
    assert order.classes.tolist() == classes.tolist()
    assert order.classes.dtype.kind == classes.dtype.kind
    assert order.counts.tolist() == counts.tolist()
    np.testing.assert_array_equal(to_host(order.rows), np.argsort(codes, kind="stable"))
    np.testing.assert_array_equal(to_host(order.codes), np.sort(codes))
    assert order.span(slice(0, 6)) == slice(0, classes.size)
    assert order.span(slice(int(counts[0]), int(counts[0]) + 1)) == slice(1, 2)


@needs("torch")
def test_labels_of_another_library_come_over_the_host(as_device, rng):
    library, x, labels = imported("array_api_strict"), rng.standard_normal((20, 3)), np.arange(20) % 3
    found = GaussianAtypicality().fit(library.asarray(x), imported("torch").asarray(labels))
    assert found.classes_.tolist() == [0, 1, 2]
    np.testing.assert_allclose(found.covariance_, GaussianAtypicality().fit(x, labels).covariance_, rtol=1e-12)


def test_labels_of_other_kinds_have_the_words_of_the_host(put):
    x = put(np.zeros((4, 1)))
    with pytest.raises(TypeError, match="labels must be all integers, all booleans or all strings; got dtype float64"):
        order_by_class(put(np.zeros(4)), x)
    with pytest.raises(ValueError, match="labels must be one-dimensional"):
        order_by_class(put(np.zeros((4, 2), int)), x)
    with pytest.raises(ValueError, match="labels must have one entry per row; got 3 for 4 rows"):
        order_by_class(put(np.zeros(3, int)), x)
    assert order_by_class(put(np.array([2, 1, 2, 1], np.uint8)), x).classes.tolist() == [1, 2]


# -- Gaussians ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(
    ("kind", "shrinkage"), [(kind, None) for kind in COVARIANCES] + [("tied", "ledoit-wolf"), ("full", "ledoit-wolf")]
)
def test_fit_and_scores_equal_those_of_the_host(kind, shrinkage, precision, put, rng):
    x, labels = make_rows(rng, 300, 7, offset=100.0)
    queries = x[:40] + rng.standard_normal((40, 7))
    rtol = 1e-10 if precision == "float64" else 2e-5  # float32 products keep 24 bits, times the condition number
    host = GaussianAtypicality(kind, shrinkage=shrinkage, precision=precision).fit(x, labels)
    device = GaussianAtypicality(kind, shrinkage=shrinkage, precision=precision)
    with blocks.settings(block_rows=64):
        device.fit(put(x), put(labels))
        found, densities = device.atypicality(put(queries)), device.class_log_density(put(queries))
    assert isinstance(device.means_, np.ndarray)
    np.testing.assert_array_equal(device.counts_, host.counts_)
    assert_same(device.means_, host.means_, rtol=rtol)
    assert_same(device.covariance_, host.covariance_, rtol=rtol, atol=rtol)
    assert_same(found, host.atypicality(queries), rtol=rtol, like=put(x))
    assert_same(densities, host.class_log_density(queries), rtol=rtol, like=put(x))


@pytest.mark.parametrize("kind", COVARIANCES)
def test_marginal_densities_and_components(kind, put, rng):
    x, labels = make_rows(rng, 300, 6)
    host = GaussianAtypicality(kind, marginal=True, n_components=3).fit(x, labels)
    device = GaussianAtypicality(kind, marginal=True, n_components=3).fit(put(x), labels)
    assert_same(device.atypicality(put(x)), host.atypicality(x), rtol=1e-10)
    assert_same(host.atypicality(put(x)), host.atypicality(x), rtol=1e-12, like=put(x))


def test_either_estimator_scores_either_kind_of_rows(put, rng):
    x, labels = make_rows(rng, 200, 5)
    host, device = GaussianAtypicality().fit(x, labels), GaussianAtypicality().fit(put(x), labels)
    expected = host.atypicality(x)
    assert isinstance(device.atypicality(x), np.ndarray)
    assert_same(device.atypicality(x), expected, rtol=1e-10)
    assert_same(host.atypicality(put(x)), expected, rtol=1e-12, like=put(x))
    assert_same(host.merge(device).means_, host.means_, rtol=1e-12)
    again = pickle.loads(pickle.dumps(device))
    np.testing.assert_array_equal(again.atypicality(x), device.atypicality(x))
    assert host.atypicality(put(x[:0])).shape == (0,)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_bundles_hold_a_gaussian_fitted_on_a_device(kind, put, rng):
    x, labels = make_rows(rng, 200, 5)
    device, tensors = GaussianAtypicality(kind).fit(put(x), put(labels)), {}
    stored = Part(GaussianAtypicality).write(device, Place.start(tensors))
    again = Part(GaussianAtypicality).read(stored, Place.start(tensors))
    np.testing.assert_array_equal(again.atypicality(x), device.atypicality(x))


@pytest.mark.parametrize(("kind", "shrinkage"), [("tied", None), ("full", "ledoit-wolf"), ("diagonal", None)])
def test_partial_fit_mixes_host_and_device(kind, shrinkage, put, rng):
    x, labels = make_rows(rng, 240, 4)
    whole = GaussianAtypicality(kind, shrinkage=shrinkage).fit(x, labels)
    parts = GaussianAtypicality(kind, shrinkage=shrinkage)
    parts.partial_fit(put(x[:90]), labels[:90]).partial_fit(x[90:120], labels[90:120])
    parts.partial_fit(put(x[120:]), put(labels[120:]))
    assert_same(parts.covariance_, whole.covariance_, rtol=1e-10, atol=1e-12)
    assert_same(parts.atypicality(put(x)), whole.atypicality(x), rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", COVARIANCES)
def test_offsets_and_far_classes_cost_nothing(kind, dtype, put, rng):
    x, labels = make_rows(rng, 300, 5, spread=1e4, offset=1e4)
    x[0] += 1e4  # the first row is far from its class: a bad origin
    x = x.astype(dtype)
    host, device = GaussianAtypicality(kind).fit(x, labels), GaussianAtypicality(kind).fit(put(x), labels)
    assert_same(device.covariance_, host.covariance_, rtol=1e-10, atol=1e-9)
    assert_same(device.atypicality(put(x)), host.atypicality(x), rtol=1e-8)


def test_more_classes_than_a_matrix_of_members_takes(put, rng, monkeypatch):
    from atypicality.density import device_gaussian as gaussian

    monkeypatch.setattr(gaussian, "_CLASSES", 4)
    x, labels = make_rows(rng, 200, 3, 40)
    host, device = (GaussianAtypicality(covariance="tied").fit(rows, labels) for rows in (x, put(x)))
    assert_same(device.means_, host.means_, rtol=1e-12)


def test_a_single_column_and_a_single_class(put, rng):
    x = rng.standard_normal((50, 1))
    host, device = (GaussianAtypicality().fit(rows, np.zeros(50, int)) for rows in (x, put(x)))
    assert_same(device.atypicality(put(x)), host.atypicality(x), rtol=1e-10)


@pytest.mark.parametrize("make", ["constant column", "duplicated column", "fewer rows than columns"])
def test_ranks_are_those_of_the_host(make, put, rng):
    x, labels = make_rows(rng, 90, 5, offset=1e4)
    if make == "constant column":
        x = np.c_[x, np.full(len(x), 0.1)]
    elif make == "duplicated column":
        x = np.c_[x, x[:, 0]]
    else:
        x, labels = np.c_[x, rng.standard_normal((90, 95))][:12], np.arange(12) % 3
    rank = 9 if make == "fewer rows than columns" else 5
    with pytest.warns(UserWarning, match=rf"rank {rank} of {x.shape[1]}"):
        device = GaussianAtypicality().fit(put(x), labels)
    assert device.rank_ == rank


def test_the_whitening_of_a_device_is_that_of_the_host(put, rng):
    x = rng.standard_normal((200, 12)) * np.logspace(0, -3, 12)
    covariance = x.T @ x / 200
    matrix, diagonal = triangular_whitening(covariance, 1e-9)
    on_device, its_diagonal = whitening_on(put(x))(covariance, 1e-9)
    assert_same(on_device, matrix, rtol=1e-9, atol=1e-9)
    assert_same(its_diagonal, diagonal, rtol=1e-10)
    assert whitening_on(put(x))(covariance, 1e-5) is None  # the smallest variance is about 1e-6
    assert whitening_on(put(x))(np.zeros((2, 2)), 0.0) is None


def test_a_factorisation_that_fails_in_silence_is_noticed(put, rng):
    from atypicality.density import device_gaussian as gaussian

    matrix = put(np.diag([1.0, 1.0, -1.0]))
    assert not gaussian._is_factor(put(np.eye(3)), matrix)
    assert not gaussian._is_factor(put(np.full((3, 3), np.nan)), matrix)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", COVARIANCES)
def test_bad_rows_are_named(kind, value, put, rng):
    x, labels = make_rows(rng, 60, 3)
    bad = x.copy()
    bad[[4, 9], 1] = value
    fitted = GaussianAtypicality(kind).fit(x, labels)
    for call in (lambda: GaussianAtypicality(kind).fit(put(bad), labels), lambda: fitted.atypicality(put(bad))):
        with np.errstate(all="ignore"), pytest.raises(ValueError, match="finite; rows 4, 9 hold NaN or infinity"):
            call()


def test_squares_that_overflow_and_other_shapes(put, rng):
    x, labels = make_rows(rng, 60, 3)
    fitted = GaussianAtypicality().fit(x, labels)
    for call in (lambda: fitted.atypicality(put(x * 1e200)), lambda: GaussianAtypicality().fit(put(x * 1e200), labels)):
        with np.errstate(all="ignore"), pytest.raises(ValueError, match="squares that fit into float64"):
            call()
    with pytest.raises(ValueError, match="embeddings must have 3 columns"):
        fitted.atypicality(put(x[:, :2]))
    with pytest.raises(ValueError, match="embeddings must be two-dimensional"):
        fitted.class_log_density(put(x[0]))
    with pytest.raises(ValueError, match="at least one row to fit on"):
        GaussianAtypicality().fit(put(x[:0]), labels[:0])
    with pytest.raises(ValueError, match="embeddings must have 3 columns"):
        fitted.partial_fit(put(x[:, :2]), labels)


# -- neighbours ------------------------------------------------------------------------------------------------------


def nearest(queries, rows, k, metric="euclidean"):
    """Exact distances to the k nearest rows, directly in float64: the reference."""
    return np.sort(distances(queries, rows, metric), axis=1)[:, :k]


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize(
    ("dtype", "scale", "offset"),
    [
        ("float64", 1.0, 0.0),
        ("float32", 1.0, 1e3),
        ("float32", 1e-20, 0.0),
        ("float64", 1e30, 0.0),
        ("float64", 1e-30, 0.0),
        ("float64", 1e150, 0.0),
    ],
)
def test_distances_on_a_device_are_exact(metric, dtype, scale, offset, put, rng):
    rows, queries = ((offset + scale * rng.standard_normal((n, 12))).astype(dtype) for n in (5000, 40))
    exact = nearest(queries, rows, 5, metric)
    for reduction, reduce in REDUCTIONS.items():
        fitted = NeighborAtypicality(reduction=reduction, metric=metric).fit(put(rows))
        found = fitted.atypicality(put(queries))
        # directly measured distances; offset unit rows differ in their seventh digit, where the reference loses some
        assert_same(found, reduce(exact), rtol=1e-8 if metric == "cosine" and offset else 1e-12, like=put(rows))


@pytest.mark.parametrize("block", [None, 700])
@pytest.mark.parametrize("make", ["wide", "clusters far apart", "one far row", "a far query", "few distinct rows"])
def test_hard_worlds_stay_exact_on_a_device(make, block, put, rng):
    rows, queries = hard_world(make, rng, 6000, 30)
    with blocks.settings(block_rows=block):
        found = NeighborAtypicality().fit(put(rows)).atypicality(put(queries))
    assert_same(found, nearest(queries, rows, 5).mean(axis=1), rtol=1e-12)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n_rows=st.integers(1, 60),
    n_queries=st.integers(0, 9),
    width=st.integers(1, 4),
    data=st.data(),
    per_class=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_small_worlds_with_ties_on_a_device(n_rows, n_queries, width, data, per_class, seed, put):
    rng = np.random.default_rng(seed)
    rows, queries = (rng.integers(-2, 3, (n, width)).astype(float) for n in (n_rows, n_queries))
    labels = rng.integers(0, 2, n_rows)
    smallest = np.unique(labels, return_counts=True)[1].min() if per_class else n_rows
    k = data.draw(st.integers(1, int(smallest)))
    host = NeighborAtypicality(k, per_class=per_class).fit(rows, labels)
    device = NeighborAtypicality(k, per_class=per_class).fit(put(rows), put(labels))
    assert_same(device.atypicality(put(queries)), host.atypicality(queries), rtol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "kth", "min"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_classes_on_a_device(metric, reduction, put, rng):
    rows, labels = make_rows(rng, 2000, 6, 12)
    queries = rows[:50] + 0.5 * rng.standard_normal((50, 6))
    queries[:4] *= [[1e3], [1e6], [1e12], [-1e12]]  # the last two overflow in half precision
    host, device = (
        NeighborAtypicality(3, metric=metric, reduction=reduction, per_class=True).fit(x, labels)
        for x in (rows, put(rows))
    )
    assert_same(device.atypicality(put(queries)), host.atypicality(queries), rtol=1e-12)
    assert device.classes_.tolist() == host.classes_.tolist()


def test_classes_so_large_that_their_scores_are_grouped(put, rng):
    rows, queries, labels = rng.standard_normal((13000, 4)), rng.standard_normal((25, 4)), np.arange(13000) % 3
    rows += 3 * np.eye(4)[labels]
    host, device = (NeighborAtypicality(3, per_class=True).fit(x, labels) for x in (rows, put(rows)))
    assert_same(device.atypicality(put(queries)), host.atypicality(queries), rtol=1e-12)


@pytest.mark.parametrize(("per_class", "n"), [(False, 4200), (True, 900)])
def test_training_rows_on_a_device_can_leave_themselves_out(per_class, n, put, rng):
    rows, labels = make_rows(rng, n, 5, 3)
    rows[7] = rows[9]
    host, device = (NeighborAtypicality(4, per_class=per_class).fit(x, labels) for x in (rows, put(rows)))
    expected = host.atypicality(rows, exclude_self=True)
    assert_same(device.atypicality(put(rows), exclude_self=True), expected, rtol=1e-12, like=put(rows))
    assert_same(device.atypicality(rows, exclude_self=True), expected, rtol=1e-12)
    other = rows.copy()
    other[3, 0] += 1
    with pytest.raises(ValueError, match="row 3 differs from the training row of that number"):
        device.atypicality(put(other), exclude_self=True)


def test_queries_go_where_the_training_rows_are(put, rng):
    rows, queries = rng.standard_normal((300, 4)), rng.standard_normal((20, 4))
    host, device = NeighborAtypicality().fit(rows), NeighborAtypicality().fit(put(rows))
    expected = host.atypicality(queries)
    assert type(device.embeddings_) is type(put(rows))
    assert isinstance(device.atypicality(queries), np.ndarray)
    assert_same(device.atypicality(queries), expected, rtol=1e-12)
    assert_same(
        device.atypicality(queries.astype(np.float16)), host.atypicality(queries.astype(np.float16)), rtol=1e-12
    )
    assert_same(host.atypicality(put(queries)), expected, rtol=1e-12, like=put(rows))
    assert device.atypicality(put(queries[:0])).shape == (0,)


def test_queries_that_stay_open_are_searched_again(put, rng, monkeypatch):
    calls = {"double": 0, "all": 0}
    coarse, measured = device_neighbors._Search._coarse, device_neighbors._Search._all_measured

    def counted(self, queries, operand, grain):
        calls["double"] += queries.lengths.shape[0] * (grain is DOUBLE)
        return coarse(self, queries, operand, grain)

    def all_counted(self, queries):
        calls["all"] += queries.lengths.shape[0]
        return measured(self, queries)

    monkeypatch.setattr(device_neighbors._Search, "_coarse", counted)
    monkeypatch.setattr(device_neighbors._Search, "_all_measured", all_counted)
    rows = np.r_[rng.standard_normal((5000, 6)), 1e3 + 1e-2 * rng.standard_normal((5000, 6))]  # a tight far cluster
    queries = np.r_[rng.standard_normal((10, 6)), rows[-10:] + 1e-2]
    found = NeighborAtypicality().fit(put(rows)).atypicality(put(queries))
    assert_same(found, nearest(queries, rows, 5).mean(axis=1), rtol=1e-12)
    assert 10 <= calls["double"] <= 20
    assert calls["all"] == 0
    circle = np.repeat(np.eye(2), 3000, axis=0)  # every row is at the same distance from 0
    found = NeighborAtypicality().fit(put(circle)).atypicality(put(np.zeros((2, 2))))
    assert_same(found, np.ones(2), rtol=1e-15)
    assert calls["all"] == 2


@pytest.mark.parametrize("grain", [HALF, DOUBLE], ids=lambda grain: grain.name)
@pytest.mark.parametrize("width", [3, 60, 500])
def test_products_keep_their_bound(grain, width, put, rng):
    rows = rng.standard_normal((400, width)) * np.exp(2 * rng.standard_normal((400, 1)))
    queries = 3 * rng.standard_normal((50, width)) + 1.0
    reference = DeviceReference.of(put(rows), "euclidean")
    asked = Queries.of(reference, put(queries), first_row=0, exclude_self=False)
    scores = to_host(product(asked.operand(reference, grain), reference.operand(slice(0, 400), grain)))
    shift = to_host(reference.shift).astype(np.longdouble)
    q, t = ((np.asarray(x, np.longdouble) - shift) * reference.scale for x in (queries, rows))
    error = np.abs(scores - (q @ t.T - 0.5 * (t * t).sum(axis=1)))
    bound = grain.error(
        width, np.linalg.norm(q.astype(float), axis=1)[:, None], np.linalg.norm(t.astype(float), axis=1)
    )
    assert (error <= bound).all()


@pytest.mark.parametrize("width", [5, 64, 1000, 1037])
def test_largest_entries(width, put, rng):
    values = rng.integers(0, 50, (20, width)).astype(np.float32)
    values[3, :4] = -np.inf
    found, places = (to_host(part) for part in largest(put(values), 3))
    np.testing.assert_array_equal(found, -np.sort(-values, axis=1)[:, :3])
    np.testing.assert_array_equal(np.take_along_axis(values, places, axis=1), found)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_neighbours_are_named(value, metric, put, rng):
    rows = rng.standard_normal((30, 3))
    bad = rows.copy()
    bad[[4, 9], 1] = value
    fitted = NeighborAtypicality(metric=metric).fit(put(rows))
    for call in (lambda: fitted.atypicality(put(bad)), lambda: NeighborAtypicality(metric=metric).fit(put(bad))):
        with np.errstate(all="ignore"), pytest.raises(ValueError, match="finite; rows 4, 9 hold NaN or infinity"):
            call()


def test_other_bad_neighbours(put, rng):
    rows = rng.standard_normal((30, 3))
    rows[5] = 0
    with pytest.raises(ValueError, match="no row of zeros with metric='cosine'; row 5 is zero"):
        NeighborAtypicality(metric="cosine").fit(put(rows))
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="squares that fit into float64"):
        NeighborAtypicality().fit(put(rows * 1e200))
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="squares that fit into float64"):
        NeighborAtypicality().fit(put(rows[:, :1] * 1e200))  # the length of one column is found without squares
    with pytest.raises(ValueError, match="n_neighbors must be at most the number of training rows; got 50 for 30"):
        NeighborAtypicality(50).fit(put(rows))
    with pytest.raises(ValueError, match="embeddings must have 3 columns"):
        NeighborAtypicality().fit(put(rows)).atypicality(put(rows[:, :2]))
    with pytest.raises(TypeError, match="training rows on an accelerator, which a bundle cannot store"):
        Part(NeighborAtypicality).write(NeighborAtypicality().fit(put(rows)), Place.start({}))


def test_a_library_without_mm_is_not_asked_about_its_devices(as_device, monkeypatch, rng):
    monkeypatch.setattr(products, "_widens", lambda *_: pytest.fail("CuPy's devices, for one, cannot be cached by"))
    strict = imported("array_api_strict")
    rounded = HALF.rounded(strict.asarray(rng.normal(size=(4, 3)).astype(np.float32)))
    assert rounded.dtype == strict.float32
