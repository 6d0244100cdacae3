"""Which host function a thread is in, for what that calls to find.

Enters: a call, from whoever makes it, who sets this back afterwards. Leaves: the innermost call of
the thread. It must not know what a call is made of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["Call", "Inside", "inside"]

Call = tuple[Callable[..., None], tuple[Hashable, ...], Any, tuple[Any, ...], int]
"""One host function that is running: what takes note of a value, and what that wants to know: the
raw key, the bound kernel, the arguments, and the call's number. A plain tuple, because every call
makes one."""


class Inside(threading.local):
    """What this thread is in: `call` is the innermost host function of a kernel, or None; `ahead`
    says that one is only tried: looked through for what it would launch, or timed in a process of
    its own. Who enters one sets it, and sets it back."""

    call: Call | None = None
    ahead = False


inside = Inside()
