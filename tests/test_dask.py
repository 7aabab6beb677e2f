"""A cluster gives what one machine gives: the same statistics, distances and optima, also when a worker is killed."""

import importlib
import os
import signal
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import imported
from sklearn.base import clone

from atypicality import (
    AdaptiveTemperatureScaling,
    AtypicalityAwareRecalibration,
    ClassAtypicality,
    GaussianAtypicality,
    ModelOutputs,
    NeighborAtypicality,
    RelativeAtypicality,
    ReliabilityHead,
    TemperatureScaling,
    VectorScaling,
    blocks,
)

dask = imported("dask")
da = imported("dask.array")
dd = imported("distributed")
from distributed.utils import get_mp_context  # noqa: E402

from atypicality.density import distributed  # noqa: E402
from atypicality.density.family import DensityFamily  # noqa: E402
from atypicality.integrations import dask as cluster  # noqa: E402 - it needs what may be missing above
from atypicality.integrations import dask_cluster, dask_parts, dask_recalibration, dask_rows  # noqa: E402
from atypicality.recalibration import passes, solver  # noqa: E402
from atypicality.recalibration.problem import Units  # noqa: E402

GAUSSIANS = [
    GaussianAtypicality(),
    GaussianAtypicality("full"),
    GaussianAtypicality("diagonal"),
    GaussianAtypicality(shrinkage="ledoit-wolf"),
    GaussianAtypicality(n_components=3),
    GaussianAtypicality(normalize="l2"),
    RelativeAtypicality(normalize="l2"),
]
NEIGHBOURS = [
    NeighborAtypicality(),
    NeighborAtypicality(3, reduction="kth", metric="cosine"),
    NeighborAtypicality(2, reduction="min"),
    NeighborAtypicality(4, per_class=True),
    NeighborAtypicality(3, normalize="l2"),
]


@pytest.fixture(scope="module")
def client():
    """Two worker processes of one thread each, as on two machines; an idle one takes no data from the other.

    They are forked from a server that has imported what they need, and so are those that follow a killed one. Workers
    take no samples of where their time goes.
    """
    made = dict(n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50)
    forked = {"distributed.worker.multiprocessing-method": "forkserver"}
    quiet = {"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "1s"}
    with dask.config.set(forked):
        get_mp_context().set_forkserver_preload(["distributed", "atypicality.integrations.dask", "sklearn.base"])
    with (
        dask.config.set(forked | quiet | {"distributed.scheduler.work-stealing": False}),
        dd.LocalCluster(**made) as workers,
        dd.Client(workers, set_as_default=False) as found,
    ):
        yield found


@pytest.fixture
def world(rng):
    """Rows far from the origin, in five classes of which one is rare."""
    labels = np.minimum(rng.integers(0, 9, 1500), 4)
    return rng.normal(size=(1500, 6)) * [1, 2, 3, 1, 1, 1] + 100 + 3 * labels[:, None], labels


@pytest.fixture
def logits(rng):
    atypicality, labels = rng.random(2000), rng.integers(0, 5, 2000)
    z = np.eye(5)[labels] * 3 + rng.normal(size=(2000, 5)) * (1 + 2 * atypicality[:, None])
    return z, labels, atypicality


@pytest.fixture
def folder(tmp_path, world):
    """The world as three pairs of .npy files of uneven length."""
    x, y = world
    for i, rows in enumerate((slice(0, 400), slice(400, 1100), slice(1100, None))):
        np.save(tmp_path / f"embeddings-{i:05d}.npy", x[rows])
        np.save(tmp_path / f"labels-{i:05d}.npy", y[rows])
    return sorted(tmp_path.glob("embeddings-*.npy")), sorted(tmp_path.glob("labels-*.npy"))


# first, while no cluster runs: its threads in this process would miss the module too
def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "atypicality.integrations.dask_cluster")
    monkeypatch.setitem(sys.modules, "dask", None)
    with pytest.raises(ModuleNotFoundError, match=r"integrations.dask needs dask: pip install 'atypicality\[dask\]'"):
        importlib.import_module("atypicality.integrations.dask_cluster")


def assert_close(found, expected, digits=1e-10):
    """Relative to the largest entry, as the statistics are sums."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=digits * np.abs(expected).max())


# Gaussian


@pytest.mark.parametrize("gaussian", GAUSSIANS, ids=str)
def test_a_gaussian_is_that_of_one_machine(gaussian, client, world):
    x, y = world
    found = cluster.fit(gaussian, da.from_array(x, chunks=(130, 6)), da.from_array(y, chunks=400), client=client)
    alone = gaussian.fit(x, y)
    assert type(found) is type(gaussian)
    assert_close(found.means_, alone.means_)
    assert_close(found.covariance_, alone.covariance_)
    scores = cluster.atypicality(found, da.from_array(x, chunks=(300, 2)), client=client)
    assert isinstance(scores, da.Array)
    assert_close(client.compute(scores).result(), alone.atypicality(x), 1e-9)
    assert not hasattr(GAUSSIANS[0].__class__(), "statistics_")


def test_files_are_read_by_the_workers(client, world, folder, monkeypatch):
    monkeypatch.setattr(dask_rows, "PART_BYTES", 150 * 6 * 8)  # several parts a file
    x, y = world
    found = cluster.fit(GaussianAtypicality(), *folder, client=client)
    alone = GaussianAtypicality().fit(x, y)
    assert_close(found.covariance_, alone.covariance_)
    scores = cluster.atypicality(found, folder[0], client=client)
    assert isinstance(scores, np.ndarray)
    assert_close(scores, alone.atypicality(x), 1e-9)
    whole = cluster.fit(GaussianAtypicality(), [str(path) for path in folder[0]], y, client=client)
    np.testing.assert_array_equal(whole.covariance_, found.covariance_)


@pytest.mark.parametrize("ending", ["", ".npz"])
def test_files_of_outputs_hold_their_labels(ending, client, world, tmp_path):
    x, y = world
    paths = [tmp_path / f"part{i}{ending}" for i in range(2)]
    for path, rows in zip(paths, (slice(0, 700), slice(700, None)), strict=True):
        ModelOutputs(embeddings=x[rows], labels=y[rows]).save(path)
    found = cluster.fit(GaussianAtypicality(), paths, client=client)
    assert_close(found.covariance_, GaussianAtypicality().fit(x, y).covariance_)


def test_the_number_of_workers_changes_no_bit(client, world):
    x, y = world
    rows = da.from_array(x, chunks=(100, 6))
    two = cluster.fit(GaussianAtypicality(), rows, y, client=client)
    one = cluster.fit(GaussianAtypicality(), rows, y)  # a local cluster for this call, of threads
    np.testing.assert_array_equal(two.covariance_, one.covariance_)
    np.testing.assert_array_equal(two.means_, one.means_)


def test_small_chunks_are_joined_before_their_statistics_outweigh_them():
    assert dask_rows._joined([5, 5, 5, 5], 8) == [10, 10]
    assert dask_rows._joined([5, 0, 5, 20, 3], 8) == [10, 23]
    assert dask_rows._joined([3], 8) == [3]


def test_strings_are_labels_and_classes_may_be_missing_from_a_part(client, world):
    x, y = world
    order = np.argsort(y, kind="stable")  # a part sees one or two classes
    names = np.array(["ant", "bee", "cat", "dog", "emu"])[y[order]]
    found = cluster.fit(GaussianAtypicality(), da.from_array(x[order], chunks=(200, 6)), names.tolist(), client=client)
    alone = GaussianAtypicality().fit(x[order], names)
    assert found.classes_.tolist() == alone.classes_.tolist()
    assert_close(found.covariance_, alone.covariance_)


def test_a_fitted_gaussian_is_an_ordinary_one(client, world):
    x, y = world
    found = cluster.fit(GaussianAtypicality(), da.from_array(x, chunks=(500, 6)), y, client=client)
    more = found.merge(GaussianAtypicality().fit(x, y))
    assert more.counts_.sum() == 3000
    assert_close(found.atypicality(x), GaussianAtypicality().fit(x, y).atypicality(x), 1e-9)


# neighbours


@pytest.mark.parametrize("neighbours", NEIGHBOURS, ids=str)
def test_distances_are_those_of_one_search(neighbours, client, world, rng):
    x, y = world
    queries = x[::9] + rng.normal(size=(167, 6))
    found = cluster.fit(neighbours, da.from_array(x, chunks=(333, 6)), y, client=client)
    expected = neighbours.fit(x, y).atypicality(queries)
    np.testing.assert_array_equal(found.atypicality(queries, client=client), expected)
    lazy = cluster.atypicality(found, da.from_array(queries, chunks=(60, 6)), client=client)
    np.testing.assert_array_equal(client.compute(lazy).result(), expected)
    np.testing.assert_array_equal(found.local(client=client).atypicality(queries), expected)


def test_parts_with_fewer_rows_than_neighbours_are_enough(client):
    found = cluster.fit(NeighborAtypicality(3), da.from_array(np.arange(7.0)[:, None], chunks=(2, 1)), client=client)
    assert found.atypicality([[0.0], [10.0]], client=client).tolist() == [1.0, 5.0]  # 0 1 2, and 4 5 6


def test_neighbours_in_files(client, world, folder):
    found = cluster.fit(NeighborAtypicality(), folder[0], client=client)
    expected = NeighborAtypicality().fit(world[0]).atypicality(world[0])
    np.testing.assert_array_equal(cluster.atypicality(found, folder[0], client=client), expected)
    with pytest.raises(ValueError, match=r"exclude_self=True needs the training rows on one machine"):
        found.atypicality(world[0], exclude_self=True, client=client)


def test_training_rows_stay_where_they_are(client, rng):
    rows = client.persist(da.from_array(rng.normal(size=(4000, 64)), chunks=(1000, 64)))
    while not all(future.done() for future in dd.futures_of(rows)):
        time.sleep(0.01)
    before = client.who_has(rows)
    found = cluster.fit(NeighborAtypicality(), rows, client=client)
    found.atypicality(rng.normal(size=(50, 64)), client=client)
    assert client.who_has(rows) == before


# recalibration

RECALIBRATORS = [
    TemperatureScaling(),
    VectorScaling(),
    VectorScaling(scale=False, strength=0.01),
    AtypicalityAwareRecalibration.paper(),
    AtypicalityAwareRecalibration(strength=1e-3),
    AtypicalityAwareRecalibration(class_mixing="diagonal"),
]


@pytest.mark.parametrize("recalibrator", RECALIBRATORS, ids=str)
def test_the_optimum_is_that_of_one_machine(recalibrator, client, logits):
    z, y, a = logits
    lazy = da.from_array(z, chunks=(700, 5))
    found = cluster.fit(recalibrator, lazy, da.from_array(y, chunks=700), atypicality=a, client=client)
    alone = type(recalibrator)(**recalibrator.get_params()).fit(z, y, atypicality=a)
    assert found.certificate_ <= 1e-9
    assert found.loss_ == pytest.approx(alone.loss_, abs=1e-9)
    assert vars(found).keys() == vars(alone).keys()
    probs = cluster.predict_proba(found, lazy, atypicality=da.from_array(a, chunks=300), client=client)
    assert isinstance(probs, da.Array)
    np.testing.assert_allclose(client.compute(probs).result(), alone.predict_proba(z, atypicality=a), atol=1e-6)
    np.testing.assert_allclose(found.predict_proba(z, atypicality=a), alone.predict_proba(z, atypicality=a), atol=1e-6)
    if isinstance(found, AtypicalityAwareRecalibration):
        assert_close(found.coefficients_, alone.coefficients_, 1e-6)
        assert found.terms_ == alone.terms_
        assert found.largest_spread_ == alone.largest_spread_
        assert found.floor_ == pytest.approx(alone.floor_, rel=1e-6)  # sums in another order
        np.testing.assert_array_equal(found.polynomial_.low, alone.polynomial_.low)
        np.testing.assert_array_equal(found.polynomial_.high, alone.polynomial_.high)
        np.testing.assert_allclose(found.multiplier_range_, alone.multiplier_range_, rtol=1e-5)


def test_limits_and_medians_found_digit_by_digit_are_those_of_one_machine(client, logits, monkeypatch):
    monkeypatch.setattr(dask_recalibration, "SENT", 0)
    z, y, a = logits
    found, alone = (AtypicalityAwareRecalibration(strength=1e-3, terms=()) for _ in range(2))
    found = cluster.fit(
        found, da.from_array(z, chunks=(700, 5)), da.from_array(y, chunks=700), atypicality=a, client=client
    )
    alone.fit(z, y, atypicality=a)
    np.testing.assert_array_equal(found.polynomial_.low, alone.polynomial_.low)
    np.testing.assert_array_equal(found.polynomial_.high, alone.polynomial_.high)
    assert found.loss_ == pytest.approx(alone.loss_, abs=1e-9)


def test_class_densities_and_files_of_outputs(client, logits, rng, tmp_path):
    z, y, a = logits
    paths = [tmp_path / "one", tmp_path / "two"]
    for path, rows in zip(paths, (slice(0, 900), slice(900, None)), strict=True):
        ModelOutputs(z[rows], labels=y[rows], atypicality=a[rows]).save(path)
    density = z + rng.normal(size=z.shape)
    aware = AtypicalityAwareRecalibration(strength=1e-3)
    found = cluster.fit(aware, paths, class_log_density=density, client=client)
    alone = aware.fit(z, y, atypicality=a, class_log_density=density)
    assert found.density_coefficient_ == pytest.approx(alone.density_coefficient_, rel=1e-6)
    np.save(tmp_path / "density.npy", density)
    mixed = cluster.predict_proba(
        found,
        da.from_array(z, chunks=(700, 5)),
        atypicality=a,
        class_log_density=[tmp_path / "density.npy"],
        client=client,
    )
    probs = cluster.predict_proba(found, paths, class_log_density=density, client=client)
    expected = alone.predict_proba(z, atypicality=a, class_log_density=density)
    np.testing.assert_allclose(client.compute(mixed).result(), expected, atol=1e-6)
    np.testing.assert_allclose(client.compute(probs).result(), expected, atol=1e-6)


@pytest.mark.parametrize("n_rows", [10, 10**6], ids=["sent", "digit by digit"])
@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_the_median_is_exact(n, n_rows, rng):
    values = np.concatenate([rng.lognormal(sigma=20, size=n), np.zeros(3)])
    begun = dask_recalibration._Begun(None, None, SimpleNamespace(n_rows=n_rows), None, None, None)

    def reduced(function, merge, *args):
        return function(
            SimpleNamespace(numbers=lambda name: values[values > 0] if name == "positive" else -values), *args
        )

    object.__setattr__(begun, "reduced", reduced)
    assert begun.median("positive") == np.sort(values[values > 0])[(n + 1) // 2 - 1]
    assert begun.at_ranks("all", lambda count: [1, count]) == [-values.max(), -values.min()]


def test_parts_in_the_units_of_the_whole_add_up_to_it(logits, rng):
    z, y, _ = logits
    terms = dict(class_scores=True, mixing="full", pseudo_rows=True)
    whole = solver.Problem(z, y, **terms)
    units = Units(whole.dtype, whole.scale, whole.term_scales, whole.pseudo_share, whole.pseudo_reach)
    theta = rng.normal(size=whole.n_parameters)
    expected, found = passes.sums(whole, theta, "exact"), []
    for rows in (slice(0, 300), slice(300, None)):
        part = solver.Problem(z[rows], y[rows], units=units, **terms)
        part.weights = np.full(part.n_rows, 1 / 2000)
        found.append(passes.sums(part, theta, "exact"))
    total = dask_parts.add_derivatives(*found)
    assert total.objective == pytest.approx(expected.objective, rel=1e-12)
    assert_close(total.gradient, expected.gradient, 1e-12)
    assert_close(total.curvature, expected.curvature, 1e-12)


def test_no_atypicality_that_varies_is_said(client, logits):
    z, y, _ = logits
    with pytest.warns(UserWarning, match="atypicality is constant over the calibration rows"):
        found = cluster.fit(
            AtypicalityAwareRecalibration.paper(),
            da.from_array(z, chunks=(500, 5)),
            y,
            atypicality=np.ones(2000),
            client=client,
        )
    assert found.columns_ == ["1"]


def test_limits_of_the_temperature_warn(client):
    right = da.from_array(np.eye(3)[np.arange(300) % 3] * 5, chunks=(100, 3))
    with pytest.warns(UserWarning, match="labels all have the largest logit in"):
        cluster.fit(TemperatureScaling(), right, np.arange(300) % 3, client=client)
    with pytest.warns(UserWarning, match="no better than chance"):
        found = cluster.fit(TemperatureScaling(), right, (np.arange(300) + 1) % 3, client=client)
    with pytest.warns(UserWarning, match="no better than chance"):
        alone = TemperatureScaling().fit(right.compute(), (np.arange(300) + 1) % 3)
    assert found.temperature_ == pytest.approx(alone.temperature_)
    assert found.loss_ == pytest.approx(alone.loss_)


@pytest.mark.parametrize(
    "method", [TemperatureScaling(), VectorScaling(strength=0.01), AtypicalityAwareRecalibration()], ids=str
)
def test_rows_without_an_error_have_the_same_prior_on_a_cluster(client, method):
    rng = np.random.default_rng(3)
    z, a = 4 * rng.normal(size=(90, 4)), rng.normal(size=90)
    y = z.argmax(axis=1)
    with pytest.warns(UserWarning, match="labels all have the largest logit in 90 rows"):
        found = cluster.fit(method, da.from_array(z, chunks=(40, 4)), y, atypicality=a, client=client)
    with pytest.warns(UserWarning, match="labels all have the largest logit in 90 rows"):
        alone = clone(method).fit(z, y, atypicality=a)
    assert found.errors_ == alone.errors_ == 0
    assert found.loss_ == pytest.approx(alone.loss_, abs=1e-8)
    probs, expected = (fitted.predict_proba(z, atypicality=a) for fitted in (found, alone))
    np.testing.assert_allclose(probs, expected, atol=1e-4)  # what a certificate of 2e-10 leaves to the probabilities
    assert (1 - probs.max(axis=1)).mean() >= 1 / 92


# a worker is killed


def dies_once(block, flag):
    """Rows as they are; the first worker to see row 700 is killed."""
    if block[0, 0] == 700 and not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return np.sin(block * np.arange(1, 9))


def test_a_worker_killed_in_the_middle_changes_no_bit(client, tmp_path):
    rows = da.from_array(np.arange(1500.0)[:, None], chunks=(100, 1))
    labels = np.arange(1500) % 4
    flag = tmp_path / "died"
    killed = rows.map_blocks(dies_once, flag, chunks=(100, 8), dtype=float)
    found = cluster.fit(GaussianAtypicality(), killed, labels, client=client)
    assert flag.exists()
    again = cluster.fit(GaussianAtypicality(), killed, labels, client=client)
    np.testing.assert_array_equal(found.covariance_, again.covariance_)
    np.testing.assert_array_equal(found.means_, again.means_)


def test_a_worker_killed_between_two_steps_changes_nothing(client, logits, monkeypatch):
    z, y, a = logits
    steps = solver.minimise

    def minimise(*args, **kwargs):
        if not pids:
            pids.append(next(iter(client.run(os.getpid).values())))
            os.kill(pids[0], signal.SIGKILL)
        return steps(*args, **kwargs)

    pids = []
    paper, lazy = AtypicalityAwareRecalibration.paper(), da.from_array(z, chunks=(500, 5))
    expected = cluster.fit(paper, lazy, y, atypicality=a)
    monkeypatch.setattr(solver, "minimise", minimise)
    found = cluster.fit(paper, lazy, y, atypicality=a, client=client)
    assert pids
    np.testing.assert_array_equal(found.coefficients_, expected.coefficients_)
    np.testing.assert_array_equal(found.class_scores_, expected.class_scores_)


# who runs it


def test_tasks_use_one_thread():
    inside = dask_cluster.task(blocks.n_threads)
    assert inside() == 1


def test_the_current_client_is_used(client, world, monkeypatch):
    x, y = world
    monkeypatch.setattr(dd, "default_client", lambda: client)
    monkeypatch.setattr(dd, "LocalCluster", None)  # would fail
    assert cluster.fit(GaussianAtypicality(), da.from_array(x, chunks=(500, 6)), y).counts_.sum() == 1500


def test_a_client_without_workers_says_so(monkeypatch, world):
    monkeypatch.setattr(dask_cluster, "PATIENCE", 0.2)
    made = dict(n_workers=0, processes=False, dashboard_address="127.0.0.1:0", silence_logs=50)
    with (
        dd.LocalCluster(**made) as empty,
        dd.Client(empty, set_as_default=False) as nobody,
        pytest.raises(TimeoutError, match=r"client has no workers after 0.2 seconds\. Start some"),
    ):
        cluster.fit(GaussianAtypicality(), da.from_array(world[0]), world[1], client=nobody)


def test_workers_that_die_again_and_again_are_said(client, monkeypatch):
    def gather(futures):
        raise dd.KilledWorker("part", SimpleNamespace(address="tcp://somewhere:1"), 3)

    monkeypatch.setattr(client, "gather", gather)
    with pytest.raises(RuntimeError, match=r"workers died again and again: .*smaller chunks"):
        cluster.fit(GaussianAtypicality(), da.zeros((9, 3)), np.arange(9), client=client)


def test_an_asynchronous_client_is_refused(client, monkeypatch):
    monkeypatch.setattr(dd.Client, "asynchronous", property(lambda self: True))
    with pytest.raises(TypeError, match=r"client must not be asynchronous"):
        cluster.fit(GaussianAtypicality(), da.zeros((9, 3)), np.arange(9), client=client)


# refusals


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (dict(y=np.zeros(7, int)), ValueError, r"labels must have one entry per row; got 7 for 1500 rows"),
        (dict(y=None), ValueError, r"labels must be given with a Dask array"),
        (dict(y=np.zeros(1500)), TypeError, r"labels must be all integers, all booleans or all strings"),
        (dict(x=da.zeros((5, 2, 2))), ValueError, r"embeddings must be two-dimensional.*got shape \(5, 2, 2\)"),
        (dict(x=np.zeros((5, 2))), TypeError, r"embeddings must be a dask.array or a list of paths; got ndarray"),
        (dict(x=[]), ValueError, r"embeddings must name at least one file; got an empty list"),
        (dict(x=["nowhere.npy"]), FileNotFoundError, r"no file or folder at '.*nowhere\.npy'"),
        (dict(x=da.zeros((0, 3))), ValueError, r"embeddings must have at least one row"),
        (dict(x=da.zeros((9, 3), dtype=complex)), TypeError, r"embeddings must hold real numbers"),
        (dict(x=da.zeros((9, 3))), ValueError, r"labels must have one entry per row; got 1500 for 9 rows"),
    ],
)
def test_what_cannot_be_fitted_is_named(change, kind, message, client, world):
    given = {"x": da.from_array(world[0], chunks=(300, 6)), "y": world[1], **change}
    with pytest.raises(kind, match=message):
        cluster.fit(GaussianAtypicality(), given["x"], given["y"], client=client)


def test_chunks_of_unknown_size_have_a_remedy(client, world):
    x, y = world
    lazy = da.from_array(x, chunks=(300, 6))
    unknown = lazy[lazy[:, 0] > 0]
    with pytest.raises(ValueError, match=r"Call embeddings.compute_chunk_sizes\(\) first"):
        cluster.fit(GaussianAtypicality(), unknown, y, client=client)


def test_bad_rows_are_counted_from_the_start_of_the_whole(client, world, folder):
    x, y = world
    x[[1290, 1400], 2] = np.nan
    lazy = da.from_array(x, chunks=(100, 6))  # two bad parts: whichever worker is first, the first row is named
    for estimator in (GaussianAtypicality(), NeighborAtypicality()):
        with pytest.raises(ValueError, match=r"embeddings must be finite; row 1290 holds NaN or infinity"):
            cluster.fit(estimator, lazy, y, client=client)
    np.save(folder[0][2], x[1100:])
    with pytest.raises(ValueError, match=r"rows 1290, 1400 hold.*Row 1100 is row 0 of 'embeddings-00002.npy'"):
        cluster.fit(GaussianAtypicality(), *folder, client=client)
    scores = cluster.atypicality(GaussianAtypicality().fit(x[:900], y[:900]), lazy, client=client)
    with pytest.raises(ValueError, match=r"row 1[24][90]0 holds NaN"):
        client.compute(scores).result()
    neighbours = cluster.fit(NeighborAtypicality(), lazy[:900], client=client)
    with pytest.raises(ValueError, match=r"row 1[24][90]0 holds NaN"):
        client.compute(cluster.atypicality(neighbours, lazy, client=client)).result()


def test_bad_logits_are_named(client, logits):
    z, y, _ = logits
    outside = np.where(np.arange(2000) == 1234, 5, y)
    with pytest.raises(ValueError, match=r"row 1234 is outside"):
        cluster.fit(TemperatureScaling(), da.from_array(z, chunks=(500, 5)), outside, client=client)
    masked = z.copy()
    masked[1700, y[1700]] = -np.inf
    with pytest.raises(ValueError, match=r"row 1700 has the label of a class whose logit is -inf"):
        cluster.fit(TemperatureScaling(), da.from_array(masked, chunks=(500, 5)), y, client=client)
    z[1234, 1] = np.nan
    lazy = da.from_array(z, chunks=(500, 5))
    with pytest.raises(ValueError, match=r"strength must be one of"):  # found before the rows are read
        cluster.fit(AtypicalityAwareRecalibration(strength="much"), lazy, y, atypicality=y, client=client)
    with pytest.raises(ValueError, match=r"logits must be finite.*row 1234 holds NaN"):
        cluster.fit(TemperatureScaling(), lazy, y, client=client)
    with pytest.raises(ValueError, match=r"atypicality must be given with a Dask array"):
        cluster.fit(AtypicalityAwareRecalibration.paper(), lazy, y, client=client)
    with pytest.raises(ValueError, match=r"median standard deviation of a row is 0"):
        cluster.fit(TemperatureScaling(), da.zeros((2000, 5), chunks=(500, 5)), y, client=client)
    probs = cluster.predict_proba(TemperatureScaling().fit(z[:1000], y[:1000]), lazy, client=client)
    with pytest.raises(ValueError, match=r"row 1234 holds NaN"):
        client.compute(probs).result()


def test_files_that_do_not_fit_together_are_named(client, folder, tmp_path):
    np.save(tmp_path / "embeddings-00003.npy", np.zeros((5, 7)))
    wide = [*folder[0], tmp_path / "embeddings-00003.npy"]
    with pytest.raises(ValueError, match=r"same columns in every file; .*00000.npy' has 6, .*00003.npy' has 7"):
        cluster.fit(GaussianAtypicality(), wide, [0] * 1505, client=client)
    with pytest.raises(ValueError, match=r"labels must have one entry per row; got 1100 for 1500 rows"):
        cluster.fit(GaussianAtypicality(), folder[0], folder[1][:2], client=client)
    with pytest.raises(ValueError, match=r"labels must be cut into files like the rows"):
        cluster.fit(GaussianAtypicality(), folder[0], [folder[1][1], folder[1][0], folder[1][2]], client=client)
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY" + b"\x00" * 90)
    with pytest.raises(ValueError, match=r"bad.npy' is not a readable .npy file"):
        cluster.fit(GaussianAtypicality(), [tmp_path / "bad.npy"], [0], client=client)
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    with pytest.raises(TypeError, match=r"embeddings in '.*words.npy' must hold real numbers; got dtype <U1"):
        cluster.fit(GaussianAtypicality(), [tmp_path / "words.npy"], [0], client=client)
    np.save(tmp_path / "flat.npy", np.zeros(4))
    with pytest.raises(ValueError, match=r"two-dimensional, one row per sample; '.*flat.npy' has shape \(4,\)"):
        cluster.fit(GaussianAtypicality(), [tmp_path / "flat.npy"], [0], client=client)
    np.save(tmp_path / "objects.npy", np.array([[{}]], dtype=object))
    with pytest.raises(ValueError, match=r"objects.npy' is not a readable .npy file: .*allow_pickle"):
        cluster.fit(GaussianAtypicality(), [tmp_path / "objects.npy"], [0], client=client)


def test_what_is_no_estimator_of_ours_is_refused(client, world):
    lazy = da.from_array(world[0], chunks=(300, 6))
    with pytest.raises(TypeError, match=r"estimator must be a GaussianAtypicality.*got ClassAtypicality"):
        cluster.fit(ClassAtypicality(), lazy, world[1], client=client)
    with pytest.raises(TypeError, match=r"AdaptiveTemperatureScaling cannot be fitted across workers; Temperature"):
        cluster.fit(AdaptiveTemperatureScaling(), lazy, world[1], client=client)
    with pytest.raises(TypeError, match=r"client must be a distributed.Client; got str"):
        cluster.fit(GaussianAtypicality(), lazy, world[1], client="tcp://somewhere:8786")
    with pytest.raises(TypeError, match=r"estimator must be a GaussianAtypicality or"):
        cluster.atypicality(ClassAtypicality(), lazy)
    with pytest.raises(ValueError, match=r"embeddings must have 6 columns, as many as when it was fitted; got 5"):
        cluster.atypicality(GaussianAtypicality().fit(*world), lazy[:, :5])
    with pytest.raises(ValueError, match=r"n_neighbors must be at most the number of training rows; got 9 for 4"):
        cluster.fit(NeighborAtypicality(9), lazy[:4], client=client)
    with pytest.raises(ValueError, match=r"n_neighbors=5 rows of every class; class 7 has 1"):
        cluster.fit(NeighborAtypicality(per_class=True), lazy, np.where(np.arange(1500) == 3, 7, 1), client=client)


# the three functions


def test_merging_in_any_grouping_gives_the_same(rng):
    gaussian = GaussianAtypicality()
    x, y = rng.normal(size=(90, 4)) + 50, rng.integers(0, 3, 90)
    a, b, c = (distributed.part_statistics(gaussian, x[rows], y[rows]) for rows in np.split(np.arange(90), 3))
    left = distributed.finish(gaussian, distributed.merge(distributed.merge(a, b), c))
    right = distributed.finish(gaussian, distributed.merge(a, distributed.merge(c, b)))
    assert_close(left.covariance_, right.covariance_, 1e-12)
    assert_close(left.covariance_, gaussian.fit(x, y).covariance_, 1e-12)


def test_parts_of_other_width_do_not_merge():
    gaussian = GaussianAtypicality()
    narrow, wide = (distributed.part_statistics(gaussian, np.eye(2, d), [0, 1]) for d in (3, 4))
    with pytest.raises(ValueError, match=r"parts must have the same columns; one has 3, another 4"):
        distributed.merge(narrow, wide)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="not on this system: named pipes")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "rows.npy")
    with pytest.raises(ValueError, match=r"rows\.npy' must be a regular file; it is a pipe"):
        dask_rows._open(str(tmp_path / "rows.npy"), "embeddings")


def test_a_head_chooses_among_densities_fitted_on_a_cluster(client, world, rng):
    x, labels = world
    family = cluster.fit(DensityFamily(), da.from_array(x, chunks=(400, 3)), labels, client=client)
    alone = DensityFamily().fit(x, labels)
    for name, member in alone.members_.items():
        np.testing.assert_allclose(family.members_[name].atypicality(x), member.atypicality(x), rtol=1e-8, atol=1e-8)
    logits = 3 * np.eye(5)[np.where(np.arange(1500) % 4, labels, 0)] + rng.normal(size=(1500, 5))
    outputs = ModelOutputs(logits, embeddings=x, labels=labels)
    head, other = (ReliabilityHead(recalibration=TemperatureScaling()) for _ in range(2))
    assert str(head.fit(family, outputs).density_) == str(other.fit(alone, outputs).density_)
