"""Plausible wrong input: rows or columns in another order, other scales and swapped files are refused or warned of."""

import json

import numpy as np
import pytest
from conftest import needs
from scipy.special import softmax

import atypicality as aty
from atypicality import ModelOutputs
from atypicality.cli import main
from atypicality.head.calibration_parts import agreement, exchanged, unlike, warn_of_other_labels
from atypicality.head.moments import ClassMoments
from atypicality.head.prediction import Nearest, predicted
from atypicality.llm import AnswerHead, Answers

NAMES = np.array(["cat", "dog", "ant", "bee"])
TURNED = np.array([0, 2, 1, 3])
MEANS = np.random.default_rng(0).normal(size=(4, 6))


def arrays(n, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    embeddings = 1.5 * MEANS[labels] + rng.normal(size=(n, 6))
    return {"logits": embeddings @ MEANS.T, "embeddings": embeddings, "labels": labels, "class_names": NAMES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of outputs and a saved head."""
    root = tmp_path_factory.mktemp("wrong")
    for name, n, seed in (("train", 400, 1), ("cal", 400, 2), ("test", 300, 3)):
        np.savez(root / f"{name}.npz", **arrays(n, seed))
    head = aty.ReliabilityHead(recalibration=aty.TemperatureScaling(), prediction_sets=aty.SplitConformal())
    head.fit(train=ModelOutputs.load(root / "train.npz"), calibration=ModelOutputs.load(root / "cal.npz"))
    head.save(root / "head")
    return root


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Run a command on files that hold the test arrays with some changed; its code and what it says on stderr."""
    monkeypatch.chdir(folder)

    def command(*arguments, **changed):
        parts = arrays(300, 3) | changed
        np.savez(folder / "x.npz", **{name: part for name, part in parts.items() if part is not None})
        return main([str(word) for word in arguments]), capsys.readouterr().err

    return command


# Rows and columns in another order


def test_labels_of_other_rows_or_classes_are_warned_of(run):
    parts = arrays(300, 3)
    warn_of_other_labels(ModelOutputs(**parts))  # warnings are errors
    message = "fit the logits no better than shuffled ones would"
    with pytest.warns(UserWarning, match=message):
        warn_of_other_labels(ModelOutputs(**parts | {"labels": np.minimum(parts["labels"] + 1, 3)}))
    with pytest.warns(UserWarning, match=rf"labels of 'x\.npz' {message}"):
        assert run("evaluate", "head", "x.npz", labels=np.roll(parts["labels"], 7))[0] == 0
    with pytest.warns(UserWarning, match=f"labels of the outputs {message}"):
        aty.evaluate("uncalibrated", ModelOutputs(**parts | {"labels": np.roll(parts["labels"], 7)}))


WRONG = {
    "probabilities": ({"logits": lambda z: softmax(z, axis=1)}, "the logits look like prob.* each row sums to 1"),
    "one row of them": ({"logits": lambda z: softmax(z, axis=1)}, "the logits look like probabilities"),
    "columns": ({"logits": lambda z: z[:, ::-1]}, r"logits fit the embeddings no better .* of 2\d\d rows looked at"),
    "rows": ({"embeddings": lambda x: np.roll(x, 7, axis=0)}, "logits fit the embeddings no better"),
    "near the means": (
        {"embeddings": lambda x: 0 * x + MEANS[0]},
        "100.0% of these 300 rows are more typical than 99%",
    ),
}


@pytest.mark.filterwarnings("ignore:.*logits fit the embeddings no better.*")
@pytest.mark.parametrize("what", WRONG)
def test_predict_says_in_python_what_looks_wrong(folder, what):
    head, parts = aty.load(folder / "head"), arrays(300, 3) | {"class_names": None}
    assert head.predict(ModelOutputs(**parts)).doubts == ()
    (changes, message), rows = WRONG[what], slice(0, 1 if what == "one row of them" else 300)
    outputs = ModelOutputs(
        **parts | {name: np.ascontiguousarray(change(parts[name])) for name, change in changes.items()}
    )
    with pytest.warns(UserWarning, match=message) as caught:
        answer = head.predict(outputs[rows])
    assert set(answer.doubts) == {str(one.message) for one in caught if "more atypical" not in str(one.message)}


def test_a_weak_density_is_not_taken_for_other_rows(rng):
    parts, noise = arrays(6000, 4), rng.normal(size=(6000, 6))
    outputs = ModelOutputs(**parts | {"embeddings": 0.12 * parts["embeddings"] + noise})
    head = aty.ReliabilityHead(aty.GaussianAtypicality(), aty.TemperatureScaling(), aty.SplitConformal())
    head.fit(train=outputs[:3000], calibration=outputs[3000:5000])
    assert 4 / 1000**0.5 < head.agreement_ < 8 / 300**0.5  # enough of a thousand rows to be no shuffled ones
    found = [head.predict(outputs[5000 + 100 * start :][:100]).doubts for start in range(9)]
    assert not any(found)


def test_shuffled_classes_are_unlike_and_one_class_cannot_be_told(rng):
    labels = rng.integers(0, 3, 400)
    logits = 4.0 * np.eye(3)[np.where(rng.random(400) < 0.4, labels, rng.integers(0, 3, 400))]
    assert not unlike(logits, labels)
    shuffled = [agreement(softmax(logits, axis=1), rng.permutation(labels)) for _ in range(400)]
    assert abs(np.mean(shuffled)) < 4 / 20  # mean 0 and deviation 1: four standard errors of 400 draws
    assert np.std(shuffled) == pytest.approx(1, abs=4 / 800**0.5)
    rare = (np.arange(400) % 5 == 0).astype(int)  # of 400 rows 272 agree by chance, and 128 could show another order
    assert unlike(4.0 * np.eye(2)[rare], rng.permutation(rare))
    alike = (np.arange(400) < 4).astype(int)
    assert not unlike(4.0 * np.eye(2)[alike], alike[::-1])


def test_classes_that_changed_places_are_named_and_lost_ones_are_not(rng):
    turned, rows = np.array([1, 2, 0, 3, 4, 5, 6, 7, 8, 9]), np.arange(400) % 10  # three in a cycle, 40 rows each
    agree = rng.random(400) < 0.9
    top = np.where(agree, rows, rng.integers(0, 10, 400))
    np.testing.assert_array_equal(exchanged(turned[top], rows, 10), [0, 1, 2])
    assert not exchanged(top, rows, 10).size
    lost = np.where(np.isin(top, [0, 2]), 1, top)  # as another class that stays where it is: no way back
    assert not exchanged(lost, rows, 10).size
    # of two classes the level is 3e-5 / 2: 2^-17 < it < 2^-16
    for n, found in ((17, 2), (16, 0)):
        two = np.repeat([0, 1], n)
        assert exchanged(1 - two, two, 2).size == found


@pytest.mark.filterwarnings("ignore:.*are unlike those of train.*")  # which is true of two of four class means
def test_two_classes_that_changed_places_are_named(folder):
    def rows(n, seed):
        parts = arrays(n, seed)
        few = np.isin(parts["labels"], [1, 2]) & (np.arange(n) % 2 == 0)  # most rows are of the two others
        return ModelOutputs(**parts)[~few]

    def swapped(outputs, name):
        values = getattr(outputs, name)
        return outputs._replaced(**{name: values[:, TURNED] if name == "logits" else TURNED[values]})

    head = aty.load(folder / "head")
    words = r"columns 1 \('dog'\), 2 \('ant'\) of the logits seem to stand in each other's places: by {}, "
    with pytest.warns(UserWarning, match=words.format("the density") + ".* in the head's order"):
        assert len(head.predict(swapped(rows(400, 3), "logits")).doubts) == 1
    with pytest.warns(UserWarning, match=words.format("labels of the outputs")):
        warn_of_other_labels(swapped(rows(400, 3), "labels"))
    with pytest.warns(UserWarning, match=words.format("the density") + ".* labels of train"):
        head.fit(swapped(rows(400, 1), "labels"), rows(400, 2))


def test_the_classes_that_a_prediction_looks_at_are_those_of_the_density(folder):
    head, outputs = aty.load(folder / "head"), ModelOutputs(**arrays(300, 3))
    for step in (1, 7):
        nearest = Nearest(step)
        with aty.blocks.settings(block_rows=40):
            predicted(head, outputs, 0, nearest=nearest)
        expected = head.density_.class_log_density(outputs.embeddings[::step]).argmax(axis=1)
        np.testing.assert_array_equal(nearest.classes(), expected)


@pytest.mark.parametrize("change", ["means", "scale", "none"])
def test_embeddings_of_another_layer_in_calibration_are_warned_of(folder, change):
    train, calibration = (arrays(n, seed) for n, seed in ((400, 1), (400, 2)))
    turned = {"means": lambda x: x + 2, "scale": lambda x: 3 * x, "none": lambda x: x}[change]
    calibration["embeddings"] = turned(calibration["embeddings"])
    skewed = calibration["labels"] < np.arange(400) % 9  # other shares of the classes are no other layer
    calibration = ModelOutputs(**calibration)[skewed]
    head = aty.ReliabilityHead(recalibration=aty.TemperatureScaling(), prediction_sets=aty.SplitConformal())
    refit = aty.load(folder / "head").refit  # of the same training rows, which a bundle no longer has
    if change == "none":
        head.fit(train=ModelOutputs(**train), calibration=calibration)
        refit(calibration)
        return
    with pytest.warns(UserWarning, match="embeddings of the calibration rows are unlike those of train"):
        head.fit(train=ModelOutputs(**train), calibration=calibration)
    message = "unlike those of the rows that the density was fitted on.* trained again needs a new head: `fit`"
    with pytest.warns(UserWarning, match=message):
        refit(calibration)


@pytest.mark.parametrize(
    "density", [{}, {"normalize": "l2"}, {"covariance": "full"}, {"covariance": "diagonal"}], ids=str
)
def test_a_density_has_the_moments_of_its_rows(density):
    outputs = ModelOutputs(**arrays(400, 1))
    rows = ClassMoments.of(outputs, 5, unit="normalize" in density)
    fitted = aty.GaussianAtypicality(**density).fit(outputs.embeddings, outputs.labels)
    stored = ClassMoments.of_density(fitted, np.arange(4), 5)
    np.testing.assert_array_equal(stored.counts, rows.counts)
    np.testing.assert_allclose(stored.means, rows.means, rtol=0, atol=1e-12)
    assert stored.variance == pytest.approx(rows.variance, rel=1e-12)
    own = (rows.counts - 1) * rows.spreads  # a tied covariance is their mean
    if "covariance" in density:
        np.testing.assert_allclose(rows.counts * stored.spreads, np.maximum(own, 0), rtol=1e-12)
    else:
        np.testing.assert_allclose(stored.spreads[:4], own.sum() / 400, rtol=1e-12)


@pytest.mark.parametrize("column", ["ids", "id", "sample"])
def test_files_with_ids_are_joined_by_them(folder, column, rng):
    parts, ids = arrays(300, 3), np.array([f"r{row}" for row in range(300)])
    order = rng.permutation(300)
    np.savez(folder / "rows.npz", logits=parts["logits"], **{"sample" if column == "sample" else "ids": ids})
    lines = [f"{ids[row]},{parts['labels'][row]}" for row in order]
    (folder / "labels.csv").write_text("\n".join([f"{column},labels", *lines]))
    names = {"ids": column} if column == "sample" else {}
    files = [folder / "rows.npz", folder / "labels.csv"]
    np.testing.assert_array_equal(ModelOutputs.load(files, names=names).labels, parts["labels"])
    (folder / "labels.csv").write_text("\n".join([f"{column},labels", *lines[1:], "r999,0"]))
    with pytest.raises(
        ValueError, match=r"'labels\.csv' must have the ids of the files before it, .*2 are on one side"
    ):
        ModelOutputs.load(files, names=names)
    (folder / "labels.csv").write_text("\n".join([f"{column},labels", *lines, lines[0]]))
    with pytest.raises(ValueError, match="some stand there twice"):
        ModelOutputs.load(files, names=names)


@needs("pandas")
def test_tables_whose_index_or_columns_name_another_order_are_refused():
    import pandas as pd

    parts = arrays(300, 3)
    logits, labels = pd.DataFrame(parts["logits"], columns=NAMES), pd.Series(parts["labels"])
    shuffled = labels.sample(frac=1, random_state=0)
    with pytest.raises(ValueError, match="labels must have the index of logits, in its order"):
        ModelOutputs(logits, labels=shuffled)
    with pytest.raises(ValueError, match="site must have the index of labels"):
        ModelOutputs(parts["logits"], labels=shuffled, attributes={"site": labels})
    assert len(ModelOutputs(logits, labels=labels.set_axis(3 * np.arange(300)), class_names=NAMES)) == 300
    with pytest.raises(ValueError, match=r"column 0 is 'cat', and class_names has 'bee' there"):
        ModelOutputs(logits, class_names=NAMES[::-1])


# Other scales and kinds of numbers


@pytest.mark.parametrize("total", [1, 100, 250])
def test_probabilities_percentages_and_votes_are_warned_of(run, total):
    shares = total * softmax(arrays(300, 3)["logits"], axis=1)
    kind = "probabilities" if total == 1 else "percentages or votes"
    text = rf"look like {kind}: none is negative, and each row sums to {total}\."
    with pytest.warns(UserWarning, match=rf"the logits of 'x\.npz' {text}"):
        assert run("predict", "head", "x.npz", "--out", "a.csv", logits=shares, labels=None)[0] == 4
    with pytest.warns(UserWarning, match=f"the logits {text}"):
        aty.TemperatureScaling().fit(shares, arrays(300, 3)["labels"])
    assert aty.validation.common_sum(np.abs(arrays(300, 3)["logits"])) is None


def test_logits_on_another_scale_are_warned_of(folder, run):
    recalibration = aty.AtypicalityAwareRecalibration(class_mixing=False, terms=(), strength=1.0)
    head = aty.ReliabilityHead(recalibration=recalibration, prediction_sets=aty.SplitConformal())
    train, calibration = (ModelOutputs.load(folder / f"{name}.npz") for name in ("train", "cal"))
    head.fit(train=train, calibration=calibration)
    head.save(folder / "aware")
    logits = arrays(300, 3)["logits"]
    assert run("predict", "aware", "x.npz", "--out", "a.csv", logits=logits)[0] == 0  # warnings are errors
    with pytest.warns(UserWarning, match=r"the logits of 'x\.npz' spread over .* calibration rows over"):
        run("predict", "aware", "x.npz", "--out", "a.csv", logits=np.round(100 * logits).astype(int))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.arange(300) % 4 + 1, "Do they count from 1? Subtract 1."),
        (np.arange(300) % 4 * 1.0, "got dtype float64. Convert them with .astype(int)"),
        (np.r_[np.nan, np.arange(299) % 4], "Drop rows without a label: row 0 of 'x.npz' holds NaN."),
        (np.arange(300) % 4 > 1, "names of classes; got dtype bool"),
    ],
    ids=["from 1", "floats", "NaN", "booleans"],
)
def test_labels_of_another_kind_are_explained(run, labels, message):
    for names in (NAMES, None):
        code, said = run("evaluate", "head", "x.npz", labels=labels, class_names=names)
        assert (code, message in said) == (2, True), said


# Swapped, empty and other files


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "x.npz", "head", "--out", "a.csv"), "'x.npz' is a file; a saved head is a folder"),
        (("show", "x.npz"), "'x.npz' is a file; a saved head is a folder"),
        (("fit", "--train", "x.npz", "--calibration", "cal.npz", "--out", "h"), "outputs of 'x.npz' must have emb"),
        (("fit", "--calibration", "one.npz", "--out", "h"), "calibration must have at least 4 rows, and 500"),
        (("export", "head", "--out", "head.txt"), "--out is an ONNX file and must end in .onnx"),
        (("export", "answers", "--out", "a.onnx"), "is an answer head, which has no graph"),
        (("evaluate", "head", "empty.npz"), "'empty.npz' is empty: it has 0 bytes"),
        (("pack", "x.npz", "--class-names", "commas.txt", "--out", "p.npz"), "must name one class per line"),
        (("pack", "counted.csv", "--out", "p.npz"), "If 'logits_*' is meant, pass names={'logits': 'logits_*'}"),
        (("pack", "decimal.csv", "--out", "p.npz"), "such as 'logits_0' in line 2: '0,5'. Write decimal points"),
        (("pack", "semicolons.csv", "--out", "p.npz"), "with ';' in it. Separate columns by commas"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file(run, folder, rng, arguments, message):
    np.savez(folder / "one.npz", **{name: part[:1] for name, part in arrays(4, 0).items() if name != "class_names"})
    (folder / "empty.npz").write_bytes(b"")
    (folder / "commas.txt").write_text(",".join(NAMES))
    (folder / "counted.csv").write_text("logits_1,logits_2\n0.5,1.5\n")
    (folder / "decimal.csv").write_text('logits_0,logits_1\n"0,5","1,5"\n')
    (folder / "semicolons.csv").write_text("labels;site\n1;a\n")
    if "answers" in arguments:
        texts, score = [""] * 60, rng.random(60)
        AnswerHead().fit(Answers(texts, texts, scores={"s": score}, correct=rng.random(60) < score)).save("answers")
    code, said = run(*arguments, embeddings=None)
    assert (code, said.count("\n")) == (2, 1)
    assert message in said


@needs("onnx")
def test_a_network_that_is_no_graph_is_one_line(run, folder):
    (folder / "network.onnx").write_text("hello")
    code, said = run("export", "head", "--network", "network.onnx", "--out", "a.onnx")
    assert (code, said.count("\n")) == (2, 1)
    assert "network must be an ONNX file; 'network.onnx' is none" in said


def test_a_fit_that_does_not_converge_is_one_line(run, monkeypatch):
    from atypicality.recalibration import newton, solver

    def stopped(*_, **__):
        raise newton.NotConvergedError("200 iterations were not enough.")

    monkeypatch.setattr(solver, "minimise", stopped)
    code, said = run("refit", "head", "x.npz", "--out", "h")
    assert (code, said) == (2, "atypicality: 200 iterations were not enough.\n")


def test_a_time_in_the_future_is_refused(run, folder):
    code, said = run("monitor", "head", "watch", "x.npz", "--at", "9000-01-01")
    assert (code, (folder / "watch").exists()) == (2, False)
    assert "not be more than a day after this machine's clock; got 9000-01-01T00:00:00Z" in said


@pytest.mark.parametrize(("name", "part"), [("recalibration", "platt"), ("prediction_sets", None)])
def test_what_is_no_estimator_is_refused_by_the_name_of_the_part(folder, name, part):
    outputs = ModelOutputs.load(folder / "cal.npz")
    with pytest.raises(TypeError, match=rf'{name} must be "auto" or an estimator, such as \w+\(\); got {part!r}\.'):
        aty.ReliabilityHead(**{name: part}).fit(train=outputs[:200], calibration=outputs[200:])


def test_the_headline_of_answers_has_no_sets(rng):
    score = rng.random(200)
    answers = Answers([""] * 200, [""] * 200, scores={"s": score}, correct=rng.random(200) < score)
    said = AnswerHead().fit(answers).predict(answers)
    assert json.dumps(said.summary())  # which keeps its key
    for shown in (said, said[:1]):
        assert " set" not in repr(shown).splitlines()[0]
