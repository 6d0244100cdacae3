"""Captures CUDA graphs with torch, and reads what torch chooses kernels by.

Enters: a function that calls torch and launches kernels. Leaves: the graph of its work, which does
not run. It must not know what is in the graph.

All captures of a device use one stream and one pool of memory. No other code uses the stream, so
that the workspaces which libraries keep for each stream are not used beside a graph. The pool lives
as long as one of its graphs; an empty graph, the anchor, keeps it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tzero import locks
from tzero.adapters.cuda_graphs import CannotRead

__all__ = ["Captured", "Scattered", "capture", "placed", "setting"]

_capturing = locks.lock()  # a device is captured by one thread at a time


class Captured:
    """A captured graph, which keeps its memory.

    ::

        Captured(graph).handle
    """

    __slots__ = ("_graph", "handle")

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph = graph
        self.handle = int(graph.raw_cuda_graph())


class _Place:
    """The stream and the pool in which a device is captured."""

    def __init__(self, device: torch.device) -> None:
        made = ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # makes the context
            result = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(made), _NON_BLOCKING)
            if result or made.value is None:
                raise CannotRead(f"CUDA could not create a stream: error {result}")
            self.stream: Any = torch.cuda.ExternalStream(made.value, device=device)  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()
            self.anchor = self.captured(lambda: torch.empty(1, device=device).zero_())

    def captured(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.stream(self.stream), _uncollected():
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        return graph


_NON_BLOCKING = 1
_places: dict[int, _Place] = {}


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile: what finalizers do would become part of the graph."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def capture(device: torch.device, work: Callable[[], object]) -> Captured:
    """The graph of the work that a function gives to a device. Its errors reach the caller."""
    index = torch.cuda.current_device() if device.index is None else device.index
    with _capturing:
        place = _places.get(index)
        if place is None:
            place = _places[index] = _Place(torch.device("cuda", index))
        try:
            return Captured(place.captured(work))
        except BaseException:
            # torch's allocator may still take the pool for one that is being captured into.
            _places.pop(index, None)
            raise


class Scattered:
    """Takes the memory that C++ code would be given next, so that it gets other memory in each
    capture: what it leaves unset in the parameters of kernels are often addresses of its objects.

    >>> with Scattered() as some:
    ...     some.scatter()
    """

    def __init__(self) -> None:
        self._libc: Any = ctypes.CDLL(None)
        self._libc.malloc.restype = ctypes.c_void_p
        self._taken: list[int] = []

    def __enter__(self) -> Scattered:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._taken:
            self._libc.free(ctypes.c_void_p(each))
        self._taken.clear()

    def scatter(self) -> None:
        """Take more blocks of each small size."""
        for size in range(24, 1048, 16):
            self._taken += filter(None, (self._libc.malloc(size) for _ in range(_BLOCKS)))


_BLOCKS = 12
"""More than the C library keeps for a thread of each size."""


def placed(like: torch.Tensor, address: int) -> torch.Tensor:
    """A tensor with the geometry of another one at some address, which nobody may read or write:
    for captures, which only note the address."""
    last = sum((n - 1) * step for n, step in zip(like.size(), like.stride(), strict=True))
    size = (last + 1) * like.element_size()
    storage = torch._C._construct_storage_from_data_pointer(address, like.device, size)
    made = torch.empty(0, dtype=like.dtype, device=like.device)
    return made.set_(storage, 0, like.size(), like.stride())


def _readers() -> list[Callable[[], Any]]:
    """Functions that return settings from which torch and its libraries choose kernels."""
    names = [
        *("deterministic_algorithms", "deterministic_fill_uninitialized_memory"),
        *("cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_fp16_accumulation"),
        *("cublas_allow_bf16_reduced_precision_reduction", "math_sdp_allow_fp16_bf16_reduction"),
        *("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic"),
        *("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled"),
        *("cudnn_sdp_enabled", "overrideable_sdp_enabled", "fa3_sdp_enabled"),
        *("blas_preferred_backend", "linalg_preferred_backend", "sdp_priority_order"),
    ]
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    made: list[Callable[[], Any]] = []
    if precision is None:
        names += ["cublas_allow_tf32", "cudnn_allow_tf32", "float32_matmul_precision"]
    else:  # then those three raise after a program has set one precision in the new way
        made = [functools.partial(precision, "cuda", each) for each in ("matmul", "conv", "rnn")]
    found = (getattr(torch._C, f"_get_{name}", None) for name in names)
    return [*made, *(each for each in found if each is not None)]


_READERS = _readers()
_numbers: dict[str, int] = {}
_latest: tuple[list[Any], int] = ([], -1)


def setting() -> int:
    """A number for the settings that are in force: the same for the same settings.

    >>> setting() == setting()
    True
    """
    global _latest
    now = [read() for read in _READERS]
    before, number = _latest
    if now == before:
        return number
    number = _numbers.setdefault(repr(now), len(_numbers))
    _latest = now, number
    return number
