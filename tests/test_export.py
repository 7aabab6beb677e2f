"""A head as an ONNX graph: the same answers as in Python, or one clear error before anything is written."""

import copy
import json
import stat
import sys
import warnings
from functools import cache

import numpy as np
import pytest
from conftest import load_outputs, needs
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from atypicality import (
    AdaptiveTemperatureScaling,
    AtypicalityAwareConformal,
    AtypicalityAwareRecalibration,
    EnsembleTemperatureScaling,
    GaussianAtypicality,
    GroupTemperatureScaling,
    ModelOutputs,
    NeighborAtypicality,
    QuantileGroups,
    SplitConformal,
    VectorScaling,
    __version__,
)
from atypicality.conformal.scores import ScoreRule, prediction_sets
from atypicality.datasets import load_fashion_mnist_lt
from atypicality.formula import advice_numbers, guarded, moved
from atypicality.groups import QUADRANTS
from atypicality.head import ReliabilityHead
from atypicality.head.quantiles import QuantileScale
from atypicality.shipping.onnx import check as export_check
from atypicality.shipping.onnx import export
from atypicality.shipping.onnx import graph as export_graph
from atypicality.shipping.onnx.namespace import GraphNamespace

pytestmark = needs("onnx", "onnxruntime")

NUMBERS = ("probabilities", "confidence", "atypicality", "atypicality_quantile")
ROUNDING = 1.5e-7
"""Both sides round float64 results that agree to about 1e-14 to float32: at most one unit of float32, 1.2e-7, apart."""
DENSITIES = {
    "full": GaussianAtypicality("full", shrinkage=0.1),
    "diagonal": GaussianAtypicality("diagonal"),
    "marginal": GaussianAtypicality(marginal=True),
    "full marginal": GaussianAtypicality("full", shrinkage=0.1, marginal=True),
    "components": GaussianAtypicality(n_components=8, shrinkage="oas"),
    "full components": GaussianAtypicality("full", n_components=8),
    "diagonal components": GaussianAtypicality("diagonal", n_components=8),
    "float32": GaussianAtypicality(precision="float32"),
    "full float32": GaussianAtypicality("full", shrinkage=0.1, precision="float32"),
}


@cache
def fashion():
    return load_fashion_mnist_lt()


@cache
def density():
    embeddings, labels = fashion().train.need("embeddings", "labels")
    return GaussianAtypicality().fit(embeddings, labels)


def fitted(calibration=None, train=None, **parts):
    """A head of fewer rows than there are, unless told: a graph is made of what they lead to, not of them."""
    calibration = fashion().calibration[:1500] if calibration is None else calibration
    return ReliabilityHead(**parts).fit(train=density() if train is None else train, calibration=calibration)


@cache
def default_head():
    return fitted(fashion().calibration)


def joined(*outputs):
    return ModelOutputs(
        np.concatenate([part.logits for part in outputs]),
        embeddings=np.concatenate([part.embeddings for part in outputs]),
    )


def session_of(content):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def answers(session, rows):
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, rows), strict=True))


def exported(head, folder, *, verify=False):
    path = folder / "head.onnx"
    head.export_onnx(path, verify=verify)
    return session_of(str(path))


def inputs_of(session, outputs):
    kinds = {"logits": np.float32, "embeddings": np.float32, "atypicality": np.float64}
    return {node.name: np.asarray(getattr(outputs, node.name), kinds[node.name]) for node in session.get_inputs()}


def predicted(head, outputs):
    """What Python says of float32 logits, under the names of the graph's outputs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*drifted.*")
        answer = head.predict(outputs)
    found = {
        "label": answer.label,
        "confidence": answer.confidence,
        "probabilities": answer.proba,
        "prediction_set": answer.prediction_set,
        "valid": np.ones(len(answer), bool),
    }
    if answer.quadrant is not None:
        found |= {name: getattr(answer, name) for name in ("atypicality", "atypicality_quantile")}
        found["quadrant"] = np.array([QUADRANTS.index(name) for name in answer.quadrant])
    return found | {"advice": advice_numbers(answer.advice)}


def check_same(session, head, outputs):
    found, right = answers(session, inputs_of(session, outputs)), predicted(head, outputs)
    assert set(found) == set(right)
    for name in ("probabilities", "confidence"):
        np.testing.assert_allclose(found[name], right[name], rtol=0, atol=ROUNDING)
    for name in set(right) - set(NUMBERS):
        np.testing.assert_array_equal(found[name], right[name], err_msg=name)
    if "atypicality" in right:
        np.testing.assert_allclose(found["atypicality"], right["atypicality"], rtol=1e-10)
        # the scale steps from 0 to 1 / n at the least atypical held-out row, perhaps one rounding earlier or later
        step = head.quantiles_.levels[0] + 1e-9
        np.testing.assert_allclose(found["atypicality_quantile"], right["atypicality_quantile"], rtol=0, atol=step)


# the same answers


def test_ten_thousand_rows_of_the_default_head_are_answered_alike(tmp_path):
    session, (_, calibration, test) = exported(default_head(), tmp_path, verify=True), fashion()
    rows = joined(calibration, test)  # with the very rows that set the thresholds
    assert len(rows) == 10_000
    check_same(session, default_head(), rows)


@pytest.mark.parametrize("name", ["cifar10-wrn28-10", "cifar10lt-wrn28-4"])
def test_ten_thousand_rows_of_cifar_are_answered_alike(name, tmp_path):
    test = ModelOutputs(**load_outputs(name, "test"))
    train = GaussianAtypicality.from_statistics(**load_outputs(name, "train_statistics"))
    head = ReliabilityHead().fit(train=train, calibration=test[:5000])
    check_same(exported(head, tmp_path), head, test)


@pytest.mark.usefixtures("graphs_run_here")
@pytest.mark.parametrize("name", DENSITIES)
def test_every_density_has_a_graph_that_says_the_same(name, tmp_path):
    head = fitted(train=fashion().train, density=DENSITIES[name])
    session = exported(head, tmp_path, verify="components" in name or "float32" in name)
    if "float32" not in name:  # rounding alone may then move a row across an edge
        check_same(session, head, fashion().test[:2000])
        return
    found, right = answers(session, inputs_of(session, fashion().test)), predicted(head, fashion().test)
    np.testing.assert_allclose(found["probabilities"], right["probabilities"], rtol=0, atol=1e-5)


def test_covariances_of_different_rank_are_a_graph_that_says_the_same(tmp_path):
    with pytest.warns(UserWarning, match="the covariance of 1 of 10 classes has rank 43 of 48"):
        head = fitted(train=fashion().train, density=GaussianAtypicality("full"))
    check_same(exported(head, tmp_path), head, fashion().test[:2000])


def test_classes_that_the_density_never_saw_or_names_in_another_order_keep_their_columns(tmp_path):
    train, calibration, test = fashion().train, fashion().calibration[:1500], fashion().test[:2000]
    names = np.array(list("jihgfedcba"))  # sorted, the density's columns are those of the logits reversed
    named = GaussianAtypicality().fit(train.embeddings[train.labels > 2], names[train.labels[train.labels > 2]])
    outputs = ModelOutputs(
        calibration.logits, embeddings=calibration.embeddings, labels=calibration.labels, class_names=names
    )
    head = fitted(outputs, train=named)
    check_same(exported(head, tmp_path), head, ModelOutputs(test.logits, embeddings=test.embeddings))


@pytest.mark.usefixtures("graphs_run_here")
def test_given_atypicality_is_an_input_of_the_graph(tmp_path):
    calibration, test = fashion().calibration[:1500], fashion().test[:2000]

    def with_atypicality(outputs):
        rarity = density().atypicality(outputs.embeddings)
        return ModelOutputs(outputs.logits, labels=outputs.labels, atypicality=rarity)

    head = ReliabilityHead().fit(calibration=with_atypicality(calibration))
    session = exported(head, tmp_path, verify=True)
    assert [node.name for node in session.get_inputs()] == ["logits", "atypicality"]
    check_same(session, head, with_atypicality(test))


@pytest.mark.parametrize("recalibration", ["auto", VectorScaling(), EnsembleTemperatureScaling()], ids=str)
def test_masked_classes_stay_masked_in_a_graph(recalibration, tmp_path, rng):
    calibration = fashion().calibration[:2000]
    logits = calibration.logits.copy()
    masked = rng.random(logits.shape) < 0.4
    masked[np.arange(len(logits)), calibration.labels] = False
    masked[np.arange(len(logits)), (calibration.labels + 1) % 10] = False
    logits[masked] = -np.inf
    outputs = ModelOutputs(logits, embeddings=calibration.embeddings, labels=calibration.labels)
    head = fitted(outputs if recalibration == "auto" else None, recalibration=recalibration)
    check_same(exported(head, tmp_path), head, outputs)


def test_the_floor_holds_there_too(tmp_path):
    head, test = default_head(), fashion().test[:500]
    logits = 1e6 * test.logits.astype(np.float32)
    logits[::3, 1] = -np.inf
    far = ModelOutputs(logits, embeddings=test.embeddings)
    session = exported(head, tmp_path)
    probs = answers(session, inputs_of(session, far))["probabilities"]
    masked = np.isneginf(logits)
    assert (probs[masked] == 0).all()
    least = probs[~masked].astype(np.float64).min() / head.recalibration_.floor_
    assert 1 - 1e-6 <= least < 1.1  # some would be smaller


def test_a_thousand_classes_are_a_graph_that_says_the_same(tmp_path, rng):
    k, d = 1000, 16
    means = rng.normal(size=(k, d))

    def world(n):
        labels = rng.permutation(n) % k
        x = (means[labels] + 0.7 * rng.normal(size=(n, d))).astype(np.float32)
        return ModelOutputs((x @ means.T).astype(np.float32), embeddings=x, labels=labels)

    parts = {"recalibration": AtypicalityAwareRecalibration(class_mixing=False, class_scores=False)}
    train = world(3000)
    head = fitted(world(2000), train=GaussianAtypicality().fit(train.embeddings, train.labels), **parts)
    check_same(exported(head, tmp_path), head, world(500))


def test_infinite_thresholds_give_full_sets(tmp_path):
    with pytest.warns(UserWarning, match="needs at least 999 calibration rows"):
        head = fitted(fashion().calibration[:400], prediction_sets=SplitConformal("aps", alpha=0.001))
    session = exported(head, tmp_path)
    assert answers(session, inputs_of(session, fashion().test))["prediction_set"].all()


# rows that cannot be answered


def test_bad_rows_get_the_full_set_and_leave_the_others_alone(tmp_path):
    session = exported(default_head(), tmp_path)
    good = inputs_of(session, fashion().test[:50])
    bad = export_check.hostile_rows({name: array[:1] for name, array in good.items()})
    n = len(bad["logits"])
    assert n == 9
    mixed = answers(session, {name: np.concatenate([bad[name], array, bad[name]]) for name, array in good.items()})
    alone = answers(session, good)
    spoilt = np.r_[:n, n + 50 : 2 * n + 50]
    assert mixed["prediction_set"][spoilt].all()
    assert not mixed["valid"][spoilt].any()
    assert np.isnan(mixed["probabilities"][spoilt]).all()
    assert (mixed["quadrant"][spoilt] == 3).all()
    for name, array in alone.items():
        if name in NUMBERS:  # products may add up in another order
            np.testing.assert_allclose(mixed[name][n : n + 50], array, rtol=1e-6, atol=1e-9)
        else:
            np.testing.assert_array_equal(mixed[name][n : n + 50], array)
    assert alone["valid"].all()


def test_every_row_bad(tmp_path):
    session = exported(default_head(), tmp_path)
    rows = {"logits": np.full((3, 10), np.nan, np.float32), "embeddings": np.zeros((3, 48), np.float32)}
    assert answers(session, rows)["prediction_set"].all()


def test_embeddings_at_the_ends_of_float32_are_answered(tmp_path):
    session = exported(default_head(), tmp_path)
    rows = {name: array.copy() for name, array in inputs_of(session, fashion().test[:3]).items()}
    rows["embeddings"][0], rows["embeddings"][1] = np.finfo(np.float32).max, np.finfo(np.float32).tiny
    found = answers(session, rows)
    assert found["valid"].all()
    assert np.isfinite(found["atypicality"]).all()
    assert found["atypicality_quantile"][0] == 1


@pytest.mark.usefixtures("graphs_run_here")
def test_no_class_left_after_a_prior_of_zero_is_not_valid(tmp_path):
    prior = np.r_[0.0, np.full(9, 1 / 9)]
    head = fitted(recalibration=AtypicalityAwareRecalibration(class_prior=prior))
    session = exported(head, tmp_path, verify=True)
    rows = inputs_of(session, fashion().test[:2])
    rows["logits"] = np.array([[1.0] + [-np.inf] * 9, [1.0] * 10], np.float32)
    found = answers(session, rows)
    assert found["valid"].tolist() == [False, True]
    assert found["prediction_set"][0].all()
    assert found["probabilities"][1, 0] == 0


@pytest.mark.usefixtures("graphs_run_here")
def test_a_group_without_a_temperature_is_not_valid(tmp_path):
    head = fitted(recalibration=GroupTemperatureScaling(2), prediction_sets=SplitConformal("aps"))
    scaling = head.recalibration_
    edge = scaling.quantiles_.edges_[0]
    scaling.quantiles_ = QuantileGroups.from_edges([edge - 1, edge])
    scaling.groups_ = np.array([0, 2])  # as if no calibration row had fallen between the edges
    session = exported(head, tmp_path, verify=True)
    rarity = density().atypicality(fashion().test.embeddings)
    found = answers(session, inputs_of(session, fashion().test))
    np.testing.assert_array_equal(found["valid"], (rarity <= edge - 1) | (rarity > edge))


# batches


@pytest.mark.parametrize("name", ["tied", "full"])
def test_batches_of_no_row_and_of_one(name, tmp_path):
    head = default_head() if name == "tied" else fitted(train=fashion().train, density=DENSITIES[name])
    session = exported(head, tmp_path)
    rows = inputs_of(session, fashion().test[:20])
    empty = answers(session, {name: array[:0] for name, array in rows.items()})
    assert empty["probabilities"].shape == empty["prediction_set"].shape == (0, 10)
    assert all(empty[name].shape == (0,) for name in ("valid", "quadrant", "atypicality", "atypicality_quantile"))
    whole = answers(session, rows)
    for i in range(20):
        one = answers(session, {name: array[i : i + 1] for name, array in rows.items()})
        np.testing.assert_array_equal(one["prediction_set"], whole["prediction_set"][i : i + 1])
        np.testing.assert_allclose(one["probabilities"], whole["probabilities"][i : i + 1], rtol=0, atol=ROUNDING)


# the pieces, against NumPy


def piece(build, width):
    """A session for a graph with one float64 input x and one output y."""
    graph = export_graph.Graph()
    xp = GraphNamespace(graph, 4)
    xp.output("y", build(xp, xp.input("x", np.float64, width)), width)
    return session_of(graph.model("piece").SerializeToString())


finite = st.floats(-1e6, 1e6, width=32)


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.lists(finite, max_size=20, unique=True), st.lists(finite, min_size=1, max_size=20))
def test_cut_is_searchsorted(edges, values):
    edges, values = np.sort(np.array(edges, float)), np.array(values + edges)[:, None]
    for side in ("left", "right"):
        session = piece(
            lambda xp, x, side=side: xp.searchsorted(xp.asarray(edges), x, side=side) + 0 * xp.astype(x, np.int64), 1
        )
        np.testing.assert_array_equal(answers(session, {"x": values})["y"], np.searchsorted(edges, values, side))


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.lists(finite, min_size=1, max_size=30), st.lists(finite, min_size=1, max_size=20))
def test_interpolation_is_the_quantile_scale(held_out, values):
    scale, values = QuantileScale.from_rows(held_out), np.array(values + held_out)
    session = piece(lambda xp, x: moved(scale.formula(), xp.asarray).quantiles(xp, x), 1)
    np.testing.assert_allclose(answers(session, {"x": values[:, None]})["y"][:, 0], scale(values), rtol=0, atol=1e-12)


@cache
def sets_session(score, nonempty, threshold):
    sets = SplitConformal(score, nonempty=nonempty)
    sets.threshold_, sets.k_reg_, sets.penalty_, sets.n_classes_ = threshold, 1, 0.0625, 4
    graph = export_graph.Graph()
    xp = GraphNamespace(graph, 4)
    formula = moved(sets.formula(), xp.asarray)
    xp.output("sets", formula(xp, xp.input("probs", np.float32, 4), None, None), 4)
    return session_of(graph.model("sets").SerializeToString())


@pytest.mark.parametrize("nonempty", ["score", None])
@pytest.mark.parametrize("score", ["lac", "aps", "raps", "saps"])
@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.5, 0.75, 0.875, 1.0])
def test_ties_and_scores_that_equal_the_threshold(score, nonempty, threshold):
    # all rows of eighths that sum to 1: ties everywhere, and every mass a possible threshold
    eighths = np.array([row for row in np.ndindex(9, 9, 9, 9) if sum(row) == 8]) / 8
    right = prediction_sets(eighths, np.full(len(eighths), threshold), ScoreRule(score, nonempty, 1, 0.0625))
    found = sets_session(score, nonempty, threshold).run(None, {"probs": eighths.astype(np.float32)})[0]
    np.testing.assert_array_equal(found, right)


@hypothesis_settings(max_examples=60, deadline=None)
@given(arrays(np.float32, (8, 4), elements=st.floats(0, 1, width=32, allow_subnormal=True)))
def test_sets_of_any_probabilities(weights):
    weights[weights.sum(axis=1) == 0] = 1
    probs = (weights / weights.sum(axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
    for score in ("lac", "aps", "raps", "saps"):
        right = prediction_sets(probs, np.full(8, 0.875), ScoreRule(score, "score", 1, 0.0625))
        found = sets_session(score, "score", 0.875).run(None, {"probs": probs})[0]
        np.testing.assert_array_equal(found, right)


# the file


def test_metadata_and_bytes(tmp_path):
    import onnx

    head = fitted(outputs_with_names())
    head.export_onnx(tmp_path / "one.onnx", verify=False)
    head.export_onnx(tmp_path / "two.onnx", verify=False)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    model = onnx.load(tmp_path / "one.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain for entry in model.opset_import} == {""}
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert metadata["atypicality_version"] == __version__
    assert metadata["alpha"] == "0.1"
    assert json.loads(metadata["class_names"]) == ["T-shirt", "über", *"cdefghij"]
    assert json.loads(metadata["quadrants"]) == list(QUADRANTS)
    assert "3 untrustworthy" in model.doc_string


def outputs_with_names():
    calibration = fashion().calibration
    return ModelOutputs(
        calibration.logits,
        embeddings=calibration.embeddings,
        labels=calibration.labels,
        class_names=["T-shirt", "über", *"cdefghij"],
    )


def test_a_head_from_disk_gives_the_same_file(tmp_path):
    from atypicality.shipping.bundle import load

    default_head().save(tmp_path / "bundle")
    default_head().export_onnx(tmp_path / "one.onnx", verify=False)
    load(tmp_path / "bundle").export_onnx(tmp_path / "two.onnx", verify=False)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()


def test_no_file_is_left_behind_but_the_graph(tmp_path):
    exported(default_head(), tmp_path, verify=True)
    assert [path.name for path in tmp_path.iterdir()] == ["head.onnx"]


# what cannot be a graph


@pytest.mark.parametrize(
    ("part", "value", "match"),
    [
        ("density_", NeighborAtypicality(), "its density is NeighborAtypicality"),
        (
            "recalibration_",
            AdaptiveTemperatureScaling(),
            "its recalibration is AdaptiveTemperatureScaling, whose temperatures follow from",
        ),
        ("prediction_sets_", SplitConformal("aps", randomized=True), "its prediction_sets has randomized=True"),
        ("prediction_sets_", AtypicalityAwareConformal(randomized=True), "its prediction_sets has randomized=True"),
    ],
    ids=["neighbours", "network", "randomised", "randomised aware"],
)
def test_parts_that_cannot_be_a_graph(part, value, match, tmp_path):
    head = copy.copy(default_head())
    setattr(head, part, value)
    with pytest.raises(ValueError, match=f"cannot be an ONNX graph: {match}.*bundle instead"):
        head.export_onnx(tmp_path / "head.onnx")
    assert not list(tmp_path.iterdir())


def test_neighbours_cannot_be_a_graph(tmp_path):
    head = ReliabilityHead(NeighborAtypicality()).fit(fashion().train[:500], fashion().calibration[:1000])
    with pytest.raises(ValueError, match="its density is NeighborAtypicality"):
        head.export_onnx(tmp_path / "head.onnx")


def test_all_reasons_come_at_once(tmp_path):
    head = copy.copy(default_head())
    head.density_, head.recalibration_ = NeighborAtypicality(), object()
    head.prediction_sets_ = SplitConformal("aps", randomized=True)
    with pytest.raises(ValueError, match=r"density is Neighbor.*; its recalibration is object.*; its prediction_sets"):
        head.export_onnx(tmp_path / "head.onnx")
    head.prediction_sets_ = object()
    with pytest.raises(ValueError, match="its prediction_sets is object, which has no formula of its own"):
        head.export_onnx(tmp_path / "head.onnx")


def test_given_groups_cannot_be_a_graph(tmp_path):
    head = fitted(recalibration=GroupTemperatureScaling())
    head.recalibration_.quantiles_ = None
    with pytest.raises(ValueError, match="whose temperatures follow from given groups"):
        head.export_onnx(tmp_path / "head.onnx")


def test_a_head_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(export_graph, "LARGEST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"constants of more than .* GiB, and an ONNX file holds no more"):
        default_head().export_onnx(tmp_path / "head.onnx")
    assert not list(tmp_path.iterdir())


def test_an_unfitted_head_cannot_be_a_graph(tmp_path):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        ReliabilityHead().export_onnx(tmp_path / "head.onnx")


def test_bad_paths_and_options_are_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="is a folder, which is not replaced"):
        default_head().export_onnx(tmp_path)
    with pytest.raises(NotADirectoryError, match="cannot be written"):
        default_head().export_onnx(tmp_path / "file" / "head.onnx")
    with pytest.raises(ValueError, match="verify must be one of True, False; got 'yes'"):
        default_head().export_onnx(tmp_path / "head.onnx", verify="yes")


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModuleNotFoundError, match=r"ONNX export needs onnx: pip install 'atypicality\[onnx\]'"):
        default_head().export_onnx(tmp_path / "head.onnx")


def test_a_missing_runtime_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModuleNotFoundError, match=r"verify=True needs onnxruntime: pip install 'atypicality\[onnx\]'"):
        default_head().export_onnx(tmp_path / "head.onnx")
    assert not list(tmp_path.iterdir())


# the comparison on export


def wrong_set(verdict):
    return verdict._replace(prediction_set=~verdict.prediction_set)


def wrong_softmax(verdict):
    return verdict._replace(proba=verdict.proba + 2e-5)


@pytest.mark.usefixtures("graphs_run_here")
@pytest.mark.parametrize(
    ("fault", "match"),
    [
        (wrong_set, "prediction_set differs in .* entries"),
        (wrong_softmax, "probabilities differs in .* entries, first in row 0"),
    ],
)
def test_a_graph_that_answers_otherwise_is_not_written(fault, match, tmp_path, monkeypatch):
    path = tmp_path / "head.onnx"
    path.write_bytes(b"old")
    monkeypatch.setattr(export, "guarded", lambda *rows: fault(guarded(*rows)))
    with pytest.raises(RuntimeError, match=f"does not answer as the head does.*{match}"):
        default_head().export_onnx(path)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["head.onnx"]


@pytest.mark.parametrize(
    ("program", "match"),
    [
        ("kill -SEGV $$", "ended with code -11"),
        ("echo oh no >&2; exit 3", "code 3 .*: oh no"),
        ("sleep 9", "within 0.3"),
    ],
    ids=["crash", "error", "hang"],
)
def test_a_runtime_that_crashes_or_hangs_is_noticed(program, match, tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(export_check, "PATIENCE", 0.3 if "sleep" in program else 60.0)
    with pytest.raises(RuntimeError, match=match):
        default_head().export_onnx(tmp_path / "head.onnx")
    assert not (tmp_path / "head.onnx").exists()
