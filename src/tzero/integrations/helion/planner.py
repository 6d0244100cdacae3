"""Records calls of Helion kernels.

Enters: a Helion kernel, and calls that have no plan. Leaves: plans of the host functions that
Helion generated. It must not know how calls get here, nor Helion's private parts, which are in
`compat`.

A generated host function allocates and calls the launcher. For each recording, Helion is asked
which one it would call; guards check in later calls that it would still be that one. If shapes are
dynamic, the call is followed and its plan is over sizes, with conditions under which Helion would
call that function (`choice`). A fallback counts for one generated host function only.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tzero.adapters.python_frames import is_supported
from tzero.arguments.host import Host
from tzero.arguments.situation import leaves
from tzero.fallbacks import Fallbacks
from tzero.integrations.helion import compat
from tzero.integrations.helion.choice import read_choice, require_choice
from tzero.plans import record
from tzero.plans.plan import Refusal
from tzero.plans.planner import Planner
from tzero.plans.table import Bound, Planned, Table
from tzero.plans.varied import Free
from tzero.reading.dependencies import Dependencies, Unreplayable, read_dependencies
from tzero.reading.forwarded import Passing, read_passing
from tzero.reading.guards import Guard
from tzero.symbolic.formulas import Source

__all__ = ["HelionPlanner", "whole"]

R = TypeVar("R")

Read = tuple[Passing, Dependencies] | Unreplayable


class _NotCompiled(Exception):
    """Helion has not compiled for these arguments; nothing has run."""


class _Here(threading.local):
    """The guards of the recording in this thread."""

    guards: tuple[Guard, ...] = ()


def whole(args: Sequence[Any], fixed: Mapping[int, Any]) -> tuple[Any, ...]:
    """Arguments, with the fixed ones inserted at their places.

    >>> whole(("x", "y"), {1: "f"})
    ('x', 'f', 'y')
    """
    rest = iter(args)
    return tuple(fixed[k] if k in fixed else next(rest) for k in range(len(args) + len(fixed)))


class HelionPlanner(Planner[R]):
    """A planner for host functions that Helion generated. `fixed` are arguments that are passed to
    Helion, but not to the tzero kernel.

    ::

        HelionPlanner(add, host, fixed={}, pool=False)
    """

    def __init__(
        self,
        kernel: Any,
        host: Host[R],
        fixed: Mapping[int, Any],
        pool: bool,
        fallbacks: Fallbacks | None = None,
    ) -> None:
        free: Free = "everything" if compat.has_dynamic_shapes(kernel) else "nothing"
        super().__init__(host, True, pool, fallbacks, free)
        self._kernel, self._fixed = kernel, fixed
        self._read: dict[Callable[..., Any], Read] = {}
        self._said_of: weakref.WeakKeyDictionary[Bound[R], dict[Any, tuple[Guard, ...]]] = (
            weakref.WeakKeyDictionary()
        )
        self._recording = _Here()
        self.refused = 0
        """How many recordings failed because of the generated host function."""

    def start_anew(self) -> None:
        """Forget what was read, and all fallbacks."""
        self._read, self.refused = {}, 0
        self._said_of.clear()

    def run(self, bound: Bound[R], args: tuple[Any, ...]) -> tuple[R, Planned | Refusal | None]:
        """Make a call; returns its result and its plan, or why such calls are not replayed."""
        if compat.distributed():
            self.fallbacks.lasting(
                "left to Helion: there is a process group, and tensors may be in its memory"
            )
            return bound.call(*args), None
        if bound in self._said_of:
            self._look_again(bound)
        return super().run(bound, args)

    def _look_again(self, bound: Bound[R]) -> None:
        """Forget fallbacks of functions that Helion has replaced since."""
        said = self._said_of[bound]
        for key, guards in list(said.items()):
            if not all(guard.holds() for guard in guards):
                said.pop(key, None)
                bound.plans.drop_refusal(key)

    def _keep_refusal(self, bound: Bound[R], key: Any, refusal: Refusal) -> None:
        super()._keep_refusal(bound, key, refusal)
        self._said_of.setdefault(bound, {})[key] = self._recording.guards

    def _record(self, bound: Bound[R], args: tuple[Any, ...], *rest: Any, **more: Any) -> Any:
        try:
            return super()._record(bound, args, *rest, **more)
        except _NotCompiled:
            pass  # call outside of `except`, so that Helion's errors are not chained to this one
        return bound.call(*args), None

    def _keep(self, table: Table, key: Any, planned: Planned, stale: bool) -> None:
        # Each `set_config` makes a plan stale. Trying many configs must not count as instability.
        super()._keep(table, key, planned, stale=False)

    def _refused(self, bound: Bound[R], args: tuple[Any, ...], refusal: Refusal) -> tuple[R, None]:
        self.refused += 1
        self.fallbacks.lasting(f"not replayed: {refusal}")
        return bound.call(*args), None

    def _can_follow(self, bound: Bound[R]) -> bool:
        return False  # what a generated host function reads is found in its source

    def _can_be_sized(self, bound: Bound[R]) -> bool:
        return is_supported()

    def _subject(
        self,
        bound: Bound[R],
        args: tuple[Any, ...],
        before: Planned | None,
        free: frozenset[Source],
    ) -> record.Subject:
        given = whole(args, self._fixed)
        found = compat.compiled(self._kernel, given)
        if found is None:
            raise _NotCompiled
        run = found.run
        self._recording.guards = found.guards
        choice = read_choice(found.extractors, given, found.numbers_by_type)
        obstacle = found.obstacle or (
            choice.obstacle and f"Helion's key has {choice.obstacle}, which plans do not compare"
        )
        if obstacle:
            raise Unreplayable(obstacle, run.__code__.co_filename, 0)
        passing, dependencies = self._reading(run)
        if not found.numbers_by_type:  # a number that is only forwarded may select the function
            passing = Passing({}, {})
        dependencies = dependencies._replace(guards=(*dependencies.guards, *found.guards))
        called = (lambda *given: run(*whole(given, self._fixed))) if self._fixed else run
        names, code = self._host.parameters, run.__code__
        if not free:
            return record.Subject(bound.name, called, names, code, passing, dependencies)
        own = Dependencies(found.guards, {})
        every = [value for _, value in leaves(args, names)]
        require = functools.partial(require_choice, choice, every)
        return record.Subject(
            bound.name, called, names, code, passing, own, run, free, compat.launcher(), require
        )

    def _reading(self, run: Any) -> tuple[Passing, Dependencies]:
        known = self._read.get(run)
        if isinstance(known, Unreplayable):
            raise known
        if known is None or not all(guard.holds() for guard in known[1].guards):
            try:
                passing = read_passing(run, self._host.parameters, compat.LAUNCHER)
                known = self._read[run] = passing, read_dependencies(run)
            except Unreplayable as refused:
                self._read[run] = refused
                raise
        return known
