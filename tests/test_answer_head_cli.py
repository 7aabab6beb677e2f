"""Answer heads in the shell: files of answers in, what the head says out, as `AnswerHead` says it."""

import csv
import json

import numpy as np
import pytest
from answer_cases import answer_world
from conftest import needs
from report_cases import Opened, needs_chromium
from scipy.stats import ttest_rel

import atypicality as aty
from atypicality.cli import main
from atypicality.cli.fit import _more_answers
from atypicality.llm import AnswerHead
from atypicality.llm.answer_evaluation import evaluate_answers
from atypicality.shipping.bundle import saved_sha256


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("answers")
    answers, _ = answer_world(2000, 0, embeddings=True)
    for name, rows in (("known", slice(0, 1000)), ("one", slice(1000, 1500)), ("two", slice(1500, 2000))):
        answers[rows].write(path / f"{name}.jsonl")
    assert main(["fit", "--calibration", str(path / "known.jsonl"), "--out", str(path / "head"), "--seed", "3"]) == 0
    return path


@pytest.fixture
def run(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)

    def one(words):
        code = main(words.split())
        return code, *capsys.readouterr()

    return one


@pytest.fixture(scope="module")
def by_hand(folder):
    known, new = (aty.llm.Answers.read(folder / f"{name}.jsonl") for name in ("known", "one"))
    return AnswerHead(random_state=3).fit(known), new


@pytest.fixture(scope="module")
def evaluated(by_hand):
    """The evaluation of that head at a risk of 20 %."""
    head, new = by_hand
    return head.evaluate(new, max_risk=0.2)


def test_fit_and_predict_say_what_the_head_says(run, by_hand, folder):
    head, new = by_hand
    code, out, _ = run("predict head one.jsonl --out said.csv --max-risk 0.2")
    assert code == 0
    assert "500 answers" in out
    said = head.predict(new, max_risk=0.2)
    with open(folder / "said.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["id", "confidence", "atypicality", "atypicality_quantile", "accepted"]
    n_shown = int(said.accepted.sum())
    assert out.endswith(f"act on `accepted`: show {n_shown}, send {500 - n_shown} to a person\n")
    assert [float(row["confidence"]) for row in rows] == said.confidence.tolist()
    assert [row["accepted"] == "True" for row in rows] == said.accepted.tolist()
    code, out, _ = run("fit --calibration known.jsonl --train one.jsonl --out other --alpha 0.2 --density none --json")
    assert (code, json.loads(out)["sizes"]) == (0, head.sizes_)
    with pytest.warns(UserWarning, match="--train and --calibration are the same file"):
        _more_answers(folder / "one.jsonl", folder / "one.jsonl")
    found = AnswerHead.load(folder / "other")
    assert (found.alpha, found.density) == (0.2, None)


def test_evaluate_prints_the_evaluation(run, by_hand, evaluated):
    head, new = by_hand
    code, out, _ = run("evaluate head one.jsonl --max-risk 0.2 --json")
    assert code == 0
    assert aty.Evaluation.from_json(out) == head.evaluate(new, max_risk=0.2, keep_samples=0)
    code, out, _ = run("evaluate head one.jsonl")
    assert code == 0
    assert out.startswith(f"{head.evaluate(new)}\n\nAdvice of the head\n")


def test_a_monitor_counts_answers(run, folder):
    code, out, _ = run("monitor head watch one.jsonl two.jsonl --at 2026-01-01 --json")
    assert (code, json.loads(out)["rows"]) == (0, 1000)
    code, out, _ = run("monitor head other-watch --reference one.jsonl --json")
    assert (code, json.loads(out)["reference_rows"]) == (0, 500)


def test_late_labels_of_answers_are_true_or_false(run, folder):
    lines = [json.loads(line) for line in (folder / "one.jsonl").read_text().splitlines()]
    right = [line.pop("correct") for line in lines][:200]
    (folder / "bare.jsonl").write_text("\n".join(map(json.dumps, lines)))
    told = {}
    for name, first, words in (("correct", "id", ("false", "True")), ("labels", "ids", ("wrong", "correct"))):
        rows = [f"{1000 + row},{words[value]}" for row, value in enumerate(right)]
        (folder / f"late-{name}.csv").write_text("\n".join([f"{first},{name}", *rows]))
        assert run(f"monitor head late-{name} bare.jsonl --at 2026-01-01")[0] == 0
        code, out, err = run(
            f"monitor head late-{name} bare.jsonl --late-labels late-{name}.csv --at 2026-01-02 --json"
        )
        assert code == 0, err
        told[name] = json.loads(out)
        counted = [{"file": f"late-{name}.csv", "rows": 0, "labels": 200, "doubted": 0}]
        assert (told[name]["labelled"], told[name].pop("counted")) == (200, counted)
    assert told["correct"] == told["labels"]
    (folder / "late.csv").write_text("ids,correct\n1000,yes\n")
    for words in ("fit --calibration bare.jsonl --out new", "evaluate head bare.jsonl", "report head bare.jsonl"):
        code, _, err = run(words)
        assert (code, "'bare.jsonl' must have the field 'correct', true or false" in err) == (2, True)
    code, _, err = run("monitor head late-correct bare.jsonl --late-labels late.csv")
    assert (code, "true or false in the column correct; got 'yes'" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("predict head missing.npz --out a.csv", "an answer head takes answers in a .jsonl file; got 'missing.npz'"),
        ("evaluate head one.jsonl --names logits=scores", "names must be of id, prompt,"),
        ("evaluate head one.jsonl --names prompt=question", "'question' is in no line of 'one.jsonl'"),
        ("evaluate head one.jsonl --class-names one.npz", "--class-names is for files of arrays"),
        ("report head one.jsonl --train one.jsonl", "--train is for outputs of a classifier"),
        ("report head one.jsonl --names a=b", "names must be of id, prompt,"),
        ("report head one.npz", "an answer head takes answers in a .jsonl file; got 'one.npz'"),
        ("fit --calibration known.jsonl --out new --sets split", "--recalibration and --sets are for outputs"),
        ("export head --out h.onnx", "is an answer head, which has no graph"),
    ],
)
def test_what_does_not_fit_an_answer_head_is_one_line(run, folder, words, message):
    aty.datasets.make_world(50).outputs().save(folder / "one.npz")
    code, _, err = run(words)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


@needs("starlette", "httpx", "prometheus_client")
def test_the_service_judges_records_as_predict_does(by_hand, folder):
    from starlette.testclient import TestClient

    from atypicality.serving.service import make_app

    head, new = by_hand
    said, records = head.predict(new[:20], max_risk=0.2), list(new[:20].records())
    with TestClient(make_app(folder / "head", max_risk=0.2)) as client:
        rows = client.post("/predict", json={"rows": records}).json()["rows"]
        assert [row["id"] for row in rows] == new.ids[:20].tolist()
        assert [row["confidence"] for row in rows] == said.confidence.tolist()
        assert [row["accepted"] for row in rows] == said.accepted.tolist()
        [alone] = client.post("/predict", json={"rows": [{"scores": {"verbalised": 0.9}}]}).json()["rows"]
        assert alone["accepted"] is False  # no known answer lacked its log-probabilities
        tensor = {"name": "logits", "shape": [1, 2], "datatype": "FP32", "data": [0, 1]}
        for path, body, message in (
            ("/predict", {"rows": [{"prompt": "p"}]}, "record 0: 'answer' is missing"),
            ("/predict", {"rows": []}, "rows must be a list of objects, at least one"),
            ("/predict", records[0], "the body may hold rows"),
            ("/v2/models/head/infer", {"inputs": [tensor]}, "POST records to /predict"),
        ):
            answer = client.post(path, json=body)
            assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.text
        assert "atypicality_rows_total 21.0" in client.get("/metrics").text
        assert client.get("/v2/models/head").json()["inputs"] == []


def test_a_classifiers_head_takes_no_answers(run, folder):
    world = aty.datasets.make_world(600).outputs()
    aty.ReliabilityHead().fit(train=world[:200], calibration=world[200:]).save(folder / "classifier")
    for words in ("predict classifier one.jsonl --out a.csv", "report classifier one.jsonl"):
        code, _, err = run(words)
        assert (code, err.count("\n")) == (2, 1)


@needs_chromium
def test_the_report_speaks_of_answers(run, folder, browser, evaluated):
    assert run("report head one.jsonl --out report.html --max-risk 0.2")[0] == 0
    with Opened(browser, folder / "report.html", viewport={"width": 1200, "height": 900}) as opened:
        page = opened.page
        text = page.inner_text("body")
        before_card = text.partition("About\n")[0]
        for word in ("class", "classes", "confidence", "samples", "prediction", "predictions", "sets"):
            assert f" {word} " not in before_card, word
        titles = page.locator("#sample-table th button").all_inner_texts()
        assert [title.strip() for title in titles] == [
            "example", "row", "id", "correct", "P(correct), head", "accepted, head",
            "P(correct), token probability", "atypicality", "order of review",
        ]  # fmt: skip
        shown = page.locator("#sample-table tbody tr").first
        assert "question" in shown.inner_text()
        assert shown.locator(".example").bounding_box()["width"] > 300
        [risk] = evaluated.table("overall", metric="accepted_risk")
        [share] = evaluated.table("overall", metric="accepted_share")
        page.select_option("[data-filter=accepted]", "1")
        assert opened.count() == risk["count"]
        page.click("#clear")
        page.locator("#advice button", has_text="not accepted").click()
        assert opened.count() == share["count"] - risk["count"]
        assert page.locator("[data-filter=advice]").count() == 0
        assert "AUROC of P(correct) for errors" in page.inner_text("#overall-table")
        assert "at a risk of at most 20%" in text


@needs_chromium
def test_two_files_of_answers_stand_beside_each_other(run, folder, browser):
    assert run("report head one.jsonl two.jsonl --out both.html")[0] == 0
    with Opened(browser, folder / "both.html") as opened:
        assert opened.count() == 1000
        assert "question 1999" in opened.page.content()
        assert np.char.startswith(opened.page.locator("h1").inner_text(), "Reliability")


def test_two_answer_heads_are_compared_on_the_same_answers(run, by_hand, evaluated, folder):
    head, new = by_hand
    other = AnswerHead(atypicality="answer_atypicality" if new.answer_embeddings is not None else None, random_state=4)
    other.fit(aty.llm.Answers.read(folder / "known.jsonl")).save(folder / "plain")
    code, out, err = run("report head plain one.jsonl --out two.html --max-risk 0.2")
    assert code == 0, err
    right = new.correct
    losses = [-np.log(np.where(right, p, 1 - p)) for p in (one.predict(new).confidence for one in (head, other))]
    found = ttest_rel(losses[1], losses[0])
    said = f"log-loss of plain minus that of head on the same 500 rows: {(losses[1] - losses[0]).mean():+.4f} "
    low, high = found.confidence_interval(0.95)
    assert out.startswith(f"{said}(95 % interval {low:+.4f} to {high:+.4f}): ")
    both = evaluate_answers({"head": head, "plain": other}, new, right, max_risk=0.2)
    assert both.methods == ("token probability", "head", "plain")
    assert len(both.table("samples")) == 500
    for name, one in (("head", evaluated), ("plain", other.evaluate(new, max_risk=0.2))):
        alone = one.table("overall", method="head")
        told = {row["metric"]: row["value"] for row in both.table("overall", method=name)}
        same = {row["metric"]: row["value"] for row in alone if not row["metric"].startswith("atypicality_")}
        assert {metric: told[metric] for metric in same} == pytest.approx(same, nan_ok=True)
    assert [note for note in both.notes if "plain has another atypicality, or none" in note]
    assert "What improved: <bdi>head</bdi> to <bdi>plain</bdi>" in (folder / "two.html").read_text()


def test_a_head_of_another_hash_is_not_reported(run, by_hand, folder):
    seal = by_hand[0].save(folder / "sealed")
    assert run(f"report sealed head one.jsonl --out a.html --sha256 {seal},{saved_sha256(folder / 'head')}")[0] == 0
    for words, message in (
        (f"report head sealed one.jsonl --sha256 {'0' * 64},{seal}", "it is another head"),
        (
            f"report sealed head one.jsonl --sha256 {seal}",
            "--sha256 must be one hash for each head, with a comma between two; got 1 for 2",
        ),
    ):
        code, _, err = run(words)
        assert (code, message in err) == (2, True), err
