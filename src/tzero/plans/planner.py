"""Decides whether a call is replayed, recorded, or run as written.

    call ── modes, situation ──► a plan whose guards hold: replay it
                                 ├ none: record, and keep the plan
                                 └ a `Refusal`: run the host function as written

Enters: a bound kernel and the arguments of a call. Leaves: the call's result, and its plan, if
there is one. It must not know how the bound kernel was found.

Plans are kept in the `Table` of their bound kernel. A host function whose arguments always differ
would be recorded in every call, at a hundred times the cost of a call. So once a kernel records
more often than it replays, a call is recorded only when its situation is repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from types import FunctionType, MethodType
from typing import Any, Generic, NoReturn, TypeVar, cast

from tzero import events, locks, sealed, settings
from tzero.adapters import intercept, torch_modes, triton_launch
from tzero.adapters.python_frames import is_supported
from tzero.arguments.host import Host
from tzero.arguments.key import Options
from tzero.arguments.objects import objects_in
from tzero.arguments.situation import NUMBERS, leaves, situation
from tzero.counts import Count
from tzero.errors import InvalidArgument, PlanDrift, UnsupportedType
from tzero.fallbacks import Fallbacks
from tzero.launches.current_call import current
from tzero.plans import record
from tzero.plans.capture import capture
from tzero.plans.chosen import Choosing
from tzero.plans.drift import Drift, drift, steps_drift
from tzero.plans.lifetimes import Lifetimes
from tzero.plans.plan import Plan, Refusal
from tzero.plans.sized import concrete
from tzero.plans.table import Bound, Planned, Table
from tzero.plans.values import shared
from tzero.plans.varied import Free, Sighted, Varied
from tzero.plans.wrapper import OtherValue, Wrapper, write
from tzero.reading.dependencies import Dependencies, Unreplayable, read_dependencies
from tzero.reading.forwarded import Passing, read_passing
from tzero.reading.guards import Check
from tzero.reading.path import BUSY
from tzero.symbolic.formulas import Source

__all__ = ["AS_OPERATOR", "UNRECORDED", "Planner", "drifted", "run_host"]

R = TypeVar("R")
Key = tuple[Hashable, ...] | None

_FREE = 64
"""A kernel records this many plans before it checks whether they are replayed."""


class OperatorDrift(PlanDrift, RuntimeError):
    """A torch function returned something else than when the plan was recorded, which was found in
    the middle of a replay. Also a `RuntimeError`, because torch would raise one there."""


UNRECORDED = "no such call was recorded yet"
ONCE = "a call with an object is recorded when it is repeated with the same one"

AS_OPERATOR = "Make it an operator with torch.library.custom_op, as in docs/pytorch.md."
"""The advice for tracers that do not see launches."""


def run_host(bound: Bound[R], args: tuple[Any, ...]) -> R:
    """Run a host function as written. Under a tracer that does not see launches it raises at the
    first launch; in a torch.func transform a torch error gets a note that says what to do.

    ::

        run_host(add.bind(x, y), (x, y))
    """
    who = torch_modes.follower()
    if who:

        def refuse(function: Any, *launch: Any) -> NoReturn:
            raise InvalidArgument(
                kernel=bound.name,
                problem=f"{who} does not see its launch of {function.__name__}, and would leave it "
                "out of the trace",
                advice=AS_OPERATOR,
            )

        with intercept.intercepted(refuse):
            return bound.call(*args)
    try:
        return bound.call(*args)
    except RuntimeError as error:
        if torch_modes.transforming():
            error.add_note(
                f"{bound.name} was called in a transform of torch.func, which cannot transform "
                "launches. Define a rule: with torch.library.custom_op for vmap, with "
                "autograd.Function for gradients, as in docs/pytorch.md."
            )
        raise


def drifted(plan: Plan, fact: Drift) -> NoReturn:
    """Raise `PlanDrift`: a replay differs from its plan, and has already run in part.

    ::

        drifted(plan, Drift("the result of torch.sort", "float32[4]", "float32[8]"))
    """
    raise OperatorDrift(kernel=plan.kernel, fact=fact.words, before=fact.before, now=fact.now)


def _number() -> int:
    """The number of the call that this thread makes, among those of its kernel."""
    return 0 if current.call is None else current.call[-1]


def _only_python() -> bool:
    """Whether native code leaves all calls to Python, which then replays plans over sizes too."""
    return events.watched() and not settings.current().verify


def _followed(function: Any) -> FunctionType | None:
    """The function whose frames are followed: of a method, that of its class."""
    inner = function.__func__ if isinstance(function, MethodType) else function
    return inner if isinstance(inner, FunctionType) else None


def _prevents_following(made: Plan | Refusal, again: bool) -> bool:
    """Whether calls cannot be followed: for what they do, or because something interrupts them
    again. A first call may compile kernels, and compilers call anything."""
    return isinstance(made, Refusal) and (made.lasting or (made.outside and again))


def _of_graph(
    planner: Planner[Any], subject: record.Subject, args: tuple[Any, ...]
) -> record.Subject:
    """A call to record: if its work becomes CUDA graphs, numbers do not vary in it."""
    if not planner.graph:
        return subject
    graphed = record.Graphed(planner.graphed_on, planner.odd)
    every = enumerate(leaves(args, subject.parameters))
    numbers = frozenset(k for k, (_, value) in every if type(value) in NUMBERS)
    return subject._replace(by_value=subject.by_value | numbers, graphed=graphed)


def _written(made: Plan | Refusal, pool: bool) -> Wrapper | Refusal:
    """A plan in Python, or why there is none."""
    if isinstance(made, Refusal):
        return made
    try:
        return write(made, pool=pool, drifted=drifted)
    except Exception as error:
        return record.failure(error)


def _objects_of(planner: Planner[Any], args: tuple[Any, ...]) -> list[Any]:
    """The arguments of a call that count by identity."""
    return objects_in(planner._given(args)) if planner.graph else []


def _to_follow(
    planner: Planner[Any], bound: Bound[Any], args: tuple[Any, ...], free: frozenset[Source]
) -> record.Subject:
    """A call to record by following it."""
    followed, nothing = _followed(bound.function), Dependencies((), {})
    assert followed is not None and planner._passing is not None
    told = followed.__code__, planner._passing, nothing, bound.function, free
    made = record.Subject(bound.name, bound.call, planner._host.parameters, *told)
    return made if planner.tuned is None else planner._chosen(made, bound, args)


class Planner(Generic[R]):
    """Replays and records the calls of one kernel."""

    graphed_on = "cuda"
    """The type of the device whose work becomes graphs."""

    def __init__(
        self,
        host: Host[R],
        exact: bool,
        pool: bool,
        fallbacks: Fallbacks | None = None,
        free: Free = "nothing",
        why_not: str = "",
        tuned: Options | None = None,
        graph: bool = False,
    ) -> None:
        self._host = host
        self.graph = graph
        """Whether the work of calls becomes CUDA graphs."""
        self.odd: dict[str, str] = {}
        """Names of functions that no CUDA graph of the plans should hold, and why."""
        self.varied = Varied(free, host.parameters, why_not)
        self.tuned = tuned
        """How keys are made, if configs are chosen for each key: then a plan over sizes is for one
        bound kernel. None if all calls have the same config."""
        self.fallbacks = Fallbacks(host.name) if fallbacks is None else fallbacks
        self._pool = pool
        self._exact = exact  # whether keys have sizes and strides in full
        self._passing: Passing | None = None
        self._dependencies: Dependencies | None = None
        self._follows = False  # whether calls are followed, because the source could not be read
        self._by_source = False  # whether they are not, because following was refused
        self._interrupted = False  # whether something else interrupted the call recorded last
        self._seen: set[int] = set()  # hashes of situations that occurred once, unrecorded
        self._lifetimes = Lifetimes()
        self.recorded, self._in_vain = 0, 0
        self.replays = Count()
        """How often a plan was replayed in Python."""
        self.replays_natively = 0
        """How often native code had replayed one when it last made a call through Python."""
        self._growing = locks.lock()  # protects adding to `by_value`
        self.difference: Callable[[Any], str] = lambda bound: ""
        """How a bound kernel differs from the nearest that was called, for a sealed process."""
        self.by_value: frozenset[int] = frozenset()
        """The places of parameters whose numbers are compared by value: those that choose the
        config by `size_hints`, and those that a recorded call used other than forwarding them. It
        only grows."""

    def run(self, bound: Bound[R], args: tuple[Any, ...]) -> tuple[R, Planned | Refusal | None]:
        """Make a call; returns its result and its plan, if there is one, or why such calls are
        not replayed, if that was known before."""
        if intercept.anywhere and intercept.here.recorder is not None:
            return bound.call(*args), None  # part of another kernel's recording
        key = self._key(args)
        found = bound.plans.get(key)  # under None there may be a refusal, never a plan
        if found is None and key is not None and _only_python():
            found = self.varied.find(args, self._apart(bound))
        if type(found) is Refusal:
            if not found.is_due(_number()) or sealed.is_sealed():
                return bound.call(*args), found
            bound.plans.drop_refusal(key)
        if type(found) is Planned:
            holds, verifies = found.wrapper.holds(), settings.current().verify
            other = None if holds or verifies else bound.plans.turn(key, found)
            if other is not None:
                found, holds = other, True
            if holds and not verifies:
                try:
                    return self._replay(found, args)
                except OtherValue:
                    holds = False
            return self._record(bound, args, key, found if holds else None, stale=not holds)
        why = torch_modes.obstacle() or triton_launch.interpreting()
        if why:
            if not current.is_check:
                self.fallbacks.passing(f"not replayed: {why}")
            return run_host(bound, args), None
        return self._record(bound, args, key)

    def _key(self, args: tuple[Any, ...]) -> Key:
        """The key of a call's plan; None if plans do not support its arguments. It contains
        `by_value`, so keys from before that set grew do not match plans recorded after."""
        by_value = self.by_value
        try:
            modes = torch_modes.now()
            return modes, by_value, situation(args, by_value, self._exact, self.graph)
        except (UnsupportedType, RuntimeError):  # torch raises it for tensors without memory
            return None

    def _replay(self, found: Planned, args: tuple[Any, ...]) -> tuple[R, Planned | None]:
        given = self._given(args)
        entangled = self._entangled(found, args, given)
        if entangled:
            self.fallbacks.passing(f"not replayed: {entangled}")
            return found.bound.call(*args), None
        self.replays.add()
        try:
            return found.wrapper.call(*given), found
        except OperatorDrift:
            found.bound.plans.forget(found)
            raise

    def _entangled(self, found: Planned, args: tuple[Any, ...], given: Sequence[Any]) -> str:
        """Why a plan is not for these arguments, though it is for such arguments: one is also in a
        global or a closure, or hides what was read of its class. Usually empty."""
        if found.held and any(id(value) in found.held for value in given):
            return record.HELD
        for leaf, names in found.plan.bare:
            put = vars(given[leaf])
            if put and not put.keys().isdisjoint(names):
                name = sorted(put.keys() & set(names))[0]
                return (
                    f"it reads {found.plan.leaves[leaf]}.{name}, which someone put on that tensor"
                )
        return record.SHARED if given is not args and shared(args, found.plan.guards) else ""

    def _given(self, args: tuple[Any, ...]) -> Sequence[Any]:
        """The leaves of the arguments."""
        if any(type(value) in (list, tuple, dict) for value in args):
            return [value for _, value in leaves(args, self._host.parameters)]
        return args

    def _record(
        self,
        bound: Bound[R],
        args: tuple[Any, ...],
        key: Key,
        before: Planned | None = None,
        stale: bool = False,
    ) -> tuple[R, Planned | None]:
        """Make a call, record it and keep the plan; with `before`, compare it with that plan."""
        free = self._free(bound, sighted := self.varied.sighted(args, self._apart(bound)), before)
        known = self.varied.hashed(sighted) if free else hash(key)
        objects = _objects_of(self, args)
        is_worth = before is not None or self._worth(known, [] if stale else objects, bound)
        if not is_worth or (before is None and not self._may(bound, key)):
            return bound.call(*args), None
        table = bound.plans  # read before `call`: another config has another table
        try:
            subject = self._subject(bound, args, before, free)
        except Unreplayable as error:
            if not self._can_follow(bound):
                return self._refused(bound, args, Refusal(error.reason, error.file, error.line))
            self._follows = True
            subject = self._subject(bound, args, before, free)
        followed = subject.host is not None
        result, made = capture(_of_graph(self, subject, args), args)
        self._lifetimes.note(objects, table, key)
        if isinstance(made, Refusal) and made.reason == BUSY:
            self.fallbacks.passing(f"not replayed: {BUSY}")
            return result, None
        is_interrupted = isinstance(made, Refusal) and made.outside
        again, self._interrupted = self._interrupted, is_interrupted
        if before is not None:
            if not is_interrupted:
                self._verify(before.plan, made)
            return result, None
        if free and is_interrupted:  # not tried in vain: it may be recorded exactly
            self.varied.note_interruption(sighted, str(made))
            self.fallbacks.passing(f"not replayed: {made}")
            return result, None
        if followed and not (self._follows or objects) and _prevents_following(made, again):
            self._by_source = True  # the next call is recorded by what its source reads
            self.varied.disable(f"its calls cannot be followed: {made}")
            return result, None
        wrapper = _written(made, self._pool)
        if isinstance(made, Refusal) or isinstance(wrapper, Refusal):
            self._keep_refusal(bound, key, cast("Refusal", wrapper))
            return result, None
        self.recorded += 1
        held = frozenset(id(made.guards[s.guard].value) for s in made.slots if s.guard is not None)
        planned = Planned(made, bound, wrapper, held, followed)
        if settings.current().verify:
            self._verify_sizes(bound, args, made)
        planned = self.varied.note(sighted, planned)
        with self._growing:
            self.by_value |= self._places(made)
        if key is None or key[1] != self.by_value:  # else the call left its arguments as they were
            key = self._key(args)
        self._keep(table, key, planned, stale)
        self._lifetimes.note(objects, table, key)
        return result, planned

    def _places(self, plan: Plan) -> frozenset[int]:
        """The places of the parameters that a plan compares by value."""
        parameters = self._host.parameters
        names = {plan.leaves[leaf] for leaf in plan.by_value}
        return frozenset(k for k, name in enumerate(parameters) if name in names)

    def _worth(self, known: int, objects: Sequence[Any], bound: Bound[R]) -> bool:
        """Whether a call should be recorded; `known` is the hash of its situation, `objects` are
        arguments that may be new in each call."""
        if objects and not self._lifetimes.is_repeated(objects, hash((known, id(bound)))):
            self.fallbacks.passing(f"not replayed: {ONCE}")
            return False
        replays = self.replays.value() + self.replays_natively
        if self.recorded < _FREE or replays >= self.recorded:
            return True
        if known in self._seen:
            return True
        if len(self._seen) > 64 * _FREE:
            self._seen.clear()
        self._seen.add(known)
        self.fallbacks.lasting(
            "its arguments change so often that a call is recorded only when it is repeated"
        )
        return False

    def _may(self, bound: Bound[R], key: Key) -> bool:
        """Whether a call may be recorded: not in a sealed process if an earlier recording failed.
        If it is new there, this raises, or emits an event; not for a kernel that a search has made,
        because the search was told. Verify mode records every call."""
        if not sealed.is_sealed() or settings.current().verify or self.fallbacks.is_quiet:
            return True
        if bound.plans.last_try(key) is not None:
            return False
        sealed.check("recording", bound.name, lambda: self.difference(bound))
        return True

    def _can_follow(self, bound: Bound[R]) -> bool:
        """Whether calls can be followed instruction by instruction."""
        return _followed(bound.function) is not None and is_supported()

    def _free(self, bound: Bound[R], call: Sighted, before: Planned | None) -> frozenset[Source]:
        """What the plan of a call should not assume of its sizes. Only followed calls have such
        plans."""
        if before is not None:
            return frozenset() if before.plan.sizing is None else frozenset(before.plan.sizing.free)
        free = self.varied.free(call)
        if not free or self._by_source or sys.gettrace() is not None:
            return frozenset()
        return free if self._can_be_sized(bound) else frozenset()

    def _can_be_sized(self, bound: Bound[R]) -> bool:
        """Whether plans may be for several sizes."""
        return self._can_follow(bound)

    def _subject(
        self,
        bound: Bound[R],
        args: tuple[Any, ...],
        before: Planned | None,
        free: frozenset[Source],
    ) -> record.Subject:
        """What to record; with `before`, in the way in which that plan was recorded. Only in
        followed calls is seen what is read of objects among the arguments."""
        names, function = self._host.parameters, bound.function
        if self._passing is None:
            self._passing = read_passing(function, names)
        dependencies = self._dependencies
        if _objects_of(self, args) and self._can_follow(bound):
            return _to_follow(self, bound, args, free)
        is_by_source = not self._follows and not free
        if is_by_source and (
            dependencies is None or not all(guard.holds() for guard in dependencies.guards)
        ):
            dependencies = self._dependencies = read_dependencies(function)
        follows = (
            self._follows
            or bool(free)
            or (self._prefers_path(bound, dependencies) if before is None else before.followed)
        )
        if follows and _followed(function) is not None:
            return _to_follow(self, bound, args, free)
        own = getattr(function, "__code__", None)
        assert dependencies is not None
        return record.Subject(bound.name, bound.call, names, own, self._passing, dependencies)

    def _apart(self, bound: Bound[R]) -> Hashable:
        """What calls have in common besides if one plan serves them."""
        return None if self.tuned is None else cast("Hashable", bound)

    def _chosen(
        self, subject: record.Subject, bound: Bound[R], args: tuple[Any, ...]
    ) -> record.Subject:
        """A call of a tuned kernel to record, for others with the same config."""
        wide = self.tuned is not None and self.tuned.index_dtype is None
        choosing = Choosing(bound.config, bound.chosen_by, bound.facts, wide)
        return subject._replace(
            require=lambda sizes: choosing.demand(sizes, args, subject.parameters),
            by_value=choosing.integers(args),
        )

    def _prefers_path(self, bound: Bound[R], dependencies: Dependencies | None) -> bool:
        """Whether calls are followed although the source can be read: if what it reads needs guards
        in Python, where those of a followed call are native; or if code interrupted it that may be
        called where the source does not show it, such as the `run` of an autotuner's subclass."""
        if self._by_source or dependencies is None or sys.gettrace() is not None:
            return False
        reads = any(type(each) is Check for each in dependencies.guards)
        return (reads or self._interrupted) and self._can_follow(bound)

    # -- for `explain` -------------------------------------------------------------------------

    def look(self, bound: Bound[R], args: tuple[Any, ...]) -> tuple[Plan | None, str]:
        """The plan of a call, if there is one, and why the call would not be replayed, if so."""
        if bound.plans.refusal is not None:
            return None, str(bound.plans.refusal)
        why = torch_modes.obstacle() or triton_launch.interpreting()
        if why:
            return None, why
        key = self._key(args)
        found = bound.plans.get(key) or self.varied.find(args, self._apart(bound))
        if found is None:
            unknown = ONCE if _objects_of(self, args) else UNRECORDED
            return None, str(bound.plans.last_try(key) or unknown)
        if isinstance(found, Refusal):
            return None, str(found)
        entangled = self._entangled(found, args, self._given(args))
        if entangled:
            return found.plan, entangled
        changed = ", ".join(guard.text for guard in found.plan.guards if not guard.holds())
        last = bound.plans.last_try(key)
        return found.plan, str(last or f"{changed} changed") if changed else ""

    def stages(self, bound: Bound[R], args: tuple[Any, ...]) -> dict[str, Callable[[], object]]:
        """The parts of a replay that can be timed without a launch."""
        found = bound.plans.get(self._key(args))
        parts: dict[str, Callable[[], object]] = {"situation": lambda: self._key(args)}
        if isinstance(found, Planned):
            parts["guards"] = found.wrapper.holds
        return parts

    # -- keeping -------------------------------------------------------------------------------

    def _keep(self, table: Table, key: Key, planned: Planned, stale: bool) -> None:
        if key is None:
            return
        most = settings.current().max_specializations
        why_not = table.keep(key, planned, most=most, stale=stale, now=_number())
        if why_not:
            self.fallbacks.lasting(f"not replayed: {why_not}")
            table.keep_refusal(key, Refusal(why_not, lasting=False), _number())

    def _keep_refusal(self, bound: Bound[R], key: Key, refusal: Refusal) -> None:
        words = f"not replayed: {refusal}"
        if refusal.reason == record.NO_LAUNCH:
            bound.plans.refusal = refusal
            self.fallbacks.unimportant(words)
        elif (refusal.lasting and key is not None) or self._tried_in_vain(bound, key, refusal):
            bound.plans.keep_refusal(key, refusal, _number())
            self.fallbacks.lasting(words)
        elif refusal.lasting:
            self.fallbacks.lasting(words)
        else:
            self.fallbacks.passing(words)

    def _tried_in_vain(self, bound: Bound[R], key: Key, refusal: Refusal) -> bool:
        """Count a recording that may succeed next time. Returns whether there were so many, in this
        situation or in the kernel as a whole without a success, that it is not tried again."""
        self._in_vain += 1
        hopeless = self.recorded == 0 and self._in_vain > _FREE
        return bound.plans.tried_in_vain(key, refusal) or hopeless

    def _refused(self, bound: Bound[R], args: tuple[Any, ...], refusal: Refusal) -> tuple[R, None]:
        """Run a call of a host function none of whose calls can be recorded."""
        bound.plans.refusal = refusal
        self.fallbacks.lasting(f"not replayed: {refusal}")
        return bound.call(*args), None

    def _verify_sizes(self, bound: Bound[R], args: tuple[Any, ...], now: Plan) -> None:
        """Compare a recording with what a plan over sizes says of this call."""
        known, given = self.varied.find(args, self._apart(bound)), self._given(args)
        if known is None or not known.wrapper.holds():
            return
        before, made = concrete(known.plan, given), concrete(now, given)
        assert before is not None and made is not None
        fact = steps_drift(before, made)
        if fact is not None:
            raise PlanDrift(kernel=before.kernel, fact=fact.words, before=fact.before, now=fact.now)

    def _verify(self, before: Plan, now: Plan | Refusal) -> None:
        fact = drift(before, now)
        if fact is not None:
            raise PlanDrift(kernel=before.kernel, fact=fact.words, before=fact.before, now=fact.now)
