"""Launches of this thread, shown to whoever records them before they are made.

Enters: an interceptor, for as long as a recording takes. Leaves: every launch of a Triton kernel on
the same thread, by `tzero.jit` or by Triton itself, given to it with a way to make it. It must not
know what is done with them.

Triton's own kernels are reached by putting a function in front of their `run` while anyone records;
tzero's ask here, and native code is told by way of `add_switch`, because it does not ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from tzero.adapters import triton_launch

__all__ = ["Interceptor", "add_switch", "here", "intercepted", "shown"]


class Interceptor(Protocol):
    """What is shown a launch: the kernel, its grid and arguments, and what makes the launch, with
    that grid or another."""

    def __call__(
        self,
        function: Any,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        launch: Callable[[Any], Any],
        /,
    ) -> Any: ...


class _Here(threading.local):
    """`interceptor` is what this thread's launches are shown to, if anything."""

    interceptor: Interceptor | None = None


here = _Here()
anywhere = 0
"""How many threads have an interceptor. While it is none, nobody needs to ask `here`."""

_switches: list[Callable[[int], None]] = []
_change = threading.RLock()  # protects `anywhere` and the function in front of Triton's


@contextmanager
def intercepted(interceptor: Interceptor) -> Iterator[None]:
    """Show an interceptor every launch of this thread, until the block ends.

    >>> with intercepted(lambda function, grid, args, kwargs, launch: launch(grid)):
    ...     here.interceptor is None
    False
    """
    outer, here.interceptor = here.interceptor, interceptor
    _switch(1)
    try:
        yield
    finally:
        _switch(-1)
        here.interceptor = outer


def add_switch(switch: Callable[[int], None]) -> None:
    """Have a function told from now on by how much `anywhere` changes, and now what it is.

    >>> add_switch(lambda step: None)
    """
    with _change:
        switch(anywhere)
        _switches.append(switch)


def shown(
    function: Any,
    grid: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    launch: Callable[[Any], Any],
) -> Any:
    """Make a launch by way of this thread's interceptor, which does not see what the launch does.

    >>> shown(None, (1,), (), {}, print)
    (1,)
    """
    interceptor = here.interceptor
    if interceptor is None:
        return launch(grid)
    here.interceptor = None
    try:
        return interceptor(function, grid, args, kwargs, launch)
    finally:
        here.interceptor = interceptor


def _switch(step: int) -> None:
    global anywhere
    with _change:
        anywhere += step
        for switch in _switches:
            switch(step)
        if anywhere == 1 and step == 1:
            triton_launch.put_before_run(shown)
        elif anywhere == 0:
            triton_launch.put_before_run(None)
