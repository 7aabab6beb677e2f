"""Samples in the report: examples, filters, keys, links, two sides; and how the page looks small, dark and on paper."""

import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.special
from conftest import imported
from report_cases import HOSTILE, NAMES, TEST, Opened, evaluation_and_head, needs_chromium, world_outputs

import atypicality as aty
from atypicality.datasets import make_world
from atypicality.report import render_report, write_report
from atypicality.report.changed import summarise
from atypicality.report.data import page_data, shortened
from atypicality.report.examples import read_examples

SLOW = 3
"""How much longer a machine that others use may take."""
WORDS = ["trust", "trust, but rare", "choose among k", "ask a person"]


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    evaluation, head = evaluation_and_head()
    path = tmp_path_factory.mktemp("samples") / "report.html"
    texts = [f"{HOSTILE} text {row}" for row in range(evaluation.n_samples)]
    write_report(evaluation, path, head=head, examples=texts)
    return path


def nameless(outputs):
    return outputs._replaced(ids=None)


def said(method="head"):
    evaluation, _ = evaluation_and_head()
    pairs = zip(evaluation.table("samples"), evaluation.table("predictions", method=method), strict=True)
    return [sample | answer for sample, answer in pairs]


FILTERS = {
    "right": ("wrong", lambda row: row["prediction"] != row["label"]),
    "label": (NAMES[0], lambda row: row["label"] == 0),
    "predicted": (NAMES[2], lambda row: row["prediction"] == 2),
    "advice": ("ask a person", lambda row: row["advice"] == "ask a person"),
    "size": ("2", lambda row: row["set_size"] == 2),
    "in side<b>": ("left", lambda row: row["row"] % 3 == 1),  # row 3500 of the world is its first
}


@needs_chromium
def test_every_filter_chooses_its_samples_and_they_add_up(browser, page_path):
    sides = world_outputs()[TEST].attributes["side<b>"]
    rules = FILTERS | {"in side<b>": ("left", lambda row: sides[row["row"]] == "left")}
    with Opened(browser, page_path, shared=True) as opened:
        page = opened.page
        for key, (label, rule) in rules.items():
            page.select_option(f'[data-filter="{key}"]', label=label)
            assert opened.count() == opened.of_total("sample-table") == sum(map(rule, said())), key
            assert page.evaluate("document.activeElement.dataset.filter ?? ''") in (key, "")
            page.click("#clear")
        page.select_option('[data-filter="right"]', label="wrong")
        page.select_option('[data-filter="advice"]', label="ask a person")
        both = [row for row in said() if rules["right"][1](row) and rules["advice"][1](row)]
        assert opened.count() == len(both)
        assert sum(map(int, page.locator("#class-table tbody td:nth-child(2)").all_inner_texts())) == len(both)


@needs_chromium
def test_search_finds_ids_texts_and_rows(browser, page_path):
    with Opened(browser, page_path, shared=True) as opened:
        opened.page.fill("#search", "text 1234")
        opened.page.keyboard.press("Enter")
        assert opened.count() == 1
        assert HOSTILE in opened.page.inner_text("#sample-table tbody tr td:first-child")
        assert opened.page.evaluate("document.activeElement.id") == "search"


@needs_chromium
def test_suspected_labels_lead_to_their_samples(browser, tmp_path):
    evaluation = aty.evaluate(evaluation_and_head()[1], world_outputs()[TEST], suspects=40)
    evaluation.report(tmp_path / "page.html")
    suspects = evaluation.table("suspects")
    with Opened(browser, tmp_path / "page.html") as opened:
        page = opened.page
        page.select_option('[data-filter="suspect"]', label="may be wrong")
        assert opened.count() == len(suspects)
        page.locator("#suspect-table .link").first.click()
        assert opened.count() == 1
        assert page.inner_text("#selection-text").startswith(f"row {suspects[0]['row']}:")
        assert NAMES[suspects[0]["suggested"]] in page.inner_text("#sample-table tbody")


@needs_chromium
def test_the_most_harmful_come_first_and_columns_sort_together(browser, page_path):
    def harm(row):
        if row["prediction"] == row["label"]:
            return 1 - row["confidence"]
        caught = row["advice"] == "ask a person" or (row["advice"].startswith("choose") and row["covered"])
        return (1 if caught else 2) + row["confidence"]

    expected = sorted(said(), key=harm, reverse=True)[:15]
    with Opened(browser, page_path) as opened:
        page = opened.page
        rows = [int(text) for text in page.locator("#sample-table tbody td:nth-child(2)").all_inner_texts()]
        assert rows == [row["row"] for row in expected]
        heads = page.locator("#sample-table thead th").all_inner_texts()
        true, confidence = (
            next(i for i, h in enumerate(heads) if h.startswith(w)) + 1 for w in ("true", "confidence, head")
        )
        page.click(f"#sample-table th:nth-child({true}) button")
        page.click(f"#sample-table th:nth-child({confidence}) button", modifiers=["Shift"])
        page.click(f"#sample-table th:nth-child({confidence}) button", modifiers=["Shift"])
        assert page.get_attribute(f"#sample-table th:nth-child({true})", "aria-sort") == "ascending"
        assert page.get_attribute(f"#sample-table th:nth-child({confidence})", "aria-sort") == "descending"
        shown = page.locator(f"#sample-table tbody td:nth-child({confidence})").all_inner_texts()
        values = [float(text.rstrip("%")) for text in shown]
        assert values == sorted(values, reverse=True)
        assert len(set(page.locator(f"#sample-table tbody td:nth-child({true})").all_inner_texts())) == 1


@needs_chromium
def test_classes_subgroups_bins_and_words_choose_by_key(browser, page_path):
    evaluation, _ = evaluation_and_head()
    with Opened(browser, page_path, shared=True) as opened:
        page = opened.page
        page.locator("#class-table .link").first.focus()
        page.keyboard.press("Enter")
        assert opened.count() == sum(row["label"] == 0 for row in said())
        page.keyboard.press("Enter")  # focus is where it was, and the same key undoes it
        assert opened.count() == 1500
        link = page.locator("#subgroups .link").first
        link.focus()
        page.keyboard.press("Enter")
        shown = page.locator("#subgroups tbody tr").first.locator("td").nth(1).inner_text()
        assert opened.count() == int(shown.replace(",", ""))
        page.click("#clear")
        bins = evaluation.table("calibration_curve", method="head", metric="accuracy")
        filled = [row for row in bins if row["count"]]
        page.locator("#reliability figure").nth(1).locator("path[role=button]").last.focus()
        page.keyboard.press("Enter")
        assert opened.count() == filled[-1]["count"]
        assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
        page.click("#clear")
        counts = {row["advice"]: row["count"] for row in evaluation.table("advice", method="head", metric="share")}
        for place, word in enumerate(WORDS):
            page.locator("#advice figure").nth(1).locator("button").nth(place).focus()
            page.keyboard.press("Enter")
            assert opened.count() == counts[word]


@needs_chromium
def test_a_choice_goes_with_the_side_it_was_made_in(browser, page_path):
    with Opened(browser, page_path) as opened:
        page = opened.page
        page.locator("#quadrants figure").first.locator("button").first.click()
        assert opened.count() < 1500
        page.select_option("#before", label="one <i>temperature</i>")
        assert opened.count() == 1500
        assert page.locator("#clear").count() == 0


@needs_chromium
def test_set_members_are_shown_the_true_one_apart(browser, page_path):
    row = next(row for row in said() if row["row"] >= 1000 and row["set_size"] == 2 and row["covered"])
    with Opened(browser, page_path, shared=True) as opened:
        opened.page.fill("#search", f"text {row['row']}")
        opened.page.keyboard.press("Enter")
        shown = opened.page.locator("#sample-table tbody tr").first.locator(".set li").all_inner_texts()
        assert [text.strip() for text in shown] == [NAMES[int(index)] for index in row["members"].split()]
        assert opened.page.locator("#sample-table .set .true").first.inner_text().strip() == NAMES[row["label"]]


@needs_chromium
@pytest.mark.parametrize("kind", ["image", "file", "table"])
def test_images_files_and_tables_are_shown_and_nothing_is_asked_for(browser, tmp_path, kind):
    evaluation, _ = evaluation_and_head()
    n, rng = evaluation.n_samples, np.random.default_rng(0)
    pixels = rng.integers(0, 256, (n, 10, 12, 3), dtype=np.uint8)
    examples = pixels
    if kind == "file":
        image = imported("PIL.Image")
        image.fromarray(np.kron(pixels[0], np.ones((20, 20, 1), np.uint8))).save(tmp_path / "one.png")
        examples = dict.fromkeys(range(0, n, 50), tmp_path / "one.png")
    elif kind == "table":
        examples = {"age": rng.integers(18, 90, n), HOSTILE: np.array([HOSTILE] * n), "pay": rng.random(n)}
    write_report(evaluation, tmp_path / "page.html", examples=examples)
    with Opened(browser, tmp_path / "page.html") as opened:
        page = opened.page
        opened.requests[:] = [url for url in opened.requests if not url.startswith("data:")]
        if kind == "table":
            assert HOSTILE in page.inner_text("#sample-table dl >> nth=0")
            assert page.locator("#sample-table img").count() == 0
            return
        if kind == "file":
            assert "30 first samples in the order of review" in page.inner_text("#kept-examples")
            page.click("#sample-table th:nth-child(2) button")  # by row
        size = page.eval_on_selector("#sample-table img", "image => [image.naturalWidth, image.naturalHeight]")
        assert size == ([12, 10] if kind == "image" else [96, 80])
        page.locator(".thumb").first.focus()
        page.keyboard.press("Enter")
        assert page.locator(".thumb img.large").count() == 1
        opened.requests[:] = opened.requests[:1]


def test_examples_of_the_most_harmful_are_kept_where_not_all_fit(monkeypatch):
    from atypicality.report import examples as module

    evaluation, _ = evaluation_and_head()
    monkeypatch.setattr(module, "EXAMPLE_BYTES", 1000)
    shown = page_data(evaluation, "uncalibrated", "head", read_examples(["x" * 100] * 1500, 1500))["examples"]
    assert shown["shown"] == len(shown["at"]) == 10
    wrong = {row["row"] for row in said() if row["prediction"] != row["label"]}
    assert set(shown["at"]) <= wrong


@pytest.mark.parametrize(
    ("examples", "error", "match"),
    [
        (["one"], ValueError, "examples must have one entry per sample, 3; got 1"),
        ("text", TypeError, "examples must be images .*; got str"),
        (["a", "b", Path("c")], TypeError, "several kinds"),
        ({9: "a"}, ValueError, "examples must be of rows 0 to 2; got 9"),
        ({"age": [1, 2]}, ValueError, r"examples column 'age' must have shape \(3,\); got \(2,\)"),
        ([1, 2, 3], TypeError, "one is a int"),
    ],
)
def test_examples_that_cannot_be_shown_are_refused(examples, error, match):
    with pytest.raises(error, match=match):
        read_examples(examples, 3)


def test_images_may_be_floats_from_0_to_1_and_have_their_channels_first():
    from atypicality.report.examples import checked_pixels

    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    np.testing.assert_array_equal(checked_pixels(np.moveaxis(pixels, 2, 0) / np.float32(255)), pixels)
    np.testing.assert_array_equal(checked_pixels(pixels[None, :, :, 0]), pixels[:, :, 0])
    with pytest.raises(ValueError, match=r"float from 0 to 1 \(undo a normalisation"):
        checked_pixels(pixels / 127.5 - 1)
    if torch := sys.modules.get("torch"):
        assert read_examples(torch.zeros(3, 1, 4, 5), 3).kind == "image"


def test_thumbnails_are_means_and_no_larger_than_they_are_shown():
    from atypicality.report.examples import _thumbnail

    image = np.zeros((200, 400), np.uint8)
    image[:, 200:] = 200
    small = _thumbnail(image)
    assert small.shape == (40, 80)
    assert set(np.unique(small)) == {0, 200}


def test_errors_and_rows_for_a_person_are_kept_of_many():
    evaluation = aty.evaluate("uncalibrated", make_world(3000, 4).outputs(), keep_samples=100)
    pairs = zip(evaluation.table("samples"), evaluation.table("predictions"), strict=True)
    rows = [sample | answer for sample, answer in pairs]
    matters = [r for r in rows if r["prediction"] != r["label"] or r["advice"] == "ask a person"]
    [wrong] = evaluation.table("overall", metric="accuracy")
    assert sum(r["prediction"] != r["label"] for r in rows) == round(3000 * (1 - wrong["value"]))
    assert {r["weight"] for r in matters} == {1.0}
    assert len(rows) - len(matters) == 100
    assert sum(r["weight"] for r in rows) == pytest.approx(3000)


def test_long_names_differ_where_they_did():
    same_start = [f"{'a' * 200}{index}" for index in range(3)]
    same_ends = [f"{'a' * 100}{index}{'b' * 100}" for index in range(3)]
    for names in (same_start, same_ends):
        short = shortened(names)
        assert len(set(short)) == 3
        assert max(map(len, short)) <= 120


def test_what_got_worse_is_said_with_its_intervals():
    """A method that is sure of class 0 more often than it should be: the accuracy of the others falls."""
    world = make_world(4000, 3)
    tilted = world.probs * [1, 0.02, 1]
    methods = {"model": world.probs, "tilted": tilted / tilted.sum(axis=1, keepdims=True)}
    summary = summarise(aty.evaluate(methods, world.outputs()), "model", "tilted")
    texts = ["".join(part if isinstance(part, str) else part.text for part in sentence) for sentence in summary.worse]
    assert any(text.startswith("Accuracy of class 1 fell from ") for text in texts)
    assert all("lost, 0 gained of" in text for text in texts if text.startswith("Accuracy of class 1"))
    backwards = summarise(aty.evaluate(methods, world.outputs()), "tilted", "model")
    assert not any("Accuracy of class 1 fell" in "".join(map(str, sentence)) for sentence in backwards.worse)


def test_no_sentence_goes_from_a_number_to_itself():
    world = make_world(2000, 3)
    bold = world.probs ** np.array([[1.0001]])
    bold /= bold.sum(axis=1, keepdims=True)
    summary = summarise(aty.evaluate({"a": world.probs, "b": bold}, world.outputs()), "a", "b")
    for sentence in (*summary.improved, *summary.worse):
        words = "".join(part if isinstance(part, str) else part.text for part in sentence)
        _, _, rest = words.partition(" from ")
        assert not rest or rest.split(" to ")[0] != rest.split(" to ")[1].split(" ")[0], words


@needs_chromium
def test_very_confident_models_have_groups_in_odds(browser, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 2000)
    logits = rng.normal(size=(2000, 3))
    logits[np.arange(2000), labels] += rng.uniform(6, 16, 2000)
    outputs = aty.ModelOutputs(logits, labels=labels, atypicality=rng.normal(size=2000))
    softer = scipy.special.softmax(logits / 8, axis=1)  # whose own groups are told in percent
    aty.evaluate({"sharp": "uncalibrated", "softer": softer}, outputs).report(tmp_path / "page.html")
    with Opened(browser, tmp_path / "page.html") as opened:
        labels = opened.page.locator("#grids tbody th").all_inner_texts()
        assert [len(set(side)) for side in (labels[:6], labels[6:])] == [6, 6]
        assert all("1 in " in text for text in labels)  # one unit on both sides


@needs_chromium
def test_few_samples_are_hatched_and_coverage_is_centred_on_its_target(browser, page_path):
    evaluation, _ = evaluation_and_head()
    few = [row for row in evaluation.table("grid", method="head", metric="coverage") if 0 < row["count"] < 20]
    with Opened(browser, page_path) as opened:
        page = opened.page
        page.select_option("#measure", label="share of prediction sets that hold the label")
        assert page.locator("#grids table").last.locator(".cell.few").count() == len(few)
        assert "target 90%" in page.inner_text("#ramp")
        colours = {}
        for cell in page.locator("#grids table").last.locator("button.cell").all():
            value = cell.inner_text().split("%")[0]
            colours[value] = cell.evaluate("node => getComputedStyle(node).backgroundColor")
        if "90" in colours:
            red, _, blue = (int(part) for part in colours["90"][4:-1].split(","))
            assert abs(red - blue) < 60  # grey: neither orange nor blue
        red, _, blue = (int(part) for part in colours["100"][4:-1].split(","))
        assert blue > red


@needs_chromium
def test_navigation_and_the_choice_stay_in_sight(browser, page_path):
    with Opened(browser, page_path, viewport={"width": 1000, "height": 700}) as opened:
        opened.page.evaluate("document.getElementById('samples').scrollIntoView()")
        nav, choice = (opened.page.locator(place).bounding_box() for place in ("nav", "#selection"))
        assert nav["y"] == pytest.approx(0, abs=1)
        assert nav["y"] + nav["height"] <= choice["y"] + 1 < 120
        opened.page.click("nav a[href='#numbers']")
        assert opened.page.locator("#numbers").bounding_box()["y"] >= nav["height"] - 1


@needs_chromium
def test_print_has_titles_and_no_menus(browser, page_path):
    with Opened(browser, page_path, media="print") as opened:
        assert not opened.page.locator("nav").is_visible()
        assert not opened.page.locator("#filters").is_visible()
        assert "confidence minus accuracy" in opened.page.locator("#grids caption").first.inner_text()
        for figure in opened.page.locator("figure:has(svg.chart)").all():
            assert figure.locator("figcaption").is_visible()


@pytest.fixture(scope="module")
def plain_path(tmp_path_factory):
    """A page of a model and a head, with plain words for names."""
    path = tmp_path_factory.mktemp("plain") / "page.html"
    world = make_world(1500, 4, temperature=2.0)
    outputs = aty.ModelOutputs(
        world.logits, embeddings=world.embeddings, labels=world.labels, class_names=["cat", "dog", "horse", "ship"]
    )
    head = aty.ReliabilityHead().fit(train=outputs[:500], calibration=outputs[500:1000])
    aty.evaluate({"model": "uncalibrated", "head": head}, outputs[1000:]).report(path)
    return path


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_word_is_broken_at_390_pixels(browser, plain_path, scheme):
    options = {"viewport": {"width": 390, "height": 844}, "color_scheme": scheme}
    with Opened(browser, plain_path, **options) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        broken = opened.page.evaluate(
            """() => {
              const found = [];
              const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
              for (let node = walk.nextNode(); node; node = walk.nextNode()) {
                if (["SCRIPT", "STYLE", "OPTION", "NOSCRIPT"].includes(node.parentElement.tagName)) continue;
                for (const word of node.data.matchAll(/[A-Za-z]+/g)) {
                  const range = document.createRange();
                  range.setStart(node, word.index);
                  range.setEnd(node, word.index + word[0].length);
                  const boxes = [...range.getClientRects()].filter((box) => box.width > 0);
                  const lines = new Set(boxes.map((box) => Math.round(box.top)));
                  if (lines.size > 1) found.push(word[0]);
                }
              }
              return found;
            }"""
        )
        assert broken == []


def tiled(evaluation, times):
    """The same evaluation with its samples several times over."""
    n = evaluation.n_samples
    tables = dict(evaluation.tables)
    for name in ("samples", "predictions"):
        columns = evaluation.tables[name]
        rows = tuple(row + n * copy for copy in range(times) for row in columns["row"])
        tables[name] = {key: column * times for key, column in columns.items()} | {"row": rows}
    return dataclasses.replace(evaluation, n_samples=n * times, tables=tables)


@needs_chromium
def test_a_hundred_thousand_rows_open_in_three_seconds_and_fifteen_megabytes(browser, tmp_path):
    evaluation, _ = evaluation_and_head()
    small = aty.evaluate({"a": "uncalibrated", "b": evaluation_and_head()[1]}, nameless(world_outputs()[TEST]))
    path = tmp_path / "page.html"
    write_report(tiled(small, 67), path)
    assert path.stat().st_size < 15_000_000
    start = time.perf_counter()
    with Opened(browser, path) as opened:
        assert opened.of_total("sample-table") == 67 * evaluation.n_samples > 100_000
        taken = time.perf_counter() - start
        start = time.perf_counter()
        opened.page.select_option('[data-filter="right"]', label="wrong")
        assert opened.count() == 67 * sum(row["prediction"] != row["label"] for row in said())
        assert taken < 3 * SLOW
        assert time.perf_counter() - start < 3 * SLOW


def test_settings_are_words_and_not_json():
    evaluation, head = evaluation_and_head()
    page = render_report(evaluation, head=head)
    assert "grid: groups of atypicality by groups of confidence</td><td>6 × 6</td>" in page
    about = page.partition('id="about"')[2].partition("<script")[0]
    assert "{" not in about.partition("<pre>")[0]


def test_the_interval_of_the_class_wise_error_holds_its_estimate():
    for seed in range(5):
        world = make_world(400, 30, random_state=seed)
        [row] = aty.evaluate("uncalibrated", world.outputs()).table("overall", metric="classwise_ece")
        assert row["low"] <= row["value"] <= row["high"]


def test_missing_values_of_a_table_are_shown_empty():
    gaps = {"age": np.array([1.5, np.nan]), "city": ["Oslo", None], "name": [imported("pandas").NA, "nan"]}
    assert read_examples(gaps, 2).page_data([0, 1])["at"] == {0: [1.5, "Oslo", ""], 1: ["", "", "nan"]}
