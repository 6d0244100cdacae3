"""`Kernel`: a host function behind a dispatcher, with the methods that users call.

Enters: calls, and questions about them. Leaves: results and reports. The order of the stages is in
`stages`, its base class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

import torch

from tzero import measure
from tzero.adapters import torch_modes
from tzero.arguments.extract import unwrapped
from tzero.arguments.key import Key
from tzero.calls import explain
from tzero.calls.bound import BoundKernel
from tzero.calls.by_name import ByName
from tzero.calls.given import AS_SET, as_in_call, given_options
from tzero.calls.of_instance import OfInstance
from tzero.calls.reports import Explanation, Made, Replay, Stats
from tzero.calls.stages import Stages
from tzero.calls.warming import Warmable
from tzero.config import Config
from tzero.launches.ahead import Precompiled, precompile_host
from tzero.launches.current_call import current
from tzero.plans.plan import Plan
from tzero.tune.by_size import imagined
from tzero.tune.search import QUICK, Effort
from tzero.tune.tuner import Search

__all__ = ["Explanation", "Kernel", "Stats"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


class Kernel(ByName, Warmable, Stages[R], Generic[P, R]):
    """A host function behind a dispatcher; made by `kernel`.

    ::

        @tzero.kernel
        def add(x, y):
            out = torch.empty_like(x)
            add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
            return out

        add(x, y)
        print(add.explain(x, y))

    Defined in a class it is a method, with the instance as its first argument. `bind`, `key`,
    `explain`, `plain`, `arguments`, `autotune` and `precompile` take the arguments of a call as the
    call does: ``add.bind(x, y=y)``. ``Kernel[P, R]`` has the parameters and the result of the host
    function, for type checkers.
    """

    remade: Callable[[Any], Any] | None = None
    """With ``graph=True``, makes a kernel with the same options of another function."""

    of_class = False
    """Whether it is a class method: its first argument is the class."""

    def __class_getitem__(cls, types: Any) -> Any:
        """`Kernel[R]`, as it was written before there were parameters, is `Kernel[..., R]`."""
        one = not isinstance(types, tuple) and cls is Kernel
        given = (..., types) if one else types
        return super().__class_getitem__(given)  # type: ignore[misc]

    # -- calling -------------------------------------------------------------------------------

    @torch_modes.untraced
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
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

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(
        self: Kernel[Concatenate[Any, Q], R], instance: object, owner: type | None = None
    ) -> Callable[Q, R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if self.of_class:
            return MethodType(self, type(instance) if owner is None else owner)
        method = instance is not None and isinstance(self.function, FunctionType)
        if method and self.remade is not None:
            own = OfInstance.of(instance, self, self.remade, cast("FunctionType", self.function))
            return MethodType(self, instance) if own is None else own
        return MethodType(self, instance) if method else self

    def plain(self, /, *args: P.args, **kwargs: P.kwargs) -> Callable[[], R]:
        """A function that makes a call with these arguments without tzero.

        ::

            add.plain(x, y)()
        """
        given, named = as_in_call(self.ordered, "plain", args, kwargs)
        bound = self._bound(given, named)
        normal = unwrapped(self.ordered(given, named))
        return functools.partial(bound.variant(normal).call, *normal)

    # -- binding and tuning --------------------------------------------------------------------

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> BoundKernel[R]:
        """The bound kernel that a call with these arguments uses.

        ::

            add.bind(x, y).set_config(tzero.Config(BLOCK=256))
        """
        return self._bound(*as_in_call(self.ordered, "bind", args, kwargs))

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> BoundKernel[R]:
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

    def autotune(
        self,
        /,
        *args: Any,
        effort: Effort | None = AS_SET,
        budget: float | None = AS_SET,
        isolate: bool | None = AS_SET,
        force: bool = AS_SET,
        tolerance: float | None = AS_SET,
        check: Callable[[Any, Any], object] | None = AS_SET,
        **kwargs: Any,
    ) -> Search:
        """Find the fastest config for calls with these arguments, use it from now on, and store it
        (see `BoundKernel.autotune`).

        ::

            print(matmul.autotune(a, b, effort="full", budget=60))

        If the host function has a parameter with the name of an option, the name is that
        parameter's, as in a call. Give the option to the bound kernel then:
        ``scale.bind(x, tolerance=0.1).autotune(tolerance=1e-3)``.
        """
        options = given_options(
            effort=effort,
            budget=budget,
            isolate=isolate,
            force=force,
            tolerance=tolerance,
            check=check,
        )
        for name in self.ordered.names.intersection(options):
            kwargs[name] = options.pop(name)
        given, named = as_in_call(self.ordered, "autotune", args, kwargs)
        bound = self._bound(given, named)
        return self.tuning.autotune(bound, unwrapped(self.ordered(given, named)), **options)

    def autotune_bound(
        self,
        bound: BoundKernel[R],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        /,
    ) -> Search:
        """Tune a bound kernel, by default with arguments like those it was bound with."""
        if not args and not kwargs:
            given = imagined(bound.example)
        else:
            normal = self.ordered(*as_in_call(self.ordered, "bind(...).autotune", args, kwargs))
            self._check_bound(bound, self.extract(normal), normal)
            given = unwrapped(normal)
        return self.tuning.autotune(bound, given, **options)

    def changed(self) -> None:
        """Note that a bound kernel has another config, so that plans of other kernels that call
        this one become invalid."""
        self.changes += 1

    def chosen_apart(self) -> None:
        """Note that a bound kernel has a config of its own, so that no plan serves the sizes of
        several."""
        if self.planner is None or self.planner.tuned is not None:
            return  # plans of a tuned kernel are for one bound kernel each
        if not self.planner.varied.why_not:
            self.planner.varied.disable("a bound kernel has a config of its own")
            self.plans_ended(None)

    def reset(self) -> None:
        """Drop all bound kernels; the next calls bind again."""
        with self.table.lock:
            self.table.clear()
            self.plans_ended(None)
            self.changes += 1
            self.tally.reset()
            if self.planner is not None:
                self.planner.varied.reset()

    # -- questions -----------------------------------------------------------------------------

    def arguments(self, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """The name of a call with these arguments in a lookup table: its key without the device, as
        text.

        ::

            add.arguments(x, y)
            # '((torch.float32, (4096,), (1,)), (torch.float32, (4096,), (1,)))'
        """
        given, named = as_in_call(self.ordered, "arguments", args, kwargs)
        return self.tuning.arguments(self._key(given, named))

    def key(self, /, *args: P.args, **kwargs: P.kwargs) -> Key:
        """The key of a call with these arguments.

        ::

            assert add.key(x, y) == add.key(y=y, x=x)
        """
        return self._key(*as_in_call(self.ordered, "key", args, kwargs))

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        normal = self.ordered(args, kwargs)
        return self.table.key(self.extract(normal), normal)

    def explain(self, /, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        """Whether a call would hit, whether and how it would be replayed, and why not. Only keys
        and guards are evaluated.

        ::

            print(add.explain(x, y))
            # add: hit, replayed natively (tier 2)
            #   ...
        """
        return explain.explanation(self, self.ordered(args, kwargs))

    @property
    def tier(self) -> int:
        """How calls can be replayed: 0 not at all, 1 in Python, 2 natively."""
        return 0 if self.planner is None else 1

    def stages(self, args: tuple[Any, ...], bound: BoundKernel[R] | None) -> dict[str, float]:
        """The cost of each stage of a hit, in nanoseconds, measured now."""
        return explain.stages(self, args, bound)

    def replaying(self, plan: Plan, args: tuple[Any, ...]) -> Replay:
        """How a plan would be replayed for a call with these arguments, in order."""
        return Replay("in Python")

    def _made_so_far(self) -> Made:
        """How calls were made."""
        python = 0 if self.planner is None else self.planner.replays.value()
        return Made(0, python, self._unkeyed.value())

    def stats(self) -> Stats:
        """Counts of calls, misses, bound kernels and evictions, and of how calls were made.

        ::

            print(add.stats())
            # 100 calls: 99 replayed natively, 0 replayed in Python, 1 plain (1 of them recorded)
            #   99 hits, 1 miss, 1 bound kernel, 0 evicted
        """
        with self.table.lock:
            made = self._made_so_far()
            # `count()` cannot be peeked; reading advances both, so they cancel.
            binds = next(self._binds)
            calls = self._tick() - binds
            live, tally, planner = len(self.table.bound_kernels()), self.tally, self.planner
            return Stats(
                calls,
                tally.misses,
                live,
                tally.evictions,
                tally.bound_ahead,
                made.native,
                made.python,
                calls - made.native - made.python,
                0 if planner is None else planner.recorded,
                made.unkeyed,
            )

    def __repr__(self) -> str:
        return f"<Kernel {self.name}{self.signature}>"
