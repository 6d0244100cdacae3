"""The floor of a launch: the bare launch with the same arguments, in a C loop.

Enters: a compiled kernel, and its arguments without constants. Leaves: a contender. It must not use
tzero's launchers: on the CPU it calls the thread pool, on CUDA the driver.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.measure import Loop
from tzero.cpu import toolchain

__all__ = ["each_on_cpu", "graph_on_cuda", "on_cpu", "on_cuda"]

SOURCE = Path(__file__).with_name("floor.c")


@functools.cache
def _library() -> ctypes.CDLL:
    binary = toolchain.find().build(SOURCE.read_text(encoding="utf-8"), "floor", [], ("-ldl",), 2)
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(binary)
        file.flush()
        return ctypes.CDLL(file.name)


def _packed(kernel: Any, programs: int, given: Sequence[Any]) -> tuple[Any, int]:
    """The arguments as the kernel's launcher packs them for the thread pool: memory, and where they
    begin in it."""
    launcher, threads = kernel.run, torch.get_num_threads()
    values = [each.data_ptr() if isinstance(each, torch.Tensor) else each for each in given]
    packed = launcher._pack(kernel.function, programs, 1, 1, threads, *values)
    room = ctypes.create_string_buffer(len(packed) + 16)
    start = (ctypes.addressof(room) + 15) & ~15
    ctypes.memmove(start, packed, len(packed))
    return room, start


def on_cpu(kernel: Any, programs: int, given: Sequence[Any]) -> Loop:
    """The thread pool, with the arguments packed as the kernel's launcher packs them. Constants are
    not among them."""
    room, start = _packed(kernel, programs, given)
    native = kernel.run.native()
    function = _library().floor_cpu
    function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64]

    def run(times: int, keep: Any = (room, given, kernel)) -> None:
        outcome = function(native.run, native.program, start, times)
        assert outcome == 0, f"a launch returned {outcome}"

    return Loop(run)


def each_on_cpu(kernel: Any, programs: int, all_given: Sequence[Sequence[Any]]) -> Loop:
    """The same, of several launches with arguments of their own."""
    packed = [_packed(kernel, programs, given) for given in all_given]
    starts = (ctypes.c_void_p * len(packed))(*(start for _, start in packed))
    native = kernel.run.native()
    function = _library().floor_cpu_each
    function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int, ctypes.c_int64]

    def run(times: int, keep: Any = (packed, all_given, kernel)) -> None:
        outcome = function(native.run, native.program, starts, len(packed), times)
        assert outcome == 0, f"a launch returned {outcome}"

    return Loop(run)


def _slot(value: Any) -> Any:
    """An argument as a kernel on CUDA takes it."""
    if isinstance(value, torch.Tensor):
        return ctypes.c_uint64(value.data_ptr())
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int32(value)


def on_cuda(kernel: Any, programs: int, given: Sequence[Any]) -> Loop:
    """cuLaunchKernelEx, on the current stream. Constants are not among the arguments."""
    slots, params = _params(given)
    function = _library().floor_cuda
    function.argtypes = [
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p),
        *(ctypes.c_void_p, ctypes.c_int64),
    ]
    threads = 32 * kernel.metadata.num_warps
    stream = torch.cuda.current_stream().cuda_stream

    def run(times: int, keep: Any = (slots, given)) -> None:
        shared = kernel.metadata.shared
        result = function(kernel.function, programs, threads, shared, stream, params, times)
        assert result == 0, f"the driver returned {result}"

    return Loop(run)


def _params(given: Sequence[Any]) -> tuple[list[Any], Any]:
    """The parameters of a kernel on CUDA, and an array of their addresses."""
    slots: list[Any] = [*map(_slot, given), ctypes.c_uint64(0), ctypes.c_uint64(0)]
    return slots, (ctypes.c_void_p * len(slots))(*(ctypes.addressof(slot) for slot in slots))


def graph_on_cuda(
    kernel: Any, programs: int, given: Sequence[Any], nodes: int, others: Sequence[Any] = ()
) -> Loop:
    """cuGraphLaunch of a graph of `nodes` equal kernels, on the current stream. With `others`, each
    kernel gets these arguments and those of `given` in turn before each launch."""
    library, pointer = _library(), ctypes.c_void_p
    slots, params = _params(given)
    other_slots, other_params = _params(others) if others else ([], None)
    made = (pointer * nodes)()
    make, launch = library.floor_graph, library.floor_graph_launches
    shape = [ctypes.c_uint32] * 3
    make.restype = pointer
    make.argtypes = [pointer, *shape, pointer, ctypes.c_int, pointer]
    launch.argtypes = [pointer, pointer, *shape, *[pointer] * 3, ctypes.c_int, pointer]
    launch.argtypes = [*launch.argtypes, ctypes.c_int64]
    how = (kernel.function, programs, 32 * kernel.metadata.num_warps, kernel.metadata.shared)
    executable = make(*how, params, nodes, made)
    assert executable, "the driver made no graph"
    stream = torch.cuda.current_stream().cuda_stream

    def run(times: int, keep: Any = (slots, other_slots, given, others)) -> None:
        result = launch(executable, *how, stream, params, other_params, nodes, made, times)
        assert result == 0, f"the driver returned {result}"

    return Loop(run)
