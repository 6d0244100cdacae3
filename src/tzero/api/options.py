"""The options of `@tzero.kernel`, checked when the kernel is made, not at its first call.

Enters: options as they were written. Leaves: what the kernel is made with, or `InvalidKernel`,
which says what to pass instead. It must not know what options do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from tzero.config import Config
from tzero.errors import InvalidKernel
from tzero.tune.hints import NO_HINTS, Alike, ByArgument, Named, SizeHints
from tzero.tune.judge import Judge, unfit_option
from tzero.tune.select import MOST_HINTS
from tzero.tune.space import Space

__all__ = [
    "Given",
    "check_helion",
    "check_options",
    "checked_configs",
    "checked_hints",
    "checked_judge",
    "checked_lookup",
]


class Given(NamedTuple):
    """The options of `tzero.kernel` as they were written."""

    config: Any
    configs: Any
    key: Any
    static_shapes: Any
    index_dtype: Any
    pool: Any
    size_hints: Any
    lookup: Any
    tolerance: Any
    check: Any
    graph: Any = None


def check_options(name: str, given: Given) -> None:
    """Check the types of the plain options."""
    if given.pool not in (None, False, True):
        raise InvalidKernel(kernel=name, problem=f"pool= is {given.pool!r}", advice="Pass a bool.")
    if given.graph not in (None, False, True):
        raise InvalidKernel(
            kernel=name, problem=f"graph= is {given.graph!r}", advice="Pass a bool."
        )
    if given.graph and (given.pool or given.static_shapes is False or given.configs is not None):
        raise InvalidKernel(
            kernel=name,
            problem="it has graph=True beside pool=True, static_shapes=False or configs=",
            advice="Give these to the kernels that it calls; a graph is for one size.",
        )
    if given.static_shapes is not None and not isinstance(given.static_shapes, bool):
        raise InvalidKernel(
            kernel=name,
            problem=f"static_shapes= is {given.static_shapes!r}",
            advice="Pass a bool, or leave it out.",
        )
    if given.index_dtype not in (None, torch.int32, torch.int64):
        raise InvalidKernel(
            kernel=name,
            problem=f"index_dtype= is {given.index_dtype!r}",
            advice="Pass torch.int32 or torch.int64, or leave it out.",
        )


def check_helion(name: str, given: Given) -> None:
    """A kernel of Helion's takes no option of tzero's but `pool`."""
    owned = given._replace(static_shapes=None, pool=None)
    if any(option is not None for option in owned) or given.static_shapes is False:
        raise InvalidKernel(
            kernel=name,
            problem="it is a kernel of Helion's, which has its own configs, keys and shapes",
            advice="Give these to @helion.kernel; of tzero's options it takes pool=.",
        )


def checked_configs(
    name: str, config: Config | None, configs: Any
) -> tuple[Config | None, Space | None]:
    """The config until one is chosen, and the configs to choose from."""
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


def checked_hints(name: str, hints: Any, static_shapes: bool, space: Space | None) -> SizeHints:
    """The sizes that a kernel is tuned for, without duplicates."""
    if hints is None:
        return NO_HINTS
    found: SizeHints
    if isinstance(hints, Mapping):
        found = ByArgument(tuple(_named_hints(name, hints)))
        count = found.count()
    elif _are_sizes(hints, 2):
        found = Alike(tuple(dict.fromkeys(hints)))
        count = len(hints)
    else:
        raise InvalidKernel(
            kernel=name,
            problem=f"size_hints= is {hints!r}",
            advice="Pass a list of sizes from 2 on: size_hints=[64, 4096]; or name dimensions: "
            "size_hints={'x': {0: [64, 4096]}}.",
        )
    if count > MOST_HINTS:
        raise InvalidKernel(
            kernel=name,
            problem=f"it has {count} size_hints",
            advice=f"Give it at most {MOST_HINTS}; each of them is tuned for."
            + (
                " Lists that differ are combined, each size with each; dimensions with the same "
                "list change together."
                if isinstance(found, ByArgument)
                else ""
            ),
        )
    if static_shapes:
        raise InvalidKernel(
            kernel=name,
            problem="it has size_hints, but static_shapes=True tunes each shape by itself",
            advice="Pass static_shapes=False beside size_hints, or leave these out.",
        )
    if not hints or space is None or space.count() == 1:
        raise InvalidKernel(
            kernel=name,
            problem="its size_hints= is empty"
            if not hints
            else "it has size_hints, but only one config",
            advice="Give it several configs to choose from, and sizes to tune them for.",
        )
    return found


def _named_hints(name: str, hints: Mapping[Any, Any]) -> Iterator[Named]:
    """Each dimension and each integer that a mapping names, with its sizes."""
    for argument, value in hints.items():
        if not isinstance(argument, str):
            raise InvalidKernel(
                kernel=name,
                problem=f"size_hints= has the key {argument!r}",
                advice="Name an argument: size_hints={'x': {0: [64, 4096]}}.",
            )
        if not isinstance(value, Mapping):
            yield Named(argument, None, _sizes(name, argument, value, 1))
            continue
        for dimension, sizes in value.items():
            if type(dimension) is not int:
                raise InvalidKernel(
                    kernel=name,
                    problem=f"size_hints= names dimension {dimension!r} of {argument!r}",
                    advice="A dimension is an integer: 0 for the first, -1 for the last.",
                )
            yield Named(
                argument, dimension, _sizes(name, f"dimension {dimension} of {argument}", sizes, 2)
            )
        if not value:
            raise InvalidKernel(
                kernel=name,
                problem=f"size_hints= names no dimension of {argument!r}",
                advice=f"Write its dimensions: size_hints={{{argument!r}: {{0: [64, 4096]}}}}.",
            )


def _sizes(name: str, where: str, sizes: Any, least: int) -> tuple[int, ...]:
    if not _are_sizes(sizes, least) or not sizes:
        why = " (sizes 0 and 1 are tuned by themselves)" if least == 2 else ""
        raise InvalidKernel(
            kernel=name,
            problem=f"size_hints= has {sizes!r} for {where}",
            advice=f"Pass a list of integers from {least} on{why}: [64, 4096].",
        )
    return tuple(dict.fromkeys(sizes))


def _are_sizes(sizes: Any, least: int) -> bool:
    return isinstance(sizes, (list, tuple)) and all(
        type(each) is int and least <= each < 1 << 63 for each in sizes
    )


def checked_judge(name: str, given: Given) -> Judge:
    """How the results of configs are compared."""
    unfit = unfit_option(given.tolerance, given.check)
    if unfit is not None:
        option, problem, advice = unfit
        raise InvalidKernel(kernel=name, problem=f"{option}= {problem}", advice=advice)
    return Judge(given.tolerance, given.check)


def checked_lookup(name: str, lookup: Any, space: Space | None) -> dict[str, Config]:
    """Configs that are known to be best, by the text of the arguments."""
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
            advice="Pass a mapping of kernel.arguments(x, ...) to tzero.Configs.",
        )
    for config in lookup.values():
        Space.of([config]).check_names(list(space.parameters), kernel=name)
    return dict(lookup)
