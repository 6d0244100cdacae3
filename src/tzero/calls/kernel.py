"""`Kernel`: a host function behind a dispatcher, with the methods that users call.

Enters: calls, and questions about them. Leaves: results and reports. The order of the stages is in
`stages`, its base class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, TypeVar

import torch

from tzero import measure
from tzero.adapters import torch_modes
from tzero.arguments.extract import unwrapped
from tzero.arguments.key import Key
from tzero.calls import explain
from tzero.calls.bound import BoundKernel
from tzero.calls.by_name import ByName
from tzero.calls.reports import Explanation, Stats
from tzero.calls.stages import Stages
from tzero.config import Config
from tzero.launches.ahead import Precompiled, precompile_host
from tzero.launches.current_call import current
from tzero.tune.by_size import imagined
from tzero.tune.search import QUICK, Effort
from tzero.tune.tuner import Search

__all__ = ["Explanation", "Kernel", "Stats"]

R = TypeVar("R")
_NO_NAMES: Mapping[str, Any] = MappingProxyType({})


class Kernel(ByName, Stages[R]):
    """A host function behind a dispatcher; made by `kernel`.

    ::

        @tzero.kernel
        def add(x, y):
            out = torch.empty_like(x)
            add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
            return out

        add(x, y)
        print(add.explain(x, y))

    Defined in a class it is a method, with the instance as its first argument.
    """

    of_class = False
    """Whether it is a class method: its first argument is the class."""

    # -- calling -------------------------------------------------------------------------------

    @torch_modes.untraced
    def __call__(self, /, *args: Any, **kwargs: Any) -> R:
        """Call the host function through the bound kernel for these arguments."""
        if torch.compiler.is_compiling():
            return self._configured(*unwrapped(self.ordered(args, kwargs)))
        record = measure.active()
        if record is None:
            return self._run(self._noting.in_call, *self._find(args, kwargs))[0]
        with record.stage("call", self.name):
            found = self._find(args, kwargs)
            with record.stage("run", self.name):
                return self._run(self._noting.in_call, *found)[0]

    def call_bound(
        self, bound: BoundKernel[R], args: tuple[Any, ...], kwargs: Mapping[str, Any], /
    ) -> R:
        """Make a call of a bound kernel itself."""
        if torch.compiler.is_compiling():
            return bound.call(*unwrapped(self.ordered(args, kwargs)))
        found = self._find(args, kwargs, given=bound)
        record = measure.active()
        if record is None:
            return self._run(self._noting.alone, *found)[0]
        with record.stage("call", self.name), record.stage("run", self.name):
            return self._run(self._noting.alone, *found)[0]

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if self.of_class:
            return MethodType(self, type(instance) if owner is None else owner)
        method = instance is not None and isinstance(self.function, FunctionType)
        return MethodType(self, instance) if method else self

    def plain(self, args: Sequence[Any], kwargs: Mapping[str, Any] = _NO_NAMES) -> Callable[[], R]:
        """A function that makes a call with these arguments, a tuple or list, without tzero.

        ::

            add.plain((x, y))()
        """
        bound = self.bind(args, kwargs)
        given = unwrapped(self.ordered.listed(args, kwargs))
        return functools.partial(bound.variant(given).call, *given)

    # -- binding and tuning --------------------------------------------------------------------

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any] = _NO_NAMES) -> BoundKernel[R]:
        """The bound kernel that a call with these arguments, a tuple or list, uses."""
        if type(args) is not tuple:
            args = self.ordered.positional(args)
        record = measure.active()
        if record is None:
            bound = self._find(args, kwargs, ahead=True)[1]
        else:
            with record.stage("bind", self.name):
                bound = self._find(args, kwargs, ahead=True)[1]
        next(self._binds)
        return bound

    def precompile(self, /, *args: Any, **kwargs: Any) -> Precompiled:
        """Compile everything that a call with these arguments launches, for each config, in worker
        processes. Tensors may be given as `tzero.Spec`s.

        ::

            add.precompile(tzero.Spec((4096,)), tzero.Spec((4096,))).wait()

        With `size_hints` for named arguments, everything that is launched at the hints is compiled
        too. The host function runs on tensors without memory and launches nothing. Its other side
        effects do happen.
        """
        normal = unwrapped(self.ordered(args, kwargs))
        space = self.tuning.space
        count = None if space is None else space.count()
        every = space is not None and count is not None and count <= QUICK
        configs: Sequence[Config | None] = tuple(space or ()) if every else (self.host.config,)
        ahead = Precompiled()
        current.is_trial, outer = True, current.is_trial
        try:
            for config in configs:
                called = self.host.configured(self.function, config)
                for given in (normal, *self.tuning.arguments_of_hints(normal)):
                    precompile_host(self.name, called, given, ahead)
        finally:
            current.is_trial = outer
        return ahead

    @property
    def configs(self) -> tuple[Config, ...]:
        """The listed configs; empty if ranges define them (see `tzero.Space`)."""
        space = self.tuning.space
        return () if space is None else space.listed or ()

    @property
    def has_choice(self) -> bool:
        """Whether there are several configs to choose from."""
        return self.tuning.has_choice

    def autotune(
        self,
        args: Sequence[Any],
        *,
        effort: Effort | None = None,
        budget: float | None = None,
        isolate: bool | None = None,
        force: bool = False,
        tolerance: float | None = None,
        check: Callable[[Any, Any], object] | None = None,
    ) -> Search:
        """Find the fastest config for calls with these arguments, a tuple or list, use it from now
        on, and store it (see `BoundKernel.autotune`).

        ::

            print(matmul.autotune((a, b), effort="full", budget=60))
        """
        bound = self.bind(args)
        return self.autotune_bound(bound, args, effort, budget, isolate, force, tolerance, check)

    def autotune_bound(
        self,
        bound: BoundKernel[R],
        args: Sequence[Any] | None,
        effort: Effort | None,
        budget: float | None,
        isolate: bool | None,
        force: bool,
        tolerance: float | None,
        check: Callable[[Any, Any], object] | None,
        /,
    ) -> Search:
        """Tune a bound kernel, by default with arguments like those it was bound with."""
        if args is None:
            given = imagined(bound.example)
        else:
            normal = self.ordered.listed(args)
            self._check_bound(bound, self.extract(normal), normal)
            given = unwrapped(normal)
        return self.tuning.autotune(bound, given, effort, budget, isolate, force, tolerance, check)

    def changed(self) -> None:
        """Note that a bound kernel has another config, so that plans of other kernels that call
        this one become invalid."""
        self.changes += 1

    def reset(self) -> None:
        """Drop all bound kernels; the next calls bind again."""
        with self.table.lock:
            self.table.clear()
            self.plans_ended(None)
            self.changes += 1
            self.tally.reset()

    # -- questions -----------------------------------------------------------------------------

    def arguments(self, args: Sequence[Any]) -> str:
        """The name of a call with these arguments, a tuple or list, in a lookup table: its key
        without the device, as text.

        ::

            add.arguments((x, y))
            # '((torch.float32, (4096,), (1,)), (torch.float32, (4096,), (1,)))'
        """
        return self.tuning.arguments(self.key(args))

    def key(self, args: Sequence[Any], kwargs: Mapping[str, Any] = _NO_NAMES) -> Key:
        """The key of a call with these arguments, a tuple or list."""
        normal = self.ordered.listed(args, kwargs)
        return self.table.key(self.extract(normal), normal)

    def explain(self, /, *args: Any, **kwargs: Any) -> Explanation:
        """Whether a call would hit, and whether it would be replayed. Only keys and guards are
        evaluated."""
        return explain.explanation(self, self.ordered(args, kwargs))

    @property
    def tier(self) -> int:
        """How calls can be replayed: 0 not at all, 1 in Python, 2 natively."""
        return 0 if self.planner is None else 1

    def stages(self, args: tuple[Any, ...], bound: BoundKernel[R] | None) -> dict[str, float]:
        """The cost of each stage of a hit, in nanoseconds, measured now."""
        return explain.stages(self, args, bound)

    def stats(self) -> Stats:
        """Counts of calls, misses, bound kernels and evictions."""
        with self.table.lock:
            # `count()` cannot be peeked; reading advances both, so they cancel.
            binds = next(self._binds)
            calls = self._tick() - binds
            live, tally = len(self.table.bound_kernels()), self.tally
            return Stats(calls, tally.misses, live, tally.evictions, tally.bound_ahead)

    def __repr__(self) -> str:
        return f"<Kernel {self.name}{self.signature}>"
