"""The torch module of a head: the same numbers as the head in Python, on any float type, and calm about bad rows."""

import io
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import imported, needs
from numpy.testing import assert_allclose, assert_array_equal

import atypicality as aty
from atypicality.datasets import make_world
from atypicality.groups import QUADRANTS
from atypicality.head import ReliabilityHead
from atypicality.outputs import ModelOutputs

torch = imported("torch")
from atypicality.integrations.torch import ReliabilityModule  # noqa: E402 - needs torch

TIED = aty.GaussianAtypicality()
PAPER = aty.AtypicalityAwareRecalibration.paper()
RAPS = aty.AtypicalityAwareConformal(n_groups=(2, 2))


def outputs_of(n, seed, **options):
    world = make_world(n, random_state=seed, atypical_noise=1.0, **options)
    logits = world.logits.astype(np.float32)
    logits[::17, 2] = -np.inf  # masked classes
    labels = np.where(np.isneginf(logits[np.arange(n), world.labels]), 0, world.labels)
    return ModelOutputs(logits, embeddings=world.embeddings.astype(np.float32), labels=labels)


def fitted(density=TIED, recalibration=PAPER, sets=RAPS, seed=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = ReliabilityHead(density, recalibration, sets)
        return head.fit(train=outputs_of(400, seed), calibration=outputs_of(900, seed + 1))


def predicted(head, outputs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return head.predict(outputs)


def answered(module, outputs):
    embeddings = None if module.n_features is None else torch.from_numpy(np.array(outputs.embeddings))
    given = None if outputs.atypicality is None else torch.from_numpy(outputs.atypicality)
    return module(torch.from_numpy(np.array(outputs.logits)), embeddings, given)


def assert_equal_answers(head, outputs):
    ours, theirs = answered(ReliabilityModule.from_head(head), outputs), predicted(head, outputs)
    assert ours.valid.all()
    # the same formula in float64, summed in another order, then rounded to the type of the logits
    epsilon = np.finfo(theirs.proba.dtype).eps
    assert_allclose(ours.proba, theirs.proba, rtol=0, atol=max(epsilon, 1e-12))
    assert ours.proba.numpy().dtype == theirs.proba.dtype
    assert_array_equal(ours.label, theirs.label)
    # equal probabilities have equal sets; a last bit of a probability can move a score across a threshold it equals
    rarity = {} if isinstance(head.prediction_sets_, aty.SplitConformal) else {"atypicality": ours.atypicality.numpy()}
    assert_array_equal(ours.prediction_set, head.prediction_sets_.predict_set(ours.proba.numpy(), **rarity))
    assert (ours.prediction_set.numpy() != theirs.prediction_set).mean() < 0.01
    assert_allclose(ours.confidence, theirs.confidence, rtol=0, atol=max(epsilon, 1e-12))
    if theirs.atypicality is None:
        assert ours.atypicality is ours.quadrant is None
        return
    assert_allclose(ours.atypicality, theirs.atypicality, rtol=1e-10)
    assert_allclose(ours.atypicality_quantile, theirs.atypicality_quantile, atol=1e-9)
    assert_array_equal(np.array(QUADRANTS)[ours.quadrant], theirs.quadrant)


NEIGHBOURS = {
    "mean": aty.NeighborAtypicality(),
    "cosine": aty.NeighborAtypicality(3, reduction="kth", metric="cosine"),
    "per-class": aty.NeighborAtypicality(2, reduction="kth", per_class=True),
    "min": aty.NeighborAtypicality(2, reduction="min"),
}
RECALIBRATIONS = {
    "aware": aty.AtypicalityAwareRecalibration(strength=0.01),
    "aware-diagonal": aty.AtypicalityAwareRecalibration(class_mixing="diagonal", strength=0.1, class_density=False),
    "aware-none": aty.AtypicalityAwareRecalibration(covariates=(), class_mixing=False, strength=0.1),
    "prior": aty.AtypicalityAwareRecalibration(strength=0.1, class_prior=[0.1, 0.2, 0.3, 0.4, 0.0]),
    "temperature": aty.TemperatureScaling(),
    "vector": aty.VectorScaling(strength=0.01),
    "grouped": aty.GroupTemperatureScaling(3),
}


def test_a_row_of_zeros_has_no_direction(seed):
    module = ReliabilityModule.from_head(fitted(density=NEIGHBOURS["cosine"], seed=seed))
    embeddings = torch.ones(2, module.n_features)
    embeddings[0] = 0
    assert module(torch.zeros(2, 5), embeddings).valid.tolist() == [False, True]


def test_double_logits_and_rows_far_outside(seed):
    head, outputs = fitted(recalibration=RECALIBRATIONS["aware"], seed=seed), outputs_of(200, seed + 2)
    assert_equal_answers(head, ModelOutputs(outputs.logits.astype(float), embeddings=outputs.embeddings))
    assert_equal_answers(head, ModelOutputs(outputs.logits * 30, embeddings=outputs.embeddings * 20))


def test_the_floor_holds_there_too(seed):
    head, outputs = fitted(recalibration=RECALIBRATIONS["prior"], seed=seed), outputs_of(200, seed + 2)
    head.recalibration_.largest_spread_ *= 1e6  # as if it had seen such rows
    far = ModelOutputs(outputs.logits * 1e6, embeddings=outputs.embeddings)
    found = answered(ReliabilityModule.from_head(head), far).proba.numpy()
    masked = np.isneginf(far.logits) | (np.arange(5) == 4)  # the last class has no prior
    assert (found[masked] == 0).all()
    least = found[~masked].astype(np.float64).min() / head.recalibration_.floor_
    assert 1 - 1e-6 <= least < 1.1  # some would be smaller


def test_tied_probabilities_and_a_density_with_missing_classes(seed):
    train, calibration, test = (outputs_of(n, seed + n) for n in (400, 900, 100))
    test.logits[:50] = np.round(test.logits[:50])  # ties
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        aware = aty.AtypicalityAwareRecalibration(strength=0.1)
        head = ReliabilityHead(recalibration=aware).fit(train=train[train.labels != 1], calibration=calibration)
    assert_equal_answers(head, test)


def test_given_atypicality_and_none_at_all(seed):
    calibration, test = outputs_of(900, seed), outputs_of(200, seed + 1)
    rng = np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = [
            ModelOutputs(part.logits, labels=part.labels, atypicality=rng.random(len(part)))
            for part in (calibration, test)
        ]
        assert_equal_answers(
            ReliabilityHead(recalibration=PAPER, prediction_sets=RAPS).fit(calibration=given[0]), given[1]
        )
        bare = ReliabilityHead(density=None, recalibration=aty.TemperatureScaling()).fit(calibration=calibration)
    assert_equal_answers(bare, ModelOutputs(test.logits))


def test_one_logit_of_a_binary_model(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, 600)
    z = (labels * 2.0 - 1 + rng.normal(size=600)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = ReliabilityHead(density=None, recalibration=aty.TemperatureScaling())
        head.fit(calibration=ModelOutputs(z[:, None], labels=labels))
    ours = ReliabilityModule.from_head(head)(torch.from_numpy(z[:, None]))
    assert_allclose(ours.proba, head.predict(ModelOutputs(z[:, None])).proba, atol=1e-7)


def test_bad_rows_get_the_full_set_and_disturb_nobody(seed):
    head, outputs = fitted(recalibration=RECALIBRATIONS["aware"], seed=seed), outputs_of(40, seed + 2)
    logits, embeddings = np.array(outputs.logits), np.array(outputs.embeddings)
    logits[0, 1], logits[1, 1], logits[2] = np.nan, np.inf, -np.inf
    embeddings[3, 0], embeddings[4, 0], embeddings[5] = np.nan, np.inf, 3e38
    module = ReliabilityModule.from_head(head)
    ours = module(torch.from_numpy(logits), torch.from_numpy(embeddings))
    bad = np.arange(40) < 5
    assert_array_equal(ours.valid[:5], np.zeros(5, bool))
    assert ours.valid[6:].all()
    assert ours.prediction_set[bad].all()
    assert ours.proba[bad].isnan().all()
    assert ours.confidence[bad].isnan().all()
    assert ours.atypicality[bad].isnan().all()
    assert (ours.label[bad] == -1).all()
    assert (ours.quadrant[bad] == 3).all()
    clean = answered(module, outputs)
    for name in ("proba", "prediction_set", "atypicality", "quadrant", "label"):
        assert torch.equal(getattr(ours, name)[6:], getattr(clean, name)[6:]), name


def test_it_keeps_its_precision_inside_a_model_in_half_precision(seed):
    head, outputs = fitted(seed=seed), outputs_of(50, seed + 2)
    module = ReliabilityModule.from_head(head, max_risk=0.3)
    before = answered(module, outputs)
    around = torch.nn.ModuleDict({"model": torch.nn.Linear(2, 2), "head": module}).half()
    assert around["model"].weight.dtype == torch.float16
    assert not list(module.parameters())
    for ours, theirs in zip(vars(answered(around["head"], outputs)).values(), vars(before).values(), strict=True):
        assert torch.equal(ours, theirs)
    half = module(torch.from_numpy(outputs.logits).half(), torch.from_numpy(outputs.embeddings))
    assert half.proba.dtype == torch.float32


def test_its_state_travels(seed):
    first, second = (ReliabilityModule.from_head(fitted(seed=s)) for s in (seed, seed + 10))
    stream = io.BytesIO()
    torch.save(first.state_dict(), stream)
    stream.seek(0)
    first.load_state_dict(torch.load(stream, weights_only=True))
    assert not torch.equal(first.density_means, second.density_means)
    with pytest.raises(ValueError, match="the state is that of another head"):
        second.load_state_dict(first.state_dict())


def test_empty_batches_and_wrong_shapes(seed):
    module = ReliabilityModule.from_head(fitted(seed=seed))
    width = module.n_features
    assert module(torch.zeros(0, 5), torch.zeros(0, width)).prediction_set.shape == (0, 5)
    with pytest.raises(ValueError, match=r"logits must have shape \(n, 5\); got \(2, 4\)"):
        module(torch.zeros(2, 4), torch.zeros(2, width))
    with pytest.raises(ValueError, match=r"embeddings must have shape .* got None"):
        module(torch.zeros(2, 5))
    with pytest.raises(ValueError, match=r"embeddings must have shape \(2, .* got \(3, "):
        module(torch.zeros(2, 5), torch.zeros(3, width))


def test_heads_that_cannot_be_modules_say_why():
    class Other(aty.GaussianAtypicality):
        def atypicality(self, embeddings):
            return -super().atypicality(embeddings)

    head = fitted(density=Other(), sets=aty.SplitConformal("aps", randomized=True))
    with pytest.raises(ValueError, match=r"cannot be a torch module: its density is Other.*; its prediction_sets has"):
        ReliabilityModule.from_head(head)


class Network(torch.nn.Module):
    """A forward of its own, with a layer that acts differently in training."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh())
        self.top = torch.nn.Linear(8, 3)

    def forward(self, rows):
        return self.top(self.body(rows))


@pytest.mark.parametrize("layer", [None, "top"])
@pytest.mark.parametrize("density", ["auto", None])
def test_behind_a_model_it_says_what_the_head_says(density, layer, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(1200, 5, generator=generator)
    labels = (rows[:, :3] + torch.randn(1200, 3, generator=generator)).argmax(dim=1)
    network = Network()
    outputs = aty.collect(network, [(rows, labels)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = ReliabilityHead(density, PAPER if density else aty.TemperatureScaling())
        head.fit(train=outputs[:400], calibration=outputs[400:1100])
    whole = ReliabilityModule.from_head(head).behind(network, layer=layer)
    with pytest.raises(ValueError, match=r"the model must be in evaluation mode.*call \.eval\(\)"):
        whole(rows[1100:])
    answer, said = whole.eval()(rows[1100:]), predicted(head, outputs[1100:])
    # another batch size sums float32 in another order
    assert_allclose(answer.proba, said.proba, atol=1e-4)
    assert_array_equal(answer.label, said.label)
    assert not answer.proba.requires_grad
    assert not network.top._forward_hooks
    if density is not None:
        other = (
            ReliabilityModule.from_head(head)
            .behind(torch.nn.Sequential(network, torch.nn.Identity()), layer="1")
            .eval()
        )
        with pytest.raises(ValueError, match=r"the input of layer '1' has 3 columns, .* behind\(model, layer=\.\.\.\)"):
            other(rows[1100:])


@pytest.fixture(scope="module")
def whole():
    """A network with the head behind it, the head, and rows to answer."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1200, 5, generator=generator)
    labels = (rows[:, :3] + torch.randn(1200, 3, generator=generator)).argmax(dim=1)
    network = Network().eval()
    network.top.weight.data[:3, :3] = 2.0 * torch.eye(3)
    outputs = aty.collect(network, [(rows, labels)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head = ReliabilityHead(recalibration=PAPER).fit(train=outputs[:400], calibration=outputs[400:1100])
    return ReliabilityModule.from_head(head).behind(network, layer="top").eval(), head, rows[1100:]


LOADED = """
import sys, torch
{line}
torch.save(vars(torch.export.load(sys.argv[1]).module()(torch.load(sys.argv[2]))), sys.argv[3])
"""


def test_a_program_of_network_and_head_loads_in_a_process_that_imports_the_name_the_page_gives(whole, tmp_path):
    module, _, rows = whole
    line = "from atypicality import ReliabilityModule"
    assert f"import torch\n{line}" in (Path(__file__).parents[1] / "docs" / "howto" / "torch.md").read_text()
    program = torch.export.export(module, (rows[:2],), dynamic_shapes=(({0: torch.export.Dim("n")},),))
    torch.export.save(program, tmp_path / "whole.pt2")
    torch.save(rows, tmp_path / "rows.pt")
    files = [str(tmp_path / name) for name in ("whole.pt2", "rows.pt", "answer.pt")]
    subprocess.run([sys.executable, "-W", "ignore", "-c", LOADED.format(line=line), *files], check=True)
    found, expected = torch.load(files[2]), module(rows)
    for name in ("label", "prediction_set", "advice", "quadrant"):
        assert_array_equal(found[name], getattr(expected, name))
    assert_allclose(found["proba"], expected.proba, atol=1e-6)
    assert not found["proba"].requires_grad


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch
def test_what_cannot_be_exported_says_what_to_do(whole, tmp_path):
    module, _, rows = whole
    fresh = module.head.behind(module.model).eval()
    with pytest.raises(ValueError, match=r"torch\.export cannot do: call this module once before, or give behind\("):
        torch.export.export(fresh, (rows[:2],))
    with pytest.raises(ValueError, match=r"cannot write a head: write whole\.network\(\)"):
        torch.onnx.export(module, (rows[:2],), tmp_path / "whole.onnx", dynamo=False)


@pytest.mark.parametrize(
    "call", [lambda module, row: module(row), lambda module, row: aty.collect(module.model, [row])]
)
def test_one_sample_that_is_no_batch_is_named(whole, call):
    with pytest.raises(ValueError, match="got 1D input") as caught:  # of torch
        call(whole[0], whole[2][0])
    assert caught.value.__notes__ == [
        "A batch is expected, whose first axis counts samples; the model was called with shape (5,). "
        "One image is the batch image[None]."
    ]


def test_a_tensor_in_the_place_of_outputs_is_told_of_collect(whole):
    with pytest.raises(
        TypeError, match=r"outputs must be ModelOutputs; got Tensor\. .*what collect\(model, \[batch\]\)"
    ):
        whole[1].predict(whole[2])


def test_choices_are_those_of_the_head(whole):
    module, head, rows = whole
    expected = predicted(head, aty.collect(module.model, [rows])).choices()
    assert 0 < expected.any(axis=1).sum() < len(rows)
    assert (module(rows).prediction_set.sum(dim=1)[expected.any(axis=1)] == 1).any()  # the runner-up is looked for
    assert_array_equal(module(rows).choices(), expected)


@pytest.mark.usefixtures("graphs_run_here")
@needs("onnx", "onnxruntime")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, whose other exporter needs a package more
@pytest.mark.parametrize("opset", [17, 20])
def test_network_and_head_are_one_graph(whole, opset, tmp_path):
    module, head, rows = whole
    names = {"input_names": ["rows"], "output_names": ["logits", "embeddings"]}
    axes = {name: {0: "n"} for name in ("rows", "logits", "embeddings")}
    file = tmp_path / "network.onnx"
    torch.onnx.export(
        module.network(), (rows[:8],), file, **names, dynamic_axes=axes, opset_version=opset, dynamo=False
    )
    head.export_onnx(tmp_path / "whole.onnx", network=file, verify=opset == 17)
    session = imported("onnxruntime").InferenceSession(tmp_path / "whole.onnx")
    assert [one.name for one in session.get_inputs()] == ["rows"]
    asked = ["label", "prediction_set", "advice", "quadrant", "probabilities"]
    found, expected = session.run(asked, {"rows": rows.numpy()}), module(rows)
    for name, part in zip(asked[:4], found, strict=False):
        assert_array_equal(part, getattr(expected, name))
    assert_allclose(found[4], expected.proba, atol=1e-5)
    torch.onnx.export(module.network(), (rows[:8],), file, output_names=["logits", "other"], dynamo=False)
    with pytest.raises(ValueError, match=r"an output called 'embeddings'; its outputs are logits, other"):
        head.export_onnx(tmp_path / "whole.onnx", network=file)
