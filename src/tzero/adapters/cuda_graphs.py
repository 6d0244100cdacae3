"""Captured CUDA graphs, read through the driver: nodes, and the parameters that they hold.

Enters: a graph that torch has captured. Leaves: its nodes in the order in which they run, with the
bytes of their parameters. It must not know what the parameters mean.

torch captures, and keeps the graph open (``keep_graph=True``); what is in it only the driver says.
The layouts below are part of the driver's ABI, declared from its documentation.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, NamedTuple

__all__ = ["COPY", "EMPTY", "FILL", "KERNEL", "CannotRead", "Node", "nodes"]

KERNEL, COPY, FILL, EMPTY = 0, 1, 2, 5
"""Types of nodes: CU_GRAPH_NODE_TYPE_KERNEL, _MEMCPY, _MEMSET, _EMPTY."""

_NAMES = {3: "a host function", 4: "a child graph", 6: "an event", 7: "an event", 10: "memory"}


class CannotRead(Exception):
    """A graph holds something that this module does not read; the text says what."""


class KernelParams(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = [
        ("function", c_void_p),
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("params", POINTER(c_void_p)),
        ("extra", POINTER(c_void_p)),
        ("kernel", c_void_p),
        ("context", c_void_p),
    ]


class CopyParams(Structure):
    """CUDA_MEMCPY3D, whose sides are alike."""

    _fields_ = [
        (f"{side}_{name}", kind)
        for side in ("source", "target")
        for name, kind in (
            ("x", c_size_t),
            ("y", c_size_t),
            ("z", c_size_t),
            ("level", c_size_t),
            ("memory", c_uint),
            ("host", c_void_p),
            ("address", c_uint64),
            ("array", c_void_p),
            ("reserved", c_void_p),
            ("pitch", c_size_t),
            ("height", c_size_t),
        )
    ] + [("width", c_size_t), ("rows", c_size_t), ("depth", c_size_t)]


class FillParams(Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = [
        ("target", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


class Node(NamedTuple):
    """A node: its handle, its type, what besides addresses must be the same in another capture of
    the same work, the blocks of bytes of its parameters, and the whole description of a kernel."""

    handle: int
    kind: int
    shape: tuple[Any, ...]
    blocks: tuple[bytes, ...]
    params: bytes = b""


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int, what: str) -> None:
    if result:
        text = c_char_p()
        _driver().cuGetErrorName(result, byref(text))
        raise CannotRead(f"{what} failed: {(text.value or b'an unknown error').decode()}")


def nodes(graph: int) -> list[Node]:
    """The nodes of a graph in the order in which they run; `CannotRead` unless each has one
    successor."""
    sizes: dict[int, tuple[int, ...]] = {}  # of the parameters of each function
    return [_read(handle, sizes) for handle in _chain(graph)]


def _chain(graph: int) -> list[int]:
    count = c_size_t()
    _check(_driver().cuGraphGetNodes(c_void_p(graph), None, byref(count)), "cuGraphGetNodes")
    found = (c_void_p * count.value)()
    _check(_driver().cuGraphGetNodes(c_void_p(graph), found, byref(count)), "cuGraphGetNodes")
    edges = c_size_t()
    _check(_driver().cuGraphGetEdges(c_void_p(graph), None, None, byref(edges)), "cuGraphGetEdges")
    starts, ends = (c_void_p * edges.value)(), (c_void_p * edges.value)()
    if edges.value:
        result = _driver().cuGraphGetEdges(c_void_p(graph), starts, ends, byref(edges))
        _check(result, "cuGraphGetEdges")
    after = dict(zip(starts, ends, strict=True))
    firsts = set(found) - set(ends)
    if len(after) != len(starts) or len(firsts) > 1 or len(starts) + 1 != max(1, len(found)):
        raise CannotRead("its work is not one after the other")
    order: list[int] = []
    at: Any = next(iter(firsts), None)
    while at is not None:
        order.append(at)
        at = after.get(at)
    return order


def _read(handle: int, sizes: dict[int, tuple[int, ...]]) -> Node:
    kind = c_int()
    _check(_driver().cuGraphNodeGetType(c_void_p(handle), byref(kind)), "cuGraphNodeGetType")
    if kind.value == KERNEL:
        return _kernel(handle, sizes)
    if kind.value == COPY:
        copy = CopyParams()
        result = _driver().cuGraphMemcpyNodeGetParams(c_void_p(handle), byref(copy))
        _check(result, "cuGraphMemcpyNodeGetParams")
        if copy.source_memory == _HOST or copy.target_memory == _HOST:
            raise CannotRead("it copies from or to the host's memory")
        return Node(handle, COPY, (copy.source_memory, copy.target_memory), (bytes(copy),))
    if kind.value == FILL:
        fill = FillParams()
        result = _driver().cuGraphMemsetNodeGetParams(c_void_p(handle), byref(fill))
        _check(result, "cuGraphMemsetNodeGetParams")
        return Node(handle, FILL, (), (bytes(fill),))
    if kind.value == EMPTY:
        return Node(handle, EMPTY, (), ())
    raise CannotRead(f"it holds {_NAMES.get(kind.value, f'a node of type {kind.value}')}")


def _kernel(handle: int, known: dict[int, tuple[int, ...]]) -> Node:
    found = KernelParams()
    result = _driver().cuGraphKernelNodeGetParams_v2(c_void_p(handle), byref(found))
    _check(result, "cuGraphKernelNodeGetParams")
    if found.extra:
        blocks: tuple[bytes, ...] = (_buffer(found.extra),)
    else:
        key = found.function or found.kernel or 0
        if key not in known:
            known[key] = _sizes(found.function or 0, found.kernel or 0)
        sizes = known[key]
        blocks = tuple(ctypes.string_at(found.params[k], size) for k, size in enumerate(sizes))
    launched = (found.function, found.kernel, tuple(found.grid), tuple(found.block), found.shared)
    shape = (*launched, bool(found.extra))
    return Node(handle, KERNEL, shape, blocks, bytes(found))


def _buffer(extra: Any) -> bytes:
    """The parameters of a kernel that was launched with all of them in one buffer: a list of names
    and values, which ends with 0."""
    found: dict[int, int] = {}
    k = 0
    while (name := extra[k]) is not None and k < 8:
        found[name] = extra[k + 1]
        k += 2
    if set(found) != {_BUFFER, _SIZE}:
        raise CannotRead("a kernel has its parameters in a way that is not known")
    size = ctypes.cast(found[_SIZE], POINTER(c_size_t))[0]
    return ctypes.string_at(found[_BUFFER], size)


_HOST = 1
"""CU_MEMORYTYPE_HOST."""

_BUFFER, _SIZE = 1, 2
"""CU_LAUNCH_PARAM_BUFFER_POINTER and CU_LAUNCH_PARAM_BUFFER_SIZE."""


def _sizes(function: int, kernel: int) -> tuple[int, ...]:
    """The sizes of a kernel's parameters. The driver says that there is no such parameter after the
    last."""
    found: list[int] = []
    offset, size = c_size_t(), c_size_t()
    ask = _driver().cuFuncGetParamInfo if function else _driver().cuKernelGetParamInfo
    of = c_void_p(function or kernel)
    while ask(of, c_size_t(len(found)), byref(offset), byref(size)) == 0:
        found.append(size.value)
    return tuple(found)
