"""When a call is replayed, when it is recorded, and when it is left as it is.

    call ── modes, situation ──► a plan that holds: replayed
                                 ├ none: recorded, and kept
                                 └ a refusal: the host function runs as it is written

Enters: a bound kernel and the arguments of a call. Leaves: the call's result, and the plan that
replays such calls, if there is one. It must not know how a bound kernel was found.

Plans are kept with their bound kernel. A host function that is called with ever other values would
be recorded all the time, at a hundred times the cost of a call: once plans are recorded more
often than they are replayed, a situation is recorded only when it comes a second time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NoReturn, TypeVar

from tzero import events, settings
from tzero.adapters import intercept, torch_modes, triton_launch
from tzero.arguments.host import Host
from tzero.arguments.situation import leaves, situation
from tzero.errors import InvalidArgument, PlanDrift, UnsupportedType
from tzero.plans import record
from tzero.plans.plan import Drift, Plan, Refusal, drift
from tzero.plans.table import Bound, Planned, Table
from tzero.plans.wrapper import write
from tzero.reading.dependencies import Dependencies, Unreplayable, read_dependencies
from tzero.reading.forwarded import Passing, read_passing

__all__ = ["AS_OPERATOR", "Planner", "drifted", "run_host"]

R = TypeVar("R")
Key = tuple[Hashable, ...] | None

_FREE = 64
"""So many plans a kernel records before it looks whether they are used."""


class OperatorDrift(PlanDrift, RuntimeError):
    """A function of torch's returned something else than when the plan was recorded: found in the
    middle of a call. A `RuntimeError` too, as what torch itself raises there."""


AS_OPERATOR = "Make it an operator with torch.library.custom_op, as in docs/pytorch.md."
"""What to do about tracers that do not see launches."""


def run_host(bound: Bound[R], args: tuple[Any, ...]) -> R:
    """Run a host function as it is written, with words of how to go on where torch is in the way:
    what follows it would write it down without its launches, and transforms hide a tensor's memory.

    ::

        run_host(add.bind((x, y)), (x, y))
    """
    who = torch_modes.follower()
    if who:

        def refuse(function: Any, *launch: Any) -> NoReturn:
            raise InvalidArgument(
                kernel=bound.name,
                problem=f"{who} does not see its launch of {function.__name__}, and would leave it "
                "out of what it writes down",
                advice=AS_OPERATOR,
            )

        with intercept.intercepted(refuse):
            return bound.call(*args)
    try:
        return bound.call(*args)
    except RuntimeError as error:
        if torch_modes.transforming():
            error.add_note(
                f"{bound.name} was called in a transform of torch.func, which cannot look into "
                "launches. Give it rules, by torch.library.custom_op for vmap, autograd.Function "
                "for gradients, as in docs/pytorch.md."
            )
        raise


def drifted(plan: Plan, fact: Drift) -> NoReturn:
    """Raise: a call differs from its plan, and has already run in part.

    ::

        drifted(plan, Drift("the result of torch.sort", "float32[4]", "float32[8]"))
    """
    raise OperatorDrift(kernel=plan.kernel, fact=fact.words, before=fact.before, now=fact.now)


class Planner(Generic[R]):
    """What one kernel knows of recording its calls."""

    def __init__(self, host: Host[R], exact: bool, pool: bool) -> None:
        self._host = host
        self._pool = pool
        self._exact = exact  # whether keys have all of a tensor's geometry
        self._passing: Passing | None = None
        self._dependencies: Dependencies | None = None
        self._said: set[str] = set()
        self._seen: set[int] = set()  # hashes of situations that came once and were not recorded
        self.recorded, self.replayed = 0, 0
        self._growing = threading.RLock()  # protects adding to `by_value`
        self.by_value: frozenset[int] = frozenset()
        """The places of parameters whose numbers count in full: those that a host function was
        seen to look at. It only grows."""

    def run(self, bound: Bound[R], args: tuple[Any, ...]) -> tuple[R, Planned | None]:
        """Make a call; also what replays it, unless nothing does."""
        if intercept.anywhere and intercept.here.recorder is not None:
            return bound.call(*args), None  # in another kernel's recording, as a part of it
        key = self._key(args)
        found = None if key is None else bound.plans.get(key)
        if type(found) is Refusal:
            return bound.call(*args), None
        if type(found) is Planned:
            holds = found.wrapper.holds()
            if holds and not settings.current().verify:
                return self._replay(found, args)
            return self._record(bound, args, key, found if holds else None, stale=not holds)
        why = torch_modes.obstacle() or triton_launch.interpreting()
        if why:
            self._say(f"not replayed: {why}", logging.INFO)
            return run_host(bound, args), None
        return self._record(bound, args, key)

    def _key(self, args: tuple[Any, ...]) -> Key:
        """What a plan for a call is kept under; None where the arguments are such that none is.
        What counts by value is part of it: keys that were made before more did find nothing that
        was kept after."""
        by_value = self.by_value
        try:
            return torch_modes.now(), by_value, situation(args, by_value, self._exact)
        except (UnsupportedType, RuntimeError):  # torch's, for tensors that have no memory
            return None

    def _replay(self, found: Planned, args: tuple[Any, ...]) -> tuple[R, Planned | None]:
        given = self._given(args)
        if found.held and any(id(value) in found.held for value in given):
            self._say(f"not replayed: {record.HELD}")
            return found.bound.call(*args), None
        if given is not args and record.shared(args, found.plan.guards):
            self._say(f"not replayed: {record.SHARED}")
            return found.bound.call(*args), None
        self.replayed += 1
        try:
            return found.wrapper.call(*given), found
        except OperatorDrift:
            found.bound.plans.forget(found)
            raise

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
        """Make a call and keep what it did; or hold it to what it did `before`."""
        if before is None and not self._worth(key):
            return bound.call(*args), None
        table = bound.plans  # before what is called is looked up: another config has another
        try:
            subject = self._subject(bound, args)
        except Unreplayable as error:
            return self._refused(bound, args, Refusal(error.reason, error.file, error.line))
        result, made = record.capture(subject, args)
        if before is not None:
            if not (isinstance(made, Refusal) and made.outside):
                self._verify(before.plan, made)
            return result, None
        if isinstance(made, Refusal):
            self._keep_refusal(bound, key, made)
            return result, None
        self.recorded += 1
        held = frozenset(id(made.guards[s.guard].value) for s in made.slots if s.guard is not None)
        wrapper = write(made, pool=self._pool, drifted=drifted)
        planned = Planned(made, bound, wrapper, held)
        with self._growing:
            self.by_value |= self._places(made)
        self._keep(table, self._key(args), planned, stale)
        return result, planned

    def _places(self, plan: Plan) -> frozenset[int]:
        """The parameters that hold the leaves which a plan takes by value."""
        parameters = self._host.parameters
        names = {plan.leaves[leaf] for leaf in plan.by_value}
        return frozenset(k for k, name in enumerate(parameters) if name in names)

    def _worth(self, key: Key) -> bool:
        if self.recorded < _FREE or self.replayed >= self.recorded:
            return True
        known = hash(key)
        if known in self._seen:
            return True
        if len(self._seen) > 64 * _FREE:
            self._seen.clear()
        self._seen.add(known)
        self._say("its arguments change so often that a call is recorded only when it is repeated")
        return False

    def _subject(self, bound: Bound[R], args: tuple[Any, ...]) -> record.Subject:
        if self._passing is None:
            self._passing = read_passing(bound.function, self._host.parameters)
        dependencies = self._dependencies
        if dependencies is None or not all(guard.holds() for guard in dependencies.guards):
            dependencies = self._dependencies = read_dependencies(bound.function)
        code = getattr(bound.function, "__code__", None)
        names = self._host.parameters
        return record.Subject(bound.name, bound.call, names, code, self._passing, dependencies)

    # -- looking -------------------------------------------------------------------------------

    def look(self, bound: Bound[R], args: tuple[Any, ...]) -> tuple[Plan | None, str]:
        """The plan that a call would replay, and why it would not, if so."""
        if bound.plans.refusal is not None:
            return None, str(bound.plans.refusal)
        why = torch_modes.obstacle() or triton_launch.interpreting()
        if why:
            return None, why
        found = bound.plans.get(self._key(args))
        if found is None:
            return None, "no call like this was recorded yet"
        if isinstance(found, Refusal):
            return None, str(found)
        changed = [guard.text for guard in found.plan.guards if not guard.holds()]
        return found.plan, f"{', '.join(changed)} changed" if changed else ""

    def stages(self, bound: Bound[R], args: tuple[Any, ...]) -> dict[str, Callable[[], object]]:
        """The parts of a replay that can be timed without making a launch."""
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
        why_not = table.keep(key, planned, most=most, stale=stale)
        if why_not:
            self._say(f"not replayed: {why_not}")
            table.keep_refusal(key, Refusal(why_not))

    def _keep_refusal(self, bound: Bound[R], key: Key, refusal: Refusal) -> None:
        quiet = refusal.reason == record.NO_LAUNCH
        self._say(f"not replayed: {refusal}", logging.DEBUG if quiet else None)
        if quiet:
            bound.plans.refusal = refusal
        elif refusal.lasting and key is not None:
            bound.plans.keep_refusal(key, refusal)

    def _refused(self, bound: Bound[R], args: tuple[Any, ...], refusal: Refusal) -> tuple[R, None]:
        """A host function that no call of can be recorded."""
        bound.plans.refusal = refusal
        self._say(f"not replayed: {refusal}")
        return bound.call(*args), None

    def _verify(self, before: Plan, now: Plan | Refusal) -> None:
        fact = drift(before, now)
        if fact is not None:
            raise PlanDrift(kernel=before.kernel, fact=fact.words, before=fact.before, now=fact.now)

    def _say(self, reason: str, level: int | None = None) -> None:
        """An event for calls that are slower than they could be; one for each reason."""
        if reason not in self._said:
            self._said.add(reason)
            events.emit(events.Event("refusal", self._host.name, reason), level)
