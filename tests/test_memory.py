"""A ceiling of memory: where arrays go under it, that it holds from files to reports, and that it changes no number."""

import contextlib
import gc
import json
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import needs, needs_proc
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax
from test_cli import on_terminal

import atypicality as aty
from atypicality import ModelOutputs, blocks, metrics
from atypicality.blocks import progress
from atypicality.blocks import spill as scratch
from atypicality.cli import main
from atypicality.outputs import limits, parquet
from atypicality.outputs.files import UnreadableFileError, read_arrays, write_arrays

CEILING = "200MB"
N_CLASSES, WIDTH = 300, 32


# sizes in words


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GB", 10**9),
        ("500MB", 5 * 10**8),
        ("2GiB", 2**31),
        ("1.5 gb", 15 * 10**8),
        ("64k", 64_000),
        ("7", 7),
        (9, 9),
        (np.int64(3), 3),
    ],
)
def test_bytes_in_words(text, size):
    assert scratch.parse_bytes(text) == size


@pytest.mark.parametrize("bad", ["", "GB", "1XB", "-1GB", "1e9", "1GBB", "i", "1 G B", None, True, 1.5e9j, "nan"])
def test_other_words_are_refused(bad):
    with pytest.raises(ValueError, match=r'memory must be a number of bytes, such as "1GB"'):
        scratch.parse_bytes(bad)


def test_a_ceiling_below_the_libraries_themselves_is_refused():
    with pytest.raises(ValueError, match="memory must be at least 128 MB"), blocks.settings(memory="1MB"):
        pass


# where arrays go


def is_scratch(array):
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return not isinstance(array, (np.ndarray, bytes))  # the end of the chain is a map, not memory of NumPy


def test_arrays_are_plain_without_a_ceiling_and_scratch_files_under_one():
    assert not is_scratch(blocks.empty((2000, 1000)))
    with blocks.settings(memory=CEILING):
        large, small = blocks.empty((2000, 1000), np.float32), blocks.empty(1000)
        assert is_scratch(large)
        assert not is_scratch(small)
        assert type(large) is np.ndarray
        assert large.shape == (2000, 1000)
        assert large.dtype == np.float32
        assert not large.any()
    large[5] = 1.0  # it outlives the ceiling
    assert large.sum() == 1000


def test_scratch_files_have_no_name_and_give_their_room_back(tmp_path):
    with blocks.settings(memory=CEILING, scratch=tmp_path):
        array = blocks.empty((2000, 1000))
        assert os.listdir(tmp_path) == []
        held = shutil.disk_usage(tmp_path).used
        del array
        gc.collect()
        assert shutil.disk_usage(tmp_path).used <= held - 10**6 or os.name == "nt"


@pytest.mark.parametrize("rows", [np.arange(0, 60_000, 2), np.arange(60_000) % 3 == 0, slice(5, 50_000, 7)])
def test_rows_are_taken_as_numpy_takes_them(rows, rng):
    array = rng.normal(size=(60_000, 40)).astype(np.float32)
    with blocks.settings(memory=CEILING):
        taken = blocks.take_rows(array, rows)
        assert isinstance(rows, slice) or is_scratch(taken)
    assert_array_equal(taken, array[rows])


def test_a_mask_of_another_length_stays_an_error():
    with blocks.settings(memory=CEILING), pytest.raises(IndexError):
        blocks.take_rows(np.zeros((10, 2)), np.ones(9, bool))


def test_types_and_joins_keep_their_values(rng):
    array = rng.normal(size=(50_000, 40)).astype(np.float16)
    with blocks.settings(memory=CEILING):
        wide, joined = blocks.astype(array, np.float32), blocks.concatenate(array, array[::-1].astype(np.float32))
        assert is_scratch(wide)
        assert is_scratch(joined)
        assert blocks.astype(array, np.float16) is array
    assert_array_equal(wide, array.astype(np.float32))
    assert_array_equal(joined, np.concatenate([array, array[::-1].astype(np.float32)]))


def test_threads_are_as_many_as_the_ceiling_holds(monkeypatch):
    monkeypatch.delenv("ATYPICALITY_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    assert blocks.n_threads(work=blocks.PRODUCTS) == 64
    with blocks.settings(memory="1GB"):
        assert blocks.n_threads(work=blocks.PRODUCTS) == 14  # half of it, 32 MiB each
        assert blocks.n_threads() == 8
        assert blocks.n_threads(10**9) == 1
        with blocks.settings(n_threads=20):
            assert blocks.n_threads(work=blocks.PRODUCTS) == 20


def test_blocks_are_no_larger_than_what_counts_as_large():
    with blocks.settings(memory=CEILING):
        assert not blocks.is_large(1000 * blocks.block_rows(1000, budget=blocks.GEMM_BYTES))


# a folder that will not do


def test_a_full_disk_is_one_clear_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with (
        blocks.settings(memory=CEILING, scratch=tmp_path),
        pytest.raises(OSError, match=r"has no room for an array of 16 MB .* --scratch"),
    ):
        blocks.empty((2000, 1000))
    assert os.listdir(tmp_path) == []


def test_an_array_larger_than_the_disk_is_refused_before_anything_is_written(tmp_path):
    with blocks.settings(memory=CEILING, scratch=tmp_path), pytest.raises(OSError, match="has no room for an array of"):
        blocks.empty((10**6, 10**9))


def test_a_scratch_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(NotADirectoryError, match="scratch must be a folder that exists"):
        blocks.settings(memory=CEILING, scratch=tmp_path / "no").__enter__()


def test_a_scratch_folder_in_memory_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "in_memory", lambda folder: True)
    with pytest.warns(UserWarning, match=r"is itself kept in memory.* --scratch"):
        assert scratch.scratch_folder(tmp_path) == str(tmp_path)


def test_temporary_files_in_memory_give_way_to_a_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "LARGER_DISK", str(tmp_path))
    monkeypatch.setattr(scratch, "in_memory", lambda folder: folder != str(tmp_path))
    assert scratch.scratch_folder(None) == str(tmp_path)


def test_memory_file_systems_are_known_where_the_system_lists_them():
    if os.path.isdir("/dev/shm") and os.path.exists("/proc/self/mountinfo"):
        kinds = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        known = {fields[4]: fields[fields.index("-") + 1] for fields in kinds}
        assert scratch.in_memory("/dev/shm") == (known.get("/dev/shm") == "tmpfs")
    assert not scratch.in_memory("/no/such/folder")


def test_work_that_needs_more_than_the_ceiling_is_refused_with_what_it_needs(rng):
    outputs = ModelOutputs(rng.normal(size=(50, 3)), embeddings=rng.normal(size=(50, 3000)), labels=np.arange(50) % 3)
    with (
        blocks.settings(memory=CEILING),
        pytest.raises(ValueError, match=r"memory must be at least \d+ MB for 50 rows"),
    ):
        aty.ReliabilityHead().fit(train=outputs, calibration=outputs)


def test_a_large_file_may_unpack_to_more_than_a_small_one(tmp_path, monkeypatch):
    file = tmp_path / "a.npz"
    file.write_bytes(bytes(1000))
    monkeypatch.setattr(limits, "DEFAULT_LIMIT", 100)
    assert limits.default_limit(file) == 100
    with blocks.settings(memory=CEILING):
        assert limits.default_limit(file) == 4000
        assert limits.default_limit(tmp_path) == 4000


# files


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    return {
        "logits": rng.normal(size=(20_000, 40)).astype(np.float32),
        "embeddings": np.asfortranarray(rng.normal(size=(20_000, 30))),
        "labels": rng.integers(0, 40, 20_000),
        "ids": np.array([f"row {i}" for i in range(20_000)]),
        "class_names": np.array([f"class {i}" for i in range(40)]),
    }


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a", pytest.param("a.parquet", marks=needs("pyarrow"))])
def test_every_format_reads_the_same_under_a_ceiling_and_into_maps(name, arrays, tmp_path):
    write_arrays(tmp_path / name, arrays)
    with blocks.settings(memory=CEILING):
        found = read_arrays(tmp_path / name)
        assert is_scratch(found["logits"])
        assert is_scratch(found["embeddings"])
    for key, array in arrays.items():
        assert_array_equal(found[key], array)
        assert found[key].dtype.kind == array.dtype.kind


@needs("pyarrow")
def test_a_folder_of_parquet_files_is_one_table(arrays, tmp_path):
    for part, rows in enumerate([slice(0, 7000), slice(7000, 20_000)]):
        (tmp_path / "shards").mkdir(exist_ok=True)
        ModelOutputs(arrays["logits"][rows], labels=arrays["labels"][rows]).save(
            tmp_path / f"shards/{part:02d}.parquet"
        )
    for ceiling in (None, CEILING):
        with blocks.settings(memory=ceiling):
            found = ModelOutputs.load(tmp_path / "shards")
        assert_array_equal(found.logits, arrays["logits"])
        assert_array_equal(found.labels, arrays["labels"])
    ModelOutputs(labels=arrays["labels"]).save(tmp_path / "shards/02.parquet")
    with pytest.raises(UnreadableFileError, match=r"same columns; '02\.parquet' differs from '00\.parquet'"):
        ModelOutputs.load(tmp_path / "shards")


@needs("pyarrow")
def test_parquet_is_written_in_row_groups(arrays, tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    monkeypatch.setattr(parquet, "GROUP_BYTES", 1 << 20)
    ModelOutputs(arrays["logits"], ids=arrays["ids"]).save(tmp_path / "a.parquet")
    assert pq.ParquetFile(tmp_path / "a.parquet").metadata.num_row_groups >= 2
    assert_array_equal(ModelOutputs.load(tmp_path / "a.parquet").logits, arrays["logits"])


@needs("pyarrow")
def test_a_column_that_is_not_what_the_file_claims_is_refused(tmp_path):
    claims = parquet._Column("logits", 100_000, tmp_path / "a.parquet", 10**9)
    with blocks.settings(memory=CEILING):
        claims.add(np.zeros((60_000, 20)))
        with pytest.raises(UnreadableFileError, match="claims 100000 rows and holds 60000"):
            claims.whole()
        with pytest.raises(UnreadableFileError, match="holds more than it claims"):
            claims.add(np.zeros((60_000, 20)))
        with pytest.raises(UnreadableFileError, match="the limit for the file is 1000 bytes"):
            parquet._Column("logits", 100_000, tmp_path / "a.parquet", 1000).add(np.zeros((10, 20)))


def test_an_archive_that_is_cut_short_is_refused_under_a_ceiling(tmp_path):
    import zipfile

    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (500000, 10), }"
    member = b"\x93NUMPY\x01\x00" + len(header + "\n").to_bytes(2, "little") + (header + "\n").encode() + bytes(999)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("logits.npy", member)
    with (
        blocks.settings(memory=CEILING),
        pytest.raises(UnreadableFileError, match="claims 40000000 bytes and holds 999"),
    ):
        read_arrays(tmp_path / "a.npz")


def test_no_room_while_a_file_is_read_is_not_taken_for_a_damaged_file(arrays, tmp_path, monkeypatch):
    write_arrays(tmp_path / "a.npz", {"logits": arrays["logits"]})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with blocks.settings(memory=CEILING), pytest.raises(scratch.ScratchError, match="has no room"):
        read_arrays(tmp_path / "a.npz")


# nothing changes but where arrays lie


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Folders of training, calibration and test outputs: a linear model on Gaussian classes."""
    root, rng = tmp_path_factory.mktemp("outputs"), np.random.default_rng(0)
    means = (0.6 * rng.normal(size=(N_CLASSES, WIDTH))).astype(np.float32)
    for name, n in {"train": 8000, "calibration": 4000, "test": 24_000}.items():
        labels = rng.integers(0, N_CLASSES, n)
        embeddings = means[labels] + rng.standard_normal((n, WIDTH), dtype=np.float32)
        logits = None if name == "train" else 1.5 * (embeddings @ means.T)
        ModelOutputs(logits, embeddings=embeddings, labels=labels).save(root / name)
    return root


@pytest.fixture(scope="module")
def head(parts):
    calibration = ModelOutputs.load(parts / "calibration")
    head = quick_head().fit(train=ModelOutputs.load(parts / "train"), calibration=calibration)
    head.save(parts / "head")
    return head


def quick_head():
    """A head with every kind of array and few parameters, fitted in a second."""
    recalibration = aty.AtypicalityAwareRecalibration(class_scores=False, class_mixing=False, strength=0.0)
    return aty.ReliabilityHead(recalibration=recalibration)


def test_a_fit_is_the_same_under_a_ceiling(parts, head):
    with blocks.settings(memory="150MB"):
        calibration = ModelOutputs.load(parts / "calibration")
        other = quick_head().fit(train=ModelOutputs.load(parts / "train"), calibration=calibration)
    # blocks of another height add in another order: float32 products of the solver leave 1e-6
    assert_allclose(other.recalibration_.coefficients_, head.recalibration_.coefficients_, rtol=1e-4, atol=1e-5)
    assert_allclose(other.prediction_sets_.thresholds_, head.prediction_sets_.thresholds_, rtol=1e-4)
    assert_allclose(other.metrics_["after"]["nll"], head.metrics_["after"]["nll"], rtol=1e-6)


def test_predictions_are_the_same_under_a_ceiling(parts, head):
    test = ModelOutputs.load(parts / "test")[:8000]
    plain = head.predict(test)
    with blocks.settings(memory="150MB"):
        mapped = head.predict(test)
        assert is_scratch(mapped.proba)
        assert is_scratch(mapped.prediction_set)
    assert_allclose(mapped.proba, plain.proba, rtol=1e-6, atol=1e-12)
    assert_array_equal(mapped.label, plain.label)
    assert (mapped.prediction_set != plain.prediction_set).mean() < 1e-6  # a score at its threshold may round across


@pytest.mark.parametrize("ending", ["csv", "jsonl", pytest.param("parquet", marks=needs("pyarrow"))])
def test_a_table_written_in_parts_is_the_table_written_at_once(parts, head, ending, tmp_path):
    answer = head.predict(ModelOutputs.load(parts / "test")[:600])
    answer.save(tmp_path / f"whole.{ending}")
    with blocks.settings(block_rows=7):
        answer.save(tmp_path / f"parts.{ending}")
    if ending == "parquet":
        import pyarrow.parquet as pq

        assert pq.read_table(tmp_path / "parts.parquet").equals(pq.read_table(tmp_path / "whole.parquet"))
    else:
        assert (tmp_path / f"parts.{ending}").read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()


def test_a_part_without_rows_is_written_too(parts, head, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        empty = head.predict(ModelOutputs.load(parts / "test")[:0])
    empty.save(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().startswith("label,confidence")


# the ceiling holds

PROGRAM = "import sys; from atypicality.cli import main; sys.exit(main(sys.argv[1:]))"


def run_watched(arguments):
    """Run the command in a process of its own; its output and its largest anonymous memory in megabytes."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, *map(str, arguments)], stdout=-1, stderr=-1
    )
    said, peak = [], 0.0
    reader = threading.Thread(target=lambda: said.extend(process.communicate()))
    reader.start()
    while reader.is_alive():
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/statm") as pages:
            resident, of_files = map(int, pages.read().split()[1:3])  # the others are anonymous
            peak = max(peak, (resident - of_files) * mmap.PAGESIZE / 1e6)
        time.sleep(0.002)
    assert process.returncode == 0, said[1].decode()
    return said[0].decode(), peak


@needs_proc
def test_every_command_stays_below_its_ceiling_and_says_the_same(parts, head, tmp_path):
    # Without a limit the commands take 92, 97 and 115 MB with one thread, 114, 117 and 118 with two; with this one 62,
    # 58 and 90, or 68, 58 and 94, of which the libraries alone are most. The bounds lie between.
    files, limit = ("--train", parts / "train", "--calibration", parts / "calibration"), ("--memory", "140MB")
    _, fitting = run_watched(["fit", *files, "--out", tmp_path / "head", *limit])
    _, predicting = run_watched(["predict", parts / "head", parts / "test", "--out", tmp_path / "a.csv", *limit])
    test = ModelOutputs.load(parts / "test")[:8000]
    test.save(tmp_path / "fewer")
    said, evaluating = run_watched(["evaluate", parts / "head", tmp_path / "fewer", "--json", *limit])
    assert fitting < 80
    assert predicting < 78
    assert evaluating < 104
    table = json.loads(said)["tables"]["overall"]
    found = dict(zip(zip(table["method"], table["metric"], strict=True), table["value"], strict=True))
    answer = head.predict(test)
    for method, probs in (("model", softmax(test.logits.astype(np.float64), axis=1)), ("head", answer.proba)):
        for metric in (metrics.accuracy, metrics.nll, metrics.brier, metrics.ece, metrics.smooth_ece):
            assert_allclose(found[method, metric.__name__], metric(probs, test.labels), rtol=1e-5, atol=1e-6)
    covered = answer.prediction_set[np.arange(len(test)), test.labels]
    assert_allclose(found["head", "coverage"], covered.mean(), rtol=1e-5)
    assert_allclose(found["head", "set_size"], answer.prediction_set.sum(axis=1).mean(), rtol=1e-5)


@needs_proc
def test_many_classes_with_few_rows_stay_below_the_limit(tmp_path):
    # 900 parameters and 1,000 recalibration rows: exact Newton steps, of which two threads took 210 MB
    rng, k = np.random.default_rng(0), 900
    means = 0.6 * rng.normal(size=(k, 16)).astype(np.float32)
    for name in ("train", "calibration"):
        labels = np.r_[np.arange(k), rng.integers(0, k, 1100)]
        embeddings = means[labels] + rng.standard_normal((2000, 16), dtype=np.float32)
        ModelOutputs(1.5 * embeddings @ means.T, embeddings=embeddings, labels=labels).save(tmp_path / name)
    files = ("--train", tmp_path / "train", "--calibration", tmp_path / "calibration")
    _, peak = run_watched(["fit", *files, "--out", tmp_path / "head", "--memory", CEILING])
    assert peak < 200


@pytest.mark.parametrize("case", ["similarity", "exact Hessian", "approximate Hessian"])
def test_matrices_of_classes_or_parameters_that_do_not_fit_are_refused(case, rng):
    k, n = {"similarity": (3000, 100), "exact Hessian": (1500, 100), "approximate Hessian": (1900, 300)}[case]
    logits, labels = rng.normal(size=(n, k)), rng.integers(0, k, n)
    fits = {
        "similarity": lambda: aty.ReliabilityHead().fit(
            calibration=ModelOutputs(logits, labels=labels, atypicality=rng.random(n))
        ),
        "exact Hessian": lambda: aty.VectorScaling().fit(logits, labels),
        "approximate Hessian": lambda: aty.VectorScaling().fit(logits, labels),
    }
    need = {"similarity": "344 MB for 100 rows", "exact Hessian": "776 MB", "approximate Hessian": "359 MB"}[case]
    with (
        blocks.settings(memory=CEILING),
        pytest.raises(ValueError, match=f"memory must be at least {need}.*got 200 MB"),
    ):
        fits[case]()


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate", "report"])
def test_a_bad_ceiling_is_one_line(command, capsys):
    arguments = {
        "fit": ["--calibration", "a", "--out", "b"],
        "predict": ["a", "b", "--out", "c.csv"],
        "evaluate": ["a", "b"],
        "report": ["a", "b"],
    }[command]
    assert main([command, *arguments, "--memory", "lots"]) == 2
    error = capsys.readouterr().err
    assert error.startswith('atypicality: memory must be a number of bytes, such as "1GB"')
    assert error.count("\n") == 1
    assert main([command, *arguments, "--memory", "1GB", "--scratch", "/no/such/folder"]) == 2
    assert "scratch must be a folder that exists" in capsys.readouterr().err


# bars


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "REDRAW", 0.0)
    monkeypatch.setenv("COLUMNS", "160")


def test_a_pass_over_rows_shows_rows_rate_and_time_left(impatient, monkeypatch):
    terminal = on_terminal(monkeypatch)
    with progress.working("fitting"):
        progress.stage("fitting the density")
        blocks.for_rows(lambda rows: time.sleep(0.12), 5000, block=1000, threads=1)
    assert "fitting the density" in terminal.text
    assert "of 5,000 rows" in terminal.text
    assert "rows/s" in terminal.text
    assert "left" in terminal.text


def test_passes_inside_a_pass_and_on_threads_stay_silent(impatient, monkeypatch):
    terminal = on_terminal(monkeypatch)

    def outer(rows):
        blocks.for_rows(lambda part: time.sleep(0.06), 77, block=40, threads=1)

    with progress.working("working"):
        blocks.for_rows(outer, 4000, block=1000, threads=2)
    assert "of 4,000 rows" in terminal.text
    assert "of 77 rows" not in terminal.text


def test_a_pipe_shows_nothing_and_pays_nothing(capsys):
    with progress.working("fitting"):
        progress.stage("fitting the density")
        assert list(blocks.watched(5, 2)) == list(blocks.row_slices(5, 2))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("done", "total", "seconds", "words"),
    [(10, 100, 1.0, "10 of 100, 10/s, 0:00:09 left"), (3, None, 2.0, "3, 1.5/s"), (1, 1, 0.0, "left")],
)
def test_notes(done, total, seconds, words):
    assert words in progress.note(done, total, seconds)
