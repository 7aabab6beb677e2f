"""Densities on a device: Gaussians and neighbours of arrays of other libraries equal those of NumPy arrays.

The `as_device` fixture makes CPU arrays of torch and of array_api_strict, which has nothing but the standard, stand in
for arrays of an accelerator.
"""

import pickle

import numpy as np
import pytest
from conftest import imported, needs
from test_gaussian import COVARIANCES, make_rows

from atypicality import GaussianAtypicality, blocks
from atypicality.density.covariance import triangular_whitening
from atypicality.device.checks import to_host
from atypicality.device.classes import order_by_class
from atypicality.device.gaussian import whitening_on

LIBRARIES = [pytest.param("torch", marks=needs("torch")), "array_api_strict"]


@pytest.fixture(params=LIBRARIES)
def put(request, as_device):
    """NumPy array to array of another library."""
    library = imported(request.param)
    return lambda values: library.asarray(np.ascontiguousarray(values))


def same(found, expected, *, rtol, atol=0.0, like=None):
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
    same(device.means_, host.means_, rtol=rtol)
    same(device.covariance_, host.covariance_, rtol=rtol, atol=rtol)
    same(found, host.atypicality(queries), rtol=rtol, like=put(x))
    same(densities, host.class_log_density(queries), rtol=rtol, like=put(x))


@pytest.mark.parametrize("kind", COVARIANCES)
def test_marginal_densities_and_components(kind, put, rng):
    x, labels = make_rows(rng, 300, 6)
    host = GaussianAtypicality(kind, marginal=True, n_components=3).fit(x, labels)
    device = GaussianAtypicality(kind, marginal=True, n_components=3).fit(put(x), labels)
    same(device.atypicality(put(x)), host.atypicality(x), rtol=1e-10)
    same(host.atypicality(put(x)), host.atypicality(x), rtol=1e-12, like=put(x))


def test_either_estimator_scores_either_kind_of_rows(put, rng):
    x, labels = make_rows(rng, 200, 5)
    host, device = GaussianAtypicality().fit(x, labels), GaussianAtypicality().fit(put(x), labels)
    expected = host.atypicality(x)
    assert isinstance(device.atypicality(x), np.ndarray)
    same(device.atypicality(x), expected, rtol=1e-10)
    same(host.atypicality(put(x)), expected, rtol=1e-12, like=put(x))
    same(host.merge(device).means_, host.means_, rtol=1e-12)
    again = pickle.loads(pickle.dumps(device))
    np.testing.assert_array_equal(again.atypicality(x), device.atypicality(x))
    assert host.atypicality(put(x[:0])).shape == (0,)


@pytest.mark.parametrize(("kind", "shrinkage"), [("tied", None), ("full", "ledoit-wolf"), ("diagonal", None)])
def test_partial_fit_mixes_host_and_device(kind, shrinkage, put, rng):
    x, labels = make_rows(rng, 240, 4)
    whole = GaussianAtypicality(kind, shrinkage=shrinkage).fit(x, labels)
    parts = GaussianAtypicality(kind, shrinkage=shrinkage)
    parts.partial_fit(put(x[:90]), labels[:90]).partial_fit(x[90:120], labels[90:120])
    parts.partial_fit(put(x[120:]), put(labels[120:]))
    same(parts.covariance_, whole.covariance_, rtol=1e-10, atol=1e-12)
    same(parts.atypicality(put(x)), whole.atypicality(x), rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", COVARIANCES)
def test_offsets_and_far_classes_cost_nothing(kind, dtype, put, rng):
    x, labels = make_rows(rng, 300, 5, spread=1e4, offset=1e4)
    x[0] += 1e4  # the first row is far from its class: a bad origin
    x = x.astype(dtype)
    host, device = GaussianAtypicality(kind).fit(x, labels), GaussianAtypicality(kind).fit(put(x), labels)
    same(device.covariance_, host.covariance_, rtol=1e-10, atol=1e-9)
    same(device.atypicality(put(x)), host.atypicality(x), rtol=1e-8)


def test_more_classes_than_a_matrix_of_members_takes(put, rng, monkeypatch):
    from atypicality.device import gaussian

    monkeypatch.setattr(gaussian, "_CLASSES", 4)
    x, labels = make_rows(rng, 200, 3, 40)
    host, device = (GaussianAtypicality(covariance="tied").fit(rows, labels) for rows in (x, put(x)))
    same(device.means_, host.means_, rtol=1e-12)


def test_a_single_column_and_a_single_class(put, rng):
    x = rng.standard_normal((50, 1))
    host, device = (GaussianAtypicality().fit(rows, np.zeros(50, int)) for rows in (x, put(x)))
    same(device.atypicality(put(x)), host.atypicality(x), rtol=1e-10)


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
    same(on_device, matrix, rtol=1e-9, atol=1e-9)
    same(its_diagonal, diagonal, rtol=1e-10)
    assert whitening_on(put(x))(covariance, 1e-5) is None  # the smallest variance is about 1e-6
    assert whitening_on(put(x))(np.zeros((2, 2)), 0.0) is None


def test_a_factorisation_that_fails_in_silence_is_noticed(put, rng):
    from atypicality.device import gaussian

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
