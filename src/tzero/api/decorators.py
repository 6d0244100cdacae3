"""`@tzero.kernel`: chooses the kernel class for a function, its options and the tier.

Enters: a host function, and options. Leaves: a `Kernel` whose calls are replayed natively,
one whose calls are replayed in Python, or one that always runs the host function, as where the
extension is missing; or `InvalidKernel`. It must not know how calls are made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import torch

import tzero.api.seal  # noqa: F401 - importing it right before traffic slows the first call
from tzero import settings
from tzero.adapters import triton_launch
from tzero.api.jit import jit
from tzero.api.options import (
    Given,
    check_helion,
    check_options,
    checked_configs,
    checked_hints,
    checked_judge,
    checked_lookup,
)
from tzero.arguments.host import Host
from tzero.arguments.key import Options
from tzero.calls.as_written import AsWritten
from tzero.calls.kernel import Kernel
from tzero.config import Config
from tzero.errors import InvalidKernel, NativeMissing
from tzero.integrations import helion
from tzero.launches import traced
from tzero.launches.tiers import tier
from tzero.plans.varied import Free
from tzero.tune.hints import Option
from tzero.tune.space import Space

__all__ = ["jit", "kernel", "replayed"]

P = ParamSpec("P")
R = TypeVar("R")


@overload
def kernel(function: Callable[P, R], /) -> Kernel[P, R]: ...
@overload
def kernel(
    *,
    key: Callable[..., Hashable] | None = None,
    static_shapes: bool | None = None,
    index_dtype: torch.dtype | None = None,
    pool: bool | None = None,
    size_hints: Sequence[int] | None = None,
    lookup: Mapping[str, Config] | None = None,
    tolerance: float | None = None,
    check: Callable[[Any, Any], object] | None = None,
    graph: bool | None = None,
) -> Callable[[Callable[P, R]], Kernel[P, R]]: ...
@overload  # tzero passes `config`, and a type cannot say that a parameter is left out
def kernel(
    *,
    config: Config | None = None,
    configs: Sequence[Config] | Space | None = None,
    key: Callable[..., Hashable] | None = None,
    static_shapes: bool | None = None,
    index_dtype: torch.dtype | None = None,
    pool: bool | None = None,
    size_hints: Option | None = None,
    lookup: Mapping[str, Config] | None = None,
    tolerance: float | None = None,
    check: Callable[[Any, Any], object] | None = None,
    graph: bool | None = None,
) -> Callable[[Callable[..., R]], Kernel[..., R]]: ...
def kernel(
    function: Callable[..., R] | None = None,
    /,
    *,
    config: Config | None = None,
    configs: Sequence[Config] | Space | None = None,
    key: Callable[..., Hashable] | None = None,
    static_shapes: bool | None = None,
    index_dtype: torch.dtype | None = None,
    pool: bool | None = None,
    size_hints: Option | None = None,
    lookup: Mapping[str, Config] | None = None,
    tolerance: float | None = None,
    check: Callable[[Any, Any], object] | None = None,
    graph: bool | None = None,
) -> Kernel[..., R] | Callable[[Callable[..., R]], Kernel[..., R]]:
    """Put a dispatcher in front of a host function, which launches Triton kernels.

    ::

        @tzero.kernel(config=tzero.Config(BLOCK=1024))
        def add(x, y, config):
            out = torch.empty_like(x)
            grid = (triton.cdiv(x.numel(), config.BLOCK),)
            add_kernel[grid](x, y, out, x.numel(), **config)
            return out

    The host function gets `config` through its parameter of that name. Given several `configs`, a
    list or a `tzero.Space`, the first call with a new key finds the fastest: all are compiled in
    parallel and timed, and the result is remembered (``TZERO_TUNE`` sets the effort). `lookup` maps
    `Kernel.arguments` of a call to a config that is known to be best. With `size_hints`, which need
    ``static_shapes=False``, configs are tuned for these sizes, and a call gets the nearest one's:
    ``[64, 4096]`` for all dimensions alike, or ``{"x": {0: [16, 64]}, "n": [16, 64]}`` for
    dimensions of tensors and for integers, with everything else as in the first call.

    A config whose results differ from those of the first is not used. `tolerance` is the relative
    error that a float may have, in place of that of its dtype. `check` is called with the results
    of a config and those of the first, and rejects the config by an AssertionError or by False:
    ``check=torch.testing.assert_close``. `docs/tuning.md` says what is compared.

    A plan is for the sizes of its call. When a size, a stride or an integer varies, the next plan
    is for all values of it that take the same path. With ``static_shapes=True`` each plan is for
    one size. With ``static_shapes=False`` the first one is for all sizes above one, which share
    code; `index_dtype` then fixes the width of indices. The result of `key` joins the key. With
    ``pool=True`` replayed calls reuse output tensors that nobody holds (see `tzero.pool`);
    ``TZERO_OUTPUT_POOL=1`` makes that the default. The tier is the one in force now (see
    `tzero.launches.tiers`).

    With ``graph=True`` the function may be a whole step of a model, such as the `forward` of a
    module: the work that it gives to a GPU is captured into a CUDA graph, which later calls launch
    behind the same guards, with their own inputs (`docs/steps.md`).
    """
    shapes = (static_shapes, index_dtype)
    given = Given(config, configs, key, *shapes, pool, size_hints, lookup, tolerance, check, graph)
    if function is None:
        return functools.partial(_kernel_of, given=given)
    return _kernel_of(function, given)


def _kernel_of(function: Callable[..., R], given: Given) -> Kernel[..., R]:
    method: Any = function
    if isinstance(method, classmethod):
        made: Kernel[..., R] = _kernel_of(method.__func__, given)
        made.of_class = True
        return made
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, Kernel):
        raise InvalidKernel(
            kernel=name, problem="it is a kernel already", advice="Leave one @tzero.kernel out."
        )
    if isinstance(function, triton_launch.JITFunction):
        raise InvalidKernel(
            kernel=name,
            problem="it is a Triton kernel, not a function that launches one",
            advice="Use @tzero.jit instead of @triton.jit, and put @tzero.kernel on its caller.",
        )
    check_options(name, given)
    traced.begin()
    if helion.is_kernel(function):
        check_helion(name, given)
        return helion.wrap(function, pool=given.pool)
    config, space = checked_configs(name, given.config, given.configs)
    chosen, why_not, current = tier(), _native_missing(), settings.current()
    make = functools.partial(AsWritten, reason=why_not) if why_not else _class_of(chosen)
    found = make(
        function,
        config=config,
        space=space,
        size_hints=checked_hints(name, given.size_hints, given.static_shapes is not False, space),
        lookup=checked_lookup(name, given.lookup, space),
        judge=checked_judge(name, given),
        key=given.key,
        options=Options(
            given.static_shapes is not False, given.index_dtype, objects=bool(given.graph)
        ),
        free="nothing" if given.graph else _FREE[given.static_shapes],
        plans=chosen > 0 and not why_not,
        pool=not given.graph and (current.output_pool if given.pool is None else given.pool),
        graph=bool(given.graph),
        replayed=replayed,
    )
    if given.graph:
        found.remade = functools.partial(_kernel_of, given=given)
    return found


_FREE: Mapping[bool | None, Free] = {
    None: "what varies",
    True: "nothing",
    False: "everything",
}
"""What plans leave open, by `static_shapes`."""


def replayed(host: Host[R], config: Config) -> Callable[..., R]:
    """A host function with one config, as its calls will be made: a kernel of its own, whose second
    call is replayed. The tuner times these.

    ::

        replayed(add.host, tzero.Config(BLOCK=64))(x, y)
    """
    if host.config_at is None:
        return host.configured(host.function, config)
    made = kernel(config=config)(host.function)
    made.candidate = made.fallbacks.is_quiet = True
    if host.by_position:
        return made

    def called(*args: Any) -> R:
        given, named = made.ordered.spread(args)
        return made(*given, **named)

    return called


def _native_missing() -> str:
    """Why native code cannot make calls, so that host functions run as written; empty if it can, or
    if a tier is set."""
    current = settings.current()
    if current.disable or current.tier is not None:
        return ""
    if tier() < 2:
        return str(NativeMissing())
    from tzero.calls.native import available

    why_not = available()
    return f"native code cannot make calls here: {why_not}" if why_not else ""


def _class_of(chosen: int) -> type[Kernel[..., Any]]:
    """The class of kernels of a tier."""
    if chosen < 2:
        return Kernel
    from tzero.calls.native import NativeKernel  # not there where the extension is not built

    found: type[Kernel[..., Any]] = NativeKernel
    return found
