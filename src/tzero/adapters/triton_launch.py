"""Adapts Triton's launch path. Change this for a new Triton that launches differently.

Enters: Triton's modules and jit functions. Leaves: everything that decides which binary a launch
runs, the parameters of a kernel, what launching a compiled kernel needs, and what a launch would
compile. It must not know how tzero launches, or where it compiles. Compile workers import it, so it
imports torch only in functions.

Triton finds the binary of a launch in four steps: it binds the arguments, specializes each, makes a
key from that and the options, and looks the key up in a dict per device. The result depends on the
arguments, the options, and the knobs in `KNOBS`. What this module reads distinguishes at least as
much. `tests/adapters/test_triton_launch.py` checks that against the source of the installed Triton,
and is the first test to fail on a new one; the steps are in `tzero.adapters`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from triton import knobs
from triton import language as tl
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, CompiledKernel, make_backend
from triton.compiler.compiler import compile as compile_here
from triton.compiler.errors import CompilationError
from triton.knobs import HookChain
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import (
    ConstexprFunction,
    JITCallable,
    JITFunction,
    KernelInterface,
    KernelParam,
)

from tzero import locks

__all__ = [
    "DRIVER_SLOT",
    "KNOBS",
    "MORE_KNOBS",
    "RAW_SOURCE",
    "ASTSource",
    "Block",
    "CompilationError",
    "Compiled",
    "CompiledKernel",
    "Constexpr",
    "ConstexprFunction",
    "Dtype",
    "GPUTarget",
    "JITCallable",
    "JITFunction",
    "KernelInterface",
    "Parameter",
    "Pointer",
    "backend_of",
    "binds_like",
    "changed_globals",
    "compile_all_with",
    "compile_here",
    "compile_with",
    "compiled",
    "cpu_is_alone",
    "cuda_driver",
    "cuda_launch",
    "current_stream",
    "driver",
    "hashed",
    "hooks",
    "interpreting",
    "is_interpreted",
    "is_plain_driver",
    "kept_at",
    "knobs",
    "launch_knobs",
    "make_backend",
    "named",
    "options_of",
    "parameters",
    "plain_alignment",
    "plain_descriptor",
    "plain_run",
    "set_source",
    "source_of",
    "specialization",
    "tensor_types",
    "unsupported",
]

RAW_SOURCE = "_src"
"""The attribute of a kernel or a constexpr function that has its source text."""

Constexpr = tl.constexpr
"""The type of ``tl.constexpr(64)``."""

Dtype = tl.dtype
"""The type of ``tl.float32``."""

Pointer = tl.pointer_type
"""The type of ``tl.pointer_type(tl.float32)``."""

Block = tl.block_type
"""The type of ``tl.block_type(tl.float32, [16])``."""

_FPSAN = "fpsan_homomorphic_casts"

KNOBS: tuple[tuple[str, str], ...] = (
    ("runtime", "debug"),
    ("compilation", "instrumentation_mode"),
    # Since 3.9.
    *([("compilation", _FPSAN)] if hasattr(knobs.compilation, _FPSAN) else []),
)
"""The knobs that Triton adds to the options of every launch: group of `triton.knobs`, name."""

MORE_KNOBS = tuple(name for group, name in KNOBS[1:] if name != "instrumentation_mode")
"""Those of `KNOBS` that not every supported Triton has; all are in ``knobs.compilation``."""

DRIVER_SLOT = "_active" if hasattr(driver, "_active") else "active"
"""The attribute of Triton's driver configuration that holds the active driver: a plain attribute
for native code to read, not the property, which runs Python code."""

if len(KNOBS) == 3:

    def launch_knobs() -> tuple[Any, ...]:
        """The hook on compiler stages, and the current values of `KNOBS`."""
        runtime, compilation = knobs.runtime, knobs.compilation
        debug = runtime.debug
        return (
            runtime.add_stages_inspection_hook,
            debug,
            type(debug),
            compilation.instrumentation_mode,
            compilation.fpsan_homomorphic_casts,
        )

else:

    def launch_knobs() -> tuple[Any, ...]:
        """The hook on compiler stages, and the current values of `KNOBS`."""
        runtime = knobs.runtime
        mode, debug = knobs.compilation.instrumentation_mode, runtime.debug
        return (runtime.add_stages_inspection_hook, debug, type(debug), mode)


class Parameter(NamedTuple):
    """One parameter of a kernel: what decides how its argument is specialized.

    >>> Parameter("n", constant=False, const=False, specialize=True, align=True).name
    'n'
    """

    name: str
    constant: bool
    const: bool
    specialize: bool
    align: bool
    keyword_only: bool = False
    default: Any = inspect.Parameter.empty


def unsupported(function: JITFunction[Any], *, in_python: bool = True) -> str:
    """Why only Triton can launch a kernel with these parameters; empty for most kernels.
    `in_python`: Python reads its arguments too, with code that has names of its own."""
    for parameter in function.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:  # since 3.9
            return f"its parameter {parameter.name!r} collects several arguments"
        if in_python and parameter.name.startswith("_tz_"):
            return f"its parameter {parameter.name!r} has a name that tzero reserves"
    return ""


def parameters(function: JITFunction[Any]) -> tuple[Parameter, ...]:
    """A kernel's parameters in order, as they are now: programs change them in place."""
    return tuple(
        Parameter(
            name=p.name,
            constant=p.is_constexpr,
            const=p.is_const,
            specialize=not p.do_not_specialize,
            align=not p.do_not_specialize_on_alignment,
            keyword_only=p._param.kind is inspect.Parameter.KEYWORD_ONLY,
            default=p.default,
        )
        for p in function.params
    )


def options_of(function: JITFunction[Any]) -> dict[str, Any]:
    """The options that `triton.jit` was given for a kernel."""
    return {
        "version": function.version,
        "repr": function._repr,
        "launch_metadata": function.launch_metadata,
        "do_not_specialize": function.do_not_specialize,
        "do_not_specialize_on_alignment": function.do_not_specialize_on_alignment,
        "debug": function.debug,
        "noinline": function.noinline,
    }


def is_interpreted(function: Any) -> bool:
    """Whether this is a kernel for Triton's interpreter (``TRITON_INTERPRET=1``)."""
    return isinstance(function, KernelInterface) and not isinstance(function, JITFunction)


def interpreting() -> str:
    """Why launches cannot be recorded; empty unless Triton interprets kernels."""
    return "Triton's interpreter is on" if knobs.runtime.interpret else ""


def specialization(backend: Any, value: Any, parameter: Parameter) -> Any:
    """Triton's specialization of an argument: its type, and what the code may assume about it."""
    flags = (parameter.const, parameter.specialize, parameter.align)
    return native_specialize_impl(backend, value, *flags)


def plain_alignment(backend: Any) -> bool:
    """Whether a backend specializes a pointer only on divisibility by 16. AMD's backend also looks
    at the size of the storage."""
    return bool(getattr(backend, "supports_native_tensor_specialization", False))


_DESCRIPTOR = ("base", "shape", "strides", "block_shape", "padding", "round_f32_to_tf32")


def plain_descriptor() -> type | None:
    """The class of tensor descriptors that are made on the host, if it has the fields that native
    code reads and no others. The last one is missing before 3.7."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    names = tuple(field.name for field in dataclasses.fields(TensorDescriptor))
    return TensorDescriptor if names in (_DESCRIPTOR, _DESCRIPTOR[:-1]) else None


def hooks() -> tuple[Any, Any] | None:
    """The hooks to call around a launch, or None if there are none.

    If either chain has a hook, both are returned: a hook may add another while it runs.
    """
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    if type(enter) is HookChain and type(leave) is HookChain and not (enter.calls or leave.calls):
        return None
    return None if _is_empty(enter) and _is_empty(leave) else (enter, leave)


def _is_empty(hook: Any) -> bool:
    return hook is None or (type(hook) is HookChain and not hook.calls)


def changed_globals(function: JITFunction[Any]) -> Iterator[str]:
    """The names of globals that changed since a kernel was compiled with them."""
    missing = object()
    for (name, _), (value, where) in function.used_global_vals.items():
        if where.get(name, missing) != value:
            yield name


class Compiled(NamedTuple):
    """A compiled kernel, and its place in Triton's cache: while it is there, Triton would launch it
    for arguments of the same specialization."""

    kernel: Any
    caches: Any  # the device's entry in the function's device_caches
    table: dict[str, Any]  # in it: the compiled kernels by their key
    key: str
    run: Callable[..., None]
    handle: Any
    packed: Any
    direct: Callable[..., int] | None  # takes addresses, returns a status
    error: Callable[..., Exception] | None  # makes the exception for a status

    def is_current(self, function: JITFunction[Any], device: Any) -> bool:
        """Whether the kernel is still in Triton's cache."""
        where = function.device_caches.get(device)
        return where is self.caches and self.table.get(self.key) is self.kernel


def kept_at(
    function: JITFunction[Any], kernel: Any, device: Any
) -> tuple[Any, dict[str, Any], str] | None:
    """The place in Triton's cache of a kernel that was just launched, as in `Compiled`: the
    device's entry, the table in it, and the key there. None if it has none."""
    caches = function.device_caches.get(device)
    if caches is None:
        return None
    table = caches[0]
    for key, each in list(table.items()):
        if each is kernel:
            return caches, table, key
    return None


def compiled(function: JITFunction[Any], kernel: Any, device: Any) -> Compiled | None:
    """A kernel that was just launched, with its place in Triton's cache; None if it has none."""
    kept = kept_at(function, kernel, device)
    if kept is None:
        return None
    run = kernel.run
    return Compiled(
        kernel,
        *kept,
        run,
        kernel.function,
        kernel.packed_metadata,
        run.direct() if hasattr(run, "direct") else None,
        getattr(run, "error", None),
    )


def named(
    function: JITFunction[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a launch by parameter name, and its other options."""
    every = parameters(function)
    given = {each.name: each.default for each in every}
    for each, value in zip(every, args, strict=False):
        given[each.name] = value
    options: dict[str, Any] = {}
    for name, value in kwargs.items():
        (given if name in given else options)[name] = value
    return given, options


def current_stream() -> Any:
    """The current device and stream."""
    active = driver.active
    device = active.get_current_device()
    return device, active.get_current_stream(device)


plain_run = JITFunction.run
"""Triton's own launch."""


# Triton hashes a kernel's source under a lock of the kernel, and stores a part of the result there
# meanwhile. A child forked at that moment would hang, or take the part for the whole.
_hashing = locks.lock(fork_waits=True)
_cache_key: Callable[[Any], str] = vars(JITCallable)["cache_key"].fget


def _hashed(self: Any) -> str:
    with _hashing:
        return _cache_key(self)


JITCallable.cache_key = property(_hashed)


class _Trees(threading.local):
    """What `hashed` collects on this thread."""

    held: dict[int, tuple[str, ast.Module]] | None = None


_trees = _Trees()
_parse: Callable[[Any], ast.Module] = JITCallable.parse


def _parsed(self: Any) -> ast.Module:
    source, made = self._src, _parse(self)
    held = _trees.held
    if held is not None:
        held[id(self)] = (source, made)
    return made


JITCallable.parse = _parsed


def hashed(function: Any) -> dict[int, tuple[str, ast.Module]]:
    """Let Triton hash a kernel: it checks the globals that the kernel reads, and stores them for
    launches. Returns what it parsed for that, by the id of each function: the source text, and the
    syntax tree, which is for reading only. It parses nothing if it has hashed the kernel before."""
    found = _trees.held = {}
    try:
        function.cache_key  # noqa: B018
    finally:
        _trees.held = None
    return found


locks.register_properties(KernelParam)
locks.register_properties(Autotuner)


def compile_with(function: JITFunction[Any], compile: Callable[..., Any]) -> None:
    """Make a kernel compile with this function, which takes what ``triton.compile`` takes."""
    caches = function.device_caches
    plain = caches.default_factory
    if getattr(plain, "compile", None) is compile:
        return

    def begin() -> Any:
        made = plain()
        function.compile = compile
        return made

    begin.compile = compile  # type: ignore[attr-defined]
    caches.default_factory = begin
    if caches:
        function.compile = compile


_do_compile: Callable[..., Any] = JITFunction._do_compile
_OPTIONS = list(inspect.signature(_do_compile).parameters).index("options") - 1


def compile_all_with(
    compile: Callable[..., Any],
    wanted: Callable[[], bool],
    seen: Callable[[CompiledKernel, Mapping[str, Any]], None],
) -> None:
    """Make every kernel of Triton's compile with this function from now on, if it is `wanted` when
    the kernel compiles. `seen` is called for the others, with what was compiled and the options."""

    def do_compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.compile is compile_here and wanted():
            self.compile = compile
        made = _do_compile(self, *args, **kwargs)
        if self.compile is compile_here and type(made) is CompiledKernel:
            seen(made, vars(args[_OPTIONS]))
        return made

    JITFunction._do_compile = do_compile


def set_source(kernel: JITFunction[Any], text: str) -> None:
    """Give a kernel other source text than its function's file has."""
    kernel._unsafe_update_src(text)


def source_of(
    function: JITFunction[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[ASTSource, GPUTarget, dict[str, Any]]:
    """What a launch with these arguments would compile: the source, the target, the options."""
    _, _, target, backend, binder = function.device_caches[driver.active.get_current_device()]
    given = dict(kwargs)
    given["debug"] = given.get("debug", function.debug) or knobs.runtime.debug
    for group, name in KNOBS[1:]:
        given[name] = getattr(getattr(knobs, group), name)
    bound, described, options = binder(*args, **given)
    options, signature, constants, attributes = function._pack_args(
        backend, given, bound, described, options
    )
    return ASTSource(function, signature, constants, attributes), target, options.__dict__


def cuda_launch(kernel: Any, launcher: Any) -> tuple[int, int, int, bool, bool] | None:
    """The launch attributes that native code packs: threads of a block, bytes of shared memory,
    blocks of a cluster, cooperative, dependent (PDL). None for a binary that needs others, or is
    not for CUDA."""
    metadata = kernel.metadata
    if metadata.target.backend != "cuda" or getattr(launcher, "gsan_enabled", False):
        return None
    if launcher.num_ctas == 16:  # needs a function attribute set before each launch
        return None
    # Blocks of Triton kernels have one dimension; those of CUDA C++ may have three.
    threads, *more = getattr(metadata, "block", (32 * metadata.num_warps, 1, 1))
    if more != [1, 1]:
        return None
    return (
        threads,
        metadata.shared,
        launcher.num_ctas,
        bool(launcher.launch_cooperative_grid),
        bool(launcher.launch_pdl),
    )


def cuda_driver() -> type:
    """The class of Triton's driver for CUDA."""
    from triton.backends.nvidia.driver import CudaDriver

    found: type = CudaDriver
    return found


def is_plain_driver(active: Any) -> bool:
    """Whether a driver returns the current device and stream as its class defines, so that native
    code may read them elsewhere: tzero's CPU driver or Triton's CUDA driver, unpatched."""
    own = vars(active)
    if "get_current_device" not in own and "get_current_stream" not in own:
        from tzero.cpu.driver import CPUDriver

        return type(active) is CPUDriver
    import torch

    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return (
        own.get("get_current_device") is torch.cuda.current_device
        and raw_stream is not None
        and own.get("get_current_stream") is raw_stream
    )


def backend_of(caches: Any) -> Any:
    """The backend in a device's entry of `device_caches`."""
    return caches[3]


def binds_like(caches: Any, parameters: Sequence[Parameter]) -> bool:
    """Whether Triton binds the arguments of a device's launches to these parameters, and
    specializes on no more of them. It writes the function that does so at the first launch, from
    the kernel's parameters at that time: these may have been changed before or since."""
    binder = caches[4]
    if not isinstance(binder, FunctionType):  # other kernels than Triton's have none
        return binder is None
    code, names = binder.__code__, [each.name for each in parameters]
    defaults = [each.default for each in parameters if each.default is not inspect.Parameter.empty]
    found = binder.__defaults__ or ()
    if list(code.co_varnames[: code.co_argcount]) != names or len(found) != len(defaults):
        return False
    if any(one is not other for one, other in zip(found, defaults, strict=True)):
        return False
    ones, sixteens, odd = (binder(**dict.fromkeys(names, number))[1] for number in (1, 16, 17))
    return all(
        each.constant == (odd[k][0] == "constexpr")
        and (each.constant or ones[k] == odd[k] or each.specialize)
        and (each.constant or sixteens[k] == odd[k] or (each.specialize and each.align))
        for k, each in enumerate(parameters)
    )


def cpu_is_alone() -> bool:
    """Whether the CPU is the only device that tensors can be on."""
    import torch

    return not torch.accelerator.is_available()


def tensor_types() -> tuple[type, ...]:
    """The types that are read as plain tensors."""
    import torch

    return (torch.Tensor, torch.nn.Parameter)


def unknown_keyword(error: Exception) -> str | None:
    """The name of the option, if this is Triton's error for an unknown option of a launch."""
    said = str(error.args[0]) if isinstance(error, KeyError) and error.args else ""
    found = re.match(r"Keyword argument (\S+) was specified but unrecogni[sz]ed", said)
    return found[1] if found else None
