"""Which config a bound kernel gets: known ahead, remembered, nearest, or found by a search.

::

    a first call ── only one, or set_config ─────────────────────────────► pinned
                 ├─ a lookup table, a file of `tzero.pretuned` has it ───► pretuned
                 ├─ an earlier search on this machine found it ──────────► cached
                 ├─ size_hints, or effort "none": what is nearest ───────► nearest
                 └─ compiled side by side, timed, compared ──────────────► tuned

Enters: a bound kernel and the arguments of its first call. Leaves: a `Choice` on the bound kernel,
which says why it was made; what a search found is remembered. It must not know how calls are made
or where bound kernels are kept.

One search runs at a time in a process: two would time each other. Where nothing can be timed, as in
a CUDA graph's capture or with tensors that have no memory, the call goes on with what is known, and
a later call decides.
"""

from __future__ import annotations

import functools
import math
import os
import platform
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
import triton

from tzero import events, settings
from tzero.adapters import intercept, torch_modes, triton_launch
from tzero.adapters.torch_internals import DisableTorchFunction, disable_current_modes
from tzero.arguments.host import Host, outside
from tzero.arguments.key import Key
from tzero.arguments.situation import TENSORS
from tzero.arguments.text import text
from tzero.config import Config
from tzero.errors import InvalidArgument, InvalidKernel, TuningFailed
from tzero.launches import ahead as precompiling
from tzero.launches.ahead import Precompiled, precompile_host
from tzero.launches.current_call import current
from tzero.tune import records, source
from tzero.tune.by_size import (
    BySize,
    NotFollowed,
    NotResizable,
    Origins,
    most_general,
    origins,
    resized,
    shapes_of,
)
from tzero.tune.copying import tensors_in
from tzero.tune.isolated import Isolated
from tzero.tune.records import Entry, Memory, Outcome, Pretuned
from tzero.tune.search import Effort, Strategy, Tpe, strategy
from tzero.tune.select import MOST_DIMS, Choice, Hint, Selector
from tzero.tune.space import Space
from tzero.tune.trial import WRONG, Seeded, Trial, as_written, device_of
from tzero.tune.tuner import BATCH, Bench, Search, search

__all__ = ["Facts", "Tuning", "pretuned", "ship"]

R = TypeVar("R")

LEARNING = 8
"""How many configs a strategy that learns is asked for at once."""

_TIMED = ("tuned", "cached")
"""How choices were made of which it is known what each config took."""

_turn = threading.RLock()  # whoever times candidates has it
os.register_at_fork(after_in_child=lambda: _turn._at_fork_reinit())  # type: ignore[attr-defined]

_files: list[Pretuned] = []
"""What `pretuned` has read, the latest first."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a config is chosen for: what it is remembered under, and found by.

    >>> Facts("add", "ab12", "f32[4]", "cuda:sm_90", "NVIDIA H200").strict[:24]
    '{"arguments":"f32[4]","d'
    """

    kernel: str
    source: str
    arguments: str
    hardware: str
    device: str
    shapes: tuple[tuple[int, ...], ...] = ()
    """Those that are timed; of dynamic shapes, the arguments do not say them."""

    @property
    def strict(self) -> str:
        """The key of the local memory: all that has a say in which config is fastest."""
        return records.strict(
            source=self.source,
            arguments=self.arguments,
            hardware=self.hardware,
            device=self.device,
            shapes=str(self.shapes),
            triton=triton.__version__,
            torch=str(torch.__version__),
        )

    def find(self, known: Pretuned) -> records.Answer:
        """What is known ahead for exactly this."""
        return known.find(
            kernel=self.kernel,
            source=self.source,
            arguments=self.arguments,
            hardware=self.hardware,
        )

    def entry(self, config: Config, shapes: Iterable[Sequence[int]]) -> Entry:
        """A config for this, to be shipped."""
        return Entry(
            self.kernel,
            self.source,
            self.arguments,
            self.hardware,
            config,
            tuple(tuple(each) for each in shapes),
        )


class Bound(Protocol):
    """What a choice of config needs of a bound kernel, and how the choice is told to it."""

    key: Key
    function: Callable[..., Any]
    undecided: bool

    def choose(self, choice: Choice[Config], *, settled: bool = True) -> None:
        """Make later calls with the config of a choice; `settled`: until another one is made."""

    def choose_by_size(self, by_size: BySize) -> None:
        """Make later calls with the config that is chosen for the sizes of their tensors."""


class Tuning(Generic[R]):
    """How the bound kernels of one kernel get their configs."""

    def __init__(
        self,
        host: Host[R],
        space: Space | None,
        lookup: Mapping[str, Config] = MappingProxyType({}),
        size_hints: Sequence[int] = (),
        replayed: Callable[[Host[R], Config], Callable[..., R]] | None = None,
    ) -> None:
        self.host = host
        self._replayed = replayed or as_written  # how candidates are called: as calls will be
        self.space = space
        self.size_hints = tuple(size_hints)
        self._table = dict(lookup)
        self._source: str | None = None
        self._tuned: dict[str, Entry] = {}  # what was chosen for which arguments, to be shipped
        self._timed: dict[str, Mapping[Config, Outcome]] = {}  # by the arguments, as above
        self._told: set[str] = set()
        self.searches: dict[str, Search] = {}

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one config that a call may get."""
        return self.space is not None and (self.space.count() != 1 or bool(self._table))

    # -- at a first call -------------------------------------------------------------------------

    def decide(self, bound: Bound, args: tuple[Any, ...]) -> None:
        """Choose the config of a bound kernel, whose first call has these arguments."""
        with _turn:
            if not bound.undecided:
                return  # another thread has
            why_not = _obstacle(args)
            if why_not:
                self._say(f"its configs are not timed now: {why_not}")
                bound.choose(self._choice(bound, args, untimed=True), settled=False)
                return
            with _undisturbed():
                made = self._by_size(bound, args, functools.partial(self._choice, bound))
                self._settle(bound, self._choice(bound, args) if made is None else made)

    def _settle(self, bound: Bound, made: BySize | Choice[Config]) -> None:
        """Use what was decided, unless someone has asked for a config meanwhile."""
        if not bound.undecided:
            return
        if isinstance(made, BySize):
            bound.choose_by_size(made)
        else:
            bound.choose(made)

    def _by_size(
        self,
        bound: Bound,
        args: tuple[Any, ...],
        choose: Callable[[tuple[Any, ...], int], Choice[Config]],
    ) -> BySize | None:
        """What chooses among the size hints, each with a config of its own; None where there are
        none, or where these arguments cannot be had in other sizes."""
        names = self.host.parameters
        try:
            sized = {hint: resized(args, names, hint) for hint in self.size_hints}
        except NotResizable as error:
            self._say(f"size_hints are not used: {error}", warn=True)
            return None
        if not sized:
            return None
        chosen = self._general(bound, sized, self._each_hint(sized, choose))
        came_from = self._origins(bound, args)
        hints = []
        for hint in chosen:
            given = shapes_of(sized[hint], names)
            results = [tuple(size.of(given) for size in each) for each in came_from]
            hints.append(Hint(chosen[hint], given, results))
        return BySize(hints, came_from, names)

    def _each_hint(
        self,
        sized: Mapping[int, tuple[Any, ...]],
        choose: Callable[[tuple[Any, ...], int], Choice[Config]],
    ) -> dict[int, Choice[Config]]:
        """What is chosen for each hint; one at which no config works is left out."""
        chosen: dict[int, Choice[Config]] = {}
        failures: dict[int, TuningFailed] = {}
        for hint, args in sized.items():
            try:
                chosen[hint] = choose(args, hint)
            except TuningFailed as error:
                failures[hint] = error
        for hint, failure in failures.items():
            if not chosen:
                raise failure
            self._say(f"its size hint {hint} is not used: no config works there", warn=True)
        return chosen

    def _general(
        self,
        bound: Bound,
        sized: Mapping[int, tuple[Any, ...]],
        chosen: Mapping[int, Choice[Config]],
    ) -> dict[int, Config]:
        """The config of each hint: where it was timed, with an eye to the other hints."""
        facts = {hint: self._facts(bound, args, hint) for hint, args in sized.items()}
        timed = {k: self._timed[facts[k].arguments] for k in chosen if chosen[k].how in _TIMED}
        times = {k: {c: o.median for c, o in timed[k].items() if o.usable} for k in timed}
        found = {hint: choice.variant for hint, choice in chosen.items()}
        for hint in times:
            config, fastest = most_general(times, hint), found[hint]
            if config != fastest:
                found[hint] = config
                shapes = shapes_of(sized[hint], self.host.parameters)
                self._tuned[facts[hint].arguments] = facts[hint].entry(config, shapes)
                words = f"for sizes {hint} {config!r}, as fast as {fastest!r}, and better at others"
                events.emit(events.Event("tune", self.host.name, words))
        return found

    def _origins(self, bound: Bound, args: tuple[Any, ...]) -> Origins:
        """Where the sizes of the results come from."""
        call = self.host.configured(bound.function, self._first)
        made: list[Any] = []

        def run(given: tuple[Any, ...]) -> Any:
            return precompiling.run_without_memory(call, given, made=made)

        found: Origins = ()
        try:
            found = origins(run, args, self.host.parameters)
        except NotFollowed as problem:
            self._say(f"its size_hints go by the sizes of its arguments alone: {problem}")
        precompiling.check_left(self.host.name, made, "to find the sizes of its results")
        return found

    @property
    def _space(self) -> Space:
        assert self.space is not None  # who has nothing to choose from does not ask
        return self.space

    @property
    def _first(self) -> Config:
        return self._space.first

    # -- one choice ------------------------------------------------------------------------------

    def _choice(
        self,
        bound: Bound,
        args: tuple[Any, ...],
        hint: int | None = None,
        *,
        untimed: bool = False,
    ) -> Choice[Config]:
        now = settings.now()
        facts = self._facts(bound, args, hint)
        shapes = shapes_of(args, self.host.parameters)
        ahead = self._ahead(bound, facts)
        if ahead is not None:
            return self._kept(facts, shapes, ahead)
        effort = cast("Effort", "none" if untimed else now.tune)
        known = self._known(facts)
        plan = self._strategy(effort, known)
        best = _fastest(known)
        if best is not None and (plan.done or effort == "none"):
            self._timed[facts.arguments] = known
            return self._kept(facts, shapes, self._remembered(best, known))
        if effort == "none":
            return self._taken_first(untimed) if untimed else self._near(facts, shapes)
        budget = now.tune_budget or math.inf
        try:
            return self._searched(bound, args, facts, effort, known, budget, now.tune_isolate)[0]
        except torch.OutOfMemoryError as error:  # of copies of the arguments: a call needs none
            self._say(f"its configs are not timed, for lack of memory ({error})", warn=True)
            return self._taken_first(untimed=True)

    def _ahead(self, bound: Bound, facts: Facts) -> Choice[Config] | None:
        """What a lookup table or a file has for exactly these facts; a table may have the arguments
        whatever their sizes are."""
        config = self._table.get(facts.arguments) or self._table.get(self.arguments(bound.key))
        if config is not None:
            return Choice.pretuned(config, f"the lookup table of {facts.kernel}")
        for known in _files:
            answer = facts.find(known)
            if answer.config is not None and answer.config in self._space:
                return Choice.pretuned(answer.config, known.name)
            if answer.config is not None:
                words = f"{known.name} has {answer.config!r}, which is none of its configs"
                self._say(words, warn=True)
            elif answer.verdict in ("other source", "other hardware"):
                self._say(answer.reason, warn=answer.verdict == "other source")
        return None

    def _known(self, facts: Facts) -> dict[Config, Outcome]:
        """What earlier searches found, of configs that are still to be tried; the first first.
        Where the first was wrong by another, or no other is left that was right, it does not count
        who was right then."""
        record = Memory.of(settings.now()).record(facts.strict)
        found = {} if record is None else dict(record.outcomes)
        ordered = sorted(found, key=lambda config: config != self._first)
        listed = {config: config for config in self._space.listed or ()}  # as they were written
        known = {listed.get(each, each): found[each] for each in ordered if each in self._space}
        if _is_wrong(known.get(self._first)) or _fastest(known) is None:
            return _without_reference(known)
        return known

    def _strategy(self, effort: Effort, known: Mapping[Config, Outcome]) -> Strategy:
        made = strategy(self._space, effort)
        for config, outcome in known.items():
            made.tell(config, outcome.median if outcome.usable else None)
        return made

    def _remembered(self, best: Config, known: Mapping[Config, Outcome]) -> Choice[Config]:
        return Choice.cached(best, "the local cache", known[best].median)

    def _near(self, facts: Facts, shapes: Sequence[Sequence[int]]) -> Choice[Config]:
        """With no timing: the config of the nearest shapes for which one is known."""
        entries = {
            each.place: each
            for known in reversed(_files)
            for each in known.entries
            if (each.source, each.hardware) == (facts.source, facts.hardware)
        }
        entries |= {each.place: each for each in self._tuned.values()}
        usable = [
            each
            for each in entries.values()
            if 0 < sum(map(len, each.shapes)) <= MOST_DIMS and each.config in self._space
        ]
        if not usable:
            return self._taken_first(False)
        hints = [Hint(each.config, each.shapes) for each in usable[: records.MOST_NEAR]]
        return Selector(hints, kernel=facts.kernel).nearest(tuple(map(tuple, shapes)))

    def _taken_first(self, untimed: bool) -> Choice[Config]:
        by = "nothing can be timed now, which" if untimed else "effort 'none'"
        return Choice.pinned(self._first, by=by)

    def _kept(
        self, facts: Facts, shapes: Sequence[Sequence[int]], choice: Choice[Config]
    ) -> Choice[Config]:
        self._tuned[facts.arguments] = facts.entry(choice.variant, shapes)
        events.emit(events.Event("tune", facts.kernel, str(choice)))
        return choice

    # -- searching -------------------------------------------------------------------------------

    def autotune(
        self,
        bound: Bound,
        args: tuple[Any, ...],
        effort: Effort | None,
        budget: float | None,
        isolate: bool | None,
        force: bool,
    ) -> Search:
        """Search now, and use what is found."""
        if self.space is None:
            raise InvalidArgument(
                kernel=self.host.name,
                problem="autotune has nothing to choose from",
                advice="Give it configs: tzero.kernel(configs=[...]).",
            )
        if budget is not None and not (type(budget) in (int, float) and budget > 0):
            raise InvalidArgument(
                kernel=self.host.name,
                argument="budget",
                problem=f"is {budget!r}",
                advice="Give it seconds, more than 0.",
            )
        why_not = _obstacle(args)
        if why_not:
            raise InvalidArgument(
                kernel=self.host.name,
                problem=f"its configs cannot be timed now: {why_not}",
                advice="Call autotune outside of that, with plain tensors.",
            )
        now = settings.now()
        effort = cast("Effort", now.tune if effort is None else effort)
        limit = (now.tune_budget or math.inf) if budget is None else budget
        alone = now.tune_isolate if isolate is None else isolate
        searches: list[Search] = []

        def tuned(given: tuple[Any, ...], hint: int | None = None) -> Choice[Config]:
            facts = self._facts(bound, given, hint)
            known = {} if force else self._known(facts)
            choice, found = self._searched(bound, given, facts, effort, known, limit, alone)
            searches.append(found)
            return choice

        with _turn, _undisturbed():
            by_size = self._by_size(bound, args, tuned)
            if by_size is None:
                bound.choose(tuned(args))
                return searches[-1]
            bound.choose_by_size(by_size)
            hints = by_size.selector.hints  # of which several may have one config
            numbered = [Hint(k, hint.inputs, hint.outputs) for k, hint in enumerate(hints)]
            return searches[Selector(numbered).nearest(by_size.shapes(args)).variant]

    def _searched(
        self,
        bound: Bound,
        args: tuple[Any, ...],
        facts: Facts,
        effort: Effort,
        known: Mapping[Config, Outcome],
        budget: float,
        isolate: bool,
    ) -> tuple[Choice[Config], Search]:
        device = device_of(args)
        plan = self._strategy(effort, known)
        with self._bench(args, device, isolate) as bench, events.hushed():
            found = search(
                plan,
                functools.partial(self._prepare, bound, device, bench.spare),
                bench,
                known=known,
                budget=budget,
                together=device.type == "cpu",
                batch=LEARNING if isinstance(plan, Tpe) else BATCH,
                title=self.host.name,
            )
        referred = _fastest(known) is not None
        if referred and _is_wrong(found.outcomes.get(self._first)):
            self._say("its first config computes something else than what was timed earlier")
            anew = _without_reference(known)
            return self._searched(bound, args, facts, effort, anew, budget, isolate)
        failed = {repr(c): o.problem for c, o in found.outcomes.items() if not o.usable}
        best = found.best
        if best is None:
            raise TuningFailed(kernel=self.host.name, problems=failed)
        for config, problem in failed.items():
            words = f"{config} is out: {problem}"
            events.emit(events.Event("tune", facts.kernel, words))
        fresh = {step.config for step in found.steps}
        timed = {c: o for c, o in found.outcomes.items() if c in fresh or o is not known.get(c)}
        lasting = {c: o for c, o in timed.items() if "OutOfMemoryError" not in o.problem}
        # What is kept together was held against each other.
        Memory.of(settings.now()).keep(facts.strict, lasting, anew=not referred)
        self.searches[facts.arguments] = found
        self._timed[facts.arguments] = found.outcomes
        seconds = found.outcomes[best].median
        if best in fresh or not known:
            tried = len(found.outcomes) - len(failed)
            choice = Choice.tuned(best, tried=tried, failed=len(failed), seconds=seconds)
        else:
            choice = self._remembered(best, found.outcomes)
        return self._kept(facts, shapes_of(args, self.host.parameters), choice), found

    @contextmanager
    def _bench(self, args: tuple[Any, ...], device: torch.device, isolate: bool) -> Iterator[Bench]:
        if isolate:
            with Isolated(self.host, args, reference=self._first, called=self._replayed) as alone:
                yield alone
        else:
            made = functools.cache(functools.partial(self._replayed, self.host))
            yield Trial(made, args, device, self._first)

    def _prepare(
        self,
        bound: Bound,
        device: torch.device,
        spare: Callable[[], tuple[Any, ...]],
        configs: Sequence[Config],
    ) -> dict[Config, list[Any]]:
        """Have configs compiled, all at once: the host function is called with arguments to spare,
        and its launches are not made. Where these cannot be known before, configs compile when they
        are timed."""
        found: dict[Config, list[Any]] = {}
        outer, current.is_trial = current.is_trial, True
        try:
            for config in configs:
                ahead = Precompiled()
                call = self.host.configured(bound.function, config)
                try:
                    with Seeded(device):
                        precompile_host(self.host.name, call, spare(), ahead, spoiling=True)
                except InvalidArgument as error:
                    lacking = error.__cause__
                    if isinstance(lacking, AttributeError) and lacking.obj == config:
                        raise self._missing_name(lacking.name, config) from lacking
                    self._say(f"its configs are compiled one by one: {error.problem}")
                except Exception as error:
                    # What Triton says of one config comes again when that is tried, and is its
                    # problem alone; but a name that does not exist is a mistake of who wrote it.
                    unknown = triton_launch.unknown_keyword(error)
                    if unknown is not None:
                        raise self._unknown_name(unknown, config) from error
                found[config] = list(ahead.values())
        finally:
            current.is_trial = outer
        return found

    def _unknown_name(self, name: str, config: Config) -> InvalidArgument:
        return InvalidArgument(
            kernel=self.host.name,
            problem=f"{config!r} has {name!r}, which the Triton kernel that it launches does not "
            "take",
            advice="Correct the name, or leave it out.",
        )

    def _missing_name(self, name: str | None, config: Config) -> InvalidArgument:
        return InvalidArgument(
            kernel=self.host.name,
            problem=f"{config!r} has no {name!r}, which its host function looks up",
            advice="Correct the name, or give this config one, too.",
        )

    # -- facts -----------------------------------------------------------------------------------

    def _facts(self, bound: Bound, args: tuple[Any, ...], hint: int | None = None) -> Facts:
        if self._source is None:
            self._source = source.digest(self.host.function)
        hardware, device = _hardware(device_of(args))
        words = self.arguments(bound.key) + ("" if hint is None else f" with sizes {hint}")
        shapes = shapes_of(args, self.host.parameters)
        return Facts(self.host.name, self._source, words, hardware, device, shapes)

    def arguments(self, key: Key) -> str:
        """How a lookup table or a file names the arguments of a key: all of it but the device."""
        arity = len(self.host.parameters)
        return text((*key[:arity], *key[arity + 1 :]))

    def entries(self) -> list[Entry]:
        """What was chosen so far, for `ship`."""
        with _turn:
            return list(self._tuned.values())

    def _say(self, reason: str, warn: bool = False) -> None:
        """Tell something once."""
        if reason in self._told:
            return
        self._told.add(reason)
        if warn:
            warnings.warn(f"{self.host.name}: {reason}.", stacklevel=outside()[1] + 1)
        events.emit(events.Event("tune", self.host.name, reason))


def _fastest(known: Mapping[Config, Outcome]) -> Config | None:
    usable = [config for config in known if known[config].usable]
    return min(usable, key=lambda config: known[config].median, default=None)


def _is_wrong(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.problem.startswith(WRONG)


def _without_reference(known: Mapping[Config, Outcome]) -> dict[Config, Outcome]:
    """What is known of configs whatever others compute: that they fail."""
    return {c: o for c, o in known.items() if not o.usable and not _is_wrong(o)}


def _obstacle(args: tuple[Any, ...]) -> str:
    """Why nothing can be timed now; mostly empty."""
    if current.is_trial:
        return "the host function is looked through for what it launches"
    interpreting = triton_launch.interpreting()
    if interpreting:
        return interpreting
    if intercept.here.recorder is None:  # else the modes are those of a recording
        why = torch_modes.obstacle()
        if why and not why.startswith(("a torch function mode", "autocast")):
            return why
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is captured"
    for tensor in tensors_in(args):
        if type(tensor) not in TENSORS:
            return f"an argument is a {type(tensor).__name__}"
        if tensor.device.type not in ("cpu", "cuda"):
            return f"an argument is on {tensor.device}"
    return ""


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Out of the recording that this thread may be in: what is timed is no part of it."""
    if intercept.here.recorder is None:
        yield
        return
    with intercept.paused(), DisableTorchFunction(), disable_current_modes():
        yield


def _hardware(device: torch.device) -> tuple[str, str]:
    """The class of a device, and what is known of it beyond that."""
    if device.type != "cuda":
        return (
            records.cpu_class(),
            f"{platform.machine()} {os.cpu_count()} {torch.get_num_threads()}",
        )
    facts = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return f"hip:{facts.gcnArchName.partition(':')[0]}", facts.name
    return records.cuda_class(facts.major, facts.minor), facts.name


# -- ahead of time ---------------------------------------------------------------------------------


def pretuned(path: str | os.PathLike[str]) -> Pretuned:
    """Use the configs of a file that `ship` has written, from now on and in the whole process: a
    kernel finds there what its source, the arguments of a call and the class of the hardware ask
    for, and times nothing then.

    ::

        tzero.pretuned("pretuned.json")

    A file that has nothing for this hardware gives a warning. Of several files the latest counts.
    """
    known = Pretuned.read(path)
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    foreign = known.foreign(_hardware(device)[0])
    if foreign:
        warnings.warn(f"{foreign}.", stacklevel=2)
    with _turn:
        _files[:] = [known, *(each for each in _files if each.name != known.name)]
    return known


def ship(path: str | os.PathLike[str], kernels: Iterable[Any]) -> Pretuned:
    """Write the configs that kernels have chosen in this process to a file, for `pretuned`; what a
    file there has of other kernels, arguments and hardware stays.

    ::

        matmul.autotune((a, b), effort="full")
        tzero.ship("pretuned.json", [matmul])
    """
    entries: list[Entry] = []
    for kernel in kernels:
        if not isinstance(getattr(kernel, "tuning", None), Tuning):
            raise InvalidKernel(
                kernel=getattr(kernel, "__name__", repr(kernel)),
                problem="ship was given it, and it is no kernel of tzero's",
                advice="Put @tzero.kernel(configs=[...]) on it.",
            )
        mine = kernel.tuning.entries()
        if not mine:
            raise InvalidKernel(
                kernel=kernel.name,
                problem="ship was given it, and no config was chosen for it yet",
                advice=f"Call {kernel.name}.autotune(args) for each shape that matters.",
            )
        entries += mine
    latest = {entry.place: entry for entry in entries}  # kernels may be made of one function
    made = Pretuned(latest.values(), os.fspath(path))
    if os.path.exists(path):
        made = records.merge(Pretuned.read(path), made).pretuned
    made.write(path)
    return made
