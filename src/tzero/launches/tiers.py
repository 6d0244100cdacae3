"""Which class a Triton kernel gets: Triton's own, or one whose launches tzero makes.

Enters: a function, or a Triton kernel. Leaves: a kernel of the current tier, which is still a
Triton kernel: other kernels can call it, `triton.autotune` can wrap it, torch.compile can trace it.
It must not know how a launch is made.

==== ================ =========================================================================
tier class            used
==== ================ =========================================================================
0    Triton's own     ``TZERO_TIER=0``, ``TZERO_DISABLE=1``, Triton's interpreter
1    `PythonJit`      ``TZERO_TIER=1``, or no native extension (then `tzero.kernel` replays nothing)
2    `NativeJit`      otherwise
==== ================ =========================================================================
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import triton

from tzero import events, settings
from tzero.adapters.triton_launch import JITFunction, is_interpreted, unsupported
from tzero.adapters.triton_wrappers import innermost
from tzero.errors import InvalidKernel, NativeMissing
from tzero.launches.python import PythonJit

__all__ = ["made", "tier"]


def tier() -> int:
    """The tier of kernels that are made now.

    >>> with settings.override(tier=1):
    ...     tier()
    1
    """
    current = settings.current()
    if current.disable:
        return 0
    if current.tier == 2 and _native() is None:
        raise NativeMissing()
    if current.tier is not None:
        return current.tier
    if _native() is None:
        _say_once()
        return 1
    return 2


@functools.cache
def _native() -> type[PythonJit] | None:
    """`NativeJit`; None if the extension is not built."""
    try:
        from tzero.launches.native import NativeJit
    except ModuleNotFoundError as error:
        if error.name != "tzero._native":
            raise
        return None
    return NativeJit


@functools.cache
def _say_once() -> None:
    reason = f"{NativeMissing()} Until then host functions run as written."
    events.emit(events.Event("fallback", "tzero", reason))


def made(fn: Any, options: dict[str, Any]) -> Any:
    """Make a kernel of the current tier from a function or a Triton kernel; `options` are those of
    ``triton.jit``.

    ::

        made(add_kernel, {})
    """
    chosen = tier()
    given = {name: value for name, value in options.items() if value is not None}
    inside = innermost(fn)
    if inside is not None:
        if given:
            raise InvalidKernel(
                kernel=inside.__name__,
                problem=f"it is a Triton kernel already, and {', '.join(given)} came with it",
                advice="Give these to the decorator that made it, or pass the plain function.",
            )
        if chosen == 0 or isinstance(fn, PythonJit):
            return fn
        return _from_triton(fn, chosen) if fn is inside else _around(fn, chosen)
    if is_interpreted(fn):
        return fn
    plain = triton.jit(fn, **options)
    return (
        plain if chosen == 0 or not isinstance(plain, JITFunction) else _from_triton(plain, chosen)
    )


def _around(wrapper: Any, chosen: int) -> Any:
    """An autotuner or heuristics like these, around a kernel of tzero. Both share what is tuned."""
    made_too = copy.copy(wrapper)
    made_too.fn = made(wrapper.fn, {})
    if chosen == 2:
        from tzero.launches.beside import with_native_run

        kind: Any = type(wrapper)
        made_too.__class__ = with_native_run(kind)
    return made_too


def _from_triton(kernel: Any, chosen: int) -> Any:
    """A kernel of tzero from one of Triton's."""
    if type(kernel) is not JITFunction:
        raise InvalidKernel(
            kernel=kernel.__name__,
            problem=f"it is a {type(kernel).__name__}, and tzero.jit takes functions and what "
            "triton.jit makes of them",
            advice="Use it as it is.",
        )
    odd = unsupported(kernel)
    if odd:
        events.emit(events.Event("fallback", kernel.__name__, f"Triton launches: {odd}"))
        return kernel
    native = _native()
    if chosen < 2 or native is None:
        return PythonJit.of(kernel)
    most: int = native.most_parameters
    if len(kernel.params) > most:
        reason = f"Python launches: it has {len(kernel.params)} parameters, more than {most}"
        events.emit(events.Event("fallback", kernel.__name__, reason))
        return PythonJit.of(kernel)
    return native.of(kernel)
