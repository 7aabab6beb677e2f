"""The monitor: fair martingales, counts that add up, alarms where shares left their band; bad input changes nothing."""

import contextlib
import dataclasses
import datetime
import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import needs
from monitor_cases import CLASSES, draw, largest_excess, share_tests
from scipy.stats import binom, binomtest

import atypicality as aty
from atypicality.cli import main
from atypicality.datasets import load_fashion_mnist
from atypicality.head.reference import HeldOutCounts, Ranks
from atypicality.metrics.intervals import exact_bounds
from atypicality.monitoring.counting import words_of
from atypicality.monitoring.seen import Seen
from atypicality.monitoring.sequences import log_evidence, one_sided, rank_band, sequence_interval
from atypicality.monitoring.state import MonitorState
from atypicality.monitoring.streams import ShareTests, make_streams
from atypicality.monitoring.windows import as_text, first_second, times, window_keys
from atypicality.outputs.paths import held
from atypicality.report import render_monitor
from atypicality.report.monitor_charts import ticks
from atypicality.shipping.bundle import BundleError, read_part, write_part
from atypicality.stored import Part, kinds

DAY = 86400.0


@pytest.fixture(scope="module")
def data():
    train, calibration, test = load_fashion_mnist()
    ids = np.arange(len(test)).astype(str)
    named = aty.ModelOutputs(
        test.logits, embeddings=test.embeddings, labels=test.labels, class_names=test.class_names, ids=ids
    )
    head = aty.ReliabilityHead().fit(train=train[:3000], calibration=calibration[:2000])
    return head, calibration[2000:], named


@pytest.fixture
def head(data):
    return data[0]


@pytest.fixture
def test(data):
    return data[2]


def unlabelled(outputs):
    return aty.ModelOutputs(outputs.logits, embeddings=outputs.embeddings, class_names=outputs.class_names)


def moved_columns(outputs, columns, by):
    embeddings = np.array(outputs.embeddings, np.float64)
    embeddings[:, columns] += by
    return aty.ModelOutputs(outputs.logits, embeddings=embeddings, class_names=outputs.class_names)


def state_of(monitor):
    """Everything the monitor stores, as plain values."""
    state = monitor._state
    plain = {name: getattr(state, name).tolist() for name in ("keys", "cells", "profile")}
    return plain | {name: getattr(state, name) for name in ("words", "first", "last", "alarms")}


class TestSequences:
    @pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.95])
    @pytest.mark.parametrize("trials", [1, 7, 60])
    def test_evidence_against_the_truth_has_expectation_one(self, share, trials):
        counts = np.arange(trials + 1)
        evidence = np.exp(log_evidence(counts, trials, share))
        assert binom(trials, share).pmf(counts) @ evidence == pytest.approx(1, rel=1e-10)

    def test_an_interval_ends_where_the_evidence_reaches_its_level(self):
        successes, trials = np.array([0, 3, 50, 100]), np.array([10, 10, 100, 100])
        low, high = sequence_interval(successes, trials, 0.05)
        inside = (low > 0) & (low < 1), (high > 0) & (high < 1)
        for ends, known in zip((low, high), inside, strict=True):
            reached = log_evidence(successes[known], trials[known], ends[known])
            np.testing.assert_allclose(reached, np.log(20), rtol=1e-6)
        assert (low[0], high[-1]) == (0, 1)
        assert [end.item() for end in sequence_interval(0, 0, 0.05)] == [0, 1]

    def test_bands_are_those_of_clopper_and_pearson_and_of_order_statistics(self):
        exact = binomtest(7, 40).proportion_ci(0.9, method="exact")
        assert [bound.item() for bound in exact_bounds(7, 40, 0.05)] == pytest.approx([exact.low, exact.high], rel=1e-8)
        assert [bound.item() for bound in exact_bounds(0, 40, 0.05)] == pytest.approx([0, 1 - 0.05 ** (1 / 40)])
        # the largest of n uniform values is below x with chance x^n, the smallest with chance 1 - (1 - x)^n
        assert [bound.item() for bound in rank_band(9, 9, 9, 0.05)] == pytest.approx([0.05 ** (1 / 9), 0.95 ** (1 / 9)])

    def test_errors_of_accepted_rows_ever_alarm_with_the_chance_of_their_level(self, rng):
        tests, counts = share_tests(rng, 50, ties=False)
        tests = ShareTests(make_streams(counts, CLASSES, None, 0, max_risk=0.1), 0.05)
        level = 0.05 / len(tests.streams)  # all of the stream's: no band is estimated, and there is one side
        assert tests.delta[-1] == pytest.approx(level)

        def ever(share, n_rows):
            """Exact chance of an alarm by n rows: those who had none, by their errors, one row at a time."""
            alive, cells = np.array([1.0]), np.zeros((n_rows + 2, tests.n_cells), np.int64)
            place = tests.places[-1]
            for n in range(1, n_rows + 1):
                alive = np.append(alive * (1 - share), 0) + np.append(0, alive * share)
                cells[: n + 1, place][:, :2] = np.stack([np.arange(n + 1), n - np.arange(n + 1)], axis=1)
                alive[tests.excess(cells[: n + 1])[1, :, -1] >= 0] = 0
            return 1 - alive.sum()

        assert 0 < ever(0.1, 400) <= level
        assert ever(0.25, 150) > 0.5

    def test_a_band_that_takes_the_reference_for_the_truth_alarms_in_most_lives(self, seed):
        alarms = 0
        for life in range(8):
            rng = np.random.default_rng([seed, life])
            tests, reference = share_tests(rng, 30, ties=False)
            tests.low = tests.high = np.concatenate([np.mean(stream.band(0.5), axis=0) for stream in tests.streams])
            alarms += bool(largest_excess((tests, reference), draw(rng, 10_000, ties=False)).max() >= 0)
        assert alarms >= 5  # shares of 30 rows are off by .09, and 10,000 rows tell .03: each life should alarm

    def test_a_shift_is_noticed(self, seed):
        rng = np.random.default_rng(seed)
        excess = largest_excess(share_tests(rng, 1000, ties=False), draw(rng, 4000, ties=False, shift=0.5))
        assert 50 < np.flatnonzero(excess >= 0)[0] < 1000


def test_ranks_that_share_a_value_keep_the_smallest_and_the_largest():
    ranks = Ranks.from_rows(np.repeat([1.0, 2.0], [90, 10]), [0.1, 0.5, 0.9, 0.95])
    assert (ranks.edges.tolist(), ranks.low.tolist(), ranks.high.tolist()) == ([1, 2], [10, 95], [90, 95])


def test_windows_follow_the_calendar():
    instants = ["2026-01-31T23:59:59+00:00", "2026-02-01T00:00:00+00:00", "2026-02-01T00:30:00+01:00"]
    seconds = [times(instant, 1)[0] for instant in instants]
    months = window_keys(np.array(seconds), "month")
    assert (months - months[0]).tolist() == [0, 1, 0]  # 00:30 in Berlin is the day before in UTC
    monday = datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC).timestamp()
    weeks = window_keys(np.array([monday - 1, monday, monday + 7 * DAY - 1]), "week")
    assert (weeks - weeks[0]).tolist() == [0, 1, 1]
    for window in ("hour", "day", "week", "month", 90.0):
        key = window_keys(np.array([monday + 12.0]), window)[0]
        start = first_second(int(key), window)
        assert start <= monday + 12 < first_second(int(key) + 1, window)
        assert window_keys(np.array([start]), window)[0] == key
    for midnight in (np.datetime64("2026-01-01"), datetime.date(2026, 1, 1), "2026-01-01", "2026-01-01T00:00:00Z"):
        assert as_text(times(midnight, 1)[0]) == "2026-01-01T00:00:00Z"
    assert times(None, 1)[0] <= times("now", 1)[0] <= times(None, 1)[0]


class TestCounts:
    def test_one_row_at_a_time_equals_one_batch(self, head, test):
        whole, single = aty.Monitor(head), aty.Monitor(head)
        whole.add(test[:40], at=DAY)
        for row in range(40):
            single.add(test[row : row + 1], at=DAY)
        assert state_of(whole) == state_of(single)
        assert (whole.n_rows, whole.n_labelled) == (40, 40)

    def test_merging_two_equals_one_that_saw_both(self, head, test):
        one, two, both = (aty.Monitor(head, window="hour", keep=3) for _ in range(3))
        for hour in range(8):  # more windows than are kept apart
            rows = test[hour * 50 : hour * 50 + 50]
            (one if hour % 3 else two).add(rows, at=hour * 3600.0)
            both.add(rows, at=hour * 3600.0)
        assert state_of(one.merge(two)) == state_of(two.merge(one)) == state_of(both)
        assert both._state.keys.tolist() == [0, 5, 6, 7]
        assert one.merge(two).n_rows == 400

    def test_batches_from_the_first_window_on_may_come_in_any_order(self, head, test):
        rows = [unlabelled(test[test.labels == label][:60]) for label in range(6)]
        in_order, shuffled = aty.Monitor(head, keep=3), aty.Monitor(head, keep=3)
        for day in range(6):
            in_order.add(rows[day], at=day * DAY)
        for day in (0, 5, 2, 4, 1, 3):  # windows 1 and 2 are no longer kept apart when they come
            shuffled.add(rows[day], at=day * DAY)
        counts = [
            {name: value for name, value in state_of(one).items() if name != "alarms"} for one in (in_order, shuffled)
        ]
        assert counts[0] == counts[1]

    def test_merging_looks_at_the_whole(self, head, test):
        shirts = unlabelled(test[test.labels == 6])
        one, two, both = (aty.Monitor(head, alpha=1e-4) for _ in range(3))
        assert not one.add(shirts[:8], at=0)
        assert not two.add(shirts[8:16], at=0)
        expected = both.add(shirts[:16], at=0)
        assert expected
        assert one.merge(two).alarms == expected

    def test_monitors_of_different_kinds_do_not_merge(self, data):
        head, fresh, _ = data
        with pytest.raises(ValueError, match="it differs in alpha, window"):
            aty.Monitor(head).merge(aty.Monitor(head, alpha=0.1, window="hour"))
        with pytest.raises(ValueError, match="it differs in reference"):
            aty.Monitor(head).merge(aty.Monitor(head, fresh))
        with pytest.raises(TypeError, match="other must be a Monitor"):
            aty.Monitor(head).merge(head)

    def test_every_field_of_words_is_counted(self, head, test):
        answer = SimpleNamespace(quadrant=np.array(["reliable"]), advice=np.array(["use"]))
        assert {name: column.tolist() for name, column in words_of(answer, None).items()} == {
            "quadrant": ["reliable"],
            "advice": ["use"],
        }
        monitor = aty.Monitor(head)
        monitor.add(test[:100], at=0)
        monitor.add(test[100:200], at=0)
        quadrants = head.predict(test[:200]).quadrant
        assert sum(monitor._state.words["quadrant"].values()) == 200
        assert monitor._state.words["quadrant"]["reliable"] == (quadrants == "reliable").sum()

    def test_rows_of_several_windows_in_one_batch(self, head, test):
        monitor, apart = aty.Monitor(head), aty.Monitor(head)
        monitor.add(test[:30], at=np.repeat([0.0, DAY, 2 * DAY], 10))
        for day in range(3):
            apart.add(test[day * 10 : day * 10 + 10], at=day * DAY)
        assert state_of(monitor) == state_of(apart)


class TestAlarms:
    def test_no_alarm_on_rows_like_the_reference(self, data):
        head, _, test = data
        monitor = aty.Monitor(head)
        assert [monitor.add(test[day * 500 : day * 500 + 500], at=day * DAY) for day in range(10)] == [[]] * 10
        assert monitor.moved() == {}

    def test_an_alarm_is_a_sequence_disjoint_from_its_band(self, head, test):
        monitor = aty.Monitor(head)
        monitor.add(test[:500], at=0)
        raised = monitor.add(test[test.labels == 6], at=DAY)
        assert {alarm.what for alarm in raised} >= {("class", "Shirt", "rose"), ("error", "wrong", "rose")}
        for alarm in raised:
            assert alarm.low > alarm.reference_high or alarm.high < alarm.reference_low
            assert alarm.low <= alarm.share <= alarm.high
        shirt = next(alarm for alarm in raised if alarm.item == "Shirt")
        assert (shirt.since, shirt.n_rows) == (DAY, int((test.labels == 6).sum()))  # the day it began
        assert monitor.add(test[:1], at=2 * DAY) == []  # what is known is not raised again
        assert monitor.alarms == raised

    def test_the_alarm_comes_at_the_look_that_the_tests_say(self, head, test):
        rows = unlabelled(test[test.labels == 6])[:60]
        monitor = aty.Monitor(head)
        alarmed = [bool(monitor.add(rows[row : row + 1], at=0)) for row in range(60)]
        tests, answer = monitor._tests, head.predict(rows)
        stream, place = next(
            (stream, place) for stream, place in zip(tests.streams, tests.places, strict=True) if stream.name == "class"
        )
        cells = np.zeros((60, tests.n_cells), np.int64)
        cells[np.arange(60), place.start + answer.label] = 1
        excess = tests.excess(np.cumsum(cells, axis=0)) - np.log(2)  # the first window has the weight 1 / 2
        classes = np.flatnonzero([tested is stream for tested, _ in tests.tested])
        crossed = (excess[:, :, classes] >= 0).any(axis=(0, 2))
        assert crossed.any()
        assert alarmed.index(True) <= np.flatnonzero(crossed)[0]
        first = next(alarm for alarm in monitor.alarms if alarm.stream == "class")
        assert first.n_rows == np.flatnonzero(crossed)[0] + 1

    def test_which_inputs_and_words_moved(self, data):
        head, fresh, test = data
        sites = np.where(np.arange(len(fresh)) % 2, "north", "south")
        fresh = aty.ModelOutputs(
            fresh.logits, embeddings=fresh.embeddings, labels=fresh.labels, class_names=fresh.class_names,
            attributes={"site": sites},
        )  # fmt: skip
        monitor = aty.Monitor(head, fresh)
        rows = moved_columns(test[:800], [3, 7], 100.0)
        rows.attributes["site"] = np.full(800, "east")
        monitor.add(rows, at=0)
        moved = monitor.moved()
        assert {(alarm.item, alarm.direction) for alarm in moved["input"]} >= {
            ("embedding 3", "rose"),
            ("embedding 7", "rose"),
        }
        assert {alarm.item for alarm in moved["input"][:2]} == {"embedding 3", "embedding 7"}
        assert {(a.item, a.direction) for a in moved["attribute site"]} == {("north", "fell"), ("south", "fell")}
        assert "atypicality" in moved

    def test_a_drift_after_a_long_quiet_time_is_still_noticed(self, head, test):
        monitor = aty.Monitor(head)
        for day in range(30):
            assert not monitor.add(unlabelled(test[:1000]), at=day * DAY)
        raised = monitor.add(unlabelled(test[test.labels == 6]), at=30 * DAY)
        assert any(alarm.item == "Shirt" and alarm.since == 30 * DAY for alarm in raised)

    def test_late_labels_count_like_labels_that_came_with_the_rows(self, head, test):
        at_once, late, by_id = aty.Monitor(head), aty.Monitor(head), aty.Monitor(head)
        at_once.add(test[:300], at=0)
        for monitor in (late, by_id):
            monitor.add(unlabelled(test[:300]), at=0)
        late.add_labels(test[:300], at=0)
        order = np.random.default_rng(0).permutation(300)
        answer = head.predict(test[:300])
        by_id.add_labels(answer, test.class_names[test.labels[order]], ids=answer.ids[order], at=0)
        assert state_of(at_once) == state_of(late) == state_of(by_id)
        assert at_once.n_labelled == 300

    def test_sets_that_miss_too_often_raise_an_alarm(self, data):
        head, fresh, test = data
        wrong = (test.labels + 1) % 10
        for monitor in (aty.Monitor(head), aty.Monitor(head, fresh)):
            monitor.add(unlabelled(test[:500]), at=0)
            raised = monitor.add_labels(head.predict(test[:500]), wrong[:500], at=DAY)
            assert {alarm.stream for alarm in raised} == {"error", "miss"}


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda t: aty.ModelOutputs(t.logits[:, :9], embeddings=t.embeddings), "9"),
            (lambda t: aty.ModelOutputs(t.logits), "embeddings"),
            (lambda t: aty.ModelOutputs(t.logits, embeddings=t.embeddings[:, :5]), "5"),
            (lambda t: aty.ModelOutputs(t.logits, embeddings=np.full(t.embeddings.shape, np.nan)), "NaN|finite"),
            (lambda t: aty.ModelOutputs(np.full(t.logits.shape, np.nan), embeddings=t.embeddings), "NaN"),
            (
                lambda t: aty.ModelOutputs(t.logits, embeddings=t.embeddings, class_names=list("abcdefghij")),
                "class_names",
            ),
            (lambda t: t[:0], "at least one row"),
            (lambda t: t.logits, "must be ModelOutputs"),
            (lambda t: aty.ModelOutputs(t.logits.astype(str), embeddings=t.embeddings), "dtype"),
        ],
    )
    def test_rows_that_cannot_be_judged_change_nothing(self, head, test, change, message):
        monitor = aty.Monitor(head)
        monitor.add(test[:50], at=5)
        before = state_of(monitor)
        with pytest.raises((ValueError, TypeError), match=message):
            monitor.add(change(test[:20]), at=6)
        assert state_of(monitor) == before

    @pytest.mark.parametrize(
        ("at", "message"),
        [
            (4.0, "before the monitor's first day, 1970-01-02T00:00:00Z; got 1970-01-01T00:00:04Z"),
            ([DAY + 1] * 19 + [DAY], "row 19 is earlier"),
            ([DAY, DAY], "got 2 for 20 rows"),
            (np.nan, "finite"),
            (-1.0, "from 1970 to 9999"),
            ("yesterday", "got 'yesterday'"),
            (datetime.datetime(2026, 1, 1), "time zone"),
            ("2026-01-01T00:00:00", "time zone"),
            (True, "must be a number"),
        ],
    )
    def test_times_that_cannot_be_change_nothing(self, head, test, at, message):
        monitor = aty.Monitor(head)
        monitor.add(test[:50], at=DAY)
        before = state_of(monitor)
        with pytest.raises((ValueError, TypeError), match=message):
            monitor.add(test[:20], at=at)
        with pytest.raises((ValueError, TypeError), match=message):
            monitor.add_labels(test[:20], at=at)
        assert state_of(monitor) == before

    def test_labels_of_unknown_rows_change_nothing(self, head, test):
        monitor, answer = aty.Monitor(head), head.predict(test[:20])
        before = state_of(monitor)
        for labels, options, message in (
            ([1, 2], {"ids": ["3", "no such row"]}, "no such row is not"),
            ([1, 2], {"ids": ["3", "3"]}, "ids must be distinct"),
            ([1, 2], {"ids": ["3"]}, "one for each label"),
            ([1, 2], {}, "got 2 for 20 rows"),
            ([77, 2], {"ids": ["3", "4"]}, "77"),
            (None, {}, "labels must be given"),
        ):
            with pytest.raises(ValueError, match=message):
                monitor.add_labels(answer, labels, at=0, **options)
        with pytest.raises(ValueError, match="outputs have no ids"):
            monitor.add_labels(head.predict(unlabelled(test[:2])), [1, 2], ids=["0", "1"], at=0)
        assert state_of(monitor) == before

    def test_windows_without_rows_have_no_estimate(self, head, test):
        monitor = aty.Monitor(head)
        with pytest.raises(ValueError, match="no row in these windows"):
            monitor.estimated_accuracy()
        monitor.add(unlabelled(test[:50]), at=0)
        monitor.add_labels(test[:50], at=5 * DAY)
        with pytest.raises(ValueError, match="no row in these windows"):
            monitor.estimated_accuracy(last=2)
        assert monitor.estimated_accuracy(last=6).n_rows == 50

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"alpha": 1.0}, "alpha"),
            ({"window": "fortnight"}, "window"),
            ({"window": -1}, "window"),
            ({"keep": 0}, "keep"),
        ],
    )
    def test_settings_are_checked(self, head, options, message):
        with pytest.raises(ValueError, match=message):
            aty.Monitor(head, **options)

    def test_calibration_rows_are_no_reference(self, head):
        with pytest.raises(ValueError, match="these are its calibration rows"):
            aty.Monitor(head, load_fashion_mnist()[1][:2000])

    def test_a_key_is_counted_once_also_after_a_save_and_in_a_merge(self, head, test, tmp_path):
        monitor, other = aty.Monitor(head), aty.Monitor(head)
        monitor.add(test[:9]._replaced(labels=None), at=5, key="a")
        other.add(test[:9], at=5, key="a")
        monitor.add_labels(test[:9], at=6, key="late")
        monitor.save(tmp_path)
        again = aty.Monitor.load(tmp_path, head)
        assert again.counted == {"a": 5.0, "late": 6.0}
        before = state_of(again)
        for count in (again.add, again.add_labels):
            with pytest.raises(ValueError, match="'a' was counted at 1970-01-01T00:00:05Z"):
                count(test[:9], at=9, key="a")
        with pytest.raises(ValueError, match="both have counted those with the key 'a'"):
            again.merge(other)
        assert state_of(again) == before

    def test_a_head_without_counts_says_so(self, head):
        old = aty.ReliabilityHead()
        old.__dict__ |= head.__dict__ | {"reference_": None}
        with pytest.raises(ValueError, match="an older version fitted it"):
            aty.Monitor(old)


class TestFiles:
    def test_a_state_comes_back_as_it_was(self, data, tmp_path):
        head, fresh, test = data
        for monitor in (aty.Monitor(head), aty.Monitor(head, fresh, alpha=0.05, window=90.0, keep=7)):
            monitor.save(tmp_path / "new")
            assert state_of(aty.Monitor.load(tmp_path / "new", head)) == state_of(monitor)
            monitor.add(test[:200], at=0)
            monitor.add(test[test.labels == 6], at=200)
            monitor.save(tmp_path / "state")
            again = aty.Monitor.load(tmp_path / "state", head)
            assert state_of(again) == state_of(monitor)
            assert again.to_dict() == monitor.to_dict()
            assert again.add(test[:9], at=300) == monitor.add(test[:9], at=300)
            assert state_of(again.merge(monitor)) == state_of(monitor.merge(again))

    def test_another_head_and_a_bundle_of_a_head_are_refused(self, head, test, tmp_path):
        train, calibration, _ = load_fashion_mnist()
        other = aty.ReliabilityHead().fit(train=train[:500], calibration=calibration[:300])
        aty.Monitor(head).save(tmp_path / "state")
        with pytest.raises(ValueError, match=r"other calibration rows\. A new head needs a new monitor"):
            aty.Monitor.load(tmp_path / "state", other)
        head.save(tmp_path / "head")
        with pytest.raises(BundleError, match="does not describe a monitor"):
            aty.Monitor.load(tmp_path / "head", head)
        with pytest.raises(BundleError, match="holds the state of a monitor, not a head"):
            aty.load(tmp_path / "state")

    def test_a_state_under_its_former_name_is_read_and_renamed_and_heads_and_states_keep_apart(
        self, head, test, tmp_path
    ):
        monitor = aty.Monitor(head)
        monitor.add(test[:100], at=0)
        write_part(monitor._state, MonitorState, tmp_path / "old", card="As it was.")  # head.json
        with pytest.raises(BundleError, match="does not describe a head"):
            aty.load(tmp_path / "old")
        again = aty.Monitor.load(tmp_path / "old", head)
        assert state_of(again) == state_of(monitor)
        again.add(test[100:200], at=0)
        again.save(tmp_path / "old")
        assert sorted(path.name[:8] for path in (tmp_path / "old").iterdir()) == ["README.m", "monitor.", "tensors-"]
        assert state_of(aty.Monitor.load(tmp_path / "old", head)) == state_of(again)
        with pytest.raises(FileExistsError, match="holds the state of a monitor"):
            head.save(tmp_path / "old")
        head.save(tmp_path / "head")
        with pytest.raises(ValueError, match=r"folder must be the monitor's own; .* holds a head"):
            monitor.save(tmp_path / "head")
        assert aty.load(tmp_path / "head").fingerprint_ == head.fingerprint_
        [text] = (tmp_path / "old").glob("monitor.json")
        text.write_text("{}")
        with pytest.raises(BundleError, match=r"cannot be read: monitor.json must state its format"):
            aty.Monitor.load(tmp_path / "old", head)

    def test_accepted_rows_are_those_of_predict(self, head, test, tmp_path):
        monitor, plain = aty.Monitor(head, max_risk=0.05), aty.Monitor(head)
        days = test[:400], unlabelled(test[400:700]), test[700:750]
        for day, rows in enumerate(days):
            monitor.add(rows, at=day * DAY)
            plain.add(rows, at=day * DAY)
        kept = [head.predict(rows, max_risk=0.05).accepted for rows in days]
        wrong = [
            (head.predict(rows).label != rows.labels)[part] for rows, part in zip(days[::2], kept[::2], strict=True)
        ]
        monitor.save(tmp_path)
        told = aty.Monitor.load(tmp_path, head).to_dict()["accepted"]
        assert [row["accepted"] for row in told] == [int(part.sum()) for part in kept]
        assert [row["share"] for row in told] == [float(part.mean()) for part in kept]
        assert [(row["labelled"], row["wrong"]) for row in told[::2]] == [
            (part.size, int(part.sum())) for part in wrong
        ]
        assert plain.to_dict()["accepted"] == []
        both = monitor.merge(aty.Monitor(head, max_risk=0.05)).to_dict(rolling=3)["accepted"][-1]
        assert both["accepted"] == sum(int(part.sum()) for part in kept)
        newest, whole = (
            line for line in monitor.summary().splitlines() if "accepted at a risk of at most 5%: " in line
        )
        assert f"newest day: accepted at a risk of at most 5%: {kept[2].mean():.1%} of 50 rows; of " in newest
        marks = np.concatenate(wrong)
        ends = binomtest(int(marks.sum()), marks.size).proportion_ci(0.95, method="wilson")
        told = f"of {marks.size} with a label {marks.mean():.1%} are wrong, 95% interval (Wilson) "
        assert whole.endswith(f"{told}{ends.low:.1%} to {ends.high:.1%}")
        page = render_monitor(monitor.to_dict())
        assert "<h2>Accepted at a risk of at most 5%</h2>" in page
        assert f"Of {marks.size} accepted rows with a label <b>{marks.mean():.1%}</b> are wrong, 95% interval" in page
        assert "Accepted" not in render_monitor(plain.to_dict())
        with pytest.raises(ValueError, match="differs in max_risk"):
            monitor.merge(plain)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="not on this system: fork")
    def test_a_killed_process_loses_at_most_the_rows_since_its_last_save(self, head, test, tmp_path):
        head.save(tmp_path / "head")
        test[:400].save(tmp_path / "rows.npz")
        code = (
            "import sys, atypicality as aty\n"
            f"head = aty.load({str(tmp_path / 'head')!r})\n"
            f"rows = aty.ModelOutputs.load({str(tmp_path / 'rows.npz')!r})\n"
            "monitor, place = aty.Monitor(head), 0\n"
            "while True:\n"
            "    monitor.add(rows[place : place + 1], at=place)\n"
            "    place = (place + 1) % 400 or sys.exit()\n"
            f"    if place % 3 == 0: monitor.save({str(tmp_path / 'state')!r}); print(place, flush=True)\n"
        )
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        told = [int(child.stdout.readline()) for _ in range(4)]
        time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
        saved = int(rest.split()[-1]) if rest.split() else told[-1]
        found = aty.Monitor.load(tmp_path / "state", head)
        assert saved <= found.n_rows <= saved + 3  # a save may have ended before its line was written
        replayed = aty.Monitor(head)
        for place in range(found.n_rows):
            replayed.add(test[place : place + 1], at=place)
        assert state_of(found) == state_of(replayed)


class TestShown:
    def test_history_counts_each_window_and_rolls(self, head, test):
        monitor = aty.Monitor(head)
        for day in (0, 1, 4):
            monitor.add(test[day * 100 : day * 100 + 100], at=day * DAY)
        rows = [row for row in monitor.history() if row["stream"] == "error"]
        wrong = head.predict(test).label != test.labels
        assert [row["share"] for row in rows] == [wrong[day * 100 : day * 100 + 100].mean() for day in (0, 1, 4)]
        rolled = [row["rows"] for row in monitor.history(rolling=2) if row["stream"] == "error"]
        assert rolled == [100, 200, 100]  # the days before the last are empty
        assert json.loads(monitor.to_json())["rows"] == 300
        assert "no alarm" in monitor.summary()
        assert repr(monitor) == "Monitor(300 rows, 0 alarms)"

    def test_the_page_shows_text_as_text(self, head, test, tmp_path):
        monitor = aty.Monitor(head)
        monitor.add(test[test.labels == 6], at=0)
        monitor.to_html(tmp_path / "page.html", title="<b>mine</b>")
        page = (tmp_path / "page.html").read_text()
        assert "&lt;b&gt;mine" in page
        assert "Shirt" in page
        plain = monitor.to_dict()
        assert all(html.escape(str(alarm)) in page for alarm in monitor.alarms)
        plain["alarms"][0] |= {"text": "<script>alert(1)</script>"}
        plain["history"][0] |= {"item": "<script>alert(1)</script>"}
        assert "<script>alert" not in render_monitor(plain)

    @pytest.mark.parametrize("by", [-100.0, 100.0])
    def test_an_alarm_of_values_is_told_in_the_direction_of_the_change(self, data, by):
        head, fresh, test = data
        monitor = aty.Monitor(head, fresh)
        monitor.add(moved_columns(test[:800], [3], by), at=0)
        told = next(alarm for alarm in monitor.moved()["input"] if alarm.item == "embedding 3")
        start = f"{'rose' if by > 0 else 'fell'}: 100% of 800 rows since 1970-01-01 are "
        assert str(told).startswith(f"input embedding 3 {start}{'above' if by > 0 else 'below'} the reference's median")
        [group] = [group for group in monitor.to_dict()["outside"] if "embedding 3" in group["items"]]
        assert (group["share"], group["high"], group["low"] > 0.9) == (1, 1, True)
        texts = [str(alarm) for alarm in monitor.moved()["atypicality"] if alarm.item.startswith("quantile 0.5 ")]
        assert texts[0].startswith("atypicality rose: ")
        assert "% of 800 rows since 1970-01-01 are above the reference's median, " in texts[0]

    def test_alarms_of_confidence_and_rates_name_value_and_limit(self):
        numbers = (0.0, 0.0, 0.61, 0.55, 0.67, 0.46, 0.538, 1500)
        fell = aty.monitoring.state.Alarm("confidence", "quantile 0.5 (0.93)", "fell", *numbers)
        text = "confidence fell: 61% of 1,500 rows since 1970-01-01 are below 0.93, 46% to 53.8% expected"
        assert str(fell) == text
        ties = (0.0, 90.0, 0.257, 0.2, 0.3, 0.442, 0.302, 1500)  # 44.2 % at or below at least, 30.2 % below at most
        rose = aty.monitoring.state.Alarm("confidence", "quantile 0.5 (0.88)", "rose", *ties)
        assert str(rose).endswith(" since 1970-01-01T00:01:30Z are above 0.88, at most 55.8% expected")
        wrong = aty.monitoring.state.Alarm("error", "wrong", "rose", 0, 0, 0.2, 0.15, 0.25, 0.0, 0.0912, 500)
        assert str(wrong) == "errors rose: 20% of 500 labelled rows since 1970-01-01 are wrong, at most 9.12% expected"

    def test_the_summary_tells_the_newest_window_first_and_what_was_measured(self, head, test):
        monitor = aty.Monitor(head)
        monitor.add(test[:300], at=0)
        assert "300 labels, 1 window;" in monitor.summary()
        assert "newest" not in monitor.summary()
        shirts = test[test.labels == 6]
        monitor.add(shirts, at=DAY)
        *_, came, newest, labelled, whole = monitor.summary().splitlines()
        right = [(head.predict(rows).label == rows.labels).sum() for rows in (test[:300], shirts)]
        refused = monitor.estimated_accuracy(last=1).refusal
        assert newest == f"  newest day: no estimate of accuracy: {refused}"  # no advice to label what is labelled
        quantiles = [line for line in monitor.summary().splitlines() if "confidence fell" in line]
        raised = [alarm for alarm in monitor.alarms if (alarm.stream, alarm.direction) == ("confidence", "fell")]
        assert len(quantiles) == 1
        assert f"; and {len(raised) - 1} more of its quantiles; newest day " in quantiles[0]
        assert whole.startswith("  all rows: ")

        def told(hits, n):
            ends = binomtest(int(hits), n).proportion_ci(0.95, method="wilson")
            return f"accuracy {hits / n:.3f}, 95% interval (Wilson) {ends.low:.3f} to {ends.high:.3f}"

        n = len(shirts)
        assert came == f"  newest day: measured on {n} labels that came in this day: {told(right[1], n)}"
        assert labelled == f"  all rows: measured on {n + 300} labels: {told(sum(right), n + 300)}"
        page = html.unescape(render_monitor(monitor.to_dict()))
        assert f"measured on {n} labels that came in it: <b>{right[1] / n:.3f}</b>, 95% interval" in page
        assert refused in page
        assert "abel some rows" not in page + monitor.summary()
        most, predicted = next(iter(monitor.moved()["class"])), head.predict(shirts)
        share = np.mean(predicted.label_names() == most.item)
        assert f"{most}; newest day {100 * share:.3g}% of {len(shirts)}\n" in monitor.summary()
        assert f"newest 2 days: measured on {n + 300} labels that came in these 2 days" in monitor.summary(rolling=2)
        monitor.add_labels(test[:9], at=3 * DAY)
        newest = [line for line in monitor.summary().splitlines() if line.startswith("  newest day: ")]
        assert newest[0].startswith("  newest day: measured on 9 labels that came in this day: accuracy ")
        assert newest[1:] == ["  newest day: no rows to estimate the accuracy of"]
        assert f"{most}; newest day none\n" in monitor.summary()

    def test_text_and_page_tell_the_same_groups_errors_of_accepted_rows_first(self, data):
        head, fresh, test = data
        monitor = aty.Monitor(head, fresh, max_risk=0.05)
        monitor.add(test[:300], at=0)
        shirts = moved_columns(test[test.labels == 6], range(9), 0.3)
        monitor.add(shirts._replaced(labels=np.where(np.arange(len(shirts)) % 3, 6, 0)), at=DAY)
        told = monitor.to_dict()
        streams = [group["stream"] for group in told["outside"]]
        assert streams[:2] == ["risk", "error"]
        assert streams[-1] == "input"
        assert {"class", "confidence"} <= set(streams)
        assert sum(len(group["items"]) for group in told["outside"]) == sum(map(len, monitor.moved().values()))
        lines = [line for line in monitor.summary().splitlines() if line.startswith("  alarm ")]
        assert [group["text"] in line for group, line in zip(told["outside"], lines, strict=True)] == [True] * len(
            lines
        )
        page = html.unescape(render_monitor(told))
        places = [page.index(f"<td><bdi>{group['text']}") for group in told["outside"]]
        assert places == sorted(places)
        assert f"<b><bdi>{told['outside'][0]['text']}</bdi></b>" in page  # in the card at the top
        assert re.findall("<h2><?b?d?i?>?(Accepted|Errors|Inputs)", page) == ["Accepted", "Errors", "Inputs"]
        assert (told["head"], told["first"][:10]) == (head.fingerprint_, "1970-01-01")
        assert f"<code>{head.fingerprint_}</code>" in page

    def test_alarms_that_are_over_are_one_line(self, head, test):
        monitor = aty.Monitor(head)
        monitor.add(test[test.labels == 6], at=0)
        assert "classes moved, most: class Shirt rose" in monitor.summary()
        monitor.add(test[test.labels != 6], at=1)  # now all of the window are the shares of the reference
        assert not monitor.moved()
        assert f"  {len(monitor.alarms)} alarms are over, inside again" in monitor.summary()
        assert "Shirt" not in monitor.summary()
        assert "may be too high" not in monitor.summary()

    def test_columns_that_moved_together_are_one_line(self, data):
        head, fresh, test = data
        monitor = aty.Monitor(head, fresh)
        monitor.add(moved_columns(test[:800], range(9), 0.3), at=0)
        lines = [line for line in monitor.summary().splitlines() if "input" in line]
        moved = monitor.moved()["input"]
        assert len(moved) > 3
        assert lines == [f"  alarm 1970-01-01T00:00:00Z {len(moved)} of 48 embedding columns moved, most: {moved[0]}"]

    def test_an_estimate_while_something_has_moved_has_a_caution(self, head, test):
        monitor = aty.Monitor(head)
        monitor.add(unlabelled(test[:500]), at=0)
        assert "too high" not in monitor.summary() + render_monitor(monitor.to_dict())
        monitor.add_labels(head.predict(test[:500]), (test.labels[:500] + 1) % 10, at=DAY)
        assert "(something has moved, so this may be too high: go by what was measured)" in monitor.summary()
        assert "this may be too high: go by what was measured." in render_monitor(monitor.to_dict())
        monitor.add(unlabelled(test[500:900]), at=2 * DAY)
        newest = next(line for line in monitor.summary().splitlines() if line.startswith("  newest day: accuracy"))
        assert newest.endswith("(something has moved, so this may be too high: label some rows)")
        assert "this may be too high: label some rows." in render_monitor(monitor.to_dict())

    def test_the_page_has_what_labels_show_first_and_says_shares_in_words(self, data):
        head, fresh, test = data
        monitor = aty.Monitor(head, fresh, window="hour")
        monitor.add(test[:50], at=0)
        monitor.add(test[50:90], at=3600)
        page = render_monitor(monitor.to_dict())
        headings = re.findall("<h2><bdi>(.*?)</bdi>", page)
        assert headings[:5] == ["Errors", "Sets that miss the label", "Atypicality", "Confidence", "Predicted classes"]
        assert headings[-1] == "Inputs"
        assert page.count(": 50% of the reference</bdi>") == 2  # of atypicality and confidence
        right = float((head.predict(test[50:90]).label == test.labels[50:90]).mean())
        assert f"Accuracy measured on 40 labels that came in it: <b>{right:.3f}</b>" in page
        assert 'text-anchor="middle">1 Jan 01:00</text>' in page
        assert 'class="n">n 40</text>' in page

    @needs("altair")
    def test_the_chart_draws_every_window(self, head, test):
        monitor = aty.Monitor(head)
        for day in range(3):
            monitor.add(test[day * 50 : day * 50 + 50], at=day * DAY)
        chart = aty.charts.monitor_history(monitor, "class").to_dict()
        assert len(next(iter(chart["datasets"].values())) if "datasets" in chart else chart["data"]["values"]) == 30
        with pytest.raises(ValueError, match="monitor has no rows for the stream 'no such stream'"):
            aty.charts.monitor_history(monitor, "no such stream")


def test_the_command_counts_alarms_and_shows(head, test, tmp_path, capsys):
    head.save(tmp_path / "head")
    test[:300].save(tmp_path / "day1.npz")
    test[300:][test.labels[300:] == 6].save(tmp_path / "day2.npz")
    folder = [str(tmp_path / "head"), str(tmp_path / "state")]
    assert main(["monitor", *folder, str(tmp_path / "day1.npz"), "--at", "2026-01-01T00:00:00+00:00"]) == 0
    assert "no alarm" in capsys.readouterr().out
    page = ["--out", str(tmp_path / "page.html"), "--json"]
    assert main(["monitor", *folder, str(tmp_path / "day2.npz"), "--at", "2026-01-02T00:00:00+00:00", *page]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == 300 + int((test.labels[300:] == 6).sum())
    assert told["raised"] == told["alarms"]
    assert {alarm["item"] for alarm in told["alarms"]} >= {"Shirt", "wrong"}
    assert "Shirt" in Path(tmp_path / "page.html").read_text()
    assert "<h1>Monitor of head</h1>" in Path(tmp_path / "page.html").read_text()
    rest = np.flatnonzero((np.arange(len(test)) >= 300) & (test.labels != 6))
    test[rest[:100]].save(tmp_path / "early.npz")
    assert main(["monitor", *folder, str(tmp_path / "early.npz"), "--at", "2025-12-31"]) == 2
    assert "before the monitor's first day, 2026-01-01T00:00:00Z" in capsys.readouterr().err
    later = ["--labels-only", "--at", "2026-01-03T00:00:00+00:00", "--names", "labels=y"]
    np.savez(tmp_path / "late.npz", logits=test.logits[:300], embeddings=test.embeddings[:300], y=test.labels[:300])
    assert main(["monitor", *folder, str(tmp_path / "late.npz"), *later]) == 5  # nothing new, and still outside
    assert aty.Monitor.load(tmp_path / "state", head).n_labelled == told["labelled"] + 300
    assert main(["monitor", folder[0], str(tmp_path / "other"), "--window", "1e3"]) == 0
    assert aty.Monitor.load(tmp_path / "other", head).to_dict()["window"] == 1000.0
    capsys.readouterr()
    assert main(["monitor", folder[0], str(tmp_path / "third"), "--window", "fortnight"]) == 2
    assert "or a number of seconds; got 'fortnight'" in capsys.readouterr().err
    (tmp_path / "bad.npz").write_bytes(b"no outputs")
    both = [str(tmp_path / name) for name in ("early.npz", "bad.npz")]
    assert main(["monitor", *folder, *both, "--at", "2026-01-04"]) == 2
    assert aty.Monitor.load(tmp_path / "state", head).n_rows == told["rows"]  # the call can be repeated


def test_options_equal_to_those_of_the_state_are_accepted_and_others_are_named(data, files, tmp_path, capsys):
    state, reference, other = (tmp_path / name for name in ("state", "reference.npz", "other.npz"))
    data[1][:500].save(reference)
    data[1][500:].save(other)
    same = ["--alpha", "0.02", "--window", "86400", "--max-risk", "0.1", "--reference", reference]
    for day in range(2):
        assert monitored(files, state, files / f"day{day}.npz", "--at", f"2026-01-0{day + 1}", *same) == 0
    assert "Monitor: 800 rows" in capsys.readouterr().out
    for option, value, told in (
        ("--alpha", "0.5", f"--alpha is 0.5, and the monitor in '{state}' was made with 0.02. Leave it out"),
        ("--window", "day", "--window is day, and "),
        ("--max-risk", "0.2", "was made with 0.1. Leave it out to go on, or give another folder for a new monitor."),
        ("--reference", other, "--reference holds other rows than the monitor in "),
        ("--window", "fortnight", "got 'fortnight'"),
    ):
        assert monitored(files, state, option, value) == 2
        assert told in capsys.readouterr().err


def test_an_axis_has_round_ticks_around_what_it_shows(seed):
    for low, high in np.sort(np.random.default_rng(seed).random((300, 2)) ** 3, axis=1):
        found = np.array(ticks(low, high))
        steps = np.diff(found)
        assert found[0] <= low + 1e-9
        assert found[-1] >= high - 1e-9
        assert 0 <= found[0] < found[-1] <= 1
        assert 2 <= found.size <= 7
        np.testing.assert_allclose(steps, steps[0])
        assert f"{steps[0]:.0e}"[0] in "125"


def test_counts_with_ties_can_be_stored(tmp_path):
    """Confidence and atypicality may have different numbers of edges."""
    rows, ones = np.arange(200.0), np.zeros(200, np.intp)
    counts = HeldOutCounts.from_rows(np.full(200, 0.9), ones, ones, n_classes=2, atypicality=rows)
    write_part(counts, HeldOutCounts, tmp_path, card="Counts.")
    again = read_part(HeldOutCounts, tmp_path)
    assert (again.confidence.edges.tolist(), again.atypicality.edges.size) == ([0.9], 8)
    assert (again.confidence.low.tolist(), again.confidence.high.tolist()) == ([10], [198])


def test_labels_of_accepted_rows_are_counted_at_the_risk(head, test, tmp_path):
    said = head.predict(test, max_risk=0.05)
    wrong = said.label != test.labels
    monitor = aty.Monitor(head, max_risk=0.05)
    monitor.add(test, at=0)
    monitor.save(tmp_path / "state")
    monitor = aty.Monitor.load(tmp_path / "state", head)
    [row] = [row for row in monitor.history() if row["stream"] == "risk"]
    kept = int(said.accepted.sum())
    assert (row["rows"], row["share"]) == (kept, np.count_nonzero(wrong[said.accepted]) / kept)
    assert (row["reference_low"], row["reference_high"], monitor.to_dict()["max_risk"]) == (0, 0.05, 0.05)
    assert "Errors among accepted rows" in render_monitor(monitor.to_dict())


def test_a_state_from_before_keys_were_remembered_is_read():
    counts = HeldOutCounts.from_rows([0.5, 0.9], np.array([0, 1]), np.array([0, 0]), n_classes=2)
    none = np.zeros((0, 3), np.int64)
    state = MonitorState("ab", 0.01, "day", 3, counts, 0, none[:, 0], none, none, counted={"a": 1.0})
    stored = Part(MonitorState).write(state, kinds.Place.start(tensors := {}))
    for name in ("counted", "max_risk", "doubted", "seen", "labelled"):
        stored["fitted"].pop(name)
    arrays = {"head.keys": np.array([3, 4]), "head.cells": np.ones((2, 3), int), "head.profile": np.ones((2, 3), int)}
    stored["fitted"]["first"] = 3
    kept = {name: array for name, array in tensors.items() if not name.startswith(("head.doubted", "head.seen"))}
    found = Part(MonitorState).read(stored, kinds.Place.start(kept | arrays))
    assert (found.counted, found.max_risk, found.seen.size, found.labelled.size) == ({}, None, 0, 0)
    assert found.doubted.tolist() == [[0], [0]]


def test_counts_of_a_reference_are_checked_when_they_are_read():
    counts = HeldOutCounts.from_rows([0.5, 0.9], np.array([0, 1]), np.array([0, 0]), n_classes=2)
    counts.predicted = np.array([2, 2])
    with pytest.raises(ValueError, match="counts must be of the same rows"):
        counts._check_stored()


def test_the_exit_code_tells_new_alarms_from_those_of_before(head, test, tmp_path, capsys):
    test = test._replaced(ids=None)
    head.save(tmp_path / "head")
    test[:300].save(tmp_path / "usual.npz")
    test[test.labels == 6].save(tmp_path / "shirts.npz")
    codes, states = [], []
    test[300:600].save(tmp_path / "usual2.npz")
    test[600:900].save(tmp_path / "usual3.npz")
    test[test.labels == 6][::-1].save(tmp_path / "shirts2.npz")
    days = ["usual", "shirts", "shirts2", "usual2", "usual3"]
    for day, name in enumerate(days, start=1):
        called = ["monitor", *map(str, (tmp_path / "head", tmp_path / "state", tmp_path / f"{name}.npz"))]
        codes.append(main([*called, "--at", "now" if day == len(days) else f"2026-01-0{day}"]))
        states.append(aty.Monitor.load(tmp_path / "state", head))
    assert codes[:2] == [0, 3]
    for code, before, after in zip(codes[2:], states[1:], states[2:], strict=False):
        assert code == (3 if len(after.alarms) > len(before.alarms) else 5 if after.moved() else 0)
    assert 5 in codes
    assert states[1].alarms[0].at == times("2026-01-02", 1)[0]
    capsys.readouterr()


def test_an_alarm_ends_when_one_look_at_the_rows_since_its_start_would_raise_none(head, test):
    """Evidence falls short of the level of a life long before it falls to that of one look."""
    rows = unlabelled(test._replaced(ids=None))
    shirts, others = rows[test.labels == 6], rows[test.labels != 6]
    monitor = aty.Monitor(head)
    tests, place = monitor._tests, monitor._tests.place_of["class", "Shirt"]
    monitor.add(others[:100], at=0)
    monitor.add_labels(head.predict(others[:9]), test.labels[test.labels != 6][:9], at=DAY)  # no row, and so no start
    assert {alarm.since for alarm in monitor.add(shirts[:30], at=2 * DAY) if alarm.item == "Shirt"} == {2 * DAY}
    ends = []
    for day in range(3, 31):
        monitor.add(others[100 * day :][:20], at=day * DAY)
        cells = np.cumsum(monitor._state.cells[2:], axis=0)
        _, count, trials = (part[:, place] for part in tests.shares(cells))
        evidence = one_sided(count, trials, tests.high[place], True)
        is_open = any(alarm.what == ("class", "Shirt", "rose") for alarm in monitor.moved().get("class", []))
        assert is_open == (evidence >= np.log(20)).all()
        ends.append((is_open, evidence[-1] + np.log(tests.delta[place] / 6) >= 0))
    assert (True, False) in ends  # no longer raised by all that is known, and not over
    assert ends[-1] == (False, False)
    assert monitor.to_dict()["over"] == len(monitor.alarms)
    first = [alarm for alarm in monitor.alarms if alarm.item == "Shirt"]
    again = [alarm for alarm in monitor.add(shirts[30:], at=40 * DAY) if alarm.item == "Shirt"]
    assert [alarm.at for alarm in first + again] == [2 * DAY, 40 * DAY]
    told = next(group for group in monitor.to_dict()["outside"] if "Shirt" in group["items"])
    assert told["raised"] == as_text(40 * DAY)


@pytest.fixture(scope="module")
def files(data, tmp_path_factory):
    """A saved head and files of rows, the first without labels."""
    head, _, test = data
    folder = tmp_path_factory.mktemp("files")
    head.save(folder / "head")
    for name, rows in (("day0", slice(0, 400)), ("day1", slice(400, 800))):
        test[rows]._replaced(labels=None).save(folder / f"{name}.npz")
    return folder


def monitored(files, *arguments):
    return main(["monitor", str(files / "head"), *map(str, arguments)])


def test_calls_at_the_same_time_lose_no_row(files, head, tmp_path, capsys, monkeypatch):
    """A call waits while another one, here of another open file, holds the folder: then it counts on top of it."""
    state = tmp_path / "state"
    started, done = threading.Event(), []

    def other():
        with held(state / ".lock", seconds=1):
            started.set()
            time.sleep(0.3)
            monitor = aty.Monitor(head)
            monitor.add(aty.ModelOutputs.load(files / "day0.npz"), at="2026-01-05")
            monitor.save(state)
            done.append(time.monotonic())

    thread = threading.Thread(target=other)
    thread.start()
    assert started.wait(10)
    assert monitored(files, state, files / "day1.npz", "--at", "2026-01-06") == 0
    thread.join()
    assert done
    assert aty.Monitor.load(state, head).n_rows == 800
    monkeypatch.setattr("atypicality.cli.monitor.WAIT", 0.1)
    with held(state / ".lock", seconds=1):
        assert monitored(files, state, files / "day1.npz") == 2
    assert "is in use by another process; waited 0.1 seconds" in capsys.readouterr().err


def test_late_labels_are_joined_by_id_and_counted_once(files, head, test, tmp_path, capsys):
    state, late = tmp_path / "state", tmp_path / "late.csv"
    chosen = np.random.default_rng(0).permutation(800)[:100]
    rows = zip(test.ids[chosen], test.class_names[test.labels[chosen]], strict=True)
    late.write_text("ids,labels\n" + "".join(f"{name},{label}\n" for name, label in rows))
    days = [files / "day0.npz", files / "day1.npz"]
    assert monitored(files, state, *days, "--at", "2026-01-05") == 0
    assert monitored(files, state, *days, "--late-labels", late, "--at", "2026-01-09") == 0
    found = aty.Monitor.load(state, head)
    wrong = int((head.predict(test[chosen]).label != test.labels[chosen]).sum())
    assert (found.n_rows, found.n_labelled) == (800, 100)
    assert next(row["share"] for row in found.history() if row["stream"] == "error") == wrong / 100
    assert "newest day: measured on 100 labels that came in this day" in capsys.readouterr().out
    assert monitored(files, state, *days, "--late-labels", late) == 0  # and again, as after a kill
    assert monitored(files, state, *days) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(" was counted before, at ")[2] for line in told] == [
        "2026-01-09T00:00:00Z, and is not counted again.",
        *["2026-01-05T00:00:00Z, and is not counted again."] * 2,
    ]
    assert state_of(aty.Monitor.load(state, head)) == state_of(found)
    shutil.copy(days[0], tmp_path / "copy.npz")
    twice = unlabelled(test[[1, 2, 1]])
    twice._replaced(ids=test.ids[[1, 2, 1]]).save(tmp_path / "twice.npz")
    for given, words, labels in (
        ([days[0]], "1 of 2 ids are in none, such as 500 in line 3 of 'late.csv'", "1,Bag\n500,Bag\n"),
        ([*days, tmp_path / "copy.npz"], f"1 is in two of them, the second is '{tmp_path}", "1,Bag\n500,Bag\n"),
        ([days[0]], "several rows; 1 stands in line 2 and line 4 of 'late.csv'", "1,Bag\n2,Bag\n1,Coat\n"),
        ([tmp_path / "twice.npz"], "; 1 stands in row 0 and row 2 of 'twice.npz'", "1,Bag\n"),
        ([days[0]], "'late.csv': labels must be among class_names; row 1", "1,Bag\n2,Bug\n"),
    ):
        late.write_text(f"ids,labels\n{labels}")
        assert monitored(files, state, *given, "--late-labels", late) == 2
        assert words in capsys.readouterr().err
    assert state_of(aty.Monitor.load(state, head)) == state_of(found)


def test_a_job_for_yesterday_goes_on_after_labels_of_today(files, head, tmp_path, capsys):
    state, late = tmp_path / "state", tmp_path / "late.csv"
    late.write_text("ids,labels\n3,Bag\n")
    assert monitored(files, state, files / "day0.npz", "--at", "2026-01-05") == 0
    assert monitored(files, state, files / "day0.npz", "--late-labels", late, "--at", "2026-01-07T00:30:00Z") == 0
    assert monitored(files, state, files / "day1.npz", "--at", "2026-01-06") == 0
    rows = [row["rows"] for row in aty.Monitor.load(state, head).history() if row["item"] == "Shirt"]
    assert rows == [400, 400]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "'nothing' holds no monitor to look at"),
        (["state", "day0.npz", "--out", "page.csv"], "must end in .html; got 'page.csv'"),
        (["state", "said.jsonl"], "'said.jsonl' holds answers, as `predict`"),
        (["state", "said.csv"], "'said.csv' holds answers, as `predict`"),
        (["state", "said.npz"], "'said.npz' holds answers, as `predict`"),
        (["state", "day0.npz", "--sha256", "0" * 12], "sha256 must be all 64 hexadecimal digits; got 12"),
    ],
)
def test_a_mistake_makes_no_monitor(files, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(files)
    (files / "said.jsonl").write_text('{"label": "Bag"}\n')
    if arguments[-1] in ("said.csv", "said.npz"):
        assert main(["predict", "head", "day0.npz", "--out", arguments[-1]]) == 0
    assert main(["monitor", "head", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not (files / arguments[0]).exists()


def test_a_state_in_the_place_of_the_head_says_so(files, head, tmp_path, capsys):
    aty.Monitor(head).save(tmp_path / "state")
    assert main(["monitor", str(tmp_path / "state"), str(files / "head")]) == 2
    assert "holds the state of a monitor, not a head" in capsys.readouterr().err


def test_a_repeated_id_and_a_file_without_rows_are_warned_of(files, test, tmp_path, capsys):
    rows = unlabelled(test[[1, 2, 1]])._replaced(ids=np.array(["a", "b", "a"]))
    rows.save(tmp_path / "twice.npz")
    rows[:0].save(tmp_path / "none.npz")
    for command, *more in (["predict", "--out", str(tmp_path / "a.csv")], ["monitor", str(tmp_path / "state")]):
        place = [str(files / "head"), *(more if command == "monitor" else [])]
        options = more if command == "predict" else []
        with pytest.warns(UserWarning, match="'twice.npz' has the id 'a' twice, in row 0 and row 2: both rows count"):
            assert main([command, *place, str(tmp_path / "twice.npz"), *options]) == 0
        with pytest.warns(UserWarning, match="'none.npz' has no rows"):
            assert main([command, *place, str(tmp_path / "none.npz"), *options]) == 0
    assert "Monitor: 3 rows, 0 labels" in capsys.readouterr().out


def called(files, capsys, *arguments, code=0, warns=None):
    """What a call that counts prints as JSON, after its exit code and warning are found the expected ones."""
    capsys.readouterr()
    with pytest.warns(UserWarning, match=warns) if warns else contextlib.nullcontext():
        assert monitored(files, *arguments, "--json") == code
    return json.loads(capsys.readouterr().out)


def test_a_label_file_that_grows_counts_each_label_once(files, head, test, tmp_path, capsys):
    state, late = tmp_path / "state", tmp_path / "late.csv"
    lines = [f"{name},{label}\n" for name, label in zip(test.ids[:60], test.labels[:60], strict=True)]
    called(files, capsys, state, files / "day0.npz", "--at", "2026-01-05")
    for n, known in ((50, None), (60, "50 of 60 labels of the outputs of 'day0.npz' were counted before and are not")):
        late.write_text("ids,labels\n" + "".join(lines[:n]))
        told = called(files, capsys, state, files / "day0.npz", "--late-labels", late, warns=known)
    assert told["counted"] == [{"file": str(late), "rows": 0, "labels": 10, "doubted": 0}]
    assert told["skipped"] == [{"file": str(late), "rows": 0, "labels": 50}]
    found, once = aty.Monitor.load(state, head), aty.Monitor(head)
    once.add(test[:400]._replaced(labels=None), at=0)
    once.add_labels(test[:60], at=DAY)
    assert found.n_labelled == told["labelled"] == 60
    np.testing.assert_array_equal(found._state.recent("cells", None), once._state.recent("cells", None))
    rows = zip(test.ids[400:405], test.labels[400:405], strict=True)
    late.write_text("ids,labels\n" + "".join(f"{name},{label}\n" for name, label in rows))
    never = "5 of 5 labels of the outputs of 'day1.npz' are for rows that were never counted"
    assert called(files, capsys, state, files / "day1.npz", "--late-labels", late, warns=never)["labelled"] == 65


def test_a_file_that_was_cut_and_comes_again_counts_each_row_once(files, head, test, tmp_path, capsys):
    state, whole = tmp_path / "state", test[:300]
    whole[:120]._replaced(labels=None).save(tmp_path / "cut.npz")
    whole.save(tmp_path / "whole.npz")
    other = test[300:600]._replaced(ids=whole.ids)  # numbered from 0 on another day: other logits, so other rows
    other.save(tmp_path / "other.npz")
    called(files, capsys, state, tmp_path / "cut.npz")
    known = "120 of 300 rows of the outputs of 'whole.npz' were counted before, with the same ids and logits"
    told = called(files, capsys, state, tmp_path / "whole.npz", warns=known)
    assert told["counted"] == [{"file": str(tmp_path / "whole.npz"), "rows": 180, "labels": 300, "doubted": 0}]
    assert told["skipped"] == [{"file": str(tmp_path / "whole.npz"), "rows": 120, "labels": 0}]
    again = called(files, capsys, state, tmp_path / "whole.npz", tmp_path / "other.npz")
    assert [entry["rows"] for entry in again["counted"]] == [300]
    assert again["skipped"] == [{"file": str(tmp_path / "whole.npz"), "rows": 300, "labels": 300}]
    found, once = aty.Monitor.load(state, head), aty.Monitor(head)
    once.add(test[:600], at=0)
    for name in ("cells", "profile"):
        np.testing.assert_array_equal(found._state.recent(name, None), once._state.recent(name, None))
    two = aty.Monitor(head)
    two.add(test[590:610], at=0, key="b")
    assert aty.Monitor(head).merge(two)._state.seen.has(two._state.seen.newer).all()
    one = aty.Monitor(head)
    one.add(test[595:600], at=0, key="a")
    with pytest.raises(ValueError, match="both have counted 5 with the same ids and logits"):
        one.merge(two)


def test_of_however_many_rows_the_newest_are_remembered(monkeypatch):
    monkeypatch.setattr("atypicality.monitoring.seen.GENERATION", 100)
    rng, hashes = np.random.default_rng(0), np.random.default_rng(1).integers(-(2**63), 2**63, 5000)
    seen, start = Seen(), 0
    while start < 5000:
        stop = start + int(rng.integers(1, 60))
        seen, start = seen.joined(hashes[start:stop]), min(stop, 5000)
        assert seen.size <= 200
        assert seen.has(hashes[max(0, start - 100) : start]).all()
    assert not seen.has(hashes[:4700]).any()
    assert Seen().joined(hashes[:1000]).size == 100


def test_logits_of_other_columns_are_counted_told_and_not_estimated(files, head, test, tmp_path, capsys):
    turned = aty.ModelOutputs(np.roll(test.logits[:300], 1, axis=1), embeddings=test.embeddings[:300])
    turned.save(tmp_path / "turned.npz")
    state = tmp_path / "state"
    usual = called(files, capsys, state, files / "day0.npz", "--at", "2026-01-05")
    assert usual["newest_accuracy"]["accuracy"] > 0.8
    words = "the outputs of 'turned.npz': logits fit the embeddings no better .* their accuracy is not estimated"
    told = called(files, capsys, state, tmp_path / "turned.npz", "--at", "2026-01-06", warns=words, code=4)
    assert told["looks_wrong"]
    assert [entry["doubted"] for entry in told["counted"]] == [told["doubted"]] == [300]
    for name in ("newest_accuracy", "estimated_accuracy"):
        assert told[name]["accuracy"] is None
        assert "of the rows came with logits that do not fit their embeddings" in told[name]["refusal"]
    assert "  300 rows came with logits that do not fit" in aty.Monitor.load(state, head).summary()
    assert "300 rows came with logits that do not fit" in render_monitor(told)
    probs = aty.ModelOutputs(head.predict(test[:50]).proba, embeddings=test.embeddings[:50])
    few, many = aty.Monitor(head), aty.Monitor(head)
    for monitor in (few, many):
        monitor.add(test[:2000], at=0)
    with pytest.warns(UserWarning, match="look like probabilities: none is negative, and each row sums to 1"):
        few.add(probs, at=0)
    many.add(test[:50], at=0)
    share = few.n_doubted / few.n_rows  # few may all be wrong, and the interval says so
    state = few._state
    few._state = many._state  # the same rows without a doubt
    plain = few.estimated_accuracy()
    few._state = dataclasses.replace(many._state, doubted=state.doubted)
    assert few.estimated_accuracy().low == pytest.approx(plain.low - share)
    assert few.estimated_accuracy().accuracy == plain.accuracy


def test_a_state_that_cannot_be_written_can_be_looked_at(files, head, tmp_path, capsys, monkeypatch):
    aty.Monitor(head).save(tmp_path / "state")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "state").iterdir()}
    monkeypatch.setattr("atypicality.cli.monitor.os.access", lambda path, mode: mode != os.W_OK)
    assert called(files, capsys, tmp_path / "state")["rows"] == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "state").iterdir()} == before


def test_a_damaged_state_is_named(files, head, tmp_path, capsys):
    aty.Monitor(head).save(tmp_path / "state")
    next((tmp_path / "state").glob("tensors-*")).write_bytes(b"")
    assert monitored(files, tmp_path / "state", files / "day0.npz") == 2
    told = capsys.readouterr().err
    assert f"the monitor in '{tmp_path / 'state'}' cannot be read: " in told
    assert "Copy it again, or restore a backup" in told


def test_a_lower_bound_of_next_to_nothing_is_none():
    alarm = aty.monitoring.state.Alarm("class", "cat", "rose", 0.0, 0.0, 0.4, 0.35, 0.45, 3.91e-8, 0.006, 500)
    assert str(alarm) == "class cat rose: 40% of 500 rows since 1970-01-01, at most 0.6% expected"
