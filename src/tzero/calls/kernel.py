"""`Kernel`: the order of the stages of a call.

    add(x, y) ── ordering ──► arguments ── extract ──► raw key ── table ──► BoundKernel ──► run
                                                                  └ miss ── bind ──┘

Enters: a host function, and calls of it. Leaves: results of calls. `_find` has the order for every
path through Python; native/dispatching.cpp has the short cut for calls whose plan it keeps. A hit
takes no lock, and no code of the user's runs under one, except how constants compare.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, Generic, TypeVar

import torch

from tzero import events, measure, settings
from tzero.adapters import intercept, torch_modes
from tzero.arguments.extract import Extractor, unwrapped
from tzero.arguments.host import Host, check_key, read_host
from tzero.arguments.key import Key, Options, difference
from tzero.calls import explain
from tzero.calls.bound import BoundKernel
from tzero.calls.bound_table import BoundTable, Raw
from tzero.calls.by_name import ByName
from tzero.calls.noting import Noting
from tzero.calls.ordering import Ordering
from tzero.calls.reports import Explanation, Stats
from tzero.calls.specialize import close_sites
from tzero.calls.tally import Tally
from tzero.config import Config
from tzero.errors import InvalidArgument
from tzero.launches.ahead import Precompiled, precompile_host
from tzero.launches.current_call import current
from tzero.plans.planner import Planner, run_host
from tzero.plans.table import Planned
from tzero.tune.by_size import described, imagined
from tzero.tune.decide import Tuning
from tzero.tune.search import QUICK, Effort
from tzero.tune.space import Space
from tzero.tune.tuner import Search

__all__ = ["Explanation", "Kernel", "Stats"]

R = TypeVar("R")
Found = tuple[Raw, BoundKernel[R], tuple[Any, ...], int]
"""A call whose bound kernel is known: its raw key, the bound kernel, its arguments in order, and
its number. A plain tuple, because every call makes one."""


class Kernel(ByName, Generic[R]):
    """A host function behind a dispatcher; made by `kernel`.

    ::

        @tzero.kernel
        def add(x, y):
            out = torch.empty_like(x)
            add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
            return out

        add(x, y)
        print(add.explain(x, y))

    In a class it is a method, as a function is: the instance is its first argument.
    """

    _takes_config = True
    """Whether tzero gives a value to a parameter called `config`."""

    candidate = False
    """Whether a search made it, to time one config of another kernel."""

    def __init__(
        self,
        function: Callable[..., R],
        *,
        config: Config | None,
        space: Space | None = None,
        size_hints: Sequence[int] = (),
        lookup: Mapping[str, Config] = MappingProxyType({}),
        key: Callable[..., Hashable] | None,
        options: Options,
        plans: bool = True,
        pool: bool = False,
        replayed: Callable[[Host[R], Config], Callable[..., R]] | None = None,
    ) -> None:
        # Not the function's own attributes: they may have names that are used here.
        functools.update_wrapper(self, function, updated=())
        self.host = host = read_host(function, config, self._takes_config)
        self.function, self.name, self.signature = function, host.name, host.signature
        self.tuning: Tuning[R] = Tuning(host, space, lookup, size_hints, replayed)
        self.options, self.pool = options, pool
        check_key(host.name, key, host.parameters)
        self.ordered = Ordering(host)
        self.extract = Extractor(host.name, host.parameters, host.constants, options, key)
        self.table: BoundTable[R] = BoundTable(
            host.name, host.parameters, dropped=BoundKernel.end_plans
        )
        self.tally = Tally(host.name, host.parameters, options.static_shapes, self.table.lock)
        self.planner: Planner[R] | None = (
            Planner(host, options.static_shapes, pool) if plans else None
        )
        self.changes = 0
        """How often a bound kernel got another config, or all were dropped. Plans of other kernels
        that call this one are guarded by it."""
        self._noting = Noting(self.table, self.tally)
        self._configured = host.configured(function, host.config)
        self._tick = itertools.count().__next__  # the number of each use
        self._binds = itertools.count()  # uses that were no calls

    # -- the order of the stages -----------------------------------------------------------------

    def _find(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        given: BoundKernel[R] | None = None,
        ahead: bool = False,
    ) -> Found[R]:
        """The stages before a call runs: arguments in order, their key, their bound kernel. With
        `given`, that bound kernel, if the key is its own; `ahead`: for no call."""
        record = measure.active()
        try:
            if record is None:
                args, base = self._keyed(args, kwargs)
                return self._look_up(base, args, given, ahead)
            with record.stage("key", self.name):
                args, base = self._keyed(args, kwargs)
            with record.stage("bind", self.name):
                return self._look_up(base, args, given, ahead)
        except InvalidArgument as error:
            self._tell_invalid(error)
            raise

    def _keyed(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Raw]:
        args = self.ordered(args, kwargs)
        return args, self.extract.last(args)

    def _look_up(
        self, base: Raw, args: tuple[Any, ...], given: BoundKernel[R] | None, ahead: bool
    ) -> Found[R]:
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

    def _bind(self, base: Raw, args: tuple[Any, ...], number: int, ahead: bool) -> BoundKernel[R]:
        """Bind, unless another thread has by now."""
        most = settings.current().max_specializations
        with self.table.lock:
            found = self.table.found(base, args, number)
            if found is not None:
                return found
            key = self.table.key(base, args)
            facts: Any = key[len(base) :]  # pairs of extras and facts, or none
            bound = BoundKernel(self, key, dict(facts)) if facts else BoundKernel(self, key)
            bound.last_used = number
            if bound.undecided:
                bound.example = described(unwrapped(args))
            if len(self.table.table) >= most:
                self._note_uses()
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
    ) -> tuple[R, Planned | None]:
        """Make a call: choose its config, then replay, record, or run the host function. `note`
        takes the values that the host function gives to `specialize`."""
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
        planner, planned = self.planner, None
        try:
            if planner is None or bound.plans.refusal is not None or bound.undecided:
                result = run_host(bound, args)
            else:
                result, planned = planner.run(bound, args)
        finally:
            current.call = outer
        if bound.open_sites:
            close_sites(bound)
        return result, planned

    # -- calling -------------------------------------------------------------------------------

    @torch_modes.untraced
    def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        """Call the host function by way of the bound kernel of the arguments."""
        if torch.compiler.is_compiling():
            return self._configured(*unwrapped(self.ordered(args, kwargs)))
        record = measure.active()
        if record is None:
            return self._run(self._noting.in_call, *self._find(args, kwargs))[0]
        with record.stage("call", self.name):
            found = self._find(args, kwargs)
            with record.stage("run", self.name):
                return self._run(self._noting.in_call, *found)[0]

    def call_bound(
        self, bound: BoundKernel[R], args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> R:
        """A call of a bound kernel itself."""
        if torch.compiler.is_compiling():
            return bound.call(*unwrapped(self.ordered(args, kwargs)))
        found = self._find(args, kwargs, given=bound)
        record = measure.active()
        if record is None:
            return self._run(self._noting.alone, *found)[0]
        with record.stage("call", self.name), record.stage("run", self.name):
            return self._run(self._noting.alone, *found)[0]

    def _check_bound(self, bound: BoundKernel[R], base: Raw, args: tuple[Any, ...]) -> None:
        """Refuse arguments that have another key than a bound kernel had when it was bound."""
        extras: Any = tuple(bound.facts)
        key = self.table.full(base, extras, args)
        if key != bound.key:
            raise InvalidArgument(
                kernel=self.name,
                problem=f"{difference(bound.key, key, self.host.parameters)}, for which this "
                "bound kernel was bound",
                advice=f"Call {self.name} itself, or bind these arguments.",
            )

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method = instance is not None and isinstance(self.function, FunctionType)
        return MethodType(self, instance) if method else self

    def plain(self, args: Sequence[Any]) -> Callable[[], R]:
        """A call with these arguments, a tuple or list, as it would be made without tzero.

        ::

            add.plain((x, y))()
        """
        bound = self.bind(args)
        given = unwrapped(self.ordered.listed(args))
        return functools.partial(bound.variant(given).call, *given)

    # -- binding and tuning --------------------------------------------------------------------

    def bind(self, args: Sequence[Any]) -> BoundKernel[R]:
        """The bound kernel that a call with these arguments, a tuple or list, uses."""
        if type(args) is not tuple:
            args = self.ordered.listed(args)
        next(self._binds)
        return self._find(args, {}, ahead=True)[1]

    def precompile(self, /, *args: Any, **kwargs: Any) -> Precompiled:
        """Compile all that a call with these arguments launches, in worker processes, for each
        config. Tensors may be given as `tzero.Spec`s.

        ::

            add.precompile(tzero.Spec((4096,)), tzero.Spec((4096,))).wait()

        The host function runs on tensors without memory, and its launches are not made. Other side
        effects of it do happen.
        """
        normal = unwrapped(self.ordered(args, kwargs))
        space = self.tuning.space
        count = None if space is None else space.count()
        every = space is not None and count is not None and count <= QUICK
        configs: Sequence[Config | None] = tuple(space or ()) if every else (self.host.config,)
        ahead = Precompiled()
        current.is_trial, outer = True, current.is_trial
        try:
            for config in configs:
                called = self.host.configured(self.function, config)
                precompile_host(self.name, called, normal, ahead)
        finally:
            current.is_trial = outer
        return ahead

    @property
    def configs(self) -> tuple[Config, ...]:
        """The configs that were listed for it; empty where ranges span them (see `tzero.Space`)."""
        space = self.tuning.space
        return () if space is None else space.listed or ()

    @property
    def has_choice(self) -> bool:
        """Whether a call may get one of several configs."""
        return self.tuning.has_choice

    def autotune(
        self,
        args: Sequence[Any],
        *,
        effort: Effort | None = None,
        budget: float | None = None,
        isolate: bool | None = None,
        force: bool = False,
    ) -> Search:
        """Find the fastest config for calls with these arguments, a tuple or list, use it from now
        on, and remember it (see `BoundKernel.autotune`).

        ::

            print(matmul.autotune((a, b), effort="full", budget=60))
        """
        bound = self.bind(args)
        return self.autotune_bound(bound, args, effort, budget, isolate, force)

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
        """Tune one bound kernel, by default with arguments like those it was bound with."""
        if args is None:
            given = imagined(bound.example)
        else:
            normal = self.ordered.listed(args)
            self._check_bound(bound, self.extract(normal), normal)
            given = unwrapped(normal)
        return self.tuning.autotune(bound, given, effort, budget, isolate, force)

    def changed(self) -> None:
        """A bound kernel has another config: plans of other kernels that call this one end."""
        self.changes += 1

    def plans_ended(self, bound: BoundKernel[R], /) -> None:
        """Plans of a bound kernel have ended: here nothing is kept of them elsewhere."""

    def reset(self) -> None:
        """Forget every bound kernel; the next calls bind anew."""
        with self.table.lock:
            gone = self.table.bound_kernels()
            self.table.clear()
            for bound in gone:
                bound.end_plans()
            self.changes += 1
            self.tally.reset()

    # -- looking -------------------------------------------------------------------------------

    def arguments(self, args: Sequence[Any]) -> str:
        """How a lookup table names a call with these arguments, a tuple or list: its key without
        the device, as text.

        ::

            add.arguments((x, y))
            # '((torch.float32, (4096,), (1,)), (torch.float32, (4096,), (1,)))'
        """
        return self.tuning.arguments(self.key(args))

    def key(self, args: Sequence[Any]) -> Key:
        """The key of a call with these arguments, a tuple or list."""
        normal = self.ordered.listed(args)
        return self.table.key(self.extract(normal), normal)

    def explain(self, /, *args: Any, **kwargs: Any) -> Explanation:
        """What a call would find and what would serve it. Only keys and guards are evaluated."""
        return explain.explanation(self, self.ordered(args, kwargs))

    @property
    def tier(self) -> int:
        """How calls are replayed at best: 0 not at all, 1 in Python, 2 natively."""
        return 0 if self.planner is None else 1

    def stages(self, args: tuple[Any, ...], bound: BoundKernel[R] | None) -> dict[str, float]:
        """What the stages of a hit cost now, in nanoseconds."""
        return explain.stages(self, args, bound)

    def stats(self) -> Stats:
        """Counts of calls, misses, live entries and evictions."""
        with self.table.lock:
            # `count()` cannot be peeked; reading advances both, so they cancel.
            binds = next(self._binds)
            calls = self._tick() - binds
            live, tally = len(self.table.bound_kernels()), self.tally
            return Stats(calls, tally.misses, live, tally.evictions, tally.bound_ahead)

    def __repr__(self) -> str:
        return f"<Kernel {self.name}{self.signature}>"

    # -- what subclasses do otherwise ------------------------------------------------------------

    def _tell_recorder(self) -> None:
        """In the host function of another kernel that is being recorded, this call is a part of
        that recording."""
        recorder = intercept.here.recorder
        if recorder is not None:
            recorder.nested(self)

    def _tell_invalid(self, error: InvalidArgument) -> None:
        self.tally.refused(error)

    def _note_uses(self) -> None:
        """Before eviction: note when bound kernels were used last, where native code knows."""
