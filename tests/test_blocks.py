"""Blocks: every row once, in order, on any number of threads, with BLAS held and released."""

import gc
import importlib
import os
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import world_part
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator
from threadpoolctl import threadpool_info, threadpool_limits

import atypicality as aty
from atypicality import blocks
from atypicality.blocks.threads import MergeTree


@given(st.integers(0, 50), st.integers(1, 60), st.integers(1, 4))
def test_blocks_cover_every_row_once_in_order(n_rows, block, threads):
    rows = np.arange(n_rows)
    pieces = list(blocks.map_rows(lambda part: rows[part], n_rows, block=block, threads=threads))
    np.testing.assert_array_equal(np.concatenate([np.empty(0, int), *pieces]), rows)
    assert all(0 < piece.size <= block for piece in pieces)


def test_results_keep_their_order_when_early_blocks_are_slow():
    first_waits = threading.Event()

    def work(rows):
        if rows.start == 0:
            assert first_waits.wait(10)
        else:
            first_waits.set()
        return rows.start

    assert list(blocks.map_rows(work, 6, block=2, threads=2)) == [0, 2, 4]


def test_an_error_in_one_block_is_raised_and_stops_the_rest():
    started = []

    def work(rows):
        started.append(rows.start)
        raise ValueError(f"rows from {rows.start}")

    with pytest.raises(ValueError, match="rows from 0"):
        blocks.for_rows(work, 1000, block=1, threads=2)
    assert len(started) <= 2 * 2 + 2  # what was in flight, and nothing after


def test_a_light_pass_takes_threads_for_many_blocks_only():
    names = [threading.current_thread().name]

    def work(rows):
        names.append(threading.current_thread().name)

    blocks.for_rows(work, 2 * blocks.LIGHT.blocks - 1, block=1, threads=2, work=blocks.LIGHT)
    assert len(set(names)) == 1
    both = threading.Barrier(2)  # with as many blocks for each of two, both must come
    blocks.for_rows(lambda rows: both.wait(10), 2 * blocks.LIGHT.blocks, block=1, threads=2, work=blocks.LIGHT)


def test_no_more_blocks_are_begun_than_may_wait_for_their_turn():
    begun, release, threads = [], threading.Event(), 3

    def work(rows):
        begun.append(rows.start)
        if rows.start == 0:
            assert release.wait(10)
        return rows.start

    def watch():
        while len(begun) < 2 * threads:  # the first, which is not given out, and as many as may be ahead of it
            time.sleep(0.001)
        time.sleep(0.05)
        release.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    results = blocks.map_rows(work, 50, block=1, threads=threads)
    assert next(results) == 0
    ahead = sorted(begun)[: 2 * threads]
    watcher.join()
    assert ahead == list(range(2 * threads))
    assert list(results) == list(range(1, 50))


def test_a_pass_takes_the_threads_of_the_pass_before():
    def helpers():
        both, names = threading.Barrier(2), set()
        blocks.for_rows(lambda rows: (both.wait(10), names.add(threading.get_ident())), 2, block=1, threads=2)
        return names - {threading.get_ident()}

    first = helpers()
    assert len(first) == 1
    for _ in range(5):
        time.sleep(0.01)  # it says that it is free after the pass has ended
        assert helpers() == first


def test_threads_are_free_again_after_an_error_and_as_many_as_are_wanted():
    def fail(rows):
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            blocks.for_rows(fail, 8, block=1, threads=4)
    everyone = threading.Barrier(6)
    blocks.for_rows(lambda rows: everyone.wait(10), 6, block=1, threads=6)


def test_passes_inside_passes_and_from_many_threads_at_once_end():
    def inner(rows):
        return blocks.reduce_rows(lambda part: part.start, 4, block=1, threads=2)

    def outer(found):
        found.append(blocks.reduce_rows(inner, 6, block=1, threads=3))

    found: list[int] = []
    callers = [threading.Thread(target=outer, args=(found,)) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert found == [6 * (0 + 1 + 2 + 3)] * 8


def test_no_thread_that_waits_for_the_next_pass_holds_the_arrays_of_the_last():
    both, array = threading.Barrier(2), np.zeros(10)
    held = weakref.ref(array)

    def work(rows, array=array):
        both.wait(10)
        return array[rows].sum()

    blocks.for_rows(work, 2, block=1, threads=2)
    del work, array
    until = time.monotonic() + 10
    while held() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert held() is None


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 5))
def test_a_reduction_merges_every_block_once_in_order(n_rows, block, threads):
    found = blocks.reduce_rows(lambda rows: [*range(rows.start, rows.stop)], n_rows, block=block, threads=threads)
    assert found == [*range(n_rows)]


@given(st.permutations(range(11)))
def test_what_is_merged_with_what_does_not_depend_on_who_is_first(order):
    tree = MergeTree(lambda left, right: (left, right), 11)
    for number in order:
        tree.add(number, number)
    pairs = [(number, number + 1) for number in range(0, 10, 2)]
    fours = [(pairs[0], pairs[1]), (pairs[2], pairs[3]), (pairs[4], 10)]
    assert tree.whole() == ((fours[0], fours[1]), fours[2])
    assert list(tree.held) == [(0, 0)]  # nothing else is kept


def test_an_error_in_a_reduction_is_raised():
    def fail_late(rows):
        if rows.start == 5:
            raise ValueError("row 5")
        return 1

    with pytest.raises(ValueError, match="row 5"):
        blocks.reduce_rows(fail_late, 8, block=1, threads=3)


def test_more_cores_than_pay_are_left_to_matrix_products(monkeypatch):
    monkeypatch.delenv("ATYPICALITY_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    assert blocks.n_threads() == blocks.ENTRIES.most == 8
    assert blocks.n_threads(work=blocks.PRODUCTS) == 64
    names: set[int] = set()
    light = threading.Barrier(blocks.LIGHT.most)  # never passed by fewer; with more, the rest would wait in vain

    def work(rows):
        names.add(threading.get_ident())
        if rows.start < blocks.LIGHT.most:
            light.wait(10)

    blocks.for_rows(work, 20 * blocks.LIGHT.blocks, block=1, work=blocks.LIGHT)
    assert len(names) == blocks.LIGHT.most
    with blocks.settings(n_threads=20):
        # set by a user, whatever the cores, but not beyond what pays
        assert blocks.n_threads(work=blocks.PRODUCTS) == 20
        assert blocks.n_threads() == blocks.n_threads(work=blocks.SCATTER) == 8
        assert blocks.n_threads(work=blocks.LIGHT) == 4


def on_cores(count, monkeypatch):
    """As on a machine with so many cores, where nobody has set a number of threads."""
    monkeypatch.delenv("ATYPICALITY_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(count), raising=False)


@pytest.mark.parametrize(("count", "products", "entries"), [(1, 1, 1), (2, 2, 1), (3, 3, 3), (4, 4, 4)])
def test_a_second_core_is_taken_by_products_alone_and_a_third_by_all(count, products, entries, monkeypatch):
    on_cores(count, monkeypatch)
    assert blocks.n_threads(work=blocks.PRODUCTS) == products
    assert blocks.n_threads() == blocks.n_threads(work=blocks.LIGHT) == entries
    with blocks.settings(n_threads=2):
        assert {blocks.n_threads(work=work) for work in (blocks.PRODUCTS, blocks.ENTRIES, blocks.LIGHT)} == {2}
    monkeypatch.setenv("ATYPICALITY_NUM_THREADS", "2")
    assert blocks.n_threads() == 2


STAGES = {  # what runs, and whether anything in it has threads on two cores
    "gaussian": (lambda data: aty.GaussianAtypicality().fit(data.x, data.y), True),
    "gaussian scores": (lambda data: data.gaussian.atypicality(data.x), True),
    "neighbours": (lambda data: data.neighbors.atypicality(data.x), True),
    "ece": (lambda data: aty.metrics.ece(data.probs, data.y), False),
    "brier": (lambda data: aty.metrics.brier(data.probs, data.y), False),
    "temperature": (lambda data: aty.TemperatureScaling().fit(data.z, data.y), False),
    "temperature's probabilities": (lambda data: data.temperature.predict_proba(data.z), True),
    "vector": (lambda data: aty.VectorScaling().fit(data.z, data.y), False),
    "paper": (lambda data: data.recalibration.paper().fit(data.z, data.y, atypicality=data.a), False),
    "default, by similarities": (lambda data: data.recalibration().fit(data.z, data.y, atypicality=data.a), True),
    "head": (lambda data: data.head.predict(data.part), True),
    "head without a density": (lambda data: data.plain.predict(data.part), False),
    "sets": (lambda data: aty.SplitConformal("aps").fit(data.probs, data.y).predict_set(data.probs), False),
}


@pytest.fixture(scope="module")
def stage_data():
    worlds = [world_part(part, 3000, n_classes=5, n_features=4) for part in (0, 1)]
    part, train = (aty.ModelOutputs(w.logits, embeddings=w.embeddings, labels=w.labels) for w in worlds)
    temperature = aty.TemperatureScaling().fit(part.logits, part.labels)
    probs = temperature.predict_proba(part.logits)
    gaussian = aty.GaussianAtypicality().fit(part.embeddings, part.labels)
    with pytest.warns(UserWarning, match="works without atypicality"):
        plain = aty.ReliabilityHead(density=None).fit(calibration=part)
    return SimpleNamespace(
        train=train, part=part, x=part.embeddings, y=part.labels, z=part.logits, probs=probs,
        temperature=temperature, gaussian=gaussian, a=gaussian.atypicality(part.embeddings),
        neighbors=aty.NeighborAtypicality().fit(part.embeddings),
        recalibration=aty.AtypicalityAwareRecalibration,
        head=aty.ReliabilityHead(density=gaussian).fit(train=train, calibration=part),
        plain=plain,
    )  # fmt: skip


@pytest.fixture
def passes(monkeypatch):
    """Kind and threads of every pass, of blocks of 64 rows; small fits have threads too."""
    seen: set[tuple[blocks.Work, int]] = set()
    real = blocks._cut

    def cut(n_rows, block, threads, work):
        found = real(n_rows, block, threads, work)
        seen.add((work, found[0]))
        return found

    monkeypatch.setattr(blocks, "_cut", cut)
    monkeypatch.setattr("atypicality.recalibration.passes.ALONE", 0)
    with blocks.settings(block_rows=64):
        yield seen


@pytest.mark.parametrize("name", STAGES)
def test_threads_of_a_stage_on_two_and_on_three_cores(name, stage_data, passes, monkeypatch):
    run, shared = STAGES[name]
    for count in (2, 3):
        passes.clear()
        on_cores(count, monkeypatch)
        run(stage_data)
        assert all(threads == 1 for work, threads in passes if work.cores > count)
        assert (count in {threads for _, threads in passes}) == (shared or count == 3)


def test_log_loss_has_one_thread_on_any_number_of_cores(stage_data, passes, monkeypatch):
    on_cores(16, monkeypatch)
    aty.metrics.nll(stage_data.probs, stage_data.y)
    assert {threads for _, threads in passes} == {1}


def test_exact_hessians_of_many_parameters_are_products(stage_data, passes, monkeypatch):
    on_cores(2, monkeypatch)
    STAGES["vector"][0](stage_data)
    assert not any(threads > 1 for _, threads in passes)
    monkeypatch.setattr("atypicality.recalibration.passes.MANY", 2 * 5)  # a scale and a bias for each class
    STAGES["vector"][0](stage_data)
    assert {(work, threads) for work, threads in passes if threads > 1} == {(blocks.SCATTER, 2)}


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.fixture
def two_threads():
    """More than the one that the tests run with, so that one inside is a change; of SciPy's BLAS too."""
    importlib.import_module("scipy.linalg")
    with threadpool_limits(2, "blas"):
        yield


def test_blas_has_one_thread_inside_and_what_it_had_before_outside(two_threads):
    before = blas_threads()
    assert set(before) == {2}
    inside = list(blocks.map_rows(lambda rows: blas_threads(), 4, block=1, threads=2))
    assert all(set(found) == {1} for found in inside)
    assert blas_threads() == before


def test_a_pass_on_one_thread_holds_blas_too_but_for_products(two_threads):
    for threads, n_blocks in ((1, 9), (2, 2)):  # two light blocks are too few for a second thread
        light = blocks.map_rows(lambda rows: blas_threads(), n_blocks, block=1, threads=threads, work=blocks.LIGHT)
        assert all(set(found) == {1} for found in light)
    assert set(next(blocks.map_rows(lambda rows: blas_threads(), 1, block=1))) == {2}  # one block is small
    products = blocks.map_rows(lambda rows: blas_threads(), 4, block=1, threads=1, work=blocks.PRODUCTS)
    assert all(set(found) == {2} for found in products)  # which BLAS shares out itself


class OwnDensity(BaseEstimator):
    """A user's, of matrix products."""

    def fit(self, embeddings, labels=None):
        return self

    def atypicality(self, embeddings):
        self.seen = blas_threads()
        return embeddings @ np.ones(embeddings.shape[1])


def test_blas_keeps_its_threads_in_a_density_of_the_user(two_threads, stage_data):
    head = aty.ReliabilityHead(density=OwnDensity()).fit(train=stage_data.train, calibration=stage_data.part)
    with blocks.settings(n_threads=1, block_rows=64):
        head.predict(stage_data.part)
    assert set(head.density_.seen) == {2}


def test_overlapping_users_of_blas_restore_it_once(two_threads):
    before = blas_threads()
    first, second = blocks.single_threaded_blas(), blocks.single_threaded_blas()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # in the order of entry: a plain nesting would restore too early
    assert set(blas_threads()) == {1}
    second.__exit__(None, None, None)
    assert blas_threads() == before


def test_a_head_holds_blas_from_the_density_to_the_sets_unless_rows_are_wide(two_threads, monkeypatch):
    from atypicality import GaussianAtypicality, ReliabilityHead, TemperatureScaling

    seen = []

    class Watching(GaussianAtypicality):
        def fit(self, embeddings, labels):
            seen.extend(blas_threads())
            return super().fit(embeddings, labels)

    parts = [world_part(part, 1000, n_classes=3, n_features=4).outputs() for part in (0, 1)]
    head = ReliabilityHead(Watching(), TemperatureScaling())
    for wide, threads in ((2048, {1}), (4, {2})):
        seen.clear()
        monkeypatch.setattr("atypicality.blocks.threads.WIDE", wide)
        head.fit(*parts)
        assert set(seen) == threads
        assert set(blas_threads()) == {2}


def test_settings_are_local_and_restored():
    with blocks.settings(n_threads=3, block_rows=7):
        assert (blocks.n_threads(), blocks.block_rows(10**9)) == (3, 7)
        with blocks.settings(n_threads=1):
            assert (blocks.n_threads(), blocks.block_rows(10**9)) == (1, 7)
    assert blocks.block_rows(10**9) == 1


def test_environment_sets_threads(monkeypatch):
    monkeypatch.setenv("ATYPICALITY_NUM_THREADS", "5")
    assert blocks.n_threads() == 5
    monkeypatch.setenv("ATYPICALITY_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="ATYPICALITY_NUM_THREADS must be a whole number of at least 1; got 'many'"):
        blocks.n_threads()
    with (
        pytest.raises(ValueError, match="n_threads must be a whole number of at least 1; got 0"),
        blocks.settings(n_threads=0),
    ):
        pass


def test_workspace_reuses_a_buffer_and_never_shares_it():
    workspace = blocks.Workspace()
    with workspace.borrow() as one, workspace.borrow() as two:
        assert not np.shares_memory(one("a", (4, 4)), two("a", (4, 4)))
        held = one("a", (4, 4))
        assert np.shares_memory(held, one("a", (2, 3)))
    with workspace.borrow() as again:
        assert again("a", 16).dtype == np.float64


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_can_run_blocks():
    x = np.random.default_rng(0).random((64, 8))
    blocks.for_rows(lambda rows: None, 4, block=1, threads=3)  # threads that wait here are not there in the child
    with blocks.single_threaded_blas():
        child = os.fork()
        if child == 0:
            total = blocks.reduce_rows(lambda rows: x[rows].sum(), 64, block=8, threads=2)
            os._exit(0 if np.isclose(total, x.sum()) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64, bool])
def test_a_buffer_begins_with_a_line_of_the_cache(dtype):
    with blocks.Workspace().borrow() as buffers:
        for size in (1, 1000, 3, 70_001):  # the last grows
            held = buffers("a", size, dtype)
            assert held.shape == (size,)
            assert held.dtype == dtype
            assert held.ctypes.data % blocks.CACHE_LINE == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_long_rows_have_a_small_buffer_in_their_blocks_and_nowhere_else(threads):
    before = np.getbufsize()

    def size(rows):
        with np.errstate(over="ignore"):  # what a block sets beside it does not undo it
            return np.getbufsize()

    def inside(columns):
        return set(blocks.map_rows(size, 12, block=2, threads=threads, columns=columns))

    assert inside(blocks.LONG_ROW - 1) == {before}
    for held in blocks.map_rows(size, 12, block=2, threads=threads, columns=blocks.LONG_ROW):
        assert held == blocks.ROW_BUFFER
        assert np.getbufsize() == before  # the caller, between two results
    with pytest.raises(ZeroDivisionError):
        blocks.for_rows(lambda rows: 1 / 0, 4, block=4, columns=blocks.LONG_ROW)
    assert np.getbufsize() == before


def test_every_pass_hands_columns_on():
    def small(rows):
        return int(np.getbufsize() == blocks.ROW_BUFFER)

    for threads in (1, 2):
        assert blocks.reduce_rows(small, 6, block=2, threads=threads, columns=300) == 3
        found = blocks.compute(
            lambda rows: [(np.full(rows.stop - rows.start, small(rows)),)], 6, block=2, threads=threads, columns=300
        )
        assert found[0].tolist() == [1] * 6
    assert blocks.compute(lambda rows: [(np.array([small(rows)]),)], 1, block=2, columns=300)[0].tolist() == [1]


@pytest.mark.parametrize("columns", [100, 300, 1000])
def test_results_do_not_depend_on_the_buffer(columns, seed):
    rng = np.random.default_rng(seed)
    z, top = rng.standard_normal((40, columns)).astype(np.float32), rng.standard_normal((40, 1)).astype(np.float32)

    def work(rows):
        wide = np.subtract(z[rows], top[rows], dtype=np.float64)
        return [(wide * np.arange(columns), z[rows] < top[rows])]

    plain, small = (blocks.compute(work, 40, block=16, columns=number) for number in (0, columns))
    for one, other in zip(plain, small, strict=True):
        np.testing.assert_array_equal(one, other)
