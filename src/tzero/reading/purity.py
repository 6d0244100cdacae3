"""What libraries answer for: which of their functions act on the world, or answer otherwise each
time, and which say what something is set to.

Enters: functions, classes, modules and names in them. Leaves: whether they are a library's, and
whether a call that uses them can be like the one before. It must not know host functions or guards.

The standard library is not trusted as a whole: of its modules those are that compute, and nothing
else. Of torch and numpy those names are known that act or ask.
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

__all__ = ["ACTS", "ANSWERS", "ASKS", "LIBRARIES", "changes", "is_library", "named_change"]

LIBRARIES = sys.stdlib_module_names | {"torch", "triton", "numpy", "tzero", "helion"}
"""Packages that answer for what they call."""

_COMPUTING = frozenset(
    [
        *("abc", "array", "base64", "binascii", "bisect", "builtins", "cmath", "collections"),
        *("collections_abc", "contextlib", "copy", "dataclasses", "enum", "fractions"),
        *("functools", "hashlib", "heapq", "itertools", "json", "keyword", "math", "numbers"),
        *("operator", "re", "statistics", "string", "struct", "sys", "textwrap", "types"),
        *("typing",),
    ]
)
"""Modules of the standard library that do nothing but compute, but for names that are listed below;
in C, with an underscore before."""

ACTS = frozenset(
    [
        *("print", "open", "input", "exec", "eval", "globals", "locals", "vars", "dir"),
        *("setattr", "delattr", "id", "hash", "getattr", "hasattr", "breakpoint", "__import__"),
    ]
)
"""Builtins that act, or look at more than their arguments."""

_CHANGES: Mapping[str, frozenset[str] | None] = {
    **dict.fromkeys(["numpy.random", "torch.random", "torch.cuda.random", "torch.cuda.memory"]),
    **dict.fromkeys(["torch.cuda.streams", "torch.cuda.graphs", "torch.distributed"]),
    **dict.fromkeys(["triton.testing", settings.__name__, events.__name__, "tzero.plans.outputs"]),
    "builtins": ACTS,
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
"""Modules, and names in them, that answer otherwise each time, or act; None is all names, also in
what is below such a module."""

_ABOUT_BACKENDS = ("is_available", "is_built", "version")
_ABOUT_TORCH = ("_get_", "_set_", "_is_", "_cuda_")

ANSWERS: tuple[Callable[[], Any], ...] = (
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
"""Functions without arguments that say what something is set to: they are asked in each call."""

ASKS: Mapping[Any, Callable[[], Any]] = {torch.finfo: torch.get_default_dtype}
"""Functions that ask one of those, where they are given no argument."""


def is_library(thing: Any) -> bool:
    """Whether a function, class or module is of a library, which answers for what it reads.

    >>> is_library(torch.nn.Module), is_library(type("Own", (), {}))
    (True, False)
    """
    name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
    if isinstance(thing, FunctionType):  # its own word for it may be another function's
        name = thing.__globals__.get("__name__")
    if (name or "").partition(".")[0] not in LIBRARIES:
        return False
    return not isinstance(thing, type) or _is_there(thing)


_MADE_IN_PYTHON = 1 << 9


def _is_there(kind: type) -> bool:
    """Whether a class is in the module that it says it is of: one that a function of the library
    made for someone may say so too."""
    if not kind.__flags__ & _MADE_IN_PYTHON or "<locals>" in kind.__qualname__:
        return True
    module: Any = sys.modules.get(kind.__module__)
    return functools.reduce(_attribute, kind.__qualname__.split("."), module) is kind


def _attribute(thing: Any, name: str) -> Any:
    return getattr(thing, name, None)


def named_change(module: str, name: str) -> bool:
    """Whether a name in a module is known to act, or to answer otherwise each time.

    >>> named_change("os", "environ"), named_change("numpy.random.mtrand", "rand")
    (True, True)
    """
    module = {"posix": "os", "nt": "os", "_operator": "operator"}.get(module, module)
    above = module.split(".")
    tables = [_CHANGES.get(".".join(above[:k]), frozenset()) for k in range(1, len(above) + 1)]
    if None in tables or name in (tables[-1] or ()):
        return True
    if module == "torch":
        return name.startswith("set_") and name != "set_grad_enabled"
    return module == "torch._C" and name.startswith(_ABOUT_TORCH)


def changes(value: Any) -> str:
    """The name of a function or class that acts, or answers otherwise each time, under whichever
    name it goes; empty for any other value.

    >>> import time
    >>> changes(time.time), changes(sorted)
    ('time.time', '')
    """
    if not isinstance(value, (FunctionType, BuiltinFunctionType, types.MethodType, type)):
        return ""
    owner = getattr(value, "__self__", None)
    of = type(owner) if owner is not None and not isinstance(owner, ModuleType) else value
    module, name = getattr(of, "__module__", None) or "", value.__name__
    top = module.partition(".")[0]
    acts = named_change(module, name)
    if top in sys.stdlib_module_names and top.lstrip("_") not in _COMPUTING:
        acts = not (isinstance(value, type) and issubclass(value, BaseException))
    if module.startswith("torch.backends") and isinstance(value, FunctionType):
        acts = name not in _ABOUT_BACKENDS
    return f"{module}.{name}" if acts else ""
