"""README and the documentation show what the commands print."""

import contextlib
import io
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from test_words import RETIRED

from atypicality.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The folder that the demo leaves behind, and what it and README's commands print there."""
    folder, printed = tmp_path_factory.mktemp("demo"), io.StringIO()
    commands = [shlex.split(line) for line in README.splitlines() if re.match("atypicality (fit|pred|eval|rep)", line)]
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        codes = [main(["demo", "--out", "."]), *(main(command[1:]) for command in commands)]
    assert [command[1] for command in commands] == ["fit", "predict", "evaluate", "report"]
    assert codes == [0, 0, 0, 0, 0]
    return folder, printed.getvalue()


def test_readmes_commands_run_on_what_the_demo_leaves_behind(demo):
    assert (demo[0] / "report.html").stat().st_size > 10_000


def test_what_commands_print_and_write_has_no_retired_words(demo):
    folder, printed = demo
    written = [path for path in folder.rglob("*") if path.suffix in (".html", ".md", ".json")]
    assert len(printed) > 2000
    assert {path.name for path in written} >= {"report.html", "README.md", "head.json"}
    found = [text for text in (printed, *(path.read_text("utf-8") for path in written)) if RETIRED.search(text)]
    assert found == []


def cells(text):
    """Rows of the Markdown tables in a text: the first cell, and the others."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {name: values for name, *values in rows if name not in ("", "---")}


def measured(table):
    """Rows of a table that docs/measure_methods.py writes; tests/test_docs.py repeats parts of it."""
    return cells((ROOT / "docs" / "tables" / f"{table}.md").read_text())


RESULTS = README.partition("## Results")[2].partition("\n## ")[0]


def test_results_are_the_measured_ones():
    names = {
        "structured matrix scaling (SMS)": "structured matrix scaling",
        "AAR, as in the paper": "atypicality-aware, paper",
    }
    shown = {names.get(name, name): values for name, values in cells(RESULTS).items()}
    balanced, tailed = measured("fashion-mnist-rows"), measured("fashion-mnist-lt-rows")
    expected = {name: [*balanced[name][1::2], *tailed[name][1::2]] for name in balanced}  # 500 and 5,000 rows
    balanced, tailed = measured("fashion-mnist-equal-size"), measured("fashion-mnist-lt-equal-size")
    for name in balanced:
        expected[name] = [part[name][column] for part in (balanced, tailed) for column in (0, 2, 3)]
    assert len(shown) == 9
    assert {name: expected[name] for name in shown} == shown


def test_numbers_in_sentences_are_the_measured_ones():
    balanced, tailed = measured("fashion-mnist-recalibration"), measured("fashion-mnist-lt-recalibration")
    model, single, vector, default = (
        "the model itself",
        "temperature scaling",
        "vector scaling",
        "atypicality-aware, default",
    )
    expected = [balanced[default][0], balanced[model][0], tailed[model][0], tailed[default][0], tailed[vector][0]]
    expected += [balanced[default][3], balanced[single][3]]
    assert re.findall(r"\b0\.\d+", RESULTS.partition("does **not**")[2]) == expected


def test_one_number_says_how_many_labelled_rows_are_needed():
    assert "**500 labelled rows**" in README
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "howto").glob("*.md")]:
        assert not re.search(
            r"(few|some|several) (hundred|thousand) (labelled|calibration)? ?rows", page.read_text()
        ), page


def test_the_example_is_ten_lines():
    assert len([line for line in blocks("python")[0].splitlines() if line.strip()]) <= 10


def test_links_are_absolute_and_lead_to_files():
    assert re.findall(r"\]\((?!https://)[^)]*\)", README) == []
    targets = re.findall(r"https://(?:github|raw\.githubusercontent)\.com/atypicality/atypicality/(\S*?)[)\n]", README)
    assert len(targets) > 20
    for target in targets:
        path = re.sub(r"^((blob|tree)/)?main/|#.*", "", target)
        assert (ROOT / path).exists(), target
    defined = set(re.findall(r"^\[(.+?)\]:", README, flags=re.M))
    prose = re.sub(r"```.*?```|`[^`]*`|^\[[^\]]+\]: \S+", "", README, flags=re.S | re.M)
    assert set(re.findall(r"\[([^\]]+)\](?!\()", prose)) == defined


def test_commands_of_the_makefile_are_the_ones_named():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    text = README + (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"make ([a-z]+)", text)) <= targets | {"are"}


def test_a_first_look_installs_the_core_alone():
    commands = [shutil.which("make"), "-n", "-B", "VENV=no-such-folder", "demo"]
    plan = subprocess.run(commands, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ".venv-demo/bin/atypicality demo" in plan
    assert "torch" not in plan
