"""Adapts what Triton puts around a kernel: autotuners and heuristics.

    heuristics ──► autotuner ──► kernel        each passes its arguments on, with some more

Enters: a kernel with what is around it. Leaves: the kernel inside, the functions that a launch
calls, and which arguments they compute or depend on. It must not know who launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction, KernelInterface

from tzero.adapters.triton_entries import is_entry, plain

__all__ = [
    "called_with_arguments",
    "computed_by",
    "functions_of",
    "innermost",
    "is_code_of_run",
    "is_run",
    "layers",
    "tuned_by",
    "wrapped_in",
]

_PASSING: tuple[CodeType, ...] = (plain["tuned"].__code__, plain["heuristics"].__code__)


def layers(kernel: Any) -> Iterator[Any]:
    """The heuristics and autotuners around a kernel, from the outside."""
    while isinstance(kernel, KernelInterface) and not isinstance(kernel, JITFunction):
        yield kernel
        kernel = getattr(kernel, "fn", None)


def is_run(function: Any) -> bool:
    """Whether a function is what launches a plain kernel, an autotuner or heuristics."""
    return is_entry(function)


def is_code_of_run(code: CodeType) -> bool:
    """Whether code is that of Triton's autotuners or heuristics, which pass arguments on."""
    return code in _PASSING


def innermost(kernel: Any) -> JITFunction[Any] | None:
    """The kernel inside of all that is around it."""
    for each in layers(kernel):
        kernel = getattr(each, "fn", None)
    return kernel if isinstance(kernel, JITFunction) else None


def wrapped_in(kernel: Any, run: Any = None) -> JITFunction[Any] | None:
    """The kernel that plain heuristics and autotuners launch, with the arguments that they are
    given and some more; None where others are around it. `run` launches the outermost, if it is one
    of theirs."""
    for each in layers(kernel):
        if not is_run(run if is_run(run) else type(each).run):
            return None
        run, kernel = None, each.fn
    return kernel if isinstance(kernel, JITFunction) else None


def called_with_arguments(kernel: Any) -> Iterator[Callable[..., Any]]:
    """The functions that heuristics and autotuners around a kernel call with its arguments, once it
    is tuned."""
    for each in layers(kernel):
        if isinstance(each, Heuristics):
            yield from each.values.values()
        elif isinstance(each, Autotuner):
            yield from (c.pre_hook for c in each.configs if c.pre_hook is not None)


def computed_by(kernel: Any) -> set[str]:
    """The names of the arguments that heuristics around a kernel compute."""
    return {name for each in layers(kernel) if isinstance(each, Heuristics) for name in each.values}


def tuned_by(kernel: Any) -> set[str]:
    """The names of the arguments whose values choose a config of the autotuners around a kernel."""
    tuners = [each for each in layers(kernel) if isinstance(each, Autotuner)]
    return {name for each in tuners if len(each.configs) > 1 for name in each.keys}


def functions_of(kernel: Any) -> Iterator[Callable[..., Any]]:
    """The functions that heuristics and autotuners around a kernel call during a launch."""
    while isinstance(kernel, KernelInterface) and not isinstance(kernel, JITFunction):
        found = [getattr(kernel, name, None) for name in ("pre_hook", "post_hook")]
        found += [getattr(config, "pre_hook", None) for config in getattr(kernel, "configs", ())]
        values = getattr(kernel, "values", {})
        found += values.values() if isinstance(values, dict) else []
        yield from (each for each in found if each is not None)
        kernel = getattr(kernel, "fn", None)
