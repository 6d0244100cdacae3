"""One config, tried: run, compared with the reference config, and timed.

::

    config ── run on copies ── same results as the reference? ── measure ── still? ──► Outcome
                │                 │                                         │            ▲
                └─ it raises ─────┴─ they are wrong ────────────────────────┴─ problem ──┘

Enters: a function from a config to a call, arguments, and the reference config. Leaves: an
`Outcome` for each config; a config that fails has one too, and raises nothing. It must not know
which configs there are, nor in which process it runs.

The arguments are only read. All configs run on one set of copies, which is restored before each,
and with the same random seed. A config is right if it is so in all runs: with fresh memory filled
with each pattern of `tzero.tune.fresh`, and as later calls are made, before and after timing.
Memory that is not fresh, but that the reference overwrites as a whole whatever is in it, is filled
too (`tzero.tune.outputs`).
"""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch

from tzero.adapters.torch_internals import storage_id
from tzero.arguments.host import Host
from tzero.config import Config
from tzero.launches.current_call import current
from tzero.tune.compare import parts
from tzero.tune.copying import Copies, Location, tensors_in
from tzero.tune.failures import passes
from tzero.tune.fresh import PATTERNS, Filling, Pattern
from tzero.tune.judge import DEFAULT, Judge, Reference
from tzero.tune.outputs import filled, find, harmless
from tzero.tune.records import Outcome
from tzero.tune.surroundings import Surroundings
from tzero.tune.timing import Clock, clock_of, measure

__all__ = [
    "WRONG",
    "Called",
    "ReferenceFailed",
    "Seeded",
    "Trial",
    "as_written",
    "device_of",
    "problem_of",
]

WRONG = "its results are wrong"
"""The beginning of the problem of a config whose results differ from those of the reference."""

_LONGEST = 500  # characters of a problem


Called = Callable[[Host[Any], Config], Callable[..., Any]]
"""Makes a function of the arguments alone, from a host and a config."""


class ReferenceFailed(RuntimeError):
    """A config cannot be tried, because the reference does not run and there is nothing to compare
    with. `Trial.set_reference` sets another reference.

    >>> print(ReferenceFailed(Config(BLOCK=64), "ValueError: no"))
    the reference Config(BLOCK=64) does not run (ValueError: no). Make another config the reference.
    """

    def __init__(self, config: Config, problem: str) -> None:
        self.config = config
        self.problem = problem
        super().__init__(
            f"the reference {config!r} does not run ({problem}). Make another config the reference."
        )

    def __reduce__(self) -> tuple[type[ReferenceFailed], tuple[Config, str]]:
        return ReferenceFailed, (self.config, self.problem)


class Trial:
    """Tries configs of one function with the same arguments.

    >>> def scaled(config):
    ...     return lambda x: x.mul_(config.by)
    >>> trial = Trial(scaled, (torch.ones(3),), torch.device("cpu"), Config(by=2))
    >>> trial.outcome(Config(by=2), budget=0.1, best=None).usable
    True
    >>> trial.outcome(Config(by=3), budget=0.1, best=None).problem
    'its results are wrong: result is 3.0 at (0,), and the reference 2.0; 3 of 3 elements differ'
    """

    def __init__(
        self,
        host_call: Callable[[Config], Callable[..., Any]],
        args: tuple[Any, ...],
        device: torch.device,
        reference: Config,
        clock: Clock | None = None,
        judge: Judge = DEFAULT,
        around: Surroundings | None = None,
    ) -> None:
        self._host_call = host_call
        self._device = device
        self._clock = clock
        self._judge = judge
        self._copies = Copies(args)
        self._around = around or Surroundings()
        self._written: set[Location] = set()  # what the reference writes to around it
        self._outputs: tuple[torch.Tensor, ...] = ()  # what the reference overwrites as a whole
        self._globals: tuple[torch.Tensor, ...] = ()  # its results, if it has no others
        self._calls: dict[Config, int] = {}  # calls in a sample, where known
        self._config = reference
        self._found: Reference | str | None = None
        self._changed: tuple[Location, ...] = ()  # the storages that the reference writes to
        self._filled: set[Config] = set()  # those that were right with filled memory
        self._overwriting: dict[Config, bool] = {}  # whose calls return the same memory, if known
        self.reference_passing = False
        """Whether the reference failed for a reason that passes."""
        self._lost = False  # whether a config broke the device for all that come after it

    def set_reference(self, config: Config) -> None:
        """Compare with this config from now on. The current reference is not run again."""
        if config != self._config:
            self._config, self._found = config, None
            self._filled.clear()

    def spare(self) -> Any:
        """The copies that configs run on; they are restored before each."""
        return self._copies.taken()

    def reference_problem(self) -> str:
        """Why the reference does not run or is nondeterministic; else empty. Found out once."""
        if self._found is None:
            try:
                self._found, self.reference_passing = self._run_reference(), False
            except Exception as error:  # kernels and compilers may raise anything
                self._found, self.reference_passing = problem_of(error), self._passes(error)
        return self._found if isinstance(self._found, str) else ""

    def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
        """Try a config for about `budget` seconds, and less if it is clearly slower than the best
        median so far. `ReferenceFailed` where the reference does not run."""
        problem = self.reference_problem()
        if problem and config != self._config:
            raise ReferenceFailed(self._config, problem)
        if problem:
            return Outcome(problem=problem, passing=self.reference_passing)
        try:
            with self._seeded():
                return self._outcome(config, budget, best)
        except Exception as error:
            return Outcome(problem=problem_of(error), passing=self._passes(error))

    def _passes(self, error: Exception) -> bool:
        """Whether a failure says nothing about the config that it happened to."""
        lost, self._lost = self._lost, self._lost or self.device_lost()
        return lost or passes(error)

    def device_lost(self) -> bool:
        """Whether this process can no longer use the device, as on CUDA after an illegal memory
        access."""
        if self._device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(self._device)
        except RuntimeError:  # torch.AcceleratorError is one
            return True
        return False

    def _run_reference(self) -> Reference | str:
        self._around.save()
        self._outputs = self._globals = ()
        # As later calls are made: before results are kept, kernels inside are tuned.
        with self._around.watched() as first:
            self.run(self._config)
        self._around.save()  # what this call has made and keeps
        with self._around.watched() as second:
            kept = self._returned(self._config, PATTERNS[0])
        self._written = {*first, *second}
        self._changed = tuple(self._copies.changed())
        if self._judge.check is None and kept[0] is None and not self._changed:
            self._globals = self._global_results(kept[1])
            kept = self._returned(self._config, PATTERNS[0])
        found = Reference.of(kept, self._copies.kept(kept), self._judge)
        del kept
        found, problem = found.repeated(*self._returned(self._config, PATTERNS[0]))
        if not problem:
            self._outputs = self._find_outputs(found)
        for pattern in PATTERNS[1:]:
            if not problem:
                found, problem = found.refilled(*self._returned(self._config, pattern), pattern)
        self._filled.add(self._config)
        return problem[:_LONGEST] or found

    def _find_outputs(self, reference: Reference) -> tuple[torch.Tensor, ...]:
        """What the reference overwrites as a whole, among its copies and what is around it."""
        results, args = self._returned(self._config, PATTERNS[0])
        returned = list(parts(results).values())
        self._written |= self._around.mark(returned)
        # What the reference does not write to is not filled: another thread may read it.
        near = {k: each for k, each in self._around.tensors.items() if k in self._written}
        held = {**self._copies.tensors(args), **near}

        def same(outputs: tuple[torch.Tensor, ...], patterns: tuple[Pattern, ...]) -> bool:
            runs = (
                self._returned(self._config, PATTERNS[0], outputs=(outputs, each))
                for each in patterns
            )
            return not any(reference.verdict(*returned) for returned in runs)

        return find(held, set(self._changed), returned, same)

    def _global_results(self, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        """The global tensors that the reference writes to. Where none changes, one may be right
        already: then other inputs show it."""
        inputs = [] if self._written else self._copies.tensors(args).values()
        for each, pattern in [(given, k) for given in inputs for k in harmless(given)[:2]]:
            # It may raise because of what it reads there.
            with suppress(Exception), self._around.watched() as written:
                self.run(self._config, PATTERNS[0], outputs=((each,), pattern))
            self._written.update(written)
        near = self._around.tensors
        return tuple(near[each] for each in near if each in self._written)

    def _outcome(self, config: Config, budget: float, best: float | None) -> Outcome:
        problem = self._problem_when_filled(config)
        if problem:
            return Outcome(problem=problem)
        call, args, results = self.run(config)
        problem = self._verdict(config, self._seen(results), args)
        if problem:
            return Outcome(problem=problem)
        del results  # a kernel may need the memory
        if self._clock is None:
            self._clock = clock_of(self._device)
        changed = self._changed

        def restore() -> None:
            self._copies.restore(changed)
            self._around.restore()

        timing = measure(
            lambda: call(*args),
            device=self._device,
            budget=budget,
            best=best,
            before=restore if changed or self._around.are_written else None,
            clock=self._clock,
            calls=self._calls.get(config, 1),
        )
        self._calls[config] = timing.calls
        # Again: a race need not show at first, and a plan is replayed only now.
        problem = self._verdict(config, *self._returned(config))
        if problem:
            return Outcome(problem=problem)
        return Outcome(
            timing.median, timing.low, timing.high, timing.samples, disturbed=timing.disturbed
        )

    def _problem_when_filled(self, config: Config) -> str:
        if config in self._filled:
            return ""
        for pattern in PATTERNS:
            with self._around.watched() as written:
                returned = self._returned(config, pattern)
            if self._judge.check is None and not self._written.issuperset(written):
                return f"{WRONG}: it writes to a global tensor, and the reference does not"
            problem = self._verdict(config, *returned, pattern)
            if problem:
                return problem
            kept = [weakref.ref(k.untyped_storage()) for k in self._in_own_memory(returned[0])]
            del returned  # the next run may need the memory
        # Only results that are kept somewhere can be overwritten by the next call.
        suspect = self._judge.check is None and any(each() is not None for each in kept)
        if suspect and self._overwrites(config) and not self._overwrites(self._config):
            return f"{WRONG}: a call overwrites the results of the one before"
        self._filled.add(config)
        return ""

    def _overwrites(self, config: Config) -> bool:
        """Whether a call returns the memory of an earlier call's results that are still in use."""
        if config not in self._overwriting:
            first, second = (self._returned(config, PATTERNS[0])[0] for _ in range(2))
            both = [{storage_id(each) for each in self._in_own_memory(k)} for k in (first, second)]
            self._overwriting[config] = bool(both[0] & both[1])
        return self._overwriting[config]

    def _in_own_memory(self, results: Any) -> list[torch.Tensor]:
        """The tensors among results that are not in the memory of arguments."""
        found = [each for each in tensors_in(results) if each.layout is torch.strided]
        return [each for each in found if not self._copies.has(each)]

    def _verdict(
        self, config: Config, results: Any, args: tuple[Any, ...], pattern: Pattern | None = None
    ) -> str:
        reference = self._found
        assert isinstance(reference, Reference)
        wrong = reference.verdict(results, args, pattern)
        if not wrong:
            return ""
        words = "it is nondeterministic" if config == self._config else WRONG
        return f"{words}: {wrong}"[:_LONGEST]

    def _returned(
        self,
        config: Config,
        pattern: Pattern | None = None,
        outputs: tuple[tuple[torch.Tensor, ...], Pattern] | None = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """The results of a run, and the arguments after it. Nothing else refers to them: the next
        run may need the memory."""
        _, args, results = self.run(config, pattern, outputs)
        return self._seen(results), args

    def _seen(self, results: Any) -> Any:
        """The results, or the global tensors that are written instead."""
        return {"globals": self._globals} if results is None and self._globals else results

    def run(
        self,
        config: Config,
        pattern: Pattern | None = None,
        outputs: tuple[tuple[torch.Tensor, ...], Pattern] | None = None,
    ) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
        """Call a config once, on restored copies of the arguments; with a pattern, the host
        function runs as written, and fresh memory and outputs are filled with it, or these
        `outputs` with another one. Returns the call, the copies, and the results."""
        self._copies.restore()
        self._around.restore()
        if pattern is not None:
            filled(*(outputs or (self._outputs, pattern)))
        args = self._copies.taken()
        call = self._host_call(config)
        filling = nullcontext() if pattern is None else Filling(pattern)
        outer, current.is_check = current.is_check, pattern is not None
        try:
            with self._seeded(), filling:
                results = call(*args)
        finally:
            current.is_check = outer
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # errors of kernels are raised here
        return call, args, results

    def _seeded(self) -> AbstractContextManager[Any]:
        return Seeded(self._device)


class Seeded:
    """Seeds the random generators of Python, numpy and torch in a block, and restores them after
    it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._fork = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
        self._python = random.getstate()
        self._numpy: Any = sys.modules.get("numpy.random")
        self._numpy_state = None if self._numpy is None else self._numpy.get_state()

    def __enter__(self) -> None:
        self._fork.__enter__()
        random.seed(0)  # host functions may draw a kernel's seed from it
        if self._numpy is not None:
            self._numpy.seed(0)
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed every device
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                torch.cuda.manual_seed(0)

    def __exit__(self, *raised: Any) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            self._numpy.set_state(self._numpy_state)
        self._fork.__exit__(*raised)


def device_of(args: Any) -> torch.device:
    """The device of the first tensor in some arguments; the CPU where there is none.

    >>> device_of((3, [torch.ones(2, device="meta")])), device_of((3,))
    (device(type='meta'), device(type='cpu'))
    """
    return next((tensor.device for tensor in tensors_in(args)), torch.device("cpu"))


def problem_of(error: BaseException) -> str:
    """An exception as the problem of an outcome: its type and the beginning of its message.

    >>> problem_of(ValueError("no")), problem_of(KeyError())
    ('ValueError: no', 'KeyError')
    """
    if isinstance(error, torch.OutOfMemoryError):
        # The allocator caches freed blocks, and the next config may need other sizes.
        torch.cuda.empty_cache()
    words = str(error)
    return (type(error).__name__ + (f": {words}" if words else ""))[:_LONGEST]


def as_written(host: Host[Any], config: Config) -> Callable[..., Any]:
    """A host function with a config, as a function of the arguments alone.

    >>> from tzero.arguments.host import read_host
    >>> as_written(read_host(lambda x, config: x * config.by, Config(by=1)), Config(by=2))(4)
    8
    """
    return host.configured(host.function, config)
