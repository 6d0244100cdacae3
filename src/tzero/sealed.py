"""Whether the process is sealed: then nothing may be compiled, tuned or recorded any more.

Enters: a mode, and each compile, tuning and recording that is about to begin. Leaves: nothing while
the process is not sealed; then `SealBroken`, or an event. It must not know kernels. Hits never come
here: only what is about to be slow asks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from tzero import locks
from tzero.errors import SealBroken
from tzero.events import Event, emit

__all__ = ["Mode", "Seal", "check", "describing", "is_sealed", "seal", "unseal", "unsealed"]

Mode = Literal["error", "warn"]

_change = locks.lock()  # protects `_seals`; reads take no lock
_seals: tuple[Seal, ...] = ()


class Seal:
    """A seal in force; as a context manager, until its block ends.

    >>> with seal("warn"):
    ...     is_sealed()
    True
    >>> is_sealed()
    False
    """

    def __init__(self, mode: Mode) -> None:
        self.mode: Mode = mode

    def __enter__(self) -> Seal:
        return self

    def __exit__(self, *error: object) -> None:
        global _seals
        with _change:
            _seals = tuple(each for each in _seals if each is not self)

    def __repr__(self) -> str:
        state = "in force" if self in _seals else "ended"
        return f"<Seal {self.mode!r}, {state}>"


def seal(mode: Mode) -> Seal:
    """Seal the process; the latest seal in force counts.

    >>> with seal("error") as made:
    ...     made
    <Seal 'error', in force>
    """
    global _seals
    made = Seal(mode)
    with _change:
        _seals = (*_seals, made)
    return made


def unseal() -> None:
    """End all seals.

    >>> unseal()
    """
    global _seals
    with _change:
        _seals = ()


def is_sealed() -> bool:
    """Whether a seal is in force.

    >>> is_sealed()
    False
    """
    return bool(_seals)


@contextmanager
def unsealed() -> Iterator[bool]:
    """Whether the process is not sealed; nobody seals it before the block ends.

    >>> with unsealed() as is_open:
    ...     is_open
    True
    """
    with _change:
        yield not _seals


def check(what: str, kernel: str, nearest: Callable[[], str] | None = None) -> None:
    """If the process is sealed, raise `SealBroken` or emit an event: `what`, such as ``compile``,
    is about to begin for a kernel. `nearest` says how the call differs from what was covered.

    >>> check("compile", "add")
    """
    seals = _seals
    if not seals:
        return
    about = nearest or _here.nearest
    broken = SealBroken(kernel=kernel, what=what, difference="" if about is None else about())
    if seals[-1].mode == "error":
        raise broken
    emit(Event("fallback", kernel, str(broken)))


class _Here(threading.local):
    nearest: Callable[[], str] | None = None


_here = _Here()


@contextmanager
def describing(nearest: Callable[[], str]) -> Iterator[None]:
    """Until the block ends, let this describe what `check` finds on this thread.

    >>> with describing(lambda: "argument 'n' is 7; 8 was covered"):
    ...     check("compile", "add")
    """
    outer, _here.nearest = _here.nearest, nearest
    try:
        yield
    finally:
        _here.nearest = outer
