"""Rules that every command keeps, whatever it does: a walk over the tree of commands."""

import os
import re
import shlex
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.main import get_command

import atypicality as aty
from atypicality.blocks import progress
from atypicality.cli import app as cli
from atypicality.cli import main
from atypicality.cli.options import FORMER, current
from atypicality.datasets import make_world

LINE = r"atypicality: [\w ]+: (.*\d [\w]+, )?\d+:\d\d:\d\d so far"


def walk(command, path=()):
    """Every group and command with the words that lead to it, the root first."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*path, name))


TREE = dict(walk(get_command(cli.app)))
LEAVES = {path: command for path, command in TREE.items() if not hasattr(command, "commands")}
GROUPS = {path: command for path, command in TREE.items() if path not in LEAVES}


def help_of(path, capsys):
    assert main([*path, "--help"]) == 0
    return capsys.readouterr().out


def options(command):
    return [part for part in command.params if part.param_type_name == "option" and part.name != "help"]


def shown(help_text):
    """The examples of a help, each as its words."""
    lines = re.sub(r"\\\n\s+", "", help_text.partition("  Examples:\n")[2])
    return [shlex.split(re.sub(r" > \S+$", "", line)) for line in lines.splitlines() if line.strip()]


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_help_has_examples_of_its_command_that_parse_and_fit_a_screen(path, capsys):
    text = help_of(path, capsys)
    examples = shown(text)
    assert examples
    for program, *words in examples:
        assert (program, *words[: len(path)]) == ("atypicality", *path)
        command, rest = LEAVES[path], words[len(path) :]
        command.make_context(" ".join(path), rest).close()  # parses, and runs nothing
        assert current(rest) == rest
    assert max(map(len, text.splitlines())) <= 88


@pytest.mark.parametrize("path", GROUPS, ids=lambda path: " ".join(path) or "atypicality")
def test_every_list_of_commands_shows_whole_summaries(path, capsys):
    _, _, listed = help_of(path, capsys).partition("Commands:\n")
    listed = " ".join(listed.split())
    for command in GROUPS[path].commands.values():
        summary, rest = (command.help + "\n\n").split("\n", 1)
        assert summary.endswith(".")
        assert summary in listed
        assert rest.startswith("\n"), "a summary is one line"


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_option_and_argument_has_words_that_end_in_a_full_stop(path):
    for part in LEAVES[path].params:
        if part.name != "help":
            assert re.search(r"[.)\]]$", part.help or ""), part.name


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_what_is_written_random_or_allowed_to_miss_has_one_name_everywhere(path):
    expected = {"out": ["--out"], "random_state": ["--seed"], "alpha": ["--alpha"], "as_json": ["--json"]}
    for option in options(LEAVES[path]):
        assert list(option.opts) == expected.get(option.name, list(option.opts))
        assert not set(option.opts) & FORMER.keys()
        if re.search(r"\bto (write|save)\b", option.help):
            assert option.name == "out", option.help
        if re.match(r"Seed\b", option.help):
            assert option.name == "random_state", option.help


def test_an_option_of_one_name_takes_one_type_everywhere(capsys):
    kinds = {}
    for path in LEAVES:
        for name, kind in re.findall(r"(?m)^  (--[\w-]+) (\S.*?)(?=  |$)", help_of(path, capsys)):
            kinds.setdefault(name, set()).add(kind.lower())
    assert kinds["--alpha"]
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}


@pytest.mark.parametrize(("former", "present"), FORMER.items())
def test_former_names_are_understood_with_their_value_apart_or_behind_a_sign(former, present):
    assert current([former, "x"]) == [present, "x"]
    assert current([f"{former}=x"]) == [f"{present}=x"]
    assert current(["a--onnx", "--onnxes", "--html5=x"]) == ["a--onnx", "--onnxes", "--html5=x"]


# Completion


def completions(line, monkeypatch, capsys):
    words = line.split(" ")
    monkeypatch.setenv("_ATYPICALITY_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert main([]) == 0
    return capsys.readouterr().out.split()


def test_a_shell_completes_commands_and_options(monkeypatch, capsys):
    assert completions("atypicality ", monkeypatch, capsys) == [path[0] for path in TREE if len(path) == 1]
    assert completions("atypicality re", monkeypatch, capsys) == ["report", "refit", "reproduce"]
    assert completions("atypicality fit --cal", monkeypatch, capsys) == ["--calibration"]


@pytest.mark.skipif(os.name != "posix", reason="not on this system: bash")
def test_bash_completes_after_the_shown_script_is_sourced(tmp_path):
    program = f'exec {shlex.quote(sys.executable)} -m atypicality "$@"'
    (tmp_path / "atypicality").write_text(f"#!/bin/bash\n{program}\n")
    (tmp_path / "atypicality").chmod(0o755)
    script = (
        "source <(atypicality --show-completion; true); COMP_WORDS=(atypicality ev); COMP_CWORD=1; "
        "_atypicality_completion atypicality; echo ${COMPREPLY[*]}"
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("evaluate\n", "")


# Lines of progress off a terminal


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(progress, "QUIET", 0.002)


def test_long_work_of_a_command_says_every_half_minute_what_it_does():
    assert progress.QUIET < 30


def test_off_a_terminal_a_command_prints_lines_with_units_and_the_library_none(impatient, capsys, monkeypatch):
    assert list(progress.track(range(3), "Counting", unit="sheep")) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("atypicality.paper.theory.theorem_1", lambda **_: slowly())
    with pytest.raises(ZeroDivisionError):
        main(["theory"])
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(re.fullmatch(LINE, line) for line in lines), lines
    assert any("of 3 sheep, " in line for line in lines)
    assert not progress.reporting.get()


def slowly():
    for _ in progress.track(range(3), "Counting", unit="sheep"):
        time.sleep(0.1)
    return 1 // 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules")
    world = make_world(1200, 3, temperature=2.0, random_state=0).outputs()
    aty.ReliabilityHead().fit(train=world[:400], calibration=world[400:800]).save(path / "head")
    world[:400].save(path / "train.npz")
    world[400:].save(path / "test.npz")
    np.save(path / "logits.npy", world.logits)
    return path


@pytest.mark.parametrize(
    "words",
    [
        "fit --train train.npz --calibration test.npz --out new",
        "predict head test.npz --out a.csv",
        "evaluate head test.npz",
        "report head test.npz --out r.html",
        "monitor head watch test.npz --reference test.npz",
        "pack logits.npy --out logits.npz",
    ],
)
def test_every_command_that_may_take_long_has_something_to_report(words, folder, monkeypatch, capsys):
    told = []

    class Heard(progress._Lines):
        def add_task(self, description, **fields):
            told.append(description)
            super().add_task(description, **fields)

    monkeypatch.setattr(progress, "_Lines", Heard)
    monkeypatch.chdir(folder)
    assert main(words.split()) == 0
    assert told
    assert capsys.readouterr().err == ""  # and short work stays silent
