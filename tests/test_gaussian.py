"""GaussianAtypicality: equal to SciPy where that is defined, exact under offsets, merges, blocks and threads."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import load_outputs, needs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf, oas
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError

from atypicality import GaussianAtypicality, blocks
from atypicality.density.covariance import triangular_whitening, whiten
from atypicality.density.statistics import gather_statistics, merge_statistics

COVARIANCES = ["tied", "full", "diagonal"]
SHRINKAGES = [None, "ledoit-wolf", "oas", 0.2]


def make_rows(rng, n=400, d=5, k=3, *, spread=2.0, offset=0.0):
    """Rows of k Gaussian classes with mixed axes; every class has at least n / (2 k) rows."""
    labels = np.r_[np.repeat(np.arange(k), n // (2 * k)), rng.integers(0, k, n - k * (n // (2 * k)))]
    mixing = rng.uniform(0.5, 2.0, d) * np.linalg.qr(rng.standard_normal((d, d)))[0]
    return offset + rng.standard_normal((n, d)) @ mixing + spread * rng.standard_normal((k, d))[labels], labels


def covariances(x, labels, kind):
    """Maximum-likelihood covariance of each class (k, d, d), two passes in long double: the reference."""
    x, classes = np.asarray(x, np.longdouble), np.unique(labels)
    centred = x - np.stack([x[labels == y].mean(axis=0) for y in classes])[np.searchsorted(classes, labels)]
    tied = centred.T @ centred / len(x)
    own = [centred[labels == y].T @ centred[labels == y] / (labels == y).sum() for y in classes]
    chosen = {"tied": [tied] * classes.size, "full": own, "diagonal": [np.diag(np.diag(c)) for c in own]}[kind]
    return np.array(chosen, np.float64)


def reference(x, labels, queries, kind="tied"):
    """Class log-densities by SciPy, rows and means subtracted in long double so that an offset costs nothing."""
    x, queries = np.asarray(x, np.longdouble), np.asarray(queries, np.longdouble)
    columns = [
        multivariate_normal(np.zeros(x.shape[1]), cov, allow_singular=True).logpdf(
            np.asarray(queries - x[labels == y].mean(axis=0), np.float64)
        )
        for y, cov in zip(np.unique(labels), covariances(x, labels, kind), strict=True)
    ]
    return np.stack(columns, axis=1)


def assert_close(scores, expected, d, tolerance):
    """Within a tolerance relative to max(|score|, d): the promise of the library."""
    assert np.max(np.abs(scores - expected) / np.maximum(np.abs(expected), d)) <= tolerance


# -- what it computes ------------------------------------------------------------------------------------------------


def test_two_squares_by_hand():
    # both classes: corners of a square of side 2, so the covariance is the identity; (1, 3) is 2 away from (1, 1)
    square = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])
    gaussian = GaussianAtypicality().fit(np.concatenate([square, square + 8.0]), ["a"] * 4 + ["b"] * 4)
    np.testing.assert_allclose(gaussian.covariance_, np.eye(2))
    np.testing.assert_allclose(gaussian.means_, [[1.0, 1.0], [9.0, 9.0]])
    np.testing.assert_allclose(gaussian.atypicality([[1.0, 3.0]]), np.log(2 * np.pi) + 2.0)
    np.testing.assert_allclose(
        gaussian.class_log_density([[1.0, 3.0]]), [[-np.log(2 * np.pi) - 2, -np.log(2 * np.pi) - 50]]
    )
    assert gaussian.classes_.tolist() == ["a", "b"]
    assert gaussian.counts_.tolist() == [4, 4]
    assert gaussian.rank_ == 2


@pytest.mark.parametrize("kind", COVARIANCES)
def test_equals_scipy(kind, rng):
    x, labels = make_rows(rng)
    queries = x[:60] + rng.standard_normal((60, 5))
    expected = reference(x, labels, queries, kind)
    gaussian = GaussianAtypicality(kind).fit(x, labels)
    assert_close(gaussian.class_log_density(queries), expected, 5, 1e-10)
    assert_close(gaussian.atypicality(queries), -expected.max(axis=1), 5, 1e-10)
    prior = np.log(np.bincount(labels) / labels.size)
    marginal = GaussianAtypicality(kind, marginal=True).fit(x, labels)
    assert_close(marginal.atypicality(queries), -logsumexp(expected + prior, axis=1), 5, 1e-10)
    own = covariances(x, labels, kind)
    expected_covariance = {"tied": own[0], "full": own, "diagonal": np.diagonal(own, axis1=1, axis2=2)}[kind]
    np.testing.assert_allclose(gaussian.covariance_, expected_covariance, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(("dtype", "scale"), [("float64", 1.0), ("float32", 1.0), ("float16", 50.0)])
@pytest.mark.parametrize("kind", COVARIANCES)
def test_an_offset_of_1e4_costs_nothing(kind, dtype, scale, precision, rng):
    x, labels = make_rows(rng, 600, 12, spread=1.0)
    x = (scale * x + 1e4).astype(dtype)  # float16 has steps of 8 there: the rounded rows are what is scored
    expected = reference(x, labels, x[:100], kind)
    gaussian = GaussianAtypicality(kind, precision=precision).fit(x, labels)
    # float64: far inside the promised 1e-6. float32: products keep 24 bits, and the condition number here is below 100
    assert_close(gaussian.atypicality(x[:100]), -expected.max(axis=1), 12, 1e-9 if precision == "float64" else 3e-6)


@pytest.mark.parametrize("make", ["fortran", "strided", "read-only", "memory map", "big-endian", "integers", "list"])
def test_any_layout_of_the_same_numbers(make, rng, tmp_path):
    x, labels = make_rows(rng, 200, 4)
    x = np.round(8 * x)
    wide = np.repeat(x, 2, axis=1)
    frozen = x.copy()
    frozen.flags.writeable = False
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    kinds = {
        "fortran": np.asfortranarray(x),
        "strided": wide[:, ::2],
        "read-only": frozen,
        "memory map": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "big-endian": x.astype(">f8"),
        "integers": x.astype(int),
        "list": x.tolist(),
    }
    expected = GaussianAtypicality().fit(x, labels).atypicality(x)
    for precision, tolerance in (("float64", 1e-12), ("float32", 1e-5)):
        gaussian = GaussianAtypicality(precision=precision).fit(kinds[make], labels.tolist())
        assert_close(gaussian.atypicality(kinds[make]), expected, 4, tolerance)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_moving_and_mixing_axes_moves_all_scores_alike(kind, rng):
    # density of A x + b is that of x divided by |det A|; a diagonal covariance allows only a diagonal A
    x, labels = make_rows(rng)
    mixing = np.diag(rng.uniform(0.5, 2.0, 5)) if kind == "diagonal" else rng.standard_normal((5, 5)) + 3 * np.eye(5)
    before = GaussianAtypicality(kind).fit(x, labels).atypicality(x)
    after = GaussianAtypicality(kind).fit(x @ mixing + 7.0, labels).atypicality(x @ mixing + 7.0)
    np.testing.assert_allclose(after, before + np.linalg.slogdet(mixing)[1], rtol=1e-8)


def test_order_of_rows_and_names_of_classes_do_not_matter(rng):
    x, labels = make_rows(rng)
    order = rng.permutation(len(x))
    plain = GaussianAtypicality().fit(x, labels)
    renamed = GaussianAtypicality().fit(x[order], np.array(["c", "a", "b"])[labels[order]])
    np.testing.assert_allclose(renamed.atypicality(x), plain.atypicality(x), rtol=1e-10)
    np.testing.assert_allclose(renamed.class_log_density(x), plain.class_log_density(x)[:, [1, 2, 0]], rtol=1e-9)


@pytest.mark.parametrize("labels", [[-5, 300, -5, 300, -5, 300], [True, False] * 3, ["b", "a"] * 3])
def test_labels_of_any_kind_are_kept_sorted(labels, rng):
    gaussian = GaussianAtypicality().fit(rng.standard_normal((6, 2)), labels)
    assert gaussian.classes_.tolist() == sorted(set(labels))
    assert gaussian.counts_.tolist() == [3, 3]
    assert GaussianAtypicality().fit(np.arange(4.0)[:, None], np.array([2**64 - 1, 0] * 2, np.uint64)).counts_.size == 2


def test_classes_far_apart_and_an_outlier_first_cost_no_digits(rng):
    x, labels = make_rows(rng, 300, 4, spread=1e5)
    x[0] += 1e2
    expected = covariances(x, labels, "tied")[0]
    for precision, tolerance in (("float64", 1e-10), ("float32", 1e-5)):
        found = GaussianAtypicality(precision=precision).fit(x, labels).covariance_
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * np.trace(expected))


# -- one fit, however the rows come ----------------------------------------------------------------------------------


def options(kind, shrinkage):
    return {"covariance": kind, "shrinkage": shrinkage if kind != "diagonal" or shrinkage == 0.2 else None}


def assert_same_estimate(a, b, tolerance):
    assert a.classes_.tolist() == b.classes_.tolist()
    assert a.counts_.tolist() == b.counts_.tolist()
    scale = np.abs(b.covariance_).max()
    np.testing.assert_allclose(a.means_, b.means_, rtol=tolerance, atol=tolerance * np.sqrt(scale))
    np.testing.assert_allclose(a.covariance_, b.covariance_, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("shrinkage", SHRINKAGES)
@pytest.mark.parametrize("kind", COVARIANCES)
def test_merge_and_partial_fit_equal_one_fit(kind, shrinkage, rng):
    x, labels = make_rows(rng, offset=1e4)
    order = rng.permutation(len(x))
    x, labels = x[order], labels[order]
    whole = GaussianAtypicality(**options(kind, shrinkage)).fit(x, labels)
    parts = [GaussianAtypicality(**options(kind, shrinkage)).fit(x[i::2], labels[i::2]) for i in (0, 1)]
    merged = parts[0].merge(parts[1])
    streamed = GaussianAtypicality(**options(kind, shrinkage))
    for i in range(0, len(x), 37):
        assert streamed.partial_fit(x[i : i + 37], labels[i : i + 37]) is streamed
    for estimate in (merged, streamed):
        assert_same_estimate(estimate, whole, 1e-10)
        np.testing.assert_allclose(estimate.atypicality(x), whole.atypicality(x), rtol=1e-10)
    assert parts[0].counts_.sum() == 200  # merging made a new estimator and left its parts alone


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 5), min_size=2, max_size=30),
    cut=st.integers(1, 29),
    layout=st.sampled_from(["pooled", "full", "diagonal"]),
    offset=st.sampled_from([0.0, 1e4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_parts_may_have_seen_different_classes(labels, cut, layout, offset, seed):
    labels = np.sort(labels)  # cut anywhere: most classes stand on one side only
    x = offset + np.random.default_rng(seed).standard_normal((labels.size, 3)) + labels[:, None]
    gather = {"layout": layout, "precision": "float64", "moments": layout == "full"}
    cut = min(cut, labels.size - 1)
    whole = gather_statistics(x, labels, **gather)
    first, second = (gather_statistics(x[s], labels[s], **gather) for s in (slice(cut), slice(cut, None)))
    for merged in (merge_statistics(first, second), merge_statistics(second, first)):
        assert merged.counts.tolist() == whole.counts.tolist()
        np.testing.assert_allclose(merged.means, whole.means, rtol=1e-10)
        for name in ("scatter", "third", "fourth"):  # sums over up to 30 rows of size 10: 1e-10 of that
            if getattr(whole, name) is not None:
                np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("kind", COVARIANCES)
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-10), ("float32", 1e-6)])
def test_blocks_threads_and_parts_change_nothing(kind, precision, tolerance, rng):
    x, labels = make_rows(rng, 2000, 8, offset=1e3)
    whole = GaussianAtypicality(kind, precision=precision).fit(x, labels)
    scores, densities = whole.atypicality(x), whole.class_log_density(x)
    for n_threads, block_rows in ((1, 7), (3, 64), (2, 5000)):
        with blocks.settings(n_threads=n_threads, block_rows=block_rows):
            again = GaussianAtypicality(kind, precision=precision).fit(x, labels)
            assert_close(again.atypicality(x), scores, 8, tolerance)
            assert_close(whole.class_log_density(x), densities, 8, tolerance)
    a, b = (GaussianAtypicality(kind, precision=precision).fit(x[i::2], labels[i::2]) for i in (0, 1))
    assert_close(a.merge(b).atypicality(x), scores, 8, tolerance)


def test_merging_by_class_and_in_any_order(rng):
    x, labels = make_rows(rng, 300, 4, k=5)
    parts = [GaussianAtypicality().partial_fit(x[labels == y], labels[labels == y]) for y in (3, 0, 4, 1, 2)]
    total = parts[0]
    for part in parts[1:]:
        total = total.merge(part)
    assert_same_estimate(total, GaussianAtypicality().fit(x, labels), 1e-10)


# -- shrinkage, projection, statistics -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rule"), [("ledoit-wolf", ledoit_wolf), ("oas", oas)])
def test_shrinkage_rules_equal_scikit_learn(name, rule, rng):
    x, labels = make_rows(rng, 60, 8, offset=1e3)
    means = np.stack([x[labels == y].mean(axis=0) for y in range(3)])
    tied = GaussianAtypicality(shrinkage=name).fit(x, labels)
    np.testing.assert_allclose(tied.covariance_, rule(x - means[labels], assume_centered=True)[0], rtol=1e-9)
    full = GaussianAtypicality("full", shrinkage=name).fit(x, labels)
    for y in range(3):
        expected = rule(x[labels == y] - means[y], assume_centered=True)[0]
        np.testing.assert_allclose(full.covariance_[y], expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("covariance", ["tied", "full"])
@pytest.mark.parametrize("shrinkage", [None, "oas", 0.1])
@pytest.mark.parametrize("scale", [1e-140, 1e-100, 1e100, 1e150])
def test_a_scale_moves_all_scores_by_its_logarithm(covariance, shrinkage, scale, rng):
    embeddings, labels = rng.normal(size=(300, 5)), rng.integers(0, 3, 300)
    density = GaussianAtypicality(covariance, shrinkage=shrinkage)
    expected = density.fit(embeddings, labels).atypicality(embeddings) + 5 * np.log(scale)
    found = density.fit(scale * embeddings, labels).atypicality(scale * embeddings)
    np.testing.assert_allclose(found, expected, rtol=1e-12)  # about 1e3: the last digits of a float64


@pytest.mark.parametrize(("scale", "size"), [(1e-100, "small"), (1e100, "large"), (1e150, "large")])
def test_fourth_powers_that_do_not_fit_are_refused(scale, size, rng):
    embeddings, labels = scale * rng.normal(size=(300, 5)), rng.integers(0, 3, 300)
    with pytest.raises(ValueError, match=f"fourth powers that fit .*ledoit-wolf.* too {size}.*Rescale"):
        GaussianAtypicality(shrinkage="ledoit-wolf").fit(embeddings, labels)


def test_a_number_as_shrinkage_mixes_in_the_mean_variance(rng):
    x, labels = make_rows(rng)
    for kind in COVARIANCES:
        plain = GaussianAtypicality(kind).fit(x, labels).covariance_
        shrunk = GaussianAtypicality(kind, shrinkage=0.25).fit(x, labels).covariance_
        target = plain.mean(axis=1, keepdims=True) * np.ones(5) if kind == "diagonal" else None
        if target is None:
            target = np.trace(plain, axis1=-2, axis2=-1)[..., None, None] / 5 * np.eye(5)
        np.testing.assert_allclose(shrunk, 0.75 * plain + 0.25 * target, rtol=1e-12, atol=1e-14)
        assert_same_estimate(
            GaussianAtypicality(kind, shrinkage=0).fit(x, labels), GaussianAtypicality(kind).fit(x, labels), 1e-14
        )


@pytest.mark.parametrize("kind", COVARIANCES)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_components_are_those_of_a_projection_beforehand(kind, precision, rng):
    x, labels = make_rows(rng, 500, 7, offset=10.0)
    gaussian = GaussianAtypicality(kind, n_components=3, precision=precision).fit(x, labels)
    pca = PCA(3, svd_solver="full").fit(x)
    projected = pca.transform(x)
    beforehand = GaussianAtypicality(kind).fit(projected, labels)
    tolerance = 1e-9 if precision == "float64" else 3e-6
    assert_close(gaussian.atypicality(x), beforehand.atypicality(projected), 3, tolerance)
    assert gaussian.means_.shape == (3, 3)
    assert gaussian.components_.shape == (3, 7)
    np.testing.assert_allclose(np.abs(np.vecdot(gaussian.components_, pca.components_)), 1.0, rtol=1e-5)
    parts = [GaussianAtypicality(kind, n_components=3).fit(x[i::2], labels[i::2]) for i in (0, 1)]
    assert_close(parts[0].merge(parts[1]).atypicality(x), beforehand.atypicality(projected), 3, 1e-9)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_from_statistics_is_the_fitted_estimator(kind, rng):
    x, labels = make_rows(rng)
    fitted = GaussianAtypicality(kind).fit(x, labels)
    made = GaussianAtypicality.from_statistics(fitted.counts_, fitted.means_, fitted.covariance_)
    assert made.get_params() == fitted.get_params()
    np.testing.assert_allclose(made.atypicality(x), fitted.atypicality(x), rtol=1e-10)
    both = made.merge(GaussianAtypicality(kind).fit(x + 1, labels))
    whole = GaussianAtypicality(kind).fit(np.concatenate([x, x + 1]), np.r_[labels, labels])
    np.testing.assert_allclose(both.atypicality(x), whole.atypicality(x), rtol=1e-10)


def test_from_statistics_takes_options_and_names():
    made = GaussianAtypicality.from_statistics(
        [3, 1], [[0.0, 0.0], [4.0, 0.0]], [[1.0, 0.0], [0.0, 3.0]], classes=["cat", "dog"], shrinkage=0.5, marginal=True
    )
    np.testing.assert_allclose(made.covariance_, [[1.5, 0.0], [0.0, 2.5]])
    expected = 0.75 * multivariate_normal([0, 0], made.covariance_).pdf([1, 1])
    expected += 0.25 * multivariate_normal([4, 0], made.covariance_).pdf([1, 1])
    np.testing.assert_allclose(made.atypicality([[1.0, 1.0]]), [-np.log(expected)])


# -- singular covariances --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("make", ["constant column", "duplicated column", "fewer rows than columns"])
def test_singular_covariances_say_so_and_equal_scipy_on_their_support(make, precision, rng):
    x, labels = make_rows(rng, 90, 5, offset=100.0)
    if make == "constant column":
        x = np.c_[x, np.full(len(x), 0.1)]
    elif make == "duplicated column":
        x = np.c_[x, x[:, 0]]
    else:
        x, labels = np.c_[x, rng.standard_normal((90, 95))][:12], np.arange(12) % 3
    rank = 9 if make == "fewer rows than columns" else 5  # three means take three of twelve directions
    with pytest.warns(UserWarning, match=rf"rank {rank} of {x.shape[1]} .*shrinkage='columns'"):
        gaussian = GaussianAtypicality(precision=precision).fit(x, labels)
    assert gaussian.rank_ == rank
    means = np.stack([x[labels == y].mean(axis=0) for y in range(3)])
    for y in range(3):  # a row and its own class differ within the support
        rows = x[labels == y]
        law = multivariate_normal(means[y], covariances(x, labels, "tied")[0], allow_singular=True)
        assert_close(
            gaussian.class_log_density(rows)[:, y], law.logpdf(rows), 5, 1e-8 if precision == "float64" else 1e-4
        )
    GaussianAtypicality(shrinkage="oas", precision=precision).fit(x, labels)  # full rank: no warning


def test_full_covariances_of_small_classes_say_that_they_cannot_be_compared(rng):
    with pytest.warns(UserWarning, match="covariance of 2 of 2 classes has rank 2 of 4.*covariance='tied'"):
        gaussian = GaussianAtypicality("full").fit(rng.standard_normal((6, 4)), [0, 0, 0, 1, 1, 1])
    assert gaussian.rank_.tolist() == [2, 2]


@pytest.mark.parametrize("kind", COVARIANCES)
def test_columns_of_very_different_scale_keep_full_rank(kind, rng):
    # an absolute jitter of 1e-6 would drown the last column, whose variance is 1e-10
    x, labels = make_rows(rng, 200, 4)
    scale = np.array([1.0, 10.0, 0.1, 1e-5])
    plain, scaled = (GaussianAtypicality(kind).fit(rows, labels) for rows in (x, x * scale))
    assert np.all(scaled.rank_ == np.array(4))
    np.testing.assert_allclose(scaled.atypicality(x * scale), plain.atypicality(x) + np.log(scale).sum(), rtol=1e-6)


def test_a_class_with_one_row_and_a_single_class_work_when_tied(rng):
    x, labels = make_rows(rng, 100, 3)
    with_lone = GaussianAtypicality().fit(np.r_[x, [[50.0, 0.0, 0.0]]], np.r_[labels, 9])
    assert with_lone.counts_.tolist()[-1] == 1
    peak = -0.5 * np.linalg.slogdet(2 * np.pi * with_lone.covariance_)[1]  # the lone row is its own class mean
    np.testing.assert_allclose(with_lone.atypicality([[50.0, 0.0, 0.0]]), -peak)
    one = GaussianAtypicality().fit(x, np.zeros(100, int))
    law = multivariate_normal(x.mean(axis=0), np.cov(x.T, bias=True))
    np.testing.assert_allclose(one.atypicality(x), -law.logpdf(x), rtol=1e-9)


# -- an honest citizen -----------------------------------------------------------------------------------------------


def test_scikit_learn_rules(rng):
    x, labels = make_rows(rng, 100, 3)
    gaussian = GaussianAtypicality("full", shrinkage=0.1, marginal=True, precision="float32")
    with pytest.raises(NotFittedError):
        gaussian.atypicality(x)
    with pytest.raises(NotFittedError):
        gaussian.merge(gaussian)
    assert not hasattr(gaussian, "means_")
    assert gaussian.fit(x, labels) is gaussian
    assert clone(gaussian).get_params() == gaussian.get_params()
    assert not hasattr(clone(gaussian), "counts_")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(gaussian)).atypicality(x), gaussian.atypicality(x))
    assert gaussian.atypicality(x).dtype == np.float64
    before = gaussian.atypicality(x)
    for bad in ((x * np.nan, labels), (x, labels[:5]), (np.ones_like(x), labels)):
        with pytest.raises(ValueError, match=r"NaN|one entry per row|must vary"):
            gaussian.fit(*bad)
        np.testing.assert_array_equal(gaussian.atypicality(x), before)  # a failed fit leaves what was there
    with pytest.raises(ValueError, match="NaN"):
        gaussian.partial_fit(x * np.nan, labels)
    np.testing.assert_array_equal(gaussian.atypicality(x), before)
    again = gaussian.fit(x + 1, labels).atypicality(x + 1)
    np.testing.assert_allclose(again, before, rtol=1e-4)


def test_partial_fit_is_silent_until_the_covariance_is_needed(rng):
    x, labels = make_rows(rng, 200, 6)
    gaussian = GaussianAtypicality().partial_fit(x[:1], labels[:1]).partial_fit(x[1:3], labels[1:3])
    with pytest.warns(UserWarning, match="rank"):
        gaussian.atypicality(x)
    assert gaussian.partial_fit(x[3:], labels[3:]).rank_ == 6


def test_threads_may_share_a_fitted_estimator(rng):
    x, labels = make_rows(rng, 3000, 16)
    gaussian = GaussianAtypicality().partial_fit(x, labels)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda i: gaussian.atypicality(x[i : i + 2500]), range(0, 400, 50)))
    expected = gaussian.atypicality(x)
    for i, result in zip(range(0, 400, 50), results, strict=True):
        np.testing.assert_allclose(result, expected[i : i + 2500], rtol=1e-10)


def test_a_row_alone_scores_as_in_a_batch(rng):
    x, labels = make_rows(rng, 300, 16)
    gaussian = GaussianAtypicality().fit(x, labels)
    alone = np.concatenate([gaussian.atypicality(row[None]) for row in x[:20]])
    np.testing.assert_allclose(alone, gaussian.atypicality(x)[:20], rtol=1e-10)


@needs("torch")
def test_torch_in_torch_out(rng):
    import torch

    x, labels = make_rows(rng, 100, 3)
    gaussian = GaussianAtypicality().fit(torch.tensor(x), torch.tensor(labels))
    scores = gaussian.atypicality(torch.tensor(x))
    assert isinstance(scores, torch.Tensor)
    np.testing.assert_array_equal(scores.numpy(), gaussian.atypicality(x))
    assert gaussian.class_log_density(torch.tensor(x, dtype=torch.bfloat16)).dtype == torch.float64


def test_accuracy_falls_with_atypicality_on_cifar10():
    test = load_outputs("cifar10-wrn28-10", "test")
    correct = test["logits"].argmax(axis=1) == test["labels"]
    for precision in ("float64", "float32"):
        statistics = load_outputs("cifar10-wrn28-10", "train_statistics")
        gaussian = GaussianAtypicality.from_statistics(**statistics, precision=precision)
        order = gaussian.atypicality(test["embeddings"]).argsort()
        fifths = [correct[part].mean() for part in np.array_split(order, 5)]
        assert fifths[0] > 0.99
        assert 0.78 < fifths[-1] < 0.82
        assert gaussian.rank_ == 640


def test_statistics_of_real_rows_are_reproduced_from_the_rows():
    train, statistics = (load_outputs("cifar10lt-wrn28-4", part) for part in ("train", "train_statistics"))
    gaussian = GaussianAtypicality().fit(train["embeddings"], train["labels"])
    # stored in float32, computed from rows that were then rounded to float16
    np.testing.assert_array_equal(gaussian.counts_, statistics["counts"])
    np.testing.assert_allclose(gaussian.means_, statistics["means"], atol=1e-5)
    np.testing.assert_allclose(gaussian.covariance_, statistics["covariance"], atol=1e-6)


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.fixture
def fitted(rng):
    return GaussianAtypicality().fit(*make_rows(rng, 50, 3))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", COVARIANCES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_nan_and_infinity_are_refused_with_their_rows(value, kind, dtype, rng):
    x, labels = make_rows(rng, 50, 3)
    gaussian = GaussianAtypicality(kind).fit(x, labels)
    bad = x.astype(dtype)
    bad[[7, 31], 1] = value
    for call in (lambda: GaussianAtypicality(kind).fit(bad, labels), lambda: gaussian.atypicality(bad)):
        with pytest.raises(ValueError, match=r"embeddings must be finite; rows 7, 31 hold NaN or infinity"):
            call()
    with blocks.settings(block_rows=4), pytest.raises(ValueError, match="row 7 holds NaN"):
        gaussian.class_log_density(bad)


def test_squares_that_overflow_are_refused(fitted, rng):
    x, labels = make_rows(rng, 50, 3)
    with pytest.raises(ValueError, match="squares that fit into float64"):
        GaussianAtypicality().fit(1e200 * x, labels)
    with pytest.raises(ValueError, match=r"squares that fit into float32.*precision='float64'"):
        GaussianAtypicality(precision="float32").fit(1e30 * x, labels)
    with pytest.raises(ValueError, match="squares that fit into float64"):
        fitted.atypicality(1e200 * x)
    huge = GaussianAtypicality().fit(1e30 * x, labels)
    np.testing.assert_allclose(huge.covariance_, 1e60 * GaussianAtypicality().fit(x, labels).covariance_, rtol=1e-9)
    tiny = GaussianAtypicality().fit((1e-38 * x).astype(np.float64), labels)
    assert tiny.rank_ == 3


BAD_FITS = {
    "no rows": (np.empty((0, 3)), [], ValueError, r"at least one row to fit on; got shape \(0, 3\)"),
    "no columns": (np.empty((4, 0)), [0, 0, 1, 1], ValueError, "at least one column"),
    "one row": ([[1.0, 2.0]], [0], ValueError, "at least two rows"),
    "one dimension": ([1.0, 2.0], [0, 1], ValueError, r"two-dimensional.*\.reshape\(1, -1\)"),
    "lengths": ([[1.0], [2.0]], [0, 1, 1], ValueError, "labels must have one entry per row; got 3 for 2 rows"),
    "equal rows": (np.full((6, 2), 0.1), [0, 1, 0, 1, 0, 1], ValueError, "all rows of each class are equal"),
    "one row each": ([[1.0], [2.0]], [0, 1], ValueError, "must vary within a class"),
    "objects": (np.array([[object()], [None]]), [0, 1], TypeError, "embeddings must hold real numbers"),
    "text": ([["a"], ["b"]], [0, 1], TypeError, "embeddings must hold real numbers"),
    "complex": (np.ones((2, 1), complex), [0, 1], TypeError, "embeddings must hold real numbers"),
    "ragged": ([[1.0], [2.0, 3.0]], [0, 1], ValueError, "rows of equal length"),
    "masked": (np.ma.ones((2, 1)), [0, 1], TypeError, "masked"),
    "float labels": ([[1.0], [2.0]], [0.5, 1.5], TypeError, "labels must be all integers"),
    "mixed labels": ([[1.0], [2.0]], [1, "a"], TypeError, "labels must be all integers"),
    "one-hot labels": ([[1.0], [2.0]], [[0, 1], [1, 0]], ValueError, "labels must be one-dimensional"),
}


@pytest.mark.parametrize("name", BAD_FITS)
def test_bad_rows_and_labels(name):
    rows, labels, error, message = BAD_FITS[name]
    with pytest.raises(error, match=message):
        GaussianAtypicality().fit(rows, labels)


def test_sparse_matrices_are_refused(fitted):
    from scipy.sparse import csr_array

    for call in (lambda x: GaussianAtypicality().fit(x, [0, 0, 1]), fitted.atypicality):
        with pytest.raises(TypeError, match=r"dense array; got a sparse.*toarray"):
            call(csr_array(np.eye(3)))


def test_own_covariances_need_two_rows_of_every_class(rng):
    for kind in ("full", "diagonal"):
        with pytest.raises(ValueError, match=r"two rows for a covariance of its own; class 'b' has one.*tied"):
            GaussianAtypicality(kind).fit(rng.standard_normal((4, 2)), ["a", "a", "a", "b"])
        with pytest.raises(ValueError, match="all rows of class 'b' are equal"):
            GaussianAtypicality(kind).fit([[1.0], [2.0], [4.0], [4.0]], ["a", "a", "b", "b"])


def test_scoring_needs_the_same_width_and_takes_no_rows(fitted):
    with pytest.raises(ValueError, match="must have 3 columns, as many as when it was fitted; got 2"):
        fitted.atypicality(np.ones((4, 2)))
    with pytest.raises(ValueError, match="must have 3 columns"):
        fitted.partial_fit(np.ones((4, 2)), [0, 0, 1, 1])
    assert fitted.atypicality(np.empty((0, 3))).shape == (0,)
    assert fitted.class_log_density(np.empty((0, 3))).shape == (0, 3)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"covariance": "spherical"}, ValueError, "covariance must be one of 'tied', 'full', 'diagonal'"),
        ({"precision": "float16"}, ValueError, "precision must be one of"),
        ({"shrinkage": "lw"}, ValueError, "shrinkage must be one of None, 'ledoit-wolf', 'oas'"),
        ({"shrinkage": 1.5}, ValueError, r"shrinkage must be a finite number in \[0, 1\]"),
        ({"shrinkage": [0.1]}, TypeError, "shrinkage must be a number"),
        ({"marginal": "yes"}, ValueError, "marginal must be one of"),
        ({"n_components": 0}, ValueError, "n_components must be at least 1"),
        ({"n_components": 4}, ValueError, "n_components must be at most the 3 columns"),
        ({"n_components": 1.5}, TypeError, "n_components must be a whole number"),
        ({"n_components": 2, "shrinkage": "ledoit-wolf"}, ValueError, "cannot be combined with n_components"),
        ({"covariance": "diagonal", "shrinkage": "oas"}, ValueError, "None or a number with covariance='diagonal'"),
    ],
)
def test_bad_parameters(parameters, error, message, rng):
    with pytest.raises(error, match=message):
        GaussianAtypicality(**parameters).fit(*make_rows(rng, 50, 3))


def test_merging_needs_estimators_of_the_same_kind(fitted, rng):
    with pytest.raises(TypeError, match="other must be a GaussianAtypicality; got int"):
        fitted.merge(3)
    with pytest.raises(ValueError, match="same covariance; got 'full' against 'tied'"):
        fitted.merge(GaussianAtypicality("full").fit(*make_rows(rng, 50, 3)))
    with pytest.raises(ValueError, match="3 columns too; it saw 4"):
        fitted.merge(GaussianAtypicality().fit(*make_rows(rng, 50, 4)))
    with pytest.raises(TypeError, match="labels must be of the kind seen before"):
        fitted.partial_fit(rng.standard_normal((2, 3)), ["a", "b"])


@pytest.mark.parametrize(
    ("counts", "means", "covariance", "options", "message"),
    [
        ([1, 2], [[0.0], [1.0]], np.eye(2), {}, r"covariance must have shape \(2, 1\) or \(2, 1, 1\) or \(1, 1\)"),
        ([1], [[0.0], [1.0]], [[1.0]], {}, "counts must have one entry per row; got 1 for 2 rows"),
        ([1, 0], [[0.0], [1.0]], [[1.0]], {}, "counts must be whole numbers of at least 1"),
        ([2], [[0.0, 1.0]], [[1.0, 0.5], [0.2, 1.0]], {}, "covariance must be symmetric"),
        ([2], [[0.0, 1.0]], [[1.0, 2.0], [2.0, 1.0]], {}, "no negative eigenvalue; its lowest is -1"),
        ([2], [[0.0, np.nan]], np.eye(2), {}, "means must be finite; row 0"),
        ([2], [[0.0, 1.0]], np.full((2, 2), np.inf), {}, "covariance must be finite"),
        ([2, 2], [[0.0], [1.0]], [[1.0]], {"classes": ["b", "a"]}, "classes must be sorted"),
        ([2, 2], [[0.0], [1.0]], [[1.0]], {"shrinkage": "ledoit-wolf"}, "needs more than these statistics"),
        ([2], [[0.0, 1.0]], np.zeros((2, 2)), {}, "must vary within a class"),
    ],
)
def test_bad_statistics(counts, means, covariance, options, message):
    with pytest.raises(ValueError, match=message):
        GaussianAtypicality.from_statistics(counts, means, covariance, **options)


# -- Cholesky where it is sure, eigenvalues elsewhere ----------------------------------------------------------------


def scatter_of(rng, make, d=8, n=60):
    x = rng.standard_normal((n, d)) + 1e4 * (make == "offset")
    if make == "duplicated column":
        x[:, 3] = x[:, 1]
    elif make == "nearly duplicated column":
        x[:, 3] = x[:, 1] + 1e-9 * rng.standard_normal(n)
    elif make == "constant column":
        x[:, 3] = 0.1
    elif make == "fewer rows than columns":
        x = x[:5]
    u = x - x.mean(axis=0)
    return u.T @ u / len(x), len(x)


@pytest.mark.parametrize(
    ("make", "rank"),
    [
        ("plain", 8),
        ("offset", 8),
        ("duplicated column", 7),
        ("nearly duplicated column", 7),  # its variance is 1e-18 of the others'
        ("constant column", 7),
        ("fewer rows than columns", 4),
    ],
)
def test_the_rank_is_that_of_the_eigenvalues(make, rank, rng):
    covariance, n = scatter_of(rng, make)
    found = whiten(covariance, n, epsilon=np.finfo(float).eps)
    by_eigenvalues = whiten(covariance, n, epsilon=np.finfo(float).eps, factorise=lambda *_: None)
    assert found.rank == by_eigenvalues.rank == rank
    np.testing.assert_allclose(found.log_determinant, by_eigenvalues.log_determinant, rtol=1e-9)
    inverse, other = (whitening.matrix @ whitening.matrix.T for whitening in (found, by_eigenvalues))
    np.testing.assert_allclose(inverse, other, rtol=1e-8, atol=1e-8)
    assert (triangular_whitening(covariance, 1e-12) is not None) == (rank == 8)


@settings(max_examples=50, deadline=None)
@given(log_smallest=st.floats(-18, 0), d=st.integers(2, 12), seed=st.integers(0, 2**32 - 1))
def test_cholesky_never_counts_an_eigenvalue_that_does_not_count(log_smallest, d, seed):
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
    values = np.r_[10.0**log_smallest, rng.uniform(0.5, 1.0, d - 1)]
    covariance = (axes * values) @ axes.T
    covariance = 0.5 * (covariance + covariance.T)
    ranks = [
        whiten(covariance, 100, epsilon=np.finfo(float).eps, **options).rank
        for options in ({}, {"factorise": lambda *_: None})
    ]
    assert ranks[0] == ranks[1]


# What lies outside the directions in which training rows vary


def completed(x, labels, n_components=None):
    """Tied covariance with what it lacks, from eigenvalues: the smallest that counts, or the mean of those left out."""
    within = sum((x[labels == y] - x[labels == y].mean(axis=0)).T @ (x[labels == y] - x[labels == y].mean(axis=0))
                 for y in np.unique(labels)) / len(x)  # fmt: skip
    if n_components is not None:
        _, vectors = np.linalg.eigh(np.cov(x.T, bias=True))
        inside, outside = vectors[:, -n_components:], vectors[:, :-n_components]
        left = np.trace(outside.T @ within @ outside) / outside.shape[1]
        return inside @ (inside.T @ within @ inside) @ inside.T + left * outside @ outside.T
    values, vectors = np.linalg.eigh(within)
    values[values < 1e-9 * values.max()] = values[values > 1e-9 * values.max()].min()
    return (vectors * values) @ vectors.T


RESIDUALS = {"constant columns": (400, 6, 3, None), "fewer rows": (20, 30, 0, None), "components": (300, 6, 0, 2)}


@pytest.mark.parametrize("case", RESIDUALS)
def test_a_residual_completes_the_covariance(case, rng):
    n, d, constant, m = RESIDUALS[case]
    x, labels = np.c_[rng.normal(size=(n, d)) * rng.uniform(1, 3, d), np.ones((n, constant))], np.arange(n) % 2
    gaussian = GaussianAtypicality(n_components=m, residual=True).fit(x, labels)
    new, covariance = rng.normal(size=(50, d + constant)), completed(x, labels, m)
    means = [x[labels == y].mean(axis=0) for y in (0, 1)]
    expected = -np.max([multivariate_normal(mean, covariance).logpdf(new) for mean in means], axis=0)
    np.testing.assert_allclose(gaussian.atypicality(new), expected, rtol=1e-8)
    assert gaussian.rank_ == d + constant


@pytest.mark.parametrize("covariance", ["tied", "full", "diagonal"])
def test_a_residual_sees_what_training_rows_never_did(covariance, rng):
    x, labels = np.c_[rng.normal(size=(200, 3)), np.zeros(200)], np.arange(200) % 2
    off = np.r_[x[0, :3], 5.0]
    seen = GaussianAtypicality(covariance, residual=True).fit(x, labels)
    with pytest.warns(UserWarning, match="rank 3 of 4.*To count them, .* or residual=True"):
        blind = GaussianAtypicality(covariance).fit(x, labels)
    np.testing.assert_allclose(blind.atypicality([off]), blind.atypicality(x[:1]))
    # at least half a squared distance of 25 over the smallest variance, which is below the largest of unit normals, 2
    assert seen.atypicality([off])[0] > seen.atypicality(x[:1])[0] + 25 / 2 / 2


@pytest.mark.parametrize("covariance", ["tied", "full"])
def test_one_more_row_of_the_columns_own_variances(covariance, rng):
    """Against scipy's normal law with (n S + diag(S)) / (n + 1); in other units the law is the same but for those."""
    x, labels = rng.normal(size=(60, 3)), np.repeat([0, 1], 30)
    x = np.c_[x, x[:, 0] - x[:, 1], np.full(60, 0.1)]  # one column depends on others, and one is constant
    parts = [x[labels == y] for y in (0, 1)]
    scatters = [len(part) * np.cov(part.T, bias=True) for part in parts]
    if covariance == "tied":
        scatters = [sum(scatters)] * 2
    n = 60 if covariance == "tied" else 30
    matrices = [(scatter + np.diag([*np.diag(scatter)[:4] / n, 1.0])) / (n + 1) for scatter in scatters]
    new, units = rng.normal(size=(20, 5)), np.array([1e-4, 1.0, 1e7, 3.0, 1.0])
    gaussian = GaussianAtypicality(covariance, shrinkage="columns").fit(x, labels)
    laws = [multivariate_normal(part.mean(axis=0), matrix) for part, matrix in zip(parts, matrices, strict=True)]
    expected = -np.max([law.logpdf(new) for law in laws], axis=0)
    np.testing.assert_allclose(gaussian.atypicality(new), expected, rtol=1e-8)
    other = GaussianAtypicality(covariance, shrinkage="columns").fit(x * units, labels)
    np.testing.assert_allclose(other.atypicality(new * units) - np.log(units).sum(), expected, rtol=1e-8)


def test_a_category_that_was_never_seen_by_hand():
    # S = [[1, -1], [-1, 1]] / 4; along (1, 1) the added row leaves 1 / 4 / (n + 1), and a row of zeros is 1 / 2 off
    x = np.tile(np.eye(2), (50, 1))
    gaussian = GaussianAtypicality(shrinkage="columns").fit(x, np.zeros(100, int))
    seen, new = gaussian.atypicality([[1.0, 0.0], [0.0, 0.0]])
    assert new - seen == pytest.approx((101 / 0.25 - 101 / (100 * 0.5 + 0.25)) / 4)
    with pytest.raises(ValueError, match="shrinkage='columns' cannot be combined with n_components"):
        GaussianAtypicality(shrinkage="columns", n_components=1).fit(x, np.zeros(100, int))


def test_residuals_merge_and_refuse_what_has_no_meaning(rng):
    x, labels = np.c_[rng.normal(size=(200, 3)), np.zeros(200)], np.arange(200) % 2
    make = GaussianAtypicality(residual=True)
    parts = [clone(make).partial_fit(x[s], labels[s]) for s in (slice(90), slice(90, None))]
    whole = clone(make).fit(x, labels).atypicality(x)
    np.testing.assert_allclose(parts[0].merge(parts[1]).atypicality(x), whole, rtol=1e-9)
    with pytest.raises(ValueError, match="other must have the same residual; got False against True"):
        parts[0].merge(GaussianAtypicality().partial_fit(x, labels))
    with pytest.raises(ValueError, match="residual=True with n_components needs covariance='tied' or 'full'"):
        GaussianAtypicality("diagonal", n_components=2, residual=True).fit(x, labels)
    with pytest.raises(ValueError, match="residual must be one of False, True; got 'yes'"):
        GaussianAtypicality(residual="yes").fit(x, labels)


@pytest.mark.parametrize("covariance", ["tied", "diagonal"])
def test_sums_do_not_depend_on_threads_and_blocks_also_where_blocks_lack_classes(covariance, seed):
    rng = np.random.default_rng(seed)
    labels = np.sort(rng.integers(0, 12, 400))  # sorted: a block of 9 rows has one or two of the classes
    x = rng.standard_normal((400, 5)) + 3 * labels[:, None]
    scores = []
    for threads, rows in ((1, 400), (1, 9), (2, 9), (5, 9)):
        with blocks.settings(n_threads=threads, block_rows=rows):
            scores.append(GaussianAtypicality(covariance=covariance).fit(x, labels).atypicality(x))
    for other in scores[1:]:
        np.testing.assert_allclose(other, scores[0], rtol=1e-11)  # 400 sums of float64, condition numbers below 100
