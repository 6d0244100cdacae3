"""Calls of Helion kernels: replayed, recorded, or left to Helion.

    call ── native: a plan for these arguments ──► replayed, none of Helion's code runs
            └ none ── Helion has compiled for them? ── no ──► Helion's own call, which does
                                                    └ yes ──► its generated host function, recorded

Enters: a Helion kernel, and calls. Leaves: `HelionKernel`s. It must not know Helion's private
parts, which are in `compat`, nor how these kernels get called.

A plan is for one geometry of tensors, which is finer than any key of Helion's, or for all sizes
with the same key (`choice`). Two more things select what Helion calls: the result of a `key=`
function, and the code of functions among the arguments. There is a separate tzero kernel, a part,
for each of their values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, NamedTuple, NoReturn

import torch

from tzero import measure, settings
from tzero.adapters import intercept, torch_modes
from tzero.arguments.extract import ConstExpr
from tzero.arguments.key import Options
from tzero.calls.bound import BoundKernel
from tzero.calls.given import as_in_call
from tzero.calls.kernel import Kernel
from tzero.calls.reports import Explanation, Stats
from tzero.calls.stages import Found
from tzero.counts import Count
from tzero.errors import InvalidArgument
from tzero.fallbacks import Fallbacks
from tzero.integrations.helion import compat
from tzero.integrations.helion.planner import HelionPlanner, whole
from tzero.launches.tiers import tier
from tzero.plans.planner import AS_OPERATOR
from tzero.plans.table import Planned

__all__ = ["HelionKernel", "make"]

_TAKEN = frozenset(
    [
        *(torch.Tensor, torch.nn.Parameter, bool, int, float, complex, str, bytes, type(None)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
        *(list, tuple, dict, ConstExpr),
    ]
)
"""Types of arguments that plans support. Calls with objects of other classes, or with functions
that have a closure, are left to Helion."""

_IN_VAIN = 32
"""If none of this many calls could be recorded, all calls of the kernel are left to Helion."""

Fixed = Mapping[int, FunctionType]
_NONE: Fixed = MappingProxyType({})


def make(kernel: Any, call: Callable[..., Any], pool: bool) -> Kernel[..., Any]:
    """Make a tzero kernel for a Helion kernel; `call` is Helion's own call of it.

    ::

        make(add, add.__call__, pool=False)(x, y)
    """
    made = _class_of(tier()) if compat.key_function(kernel) is None else _Keyed
    return made(kernel, call, tier(), pool)


@functools.cache
def _class_of(chosen: int) -> type[HelionKernel]:
    """The kernel class for a tier."""
    if chosen < 2:
        return HelionKernel
    from tzero import _native  # missing if the extension is not built
    from tzero.calls.native import NativeKernel

    made = type("HelionKernel", (HelionKernel, NativeKernel), {"__module__": __name__})
    if not NativeKernel.unavailable:
        _native.enable_calls(made)
    return made


def _host_function(kernel: Any, call: Callable[..., Any], fixed: Fixed) -> Callable[..., Any]:
    """Helion's own call of a kernel, as a function with the kernel's signature."""

    def host(*args: Any) -> Any:
        return call(*args)

    functools.update_wrapper(host, kernel.fn)
    signature = compat.signature(kernel, ConstExpr)
    every = enumerate(signature.parameters.values())
    taken = [parameter for k, parameter in every if k not in fixed]
    vars(host)["__signature__"] = signature.replace(parameters=taken)
    return host


class _Part(NamedTuple):
    """The kernel that makes a call in place of another, and its arguments."""

    kernel: HelionKernel
    args: tuple[Any, ...]


class HelionKernel(Kernel[..., Any]):
    """A Helion kernel whose calls tzero makes; created by `tzero.kernel`. `helion` is the Helion
    kernel, which is tuned, configured and reset as usual.

    ::

        add = tzero.kernel(helion_add)
        add.helion.bind((x, y)).set_config(helion.Config(block_sizes=[256]))
        add(x, y)
    """

    planner: HelionPlanner[Any] | None
    _takes_config = False  # a parameter called `config` is an ordinary argument
    _runs_unkeyed = False  # Helion makes such calls

    def __init__(
        self, kernel: Any, call: Callable[..., Any], chosen: int, pool: bool, fixed: Fixed = _NONE
    ) -> None:
        self.helion, self._plain, self._chosen = kernel, call, chosen
        super().__init__(
            _host_function(kernel, call, fixed),
            config=None,
            key=None,
            options=Options(static_shapes=True),
            plans=chosen > 0,
            pool=pool,
        )
        if chosen > 0:
            self.planner = HelionPlanner(kernel, self.host, fixed, pool, self.fallbacks)
        self._epoch = compat.epoch(kernel)
        self._left = Count()  # calls that were left to Helion before they had a key
        self._in_vain, self._gave_up = 0, False
        self._parts: dict[Hashable, HelionKernel] = {}

    # -- calling -------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call Helion's kernel."""
        if torch.compiler.is_compiling():
            return self.helion(*args, **kwargs)
        record = measure.active()
        if record is None:
            return self._answer(args, kwargs)[0]
        with record.stage("call", self.name):
            return self._answer(args, kwargs)[0]

    def _answer(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, Planned | None]:
        self._refuse_followers()
        if compat.epoch(self.helion) != self._epoch:
            self._start_anew()
        found = self._found_or_left(args, kwargs)
        if isinstance(found, str):
            return self._leave(found, args, kwargs), None
        if isinstance(found, _Part):
            return found.kernel(*found.args), None
        base, bound, normal, number = found
        result, planned = self._run(self._noting.in_call, base, bound, normal, number)
        if not isinstance(planned, Planned):  # Helion may replace its function: nothing is kept
            self._count_refusal(bound)
            planned = None
        elif self.table.found(base, normal, number) is not planned.bound:
            planned = None  # evicted meanwhile
        return result, planned

    def _refuse_followers(self) -> None:
        """Raise under tracers that do not see launches, before Helion makes keys of symbolic sizes.
        In reference mode Helion calls torch's operators, which tracers do see."""
        who = torch_modes.follower()
        if who and not compat.left_alone(self.helion):
            raise InvalidArgument(
                kernel=self.name,
                problem=f"{who} does not see its launches, and would leave them out of the trace",
                advice=AS_OPERATOR,
            )

    def plain(self, /, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """Helion's own call with these arguments."""
        given, named = as_in_call(self.ordered, "plain", args, kwargs)
        return functools.partial(self._plain, *given, **named)

    def _found_or_left(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> str | _Part | Found[Any]:
        """Why a call is left to Helion, or the part that makes it, or its bound kernel."""
        try:
            normal = self.ordered(args, kwargs)
            functions = _functions(normal)
            if functions:
                return self._part_with(functions, normal)
            why = self._left_alone(normal)
            if why:
                self._tell_left(why, {"kernel": self, "args": normal})
                return why
            return self._find(normal, {}, tell=False)  # `_leave` tells
        except InvalidArgument as error:  # Helion may accept it, or raises its own error
            subject = "" if error.argument is None else f"argument {error.argument!r} "
            return f"{subject}{error.problem}"

    def _left_alone(self, args: tuple[Any, ...]) -> str:
        """Why a call is left to Helion; empty if tzero makes it."""
        if self._gave_up:
            return f"none of its first {_IN_VAIN} calls could be recorded"
        if not _TAKEN.issuperset(map(type, args)):
            return "an argument is of a class that plans do not support"
        return compat.left_alone(self.helion)

    def _leave(self, why: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._tell_left(why, {})
        self._left.add()
        return self._plain(*args, **kwargs)

    def _tell_left(self, why: str, facts: Mapping[str, Any]) -> None:
        self.fallbacks.lasting(f"left to Helion: {why}", facts)

    def _count_refusal(self, bound: BoundKernel[Any]) -> None:
        """Give up on a kernel if no call could be recorded: trying costs time in each call."""
        planner = self.planner
        if planner is None or planner.recorded:
            return
        self._in_vain += bound.plans.refusal is not None or len(bound.plans) > 0
        self._gave_up = max(self._in_vain, planner.refused) >= _IN_VAIN

    def _tell_recorder(self) -> None:
        """If another kernel's host function calls this one, that one is not replayed: Helion may
        replace what it compiled, and no guard of the other plan would see it."""
        recorder = intercept.here.recorder
        if recorder is not None:
            recorder.refuse(f"it calls {self.name}, which Helion compiles")

    # -- parts: one kernel for each `key=` result and each function among the arguments -----------

    def _part_with(self, functions: dict[int, FunctionType], args: tuple[Any, ...]) -> _Part:
        """The part for calls with these functions."""
        key = tuple((k, *_code_of(each)) for k, each in functions.items())
        plain = self._plain
        part = self._part(key, lambda *given: plain(*whole(given, functions)), functions)
        return _Part(part, tuple(arg for k, arg in enumerate(args) if k not in functions))

    def _part(self, key: Hashable, call: Callable[..., Any], fixed: Fixed) -> HelionKernel:
        part = self._parts.get(key)
        if part is None:
            if len(self._parts) >= settings.current().max_specializations:
                self._parts.clear()
            made = _class_of(self._chosen)(self.helion, call, self._chosen, self.pool, fixed)
            made.share(self.fallbacks)
            part = self._parts.setdefault(key, made)
        return part

    def share(self, fallbacks: Fallbacks) -> None:
        """Report fallbacks as those of the kernel that this one is a part of."""
        self.fallbacks = fallbacks
        if self.planner is not None:
            self.planner.fallbacks = fallbacks

    # -- looking -------------------------------------------------------------------------------

    def explain(self, /, *args: Any, **kwargs: Any) -> Explanation:
        """What a call would find, and what would make it: a plan, a recording, or Helion."""
        normal = self.ordered(args, kwargs)
        functions = _functions(normal)
        if functions:
            part, rest = self._part_with(functions, normal)
            return part.explain(*rest)
        found = super().explain(*normal)
        why = self._left_alone(normal)
        return found._replace(refusal=f"left to Helion: {why}") if why else found

    def stats(self) -> Stats:
        """Counts of calls, those that were left to Helion included."""
        left = self._left.value()
        own = Stats(left, 0, 0, 0, 0, plain_calls=left, unkeyed=left)
        every = [own, super().stats(), *(part.stats() for part in list(self._parts.values()))]
        return Stats(*map(sum, zip(*every, strict=True)))

    def reset(self) -> None:
        """Drop all bound kernels, Helion's included; the next calls compile and tune again."""
        self.helion.reset()
        self._start_anew()

    def _start_anew(self) -> None:
        self._epoch = compat.epoch(self.helion)
        self._in_vain, self._gave_up, self._parts = 0, False, {}
        if self.planner is not None:
            self.planner.start_anew()
        super().reset()

    def precompile(self, /, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: Helion compiles its kernels itself."""
        raise InvalidArgument(
            kernel=self.name,
            problem="precompile does not apply, because Helion compiles its kernels itself",
            advice="Call .helion.bind(args).ensure_config_exists(args).",
        )

    def __repr__(self) -> str:
        return f"<HelionKernel {self.name}{self.signature}>"


class _Keyed(HelionKernel):
    """A Helion kernel with a `key=` function, which runs on each call."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call Helion's kernel."""
        if torch.compiler.is_compiling():
            return self.helion(*args, **kwargs)
        if kwargs:
            args = self.helion.normalize_args(*args, **kwargs)
        return self._answering(args)(*args)

    def _answering(self, args: tuple[Any, ...]) -> HelionKernel:
        """The part for the `key=` result of these arguments."""
        answer = compat.key_function(self.helion)(*args)
        # With the type: 1 == 1.0 == True.
        return self._part((type(answer), answer), self._plain, {})

    def explain(self, /, *args: Any, **kwargs: Any) -> Explanation:
        """What a call would find, and what would make it."""
        normal = self.ordered(args, kwargs)
        return self._answering(normal).explain(*normal)

    def bind(self, /, *args: Any, **kwargs: Any) -> BoundKernel[Any]:
        """The bound kernel that a call with these arguments uses."""
        normal = self.ordered(*as_in_call(self.ordered, "bind", args, kwargs))
        return self._answering(normal).bind(*normal)


def _functions(args: tuple[Any, ...]) -> dict[int, FunctionType]:
    """The functions among the arguments that have no closure and no defaults, by place. Helion
    compiles them in, and its host functions do not read them."""
    return {
        k: each
        for k, each in enumerate(args)
        if type(each) is FunctionType
        and not (each.__closure__ or each.__defaults__ or each.__kwdefaults__)
    }


def _code_of(function: FunctionType) -> tuple[CodeType, int]:
    """What identifies a function to Helion: its code, and the module it was defined in."""
    return function.__code__, id(function.__globals__)
