"""Which library functions are pure enough to be called in a replayed host function.

Enters: functions, classes, modules and names in them. Leaves: whether they belong to a library, and
whether they have side effects or are nondeterministic. It must not know host functions or guards.

Of the standard library only the modules in `_PURE` are trusted, except for the names in `_IMPURE`.
Of torch and numpy everything is, except for the names in `_IMPURE`.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from tzero import events, settings

__all__ = [
    "ASKS_FOR_MODES",
    "AUTOCAST",
    "GETTERS",
    "IMPURE_BUILTINS",
    "LIBRARIES",
    "READS_A_SETTING",
    "impure",
    "is_impure_name",
    "is_library",
]

LIBRARIES = sys.stdlib_module_names | {"torch", "triton", "numpy", "tzero", "helion"}
"""Packages whose code is not read: only the tables here say what their functions do."""

_PURE = frozenset(
    [
        *("abc", "array", "base64", "binascii", "bisect", "builtins", "cmath", "collections"),
        *("collections_abc", "contextlib", "copy", "dataclasses", "enum", "fractions"),
        *("functools", "hashlib", "heapq", "itertools", "json", "keyword", "math", "numbers"),
        *("operator", "re", "statistics", "string", "struct", "sys", "textwrap", "types"),
        *("typing",),
    ]
)
"""Pure modules of the standard library, except for the names in `_IMPURE`. Their versions in C have
a leading underscore."""

IMPURE_BUILTINS = frozenset(
    [
        *("print", "open", "input", "exec", "eval", "globals", "locals", "vars", "dir"),
        *("setattr", "delattr", "id", "hash", "getattr", "hasattr", "breakpoint", "__import__"),
    ]
)
"""Builtins that have side effects, or read more than their arguments."""

_IMPURE: Mapping[str, frozenset[str] | None] = {
    **dict.fromkeys(["numpy.random", "torch.random", "torch.cuda.random", "torch.cuda.memory"]),
    **dict.fromkeys(["torch.cuda.streams", "torch.cuda.graphs", "torch.distributed"]),
    **dict.fromkeys(["torch.autograd.graph", "torch.autograd.forward_ad"]),
    **dict.fromkeys(["torch.autograd.anomaly_mode", "torch.utils.checkpoint"]),
    "torch.utils": frozenset(["swap_tensors"]),
    "torch.nn.attention": frozenset(["sdpa_kernel"]),
    **dict.fromkeys(["triton.testing", settings.__name__, events.__name__, "tzero.plans.outputs"]),
    "builtins": IMPURE_BUILTINS,
    "contextlib": frozenset(["chdir", "redirect_stderr", "redirect_stdout"]),
    "operator": frozenset(["attrgetter", "methodcaller"]),
    "os": frozenset(["environ", "environb"]),
    "sys": frozenset(
        [
            *("modules", "argv", "path", "stdin", "stdout", "stderr", "exc_info", "exception"),
            *("gettrace", "settrace", "getprofile", "setprofile", "getrefcount", "getsizeof"),
            *("getallocatedblocks", "getswitchinterval", "setswitchinterval", "intern", "exit"),
            *("setrecursionlimit", "_getframe", "_current_frames", "displayhook", "excepthook"),
        ]
    ),
    "numpy": frozenset(
        [
            *("load", "save", "savez", "savez_compressed", "loadtxt", "savetxt", "genfromtxt"),
            *("fromfile", "memmap", "errstate", "seterr", "geterr", "seterrcall", "geterrcall"),
            *("set_printoptions", "get_printoptions", "setbufsize", "getbufsize"),
        ]
    ),
    "torch": frozenset(
        [
            *("autocast", "compile", "load", "manual_seed", "save", "seed", "initial_seed"),
            *("use_deterministic_algorithms", "get_autocast_dtype", "get_autocast_cpu_dtype"),
            *("get_autocast_gpu_dtype", "get_autocast_ipu_dtype", "get_autocast_xla_dtype"),
        ]
    ),
    "torch.cuda": frozenset(
        [
            *("synchronize", "stream", "Stream", "ExternalStream", "Event", "current_stream"),
            *("default_stream", "set_stream", "get_stream_from_external", "set_device", "device"),
            *("graph", "CUDAGraph", "manual_seed", "manual_seed_all", "utilization"),
            *("temperature", "power_draw", "clock_rate", "list_gpu_processes", "memory_usage"),
            *("device_memory_used", "is_current_stream_capturing", "get_sync_debug_mode"),
            *("set_sync_debug_mode", "is_initialized", "init", "ipc_collect"),
        ]
    ),
}
"""Names with side effects or nondeterministic results, by module; None stands for all names in a
module and its submodules."""

_PURE_OF_BACKENDS = ("is_available", "is_built", "version")
_IMPURE_PREFIXES = ("_get_", "_set_", "_is_", "_cuda_", "_has_torch_function")

GETTERS: tuple[Callable[[], Any], ...] = (
    torch.get_default_dtype,
    torch.get_default_device,
    torch.get_num_threads,
    torch.get_num_interop_threads,
    torch.are_deterministic_algorithms_enabled,
    torch.is_deterministic_algorithms_warn_only_enabled,
    torch.get_deterministic_debug_mode,
    torch.get_float32_matmul_precision,
    torch.is_anomaly_enabled,
    torch.is_anomaly_check_nan_enabled,
    torch.is_autocast_cache_enabled,
    torch.is_warn_always_enabled,
    torch.cuda.current_device,
)
"""Functions without arguments that return a setting. A guard calls them on each replay."""

AUTOCAST = (
    torch.get_autocast_dtype,
    torch.get_autocast_cpu_dtype,
    torch.get_autocast_gpu_dtype,
)
"""Functions that return a dtype of autocast, some by the type of a device."""

ASKS_FOR_MODES = (
    torch.overrides.has_torch_function,
    torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
)
"""Functions that see the recorder's mode: they are called without it. Code that is not followed may
not call them."""

READS_A_SETTING: Mapping[Any, Callable[[], Any]] = {torch.finfo: torch.get_default_dtype}
"""Functions that call one of those if they get no argument."""


def is_library(thing: Any) -> bool:
    """Whether a function, class or module belongs to a library.

    >>> is_library(torch.nn.Module), is_library(type("Own", (), {}))
    (True, False)
    """
    if isinstance(thing, FunctionType):  # functools.wraps copies __module__
        name = thing.__globals__.get("__name__")
    elif isinstance(thing, ModuleType):
        name = thing.__name__
    else:
        name = getattr(thing, "__module__", None)
    if (name or "").partition(".")[0] not in LIBRARIES:
        return False
    return not isinstance(thing, type) or _is_defined(thing)


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _is_defined(kind: type) -> bool:
    """Whether a class is defined in the module that it names. A class that a library function
    creates for the program may name the library too."""
    name = kind.__qualname__
    if not kind.__flags__ & _HEAP_TYPE or "<locals>" in name:
        return True
    module: Any = sys.modules.get(kind.__module__)
    if "." not in name:
        return getattr(module, name, None) is kind
    return functools.reduce(_attribute, name.split("."), module) is kind


def _attribute(thing: Any, name: str) -> Any:
    return getattr(thing, name, None)


@functools.lru_cache(4096)
def is_impure_name(module: str, name: str) -> bool:
    """Whether a name in a module has side effects or is nondeterministic.

    >>> is_impure_name("os", "environ"), is_impure_name("numpy.random.mtrand", "rand")
    (True, True)
    """
    module = {"posix": "os", "nt": "os", "_operator": "operator"}.get(module, module)
    parts = module.split(".")
    tables = [_IMPURE.get(".".join(parts[:k]), frozenset()) for k in range(1, len(parts) + 1)]
    if None in tables or name in (tables[-1] or ()):
        return True
    if module == "torch":
        return name.startswith("set_") and name != "set_grad_enabled"
    return module == "torch._C" and name.startswith(_IMPURE_PREFIXES)


def impure(value: Any) -> str:
    """The full name of a library function or class that has side effects or is nondeterministic,
    whatever the program calls it; empty for any other value.

    >>> import time
    >>> impure(time.time), impure(sorted)
    ('time.time', '')
    """
    if not isinstance(value, (FunctionType, BuiltinFunctionType, types.MethodType, type)):
        return ""
    owner = getattr(value, "__self__", None)
    of = type(owner) if owner is not None and not isinstance(owner, ModuleType) else value
    module, name = getattr(of, "__module__", None) or "", value.__name__
    top = module.partition(".")[0]
    found = is_impure_name(module, name)
    if top in sys.stdlib_module_names and top.lstrip("_") not in _PURE:
        found = not (isinstance(value, type) and issubclass(value, BaseException))
    if module.startswith("torch.backends") and isinstance(value, FunctionType):
        found = name not in _PURE_OF_BACKENDS
    return f"{module}.{name}" if found else ""
