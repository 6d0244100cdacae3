"""`Stages`: the order of the stages of a call, in one place.

    add(x, y) ── ordering ──► arguments ── extract ──► raw key ── table ──► BoundKernel ──► run
                                                                  └ miss ── bind ──┘

Enters: a host function and its options, then the arguments of calls. Leaves: bound kernels,
results, and plans. `_find` has the order for every path through Python, Helion's included;
native/dispatching.cpp has a shortcut for calls whose plan it keeps. A hit takes no lock. No user
code runs under a lock, except `__eq__` of constants.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from tzero import events, locks, measure, settings
from tzero.adapters import intercept, torch_modes
from tzero.arguments.extract import Extractor, unwrapped
from tzero.arguments.host import Host, check_key, read_host
from tzero.arguments.key import Key, Options, difference
from tzero.calls.bound import BoundKernel, Owner
from tzero.calls.bound_table import BoundTable, Raw
from tzero.calls.noting import Noting
from tzero.calls.ordering import Ordering
from tzero.calls.specialize import close_sites
from tzero.calls.tally import Tally
from tzero.config import Config
from tzero.counts import Count
from tzero.errors import InvalidArgument, InvalidKernel
from tzero.fallbacks import Fallbacks
from tzero.launches.current_call import current
from tzero.plans.plan import Plan, Refusal
from tzero.plans.planner import Planner, run_host
from tzero.plans.table import Planned
from tzero.plans.varied import Free
from tzero.tune.by_size import described
from tzero.tune.decide import Tuning
from tzero.tune.hints import NO_HINTS, SizeHints
from tzero.tune.judge import DEFAULT, Judge
from tzero.tune.space import Space

__all__ = ["Found", "Stages"]

R = TypeVar("R")
Found = tuple[Raw, BoundKernel[R], tuple[Any, ...], int]
"""The raw key of a call, its bound kernel, its arguments in order, and its number. A plain tuple,
because every call makes one."""


def _is_used(bound: BoundKernel[Any]) -> bool:
    """Whether calls were recorded, or are known not to be replayed."""
    return any(len(each.plans) or each.plans.refusal is not None for each in bound.members())


class Stages(Generic[R]):
    """The parts of a kernel, and how calls pass through them; `Kernel` adds the public methods."""

    _takes_config = True
    """Whether tzero passes the config to a parameter called `config`."""

    _runs_unkeyed = True
    """Whether the host function runs as written if an argument cannot be part of a key."""

    unplanned = "tzero is at tier 0"
    """Why calls are not replayed if there is no planner."""

    replays_sizes = False
    """Whether a plan over sizes can be replayed for sizes that were not recorded."""

    candidate = False
    """Whether a search created it, to time one config of another kernel."""

    def __init__(
        self,
        function: Callable[..., R],
        *,
        config: Config | None,
        space: Space | None = None,
        size_hints: SizeHints = NO_HINTS,
        lookup: Mapping[str, Config] = MappingProxyType({}),
        judge: Judge = DEFAULT,
        key: Callable[..., Hashable] | None,
        options: Options,
        plans: bool = True,
        pool: bool = False,
        free: Free = "nothing",
        graph: bool = False,
        replayed: Callable[[Host[R], Config], Callable[..., R]] | None = None,
    ) -> None:
        # Without the function's own attributes, whose names may be in use here.
        functools.update_wrapper(cast("Any", self), function, updated=())
        self.host = host = read_host(function, config, self._takes_config)
        self.function, self.name, self.signature = function, host.name, host.signature
        self.tuning: Tuning[R] = Tuning(host, space, lookup, size_hints, replayed, judge)
        self.options, self.pool, self.graph = options, pool, graph
        self.fallbacks = Fallbacks(host.name)
        check_key(host.name, key, host.parameters)
        self.ordered = Ordering(host)
        self.extract = Extractor(host.name, host.parameters, host.constants, options, key)
        self.table: BoundTable[R] = BoundTable(
            host.name, host.parameters, dropped=BoundKernel.leave_table
        )
        self.tally = Tally(host.name, host.parameters, options.static_shapes, self.table.lock)
        self.planner: Planner[R] | None = None
        if plans:
            why_not = self._why_exact(free, key)
            self.planner = Planner(
                host,
                options.static_shapes,
                pool,
                self.fallbacks,
                "nothing" if why_not else free,
                why_not,
                options if self.has_choice else None,
                graph,
            )
            # An integer that chooses the config must select the plan too.
            self.planner.by_value = size_hints.integers(host.parameters)
            self.planner.difference = self._difference
        self.tuning.difference = self._difference
        if host.runs_later:
            self._check_runs_later()
        self.changes = 0
        """How often a bound kernel got another config, or all were dropped. Plans of other kernels
        that call this one have a guard on it."""
        self._noting = Noting(self.table, self.tally)
        self._configured = host.configured(function, host.config)
        self._unkeyed = Count()  # calls without a key that Python made
        self._tick = itertools.count().__next__  # the number of each use
        self._binds = itertools.count()  # uses by `bind`, which are not calls

    def _why_exact(self, free: Free, key: Callable[..., Hashable] | None) -> str:
        """Why each plan is for one size; empty if it need not be."""
        if free == "nothing":
            return "static_shapes=True"
        if not self.replays_sizes:
            return "only native code replays other sizes"
        if key is not None:
            return "its key= function may return something else for other sizes"
        if self.has_choice and self.options.static_shapes:
            return "each size has a config of its own; size_hints= tunes a few for all"
        return ""

    def _check_runs_later(self) -> None:
        """Tell that a host function whose body runs after its calls is not replayed; raise if it is
        to be tuned."""
        what = f"it is {self.host.runs_later}, whose body runs after the call has ended"
        if self.tuning.has_choice:
            raise InvalidKernel(
                kernel=self.name,
                problem=f"{what}, so that its configs cannot be timed",
                advice="Make a plain function the kernel, and call that from it.",
            )
        if self.planner is not None:
            self.fallbacks.lasting(f"not replayed: {what}")

    @property
    def configs(self) -> tuple[Config, ...]:
        """The listed configs; empty if ranges define them (see `tzero.Space`)."""
        space = self.tuning.space
        return () if space is None else space.listed or ()

    @property
    def has_choice(self) -> bool:
        """Whether there are several configs to choose from."""
        return self.tuning.has_choice

    # -- the order of the stages -----------------------------------------------------------------

    def _find(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        given: BoundKernel[R] | None = None,
        ahead: bool = False,
        tell: bool = True,
    ) -> Found[R]:
        """The stages before a call runs: order the arguments, make their key, find their bound
        kernel. `given`: use that bound kernel, which must have the same key; `ahead`: for `bind`;
        `tell`: emit an event for arguments that are not accepted."""
        is_call = not ahead and given is None
        record = measure.active() if is_call else None
        try:
            if record is None:
                args, base = self._keyed(args, kwargs, is_call)
                return self._look_up(base, args, given, ahead)
            with record.stage("key", self.name):
                args, base = self._keyed(args, kwargs, is_call)
            with record.stage("bind", self.name):
                return self._look_up(base, args, given, ahead)
        except InvalidArgument as error:
            if tell and not ahead:
                self.tally.refused(error)
            raise

    def _keyed(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_call: bool
    ) -> tuple[tuple[Any, ...], Raw]:
        """The arguments in order, and their raw key: empty for a call with an argument that cannot
        be part of a key."""
        args = self.ordered(args, kwargs)
        try:
            return args, self.extract.last(args)
        except InvalidArgument as error:
            if not is_call or not self._runs_unkeyed or error.argument is None:
                raise
            if any(map(torch_modes.is_proxy, args)):  # a trace without the launches would be wrong
                raise
            self.fallbacks.lasting(f"not replayed: argument {error.argument!r} {error.problem}")
            return unwrapped(args), ()

    def _look_up(
        self, base: Raw, args: tuple[Any, ...], given: BoundKernel[R] | None, ahead: bool
    ) -> Found[R]:
        if not base:
            self._unkeyed.add()
            return base, self.unkeyed, args, self._tick()
        if given is not None:
            self._check_bound(given, base, args)
        number = self._tick()
        if given is not None:
            given.last_used = number
        bound = given or self.table.found(base, args, number)
        if bound is None:
            bound = self._bind(base, args, number, ahead)
        elif not ahead and events.watched():
            events.emit(events.Event("hit", self.name))
        return base, bound, args, number

    @locks.cached_property
    def unkeyed(self) -> BoundKernel[R]:
        """The bound kernel of calls with an argument that cannot be part of a key. It is in no
        table, and its calls are not replayed."""
        made = BoundKernel(cast("Owner[R]", self), Key(()))
        made.undecided = False
        made.plans.refusal = Refusal("an argument cannot be part of a key")
        return made

    def _bind(self, base: Raw, args: tuple[Any, ...], number: int, ahead: bool) -> BoundKernel[R]:
        """Create the bound kernel, unless another thread just has."""
        most = settings.current().max_specializations
        with self.table.lock:
            found = self.table.found(base, args, number)
            if found is not None:
                return found
            key = self.table.key(base, args)
            facts: Any = key[len(base) :]  # pairs of extras and facts, or none
            owner = cast("Owner[R]", self)  # `Kernel` implements it
            bound = BoundKernel(owner, key, dict(facts)) if facts else BoundKernel(owner, key)
            bound.last_used = number
            if bound.undecided:
                bound.example = described(unwrapped(args))
            if len(self.table.table) >= most:
                self.note_uses()
            gone = self.table.add(base, bound, most)
        self.tally.missed(self, key, args, gone, ahead)
        return bound

    def _run(
        self,
        note: Callable[..., None],
        base: Raw,
        bound: BoundKernel[R],
        args: tuple[Any, ...],
        number: int,
    ) -> tuple[R, Planned | Refusal | None]:
        """Make a call: choose its config, then replay it, record it, or run the host function.
        `note` is called with each value that the host function passes to `specialize`. Returns its
        result, and its plan or why such calls are not replayed, if either is known."""
        if bound.has_constants:
            args = unwrapped(args)
        if bound.undecided:
            self.tuning.decide(bound, args)
        if bound.by_size is not None:
            bound = bound.variant(args)
        outer = current.call
        current.call = (note, base, bound, args, number)
        if intercept.anywhere:
            self._tell_recorder()
        planner, known = self.planner, bound.plans.refusal
        outcome: Planned | Refusal | None = known
        try:
            if planner is None or known is not None or bound.undecided:
                result = run_host(bound, args)
            else:
                result, outcome = planner.run(bound, args)
        finally:
            current.call = outer
        if bound.open_sites:
            close_sites(bound)
        return result, outcome

    def _difference(self, bound: BoundKernel[R]) -> str:
        """How a bound kernel differs from the nearest that was called before."""
        own = bound.family
        if _is_used(own):
            return (
                "arguments of these types and sizes were covered, but with another alignment or "
                "value, or what it reads besides has changed"
            )
        others = [each for each in self.table.bound_kernels() if each is not own and _is_used(each)]
        if not others:
            return ""
        near = min(others, key=lambda each: sum(map(operator.ne, each.key, own.key)))
        return f"{difference(near.key, own.key, self.host.parameters)}, which was covered"

    def _check_bound(self, bound: BoundKernel[R], base: Raw, args: tuple[Any, ...]) -> None:
        """Raise `InvalidArgument` if arguments have another key than a bound kernel."""
        extras: Any = tuple(bound.facts)
        key = self.table.full(base, extras, args)
        if key != bound.key:
            raise InvalidArgument(
                kernel=self.name,
                problem=f"{difference(bound.key, key, self.host.parameters)}, for which this "
                "bound kernel was bound",
                advice=f"Call {self.name} itself, or bind these arguments.",
            )

    # -- overridden by subclasses ----------------------------------------------------------------

    def _tell_recorder(self) -> None:
        """If another kernel's host function is being recorded, make this call part of it."""
        recorder = intercept.here.recorder
        if recorder is not None:
            recorder.nested(self)

    def graphs(self, plan: Plan | None) -> tuple[str, ...]:
        """Which way each input of a plan's CUDA graphs takes, as far as they are captured."""
        return ()

    def note_uses(self) -> None:
        """Update `last_used` of bound kernels from native code's hits."""

    def plans_ended(self, which: BoundKernel[R] | Plan | None, /) -> None:
        """Do nothing: Python keeps nothing else of plans that have ended."""
