"""`tzero.multi_kernel`: several functions that compute the same; each call gets the fastest.

::

    narrow(x) ─┐
    wide(x) ───┴─► def softmax(x, config): return wide(x) if config.variant == "wide" else narrow(x)
                     └─► tzero.kernel(configs=[Config(variant="narrow"), Config(variant="wide")])

Enters: functions with the same parameters. Leaves: a `Kernel` over one host function, written here,
whose configs name them; so variants are timed, compared, remembered and chosen as configs are, and
a replayed call costs what that of one variant does. It must not know how a config is chosen.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Sequence
from inspect import Parameter
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

from tzero.api.decorators import kernel
from tzero.arguments.host import Host, read_host
from tzero.calls.kernel import Kernel
from tzero.config import Config
from tzero.errors import InvalidKernel

__all__ = ["multi_kernel"]

P = ParamSpec("P")
R = TypeVar("R")

_numbers = itertools.count()


def multi_kernel(
    variants: Sequence[Callable[P, R]], /, *, name: str | None = None, **options: Any
) -> Kernel[P, R]:
    """A kernel that is each call's fastest of several functions. They take the same arguments and
    return the same; the first is the one that the results of the others are compared with.

    ::

        softmax = tzero.multi_kernel([softmax_of_short_rows, softmax_of_long_rows])

    They are timed when arguments with a new key come. `options` are those of `tzero.kernel`, such
    as ``static_shapes=False, size_hints=[64, 4096]`` or ``size_hints={"x": {0: [64, 4096]}}``: then
    they are timed for these sizes alone, and a call gets the variant of the nearest. `name` is the
    kernel's; the first function's, if none is given.
    """
    if not isinstance(variants, (list, tuple)) or not variants:
        raise InvalidKernel(
            kernel=name or "multi_kernel",
            problem=f"its variants are {variants!r}",
            advice="Pass a list of functions: multi_kernel([one, other]).",
        )
    for option in ("config", "configs", "lookup"):
        if option in options:
            raise InvalidKernel(
                kernel=name or "multi_kernel",
                problem=f"it is given {option}=, and its configs are the variants themselves",
                advice="Leave it out; variants may be kernels with configs of their own.",
            )
    functions = _by_name(variants)
    title = name or next(iter(functions))
    host = _written(title, functions)
    configs = [Config(variant=each) for each in functions]
    made: Kernel[..., R] = kernel(configs=configs, **options)(host)
    return cast("Kernel[P, R]", made)


def _by_name(variants: Sequence[Callable[..., R]]) -> dict[str, Callable[..., R]]:
    """The variants under names of their own, all with the parameters of the first."""
    found: dict[str, Callable[..., R]] = {}
    first: list[tuple[str, Any]] | None = None
    for function in variants:
        host = function.host if isinstance(function, Kernel) else read_host(function, None)
        if not isinstance(function, Kernel) and host.config_at is not None:
            raise InvalidKernel(
                kernel=host.name,
                problem="it is a variant, and has a parameter `config`",
                advice="Make it a kernel: @tzero.kernel(config=...).",
            )
        taken = [(each, host.defaults.get(each, Parameter.empty)) for each in host.parameters]
        if first is None:
            first = taken
        if [each for each, _ in taken] != [each for each, _ in first]:
            names = ", ".join(each for each, _ in first)
            raise InvalidKernel(
                kernel=host.name,
                problem=f"it is a variant, and takes {', '.join(host.parameters)}, not {names}",
                advice="Give all variants the same parameters.",
            )
        free = host.name
        for number in itertools.count(2):
            if free not in found:
                break
            free = f"{host.name}_{number}"
        found[free] = function
    return found


def _written(name: str, functions: dict[str, Callable[..., R]]) -> Callable[..., R]:
    """The host function: one branch for each variant. Its text is kept where tracebacks and
    recordings look for it."""
    first = next(iter(functions.values()))
    host = first.host if isinstance(first, Kernel) else read_host(first, None)
    taken, given = _parameters(host)
    places = {each: f"__variant_{k}" for k, each in enumerate(functions)}  # as no parameter is
    lines = [f"def host({taken}):"]
    *others, (_, last) = places.items()
    for each, place in others:
        lines += [f"    if config.variant == {each!r}:", f"        return {place}({given})"]
    lines.append(f"    return {last}({given})")
    text = "\n".join(lines) + "\n"
    file = f"<tzero: variants {next(_numbers)} of {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    world: dict[str, Any] = {"__name__": getattr(first, "__module__", __name__)}
    world |= {place: functions[each] for each, place in places.items()}
    exec(compile(text, file, "exec"), world)
    made: FunctionType = world["host"]
    made.__name__ = made.__qualname__ = name
    made.__doc__ = first.__doc__
    every = zip(host.parameters, host.kinds, strict=True)
    positional = {name: kind is not Parameter.KEYWORD_ONLY for name, kind in every}
    own = {name: value for name, value in host.defaults.items() if not name.startswith("*")}
    made.__defaults__ = tuple(value for name, value in own.items() if positional[name]) or None
    made.__kwdefaults__ = {n: value for n, value in own.items() if not positional[n]} or None
    return made


def _parameters(host: Host[Any]) -> tuple[str, str]:
    """The parameters of a function that takes what a host function takes and a config, and the
    arguments to pass them on."""
    every = list(zip(host.parameters, host.kinds, strict=True))
    of = {kind: [name for name, each in every if each is kind] for kind in host.kinds}
    first = of.get(Parameter.POSITIONAL_ONLY, [])
    middle = of.get(Parameter.POSITIONAL_OR_KEYWORD, [])
    rest = of.get(Parameter.VAR_POSITIONAL, [])
    named = of.get(Parameter.KEYWORD_ONLY, [])
    more = of.get(Parameter.VAR_KEYWORD, [])
    taken = [*first, *(["/"] if first else []), *middle, *(rest or ["*"]), *named, "config", *more]
    given = [*first, *middle, *rest, *(f"{name}={name}" for name in named), *more]
    return ", ".join(taken), ", ".join(given)
