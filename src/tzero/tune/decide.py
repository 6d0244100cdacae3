"""Which config a bound kernel gets: shipped, remembered, nearest, or found by a search.

::

    first call ── only one config, or set_config ────────────────────────► pinned
               ├─ in a lookup table, or in a file of `tzero.pretuned` ───► pretuned
               ├─ an earlier search on this machine found it ────────────► cached
               ├─ size_hints, or effort "none": the nearest tuned shape ─► nearest
               ├─ a shape near a tuned one: that one's, a search later ──► nearest
               └─ a search: compiled, compared, timed ───────────────────► tuned

Enters: a bound kernel and the arguments of its first call. Leaves: a `Choice` on the bound kernel,
which says why it was made. It must not know how calls are made or where bound kernels are kept.

One search of a call runs at a time in a process, and one in the background (see `later`). Where
nothing can be timed, as during a CUDA graph capture or with meta tensors, the call uses what is
known, and a later call decides.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, cast

import torch

from tzero import sealed, settings
from tzero.arguments.host import Host
from tzero.arguments.key import Key
from tzero.arguments.text import text
from tzero.config import Config
from tzero.errors import InvalidArgument, TuningFailed
from tzero.launches import ahead
from tzero.launches.current_call import current
from tzero.tune import bundled, records, source
from tzero.tune.background import background
from tzero.tune.by_size import (
    BySize,
    NotFollowed,
    NotResizable,
    Origins,
    most_general,
    origins,
    shapes_of,
)
from tzero.tune.facts import Facts, hardware_of
from tzero.tune.hints import NO_HINTS, Sized, SizeHints, closeness
from tzero.tune.judge import DEFAULT, Check, Judge, unfit_option
from tzero.tune.kernel_search import AGAIN, AGAIN_ISOLATED, KernelSearch, from_cache
from tzero.tune.later import Found, Later
from tzero.tune.notices import Notices
from tzero.tune.records import Entry, Outcome
from tzero.tune.search import Effort
from tzero.tune.select import MOST_DIMS, Choice, Hint, Selector
from tzero.tune.shared import turn
from tzero.tune.shipping import files_in_use
from tzero.tune.space import Space
from tzero.tune.trial import as_written, device_of
from tzero.tune.tuner import Search
from tzero.tune.turn import TURN, outside_recording, why_not_now

__all__ = ["Bound", "Tuning"]

R = TypeVar("R")

_TIMED = ("tuned", "cached")
"""The kinds of choice for which the time of each config is known."""


class Bound(Protocol):
    """What a decision needs of a bound kernel, and how the bound kernel is told."""

    key: Key
    function: Callable[..., Any]
    undecided: bool

    def choose(self, choice: Choice[Config], *, settled: bool = True) -> None:
        """Make later calls with this config; where not `settled`, the next call decides again."""

    def choose_by_size(self, by_size: BySize) -> None:
        """Make later calls with the config that is chosen for the sizes of their tensors."""

    def improve(self, choice: Choice[Config], instead_of: Choice[Config]) -> bool:
        """Replace a choice by a better one; whether it was in use."""


class Tuning(Generic[R]):
    """How the bound kernels of one kernel get their configs."""

    def __init__(
        self,
        host: Host[R],
        space: Space | None,
        lookup: Mapping[str, Config] = MappingProxyType({}),
        size_hints: SizeHints = NO_HINTS,
        replayed: Callable[[Host[R], Config], Callable[..., R]] | None = None,
        judge: Judge = DEFAULT,
    ) -> None:
        self.host = host
        self.space = space
        size_hints.check(host)
        self.size_hints = size_hints
        self.judge = judge
        self.searches: dict[str, Search] = {}
        self.difference: Callable[[Any], str] = lambda bound: ""
        """How a bound kernel differs from the nearest that was called, for a sealed process."""
        self._table = dict(lookup)
        self._source: str | None = None
        self._notices = Notices(host.name)
        self._replayed = replayed or as_written
        self._chosen: dict[str, Entry] = {}  # by the text of the arguments; `ship` writes these
        self._provisional: set[str] = set()  # those of them that a later process times again
        self._timed: dict[str, Mapping[Config, Outcome]] = {}  # by the same text

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one config that a call may get."""
        return self.space is not None and (self.space.count() != 1 or bool(self._table))

    @property
    def _space(self) -> Space:
        assert self.space is not None  # without a space, nothing is decided
        return self.space

    def _searching(self, judge: Judge) -> KernelSearch:
        return KernelSearch(self.host, self._space, self._replayed, self._notices, judge)

    # -- at a first call -------------------------------------------------------------------------

    def decide(self, bound: Bound, args: tuple[Any, ...]) -> None:
        """Choose the config of a bound kernel, whose first call has these arguments."""
        with TURN:
            if not bound.undecided:
                return  # another thread was faster
            why_not = why_not_now(args)
            if why_not:
                if not current.is_check:
                    self._notices.once(f"its configs are not timed now: {why_not}")
                bound.choose(self._choice(bound, args, untimed=True), settled=False)
                return
            with outside_recording():
                made = self._by_size(bound, args, functools.partial(self._choice, bound))
                self._settle(bound, self._choice(bound, args) if made is None else made)

    def _settle(self, bound: Bound, made: BySize | Choice[Config]) -> None:
        """Use a decision, unless a config was set meanwhile."""
        if not bound.undecided:
            return
        if isinstance(made, BySize):
            bound.choose_by_size(made)
        else:
            bound.choose(made)

    # -- one config for each size hint -----------------------------------------------------------

    def _by_size(
        self,
        bound: Bound,
        args: tuple[Any, ...],
        choose: Callable[[tuple[Any, ...], Sized], Choice[Config]],
    ) -> BySize | None:
        """A config for each size hint; None without hints, and where these arguments cannot be
        resized."""
        name, names, hints = self.host.name, self.host.parameters, self.size_hints
        # The values of constants are in the key: other calls of this bound kernel have the same.
        parts = enumerate(bound.key)
        fixed = [k for k, each in parts if isinstance(each, tuple) and each[:1] == ("constant",)]
        try:
            every = hints.each_sized(name, args, names, fixed)
        except NotResizable as error:
            self._notices.once(f"size_hints are not used: {error}", warn=True)
            return None
        if not every:
            return None
        for each in every:
            if each.note:
                self._notices.once(f"at its size_hints, {each.note}")
        sized = {each.text: each for each in every}
        chosen = self._general(bound, sized, self._each_hint(sized, choose))
        came_from = self._origins(bound, args) if hints.compares_results else ()
        pairs = [(sized[text], config) for text, config in chosen.items()]
        return hints.chooser(name, pairs, args, names, came_from)

    def arguments_of_hints(self, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """What a search for these arguments calls the host function with besides, as `Spec`s."""
        try:
            return self.size_hints.each_specified(self.host.name, args, self.host.parameters)
        except NotResizable as error:
            self._notices.once(f"its size_hints are not compiled for: {error}")
            return []

    def _each_hint(
        self,
        sized: Mapping[str, Sized],
        choose: Callable[[tuple[Any, ...], Sized], Choice[Config]],
    ) -> dict[str, Choice[Config]]:
        """The choice for each hint, without the hints at which no config works."""
        chosen: dict[str, Choice[Config]] = {}
        failures: dict[str, TuningFailed] = {}
        for hint, each in sized.items():
            try:
                chosen[hint] = choose(each.args, each)
            except TuningFailed as error:
                if each.note:
                    error.add_note(f"At the size hint {hint}, {each.note}.")
                failures[hint] = error
        for hint, failure in failures.items():
            if not chosen:
                raise failure
            words = f"its size hint {hint} is not used: no config works there"
            words += f" ({sized[hint].note})" if sized[hint].note else ""
            self._notices.once(words, warn=True)
        return chosen

    def _general(
        self, bound: Bound, sized: Mapping[str, Sized], chosen: Mapping[str, Choice[Config]]
    ) -> dict[str, Config]:
        """The config of each hint; of those that are equally fast there, the best at all hints."""
        facts = {hint: self._facts(bound, each.args, each) for hint, each in sized.items()}
        timed = {k: self._timed[facts[k].arguments] for k in chosen if chosen[k].how in _TIMED}
        found = {hint: choice.variant for hint, choice in chosen.items()}
        # A config that is faster by less than the spread was not chosen, and counts as equal.
        least = {k: timed[k][found[k]].median for k in timed}
        times = {
            k: {c: max(o.median, least[k]) for c, o in timed[k].items() if o.usable} for k in timed
        }

        def close(one: str, other: str) -> float:
            return closeness(sized[one].sizes, sized[other].sizes)

        for hint in times:
            config, quickest = most_general(times, hint, close), found[hint]
            if config != quickest:
                found[hint] = config
                self._note(facts[hint], config, sized[hint].shapes)
                self._notices.each_time(
                    f"for sizes {hint} {config!r}, as fast as {quickest!r}, and better at others"
                )
        return found

    def _origins(self, bound: Bound, args: tuple[Any, ...]) -> Origins:
        """Which sizes of the arguments the sizes of the results come from."""
        call = self.host.configured(bound.function, self._space.first)
        made: list[Any] = []

        def run(given: tuple[Any, ...]) -> Any:
            return ahead.run_without_memory(call, given, made=made)

        found: Origins = ()
        try:
            found = origins(run, args, self.host.parameters)
        except NotFollowed as problem:
            words = f"its size_hints use the sizes of its arguments alone: {problem}"
            self._notices.once(words)
        ahead.check_left(self.host.name, made, "to find the sizes of its results")
        return found

    # -- one choice ------------------------------------------------------------------------------

    def _choice(
        self,
        bound: Bound,
        args: tuple[Any, ...],
        sized: Sized | None = None,
        *,
        untimed: bool = False,
    ) -> Choice[Config]:
        now = settings.now()
        facts = self._facts(bound, args, sized)
        shapes = facts.shapes
        shipped = self._shipped(bound, facts)
        if shipped is not None:
            return self._keep(facts, shapes, shipped)
        effort = cast("Effort", "none" if untimed else now.tune)
        searching = self._searching(self.judge)
        known = self._decided(searching, facts, effort)
        if known is not None:
            return known
        if effort == "none":
            near = None if untimed else self._nearest(facts, shapes)
            return near or _take_first(self._space.first, untimed)

        def has_found() -> bool:
            return searching.best(searching.known(facts)) is not None

        for_now = None if sized else self._for_now(searching, bound, args, facts, effort)
        if for_now is not None:
            return for_now
        background.drop(facts.strict)
        with turn(facts.strict, has_found) as waited:
            known = self._decided(searching, facts, effort, final=waited)
            if known is not None:
                return known
            choice = self._timed_choice(searching, bound, args, facts, effort, now)
            if searching.is_agreed(facts):  # perhaps on what another process has found
                agreed = self._timed[facts.arguments] = searching.known(facts)
                if searching.best(agreed) != choice.variant:
                    return self._decided(searching, facts, effort, final=True) or choice
            return choice

    def _decided(
        self, searching: KernelSearch, facts: Facts, effort: Effort, final: bool = False
    ) -> Choice[Config] | None:
        """The choice that follows from what is remembered; None if there is something to time.
        Nothing is where it is ``final``, as another process has just timed it, nor where the fleet
        agrees on a record."""
        known = searching.known(facts)
        best = searching.best(known)
        if best is None:
            return None
        done = searching.strategy(effort, known).done
        if not (final or effort == "none" or searching.is_agreed(facts)):
            if not done or searching.is_provisional(facts, known):
                return None
            if searching.agree(facts):  # perhaps on what another process has remembered
                return self._decided(searching, facts, effort, final=True)
        self._timed[facts.arguments] = known
        return self._keep(facts, facts.shapes, from_cache(best, known))

    def _timed_choice(
        self,
        searching: KernelSearch,
        bound: Bound,
        args: tuple[Any, ...],
        facts: Facts,
        effort: Effort,
        now: settings.Settings,
    ) -> Choice[Config]:
        known = searching.known(facts)
        budget = now.tune_budget or math.inf
        if searching.strategy(effort, known).done and searching.is_provisional(facts, known):
            budget = min(budget, AGAIN_ISOLATED if now.tune_isolate else AGAIN)
        try:
            isolate = now.tune_isolate
            return self._search(searching, bound, args, facts, effort, known, budget, isolate)[0]
        except torch.OutOfMemoryError as error:  # for copies of the arguments; a call needs none
            words = f"its configs are not timed, for lack of memory ({error})"
            self._notices.once(words, warn=True)
            best = searching.best(known)
            if best is None:
                return _take_first(self._space.first, untimed=True)
            self._timed[facts.arguments] = known
            return self._keep(facts, facts.shapes, from_cache(best, known))

    def _for_now(
        self,
        searching: KernelSearch,
        bound: Bound,
        args: tuple[Any, ...],
        facts: Facts,
        effort: Effort,
    ) -> Choice[Config] | None:
        """The nearest config, for a call that does not wait for a search; None if it waits. The
        search runs in the background, or once someone asks for it; in a sealed process not at
        all."""
        when = settings.now().tune_when
        if when == "call" or current.is_asked:
            return None
        near = self._nearest(facts, facts.shapes)
        if sealed.is_sealed():
            if near is not None:
                sealed.check("tuning", self.host.name, lambda: self.difference(bound))
            return near
        if when == "asked":
            why = "the first config, because TZERO_TUNE_WHEN is 'asked'"
            return near or Choice(self._space.first, "pinned", why)
        if near is None:
            return None
        later = Later(searching, facts, effort, self._notices, self._found_later)
        return later.begin(bound, args, near)

    def _found_later(self, found: Found) -> tuple[Choice[Config], Mapping[Config, Outcome]]:
        """Take what a search in the background has found; the choice, and what it follows from."""
        with TURN:
            if found.search is not None:
                self.searches[found.facts.arguments] = found.search
            self._timed[found.facts.arguments] = found.outcomes
            return self._keep(found.facts, found.facts.shapes, found.choice), found.outcomes

    def _shipped(self, bound: Bound, facts: Facts) -> Choice[Config] | None:
        """The config that the lookup table or a file has for this call. The table may also name the
        arguments without their sizes."""
        config = self._table.get(facts.arguments) or self._table.get(self.arguments(bound.key))
        if config is not None:
            return Choice.pretuned(config, f"the lookup table of {facts.kernel}")
        for known in files_in_use():
            answer = facts.find(known)
            if answer.config is not None and answer.config in self._space:
                return Choice.pretuned(answer.config, known.name)
            if answer.config is not None:
                words = f"{known.name} has {answer.config!r}, which is none of its configs"
                self._notices.once(words, warn=True)
            elif answer.verdict in ("other source", "other hardware"):
                self._notices.once(answer.reason, warn=answer.verdict == "other source")
        return None

    def _nearest(self, facts: Facts, shapes: Sequence[Sequence[int]]) -> Choice[Config] | None:
        """Without timing: the config of the nearest shapes for which one is known."""
        entries = {
            each.place: each
            for known in reversed(files_in_use())
            for each in known.entries
            if (each.source, each.hardware) == (facts.source, facts.hardware)
        }
        entries |= {each.place: each for each in self._chosen.values()}
        usable = [
            each
            for each in entries.values()
            if 0 < sum(map(len, each.shapes)) <= MOST_DIMS and each.config in self._space
        ]
        if not usable:
            return None
        hints = [Hint(each.config, each.shapes) for each in usable[: records.MOST_NEAR]]
        return Selector(hints, kernel=facts.kernel).nearest(tuple(map(tuple, shapes)))

    def _keep(
        self,
        facts: Facts,
        shapes: Sequence[Sequence[int]],
        choice: Choice[Config],
        found: Search | None = None,
    ) -> Choice[Config]:
        self._note(facts, choice.variant, shapes)
        if choice.provisional:
            self._provisional.add(facts.arguments)
        else:
            self._provisional.discard(facts.arguments)
        about = {"arguments": facts.arguments, "choice": choice, "search": found}
        self._notices.each_time(str(choice), about)
        return choice

    def _note(self, facts: Facts, config: Config, shapes: Sequence[Sequence[int]]) -> None:
        entry = self._chosen[facts.arguments] = facts.entry(config, shapes)
        bundled.note(entry)

    # -- searching -------------------------------------------------------------------------------

    def autotune(
        self,
        bound: Bound,
        args: tuple[Any, ...],
        *,
        effort: Effort | None = None,
        budget: float | None = None,
        isolate: bool | None = None,
        force: bool = False,
        tolerance: float | None = None,
        check: Check | None = None,
    ) -> Search:
        """Search now, and use the best config."""
        _check_autotune(self.host.name, self.space, args, budget)
        judge = _judge_of(self.host.name, self.judge, tolerance, check)
        searching = self._searching(judge)
        now = settings.now()
        effort = cast("Effort", now.tune if effort is None else effort)
        limit = (now.tune_budget or math.inf) if budget is None else budget
        alone = now.tune_isolate if isolate is None else isolate
        searches: list[Search] = []

        def tuned(given: tuple[Any, ...], sized: Sized | None = None) -> Choice[Config]:
            facts = replace(self._facts(bound, given, sized), judged=judge.text)
            background.drop(facts.strict)
            with nullcontext() if force else turn(facts.strict, lambda: searching.is_agreed(facts)):
                known = {} if force else searching.known(facts)
                choice, found = self._search(
                    searching, bound, given, facts, effort, known, limit, alone
                )
            searches.append(found)
            return choice

        with TURN, outside_recording():
            by_size = self._by_size(bound, args, tuned)
            if by_size is None:
                bound.choose(tuned(args))
                return searches[-1]
            bound.choose_by_size(by_size)
            hints = by_size.selector.hints  # several may have the same config
            numbered = [Hint(k, hint.inputs, hint.outputs) for k, hint in enumerate(hints)]
            return searches[Selector(numbered).nearest(by_size.shapes(args)).variant]

    def _search(
        self,
        searching: KernelSearch,
        bound: Bound,
        args: tuple[Any, ...],
        facts: Facts,
        effort: Effort,
        known: Mapping[Config, Outcome],
        budget: float,
        isolate: bool,
    ) -> tuple[Choice[Config], Search]:
        sealed.check("tuning", self.host.name, lambda: self.difference(bound))
        current.is_asked, outer = True, current.is_asked  # kernels that it calls are tuned first
        try:
            given = (args, facts, effort, known, budget, isolate)
            choice, found = searching.run(bound.function, *given)
        finally:
            current.is_asked = outer
        self.searches[facts.arguments] = found
        self._timed[facts.arguments] = found.outcomes
        return self._keep(facts, facts.shapes, choice, found), found

    # -- what is decided about -------------------------------------------------------------------

    def _facts(self, bound: Bound, args: tuple[Any, ...], sized: Sized | None = None) -> Facts:
        if self._source is None:
            self._source = source.digest(self.host.function)
        hardware, device = hardware_of(device_of(args))
        words = self.arguments(bound.key)
        shapes = shapes_of(args, self.host.parameters)
        if sized is not None:
            words, shapes = f"{words} with sizes {sized.stored}", sized.shapes
        judged = self.judge.text
        return Facts(self.host.name, self._source, words, hardware, device, shapes, judged)

    def arguments(self, key: Key) -> str:
        """The name of a key's arguments in a lookup table or a file: all of it but the device."""
        arity = len(self.host.parameters)
        return text((*key[:arity], *key[arity + 1 :]))

    def entries(self) -> list[Entry]:
        """The configs that were chosen so far, for `ship`."""
        with TURN:
            for arguments in sorted(self._provisional):
                words = f"the config that is shipped for {arguments} is provisional: tune it on a "
                self._notices.each_time(words + "quiet machine")
            return list(self._chosen.values())


def _take_first(first: Config, untimed: bool) -> Choice[Config]:
    why = "nothing can be timed now" if untimed else "effort 'none' times nothing"
    return Choice(first, "pinned", f"the first config, because {why}")


def _judge_of(kernel: str, judge: Judge, tolerance: float | None, check: Check | None) -> Judge:
    """The kernel's judge, with what is given in place of its options."""
    unfit = unfit_option(tolerance, check)
    if unfit is not None:
        option, problem, advice = unfit
        raise InvalidArgument(kernel=kernel, argument=option, problem=problem, advice=advice)
    return Judge(
        judge.tolerance if tolerance is None else tolerance,
        judge.check if check is None else check,
    )


def _check_autotune(
    kernel: str, space: Space | None, args: tuple[Any, ...], budget: float | None
) -> None:
    if space is None:
        raise InvalidArgument(
            kernel=kernel,
            problem="autotune has nothing to choose from",
            advice="Give it configs: tzero.kernel(configs=[...]).",
        )
    if budget is not None and not (type(budget) in (int, float) and budget > 0):
        raise InvalidArgument(
            kernel=kernel,
            argument="budget",
            problem=f"is {budget!r}",
            advice="Give it seconds, more than 0.",
        )
    why_not = why_not_now(args)
    if why_not:
        raise InvalidArgument(
            kernel=kernel,
            problem=f"its configs cannot be timed now: {why_not}",
            advice="Call autotune elsewhere, with plain tensors.",
        )
