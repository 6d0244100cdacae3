"""`tzero explain`: calls a function as a kernel, and explains how its calls are made.

Enters: ``module:function`` or ``file.py:function``, and the arguments of a call as text. Leaves: an
`Explanation`. It must not know how calls are made.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

from tzero.errors import InvalidArgument

__all__ = ["explain"]

CALLS = 3
"""How often the function is called before the next call is explained: bound, recorded, replayed."""


def explain(place: str, arguments: str) -> Any:
    """Call a function of a module or a file three times, and explain the next call.

    ::

        print(explain("package.ops:softmax", "torch.randn(8, 64), dim=-1"))

    The arguments are Python code, which sees the names of the module, `torch`, and `device`, where
    Triton's kernels run.
    """
    function, names = _found(place)
    kernel = _as_kernel(function, place)
    call = eval(f"lambda call: call({arguments})", names)
    for _ in range(CALLS):
        call(kernel)
    return call(kernel.explain)


def _found(place: str) -> tuple[Any, dict[str, Any]]:
    """The function, and the names that its arguments may use."""
    import torch
    import triton

    where, colon, path = place.rpartition(":")
    if not colon or not where or not path:
        raise _invalid(f"{place!r} names no function", "Write module:function or file.py:function")
    if where.endswith(".py"):
        sys.path.insert(0, str(Path(where).resolve().parent))
        names = runpy.run_path(where, run_name=Path(where).stem)
    else:
        sys.path.insert(0, str(Path.cwd()))
        names = dict(vars(importlib.import_module(where)))
    first, *rest = path.split(".")
    if first not in names:
        raise _invalid(f"{where} has no {first!r}", "Give the name of a function in it")
    found = names[first]
    for name in rest:
        found = getattr(found, name)
    names.setdefault("torch", torch)
    names.setdefault("device", triton.runtime.driver.active.get_active_torch_device())
    return found, names


def _as_kernel(function: Any, place: str) -> Any:
    from tzero.api.decorators import kernel
    from tzero.calls.kernel import Kernel

    if isinstance(function, Kernel):
        return function
    if isinstance(function, type) or not callable(function) or hasattr(function, "arg_names"):
        problem = f"{place} is a {type(function).__name__}, not a function that launches kernels"
        raise _invalid(problem, "Give the function that calls kernel[grid](...)")
    return kernel(function)


def _invalid(problem: str, advice: str) -> InvalidArgument:
    return InvalidArgument(kernel="tzero explain", problem=problem, advice=f"{advice}.")
