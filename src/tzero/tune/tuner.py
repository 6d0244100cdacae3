"""One search: configs are compiled in parallel and timed one after the other.

::

    strategy ──ask──► configs ──prepare──► futures ──as they are done──► bench ──► Outcome
        ▲                                                                             │
        └────────────────────────────────────tell────────────────────────────────────┘
    the fastest ──► rounds: timed again, fewer in each ──► Search

Enters: a strategy, a function that starts compiles, and a bench that times one config. Leaves: a
`Search` with every outcome, in order, and how it ended. A candidate that does not compile, raises,
or computes wrong results gets an outcome with a problem; the search goes on. It must not know
kernels, arguments, or where outcomes are remembered.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from tzero.config import Config
from tzero.shown import first_line, in_cells
from tzero.tune.failures import passes
from tzero.tune.outcome import Outcome, best_of
from tzero.tune.plot import svg
from tzero.tune.progress import Bar
from tzero.tune.rounds import MOST as MOST_ROUNDS
from tzero.tune.rounds import WITHIN, Rounds, finalists
from tzero.tune.search import Strategy
from tzero.tune.seconds import in_words
from tzero.tune.trial import ReferenceFailed

__all__ = ["Bench", "Ended", "Futures", "Search", "Step", "search"]

Futures = Mapping[Config, Sequence["Future[Any]"]]
Ended = Literal["searched", "budget", "interrupted"]

BATCH = 32
"""How many configs are compiled at once, where the strategy does not learn from results."""

EACH = 0.06
"""Seconds that timing one candidate may take."""

LEAST = 0.02
"""Seconds that the first candidate gets, even where the whole budget is less."""

ROUND = 0.02
"""Seconds for one candidate in each round in which the fastest are timed again."""

FIRST = 0.6
"""The share of the budget for which only the first config is waited for; then any is taken."""

STOPPING = 5.0
"""Seconds to wait for compiles to end that were stopped and are wanted again."""

FINALE = 0.2
"""The share of the budget that is kept for timing the fastest again."""

SHARE = 0.5
"""No round begins once the rounds have taken this share of the time before them. Only where calls
are long do rounds take so much, and long calls average out the noise of the machine."""

LONGER = 4.0
"""Seconds that rounds may take in any case, where the machine is disturbed, or where nothing else
is done."""

RETRIES = 3
"""How many later processes time a provisional result again."""


class Bench(Protocol):
    """Times one candidate, and compares its results with those of a reference.

    ::

        bench.set_reference(space.first)
        bench.outcome(config, budget=0.5, best=2e-5)
    """

    def set_reference(self, config: Config) -> None:
        """Compare all results with those of this config from now on."""

    def spare(self) -> Any:
        """Arguments like the timed ones, which a call may modify."""

    def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
        """The outcome of timing a config."""


@dataclass(frozen=True, slots=True)
class Step:
    """One candidate that was timed, and when."""

    at: float
    """Seconds since the search began."""
    config: Config
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search.

    >>> outcomes = {Config(B=1): Outcome(2e-5), Config(B=2): Outcome(1e-5)}
    >>> found = Search(outcomes, (), 0.5, "searched")
    >>> found.best
    Config(B=2)
    >>> print(found)
    2 configs in 0.5 s; the fastest is 2.00 times as fast as the first
          10 µs  Config(B=2)
          20 µs  Config(B=1)
    """

    outcomes: Mapping[Config, Outcome]
    """Every config whose outcome is known, the reference first; earlier searches included."""
    steps: tuple[Step, ...]
    """What was timed, in order."""
    seconds: float
    ended: Ended
    """``searched``: everything was tried; ``budget``: the time was up; ``interrupted``: by
    Ctrl-C."""
    left_out: tuple[Config, ...] = ()
    """Configs whose turn it was when the time was up; they were not compiled or not timed."""
    first: Config | None = None
    """The default config, which is the best unless another is faster by more than the spread."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcomes", MappingProxyType(dict(self.outcomes)))

    def __reduce__(self) -> tuple[Any, ...]:
        values = (self.steps, self.seconds, self.ended, self.left_out, self.first)
        return Search, (dict(self.outcomes), *values)

    @property
    def best(self) -> Config | None:
        """The fastest config, or the default one where no other is faster by more than the spread;
        None where none is usable."""
        return best_of(self.outcomes, self.first)

    @property
    def provisional(self) -> bool:
        """Whether the machine was so disturbed that a later process times the fastest again."""
        return self.best is not None and self.outcomes[self.best].retries > 0

    def plot(self, path: str | os.PathLike[str], title: str = "the search") -> None:
        """Write a picture of the search, as SVG: each candidate over time, and the best so far.

        ::

            matmul.autotune(a, b).plot("search.svg", "matmul, 512 x 512")
        """
        Path(path).write_text(svg(title, self.steps, self.best, self.outcomes), encoding="utf-8")

    __repr__ = first_line
    _repr_pretty_ = in_cells

    def __str__(self) -> str:
        usable = sorted(
            ((o.median, k, c) for k, (c, o) in enumerate(self.outcomes.items()) if o.usable),
        )
        failed = [(c, o.problem) for c, o in self.outcomes.items() if not o.usable]
        count = len(self.outcomes)
        ended = {"searched": "", "budget": ", then the time was up", "interrupted": ", interrupted"}
        head = f"{count} config{'s' * (count != 1)} in {self.seconds:.1f} s{ended[self.ended]}"
        if self.left_out:
            head += f" ({len(self.left_out)} left out)"
        if self.provisional:
            head += ", provisional"
        first = next(iter(self.outcomes.values()), None)
        if usable and usable[0][0] > 0 and first is not None and first.usable:
            gain = first.median / usable[0][0]
            head += f"; the fastest is {gain:.2f} times as fast as the first"
        rows = [f"  {in_words(median):>9}  {config!r}" for median, _, config in usable]
        rows += [f"     failed  {config!r}: {_line(problem)}" for config, problem in failed]
        rows += [f"   left out  {config!r}" for config in self.left_out]
        return "\n".join([head, *rows])


def search(
    strategy: Strategy,
    prepare: Callable[[Sequence[Config]], Futures],
    bench: Bench,
    *,
    known: Mapping[Config, Outcome] = MappingProxyType({}),
    first: Config | None = None,
    budget: float = math.inf,
    together: bool = False,
    batch: int = BATCH,
    title: str | None = "tuning",
    clock: Callable[[], float] = time.monotonic,
    stop: Callable[[Sequence[Future[Any]]], object] = lambda futures: None,
) -> Search:
    """Search for the fastest config. `known` are outcomes that the strategy was told before; the
    provisional ones among them are timed again. `first` is the default config. With
    `together`, everything is compiled before anything is timed, because both need the same cores.
    Ctrl-C ends the search with the best config so far; where there is none, it is raised.

    The budget counts compiling too. When it is used up, `stop` is given the compiles that have not
    ended, and their configs are left out. It does not end the search before one config works.
    Without a `title`, no progress is shown.

    ::

        search(strategy(space, "quick"), compile_all, bench, budget=60).best
    """
    run = _Run(strategy, prepare, bench, first, budget, together, batch, clock, stop)
    with nullcontext() if title is None else Bar(title, strategy.most) as bar:
        run.bar = bar
        try:
            run.recall(known)
            run.run()
            run.settle()
        except KeyboardInterrupt:
            if best_of(run.outcomes) is None:
                raise
            run.ended, run.left_out = "interrupted", []
    left_out = tuple(config for config in run.left_out if config not in run.outcomes)
    steps, seconds = tuple(run.steps), clock() - run.start
    return Search(run.outcomes, steps, seconds, run.ended, left_out, first)


class _Run:
    def __init__(
        self,
        strategy: Strategy,
        prepare: Callable[[Sequence[Config]], Futures],
        bench: Bench,
        first: Config | None,
        budget: float,
        together: bool,
        batch: int,
        clock: Callable[[], float],
        stop: Callable[[Sequence[Future[Any]]], object],
    ) -> None:
        self.strategy, self.prepare, self.bench, self.first = strategy, prepare, bench, first
        self.together, self.batch, self.clock, self.stop = together, batch, clock, stop
        self.start = clock()
        self.end = self.start + budget
        self.last_start = self.start + (1 - FINALE) * budget  # of a candidate's first timing
        self.left_out: list[Config] = []
        self.outcomes: dict[Config, Outcome] = {}
        self.steps: list[Step] = []
        self.ended: Ended = "searched"
        self.reference: Config | None = None
        self.chance = random.Random(0)
        self.spent = 0.0  # seconds of timing candidates
        self.began: float | None = None  # when the first candidate was timed
        self.bar: Bar | None = None

    def recall(self, known: Mapping[Config, Outcome]) -> None:
        """Start with what is known. The reference is the first config that is known to work."""
        self.outcomes.update(known)
        self.reference = next((config for config in known if known[config].usable), None)
        if self.reference is not None:
            self.bench.set_reference(self.reference)

    def run(self) -> None:
        while not self.strategy.done:
            if self.is_late():
                self.ended = "budget"
                return
            configs = self.strategy.ask(self.batch)
            if not configs:
                return
            self.left_out += configs
            try:
                self.time_all(configs)
            finally:
                self.left_out = [each for each in self.left_out if each not in self.outcomes]
            if self.left_out:
                self.ended = "budget"
                return

    def time_all(self, configs: Sequence[Config]) -> None:
        """Compile and time some configs, as far as the time allows."""
        pending: dict[Config, Sequence[Future[Any]]] = {}
        rest = list(configs)
        try:
            while rest and not self.is_late():
                begun = self.begin_compiling(rest)
                pending.update(begun)
                for config in self.ready(begun):
                    self.try_one(config, begun[config])
                    if self.is_late():
                        return
                if self.reference is not None:
                    return  # the others are not compiled in time
                rest = [each for each in rest if each not in self.outcomes]
                wait([each for futures in begun.values() for each in futures], timeout=STOPPING)
        finally:
            self.stop([each for futures in pending.values() for each in futures if not each.done()])

    def begin_compiling(self, configs: Sequence[Config]) -> Futures:
        """Start compiles, of one config at least, and of the others while there is time: without
        workers, each is compiled before this returns."""
        begun: dict[Config, Sequence[Future[Any]]] = {}
        start = self.clock()
        for config in configs:
            if begun:
                now = self.clock()
                each = (now - start) / len(begun)
                if now + each >= self.compile_end(len(begun)):
                    break
            begun.update(self.prepare([config]))
        return begun

    def ready(self, pending: Futures) -> Iterator[Config]:
        """The configs, as they become compiled. The first comes first, because the others are
        compared with it. Compiled candidates then come in random order: lists tend to go from small
        to large, and in that order each would be the best so far, and timed at length. Compiles
        that take too long are stopped, but not before one config can be tried."""
        waiting = list(pending)
        if self.together:
            self.compile_all(pending)
        elif self.reference is None and waiting:
            left = self.seconds_to(self.last_start)
            wait(pending[waiting[0]], timeout=None if left is None else FIRST * left)
        while waiting:
            done = [c for c in waiting if all(future.done() for future in pending[c])]
            late = [f for c in waiting for f in pending[c] if not f.done()]
            until = self.compile_end(len(done))
            if not done:
                limit = None if self.reference is None else self.seconds_to(until)
                if not wait(late, limit, return_when=FIRST_COMPLETED).done:
                    return
                continue
            if late and self.clock() >= until:
                self.stop(late)  # they would disturb the timing
                waiting = done
            config = done[0] if self.reference is None else self.chance.choice(done)
            waiting.remove(config)
            yield config

    def compile_all(self, pending: Futures) -> None:
        """Wait until all are compiled or the time is up; the progress bar counts them."""
        late = {each for futures in pending.values() for each in futures}
        while late:
            ready = sum(all(each.done() for each in futures) for futures in pending.values())
            if self.bar is not None:
                self.bar.show_compiled(ready, len(pending))
            until = self.seconds_to(self.compile_end(ready))
            done, late = wait(late, until, return_when=FIRST_COMPLETED)
            if not done:
                return

    def compile_end(self, ready: int) -> float:
        """When to stop compiling, where so many are compiled and have to be timed yet."""
        return self.last_start - (self.cost() * (ready + 1) if self.together else 0.0)

    def cost(self) -> float:
        """The seconds that timing one candidate takes."""
        return self.spent / len(self.steps) if self.spent else 2 * EACH

    def try_one(self, config: Config, futures: Sequence[Future[Any]]) -> None:
        failed = next(filter(None, map(_failure, futures)), None)
        if failed is not None:
            self.take(config, failed)
        else:
            self.time(config)

    def time(self, config: Config) -> None:
        start = self.clock()
        if self.began is None:
            self.began = start
        if self.reference is None:
            self.bench.set_reference(config)
        best = best_of(self.outcomes)
        try:
            outcome = self.bench.outcome(
                config,
                budget=max(min(EACH, self.left()), LEAST),
                best=None if best is None else self.outcomes[best].median,
            )
        except ReferenceFailed as error:  # it ran before, but may crash in a new process
            outcome = Outcome(problem=str(error), passing=True)
        if self.reference is None and outcome.usable:
            self.reference = config
        self.spent += self.clock() - start
        self.take(config, outcome)

    def take(self, config: Config, outcome: Outcome) -> None:
        self.outcomes[config] = outcome
        self.steps.append(Step(self.clock() - self.start, config, outcome))
        self.strategy.tell(config, outcome.median if outcome.usable else None)
        best = best_of(self.outcomes)
        if self.bar is not None:
            seconds = None if best is None else self.outcomes[best].median
            self.bar.show(len(self.outcomes), best, seconds, self.remaining())

    def settle(self) -> None:
        """Time the fastest again in rounds, so that a slow moment of the machine does not decide,
        and mark the outcomes as provisional where all moments were disturbed. In a later process
        they are `fresh` again."""
        again = {config for config, each in self.outcomes.items() if each.retries}
        timed = {step.config for step in self.steps}
        fresh = again | timed
        close = finalists(self.outcomes, fresh, self.first) if self.left() > 0 else []
        known = self.outcomes.keys() - timed
        rounds = Rounds(self.compiled(close), self.outcomes, self.first, known)
        start = self.clock()
        while len(rounds.configs) > 1 and self.goes_on(rounds, start):
            if not self.time_round(rounds):
                break
        disturbed = rounds.disturbed() if rounds.configs else self.was_disturbed()
        left = max((self.outcomes[config].retries for config in again), default=1) - 1
        retries = (RETRIES if self.steps else left) if disturbed else 0
        self.outcomes.update(rounds.concluded(retries))
        for config in fresh:
            outcome = self.outcomes[config]
            if outcome.usable and (config in again or config in close or config == self.best):
                self.outcomes[config] = replace(outcome, retries=retries)

    def was_disturbed(self) -> bool:
        """Whether the timing of the fastest, or of the default config, was disturbed."""
        compared = (self.outcomes.get(each) for each in (self.best, self.first) if each is not None)
        return any(each.disturbed for each in compared if each is not None)

    def compiled(self, configs: list[Config]) -> list[Config]:
        """Those of some finalists that are compiled. Known ones were compiled in another process,
        and come from the cache."""
        new = [each for each in configs if each not in {step.config for step in self.steps}]
        pending = self.begin_compiling(new) if new else {}
        futures = [each for found in pending.values() for each in found]
        late = wait(futures, self.seconds_to(self.end)).not_done
        if late:
            self.stop(list(late))
        return [
            config
            for config in configs
            if config not in new
            or (config in pending and all(f.done() and not _failure(f) for f in pending[config]))
        ]

    def goes_on(self, rounds: Rounds, start: float) -> bool:
        """Whether there is time for another round, and a need for it."""
        disturbed = rounds.disturbed()
        most = max(SHARE * (start - self.start), LONGER if disturbed or not self.steps else 0.0)
        if self.clock() > start + most:
            return False
        if rounds.count < len(WITHIN):
            return True
        return disturbed and not rounds.decided() and rounds.count < MOST_ROUNDS

    def time_round(self, rounds: Rounds) -> bool:
        """Time each finalist once; false where the round cannot be completed."""
        found = {}
        for config in rounds.configs:
            if self.left() <= 0:
                return False
            try:
                outcome = self.bench.outcome(config, budget=ROUND, best=None)
            except ReferenceFailed:
                return False  # results can no longer be compared: keep what was measured
            if outcome.passing:
                return False
            found[config] = outcome
        for config, outcome in found.items():
            if not outcome.usable:  # it was right at first, and is wrong or fails now
                self.outcomes[config] = outcome
                rounds.drop(config)
        if rounds.configs:
            rounds.add({config: found[config] for config in rounds.configs})
        return True

    @property
    def best(self) -> Config | None:
        return best_of(self.outcomes, self.first)

    def left(self) -> float:
        return self.end - self.clock()

    def is_late(self) -> bool:
        """Whether no further candidate is timed: not before one works and one was tried."""
        tried = self.reference is not None and bool(self.steps)
        return tried and self.clock() >= self.last_start

    def seconds_to(self, until: float) -> float | None:
        return None if until == math.inf else max(until - self.clock(), 0.0)

    def remaining(self) -> float | None:
        """An estimate of the seconds until the end."""
        most, done = self.strategy.most, len(self.steps)
        if most is None or not done or self.began is None:
            return None if self.end == math.inf else self.left()
        # Where all are compiled first, compiling is over; else it is most of the time of each.
        each = (self.clock() - (self.began if self.together else self.start)) / done
        return max(min(each * (most - len(self.outcomes)), self.left()), 0.0)


def _failure(future: Future[Any]) -> Outcome | None:
    """The outcome of a config whose compile failed; None where it did not."""
    try:
        error = future.exception()
    except CancelledError as cancelled:
        error = cancelled
    if error is None:
        return None
    problem = f"{type(error).__name__}: {_line(str(error))}"
    return Outcome(problem=problem, passing=passes(error))


def _line(text: str) -> str:
    """A text in one line: its first line, and its last one, where compilers put the reason; each
    cut to 300 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ends = lines[:1] + lines[1:][-1:]
    return " … ".join(end[:300] for end in ends)
