"""normalize="l2": the density of rows divided by their length, from every kind of input, and rows that have none."""

import math

import numpy as np
import pytest

from atypicality import GaussianAtypicality, NeighborAtypicality, RelativeAtypicality, blocks
from atypicality.formula.rows import unit_rows

COVARIANCES = ["tied", "full", "diagonal"]
DIGITS = 1e-9  # relative, of scores: both sides whiten equal rows whose covariance has a condition below 1e3


@pytest.fixture
def rows(rng):
    labels = np.arange(240) % 3
    return rng.standard_normal((240, 4)) + 2.0 * np.eye(4)[labels], labels


def unit(x):
    """Each row by its own length, in long double: the reference."""
    wide = np.asarray(x, np.longdouble)
    return (wide / np.sqrt((wide * wide).sum(axis=1, keepdims=True))).astype(np.float64)


def test_unit_rows_come_with_their_lengths(rng):
    x = rng.standard_normal((50, 7))
    for rows in (x, 1e200 * x, 1e-200 * x, x.astype(np.float32)):  # squares of some would overflow or vanish
        found, lengths = unit_rows(np, rows)
        exact = np.array([[math.hypot(*row)] for row in rows.tolist()])
        np.testing.assert_allclose(lengths, exact, rtol=1e-14)
        np.testing.assert_allclose(found, unit(rows), rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_are_scored_by_their_direction_stay_as_they_are(rows, dtype):
    x, labels = rows[0].astype(dtype), rows[1]
    x.flags.writeable = False
    for density in (GaussianAtypicality(normalize="l2"), RelativeAtypicality(normalize="l2")):
        density.fit(x, labels)
        once = density.atypicality(x)
        with blocks.settings(block_rows=50):  # what is borrowed by one block is read by the next
            np.testing.assert_allclose(density.atypicality(x), once, rtol=1e-12)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_a_gaussian_of_directions_is_that_of_normalised_rows(kind, rows):
    x, labels = rows
    found, expected = GaussianAtypicality(kind, normalize="l2"), GaussianAtypicality(kind)
    found.fit(x, labels), expected.fit(unit(x), labels)
    np.testing.assert_allclose(found.covariance_, expected.covariance_, rtol=0, atol=1e-14)
    for name in ("atypicality", "class_log_density"):
        np.testing.assert_allclose(
            getattr(found, name)(5 * x), getattr(expected, name)(unit(x)), rtol=DIGITS, atol=DIGITS
        )


@pytest.mark.parametrize("reduction", ["mean", "min"])
def test_neighbours_of_directions_are_those_of_normalised_rows(reduction, rows):
    x = rows[0]
    found = NeighborAtypicality(3, reduction=reduction, normalize="l2").fit(x[:200]).atypicality(9 * x[200:])
    expected = NeighborAtypicality(3, reduction=reduction).fit(unit(x[:200])).atypicality(unit(x[200:]))
    np.testing.assert_allclose(found, expected, rtol=DIGITS)
    cosine = NeighborAtypicality(1, metric="cosine").fit(x[:200]).atypicality(x[200:])  # half the squared chord
    nearest = NeighborAtypicality(1, normalize="l2").fit(x[:200]).atypicality(x[200:])
    np.testing.assert_allclose(nearest**2 / 2, cosine, rtol=DIGITS)


@pytest.mark.parametrize("density", [GaussianAtypicality(normalize="l2"), NeighborAtypicality(3, normalize="l2")])
def test_lengths_do_not_count_however_extreme(density, rows, rng):
    x, labels = rows
    factors = 2.0 ** rng.integers(-900, 900, (240, 1))  # powers of two scale without rounding
    plain = density.fit(x, labels).atypicality(x)
    np.testing.assert_array_equal(density.atypicality(x * factors), plain)
    np.testing.assert_array_equal(density.fit(x * factors, labels).atypicality(x), plain)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_parts_blocks_and_files_give_one_fit(kind, rows, tmp_path):
    x, labels = rows
    whole = GaussianAtypicality(kind, normalize="l2").fit(x, labels)
    one, two = (
        GaussianAtypicality(kind, normalize="l2").fit(x[part], labels[part]) for part in (slice(90), slice(90, 240))
    )
    stepwise = (
        GaussianAtypicality(kind, normalize="l2").partial_fit(x[:90], labels[:90]).partial_fit(x[90:], labels[90:])
    )
    np.save(tmp_path / "rows.npy", x)
    with blocks.settings(block_rows=17, n_threads=3):
        mapped = GaussianAtypicality(kind, normalize="l2").fit(np.load(tmp_path / "rows.npy", mmap_mode="r"), labels)
    for other in (one.merge(two), stepwise, mapped):
        np.testing.assert_allclose(other.atypicality(x), whole.atypicality(x), rtol=DIGITS, atol=DIGITS)


def test_float32_products_keep_their_digits(rows):
    x, labels = rows
    wide = GaussianAtypicality(normalize="l2").fit(x, labels).atypicality(x)
    short = GaussianAtypicality(normalize="l2", precision="float32").fit(x.astype(np.float32), labels)
    assert np.max(np.abs(short.atypicality(x) - wide) / np.maximum(np.abs(wide), 4)) < 1e-5


@pytest.mark.parametrize("density", [GaussianAtypicality(normalize="l2"), GaussianAtypicality("full", normalize="l2"),
                                     NeighborAtypicality(3, normalize="l2")], ids=str)  # fmt: skip
def test_rows_of_zeros_are_refused_by_number(density, rows, put):
    x, labels = rows
    bad = x.copy()
    bad[[2, 9]] = 0.0
    wrong = bad.copy()
    wrong[[2, 9], 0] = np.nan
    for make in (np.asarray, put):
        fitted = density.fit(x, labels)
        for call in (lambda: fitted.atypicality(make(bad)), lambda: density.fit(make(bad), labels)):  # noqa: B023
            with np.errstate(invalid="ignore"), pytest.raises(ValueError, match="normalize='l2'; rows 2, 9 are zero"):
                call()
        with np.errstate(invalid="ignore"), pytest.raises(ValueError, match="finite; rows 2, 9 hold NaN"):
            density.fit(make(wrong), labels)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_a_fit_where_the_arrays_are_is_that_of_the_host(kind, rows, put):
    x, labels = rows
    host = GaussianAtypicality(kind, normalize="l2", shrinkage=0.1).fit(x, labels)
    found = GaussianAtypicality(kind, normalize="l2", shrinkage=0.1).fit(put(x), labels)
    np.testing.assert_allclose(found.atypicality(x), host.atypicality(x), rtol=DIGITS, atol=DIGITS)
    near = NeighborAtypicality(3, normalize="l2").fit(x)
    there = NeighborAtypicality(3, normalize="l2").fit(put(x)).atypicality(put(x + 1))
    np.testing.assert_allclose(np.asarray(there), near.atypicality(x + 1), rtol=DIGITS)


def test_other_options_are_refused(rows):
    x, labels = rows
    for density in (GaussianAtypicality(normalize="l1"), NeighborAtypicality(normalize=True)):
        with pytest.raises(ValueError, match="normalize must be"):
            density.fit(x, labels)
    with pytest.raises(ValueError, match="other must have the same normalize; got None against 'l2'"):
        GaussianAtypicality(normalize="l2").fit(x, labels).merge(GaussianAtypicality().fit(x, labels))
    with pytest.raises(ValueError, match="embeddings must vary within a class"):  # one column: all directions equal
        GaussianAtypicality(normalize="l2").fit(np.abs(x[:, :1]) + 1, labels)
