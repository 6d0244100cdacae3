"""`@tzero.kernel`: a host function and its options to the kernel class of the tier in force.

Enters: a function, and what is said of it. Leaves: a `Kernel` whose calls are replayed natively,
one whose calls are replayed in Python, or one that always runs the host function; or
`InvalidKernel`. It must not know how calls are made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar, overload

import torch

from tzero import settings, triton_side
from tzero.config import Config
from tzero.dispatch import Kernel
from tzero.errors import InvalidKernel
from tzero.host import Host
from tzero.integrations import helion
from tzero.jitting import tier
from tzero.key import Options
from tzero.options import check_options, checked_configs, checked_hints, checked_lookup
from tzero.tune.space import Space

__all__ = ["kernel"]

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
    compiled side by side, timed, and what was found is remembered (see `tzero.tuning`; how hard it
    looks is ``TZERO_TUNE``). `lookup` has configs that are known to be best, by what
    `Kernel.arguments` says of a call. With `size_hints`, which want ``static_shapes=False``,
    configs are tuned for these sizes, and a call gets that of the nearest.

    `key` adds its result to the key. With ``static_shapes=False`` sizes above one share code;
    `index_dtype` then settles the width of indices. With ``pool=True`` replayed calls use output
    tensors again that nobody holds (see `tzero.pool`); ``TZERO_OUTPUT_POOL=1`` makes that the
    default. The tier is the one in force now (see `tzero.jitting`).
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
    if isinstance(function, triton_side.JITFunction):
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
    from tzero.native_plan import NativeKernel  # not there where the extension is not built

    found: type[Kernel[Any]] = NativeKernel
    return found
