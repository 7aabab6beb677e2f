"""RelativeAtypicality: class-conditional Gaussians against a background one, equal to both distances taken directly."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from atypicality import GaussianAtypicality, RelativeAtypicality, blocks
from atypicality.density.covariance import shrink
from atypicality.density.family import DensityFamily
from atypicality.formula import TwoDensities

KINDS = ("Gaussian", "Relative")
DIGITS = 1e-9  # relative to max(|score|, d): both sides solve with covariances whose condition is below 1e3


@pytest.fixture
def rows(rng):
    return make_rows(rng)


def make_rows(rng, n=300, d=6, k=4):
    labels = np.arange(n) % k
    mixing = np.linalg.qr(rng.standard_normal((d, d)))[0] * rng.uniform(0.5, 2.0, d)
    return rng.standard_normal((n, d)) @ mixing + 2.0 * rng.standard_normal((k, d))[labels], labels


def moments(x, labels):
    """Class means, shares, and the covariance within classes, in long double."""
    x, classes = np.asarray(x, np.longdouble), np.unique(labels)
    means = np.stack([x[labels == y].mean(axis=0) for y in classes])
    shares = np.array([(labels == y).mean() for y in classes])
    away = x - means[np.searchsorted(classes, labels)]
    return [np.asarray(part, np.float64) for part in (means, shares, away.T @ away / len(x))]


def reference(x, labels, queries, within=None):
    """Half the squared distances, each by a solve with its own covariance."""
    means, shares, own = moments(x, labels)
    within = own if within is None else within
    centre = shares @ means
    total = within + (means - centre).T @ (shares[:, None] * (means - centre))
    half = lambda gap, covariance: 0.5 * np.vecdot(gap, np.linalg.solve(covariance, gap.T).T)  # noqa: E731
    return np.min([half(queries - mean, within) for mean in means], axis=0) - half(queries - centre, total)


def assert_close(found, expected, d, digits=DIGITS):
    assert np.max(np.abs(found - expected) / np.maximum(np.abs(expected), d)) <= digits


def test_equals_two_distances_taken_directly(rows, rng):
    x, labels = rows
    queries = np.concatenate([x, 10 * rng.standard_normal((50, 6))])
    relative = RelativeAtypicality().fit(x, labels)
    assert_close(relative.atypicality(queries), reference(x, labels, queries), 6)
    total = np.cov(x.T, bias=True)  # without shrinkage the background is the Gaussian of all rows, as published
    means, shares, within = moments(x, labels)
    np.testing.assert_allclose(within + (means - shares @ means).T @ np.diag(shares) @ (means - shares @ means), total)


@pytest.mark.parametrize("normalize", [None, "l2"])
def test_scores_of_the_classes_stand_in_for_products_with_the_rows(normalize, rows):
    # the background's directions are combinations of the class means: of 4 classes 3, and none of 6 columns is left out
    x, labels = rows
    formula = RelativeAtypicality(normalize=normalize).fit(x, labels).formula()
    assert formula.mixing.shape == (4, 3)  # and a column of 0 in the spread
    np.testing.assert_allclose(formula.mixing.sum(axis=0), 0, atol=1e-14)
    plain = replace(formula, mixing=None)
    for first, second in ((formula, plain), (formula.linear(), plain.linear())):
        found, expected = (one.atypicality(np, one.products(np, x)) for one in (first, second))
        assert_close(found, expected, 6, 1e-13)


def test_class_log_densities_and_attributes_are_those_of_the_gaussian(rows):
    x, labels = rows
    relative, gaussian = RelativeAtypicality().fit(x, labels), GaussianAtypicality().fit(x, labels)
    np.testing.assert_array_equal(relative.class_log_density(x), gaussian.class_log_density(x))
    np.testing.assert_array_equal(relative.covariance_, gaussian.covariance_)
    assert relative.rank_ == gaussian.rank_ == 6


def test_an_invertible_affine_map_of_the_rows_changes_nothing(rows, rng):
    x, labels = rows
    moved = x @ (np.eye(6) + 0.3 * rng.standard_normal((6, 6))) + 5.0
    expected = RelativeAtypicality().fit(x, labels).atypicality(x)
    assert_close(RelativeAtypicality().fit(moved, labels).atypicality(moved), expected, 6)


@pytest.mark.parametrize("shrinkage", [0.2, "oas", "ledoit-wolf"])
def test_shrinkage_is_that_of_the_gaussian_and_the_background_follows(shrinkage, rows):
    x, labels = rows
    within = GaussianAtypicality(shrinkage=shrinkage).fit(x, labels).covariance_
    found = RelativeAtypicality(shrinkage=shrinkage).fit(x, labels).atypicality(x)
    assert_close(found, reference(x, labels, x, within), 6)
    if shrinkage == 0.2:
        np.testing.assert_allclose(within, shrink(moments(x, labels)[2], len(x), 0.2), rtol=0, atol=1e-12)


def test_components_are_those_of_a_projection_beforehand(rows):
    x, labels = rows
    found = RelativeAtypicality(n_components=3).fit(x, labels)
    projected = x @ found.components_.T
    assert_close(found.atypicality(x), reference(projected, labels, projected), 3)


@pytest.mark.parametrize("normalize", [None, "l2"])
def test_parts_blocks_and_files_give_one_fit(normalize, rows, tmp_path):
    x, labels = rows
    relative = RelativeAtypicality(normalize=normalize)
    whole = clone(relative).fit(x, labels).atypicality(x)
    if normalize == "l2":
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        assert_close(whole, reference(unit, labels, unit), 6, 1e-7)  # directions of 6 columns: condition up to 1e4
    by_class = clone(relative).partial_fit(x[labels < 1], labels[labels < 1])
    by_class.partial_fit(x[labels > 0], labels[labels > 0])
    merged = clone(relative).fit(x[:100], labels[:100]).merge(clone(relative).fit(x[100:], labels[100:]))
    np.save(tmp_path / "rows.npy", x)
    with blocks.settings(block_rows=17, n_threads=3):
        mapped = clone(relative).fit(np.load(tmp_path / "rows.npy", mmap_mode="r"), labels)
    for other in (by_class, merged, mapped):
        assert_close(other.atypicality(x), whole, 6)


@pytest.mark.parametrize(("dtype", "precision", "digits"), [("float64", "float64", 1e-9), ("float32", "float32", 1e-5)])
def test_an_offset_costs_nothing(dtype, precision, digits, rows):
    x = np.round(rows[0] * 64) / 64 + 4096.0  # exact in float32, whose centre is then not exact
    expected = reference(x, rows[1], x)
    found = RelativeAtypicality(precision=precision).fit(x.astype(dtype), rows[1]).atypicality(x.astype(dtype))
    assert_close(found, expected, 6, digits)


def test_a_fit_where_the_arrays_are_is_that_of_the_host(rows, put):
    x, labels = rows
    host = RelativeAtypicality(normalize="l2").fit(x, labels).atypicality(x)
    device = RelativeAtypicality(normalize="l2").fit(put(x), labels)
    assert_close(np.asarray(device.atypicality(put(x))), host, 6)


def test_from_statistics_is_the_fitted_estimator(rows):
    x, labels = rows
    fitted = RelativeAtypicality().fit(x, labels)
    parts = (fitted.counts_, fitted.means_, fitted.covariance_)
    assert_close(RelativeAtypicality.from_statistics(*parts).atypicality(x), fitted.atypicality(x), 6)
    with pytest.raises(ValueError, match="marginal must be False for RelativeAtypicality; got True"):
        RelativeAtypicality.from_statistics(*parts, marginal=True)
    with pytest.raises(ValueError, match="covariance must be 'tied' for RelativeAtypicality; got 'diagonal'"):
        RelativeAtypicality.from_statistics(*parts[:2], np.ones((4, 6)))


# -- rows that say little ----------------------------------------------------------------------------------------------


def test_a_constant_column_is_ignored_with_a_warning(rows, rng):
    x, labels = rows
    flat = np.c_[x, np.full(len(x), 7.0)]
    with pytest.warns(UserWarning, match="rank 6 of 7"):
        relative = RelativeAtypicality().fit(flat, labels)
    queries = np.c_[x, rng.standard_normal(len(x))]
    assert_close(relative.atypicality(queries), reference(x, labels, x), 6)


def test_a_column_that_varies_between_classes_alone_is_in_neither_distance(rows):
    # within a class it is constant, so there is no distance to a class in it; the background must not count it either
    x, labels = rows
    with pytest.warns(UserWarning, match="rank 6 of 7"):
        relative = RelativeAtypicality().fit(np.c_[x, labels], labels)
    assert_close(relative.atypicality(np.c_[x, 99.0 * labels]), reference(x, labels, x), 6)


def test_fewer_rows_than_columns_work_on_what_varies_and_with_shrinkage(rng):
    x, labels = make_rows(rng, n=20, d=30, k=2)
    with pytest.warns(UserWarning, match="rank 18 of 30"):
        assert np.isfinite(RelativeAtypicality().fit(x, labels).atypicality(x)).all()
    shrunk = RelativeAtypicality(shrinkage=0.3).fit(x, labels)
    assert_close(shrunk.atypicality(x), reference(x, labels, x, shrunk.covariance_), 30)


def test_a_class_with_one_row_works_beside_larger_ones(rows):
    x, labels = rows
    labels = np.where(np.arange(len(x)) == 5, 9, labels)
    assert_close(RelativeAtypicality().fit(x, labels).atypicality(x), reference(x, labels, x), 6)
    with pytest.raises(ValueError, match="embeddings must vary within a class"):
        RelativeAtypicality().fit(x, np.arange(len(x)))


def test_one_class_is_its_own_background(rows):
    x, labels = rows
    with pytest.raises(ValueError, match="at least two classes for RelativeAtypicality; got one"):
        RelativeAtypicality().fit(x, np.zeros(len(x), int))
    part = RelativeAtypicality().partial_fit(x[labels == 0], labels[labels == 0])  # more may come
    with pytest.raises(ValueError, match="at least two classes"):
        part.atypicality(x)
    with pytest.raises(TypeError, match="other must be a RelativeAtypicality; got GaussianAtypicality"):
        RelativeAtypicality().fit(x, labels).merge(GaussianAtypicality().fit(x, labels))


@pytest.mark.parametrize("n_classes", [4, 20])
@pytest.mark.parametrize("name", ["RelativeAtypicality()", *(f"{kind}Atypicality(normalize='l2')" for kind in KINDS)])
def test_two_densities_from_one_whitened_row_are_those_of_each_by_itself(name, n_classes, rng):
    labels = np.arange(600) % n_classes
    x = 2.0 + rng.standard_normal((n_classes, 6))[labels] + rng.standard_normal((600, 6)) * np.arange(1, 7)
    family = DensityFamily().fit(x, labels)
    chosen, gaussian = family.members_[name], family.members_["GaussianAtypicality()"]
    two = TwoDensities.of(chosen.formula().linear(), gaussian.formula())
    assert (two.roots is None) == (n_classes == 4 and "Relative" in name)  # 4 classes have their scores mixed instead
    rows = np.concatenate([x, 30 * x[:20]])
    products = two.products(np, rows)
    assert_close(two.atypicality(np, products)[:, 0], chosen.atypicality(rows), 6)
    densities = chosen.class_log_density(rows)
    found = two.class_log_density(np, products)
    np.testing.assert_array_equal(two.top(products)[:, 0], found.max(axis=1))
    below = [part - part.max(axis=1, keepdims=True) for part in (found, densities)]
    assert_close(*below, np.abs(densities).max())
    own = -gaussian.class_log_density(rows)[np.arange(620), densities.argmax(axis=1)]
    assert_close(two.covariate(np, products)[:, 0], own, 6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [4, 20])
def test_products_in_buffers_are_those_in_new_memory(n_classes, dtype, rng):
    labels = np.arange(1200) % n_classes
    x = (2.0 + rng.standard_normal((n_classes, 130))[labels] + rng.standard_normal((1200, 130))).astype(dtype)
    members, given = DensityFamily().fit(x, labels).members_, x.copy()
    formulas = [one.formula() for one in members.values()]
    gaussian = members["GaussianAtypicality()"].formula()
    formulas += [one.linear() for one in formulas]
    units = [members[f"{kind}Atypicality(normalize='l2')"].formula() for kind in KINDS]
    formulas += [TwoDensities.of(one.linear(), gaussian) for one in units]
    workspace = blocks.Workspace()
    for formula in formulas:
        for rows in (x, x[:100]):  # the second finds what the first has left
            with workspace.borrow() as buffers:
                own = formula.products(np, rows, buffers)
                for one, other in zip(own, formula.products(np, rows), strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-11 * np.abs(other).max())
    np.testing.assert_array_equal(x, given)


def test_what_cannot_share_a_product_has_its_own(rng):
    x = rng.standard_normal((300, 6)) @ rng.standard_normal((6, 8))  # 2 directions in which no row varies
    labels = np.arange(300) % 20
    with pytest.warns(UserWarning, match="rank 6 of 8"):
        family = DensityFamily().fit(x, labels)
    chosen, gaussian = (family.members_[name] for name in ("RelativeAtypicality()", "GaussianAtypicality()"))
    two = TwoDensities.of(chosen.formula().linear(), gaussian.formula())
    assert two.roots is None
    assert_close(two.atypicality(np, two.products(np, x))[:, 0], chosen.atypicality(x), 6)
