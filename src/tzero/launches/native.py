"""`NativeJit`: a Triton kernel that `tzero._native` launches.

Enters: a kernel, and after its first launch the binary that Triton compiled. Leaves: a description
of that binary, from which native/spec.cpp makes a launch. It must not know how native code decides.

Launches that native code does not support are made by `PythonJit`, the base class.
"""

from __future__ import annotations

import inspect
import logging
import struct
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

import tzero._native as _native  # in this form, a missing extension is a ModuleNotFoundError
from tzero import events, settings
from tzero.adapters import triton_launch
from tzero.adapters.torch_layout import handle_offset
from tzero.adapters.torch_modes import untraced
from tzero.adapters.triton_launch import driver
from tzero.backends import source_kernel
from tzero.cpu.launcher import Launcher
from tzero.errors import LaunchFailed
from tzero.launches.python import Launching, PythonJit, finish

__all__ = ["NativeJit", "NotNative", "configure", "described", "make"]

# Triton's type -> the number of `Type` in native/spec.h, and its code for `struct`.
_TYPES = {
    "i1": (1, "b"),
    "u1": (1, "b"),
    "i8": (2, "b"),
    "u8": (3, "B"),
    "i16": (4, "h"),
    "u16": (5, "H"),
    "i32": (6, "i"),
    "u32": (7, "I"),
    "i64": (8, "q"),
    "u64": (9, "Q"),
    "fp16": (10, "e"),
    "bf16": (11, "H"),
    "fp32": (12, "f"),
    "f32": (12, "f"),
    "fp64": (13, "d"),
}
_POINTER = (0, "P")

# The header before the arguments in a block for the CPU's thread pool: tz_packed of pool.h.
_HEAD = "@P4i8x"


def configure(native: ModuleType) -> None:
    """Give native code the objects that it reads."""
    native.configure(
        tensor=torch.Tensor,
        parameter=torch.nn.Parameter,
        exchange_api=torch.Tensor.__dlpack_c_exchange_api__,
        knobs=vars(triton_launch.knobs),
        more_knobs=triton_launch.MORE_KNOBS,
        hook_chain=triton_launch.knobs.HookChain,
        runtime_knobs=triton_launch.knobs.runtime_knobs,
        driver=driver,
        driver_slot=triton_launch.DRIVER_SLOT,
        events=vars(events),
        observers="_observers",
        watched=events.watched,
        log_cache=logging.getLogger("tzero")._cache,  # type: ignore[attr-defined]
        debug_level=logging.DEBUG,
        get_num_threads=torch.get_num_threads,
        launch_failed=LaunchFailed,
        cuda_driver=triton_launch.cuda_driver(),
        constexpr=triton_launch.Constexpr,
        handle=handle_offset(),
    )


def make(native: ModuleType) -> type[PythonJit]:
    """The kernel class for a build of the native module."""
    configure(native)

    class NativeJit(native.Launchable, PythonJit):  # type: ignore[name-defined]
        """A Triton kernel whose launches are native; `tzero.jit` makes it."""

        def __init__(self, fn: Any, **options: Any) -> None:
            super().__init__(fn, **options)
            shape = triton_launch.parameters(self)
            self._prepare(tuple(map(_parameter, shape)), settings.current().max_specializations)

        @untraced
        def _launched(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            """Launch in Python; return the compiled kernel, and its description for native code."""
            kernel = Launching(self, grid)(*args, **kwargs)
            try:
                return kernel, None if kernel is None else described(native, self, kernel)
            except NotNative as reason:
                self.say_once(f"Python launches: {reason}")
                return kernel, None

        @untraced
        def _launch_in_python(
            self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str
        ) -> Any:
            """Launch what native code does not support; an empty reason is not reported."""
            if reason:
                self.say_once(f"Python launches: {reason}")
            return Launching(self, grid)(*args, **kwargs)

        @untraced
        def _finish(self, kernel: Any, grid: Any, values: tuple[Any, ...], stream: int) -> Any:
            """The rest of a launch after its grid function was called."""
            finish(self, kernel, grid, values, stream)
            return kernel

        def _run_plain(self, *args: Any, **kwargs: Any) -> Any:
            return PythonJit.run(self, *args, **kwargs)

    return NativeJit


NativeJit = make(_native)


class NotNative(Exception):
    """Native code cannot launch a binary; the message says why."""


def _parameter(parameter: triton_launch.Parameter) -> tuple[Any, ...]:
    """A parameter in the form that `_prepare` takes."""
    has_default = parameter.default is not inspect.Parameter.empty
    return (
        parameter.name,
        parameter.constant,
        parameter.specialize,
        parameter.align,
        parameter.keyword_only,
        has_default,
        parameter.default if has_default else None,
    )


def described(native: ModuleType, function: Any, kernel: Any) -> tuple[Any, ...] | None:
    """A binary as native/launch.cpp's `spec_from` takes it; None where Triton does not keep it."""
    if not triton_launch.is_plain_driver(driver.active):
        raise NotNative("the active driver is not as Triton or tzero made it")
    device = _device(function)
    kept = triton_launch.compiled(function, kernel, device)
    if kept is None:
        return None
    if not triton_launch.plain_alignment(triton_launch.backend_of(kept.caches)):
        raise NotNative("this backend asks more of a tensor than its alignment")
    types = list(_types(function, kernel))
    if isinstance(kept.run, Launcher):
        launch = kept.run.native()
        if launch is None:
            raise NotNative("the CPU backend checks every access")
        moves, size = _moves(types, _HEAD)
        numbers = (launch.run, launch.program, kept.handle, 0, 0, 1, False, False, -1)
        work = _steady_work(kernel)
        where: tuple[Any, ...] = (True, kept.run, *numbers)
    else:
        cuda = triton_launch.cuda_launch(kernel, kept.run)
        if cuda is None:
            raise NotNative("the binary wants scratch memory, or runs on no device known here")
        if not native.open_cuda():
            raise NotNative("CUDA's driver library cannot be opened")
        moves, size = _moves(types, "@")
        work = 0
        where = (False, kept.run, 0, 0, kept.handle, *cuda, device)
    return (
        *(kernel, kept.caches, kept.table, kept.key, device, tuple(moves), size, kernel.name),
        *where,
        work,
    )


def _device(function: Any) -> Any:
    """The device that a kernel's binary runs on."""
    active = driver.active
    if not isinstance(function, source_kernel.Kernel):
        return active.get_current_device()
    if function.place == "cuda" and not isinstance(active, triton_launch.cuda_driver()):
        raise NotNative("the kernel is CUDA's, and the active driver is not")
    return function.device()[0]


_UNSTEADY = ("scf.for", "scf.while", "cf.", "tt.print", "tt.call")


def _steady_work(kernel: Any) -> int:
    """The cost of one program of a CPU kernel in element operations, if it does not depend on the
    arguments; else 0. Such a kernel never blocks, so native code keeps the GIL during a short one:
    releasing it costs more than a small launch."""
    if "ttir" not in kernel.asm or any(word in kernel.asm["ttir"] for word in _UNSTEADY):
        return 0
    work: int = kernel.metadata.cpu_work
    return 0 if getattr(kernel.metadata, "launch_cooperative_grid", False) else max(work, 1)


def _types(function: Any, kernel: Any) -> Iterator[tuple[int, str]]:
    """The parameters of the binary: index of the argument, and type."""
    for index, (name, type_) in enumerate(kernel.src.signature.items()):
        if type_ == "constexpr":
            continue
        if not isinstance(type_, str) or (type_[0] != "*" and type_ not in _TYPES):
            raise NotNative(f"argument {name!r} has the type {type_}")
        yield index, type_


def _moves(types: list[tuple[int, str]], head: str) -> tuple[list[tuple[int, int, int]], int]:
    """The offset of each parameter in the argument block (a C struct), and the block's size."""
    moves, layout = [], head
    for index, type_ in types:
        number, code = _POINTER if type_[0] == "*" else _TYPES[type_]
        layout += code
        moves.append((index, number, struct.calcsize(layout) - struct.calcsize(f"@{code}")))
    return moves, struct.calcsize(layout) + 8  # so that any parameter can be written as eight bytes
