"""Names of classes: columns in another order give the same answers at every door, other names are refused."""

import json

import numpy as np
import pytest
from conftest import imported, needs
from numpy.testing import assert_allclose, assert_array_equal

import atypicality as aty
from atypicality.cli import main
from atypicality.datasets import make_world
from atypicality.head import ReliabilityHead
from atypicality.outputs import ModelOutputs, Parts, three_way_split
from atypicality.outputs.class_names import class_order

NAMES = np.array(["boot", "coat", "bag", "dress"])
ORDER = np.array([2, 0, 3, 1])
OTHERS = ["ant", "bee", "cat", "dog"]


def outputs_of(seed, n=900, names=NAMES):
    world = make_world(n, NAMES.size, temperature=2.0, atypical_noise=1.0, random_state=seed)
    return ModelOutputs(world.logits, embeddings=world.embeddings, labels=world.labels, class_names=names)


def turned(outputs, order=ORDER):
    """The same outputs with their columns, and all that belongs to classes, in another order."""
    back = np.argsort(order)
    return ModelOutputs(
        outputs.logits[:, order],
        embeddings=outputs.embeddings,
        labels=back[outputs.labels],
        class_names=outputs.class_names[order],
    )


def renamed(outputs, names):
    return ModelOutputs(outputs.logits, embeddings=outputs.embeddings, labels=outputs.labels, class_names=names)


@pytest.fixture(scope="module")
def data():
    whole = outputs_of(1, 2700)
    return whole[:900], whole[900:1800], whole[1800:]


@pytest.fixture(scope="module")
def head(data):
    return ReliabilityHead().fit(train=data[0], calibration=data[1])


def assert_same_but_for_order(answer, expected, order=ORDER):
    assert_array_equal(answer.proba, expected.proba[:, order])
    assert_array_equal(answer.prediction_set, expected.prediction_set[:, order])
    assert_array_equal(answer.names()[answer.label], expected.names()[expected.label])
    assert_array_equal(answer.atypicality, expected.atypicality)


def test_order_is_where_each_wanted_name_stands():
    assert class_order(NAMES, NAMES[ORDER]).tolist() == ORDER.tolist()
    assert class_order(NAMES, NAMES.copy()) is None
    assert class_order(None, NAMES) is class_order(NAMES, None) is None


def test_everything_that_belongs_to_classes_moves_together():
    outputs = ModelOutputs(
        [[0.0, 1.0, 2.0, 3.0]], labels=["bag"], class_names=NAMES, class_atypicality=[0.0, 10.0, 20.0, 30.0]
    )
    moved = outputs.with_classes(NAMES[ORDER])
    assert moved.logits.tolist() == [[2.0, 0.0, 3.0, 1.0]]
    assert moved.class_names[moved.labels].tolist() == ["bag"]
    assert moved.class_atypicality.tolist() == [20.0, 0.0, 30.0, 10.0]
    assert_array_equal(moved.with_classes(NAMES).logits, outputs.logits)


def test_predict_answers_in_the_order_of_the_outputs(head, data):
    _, _, test = data
    expected, answer = head.predict(test), head.predict(turned(test))
    assert_same_but_for_order(answer, expected)
    assert answer.class_names.tolist() == NAMES[ORDER].tolist()
    assert np.mean(answer.label == turned(test).labels) == np.mean(expected.label == test.labels)


@pytest.mark.parametrize("whose", ["train", "calibration", "both"])
def test_fit_puts_train_and_calibration_into_one_order(data, head, whose):
    train, calibration, test = data
    fitted = ReliabilityHead().fit(
        train=turned(train) if whose != "calibration" else train,
        calibration=turned(calibration) if whose != "train" else calibration,
    )
    expected, answer = head.predict(test), fitted.predict(test)
    # the solver meets the classes in another order: it stops within its tolerance of the same optimum
    assert_allclose(answer.proba, expected.proba, atol=1e-6)
    assert_allclose(answer.atypicality, expected.atypicality, rtol=1e-12)  # sums in another order


def test_refit_keeps_the_order_of_the_density(data, head):
    train, calibration, test = data
    fresh = ReliabilityHead().fit(train=train, calibration=calibration)
    # a fit reads the scores of its choice, expanded squares; a refit measures distances to the nearest class
    assert_allclose(fresh.refit(turned(calibration)).predict(test).proba, head.predict(test).proba, rtol=1e-12)
    assert fresh.class_names_.tolist() == NAMES.tolist()
    fresh.refit(renamed(calibration, None))
    assert fresh.class_names_.tolist() == NAMES.tolist()


def test_parts_are_put_into_one_order(data):
    train, calibration, test = data
    parts = three_way_split(calibration)
    mixed = Parts(parts.recalibration, turned(parts.edges), turned(parts.thresholds, ORDER[::-1]))
    answers = [ReliabilityHead().fit(train=train, calibration=given).predict(test) for given in (parts, mixed)]
    assert_array_equal(answers[0].prediction_set, answers[1].prediction_set)


def test_evaluate_measures_the_same_in_any_order(data, head):
    _, _, test = data
    methods = {"model": "uncalibrated", "head": head, "recalibration": head.recalibration_}
    before, after = aty.evaluate(methods, test), aty.evaluate({"head": head}, turned(test))
    for table in ("overall", "atypicality_groups", "quadrants", "class_groups"):
        expected, found = before.table(table, method="head"), after.table(table, method="head")
        assert [row["metric"] for row in found] == [row["metric"] for row in expected]
        assert_allclose([row["value"] for row in found], [row["value"] for row in expected], rtol=1e-9)
    named = [{row["name"]: row for row in found.table("class_info")} for found in (before, after)]
    for name in NAMES:
        assert named[0][name]["class_atypicality"] == pytest.approx(named[1][name]["class_atypicality"])
    scores = [
        dict(zip((row["name"] for row in found.table("class_info")), (row["value"] for row in rows), strict=True))
        for found in (before, after)
        if (rows := found.table("class_scores", method="head"))
    ]
    assert len(scores) == 2
    assert scores[0] == scores[1]


def test_train_of_evaluate_and_compare_is_put_into_order(data):
    train, _, test = data
    for measure in (aty.evaluate, lambda *args, **options: aty.compare(*args, n_splits=2, **options)):
        expected, found = (measure("uncalibrated", test, train=given) for given in (train, turned(train)))
        for column in ("count", "value"):
            assert_array_equal(found.tables["class_groups"][column], expected.tables["class_groups"][column])


def test_compare_fits_recalibrators_on_densities_in_order(data):
    train, _, test = data
    first, second = (aty.compare("aware", test, train=given, n_splits=1) for given in (train, turned(train)))
    assert_allclose(second.tables["overall"]["value"], first.tables["overall"]["value"], rtol=1e-6)


def test_messages_give_names_of_classes_beside_their_numbers(data):
    quick = {"recalibration": aty.VectorScaling(), "prediction_sets": aty.SplitConformal()}
    without = data[1][data[1].labels != 3]
    with pytest.warns(UserWarning, match=r"labels hold no row of class 3 \('dress'\): its score"):
        ReliabilityHead(**quick).fit(train=data[0], calibration=without)
    quick["prediction_sets"] = aty.ConditionalConformal(groups={"coat": "a", 3: "b"})
    with pytest.raises(ValueError, match=r"missing are 0 \('boot'\), 2 \('bag'\)\.$"):
        ReliabilityHead(**quick).fit(train=data[0], calibration=data[1])


def test_a_message_names_the_same_classes_in_any_order(data):
    recalibration = aty.AtypicalityAwareRecalibration(class_prior="estimate", class_mixing=False, strength=1.0)
    head = ReliabilityHead(recalibration=recalibration, prediction_sets=aty.SplitConformal())
    head.fit(train=data[0], calibration=data[1])
    few, said = data[2][:3], []
    for rows in (few, turned(few)):
        with pytest.raises(ValueError, match=r"classes \d \('\w+'\) and \d \('\w+'\) are confused most") as caught:
            head.predict(rows)
        said.append(str(caught.value))
    assert said[0] == said[1]  # both count columns as the head does


def test_other_names_are_refused_everywhere(data, head):
    train, calibration, test = data
    other = renamed(test, OTHERS)
    match = r"class_names must be those of .*8 are on one side only: 'ant', 'bag', 'bee'.*another model"
    for call in (
        lambda: head.predict(other),
        lambda: head.refit(other),
        lambda: ReliabilityHead().fit(train=other, calibration=calibration),
        lambda: ReliabilityHead().fit(
            train=train, calibration=three_way_split(calibration)._replace(edges=other[:100])
        ),
        lambda: aty.evaluate({"head": head}, other),
        lambda: aty.evaluate("uncalibrated", other, train=train),
        lambda: aty.compare("ts", other, train=train),
        lambda: other.with_classes(NAMES, whose="those of the head"),
    ):
        with pytest.raises(ValueError, match=match):
            call()


def test_a_name_that_is_missing_or_new_is_refused(data, head):
    _, _, test = data
    with pytest.raises(ValueError, match=r"2 are on one side only: 'dress', 'hat'"):
        head.predict(renamed(test, [*NAMES[:3], "hat"]))


def test_without_names_on_one_side_columns_are_in_the_same_order(data, head):
    train, calibration, test = data
    bare = [renamed(outputs, None) for outputs in data]
    answers = [
        head.predict(bare[2]),
        ReliabilityHead().fit(train=bare[0], calibration=calibration).predict(test),
        ReliabilityHead().fit(train=bare[0], calibration=bare[1]).predict(test),
    ]
    named = ReliabilityHead().fit(train=train, calibration=bare[1])
    assert named.class_names_.tolist() == NAMES.tolist()
    for answer in [*answers, named.predict(bare[2])]:
        assert_array_equal(answer.proba, head.predict(test).proba)


def test_names_of_train_that_are_not_the_columns_are_refused(data):
    train, calibration, _ = data
    kept = train[train.labels < 3]
    few = ModelOutputs(embeddings=kept.embeddings, labels=kept.labels, class_names=NAMES[:3])
    with pytest.raises(ValueError, match=r"train must have the 4 classes .* names 3"):
        ReliabilityHead().fit(train=few, calibration=renamed(calibration, None))


def test_commands_compare_names(data, head, tmp_path, capsys):
    head.save(tmp_path / "head")
    turned(data[2]).save(tmp_path / "turned.npz")
    renamed(data[2], OTHERS).save(tmp_path / "other.npz")
    assert main(["predict", str(tmp_path / "head"), str(tmp_path / "turned.npz"), "--out", f"{tmp_path}/a.npz"]) == 0
    with np.load(tmp_path / "a.npz") as found:
        assert_array_equal(found["proba"], head.predict(turned(data[2])).proba)
    for command in ("predict", "evaluate", "report"):
        extra = ["--out", f"{tmp_path}/b.npz"] if command == "predict" else []
        assert main([command, str(tmp_path / "head"), str(tmp_path / "other.npz"), *extra]) == 2
        assert "class_names must be those of" in capsys.readouterr().err


@needs("dask")
@needs("distributed")
def test_files_of_a_cluster_are_put_into_one_order(data, tmp_path):
    from atypicality.integrations import dask as cluster

    _, calibration, _ = data
    calibration[:450].save(tmp_path / "a")
    turned(calibration[450:]).save(tmp_path / "b")
    renamed(calibration[450:], OTHERS).save(tmp_path / "c")
    vector = aty.VectorScaling(strength=0.01)
    paths = [str(tmp_path / name) for name in "abc"]
    found = cluster.fit(vector, paths[:2])
    expected = aty.VectorScaling(strength=0.01).fit(calibration.logits, calibration.labels)
    assert_allclose(found.class_scores_, expected.class_scores_, atol=1e-6)  # the solver's tolerance
    with pytest.raises(ValueError, match="those of the other files"):
        cluster.fit(vector, [paths[0], paths[2]])


def test_the_torch_module_takes_the_order_of_the_model(data, head):
    torch = imported("torch")
    from atypicality.integrations.torch import ReliabilityModule

    _, _, test = data
    other, plain = turned(test), ReliabilityModule.from_head(head)
    module = ReliabilityModule.from_head(head, class_names=other.class_names)
    assert module.class_names == tuple(other.class_names)
    assert plain.class_names == tuple(NAMES)
    rows = torch.from_numpy(np.array(test.embeddings))
    found = module(torch.from_numpy(np.array(other.logits)), rows)
    expected = plain(torch.from_numpy(np.array(test.logits)), rows)
    assert_array_equal(found.proba, expected.proba[:, ORDER])
    assert_array_equal(found.prediction_set, expected.prediction_set[:, ORDER])
    assert_array_equal(other.class_names[found.label], NAMES[expected.label])
    with pytest.raises(ValueError, match="those of the head"):
        ReliabilityModule.from_head(head, class_names=OTHERS)
    with pytest.raises(ValueError, match="must name the 4 classes"):
        ReliabilityModule.from_head(head, class_names=OTHERS[:3])


@pytest.mark.usefixtures("graphs_run_here")
@needs("onnx")
@needs("onnxruntime")
def test_an_onnx_file_that_names_other_classes_is_not_written(data, head, tmp_path, monkeypatch):
    from atypicality.shipping.onnx import export

    metadata = export._metadata
    head.export_onnx(tmp_path / "right.onnx")
    changed = json.dumps(NAMES[ORDER].tolist())
    monkeypatch.setattr(export, "_metadata", lambda *given: metadata(*given) | {"class_names": changed})
    with pytest.raises(RuntimeError, match="does not name the classes as the head does"):
        head.export_onnx(tmp_path / "wrong.onnx")
    assert not (tmp_path / "wrong.onnx").exists()


# Labels that could be columns or names


@pytest.mark.parametrize("names", [[2, 0, 1], ["2", "0", "1"], ["02", "00", "01"]])
def test_integers_that_could_be_columns_or_names_are_refused(names):
    with pytest.raises(ValueError, match=r"labels must be text where class_names are integers.*name '0'"):
        ModelOutputs(np.zeros((3, 3)), labels=[0, 1, 2], class_names=names)
    texts = sorted(map(str, names))
    assert ModelOutputs(np.zeros((3, 3)), labels=texts, class_names=names).labels.tolist() == [1, 2, 0]


def test_integers_with_one_reading_are_columns():
    zeros = np.zeros((2, 3))
    assert ModelOutputs(zeros, labels=[2, 0], class_names=[0, 1, 2]).labels.tolist() == [2, 0]  # both agree
    assert ModelOutputs(zeros, labels=[0, 2], class_names=[1, 2, 3]).labels.tolist() == [0, 2]  # 0 is no name
    assert ModelOutputs(zeros, labels=[1, 1], class_names=[7, 1, 3]).labels.tolist() == [1, 1]  # both agree
    assert ModelOutputs(zeros, labels=[1, 2], class_names=["a", "b", "3"]).labels.tolist() == [1, 2]
    assert ModelOutputs(np.zeros((0, 3)), labels=[], class_names=[3, 1, 2]).labels.size == 0
    with pytest.raises(ValueError, match="labels must be text"):  # 3 is no column
        ModelOutputs(zeros, labels=[1, 3], class_names=[1, 2, 3])


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".parquet", ""])
def test_files_keep_labels_of_integer_names(tmp_path, ending):
    if ending == ".parquet":
        imported("pyarrow")
    outputs = ModelOutputs(np.eye(3), labels=["3", "1", "2"], class_names=[1, 3, 2])
    outputs.save(tmp_path / f"outputs{ending}")
    assert_array_equal(ModelOutputs.load(tmp_path / f"outputs{ending}").labels, [1, 0, 2])


def test_a_density_fitted_on_integers_that_could_be_names_is_refused(data):
    train, calibration, test = (renamed(outputs, None) for outputs in data)
    named = ModelOutputs(
        calibration.logits,
        embeddings=calibration.embeddings,
        labels=np.array(list("3102"))[calibration.labels],
        class_names=list("3102"),
    )
    density = aty.GaussianAtypicality().fit(train.embeddings, train.labels)
    for call in (
        lambda: ReliabilityHead().fit(train=density, calibration=named),
        lambda: aty.evaluate("uncalibrated", named, train=density),
    ):
        with pytest.raises(ValueError, match="labels that a density was fitted with must be text"):
            call()
    text = aty.GaussianAtypicality().fit(train.embeddings, np.array(list("3102"))[train.labels])
    answer = ReliabilityHead().fit(train=text, calibration=named).predict(test)
    expected = ReliabilityHead(aty.GaussianAtypicality()).fit(train=train, calibration=calibration).predict(test)
    assert_allclose(answer.proba, expected.proba, atol=1e-6)


def test_a_scikit_learn_classifier_may_have_integer_classes_in_any_part(seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(1, 4, 600)
    X = rng.normal(size=(600, 2)) + y[:, None]
    quick = ReliabilityHead(recalibration=aty.TemperatureScaling(), prediction_sets=aty.SplitConformal())
    model = aty.AtypicalityAwareClassifier(head=quick).fit(X, y)
    few = y < 3
    outputs = model.outputs(X[few], y[few])  # positions 0 and 1 of the classes 1, 2, 3
    assert outputs.class_names[outputs.labels].tolist() == y[few].astype(str).tolist()
    assert model.score(X, y) > 0.6
