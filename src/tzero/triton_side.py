"""All that tzero knows of Triton's launch path: one place for what a new Triton may change.

Enters: Triton's modules and its jit functions. Leaves: what decides which binary a launch runs, the
parameters of a kernel, and what a compiled kernel needs to be launched. It must not know how tzero
launches.

Triton finds a kernel in four steps: it puts arguments in order, describes each (its
specialization), makes a text of that and of the options, and looks it up in a dict per device. All
of it depends on the arguments, on the options, and on the knobs in `KNOBS`; what is described here
is at least as fine. `tests/guards/test_triton_side.py` holds that to each Triton that is supported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton import language as tl
from triton._C.libtriton import native_specialize_impl
from triton.knobs import HookChain
from triton.runtime.driver import driver
from triton.runtime.jit import JITCallable, JITFunction, KernelInterface

__all__ = [
    "DRIVER_SLOT",
    "KNOBS",
    "MORE_KNOBS",
    "Compiled",
    "Constexpr",
    "Dtype",
    "JITCallable",
    "JITFunction",
    "KernelInterface",
    "Parameter",
    "backend_of",
    "changed_globals",
    "compiled",
    "cpu_is_alone",
    "cuda_driver",
    "cuda_launch",
    "current_stream",
    "driver",
    "functions_of",
    "hooks",
    "interpreting",
    "is_interpreted",
    "is_plain_driver",
    "knobs",
    "named",
    "oddity",
    "options_of",
    "parameters",
    "plain_alignment",
    "put_before_run",
    "specialization",
    "tensor_types",
    "world",
]

Constexpr = tl.constexpr
"""The type of ``tl.constexpr(64)``."""

Dtype = tl.dtype
"""The type of ``tl.float32``."""

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
    return (
        32 * metadata.num_warps,
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
    return not torch.accelerator.is_available()


def tensor_types() -> tuple[type, ...]:
    """The types that are read as plain tensors."""
    return (torch.Tensor, torch.nn.Parameter)
