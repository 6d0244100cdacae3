"""Which host function a thread is running, for code that the host function calls.

Enters: a call, set by whoever runs a host function, who resets it afterwards. Leaves: the innermost
call of the thread. It must not know what a call consists of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["Call", "Current", "current"]

Call = tuple[Callable[..., None], tuple[Hashable, ...], Any, tuple[Any, ...], int]
"""A running host function: the callback of `tzero.specialize`, and its arguments: the raw key, the
bound kernel, the arguments of the call, and the number of the call. A plain tuple, because every
call makes one."""


class Current(threading.local):
    """The thread's state. Whoever changes a field restores it afterwards."""

    call: Call | None = None
    """The innermost host function that is running, or None."""

    is_trial = False
    """Whether the host function is run only to find its launches, or to time it in another process:
    then its values are not specialized on, and kernels in it are not tuned."""

    is_asked = False
    """Whether calls are made to tune what they need, by `warmup` or a search: they wait for it."""

    is_check = False
    """Whether a search runs the host function as written, to check its results: that it is not
    replayed then is no event."""


current = Current()
