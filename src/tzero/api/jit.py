"""`@tzero.jit`: a Triton kernel whose launches tzero makes.

Enters: a function or a Triton kernel, and the options of ``triton.jit``. Leaves: a kernel of the
current tier. It must not know host functions: a program that only launches kernels imports neither
plans nor the tuner, which takes most of the time of a first launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, overload

from tzero.launches import traced
from tzero.launches.tiers import made

if TYPE_CHECKING:
    from tzero.launches.ahead import Precompiled
    from tzero.launches.graphs import Launched

__all__ = ["JitKernel", "jit"]

Grid = tuple[int, ...] | list[int] | Callable[[dict[str, Any]], tuple[int, ...]]
"""One to three sizes, or a function of the arguments by name that returns them."""


class JitKernel(Protocol):
    """What a type checker knows of a kernel that `tzero.jit` makes. It is a `triton.JITFunction`,
    and has everything else that one has.

    ::

        def scaled(kernel: tzero.JitKernel, x: torch.Tensor) -> None:
            kernel[(1,)](x, BLOCK=64, num_warps=4)
    """

    fn: Callable[..., Any]
    """The Python function."""

    def __getitem__(self, grid: Grid, /) -> Callable[..., Any]:
        """The launch over a grid, which takes the kernel's arguments and Triton's options."""

    def run(self, *args: Any, grid: Grid, warmup: bool, **kwargs: Any) -> Any:
        """Triton's entry point, which autotuners and heuristics use."""

    def explain(self) -> Launched:
        """Whether launches on CUDA are CUDA graphs, how often and why not; it prints."""

    def precompile(self, /, *args: Any, **kwargs: Any) -> Precompiled:
        """Compile in the background what a launch with these arguments needs; tensors may be
        `tzero.Spec`s."""

    def warmup(self, *args: Any, grid: Grid, **kwargs: Any) -> Any:
        """Compile and load what a launch with these arguments needs, without launching."""


@overload
def jit(
    *,
    version: Any = None,
    repr: Callable[..., str] | None = None,
    launch_metadata: Callable[..., Any] | None = None,
    do_not_specialize: Iterable[int | str] | None = None,
    do_not_specialize_on_alignment: Iterable[int | str] | None = None,
    debug: bool | None = None,
    noinline: bool | None = None,
) -> Callable[[Any], JitKernel]: ...
@overload
def jit(
    fn: Any,
    *,
    version: Any = None,
    repr: Callable[..., str] | None = None,
    launch_metadata: Callable[..., Any] | None = None,
    do_not_specialize: Iterable[int | str] | None = None,
    do_not_specialize_on_alignment: Iterable[int | str] | None = None,
    debug: bool | None = None,
    noinline: bool | None = None,
) -> JitKernel: ...
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
