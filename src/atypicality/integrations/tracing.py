"""Which layer of a network makes the logits, found by watching one batch go through."""

import contextlib
import difflib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

__all__ = ["Site", "Tap", "find_site", "named_site", "unwrapped"]

WRAPPERS = ("module", "_orig_mod")


class Site(NamedTuple):
    """A layer whose input is the embedding; `pick` says how a row of it is found: "row", "first" or "matching"."""

    name: str
    pick: str


class Call(NamedTuple):
    """One call of a layer: what went in first, and what came out."""

    name: str
    input: Any
    output: Any


def unwrapped(model: Any, torch: Any) -> Any:
    """The network inside DataParallel, DistributedDataParallel and torch.compile."""
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while isinstance(model, parallel) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, parallel) else model._orig_mod
    return model


class Tap:
    """A hook that keeps what the last batch brought to one layer."""

    def __init__(self, site: Site) -> None:
        self.site, self.calls = site, list[Call]()

    @contextlib.contextmanager
    def on(self, network: Any) -> Iterator["Tap"]:
        """Attach to the layer while the block runs."""
        with _watching({self.site.name: network.get_submodule(self.site.name)}, self.calls.append):
            yield self

    def embeddings(self, logits: Any) -> Any:
        """Embeddings (n, d) of the batch whose logits (n, k) these are."""
        if len(self.calls) != 1:
            raise ValueError(
                f"layer {self.site.name!r} must be used once for every batch; it was used {len(self.calls)} times. "
                "Name another layer with layer=."
            )
        call, found = self.calls[0], self.calls[0].input
        if self.site.pick == "matching":
            return found[range(len(found)), _matching_tokens(call.output, logits)]
        if found.ndim == 3:
            return found[:, 0]
        return found.flatten(2).mean(dim=2) if found.ndim > 3 else found


def named_site(network: Any, name: Any) -> Site:
    """The layer that the user names."""
    if not isinstance(name, str):
        raise TypeError(f"layer must be the name of a layer, such as 'fc'; got {type(name).__name__}.")
    modules = dict(network.named_modules())
    plain = name
    while plain not in modules and plain.partition(".")[0] in WRAPPERS:
        plain = plain.partition(".")[2]
    if not plain or plain not in modules:
        close = difflib.get_close_matches(name, list(modules), n=3) or list(_linear(network))[-5:]
        raise ValueError(f"layer must name a layer of the model; {name!r} does not. Close: {', '.join(close)}.")
    return Site(plain, "row")


def find_site(network: Any, forward: Callable[[], Any], torch: Any) -> Site:
    """The last linear layer: the one whose output is, or becomes, the logits that `forward` returns.

    Where that layer ends a head which turns a sequence of tokens into logits by its first token (RoBERTa and
    its kin), the site is that head, and the embedding is the first token's.
    """
    linear, calls = _linear(network), list[Call]()
    heads = dict(network.named_modules())
    heads.pop("")
    seen: list[str] = []

    def keep(call: Call) -> None:
        if call.name in linear:
            seen.append(call.name)
        if not torch.is_tensor(call.input) or not torch.is_tensor(call.output):
            return
        if call.name in linear and call.output.ndim > 2:  # large: only the latest of them is kept
            calls[:] = [kept for kept in calls if kept.output.ndim <= 2]
        if call.name in linear or (call.input.ndim == 3 and call.output.ndim == 2):
            calls.append(call)

    with _watching(heads, keep):
        logits = forward()
    site = _choose([call for call in calls if call.name in linear], seen, logits)
    if site is None:
        raise ValueError(_ambiguous(linear, seen, tuple(logits.shape)))
    around = [call for call in calls if call.name not in linear and site.name.startswith(f"{call.name}.")]
    for call in reversed(around):
        if _same(call.output, logits) and _reads_first_token(heads[call.name], call, logits):
            return Site(call.name, "first")
    return site


def _choose(calls: list[Call], seen: list[str], logits: Any) -> Site | None:
    exact = [call.name for call in calls if _same(call.output, logits)]
    if exact:
        return Site(exact[0], "row") if len(exact) == 1 else None
    for call in calls:
        if call.output.ndim == 3 and call.output.shape[-1] == logits.shape[-1]:
            tokens = _matching_tokens(call.output, logits)
            if _same(call.output[range(len(tokens)), tokens], logits):
                return Site(call.name, "matching")
    wide = [call.name for call in calls if call.output.shape == logits.shape]
    return Site(wide[0], "row") if len(wide) == 1 and wide[0] == seen[-1] else None


def _same(output: Any, logits: Any) -> bool:
    return output.shape == logits.shape and bool((output.to(logits.dtype) == logits).all())


def _matching_tokens(output: Any, logits: Any) -> Any:
    """For each row (n,) the token (n, t, k) whose scores are its logits (n, k)."""
    return (output.to(logits.dtype) - logits[:, None]).abs().sum(dim=2).argmin(dim=1)


def _reads_first_token(head: Any, call: Call, logits: Any) -> bool:
    """Whether a head gives the same logits for the first token alone."""
    try:
        alone = head(call.input[:, :1])
    except Exception:  # a head that wants more than one token is not of this kind, whatever it raises
        return False
    close = (alone - logits).abs().max() <= 1e-3 * logits.abs().max() if alone.shape == logits.shape else False
    return bool(close)


def _linear(network: Any) -> dict[str, Any]:
    from torch import nn

    return {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)}


def _ambiguous(linear: dict[str, Any], seen: list[str], shape: tuple[int, ...]) -> str:
    used = list(dict.fromkeys(seen)) or list(linear)
    listed = ", ".join(f"{name} ({linear[name].in_features} -> {linear[name].out_features})" for name in used[-12:])
    return (
        f"no single linear layer of this model is the one that makes its logits {shape}. Name the layer whose input "
        f"is the embedding with layer=. Linear layers, in the order they ran: {listed or 'none'}."
    )


@contextlib.contextmanager
def _watching(modules: dict[str, Any], keep: Callable[[Call], None]) -> Iterator[None]:
    """Tell `keep` about every call of the modules while the block runs."""

    def hook_of(name: str) -> Any:
        def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            keep(Call(name, args[0] if args else next(iter(kwargs.values()), None), output))

        return hook

    handles = []
    try:
        for name, module in modules.items():
            handles.append(module.register_forward_hook(hook_of(name), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
