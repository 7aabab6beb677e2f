"""What a package index, a workflow and a contributor read agrees: one list of versions, extras and commands."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ALIASES = {"report": "charts"}
MAKEFILE, WORKFLOW = (ROOT / "Makefile").read_text(), (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def numbers(version):
    return tuple(map(int, re.findall(r"\d+", version)))


def test_the_workflow_runs_every_version_of_python_that_the_index_is_told_of():
    told = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert PROJECT["requires-python"] == f">={told[0]}"
    assert [re.findall(r'"([\d.]+)"', line) for line in re.findall(r"python: \[(.+)\]", WORKFLOW)] == [told, told]


def test_commands_of_the_workflow_and_of_ci_are_targets_and_files():
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, flags=re.M))
    commands = re.findall(r"- run: (.+)", WORKFLOW) + re.findall(
        r"^(?:\w+=1 )?(make .+)", (ROOT / ".ci/run").read_text(), re.M
    )
    for command in commands:
        assert command == ".ci/run" or set(command.split()[1:]) <= targets, command
    assert {".ci/run", "make core", "make oldest", "make coverage", "make test", "make check"} <= set(commands) | {
        f"make {target}" for command in commands for target in command.split()[1:]
    }


def test_a_former_extra_is_the_present_one_and_all_has_every_other():
    for former, present in ALIASES.items():
        assert EXTRAS[former] == [f"atypicality[{present}]"]
    [everything] = EXTRAS["all"]
    assert set(re.findall(r"\[(.+)\]", everything)[0].split(",")) == EXTRAS.keys() - ALIASES.keys() - {"all"}
    assert set(re.search(r"^EXTRAS \?= (.+)$", MAKEFILE, re.M)[1].split(",")) == EXTRAS.keys() - ALIASES.keys() - {
        "all"
    }


def test_every_requirement_has_a_lowest_version_that_the_pinned_one_is_not_below():
    pins = dict(line.lower().split("==") for line in (ROOT / "constraints.txt").read_text().split())
    wanted = [*PROJECT["dependencies"], *(part for name, parts in EXTRAS.items() if name != "all" for part in parts)]
    for requirement in wanted:
        if requirement.startswith("atypicality["):
            continue
        name, lowest = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?:;.*)?", requirement).groups()
        pinned = {key.replace("_", "-"): value for key, value in pins.items()}[name.replace("_", "-")]
        assert numbers(pinned) >= numbers(lowest), requirement


def test_the_hooks_before_a_commit_are_the_commands_of_make_check():
    hooks = re.findall(r"entry: \.venv/bin/(.+)", (ROOT / ".pre-commit-config.yaml").read_text())
    checked = re.search(r"^check: setup\n((?:\t.+\n)+)", MAKEFILE, re.M)[1]
    assert [line.partition("/")[2].replace(" --check", "").rstrip(" .") for line in checked.splitlines()] == hooks


def test_links_of_the_index_lead_to_one_place_and_files_that_exist():
    home = PROJECT["urls"]["Homepage"]
    for link in PROJECT["urls"].values():
        assert link.startswith(home)
        path = re.fullmatch(rf"{re.escape(home)}/(?:blob|tree)/main/(.+)", link)
        assert path is None or (ROOT / path[1]).exists(), link
    assert f"{home}/security/advisories/new" in (ROOT / "SECURITY.md").read_text()


def test_every_file_that_the_source_distribution_names_exists():
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"][
        "include"
    ]
    assert [name for name in built if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("target", ["core", "oldest"])
def test_the_core_is_tested_with_files_that_exist(target):
    listed = re.search(r"^CORE_TESTS := \$\(addprefix tests/test_,((?:.|\\\n)+?)\)$", MAKEFILE, re.M)[1]
    assert [name for name in re.findall(r"\w+\.py", listed) if not (ROOT / "tests" / f"test_{name}").exists()] == []
    assert re.search(rf"^{target}:.*\n(?:\t.*\n|.*\\\n)*\t.*pytest.*\$\(CORE_TESTS\)$", MAKEFILE, re.M)
