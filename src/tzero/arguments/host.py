"""A host function's signature, read once when it is decorated.

Enters: a function, and the arguments of `@tzero.kernel`. Leaves: a `Host`: the parameters, which of
them are constants, and the position of the config; or `InvalidKernel`, which says why it cannot be
a kernel. It must not know keys, tables or calls.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from types import FrameType, FunctionType, MethodType
from typing import Any, Generic, TypeVar

from tzero import events
from tzero.arguments.extract import ConstExpr
from tzero.config import Config
from tzero.errors import InvalidKernel

__all__ = ["Host", "read_host"]

R = TypeVar("R")

_BY_NAME = -1
_POSITIONAL = frozenset([Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD])
_NONE: Mapping[Any, Any] = {Parameter.VAR_POSITIONAL: (), Parameter.VAR_KEYWORD: {}}
"""What a call that gives nothing for these has in their place."""
_ANY_ARGUMENTS = inspect.Signature(
    [Parameter("args", Parameter.VAR_POSITIONAL), Parameter("kwargs", Parameter.VAR_KEYWORD)]
)
"""The signature of functions written in C that do not tell theirs."""


@dataclass(frozen=True, slots=True)
class Host(Generic[R]):
    """A host function and its parameters, not counting `config`. Calls have one value for each
    parameter, in this order: for ``*rest`` a tuple, for ``**more`` a dict.

    >>> host = read_host(lambda x, config, y=2: (x, config, y), Config(B=1))
    >>> host.parameters, host.defaults, host.configured(host.function, host.config)(5, 6)
    (('x', 'y'), {'y': 2}, (5, Config(B=1), 6))
    >>> host = read_host(lambda x, *rest, k=1, **more: (x, rest, k, more), None)
    >>> host.parameters, host.configured(host.function, None)(1, (2, 3), 4, {"a": 5})
    (('x', '*rest', 'k', '**more'), (1, (2, 3), 4, {'a': 5}))
    """

    name: str
    function: Callable[..., R]
    signature: inspect.Signature
    parameters: tuple[str, ...]
    kinds: tuple[Any, ...]
    """The kind of each parameter, as `inspect.Parameter` has it."""
    defaults: Mapping[str, Any]
    constants: tuple[bool, ...]
    config: Config | None
    config_at: int | None
    runs_later: str = ""
    """What it is if its body runs after a call has ended; empty for ordinary functions."""

    def configured(self, function: Callable[..., R], config: Config | None) -> Callable[..., R]:
        """A function of the arguments alone."""
        at = self.config_at
        if not self.by_position:
            return _spread(self, function, config)
        if at is None:
            return function
        if at == _BY_NAME:
            return functools.partial(function, config=config)
        return lambda *args: function(*args[:at], config, *args[at:])

    @property
    def by_position(self) -> bool:
        """Whether every argument can be passed by position."""
        return _POSITIONAL.issuperset(self.kinds)


def _spread(host: Host[R], function: Callable[..., R], config: Config | None) -> Callable[..., R]:
    """A function of positional arguments for a host function with other parameters too. Generated,
    because a loop would cost more than many host functions."""
    forms: dict[Any, str] = {
        Parameter.VAR_POSITIONAL: "*a{k}",
        Parameter.KEYWORD_ONLY: "{name}=a{k}",
        Parameter.VAR_KEYWORD: "**a{k}",
    }
    given = [
        forms.get(kind, "a{k}").format(k=k, name=name)
        for k, (name, kind) in enumerate(zip(host.parameters, host.kinds, strict=True))
    ]
    if host.config_at == _BY_NAME:
        ends_open = host.kinds[-1] is Parameter.VAR_KEYWORD
        given.insert(len(given) - ends_open, "config=config")
    elif host.config_at is not None:
        given.insert(host.config_at, "config")
    taken = ", ".join(f"a{k}" for k in range(len(host.parameters)))
    made: Callable[..., R] = eval(
        f"lambda {taken}: function({', '.join(given)})", {"function": function, "config": config}
    )
    return made


def read_host(
    function: Callable[..., R], config: Config | None, takes_config: bool = True
) -> Host[R]:
    """Read a host function. With `takes_config` a parameter named config receives tzero's config.

    >>> read_host(lambda x, n=1: x, None).parameters
    ('x', 'n')
    """
    name, runs_later = _check_callable(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError):  # NameError: annotations, from 3.14 on
        signature = _ANY_ARGUMENTS
    every = list(signature.parameters.values())
    named = (k for k, each in enumerate(every) if each.name == "config")
    at = next(named, None) if takes_config else None
    place = None if at is None else _config_place(name, every, at)
    used = _config(name, None if at is None else every[at], config)
    plain = [each for k, each in enumerate(every) if k != at]
    defaults = {each.name: each.default for each in plain if each.default is not Parameter.empty}
    defaults |= {_starred(each): _NONE[each.kind] for each in plain if each.kind in _NONE}
    return Host(
        name=name,
        function=function,
        signature=signature.replace(parameters=plain),
        parameters=tuple(map(_starred, plain)),
        kinds=tuple(each.kind for each in plain),
        defaults=defaults,
        constants=_constants(name, function, plain),
        config=used,
        config_at=place,
        runs_later=runs_later,
    )


# -- what can be a kernel -------------------------------------------------------------------------


def _check_callable(function: Any) -> tuple[str, str]:
    """Raise unless this can be a host function; its name, and `Host.runs_later`."""
    if not callable(function):
        raise InvalidKernel(
            kernel=getattr(function, "__name__", None) or repr(function)[:80],
            problem=f"it is not a function but of type {type(function).__name__}",
            advice=_instead_of(function),
        )
    below = underlying(function)
    name = str(getattr(function, "__name__", None) or _name_of(function, below))
    own = function if isinstance(function, (FunctionType, MethodType)) else below
    kinds: dict[str, Callable[[Any], bool]] = {
        "a coroutine function": inspect.iscoroutinefunction,
        "a generator function": inspect.isgeneratorfunction,
        "an asynchronous generator function": inspect.isasyncgenfunction,
    }
    return name, next((kind for kind, is_one in kinds.items() if is_one(own)), "")


def _instead_of(function: Any) -> str:
    if isinstance(function, Config):
        return "Pass it as config=, and put the result on a function."
    if isinstance(function, property):
        return "Put @tzero.kernel below @property."
    return "Put @tzero.kernel on a function."


def _name_of(function: object, below: FunctionType | None) -> str:
    partial = isinstance(function, functools.partial) and below is not None
    return below.__name__ if partial and below is not None else type(function).__name__


def _starred(parameter: Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    return stars.get(parameter.kind.name, "") + parameter.name


def underlying(function: Any) -> FunctionType | None:
    """The Python function inside partials, methods and callable objects, if there is one.

    >>> underlying(functools.partial(underlying, None)) is underlying
    True
    """
    while not isinstance(function, FunctionType):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, (MethodType, staticmethod)):
            function = function.__func__
        elif isinstance(function, type):
            function = function.__init__  # type: ignore[misc]
        else:
            function = inspect.getattr_static(type(function), "__call__", None)
            if not isinstance(function, FunctionType):
                return None
    return function


# -- config ---------------------------------------------------------------------------------------


def _config_place(name: str, every: list[Parameter], at: int) -> int:
    """How to pass the config: by name if possible, else the position among the arguments."""
    kind = every[at].kind
    if kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        raise InvalidKernel(
            kernel=name,
            problem=f"its parameter {_starred(every[at])} is {kind.description}",
            advice="Take one config: a parameter `config`.",
        )
    last = at == len(every) - 1 and kind is not Parameter.POSITIONAL_ONLY
    return _BY_NAME if last or kind is Parameter.KEYWORD_ONLY else at


def _config(name: str, parameter: Parameter | None, config: Config | None) -> Config | None:
    """The config to call with: the one given, else the parameter's default."""
    if config is not None and not isinstance(config, Config):
        raise InvalidKernel(
            kernel=name,
            problem=f"config= is {config!r}, of type {type(config).__name__}",
            advice="Pass a tzero.Config.",
        )
    if parameter is None and config is not None:
        raise InvalidKernel(
            kernel=name,
            problem="config= is given, but it has no parameter `config`",
            advice="Give it a parameter `config`, or leave config= out.",
        )
    if parameter is None or config is not None:
        return config
    if parameter.default is Parameter.empty:
        raise InvalidKernel(
            kernel=name,
            problem="it has a parameter `config`, but config= is not given",
            advice="Pass config=tzero.Config(...), or give the parameter a default.",
        )
    if parameter.default is not None and not isinstance(parameter.default, Config):
        raise InvalidKernel(
            kernel=name,
            problem=f"the default of its parameter `config` is {parameter.default!r}",
            advice="Make it a tzero.Config.",
        )
    return parameter.default


# -- constants ------------------------------------------------------------------------------------


def _constants(
    name: str, function: Callable[..., Any], parameters: list[Parameter]
) -> tuple[bool, ...]:
    """Which parameters are annotated as `ConstExpr`, whatever name it was imported under."""
    names = _names_seen(function)
    return tuple(
        each.annotation is not Parameter.empty and _is_constant(_resolved(name, each, *names))
        for each in parameters
    )


def _names_seen(function: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The names that annotations may use: globals and closure variables."""
    below = underlying(function)
    if below is None:
        return {}, {}
    below = inspect.unwrap(below)
    cells = zip(below.__code__.co_freevars, below.__closure__ or (), strict=True)
    closed = {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
    return below.__globals__, closed


def _resolved(
    kernel: str, parameter: Parameter, namespace: dict[str, Any], closed: dict[str, Any]
) -> Any:
    """The value of an annotation, which may be a string."""
    try:
        return _evaluated(parameter, namespace, closed)
    except Exception:  # annotations are expressions: they may raise anything
        # A name that is used only in an annotation is not closed over, but may be a local of the
        # decorating function. Reading f_locals keeps them alive until it returns: try last.
        around = {**outside()[0].f_locals, **closed}
    try:
        return _evaluated(parameter, namespace, around)
    except Exception as error:
        if "ConstExp" not in str(parameter.annotation):
            reason = f"the annotation {parameter.annotation!r} of {parameter.name!r} cannot be "
            reason += f"resolved ({error}), so it is taken for an ordinary argument"
            events.emit(events.Event("fallback", kernel, reason), logging.INFO)
            return None
        raise InvalidKernel(
            kernel=kernel,
            problem=f"the annotation {parameter.annotation!r} of {parameter.name!r} cannot be "
            f"resolved ({type(error).__name__}: {error}), so it may be a ConstExpr or not",
            advice="Import its names at run time (not only under TYPE_CHECKING), or remove it.",
        ) from error


def _evaluated(parameter: Parameter, namespace: dict[str, Any], names: dict[str, Any]) -> Any:
    def carrier() -> None: ...

    carrier.__annotations__ = {parameter.name: parameter.annotation}
    return typing.get_type_hints(carrier, namespace, names)[parameter.name]


def _is_constant(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(map(_is_constant, typing.get_args(hint)))
    return hint is ConstExpr


def outside() -> tuple[FrameType, int]:
    """The frame that called into tzero, and its distance from the caller of this function."""
    frame, depth = sys._getframe(1), 0
    while frame.f_globals.get("__name__", "").partition(".")[0] == "tzero" and frame.f_back:
        frame, depth = frame.f_back, depth + 1
    return frame, depth


# -- options ---------------------------------------------------------------------------------------


def check_key(name: str, key: Any, parameters: Sequence[str]) -> None:
    """Raise unless a key= function takes the arguments of the kernel."""
    if key is None:
        return
    if not callable(key):
        raise InvalidKernel(
            kernel=name, problem=f"key= is {key!r}, not a function", advice="Pass a function."
        )
    try:
        signature = inspect.signature(key)
    except (TypeError, ValueError):  # written in C, without a signature
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise InvalidKernel(
            kernel=name,
            problem=f"its key= function does not take its arguments ({error})",
            advice=f"Give it {len(parameters)} parameters, for {', '.join(parameters)}.",
        ) from error
