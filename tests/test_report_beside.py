"""Two heads on one file, and one head on two files, beside each other in one report."""

import contextlib
import copy
import html
import io
import json
import re

import numpy as np
import pytest
from report_cases import CALIBRATION, TEST, TRAIN, Opened, evaluation_and_head, needs_chromium, world_outputs
from scipy.stats import ttest_rel

import atypicality as aty
from atypicality.cli import main
from atypicality.cli.report import _examples as examples_of
from atypicality.evaluation.beside import beside
from atypicality.evaluation.paired import Comparison, compared
from atypicality.evaluation.schema import TABLES
from atypicality.head import ReliabilityHead
from atypicality.report.examples import read_examples

DAYS = slice(3500, 4500), slice(4500, 5000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two saved heads, and test outputs whole and in two days."""
    place = tmp_path_factory.mktemp("beside")
    evaluation_and_head()[1].save(place / "old")
    sets = aty.ConditionalConformal()
    other = ReliabilityHead(prediction_sets=sets, random_state=1)
    other.fit(train=world_outputs()[TRAIN], calibration=world_outputs()[CALIBRATION]).save(place / "new")
    world_outputs()[TEST].save(place / "test.npz")
    for name, rows in zip(("monday", "tuesday"), DAYS, strict=True):
        world_outputs()[rows].save(place / f"{name}.npz")
    return place


def written(folder, *names, **options):
    out = folder / f"{'-'.join(names)}.html"
    more = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    assert main(["report", *(str(folder / name) for name in names), "--out", str(out), *more]) == 0
    return out


@pytest.fixture(scope="module")
def two_heads(folder):
    """The report of two heads on one day, and what the command printed."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        out = written(folder, "old", "new", "tuesday.npz")
    return out, printed.getvalue()


@needs_chromium
def test_two_heads_have_every_linked_view(browser, two_heads):
    with Opened(browser, two_heads[0]) as opened:
        page = opened.page
        for place in ("#grids table caption", "#advice figcaption", "#quadrants figcaption", "#reliability figcaption"):
            texts = page.locator(place).all_inner_texts()
            assert ["old" in texts[0], "new" in texts[1], len(texts)] == [True, True, 2], place
        heads = page.locator("#sample-table thead th").all_inner_texts()
        assert {"advice, old", "advice, new"} <= {head.strip() for head in heads}
        for side in (0, 1):
            button = page.locator("#advice figure").nth(side).locator("button").first
            button.click()
            expected = int(page.locator("#advice figure").nth(side).locator("button").first.get_attribute("data-count"))
            assert opened.count() == expected


@needs_chromium
def test_two_days_have_their_own_samples(browser, folder):
    with Opened(browser, written(folder, "old", "monday.npz", "tuesday.npz")) as opened:
        page = opened.page
        assert opened.count() == 1500
        assert page.locator("#before").input_value() != page.locator("#after").input_value()
        for side, n in ((0, 1000), (1, 500)):
            total = 0
            for place in range(4):
                page.locator("#quadrants figure").nth(side).locator("button").nth(place).click()
                total += opened.count()
            assert total == n
        page.click("#clear")
        page.select_option('[data-filter="right"]', label="wrong")
        marks = page.locator("#reliability figure")
        assert [marks.nth(side).locator("path.mark").count() > 0 for side in (0, 1)] == [True, True]


def test_the_header_has_the_names_of_files_and_what_is_stated(folder, capsys):
    page = written(folder, "old", "tuesday.npz", about="purpose=triage = sorting").read_text()
    facts = dict(re.findall(r"<dt><bdi>(.*?)</bdi></dt><dd><bdi>(.*?)</bdi></dd>", page))
    mark = aty.load(folder / "old").fingerprint_
    assert facts["head"] == f"old; head: fitted on calibration rows with fingerprint {mark}"
    assert facts["data"].startswith("tuesday.npz; fingerprint ")
    assert (facts["model"], facts["purpose"]) == ("not stated", "triage = sorting")
    capsys.readouterr()
    assert main(["report", str(folder / "old"), str(folder / "tuesday.npz"), "--about", "triage"]) == 2
    assert "--about must be NAME=TEXT" in capsys.readouterr().err


def test_two_heads_are_compared_row_by_row(folder, two_heads):
    page, printed = two_heads
    said = next(line for line in printed.splitlines() if line.startswith("log-loss of new minus"))
    assert html.escape(said.replace("-0", "−0").replace("95 %", "95%")) in page.read_text()
    test = world_outputs()[DAYS[1]]
    old, new = (aty.load(folder / name).predict(test).proba for name in ("old", "new"))
    rows = np.arange(len(test)), test.labels
    found = ttest_rel(-np.log(new[rows]), -np.log(old[rows]))
    interval = found.confidence_interval(0.95)
    numbers = [float(number) for number in re.findall(r"[+-]\d\.\d{4}", said)]
    np.testing.assert_allclose(numbers, [np.log(old[rows] / new[rows]).mean(), *interval], atol=6e-5)  # four digits
    verdict = "new is better" if interval.high < 0 else "old is better" if interval.low > 0 else "no difference shown"
    assert said.endswith(f"): {verdict}")


def test_training_rows_are_for_duplicates_alone_and_atypicality_stays_the_heads(folder):
    train = world_outputs()[TRAIN]
    train.save(folder / "train.npz")
    train[100:150].save(folder / "twins.npz")
    page = written(folder, "old", "twins.npz", train=folder / "train.npz").read_text()
    told = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["duplicates"]
    assert sorted(zip(told["row"], told["train_row"], strict=True)) == [(row, row + 100) for row in range(50)]
    assert all(told["same_label"])
    assert "<td>measured by head</td>" in page


def test_a_worse_head_is_found_worse_and_the_same_one_not_different():
    world = world_outputs()
    good = evaluation_and_head()[1]
    bad = copy.deepcopy(good)
    bad.predict = lambda outputs: good.predict(outputs._replaced(logits=outputs.logits / 3))
    said = [
        str(compared(*heads, world[rows], ("old", "new")))
        for *heads, rows in ((good, bad, TEST), (bad, good, TEST), (good, good, TEST), (good, bad, slice(0, 1)))
    ]
    assert said[0].endswith("): old is better")
    assert said[1].endswith("): new is better")
    assert "+0.0000 (95 % interval +0.0000 to +0.0000): no diff" in said[2]
    assert "not comparable" in said[3]


def test_a_script_can_swap_heads_by_the_exit_code(folder, capsys, monkeypatch):
    monkeypatch.setattr(aty.Evaluation, "report", lambda *arguments, **options: None)  # the page is another test's

    def code(*places):
        arguments = ["report", *(str(folder / place) for place in places), "--out", str(folder / "gate.html")]
        return main([*arguments, "--exit-code", "--json"])

    found = code("old", "new", "tuesday.npz")
    told = json.loads(capsys.readouterr().out)["comparison"]
    assert (told["first"], told["second"], told["n_rows"]) == ("old", "new", 500)
    assert found == (0 if told["better"] == "new" else 3)
    for low, high, better in ((-2.0, -1.0, "new"), (-1.0, 1.0, None), (1.0, 2.0, "old"), (0.0, 0.0, None)):
        assert Comparison(("old", "new"), 9, (low + high) / 2, low, high).better == better
    assert code("old", "tuesday.npz") == 2
    assert "are for two heads" in capsys.readouterr().err


@pytest.fixture(scope="module")
def days():
    """One head evaluated on each of two days."""
    return [aty.evaluate(evaluation_and_head()[1], world_outputs()[rows]) for rows in DAYS]


def test_beside_keeps_every_row_of_both(days):
    parts = days
    both = beside(*parts, ("monday", "tuesday"))
    assert both.methods == ("head, monday", "head, tuesday")
    for table, columns in TABLES.items():
        for place, part in enumerate(parts):
            name = f"head, {('monday', 'tuesday')[place]}"
            if "method" in columns and "row" not in columns:
                found = [row | {"method": "head"} for row in both.table(table, method=name)]
                assert repr(found) == repr(part.table(table, method="head")), table
    assert [row["row"] for row in both.table("samples")] == list(range(1500))
    labels = np.array([row["label"] for row in both.table("samples")])
    assert labels.tolist() == world_outputs()[TEST].labels.tolist()
    assert aty.Evaluation.from_json(both.to_json()) == both


def test_subgroups_that_one_day_lacks_keep_their_names():
    _, head = evaluation_and_head()
    days = [world_outputs()[rows] for rows in DAYS]
    shop = [np.array(["b"] * 1000), np.array(["a", "b"] * 250)]
    days = [day._replaced(attributes={"shop": values}) for day, values in zip(days, shop, strict=True)]
    both = beside(*(aty.evaluate(head, day) for day in days), ("monday", "tuesday"))
    names = list(dict.fromkeys(row["subgroup"] for row in both.table("subgroups")))
    found = [names[int(row["subgroups"])] for row in both.table("samples")]
    assert found == [*shop[0], *shop[1]]


def test_what_cannot_stand_beside_is_refused(days):
    _, head = evaluation_and_head()
    first, _ = days
    with pytest.raises(ValueError, match="must have the same n_groups; got 5 and 3"):
        beside(first, aty.evaluate(head, world_outputs()[DAYS[1]], n_groups=3), ("a", "b"))
    with pytest.raises(ValueError, match="of the same classes"):
        beside(first, aty.evaluate("uncalibrated", aty.datasets.make_world(300, 3).outputs()), ("a", "b"))
    with pytest.raises(ValueError, match="names must differ"):
        beside(first, first, ("a", "a"))


def test_the_command_refuses_what_it_cannot_place(folder, capsys):
    assert main(["report", str(folder / "test.npz"), str(folder / "monday.npz"), "--out", str(folder / "x.html")]) == 2
    assert "got 0 heads (folders with a head.json) and 2 files" in capsys.readouterr().err


def test_examples_come_from_files(folder, capsys):
    np.save(folder / "rows.npy", np.zeros((3, 4, 4), np.uint8))
    (folder / "rows.txt").write_text("one\ntwo\nthree\n")
    (folder / "rows.csv").write_text("age,name\n1,a\n2,b\n3,c\n")
    for ending, kind in (("npy", "image"), ("txt", "text"), ("csv", "table")):
        found = read_examples(examples_of(folder / f"rows.{ending}"), 3)
        assert (found.kind, len(found.at)) == (kind, 3)
    assert found.at[1] == ["2", "b"]
    (folder / "rows.bin").touch()
    places = [str(folder / name) for name in ("old", "test.npz")]
    assert main(["report", *places, "--examples", str(folder / "rows.bin")]) == 2
    assert ".npy, .txt or .csv" in capsys.readouterr().err
