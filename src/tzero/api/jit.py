"""`@tzero.jit`: a Triton kernel whose launches tzero makes.

Enters: a function or a Triton kernel, and the options of ``triton.jit``. Leaves: a kernel of the
current tier. It must not know host functions: a program that only launches kernels imports neither
plans nor the tuner, which takes most of the time of a first launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from tzero.launches import traced
from tzero.launches.tiers import made

__all__ = ["jit"]


def jit(
    fn: Any = None,
    *,
    version: Any = None,
    repr: Callable[..., str] | None = None,
    launch_metadata: Callable[..., Any] | None = None,
    do_not_specialize: Iterable[int | str] | None = None,
    do_not_specialize_on_alignment: Iterable[int | str] | None = None,
    debug: bool | None = None,
    noinline: bool | None = None,
) -> Any:
    """Make a Triton kernel, of a function or of a kernel that is there, whose launches are fast.

    ::

        @tzero.jit
        def add_kernel(x, y, out, n, BLOCK: tl.constexpr): ...

        fast = tzero.jit(someone_elses_kernel)

    The options are those of ``triton.jit``, and so is everything else that the kernel does. The
    tier is the one in force now.
    """
    traced.begin()
    options = {
        "version": version,
        "repr": repr,
        "launch_metadata": launch_metadata,
        "do_not_specialize": do_not_specialize,
        "do_not_specialize_on_alignment": do_not_specialize_on_alignment,
        "debug": debug,
        "noinline": noinline,
    }
    if fn is None:
        return functools.partial(made, options=options)
    return made(fn, options)
