"""Shows the launches of a thread to a recorder before they are made.

Enters: a recorder, for as long as a recording takes. Leaves: every launch of a Triton kernel on the
same thread, by `tzero.jit` or by Triton itself, given to the recorder with a way to make it. It
must not know what is done with them.

While any thread records, the `run` of Triton's own kernels is replaced. tzero's Python launches
look at `here`; native code is told through `add_switch`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from tzero import locks
from tzero.adapters import triton_entries

__all__ = ["Recorder", "add_switch", "here", "intercepted", "paused", "shown"]


class Recorder(Protocol):
    """Who records a thread."""

    def launch(
        self,
        function: Any,
        grid: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        launch: Callable[[Any], Any],
        /,
    ) -> Any:
        """A kernel is about to be launched; `launch` does that, with this grid or another."""

    def nested(self, kernel: Any, /) -> None:
        """A kernel of tzero's is called, whose host function is recorded as a part."""

    def refuse(self, reason: str, /) -> None:
        """What happens now cannot be recorded."""

    def unseen(self) -> AbstractContextManager[None]:
        """Record nothing of what happens in this block."""


class _LaunchesOnly:
    """A recorder of launches only, from a function."""

    def __init__(self, launch: Callable[..., Any]) -> None:
        self.launch = launch

    def nested(self, kernel: Any, /) -> None:
        """Its launches are seen as they are made."""

    def refuse(self, reason: str, /) -> None:
        """Nothing is recorded."""

    def unseen(self) -> AbstractContextManager[None]:
        """Nothing is recorded."""
        return nullcontext()


class _Here(threading.local):
    """`recorder` is who this thread's launches are shown to, if anyone; `blocks` counts the open
    blocks of `intercepted`."""

    recorder: Recorder | None = None
    blocks = 0


here = _Here()
anywhere = 0
"""How many threads have a recorder. While it is 0, launches need not look at `here`."""

_switches: list[Callable[[int], None]] = []
_change = locks.lock(fork_waits=True)  # protects `anywhere` and Triton's `run`


class _Intercepted:
    """A block in which a thread's launches are shown to a recorder."""

    __slots__ = ("_outer", "_recorder")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._outer: Recorder | None = here.recorder
        here.recorder = self._recorder
        _switch(1)

    def __exit__(self, *exception: object) -> None:
        _switch(-1)
        here.recorder = self._outer


def intercepted(recorder: Recorder | Callable[..., Any]) -> AbstractContextManager[None]:
    """Show every launch of this thread to a recorder, or to a function that takes what
    `Recorder.launch` does, until the block ends.

    >>> with intercepted(lambda function, grid, args, kwargs, launch: launch(grid)):
    ...     here.recorder is None
    False
    """
    return _Intercepted(_LaunchesOnly(recorder) if callable(recorder) else recorder)


@contextmanager
def paused() -> Iterator[None]:
    """Suspend the recording of this thread until the block ends.

    >>> with intercepted(print), paused():
    ...     here.recorder is None
    True
    """
    outer, here.recorder = here.recorder, None
    try:
        yield
    finally:
        here.recorder = outer


def add_switch(switch: Callable[[int], None]) -> None:
    """Call a function with each change of `anywhere`, and once now with its value. It is added once
    however often this is called.

    >>> add_switch(lambda step: None)
    """
    with _change:
        if switch not in _switches:
            switch(anywhere)
            _switches.append(switch)


def shown(
    function: Any,
    grid: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    launch: Callable[[Any], Any],
) -> Any:
    """Make a launch through this thread's recorder, which is paused during the launch itself.

    >>> shown(None, (1,), (), {}, print)
    (1,)
    """
    recorder = here.recorder
    if recorder is None:
        return launch(grid)
    here.recorder = None  # as `paused`, which would take several frames
    try:
        return recorder.launch(function, grid, args, kwargs, launch)
    finally:
        here.recorder = recorder


def _switch(step: int) -> None:
    with _change:
        here.blocks += step
        _count(step)


def _count(step: int) -> None:
    """Change `anywhere`, and what depends on it; the caller holds the lock."""
    global anywhere
    if step:
        anywhere += step
        for switch in _switches:
            switch(step)
        if anywhere == 0:
            triton_entries.put_before_run(None)
        elif anywhere == step:
            triton_entries.put_before_run(shown)


# In a forked child the recordings of other threads never end.
locks.after_fork(lambda: _count(here.blocks - anywhere))
