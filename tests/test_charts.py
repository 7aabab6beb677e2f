"""Charts: valid specifications, data equal to the evaluation's tables, words on the axes, and pictures that render."""

import json
import math
import re
import struct
import sys
from functools import cache

import numpy as np
import pytest
from conftest import needs
from report_cases import (
    HOSTILE,
    QUADRANTS,
    TEST,
    Opened,
    comparison,
    evaluation_and_head,
    needs_chromium,
    shared_page,
    world_outputs,
)

import atypicality as aty
from atypicality import charts
from atypicality.charts.saving import START
from atypicality.monitoring import Monitor
from atypicality.paper.theory import theorem_1, theorem_2
from atypicality.report.examples import checked_pixels, png_url

pytestmark = needs("altair", "vl_convert")

SETS = "head"


def texts():
    return [f"{HOSTILE} {row}" for row in range(1500)]


def held_out():
    _, head = evaluation_and_head()
    return head.density_.atypicality(world_outputs()[TEST].embeddings)


def curve(least):
    """Sets of at least some of four classes, more of them where alpha is small."""
    rank = np.arange(4)
    return aty.metrics.pareto_curve(
        lambda alpha: np.tile(rank <= least + 2 * (alpha < 0.1), (120, 1)), np.arange(120) % 4, np.arange(120) % 2
    )


def watched(head):
    monitor = Monitor(head)
    for day in range(3):
        monitor.add(world_outputs()[TEST][100 * day : 100 * day + 100], at=86400 * day)
    return monitor


DRAWN = {
    "quadrant_scatter": lambda e, h: charts.quadrant_scatter(e),
    "quadrant_scatter_with_examples": lambda e, h: charts.quadrant_scatter(
        e, examples={0: HOSTILE, 7: np.zeros((8, 8), np.uint8), 9: np.full((4, 6, 3), 200, np.uint8)}
    ),
    "atypicality_distribution": lambda e, h: charts.atypicality_distribution(e),
    "extreme_samples": lambda e, h: charts.extreme_samples(e, texts()),
    "grid_overconfidence": lambda e, h: charts.confidence_grid(e),
    "grid_accuracy": lambda e, h: charts.confidence_grid(e, "accuracy"),
    "class_grid": lambda e, h: charts.confidence_grid(e, "accuracy", by="class"),
    "grid_coverage": lambda e, h: charts.confidence_grid(e, "coverage", methods=SETS),
    "grid_set_size": lambda e, h: charts.confidence_grid(e, "set_size", methods=[SETS]),
    "ece_by_atypicality": lambda e, h: charts.quality_by_group(e),
    "accuracy_by_class": lambda e, h: charts.quality_by_group(e, "accuracy", by="class"),
    "temperatures": lambda e, h: charts.temperatures(e),
    "multiplier": lambda e, h: charts.multiplier(h.recalibration_, held_out()),
    "class_scores": lambda e, h: charts.class_scores(e),
    "coverage_by_atypicality": lambda e, h: charts.coverage_by_group(e),
    "size_by_confidence": lambda e, h: charts.coverage_by_group(e, "set_size", by="confidence"),
    "coverage_at_levels": lambda e, h: charts.coverage_at_levels({0.1: e, 0.05: e}),
    "coverage_against_size": lambda e, h: charts.coverage_against_size(e),
    "pareto_curves": lambda e, h: charts.pareto_curves({"one": curve(0), "two": curve(1)}),
    "subgroup_bars": lambda e, h: charts.subgroup_bars(e, "ece"),
    "reliability_diagram": lambda e, h: charts.reliability_diagram(e),
    "risk_coverage": lambda e, h: charts.risk_coverage(e),
    "monitor_history": lambda e, h: charts.monitor_history(watched(h), "confidence"),
    "theorem_1": lambda e, h: charts.theorem_1_curves(theorem_1(n_draws=4)),
    "theorem_2": lambda e, h: charts.theorem_2_curves([theorem_2(n_draws=4), theorem_2(norm=2.0, n_draws=4)]),
}


@cache
def drawn(name):
    return DRAWN[name](*evaluation_and_head())


def walk(node):
    yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(child)


def data_of(chart):
    """Every inline data set of a chart, the largest last."""
    spec = chart.to_dict()
    found = [node["values"] for node in walk(spec) if isinstance(node, dict) and isinstance(node.get("values"), list)]
    return sorted([*found, *spec.get("datasets", {}).values()], key=len)


@pytest.mark.parametrize("name", DRAWN)
def test_every_chart_is_valid_says_what_its_axes_are_and_renders(name):
    spec = drawn(name).to_dict(validate=True)
    text = json.dumps(spec, allow_nan=False)
    for node in walk(spec):
        for channel in ("x", "y", "color"):
            place = node.get(channel) if isinstance(node, dict) else None
            if isinstance(place, dict) and "field" in place and place.get("axis", 0) is not None:
                assert "title" in place
                assert place["title"] is None or (place["title"] != place["field"] and "_" not in place["title"])
    assert any("tooltip" in node for node in walk(spec) if isinstance(node, dict))
    picture = render(text)
    assert np.ptp(np.frombuffer(picture[100:], np.uint8)) > 0
    width, height = struct.unpack(">II", picture[16:24])
    assert width > 200
    assert height > 100
    assert len(picture) > 2500  # a blank picture of this size is smaller


def render(text):
    import vl_convert

    picture = vl_convert.vegalite_to_png(text, scale=1)
    assert picture.startswith(b"\x89PNG")
    return picture


def test_every_public_function_is_drawn_here():
    called = {name for names in (function.__code__.co_names for function in DRAWN.values()) for name in names}
    assert set(charts.__all__) <= called


def test_docstrings_are_filled_in():
    for name in charts.__all__:
        assert not re.search(r"^\s*\{\w+\}", getattr(charts, name).__doc__, re.MULTILINE), name


def numbers(rows, *keys):
    return sorted(tuple(str(row[key]) for key in keys) for row in rows)


@pytest.mark.parametrize(
    ("name", "table", "where"),
    [
        ("grid_overconfidence", "grid", {"metric": "overconfidence"}),
        ("class_grid", "class_grid", {"metric": "accuracy"}),
        ("grid_coverage", "grid", {"metric": "coverage", "method": SETS}),
        ("ece_by_atypicality", "atypicality_groups", {"metric": "ece"}),
        ("accuracy_by_class", "class_groups", {"metric": "accuracy"}),
        ("temperatures", "temperatures", {}),
        ("class_scores", "class_scores", {}),
        ("coverage_by_atypicality", "atypicality_groups", {"metric": "coverage"}),
        ("size_by_confidence", "confidence_groups", {"metric": "set_size"}),
        ("subgroup_bars", "subgroups", {"metric": "ece", "attribute": "side<b>"}),
        ("reliability_diagram", "calibration_curve", {"metric": "accuracy"}),
        ("risk_coverage", "risk_coverage", {"metric": "risk"}),
    ],
)
def test_the_data_drawn_are_the_tables(name, table, where):
    rows = [row for row in evaluation_and_head()[0].table(table, **where) if row["count"] > 0]
    assert numbers(data_of(drawn(name))[-1], "count", "value") == numbers(rows, "count", "value")


def test_groups_are_counted_from_one():
    rows = data_of(drawn("ece_by_atypicality"))[-1]
    assert sorted({row["group"] for row in rows}) == [1, 2, 3, 4, 5]


def test_a_method_keeps_its_colour_where_others_are_left_out():
    evaluation, _ = evaluation_and_head()
    everything, one = (charts.risk_coverage(evaluation, methods=m).to_dict() for m in (None, "head"))
    scales = [
        next(n["color"]["scale"] for n in walk(spec) if isinstance(n, dict) and "color" in n)
        for spec in (everything, one)
    ]
    assert dict(zip(*scales[0].values(), strict=True))["head"] == scales[1]["range"][0]


def test_the_scatter_has_every_sample_in_its_quadrant():
    evaluation, _ = evaluation_and_head()
    rows = data_of(drawn("quadrant_scatter"))[-1]
    shares = {row["quadrant"]: row["count"] for row in evaluation.table("quadrants", method="head", metric="share")}
    assert {name: sum(row["quadrant"] == name for row in rows) for name in QUADRANTS} == shares


def test_extremes_are_the_smallest_and_largest_with_their_percentiles():
    evaluation, _ = evaluation_and_head()
    rows = data_of(charts.extreme_samples(evaluation, texts(), n_shown=2))[-1]
    values = sorted(row["atypicality"] for row in evaluation.table("samples"))
    assert [row["atypicality"] for row in rows] == [*values[:2], *values[-2:]]
    assert [row["percentile"] for row in rows] == pytest.approx([100 / 1500, 200 / 1500, 100 * 1499 / 1500, 100.0])
    assert all(row["text"] == f"{HOSTILE} {row['row']}" for row in rows)


def test_phi_is_the_recalibrations_own():
    _, head = evaluation_and_head()
    rows = data_of(charts.multiplier(head.recalibration_, held_out(), n_points=5))[-1]
    places = [row["atypicality"] for row in rows]
    assert (places[0], places[-1]) == (held_out().min(), held_out().max())
    assert [row["multiplier"] for row in rows] == head.recalibration_.multiplier(places).tolist()


def test_theorem_curves_are_the_results():
    result = theorem_1(n_draws=4)
    shown = [row["value"] for row in data_of(charts.theorem_1_curves(result))[-1]]
    assert shown == [value for row in result.rows for value in row.overconfidence]
    second = theorem_2(n_draws=4)
    shown = [row["error"] for row in data_of(charts.theorem_2_curves(second))[-1]]
    names = ("error_uncalibrated", "error_single_squared", "error_aware_squared")
    assert shown == [getattr(row, name) for row in second.rows for name in names]


def test_a_comparison_is_drawn_too():
    chart = charts.quality_by_group(comparison())
    assert {row["method"] for row in data_of(chart)[-1]} == {"uncalibrated", "ts", "aar"}
    render(chart.to_json())


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "html"])
def test_charts_are_saved(tmp_path, ending):
    path = tmp_path / f"figure.{ending}"
    drawn("temperatures").save(path)
    assert path.stat().st_size > 1000


DRAW_AGAIN = f"""text => {{
  document.getElementById("data").textContent = text;
  document.getElementById("chart").replaceChildren();
  {START}
}}"""


@needs_chromium
def test_saved_pages_draw_and_hostile_names_stay_text(browser, tmp_path):
    """Pages are one page but for their data, which cannot end its element: one that is open draws all in turn."""
    path = tmp_path / "chart.html"
    parts = {name: re.split('(?<=id="data">)(.*?)(?=</script>)', drawn(name).to_html(), maxsplit=1) for name in DRAWN}
    (start, _, end), *others = parts.values()
    assert all((before, after) == (start, end) for before, _, after in others)
    assert not any("<" in data for _, data, _ in parts.values())
    drawn(next(iter(parts))).save(path)
    assert path.read_text(encoding="utf-8") == "".join(next(iter(parts.values())))
    with Opened(browser, path) as opened:  # whose end checks that the console was silent, nothing requested
        for place, (name, (_, data, _)) in enumerate(parts.items()):
            if place:
                opened.page.evaluate(DRAW_AGAIN, data)
            opened.page.wait_for_selector("#chart svg .mark-group")
            assert opened.page.evaluate("window.hacked") is None, name
            assert opened.page.locator("img").count() == 0, name
            assert opened.page.locator("script").count() == 2, name


@needs_chromium
def test_hostile_names_are_text_on_hover_too(browser, tmp_path):
    path = tmp_path / "chart.html"
    drawn("class_scores").save(path)
    with Opened(browser, path) as opened:
        bar = opened.page.locator(f"#chart [aria-roledescription][aria-label*={json.dumps(HOSTILE)}]").first
        bar.hover(force=True)
        opened.page.wait_for_selector("#vg-tooltip-element.visible")
        assert HOSTILE in opened.page.inner_text("#vg-tooltip-element")


@needs_chromium
def test_notebook_output_keeps_hostile_names_in_its_data(browser, tmp_path):
    chart = drawn("class_scores")
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><body>{chart._repr_mimebundle_()['text/html']}", encoding="utf-8")
    page = shared_page(browser)
    page.context.set_offline(True)  # where Altair would load its libraries from
    page.goto(path.as_uri())
    page.context.set_offline(False)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


def test_pages_have_the_policy_of_the_report():
    page = drawn("temperatures").to_html()
    policy = page.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.parametrize("renderer", ["html", "mimetype", "json", "png", "svg"])
def test_charts_are_shown_by_the_renderers_of_altair(renderer):
    import altair

    chart = drawn("class_scores")
    with altair.renderers.enable(renderer):
        shown = chart._repr_mimebundle_()
    bundle = shown[0] if isinstance(shown, tuple) else shown
    assert bundle
    assert HOSTILE not in str(bundle.get("text/html", ""))
    assert altair.renderers.options == {}


def test_charts_made_of_ours_are_saved_as_ours(tmp_path):
    import copy
    import pickle

    chart = drawn("class_scores")
    made = [chart + chart, chart | chart, chart & chart, chart.properties(title="Scores"), chart.interactive()]
    made += [drawn("atypicality_distribution").facet("correct:N")]
    for one in [*made, copy.deepcopy(chart), pickle.loads(pickle.dumps(chart))]:
        page = one.to_html()
        assert HOSTILE not in page
        assert "Content-Security-Policy" in page


def test_pictures_hold_names_as_text(tmp_path):
    from xml.etree import ElementTree

    path = tmp_path / "figure.svg"
    drawn("class_scores").save(path)
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}
    assert "text" in tags
    assert tags.isdisjoint({"script", "img", "image", "foreignObject"})


def test_a_page_goes_to_an_open_file_and_a_failed_one_leaves_nothing(tmp_path):
    chart = drawn("temperatures")
    with open(tmp_path / "figure.html", "w", encoding="utf-8") as file:
        chart.save(file, format="html", embed_options={"renderer": "canvas"})
    assert '"renderer":"canvas"' in (tmp_path / "figure.html").read_text(encoding="utf-8")
    with pytest.raises(TypeError, match="template"):
        chart.save(tmp_path / "other.html", template="universal")
    assert not (tmp_path / "other.html").exists()


def test_images_become_png_byte_for_byte():
    import base64
    import zlib

    image = np.arange(12, dtype=np.uint8).reshape(3, 4)
    body = base64.b64decode(png_url(checked_pixels(image)).partition(",")[2])
    assert struct.unpack(">II", body[16:24]) == (4, 3)
    start = body.index(b"IDAT") + 4
    [length] = struct.unpack(">I", body[start - 8 : start - 4])
    lines = np.frombuffer(zlib.decompress(body[start : start + length]), np.uint8)
    np.testing.assert_array_equal(lines.reshape(3, 5)[:, 1:], image)


def test_what_cannot_be_drawn_is_named():
    evaluation, _ = evaluation_and_head()
    with pytest.raises(ValueError, match="metric must be"):
        charts.confidence_grid(evaluation, "nonsense")
    with pytest.raises(ValueError, match="by must be"):
        charts.quality_by_group(evaluation, by="nonsense")
    with pytest.raises(ValueError, match="methods must be"):
        charts.reliability_diagram(evaluation, methods=["nobody"])
    with pytest.raises(ValueError, match="attribute must be"):
        charts.subgroup_bars(evaluation, attribute="nothing")
    with pytest.raises(ValueError, match="no rows for the grid of coverage"):
        charts.confidence_grid(evaluation, "coverage", methods="uncalibrated")
    with pytest.raises(ValueError, match="single samples"):
        charts.quadrant_scatter(comparison())
    with pytest.raises(ValueError, match="row 99999 is not kept"):
        charts.quadrant_scatter(evaluation, examples={99999: "text"})
    with pytest.raises(ValueError, match="texts or images of shape"):
        charts.quadrant_scatter(evaluation, examples={0: np.zeros(3)})
    with pytest.raises(ValueError, match="one entry a sample, 1500; got 2"):
        charts.extreme_samples(evaluation, ["a", "b"])
    with pytest.raises(ValueError, match="at least one evaluation"):
        charts.coverage_at_levels({})


def test_unknown_numbers_become_null():
    [*_, rows] = data_of(drawn("class_scores"))
    assert all(math.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))
    assert {row["low"] for row in rows} == {None}  # a score has no interval


def test_without_altair_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'atypicality\[charts\]'"):
        charts.temperatures(evaluation_and_head()[0])
