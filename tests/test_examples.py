"""Every example runs with warnings as errors, asserts what it tells, and stays short; the site can draw its figures."""

import ast
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from conftest import needs

import atypicality as aty

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
PACKAGES = {  # what a script needs beyond the figures
    "07_torch_classifier": ("torch",),
    "08_ship_a_head": ("onnx", "onnxruntime"),
}
LINES = 100


def cases():
    return [
        pytest.param(path, id=path.stem, marks=needs("altair", "vl_convert", *PACKAGES.get(path.stem, ())))
        for path in SCRIPTS
    ]


@pytest.mark.usefixtures("graphs_run_here")
@pytest.mark.parametrize("path", cases())
def test_it_runs_without_a_warning_and_leaves_nothing_behind(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")  # warnings are errors in every test
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") >= 3  # numbers to explain
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_it_is_a_short_story_that_asserts_what_it_tells(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    title, line, empty, *_ = ast.get_docstring(tree).splitlines()
    assert line == "=" * len(title)
    assert empty == ""
    assert len(text.splitlines()) < LINES
    assert text.count("\n# %%\n") >= 3
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(tree)) >= 2
    assert any(isinstance(node, ast.Expr) and _draws(node) for node in tree.body), "no figure"


def _draws(node):
    """Whether a statement is a bare call whose value the site shows: a chart function, or `encode` of a chart."""
    called = node.value.func if isinstance(node.value, ast.Call) else None
    return isinstance(called, ast.Attribute) and (
        called.attr == "encode" or ast.unparse(called).startswith("aty.charts.")
    )


def test_they_are_numbered_without_gaps():
    assert [int(path.name[:2]) for path in SCRIPTS] == list(range(1, len(SCRIPTS) + 1))
    assert len(SCRIPTS) >= 10
    assert set(PACKAGES) <= {path.stem for path in SCRIPTS}


@needs("altair", "vl_convert", "sphinx_gallery")
def test_the_site_draws_a_chart_once_in_two_sizes(tmp_path, monkeypatch):
    import altair as alt
    from sphinx_gallery.scrapers import ImagePathIterator

    monkeypatch.syspath_prepend(str(FOLDER.parent / "docs"))
    from gallery_altair import altair_scraper, is_chart

    chart = alt.Chart(alt.Data(values=[{"x": 1, "y": 2}])).mark_point()
    chart = chart.encode(alt.X("x:Q", title="Input"), alt.Y("y:Q", title="Output"))
    paths = ImagePathIterator(tmp_path / "figure_{0:03}.png")
    variables = {"example_globals": {"___": chart}, "image_path_iterator": paths}
    settings = {"src_dir": str(tmp_path)}
    drawn = altair_scraper(None, variables, settings)
    assert "figure_001.png" in drawn
    assert "figure_001_2_00x.png 2.00x" in drawn
    assert ":alt: Chart of Output against Input" in drawn
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure_001.png", "figure_001_2_00x.png"]
    assert altair_scraper(None, variables, settings) == ""  # the next block ends without a chart
    assert altair_scraper(None, {**variables, "example_globals": {"___": 3}}, settings) == ""
    assert is_chart(
        aty.charts.reliability_diagram(aty.evaluate("uncalibrated", aty.datasets.make_world(300).outputs()))
    )


@pytest.fixture
def reviews(monkeypatch):
    """The script that made the reviews of the language model's example, and what it wrote."""
    monkeypatch.syspath_prepend(str(FOLDER / "data"))
    import score_reviews

    lines = (FOLDER / "data" / "reviews.jsonl").read_text(encoding="utf-8").splitlines()
    return score_reviews, [json.loads(line) for line in lines]


@needs("torch", "transformers")
def test_the_reviews_are_those_of_their_script(reviews):
    script, records = reviews
    rng = np.random.default_rng(0)
    made = dict(script.write_review(rng) for _ in range(4 * script.N_REVIEWS))
    kept = [(record["review"], record["label"]) for record in records if "review" in record]
    assert kept == list(made.items())[: script.N_REVIEWS]
