"""The harness of the benchmarks: judgement of rows, measuring, results on disk and in pages. No test reads a clock."""

import gc
import json
import math
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import imported, needs
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.metrics import log_loss

import atypicality as aty
from atypicality import blocks
from atypicality.datasets import make_world

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import (
    STAGES,
    authors,
    compare,
    cores,
    data,
    growth,
    image_outputs,
    page,
    recalibrators,
    results,
    small,
    timing,
)
from benchmarks.command import main, parsed, peers_document
from benchmarks.growth_stages import Size, Work
from benchmarks.rows import AUTHORS, COLUMNS, Peer, Row, contest


@pytest.fixture(autouse=True, scope="module")
def little_garbage():
    """Measuring collects garbage before every turn: what earlier tests imported need not be looked at each time."""
    gc.freeze()


class Drawn:
    """A generator whose draws are known."""

    def __init__(self, draws):
        self.draws = draws

    def random(self, n):
        assert n == self.draws.size
        return self.draws


ROW = Row("stage", "10 x 3", peer="scikit-learn", seconds=1.0, peer_seconds=4.0, error=0.1, peer_error=0.1)


def test_a_row_divides_the_right_way_round():
    row = replace(ROW, bare_seconds=0.5)
    assert (row.ratio, row.bare) == (4.0, 2.0)  # four times faster than the peer, twice the bare cost


@pytest.mark.parametrize(
    ("target", "met"), [("ratio >= 4", True), ("ratio >= 4.1", False), ("seconds <= 1", True), ("error <= 0.01", False)]
)
def test_a_target_names_a_quantity_and_a_bound(target, met):
    assert replace(ROW, target=target).met is met
    assert ("MISSES" in replace(ROW, target=target).outcome) is not met


def test_a_row_behind_needs_a_reason_and_shows_it_only_then():
    behind = replace(ROW, seconds=5.0)
    assert not behind.ok
    assert "NO REASON" in behind.outcome
    explained = replace(behind, if_slower="it answers less")
    assert explained.ok
    assert "behind: it answers less" in explained.outcome
    assert "it answers less" not in replace(ROW, if_slower="it answers less").outcome


def test_less_accurate_by_more_than_the_slack_needs_a_reason():
    worse = replace(ROW, error=0.2, slack=0.05)
    assert worse.worse
    assert not worse.ok
    assert replace(worse, slack=0.1).ok
    assert "less accurate: because" in replace(worse, if_worse="because").outcome


def test_what_was_not_measured_is_left_empty_and_judges_nothing():
    row = Row("stage", "10 x 3", seconds=1.0, target="seconds <= 2")
    assert row.ok
    assert not row.slower
    assert not row.worse
    assert row.outcome == "target kept"
    assert row.cells()[3] == ""
    json.dumps(row.record(), allow_nan=False)  # null, never NaN


def test_a_contest_measures_everybody_on_the_same_arrays(monkeypatch):
    seen = []
    monkeypatch.setattr("benchmarks.rows.thread_turns", lambda run: (3.0, 2.0, 1.8))

    def run(name, value):
        return lambda: seen.append(name) or value

    rows = contest(
        "sum",
        "tiny",
        run("ours", 1.0),
        [Peer(AUTHORS, "plain", run("authors", 1.5)), Peer("no_such_package", "call", run("absent", 0.0))],
        bare=run("bare", None),
        bare_of="nothing",
        accuracy="distance from 1",
        error=lambda value: abs(value - 1.0),
        targets=["error <= 0"],
        repeats=2,
    )
    turns = ["ours", "bare", "authors"] * 5  # three turns, memory in the first two, then two by the wall clock
    assert seen == turns
    assert rows[0].threads == "1.50"
    assert [row.peer for row in rows] == ["", AUTHORS]
    assert (rows[1].error, rows[1].peer_error) == (0.0, 0.5)
    assert all(len(row.cells()) == len(COLUMNS) for row in rows)


def test_a_peer_that_is_ahead_is_named_first():
    behind = replace(ROW, seconds=5.0, if_slower="it answers less", target="ratio >= 4", note="by the way")
    assert behind.outcome == "behind: it answers less; MISSES ITS TARGET ratio >= 4; by the way"
    assert replace(ROW, error=0.2, if_worse="other draws").outcome.startswith(
        "less accurate: other draws; ahead in speed"
    )


def test_quality_stands_beside_the_number():
    row = replace(ROW, accuracy="size", quality="covers 0.9", peer_quality="covers 0.8")
    assert row.cells()[7] == "size: 0.1 (covers 0.9), 0.1 (covers 0.8)"


def test_plain_calls_follow_one_another():
    seen = []
    runs = {name: (lambda name=name: seen.append(name)) for name in "ab"}
    timing.measure(runs, repeats=1, plain=True)
    assert seen[:4] == ["a", "b"] * 2  # turns, for memory
    assert seen[4:] == (["a"] * 20 + ["b"] * 20) * 2  # processor seconds, then wall seconds


def test_a_peer_without_what_it_needs_is_left_out(monkeypatch, tmp_path, capsys):
    (tmp_path / "half_installed.py").write_text("import no_such_module_anywhere")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not Peer("half_installed", "call", lambda: None).installed
    assert "half_installed cannot be loaded (No module named 'no_such_module_anywhere')" in capsys.readouterr().err


def test_nothing_is_measured_that_no_row_would_show():
    with pytest.raises(AssertionError, match="no row would show what was measured of stage, 10 rows"):
        contest("stage", "10 rows", lambda: 1.0, [])


def test_whoever_is_slow_runs_once(monkeypatch):
    monkeypatch.setattr(timing, "SLOW", 0.0)
    calls = []
    timing.measure({"one": lambda: calls.append(1)}, repeats=5)
    assert len(calls) == 2  # on one thread, and by the wall clock


def test_the_table_says_what_threads_bring_or_that_there_is_one():
    row = replace(ROW, alone=1.0, wall=0.8, busy=1.4)
    assert row.threads == "1.25"
    assert replace(row, busy=1.0).threads == "one thread"
    assert replace(row, wall=math.nan).threads == ""


def test_one_thread_and_default_threads_take_turns(monkeypatch):
    now, took, seen = [0.0], iter([5.0, 4.0, 3.0, 2.0, 6.0, 7.0, 0.1, 0.1]), []
    counted = iter([0.0, 0.0, 0.0, 14.0, 14.0, 19.5])  # what one call did is counted to the next
    clocks = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: next(counted))
    monkeypatch.setattr(timing, "time", clocks)
    monkeypatch.setenv("ATYPICALITY_NUM_THREADS", "7")

    def run():
        now[0] += next(took)
        seen.append(blocks.n_threads())

    assert timing.thread_turns(run, seconds=1.0) == (3.0, 2.0, 1.5)  # three turns, no fourth after a second
    assert seen == [1, 7] * 3


def test_the_command_waits_for_a_quiet_machine(capsys):
    loads = iter([0.9, 0.5, 0.2, 0.9])
    timing.wait_for_quiet(0.3, every=0.0, load=lambda: next(loads))
    assert next(loads) == 0.9
    assert capsys.readouterr().err == "waiting for a load below 0.3; it is 0.90\n"
    timing.wait_for_quiet(0.0, load=lambda: pytest.fail("asked for the load"))


def test_small_work_is_judged_by_one_row():
    line = small.Small("head.predict", "10 x 48", (0.25, 0.4, 0.6), 0.3)
    assert line.ok
    assert not replace(line, milliseconds=(0.35, 0.1, 0.1)).ok
    assert replace(line, limit=None, milliseconds=(9.0, 9.0, 9.0)).ok
    assert len(line.cells()) == len(small.COLUMNS)


@needs("torch", "onnx", "onnxruntime")
def test_small_work_runs(tmp_path, capsys):
    assert not small.run(quick=True, out=tmp_path)
    names = [row[0] for row in results.read(tmp_path / "small.json")["rows"]]
    assert names[:2] == ["ModelOutputs", "head.predict"]
    assert {"ONNX graph of the head", "ReliabilityModule", "network and head, exported program"} <= set(names)


def test_a_monitor_is_measured_without_alarms():
    rows = make_world(900, random_state=0).outputs()
    monitor = aty.Monitor(aty.ReliabilityHead(recalibration=aty.TemperatureScaling()).fit(rows[:300], rows[300:]))
    batches = small._drawn(rows[300:], 10)
    assert [monitor.add(next(batches)) for _ in range(30)] == [[]] * 30


def test_peak_memory_is_that_of_the_call():
    if not Path("/proc/self/clear_refs").exists():
        assert math.isnan(timing.peak_above(lambda: None)[2])
        return
    kept, _, megabytes = timing.peak_above(lambda: float(np.ones(8_000_000).sum()))  # 64 MB, freed before it returns
    assert kept == 8e6
    assert 55 < megabytes < 90


ANONYMOUS = """
import queue
import numpy as np
from benchmarks import timing

resident, looks = timing._resident, queue.SimpleQueue()
timing._resident = lambda name: (resident(name), looks.put(name))[0]

def hold():
    block = np.ones(8_000_000)
    while not looks.empty():
        looks.get()
    for _ in range(2):  # the second look began while the block was there, however busy the machine is
        looks.get(timeout=60)
    return block.size

size, _, megabytes = timing.peak_anonymous(hold, every=0.001)
print(size, megabytes)
"""


def test_peak_of_anonymous_memory_is_sampled():
    """In a process of its own: what other tests' memory does meanwhile would hide as much of the peak."""
    home = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", ANONYMOUS], cwd=home, capture_output=True, text=True, check=True)
    size, megabytes = done.stdout.split()
    assert size == "8000000"
    assert 50 < float(megabytes) < 90


def test_threads_are_given_back():
    torch = imported("torch")
    before = torch.get_num_threads()
    with timing.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_results_survive_the_disk_and_become_a_table(tmp_path):
    written = results.document("Title", ["a", "b"], [["x|y", 0.123456], [True, None]], packages=["no-such-package"])
    results.write(tmp_path / "made" / "up.json", written)
    assert results.read(tmp_path / "made" / "up.json") == written
    text = page.markdown(written)
    assert text.startswith("| a | b |\n|---|---|\n| x\\|y | 0.1235 |\n| yes |  |\n")
    assert f"Measured {written['date']}" in text
    assert "numpy" in text


def test_rows_may_be_mappings():
    text = page.markdown({"title": "t", "columns": ["n", "s"], "rows": [{"s": "2", "n": 1}]})
    assert text.startswith("| n | s |\n|---|---|\n| 1 | 2 |\n")


def test_tables_are_written_once(tmp_path):
    results.write(tmp_path / "up.json", {"title": "t", "columns": ["n"], "rows": [[1]]})
    results.write(tmp_path / "other.json", {"rows": [{"n": 1}]})  # another layout: not ours to show
    assert page.write_tables(tmp_path, tmp_path) == [tmp_path / "up.md"]
    assert page.write_tables(tmp_path, tmp_path) == []  # nothing left to do


def test_the_documentation_shows_the_results_that_are_kept():
    shown = {path.stem: path.read_text() for path in page.TABLES.glob("*.md")}
    stale = [name for name, text in page.tables().items() if shown.get(name) != text]
    assert not stale, f"run python -m benchmarks.page; stale: {stale}"


def test_kept_results_are_complete():
    kept = results.read(results.RESULTS / "peers.json")
    assert not [row for row in kept["rows"] if "NO REASON" in row[-1]]
    assert {"processor", "cores", "memory"} <= set(kept["machine"])
    peers = {"scikit-learn", "netcal", "probmetrics", "mapie", "crepes", "torchmetrics", "faiss-cpu"}
    others = {"", AUTHORS, "conditionalconformal", "torchcp", "torch-uncertainty"}  # the last two where they install
    assert peers <= {record["peer"] for record in kept["records"]} <= peers | others
    assert peers <= set(kept["versions"])


def test_a_known_exponent_is_recovered(rng):
    sizes = np.array([1, 2, 4, 8, 16]) * 1000
    seconds = 3e-7 * sizes**1.5 * np.exp(rng.normal(0, 0.01, 5))  # the slope's deviation is about 0.007
    assert growth.exponent(sizes, seconds) == pytest.approx(1.5, abs=0.05)


def test_the_arithmetic_has_an_exponent_between_its_terms():
    prices = growth.Prices(double=1.0, single=1.0, entry=1.0)
    works = [Work(double=d**2, entries=100 * d) for d in (25, 50, 100, 200, 400)]
    slope = growth.exponent([25, 50, 100, 200, 400], [prices.seconds(work) for work in works])
    assert 1.3 < slope < 1.9


def test_growth_judges_only_what_is_faster():
    one = growth.Growth(
        "stage", "n", (1, 2, 4), "n", theory=1.0, fitted=1.1, seconds=(1.0, 2.0, 4.0), wall=(1.0, 2.0, 4.0)
    )
    assert one.ok
    assert not replace(one, fitted=1.2).ok
    assert replace(one, fitted=0.5).ok
    assert "more slowly" in replace(one, fitted=0.5).outcome


def test_sizes_double_along_one_axis():
    assert growth.sizes_along(Size(10, 4, 2), "d") == [Size(10, 4 * 2**i, 2) for i in range(5)]


def test_a_quick_run_of_a_stage(capsys, tmp_path):
    imported("torch")
    gc.freeze()  # the harness collects garbage before every turn, and would look at all of torch
    assert main(["metrics", "--quick", "--out", str(tmp_path)]) == 0
    assert "ECE, 10 bins" in capsys.readouterr().out
    kept = results.read(tmp_path / "peers.json")
    assert kept["columns"] == list(COLUMNS)
    assert len(kept["rows"]) == len(kept["records"]) > 3


def test_a_quick_growth_of_a_stage():
    stage = next(stage for stage in growth.STAGES if stage.name == "temperature scaling, fit")
    found = growth.measure_growth(stage, "n", growth.measured_prices(quick=True), quick=True)
    assert len(found.seconds) == len(found.sizes) == 2
    assert found.theory == pytest.approx(1.0)


def test_unknown_stages_are_refused(capsys):
    with pytest.raises(SystemExit):
        parsed(["speed"])
    assert "unknown stage 'speed'" in capsys.readouterr().err


def test_only_a_full_run_keeps_results_unasked():
    assert parsed([]).out == results.RESULTS
    assert parsed(["metrics"]).out is None
    assert parsed(["--quick"]).out is None


def test_real_logits_are_tiled(monkeypatch, tmp_path, rng):
    monkeypatch.delenv(data.OUTPUTS_VARIABLE, raising=False)
    monkeypatch.setattr(image_outputs.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(image_outputs, "PACKAGES", ("no_such_package",))
    assert data.tiled_logits(10) is None
    logits = rng.normal(size=(4, 3)).astype(np.float32)
    np.save(tmp_path / image_outputs.KEPT, 30 * logits)
    assert data.tiled_logits(6)[1].tolist() == logits.argmax(axis=1)[[0, 1, 2, 3, 0, 1]].tolist()
    np.savez(tmp_path / "few.npz", logits=logits, labels=np.array([0, 1, 2, 0]))
    monkeypatch.setenv(data.OUTPUTS_VARIABLE, str(tmp_path / "few.npz"))
    longer, labels, rarity = data.tiled_logits(10)
    assert labels.tolist() == [0, 1, 2, 0, 0, 1, 2, 0, 0, 1]
    assert 0 < np.abs(longer[:4] - logits).max() < 0.5
    assert len(longer) == len(rarity) == 10


def test_flat_logits_are_flat():
    logits, labels, _ = data.flat_logits(400, 50)
    probs = data.softmax(logits).astype(float)
    assert 0.3 < probs.max(axis=1).mean() < 0.6
    # labels come from the probabilities: the mean of their probability is that of the sum of squares
    at_label = probs[np.arange(400), labels]
    assert at_label.mean() == pytest.approx((probs**2).sum(axis=1).mean(), abs=4 * at_label.std() / 20)


def test_two_versions_are_compared_by_medians():
    rounds = [({"a, 9": {"wall": 1.0}}, {"a, 9": {"wall": new}}) for new in (1.02, 0.9, 1.04)]
    assert compare.compared(rounds)[0][-2:] == ["1.02", "as before"]
    rounds = [({"a, 9": {"wall": 1.0}}, {"a, 9": {"wall": 0.5}})] * 3
    assert compare.compared(rounds)[0][-1] == "faster"


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="no way to choose cores of threads on this system")
def test_a_call_has_so_many_cores_on_every_thread_and_later_all_again():
    own, seen = os.sched_getaffinity(0), []

    def run():
        both = threading.Barrier(2)  # the caller and a thread that waits from call to call

        def look(rows):
            both.wait(10)
            seen[-1].append(os.sched_getaffinity(0))

        seen.append([])
        blocks.for_rows(look, 2, block=1, threads=2)

    found = cores.by_cores(run, sorted({1, len(own)}))
    assert list(found) == sorted({"1", str(len(own))}, key=int)
    assert seen[0] == [own] * 2
    assert all(len(each) == 2 and each[0] == each[1] for each in seen)
    assert {len(each[0]) for each in seen[1:]} == {1, len(own)}
    assert os.sched_getaffinity(0) == own
    assert cores.lines({"a, 10 rows": {"1": 2.0, "4": 0.8}}) == [["a", "10 rows", "2", "2.50"]]
    assert cores.columns([1, 2]) == ["stage", "size", "seconds, 1 core", "2 cores"]


def test_every_stage_has_its_module():
    folder = Path(results.RESULTS).parent
    assert {f"bench_{stage}.py" for stage in STAGES} <= {path.name for path in folder.glob("*.py")}


def test_recalibrators_meet_on_the_same_splits(seed, monkeypatch):
    from atypicality import ModelOutputs, TemperatureScaling
    from atypicality.datasets import make_world
    from atypicality.metrics import nll
    from atypicality.paper.sources import Data, Source

    world = make_world(2000, 3, temperature=2.0, class_imbalance=5.0, random_state=seed)
    outputs = ModelOutputs(world.logits, embeddings=world.embeddings, labels=world.labels)
    for name, value in {"OTHERS": ["temperature scaling"], "SIZES": (300, 5000), "N_SPLITS": 2}.items():
        monkeypatch.setattr(recalibrators, name, value)
    source = Source("made-up", "balanced", "made-up", "world", _loaded=[Data(outputs, train=outputs)])
    few, most = recalibrators.measured(source)
    assert (few["rows"], most["rows"]) == (300, 1000)  # at most half of the rows
    for split, (loss, _) in enumerate(few["nll_and_worst_ece"]["temperature scaling"]):
        order = np.random.default_rng(split).permutation(2000)
        fit, test = order[:300], order[1000:]
        alone = TemperatureScaling().fit(world.logits[fit], world.labels[fit]).predict_proba(world.logits[test])
        assert loss == pytest.approx(nll(alone, world.labels[test]), rel=1e-12)
    few["nll_and_worst_ece"] = {"atypicality-aware": [(0.2, 0.1), (0.4, 0.3)], "temperature scaling": [(0.5, 0)] * 2}
    assert recalibrators.summary(few) == ["made-up", "300", "0.300", "0.200", "+0.200 ± 0.100"]
    assert recalibrators.distance(np.array([np.inf, 1.0]), np.zeros(2)) == "inf"
    assert recalibrators.finite({"x": [(math.inf, 0.25)]}) == {"x": [[None, 0.25]]}


def test_the_table_keeps_versions_and_rows():
    kept = peers_document([ROW])
    assert kept["rows"] == [ROW.cells()]
    assert kept["versions"]["numpy"] == np.__version__


class TestAuthors:
    """The paper's algorithms give what ours give: they are peers, not straw men."""

    def test_gaussian(self, rng):
        from atypicality import GaussianAtypicality

        x, labels = rng.normal(size=(200, 3)), np.arange(200) % 4
        found = authors.gaussian_scores(x, *authors.gaussian_fit(x, labels))
        np.testing.assert_allclose(found, GaussianAtypicality().fit(x, labels).atypicality(x), rtol=1e-10)

    def test_neighbors(self, rng):
        imported("torch")
        from atypicality import NeighborAtypicality

        x, queries = rng.normal(size=(50, 3)), rng.normal(size=(20, 3))
        expected = NeighborAtypicality().fit(x).atypicality(queries)
        np.testing.assert_allclose(authors.neighbor_distances(queries, x), expected, rtol=1e-10)

    def test_recalibration(self, rng):
        imported("torch")
        from atypicality import AtypicalityAwareRecalibration

        logits, atypicality = rng.normal(0, 2, size=(400, 3)), rng.normal(size=400)
        labels = (logits + rng.gumbel(size=logits.shape) * 2).argmax(axis=1)
        one = authors.recalibrate(logits, labels)
        # the loop ends where a gradient or a step is small, at parameters near the optimum to a few digits
        best = minimize_scalar(lambda b: log_loss(labels, softmax(b * logits, axis=1)), bounds=(0, 2), method="bounded")
        assert one.coefficients[0] == pytest.approx(best.x, rel=1e-3)
        aware = authors.recalibrate(logits, labels, authors.standardised(atypicality))
        ours = AtypicalityAwareRecalibration.paper().fit(logits, labels, atypicality=atypicality)
        assert aware.finished
        np.testing.assert_allclose(aware.scores - aware.scores.mean(), ours.class_scores_, atol=2e-3)

    def test_a_budget_stops_the_loop(self, rng):
        imported("torch")
        logits, labels = rng.normal(size=(50, 3)), np.arange(50) % 3
        assert not authors.recalibrate(logits, labels, rng.normal(size=50), budget=-1.0).finished

    def test_sets(self, rng, monkeypatch):
        from atypicality import AtypicalityAwareConformal
        from atypicality.conformal.chance import Seeds

        probs, labels = rng.dirichlet(np.ones(6), 400), rng.integers(0, 6, 400)
        rarity, given = rng.random(400), (probs[:200], labels[:200])
        for cells in ((1, 1), (2, 2)):
            ours = AtypicalityAwareConformal("raps", 0.2, n_groups=cells, mode="paper", k_reg=2, penalty=0.1)
            draws = Seeds(0).draws("fit", 200)
            monkeypatch.setattr(authors.np.random, "default_rng", lambda seed, draws=draws: Drawn(1 - draws))
            fixed = {"k_reg": 2, "penalty": 0.1}
            theirs = (
                authors.conformal_sets(*given, probs[200:], 0.2, **fixed)
                if cells == (1, 1)
                else authors.aware_sets(*given, rarity[:200], probs[200:], rarity[200:], 0.2, n_groups=2, **fixed)
            )
            monkeypatch.undo()
            found = ours.fit(*given, atypicality=rarity[:200]).predict_set(probs[200:], atypicality=rarity[200:])
            np.testing.assert_array_equal(found, theirs)  # the same procedure with the same draws

    def test_calibration_error(self, rng):
        from atypicality.metrics import ece

        probs, labels = rng.dirichlet(np.ones(4), 300), rng.integers(0, 4, 300)
        assert authors.expected_calibration_error(probs, labels) == pytest.approx(ece(probs, labels), abs=1e-12)
