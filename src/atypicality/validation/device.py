"""Checks of arrays on a device: the rules and words of `validation`, with the rows read where they lie."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.arrays import namespace
from atypicality.validation import check_matrix_shape, name_rows

__all__ = ["Device", "beside", "device_matrix", "refuse_embeddings", "refuse_rows", "to_device", "to_host"]

Device = Any
"""An array of a library with an array API namespace, in an accelerator's memory."""

_LARGE = 4 * 1024 * 1024  # bytes from which NumPy's memory has large pages, which a transfer fills twice as fast


def device_matrix(values: Device, name: str, *, width: int | None = None) -> Device:
    """A real matrix (n, d) where it lies, without gradients; half precision becomes float32, integers float64.

    Finiteness is not checked here: a result that is not finite leads to `refuse_rows`.
    """
    values = values.detach() if getattr(values, "requires_grad", False) else values
    xp = namespace(values)
    check_matrix_shape(tuple(values.shape), name, width=width)
    if values.dtype in (xp.float32, xp.float64):
        return values
    if "complex" in str(values.dtype):
        raise TypeError(f"{name} must be real numbers; got dtype {values.dtype}.")
    return xp.astype(values, xp.float32 if "float" in str(values.dtype) else xp.float64)


def refuse_rows(bad: Device, name: str, *, first_row: int = 0) -> None:
    """Say that the rows where `bad` (n,) is true, if there are any, are not finite; counted from `first_row`."""
    rows = np.flatnonzero(to_host(bad))
    if rows.size:
        raise ValueError(
            f"{name} must be finite; {name_rows(rows + first_row)} NaN or infinity. Drop or repair those rows."
        )


def refuse_embeddings(rows: Device, dtype: Any, first_row: int = 0) -> None:
    """Say what is wrong with rows (n, d) whose result was not finite: NaN, infinity, or squares that overflow."""
    from atypicality.density.statistics import refuse_rows as refuse_overflow

    xp = namespace(rows)
    refuse_rows(~xp.all(xp.isfinite(rows), axis=1), "embeddings", first_row=first_row)
    refuse_overflow(np.zeros((1, 1)), np.dtype(dtype), first_row=first_row)


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
