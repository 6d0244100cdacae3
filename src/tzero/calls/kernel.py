"""`Kernel`: arguments to Key, Key to BoundKernel, and the call.

    add(x, y) ── raw key, a plain tuple ──► entries ── hit ──► BoundKernel(x, y)
                                              └ miss ── Key ── bind ──► entries

Enters: host functions and calls of them. Leaves: `Kernel`s, which know the order of the stages. A
hit takes no lock; nothing of the user's is called under one, but how constants compare.
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, Generic, NoReturn, TypeVar

import torch

from tzero import events, measure, settings
from tzero.adapters import intercept, torch_modes
from tzero.arguments.extract import Extractor, unwrapped
from tzero.arguments.host import Host, check_key, outside, read_host
from tzero.arguments.key import Key, Options, difference
from tzero.arguments.text import first_difference, holds_tensor
from tzero.calls.bound import BoundKernel
from tzero.calls.bound_table import Entries
from tzero.calls.reports import Explanation, Stats
from tzero.calls.specialize import Value, close_sites, hold, unsettled
from tzero.config import Config
from tzero.errors import InvalidArgument
from tzero.launches.ahead import Precompiled, precompile_host
from tzero.launches.current_call import inside
from tzero.plans.plan import Plan
from tzero.plans.planner import AS_OPERATOR, Planned, Planner, run_host
from tzero.plans.wrapper import resume
from tzero.tune.by_size import described, imagined
from tzero.tune.decide import Tuning
from tzero.tune.search import QUICK, Effort
from tzero.tune.space import Space
from tzero.tune.tuner import Search

__all__ = ["Explanation", "Kernel", "Stats"]

R = TypeVar("R")
Raw = tuple[Hashable, ...]


class Kernel(Generic[R]):
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
    """Whether a parameter called config is given a value by tzero."""

    candidate = False
    """Whether it is there to be timed by a search: one of another kernel's configs."""

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
        # The function's own attributes are not taken over: they may have names that are used here.
        functools.update_wrapper(self, function, updated=())
        self.host = host = read_host(function, config, self._takes_config)
        self.function, self.name, self.signature = function, host.name, host.signature
        self.tuning: Tuning[R] = Tuning(host, space, lookup, size_hints, replayed)
        self.options = options
        check_key(host.name, key, host.parameters)
        self.extract = Extractor(host.name, host.parameters, host.constants, options, key)
        self._parameters, self._arity = host.parameters, len(host.parameters)
        self._configured = host.configured(function, host.config)
        self._entries: Entries[R] = Entries(host.name, host.parameters, self._drop)
        self._found = self._entries.found
        self._tick = itertools.count().__next__  # of all uses
        self._binds = itertools.count()  # of `bind`'s
        exact = options.static_shapes
        self._planner: Planner[R] | None = Planner(host, exact, pool) if plans else None
        self.pool = pool
        self.changes = 0  # of configs of bound kernels, and of what is bound
        # The lock of the entries protects these too.
        self._misses, self._bound_ahead, self._evictions = 0, 0, 0
        self._last_missed: Key | None = None
        self._changed: Counter[int] = Counter()

    # -- calling -------------------------------------------------------------------------------

    @torch_modes.untraced
    def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        """Call the host function by way of the bound kernel of the arguments."""
        if torch.compiler.is_compiling():
            return self._configured(*unwrapped(self._normalized(args, kwargs)))
        record = measure.active()
        if record is not None:
            return self._measured(record, args, kwargs)
        try:
            if kwargs or len(args) != self._arity:
                args = self._normalized(args, kwargs)
            base = self.extract.last(args)
            number = self._tick()
            bound = self._found(base, args, number)
            if bound is None:
                bound = self._bound(base, args, number)
            elif events.watched():
                events.emit(events.Event("hit", self.name))
        except InvalidArgument as error:
            self._tell_refusal(error)
            raise
        return self._run(self._note, base, bound, args, number)[0]

    def _answer(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[R, Planned | None]:
        """A call, and what replays such calls: for native code, which looks up plans by itself."""
        try:
            args = self._normalized(args, kwargs)
            base = self.extract.last(args)
            number = self._tick()
            bound = self._found(base, args, number) or self._bound(base, args, number)
        except InvalidArgument as error:
            self._tell_refusal(error)
            raise
        result, planned = self._run(self._note, base, bound, args, number)
        if planned is not None and self._found(base, args, number) is not planned.bound.family:
            planned = None  # it was dropped meanwhile
        return result, planned

    def _lasts(self, planned: Planned) -> bool:
        """Whether a plan still counts: another thread may have chosen another config meanwhile."""
        bound = planned.bound
        plans = list(bound.plans.values())  # at once: other threads add theirs
        return bound.makes_calls() and any(each is planned for each in plans)

    def _resume(self, plan: Plan, start: int, held: Sequence[Any], given: Sequence[Any]) -> Any:
        """The rest of a plan that native code cannot finish: the world changed in its middle."""
        return resume(plan, start, held, given)

    def _run(
        self,
        note: Callable[..., None],
        base: Raw,
        bound: BoundKernel[R],
        args: tuple[Any, ...],
        number: int,
    ) -> tuple[R, Planned | None]:
        if bound.has_constants:
            args = unwrapped(args)
        if bound.undecided:
            self.tuning.decide(bound, args)
        if bound.by_size is not None:
            bound = bound.variant(args)
        outer = inside.call
        inside.call = (note, base, bound, args, number)
        if intercept.anywhere:
            self._show_recording()
        planner, planned = self._planner, None
        try:
            if planner is None or bound.refusal is not None or bound.undecided:
                result = run_host(bound, args)
            else:
                result, planned = planner.run(bound, args)
        finally:
            inside.call = outer
        if bound.open_sites:
            close_sites(bound)
        return result, planned

    def _measured(
        self, record: measure.Record, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> R:
        """The same call with every stage timed."""
        with record.stage("call", self.name):
            try:
                with record.stage("key", self.name):
                    args = self._normalized(args, kwargs)
                    base = self.extract(args)
                number = self._tick()
                with record.stage("bind", self.name):
                    bound = self._found(base, args, number)
                    hit = bound is not None
                    bound = bound or self._bound(base, args, number)
            except InvalidArgument as error:
                self._tell_refusal(error)
                raise
            if hit and events.watched():
                events.emit(events.Event("hit", self.name))
            with record.stage("run", self.name):
                return self._run(self._note, base, bound, args, number)[0]

    def call_bound(
        self, bound: BoundKernel[R], args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> R:
        """A call of a bound kernel itself."""
        if torch.compiler.is_compiling():
            return bound.call(*unwrapped(self._normalized(args, kwargs)))
        try:
            args = self._normalized(args, kwargs)
            base = self.extract(args)
            self._check_bound(bound, base, args)
        except InvalidArgument as error:
            self._tell_refusal(error)
            raise
        number = bound.last_used = self._tick()
        if events.watched():
            events.emit(events.Event("hit", self.name))
        record = measure.active()
        if record is None:
            return self._run(self._note_alone, base, bound, args, number)[0]
        with record.stage("call", self.name), record.stage("run", self.name):
            return self._run(self._note_alone, base, bound, args, number)[0]

    def _check_bound(self, bound: BoundKernel[R], base: Raw, args: tuple[Any, ...]) -> None:
        """Refuse arguments that have another key than a bound kernel, as of when it was bound."""
        extras: Any = tuple(bound.facts)
        key = self._entries.full(base, extras, args)
        if key != bound.key:
            raise InvalidArgument(
                kernel=self.name,
                problem=f"{difference(bound.key, key, self._parameters)}, for which this bound "
                "kernel was bound",
                advice=f"Call {self.name} itself, or bind these arguments.",
            )

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method = instance is not None and isinstance(self.function, FunctionType)
        return MethodType(self, instance) if method else self

    # -- looking -------------------------------------------------------------------------------

    def bind(self, args: Sequence[Any]) -> BoundKernel[R]:
        """The bound kernel that a call with these arguments, a tuple or list, uses."""
        record = measure.active()
        if record is not None:
            with record.stage("bind", self.name):
                return self._bind(args)
        return self._bind(args)

    def _bind(self, args: Sequence[Any]) -> BoundKernel[R]:
        normal = args if type(args) is tuple else self._listed(args)
        if len(normal) != self._arity:
            normal = self._normalized(normal, {})
        base = self.extract.last(normal)
        next(self._binds)
        number = self._tick()
        found = self._found(base, normal, number)
        return self._bound(base, normal, number, ahead=True) if found is None else found

    def precompile(self, /, *args: Any, **kwargs: Any) -> Precompiled:
        """Have all that a call with these arguments launches compiled beside the program, for each
        config. Tensors may be `tzero.Spec`s in their place.

        ::

            add.precompile(tzero.Spec((4096,)), tzero.Spec((4096,))).wait()

        The host function is run on tensors without memory, and its launches are not made: what it
        does besides, it does.
        """
        normal = unwrapped(self._normalized(args, kwargs))
        ahead = Precompiled()
        inside.ahead, outer = True, inside.ahead
        try:
            for config in self._to_compile():
                called = self.host.configured(self.function, config)
                precompile_host(self.name, called, normal, ahead)
        finally:
            inside.ahead = outer
        return ahead

    def _to_compile(self) -> Sequence[Config | None]:
        """Every config, where these are few enough that all of them would be timed."""
        space = self.tuning.space
        count = None if space is None else space.count()
        if space is None or count is None or count > QUICK:
            return (self.host.config,)
        return tuple(space)

    @property
    def configs(self) -> tuple[Config, ...]:
        """The configs that were listed for it; none where ranges span them (see `tzero.Space`)."""
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
        if args is None:
            given = imagined(bound.example)
        else:
            normal = self._normalized(self._listed(args), {})
            self._check_bound(bound, self.extract(normal), normal)
            given = unwrapped(normal)
        return self.tuning.autotune(bound, given, effort, budget, isolate, force)

    def arguments(self, args: Sequence[Any]) -> str:
        """What a lookup table calls a call with these arguments, a tuple or list: all of its key
        but the device, in words.

        >>> kernel.arguments((x, y))  # doctest: +SKIP
        '((torch.float32, (4096,), (1,)), (torch.float32, (4096,), (1,)))'
        """
        return self.tuning.arguments(self.key(args))

    def key(self, args: Sequence[Any]) -> Key:
        """The key of a call with these arguments, a tuple or list."""
        normal = self._normalized(self._listed(args), {})
        return self._entries.key(self.extract(normal), normal)

    def reset(self) -> None:
        """Forget every bound kernel; the next calls bind anew."""
        with self._entries.lock:
            self._entries.clear()
            self._forget(None)
            self.changes += 1
            self._last_missed, self._changed = None, Counter()

    def explain(self, /, *args: Any, **kwargs: Any) -> Explanation:
        """What a call would find and what would serve it: nothing is run but the key and guards."""
        args = self._normalized(args, kwargs)
        key = self.key(args)
        entries = self._entries.bound_kernels()
        here = next((e for e in entries if e.key == key), None)
        others = [e.key for e in entries if e is not here]
        nearest = max(others, key=lambda other: _alike(other, key), default=None)
        last = max(entries, key=lambda entry: entry.last_used, default=None)
        plan, refusal = None, ""
        if self._planner is None:
            refusal = "tier 0 is in force"
        elif here is not None:
            plan, refusal = self._planner.look(here.variant(unwrapped(args)), unwrapped(args))
        return Explanation(
            self.name,
            key,
            here is not None,
            self.host.config if here is None else here.variant(unwrapped(args)).config,
            difference(nearest, key, self._parameters) if nearest is not None else "",
            self.tier,
            plan,
            refusal,
            difference(last.key, key, self._parameters) if last not in (None, here) else "",
            self._stages(args, here),
            self._why(here, unwrapped(args)),
        )

    def _why(self, here: BoundKernel[R] | None, args: tuple[Any, ...]) -> str:
        """Why a call has its config."""
        if here is None or here.undecided or self.host.config_at is None:
            return "to be chosen at the first call" if self.has_choice else ""
        made = here.by_size(args) if here.by_size is not None else here.choice
        return "" if made is None else f"{made.how}: {made.why}"

    @property
    def tier(self) -> int:
        """How calls are replayed at best: 0 not at all, 1 in Python, 2 natively."""
        return 0 if self._planner is None else 1

    def _stages(self, args: tuple[Any, ...], here: BoundKernel[R] | None) -> dict[str, float]:
        """What the parts of a hit cost now, in nanoseconds."""
        base = self.extract(args)
        stages: dict[str, Callable[[], object]] = {
            "key": lambda: self.extract.last(args),
            "lookup": lambda: self._entries.table.get(base),
        }
        if here is not None and self._planner is not None:
            stages |= self._planner.stages(here.variant(unwrapped(args)), unwrapped(args))
        return {name: measure.nanoseconds(call) for name, call in stages.items()}

    def stats(self) -> Stats:
        """Counts of calls, misses, live entries and evictions."""
        with self._entries.lock:
            # Taking a number is the only way to see it; a look takes one of both.
            binds = next(self._binds)
            calls = self._tick() - binds
            live = len(self._entries.bound_kernels())
            return Stats(calls, self._misses, live, self._evictions, self._bound_ahead)

    def __repr__(self) -> str:
        return f"<Kernel {self.name}{self.signature}>"

    # -- copies: a kernel is one thing under one name, as a function is ---------------------------

    def __copy__(self) -> Kernel[R]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Kernel[R]:
        return self

    def __reduce__(self) -> str:
        path: str = getattr(self, "__qualname__", self.name)
        found: Any = sys.modules.get(self.__module__)
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not self:
            raise InvalidArgument(
                kernel=self.name,
                problem="it cannot be pickled, because kernels are by name, and "
                f"{self.__module__}.{path} is not this one",
                advice="Define it in a module, outside functions, under its own name.",
            )
        return path

    def __prepare_scriptable__(self) -> NoReturn:
        """What torch.jit.script asks first; without an answer it reads this class as a program."""
        raise InvalidArgument(
            kernel=self.name,
            problem="torch.jit.script has no way to write launches down",
            advice=AS_OPERATOR,
        )

    def _show_recording(self) -> None:
        """Where this call is in the host function of another kernel, which is being recorded."""
        recorder: Any = getattr(intercept.here.interceptor, "__self__", None)
        if recorder is not None:
            recorder.nested(self)

    def changed(self, gone: Sequence[BoundKernel[R]], /) -> None:
        """A bound kernel has another config."""
        self.changes += 1
        for each in gone:
            self._forget(each)

    def _drop(self, bound: BoundKernel[R]) -> None:
        for each in bound.members():
            self._forget(each)

    def _forget(self, bound: BoundKernel[R] | None) -> None:
        """Drop what is kept of a bound kernel's plans elsewhere than with it, or of all."""

    def _look_back(self) -> None:
        """Note on the bound kernels when each was used last, where that is known elsewhere."""

    # -- stages --------------------------------------------------------------------------------

    def _listed(self, args: Any) -> tuple[Any, ...]:
        if not isinstance(args, (tuple, list)):
            raise InvalidArgument(
                kernel=self.name,
                problem=f"its arguments are given as one {type(args).__name__}",
                advice="Pass a tuple or list of them.",
            )
        return tuple(args)

    def _normalized(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Arguments in order, defaults filled in. Written out, because torch.compile traces it."""
        if not kwargs and len(args) == self._arity:
            return args
        found, named, defaults = list(args), 0, self.host.defaults
        for name in self._parameters[len(args) :]:
            if name in kwargs:
                found.append(kwargs[name])
                named += 1
            elif name in defaults:
                found.append(defaults[name])
            else:
                raise self._misfit(args, kwargs)
        if len(found) != self._arity or named != len(kwargs):
            raise self._misfit(args, kwargs)
        return tuple(found)

    def _misfit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InvalidArgument:
        """What to say of arguments that do not fit, in Python's words."""
        words = "they do not fit"
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            words = str(error)
        taken = ", ".join(self._parameters) or "no arguments"
        return InvalidArgument(
            kernel=self.name,
            problem=f"{words}: {len(args)} positional and {sorted(kwargs)} by name",
            advice=f"It takes {taken}.",
        )

    def _bound(
        self, base: Raw, args: tuple[Any, ...], number: int, ahead: bool = False
    ) -> BoundKernel[R]:
        """Bind, unless another thread has by now."""
        most = settings.current().max_specializations
        with self._entries.lock:
            found = self._found(base, args, number)
            if found is not None:
                return found
            key = self._entries.key(base, args)
            facts: Any = key[len(base) :]  # pairs of extras and facts, or none
            more = {"facts": dict(facts)} if facts else {}
            bound = BoundKernel(self, key, **more)
            bound.last_used = number
            if bound.undecided:
                bound.example = described(unwrapped(args))
            if len(self._entries.table) >= most:
                self._look_back()
            dropped = self._entries.add(base, bound, most)
            self._misses += 1
            self._bound_ahead += ahead
            self._evictions += dropped
            first = dropped > 0 and dropped == self._evictions
            last, self._last_missed = self._last_missed, key
        self._tell_miss(last, key, args)
        if first:
            self._warn(most, key)
        return bound

    def _tell_miss(self, last: Key | None, key: Key, args: tuple[Any, ...]) -> None:
        """Why this key missed, against the last that did; counts which part it was."""
        reason = "the first call"
        if last is not None:
            with self._entries.lock:
                self._changed[first_difference(last, key)] += 1
            reason = difference(last, key, self._parameters)
        events.emit(events.Event("miss", self.name, reason, {"kernel": self, "args": args}))

    def plain(self, args: Sequence[Any]) -> Callable[[], R]:
        """A call with these arguments, a tuple or list, as it would be made without tzero.

        ::

            add.plain((x, y))()
        """
        bound = self.bind(args)
        given = unwrapped(self._normalized(self._listed(args), {}))
        return functools.partial(bound.variant(given).call, *given)

    def _tell_refusal(self, error: InvalidArgument) -> None:
        subject = "" if error.argument is None else f"argument {error.argument!r} "
        event = events.Event("refusal", self.name, f"{subject}{error.problem}")
        events.emit(event, logging.DEBUG)  # the error that is raised says it aloud

    def _warn(self, most: int, key: Key) -> None:
        """Say, where the kernel was called, that entries are dropped, and what to do."""
        ((k, _),) = self._changed.most_common(1) or ((len(key), 0),)
        by_shape = k < self._arity and self.options.static_shapes and holds_tensor(key[k])
        advice = "Pass static_shapes=False, or raise" if by_shape else "Raise"
        beyond = "the device" if k == self._arity else "what key= or specialize adds"
        name = repr(self._parameters[k]) if k < self._arity else beyond
        warnings.warn(
            f"{self.name} has more than {most} specializations, so old ones are dropped; "
            f"{name} is what keeps changing. {advice} TZERO_MAX_SPECIALIZATIONS.",
            stacklevel=outside()[1] + 1,
        )

    # -- specialize: what takes note of a value that a host function gives ------------------------

    def _note(
        self, base: Raw, bound: BoundKernel[R], args: tuple[Any, ...], number: int, value: Value
    ) -> None:
        """In a call that found its bound kernel."""
        extra = unsettled(value, bound, args)
        if extra is None:
            return
        if extra in bound.facts:
            self._hold(bound, number, value, in_key=True)
        else:  # this call began before the value counted, and is the last that does
            self._entries.join(base, extra, number)

    def _note_alone(
        self, base: Raw, bound: BoundKernel[R], args: tuple[Any, ...], number: int, value: Value
    ) -> None:
        """In a call of a bound kernel itself, which goes on though its key lacks the value."""
        extra = unsettled(value, bound, args)
        if extra is None:
            return
        if extra not in bound.facts:
            self._entries.join(base, extra, number)
        self._hold(bound, number, value, in_key=extra in bound.facts)

    def _hold(self, bound: BoundKernel[R], number: int, value: Value, in_key: bool) -> None:
        try:
            hold(bound, number, value, in_key=in_key)
        except InvalidArgument as error:
            self._tell_refusal(error)
            raise


def _alike(one: Key, other: Key) -> int:
    return sum(a == b for a, b in zip(one, other, strict=False))
