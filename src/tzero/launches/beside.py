"""Native launches of Triton's own kernels in host functions that run as written.

    kernel[grid](...) ─► `JITFunction.run` ── in a fallback ──► native launch, with every guard
                                           └ elsewhere, or a guard fails ──► Triton's own `run`

Enters: a kernel that `triton.jit` made, at its first launch in a fallback. Leaves: a `Launchable`
beside it, in the kernel's dict, which has the keys and binaries of its launches. Hooks, caches and
flags stay Triton's, on Triton's kernel: native code reads them there. It must not know host
functions.

`install` puts a native object in the place of `JITFunction.run`, when the first host function falls
back for good. Launches elsewhere pass through it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from tzero import settings
from tzero.adapters import intercept, triton_launch
from tzero.launches.native import NotNative, described, parameter_of
from tzero.launches.python import finish

__all__ = ["install"]


@functools.cache
def install(native: ModuleType) -> None:
    """Launch Triton's own kernels natively in fallbacks, from now on.

    ::

        install(tzero._native)
    """

    class Beside(native.Launchable):  # type: ignore[name-defined, misc]
        """Launches one of Triton's kernels. `_launched` and `_finish` are called by native code."""

        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel
            shape = triton_launch.parameters(kernel)
            self._prepare(tuple(map(parameter_of, shape)), settings.current().max_specializations)

        def _launched(self, grid: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            """Let Triton launch. Returns the compiled kernel and its description, or None if native
            code cannot launch it."""
            made = triton_launch.plain_run(self.kernel, *args, grid=grid, warmup=False, **kwargs)
            try:
                return made, None if made is None else described(native, self.kernel, made)
            except NotNative:
                return made, None

        def _finish(self, kernel: Any, grid: Any, values: tuple[Any, ...], stream: int) -> Any:
            """Finish a launch in Python after native code has called the grid function."""
            finish(self.kernel, kernel, grid, values, stream)
            return kernel

        # A copy of Triton's kernel has attributes of its own, and gets another one of these.

        def __deepcopy__(self, memo: dict[int, Any]) -> Beside:
            return self

        def __reduce__(self) -> Any:
            return type(None), ()

    def beside(kernel: Any) -> Beside | None:
        fits = len(kernel.params) <= native.MOST_ARGUMENTS
        return Beside(kernel) if fits and not triton_launch.unsupported(kernel) else None

    run = native.Run(triton_launch.plain_run, triton_launch.JITFunction, beside)
    intercept.run_with(run)
