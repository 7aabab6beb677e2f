"""`atypicality llm`: files in, an outputs file out, one line for every mistake."""

import json

import numpy as np
import pytest

from atypicality import ModelOutputs
from atypicality.cli import main
from atypicality.llm import TREC
from atypicality.llm.templates import CONTENT_FREE, TEMPLATES
from atypicality.paper.sources import content_free_path

WORDS = list(TREC.labels)
CODES = ["NUM:dist", "LOC:city", "HUM:ind", "DESC:def", "ENTY:animal", "ABBR:exp"]


@pytest.fixture
def files(tmp_path, rng):
    """Questions as the TREC files write them, and the scores of a model that is right two times in three."""
    lines, records = [], []
    for row in range(240):
        label = row % 6
        question = f"What is thing {row} ?"
        lines.append(f"{CODES[label]} {question}")
        logits = rng.normal(size=6) + 2.0 * np.eye(6)[label]
        scores = dict(zip(WORDS, (logits - np.logaddexp.reduce(logits)).tolist(), strict=True))
        surprise = (-rng.gamma(2.0, 2.0, 12)).tolist()
        records.append({"prompt": TREC.fill(question), "log_probs": surprise, "label_log_probs": scores})
    for text in ("N/A", "[MASK]", ""):
        records.append({"prompt": TREC.fill(text), "log_probs": [-1.0], "label_log_probs": dict.fromkeys(WORDS, -2.0)})
    records += [{"prompt": f" {word}", "log_probs": [-float(len(word))]} for word in WORDS]
    (tmp_path / "questions.txt").write_text("\n".join(lines))
    (tmp_path / "scores.jsonl").write_text("\n".join(map(json.dumps, records)))
    return tmp_path


def run(folder, *more, data="questions.txt", template="trec"):
    arguments = ["llm", "--model", str(folder / "scores.jsonl"), "--data", str(folder / data)]
    return main([*arguments, "--template", template, "--out", str(folder / "out.npz"), *more])


def test_outputs_are_written_with_labels_and_the_chosen_atypicality(files, capsys):
    assert run(files, "--label", "first-word", "--atypicality", "per_token", "--limit", "100") == 0
    outputs = ModelOutputs.load(files / "out.npz")
    assert len(outputs) == 100
    assert outputs.class_names.tolist() == WORDS
    assert outputs.labels.tolist() == [row % 6 for row in range(100)]
    np.testing.assert_allclose(outputs.attributes["atypicality_total"], 12 * outputs.atypicality)
    assert outputs.class_atypicality.tolist() == [float(len(word)) for word in WORDS]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "ModelOutputs(100 rows, 6 classes" in captured.err


def test_the_comparison_is_printed_as_a_table_or_as_json(files, capsys):
    assert run(files, "--label", "first-word", "--compare") == 0
    printed = capsys.readouterr().out
    assert "content-free" in printed
    assert run(files, "--label", "first-word", "--json") == 0
    evaluation = json.loads(capsys.readouterr().out)
    assert set(evaluation["methods"]) == {"uncalibrated", "content-free", "ts", "aar"}


def test_the_comparison_does_without_content_free_scores(files, capsys):
    kept = [line for line in (files / "scores.jsonl").read_text().splitlines() if "thing" in line]
    (files / "scores.jsonl").write_text("\n".join(kept))
    with pytest.warns(UserWarning, match="is left out: 'scores.jsonl' has no scores for") as warned:
        assert run(files, "--label", "first-word", "--json") == 0
    said = [str(warning.message) for warning in warned]
    assert [line.partition(":")[0] for line in said] == [
        *("class_atypicality is left out", "content-free calibration is left out")
    ]
    assert set(json.loads(capsys.readouterr().out)["methods"]) == {"uncalibrated", "ts", "aar"}


def test_own_templates_and_labels(files, capsys):
    (files / "mine.txt").write_text(TREC.text)
    assert run(files, "--label", "first-word", "--labels", ", ".join(WORDS), template=str(files / "mine.txt")) == 2
    assert "label 'NUM:dist' is not one of the template's labels" in capsys.readouterr().err
    assert run(files, "--label", "first-word", template=str(files / "mine.txt")) == 2
    assert "needs --labels" in capsys.readouterr().err
    named = ",".join(f"{code.partition(':')[0]} = {word}" for code, word in zip(CODES, WORDS, strict=True))
    assert run(files, "--label", "first-word", "--labels", named, template=str(files / "mine.txt")) == 0
    assert ModelOutputs.load(files / "out.npz").labels.tolist() == [row % 6 for row in range(240)]
    plain = [line.partition(" ")[2] for line in (files / "questions.txt").read_text().splitlines()]
    (files / "plain.txt").write_text("\n".join(plain))
    assert run(files, "--labels", "Number, Person", data="plain.txt", template=str(files / "mine.txt")) == 0
    outputs = ModelOutputs.load(files / "out.npz")
    assert outputs.class_names.tolist() == ["Number", "Person"]
    assert outputs.labels is None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--atypicality", "mean"), "atypicality must be one of 'total'"),
        (("--label", "kind"), "record 1 has no 'kind'; it has text. Name its columns: text=, label="),
        (("--model", "127.0.0.1:8000/v1"), "begins with http://"),
        (("--template", "trek"), "no template named 'trek'"),
        (("--data", "absent.txt"), "no file at 'absent.txt'"),
        (("--model", "http://localhost:1/v1"), "a server needs --served-model"),
        (("--model", "http://localhost:1/v1?key=secret", "--served-model", "m"), "must hold no user name"),
        (("--compare",), "a comparison needs --label"),
        (("--limit", "0"), "limit"),
    ],
)
def test_mistakes_are_one_line_and_code_two(more, message, files, capsys):
    plain = [line.partition(" ")[2] for line in (files / "questions.txt").read_text().splitlines()]
    (files / "plain.txt").write_text("\n".join(plain))
    assert run(files, *more, data="plain.txt") == 2
    error = capsys.readouterr().err.splitlines()
    assert message in error[-1]
    assert "secret" not in error[-1]


@pytest.mark.parametrize(
    ("name", "place"), [("trec", "{}.npz"), ("agnews", "{}-model/test.npz"), ("imdb", "{}-model/test.npz")]
)
def test_what_the_command_writes_is_what_reproduce_needs(name, place, tmp_path, rng, capsys):
    template, n = TEMPLATES[name], 120
    words = list(template.labels)
    lines, records = [], []
    for row in range(n):
        label = row % len(words)
        logits = rng.normal(size=len(words)) + 1.5 * np.eye(len(words))[label]
        scores = dict(zip(words, (logits - np.logaddexp.reduce(logits)).tolist(), strict=True))
        surprise = (-rng.gamma(2.0, 2.0, 5 + row % 4)).tolist()
        lines.append(json.dumps({"text": f"thing {row}", "label": words[label]}))
        records.append({"prompt": template.fill(f"thing {row}"), "log_probs": surprise, "label_log_probs": scores})
    flat = dict.fromkeys(words, -2.0)
    records += [{"prompt": template.fill(t), "log_probs": [-1.0], "label_log_probs": flat} for t in CONTENT_FREE]
    records += [{"prompt": f" {word}", "log_probs": [-1.0]} for word in words]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    (tmp_path / "scores.jsonl").write_text("\n".join(map(json.dumps, records)))
    out = tmp_path / "outputs" / place.format(name)
    out.parent.mkdir(parents=True)
    arguments = ["--model", str(tmp_path / "scores.jsonl"), "--data", str(tmp_path / "data.jsonl"), "--label", "label"]
    assert main(["llm", *arguments, "--template", name, "--out", str(out)]) == 0
    assert content_free_path(out).exists()
    capsys.readouterr()
    options = ["--outputs", str(tmp_path / "outputs"), "--seeds", "2", "--out", str(tmp_path / "made"), "--json"]
    assert main(["reproduce", "llm", *options]) == 0
    found = json.loads(capsys.readouterr().out)["experiments"]["llm"]
    assert {cell["atypicality"] for cell in found["cells"]} == {"total", "per token"}
    assert {cell["method"] for cell in found["cells"]} == {"uncalibrated", "content-free", "ts", "aar"}
    assert {verdict["claim"] for verdict in found["verdicts"]} == {1, 6}
    assert not any(verdict["verdict"] == "not tested" for verdict in found["verdicts"])
    assert not any("content" in note for note in found["notes"])
