"""Files as people have them: tables, single arrays, several files together, names of arrays and of classes."""

import json

import numpy as np
import pytest

import atypicality as aty
from atypicality.cli import main
from atypicality.outputs.packing import describe, findings, shuffled_accuracy
from atypicality.outputs.reading import read_class_names

NAMES = ["cat", "dog", "emu"]


@pytest.fixture
def folder(tmp_path, seed):
    """One model's outputs in four kinds of files, and the same as one object."""
    rng = np.random.default_rng(seed)
    logits, embeddings, labels = rng.normal(size=(40, 3)), rng.normal(size=(40, 4)), rng.integers(0, 3, 40)
    np.save(tmp_path / "scores.npy", logits)
    write(tmp_path / "features.csv", [[f"f_{j}" for j in range(4)], *embeddings.tolist()])
    write(tmp_path / "truth.tsv", [["row", "animal"], *([f"{i:03}", NAMES[c]] for i, c in enumerate(labels))], "\t")
    (tmp_path / "classes.txt").write_text("\n".join(NAMES) + "\n")
    ids = [f"{i:03}" for i in range(40)]
    outputs = aty.ModelOutputs(logits, embeddings=embeddings, labels=labels, ids=ids, class_names=NAMES)
    return tmp_path, outputs


MAPPING = {"logits": "scores", "embeddings": "f", "labels": "animal", "ids": "row"}
OPTION = ",".join(f"{ours}={theirs}" for ours, theirs in MAPPING.items())


def write(path, rows, delimiter=","):
    path.write_text("".join(delimiter.join(map(str, row)) + "\n" for row in rows))


def assert_same(found, expected):
    assert found.fingerprint() == expected.fingerprint()
    np.testing.assert_array_equal(found.class_names, expected.class_names)


def test_several_files_are_one_set_of_outputs(folder):
    path, outputs = folder
    files = [path / name for name in ("scores.npy", "features.csv", "truth.tsv")]
    assert_same(aty.ModelOutputs.load(files, names=MAPPING, class_names=NAMES), outputs)


@pytest.mark.parametrize("out", ["packed.npz", "packed.safetensors", "packed"])
def test_pack_writes_them_as_one_file_and_says_what_it_found(folder, out, capsys, monkeypatch):
    path, outputs = folder
    monkeypatch.chdir(path)
    command = ["pack", "scores.npy", "features.csv", "truth.tsv", "--names", OPTION, "--class-names", "classes.txt"]
    assert main([*command, "--out", out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["arrays"]["embeddings"] == ["float64", [40, 4]]
    assert told["accuracy"] == np.mean(outputs.logits.argmax(axis=1) == outputs.labels)
    assert told["label_counts"] == np.bincount(outputs.labels).tolist()
    assert_same(aty.ModelOutputs.load(out), outputs)
    if out == "packed":
        return
    assert main([*command, "--out", out]) == 0
    assert "40 rows, 3 classes" in capsys.readouterr().out


def test_pack_takes_probabilities_when_told_so(folder, capsys, monkeypatch):
    path, outputs = folder
    monkeypatch.chdir(path)
    probs = np.exp(outputs.logits) / np.exp(outputs.logits).sum(axis=1, keepdims=True)
    np.savez("p.npz", logits=probs, labels=outputs.labels)
    assert main(["pack", "p.npz", "--out", "as-logits.npz"]) == 0
    assert "look at this: logits lie between 0 and 1 and sum to 1" in capsys.readouterr().out
    assert main(["pack", "p.npz", "--out", "p2.npz", "--probabilities"]) == 0
    np.testing.assert_allclose(aty.ModelOutputs.load("p2.npz").logits, np.log(probs), rtol=1e-15)
    assert main(["pack", "scores.npy", "--names", "logits=scores", "--out", "x.npz", "--probabilities"]) == 2
    assert "probs must" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda logits, labels: (logits, (labels + 1) % 3), "would be chance: are rows or columns in another order?"),
        (lambda logits, labels: (np.where(logits > 5, np.nan, logits), labels), "logits of 1 rows are not numbers"),
        (lambda logits, labels: (logits, np.minimum(labels, 1)), "1 of 3 classes have no label"),
    ],
)
def test_pack_points_at_what_is_likely_a_mistake(spoil, words, capsys, tmp_path):
    labels = np.arange(60) % 3
    logits = np.eye(3)[labels] * 3.0
    logits[0] *= 2
    logits, labels = spoil(logits, labels)
    np.savez(tmp_path / "in.npz", logits=logits, labels=labels)
    assert main(["pack", str(tmp_path / "in.npz"), "--out", str(tmp_path / "out.npz")]) == 0
    assert words in capsys.readouterr().out


def test_shuffled_labels_are_told_from_those_of_a_weak_model(seed):
    rng = np.random.default_rng(seed)
    labels = rng.choice(4, 2000, p=[0.7, 0.1, 0.1, 0.1])
    predicted = np.where(rng.random(2000) < 0.3, labels, rng.permutation(labels))
    counts = np.bincount(predicted, minlength=4), np.bincount(labels, minlength=4)
    mean, error = shuffled_accuracy(*counts)
    drawn = [(predicted == rng.permutation(labels)).mean() for _ in range(1000)]
    assert abs(np.mean(drawn) - mean) < 5 * error / np.sqrt(1000)
    assert np.std(drawn) == pytest.approx(error, rel=0.12)  # five standard errors of 1,000 draws: 5 / sqrt(2000)
    for found, n_findings in ((labels, 0), (rng.permutation(labels), 1), (np.zeros(2000, int), 0)):
        told = findings(describe(aty.ModelOutputs(3.0 * np.eye(4)[predicted], labels=found)))
        assert sum("would be chance" in finding for finding in told) == n_findings


def test_columns_have_the_narrowest_type_that_keeps_every_character(tmp_path):
    rows = [["id", "labels", "atypicality", "attribute.code"], ["007", "1", "-inf", "x,y"], ["010", "-2", "1e3", "nan"]]
    (tmp_path / "t.csv").write_text(
        "\ufeff" + "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows) + "\n\n"
    )
    from atypicality.outputs.files import read_arrays

    found = read_arrays(tmp_path / "t.csv")
    assert found["id"].tolist() == ["007", "010"]
    assert (found["labels"].dtype, found["labels"].tolist()) == (np.dtype(np.int64), [1, -2])
    assert found["atypicality"].tolist() == [-np.inf, 1000.0]
    assert found["attribute.code"].tolist() == ["x,y", "nan"]


def test_numbered_columns_are_a_matrix_where_they_count_from_0(tmp_path):
    header = ["logits[1]", "logits[0]", "site_1", "site_2", "embeddings.0", "embeddings.1", "word_0", "word_1"]
    write(tmp_path / "t.csv", [header, [2, 1, 5, 6, 0.5, 1.5, "a", "b"]])
    from atypicality.outputs.files import read_arrays

    found = read_arrays(tmp_path / "t.csv")
    assert found["logits"].tolist() == [[1, 2]]
    assert found["embeddings"].tolist() == [[0.5, 1.5]]
    assert {"site_1", "site_2", "word_0", "word_1"} <= found.keys()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'t.csv' is empty: it has 0 bytes"),
        ("\n", "the first line must name the columns, such as labels; it holds nothing"),
        ("a;b\n1;2\n", "names one column, 'a;b', with ';' in it. Separate columns by commas"),
        ("0,1\n3,4\n", "the first line must name the columns, such as labels; it holds no name"),
        ("a,a\n1,2\n", "two columns have the name 'a'"),
        ("a,b\n1,2\n3\n", "line 3 has 1 values in 1 cells"),
        ("a,b\n1,2\n3,\n", "line 3 has 1 values in 2 cells"),
        ("a,b\n1,2\n3,", "its last line, 3, has 1 of 2 values: it is cut, or still being written"),
        ("a\n1\n\n2\n", "line 3 has 0 values"),
        ('a\n"1\n', "not a readable .csv file"),
        ("a\n\udcff\n", "not a readable .csv file"),
    ],
)
def test_a_table_that_cannot_be_read_whole_is_refused(tmp_path, text, words):
    (tmp_path / "t.csv").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"t\.csv") as caught:
        aty.ModelOutputs.load(tmp_path / "t.csv")
    assert words in str(caught.value)


def test_a_name_with_a_star_is_that_of_the_one_array_that_it_fits(tmp_path):
    for name in ("mon_emb", "tue_emb", "emb_mon"):
        np.save(tmp_path / f"{name}.npy", np.ones((2, 3)))
    np.save(tmp_path / "mon_y.npy", [0, 1])
    files = [tmp_path / "mon_emb.npy", tmp_path / "mon_y.npy"]
    found = aty.ModelOutputs.load(files, names={"embeddings": "*_emb", "labels": "*_y"})
    assert (found.embeddings.shape, found.labels.tolist()) == ((2, 3), [0, 1])
    assert aty.ModelOutputs.load(tmp_path / "emb_mon.npy", names={"embeddings": "emb_*"}).embeddings.shape == (2, 3)
    with pytest.raises(ValueError, match=r"'\*_emb' must fit one array of .*; it fits mon_emb, tue_emb"):
        aty.ModelOutputs.load([files[0], tmp_path / "tue_emb.npy"], names={"embeddings": "*_emb"})


def test_two_tables_with_one_column_are_told_how_rows_are_joined(tmp_path):
    for name in ("a.csv", "b.csv"):
        write(tmp_path / name, [["doc", name[0]], ["x", 1]])
    with pytest.raises(ValueError, match="--names ids=doc in a shell"):
        aty.ModelOutputs.load([tmp_path / "a.csv", tmp_path / "b.csv"])


def test_a_table_counts_against_the_limit(tmp_path):
    write(tmp_path / "t.csv", [["labels"], *[[1]] * 5000])
    with pytest.raises(ValueError, match="limit for the file is 1000 bytes"):
        aty.ModelOutputs.load(tmp_path / "t.csv", max_bytes=1000)


@pytest.mark.parametrize(("name", "content"), [("n.txt", "cat\n dog \n\nemu\n"), ("n.csv", "name\ncat\ndog\nemu\n")])
def test_names_of_classes_come_from_lines_or_one_array(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert read_class_names(tmp_path / name).tolist() == NAMES


def test_names_that_do_not_agree_are_refused(folder):
    path, outputs = folder
    outputs.save(path / "o.npz")
    assert_same(aty.ModelOutputs.load(path / "o.npz", class_names=NAMES), outputs)
    with pytest.raises(ValueError, match=r"class_names must be those of 'o\.npz'"):
        aty.ModelOutputs.load(path / "o.npz", class_names=NAMES[::-1])
    with pytest.raises(ValueError, match="has an array 'embeddings', and so has a file before it"):
        aty.ModelOutputs.load([path / "o.npz", path / "o.npz"])
    with pytest.raises(ValueError, match="or several; got none"):
        aty.ModelOutputs.load([])


def test_columns_named_by_their_classes_are_logits_and_class_names(tmp_path):
    (tmp_path / "t.csv").write_text("ids,logit_cat,logit_dog,labels\na,1.5,-2,dog\nb,0,3,cat\n")
    found = aty.ModelOutputs.load(tmp_path / "t.csv", names={"logits": "logit_*"})
    assert (found.class_names.tolist(), found.logits.tolist()) == (["cat", "dog"], [[1.5, -2.0], [0.0, 3.0]])
    assert found.labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"class_names must be those of 't\.csv'"):
        aty.ModelOutputs.load(tmp_path / "t.csv", names={"logits": "logit_*"}, class_names=["dog", "cat"])
    with pytest.raises(ValueError, match=r"has no array 'score_\*' for logits"):
        aty.ModelOutputs.load(tmp_path / "t.csv", names={"logits": "score_*"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pack", "truth.tsv", "--names", "labels=animal,ids=row"], "need class_names"),
        (["pack", "scores.npy"], "has none of logits"),
        (["pack", "scores.npy", "--names", "logits"], "--names must be pairs OURS=THEIRS"),
        (["pack", "scores.npy", "--names", "logits=scores,logits=x"], "'logits' stands there twice"),
        (["pack", "scores.npy", "--names", "scores=logits"], "Turn it round"),
        (["pack", "scores.npy", "truth.tsv", "--names", "logits=scores,labels=row,ids=animal"], "need class_names"),
        (
            ["fit", "--calibration", "scores.npy", "--density", "gausian"],
            "--density must be one of auto, choose, none, g",
        ),
        (["fit", "--calibration", "scores.npy", "--sets", "auto:alpha=1"], "which takes no settings"),
        (["fit", "--calibration", "scores.npy", "--sets", "split:scor=raps"], "has no parameter 'scor'"),
        (["fit", "--calibration", "scores.npy", "--sets", "split:raps"], "settings as NAME:SETTING=VALUE"),
        (
            [
                "fit",
                "--calibration",
                "scores.npy",
                "--train",
                "features.csv",
                "--names",
                "logits=scores,labels=nowhere",
            ],
            "'nowhere' is in none of them",
        ),
    ],
)
def test_a_mistake_is_one_line_and_code_2(folder, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(folder[0])
    if "--train" in arguments:
        arguments = [*arguments[:-1], arguments[-1] + ",embeddings=f"]
    assert main([*arguments, "--out", "never"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize("theirs", ["emb", "emb_*"])
def test_numbered_columns_have_one_name_with_a_star_and_without(tmp_path, theirs):
    (tmp_path / "t.csv").write_text("emb_1,id,emb_0,emb_2\n1,a,0,2\n")
    found = aty.ModelOutputs.load(tmp_path / "t.csv", names={"embeddings": theirs, "ids": "id"})
    assert found.embeddings.tolist() == [[0, 1, 2]]
    (tmp_path / "t.csv").write_text("emb_3,emb_0,emb_2\n3,0,2\n")
    with pytest.raises(ValueError, match=r"from 'emb_0' to 'emb_3' without 'emb_1'\. Add it"):
        aty.ModelOutputs.load(tmp_path / "t.csv", names={"embeddings": theirs})
    (tmp_path / "t.csv").write_text("emb_0,emb_1\n3,0\n4,x(2)\n")
    with pytest.raises(
        ValueError, match=r"2 columns match emb.*, but 1 of them hold text.*'emb_1' in line 3: 'x\(2\)'"
    ):
        aty.ModelOutputs.load(tmp_path / "t.csv", names={"embeddings": theirs})


def test_columns_with_a_star_are_told_from_others(tmp_path):
    (tmp_path / "t.csv").write_text("logit_dog,logit_cat\nf(1),2\nf(2),3\n")
    with pytest.raises(ValueError, match=r"2 columns match logit_\*, but 1 of them hold text"):
        aty.ModelOutputs.load(tmp_path / "t.csv", names={"logits": "logit_*"})
    (tmp_path / "t.csv").write_text("emb_0,emb_1,emb_norm\n1,2,3\n")
    with pytest.raises(ValueError, match=r"matches numbered columns and emb_norm\. Give emb for"):
        aty.ModelOutputs.load(tmp_path / "t.csv", names={"embeddings": "emb_*"})
    (tmp_path / "t.csv").write_text("logit_0,logit_1,emb_1,emb_10,emb_2\n1,2,1,10,2\n")
    with pytest.raises(ValueError, match="from 'emb_1' to 'emb_10' without 'emb_3' and 6 more"):
        aty.ModelOutputs.load(tmp_path / "t.csv", names={"logits": "logit_*", "embeddings": "emb_*"})
    (tmp_path / "t.csv").write_text("logit_0,logit_1,emb_2,emb_3,emb_1\n1,2,2,3,1\n")
    found = aty.ModelOutputs.load(tmp_path / "t.csv", names={"logits": "logit_*", "embeddings": "emb_*"})
    assert (found.embeddings.tolist(), found.class_names) == ([[1, 2, 3]], None)
