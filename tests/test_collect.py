"""Collecting outputs: the right layer, the same rows however a run was cut, and a model that is left as it was."""

import json
import os
import runpy
import signal
import subprocess
import sys
import textwrap
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from conftest import imported, needs
from numpy.testing import assert_allclose, assert_array_equal

from atypicality.integrations.collecting import collect
from atypicality.integrations.row_files import RowFolder
from atypicality.outputs import ModelOutputs
from atypicality.paper import reproduce

torch = imported("torch")
nn = torch.nn


class SmallNet(nn.Module):
    """Like a torchvision network: features, pooling, and a head called fc."""

    def __init__(self, classes=4, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(6, classes)

    def pooled(self, x):
        return self.features(x).mean(dim=(2, 3))

    def forward(self, x):
        return self.fc(self.drop(self.pooled(x)))


def images(n=23, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, 8, 8, generator=generator), torch.arange(n) % 4


def loader_of(x, y, size=5):
    return list(zip(x.split(size), y.split(size), strict=True))


def expected(net, x):
    training = net.training
    net.eval()
    with torch.no_grad():
        embeddings = net.pooled(x)
        logits = net.fc(embeddings)
    net.train(training)
    return logits.numpy(), embeddings.numpy()


def assert_outputs(outputs, net, x, y):
    logits, embeddings = expected(net, x)
    # convolutions of other batch sizes sum in another order
    assert_allclose(outputs.logits, logits, rtol=1e-5, atol=1e-6)
    assert_allclose(outputs.embeddings, embeddings, rtol=1e-5, atol=1e-6)
    assert_array_equal(outputs.labels, y)


def test_logits_embeddings_and_labels_of_every_row():
    net, (x, y) = SmallNet(), images()
    outputs = collect(net, loader_of(x, y))
    assert_outputs(outputs, net, x, y)
    assert_allclose(
        outputs.embeddings @ net.fc.weight.detach().numpy().T + net.fc.bias.detach().numpy(), outputs.logits, atol=1e-6
    )


def test_a_data_loader_and_batches_of_other_kinds():
    net, (x, y) = SmallNet(), images()
    dataset = torch.utils.data.TensorDataset(x, y)
    assert_outputs(collect(net, torch.utils.data.DataLoader(dataset, batch_size=7)), net, x, y)
    pair = namedtuple("Pair", "image label")
    assert_outputs(collect(net, [pair(x, y)]), net, x, y)
    assert_outputs(collect(net, [{"x": x, "label": y, "text": ["a"] * len(x)}]), net, x, y)
    assert_outputs(collect(net, iter([((x,), y)])), net, x, y)
    assert collect(net, [x]).labels is None
    assert collect(net, [(x,)]).labels is None


def test_the_only_tensor_of_a_dict_is_the_only_input():
    net, (x, y) = SmallNet(), images()
    extra = {"id": torch.arange(23), "path": ["a"] * 23}
    assert_outputs(collect(net, [{"image": x, "label": y} | extra]), net, x, y)
    with pytest.warns(UserWarning, match=r"no labels .* its 'labels' or 'label', and 'target' is left out"):
        assert collect(net, [{"x": x, "target": y} | extra]).labels is None
    assert collect(net, [{"x": x} | extra]).labels is None
    takes = r"it has image, {} \(labels aside\), and forward takes x\. Let the loader give pairs"
    for other in ("mask", "target"):  # two tensors: which one?
        with pytest.raises(TypeError, match=takes.format(other)):
            collect(net, [{"image": x, "label": y, other: y}])
    with pytest.raises(TypeError, match=takes.format("path")):
        collect(net, [{"image": ["a"], "path": ["b"]}])

    class Masked(SmallNet):
        def forward(self, x, mask=None):
            return super().forward(x)

    assert_outputs(collect(Masked(), [{"image": x, "label": y}]), net, x, y)
    with pytest.raises(TypeError, match=r"it has image, mask .* forward takes x, mask"):
        collect(Masked(), [{"image": x, "mask": y, "label": y}])


def test_a_network_that_ends_in_softmax_is_noticed_at_the_first_batch():
    class Soft(SmallNet):
        def forward(self, x):
            return super().forward(x).softmax(dim=1)

    def loader():
        yield images()
        raise StopError

    message = "the logits look like probabilities: none is negative, and each row sums to 1"
    with pytest.warns(UserWarning, match=message), pytest.raises(StopError):
        collect(Soft(), loader())


def state_of(net):
    hooks = [dict(m._forward_hooks) | dict(m._forward_pre_hooks) for m in net.modules()]
    gradients = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    values = [p.clone() for p in (*net.parameters(), *net.buffers())]
    return [m.training for m in net.modules()], hooks, gradients, values


def assert_same_state(before, after):
    assert before[0] == after[0]
    assert [list(hooks) for hooks in before[1]] == [list(hooks) for hooks in after[1]]
    for ours, theirs in zip(before[2] + before[3], after[2] + after[3], strict=True):
        assert ours is theirs is None or torch.equal(ours, theirs)


class StopError(Exception):
    pass


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails):
    net, (x, y) = SmallNet().train(), images()
    net.features[1].eval()  # a frozen part stays frozen
    net.fc.register_forward_hook(lambda *_: None)
    net(x).sum().backward()
    before = state_of(net)

    def batches():
        yield x, y
        if fails:
            raise StopError

    if fails:
        with pytest.raises(StopError):
            collect(net, batches())
    else:
        collect(net, batches())
    assert_same_state(before, state_of(net))
    net.fc.weight.grad = None
    net(x).sum().backward()  # nothing left behind keeps gradients from flowing
    assert net.fc.weight.grad is not None


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's compiler warns of itself when imported
def test_wrapped_and_compiled_networks_are_looked_through():
    net, (x, y) = SmallNet(), images()
    for model in (nn.DataParallel(net), torch.compile(net), torch.compile(nn.DataParallel(net))):
        assert_outputs(collect(model, [(x, y)]), net, x, y)
    assert_outputs(collect(nn.DataParallel(net), [(x, y)], layer="module.fc"), net, x, y)
    inside = SmallNet()
    inside.fc.compile()
    assert_outputs(collect(inside, [(x, y)]), net, x, y)
    assert inside.fc._compiled_call_impl is not None


class TwoHeads(SmallNet):
    def __init__(self):
        super().__init__()
        self.aux = nn.Linear(6, 4)

    def forward(self, x):
        z = self.pooled(x)
        return self.fc(z) + self.aux(z)


def test_an_ambiguous_model_gets_its_candidates_listed():
    x, y = images()
    with pytest.raises(ValueError, match=r"with layer=\. Linear layers, in the order they ran: fc \(6 -> 4\), aux"):
        collect(TwoHeads(), [(x, y)])
    outputs = collect(TwoHeads(), [(x, y)], layer="aux")
    assert_allclose(outputs.embeddings, expected(SmallNet(), x)[1], rtol=1e-5, atol=1e-6)
    headless = nn.Sequential(nn.Conv2d(1, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ValueError, match="in the order they ran: none"):
        collect(headless, [x])
    with pytest.warns(UserWarning, match="layer '0' reads the model's own input"):
        maps = collect(headless, [x], layer="0")
    assert_allclose(maps.embeddings[:, 0], x.mean(dim=(1, 2, 3)), atol=1e-6)


def test_the_layer_that_becomes_the_logits_is_found():
    class Scaled(SmallNet):
        def forward(self, x):
            return super().forward(x) / 2.0

    class Auxiliary(TwoHeads):
        def forward(self, x):
            z = self.pooled(x)
            self.seen = self.aux(z)
            return {"logits": self.fc(z)}

    x, y = images()
    for net in (Scaled(), Auxiliary()):
        assert_allclose(collect(net, [(x, y)]).embeddings, expected(net, x)[1], rtol=1e-5, atol=1e-6)


def test_one_logit_of_a_binary_model():
    class Binary(SmallNet):
        def forward(self, x):
            return super().forward(x)[:, 0]

    net, (x, _) = Binary(classes=1), images()
    outputs = collect(net, [(x, torch.arange(len(x)) % 2)])
    assert outputs.logits.shape == (len(x), 2)
    assert not outputs.logits[:, 0].any()
    assert collect(net, [x], ["no", "yes"]).class_names.tolist() == ["no", "yes"]


def test_wrong_input_is_named():
    net, (x, y) = SmallNet(), images()
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module; got str"):
        collect("resnet18", [])
    with pytest.raises(ValueError, match="at least one batch"):
        collect(net, [])
    with pytest.raises(ValueError, match=r"'head' does not\. Close"):
        collect(net, [x], layer="head")
    with pytest.raises(TypeError, match="layer must be the name of a layer"):
        collect(net, [x], layer=net.fc)
    with pytest.raises(TypeError, match="tuple of 3 parts"):
        collect(net, [(x, y, y)])
    with pytest.raises(TypeError, match=r"got a tensor. For one batch pass a list of it"):
        collect(net, x)
    with pytest.raises(TypeError, match=r"got a tuple of tensors. For one batch"):
        collect(net, (x, y))
    with pytest.raises(TypeError, match=r"got a data set \(TensorDataset\).*DataLoader\(dataset, batch_size=256\)"):
        collect(net, torch.utils.data.TensorDataset(x, y))
    with pytest.raises(ValueError, match="one label per row; got 22 for 23"):
        collect(net, [(x, y[1:])])
    with pytest.raises(ValueError, match="one-dimensional"):
        collect(net, [(x, nn.functional.one_hot(y))])
    with pytest.raises(ValueError, match="autocast must be one of"):
        collect(net, [x], autocast="float32")
    with pytest.raises(ValueError, match=r"gave logits, embeddings\."):
        collect(net, [(x, y), x])
    with pytest.raises(TypeError, match=r"must return logits \(n, k\).*got shape \(23, 6, 6, 6\)"):
        collect(net.features, [x])
    with pytest.raises(ValueError, match="used 2 times"):
        collect(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), shared := nn.Linear(64, 64), shared), [x], layer="2")


def test_a_block_named_for_its_output_is_noticed():
    net, (x, y) = SmallNet(), images()
    with pytest.warns(UserWarning, match=r"layer 'features' reads the model's own input \(23, 1, 8, 8\)") as caught:
        assert collect(net, [(x, y)], layer="features").embeddings.shape == (23, 1)
    assert caught[0].filename == __file__
    assert collect(net, [(x, y)], layer="fc").embeddings.shape == (23, 6)


def test_mixed_precision_only_when_asked():
    net, (x, y) = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4)), images()
    plain = collect(net, [(x, y)])
    mixed = collect(net, [(x, y)], autocast="float16")
    assert plain.embeddings.dtype == np.float32
    assert mixed.embeddings.dtype == np.float16
    assert mixed.logits.dtype == np.float32
    # float16 has 11 bits: 64 products of numbers near 1 stray by a few times 2^-11
    assert_allclose(mixed.logits, plain.logits, atol=0.02)


# language models


def tiny(kind, **options):
    transformers = imported("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=50, num_labels=3, pad_token_id=1, **options)
    return getattr(transformers, f"{kind}ForSequenceClassification")(config)


ENCODER = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)


def tokens(n=6, length=7):
    ids = torch.randint(3, 50, (n, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 4:], ids[1, 4:] = 0, 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(n) % 3}


@needs("transformers")
@pytest.mark.parametrize("kind", ["Roberta", "Bert"])
def test_encoders_give_the_embedding_of_the_first_token(kind):
    model, batch = tiny(kind, max_position_embeddings=40, **ENCODER), tokens()
    outputs = collect(model, [batch])
    model.eval()
    with torch.no_grad():
        inner = getattr(model, kind.lower())(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        logits = model(**batch).logits
    # RoBERTa's head reads the first token itself; BERT pools it before its head
    entering = inner.last_hidden_state[:, 0] if kind == "Roberta" else inner.pooler_output
    assert_allclose(outputs.embeddings, entering, atol=1e-6)
    assert_allclose(outputs.logits, logits, atol=1e-6)
    assert_array_equal(outputs.labels, batch["labels"])
    if kind == "Roberta":
        last = collect(model, [batch], layer="classifier.out_proj")
        assert_allclose(last.embeddings, torch.tanh(model.classifier.dense(entering)).detach(), atol=1e-6)


@needs("transformers")
def test_decoders_give_the_embedding_of_the_token_that_decides():
    model, batch = tiny("GPT2", n_embd=16, n_layer=2, n_head=2, n_positions=40), tokens()
    outputs = collect(model, [batch])
    assert_allclose(outputs.embeddings @ model.score.weight.detach().numpy().T, outputs.logits, atol=1e-5)


# folders


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_folder_holds_what_memory_would(tmp_path):
    net, (x, y) = SmallNet(), images()
    batches = loader_of(x, y)
    written, kept = collect(net, batches, out=tmp_path / "a"), collect(net, batches)
    for name in ("logits", "embeddings", "labels"):
        assert_array_equal(getattr(written, name), getattr(kept, name))
        np.testing.assert_array_equal(np.load(tmp_path / "a" / f"{name}.npy"), getattr(kept, name))
    assert isinstance(written.embeddings, np.memmap)
    before = files_of(tmp_path / "a")
    again = collect(net, batches, out=tmp_path / "a")  # complete: nothing is written
    assert files_of(tmp_path / "a") == before
    assert_array_equal(again.logits, kept.logits)


def test_names_of_classes_travel_with_the_rows(tmp_path):
    net, (x, y) = SmallNet(), images()
    names = ["ant", "bee", "cat", "dog"]
    assert collect(net, loader_of(x, y), names).class_names.tolist() == names
    assert collect(net, loader_of(x, y), names, out=tmp_path / "a").class_names.tolist() == names
    assert collect(net, loader_of(x, y), out=tmp_path / "a").class_names.tolist() == names
    other = names[::-1]
    assert collect(net, loader_of(x, y), other, out=tmp_path / "a").class_names.tolist() == other
    assert ModelOutputs.load(tmp_path / "a").class_names.tolist() == other
    with pytest.raises(ValueError, match="another model"):
        collect(SmallNet(seed=1), loader_of(x, y), names, out=tmp_path / "a")
    assert ModelOutputs.load(tmp_path / "a").class_names.tolist() == other
    numbers = ["0", "1", "2", "3"]
    assert collect(net, loader_of(x, y), numbers, out=tmp_path / "b").class_names.tolist() == numbers
    assert collect(net, loader_of(x, y), [10, 20, 30, 40]).class_names.tolist() == ["10", "20", "30", "40"]


@pytest.mark.parametrize(
    ("names", "message"),
    [(["a", "b"], "class_names must name the 4"), (["a"] * 4, "distinct"), ([3, 2, 1, 0], "must be 0, 1, 2")],
)
def test_wrong_names_of_classes_end_a_run_at_its_start(names, message):
    net, (x, y) = SmallNet(), images()
    batches = iter(loader_of(x, y))
    with pytest.raises(ValueError, match=message):
        collect(net, batches, names)
    assert len(list(batches)) >= 4  # of five: no more than one was read


class Countdown:
    """A loader that breaks after some batches, and counts what it gave."""

    def __init__(self, batches, fails_after):
        self.batches, self.fails_after = batches, fails_after

    def __iter__(self):
        for number, batch in enumerate(self.batches):
            if number == self.fails_after:
                raise StopError
            yield batch


@pytest.mark.parametrize("size", [5, 3])
@pytest.mark.parametrize("cuts", [(1,), (2, 3), (0, 4)])
def test_a_stopped_run_goes_on_where_it_ended(tmp_path, cuts, size):
    net, (x, y) = SmallNet(), images()
    for cut in cuts:
        with pytest.raises(StopError):
            collect(net, Countdown(loader_of(x, y), cut), out=tmp_path / "part")
        with pytest.raises((ValueError, FileNotFoundError), match=r"has none of logits|no file or folder"):
            ModelOutputs.load(tmp_path / "part")  # what is unfinished is not read
    outputs = collect(net, loader_of(x, y, size), out=tmp_path / "part")
    assert_outputs(outputs, net, x, y)
    if size == 5:
        collect(net, loader_of(x, y), out=tmp_path / "whole")
        assert files_of(tmp_path / "part") == files_of(tmp_path / "whole")


def test_rows_that_were_not_counted_are_overwritten(tmp_path):
    first, second = np.arange(6.0).reshape(3, 2), np.arange(4.0).reshape(2, 2)
    folder = RowFolder(tmp_path / "a", "x")
    folder.append({"logits": first})
    with open(tmp_path / "a" / "logits.npy.part", "ab") as file:
        file.write(b"half a row that was never count")
    again = RowFolder(tmp_path / "a", "x")
    assert again.rows == 3
    again.append({"logits": second})
    again.finish()
    assert_array_equal(np.load(tmp_path / "a" / "logits.npy"), np.concatenate([first, second]))


@pytest.mark.parametrize("moment", range(4))
def test_a_run_may_die_while_it_finishes(tmp_path, monkeypatch, moment):
    folder = RowFolder(tmp_path / "a", "x")
    folder.append({"logits": np.ones((3, 2)), "labels": np.array([0, 1, 0])})
    real, calls = os.replace, []

    def dying(*args):
        if len(calls) == moment:
            raise StopError
        calls.append(args)
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying)
        with pytest.raises(StopError):
            folder.finish()
    again = RowFolder(tmp_path / "a", "x")
    again.finish()
    assert again.complete
    assert len(ModelOutputs.load(tmp_path / "a")) == 3
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["labels.npy", "logits.npy", "progress.json"]


def test_folders_of_others_are_refused(tmp_path):
    net, (x, y) = SmallNet(), images()
    collect(net, loader_of(x, y), out=tmp_path / "a")
    with pytest.raises(ValueError, match="logits of another model or loader"):
        collect(SmallNet(seed=1), loader_of(x, y), out=tmp_path / "a")
    with pytest.raises(ValueError, match="labels of another model or loader"):
        collect(net, loader_of(x, y.flip(0)), out=tmp_path / "a")
    with pytest.raises(ValueError, match="begun for the input of layer 'fc', not for the input of layer 'features'"):
        collect(net, loader_of(x, y), out=tmp_path / "a", layer="features")
    shuffled = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), shuffle=True)
    with pytest.raises(ValueError, match="shuffle=False"):
        collect(net, shuffled, out=tmp_path / "b")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="no earlier run began it"):
        collect(net, loader_of(x, y), out=tmp_path / "mine")
    with pytest.raises(StopError):
        collect(net, Countdown(loader_of(x, y), 3), out=tmp_path / "c")
    with pytest.raises(ValueError, match="loader gave 10 rows, and 15 of an earlier run"):
        collect(net, loader_of(x, y)[:2], out=tmp_path / "c")


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    net, (x, y) = SmallNet(), images()

    def batches():
        yield x, y
        with pytest.raises(ValueError, match="another process is writing to"):
            collect(net, [(x, y)], out=tmp_path / "a")
        yield x, y

    assert len(collect(net, batches(), out=tmp_path / "a")) == 2 * len(x)


def test_damaged_folders_are_refused(tmp_path):
    net, (x, y) = SmallNet(), images()
    with pytest.raises(StopError):
        collect(net, Countdown(loader_of(x, y), 3), out=tmp_path / "a")
    part = tmp_path / "a" / "logits.npy.part"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"'logits\.npy\.part' .* shorter than the 15 rows"):
        collect(net, loader_of(x, y), out=tmp_path / "a")
    for content in ("", "{", json.dumps({"state": "lost"}), json.dumps([1])):
        (tmp_path / "a" / "progress.json").write_text(content)
        with pytest.raises(ValueError, match=r"'progress\.json' .* is damaged"):
            collect(net, loader_of(x, y), out=tmp_path / "a")


WORKER = """
    import sys, time
    import torch
    from torch import nn
    from atypicality.integrations.collecting import collect

    torch.manual_seed(0)
    torch.set_num_threads(1)

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())

        def forward(self, x):
            return x + self.body(x)

    body = [nn.Conv2d(1, 8, 3, stride=2), Block(8), Block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*body, nn.Linear(8, 10))
    x, y = torch.rand(1000, 1, 28, 28), torch.arange(1000) % 10

    def batches():
        for part, labels in zip(x.split(50), y.split(50)):
            time.sleep(float(sys.argv[1]))
            yield part, labels

    for out in sys.argv[2:]:
        collect(net, batches(), out=out)
"""


def test_a_killed_run_started_again_equals_one_that_was_not(tmp_path, seed, monkeypatch):
    worker, cut, whole = (tmp_path / name for name in ("worker.py", "cut", "whole"))
    worker.write_text(textwrap.dedent(WORKER))
    progress = cut / "progress.json"
    running = subprocess.Popen([sys.executable, str(worker), "0.02", str(cut)])
    deadline = time.monotonic() + 60
    while not (progress.exists() and json.loads(progress.read_text())["rows"] >= 100 + 50 * (seed % 10)):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert 0 < json.loads(progress.read_text())["rows"] < 1000
    monkeypatch.setattr(sys, "argv", [worker.name, "0", str(cut), str(whole)])
    runpy.run_path(str(worker), run_name="__main__")
    assert files_of(cut) == files_of(whole)
    assert len(ModelOutputs.load(cut)) == 1000


# the scripts that train the paper's own models


def run_script(name, monkeypatch, *arguments):
    folder = Path(__file__).parents[1] / "scripts"
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(folder / name), run_name="__main__")


def test_the_long_tailed_script_runs_and_goes_on(tmp_path, monkeypatch, capsys):
    arguments = ("--smoke", "--dataset", "cifar10", "--imbalance", "2", "--out", tmp_path / "out")
    run_script("train_cifar_lt.py", monkeypatch, *arguments)
    first = ModelOutputs.load(tmp_path / "out" / "test.npz")
    assert first.logits.shape == (10, 10)
    assert first.embeddings.shape == (10, 512)
    assert first.class_names[9] == "class-9"
    assert "epoch 1/1" in capsys.readouterr().out
    (tmp_path / "out" / "test.npz").unlink()
    run_script("train_cifar_lt.py", monkeypatch, *arguments)  # trained already: only what is missing is written
    assert "epoch" not in capsys.readouterr().out
    assert_array_equal(ModelOutputs.load(tmp_path / "out" / "test.npz").logits, first.logits)


@needs("PIL")
def test_the_skin_lesion_script_runs(tmp_path, monkeypatch, capsys):
    run_script("train_fitzpatrick_probe.py", monkeypatch, "--smoke", "--out", tmp_path / "out")
    parts = [ModelOutputs.load(tmp_path / "out" / "split-0" / f"{n}.npz") for n in ("train", "calibration", "test")]
    assert [len(part) for part in parts] == [18, 9, 9]
    assert parts[0].embeddings.shape == (18, 256)
    assert parts[0].logits.shape == (18, 9)
    assert set(np.concatenate([part.attributes["skin_tone"] for part in parts])) == {"Unknown", "1-2", "3-4", "5-6"}


@needs("PIL")
def test_the_skin_tone_protocol_runs_from_images_to_subgroups(tmp_path, monkeypatch, capsys):
    """On the stand-in, with the smaller of the two networks; the other one is built with its published names."""
    run_script("make_fitzpatrick_standin.py", monkeypatch, "--out", tmp_path / "standin", "--rows", "160")
    assert "160 images, a stand-in for Fitzpatrick17k" in capsys.readouterr().out
    folder = tmp_path / "outputs" / "skin-tone-standin"
    options = ("--weights", "random", "--size", "32", "--splits", "2", "--epochs", "2", "--out", folder)
    run_script("train_fitzpatrick_probe.py", monkeypatch, "--data", tmp_path / "standin", *options)
    found = reproduce("subgroups", outputs=tmp_path / "outputs", out=tmp_path / "made")
    accuracy = next(table for table in found.tables["subgroups"] if table.metric == "accuracy")
    assert {("1-2",), ("3-4",), ("5-6",), ("worst",), ("best",), ("gap",), ("all",)} <= set(accuracy.rows)
    assert accuracy.title == "accuracy: your model / skin-tone-standin, GMM"  # never beside the paper's numbers
    assert all(cell.paper is None for cell in accuracy.cells.values())
    assert {(verdict.n, verdict.spread) for verdict in found.verdicts["subgroups"]} == {(2, "splits")}
    from resnet import ResNet  # the scripts' folder is on the path by now

    layers = {name.rpartition(".conv1")[0] for name in ResNet("resnet34").state_dict() if ".conv1" in name}
    assert sorted(layers)[-1] == "layer4.2"
    assert len(layers) == 3 + 4 + 6 + 3


@pytest.mark.parametrize("name", ["train_cifar_lt.py", "train_fitzpatrick_probe.py"])
def test_scripts_say_what_they_need(name, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        run_script(name, monkeypatch)
    assert "are needed, or --smoke" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        run_script(name, monkeypatch, "--help")
    assert "--data" in capsys.readouterr().out
