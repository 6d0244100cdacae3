"""`Table`: owns the plans of one bound kernel with one config, until they end.

    get ──► Planned: replay it
            ├ Refusal: such calls are not replayed
            └ None: record

Enters: plans and refusals, under the key that the planner makes of a call. Leaves: the one for a
call. It must not know how plans are recorded or replayed.

Plans end only here: `forget` ends one, `end` all, when the bound kernel gets another config, and
`drop` those for an argument that is gone. They call `ended`, with the plan or None, so that native
code drops its entries; it compares a generation before it adds one, so that a plan that ended
meanwhile is not added. `keep` after `end` does nothing: a call on another thread may have started
before. A refusal is kept for a number of calls, so that what has passed meanwhile is found. A bound
kernel that the kernel drops (`reset`, eviction, a value that joins the key) takes its plans along;
native code drops its entries then, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from tzero.config import Config
from tzero.plans.plan import Plan, Refusal
from tzero.plans.wrapper import Wrapper
from tzero.tune.by_size import BySize

__all__ = ["Bound", "Planned", "Table"]

R = TypeVar("R")

_MOST_STALE = 16
"""How often a plan for one situation is recorded again because a guard failed."""

_MOST_IN_VAIN = 16
"""How often a call is recorded again if something prevented it that may pass."""

_WORTHWHILE = 128
"""How many calls a plan must last so that recording it was worth it: then its end is not counted
among those for which a situation is given up."""

_MOST_OTHERS = 3
"""How many plans are kept of a situation besides the latest, for what changes to and fro."""

_WAIT, _LONG_WAIT, _MOST_WAIT = 64, 1 << 12, 1 << 20
"""After how many calls a refused one is recorded again: first if what refused it may pass, first if
it is likely to last, and at most. The wait doubles each time."""


class Bound(Protocol[R]):
    """What plans need of a bound kernel: the function to call, and the table of its plans."""

    name: str
    function: Callable[..., Any]
    call: Callable[..., R]
    plans: Table
    facts: Mapping[Any, Hashable]
    chosen_by: BySize | None

    @property
    def config(self) -> Config | None:
        """The config that calls use."""

    @property
    def family(self) -> object:
        """The bound kernel that calls find, if this is one of its variants for some sizes."""

    def makes_calls(self) -> bool:
        """Whether calls are still made with this one."""


class Planned(NamedTuple):
    """A plan in use: its bound kernel, its wrapper, and the ids of tensors in globals and closures.
    A call with one of these tensors as an argument must not replay the plan. `followed`: what it
    reads was found by following the call, not by reading its source. `variants` are plans over
    sizes that do the same with other binaries."""

    plan: Plan
    bound: Bound[Any]
    wrapper: Wrapper
    held: frozenset[int]
    followed: bool = False
    variants: tuple[Plan, ...] = ()


class Table:
    """The plans and refusals of a bound kernel.

    >>> table = Table(ended=lambda plan: None)
    >>> table.keep_refusal("situation", Refusal("it reads the value of a tensor"))
    >>> print(table.get("situation"))
    it reads the value of a tensor
    >>> table.end()
    >>> table.get("situation") is None
    True
    """

    __slots__ = (
        *("_ended", "_found", "_in_vain", "_is_over", "_others", "_since", "_stale", "_waits"),
        *("__weakref__", "refusal"),
    )

    def __init__(self, ended: Callable[[Plan | None], None]) -> None:
        self._ended = ended
        self._found: dict[Hashable, Planned | Refusal] = {}
        self._stale: dict[Hashable, int] = {}
        self._in_vain: dict[Hashable, tuple[int, Refusal]] = {}
        # Plans that a guard ended for now, the latest first.
        self._others: dict[Hashable, tuple[Planned, ...]] = {}
        self._since: dict[Hashable, int] = {}  # the call after which a plan was kept
        self._waits: dict[Hashable, int] = {}  # how long the next refusal is kept
        self._is_over = False
        self.refusal: Refusal | None = None
        """Why no call at all can be recorded."""

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Hashable) -> Planned | Refusal | None:
        """The plan or refusal for calls with this key."""
        return self._found.get(key)

    def turn(self, key: Hashable, planned: Planned) -> Planned | None:
        """The plan for calls with this key whose guards hold, if those of the latest do not; it
        takes the place of that one."""
        others = self._others.get(key, ())
        holding = next((each for each in others if each.wrapper.holds()), None)
        if holding is None or self._found.get(key) is not planned:
            return None
        self._found[key] = holding
        self._others[key] = (planned, *(each for each in others if each is not holding))
        return holding

    def plans(self) -> list[Planned]:
        """All plans, the latest last."""
        found = list(self._found.values())  # a copy: other threads may add plans
        others = [each for several in list(self._others.values()) for each in several]
        return [*others, *(each for each in found if isinstance(each, Planned))]

    def has(self, planned: Planned) -> bool:
        """Whether a plan has not ended."""
        return not self._is_over and any(each is planned for each in self.plans())

    def keep(
        self, key: Hashable, planned: Planned, *, most: int, stale: bool = False, now: int = 0
    ) -> str:
        """Keep a plan, and at most `most` in all. `stale`: it replaces one whose guards failed,
        which is kept for when they hold again, unless it holds tensors that are no longer used.
        `now` is the number of the call. Returns why no more plans are kept for this key; usually
        empty."""
        if self._is_over:
            return ""
        since, self._since[key] = self._since.get(key, now), now
        if stale and now - since >= _WORTHWHILE:
            self._stale.pop(key, None)
            self._waits.pop(key, None)
        elif stale:
            self._stale[key] = times = self._stale.get(key, 0) + 1
            if times > _MOST_STALE:
                return "what it reads besides its arguments changes all the time"
        for oldest in list(self._found)[: max(0, len(self._found) - most + 1)]:
            self._found.pop(oldest, None)
            self._others.pop(oldest, None)
        before, others = self._found.get(key), self._others.pop(key, ())
        if stale and isinstance(before, Planned):
            kept = tuple(each for each in (before, *others) if each.held <= planned.held)
            self._others[key] = kept[:_MOST_OTHERS]
        self._found[key] = planned
        self._in_vain.pop(key, None)
        return ""

    def keep_refusal(self, key: Hashable, refusal: Refusal, now: int = 0) -> None:
        """Keep the reason why calls with this key are not replayed, for a time; for good if they
        have no key."""
        if self._is_over:
            return
        if key is not None:
            wait = self._waits.get(key, _LONG_WAIT if refusal.lasting else _WAIT)
            self._waits[key] = min(2 * wait, _MOST_WAIT)
            refusal = dataclasses.replace(refusal, until=now + wait)
        self._found[key] = refusal
        self._others.pop(key, None)

    def tried_in_vain(self, key: Hashable, refusal: Refusal) -> bool:
        """Count a recording that something prevented which may pass; returns whether that happened
        so often that calls with this key are no longer recorded."""
        before = self._in_vain.get(key)
        times = 1 if before is None else before[0] + 1
        self._in_vain[key] = times, refusal
        return times >= _MOST_IN_VAIN

    def last_try(self, key: Hashable) -> Refusal | None:
        """What prevented the latest recording of a call with this key, if it was in vain."""
        found = self._in_vain.get(key)
        return None if found is None else found[1]

    def drop_refusal(self, key: Hashable) -> None:
        """Drop a refusal, so that the next call with this key is recorded again."""
        if isinstance(self._found.get(key), Refusal):
            self._found.pop(key, None)

    def forget(self, planned: Planned) -> None:
        """End one plan; the next call with its key is recorded again."""
        for key, found in list(self._found.items()):
            if found is planned:
                self._found.pop(key, None)
        for key, others in list(self._others.items()):
            self._others[key] = tuple(each for each in others if each is not planned)
        self._ended(planned.plan)

    def drop(self, key: Hashable) -> None:
        """End all that is kept under a key, because an object in it is gone."""
        found, others = self._found.pop(key, None), self._others.pop(key, ())
        for each in (self._stale, self._in_vain, self._since, self._waits):
            each.pop(key, None)
        for planned in (found, *others):
            if isinstance(planned, Planned):
                self._ended(planned.plan)

    def end(self) -> None:
        """End all plans."""
        self._is_over = True
        self._found, self._stale, self._in_vain = {}, {}, {}
        self._others, self._since, self._waits = {}, {}, {}
        self._ended(None)
