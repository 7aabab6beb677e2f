"""The report: numbers equal to the evaluation's, hostile text stays text, and a real browser agrees."""

import dataclasses
import html.parser
import json
import math
import os
import re
import socket
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.special
from report_cases import (
    HOSTILE,
    NAMES,
    QUADRANTS,
    TEST,
    Opened,
    comparison,
    evaluation_and_head,
    needs_chromium,
    world_outputs,
)

import atypicality as aty
from atypicality.cli import main
from atypicality.datasets import make_world
from atypicality.evaluation.schema import WHERE_KNOWN
from atypicality.evaluation.tables import METRICS
from atypicality.head.abstention import AbstentionRule
from atypicality.metrics.intervals import wilson_interval
from atypicality.report import data as report_data
from atypicality.report import render_report, write_report
from atypicality.report.card_html import card_to_html
from atypicality.report.changed import summarise
from atypicality.report.data import page_data
from atypicality.report.next_steps import in_code, next_steps
from atypicality.report.pages import as_script
from atypicality.report.summary import SourcedNumber
from atypicality.report.words import MEANINGS, meanings_of
from atypicality.shipping.card import model_card


class Elements(html.parser.HTMLParser):
    """Start tags in order, and the `data` elements with their texts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.numbers = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "data":
            self.numbers.append([dict(attributes), ""])

    def handle_data(self, text):
        if self.numbers and not self.numbers[-1][1]:
            self.numbers[-1][1] = text


@pytest.fixture(scope="module")
def page_text():
    evaluation, head = evaluation_and_head()
    return render_report(evaluation, head=head, title=HOSTILE)


def value_of(evaluation, source):
    table, where, column = json.loads(source)
    [row] = evaluation.table(table, **where)
    return row[column]


def test_every_number_of_the_summary_is_the_evaluations(page_text):
    evaluation, _ = evaluation_and_head()
    numbers = Elements(page_text).numbers
    assert len(numbers) > 20
    assert "<h2>No clear change</h2>" in page_text
    for attributes, text in numbers:
        value = value_of(evaluation, attributes["data-source"])
        assert float(attributes["value"]) == value
        shown = float(re.sub("[%,]", "", text).replace("−", "-")) / (100 if text.endswith("%") else 1)
        digits = len(text.rstrip("%").partition(".")[2]) + (2 if text.endswith("%") else 0)
        assert abs(shown - value) <= 0.5000001 * 10.0**-digits


@pytest.mark.parametrize("metric", ["accuracy", "ece", "nll"])
def test_the_summary_says_rose_and_fell_and_what_shows_it(metric):
    evaluation, _ = evaluation_and_head()
    first, last = (evaluation.table("overall", method=m, metric=metric)[0] for m in ("uncalibrated", "head"))
    summary = summarise(evaluation, "uncalibrated", "head")
    [change] = evaluation.table("changes", method="head", reference="uncalibrated", axis="overall", metric=metric)
    card = {"better": summary.improved, "worse": summary.worse, "unclear": summary.unclear}[change["verdict"]]
    sentences = [s for s in card if len(s) > 1 and isinstance(s[1], SourcedNumber)]
    [sentence] = [s for s in sentences if s[1].table == "overall" and s[1].where["metric"] == metric]
    direction = "rose from " if last["value"] > first["value"] else "fell from "
    assert sentence[0].endswith(direction)
    assert (sentence[1].value, sentence[3].value) == (first["value"], last["value"])
    shown = [part.value for part in sentence[5:] if isinstance(part, SourcedNumber)]
    columns = ("lost", "gained", "count", "adjusted") if metric == "accuracy" else ("value", "low", "high")
    assert shown == [change[name] for name in columns]


def text_of(sentence):
    return "".join(part if isinstance(part, str) else part.text for part in sentence)


@pytest.mark.parametrize("scale", [1.05, 3.0])  # a change within the intervals, and one beyond
def test_what_improved_is_shown_by_the_same_rows(scale):
    world = make_world(600, random_state=0)
    sharp = scipy.special.softmax(scale * world.logits, axis=1)
    evaluation = aty.evaluate({"sharp": sharp, "model": world.probs}, world.outputs())
    summary = summarise(evaluation, "sharp", "model")
    assert any(text_of(s).startswith("The log loss fell") for s in (summary.unclear if scale < 2 else summary.improved))
    assert any(text_of(sentence).startswith("Accuracy stayed") for sentence in summary.unclear)


def kept_step(correct):
    """The first next step where predictions, the most confident first, are right or not."""
    top = np.linspace(0.99, 0.6, len(correct))
    probs = np.c_[top, 1 - top]
    outputs = aty.ModelOutputs(np.log(probs), labels=(~np.asarray(correct)).astype(int))
    return text_of(next_steps(aty.evaluate({"model": probs}, outputs), "model")[0])


def test_where_no_share_can_be_kept_the_step_says_what_would_be_enough():
    # 58 right, then 2 wrong: 97% of 60 are 59, 96% are 58. Wilson's upper end of 0 of n is z^2 / (n + z^2): 6.2% of 58,
    # and 5% from 3.8415 x 19 = 73 on, which are 96% of 76
    step = kept_step([True] * 58 + [False] * 2)
    assert "of the most confident 96%, which are 58, 0.0% are wrong (95% interval 0.0% to 6.2%)" in step
    assert "about 76 labelled samples show it; until then send all to a person." in step
    step = kept_step([False, True] * 30)
    assert step.endswith("). Send all to a person.")
    assert "is shown to err at a rate below 5%" in step


@pytest.mark.parametrize(("score", "words"), [(0.001, "look first at the 1 whose"), (0.02, "no label among them has")])
def test_errors_of_the_model_are_not_called_wrong_labels(score, words):
    evaluation, _ = evaluation_and_head()
    listed = {"row": [3, 4], "label": [1, 1], "suggested": [0, 0], "score": [score, 0.3]}
    with_suspects = dataclasses.replace(evaluation, tables=dict(evaluation.tables) | {"suspects": listed})
    [step] = [text for text in map(text_of, next_steps(with_suspects, "head")) if "more credible" in text]
    assert step.startswith("In the 2 samples listed below another class is more credible than the label")
    assert words in step


def test_the_cards_say_what_works_what_fails_what_to_do_and_last_what_is_not_clear(page_text):
    titles = re.findall(r'<div class="card (\w+)"><h2>(.*?)</h2>', page_text)
    assert [kind for kind, _ in titles] == ["good", "bad", "warn", "next", "same", "same"]
    assert titles[0][1] == "What improved: <bdi>uncalibrated</bdi> to <bdi>head</bdi>"
    alone = render_report(evaluation_and_head()[0], before="head", after="head")
    assert re.findall(r'<div class="card (\w+)">', alone) == ["good", "warn", "next"]


def test_what_atypicality_adds_is_said_of_the_head_and_of_the_model_apart():
    evaluation, head = evaluation_and_head()
    summary = summarise(evaluation, "uncalibrated", "head")
    [said] = [text_of(s) for s in summary.levels if "log likelihood" in text_of(s)]
    assert said.startswith("Beside the confidence of head, atypicality adds ")
    assert "model" not in said
    chosen = html.unescape(render_report(evaluation).partition("of the rows that chose it</td>")[2])
    assert chosen.startswith(f"<td>head: {head.density_choice_}</td>")
    assert " nats per row (log-likelihood of being right, standard error " in str(head.density_choice_)


def test_the_weakest_class_is_named():
    evaluation, _ = evaluation_and_head()
    rows = [row for row in evaluation.table("classes", method="head", metric="accuracy") if row["count"] >= 30]
    worst = min(rows, key=lambda row: row["value"])
    [sentence] = [s for s in summarise(evaluation, None, "head").caution if s[0].startswith("The class")]
    assert sentence[1].text == NAMES[worst["class_index"]]
    told = [part.value for part in sentence if isinstance(part, SourcedNumber)]
    assert told == [worst[column] for column in ("value", "count", "low", "high")]


def test_hostile_text_makes_no_elements(page_text):
    tags = Elements(page_text).tags
    assert [tag for tag, _ in tags].count("script") == 2
    assert {tag for tag, _ in tags}.isdisjoint({"img", "i", "b", "iframe", "link"})
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on") or name == "style"]
    assert HOSTILE not in page_text


def facts_of(page):
    found = re.search(r'<dl class="facts">(.*?)</dl>', page, re.S)[1]
    return dict(re.findall(r"<dt><bdi>(.*?)</bdi></dt><dd><bdi>(.*?)</bdi></dd>", found))


def test_the_header_states_what_is_known_and_what_is_not(page_text, tmp_path):
    evaluation, head = evaluation_and_head()
    known = facts_of(page_text)
    assert list(known) == ["measured with", "model", "head", "data", "purpose"]
    assert known["model"] == known["purpose"] == "not stated"
    assert known["head"] == f"head: fitted on calibration rows with fingerprint {head.fingerprint_}"
    assert known["data"] == f"not stated; fingerprint {world_outputs()[TEST].fingerprint()}"
    evaluation.report(tmp_path / "page.html", about={"model": HOSTILE, "author": "A. Nother", "date": "1 May"})
    told = facts_of((tmp_path / "page.html").read_text(encoding="utf-8"))
    stated = {"written": "1 May", "model": html.escape(HOSTILE), "author": "A. Nother"}
    assert told == stated | {name: known[name] for name in known if name != "model"}


def test_a_written_page_has_its_date(tmp_path):
    evaluation_and_head()[0].report(tmp_path / "page.html")
    date = facts_of((tmp_path / "page.html").read_text(encoding="utf-8"))["written"]
    assert abs((datetime.now(UTC) - datetime.fromisoformat(f"{date}T00:00+00:00")).days) <= 1


def test_every_number_over_all_samples_has_a_definition():
    evaluation, _ = evaluation_and_head()
    assert set(meanings_of(evaluation)) == set(evaluation.tables["overall"]["metric"])
    assert set(MEANINGS) <= {"classwise_ece", "confidence_auroc", *METRICS["overall"], *WHERE_KNOWN}


def test_without_atypicality_bands_of_confidence_say_where_not_to_trust():
    """By hand: 40 of 80 right at 0.95 are at most 60.7 % (Wilson), 36 of 40 at 0.65 fit; nothing below."""
    right = np.r_[np.arange(80) < 40, np.arange(40) < 36]
    top = np.repeat([0.95, 0.65], [80, 40])
    evaluation = aty.evaluate({"model": np.c_[top, 1 - top]}, aty.ModelOutputs(labels=(~right).astype(int)))
    said = sentences(summarise(evaluation, None, "model").caution)
    low = (
        "The least confident band of at least 30 samples has a confidence of 60% to 70%: 90.0% of 40 samples are right"
    )
    high = (
        "The most overconfident band of at least 30 samples has a confidence of 90% to 100%: 50.0% of 80 samples are "
    )
    assert any(text.startswith(low) for text in said)
    assert f"{high}right (95% interval 39.3% to 60.7%)." in said
    assert "How rare samples are is not known: that needs embeddings, or atypicality." in said
    [row] = evaluation.table("overall", metric="confidence_auroc")
    # pairs of a wrong and a right one: 40 x 40 and 4 x 36 tied, 40 x 36 in the wrong order, 4 x 40 in the right one
    assert row["value"] == pytest.approx((0.5 * (1600 + 144) + 160) / (44 * 76))


def test_the_policy_allows_only_what_is_in_the_file(page_text):
    [policy] = [a["content"] for t, a in Elements(page_text).tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page_text)


def test_the_card_shows_names_as_they_are():
    _, head = evaluation_and_head()
    shown = card_to_html(model_card(head))
    assert HOSTILE.replace("<", "&lt;").replace(">", "&gt;") in shown
    assert {tag for tag, _ in Elements(shown).tags} <= {
        *("h3", "p", "pre", "code", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td")
    }


def test_same_evaluation_same_bytes(page_text):
    evaluation, head = evaluation_and_head()
    assert render_report(aty.Evaluation.from_json(evaluation.to_json()), head=head, title=HOSTILE) == page_text


def test_a_comparison_has_no_samples_and_still_a_page():
    page = render_report(comparison())
    assert '"samples":{"row":[]' in page
    for attributes, _ in Elements(page).numbers:
        assert float(attributes["value"]) == value_of(comparison(), attributes["data-source"])


def test_without_atypicality_the_page_leaves_out_its_sections(tmp_path):
    world = make_world(300, 3)
    outputs = aty.ModelOutputs(world.logits, labels=world.labels)
    aty.evaluate("uncalibrated", outputs).report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'id="grids"' not in page
    assert 'id="quadrants"' not in page
    assert "By atypicality" not in page
    assert "Accuracy is " in page


def test_ten_thousand_samples_stay_under_three_megabytes(tmp_path):
    world = make_world(10_000, 10, temperature=2.0)
    outputs = aty.ModelOutputs(
        world.logits,
        embeddings=world.embeddings,
        labels=world.labels,
        ids=[f"folder/of/images/number_{row:06d}.png" for row in range(10_000)],
    )
    train = aty.GaussianAtypicality().fit(world.embeddings, world.labels)
    methods = dict.fromkeys(("a", "b", "c"), world.probs)
    evaluation = aty.evaluate(methods, outputs, train=train)
    evaluation.report(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 3_000_000
    assert len(page_data(evaluation, "a", "c")["samples"]["row"]) == 10_000


def test_what_matters_stays_where_samples_do_not_fit(monkeypatch):
    """Every error and every row for a person, of any method; the others stand for those left out."""
    evaluation, _ = evaluation_and_head()
    whole = page_data(evaluation, "uncalibrated", "head")
    matters = {
        row
        for method in evaluation.methods
        for said, sample in zip(
            evaluation.table("predictions", method=method), evaluation.table("samples"), strict=True
        )
        for row in [sample["row"]]
        if said["prediction"] != sample["label"] or said["advice"] == "ask a person"
    }
    rest = len(as_script({**whole, "samples": None}))
    room = len(as_script(whole["samples"])) * (len(matters) + 100) // 1500
    monkeypatch.setattr(report_data, "BUDGET", rest + room)
    thin = page_data(evaluation, "uncalibrated", "head")["samples"]
    weights = dict(zip(thin["row"], thin["weight"], strict=True))
    assert len(weights) < 1500
    assert matters < set(weights)
    assert {weights[row] for row in matters} == {1}
    assert sum(weights.values()) == pytest.approx(1500)


@cache
def evaluation_of_many_classes(n_classes, n_rows):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, n_rows)
    logits = rng.normal(size=(n_rows, n_classes)).astype(np.float32)
    logits[np.arange(n_rows), labels] += 4
    names = [f"class {index}" for index in range(n_classes)]
    outputs = aty.ModelOutputs(logits, labels=labels, class_names=names)
    probs = scipy.special.softmax(logits, axis=1)
    sets = probs >= np.sort(probs, axis=1)[:, ::-1][np.arange(n_rows), rng.integers(0, n_classes, n_rows)][:, None]
    return aty.evaluate({"model": (probs, sets), "again": (probs, sets)}, outputs)


@pytest.mark.parametrize(("n_classes", "length"), [(5000, 0), (20_000, 200)])
def test_twenty_thousand_classes_stay_under_three_megabytes_and_keep_the_worst(n_classes, length):
    evaluation = evaluation_of_many_classes(n_classes, 100)
    info = dict(evaluation.tables["class_info"])
    info["name"] = [name + "x" * length for name in info["name"]]
    evaluation = dataclasses.replace(evaluation, tables=dict(evaluation.tables) | {"class_info": info})
    page = render_report(evaluation)
    assert len(page.encode()) < 3_000_000
    data = json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S)[1])
    kept, total = data["kept"]["classes"]
    listed = set(data["tables"]["classes"]["class_index"])
    assert total == n_classes
    assert 500 < kept == len(listed) < total
    wrong = [row for row in evaluation.table("classes", method="again", metric="accuracy") if row["value"] == 0]
    assert {row["class_index"] for row in wrong} <= listed
    assert set(map(int, data["classes"])) >= listed
    assert len(data["samples"]["row"]) == 100


def test_classes_are_ranked_by_the_upper_end_of_their_interval():
    # 0 of 30 right is surely bad, 0 of 1 may be chance, and a class without samples says nothing
    table = {
        "method": ["m"] * 4,
        "class_index": [0, 1, 2, 3],
        "metric": ["accuracy"] * 4,
        "value": [1.0, 0.0, None, 0.0],
        "high": [1.0, 0.79, 1.0, 0.11],
    }
    ranked = report_data._ranked("classes", table, [(0,), (1,), (2,), (3,)], "m")
    assert ranked == [(3,), (1,), (0,), (2,)]


def test_set_sizes_that_do_not_fit_are_the_rare_ones(monkeypatch):
    evaluation, _ = evaluation_and_head()
    half = len(as_script(page_data(evaluation, "uncalibrated", "head")["tables"]["set_sizes"])) // 2
    monkeypatch.setattr(report_data, "THINNED", report_data.THINNED | {"set_sizes": half})
    data = page_data(evaluation, "uncalibrated", "head")
    kept, total = data["kept"]["set_sizes"]
    rows = evaluation.table("set_sizes", metric="share")
    commonest = sorted(rows, key=lambda row: -row["value"])[:kept]
    assert 0 < kept < total
    assert set(data["tables"]["set_sizes"]["size"]) == {row["size"] for row in commonest}
    assert set(data["kept"]) == {"set_sizes"}


@pytest.mark.parametrize("text", ["</script>", "<!--", "\u2028", "\ud800", "&lt;"])
def test_script_data_comes_back_and_breaks_nothing(text):
    written = as_script({"name": text})
    assert "<" not in written
    written.encode("utf-8")
    assert json.loads(written) == {"name": text}


@pytest.mark.parametrize("side", ["before", "after"])
def test_an_unknown_method_is_refused(side):
    with pytest.raises(ValueError, match=f"{side} must be"):
        render_report(evaluation_and_head()[0], **{side: "nobody"})


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_report(evaluation_and_head()[0], tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_the_command_writes_the_page(tmp_path, capsys):
    _, head = evaluation_and_head()
    head.save(tmp_path / "head")
    world_outputs()[TEST].save(tmp_path / "test.npz")
    out = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "head"), str(tmp_path / "test.npz"), "--out", str(out)]) == 0
    assert "wrote" in capsys.readouterr().out
    assert 'id="card"' in out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page_path(tmp_path_factory, page_text):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page_text, encoding="utf-8")
    return path


@needs_chromium
def test_a_thinned_page_says_what_it_leaves_out(browser, tmp_path, monkeypatch):
    evaluation, _ = evaluation_and_head()
    evaluation.report(tmp_path / "whole.html")
    with Opened(browser, tmp_path / "whole.html") as opened:
        assert opened.page.locator("[id^=kept-]").count() == 0
    tables = page_data(evaluation, "uncalibrated", "head")["tables"]
    halves = {table: len(as_script(tables[table])) // 2 for table in report_data.THINNED}
    monkeypatch.setattr(report_data, "THINNED", halves)
    evaluation.report(tmp_path / "page.html")
    kept = page_data(evaluation, "uncalibrated", "head")["kept"]
    with Opened(browser, tmp_path / "page.html") as opened:
        assert opened.of_total("class-table") == kept["classes"][0]
        for table, words in (
            ("classes", "classes, those that head"),
            ("subgroups", "subgroups"),
            ("set_sizes", "set sizes"),
        ):
            few, total = kept[table]
            said = opened.page.inner_text(f"#kept-{table}")
            assert said.startswith(f"This page keeps {few} of {total} {words}")


@needs_chromium
def test_a_click_on_a_cell_filters_everything(browser, page_path):
    evaluation, _ = evaluation_and_head()
    with Opened(browser, page_path, shared=True) as opened:
        page = opened.page
        assert opened.of_total("sample-table") == opened.count() == 1500
        cells = [row for row in evaluation.table("grid", method="head", metric="overconfidence") if row["count"]]
        row = max(cells, key=lambda row: row["count"])
        before = page.inner_html("#reliability")
        choice = {"kind": "cell", "method": "head", "group": row["group"], "level": row["confidence_group"]}
        button = page.locator(
            "button.cell[data-choice={}]".format(json.dumps(json.dumps(choice, separators=(",", ":"))))
        )
        button.click()
        assert opened.count() == opened.of_total("sample-table") == row["count"]
        assert page.inner_html("#reliability") != before
        assert sum(map(int, page.locator("#class-table tbody td:nth-child(2)").all_inner_texts())) == row["count"]
        page.click("#clear")
        assert opened.count() == 1500


@needs_chromium
def test_coverage_of_all_and_of_the_worst_groups_is_named_with_its_target_size_and_counts(browser, page_path):
    evaluation, _ = evaluation_and_head()
    overall = {row["metric"]: row["value"] for row in evaluation.table("overall", method="head")}
    with Opened(browser, page_path, shared=True) as opened:
        picture = opened.page.locator('svg[aria-label="Coverage of all and of the worst groups"]')
        said = " ".join(picture.locator("title").all_text_contents())
        shown = picture.locator("text").all_text_contents()
        size = opened.page.locator("#sets figure").first.locator("p").inner_text()
    assert {"all", "worst sixth", "worst cell", "n 1,500"} <= set(shown)
    assert f"head {overall['set_size']:.2f}" in size
    for metric in ("coverage", "worst_sixth_coverage", "worst_cell_coverage"):
        assert f": {overall[metric]:.1%} (" in said
    assert f"target: {1 - evaluation.settings['alpha']['head']:.1%}" in said


@needs_chromium
def test_rows_of_a_grid_are_numbered_and_few_samples_have_no_colour(browser, page_path):
    with Opened(browser, page_path, shared=True) as opened:
        page = opened.page
        heads = page.locator("#grids table").nth(1).locator("tbody th b").all_inner_texts()
        cells = page.locator("button.cell").evaluate_all(
            "all => all.map((one) => [+one.dataset.count, one.style.backgroundColor])"
        )
    assert heads == list("654321")
    assert {bool(colour) for count, colour in cells if count < 20} == {False}
    assert {bool(colour) for count, colour in cells if count >= 20} == {True}


@needs_chromium
@pytest.mark.parametrize("chosen", [False, True])
def test_the_table_of_classes_has_intervals(browser, page_path, chosen):
    with Opened(browser, page_path, shared=True) as opened:
        if chosen:  # all samples with a set of one class
            opened.page.select_option('[data-filter="size"]', "1")
        row = opened.page.locator("#class-table tbody tr").first
        count, texts = int(row.locator("td").nth(1).inner_text()), row.locator("td .quiet").all_inner_texts()
        shares = [float(row.locator("td").nth(place).inner_text().partition("%")[0]) / 100 for place in (2, 3)]
    assert len(texts) == 3  # two accuracies and the coverage
    for share, text in zip(shares, texts, strict=False):
        low, high = (float(end.strip("%")) / 100 for end in text.split(" to "))
        ends = wilson_interval(round(share * count), count)
        np.testing.assert_allclose((low, high), ends, atol=5.1e-4)  # one digit of percent


@needs_chromium
def test_axes_end_at_a_tick_beyond_the_data_and_counts_are_under_them(browser, page_path):
    evaluation, _ = evaluation_and_head()
    sizes = {round(row["count"]) for row in evaluation.table("atypicality_groups", method="head", metric="accuracy")}
    script = """all => all.map((svg) => {
      const rules = [...svg.querySelectorAll(".rule")].map((line) => +line.getAttribute("y1"));
      const data = [...svg.querySelectorAll(".series .interval")].map((line) => +line.getAttribute("y2"));
      return [Math.min(...rules), Math.min(...data)];
    })"""
    with Opened(browser, page_path, shared=True) as opened:
        found = opened.page.locator("#sets svg.chart, #groups svg.chart").evaluate_all(script)
        under = opened.page.locator("#groups svg.chart").first.locator(".under").all_text_contents()
    assert len(found) > 6
    assert all(rule <= data + 1e-6 for rule, data in found)  # pixels from the top
    assert set(under) == {f"n {count:,}" for count in sizes}


@needs_chromium
def test_on_paper_a_table_of_samples_has_one_method_and_no_word_is_broken(browser, page_path):
    with Opened(browser, page_path, viewport={"width": 700, "height": 1000}, media="print") as opened:
        heads = opened.page.locator("#sample-table th:visible")
        titles = [text.strip() for text in heads.all_inner_texts()]
        broken = heads.evaluate_all("all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length")
    assert "prediction, head" in titles
    assert not any(title.endswith("uncalibrated") for title in titles)
    assert broken == 0


@needs_chromium
def test_keys_reach_cells_and_quadrants(browser, page_path):
    evaluation, _ = evaluation_and_head()
    shares = {r["quadrant"]: r["count"] for r in evaluation.table("quadrants", method="head", metric="share")}
    with Opened(browser, page_path, shared=True) as opened:
        page = opened.page
        page.focus("button.cell[tabindex='0']")
        page.keyboard.press("ArrowDown")
        focused = page.evaluate("document.activeElement.dataset.count")
        page.keyboard.press("Enter")
        assert opened.count() == int(focused)
        assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
        page.keyboard.press("Enter")
        assert opened.count() == 1500
        for place, quadrant in enumerate(QUADRANTS):
            page.locator("#quadrants figure").nth(1).locator("button").nth(place).focus()
            page.keyboard.press("Enter")
            assert opened.count() == shares[quadrant]


@needs_chromium
def test_hostile_names_are_seen_as_text(browser, page_path):
    with Opened(browser, page_path, shared=True) as opened:
        page = opened.page
        assert page.title() == HOSTILE
        shown = page.locator("#class-table tbody td:first-child").all_inner_texts()
        assert [text.strip() for text in shown] == NAMES
        assert page.locator("img").count() == 0
        assert HOSTILE in page.inner_text("#sample-table")


@needs_chromium
def test_tables_sort_and_copy(browser, page_path):
    with Opened(browser, page_path, permissions=["clipboard-read", "clipboard-write"]) as opened:
        page = opened.page
        page.click("#class-table th:nth-child(2) button")
        counts = [int(text) for text in page.locator("#class-table td:nth-child(2)").all_inner_texts()]
        assert counts == sorted(counts)
        assert page.get_attribute("#class-table th:nth-child(2)", "aria-sort") == "ascending"
        page.click(".table:has(#class-table) >> text=Copy table")
        page.wait_for_selector("text=copied")
        lines = page.evaluate("navigator.clipboard.readText()").split("\n")
        assert len(lines) == 5
        assert any(line.startswith("'=cmd") for line in lines)  # not a formula where it is pasted


@needs_chromium
def test_drawn_numbers_are_the_evaluations(browser, page_path):
    evaluation, _ = evaluation_and_head()
    with Opened(browser, page_path, shared=True) as opened:
        cells = opened.page.locator("#grids table").nth(1).locator("button.cell").all()
        counts = sorted(int(cell.get_attribute("data-count")) for cell in cells)
        rows = evaluation.table("grid", method="head", metric="accuracy")
        assert counts == sorted(int(row["count"]) for row in rows if row["count"])
        text = opened.page.inner_text("#overall-table tbody tr:first-child td:nth-child(4)")
        [accuracy] = evaluation.table("overall", method="head", metric="accuracy")
        assert text.startswith(f"{accuracy['value']:.1%}")


@needs_chromium
def test_selected_reliability_adds_up(browser, page_path):
    """All four quadrants' diagrams together hold every sample once."""
    with Opened(browser, page_path, shared=True) as opened:
        total = 0
        for place in range(4):
            opened.page.locator("#quadrants figure").nth(1).locator("button").nth(place).click()
            titles = opened.page.locator("#reliability figure").nth(1).locator("path.mark title").all_text_contents()
            total += sum(int(re.search(r"([\d,]+) samples", text)[1].replace(",", "")) for text in titles)
        assert total == 1500


@needs_chromium
@pytest.mark.parametrize(
    "options",
    [{"viewport": {"width": 360, "height": 740}}, {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"}],
    ids=["phone", "dark"],
)
def test_nothing_sticks_out(browser, page_path, options):
    with Opened(browser, page_path, **options) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert np.mean([int(part) for part in re.findall(r"\d+", background)][:3]) > 128 or "color_scheme" in options
        assert len(opened.page.locator("svg.chart").all()) >= 8


@needs_chromium
def test_the_page_reaches_nothing_even_if_it_tries(browser, page_path):
    with socket.create_server(("127.0.0.1", 0)) as server, Opened(browser, page_path) as opened:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        tries = {
            "connecting to": f"fetch('{address}').catch(() => null)",
            "the image": f"void (new Image().src = '{address}')",
            "script-src": "void setTimeout('document.title = 1')",
        }
        for words, attempt in tries.items():
            opened.page.evaluate(attempt)
            opened.page.wait_for_timeout(100)
            assert any("Content Security Policy" in text and words in text.lower() for text in opened.trouble)
            opened.trouble.clear()  # the browser's words for what it refused
        assert opened.page.title() == HOSTILE
        with pytest.raises(BlockingIOError):  # nobody has connected
            server.accept()
        del opened.requests[1:]  # refused ones are listed too


@needs_chromium
def test_the_menus_change_measure_and_methods(browser, page_path):
    evaluation, _ = evaluation_and_head()
    with Opened(browser, page_path) as opened:
        page = opened.page
        page.select_option("#measure", label="accuracy")
        rows = [row for row in evaluation.table("grid", method="head", metric="accuracy") if row["count"]]
        row = max(rows, key=lambda row: (row["confidence_group"], -row["group"]))
        label = page.locator("#grids table").nth(1).locator("tbody tr").first.locator("button").first
        assert label.get_attribute("aria-label").startswith(
            f"atypicality group {row['group'] + 1}, confidence group {row['confidence_group'] + 1}: "
            f"accuracy {row['value']:.0%}"
        )
        page.select_option("#before", label="one <i>temperature</i>")
        assert page.inner_text("#grids caption >> nth=0") == "one <i>temperature</i>: accuracy"
        page.select_option("#before", label="head")
        assert page.locator("#grids table").count() == 1


@needs_chromium
def test_a_comparison_opens_without_trouble(browser, tmp_path):
    write_report(comparison(), tmp_path / "page.html")
    with Opened(browser, tmp_path / "page.html") as opened:
        assert opened.page.locator("#samples table").count() == 0
        assert opened.page.locator("#grids .cell").count() > 0


def test_no_number_of_a_summary_is_unknown():
    for evaluation in (evaluation_and_head()[0], comparison()):
        summary = summarise(evaluation, evaluation.methods[0], evaluation.methods[-1])
        steps = next_steps(evaluation, evaluation.methods[-1])
        cards = (*summary.improved, *summary.unclear, *summary.worse, *summary.caution, *steps)
        parts = [part for sentence in cards for part in sentence]
        assert all(math.isfinite(part.value) for part in parts if isinstance(part, SourcedNumber))


def class_sets(right, held, counts):
    """An evaluation of classes "a", "b", ... of these counts, with how many rows of each are right and held by sets."""
    labels = np.repeat(np.arange(len(counts)), counts)
    place = np.concatenate([np.arange(count) for count in counts])
    k, rows = len(counts), np.arange(labels.size)
    said = np.where(place < np.repeat(right, counts), labels, (labels + 1) % k)
    probs = np.full((labels.size, k), 0.2 / (k - 1))
    probs[rows, said] = 0.8
    sets = np.zeros_like(probs, bool)
    sets[rows, said] = True
    sets[rows, labels] = place < np.repeat(held, counts)
    outputs = aty.ModelOutputs(labels=labels, class_names=list("abcd")[:k], class_atypicality=np.arange(k) / 1.0)
    found = aty.evaluate({"model": (probs, sets)}, outputs)
    return replace(found, settings=dict(found.settings) | {"alpha": {"model": 0.1}, "guaranteed": {"model": 0.7977}})


def sentences(card):
    return ["".join(part if isinstance(part, str) else part.text for part in sentence) for sentence in card]


def test_classes_that_sets_miss_are_named_and_small_ones_too():
    """By hand: a is held in 300 of 300 rows, b in 62 of 102 (Clopper and Pearson: up to 70.3 %), c in 0 of 14."""
    evaluation = class_sets([280, 28, 0], [300, 62, 0], [300, 102, 14])
    said = sentences(summarise(evaluation, None, "model").caution)
    missed = "Prediction sets hold the true class less often than the target for the class b: 60.8% of 102 samples "
    assert f"{missed}(95% interval 50.6% to 70.3%), where the target is 90%." in said
    least = (
        "The class of at least 30 samples that is recognised least is b: 27.5% of 102 samples are right (95% interval "
    )
    assert f"{least}19.7% to 36.8%)." in said  # Wilson
    small = "Classes of fewer than 30 samples are not judged above: c, 0.0% of 14 right (0.0% to 21.5%), 0.0% in their "
    assert said[-1] == f"{small}prediction sets."
    steps = sentences(next_steps(evaluation, "model"))
    assert any("prediction sets by class rarity" in step for step in steps)
    assert in_code(evaluation, "model") == [
        "ReliabilityHead(prediction_sets=ConditionalConformal(groups='class rarity'))"
    ]
    assert not any("group of classes" in text for text in said)  # each is one class, which is named
    assert "; target: 90%; guaranteed: 79.77%)" in sentences(summarise(evaluation, None, "model").levels)[-1]


def test_sets_that_hold_every_class_are_said_to():
    evaluation = class_sets([90, 90], [98, 98], [100, 100])
    said = sentences(summarise(evaluation, None, "model").caution)
    kinds = "No confidence group or class of at least 30 samples has prediction sets that fall short "
    assert f"{kinds}of the target beyond their 95% interval." in said
    assert not any("class rarity" in step for step in sentences(next_steps(evaluation, "model")))
    assert not in_code(evaluation, "model")


def test_the_ece_of_rows_of_one_label_is_not_called_worse():
    """All rows are right, at a confidence of 95 % and then of 55 %: worse overall, and of no label in particular."""
    labels = np.repeat([0, 1], 200)
    before, after = (np.where(np.eye(2)[labels] == 1, confidence, 1 - confidence) for confidence in (0.95, 0.55))
    outputs = aty.ModelOutputs(labels=labels, class_atypicality=[0.0, 1.0])
    worse = sentences(summarise(aty.evaluate({"one": before, "two": after}, outputs), "one", "two").worse)
    assert any("(ECE)" in text for text in worse)
    assert not any("group of classes" in text for text in worse)


def sets_by_group(held, groups, confidence=None, **settings):
    """Steps and cautions where all rows are right and the sets of each group of 200 rows hold so many labels."""
    n = 200 * len(held)
    covered = (np.arange(n) % 200) < np.repeat(held, 200)
    top = np.full(n, 0.9) if confidence is None else np.repeat(confidence, 200) + 1e-4 * (np.arange(n) % 200)
    sets = np.stack([covered, ~covered], axis=1)
    outputs = aty.ModelOutputs(labels=np.zeros(n, int), attributes={"region": np.repeat(groups, 200)})
    found = aty.evaluate({"model": (np.stack([top, 1 - top], axis=1), sets)}, outputs)
    found = replace(found, settings=dict(found.settings) | {"alpha": {"model": 0.1}} | settings)
    return sentences(next_steps(found, "model")), sentences(summarise(found, None, "model").caution)


@pytest.mark.parametrize(("crossed", "end"), [({}, ""), ({"cross_fitted": {"model": True}}, ", without cv")])
def test_a_subgroup_that_sets_miss_has_its_remedy(crossed, end):
    """By hand: 150 of 200 are 75 %, at most 80.9 % (Wilson); 940 of 1,000 overall are enough."""
    steps, _ = sets_by_group([150, 198, 198, 197, 197], list("nesw-"), **crossed)
    [remedy] = [text for text in steps if "each value of region" in text]
    assert remedy.endswith(f"fit a head with prediction sets by region{end} (in code: see About).")
    assert steps[-1].startswith("Overall coverage holds; these groups fall short: subgroup region: n (75.0%)")
    assert not any("No refit" in text for text in steps)
    steps, _ = sets_by_group([150, 198, 198, 197, 197], list("nesw-"), covered_groups={"model": "region"}, **crossed)
    assert not any("each value of" in text for text in steps)
    steps, _ = sets_by_group([190] * 5, list("nesw-"), **crossed)
    assert steps[-1] == "No refit is called for: coverage over all samples and advice hold."


def test_no_place_in_a_sentence_is_left_unfilled():
    steps, cautions = sets_by_group([150] + [198] * 5, list("abcdef"), np.linspace(0.5, 0.9, 6))
    assert any("target for the confidence group 1: " in text for text in cautions)
    for evaluation in (evaluation_and_head()[0], comparison(), class_sets([280, 28, 0], [300, 62, 0], [300, 102, 14])):
        summary = summarise(evaluation, evaluation.methods[0], evaluation.methods[-1])
        cards = (summary.improved, summary.worse, summary.caution, summary.unclear)
        steps += [text for card in cards for text in sentences(card)]
        steps += sentences(next_steps(evaluation, evaluation.methods[-1]))
    assert not [text for text in steps + cautions if "{" in text or "}" in text]


def test_a_grid_that_is_named_says_its_size():
    evaluation, _ = evaluation_and_head()
    said = sentences(summarise(evaluation, None, "head").caution)
    assert len([text for text in said if "cell of the 6 × 6 grid" in text]) == 1


class Accepting:
    """A head that predicts class 0 and accepts every row, or none and says why."""

    def __init__(self, why=None):
        self.abstention_ = self if why else None
        self.why_none = lambda max_risk: why

    def predict(self, outputs, max_risk):
        n = len(outputs)
        proba = np.tile([0.9, 0.1], (n, 1))
        return SimpleNamespace(proba=proba, accepted=np.full(n, self.abstention_ is None))


@pytest.mark.parametrize(("wrong", "named"), [((40, 1, 0), "a"), ((2, 1, 0), None), ((60, 60, 60), "a")])
def test_errors_among_accepted_rows_of_a_subgroup_are_named(wrong, named):
    """By hand: 40 of 200 are 20 %, at least 15.0 % (Wilson); 41 of 600 are 6.8 %, at least 5.1 %; 0.1 is allowed."""
    labels = (np.arange(600) % 200 < np.repeat(wrong, 200)).astype(int)
    outputs = aty.ModelOutputs(labels=labels, attributes={"region": np.repeat(list("abc"), 200)})
    steps = sentences(next_steps(aty.evaluate(Accepting(), outputs, max_risk=0.1), "head"))
    assert steps[0].startswith("Use the 100.0%") == (sum(wrong) < 100)
    assert ("more than allowed. That happens to one head in 20" in steps[0]) == (sum(wrong) > 100)
    found = [text for text in steps if "accepted samples of the subgroup" in text]
    assert [text.partition(" are wrong")[0] for text in found] == (
        [f"Of the 200 accepted samples of the subgroup region: {named} {wrong[0] / 2:.1f}%"] if named else []
    )
    assert [text.endswith("So are those of 2 more of the subgroups.") for text in found] == [wrong[2] > 0] * len(found)


def test_where_nothing_is_accepted_the_numbers_are_told():
    labels = np.repeat([0, 1], [270, 30])
    rule = AbstentionRule.from_rows(np.linspace(0.99, 0.5, 300), np.arange(300) % 10 > 0)  # one in ten is wrong
    why = rule.why_none(0.05)
    outputs = aty.ModelOutputs(labels=labels, atypicality=np.linspace(0, 1, 300))
    evaluation = aty.evaluate(Accepting(why), outputs, max_risk=0.05)
    steps = sentences(next_steps(evaluation, "head"))
    start = "Nothing is accepted at a risk of at most 5%: give more calibration rows, or allow more risk. No threshold "
    assert steps[0] == start + why.removeprefix("no threshold ")
    assert not any("No refit" in text for text in steps)
    assert "not accepted at a risk of at most 5% counts as “ask a person”" in render_report(evaluation)


def test_a_page_that_can_judge_no_group_says_what_it_needs():
    """As of answers, which have no classes."""
    evaluation = aty.evaluate({"model": np.tile([0.9, 0.1], (20, 1))}, aty.ModelOutputs(labels=np.zeros(20, int)))
    nothing = {"classes": dict.fromkeys(evaluation.tables["classes"], ())}
    page = render_report(replace(evaluation, tables=dict(evaluation.tables) | nothing))
    assert "<h2>Where not to trust <bdi>model</bdi></h2><p>This needs more rows; to tell rare ones apart " in page
