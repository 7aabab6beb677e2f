"""A fitted head as a PyTorch module, for use behind a model at inference."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import torch
import torch.export
from array_api_compat import torch as compat
from torch import nn

from atypicality.estimators import check_is_fitted
from atypicality.formula import CHOOSE, guarded, moved, named_arrays
from atypicality.integrations.batches import logits_of, naming_shapes
from atypicality.integrations.tracing import Tap, find_site, named_site, unwrapped
from atypicality.outputs.class_names import check_class_names, class_order
from atypicality.shipping.refusals import refusals, wide

__all__ = ["ReliabilityModule", "ReliabilityTensors", "ReliableModel"]

Tensor = Any
xp = SimpleNamespace(**vars(compat) | {"cumulative_sum": lambda x, *, axis: torch.cumsum(x, dim=axis)})
"""array_api_compat's functions, less one that looks up the namespace of its array, which `torch.compile` warns of."""


@dataclass(frozen=True)
class ReliabilityTensors:
    """What a `ReliabilityModule` says about n samples and k classes, as tensors on the module's device.

    Attributes
    ----------
    label : int64 (n,)
        -1 for a row that is not valid.
    confidence : float64 (n,)
    proba : (n, k), in the type of the logits, at least float32
    prediction_set : bool (n, k)
    valid : bool (n,)
        False for a row with NaN, +inf, no finite logit, or a non-finite embedding or atypicality: its set is full, its
        numbers are NaN, its quadrant and its advice the last.
    atypicality, atypicality_quantile : float64 (n,), or None
    quadrant : int64 (n,), or None
        In the order of `atypicality.groups.QUADRANTS`.
    advice : int64 (n,)
        In the order of `atypicality.formula.ADVICE`; `choices()` are the classes to choose among.
    accepted : bool (n,), or None without `max_risk`
    """

    label: Tensor
    confidence: Tensor
    proba: Tensor
    prediction_set: Tensor
    valid: Tensor
    atypicality: Tensor | None
    atypicality_quantile: Tensor | None
    quadrant: Tensor | None
    advice: Tensor
    accepted: Tensor | None

    def choices(self) -> Tensor:
        """Classes (n, k) that a person is to choose among: the set, and the runner-up where it holds one class.

        Rows whose advice is another have none, as in `Reliability.choices`.
        """
        sets, other = self.prediction_set, torch.where(self.prediction_set, -1.0, self.proba)
        runner_up = nn.functional.one_hot(other.argmax(dim=1), sets.shape[1]).bool()
        alone = sets.sum(dim=1, keepdim=True) == 1
        return (self.advice == CHOOSE)[:, None] & (sets | (alone & runner_up))


torch.export.register_dataclass(ReliabilityTensors, serialized_type_name="atypicality.ReliabilityTensors")


class ReliabilityModule(nn.Module):
    """A fitted `ReliabilityHead` as an `nn.Module`: logits and embeddings in, `ReliabilityTensors` out.

    Its numbers are those of `head.predict`: float64 inside, probabilities in the type of the logits. It moves between
    devices like any module and stays in float64 whatever `half()` or `to(dtype)` ask of the model around it. It
    has no parameters to train and passes no gradients. Where Python refuses a bad row, the module answers `valid` =
    False for it, and other rows do not notice.

    Parameters
    ----------
    head : ReliabilityHead
        As in `from_head`.
    class_names : sequence of k names, optional
        As in `from_head`.
    max_risk : float, optional
        As in `from_head`.

    Attributes
    ----------
    class_names : tuple of str, or None
        Of the columns of logits, probabilities and sets.

    Examples
    --------
    >>> from atypicality.datasets import load_fashion_mnist
    >>> from atypicality.head import ReliabilityHead
    >>> train, calibration, test = load_fashion_mnist()
    >>> head = ReliabilityHead().fit(train=train, calibration=calibration)
    >>> module = ReliabilityModule.from_head(head)     # .to("cuda") moves it
    >>> answer = module(torch.from_numpy(test.logits[:4]), torch.from_numpy(test.embeddings[:4]))
    >>> answer.prediction_set.shape, answer.valid
    (torch.Size([4, 10]), tensor([True, True, True, True]))
    """

    def __init__(self, head: Any, class_names: Any = None, max_risk: float | None = None) -> None:
        super().__init__()
        check_is_fitted(head, "recalibration_")
        if reasons := refusals(head, searched=True):
            raise ValueError(f"this head cannot be a torch module: {'; '.join(reasons)}. Use head.predict instead.")
        formula = moved(head.formula(max_risk), lambda array: array if array.dtype == np.float16 else wide(array))
        self.n_classes = head.n_classes_
        self._order_classes(head.class_names_, class_names)
        self.n_features = None if formula.density is None else head.density_.n_features_in_
        self.takes_atypicality = formula.density is None and formula.scale is not None
        self._host, self._names = formula, [name for name, _ in named_arrays(formula)]
        for name, array in named_arrays(formula):
            self.register_buffer(name, torch.from_numpy(np.array(array)))
        self._assemble()

    def _order_classes(self, own: Any, given: Any) -> None:
        """Columns of the logits in the head's order, and the way back; None where the orders are the same."""
        names = None if given is None else check_class_names(given)
        if names is not None and len(names) != self.n_classes:
            raise ValueError(f"class_names must name the {self.n_classes} classes of the head; got {len(names)}.")
        order = class_order(names, own, "those of the head")
        self.order: Any = None  # no buffers: torch.export cannot do with empty ones
        self.back: Any = None
        if order is not None:
            del self.order, self.back
            self.register_buffer("order", torch.from_numpy(order))
            self.register_buffer("back", torch.from_numpy(np.argsort(order)))
        known = own if names is None else names
        self.class_names = None if known is None else tuple(known.tolist())

    @classmethod
    def from_head(cls, head: Any, *, class_names: Any = None, max_risk: float | None = None) -> Self:
        """The module of a fitted head; refuses parts that are no formula of tensors, with the reasons.

        Parameters
        ----------
        head : ReliabilityHead
            Fitted, with one of our densities or none, a convex recalibrator of ours, and sets that are not randomised.
            The training rows of a `NeighborAtypicality` become part of the module.
        class_names : sequence of k names, optional
            Of the columns that the model gives, compared with the head's: another order is put right on the way in and
            back on the way out, other names are refused. By default the columns are taken to be in the head's order.
        max_risk : float, optional
            As in `ReliabilityHead.predict`: answers then say which predictions are accepted.
        """
        return cls(head, class_names, max_risk)

    def behind(self, model: Any, *, layer: str | None = None) -> "ReliableModel":
        """A `model` with this module behind it: images in, `ReliabilityTensors` out.

        Parameters
        ----------
        model : torch.nn.Module
            The one whose outputs were collected for the head.
        layer : str, optional
            As it was given to `collect`, where it was.

        Examples
        --------
        >>> from atypicality import collect
        >>> from atypicality.head import ReliabilityHead
        >>> torch.manual_seed(0)
        <torch._C.Generator ...>
        >>> model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
        >>> rows = torch.randn(600, 5)
        >>> labels = (model(rows) + torch.randn(600, 2) / 3).argmax(dim=1)
        >>> outputs = collect(model, [(rows, labels)])
        >>> head = ReliabilityHead().fit(train=outputs[:200], calibration=outputs[200:])
        >>> whole = ReliabilityModule.from_head(head).behind(model)
        >>> whole(rows[:4]).prediction_set.shape
        torch.Size([4, 2])
        """
        return ReliableModel(model, self, layer)

    def forward(
        self, logits: Tensor, embeddings: Tensor | None = None, atypicality: Tensor | None = None
    ) -> ReliabilityTensors:
        """Answer for a batch.

        Parameters
        ----------
        logits : tensor of shape (n, k)
            Any float type; -inf masks a class. One column z of a binary model becomes [0, z].
        embeddings : tensor of shape (n, d), optional
            Needed when the head has a density.
        atypicality : tensor of shape (n,), optional
            Needed when the head takes atypicality as given.
        """
        logits = self._checked_logits(logits.detach())
        n = logits.shape[0]
        if self.n_features is not None:
            embeddings = self._checked_embeddings(embeddings, n)
        elif self.takes_atypicality:
            if atypicality is None or atypicality.shape != (n,):
                raise ValueError(f"atypicality must be given, of shape ({n},): this head takes it as it is.")
            atypicality = atypicality.double()[:, None]
        else:
            atypicality = None
        found = guarded(xp, self._formula, logits, embeddings, atypicality)
        label, proba, sets = found.label[:, 0], found.proba, found.prediction_set
        if self.back is not None:
            proba, sets = proba[:, self.back], sets[:, self.back]
            label = torch.where(label < 0, label, self.order[label])
        columns = (found.atypicality, found.atypicality_quantile, found.quadrant, found.advice, found.accepted)
        flat = [None if column is None else column[:, 0] for column in columns]
        return ReliabilityTensors(label, found.confidence[:, 0], proba, sets, found.known[:, 0], *flat)

    def _checked_logits(self, logits: Tensor) -> Tensor:
        if logits.ndim == 2 and logits.shape[1] == 1 and self.n_classes == 2:
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
        if logits.ndim != 2 or logits.shape[1] != self.n_classes:
            raise ValueError(f"logits must have shape (n, {self.n_classes}); got {tuple(logits.shape)}.")
        logits = logits if self.order is None else logits[:, self.order]
        return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()

    def _checked_embeddings(self, embeddings: Any, n: int) -> Tensor:
        if embeddings is None or embeddings.shape != (n, self.n_features):
            got = None if embeddings is None else tuple(embeddings.shape)
            raise ValueError(
                f"embeddings must have shape ({n}, {self.n_features}); got {got}. Pass those of the model and layer "
                "that the head was fitted on."
            )
        return embeddings.detach().double()

    def _assemble(self) -> None:
        """The formula over the buffers as they are now: here and not in `forward`, which may be compiled."""
        buffers = iter([getattr(self, name) for name in self._names])
        self._formula = moved(self._host, lambda _: next(buffers))

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Move buffers as asked, but keep their types: in half precision thresholds would guarantee nothing."""
        before = {name: getattr(self, name) for name in self._names}
        super()._apply(fn, recurse)
        for name, old in before.items():
            if (new := getattr(self, name)).dtype != old.dtype:
                setattr(self, name, old.to(new.device))
        self._assemble()
        return self

    def get_extra_state(self) -> str:
        """What the state does not hold as a tensor: a state of another head is refused by it."""
        if torch.onnx.is_in_onnx_export():  # which asks for the state first
            raise ValueError(
                "torch.onnx.export cannot write a head: write whole.network(), the network alone, and put the head "
                "behind that file with head.export_onnx(path, network=...)."
            )
        return repr(moved(self._host, lambda array: f"array of shape {array.shape}"))

    def set_extra_state(self, state: str) -> None:
        """Refuse a state of another head."""
        if state != self.get_extra_state():
            raise ValueError("the state is that of another head; make the module with from_head, or load that head.")


class ReliableModel(nn.Module):
    """A model and the `ReliabilityModule` behind it, as one module; made by `ReliabilityModule.behind`.

    It is called like the model, in evaluation mode, and answers with `ReliabilityTensors`, without gradients. The layer
    that makes the logits is found as in `collect`, on the first batch.
    """

    def __init__(self, model: Any, head: ReliabilityModule, layer: str | None = None) -> None:
        super().__init__()
        self.model, self.head = model, head
        self.site = None if layer is None else named_site(unwrapped(model, torch), layer)

    def forward(self, *args: Any, **kwargs: Any) -> ReliabilityTensors:
        """Answer for a batch, given as to the model."""
        network = unwrapped(self.model, torch)
        if network.training:
            raise ValueError("the model must be in evaluation mode, as its outputs were collected: call .eval() first.")
        exported = torch.compiler.is_compiling()  # a program that was exported with no_grad inside cannot be loaded
        with contextlib.nullcontext() if exported else _eager(args, kwargs):
            if self.head.n_features is not None and self.site is None:
                if torch.compiler.is_exporting():
                    raise ValueError(
                        "the layer of the embeddings is found by looking at a batch, which torch.export cannot do: "
                        "call this module once before, or give behind(model, layer=...)."
                    )
                self.site = find_site(network, lambda: logits_of(network(*args, **kwargs)), torch)
            found = _tapped(network, self.site, args, kwargs)
            self._check_width(*found[1:])
            return self.head(*found)  # type: ignore[no-any-return]

    def _check_width(self, embeddings: Tensor | None = None) -> None:
        wanted = self.head.n_features
        if embeddings is not None and self.site is not None and wanted not in (None, embeddings.shape[1]):
            raise ValueError(
                f"the input of layer {self.site.name!r} has {embeddings.shape[1]} columns, and the head was fitted on "
                f"embeddings of {wanted}: of another layer? Name it as for collect: "
                "behind(model, layer=...)."
            )

    def network(self) -> nn.Module:
        """The model alone, as a module that returns logits and, where the head needs them, embeddings.

        `torch.onnx.export` writes it to a file that `head.export_onnx(path, network=...)` puts the head behind.
        """
        if self.head.n_features is not None and self.site is None:
            raise ValueError("the layer of the embeddings is found on the first batch: call this module once before.")
        network = unwrapped(self.model, torch)
        return _Network(network, self.site).train(network.training)  # exporters change the mode and set this one again


@contextlib.contextmanager
def _eager(args: Any, kwargs: Any) -> Iterator[None]:
    with torch.no_grad(), naming_shapes(args, kwargs):
        yield


class _Network(nn.Module):
    """What stands before the head."""

    def __init__(self, model: nn.Module, site: Any) -> None:
        super().__init__()
        self.model, self.site = model, site

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """Logits, and embeddings where the head needs them."""
        return _tapped(self.model, self.site, args, kwargs)


def _tapped(network: Any, site: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Logits of a batch, and the embeddings that enter a layer."""
    if site is None:
        return (logits_of(network(*args, **kwargs)),)
    with Tap(site).on(network) as tap:
        logits = logits_of(network(*args, **kwargs))
        return logits, tap.embeddings(logits)
