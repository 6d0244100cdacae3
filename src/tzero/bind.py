"""Key to BoundKernel: one kernel, bound to one specialization of its arguments.

Enters: a host function, a key and a configuration. Leaves: a `BoundKernel` that calls its own copy
of the host function. It must not know how keys are made or where bound kernels are kept.
"""

from __future__ import annotations

import inspect
import textwrap
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, TypeVar, cast

from tzero.config import Config
from tzero.key import Key

__all__ = ["BoundKernel"]

R = TypeVar("R")


class BoundKernel(Generic[R]):
    """A kernel for arguments of one key: what is called, and with which configuration.

    ::

        bound = add.bind((x, y))
        bound.set_config(tzero.Config(BLOCK=256))
        out = bound(x, y)
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., R],
        key: Key,
        config: Config | None,
        *,
        takes_config: bool,
    ) -> None:
        self.name = name
        self.key = key
        self.function = _copied(function)
        self.last_used = 0
        self._config = config
        self._takes_config = takes_config

    @property
    def config(self) -> Config | None:
        """The configuration that calls are made with."""
        return self._config

    def set_config(self, config: Config) -> None:
        """Make later calls with another configuration."""
        self._config = config

    def __call__(self, *args: Any) -> R:
        if self._takes_config:
            return self.function(*args, config=self._config)
        return self.function(*args)

    def to_code(self) -> str:
        """What runs: the host function's source, under its key and configuration."""
        try:
            source = textwrap.dedent(inspect.getsource(self.function))
        except OSError:
            source = f"# {self.name} was not written in a file: its source is not known\n"
        return f"# {self.name}: {self.key!r}\n# config: {self._config!r}\n{source}"

    def __repr__(self) -> str:
        return f"<BoundKernel {self.name} {self.key!r} config={self._config!r}>"


def _copied(function: Callable[..., R]) -> Callable[..., R]:
    """A function of its own with the same code and world: what is done to one bound kernel's
    function is not done to another's."""
    if not isinstance(function, FunctionType):
        return function
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    copy.__doc__, copy.__qualname__ = function.__doc__, function.__qualname__
    copy.__module__ = function.__module__
    return cast("Callable[..., R]", copy)


class Call:
    """One host function that is running, for what it calls to find: see `running`."""

    __slots__ = ("function", "specialize")

    def __init__(self, function: Callable[..., Any], specialize: Callable[[Any], None]) -> None:
        self.function = function
        self.specialize = specialize


_calls = threading.local()


def enter(call: Call) -> Call | None:
    """Have `running` find a call in this thread; returns what it found before, for `leave`."""
    outer: Call | None = getattr(_calls, "current", None)
    _calls.current = call
    return outer


def leave(outer: Call | None) -> None:
    """Have `running` find what it found before `enter`."""
    _calls.current = outer


def running() -> Call | None:
    """The innermost host function of a kernel that this thread is in."""
    return getattr(_calls, "current", None)
