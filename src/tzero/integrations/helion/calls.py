"""tzero's kernels over Helion's: which calls are replayed, recorded, or left to Helion.

    call ── native: a plan for these arguments ──► replayed, nothing of Helion's runs
            └ none ── Helion has compiled for them? ── no ──► Helion's own call, which does
                                                    └ yes ──► its generated host function, recorded

Enters: a kernel of Helion's, and calls. Leaves: `HelionKernel`s. It must not know Helion's insides,
which are in `helion_compat`, nor who has these kernels called.

A plan is for one geometry of tensors, which is finer than any key of Helion's. What else decides
what Helion calls decides which kernel of tzero's is asked: where Helion was given a `key=`
function, each of its answers has one, and so has the code of each function among the arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, NamedTuple, NoReturn

import torch

from tzero import events, measure, settings
from tzero.adapters import intercept, torch_modes
from tzero.arguments.extract import ConstExpr
from tzero.arguments.key import Options
from tzero.calls.bound import BoundKernel
from tzero.calls.kernel import Kernel
from tzero.calls.reports import Explanation, Stats
from tzero.calls.stages import Found
from tzero.errors import InvalidArgument
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
"""Types of arguments that plans are made for. An object of a class is Helion's to look into, and so
is a function that closes over something."""

_IN_VAIN = 32
"""So many refused calls, and not one plan: then no more calls of a kernel are looked at."""

Fixed = Mapping[int, FunctionType]
_NONE: Fixed = MappingProxyType({})


def make(kernel: Any, call: Callable[..., Any], pool: bool) -> Kernel[Any]:
    """tzero's kernel over one of Helion's; `call` is Helion's own call of it.

    ::

        make(add, add.__call__, pool=False)(x, y)
    """
    made = _class_of(tier()) if kernel._key_fn is None else _Keyed
    return made(kernel, call, tier(), pool)


@functools.cache
def _class_of(chosen: int) -> type[HelionKernel]:
    """The class of kernels of a tier."""
    if chosen < 2:
        return HelionKernel
    from tzero import _native  # not there where the extension is not built
    from tzero.calls.native import NativeKernel

    made = type("HelionKernel", (HelionKernel, NativeKernel), {"__module__": __name__})
    if not NativeKernel.unavailable:
        _native.enable_calls(made)
    return made


def _host_function(kernel: Any, call: Callable[..., Any], fixed: Fixed) -> Callable[..., Any]:
    """Helion's own call of a kernel, as a function with the kernel's parameters."""

    def host(*args: Any) -> Any:
        return call(*args)

    functools.update_wrapper(host, kernel.fn)
    signature = compat.signature(kernel, ConstExpr)
    every = enumerate(signature.parameters.values())
    taken = [parameter for k, parameter in every if k not in fixed]
    vars(host)["__signature__"] = signature.replace(parameters=taken)
    return host


class _Part(NamedTuple):
    """A kernel that makes some of the calls of another, and what it is given."""

    kernel: HelionKernel
    args: tuple[Any, ...]


class HelionKernel(Kernel[Any]):
    """A kernel of Helion's whose calls tzero makes; `tzero.kernel` makes it. `helion` is the kernel
    itself, which is tuned, configured and reset as ever.

    ::

        add = tzero.kernel(helion_add)
        add.helion.bind((x, y)).set_config(helion.Config(block_sizes=[256]))
        add(x, y)
    """

    planner: HelionPlanner[Any] | None
    _takes_config = False  # it is an argument like others

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
            self.planner = HelionPlanner(kernel, self.host, fixed, pool)
        self._epoch = compat.epoch(kernel)
        self._said: set[str] = set()
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
        if planned is None:
            self._count_refusal(bound)
        elif self.table.found(base, normal, number) is not planned.bound:
            planned = None  # it was dropped meanwhile
        return result, planned

    def _refuse_followers(self) -> None:
        """Before Helion is asked: it would take the sizes that a tracer hands out for its keys. In
        reference mode it calls torch's operators, which are seen."""
        who = torch_modes.follower()
        if who and not compat.left_alone(self.helion):
            raise InvalidArgument(
                kernel=self.name,
                problem=f"{who} does not see its launches, and would leave them out of what it "
                "writes down",
                advice=AS_OPERATOR,
            )

    def plain(self, args: Sequence[Any]) -> Callable[[], Any]:
        """A call as Helion makes it."""
        return functools.partial(self._plain, *args)

    def _found_or_left(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> str | _Part | Found[Any]:
        """Why a call is Helion's; or the part that makes it; or what is bound for it."""
        try:
            normal = self.ordered(args, kwargs)
            functions = _functions(normal)
            if functions:
                return self._part_with(functions, normal)
            why = self._left_alone(normal)
            if why:
                self._tell_left(why, {"kernel": self, "args": normal})
                return why
            return self._find(normal, {})
        except InvalidArgument as error:  # Helion takes more than tzero does, or has its own error
            subject = "" if error.argument is None else f"argument {error.argument!r} "
            return f"{subject}{error.problem}"

    def _tell_invalid(self, error: InvalidArgument) -> None:
        """Nothing: the call goes to Helion, and `_leave` says so."""

    def _left_alone(self, args: tuple[Any, ...]) -> str:
        """Why a call is Helion's; empty where it is looked at."""
        if self._gave_up:
            return f"none of its first {_IN_VAIN} calls could be recorded"
        if not _TAKEN.issuperset(map(type, args)):
            return "an argument is of a class that plans do not support"
        return compat.left_alone(self.helion)

    def _leave(self, why: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self._tell_left(why, {})
        return self._plain(*args, **kwargs)

    def _tell_left(self, why: str, facts: Mapping[str, Any]) -> None:
        if why not in self._said:
            self._said.add(why)
            events.emit(events.Event("refusal", self.name, f"left to Helion: {why}", facts))

    def _count_refusal(self, bound: BoundKernel[Any]) -> None:
        """Give up on a kernel of which no call was ever planned: to look at its calls costs a part
        of what Helion does."""
        planner = self.planner
        if planner is None or planner.recorded:
            return
        self._in_vain += bound.plans.refusal is not None or len(bound.plans) > 0
        self._gave_up = max(self._in_vain, planner.refused) >= _IN_VAIN

    def _tell_recorder(self) -> None:
        """The host function of another kernel that calls this one is not replayed: what Helion
        compiled may be replaced without a trace."""
        recorder = intercept.here.recorder
        if recorder is not None:
            recorder.refuse(f"it calls {self.name}, which Helion compiles")

    # -- parts: kernels for what tells calls apart besides their tensors ---------------------------

    def _part_with(self, functions: dict[int, FunctionType], args: tuple[Any, ...]) -> _Part:
        """What makes calls with these functions."""
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
            part = self._parts.setdefault(key, made)
        return part

    # -- looking -------------------------------------------------------------------------------

    def explain(self, /, *args: Any, **kwargs: Any) -> Explanation:
        """What a call would find and what would serve it: Helion, where it is left alone."""
        normal = self.ordered(args, kwargs)
        functions = _functions(normal)
        if functions:
            part = self._part_with(functions, normal)
            explained: Explanation = part.kernel.explain(*part.args)
            return explained
        found = super().explain(*normal)
        why = self._left_alone(normal)
        return found._replace(refusal=f"left to Helion: {why}") if why else found

    def stats(self) -> Stats:
        """Counts of calls, misses, live entries and evictions."""
        every = [super().stats(), *(part.stats() for part in list(self._parts.values()))]
        return Stats(*map(sum, zip(*every, strict=True)))

    def reset(self) -> None:
        """Forget every bound kernel, Helion's too; the next calls compile and tune anew."""
        self.helion.reset()
        self._start_anew()

    def _start_anew(self) -> None:
        self._epoch = compat.epoch(self.helion)
        self._in_vain, self._gave_up, self._parts = 0, False, {}
        if self.planner is not None:
            self.planner.start_anew()
        super().reset()

    def precompile(self, /, *args: Any, **kwargs: Any) -> NoReturn:
        """Helion compiles its kernels itself."""
        raise InvalidArgument(
            kernel=self.name,
            problem="precompile was asked for, and Helion compiles its kernels itself",
            advice="Call .helion.bind(args).ensure_config_exists(args).",
        )

    def __repr__(self) -> str:
        return f"<HelionKernel {self.name}{self.signature}>"


class _Keyed(HelionKernel):
    """A kernel of Helion's with a `key=` function, which is asked on each call."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call Helion's kernel."""
        if torch.compiler.is_compiling():
            return self.helion(*args, **kwargs)
        if kwargs:
            args = self.helion.normalize_args(*args, **kwargs)
        return self._answering(args)(*args)

    def _answering(self, args: tuple[Any, ...]) -> HelionKernel:
        """The kernel for what the function says of these arguments."""
        answer = self.helion._key_fn(*args)
        return self._part((type(answer), answer), self._plain, {})  # to Helion 1 and 1.0 are one

    def explain(self, /, *args: Any, **kwargs: Any) -> Explanation:
        """What a call would find and what would serve it."""
        normal = self.ordered(args, kwargs)
        return self._answering(normal).explain(*normal)

    def bind(self, args: Any) -> BoundKernel[Any]:
        """The bound kernel that a call with these arguments uses."""
        return self._answering(tuple(args)).bind(args)


def _functions(args: tuple[Any, ...]) -> dict[int, FunctionType]:
    """The functions among arguments that are nothing but code, by their places: Helion compiles
    them in, and its host functions do not look at them."""
    return {
        k: each
        for k, each in enumerate(args)
        if type(each) is FunctionType
        and not (each.__closure__ or each.__defaults__ or each.__kwdefaults__)
    }


def _code_of(function: FunctionType) -> tuple[CodeType, int]:
    """What a function is to Helion, and the module that it is of, which stays while a kernel for it
    is kept."""
    return function.__code__, id(function.__globals__)
