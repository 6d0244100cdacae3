"""All that tzero knows of Triton's launch path: one place for what a new Triton may change.

Enters: Triton's modules and its jit functions. Leaves: what decides which binary a launch runs, the
parameters of a kernel, what a compiled kernel needs to be launched, and what a launch has compiled.
It must not know how tzero launches, or where it compiles. Processes that only compile import it, so
torch is imported where it is asked, not before.

Triton finds a kernel in four steps: it puts arguments in order, describes each (its
specialization), makes a text of that and of the options, and looks it up in a dict per device. All
of it depends on the arguments, on the options, and on the knobs in `KNOBS`; what is described here
is at least as fine. `tests/launches/test_triton_launch.py` checks that on each Triton.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from triton import knobs
from triton import language as tl
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, CompiledKernel, make_backend
from triton.compiler.compiler import compile as compile_here
from triton.knobs import HookChain
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.jit import ConstexprFunction, JITCallable, JITFunction, KernelInterface

__all__ = [
    "DRIVER_SLOT",
    "KNOBS",
    "MORE_KNOBS",
    "ASTSource",
    "Block",
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
    "changed_globals",
    "compile_here",
    "compile_with",
    "compiled",
    "cpu_is_alone",
    "cuda_driver",
    "cuda_launch",
    "current_stream",
    "driver",
    "every_config",
    "functions_of",
    "hooks",
    "interpreting",
    "is_interpreted",
    "is_plain_driver",
    "knobs",
    "make_backend",
    "named",
    "oddity",
    "options_of",
    "parameters",
    "plain_alignment",
    "put_before_run",
    "source_of",
    "specialization",
    "tensor_types",
    "world",
]

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
"""The knobs that Triton adds to the options of every launch: `triton.knobs`' object, attribute."""

MORE_KNOBS = tuple(name for group, name in KNOBS[1:] if name != "instrumentation_mode")
"""Those of `KNOBS` that not every Triton has; all of them in ``knobs.compilation``."""

DRIVER_SLOT = "_active" if hasattr(driver, "_active") else "active"
"""The attribute of Triton's driver configuration that holds the active driver: the plain one, not
the property, which runs Python code."""

if len(KNOBS) == 3:

    def world() -> tuple[Any, ...]:
        """The hook on the compiler's stages, and what the knobs in `KNOBS` are now."""
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

    def world() -> tuple[Any, ...]:
        """The hook on the compiler's stages, and what the knobs in `KNOBS` are now."""
        runtime = knobs.runtime
        mode, debug = knobs.compilation.instrumentation_mode, runtime.debug
        return (runtime.add_stages_inspection_hook, debug, type(debug), mode)


class Parameter(NamedTuple):
    """One parameter of a kernel, as far as it decides how an argument is described.

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


def oddity(function: JITFunction[Any]) -> str:
    """What in a kernel's parameters only Triton knows how to take; empty for most kernels."""
    for parameter in function.signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:  # as Triton 3.9 allows
            return f"its parameter {parameter.name!r} collects several arguments"
        if parameter.name.startswith("_tz_"):
            return f"its parameter {parameter.name!r} has a name that tzero keeps for itself"
    return ""


def parameters(function: JITFunction[Any]) -> tuple[Parameter, ...]:
    """A kernel's parameters in order."""
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
    """What `triton.jit` was told of a kernel."""
    return {
        "version": function.version,
        "repr": function._repr,
        "launch_metadata": function.launch_metadata,
        "do_not_specialize": function.do_not_specialize,
        "do_not_specialize_on_alignment": function.do_not_specialize_on_alignment,
        "debug": function.debug,
        "noinline": function.noinline,
    }


def functions_of(kernel: Any) -> Iterator[Callable[..., Any]]:
    """The functions that heuristics and autotuners around a kernel call at a launch."""
    while isinstance(kernel, KernelInterface) and not isinstance(kernel, JITFunction):
        found = [getattr(kernel, name, None) for name in ("pre_hook", "post_hook")]
        found += [getattr(config, "pre_hook", None) for config in getattr(kernel, "configs", ())]
        values = getattr(kernel, "values", {})
        found += values.values() if isinstance(values, dict) else []
        yield from (each for each in found if each is not None)
        kernel = getattr(kernel, "fn", None)


def is_interpreted(function: Any) -> bool:
    """Whether this is a kernel for Triton's interpreter (``TRITON_INTERPRET=1``)."""
    return isinstance(function, KernelInterface) and not isinstance(function, JITFunction)


def interpreting() -> str:
    """Why launches do not show as such, if they do not."""
    return "Triton's interpreter is on" if knobs.runtime.interpret else ""


def specialization(backend: Any, value: Any, parameter: Parameter) -> Any:
    """Triton's own description of an argument: its type, and what code may assume of it."""
    flags = (parameter.const, parameter.specialize, parameter.align)
    return native_specialize_impl(backend, value, *flags)


def plain_alignment(backend: Any) -> bool:
    """Whether a backend asks of a tensor's pointer only if 16 divides it. A backend may ask more:
    AMD's looks at the size of the storage too."""
    return bool(getattr(backend, "supports_native_tensor_specialization", False))


def hooks() -> tuple[Any, Any] | None:
    """The hooks to call around a launch, or None where there are none to call.

    Both chains are handed on where one has something in it: a hook may add another while it runs.
    """
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    if type(enter) is HookChain and type(leave) is HookChain and not (enter.calls or leave.calls):
        return None
    return None if _is_empty(enter) and _is_empty(leave) else (enter, leave)


def _is_empty(hook: Any) -> bool:
    return hook is None or (type(hook) is HookChain and not hook.calls)


def changed_globals(function: JITFunction[Any]) -> Iterator[str]:
    """Globals that a kernel was compiled with and that are no longer what they were."""
    missing = object()
    for (name, _), (value, where) in function.used_global_vals.items():
        if where.get(name, missing) != value:
            yield name


class Compiled(NamedTuple):
    """A compiled kernel, and where Triton keeps it: as long as it is found there, Triton would
    launch it for the same description of arguments."""

    kernel: Any
    caches: Any  # the device's entry in the function's device_caches
    table: dict[str, Any]  # in it: the compiled kernels by their key
    key: str
    run: Callable[..., None]
    handle: Any
    packed: Any
    direct: Callable[..., int] | None  # takes addresses, and answers with an outcome
    error: Callable[..., Exception] | None  # what to raise for it

    def is_current(self, function: JITFunction[Any], device: Any) -> bool:
        """Whether Triton still keeps the kernel there."""
        where = function.device_caches.get(device)
        return where is self.caches and self.table.get(self.key) is self.kernel


def compiled(function: JITFunction[Any], kernel: Any, device: Any) -> Compiled | None:
    """Where Triton keeps a kernel that it has just launched; None if it does not."""
    caches = function.device_caches.get(device)
    if caches is None:
        return None
    table = caches[0]
    key = next((key for key, each in list(table.items()) if each is kernel), None)
    if key is None:
        return None
    run = kernel.run
    return Compiled(
        kernel,
        caches,
        table,
        key,
        run,
        kernel.function,
        kernel.packed_metadata,
        run.direct() if hasattr(run, "direct") else None,
        getattr(run, "error", None),
    )


def named(
    function: JITFunction[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a launch by the names of the parameters, and the options beside them."""
    names = [parameter.name for parameter in function.params]
    given = {p.name: p.default for p in function.params} | dict(zip(names, args, strict=False))
    given |= {name: value for name, value in kwargs.items() if name in given}
    return given, {name: value for name, value in kwargs.items() if name not in given}


def current_stream() -> Any:
    """The device and the stream that a launch goes to now."""
    active = driver.active
    device = active.get_current_device()
    return device, active.get_current_stream(device)


_run = JITFunction.run


def put_before_run(shown: Callable[..., Any] | None) -> None:
    """Have launches by Triton's own kernels made by `shown`, or as ever."""
    if shown is None:
        JITFunction.run = _run
        return

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return _run(self, *args, grid=grid, warmup=warmup, **kwargs)

        def launch(grid: Any) -> Any:
            return _run(self, *args, grid=grid, warmup=False, **kwargs)

        return shown(self, grid, args, kwargs, launch)

    JITFunction.run = run


class _Looking(threading.local):
    """Whether this thread's launches by an autotuner are to be made with each of its configs."""

    every_config = False


_looking = _Looking()
_tuned = Autotuner.run
_tuners = 0
_tuners_lock = threading.Lock()  # protects `_tuners` and the function in place of Triton's


def _tune(self: Any, *args: Any, **kwargs: Any) -> Any:
    if not _looking.every_config:
        return _tuned(self, *args, **kwargs)
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    try:
        for config in self.prune_configs(kwargs):
            self.fn.run(*args, **kwargs, **config.all_kwargs())
    finally:
        self.nargs = None
    return None


@contextmanager
def every_config() -> Iterator[None]:
    """Have autotuners on this thread launch with each of their configs, and time none, until the
    block ends."""
    global _tuners
    with _tuners_lock:
        _tuners += 1
        Autotuner.run = _tune
    outer, _looking.every_config = _looking.every_config, True
    try:
        yield
    finally:
        _looking.every_config = outer
        with _tuners_lock:
            _tuners -= 1
            if not _tuners:
                Autotuner.run = _tuned


def compile_with(function: JITFunction[Any], compile: Callable[..., Any]) -> None:
    """Have a kernel's binaries made by this function, which is called as ``triton.compile`` is."""
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


def source_of(
    function: JITFunction[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[ASTSource, GPUTarget, dict[str, Any]]:
    """What a launch with these arguments has compiled: the source, the target, the options."""
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
    """Threads and shared memory of a block, blocks of a cluster, cooperative, dependent; None for
    a binary that needs more than that, or that CUDA does not run."""
    metadata = kernel.metadata
    if metadata.target.backend != "cuda" or getattr(launcher, "gsan_enabled", False):
        return None
    if launcher.global_scratch_size > 0 or launcher.profile_scratch_size > 0:
        return None
    if launcher.num_ctas == 16:  # wants an attribute of the function set at each launch
        return None
    # Blocks of Triton's kernels are rows of warps; those of CUDA C++ may be anything.
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
    """Whether a driver tells the current device and stream as it was made to, and not as someone
    has it say."""
    own = vars(active)
    if "get_current_device" not in own and "get_current_stream" not in own:
        return type(active).__module__ == "tzero.cpu.driver"  # its methods
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


def cpu_is_alone() -> bool:
    """Whether no device but the CPU can hold a tensor's memory."""
    import torch

    return not torch.accelerator.is_available()


def tensor_types() -> tuple[type, ...]:
    """The types that are read as plain tensors."""
    import torch

    return (torch.Tensor, torch.nn.Parameter)


def unknown_keyword(error: Exception) -> str | None:
    """The name, where this is what Triton says to a launch with an option that it does not know."""
    said = str(error.args[0]) if isinstance(error, KeyError) and error.args else ""
    found = re.match(r"Keyword argument (\S+) was specified but unrecogni[sz]ed", said)
    return found[1] if found else None
