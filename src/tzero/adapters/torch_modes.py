"""What torch is set to in a thread: everything besides its arguments that decides what a call of
torch's does.

Enters: nothing but the thread. Leaves: a value that is equal while all of it is the same, and the
reason, if there is one, why host functions cannot be recorded or replayed at all now; a mark that
keeps torch.compile out of functions, and the dispatch mode that those of ours are made from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch._C import (
    _dispatch_tls_local_exclude_set as _excluded,
)
from torch._C import (
    _dispatch_tls_local_include_set as _included,
)
from torch._C import (
    _len_torch_dispatch_stack as _dispatch_modes,
)
from torch._C import (
    _len_torch_function_stack as _function_modes,
)
from torch._C._dynamo import eval_frame as _frames
from torch.utils._python_dispatch import TorchDispatchMode

_grad_enabled = torch.is_grad_enabled
_PROXIES = torch._C._TorchDispatchModeKey.PROXY

__all__ = [
    "Dispatching",
    "Modes",
    "dispatch",
    "follower",
    "now",
    "obstacle",
    "transforming",
    "untraced",
]

F = TypeVar("F", bound=Callable[..., Any])


class Modes(NamedTuple):
    """The state of torch in a thread: which of its dispatch keys are on and off there (inference
    mode, autocast, tracing, transforms, dispatch modes), whether gradients are recorded, and how
    many function modes are on.

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
    """The part of it that operators see: all but function modes.

    >>> with torch.device("meta"):
    ...     dispatch() == now()[:3]
    True
    """
    return _included().raw_repr(), _excluded().raw_repr(), _grad_enabled()


def obstacle() -> str:
    """Why calls in this thread are not replayed now; mostly empty.

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
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return "autocast is on"
    return ""


def transforming() -> bool:
    """Whether a transform of torch.func, such as `vmap`, is running in this thread.

    >>> transforming()
    False
    """
    return torch._C._functorch.peek_interpreter_stack() is not None


def follower() -> str:
    """Who writes down what torch does in this thread, and does not see launches; mostly empty.
    Nobody does in the code of an operator of one's own, which is one step to them all.

    >>> follower()
    ''
    """
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    # Proxies have a place among the modes, and another where operators are not taken apart yet.
    if (
        torch._C._get_dispatch_mode(_PROXIES) is not None
        or torch._ops._get_dispatch_mode_pre_dispatch(_PROXIES) is not None  # type: ignore[no-untyped-call]
    ):
        return "make_fx"
    return ""


def untraced(function: F) -> F:
    """Have torch.compile leave the calls of a function alone that it does not follow from their
    caller, and all that these call. After a break in a graph it would look into every Python
    function that runs, and into tzero's: a host function that runs in pieces of torch.compile's own
    could not be recorded.

    >>> untraced(now) is now
    True
    """
    skip = _frames._FrameAction.SKIP
    _frames.set_code_exec_strategy(function.__code__, _frames._FrameExecStrategy(skip, skip))
    return function


class Dispatching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode whose own code torch.compile leaves alone. Modes that torch sees to itself
    import all of torch.compile at their first operator, which takes seconds of a first call.

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
