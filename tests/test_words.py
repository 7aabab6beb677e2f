"""Words of the field: what is retired is written nowhere."""

import re
from pathlib import Path

import pytest
import typer.main

from atypicality.cli import main
from atypicality.cli.app import app

ROOT = Path(__file__).parents[1]
RETIRED = re.compile(
    r"\bmend|\bpromise|rows that (choose|carry)|larger = stranger|where (it|they) lies?|ceiling of memory|\bone T\b"
    r"|surest"
)
BUILT = {"_build", "_generated", "_figures", "auto_examples", "__pycache__"}
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [
    path
    for folder in ("src", "docs", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".md", ".rst", ".js", ".html", ".css"} and not BUILT & set(path.relative_to(ROOT).parts)
]


@pytest.mark.parametrize("folder", ["src", "docs", "examples", "README.md", "CONTRIBUTING.md"])
def test_retired_words_are_gone(folder):
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in WRITTEN
        if path.relative_to(ROOT).parts[0] == folder
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if RETIRED.search(line)
    ]
    assert found == []


def commands():
    """Every command of the command line, as its words."""
    return list(typer.main.get_command(app).commands)


@pytest.mark.parametrize("command", ["", *commands()])
def test_help_has_no_retired_words(command, capsys):
    main([*command.split(), "--help"])
    printed = capsys.readouterr().out
    assert "Usage" in printed
    assert RETIRED.findall(printed) == []
