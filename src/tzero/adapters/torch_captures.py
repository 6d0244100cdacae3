"""Adapts captures of CUDA graphs: other threads leave the device alone while one is open.

CUDA ends a capture with an error when another thread copies from the device, allocates on it, or
waits for it. A thread that has to do so asks here: it waits until no capture is open, and captures
that begin meanwhile wait for it.

Enters: torch's class of graphs, and blocks of work. Leaves: the same class, whose captures are
counted. It must not know what the work is. Captures that do not go through torch's class, as those
of C++ code, are not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tzero import locks

__all__ = ["between_captures", "watch"]

_changed = locks.condition()  # protects these two
_open = 0
_working = 0


@contextmanager
def between_captures() -> Iterator[None]:
    """Wait until no capture is open; captures wait until the block ends.

    >>> with between_captures():
    ...     pass
    """
    global _working
    with _changed:
        _changed.wait_for(lambda: _open == 0)
        _working += 1
    try:
        yield
    finally:
        with _changed:
            _working -= 1
            _changed.notify_all()


def watch(kind: Any = None) -> None:
    """Count the captures of torch's class of graphs from now on; done once.

    >>> watch()
    """
    kind = torch.cuda.CUDAGraph if kind is None else kind
    if hasattr(kind.capture_begin, "_tzero_watched"):
        return
    kind.capture_begin = _begun(kind.capture_begin)
    kind.capture_end = _ended(kind.capture_end)


def _begun(begin: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(begin)
    def capture_begin(*args: Any, **kwargs: Any) -> Any:
        with _changed:
            _changed.wait_for(lambda: _working == 0)
            _count(1)
        try:
            return begin(*args, **kwargs)
        except BaseException:
            _count(-1)
            raise

    capture_begin._tzero_watched = True  # type: ignore[attr-defined]
    return capture_begin


def _ended(end: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(end)
    def capture_end(*args: Any, **kwargs: Any) -> Any:
        try:
            return end(*args, **kwargs)
        finally:
            _count(-1)

    return capture_end


def _count(step: int) -> None:
    global _open
    with _changed:
        _open = max(0, _open + step)  # one that began before `watch` may end after it
        _changed.notify_all()


def _forget() -> None:
    """In a forked child: the work and the captures of other threads never end."""
    global _open, _working
    _open = _working = 0


locks.after_fork(_forget)
