"""The commands around a head: files in, a head, answers and tables out, and one line for every mistake."""

import csv
import json
import re

import numpy as np
import pytest
from conftest import needs

import atypicality as aty
from atypicality.cli import main
from atypicality.datasets import load_fashion_mnist_lt
from atypicality.head.calibration_parts import disagreement
from atypicality.outputs.tables import cut_warning


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of outputs, and a head fitted on them by the command."""
    path = tmp_path_factory.mktemp("files")
    train, calibration, test = load_fashion_mnist_lt()
    train[:3000].save(path / "train.npz")
    calibration[:1200].save(path / "calibration.safetensors")
    test[:500].save(path / "test")
    arguments = ["--train", "train.npz", "--calibration", "calibration.safetensors", "--out", "head"]
    assert main(["fit", *(str(path / a) if not a.startswith("--") else a for a in arguments)]) == 0
    return path


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    return code, *capsys.readouterr()


def test_fit_says_what_it_did(folder, capsys):
    outputs = ("--train", folder / "train.npz", "--calibration", folder / "calibration.safetensors")
    code, out, _ = run(capsys, "fit", *outputs, "--out", folder / "again", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["sizes"] == {"train": 3000, "recalibration": 600, "edges": 60, "thresholds": 540}
    assert told["metrics"]["after"]["nll"] < told["metrics"]["before"]["nll"]
    assert aty.load(folder / "again", sha256=told["sha256"]).sizes_ == told["sizes"]
    code, out, _ = run(capsys, "fit", *outputs, "--out", folder / "again")
    assert code == 0
    assert f"sha256 {told['sha256']}" in out  # the same rows make the same head


def test_predict_writes_what_the_head_says(folder, capsys):
    code, out, _ = run(
        capsys, "predict", folder / "head", folder / "test", "--out", folder / "a.csv", "--max-risk", 0.1
    )
    assert code == 0
    assert "500 samples" in out
    answer = aty.load(folder / "head").predict(aty.ModelOutputs.load(folder / "test"), max_risk=0.1)
    with open(folder / "a.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["confidence"]) for row in rows] == answer.confidence.tolist()
    assert [row["label"] for row in rows] == answer.class_names[answer.label].tolist()
    assert [row["accepted"] == "True" for row in rows] == answer.accepted.tolist()


@pytest.mark.parametrize("ending", ["jsonl", "npz", pytest.param("parquet", marks=needs("pyarrow"))])
def test_predict_writes_every_format(folder, capsys, ending):
    code, out, _ = run(capsys, "predict", folder / "head", folder / "test", "--out", folder / f"b.{ending}", "--json")
    assert code == 0
    assert json.loads(out)["samples"] == 500
    assert (folder / f"b.{ending}").stat().st_size > 1000


@pytest.mark.filterwarnings("ignore:.*more atypical.*", "ignore:logits fit the embeddings")
@pytest.mark.parametrize(("moved", "code"), [(0.0, 0), (30.0, 3)])
def test_predict_tells_a_scheduler_of_drift(folder, capsys, moved, code):
    test = aty.ModelOutputs.load(folder / "test")
    file, noise = folder / f"moved{moved:g}.npz", np.random.default_rng(0).normal(size=test.embeddings.shape)
    aty.ModelOutputs(test.logits, embeddings=test.embeddings.astype(np.float32) + moved * noise).save(file)
    arguments = ("predict", folder / "head", file, "--out", folder / "d.npz", "--max-risk", 0.1, "--json")
    assert run(capsys, *arguments)[0] == 0
    found, out, _ = run(capsys, *arguments, "--exit-code")
    assert found == code
    told, answer = json.loads(out), aty.load(folder / "head").predict(aty.ModelOutputs.load(file), max_risk=0.1)
    assert told["drift"] == answer.drift.to_dict()
    assert told["drift"]["significant"] == (code == 3)
    assert told["mean_confidence"] == answer.confidence.mean()
    assert told.get("mean_confidence_of_accepted", 0) == answer.confidence[answer.accepted].sum() / max(
        answer.accepted.sum(), 1
    )


@pytest.mark.parametrize("what", ["columns", "rows"])
def test_logits_of_other_columns_or_rows_are_told_from_the_embeddings(folder, capsys, what):
    test = aty.ModelOutputs.load(folder / "test")
    order = np.random.default_rng(0).permutation(len(test))
    logits = np.roll(test.logits, 1, axis=1) if what == "columns" else test.logits[order]
    aty.ModelOutputs(logits, embeddings=test.embeddings).save(folder / "other.npz")
    with pytest.warns(UserWarning, match=r"logits fit the embeddings no better .* of 2\d\d rows looked at\. Are"):
        assert run(capsys, "predict", folder / "head", folder / "other.npz", "--out", folder / "o.npz")[0] == 4
    with pytest.warns(UserWarning, match="logits fit the embeddings no better"):
        code, out, _ = run(
            capsys, "predict", folder / "head", folder / "other.npz", "--out", folder / "o.npz", "--exit-code", "--json"
        )
    told = json.loads(out)
    assert (code, told["looks_wrong"]) == (4, True)
    assert [finding[:40] for finding in told["findings"]] == ["logits fit the embeddings no better than"]
    named = aty.ModelOutputs(logits[:99], embeddings=test.embeddings[:99])  # too few rows to tell
    assert disagreement(aty.load(folder / "head"), named) is None


def test_a_table_that_may_be_cut_and_a_row_that_cannot_be_judged_are_named(folder, capsys):
    test = aty.ModelOutputs.load(folder / "test")[:9]
    columns = {"ids": [f"r{row}" for row in range(9)]}
    columns |= {f"logits_{column}": test.logits[:, column].tolist() for column in range(10)}
    columns |= {f"embeddings_{column}": values.tolist() for column, values in enumerate(test.embeddings.T)}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    table, arguments = folder / "cut.csv", ("predict", folder / "head", folder / "cut.csv", "--out", folder / "c.npz")
    table.write_text("\n".join(lines)[:-3])
    with pytest.warns(UserWarning, match=r"'cut.csv' ends in \S+ without a line end: its last number may be cut"):
        code, out, _ = run(capsys, *arguments, "--exit-code", "--json")
    assert (code, len(json.loads(out)["findings"])) == (4, 1)
    table.write_text("\n".join(lines) + "\n")
    code, out, _ = run(capsys, *arguments, "--exit-code", "--json")
    assert (code, json.loads(out)["findings"]) == (0, [])
    lines[4] = lines[4].replace(str(columns["logits_2"][3]), "nan")
    table.write_text("\n".join(lines) + "\n")
    code, _, err = run(capsys, *arguments)
    assert (code, "row 3 of 'cut.csv' (line 5, id 'r3') holds NaN" in err) == (2, True)
    for text, cut in (("ids,labels\na,1", False), ("id,x\nShoe,3", False), ("x,y\n0.5,1", True), ("x\n1e3\n", False)):
        table.write_text(text)
        assert bool(cut_warning(table)) == cut


def test_a_bad_value_is_named_in_the_file_and_line_that_it_came_from(folder, capsys):
    """Rows of the second table are put into the order of the first; one list of names serves all days."""
    test = aty.ModelOutputs.load(folder / "test")[:9]
    rows = [[f"r{row}", *map(str, test.logits[row])] for row in range(9)][::-1]
    header = ["doc", *(f"score_{name}" for name in test.class_names)]
    (folder / "day.csv").write_text("doc,received\n" + "".join(f"r{row},now\n" for row in range(9)))

    def predicted(embeddings=test.embeddings, header=header):
        np.save(folder / "day_emb.npy", embeddings)
        (folder / "scores.csv").write_text("".join(",".join(line) + "\n" for line in (header, *rows)))
        files = ",".join(str(folder / name) for name in ("day.csv", "scores.csv", "day_emb.npy"))
        names = "ids=doc,logits=score_*,embeddings=*_emb,labels=truth"
        return run(capsys, "predict", folder / "head", files, "--names", names, "--out", folder / "n.csv")

    code, _, err = predicted()
    assert (code, err) == (0, "")  # nor a word on the column `received`
    np.testing.assert_allclose(
        [float(line["confidence"]) for line in csv.DictReader((folder / "n.csv").read_text().splitlines())],
        aty.load(folder / "head").predict(test).confidence,
        rtol=1e-6,
    )
    lost = predicted(header=[name.replace("score_Bag", "Bag") for name in header])
    assert (lost[0], "has no column score_Bag for the head's class 'Bag'." in lost[2]) == (2, True)
    assert "row 3 of 'day_emb.npy' (id 'r3') holds NaN" in predicted(spoilt_row(test.embeddings, 3))[2]
    rows[5][1] = "nan"
    assert "row 5 of 'scores.csv' (line 7, id 'r3') holds NaN" in predicted()[2]


def spoilt_row(array, row):
    return np.where(np.arange(len(array))[:, None] == row, np.nan, array)


def test_the_answers_name_their_labels_whatever_the_order_of_columns(folder, capsys):
    test, found = aty.ModelOutputs.load(folder / "test"), []
    for order in (np.arange(10), np.arange(10)[::-1]):
        names = test.class_names[order]
        aty.ModelOutputs(test.logits[:, order], embeddings=test.embeddings, class_names=names).save(folder / "n.npz")
        assert run(capsys, "predict", folder / "head", folder / "n.npz", "--out", folder / "l.npz")[0] == 0
        with np.load(folder / "l.npz") as stored:
            assert (stored["class_names"][stored["label"]] == stored["label_name"]).all()
            found.append(stored["label_name"])
    np.testing.assert_array_equal(*found)


def test_probabilities_in_the_place_of_logits_are_warned_of(folder, capsys):
    test = aty.ModelOutputs.load(folder / "test")
    probs = np.exp(test.logits) / np.exp(test.logits).sum(axis=1, keepdims=True)
    aty.ModelOutputs(probs, embeddings=test.embeddings).save(folder / "probs.npz")
    with pytest.warns(UserWarning, match=r"the logits of 'probs.npz' look like probabilities"):
        code, _, err = run(capsys, "predict", folder / "head", folder / "probs.npz", "--out", folder / "p.npz")
    assert (code, "'probs.npz' looks wrong: do not use " in err) == (4, True)


def test_answers_hold_the_probabilities(folder, capsys):
    for ending in ("jsonl", "npz"):
        assert run(capsys, "predict", folder / "head", folder / "test", "--out", folder / f"p.{ending}")[0] == 0
    with open(folder / "p.jsonl") as stream:
        rows = [json.loads(line)["proba"] for line in stream]
    np.testing.assert_array_equal(np.array(rows, np.float32), np.load(folder / "p.npz")["proba"])


def test_fit_takes_parts_by_name(folder, capsys):
    outputs = ("--train", folder / "train.npz", "--calibration", folder / "calibration.safetensors")
    parts = ("--density", "gaussian:normalize=l2", "--recalibration", "temperature", "--sets", "split:score=aps")
    assert run(capsys, "fit", *outputs, *parts, "--alpha", 0.2, "--out", folder / "parts")[0] == 0
    head = aty.load(folder / "parts")
    assert repr(head.density_) == "GaussianAtypicality(normalize='l2')"
    assert repr(head.recalibration_) == "TemperatureScaling()"
    assert repr(head.prediction_sets_) == "SplitConformal(alpha=0.2, score='aps')"


def test_evaluate_prints_tables_or_json(folder, capsys):
    code, out, _ = run(capsys, "evaluate", folder / "head", folder / "test")
    assert code == 0
    assert "ECE and accuracy by input atypicality" in out
    code, out, _ = run(capsys, "evaluate", folder / "head", folder / "test", "--json")
    evaluation = aty.Evaluation.from_json(out)
    assert evaluation.methods == ("model", "head")
    assert evaluation.table("samples") == evaluation.table("predictions") == []  # nothing of single rows


def test_evaluate_tells_of_advice_and_of_what_is_kept_at_a_risk(folder, capsys):
    words = ("evaluate", folder / "head", folder / "test", "--max-risk", 0.1)
    _, out, _ = run(capsys, *words)
    told = json.loads(run(capsys, *words, "--json")[1])
    head, test = aty.load(folder / "head"), aty.ModelOutputs.load(folder / "test")
    answer = head.predict(test, max_risk=0.1)
    right = (answer.label == test.labels)[answer.accepted]
    overall = aty.Evaluation.from_json(json.dumps(told)).table("overall", method="head")
    found = {row["metric"]: row["value"] for row in overall}
    assert found["accepted_share"] == pytest.approx(right.size / len(test))
    assert found["accepted_risk"] == pytest.approx(1 - right.mean())
    table = out.partition("Advice of the head\n")[2].splitlines()
    rows = {word: cells for word, *cells in (re.split(r" {2,}", line) for line in table[1:])}
    said = answer.advice_shares()  # at the risk: what is not kept is for a person
    assert {word: int(cells[0]) for word, cells in rows.items()} == {w: round(500 * s) for w, s in said.items() if s}


@needs("onnx", "onnxruntime")
def test_export_writes_a_graph_that_agrees(folder, capsys):
    import onnxruntime

    code, out, _ = run(capsys, "export", folder / "head", "--out", folder / "head.onnx")
    assert code == 0
    assert "its answers equal the head's" in out
    test = aty.ModelOutputs.load(folder / "test")
    session = onnxruntime.InferenceSession(folder / "head.onnx")
    inputs = {"logits": np.asarray(test.logits), "embeddings": test.embeddings.astype(np.float32)}
    (sets,) = session.run(["prediction_set"], inputs)
    np.testing.assert_array_equal(sets, aty.load(folder / "head").predict(test).prediction_set)


def test_show_describes_a_head_that_is_whole_and_the_expected_one(folder, capsys):
    seal = json.loads((folder / "head" / "head.json").read_text())["sha256"]
    code, out, _ = run(capsys, "show", folder / "head", "--sha256", seal)
    assert code == 0
    assert out.startswith("Ready to use: it takes logits (10 columns) and embeddings (48 columns); ")
    assert "  inputs          logits 10, embeddings 48\n  alpha           0.1\n" in out
    assert f"  sha256          {seal}\n" in out
    told = json.loads(run(capsys, "show", folder / "head", "--json")[1])
    head = aty.load(folder / "head")
    assert (told["classes"], told["sha256"]) == (head.class_names_.tolist(), seal)
    assert (told["sizes"], told["calibration"]) == (head.sizes_, head.fingerprint_)


def test_refit_is_that_of_python_and_reads_text_labels_by_the_heads_classes(folder, capsys):
    _, _, test = load_fashion_mnist_lt()
    rows = test[500:1500]
    np.savez(folder / "rows.npz", logits=rows.logits, embeddings=rows.embeddings)
    labels = "\n".join(["labels", *test.class_names[rows.labels]])
    (folder / "truth.csv").write_text(labels)
    both = f"{folder / 'rows.npz'},{folder / 'truth.csv'}"
    code, out, _ = run(capsys, "refit", folder / "head", both, "--json", "--out", folder / "newer")
    assert code == 0
    expected, found = (
        aty.load(folder / "head").refit(rows),
        aty.load(folder / "newer", sha256=json.loads(out)["sha256"]),
    )
    np.testing.assert_array_equal(found.predict(test[:50]).proba, expected.predict(test[:50]).proba)
    code, out, _ = run(capsys, "refit", folder / "head", both, "--out", folder / "newer")
    assert ("are kept from the first fit" in out) == (found.density_choice_ is not None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "head", "--sha256", "0" * 64), "it is another head"),
        (("evaluate", "head", "test", "--sha256", "0" * 64), "it is another head"),
        (("predict", "head", "test", "--out", "a.xlsx"), "must end in one of .csv, .jsonl, .parquet, .npz"),
        (("predict", "head", "nowhere.npz", "--out", "a.csv"), "no file or folder at"),
        (("predict", "nowhere", "test", "--out", "a.csv"), "nowhere"),
        (("predict", "head", "test", "--out", "a.csv", "--max-risk", "5"), "max_risk must be a finite number"),
        (("evaluate", "head", "train.npz"), "must have logits"),
        (("fit", "--calibration", "train.npz", "--out", "x"), "must have logits"),
        (("fit", "--calibration", "train.npz"), "Missing option '--out'"),
        (
            ("fit", "--train", "train.npz", "--calibration", "test", "--alpha", "10", "--out", "x"),
            "For 10 percent pass",
        ),
        (("export", "head"), "Missing option '--out'"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(folder, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert message in err
