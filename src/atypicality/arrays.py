"""Arrays of other libraries: in as NumPy without a copy where possible, out as the caller's kind."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["like", "namespace", "on_device", "returns_like_input", "to_numpy"]

F = TypeVar("F", bound=Callable[..., Any])

HOST_MEMORY = frozenset({1, 3, 11})
"""DLPack's codes for memory that the CPU can read: its own, and what CUDA and ROCm pin there."""


def on_device(values: Any) -> bool:
    """Whether an array lies in an accelerator's memory, so that work on it should stay there.

    >>> on_device(np.zeros(3))
    False
    """
    if isinstance(values, np.ndarray):
        return False
    where = getattr(values, "__dlpack_device__", None)
    return where is not None and int(where()[0]) not in HOST_MEMORY


def namespace(*arrays: Any) -> Any:
    """The array API namespace of arrays of one library: looked up, so that no framework is imported here.

    >>> namespace(np.zeros(3)).__name__
    'array_api_compat.numpy'
    """
    from array_api_compat import array_namespace

    return array_namespace(*arrays)


def to_numpy(values: Any, name: str) -> NDArray[Any]:
    """Any array-like as a NumPy array: memory maps stay maps, torch tensors on the CPU share their memory.

    Other subclasses, `np.matrix` among them, become the plain array that they hold.

    A vector on an accelerator is copied, being small; a matrix there is refused.

    >>> to_numpy([[1, 2]], "logits").shape
    (1, 2)
    """
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(
            f"{name} must not be a masked array: its mask would be lost. Pass .filled(...) or drop those rows."
        )
    if type(values) is np.ndarray or isinstance(values, np.memmap):
        return values
    if isinstance(values, np.ndarray):
        return values.view(np.ndarray)
    if type(values).__module__.partition(".")[0] == "scipy" and hasattr(values, "toarray"):
        raise TypeError(f"{name} must be a dense array; got a sparse {type(values).__name__}. Pass .toarray().")
    if getattr(values, "requires_grad", False):
        values = values.detach()
    if hasattr(values, "numpy") and hasattr(values, "is_floating_point") and str(values.dtype) == "torch.bfloat16":
        values = values.float()  # NumPy has no bfloat16; float32 holds every one of its values
    if on_device(values):
        return _vector_to_host(values, name)
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name} must be an array of numbers with rows of equal length; {error}") from error


def like(result: NDArray[Any], template: Any) -> Any:
    """`result` as the kind of array that `template` is, and where it lies; no array API object: NumPy stays NumPy."""
    if isinstance(template, np.ndarray) or not hasattr(template, "__dlpack__") or not isinstance(result, np.ndarray):
        return result
    from array_api_compat import device

    return namespace(template).asarray(result, device=device(template))


def returns_like_input(method: F) -> F:
    """Let a scoring method compute in NumPy and answer in the kind of array of its first argument."""
    first = list(inspect.signature(method).parameters)[1]

    @wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return like(method(self, *args, **kwargs), args[0] if args else kwargs.get(first))

    return wrapped  # type: ignore[return-value]  # same signature as `method`


def _vector_to_host(values: Any, name: str) -> NDArray[Any]:
    if values.ndim > 1:
        raise TypeError(
            f"{name} is on an accelerator, where this step cannot be done; move it to the CPU first, for example "
            "with .cpu() or .get()."
        )
    from atypicality.validation.device import to_host

    return to_host(values)
