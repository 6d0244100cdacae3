"""Adapts torch's thread-local state: what besides its arguments decides what a torch call does.

Enters: nothing but the thread. Leaves: that state as a value to compare; why host functions cannot
be recorded or replayed now, if so; a mark that keeps torch.compile out of a function; and the base
class of tzero's dispatch modes. It must not know plans.

A torch without one of the private names fails when this module is imported; the steps for a new
torch are in `tzero.adapters`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from operator import or_ as operator_or
from typing import Any, NamedTuple, TypeVar

import torch
from torch._C import (
    _dispatch_tls_local_exclude_set as _excluded,
)
from torch._C import (
    _dispatch_tls_local_include_set as _included,
)
from torch._C import (
    _get_function_stack_at as _function_mode_at,
)
from torch._C import (
    _len_torch_dispatch_stack as _dispatch_modes,
)
from torch._C import (
    _len_torch_function_stack as _function_modes,
)
from torch._C._dynamo import eval_frame as _frames
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_grad_enabled = torch.is_grad_enabled
_PROXIES = torch._C._TorchDispatchModeKey.PROXY

__all__ = [
    "Computing",
    "Dispatching",
    "Modes",
    "cast_on",
    "casting",
    "casting_as_called",
    "dispatch",
    "follower",
    "is_innermost",
    "is_proxy",
    "now",
    "obstacle",
    "transforming",
    "untraced",
]

F = TypeVar("F", bound=Callable[..., Any])


class Modes(NamedTuple):
    """torch's state in a thread: the included and excluded dispatch keys (inference mode, autocast,
    tracing, transforms, dispatch modes), grad mode, and the number of function modes.

    >>> with torch.no_grad():
    ...     now().grad
    False
    """

    included: int
    excluded: int
    grad: bool
    functions: int


def now() -> Modes:
    """The state of this thread.

    >>> now() == now()
    True
    """
    return Modes(_included().raw_repr(), _excluded().raw_repr(), _grad_enabled(), _function_modes())


def dispatch() -> tuple[int, int, bool]:
    """The part that operators see: all but function modes.

    >>> with torch.device("meta"):
    ...     dispatch() == now()[:3]
    True
    """
    return _included().raw_repr(), _excluded().raw_repr(), _grad_enabled()


def is_innermost(mode: TorchFunctionMode) -> bool:
    """Whether a torch function mode is the one that sees this thread's calls first.

    >>> is_innermost(TorchFunctionMode())
    False
    """
    count = _function_modes()
    return count > 0 and _function_mode_at(count - 1) is mode


def obstacle() -> str:
    """Why calls in this thread cannot be replayed now; usually empty.

    >>> with torch.device("meta"):
    ...     obstacle()
    'a torch function mode is on'
    """
    if _function_modes():
        return "a torch function mode is on"
    if _dispatch_modes():
        return "a torch dispatch mode is on"
    if transforming():
        return "a transform of torch.func is running"
    who = follower()
    if who:
        return f"{who} follows"
    return ""


_CASTING = ("cpu", "cuda")
"""The devices whose autocast is supported."""


class Computing(NamedTuple):
    """How torch computes in a thread: whether it records gradients, is in inference mode, to which
    dtype each device casts, None where autocast is off, and whether casts of weights are kept.

    >>> Computing.now().casts
    (None, None)
    """

    grad: bool
    inference: bool
    casts: tuple[torch.dtype | None, ...]
    keeps: bool

    @classmethod
    def now(cls) -> Computing:
        """The present state."""
        casts = tuple(
            torch.get_autocast_dtype(each) if torch.is_autocast_enabled(each) else None
            for each in _CASTING
        )
        keeps = any(casts) and torch.is_autocast_cache_enabled()
        return cls(_grad_enabled(), torch.is_inference_mode_enabled(), casts, keeps)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """A block in which torch computes in this way."""
        now = Computing.now()
        with contextlib.ExitStack() as stack:
            if now.inference != self.inference:
                stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device, before, dtype in zip(_CASTING, now.casts, self.casts, strict=True):
                if dtype is not before or (dtype is not None and now.keeps != self.keeps):
                    wanted = {"enabled": dtype is not None, "cache_enabled": self.keeps}
                    stack.enter_context(torch.autocast(device, dtype, **wanted))
            yield


_K = torch._C.DispatchKey
_AUTOCAST = {"cpu": _K.AutocastCPU, "cuda": _K.AutocastCUDA}
_CALL_OTHERS = frozenset(
    ["aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"]
)
"""Operators that call others, though torch has code of its own for each device."""


def cast_on() -> tuple[Any, ...]:
    """The dispatch keys of autocast on the devices where it is on.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     [key.name for key in cast_on()]
    ['AutocastCPU']
    """
    return tuple(_AUTOCAST[each] for each in _CASTING if torch.is_autocast_enabled(each))


@contextlib.contextmanager
def casting_as_called(operator: Any, on: tuple[Any, ...]) -> Iterator[None]:
    """A block in which a dispatch mode calls an operator that it was shown, with autocast as where
    it was called; `on` is from there. torch turns autocast off for the code of a mode. That matters
    to operators which call others, and which have no casts of their own: with these, autocast is
    off inside of them.

    ::

        with casting_as_called(func, cast_on()):
            return func(*args, **kwargs)
    """
    if not on or not isinstance(operator, torch._ops.OpOverload):
        yield
        return
    is_whole = operator.has_kernel_for_dispatch_key(_K.CompositeImplicitAutograd)
    has_casts = any(map(operator.has_kernel_for_dispatch_key, on))
    if has_casts or not (is_whole or operator._schema.name in _CALL_OTHERS):
        yield
        return
    keys = functools.reduce(operator_or, map(torch._C.DispatchKeySet, on))
    excluded = torch._C._dispatch_tls_local_exclude_set() - keys
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield


def casting() -> str:
    """To which dtypes autocast casts in this thread, where it is on, and whether it keeps casts.

    >>> casting() == casting()
    True
    """
    on = "".join(
        f"{each}: {torch.is_autocast_enabled(each)} {torch.get_autocast_dtype(each)}, "
        for each in _CASTING
    )
    return on + str(torch.is_autocast_cache_enabled())


def transforming() -> bool:
    """Whether a torch.func transform, such as `vmap`, is running in this thread.

    >>> transforming()
    False
    """
    return torch._C._functorch.peek_interpreter_stack() is not None


def follower() -> str:
    """Which tracer records this thread's torch calls, and misses launches; usually empty. Inside a
    custom operator there is none, because tracers record the operator as one call.

    >>> follower()
    ''
    """
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    # Proxy modes are on one stack, and on another before operators are decomposed (pre-dispatch).
    if (
        torch._C._get_dispatch_mode(_PROXIES) is not None
        or torch._ops._get_dispatch_mode_pre_dispatch(_PROXIES) is not None  # type: ignore[no-untyped-call]
    ):
        return "make_fx"
    return ""


def is_proxy(value: Any) -> bool:
    """Whether a value stands for a tensor in a trace of `torch.fx`.

    >>> is_proxy(torch.ones(1))
    False
    """
    return issubclass(type(value), torch.fx.Proxy)  # reads no `value.__class__`


def untraced(function: F) -> F:
    """Make torch.compile skip a function, and everything that it calls, unless it traces the
    caller. After a graph break it would otherwise compile every Python function that runs, tzero's
    too, and a host function split into compiled pieces could not be recorded.

    >>> untraced(now) is now
    True
    """
    skip = _frames._FrameAction.SKIP
    _frames.set_code_exec_strategy(function.__code__, _frames._FrameExecStrategy(skip, skip))
    return function


class Dispatching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode whose code torch.compile skips. The usual modes import all of torch.compile
    at their first operator, which adds seconds to a first call.

    ::

        class Noting(Dispatching):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None): ...
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]
        untraced(cls.__torch_dispatch__)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
