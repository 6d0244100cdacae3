"""`NativeJit`: a Triton kernel that `tzero._native` launches.

Enters: a kernel, and after its first launch the binary that Triton compiled. Leaves: a
`BinaryDescription`, which native code reads by the names of its fields and can launch from then on.
It must not know how native code chooses between binaries.

Launches that native code cannot make go to the base class, `PythonJit`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import struct
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch

import tzero._native as _native  # raises ModuleNotFoundError, with this name, if it is not built
from tzero import events, settings
from tzero.adapters import intercept, torch_profilers, triton_cuda, triton_launch
from tzero.adapters.torch_layout import handle_offset, in_a_new_thread, place_of_storage
from tzero.adapters.torch_modes import untraced
from tzero.adapters.triton_launch import driver
from tzero.adapters.triton_lookalikes import lookalike
from tzero.arguments.extract import ConstExpr
from tzero.cpu.launcher import Launcher
from tzero.cpu.triton_compat import parameters
from tzero.errors import LaunchFailed
from tzero.launches import graphs
from tzero.launches.current_call import current
from tzero.launches.python import Launching, PythonJit, finish
from tzero.launches.subscripts import subscripts

__all__ = [
    "BinaryDescription",
    "MoveDescription",
    "NativeJit",
    "NotNative",
    "ParameterDescription",
    "alone",
    "check_kernel",
    "configure",
    "described",
    "make",
    "parameter_of",
]

# Triton's type -> its name in `_native.PARAMETER_TYPES`, and its code in the struct module.
_TYPES = {
    "i1": ("boolean", "b"),
    "u1": ("boolean", "b"),
    "i8": ("i8", "b"),
    "u8": ("u8", "B"),
    "i16": ("i16", "h"),
    "u16": ("u16", "H"),
    "i32": ("i32", "i"),
    "u32": ("u32", "I"),
    "i64": ("i64", "q"),
    "u64": ("u64", "Q"),
    "fp16": ("f16", "e"),
    "bf16": ("bf16", "H"),
    "fp32": ("f32", "f"),
    "f32": ("f32", "f"),
    "fp64": ("f64", "d"),
}
_POINTER = ("pointer", "P")

_HOOKED = "a launch hook is attached"  # as native/launch.cpp says it


# -- descriptions: native code reads them by the names of their fields -----------------------------


class ParameterDescription(NamedTuple):
    """A parameter of a kernel or a host function, for `_prepare`. A parameter without a default has
    `has_default` false, because None is a default too."""

    name: str
    constant: bool = False
    has_default: bool = False
    default: Any = None
    specialize: bool = True
    align: bool = True
    keyword_only: bool = False


class MoveDescription(NamedTuple):
    """Which argument goes where in the block of parameters, and as which type."""

    argument: int
    type: int  # of PARAMETER_TYPES
    offset: int


class CpuDescription(NamedTuple):
    """How the CPU backend runs a binary: two addresses, and the work of a program as `_steady_work`
    has it."""

    run_packed: int
    program: int
    work: int


class MapDescription(NamedTuple):
    """A tensor map that is made of a descriptor, whose parts are arguments one after the other: the
    base, sizes, strides, and two flags."""

    move: int  # of the base: where the map goes
    rank: int
    swizzle: int
    element_bytes: int
    dtype: int  # of the driver
    box: tuple[int, ...]


class ScratchDescription(NamedTuple):
    """Memory that each block of a launch needs; `allocators` has `get`, as Triton's do."""

    bytes: int
    alignment: int
    allocators: Any


class CudaDescription(NamedTuple):
    """How CUDA launches a binary. A launch attribute has a field here, which native/binary.cpp
    (`read_cuda`) reads and native/cuda.cpp (`Driver::launch`) packs."""

    threads: int  # in a block
    shared: int  # bytes
    cluster: int  # blocks
    cooperative: bool
    dependent: bool  # programmatic dependent launch
    device: int
    maps: tuple[MapDescription, ...] = ()
    scratch: tuple[ScratchDescription, ...] = ()  # global, and of a profiler


class BinaryDescription(NamedTuple):
    """A binary, where Triton keeps it (`caches`, `table`, `key`), and how the CPU backend or CUDA
    launches it. `launcher` owns what the addresses point to."""

    kernel: Any
    caches: Any
    table: dict[Any, Any]
    key: Any
    device: Any
    name: str
    launcher: Any
    function: int
    moves: tuple[MoveDescription, ...]
    block_bytes: int
    cpu: CpuDescription | None
    cuda: CudaDescription | None


def configure(native: ModuleType) -> None:
    """Give native code the objects of torch, Triton and tzero that it reads."""
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
        current=current,
        const_expr=ConstExpr,
        callable=triton_launch.JITCallable,
        descriptor=triton_launch.plain_descriptor(),
        size=torch.Size,
        subscripts=subscripts,
        partial=functools.partial,
        lookalike=lookalike,
        dtype=torch.dtype,
        device=torch.device,
        handle=handle_offset(),
        storage=place_of_storage(),
    )
    graphs.configure(native)
    intercept.add_switch(native.recording)


def make(native: ModuleType) -> type[PythonJit]:
    """Make the kernel class for a build of the native module."""
    configure(native)
    unseen = in_a_new_thread(functools.partial(torch_profilers.configure, native))
    if unseen:
        events.emit(events.Event("fallback", "tzero", f"profilers show no ranges: {unseen}"))

    class NativeJit(native.Launchable, PythonJit):  # type: ignore[name-defined]
        """A Triton kernel whose launches are native; `tzero.jit` makes it."""

        most_parameters: int = native.MOST_PARAMETERS

        def __init__(self, fn: Any, **options: Any) -> None:
            super().__init__(fn, **options)
            self.shape = triton_launch.parameters(self)
            shape = tuple(map(parameter_of, self.shape))
            self._prepare(shape, settings.current().max_specializations)

        @untraced
        def _launched(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            """Launch in Python. Returns the compiled kernel and its description, why native code
            cannot launch it, or None if Triton does not keep it."""
            kernel = Launching(self, grid)(*args, **kwargs)
            try:
                if kernel is None:
                    return None, None
                return kernel, described(native, self, kernel, self.shape, takes_nested=True)
            except NotNative as reason:
                self.fallbacks.lasting(f"Python launches: {reason}")
                return kernel, str(reason)

        @untraced
        def _launch_in_python(
            self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str
        ) -> Any:
            """Launch in Python because native code cannot, for `reason`; an empty one is not
            reported."""
            if reason:
                passes = reason == _HOOKED
                tell = self.fallbacks.passing if passes else self.fallbacks.lasting
                tell(f"Python launches: {reason}")
            return Launching(self, grid)(*args, **kwargs)

        @untraced
        def _finish(self, kernel: Any, grid: Any, values: tuple[Any, ...], stream: int) -> Any:
            """Finish a launch in Python after native code has called the grid function."""
            finish(self, kernel, grid, values, stream)
            return kernel

        def explain(self) -> graphs.Launched:
            return super().explain()._replace(runs=graphs.runs(native, self._runs()))

        def _run_plain(self, *args: Any, **kwargs: Any) -> Any:
            return PythonJit.run(self, *args, **kwargs)

    return NativeJit


NativeJit = make(_native)


class NotNative(Exception):
    """Why native code cannot launch a binary, or replay a plan."""


def parameter_of(parameter: triton_launch.Parameter) -> ParameterDescription:
    """Describe a parameter of a kernel."""
    has_default = parameter.default is not inspect.Parameter.empty
    return ParameterDescription(
        name=parameter.name,
        constant=bool(parameter.constant),
        has_default=has_default,
        default=parameter.default if has_default else None,
        specialize=bool(parameter.specialize),
        align=bool(parameter.align),
        keyword_only=bool(parameter.keyword_only),
    )


def described(
    native: ModuleType,
    function: Any,
    kernel: Any,
    found_by: tuple[triton_launch.Parameter, ...] | None = None,
    *,
    takes_nested: bool = False,
) -> BinaryDescription | None:
    """Describe a binary; None if Triton does not keep it, `NotNative` if only Python can launch it.
    `found_by` are the parameters that native code finds the binary by, if it does. With
    `takes_nested` its arguments may hold others, and are numbered as `_leaves` does; it may also
    need scratch memory."""
    if not triton_launch.is_plain_driver(driver.active):
        raise NotNative("the active driver has been changed, or is not Triton's or tzero's")
    device = _device(function)
    kept = triton_launch.kept_at(function, kernel, device)
    if kept is None:
        return None
    caches, table, key = kept
    launcher = kernel.run
    if found_by is not None and not triton_launch.binds_like(caches, found_by):
        raise NotNative("its parameters are not those that Triton binds arguments to")
    if not triton_launch.plain_alignment(triton_launch.backend_of(caches)):
        raise NotNative("this backend specializes on more of a tensor than its alignment")
    laid, cpu, cuda = _launched(native, kernel, launcher, device, takes_nested)
    return BinaryDescription(
        kernel=kernel,
        caches=caches,
        table=table,
        key=key,
        device=device,
        name=kernel.name,
        launcher=launcher,
        function=kernel.function,
        moves=laid.moves,
        block_bytes=laid.bytes,
        cpu=cpu,
        cuda=cuda,
    )


def alone(native: ModuleType, kernel: Any) -> BinaryDescription:
    """Describe a compiled kernel that is launched by itself, wherever it is kept; `NotNative` if
    only Triton can launch it."""
    if not triton_launch.is_plain_driver(driver.active):
        raise NotNative("the active driver has been changed, or is not Triton's or tzero's")
    device = None if isinstance(kernel.run, Launcher) else driver.active.get_current_device()
    laid, cpu, cuda = _launched(native, kernel, kernel.run, device, False)
    return BinaryDescription(
        kernel=kernel,
        caches=None,
        table={},
        key=None,
        device=device,
        name=kernel.name,
        launcher=kernel.run,
        function=kernel.function,
        moves=laid.moves,
        block_bytes=laid.bytes,
        cpu=cpu,
        cuda=cuda,
    )


def _launched(
    native: ModuleType, kernel: Any, launcher: Any, device: Any, takes_nested: bool
) -> tuple[_Laid, CpuDescription | None, CudaDescription | None]:
    """Where the arguments of a binary go, and how the CPU backend or CUDA launches it."""
    on_cpu = isinstance(launcher, Launcher)
    cpu = _on_cpu(kernel, launcher) if on_cpu else None
    cuda = None if on_cpu else _on_cuda(native, kernel, launcher, device)
    laid = _moves(native, kernel, native.HEAD_BYTES if on_cpu else 0, on_cpu, takes_nested)
    if cuda is not None:
        cuda = cuda._replace(maps=laid.maps)
        if cuda.scratch and not takes_nested:
            raise NotNative("the binary needs scratch memory")
    return laid, cpu, cuda


def _on_cpu(kernel: Any, launcher: Launcher) -> CpuDescription:
    launch = launcher.native()
    if launch is None:
        raise NotNative("the CPU backend checks every access")
    return CpuDescription(launch.run, launch.program, _steady_work(kernel))


def _on_cuda(native: ModuleType, kernel: Any, launcher: Any, device: int) -> CudaDescription:
    launch = triton_launch.cuda_launch(kernel, launcher)
    if launch is None:
        raise NotNative("the binary needs a launch attribute that is not known, or is not for CUDA")
    if not native.open_cuda():
        raise NotNative("CUDA's driver library cannot be opened")
    needs = triton_cuda.scratch(launcher)
    if needs is None:
        raise NotNative("it is not known how this Triton allocates a profiler's scratch memory")
    return CudaDescription(*launch, device, scratch=tuple(ScratchDescription(*x) for x in needs))


def _device(function: Any) -> Any:
    """The device that a kernel's binary runs on."""
    active = driver.active
    if isinstance(function, triton_launch.JITFunction):
        return active.get_current_device()
    from tzero.backends import source_kernel  # here, because most programs have only Triton kernels

    if not isinstance(function, source_kernel.Kernel):
        return active.get_current_device()
    if function.place == "cuda" and not isinstance(active, triton_launch.cuda_driver()):
        raise NotNative("the kernel is for CUDA, and the active driver is not CUDA's")
    return function.device()[0]


_UNSTEADY = ("scf.for", "scf.while", "cf.", "tt.print", "tt.call")


_works: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def _steady_work(kernel: Any) -> int:
    """The element operations of one program of a CPU kernel; 0 if they depend on its arguments.
    Native code keeps the GIL during a short launch: releasing it costs more than the launch."""
    found = _works.get(kernel)
    if found is None:
        found = _works[kernel] = _read_work(kernel)
    return found


def _read_work(kernel: Any) -> int:
    if "ttir" not in kernel.asm or any(word in kernel.asm["ttir"] for word in _UNSTEADY):
        return 0
    work: int = kernel.metadata.cpu_work
    return 0 if getattr(kernel.metadata, "launch_cooperative_grid", False) else max(work, 1)


def _types(kernel: Any) -> Iterator[tuple[int, str]]:
    """The parameters of the binary: the number of the argument, and Triton's type."""
    for index, (name, type_) in enumerate(kernel.src.signature.items()):
        if type_ == "constexpr":
            continue
        if not isinstance(type_, str) or type_.startswith("tensordesc"):
            raise NotNative(f"argument {name!r} has the type {type_}")
        yield index, type_


def _nested_types(kernel: Any, on_cpu: bool) -> Iterator[tuple[int, Any]]:
    """The same of a binary whose arguments may hold others."""
    first: dict[tuple[int, ...], tuple[int, int]] = {}  # the number, and the rank of a descriptor
    count = 0
    for index, type_ in enumerate(kernel.src.signature.values()):
        for path, rank in _leaves(type_, (index,)):
            first[path] = (count, rank)
            count += 2 * rank + 3 if rank else 1
    try:
        found = parameters(kernel.src) if on_cpu else triton_cuda.parameters(kernel)
    except triton_cuda.Unknown as reason:
        raise NotNative(str(reason)) from None
    for parameter in found:
        number, rank = first[parameter.path]
        field, axis = parameter.part or ("base", 0)
        within = {
            "base": 0,
            "map": 0,
            "shape": 1 + axis,
            "strides": 1 + rank + axis,
            "padding": 1 + 2 * rank,
            "round_f32_to_tf32": 2 + 2 * rank,
        }
        yield number + within[field], parameter.type


def _leaves(type_: Any, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
    """What an argument of a type holds, in the order in which native/nested.cpp reads it: where it
    is, and the rank of a descriptor or 0. A descriptor counts as its base, sizes, strides and two
    flags."""
    if isinstance(type_, (tuple, list)):
        for index, item in enumerate(type_):
            yield from _leaves(item, (*path, index))
    elif type_.startswith("tensordesc"):
        yield path, type_.partition("[")[2].partition("]")[0].count(",") + 1
    else:
        yield path, 0


class _Laid(NamedTuple):
    """The parameters of a binary in a block of bytes."""

    moves: tuple[MoveDescription, ...]
    bytes: int
    maps: tuple[MapDescription, ...] = ()


_How = tuple[ModuleType, int, bool, bool]
_laid: weakref.WeakKeyDictionary[Any, tuple[_How, _Laid]] = weakref.WeakKeyDictionary()


def _moves(native: ModuleType, kernel: Any, head: int, on_cpu: bool, takes_nested: bool) -> _Laid:
    """Lay the parameters out as a C struct behind `head` bytes."""
    how = (native, head, on_cpu, takes_nested)
    found = _laid.get(kernel)
    if found is None or found[0] != how:
        types = _nested_types(kernel, on_cpu) if takes_nested else _types(kernel)
        found = _laid[kernel] = how, _lay_out(native, types, head)
    return found[1]


def _lay_out(native: ModuleType, types: Iterable[tuple[int, Any]], head: int) -> _Laid:
    moves: list[MoveDescription] = []
    maps, layout = [], f"@{head}x"
    for index, type_ in types:
        if isinstance(type_, triton_cuda.TensorMap):
            size, alignment = native.MAP_BYTES, native.MAP_ALIGNMENT
            offset = -(-struct.calcsize(layout) // alignment) * alignment
            layout += f"{offset - struct.calcsize(layout) + size}x"
            maps.append(MapDescription(len(moves), *type_))
            moves.append(MoveDescription(index, native.PARAMETER_TYPES["tensor_map"], offset))
            continue
        if type_[0] != "*" and type_ not in _TYPES:
            raise NotNative(f"argument {index} has the type {type_}")
        name, code = _POINTER if type_[0] == "*" else _TYPES[type_]
        layout += code
        offset = struct.calcsize(layout) - struct.calcsize(f"@{code}")
        moves.append(MoveDescription(index, native.PARAMETER_TYPES[name], offset))
    if len(moves) > native.MOST_PARAMETERS:
        raise NotNative(f"it has {len(moves)} parameters, more than {native.MOST_PARAMETERS}")
    if len(maps) > native.MOST_MAPS:
        raise NotNative(f"it has {len(maps)} tensor descriptors, more than {native.MOST_MAPS}")
    # Native code may write the last one, too, with as many bytes as the widest type has.
    return _Laid(tuple(moves), struct.calcsize(layout) + int(native.PARAMETER_BYTES), tuple(maps))


def check_kernel(native: ModuleType, function: Any) -> None:
    """Native code reads these attributes from a `Launchable`'s fields or the kernel's own dict, so
    they must not be computed."""
    if isinstance(function, native.Launchable):
        return
    own = vars(function)
    for name in _READ_NATIVELY:
        if name not in own:
            raise NotNative(f"{function.__name__} has no attribute {name!r} of its own")
    for kind in type(function).__mro__:
        held = vars(kind)
        for name in _READ_NATIVELY:
            if held.get(name) is not None:
                raise NotNative(f"{function.__name__} computes its attribute {name!r}")


_READ_NATIVELY = ("pre_run_hooks", "debug", "device_caches", "used_global_vals")
