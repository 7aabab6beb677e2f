"""Batches of any loader, taken apart: what the model is called with, and the labels."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.validation import check_labels

__all__ = ["Batch", "check_loader", "logits_of", "naming_shapes", "read_batch", "refuse_shuffling", "to_array"]

LABELS = ("labels", "label")
IDS = ("ids", "id", "idx", "index")
SHOWN = 8  # parameters of a forward, in an error


@dataclass(frozen=True)
class Batch:
    """How to call a model, the labels (n,) where there are any, and entries of a dict that could be these if not."""

    network: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    labels: NDArray[np.intp] | None
    could_be_labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        for value in _tensors((self.args, self.kwargs)):
            return int(value.shape[0])
        raise TypeError("a batch must hold tensors with one row per sample; it holds none.")

    def on(self, device: Any) -> "Batch":
        """The same batch with its tensors on a device."""
        return replace(self, args=_moved(self.args, device), kwargs=_moved(self.kwargs, device))

    def logits(self) -> Any:
        """Logits (n, k) that the model gives."""
        with naming_shapes(self.args, self.kwargs):
            answer = self.network(*self.args, **self.kwargs)
        return logits_of(answer)


@contextlib.contextmanager
def naming_shapes(args: Any, kwargs: Any) -> Iterator[None]:
    """Add to an error of a model, whatever it is, what the model was called with: one sample is no batch."""
    try:
        yield
    except Exception as error:
        shapes = ", ".join(str(tuple(value.shape)) for value in _tensors((args, kwargs)))
        error.add_note(
            f"A batch is expected, whose first axis counts samples; the model was called with shape {shapes}. "
            "One image is the batch image[None]."
        )
        if found := [list(map(str, value)) for value in args if isinstance(value, Mapping)]:
            error.add_note(f"It was given a dict as it is ({', '.join(found[0])}): give the entry that is the input.")
        raise


def read_batch(batch: Any, network: Any) -> Batch:
    """Inputs and labels of a batch: a tensor, a pair (inputs, labels), or a dict with the key "labels"."""
    labels = None
    if isinstance(batch, Mapping):
        labels = next((batch[name] for name in LABELS if name in batch), None)
        inputs: Any = {name: value for name, value in batch.items() if name not in LABELS}
    elif isinstance(batch, (tuple, list)):
        if len(batch) > 2 or not batch:
            raise TypeError(
                f"a batch must be a tensor, a pair (inputs, labels) or a dict; got a {type(batch).__name__} of "
                f"{len(batch)} parts. Let the loader give pairs."
            )
        inputs, labels = (*batch, None)[:2]
    else:
        inputs = batch
    kwargs: dict[str, Any] = {}
    likely: tuple[str, ...] = ()
    if isinstance(inputs, Mapping):
        args, kwargs = _accepted(inputs, network)
        likely = tuple(name for name, value in inputs.items() if name not in (*kwargs, *IDS) and _is_column(value))
    else:
        args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    known = None if labels is None else check_labels(to_array(labels), "the labels of a batch")
    read = Batch(network, args, kwargs, known, likely if known is None else ())
    if read.labels is not None and read.labels.size != len(read):
        raise ValueError(f"a batch must have one label per row; got {read.labels.size} for {len(read)} rows.")
    return read


def check_loader(loader: Any, torch: Any) -> None:
    """Refuse what gives single samples where batches are asked for: a tensor, a pair of them, a data set."""
    if torch.is_tensor(loader) or (isinstance(loader, tuple) and loader and all(map(torch.is_tensor, loader))):
        came = "a tensor" if torch.is_tensor(loader) else "a tuple of tensors"
        raise TypeError(f"loader must give batches; got {came}. For one batch pass a list of it, [(inputs, labels)].")
    data = torch.utils.data
    if isinstance(loader, data.Dataset) and not isinstance(loader, data.IterableDataset):
        raise TypeError(
            f"loader must give batches; got a data set ({type(loader).__name__}), which gives single samples. "
            "Pass torch.utils.data.DataLoader(dataset, batch_size=256)."
        )


def refuse_shuffling(loader: Any, torch: Any) -> None:
    """Refuse a loader whose order changes from run to run, for rows that must continue where they ended."""
    if isinstance(getattr(loader, "sampler", None), torch.utils.data.RandomSampler):
        raise ValueError(
            "loader must give the same order in every run when out= is given; build it with shuffle=False."
        )


def logits_of(answer: Any) -> Any:
    """Logits (n, k) of what a model returned: a tensor, something with .logits, a dict, or a tuple led by them."""
    if isinstance(answer, Mapping) and "logits" in answer:
        answer = answer["logits"]
    elif hasattr(answer, "logits"):
        answer = answer.logits
    elif isinstance(answer, (tuple, list)) and answer:
        answer = answer[0]
    if not hasattr(answer, "ndim") or answer.ndim not in (1, 2):
        what = f"shape {tuple(answer.shape)}" if hasattr(answer, "shape") else type(answer).__name__
        raise TypeError(f"the model must return logits (n, k), alone, first in a tuple or as .logits; got {what}.")
    return answer[:, None] if answer.ndim == 1 else answer


def to_array(tensor: Any) -> NDArray[Any]:
    """A NumPy array of a tensor on any device; bfloat16, which NumPy lacks, becomes float32."""
    if not hasattr(tensor, "detach"):
        return np.asarray(tensor)
    tensor = tensor.detach()
    array: NDArray[Any] = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).cpu().numpy()
    return array


def _accepted(inputs: Mapping[str, Any], network: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the model's forward is called with: entries by its names (tokenised data sets carry their texts along).

    Where it knows none of them and takes one input, that is the only tensor of the batch that is no id.
    """
    parameters = inspect.signature(network.forward).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return (), {name: value for name, value in inputs.items() if hasattr(value, "shape")}
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [one.name for one in parameters if one.kind in kinds]
    needed = [one.name for one in parameters if one.kind in kinds and one.default is one.empty]
    known = {one.name for one in parameters}
    found = {name: value for name, value in inputs.items() if name in known}
    if found and set(needed) <= set(found):
        return (), found
    tensors = [value for name, value in inputs.items() if name not in IDS and _is_tensor(value)]
    if not found and len(tensors) == 1 and 1 in (len(needed), len(names)):
        return (tensors[0],), {}
    takes = ", ".join(names[:SHOWN]) + (", ..." if names[SHOWN:] else "")
    raise TypeError(
        f"a batch that is a dict must have entries by the names of the model's inputs; it has {', '.join(inputs)} "
        f"(labels aside), and forward takes {takes or 'none by name'}. Let the loader give pairs (inputs, labels), "
        'such as ((batch["image"], batch["label"]) for batch in loader).'
    )


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and len(value.shape) > 0


def _is_column(value: Any) -> bool:
    """Whether this is one integer per sample."""
    return _is_tensor(value) and len(value.shape) == 1 and to_array(value[:0]).dtype.kind in "iu"


def _tensors(values: Any) -> Iterator[Any]:
    if _is_tensor(values):
        yield values
    elif isinstance(values, (Mapping, tuple, list)):
        for value in values.values() if isinstance(values, Mapping) else values:
            yield from _tensors(value)


def _moved(values: Any, device: Any) -> Any:
    if hasattr(values, "to"):
        return values.to(device)
    if isinstance(values, Mapping):
        return {name: _moved(value, device) for name, value in values.items()}
    return tuple(_moved(value, device) for value in values) if isinstance(values, (tuple, list)) else values
