"""One config, tried: it runs, its results are compared with those of the reference, it is timed.

::

    config ── run on copies ── same results as the reference? ── measure ──► Outcome
                │                 │                                            ▲
                └─ it raises ─────┴─ they are wrong ───────── problem ─────────┘

Enters: how a config makes a function, arguments, and which config is the reference. Leaves: for
each config an `Outcome`: a candidate that fails is an outcome as well, never an exception. It must
not know which configs there are, nor whether it runs in the process that calls the kernel or in one
of its own.

The arguments themselves are only read. There is one set of copies of them, in which every config
works, and which is put back to what it was; random numbers are drawn from the same seed for each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from tzero.arguments.host import Host
from tzero.config import Config
from tzero.tune.copying import Copies, Place, tensors_in
from tzero.tune.records import Outcome
from tzero.tune.timing import Clock, clock_of, measure, same

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
"""How the problem begins of a config that computes something else than the reference."""

_LONGEST = 500  # characters of a problem: compilers may write books


Called = Callable[[Host[Any], Config], Callable[..., Any]]
"""A function of a host and a config, which gives one of the arguments alone."""


class ReferenceFailed(RuntimeError):
    """Another config than the reference was to be tried, and the reference does not run: there is
    nothing to compare with. `Trial.set_reference` names another one.

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


@dataclass(frozen=True, slots=True)
class _Reference:
    """What the reference came to, in memory that no other config writes to."""

    results: Any
    args: Any
    changed: tuple[Place, ...]
    """Which of the arguments' storages it writes to."""


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
    ) -> None:
        self._host_call = host_call
        self._device = device
        self._clock = clock
        self._copies = Copies(args)
        self._calls: dict[Config, int] = {}  # in a sample, as far as it is known
        self._config = reference
        self._found: _Reference | str | None = None

    def set_reference(self, config: Config) -> None:
        """Compare with this config from now on; one that is the reference already is not run
        again."""
        if config != self._config:
            self._config, self._found = config, None

    def spare(self) -> Any:
        """The copies that configs work in, which are put back before each of them."""
        return self._copies.taken()

    def reference_problem(self) -> str:
        """Why the reference does not run; nothing where it does. It runs once."""
        if self._found is None:
            try:
                with self._seeded():
                    self._found = self._referred()
            except Exception as error:  # of the kernel, or of what compiles it: anything
                self._found = problem_of(error)
        return self._found if isinstance(self._found, str) else ""

    def outcome(self, config: Config, *, budget: float, best: float | None) -> Outcome:
        """Try a config: in about so many seconds, and given up early if it is slower than the best
        median so far. `ReferenceFailed` where there is nothing to compare its results with."""
        problem = self.reference_problem()
        if problem and config != self._config:
            raise ReferenceFailed(self._config, problem)
        if problem:
            return Outcome(problem=problem)
        try:
            with self._seeded():
                return self._outcome(config, budget, best)
        except Exception as error:
            return Outcome(problem=problem_of(error))

    def device_lost(self) -> bool:
        """Whether this process can use the device no more: on CUDA that is so after an access to
        memory that is not there, until the process ends."""
        if self._device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(self._device)
        except RuntimeError:  # torch.AcceleratorError is one
            return True
        return False

    def _referred(self) -> _Reference:
        _, args, results = self.run(self._config)
        changed = tuple(self._copies.changed())
        results, args = self._copies.kept((results, args))
        return _Reference(results, args, changed)

    def _outcome(self, config: Config, budget: float, best: float | None) -> Outcome:
        reference = self._found
        assert isinstance(reference, _Reference)
        call, args, results = self.run(config)
        wrong = same(results, reference.results).words
        wrong = wrong or same(args, reference.args, named="after the call args").words
        if wrong:
            again = config == self._config
            words = "it computes something else each time" if again else WRONG
            return Outcome(problem=f"{words}: {wrong}"[:_LONGEST])
        del results  # a kernel may need the memory
        changed = reference.changed
        if self._clock is None:
            self._clock = clock_of(self._device)
        timing = measure(
            lambda: call(*args),
            device=self._device,
            budget=budget,
            best=best,
            before=(lambda: self._copies.restore(changed)) if changed else None,
            clock=self._clock,
            calls=self._calls.get(config, 1),
        )
        self._calls[config] = timing.calls
        return Outcome(timing.median, timing.low, timing.high, timing.samples)

    def run(self, config: Config) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
        """Call a config once, on copies of the arguments as they were given: what was called, the
        copies, and the results."""
        self._copies.restore()
        args = self._copies.taken()
        call = self._host_call(config)
        results = call(*args)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # what a kernel does wrong shows here
        return call, args, results

    def _seeded(self) -> AbstractContextManager[Any]:
        return Seeded(self._device)


class Seeded:
    """The same random numbers in each block; the generators are then as if it had not been."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._fork = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
        self._python = random.getstate()

    def __enter__(self) -> None:
        self._fork.__enter__()
        random.seed(0)  # where a host function may take the seed of a kernel from
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed every device
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                torch.cuda.manual_seed(0)

    def __exit__(self, *raised: Any) -> None:
        random.setstate(self._python)
        self._fork.__exit__(*raised)


def device_of(args: Any) -> torch.device:
    """The device of the first tensor among arguments, in whatever they are nested; the CPU where
    there is none.

    >>> device_of((3, [torch.ones(2, device="meta")])), device_of((3,))
    (device(type='meta'), device(type='cpu'))
    """
    return next((tensor.device for tensor in tensors_in(args)), torch.device("cpu"))


def problem_of(error: BaseException) -> str:
    """An exception as the problem of an outcome: its type, and the beginning of what it says.

    >>> problem_of(ValueError("no")), problem_of(KeyError())
    ('ValueError: no', 'KeyError')
    """
    if isinstance(error, torch.OutOfMemoryError):
        # torch's allocator holds what was freed since; the next one may need it in other sizes.
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
