"""One search for one kernel: its configs compiled ahead, timed, and the outcomes remembered.

::

    arguments ── Trial, or Isolated ──► bench ─┐
    configs ── prepare: compiles started ──────┼─► tuner.search ──► Search ──► cache, Choice
    what the cache has ── known ───────────────┘

Enters: a host function, its space of configs, and the arguments of a call. Leaves: a `Choice` and
the `Search` that it comes from. It must not know who asked for the search, nor where the choice is
used.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tzero import compile as compiling
from tzero import events, settings
from tzero.adapters import triton_launch
from tzero.adapters.torch_captures import between_captures
from tzero.arguments.host import Host
from tzero.config import Config
from tzero.errors import InvalidArgument, TuningFailed
from tzero.launches.ahead import Precompiled, precompile_host
from tzero.launches.current_call import current
from tzero.tune import source
from tzero.tune.child import ProcessState
from tzero.tune.elsewhere import search_elsewhere
from tzero.tune.facts import Facts
from tzero.tune.isolated import Isolated
from tzero.tune.judge import DEFAULT, Judge
from tzero.tune.notices import Notices
from tzero.tune.outcome import Outcome, best_of
from tzero.tune.records import Memory
from tzero.tune.search import Effort, Strategy, Tpe, strategy
from tzero.tune.select import Choice
from tzero.tune.space import Space
from tzero.tune.surroundings import Surroundings
from tzero.tune.trial import WRONG, Called, Seeded, Trial, device_of
from tzero.tune.tuner import BATCH, Bench, Search, search

__all__ = ["AGAIN", "AGAIN_ISOLATED", "KernelSearch", "from_cache"]

AGAIN = 3.0
"""Seconds that timing provisional results again may take."""

AGAIN_ISOLATED = 12.0
"""The same where a process has to be started."""

_timed_here: set[str] = set()  # keys that this process has searched for; protected by TURN

LEARNING = 8
"""How many configs are asked for at once from a strategy that learns from each result."""


class KernelSearch:
    """Searches among the configs of one kernel.

    ::

        searching = KernelSearch(host, space, as_written, Notices(host.name))
        known = searching.known(facts)
        choice, found = searching.run(function, args, facts, "quick", known, 60.0, False)
    """

    def __init__(
        self,
        host: Host[Any],
        space: Space,
        called: Called,
        notices: Notices,
        judge: Judge = DEFAULT,
    ) -> None:
        self._host = host
        self._space = space
        self._called = called  # candidates are called the way later calls will be
        self._notices = notices
        self._judge = judge

    @property
    def _first(self) -> Config:
        return self._space.first

    def known(self, facts: Facts) -> dict[Config, Outcome]:
        """The remembered outcomes of configs that are in the space now, the first config first.

        Results were compared with those of a reference. If the first config was judged wrong, or
        no config is left that was judged right, the verdicts are dropped: only configs that failed
        by themselves count."""
        record = Memory.of(settings.now()).record(facts.strict)
        found = {} if record is None else dict(record.outcomes)
        ordered = sorted(found, key=lambda config: config != self._first)
        listed = {config: config for config in self._space.listed or ()}  # in their own spelling
        known = {listed.get(each, each): found[each] for each in ordered if each in self._space}
        if _is_wrong(known.get(self._first)) or best_of(known) is None:
            return _without_verdicts(known)
        return known

    def is_agreed(self, facts: Facts) -> bool:
        """Whether the processes of a job agree on a record."""
        return Memory.of(settings.now()).agreed(facts.strict) is not None

    def agree(self, facts: Facts) -> bool:
        """Propose what is remembered to the processes of a job; return whether they agree on it, or
        on something else."""
        return Memory.of(settings.now()).agree(facts.strict) is not None

    def strategy(self, effort: Effort, known: Mapping[Config, Outcome]) -> Strategy:
        """The strategy of an effort, told what is known."""
        made = strategy(self._space, effort)
        for config, outcome in known.items():
            made.tell(config, outcome.median if outcome.usable else None)
        return made

    def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        facts: Facts,
        effort: Effort,
        known: Mapping[Config, Outcome],
        budget: float,
        isolate: bool,
    ) -> tuple[Choice[Config], Search]:
        """Search, and remember the outcomes; `TuningFailed` where no config works."""
        end = time.monotonic() + budget
        found = search_elsewhere(
            *(self._host, args, self._space, self._called, self._judge, facts),
            *(effort, known, budget, isolate, self._notices),
        ) or self.search_here(function, args, effort, known, end, isolate)
        _timed_here.add(facts.strict)
        if self._disagrees(found, known):
            anew = _without_verdicts(known)
            left = max(end - time.monotonic(), 0.0)
            return self.run(function, args, facts, effort, anew, left, isolate)
        return self._concluded(found, facts, known, budget)

    def run_apart(
        self,
        take: Callable[[], tuple[Any, ...]],
        facts: Facts,
        effort: Effort,
        known: Mapping[Config, Outcome],
        budget: float,
        state: ProcessState,
        ready: Callable[[], None],
        check: Callable[[], None],
    ) -> tuple[Choice[Config], Search]:
        """Search in a process of its own, in the state of the one that asks, and remember the
        outcomes. `take` returns the arguments, which are not held; `ready` is called before each
        config, and `check` while one is timed: either raises to end the search."""
        end = time.monotonic() + budget
        with between_captures():
            bench = Isolated(
                self._host,
                take(),
                reference=self._first,
                called=self._called,
                judge=self._judge,
                until=end,
                background=state,
                check=check,
            )
        with bench:
            found = self._search_apart(bench, effort, known, end, ready)
            _timed_here.add(facts.strict)
            if self._disagrees(found, known):
                known = _without_verdicts(known)
                found = self._search_apart(bench, effort, known, end, ready)
        return self._concluded(found, facts, known, budget)

    def _search_apart(
        self,
        bench: Isolated,
        effort: Effort,
        known: Mapping[Config, Outcome],
        end: float,
        ready: Callable[[], None],
    ) -> Search:
        plan = self.strategy(effort, known)
        return search(
            plan,
            lambda configs: dict.fromkeys(configs, ()),  # its process compiles each
            _Polite(bench, ready),
            known=known,
            first=self._first,
            budget=end - time.monotonic(),
            batch=LEARNING if isinstance(plan, Tpe) else BATCH,
            title=None,
        )

    def _disagrees(self, found: Search, known: Mapping[Config, Outcome]) -> bool:
        """Whether the first config is wrong by a reference that was timed earlier."""
        wrong = best_of(known) is not None and _is_wrong(found.outcomes.get(self._first))
        if wrong:
            self._notices.once("its first config disagrees with those timed earlier: all are timed")
        return wrong

    def _concluded(
        self, found: Search, facts: Facts, known: Mapping[Config, Outcome], budget: float
    ) -> tuple[Choice[Config], Search]:
        """Remember the outcomes of a search; the choice that follows from them."""
        has_reference = best_of(known) is not None
        failed = {repr(c): o.problem for c, o in found.outcomes.items() if not o.usable}
        best = found.best
        if best is None:
            raise TuningFailed(kernel=self._host.name, problems=failed)
        for config, problem in failed.items():
            self._notices.each_time(f"{config} is out: {problem}")
        if found.left_out:
            names = ", ".join(map(repr, found.left_out))
            words = f"not compiled and timed in the budget of {budget:g} s, and left out: {names}"
            self._notices.each_time(words)
        fresh = {step.config for step in found.steps}
        timed = {c: o for c, o in found.outcomes.items() if c in fresh or o is not known.get(c)}
        # One record holds only outcomes that were compared with the same reference.
        Memory.of(settings.now()).keep(facts.strict, timed, anew=not has_reference)
        if best in fresh or not known:
            choice = Choice.tuned(
                best,
                tried=len(found.outcomes) - len(failed),
                failed=len(failed),
                left_out=len(found.left_out),
                seconds=found.outcomes[best].median,
                kept=best == self._first != best_of(found.outcomes),
                provisional=found.provisional,
            )
            return choice, found
        return from_cache(best, found.outcomes), found

    def best(self, known: Mapping[Config, Outcome]) -> Config | None:
        """The config to use by what is known: the fastest, or the first config where none is faster
        by more than the spread."""
        return best_of(known, self._first)

    def is_provisional(self, facts: Facts, known: Mapping[Config, Outcome]) -> bool:
        """Whether the fastest are to be timed again: the machine was disturbed when another process
        timed them."""
        return facts.strict not in _timed_here and any(each.retries for each in known.values())

    def search_here(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        effort: Effort,
        known: Mapping[Config, Outcome],
        end: float,
        isolate: bool,
    ) -> Search:
        """Search in this process, until ``end`` by `time.monotonic`; remembers nothing."""
        device = device_of(args)
        plan = self.strategy(effort, known)
        around = Surroundings(functools.partial(source.reached, self._host.function))
        with self._bench(args, device, isolate, end, around) as bench, events.hushed():
            if isinstance(bench, Isolated) and not plan.done:
                bench.start()  # while configs are compiled
            return search(
                plan,
                functools.partial(self._prepare, function, device, bench.spare, around),
                bench,
                known=known,
                first=self._first,
                budget=end - time.monotonic(),
                together=device.type == "cpu",
                batch=LEARNING if isinstance(plan, Tpe) else BATCH,
                title=self._host.name,
                stop=compiling.service().stop,
            )

    @contextmanager
    def _bench(
        self,
        args: tuple[Any, ...],
        device: torch.device,
        isolate: bool,
        end: float,
        around: Surroundings,
    ) -> Iterator[Bench]:
        around.save()
        try:
            if isolate:
                with Isolated(
                    self._host,
                    args,
                    reference=self._first,
                    called=self._called,
                    judge=self._judge,
                    until=end,
                ) as alone:
                    yield alone
            else:
                made = functools.cache(functools.partial(self._called, self._host))
                yield Trial(made, args, device, self._first, None, self._judge, around)
        finally:
            around.restore()

    def _prepare(
        self,
        function: Callable[..., Any],
        device: torch.device,
        spare: Callable[[], tuple[Any, ...]],
        around: Surroundings,
        configs: Sequence[Config],
    ) -> dict[Config, list[Any]]:
        """Start compiling all these configs. To find what a config launches, the host function runs
        on spare arguments without launching anything. Where that does not work, the config compiles
        when it is timed."""
        found: dict[Config, list[Any]] = {}
        outer, current.is_trial = current.is_trial, True
        try:
            for config in configs:
                ahead = Precompiled()
                call = self._host.configured(function, config)
                try:
                    with Seeded(device), around.watched():
                        precompile_host(self._host.name, call, spare(), ahead, spoiling=True)
                except InvalidArgument as error:
                    lacking = error.__cause__
                    if isinstance(lacking, AttributeError) and lacking.obj == config:
                        raise self._missing_name(lacking.name, config) from lacking
                    self._notices.once(f"its configs are compiled one by one: {error.problem}")
                except Exception as error:
                    # An error of Triton for one config comes again when the config is tried, and
                    # counts against it alone. An unknown name is a mistake in the configs.
                    unknown = triton_launch.unknown_keyword(error)
                    if unknown is not None:
                        raise self._unknown_name(unknown, config) from error
                found[config] = list(ahead.values())
        finally:
            current.is_trial = outer
        return found

    def _unknown_name(self, name: str, config: Config) -> InvalidArgument:
        return InvalidArgument(
            kernel=self._host.name,
            problem=f"{config!r} has {name!r}, which the Triton kernel that it launches does not "
            "take",
            advice="Correct the name, or leave it out.",
        )

    def _missing_name(self, name: str | None, config: Config) -> InvalidArgument:
        return InvalidArgument(
            kernel=self._host.name,
            problem=f"{config!r} has no {name!r}, which its host function reads",
            advice="Correct the name, or add it to this config.",
        )


class _Polite:
    """A bench that asks before each config."""

    def __init__(self, bench: Isolated, ready: Callable[[], None]) -> None:
        self._bench, self._ready = bench, ready

    def set_reference(self, config: Config) -> None:
        self._bench.set_reference(config)

    def spare(self) -> Any:
        return self._bench.spare()

    def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
        self._ready()
        found = self._bench.outcome(config, budget=budget, best=best)
        if found.passing:  # its process may have been ended because this one ends
            self._ready()
        return found


def from_cache(best: Config, known: Mapping[Config, Outcome]) -> Choice[Config]:
    """The choice of a config that was timed in an earlier search."""
    found = known[best]
    return Choice.cached(best, "the local cache", found.median, provisional=found.retries > 0)


def _is_wrong(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.problem.startswith(WRONG)


def _without_verdicts(known: Mapping[Config, Outcome]) -> dict[Config, Outcome]:
    """The outcomes that depend on no reference: configs that failed by themselves."""
    return {c: o for c, o in known.items() if not o.usable and not _is_wrong(o)}
