"""Key to BoundKernel: one kernel, bound to one specialization of its arguments.

Enters: a host function, a key and a configuration. Leaves: a `BoundKernel` that calls its own copy
of the host function. It must not know how keys are made or where bound kernels are kept.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
import threading
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any, Generic, TypeVar, cast

from tzero import settings
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

    `settings` are those that were in force when it was bound.
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
        self.settings = settings.current()
        self.last_used = 0
        self.has_constants = any(p[0] == "constant" for p in key if isinstance(p, tuple) and p)
        self._takes_config = takes_config
        self._set(config)

    @property
    def config(self) -> Config | None:
        """The configuration that calls are made with."""
        return self._config

    def set_config(self, config: Config) -> None:
        """Make later calls with another configuration."""
        self._set(config)

    def _set(self, config: Config | None) -> None:
        self._config = config
        self.call = (
            functools.partial(self.function, config=config) if self._takes_config else self.function
        )

    def __call__(self, *args: Any) -> R:
        return self.call(*args)

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


Call = tuple[Callable[..., None], tuple[Hashable, ...], BoundKernel[Any], tuple[Any, ...]]
"""One host function that is running, for what it calls to find (see `running`): what takes note of
an extra, and what that wants before it: the raw key, the bound kernel, the arguments. A plain
tuple, because every call makes one."""


class Running(threading.local):
    """What this thread is in: `current` is the innermost host function of a kernel, or None. Who
    enters one sets it, and sets it back."""

    current: Call | None = None


running = Running()
