"""Key to BoundKernel: one kernel, bound to one specialization of its arguments.

Enters: a host function, a key and a configuration. Leaves: a `BoundKernel` that calls its own copy
of the host function. It must not know how keys are made or where bound kernels are kept.
"""

from __future__ import annotations

import inspect
import textwrap
import threading
from collections.abc import Callable, Hashable, Mapping
from types import FunctionType, MappingProxyType
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, cast

from tzero import settings
from tzero.config import Config
from tzero.errors import InvalidArgument
from tzero.host import Host, underlying
from tzero.key import Key
from tzero.plan import Refusal

__all__ = ["BoundKernel"]

R = TypeVar("R")

_NO_FACTS: Mapping[Hashable, Hashable] = MappingProxyType({})

Site = tuple[str, int, int]
"""A place in the code: file, line, and offset in its function."""


class Given(NamedTuple):
    """The values that a bound kernel was given by `specialize` at a site, each with how it is
    shown, and the number of the call that was there first."""

    number: int
    values: dict[Hashable, str]


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
        host: Host[R],
        key: Key,
        caller: Callable[[BoundKernel[R], tuple[Any, ...], Mapping[str, Any]], R],
        changed: Callable[[BoundKernel[R]], None],
        facts: Mapping[Hashable, Hashable] = _NO_FACTS,
    ) -> None:
        self.name = host.name
        self.host = host
        self.key = key
        self.facts = facts  # those that joined the key by specialize
        self.function = _copied(host.function)
        self.settings = settings.current()
        self.has_constants = any(p[0] == "constant" for p in key if isinstance(p, tuple) and p)
        self.last_used = 0
        # What calls gave to `specialize`, and the sites that none has left yet; `hold` keeps both.
        self.given: dict[Site, Given] = {}
        self.open_sites: frozenset[Site] = frozenset()
        # What calls were recorded as, by their situation; `tzero.planner` keeps these.
        self.plans: dict[Hashable, Any] = {}
        self.stale: dict[Hashable, int] = {}
        self.refusal: Refusal | None = None  # why no call is recorded at all
        self._caller, self._changed = caller, changed
        self._set(host.config)

    @property
    def config(self) -> Config | None:
        """The configuration that calls are made with."""
        return self._config

    def set_config(self, config: Config) -> None:
        """Make later calls with another configuration: those of this bound kernel, and those of
        the kernel that find it. That ends with `reset`, and when a value that the host function
        specializes joins the key: what is bound then starts with the kernel's own config. Under
        torch.compile only calls of the bound kernel itself have it.
        """
        if not isinstance(config, Config):
            raise InvalidArgument(
                kernel=self.name,
                problem=f"set_config was given {config!r}",
                advice="Give it a tzero.Config.",
            )
        if self.host.config_at is None:
            raise InvalidArgument(
                kernel=self.name,
                problem="set_config has nothing to set, because the host function takes no config",
                advice="Give it a parameter `config`.",
            )
        self._set(config)
        self._changed(self)

    def _set(self, config: Config | None) -> None:
        self._config = config
        self.plans, self.stale, self.refusal = {}, {}, None
        self.call = self.host.configured(self.function, config)

    def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        """Call it as the kernel is called, by place or by name. Arguments with another key than
        `key` are refused: this bound kernel is not made for them."""
        return self._caller(self, args, kwargs)

    def to_code(self) -> str:
        """What runs: the wrapper that was written for the plan of the latest call, or, where calls
        are not replayed, the host function's source; under its key and configuration."""
        head = f"# {self.name}: {self.key!r}\n# config: {self._config!r}\n"
        wrappers = [each.wrapper for each in self.plans.values() if hasattr(each, "wrapper")]
        if wrappers:
            return f"{head}{wrappers[-1].source}"
        below = underlying(self.function)
        try:
            source = textwrap.dedent(inspect.getsource(below or type(self.function)))
        except (OSError, TypeError):
            source = f"# {self.name} was not written in a file: its source is not known\n"
        return f"{head}{source}"

    def __repr__(self) -> str:
        return f"<BoundKernel {self.name} {self.key!r} config={self._config!r}>"

    def __copy__(self) -> BoundKernel[R]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundKernel[R]:
        return self

    def __reduce__(self) -> NoReturn:
        raise InvalidArgument(
            kernel=self.name,
            problem="a bound kernel cannot be pickled, because it belongs to its process",
            advice="Pickle the kernel, and bind it there.",
        )


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


Call = tuple[Callable[..., None], tuple[Hashable, ...], BoundKernel[Any], tuple[Any, ...], int]
"""One host function that is running, for what it calls to find (see `running`): what takes note of
a value, and what that wants to know: the raw key, the bound kernel, the arguments, and the call's
number. A plain tuple, because every call makes one."""


class Running(threading.local):
    """What this thread is in: `current` is the innermost host function of a kernel, or None;
    `ahead` says that one is looked through for what it would launch. Who enters one sets it, and
    sets it back."""

    current: Call | None = None
    ahead = False


running = Running()
