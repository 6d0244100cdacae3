"""What `@tzero.kernel` is told of a host function: checked when the kernel is made, not at its
first call.

Enters: options as they were written. Leaves: what they come to, or `InvalidKernel`, which says what
to pass instead. It must not know what options do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tzero.config import Config
from tzero.errors import InvalidKernel
from tzero.tune.select import MOST_HINTS
from tzero.tune.space import Space

__all__ = ["check_options", "checked_configs", "checked_hints", "checked_lookup"]


def check_options(name: str, static_shapes: Any, index_dtype: Any, pool: Any) -> None:
    """Options are of their types."""
    if pool not in (None, False, True):
        raise InvalidKernel(kernel=name, problem=f"pool= is {pool!r}", advice="Pass a bool.")
    if not isinstance(static_shapes, bool):
        raise InvalidKernel(
            kernel=name, problem=f"static_shapes= is {static_shapes!r}", advice="Pass a bool."
        )
    if index_dtype not in (None, torch.int32, torch.int64):
        raise InvalidKernel(
            kernel=name,
            problem=f"index_dtype= is {index_dtype!r}",
            advice="Pass torch.int32 or torch.int64, or leave it out.",
        )


def checked_configs(
    name: str, config: Config | None, configs: Any
) -> tuple[Config | None, Space | None]:
    """The config that calls are made with as long as none is chosen, and what there is to choose
    from."""
    if configs is None:
        return config, None if config is None else Space.of([config])
    space = configs
    if not isinstance(configs, Space):
        listed = isinstance(configs, (list, tuple)) and all(isinstance(c, Config) for c in configs)
        if not listed:
            raise InvalidKernel(
                kernel=name,
                problem=f"configs= is {configs!r}",
                advice="Pass a tzero.Space, or a list of tzero.Configs; num_warps and num_stages "
                "are names like others there: tzero.Config(BLOCK=64, num_warps=4).",
            )
        space = Space.of(configs) if configs else None
    if config is not None or space is None:
        raise InvalidKernel(
            kernel=name,
            problem="it has a config beside its configs" if config else "its configs= is empty",
            advice="Pass config= with the one to use, or configs= with all of them.",
        )
    return space.first, space


def checked_hints(
    name: str, hints: Any, static_shapes: bool, space: Space | None
) -> tuple[int, ...]:
    """The sizes that a kernel is tuned for, each once."""
    if hints is None:
        return ()
    if not isinstance(hints, (list, tuple)) or not all(type(h) is int and h > 1 for h in hints):
        raise InvalidKernel(
            kernel=name,
            problem=f"size_hints= is {hints!r}",
            advice="Pass a list of sizes from 2 on: size_hints=[64, 4096].",
        )
    if len(hints) > MOST_HINTS:
        raise InvalidKernel(
            kernel=name,
            problem=f"it has {len(hints)} size_hints",
            advice=f"Give it at most {MOST_HINTS}; each of them is tuned for.",
        )
    if static_shapes:
        raise InvalidKernel(
            kernel=name,
            problem="it has size_hints, and static_shapes=True has each shape tuned by itself",
            advice="Pass static_shapes=False beside size_hints, or leave these out.",
        )
    if not hints or space is None or space.count() == 1:
        raise InvalidKernel(
            kernel=name,
            problem="its size_hints= is empty"
            if not hints
            else "it has size_hints, and one config",
            advice="Give it several configs to choose from, and sizes to tune them for.",
        )
    return tuple(dict.fromkeys(hints))


def checked_lookup(name: str, lookup: Any, space: Space | None) -> dict[str, Config]:
    """A table of configs that are known to be best, by the words of the arguments."""
    if lookup is None:
        return {}
    if space is None:
        raise InvalidKernel(
            kernel=name, problem="it has a lookup table, and no configs", advice="Pass configs=."
        )
    if not isinstance(lookup, Mapping) or not all(
        isinstance(arguments, str) and isinstance(config, Config)
        for arguments, config in lookup.items()
    ):
        raise InvalidKernel(
            kernel=name,
            problem=f"lookup= is {lookup!r}",
            advice="Pass a mapping of kernel.arguments(args) to tzero.Configs.",
        )
    for config in lookup.values():
        Space.of([config]).check_names(list(space.parameters), kernel=name)
    return dict(lookup)
