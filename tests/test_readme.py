"""README and the documentation show what the commands print."""

import re
from pathlib import Path

import pytest

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


@pytest.mark.filterwarnings("ignore:.*more atypical.*")  # three rows are few
def test_the_python_example_prints_what_readme_shows(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python")[0], "README.md", "exec"), {})
    assert capsys.readouterr().out.split() == blocks("text")[1].split()
    assert (tmp_path / "my-head").is_dir()


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_commands_of_the_makefile_are_the_ones_named():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    text = README + (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"make ([a-z]+)", text)) <= targets | {"are"}
