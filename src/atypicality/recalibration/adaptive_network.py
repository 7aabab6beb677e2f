r"""The network of adaptive temperature scaling: a variational autoencoder with a temperature head on its code.

Embeddings x are encoded to :math:`q(c \mid x) = N(\mu(x), \sigma^2(x))` and decoded from the code c; the prior of the
code is a Gaussian for each class, :math:`p(c \mid y) = N(m_y, s_y^2)`. The head turns the code into a temperature.
All parts are trained together on the held-out rows, by the evidence bound and the cross-entropy of the label:

.. math:: -\log N(x; \hat x(c), v I) + \mathrm{KL}(q(c \mid x) \| p(c \mid y)) - \log \mathrm{softmax}(z / T(c))_y.

In the last term a small part of every label is given to the row's two largest classes: the pseudo-rows of the prior.
The variance v of the reconstruction is learnt too. The network can memorise a few thousand rows, so a share of them
is kept apart and the epoch of least cross-entropy there is the one that counts; epoch 0 is one temperature for all.
Training needs torch. The result is plain NumPy: the encoder and the head, all that a prediction needs.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from atypicality.blocks.progress import track
from atypicality.stored import Record, kinds, need
from atypicality.validation import require

__all__ = ["Layers", "Network", "Targets", "Training", "train"]

Layers = list[tuple[NDArray[np.float32], NDArray[np.float32]]]
Float32 = NDArray[np.float32]
LAYERS = kinds.ListOf(kinds.TupleOf(kinds.Array("* * | *", kinds.FINITE, dtypes=("float32",))))

_FIRST_VARIANCE = 0.1  # from 1, the code of hardly correlated embeddings never starts to carry anything
_PATIENCE = 300  # steps without a better epoch before training ends
_UNIT = math.log(math.e - 1)  # softplus of this is 1: an untrained head changes nothing


@dataclass(frozen=True)
class Training:
    """Widths of the layers, and how they are trained."""

    hidden: tuple[int, ...]
    latent_dim: int
    head: tuple[int, ...]
    epochs: int
    learning_rate: float
    batch_size: int
    validation_fraction: float
    seed: int


@dataclass(frozen=True)
class Targets:
    """Labels, two largest classes and weights of rows, and the part of its weight that a row gives each of the two."""

    labels: NDArray[np.intp]
    best: NDArray[np.intp]
    runner_up: NDArray[np.intp]
    weights: NDArray[np.float64]
    pseudo_weights: NDArray[np.float64]


@dataclass(frozen=True)
class Network:
    """What was learnt: the standardisation of the embeddings, the encoder, the temperature head, and when."""

    mean: Annotated[Float32, kinds.Array("D", kinds.FINITE, dtypes=("float32",))]
    scale: Annotated[Float32, kinds.Array("D", kinds.POSITIVE, dtypes=("float32",))]
    encoder: Annotated[Layers, LAYERS]
    head: Annotated[Layers, LAYERS]
    n_epochs: Annotated[int, kinds.Integer()]

    def _check_stored(self) -> None:
        for layers in (self.encoder, self.head):
            need(layers, "there must be layers.")
            for layer in layers:
                need([part.ndim for part in layer] == [2, 1], "a layer is a matrix and a vector.")
                need(layer[0].shape[0] == layer[1].size, "a layer's matrix and vector must agree.")
            for first, second in itertools.pairwise(layers):
                need(second[0].shape[1] == first[1].size, "a layer must take what the one before gives.")
        need(self.encoder[0][0].shape[1] == self.mean.size, "the encoder must take embeddings.")
        need(self.encoder[-1][1].size == 2 * self.head[0][0].shape[1], "the code must be a mean and a spread.")
        need(self.head[-1][1].size == 1, "one temperature must come out.")

    _stored = Record(check=_check_stored)

    def factor(self, embeddings: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Temperature of every row, relative to the one for all; positive, (n,)."""
        code = _forward(self.encoder, (embeddings - self.mean) / self.scale)
        code = code[:, : code.shape[1] // 2]  # the mean of the code; its spread matters in training only
        return np.logaddexp(0, _forward(self.head, code)[:, 0].astype(np.float64))


def _forward(layers: Layers, values: NDArray[np.floating[Any]]) -> Float32:
    out = values.astype(np.float32, copy=False)
    for index, (weight, bias) in enumerate(layers):
        out = (out if index == 0 else np.maximum(out, 0)) @ weight.T + bias
    return out


def train(
    embeddings: NDArray[np.floating[Any]], logits: NDArray[np.float64], targets: Targets, training: Training
) -> Network:
    """Train on embeddings (n, d), logits (n, k) already divided by one temperature, and their targets.

    The generators of torch and NumPy that the caller may use are left alone, and so are torch's modes.
    """
    torch = require("torch", extra="torch", feature="AdaptiveTemperatureScaling")
    mean, scale = _standardisation(embeddings)
    rows = {
        "x": torch.from_numpy(((embeddings - mean) / scale).astype(np.float32)),
        "z": torch.from_numpy(np.where(np.isfinite(logits), logits, 0).astype(np.float32)),
        "masked": torch.from_numpy(~np.isfinite(logits)),
        **{
            name: torch.from_numpy(columns.astype(np.int64))
            for name, columns in (("y", targets.labels), ("best", targets.best), ("runner_up", targets.runner_up))
        },
        **{
            name: torch.from_numpy((targets.labels.size * weights).astype(np.float32))
            for name, weights in (("w", targets.weights), ("pseudo", targets.pseudo_weights))
        },
    }
    with torch.inference_mode(False), torch.enable_grad():
        parts = _Parts(torch, embeddings.shape[1], logits.shape[1], training)
        return Network(mean, scale, *parts.train(rows))


class _Parts:
    """The four parts as torch tensors, all drawn from one generator."""

    def __init__(self, torch: Any, n_features: int, n_classes: int, training: Training) -> None:
        self.torch, self.training = torch, training
        self.generator = torch.Generator().manual_seed(training.seed)
        hidden, code = training.hidden, training.latent_dim
        self.encoder = self._layers((n_features, *hidden, 2 * code))
        self.decoder = self._layers((code, *reversed(hidden), n_features))
        self.head = self._layers((code, *training.head, 1))
        self.prior_mean = torch.zeros(n_classes, code, requires_grad=True)
        self.prior_log_scale = torch.zeros(n_classes, code, requires_grad=True)
        self.log_variance = torch.full((), math.log(_FIRST_VARIANCE), requires_grad=True)
        with torch.no_grad():
            self.head[-1][0].zero_()
            self.head[-1][1].fill_(_UNIT)
        parameters = [p for part in (self.encoder, self.decoder, self.head) for layer in part for p in layer]
        parameters += [self.prior_mean, self.prior_log_scale, self.log_variance]
        self.optimizer = torch.optim.Adam(parameters, lr=training.learning_rate)

    def _layers(self, widths: Sequence[int]) -> list[tuple[Any, Any]]:
        layers = []
        for fan_in, fan_out in itertools.pairwise(widths):
            bound = 1 / math.sqrt(fan_in)  # torch's own rule for linear layers, without its global generator
            shapes = ((fan_out, fan_in), (fan_out,))
            draws = [(2 * self.torch.rand(shape, generator=self.generator) - 1) * bound for shape in shapes]
            layers.append(tuple(draw.requires_grad_() for draw in draws))
        return layers

    def train(self, rows: dict[str, Any]) -> tuple[Layers, Layers, int]:
        """Encoder and head of the best epoch, and its number."""
        order = self.torch.randperm(len(rows["y"]), generator=self.generator)
        n_apart = int(len(order) * self.training.validation_fraction)
        apart = {name: values[order[:n_apart]] for name, values in rows.items()}
        patience = math.ceil(_PATIENCE * self.training.batch_size / (len(order) - n_apart))
        best = self._snapshot(apart, 0)
        for epoch in track(range(1, self.training.epochs + 1), "Fitting adaptive temperatures", unit="epochs"):
            self._epoch(rows, order[n_apart:])
            now = self._snapshot(apart, epoch)
            if n_apart == 0 or now[0] < best[0]:
                best = now
            elif epoch - best[-1] >= patience:
                break
        return best[1:]

    def _snapshot(self, apart: dict[str, Any], epoch: int) -> tuple[float, Layers, Layers, int]:
        """Loss of the rows kept apart, with the mean code, and what was learnt so far."""
        with self.torch.no_grad():
            code = self._run(self.encoder, apart["x"])[:, : self.training.latent_dim]
            loss = self._cross_entropy(code, apart).sum().item()
        return loss, _plain(self.encoder), _plain(self.head), epoch

    def _epoch(self, rows: dict[str, Any], order: Any) -> None:
        shuffled = order[self.torch.randperm(len(order), generator=self.generator)]
        for batch in shuffled.split(self.training.batch_size):
            self.optimizer.zero_grad()
            self._loss({name: values[batch] for name, values in rows.items()}).backward()
            self.optimizer.step()

    def _loss(self, rows: dict[str, Any]) -> Any:
        """Mean over the rows of reconstruction, divergence from the prior of the label, and cross-entropy."""
        mean, log_scale = self._run(self.encoder, rows["x"]).chunk(2, dim=1)
        code = mean + log_scale.exp() * self.torch.randn(mean.shape, generator=self.generator)
        residual = (self._run(self.decoder, code) - rows["x"]).square()
        reconstruction = (residual * (-self.log_variance).exp() + self.log_variance).sum(dim=1) / 2
        divergence = self._divergence(mean, log_scale, rows["y"])
        return (rows["w"] * (reconstruction + divergence) + self._cross_entropy(code, rows)).mean()

    def _cross_entropy(self, code: Any, rows: dict[str, Any]) -> Any:
        """Weighted cross-entropy of the rows' targets (n,)."""
        functional = self.torch.nn.functional
        temperature = functional.softplus(self._run(self.head, code))
        logits = (rows["z"] / temperature).masked_fill(rows["masked"], -math.inf)
        label, best, runner_up = (
            functional.cross_entropy(logits, rows[name], reduction="none") for name in ("y", "best", "runner_up")
        )
        return rows["w"] * label + rows["pseudo"] * (best + runner_up - 2 * label)

    def _divergence(self, mean: Any, log_scale: Any, labels: Any) -> Any:
        """KL(N(mean, scale^2) || prior of the label), summed over the code."""
        prior_mean, prior_log_scale = self.prior_mean[labels], self.prior_log_scale[labels]
        ratio = 2 * (log_scale - prior_log_scale)
        shift = (mean - prior_mean) * (-prior_log_scale).exp()
        return (ratio.exp() + shift.square() - 1 - ratio).sum(dim=1) / 2

    def _run(self, layers: list[tuple[Any, Any]], values: Any) -> Any:
        functional = self.torch.nn.functional
        for index, (weight, bias) in enumerate(layers):
            values = functional.linear(values if index == 0 else functional.relu(values), weight, bias)
        return values


def _standardisation(embeddings: NDArray[np.floating[Any]]) -> tuple[Float32, Float32]:
    """Mean and standard deviation of every column; a constant column keeps its scale."""
    mean = embeddings.mean(axis=0, dtype=np.float64)
    scale = embeddings.std(axis=0, dtype=np.float64)
    scale[scale == 0] = 1
    return mean.astype(np.float32), scale.astype(np.float32)


def _plain(layers: list[tuple[Any, Any]]) -> Layers:
    return [(weight.detach().numpy().copy(), bias.detach().numpy().copy()) for weight, bias in layers]
