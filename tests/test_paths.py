"""Files are written whole, exactly where asked, or not at all; what is no file is neither read nor replaced."""

import errno
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import needs
from numpy.testing import assert_array_equal

import atypicality
from atypicality import ModelOutputs, Reliability
from atypicality.integrations.row_files import RowFolder
from atypicality.outputs.files import check_place
from atypicality.outputs.paths import check_new_folder, check_source, check_target, held, replacing

SOURCE = Path(atypicality.__file__).parent
LEFT = ".atypicality-0123456789abcdef.tmp"
FORMATS = ["a.csv", "a.jsonl", "a.npz", pytest.param("a.parquet", marks=needs("pyarrow"))]
needs_posix = pytest.mark.skipif(os.name != "posix", reason="not on this system: links, pipes and locks of POSIX")
pytestmark = needs_posix


@pytest.fixture
def answer():
    return Reliability(np.array([1]), np.array([0.8]), np.array([[0.2, 0.8]]), np.array([[False, True]]))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def kill_while_writing(path, context="replacing"):
    """Kill a process that is writing to `path`, and wait until it is gone."""
    code = (
        "import sys, time; from atypicality.outputs import paths\n"
        f"with paths.{context}(sys.argv[1]): print('writing', flush=True); time.sleep(60)"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"writing\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate()


# What a process shares


def test_no_module_changes_what_all_threads_share():
    """Only the command line, which owns its process, sets how warnings and characters are printed."""
    shared = re.compile(
        r"os\.(umask|chdir|fchdir|putenv)\(|os\.environ\[[^]]*\] *=|environ\.(update|setdefault|pop)|catch_warnings\("
        r"|simplefilter|filterwarnings|seterr\b|setlocale|signal\.signal|(np\.random|random)\.seed|setdefaulttimeout"
        r"|set_num_threads|torch\.manual_seed"
    )
    found = {
        (path.relative_to(SOURCE).as_posix(), match[0])
        for path in SOURCE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if (match := shared.search(line)) and not line.lstrip().startswith(">>>") and "`warnings." not in line
    }
    assert found == set()


@pytest.mark.parametrize("name", [*FORMATS, "report.html"])
def test_the_kernel_applies_the_umask(name, answer, tmp_path, monkeypatch):
    (tmp_path / "plain").touch()
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask of all threads was changed"))
    if name == "report.html":
        with replacing(tmp_path / name) as temporary:
            temporary.write_text("page")
    else:
        answer.save(tmp_path / name)
    assert (tmp_path / name).stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_new_folder_has_the_mode_of_a_plain_one(tmp_path):
    (tmp_path / "plain").mkdir()
    ModelOutputs(np.eye(2)).save(tmp_path / "outputs")
    assert (tmp_path / "outputs").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_new_file_is_not_open_to_more_users_than_the_old(answer, tmp_path):
    (tmp_path / "a.csv").touch(0o600)
    answer.save(tmp_path / "a.csv")
    assert stat.S_IMODE((tmp_path / "a.csv").stat().st_mode) == 0o600


# Exactly where asked


@pytest.mark.parametrize("name", ["ANS.NPZ", "Ans.Csv", "a.JSONL", pytest.param("a.PARQUET", marks=needs("pyarrow"))])
def test_answers_are_written_under_the_name_that_was_given(name, answer, tmp_path):
    answer.save(tmp_path / name)
    assert names(tmp_path) == [name]
    assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("method", ["to_npz", "to_csv", "to_jsonl", pytest.param("to_parquet", marks=needs("pyarrow"))])
def test_another_ending_is_kept_and_its_neighbour_too(method, answer, tmp_path):
    for ending in ("parquet", "npz"):
        (tmp_path / f"run.{ending}").write_text("precious")
    getattr(answer, method)(tmp_path / "run.v2")
    assert names(tmp_path) == ["run.npz", "run.parquet", "run.v2"]
    assert {(tmp_path / f"run.{ending}").read_text() for ending in ("parquet", "npz")} == {"precious"}


@pytest.mark.parametrize(
    "name", ["OUT.NPZ", "Out.SafeTensors", pytest.param("OUT.Parquet", marks=needs("pyarrow")), "folder"]
)
def test_outputs_in_capital_letters_come_back(name, tmp_path):
    ModelOutputs(np.eye(3)).save(tmp_path / name)
    assert names(tmp_path) == [name]
    assert_array_equal(ModelOutputs.load(tmp_path / name).logits, np.eye(3))


@pytest.mark.parametrize("name", FORMATS)
def test_a_link_stays_and_its_target_is_written(name, answer, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "there" / f"real{name}")
    answer.save(tmp_path / name)  # a link that leads nowhere yet
    first = (tmp_path / "there" / f"real{name}").read_bytes()
    answer.save(tmp_path / name)
    assert (tmp_path / name).is_symlink()
    assert names(tmp_path / "there") == [f"real{name}"]
    assert len((tmp_path / name).read_bytes()) == len(first) > 0


def test_a_link_to_an_empty_folder_stays(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    ModelOutputs(np.eye(2)).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == ["logits.npy"]


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_link_to_a_device(path):
    path.symlink_to(os.devnull)


KINDS = [
    (make_pipe, "a pipe"),
    (make_socket, "a socket"),
    (make_link_to_a_device, "a device"),
    (Path.mkdir, "a folder"),
]


@pytest.mark.parametrize(("make", "kind"), KINDS, ids=[kind for _, kind in KINDS])
@pytest.mark.parametrize("name", ["a.csv", "a.npz"])
def test_what_is_no_file_is_never_replaced(make, kind, name, answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    make(Path(name))
    before = os.lstat(name)
    with pytest.raises(FileExistsError, match=f"'{re.escape(name)}' is {kind}, which is not replaced"):
        answer.save(name)
    with pytest.raises(FileExistsError, match=f"is {kind}"):
        check_target(name)
    assert (os.lstat(name).st_ino, os.lstat(name).st_mode) == (before.st_ino, before.st_mode)
    assert names(tmp_path) == [name]


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="not on this system: /dev/fd")
def test_an_open_stream_is_refused_whatever_is_behind_it(tmp_path):
    with open(tmp_path / "log.html", "a") as stream:
        with pytest.raises(FileExistsError, match="is an open stream of a process"):
            check_target(f"/dev/fd/{stream.fileno()}")
        (tmp_path / "link.html").symlink_to(f"/dev/fd/{stream.fileno()}")
        with pytest.raises(FileExistsError, match="is an open stream of a process"):
            check_target(tmp_path / "link.html")
    with pytest.raises(OSError, match="cannot be written: '/proc'"):
        check_target("/proc/none/y.csv")


# Before the work begins


def test_a_check_makes_nothing_and_missing_folders_are_made_when_written(answer, tmp_path):
    path = tmp_path / "not" / "yet" / "a.csv"
    check_target(path)
    check_place(tmp_path / "not" / "there" / "a.npz")
    check_new_folder(tmp_path / "nor" / "this")
    assert names(tmp_path) == []
    answer.save(path)
    assert path.stat().st_size > 0


@pytest.mark.parametrize("folder", [False, True])
def test_a_file_in_the_place_of_a_folder_is_found_at_once(folder, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"cannot be written: .*file': Not a directory"):
        check_target(tmp_path / "file" / "deep" / "a.csv", folder=folder)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_found_at_once(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="cannot be written"):
        check_target(tmp_path / "a.csv")


def test_a_full_folder_is_found_at_once(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        check_place(tmp_path / "mine")
    with pytest.raises(FileExistsError, match="is a regular file"):
        check_target(tmp_path / "mine" / "notes.txt", folder=True)


def test_a_missing_package_is_found_at_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'atypicality\[parquet\]'"):
        check_place(tmp_path / "a.parquet")


# What killed writers leave


@pytest.mark.parametrize("context", ["replacing", "new_folder"])
def test_the_next_writer_removes_what_a_killed_one_left(context, answer, tmp_path):
    kill_while_writing(tmp_path / "a.csv", context)
    (left,) = names(tmp_path)
    assert re.fullmatch(r"\.atypicality-[0-9a-f]{16}\.tmp", left)
    answer.save(tmp_path / "b.csv")
    assert names(tmp_path) == ["b.csv"]


def test_the_files_of_writers_at_work_and_of_others_are_left_alone(answer, tmp_path):
    others = [".b.csv.abcd1234.csv", ".atypicality-notes.tmp", "atypicality-0123456789abcdef.tmp"]
    for name in others:
        (tmp_path / name).touch()
    with replacing(tmp_path / "a.csv") as temporary:
        temporary.write_text("first")
        answer.save(tmp_path / "b.csv")
        assert temporary.read_text() == "first"
    assert names(tmp_path) == sorted([*others, "a.csv", "b.csv"])
    assert (tmp_path / "a.csv").read_text() == "first"


def test_a_pipe_with_the_name_of_a_temporary_file_blocks_nobody(answer, tmp_path):
    os.mkfifo(tmp_path / LEFT)
    answer.save(tmp_path / "a.csv")
    assert names(tmp_path) == [LEFT, "a.csv"]


def test_writers_of_one_folder_do_not_disturb_each_other(tmp_path):
    failures = []

    def write(number):
        try:
            for turn in range(100):
                with replacing(tmp_path / f"{number}.txt") as temporary:
                    temporary.write_text(str(turn))
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert names(tmp_path) == [f"{number}.txt" for number in range(6)]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"99"}


def test_a_folder_with_nothing_but_leftovers_is_empty(tmp_path):
    for name in ("outputs", "rows"):
        (tmp_path / name).mkdir()
        (tmp_path / name / LEFT).write_text("left by a crash")
    ModelOutputs(np.eye(2)).save(tmp_path / "outputs")
    assert names(tmp_path / "outputs") == ["logits.npy"]
    RowFolder(tmp_path / "rows", "scores").append({"labels": np.arange(3)})
    assert names(tmp_path / "rows") == ["labels.npy.part", "progress.json"]


# What is read


def test_hidden_arrays_of_a_folder_are_not_read(tmp_path):
    ModelOutputs(np.eye(2)).save(tmp_path / "outputs")
    for name in (".labels.npy", ".atypicality-0123456789abcdef.tmp"):
        (tmp_path / "outputs" / name).write_bytes(b"half of an array")
    assert ModelOutputs.load(tmp_path / "outputs").labels is None


@needs("pyarrow")
def test_hidden_parquet_files_of_a_folder_are_not_read(tmp_path):
    for part in range(2):
        ModelOutputs(np.full((4, 2), float(part))).save(tmp_path / f"part-{part}.PARQUET")
    (tmp_path / ".part-1.PARQUET.k2j4h5.parquet").write_bytes((tmp_path / "part-1.PARQUET").read_bytes())
    assert_array_equal(ModelOutputs.load(tmp_path).logits, np.repeat([[0.0, 0.0], [1.0, 1.0]], 4, axis=0))


@needs("pyarrow")
@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: data[:4] + b"\xff" * 200 + data[204:]]
)
def test_the_broken_parquet_file_of_a_folder_is_named(damage, tmp_path, rng):
    for part in range(3):
        ModelOutputs(rng.normal(size=(400, 2))).save(tmp_path / f"part-{part}.parquet")
    broken = tmp_path / "part-1.parquet"
    broken.write_bytes(damage(broken.read_bytes()))
    with pytest.raises(ValueError, match=r"'part-1\.parquet' is not a readable Parquet file: "):
        ModelOutputs.load(tmp_path)


@needs("pyarrow")
def test_missing_values_are_said_of_the_file_that_has_them(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for part, values in enumerate(([1, 0], [1, None])):
        pq.write_table(pa.table({"labels": pa.array(values)}), tmp_path / f"part-{part}.parquet")
    with pytest.raises(ValueError, match=r"'part-1\.parquet': column 'labels' has 1 missing values"):
        ModelOutputs.load(tmp_path)


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.parquet", "folder/logits.npy", "shards/a.parquet"])
def test_a_pipe_is_refused_instead_of_waited_for(name, tmp_path):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(
        ValueError, match=r"must be a regular file.*; it is a pipe\. Copy what it gives to a file first"
    ):
        ModelOutputs.load(path if path.parent == tmp_path else path.parent)


def test_sources_are_files_or_folders(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    assert check_source(tmp_path / "link", folder=True) == tmp_path / "link"
    with pytest.raises(ValueError, match="must be a regular file; it is a folder"):
        check_source(tmp_path)
    with pytest.raises(FileNotFoundError, match="no file at"):
        check_source(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="it is a device"):
        check_source(os.devnull, folder=True)


def test_a_lock_is_never_on_a_file_that_was_removed(tmp_path):
    """A block that fails takes its new folder with it; whoever waited for the lock then holds the one that is there."""
    path, waiting, found = tmp_path / "new" / ".lock", threading.Event(), []

    def wait():
        waiting.set()
        with held(path, seconds=10):
            found.append(path.exists())

    def fail():
        thread.start()
        waiting.wait(10)
        time.sleep(0.1)
        raise KeyError

    thread = threading.Thread(target=wait)
    with pytest.raises(KeyError), held(path, seconds=1):
        fail()
    thread.join()
    assert found == [True]
    with pytest.raises(KeyError), held(tmp_path / "other" / ".lock", seconds=1):
        raise KeyError
    assert sorted(child.name for child in tmp_path.iterdir()) == ["new"]


def test_a_full_disk_is_told_with_the_place(tmp_path):
    words = rf"'{tmp_path}/a.csv' was not written: No space left on device in '{tmp_path}'"
    with pytest.raises(OSError, match=words), replacing(tmp_path / "a.csv"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(tmp_path) == []
