"""Logits and embeddings of any PyTorch classifier, collected batch by batch, in memory or on disk."""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality.blocks.progress import track
from atypicality.integrations.batches import LABELS, Batch, check_loader, read_batch, refuse_shuffling, to_array
from atypicality.integrations.row_files import RowFolder, check_names, only_writer
from atypicality.integrations.tracing import Site, Tap, find_site, named_site, unwrapped
from atypicality.outputs import ModelOutputs
from atypicality.outputs.class_names import are_integers, check_class_names
from atypicality.outputs.paths import check_target, replacing
from atypicality.validation import check_choice, require, warn, warn_of_probabilities

__all__ = ["collect"]

Arrays = dict[str, NDArray[Any]]
SAME_ROWS = 1e-2
"""How far repeated rows may differ, relative to their largest entry: other batches, devices and precisions round
differently, another model differs by more."""


def collect(
    model: Any,
    loader: Iterable[Any],
    class_names: ArrayLike | None = None,
    *,
    layer: str | None = None,
    out: str | os.PathLike[str] | None = None,
    device: Any = None,
    autocast: str | None = None,
) -> ModelOutputs:
    """Run a classifier over batches and keep its logits, its labels, and the embeddings that enter its last layer.

    The last layer is found by tracing one batch: the linear layer whose output is the logits. Where that layer ends a
    head that reads the first token of a sequence (RoBERTa and its kin), the embedding is that token's, as it enters the
    head; where logits are those of one token among many (GPT-2 and Llama as classifiers), it is that token's.

    Parameters
    ----------
    model : torch.nn.Module
        Used in evaluation mode and without gradients; its modes, hooks, gradients and device are afterwards what
        they were, also after an error. DataParallel and torch.compile are looked through: the network inside runs.
    loader : iterable of batches
        Tensors, pairs (inputs, labels), or dicts such as a tokenizer makes; a dict's labels are "labels" or "label",
        and its inputs have the names of parameters of `forward`, or the only other tensor is the only input.
    class_names : sequence of k distinct names, optional
        The class of each column of the logits, stored with the outputs. A folder that was begun takes the names of the
        latest run that gives some.
    layer : str, optional
        Name of another layer (as in `model.named_modules()`) whose input is the embedding. Of a sequence (n, t, d) the
        first token is taken, of maps (n, c, h, w) the mean over places.
    out : path, optional
        A folder to write to, batch by batch, instead of memory. A run that was stopped, in whatever way, goes on where
        it ended when it is started again with the same model and loader; the loader's order must not change.
    device : str or torch.device, optional
        Where to run; by default where the model is.
    autocast : {"float16", "bfloat16"}, optional
        Mixed precision; by default the model's own.

    Returns
    -------
    ModelOutputs
        Memory-mapped where `out` is given.

    Raises
    ------
    ValueError
        When no single linear layer makes the logits: the message lists the candidates for `layer`.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> outputs = collect(model, [(torch.ones(5, 4), torch.tensor([0, 1, 2, 0, 1]))], ["ant", "cat", "dog"])
    >>> outputs
    ModelOutputs(5 rows, 3 classes; logits float32 (5, 3), embeddings float32 (5, 8), labels)
    >>> outputs.class_names.tolist()
    ['ant', 'cat', 'dog']
    """
    torch = require("torch", extra="torch", feature="collect")
    check_choice(autocast, "autocast", (None, "float16", "bfloat16"))
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    network = unwrapped(model, torch)
    names = None if class_names is None else _check_class_names(class_names)
    check_loader(loader, torch)
    if out is not None:
        check_target(out, folder=True)
        refuse_shuffling(loader, torch)
    with _ready(network, device, autocast, torch) as place, contextlib.ExitStack() as stack:
        batches = (read_batch(batch, network) for batch in loader)
        first = next(batches, None)
        if first is None:
            raise ValueError("loader must give at least one batch; it gave none.")
        site = find_site(network, first.on(place).logits, torch) if layer is None else named_site(network, layer)
        if out is not None:
            stack.enter_context(only_writer(out))
        rows = _Memory() if out is None else RowFolder(out, f"the input of layer {site.name!r}")
        total = len(loader) if isinstance(loader, Sized) else None
        _collect(network, itertools.chain([first], batches), site, rows, place, total, names)
        if out is not None and names is not None:
            with replacing(Path(out) / "class_names.npy") as temporary, open(temporary, "wb") as file:
                np.save(file, names)
    return rows.outputs(names) if isinstance(rows, _Memory) else ModelOutputs.load(rows.path)


def _check_class_names(class_names: ArrayLike) -> NDArray[Any]:
    """Names that no label of a loader, which is a column, could be taken for, unless it is that column's."""
    names = check_class_names(class_names)
    columns = np.arange(names.size).astype(str)
    if are_integers(names) and np.isin(names[names != columns], columns).any():
        raise ValueError(
            "class_names that are integers must be 0, 1, 2, ... in this order, because labels are columns; "
            f"got {', '.join(names[:3])}{', ...' if names.size > 3 else ''}. Pass words, such as 'class 3'."
        )
    return names


def _check_columns(names: NDArray[Any] | None, logits: NDArray[Any]) -> None:
    n_classes = max(2, logits.shape[1])  # one logit is that of the second of two classes
    if names is not None and names.size != n_classes:
        raise ValueError(f"class_names must name the {n_classes} classes of the logits; got {names.size}.")


def _collect(
    network: Any,
    batches: Iterator[Batch],
    site: Site,
    rows: "RowFolder | _Memory",
    place: Any,
    total: int | None,
    names: NDArray[Any] | None,
) -> None:
    """Append every row that is not there yet, after a look whether those that are there are the same."""
    seen, done = 0, rows.rows
    labels = rows.first("labels", done) if isinstance(rows, RowFolder) and "labels" in rows else None
    with Tap(site).on(network) as tap:
        for batch in track(batches, "Collecting", total=total, unit="batches"):
            start, seen = seen, seen + len(batch)
            if start < done and labels is not None and batch.labels is not None:
                _check_same(rows, "labels", labels[start:seen], batch.labels)
            if start and seen <= done:
                continue
            moved = batch.on(place)
            arrays = _run(moved, tap)
            if start == 0:
                _warn_of_inputs(tap, moved)
                _warn_of_outputs(batch, arrays["logits"])
                _check_columns(names, arrays["logits"])
            if start == 0 and isinstance(rows, RowFolder) and done:
                for name, array in arrays.items():
                    _check_same(rows, name, rows.first(name, seen), array)
            if rows.complete:
                return
            if seen > done:
                rows.append({name: array[max(0, done - start) :] for name, array in arrays.items()})
    if seen < done:
        raise ValueError(f"loader gave {seen} rows, and {done} of an earlier run are in the folder. Choose another.")
    rows.finish()


def _run(batch: Batch, tap: Tap) -> Arrays:
    tap.calls.clear()  # the loader may have used the model too
    logits = batch.logits()
    arrays = {"logits": to_array(logits), "embeddings": to_array(tap.embeddings(logits))}
    if arrays["logits"].dtype == np.float16:
        arrays["logits"] = arrays["logits"].astype(np.float32)
    if batch.labels is not None:
        arrays["labels"] = batch.labels.astype(np.int64)
    for name, array in arrays.items():
        if array.shape[0] != len(batch):
            raise ValueError(f"{name} must have one row per sample; got {array.shape[0]} for {len(batch)} samples.")
    return arrays


def _warn_of_inputs(tap: Tap, batch: Batch) -> None:
    """Warn where the embeddings are means of the model's own inputs, as when a first block is named for its output."""
    found = tap.calls[0].input
    if found.ndim > 2 and any(found is value for value in (*batch.args, *batch.kwargs.values())):
        warn(
            f"layer {tap.site.name!r} reads the model's own input {tuple(found.shape)}, so the embeddings are it. "
            "The embedding is what enters the named layer: name the one that comes after, or leave layer= out."
        )


def _warn_of_outputs(batch: Batch, logits: NDArray[Any]) -> None:
    """Warn at the first batch, before hours of others, of what is found out when a head is fitted."""
    warn_of_probabilities(logits)
    if batch.could_be_labels:
        warn(
            f"no labels are collected: those of a dict are its {' or '.join(map(repr, LABELS))}, and "
            f"{', '.join(map(repr, batch.could_be_labels))} is left out. Rename the entry, or let the loader give "
            "pairs (inputs, labels), if these are the labels."
        )


def _check_same(rows: Any, name: str, stored: NDArray[Any], new: NDArray[Any]) -> None:
    """Refuse to go on where an earlier run wrote something else for the same rows."""
    if not _close(stored, new[: len(stored)]):
        raise ValueError(
            f"the folder {str(rows.path)!r} holds {name} of another model or loader: rows that are there differ. "
            "Choose another folder, or go on with the model and the order of rows that it was begun with."
        )


def _close(stored: NDArray[Any], new: NDArray[Any]) -> bool:
    if stored.shape != new.shape:
        return False
    old, recent = stored.astype(np.float64), new.astype(np.float64)
    allowed = SAME_ROWS * np.abs(old[np.isfinite(old)]).max(initial=0.0) if stored.dtype.kind == "f" else 0.0
    return np.allclose(recent, old, rtol=0, atol=allowed, equal_nan=True)


class _Memory:
    """Rows kept in memory, with the face of a `RowFolder`."""

    rows, complete = 0, False

    def __init__(self) -> None:
        self._parts: list[Arrays] = []

    def append(self, arrays: Arrays) -> None:
        self._parts.append(arrays)
        check_names(self._parts[0], arrays)

    def finish(self) -> None:
        pass

    def outputs(self, class_names: NDArray[Any] | None) -> ModelOutputs:
        joined: dict[str, Any] = {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}
        return ModelOutputs(**joined, class_names=class_names)


@contextlib.contextmanager
def _ready(network: Any, device: Any, autocast: str | None, torch: Any) -> Iterator[Any]:
    """The network in evaluation mode on its device, which is given; everything is put back afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    devices = {value.device for value in itertools.chain(network.parameters(), network.buffers())}
    here = next(iter(devices), torch.device("cpu"))
    place = here if device is None else torch.device(device)
    if device is not None and len(devices) > 1:
        raise ValueError(f"device must be left out for a model that lies on {len(devices)} devices.")
    try:
        network.eval()
        if place != here:
            network.to(place)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())  # not inference mode: what a model caches must stay usable in training
            stack.enter_context(_uncompiled(network, torch))
            if autocast is not None:
                stack.enter_context(torch.autocast(place.type, dtype=getattr(torch, autocast)))
            yield place
    finally:
        if place != here:
            network.to(here)
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def _uncompiled(network: Any, torch: Any) -> Iterator[None]:
    """Run parts that were compiled as they were written: hooks added after compilation are not seen otherwise."""
    compiled = any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in network.modules())
    with torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext():
        yield
