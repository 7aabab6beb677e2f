"""README and the documentation show what the commands print."""

import contextlib
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from atypicality.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def test_the_demo_prints_readmes_table(capsys, tmp_path):
    assert main(["demo", "--out", str(tmp_path)]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    shown = [line.rstrip() for line in blocks("text")[0].splitlines() if line.strip()]
    assert len(shown) > 5
    assert [line for line in shown if line not in printed] == []
    assert (tmp_path / "report.html").stat().st_size > 10_000
    with contextlib.chdir(tmp_path):  # README's commands run as they stand on what the demo leaves behind
        commands = [
            shlex.split(line) for line in README.splitlines() if re.match("atypicality (fit|pred|eval|rep)", line)
        ]
        assert [command[1] for command in commands] == ["fit", "predict", "evaluate", "report"]
        assert [main(command[1:]) for command in commands] == [0, 0, 0, 0]


def test_numbers_in_sentences_are_those_of_the_demo():
    shown, prose = blocks("text")[0], README.split("```text")[1].split("```")[1].partition("## Use it")[0]
    stated = re.findall(r"(\d+\.\d) %", prose)
    assert len(stated) > 5
    assert [number for number in stated if f"{number}%" not in shown] == []


def test_peers_are_named_with_the_versions_that_are_measured():
    pins = (ROOT / "benchmarks" / "requirements.txt").read_text() + (ROOT / "constraints.txt").read_text()
    named = re.findall(r"(crepes|MAPIE|netcal|probmetrics|scikit-learn|torchmetrics) (\d[\d.]*\d)", README)
    assert len(named) == 6
    for name, version in named:
        assert re.search(rf"^{name}=={re.escape(version)}$", pins, flags=re.M | re.I), name


def test_the_example_is_ten_lines():
    assert len([line for line in blocks("python")[0].splitlines() if line.strip()]) <= 10


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_commands_of_the_makefile_are_the_ones_named():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    text = README + (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"make ([a-z]+)", text)) <= targets | {"are"}


def test_a_first_look_installs_the_core_alone():
    commands = [shutil.which("make"), "-n", "-B", "VENV=no-such-folder", "demo"]
    plan = subprocess.run(commands, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ".venv-demo/bin/atypicality demo" in plan
    assert "torch" not in plan
