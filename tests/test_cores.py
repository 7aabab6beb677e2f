"""Threads of a pass stay on cores of their own, and nothing of that is left when it is over."""

import os
import threading
import warnings

import numpy as np
import pytest

from atypicality import blocks
from atypicality.blocks import cores

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no way to choose cores on this system")


@pytest.fixture
def every(monkeypatch):
    """The cores of these tests, as if nobody else worked; with fewer than two there is nothing to tell apart."""
    monkeypatch.setattr(cores, "_others_at_work", lambda: 0)
    found = os.sched_getaffinity(0)
    if len(found) < 2:
        pytest.skip("one core only")
    yield found
    assert os.sched_getaffinity(0) == found  # whatever a test did


def seen_by_two(run, **options):
    """The cores that each of two threads may use within a block, that of the caller first."""
    found, both = {}, threading.Barrier(2)

    def work(rows):
        if rows.start < 2:
            both.wait(10)  # one block each
        found[threading.get_ident()] = os.sched_getaffinity(0)
        return rows.start

    run(work, 8, block=1, threads=2, **options)
    caller = found.pop(threading.get_ident())
    return caller, *found.values()


def test_threads_of_a_pass_have_cores_of_their_own(every):
    caller, helper = seen_by_two(blocks.for_rows)
    assert len(caller) == 1
    assert helper == every - caller
    caller, helper = seen_by_two(blocks.reduce_rows)
    assert (len(caller), helper) == (1, every - caller)


def test_results_that_are_handed_out_one_by_one_leave_threads_where_they_are(every):
    assert seen_by_two(lambda *given, **options: list(blocks.map_rows(*given, **options))) == (every, every)


def test_cores_are_shared_out_without_one_left_over(monkeypatch):
    asked = kernel_of(range(10), monkeypatch)
    with cores.apart(3) as places:
        assert asked[-1] == {4}
        assert places == [{0, 3, 7}, {1, 5, 8}, {2, 6, 9}]
        with cores.apart(3) as inner:
            assert inner == []  # who is held already stays there


def kernel_of(allowed, monkeypatch):
    """What is asked of a kernel that lets a process use ten cores: nobody gets more than is `allowed` there."""
    now, asked = [set(allowed)], []

    def choose(_, where):
        asked.append(set(where))
        now[0] = set(where) & set(allowed)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: now[0])
    monkeypatch.setattr(os, "sched_setaffinity", choose)
    monkeypatch.setattr(cores, "_current", lambda: 4)
    monkeypatch.setattr(cores, "ALL", frozenset(range(16)))
    monkeypatch.setattr(cores, "_others_at_work", lambda: 0)
    return asked


@pytest.mark.parametrize(("busy", "held"), [(12, True), (13, False)])
def test_threads_are_held_apart_only_where_as_many_cores_are_idle(busy, held, monkeypatch):
    asked = kernel_of(range(10), monkeypatch)
    monkeypatch.setattr(cores, "_others_at_work", lambda: busy)  # of 16 cores: three threads beside the caller
    with cores.apart(3) as places:
        assert bool(places) == held
    assert bool(asked) == held


def test_threads_that_work_are_counted():
    ended = threading.Event()

    def work():
        while not ended.is_set():
            np.sort(np.arange(200_000)[::-1] % 1000)  # gives up the lock

    workers = [threading.Thread(target=work) for _ in range(3)]
    try:
        for worker in workers:
            worker.start()
        assert max(cores._others_at_work() for _ in range(300)) >= 1
    finally:
        ended.set()
        for worker in workers:
            worker.join()


def test_who_may_use_what_its_container_may_follows_when_that_grows(monkeypatch):
    asked = kernel_of(range(10), monkeypatch)
    with cores.apart(1):
        pass
    assert asked[-1] == set(range(16))


def test_who_was_held_by_its_user_gets_that_back(monkeypatch):
    asked = kernel_of(range(10), monkeypatch)
    os.sched_setaffinity(0, {4, 5, 6})
    with cores.apart(1) as places:
        assert places == [{5, 6}]
    assert asked[-1] == {4, 5, 6}


def test_more_threads_than_cores_are_not_held(every):
    found, all_begun = [], threading.Barrier(len(every) + 1)

    def work(rows):
        all_begun.wait(10)
        found.append(os.sched_getaffinity(0))

    blocks.for_rows(work, len(every) + 1, block=1, threads=len(every) + 1)
    assert found == [every] * (len(every) + 1)


def test_an_error_and_an_early_end_give_cores_back(every):
    def fail(rows):
        raise ValueError("row 0")

    with pytest.raises(ValueError, match="row 0"):
        blocks.for_rows(fail, 8, block=1, threads=2)
    assert os.sched_getaffinity(0) == every
    results = blocks.map_rows(lambda rows: rows.start, 8, block=1, threads=2, apart=True)
    assert next(results) == 0
    assert len(os.sched_getaffinity(0)) == 1
    results.close()
    assert os.sched_getaffinity(0) == every


def test_one_that_a_user_holds_on_some_cores_is_held_there_again(every):
    own = set(sorted(every)[:2])
    os.sched_setaffinity(0, own)
    try:
        assert seen_by_two(blocks.for_rows)[1] < own
        assert os.sched_getaffinity(0) == own
    finally:
        os.sched_setaffinity(0, every)


def test_another_thread_may_end_a_pass(every):
    results = blocks.map_rows(lambda rows: rows.start, 8, block=1, threads=2, apart=True)
    next(results)
    closer = threading.Thread(target=results.close)
    closer.start()
    closer.join()
    assert os.sched_getaffinity(0) == every
    assert len(seen_by_two(blocks.for_rows)[0]) == 1  # and the next one is as ever


def test_a_pass_within_a_block_has_as_many_threads_as_outside(every, monkeypatch):
    monkeypatch.delenv("ATYPICALITY_NUM_THREADS", raising=False)
    found = []
    blocks.for_rows(lambda rows: found.append(blocks.n_threads()), 8, block=1, threads=2)
    assert found == [blocks.n_threads()] * 8
    inner = np.zeros(8)

    def nested(rows):
        blocks.for_rows(lambda part: inner.__setitem__(part, 1 + inner[part]), 8, block=1, threads=2)

    blocks.for_rows(nested, 4, block=4, threads=2)
    assert inner.tolist() == [1.0] * 8


def test_a_process_that_is_forked_within_a_pass_may_use_all_cores(every):
    reading, writing = os.pipe()
    for _ in blocks.map_rows(lambda rows: rows.start, 4, block=1, threads=2, apart=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer versions of Python warn of threads beside it
            child = os.fork()
        if child == 0:
            os.write(writing, bytes([len(os.sched_getaffinity(0)), len(cores.cores())]))
            os._exit(0)
        os.waitpid(child, 0)
        assert list(os.read(reading, 2)) == [len(every)] * 2
    os.close(reading)
    os.close(writing)


def test_where_cores_cannot_be_chosen_a_pass_goes_on_without(every, monkeypatch):
    def forbidden(*_):
        raise PermissionError("not here")

    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setaffinity", forbidden)
        assert seen_by_two(blocks.for_rows)[0] == every
    with monkeypatch.context() as patch:
        patch.setattr(cores, "_reader", lambda: None)
        assert seen_by_two(blocks.for_rows)[0] == every


def test_no_thread_of_another_library_is_left_on_some_cores(every):
    x = np.ones((4000, 50))
    blocks.for_rows(lambda rows: x[rows] @ x[rows].T, 4000, block=500, threads=2)
    x.T @ x  # BLAS has its threads again
    own = {thread.native_id for thread in threading.enumerate() if thread.name == "atypicality"}
    others = [int(number) for number in os.listdir("/proc/self/task") if int(number) not in own]
    assert [os.sched_getaffinity(number) for number in others] == [every] * len(others)
