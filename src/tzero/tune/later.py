"""A search that a call does not wait for: begun with its arguments, used when it is done.

::

    begin ── the nearest config ──► the call
        └─ copies of the arguments ──► background ──► KernelSearch.run_apart ── Found ──► improve
                                                                                            │
                                            the bound kernel, if it still has that config ◄─┘

Enters: a bound kernel with the arguments of its first call, and the config that it gets for now.
Leaves: a better choice on the bound kernel, and an event that says by how much. It must not know
how the nearest config is chosen, nor how calls use a choice.

Nothing is run in this process: not the host function, whose globals calls may be changing, and
nothing on the device but copies of the arguments.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch

from tzero import settings
from tzero.adapters import torch_captures
from tzero.adapters.torch_internals import storage_id
from tzero.config import Config
from tzero.tune.background import MOST_BYTES, Job, background
from tzero.tune.child import ProcessState, process_state
from tzero.tune.copying import copies, tensors_in
from tzero.tune.facts import Facts
from tzero.tune.kernel_search import KernelSearch, from_cache
from tzero.tune.notices import Notices
from tzero.tune.outcome import Outcome
from tzero.tune.search import Effort
from tzero.tune.select import Choice
from tzero.tune.shared import turn
from tzero.tune.tuner import Search

__all__ = ["Found", "Later"]


class Bound(Protocol):
    """The bound kernel whose config is improved."""

    def improve(self, choice: Choice[Config], instead_of: Choice[Config]) -> bool:
        """Replace a choice by a better one; whether it was in use."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has found, or another process's that it waited for: then there is no `search`.

    ::

        Found(facts, choice, search.outcomes, search)
    """

    facts: Facts
    choice: Choice[Config]
    outcomes: Mapping[Config, Outcome]
    search: Search | None = None


Taken = tuple[Choice[Config], Mapping[Config, Outcome]]


class Later:
    """One search that begins now and is used later.

    ::

        choice = Later(searching, facts, "quick", notices, took).begin(bound, args, near)
    """

    def __init__(
        self,
        searching: KernelSearch,
        facts: Facts,
        effort: Effort,
        notices: Notices,
        took: Callable[[Found], Taken],
    ) -> None:
        self._searching, self._facts, self._effort = searching, facts, effort
        self._notices, self._took = notices, took

    def begin(self, bound: Bound, args: tuple[Any, ...], near: Choice[Config]) -> Choice[Config]:
        """Begin to search, and return the choice for now."""
        for_now = replace(near, why=f"{near.why}; a search in the background may replace it")
        holder = weakref.ref(bound)

        def use(taken: Taken) -> None:
            self._improve(holder(), for_now, *taken)

        if background.join(self._facts.strict, use):
            return for_now
        size = _bytes_of(args)
        state = process_state()
        held = _copied(args) if size <= MOST_BYTES else []

        def run(ready: Callable[[], None]) -> Taken:
            return self._run(held, state, ready)

        job = Job(self._facts.strict, self._facts.kernel, run, size, [use])
        why_not = background.submit(job) if held else f"too much to copy, {size >> 20} MiB"
        if not why_not:
            return for_now
        words = f"not tuned in the background for {self._facts.arguments}: {why_not}; autotune "
        self._notices.each_time(words + "tunes it")
        return near

    def _run(self, held: list[_Copied], state: ProcessState, ready: Callable[[], None]) -> Taken:
        searching, facts, effort = self._searching, self._facts, self._effort

        def has_found() -> bool:
            return searching.best(searching.known(facts)) is not None

        with turn(facts.strict, has_found) as waited:
            known = searching.known(facts)
            is_found = waited or searching.is_agreed(facts)
            found = self._remembered() if is_found else None
            if found is None:
                budget = settings.now().tune_budget or math.inf
                rest = (facts, effort, known, budget, state, ready, background.check)
                made = searching.run_apart(lambda: held.pop().taken(), *rest)
                found = Found(facts, made[0], made[1].outcomes, made[1])
                if searching.is_agreed(facts):  # perhaps on what another process has found
                    agreed = self._remembered()
                    if agreed is not None and agreed.choice.variant != found.choice.variant:
                        found = agreed
        return self._took(found)

    def _remembered(self) -> Found | None:
        known = self._searching.known(self._facts)
        best = self._searching.best(known)
        return None if best is None else Found(self._facts, from_cache(best, known), known)

    def _improve(
        self,
        bound: Bound | None,
        near: Choice[Config],
        choice: Choice[Config],
        outcomes: Mapping[Config, Outcome],
    ) -> None:
        """Use a choice on a bound kernel, if there still is one."""
        if bound is None:
            return
        gain = _gain(outcomes.get(near.variant), outcomes.get(choice.variant))
        where, times = f"for {self._facts.arguments}", ""
        if choice.variant != near.variant and gain is not None:
            if gain <= 1 and not self._searching.is_agreed(self._facts):
                # In a fleet all use the same; elsewhere nothing is recorded anew for no gain.
                kept = f"{near.variant!r} is as fast as {choice.variant!r}"
                seconds = outcomes[near.variant].median
                choice = replace(choice, variant=near.variant, why=kept, seconds=seconds)
            times = f", {gain:.2f} times as fast"
        if choice.variant == near.variant:
            why = f"{choice.why}, in the background, as for the nearest shapes"
            said = f"{where} no config is faster than {near.variant!r}, the one in use"
        else:
            why = f"{choice.why}, in the background, in place of {near.variant!r}{times}"
            said = f"{where} {near.variant!r} is replaced by {choice.variant!r}{times}"
        if not bound.improve(replace(choice, why=why), near):
            said = f"{where} {choice.variant!r} was found in the background, and is not used: "
            said += "another config was set, or the process is sealed"
        self._notices.each_time(said)


def _gain(old: Outcome | None, new: Outcome | None) -> float | None:
    """How many times as fast the new one is; None where that is not known."""
    if old is None or new is None or not (old.usable and new.usable):
        return None
    return old.median / new.median


class _Copied(NamedTuple):
    """Copies of arguments, and what tells when the device has made them."""

    args: tuple[Any, ...]
    made: tuple[torch.cuda.Event, ...]

    def taken(self) -> tuple[Any, ...]:
        """The copies; any thread may read them."""
        for each in self.made:
            each.synchronize()
        return self.args


def _copied(args: tuple[Any, ...]) -> list[_Copied]:
    """The arguments, copied on the current streams of their devices; empty for lack of memory."""
    devices = {each.device for each in tensors_in(args) if each.device.type == "cuda"}
    if devices:
        torch_captures.watch()
    try:
        made = copies(args)
    except torch.OutOfMemoryError:
        return []
    events = []
    for device in devices:
        with torch.cuda.device(device):
            events.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
            events[-1].record()
    return [_Copied(made, tuple(events))]


def _bytes_of(args: tuple[Any, ...]) -> int:
    """The memory of all tensors in some arguments; storages are copied whole."""
    found = {
        storage_id(each): each.untyped_storage().nbytes()
        for each in tensors_in(args)
        if each.layout is torch.strided
    }
    return sum(found.values())
