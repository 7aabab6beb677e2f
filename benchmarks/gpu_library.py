"""The library whose arrays lie on the device: how it makes numbers, waits, and what the machine under it can do."""

import contextlib
import gc
import importlib
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from atypicality import arrays

__all__ = ["CuPyLibrary", "TorchLibrary", "best_seconds", "driver", "library", "measured_rates"]


class TorchLibrary:
    """PyTorch, on CUDA where there is some; otherwise its CPU tensors are made to count as lying on a device."""

    name = "torch"

    def __init__(self) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.cuda = bool(self.torch.cuda.is_available())
        self.device = "cuda" if self.cuda else "cpu"
        if not self.cuda:
            arrays.HOST_MEMORY = frozenset()
        self.xp: Any = importlib.import_module("array_api_compat.torch")
        self.half_product = self._half_product if self.cuda else None

    def normals(self, seed: int) -> Callable[..., Any]:
        """A seeded source of float32 normal numbers on the device."""
        generator = self.torch.Generator(self.device).manual_seed(seed)
        return lambda *shape: self.torch.randn(shape, generator=generator, device=self.device)

    def synchronise(self) -> None:
        """Wait until the device has done what it was told."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def free(self) -> None:
        """Give memory that is held for later back to the device."""
        gc.collect()
        if self.cuda:
            self.torch.cuda.empty_cache()

    @contextlib.contextmanager
    def tf32(self) -> Iterator[None]:
        """Float32 products on tensor cores, with inputs rounded to TF32."""
        before = self.torch.get_float32_matmul_precision()
        self.torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            self.torch.set_float32_matmul_precision(before)

    def _half_product(self, rows: Any) -> Any:
        """A float32 product of half-precision operands."""
        return self.torch.mm(rows, rows, out_dtype=self.torch.float32)

    def describe(self) -> str:
        """Name of the device."""
        return str(self.torch.cuda.get_device_name()) if self.cuda else "CPU"


class CuPyLibrary:
    """CuPy, on the current CUDA device."""

    name, device, cuda, half_product = "cupy", None, True, None

    def __init__(self) -> None:
        self.cupy: Any = importlib.import_module("cupy")
        self.xp: Any = importlib.import_module("array_api_compat.cupy")

    def normals(self, seed: int) -> Callable[..., Any]:
        """A seeded source of float32 normal numbers on the device."""
        generator = self.cupy.random.default_rng(seed)
        return lambda *shape: generator.standard_normal(shape, dtype=self.cupy.float32)

    def synchronise(self) -> None:
        """Wait until the device has done what it was told."""
        self.cupy.cuda.Device().synchronize()

    def free(self) -> None:
        """Give memory that is held for later back to the device."""
        gc.collect()
        self.cupy.get_default_memory_pool().free_all_blocks()

    def describe(self) -> str:
        """Name of the device."""
        name = self.cupy.cuda.runtime.getDeviceProperties(self.cupy.cuda.Device().id)["name"]
        return name.decode() if isinstance(name, bytes) else str(name)


def library(name: str) -> Any:
    """The library of this name."""
    return {"torch": TorchLibrary, "cupy": CuPyLibrary}[name]()


def best_seconds(lib: Any, run: Callable[[], Any], repeats: int = 3) -> tuple[Any, float]:
    """What a call returns, and its best seconds after one call that does not count; the device is waited for."""
    result, best = run(), float("inf")
    for _ in range(repeats):
        result = None  # so that two results never lie in memory
        lib.synchronise()
        start = time.perf_counter()
        result = run()
        lib.synchronise()
        best = min(best, time.perf_counter() - start)
    return result, best


def measured_rates(lib: Any, scale: float) -> dict[str, float]:
    """Operations per second of square products, and bytes per second of a copy, read and written."""
    size, normals = max(256, int(8192 * min(1.0, scale**0.5))), lib.normals(0)
    single = normals(size, size)
    double, flops = lib.xp.astype(single, lib.xp.float64), 2.0 * size**3
    rates = {"fp64": _rate(lib, lambda: double @ double, flops), "fp32": _rate(lib, lambda: single @ single, flops)}
    if lib.half_product:
        with lib.tf32():
            rates["tf32"] = _rate(lib, lambda: single @ single, flops)
        half = lib.xp.astype(single, lib.xp.float16)
        rates["half"] = _rate(lib, lambda: lib.half_product(half), flops)
    wide = normals(max(1 << 20, int((1 << 30) * min(1.0, scale))))
    rates["copy"] = _rate(lib, lambda: lib.xp.asarray(wide, copy=True), 8.0 * wide.shape[0])
    return rates


def driver() -> str:
    """Version of the NVIDIA driver, or nothing."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return ""


def _rate(lib: Any, run: Callable[[], Any], work: float) -> float:
    return work / best_seconds(lib, run, repeats=10)[1]
