"""Arrays of other libraries: in as NumPy without a copy where possible, out as the caller's kind."""

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from atypicality import blocks

__all__ = [
    "BLOCK_BYTES", "Device", "beside", "concatenate", "entries_at", "is_float16", "like", "namespace", "on_device",
    "returns_like_input", "row_blocks", "take_columns", "take_rows", "to_device", "to_host", "to_numpy",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
Device = Any  # an array of a library with an array API namespace, in an accelerator's memory

BLOCK_BYTES = 1 << 28
"""Bytes of a block of rows in float64: some copies of it fit beside the data, and a kernel is still busy for long."""
_LARGE = 4 * 1024 * 1024  # bytes from which NumPy's memory has large pages, which a transfer fills twice as fast

HOST_MEMORY = frozenset({1, 3, 11})
"""DLPack's codes for memory that the CPU can read: its own, and what CUDA and ROCm pin there."""


def on_device(values: Any) -> bool:
    """Whether an array is on an accelerator, so that work on it should stay there.

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
    if len(arrays) == 1 and type(arrays[0]) is np.ndarray:
        from array_api_compat import numpy

        return numpy
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
    """`result` as the kind of array that `template` is, on its device; no array API object: NumPy stays NumPy."""
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
    return to_host(values)


def beside(values: Device, like: Device) -> bool:
    """Whether an array of a device is of the library of another, and lies on the same device."""
    from array_api_compat import device

    return namespace(values) is namespace(like) and device(values) == device(like)


def to_device(values: Any, like: Device, dtype: Any = None) -> Device:
    """A host array, or one that is there already, on the device of `like`."""
    from array_api_compat import device, is_array_api_obj

    xp = namespace(like)
    if is_array_api_obj(values) and not isinstance(values, (np.ndarray, np.generic)):
        return values if dtype is None else xp.astype(values, dtype, copy=False)
    host = np.require(values, requirements=["C", "W"])  # torch warns of memory that must not be written
    return xp.asarray(host, dtype=dtype, device=device(like))


def to_host(values: Device) -> NDArray[Any]:
    """A device array as NumPy: for what is small. The transfer waits for the work that makes it."""
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "get"):  # CuPy allows no implicit copy to the host
        return np.asarray(values.get())
    if not hasattr(values, "cpu"):
        return np.asarray(values)
    if values.nbytes < _LARGE:
        return np.asarray(values.detach().cpu())
    host = np.empty(tuple(values.shape), str(values.dtype).rpartition(".")[2])
    namespace(values).from_dlpack(host).copy_(values.detach())  # a view: DLPack never copies here
    return host


def is_float16(values: Device) -> bool:
    """Whether the dtype is IEEE half precision, by its name: the array API standard has no such dtype."""
    return str(values.dtype).rpartition(".")[2] == "float16"


def entries_at(block: Device, columns: Device) -> Device:
    """One entry of every row: (n, 1)."""
    return namespace(block).take_along_axis(block, columns[:, None], axis=1)


def take_rows(values: Any, rows: slice | NDArray[Any]) -> Any:
    """Some rows of an array, by a slice, positions or a mask, on its device."""
    if not on_device(values):
        return blocks.take_rows(values, rows)
    if isinstance(rows, slice):
        return values[rows, ...]
    places = np.arange(values.shape[0])[rows] if rows.dtype == bool else rows
    return namespace(values).take(values, to_device(places, values), axis=0)


def take_columns(values: Any, columns: NDArray[np.intp]) -> Any:
    """Some columns of a matrix, on its device."""
    if not on_device(values):
        return blocks.take_columns(values, columns)
    return namespace(values).take(values, to_device(columns, values), axis=1)


def concatenate(first: Any, second: Any) -> Any:
    """The rows of one array and of another behind them, on their device."""
    if not on_device(first):
        return blocks.concatenate(first, second)
    return namespace(first).concat([first, second], axis=0)


def row_blocks(probs: Device) -> Iterator[slice]:
    """Slices of rows that a step can hold in float64: at least one, also of an array without rows."""
    height = blocks.block_rows(8 * probs.shape[1], budget=BLOCK_BYTES)
    return blocks.row_slices(probs.shape[0], height) if probs.shape[0] else iter((slice(0, 0),))
