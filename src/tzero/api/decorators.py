"""`@tzero.kernel` and `@tzero.jit`: a function and its options to the class of the tier in force.

Enters: a function, and what is said of it. Leaves: a `Kernel` whose calls are replayed natively,
one whose calls are replayed in Python, or one that always runs the host function; or
`InvalidKernel`. It must not know how calls are made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

import torch

from tzero import settings
from tzero.adapters import triton_launch
from tzero.api.options import check_options, checked_configs, checked_hints, checked_lookup
from tzero.arguments.host import Host
from tzero.arguments.key import Options
from tzero.calls.kernel import Kernel
from tzero.config import Config
from tzero.errors import InvalidKernel
from tzero.integrations import helion
from tzero.launches.tiers import made as made_jit
from tzero.launches.tiers import tier
from tzero.tune.space import Space

__all__ = ["jit", "kernel", "replayed"]

R = TypeVar("R")


@overload
def kernel(function: Callable[..., R], /) -> Kernel[R]: ...
@overload
def kernel(
    *,
    config: Config | None = None,
    configs: Sequence[Config] | Space | None = None,
    key: Callable[..., Hashable] | None = None,
    static_shapes: bool = True,
    index_dtype: torch.dtype | None = None,
    pool: bool | None = None,
    size_hints: Sequence[int] | None = None,
    lookup: Mapping[str, Config] | None = None,
) -> Callable[[Callable[..., R]], Kernel[R]]: ...
def kernel(
    function: Callable[..., R] | None = None,
    /,
    *,
    config: Config | None = None,
    configs: Sequence[Config] | Space | None = None,
    key: Callable[..., Hashable] | None = None,
    static_shapes: bool = True,
    index_dtype: torch.dtype | None = None,
    pool: bool | None = None,
    size_hints: Sequence[int] | None = None,
    lookup: Mapping[str, Config] | None = None,
) -> Kernel[R] | Callable[[Callable[..., R]], Kernel[R]]:
    """Make a host function, which launches Triton kernels, into a dispatcher.

    ::

        @tzero.kernel(config=tzero.Config(BLOCK=1024))
        def add(x, y, config):
            out = torch.empty_like(x)
            grid = (triton.cdiv(x.numel(), config.BLOCK),)
            add_kernel[grid](x, y, out, x.numel(), **config)
            return out

    `config` reaches the host function through its parameter of that name. Of several `configs`, a
    list or a `tzero.Space`, the fastest is found when arguments with a new key come: all are
    compiled side by side, timed, and the result is remembered (see `tzero.tune.decide`;
    ``TZERO_TUNE`` sets the effort). `lookup` has configs that are known to be best, by what
    `Kernel.arguments` says of a call. With `size_hints`, which want ``static_shapes=False``,
    configs are tuned for these sizes, and a call gets that of the nearest.

    `key` adds its result to the key. With ``static_shapes=False`` sizes above one share code;
    `index_dtype` then settles the width of indices. With ``pool=True`` replayed calls use output
    tensors again that nobody holds (see `tzero.pool`); ``TZERO_OUTPUT_POOL=1`` makes that the
    default. The tier is the one in force now (see `tzero.launches.tiers`).
    """
    if function is None:
        return functools.partial(
            kernel,
            config=config,
            configs=configs,
            key=key,
            static_shapes=static_shapes,
            index_dtype=index_dtype,
            pool=pool,
            size_hints=size_hints,
            lookup=lookup,
        )
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, Kernel):
        raise InvalidKernel(
            kernel=name, problem="it is a kernel already", advice="Leave one @tzero.kernel out."
        )
    if isinstance(function, triton_launch.JITFunction):
        raise InvalidKernel(
            kernel=name,
            problem="it is a Triton kernel, and no function that launches one",
            advice="Use @tzero.jit in the place of @triton.jit; put @tzero.kernel on its caller.",
        )
    check_options(name, static_shapes, index_dtype, pool)
    if helion.is_kernel(function):
        owned = (config, configs, key, index_dtype, size_hints, lookup)
        if any(option is not None for option in owned) or not static_shapes:
            raise InvalidKernel(
                kernel=name,
                problem="it is a kernel of Helion's, which has its own configs, keys and shapes",
                advice="Give these to @helion.kernel; of tzero's options it takes pool=.",
            )
        return helion.wrap(function, pool=pool)
    config, space = checked_configs(name, config, configs)
    hints = checked_hints(name, size_hints, static_shapes, space)
    options = Options(static_shapes=static_shapes, index_dtype=index_dtype)
    chosen = tier()
    pooled = settings.current().output_pool if pool is None else pool
    made = _class_of(chosen)
    return made(
        function,
        config=config,
        space=space,
        size_hints=hints,
        lookup=checked_lookup(name, lookup, space),
        key=key,
        options=options,
        plans=chosen > 0,
        pool=pooled,
        replayed=replayed,
    )


def replayed(host: Host[R], config: Config) -> Callable[..., R]:
    """What calls of a host function with one config come to, for timing it: a kernel of its own,
    whose second call is replayed.

    ::

        replayed(add.host, tzero.Config(BLOCK=64))(x, y)
    """
    if host.config_at is None:
        return host.configured(host.function, config)
    made = kernel(config=config)(host.function)
    made.candidate = True
    return made


def _class_of(chosen: int) -> type[Kernel[Any]]:
    """The class of kernels of a tier."""
    if chosen < 2:
        return Kernel
    from tzero.calls.native import NativeKernel  # not there where the extension is not built

    found: type[Kernel[Any]] = NativeKernel
    return found


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
    """Make a function a Triton kernel that launches fast, or make a Triton kernel launch fast.

    ::

        @tzero.jit
        def add_kernel(x, y, out, n, BLOCK: tl.constexpr): ...

        fast = tzero.jit(someone_elses_kernel)

    The arguments are those of ``triton.jit``, and so is all that the kernel does; the tier is the
    one in force now.
    """
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
        return functools.partial(made_jit, options=options)
    return made_jit(fn, options)
