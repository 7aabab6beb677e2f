"""The command as a process: paths checked before the work, one line for mistakes and Ctrl-C, any terminal."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import needs

import atypicality as aty
from atypicality.cli import main
from atypicality.datasets import load_fashion_mnist_lt

pytestmark = pytest.mark.skipif(os.name != "posix", reason="not on this system: pipes and signals of POSIX")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A head, and outputs with texts that are awkward."""
    path = tmp_path_factory.mktemp("process")
    train, calibration, test = load_fashion_mnist_lt()
    aty.ReliabilityHead().fit(train=train[:3000], calibration=calibration[:1200]).save(path / "head")
    rows = dict(logits=test.logits[:40], embeddings=test.embeddings[:40])
    np.savez(path / "greek.npz", **rows, ids=np.array([f"α{i}" for i in range(40)]))
    np.savez(path / "bytes.npz", **rows, ids=np.array([f"ü{i}".encode() for i in range(40)]))
    np.savez(path / "floats.npz", **rows, labels=test.labels[:40].astype(float))
    return path


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


# Paths are checked before the work


SCORES = ("llm", "--model", "absent.jsonl", "--data", "absent.txt", "--template", "trec", "--out")
COMMANDS = {
    "predict": ("predict", "absent", "absent.npz", "--out"),
    "report": ("report", "absent", "absent.npz", "--out"),
    "export": ("export", "absent", "--out"),
    "llm": SCORES,
    "fit": ("fit", "--calibration", "absent.npz", "--out"),
    "demo": ("demo", "--out"),
    "reproduce": ("reproduce", "temperatures", "--out"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_cannot_be_written_is_found_before_anything_is_read(command, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    code, out, err = run(capsys, *COMMANDS[command], "file/deep/answers.npz")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "file/deep/answers.npz" in err
    assert "cannot be written" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_as_output_is_refused_and_stays(command, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.npz")
    code, _, err = run(capsys, *COMMANDS[command], "pipe.npz")
    assert code == 2
    assert "is a pipe, which is not replaced" in err or "Not a directory" in err  # demo and reproduce write inside
    assert [path.name for path in tmp_path.iterdir() if path.is_fifo()] == ["pipe.npz"]


@pytest.mark.parametrize(
    ("out", "message"), [("answers.xlsx", "has no known ending"), ("full", "is not empty"), ("a.npz/x.npz", "a.npz")]
)
def test_llm_asks_no_model_when_its_answers_could_not_be_kept(out, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    (tmp_path / "a.npz").touch()
    code, _, err = run(capsys, *SCORES, out)
    assert code == 2
    assert message in err


def test_somebody_elses_readme_is_found_before_the_fit(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("# Mine\n")
    code, _, err = run(capsys, *COMMANDS["fit"], ".")
    assert code == 2
    assert "was not written by a bundle" in err


@needs("httpx")
def test_a_cache_that_cannot_be_kept_is_found_before_the_server_is_asked(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "questions.txt").write_text("NUM:dist How far ?\n")
    os.mkfifo("cache.jsonl")
    server = ("--model", "http://localhost:1/v1", "--served-model", "m", "--cache", "cache.jsonl")
    code, _, err = run(capsys, "llm", *server, "--data", "questions.txt", "--template", "trec", "--out", "a.npz")
    assert code == 2
    assert "'cache.jsonl' is a pipe" in err


def test_predict_makes_missing_folders(folder, capsys, tmp_path):
    out = tmp_path / "new" / "folder" / "a.csv"
    assert run(capsys, "predict", folder / "head", folder / "greek.npz", "--out", out)[0] == 0
    assert out.stat().st_size > 0


# Mistakes are one line


@pytest.mark.parametrize("arguments", [("evaluate", "head"), ("report", "head", "--out", "r.html")])
def test_labels_that_are_floats_are_a_mistake(arguments, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    code, _, err = run(capsys, *arguments, "floats.npz")
    assert (code, err.count("\n")) == (2, 1)
    assert "labels must be whole numbers, the columns from 0, or names of classes; got dtype float64" in err


@pytest.mark.parametrize("ending", ["csv", "jsonl", "npz", pytest.param("parquet", marks=needs("pyarrow"))])
def test_ids_that_are_bytes_come_out_as_text(ending, folder, capsys, tmp_path):
    out = tmp_path / f"a.{ending}"
    assert run(capsys, "predict", folder / "head", folder / "bytes.npz", "--out", out)[0] == 0
    assert "ü0" in first_id(out)


def first_id(path):
    if path.suffix == ".npz":
        return str(np.load(path)["ids"][0])
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_table(path)["id"][0].as_py()
    line = path.read_text(encoding="utf-8").splitlines()[path.suffix == ".csv"]
    return json.loads(line)["id"] if path.suffix == ".jsonl" else line.partition(",")[0]


@needs("httpx")
@pytest.mark.parametrize("key", ["sk-αsecret", "sk-secret\nmore"])
def test_a_key_that_no_header_can_hold_is_a_mistake_and_is_not_shown(key, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", key)
    (tmp_path / "questions.txt").write_text("NUM:dist How far ?\n")
    server = ("--model", "http://localhost:1/v1", "--served-model", "m")
    code, _, err = run(capsys, "llm", *server, "--data", "questions.txt", "--template", "trec", "--out", "a.npz")
    assert code == 2
    assert "OPENAI_API_KEY must hold a key of printable ASCII characters" in err
    assert "secret" not in err


@pytest.mark.parametrize("operation", ["None + 1", "int('x')", "np.zeros(2) + np.zeros(3)", "[].index(1)"])
def test_an_operation_that_fails_inside_the_package_is_a_bug(operation, monkeypatch):
    code = compile(f"def broken(**_): {operation}", "theory.py", "exec")
    space = {"__name__": "atypicality.paper.theory", "np": np}
    exec(code, space)  # a function of the package whose operation fails
    monkeypatch.setattr("atypicality.paper.theory.theorem_1", space["broken"])
    with pytest.raises((TypeError, ValueError)):
        main(["theory", "--n-draws", "2"])


# Any terminal


def process(*arguments, **environment):
    command = [sys.executable, "-m", "atypicality", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env=os.environ | environment, check=False)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_characters_that_a_terminal_lacks_are_shown_by_their_codes(encoding, folder, tmp_path):
    out = tmp_path / "a.csv"
    done = process("predict", folder / "head", folder / "greek.npz", "--out", out, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u03b10" in done.stdout or "α0".encode() in done.stdout  # click writes UTF-8 where ASCII is all there is
    assert "α0" in out.read_text(encoding="utf-8")


def test_the_caller_keeps_how_its_stdout_treats_characters(capsys):
    before = sys.stdout.errors
    main(["--version"])
    assert sys.stdout.errors == before


# Ctrl-C


def interrupted(code, *arguments, ready=b"ready\n"):
    """Run a program until it is ready, send Ctrl-C, and return what it left and how long that took."""
    # a test that is run in the background by a shell has Ctrl-C ignored, and so would its children
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    started = [sys.executable, "-c", heard + code, *map(str, arguments)]
    child = subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline() == ready
    start = time.monotonic()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    return child.returncode, err, time.monotonic() - start


def test_ctrl_c_while_modules_are_imported_is_one_line():
    code = (
        "import sys\n"
        "class Slow:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from atypicality.cli import run; run()"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"atypicality: interrupted\n")


COMMAND = (
    "import sys, time; from atypicality import blocks, theory; from atypicality.cli import run\n"
    "from atypicality.outputs import paths\n"
    "def work(**_):\n    {work}\n"
    "theory.theorem_1 = work; folder = sys.argv[1]; sys.argv[1:] = ['theory']; run()"
)


def test_ctrl_c_does_not_wait_for_threads(tmp_path):
    work = "print('ready', flush=True); blocks.for_rows(lambda rows: time.sleep(50), 8, block=1, threads=4)"
    code, err, seconds = interrupted(COMMAND.format(work=work), tmp_path)
    assert (code, err) == (130, b"atypicality: interrupted\n")
    assert seconds < 25  # half of what one block takes; a busy machine needs a second or two


def test_ctrl_c_leaves_no_temporary_file(tmp_path):
    work = "\n    ".join(
        [
            "with paths.replacing(folder + '/a.csv') as temporary, paths.new_folder(folder + '/b') as new:",
            "    temporary.write_text('half'); (new / 'x.npy').write_text('half')",
            "    print('ready', flush=True); time.sleep(50)",
        ]
    )
    code, err, _ = interrupted(COMMAND.format(work=work), tmp_path)
    assert (code, err) == (130, b"atypicality: interrupted\n")
    assert list(tmp_path.iterdir()) == []
