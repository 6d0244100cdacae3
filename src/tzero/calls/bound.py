"""`BoundKernel`: a kernel for one key, with a config and its plans.

Enters: a host function, a key and a config. Leaves: a `BoundKernel` that calls its own copy of the
host function. It must not know how keys are made or where bound kernels are kept.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Hashable, Mapping
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar, cast

from tzero import locks, sealed, settings
from tzero.adapters.torch_modes import untraced
from tzero.arguments.host import Host, underlying
from tzero.arguments.key import Key
from tzero.calls.given import AS_SET, given_options
from tzero.config import Config
from tzero.errors import InvalidArgument
from tzero.plans.plan import Plan, Refusal
from tzero.plans.table import Table
from tzero.tune.by_size import BySize
from tzero.tune.search import Effort
from tzero.tune.select import Choice

if TYPE_CHECKING:
    from tzero.tune.tuner import Search

__all__ = ["BoundKernel"]

R = TypeVar("R")

_NO_FACTS: Mapping[Hashable, Hashable] = MappingProxyType({})

_swapping = locks.lock()
"""Held while a config is replaced, so that what is replaced is ended, and once: plans, variants."""

Site = tuple[str, int, int]
"""A call of `specialize`: file, line, and bytecode offset."""


class Owner(Protocol[R]):
    """What a bound kernel needs of its kernel."""

    host: Host[R]

    @property
    def has_choice(self) -> bool:
        """Whether there are several configs."""

    def call_bound(
        self, bound: BoundKernel[R], args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> R:
        """Make a call of the bound kernel itself."""

    def changed(self) -> None:
        """Note that a bound kernel has another config."""

    def chosen_apart(self) -> None:
        """Note that a bound kernel has a config of its own."""

    def plans_ended(self, which: BoundKernel[R] | Plan | None, /) -> None:
        """Drop what is kept elsewhere of plans that have ended: of a bound kernel, or of one."""

    def autotune_bound(
        self,
        bound: BoundKernel[R],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        /,
    ) -> Search:
        """Find the fastest config for a bound kernel."""


class Given(NamedTuple):
    """The values that `specialize` was given at a site, each with its text, and the number of the
    first call that got there."""

    number: int
    values: dict[Hashable, str]


class BoundKernel(Generic[R]):
    """A kernel for arguments with one key: the function to call, and its config.

    ::

        bound = add.bind(x, y)
        bound.set_config(tzero.Config(BLOCK=256))
        out = bound(x, y)

    `settings` are those at the time of binding; `choice` is its config and why it has that one,
    None until the first call has chosen it.
    """

    def __init__(
        self, owner: Owner[R], key: Key, facts: Mapping[Hashable, Hashable] = _NO_FACTS
    ) -> None:
        self._owner = owner
        self.host = host = owner.host
        self.name = host.name
        self.key = key
        self.facts = facts  # what `specialize` added to the key
        self.function = _copied(host.function)
        self.settings = settings.current()
        self.has_constants = any(p[0] == "constant" for p in key if isinstance(p, tuple) and p)
        self.last_used = 0
        # The values given to `specialize`, and the sites that still accept new ones; see `hold`.
        self.given: dict[Site, Given] = {}
        self.open_sites: frozenset[Site] = frozenset()
        self.plans = self._table()
        # `tzero.tune.decide` chooses the config at the first call, or for each size.
        self.choice: Choice[Config] | None = None
        self.undecided = owner.has_choice
        self.by_size: BySize | None = None
        self.family: BoundKernel[R] = self
        """The bound kernel that calls find, if this is one of its variants for some sizes; else
        itself."""
        self.chosen_by: BySize | None = None
        """What has chosen the config of this one, if it is such a variant."""
        self._variants: dict[Config, BoundKernel[R]] = {}
        self.example: Any = ()  # a description of its first arguments, if there are several configs
        self._config, self.call = host.config, host.configured(self.function, host.config)
        if not self.undecided and host.config is not None:
            self.choice = Choice.pinned(host.config, by="config=")

    @property
    def config(self) -> Config | None:
        """The config that calls use."""
        return self._config

    def set_config(self, config: Config) -> None:
        """Use another config in later calls: those of this bound kernel, and those of the kernel
        that find it. `reset` undoes that, and so does a value that joins the key by `specialize`:
        new bound kernels start with the kernel's own config. Under torch.compile only calls of the
        bound kernel itself use it.
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
        """Use the config of a choice in later calls; not `settled`: only until one is tuned."""
        with _swapping:
            was_chosen, by_size = self._was_chosen(), self.by_size
            others = self._decided_by(None)
            self.choice, self.undecided = choice, not settled
            if choice.variant != self._config or by_size is not None:
                self._set(choice.variant)
                self._owner.chosen_apart()
            self._end(others, was_chosen)

    def improve(self, choice: Choice[Config], instead_of: Choice[Config]) -> bool:
        """Use the config of a choice in place of an earlier choice; False, and nothing changes,
        where another was made meanwhile, or the process is sealed: a recording would follow."""
        with sealed.unsealed() as is_open, _swapping:
            if not is_open or self.choice is not instead_of:
                return False
            if choice.variant == self._config:
                self.choice = choice  # its plans stay
            else:
                self.choose(choice)
            return True

    def choose_by_size(self, by_size: BySize) -> None:
        """In later calls, choose the config by the sizes of their tensors."""
        with _swapping:
            was_chosen, others = self._was_chosen(), self._decided_by(by_size)
            self.choice, self.undecided = None, False
            self._set(self._config)
            self._end(others, was_chosen)

    def _decided_by(self, by_size: BySize | None) -> list[BoundKernel[R]]:
        """Let this choose configs from now on; returns the variants until now."""
        with _swapping:
            others, self._variants = list(self._variants.values()), {}
            self.by_size = by_size
        return others

    def _was_chosen(self) -> bool:
        """Whether calls may have used an earlier choice."""
        return self.choice is not None or self.by_size is not None

    def _end(self, others: list[BoundKernel[R]], was_chosen: bool) -> None:
        """End the plans of variants, and tell the kernel if an earlier choice was in use."""
        for each in others:
            each.plans.end()
        if was_chosen:
            self._owner.changed()

    def variant(self, args: tuple[Any, ...]) -> BoundKernel[R]:
        """The bound kernel that makes a call: this one, or a variant if configs depend on sizes."""
        while True:
            by_size = self.by_size
            if by_size is None:
                return self
            choice = by_size(args)
            found = self._variants.get(choice.variant)
            if found is not None and found.chosen_by is by_size:
                return found
            made = BoundKernel(self._owner, self.key, self.facts)
            made.family, made.undecided, made.choice = self, False, choice
            made.chosen_by = by_size
            made._set(choice.variant)
            with _swapping:
                if self.by_size is by_size:  # no other thread has decided meanwhile
                    return self._variants.setdefault(choice.variant, made)

    def members(self) -> list[BoundKernel[R]]:
        """This bound kernel and its variants."""
        return [self, *self._variants.values()]

    def makes_calls(self) -> bool:
        """Whether calls still use this one: a variant is unused after another decision."""
        return self.family is self or self.family.by_size is self.chosen_by

    def is_settled(self) -> bool:
        """Whether calls use `call`: the config is chosen for all sizes, and `specialize` expects no
        new values."""
        return not (self.undecided or self.by_size or self.open_sites)

    def autotune(
        self,
        /,
        *args: Any,
        effort: Effort | None = AS_SET,
        budget: float | None = AS_SET,
        isolate: bool | None = AS_SET,
        force: bool = AS_SET,
        tolerance: float | None = AS_SET,
        check: Callable[[Any, Any], object] | None = AS_SET,
        **kwargs: Any,
    ) -> Search:
        """Find the fastest of the kernel's configs, use it from now on, and remember it.

        ::

            found = add.bind(x, y).autotune(effort="full")
            print(found)

        Without arguments it is timed with random tensors like those it was bound with; pass
        arguments, as in a call, if their contents matter. They are not changed, because it runs on
        copies. Without `force`, results from this machine and the same source are reused. `effort`,
        `budget` in seconds, and `isolate` default to the settings (``TZERO_TUNE``,
        ``TZERO_TUNE_BUDGET``, ``TZERO_TUNE_ISOLATE``); `tolerance` and `check` to the kernel's
        options of these names. These names are always options here: pass an argument whose
        parameter has one of them by position.
        """
        options = given_options(
            effort=effort,
            budget=budget,
            isolate=isolate,
            force=force,
            tolerance=tolerance,
            check=check,
        )
        return self._owner.autotune_bound(self, args, kwargs, options)

    def _set(self, config: Config | None) -> None:
        self._config = config
        self.call = self.host.configured(self.function, config)
        # After setting `call`: `Planner._record` reads the table before it reads `call`.
        self._end_own_plans()

    def _end_own_plans(self) -> None:
        fresh = self._table()
        with _swapping:
            gone, self.plans = self.plans, fresh
        gone.end()

    def _table(self) -> Table:
        made = Table(self._plans_ended)
        if self.host.runs_later:
            made.refusal = Refusal(
                f"it is {self.host.runs_later}, whose body runs after the call has ended"
            )
        return made

    def _plans_ended(self, plan: Plan | None) -> None:
        self._owner.plans_ended(self if plan is None else plan)

    def leave_table(self) -> None:
        """Calls of the kernel no longer find this one: native code drops its entries. The plans go
        with the bound kernel; a caller that still holds it may go on calling it."""
        for each in self.members():
            self._owner.plans_ended(each)

    @untraced
    def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        """Call it like the kernel. Arguments with another key than `key` raise
        `InvalidArgument`."""
        return self._owner.call_bound(self, args, kwargs)

    def to_code(self) -> str:
        """The code that runs, under its key and config: the wrapper of the latest plan, or the host
        function's source if calls are not replayed."""
        head = f"# {self.name}: {self.key!r}\n# config: {self._config!r}\n"
        plans = self.plans.plans()
        if plans:
            return f"{head}{plans[-1].wrapper.source}"
        below = underlying(self.function)
        try:
            source = textwrap.dedent(inspect.getsource(below or type(self.function)))
        except (OSError, TypeError):
            source = f"# {self.name} is not in a file: its source is not known\n"
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
    """A copy of a function with the same code and globals, so that changes to one bound kernel's
    function do not affect another's."""
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
