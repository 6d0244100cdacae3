"""What torch is set to in a thread: everything besides its arguments that decides what a call of
torch's does.

Enters: nothing but the thread. Leaves: a value that is equal while all of it is the same, and the
reason, if there is one, why host functions cannot be recorded or replayed at all now.
"""

from __future__ import annotations

from typing import NamedTuple

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

_grad_enabled = torch.is_grad_enabled

__all__ = ["Modes", "dispatch", "now", "obstacle"]


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
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is running"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit traces"
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return "autocast is on"
    return ""
