"""Triton's driver for the CPU: activation, device, loading and timing of kernels.

Enters: queries from Triton, and binaries. Leaves: what a GPU driver would return, so that code
written for GPUs works unchanged. It must not know how kernels are compiled.

Triton takes the one concrete subclass of ``DriverBase`` in this module, so there must be only one.
Triton imports this module during its own import, so import triton before it.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from tzero import settings
from tzero.cpu import extra, loading, pool, sealing, triton_compat
from tzero.cpu.launcher import Launcher
from tzero.versions import require

if TYPE_CHECKING:
    import torch

__all__ = ["CPUDriver"]

_C_TYPES = {
    "i1": "int8_t",
    "i8": "int8_t",
    "i16": "int16_t",
    "i32": "int32_t",
    "i64": "int64_t",
    "u1": "uint8_t",
    "u8": "uint8_t",
    "u16": "uint16_t",
    "u32": "uint32_t",
    "u64": "uint64_t",
    "fp16": "uint16_t",
    "bf16": "uint16_t",
    "fp32": "float",
    "f32": "float",
    "fp64": "double",
}


class CPUDriver(DriverBase):
    """The CPU as Triton's device."""

    def __init__(self) -> None:
        require("python", "triton")  # not at import: Triton's GPU drivers must work beside it
        _begin_bundles()
        super().__init__()
        self.utils = _Utils
        self.launcher_cls = Launcher

    @staticmethod
    def is_active() -> bool:
        """As TZERO_CPU says; when it is unset, whether no GPU driver of Triton's is active."""
        _begin_bundles()
        forced = settings.current().cpu
        if forced is None:
            return not any(driver.is_active() for driver in triton_compat.gpu_drivers())
        if forced:
            triton_compat.deactivate_gpu_drivers()
        return forced

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", platform.machine(), 1)

    def get_current_device(self) -> str:
        return "cpu"  # as torch.cpu.current_device() returns

    def set_current_device(self, device: object) -> None:
        """Do nothing: there is only one device."""

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> type[_DeviceInterface]:
        return _DeviceInterface

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "void*" if ty.startswith("*") else _C_TYPES[ty]

    def get_benchmarker(self) -> Callable[..., Any]:
        return do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """An empty tensor: kernels are timed with warm caches. Clearing the caches would evict
        the interpreter too, and the measurement would include that."""
        import torch

        return torch.empty(0, dtype=torch.int32)

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()


def _begin_bundles() -> None:
    """With a bundle, or while one is collected, let all of Triton's kernels compile through tzero
    from the first launch on, also in a program that never imports tzero. Triton asks each backend
    whether it is active, on a GPU too, before it launches anything."""
    now = settings.now()
    if now.bundle is not None or now.collect is not None:
        # By its name, since this package may not know that one: it needs all of Triton, and torch.
        importlib.import_module("tzero.backends.triton")


class _Utils:
    """The functions behind ``driver.active.utils``."""

    @staticmethod
    def load_binary(
        name: str, kernel: bytes, shared: int, device: object
    ) -> tuple[ctypes.CDLL, int, int, int, int]:
        """Return library, kernel address, registers, spills, threads per program.

        The last three mean nothing on a CPU. Registers is not 0, because occupancy computations
        divide by it.
        """
        directory = triton_compat.cache_directory()
        pool.load(directory)  # before the kernel, which resolves libm's functions through it
        sealing.require_verified(name, kernel, directory)
        library = loading.open_object(kernel, name)
        address = ctypes.cast(library.tz_kernel, ctypes.c_void_p).value
        assert address is not None  # a function that was found has an address
        return library, address, 32, 0, 1 << 30

    @staticmethod
    def unload_module(module: ctypes.CDLL) -> None:
        """Unload a kernel; Triton calls this when the kernel's last reference is gone."""
        loading.close_object(module)

    @staticmethod
    def get_device_properties(device: object) -> dict[str, Any]:
        """The keys of Triton's GPU drivers; clock rates and bus width are unknown, so 0."""
        import torch

        return {
            "max_shared_mem": 1 << 40,
            "max_num_regs": 1 << 16,
            "multiprocessor_count": torch.get_num_threads(),
            "warpSize": 1,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
            "mem_bus_width": 0,
            "arch": platform.machine(),
        }

    @staticmethod
    def set_printf_fifo_size(size: int) -> None:
        """Do nothing: ``tl.device_print`` is unbuffered here."""


class _Event:
    """A point in time, with the methods of torch.cuda.Event that benchmarks use."""

    def __init__(self, enable_timing: bool = False, **kwargs: object) -> None:
        self._seconds = 0.0

    def record(self, stream: object = None) -> None:
        self._seconds = time.perf_counter()

    def elapsed_time(self, end: _Event) -> float:
        return (end._seconds - self._seconds) * 1e3

    def synchronize(self) -> None:
        """Do nothing: launches are synchronous."""

    def query(self) -> bool:
        return True


class _DeviceInterface:
    """The part of torch.cuda that ``triton.testing`` uses; torch.cpu lacks timed events."""

    Event = _Event

    @staticmethod
    def synchronize(device: object = None) -> None:
        """Do nothing: launches are synchronous."""

    @staticmethod
    def current_device() -> str:
        return "cpu"

    @staticmethod
    def device_count() -> int:
        return 1


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[torch.Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Time ``fn`` in milliseconds by the wall clock; arguments as ``triton.testing.do_bench``."""
    if return_mode not in _SUMMARIES:
        raise ValueError(f"return_mode is {return_mode!r}; allowed: {', '.join(_SUMMARIES)}.")
    fn()
    once = statistics.median(_timed(fn, grad_to_none) for _ in range(5))
    for _ in range(_repetitions(warmup, once)):
        fn()
    times = [_timed(fn, grad_to_none) for _ in range(_repetitions(rep, once))]
    if quantiles is None:
        return _SUMMARIES[return_mode](times)
    found = [_quantile(sorted(times), each) for each in quantiles]
    return found[0] if len(found) == 1 else found


_SUMMARIES: dict[str, Callable[[list[float]], Any]] = {
    "mean": statistics.mean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "all": list,
}


def _repetitions(budget: float, once: float) -> int:
    return max(1, min(100_000, int(budget / max(once, 1e-4))))


def _timed(fn: Callable[[], Any], grad_to_none: Sequence[torch.Tensor] | None) -> float:
    for tensor in grad_to_none or ():
        tensor.grad = None
    start = time.perf_counter()
    fn()
    return (time.perf_counter() - start) * 1e3


def _quantile(ordered: Sequence[float], at: float) -> float:
    if not 0 <= at <= 1:
        raise ValueError(f"quantile {at} is not between 0 and 1.")
    position = at * (len(ordered) - 1)
    below = math.floor(position)
    above = math.ceil(position)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


if settings.current().cpu:
    triton_compat.deactivate_gpu_drivers()

extra.offer()
