"""What the driver is asked to launch, to the byte: launches are captured in a graph and read there.

Enters: a function that launches kernels. Leaves, for each launch: grid, block, shared memory, the
attributes, and the bytes of each parameter. It must not know who launched.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

_COOPERATIVE, _CLUSTER, _POLICY = 2, 4, 5  # numbers of the driver


@dataclass(frozen=True, slots=True)
class Queued:
    """One launch."""

    function: int
    sizes: tuple[int, ...]
    """Three of the grid, three of the block, and the bytes of shared memory."""
    attributes: tuple[bytes, ...]
    parameters: tuple[bytes, ...]
    after: int
    """How many launches before it in the graph it waits for, programmatic ones among them."""


class _Node(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("sizes", ctypes.c_uint * 7),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _checked(name: str, *args: object) -> None:
    result = getattr(_driver(), name)(*args)
    assert result == 0, f"{name} returned {result}"


def queued(launch: Callable[[], object]) -> list[Queued]:
    """What a function launches, in order; nothing runs."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        launch()
    raw, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    _checked("cuGraphGetNodes", raw, None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    _checked("cuGraphGetNodes", raw, nodes, ctypes.byref(count))
    return [_read(ctypes.c_void_p(node)) for node in nodes if _is_kernel(ctypes.c_void_p(node))]


def _is_kernel(node: ctypes.c_void_p) -> bool:
    kind = ctypes.c_int()
    _checked("cuGraphNodeGetType", node, ctypes.byref(kind))
    return kind.value == 0


def _read(node: ctypes.c_void_p) -> Queued:
    found, waits = _Node(), ctypes.c_size_t()
    _checked("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(found))
    _checked("cuGraphNodeGetDependencies", node, None, ctypes.byref(waits))
    parameters = []
    for index, size in enumerate(_sizes(found.function)):
        parameters.append(ctypes.string_at(found.parameters[index], size))
    attributes = []
    for number in (_COOPERATIVE, _CLUSTER, _POLICY):
        value = (ctypes.c_char * 64)()
        _checked("cuGraphKernelNodeGetAttribute", node, number, value)
        attributes.append(bytes(value))
    return Queued(
        found.function or 0, tuple(found.sizes), tuple(attributes), tuple(parameters), waits.value
    )


def _sizes(function: int) -> list[int]:
    """The bytes of each parameter of a function."""
    found, offset, size = [], ctypes.c_size_t(), ctypes.c_size_t()
    ask = _driver().cuFuncGetParamInfo
    while True:
        place = ctypes.c_size_t(len(found))
        result = ask(ctypes.c_void_p(function), place, ctypes.byref(offset), ctypes.byref(size))
        if result != 0:
            return found
        found.append(size.value)
