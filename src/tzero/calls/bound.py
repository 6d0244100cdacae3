"""Key to BoundKernel: one kernel, bound to one specialization of its arguments.

Enters: a host function, a key and a configuration. Leaves: a `BoundKernel` that calls its own copy
of the host function. It must not know how keys are made or where bound kernels are kept.
"""

from __future__ import annotations

import inspect
import textwrap
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar, cast

from tzero import settings
from tzero.adapters.torch_modes import untraced
from tzero.arguments.host import Host, underlying
from tzero.arguments.key import Key
from tzero.config import Config
from tzero.errors import InvalidArgument
from tzero.plans.table import Table
from tzero.tune.by_size import BySize
from tzero.tune.search import Effort
from tzero.tune.select import Choice

if TYPE_CHECKING:
    from tzero.tune.tuner import Search

__all__ = ["BoundKernel"]

R = TypeVar("R")

_NO_FACTS: Mapping[Hashable, Hashable] = MappingProxyType({})

_swapping = threading.Lock()  # so that each table of plans that is replaced is ended, and once

Site = tuple[str, int, int]
"""A place in the code: file, line, and offset in its function."""


class Owner(Protocol[R]):
    """What a bound kernel knows of its kernel."""

    host: Host[R]

    @property
    def has_choice(self) -> bool:
        """Whether there are several configs."""

    def call_bound(
        self, bound: BoundKernel[R], args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> R:
        """Make a call of a bound kernel itself."""

    def changed(self) -> None:
        """A bound kernel has another config."""

    def plans_ended(self, bound: BoundKernel[R], /) -> None:
        """Plans of a bound kernel have ended: drop what is kept of them elsewhere."""

    def autotune_bound(
        self,
        bound: BoundKernel[R],
        args: Sequence[Any] | None,
        effort: Effort | None,
        budget: float | None,
        isolate: bool | None,
        force: bool,
        /,
    ) -> Search:
        """Find the fastest config for a bound kernel."""


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

    `settings` are those that were in force when it was bound; `choice` is its configuration and
    why it has that one, None as long as no call has decided about it.
    """

    def __init__(
        self, owner: Owner[R], key: Key, facts: Mapping[Hashable, Hashable] = _NO_FACTS
    ) -> None:
        self._owner = owner
        self.host = host = owner.host
        self.name = host.name
        self.key = key
        self.facts = facts  # those that joined the key by specialize
        self.function = _copied(host.function)
        self.settings = settings.current()
        self.has_constants = any(p[0] == "constant" for p in key if isinstance(p, tuple) and p)
        self.last_used = 0
        # What calls gave to `specialize`, and the sites that none has left yet; `hold` keeps both.
        self.given: dict[Site, Given] = {}
        self.open_sites: frozenset[Site] = frozenset()
        self.plans = Table(self._plans_ended)
        # `tzero.tune.decide` chooses the config at the first call, or for each size.
        self.choice: Choice[Config] | None = None
        self.undecided = owner.has_choice
        self.by_size: BySize | None = None
        self.family: BoundKernel[R] = self
        """The one that calls find, where this is one of several for other sizes; else itself."""
        self._variants: dict[Config, BoundKernel[R]] = {}
        self.example: Any = ()  # what it was bound with, described; where there are several configs
        self._set(host.config)
        if not self.undecided and host.config is not None:
            self.choice = Choice.pinned(host.config, by="config=")

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
        self.choose(Choice.pinned(config, by="set_config"))

    def choose(self, choice: Choice[Config], *, settled: bool = True) -> None:
        """Make later calls with the config of a choice; `settled`: until another one is made."""
        was_chosen, by_size = self._was_chosen(), self.by_size
        others = list(self._variants.values())
        self.choice, self.undecided = choice, not settled
        self.by_size, self._variants = None, {}
        if choice.variant != self._config or by_size is not None:
            self._set(choice.variant)
        self._end(others, was_chosen)

    def choose_by_size(self, by_size: BySize) -> None:
        """Make later calls with the config that is chosen for the sizes of their tensors."""
        was_chosen, others = self._was_chosen(), list(self._variants.values())
        self.choice, self._variants = None, {}
        self.by_size, self.undecided = by_size, False
        self._set(self._config)
        self._end(others, was_chosen)

    def _was_chosen(self) -> bool:
        """Whether calls may have been made with an earlier choice."""
        return self.choice is not None or self.by_size is not None

    def _end(self, others: list[BoundKernel[R]], was_chosen: bool) -> None:
        """End plans that were made with an earlier choice, those of other sizes included."""
        for each in others:
            each.plans.end()
        if was_chosen:
            self._owner.changed()

    def variant(self, args: tuple[Any, ...]) -> BoundKernel[R]:
        """The bound kernel that makes a call: this one, unless configs are chosen by size."""
        by_size = self.by_size
        if by_size is None:
            return self
        choice = by_size(args)
        found = self._variants.get(choice.variant)
        if found is None:
            found = BoundKernel(self._owner, self.key, self.facts)
            found.family, found.undecided, found.choice = self, False, choice
            found._set(choice.variant)
            found = self._variants.setdefault(choice.variant, found)  # another thread's, if first
        return found

    def members(self) -> list[BoundKernel[R]]:
        """All that make calls which find this one."""
        return [self, *self._variants.values()]

    def makes_calls(self) -> bool:
        """Whether calls are still made with this one: not after `set_config`, where it is the one
        for some sizes."""
        return self.family is self or self.family.by_size is not None

    def autotune(
        self,
        args: Sequence[Any] | None = None,
        *,
        effort: Effort | None = None,
        budget: float | None = None,
        isolate: bool | None = None,
        force: bool = False,
    ) -> Search:
        """Find the fastest of the kernel's configs, use it from now on, and remember it.

        ::

            found = add.bind((x, y)).autotune(effort="full")
            print(found)

        Without arguments it is timed with tensors like those it was bound with, of random numbers;
        give some where it matters what is in them. They are not changed: it runs on copies.
        What was timed before, on this machine and for the same source, is not timed again, unless
        `force`. `effort`, `budget` in seconds, and `isolate` are by default those of the settings
        (``TZERO_TUNE``, ``TZERO_TUNE_BUDGET``, ``TZERO_TUNE_ISOLATE``).
        """
        return self._owner.autotune_bound(self, args, effort, budget, isolate, force)

    def _set(self, config: Config | None) -> None:
        self._config = config
        self.call = self.host.configured(self.function, config)
        # After what is called: who records a call looks first where to keep it (see the planner).
        self._end_own_plans()

    def _end_own_plans(self) -> None:
        fresh = Table(self._plans_ended)
        with _swapping:
            gone, self.plans = self.plans, fresh
        gone.end()

    def _plans_ended(self) -> None:
        self._owner.plans_ended(self)

    def end_plans(self) -> None:
        """End every plan of it: no call of the kernel finds it any more. Who still has it may call
        it, and has calls recorded anew."""
        for each in self.members():
            each._end_own_plans()

    @untraced
    def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        """Call it as the kernel is called, by place or by name. Arguments with another key than
        `key` are refused: this bound kernel is not made for them."""
        return self._owner.call_bound(self, args, kwargs)

    def to_code(self) -> str:
        """What runs: the wrapper that was written for the plan of the latest call, or, where calls
        are not replayed, the host function's source; under its key and configuration."""
        head = f"# {self.name}: {self.key!r}\n# config: {self._config!r}\n"
        plans = self.plans.plans()
        if plans:
            return f"{head}{plans[-1].wrapper.source}"
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
